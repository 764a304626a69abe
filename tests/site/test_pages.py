"""The built site in a real browser: no console errors, no sideways scrolling, both colour schemes.

`nox -s docs` builds the site into build/site first and then runs these tests.
"""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "site"
PAGES = sorted(
    page.relative_to(SITE).as_posix() for page in SITE.rglob("*.html") if page.name != "404.html"
)
PHONE = (390, 844)
SCHEMES = ("light", "dark")


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    """Serves files without writing a log line for each."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - inherited name
        """Say nothing."""


def serve(folder: Path) -> http.server.ThreadingHTTPServer:
    handler = functools.partial(QuietHandler, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.fixture(scope="session")
def site() -> Iterator[str]:
    assert PAGES, f"{SITE} holds no page; build the site first: nox -s docs"
    server = serve(SITE)
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="session")
def browser() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options)
    yield driver
    driver.quit()


def show(browser: webdriver.Chrome, url: str, scheme: str) -> None:
    """Open a page as a phone of 390 CSS pixels shows it, in one colour scheme."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": PHONE[0], "height": PHONE[1], "deviceScaleFactor": 1, "mobile": True},
    )
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    browser.get_log("browser")  # Forgets what earlier pages logged.
    browser.get(url)


def problems(browser: webdriver.Chrome) -> list[str]:
    """What is wrong with the page that is shown, in words."""
    errors = [
        f"console: {entry['message']}"
        for entry in browser.get_log("browser")
        if entry["level"] == "SEVERE"
    ]
    width = browser.execute_script("return document.documentElement.scrollWidth")
    if width > PHONE[0]:
        errors.append(f"the page is {width} px wide on a screen of {PHONE[0]} px")
    return errors


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("page", PAGES)
def test_page_shows_without_errors(
    browser: webdriver.Chrome, site: str, page: str, scheme: str
) -> None:
    show(browser, f"{site}/{page}", scheme)
    assert problems(browser) == []
    assert browser.find_element(By.TAG_NAME, "h1").text


def test_colour_schemes_differ(browser: webdriver.Chrome, site: str) -> None:
    colours = set()
    for scheme in SCHEMES:
        show(browser, f"{site}/", scheme)
        browser.execute_script("localStorage.clear()")
        show(browser, f"{site}/", scheme)
        body = browser.find_element(By.TAG_NAME, "body")
        colours.add(body.value_of_css_property("background-color"))
    assert len(colours) == len(SCHEMES)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("<script>undefinedName()</script>", "console:"),
        ('<img src="missing.png">', "console:"),
        # 8 px of margin come on top.
        ('<div style="width: 900px">wide</div>', "908 px wide"),
    ],
)
def test_a_bad_page_is_caught(
    browser: webdriver.Chrome, tmp_path: Path, body: str, complaint: str
) -> None:
    head = (
        '<!doctype html><meta name="viewport" content="width=device-width">'
        '<link rel="icon" href="data:,">'
    )
    (tmp_path / "bad.html").write_text(head + body)
    server = serve(tmp_path)
    try:
        show(browser, f"http://127.0.0.1:{server.server_port}/bad.html", "light")
        assert any(complaint in problem for problem in problems(browser))
    finally:
        server.shutdown()

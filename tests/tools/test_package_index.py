from __future__ import annotations

import os
from pathlib import Path

import pytest

from findings import InconclusiveError, UnusableError
from index_server import Fault
from package_index import (
    Index,
    Upload,
    confirm_execute,
    from_environment,
    is_local,
    name_and_version,
    plain_pip,
)
from staging_world import RELEASE, World

STAGING = {
    "MMAEMU_STAGING_INDEX_URL": "https://index.invalid/simple",
    "MMAEMU_STAGING_UPLOAD_URL": "https://index.invalid/legacy/",
    "TWINE_USERNAME": "somebody",
    "TWINE_PASSWORD": "twine-secret",
}


def test_an_index_is_what_the_variables_say() -> None:
    index = from_environment("staging", STAGING)
    assert index.url == "https://index.invalid/simple/"
    assert index.upload_url == "https://index.invalid/legacy/"
    assert index.credentials == ("somebody", "twine-secret")
    assert "secret" not in repr(index)


def test_a_role_has_an_account_of_its_own() -> None:
    own = {"MMAEMU_STAGING_USERNAME": "gate", "MMAEMU_STAGING_PASSWORD": "gate-secret"}
    assert from_environment("staging", STAGING | own).credentials == ("gate", "gate-secret")
    none = {key: text for key, text in STAGING.items() if "TWINE" not in key}
    assert from_environment("staging", none).credentials is None


@pytest.mark.parametrize(
    ("role", "change", "message"),
    [
        ("nightly", {}, "MMAEMU_NIGHTLY_INDEX_URL is not set"),
        (
            "staging",
            {"MMAEMU_STAGING_UPLOAD_URL": "https://me:hidden@index.invalid/"},
            "holds a password; set TWINE_PASSWORD instead",
        ),
        ("staging", {"MMAEMU_INDEX_TIMEOUT": "soon"}, "must be seconds, got 'soon'"),
    ],
)
def test_a_wrong_variable_is_named(role: str, change: dict[str, str], message: str) -> None:
    with pytest.raises(UnusableError, match=message) as caught:
        from_environment(role, STAGING | change)
    assert "hidden" not in str(caught.value)


def test_the_public_index_may_come_from_pips_own_settings() -> None:
    assert from_environment("public", {"PIP_INDEX_URL": "http://a.invalid/x"}).url.endswith("/x/")


def test_pip_sees_no_settings_but_the_way_to_the_network() -> None:
    seen = plain_pip({"PIP_INDEX_URL": "x", "PIP_CERT": "c", "UV_INDEX": "x", "PATH": "p"})
    assert seen == {
        "PIP_CERT": "c",
        "PATH": "p",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:1/", True),
        ("http://[::1]/", True),
        ("http://localhost/", True),
        ("file:///srv/index", True),
        ("https://index.invalid/", False),
        ("http://127.0.0.1.invalid/", False),
        ("http://10.0.0.1/", False),
    ],
)
def test_local_is_this_machine_alone(url: str, local: bool) -> None:
    assert is_local(url) is local
    index = Index("staging", "http://127.0.0.1/simple/", url)
    confirm_execute((index,), allow_remote=True)
    if not local:
        with pytest.raises(UnusableError, match="add --allow-remote"):
            confirm_execute((index,), allow_remote=False)


@pytest.mark.parametrize(
    ("file", "found"),
    [
        ("sync_a-1.2.3-py3-none-any.whl", ("sync-a", "1.2.3")),
        ("sync_a-1.2.3-0112-py3-none-any.whl", ("sync-a", "1.2.3")),
        ("sync_a-1.2.3.tar.gz", ("sync-a", "1.2.3")),
        ("SHA256SUMS", None),
        ("sync_a.whl", None),
    ],
)
def test_a_files_name_says_project_and_version(file: str, found: tuple[str, str] | None) -> None:
    named = name_and_version(file)
    assert (named and (named[0], str(named[1]))) == found


@pytest.mark.parametrize(
    ("code", "output", "refused"),
    [
        (0, "", False),
        (None, "", False),
        (1, "HTTPError: 400 Bad Request from http://x\nno", True),
        (1, "HTTPError: 503 Service Unavailable from http://x", False),
        (1, "ConnectionError: 400 of them", False),
    ],
)
def test_only_an_answer_is_a_refusal(code: int | None, output: str, refused: bool) -> None:
    assert Upload(code, output).refused is refused


def test_pages_are_read_in_both_forms(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in world.build(RELEASE):
        world.indexes["public"].put(path)
    world.indexes["public"].yank("sync-b", RELEASE, "broken")
    index = Index("public", world.indexes["public"].url)
    as_json = index.files("Sync.B")
    monkeypatch.setattr("package_index._ACCEPT", "text/html")
    (as_html,) = index.files("sync-b")
    (file,) = as_json
    assert (file.name, file.url, file.sha256, file.yanked) == (
        *(as_html.name, as_html.url, as_html.sha256),
        True,
    )
    assert as_html.yanked
    assert as_html.size is None
    assert index.size(as_html) == file.size == len(index.read(file) or b"")
    assert index.files("nobody") == ()


def test_silence_is_not_absence(world: World) -> None:
    public = world.indexes["public"]
    index = Index("public", public.url, timeout=0.3)
    for kind in ("error", "hang"):
        public.faults[:] = [Fault(kind, "simple", times=1)]
        with pytest.raises(InconclusiveError, match="rerun when it does"):
            index.files("sync-a")
    public.faults[:] = [Fault("error", "simple", status=403)]
    with pytest.raises(UnusableError, match="403"):
        index.files("sync-a")


def test_an_upload_needs_an_address(tmp_path: Path) -> None:
    index = Index("staging", "http://127.0.0.1/simple/")
    with pytest.raises(UnusableError, match="MMAEMU_STAGING_UPLOAD_URL is not set"):
        index.upload(tmp_path / "x.whl")

"""Staging and the gate against devpi, an index server that is not the one of the other tests."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from files import sha256_of_file
from index_server import isolated
from package_index import Index
from staging_world import RELEASE, World, reserved_port, variables
from two_wheels import stand_in

PASSWORD = "devpi-secret"  # noqa: S105 - of a server that lives for one test
pytestmark = pytest.mark.channels


def ask(base: str, method: str, path: str, document: Any, **headers: str) -> dict[str, Any]:
    """Send a request to devpi's own interface."""
    request = urllib.request.Request(  # noqa: S310 - loopback
        base + path,
        json.dumps(document).encode(),
        {"Content-Type": "application/json", "Accept": "application/json", **headers},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=20) as response:  # noqa: S310 - loopback
        found: dict[str, Any] = json.load(response)
        return found


@pytest.fixture
def devpi(tmp_path: Path) -> Iterator[str]:
    """The address of a devpi with the indexes `staging` (deletable) and `public` (not)."""
    folder, env = tmp_path / "devpi", isolated(tmp_path)
    scripts = Path(sys.executable).parent
    given = ["--serverdir", str(folder)]
    subprocess.run(
        [str(scripts / "devpi-init"), *given, "--root-passwd", PASSWORD],
        env=env,
        check=True,
        capture_output=True,
    )
    with reserved_port() as kept:
        port = kept.getsockname()[1]
    base = f"http://127.0.0.1:{port}"
    command = [str(scripts / "devpi-server"), *given, "--port", str(port), "--offline-mode"]
    server = subprocess.Popen(
        command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _prepare(base)
        yield base
    finally:
        server.kill()
        server.wait()


def _prepare(base: str) -> None:
    for _ in range(240):
        try:
            login = ask(base, "POST", "/+login", {"user": "root", "password": PASSWORD})
            break
        except urllib.error.URLError:
            time.sleep(0.25)
    else:
        pytest.fail("devpi did not start within a minute")
    token = f"root:{login['result']['password']}".encode()
    headers = {"X-Devpi-Auth": base64.b64encode(token).decode()}
    for name in ("staging", "public"):
        settings = {"type": "stage", "bases": [], "volatile": name == "staging"}
        ask(base, "PUT", f"/root/{name}", settings, **headers)


def settings(base: str) -> dict[str, str]:
    """The variables that name the two indexes."""
    found = {"MMAEMU_INDEX_TIMEOUT": "60"}
    for role in ("staging", "public"):
        index = f"{base}/root/{role}/"
        found |= variables(role, f"{index}+simple/", index, ("root", PASSWORD))
    return found


def names(base: str, role: str) -> set[str]:
    """The files of sync-a, sync-b and sync-c on an index."""
    index = Index(role, f"{base}/root/{role}/+simple/")
    return {file.name for name in "abc" for file in index.files(f"sync-{name}")}


def test_a_release_goes_through_staging_and_gate(world: World, devpi: str) -> None:
    env = settings(devpi)
    built = {path.name for path in world.build(RELEASE)}
    done = world.run("stage", "--channel", "release", "--execute", **env)
    assert done.returncode == 0, done.stdout
    assert names(devpi, "staging") == built
    again = world.run("stage", "--channel", "release", "--execute", **env)
    assert again.stdout.count("staging: done ") == 3
    first, second = world.manifests
    done = world.run("gate", str(first), "--execute", **env)
    assert done.returncode == 0, done.stdout
    assert names(devpi, "public") == built
    assert names(devpi, "staging") == set()
    assert [subject.split()[1] for subject in world.mailbox.subjects] == ["accepted:", "published:"]
    assert PASSWORD not in done.stdout
    done = world.run("gate", str(second), "--execute", **env)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("already public") == 3


def test_what_is_public_is_never_replaced(world: World, devpi: str) -> None:
    env = settings(devpi)
    (path,) = world.build(RELEASE, ["sync-a"])
    credentials = ("root", PASSWORD)
    public = Index("public", f"{devpi}/root/public/+simple/", f"{devpi}/root/public/", credentials)
    assert public.upload(path).code == 0
    digest = sha256_of_file(path)
    stand_in(world.dist, "sync-a", RELEASE, ("sync-b",))
    assert public.upload(path).refused
    done = world.run("stage", "--channel", "release", "--only", "sync-a", "--execute", **env)
    assert done.returncode == 1, done.stdout
    assert "STAGE109" in done.stdout
    assert [file.sha256 for file in public.files("sync-a")] == [digest]

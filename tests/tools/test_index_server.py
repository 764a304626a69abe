"""The index that the other tests trust, shown with the real twine, pip and uv."""

from __future__ import annotations

import datetime as dt
import ensurepip
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import in_process
import two_wheels
from index_server import Fault, IndexServer, Policy, isolated
from package_index import from_environment

NEW = "1.1"
PASSWORD = "".join(map(str, range(9)))
UV = (sys.executable, "-m", "uv", "pip", "install", "--no-deps")
PIP = (sys.executable, "-m", "pip", "install", "--no-deps")


def old_pip() -> tuple[str, ...]:
    """The pip that Python itself carries, an older one; the environment's own where it has none."""
    bundled = Path(ensurepip.__file__).parent / "_bundled"
    wheel = next(bundled.glob("pip-*.whl"), None)
    return (sys.executable, f"{wheel}/pip", *PIP[3:]) if wheel else PIP


@dataclass
class World:
    """An index, its clients' environment, and a place to install into."""

    index: IndexServer
    folder: Path

    def run(self, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
        surroundings = self.environment() | env
        return subprocess.run(
            command, env=surroundings, capture_output=True, text=True, check=False
        )

    def environment(self) -> dict[str, str]:
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        return isolated(home) | self.index.settings()

    def upload(self, *paths: Path, **env: str) -> subprocess.CompletedProcess[str]:
        options = ["--non-interactive", "--disable-progress-bar"]
        options += ["--repository-url", self.index.upload_url]
        names = [str(path) for path in paths]
        surroundings = self.environment() | {"COLUMNS": "400"} | env
        return in_process.run_twine(["upload", *options, *names], surroundings)

    def refused(self, path: Path, words: str) -> None:
        """An upload that must fail, with these words, and leave the index as it is."""
        before = self.index.files()
        done = self.upload(path)
        assert done.returncode == 1
        assert words in done.stdout + done.stderr
        assert self.index.files() == before

    def install(self, *command: str) -> str:
        """Install `thing` and return its version."""
        target = self.folder / f"target-{len(self.index.log)}"
        options = ["--index-url", self.index.url, "--target", str(target)]
        done = self.run(*command, *options)
        assert done.returncode == 0, done.stdout + done.stderr
        (info,) = target.glob("thing-*.dist-info")
        return info.name.removeprefix("thing-").removesuffix(".dist-info")

    def wheel(self, version: str = "1.0", size: int = 0) -> Path:
        files = {"thing.py": bytes(size)}
        return two_wheels.stand_in(self.folder / f"{version}-{size}", "thing", version, (), files)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with IndexServer(tmp_path / "index") as index:
        yield World(index, tmp_path)


def test_same_bytes_again_are_fine_and_other_bytes_are_not(world: World) -> None:
    world.index.policy.token = PASSWORD
    wheel, other = world.wheel(), world.wheel(size=1)
    assert world.upload(wheel, TWINE_PASSWORD=NEW).returncode == 1
    assert world.index.files() == {}
    for _ in range(2):
        done = world.upload(wheel)
        assert done.returncode == 0, done.stdout + done.stderr
    assert world.index.uploads() == [wheel.name]
    world.refused(other, "File already exists")
    world.index.remove(wheel.name)
    world.refused(other, "already been used")
    world.refused(wheel, "already been used")
    world.index.policy.reuse_names = True
    assert world.upload(other).returncode == 0
    assert world.index.files() == {other.name: other.read_bytes()}


def test_limits_of_a_file_and_of_a_project(world: World) -> None:
    wheel, larger = world.wheel(), world.wheel(NEW, size=1)
    size = wheel.stat().st_size
    assert larger.stat().st_size == size + 1
    world.index.policy.file_limit = size
    assert world.upload(wheel).returncode == 0
    world.refused(larger, f"Limit for project 'thing' is {size} bytes")
    world.index.policy = Policy(quota=2 * size)
    world.refused(larger, "Project size too large")
    world.index.policy.quota += 1
    assert world.upload(larger).returncode == 0


def test_a_release_becomes_too_old_for_new_files(world: World) -> None:
    day = dt.datetime(2026, 12, 1, tzinfo=dt.timezone.utc)
    world.index.policy.release_age = dt.timedelta(days=14)
    world.index.now = lambda: day
    assert world.upload(world.wheel()).returncode == 0
    late = world.wheel(size=1).rename(world.folder / "thing-1.0-py2-none-any.whl")
    world.index.now = lambda: day + dt.timedelta(days=14, seconds=1)
    world.refused(late, "too old for new files")
    world.index.now = lambda: day + dt.timedelta(days=14)
    assert world.upload(late).returncode == 0


def test_an_index_that_fails(world: World) -> None:
    wheel = world.wheel()
    world.index.faults = [Fault("error", "POST /legacy/", times=1)]
    assert world.upload(wheel).returncode == 0  # twine tries again by itself
    world.index.policy.reuse_names = True
    world.index.remove(wheel.name)
    world.index.faults = [Fault("error", "POST /legacy/", status=503)]
    done = world.upload(wheel)
    assert done.returncode == 1
    assert "503" in done.stdout + done.stderr
    assert world.index.files() == {}
    world.index.faults = [Fault("error-after", "POST")]
    assert world.upload(wheel).returncode == 1
    assert set(world.index.files()) == {wheel.name}
    world.index.faults = []
    assert world.upload(wheel).returncode == 0
    world.index.faults = [Fault("error", "GET /simple/")]
    assert world.run(*PIP, "--retries", "0", "--index-url", world.index.url, "thing").returncode


@pytest.mark.parametrize("json", [True, False])
def test_pages_that_lie_lag_or_remember(json: bool, world: World) -> None:
    for version in ("1.0", NEW):
        world.index.put(world.wheel(version))
    first, second = (f"thing-{version}-py3-none-any.whl" for version in ("1.0", NEW))
    tool = UV if json else (*PIP, "--use-deprecated=legacy-resolver")
    world.index.faults = [Fault("lie", second)]
    target = str(world.folder / "t")
    done = world.run(*tool, "--index-url", world.index.url, "--target", target, "thing")
    assert done.returncode
    assert "hash" in (done.stdout + done.stderr).lower()
    world.index.faults = [Fault("stale", second)]
    assert world.install(*tool, "thing") == "1.0"
    world.index.faults = [Fault("ghost", first)]
    world.index.remove(first)
    index = from_environment("public", world.index.settings())
    assert [file.name for file in index.files("thing")] == [first, second]
    assert index.read(index.files("thing")[0]) is None


@pytest.mark.channels
def test_every_client_takes_what_is_not_yanked(world: World) -> None:
    for version in ("1.0", NEW, "1.2"):
        world.index.put(world.wheel(version))
    world.index.yank("thing", "1.2", 'it said "no"')
    for command in (PIP, old_pip(), UV):
        assert world.install(*command, "thing") == NEW
    # An exact requirement still gets it (PEP 592).
    assert world.install(*PIP, "thing==1.2") == "1.2"
    index = from_environment("public", world.index.settings())
    assert [file.yanked for file in index.files("thing")] == [False, False, True]


def test_nobodys_configuration_gets_in(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "TWINE_REPOSITORY_URL", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    config = Path.home() / ".config" / "pip" / "pip.conf"
    config.parent.mkdir(parents=True)
    config.write_text("[global]\nindex-url = http://127.0.0.1:9/\n")
    environment = isolated(tmp_path)
    assert not [name for name, text in environment.items() if text == "http://127.0.0.1:9/"]
    done = world.run(sys.executable, "-m", "pip", "config", "list")
    assert ":9/" not in done.stdout
    world.index.put(world.wheel())
    for command in (PIP, UV):
        assert world.install(*command, "thing") == "1.0"


def test_two_indexes_at_once(tmp_path: Path) -> None:
    with IndexServer(tmp_path / "a") as first, IndexServer(tmp_path / "b") as second:
        world = World(first, tmp_path)
        first.put(world.wheel())
        for index, count in ((first, 1), (second, 0)):
            role = from_environment("nightly", index.settings("nightly"))
            assert len(role.files("thing")) == count

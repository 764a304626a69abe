"""`tools/nightly.py` on the project of two wheels, against real indexes."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

import channel_build
import in_process
import nightly
import nightly_manifest
import two_wheels
from findings import UnusableError
from forks import Forks
from git_commands import Git
from index_server import Fault, IndexServer, Policy, isolated
from package_index import from_environment
from repositories import Repository

ROOT = Path(__file__).resolve().parents[2]
TOOL = str(ROOT / "tools" / "nightly.py")
SECRET = "".join(map(str, range(20)))
STAMPED = ".dev20261130080000"
JAX, TORCH = "fixture-sync-jax", "fixture-sync-torch"


@dataclass
class World:
    """A clone, the nightly and the public index, and what the tool did."""

    repository: Repository
    nightly: IndexServer
    public: IndexServer
    home: Path
    more: dict[str, str] = field(default_factory=dict)

    @property
    def out(self) -> Path:
        return self.repository.root / "build" / "nightly"

    def environment(self) -> dict[str, str]:
        indexes = self.nightly.settings("nightly") | self.public.settings("public")
        return isolated(self.home) | indexes | self.more

    def start(self, *arguments: str, channel: str = "nightly") -> subprocess.Popen[str]:
        root = ["--root", str(self.repository.root)]
        return subprocess.Popen(
            [sys.executable, TOOL, "--channel", channel, *root, *arguments],
            cwd=self.home,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str, channel: str = "nightly", code: int = 0) -> str:
        """Run the tool to its end."""
        root = ["--root", str(self.repository.root)]
        hangs = any(fault.kind == "hang" for fault in self.nightly.faults)
        done = in_process.run(
            nightly, ["--channel", channel, *root, *arguments], self.environment(), processes=hangs
        )
        assert done.returncode == code, done.stdout
        assert SECRET not in done.stdout
        return done.stdout

    def manifests(self) -> list[dict[str, Any]]:
        found = [json.loads(path.read_text()) for path in self.out.glob("*/*.json")]
        return sorted(found, key=lambda document: Version(document["version"]))

    def known(self, version: str, index: IndexServer | None = None) -> None:
        """Let an index list a version."""
        wheel = two_wheels.stand_in(self.home / "known", JAX, version)
        (index or self.nightly).put(wheel)

    def edit(self, name: str, old: str, new: str) -> str:
        """Change a file of the project and commit it."""
        path = self.repository.root / name
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new, 1), encoding="utf-8")
        return self.repository.commit(f"change {name}")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    home = tmp_path / "home"
    home.mkdir()
    repository = two_wheels.materialise(tmp_path / "clone")
    policy = Policy(token=SECRET)
    with IndexServer(tmp_path / "n", policy) as nightly, IndexServer(tmp_path / "p") as public:
        yield World(repository, nightly, public, home)


def wait_for(condition: Callable[[], object], seconds: float = 8.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


def runtime(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/_version.py"))
        return archive.read(name).decode().split('"')[1]


def test_a_nightly_from_the_clone_to_the_user(world: World) -> None:
    root = world.repository.root
    before = (root / "pyproject.toml").read_bytes()
    # What is not committed is not built.
    (root / "jax/fixture_sync_jax/__init__.py").write_text("raise SystemExit\n")
    start = dt.datetime.now(dt.timezone.utc).replace(microsecond=0)
    plan = world.run("--dry-run")
    assert f"builds {JAX}: wheel" in plan
    assert not world.out.exists()
    assert world.nightly.files() == {}
    world.run("--execute")
    (document,) = world.manifests()
    version, commit = document["version"], world.repository.git("rev-parse", "HEAD")
    assert document["schema"] == "nightly-manifest/1"
    assert (document["commit"], document["base"]) == (commit, "0.4.0")
    assert document["tree"] == world.repository.git("rev-parse", "HEAD^{tree}")
    assert document["pairing"] == {"torch-device": two_wheels.PAIRED}
    assert document["missing"] == []
    stamp = dt.datetime.strptime(f"{version[9:]}+0000", "%Y%m%d%H%M%S%z")
    assert start <= stamp <= dt.datetime.now(dt.timezone.utc)
    assert start <= dt.datetime.fromisoformat(document["started_at"].replace("Z", "+00:00"))
    files = {row["file"]: row for row in document["files"]}
    assert list(files) == document["published"] == world.nightly.uploads()
    for name, data in world.nightly.files().items():
        assert files[name]["size"] == len(data)
        assert (world.out / version / name).read_bytes() == data
        assert runtime(world.out / version / name) == version
    pins = world.out / version / "jax_pins.txt"
    assert pins.read_text() == "jax==0.11.2\njaxlib==0.11.2\nlibtpu==0.0.41\n"
    assert (root / "pyproject.toml").read_bytes() == before
    target = world.home / "site"
    options = ["--pre", "--no-deps", "--index-url", world.nightly.url, "--target", str(target)]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, JAX], env=world.environment(), check=True
    )
    assert [path.name for path in target.glob("*.dist-info")] == [
        f"fixture_sync_jax-{version}.dist-info"
    ]
    # Built again from its commit it has the same bytes.
    again = channel_build.rebuild(root, commit, version, world.home / "again")
    assert {path.name: path.read_bytes() for path in again} == world.nightly.files()


def test_two_runs_at_once_make_one_nightly(world: World) -> None:
    world.nightly.faults = [Fault("hang", "GET /simple/")]
    first = world.start("--execute")
    wait_for(lambda: world.nightly.log)
    printed = world.run("--execute", code=3)
    assert f"another run is at work (process {first.pid} since " in printed
    world.nightly.faults.clear()
    assert first.wait() == 0
    assert len(world.manifests()) == 1
    assert len(world.nightly.uploads()) == 2
    assert set(world.nightly.uploads()) == set(world.nightly.files())


def test_two_machines_at_once_make_one_nightly(world: World) -> None:
    other = world.home / "other machine"
    world.repository.git("clone", "--quiet", str(world.repository.root), str(other))
    common = ("--channel", "nightly", "--execute")
    lines = [["--root", str(root), *common] for root in (world.repository.root, other)]
    world.more = {"WHEEL_VERSION_EXTRAS": STAMPED}
    with Forks("nightly") as forks:
        assert forks.together(lines, world.environment()) == [0, 0]
    assert len(world.nightly.files()) == 2
    assert sorted(world.nightly.uploads()) == sorted(world.nightly.files())


def test_killed_between_two_uploads_and_finished_by_the_next_run(world: World) -> None:
    running: list[subprocess.Popen[str]] = []
    world.nightly.on_stored = lambda _: os.kill(running[0].pid, signal.SIGKILL)
    running.append(world.start("--execute"))
    assert running[0].wait() == -signal.SIGKILL
    assert len(world.nightly.files()) == 1
    world.nightly.on_stored = None
    # The lock of the dead run is no lock.
    printed = world.run("--execute")
    assert "is built already" in printed
    assert "there already" in printed
    (document,) = world.manifests()
    assert len(document["published"]) == 2
    assert world.nightly.uploads() == document["published"]
    # And what is complete is not started again under its name.
    world.run("--execute")
    assert len(world.manifests()) == 2
    assert len(world.nightly.uploads()) == len(set(world.nightly.uploads())) == 4


def test_killed_while_it_asks_the_index_leaves_nothing(world: World) -> None:
    world.nightly.faults = [Fault("hang", "GET /simple/")]
    process = world.start("--execute")
    wait_for(lambda: world.nightly.log)
    process.kill()
    process.wait()
    assert not world.out.exists()
    world.nightly.faults.clear()
    world.run("--execute")
    assert len(world.nightly.files()) == 2


def test_half_finished_work_of_another_commit_is_reported(world: World) -> None:
    world.run()
    (document,) = world.manifests()
    world.repository.commit("more work")
    printed = world.run("--dry-run")
    version, commit = document["version"], document["commit"][:12]
    assert f"{version} is half finished" in printed
    suffix = version.removeprefix("0.4.0")
    assert f"--commit {commit} and WHEEL_VERSION_EXTRAS={suffix}" in printed
    world.more = {"WHEEL_VERSION_EXTRAS": suffix}
    world.run("--execute", code=2)
    world.run("--execute", "--commit", commit)
    assert world.manifests()[0]["published"] == [row["file"] for row in document["files"]]


def test_the_same_suffix_is_the_same_nightly(world: World) -> None:
    world.more = {"WHEEL_VERSION_EXTRAS": STAMPED}
    for _ in range(2):
        world.run("--execute")
    # On another machine, without the files of the first run.
    shutil.rmtree(world.out)
    world.nightly.remove(next(name for name in world.nightly.files() if "torch" in name))
    world.nightly.policy.reuse_names = True
    assert "there already" in world.run("--execute")
    assert len(world.nightly.files()) == 2
    assert {name.split("-")[1] for name in world.nightly.files()} == {f"0.4.0{STAMPED}"}


@pytest.mark.parametrize(
    ("channel", "suffix"),
    [("nightly", ""), ("nightly", ".dev2026113008000"), ("release", STAMPED)],
)
def test_a_wrong_suffix_stops_everything(channel: str, suffix: str, world: World) -> None:
    world.more = {"WHEEL_VERSION_EXTRAS": suffix}
    printed = world.run(channel=channel, code=2)
    assert "WHEEL_VERSION_EXTRAS is" in printed
    assert not world.out.exists()
    assert world.nightly.log == []


@pytest.mark.parametrize(
    ("version", "code"),
    [("0.4.0rc1", "NIGHT103"), ("0.4.0", "NIGHT102"), ("0.5.0.dev20261101000000", "NIGHT104")],
)
def test_what_hides_a_nightly_refuses_it(version: str, code: str, world: World) -> None:
    world.known(version, world.public)
    assert code in world.run("--execute", code=1)
    assert not world.out.exists()
    assert world.nightly.uploads() == []


def test_what_was_built_without_an_index_is_judged_before_it_is_published(world: World) -> None:
    world.run("--local")
    world.known("0.4.0rc1", world.public)
    printed = world.run("--execute", code=1)
    assert "is built already" in printed
    assert "NIGHT103" in printed
    assert world.nightly.uploads() == []
    # What is public in part is finished, whatever came since.
    (document,) = world.manifests()
    world.nightly.put(world.out / document["version"] / document["files"][0]["file"])
    world.run("--execute")
    assert len(world.nightly.files()) == 2


def test_a_yanked_candidate_hides_nothing(world: World) -> None:
    world.known("0.4.0rc1", world.public)
    world.public.yank(JAX, "0.4.0rc1")
    world.run("--execute")


def test_a_clock_that_went_back(world: World) -> None:
    ahead = dt.datetime.now(dt.timezone.utc) + dt.timedelta(hours=1)
    world.known(f"0.4.0.dev{ahead:%Y%m%d%H%M%S}")
    assert "set the clock" in world.run("--execute", code=2)
    assert not world.out.exists()


def test_an_index_that_does_not_answer_is_inconclusive(world: World) -> None:
    world.more = {"MMAEMU_INDEX_TIMEOUT": "0.5"}
    for fault in (Fault("error", "GET /simple/"), Fault("hang", "GET /simple/")):
        world.nightly.faults = [fault]
        assert "nightly index did not give" in world.run("--execute", code=3)
        assert not world.out.exists()


@pytest.mark.parametrize("kind", ["error", "error-after"])
def test_an_upload_that_fails_is_finished_later(kind: Any, world: World) -> None:
    world.nightly.faults = [Fault(kind, "POST /legacy/ fixture_sync_torch")]
    printed = world.run("--execute", code=3 if kind == "error" else 0)
    world.nightly.faults = []
    (document,) = world.manifests()
    assert len(document["published"]) == (1 if kind == "error" else 2), printed
    if kind == "error":
        assert "NIGHT115 not decided" in printed
        world.run("--execute")
    assert sorted(world.nightly.uploads()) == sorted(world.nightly.files())
    assert len(world.nightly.files()) == 2
    assert len(world.manifests()) == 1


def test_an_index_that_lies_about_a_hash_is_found(world: World) -> None:
    world.nightly.faults = [Fault("lie", "fixture_sync_jax")]
    printed = world.run("--execute", code=1)
    assert "NIGHT115" in printed
    assert "its page states sha256" in printed
    (document,) = world.manifests()
    assert [name.split("-")[0] for name in document["published"]] == ["fixture_sync_torch"]


def test_what_lies_beside_the_manifest_must_be_what_it_says(world: World) -> None:
    world.run()
    next(world.out.glob("*/*.whl")).write_bytes(b"other bytes")
    assert "NIGHT115 is missing or not the file" in world.run("--execute", code=1)
    assert world.nightly.uploads() == []


def test_a_nightly_says_what_is_missing_and_a_release_is_all_or_nothing(world: World) -> None:
    world.edit("csrc/extension.c", "return sum;", "return nothing;")
    printed = world.run("--execute", code=1)
    assert f"{TORCH} wheel: NIGHT114" in printed
    assert "nothing" in printed
    (document,) = world.manifests()
    assert document["missing"] == [TORCH]
    assert [name.split("-")[0] for name in world.nightly.files()] == ["fixture_sync_jax"]
    world.repository.git("tag", "v0.4.0")
    before = sorted(world.out.iterdir())
    world.run(channel="release", code=1)
    assert sorted(world.out.iterdir()) == before


BUILD = "ci/build_wheel.py"
C_SOURCE = "csrc/extension.c"
BROKEN = [
    ((BUILD, "Build: {flavour.build}", "Build: 0113"), "NIGHT124", JAX),
    ((BUILD, 'pins["jax"].replace(".", "")', 'pins["jax"]'), "NIGHT124", JAX),
    (("pyproject.toml", '"0.11.1", "0.11.2"', '"0.1.12", "0.11.2"'), "NIGHT124", JAX),
    ((BUILD, '"libtpu==0.0.41")', '"libtpu==0.0.42")'), "NIGHT131", JAX),
    (
        (C_SOURCE, "unsigned long fixture_sync_step", "EXPORT\nunsigned long step"),
        "NIGHT126",
        TORCH,
    ),
    (("csrc/exported_symbols.txt", "fixture_sync_abi\n", ""), "NIGHT126", TORCH),
    ((BUILD, 'TORCH_ABIS = ("2.11.0", ', "TORCH_ABIS = ("), "NIGHT125", TORCH),
    ((BUILD, '__version__ = "{number}"', '__version__ = "0.4.0"'), "NIGHT123", JAX),
    ((BUILD, 'f"Version: {number}"', '"Version: 0.4.0"'), "NIGHT114", JAX),
    ((BUILD, 'f"{flavour.package}-{number}"', 'f"other-{number}"'), "NIGHT114", JAX),
]


@pytest.mark.parametrize(("change", "code", "distribution"), BROKEN)
def test_a_wheel_that_is_not_what_it_should_be_is_left_out(
    change: tuple[str, str, str], code: str, distribution: str, world: World
) -> None:
    world.edit(*change)
    if change[0] == C_SOURCE:
        world.edit(C_SOURCE, "fixture_sync_step(sum", "step(sum")
    printed = world.run("--local", "--only", distribution, code=1)
    assert f": {code} " in printed
    assert not world.out.exists()


def test_a_version_that_a_distribution_states_for_itself(world: World) -> None:
    (world.repository.root / "torch.toml").write_text('[project]\nversion = "0.4.1"\n')
    text = (world.repository.root / "pyproject.toml").read_text()
    head, _, tail = text.rpartition('file = "pyproject.toml", key')
    world.repository.write("pyproject.toml", f'{head}file = "torch.toml", key{tail}')
    world.repository.commit()
    assert "NIGHT101 its base version is 0.4.1, expected 0.4.0" in world.run("--local", code=1)


def test_fewer_variants_and_fewer_distributions(world: World) -> None:
    world.run("--local", "--only", TORCH, "--abis", "2.11.0")
    (document,) = world.manifests()
    (name,) = (row["file"] for row in document["files"])
    with zipfile.ZipFile(world.out / document["version"] / name) as archive:
        variants = [each for each in archive.namelist() if each.endswith(".so")]
    assert variants == ["fixture_sync_torch/_C_torch_2.11.0.so"]
    assert "known are 2.11.0, 2.12.0" in world.run("--local", "--abis", "2.10.0", code=2)
    assert "is no distribution" in world.run("--local", "--only", "other", code=2)


def test_the_tree_must_pass_its_own_checks(world: World) -> None:
    world.repository.write("ci/stale.py", "raise SystemExit('v9.fatbin is stale')\n")
    world.edit(
        "pyproject.toml",
        "[tool.mmaemu.release]\n",
        '[tool.mmaemu.release]\nchecks = [["{python}", "ci/stale.py"]]\n',
    )
    printed = world.run("--execute", code=1)
    assert "ci/stale.py: NIGHT113" in printed
    assert "v9.fatbin is stale" in printed
    assert not world.out.exists()
    assert world.nightly.uploads() == []


def test_our_own_nightly_refuses_stale_binaries(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(clone)], check=True)
    manifest = json.loads((clone / "mmaemu/backends/cpu/bin/manifest.json").read_text())
    source = next(iter(next(iter(manifest["modules"].values()))["sources"]))
    with (clone / source).open("a") as stream:
        stream.write("/* Changed since the libraries were built. */\n")
    Repository(clone).commit("change a kernel")
    command = [sys.executable, TOOL, "--channel", "nightly", "--local", "--root", str(clone)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "NIGHT113" in done.stdout
    assert source in done.stdout
    assert not (clone / "build" / "nightly").exists()


def test_a_release_comes_from_its_tag_on_the_branch(world: World) -> None:
    git = world.repository.git
    assert "there is no such tag" in world.run(channel="release", code=1)
    git("tag", "-a", "v0.4.0", "-m", "0.4.0")
    assert "its tag is" not in world.run("--dry-run", channel="release")
    for tag in ("v0.4.1", "0.4.0", "v0.4.0rc1"):
        assert "whose tag is v0.4.0" in world.run("--tag", tag, channel="release", code=1)
    world.run(channel="release")
    (document,) = world.manifests()
    assert document["version"] == document["base"] == "0.4.0"
    assert [row["file"].split("-")[1] for row in document["files"]] == ["0.4.0", "0.4.0"]
    assert document["published"] == []
    files = {path.name: path.read_bytes() for path in (world.out / "0.4.0").iterdir()}
    world.run(channel="release")
    assert {path.name for path in (world.out / "0.4.0").iterdir()} == set(files)
    assert all(
        (world.out / "0.4.0" / name).read_bytes() == data
        for name, data in files.items()
        if name.endswith(".whl")
    )
    assert "uploaded by tools/stage.py" in world.run("--execute", channel="release", code=2)
    assert world.nightly.uploads() == world.public.uploads() == []
    # The tag elsewhere, and a commit beside the branch.
    world.repository.commit("later")
    assert "NIGHT111 names" in world.run(
        "--local", "--out", str(world.home / "o"), channel="release", code=1
    )
    git("checkout", "--quiet", "-b", "side")
    world.repository.commit("beside")
    git("tag", "-f", "v0.4.0")
    printed = world.run("--local", "--out", str(world.home / "o"), channel="release", code=1)
    assert "NIGHT112 is not on main" in printed


def test_a_release_over_the_limit_keeps_nothing(world: World) -> None:
    world.edit("csrc/extension.c", "#define EXPORT", "char big[1 << 20] = {1};\n#define EXPORT")
    # Incompressible or not: the archive of the project stores its members.
    world.repository.git("tag", "v0.4.0")
    world.more = {"PYPI_FILE_LIMIT_MB": "1"}
    printed = world.run("--local", channel="release", code=1)
    assert "NIGHT132" in printed
    assert "OVER THE LIMIT" in printed
    assert not world.out.exists()
    printed = world.run("--execute")
    assert "only the nightly index takes fixture_sync_torch-0.4.0.dev" in printed
    assert len(world.nightly.files()) == 2


def test_a_shallow_clone(world: World, tmp_path: Path) -> None:
    world.repository.git("checkout", "--quiet", "-b", "other")
    world.repository.git("tag", "v0.4.0")
    world.repository.git("checkout", "--quiet", "main")
    world.repository.commit("later")
    source = f"file://{world.repository.root}"
    shallow = Repository(tmp_path / "shallow")
    world.repository.git(
        "clone", "--quiet", "--depth", "1", "--no-single-branch", source, str(shallow.root)
    )
    shallow.git("fetch", "--quiet", "origin", "tag", "v0.4.0", "--depth", "1")
    world = World(shallow, world.nightly, world.public, world.home)
    printed = world.run("--commit", "v0.4.0", channel="release", code=3)
    assert "cannot decide whether main has" in printed
    assert "git fetch --unshallow" in printed
    assert not world.out.exists()
    world.run("--execute")
    shallow.git("fetch", "--quiet", "--unshallow")
    world.run("--commit", "v0.4.0", channel="release")


def test_a_remote_index_needs_permission(world: World) -> None:
    world.more = {"MMAEMU_NIGHTLY_UPLOAD_URL": "https://index.invalid/legacy/"}
    assert "add --allow-remote" in world.run("--execute", code=2)
    assert "--local asks no index" in world.run("--execute", "--local", code=2)
    assert "a nightly has no tag" in world.run("--tag", "v0.4.0", code=2)
    assert world.nightly.log == []


def test_an_export_is_the_commits_own_bytes(tmp_path: Path) -> None:
    repository = two_wheels.materialise(tmp_path / "clone")
    repository.write(".gitattributes", "* text eol=crlf\nREADME.md export-ignore export-subst\n")
    repository.write("README.md", "$Format:%H$\n")
    (repository.root / "ci/build_wheel.py").chmod(0o755)
    (repository.root / "link").symlink_to("README.md")
    repository.git("config", "core.autocrlf", "true")
    commit = repository.commit()
    repository.write("untracked", "x")
    before = os.umask(0o077)
    try:
        source = channel_build.export(Git(repository.root), "main", tmp_path / "export")
    finally:
        os.umask(before)
    assert source.commit == commit
    folder = source.folder
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}
    assert names == set(repository.git("ls-files").splitlines())
    assert (folder / "README.md").read_bytes() == b"$Format:%H$\n"
    assert (folder / "link").is_symlink()
    assert (folder / "ci/build_wheel.py").stat().st_mode & 0o777 == 0o755
    assert (folder / "pyproject.toml").stat().st_mode & 0o777 == 0o644
    with pytest.raises(UnusableError, match="'nonsense' is no commit"):
        channel_build.export(Git(repository.root), "nonsense", tmp_path / "other")


@pytest.mark.parametrize(
    ("key", "value"),
    [("commit", "x"), ("files", [{"file": "a"}]), ("schema", "other/1"), ("extra", 1)],
)
def test_a_manifest_that_is_none_is_refused(key: str, value: Any, world: World) -> None:
    world.run("--local")
    (path,) = world.out.glob("*/*.json")
    good = nightly_manifest.read(path)
    assert [entry.project for entry in good.waiting] == [JAX, TORCH]
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    assert str(path) in world.run("--local", code=2)


def test_the_tool_reads_the_index_like_everybody(world: World) -> None:
    world.known("0.3.0")
    index = from_environment("nightly", world.environment())
    assert [file.name for file in index.files(JAX)] == ["fixture_sync_jax-0.3.0-py3-none-any.whl"]
    assert SECRET not in repr(index)

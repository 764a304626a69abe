"""Candidates and canaries: a real index, real nightlies of a real repository, real consumers."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import canaries
import golden
import golden_candidate
import golden_config
import golden_records
import two_wheels
from canaries import Candidate
from files import sha256_of, sha256_of_file, sha256_of_tree
from findings import InconclusiveError, UnusableError
from git_commands import Git
from golden_config import Canary
from hosting import Hosting, Run
from hosting_double import HostingDouble, workflow_run
from index_server import IndexServer
from package_index import Index, IndexFile
from project import load_project
from repositories import Repository

OLD, NEW = "0.4.0.dev20261130080000", "0.4.0.dev20261201080000"
JAX = "fixture_sync_jax"
TOKEN = "t0ken"  # noqa: S105 - the double takes any
PYTHON_TESTS = ["{python}", "-m", "unittest", "-q"]
CONSUMER = """\
import unittest
import fixture_sync_jax

class Test(unittest.TestCase):
    def test(self):
        self.assertEqual(fixture_sync_jax.checksum({data!r}), {value})
"""


def repository(root: Path, files: dict[str, str]) -> Path:
    """A consumer's repository."""
    made = Repository(root)
    for name, text in files.items():
        made.write(name, text)
    made.git("init", "--quiet", "--initial-branch", "main")
    made.commit("consumer")
    return root


@dataclass
class World:
    """A project with two nightlies on an index, and its consumers.

    Attributes:
        folder: scratch.
        dev: the development clone, its newest commit is that of the newest nightly.
        origin: its bare remote.
        index: the nightly index.
        commits: of both nightlies.
        wheels: of the jax flavour of both nightlies.
    """

    folder: Path
    dev: Repository
    origin: Path
    index: IndexServer
    commits: dict[str, str]
    wheels: dict[str, Path]

    def manifest(self, version: str, **changes: Any) -> Path:
        """A folder with the manifest of a nightly."""
        wheel = self.wheels[version]
        row = {"file": wheel.name, "sha256": sha256_of_file(wheel), "size": wheel.stat().st_size}
        document = {"schema": "nightly-manifest/1", "version": version, "files": [row]}
        document |= {"commit": self.commits[version], **changes}
        folder = self.folder / "manifests"
        folder.mkdir(exist_ok=True)
        (folder / f"{version}.json").write_text(json.dumps(document), encoding="utf-8")
        return folder

    def candidate(self, version: str = NEW) -> Candidate:
        wheel = self.wheels[version]
        return Candidate(
            distribution="fixture-sync-jax",
            package=JAX,
            version=version,
            commit=self.commits[version],
            wheel=wheel.name,
            sha256=sha256_of_file(wheel),
            path=str(wheel),
        )

    def run(self, step: str, *arguments: str) -> int:
        """A step of golden in this process."""
        places = ("--root", str(self.dev.root), "--work", str(self.folder / "work"))
        return golden.main([step, *places, "--remote", str(self.origin), *arguments])


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    origin = folder / "origin.git"
    dev = two_wheels.materialise(folder / "dev", origin=origin)
    commits, wheels = {}, {}
    for version in (OLD, NEW):
        commits[version] = dev.commit(version)
        extras = version.removeprefix("0.4.0")
        wheels[version] = two_wheels.build(dev.root, folder / "wheels", extras, ["jax"])[0]
        source = dev.root / "jax" / JAX / "__init__.py"
        dev.write(
            source.relative_to(dev.root).as_posix(),
            source.read_text(encoding="utf-8").replace("* 31", "* 33"),
        )
    dev.git("reset", "--quiet", "--hard", commits[NEW])
    dev.git("push", "--quiet", "origin", "main")
    with IndexServer(folder / "index") as index:
        for wheel in wheels.values():
            index.put(wheel)
        yield World(folder, dev, origin, index, commits, wheels)


@pytest.fixture
def world(shared: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """The shared world with a clone, a remote and files of this test's own."""
    origin, root = tmp_path / "origin.git", tmp_path / "dev"
    for source, target in ((shared.origin, origin), (shared.dev.root, root)):
        subprocess.run(["cp", "-r", str(source), str(target)], check=True)
    for role in ("nightly", "public"):
        for name, value in shared.index.settings(role).items():
            monkeypatch.setenv(name, value)
    for variable in (golden.RECORD, golden.DISPATCH, golden.READ):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(shared.index, "yanked", {})
    return dataclasses.replace(shared, folder=tmp_path, origin=origin, dev=Repository(root))


@pytest.fixture
def hosting(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostingDouble]:
    with HostingDouble() as double:
        monkeypatch.setenv("MMAEMU_HOSTING_API_URL", double.url)
        yield double


def configure(world: World, *rows: str) -> None:
    """Write the golden table into the clone's pyproject.toml."""
    path = world.dev.root / "pyproject.toml"
    table = '\n[tool.mmaemu.release.golden]\ndistribution = "fixture-sync-jax"\n'
    text = path.read_text(encoding="utf-8").partition("\n[tool.mmaemu.release.golden]")[0]
    path.write_text(text + table + "".join(rows), encoding="utf-8")


def row(
    name: str,
    repository: Path | str,
    timeout: float = 60,
    pins: Sequence[str] = (),
    **lanes: list[str],
) -> str:
    """A canary of the golden table: a consumer that pins the old nightly."""
    commands = "".join(f"{lane} = {json.dumps(command)}\n" for lane, command in lanes.items())
    return (
        f'[[tool.mmaemu.release.golden.canaries]]\nname = "{name}"\nrepository = "{repository}"\n'
        f'install = ["--no-deps", "fixture-sync-jax=={OLD}"]\ntimeout_s = {timeout}\n'
        f"pins = {json.dumps(list(pins))}\n"
        f"[tool.mmaemu.release.golden.canaries.lanes]\n{commands}"
    )


# --- the candidate -------------------------------------------------------------------------------


def listed(*versions: str, yanked: str = "") -> tuple[IndexFile, ...]:
    return tuple(
        IndexFile(f"pkg-{version}-py3-none-any.whl", "http://x", "ab", yanked=version == yanked)
        for version in versions
    )


def test_the_newest_nightly_that_is_not_yanked_is_the_candidate() -> None:
    older, newer = "0.1.0.dev20261201080000", "0.1.1.dev20261202080000"
    others = ("0.2.0", "0.2.0rc1", "0.3.0.dev5", "0.3.0.dev20261399080000", "0.2.0.post1")
    files = listed(older, newer, *others)
    version, file = golden_candidate.choose(files, None)
    assert (version, file) == (newer, files[1])
    assert golden_candidate.choose(listed(older, newer, yanked=newer), None)[0] == older
    assert golden_candidate.choose(files, older) == (older, files[0])
    assert golden_candidate.choose(files, "0.9.0.dev20261202080000")[1] is None
    with pytest.raises(UnusableError, match="no nightly that is not yanked"):
        golden_candidate.choose(listed(newer, *others, yanked=newer), None)
    with pytest.raises(UnusableError, match=r"expected X\.Y\.Z\.devYYYY"):
        golden_candidate.choose(files, "0.2.0")


def test_a_wheel_of_another_platform_is_no_candidate() -> None:
    strange = IndexFile("pkg-0.1.0.dev20261201080000-cp27-cp27m-win32.whl", "http://x", "ab")
    assert golden_candidate.choose((strange,), None)[1] is None


def test_a_nightly_is_proven_by_building_it_again(world: World) -> None:
    configure(world)
    assert world.run("candidate", "--manifests", str(world.manifest(NEW))) == 0
    written = json.loads((world.folder / "work" / "candidate.json").read_text())
    expected = dataclasses.asdict(world.candidate()) | {"schema": golden.CANDIDATE_SCHEMA}
    assert written | {"path": ""} == expected | {"path": ""}
    assert sha256_of_file(Path(written["path"])) == written["sha256"]


def test_a_dry_run_names_the_candidate_and_writes_nothing(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(world)
    folder = world.manifest(OLD)
    before = sha256_of_tree(world.origin)
    given = ("--version", OLD, "--manifests", str(folder), "--dry-run")
    assert world.run("candidate", *given) == 0
    assert world.commits[OLD] in capsys.readouterr().out
    assert not (world.folder / "work").exists()
    assert sha256_of_tree(world.origin) == before


def codes(text: str) -> set[str]:
    return {word for word in text.split() if word.startswith("GOLD")}


def test_the_manifest_of_another_commit_is_found_out(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(world)
    folder = world.manifest(NEW, commit=world.commits[OLD])
    assert world.run("candidate", "--manifests", str(folder)) == 1
    assert codes(capsys.readouterr().out) == {"GOLD114"}
    assert not (world.folder / "work" / "candidate.json").exists()


def test_the_manifest_must_name_the_file_of_the_index(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(world)
    folder = world.manifest(NEW, files=[{"file": world.wheels[NEW].name, "sha256": "0" * 64}])
    assert world.run("candidate", "--manifests", str(folder)) == 1
    assert codes(capsys.readouterr().out) == {"GOLD113"}


def test_a_shallow_clone_cannot_decide_and_builds_nothing(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def must_not_run(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(golden, "nightly_rebuild", must_not_run)
    shallow = world.folder / "shallow"
    source = ("--branch", "main", f"file://{world.origin}", str(shallow))
    world.dev.git("clone", "--quiet", "--depth", "1", *source)
    given = dataclasses.replace(world, dev=Repository(shallow))
    configure(given)
    assert given.run("candidate", "--manifests", str(world.manifest(NEW))) == 3
    assert "cannot decide in a shallow clone" in capsys.readouterr().err
    assert not (world.folder / "work").exists()


def test_a_commit_that_is_not_on_the_branch_is_not_even_built(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(world)
    world.dev.write("ci/build_wheel.py", "raise SystemExit('must not run')\n")
    stray = world.dev.commit("stray")
    folder = world.manifest(NEW, commit=stray)
    assert world.run("candidate", "--manifests", str(folder)) == 1
    said = capsys.readouterr().out
    assert codes(said) == {"GOLD112", "GOLD114"}
    assert "not decided" in said


def test_a_yanked_or_unknown_version_asked_for_is_refused(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(world)
    world.index.yank("fixture-sync-jax", NEW)
    folder = world.manifest(NEW)
    assert world.run("candidate", "--version", NEW, "--manifests", str(folder)) == 1
    assert codes(capsys.readouterr().out) == {"GOLD111"}


def started(number: int, commit: str, at: str) -> dict[str, Any]:
    return workflow_run(number, "nightly", head_sha=commit, run_started_at=at)


def test_without_a_manifest_the_run_under_way_tells_the_commit(
    world: World, hosting: HostingDouble
) -> None:
    configure(world)
    hosting.runs = [
        started(2, world.commits[NEW], "2026-12-01T07:59:30Z"),
        started(1, world.commits[OLD], "2026-11-30T07:59:30Z"),
    ]
    assert world.run("candidate", "--ask-hosting") == 0
    written = json.loads((world.folder / "work" / "candidate.json").read_text())
    assert written["commit"] == world.commits[NEW]


def test_a_manifest_left_as_an_artifact_is_found(
    world: World, hosting: HostingDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(world)
    document = json.loads((world.manifest(NEW) / f"{NEW}.json").read_text())
    hosting.artifacts = [document | {"version": OLD}, document]
    monkeypatch.setenv(golden.READ, "t0ken")
    given = ("--ask-hosting", "--manifests", str(world.folder / "none"), "--dry-run")
    assert world.run("candidate", *given) == 0
    assert hosting.tokens == {"Bearer t0ken"}


@pytest.mark.parametrize(
    "runs",
    [
        [],
        [started(1, "a" * 40, "2026-12-01T08:00:01Z")],
        [started(1, "a" * 40, "2026-12-01T01:59:59Z")],
        [
            started(2, "a" * 40, "2026-12-01T07:00:00Z"),
            started(1, "b" * 40, "2026-12-01T06:00:00Z"),
        ],
    ],
)
def test_no_run_or_two_cannot_decide(
    runs: list[dict[str, Any]], world: World, hosting: HostingDouble
) -> None:
    configure(world)
    hosting.runs = runs
    assert world.run("candidate", "--ask-hosting") == 3
    assert not (world.folder / "work").exists()


# --- canaries: consumers' checkouts --------------------------------------------------------------


def choose(world: World) -> None:
    """Write down the newest nightly as the candidate."""
    work = world.folder / "work"
    work.mkdir()
    document = dataclasses.asdict(world.candidate()) | {"schema": golden.CANDIDATE_SCHEMA}
    (work / "candidate.json").write_text(json.dumps(document), encoding="utf-8")


def gate(world: World) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((world.folder / "work" / "gate.json").read_text())
    return found


def test_a_consumer_that_passes_proves_which_wheel_it_ran(world: World) -> None:
    files = {"test_it.py": CONSUMER.format(data=b"a", value=97)}
    consumer = repository(world.folder / "good", files)
    configure(world, row("good", consumer, tests=PYTHON_TESTS, more=PYTHON_TESTS))
    choose(world)
    assert world.run("canaries") == 0
    (result,) = gate(world)["results"]
    assert result["state"] == "passed"
    assert set(result["lanes"]) == {"tests", "more"}
    (report,) = canaries.read_reports(
        world.folder / "work" / "runs" / result["run"] / "tests.jsonl"
    )
    assert (report["version"], report["wheel_sha256"]) == (NEW, world.candidate().sha256)
    # What passed can be recorded; the remote knows the candidate's commit.
    assert world.run("record", "--execute") == 0
    remote = Git(world.origin)
    assert remote.line("show", "main:lkg.version") == world.commits[NEW]
    (recorded,) = golden_records.parse_table(remote.line("show", "main:verified_commits.csv"))
    assert recorded.runs == (("good", result["run"]),)


def test_a_changed_bit_fails_the_gate_which_is_told_once_and_changes_nothing(
    world: World,
    hosting: HostingDouble,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(golden.RECORD, "t0ken")
    good = repository(world.folder / "good", {"test_it.py": CONSUMER.format(data=b"a", value=97)})
    strict = repository(
        world.folder / "strict", {"test_it.py": CONSUMER.format(data=b"ab", value=97 * 31 + 98)}
    )
    configure(
        world, row("good", good, tests=PYTHON_TESTS), row("strict", strict, tests=PYTHON_TESTS)
    )
    choose(world)
    before = sha256_of_tree(world.origin)
    assert world.run("canaries") == 1
    assert world.run("record", "--execute") == 1
    said = capsys.readouterr().out
    assert "GOLD121" in said
    assert said.count("reported in") == 1
    assert said.count("reported already in") == 1
    (issue,) = hosting.issues
    for result in ("good", "strict"):
        assert f"- {result}: " in issue["body"]
        assert f"{result}-{NEW}-1" in issue["body"]
    assert sha256_of_tree(world.origin) == before


def vendored(world: World) -> Path:
    """A consumer whose checkout holds a copy of the old package, which Python finds first."""
    with zipfile.ZipFile(world.wheels[OLD]) as archive:
        old = {
            name: archive.read(name).decode() for name in archive.namelist() if JAX + "/" in name
        }
    return repository(
        world.folder / "vendored", old | {"test_it.py": CONSUMER.format(data=b"a", value=97)}
    )


def reinstalling(world: World) -> Path:
    """A consumer whose test command first puts its own pin back."""
    script = (
        "import subprocess, sys\n"
        f"pip = [{sys.executable!r}, '-m', 'pip', '--python', sys.executable, 'install']\n"
        f"subprocess.run([*pip, '-q', '--no-deps', '--no-index', {str(world.wheels[OLD])!r}],\n"
        "    check=True)\n"
        "subprocess.run([sys.executable, '-m', 'unittest', '-q'], check=True)\n"
    )
    files = {"run.py": script, "test_it.py": CONSUMER.format(data=b"a", value=97)}
    return repository(world.folder / "reinstalling", files)


def importing_nothing(world: World) -> Path:
    """A consumer whose tests skip themselves."""
    return repository(world.folder / "nothing", {"run.py": "print('1 skipped')\n"})


@pytest.mark.parametrize(
    ("make", "command", "message"),
    [
        (vendored, PYTHON_TESTS, "whose bytes are not those of the candidate's wheel"),
        (reinstalling, ["{python}", "run.py"], f"ran {OLD} from wheel"),
        (importing_nothing, ["{python}", "run.py"], "no process reported"),
    ],
)
def test_a_green_run_of_another_version_is_caught(
    make: Callable[[World], Path],
    command: list[str],
    message: str,
    world: World,
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure(world, row("silent", make(world), tests=command))
    choose(world)
    assert world.run("canaries") == 1
    said = capsys.readouterr().out
    assert "not proven that the candidate ran" in said
    assert message in said
    (result,) = gate(world)["results"]
    log = world.folder / "work" / "runs" / result["run"] / "tests.log"
    assert "FAILED" not in log.read_text(encoding="utf-8")


LOOKS = """\
import json, os
import fixture_sync_jax
with open("seen", "w") as stream:
    json.dump(dict(os.environ), stream)
"""


def test_a_consumer_sees_no_token(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    names = (golden.RECORD, golden.DISPATCH, "TWINE_PASSWORD", "GITHUB_TOKEN", "ACTIONS_X", "GIT_X")
    for name in names:
        monkeypatch.setenv(name, "s3cret")
    consumer = repository(world.folder / "curious", {"look.py": LOOKS})
    canary = Canary("curious", "checkout", str(consumer), lanes={"look": ("{python}", "look.py")})
    result = canaries.Checkout(canary, world.candidate(), world.folder / "runs").run()
    assert result.state == "passed", result
    seen = (world.folder / "runs" / result.run / "checkout" / "seen").read_text(encoding="utf-8")
    assert "s3cret" not in seen
    assert "PATH" in json.loads(seen)


HANGS = """\
import os, subprocess, sys, time
import fixture_sync_jax
if os.path.exists("hang"):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(99)"])
    time.sleep(99)
"""
COUNTS = """\
import fixture_sync_jax
with open("count", "a") as stream:
    stream.write("x")
"""


def test_a_consumer_that_hangs_is_inconclusive_and_can_be_resumed(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    consumer = repository(world.folder / "slow", {"slow.py": HANGS, "quick.py": COUNTS, "hang": ""})
    lanes = {"quick": ["{python}", "quick.py"], "slow": ["{python}", "slow.py"]}
    configure(world, row("slow", consumer, 3, **lanes))
    choose(world)
    assert world.run("canaries") == 3
    run = gate(world)["results"][0]["run"]
    assert f"golden.py resume --run slow={run}" in capsys.readouterr().err
    assert world.run("record", "--execute") == 3
    checkout = world.folder / "work" / "runs" / run / "checkout"
    (checkout / "hang").unlink()
    assert world.run("resume", "--run", f"slow={run}") == 0
    assert (checkout / "count").read_text(encoding="utf-8") == "x"
    assert gate(world)["results"][0]["state"] == "passed"


def test_a_run_is_resumed_for_its_own_candidate_only(world: World) -> None:
    canary = Canary("first", "checkout", str(world.folder), lanes={"tests": ("true",)})
    runs = world.folder / "runs"
    other = canaries.Checkout(canary, world.candidate(OLD), runs)
    other._save(runs / "first-1", {"tests": canaries.Lane("passed")})
    with pytest.raises(UnusableError, match=f"is of version {OLD}, not {NEW}"):
        canaries.Checkout(canary, world.candidate(), runs).run("first-1")
    with pytest.raises(UnusableError, match="there is no run first-2"):
        canaries.Checkout(canary, world.candidate(), runs).run("first-2")


def test_a_consumer_that_cannot_be_set_up_is_inconclusive(world: World) -> None:
    configure(world, row("gone", world.folder / "nowhere", tests=["true"]))
    choose(world)
    assert world.run("canaries") == 3
    assert gate(world)["results"][0]["state"] == "inconclusive"


def test_a_set_up_without_an_end_is_inconclusive(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canaries, "_SET_UP_S", 0.001)
    consumer = repository(world.folder / "good", {"run.py": ""})
    configure(world, row("good", consumer, tests=["true"]))
    choose(world)
    assert world.run("canaries") == 3
    (result,) = gate(world)["results"]
    assert "had no end within" in result["lanes"]["tests"]["reason"]


def test_a_dry_run_runs_no_canary(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    configure(world, row("first", "nowhere", tests=["true"]))
    choose(world)
    assert world.run("canaries", "--dry-run") == 0
    assert "first: a new run of tests in nowhere" in capsys.readouterr().out
    assert not (world.folder / "work" / "gate.json").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"version": OLD},
        {"wheel_sha256": "0" * 64},
        {"wheel_sha256": None},
        {"files": {f"{JAX}/__init__.py": "0" * 64}},
        {"files": {f"{JAX}/_new.py": "0" * 64}},
    ],
)
def test_one_wrong_process_among_right_ones_is_enough(
    changes: dict[str, Any], world: World
) -> None:
    candidate = world.candidate()
    members = candidate.members()
    files = {name: members[name] for name in (f"{JAX}/__init__.py",)}
    right = {"version": NEW, "wheel_sha256": candidate.sha256, "files": files}
    assert canaries.unproven(candidate, [right, right]) is None
    assert canaries.unproven(candidate, [right, right | changes]) is not None
    assert canaries.unproven(candidate, []) is not None


def test_a_broken_report_proves_nothing(world: World, tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    path.write_text('{"version": "0.4\n[]\n', encoding="utf-8")
    reports = canaries.read_reports(path)
    assert len(reports) == 2
    assert canaries.unproven(world.candidate(), reports) is not None


# --- canaries: consumers' own workflows ----------------------------------------------------------


@dataclass
class Clock:
    """Time that passes only by waiting."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def observe(
    world: World, double: HostingDouble, token: str | None = None, resumed: str | None = None
) -> canaries.Result:
    canary = Canary(
        "remote",
        "workflow",
        "consumers/remote",
        workflow="canary.yml",
        report=f"{double.url}/reports/{{run}}.json",
        timeout_s=600,
    )
    clock = Clock()
    adapter = canaries.Workflow(
        canary, world.candidate(), Hosting(double.url, token), clock, clock.sleep
    )
    return adapter.run(resumed)


def proof(world: World, **changes: str) -> dict[str, str]:
    return {"version": NEW, "wheel_sha256": world.candidate().sha256} | changes


def test_the_scheduled_run_that_names_the_candidate_is_read(
    world: World, hosting: HostingDouble
) -> None:
    hosting.runs = [
        workflow_run(8, f"weekly fixture-sync-jax=={NEW}1"),
        workflow_run(7, f"weekly fixture-sync-jax=={NEW}"),
        workflow_run(6, f"weekly fixture-sync-jax=={OLD}"),
    ]
    hosting.reports["7.json"] = proof(world)
    result = observe(world, hosting)
    assert (result.run, result.state) == ("7", "passed")
    assert hosting.dispatched == []
    assert hosting.tokens == {None}


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"version": OLD}, "failed"),
        ({"wheel_sha256": "0" * 64}, "failed"),
        (None, "inconclusive"),
    ],
)
def test_a_green_run_without_the_right_report_does_not_pass(
    changes: dict[str, str] | None, state: str, world: World, hosting: HostingDouble
) -> None:
    hosting.runs = [workflow_run(7, NEW)]
    if changes is not None:
        hosting.reports["7.json"] = proof(world, **changes)
    assert observe(world, hosting).state == state


@pytest.mark.parametrize(
    ("conclusion", "state"),
    [
        ("failure", "failed"),
        ("timed_out", "inconclusive"),
        ("cancelled", "inconclusive"),
        ("skipped", "inconclusive"),
        ("neutral", "inconclusive"),
        ("stale", "inconclusive"),
        ("action_required", "inconclusive"),
        ("", "inconclusive"),
        ("a word of next year", "inconclusive"),
    ],
)
def test_only_success_passes(
    conclusion: str, state: str, world: World, hosting: HostingDouble
) -> None:
    hosting.runs = [workflow_run(7, NEW, conclusion=conclusion)]
    hosting.reports["7.json"] = proof(world)
    assert observe(world, hosting).state == state


def test_without_a_token_nothing_is_dispatched(world: World, hosting: HostingDouble) -> None:
    hosting.runs = [workflow_run(6, OLD)]
    result = observe(world, hosting)
    assert (result.run, result.state) == ("", "inconclusive")
    assert hosting.dispatched == []


def test_with_a_token_one_run_is_dispatched_and_waited_for(
    world: World, hosting: HostingDouble
) -> None:
    hosting.on_dispatch = workflow_run(9, f"dispatched {NEW}")
    hosting.reports["9.json"] = proof(world)
    result = observe(world, hosting, token=TOKEN)
    assert (result.run, result.state) == ("9", "passed")
    expected = {"ref": "main", "inputs": {"wheel": f"fixture-sync-jax=={NEW}"}}
    assert hosting.dispatched == [expected]
    # The run that is there now is observed, not started again.
    assert observe(world, hosting, token=TOKEN).state == "passed"
    assert hosting.dispatched == [expected]


def test_a_run_without_an_end_is_resumed_by_its_id(world: World, hosting: HostingDouble) -> None:
    hosting.runs = [workflow_run(7, NEW, status="in_progress", conclusion="")]
    result = observe(world, hosting)
    assert (result.run, result.state) == ("7", "inconclusive")
    assert "resume it" in result.lanes["run"].reason
    hosting.runs = [workflow_run(7, "renamed")]
    hosting.reports["7.json"] = proof(world)
    assert observe(world, hosting, resumed="7").state == "passed"


def test_a_service_that_fails_is_inconclusive(world: World, hosting: HostingDouble) -> None:
    hosting.status = 502
    with pytest.raises(InconclusiveError, match="502"):
        observe(world, hosting)
    hosting.status = 403
    with pytest.raises(UnusableError, match="scopes"):
        observe(world, hosting)


# --- pull requests, configuration ----------------------------------------------------------------


def passed(world: World) -> None:
    """A gate that passed, as its file."""
    configure(world, row("first", "nowhere", tests=["true"]))
    document = {
        "schema": golden.GATE_SCHEMA,
        "candidate": dataclasses.asdict(world.candidate()),
        "results": [
            {"name": "first", "run": "7", "lanes": {"tests": {"state": "passed"}}, "url": ""}
        ],
        "verified_at": "2026-12-01T12:00:00Z",
    }
    (world.folder / "work").mkdir()
    (world.folder / "work" / "gate.json").write_text(json.dumps(document), encoding="utf-8")


def test_the_record_can_come_as_one_labelled_pull_request(
    world: World, hosting: HostingDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed(world)
    monkeypatch.setenv(golden.RECORD, "t0ken")
    for _ in range(2):
        assert world.run("record", "--pull-request") == 0
    (pull,) = hosting.pulls
    assert (pull["head"], pull["base"]) == (f"golden/{NEW}", "main")
    assert hosting.labels[0] == ("1", ["golden record"])
    refs = golden_records.remote_refs(Git(world.origin), str(world.origin))
    assert f"refs/heads/golden/{NEW}" in refs
    assert not any(ref.startswith("refs/tags/golden-") for ref in refs)
    assert refs["refs/heads/main"] == world.commits[NEW]


def test_a_pull_request_needs_its_branch(
    world: World, hosting: HostingDouble, capsys: pytest.CaptureFixture[str]
) -> None:
    passed(world)
    path = world.dev.root / "pyproject.toml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("golden]\n", 'golden]\nrecords = "golden"\n'), encoding="utf-8")
    before = sha256_of_tree(world.origin)
    assert world.run("record", "--pull-request") == 2
    assert "has no branch golden yet" in capsys.readouterr().err
    assert sha256_of_tree(world.origin) == before
    assert hosting.pulls == []


def test_a_token_answers_git_and_is_never_printed(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    passed(world)
    monkeypatch.setenv(golden.RECORD, "s3cret")
    tool = golden.credentials()["GIT_ASKPASS"]
    for question, answer in (("Username for x", "x-access-token"), ("Password for x", "s3cret")):
        done = subprocess.run([tool, question], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == answer
    assert world.run("record") == 0
    assert "s3cret" not in "".join(capsys.readouterr())
    assert "s3cret" not in repr(Hosting("http://x", "s3cret"))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("stale_days = 0", "stale_days is 0"),
        ("lable = 'x'", "lable"),
        ("canaries = [{ name = 'a', repository = 'x' }]", "lanes"),
        ("canaries = [{ name = 'A b', repository = 'x', lanes = { t = ['y'] } }]", "name is 'A b'"),
        ("canaries = [{ name = 'a', kind = 'workflow', repository = 'x' }]", "workflow"),
        ("canaries = [{ name = 'a', repository = 'x', lanes = { t = [] } }]", "lanes.t is"),
        (
            "canaries = [{ name = 'a', repository = 'x', lanes = { t = ['y'] } },"
            " { name = 'a', repository = 'z', lanes = { t = ['y'] } }]",
            "the name 'a' occurs twice",
        ),
    ],
)
def test_a_wrong_table_is_an_error_that_names_the_key(
    table: str, message: str, project: Repository
) -> None:
    text = (project.root / "pyproject.toml").read_text(encoding="utf-8")
    project.write("pyproject.toml", f"{text}\n[tool.mmaemu.release.golden]\n{table}\n")
    with pytest.raises(UnusableError, match=message):
        golden_config.load_golden(load_project(project.root))


def test_steps_need_the_files_of_the_steps_before(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    configure(world)
    for step in ("canaries", "record"):
        assert world.run(step) == 2
    assert world.run("resume") == 2
    said = capsys.readouterr().err
    assert "run `golden candidate` first" in said
    assert "run `golden canaries` first" in said
    with pytest.raises(SystemExit):
        world.run("resume", "--run", "nameless")


def test_the_index_gives_other_bytes_than_announced(world: World) -> None:
    candidate = dataclasses.replace(
        world.candidate(), path=str(world.folder / "copy.whl"), sha256=sha256_of(b"other")
    )
    index = Index("nightly", world.index.url)
    with pytest.raises(UnusableError, match="the file was replaced"):
        canaries.download(index, candidate)
    assert not Path(candidate.path).exists()
    gone = dataclasses.replace(candidate, wheel="gone-1-py3-none-any.whl")
    with pytest.raises(InconclusiveError, match="no longer has"):
        canaries.download(index, gone)


def test_runs_are_what_the_service_says(hosting: HostingDouble) -> None:
    hosting.runs = [workflow_run(5, "title", head_sha="a" * 40)]
    (found,) = Hosting(hosting.url).runs("o/r", "nightly.yml")
    assert found == Run(
        "5", "title", "completed", "success", "a" * 40, "", "https://hosting.invalid/5"
    )
    assert os.environ["MMAEMU_HOSTING_API_URL"] == hosting.url

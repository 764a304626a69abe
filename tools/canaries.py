"""Run a nightly's consumers: their own tests, with the candidate in place of what they pin.

A lane counts only as "passed", and only with a report of which wheel its processes had loaded.
Whatever was not run, timed out or cannot be seen is inconclusive; a run is resumed by its id.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from files import sha256_of, sha256_of_file, write_bytes, write_json
from findings import InconclusiveError, UnusableError
from git_commands import Git
from golden_config import Canary
from hosting import Hosting, NotFoundError, Run
from package_index import Index, plain_pip

PASSED: Final = "passed"
FAILED: Final = "failed"
INCONCLUSIVE: Final = "inconclusive"
RUN_SCHEMA: Final = "mmaemu.canary-run/1"
PROBE: Final = Path(__file__).resolve().parent / "canary_probe"
_PRIVATE: Final = re.compile(r"TOKEN|PASSWORD|SECRET|CREDENTIAL|^(GITHUB|ACTIONS|RUNNER|GIT)_")
# Installing a consumer's pins takes as long as the index takes; it is no lane.
_SET_UP_S: Final = 1800.0
_POLL_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A nightly that is to become golden.

    Attributes:
        distribution: its project.
        package: its import name.
        version: X.Y.Z.devYYYYMMDDHHMMSS.
        commit: what it was built from.
        wheel: file name.
        sha256: of the wheel.
        path: the downloaded wheel.
    """

    distribution: str
    package: str
    version: str
    commit: str
    wheel: str
    sha256: str
    path: str

    def members(self) -> dict[str, str]:
        """The sha256 of every member of the wheel."""
        with zipfile.ZipFile(self.path) as archive:
            return {name: sha256_of(archive.read(name)) for name in archive.namelist()}


@dataclass(frozen=True, slots=True)
class Lane:
    """What came of one lane."""

    state: str
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one canary.

    Attributes:
        name: the canary.
        run: id to look at or to resume, "" where no run was found.
        lanes: by name.
        url: where a person reads about the run.
    """

    name: str
    run: str
    lanes: Mapping[str, Lane] = field(default_factory=dict)
    url: str = ""

    @property
    def state(self) -> str:
        """Failed if any lane failed, passed if all passed, else inconclusive."""
        states = {lane.state for lane in self.lanes.values()}
        if FAILED in states:
            return FAILED
        return PASSED if states == {PASSED} else INCONCLUSIVE


def parse_result(document: Mapping[str, Any]) -> Result:
    """A result as `as_json` wrote it."""
    lanes = {name: Lane(**lane) for name, lane in document["lanes"].items()}
    return Result(document["name"], document["run"], lanes, document.get("url", ""))


def as_json(result: Result) -> dict[str, Any]:
    """A result for a JSON document."""
    return asdict(result) | {"state": result.state}


# --- proof ---------------------------------------------------------------------------------------


def unproven(candidate: Candidate, reports: list[dict[str, Any]]) -> str | None:
    """Why the reports do not prove that exactly the candidate ran, None where they do."""
    if not reports:
        return f"no process reported that it imported {candidate.package}"
    members = candidate.members()
    for report in reports:
        wrong = _wrong_build(candidate, report) or _wrong_file(members, report)
        if wrong:
            return f"{report.get('package', 'a process')}: {wrong}"
    return None


def _wrong_build(candidate: Candidate, report: Mapping[str, Any]) -> str | None:
    found = (report.get("version"), report.get("wheel_sha256"))
    if found == (candidate.version, candidate.sha256):
        return None
    return (
        f"ran {found[0]} from wheel {found[1]}, expected {candidate.version} from "
        f"{candidate.sha256}"
    )


def _wrong_file(members: Mapping[str, str], report: Mapping[str, Any]) -> str | None:
    for name, digest in report.get("files", {}).items():
        if members.get(name) != digest:
            return f"loaded {name}, whose bytes are not those of the candidate's wheel"
    return None


def read_reports(path: Path) -> list[dict[str, Any]]:
    """The lines that the processes of a lane wrote; a broken line counts as a wrong report."""
    if not path.is_file():
        return []
    return [_report(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _report(line: str) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except ValueError:
        return {"package": "a broken report"}
    return document if isinstance(document, dict) else {"package": "a broken report"}


def surroundings() -> dict[str, str]:
    """What a consumer's code gets to see: no setting of pip, no token, nothing of a hosted job."""
    return {name: text for name, text in plain_pip().items() if not _PRIVATE.search(name)}


# --- a consumer's checkout -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Checkout:
    """A canary whose commands run on this machine.

    Attributes:
        canary: the consumer.
        candidate: what is tested.
        work: folder of all runs.
        indexes: pip's variables by which the consumer's own pins are found.
    """

    canary: Canary
    candidate: Candidate
    work: Path
    indexes: Mapping[str, str] = field(default_factory=dict)

    def run(self, resumed: str | None = None) -> Result:
        """Run every lane that has not passed or failed yet.

        Args:
            resumed: id of a run to continue; a new run where None.

        Raises:
            UnusableError: the run to continue is not there, or is of another candidate.
        """
        run = resumed or self._new_id()
        folder = self.work / run
        lanes = self._earlier(folder) if resumed else {}
        folder.mkdir(parents=True, exist_ok=True)
        self._save(folder, lanes)
        try:
            python = self._environment(folder)
        except UnusableError as error:
            lost = Lane(INCONCLUSIVE, f"the consumer could not be set up: {error}")
            return Result(self.canary.name, run, dict.fromkeys(self.canary.lanes, lost))
        for name in self.canary.lanes:
            if lanes.get(name, Lane(INCONCLUSIVE)).state == INCONCLUSIVE:
                lanes[name] = self._lane(folder, python, name)
                self._save(folder, lanes)
        return Result(self.canary.name, run, lanes)

    def _new_id(self) -> str:
        stem = f"{self.canary.name}-{self.candidate.version}"
        taken = {path.name for path in self.work.glob(f"{stem}-*")}
        return next(
            name for number in range(1, len(taken) + 2) if (name := f"{stem}-{number}") not in taken
        )

    def _identity(self) -> dict[str, str]:
        return {
            "canary": self.canary.name,
            "version": self.candidate.version,
            "wheel_sha256": self.candidate.sha256,
        }

    def _earlier(self, folder: Path) -> dict[str, Lane]:
        path = folder / "run.json"
        if not path.is_file():
            raise UnusableError(f"there is no run {folder.name} in {self.work}; start a new one")
        document = json.loads(path.read_text(encoding="utf-8"))
        for key, value in self._identity().items():
            if document.get(key) != value:
                raise UnusableError(
                    f"run {folder.name} is of {key} {document.get(key)}, not {value}; "
                    "start a new run"
                )
        return {name: Lane(**lane) for name, lane in document["lanes"].items()}

    def _save(self, folder: Path, lanes: Mapping[str, Lane]) -> None:
        document = {"schema": RUN_SCHEMA, "lanes": {k: asdict(v) for k, v in lanes.items()}}
        write_json(folder / "run.json", document | self._identity())

    def _environment(self, folder: Path) -> Path:
        """Clone the consumer, install its pins, and the candidate over them."""
        checkout, venv = folder / "checkout", folder / "venv"
        python = venv / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        if not (folder / "ready").is_file():
            if not checkout.is_dir():
                source = ("--branch", self.canary.branch, self.canary.repository, str(checkout))
                Git(folder).run("clone", "--quiet", "--depth", "1", *source)
            self._must([sys.executable, "-m", "venv", "--clear", "--without-pip", str(venv)])
            pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
            if self.canary.install:
                self._must([*pip, *self.canary.install], checkout)
            over = ("--no-deps", "--no-index", "--force-reinstall", "--no-compile")
            self._must([*pip, *over, self.candidate.path])
            (folder / "ready").touch()
        return python

    def _must(self, command: list[str], cwd: Path | None = None) -> None:
        words = " ".join(command[:6])
        try:
            done = subprocess.run(
                command,
                cwd=cwd,
                env=surroundings() | dict(self.indexes),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=_SET_UP_S,
            )
        except subprocess.TimeoutExpired as error:
            raise UnusableError(f"{words} ... had no end within {_SET_UP_S:g} s") from error
        if done.returncode:
            raise UnusableError(f"{words} ... failed: {done.stdout.strip()[-500:]}")

    def _lane(self, folder: Path, python: Path, name: str) -> Lane:
        report = folder / f"{name}.jsonl"
        report.unlink(missing_ok=True)
        command = [word.replace("{python}", str(python)) for word in self.canary.lanes[name]]
        env = surroundings() | {
            "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONPATH": str(PROBE),
            "CANARY_REPORT": str(report),
            "CANARY_PACKAGE": self.candidate.package,
            "CANARY_DISTRIBUTION": self.candidate.distribution,
        }
        started = time.monotonic()
        with (folder / f"{name}.log").open("wb") as log:
            code = _run_group(command, folder / "checkout", env, log, self.canary.timeout_s)
        seconds = round(time.monotonic() - started, 1)
        if code is None:
            limit = f"no end within {self.canary.timeout_s:g} s"
            return Lane(INCONCLUSIVE, f"{limit}; resume the run", seconds)
        if code:
            return Lane(FAILED, f"exit status {code}, see {name}.log of the run", seconds)
        missing = unproven(self.candidate, read_reports(report))
        if missing:
            return Lane(FAILED, f"not proven that the candidate ran: {missing}", seconds)
        return Lane(PASSED, "", seconds)


def _run_group(
    command: list[str],
    cwd: Path,
    env: Mapping[str, str],
    log: Any,  # noqa: ANN401 - an open binary file
    timeout_s: float,
) -> int | None:
    """Exit status of a command, None where it was ended with all its children at the limit."""
    try:
        process = subprocess.Popen(
            command, cwd=cwd, env=dict(env), stdout=log, stderr=log, start_new_session=True
        )
    except OSError as error:
        log.write(f"{command[0]} could not be started: {error}\n".encode())
        return 127
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


# --- a consumer's own workflow -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Workflow:
    """A canary that runs in its own repository; its scheduled run is found and waited for.

    Attributes:
        canary: the consumer.
        candidate: what is tested.
        hosting: the service; with a token a run is dispatched where none names the candidate.
        clock: seconds; `sleep` waits.
        poll_s: seconds between two looks at a run.
    """

    canary: Canary
    candidate: Candidate
    hosting: Hosting
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    poll_s: float = _POLL_S

    def run(self, resumed: str | None = None) -> Result:
        """Wait for the run that tests the candidate, and read its report.

        Args:
            resumed: id of the run; found by the candidate's version where None.
        """
        end = self.clock() + self.canary.timeout_s
        run = self._found(resumed)
        if run is None and self.hosting.token:
            inputs = {"wheel": f"{self.candidate.distribution}=={self.candidate.version}"}
            canary = self.canary
            self.hosting.dispatch(canary.repository, canary.workflow, canary.branch, inputs)
            run = self._wait(lambda: self._found(None), end)
        if run is None:
            lane = Lane(INCONCLUSIVE, f"no run names {self.candidate.version}; rerun when one does")
            return Result(self.canary.name, "", {"run": lane})
        number = run.number
        last = self._wait(lambda: self._completed(number), end)
        lane = self._judge(last, number)
        return Result(self.canary.name, number, {"run": lane}, run.url)

    def _found(self, resumed: str | None) -> Run | None:
        canary = self.canary
        if resumed:
            return self.hosting.run(canary.repository, resumed)
        runs = self.hosting.runs(canary.repository, canary.workflow, branch=canary.branch)
        return next((run for run in runs if self._names_it(run)), None)

    def _names_it(self, run: Run) -> bool:
        words = run.title.replace("==", " ").split()
        return self.candidate.version in words

    def _completed(self, number: str) -> Run | None:
        run = self.hosting.run(self.canary.repository, number)
        return run if run.status == "completed" else None

    def _wait(self, look: Callable[[], Run | None], end: float) -> Run | None:
        while (found := look()) is None and self.clock() < end:
            self.sleep(self.poll_s)
        return found

    def _judge(self, run: Run | None, number: str) -> Lane:
        if run is None:
            limit = f"{self.canary.timeout_s:g} s"
            return Lane(INCONCLUSIVE, f"run {number} had no end within {limit}; resume it")
        if run.conclusion == "failure":
            return Lane(FAILED, f"run {number} ended with failure")
        if run.conclusion != "success":
            return Lane(INCONCLUSIVE, f"run {number} ended with {run.conclusion or 'nothing'}")
        return self._proof(number)

    def _proof(self, number: str) -> Lane:
        url = self.canary.report.replace("{run}", number)
        base, _, path = url.rpartition("/")
        try:
            report = Hosting(base).call(path)
        except NotFoundError:
            return Lane(INCONCLUSIVE, f"run {number} left no report at {url}")
        wrong = _wrong_build(self.candidate, report if isinstance(report, dict) else {})
        if wrong:
            return Lane(FAILED, f"not proven that the candidate ran: run {number} {wrong}")
        return Lane(PASSED)


def download(index: Index, candidate: Candidate) -> None:
    """Fetch the candidate's wheel and compare its hash.

    Raises:
        InconclusiveError: the index no longer has it.
        UnusableError: other bytes than announced.
    """
    path = Path(candidate.path)
    if path.is_file() and sha256_of_file(path) == candidate.sha256:
        return
    listed = {file.name: file for file in index.files(candidate.distribution)}
    data = index.read(listed[candidate.wheel]) if candidate.wheel in listed else None
    if data is None:
        raise InconclusiveError(f"the index no longer has {candidate.wheel}")
    if sha256_of(data) != candidate.sha256:
        raise UnusableError(
            f"the index gives {candidate.wheel} with sha256 {sha256_of(data)}, expected "
            f"{candidate.sha256}; the file was replaced"
        )
    write_bytes(path, data)


def failed(results: tuple[Result, ...]) -> Iterator[tuple[str, str]]:
    """(canary and lane, reason) of every lane that failed."""
    for result in results:
        for name, lane in result.lanes.items():
            if lane.state == FAILED:
                yield f"{result.name} {name} (run {result.run or 'none'})", lane.reason


def undecided(results: tuple[Result, ...]) -> Iterator[tuple[str, str]]:
    """(canary and lane, reason) of whatever neither passed nor failed."""
    for result in results:
        if not result.lanes:
            yield result.name, "it has no lane"
        for name, lane in result.lanes.items():
            if lane.state not in {PASSED, FAILED}:
                yield f"{result.name} {name} (run {result.run or 'none'})", lane.reason

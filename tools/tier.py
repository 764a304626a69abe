"""Run one test tier and write its result to build/tiers/<name>.json.

    python tools/tier.py t3 [--as NAME] [--part host] [--commit-log] [--require-device]
        [--device-not-run TIER=REASON] [further arguments]
    python tools/tier.py --summary

A tier has a host part, a device part, or both. Further arguments go to what runs; a result that had
some says so and counts for no release. The output is shown and kept in build/tiers/<name>.log;
--commit-log copies both, and reports, to docs/validation_logs/<date>/<name>/. Exit 0 pass, 1 fail,
2 could not run, 3 the host part was not run; a device part that was not run is 3 only with
--require-device.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import IO, Any, Final

from files import ROOT, sha256_of, sha256_of_file, to_json, write_bytes, write_json
from findings import FAIL, INCONCLUSIVE, PASS, UNUSABLE, guarded
from git_commands import Git
from project import add_waivers, is_record

SCHEMA: Final = "mmaemu.tier/2"
RESULTS: Final = ROOT / "build" / "tiers"
LOGS: Final = ROOT / "docs" / "validation_logs"
SEAL: Final = "result sha256 "
"""Begins the last line of a log, which names the result that belongs to it."""

# pytest's exit code for "no test was collected": nothing ran, which is never a pass.
NO_TESTS: Final = 5
COUNTS: Final = ("tests", "passed", "failures", "errors", "skipped")


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a part.

    Attributes:
        arguments: after the Python interpreter.
        report: stem of the JSON report that it writes into RESULTS, "" for pytest, whose JUnit
            file has the counts.
        files: pattern of test files; the command runs once for each, with the file as its last
            argument.
        locked: whether it holds the GPU lock, for 600 s at most.
        waivable: whether it is told, with --device-not-run, what is accepted as not run.
    """

    arguments: tuple[str, ...]
    report: str = ""
    files: str = ""
    locked: bool = False
    waivable: bool = False


@dataclass(frozen=True, slots=True)
class Tier:
    """What a tier runs: the commands of each part."""

    name: str
    parts: Mapping[str, tuple[Command, ...]]


@dataclass
class Ran:
    """What came of one command.

    Attributes:
        status: pass, fail or not-run.
        reason: why it is no pass.
        counts: tests, passed, failures, errors, skipped and what else a report counts.
        skips: how many tests were skipped for each reason.
    """

    status: str
    reason: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    skips: Counter[str] = field(default_factory=Counter)


_PYTEST: Final = ("-m", "pytest")
_PARALLEL: Final = ("-n", "auto", "--dist", "worksteal")


def _host(tier: str) -> Tier:
    return Tier(tier, {"host": (Command((*_PYTEST, "-m", tier, *_PARALLEL)),)})


def _device(tier: str, files: str) -> Command:
    return Command((*_PYTEST, "-m", tier), files=files, locked=True)


# The kernel sources of the GPU on the CPU: what t1 runs of these files, and all the rest of them.
_KERNELS_ON_HOST: Final = (
    "tests/conformance/test_cuda_on_host.py",
    "tests/conformance/test_cuda_gates.py",
    "tests/replay/test_cuda_recordings.py",
)
_BENCH: Final = ("bench/run.py", "--out", "build/tiers", "--name")
_MUTANTS: Final = ("tools/run_mutants.py", "--report")

TIERS: Final = {
    tier.name: tier
    for tier in (
        _host("t0"),
        _host("t1"),
        Tier("t2", {"host": (Command(("tools/replay_truth.py",), "t2-report"),)}),
        Tier(
            "t3",
            {
                "host": (Command((*_PYTEST, "-m", "t1 or t3", *_PARALLEL, *_KERNELS_ON_HOST)),),
                "device": (_device("t3", "tests/cuda/test_*.py"),),
            },
        ),
        Tier("t3p", {"device": (_device("t3p", "tests/parity/test_*.py"),)}),
        Tier(
            "t4",
            {
                "host": (Command((*_MUTANTS, "build/tiers/t4-report.json"), "t4-report"),),
                "device": (
                    Command(
                        (*_MUTANTS, "build/tiers/t4-device-report.json", "--device"),
                        "t4-device-report",
                        locked=True,
                    ),
                ),
            },
        ),
        _host("t5"),
        Tier(
            "t6",
            {
                "host": (Command((*_BENCH, "t6-report"), "t6-report"),),
                "device": (
                    Command(
                        (*_BENCH, "t6-device-report", "--device", "cuda"),
                        "t6-device-report",
                        locked=True,
                    ),
                ),
            },
        ),
        # Its report, with the checks one by one, goes to docs/release_logs.
        Tier(
            "t7",
            {
                "device": (
                    Command(
                        ("tools/validate_release.py", "--copy", "build/tiers/t7-report.json"),
                        "t7-report",
                        waivable=True,
                    ),
                )
            },
        ),
    )
}

LOCK: Final = ("tools/gpu_lock.py",)
# What an exit code means; any other is a failure.
PYTEST_STATUS: Final = {PASS: "pass", NO_TESTS: "not-run"}
STATUS: Final = {PASS: "pass", FAIL: "fail", UNUSABLE: "not-run", INCONCLUSIVE: "not-run"}


class Run:
    """One run of a tier.

    Args:
        name: name of the result and of its files.
        extra: further arguments of every command.
        waivers: what is accepted as not run, as TIER and reason.
        log: where the output is kept.
    """

    def __init__(
        self, name: str, extra: Sequence[str], waivers: Sequence[tuple[str, str]], log: IO[str]
    ) -> None:
        self.name = name
        self.extra = extra
        self.waivers = waivers
        self.log = log
        self.reports: list[str] = []

    def part(self, name: str, commands: Sequence[Command]) -> dict[str, Any]:
        """Run the commands of a part and return its entry in the result."""
        ran = [
            self._command(command, one, f"{self.name}{self._suffix(name, number)}")
            for number, (command, one) in enumerate(_spread(commands))
        ]
        if not ran:
            ran = [Ran("not-run", "there is no test file of this part")]
        worst = next((s for s in ("fail", "not-run") if any(r.status == s for r in ran)), "pass")
        counts, skips = Counter[str](), Counter[str]()
        for each in ran:
            counts.update(each.counts)
            skips.update(each.skips)
        return {
            "status": worst,
            "reason": "; ".join(dict.fromkeys(each.reason for each in ran if each.reason)),
            "counts": {key: counts[key] for key in (*COUNTS, *counts)} if counts else {},
            "skips": dict(skips),
        }

    @staticmethod
    def _suffix(part: str, number: int) -> str:
        return "" if part == "host" and number == 0 else f"-{part}-{number}"

    def _command(self, command: Command, arguments: Sequence[str], stem: str) -> Ran:
        junit = RESULTS / f"{stem}.xml"
        report = RESULTS / f"{command.report}.json"
        words = [sys.executable, *arguments, *self.extra]
        if command.report:
            self.reports += [f"{command.report}{suffix}" for suffix in (".json", ".png")]
            for path in (report, report.with_suffix(".png")):
                path.unlink(missing_ok=True)
        else:
            junit.unlink(missing_ok=True)
            words.append(f"--junitxml={junit}")
        if command.waivable:
            words += [f"--device-not-run={tier}={reason}" for tier, reason in self.waivers]
        if command.locked:
            words = [sys.executable, *LOCK, *words]
        code = self._keep(words)
        if command.report:
            return _of_report(code, report, arguments)
        return _of_pytest(code, junit, arguments)

    def _keep(self, command: Sequence[str]) -> int:
        """Run a command, show its output and keep it in the log; returns its exit code."""
        # Options from the environment would choose among the tests unseen.
        environ = {key: value for key, value in os.environ.items() if key != "PYTEST_ADDOPTS"}
        with subprocess.Popen(
            command,
            cwd=ROOT,
            env={**environ, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
        ) as process:
            for line in process.stdout or ():
                self.say(line)
            return process.wait()

    def say(self, line: str) -> None:
        """Show a line and keep it; the checkout's own path becomes ".": logs are read elsewhere."""
        sys.stdout.write(line)
        sys.stdout.flush()
        self.log.write(line.replace(str(ROOT), "."))


def _spread(commands: Iterable[Command]) -> Iterator[tuple[Command, tuple[str, ...]]]:
    """Each command with its arguments, once for every file that it is for."""
    for command in commands:
        if not command.files:
            yield command, command.arguments
        for path in sorted(ROOT.glob(command.files)) if command.files else ():
            yield command, (*command.arguments, path.relative_to(ROOT).as_posix())


def _of_report(code: int, report: Path, arguments: Sequence[str]) -> Ran:
    """The result of a command that writes a report, with the counts in it."""
    status = STATUS.get(code, "fail")
    reason = "" if status == "pass" else f"{' '.join(arguments)} exited with {code}"
    if not report.exists():
        return Ran(status, reason)
    document = json.loads(report.read_text(encoding="utf-8"))
    counts = document["counts"] if "counts" in document else _of_replay(document["totals"])
    return Ran(status, document.get("reason") or reason, Counter(counts))


def _of_replay(totals: Mapping[str, int]) -> dict[str, int]:
    """The counts of a replay, a recorded row for a test."""
    return {
        "tests": totals["rows"],
        "passed": totals["equal"],
        "failures": totals["rows"] - totals["equal"] - totals["not_run"],
        "errors": 0,
        "skipped": totals["not_run"],
        "values": totals["values"],
        "differing": totals["differing"],
    }


def _of_pytest(code: int, junit: Path, arguments: Sequence[str]) -> Ran:
    """The result of pytest, with the counts and skips of its JUnit file."""
    if code == INCONCLUSIVE:  # Only the lock ends with it: its limit was reached.
        return Ran("not-run", f"{' '.join(arguments)} was not finished in time")
    status = PYTEST_STATUS.get(code, "fail")
    reason = "" if status == "pass" else f"{' '.join(arguments)} exited with {code}"
    if not junit.exists():
        return Ran("fail" if status == "pass" else status, reason or f"no {junit.name} was written")
    root = ET.parse(junit).getroot()  # noqa: S314 - pytest wrote it just now
    counts = Counter[str]()
    for suite in root.iter("testsuite"):
        counts.update({key: int(suite.get(key, 0)) for key in COUNTS if key != "passed"})
    counts["passed"] = counts["tests"] - sum(counts[key] for key in COUNTS[2:])
    skips = Counter(str(each.get("message")) for each in root.iter("skipped"))
    if status == "pass" and not counts["passed"]:
        status, reason = "not-run", "; ".join(skips)
    # A kernel that was not tested because its binary is missing would pass unnoticed.
    missing = next((why for why in skips if "manifest" in why), None)
    if missing is not None and counts["passed"]:
        status, reason = "fail", f"skipped: {missing}"
    return Ran(status, reason.replace(str(ROOT), "."), counts, skips)


def run(tier: Tier, options: argparse.Namespace) -> dict[str, Any]:
    """Run a tier, write its result and its log, and return the result.

    Args:
        tier: what to run.
        options: name, part, device_not_run and extra, as the command line has them.
    """
    RESULTS.mkdir(parents=True, exist_ok=True)
    name = options.name or tier.name
    before, started = commit_facts(), _now()
    path = RESULTS / f"{name}.log"
    with path.open("w", encoding="utf-8", newline="\n") as log:
        work = Run(name, options.extra, options.device_not_run, log)
        work.say(f"{name}: commit {before['commit']}, tree {before['tree']}\n")
        parts = {
            part: work.part(part, commands)
            if options.part in {None, part}
            else {"status": "not-run", "reason": "not asked for", "counts": {}, "skips": {}}
            for part, commands in tier.parts.items()
        }
        _acknowledge(parts, tier.name, dict(options.device_not_run))
        after = commit_facts()
        body = {
            "schema": SCHEMA,
            "tier": tier.name,
            **before,
            "dirty": before["dirty"] or after != before,
            "arguments": options.extra,
            "started_at": started,
            "finished_at": _now(),
            "environment": environment(),
            "reports": _hashes(work.reports),
            "parts": parts,
        }
        for part, entry in parts.items():
            work.say(f"{name}: {part} {entry['status']} {entry['reason']}".rstrip() + "\n")
        work.say(f"{SEAL}{seal(body)}\n")
    result = {**body, "log_sha256": sha256_of_file(path)}
    write_json(RESULTS / f"{name}.json", result)
    return result


def _acknowledge(parts: dict[str, dict[str, Any]], tier: str, reasons: dict[str, str]) -> None:
    """Note in the device part that somebody accepted that it was not run, and why."""
    reason = {name.lower(): text for name, text in reasons.items()}.get(tier)
    device = parts.get("device")
    if reason and device and device["status"] == "not-run":
        device["acknowledged"] = reason


def _hashes(names: Iterable[str]) -> dict[str, str]:
    """The sha256 of each report that was written, as it is copied."""
    paths = (RESULTS / name for name in names)
    return {path.name: sha256_of(_copied(path)) for path in paths if path.exists()}


def _copied(path: Path) -> bytes:
    """A file as it goes into docs/: text without the checkout's own path."""
    data = path.read_bytes()
    return data if path.suffix == ".png" else data.replace(str(ROOT).encode(), b".")


def seal(result: Mapping[str, Any]) -> str:
    """The sha256 of a result without the hash of its log, which names this one."""
    return sha256_of(to_json({k: v for k, v in result.items() if k != "log_sha256"}).encode())


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def commit_facts() -> dict[str, Any]:
    """Commit and tree of HEAD, and whether the checkout differs from it in more than records."""
    git = Git(ROOT)
    status = git.names("status", "--porcelain", "-z", "--untracked-files=all", "--no-renames")
    return {
        "commit": git.line("rev-parse", "HEAD"),
        "tree": git.line("rev-parse", "HEAD^{tree}"),
        "dirty": not all(is_record(line[3:]) for line in status),
    }


def environment() -> dict[str, str]:
    """Python, the GPU, and the builds of the packages that decide results."""
    versions = {}
    for package in ("torch", "numpy", "mmaemu"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    here = {"python": platform.python_version(), "machine": platform.machine(), "gpu": gpu()}
    return {**here, **versions}


def gpu() -> str:
    """The first GPU's name as its driver says it, "none" where there is none."""
    command = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "none"
    names = done.stdout.splitlines() if done.returncode == 0 else []
    return names[0].strip() if names else "none"


def commit_log(name: str, result: Mapping[str, Any]) -> Path:
    """Copy result, log and reports to docs/validation_logs/<date>/<name>/."""
    folder = LOGS / str(result["finished_at"])[:10] / name
    for file in (f"{name}.json", f"{name}.log", *result["reports"]):
        write_bytes(folder / file, _copied(RESULTS / file))
    return folder


def exit_code(parts: Mapping[str, Mapping[str, Any]], *, require_device: bool) -> int:
    """The exit code of a result; see the module docstring."""
    states = {name: part["status"] for name, part in parts.items()}
    if "fail" in states.values():
        return FAIL
    if states.get("host", "pass") != "pass":
        return INCONCLUSIVE
    return INCONCLUSIVE if require_device and states.get("device") == "not-run" else PASS


def summary(results: Path) -> list[str]:
    """One line per part of a result file that has counts, and their total."""
    lines, total = [], Counter[str]()
    for path in sorted(results.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.get("schema") != SCHEMA:
            continue
        for name, part in document["parts"].items():
            counts = Counter[str](part["counts"])
            if not counts:
                continue
            shown = Counter(
                passed=counts["passed"],
                failed=counts["failures"] + counts["errors"],
                skipped=counts["skipped"],
            )
            total.update(shown)
            lines.append(_summary_line(path.stem + (f" {name}" if name != "host" else ""), shown))
    return [*lines, _summary_line("total", total)]


def _summary_line(name: str, counts: Mapping[str, int]) -> str:
    return f"{name}: " + ", ".join(
        f"{counts[key]} {key}" for key in ("passed", "failed", "skipped")
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="tier",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("tier", nargs="?", choices=sorted(TIERS))
    what.add_argument("--summary", action="store_true", help="print what the results counted")
    parser.add_argument("--as", dest="name", help="name of the result; the tier's if left out")
    parser.add_argument("--part", choices=("host", "device"), help="run this part only")
    parser.add_argument("--commit-log", action="store_true", help="copy result and log into docs/")
    parser.add_argument(
        "--require-device", action="store_true", help="exit 3 where the device part was not run"
    )
    add_waivers(parser)
    options, extra = parser.parse_known_args(argv)
    if options.summary:
        print("\n".join(summary(RESULTS)))
        return PASS
    options.extra = extra

    def action() -> int:
        result = run(TIERS[options.tier], options)
        if options.commit_log:
            print(f"copied to {commit_log(options.name or options.tier, result)}")
        return exit_code(result["parts"], require_device=options.require_device)

    return guarded(parser.prog, action)


if __name__ == "__main__":
    raise SystemExit(main())

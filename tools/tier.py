"""Run one test tier and write its result to build/tiers/<name>.json.

    python tools/tier.py t1 [--as NAME] [--commit-log] [pytest arguments]
    python tools/tier.py --summary

Arguments that are not known here go to pytest (t2: to replay_truth.py). The output is shown and
kept in build/tiers/<name>.log; --commit-log copies both to docs/validation_logs/<date>/<name>/;
--summary prints what the results at hand counted. Exit 0 pass, 1 fail, 2 could not run, 3 not run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from files import ROOT, write_bytes, write_json
from findings import FAIL, INCONCLUSIVE, PASS, UNUSABLE, guarded

SCHEMA: Final = "mmaemu.tier/1"
RESULTS: Final = ROOT / "build" / "tiers"
LOGS: Final = ROOT / "docs" / "validation_logs"

# pytest's exit code for "no test was collected": nothing ran, which is never a pass.
NO_TESTS: Final = 5


@dataclass(frozen=True, slots=True)
class Tier:
    """How a tier runs.

    Attributes:
        name: t0, t1, ...
        command: arguments after the Python interpreter.
        pytest: whether the command is pytest and writes a JUnit file with the counts.
    """

    name: str
    command: tuple[str, ...]
    pytest: bool = True


def _pytest(tier: str) -> Tier:
    return Tier(tier, ("-m", "pytest", "-m", tier, "-n", "auto", "--dist", "worksteal"))


TIERS: Final = {
    tier.name: tier
    for tier in (
        _pytest("t0"),
        _pytest("t1"),
        Tier("t2", ("tools/replay_truth.py",), pytest=False),
        _pytest("t5"),
    )
}

# What an exit code means; any other is a failure.
PYTEST_STATUS: Final = {PASS: "pass", NO_TESTS: "not-run"}
STATUS: Final = {PASS: "pass", FAIL: "fail", UNUSABLE: "not-run", INCONCLUSIVE: "not-run"}
EXIT_OF_STATUS: Final = {"pass": PASS, "fail": FAIL, "not-run": INCONCLUSIVE}


def run(tier: Tier, name: str, extra: Sequence[str]) -> dict[str, Any]:
    """Run a tier and return its result document.

    Args:
        tier: what to run.
        name: name of the result and log files.
        extra: further arguments of the command.
    """
    RESULTS.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, *tier.command, *extra]
    junit, report = RESULTS / f"{name}.xml", RESULTS / f"{tier.name}-report.json"
    for path in (junit, report):
        path.unlink(missing_ok=True)
    if tier.pytest:
        command.append(f"--junitxml={junit}")
    code = _run_and_keep(command, RESULTS / f"{name}.log")
    counts = _counts(junit) if tier.pytest else _report_counts(report)
    status = (PYTEST_STATUS if tier.pytest else STATUS).get(code, "fail")
    reason = "" if status == "pass" else f"{' '.join(tier.command)} exited with {code}"
    return {
        "schema": SCHEMA,
        "tier": name,
        **commit_facts(),
        "finished_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "environment": environment(),
        "parts": {"host": {"status": status, "reason": reason, "counts": counts}},
    }


def _run_and_keep(command: Sequence[str], log: Path) -> int:
    """Run a command, show its output and keep it in a file; returns its exit code."""
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with (
        log.open("w", encoding="utf-8") as kept,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
        ) as process,
    ):
        for line in process.stdout or ():
            sys.stdout.write(line)
            sys.stdout.flush()
            kept.write(line)
        return process.wait()


def _report_counts(report: Path) -> dict[str, int]:
    """Counts of a replay report, a recorded row for a test; none where it was not written."""
    if not report.exists():
        return {}
    totals = json.loads(report.read_text(encoding="utf-8"))["totals"]
    return {
        "tests": totals["rows"],
        "passed": totals["equal"],
        "failures": totals["rows"] - totals["equal"] - totals["not_run"],
        "errors": 0,
        "skipped": totals["not_run"],
        "values": totals["values"],
        "differing": totals["differing"],
    }


def _counts(junit: Path) -> dict[str, int]:
    """Counts of a JUnit file; none where it was not written."""
    if not junit.exists():
        return {}
    suites = ET.parse(junit).getroot().iter("testsuite")  # noqa: S314 - pytest wrote it just now
    total = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for suite in suites:
        for key in total:
            total[key] += int(suite.get(key, 0))
    passed = total["tests"] - total["failures"] - total["errors"] - total["skipped"]
    return {**total, "passed": passed}


def commit_facts() -> dict[str, Any]:
    """Commit and tree of HEAD, and whether tracked files differ from it."""
    return {
        "commit": _git("rev-parse", "HEAD"),
        "tree": _git("rev-parse", "HEAD^{tree}"),
        "dirty": bool(_git("status", "--porcelain", "--untracked-files=no")),
    }


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], check=False, capture_output=True, text=True
    )
    return done.stdout.strip()


def environment() -> dict[str, str]:
    """Python and the builds of the packages that decide results."""
    versions = {}
    for package in ("torch", "numpy", "mmaemu"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {"python": platform.python_version(), "machine": platform.machine(), **versions}


def commit_log(name: str, today: str) -> Path:
    """Copy result, log and report of a tier to docs/validation_logs/<date>/<name>/.

    The checkout's own path becomes "." there: a log is read elsewhere.
    """
    folder = LOGS / today / name
    for file in (f"{name}.json", f"{name}.log", f"{name}-report.json"):
        source = RESULTS / file
        if source.exists():
            text = source.read_text(encoding="utf-8").replace(str(ROOT), ".")
            write_bytes(folder / file, text.encode())
    return folder


def summary(results: Path) -> list[str]:
    """One line per result file that has counts, and their total."""
    lines, total = [], {"passed": 0, "failed": 0, "skipped": 0}
    for path in sorted(results.glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.get("schema") != SCHEMA:
            continue
        counts = document["parts"]["host"]["counts"]
        if not counts:
            continue
        shown = {
            "passed": counts["passed"],
            "failed": counts["failures"] + counts["errors"],
            "skipped": counts["skipped"],
        }
        total = {key: total[key] + value for key, value in shown.items()}
        lines.append(_summary_line(document["tier"], shown))
    return [*lines, _summary_line("total", total)]


def _summary_line(name: str, counts: Mapping[str, int]) -> str:
    return f"{name}: " + ", ".join(f"{value} {key}" for key, value in counts.items())


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="tier", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("tier", nargs="?", choices=sorted(TIERS))
    what.add_argument("--summary", action="store_true", help="print what the results counted")
    parser.add_argument("--as", dest="name", help="name of the result; the tier's if left out")
    parser.add_argument("--commit-log", action="store_true", help="copy result and log into docs/")
    arguments, extra = parser.parse_known_args(argv)
    if arguments.summary:
        print("\n".join(summary(RESULTS)))
        return PASS
    name = arguments.name or arguments.tier

    def action() -> int:
        result = run(TIERS[arguments.tier], name, extra)
        write_json(RESULTS / f"{name}.json", result)
        if arguments.commit_log:
            print(f"copied to {commit_log(name, result['finished_at'][:10])}")
        part = result["parts"]["host"]
        print(f"{name}: {part['status']} {part['reason']}".rstrip())
        return EXIT_OF_STATUS[part["status"]]

    return guarded(parser.prog, action)


if __name__ == "__main__":
    raise SystemExit(main())

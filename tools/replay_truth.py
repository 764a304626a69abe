"""Replay every recording of a truth folder bit for bit (tier T2).

Examples:
    python tools/replay_truth.py                        # everything in MMAEMU_TRUTH_DIR
    python tools/replay_truth.py DIR --platform h100pcie
    python tools/replay_truth.py DIR --only evo2 --json

A row that is not understood counts as not run, never as equal. Exit 0: everything ran and no bit
differs; 1: a difference, or the folder changed meanwhile; 2: could not run; 3: rows were not run.
"""

from __future__ import annotations

import argparse
import json
import platform as host
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from files import ROOT, sha256_of_tree, to_json, write_json
from findings import FAIL, INCONCLUSIVE, PASS, InconclusiveError, UnusableError, guarded

sys.path.insert(0, str(ROOT))
from mmaemu import _settings
from mmaemu.recordings import CallRecord, GemmRecord, MmaRecord, Record
from mmaemu.replay import NotReplayableError, replay
from truth import Platform, Unreadable, platform_folders, read_platform

SCHEMA: Final = "mmaemu.replay/1"
REPORT: Final = ROOT / "build" / "tiers" / "t2-report.json"
COMMITTED: Final = ROOT / "docs" / "validation_logs"
KINDS: Final[Mapping[type[Record], str]] = {
    MmaRecord: "mma",
    GemmRecord: "gemm",
    CallRecord: "call",
}
EXAMPLES: Final = 3


@dataclass
class Tally:
    """What came of the rows of one recording.

    Attributes:
        platform: name of the platform's folder.
        kind: mma, gemm, call or toolbox.
        recording: label of the recorded run.
        rows: rows of the recording.
        equal: rows whose every bit, or whose exact error class, is the recorded one.
        not_run: rows that could not be replayed.
        values: recorded values that were compared; an expected error counts as one.
        differing: how many of them differ.
        examples: the first few rows that differ or were not run, with the reason.
    """

    platform: str
    kind: str
    recording: str
    rows: int = 0
    equal: int = 0
    not_run: int = 0
    values: int = 0
    differing: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, row: Record | Unreadable, backend: str) -> None:
        """Replay one row and count it."""
        self.rows += 1
        if isinstance(row, Unreadable):
            self._not_run(f"{row.id}: not run: {row.reason}")
            return
        try:
            result = replay(row, backend=backend)
        except (NotReplayableError, KeyError, RuntimeError, TypeError, ValueError) as error:
            # Raised while the call is prepared: the row says something not understood here.
            self._not_run(f"{row.id}: not run: {type(error).__name__}: {error}")
            return
        self.values += result.values
        self.differing += result.differing
        self.equal += result.equal
        if not result.equal:
            self._example(
                f"{row.id}: expected {result.expected}, got {result.got}: {result.detail}"
            )

    def _not_run(self, text: str) -> None:
        self.not_run += 1
        self._example(text)

    def _example(self, text: str) -> None:
        if len(self.examples) < EXAMPLES:
            self.examples.append(text)

    @property
    def status(self) -> str:
        """One word for the table."""
        if self.differing:
            return "DIFFERS"
        return "NOT RUN" if self.not_run else "equal"


def tally(platform: Platform, only: str, backend: str, progress: Progress) -> list[Tally]:
    """Replay the rows of a platform and count them by recording, in order of first appearance."""
    found: dict[tuple[str, str], Tally] = {}
    for row in platform.rows:
        if only not in row.id and only not in row.recording:
            continue
        kind = row.kind if isinstance(row, Unreadable) else KINDS[type(row)]
        key = (kind, row.recording)
        entry = found.setdefault(key, Tally(platform.name, *key))
        entry.add(row, backend)
        progress.step(f"{platform.name} {row.recording}")
    return list(found.values())


class Progress:
    """One line on the terminal that says where a long run is; silent elsewhere."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._rows = 0
        self._last = 0.0

    def step(self, where: str) -> None:
        """Count a row and refresh the line a few times a second."""
        self._rows += 1
        now = time.monotonic()
        if self._shown and now - self._last > 0.2:  # noqa: PLR2004 - five times a second
            self._last = now
            sys.stderr.write(f"\r\x1b[K{self._rows} rows, {where}")
            sys.stderr.flush()

    def end(self) -> None:
        """Remove the line."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")


def run(truth: Path, platforms: Sequence[str], only: str, backend: str) -> dict[str, Any]:
    """Replay a truth folder and return the report document.

    Args:
        truth: the folder.
        platforms: names of the platform folders to replay; all where empty.
        only: replay rows whose id or recording contains this.
        backend: as for `mmaemu.scaled_mm`.

    Raises:
        UnusableError: the folder or one of its files cannot be read.
        InconclusiveError: nothing to replay was found.
    """
    folders = platform_folders(truth)
    unknown = set(platforms) - {folder.name for folder in folders}
    if unknown:
        raise UnusableError(
            f"{truth} has no platform {', '.join(sorted(unknown))}; it has "
            f"{', '.join(folder.name for folder in folders) or 'none'}"
        )
    started = time.monotonic()
    before = sha256_of_tree(truth)
    progress = Progress()
    tallies: list[Tally] = []
    ignored: dict[str, Mapping[str, int]] = {}
    for folder in folders:
        if platforms and folder.name not in platforms:
            continue
        platform = read_platform(folder)
        ignored[platform.name] = platform.ignored
        tallies += tally(platform, only, backend, progress)
    progress.end()
    if not tallies:
        raise InconclusiveError(f"no row of {truth} was replayed; check --platform and --only")
    return {
        "schema": SCHEMA,
        "files": before,
        "unchanged": sha256_of_tree(truth) == before,
        "selection": {"platforms": list(platforms), "only": only, "backend": backend},
        "environment": _environment(),
        "seconds": round(time.monotonic() - started, 1),
        "totals": _totals(tallies),
        "ignored_fields": ignored,
        "recordings": [asdict(entry) for entry in tallies],
    }


def _environment() -> dict[str, str]:
    import numpy as np
    import torch

    import mmaemu

    return {
        "python": host.python_version(),
        "machine": host.machine(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "mmaemu": mmaemu.__version__,
    }


def _totals(tallies: Iterable[Tally]) -> dict[str, int]:
    names = ("rows", "equal", "not_run", "values", "differing")
    totals = dict.fromkeys(names, 0)
    for entry in tallies:
        for name in names:
            totals[name] += getattr(entry, name)
    return totals


def compare(report: Mapping[str, Any], previous: Mapping[str, Any]) -> list[str]:
    """What a report lacks against an earlier one of the same files: lines, empty if nothing.

    Recordings of platforms whose files changed since then are not compared.
    """
    same = {
        name for name, digest in previous["files"].items() if report["files"].get(name) == digest
    }
    changed = {name.split("/", 1)[0] for name in previous["files"].keys() - same}
    if report["selection"] != previous["selection"]:
        return []
    now = {_key(entry): entry for entry in report["recordings"]}
    lines = []
    for entry in previous["recordings"]:
        if entry["platform"] in changed:
            continue
        current = now.get(_key(entry))
        if current is None:
            lines.append(f"{'/'.join(_key(entry))}: replayed earlier, not now")
        elif current["equal"] < entry["equal"]:
            lines.append(
                f"{'/'.join(_key(entry))}: {entry['equal']} rows were equal, now {current['equal']}"
            )
    return lines


def _key(entry: Mapping[str, Any]) -> tuple[str, str, str]:
    return (entry["platform"], entry["kind"], entry["recording"])


def last_report(logs: Path) -> tuple[str, Mapping[str, Any]] | None:
    """The newest committed report and its path; None where there is none."""
    paths = sorted(logs.glob("*/t2/t2-report.json"))
    if not paths:
        return None
    document: Mapping[str, Any] = json.loads(paths[-1].read_text(encoding="utf-8"))
    return str(paths[-1].relative_to(logs.parent.parent)), document


def exit_code(report: Mapping[str, Any], lost: Sequence[str]) -> int:
    """0, 1 or 3 as the module docstring says."""
    totals = report["totals"]
    if totals["differing"] or lost or not report["unchanged"]:
        return FAIL
    return INCONCLUSIVE if totals["not_run"] else PASS


COLUMNS: Final = ("platform", "kind", "recording", "rows", "not_run", "values", "differing")


def table(report: Mapping[str, Any]) -> list[list[str]]:
    """The per-recording table, header first, total last."""
    rows = [
        [*(str(entry[name]) for name in COLUMNS), Tally(**entry).status]
        for entry in report["recordings"]
    ]
    totals = report["totals"]
    total = ["all", "", "", *(f"{totals[name]}" for name in COLUMNS[3:]), ""]
    return [[*COLUMNS, "status"], *rows, total]


def show(report: Mapping[str, Any]) -> None:
    """Print the table, then the first examples of what differs or was not run."""
    rows = table(report)
    if not (sys.stdout.isatty() and _show_rich(rows)):
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            print("  ".join(cells).rstrip())
    for entry in report["recordings"]:
        for example in entry["examples"]:
            print(f"  {example}")
    for platform, fields in report["ignored_fields"].items():
        if fields:
            print(f"  {platform}: fields not understood and ignored: {', '.join(fields)}")


def _show_rich(rows: Sequence[Sequence[str]]) -> bool:
    """Print the table with colours; False where rich is not installed."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        return False
    shown = Table(*rows[0])
    for row in rows[1:]:
        shown.add_row(*row, style="" if row[-1] in ("equal", "") else "bold red")
    Console().print(shown)
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="replay_truth",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "truth", nargs="?", type=Path, help="folder of recordings; MMAEMU_TRUTH_DIR if left out"
    )
    parser.add_argument(
        "--platform", action="append", default=[], help="only this platform's folder; repeatable"
    )
    parser.add_argument("--only", default="", help="only rows whose id or recording contains this")
    parser.add_argument("--backend", default="auto", help="as for mmaemu.scaled_mm")
    parser.add_argument(
        "--report", type=Path, default=REPORT, help="where to write the JSON report"
    )
    parser.add_argument("--json", action="store_true", help="print the JSON report, no table")
    arguments = parser.parse_args(argv)
    return guarded(parser.prog, lambda: _main(arguments))


def _main(arguments: argparse.Namespace) -> int:
    truth: Path | None = arguments.truth or _settings.path("TRUTH_DIR")
    if truth is None:
        raise InconclusiveError(
            "no recordings: set MMAEMU_TRUTH_DIR to a folder of recordings or pass one"
        )
    report = run(truth, arguments.platform, arguments.only, arguments.backend)
    write_json(arguments.report, report)
    previous = last_report(COMMITTED)
    lost = compare(report, previous[1]) if previous else []
    code = exit_code(report, lost)
    if arguments.json:
        print(to_json(report), end="")
        return code
    show(report)
    for line in lost:
        print(f"  against {previous[0] if previous else ''}: {line}")
    if not report["unchanged"]:
        print(f"{truth} changed during the replay; restore it and run again")
    totals = report["totals"]
    print(
        f"replay_truth: {totals['values']} values of {totals['rows']} rows, "
        f"{totals['differing']} differ, {totals['not_run']} rows not run, "
        f"{report['seconds']} s; report in {_shown(arguments.report)}"
    )
    return code


def _shown(path: Path) -> Path:
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


if __name__ == "__main__":
    raise SystemExit(main())

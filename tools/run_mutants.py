"""Run the mutation matrix (tier T4): each mutant is killed by its test, each control survives.

    python tools/run_mutants.py                          all of tests/mutants/*.toml
    python tools/run_mutants.py --seed S --count 6       some, the same ones for the same seed
    python tools/run_mutants.py --only truncation --list
    python tools/run_mutants.py --device                 the rows with a killer on a GPU

A mutant is one replacement in one file, made in a copy of the tree, never in the checkout; then its
killer runs, and nothing else. Killed means that the killer failed: one that cannot be collected, or
that is killed itself, shows nothing. Exit 0: as the matrix says; 1: a mutant survived, or a control
did not; 2: the matrix does not fit the tree, or a killer fails without any mutant; 3: none was
chosen, or --device finds no GPU.
"""

from __future__ import annotations

import argparse
import ast
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from files import ROOT, read_toml, write_json
from findings import (
    FAIL,
    INCONCLUSIVE,
    PASS,
    UNUSABLE,
    InconclusiveError,
    UnusableError,
    guarded,
)
from git_commands import Git

SCHEMA: Final = "mmaemu.mutants/1"
TABLES: Final = "tests/mutants"
REPORT: Final = ROOT / "build" / "tiers" / "t4-report.json"
TIMEOUT_SECONDS: Final = 600
TESTS_FAILED: Final = 1
"""pytest's exit code."""

KEYS: Final = frozenset(
    {"name", "rule", "file", "old", "new", "killer", "survives", "build", "on_device"}
)
DEVICE_TESTS: Final = "tests/cuda/"
NO_GPU: Final = "torch sees no CUDA device"
# How a changed source becomes what the tests load, and which files that replaces.
BUILDS: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "cpu": (
        ("tools/build_cpu.py", "--release", "--modules", "x86_64-linux"),
        "mmaemu/backends/cpu/bin",
    ),
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One row of the matrix.

    Attributes:
        name: unique, says what is wrong in it.
        rule: the numbered rule or the finding that it breaks, "" for a control.
        file: path in the tree.
        old: text that occurs exactly once in the file.
        new: what takes its place.
        killer: pytest id of the test that fails on it; of a survivor, the test that must pass.
        survives: why no test can tell it apart, or what makes it a control; "" for a mutant.
        build: key of BUILDS, "" where the tests read the file itself.
        on_device: pytest id of the test that fails on it on a GPU, "" where none is named.
    """

    name: str
    rule: str
    file: str
    old: str
    new: str
    killer: str
    survives: str = ""
    build: str = ""
    on_device: str = ""

    @property
    def title(self) -> str:
        """Rule and name, as they are printed."""
        return f"{self.rule}: {self.name}" if self.rule else self.name

    def problems(self, root: Path) -> Iterator[str]:
        """Why the row does not fit a tree."""
        path = root / self.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        count = text.count(self.old)
        if count != 1:
            yield f"{self.file} holds the old text {count} times, expected once"
        if self.old == self.new:
            yield "old and new text are the same"
        if not self.rule and not self.survives:
            yield "a mutant names the rule that it breaks"
        if self.build and self.build not in BUILDS:
            yield f"unknown build {self.build!r}; known: {', '.join(BUILDS)}"
        for test in filter(None, (self.killer, self.on_device)):
            if not _is_test(root, test):
                yield f"there is no test {test}"
        if self.on_device and not self.on_device.startswith(DEVICE_TESTS):
            yield f"on_device names a test of {DEVICE_TESTS}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one mutant.

    Attributes:
        mutant: the row.
        state: killed, survived, error or not run.
        detail: the killer's message, or what went wrong.
        seconds: how long it took.
    """

    mutant: Mutant
    state: str
    detail: str
    seconds: float

    @property
    def right(self) -> bool:
        """Whether the matrix says so."""
        return self.state == ("survived" if self.mutant.survives else "killed")


def _is_test(root: Path, killer: str) -> bool:
    """Whether a test module defines the function that a pytest id names."""
    path, _, name = killer.partition("[")[0].partition("::")
    source = root / path
    if not source.is_file():
        return False
    module = ast.parse(source.read_text(encoding="utf-8"))
    return any(isinstance(node, ast.FunctionDef) and node.name == name for node in module.body)


# --- the matrix ----------------------------------------------------------------------------------


def load(root: Path) -> tuple[Mutant, ...]:
    """Read the matrix and check that it fits the tree.

    Raises:
        UnusableError: it does not; the message lists every problem.
    """
    found, problems = [], []
    for path in sorted((root / TABLES).glob("*.toml")):
        for row in read_toml(path).get("mutant", []):
            where = f"{path.name}: {row.get('name', row)}"
            if not {"name", "file", "old", "new", "killer"} <= row.keys() <= KEYS:
                problems.append(f"{where}: expected the keys {', '.join(sorted(KEYS))}")
                continue
            mutant = Mutant(**{"rule": "", **row})
            problems += [f"{where}: {problem}" for problem in mutant.problems(root)]
            found.append(mutant)
    names = Counter(mutant.name for mutant in found)
    problems += [
        f"the name {name!r} occurs {count} times" for name, count in names.items() if count > 1
    ]
    if problems:
        raise UnusableError("\n".join([f"{len(problems)} rows do not fit the tree:", *problems]))
    if not found:
        raise UnusableError(f"no mutant in {TABLES}/*.toml")
    return tuple(found)


def choose(
    matrix: Sequence[Mutant], only: str, seed: str | None, count: int | None
) -> tuple[Mutant, ...]:
    """The rows to run, in the matrix's order: all, those with a word in them, some by a seed."""
    named = [each for each in matrix if only in f"{each.name} {each.rule} {each.file}"]
    if count is None or count >= len(named):
        return tuple(named)
    picked = random.Random(seed).sample(range(len(named)), count)  # noqa: S311 - no secret
    return tuple(named[index] for index in sorted(picked))


def on_device(matrix: Iterable[Mutant]) -> tuple[Mutant, ...]:
    """The rows that name a killer on a GPU, with it as their killer."""
    return tuple(replace(each, killer=each.on_device) for each in matrix if each.on_device)


# --- running -------------------------------------------------------------------------------------


def copy_tree(root: Path, folder: Path) -> Path:
    """Copy what git tracks or would track, as it is in the working tree."""
    names = Git(root).names("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in names:
        source, target = root / name, folder / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    return folder


def _run(tree: Path, *arguments: str) -> tuple[int, str]:
    """Run Python in a tree; exit code and output, -1 where it took too long."""
    # Without bytecode no stale file can hide a change as long and as old as what it replaces.
    kept = {key: value for key, value in os.environ.items() if key != "PYTEST_ADDOPTS"}
    environ = {**kept, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tree,
            env=environ,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return -1, f"not finished after {TIMEOUT_SECONDS} s"
    return done.returncode, done.stdout + done.stderr


def _pytest(tree: Path, *arguments: str) -> tuple[int, str, Mapping[str, int], str]:
    """Run pytest; exit code, output, counts, and the first failure's message."""
    junit = tree / "junit.xml"
    junit.unlink(missing_ok=True)
    options = ("-q", "--no-header", "-p", "no:cacheprovider", f"--junitxml={junit}")
    code, output = _run(tree, "-m", "pytest", *options, *arguments)
    counts, message = Counter[str](), ""
    if junit.exists():
        root = ET.parse(junit).getroot()  # noqa: S314 - pytest wrote it just now
        for suite in root.iter("testsuite"):
            counts.update({key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors")})
            counts["skipped"] += int(suite.get("skipped", 0))
        first = next(root.iter("failure"), None)
        message = "" if first is None else str(first.get("message")).strip()
    return code, output, counts, message


def baseline(tree: Path, mutants: Sequence[Mutant], jobs: int) -> list[str]:
    """Run every killer on the tree as it is; return what is wrong with any."""
    killers = list(dict.fromkeys(mutant.killer for mutant in mutants))
    code, output, counts, _ = _pytest(tree, "-rfEs", "-n", str(jobs), *killers)
    if code == PASS and not counts["skipped"]:
        return []
    named = [
        line for line in output.splitlines() if line.startswith(("FAILED", "ERROR", "SKIPPED"))
    ]
    told = "\n".join(named) or output[-3000:]
    return [f"killers do not pass without a mutant (exit {code}):\n{told}"]


def judge(tree: Path, mutant: Mutant) -> Verdict:
    """Make one mutant in a tree, run its killer, and put the tree back."""
    start = time.monotonic()
    path = tree / mutant.file
    before = path.read_bytes()
    after = before.decode("utf-8").replace(mutant.old, mutant.new).encode()
    path.write_bytes(after)
    try:
        state, detail = _built_and_tested(tree, mutant)
    finally:
        path.write_bytes(before)
    return Verdict(mutant, state, detail.replace(str(tree), "."), time.monotonic() - start)


def _built_and_tested(tree: Path, mutant: Mutant) -> tuple[str, str]:
    if not mutant.build:
        return _tested(tree, mutant)
    command, folder = BUILDS[mutant.build]
    saved = tree / "saved"
    shutil.copytree(tree / folder, saved)
    try:
        code, output = _run(tree, *command)
        return ("error", output[-2000:]) if code else _tested(tree, mutant)
    finally:
        shutil.rmtree(tree / folder)
        saved.rename(tree / folder)


def _tested(tree: Path, mutant: Mutant) -> tuple[str, str]:
    options = ("-x", "-p", "no:xdist", "--hypothesis-profile=unshrunk")
    code, output, counts, message = _pytest(tree, *options, mutant.killer)
    if code == TESTS_FAILED and counts["failures"] and not counts["errors"]:
        return "killed", message.splitlines()[0] if message else ""
    if code == PASS and counts["tests"] > counts["skipped"] == 0:
        return "survived", mutant.survives
    return "error", f"exit {code}: {output[-2000:]}"


def run_all(root: Path, mutants: Sequence[Mutant], jobs: int) -> list[Verdict]:
    """Judge mutants, `jobs` at a time, each job in a copy of the tree of its own.

    Raises:
        UnusableError: a killer fails on the tree as it is.
    """
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        trees: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(jobs):
            trees.put(copy_tree(root, Path(name) / str(number)))
        first = trees.get()
        wrong = baseline(first, mutants, jobs)
        if wrong:
            raise UnusableError("\n".join(wrong).replace(str(first), "."))
        trees.put(first)

        def work(mutant: Mutant) -> Verdict:
            tree = trees.get()
            try:
                verdict = judge(tree, mutant)
            finally:
                trees.put(tree)
            print(_line(verdict), flush=True)
            return verdict

        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(work, mutants))


def _line(verdict: Verdict) -> str:
    mutant = verdict.mutant
    mark = "ok " if verdict.right else "BAD"
    detail = "" if verdict.right else f"\n    {verdict.detail.strip()}"
    return (
        f"{mark} {verdict.state:8} {verdict.seconds:5.1f} s  {mutant.title}  "
        f"[{mutant.killer}]{detail}"
    )


# --- the result ----------------------------------------------------------------------------------


def counts_of(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """The counts of a tier result: a mutant for a test."""
    right = sum(each.right for each in verdicts)
    errors = sum(each.state == "error" for each in verdicts)
    return {
        "tests": len(verdicts),
        "passed": right,
        "failures": len(verdicts) - right - errors,
        "errors": errors,
        "skipped": 0,
        "killed": sum(each.state == "killed" for each in verdicts),
        "survived": sum(each.state == "survived" for each in verdicts),
    }


def document(verdicts: Sequence[Verdict], arguments: argparse.Namespace) -> dict[str, Any]:
    """The report."""
    return {
        "schema": SCHEMA,
        "seed": arguments.seed,
        "count": arguments.count,
        "counts": counts_of(verdicts),
        "mutants": [
            {
                **{key: value for key, value in asdict(each.mutant).items() if value},
                "state": each.state,
                "detail": each.detail,
                "seconds": round(each.seconds, 1),
            }
            for each in verdicts
        ],
    }


def has_gpu(root: Path) -> bool:
    """Whether torch sees a CUDA device."""
    return _run(root, "-c", "import sys, torch; sys.exit(not torch.cuda.is_available())")[0] == 0


def _action(arguments: argparse.Namespace) -> int:
    root = arguments.root.resolve()
    matrix = on_device(load(root)) if arguments.device else load(root)
    mutants = choose(matrix, arguments.only, arguments.seed, arguments.count)
    if arguments.list or not mutants:
        for mutant in mutants:
            print(f"{mutant.title}  [{mutant.killer}]")
        print(f"run_mutants: {len(mutants)} rows")
        return PASS if mutants else INCONCLUSIVE
    if arguments.device and not has_gpu(root):
        write_json(arguments.report, {"schema": SCHEMA, "counts": {}, "reason": NO_GPU})
        raise InconclusiveError(NO_GPU)
    print(f"run_mutants: {len(mutants)} of {len(matrix)} rows, seed {arguments.seed}", flush=True)
    verdicts = run_all(root, mutants, 1 if arguments.device else arguments.jobs)
    report = document(verdicts, arguments)
    write_json(arguments.report, report)
    counts = report["counts"]
    print(
        f"run_mutants: {counts['killed']} killed, {counts['survived']} survived, "
        f"{counts['errors']} errors; {counts['passed']} of {counts['tests']} as the matrix says"
    )
    if counts["errors"]:
        return UNUSABLE
    return FAIL if counts["failures"] else PASS


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="run_mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", default="0", help="any text; chooses among the mutants")
    parser.add_argument("--count", type=int, help="how many to choose; all if left out")
    parser.add_argument("--only", default="", help="rows with this in name, rule or file")
    parser.add_argument("--list", action="store_true", help="say which rows would run")
    parser.add_argument("--device", action="store_true", help="on the GPU, one at a time")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time; one a core"
    )
    parser.add_argument("--report", type=Path, default=REPORT, help="where the report goes")
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree")
    arguments = parser.parse_args(argv)
    return guarded(parser.prog, lambda: _action(arguments))


if __name__ == "__main__":
    raise SystemExit(main())

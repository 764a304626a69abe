"""Run the jobs of ci.yml on this machine, step by step as the workflow states them.

    python tools/run_ci.py [JOB ...]

The jobs run in a clone of HEAD below MMAEMU_CI_DIR (default: a temporary folder), with a virtual
environment in place of each runner. The matrix shrinks to the running Python and to the torch
versions of MMAEMU_CI_TORCH (default: the one that nox uses). Exit 3 where a step has no
counterpart here.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from files import ROOT
from findings import FAIL, INCONCLUSIVE, PASS, UnusableError, guarded
from git_commands import Git
from project import load_project
from workflows import Job, Step, Workflow, load, table_of

WORKFLOW: Final = "ci.yml"
# What stands in for an action: the clone is the checkout, the virtual environment the Python.
HANDLED: Final = frozenset({"actions/checkout", "actions/setup-python"})
_EXPRESSION: Final = re.compile(r"\$\{\{\s*(\w+)\.(\w+)\s*\}\}")


@dataclass(frozen=True, slots=True)
class Point:
    """One job at one point of its matrix.

    Attributes:
        job: the job.
        matrix: value of every matrix key, empty for a job without matrix.
    """

    job: Job
    matrix: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name for messages."""
        values = ", ".join(f"{key} {value}" for key, value in self.matrix.items())
        return f"{self.job.name} ({values})" if values else self.job.name


def points(flow: Workflow, names: Sequence[str], torches: Sequence[str]) -> list[Point]:
    """The jobs to run, spread over the part of their matrix that this machine can run.

    Args:
        flow: the workflow.
        names: jobs asked for, empty for all.
        torches: torch versions to use.

    Raises:
        UnusableError: an unknown job, or a matrix without the running Python.
    """
    known = {job.name: job for job in flow.jobs}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UnusableError(
            f"{WORKFLOW} has no job {', '.join(unknown)}; it has {', '.join(known)}"
        )
    chosen = [known[name] for name in names or known]
    return [point for job in chosen for point in _spread(job, torches)]


def _spread(job: Job, torches: Sequence[str]) -> list[Point]:
    matrix = table_of(table_of(job.table.get("strategy")).get("matrix"))
    if not matrix:
        return [Point(job)]
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    if running not in matrix.get("python", []):
        raise UnusableError(
            f"{job.where}: Python {running} runs here, the matrix has {matrix.get('python')}"
        )
    return [Point(job, {"python": running, "torch": torch}) for torch in torches]


def resolve(text: str, matrix: dict[str, str]) -> str:
    """Replace `${{ matrix.X }}` and `${{ vars.X }}` (from the environment, else empty).

    Raises:
        UnusableError: another expression.
    """

    def value(found: re.Match[str]) -> str:
        context, key = found.groups()
        if context == "matrix" and key in matrix:
            return matrix[key]
        if context == "vars":
            return os.environ.get(key, "")
        raise UnusableError(f"{WORKFLOW}: {found[0]} has no value on this machine")

    resolved = _EXPRESSION.sub(value, text)
    if "${{" in resolved:
        raise UnusableError(f"{WORKFLOW}: {text} is beyond what runs on this machine")
    return resolved


def run_point(point: Point, flow: Workflow, clone: Path, scratch: Path) -> int:
    """Run every step of a job; the first failure ends it.

    Returns:
        0 all steps ran and passed, 1 one failed, 3 one has no counterpart here.
    """
    print(f"== {point.name}", flush=True)
    environment = _environment(point, flow, scratch)
    result = PASS
    for step in point.job.steps:
        if step.uses:
            if step.action not in HANDLED:
                print(f"-- {step.uses}: not run, it has no counterpart here", flush=True)
                result = INCONCLUSIVE
            continue
        if _run_step(step, point, clone, environment):
            return FAIL
    return result


def _run_step(step: Step, point: Point, clone: Path, environment: dict[str, str]) -> int:
    extra = {
        key: resolve(str(value), point.matrix)
        for key, value in table_of(step.table.get("env")).items()
    }
    for command in step.commands:
        print(f"-- {command}", flush=True)
    # What the runner does with a step: its lines as one bash script, stopped by the first failure.
    code = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", "\n".join(step.commands)],
        cwd=clone,
        env=environment | extra,
        check=False,
    ).returncode
    if code:
        print(f"-- exited with {code}", flush=True)
    return code


def _environment(point: Point, flow: Workflow, scratch: Path) -> dict[str, str]:
    """The caller's environment with a fresh virtual environment first on PATH."""
    folder = scratch / "python" / re.sub(r"[^\w.]+", "-", point.name)
    if not folder.exists():
        venv.create(folder, with_pip=True)
    scripts = folder / ("Scripts" if sys.platform == "win32" else "bin")
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    stated = {
        key: resolve(str(value), point.matrix)
        for table in (flow.table, point.job.table)
        for key, value in table_of(table.get("env")).items()
    }
    path = f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}"
    # An empty variable is one that is not set: a workflow cannot leave out a key.
    return kept | {k: v for k, v in stated.items() if v} | {"PATH": path, "CI": "true"}


def _torches(root: Path) -> list[str]:
    asked = os.environ.get("MMAEMU_CI_TORCH", "").split()
    matrix = load_project(root).table("matrix")
    known = matrix.get("torch", {})
    unknown = [version for version in asked if version not in known.values()]
    if unknown:
        raise UnusableError(
            f"MMAEMU_CI_TORCH names {', '.join(unknown)}; the matrix has "
            f"{', '.join(known.values())}"
        )
    return asked or [known.get(matrix.get("default"), "")]


def _run_all(root: Path, names: Sequence[str], scratch: Path) -> int:
    flow = load(root).get(WORKFLOW)
    if flow is None:
        raise UnusableError(f"there is no {WORKFLOW}")
    chosen = points(flow, names, _torches(root))
    git = Git(root)
    commit = git.line("rev-parse", "HEAD")
    clone = scratch / f"clone-{commit[:12]}"
    if not clone.exists():
        git.run("clone", "--quiet", "--no-local", str(root), str(clone))
    if git.run("status", "--porcelain", "-z"):
        print("run_ci: changes that are not committed take no part")
    codes = {point.name: run_point(point, flow, clone, scratch) for point in chosen}
    for name, code in codes.items():
        print(f"{name}: {({PASS: 'pass', FAIL: 'fail'}).get(code, 'not complete')}")
    return FAIL if FAIL in codes.values() else max(codes.values())


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="run_ci", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("jobs", nargs="*", help="jobs of ci.yml; all where none is named")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    arguments = parser.parse_args(argv)

    def action() -> int:
        folder = os.environ.get("MMAEMU_CI_DIR")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            return _run_all(arguments.root.resolve(), arguments.jobs, Path(folder).resolve())
        with tempfile.TemporaryDirectory(prefix="ci-") as temporary:
            return _run_all(arguments.root.resolve(), arguments.jobs, Path(temporary))

    return guarded(parser.prog, action)


if __name__ == "__main__":
    raise SystemExit(main())

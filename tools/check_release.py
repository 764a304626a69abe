"""Check that the tree is the release that it says: versions, tiers, citation, pages.

    python tools/check_release.py [--version X.Y.Z] [--matrix MATRIX.json] [--junit XML ...]
        [--device-not-run TIER=REASON]

Tier results are judged by the rules of tools/tier_results.py. MATRIX.json is a run of ci.yml as the
hosting service's client prints it (`gh run view ID --json headSha,jobs`): the commit, and the name
and conclusion of every job. Its commit may be a snapshot: what counts is the tree.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import check_docs
import tier_results
import workflows
from files import ROOT
from findings import Outcome, Rule, SkipRule, UnusableError, apply_rules, run
from git_commands import Git
from project import (
    REFERENCE,
    Project,
    add_waivers,
    fragments,
    load_project,
    pairing_of,
)

CITATION: Final = "CITATION.cff"
WORKFLOW: Final = "ci.yml"
CHANGELOG: Final = "CHANGELOG.md"
CFFCONVERT: Final = "cffconvert==2.0.0"
Problems = Iterator[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that the release state consists of.

    Attributes:
        project: names and places.
        versions: the version that each file states, None where it states none.
        wanted: the version asked for, if any.
        left: changelog fragments that are left.
        matrix: conclusion of each job of a run of ci.yml, None where it was not given.
        points: names of the jobs that ci.yml has, one for every point of the matrix.
        matrix_changed: files that changed since that run, None where that is unknown.
        citation: exit status and output of the citation check.
    """

    project: Project
    versions: dict[str, str | None]
    wanted: str | None
    left: tuple[str, ...]
    matrix: dict[str, str] | None
    points: tuple[str, ...]
    matrix_changed: tuple[str, ...] | None
    citation: tuple[int, str]


def _versions(facts: Facts) -> Problems:
    stated = facts.wanted or facts.project.version
    for where, version in facts.versions.items():
        if version != stated:
            yield where, f"says {version or 'no version'}, expected {stated}; run `invoke version`"


def _fragments(facts: Facts) -> Problems:
    for name in facts.left:
        yield name, "a changelog fragment is left; run `invoke version`"


def _citation(facts: Facts) -> Problems:
    code, output = facts.citation
    if code:
        lines = output.strip().splitlines()
        yield CITATION, f"cffconvert exits with {code}: {lines[-1] if lines else 'no output'}"


def _matrix(facts: Facts) -> Problems:
    if facts.matrix is None:
        raise SkipRule("give --matrix MATRIX.json, the result of ci.yml", required=True)
    for name in facts.points:
        conclusion = facts.matrix.get(name, "missing")
        if conclusion != "success":
            yield "ci.yml", f"job {name} is {conclusion}, expected success"
    stale = tier_results.stale_by(facts.matrix_changed, facts.project)
    if stale:
        yield "ci.yml", f"{stale}; run again"


RULES: Final[tuple[Rule[Facts], ...]] = (
    Rule("REL101", "Every file that states the version states the same one.", _versions),
    Rule("REL102", "No changelog fragment is left.", _fragments),
    Rule("REL103", "CITATION.cff is valid for cffconvert 2.0.0.", _citation),
    Rule("REL205", "ci.yml passed at every point of the matrix, for this code.", _matrix),
)


def validate_citation(path: Path, environments: Path) -> tuple[int, str]:
    """Run cffconvert 2.0.0 on a citation file, in a virtual environment of its own.

    Args:
        path: the file.
        environments: where the environment is kept for the next time.

    Returns:
        Exit status and output.

    Raises:
        UnusableError: cffconvert cannot be installed.
    """
    folder = environments / CFFCONVERT
    scripts = folder / ("Scripts" if sys.platform == "win32" else "bin")
    if not (scripts / "cffconvert").exists():
        venv.create(folder, with_pip=True, clear=True)
        install = [str(scripts / "python"), "-m", "pip", "install", "--quiet", CFFCONVERT]
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UnusableError(f"cannot install {CFFCONVERT}: {done.stderr.strip()[-500:]}")
    command = [str(scripts / "cffconvert"), "--validate", "-i", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def _stated_versions(project: Project) -> dict[str, str | None]:
    def text(name: str) -> str:
        path = project.root / name
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    def first(pattern: str, name: str) -> str | None:
        found = re.search(pattern, text(name), re.MULTILINE)
        return found[1] if found else None

    return {
        project.version_file: project.version,
        CITATION: first(r'^version: "([^"]+)"$', CITATION),
        CHANGELOG: first(r"^## (\S+) \(\d{4}-\d\d-\d\d\)$", CHANGELOG),
        REFERENCE: pairing_of(text(REFERENCE)).get(project.name),
    }


def _job_names(flow: workflows.Workflow) -> tuple[str, ...]:
    """The names that the hosting service gives to the jobs of a workflow."""
    names: list[str] = []
    for job in flow.jobs:
        matrix = workflows.table_of(workflows.table_of(job.table.get("strategy")).get("matrix"))
        points = itertools.product(*matrix.values()) if matrix else ((),)
        names += [f"{job.name} ({', '.join(point)})" if point else job.name for point in points]
    return tuple(names)


def _json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnusableError(f"cannot read {path}: {error}") from error
    if not isinstance(document, dict):
        raise UnusableError(f"{path} must hold a JSON object")
    return document


def load_facts(root: Path, wanted: str | None, matrix: Path | None) -> Facts:
    """Read the release state of a tree.

    Args:
        root: the repository.
        wanted: the version that the maintainer expects, if any.
        matrix: result of ci.yml, if any.
    """
    project, git = load_project(root), Git(root)
    result = _json(matrix) if matrix else None
    return Facts(
        project=project,
        versions=_stated_versions(project),
        wanted=wanted,
        left=tuple(path.relative_to(root).as_posix() for path in fragments(root)),
        matrix=result and {job["name"]: job["conclusion"] for job in result.get("jobs", [])},
        points=_job_names(workflows.load(root)[WORKFLOW]),
        matrix_changed=tier_results.differing(git, str((result or {}).get("headSha", ""))),
        citation=validate_citation(root / CITATION, root / "build" / "environments"),
    )


def _check(arguments: argparse.Namespace) -> Outcome:
    waivers = dict(arguments.device_not_run)
    root = arguments.root.resolve()
    outcome = apply_rules(RULES, load_facts(root, arguments.version, arguments.matrix))
    outcome += tier_results.check(root, waivers, version=arguments.version)
    return outcome + apply_rules(check_docs.RULES, check_docs.load_facts(root, arguments.junit))


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="check_release",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", help="the version that every file must state")
    parser.add_argument("--matrix", type=Path, help="the result of ci.yml")
    parser.add_argument(
        "--junit", type=Path, nargs="+", default=[], help="JUnit reports, build/tiers/*.xml"
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    add_waivers(parser)
    return run(parser, _check, argv)


if __name__ == "__main__":
    raise SystemExit(main())

"""Check that the tree is the release that it says: versions, tiers, citation, pages.

    python tools/check_release.py [--version X.Y.Z] [--matrix MATRIX.json] [--junit XML ...]
        [--device-not-run TIER=REASON]

Tier results are read from docs/validation_logs/<date>/<tier>/<tier>.json; one counts for HEAD if
nothing but records changed since its commit. MATRIX.json is a run of ci.yml as the hosting
service's client prints it (`gh run view ID --json headSha,jobs`): the commit, and the name and
conclusion of every job. Its commit may be a snapshot: what counts is the tree.
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
import workflows
from files import ROOT
from findings import Outcome, Rule, SkipRule, UnusableError, apply_rules, run
from git_commands import Git
from project import (
    REFERENCE,
    Project,
    add_waivers,
    changelog_section,
    fragments,
    load_project,
    pairing_of,
)

LOGS: Final = "docs/validation_logs"
CITATION: Final = "CITATION.cff"
WORKFLOW: Final = "ci.yml"
CHANGELOG: Final = "CHANGELOG.md"
# Files that say something about a result and cannot change one.
RECORDS: Final = ("docs/", "changelog.d/")
RECORD_FILES: Final = frozenset(
    {CHANGELOG, CITATION, REFERENCE, "lkg.version", "verified_commits.csv"}
)
CFFCONVERT: Final = "cffconvert==2.0.0"
PASSED: Final = "pass"
Problems = Iterator[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class TierResult:
    """The newest committed result of a tier.

    Attributes:
        where: path of the file.
        commit: what it ran on; `dirty` whether tracked files differed from it.
        parts: status and reason of the host and the device part.
        changed: files that changed between that commit and HEAD, None where that is unknown.
    """

    where: str
    commit: str
    dirty: bool
    parts: dict[str, dict[str, Any]]
    changed: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that the release state consists of.

    Attributes:
        project: names and places.
        versions: the version that each file states, None where it states none.
        wanted: the version asked for, if any.
        left: changelog fragments that are left.
        changelog: CHANGELOG.md.
        validation: docs/validation.md, "" where it is missing.
        tiers: newest result of each tier that has one; `needed` those that must have one.
        waivers: tiers whose device part was not run, with the reason.
        matrix: conclusion of each job of a run of ci.yml, None where it was not given.
        points: names of the jobs that ci.yml has, one for every point of the matrix.
        matrix_changed: as in TierResult, for that run.
        citation: exit status and output of the citation check.
    """

    project: Project
    versions: dict[str, str | None]
    wanted: str | None
    left: tuple[str, ...]
    changelog: str
    validation: str
    tiers: dict[str, TierResult]
    needed: tuple[str, ...]
    waivers: dict[str, str]
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


def _tiers_present(facts: Facts) -> Problems:
    for tier in facts.needed:
        if tier not in facts.tiers:
            yield (
                f"{LOGS}/<date>/{tier}/{tier}.json",
                f"no committed result; run `nox -s {tier} -- --commit-log` and commit it",
            )


def _tiers_pass(facts: Facts) -> Problems:
    for tier in facts.needed:
        result = facts.tiers.get(tier)
        if result is None:
            continue
        if not result.parts:
            yield result.where, "the result has no parts, so nothing ran"
        for name, part in result.parts.items():
            if part.get("status") != PASSED and not _waived(facts, tier, name, part):
                yield (
                    result.where,
                    f"{name} part is {part.get('status')} ({part.get('reason') or 'no reason'}), "
                    f"expected {PASSED}",
                )


def _waived(facts: Facts, tier: str, name: str, part: dict[str, Any]) -> bool:
    """Whether a device part that did not run is accepted; one that failed never is."""
    named = tier in facts.waivers or tier.upper() in facts.waivers
    return name == "device" and part.get("status") == "not-run" and named


def _tiers_count(facts: Facts) -> Problems:
    for tier in facts.needed:
        result = facts.tiers.get(tier)
        if result is not None:
            yield from _counts_for_head(result.where, result.changed, facts.project)
            if result.dirty:
                yield result.where, "the tree was not the commit that the result names; run again"


def _counts_for_head(where: str, changed: tuple[str, ...] | None, project: Project) -> Problems:
    if changed is None:
        yield where, "its commit is not to be found in the history of HEAD; run again"
        return
    allowed = RECORD_FILES | {project.version_file}
    for name in changed:
        if name not in allowed and not name.startswith(RECORDS):
            yield where, f"{name} changed since; run again"
            return


def _waivers_stated(facts: Facts) -> Problems:
    section = changelog_section(facts.changelog, facts.wanted or facts.project.version)
    texts = {CHANGELOG: section[1] if section else "", "docs/validation.md": facts.validation}
    for tier, reason in facts.waivers.items():
        for where, text in texts.items():
            if reason not in text:
                yield where, f"does not say that {tier} was not run on a device: {reason}"


def _matrix(facts: Facts) -> Problems:
    if facts.matrix is None:
        raise SkipRule("give --matrix MATRIX.json, the result of ci.yml", required=True)
    for name in facts.points:
        conclusion = facts.matrix.get(name, "missing")
        if conclusion != "success":
            yield "ci.yml", f"job {name} is {conclusion}, expected success"
    yield from _counts_for_head("ci.yml", facts.matrix_changed, facts.project)


RULES: Final[tuple[Rule[Facts], ...]] = (
    Rule("REL101", "Every file that states the version states the same one.", _versions),
    Rule("REL102", "No changelog fragment is left.", _fragments),
    Rule("REL103", "CITATION.cff is valid for cffconvert 2.0.0.", _citation),
    Rule("REL201", "Every required tier has a committed result.", _tiers_present),
    Rule("REL202", "Every part of every required tier passes.", _tiers_pass),
    Rule("REL203", "Only records changed since each tier ran.", _tiers_count),
    Rule("REL204", "What was not run on a device is stated with its reason.", _waivers_stated),
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


def _differing(git: Git, commit: str) -> tuple[str, ...] | None:
    """Files that differ between a commit and HEAD; None where the commit is unknown here."""
    if not commit or git.find("cat-file", "-e", f"{commit}^{{commit}}") is None:
        return None
    return git.names("diff", "--name-only", "-z", "--no-renames", commit, "HEAD")


def _changed_since(git: Git, commit: str) -> tuple[str, ...] | None:
    """Files that differ between an ancestor and HEAD; None where it is no ancestor."""
    if not commit or git.find("merge-base", "--is-ancestor", commit, "HEAD") is None:
        return None
    return _differing(git, commit)


def _tiers(project: Project, git: Git) -> dict[str, TierResult]:
    """The newest committed result of each tier (by the time in it, not by the folder's name)."""
    newest: dict[str, tuple[str, TierResult]] = {}
    tracked = git.names("ls-files", "-z", f"{LOGS}/*/*/*.json")
    for name in tracked:
        path = Path(name)
        if path.stem != path.parent.name:
            continue
        document = _json(project.root / name)
        result = TierResult(
            where=name,
            commit=str(document.get("commit", "")),
            dirty=document.get("dirty") is not False,
            parts=document.get("parts", {}),
            changed=_changed_since(git, str(document.get("commit", ""))),
        )
        at = str(document.get("finished_at", ""))
        if path.stem not in newest or at > newest[path.stem][0]:
            newest[path.stem] = (at, result)
    return {tier: result for tier, (_, result) in newest.items()}


def _json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnusableError(f"cannot read {path}: {error}") from error
    if not isinstance(document, dict):
        raise UnusableError(f"{path} must hold a JSON object")
    return document


def load_facts(
    root: Path, wanted: str | None, matrix: Path | None, waivers: dict[str, str]
) -> Facts:
    """Read the release state of a tree.

    Args:
        root: the repository.
        wanted: the version that the maintainer expects, if any.
        matrix: result of ci.yml, if any.
        waivers: tiers whose device part was not run, with the reason.
    """
    project, git = load_project(root), Git(root)
    validation = root / "docs" / "validation.md"
    changelog = root / CHANGELOG
    result = _json(matrix) if matrix else None
    return Facts(
        project=project,
        versions=_stated_versions(project),
        wanted=wanted,
        left=tuple(path.relative_to(root).as_posix() for path in fragments(root)),
        changelog=changelog.read_text(encoding="utf-8") if changelog.is_file() else "",
        validation=validation.read_text(encoding="utf-8") if validation.is_file() else "",
        tiers=_tiers(project, git),
        needed=tuple(project.table("release").get("tiers", ())),
        waivers=waivers,
        matrix=result and {job["name"]: job["conclusion"] for job in result.get("jobs", [])},
        points=_job_names(workflows.load(root)[WORKFLOW]),
        matrix_changed=_differing(git, str((result or {}).get("headSha", ""))),
        citation=validate_citation(root / CITATION, root / "build" / "environments"),
    )


def _check(arguments: argparse.Namespace) -> Outcome:
    waivers = dict(arguments.device_not_run)
    root = arguments.root.resolve()
    facts = load_facts(root, arguments.version, arguments.matrix, waivers)
    pages = check_docs.load_facts(root, arguments.junit)
    return apply_rules(RULES, facts) + apply_rules(check_docs.RULES, pages)


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

"""Check the committed results of the test tiers: whether each passes, counts for HEAD and is whole.

    python tools/tier_results.py [--tier t3 ...] [--device-not-run TIER=REASON]

Read are the results of HEAD, docs/validation_logs/<date>/<name>/<name>.json, never the working
tree's. One counts for HEAD if nothing but records changed since its commit. Of several results of a
part the newest that counts decides. The tiers are those of [tool.mmaemu.release] if none is named.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from files import ROOT, sha256_of
from findings import Outcome, Rule, UnusableError, apply_rules, run
from git_commands import Git
from project import Project, add_waivers, changelog_section, is_record, load_project
from tier import COUNTS, SCHEMA, SEAL, TIERS, seal

LOGS: Final = "docs/validation_logs"
REPORTS: Final = "docs/release_logs"
CHANGELOG: Final = "CHANGELOG.md"
VALIDATION: Final = "docs/validation.md"
PASSED: Final = "pass"
NOT_RUN: Final = "not-run"
Problems = Iterator[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Result:
    """One committed result.

    Attributes:
        where: path of the file.
        document: its content.
        tampered: what shows that result, log and reports do not belong together.
        stale: why it does not count for HEAD, "" where it does.
    """

    where: str
    document: Mapping[str, Any]
    tampered: tuple[str, ...]
    stale: str

    @property
    def tier(self) -> str:
        """Name of the tier."""
        return str(self.document.get("tier"))

    @property
    def parts(self) -> Mapping[str, Mapping[str, Any]]:
        """The parts by name."""
        found: Mapping[str, Mapping[str, Any]] = self.document.get("parts", {})
        return found


@dataclass(frozen=True, slots=True)
class Facts:
    """The committed results and what has to be said about them.

    Attributes:
        results: all of them.
        needed: tiers that must have one.
        waivers: tiers whose device part was not run, with the reason.
        skips: reasons for which a test may have been skipped.
        texts: the section of the changelog and the page on validation, by path.
        rewritten: reports of releases that some commit changed or removed.
    """

    results: tuple[Result, ...]
    needed: tuple[str, ...]
    waivers: Mapping[str, str]
    skips: frozenset[str]
    texts: Mapping[str, str]
    rewritten: tuple[str, ...]

    def deciding(self) -> Iterator[tuple[str, str, Result | None]]:
        """Every part of every needed tier with the result that decides it."""
        for tier in self.needed:
            for part in TIERS[tier].parts:
                found = [each for each in self.results if each.tier == tier and part in each.parts]
                yield tier, part, max(found, key=_weight(part), default=None)

    def waived(self, tier: str, part: str, entry: Mapping[str, Any]) -> bool:
        """Whether a device part that did not run is accepted; one that failed never is."""
        return part == "device" and entry.get("status") == NOT_RUN and tier in self.waivers


def _weight(part: str) -> Callable[[Result], tuple[bool, bool, bool, str]]:
    """The order of results: one that counts, a whole one, one that ran, the newer one."""
    return lambda result: (
        not result.stale,
        not result.document.get("arguments"),
        result.parts[part].get("status") != NOT_RUN,
        str(result.document.get("finished_at", "")),
    )


def _present(facts: Facts) -> Problems:
    for tier, part, result in facts.deciding():
        if result is None:
            yield (
                f"{LOGS}/<date>/{tier}/{tier}.json",
                f"no committed result has a {part} part; "
                f"run `nox -s {tier} -- --commit-log` and commit it",
            )


def _pass(facts: Facts) -> Problems:
    for tier, part, result in facts.deciding():
        if result is None:
            continue
        entry = result.parts[part]
        if entry.get("status") != PASSED and not facts.waived(tier, part, entry):
            yield (
                result.where,
                f"{part} part is {entry.get('status')} ({entry.get('reason') or 'no reason'}), "
                f"expected {PASSED}",
            )


def _count_for_head(facts: Facts) -> Problems:
    told = {each.where: each.stale for _, _, each in facts.deciding() if each and each.stale}
    for where, stale in told.items():
        yield where, f"{stale}; run again"


def _stated(facts: Facts) -> Problems:
    for tier, reason in facts.waivers.items():
        for where, text in facts.texts.items():
            if reason not in text:
                yield where, f"does not say that {tier} was not run on a device: {reason}"
    for tier, part, result in facts.deciding():
        entry = result.parts[part] if result else {}
        said = entry.get("acknowledged")
        if result and facts.waived(tier, part, entry) and said != facts.waivers[tier]:
            yield (
                result.where,
                f"acknowledges {said!r}, expected {facts.waivers[tier]!r}; "
                f"run {tier} with the same --device-not-run",
            )


def _whole(facts: Facts) -> Problems:
    for result in facts.results:
        if result.tier in facts.needed:
            for problem in result.tampered:
                yield result.where, f"{problem}; run again and commit what it writes"


def _complete(facts: Facts) -> Problems:
    for _, part, result in facts.deciding():
        entry = result.parts[part] if result else {}
        if result and entry.get("status") == PASSED:
            for problem in _incomplete(result, entry, facts.skips):
                yield result.where, f"{part} part says {PASSED}, but {problem}"


def _incomplete(result: Result, entry: Mapping[str, Any], accepted: frozenset[str]) -> list[str]:
    """What is missing from a part that says that it passed."""
    counts = entry.get("counts", {})
    tests, passed, failures, errors, skipped = (int(counts.get(key, 0)) for key in COUNTS)
    skips: Mapping[str, int] = entry.get("skips", {})
    others = [reason for reason in skips if reason not in accepted]
    arguments = " ".join(result.document.get("arguments", ["(unknown)"]))
    problems = {
        "nothing passed": passed <= 0,
        f"{failures} failed and {errors} ended in errors": failures + errors > 0,
        f"{tests} tests are not {passed} passed and {skipped} skipped": tests != passed + skipped,
        f"{skipped} were skipped without a reason": skipped != sum(skips.values()),
        f"tests were skipped: {'; '.join(others)}": bool(others),
        f"only a part ran ({arguments})": bool(arguments),
    }
    return [text for text, holds in problems.items() if holds]


def _kept(facts: Facts) -> Problems:
    for name in facts.rewritten:
        yield name, "a commit changed or removed this report; restore it, reports are only added"


RULES: Final[tuple[Rule[Facts], ...]] = (
    Rule("REL201", "Every part of every required tier has a committed result.", _present),
    Rule("REL202", "Every part of every required tier passes.", _pass),
    Rule("REL203", "Only records changed since each tier ran.", _count_for_head),
    Rule("REL204", "What was not run on a device is stated with its reason.", _stated),
    Rule("REL206", "Result, log and reports are what one run wrote.", _whole),
    Rule("REL207", "A part that passes ran all of its tests.", _complete),
    Rule("REL208", "No report of a release was ever changed or removed.", _kept),
)


# --- facts ---------------------------------------------------------------------------------------


def differing(git: Git, commit: str) -> tuple[str, ...] | None:
    """Files that differ between a commit and HEAD; None where the commit is unknown here."""
    if not commit or git.find("cat-file", "-e", f"{commit}^{{commit}}") is None:
        return None
    return git.names("diff", "--name-only", "-z", "--no-renames", commit, "HEAD")


def stale_by(changed: tuple[str, ...] | None, project: Project) -> str:
    """Why a result does not count: unknown files, or one that is no record; "" where it does."""
    if changed is None:
        return "its commit is not to be found in the history of HEAD"
    others = (name for name in changed if name != project.version_file and not is_record(name))
    first = next(others, None)
    return f"{first} changed since" if first else ""


def _stale(document: Mapping[str, Any], project: Project, git: Git) -> str:
    commit = str(document.get("commit", ""))
    if not commit or git.find("merge-base", "--is-ancestor", commit, "HEAD") is None:
        return stale_by(None, project)
    if document.get("dirty") is not False:
        return "the tree was not the commit that the result names"
    if document.get("tree") != git.find("rev-parse", f"{commit}^{{tree}}"):
        return "its tree is not that of its commit"
    return stale_by(differing(git, commit), project)


def _tampered(document: Mapping[str, Any], where: PurePosixPath, git: Git) -> tuple[str, ...]:
    """What shows that a result and the files beside it are not those of one run."""
    log = _blob(git, where.with_suffix(".log"))
    if log is None:
        return ("its log is missing",)
    problems = []
    if sha256_of(log) != document.get("log_sha256"):
        problems.append("its log is another one")
    last = log.decode("utf-8", "replace").rstrip("\n").rpartition("\n")[2]
    if last != f"{SEAL}{seal(document)}":
        problems.append("its log ends with the hash of another result")
    for name, digest in document.get("reports", {}).items():
        data = _blob(git, where.with_name(name))
        if data is None or sha256_of(data) != digest:
            problems.append(f"{name} is {'missing' if data is None else 'another one'}")
    return tuple(problems)


def _blob(git: Git, path: PurePosixPath) -> bytes | None:
    """A file of HEAD."""
    if git.find("cat-file", "-e", f"HEAD:{path}") is None:
        return None
    return git.run("cat-file", "blob", f"HEAD:{path}")


def committed(project: Project, git: Git) -> tuple[Result, ...]:
    """Every result of HEAD that has today's form."""
    found = []
    for name in git.names("ls-tree", "-r", "-z", "--name-only", "HEAD", f"{LOGS}/"):
        path = PurePosixPath(name)
        if path.suffix != ".json" or path.stem != path.parent.name:
            continue
        document = _json(name, git.run("cat-file", "blob", f"HEAD:{name}"))
        if document.get("schema") == SCHEMA:
            _refuse_other_shape(name, document)
            tampered = _tampered(document, path, git)
            found.append(Result(name, document, tampered, _stale(document, project, git)))
    return tuple(found)


def rewritten(git: Git) -> tuple[str, ...]:
    """Reports of releases that are not what they were when they were committed first."""
    history = ("log", "--no-renames", "--diff-merges=first-parent", "--format=", "-z")
    touched = git.names(*history, "--name-only", "--diff-filter=MDT", "HEAD", "--", f"{REPORTS}/")
    return tuple(name for name in sorted(set(touched)) if not _as_first_committed(git, name))


def _as_first_committed(git: Git, name: str) -> bool:
    added = git.lines("log", "--no-renames", "--diff-filter=A", "--format=%H", "HEAD", "--", name)
    first = git.find("rev-parse", f"{added[-1]}:{name}") if added else None
    return first is not None and first == git.find("rev-parse", f"HEAD:{name}")


def _json(name: str, data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except ValueError as error:
        raise UnusableError(f"{name} is no JSON: {error}; restore or remove it") from error
    return document if isinstance(document, dict) else {}


def _refuse_other_shape(name: str, document: Mapping[str, Any]) -> None:
    parts = document.get("parts")
    if not isinstance(parts, dict) or not all(isinstance(part, dict) for part in parts.values()):
        raise UnusableError(f"{name}: expected `parts` of objects, got {parts!r}; run again")


def load_facts(
    root: Path,
    waivers: Mapping[str, str],
    *,
    tiers: Sequence[str] = (),
    version: str | None = None,
) -> Facts:
    """Read the committed results of a repository.

    Args:
        root: the repository.
        waivers: tiers whose device part was not run, with the reason; in any case.
        tiers: tiers to look at; those of [tool.mmaemu.release] where none is named.
        version: the version whose changelog section states the limitations; the tree's if None.

    Raises:
        UnusableError: a tier that does not exist.
    """
    project, git = load_project(root), Git(root)
    release = project.table("release")
    needed = tuple(tiers or release.get("tiers", ()))
    accepted = {tier.lower(): reason for tier, reason in waivers.items()}
    unknown = [tier for tier in (*needed, *accepted) if tier not in TIERS]
    if unknown:
        raise UnusableError(f"there is no tier {', '.join(unknown)}; there are {', '.join(TIERS)}")
    texts = {
        name: path.read_text(encoding="utf-8") if (path := root / name).is_file() else ""
        for name in (CHANGELOG, VALIDATION)
    }
    section = changelog_section(texts[CHANGELOG], version or project.version)
    return Facts(
        results=committed(project, git) if needed else (),
        needed=needed,
        waivers=accepted,
        skips=frozenset(release.get("accepted_skips", ())),
        texts={**texts, CHANGELOG: section[1] if section else ""},
        rewritten=rewritten(git) if needed else (),
    )


def check(
    root: Path,
    waivers: Mapping[str, str],
    *,
    tiers: Sequence[str] = (),
    version: str | None = None,
) -> Outcome:
    """Apply every rule; see `load_facts` for the arguments."""
    return apply_rules(RULES, load_facts(root, waivers, tiers=tiers, version=version))


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="tier_results",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tier", action="append", default=[], help="look at this tier only")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    add_waivers(parser)

    def action(arguments: argparse.Namespace) -> Outcome:
        waivers = dict(arguments.device_not_run)
        return check(arguments.root.resolve(), waivers, tiers=arguments.tier)

    return run(parser, action, argv)


if __name__ == "__main__":
    raise SystemExit(main())

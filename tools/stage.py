"""Stage built distributions for publication, and write the manifest that the gate reads.

    python tools/stage.py FOLDER --channel nightly|release [--only DIST]... [--abis V]...
        [--publish no] [--run ID] [--commit C] [--manifests FOLDER] [--execute [--allow-remote]]

Sizes are always printed. A file over PYPI_FILE_LIMIT_MB stops a release before the first byte; a
nightly leaves it out and names it, and the nightly index gets every wheel first. Same name and
bytes count as done, other bytes are an error. Without --execute only the plan is printed; a run
that stopped anywhere is finished by running it again. Exit 3: an index did not answer.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.utils import canonicalize_name
from packaging.version import Version

import nightly_manifest
from built_wheels import read_members
from channels import CHANNELS, NIGHTLY, RELEASE, stamp_of
from files import ROOT
from findings import (
    PASS,
    Outcome,
    Rule,
    SkipRule,
    UnusableError,
    apply_rules,
    run,
)
from git_commands import Git
from limits import file_limit
from nightly_manifest import NightlyManifest
from package_index import Index, confirm_execute, from_environment
from project import SUMS, Project, add_execution, load_project
from publishing import (
    Entry,
    Held,
    Manifest,
    Sent,
    differences,
    entry_of,
    held,
    mebibytes,
    pause,
    read_sums,
    send,
    taken,
    write_manifest,
)
from release_config import Distribution, load_configuration

Problems = Iterator[tuple[str, str]]
_FINAL: Final = re.compile(r"\d+\.\d+\.\d+")


@dataclass(frozen=True, slots=True)
class Facts:
    """What staging decides on.

    Attributes:
        channel: "nightly" or "release".
        entries: the files.
        members: names in each wheel, by file name.
        distributions: what may and, in a release, must be there.
        limit: largest file that the package index takes, in bytes; equal passes.
        sums: sha256 by file name as written when the files were built; None where nobody wrote it.
        twine: exit status and output of `twine check --strict`.
        there: what each index holds of these versions, by role and file name.
    """

    channel: str
    entries: tuple[Entry, ...]
    members: dict[str, frozenset[str]]
    distributions: tuple[Distribution, ...]
    limit: int
    sums: dict[str, str] | None
    twine: tuple[int, str]
    there: dict[str, dict[str, Held]]

    @property
    def publishable(self) -> tuple[Entry, ...]:
        """The files that go to staging."""
        return tuple(entry for entry in self.entries if entry.size <= self.limit)


def _known(facts: Facts) -> Problems:
    names = {canonicalize_name(each.name) for each in facts.distributions}
    for entry in facts.entries:
        if entry.project not in names:
            yield entry.file, f"is of {entry.project}, expected one of {', '.join(sorted(names))}"


def _channel(facts: Facts) -> Problems:
    for entry in facts.entries:
        if facts.channel == RELEASE and not _FINAL.fullmatch(entry.version):
            yield entry.file, f"a release is an X.Y.Z, got {entry.version}"
        if facts.channel == NIGHTLY and stamp_of(Version(entry.version)) is None:
            yield entry.file, f"a nightly is an X.Y.Z.devYYYYMMDDHHMMSS, got {entry.version}"
        if facts.channel == NIGHTLY and _kind(entry) != "wheel":
            yield entry.file, "a nightly consists of wheels; remove it"


def _one_version(facts: Facts) -> Problems:
    versions = sorted({entry.version for entry in facts.entries})
    if len(versions) > 1:
        yield "files", f"are of the versions {', '.join(versions)}; stage one version at a time"


def _complete(facts: Facts) -> Problems:
    if facts.channel == NIGHTLY:
        raise SkipRule("a nightly may lack a distribution")
    for name, kind in missing(facts):
        yield name, f"has no {kind}; a release is complete or nothing (--only limits it)"


def missing(facts: Facts) -> tuple[tuple[str, str], ...]:
    """Distribution and kind of everything that a complete version would hold besides."""
    built = {(entry.project, _kind(entry)) for entry in facts.entries}
    kinds = ("wheel",) if facts.channel == NIGHTLY else ("wheel", "sdist")
    return tuple(
        (each.name, kind)
        for each in facts.distributions
        for kind in each.kinds
        if kind in kinds and (canonicalize_name(each.name), kind) not in built
    )


def _variants(facts: Facts) -> Problems:
    for each in facts.distributions:
        abis, form = (each.abis.list, each.abis.file) if each.abis else ((), "")
        for entry in facts.entries:
            if entry.project != canonicalize_name(each.name) or _kind(entry) != "wheel":
                continue
            for member in (form.replace("{abi}", abi) for abi in abis):
                if member not in facts.members[entry.file]:
                    yield entry.file, f"has no {member}; build it, or name the others with --abis"


def _sizes(facts: Facts) -> Problems:
    if facts.channel == NIGHTLY:
        raise SkipRule("a nightly leaves out what is over the limit")
    for entry in facts.entries:
        if entry.size > facts.limit:
            yield (
                entry.file,
                f"{mebibytes(entry.size)}, the limit is {mebibytes(facts.limit)}; nothing is "
                "staged; `invoke quota` says how to ask for more",
            )


def _as_built(facts: Facts) -> Problems:
    if facts.sums is None:
        raise SkipRule(f"neither {SUMS} nor the build's manifest lies beside the files")
    for entry in facts.entries:
        if facts.sums.get(entry.file) != entry.sha256:
            yield (
                entry.file,
                f"has sha256 {entry.sha256[:12]}, when built it was "
                f"{facts.sums.get(entry.file, 'not listed')[:12]}; build it again",
            )


def _twine(facts: Facts) -> Problems:
    code, output = facts.twine
    if code:
        yield "twine check --strict", f"exited with {code}: {output}"


def _same_bytes(facts: Facts) -> Problems:
    for role, there in facts.there.items():
        yield from differences(facts.entries, there, role)


def _nothing_stale(facts: Facts) -> Problems:
    listed = {entry.file for entry in facts.entries}
    for name in sorted(facts.there.get("staging", {}).keys() - listed):
        yield name, "staging holds it for this version from an earlier run; see `invoke leftovers`"


PREFLIGHT: Final[tuple[Rule[Facts], ...]] = (
    Rule("STAGE101", "Every file is of a distribution of the project.", _known),
    Rule("STAGE102", "The versions are of the channel.", _channel),
    Rule("STAGE103", "All files have one version.", _one_version),
    Rule("STAGE104", "A release is complete.", _complete),
    Rule("STAGE105", "A wheel holds every ABI that is asked for.", _variants),
    Rule("STAGE106", "No file of a release is over PYPI_FILE_LIMIT_MB.", _sizes),
    Rule("STAGE107", "The files are those that were built.", _as_built),
    Rule("STAGE108", "`twine check --strict` passes.", _twine),
    Rule("STAGE109", "No index holds other bytes under one of the names.", _same_bytes),
    Rule("STAGE110", "Staging holds nothing else of this version.", _nothing_stale),
)


@dataclass(frozen=True, slots=True)
class Step:
    """One file on its way to one index."""

    index: Index
    entry: Entry
    done: bool


def plan(facts: Facts, indexes: dict[str, Index]) -> tuple[Step, ...]:
    """Every file and where it goes, in order: the nightly index first."""
    ways = [("nightly", facts.entries)] if facts.channel == NIGHTLY else []
    ways.append(("staging", facts.publishable))
    return tuple(
        Step(indexes[role], entry, entry.file in facts.there[role])
        for role, entries in ways
        for entry in entries
    )


def distributions(
    rows: Sequence[Distribution], only: Sequence[str] = (), abis: Sequence[str] = ()
) -> tuple[Distribution, ...]:
    """The rows that a run is limited to.

    Args:
        rows: of the project.
        only: names to keep; all where empty.
        abis: ABIs to ask for; all where empty.

    Raises:
        UnusableError: a name or an ABI is not the project's.
    """
    names = {canonicalize_name(row.name) for row in rows}
    listed = {abi for row in rows if row.abis for abi in row.abis.list}
    wanted = {canonicalize_name(name) for name in only}
    for what, wrong in (("distribution", wanted - names), ("ABI", set(abis) - listed)):
        if wrong:
            raise UnusableError(f"no {what} of the project is called {', '.join(sorted(wrong))}")
    kept = [row for row in rows if not wanted or canonicalize_name(row.name) in wanted]
    return tuple(_limited(row, abis) for row in kept)


def _limited(row: Distribution, abis: Sequence[str]) -> Distribution:
    if row.abis is None or not abis:
        return row
    listed = tuple(abi for abi in row.abis.list if abi in abis)
    return dataclasses.replace(row, abis=dataclasses.replace(row.abis, list=listed))


def built(folder: Path, only: Sequence[Distribution]) -> tuple[tuple[Entry, Path], ...]:
    """The distributions in a folder, read.

    Args:
        folder: what the build wrote.
        only: files of other distributions are left alone unless nobody asked for a choice.

    Raises:
        UnusableError: none, or one that is not what its name says.
    """
    paths = sorted(
        path for path in folder.glob("*") if path.suffix == ".whl" or path.name.endswith(".tar.gz")
    )
    names = {canonicalize_name(each.name) for each in only}
    found = [(entry_of(path.name, path.read_bytes()), path) for path in paths]
    chosen = tuple(pair for pair in found if not names or pair[0].project in names)
    if not chosen:
        raise UnusableError(f"{folder} holds no wheel or sdist to stage; build them first")
    return chosen


def recorded(folder: Path) -> dict[str, str] | None:
    """The sha256 of each file when it was built; None where nothing in the folder says it."""
    manifest = _build_manifest(folder)
    if manifest is not None:
        return {entry.file: entry.sha256 for entry in manifest.entries}
    sums = folder / SUMS
    return read_sums(sums) if sums.is_file() else None


def _build_manifest(folder: Path) -> NightlyManifest | None:
    """What the build says of its folder, None where it left no manifest.

    Raises:
        UnusableError: several, or one that is none.
    """
    paths = sorted(folder.glob("nightly-manifest-*.json"))
    if len(paths) > 1:
        raise UnusableError(f"{folder} holds several builds; give each a folder of its own")
    return nightly_manifest.read(paths[0]) if paths else None


def _kind(entry: Entry) -> str:
    return "wheel" if entry.file.endswith(".whl") else "sdist"


def _twine_check(paths: Sequence[Path]) -> tuple[int, str]:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, paths)]
    plain = os.environ | {"NO_COLOR": "1", "COLUMNS": "500"}
    done = subprocess.run(command, env=plain, capture_output=True, text=True, check=False)
    lines = [" ".join(line.split()) for line in (done.stdout + done.stderr).splitlines()]
    return done.returncode, "; ".join(filter(None, lines))


def deliver(steps: Sequence[Step], paths: dict[str, Path], patience: float) -> tuple[Sent, ...]:
    """Upload what is not there yet, one file at a time; the first that fails ends it."""
    attempts: list[Sent] = []
    for number, step in enumerate((step for step in steps if not step.done), 1):
        sent = send(step.index, paths[step.entry.file], step.entry, patience)
        pause("after-upload", number)
        print(f"stage: {sent.state}: {sent.text}", flush=True)
        attempts.append(sent)
        if sent.state != "there":
            break
    return tuple(attempts)


@dataclass(frozen=True, slots=True)
class Staged:
    """What was to be staged, and what is."""

    wanted: tuple[Entry, ...]
    found: tuple[Entry, ...]


def _as_staged(staged: Staged) -> Problems:
    for entry in sorted(set(staged.wanted) ^ set(staged.found)):
        where = "staging does not hold" if entry in staged.wanted else "only staging holds"
        yield entry.file, f"{where} {entry}; no manifest is written; stage again"


DELIVERY: Final = Rule("STAGE201", "An index takes every file that it is sent.", taken)
STAGED: Final = Rule("STAGE202", "Staging holds exactly what was to be staged.", _as_staged)
RULES: Final = (*PREFLIGHT, DELIVERY, STAGED)


def write(wanted: Sequence[Entry], arguments: argparse.Namespace, commit: str) -> Outcome:
    """Write the manifest of what is staged, made from the staged files themselves.

    Args:
        wanted: what must be there, and nothing else of these versions.
        arguments: hold run, manifests and dry_run.
        commit: what the files were built from.
    """
    there = held(from_environment("staging"), {(entry.project, entry.version) for entry in wanted})
    found = tuple(sorted(entry_of(name, each.data) for name, each in there.items()))
    outcome = apply_rules((STAGED,), Staged(tuple(wanted), found))
    manifest = Manifest(found, arguments.run, commit)
    if not outcome.findings and arguments.dry_run:
        print(manifest.text, end="")
    elif not outcome.findings:
        print(f"manifest: {write_manifest(manifest, arguments.manifests)}")
    return outcome


def _print_plan(facts: Facts, steps: Sequence[Step]) -> None:
    for entry in facts.entries:
        over = "" if entry.size <= facts.limit else f", over {mebibytes(facts.limit)}"
        print(f"stage: {entry.file} {entry.size:,} bytes ({mebibytes(entry.size)}{over})")
    for step in steps:
        print(f"stage: {step.index.role}: {'done' if step.done else 'upload'} {step.entry}")
    for entry in facts.entries:
        if facts.channel == NIGHTLY and entry not in facts.publishable:
            print(f"stage: not published, over the limit: {entry.file}")
    if facts.channel == NIGHTLY:
        for name, kind in missing(facts):
            print(f"stage: missing in this nightly: {kind} of {name}")


def commit_of(arguments: argparse.Namespace, project: Project) -> str:
    """What the files were built from: as given, as the build says, or HEAD."""
    if arguments.commit:
        return str(arguments.commit)
    manifest = _build_manifest(arguments.folder)
    return manifest.commit if manifest else Git(project.root).line("rev-parse", "HEAD")


def _indexes(arguments: argparse.Namespace) -> dict[str, Index]:
    """The indexes that are read: none where nothing is to be published."""
    if arguments.publish == "no":
        return {}
    roles = ("nightly", "staging") if arguments.channel == NIGHTLY else ("staging",)
    found = {role: from_environment(role) for role in (*roles, "public")}
    if arguments.execute:
        confirm_execute(tuple(found[role] for role in roles), allow_remote=arguments.allow_remote)
    return found


def _facts(arguments: argparse.Namespace, project: Project, indexes: dict[str, Index]) -> Facts:
    rows = load_configuration(project.root).distributions
    chosen = distributions(rows, arguments.only, arguments.abis)
    pairs = built(arguments.folder, chosen if arguments.only else ())
    entries = tuple(sorted(entry for entry, _ in pairs))
    releases = sorted({(entry.project, entry.version) for entry in entries})
    return Facts(
        channel=arguments.channel,
        entries=entries,
        members={
            path.name: frozenset(read_members(path)) for _, path in pairs if path.suffix == ".whl"
        },
        distributions=chosen,
        limit=file_limit(),
        sums=recorded(arguments.folder),
        twine=_twine_check([path for _, path in pairs]),
        there={role: held(index, releases) for role, index in indexes.items()},
    )


def _action(arguments: argparse.Namespace) -> Outcome:
    project = load_project(arguments.root.resolve())
    commit = commit_of(arguments, project)
    indexes = _indexes(arguments)
    facts = _facts(arguments, project, indexes)
    steps = plan(facts, indexes) if indexes else ()
    _print_plan(facts, steps)
    outcome = apply_rules(PREFLIGHT, facts)
    if outcome.findings or not (indexes and arguments.execute):
        why = "refused" if outcome.findings else "--publish no" if not indexes else "no --execute"
        print(f"stage: nothing was sent ({why})")
        return outcome
    paths = {entry.file: arguments.folder / entry.file for entry in facts.entries}
    outcome += apply_rules((DELIVERY,), deliver(steps, paths, arguments.patience))
    if outcome.exit_code == PASS and facts.publishable:
        outcome += write(facts.publishable, arguments, commit)
    elif outcome.exit_code == PASS:
        print("stage: nothing is left to publish, so there is no manifest")
    return outcome


def add_manifest_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what a manifest states and where it goes."""
    parser.add_argument("--run", default=os.environ.get("GITHUB_RUN_ID") or "by-hand")
    parser.add_argument("--commit", help="what was built; as the build or HEAD says if unset")
    parser.add_argument(
        "--manifests",
        type=Path,
        default=ROOT / "build" / "manifests",
        help="folder that the gate reads; every attempt writes a new file",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="stage", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the build put the files")
    parser.add_argument("--channel", choices=CHANNELS, required=True)
    parser.add_argument("--only", action="append", default=[], help="a distribution; repeatable")
    parser.add_argument("--abis", action="append", default=[], help="an ABI; repeatable")
    parser.add_argument("--publish", choices=("yes", "no"), default="yes", help="no: sizes only")
    add_manifest_options(parser)
    add_execution(parser)
    parser.add_argument(
        "--patience", type=float, default=120.0, help="seconds that an index's pages may lag"
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="the project")
    return run(parser, _action, argv)


if __name__ == "__main__":
    raise SystemExit(main())

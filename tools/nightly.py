"""Build the wheels of a nightly, or the wheels and sdists of a release, from one commit.

    python tools/nightly.py --channel nightly|release [--commit C] [--tag vX.Y.Z] [--only DIST]...
        [--abis V]... [--out DIR] [--local] [--dry-run | --execute [--allow-remote]] [--root DIR]

--dry-run decides and prints; without it the files and their manifest are kept below --out;
--execute also uploads a nightly to the nightly index (a release is published by staging). A nightly
that misses a distribution says so and keeps the others; a release is complete or nothing. A run
that stopped is finished by running it again. Exit 3: busy, or an index did not answer.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import os
import platform
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from packaging.utils import canonicalize_name
from packaging.version import Version

import built_wheels
import channel_build
import channels
import nightly_manifest
import pins
import sizes
from built_wheels import Built
from channel_build import Source
from channels import CHANNELS, EXTRAS, NIGHTLY, RELEASE, Known, Next
from files import ROOT, try_lock
from findings import (
    Finding,
    InconclusiveError,
    Outcome,
    Rule,
    SkipRule,
    UnusableError,
    apply_rules,
    run,
)
from git_commands import Git
from nightly_manifest import NightlyManifest
from package_index import Index, confirm_execute, from_environment
from project import tag_of
from publishing import Sent, difference, held, send, taken, timestamp
from release_config import Distribution

Problems = Iterator[tuple[str, str]]
LOCK: Final = "mmaemu-nightly.lock"
# How long the pages of an index may lag behind an upload.
PATIENCE: Final = 30.0
rebuild: Final = channel_build.rebuild


@dataclass(frozen=True, slots=True)
class Order:
    """What was asked for.

    Attributes:
        root: a clone of the project.
        channel: "nightly" or "release".
        commit: any name of the commit.
        tag: of a release, None for the one that belongs to its version.
        only: names of distributions, all where empty.
        abis: extension variants, all where empty.
        out: where the folder of a version goes.
        suffix: the suffix asked for, None where the clock decides.
        local: whether no index is asked.
        execute: whether files are uploaded.
        dry_run: whether nothing is written.
        started_at: UTC, RFC 3339.
    """

    root: Path
    channel: str
    commit: str
    tag: str | None
    only: tuple[str, ...]
    abis: tuple[str, ...]
    out: Path
    suffix: str | None
    local: bool
    execute: bool
    dry_run: bool
    started_at: str

    def rows(self, source: Source) -> tuple[Distribution, ...]:
        """The distributions to build.

        Raises:
            UnusableError: one is unknown, or has no such variant.
        """
        configuration = source.configuration
        rows = tuple(map(configuration.distribution, self.only)) or configuration.distributions
        known = {abi for row in rows if row.abis is not None for abi in row.abis.list}
        if unknown := sorted(set(self.abis) - known):
            raise UnusableError(f"--abis {unknown[0]}: known are {', '.join(sorted(known))}")
        return rows

    def kinds(self, row: Distribution) -> tuple[str, ...]:
        """What the channel has of a distribution."""
        return tuple(kind for kind in row.kinds if self.channel == RELEASE or kind == "wheel")


# --- what must hold before anything is built -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """A commit that a version is to be built from.

    Attributes:
        channel: "nightly" or "release".
        version: the version.
        commit: object name.
        tag: name of the release's tag.
        tagged: commit that the tag names, None where there is no such tag.
        branch: the branch that releases come from.
        reachable: whether that branch has the commit, None where the clone cannot tell.
        failed: command and output of each of the tree's checks that failed.
    """

    channel: str
    version: str
    commit: str
    tag: str
    tagged: str | None
    branch: str
    reachable: bool | None
    failed: tuple[tuple[str, str], ...]


def _tag(request: Request) -> Problems:
    if request.channel != RELEASE:
        return
    if request.tag != tag_of(request.version):
        yield (
            request.tag,
            f"the tree says {request.version}, whose tag is {tag_of(request.version)}; nothing is "
            "built",
        )
    if request.tagged is None:
        yield request.tag, f"there is no such tag; tag {request.commit[:12]} first"
    elif request.tagged != request.commit:
        yield request.tag, f"names {request.tagged[:12]}, not {request.commit[:12]}"


def _reachable(request: Request) -> Problems:
    if request.channel != RELEASE:
        return
    if request.reachable is None:
        raise SkipRule(
            f"cannot decide whether {request.branch} has {request.commit[:12]}: the clone is "
            f"shallow or lacks the branch; run `git fetch --unshallow origin {request.branch}`",
            required=True,
        )
    if not request.reachable:
        yield request.commit[:12], f"is not on {request.branch}; a release is cut from there"


def _checks(request: Request) -> Problems:
    yield from request.failed


REQUEST: Final[tuple[Rule[Request], ...]] = (
    Rule("NIGHT111", "A release's tag is its version's and names its commit.", _tag),
    Rule("NIGHT112", "A release's commit is on the branch that releases come from.", _reachable),
    Rule("NIGHT113", "The tree's checks pass: no binary is stale.", _checks),
)


def _request(order: Order, git: Git, source: Source, version: str) -> Request:
    tag = order.tag or tag_of(version)
    branch = source.configuration.branch
    return Request(
        channel=order.channel,
        version=version,
        commit=source.commit,
        tag=tag,
        tagged=git.find("rev-parse", "--verify", "--quiet", f"refs/tags/{tag}^{{commit}}"),
        branch=branch,
        reachable=_on_branch(git, source.commit, branch) if order.channel == RELEASE else None,
        failed=tuple(channel_build.check(source)),
    )


def _on_branch(git: Git, commit: str, branch: str) -> bool | None:
    names = (f"refs/heads/{branch}", f"refs/remotes/origin/{branch}")
    tips = [name for name in names if git.find("rev-parse", "--verify", "--quiet", name)]
    if any(git.find("merge-base", "--is-ancestor", commit, tip) is not None for tip in tips):
        return True
    shallow = git.line("rev-parse", "--is-shallow-repository") == "true"
    return None if shallow or not tips else False


# --- the version ---------------------------------------------------------------------------------


def _listed(order: Order, rows: Sequence[Distribution]) -> dict[Version, bool]:
    """Every version of the distributions on an index, each with whether it is yanked."""
    listed: dict[Version, bool] = {}
    for index in () if order.local else map(from_environment, ("nightly", "public")):
        for row in rows:
            for file in index.files(row.name):
                if file.version is not None:
                    listed[file.version] = file.yanked and listed.get(file.version, True)
    return listed


def _known(order: Order, rows: Sequence[Distribution]) -> tuple[Known, ...]:
    """Every version that exists of the distributions: built here, or on an index."""
    built = {Version(manifest.version): False for manifest in nightly_manifest.all_in(order.out)}
    found = built | _listed(order, rows)
    return tuple(Known(version, yanked) for version, yanked in found.items())


def next_version(
    order: Order, bases: dict[str, str], known: tuple[Known, ...], now: dt.datetime
) -> tuple[Next, dt.timedelta]:
    """The version that the order means, and how long to wait until the clock shows its second.

    Raises:
        UnusableError: the clock is behind, or the tree states no base version.
    """
    asked = None if order.local else known
    if order.suffix is not None:
        return Next(order.channel, bases, order.suffix, asked), dt.timedelta(0)
    version = Next(order.channel, bases, "", asked)
    wait = channels.waiting(now, channels.newest_stamp(version.base, known))
    return replace(version, suffix=channels.suffix_of(now + wait)), wait


# --- building ------------------------------------------------------------------------------------


def _complete(reasons: dict[str, str]) -> Problems:
    yield from reasons.items()


COMPLETE: Final[Rule[dict[str, str]]] = Rule(
    "NIGHT114", "Every distribution that was asked for is built.", _complete
)
TAKEN: Final[Rule[Sequence[Sent]]] = Rule(
    "NIGHT115", "The nightly index has every file of the manifest, with its bytes.", taken
)
RULES: Final = (*REQUEST, COMPLETE, TAKEN)


@dataclass(frozen=True, slots=True)
class Product:
    """What came of one file that was asked for.

    Attributes:
        row: its distribution.
        built: the file, None where it could not be built.
        outcome: what was found.
    """

    row: Distribution
    built: Built | None
    outcome: Outcome


def _product(order: Order, source: Source, version: Next, row: Distribution, kind: str) -> Product:
    """Build one file and judge it."""
    out = source.folder.parent / f"{row.name} {kind}"
    try:
        path = channel_build.build(source, row, kind, out, suffix=version.suffix, abis=order.abis)
        built = replace(_read(order, source, row, path), kind=kind, version=version.version)
    except UnusableError as error:
        reason = {f"{row.name} {kind}": str(error)}
        return Product(row, None, apply_rules([COMPLETE], reason))
    outcome = apply_rules(built_wheels.RULES, built)
    if built.pinned is not None and row.pins is not None:
        outcome += apply_rules(pins.RULES, built.pinned)
    return Product(row, built, outcome)


def _read(order: Order, source: Source, row: Distribution, path: Path) -> Built:
    entry = built_wheels.read_entry(path)
    wheel = path.suffix == ".whl"
    listed = source.text(row.abis.exports).split() if row.abis else []
    return Built(
        path=path,
        row=row,
        kind="wheel" if wheel else "sdist",
        version=entry.version,
        entry=entry,
        members=built_wheels.read_members(path) if wheel else {},
        pinned=pins.pinned(path, row, source.configuration) if wheel else None,
        abis=(order.abis or row.abis.list) if row.abis else (),
        exports=tuple(listed),
        rejected=channel_build.rejected(source, row, path),
    )


def _build(order: Order, source: Source, version: Next) -> Made:
    """Build everything; keep what is sound of a nightly, all or nothing of a release."""
    channel_build.stamp(source, version.version)
    products = [
        _product(order, source, version, row, kind)
        for row in order.rows(source)
        for kind in order.kinds(row)
    ]
    outcome = sum((each.outcome for each in products), Outcome())
    bad = {each.row.name for each in products if each.outcome.findings}
    sound = [each.built for each in products if each.built and each.row.name not in bad]
    measured = sizes.measure([built.path for built in sound], order.channel)
    for line in measured.lines():
        print(f"nightly: {line}")
    outcome += apply_rules(sizes.RULES, measured)
    if not sound or (order.channel == RELEASE and outcome.findings):
        return Made(None, outcome)
    manifest = NightlyManifest(
        folder=order.out / version.version,
        version=version.version,
        base=version.base,
        commit=source.commit,
        tree=source.tree,
        started_at=order.started_at,
        builder=_builder(),
        entries=tuple(built.entry for built in sound),
        pairing=source.pairing(),
        missing=tuple(sorted(bad)),
    )
    beside = {
        built.row.pins.file: built.pinned.text.encode()
        for built in sound
        if built.row.pins is not None and built.pinned is not None
    }
    manifest.keep({built.name: built.path for built in sound}, beside)
    return Made(manifest, outcome)


@dataclass(frozen=True, slots=True)
class Made:
    """A manifest, None where nothing was kept, and what was found."""

    manifest: NightlyManifest | None
    outcome: Outcome


def _builder() -> str:
    run = os.environ.get("GITHUB_RUN_ID", "")
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{python} on {sysconfig.get_platform()}{f', run {run}' if run else ''}"


def _decide(order: Order, git: Git, source: Source) -> tuple[Next, Outcome]:
    """Choose the version, print the plan, and judge both."""
    rows = order.rows(source)
    known = _known(order, rows)
    bases = {row.name: source.base(row) for row in rows}
    version, wait = next_version(order, bases, known, dt.datetime.now(dt.timezone.utc))
    if not order.dry_run:
        time.sleep(wait.total_seconds())
    print(f"nightly: {order.channel} {version.version} from {source.commit}")
    for row in rows:
        print(f"nightly: builds {row.name}: {', '.join(order.kinds(row))}")
    print(f"nightly: keeps the files in {order.out / version.version}")
    what = "uploads them to" if order.execute else "without --execute uploads nothing to"
    print(f"nightly: {what} the nightly index")
    outcome = apply_rules(channels.RULES, version)
    return version, outcome + apply_rules(REQUEST, _request(order, git, source, version.version))


# --- a run that was stopped, and uploads ---------------------------------------------------------


def _unfinished(order: Order, source: Source) -> NightlyManifest | None:
    """What an earlier run built of this very order and did not publish to the end.

    Raises:
        UnusableError: the version asked for was built from another commit.
    """
    names = {str(canonicalize_name(row.name)) for row in order.rows(source)}
    found = None
    for manifest in nightly_manifest.all_in(order.out):
        asked = order.suffix is not None and manifest.version == manifest.base + order.suffix
        if asked and manifest.commit != source.commit:
            raise UnusableError(
                f"{manifest.version} was built from {manifest.commit[:12]}, not from "
                f"{source.commit[:12]}; a version is of one commit for ever"
            )
        nightly = manifest.version != manifest.base
        same = manifest.commit == source.commit and manifest.distributions == names
        if nightly and same and (asked or (order.suffix is None and manifest.waiting)):
            found = manifest
        elif nightly and manifest.waiting:
            waiting = ", ".join(entry.file for entry in manifest.waiting)
            print(
                f"nightly: {manifest.version} is half finished, {waiting} not published; finish it "
                f"with --commit {manifest.commit[:12]} and "
                f"{EXTRAS}={manifest.version.removeprefix(manifest.base)}"
            )
    return found if order.channel == NIGHTLY else None


def _may_begin(order: Order, source: Source, manifest: NightlyManifest) -> Outcome:
    """Judge the version of an earlier build as if it were new; what is begun is finished."""
    listed = _listed(order, order.rows(source))
    if Version(manifest.version) in listed:
        return Outcome()
    known = None if order.local else tuple(Known(*pair) for pair in listed.items())
    suffix = manifest.version.removeprefix(manifest.base)
    version = Next(order.channel, {"manifest": manifest.base}, suffix, known)
    return apply_rules(channels.RULES, version)


def publish(manifest: NightlyManifest, index: Index, patience: float = PATIENCE) -> Outcome:
    """Bring the nightly index to what the manifest says, file by file.

    What is published is read from the index, so that a run can stop anywhere.

    Raises:
        InconclusiveError: the index did not answer.
    """
    broken = list(manifest.intact())
    if broken:
        return Outcome(tuple(Finding("NIGHT115", *pair) for pair in broken))
    there = held(index, {(entry.project, entry.version) for entry in manifest.entries})
    for entry in manifest.entries:
        print(f"nightly: {'compares' if entry.file in there else 'uploads'} {entry}", flush=True)
    attempts = []
    for entry in manifest.entries:
        found = there.get(entry.file)
        if found is None:
            sent = send(index, manifest.folder / entry.file, entry, patience)
        else:
            problem = difference(found, entry)
            text = f"{entry.file} on the nightly index: {problem or 'there already'}"
            sent = Sent(entry, "refused" if problem else "there", text)
        print(f"nightly: {sent.text}")
        attempts.append(sent)
        if sent.state == "there" and entry.file not in manifest.published:
            manifest = manifest.publish(entry.file)
    return apply_rules([TAKEN], attempts)


def _upload(order: Order, made: Made) -> Outcome:
    """Upload what was made, where that was asked for."""
    manifest = made.manifest
    if manifest is None:
        return made.outcome
    print(f"nightly: {manifest.path}")
    if order.execute:
        return made.outcome + publish(manifest, from_environment(NIGHTLY))
    return made.outcome


def _run(order: Order, scratch: Path) -> Outcome:
    git = Git(order.root)
    source = channel_build.export(git, order.commit, scratch / "source")
    earlier = _unfinished(order, source)
    if earlier is not None:
        print(f"nightly: {earlier.version} from {earlier.commit} is built already")
        refused = _may_begin(order, source, earlier)
        if refused.findings:
            return refused
        missing = dict.fromkeys(earlier.missing, f"is missing from {earlier.version}")
        return _upload(order, Made(earlier, apply_rules([COMPLETE], missing)))
    version, outcome = _decide(order, git, source)
    if outcome.exit_code or order.dry_run:
        return outcome
    made = _build(order, source, version)
    return outcome + _upload(order, made)


@contextlib.contextmanager
def one_run(root: Path) -> Iterator[None]:
    """Hold the clone's lock; the system lets go of it when the process ends, however it ends.

    Raises:
        InconclusiveError: another run holds it.
    """
    folder = Path(Git(root).line("rev-parse", "--git-common-dir"))
    with (root / folder / LOCK).open("a+", encoding="utf-8") as stream:
        stream.seek(0)
        try:
            try_lock(stream)
        except OSError as error:
            raise InconclusiveError(
                f"another run is at work ({stream.read().strip() or 'just started'}); run again "
                "when it is done"
            ) from error
        stream.truncate(0)
        stream.write(f"process {os.getpid()} since {timestamp()}\n")
        stream.flush()
        yield


def _order(arguments: argparse.Namespace) -> Order:
    if arguments.execute and arguments.channel == RELEASE:
        raise UnusableError("a release is uploaded by tools/stage.py; leave out --execute")
    if arguments.execute and arguments.local:
        raise UnusableError("--local asks no index, so that nothing can be uploaded; leave it out")
    if arguments.tag and arguments.channel == NIGHTLY:
        raise UnusableError("a nightly has no tag; leave out --tag, or build --channel release")
    root = arguments.root.resolve()
    return Order(
        root=root,
        channel=arguments.channel,
        commit=arguments.commit,
        tag=arguments.tag,
        only=tuple(arguments.only),
        abis=tuple(arguments.abis),
        out=(arguments.out or root / "build" / "nightly").resolve(),
        suffix=channels.given_suffix(arguments.channel, os.environ.get(EXTRAS)),
        local=arguments.local,
        execute=arguments.execute,
        dry_run=arguments.dry_run,
        started_at=timestamp(),
    )


def _action(arguments: argparse.Namespace) -> Outcome:
    order = _order(arguments)
    if order.execute:
        confirm_execute((from_environment(NIGHTLY),), allow_remote=arguments.allow_remote)
    lock = contextlib.nullcontext() if order.dry_run else one_run(order.root)
    with lock, tempfile.TemporaryDirectory(prefix="nightly-") as scratch:
        return _run(order, Path(scratch))


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="nightly", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--channel", choices=CHANNELS, required=True, help="never guessed")
    parser.add_argument("--commit", default="HEAD", help="what to build, HEAD if left out")
    parser.add_argument("--tag", help="of a release, v and its version if left out")
    parser.add_argument("--only", action="append", default=[], help="a distribution; repeatable")
    parser.add_argument("--abis", action="append", default=[], help="a variant; repeatable")
    parser.add_argument("--out", type=Path, help="build/nightly of the project if left out")
    parser.add_argument("--local", action="store_true", help="ask no index; only build")
    parser.add_argument("--root", type=Path, default=ROOT, help="a clone of the project")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--dry-run", action="store_true", help="decide and print, write nothing")
    choice.add_argument("--execute", action="store_true", help="also upload a nightly")
    parser.add_argument(
        "--allow-remote", action="store_true", help="also where the index is not on this machine"
    )
    return run(parser, _action, argv)


if __name__ == "__main__":
    raise SystemExit(main())

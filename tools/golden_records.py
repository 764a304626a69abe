"""The records of golden commits: lkg.version, verified_commits.csv and the tags golden-YYYYMMDD.

The remote is the truth. A record is computed from the remote's tip each time, so a table is never
merged as text, and a run that was interrupted anywhere is finished by running it again: the same
gate result gives the same row, the same commit and the same tag.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from findings import InconclusiveError, Rule, SkipRule, UnusableError
from git_commands import Git, GitError, command_line
from project import Release

Problems = Iterator[tuple[str, str]]
LKG: Final = "lkg.version"
TABLE: Final = "verified_commits.csv"
TAG_PREFIX: Final = "golden-"
FIXED: Final = ("verified_at", "commit", "version", "wheel_sha256")
TRIES: Final = 3
TIME: Final = "%Y-%m-%dT%H:%M:%SZ"
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_DECLINED: Final = re.compile(
    r"hook declined|push declined|protected (branch|ref|tag)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """One golden commit.

    Attributes:
        verified_at: when its canaries had passed, UTC, RFC 3339.
        commit: the commit of the nightly.
        version: the nightly.
        wheel_sha256: of the wheel that the canaries ran.
        runs: the run that passed, by canary.
    """

    verified_at: str
    commit: str
    version: str
    wheel_sha256: str
    runs: tuple[tuple[str, str], ...] = ()

    @property
    def tag(self) -> str:
        """Name of the tag of this row."""
        return f"{TAG_PREFIX}{self.verified_at[:10].replace('-', '')}"

    @property
    def seconds(self) -> int:
        """`verified_at` in seconds since 1970."""
        return int(parse_time(self.verified_at).timestamp())


def parse_time(text: str) -> dt.datetime:
    """A time as the records hold it.

    Raises:
        UnusableError: not YYYY-MM-DDTHH:MM:SSZ.
    """
    try:
        return dt.datetime.strptime(text, TIME).replace(tzinfo=dt.timezone.utc)
    except ValueError as error:
        raise UnusableError(f"expected a time as 2026-11-30T12:00:00Z, got {text!r}") from error


def parse_table(text: str) -> tuple[Row, ...]:
    """Read verified_commits.csv; an empty text is an empty table.

    Raises:
        UnusableError: a wrong header, a row of another width, or a cell that is none.
    """
    lines = list(csv.reader(io.StringIO(text)))
    if not lines:
        return ()
    header, *body = lines
    if tuple(header[: len(FIXED)]) != FIXED or len(set(header)) != len(header):
        raise UnusableError(
            f"{TABLE}: expected the columns {','.join(FIXED)} and one per canary, "
            f"got {','.join(header)}; restore the file from the remote"
        )
    return tuple(_row(header, cells, number) for number, cells in enumerate(body, start=2))


def _row(header: list[str], cells: list[str], number: int) -> Row:
    where = f"{TABLE}:{number}"
    if len(cells) != len(header):
        raise UnusableError(f"{where}: expected {len(header)} cells, got {len(cells)}")
    verified_at, commit, version, digest = cells[: len(FIXED)]
    parse_time(verified_at)
    if not _COMMIT.fullmatch(commit) or not _SHA256.fullmatch(digest):
        raise UnusableError(f"{where}: {commit!r} or {digest!r} is no commit or no sha256")
    runs = zip(header[len(FIXED) :], cells[len(FIXED) :], strict=True)
    return Row(verified_at, commit, version, digest, tuple(run for run in runs if run[1]))


def format_table(rows: tuple[Row, ...]) -> str:
    """The text of verified_commits.csv: oldest first, a column for every canary ever used."""
    ordered = sorted(rows)
    canaries = list(dict.fromkeys(name for row in ordered for name, _ in row.runs))
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*FIXED, *canaries])
    for row in ordered:
        runs = dict(row.runs)
        fixed = (row.verified_at, row.commit, row.version, row.wheel_sha256)
        writer.writerow([*fixed, *(runs.get(name, "") for name in canaries)])
    return stream.getvalue()


def with_row(rows: tuple[Row, ...], row: Row) -> tuple[Row, ...]:
    """The table with a row in it; a version that is there already keeps its first row."""
    if any(old.version == row.version for old in rows):
        return rows
    return tuple(sorted((*rows, row)))


# --- the state of a remote -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Places:
    """Where golden records live, from [tool.mmaemu.release.golden].

    Attributes:
        url: address of the development repository.
        branch: the branch that nightlies are built from.
        records: the branch that holds the two files; it may be the same.
        label: label of the pull request that brings a record.
        stale_days: age of the newest golden commit from which a warning is printed.
    """

    url: str
    branch: str = "main"
    records: str = "main"
    label: str = "golden record"
    stale_days: int = 14


@dataclass(frozen=True, slots=True)
class State:
    """What the remote holds, read once.

    Attributes:
        places: where that is.
        tip: commit of the branch.
        records_tip: commit of the branch with the records, "" where there is none yet.
        rows: the table there.
        lkg: the commit in lkg.version there, "" where the file is missing.
        tags: golden tags, each with the commit that it names.
        order: every commit of the branch, children before parents.
        shallow: whether this clone lacks the branch's history.
    """

    places: Places
    tip: str
    records_tip: str
    rows: tuple[Row, ...]
    lkg: str
    tags: Mapping[str, str]
    order: Mapping[str, int] = field(default_factory=dict)
    shallow: bool = False

    def require_history(self) -> None:
        """Refuse to judge ancestry without the history.

        Raises:
            InconclusiveError: the clone is shallow.
        """
        if self.shallow:
            raise InconclusiveError(
                "cannot decide in a shallow clone what is an ancestor of "
                f"{self.places.branch}; run `git fetch --unshallow` and rerun"
            )

    def newest(self, rows: tuple[Row, ...]) -> str:
        """The commit of these rows that comes last in the branch's history, "" without rows."""
        known = [row.commit for row in rows if row.commit in self.order]
        return min(known, key=lambda commit: self.order[commit], default="")


def read_state(git: Git, places: Places) -> State:
    """Read the remote; objects that are missing here are fetched, no ref is written.

    Raises:
        UnusableError: the remote cannot be read or has no such branch.
    """
    refs = remote_refs(git, places.url)
    tip = refs.get(f"refs/heads/{places.branch}", "")
    if not tip:
        raise UnusableError(f"{places.url} has no branch {places.branch}; push it first")
    records_tip = refs.get(f"refs/heads/{places.records}", "")
    for oid in filter(None, dict.fromkeys((tip, records_tip))):
        fetch_commit(git, places.url, oid)
    shallow = git.line("rev-parse", "--is-shallow-repository") == "true"
    history = git.lines("rev-list", "--topo-order", tip)
    return State(
        places=places,
        tip=tip,
        records_tip=records_tip,
        rows=parse_table(_file(git, records_tip, TABLE)),
        lkg=_file(git, records_tip, LKG).strip(),
        tags={
            ref.removeprefix("refs/tags/"): oid
            for ref, oid in refs.items()
            if ref.startswith(f"refs/tags/{TAG_PREFIX}")
        },
        order={commit: number for number, commit in enumerate(history)},
        shallow=shallow,
    )


def remote_refs(git: Git, url: str) -> dict[str, str]:
    """Refs of a remote; an annotated tag stands with the commit that it names."""
    pairs = [line.split("\t") for line in git.lines("ls-remote", url)]
    return {ref.removesuffix("^{}"): oid for oid, ref in pairs}


def _file(git: Git, commit: str, name: str) -> str:
    if not commit:
        return ""
    found = git.find("show", f"{commit}:{name}")
    return f"{found}\n" if found else ""


# --- rules ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Facts:
    """What the rules look at.

    Attributes:
        state: the remote.
        wanted: the row to record; None where the records alone are verified.
        changed: paths that differ between the newest golden commit and the release; None where
            no release is cut.
        allowed: patterns of the paths that a release may change.
        refused: what the remote said when it refused a push, "" where it did not.
    """

    state: State
    wanted: Row | None = None
    changed: tuple[str, ...] | None = None
    allowed: tuple[str, ...] = ()
    refused: str = ""


def _oldest_first(facts: Facts) -> Problems:
    rows = facts.state.rows
    if list(rows) != sorted(rows):
        yield TABLE, "the rows are not in the order of verified_at; rebuild the record"
    for key in ("version", "tag"):
        seen: dict[str, str] = {}
        for row in rows:
            name = getattr(row, key)
            if seen.setdefault(name, row.commit) != row.commit:
                yield TABLE, f"{name} stands with two commits; a record was edited by hand"
    versions = [row.version for row in rows]
    for version in sorted({name for name in versions if versions.count(name) > 1}):
        yield TABLE, f"{version} stands in it more than once"


def _on_the_branch(facts: Facts) -> Problems:
    facts.state.require_history()
    for row in facts.state.rows:
        if row.commit not in facts.state.order:
            yield (
                f"{TABLE} {row.version}",
                f"{row.commit[:12]} is no ancestor of {facts.state.places.branch}",
            )


def _newest_is_lkg(facts: Facts) -> Problems:
    facts.state.require_history()
    newest = facts.state.newest(facts.state.rows)
    if facts.state.lkg != newest:
        yield (
            LKG,
            f"says {facts.state.lkg or 'nothing'}, the newest golden commit is "
            f"{newest or 'none'}; record again",
        )


def _rows_have_tags(facts: Facts) -> Problems:
    for row in facts.state.rows:
        found = facts.state.tags.get(row.tag)
        if found != row.commit:
            yield (
                row.tag,
                f"is on {found[:12] if found else 'nothing'}, {row.version} was verified at "
                f"{row.commit[:12]}; `golden record` prints the tag's push",
            )


def _tags_have_rows(facts: Facts) -> Problems:
    known = {row.tag for row in facts.state.rows}
    for name in sorted(facts.state.tags):
        if name not in known:
            yield name, f"the tag has no row in {TABLE}; finish its record or delete the tag"


def _tag_is_free(facts: Facts) -> Problems:
    if facts.wanted is None:
        raise SkipRule("nothing is recorded")
    version = facts.wanted.version
    recorded = next((row for row in facts.state.rows if row.version == version), facts.wanted)
    found = facts.state.tags.get(recorded.tag)
    if found not in (None, facts.wanted.commit):
        yield (
            recorded.tag,
            f"the tag is on {found[:12] if found else ''}, the candidate is "
            f"{facts.wanted.commit[:12]}; a golden tag is never moved: record on another day",
        )


def _row_is_new_or_the_same(facts: Facts) -> Problems:
    if facts.wanted is None:
        raise SkipRule("nothing is recorded")
    for row in facts.state.rows:
        same = (row.commit, row.wheel_sha256) == (facts.wanted.commit, facts.wanted.wheel_sha256)
        if row.version == facts.wanted.version and not same:
            yield (
                f"{TABLE} {row.version}",
                f"was verified as {row.commit[:12]} with wheel {row.wheel_sha256[:12]}, now it is "
                f"{facts.wanted.commit[:12]} with {facts.wanted.wheel_sha256[:12]}; "
                "a version never names two builds",
            )


def _candidate_on_the_branch(facts: Facts) -> Problems:
    if facts.wanted is None:
        raise SkipRule("nothing is recorded")
    facts.state.require_history()
    if facts.wanted.commit not in facts.state.order:
        yield (
            facts.wanted.version,
            f"its commit {facts.wanted.commit[:12]} is no ancestor of "
            f"{facts.state.places.branch} at the remote",
        )


def _cut_from_golden(facts: Facts) -> Problems:
    if facts.changed is None:
        raise SkipRule("no release is cut")
    if not facts.state.rows:
        yield TABLE, "there is no golden commit yet; a release is cut from one"
    for path in facts.changed:
        if not any(re.fullmatch(pattern, path) for pattern in facts.allowed):
            yield (
                path,
                "differs from the golden commit; a release changes version, changelog, citation, "
                "pairing and records only: let the canaries verify a nightly of this change",
            )


def _push_taken(facts: Facts) -> Problems:
    if facts.refused:
        yield (
            facts.state.places.url,
            f"the remote refuses the record, nothing was changed: {facts.refused}; let whoever may "
            "write its protected branches and tags push, or use a pull request",
        )


VERIFY: Final[tuple[Rule[Facts], ...]] = (
    Rule("GOLD101", "The table is oldest first and holds a version once.", _oldest_first),
    Rule("GOLD102", "Every golden commit is an ancestor of the branch.", _on_the_branch),
    Rule("GOLD103", "lkg.version is the newest golden commit by ancestry.", _newest_is_lkg),
    Rule("GOLD104", "Every row has its tag, on its commit.", _rows_have_tags),
    Rule("GOLD105", "Every golden tag has a row.", _tags_have_rows),
)
RECORD: Final[tuple[Rule[Facts], ...]] = (
    Rule("GOLD131", "A tag golden-YYYYMMDD is on no other commit.", _tag_is_free),
    Rule("GOLD132", "A version is recorded with one commit and wheel.", _row_is_new_or_the_same),
    Rule("GOLD133", "The candidate is an ancestor of the branch.", _candidate_on_the_branch),
)
PUSHED: Final[tuple[Rule[Facts], ...]] = (
    Rule("GOLD134", "The remote takes the push.", _push_taken),
)
CUT: Final[tuple[Rule[Facts], ...]] = (
    Rule("GOLD141", "A release differs from a golden commit in records only.", _cut_from_golden),
)
RULES: Final = (*VERIFY, *RECORD, *PUSHED, *CUT)


def staleness(state: State, now: dt.datetime) -> str | None:
    """A warning where the newest golden commit is old, or where there is none."""
    if not state.rows:
        return "there is no golden commit yet"
    row = max(state.rows)
    days = (now - parse_time(row.verified_at)).days
    if days < state.places.stale_days:
        return None
    return (
        f"the newest golden commit {row.commit[:12]} was verified {days} days ago "
        f"(limit {state.places.stale_days})"
    )


# --- writing a record ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """What is missing at the remote.

    Attributes:
        state: the remote that it was computed from.
        row: the record; the row that stands there already where there is one.
        files: new text of the files that change, empty where the row is there.
        tag: whether the tag is missing.
    """

    state: State
    row: Row
    files: Mapping[str, str]
    tag: bool

    @property
    def done(self) -> bool:
        """Whether nothing is missing."""
        return not self.files and not self.tag

    @property
    def message(self) -> str:
        """Message of the record's commit."""
        return f"Record {self.row.version} as golden\n\nVerified commit: {self.row.commit}"


def plan_record(state: State, row: Row) -> Plan:
    """What a record of this row changes at the remote."""
    rows = with_row(state.rows, row)
    present = next(old for old in rows if old.version == row.version)
    wanted = {TABLE: format_table(rows), LKG: f"{state.newest(rows)}\n"}
    current = {TABLE: format_table(state.rows) if state.rows else "", LKG: f"{state.lkg}\n"}
    files = {name: text for name, text in wanted.items() if text != current[name]}
    return Plan(state, present, files, present.tag not in state.tags)


def write_commit(git: Git, plan: Plan, release: Release) -> str:
    """Write the record's commit object on the remote's tip; no ref and no index is touched."""
    parents = list(filter(None, [plan.state.records_tip]))
    return commit_files(git, parents, plan.files, plan.message, release, plan.row.seconds)


def commit_files(  # noqa: PLR0917 - one commit
    git: Git,
    parents: Sequence[str],
    files: Mapping[str, str],
    message: str,
    release: Release,
    seconds: int,
) -> str:
    """Write a commit that changes some files of its first parent.

    Args:
        git: the clone that has the parents.
        parents: commits, none for a first commit.
        files: new text by path; modes stay.
        message: of the commit.
        release: the identity.
        seconds: its date, so that the same content is the same commit.

    Returns:
        Its object name.
    """
    person = {"NAME": release.name, "EMAIL": release.email, "DATE": f"{seconds} +0000"}
    env = {
        f"GIT_{role}_{key}": value
        for role in ("AUTHOR", "COMMITTER")
        for key, value in person.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        git.run("read-tree", parents[0] if parents else "--empty", env=index)
        for name, text in files.items():
            blob = git.run("hash-object", "-w", "--stdin", data=text.encode()).decode().strip()
            known = git.line("ls-files", "--stage", "--", name, env=index)
            mode = known.split(" ", 1)[0] or "100644"
            git.run("update-index", "--add", "--cacheinfo", f"{mode},{blob},{name}", env=index)
        tree = git.line("write-tree", env=index)
    after = [word for parent in parents for word in ("-p", parent)]
    return git.line("commit-tree", "--no-gpg-sign", tree, *after, "-m", message, env=env)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A commit for the branch of a pull request.

    Attributes:
        branch: its name.
        oid: the commit.
        there: whether the remote's branch is this far already.
    """

    branch: str
    oid: str
    there: bool

    @property
    def refspec(self) -> str:
        """What is pushed, which needs no force."""
        return f"{self.oid}:refs/heads/{self.branch}"


def propose(  # noqa: PLR0917 - one commit and where it goes
    git: Git,
    url: str,
    branch: str,
    parent: str,
    files: Mapping[str, str],
    message: str,
    release: Release,
    seconds: int,
) -> Proposal:
    """Write the commit of a pull request; see `commit_files`.

    What is on the branch already is continued, never overwritten: where it is not this very
    change on this very parent, it becomes a second parent, and the content is the new one.
    """
    parents = [parent] if parent else []
    plain = commit_files(git, parents, files, message, release, seconds)
    there = remote_refs(git, url).get(f"refs/heads/{branch}", "")
    if there in {"", plain}:
        return Proposal(branch, plain, bool(there))
    fetch_commit(git, url, there)
    trees = {git.line("rev-parse", f"{oid}^{{tree}}") for oid in (plain, there)}
    if len(trees) == 1 and _has(git, there, parents):
        return Proposal(branch, there, there=True)
    again = commit_files(git, [*parents, there], files, message, release, seconds)
    return Proposal(branch, again, there=False)


def _has(git: Git, commit: str, ancestors: Sequence[str]) -> bool:
    return all(
        git.find("merge-base", "--is-ancestor", each, commit) is not None for each in ancestors
    )


def fetch_commit(git: Git, url: str, oid: str) -> None:
    """Fetch a commit unless it is here; no ref is written."""
    if git.find("cat-file", "-e", f"{oid}^{{commit}}") is None:
        git.run("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", url, oid)


def propose_record(git: Git, plan: Plan, release: Release) -> Proposal:
    """Write the commit of the pull request that brings a record."""
    url, parent = plan.state.places.url, plan.state.records_tip
    return propose(
        *(git, url, branch_of(plan), parent, plan.files, plan.message, release, plan.row.seconds)
    )


def refspecs(plan: Plan, oid: str | None) -> list[str]:
    """What one atomic push sends: the record and the tag, as far as they are missing."""
    specs = [f"{oid}:refs/heads/{plan.state.places.records}"] if oid else []
    return specs + ([f"{plan.row.commit}:refs/tags/{plan.row.tag}"] if plan.tag else [])


class PushRefusedError(Exception):
    """The remote does not take the push, and pushing again would not help."""


def push(git: Git, plan: Plan, release: Release, env: dict[str, str] | None = None) -> None:
    """Push what is missing as one transaction.

    Args:
        git: the clone.
        plan: what is missing.
        release: the identity of the record's commit.
        env: how git gets its credentials.

    Raises:
        PushRefusedError: the remote refuses it (protected branch or tag).
        GitError: anything else, such as a tip that moved.
    """
    oid = write_commit(git, plan, release) if plan.files else None
    try:
        git.run(
            *("push", "--atomic", "--no-follow-tags", "--no-signed"),
            plan.state.places.url,
            *refspecs(plan, oid),
            env=env,
        )
    except GitError as error:
        if _DECLINED.search(str(error)):
            raise PushRefusedError(str(error)) from error
        raise


def pause(attempt: int) -> None:
    """Let whoever was faster finish; processes wait for different times."""
    time.sleep(0.05 * attempt + (os.getpid() % 16) * 0.02)


def branch_of(plan: Plan) -> str:
    """The branch of the pull request that brings a record."""
    return f"golden/{plan.row.version}"


def commands(plan: Plan, proposal: Proposal | None, repository: str) -> list[str]:
    """The lines to print: what a maintainer runs instead of --execute."""
    url = plan.state.places.url
    if proposal is not None:
        push = command_line("push", "--no-follow-tags", url, proposal.refspec)
        return [
            f"# 1. a branch for the pull request with the label {plan.state.places.label!r}",
            "# (it is there already)" if proposal.there else push,
            f"# 2. open it: {repository}, {proposal.branch} into {plan.state.places.records}; "
            "when it has landed, run the same command again: it prints the tag's push",
        ]
    if plan.tag:
        spec = f"{plan.row.commit}:refs/tags/{plan.row.tag}"
        return ["# the record has landed: the tag", command_line("push", url, spec)]
    return [f"# {plan.row.version} is recorded and tagged {plan.row.tag}"]

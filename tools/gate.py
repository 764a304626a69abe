"""Publish what a manifest names from staging to the package index, file by file.

    python tools/gate.py MANIFEST [--execute [--allow-remote]] [--state DIR]

Everything is verified before the first byte is sent: the set, hashes, sizes, quota, and what the
index holds. Each upload is read back; a file leaves staging once the index gave its bytes back.
Two mails tell: accepted, and finished, with the log and the truth. Without --execute only the plan
is printed. A run that stopped anywhere is finished by running it again: what is public and what is
staged is read from the indexes. Exit 3: an index or the mail server did not answer; run it again.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import gate_mail
from files import ROOT
from findings import (
    InconclusiveError,
    Outcome,
    Rule,
    SkipRule,
    UnusableError,
    apply_rules,
    run,
)
from limits import file_limit, quota
from package_index import Index, confirm_execute, from_environment
from project import add_execution, load_project
from publishing import (
    Entry,
    Held,
    Manifest,
    Sent,
    difference,
    differences,
    entry_of,
    held,
    load_manifest,
    mebibytes,
    pause,
    send,
    taken,
    timestamp,
)

Problems = Iterator[tuple[str, str]]
PUBLIC: Final = "public"
ABSENT: Final = "not public"
UNKNOWN: Final = "unknown, the index did not answer"


@dataclass(frozen=True, slots=True)
class Facts:
    """What the gate decides on.

    Attributes:
        name: the manifest's file name.
        manifest: what is asked.
        staged: what staging holds of its releases.
        public: what the package index holds of its releases.
        used: bytes of each project on the package index.
        limit: largest file in bytes.
        quota: largest project in bytes.
    """

    name: str
    manifest: Manifest
    staged: dict[str, Held]
    public: dict[str, Held]
    used: dict[str, int]
    limit: int
    quota: int

    @property
    def missing(self) -> tuple[Entry, ...]:
        """The files that are not on the package index yet."""
        return tuple(entry for entry in self.manifest.entries if entry.file not in self.public)


def _unedited(facts: Facts) -> Problems:
    if not facts.name.endswith(f"-{facts.manifest.digest}.json"):
        yield (
            facts.name,
            f"its text has the digest {facts.manifest.digest}, its name another: it was edited or "
            "renamed after staging; make a new one with `invoke manifest`",
        )


def _staged(facts: Facts) -> Problems:
    for entry in facts.missing:
        if entry.file not in facts.staged:
            yield entry.file, "neither staged nor public; stage it again"


def _same_as_staged(facts: Facts) -> Problems:
    for entry in facts.manifest.entries:
        found = facts.staged.get(entry.file)
        if found is not None and (found.sha256, len(found.data)) != (entry.sha256, entry.size):
            yield (
                entry.file,
                f"staging holds {len(found.data):,} bytes with sha256 {found.sha256[:12]}, the "
                f"manifest says {entry.size:,} bytes with {entry.sha256[:12]}; stage it again",
            )
        elif found is not None and found.lies:
            yield entry.file, f"the staging index: {difference(found, entry)}"


def _own_metadata(facts: Facts) -> Problems:
    for entry in facts.manifest.entries:
        found = facts.staged.get(entry.file)
        if found is None:
            continue
        try:
            said = entry_of(entry.file, found.data)
        except UnusableError as error:
            yield entry.file, str(error)
            continue
        if (said.project, said.version) != (entry.project, entry.version):
            yield (
                entry.file,
                f"the manifest says {entry.project} {entry.version}, the file {said.project} "
                f"{said.version}; make a new manifest with `invoke manifest`",
            )


def _nothing_else(facts: Facts) -> Problems:
    listed = {entry.file for entry in facts.manifest.entries}
    for place, there in (("staging", facts.staged), ("the package index", facts.public)):
        for name in sorted(there.keys() - listed):
            advice = "; `invoke leftovers` deletes it" if place == "staging" else ""
            yield name, f"{place} holds it for this version, the manifest does not list it{advice}"


def _sizes(facts: Facts) -> Problems:
    for entry in facts.manifest.entries:
        if entry.size > facts.limit:
            yield (
                entry.file,
                f"{mebibytes(entry.size)}, the limit is {mebibytes(facts.limit)}; nothing is sent",
            )


def _quota(facts: Facts) -> Problems:
    for project in sorted({entry.project for entry in facts.missing}):
        more = sum(entry.size for entry in facts.missing if entry.project == project)
        used = facts.used[project]
        if used + more > facts.quota:
            yield (
                project,
                f"holds {mebibytes(used)}, {mebibytes(more)} more exceed its quota of "
                f"{mebibytes(facts.quota)}; nothing is sent; see `invoke quota`",
            )


def _index_state(facts: Facts) -> Problems:
    yield from differences(facts.manifest.entries, facts.public, "package")


PREFLIGHT: Final[tuple[Rule[Facts], ...]] = (
    Rule("GATE101", "The manifest is as staging wrote it.", _unedited),
    Rule("GATE102", "Every file of the manifest is staged or public.", _staged),
    Rule("GATE103", "Staged files have the manifest's bytes and sizes.", _same_as_staged),
    Rule(
        "GATE104", "Staged files are what their own metadata and the manifest say.", _own_metadata
    ),
    Rule("GATE105", "Neither index holds another file of these versions.", _nothing_else),
    Rule("GATE106", "No file is over PYPI_FILE_LIMIT_MB.", _sizes),
    Rule("GATE107", "No project grows beyond PYPI_PROJECT_QUOTA_GB.", _quota),
    Rule("GATE108", "What is public already has the manifest's bytes.", _index_state),
)


@dataclass(frozen=True, slots=True)
class Result:
    """What a run led to.

    Attributes:
        attempts: what became of each upload.
        states: what the package index holds at the end, by file of the manifest.
        staged: the manifest's files that are still staged, None where staging did not say.
        waits: why a mail waits, "" where none does.
    """

    attempts: tuple[Sent, ...]
    states: dict[str, str]
    staged: tuple[str, ...] | None
    waits: str


def _taken(result: Result) -> Problems:
    yield from taken(result.attempts)


def _all_public(result: Result) -> Problems:
    for file, state in result.states.items():
        if state not in {PUBLIC, ABSENT, UNKNOWN}:
            yield file, f"is {state}"
    unsettled = [file for file, state in result.states.items() if state in {ABSENT, UNKNOWN}]
    if unsettled:
        raise SkipRule(
            f"not known to be public: {', '.join(unsettled)}; run it again", required=True
        )


def _unstaged(result: Result) -> Problems:
    if result.staged is None:
        raise SkipRule("the staging index did not answer; run it again", required=True)
    if set(result.states.values()) == {PUBLIC}:
        for file in result.staged:
            yield file, "is public and could not be deleted from staging; run it again"


def _told(result: Result) -> Problems:
    if result.waits:
        raise SkipRule(f"{result.waits}; it waits for the next run", required=True)
    yield from ()


RESULT: Final[tuple[Rule[Result], ...]] = (
    Rule("GATE201", "The package index takes every file that it is sent.", _taken),
    Rule("GATE202", "Every file is public at the end.", _all_public),
    Rule("GATE203", "Nothing that is public stays in staging.", _unstaged),
    Rule("GATE204", "Both mails are delivered.", _told),
)
RULES: Final = (*PREFLIGHT, *RESULT)


@dataclass(frozen=True, slots=True)
class Log:
    """The log of all attempts on one manifest; it survives the process at every line."""

    path: Path

    def __call__(self, line: str) -> None:
        """Print a line and append it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(f"{timestamp()} {line}\n")
            stream.flush()
            os.fsync(stream.fileno())
        print(f"gate: {line}", flush=True)

    @property
    def text(self) -> str:
        """Everything logged so far."""
        return self.path.read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Gate:
    """One run with everything that it acts on.

    Attributes:
        manifest: what is published.
        staging: where it is taken from.
        public: where it goes.
        post: where mails go.
        log: what happened.
        patience: seconds that the index's pages may lag behind.
    """

    manifest: Manifest
    staging: Index
    public: Index
    post: gate_mail.Post
    log: Log
    patience: float

    def publish(self, facts: Facts) -> tuple[Sent, ...]:
        """Send what is missing, in order; the first file that fails ends it."""
        attempts: list[Sent] = []
        with tempfile.TemporaryDirectory(prefix="gate-") as folder:
            for number, entry in enumerate(facts.missing, 1):
                path = Path(folder) / entry.file
                path.write_bytes(facts.staged[entry.file].data)
                sent = send(self.public, path, entry, self.patience)
                pause("after-upload", number)
                self.log(f"{sent.state}: {sent.text}")
                attempts.append(sent)
                if sent.state != "there":
                    break
        return tuple(attempts)

    def states(self) -> dict[str, str]:
        """What the package index holds now, by file of the manifest."""
        try:
            there = held(self.public, self.manifest.releases)
        except (InconclusiveError, UnusableError):
            return {entry.file: UNKNOWN for entry in self.manifest.entries}
        return {entry.file: _state(entry, there.get(entry.file)) for entry in self.manifest.entries}

    def clean(self, states: dict[str, str]) -> tuple[str, ...] | None:
        """Delete from staging what is confirmed public, if everything is.

        Returns:
            The manifest's files that are still staged, None where staging did not say.
        """
        try:
            there = held(self.staging, self.manifest.releases)
            mine = [entry for entry in self.manifest.entries if entry.file in there]
            if set(states.values()) == {PUBLIC}:
                self._delete([there[entry.file] for entry in mine])
                there = held(self.staging, self.manifest.releases)
        except (InconclusiveError, UnusableError) as error:
            self.log(f"staging was not cleaned: {error}")
            return None
        return tuple(entry.file for entry in mine if entry.file in there)

    def _delete(self, staged: Sequence[Held]) -> None:
        """Delete files of staging, each only with the manifest's bytes."""
        public = {(entry.file, entry.sha256) for entry in self.manifest.entries}
        for number, each in enumerate(staged, 1):
            if (each.file.name, each.sha256) in public:
                self.staging.remove(each.file)
                self.log(f"deleted from staging: {each.file.name}")
                pause("after-delete", number)

    def mail(self, mail: gate_mail.Mail) -> str:
        """Write a mail and deliver what waits; why something still does."""
        self.post.write(mail, self.manifest)
        waits = self.post.deliver()
        if waits:
            self.log(f"{waits}; it waits in {self.post.folder / 'outbox'} for the next run")
        return waits


def _state(entry: Entry, found: Held | None) -> str:
    if found is None:
        return ABSENT
    return f"WRONG, {difference(found, entry)}" if difference(found, entry) else PUBLIC


def _run(gate: Gate, facts: Facts) -> Outcome:
    """Mail, publish, clean up, mail; the outcome says the worst of it."""
    gate.mail(gate_mail.accepted(gate.manifest))
    attempts = gate.publish(facts)
    states = gate.states()
    staged = gate.clean(states)
    public = sum(state == PUBLIC for state in states.values())
    gate.log(f"{public} of {len(states)} files are public")
    waits = gate.mail(gate_mail.finished(gate.manifest, states, staged, gate.log.text))
    return apply_rules(RESULT, Result(attempts, states, staged, waits))


def load(path: Path, staging: Index, public: Index) -> Facts:
    """Read the manifest and what both indexes hold of it."""
    manifest = load_manifest(path)
    projects = {name for name, _ in manifest.releases}
    used = {name: sum(map(public.size, public.files(name))) for name in projects}
    return Facts(
        name=path.name,
        manifest=manifest,
        staged=held(staging, manifest.releases),
        public=held(public, manifest.releases),
        used=used,
        limit=file_limit(),
        quota=quota(),
    )


def _print_plan(facts: Facts) -> None:
    for entry in facts.manifest.entries:
        verb = "publish" if entry in facts.missing else "already public"
        print(f"gate: {verb}: {entry}")
    for entry in facts.manifest.entries:
        if entry.file in facts.staged:
            print(f"gate: once all are public, no longer staged: {entry.file}")


def _action(arguments: argparse.Namespace) -> Outcome:
    project = load_project(arguments.root.resolve())
    staging, public = from_environment("staging"), from_environment("public")
    if arguments.execute:
        confirm_execute((staging, public), allow_remote=arguments.allow_remote)
    facts = load(arguments.manifest, staging, public)
    _print_plan(facts)
    outcome = apply_rules(PREFLIGHT, facts)
    if not arguments.execute:
        print("gate: nothing was changed; add --execute to do this")
        return outcome
    release = project.release
    notify = str(project.table("release").get("notify", release.email))
    folder = arguments.state / arguments.manifest.stem
    post = gate_mail.load_post(folder, release.email, notify, project.name)
    log = Log(folder / "gate.log")
    gate = Gate(facts.manifest, staging, public, post, log, arguments.patience)
    if outcome.findings:
        log("refused before anything was sent")
        gate.mail(gate_mail.refused(facts.manifest, [str(item) for item in outcome.findings]))
        return outcome
    return _run(gate, facts)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="gate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("manifest", type=Path, help="a publishing manifest")
    add_execution(parser)
    parser.add_argument(
        "--state", type=Path, default=ROOT / "build" / "gate", help="logs and waiting mails"
    )
    parser.add_argument(
        "--patience", type=float, default=120.0, help="seconds that the index's pages may lag"
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="the project")
    return run(parser, _action, argv)


if __name__ == "__main__":
    raise SystemExit(main())

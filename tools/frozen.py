"""What the folders of frozen binaries share: manifest, sources, and the rules that bind them.

A folder bin/ holds binaries and their manifest.json, an entry a file. Nothing here knows what a
binary is or how one is built: build_cpu and build_fatbin add that, and freeze settles both.
"""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from files import ROOT, sha256_of, write_bytes, write_json
from findings import SkipRule, UnusableError

sys.path.insert(0, str(ROOT))
from mmaemu.backends.sources import closure, plain

MANIFEST: Final = "manifest.json"
LOGS: Final = "docs/validation_logs"
Problems = Iterator[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """A folder of binaries, the tree it should belong to, and another build to compare with.

    Attributes:
        folder: how messages call the folder.
        rebuild: command that, followed by a module's name, builds and replaces its binary.
        wanted: the module of every binary asked about, by file name.
        files: content of the folder's files but the manifest, by name.
        modules: the manifest's entries, by file name.
        sources: contents of the sources, by binary and path.
        other: files of the build to compare with; None if there is none.
        ignored: names of files in the folder that git ignores.
        every: whether all binaries of the project were asked about.
    """

    folder: str
    rebuild: str
    wanted: Mapping[str, str]
    files: Mapping[str, bytes]
    modules: Mapping[str, Any]
    sources: Mapping[str, Mapping[str, bytes]]
    other: Mapping[str, bytes] | None = None
    ignored: frozenset[str] = frozenset()
    every: bool = True

    def present(self) -> Iterator[tuple[str, bytes, dict[str, Any]]]:
        """The binaries asked about that are there and listed: name, content, entry."""
        for name in self.wanted:
            if name in self.files and name in self.modules:
                yield name, self.files[name], self.modules[name]


# --- rules ---------------------------------------------------------------------------------------


def listed(facts: Frozen) -> Problems:
    """The folder holds the binaries of the project and their entries only."""
    for name, module in facts.wanted.items():
        for held, what in ((facts.files, "is missing"), (facts.modules, f"is not in {MANIFEST}")):
            if name not in held:
                yield name, f"{what}; run {facts.rebuild} {module}"
    if facts.every:
        for name in sorted({*facts.files, *facts.modules} - set(facts.wanted)):
            yield name, "is no library or fatbin of this project; remove file and entry"


def intact(facts: Frozen) -> Problems:
    """Every binary is the one that its entry describes."""
    for name, data, entry in facts.present():
        if (sha256_of(data), len(data)) != (entry.get("sha256"), entry.get("size")):
            yield name, "is not the file of the manifest; restore it, or build it again"


def fresh(facts: Frozen) -> Problems:
    """Every binary was built from the sources of the tree."""
    for name, _, entry in facts.present():
        recorded = entry.get("sources", {})
        sources = facts.sources[name]
        for path in sorted({*recorded, *sources}):
            what = source_state(recorded.get(path), sources.get(path))
            if what:
                yield f"{name}: {path}", what


def source_state(recorded: str | None, data: bytes | None) -> str | None:
    """What is wrong with one source of a binary, if anything.

    Args:
        recorded: the sha256 in the manifest; None if it does not list the source.
        data: the source on disk; None if it is none (any more).
    """
    if data is None:
        return "is no source of the binary any more, or is missing; build it again"
    if recorded is None:
        return "is a new source of the binary; build it again"
    if recorded != sha256_of(plain(data)):
        return "source changed since the binary was built; build it again"
    if plain(data) != data:
        return (
            "has other line endings or a byte order mark (the source is unchanged); "
            "check it out with LF"
        )
    return None


def equal(facts: Frozen) -> Problems:
    """Another build has the same bytes."""
    if facts.other is None:
        raise SkipRule("no --compare given")
    for name in facts.wanted:
        ours, theirs = facts.files.get(name), facts.other.get(name)
        if theirs is None:
            yield name, "is not in the other build; build it there"
        elif ours is not None and ours != theirs:
            yield name, _first_difference(ours, theirs)


def _first_difference(ours: bytes, theirs: bytes) -> str:
    at = next((i for i, (x, y) in enumerate(zip(ours, theirs, strict=False)) if x != y), None)
    if at is None:
        return f"{len(ours)} bytes here, {len(theirs)} in the other build"
    return f"differs from the other build from byte {at:#x} on; find out why before you replace it"


def kept(facts: Frozen) -> Problems:
    """Git ignores no file of the folder."""
    for name in sorted(facts.ignored):
        yield name, "is ignored by git, so that no clone has it; change .gitignore"


ON_FOLDERS: Final = (listed, intact, fresh, equal, kept)
"""Rules on how a folder and the tree stand to each other; the others are on the binaries."""


# --- files ---------------------------------------------------------------------------------------


def source_files(root: Path, binary: str, names: Sequence[str]) -> dict[str, bytes]:
    """Every source of a binary, includes included, by path below the root.

    Raises:
        UnusableError: a source is missing.
    """
    try:
        return closure(root, *names)
    except OSError as error:
        raise UnusableError(f"expected a source of {binary}: {error}") from error


def read_manifest(folder: Path, schema: str) -> dict[str, Any]:
    """The entries of a manifest by file name; {} if there is none.

    Raises:
        UnusableError: the manifest is no JSON document of the schema.
    """
    path = folder / MANIFEST
    if not path.exists():
        return {}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["schema"] != schema:
            raise UnusableError(f"{path}: expected schema {schema}, got {document['schema']!r}")
        return {name: dict(entry) for name, entry in document["modules"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnusableError(f"{path}: expected a {schema} document, got {error!r}") from error


def write(folder: Path, schema: str, made: Mapping[str, bytes], entries: Mapping[str, Any]) -> None:
    """Write binaries and their entries; other files and entries of the folder stay.

    Raises:
        UnusableError: a file cannot be read back as it was written.
    """
    for name, data in made.items():
        write_bytes(folder / name, data)
    write_entries(folder, schema, {**read_manifest(folder, schema), **entries})
    for name, data in made.items():
        if (folder / name).read_bytes() != data:
            raise UnusableError(f"{folder / name}: differs from what was written; write it again")


def log_folder(root: Path, name: str) -> Path:
    """Where a checkout keeps today's log of this name."""
    return root / LOGS / dt.datetime.now(dt.timezone.utc).date().isoformat() / name


def write_entries(folder: Path, schema: str, entries: Mapping[str, Any]) -> None:
    """Write a manifest."""
    write_json(folder / MANIFEST, {"schema": schema, "modules": dict(entries)})


def read_folder(folder: Path) -> dict[str, bytes]:
    """The files of a folder but its manifest and hidden ones, by name; {} if there is none."""
    if not folder.is_dir():
        return {}
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != MANIFEST and not path.name.startswith(".")
    }


def read_other(folder: Path | None) -> dict[str, bytes] | None:
    """The files of the build given with --compare.

    Raises:
        UnusableError: it is no folder.
    """
    if folder is None:
        return None
    if not folder.is_dir():
        raise UnusableError(f"--compare: expected the folder of a build, got {folder}")
    return read_folder(folder)


def ignored_by_git(root: Path, folder: str) -> frozenset[str]:
    """Names of the files of a folder that git ignores; empty where there is no git checkout.

    What is ignored counts even if git tracks it already: a replaced file would be left behind.
    """
    names = [path.name for path in sorted((root / folder).glob("*"))]
    if not names:
        return frozenset()
    command = ["git", "check-ignore", "--no-index", "-z", "--stdin"]
    listing = "\0".join(f"{folder}/{name}" for name in names)
    try:
        done = subprocess.run(
            command, cwd=root, input=listing, capture_output=True, text=True, check=False
        )
    except OSError:
        return frozenset()
    return frozenset(Path(name).name for name in done.stdout.split("\0") if name)


def chosen(text: str | None, known: Sequence[str]) -> tuple[str, ...]:
    """The modules that a list such as "a,b" names, all of them for None.

    Raises:
        UnusableError: a name is unknown, or there is none.
    """
    if text is None:
        return tuple(known)
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := sorted(set(names) - set(known)):
        raise UnusableError(f"no module {', '.join(unknown)}; known: {', '.join(known)}")
    if not names:
        raise UnusableError(f"the list of modules names none; known: {', '.join(known)}")
    return tuple(name for name in known if name in names)


def state_of(before: str | None, after: str) -> str:
    """What a build did to a file, from its two sha256."""
    return "new" if before is None else "same bytes" if before == after else "changed"

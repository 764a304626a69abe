"""How a frozen binary stands to a rebuild of it, and what may be done about it.

Nothing is taken wholesale: an entry is updated only where the bytes are the same, and other bytes
come into bin/ only by name, file and entry together, without the validation of the old ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import frozen
from fatbin import Entry, read_fatbin
from files import sha256_of
from findings import UnusableError
from frozen import Frozen

# What an entry says about how a binary came about; its bytes do not depend on how that is told.
RECIPE: Final = frozenset({"compiler", "defines", "flags", "sources", "target"})
VALIDATION: Final = "validated_on"
UNCHANGED: Final = "unchanged"
SOURCES: Final = "sources changed"
LINES: Final = "line endings"
DIFFERENT: Final = "different"
PTX_ONLY: Final = "PTX differs"
NEW: Final = "new"
MISSING: Final = "file missing"
UNLISTED: Final = "entry missing"
FILE_EDITED: Final = "file edited"
ENTRY_EDITED: Final = "entry edited"
EXTRA: Final = "of no module"
IGNORED: Final = "ignored by git"
REPLACE: Final = "--replace {module} takes file and entry of the rebuild, without validation"
# What settles each state; nothing for the one that is settled.
REMEDIES: Final = {
    UNCHANGED: "",
    SOURCES: "--settle updates the entry; the bytes are the same",
    LINES: "check the sources out with LF (see .gitattributes)",
    DIFFERENT: REPLACE,
    PTX_ONLY: REPLACE,
    NEW: REPLACE,
    MISSING: f"restore the file from git, or {REPLACE}",
    UNLISTED: f"restore the entry from git, or {REPLACE}",
    FILE_EDITED: f"restore the file from git, or {REPLACE}",
    ENTRY_EDITED: f"restore the entry from git, or {REPLACE}",
    EXTRA: "--remove {module} takes file and entry away",
    IGNORED: "change .gitignore",
}
REPLACEABLE: Final = frozenset(
    {DIFFERENT, PTX_ONLY, NEW, MISSING, UNLISTED, FILE_EDITED, ENTRY_EDITED}
)


@dataclass(frozen=True, slots=True)
class Family:
    """A folder of frozen binaries and what was rebuilt for it.

    Attributes:
        schema: of its manifest.
        facts: the folder and the tree.
        made: the rebuilt binaries, by file name.
        entries: their entries.
        compare: says in words how two binaries differ.
    """

    schema: str
    facts: Frozen
    made: Mapping[str, bytes]
    entries: Mapping[str, Mapping[str, Any]]
    compare: Callable[[bytes, bytes], tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the settlement.

    Attributes:
        family: the folder.
        name: of the file.
        module: name that the options take; that of the file where it belongs to no module.
        state: a key of REMEDIES.
        detail: what differs.
    """

    family: Family
    name: str
    module: str
    state: str
    detail: str = ""

    @property
    def settled(self) -> bool:
        """Whether nothing is left to do."""
        return self.state == UNCHANGED

    @property
    def remedy(self) -> str:
        """What settles it."""
        return REMEDIES[self.state].format(module=self.module)


def rows(family: Family) -> list[Row]:
    """The settlement of a folder: every binary asked about, and what does not belong there."""
    facts = family.facts
    found = []
    for name, module in facts.wanted.items():
        state, detail = _state(family, name)
        found.append(Row(family, name, module, state, detail))
        if name in facts.ignored:
            found.append(Row(family, name, module, IGNORED))
    if facts.every:
        extra = {*facts.files, *facts.modules} - set(facts.wanted)
        found += [Row(family, name, name, EXTRA) for name in sorted(extra)]
        if frozen.MANIFEST in facts.ignored:
            found.append(Row(family, frozen.MANIFEST, frozen.MANIFEST, IGNORED))
    return found


def _state(family: Family, name: str) -> tuple[str, str]:
    data, entry = family.facts.files.get(name), family.facts.modules.get(name)
    if data is None:
        return (NEW, "") if entry is None else (MISSING, "the manifest lists it")
    if entry is None:
        return UNLISTED, "the manifest does not list it"
    if data != family.made[name]:
        return _other_bytes(family, name, data, entry)
    return _same_bytes(family, name, entry)


def _other_bytes(
    family: Family, name: str, data: bytes, entry: Mapping[str, Any]
) -> tuple[str, str]:
    state, detail = family.compare(data, family.made[name])
    if sha256_of(data) != entry.get("sha256"):
        return FILE_EDITED, f"it is not the entry's file; rebuilt: {detail}"
    return state, detail


def _same_bytes(family: Family, name: str, entry: Mapping[str, Any]) -> tuple[str, str]:
    built = family.entries[name]
    keys = {*entry, *built} - {VALIDATION}
    changed = sorted(key for key in keys if entry.get(key) != built.get(key))
    if set(changed) - RECIPE:
        return ENTRY_EDITED, f"same bytes, other {', '.join(changed)}"
    if changed:
        return SOURCES, f"same bytes, other {', '.join(_paths(changed, entry, built))}"
    for path, source in family.facts.sources[name].items():
        if frozen.source_state(built["sources"][path], source):
            return LINES, f"{path}; the source is unchanged"
    return UNCHANGED, ""


def _paths(changed: list[str], entry: Mapping[str, Any], built: Mapping[str, Any]) -> list[str]:
    """What changed in a recipe, sources by their path."""
    old, new = entry.get("sources", {}), built["sources"]
    paths = sorted(path for path in {*old, *new} if old.get(path) != new.get(path))
    return [key for key in changed if key != "sources"] + paths


# --- comparing -----------------------------------------------------------------------------------


def compare_libraries(ours: bytes, theirs: bytes) -> tuple[str, str]:
    """How two libraries differ: the state, and words."""
    first = next((i for i, (x, y) in enumerate(zip(ours, theirs, strict=False)) if x != y), None)
    where = "one is longer" if first is None else f"first at byte {first:#x}"
    return DIFFERENT, f"{len(ours)} and {len(theirs)} bytes, {where}"


def compare_fatbins(ours: bytes, theirs: bytes) -> tuple[str, str]:
    """How two fatbins differ, image by image: the state, and words.

    The machine code of an architecture is equal if every kernel's instructions, registers and stack
    are; the rest of a cubin may differ.
    """
    try:
        old, new = (
            {(each.kind, each.arch): each for each in read_fatbin(data, "the committed file")}
            for data in (ours, theirs)
        )
    except UnusableError as error:
        return DIFFERENT, str(error)
    verdicts: dict[str, list[str]] = {}
    for key in dict.fromkeys((*old, *new)):
        verdict = _image_verdict(old.get(key), new.get(key))
        verdicts.setdefault(f"{'SASS' if key[0] == 'ELF' else 'PTX'} {verdict}", []).append(key[1])
    text = ", ".join(f"{verdict}: {' '.join(archs)}" for verdict, archs in verdicts.items())
    ptx_only = {each for each in verdicts if not each.endswith("equal")} == {"PTX differs"}
    return PTX_ONLY if ptx_only else DIFFERENT, text or "equal images in another order"


def _image_verdict(old: Entry | None, new: Entry | None) -> str:
    if old is None:
        return "only rebuilt"
    if new is None:
        return "only committed"
    if old.data == new.data:
        return "equal"
    same_code = old.kind == "ELF" and old.kernels == new.kernels
    return "equal in code, not in metadata" if same_code else "differs"


# --- settling ------------------------------------------------------------------------------------


def settle(root: Path, row: Row) -> None:
    """Update the entry of a binary whose bytes are the same; its validation stays."""
    facts = row.family.facts
    old = facts.modules[row.name]
    entry = dict(row.family.entries[row.name])
    if VALIDATION in old:
        entry[VALIDATION] = old[VALIDATION]
    frozen.write(root / facts.folder, row.family.schema, {}, {row.name: entry})


def replace(root: Path, row: Row) -> None:
    """Take file and entry of the rebuild together; the new entry has no validation."""
    made, entry = row.family.made[row.name], row.family.entries[row.name]
    folder = root / row.family.facts.folder
    frozen.write(folder, row.family.schema, {row.name: made}, {row.name: entry})


def remove(root: Path, row: Row) -> None:
    """Take away a file and an entry that belong to no module."""
    folder = root / row.family.facts.folder
    (folder / row.name).unlink(missing_ok=True)
    entries = frozen.read_manifest(folder, row.family.schema)
    entries.pop(row.name, None)
    frozen.write_entries(folder, row.family.schema, entries)

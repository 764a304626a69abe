"""The file that a nightly or a release build leaves: what was built, from what, what is published.

It lies beside the files that it lists, written last, so that a folder without one is a build that
did not finish. `published` grows file by file; a run that was stopped is finished from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import jsonschema
from packaging.utils import canonicalize_name
from packaging.version import Version

from files import sha256_of_file, write_bytes, write_json
from findings import UnusableError
from package_index import name_and_version
from project import parse_version
from publishing import Entry

SCHEMA: Final = "nightly-manifest/1"
_TEXT: Final = {"type": "string", "minLength": 1}
_NAMES: Final = {"type": "array", "items": _TEXT}
_OID: Final = {"type": "string", "pattern": "^[0-9a-f]{40,64}$"}
DOCUMENT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "schema": {"const": SCHEMA},
        "version": _TEXT,
        "base": _TEXT,
        "commit": _OID,
        "tree": _OID,
        "started_at": {"type": "string", "pattern": "^[-0-9]{10}T[:0-9]{8}Z$"},
        "builder": _TEXT,
        "files": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "file": _TEXT,
                    "size": {"type": "integer", "minimum": 1},
                    "sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
                },
                "required": ["file", "size", "sha256"],
                "additionalProperties": False,
            },
        },
        "pairing": {"type": "object", "additionalProperties": _TEXT},
        "missing": _NAMES,
        "published": _NAMES,
    },
    "additionalProperties": False,
}
DOCUMENT["required"] = list(DOCUMENT["properties"])


@dataclass(frozen=True, slots=True)
class NightlyManifest:
    """One build.

    Attributes:
        folder: where its files lie.
        version: of every file.
        base: the version without suffix.
        commit: what it was built from.
        tree: that commit's tree.
        started_at: UTC, RFC 3339.
        builder: what built it.
        entries: the files, in the order in which they are published.
        pairing: which version of what belongs to this one.
        missing: distributions that could not be built.
        published: names of the files that the nightly index has, with these bytes.
    """

    folder: Path
    version: str
    base: str
    commit: str
    tree: str
    started_at: str
    builder: str
    entries: tuple[Entry, ...]
    pairing: Mapping[str, str]
    missing: tuple[str, ...] = ()
    published: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """The manifest's own file."""
        return self.folder / f"nightly-manifest-{self.version}.json"

    @property
    def waiting(self) -> tuple[Entry, ...]:
        """The files that are not published yet."""
        return tuple(entry for entry in self.entries if entry.file not in self.published)

    @property
    def distributions(self) -> frozenset[str]:
        """Canonical names of what was asked for."""
        missing = {str(canonicalize_name(name)) for name in self.missing}
        return frozenset({entry.project for entry in self.entries} | missing)

    def publish(self, name: str) -> NightlyManifest:
        """The manifest with one more published file, written."""
        changed = replace(self, published=(*self.published, name))
        changed.write()
        return changed

    def write(self) -> None:
        """Write the manifest."""
        rows = [
            {"file": entry.file, "size": entry.size, "sha256": entry.sha256}
            for entry in self.entries
        ]
        write_json(
            self.path,
            {
                "schema": SCHEMA,
                "version": self.version,
                "base": self.base,
                "commit": self.commit,
                "tree": self.tree,
                "started_at": self.started_at,
                "builder": self.builder,
                "files": rows,
                "pairing": dict(self.pairing),
                "missing": list(self.missing),
                "published": list(self.published),
            },
        )

    def keep(self, paths: Mapping[str, Path], beside: Mapping[str, bytes]) -> None:
        """Put the files and what belongs beside them into the folder, the manifest last.

        Args:
            paths: where each file was built, by name.
            beside: further files by name, such as a list of pins.
        """
        for name, path in paths.items():
            write_bytes(self.folder / name, path.read_bytes())
        for name, data in beside.items():
            write_bytes(self.folder / name, data)
        self.write()

    def intact(self) -> Iterator[tuple[str, str]]:
        """The files in the folder that are not what the manifest says."""
        for entry in self.entries:
            path = self.folder / entry.file
            if not path.is_file() or sha256_of_file(path) != entry.sha256:
                yield (
                    entry.file,
                    f"is missing or not the file that {self.path.name} lists; remove {self.folder} "
                    "and build again",
                )


def read(path: Path) -> NightlyManifest:
    """Read a manifest.

    Raises:
        UnusableError: it is none; the message names the key.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnusableError(f"cannot read {path}: {error}") from error
    validator = jsonschema.Draft202012Validator(DOCUMENT)
    for wrong in validator.iter_errors(document):
        raise UnusableError(f"{path}: {wrong.json_path[2:] or 'document'}: {wrong.message}")
    return NightlyManifest(
        folder=path.parent,
        version=document["version"],
        base=document["base"],
        commit=document["commit"],
        tree=document["tree"],
        started_at=document["started_at"],
        builder=document["builder"],
        entries=tuple(_entry(row, document["version"], path) for row in document["files"]),
        pairing=document["pairing"],
        missing=tuple(document["missing"]),
        published=tuple(document["published"]),
    )


def _entry(row: Mapping[str, Any], version: str, path: Path) -> Entry:
    named = name_and_version(row["file"])
    if named is None or named[1] != parse_version(version):
        raise UnusableError(f"{path}: files: {row['file']!r} is not a distribution of {version}")
    return Entry(named[0], version, row["file"], row["size"], row["sha256"])


def all_in(folder: Path) -> list[NightlyManifest]:
    """Every manifest below a folder, oldest version first."""
    found = [read(path) for path in folder.glob("*/nightly-manifest-*.json")]
    return sorted(found, key=lambda manifest: Version(manifest.version))

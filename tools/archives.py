"""Wheels, sdists and source trees as plain records: the facts that check_dist looks at."""

from __future__ import annotations

import csv
import email
import email.message
import io
import json
import stat
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from files import sha256_of
from findings import UnusableError
from project import Project

CACHES: Final = frozenset(
    {
        "__pycache__",
        ".git",
        ".hypothesis",
        ".import_linter_cache",
        ".mypy_cache",
        ".nox",
        ".pytest_cache",
        ".ruff_cache",
        ".venv",
        "build",
        "dist",
        "site",
    }
)
BINARIES: Final = (".fatbin", ".so", ".dylib", ".dll")
MANIFEST: Final = "manifest.json"


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of an archive as stored.

    Attributes:
        name: as stored, prefix included.
        mode: permission and type bits; 0 where the archive stores none.
        regular: whether it is a plain file (no folder, link or device).
    """

    name: str
    mode: int
    regular: bool


@dataclass(frozen=True, slots=True)
class Tree:
    """A source tree on disk.

    Attributes:
        project: names and places.
        version: of the version file.
        files: every file's bytes by relative path, caches and build output left out.
        modes: permission bits by relative path.
    """

    project: Project
    version: str
    files: dict[str, bytes]
    modes: dict[str, int]

    def below(self, folder: str) -> dict[str, bytes]:
        """The files below a folder."""
        return {name: data for name, data in self.files.items() if name.startswith(f"{folder}/")}


@dataclass(frozen=True, slots=True)
class Options:
    """What is asked of the artefacts.

    Attributes:
        tag: the release tag, None where none is asked for.
        require_binaries: whether the wheel must hold every binary folder of the tree.
        limit: largest file that the package index takes, in bytes; equal passes.
    """

    tag: str | None
    require_binaries: bool
    limit: int


@dataclass(frozen=True, slots=True)
class Artefact:
    """A wheel or an sdist, read completely.

    Attributes:
        path: the file.
        kind: "wheel" or "sdist".
        size: in bytes.
        members: entries in order, duplicates included.
        files: bytes of the regular members, names as in the tree for an sdist (prefix removed).
        prefix: the sdist's top folder, "" for a wheel.
        tree: what it was built from.
        options: what is asked.
    """

    path: Path
    kind: str
    size: int
    members: tuple[Member, ...]
    files: dict[str, bytes]
    prefix: str
    tree: Tree
    options: Options

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.name

    @property
    def info(self) -> str:
        """The wheel's dist-info folder, "" for an sdist."""
        if self.kind == "sdist":
            return ""
        return next(
            (name.split("/")[0] for name in self.files if name.endswith(".dist-info/METADATA")), ""
        )

    @property
    def metadata(self) -> email.message.Message:
        """The core metadata."""
        name = "PKG-INFO" if self.kind == "sdist" else f"{self.info}/METADATA"
        return email.message_from_string(self.text(name))

    @property
    def wheel(self) -> email.message.Message:
        """The wheel's own WHEEL file."""
        return email.message_from_string(self.text(f"{self.info}/WHEEL"))

    @property
    def record(self) -> list[list[str]]:
        """The rows of RECORD."""
        return list(csv.reader(io.StringIO(self.text(f"{self.info}/RECORD"))))

    def text(self, name: str) -> str:
        """A member as text, "" where it is missing."""
        return self.files.get(name, b"").decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Bin:
    """A folder of frozen binaries with its manifest.

    Attributes:
        folder: path in the tree or the artefact.
        modules: manifest entries by module name, None where there is no manifest.
        files: bytes of everything else in the folder, by file name.
        problem: why the manifest cannot be used, "" where it can.
    """

    folder: str
    modules: dict[str, dict[str, Any]] | None
    files: dict[str, bytes]
    problem: str = ""

    @property
    def listed(self) -> dict[str, dict[str, Any]]:
        """Manifest entries by the file that they name."""
        return {str(entry.get("file", name)): entry for name, entry in (self.modules or {}).items()}


def bins(files: dict[str, bytes], package: str) -> tuple[Bin, ...]:
    """The binary folders of a package: every folder named `bin` in it."""
    found: dict[str, dict[str, bytes]] = {}
    for name, data in files.items():
        path = PurePosixPath(name)
        if path.parts[0] == package and path.parent.name == "bin":
            found.setdefault(str(path.parent), {})[path.name] = data
    return tuple(_bin(folder, found[folder]) for folder in sorted(found))


def _bin(folder: str, files: dict[str, bytes]) -> Bin:
    rest = {name: data for name, data in files.items() if name != MANIFEST}
    if MANIFEST not in files:
        return Bin(folder, None, rest, f"no {MANIFEST}; freeze the binaries or remove them")
    try:
        modules = json.loads(files[MANIFEST])["modules"]
        return Bin(folder, {name: dict(entry) for name, entry in modules.items()}, rest)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return Bin(folder, None, rest, f"{MANIFEST} is no JSON object with `modules`: {error!r}")


def load_tree(project: Project) -> Tree:
    """Read a source tree, without caches and build output."""
    files: dict[str, bytes] = {}
    modes: dict[str, int] = {}
    for path in sorted(project.root.rglob("*")):
        name = path.relative_to(project.root)
        if is_cache(name.parts[0]) or _is_left_behind(name) or not path.is_file():
            continue
        files[name.as_posix()] = path.read_bytes()
        modes[name.as_posix()] = stat.S_IMODE(path.stat().st_mode)
    return Tree(project, project.version, files, modes)


def is_cache(top: str) -> bool:
    """Whether a name at the top of a tree is a cache, an environment or build output."""
    return top in CACHES or top.startswith(".venv") or top.endswith(".egg-info")


def _is_left_behind(name: Path) -> bool:
    """Whether a tool left it anywhere in the tree; only build, dist and site may be sources."""
    hidden = {cache for cache in CACHES if cache.startswith((".", "_"))}
    return name.suffix == ".pyc" or not hidden.isdisjoint(name.parts)


def load_artefact(path: Path, tree: Tree, options: Options) -> Artefact:
    """Read a wheel or an sdist completely.

    Args:
        path: a .whl or .tar.gz file.
        tree: what it was built from.
        options: what is asked of it.

    Raises:
        UnusableError: another kind of file, or one that cannot be read.
    """
    try:
        if path.suffix == ".whl":
            members, files = _read_wheel(path)
            return Artefact(path, "wheel", path.stat().st_size, members, files, "", tree, options)
        if path.name.endswith(".tar.gz"):
            members, files, prefix = _read_sdist(path)
            size = path.stat().st_size
            return Artefact(path, "sdist", size, members, files, prefix, tree, options)
    except (OSError, zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        raise UnusableError(f"cannot read {path}: {error}") from error
    raise UnusableError(f"{path} is neither a wheel (.whl) nor an sdist (.tar.gz)")


def _read_wheel(path: Path) -> tuple[tuple[Member, ...], dict[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        members = tuple(_zip_member(info) for info in archive.infolist())
        files = {
            info.filename: archive.read(info) for info in archive.infolist() if not info.is_dir()
        }
    return members, files


def _zip_member(info: zipfile.ZipInfo) -> Member:
    mode = info.external_attr >> 16
    regular = not info.is_dir() and stat.S_IFMT(mode) in (0, stat.S_IFREG)
    return Member(info.filename, mode, regular)


def _read_sdist(path: Path) -> tuple[tuple[Member, ...], dict[str, bytes], str]:
    members: list[Member] = []
    files: dict[str, bytes] = {}
    with tarfile.open(path, "r:gz") as archive:
        for info in archive:
            members.append(Member(info.name, info.mode, info.isreg()))
            stream = archive.extractfile(info) if info.isreg() else None
            if stream is not None:
                files[info.name] = stream.read()
    prefix = members[0].name.split("/")[0] if members else ""
    stripped = {name.removeprefix(f"{prefix}/"): data for name, data in files.items()}
    return tuple(members), stripped, prefix


def is_binary(name: str) -> bool:
    """Whether a file name is that of a frozen binary."""
    return PurePosixPath(name).suffix in BINARIES


def same(entry: dict[str, Any], data: bytes) -> bool:
    """Whether a manifest entry describes these bytes."""
    return bool(entry.get("sha256") == sha256_of(data) and entry.get("size") == len(data))

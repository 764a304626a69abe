"""Small file helpers of the tools: repository root, hashes, atomic writes, TOML."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import IO, Any, Final

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if sys.platform == "win32":
    import msvcrt

    def try_lock(stream: IO[Any]) -> None:
        """Lock an open file until it is closed or the process ends; OSError where it is locked."""
        msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def try_lock(stream: IO[Any]) -> None:
        """Lock an open file until it is closed or the process ends; OSError where it is locked."""
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)


ROOT: Final = Path(__file__).resolve().parent.parent


def sha256_of(data: bytes) -> str:
    """Hexadecimal sha256 of bytes."""
    return hashlib.sha256(data).hexdigest()


def sha256_of_file(path: Path) -> str:
    """Hexadecimal sha256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def sha256_of_tree(folder: Path) -> dict[str, str]:
    """The sha256 of every file below a folder, by its path relative to the folder, sorted."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256_of_file(path) for path in files}


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file through a temporary file and a rename, so that it is never half there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
        # mkstemp creates private files; what the tools write is meant to be read by everybody.
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def to_json(document: dict[str, Any]) -> str:
    """A JSON document as the tools write it: sorted keys, two blanks, final newline.

    Raises:
        ValueError: the document has no `schema` key.
    """
    if "schema" not in document:
        raise ValueError("a JSON document of the tools needs a `schema` key; add one")
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a JSON document atomically; see `to_json` and `write_bytes`."""
    write_bytes(path, to_json(document).encode())


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML text."""
    document: dict[str, Any] = tomllib.loads(text)
    return document


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file."""
    return parse_toml(path.read_text(encoding="utf-8"))

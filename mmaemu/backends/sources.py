"""Kernel sources: a file with everything it includes, as a compiler and a manifest see it.

Sources are named by their path below the folder of the package, with forward slashes. Their line
ends and a byte order mark are no part of what they say: both are taken away before a source is
compiled or hashed.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

_INCLUDE: Final = re.compile(rb'^(\s*#\s*include\s+)"([^"]+)"', re.MULTILINE)


class Program(NamedTuple):
    """A source as a compiler without files takes it.

    Attributes:
        name: path of the source.
        text: the source, every include naming a header by its path.
        headers: the same for every header, by path.
    """

    name: str
    text: bytes
    headers: dict[str, bytes]


def plain(data: bytes) -> bytes:
    """A source with LF line ends and without byte order mark."""
    return data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")


def _included(name: str, include: bytes) -> str:
    path = os.path.normpath(PurePosixPath(name).parent / include.decode())
    return path.replace(os.sep, "/")


def closure(root: Path, *names: str) -> dict[str, bytes]:
    """Sources and everything that they include, includes included.

    Args:
        root: folder that the paths start at.
        names: paths of the sources.

    Returns:
        The bytes on disk by path, sorted.

    Raises:
        OSError: a source is missing or cannot be read.
    """
    found: dict[str, bytes] = {}
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in found:
            found[name] = (root / name).read_bytes()
            pending += (_included(name, each[1]) for each in _INCLUDE.findall(found[name]))
    return dict(sorted(found.items()))


def hashes(files: Mapping[str, bytes]) -> dict[str, str]:
    """The sha256 of every source as `plain` makes it, by path."""
    return {name: hashlib.sha256(plain(data)).hexdigest() for name, data in files.items()}


def program(files: Mapping[str, bytes], name: str) -> Program:
    """A source and its headers as texts that a compiler finds by path alone.

    The result is the same wherever the files lie.

    Args:
        files: what `closure` found.
        name: path of the source to compile.
    """

    def resolved(path: str) -> bytes:
        def spell(found: re.Match[bytes]) -> bytes:
            return b'%s"%s"' % (found[1], _included(path, found[2]).encode())

        return _INCLUDE.sub(spell, plain(files[path]))

    return Program(name, resolved(name), {path: resolved(path) for path in files if path != name})

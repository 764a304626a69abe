"""Small files in the cache folder: each with its own hash, written whole or not at all.

A folder that cannot be written and a file that was damaged are as good as an empty cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from typing import Final

from mmaemu import _settings

_DIGEST_BYTES: Final = hashlib.sha256().digest_size


def key(*parts: object) -> str:
    """A file name that stands for the parts, which must have unambiguous representations."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def read(folder: str, name: str) -> bytes | None:
    """Return what was stored; None if nothing was, or if it cannot be read or is damaged.

    Args:
        folder: folder in the cache.
        name: file in it.
    """
    try:
        data = (_settings.cache_dir() / folder / name).read_bytes()
    except (OSError, RuntimeError):  # RuntimeError: there is no home folder.
        return None
    digest, content = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    return content if hashlib.sha256(content).digest() == digest else None


def write(folder: str, name: str, content: bytes) -> None:
    """Store content under a name, if the cache can be written.

    Args:
        folder: folder in the cache, made if need be.
        name: file in it; readers see the old file or the new one, never a part.
        content: what to store.
    """
    with contextlib.suppress(OSError, RuntimeError):
        target = _settings.cache_dir() / folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{name[:16]}-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(content).digest() + content)
            os.replace(temporary, target)  # noqa: PTH105 - the name comes from mkstemp.
        except BaseException:
            os.unlink(temporary)  # noqa: PTH108 - as above.
            raise

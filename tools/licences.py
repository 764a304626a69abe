"""The licence texts of a tree: ours verbatim, those of others quoted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from files import sha256_of

# The text of the Apache License 2.0 as published: a licence is quoted verbatim or not at all.
APACHE_SHA256: Final = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"


def licence_problems(files: Mapping[str, bytes]) -> Iterator[tuple[str, str]]:
    """What is wrong with LICENSE, NOTICE and LICENSES/, as (where, message).

    Args:
        files: bytes of the tree's files by path.
    """
    if sha256_of(files.get("LICENSE", b"")) != APACHE_SHA256:
        yield "LICENSE", "is not the verbatim text of the Apache License 2.0; restore it"
    notice = _squeezed(files.get("NOTICE", b""))
    texts = [name for name in files if name.startswith("LICENSES/")]
    if not texts:
        yield "LICENSES", "holds no text; add the licences of the validation sources"
    for name in texts:
        if _squeezed(files[name]) not in notice:
            yield "NOTICE", f"does not quote {name}; copy its whole text"


def _squeezed(data: bytes) -> str:
    """Text without regard to line breaks and indentation."""
    return " ".join(data.decode("utf-8", "replace").split())

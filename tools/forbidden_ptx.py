"""PTX that the kernels' proofs rule out: results that differ by device, or that nobody counted.

A module whose idea needs such an instruction allows it in its row, with a reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

# An instruction and why no kernel may have it, by the pattern that finds it.
FORBIDDEN: Final = (
    (r"\.ftz\b", "it takes subnormal numbers for zero"),
    (r"\.approx\b", "it is not correctly rounded"),
    (
        r"^(add|sub|mul)(\.sat)?\.(f32|f16|f16x2|bf16|bf16x2)\b",
        "without a rounding mode it may be contracted into a fused multiply-add",
    ),
    (r"^(mma|wmma|wgmma|tcgen05)\b", "tensor cores differ from device to device"),
    (r"^(ld|st)\b\S*\.local\b", "local memory means spilled registers or indexed arrays"),
    (r"^call\b", "what is not inlined has a stack"),
    (r"\.f64\b", "few devices have more than a trickle of double precision"),
    (r"^(ex2|lg2|sqrt|rsqrt|rcp|sin|cos|tanh)\.", "it is no IEEE operation on every device"),
    (r"^div\.(?![su]\d)", "a division is no single rounding on every device"),
)
_COMMENT: Final = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_GUARD: Final = re.compile(r"^@!?%\w+\s+")
_ENTRY: Final = re.compile(r"^\s*(?:\.visible\s+)?\.entry\s+([\w$]+)", re.MULTILINE)


def instructions(text: str) -> Iterator[str]:
    """The instructions and directives of a PTX text, without comments, labels and guards."""
    for statement in re.split(r"[;{}\n]", _COMMENT.sub("", text)):
        yield _GUARD.sub("", statement.strip())


def entries(text: str) -> tuple[str, ...]:
    """Names of the kernels of a PTX text, in order."""
    return tuple(_ENTRY.findall(_COMMENT.sub("", text)))


def problems(text: str, allowed: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Forbidden instructions of a PTX text, each kind once with its first example and count.

    Args:
        text: the PTX.
        allowed: patterns of instructions that this module may have, with reasons.
    """
    permitted = [re.compile(pattern) for pattern, _ in allowed]
    lines = [
        line for line in instructions(text) if not any(each.search(line) for each in permitted)
    ]
    for pattern, reason in FORBIDDEN:
        found = [line for line in lines if re.search(pattern, line)]
        if found:
            yield f"`{found[0]}` ({len(found)} times): {reason}"


def unused(texts: Iterable[str], allowed: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Patterns that allow nothing in any of the texts.

    Args:
        texts: the PTX of every architecture.
        allowed: as in `problems`.
    """
    lines = [line for text in texts for line in instructions(text)]
    for pattern, _ in allowed:
        if not any(re.search(pattern, line) for line in lines):
            yield pattern

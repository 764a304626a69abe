"""Inf and NaN codes: outputs whose IEEE sum is not finite get that value (rule N18).

A backend counts non-finite codes as zero. Afterwards every output that a NaN, 0 * Inf or opposite
infinities reach becomes the canonical NaN, and one that infinities of one sign reach becomes that
infinity. What is computed here are counts of non-negative terms, of which only "more than none"
matters: no rounding changes that.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from mmaemu.formats import FORMATS, INFINITE, ZERO

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from mmaemu.gemm.request import AccumulateRequest

_SCAN_PIECE = 1 << 20
"""Codes looked at in one operation, so that its intermediate results take a few MiB."""
_LINES, _DEPTH = 256, 1024
"""Rows, columns and elements of K of one count: its indicators take at most 4 MiB per operand."""

_MAGNITUDE = 0x7F
_NAN = 0x7FFFFFFF
_INFINITY = 0x7F800000
_NEGATIVE_INFINITY = -0x00800000


class Scan(NamedTuple):
    """Which lines (rows of a code matrix) hold non-finite codes.

    Attributes:
        nan: bool [lines], the line holds a NaN.
        infinite: bool [lines], the line holds an Inf and no NaN.
    """

    nan: torch.Tensor
    infinite: torch.Tensor


def scan(codes: torch.Tensor, fmt: str) -> Scan | None:
    """Look for non-finite codes.

    Args:
        codes: uint8 [lines, K], K at least 1.
        fmt: "e4m3" or "e5m2".

    Returns:
        what was found; None if every code is finite, which is the cheap and common answer.
    """
    spec = FORMATS[fmt]
    largest = _largest_magnitudes(codes)
    # Codes of both formats are ordered by magnitude: finite, then Inf (if it exists), then NaN.
    infinity = spec.infinity
    first_nan = _MAGNITUDE if infinity is None else infinity + 1
    if int(largest.amax()) < (first_nan if infinity is None else infinity):
        return None
    nan = largest >= first_nan
    return Scan(nan, torch.zeros_like(nan) if infinity is None else largest == infinity)


def overwrite(acc: torch.Tensor, request: AccumulateRequest) -> None:
    """Replace the accumulators whose IEEE sum is not finite by that sum.

    Args:
        acc: fp32 [M, N], contiguous; what a backend computed for the request.
        request: operands and formats.
    """
    rows, columns = scan(request.a, request.format_a), scan(request.b, request.format_b)
    if rows is None and columns is None:
        return
    a, b = (request.a, request.format_a), (request.b, request.format_b)
    bits = acc.view(torch.int32)
    for lines, target, near, far in ((rows, bits, a, b), (columns, bits.t(), b, a)):
        if lines is not None:
            _overwrite_infinite(lines.infinite, target, near, far)
    for lines, target in ((rows, bits), (columns, bits.t())):
        if lines is not None:
            target.masked_fill_(lines.nan.unsqueeze(1), _NAN)


def _pieces(length: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, length, size))


def _largest_magnitudes(codes: torch.Tensor) -> torch.Tensor:
    """Return the largest code magnitude of every line, uint8 [lines]."""
    lines, depth = codes.shape
    if lines * depth <= _SCAN_PIECE:
        return (codes & _MAGNITUDE).amax(1)
    largest = torch.zeros(lines, dtype=torch.uint8, device=codes.device)
    width = min(depth, _SCAN_PIECE)
    for rows in _pieces(lines, max(1, _SCAN_PIECE // width)):
        for columns in _pieces(depth, width):
            found = (codes[rows, columns] & _MAGNITUDE).amax(1)
            torch.maximum(largest[rows], found, out=largest[rows])
    return largest


def _overwrite_infinite(
    flagged: torch.Tensor,
    bits: torch.Tensor,
    near: tuple[torch.Tensor, str],
    far: tuple[torch.Tensor, str],
) -> None:
    """Write the values of the lines of `near` that hold an Inf.

    Args:
        flagged: bool [lines of near].
        bits: int32 patterns [lines of near, lines of far], written in place.
        near: codes and format of the operand with the flagged lines.
        far: codes and format of the other operand.
    """
    for some in torch.split(flagged.nonzero().squeeze(1), _LINES):
        codes = near[0].index_select(0, some)
        for columns in _pieces(far[0].shape[0], _LINES):
            values = _ieee_values((codes, near[1]), (far[0][columns], far[1]))
            target = bits[:, columns]
            old = target.index_select(0, some)
            target.index_copy_(0, some, torch.where(values == 0, old, values))


def _ieee_values(a: tuple[torch.Tensor, str], b: tuple[torch.Tensor, str]) -> torch.Tensor:
    """Return the pattern of every sum that is not finite, and 0 for the others.

    Args:
        a: codes [m, K] without NaN, and their format.
        b: codes [n, K], and their format; lines with a NaN give any value.

    Returns:
        int32 [m, n].
    """
    shape = (a[0].shape[0], b[0].shape[0])
    device = a[0].device
    counts = torch.zeros((3, *shape), dtype=torch.float32, device=device)
    found = torch.empty(shape, dtype=torch.float32, device=device)
    for part in _pieces(a[0].shape[1], _DEPTH):
        left, right = _indicators(*a, part), _indicators(*b, part)
        # Indicators are (+Inf, -Inf, positive, negative, Inf, zero) along K.
        for count, order in zip(counts, _PARTNERS, strict=True):
            for near, far in order:
                torch.mm(left[near], right[far].t(), out=found)
                count.add_(found)
    plus, minus, invalid = counts > 0
    values = torch.where(plus, _INFINITY, torch.where(minus, _NEGATIVE_INFINITY, 0))
    return values.masked_fill_(invalid | (plus & minus), _NAN).to(torch.int32)


_PLUS, _MINUS, _POSITIVE, _NEGATIVE, _EITHER, _NOUGHT = range(6)
_PARTNERS = (
    ((_PLUS, _POSITIVE), (_MINUS, _NEGATIVE), (_POSITIVE, _PLUS), (_NEGATIVE, _MINUS)),
    ((_PLUS, _NEGATIVE), (_MINUS, _POSITIVE), (_POSITIVE, _MINUS), (_NEGATIVE, _PLUS)),
    ((_EITHER, _NOUGHT), (_NOUGHT, _EITHER)),
)
"""Which indicators of a and b together make +Inf, -Inf and NaN products."""


def _indicators(codes: torch.Tensor, fmt: str, part: slice) -> torch.Tensor:
    """Return 0/1 of each kind for some elements of K, fp32 [6, lines, K of the part]."""
    table = torch.from_numpy(_indicator_table(fmt)).to(codes.device)
    picked = codes[:, part]
    index = picked.reshape(-1).to(torch.int32)
    return table.index_select(1, index).view(6, *picked.shape)


@cache
def _indicator_table(fmt: str) -> NDArray[np.float32]:
    """Return fp32 [6, 256]: for every code 1 where it is of the kind."""
    codes = np.arange(256, dtype=np.uint8)
    classes = FORMATS[fmt].classify(codes)
    infinite, zero, negative = classes == INFINITE, classes == ZERO, codes > _MAGNITUDE
    kinds = (
        infinite & ~negative,
        infinite & negative,
        ~zero & ~negative,
        ~zero & negative,
        infinite,
        zero,
    )
    return np.stack(kinds).astype(np.float32)

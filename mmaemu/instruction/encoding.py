"""Integer views of floating-point tensors: split a code into parts, round a sum back into a code.

Everything is int64 arithmetic on bit patterns. Flush-to-zero, the rounding mode and torch's float
settings have nothing to act on here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from mmaemu.formats import FORMATS, FloatFormat
from mmaemu.instruction.model import Rounding

FP64 = FORMATS["fp64"]
_LAST_SHIFT = 62
_STORAGE: dict[str, tuple[int, torch.dtype, torch.dtype]] = {
    "fp16": (16, torch.int16, torch.float16),
    "fp32": (32, torch.int32, torch.float32),
    "fp64": (64, torch.int64, torch.float64),
}


class Parts(NamedTuple):
    """Numbers as integers: value = significand * 2^(exponent - fraction_bits).

    Attributes:
        significand: int64, signed; 0 where the number is Inf or NaN.
        exponent: int64; for zero and subnormals the format's minimum exponent.
        fraction_bits: position of the significand's binary point.
        negative: bool, the sign bit.
        infinite: bool, the number is an Inf.
        nan: bool, the number is NaN.
    """

    significand: torch.Tensor
    exponent: torch.Tensor
    fraction_bits: int
    negative: torch.Tensor
    infinite: torch.Tensor
    nan: torch.Tensor

    @property
    def zero(self) -> torch.Tensor:
        """Bool, the number is +0 or -0."""
        return (self.significand == 0) & ~self.infinite & ~self.nan

    def take(self, index: slice | torch.Tensor) -> Parts:
        """Return the parts that `index` selects along the last dimension."""
        return self._each(lambda part: part[..., index])

    def unsqueeze(self) -> Parts:
        """Return the parts with one more, last dimension of length 1."""
        return self._each(lambda part: part.unsqueeze(-1))

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Parts:
        return Parts(
            change(self.significand),
            change(self.exponent),
            self.fraction_bits,
            change(self.negative),
            change(self.infinite),
            change(self.nan),
        )


def split(codes: torch.Tensor, fmt: FloatFormat) -> Parts:
    """Split codes of an IEEE-like format (fp16, fp32, fp64) into parts. Exact.

    Args:
        codes: int64 bit patterns of any shape, as `to_codes` gives them.
        fmt: their format.

    Returns:
        parts of the same shape.
    """
    width = fmt.exponent_bits + fmt.fraction_bits
    magnitude = codes & ((1 << width) - 1)
    field = magnitude >> fmt.fraction_bits
    fraction = magnitude & ((1 << fmt.fraction_bits) - 1)
    negative = (codes >> width) & 1 == 1
    special = field == (1 << fmt.exponent_bits) - 1
    significand = fraction | ((field > 0).to(torch.int64) << fmt.fraction_bits)
    return Parts(
        torch.where(negative, -significand, significand).masked_fill(special, 0),
        field.clamp(min=1) - fmt.bias,
        fmt.fraction_bits,
        negative,
        special & (fraction == 0),
        special & (fraction != 0),
    )


def split_values(codes: torch.Tensor, fmt: FloatFormat) -> Parts:
    """Split float64 numbers that are values of `fmt` into parts on that format's own grid. Exact.

    Args:
        codes: int64 bit patterns of float64 numbers, each a value of `fmt`.
        fmt: the format; its subnormals keep its minimum exponent (N1).

    Returns:
        parts of the same shape.
    """
    parts = split(codes, FP64)
    exponent = parts.exponent.clamp(min=fmt.min_exponent)
    drop = exponent - parts.exponent + (FP64.fraction_bits - fmt.fraction_bits)
    return parts._replace(
        significand=shift(parts.significand, -drop),
        exponent=exponent,
        fraction_bits=fmt.fraction_bits,
    )


def shift(value: torch.Tensor, left: torch.Tensor) -> torch.Tensor:
    """Return value * 2^left truncated toward zero.

    Args:
        value: int64 with |value| < 2^62; the shifted magnitude must stay below 2^63.
        left: int64, negative for a right shift.

    Returns:
        int64 of the broadcast shape.
    """
    magnitude = value.abs()
    up = magnitude << left.clamp(0, _LAST_SHIFT)
    down = magnitude >> (-left).clamp(0, _LAST_SHIFT)
    moved = torch.where(left >= 0, up, down)
    return torch.where(value < 0, -moved, moved)


def shift_down(value: torch.Tensor, left: torch.Tensor) -> torch.Tensor:
    """Return value * 2^left rounded toward minus infinity; arguments as `shift`."""
    up = value << left.clamp(0, _LAST_SHIFT)
    down = value >> (-left).clamp(0, _LAST_SHIFT)
    return torch.where(left >= 0, up, down)


def bit_length(value: torch.Tensor) -> torch.Tensor:
    """Return the number of bits of int64 magnitudes below 2^53; 0 for 0.

    The conversion to float64 is exact, so its exponent field is the position of the leading bit.
    """
    field = value.to(torch.float64).view(torch.int64) >> FP64.fraction_bits
    return (field - (FP64.bias - 1)).masked_fill(value == 0, 0)


def round_to_code(
    significand: torch.Tensor,
    exponent: torch.Tensor,
    fmt: FloatFormat,
    fraction_bits: int,
    rounding: Rounding,
) -> torch.Tensor:
    """Convert significand * 2^exponent into codes of `fmt` (N6).

    Truncated or rounded once, as `rounding` says. Below the minimum exponent the grid stays that
    of the subnormals; a magnitude beyond the largest finite value gives Inf. Zero gives +0; a
    value that vanishes in the rounding keeps its sign.

    Args:
        significand: int64 with |significand| < 2^53.
        exponent: int64 of the same shape.
        fmt: fp16 or fp32.
        fraction_bits: fraction bits that a result keeps, at most those of `fmt`.
        rounding: "toward zero" or "nearest even".

    Returns:
        int64 codes, zero-extended, of the same shape.
    """
    magnitude = significand.abs()
    target = (bit_length(magnitude) - 1 + exponent).clamp(min=fmt.min_exponent)
    drop = target - fraction_bits - exponent
    kept = shift(magnitude, -drop)
    if rounding == "nearest even":
        # One more bit decides; a sticky bit says whether anything non-zero lies below it.
        twice = shift(magnitude, 1 - drop)
        sticky = shift(twice, drop - 1) != magnitude
        odd_half = (twice & 1 == 1) & (sticky | (kept & 1 == 1))
        kept = kept + odd_half.to(torch.int64)
    # A normal `kept` carries the implicit bit, which adds one to the exponent field.
    code = ((target - fmt.min_exponent) << fmt.fraction_bits) + (
        kept << (fmt.fraction_bits - fraction_bits)
    )
    code = code.clamp(max=infinity(fmt)).masked_fill(magnitude == 0, 0)
    return torch.where(significand < 0, code | sign_bit(fmt), code)


def convert(codes: torch.Tensor, source: FloatFormat, target: FloatFormat) -> torch.Tensor:
    """Convert codes to another format as IEEE 754 does. Rounded once, nearest even.

    Args:
        codes: int64 codes of `source`, any shape.
        source: fp16, fp32 or fp64.
        target: fp16 or fp32.

    Returns:
        int64 codes of `target`; a zero keeps its sign, a NaN is the canonical one.
    """
    parts = split(codes, source)
    unit = parts.exponent - parts.fraction_bits
    result = round_to_code(
        parts.significand, unit, target, target.fraction_bits, "nearest even"
    ).masked_fill(parts.zero & parts.negative, sign_bit(target))
    return with_specials(result, (parts.unsqueeze(),), target)


def is_value_of(codes: torch.Tensor, fmt: FloatFormat) -> torch.Tensor:
    """Say which float64 numbers are values of a format. A zero may have either sign.

    Args:
        codes: int64 codes of float64 numbers, any shape.
        fmt: the format.

    Returns:
        bool of the same shape. Inf and NaN count where the format has them.
    """
    parts = split(codes, FP64)
    exponent = parts.exponent.clamp(min=fmt.min_exponent)
    drop = exponent - parts.exponent + (FP64.fraction_bits - fmt.fraction_bits)
    on_grid = shift(shift(parts.significand, -drop), drop) == parts.significand
    largest = int(np.float64(fmt.max_finite).view(np.int64))
    finite = on_grid & ((codes & ~sign_bit(FP64)) <= largest)
    if not fmt.signed:
        finite = finite & ~(parts.negative & ~parts.zero)
    if fmt.specials == "exponent":
        finite = finite & ~parts.zero
    good = torch.where(parts.infinite, fmt.infinity is not None, finite)
    return torch.where(parts.nan, fmt.canonical_nan is not None, good)


def sign_bit(fmt: FloatFormat) -> int:
    """Return the code of -0 as an int64 pattern."""
    bit = 1 << (fmt.bits - 1)
    return bit - (1 << FP64.bits) if fmt.bits == FP64.bits else bit


def infinity(fmt: FloatFormat) -> int:
    """Return the code of +Inf in a format that has one."""
    if fmt.infinity is None:
        raise ValueError(f"format {fmt.name} has no infinity and cannot hold a result")
    return fmt.infinity


def with_specials(codes: torch.Tensor, terms: Sequence[Parts], fmt: FloatFormat) -> torch.Tensor:
    """Put in what the IEEE sum of the terms is where it is not finite (N9).

    Args:
        codes: int64 codes of the finite sums, [...].
        terms: the addends; an element of `codes` is the sum over their last dimension.
        fmt: format of the codes.

    Returns:
        int64: canonical NaN for a NaN or both infinities, the infinity for one, else the code.
    """
    nan = torch.zeros_like(codes, dtype=torch.bool)
    infinite = {False: nan, True: nan}
    for term in terms:
        nan = nan | term.nan.any(dim=-1)
        for sign, seen in infinite.items():
            infinite[sign] = seen | (term.infinite & (term.negative == sign)).any(dim=-1)
    codes = codes.masked_fill(infinite[False], infinity(fmt))
    codes = codes.masked_fill(infinite[True], infinity(fmt) | sign_bit(fmt))
    return codes.masked_fill(nan | (infinite[False] & infinite[True]), fmt.canonical_nan or 0)


def to_codes(values: torch.Tensor, fmt: FloatFormat) -> torch.Tensor:
    """Return the bit patterns of a tensor as zero-extended int64. Exact.

    Args:
        values: tensor of the dtype that `fmt` names: float16, float32 or float64.
        fmt: fp16, fp32 or fp64.

    Returns:
        int64 codes; a float64 pattern with its sign bit set is a negative int64.
    """
    width, integer, _ = _STORAGE[fmt.name]
    codes = values.contiguous().view(integer).to(torch.int64)
    return codes if width == FP64.bits else codes & ((1 << width) - 1)


def from_codes(codes: torch.Tensor, fmt: FloatFormat) -> torch.Tensor:
    """Return the floating-point tensor whose bit patterns are `codes`. Exact.

    Args:
        codes: int64, as `to_codes` gives them.
        fmt: fp16, fp32 or fp64.

    Returns:
        float16, float32 or float64 tensor of the same shape.
    """
    width, integer, dtype = _STORAGE[fmt.name]
    if width < FP64.bits:
        sign = 1 << (width - 1)
        codes = (codes ^ sign) - sign
    return codes.to(integer).contiguous().view(dtype)

"""From fp32 accumulators to the output: one scale, one or two roundings (rule N19).

    alpha = RN32(scale_a * scale_b)
    y     = RN32(acc * alpha + 0), so an exact zero is +0 and an underflow keeps its sign
    out   = y (fp32), RNE(y) (bf16, fp16) or RNE(saturate(RN32(y * scale_result))) (fp8)

Every rounding is integer arithmetic on bit patterns, and every float operation is exact on normal
numbers, so neither flush-to-zero nor the rounding mode of any thread changes a bit. All tensors
are worked on in pieces of `PIECE` elements, which bounds the memory beside operand and result.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch

from mmaemu.formats import FORMATS, FloatFormat, format_of

if TYPE_CHECKING:
    from collections.abc import Callable

PIECE = 1 << 15
"""Elements worked on at once, with up to 10 intermediate tensors of 8 bytes an element: 3 MiB."""

OUT_FORMATS = ("fp32", "bf16", "fp16", "e4m3", "e5m2")
"""Short names of the output formats."""

_OUT_DTYPES = frozenset(getattr(torch, str(FORMATS[name].torch_name)) for name in OUT_FORMATS)
_FP32 = FORMATS["fp32"]
_MAGNITUDE = 0x7FFFFFFF
_INFINITY = 0x7F800000
_NAN = 0x7FFFFFFF
_FRACTION = 0x007FFFFF
_IMPLICIT = 0x00800000
_SIGN = -(1 << 31)
_LEAST_NORMAL = 2.0**-126
_PACK_FP32 = struct.Struct("=f").pack
_UNPACK_BITS = struct.Struct("=I").unpack
_CODE_DTYPES = {8: torch.uint8, 16: torch.int16, 32: torch.int32}


class Scale(NamedTuple):
    """One fp32 number taken apart: (-1)^negative * significand * 2^exponent, or Inf, or NaN.

    Attributes:
        bits: its pattern, 0 <= bits < 2^32.
        negative: its sign.
        significand: an int below 2^24; 0 for zero, Inf and NaN.
        exponent: exponent of the significand's unit.
        infinite: whether it is an Inf.
        nan: whether it is a NaN.
    """

    bits: int
    negative: bool
    significand: int
    exponent: int
    infinite: bool
    nan: bool

    @classmethod
    def of_bits(cls, bits: int) -> Scale:
        """Take an fp32 pattern apart."""
        field, fraction = bits >> 23 & 0xFF, bits & _FRACTION
        negative = bool(bits >> 31 & 1)
        if field == 0xFF:  # noqa: PLR2004 - all ones: Inf or NaN
            return cls(bits, negative, 0, 0, fraction == 0, fraction != 0)
        significand = fraction | (_IMPLICIT if field else 0)
        return cls(bits, negative, significand, max(field, 1) - 150, infinite=False, nan=False)

    @property
    def zero(self) -> bool:
        """Whether it is a zero of either sign."""
        return self.bits & _MAGNITUDE == 0

    @property
    def value(self) -> float:
        """The number as a Python float. Exact; for finite numbers."""
        return math.ldexp(-self.significand if self.negative else self.significand, self.exponent)


def multiply_scales(first: int, second: int) -> int:
    """Return the fp32 product of two fp32 numbers, all given as patterns. Rounded once.

    Args:
        first: pattern of one factor.
        second: pattern of the other.

    Returns:
        pattern of RN32(first * second); 0x7FFFFFFF for NaN.
    """
    x, y = Scale.of_bits(first), Scale.of_bits(second)
    sign = (x.negative ^ y.negative) << 31
    if x.nan or y.nan or (x.infinite and y.zero) or (y.infinite and x.zero):
        return _NAN
    if x.infinite or y.infinite:
        return sign | _INFINITY
    if x.zero or y.zero:
        return sign
    product, exponent = x.significand * y.significand, x.exponent + y.exponent
    # The unit of the result: 24 significant bits, but never below 2^-149.
    unit = max(exponent + product.bit_length() - 24, -149)
    shift = unit - exponent
    if shift <= 0:
        kept = product << -shift
    else:
        half = (1 << shift) >> 1
        kept = (product + half - 1 + (product >> shift & 1)) >> shift
    # A 24-bit `kept` carries the implicit bit, which adds one to the exponent field.
    return sign | min(kept + ((unit + 149) << 23), _INFINITY)


@dataclass(frozen=True, slots=True)
class Epilogue:
    """What happens to an accumulator, with the scales read and multiplied.

    Attributes:
        out_dtype: the output's torch dtype: float32, bfloat16, float16, float8_e4m3fn or _e5m2.
        alpha: fp32 pattern of RN32(scale_a * scale_b).
        scale_result: fp32 pattern of the fp8 output's scale; None for none and for other outputs.
    """

    out_dtype: torch.dtype
    alpha: int
    scale_result: int | None = None

    @property
    def format(self) -> FloatFormat:
        """The output's format."""
        return format_of(self.out_dtype)


@dataclass(frozen=True, slots=True)
class UnreadEpilogue:
    """What happens to an accumulator, with scales that only the device reads.

    Attributes:
        out_dtype: as `Epilogue`.
        scale_a: fp32, one element.
        scale_b: fp32, one element.
        scale_result: fp32, one element; None for none and for outputs other than fp8.
    """

    out_dtype: torch.dtype
    scale_a: torch.Tensor
    scale_b: torch.Tensor
    scale_result: torch.Tensor | None = None


def unread(
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    *,
    out_dtype: torch.dtype,
    scale_result: torch.Tensor | None = None,
) -> UnreadEpilogue:
    """Check scales and output type as `prepare` does, but read no scale: nothing is waited for.

    Raises:
        TypeError: as `prepare`.
        ValueError: as `prepare`.
    """
    _check_out_dtype(out_dtype)
    first, second = _one_element("scale_a", scale_a), _one_element("scale_b", scale_b)
    result = None
    if scale_result is not None:
        result = _one_element("scale_result", scale_result)
    return UnreadEpilogue(out_dtype, first, second, result if out_dtype.itemsize == 1 else None)


def prepare(
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    *,
    out_dtype: torch.dtype,
    scale_result: torch.Tensor | None = None,
) -> Epilogue:
    """Read the scales (on a GPU: waits for it) and multiply them.

    Args:
        scale_a: fp32, one element, any shape.
        scale_b: fp32, one element, any shape.
        out_dtype: torch.float32, bfloat16, float16, float8_e4m3fn or float8_e5m2.
        scale_result: fp32, one element, or None. It has no effect unless the output is fp8.

    Returns:
        the epilogue to hand to `finish`.

    Raises:
        TypeError: a scale is no fp32 tensor, or out_dtype none of the five.
        ValueError: a scale has not exactly one element.
    """
    _check_out_dtype(out_dtype)
    first, second = _scale_bits("scale_a", scale_a), _scale_bits("scale_b", scale_b)
    result = None if scale_result is None else _scale_bits("scale_result", scale_result)
    return _combined(out_dtype, first, second, result)


@lru_cache(maxsize=1024)
def _combined(out_dtype: torch.dtype, first: int, second: int, result: int | None) -> Epilogue:
    alpha = multiply_scales(first, second)
    return Epilogue(out_dtype, alpha, result if out_dtype.itemsize == 1 else None)


def apply(
    acc32: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    *,
    out_dtype: torch.dtype,
    scale_result: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return what the GEMM's epilogue makes of fp32 accumulators. Each step is rounded once.

    Args:
        acc32: fp32 accumulators of any shape, layout and value.
        scale_a: fp32, one element.
        scale_b: fp32, one element.
        out_dtype: torch.float32, bfloat16, float16, float8_e4m3fn or float8_e5m2.
        scale_result: fp32, one element, or None. It has no effect unless the output is fp8.

    Returns:
        a new contiguous tensor of acc32's shape on its device. A NaN is the output type's
        canonical one: 0x7FFFFFFF, 0x7FFF or 0x7F.

    Raises:
        TypeError: acc32 or a scale is no fp32 tensor, or out_dtype none of the five.
        ValueError: a scale has not exactly one element.
    """
    _check_fp32("acc32", acc32)
    epilogue = prepare(scale_a, scale_b, out_dtype=out_dtype, scale_result=scale_result)
    acc = acc32.detach().resolve_neg().contiguous()
    out = torch.empty(acc.shape, dtype=out_dtype, device=acc.device)
    finish(acc, epilogue, out)
    return out


def finish(acc: torch.Tensor, epilogue: Epilogue, out: torch.Tensor) -> None:
    """Write the outputs of fp32 accumulators into `out`.

    Args:
        acc: fp32, contiguous.
        epilogue: what to do.
        out: epilogue.out_dtype, contiguous, with as many elements; it may share acc's memory if
            it is fp32.
    """
    fmt = epilogue.format
    source = acc.view(-1)
    target = out.view(-1).view(_CODE_DTYPES[fmt.bits])
    steps = _steps(epilogue, fmt)
    for start in range(0, source.numel(), PIECE):
        bits = source[start : start + PIECE].view(torch.int32)
        for step in steps:
            bits = step(bits)
        target[start : start + PIECE].copy_(bits)


def _steps(
    epilogue: Epilogue, fmt: FloatFormat
) -> tuple[Callable[[torch.Tensor], torch.Tensor], ...]:
    """Return the functions from patterns to patterns that an epilogue consists of, in order."""
    alpha = Scale.of_bits(epilogue.alpha)
    steps: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda bits: _times(bits, alpha, signed_zero=False)
    ]
    if epilogue.scale_result is not None:
        result = Scale.of_bits(epilogue.scale_result)
        steps.append(lambda bits: _times(bits, result, signed_zero=True))
    if fmt is not _FP32:
        steps.append(lambda bits: _narrow(bits, fmt))
    return tuple(steps)


def _check_fp32(name: str, tensor: object) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor) or tensor.dtype != torch.float32:
        got = getattr(tensor, "dtype", type(tensor).__name__)
        raise TypeError(f"{name} must be a float32 tensor, got {got}")
    return tensor


def _check_out_dtype(out_dtype: object) -> None:
    if not isinstance(out_dtype, torch.dtype) or out_dtype not in _OUT_DTYPES:
        raise TypeError(
            "out_dtype must be torch.float32, bfloat16, float16, float8_e4m3fn or float8_e5m2; "
            f"got {out_dtype!r}"
        )


def _one_element(name: str, scale: object) -> torch.Tensor:
    """Return the fp32 tensor whose first element in memory is the scale."""
    tensor = _check_fp32(name, scale)
    if tensor.numel() != 1:
        raise ValueError(f"{name} must have one element, got shape {tuple(tensor.shape)}")
    return tensor.detach().resolve_neg()


def _scale_bits(name: str, scale: object) -> int:
    """Return the pattern of a one-element fp32 tensor."""
    tensor = _check_fp32(name, scale)
    if tensor.numel() != 1:
        raise ValueError(f"{name} must have one element, got shape {tuple(tensor.shape)}")
    if tensor.layout is torch.strided:  # A sparse scale is an error.
        value = tensor.item()
        if _LEAST_NORMAL <= abs(value) < math.inf:  # Converted exactly in any float mode.
            pattern: int = _UNPACK_BITS(_PACK_FP32(value))[0]
            return pattern
    try:
        bits = tensor.view(torch.int32)
    except RuntimeError:  # A negation is still to be done, as in `z.conj().imag`.
        bits = tensor.resolve_neg().view(torch.int32)
    return int(bits.item()) & 0xFFFFFFFF


def _times(bits: torch.Tensor, scale: Scale, *, signed_zero: bool) -> torch.Tensor:
    """Return the patterns of RN32(x * scale) for fp32 patterns. Rounded once.

    Args:
        bits: int32 patterns x.
        scale: the factor.
        signed_zero: whether an exact zero product keeps the sign of a product (a multiply) or is
            +0 (a fused multiply-add of +0).

    Returns:
        new int32 patterns; NaN is 0x7FFFFFFF.
    """
    magnitude = bits & _MAGNITUDE
    if _stays_normal(magnitude, scale):
        product = _times_normal(bits, scale)
    else:
        product = _times_any(bits, magnitude, scale)
    if signed_zero or scale.nan or scale.infinite:
        return product
    exact_zero = magnitude < _INFINITY if scale.zero else magnitude == 0
    return product.masked_fill_(exact_zero, 0)


def _stays_normal(magnitude: torch.Tensor, scale: Scale) -> bool:
    """Whether all products by a normal scale are zero or normal, and no factor is subnormal."""
    field = scale.bits >> 23 & 0xFF
    if field in (0, 0xFF):
        return False
    # Less one in 31 bits, a zero becomes the largest number: it bounds nothing from below. The
    # bound on the others is one too strict, which only costs speed.
    least = int(((magnitude - 1) & _MAGNITUDE).amin()) >> 23
    most = int(magnitude.amax()) >> 23
    # Significands multiply to [1, 4) and rounding may add one more bit.
    return least >= 1 and least + field - 254 >= -126 and most + field - 254 + 2 <= 127  # noqa: PLR2004


def _times_normal(bits: torch.Tensor, scale: Scale) -> torch.Tensor:
    """Return RN32(x * scale) for zero or normal x and products.

    The product of two 24-bit significands is exact in binary64. Rounding to nearest even drops
    29 bits: adding half less one, plus one if the last kept bit is odd, carries where it must.
    """
    product = bits.view(torch.float32).to(torch.float64).mul_(scale.value)
    pattern = product.view(torch.int64)
    pattern += ((pattern >> 29) & 1).add_((1 << 28) - 1)
    pattern &= -(1 << 29)
    return product.to(torch.float32).view(torch.int32)


def _times_any(bits: torch.Tensor, magnitude: torch.Tensor, scale: Scale) -> torch.Tensor:
    """Return RN32(x * scale) for any x and scale.

    The significands multiply exactly in int64; the exact product as a binary64 pattern then
    tells its exponent, and the shift to the last kept bit grows where the result is subnormal.
    """
    wide = magnitude.to(torch.int64)
    field = wide >> 23
    significand = (wide & _FRACTION) | ((field > 0).to(torch.int64) << 23)
    product = (significand * scale.significand).to(torch.float64).view(torch.int64)
    zero = product == 0
    # The binary64 exponent field becomes that of x * scale, at least 1023 - 298: never subnormal.
    product += (field.clamp_(min=1) + (scale.exponent - 150)) << 52
    product.masked_fill_(zero, 0)
    result = _round_pattern(product, 52, 1023, _FP32).clamp_(max=_INFINITY)
    infinite = magnitude == _INFINITY
    nan = magnitude > _INFINITY
    if scale.infinite:
        nan |= magnitude == 0
        infinite = infinite.logical_or_(~nan)
    if scale.zero:
        nan |= infinite
    result.masked_fill_(infinite, _INFINITY)
    negative = bits < 0 if not scale.negative else bits >= 0
    result = torch.where(negative, result | _SIGN, result)
    return result.masked_fill_(nan | scale.nan, _NAN).to(torch.int32)


def _round_pattern(
    magnitude: torch.Tensor, fraction_bits: int, bias: int, fmt: FloatFormat
) -> torch.Tensor:
    """Round magnitudes given as IEEE patterns to `fmt`, nearest even, without an upper bound.

    Args:
        magnitude: int32 or int64 patterns without sign; not NaN.
        fraction_bits: width of their fraction field.
        bias: their exponent bias.
        fmt: the narrower format.

    Returns:
        exponent and fraction fields in `fmt`, as the same integer type; an overflow gives more
        than the largest finite code.
    """
    drop = fraction_bits - fmt.fraction_bits
    lowest = fmt.min_exponent + bias
    if lowest == 1:
        # Both formats have the same exponent range, so patterns round as plain integers.
        return (magnitude + ((magnitude >> drop) & 1).add_((1 << (drop - 1)) - 1)) >> drop
    field = magnitude >> fraction_bits
    significand = (magnitude & ((1 << fraction_bits) - 1)) | (1 << fraction_bits)
    # Two bits past the significand not even a half is left. A pattern with exponent field 0 is
    # zero or lies that far below every normal number of `fmt`, so its implicit bit is shifted out.
    shift = (lowest - field).clamp_(min=0).add_(drop).clamp_(max=fraction_bits + 2)
    half = torch.ones_like(shift).bitwise_left_shift_(shift - 1)
    kept = (significand + half.sub_(1) + ((significand >> shift) & 1)) >> shift
    return ((field - lowest).clamp_(min=0) << fmt.fraction_bits) + kept


def _narrow(bits: torch.Tensor, fmt: FloatFormat) -> torch.Tensor:
    """Return the codes of fp32 patterns in `fmt`, nearest even; fp8 saturates, Inf included.

    Args:
        bits: int32 patterns.
        fmt: bf16, fp16, e4m3 or e5m2.

    Returns:
        int32 codes; NaN is the canonical one.
    """
    magnitude = bits & _MAGNITUDE
    codes = _round_pattern(magnitude, 23, 127, fmt).clamp_(max=_largest_code(fmt))
    codes |= (bits >> 31) & (1 << (fmt.bits - 1))
    return codes.masked_fill_(magnitude > _INFINITY, fmt.canonical_nan or 0)


def _largest_code(fmt: FloatFormat) -> int:
    """The code that an overflow becomes: Inf, or the largest finite number of an fp8 format."""
    infinity = fmt.infinity
    if infinity is None:
        return (1 << (fmt.bits - 1)) - 2
    return infinity - 1 if fmt.bits == 8 else infinity  # noqa: PLR2004 - fp8 saturates

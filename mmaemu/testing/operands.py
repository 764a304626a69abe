"""Named families of GEMM operands: one seeded set for tests, self-test and benchmarks.

A family is a function from a random generator to the codes of one operand. Every family stresses
one rule of docs/explanation/numerics.md; together they reach every branch of the arithmetic.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
from numpy.typing import NDArray

from mmaemu.formats import FORMATS, INFINITE, NAN, NORMAL, SUBNORMAL, ZERO, FloatFormat

if TYPE_CHECKING:
    import torch

Side = Literal["a", "b"]
Codes = NDArray[np.unsignedinteger]
Make = Callable[[np.random.Generator, FloatFormat, int, int, Side], Codes]

OPERAND_FORMATS: Final = tuple(
    fmt.name
    for fmt in FORMATS.values()
    if fmt.bits <= 8 and fmt.signed  # noqa: PLR2004 - a byte
)
"""Formats of one code per byte whose values have a sign."""


@dataclass(frozen=True, slots=True)
class Family:
    """A way to fill one operand.

    Attributes:
        name: how the family is asked for.
        meaning: what it holds and which rule it stresses.
        make: fills [rows, K] codes of a format for side "a" or "b".
        finite: no code is Inf or NaN.
    """

    name: str
    meaning: str
    make: Make
    finite: bool = True


def _codes_of(fmt: FloatFormat, *classes: int) -> Codes:
    """Every code of the given classes, in increasing order."""
    codes: Codes = np.arange(1 << fmt.bits, dtype=np.uint16).astype(fmt.code_dtype)
    wanted: Codes = codes[np.isin(fmt.classify(codes), classes)]
    return wanted


def _finite(fmt: FloatFormat) -> Codes:
    return _codes_of(fmt, ZERO, SUBNORMAL, NORMAL)


def _positive(fmt: FloatFormat) -> Codes:
    """Finite codes above zero, in increasing order of value."""
    codes = _finite(fmt)
    values = fmt.decode(codes)
    order = np.argsort(values, kind="stable")
    return codes[order][values[order] > 0]


def _with_signs(rng: np.random.Generator, fmt: FloatFormat, codes: Codes) -> Codes:
    sign_bit = codes.dtype.type(1 << (fmt.bits - 1))
    return np.where(rng.random(codes.shape) < 1 / 2, codes, codes | sign_bit)


def _power(fmt: FloatFormat, exponents: NDArray[np.int64]) -> Codes:
    """Codes of 2^exponent; exponents outside the format's range are clamped into it."""
    lowest = fmt.min_exponent - fmt.fraction_bits
    clamped = np.clip(exponents, lowest, fmt.max_exponent)
    return fmt.encode(np.ldexp(1.0, clamped), saturate=True)


def _uniform(rng: np.random.Generator, fmt: FloatFormat, rows: int, k: int, _: Side) -> Codes:
    return rng.choice(_finite(fmt), (rows, k))


def _gaussian(rng: np.random.Generator, fmt: FloatFormat, rows: int, k: int, _: Side) -> Codes:
    return fmt.encode(rng.standard_normal((rows, k)), saturate=True)


def _amax_scaled(rng: np.random.Generator, fmt: FloatFormat, rows: int, k: int, _: Side) -> Codes:
    values = rng.standard_normal((rows, k))
    largest = np.abs(values).max(initial=1e-6)  # An empty operand has no largest value.
    return fmt.encode(values * (fmt.max_finite / largest), saturate=True)


def _subnormal(rng: np.random.Generator, fmt: FloatFormat, rows: int, k: int, _: Side) -> Codes:
    small = _codes_of(fmt, ZERO, SUBNORMAL)
    mostly = rng.random((rows, k)) < 7 / 8
    return np.where(mostly, rng.choice(small, (rows, k)), rng.choice(_finite(fmt), (rows, k)))


def _saturated(rng: np.random.Generator, fmt: FloatFormat, rows: int, k: int, _: Side) -> Codes:
    return _with_signs(rng, fmt, rng.choice(_positive(fmt)[-2:], (rows, k)))


def _decaying(rng: np.random.Generator, fmt: FloatFormat, rows: int, k: int, _: Side) -> Codes:
    span = fmt.max_exponent - fmt.min_exponent
    exponents = fmt.max_exponent - np.arange(k, dtype=np.int64) * span // max(k - 1, 1)
    scale = np.ldexp(1.0, exponents)
    return fmt.encode(rng.uniform(-1.0, 1.0, (rows, k)) * scale, saturate=True)


def _cancelling(rng: np.random.Generator, fmt: FloatFormat, rows: int, k: int, side: Side) -> Codes:
    """Neighbours in k are equal in a and opposite in b; one product in 16 is left over."""
    codes = rng.choice(_finite(fmt), (rows, -(-k // 2))).repeat(2, axis=1)[:, :k]
    if side == "b":
        codes[:, 1::2] ^= codes.dtype.type(1 << (fmt.bits - 1))
        codes = np.where(rng.random((rows, k)) < 1 / 16, rng.choice(_finite(fmt), (rows, k)), codes)
    nan = fmt.classify(codes) == NAN  # The negative of zero is NaN in the fnuz formats.
    return np.where(nan, codes.dtype.type(0), codes)


def _one_hot(rng: np.random.Generator, fmt: FloatFormat, rows: int, k: int, side: Side) -> Codes:
    if side == "b":
        return rng.choice(_finite(fmt), (rows, k))
    codes = np.zeros((rows, k), dtype=fmt.code_dtype)
    if k:
        hot = rng.integers(0, k, rows)
        codes[np.arange(rows), hot] = _with_signs(rng, fmt, rng.choice(_positive(fmt), rows))
    return codes


def _spread(rng: np.random.Generator, fmt: FloatFormat, rows: int, k: int, _: Side) -> Codes:
    """Exponents far below the block's largest, where truncation decides, with odd significands."""
    lowest = fmt.min_exponent - fmt.fraction_bits
    near_top = rng.integers(fmt.max_exponent - 1, fmt.max_exponent + 1, (rows, k))
    anywhere = rng.integers(lowest, fmt.max_exponent + 1, (rows, k))
    power = _power(fmt, np.where(rng.random((rows, k)) < 1 / 8, near_top, anywhere))
    odd = rng.choice(_positive(fmt), (rows, k))
    return _with_signs(rng, fmt, np.where(rng.random((rows, k)) < 1 / 2, power, odd))


def _nonfinite(rng: np.random.Generator, fmt: FloatFormat, rows: int, k: int, _: Side) -> Codes:
    codes = rng.choice(_finite(fmt), (rows, k))
    special = _codes_of(fmt, INFINITE, NAN)
    if not special.size:
        return codes
    hit = (rng.random((rows, k)) < 2 / max(k, 1)) & (rng.random((rows, 1)) < 1 / 2)
    return np.where(hit, rng.choice(special, (rows, k)), codes)


_ALL: Final = (
    Family("uniform", "every finite code equally often", _uniform),
    Family("gaussian", "standard normal values, rounded", _gaussian),
    Family("amax-scaled", "normal values scaled up to the format's largest one", _amax_scaled),
    Family("subnormal", "seven of eight codes subnormal or zero (N1, N3)", _subnormal),
    Family("saturated", "the two largest magnitudes, any sign (N6: large sums)", _saturated),
    Family("decaying", "magnitudes fall along K over the whole range (N4, N8)", _decaying),
    Family("cancelling", "products cancel in pairs but for one in 16 (N5)", _cancelling),
    Family("one-hot", "one non-zero code per row of a (N3: zero products)", _one_hot),
    Family("spread", "exponents far below the block's largest (N4)", _spread),
    Family(
        "nonfinite", "a few Inf and NaN codes in half of the rows (N18)", _nonfinite, finite=False
    ),
)

FAMILIES: Final[dict[str, Family]] = {family.name: family for family in _ALL}
"""Every family by name."""


def codes(family: str, fmt: str, rows: int, K: int, *, side: Side = "a", seed: int = 0) -> Codes:
    """Return the codes of one operand.

    Args:
        family: a name in `FAMILIES`.
        fmt: a name in `OPERAND_FORMATS`, such as "e4m3".
        rows: M for side "a", N for side "b".
        K: length of the dot products.
        side: which operand; the two are drawn independently.
        seed: the same arguments always give the same codes.

    Returns:
        uint8 array [rows, K], contiguous.

    Raises:
        ValueError: no such family, format or side.
    """
    if family not in FAMILIES:
        raise ValueError(f"family must be one of {', '.join(FAMILIES)}; got {family!r}")
    if fmt not in OPERAND_FORMATS:
        raise ValueError(f"fmt must be one of {', '.join(OPERAND_FORMATS)}; got {fmt!r}")
    if side not in ("a", "b"):
        raise ValueError(f"side must be 'a' or 'b', got {side!r}")
    stream = zlib.crc32(f"{family}/{fmt}/{side}".encode())
    rng = np.random.default_rng([seed, stream, rows, K])
    return np.ascontiguousarray(FAMILIES[family].make(rng, FORMATS[fmt], rows, K, side))


def operands(
    family: str,
    M: int,
    N: int,
    K: int,
    *,
    formats: tuple[str, str] = ("e4m3", "e4m3"),
    seed: int = 0,
) -> tuple[Codes, Codes]:
    """Return the codes of both operands of a GEMM.

    Args:
        family: a name in `FAMILIES`.
        M: rows of a.
        N: rows of b.
        K: length of the dot products.
        formats: format names of a and b.
        seed: the same arguments always give the same codes.

    Returns:
        a [M, K] and b [N, K], uint8; as tensors: `torch.from_numpy(a).view(torch.float8_e4m3fn)`.

    Raises:
        ValueError: as `codes`.
    """
    return (
        codes(family, formats[0], M, K, side="a", seed=seed),
        codes(family, formats[1], N, K, side="b", seed=seed),
    )


def tensors(
    family: str,
    M: int,
    N: int,
    K: int,
    *,
    formats: tuple[str, str] = ("e4m3", "e4m3"),
    seed: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both operands of a GEMM as torch takes them.

    Args:
        family: a name in `FAMILIES`.
        M: rows of a.
        N: rows of b.
        K: length of the dot products.
        formats: format names of a and b, which torch must have.
        seed: the same arguments always give the same codes.

    Returns:
        a [M, K] and b [N, K], contiguous, on the CPU; mat2 of scaled_mm is `b.t()`.

    Raises:
        ValueError: as `codes`, or torch has no dtype of a format.
    """
    import torch

    names = [FORMATS[name].torch_name if name in FORMATS else None for name in formats]
    if None in names:
        raise ValueError(f"torch must have both formats, got {formats}")
    a, b = operands(family, M, N, K, formats=formats, seed=seed)
    pair = [
        torch.from_numpy(codes).view(getattr(torch, str(name)))
        for codes, name in zip((a, b), names, strict=True)
    ]
    return pair[0], pair[1]

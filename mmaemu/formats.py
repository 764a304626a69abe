"""Floating-point formats as data: one record per format, and the maps between codes and values.

A finite value is (-1)^s * significand * 2^exponent; a subnormal keeps the minimum exponent with a
significand below 1 (rule N1 of docs/explanation/numerics.md). What is inexact or subnormal is done
on integers, so flush-to-zero and the rounding mode of the process change no result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Specials = Literal["ieee", "fn", "fnuz", "exponent", "finite"]
"""Which codes are no finite values. ieee: all-ones exponent = Inf and NaN. fn: all ones below the
sign = NaN. fnuz: the code of -0 = NaN. exponent: a bare power of two, all ones = NaN. finite: none.
"""

ZERO, SUBNORMAL, NORMAL, INFINITE, NAN = range(5)
"""What `FloatFormat.classify` returns."""

_BINARY64_FRACTION = 52
_BINARY64_BIAS = 1023


@dataclass(frozen=True)
class FloatFormat:
    """A binary floating-point format.

    Attributes:
        name: short name used throughout the package.
        bits: width of a code, ignored low bits included.
        exponent_bits: width of the exponent field.
        fraction_bits: width of the fraction field.
        bias: exponent bias.
        specials: which codes are Inf and NaN, see `Specials`.
        torch_name: name of the torch dtype with one code per element; None where there is none.
        cublas_name: cuBLASLt's name of the type; None where it has none.
        ignored_bits: low bits of a code that the hardware ignores (13 for tf32).
    """

    name: str
    bits: int
    exponent_bits: int
    fraction_bits: int
    bias: int
    specials: Specials
    torch_name: str | None = None
    cublas_name: str | None = None
    ignored_bits: int = 0

    @property
    def signed(self) -> bool:
        """True if a code has a sign bit."""
        return self.bits > self.exponent_bits + self.fraction_bits + self.ignored_bits

    @property
    def min_exponent(self) -> int:
        """Exponent of the subnormals and of the smallest normal values."""
        return self._first_field - self.bias

    @property
    def max_exponent(self) -> int:
        """Exponent of the largest finite value."""
        return (self._max_finite_magnitude >> self.fraction_bits) - self.bias

    @property
    def max_finite(self) -> float:
        """The largest finite value. Exact."""
        code = self._max_finite_magnitude << self.ignored_bits
        return float(self.decode(np.array([code], dtype=np.uint64))[0])

    @property
    def infinity(self) -> int | None:
        """Code of +Inf; None for a format without Inf."""
        if self.specials != "ieee":
            return None
        return (self._max_finite_magnitude + 1) << self.ignored_bits

    @property
    def canonical_nan(self) -> int | None:
        """The only NaN code that a result ever has; None for a format without NaN."""
        if self.specials == "finite":
            return None
        if self.specials == "fnuz":
            return 1 << (self.bits - 1)
        return (1 << (self.bits - self.signed)) - 1

    @property
    def code_dtype(self) -> np.dtype[np.unsignedinteger]:
        """The smallest unsigned numpy dtype that holds a code."""
        return np.dtype(next(f"u{size}" for size in (1, 2, 4, 8) if 8 * size >= self.bits))

    @property
    def _first_field(self) -> int:
        """The smallest exponent field of a normal value: a bare exponent has no subnormals."""
        return 0 if self.specials == "exponent" else 1

    @property
    def _max_finite_magnitude(self) -> int:
        """Exponent and fraction fields of the largest finite value."""
        top = (1 << (self.exponent_bits + self.fraction_bits)) - 1
        reserved = {"ieee": 1 << self.fraction_bits, "fn": 1, "exponent": 1}
        return top - reserved.get(self.specials, 0)

    def decode(self, codes: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return the values of `codes`. Exact.

        Args:
            codes: integer array of any shape and byte order, 0 <= code < 2**bits.

        Returns:
            float64 array of the same shape; every NaN code gives one and the same NaN.

        Raises:
            TypeError: `codes` is no integer array.
            ValueError: a code is out of range.
        """
        raw = self._checked(codes)
        if self.name == "fp64":
            values = raw.view(np.float64)
        else:
            significand, exponent = self._significand_and_exponent(self._magnitude(raw))
            shift = (exponent - self.fraction_bits).astype(np.intc)
            values = np.ldexp(significand.astype(np.float64), shift)
            values = np.where(self._negative(raw), -values, values)
        classes = self._classes(raw)
        infinite = np.where(self._negative(raw), -np.inf, np.inf)
        return np.where(classes == NAN, np.nan, np.where(classes == INFINITE, infinite, values))

    def classify(self, codes: NDArray[np.integer]) -> NDArray[np.uint8]:
        """Return ZERO, SUBNORMAL, NORMAL, INFINITE or NAN for every code.

        Args:
            codes: integer array of any shape and byte order, 0 <= code < 2**bits.

        Returns:
            uint8 array of the same shape.

        Raises:
            TypeError: `codes` is no integer array.
            ValueError: a code is out of range.
        """
        return self._classes(self._checked(codes))

    def encode(
        self, values: NDArray[np.float64], *, saturate: bool = False
    ) -> NDArray[np.unsignedinteger]:
        """Return the code nearest to every value, ties to even. Rounded once.

        Args:
            values: float64 array of any shape.
            saturate: a value beyond the largest finite one, infinite ones included, gives the
                largest finite one instead of Inf (of NaN in a format without Inf).

        Returns:
            array of `code_dtype` and the same shape; NaN gives `canonical_nan`.

        Raises:
            TypeError: `values` is no float64 array.
            ValueError: the format has no code for a value: NaN or an overflow where it has no
                NaN, a negative value where it has no sign, zero where it has no zero.
        """
        if not isinstance(values, np.ndarray) or values.dtype != np.float64:
            got = getattr(values, "dtype", type(values).__name__)
            raise TypeError(f"{self.name}.encode expects a float64 numpy array, got {got}")
        bits = values.astype(np.float64, copy=True).view(np.int64)
        magnitude_bits = bits & np.int64((1 << 63) - 1)
        nan = magnitude_bits > np.int64(0x7FF << _BINARY64_FRACTION)
        magnitude = np.where(nan, 0, self._rounded_magnitude(magnitude_bits))
        over = magnitude > self._max_finite_magnitude
        magnitude = np.where(over, self._max_finite_magnitude, magnitude)
        negative = (bits < 0) & ~nan
        if self.specials == "fnuz":
            negative &= magnitude != 0
        codes = (magnitude << self.ignored_bits).astype(np.uint64)
        self._refuse_without_code(values, negative & (magnitude_bits != 0) & (not self.signed))
        codes |= (negative & self.signed).astype(np.uint64) << np.uint64(self.bits - 1)
        if not saturate:
            codes = self._with_overflow(values, codes, negative, over)
        self._refuse_without_code(values, magnitude < 0)
        return self._with_nan(values, codes, nan).astype(self.code_dtype)

    def _checked(self, codes: NDArray[np.integer]) -> NDArray[np.uint64]:
        if not isinstance(codes, np.ndarray) or codes.dtype.kind not in "iu":
            got = getattr(codes, "dtype", type(codes).__name__)
            raise TypeError(f"{self.name} codes must be an integer numpy array, got {got}")
        if codes.size and (int(codes.min()) < 0 or int(codes.max()) >= 1 << self.bits):
            raise ValueError(
                f"{self.name} codes must lie in 0..{(1 << self.bits) - 1}, "
                f"got values from {codes.min()} to {codes.max()}"
            )
        return codes.astype(np.uint64)

    def _negative(self, raw: NDArray[np.uint64]) -> NDArray[np.bool_]:
        sign_bit = np.uint64(int(self.signed) << (self.bits - 1))
        negative: NDArray[np.bool_] = (raw & sign_bit) != 0
        return negative

    def _magnitude(self, raw: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Exponent and fraction fields, without the sign and the ignored bits."""
        mask = np.uint64((1 << (self.exponent_bits + self.fraction_bits)) - 1)
        fields: NDArray[np.uint64] = (raw >> np.uint64(self.ignored_bits)) & mask
        return fields.astype(np.int64)

    def _significand_and_exponent(
        self, magnitude: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Significand as an integer multiple of 2^-fraction_bits, and the exponent."""
        field = magnitude >> self.fraction_bits
        fraction = magnitude & ((1 << self.fraction_bits) - 1)
        implicit = (field >= self._first_field).astype(np.int64) << self.fraction_bits
        return fraction + implicit, np.maximum(field, self._first_field) - self.bias

    def _classes(self, raw: NDArray[np.uint64]) -> NDArray[np.uint8]:
        magnitude = self._magnitude(raw)
        significand, _ = self._significand_and_exponent(magnitude)
        classes = np.where(significand >> self.fraction_bits, NORMAL, SUBNORMAL)
        classes = np.where(significand == 0, ZERO, classes)
        if self.specials == "fnuz":
            classes = np.where((magnitude == 0) & self._negative(raw), NAN, classes)
        else:
            classes = np.where(magnitude > self._max_finite_magnitude, NAN, classes)
        if self.specials == "ieee":
            infinite = magnitude == self._max_finite_magnitude + 1
            classes = np.where(infinite, INFINITE, classes)
        return classes.astype(np.uint8)

    def _rounded_magnitude(self, magnitude_bits: NDArray[np.int64]) -> NDArray[np.int64]:
        """Exponent and fraction fields nearest to a binary64 magnitude, ties to even.

        There is no upper bound here: the caller looks for overflow.
        A zero in a format without zero gives -1.
        """
        field = magnitude_bits >> _BINARY64_FRACTION
        fraction = magnitude_bits & ((1 << _BINARY64_FRACTION) - 1)
        significand = fraction | ((field > 0).astype(np.int64) << _BINARY64_FRACTION)
        exponent = np.maximum(field, 1) - _BINARY64_BIAS
        target = np.maximum(exponent, self.min_exponent)
        # Beyond 54 bits nothing of a 53-bit significand is left, not even a half.
        shift = np.minimum(target - exponent + _BINARY64_FRACTION - self.fraction_bits, 54)
        kept = significand >> shift
        rest = significand - (kept << shift)
        half = (np.int64(1) << shift) >> 1
        kept += (rest > half) | ((rest == half) & (rest > 0) & (kept & 1 == 1))
        # A normal `kept` carries the implicit bit, which adds one to the exponent field.
        fields: NDArray[np.int64] = kept - (1 - self._first_field)
        fields += (target - self.min_exponent) << self.fraction_bits
        return fields

    def _with_overflow(
        self,
        values: NDArray[np.float64],
        codes: NDArray[np.uint64],
        negative: NDArray[np.bool_],
        over: NDArray[np.bool_],
    ) -> NDArray[np.uint64]:
        if self.infinity is None:
            return self._with_nan(values, codes, over)
        signed = np.uint64(self.infinity) | (negative.astype(np.uint64) << np.uint64(self.bits - 1))
        return np.where(over, signed, codes)

    def _with_nan(
        self, values: NDArray[np.float64], codes: NDArray[np.uint64], nan: NDArray[np.bool_]
    ) -> NDArray[np.uint64]:
        if self.canonical_nan is None:
            self._refuse_without_code(values, nan)
            return codes
        return np.where(nan, np.uint64(self.canonical_nan), codes)

    def _refuse_without_code(self, values: NDArray[np.float64], bad: NDArray[np.bool_]) -> None:
        if bad.any():
            raise ValueError(
                f"format {self.name} has no code for {float(values[bad].flat[0])!r} "
                f"and {int(bad.sum()) - 1} other values; clamp or drop them first"
            )


FORMATS: dict[str, FloatFormat] = {
    fmt.name: fmt
    for fmt in (
        FloatFormat("e4m3", 8, 4, 3, 7, "fn", "float8_e4m3fn", "CUDA_R_8F_E4M3"),
        FloatFormat("e5m2", 8, 5, 2, 15, "ieee", "float8_e5m2", "CUDA_R_8F_E5M2"),
        FloatFormat("e4m3fnuz", 8, 4, 3, 8, "fnuz", "float8_e4m3fnuz"),
        FloatFormat("e5m2fnuz", 8, 5, 2, 16, "fnuz", "float8_e5m2fnuz"),
        FloatFormat("e2m3", 6, 2, 3, 1, "finite", None, "CUDA_R_6F_E2M3"),
        FloatFormat("e3m2", 6, 3, 2, 3, "finite", None, "CUDA_R_6F_E3M2"),
        FloatFormat("e2m1", 4, 2, 1, 1, "finite", None, "CUDA_R_4F_E2M1"),
        FloatFormat("fp16", 16, 5, 10, 15, "ieee", "float16", "CUDA_R_16F"),
        FloatFormat("bf16", 16, 8, 7, 127, "ieee", "bfloat16", "CUDA_R_16BF"),
        FloatFormat("tf32", 32, 8, 10, 127, "ieee", None, None, ignored_bits=13),
        FloatFormat("fp32", 32, 8, 23, 127, "ieee", "float32", "CUDA_R_32F"),
        FloatFormat("fp64", 64, 11, 52, 1023, "ieee", "float64", "CUDA_R_64F"),
        FloatFormat("ue8m0", 8, 8, 0, 127, "exponent", "float8_e8m0fnu", "CUDA_R_8F_UE8M0"),
        FloatFormat("ue4m3", 7, 4, 3, 7, "fn", None, "CUDA_R_8F_UE4M3"),
    )
}
"""Every format by its short name. e4m3fnuz and e5m2fnuz are AMD CDNA3's encodings."""

_BY_TORCH_NAME = {fmt.torch_name: fmt for fmt in FORMATS.values() if fmt.torch_name}


def format_of(torch_dtype: object) -> FloatFormat:
    """Return the format of a torch dtype; torch itself is not imported.

    Args:
        torch_dtype: a floating-point torch.dtype.

    Returns:
        the record in `FORMATS`.

    Raises:
        TypeError: not a torch.dtype, or one that is none of the formats here.
    """
    module, _, name = str(torch_dtype).partition(".")
    if module != "torch" or name not in _BY_TORCH_NAME:
        known = ", ".join(sorted(_BY_TORCH_NAME))
        raise TypeError(f"expected one of the torch dtypes {known}; got {torch_dtype!r}")
    return _BY_TORCH_NAME[name]

"""Chains of an aligned FP8 -> fp32 model on float tensors, for all outputs of a tile at once.

One step of L products (rules N2..N8) with u = 2^(E - F) as a float:
    E  from one matrix product over powers of two: sum_k 2^(8 e_k) lies in [2^(8 E), 2^(8 (E + 1)))
    S  = sum_k trunc(p_k / u) + trunc(c / u), integers that add up below 2^24 (or 2^53)
    c' = truncate(S) * u, where truncating clears low bits of S's own pattern
Products of two FP8 numbers and divisions by powers of two are exact, `trunc` does not depend on the
rounding mode, and `tiled_method` refuses a model with which any number could leave the normal
range. The matrix product may round any way: its exponent stays right.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from mmaemu.formats import FORMATS
from mmaemu.instruction.fdpa import group_index

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mmaemu.gemm.plan import TileRun
    from mmaemu.gemm.request import AccumulateRequest
    from mmaemu.instruction.model import InstructionModel


class Binary(NamedTuple):
    """An IEEE type to compute in.

    Attributes:
        dtype: its torch dtype.
        integer: the integer dtype of its patterns.
        fraction_bits: width of its fraction field.
        bias: its exponent bias.
    """

    dtype: torch.dtype
    integer: torch.dtype
    fraction_bits: int
    bias: int


SINGLE = Binary(torch.float32, torch.int32, 23, 127)
DOUBLE = Binary(torch.float64, torch.int64, 52, 1023)

PANEL_CODES = 1 << 16
"""Codes of both operands that are decoded at once."""

# A power sum holds 2^(8 e): with at most 128 products it stays below 2^(8 (E + 1)), whichever way
# the additions round.
_STRIDE_BITS = 3
_MOST_PRODUCTS = 128
# With K up to 2^40 an accumulator's exponent is at most this far above the largest product's.
_GROWTH = 42
# Tables are kept for this many methods and devices; those of one take a few KiB.
_REMEMBERED = 64
# Exponents of normal fp32 numbers.
_LOWEST, _HIGHEST = -126, 127


@dataclass(frozen=True)
class Method:
    """All that the steps need, derived from a model and two formats.

    Attributes:
        model: the model.
        formats: formats of a and b.
        dropped_bits: low bits of a sum's pattern that the result has no place for.
        floor: the block exponent is at least this.
        numbers: type of products and sums.
        powers: type of the power sums.
        offset: a power sum's exponent field over 8 is E + offset; it is 0 if no product is
            non-zero, which then passes for an exponent too low to cut the accumulator.
    """

    model: InstructionModel
    formats: tuple[str, str]
    dropped_bits: int
    floor: int
    numbers: Binary
    powers: Binary
    offset: int


class _Range(NamedTuple):
    """Exponents: of the lowest bit of any product, and of the smallest and largest product."""

    bit: int
    low: int
    high: int


def tiled_method(model: InstructionModel, format_a: str, format_b: str) -> Method | None:
    """Return how to evaluate a model on float tiles, or None where that would not be exact.

    Args:
        model: an instruction model.
        format_a: format of a, "e4m3" or "e5m2".
        format_b: format of b.

    Returns:
        the method; None says that the readable path is the one to take.
    """
    if (model.kind, model.output, model.rounding) != ("aligned", "fp32", "toward zero"):
        return None
    formats = (format_a, format_b)
    products = _product_range(formats, model.operand_format)
    numbers = _number_type(model)
    offset = _power_offset(products, model.fraction_bits)
    floor = max(products.bit, products.bit if model.min_exponent is None else model.min_exponent)
    highest = max(products.high + _GROWTH, floor)
    in_range = (
        floor - model.fraction_bits >= _LOWEST
        and products.bit - (highest - model.fraction_bits) >= _LOWEST
        and highest + _MOST_PRODUCTS.bit_length() + 2 <= _HIGHEST
    )
    if numbers is None or offset is None or not in_range:
        return None
    dropped = numbers.fraction_bits - model.result_fraction_bits
    return Method(model, formats, dropped, floor, numbers, *offset)


def _product_range(formats: tuple[str, str], operand_format: str | None) -> _Range:
    bits = sum(FORMATS[fmt].min_exponent - FORMATS[fmt].fraction_bits for fmt in formats)
    found = [_exponents(fmt, operand_format) for fmt in formats]
    low = sum(int(exponents.min()) for exponents in found)
    return _Range(bits, low, sum(int(exponents.max()) for exponents in found))


def _number_type(model: InstructionModel) -> Binary | None:
    """Return the type in which a sum is exact: terms lie below 2^(F + 2), c below 2^(F + 1)."""
    if model.dot_length > _MOST_PRODUCTS:
        return None
    most = (model.dot_length << (model.fraction_bits + 2)) + (1 << (model.fraction_bits + 1))
    fitting = (numbers for numbers in (SINGLE, DOUBLE) if most < 1 << numbers.fraction_bits)
    return next(fitting, None)


def _power_offset(products: _Range, fraction_bits: int) -> tuple[Binary, int] | None:
    """Return the type of the power sums and the offset of their exponents over 8.

    The largest sum must stay below the largest exponent field, the smallest product above field 0.
    Without any product the exponent reads -offset: no bit of an accumulator, a multiple of the
    lowest product bit, may lie below 2^(-offset - F).
    """
    for powers in (SINGLE, DOUBLE):
        offset = (2 * powers.bias >> _STRIDE_BITS) - 1 - products.high
        if products.low + offset >= 1 and -offset - fraction_bits <= products.bit:
            return powers, offset
    return None


def panel_depth(part: AccumulateRequest) -> int:
    """Return how many elements of K of a tile's operands to decode at once: whole steps."""
    length = part.model.dot_length
    return max(1, PANEL_CODES // ((part.M + part.N) * length)) * length


class FloatTile:
    """The chains of one tile of outputs, with the buffers they use."""

    def __init__(self, part: AccumulateRequest, method: Method) -> None:
        """Prepare a tile.

        Args:
            part: a request with the rows of a and b that the tile needs.
            method: how its model is evaluated.
        """
        self._part = part
        self._method = method
        self._groups = group_index(method.model, part.device)
        self._tables = _tables(method, part.device)
        shape, numbers = (part.M, part.N), method.numbers
        terms = self._groups.shape[1] + 1
        # Plane 0 is the accumulator, so that it is divided, truncated and added like a product.
        self._terms = torch.empty((terms, *shape), dtype=numbers.dtype, device=part.device)
        self._c = self._terms[0]
        self._c_bits = self._c.view(numbers.integer)
        self._sum = torch.empty(shape, dtype=numbers.dtype, device=part.device)
        self._unit = torch.empty(shape, dtype=numbers.dtype, device=part.device)
        self._unit_bits = self._unit.view(numbers.integer)
        self._powers = torch.empty(shape, dtype=method.powers.dtype, device=part.device)
        self._c_field = torch.empty(shape, dtype=numbers.integer, device=part.device)
        self._constants = _constants(method, part.device)

    def chain(self, run: TileRun) -> torch.Tensor:
        """Return the results of one chain from +0.

        Args:
            run: the elements of K that it takes.

        Returns:
            float64 [m, n] of fp32 numbers; a new tensor.
        """
        length = self._method.model.dot_length
        late = self._method.model.accumulator == "late"
        total = torch.zeros_like(self._c, dtype=torch.float64)
        self._c.zero_()
        for ranges in run.panels(panel_depth(self._part)):
            a, a_powers = self._decode(self._part.a, ranges, 0)
            b, b_powers = self._decode(self._part.b, ranges, 1)
            for start in range(0, a.shape[0], length):
                step = slice(start, start + length)
                self._instruction(a[step], a_powers[step], b[step], b_powers[step])
                if late:
                    total = add_nearest(total, self._c.to(torch.float64))
                    self._c.zero_()
        return total if late else self._c.to(torch.float64, copy=True)

    def _decode(
        self, codes: torch.Tensor, ranges: list[tuple[int, int]], operand: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return values and powers [k, lines] of some k, padded with zeros to whole steps."""
        length = self._method.model.dot_length
        depth = -(-sum(stop - start for start, stop in ranges) // length) * length
        panel = torch.zeros((depth, codes.shape[0]), dtype=torch.uint8, device=codes.device)
        row = 0
        for start, stop in ranges:
            panel[row : row + stop - start].copy_(codes[:, start:stop].t())
            row += stop - start
        index = panel.view(-1).to(torch.int32)
        values, powers = self._tables[operand]
        return (
            values.index_select(0, index).view(panel.shape),
            powers.index_select(0, index).view(panel.shape),
        )

    def _instruction(
        self, a: torch.Tensor, a_powers: torch.Tensor, b: torch.Tensor, b_powers: torch.Tensor
    ) -> None:
        """Add one instruction's products [L, m] times [L, n] to the accumulator, group by group."""
        if len(self._groups) == 1:
            self._step(a, a_powers, b, b_powers)
            return
        for k in self._groups:
            self._step(*(operand.index_select(0, k) for operand in (a, a_powers, b, b_powers)))

    def _step(
        self, a: torch.Tensor, a_powers: torch.Tensor, b: torch.Tensor, b_powers: torch.Tensor
    ) -> None:
        torch.mm(a_powers.t(), b_powers, out=self._powers)
        self._find_unit()
        torch.mul(a.unsqueeze(2), b.unsqueeze(1), out=self._terms[1:])
        torch.div(self._terms, self._unit, rounding_mode="trunc", out=self._terms)
        torch.sum(self._terms, 0, out=self._sum)
        self._sum.view(self._method.numbers.integer).bitwise_and_(self._constants.kept)
        torch.mul(self._sum, self._unit, out=self._c)

    def _find_unit(self) -> None:
        """Set the unit to 2^(E - F), from the power sum and the accumulator, as patterns."""
        method, field, unit = self._method, self._c_field, self._unit_bits
        constants, powers = self._constants, self._powers.view(method.powers.integer)
        if method.powers is method.numbers:
            torch.bitwise_right_shift(powers, constants.power_field, out=unit)
        else:
            unit.copy_(powers.bitwise_right_shift_(constants.power_field))
        # Both exponents as biased exponents of `numbers`. That of a zero accumulator is 0 there.
        unit.add_(constants.rebias).bitwise_left_shift_(constants.field)
        torch.bitwise_and(self._c_bits, constants.exponent, out=field)
        torch.maximum(unit, field, out=unit)
        if method.floor > -method.offset:
            torch.maximum(unit, constants.floor, out=unit)
        unit.sub_(constants.fraction)


class _Constants(NamedTuple):
    """Numbers of `FloatTile` as integer tensors without dimensions.

    Torch would convert a Python int at every operation, which is a tenth of a step's time.
    """

    power_field: torch.Tensor
    rebias: torch.Tensor
    field: torch.Tensor
    exponent: torch.Tensor
    floor: torch.Tensor
    fraction: torch.Tensor
    kept: torch.Tensor


@lru_cache(maxsize=_REMEMBERED)
def _constants(method: Method, device: torch.device) -> _Constants:
    bits, bias = method.numbers.fraction_bits, method.numbers.bias
    values = {
        "power_field": method.powers.fraction_bits + _STRIDE_BITS,
        "rebias": bias - method.offset,
        "field": bits,
        "exponent": (2 * bias + 1) << bits,
        "floor": (method.floor + bias) << bits,
        "fraction": method.model.fraction_bits << bits,
        "kept": -(1 << method.dropped_bits),
    }
    integers = dict.fromkeys(values, method.numbers.integer)
    integers["power_field"] = method.powers.integer
    return _Constants(
        **{
            name: torch.tensor(value, dtype=integers[name], device=device)
            for name, value in values.items()
        }
    )


def add_nearest(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the sums of fp32 numbers. Rounded once, nearest even, whatever the rounding mode.

    The sum is exact in binary64 if no bit of one number lies below 2^-52 of the other. A number
    below 2^-27 of the other is less than a quarter of its last bit, so it is left out.

    Args:
        x: float64, zero or normal fp32 numbers.
        y: the same shape.

    Returns:
        float64 fp32 numbers; a zero may have either sign.
    """
    x_size, y_size = x.abs(), y.abs()
    total = x.masked_fill(x_size < y_size * 2.0**-27, 0.0)
    total += y.masked_fill(y_size < x_size * 2.0**-27, 0.0)
    bits = total.view(torch.int64)
    bits += ((bits >> 29) & 1).add_((1 << 28) - 1)
    bits &= -(1 << 29)
    return total


@cache
def _exponents(fmt: str, operand_format: str | None) -> NDArray[np.int64]:
    """Return the exponent of every finite non-zero code, subnormals at the format's minimum.

    Args:
        fmt: format of the codes.
        operand_format: format that the operands are converted to first; None = `fmt`.
    """
    values = finite_values(fmt)
    _, above = np.frexp(values[values != 0])
    lowest = FORMATS[operand_format or fmt].min_exponent
    exponents: NDArray[np.int64] = np.maximum(above.astype(np.int64) - 1, lowest)
    return exponents


@cache
def finite_values(fmt: str) -> NDArray[np.float64]:
    """Return the value of every code, float64 [256]; a non-finite code counts as zero."""
    values = FORMATS[fmt].decode(np.arange(256, dtype=np.uint8))
    return np.where(np.isfinite(values), values, 0.0)


@lru_cache(maxsize=_REMEMBERED)
def _tables(
    method: Method, device: torch.device
) -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Return for a and for b, by code: values, and powers of two whose products are power terms.

    A power term is 2^(8 (e + offset) - bias); each operand brings half of the constant.
    """
    constant = (method.offset << _STRIDE_BITS) - method.powers.bias
    halves = (constant // 2, constant - constant // 2)
    tables = []
    for fmt, half in zip(method.formats, halves, strict=True):
        values = finite_values(fmt)
        powers = np.zeros_like(values)
        exponents = _exponents(fmt, method.model.operand_format)
        powers[values != 0] = np.ldexp(1.0, (exponents << _STRIDE_BITS) + half)
        tables.append(
            (
                torch.from_numpy(values).to(device=device, dtype=method.numbers.dtype),
                torch.from_numpy(powers).to(device=device, dtype=method.powers.dtype),
            )
        )
    return tables[0], tables[1]

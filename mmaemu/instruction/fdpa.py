"""One step of a tensor-core instruction, written to be read: the fused dot-product-add.

Every function takes the operands of one step as integers (`encoding.Parts`) and the accumulator
as codes, and returns the codes of the result. Rule numbers refer to docs/explanation/numerics.md.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from mmaemu.formats import FORMATS, FloatFormat
from mmaemu.instruction.encoding import (
    Parts,
    bit_length,
    infinity,
    round_to_code,
    shift,
    shift_down,
    sign_bit,
    split,
    with_specials,
)
from mmaemu.instruction.model import InstructionModel

# Below every exponent that occurs: what the maximum over no term is.
_NOWHERE = -(1 << 20)
# Bits below the common exponent at which CDNA3 joins the product sum and c (N13).
_JOINED_SUM_BITS = 31
_JOINED_C_BITS = 24


class Operands(NamedTuple):
    """The operands of one step.

    Attributes:
        a: [..., L], broadcastable with b.
        b: [..., L].
        scale: product of the block scales of a and b for every k, [..., L]; None without scales.
    """

    a: Parts
    b: Parts
    scale: Parts | None

    def take(self, index: slice | torch.Tensor) -> Operands:
        """Return the operands of some of the k."""
        scale = None if self.scale is None else self.scale.take(index)
        return Operands(self.a.take(index), self.b.take(index), scale)


def multiply(a: Parts, b: Parts) -> Parts:
    """Return the exact products, not normalised (N2); an Inf times zero is NaN (N9)."""
    return Parts(
        a.significand * b.significand,
        a.exponent + b.exponent,
        a.fraction_bits + b.fraction_bits,
        a.negative ^ b.negative,
        (a.infinite | b.infinite) & ~a.zero & ~b.zero,
        a.nan | b.nan | (a.infinite & b.zero) | (a.zero & b.infinite),
    )


def largest_exponent(terms: Parts) -> torch.Tensor:
    """Return the largest exponent of the non-zero terms along the last dimension (N3)."""
    return terms.exponent.masked_fill(terms.significand == 0, _NOWHERE).amax(dim=-1)


def sum_on_grid(terms: Parts, unit: torch.Tensor) -> torch.Tensor:
    """Truncate every term to a multiple of 2^unit and add the multiples exactly (N4, N5).

    Args:
        terms: [..., L].
        unit: int64 [...], exponent of the grid.

    Returns:
        int64 [...]: the sum in units.
    """
    left = terms.exponent - terms.fraction_bits - unit.unsqueeze(-1)
    return shift(terms.significand, left).sum(dim=-1, dtype=torch.int64)


def fused_add(terms: Parts, c: torch.Tensor, model: InstructionModel) -> torch.Tensor:
    """Add terms and accumulator on one grid and convert the sum once (N3..N6, N9).

    Args:
        terms: [..., L].
        c: int64 codes [...] in the model's output format.
        model: gives F, Emin, the result's fraction bits and its rounding.

    Returns:
        int64 codes [...].
    """
    fmt = FORMATS[model.output]
    accumulator = split(c, fmt).unsqueeze()
    exponent = torch.maximum(largest_exponent(terms), largest_exponent(accumulator))
    if model.min_exponent is not None:
        exponent = exponent.clamp(min=model.min_exponent)
    unit = exponent - model.fraction_bits
    total = sum_on_grid(terms, unit) + sum_on_grid(accumulator, unit)
    code = round_to_code(total, unit, fmt, model.result_fraction_bits, model.rounding)
    return with_specials(code, (terms, accumulator), fmt)


def add_nearest(x: torch.Tensor, y: torch.Tensor, fmt: FloatFormat) -> torch.Tensor:
    """Return the IEEE sum of two numbers. Rounded once, nearest even.

    Args:
        x: int64 codes of `fmt`, fp16 or fp32.
        y: int64 codes of the same shape.
        fmt: their format.

    Returns:
        int64 codes.
    """
    # The larger number keeps this many bits below its own. Whatever the smaller one has further
    # down only matters as "not zero", and lies far below the place where the sum is rounded.
    guard = fmt.fraction_bits + 4
    first, second = (split(codes, fmt) for codes in (x, y))
    unit = torch.maximum(first.exponent, second.exponent) - fmt.fraction_bits - guard
    total = _on_fine_grid(first, unit) + _on_fine_grid(second, unit)
    code = round_to_code(total, unit, fmt, fmt.fraction_bits, "nearest even")
    both_minus_zero = first.zero & first.negative & second.zero & second.negative
    code = code.masked_fill(both_minus_zero, sign_bit(fmt))
    return with_specials(code, (first.unsqueeze(), second.unsqueeze()), fmt)


def _on_fine_grid(number: Parts, unit: torch.Tensor) -> torch.Tensor:
    """Truncate to a multiple of 2^unit and keep in the last bit whether anything was lost."""
    left = number.exponent - number.fraction_bits - unit
    magnitude = number.significand.abs()
    kept = shift(magnitude, left)
    kept = kept | (shift(kept, -left) != magnitude).to(torch.int64)
    return torch.where(number.negative, -kept, kept)


def group_index(model: InstructionModel, device: torch.device) -> torch.Tensor:
    """Return the k of every group of one step, in increasing order (N10, N11, N13).

    Args:
        model: gives dot_length and the groups; without any, one group holds every k.
        device: where the index lives.

    Returns:
        int64 [groups, dot_length / groups].
    """
    groups = model.groups or ((0,),)
    residues = sum(map(len, groups))
    index = [[k for k in range(model.dot_length) if k % residues in group] for group in groups]
    return torch.tensor(index, dtype=torch.int64, device=device)


def step_aligned(step: Operands, c: torch.Tensor, model: InstructionModel) -> torch.Tensor:
    """Return one fused dot-product-add; with groups, one after the other (N2..N7, N9, N10).

    Args:
        step: operands of `dot_length` products.
        c: int64 codes of the output format, of the shape of the result.
        model: the instruction.

    Returns:
        int64 codes. Terms are truncated to the grid, the sum is exact, the result is truncated
        or rounded once; a late c adds one rounding.
    """
    products = multiply(step.a, step.b)
    if step.scale is not None:
        products = multiply(products, step.scale)
    late = model.accumulator == "late"
    total = torch.zeros_like(c) if late else c
    for k in group_index(model, c.device):
        total = fused_add(products.take(k), total, model)
    return add_nearest(total, c, FORMATS[model.output]) if late else total


def step_group_sums(step: Operands, c: torch.Tensor, model: InstructionModel) -> torch.Tensor:
    """Return one step that adds each group exactly, scales it, and then does one fused add (N11).

    Arguments and result as `step_aligned`. Group sums are exact; their scaled values are truncated
    to the grid and the result is truncated.
    """
    index = group_index(model, c.device)
    products = multiply(step.a, step.b).take(index)
    # The formats this kind takes have no negative exponents and no special values.
    total = shift(products.significand, products.exponent).sum(dim=-1, dtype=torch.int64)
    nothing = torch.zeros_like(total, dtype=torch.bool)
    sums = Parts(
        total, torch.zeros_like(total), products.fraction_bits, total < 0, nothing, nothing
    )
    if step.scale is not None:
        sums = multiply(sums, step.scale.take(index[:, 0]))
    return fused_add(sums, c, model)


def step_two_stage(step: Operands, c: torch.Tensor, model: InstructionModel) -> torch.Tensor:
    """Return one step that aligns the products alone and then joins their sum with c (N13).

    Arguments and result as `step_aligned`. Products are truncated, sums and c are rounded down to
    their grids, the result is rounded once.
    """
    fmt = FORMATS[model.output]
    products = _overflow_to_infinity(multiply(step.a, step.b), fmt)
    groups = products.take(group_index(model, c.device))
    group_exponent = largest_exponent(groups)
    group_sum = sum_on_grid(groups, group_exponent - model.fraction_bits)
    exponent = group_exponent.amax(dim=-1)
    total = shift_down(group_sum, group_exponent - exponent.unsqueeze(-1))
    total = total.sum(dim=-1, dtype=torch.int64)

    accumulator = split(c, fmt)
    joined = torch.maximum(exponent, accumulator.exponent)
    total = shift_down(total, exponent - joined + (_JOINED_SUM_BITS - model.fraction_bits))
    addend = accumulator.significand
    if model.accumulator_window is not None:
        dropped = accumulator.exponent < joined - model.accumulator_window
        addend = addend.masked_fill(dropped, 0)
    addend = shift_down(
        addend, accumulator.exponent - joined + (_JOINED_C_BITS - fmt.fraction_bits)
    )
    total = total + (addend << (_JOINED_SUM_BITS - _JOINED_C_BITS))
    unit = joined - _JOINED_SUM_BITS
    code = round_to_code(total, unit, fmt, model.result_fraction_bits, model.rounding)
    return with_specials(code, (products, split(c, fmt).unsqueeze()), fmt)


def _overflow_to_infinity(products: Parts, fmt: FloatFormat) -> Parts:
    """Turn products beyond the exponent range of `fmt` into infinities."""
    leading = bit_length(products.significand.abs()) - 1 - products.fraction_bits
    over = (leading + products.exponent > fmt.max_exponent) & (products.significand != 0)
    return products._replace(
        significand=products.significand.masked_fill(over, 0), infinite=products.infinite | over
    )


def step_product_tree(step: Operands, c: torch.Tensor, model: InstructionModel) -> torch.Tensor:
    """Return one step that rounds every product and adds them pairwise, then to c (N13).

    Arguments and result as `step_aligned`. Every product and every add is rounded once; subnormal
    inputs count as +0 and subnormal intermediate values as zero of their sign.
    """
    fmt = FORMATS[model.output]
    products = multiply(_without_subnormals(step.a), _without_subnormals(step.b))
    # round_to_code gives +0 for an exact zero of either sign: a product is an fma onto +0.
    unit = products.exponent - products.fraction_bits
    codes = round_to_code(
        products.significand, unit, fmt, model.result_fraction_bits, model.rounding
    )
    codes = _flushed(with_specials(codes, (products.unsqueeze(),), fmt), fmt)
    while codes.shape[-1] > 1:
        codes = _flushed(add_nearest(codes[..., 0::2], codes[..., 1::2], fmt), fmt)
    start = c.masked_fill(c & infinity(fmt) == 0, 0)
    return _flushed(add_nearest(start, codes.squeeze(-1), fmt), fmt)


def _without_subnormals(parts: Parts) -> Parts:
    """Turn subnormals into +0."""
    small = parts.significand.abs() < 1 << parts.fraction_bits
    return parts._replace(
        significand=parts.significand.masked_fill(small, 0),
        negative=parts.negative & ~(small & ~parts.infinite),
    )


def _flushed(codes: torch.Tensor, fmt: FloatFormat) -> torch.Tensor:
    """Turn the codes of subnormals into zeros of the same sign."""
    field = codes & infinity(fmt)
    return torch.where(field == 0, codes & sign_bit(fmt), codes)


def step_integer(step: Operands, c: torch.Tensor, model: InstructionModel) -> torch.Tensor:
    """Return c plus the products as an int32 that wraps or clamps (N12). Exact.

    Args:
        step: operands of `dot_length` products of integers.
        c: int64 [...], integers of 32 bits.
        model: says what happens beyond the range.

    Returns:
        int64 [...], integers of 32 bits.
    """
    total = c + multiply(step.a, step.b).significand.sum(dim=-1, dtype=torch.int64)
    half = 1 << 31
    if model.overflow == "clamp":
        return total.clamp(-half, half - 1)
    return ((total + half) & (2 * half - 1)) - half

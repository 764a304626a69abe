"""Steps that round an exact sum once, at any spread of exponents: Python integers in numpy arrays.

These are the IEEE fma (N12) and CDNA1's dot product (N13). Their terms may lie thousands of bits
apart, which no fixed-width integer holds; they are slow, and used for model-only rows alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mmaemu.formats import FORMATS, FloatFormat
from mmaemu.instruction.encoding import Parts, sign_bit, split, with_specials
from mmaemu.instruction.fdpa import Operands, multiply
from mmaemu.instruction.model import InstructionModel

if TYPE_CHECKING:
    from numpy.typing import NDArray


def step_exact_sum(step: Operands, c: torch.Tensor, model: InstructionModel) -> torch.Tensor:
    """Return the exact sum of the products and c. Rounded once, nearest even; a zero sum is +0.

    Args:
        step: operands of `dot_length` products.
        c: int64 codes of the output format, of the shape of the result.
        model: the instruction.

    Returns:
        int64 codes.
    """
    fmt = FORMATS[model.output]
    accumulator = split(c, fmt).unsqueeze()
    products = _big(step.a.significand) * _big(step.b.significand)
    exponents = _big(step.a.exponent + step.b.exponent) - (
        step.a.fraction_bits + step.b.fraction_bits
    )
    addend = _big(accumulator.significand)
    addend_exponent = _big(accumulator.exponent) - accumulator.fraction_bits
    lowest = np.minimum(exponents.min(axis=-1, keepdims=True), addend_exponent)
    total = (products << (exponents - lowest)).sum(axis=-1, keepdims=True)
    total = total + (addend << (addend_exponent - lowest))
    rounded = np.frompyfunc(lambda s, e: round_integer(s, e, fmt), 2, 1)(total, lowest)
    codes = torch.tensor(
        rounded[..., 0].astype(np.uint64).view(np.int64), dtype=torch.int64, device=c.device
    )
    return with_specials(codes, (_signs(step), accumulator), fmt)


def step_fma(step: Operands, c: torch.Tensor, model: InstructionModel) -> torch.Tensor:
    """Return fma(a, b, c) as IEEE 754 defines it. Rounded once, nearest even.

    Arguments and result as `step_exact_sum`; the sum of two zeros is -0 if both are -0.
    """
    codes = step_exact_sum(step, c, model)
    fmt = FORMATS[model.output]
    product = _signs(step)
    minus_zero = (product.zero & product.negative).squeeze(-1)
    return codes.masked_fill(minus_zero & (c == sign_bit(fmt)), sign_bit(fmt))


def round_integer(significand: int, exponent: int, fmt: FloatFormat) -> int:
    """Return the code of significand * 2^exponent. Rounded once, nearest even.

    Args:
        significand: any integer; 0 gives +0.
        exponent: any integer.
        fmt: a format with infinities.

    Returns:
        the code; Inf beyond the largest finite value.
    """
    magnitude = abs(significand)
    target = max(magnitude.bit_length() - 1 + exponent, fmt.min_exponent)
    drop = target - fmt.fraction_bits - exponent
    if drop <= 0:
        kept = magnitude << -drop
    else:
        kept = magnitude >> drop
        rest = magnitude - (kept << drop)
        half = 1 << (drop - 1)
        kept += rest > half or (rest == half and kept & 1)
    code = ((target - fmt.min_exponent) << fmt.fraction_bits) + kept if magnitude else 0
    infinity = ((1 << fmt.exponent_bits) - 1) << fmt.fraction_bits
    return min(code, infinity) | (int(significand < 0) << (fmt.bits - 1))


def _big(values: torch.Tensor) -> NDArray[Any]:
    """Return int64 values as Python integers in a numpy object array."""
    return values.cpu().numpy().astype(object)


def _signs(step: Operands) -> Parts:
    """Return the products with significands of -1, 0 and 1: their signs, zeros and specials."""
    a = step.a._replace(significand=step.a.significand.sign())
    b = step.b._replace(significand=step.b.significand.sign())
    return multiply(a, b)

"""A K-long chain of steps: the result of one step is the accumulator of the next (N8)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from mmaemu.formats import FORMATS
from mmaemu.instruction.encoding import (
    FP64,
    Parts,
    from_codes,
    split,
    split_values,
    to_codes,
)
from mmaemu.instruction.exact import step_exact_sum, step_fma
from mmaemu.instruction.fdpa import (
    Operands,
    multiply,
    step_aligned,
    step_group_sums,
    step_integer,
    step_product_tree,
    step_two_stage,
)
from mmaemu.instruction.model import INTEGER_FORMATS, InstructionModel, Kind

Step = Callable[[Operands, torch.Tensor, InstructionModel], torch.Tensor]

STEPS: dict[Kind, Step] = {
    "aligned": step_aligned,
    "group sums": step_group_sums,
    "exact sum": step_exact_sum,
    "fma": step_fma,
    "product tree": step_product_tree,
    "two-stage": step_two_stage,
    "integer": step_integer,
}
"""The algorithm of every kind of model."""


OUTPUT_DTYPES = {
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "int32": torch.int32,
}


def chain(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None,
    model: InstructionModel,
    *,
    formats: tuple[str, str],
    scale_a: torch.Tensor | None = None,
    scale_b: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the chain over the last dimension of a * b, started from c.

    Steps take `model.dot_length` products each, in increasing k; a ragged tail is padded with
    zeros (N8). Exactness is that of the model's step.

    Args:
        a: float64 [..., K], every element a value of `formats[0]` (not checked here).
        b: float64 [..., K], every element a value of `formats[1]`; broadcastable with a.
        c: tensor [...] of the output dtype (float16, float32, float64 or int32) and of the
            broadcast shape; None = +0.
        model: the instruction.
        formats: the formats of a and b.
        scale_a: float64 [..., ceil(K / scale_block)] values of the model's scale format; None
            for a model without scales.
        scale_b: as scale_a, for b.

    Returns:
        tensor [...] of the output dtype on a's device. A NaN is the canonical one. K = 0 gives c.

    Raises:
        ValueError: `formats` is no pair of the model, or scales are missing or not taken.
    """
    if formats not in model.inputs:
        raise ValueError(f"model {model.name!r} takes {model.inputs}, got the formats {formats}")
    if ((scale_a is None), (scale_b is None)) != (model.scale_format is None,) * 2:
        wanted = f"{model.scale_format} scales" if model.scale_format else "no scales"
        raise ValueError(f"model {model.name!r} takes {wanted} for both operands")
    length = -a.shape[-1] % model.dot_length + a.shape[-1]
    operands = Operands(
        _parts(a, model.operand_format or formats[0], length),
        _parts(b, model.operand_format or formats[1], length),
        _scales(scale_a, scale_b, model, length),
    )
    shape = torch.Size(np.broadcast_shapes(a.shape[:-1], b.shape[:-1]))
    codes = _start(c, model, shape, a.device)
    advance = STEPS[model.kind]
    for start in range(0, length, model.dot_length):
        codes = advance(operands.take(slice(start, start + model.dot_length)), codes, model)
    if model.output == "int32":
        return codes.to(torch.int32)
    return from_codes(codes, FORMATS[model.output])


def _start(
    c: torch.Tensor | None, model: InstructionModel, shape: torch.Size, device: torch.device
) -> torch.Tensor:
    """Return the codes of c, NaN made canonical."""
    if c is None:
        return torch.zeros(shape, dtype=torch.int64, device=device)
    if c.dtype != OUTPUT_DTYPES[model.output] or c.shape != shape:
        raise ValueError(
            f"model {model.name!r} takes c as {OUTPUT_DTYPES[model.output]} of shape "
            f"{tuple(shape)}, got {c.dtype} of shape {tuple(c.shape)}"
        )
    if model.output == "int32":
        return c.to(torch.int64)
    fmt = FORMATS[model.output]
    codes = to_codes(c, fmt)
    return codes.masked_fill(split(codes, fmt).nan, fmt.canonical_nan or 0)


def _parts(values: torch.Tensor, fmt: str, length: int) -> Parts:
    """Split operand values, padded with zeros to `length` along the last dimension."""
    missing = (0, length - values.shape[-1])
    if fmt in INTEGER_FORMATS:
        integers = torch.nn.functional.pad(values.to(torch.int64), missing)
        no = torch.zeros_like(integers, dtype=torch.bool)
        return Parts(integers, torch.zeros_like(integers), 0, integers < 0, no, no)
    return split_values(torch.nn.functional.pad(to_codes(values, FP64), missing), FORMATS[fmt])


def _scales(
    scale_a: torch.Tensor | None, scale_b: torch.Tensor | None, model: InstructionModel, length: int
) -> Parts | None:
    """Return the product of both scales for every k (N11)."""
    if scale_a is None or scale_b is None or model.scale_format is None:
        return None
    blocks = length // model.scale_block
    both = multiply(*(_parts(scale, model.scale_format, blocks) for scale in (scale_a, scale_b)))
    index = torch.arange(length, dtype=torch.int64, device=scale_a.device)
    return both.take(index // model.scale_block)

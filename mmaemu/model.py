"""The instruction level in public: `dot`, the presets, and the epilogue.

`dot` evaluates a chain of one instruction for every row of two tensors. It is the readable
reference of the whole package; docs/explanation/numerics.md states what it computes.
"""

from __future__ import annotations

import numpy as np
import torch

from mmaemu.formats import FORMATS, FloatFormat, format_of
from mmaemu.gemm import epilogue
from mmaemu.instruction.chain import OUTPUT_DTYPES, chain
from mmaemu.instruction.encoding import (
    FP64,
    convert,
    from_codes,
    is_value_of,
    to_codes,
)
from mmaemu.instruction.model import INTEGER_FORMATS, InstructionModel
from mmaemu.instruction.models import get_preset, list_presets

__all__ = ["Preset", "dot", "epilogue", "get_preset", "list_presets"]

Preset = InstructionModel

_INTEGER_VIEWS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
_TF32_REGISTER = torch.float32
# torch has no unsigned e4m3; a float8_e4m3fn without sign holds the same codes. Names, not dtypes:
# the oldest torch that is supported has no float8_e8m0fnu.
_SCALE_CODES = {"ue8m0": FORMATS["ue8m0"], "ue4m3": FORMATS["e4m3"]}
_INT8_RANGE = (-128, 127)


def dot(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor | None = None,
    *,
    preset: str | InstructionModel = "ada",
    fmt: str | tuple[str, str] | None = None,
    scale_a: torch.Tensor | None = None,
    scale_b: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the chain over the last dimension of a * b, started from c.

    Args:
        a: [..., K] of any strides: a tensor of the dtype of one of the preset's formats (float8,
            float16, bfloat16, float32, int8; float32 registers with fmt="tf32"), or float64 with
            values of the format that `fmt` names.
        b: like a, of the same shape and device. There is no broadcasting.
        c: [...], None = +0. float32 for fp32 results; float16 or float32 (rounded to nearest
            even) for fp16 results; float64 for fp64, int32 for int32. For fp32 and fp16 results
            also float64 that holds float32 values.
        preset: name or InstructionModel.
        fmt: format of both operands, or a pair. Needed where a dtype does not tell it.
        scale_a: block scales of a, [..., ceil(K / scale_block)], for the presets that take them:
            float8_e8m0fnu (ue8m0) or float8_e4m3fn without sign (ue4m3), or float64 values.
        scale_b: block scales of b.

    Returns:
        [...] on a's device: float32, float16, float64 or int32, as the preset's output says. A
        NaN is the canonical one of the dtype. K = 0 gives c.

    Warns:
        ExperimentalPresetWarning: see `get_preset`.

    Raises:
        TypeError: an argument of a wrong type, a dtype that the preset does not take, or a format
            that is not told.
        ValueError: shapes or devices differ, `fmt` fits neither the dtype nor the preset, or a
            float64 value is none of its format.
        KeyError: no such preset.
    """
    a, b = _tensor("a", a), _tensor("b", b)
    _check_shapes(a, b)
    model = get_preset(preset)
    names = _format_pair(fmt)
    a_values, a_format = _operand("a", a, names[0], model)
    b_values, b_format = _operand("b", b, names[1], model)
    if (a_format, b_format) not in model.inputs:
        taken = ", ".join(f"{x} x {y}" for x, y in model.inputs)
        raise ValueError(
            f"preset {model.name!r} takes {taken}; got {a_format} x {b_format}. "
            "Name another preset (list_presets())"
        )
    scales = (
        _scale(name, scale, model, a)
        for name, scale in (("scale_a", scale_a), ("scale_b", scale_b))
    )
    return chain(
        a_values,
        b_values,
        None if c is None else _accumulator(_tensor("c", c), model, a),
        model,
        formats=(a_format, b_format),
        scale_a=next(scales),
        scale_b=next(scales),
    )


def _tensor(name: str, value: object) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    return value.detach()


def _check_shapes(a: torch.Tensor, b: torch.Tensor) -> None:
    if a.dim() == 0 or a.shape != b.shape:
        raise ValueError(
            "a and b must have the same shape [..., K]; there is no broadcasting (expand them "
            f"yourself). Got {tuple(a.shape)} and {tuple(b.shape)}"
        )
    if a.device != b.device:
        raise ValueError(f"a and b must be on one device, got {a.device} and {b.device}")


def _format_pair(fmt: object) -> tuple[str | None, str | None]:
    known = (*FORMATS, *INTEGER_FORMATS)
    pair = fmt if isinstance(fmt, tuple) else (fmt, fmt)
    if [name is None or isinstance(name, str) for name in pair] != [True, True]:
        raise TypeError(f"fmt must be a format name or a pair of them, got {fmt!r}")
    unknown = [name for name in pair if name is not None and name not in known]
    if unknown:
        raise ValueError(f"fmt: unknown format {unknown[0]!r}; known: {', '.join(known)}")
    return pair[0], pair[1]


def _operand(
    name: str, operand: torch.Tensor, fmt: str | None, model: InstructionModel
) -> tuple[torch.Tensor, str]:
    """Return the float64 values of an operand and its format."""
    if operand.dtype == torch.float64:
        if fmt is None:
            raise TypeError(
                f"{name} is float64: pass fmt= (such as 'e4m3', or a pair) to say whose values it "
                "holds; only other dtypes tell their format"
            )
        _check_values(name, operand, fmt)
        return operand, fmt
    if operand.dtype == _TF32_REGISTER and fmt == "tf32":
        return _decoded(operand, FORMATS["tf32"]), fmt
    told = "int8" if operand.dtype == torch.int8 else format_of(operand.dtype).name
    taken = sorted({pair[name == "b"] for pair in model.inputs})
    if told not in taken:
        raise TypeError(
            f"{name}: preset {model.name!r} takes {', '.join(taken)} (or float64 values with "
            f"fmt=), got a tensor of {operand.dtype}"
        )
    if fmt not in {None, told}:
        raise ValueError(f"{name} has dtype {operand.dtype}, which is {told}, but fmt says {fmt!r}")
    if told in INTEGER_FORMATS:
        return operand.to(torch.float64), told
    return _decoded(operand, FORMATS[told]), told


def _decoded(tensor: torch.Tensor, fmt: FloatFormat) -> torch.Tensor:
    """Return the float64 values of a tensor of 8, 16 or 32-bit floats. Exact, subnormals too."""
    codes = tensor.view(_INTEGER_VIEWS[tensor.element_size()]).to(torch.int64).cpu().numpy()
    values = fmt.decode(codes & ((1 << fmt.bits) - 1))
    return torch.from_numpy(np.asarray(values)).to(tensor.device)


def _check_values(name: str, tensor: torch.Tensor, fmt: str) -> None:
    if fmt in INTEGER_FORMATS:
        low, high = _INT8_RANGE
        good = (tensor == tensor.round()) & (tensor >= low) & (tensor <= high)
    else:
        good = is_value_of(to_codes(tensor, FP64), FORMATS[fmt])
    if not bool(good.all()):
        bad = tensor[~good].flatten()
        raise ValueError(
            f"{name} holds {bad.numel()} values that are no {fmt} values, such as "
            f"{bad[0].item()!r}; round them to the format first"
        )


def _check_shape(
    name: str, tensor: torch.Tensor, shape: tuple[int, ...], device: torch.device
) -> None:
    if tuple(tensor.shape) != shape or tensor.device != device:
        raise ValueError(
            f"{name} must have shape {shape} on {device}, "
            f"got {tuple(tensor.shape)} on {tensor.device}"
        )


def _accumulator(c: torch.Tensor, model: InstructionModel, a: torch.Tensor) -> torch.Tensor:
    """Return c in the preset's output dtype."""
    _check_shape("c", c, tuple(a.shape[:-1]), a.device)
    wanted = OUTPUT_DTYPES[model.output]
    if c.dtype == wanted:
        return c
    if model.output not in {"fp32", "fp16"} or c.dtype not in {torch.float32, torch.float64}:
        raise TypeError(f"preset {model.name!r} takes c as {wanted}, got {c.dtype}")
    if c.dtype == torch.float64:
        _check_values("c", c, "fp32")
    source, target = format_of(c.dtype), FORMATS[model.output]
    return from_codes(convert(to_codes(c, source), source, target), target)


def _scale(
    name: str, scale: torch.Tensor | None, model: InstructionModel, a: torch.Tensor
) -> torch.Tensor | None:
    """Return the float64 values of the block scales of one operand."""
    if model.scale_format is None:
        if scale is not None:
            raise ValueError(f"preset {model.name!r} takes no block scales; leave {name} out")
        return None
    stored = _SCALE_CODES[model.scale_format]
    dtype = f"torch.{stored.torch_name}"
    if scale is None:
        raise ValueError(
            f"preset {model.name!r} needs {name}: one {model.scale_format} scale per "
            f"{model.scale_block} elements, {dtype} or float64"
        )
    tensor = _tensor(name, scale)
    blocks = -(-a.shape[-1] // model.scale_block)
    _check_shape(name, tensor, (*a.shape[:-1], blocks), a.device)
    if str(tensor.dtype) not in {dtype, "torch.float64"}:
        raise TypeError(f"{name} must be {dtype} or torch.float64, got {tensor.dtype}")
    if tensor.dtype != torch.float64:
        tensor = _decoded(tensor, stored)
    _check_values(name, tensor, model.scale_format)
    return tensor

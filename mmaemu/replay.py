"""Replays a recorded output through the public API and compares bit for bit.

Every call is made as the recording describes it: the same layouts, offsets, scales, buffers and
left-out arguments, with the split-K decision of the recording.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from mmaemu.formats import FORMATS
from mmaemu.gemm.splitk import SplitK
from mmaemu.instruction.models import get_preset
from mmaemu.profiles.profile import get_profile
from mmaemu.recordings import Bits, CallRecord, GemmRecord, MmaRecord, Record

if TYPE_CHECKING:
    import torch

    from mmaemu.gemm.splitk import Scheme

# Bytes with which padding and `out=` buffers are filled: FP8 NaN, so that a stray read shows.
FILL: Final = 0x7F

# Products of one instruction-level call; bounds its memory to some tens of MiB.
_CHUNK_PRODUCTS: Final = 1 << 18

# The type of an accumulator by the integers that its bits are stored in.
_FLOAT_OF_BITS: Final = {"uint16": "float16", "uint32": "float32"}


@dataclass(frozen=True, slots=True)
class Replay:
    """How one record compares.

    Attributes:
        id: the record's label.
        values: number of recorded values; 1 where an error was recorded.
        differing: how many of them differ in any bit.
        expected: "values" or the exact class of the recorded error.
        got: "values" or the exact class of the error raised.
        detail: where they differ: the first differing value, or the message of the error.
    """

    id: str
    values: int
    differing: int
    expected: str
    got: str
    detail: str = ""

    @property
    def equal(self) -> bool:
        """Whether every bit, or the exact error class, is the recorded one."""
        return self.differing == 0


class NotReplayableError(Exception):
    """The record describes a call that this module does not know how to make."""


def replay(record: Record, *, backend: str = "auto", device: str = "cpu") -> Replay:
    """Make the recorded call and compare with what the GPU returned.

    Args:
        record: an instruction chain, a GEMM or a spelled-out call.
        backend: as for `mmaemu.scaled_mm`; instruction chains do not use it.
        device: where the operands are put; instruction chains are always computed on the CPU.

    Returns:
        The comparison; an unexpected error counts every value as differing.

    Raises:
        NotReplayableError: the record describes something this module does not know.
        KeyError: it names an unknown preset, profile or argument.
        ValueError: it names an unknown split-K scheme.
    """
    call = _prepare(record, backend, device)
    recorded_error = None if isinstance(record, MmaRecord) else record.error
    recorded = record.d if isinstance(record, MmaRecord) else record.out
    values = 1 if recorded is None else recorded.size
    expected = recorded_error or "values"
    with warnings.catch_warnings():
        # Warnings have tests of their own; here the recorded bits are the question.
        warnings.simplefilter("ignore")
        try:
            actual = call()
        except Exception as error:  # noqa: BLE001 - which error is raised is what is compared
            got, detail = type(error).__name__, str(error)
            same = recorded is None and got == recorded_error
            return Replay(record.id, values, 0 if same else values, expected, got, detail)
    if recorded is None:
        return Replay(record.id, values, values, expected, "values", "no error was raised")
    differing, detail = _compare(recorded, actual)
    return Replay(record.id, values, differing, expected, "values", detail)


def _prepare(record: Record, backend: str, device: str) -> Callable[[], Bits]:
    """Everything that may fail because the record is not understood, before the recorded call."""
    if isinstance(record, MmaRecord):
        get_preset(record.preset, warn=False)
        return lambda: _chain(record)
    get_profile(record.profile)
    if isinstance(record, CallRecord):
        return _spelled_call(record, backend, device)
    if record.op == "accumulate":
        return _accumulate(record, backend, device)
    if record.op == "scaled_mm":
        return _scaled_mm(record, backend, device)
    raise NotReplayableError(f"{record.id}: unknown op {record.op!r}")


def _compare(recorded: Bits, actual: Bits) -> tuple[int, str]:
    if recorded.shape != actual.shape or recorded.dtype != actual.dtype:
        return recorded.size, (
            f"recorded {recorded.dtype}{list(recorded.shape)}, "
            f"got {actual.dtype}{list(actual.shape)}"
        )
    unequal = recorded != actual
    differing = int(np.count_nonzero(unequal))
    if not differing:
        return 0, ""
    first = np.unravel_index(int(np.argmax(unequal)), recorded.shape)
    place = ", ".join(str(int(index)) for index in first)
    digits = 2 * recorded.dtype.itemsize
    return differing, (
        f"[{place}]: recorded 0x{int(recorded[first]):0{digits}X}, "
        f"got 0x{int(actual[first]):0{digits}X}"
    )


def _bits_of(tensor: torch.Tensor) -> Bits:
    """The raw bits of a tensor as unsigned integers of its shape."""
    from mmaemu import testing

    bits = testing.bits(tensor.detach().contiguous()).cpu().numpy()
    return bits.view(f"u{bits.dtype.itemsize}")


def _tensor(codes: Bits, dtype: torch.dtype, device: str) -> torch.Tensor:
    """A tensor of `dtype` with these bits, in storage of its own."""
    import torch

    # Old releases of torch know no unsigned integers beyond bytes; signed ones carry the same bits.
    # torch allocates the copy itself, so that its alignment is known, as on the reference platform.
    signed = np.ascontiguousarray(codes).view(f"i{codes.dtype.itemsize}")
    integer = {1: torch.int8, 2: torch.int16, 4: torch.int32}[codes.dtype.itemsize]
    return torch.tensor(signed, dtype=integer, device=device).view(dtype)


def _dtype(name: str) -> torch.dtype:
    import torch

    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise NotReplayableError(f"torch {torch.__version__} has no dtype {name!r}")
    return dtype


def _operand_dtype(format_name: str) -> torch.dtype:
    known = FORMATS.get(format_name)
    if known is None or known.torch_name is None:
        raise NotReplayableError(f"torch has no dtype for operands of format {format_name!r}")
    return _dtype(known.torch_name)


def _scalar(bits: int, device: str) -> torch.Tensor:
    import torch

    return _tensor(np.array(bits, dtype=np.uint32), torch.float32, device)


def _split(split: tuple[int, str]) -> SplitK:
    count, scheme = split
    return SplitK(count, cast("Scheme", scheme))  # SplitK checks the name.


# Instruction chains


def _chain(record: MmaRecord) -> Bits:
    """All chains of a record, a bounded number of products at a time."""
    groups = record.d.shape[0]
    products = record.d[:1].size * record.a.shape[-1]
    step = max(1, _CHUNK_PRODUCTS // max(1, products))
    parts = [_chain_slice(record, slice(at, at + step)) for at in range(0, groups, step)]
    return np.concatenate(parts) if parts else record.d


def _chain_slice(record: MmaRecord, part: slice) -> Bits:
    from mmaemu import model

    a, b = _values(record.format_a, record.a[part]), _values(record.format_b, record.b[part])
    if record.layout == "tile":
        shape = (a.shape[0], a.shape[1], b.shape[1], a.shape[2])
        a, b = a[:, :, None, :].expand(shape), b[:, None, :, :].expand(shape)
    c = _tensor(record.c[part], _dtype(_FLOAT_OF_BITS[record.c.dtype.name]), "cpu")
    formats = (record.format_a, record.format_b)
    return _bits_of(model.dot(a, b, c, preset=record.preset, fmt=formats))


def _values(format_name: str, codes: Bits) -> torch.Tensor:
    """The exact values of codes as float64, which `model.dot` takes for every format."""
    import torch

    known = FORMATS.get(format_name)
    if known is None:
        raise NotReplayableError(f"unknown format {format_name!r}")
    return torch.tensor(known.decode(codes), dtype=torch.float64, device="cpu")


# GEMMs


def _accumulate(record: GemmRecord, backend: str, device: str) -> Callable[[], Bits]:
    from mmaemu import api, model

    a, b = _gemm_operands(record, device)
    out_dtype = _dtype(record.out_dtype)
    splitk = _split(record.split)

    def run() -> Bits:
        accumulator = api.accumulate(
            a,
            b,
            use_fast_accum=record.use_fast_accum,
            profile=record.profile,
            splitk=splitk,
            backend=backend,
            out_dtype_for_split=out_dtype,
        )
        result = model.epilogue.apply(
            accumulator,
            _scalar(record.scale_a_bits, device),
            _scalar(record.scale_b_bits, device),
            out_dtype=out_dtype,
            scale_result=_scale_result(record, device),
        )
        return _select(record, _bits_of(result))

    return run


def _select(record: GemmRecord, out: Bits) -> Bits:
    return np.diagonal(out).copy() if record.call.get("out_select") == "diagonal" else out


def _gemm_operands(record: GemmRecord, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = record.a, record.b
    if a is None or b is None:
        rows, columns, depth = record.call["zero_operands_MNK"]
        a, b = np.zeros((rows, depth), np.uint8), np.zeros((columns, depth), np.uint8)
    return (
        _tensor(a, _operand_dtype(record.format_a), device),
        _tensor(b, _operand_dtype(record.format_b), device),
    )


def _scale_result(record: GemmRecord, device: str) -> torch.Tensor | None:
    bits = record.scale_result_bits
    return None if bits is None else _scalar(bits, device)


def _scaled_mm(record: GemmRecord, backend: str, device: str) -> Callable[[], Bits]:
    import torch

    a, b = _gemm_operands(record, device)
    if record.call.get("scaling") == "rowwise":
        scale_a = torch.ones((a.shape[0], 1), dtype=torch.float32, device=device)
        scale_b = torch.ones((1, b.shape[0]), dtype=torch.float32, device=device)
    else:
        scale_a = _scalar(record.scale_a_bits, device)
        scale_b = _scalar(record.scale_b_bits, device)
    tensors = {"input": a, "mat2": b.t(), "scale_a": scale_a, "scale_b": scale_b}
    _require_grad(tensors, record.call.get("requires_grad") or ())
    keywords: dict[str, Any] = {"profile": record.profile, "splitk": _split(record.split)}
    keywords["backend"] = backend
    if record.scale_result_bits is not None:
        keywords["scale_result"] = _scale_result(record, device)
    if record.call.get("out_dtype") is not False:
        keywords["out_dtype"] = _dtype(record.out_dtype)
    if record.call.get("use_fast_accum") is not False:
        keywords["use_fast_accum"] = record.use_fast_accum
    positional = list(tensors.values())
    if bias := record.call.get("bias"):
        dtype = _dtype(record.call["bias_dtype"])
        zeros = torch.zeros((b.shape[0],), dtype=dtype, device=device)
        if bias == "positional":
            positional.append(zeros)
        else:
            keywords["bias"] = zeros
    if "out_fill" in record.call:
        shape = (a.shape[0], b.shape[0])
        filled = _filled(shape, record.call["out_fill"], _dtype(record.out_dtype))
        keywords["out"] = filled.to(device)
    return lambda: _select(record, _call_scaled_mm(positional, keywords))


def _filled(shape: tuple[int, ...], value: float | str, dtype: torch.dtype) -> torch.Tensor:
    import torch

    return torch.full(shape, float(value), dtype=torch.float32, device="cpu").to(dtype)


def _require_grad(tensors: Mapping[str, torch.Tensor], names: Iterable[str]) -> None:
    aliases = {"mat1": "input", "a": "input", "b": "mat2"}
    for name in names:
        tensors[aliases.get(name, name)].requires_grad_(True)  # noqa: FBT003 - torch's signature


def _call_scaled_mm(positional: list[Any], keywords: Mapping[str, Any]) -> Bits:
    from mmaemu import api

    result = api.scaled_mm(*positional, **keywords)
    out = keywords.get("out")
    if out is not None and result is not out:
        raise AssertionError("scaled_mm returned another tensor than the out= it was given")
    return _bits_of(result)


# Spelled-out calls


def _spelled_call(record: CallRecord, backend: str, device: str) -> Callable[[], Bits]:
    import torch

    call = record.call
    mat1 = _laid_out(record.a, call["mat1"], device)
    mat2 = _laid_out(record.b, call["mat2"], device).t()
    scale_a, scale_b = _scale(call["scale_a"], device), _scale(call["scale_b"], device)
    grad = call["grad"] or {"mode": "enabled", "requires_grad": ()}
    tensors = {"input": mat1, "mat2": mat2, "scale_a": scale_a, "scale_b": scale_b}
    _require_grad(tensors, grad["requires_grad"])
    positional: list[Any] = list(tensors.values())
    keywords: dict[str, Any] = {
        "profile": record.profile,
        "splitk": _split(record.split),
        "backend": backend,
        "use_fast_accum": record.use_fast_accum,
        "scale_result": None
        if call["scale_result"] is None
        else _scale(call["scale_result"], device),
    }
    bias = None if call["bias"] is None else _bias(call["bias"], device)
    if call["positional_bias"]:
        positional.append(bias)
    else:
        keywords["bias"] = bias
    if record.out_dtype_passed:
        keywords["out_dtype"] = _dtype(record.out_dtype)
    if call["out"] is not None:
        keywords["out"] = _out_buffer(call["out"], device)

    def run() -> Bits:
        with torch.set_grad_enabled(grad["mode"] == "enabled"):
            return _call_scaled_mm(positional, keywords)

    return run


def _laid_out(codes: Bits, spec: Mapping[str, Any], device: str) -> torch.Tensor:
    """A logical [rows, K] operand in the recorded storage, padding filled with `FILL`."""
    import torch

    transposed = spec["layout"] != "std"
    stored = codes.T if transposed else codes
    rows, columns = stored.shape
    leading = columns + spec["ld_pad"]
    size = spec["offset"] + rows * leading
    buffer = np.full(size * codes.dtype.itemsize, FILL, np.uint8).view(codes.dtype)
    view = np.lib.stride_tricks.as_strided(
        buffer[spec["offset"] :],
        (rows, columns),
        (leading * codes.dtype.itemsize, codes.dtype.itemsize),
    )
    view[...] = stored
    storage = _tensor(buffer, _dtype(spec["dtype"]), device)
    laid_out = torch.as_strided(storage, (rows, columns), (leading, 1), spec["offset"])
    return laid_out.t() if transposed else laid_out


def _scale(spec: Mapping[str, Any], device: str) -> torch.Tensor:
    import torch

    dtype, shape = _dtype(spec["dtype"]), tuple(spec["shape"])
    if spec["value"] == "rowwise":
        ramp = [0.25 + 0.0625 * (7 * i % 16) for i in range(int(np.prod(shape)))]
        return torch.tensor(ramp, dtype=dtype, device=device).reshape(shape)
    return torch.full(shape, float(spec["value"]), dtype=dtype, device=device)


def _bias(spec: Mapping[str, Any], device: str) -> torch.Tensor:
    import torch

    values = [0.125 * i - 1 for i in range(spec["len"])]
    return torch.tensor(values, dtype=_dtype(spec["dtype"]), device=device)


def _out_buffer(spec: Mapping[str, Any], device: str) -> torch.Tensor:
    dtype, shape = _dtype(spec["dtype"]), tuple(spec["shape"])
    stored = shape if spec["contiguous"] else shape[::-1]
    width = dtype.itemsize
    filled = np.full((int(np.prod(stored)) * width,), FILL, np.uint8).view(f"u{width}")
    buffer = _tensor(filled, dtype, device).reshape(stored)
    return buffer if spec["contiguous"] else buffer.t()

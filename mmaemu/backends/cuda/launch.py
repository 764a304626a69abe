"""From a request to launches: the parameter of csrc/cuda/abi.h, the grid, and rows in chunks."""

from __future__ import annotations

import ctypes
from typing import Final, NamedTuple

import torch

from mmaemu.backends.base import AccumulateRequest
from mmaemu.backends.cuda.loader import Module
from mmaemu.backends.cuda.specs import KernelSpec

FORMATS: Final = {"e4m3": 0, "e5m2": 1}
PARTITIONS: Final = {"none": 0, "serial": 1, "pairwise": 2, "contiguous": 3}
ACCUMULATOR: Final = -1
OUTPUTS: Final = {
    torch.float32: 0,
    torch.bfloat16: 1,
    torch.float16: 2,
    torch.float8_e4m3fn: 3,
    torch.float8_e5m2: 4,
}
"""Enumerations of csrc/numerics and csrc/cuda/abi.h."""

MAX_ROW_TILES: Final = 65535
"""Largest grid.y of CUDA; a longer M is cut into several launches."""


class Parameter(ctypes.Structure):
    """`struct mmaemu_cuda_request`, which documents the fields."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("m", "n", "k", "lda", "ldb", "ldc")),
        *((name, ctypes.c_int64) for name in ("slices", "tile", "promotion")),
        *((name, ctypes.c_void_p) for name in ("a", "b", "out")),
        *((name, ctypes.c_void_p) for name in ("scale_a", "scale_b", "scale_result")),
        *((name, ctypes.c_int32) for name in ("partition", "format_a", "format_b", "output")),
    )


class Scales(NamedTuple):
    """fp32 tensors of one element on the device, which the kernel reads; None for accumulators."""

    scale_a: torch.Tensor | None = None
    scale_b: torch.Tensor | None = None
    scale_result: torch.Tensor | None = None


def run(
    module: Module,
    kernel: KernelSpec,
    request: AccumulateRequest,
    out: torch.Tensor,
    scales: Scales,
    *,
    stream: int,
) -> None:
    """Launch a kernel for all rows of a request. Waits for nothing.

    Args:
        module: the loaded module of the kernel.
        kernel: a kernel that takes the request.
        request: what to compute; no size is zero.
        out: [M, N] on the device with stride(1) = 1: outputs, or fp32 accumulators without scales.
        scales: factors of the outputs.
        stream: where to launch.

    Raises:
        NativeLibraryError: the driver refuses.
    """
    rows, columns = kernel.tile
    most = MAX_ROW_TILES * rows
    parameter = _parameter(request, out, scales)
    a, target = request.a.data_ptr(), out.data_ptr()
    for first in range(0, request.M, most):
        parameter.m = min(most, request.M - first)
        parameter.a = a + first * request.a.stride(0)
        parameter.out = target + first * out.stride(0) * out.element_size()
        module.launch(
            kernel.entry,
            grid=(-(-request.N // columns), -(-parameter.m // rows)),
            threads=kernel.threads,
            shared_bytes=kernel.shared_bytes,
            stream=stream,
            parameter=parameter,
        )


def _parameter(request: AccumulateRequest, out: torch.Tensor, scales: Scales) -> Parameter:
    plan = request.plan
    split = plan.split
    return Parameter(
        n=request.N,
        k=request.K,
        lda=request.a.stride(0),
        ldb=request.b.stride(0),
        ldc=out.stride(0),
        slices=split.S,
        tile=plan.tile_width if split.S > 1 else 0,
        promotion=plan.promotion or 0,
        b=request.b.data_ptr(),
        partition=PARTITIONS[split.scheme],
        format_a=FORMATS[request.format_a],
        format_b=FORMATS[request.format_b],
        output=ACCUMULATOR if scales.scale_a is None else OUTPUTS[out.dtype],
        **{
            name: None if scale is None else scale.data_ptr()
            for name, scale in scales._asdict().items()
        },
    )

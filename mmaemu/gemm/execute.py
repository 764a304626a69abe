"""Around a backend's accumulation: zero sizes, the non-finite rule and the epilogue.

The accumulate function is an argument, so this layer knows no backend.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from mmaemu.gemm import epilogue as epilogues
from mmaemu.gemm import nonfinite
from mmaemu.gemm.request import AccumulateRequest

Accumulate = Callable[[AccumulateRequest, torch.Tensor], None]
"""Writes the fp32 accumulators [M, N] of a request; non-finite codes count as zero."""

BAND = 1 << 22
"""Accumulators held at once beside an output that is narrower than fp32: 16 MiB."""


def accumulate(compute: Accumulate, request: AccumulateRequest) -> torch.Tensor:
    """Return the fp32 accumulators of a request, non-finite codes included.

    Memory: operands, result, what `compute` states, and a few MiB for the non-finite rule.

    Args:
        compute: a backend's accumulate function.
        request: operands, formats, model and plan; any size may be zero.

    Returns:
        fp32 [M, N] on the operands' device; +0 everywhere if K = 0.
    """
    acc = torch.empty((request.M, request.N), dtype=torch.float32, device=request.device)
    _accumulate(compute, request, acc)
    return acc


def execute(
    compute: Accumulate, request: AccumulateRequest, epilogue: epilogues.Epilogue
) -> torch.Tensor:
    """Return the output of a GEMM.

    Memory: operands, output, what `compute` states, at most max(2^22, N) accumulators (16 MiB
    unless N is larger) where the output is narrower than fp32, and a few MiB beside.

    Args:
        compute: a backend's accumulate function.
        request: operands, formats, model and plan; any size may be zero.
        epilogue: scales and output type.

    Returns:
        epilogue.out_dtype [M, N] on the operands' device; +0 everywhere if K = 0, whatever the
        scales are.
    """
    rows, columns = request.M, request.N
    out = torch.empty((rows, columns), dtype=epilogue.out_dtype, device=request.device)
    if not (out.numel() and request.K):
        # Zero bytes are +0 in every format; not every version of torch fills fp8 tensors.
        out.view(torch.uint8).zero_()
        return out
    if out.dtype == torch.float32:
        _accumulate(compute, request, out)
        epilogues.finish(out, epilogue, out)
        return out
    band = min(rows, max(1, BAND // columns))
    acc = torch.empty((band, columns), dtype=torch.float32, device=request.device)
    for first in range(0, rows, band):
        part = replace(request, a=request.a[first : first + band])
        _accumulate(compute, part, acc[: part.M])
        epilogues.finish(acc[: part.M], epilogue, out[first : first + band])
    return out


def _accumulate(compute: Accumulate, request: AccumulateRequest, acc: torch.Tensor) -> None:
    if not request.K:
        acc.zero_()
    elif acc.numel():
        compute(request, acc)
        nonfinite.overwrite(acc, request)

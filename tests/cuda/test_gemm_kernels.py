"""Every CUDA module on this machine's GPU, from its fatbin and from NVRTC, bit for bit.

The reference runs on the CPU. Operands lie among NaN codes and outputs among guard words. A module
that is not meant for the GPU is skipped with that reason; one whose binary is missing, or whose
gates do not pass although it is not gated, fails.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
import torch

from harness import PAIRS, PLANS, SHAPES, Pair, edges, every_pair, make_request
from mmaemu.backends import reference
from mmaemu.backends.base import AccumulateRequest
from mmaemu.backends.cuda import backends, launch
from mmaemu.backends.cuda.backend import CudaBackend
from mmaemu.gemm import epilogue as epilogues
from mmaemu.gemm import execute
from mmaemu.instruction.models import get_preset
from mmaemu.testing import assert_bitwise_equal
from mmaemu.testing.operands import FAMILIES, operands

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

CUDA = torch.device("cuda")
# Which rung of the ladder a module comes from: NVRTC where the fatbin is made to fail.
RUNGS = {"fatbin": "", "NVRTC": "cuda-fatbin-manifest"}
GUARD = 64
GUARD_BITS = 0x7FC0BEEF
SCALES = (-0.37, 2.0**100, 0.0, float("inf"))


class Row(NamedTuple):
    """One row of the table: a module as it was loaded."""

    backend: CudaBackend
    model: str
    formats: tuple[Pair, ...]
    alignment: int


@pytest.fixture(params=list(product((b.name for b in backends()), RUNGS)), ids="-".join)
def row(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Row:
    name, rung = request.param
    monkeypatch.setenv("MMAEMU_TEST_FAULT", RUNGS[rung])
    return row_of(name, rung)


def row_of(name: str, rung: str) -> Row:
    """The row of a backend that comes from this rung, or none, said by pytest's exceptions."""
    backend = next(each for each in backends() if each.name == name)
    status = backend.status(CUDA)
    if not status.available:
        gates = [verdict for verdict in backend.verdicts(CUDA) if not verdict.passed]
        if "not meant for" in status.reason or (backend.gated and gates):
            pytest.skip(status.reason)
        pytest.fail(status.reason)
    kernel = backend.kernels[0]
    assert ("NVRTC" in str(status.source)) == (rung == "NVRTC"), status.source
    return Row(backend, kernel.model, kernel.formats, kernel.alignment)


def on_device(request: AccumulateRequest, alignment: int) -> AccumulateRequest:
    """The request with operands on the GPU, in a larger block of NaN codes."""

    def moved(codes: torch.Tensor, pad: int) -> torch.Tensor:
        rows, depth = codes.shape
        pitch = -(-(depth + pad) // alignment) * alignment
        block = torch.full((rows * pitch + 256,), 0xFF, dtype=torch.uint8, device=CUDA)
        first = 128 + pad % alignment
        view = block[first : first + rows * pitch].view(rows, pitch)[:, :depth]
        return view.copy_(codes)

    return replace(request, a=moved(request.a, 3), b=moved(request.b, 5))


def check(row: Row, request: AccumulateRequest, what: str) -> None:
    count = request.M * request.N
    block = torch.full((count + 2 * GUARD,), GUARD_BITS, dtype=torch.int32, device=CUDA)
    out = block[GUARD : GUARD + count].view(torch.float32).view(request.M, request.N)
    moved = on_device(request, row.alignment)
    assert row.backend.refusal(moved) is None
    row.backend.accumulate(moved, out)
    actual = out.cpu()
    guards = torch.cat((block[:GUARD], block[GUARD + count :]))
    assert bool((guards == GUARD_BITS).all()), f"{row.backend.name} {what}: beside the output"
    wanted = execute.accumulate(reference.accumulate, request)
    assert_bitwise_equal(actual, wanted, msg=f"{row.backend.name} {what}")


@pytest.mark.parametrize("family", FAMILIES)
def test_families_plans_and_formats(row: Row, family: str) -> None:
    model = get_preset(row.model, warn=False)
    for index, (formats, plan) in enumerate(product(row.formats, PLANS)):
        shape = SHAPES[index % len(SHAPES)]
        codes = operands(family, *shape, formats=formats, seed=index)
        request = make_request(codes, formats, model, plan, pad=0, offset=0)
        check(row, request, f"{family} {formats} {shape} {plan} seed {index}")


@pytest.mark.parametrize("seed", range(2))
def test_sizes_at_the_edges(row: Row, seed: int) -> None:
    model = get_preset(row.model, warn=False)
    for edge in edges(seed, 40):
        formats = edge.formats if edge.formats in row.formats else row.formats[0]
        codes = operands("uniform", *edge.shape, formats=formats, seed=edge.seed)
        request = make_request(codes, formats, model, edge.plan, pad=0, offset=0)
        check(row, request, f"{edge}")


def test_every_pair_of_codes(row: Row) -> None:
    model = get_preset(row.model, warn=False)
    for formats in row.formats:
        for lead, family in ((0, "uniform"), (model.dot_length, "spread")):
            codes = every_pair(formats, lead, family)
            request = make_request(codes, formats, model, PLANS[0], pad=0, offset=0)
            check(row, request, f"all pairs {formats} after {lead} {family}")


@pytest.mark.parametrize("out_dtype", launch.OUTPUTS, ids=str)
def test_the_fused_epilogue(row: Row, out_dtype: torch.dtype) -> None:
    model = get_preset(row.model, warn=False)
    formats = row.formats[0] if len(row.formats) == 1 else PAIRS[1]
    of_result = (None, 2.0**-140) if out_dtype.itemsize == 1 else (None,)
    for family, scale, last in product(("spread", "nonfinite"), SCALES, of_result):
        codes = operands(family, 48, 257, 96, formats=formats, seed=7)
        request = make_request(codes, formats, model, PLANS[0], pad=0, offset=0)
        first, second, result = (
            None if value is None else torch.tensor(value, dtype=torch.float32)
            for value in (scale, 1.5, last)
        )
        assert first is not None
        assert second is not None
        prepared = epilogues.prepare(first, second, out_dtype=out_dtype, scale_result=result)
        wanted = execute.execute(reference.accumulate, request, prepared)
        unread = epilogues.unread(
            first.to(CUDA),
            second.to(CUDA),
            out_dtype=out_dtype,
            scale_result=None if result is None else result.to(CUDA),
        )
        actual = row.backend.execute(on_device(request, row.alignment), unread)
        what = f"{row.backend.name} {family} {scale} {last}"
        assert_bitwise_equal(actual.cpu(), wanted, msg=what)


def test_more_rows_than_one_grid_has(row: Row) -> None:
    """Two launches, the second one for the rows beyond 65535 tiles."""
    model = get_preset(row.model, warn=False)
    formats = row.formats[0]
    rows = launch.MAX_ROW_TILES * row.backend.kernels[0].tile[0] + 70
    few = operands("uniform", 200, 3, 32, formats=formats, seed=8)
    tall = few[0][np.arange(rows) % len(few[0])]
    request = make_request((tall, few[1]), formats, model, PLANS[0], pad=0, offset=0)
    out = torch.full((rows, 3), float("nan"), dtype=torch.float32, device=CUDA)
    row.backend.accumulate(on_device(request, row.alignment), out)
    wanted = execute.accumulate(
        reference.accumulate, make_request(few, formats, model, PLANS[0], pad=0, offset=0)
    )
    repeated = wanted[torch.arange(rows) % len(wanted)]
    assert_bitwise_equal(out.cpu(), repeated, msg=row.backend.name)

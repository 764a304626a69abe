"""What may not change a bit of a GEMM: padding, tiling, order within a block, signs, threads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from mmaemu.backends import float_tiles, reference
from mmaemu.backends.base import AccumulateRequest
from mmaemu.gemm import execute
from mmaemu.gemm.plan import GemmPlan
from mmaemu.gemm.splitk import UNSPLIT, SplitK
from mmaemu.instruction.model import InstructionModel
from mmaemu.instruction.models import get_preset
from mmaemu.testing import assert_bitwise_equal, bits, operands

Codes = NDArray[np.unsignedinteger[Any]]
FORMATS = st.sampled_from(["e4m3", "e5m2"])
PRESETS = tuple(get_preset(name, warn=False) for name in ("ada", "hopper"))
SPLITS = (
    UNSPLIT,
    SplitK(2, "serial"),
    SplitK(3, "pairwise"),
    SplitK(5, "pairwise"),
    SplitK(3, "contiguous"),
)
FAMILIES = tuple(operands.FAMILIES)
EXAMPLES = settings(max_examples=40)
BACKEND = reference.ReferenceBackend()


@st.composite
def requests(draw: st.DrawFn) -> AccumulateRequest:
    formats = draw(FORMATS), draw(FORMATS)
    M, N, K = draw(st.integers(1, 9)), draw(st.integers(1, 9)), draw(st.integers(1, 300))
    name = draw(st.sampled_from(FAMILIES))
    a, b = operands.operands(name, M, N, K, formats=formats, seed=draw(st.integers(0, 1 << 20)))
    plan = GemmPlan(K, draw(st.sampled_from(SPLITS)), draw(st.sampled_from([None, 128])))
    model = draw(st.sampled_from(PRESETS))
    return AccumulateRequest(torch.from_numpy(a), torch.from_numpy(b), *formats, model, plan)


def run(request: AccumulateRequest) -> torch.Tensor:
    return execute.accumulate(BACKEND.accumulate, request)


def with_k(request: AccumulateRequest, a: torch.Tensor, b: torch.Tensor) -> AccumulateRequest:
    return replace(request, a=a, b=b, plan=replace(request.plan, K=a.shape[1]))


@EXAMPLES
@given(requests(), st.integers(1, 40))
def test_zeros_after_the_last_k_change_nothing(request: AccumulateRequest, more: int) -> None:
    # Within the last tile only: more tiles could be dealt out to other slices.
    room = -request.K % request.plan.tile_width if request.plan.split.S > 1 else more
    pad = torch.zeros((1, min(more, room)), dtype=torch.uint8)
    padded = with_k(
        request,
        torch.cat([request.a, pad.expand(request.M, -1)], 1),
        torch.cat([request.b, (pad | 0x80).expand(request.N, -1)], 1),
    )
    assert_bitwise_equal(run(padded), run(request))


@EXAMPLES
@given(requests(), st.integers(1, 5), st.integers(9, 4000), st.integers(1, 700))
def test_tiles_of_any_size_give_the_same_bits(
    request: AccumulateRequest, rows: int, tile_bytes: int, panel: int
) -> None:
    expected = run(request)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "TILE_ROWS", rows)
        patch.setattr(reference, "TILE_BYTES", tile_bytes)
        patch.setattr(float_tiles, "PANEL_CODES", panel)
        assert_bitwise_equal(run(request), expected)


@EXAMPLES
@given(requests())
def test_one_output_at_a_time_gives_the_same_bits(request: AccumulateRequest) -> None:
    expected = run(request)
    i, j = request.M // 2, request.N - 1
    alone = run(replace(request, a=request.a[i : i + 1], b=request.b[j : j + 1]))
    assert_bitwise_equal(alone, expected[i : i + 1, j : j + 1])


@EXAMPLES
@given(requests())
def test_the_transposed_problem_has_the_transposed_result(request: AccumulateRequest) -> None:
    swapped = replace(
        request,
        a=request.b,
        b=request.a,
        format_a=request.format_b,
        format_b=request.format_a,
    )
    assert_bitwise_equal(run(swapped), run(request).t().contiguous())


@EXAMPLES
@given(requests())
def test_negating_an_operand_negates_every_result_that_is_not_zero(
    request: AccumulateRequest,
) -> None:
    plain = run(request)
    negated = run(replace(request, a=request.a ^ 0x80))
    flips = (plain != 0) & ~torch.isnan(plain)
    expected = torch.where(flips, bits(plain) ^ -(1 << 31), bits(plain))
    assert torch.equal(bits(negated), expected)
    assert_bitwise_equal(run(replace(request, a=request.a ^ 0x80, b=request.b ^ 0x80)), plain)


@EXAMPLES
@given(requests(), st.randoms(use_true_random=False))
def test_the_order_within_a_block_does_not_matter(request: AccumulateRequest, rng: Any) -> None:
    order: list[int] = []
    for start in range(0, request.K, request.model.dot_length):
        block = list(range(start, min(start + request.model.dot_length, request.K)))
        rng.shuffle(block)
        order += block
    index = torch.tensor(order)
    shuffled = replace(
        request, a=request.a.index_select(1, index), b=request.b.index_select(1, index)
    )
    assert_bitwise_equal(run(shuffled), run(request))


@settings(max_examples=10)
@given(requests(), st.integers(1, 4))
def test_the_thread_count_does_not_matter(request: AccumulateRequest, threads: int) -> None:
    expected = run(request)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        assert_bitwise_equal(run(request), expected)
    finally:
        torch.set_num_threads(before)


@st.composite
def models(draw: st.DrawFn) -> InstructionModel:
    fraction_bits = draw(st.integers(0, 25))
    groups = draw(st.sampled_from([(), ((0, 1), (2, 3)), ((1,), (0,))]))
    length = draw(st.integers(1, 12)) * (sum(map(len, groups)) or draw(st.integers(1, 4)))
    return InstructionModel(
        "drawn",
        length,
        fraction_bits,
        draw(st.integers(0, 23)),
        min_exponent=draw(st.sampled_from([None, -132, -20, 0, 12, 55, 90])),
        accumulator=draw(st.sampled_from(["aligned", "late"])),
        operand_format=draw(st.sampled_from([None, "fp16"])),
        groups=groups,
    )


@EXAMPLES
@given(models(), requests())
def test_any_model_gives_the_same_bits_on_tiles_and_on_the_readable_path(
    model: InstructionModel, request: AccumulateRequest
) -> None:
    short = with_k(request, request.a[:4, :90], request.b[:4, :90])
    one = replace(short, model=model)
    found, expected = (torch.empty((one.M, one.N), dtype=torch.float32) for _ in range(2))
    reference.accumulate(one, found)
    reference.accumulate(one, expected, readable=True)
    assert_bitwise_equal(found, expected)

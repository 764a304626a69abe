"""scaled_mm depends neither on how its tensors lie in memory nor on what else is called."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mmaemu
from mmaemu.testing import assert_bitwise_equal, bits
from mmaemu.testing.operands import FAMILIES, tensors

SCALES = torch.tensor(0.3), torch.tensor(1.7)
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn)
FORMATS = (("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3"))

Problem = tuple[torch.Tensor, torch.Tensor, dict[str, Any]]

sixteens = st.integers(0, 3).map(lambda n: 16 * n)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Operands a [M, K] and b [N, K], and the options of a call that is not rejected."""
    family = draw(st.sampled_from(sorted(FAMILIES)))
    sizes = draw(st.integers(1, 20)), 16 + draw(sixteens), 16 * draw(st.integers(1, 20))
    formats, seed = draw(st.sampled_from(FORMATS)), draw(st.integers(0, 99))
    options = {
        "out_dtype": draw(st.sampled_from(DTYPES)),
        "use_fast_accum": draw(st.booleans()),
        "profile": "ada",
        "splitk": draw(st.sampled_from([1, (2, "serial"), (3, "pairwise")])),
    }
    return *tensors(family, *sizes, formats=formats, seed=seed), options


def moved(matrix: torch.Tensor, padding: int, offset: int) -> torch.Tensor:
    """The same rows in other storage: elements between them and before the first one."""
    height, width = matrix.shape
    elements = torch.zeros(offset + height * (width + padding), dtype=matrix.dtype)
    bits(elements).fill_(0x7F)
    view = elements.as_strided((height, width), (width + padding, 1), offset)
    bits(view).copy_(bits(matrix))
    return view


def run(a: torch.Tensor, b: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
    return mmaemu.scaled_mm(a, b.t(), *SCALES, **options)


@settings(max_examples=40)
@given(problems(), sixteens, sixteens, sixteens)
def test_operand_storage_does_not_matter(
    problem: Problem, padding_a: int, padding_b: int, offset: int
) -> None:
    a, b, options = problem
    elsewhere = moved(a, padding_a, offset), moved(b, padding_b, offset)
    assert_bitwise_equal(run(*elsewhere, options), run(a, b, options))


@settings(max_examples=40)
@given(problems(), st.integers(0, 5), st.integers(0, 5), st.booleans())
def test_out_storage_does_not_matter(
    problem: Problem, padding: int, offset: int, transpose: bool
) -> None:
    a, b, options = problem
    expected = run(a, b, options)
    blank = torch.zeros_like(expected.t() if transpose else expected)
    out = moved(blank, padding, offset)
    out = out.t() if transpose else out
    assert run(a, b, {**options, "out": out}) is out
    assert_bitwise_equal(out, expected)


@settings(max_examples=30)
@given(problems(), st.data())
def test_a_row_or_column_does_not_depend_on_the_others(
    problem: Problem, data: st.DataObject
) -> None:
    a, b, options = problem
    expected = run(a, b, options)
    row = data.draw(st.integers(0, a.shape[0] - 1))
    column = 16 * data.draw(st.integers(0, b.shape[0] // 16 - 1))
    part = run(a[row : row + 1], b[column : column + 16], options)
    assert_bitwise_equal(part, expected[row : row + 1, column : column + 16])


@settings(max_examples=30)
@given(problems())
def test_scaled_mm_is_the_epilogue_of_accumulate(problem: Problem) -> None:
    a, b, options = problem
    chains = {name: value for name, value in options.items() if name != "out_dtype"}
    acc = mmaemu.accumulate(a, b, **chains)
    expected = mmaemu.model.epilogue.apply(acc, *SCALES, out_dtype=options["out_dtype"])
    assert_bitwise_equal(run(a, b, options), expected)


@settings(max_examples=5)
@given(st.lists(problems(), min_size=4, max_size=6))
def test_concurrent_calls_give_the_same_bits(many: list[Problem]) -> None:
    expected = [run(*problem) for problem in many]
    with ThreadPoolExecutor(max_workers=4) as pool:
        for result, wanted in zip(pool.map(lambda p: run(*p), many * 2), expected * 2, strict=True):
            assert_bitwise_equal(result, wanted)

"""C17: what happens to an out= of any shape and layout."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mmaemu
from mmaemu.errors import BackendUnavailableError, ReferenceRejectsError
from mmaemu.testing import assert_bitwise_equal, bits
from mmaemu.testing.operands import tensors

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
ONE = torch.tensor(1.0)
M, N, K = 16, 32, 512
ADA: dict[str, Any] = {"profile": "ada", "splitk": 1}


def run(out: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
    a, b = tensors("gaussian", M, N, K)
    return mmaemu.scaled_mm(a, b.t(), ONE, ONE, out=out, **{**ADA, **options})


def filled(shape: tuple[int, ...], dtype: torch.dtype = FP32) -> torch.Tensor:
    """A tensor whose bytes are all 0x7F."""
    out = torch.empty(shape, dtype=dtype)
    out.view(torch.uint8).fill_(0x7F)
    return out


LAYOUTS: dict[str, Callable[[torch.dtype], torch.Tensor]] = {
    "contiguous": lambda dtype: filled((M, N), dtype),
    "padded rows": lambda dtype: filled((M, N + 7), dtype)[:, :N],
    "column-major": lambda dtype: filled((N, M), dtype).t(),
    "padded columns": lambda dtype: filled((N, M + 5), dtype)[:, :M].t(),
    "shifted": lambda dtype: filled((M + 3, N), dtype)[3:],
}


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16, E4M3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_row_and_column_major_outs_are_written(layout: str, dtype: torch.dtype) -> None:
    out = LAYOUTS[layout](dtype)
    stride, address = out.stride(), out.data_ptr()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = run(out)
    assert result is out
    assert (out.stride(), out.data_ptr()) == (stride, address)
    assert_bitwise_equal(out, run(out_dtype=dtype))


def test_nothing_around_a_padded_out_is_written() -> None:
    whole = filled((M + 2, N + 7), BF16)
    run(whole[1:-1, :N])
    around = bits(whole).clone()
    around[1:-1, :N] = 0x7F7F
    assert (around == 0x7F7F).all()


@pytest.mark.parametrize(
    "out",
    [filled((M, 2 * N))[:, ::2], filled((1, N)).expand(M, N), filled((N, 2 * M))[:, ::2].t()],
    ids=["step 2", "expanded", "step 2 transposed"],
)
def test_an_out_of_neither_order_stays_unchanged_with_a_warning(out: torch.Tensor) -> None:
    before = out.clone()
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"neither row- nor column-major and stays unchanged"):
            assert run(out) is out
    assert_bitwise_equal(out, before)


@pytest.mark.parametrize("shape", [(M, N + 1), (3,), (N, M), (2, M, N)])
def test_another_shape_is_resized_with_a_warning(shape: tuple[int, ...]) -> None:
    out = filled(shape, FP16)
    with pytest.warns(UserWarning, match=r"is resized to \(16, 32\)"):
        result = run(out)
    assert result is out
    assert_bitwise_equal(out, run(out_dtype=FP16))


def test_an_empty_out_is_resized_in_silence() -> None:
    """As torch does it: torch.empty(0) is how one asks for a fresh result."""
    out = torch.empty(0, dtype=BF16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(out)
    assert_bitwise_equal(out, run(out_dtype=BF16))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"out_dtype": FP32}, ReferenceRejectsError),
        ({"bias": torch.ones(33, dtype=BF16)}, ReferenceRejectsError),
        ({"backend": "cuda"}, BackendUnavailableError),
        ({"backend": "gpu"}, ValueError),
        ({"splitk": 3}, ValueError),
    ],
)
@pytest.mark.parametrize("shape", [(M, N), (5, 5)])
def test_a_call_that_raises_leaves_out_alone(
    options: dict[str, Any], error: type[Exception], shape: tuple[int, ...]
) -> None:
    out = filled(shape, BF16)
    with pytest.raises(error):
        run(out, **options)
    assert out.shape == shape
    assert (bits(out) == 0x7F7F).all()


def test_a_column_major_out_is_the_transposed_problem() -> None:
    """Its split is that of N x M with the formats swapped, since cuBLASLt sees that problem."""
    a, b = tensors("spread", 64, 192, 2048, formats=("e5m2", "e4m3"))
    types: dict[str, Any] = {"out_dtype": BF16, "use_fast_accum": False, "profile": "ada"}
    row = mmaemu.resolve_splitk(64, 192, 2048, a_dtype=E5M2, b_dtype=E4M3, **types)
    column = mmaemu.resolve_splitk(192, 64, 2048, a_dtype=E4M3, b_dtype=E5M2, **types)
    assert (row.S, column.S, column.scheme) == (1, 3, "pairwise")
    for out, split in (
        (torch.empty(64, 192, dtype=BF16), row),
        (torch.empty(192, 64, dtype=BF16).t(), column),
    ):
        assert mmaemu.explain(a, b.t(), ONE, ONE, out=out, profile="ada").split == split
        result = mmaemu.scaled_mm(a, b.t(), ONE, ONE, out=out, profile="ada")
        explicit: dict[str, Any] = {"profile": "ada", "splitk": (split.S, split.scheme)}
        expected = mmaemu.scaled_mm(a, b.t(), ONE, ONE, out_dtype=BF16, **explicit)
        assert_bitwise_equal(result, expected)


def test_one_row_is_both_and_counts_as_row_major() -> None:
    a, b = tensors("gaussian", 1, N, K)
    out = torch.zeros(N).as_strided((1, N), (1, 1))
    mmaemu.scaled_mm(a, b.t(), ONE, ONE, out=out, **ADA)
    assert_bitwise_equal(out, mmaemu.scaled_mm(a, b.t(), ONE, ONE, out_dtype=FP32, **ADA))


def test_zero_size_fills_any_out() -> None:
    a, b = tensors("gaussian", M, N, 0)
    for out in (*(make(FP32) for make in LAYOUTS.values()), filled((M, 2 * N))[:, ::2]):
        assert mmaemu.scaled_mm(a, b.t(), ONE, ONE, out=out, **ADA) is out
        assert (bits(out) == 0).all()
    wrong = filled((3, 3), BF16)
    with pytest.warns(UserWarning, match="resized"):
        mmaemu.scaled_mm(a, b.t(), ONE, ONE, out=wrong, **ADA)
    assert wrong.shape == (M, N)


def test_out_may_be_an_operand() -> None:
    """Operands are read before anything is written, however many bands that would take."""
    a, b = tensors("gaussian", 64, 64, 64)
    expected = mmaemu.scaled_mm(a, b.t(), ONE, ONE, **ADA)
    for operand in (a, b):
        left, right = (t.clone() for t in (a, b))
        out = left if operand is a else right
        mmaemu.scaled_mm(left, right.t(), ONE, ONE, out=out, **ADA)
        assert_bitwise_equal(out, expected)

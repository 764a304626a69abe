"""Around the accumulation: non-finite codes, zero sizes, bands (rules N18 and N20)."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mmaemu.backends.reference import ReferenceBackend
from mmaemu.formats import FORMATS
from mmaemu.gemm import epilogue, execute, nonfinite
from mmaemu.gemm.plan import GemmPlan
from mmaemu.gemm.request import AccumulateRequest
from mmaemu.gemm.splitk import SplitK
from mmaemu.instruction.models import get_preset
from mmaemu.testing import assert_bitwise_equal, bits, operands

Codes = NDArray[np.unsignedinteger[Any]]
PAIRS = tuple((a, b) for a, b in product(("e4m3", "e5m2"), repeat=2))
ADA = get_preset("ada", warn=False)
REFERENCE = ReferenceBackend()
NAN, INF, NEGATIVE_INF = 0x7FFFFFFF, 0x7F800000, 0x7F800000 - (1 << 31)
OUTPUTS = (
    *(torch.float32, torch.bfloat16, torch.float16),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
)
PLUS, MINUS, E5M2_NAN, E4M3_NAN, ONE = 0x7C, 0xFC, 0x7D, 0x7F, 0x3C


def request(
    a: Any,
    b: Any,
    formats: tuple[str, str] = ("e5m2", "e5m2"),
    split: SplitK | None = None,
) -> AccumulateRequest:
    left, right = (torch.tensor(np.asarray(side), dtype=torch.uint8) for side in (a, b))
    plan = GemmPlan(left.shape[1], split or SplitK(1, "none"))
    return AccumulateRequest(left, right, *formats, ADA, plan)


def accumulate(one: AccumulateRequest) -> torch.Tensor:
    return execute.accumulate(REFERENCE.accumulate, one)


def one() -> torch.Tensor:
    return torch.ones(1, dtype=torch.float32)


def ieee_sum(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """What IEEE arithmetic makes of a sum of products; only its class matters."""
    total = 0.0
    for left, right in zip(x.tolist(), y.tolist(), strict=True):
        product_ = (
            left * right if not (math.isinf(left * right) and 0 in (left, right)) else math.nan
        )
        total += product_
    return total


@pytest.mark.parametrize("formats", PAIRS, ids="-".join)
@pytest.mark.parametrize("seed", range(6))
def test_random_special_codes_give_the_ieee_class(formats: tuple[str, str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    codes: list[Codes] = []
    for fmt, lines in zip(formats, (9, 11), strict=True):
        side = operands.codes("uniform", fmt, lines, 50, seed=seed)
        special = {"e4m3": [0x7F, 0xFF], "e5m2": [0x7C, 0xFC, 0x7C, 0x7D, 0xFF]}[fmt]
        count = rng.integers(0, 6)
        side[rng.integers(0, lines, count), rng.integers(0, 50, count)] = rng.choice(special, count)
        side[rng.integers(0, lines, 40), rng.integers(0, 50, 40)] = 0
        codes.append(side)
    a, b = codes
    found = bits(accumulate(request(a, b, formats)))
    finite = [
        np.where(np.isfinite(FORMATS[f].decode(c)), c, 0)
        for f, c in zip(formats, codes, strict=True)
    ]
    without = bits(accumulate(request(finite[0], finite[1], formats)))
    values = [FORMATS[fmt].decode(side) for fmt, side in zip(formats, codes, strict=True)]
    for i, j in product(range(9), range(11)):
        total = ieee_sum(values[0][i], values[1][j])
        if math.isnan(total):
            expected = NAN
        elif math.isinf(total):
            expected = INF if total > 0 else NEGATIVE_INF
        else:
            expected = int(without[i, j])
        assert int(found[i, j]) == expected, (i, j, total)


@pytest.mark.parametrize("K", [16, 48, 50])
def test_a_row_and_a_column_of_nan_do_not_leak(K: int) -> None:
    a, b = operands.operands("gaussian", 7, 9, K, formats=("e4m3", "e4m3"))
    clean = accumulate(request(a, b, PAIRS[0]))
    a[3], b[5] = E4M3_NAN, 0xFF
    found = accumulate(request(a, b, PAIRS[0]))
    clean[3] = clean[:, 5] = math.nan
    assert torch.equal(torch.isnan(found), torch.isnan(clean))
    assert torch.equal(found.nan_to_num(), clean.nan_to_num())
    assert set(bits(found)[torch.isnan(found)].tolist()) == {NAN}


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([PLUS, ONE], [ONE, ONE], INF),
        ([PLUS, ONE], [0xBC, ONE], NEGATIVE_INF),
        ([MINUS, ONE], [0xBC, ONE], INF),
        ([PLUS, ONE], [0, ONE], NAN),
        ([PLUS, ONE], [0x80, ONE], NAN),
        ([0, ONE], [MINUS, ONE], NAN),
        ([PLUS, MINUS], [ONE, ONE], NAN),
        ([PLUS, PLUS], [ONE, ONE], INF),
        ([PLUS, ONE], [ONE, MINUS], NAN),
        ([PLUS, ONE], [MINUS, ONE], NEGATIVE_INF),
        ([MINUS, ONE], [MINUS, PLUS], INF),
        ([E5M2_NAN, PLUS], [ONE, ONE], NAN),
        ([ONE, ONE], [ONE, 0xFE], NAN),
        ([PLUS, 0x01], [0x01, 0x81], INF),
        ([ONE, 0x7B], [0x7B, 0x7B], None),
    ],
)
def test_single_outputs(a: list[int], b: list[int], expected: int | None) -> None:
    found = bits(accumulate(request([a], [b])))
    assert found.shape == (1, 1)
    if expected is None:
        assert 0 < int(found) < INF
    else:
        assert int(found) == expected


def test_a_sum_of_finite_codes_never_counts_as_infinite() -> None:
    largest = [[0x7B] * 4096]
    assert torch.isfinite(accumulate(request(largest, largest))).all()


def test_an_infinity_in_one_slice_reaches_the_result() -> None:
    a = np.full((2, 256), ONE)
    a[1, 130] = PLUS
    for split in (SplitK(3, "serial"), SplitK(3, "pairwise"), SplitK(2, "contiguous")):
        found = accumulate(request(a, np.full((3, 256), ONE), split=split))
        assert found[0].tolist() == [256.0] * 3
        assert bits(found[1]).tolist() == [INF] * 3


def test_special_codes_spread_over_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = operands.operands("nonfinite", 13, 17, 90, formats=("e5m2", "e5m2"))
    expected = accumulate(request(a, b))
    assert not torch.isfinite(expected).all()
    monkeypatch.setattr(nonfinite, "_LINES", 3)
    monkeypatch.setattr(nonfinite, "_DEPTH", 7)
    monkeypatch.setattr(nonfinite, "_SCAN_PIECE", 64)
    assert_bitwise_equal(accumulate(request(a, b)), expected)


def test_finite_codes_are_recognised_as_such() -> None:
    for fmt, largest in (("e4m3", 0x7E), ("e5m2", 0x7B)):
        codes = torch.tensor([[0, 0x80, largest, largest | 0x80]], dtype=torch.uint8)
        assert nonfinite.scan(codes, fmt) is None
        for special in {largest + 1, 0x7F}:
            codes[0, 1] = special
            found = nonfinite.scan(codes, fmt)
            assert found is not None
            is_nan = special != PLUS
            assert (found.nan.tolist(), found.infinite.tolist()) == ([is_nan], [not is_nan])


def test_the_epilogue_sees_the_special_value() -> None:
    special = request([[PLUS], [MINUS], [E5M2_NAN], [ONE]], [[ONE]])
    zero = torch.zeros(1, dtype=torch.float32)
    for scale, expected in (
        (one(), [INF, NEGATIVE_INF, NAN, 0x3F800000]),
        (zero, [NAN, NAN, NAN, 0]),
    ):
        steps = epilogue.prepare(scale, one(), out_dtype=torch.float32)
        found = execute.execute(REFERENCE.accumulate, special, steps)
        assert bits(found).flatten().tolist() == expected
    steps = epilogue.prepare(one(), one(), out_dtype=torch.float8_e4m3fn)
    found = execute.execute(REFERENCE.accumulate, special, steps)
    assert bits(found).flatten().tolist() == [0x7E, 0xFE, 0x7F, 0x38]


@pytest.mark.parametrize("dtype", OUTPUTS)
@pytest.mark.parametrize("sizes", [(0, 16, 32), (3, 0, 32), (3, 16, 0), (0, 0, 0)])
def test_zero_sizes_compute_nothing(sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    M, N, K = sizes

    def never(_: AccumulateRequest, __: torch.Tensor) -> None:
        pytest.fail("a zero-size request reached the backend")

    nan = torch.full((1,), math.nan, dtype=torch.float32)
    nothing = request(np.zeros((M, K)), np.zeros((N, K)))
    out = execute.execute(never, nothing, epilogue.prepare(nan, -one(), out_dtype=dtype))
    assert out.dtype == dtype
    assert out.shape == (M, N)
    assert not bits(out).any()
    acc = execute.accumulate(never, nothing)
    assert acc.shape == (M, N)
    assert not bits(acc).any()


@pytest.mark.parametrize("dtype", OUTPUTS)
def test_bands_of_rows_change_no_bit(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = operands.operands("nonfinite", 11, 24, 64, formats=PAIRS[1])
    steps = epilogue.prepare(one() * 0.3, one() * -0.7, out_dtype=dtype)
    whole = execute.execute(REFERENCE.accumulate, request(a, b, PAIRS[1]), steps)
    seen = []

    def noted(part: AccumulateRequest, out: torch.Tensor) -> None:
        seen.append(out.shape[0])
        REFERENCE.accumulate(part, out)

    monkeypatch.setattr(execute, "BAND", 100)
    banded = execute.execute(noted, request(a, b, PAIRS[1]), steps)
    assert_bitwise_equal(banded, whole)
    assert seen == ([11] if dtype == torch.float32 else [4, 4, 3])

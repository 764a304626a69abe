"""All pairs of FP8 codes against an oracle in plain integers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from mmaemu.formats import FORMATS
from mmaemu.model import dot

PAIRS = np.array(list(itertools.product(range(256), repeat=2)), dtype=np.uint8)
FORMAT_PAIRS = list(itertools.product(("e4m3", "e5m2"), repeat=2))
TORCH_TYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
ONE_AND_A_BIT = 1 + 2.0**-12
ONE = {"e4m3": 0x38, "e5m2": 0x3C}

# A number is (integer n, exponent e) and means n * 2^(e - 40); n is not reduced.
Term = tuple[int, int]


def term(code: int, fmt: str) -> Term | float:
    """Return what an FP8 code means; a float where that is Inf or NaN."""
    bits, bias = (3, 7) if fmt == "e4m3" else (2, 15)
    field, fraction = (code & 0x7F) >> bits, code & ((1 << bits) - 1)
    sign = -1 if code & 0x80 else 1
    if fmt == "e4m3" and code & 0x7F == 0x7F:
        return math.nan
    if fmt == "e5m2" and field == 31:
        return math.nan if fraction else sign * math.inf
    significand = fraction + (1 << bits if field else 0)
    return sign * significand << (40 - bits), max(field, 1) - bias


def product(x: Term, y: Term) -> Term:
    return x[0] * y[0] >> 40, x[1] + y[1]


def fused_13(terms: list[Term]) -> float:
    """Return one step with 13 fraction bits: truncate on the largest exponent's grid, add, cut."""
    exponents = [e for n, e in terms if n]
    if not exponents:
        return 0.0
    top = max(exponents)
    total = 0
    for n, e in terms:
        units = abs(n) >> (40 - 13 + top - e)
        total += units if n > 0 else -units
    drop = max(abs(total).bit_length() - 14, 0)
    cut = abs(total) >> drop << drop
    return math.ldexp(cut if total > 0 else -cut, top - 13)


def bits(numbers: list[float]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint32]]:
    with np.errstate(invalid="ignore"):
        codes = np.array(numbers, dtype=np.float64).astype(np.float32).view(np.uint32)
    return np.where(np.isnan(numbers), np.uint32(0x7FFFFFFF), codes)


def run(
    preset: str, a: torch.Tensor, b: torch.Tensor, c: float
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint32]]:
    start = torch.full((len(a),), c, dtype=torch.float32)
    return dot(a, b, start, preset=preset).numpy().view(np.uint32)


def columns(fmt: str, index: int) -> torch.Tensor:
    return torch.from_numpy(PAIRS[:, index : index + 1].copy()).view(TORCH_TYPES[fmt])


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
def test_the_two_oracles_read_codes_alike(fmt: str) -> None:
    decoded = FORMATS[fmt].decode(np.arange(256, dtype=np.uint8))
    for code, value in enumerate(decoded):
        meaning = term(code, fmt)
        if isinstance(meaning, float):
            assert np.array_equal(meaning, value, equal_nan=True)
        else:
            assert math.ldexp(meaning[0], meaning[1] - 40) == value


@pytest.mark.parametrize(
    ("preset", "fmt_a", "fmt_b"),
    [
        *(("ada", *pair) for pair in FORMAT_PAIRS),
        *((preset, fmt, fmt) for preset in ("hopper", "b200_mma_sync") for fmt in ONE),
    ],
)
def test_every_pair_of_codes_as_a_product(preset: str, fmt_a: str, fmt_b: str) -> None:
    c = ONE_AND_A_BIT
    c_term = (int(math.ldexp(c, 40)), 0)
    want = []
    for x, y in PAIRS.tolist():
        a, b = term(x, fmt_a), term(y, fmt_b)
        if isinstance(a, float) or isinstance(b, float):
            plain = [n if isinstance(n, float) else float(n[0]) for n in (a, b)]
            want.append(plain[0] * plain[1] + c)
        elif preset == "b200_mma_sync":
            # One product survives its step unchanged, and binary64 holds its sum with c exactly.
            n, e = product(a, b)
            want.append(math.ldexp(n, e - 40) + c)
        else:
            want.append(fused_13([product(a, b), c_term]))
    got = run(preset, columns(fmt_a, 0), columns(fmt_b, 1), c)
    assert np.array_equal(got, bits(want))


@pytest.mark.parametrize(("preset", "fmt"), [("ada", "e4m3"), ("ada", "e5m2"), ("hopper", "e4m3")])
def test_every_pair_of_codes_as_a_sum(preset: str, fmt: str) -> None:
    want = []
    for x, y in PAIRS.tolist():
        a, b = term(x, fmt), term(y, fmt)
        if isinstance(a, float) or isinstance(b, float):
            want.append(sum(n if isinstance(n, float) else 0.0 for n in (a, b)))
        else:
            want.append(fused_13([a, b]))
    operand = torch.from_numpy(PAIRS.copy()).view(TORCH_TYPES[fmt])
    ones = torch.full(PAIRS.shape, ONE[fmt], dtype=torch.uint8).view(TORCH_TYPES[fmt])
    assert np.array_equal(run(preset, operand, ones, 0.0), bits(want))

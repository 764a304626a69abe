"""What a device must show before kernels that borrow from its matrix units are used on it.

Each probe is a set of one-warp matrix products of csrc/cuda/probes.cu and a pure rule about their
results. The rules are the assumptions that the kernels' proofs state, no more: (P) of
exponent_product.cuh, (T) and (R) of dummy_accumulator.cu. numpy only.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmaemu.formats import FORMATS

MODULE: Final = "probes"
THREADS: Final = 32
ROWS: Final = 16
COLUMNS: Final = 8
LEAST: Final = -50
"""The accumulator of an exponent product is 2^LEAST."""
RATIO: Final = 256
"""An exponent product stays below this many times its largest term."""
DUMMY: Final = 11
"""The dummy accumulator is 2^(E + DUMMY)."""
GRID: Final = 13
"""Products are cut at 2^(E - GRID)."""
NEAR: Final = 2
"""Exponents up to this size, where products are alike and cut in many places."""

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Words = NDArray[np.uint32]


class Parameter(ctypes.Structure):
    """`struct mmaemu_probe_request`: device addresses of operands and results."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in "abcd")


class Cases(NamedTuple):
    """The products of one probe.

    Attributes:
        a: [cases, 16, depth] values.
        b: [cases, 8, depth] values.
        c: [cases, 16, 8] accumulators; powers of two and their negatives.
    """

    a: Floats
    b: Floats
    c: Floats


class Verdict(NamedTuple):
    """What a probe says of a device."""

    name: str
    passed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Probe:
    """One assumption about the matrix units.

    Attributes:
        name: as kernels list it in their gates.
        entry: kernel in the module `probes`; one block of a warp for each case.
        format: format of the operands.
        assumption: for messages.
        cases: makes the products.
        wrong: tells which results break the assumption, [cases, 16, 8] of bool.
    """

    name: str
    entry: str
    format: str
    assumption: str
    cases: Callable[[], Cases]
    wrong: Callable[[Cases, Words], NDArray[np.bool_]]

    def operands(self) -> tuple[Words, Words, Words]:
        """Return a, b and c as the kernel wants them in device memory."""
        cases = self.cases()
        encode = FORMATS[self.format].encode
        a, b = (np.ascontiguousarray(encode(x).astype(np.uint16)) for x in cases[:2])
        return a.view(np.uint32), b.view(np.uint32), cases.c.astype(np.float32).view(np.uint32)

    def verdict(self, results: Words) -> Verdict:
        """Judge a device.

        Args:
            results: the bits that the kernel wrote, [cases, 16, 8].
        """
        cases = self.cases()
        wrong = self.wrong(cases, results)
        if not wrong.any():
            return Verdict(
                self.name, passed=True, reason=f"{wrong.size} products: {self.assumption}"
            )
        case, row, column = (int(index[0]) for index in np.nonzero(wrong))
        a, b, c = cases.a[case, row], cases.b[case, column], cases.c[case, row, column]
        terms = " + ".join(f"{x:g}*{y:g}" for x, y in zip(a, b, strict=True) if x * y)
        reason = (
            f"{np.count_nonzero(wrong)} of {wrong.size} products break: {self.assumption}; first: "
            f"{c:g} + {terms or '0'} gave {int(results[case, row, column]):#010x}"
        )
        return Verdict(self.name, passed=False, reason=reason)


def _exponents(values: Floats) -> Integers:
    """The e4m3 exponents of e4m3 numbers; zeros have one that no product reaches."""
    exponents = np.maximum(np.frexp(values)[1] - 1, FORMATS["e4m3"].min_exponent)
    return np.asarray(np.where(values == 0, -1000, exponents), np.int64)


@cache
def _e4m3_numbers() -> Floats:
    values = FORMATS["e4m3"].decode(np.arange(256, dtype=np.uint8))
    return np.asarray(values[np.isfinite(values) & (values != 0)], np.float64)


def _power(exponent: Integers | int) -> Floats:
    return np.asarray(np.ldexp(1.0, exponent), np.float64)


# ---- The exponent product -------------------------------------------------------------------


def _alone(exponents: Integers, depth: int, place: int) -> Floats:
    """[1, lines, depth]: one number in each line, at this place."""
    lines = np.zeros((1, len(exponents), depth))
    lines[0, :, place] = _power(8 * exponents - 5)
    return lines


@cache
def _exponent_cases() -> Cases:
    """Every pair of exponents alone, in every place; then equal ones; then any, with zeros."""
    rng = np.random.default_rng(9)
    depth = 16
    every = np.arange(-7, 9)
    every[0] = 8
    a = [_alone(every, depth, place) for place in range(depth) for _ in range(2)]
    halves = [_alone(half, depth, p) for p in range(depth) for half in (every[:8], every[8:])]
    for low in (-6, 8, -1, 3):
        a.append(np.full((1, ROWS, depth), _power(8 * low - 5)))
        halves.append(np.broadcast_to(_power(8 * every[8:, None] - 5), (1, COLUMNS, depth)))
    drawn = [rng.integers(-6, 9, (160, lines, depth)) for lines in (ROWS, COLUMNS)]
    kept = [rng.random(x.shape) < rng.choice([0.1, 0.5, 1.0], (160, 1, 1)) for x in drawn]
    some_a, some_b = (_power(8 * x - 5) * keep for x, keep in zip(drawn, kept, strict=True))
    all_a, all_b = np.concatenate((*a, some_a)), np.concatenate((*halves, some_b))
    return Cases(all_a, all_b, np.full((len(all_a), ROWS, COLUMNS), _power(LEAST)))


def _breaks_bracket(cases: Cases, results: Words) -> NDArray[np.bool_]:
    """(P): the largest term, and less than 256 times as much."""
    products = cases.a[:, :, None, :] * cases.b[:, None, :, :]
    largest = np.maximum(products.max(axis=-1), cases.c)
    values = results.view(np.float32).astype(np.float64)
    holds: NDArray[np.bool_] = (values >= largest) & (values < RATIO * largest)
    return ~holds


# ---- The dummy accumulator ------------------------------------------------------------------


def _with_dummy(a: Floats, b: Floats, rng: np.random.Generator) -> Cases:
    """Each product beside +D and -D, for an E that is its own or higher."""
    highest = (_exponents(a)[:, :, None, :] + _exponents(b)[:, None, :, :]).max(axis=-1)
    extra = rng.choice([0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 14, 40], highest.shape)
    dummy = _power(np.maximum(highest, -5) + extra + DUMMY)
    return Cases(np.concatenate((a, a)), np.concatenate((b, b)), np.concatenate((dummy, -dummy)))


@cache
def _grid_cases() -> Cases:
    """One product alone, in every place."""
    rng = np.random.default_rng(13)
    numbers = _e4m3_numbers()
    a, b = np.zeros((96, ROWS, 8)), np.zeros((96, COLUMNS, 8))
    for case in range(96):
        a[case, :, case % 8] = rng.choice(numbers, ROWS)
        b[case, :, case % 8] = rng.choice(numbers, COLUMNS)
    return _with_dummy(a, b, rng)


@cache
def _sum_cases() -> Cases:
    """Eight products: of any size, of nearly one size, of one sign, with zeros."""
    rng = np.random.default_rng(17)
    numbers = _e4m3_numbers()
    near = numbers[np.abs(np.frexp(numbers)[1] - 1) <= NEAR]
    parts = []
    for drawn in (numbers, near, numbers[numbers > 0], -near[near > 0]):
        a, b = rng.choice(drawn, (64, ROWS, 8)), rng.choice(numbers, (64, COLUMNS, 8))
        b[1::2] = rng.choice(np.abs(near), (32, COLUMNS, 8))
        a[::4] *= rng.choice([0.0, 1.0], (16, ROWS, 8))
        parts.append((a, b))
    a, b = (np.concatenate(part) for part in zip(*parts, strict=True))
    return _with_dummy(a, b, rng)


def _breaks_truncation(cases: Cases, results: Words) -> NDArray[np.bool_]:
    """(T) and (R): the exact sum of cut products and the accumulator, or a neighbour of it.

    Everything in units of the grid u, where the accumulator is +-2^24: there fp32 has all integers
    up to 2^24, and the even ones above.
    """
    unit = np.abs(cases.c) * 2.0 ** (-DUMMY - GRID)
    products = cases.a[:, :, None, :] * cases.b[:, None, :, :]
    cut = np.trunc(products / unit[..., None]).sum(axis=-1)
    exact = cut + np.sign(cases.c) * 2.0 ** (DUMMY + GRID)
    with np.errstate(invalid="ignore"):
        found = results.view(np.float32).astype(np.float64) / unit
    between = (np.abs(exact) > 2.0 ** (DUMMY + GRID)) & (exact % 2 == 1)
    wrong: NDArray[np.bool_] = np.where(between, np.abs(found - exact) != 1, found != exact)
    return wrong


PROBES: Final[Mapping[str, Probe]] = {
    probe.name: probe
    for probe in (
        Probe(
            "exponent-product",
            "mmaemu_probe_bf16",
            "bf16",
            "a sum of bf16 powers of two is its largest term, or less than 256 times as much",
            _exponent_cases,
            _breaks_bracket,
        ),
        Probe(
            "dummy-grid",
            "mmaemu_probe_fp16_k8",
            "fp16",
            "beside an fp16 accumulator of 2^(E+11) a product is cut toward zero at 2^(E-13)",
            _grid_cases,
            _breaks_truncation,
        ),
        Probe(
            "dummy-sum",
            "mmaemu_probe_fp16_k8",
            "fp16",
            "beside an fp16 accumulator of 2^(E+11) eight products are cut at 2^(E-13) one by one, "
            "and their sum is exact",
            _sum_cases,
            _breaks_truncation,
        ),
    )
}


def verdicts(results: Mapping[str, Words]) -> list[Verdict]:
    """Judge a device by the results of several probes.

    Args:
        results: by name of the probe, the bits that its kernel wrote.
    """
    return [PROBES[name].verdict(bits) for name, bits in results.items()]

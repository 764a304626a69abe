"""The reference backend against a scalar oracle in rational arithmetic, and both of its paths."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mmaemu.backends import float_tiles, reference
from mmaemu.backends.base import AccumulateRequest
from mmaemu.backends.float_tiles import DOUBLE, SINGLE, tiled_method
from mmaemu.gemm import execute
from mmaemu.gemm.plan import GemmPlan
from mmaemu.gemm.splitk import UNSPLIT, Scheme, SplitK
from mmaemu.instruction.model import InstructionModel
from mmaemu.instruction.models import get_preset
from mmaemu.testing import assert_bitwise_equal, operands

Formats = tuple[str, str]
Codes = NDArray[np.unsignedinteger[Any]]
PAIRS: tuple[Formats, ...] = tuple(product(("e4m3", "e5m2"), ("e4m3", "e5m2")))
PLANS = (
    (UNSPLIT, None),
    (UNSPLIT, 128),
    (SplitK(3, "serial"), None),
    (SplitK(3, "serial"), 128),
    (SplitK(5, "pairwise"), None),
    (SplitK(4, "pairwise"), 128),
    (SplitK(4, "contiguous"), None),
    (SplitK(3, "contiguous"), 128),
)
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


# The oracle counts in units of 2^-300: every number here is a whole number of them.
POINT = 300


class Encoding(NamedTuple):
    """A format, described without the package's own."""

    fraction_bits: int
    bias: int
    first_special: int


ENCODINGS = {"e4m3": Encoding(3, 7, 0x7F), "e5m2": Encoding(2, 15, 0x7C)}


def finite(code: int, fmt: str) -> int:
    """The value of a code in units; 0 for a special one."""
    fraction_bits, bias, first_special = ENCODINGS[fmt]
    size = code & 0x7F
    if size >= first_special:
        return 0
    field, fraction = size >> fraction_bits, size & ((1 << fraction_bits) - 1)
    significand = fraction + ((field > 0) << fraction_bits)
    value = significand << (POINT + max(field, 1) - bias - fraction_bits)
    return -value if code >> 7 else value


def value(units: int) -> float:
    return float(Fraction(units, 1 << POINT))


def units(number: float) -> int:
    return int(Fraction(number) * (1 << POINT))


def times(x: int, y: int) -> int:
    return x * y >> POINT


def log2_floor(number: int) -> int:
    return abs(number).bit_length() - 1 - POINT


def cut(number: int, exponent: int) -> int:
    """Truncate toward zero to a multiple of 2^exponent."""
    drop = max(exponent + POINT, 0)
    kept = abs(number) >> drop << drop
    return -kept if number < 0 else kept


def nearest(number: int) -> int:
    """Round to 24 bits, ties to even."""
    if not number:
        return 0
    unit = 1 << (log2_floor(number) - 23 + POINT)
    return round(Fraction(number, unit)) * unit


def operand_exponent(number: int, fmt: str, model: InstructionModel) -> int:
    lowest = -14 if model.operand_format == "fp16" else 1 - ENCODINGS[fmt].bias
    return max(log2_floor(number), lowest)


def fused(pairs: list[tuple[int, int]], c: int, model: InstructionModel, formats: Formats) -> int:
    exponents = [
        operand_exponent(x, formats[0], model) + operand_exponent(y, formats[1], model)
        for x, y in pairs
        if x and y
    ]
    exponents += [max(log2_floor(c), -126)] if c else []
    if not exponents:
        return 0
    largest = max(exponents)
    if model.min_exponent is not None:
        largest = max(largest, model.min_exponent)
    unit = largest - model.fraction_bits
    total = cut(c, unit) + sum(cut(times(x, y), unit) for x, y in pairs)
    return cut(total, max(log2_floor(total), -126) - model.result_fraction_bits)


def run_chain(pairs: list[tuple[int, int]], model: InstructionModel, formats: Formats) -> int:
    c = 0
    residues = sum(map(len, model.groups))
    for start in range(0, len(pairs), model.dot_length):
        step = pairs[start : start + model.dot_length]
        groups = [step]
        if residues:
            groups = [
                [pair for k, pair in enumerate(step) if k % residues in group]
                for group in model.groups
            ]
        total = 0 if model.accumulator == "late" else c
        for group in groups:
            total = fused(group, total, model, formats)
        c = nearest(total + c) if model.accumulator == "late" else total
    return c


def slices_of(K: int, split: SplitK) -> list[list[list[int]]]:
    """The tiles of each slice, each a list of k."""
    width = {"none": 128, "contiguous": 128}.get(split.scheme, 64)
    tiles = [list(range(k, min(k + width, K))) for k in range(0, K, width)]
    if split.scheme in ("serial", "pairwise"):
        return [tiles[s :: split.S] for s in range(split.S)]
    share = -(-len(tiles) // split.S)
    return [tiles[s * share : (s + 1) * share] for s in range(split.S)]


def joined(parts: list[int], scheme: str) -> int:
    if scheme == "pairwise":
        count = len(parts)
        half = -(-count // 2)
        slots = [
            nearest(parts[i] + parts[i + half]) if i + half < count - 1 else parts[i]
            for i in range(half)
        ]
        parts = [parts[-1], *slots]
    total = 0
    for part in parts:
        total = nearest(total + part)
    return total


def oracle(
    a: Codes,
    b: Codes,
    formats: Formats,
    model: InstructionModel,
    plan: GemmPlan,
    *,
    split: SplitK | None = None,
) -> float:
    """One output: a and b are its codes [K]; `split` is the plan's before it left slices out."""
    split = split or plan.split
    values = [
        (finite(int(x), formats[0]), finite(int(y), formats[1])) for x, y in zip(a, b, strict=True)
    ]
    parts = []
    for tiles in slices_of(plan.K, split):
        flat = [k for tile in tiles for k in tile]
        chains = [flat]
        if plan.promotion is not None:
            chains = [flat[i : i + plan.promotion] for i in range(0, len(flat), plan.promotion)]
        results = [run_chain([values[k] for k in one], model, formats) for one in chains]
        parts.append(joined(results, "serial"))
    return value(joined(parts, split.scheme))


def request(
    a: Any, b: Any, formats: Formats, model: InstructionModel, plan: GemmPlan
) -> AccumulateRequest:
    left, right = (torch.tensor(np.asarray(side), dtype=torch.uint8) for side in (a, b))
    return AccumulateRequest(left, right, *formats, model, plan)


def run(one: AccumulateRequest, *, readable: bool = False) -> torch.Tensor:
    out = torch.full((one.M, one.N), float("nan"), dtype=torch.float32)
    reference.accumulate(one, out, readable=readable)
    return out


def model_named(name: str) -> InstructionModel:
    return get_preset(name, warn=False)


CUSTOM = (
    InstructionModel("short", 4, 13, 13),
    InstructionModel("long", 128, 12, 12),
    InstructionModel("wide", 32, 25, 23, min_exponent=-133),
    InstructionModel("floor", 16, 13, 13, min_exponent=3),
    InstructionModel("high floor", 16, 20, 23, min_exponent=40),
    InstructionModel("coarse", 16, 2, 5),
    InstructionModel("no fraction", 8, 0, 0),
    InstructionModel("late", 16, 13, 13, accumulator="late"),
    InstructionModel("grouped", 12, 14, 10, groups=((0, 2), (1, 3))),
    InstructionModel("odd", 5, 24, 23, accumulator="late", groups=((0,),)),
    InstructionModel("one", 1, 25, 23),
    InstructionModel("fp16 operands", 32, 13, 13, operand_format="fp16"),
)
READABLE_ONLY = (
    InstructionModel("longest", 256, 13, 13),
    InstructionModel("nearest", 16, 13, 23, rounding="nearest even"),
    InstructionModel("highest floor", 16, 13, 13, min_exponent=120),
    InstructionModel("fma", 1, 0, 23, kind="fma", rounding="nearest even"),
)
EMULATED = model_named("b200_mma_sync")
MODELS = (model_named("ada"), model_named("hopper"), EMULATED, *CUSTOM)


def few_outputs(family: str, formats: Formats, K: int, seed: int = 0) -> tuple[Any, Any]:
    return operands.operands(family, 2, 3, K, formats=formats, seed=seed)


@pytest.mark.parametrize("scheme", ["serial", "pairwise", "contiguous"])
@pytest.mark.parametrize("promotion", [None, 128])
def test_slices_without_a_tile_change_no_bit_and_take_no_time(
    scheme: Any, promotion: int | None
) -> None:
    model, absurd = model_named("ada"), (50, (1 << 40) + 1, (1 << 64) + 2)
    for K, S in ((K, S) for K in (1, 64, 200, 330) for S in (*range(2, 15), *absurd)):
        plan = GemmPlan(K, SplitK(S, scheme), promotion)
        assert plan.split.S in range(2, min(S, K // 32 + 2) + 1)
        a, b = operands.operands("uniform", 2, 8, K, formats=PAIRS[0], seed=S % 16)
        # From twice as many slices as tiles on, the definition does not depend on their number.
        split = SplitK(min(S, 50), scheme)
        wanted = [[oracle(x, y, PAIRS[0], model, plan, split=split) for y in b] for x in a]
        expected = torch.tensor(wanted, dtype=torch.float64).to(torch.float32)
        assert_bitwise_equal(run(request(a, b, PAIRS[0], model, plan)), expected, msg=str(plan))


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_both_paths_equal_the_integer_oracle(model: InstructionModel) -> None:
    # The models that a platform uses see every combination, the others every eighth.
    combinations = list(enumerate(product(PAIRS, PLANS)))
    for index, (formats, (split, promotion)) in combinations[:: 8 if model in CUSTOM else 1]:
        plan = GemmPlan(130 + 41 * (index % 7), split, promotion)
        family = ("uniform", "gaussian", "spread")[index % 3]
        a, b = operands.operands(family, 2, 2, plan.K, formats=formats, seed=index)
        one = request(a, b, formats, model, plan)
        wanted = [[oracle(x, y, formats, model, plan) for y in b] for x in a]
        expected = torch.tensor(wanted, dtype=torch.float64).to(torch.float32)
        assert_bitwise_equal(run(one), expected, msg=f"tiles {formats} {plan}")
        assert_bitwise_equal(run(one, readable=True), expected, msg=f"readable {formats} {plan}")


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_tiles_equal_the_readable_path_on_every_family(model: InstructionModel) -> None:
    for index, family in enumerate(operands.FAMILIES):
        formats = PAIRS[index % len(PAIRS)]
        assert tiled_method(model, *formats) is not None
        plan = GemmPlan(72 if model.dot_length == 1 else 200, *PLANS[index % len(PLANS)])
        a, b = operands.operands(family, 5, 7, plan.K, formats=formats, seed=index)
        one = request(a, b, formats, model, plan)
        assert_bitwise_equal(run(one), run(one, readable=True), msg=f"{family} {plan}")


@pytest.mark.parametrize("model", READABLE_ONLY, ids=lambda model: model.name)
def test_models_outside_the_tiles_take_the_readable_path(model: InstructionModel) -> None:
    for formats in PAIRS:
        assert tiled_method(model, *formats) is None
    a, b = operands.operands("gaussian", 3, 4, 130, formats=PAIRS[0])
    one = request(a, b, PAIRS[0], model, GemmPlan(130))
    assert reference.ReferenceBackend().refusal(one) is None
    assert_bitwise_equal(run(one), run(one, readable=True))
    assert torch.isfinite(run(one)).all()


def test_the_presets_use_single_numbers_and_wide_models_double() -> None:
    for name in ("ada", "hopper"):
        for formats in PAIRS:
            method = tiled_method(model_named(name), *formats)
            assert method is not None
            assert method.numbers is SINGLE
            assert method.powers is (SINGLE if formats == ("e4m3", "e4m3") else DOUBLE)
    wide = tiled_method(EMULATED, "e4m3", "e4m3")
    assert wide is not None
    assert wide.numbers is DOUBLE


@pytest.mark.parametrize("formats", PAIRS, ids="-".join)
@pytest.mark.parametrize("name", ["ada", "hopper"])
def test_every_pair_of_codes_as_a_lone_product(formats: Formats, name: str) -> None:
    every = np.arange(256, dtype=np.uint8)[:, None]
    out = run(request(every, every, formats, model_named(name), GemmPlan(1)))
    values = [[finite(code, fmt) for code in range(256)] for fmt in formats]
    wanted = [[value(times(x, y)) for y in values[1]] for x in values[0]]
    expected = torch.tensor(wanted, dtype=torch.float64).to(torch.float32) + 0.0
    assert_bitwise_equal(out, expected)


def codes_of(values: list[float], dtype: torch.dtype) -> torch.Tensor:
    exact = torch.tensor(values, dtype=torch.float32).to(dtype)
    assert exact.to(torch.float32).tolist() == values
    return exact.view(torch.uint8).reshape(1, -1)


@pytest.mark.parametrize("name", ["ada", "hopper"])
@pytest.mark.parametrize(("last", "differ"), [(127, False), (128, True), (129, True)])
def test_slow_accumulation_differs_from_element_128_on(
    name: str,
    last: int,
    differ: bool,
) -> None:
    # Beside 448 * 448, which exceeds 2^17, a chain drops every 1; a new chain keeps it.
    values = codes_of([448.0, *[1.0] * last], E4M3)
    one, K = model_named(name), last + 1
    fast = run(request(values, values, PAIRS[0], one, GemmPlan(K)))
    slow = run(request(values, values, PAIRS[0], one, GemmPlan(K, promotion=128)))
    assert fast.item() == 448.0**2
    assert slow.item() == 448.0**2 + max(0, last - 127)
    assert (fast.item() != slow.item()) is differ


@pytest.mark.parametrize(
    ("name", "scheme", "width"),
    [("ada", "serial", 64), ("ada", "pairwise", 64), ("hopper", "contiguous", 128)],
)
def test_split_partials_are_kept_in_fp32(name: str, scheme: Scheme, width: int) -> None:
    # Slice 0 sums to 256 + 2^-5, slice 1 to -256: bf16 and fp16 partials would lose the 2^-5.
    a = codes_of([16.0, 2.0**-5, *[0.0] * (width - 2), -16.0, *[0.0] * (width - 1)], E4M3)
    b = codes_of([16.0, 1.0, *[0.0] * (width - 2), 16.0, *[0.0] * (width - 1)], E4M3)
    plan = GemmPlan(2 * width, SplitK(2, scheme))
    assert run(request(a, b, PAIRS[0], model_named(name), plan)).item() == 2.0**-5


def test_a_pairwise_sum_of_five_slices_has_its_own_order() -> None:
    # One product per slice of 64. Beside 2^14, a 2^-10 is half of the last bit.
    parts = [2.0**14, 2.0**-10, -(2.0**14), 2.0**-10, 2.0**-9]
    rest = [0.0] * 63
    a = codes_of([x for part in parts for x in (math.copysign(64.0, part), *rest)], E5M2)
    b = codes_of([x for part in parts for x in (abs(part) / 64.0, *rest)], E5M2)
    schemes: dict[Scheme, float] = {"serial": 3 * 2.0**-10, "pairwise": 2.0**-8}
    for scheme, expected in schemes.items():
        plan = GemmPlan(320, SplitK(5, scheme))
        found = run(request(a, b, PAIRS[3], model_named("ada"), plan)).item()
        assert found == expected
        assert found == oracle(a[0].numpy(), b[0].numpy(), PAIRS[3], model_named("ada"), plan)


@pytest.mark.parametrize("rows", [1, 3, 64, 65, 130])
@pytest.mark.parametrize("columns", [1, 17, 300])
def test_tile_edges_padded_rows_and_guard_bytes(rows: int, columns: int) -> None:
    generator = torch.Generator().manual_seed(rows * columns)
    K = 48
    a, b = (
        torch.randint(0, 256, (lines + 2, K + 5), dtype=torch.uint8, generator=generator)
        for lines in (rows, columns)
    )
    inner = AccumulateRequest(
        a[1:-1, 3 : 3 + K], b[1:-1, 3 : 3 + K], *PAIRS[1], model_named("ada"), GemmPlan(K)
    )
    before = a.clone(), b.clone()
    store = torch.full(((rows + 2) * columns,), 7.0, dtype=torch.float32)
    out = store[columns:-columns].view(rows, columns)
    reference.accumulate(inner, out)
    assert torch.equal(a, before[0])
    assert torch.equal(b, before[1])
    assert (store[:columns] == 7.0).all()
    assert (store[-columns:] == 7.0).all()
    picked = torch.randperm(columns, generator=generator)[:5]
    part = AccumulateRequest(
        inner.a[-1:], inner.b.index_select(0, picked), *PAIRS[1], inner.model, inner.plan
    )
    assert_bitwise_equal(out[-1:, picked], run(part, readable=True))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_thread_count_changes_tiles_but_no_bit(threads: int) -> None:
    a, b = operands.operands("gaussian", 40, 700, 96, formats=PAIRS[0])
    one = request(a, b, PAIRS[0], model_named("hopper"), GemmPlan(96))
    expected = run(one)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        found = run(one)
    finally:
        torch.set_num_threads(before)
    assert_bitwise_equal(found, expected)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (1.0, 2.0**-24),
        (1.0 + 2.0**-23, 2.0**-24),
        (1.0, 2.0**-24 + 2.0**-47),
        (1.0, -(2.0**-25)),
        (1.0, -(2.0**-25) - 2.0**-48),
        (2.0**40, 2.0**-45),
        (2.0**40, -(2.0**-45)),
        (-(2.0**60), 2.0**32 * (1 + 2.0**-23)),
        (1.0, -1.0),
        (0.0, 3.0),
        (2.0**24 - 1, 1.0),
        (2.0**24 - 1, 0.5),
    ],
)
def test_add_nearest_rounds_once_to_even(x: float, y: float) -> None:
    for left, right in ((x, y), (y, x), (-x, -y)):
        found = float_tiles.add_nearest(
            torch.tensor([left], dtype=torch.float64), torch.tensor([right], dtype=torch.float64)
        ).item()
        assert found == value(nearest(units(left) + units(right)))


def test_add_nearest_on_random_numbers_of_all_distances() -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal(4000).astype(np.float32).astype(np.float64)
    y = np.float32(rng.standard_normal(4000)) * np.exp2(rng.integers(-70, 70, 4000))
    found = float_tiles.add_nearest(torch.from_numpy(x), torch.from_numpy(y)).tolist()
    for left, right, got in zip(x.tolist(), y.tolist(), found, strict=True):
        assert got == value(nearest(units(left) + units(right)))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"format_a": "e4m3fnuz"}, "operands must be e4m3 or e5m2, got e4m3fnuz x e4m3"),
        ({"model": "ada_fp8_fp16"}, "adds in fp32, but the model ada_fp8_fp16 gives fp16"),
        ({"model": "ampere_fp16_fp32"}, "does not take e4m3 x e4m3"),
    ],
)
def test_what_it_cannot_run_it_refuses(change: dict[str, str], text: str) -> None:
    one = request(np.zeros((1, 16)), np.zeros((1, 16)), PAIRS[0], model_named("ada"), GemmPlan(16))
    fields = {name: getattr(one, name) for name in AccumulateRequest.__slots__} | change
    if "model" in change:
        fields["model"] = model_named(change["model"])
    reason = reference.ReferenceBackend().refusal(AccumulateRequest(**fields))
    assert reason is not None
    assert text in reason


def test_execute_works_on_it_for_any_band(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = operands.operands("uniform", 9, 33, 80, formats=PAIRS[2])
    one = request(a, b, PAIRS[2], model_named("ada"), GemmPlan(80))
    backend = reference.ReferenceBackend()
    whole = execute.accumulate(backend.accumulate, one)
    monkeypatch.setattr(reference, "TILE_BYTES", 4096)
    monkeypatch.setattr(float_tiles, "PANEL_CODES", 64)
    assert_bitwise_equal(execute.accumulate(backend.accumulate, one), whole)

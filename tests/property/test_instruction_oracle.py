"""Every instruction model against an oracle in exact fractions, written from the rules alone.

The oracle shares nothing with the package: it decodes codes, aligns, sums and rounds by itself, one
output at a time, in Python integers and fractions.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmaemu.formats import FORMATS
from mmaemu.instruction.model import InstructionModel
from mmaemu.instruction.models import MODELS
from mmaemu.model import dot

# name: exponent bits, fraction bits, bias, low bits ignored, kind of special codes, sign bit
CODES: dict[str, tuple[int, int, int, int, str, bool]] = {
    "e4m3": (4, 3, 7, 0, "one nan", True),
    "e5m2": (5, 2, 15, 0, "ieee", True),
    "e4m3fnuz": (4, 3, 8, 0, "minus zero", True),
    "e5m2fnuz": (5, 2, 16, 0, "minus zero", True),
    "e2m3": (2, 3, 1, 0, "none", True),
    "e3m2": (3, 2, 3, 0, "none", True),
    "e2m1": (2, 1, 1, 0, "none", True),
    "fp16": (5, 10, 15, 0, "ieee", True),
    "bf16": (8, 7, 127, 0, "ieee", True),
    "tf32": (8, 10, 127, 13, "ieee", True),
    "fp32": (8, 23, 127, 0, "ieee", True),
    "fp64": (11, 52, 1023, 0, "ieee", True),
    "ue8m0": (8, 0, 127, 0, "power", False),
    "ue4m3": (4, 3, 7, 0, "one nan", False),
}


def two_to(exponent: int) -> Fraction:
    return Fraction(1 << max(exponent, 0), 1 << max(-exponent, 0))


@dataclass(frozen=True)
class Number:
    """What a code stands for: significand * 2^exponent, or an infinity, or NaN."""

    significand: Fraction
    exponent: int
    negative: bool = False
    special: Literal["", "inf", "nan"] = ""

    @property
    def value(self) -> Fraction:
        return self.significand * two_to(self.exponent)


def read(code: int, fmt: str) -> Number:
    exponent_bits, fraction_bits, bias, ignored, special, signed = CODES[fmt]
    code >>= ignored
    negative = signed and bool(code >> (exponent_bits + fraction_bits) & 1)
    field = code >> fraction_bits & ((1 << exponent_bits) - 1)
    fraction = code & ((1 << fraction_bits) - 1)
    top = field == (1 << exponent_bits) - 1
    nan = {
        "ieee": top and fraction != 0,
        "one nan": top and fraction == (1 << fraction_bits) - 1,
        "minus zero": negative and field == 0 and fraction == 0,
        "power": top,
        "none": False,
    }[special]
    if nan:
        return Number(Fraction(0), 0, negative, "nan")
    if special == "ieee" and top:
        return Number(Fraction(0), 0, negative, "inf")
    if special == "power":
        return Number(Fraction(1), field - bias)
    significand = Fraction(fraction, (1 << fraction_bits)) + (1 if field else 0)
    return Number(-significand if negative else significand, max(field, 1) - bias, negative)


def floor_log2(x: Fraction) -> int:
    guess = abs(x.numerator).bit_length() - x.denominator.bit_length()
    return guess if two_to(guess) <= abs(x) else guess - 1


def toward_zero(x: Fraction) -> int:
    return int(x)


def down(x: Fraction) -> int:
    return x.numerator // x.denominator


def write(x: Fraction, fmt: str, bits: int, nearest: bool) -> int:
    """Return the code of x with `bits` fraction bits, rounded to nearest even or truncated."""
    exponent_bits, fraction_bits, bias, *_ = CODES[fmt]
    if x == 0:
        return 0
    exponent = max(floor_log2(x), 1 - bias)
    steps = abs(x) / two_to(exponent - bits)
    whole = round(steps) if nearest else toward_zero(steps)
    size = whole * two_to(exponent - bits)
    sign = int(x < 0) << (exponent_bits + fraction_bits)
    if size >= two_to(bias + 1):
        return sign | ((1 << exponent_bits) - 1) << fraction_bits
    if size == 0:
        return sign
    exponent = max(floor_log2(size), 1 - bias)
    units = size / two_to(exponent - fraction_bits)
    assert units.denominator == 1
    if units < (1 << fraction_bits):
        return sign | int(units)
    return sign | (exponent + bias) << fraction_bits | (int(units) - (1 << fraction_bits))


def times(x: Number, y: Number) -> Number:
    negative = x.negative != y.negative
    zero = any(n.special == "" and n.significand == 0 for n in (x, y))
    if "nan" in {x.special, y.special} or (zero and "inf" in {x.special, y.special}):
        return Number(Fraction(0), 0, negative, "nan")
    if "inf" in {x.special, y.special}:
        return Number(Fraction(0), 0, negative, "inf")
    return Number(x.significand * y.significand, x.exponent + y.exponent, negative)


def special_sum(terms: list[Number], fmt: str) -> int | None:
    exponent_bits, fraction_bits, *_ = CODES[fmt]
    signs = {term.negative for term in terms if term.special == "inf"}
    if len(signs) > 1 or any(term.special == "nan" for term in terms):
        return (1 << (exponent_bits + fraction_bits)) - 1
    if signs:
        infinity = ((1 << exponent_bits) - 1) << fraction_bits
        return infinity | int(signs.pop()) << (exponent_bits + fraction_bits)
    return None


def fused(terms: list[Number], c: int, model: InstructionModel) -> int:
    fmt = model.output
    everything = [*terms, read(c, fmt)]
    special = special_sum(everything, fmt)
    if special is not None:
        return special
    exponents = [term.exponent for term in everything if term.significand]
    if not exponents:
        return 0
    exponent = max(exponents)
    if model.min_exponent is not None:
        exponent = max(exponent, model.min_exponent)
    unit = two_to(exponent - model.fraction_bits)
    total = sum(toward_zero(term.value / unit) for term in everything)
    nearest = model.rounding == "nearest even"
    return write(total * unit, fmt, model.result_fraction_bits, nearest)


def nearest_sum(codes: tuple[int, int], fmt: str) -> int:
    _, fraction_bits, *_ = CODES[fmt]
    numbers = [read(code, fmt) for code in codes]
    special = special_sum(numbers, fmt)
    if special is not None:
        return special
    total = numbers[0].value + numbers[1].value
    if total == 0 and all(n.negative and n.significand == 0 for n in numbers):
        return codes[0]
    return write(total, fmt, fraction_bits, nearest=True)


def aligned_step(products: list[Number], c: int, model: InstructionModel) -> int:
    residues = sum(map(len, model.groups))
    groups = [
        [p for k, p in enumerate(products) if not residues or k % residues in group]
        for group in model.groups or ((0,),)
    ]
    if model.accumulator == "aligned":
        for group in groups:
            c = fused(group, c, model)
        return c
    total = 0
    for group in groups:
        total = fused(group, total, model)
    return nearest_sum((total, c), model.output)


def group_sum_step(
    products: list[Number], scales: list[Number], c: int, model: InstructionModel
) -> int:
    terms = []
    for start in range(0, 64, 16):
        total = sum((p.value for p in products[start : start + 16]), Fraction(0))
        terms.append(times(Number(total, 0, total < 0), scales[start]))
    return fused(terms, c, model)


def exact_step(products: list[Number], c: int, model: InstructionModel) -> int:
    _, fraction_bits, *_ = CODES[model.output]
    everything = [*products, read(c, model.output)]
    special = special_sum(everything, model.output)
    if special is not None:
        return special
    total = sum((term.value for term in everything), Fraction(0))
    negative_zeros = all(term.negative and term.significand == 0 for term in everything)
    if model.kind == "fma" and negative_zeros:
        return c
    return write(total, model.output, fraction_bits, nearest=True)


def flush(code: int) -> int:
    return code & 0x80000000 if code & 0x7F800000 == 0 else code


def flush_input(x: Number) -> Number:
    return x if x.special or abs(x.significand) >= 1 else Number(Fraction(0), x.exponent)


def tree_step(a: list[Number], b: list[Number], c: int, model: InstructionModel) -> int:
    level = []
    for x, y in zip(a, b, strict=True):
        product = times(flush_input(x), flush_input(y))
        special = special_sum([product], "fp32")
        code = write(product.value, "fp32", 23, nearest=True) if special is None else special
        level.append(flush(code))
    while len(level) > 1:
        level = [
            flush(nearest_sum((level[i], level[i + 1]), model.output))
            for i in range(0, len(level), 2)
        ]
    if c & 0x7F800000 == 0:
        c = 0
    return flush(nearest_sum((c, level[0]), model.output))


def joined_step(products: list[Number], c: int, model: InstructionModel) -> int:
    number = read(c, "fp32")
    seen = [
        Number(Fraction(0), 0, p.negative, "inf") if abs(p.value) >= two_to(128) else p
        for p in products
    ]
    special = special_sum([*seen, number], "fp32")
    if special is not None:
        return special
    groups = [products[0::2], products[1::2]] if model.groups else [products]
    sums = []
    for group in groups:
        exponents = [p.exponent for p in group if p.significand]
        if exponents:
            unit = two_to(max(exponents) - 24)
            sums.append((sum(toward_zero(p.value / unit) for p in group) * unit, max(exponents)))
    common = max((e for _, e in sums), default=None)
    total, exponent = Fraction(0), number.exponent
    if common is not None:
        unit = two_to(common - 24)
        total = sum((down(value / unit) * unit for value, _ in sums), Fraction(0))
        exponent = max(common, number.exponent)
    fine, coarse = two_to(exponent - 31), two_to(exponent - 24)
    total = down(total / fine) * fine
    if not model.groups or number.exponent >= exponent - 25:
        total += down(number.value / coarse) * coarse
    return write(total, "fp32", 23, nearest=True)


def as_fp16(numbers: list[Number]) -> list[Number]:
    return [
        x if x.special else read(write(x.value, "fp16", 10, nearest=True), "fp16") for x in numbers
    ]


def expected(
    a: list[int],
    b: list[int],
    c: int,
    model: InstructionModel,
    formats: tuple[str, str],
    *,
    scales: tuple[list[int], list[int]] | None,
) -> int:
    """Return the code of the chain over codes a and b, started from the code c."""
    short = -len(a) % model.dot_length
    numbers_a = [read(code, formats[0]) for code in a + [0] * short]
    numbers_b = [read(code, formats[1]) for code in b + [0] * short]
    if model.operand_format == "fp16":
        numbers_a, numbers_b = as_fp16(numbers_a), as_fp16(numbers_b)
    scale = [Number(Fraction(1), 0)] * len(numbers_a)
    if scales is not None and model.scale_format is not None:
        pairs = [
            times(read(x, model.scale_format), read(y, model.scale_format))
            for x, y in zip(*scales, strict=True)
        ]
        unused = [Number(Fraction(0), 0)] * len(numbers_a)
        scale = [s for s in pairs for _ in range(model.scale_block)] + unused
    for start in range(0, len(numbers_a), model.dot_length):
        window = slice(start, start + model.dot_length)
        c = step(numbers_a[window], numbers_b[window], scale[window], c, model)
    return c


def step(
    a: list[Number], b: list[Number], scale: list[Number], c: int, model: InstructionModel
) -> int:
    products = [times(x, y) for x, y in zip(a, b, strict=True)]
    if model.kind == "aligned":
        if model.scale_format:
            products = [times(p, s) for p, s in zip(products, scale, strict=True)]
        return aligned_step(products, c, model)
    if model.kind == "group sums":
        return group_sum_step(products, scale, c, model)
    if model.kind == "product tree":
        return tree_step(a, b, c, model)
    if model.kind == "two-stage":
        return joined_step(products, c, model)
    return exact_step(products, c, model)


def draw_code(rng: random.Random, fmt: str, low: int, width: int) -> int:
    """Draw a code whose exponent field lies in a window, now and then a zero or any code at all."""
    exponent_bits, fraction_bits, _, ignored, _, signed = CODES[fmt]
    size = exponent_bits + fraction_bits + ignored + signed
    kind = rng.randrange(32)
    if kind == 0:
        return rng.getrandbits(size)
    if kind < 3:
        return rng.randrange(2) << (size - 1) if signed else 0
    field = min(max(low + rng.randint(0, width), 0), (1 << exponent_bits) - 2)
    fraction = rng.getrandbits(fraction_bits) if fraction_bits else 0
    if rng.randrange(2):
        fraction &= -1 << max(fraction_bits - 3, 0)
    sign = rng.randrange(2) if signed else 0
    body = field << fraction_bits | fraction
    return (sign << (exponent_bits + fraction_bits) | body) << ignored


def draw_codes(rng: random.Random, fmt: str, rows: int, length: int) -> list[list[int]]:
    fields = 1 << CODES[fmt][0]
    width = rng.choice((1, 4, 12, fields))
    low = rng.randrange(fields)
    return [[draw_code(rng, fmt, low, width) for _ in range(length)] for _ in range(rows)]


def draw_accumulators(
    rng: random.Random, fmt: str, a: list[list[int]], b: list[list[int]], formats: tuple[str, str]
) -> list[int]:
    """Draw codes of c: some at the size of the products, some of any size."""
    bias, top = CODES[fmt][2], (1 << CODES[fmt][0]) - 2
    chosen = []
    for row_a, row_b in zip(a, b, strict=True):
        near = read(row_a[0], formats[0]).exponent + read(row_b[0], formats[1]).exponent + bias
        low = min(max(near - 4, 0), top) if rng.randrange(4) else rng.randrange(top)
        chosen.append(draw_code(rng, fmt, low, 8))
    return chosen


def values(codes: list[list[int]], fmt: str) -> torch.Tensor:
    decoded = FORMATS[fmt].decode(np.array(codes, dtype=np.uint64))
    return torch.from_numpy(decoded)


RESULT_TYPES = {
    "fp16": (np.uint16, np.float16),
    "fp32": (np.uint32, np.float32),
    "fp64": (np.uint64, np.float64),
}


def check(
    model: InstructionModel,
    formats: tuple[str, str],
    a: list[list[int]],
    b: list[list[int]],
    c: list[int],
    *,
    scales: tuple[list[list[int]], list[list[int]]] | None = None,
) -> None:
    """Compare dot with the oracle on rows of codes, bit for bit."""
    code_type, float_type = RESULT_TYPES[model.output]
    scale_a = scale_b = None
    if scales is not None and model.scale_format is not None:
        scale_a, scale_b = (values(scale, model.scale_format) for scale in scales)
    result = dot(
        values(a, formats[0]),
        values(b, formats[1]),
        torch.from_numpy(np.array(c, dtype=code_type).view(float_type)),
        preset=model,
        fmt=formats,
        scale_a=scale_a,
        scale_b=scale_b,
    )
    got = result.numpy().view(code_type).tolist()
    for row, code in enumerate(got):
        pair = None if scales is None else (scales[0][row], scales[1][row])
        want = expected(a[row], b[row], c[row], model, formats, scales=pair)
        assert code == want, (
            f"{model.name} {formats} row {row}: got {code:#x}, the oracle says {want:#x} for "
            f"a={a[row]} b={b[row]} c={c[row]:#x} scales={pair}"
        )


@pytest.mark.parametrize("name", [n for n, model in MODELS.items() if model.kind != "integer"])
@settings(max_examples=40)
@given(rng=st.randoms(use_true_random=False))
def test_every_model_equals_the_oracle(name: str, rng: random.Random) -> None:
    model, rows = MODELS[name], 3
    formats = rng.choice(model.inputs)
    length = rng.randint(1, 2 * model.dot_length + 2)
    a, b = (draw_codes(rng, fmt, rows, length) for fmt in formats)
    scales = None
    if model.scale_format is not None:
        blocks = -(-length // model.scale_block)
        scales = (
            draw_codes(rng, model.scale_format, rows, blocks),
            draw_codes(rng, model.scale_format, rows, blocks),
        )
    check(model, formats, a, b, draw_accumulators(rng, model.output, a, b, formats), scales=scales)


@settings(max_examples=60)
@given(rng=st.randoms(use_true_random=False))
def test_own_models_equal_the_oracle(rng: random.Random) -> None:
    output = rng.choice(("fp32", "fp16"))
    late = rng.randrange(2)
    model = InstructionModel(
        "own",
        dot_length=4 * rng.randint(1, 8),
        fraction_bits=rng.randint(0, 40),
        result_fraction_bits=rng.randint(1, 23 if output == "fp32" else 10),
        min_exponent=rng.choice((None, -126, -133, -20, -14, 0)),
        accumulator="late" if late else "aligned",
        inputs=(("e4m3", "e5m2"), ("fp16", "fp16"), ("bf16", "bf16"), ("tf32", "tf32")),
        output="fp32" if output == "fp32" else "fp16",
        rounding="nearest even" if rng.randrange(2) else "toward zero",
        groups=rng.choice(((), ((0, 1), (2, 3)), ((0,), (1,)), ((3, 1), (0, 2)))),
    )
    formats = rng.choice(model.inputs)
    a, b = (draw_codes(rng, fmt, 2, rng_length(rng, model)) for fmt in formats)
    length = min(len(a[0]), len(b[0]))
    a, b = [row[:length] for row in a], [row[:length] for row in b]
    check(model, formats, a, b, draw_accumulators(rng, model.output, a, b, formats))


def rng_length(rng: random.Random, model: InstructionModel) -> int:
    return rng.randint(1, 2 * model.dot_length)


@pytest.mark.parametrize("overflow", ["wrap", "clamp"])
@settings(max_examples=30)
@given(data=st.data())
def test_integer_models_equal_python_integers(overflow: str, data: st.DataObject) -> None:
    model = MODELS["int8_wrap" if overflow == "wrap" else "int8_satfinite"]
    length = data.draw(st.integers(1, 70))
    codes = st.lists(st.integers(-128, 127), min_size=length, max_size=length)
    a, b = data.draw(codes), data.draw(codes)
    low, high = -(2**31), 2**31 - 1
    total = c = data.draw(st.one_of(st.integers(low, high), st.integers(high - 2**18, high)))
    for start in range(0, length, 32):
        window = slice(start, start + 32)
        total += sum(x * y for x, y in zip(a[window], b[window], strict=True))
        total = min(max(total, low), high) if overflow == "clamp" else (total - low) % 2**32 + low
    result = dot(
        torch.tensor([a], dtype=torch.int8),
        torch.tensor([b], dtype=torch.int8),
        torch.tensor([c], dtype=torch.int32),
        preset=model,
    )
    assert result.tolist() == [total]

"""The epilogue against exact rational arithmetic (rule N19)."""

from __future__ import annotations

import random
import struct
from fractions import Fraction
from typing import NamedTuple

import pytest
import torch

from mmaemu.gemm import epilogue
from mmaemu.testing import bits

F32 = torch.float32
NAN, INF = 0x7FFFFFFF, 0x7F800000
SPECIAL = (
    *(0x00000000, 0x00000001, 0x007FFFFF, 0x00800000, 0x00800001, 0x00400000),
    *(0x3F800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000),
)


class Target(NamedTuple):
    """An output type, described without the package's own formats."""

    dtype: torch.dtype
    fraction_bits: int
    min_exponent: int
    overflow: int
    nan: int
    sign: int


TARGETS = (
    Target(torch.float32, 23, -126, 0x7F800000, 0x7FFFFFFF, 1 << 31),
    Target(torch.bfloat16, 7, -126, 0x7F80, 0x7FFF, 1 << 15),
    Target(torch.float16, 10, -14, 0x7C00, 0x7FFF, 1 << 15),
    Target(torch.float8_e4m3fn, 3, -6, 0x7E, 0x7F, 1 << 7),
    Target(torch.float8_e5m2, 2, -14, 0x7B, 0x7F, 1 << 7),
)
SINGLE = TARGETS[0]


def value(pattern: int) -> Fraction:
    """The magnitude of a finite fp32 pattern."""
    field, fraction = pattern >> 23 & 0xFF, pattern & 0x7FFFFF
    scale = Fraction(2) ** (max(field, 1) - 150)
    return scale * (fraction + ((field > 0) << 23))


def nearest(magnitude: Fraction, target: Target) -> int:
    """The code nearest to a magnitude, ties to even; beyond the end: Inf, or the largest fp8."""
    if not magnitude:
        return 0
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > magnitude
    exponent = max(exponent, target.min_exponent)
    steps = magnitude / Fraction(2) ** (exponent - target.fraction_bits)
    code = round(steps) + ((exponent - target.min_exponent) << target.fraction_bits)
    return min(code, target.overflow)


def product(x: int, y: int, *, fused: bool) -> int:
    """RN32 of a product of patterns; `fused` adds +0, so an exact zero is +0."""
    sign = (x ^ y) & 1 << 31
    x_size, y_size = x & NAN, y & NAN
    if max(x_size, y_size) > INF or (INF in (x_size, y_size) and 0 in (x_size, y_size)):
        return NAN
    if INF in (x_size, y_size):
        return sign | INF
    if 0 in (x_size, y_size):
        return 0 if fused else sign
    return sign | nearest(value(x_size) * value(y_size), SINGLE)


def expected(acc: int, a: int, b: int, result: int | None, target: Target) -> int:
    y = product(acc, product(a, b, fused=False), fused=True)
    if result is not None and target.dtype.itemsize == 1:
        y = product(y, result, fused=False)
    size, sign = y & NAN, target.sign if y >> 31 else 0
    if size > INF:
        return target.nan
    return sign | (target.overflow if size == INF else nearest(value(size), target))


def tensor(patterns: list[int]) -> torch.Tensor:
    raw = struct.pack(f"<{len(patterns)}I", *patterns)
    return torch.frombuffer(bytearray(raw), dtype=torch.int32).view(F32)


def codes(out: torch.Tensor) -> list[int]:
    mask = (1 << 8 * out.dtype.itemsize) - 1
    return [code & mask for code in bits(out).flatten().tolist()]


def patterns(rng: random.Random, count: int, exponents: tuple[int, int] = (0, 255)) -> list[int]:
    low, high = exponents
    return [
        rng.getrandbits(1) << 31 | rng.randrange(low, high) << 23 | rng.getrandbits(23)
        for _ in range(count)
    ]


def check(accs: list[int], a: int, b: int, result: int | None, target: Target) -> None:
    out = epilogue.apply(
        tensor(accs),
        tensor([a]),
        tensor([b]),
        out_dtype=target.dtype,
        scale_result=None if result is None else tensor([result]),
    )
    assert out.dtype == target.dtype
    wanted = [expected(acc, a, b, result, target) for acc in accs]
    differing = [
        f"acc {acc:#010x}: got {got:#x}, expected {want:#x}"
        for acc, got, want in zip(accs, codes(out), wanted, strict=True)
        if got != want
    ]
    assert not differing, f"a {a:#x} b {b:#x} result {result}: {differing[:5]}"


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target.dtype))
def test_special_and_random_patterns_of_every_kind(target: Target) -> None:
    rng = random.Random(19)
    signed = [pattern | sign for pattern in SPECIAL for sign in (0, 1 << 31)]
    accs = signed + patterns(rng, 150)
    one = 0x3F800000
    for scale in (*signed, *patterns(rng, 20), *patterns(rng, 20, (90, 160))):
        check(accs, scale, one, None, target)
        check(accs[::3], scale, rng.choice(signed), None, target)
        if target.dtype.itemsize == 1:
            check(accs[::2], one, one, scale, target)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target.dtype))
def test_everyday_numbers_take_the_fast_path_and_have_the_same_bits(target: Target) -> None:
    rng = random.Random(20)
    # Times 1.5, every other neighbour of 1 is a tie of two fp32 numbers.
    accs = [*patterns(rng, 300, (110, 145)), *range(0x3F800000, 0x3F800040), 0]
    for a, b in ((0x3EAAAAAB, 0x3F333333), (0xBF812345, 0x3F800000), (0x3FC00000, 0x3F800000)):
        alpha = epilogue.Scale.of_bits(epilogue.multiply_scales(a, b))
        magnitude = tensor(accs).view(torch.int32) & NAN
        assert epilogue._stays_normal(magnitude, alpha)
        check(accs, a, b, None, target)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target.dtype))
def test_ties_and_their_neighbours(target: Target) -> None:
    rng = random.Random(21)
    drop = 23 - target.fraction_bits
    accs = []
    for _ in range(300):
        kept = rng.getrandbits(24 - drop) << drop if drop else rng.getrandbits(24)
        field = rng.randrange(100, 145)
        half = (1 << drop) >> 1
        accs += [field << 23 | (kept + half + near) & 0x7FFFFF for near in (-1, 0, 1)]
    check(accs, 0x3F800000, 0x3F800000, None, target)
    # Below the normal numbers of the target, ties lie at ever higher bits.
    tiny = [
        pattern
        for field in range(127 + target.min_exponent - 12, 127 + target.min_exponent + 1)
        for pattern in (
            field << 23,
            field << 23 | 1,
            field << 23 | 0x400000,
            field << 23 | 0x400001,
        )
        if field >= 0
    ]
    check(tiny, 0x3F800000, 0x3F800000, None, target)


@pytest.mark.parametrize(("target", "last"), [(TARGETS[1], 7), (TARGETS[2], 10)])
def test_the_second_rounding_is_of_the_fp32_number(target: Target, last: int) -> None:
    # A product just above the tie between 1 and the next number rounds up in one step. In fp32 it
    # is the tie itself, which goes to the even 1.
    tie = 1 + Fraction(1, 2 << last)
    found = 0
    for alpha in range(0x3F900000, 0x3FF00000, 0x31111):
        acc = nearest(tie / value(alpha), SINGLE)
        exact = value(acc) * value(alpha)
        twice = nearest(value(nearest(exact, SINGLE)), target)
        if nearest(exact, target) != twice:
            found += 1
            scales = tensor([alpha]), tensor([0x3F800000])
            assert codes(epilogue.apply(tensor([acc]), *scales, out_dtype=target.dtype)) == [twice]
    assert found > 10


def test_scales_are_multiplied_first_and_applied_once() -> None:
    third, part = 0x3EAAAAAB, 0x3F333333
    accs = [struct.unpack("<I", struct.pack("<f", float(n)))[0] for n in range(1, 4097)]
    out = codes(epilogue.apply(tensor(accs), tensor([third]), tensor([part]), out_dtype=F32))
    one_by_one = [product(product(acc, third, fused=True), part, fused=True) for acc in accs]
    assert out == [expected(acc, third, part, None, SINGLE) for acc in accs]
    assert sum(x != y for x, y in zip(out, one_by_one, strict=True)) == 1017


def test_scales_that_overflow_together_give_an_infinity_even_for_a_tiny_accumulator() -> None:
    huge = 0x71800000  # 2^100
    tiny = 0x00800000  # 2^-126: times 2^200 it would be finite
    out = epilogue.apply(tensor([tiny, 0]), tensor([huge]), tensor([huge]), out_dtype=F32)
    assert codes(out) == [INF, NAN]


def test_an_exact_zero_is_positive_and_an_underflow_keeps_its_sign() -> None:
    minus_one, small = 0xBF800000, 0x0DA24260  # 1e-30
    accs = tensor([0, 1 << 31, small, small | 1 << 31])
    assert codes(
        epilogue.apply(accs, tensor([minus_one]), tensor([0x3F800000]), out_dtype=F32)
    ) == [
        *(0, 0),
        *(small | 1 << 31, small),
    ]
    under = epilogue.apply(accs, tensor([minus_one]), tensor([0x1E3CE508]), out_dtype=F32)
    assert codes(under) == [0, 0, 1 << 31, 0]
    zero = epilogue.apply(accs, tensor([1 << 31]), tensor([0x3F800000]), out_dtype=torch.bfloat16)
    assert codes(zero) == [0, 0, 0, 0]


def test_scale_result_is_a_plain_multiplication_of_fp8_outputs_only() -> None:
    one, minus_two = tensor([0x3F800000]), tensor([0xC0000000])
    accs = tensor([0, 0x3F800000, 0xBF800000])
    fp8 = torch.float8_e4m3fn
    scaled = epilogue.apply(accs, one, one, out_dtype=fp8, scale_result=minus_two)
    assert codes(scaled) == [0x80, 0xC0, 0x40]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        plain = epilogue.apply(accs, one, one, out_dtype=dtype)
        assert codes(epilogue.apply(accs, one, one, out_dtype=dtype, scale_result=minus_two)) == (
            codes(plain)
        )


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_fp8_outputs_saturate(dtype: torch.dtype) -> None:
    one = tensor([0x3F800000])
    top = 0x7E if dtype == torch.float8_e4m3fn else 0x7B
    huge = [0x7F7FFFFF, 0xFF7FFFFF, INF, INF | 1 << 31, 0x7FC00001, 0xFFFFFFFF]
    out = epilogue.apply(tensor(huge), one, one, out_dtype=dtype)
    assert codes(out) == [top, top | 0x80, top, top | 0x80, 0x7F, 0x7F]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target.dtype))
def test_every_nan_is_the_canonical_one(target: Target) -> None:
    nans = [0x7F800001, 0xFF800001, 0x7FC12345, 0xFFFFFFFF]
    one = tensor([0x3F800000])
    assert codes(epilogue.apply(tensor(nans), one, one, out_dtype=target.dtype)) == [target.nan] * 4
    numbers = tensor([0, 0x3F800000, INF])
    nan = tensor([0xFFC00001])
    assert codes(epilogue.apply(numbers, nan, one, out_dtype=target.dtype)) == [target.nan] * 3


def test_every_fp8_value_survives_the_round_trip() -> None:
    one = tensor([0x3F800000])
    every = torch.arange(256, dtype=torch.uint8)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        back = codes(epilogue.apply(every.view(dtype).float(), one, one, out_dtype=dtype))
        largest = 0x7E if dtype == torch.float8_e4m3fn else 0x7B
        for code, got in enumerate(back):
            size = code & 0x7F
            if size > 0x7C or (size == 0x7F and largest == 0x7E):
                assert got == (0x7F if (size == 0x7F or largest == 0x7B) else code)
            elif size > largest:
                assert got == code - 1
            else:
                assert got == (code if size else 0)


def test_shape_layout_and_pieces() -> None:
    acc = torch.randn(300, 257, generator=torch.Generator().manual_seed(1), dtype=F32)
    assert acc.numel() > 2 * epilogue.PIECE
    scale = tensor([0x3EAAAAAB])
    whole = epilogue.apply(acc, scale, tensor([0x3F800000]).reshape(1, 1), out_dtype=torch.float16)
    assert whole.shape == acc.shape
    assert whole.is_contiguous()
    turned = epilogue.apply(acc.t(), tensor([0x3F800000]).squeeze(), scale, out_dtype=torch.float16)
    assert torch.equal(turned, whole.t())
    last = epilogue.apply(acc[-1, -3:], scale, tensor([0x3F800000]), out_dtype=torch.float16)
    assert torch.equal(last, whole[-1, -3:])
    assert epilogue.apply(acc[:0], scale, scale, out_dtype=F32).shape == (0, 257)


def test_the_operand_is_not_changed_and_grad_does_not_matter() -> None:
    acc = torch.ones(4, dtype=F32, requires_grad=True)
    scale = torch.tensor(2.0, dtype=F32, requires_grad=True)
    out = epilogue.apply(acc, scale, scale, out_dtype=F32)
    assert out.tolist() == [4.0] * 4
    assert not out.requires_grad
    assert acc.tolist() == [1.0] * 4


def test_a_negation_that_torch_has_put_off_is_done_first() -> None:
    negated = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64).conj().imag
    assert negated.is_neg()
    one = torch.ones(1, dtype=F32)
    assert epilogue.apply(negated, one, one, out_dtype=F32).tolist() == [-2.0, 4.0]
    assert epilogue.apply(one, negated[0], negated[1], out_dtype=F32).tolist() == [-8.0]
    fp8 = torch.float8_e4m3fn
    scaled = epilogue.apply(one, one, one, out_dtype=fp8, scale_result=negated[:1])
    assert scaled.float().tolist() == [-2.0]


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        (
            {"acc32": torch.ones(2, dtype=torch.float64)},
            TypeError,
            "acc32 must be a float32 tensor",
        ),
        ({"acc32": [1.0]}, TypeError, "acc32 must be a float32 tensor, got list"),
        ({"scale_a": 1.0}, TypeError, "scale_a must be a float32 tensor, got float"),
        ({"scale_b": torch.ones(1, dtype=torch.float64)}, TypeError, "scale_b must be a float32"),
        ({"scale_b": torch.ones(2)}, ValueError, "scale_b must have one element, got shape"),
        ({"scale_result": torch.ones(1, dtype=torch.int32)}, TypeError, "scale_result must be"),
        ({"out_dtype": torch.float64}, TypeError, "out_dtype must be torch.float32"),
        ({"out_dtype": torch.int8}, TypeError, "torch.int8"),
        ({"out_dtype": "float32"}, TypeError, "out_dtype must be torch.float32"),
    ],
)
def test_bad_arguments_are_refused(
    changes: dict[str, object], error: type[Exception], text: str
) -> None:
    one = torch.ones(1, dtype=F32)
    arguments = {"acc32": one, "scale_a": one, "scale_b": one, "out_dtype": F32, **changes}
    with pytest.raises(error, match=text):
        epilogue.apply(**arguments)  # type: ignore[arg-type]

"""The vectors that tell instruction models apart, and facts that single vectors show."""

from __future__ import annotations

import itertools
import math
import struct

import pytest
import torch

from mmaemu.instruction.models import MODELS, get_preset
from mmaemu.model import dot

ZERO_TOLERANT = [name for name, model in MODELS.items() if model.kind != "integer"]


def bits_of(value: torch.Tensor) -> int:
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[value.element_size()]
    width = 8 * value.element_size()
    return int(value.view(integer).item()) % (1 << width)


def fp32(bits: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def one(
    name: str,
    fmt: str,
    products: list[tuple[float, float]],
    c: float = 0.0,
    *,
    scales: tuple[list[float], list[float]] | None = None,
) -> torch.Tensor:
    """Evaluate one output: the chain over `products` started from c, a float32 or float64."""
    model = get_preset(name, warn=False)
    a = torch.tensor([[x for x, _ in products]], dtype=torch.float64)
    b = torch.tensor([[y for _, y in products]], dtype=torch.float64)
    start = torch.tensor([c], dtype=torch.float64)
    keywords = {}
    if scales is not None:
        for key, values in zip(("scale_a", "scale_b"), scales, strict=True):
            keywords[key] = torch.tensor([values], dtype=torch.float64)
    return dot(a, b, start, preset=model, fmt=fmt, **keywords)[0]


FLOAT_PATHS = (("fp16", "fp16_fp32"), ("bf16", "bf16_fp32"))
LONG_CANCELLATION = [
    ("volta_fp16_fp32", "fp16", 0.0),
    ("turing_fp16_fp32", "fp16", -0.5),
    *((f"ampere_{path}", fmt, -0.5) for fmt, path in FLOAT_PATHS),
    *((f"ada_{path}", fmt, -0.5) for fmt, path in FLOAT_PATHS),
    ("ada", "e5m2", 0.0),
    ("hopper", "e5m2", 0.0),
    *(
        (f"{prefix}_{path}", fmt, -0.75)
        for prefix in ("hopper", "hopper_wgmma", "blackwell", "tcgen05", "sm_120")
        for fmt, path in FLOAT_PATHS
    ),
    ("tcgen05_f8f6f4_fp32", "e5m2", -0.75),
    ("sm_120_fp8_fp32", "e5m2", -0.75),
    ("b200_mma_sync", "e5m2", 0.0),
    ("cdna1_fp16", "fp16", -0.875),
    ("cdna2_fp16", "fp16", 0.0),
    ("cdna3_fp16", "fp16", -0.5),
    ("cdna3_fp8", "e5m2fnuz", -1.0),
    ("cdna_fp32_fma", "fp32", -0.875),
    ("cdna_fp64_fma", "fp64", -0.875),
    ("fp64_fma", "fp64", -0.875),
]


@pytest.mark.parametrize(("name", "fmt", "expected"), LONG_CANCELLATION)
def test_a_large_product_cancels_c(name: str, fmt: str, expected: float) -> None:
    products = [(-(2.0**13), 2.0**10), (-0.5, 1.0), (-0.25, 1.0), (-0.125, 1.0)]
    assert one(name, fmt, products, 2.0**23).item() == expected


@pytest.mark.parametrize("name", ["ada", "hopper"])
def test_thirteen_fraction_bits(name: str) -> None:
    tiny, small = (2.0**-7, 2.0**-7), (2.0**-7, 2.0**-6)
    assert one(name, "e5m2", [tiny, tiny], 1.0).item() == 1.0
    assert one(name, "e5m2", [small, small], 1.0).item() == 1 + 2.0**-12


def test_products_are_not_normalised() -> None:
    small = (2.0**-12, 2.0**-11)
    assert one("volta_fp16_fp32", "fp16", [(1.5, 1.5), small, small]).item() == 2.25 + 2.0**-22
    assert one("volta_fp16_fp32", "fp16", [(1.0, 2.25), small, small]).item() == 2.25


@pytest.mark.parametrize(
    ("name", "first", "second", "expected"),
    [
        ("ampere_bf16_fp32", (-65, -65), (-77, -77), 0x0007FFFF),
        ("hopper_bf16_fp32", (-67, -67), (-79, -80), 0x00008000),
    ],
)
def test_floor_of_the_block_exponent(
    name: str, first: tuple[int, int], second: tuple[int, int], expected: int
) -> None:
    products = [
        (2.0 ** first[0], 2.0 ** first[1]),
        (-(2.0 ** second[0]), 2.0 ** second[1]),
    ]
    assert bits_of(one(name, "bf16", products)) == expected


def test_floor_of_the_block_exponent_with_fp16_output() -> None:
    products = [(2.0**-12, 2.0**-13), (2.0**-22, 2.0**-23)]
    assert bits_of(one("ampere_fp16_fp16", "fp16", products)) == 0
    # The second product is what decides: alone above the half it rounds up.
    assert bits_of(one("ampere_fp16_fp16", "fp16", [products[0], (2.0**-21, 2.0**-23)])) == 1


def test_zero_products_do_not_raise_the_block_exponent() -> None:
    assert bits_of(one("ada", "e4m3", [(0.0, 448.0)] * 16, fp32(0x00000400))) == 0x00000400
    assert (
        bits_of(one("ampere_bf16_fp32", "bf16", [(0.0, 2.0**127)], fp32(0x3A800001))) == 0x3A800001
    )


@pytest.mark.parametrize("j", range(2, 32))
def test_groups_of_the_emulated_fp8_instruction(j: int) -> None:
    products = [(0.0, 0.0)] * 32
    products[0] = (1.0, 1.0)
    products[1] = products[j] = (2.0**-12, 2.0**-12)
    expected = 1 + 2.0**-23 if j % 4 in {0, 1} else 1.0
    assert one("b200_mma_sync", "e5m2", products).item() == expected


@pytest.mark.parametrize("name", [n for n in ZERO_TOLERANT if MODELS[n].kind != "fma"])
def test_a_sum_of_zeros_is_plus_zero(name: str) -> None:
    model = MODELS[name]
    fmt = model.inputs[0][0]
    blocks = [1.0] * (model.dot_length // model.scale_block) if model.scale_block else None
    for x, y in itertools.product((0.0, -0.0), repeat=2):
        products = [(x, y)] * model.dot_length
        scales = (blocks, blocks) if blocks else None
        assert bits_of(one(name, fmt, products, -0.0, scales=scales)) == 0


@pytest.mark.parametrize("name", ["fp64_fma", "cdna_fp32_fma", "cdna_fp64_fma"])
def test_an_fma_adds_minus_zeros_as_ieee_does(name: str) -> None:
    fmt = MODELS[name].output
    sign = 1 << (31 if fmt == "fp32" else 63)
    dtype = torch.float32 if fmt == "fp32" else torch.float64
    minus = torch.tensor([-0.0], dtype=dtype)
    a = torch.tensor([[-1.0]], dtype=torch.float64)
    zero = torch.tensor([[0.0]], dtype=torch.float64)
    cases = ((zero, minus, sign), (-zero, minus, 0), (zero, -minus, 0))
    for b, c, expected in cases:
        assert bits_of(dot(a, b, c, preset=MODELS[name], fmt=fmt)[0]) == expected


@pytest.mark.parametrize(
    ("products", "c", "expected"),
    [
        ([(math.nan, 1.0)], 1.0, 0x7FFFFFFF),
        ([(1.0, 1.0)], -math.nan, 0x7FFFFFFF),
        ([(math.inf, 0.0)], 1.0, 0x7FFFFFFF),
        ([(math.inf, 1.0), (-math.inf, 1.0)], 1.0, 0x7FFFFFFF),
        ([(math.inf, 1.0)], -math.inf, 0x7FFFFFFF),
        ([(math.inf, -1.0)], 1.0, 0xFF800000),
        ([(-math.inf, -1.0)], 1.0, 0x7F800000),
        ([(1.0, 1.0)], -math.inf, 0xFF800000),
    ],
)
@pytest.mark.parametrize(
    ("name", "fmt"),
    [
        ("ada", "e5m2"),
        ("hopper", "e5m2"),
        ("b200_mma_sync", "e5m2"),
        ("ampere_bf16_fp32", "bf16"),
        ("cdna1_fp16", "fp16"),
        ("cdna2_fp16", "fp16"),
        ("cdna3_fp16", "fp16"),
        ("cdna_fp32_fma", "fp32"),
    ],
)
def test_special_values(
    name: str, fmt: str, products: list[tuple[float, float]], c: float, expected: int
) -> None:
    assert bits_of(one(name, fmt, products, c)) == expected


def test_products_beyond_fp32_do_not_overflow_alone() -> None:
    huge = (2.0**100, 2.0**100)
    assert one("ampere_bf16_fp32", "bf16", [huge, (-(2.0**100), 2.0**100)]).item() == 0.0
    assert one("ampere_bf16_fp32", "bf16", [huge]).item() == math.inf
    # CDNA3 makes every such product an infinity before it adds.
    assert math.isnan(one("cdna3_bf16", "bf16", [huge, (-(2.0**100), 2.0**100)]).item())


def test_fp16_results_overflow_by_nearest_rounding() -> None:
    assert one("ampere_fp16_fp16", "fp16", [(65504.0, 1.0), (15.0, 1.0)]).item() == 65504.0
    assert one("ampere_fp16_fp16", "fp16", [(65504.0, 1.0), (16.0, 1.0)]).item() == math.inf


def test_fp32_results_overflow_by_magnitude() -> None:
    largest = (2.0**127, 2 - 2.0**-7)
    step = (2.0**119, 1.0)
    assert one("ampere_bf16_fp32", "bf16", [largest, (2.0**118, 2 - 2.0**-7)]).item() < math.inf
    assert one("ampere_bf16_fp32", "bf16", [largest, step, step]).item() == math.inf


def test_c_is_rounded_to_fp16_for_fp16_output() -> None:
    assert one("ampere_fp16_fp16", "fp16", [(0.0, 0.0)], 1 + 2.0**-11).item() == 1.0
    assert (
        one("ampere_fp16_fp16", "fp16", [(0.0, 0.0)], 1 + 2.0**-11 + 2.0**-20).item()
        == 1 + 2.0**-10
    )


def test_ue8m0_scales_move_the_exponent() -> None:
    products = [(1.5, 1.0)] * 32
    assert (
        one("tcgen05_mxf8f6f4", "e4m3", products, scales=([2.0**-127], [2.0**127])).item() == 48.0
    )
    assert one("tcgen05_mxf8f6f4", "e4m3", products, scales=([128.0], [1.0])).item() == 48.0 * 128
    assert (
        bits_of(one("tcgen05_mxf8f6f4", "e4m3", products, scales=([math.nan], [1.0]))) == 0x7FFFFFFF
    )
    assert (
        one("tcgen05_mxf8f6f4", "e4m3", products, scales=([2.0**127], [2.0**127])).item()
        == math.inf
    )


@pytest.mark.skipif(
    not hasattr(torch, "float8_e8m0fnu"), reason="this torch has no dtype for ue8m0 scales"
)
def test_ue8m0_scale_codes() -> None:
    a = torch.full((1, 32), 1.0, dtype=torch.float32).to(torch.float8_e4m3fn)
    unit = torch.tensor([[127]], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    model = get_preset("tcgen05_mxf8f6f4", warn=False)
    for code, expected in ((0, 2.0**-122), (134, 2.0**12), (127, 32.0)):
        scale = torch.tensor([[code]], dtype=torch.uint8).view(torch.float8_e8m0fnu)
        assert dot(a, a, preset=model, scale_a=scale, scale_b=unit).item() == expected
    scale = torch.tensor([[255]], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    assert bits_of(dot(a, a, preset=model, scale_a=scale, scale_b=unit)[0]) == 0x7FFFFFFF


def test_nvfp4_scales_each_group_of_16() -> None:
    products = [(6.0, 6.0)] * 64
    scales = ([1.0, 2.0, 4.0, 0.0], [1.5, 1.0, 1.0, 448.0])
    expected = 576 * (1.5 + 2 + 4)
    assert one("tcgen05_nvfp4", "e2m1", products, scales=scales).item() == expected


@pytest.mark.parametrize(("scale", "expected"), [(2.0**-9, 0.0), (2.0**-8, 2.0**-19)])
def test_nvfp4_truncates_group_terms_at_35_bits(scale: float, expected: float) -> None:
    # Two groups of exponent 8 + 8 cancel; of the third, multiples of 2^(16 - 35) stay.
    products = [(6.0, 6.0)] * 16 + [(-6.0, 6.0)] * 16 + [(0.5, 0.5)] + [(0.0, 0.0)] * 31
    scales = ([256.0, 256.0, scale, 1.0], [256.0, 256.0, 2.0**-9, 1.0])
    assert one("tcgen05_nvfp4", "e2m1", products, scales=scales).item() == expected


def test_mxf4_shares_a_scale_between_two_groups() -> None:
    products = [(1.0, 1.0)] * 64
    scales = ([4.0, 0.5], [1.0, 1.0])
    assert one("tcgen05_mxf4", "e2m1", products, scales=scales).item() == 32 * 4.5


@pytest.mark.parametrize(
    ("name", "expected"), [("int8_wrap", -(2**31) + 4), ("int8_satfinite", 2**31 - 1)]
)
def test_int32_results(name: str, expected: int) -> None:
    a = torch.tensor([[1, 2, -3, 4]], dtype=torch.int8)
    b = torch.tensor([[1, 2, 1, 1]], dtype=torch.int8)
    model = get_preset(name, warn=False)
    assert dot(a, b, preset=model).tolist() == [6]
    c = torch.tensor([2**31 - 2], dtype=torch.int32)
    assert dot(a, b, c, preset=model).tolist() == [expected]
    opposite = {"int8_wrap": 2**31 - 4, "int8_satfinite": -(2**31)}
    assert dot(-a, b, -c, preset=model).tolist() == [opposite[name]]


def test_cdna2_flushes_subnormals() -> None:
    subnormal = (2.0**-15, 2.0**14)
    assert one("cdna2_fp16", "fp16", [subnormal]).item() == 0.0
    assert one("cdna1_fp16", "fp16", [subnormal]).item() == 0.5
    assert one("cdna2_bf16", "bf16", [(2.0**-100, 2.0**-40)]).item() == 0.0
    assert one("cdna2_bf16", "bf16", [(1.0, 2.0**-126)], 2.0**-149).item() == 2.0**-126


def test_cdna3_rounds_c_down_and_drops_it_in_fp8() -> None:
    # c lies 25 bits below the product: fp16 rounds it down to one unit of 2^-24, fp8 cuts it off.
    assert one("cdna3_fp16", "fp16", [(1.0, 1.0)], -(2.0**-40)).item() == 1 - 2.0**-24
    assert one("cdna3_fp8", "e4m3fnuz", [(1.0, 1.0)], -(2.0**-40)).item() == 1.0
    assert one("cdna3_fp8", "e4m3fnuz", [(1.0, 1.0)], -(2.0**-25)).item() == 1 - 2.0**-24


def test_tf32_registers_lose_their_low_13_bits() -> None:
    a = torch.tensor([[1 + 2.0**-10 + 2.0**-11]], dtype=torch.float32)
    b = torch.ones((1, 1), dtype=torch.float32)
    assert dot(a, b, preset="ampere_tf32_fp32", fmt="tf32").item() == 1 + 2.0**-10


def test_a_chain_is_its_steps() -> None:
    generator = torch.Generator().manual_seed(7)
    a, b = torch.randn(2, 5, 40, generator=generator, dtype=torch.float32).to(torch.float8_e4m3fn)
    c = torch.zeros(5, dtype=torch.float32)
    for start in range(0, 40, 16):
        c = dot(a[:, start : start + 16], b[:, start : start + 16], c, preset="ada")
    assert torch.equal(dot(a, b, preset="ada").view(torch.int32), c.view(torch.int32))

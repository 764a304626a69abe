from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from mmaemu.formats import FORMATS, INFINITE, NAN, NORMAL, SUBNORMAL, ZERO, format_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

SMALL = [name for name, fmt in FORMATS.items() if fmt.bits <= 16]
TORCH = [n for n, fmt in FORMATS.items() if fmt.torch_name and hasattr(torch, fmt.torch_name)]


def every_code(name: str) -> NDArray[np.unsignedinteger]:
    fmt = FORMATS[name]
    return np.arange(1 << fmt.bits, dtype=fmt.code_dtype)


def torch_values(name: str, codes: NDArray[np.unsignedinteger]) -> NDArray[np.float64]:
    dtype = getattr(torch, str(FORMATS[name].torch_name))
    return torch.from_numpy(codes).view(dtype).to(torch.float64).numpy()


# min exponent, largest finite value, smallest positive value, canonical NaN, infinity
FACTS = {
    "e4m3": (-6, 448.0, 2.0**-9, 0x7F, None),
    "e5m2": (-14, 57344.0, 2.0**-16, 0x7F, 0x7C),
    "e4m3fnuz": (-7, 240.0, 2.0**-10, 0x80, None),
    "e5m2fnuz": (-15, 57344.0, 2.0**-17, 0x80, None),
    "e2m3": (0, 7.5, 2.0**-3, None, None),
    "e3m2": (-2, 28.0, 2.0**-4, None, None),
    "e2m1": (0, 6.0, 0.5, None, None),
    "fp16": (-14, 65504.0, 2.0**-24, 0x7FFF, 0x7C00),
    "bf16": (-126, (2 - 2.0**-7) * 2.0**127, 2.0**-133, 0x7FFF, 0x7F80),
    "tf32": (-126, (2 - 2.0**-10) * 2.0**127, 2.0**-136, 0x7FFFFFFF, 0x7F800000),
    "fp32": (-126, (2 - 2.0**-23) * 2.0**127, 2.0**-149, 0x7FFFFFFF, 0x7F800000),
    "fp64": (-1022, (2 - 2.0**-52) * 2.0**1023, 5e-324, 0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000),
    "ue8m0": (-127, 2.0**127, 2.0**-127, 0xFF, None),
    "ue4m3": (-6, 448.0, 2.0**-9, 0x7F, None),
}


@pytest.mark.parametrize("name", FORMATS)
def test_facts(name: str) -> None:
    fmt = FORMATS[name]
    first = 0 if name == "ue8m0" else 1 << fmt.ignored_bits
    smallest = fmt.decode(np.array([first], dtype=fmt.code_dtype))[0]
    facts = (fmt.min_exponent, fmt.max_finite, smallest, fmt.canonical_nan, fmt.infinity)
    assert facts == FACTS[name]
    assert fmt.max_exponent == math.frexp(fmt.max_finite)[1] - 1


@pytest.mark.parametrize("name", [n for n in SMALL if n in TORCH])
def test_decode_equals_torch_for_every_code(name: str) -> None:
    codes = every_code(name)
    got, want = FORMATS[name].decode(codes), torch_values(name, codes)
    assert np.array_equal(got, want, equal_nan=True)
    number = ~np.isnan(want)
    assert np.array_equal(np.signbit(got[number]), np.signbit(want[number]))


@pytest.mark.parametrize("name", ["fp32", "fp64"])
def test_decode_of_wide_formats_keeps_every_value(name: str) -> None:
    fmt = FORMATS[name]
    rng = np.random.default_rng(5)
    codes = rng.integers(0, 1 << fmt.bits, 4096, dtype=np.uint64).astype(fmt.code_dtype)
    codes[:256] &= fmt.code_dtype.type((1 << fmt.fraction_bits) - 1)
    assert np.array_equal(fmt.decode(codes), torch_values(name, codes), equal_nan=True)


def test_tf32_ignores_its_low_bits() -> None:
    codes = np.array([0x3F800000, 0x3F801FFF, 0x3F802000], dtype=np.uint32)
    assert FORMATS["tf32"].decode(codes).tolist() == [1.0, 1.0, 1 + 2.0**-10]


def test_ue8m0_codes() -> None:
    values = FORMATS["ue8m0"].decode(np.array([0, 134, 255], dtype=np.uint8))
    assert values[:2].tolist() == [2.0**-127, 128.0]
    assert math.isnan(values[2])


@pytest.mark.parametrize("name", SMALL)
def test_encode_inverts_decode(name: str) -> None:
    fmt, codes = FORMATS[name], every_code(name)
    values = fmt.decode(codes)
    number = ~np.isnan(values)
    assert np.array_equal(fmt.encode(values)[number], codes[number])
    assert np.all(fmt.encode(values)[~number] == fmt.canonical_nan)


def test_encode_rounds_fp8_subnormals_to_nearest_even() -> None:
    values = np.array([2.0**-9, 2.0**-10, 1.5 * 2.0**-10, 2.0**-11, -0.0, -1e-30], dtype=np.float64)
    assert FORMATS["e4m3"].encode(values).tolist() == [1, 0, 1, 0, 0x80, 0x80]


@pytest.mark.parametrize(
    ("name", "type_name"), [("fp16", "float16"), ("fp32", "float32"), ("bf16", "bfloat16")]
)
def test_encode_equals_torch(name: str, type_name: str) -> None:
    rng = np.random.default_rng(11)
    values = np.exp2(rng.uniform(-152, 130, 20000)) * rng.choice([-1.0, 1.0], 20000)
    with np.errstate(over="ignore"):
        single = values.astype(np.float32).astype(np.float64)
    converted = torch.from_numpy(single).to(torch.float32).to(getattr(torch, type_name))
    got = FORMATS[name].decode(FORMATS[name].encode(single))
    assert np.array_equal(got, converted.to(torch.float64).numpy())


@pytest.mark.parametrize(
    ("name", "plain", "saturated"),
    [
        ("e4m3", [0x7E, 0x7F, 0x7F, 0x7F, 0x7F], [0x7E, 0x7E, 0x7E, 0xFE, 0x7F]),
        ("e5m2", [0x5F, 0x7B, 0x7C, 0xFC, 0x7F], [0x5F, 0x7B, 0x7B, 0xFB, 0x7F]),
    ],
)
def test_encode_beyond_the_range(name: str, plain: list[int], saturated: list[int]) -> None:
    over = {"e4m3": 464.0 + 2**-20, "e5m2": 57344.0}[name]
    values = np.array([449.0, over, math.inf, -math.inf, math.nan], dtype=np.float64)
    assert FORMATS[name].encode(values).tolist() == plain
    assert FORMATS[name].encode(values, saturate=True).tolist() == saturated


def test_fnuz_has_one_zero() -> None:
    assert FORMATS["e4m3fnuz"].encode(np.array([-0.0, -1e-9, -1.0])).tolist() == [0, 0, 0xC0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("e2m1", 7.5),
        ("e2m1", math.inf),
        ("e3m2", math.nan),
        ("ue8m0", 0.0),
        ("ue8m0", -1.0),
        ("ue4m3", -1.0),
    ],
)
def test_encode_refuses_values_without_a_code(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"format {name} has no code"):
        FORMATS[name].encode(np.array([1.0, value]))


def test_encode_takes_float64_only() -> None:
    with pytest.raises(TypeError, match="float64"):
        FORMATS["e4m3"].encode(np.ones(2, dtype=np.float32))  # type: ignore[arg-type,unused-ignore]
    with pytest.raises(TypeError, match="list"):
        FORMATS["e4m3"].encode([1.0])  # type: ignore[arg-type]


def test_decode_refuses_what_is_no_code() -> None:
    with pytest.raises(TypeError, match="integer"):
        FORMATS["e4m3"].decode(np.ones(2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"0\.\.15"):
        FORMATS["e2m1"].decode(np.array([16], dtype=np.uint8))
    with pytest.raises(ValueError, match=r"0\.\.255"):
        FORMATS["e4m3"].classify(np.array([-1], dtype=np.int16))


@pytest.mark.parametrize("name", ["fp16", "fp32", "fp64"])
def test_byte_order_of_the_array_is_no_part_of_the_code(name: str) -> None:
    fmt = FORMATS[name]
    codes = np.array([0x3C01, 0x0001, 0x7BFF], dtype=fmt.code_dtype)
    swapped = codes.astype(codes.dtype.newbyteorder(">"))
    assert np.array_equal(fmt.decode(swapped), fmt.decode(codes))


def test_classes() -> None:
    kinds = FORMATS["e5m2"].classify(np.array([0, 0x80, 1, 4, 0x7B, 0x7C, 0xFC, 0x7D, 0xFF]))
    assert kinds.tolist() == [ZERO, ZERO, SUBNORMAL, NORMAL, NORMAL, INFINITE, INFINITE, NAN, NAN]
    assert FORMATS["e4m3"].classify(np.array([0x7E, 0x7F, 0xFF])).tolist() == [NORMAL, NAN, NAN]
    assert FORMATS["e4m3fnuz"].classify(np.array([0, 0x80, 0x7F])).tolist() == [ZERO, NAN, NORMAL]
    assert FORMATS["ue8m0"].classify(np.array([0, 255])).tolist() == [NORMAL, NAN]


@pytest.mark.parametrize("name", TORCH)
def test_format_of_torch_dtypes(name: str) -> None:
    assert format_of(getattr(torch, str(FORMATS[name].torch_name))) is FORMATS[name]


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, "float16", np.dtype("float16"), None])
def test_format_of_anything_else(dtype: object) -> None:
    with pytest.raises(TypeError, match="torch dtypes"):
        format_of(dtype)


def test_flush_to_zero_changes_no_value() -> None:
    codes = every_code("bf16")
    plain = FORMATS["bf16"].decode(codes)
    tiny = np.array([2.0**-149, 2.0**-1070], dtype=np.float64)
    try:
        torch.set_flush_denormal(True)
        assert np.array_equal(FORMATS["bf16"].decode(codes), plain, equal_nan=True)
        assert FORMATS["fp32"].encode(tiny).tolist() == [1, 0]
        assert FORMATS["fp64"].encode(tiny).tolist() == tiny.view(np.uint64).tolist()
    finally:
        torch.set_flush_denormal(False)

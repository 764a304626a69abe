"""The host's CUDA: each intrinsic against exact arithmetic, and what it refuses to do."""

from __future__ import annotations

import ctypes
import math
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import host_cuda
from files import ROOT
from findings import UnusableError
from host_cuda import TENSOR_CORES, UNITS, HostModule, LaunchError
from mmaemu.formats import FORMATS
from mmaemu.instruction.model import InstructionModel
from mmaemu.instruction.models import get_preset
from mmaemu.model import dot as chained
from mmaemu.testing import assert_bitwise_equal

Bits = NDArray[np.uint32]
SOURCE = Path(__file__).parent / "native" / "intrinsics.cu"
ENTRIES = ("compute", "warp_operations", "matrix", "mistakes")
NAN, INF = 0x7FFFFFFF, 0x7F800000


def has_compiler() -> bool:
    try:
        return bool(host_cuda.compiler())
    except UnusableError:
        return False


pytestmark = pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")


class Operands(ctypes.Structure):
    _fields_ = (
        ("operation", ctypes.c_int),
        ("count", ctypes.c_int),
        ("x", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("z", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
    )


@pytest.fixture(scope="module")
def module() -> HostModule:
    return HostModule(host_cuda.build(SOURCE, entries=ENTRIES))


@pytest.fixture(scope="module", params=[False, True], ids=["native", "portable"])
def either(request: pytest.FixtureRequest) -> HostModule:
    return HostModule(host_cuda.build(SOURCE, entries=ENTRIES, portable=request.param))


def run(
    module: HostModule,
    entry: str,
    operation: int,
    inputs: tuple[Bits, ...] = (),
    *,
    outputs: int = 64,
    grid: tuple[int, int] = (1, 1),
    block: int = 32,
    shared_bytes: int = 0,
    seed: int = 0,
) -> Bits:
    inputs = tuple(np.ascontiguousarray(each) for each in inputs)
    out = np.zeros(outputs, np.uint32)
    pointers = [each.ctypes.data for each in inputs] + [None] * (3 - len(inputs))
    count = len(inputs[0]) if inputs else 0
    parameter = Operands(operation, count, *pointers, out.ctypes.data)
    module.launch(entry, grid, block, parameter, shared_bytes=shared_bytes, seed=seed)
    return out


# ---- fp32 -----------------------------------------------------------------------------------


def exact(bits: int) -> Fraction:
    fraction, field = bits & 0x7FFFFF, bits >> 23 & 0xFF
    size = Fraction(fraction + (1 << 23 if field else 0)) * Fraction(2) ** ((field or 1) - 150)
    return -size if bits >> 31 else size


def rounded(value: Fraction, zero: int, *, nearest: bool) -> int:
    """An exact value in fp32; `zero`: the bits of an exact zero."""
    if value == 0:
        return zero
    sign, size = (1 << 31 if value < 0 else 0), abs(value)
    top = size.numerator.bit_length() - size.denominator.bit_length()
    top -= size < Fraction(2) ** top
    unit = max(top, -126) - 23
    scaled = size / Fraction(2) ** unit
    count = math.floor(scaled)
    rest = scaled - count
    if nearest and (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and count % 2)):
        count += 1
    code = count + ((unit + 149) << 23)
    if code >= INF:
        code = INF if nearest else INF - 1
    return sign | code


def is_finite(*bits: int) -> bool:
    return all(each & 0x7FFFFFFF < INF for each in bits)


def floats(x: int, y: int, z: int) -> tuple[float, float, float]:
    values = np.array([x, y, z], np.uint32).view(np.float32)
    return float(values[0]), float(values[1]), float(values[2])


def of_specials(result: float) -> int:
    """Bits of a result that is NaN or Inf."""
    return NAN if math.isnan(result) else INF | (1 << 31 if result < 0 else 0)


def fma_oracle(x: int, y: int, z: int, *, nearest: bool) -> int:
    if not is_finite(x, y, z):
        a, b, c = floats(x, y, z)
        # A product of finite doubles of this size does not overflow.
        return of_specials(a * b + c)
    product_sign, product = (x ^ y) >> 31, exact(x) * exact(y)
    both_negative = product == 0 and product_sign == z >> 31 == 1 and exact(z) == 0
    return rounded(product + exact(z), 1 << 31 if both_negative else 0, nearest=nearest)


def product_oracle(x: int, y: int, *, nearest: bool) -> int:
    if not is_finite(x, y):
        a, b, _ = floats(x, y, 0)
        return of_specials(a * b)
    return rounded(exact(x) * exact(y), (x ^ y) & 1 << 31, nearest=nearest)


ONE = 0x3F800000
FLOAT_ORACLES: dict[int, Callable[[int, int, int], int]] = {
    0: lambda x, y, _: fma_oracle(x, ONE, y, nearest=False),
    1: lambda x, y, _: product_oracle(x, y, nearest=False),
    2: lambda x, y, z: fma_oracle(x, y, z, nearest=False),
    3: lambda x, y, _: fma_oracle(x, ONE, y, nearest=True),
    4: lambda x, y, _: product_oracle(x, y, nearest=True),
    5: lambda x, y, z: fma_oracle(x, y, z, nearest=True),
    6: lambda x, y, _: fma_oracle(x, ONE, y ^ 1 << 31, nearest=False),
}
SPECIAL_FLOATS = (
    *(0, 1 << 31, 1, 0x80000001, 0x007FFFFF, 0x00800000, ONE, 0xBF800000, 0x3F7FFFFF),
    *(0x7F7FFFFF, 0xFF7FFFFF, INF, INF | 1 << 31, NAN, 0x7F800001, 0x33800000, 0x4B800000),
)


def float_operands(seed: int) -> tuple[Bits, Bits, Bits]:
    """All triples of special values; random bits; and sums whose terms almost cancel."""
    rng = np.random.default_rng(seed)
    grid = np.array(np.meshgrid(*[SPECIAL_FLOATS] * 3), np.uint32).reshape(3, -1)
    anything = rng.integers(0, 2**32, (3, 1500), dtype=np.uint32)
    near = rng.integers(0x3F000000, 0x41000000, (3, 1500), dtype=np.uint32)
    x, y = near[0].view(np.float32), near[1].view(np.float32)
    near[2] = (-(x * y)).view(np.uint32) + rng.integers(-2, 3, 1500).astype(np.uint32)
    tiny = rng.integers(0x1F000000, 0x20800000, (3, 1000), dtype=np.uint32)
    tiny[2] = rng.integers(0, 0x01000000, 1000)
    halves = rng.integers(0x3F800000, 0x40000000, (3, 1000), dtype=np.uint32)
    halves[2] = rng.integers(0x30000000, 0x34000000, 1000)
    halves[1] = ONE
    x, y, z = np.concatenate((grid, anything, near, tiny, halves), axis=1)
    return x, y, z


@contextmanager
def rounding_mode(mode: int) -> Iterator[None]:
    """The C library's rounding mode of this thread: 0x800 is upward on x86."""
    library = ctypes.CDLL(None)
    before = library.fegetround()
    assert library.fesetround(mode) == 0
    try:
        yield
    finally:
        library.fesetround(before)


def show(operation: int, got: Bits, wanted: Bits, inputs: tuple[Bits, ...]) -> str:
    wrong = np.flatnonzero(got != wanted)[:1]
    what = [f"{int(each[wrong][0]):#010x}" for each in (*inputs, got, wanted)] if wrong.size else []
    return f"operation {operation}: x y z got wanted {what}"


@pytest.mark.parametrize("operation", FLOAT_ORACLES)
def test_floats_are_exact(either: HostModule, operation: int) -> None:
    inputs = float_operands(operation)
    rows = zip(*(each.tolist() for each in inputs), strict=True)
    wanted = np.array([FLOAT_ORACLES[operation](*row) for row in rows], np.uint32)
    got = run(either, "compute", operation, inputs, outputs=len(wanted))
    assert np.array_equal(got, wanted), show(operation, got, wanted, inputs)


@pytest.mark.skipif(sys.platform != "linux", reason="sets glibc's rounding mode")
def test_the_callers_rounding_mode_does_not_matter_and_stays(either: HostModule) -> None:
    inputs = float_operands(99)
    upward = 0x800 if platform.machine() == "x86_64" else 0x400000
    for operation in FLOAT_ORACLES:
        before = run(either, "compute", operation, inputs, outputs=len(inputs[0]))
        with rounding_mode(upward):
            after = run(either, "compute", operation, inputs, outputs=len(inputs[0]))
            assert ctypes.CDLL(None).fegetround() == upward
        assert np.array_equal(before, after)


def test_conversions_and_extremes(module: HostModule) -> None:
    x = np.array([1.9, -1.9, 3e9, -3e9, np.nan, 2147483520.0, np.inf], np.float32).view(np.uint32)
    got = run(module, "compute", 7, (x, x, x), outputs=len(x)).view(np.int32)
    assert got.tolist() == [1, -1, 2**31 - 1, -(2**31), 0, 2147483520, 2**31 - 1]
    x = np.array([0.0, -0.0, np.nan, 1.0, np.nan], np.float32).view(np.uint32)
    y = np.array([-0.0, 0.0, 2.0, np.nan, np.nan], np.float32).view(np.uint32)
    largest = run(module, "compute", 8, (x, y, x), outputs=5)
    least = run(module, "compute", 9, (x, y, x), outputs=5)
    assert largest.tolist() == [0, 0, 0x40000000, ONE, NAN]
    assert least.tolist() == [1 << 31, 1 << 31, 0x40000000, ONE, NAN]
    x = np.array([0, 1, 2**24 + 1, 2**31 - 1, 2**32 - (2**24 + 1)], np.uint32)
    converted = run(module, "compute", 10, (x, x, x), outputs=5)
    wanted = [rounded(Fraction(each), 0, nearest=False) for each in x.view(np.int32).tolist()]
    assert converted.tolist() == wanted


# ---- Integers and halves --------------------------------------------------------------------


def unsigned(word: int) -> list[int]:
    return [word >> (8 * i) & 0xFF for i in range(4)]


def signed(word: int) -> list[int]:
    return [byte - 256 if byte > 127 else byte for byte in unsigned(word)]


def packed(parts: list[int]) -> int:
    return sum((part & 0xFF) << (8 * i) for i, part in enumerate(parts))


def by_bytes(
    split: Callable[[int], list[int]], function: Callable[[int, int], int]
) -> Callable[[int, int, int], int]:
    return lambda x, y, _: packed([function(p, q) for p, q in zip(split(x), split(y), strict=True)])


def dot(split: Callable[[int], list[int]]) -> Callable[[int, int, int], int]:
    return lambda x, y, z: z + sum(p * q for p, q in zip(split(x), split(y), strict=True))


def permuted(x: int, y: int, z: int) -> int:
    source = unsigned(x) + unsigned(y)
    chosen = [(z >> (4 * i) & 7, z >> (4 * i) & 8) for i in range(4)]
    return packed([source[i] if not spread else -(source[i] >> 7) for i, spread in chosen])


INTEGER_ORACLES: dict[int, Callable[[int, int, int], int]] = {
    20: dot(signed),
    21: dot(unsigned),
    22: permuted,
    23: by_bytes(unsigned, lambda p, q: p + q),
    24: by_bytes(unsigned, max),
    25: by_bytes(signed, max),
    26: by_bytes(signed, lambda p, q: 255 * (p > q)),
    27: by_bytes(unsigned, lambda p, q: 255 * (p < q)),
    28: by_bytes(signed, lambda p, q: min(127, max(-128, p - q))),
    29: by_bytes(unsigned, lambda p, q: max(0, p - q)),
    30: lambda x, y, z: ((y << 32 | x) << (z & 31)) >> 32,
    31: lambda x, y, z: (y << 32 | x) >> (z & 31),
    32: lambda x, _y, _z: 32 - x.bit_length(),
    33: lambda x, _y, _z: int(f"{x:032b}"[::-1], 2),
    34: lambda x, y, _: x * y >> 32,
    35: lambda x, _y, _z: (x & -x).bit_length(),
}


@pytest.mark.parametrize("operation", INTEGER_ORACLES)
def test_integers(module: HostModule, operation: int) -> None:
    rng = np.random.default_rng(operation)
    edges = np.array([0, 1, 0x80, 0x7F, 0x80808080, 0x7F7F7F7F, 0xFFFFFFFF, 1 << 31], np.uint32)
    grid = np.array(np.meshgrid(edges, edges, edges[:5])).reshape(3, -1)
    inputs = np.concatenate((grid, rng.integers(0, 2**32, (3, 500), dtype=np.uint32)), axis=1)
    rows = (tuple(int(each) for each in row) for row in inputs.T)
    wanted = [INTEGER_ORACLES[operation](*row) & 0xFFFFFFFF for row in rows]
    got = run(module, "compute", operation, tuple(inputs), outputs=len(wanted))
    assert got.tolist() == wanted


@pytest.mark.parametrize(("operation", "name"), [(40, "bf16"), (41, "fp16")])
def test_fused_multiply_add_of_halves(module: HostModule, operation: int, name: str) -> None:
    layout = FORMATS[name]
    rng = np.random.default_rng(operation)
    codes = rng.integers(0, 2**16, (3, 1500)).astype(np.uint32)
    near = rng.integers(0x3C00, 0x4400, (3, 1500)).astype(np.uint32)
    codes = np.concatenate((codes, near | rng.integers(0, 2, (3, 1500)).astype(np.uint32) << 15), 1)
    codes[2, ::3] &= 0x83FF
    got = run(module, "compute", operation, tuple(codes | codes[:, ::-1] << 16), outputs=3000)
    assert np.array_equal(got & 0xFFFF, got[::-1] >> 16)
    top = (1 << layout.exponent_bits) - 1 << layout.fraction_bits
    for (x, y, z), code in zip(codes.T.tolist(), (got & 0xFFFF).tolist(), strict=True):
        if max(each & 0x7FFF for each in (x, y, z)) >= top:
            continue
        a, b, c = (Fraction(float(v)) for v in layout.decode(np.array([x, y, z], np.uint16)))
        value = a * b + c
        unit = Fraction(2) ** (layout.min_exponent - layout.fraction_bits)
        while abs(value) >= unit * 2 ** (layout.fraction_bits + 1):
            unit *= 2
        # The nearest multiple of the unit; Python rounds halves to even.
        wanted = round(value / unit) * unit
        if abs(wanted) > Fraction(layout.max_finite):
            assert code & 0x7FFF == top
        else:
            assert Fraction(float(layout.decode(np.array([code], np.uint16))[0])) == wanted


# ---- Threads --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2**63 + 7])
def test_operations_of_warps_and_blocks(module: HostModule, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 1000, 96).astype(np.uint32)
    x[70] = 7
    got = run(module, "warp_operations", 0, (x,), outputs=14 * 96, block=96, seed=seed)
    lane = np.arange(32)
    halves = x.reshape(3, 2, 16)

    def spread(of_half: Any) -> list[Any]:
        return list(np.repeat(np.asarray(of_half).reshape(-1), 16).astype(np.uint32))

    def taken(index: NDArray[Any]) -> list[Any]:
        return list(x.reshape(3, 32)[:, index].reshape(-1))

    down = np.where(lane % 16 + 3 < 16, lane + 3, lane)
    ballots = [sum(int(v & 1) << i for i, v in enumerate(row)) for row in x.reshape(3, 32)]
    wanted = [
        taken(np.full(32, 5)),
        taken(lane // 8 * 8 + 3),
        taken(lane ^ 9),
        taken(np.where(lane >= 3, lane - 3, lane)),
        taken(down),
        np.repeat(ballots, 32).tolist(),
        spread((halves == 7).any(2)),
        spread((halves != 7).all(2)),
        np.repeat(np.bitwise_or.reduce(x.reshape(3, 32), 1), 32).tolist(),
        spread(halves.max(2)),
        np.repeat(x.reshape(3, 32).sum(1), 32).tolist(),
        [1] * 96,
        [0] * 96,
        [int((x & 1).sum())] * 96,
    ]
    for index, (row, expected) in enumerate(zip(got.reshape(14, 96), wanted, strict=True)):
        assert row.tolist() == expected, f"result {index}"


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (
            0,
            r"deadlock: 1 threads have returned, 63 wait at a barrier .* thread 0 waits at .*cu:\d",
        ),
        (1, r"divergent barrier: thread 32 is at .*:\d+, others at .*:\d+"),
        (2, r"deadlock: 33 threads have returned, 0 wait at a barrier of the block, 31 for"),
        (3, r"shuffle at .*: lane 0 reads lane 20, which is not in mask 0x0000ffff"),
        (4, r"wrote beside its 256 bytes of dynamic shared memory, at byte 256"),
        (5, r"thread 0 is not in its own mask 0xfffffffe"),
        (6, r"__trap at .*, thread 5"),
        (12, r"divergent warp: thread 1 is at .*, thread 0 at .*, both with mask 0xffffffff"),
        (7, r"divergent warp: thread 16 is at .*, thread 0 at"),
    ],
)
def test_mistakes_are_named(module: HostModule, operation: int, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        run(module, "mistakes", operation, block=64, shared_bytes=256)
    # The next launch is not harmed.
    run(module, "mistakes", 99, block=64)


def test_shared_memory_starts_with_noise(module: HostModule) -> None:
    one, other = (
        run(module, "mistakes", 8, block=64, shared_bytes=256, seed=seed) for seed in (1, 2)
    )
    assert (one != 0).all()
    assert (one != other).any()


def test_shared_variables_have_the_alignment_of_their_type(module: HostModule) -> None:
    assert run(module, "mistakes", 13, outputs=3, block=1).tolist() == [0, 0, 2]


def test_the_order_of_threads_shows_a_missing_barrier(module: HostModule) -> None:
    results = {
        run(module, "mistakes", 9, block=64, shared_bytes=256, seed=seed).tobytes()
        for seed in range(1, 9)
    }
    assert len(results) > 1


@pytest.mark.parametrize("seed", [0, 3])
def test_every_block_runs_once(module: HostModule, seed: int) -> None:
    got = run(module, "mistakes", 11, outputs=15, grid=(5, 3), seed=seed)
    assert got.tolist() == [y * 100 + x for y in range(3) for x in range(5)]


def test_launches_that_cannot_be(module: HostModule) -> None:
    with pytest.raises(LaunchError, match="there is no entry absent"):
        run(module, "absent", 0)
    with pytest.raises(LaunchError, match="takes a parameter of 40 bytes, not 4"):
        module.launch("compute", (1, 1), 32, type("Small", (ctypes.Structure,), _SMALL)())
    for bad in ({"grid": (0, 1)}, {"block": 1025}, {"grid": (1, 65536)}):
        with pytest.raises(LaunchError, match="out of range"):
            run(module, "mistakes", 99, **bad)
    with pytest.raises(LaunchError, match="out of range"):
        run(module, "mistakes", 99, shared_bytes=232449)


_SMALL: dict[str, Any] = {"_fields_": (("value", ctypes.c_int),)}


def test_sanitizer_reports_end_the_process() -> None:
    program = (
        "import sys; sys.path[:0] = ['tools', 'tests/tools', '.']\n"
        "import numpy as np, host_cuda, test_host_cuda as t\n"
        "library = host_cuda.build(t.SOURCE, entries=t.ENTRIES, sanitize=True)\n"
        "module = host_cuda.HostModule(library)\n"
        "for value in (5, 2**31 - 1):\n"
        "    x = np.array([value], np.uint32)\n"
        "    print(t.run(module, 'mistakes', 10, (x,))[0], flush=True)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.stdout == "6\n"
    assert result.returncode != 0
    assert re.search(
        r"intrinsics\.cu:\d+:\d+: runtime error: signed integer overflow", result.stderr
    )


def test_sources_that_do_not_compile_say_why(tmp_path: Path) -> None:
    source = tmp_path / "broken.cu"
    source.write_text("int broken( { return 0; }\n")
    with pytest.raises(UnusableError, match="broken does not compile:"):
        host_cuda.build(source, entries=("broken",))
    with pytest.raises(UnusableError, match="no module 'v0'; the modules are v1"):
        host_cuda.build("v0")


# ---- Tensor cores ---------------------------------------------------------------------------

# Which preset each unit is: (device, unit) -> (preset, operations with their formats).
_FP8_PAIRS = {
    3: ("e4m3", "e4m3"),
    4: ("e4m3", "e5m2"),
    5: ("e5m2", "e4m3"),
    6: ("e5m2", "e5m2"),
}
_FP16 = {1: ("fp16", "fp16"), 2: ("fp16", "fp16")}
_BF16 = {0: ("bf16", "bf16")}
PRESETS: dict[tuple[str, str], tuple[str, dict[int, tuple[str, str]]]] = {
    ("ampere", "fp16"): ("ampere_fp16_fp32", _FP16),
    ("ampere", "bf16"): ("ampere_bf16_fp32", _BF16),
    ("ada", "fp16"): ("ampere_fp16_fp32", _FP16),
    ("ada", "bf16"): ("ampere_bf16_fp32", _BF16),
    ("ada", "fp8"): ("ada", _FP8_PAIRS),
    ("hopper", "fp16"): ("hopper_fp16_fp32", _FP16),
    ("hopper", "bf16"): ("hopper_bf16_fp32", _BF16),
    ("hopper", "fp8"): ("b200_mma_sync", _FP8_PAIRS),
    ("blackwell", "fp16"): ("blackwell_fp16_fp32", _FP16),
    ("sm_120", "fp8"): ("sm_120_fp8_fp32", _FP8_PAIRS),
}


def finite_codes(rng: np.random.Generator, name: str, shape: tuple[int, int]) -> NDArray[Any]:
    """Random codes of a format, half of them near one exponent; no Inf and no NaN."""
    layout = FORMATS[name]
    dtype = np.uint8 if layout.bits == 8 else np.uint16
    codes = rng.integers(0, 2**layout.bits, shape).astype(dtype)
    near = np.uint16((layout.bias << layout.fraction_bits) ^ (1 << (layout.bits - 1)) - 1)
    mask = dtype((1 << layout.bits) - 1 & ~(int(near) if rng.integers(2) else 0))
    codes &= mask
    codes[~np.isfinite(layout.decode(codes))] = 1
    return codes


@pytest.mark.parametrize(("device", "unit"), PRESETS, ids="-".join)
def test_a_tensor_core_is_its_instruction_model(module: HostModule, device: str, unit: str) -> None:
    preset, operations = PRESETS[device, unit]
    model = get_preset(preset, warn=False)
    rng = np.random.default_rng(5)
    with module.tensor_core(TENSOR_CORES[device]):
        for operation, formats in operations.items():
            depth = {0: 16, 1: 16, 2: 8}.get(operation, 32)
            for _ in range(8):
                check_product(module, rng, (operation, depth), formats, model)


def check_product(
    module: HostModule,
    rng: np.random.Generator,
    instruction: tuple[int, int],
    formats: tuple[str, str],
    model: InstructionModel,
) -> None:
    operation, depth = instruction
    a, b = finite_codes(rng, formats[0], (16, depth)), finite_codes(rng, formats[1], (8, depth))
    c = (rng.standard_normal((16, 8)) * 10.0 ** rng.integers(-9, 9)).astype(np.float32)
    c[0, :4] = (0.0, -0.0, 1e-40, -1e-42)
    words = (a.view(np.uint32).reshape(-1), b.view(np.uint32).reshape(-1), c.view(np.uint32))
    got = run(module, "matrix", operation, words, outputs=128).reshape(16, 8)
    rows, columns = (
        torch.from_numpy(FORMATS[name].decode(codes))
        for name, codes in zip(formats, (a, b), strict=True)
    )
    expected = chained(
        rows[:, None, :].expand(16, 8, depth),
        columns[None, :, :].expand(16, 8, depth),
        torch.from_numpy(c),
        preset=model,
        fmt=formats,
    )
    assert_bitwise_equal(torch.from_numpy(got.view(np.float32)), expected, msg=f"{operation}")


def test_changed_properties_change_results(module: HostModule) -> None:
    """Each property of the simulated unit is one that a kernel could notice."""
    base = TENSOR_CORES["ampere"]["fp16"]
    variants: dict[str, Any] = {
        "dot_length": 4,
        "fraction_bits": 23,
        "result_fraction_bits": 22,
        "min_exponent": 3,
        "late": True,
        "align_rounding": 1,
        "result_rounding": 1,
        "flush_operands": True,
        "flush_results": True,
        "normalise": True,
        "interleaved": True,
    }
    cases = [unit_case(seed) for seed in range(12)]
    plain = [run(module, "matrix", 1, words, outputs=128) for words in cases]
    for name, value in variants.items():
        with module.tensor_core({"fp16": replace(base, **{name: value})}):
            changed = [run(module, "matrix", 1, words, outputs=128) for words in cases]
        assert any((x != y).any() for x, y in zip(plain, changed, strict=True)), name


def test_a_tensor_core_lasts_as_long_as_its_context(module: HostModule) -> None:
    words = unit_case(0)
    plain = run(module, "matrix", 1, words, outputs=128)
    other = {"fp16": replace(TENSOR_CORES["ampere"]["fp16"], fraction_bits=3)}

    def fail() -> None:
        with module.tensor_core(other):
            assert (run(module, "matrix", 1, words, outputs=128) != plain).any()
            with module.tensor_core(TENSOR_CORES["ampere"]):
                assert (run(module, "matrix", 1, words, outputs=128) == plain).all()
            assert (run(module, "matrix", 1, words, outputs=128) != plain).any()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (run(module, "matrix", 1, words, outputs=128) == plain).all()


def unit_case(seed: int) -> tuple[Bits, ...]:
    """Halves of every size, subnormals in half of the lines, and small accumulators."""
    rng = np.random.default_rng(seed)
    a, b = finite_codes(rng, "fp16", (16, 16)), finite_codes(rng, "fp16", (8, 16))
    a[4:8] |= 0x3C00
    b[2:4] |= 0x3C00
    a[4:8], b[2:4] = a[4:8] & 0xBFFF, b[2:4] & 0xBFFF
    a[8:] &= 0x83FF
    b[4:] &= 0x83FF
    c = rng.standard_normal((16, 8)).astype(np.float32)
    c[8:] = 0.0
    a[15], b[7], c[15, 7] = 0, 0, 1e-40
    words = (a.view(np.uint32).reshape(-1), b.view(np.uint32).reshape(-1), c.view(np.uint32))
    return tuple(words)


def test_special_operands_give_nan(module: HostModule) -> None:
    a, b = np.zeros((16, 16), np.uint16), np.zeros((8, 16), np.uint16)
    a[3, 5], b[6, 9] = 0x7C00, 0x7E01
    words = (a.view(np.uint32).reshape(-1), b.view(np.uint32).reshape(-1))
    got = run(module, "matrix", 1, (*words, np.zeros(128, np.uint32)), outputs=128).reshape(16, 8)
    assert (got[3] == NAN).all()
    assert (got[:, 6] == NAN).all()
    assert np.count_nonzero(got) == 8 + 16 - 1


def test_every_named_device_has_every_unit() -> None:
    for units in TENSOR_CORES.values():
        assert tuple(units) == UNITS


def test_an_unknown_module_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        host_cuda.main(["v4", "nonsense"])
    assert "no module 'nonsense'; the modules are v1," in capsys.readouterr().err

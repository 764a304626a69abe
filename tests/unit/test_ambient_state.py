"""No ambient state changes a bit: float environment of any thread, torch's modes and defaults."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import itertools
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import mmaemu
from mmaemu import model
from mmaemu.formats import FORMATS
from mmaemu.testing import operands

ROOT = Path(__file__).parents[2]
OUTPUTS = (
    *(torch.float32, torch.bfloat16, torch.float16),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
)
DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
SPLITS: dict[str, tuple[Any, ...]] = {
    "ada": (1, (3, "serial"), (4, "pairwise")),
    "hopper": (1, (2, "contiguous")),
}
# Constants of fenv.h; other machines have other ones.
ROUNDING: dict[str, int] = {
    "x86_64": {"down": 0x400, "up": 0x800, "toward zero": 0xC00},
    "aarch64": {"up": 0x400000, "down": 0x800000, "toward zero": 0xC00000},
}.get(platform.machine() if sys.platform != "win32" else "", {})


class Inputs(NamedTuple):
    """Everything the calls below take, made before any state changes."""

    gemms: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    scales: tuple[torch.Tensor, ...]
    accumulators: torch.Tensor
    vectors: tuple[tuple[str, str, torch.Tensor, torch.Tensor, torch.Tensor | None], ...]


def fp32(*patterns: int) -> torch.Tensor:
    signed = [pattern - (1 << 32) if pattern >> 31 else pattern for pattern in patterns]
    return torch.tensor(signed, dtype=torch.int32, device="cpu").view(torch.float32)


def steps_between_tiles() -> tuple[torch.Tensor, torch.Tensor]:
    """Operands whose tiles of 64 differ so much in size that fp32 sums of partials are rounded."""
    rng = np.random.default_rng(11)
    step = np.repeat(2.0 ** rng.choice([-4, -1, 0, 4], 10), 64)
    sides = []
    for rows in (8, 16):
        codes = FORMATS["e4m3"].encode(rng.uniform(-1.9, 1.9, (rows, 640)) * step)
        sides.append(torch.from_numpy(codes).view(DTYPES["e4m3"]))
    return sides[0], sides[1].t()


@cache
def inputs() -> Inputs:
    """Operands whose results hold subnormals, ties, NaN and Inf in every output type."""
    gemms = []
    families = ("gaussian", "spread", "subnormal", "nonfinite")
    for family, formats in zip(families, (("e4m3",) * 2, ("e5m2", "e4m3")) * 2, strict=True):
        a, b = operands.operands(family, 16, 16, 208, formats=(formats[0], formats[1]))
        left, right = torch.from_numpy(a), torch.from_numpy(b)
        gemms.append((left.view(DTYPES[formats[0]]), right.view(DTYPES[formats[1]]).t()))
    gemms.append(steps_between_tiles())
    # One wide enough for torch's thread pool.
    a, b = operands.operands("gaussian", 32, 1024, 48, formats=("e4m3", "e4m3"))
    wide = (torch.from_numpy(a).view(DTYPES["e4m3"]), torch.from_numpy(b).view(DTYPES["e4m3"]).t())
    # 1/3, 0.7, 2^-20, 2^-140: the last two make subnormal fp16, bf16 and fp32 results.
    scales = tuple(fp32(bits).reshape(()) for bits in (0x3EAAAAAB, 0x3F333333, 0x35800000, 0x200))
    spread = torch.arange(-(1 << 31), 1 << 31, 1 << 20, dtype=torch.int64, device="cpu")
    accumulators = (spread + 12345).to(torch.int32).view(torch.float32)
    tiny = [2.0**-75, 2.0**-70], [2.0**-55, -(2.0**-84)]
    a16, b16 = (torch.tensor([side], dtype=torch.float64, device="cpu") for side in tiny)
    zeros = torch.zeros((1, 16), dtype=torch.float64, device="cpu")
    vectors = (
        ("ampere_bf16_fp32", "bf16", a16, b16, None),
        ("ada", "e4m3", zeros, zeros + 448.0, fp32(0x400)),
    )
    return Inputs((*gemms, wide), scales, accumulators, vectors)


def accumulations(a: torch.Tensor, b: torch.Tensor) -> Iterator[torch.Tensor]:
    plans = [
        (profile, fast, splitk)
        for profile, splits in SPLITS.items()
        for fast, splitk in ((True, splits[0]), (False, splits[-1]), (True, splits[-1]))
    ]
    for backend in ("auto", "reference"):
        for profile, fast, splitk in plans:
            yield mmaemu.accumulate(
                a, b, use_fast_accum=fast, profile=profile, splitk=splitk, backend=backend
            )


def calls() -> Iterator[torch.Tensor]:
    """Results of every kind of public call."""
    given = inputs()
    third, part, small, tiny = given.scales
    for a, b in given.gemms:
        yield from accumulations(a, b.t())
        pairs = ((third, part), (small, part), (tiny, third))
        for (scale_a, scale_b), dtype in itertools.product(pairs, OUTPUTS):
            if dtype != torch.float8_e5m2 or a.dtype != b.dtype:
                yield mmaemu.scaled_mm(
                    *(a, b, scale_a, scale_b),
                    out_dtype=dtype,
                    scale_result=part,
                    profile="ada",
                    splitk=1,
                )
    for dtype, scale in itertools.product(OUTPUTS, given.scales):
        yield model.epilogue.apply(given.accumulators, scale, third, out_dtype=dtype)
    for preset, fmt, x, y, c in given.vectors:
        yield model.dot(x, y, c, preset=preset, fmt=fmt)


def digest() -> str:
    """A hash of all result bits, read as integers."""
    found = hashlib.sha256()
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    for result in calls():
        assert result.device.type == "cpu"
        view = result.detach().contiguous().view(integers[result.dtype.itemsize])
        found.update(f"{result.dtype} {tuple(result.shape)}".encode())
        found.update(view.numpy().tobytes())
    return found.hexdigest()


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Run on one thread where a test does not say otherwise: many small calls, and fewer cores."""
    before = torch.get_num_threads()
    with setting(torch.set_num_threads, 1, before):
        yield


@pytest.fixture(scope="module")
def expected() -> str:
    return digest()


@contextlib.contextmanager
def flushing() -> Iterator[None]:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no flush-to-zero mode")
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextlib.contextmanager
def rounding(direction: str) -> Iterator[None]:
    library = ctypes.CDLL(None)
    before = library.fegetround()
    assert library.fesetround(ROUNDING[direction]) == 0
    try:
        yield
    finally:
        library.fesetround(before)


@contextlib.contextmanager
def setting(set_: Callable[[Any], Any], value: Any, before: Any) -> Iterator[None]:
    set_(value)
    try:
        yield
    finally:
        set_(before)


def default_dtype(dtype: torch.dtype) -> AbstractContextManager[None]:
    return setting(torch.set_default_dtype, dtype, torch.get_default_dtype())


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    memory: Any = torch.utils.deterministic
    fill = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        memory.fill_uninitialized_memory = fill


STATES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "flush to zero": flushing,
    "default dtype float64": lambda: default_dtype(torch.float64),
    "default dtype bfloat16": lambda: default_dtype(torch.bfloat16),
    "default dtype float16": lambda: default_dtype(torch.float16),
    "device meta": lambda: torch.device("meta"),
    "default device meta": lambda: setting(torch.set_default_device, "meta", None),
    "deterministic": deterministic,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "inference mode": torch.inference_mode,
    "no grad": torch.no_grad,
    "medium matmul precision": lambda: setting(
        torch.set_float32_matmul_precision, "medium", torch.get_float32_matmul_precision()
    ),
    "no oneDNN": lambda: torch.backends.mkldnn.flags(enabled=False),
    "two threads": lambda: setting(torch.set_num_threads, 2, 1),
    "three threads": lambda: setting(torch.set_num_threads, 3, 1),
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_of_torch_changes_nothing(name: str, expected: str) -> None:
    with STATES[name]():
        found = digest()
    assert found == expected


@pytest.mark.parametrize("direction", ["up", "down", "toward zero"])
def test_the_rounding_mode_changes_nothing(direction: str, expected: str) -> None:
    if direction not in ROUNDING:
        pytest.skip(f"fesetround is not known on {platform.machine()}")
    one, little = 1.0, 2.0**-60
    with rounding(direction):
        changed = (one + little != one, -one - little != -one, one - little != one)
        found = digest()
    assert (
        changed
        == {
            "up": (True, False, False),
            "down": (False, True, True),
            "toward zero": (False, False, True),
        }[direction]
    )
    assert found == expected


def test_all_at_once_and_in_another_thread(expected: str) -> None:
    def work() -> str:
        with contextlib.ExitStack() as states:
            for name in ("flush to zero", "default dtype float64", "autocast", "inference mode"):
                states.enter_context(STATES[name]())
            if ROUNDING:
                states.enter_context(rounding("up"))
            return digest()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result() == expected


def test_a_thread_that_starts_under_flush_to_zero_inherits_it_in_vain(expected: str) -> None:
    with flushing(), ThreadPoolExecutor(1) as pool:
        found = pool.submit(digest).result()
    assert found == expected


def test_eight_callers_at_once(expected: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: digest(), range(8)))
    assert set(found) == {expected}


def report_from_a_disturbed_process() -> None:
    """In a fresh process: only torch's own pool threads flush to zero and round upward.

    A thread inherits the float environment of the one that starts it. Then eight callers race for
    the first call of the process.
    """
    library = ctypes.CDLL(None)
    torch.set_flush_denormal(True)
    library.fesetround(ROUNDING.get("up", 0))
    torch.set_num_threads(4)
    subnormal = torch.full((1 << 20,), 3, dtype=torch.int32).view(torch.float32)
    torch.mul(subnormal, 1.0)
    library.fesetround(0)
    torch.set_flush_denormal(False)
    flushed = int((torch.mul(subnormal, 1.0).view(torch.int32) == 0).sum())
    inputs()
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: digest(), range(8)))
    print(0 < flushed < subnormal.numel(), *found)  # noqa: T201 - the report


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="no flush-to-zero mode here")
def test_racing_first_calls_with_a_float_environment_of_the_pool_workers_only(
    expected: str,
) -> None:
    run = f"runpy.run_path({str(Path(__file__))!r})"
    code = f"import runpy; {run}[{report_from_a_disturbed_process.__name__!r}]()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", expected]

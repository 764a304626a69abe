"""Every CPU kernel against the reference backend, bit for bit.

The table of kernels times operand families, shapes and plans. Operands lie at odd addresses in
blocks full of NaN codes, and outputs between guard words, so that nothing beside them may count
or change. Failures name the kernel, the case and its seed, and show both bit patterns.

With MMAEMU_TEST_CPU_AGENT the kernels are those of a library in another process, which an emulator
runs: `nox -s aarch64`.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

import numpy as np
import pytest
import torch

from harness import (
    CPU,
    PAIRS,
    PLANS,
    SHAPES,
    among_guards,
    edges,
    every_pair,
    expected,
    make_request,
)
from mmaemu import _settings
from mmaemu.backends import reference
from mmaemu.backends.cpu import CpuBackend, backends
from mmaemu.backends.cpu.library import KERNELS
from mmaemu.formats import FORMATS
from mmaemu.gemm import epilogue as epilogues
from mmaemu.gemm import execute
from mmaemu.gemm.request import AccumulateRequest
from mmaemu.instruction.chain import chain
from mmaemu.instruction.model import InstructionModel
from mmaemu.instruction.models import get_preset
from mmaemu.testing import assert_bitwise_equal
from mmaemu.testing.operands import FAMILIES, operands
from remote import RemoteLibrary, use

PRESETS = ("ada", "hopper", "b200_mma_sync", "tcgen05_f8f6f4_fp32")
MODELS = tuple(get_preset(name, warn=False) for name in PRESETS)


def _remote() -> RemoteLibrary | None:
    path = _settings.path("TEST_CPU_AGENT")
    return None if path is None else use(path)


REMOTE: Final = _remote()
"""The library in another process, None where it is that of this one."""


@dataclass(frozen=True)
class Kernel:
    """One row of the table: an instruction set and a kernel of the library."""

    backend: CpuBackend
    kernel: str

    def __str__(self) -> str:
        return f"{self.backend.name}/{self.kernel}"


def _available() -> Iterator[Kernel]:
    for backend in backends():
        if backend.status(CPU).available:
            scalar = backend.isa == "scalar"
            for kernel in KERNELS:
                if (kernel == "scalar") == scalar:
                    yield Kernel(backend, kernel)


TABLE = tuple(_available())
FAST = tuple(row for row in TABLE if row.kernel != "scalar")


def test_there_is_a_library_for_this_platform() -> None:
    assert FAST, [backend.status(CPU).reason for backend in backends()]


def can_run(row: Kernel, request: AccumulateRequest) -> bool:
    """Whether the kernel does the request's model; the widest one does all."""
    model = request.model
    if row.kernel == "floor_fma":
        return model.fraction_bits == 13 and not model.late_c
    if row.kernel == "floor_fma_double":
        return model.fraction_bits >= 13 and not model.late_c
    # cvtt sums in 32 bits.
    return row.kernel != "cvtt" or (model.name != "tcgen05_f8f6f4_fp32" and model.dot_length <= 32)


def run(row: Kernel, request: AccumulateRequest, *, threads: int = 1) -> torch.Tensor:
    """The kernel's result, computed between guards at an odd place."""

    def compute(out: torch.Tensor) -> None:
        assert row.backend.run(request, out, threads, row.kernel) == row.kernel

    return among_guards(request.M, request.N, torch.float32, compute, what=str(row))


def check(request: AccumulateRequest, what: str, *, table: tuple[Kernel, ...] = TABLE) -> None:
    wanted = expected(request)
    for row in table:
        if can_run(row, request):
            assert_bitwise_equal(run(row, request), wanted, msg=f"{row} {what}")


@pytest.mark.parametrize("formats", PAIRS, ids="-".join)
@pytest.mark.parametrize("family", FAMILIES)
def test_families_and_plans(family: str, formats: tuple[str, str]) -> None:
    first = list(FAMILIES).index(family) + PAIRS.index(formats)
    for index, (model, plan) in enumerate(product(MODELS, PLANS)):
        shape = SHAPES[(first + index) % len(SHAPES)]
        codes = operands(family, *shape, formats=formats, seed=index)
        request = make_request(codes, formats, model, plan)
        check(request, f"{family} {formats} {shape} {model.name} {plan} seed {index}")


@pytest.mark.parametrize("seed", range(2))
def test_shapes_at_the_edges(seed: int) -> None:
    for case in edges(seed, 40):
        codes = operands("uniform", *case.shape, formats=case.formats, seed=case.seed)
        model = MODELS[case.seed % 2]
        request = make_request(
            codes, case.formats, model, case.plan, pad=case.pad, offset=case.offset
        )
        check(request, f"{case} seed {seed}", table=FAST)


def test_a_k_that_is_packed_piece_by_piece() -> None:
    codes = operands("uniform", 5, 40, 4096 + 40)
    for model in MODELS:
        check(make_request(codes, PAIRS[0], model, PLANS[1]), f"long K, {model.name}", table=FAST)


@pytest.mark.parametrize("formats", PAIRS, ids="-".join)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_every_pair_of_codes(model: InstructionModel, formats: tuple[str, str]) -> None:
    """Row i ends in code i, column j in code j: all lone products, on zero and on accumulators."""
    step = model.dot_length
    for lead, family in ((0, "uniform"), (step, "uniform"), (step, "spread")):
        codes = every_pair(formats, lead, family)
        request = make_request(codes, formats, model, PLANS[0])
        check(request, f"all pairs {formats} {model.name} after {lead} {family}", table=FAST)


def test_random_bytes_in_every_place() -> None:
    rng = np.random.default_rng(11)
    for formats in PAIRS:
        codes = (
            rng.integers(0, 256, (20, 300), dtype=np.uint8),
            rng.integers(0, 256, (80, 300), dtype=np.uint8),
        )
        for model in MODELS:
            check(make_request(codes, formats, model, PLANS[3]), f"bytes {formats} {model.name}")


SMALL_FORMATS = tuple(
    pair for pair in get_preset("tcgen05_f8f6f4_fp32", warn=False).inputs if pair not in PAIRS
)


@pytest.mark.parametrize("formats", SMALL_FORMATS, ids="-".join)
def test_formats_that_no_fp8_gemm_has(formats: tuple[str, str]) -> None:
    """Every code, against the readable chain: the reference backend takes FP8 alone."""
    model = get_preset("tcgen05_f8f6f4_fp32", warn=False)
    rng = np.random.default_rng(SMALL_FORMATS.index(formats))
    codes, values = [], []
    for name, rows in zip(formats, (9, 37), strict=True):
        fmt = FORMATS[name]
        finite = np.flatnonzero(np.isfinite(fmt.decode(np.arange(1 << fmt.bits, dtype=np.uint8))))
        codes.append(rng.choice(finite, (rows, 600)).astype(np.uint8))
        values.append(torch.from_numpy(fmt.decode(codes[-1]).astype(np.float64)))
    a, b = values
    wanted = chain(a[:, None], b[None], None, model, formats=formats)
    request = make_request((codes[0], codes[1]), formats, model, PLANS[0])
    for row in TABLE:
        if row.kernel in {"scalar", "wide"}:
            assert_bitwise_equal(run(row, request), wanted, msg=f"{row} {formats}")


def test_more_rows_and_columns_than_a_tile() -> None:
    for shape in ((261, 40, 70), (5, 1061, 70)):
        codes = operands("spread", *shape, seed=9)
        for model in MODELS:
            request = make_request(codes, PAIRS[0], model, PLANS[2])
            check(request, f"{shape} {model.name}", table=FAST)


@pytest.mark.skipif(REMOTE is not None, reason="operands that are far apart are not copied")
def test_rows_that_are_more_than_31_bits_away() -> None:
    """Rows of a lie 2^30 bytes apart in memory that is for the most part never touched."""
    codes = operands("uniform", 4, 40, 100, seed=10)
    near = make_request(codes, PAIRS[0], MODELS[0], PLANS[1])
    wanted = expected(near)
    block = torch.empty(3 * (1 << 30) + 100, dtype=torch.uint8, device=CPU)
    far = block.as_strided((4, 100), (1 << 30, 1)).copy_(near.a)
    for row in FAST:
        for request in (replace(near, a=far), replace(near, b=far, a=near.b)):
            result = run(row, request)
            same = result if request.a is far else result.t().contiguous()
            assert_bitwise_equal(same, wanted, msg=str(row))


OWN_MODELS = (
    InstructionModel("late", 16, 13, 13, accumulator="late"),
    InstructionModel("floor", 16, 13, 13, min_exponent=-10),
    InstructionModel("short", 4, 23, 23, min_exponent=-131),
    InstructionModel("middle", 8, 24, 23, min_exponent=-132),
    InstructionModel("wide", 32, 25, 23, min_exponent=-133),
    InstructionModel("widest", 64, 35, 23),
    InstructionModel("coarse", 32, 6, 5),
)


@pytest.mark.parametrize("model", OWN_MODELS, ids=lambda model: model.name)
def test_models_of_a_user(model: InstructionModel) -> None:
    for index, family in enumerate(("uniform", "spread", "cancelling", "subnormal")):
        formats = PAIRS[index]
        codes = operands(family, 9, 37, 150, formats=formats, seed=index)
        request = make_request(codes, formats, model, PLANS[index])
        wanted = expected(request)
        for row in TABLE:
            if row.backend.refusal(request) is None:
                out = torch.empty_like(wanted)
                row.backend.accumulate(request, out)
                assert_bitwise_equal(out, wanted, msg=f"{row} {model.name} {family}")


def test_any_number_of_threads_gives_the_same_bits() -> None:
    codes = operands("gaussian", 70, 700, 512, seed=3)
    request = make_request(codes, PAIRS[0], MODELS[1], PLANS[1])
    for row in FAST:
        one = run(row, request)
        for threads in (2, 3, 8):
            assert_bitwise_equal(run(row, request, threads=threads), one, msg=f"{row} {threads}")


def _collect(results: list[torch.Tensor], row: Kernel, request: AccumulateRequest) -> None:
    results.append(run(row, request))


def test_concurrent_callers() -> None:
    codes = operands("uniform", 33, 90, 256, seed=4)
    request = make_request(codes, PAIRS[0], MODELS[0], PLANS[2])
    wanted = expected(request)
    for row in FAST:
        results: list[torch.Tensor] = []
        workers = [
            threading.Thread(target=_collect, args=(results, row, request)) for _ in range(8)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for result in results:
            assert_bitwise_equal(result, wanted, msg=str(row))
        assert len(results) == len(workers)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.skipif(REMOTE is not None, reason="the process with the library cannot be forked")
def test_after_a_fork() -> None:
    codes = operands("uniform", 40, 300, 512, seed=5)
    request = make_request(codes, PAIRS[0], MODELS[0], PLANS[0])
    wanted = [run(row, request, threads=2) for row in FAST]
    child = os.fork()
    if child == 0:
        same = all(
            torch.equal(run(row, request, threads=2), result)
            for row, result in zip(FAST, wanted, strict=True)
        )
        os._exit(0 if same else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0


UPWARD = {"x86_64": 0x800, "aarch64": 0x400000}
"""As fesetround has it."""
UPWARD_AND_FLUSHING = {"x86_64": 0x1F80 | 0xC040, "aarch64": 1 << 24 | 1 << 22}
"""MXCSR, FPCR."""


@contextmanager
def upward_and_flushing() -> Iterator[Callable[[], int]]:
    """The thread that calls the library rounds upward and flushes subnormals; gives its mode."""
    if REMOTE is not None:
        usual = REMOTE.number("get_mode")
        REMOTE.number("set_mode", UPWARD_AND_FLUSHING[REMOTE.machine])
        try:
            yield lambda: REMOTE.number("get_mode")
        finally:
            REMOTE.number("set_mode", usual)
        return
    library = ctypes.CDLL(None)
    supported = torch.set_flush_denormal(True)
    library.fesetround(UPWARD[os.uname().machine])
    tiny = torch.tensor([1], dtype=torch.int32).view(torch.float32)

    def mode() -> int:
        """The rounding mode, plus one where subnormals survive a multiplication."""
        survives = int((tiny * 1.0).view(torch.int32).item() != 0)
        return int(library.fegetround()) + survives

    try:
        yield mode
    finally:
        library.fesetround(0)
        if supported:
            torch.set_flush_denormal(False)


@pytest.mark.skipif(not hasattr(os, "uname"), reason="sets the rounding mode through libm")
def test_rounding_and_flushing_of_the_caller() -> None:
    codes = operands("spread", 9, 70, 300, formats=PAIRS[3], seed=6)
    request = make_request(codes, PAIRS[3], MODELS[0], PLANS[1])
    able = [row for row in TABLE if can_run(row, request)]
    with upward_and_flushing() as mode:
        before = mode()
        results = [run(row, request) for row in able]
        assert mode() == before
    wanted = expected(request)
    for row, result in zip(able, results, strict=True):
        assert_bitwise_equal(result, wanted, msg=str(row))


SCALES = (-0.37, -(2.0**-146), 2.0**100, 0.0, float("inf"), float("nan"))
OUTPUTS = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)


@pytest.mark.parametrize("out_dtype", OUTPUTS, ids=str)
@pytest.mark.parametrize("size", [(17, 33, 96), (64, 257, 96)], ids=["one call", "in parts"])
def test_the_fused_epilogue(out_dtype: torch.dtype, size: tuple[int, int, int]) -> None:
    backend = FAST[0].backend
    for family, scale, extra in product(("spread", "nonfinite"), SCALES, (None, 2.0**-140)):
        codes = operands(family, *size, formats=PAIRS[1], seed=7)
        request = make_request(codes, PAIRS[1], MODELS[0], PLANS[0])
        epilogue = epilogues.prepare(
            torch.tensor(scale, dtype=torch.float32),
            torch.tensor(1.0, dtype=torch.float32),
            out_dtype=out_dtype,
            scale_result=None if extra is None else torch.tensor(extra, dtype=torch.float32),
        )
        wanted = execute.execute(backend.accumulate, request, epilogue)
        what = f"{family} {scale} {extra}"
        assert_bitwise_equal(backend.execute(request, epilogue), wanted, msg=what)


@pytest.mark.parametrize("place", [0, 1], ids=["in a", "in b"])
def test_a_single_infinity_is_noticed(place: int) -> None:
    formats = (("e5m2", "e4m3"), ("e4m3", "e5m2"))[place]
    codes = operands("gaussian", 17, 33, 96, formats=formats, seed=8)
    codes[place][3, 70] = 0x7C
    request = make_request(codes, formats, MODELS[0], PLANS[0])
    one = torch.ones((), dtype=torch.float32)
    epilogue = epilogues.prepare(one, one, out_dtype=torch.float32)
    wanted = execute.execute(reference.accumulate, request, epilogue)
    assert_bitwise_equal(FAST[0].backend.execute(request, epilogue), wanted)
    assert bool(torch.isinf(wanted).any())

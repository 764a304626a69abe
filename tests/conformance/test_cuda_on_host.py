"""Every CUDA kernel, run on the CPU thread by thread, against the reference backend, bit for bit.

The table of kernels in specs.py times operand families, pairs of formats, shapes, plans and
outputs, as harness.py lays them out. What is not marked t3 is a selection for every change; tier
t3 runs all of it, the threads in a random order, and once more under UBSan, whose report ends the
process: `-p no:xdist -s` shows it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, cast

import numpy as np
import pytest
import torch

import host_cuda
from findings import UnusableError
from harness import (
    CPU,
    PAIRS,
    PLANS,
    SHAPES,
    Codes,
    Pair,
    Plan,
    Shape,
    among_guards,
    edges,
    every_pair,
    make_request,
)
from mmaemu.backends import reference
from mmaemu.backends.cuda import launch
from mmaemu.backends.cuda.loader import Module
from mmaemu.backends.cuda.specs import KERNELS, KernelSpec
from mmaemu.gemm import epilogue as epilogues
from mmaemu.gemm import execute
from mmaemu.gemm.plan import GemmPlan
from mmaemu.gemm.request import AccumulateRequest
from mmaemu.gemm.splitk import UNSPLIT, SplitK
from mmaemu.instruction.models import get_preset
from mmaemu.testing import assert_bitwise_equal
from mmaemu.testing.operands import FAMILIES, operands


def has_compiler() -> bool:
    try:
        return bool(host_cuda.compiler())
    except UnusableError:
        return False


pytestmark = pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.module)
every_family = pytest.mark.parametrize("family", FAMILIES)
every_formats = pytest.mark.parametrize("formats", PAIRS, ids="-".join)


@dataclass(frozen=True)
class OnHost:
    """What the launcher takes for a loaded module; a seed other than 0 shuffles the threads."""

    module: host_cuda.HostModule
    seed: int

    def launch(
        self,
        entry: str,
        *,
        grid: tuple[int, int],
        threads: int,
        shared_bytes: int,
        stream: int,
        parameter: ctypes.Structure,
    ) -> None:
        assert stream == 0
        self.module.launch(
            entry, grid, threads, parameter, shared_bytes=shared_bytes, seed=self.seed
        )


def place(kernel: KernelSpec, k: int, *, pad: int, offset: int) -> dict[str, int]:
    """Padding and address as wanted, or the nearest ones that the kernel takes."""
    if kernel.alignment == 1:
        return {"pad": pad, "offset": offset}
    return {"pad": -k % kernel.alignment, "offset": 0}


def request_of(
    kernel: KernelSpec,
    codes: tuple[Codes, Codes],
    formats: Pair,
    plan: Plan,
    *,
    pad: int = 5,
    offset: int = 3,
) -> AccumulateRequest:
    where = place(kernel, codes[0].shape[1], pad=pad, offset=offset)
    request = make_request(codes, formats, get_preset(kernel.model, warn=False), plan, **where)
    if kernel.alignment > 1:  # Of both, where the padding of b is one more.
        b = torch.full((request.N, request.K + where["pad"] + 16), 0xFF, dtype=torch.uint8)
        shift = -b.data_ptr() % kernel.alignment
        wide = b.view(-1)[shift:][: request.N * (request.K + where["pad"])]
        view = wide.view(request.N, request.K + where["pad"])[:, : request.K]
        view.copy_(request.b)
        request = AccumulateRequest(
            request.a, view, *formats, request.model, GemmPlan(request.K, *plan)
        )
    return request


def run(
    kernel: KernelSpec,
    request: AccumulateRequest,
    *,
    out_dtype: torch.dtype = torch.float32,
    scales: launch.Scales | None = None,
    sanitize: bool = False,
    seed: int = 0,
    pad: int = 3,
) -> torch.Tensor:
    """The kernel's outputs, or its accumulators where there are no scales."""
    module = OnHost(host_cuda.load(kernel.module, sanitize=sanitize), seed)
    wanted = scales or launch.Scales()

    def compute(out: torch.Tensor) -> None:
        launch.run(cast("Module", module), kernel, request, out, wanted, stream=0)

    before = request.a.clone(), request.b.clone()
    out = among_guards(
        request.M, request.N, out_dtype, compute, pad=pad, what=f"{kernel.module} {request.plan}"
    )
    assert torch.equal(request.a, before[0])
    assert torch.equal(request.b, before[1])
    return out


def check(kernel: KernelSpec, request: AccumulateRequest, what: str, **how: Any) -> None:
    """Accumulators, Inf and NaN codes included."""
    wanted = execute.accumulate(reference.accumulate, request)
    message = f"{kernel.module} {what} {how}"
    assert_bitwise_equal(run(kernel, request, **how), wanted, msg=message)


def takes(kernel: KernelSpec, formats: Pair, k: int = 1) -> bool:
    return formats in kernel.formats and (kernel.k_max is None or k <= kernel.k_max)


def cases(kernel: KernelSpec, family: str, formats: Pair) -> Iterator[tuple[int, Shape, Plan]]:
    """Every plan with one of the shapes, another one for each family and pair."""
    first = list(FAMILIES).index(family) + PAIRS.index(formats)
    for index, plan in enumerate(PLANS):
        shape = SHAPES[(first + index) % len(SHAPES)]
        if takes(kernel, formats, shape[2]):
            yield index, shape, plan


def check_family(
    kernel: KernelSpec, family: str, formats: Pair, indices: range, **how: Any
) -> None:
    for index, shape, plan in cases(kernel, family, formats):
        if index in indices:
            codes = operands(family, *shape, formats=formats, seed=index)
            what = f"{family} {formats} {shape} {plan} seed {index}"
            check(kernel, request_of(kernel, codes, formats, plan), what, **how)


@every_kernel
@every_family
def test_families_in_turn(kernel: KernelSpec, family: str) -> None:
    number = list(FAMILIES).index(family)
    formats = kernel.formats[number % len(kernel.formats)]
    check_family(kernel, family, formats, range(number % 4, number % 4 + 5, 4))


@pytest.mark.t3
@every_formats
@every_family
@every_kernel
def test_families_and_plans(kernel: KernelSpec, family: str, formats: Pair) -> None:
    check_family(kernel, family, formats, range(len(PLANS)), seed=7)


@pytest.mark.t3
@every_formats
@every_family
@every_kernel
def test_families_under_ubsan(kernel: KernelSpec, family: str, formats: Pair) -> None:
    check_family(kernel, family, formats, range(1, len(PLANS), 3), sanitize=True, seed=11)


def check_edges(kernel: KernelSpec, which: int, count: int, **how: Any) -> None:
    for case in edges(which, count):
        if takes(kernel, case.formats, case.shape[2]):
            codes = operands("uniform", *case.shape, formats=case.formats, seed=case.seed)
            request = request_of(
                kernel, codes, case.formats, case.plan, pad=case.pad, offset=case.offset
            )
            check(kernel, request, f"{case}", **how)


@every_kernel
def test_a_few_shapes_at_the_edges(kernel: KernelSpec) -> None:
    check_edges(kernel, 0, 12)


@pytest.mark.t3
@pytest.mark.parametrize("seed", range(1, 5))
@every_kernel
def test_shapes_at_the_edges(kernel: KernelSpec, seed: int) -> None:
    check_edges(kernel, seed, 60, seed=seed, sanitize=seed == 1)


def check_pairs(kernel: KernelSpec, formats: Pair, lead: int, family: str) -> None:
    if takes(kernel, formats, lead + 1):
        request = request_of(kernel, every_pair(formats, lead, family), formats, PLANS[0])
        check(kernel, request, f"all pairs {formats} after {lead} {family}")


@every_formats
@every_kernel
def test_every_pair_of_codes_on_zero(kernel: KernelSpec, formats: Pair) -> None:
    """Row i is code i, column j code j: all lone products."""
    check_pairs(kernel, formats, 0, "uniform")


@pytest.mark.t3
@pytest.mark.parametrize("family", ["uniform", "spread", "subnormal", "saturated"])
@every_formats
@every_kernel
def test_every_pair_of_codes_on_accumulators(
    kernel: KernelSpec, formats: Pair, family: str
) -> None:
    check_pairs(kernel, formats, get_preset(kernel.model, warn=False).dot_length, family)


@every_formats
@every_kernel
def test_random_bytes_in_every_place(kernel: KernelSpec, formats: Pair) -> None:
    """With 160 products nearly every sum of e5m2 is NaN, with 20 hardly any of e4m3."""
    rng = np.random.default_rng(11)
    for depth in (160, 20):
        if takes(kernel, formats, depth):
            a, b = (rng.integers(0, 256, (rows, depth), dtype=np.uint8) for rows in (20, 70))
            check(kernel, request_of(kernel, (a, b), formats, PLANS[3]), f"{depth} {formats}")


@every_formats
@every_kernel
def test_inf_and_nan_codes_one_at_a_time(kernel: KernelSpec, formats: Pair) -> None:
    """One special code per row, opposite every class of finite code and every special one."""
    if takes(kernel, formats, 9):
        special = np.array([0x7C, 0xFC, 0x7D, 0x7F, 0xFF, 0x7E, 0x00], dtype=np.uint8)
        partner = np.array([0x00, 0x80, 0x01, 0x81, 0x38, 0xB8, 0x7C, 0xFC, 0x7F], dtype=np.uint8)
        a = np.full((7, 9), 0x38, dtype=np.uint8)
        a[:, 8] = special
        a[:, 2] = special[::-1]
        b = np.full((9, 9), 0xB8, dtype=np.uint8)
        b[:, 8] = partner
        b[4, 2] = 0x00
        check(kernel, request_of(kernel, (a, b), formats, PLANS[0]), f"special codes {formats}")


@every_kernel
def test_many_products_of_the_largest_exponent(kernel: KernelSpec) -> None:
    """However many there are, they must not pass for a larger one: every second k, or all."""
    formats = kernel.formats[0]
    codes = operands("uniform", 8, 8, 64, formats=formats, seed=3)
    for one, other in zip(*codes, strict=True):
        one[::2] = other[::2] = 0x78
        other[1::2] &= 0x0F
    for rows in (slice(None, None, 2), slice(1, None, 2)):
        both = codes[0][rows], codes[1]
        check(kernel, request_of(kernel, both, formats, PLANS[0]), f"largest exponents {rows}")


def test_thousands_of_k_and_huge_accumulators() -> None:
    """The block exponent passes every product's and the limits of the byte arithmetic."""
    for kernel in KERNELS:
        formats = kernel.formats[-1]
        # 2^44 needs 11000 of the largest products of e5m2; those of e4m3 stay far below.
        k = min(kernel.k_max or 20000, 20000 if "e5m2" in formats else 2000)
        codes = operands("saturated", 2, 3, k, formats=formats, seed=1)
        a, b = (each & np.uint8(0x7F) for each in codes)
        # Then zeros opposite the least negative number, on either side, and smaller products.
        for one, other, part in ((a, b, 16), (b, a, 17)):
            one[:, part * k // 20 : (part + 1) * k // 20] = 0x00
            other[:, part * k // 20 : (part + 1) * k // 20] = 0x81
        b[:, 18 * k // 20 :] |= 0x80
        a[:, 18 * k // 20 :: 3] = 0x81
        check(kernel, request_of(kernel, (a, b), formats, PLANS[0]), f"K = {k}")


@every_kernel
def test_partial_results_of_every_size(kernel: KernelSpec) -> None:
    """Every 64 of K has an order of magnitude of its own, so that every addition rounds."""
    rng = np.random.default_rng(17)
    formats = kernel.formats[0]
    a, b = operands("uniform", 5, 7, 1100, formats=formats, seed=6)
    top = rng.integers(0, 16, 18).repeat(64)[:1100].astype(np.uint8) << np.uint8(3)
    for codes in (a, b):
        codes[:] = np.where(top == 0x78, codes & 0x87, codes & 0x87 | top)
    for plan in PLANS:
        check(kernel, request_of(kernel, (a, b), formats, plan), f"{plan}")


SCALES = (-0.37, -(2.0**-146), 2.0**100, 0.0, float("inf"), float("nan"))


def check_output(kernel: KernelSpec, out_dtype: torch.dtype, **how: Any) -> None:
    formats = kernel.formats[-1]
    for family, scale, extra in product(("spread", "nonfinite"), SCALES, (None, 2.0**-140)):
        codes = operands(family, 17, 33, 96, formats=formats, seed=7)
        request = request_of(kernel, codes, formats, PLANS[1])
        scales = launch.Scales(
            *(
                None if each is None else torch.tensor([each], dtype=torch.float32, device=CPU)
                for each in (scale, 1.5, extra)
            )
        )
        assert scales.scale_a is not None
        assert scales.scale_b is not None
        epilogue = epilogues.prepare(
            scales.scale_a, scales.scale_b, out_dtype=out_dtype, scale_result=scales.scale_result
        )
        wanted = execute.execute(reference.accumulate, request, epilogue)
        result = run(kernel, request, out_dtype=out_dtype, scales=scales, **how)
        what = f"{kernel.module} {family} {scale} {extra}"
        assert_bitwise_equal(result, wanted, msg=what)


@pytest.mark.parametrize("out_dtype", launch.OUTPUTS, ids=str)
@every_kernel
def test_outputs(kernel: KernelSpec, out_dtype: torch.dtype) -> None:
    check_output(kernel, out_dtype)


@pytest.mark.t3
@pytest.mark.parametrize("out_dtype", launch.OUTPUTS, ids=str)
@every_kernel
def test_outputs_under_ubsan(kernel: KernelSpec, out_dtype: torch.dtype) -> None:
    check_output(kernel, out_dtype, sanitize=True, seed=3)


def far_apart(codes: Codes, distance: int) -> torch.Tensor:
    """Two rows `distance` bytes apart, in memory of which only they are touched."""
    block = torch.from_numpy(np.zeros(distance + codes.shape[1], dtype=np.uint8))
    view = block.as_strided(codes.shape, (distance, 1))
    return view.copy_(torch.from_numpy(codes))


@every_kernel
def test_offsets_beyond_32_bits(kernel: KernelSpec) -> None:
    formats = kernel.formats[0]
    codes = operands("uniform", 2, 2, 64, formats=formats, seed=2)
    distance = (1 << 32) + 64
    model = get_preset(kernel.model, warn=False)
    request = AccumulateRequest(
        far_apart(codes[0], distance),
        far_apart(codes[1], distance),
        *formats,
        model,
        GemmPlan(64, UNSPLIT, None),
    )
    wanted = execute.accumulate(reference.accumulate, request)
    block = torch.from_numpy(np.zeros((1 << 31) + 2, dtype=np.uint16)).view(torch.bfloat16)
    out = block.as_strided((2, 2), (1 << 31, 1))
    one = torch.ones(1, dtype=torch.float32, device=CPU)
    module = cast("Module", OnHost(host_cuda.load(kernel.module), 0))
    launch.run(module, kernel, request, out, launch.Scales(one, one), stream=0)
    epilogue = epilogues.prepare(one, one, out_dtype=torch.bfloat16)
    epilogues.finish(wanted, epilogue, expected := torch.empty_like(wanted, dtype=torch.bfloat16))
    assert_bitwise_equal(out.clone(), expected, msg=kernel.module)


@every_kernel
def test_more_slices_than_tiles(kernel: KernelSpec) -> None:
    formats = kernel.formats[0]
    for plan in (
        (SplitK(9, "serial"), 128),
        (SplitK(7, "pairwise"), None),
        (SplitK(6, "contiguous"), None),
    ):
        codes = operands("gaussian", 3, 5, 161, formats=formats, seed=4)
        check(kernel, request_of(kernel, codes, formats, plan), f"{plan}")


def test_the_order_of_threads_changes_nothing() -> None:
    for kernel in KERNELS:
        codes = operands("uniform", 66, 66, 100, formats=kernel.formats[0], seed=9)
        request = request_of(kernel, codes, kernel.formats[0], PLANS[5])
        wanted = run(kernel, request)
        for seed in (1, 2, 3):
            assert_bitwise_equal(run(kernel, request, seed=seed), wanted, msg=f"{kernel} {seed}")

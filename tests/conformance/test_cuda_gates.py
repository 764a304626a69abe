"""The gates of v9 and tc3 against simulated tensor cores, and the kernels on the same ones.

A gate accepts a tensor core if and only if the kernel that stands on it computes the right bits
there: each row of the table is a tensor core with other properties, and what must come of it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import host_cuda
from findings import UnusableError
from host_cuda import TENSOR_CORES, HostModule, TensorCore
from mmaemu.backends import reference
from mmaemu.backends.cuda import probes
from mmaemu.backends.cuda.launch import Parameter
from mmaemu.backends.cuda.specs import KERNELS, KernelSpec
from mmaemu.gemm.plan import GemmPlan
from mmaemu.gemm.request import AccumulateRequest
from mmaemu.gemm.splitk import UNSPLIT
from mmaemu.instruction.models import get_preset
from mmaemu.testing.operands import operands

Units = Mapping[str, TensorCore]
Results = NDArray[np.uint32]
ACCUMULATOR = -1
SHAPE = (40, 64, 144)
FAMILIES = ("uniform", "gaussian", "subnormal", "saturated", "cancelling", "one-hot", "spread")


def has_compiler() -> bool:
    try:
        return bool(host_cuda.compiler())
    except UnusableError:
        return False


pytestmark = pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")

AMPERE = TENSOR_CORES["ampere"]


def ampere(**changes: Any) -> Units:
    """The tensor cores of Ampere with other properties, the same for fp16 and bf16."""
    return {name: replace(AMPERE[name], **changes) for name in ("fp16", "bf16")}


# Tensor cores; whether the exponent product and the dummy accumulator may be built on them.
TABLE: dict[str, tuple[Units, bool, bool]] = {
    "ampere": (TENSOR_CORES["ampere"], True, True),
    "ada": (TENSOR_CORES["ada"], True, True),
    "hopper": (TENSOR_CORES["hopper"], True, False),
    "blackwell": (TENSOR_CORES["blackwell"], True, False),
    "sm_120": (TENSOR_CORES["sm_120"], True, False),
    "L = 4": (ampere(dot_length=4), True, False),
    "L = 16": (ampere(dot_length=16), True, True),
    "F = 23": (ampere(fraction_bits=23), True, False),
    "F = 25": (ampere(fraction_bits=25), True, False),
    "F = 13": (ampere(fraction_bits=13), True, False),
    "22 bits of result": (ampere(result_fraction_bits=22), True, False),
    "terms to nearest": (ampere(align_rounding=1), True, False),
    "terms down": (ampere(align_rounding=2), True, False),
    "result to nearest": (ampere(result_rounding=1), True, True),
    "late accumulator": (ampere(late=True), True, False),
    "groups, c last": (ampere(interleaved=True), True, False),
    "subnormal operands flushed": (ampere(flush_operands=True), True, True),
    "subnormal results flushed": (ampere(flush_results=True), True, True),
    "products normalised": (ampere(normalise=True), True, True),
    "zero products count": (ampere(zeros_count=True), True, True),
    "floor of 2^-60": (ampere(min_exponent=-60), True, True),
    "floor of 2^0": (ampere(min_exponent=0), False, True),
    "floor of 2^30": (ampere(min_exponent=30), False, False),
}


def kernel(module: str) -> KernelSpec:
    return next(each for each in KERNELS if each.module == module)


def probed(name: str, units: Units) -> probes.Verdict:
    """What a probe says of a device with these tensor cores."""
    probe = probes.PROBES[name]
    return probe.verdict(probe_results(probe, units))


def probe_results(
    probe: probes.Probe, units: Units, *, seed: int = 0, sanitize: bool = False
) -> Results:
    module = host_cuda.load(probes.MODULE, sanitize=sanitize)
    a, b, c = probe.operands()
    results = np.full_like(c, 0x7FC00000)
    parameter = probes.Parameter(*(each.ctypes.data for each in (a, b, c, results)))
    with module.tensor_core(units):
        module.launch(probe.entry, (len(c), 1), probes.THREADS, parameter, seed=seed)
    return results


def case(family: str) -> AccumulateRequest:
    a, b = (torch.from_numpy(x) for x in operands(family, *SHAPE, seed=len(family)))
    ada = get_preset("ada", warn=False)
    return AccumulateRequest(a, b, "e4m3", "e4m3", ada, GemmPlan(SHAPE[2], UNSPLIT, 128))


@cache
def expected(family: str) -> bytes:
    request = case(family)
    out = torch.empty((request.M, request.N), dtype=torch.float32, device="cpu")
    reference.accumulate(request, out)
    return out.numpy().tobytes()


def computed(module: HostModule, spec: KernelSpec, family: str) -> bytes:
    request = case(family)
    out = np.full((request.M, request.N), np.nan, np.float32)
    m, n, k = SHAPE
    pointers = (request.a.data_ptr(), request.b.data_ptr(), out.ctypes.data, None, None, None)
    parameter = Parameter(m, n, k, k, k, n, 1, 64, 128, *pointers, 0, 0, 0, ACCUMULATOR)
    grid = (-(-n // spec.tile[1]), -(-m // spec.tile[0]))
    module.launch(spec.entry, grid, spec.threads, parameter, shared_bytes=spec.shared_bytes)
    return out.tobytes()


def is_right(module_name: str, units: Units) -> bool:
    """Whether the kernel computes the right bits on such a device, on every family."""
    module, spec = host_cuda.load(module_name), kernel(module_name)
    with module.tensor_core(units):
        return all(computed(module, spec, family) == expected(family) for family in FAMILIES)


def accepted(module_name: str, units: Units) -> bool:
    return all(probed(name, units).passed for name in kernel(module_name).gates)


@pytest.mark.parametrize("name", TABLE)
def test_the_gates_accept_what_the_kernels_can_stand_on(name: str) -> None:
    units, exponent, dummy = TABLE[name]
    assert probed("exponent-product", units).passed == exponent
    assert all(probed(probe, units).passed for probe in ("dummy-grid", "dummy-sum")) == dummy
    assert accepted("v9", units) == exponent
    assert accepted("tc3", units) == (exponent and dummy)


@pytest.mark.parametrize("name", TABLE)
def test_the_kernels_are_right_where_accepted_and_wrong_where_not(name: str) -> None:
    units, exponent, dummy = TABLE[name]
    assert is_right("v9", units) == exponent
    assert is_right("tc3", units) == (exponent and dummy)


def test_every_gate_is_a_probe_and_every_probe_a_gate() -> None:
    gates = {gate for each in KERNELS for gate in each.gates}
    assert gates == set(probes.PROBES)


def test_a_refusal_shows_the_product() -> None:
    verdict = probed("dummy-grid", TENSOR_CORES["hopper"])
    assert not verdict.passed
    assert verdict.reason.startswith("1467 of 24576 products break: beside an fp16 accumulator")
    assert "first: 1.37439e+11 + -48*288 gave 0x51fffffe" in verdict.reason


@pytest.mark.parametrize("name", probes.PROBES)
def test_results_that_never_came_are_refused(name: str) -> None:
    shape = (len(probes.PROBES[name].cases().c), probes.ROWS, probes.COLUMNS)
    for bits in (0, 0x7FFFFFFF, 0x7F800000, 0xFF800000):
        verdicts = probes.verdicts({name: np.full(shape, bits, np.uint32)})
        assert [(each.name, each.passed) for each in verdicts] == [(name, False)]


@pytest.mark.parametrize("name", probes.PROBES)
def test_one_wrong_bit_is_refused(name: str) -> None:
    probe = probes.PROBES[name]
    results = probe_results(probe, AMPERE)
    assert probe.verdict(results).passed
    results[-1, -1, -1] ^= 1 << 28
    assert not probe.verdict(results).passed


@pytest.mark.t3
@pytest.mark.parametrize("name", probes.PROBES)
def test_a_probe_in_any_order_of_threads_and_under_ubsan(name: str) -> None:
    probe = probes.PROBES[name]
    wanted = probe_results(probe, AMPERE)
    for seed, sanitize in ((1, False), (2, True)):
        assert (probe_results(probe, AMPERE, seed=seed, sanitize=sanitize) == wanted).all()


def test_the_parameter_is_four_pointers() -> None:
    assert ctypes.sizeof(probes.Parameter) == 32

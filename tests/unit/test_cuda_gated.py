"""Gated kernels with their probes, from selection to bits, on a FAKE driver: no GPU is involved.

Matrix instructions are simulated: the kernels are right on some tensor cores and must be rejected
on others, and no automatic selection takes them where nobody validated them.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
import torch

import mmaemu
from cuda_driver import FakeCuda, write_fatbins
from mmaemu.backends import registry
from mmaemu.backends.base import AccumulateRequest
from mmaemu.backends.cuda import gates, loader
from mmaemu.backends.cuda.backend import CudaBackend
from mmaemu.backends.cuda.specs import KERNELS
from mmaemu.errors import BackendFallbackWarning, BackendUnavailableError
from mmaemu.gemm.plan import GemmPlan
from mmaemu.instruction.models import get_preset
from mmaemu.testing import assert_bitwise_equal, operands

CPU = torch.device("cpu")
GATED = ("tc3", "v9")
ADA = (*dict.fromkeys(kernel.module for kernel in KERNELS if kernel.model == "ada"), "probes")
ALLOW = "MMAEMU_ALLOW_GATED_KERNELS"


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache for the tests on a right tensor core, so that each kernel is tested once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def gpu(cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """A fake GPU with the tensor cores of an Ampere, whose kernels run on the host."""
    monkeypatch.setenv("MMAEMU_FATBIN_DIR", str(write_fatbins(tmp_path / "bin", *ADA)))
    cuda.run_on_host(*ADA)
    return cuda


def backend(name: str) -> CudaBackend:
    found = next(
        each
        for each in registry._load(registry.FAMILIES[0]).backends
        if each.name == f"cuda:{name}"
    )
    assert isinstance(found, CudaBackend)
    return found


def request_() -> AccumulateRequest:
    a, b = (torch.zeros((rows, 32), dtype=torch.uint8) for rows in (8, 16))
    return AccumulateRequest(a, b, "e4m3", "e4m3", get_preset("ada", warn=False), GemmPlan(32))


def check(name: str) -> None:
    a, b = operands.tensors("uniform", 70, 80, 144, formats=("e4m3", "e4m3"))
    scale = torch.tensor(0.7)
    actual, expected = (
        mmaemu.scaled_mm(
            a, b.t(), scale, scale, out_dtype=torch.bfloat16, profile="ada", splitk=1, backend=each
        )
        for each in (name, "reference")
    )
    assert_bitwise_equal(actual, expected)


@pytest.mark.parametrize("name", GATED)
def test_a_gated_kernel_runs_where_it_is_named_and_its_probes_pass(
    gpu: FakeCuda, verdicts: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("MMAEMU_CACHE_DIR", str(verdicts))
    check(f"cuda:{name}")
    found = backend(name).verdicts(CPU)
    assert [each.name for each in found] == list(backend(name).gates)
    assert [each.name for each in found][-1] == gates.SELF_TEST
    assert all(each.passed for each in found), found
    reason = backend(name).status(CPU).reason
    assert "gated: not validated on Fake RTX 4060 (validated on: none yet)" in reason
    launched = {each[2]["name"] for each in gpu.log("cuLaunchKernel")}
    assert f"mmaemu_{name}" in launched


def test_automatic_selection_leaves_it_alone_and_touches_nothing(gpu: FakeCuda) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("auto", "cuda"):
            chosen, passed_over = registry.select(request_(), name)
            assert chosen.name == "cuda:v4"
            withheld = [each.partition(": ")[0] for each in passed_over if ": gated: not" in each]
            assert set(withheld) >= {"cuda:tc3", "cuda:v9"}
    launched = {each[2]["name"] for each in gpu.log("cuLaunchKernel")}
    assert launched == {"mmaemu_v4"}
    assert len(gpu.log("cuModuleLoadData")) == 1


def test_it_is_taken_where_that_is_allowed(
    gpu: FakeCuda, verdicts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MMAEMU_CACHE_DIR", str(verdicts))
    monkeypatch.setenv(ALLOW, "1")
    gated = {kernel.module for kernel in KERNELS if kernel.gated}
    chosen = registry.select(request_())[0].name
    assert chosen.removeprefix("cuda:") in gated
    check("auto")
    gpu.ordinal = 2  # Compute capability 7.5 is not what it is meant for.
    assert registry.select(request_())[0].name == "cuda:v1"


def test_another_tensor_core_is_rejected(gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that says 8.9 and adds as a Hopper does: fail closed, warn, take the next."""
    gpu.run_on_host("probes", "tc3", "v9", tensor_core="hopper")
    with pytest.raises(
        BackendUnavailableError, match=r"cuda:tc3: dummy-(grid|sum) did not pass: \d+ of \d+"
    ):
        check("cuda:tc3")
    assert not any("tc3" in each[2]["name"] for each in gpu.log("cuLaunchKernel"))
    monkeypatch.setenv(ALLOW, "1")
    monkeypatch.setattr(backend("qmma"), "withheld", lambda _: "left out")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        chosen = [registry.select(request_())[0].name for _ in range(2)]
    assert set(chosen) <= {"cuda:v9", "cuda:v4"}
    (warning,) = caught
    assert warning.category is BackendFallbackWarning
    assert re.match(r"cuda:tc3: dummy-\w+ did not pass", str(warning.message))


def test_a_forced_probe_failure(gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMAEMU_TEST_FAULT", "cuda-probes")
    status = backend("v9").status(CPU)
    assert (status.available, status.failed) == (False, True)
    assert status.reason == "exponent-product did not pass: RuntimeError: forced by a test"
    assert backend("v4").status(CPU).available
    assert gpu.log("cuLaunchKernel")


@pytest.mark.parametrize("status", [1, 209, 719])
def test_probes_that_cannot_be_launched(gpu: FakeCuda, status: int) -> None:
    gpu.fail("cuLaunchKernel", status)
    found = backend("v9").status(CPU)
    assert not found.available
    assert found.reason.startswith("exponent-product did not pass: NativeLibraryError: cuLaunch")


def test_probes_that_cannot_be_loaded(
    gpu: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin" / "probes.fatbin").unlink()
    monkeypatch.setenv("MMAEMU_NVRTC_PATH", str(tmp_path / "none.so"))
    status = backend("v9").status(CPU)
    assert (status.available, status.failed) == (False, True)
    assert "exponent-product did not pass: the probes cannot be loaded: fatbin: " in status.reason
    assert "; NVRTC: cannot load" in status.reason
    assert gpu.log("cuLaunchKernel") == []


def test_the_image_of_the_probes_decides_a_verdict(
    gpu: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = list(gates.cases(backend("v9").kernels[0].formats))
    monkeypatch.setattr(gates, "cases", lambda _: iter(every[-3:]))
    gates.expected.cache_clear()
    assert not any(each.cached for each in backend("v9").verdicts(CPU))
    loader.forget()
    assert all(each.cached for each in backend("v9").verdicts(CPU))
    write_fatbins(tmp_path / "bin", *GATED, "probes", images=("89",))
    loader.forget()
    assert not any(each.cached for each in backend("v9").verdicts(CPU))
    gates.expected.cache_clear()
    assert gpu.log("cuLaunchKernel")

"""The self-test of CUDA kernels, its verdicts and what is said about them, on a FAKE driver.

Kernels run as compiled for the host; wrong ones are right kernels under another name.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cuda_driver import FakeCuda, write_fatbins
from mmaemu import self_test
from mmaemu.backends import registry
from mmaemu.backends.base import AccumulateRequest, GateVerdict
from mmaemu.backends.cuda import gates, loader
from mmaemu.backends.cuda.backend import CudaBackend
from mmaemu.backends.cuda.launch import Scales
from mmaemu.backends.cuda.specs import KERNELS, MODULES, KernelSpec
from mmaemu.backends.reference import ReferenceBackend
from mmaemu.cli.main import main
from mmaemu.gemm import epilogue, execute

CPU = torch.device("cpu")
V4 = next(kernel for kernel in KERNELS if kernel.module == "v4")
FEW = dataclasses.replace(V4, formats=(("e4m3", "e4m3"),))


@pytest.fixture
def gpu(cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """A fake GPU on which the kernel of v4 runs, with a short self-test."""
    monkeypatch.setenv("MMAEMU_FATBIN_DIR", str(write_fatbins(tmp_path / "bin", "v4", "v1")))
    cuda.run_on_host("v4")
    every = list(gates.cases(V4.formats))
    monkeypatch.setattr(gates, "cases", lambda _: iter(every[-6:]))
    gates.expected.cache_clear()
    monkeypatch.setattr(registry, "_load", _Loaded)
    monkeypatch.setattr(self_test, "_verdicts", {})
    few = {name: self_test.BACKEND_GATES[name] for name in ("vectors", "recordings")}
    monkeypatch.setattr(self_test, "BACKEND_GATES", few)
    return cuda


class _Loaded:
    """A family with the backend of v4 alone, or no other than the real one."""

    missing = None
    failed = False

    def __init__(self, family: registry.Family) -> None:
        real: tuple[Any, ...] = (ReferenceBackend(),) if family.name == "reference" else ()
        self.backends = (_backends[-1],) if family.name == "cuda" else real


_backends: list[CudaBackend] = []


@pytest.fixture(autouse=True)
def fresh() -> Any:
    _backends.append(backend(V4))
    yield
    _backends.clear()
    gates.expected.cache_clear()


def backend(kernel: KernelSpec) -> CudaBackend:
    module = next(module for module in MODULES if module.name == kernel.module)
    return CudaBackend(module, (kernel,))


def launches(cuda: FakeCuda) -> int:
    return len(cuda.log("cuLaunchKernel"))


# The self-test itself, without a driver


def right(request: AccumulateRequest, out: torch.Tensor, scales: Scales) -> None:
    """A kernel that is the reference."""
    acc = execute.accumulate(ReferenceBackend().accumulate, request)
    if scales.scale_a is None or scales.scale_b is None:
        out.copy_(acc)
        return
    result = epilogue.apply(
        acc,
        scales.scale_a,
        scales.scale_b,
        out_dtype=out.dtype,
        scale_result=scales.scale_result,
    )
    out.copy_(result)


def wrong_model(request: AccumulateRequest, out: torch.Tensor, scales: Scales) -> None:
    """One that keeps one fraction bit more."""
    model = dataclasses.replace(request.model, fraction_bits=14)
    right(dataclasses.replace(request, model=model), out, scales)


def never_promotes(request: AccumulateRequest, out: torch.Tensor, scales: Scales) -> None:
    plan = dataclasses.replace(request.plan, promotion=None)
    right(dataclasses.replace(request, plan=plan), out, scales)


def counts_double(request: AccumulateRequest, out: torch.Tensor, scales: Scales) -> None:
    """C48: two registers overlap, so that K ones count as 2 K."""
    right(request, out, scales)
    if scales.scale_a is None:
        out.mul_(2)


def leaves_the_edge(request: AccumulateRequest, out: torch.Tensor, scales: Scales) -> None:
    """One that does not write the last row."""
    result = torch.empty_like(out)
    right(request, result, scales)
    out[:-1].copy_(result[:-1])


def forgets_scale_result(request: AccumulateRequest, out: torch.Tensor, scales: Scales) -> None:
    right(request, out, scales._replace(scale_result=None))


def nothing(*_: object) -> None:
    """A kernel that is not there."""


def crashes(*_: object) -> None:
    raise ZeroDivisionError("no such register")


def test_a_right_kernel_passes() -> None:
    verdict = gates.self_test(V4, right, CPU)
    assert verdict.passed, verdict.reason
    count = len([*gates.cases(V4.formats)])
    assert verdict.reason == f"{count} GEMMs equal to the reference, bit for bit"


@pytest.mark.parametrize(
    ("run", "named"),
    [
        (wrong_model, "spread"),
        (never_promotes, "1 slices, none, slow"),
        (counts_double, "32 ones"),
        (leaves_the_edge, "1 ones"),
        (forgets_scale_result, "float8_e5m2"),
        (nothing, "uniform"),
    ],
)
def test_a_wrong_kernel_does_not(
    monkeypatch: pytest.MonkeyPatch, run: gates.Run, named: str
) -> None:
    monkeypatch.setattr(gates, "NAMED", 99)
    verdict = gates.self_test(V4, run, CPU)
    assert not verdict.passed
    assert verdict.reason.startswith("mmaemu_v4 has wrong bits in ")
    assert f", {named}," in verdict.reason.replace(": ", ": , ") + ","


def test_a_kernel_that_raises_does_not() -> None:
    verdict = gates.self_test(V4, crashes, CPU)
    assert not verdict.passed
    assert verdict.reason == "ZeroDivisionError: no such register"


def test_the_counts_are_exact_in_every_model() -> None:
    """What is expected of K ones is K, not only what the reference says."""
    for kernel in KERNELS:
        for case in gates.cases(kernel.formats):
            if case.family == "ones":
                result = gates.reference(case, kernel.model)
                found = torch.frombuffer(bytearray(result), dtype=torch.float32)
                assert set(found.tolist()) == {float(case.size[2])}


def test_the_cases_take_every_family_plan_format_and_output() -> None:
    for kernel in KERNELS:
        cases = list(gates.cases(kernel.formats))
        assert {case.formats for case in cases} == set(kernel.formats)
        assert {case.split for case in cases} == set(gates.SPLITS)
        assert {case.output[0] for case in cases if case.output} == {o[0] for o in gates.OUTPUTS}
        assert len({case.name for case in cases}) == len(cases)
        # More rows and columns than a tile has.
        assert gates.SIZE[0] > kernel.tile[0] or kernel.tile[0] > 64
        assert gates.SIZE[1] > kernel.tile[1] or kernel.tile[1] > 64


# Verdicts


def test_a_kernel_of_another_model_is_not_used(gpu: FakeCuda) -> None:
    """The code is v4's, which is right for ada; its row says hopper."""
    found = backend(dataclasses.replace(V4, model="hopper"))
    status = found.status(CPU)
    assert (status.available, status.failed) == (False, True)
    assert status.reason.startswith("self-test did not pass: mmaemu_v4 has wrong bits in")
    assert launches(gpu) == 6


@pytest.mark.parametrize("status", [1, 2, 209, 701])
def test_a_kernel_that_cannot_be_launched_is_not_used(gpu: FakeCuda, status: int) -> None:
    gpu.fail("cuLaunchKernel", status)
    found = backend(V4).status(CPU)
    assert not found.available
    assert "self-test did not pass: NativeLibraryError: cuLaunchKernel failed: " in found.reason
    assert f"({status})" in found.reason


def test_a_verdict_is_kept(gpu: FakeCuda, tmp_path: Path) -> None:
    (first,) = backend(V4).verdicts(CPU)
    assert (first.passed, first.cached) == (True, False)
    assert launches(gpu) == 6
    loader.forget()
    (again,) = backend(V4).verdicts(CPU)
    assert (again.passed, again.cached) == (True, True)
    assert launches(gpu) == 6
    assert len([*(tmp_path / "cache" / gates.CACHE).iterdir()]) == 1
    (forced,) = backend(V4).verdicts(CPU, force=True)
    assert (forced.passed, forced.cached) == (True, False)
    assert launches(gpu) == 12


def other_name(gpu: FakeCuda, _: Path) -> None:
    gpu.state.device[0].name = b"Fake RTX 4090"


def other_uuid(gpu: FakeCuda, _: Path) -> None:
    gpu.state.device[0].uuid[3] = 9


def other_driver(gpu: FakeCuda, _: Path) -> None:
    gpu.state.driver_version = 12090


def other_image(_: FakeCuda, folder: Path) -> None:
    write_fatbins(folder, "v4", images=("89",))


@pytest.mark.parametrize("change", [other_name, other_uuid, other_driver, other_image])
def test_what_decides_a_verdict_is_in_its_key(
    gpu: FakeCuda, tmp_path: Path, change: Callable[[FakeCuda, Path], None]
) -> None:
    backend(V4).status(CPU)
    change(gpu, tmp_path / "bin")
    loader.forget()
    (verdict,) = backend(V4).verdicts(CPU)
    assert (verdict.passed, verdict.cached) == (True, False)


@pytest.mark.parametrize("name", ["torch version", "package version", "row", "expected data"])
def test_versions_row_and_expected_data_decide_too(
    gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    backend(V4).status(CPU)
    kernel = V4
    if name == "torch version":
        monkeypatch.setattr(torch, "__version__", "9.9")
    elif name == "package version":
        monkeypatch.setattr(gates, "__version__", "9.9")
    elif name == "row":
        kernel = dataclasses.replace(V4, threads=256, priority=V4.priority + 1)
    else:
        every = list(gates.cases(V4.formats))
        monkeypatch.setattr(gates, "cases", lambda _: iter(every[1:]))
        gates.expected.cache_clear()
    loader.forget()
    (verdict,) = backend(kernel).verdicts(CPU)
    assert (verdict.passed, verdict.cached) == (True, False)
    assert launches(gpu) == (11 if name == "expected data" else 12)


def lie(data: bytes) -> bytes:
    """A verdict that did not pass, with a hash that fits."""
    import hashlib

    stored = json.loads(data[32:])
    stored[0]["passed"] = False
    content = json.dumps(stored).encode()
    return hashlib.sha256(content).digest() + content


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda data: data[:-3],
        lambda data: data.replace(b"true", b"TRUE"),
        lie,
    ],
    ids=["empty", "cut off", "changed", "not passed"],
)
def test_a_damaged_verdict_is_found_out_again(
    gpu: FakeCuda, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    backend(V4).status(CPU)
    (entry,) = (tmp_path / "cache" / gates.CACHE).iterdir()
    entry.write_bytes(damage(entry.read_bytes()))
    loader.forget()
    (verdict,) = backend(V4).verdicts(CPU)
    assert (verdict.passed, verdict.cached) == (True, False)
    assert launches(gpu) == 12


def test_a_cache_that_cannot_be_written_is_fine(
    gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MMAEMU_CACHE_DIR", "/dev/null")
    for count in (6, 12):
        assert backend(V4).status(CPU).available
        assert launches(gpu) == count
        loader.forget()


def test_a_failure_is_not_kept(
    gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MMAEMU_TEST_FAULT", "cuda-self-test")
    status = backend(V4).status(CPU)
    assert "self-test did not pass: mmaemu_v4 has wrong bits in 1 of 6 GEMMs" in status.reason
    assert not (tmp_path / "cache" / gates.CACHE).exists()
    monkeypatch.delenv("MMAEMU_TEST_FAULT")
    assert backend(V4).status(CPU).available
    assert launches(gpu) == 12
    # A failure that is forced is not hidden by a verdict that was kept.
    monkeypatch.setenv("MMAEMU_TEST_FAULT", "cuda-self-test")
    assert not backend(V4).status(CPU).available


# What is said


def test_info_shows_gates_and_evidence(gpu: FakeCuda, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    (found,) = (each for each in report["backends"] if each["name"] == "cuda:v4")
    assert found["available"]
    assert (found["gates"], found["validated_on"]) == (["self-test"], [])
    assert not found["validated_here"]
    assert main(["info"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "available: ada kernels (floor_fma.cu) on Fake RTX 4060" in text
    assert "[gates: self-test; validated on: none yet]" in text
    gpu.fail("cuInit", 100)
    loader.forget()


def test_info_shows_why_a_rung_was_passed_over(
    gpu: FakeCuda, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bin" / "v4.fatbin").write_bytes(b"damaged")
    assert main(["info"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "floor_fma.cu compiled by NVRTC 12.8; fatbin: " in text
    assert "has sha256" in text
    assert gpu.log("nvrtcCompileProgram")


@pytest.mark.usefixtures("gpu")
def test_selftest_shows_the_gates(capsys: pytest.CaptureFixture[str]) -> None:
    results = self_test.run("cpu", kernels="v4")["cuda:v4"]
    assert results[0].name == "self-test"
    assert all(result.passed for result in results), [r.reason for r in results]
    assert main(["selftest", "--device", "cpu", "--kernels", "cuda:v4", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["backends"][0]["gates"][0]["name"] == "self-test"


@pytest.mark.usefixtures("gpu")
def test_selftest_shows_a_failed_gate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MMAEMU_TEST_FAULT", "cuda-self-test")
    assert main(["selftest", "--device", "cpu", "--kernels", "cuda:v4"]) == 1
    assert "self-test did not pass: mmaemu_v4 has wrong bits" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.usefixtures("gpu")
def test_explain_names_the_backend(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["explain", "70", "80", "144", "--profile", "ada", "--splitk", "1", "--json"]
    assert main(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["backend"], report["fallbacks"]) == ("cuda:v4", [])
    assert main([*arguments[:-1], "--backend", "cuda:v4", "--out", "fp16"]) == 0


def test_a_backend_without_gates_has_no_verdict() -> None:
    assert registry.gate_verdicts("reference", CPU) == ()
    assert GateVerdict("x", passed=True, reason="", seconds=0.0).cached is False

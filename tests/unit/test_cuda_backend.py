"""The CUDA backends from scaled_mm to the result, on a FAKE driver: no GPU is involved.

Launches run the shipped kernel sources as compiled for the host (tools/host_cuda.py), so results
are compared bit for bit; the fake's log shows device, stream, context and grid of every launch.
"""

from __future__ import annotations

import ctypes
import dataclasses
import re
import shutil
import subprocess
import threading
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

import mmaemu
from cuda_driver import FakeCuda, write_fatbins
from mmaemu.backends import registry
from mmaemu.backends.base import AccumulateRequest
from mmaemu.backends.cuda import backend as cuda_backend
from mmaemu.backends.cuda import launch, specs
from mmaemu.backends.cuda.backend import CudaBackend
from mmaemu.backends.cuda.fatbins import ROOT
from mmaemu.backends.cuda.specs import KERNELS, MODULES, KernelSpec
from mmaemu.errors import (
    BackendFallbackWarning,
    BackendUnavailableError,
    UnsupportedFeatureError,
)
from mmaemu.gemm import epilogue as epilogues
from mmaemu.gemm.plan import GemmPlan
from mmaemu.gemm.splitk import SplitK
from mmaemu.instruction.models import get_preset
from mmaemu.testing import assert_bitwise_equal, operands

CPU = torch.device("cpu")
SIMT = ("v1", "h1", "v4", "h4")
PROFILES = {"ada": ("v4", "v1"), "hopper": ("h4", "h1")}
BF16 = torch.bfloat16
OUTPUTS = (torch.float32, BF16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)
E4M3, E5M2 = ("e4m3", "e4m3"), ("e5m2", "e4m3")


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache for all tests, so that each kernel is tested once for each device."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def gpu(
    cuda: FakeCuda, tmp_path: Path, verdicts: Path, monkeypatch: pytest.MonkeyPatch
) -> FakeCuda:
    """A fake GPU with fatbins whose kernels run on the host."""
    monkeypatch.setenv("MMAEMU_CACHE_DIR", str(verdicts))
    monkeypatch.setenv("MMAEMU_FATBIN_DIR", str(write_fatbins(tmp_path / "bin", *SIMT)))
    cuda.run_on_host(*SIMT)
    return cuda


def scaled_mm(backend: str, family: str = "uniform", **options: Any) -> torch.Tensor:
    formats = options.pop("formats", E4M3)
    size = options.pop("size", (70, 80, 144))
    a, b = operands.tensors(family, *size, formats=formats)
    scale_a, scale_b = map(torch.tensor, options.pop("scales", (0.7, -3.0)))
    options = {"profile": "ada", "splitk": 1, "out_dtype": BF16, **options}
    return mmaemu.scaled_mm(a, b.t(), scale_a, scale_b, backend=backend, **options)


def check(backend: str, family: str = "uniform", **options: Any) -> None:
    actual = scaled_mm(backend, family, **options)
    assert_bitwise_equal(actual, scaled_mm("reference", family, **options))


def backend(name: str = "cuda:v4") -> CudaBackend:
    found = next(
        each for each in registry._load(registry.FAMILIES[0]).backends if each.name == name
    )
    assert isinstance(found, CudaBackend)
    return found


def request_of(
    size: tuple[int, int, int] = (8, 16, 32), model: str = "ada", formats: tuple[str, str] = E4M3
) -> AccumulateRequest:
    m, n, k = size
    a, b = (torch.zeros((rows, k), dtype=torch.uint8) for rows in (m, n))
    return AccumulateRequest(a, b, *formats, get_preset(model, warn=False), GemmPlan(k))


# Rows


def test_the_parameter_is_the_one_of_the_header(tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    names = [field[0] for field in launch.Parameter._fields_]
    rows = "".join(
        f'printf("{name} %zu %zu\\n", offsetof(struct mmaemu_cuda_request, {name}), '
        f"sizeof(((struct mmaemu_cuda_request *)0)->{name}));"
        for name in names
    )
    source = tmp_path / "layout.c"
    header = ROOT / specs.SOURCES / "abi.h"
    source.write_text(
        f'#include <stddef.h>\n#include <stdio.h>\n#include "{header}"\n'
        f'int main(void) {{ {rows} printf("%zu\\n", sizeof(struct mmaemu_cuda_request));\n'
        'printf("%d %d\\n", MMAEMU_OUT_ACCUMULATOR, MMAEMU_OUT_E5M2); }'
    )
    subprocess.run([compiler, str(source), "-o", str(tmp_path / "layout")], check=True)
    run = subprocess.run([str(tmp_path / "layout")], capture_output=True, text=True, check=True)
    *fields, size, constants = run.stdout.splitlines()
    for name, line in zip(names, fields, strict=True):
        ours = getattr(launch.Parameter, name)
        assert line == f"{name} {ours.offset} {ours.size}"
    assert int(size) == ctypes.sizeof(launch.Parameter)
    assert constants == f"{launch.ACCUMULATOR} {launch.OUTPUTS[torch.float8_e5m2]}"


def test_the_rows_fit_each_other() -> None:
    modules = {module.name: module for module in MODULES}
    assert len(modules) == len(MODULES)
    assert len({kernel.name for kernel in KERNELS}) == len(KERNELS)
    for kernel in KERNELS:
        module = modules[kernel.module]
        assert kernel.entry in module.entries
        assert list(module.entries) == sorted(module.entries)
        assert set(kernel.formats) <= set(get_preset(kernel.model, warn=False).inputs)
        assert not kernel.gates or kernel.gated
        lowest = min(int(arch.rstrip("a")) for arch in module.sass_archs)
        assert kernel.min_cc == lowest
        assert (ROOT / specs.SOURCES / module.source).is_file()


def test_one_backend_for_a_module_fastest_first() -> None:
    found = cuda_backend.backends()
    assert [each.module.name for each in found] == list(
        dict.fromkeys(k.module for k in sorted(KERNELS, key=lambda kernel: -kernel.priority))
    )
    assert sum(len(each.kernels) for each in found) == len(KERNELS)


# Bits


@pytest.mark.parametrize(
    ("profile", "module"), [(p, m) for p, modules in PROFILES.items() for m in modules]
)
@pytest.mark.parametrize("fast", [True, False])
def test_whole_calls(gpu: FakeCuda, profile: str, module: str, fast: bool) -> None:
    for family, formats, out_dtype in zip(
        ("uniform", "nonfinite", "spread", "cancelling", "one-hot"),
        (E4M3, E5M2, ("e4m3", "e5m2"), E4M3, E5M2),
        OUTPUTS,
        strict=True,
    ):
        check(
            f"cuda:{module}",
            family,
            profile=profile,
            use_fast_accum=fast,
            formats=formats,
            out_dtype=out_dtype,
            scale_result=torch.tensor(1.7) if out_dtype.itemsize == 1 else None,
        )
    assert {each[2]["name"] for each in gpu.log("cuLaunchKernel")} == {f"mmaemu_{module}"}


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("profile", "splits"),
    [("ada", ("serial", "pairwise")), ("hopper", ("contiguous",))],
)
def test_split_k_in_one_launch(profile: str, splits: tuple[str, ...]) -> None:
    for scheme, slices, fast in product(splits, (2, 3), (True, False)):
        check(
            f"cuda:{PROFILES[profile][0]}",
            profile=profile,
            use_fast_accum=fast,
            splitk=(slices, scheme),
            size=(17, 16, 464),
        )


def test_the_accumulators_of_both_e5m2(gpu: FakeCuda) -> None:
    a, b = operands.tensors("nonfinite", 67, 33, 50, formats=("e5m2", "e5m2"))
    actual, expected = (
        mmaemu.accumulate(a, b, use_fast_accum=False, profile="ada", splitk=1, backend=name)
        for name in ("cuda:v4", "reference")
    )
    assert_bitwise_equal(actual, expected)
    assert gpu.log("cuLaunchKernel")


def test_a_padded_operand_and_an_out_of_any_layout(gpu: FakeCuda) -> None:
    wide = torch.zeros((70, 160), dtype=torch.uint8)
    wide[:, :144] = operands.tensors("uniform", 70, 144, 144, formats=E4M3)[0].view(torch.uint8)
    a = wide.view(torch.float8_e4m3fn)[:, :144]
    b = operands.tensors("spread", 1, 80, 144, formats=E4M3)[1]
    one = torch.tensor(1.0)
    results = []
    for name in ("cuda:v4", "reference"):
        out = torch.zeros((80, 70), dtype=BF16).t()
        mmaemu.scaled_mm(a, b.t(), one, one, out=out, profile="ada", splitk=1, backend=name)
        results.append(out)
    assert_bitwise_equal(*results)
    assert gpu.log("cuLaunchKernel")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("size", [(0, 16, 16), (16, 0, 16), (16, 16, 0)])
def test_a_size_of_zero(size: tuple[int, int, int]) -> None:
    request = request_of(size)
    one = torch.tensor(float("nan"))
    epilogue = backend().epilogue(one, one, out_dtype=BF16)
    for out in (backend().execute(request, epilogue), backend().accumulators(request)):
        assert out.shape == size[:2]
        assert not out.view(torch.uint8).any()


def test_long_rows_come_in_chunks(gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """grid.y ends at 65535 tiles; here at 2, so that a result can be looked at."""
    scaled_mm("cuda:v4")
    monkeypatch.setattr(launch, "MAX_ROW_TILES", 2)
    gpu.forget_calls()
    check("cuda:v4", size=(300, 80, 48), use_fast_accum=True)
    rows = [each[2]["grid"] for each in gpu.log("cuLaunchKernel")]
    assert rows == ["2x2", "2x2", "2x1"]


# Device, stream, context


def test_the_callers_device_and_stream(gpu: FakeCuda) -> None:
    """C43: each call on its device's current stream, from any thread."""
    gpu.ordinal, gpu.stream = 1, (2 << 16) + 7
    check("cuda:h4", profile="hopper")
    for _, _, arguments in gpu.log("cuLaunchKernel"):
        assert (arguments["device"], arguments["stream"]) == ("1", str((2 << 16) + 7))
    gpu.ordinal, gpu.stream = 0, 1 << 16
    gpu.forget_calls()
    check("cuda:v4")
    assert {each[2]["device"] for each in gpu.log("cuLaunchKernel")} == {"0"}
    assert gpu.library.fake_current() == -1


def test_a_warm_call_only_launches(gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read on the host or waited for, so a graph can be captured (C46)."""
    scaled_mm("cuda:v4")
    gpu.forget_calls()
    gpu.capturing = True

    def read(*_: object, **__: object) -> None:
        raise AssertionError("a value was read on the host")

    for name in ("item", "cpu", "numpy", "tolist", "__bool__", "__int__", "__float__"):
        monkeypatch.setattr(torch.Tensor, name, read)
    result = scaled_mm("cuda:v4", scale_result=torch.tensor(3.0), out_dtype=torch.float8_e4m3fn)
    a, b = operands.tensors("uniform", 16, 16, 16, formats=E4M3)
    acc = mmaemu.accumulate(a, b, use_fast_accum=True, profile="ada", splitk=1, backend="cuda:v4")
    monkeypatch.undo()
    assert gpu.names() == ["cuCtxPushCurrent", "cuLaunchKernel", "cuCtxPopCurrent"] * 2
    assert result.shape == (70, 80)
    assert acc.shape == (16, 16)


def test_the_first_call_cannot_be_captured(gpu: FakeCuda) -> None:
    gpu.capturing = True
    with pytest.raises(UnsupportedFeatureError, match="make one such call before the capture"):
        scaled_mm("auto")
    gpu.capturing = False
    check("auto")
    gpu.capturing = True
    check("cuda:v4")


ONE = torch.tensor(1.0)


@pytest.mark.parametrize(
    ("scale", "options", "error"),
    [
        (torch.tensor(1.0, dtype=torch.float64), {}, TypeError),
        (torch.ones(2), {}, ValueError),
        (1.0, {}, TypeError),
        (ONE, {"out_dtype": torch.float64}, TypeError),
        (ONE, {"scale_result": torch.ones(3)}, ValueError),
    ],
)
def test_scales_are_checked_without_being_read(
    scale: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        epilogues.unread(scale, ONE, **{"out_dtype": BF16, **options})


def test_scale_result_counts_for_fp8_only() -> None:
    for dtype in OUTPUTS:
        epilogue = epilogues.unread(ONE, ONE, out_dtype=dtype, scale_result=ONE)
        assert (epilogue.scale_result is None) == (dtype.itemsize > 1)


@pytest.mark.usefixtures("gpu")
def test_a_sparse_scale_is_refused_by_name() -> None:
    a, b = operands.tensors("uniform", 16, 16, 16, formats=E4M3)
    sparse = torch.tensor([1.0]).to_sparse()
    with pytest.raises(TypeError, match="scale_a must be a dense tensor"):
        mmaemu.scaled_mm(
            a, b.t(), sparse, ONE, out_dtype=BF16, profile="ada", splitk=1, backend="cuda:v4"
        )


def test_a_negated_scale(gpu: FakeCuda) -> None:
    scale = torch.tensor([2j]).conj().imag
    assert scale.is_neg()
    check("cuda:v4", scales=(1.0, 1.0))
    a, b = operands.tensors("uniform", 16, 16, 16, formats=E4M3)
    results = [
        mmaemu.scaled_mm(
            a, b.t(), scale, torch.tensor(1.0), out_dtype=BF16, profile="ada", splitk=1, backend=n
        )
        for n in ("cuda:v4", "reference")
    ]
    assert_bitwise_equal(*results)
    assert gpu.log("cuLaunchKernel")


def test_eight_threads_at_once(gpu: FakeCuda) -> None:
    """C44: equal bits, and everything is loaded and tested once."""
    expected = scaled_mm("reference")
    start = threading.Barrier(8)
    found: list[torch.Tensor] = []

    def first_call() -> None:
        start.wait()
        found.append(scaled_mm("cuda:v4"))

    threads = [threading.Thread(target=first_call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    for each in found:
        assert_bitwise_equal(each, expected)
    assert len(gpu.log("cuModuleLoadData")) == 1
    launches = len(gpu.log("cuLaunchKernel"))
    scaled_mm("cuda:v4")
    assert len(gpu.log("cuLaunchKernel")) == launches + 1


# Choice


def test_the_fastest_kernel_of_the_model(gpu: FakeCuda) -> None:
    chosen, passed_over = registry.select(request_of())
    assert chosen.name == "cuda:v4"
    assert all("gated: " in each or "computes the model" in each for each in passed_over)
    assert registry.select(request_of(model="hopper"))[0].name == "cuda:h4"
    assert gpu.log("cuModuleLoadData")
    other = dataclasses.replace(get_preset("ada", warn=False), name="mine", dot_length=8)
    request = dataclasses.replace(request_of(), model=other)
    with pytest.raises(BackendUnavailableError, match="computes the model ada, not mine"):
        registry.select(request, "cuda")


def test_an_equal_model_of_another_name_object_is_taken(gpu: FakeCuda) -> None:
    equal = dataclasses.replace(get_preset("ada", warn=False))
    assert equal is not get_preset("ada", warn=False)
    assert backend().refusal(dataclasses.replace(request_of(), model=equal)) is None
    assert gpu.names() == []


def test_what_is_not_meant_for_a_device_is_passed_over_silently(gpu: FakeCuda) -> None:
    gpu.ordinal = 2  # Compute capability 7.5.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen, passed_over = registry.select(request_of())
    assert chosen.name == "cuda:v1"
    assert "cuda:v4: not meant for compute capability 7.5" in "; ".join(passed_over)
    status = backend().status(CPU)
    assert (status.available, status.failed) == (False, False)
    check("auto")


def test_a_failure_warns_once_and_falls_back(
    gpu: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("v4", "v1"):
        (tmp_path / "bin" / f"{name}.fatbin").write_bytes(b"damaged")
    monkeypatch.setenv("MMAEMU_NVRTC_PATH", str(tmp_path / "none.so"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            chosen, _ = registry.select(request_of())
    assert chosen.name.partition(":")[0] in {"cpu", "reference"}
    # Each file has a hash of its own, so the two reasons differ.
    messages = [str(each.message) for each in caught]
    assert {each.category for each in caught} == {BackendFallbackWarning}
    assert [re.match(r"cuda:v\d", message)[0] for message in messages] == ["cuda:v4", "cuda:v1"]  # type: ignore[index]
    for text in ("fatbin: ", "has sha256", "; NVRTC: cannot load", "a slower backend"):
        assert text in messages[0]
    with pytest.raises(BackendUnavailableError, match=r"cuda:v4: fatbin: .*; NVRTC: cannot load"):
        scaled_mm("cuda:v4")
    assert gpu.log("cuModuleLoadData") == []


def test_cuda_can_be_disabled(gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    scaled_mm("cuda:v4")
    monkeypatch.setenv("MMAEMU_DISABLE_CUDA", "1")
    gpu.forget_calls()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not registry.select(request_of())[0].name.startswith("cuda")
    with pytest.raises(BackendUnavailableError, match="MMAEMU_DISABLE_CUDA is set"):
        scaled_mm("cuda:v4")
    assert gpu.names() == []
    monkeypatch.setenv("MMAEMU_DISABLE_CUDA", "0")
    check("cuda:v4")


@pytest.mark.parametrize("status", [1, 2, 700, 701, 709])
def test_a_failing_launch_is_an_error_of_its_own(gpu: FakeCuda, status: int) -> None:
    scaled_mm("cuda:v4")
    gpu.fail("cuLaunchKernel", status)
    with pytest.raises(BackendUnavailableError, match=rf"cuda:v4: cuLaunchKernel.*\({status}\)"):
        scaled_mm("cuda:v4")
    assert gpu.library.fake_current() == -1
    gpu.fail("", 0)
    check("cuda:v4")


def test_a_lost_context(gpu: FakeCuda) -> None:
    """A device reset by other code: the call that meets it raises, the next one loads again."""
    check("cuda:v4")
    gpu.library.fake_lose_context(0)
    with pytest.raises(BackendUnavailableError, match="CONTEXT_IS_DESTROYED"):
        scaled_mm("cuda:v4")
    check("cuda:v4")
    assert len(gpu.log("cuModuleLoadData")) == 2


def with_row(**changes: Any) -> CudaBackend:
    module = next(module for module in MODULES if module.name == "v4")
    kernel = next(kernel for kernel in KERNELS if kernel.module == "v4")
    return CudaBackend(module, (dataclasses.replace(kernel, **changes),))


def misaligned() -> AccumulateRequest:
    data = torch.zeros(9 * 32, dtype=torch.uint8)
    a = torch.as_strided(data, (8, 32), (32, 1), 1)
    return dataclasses.replace(request_of(), a=a)


@pytest.mark.parametrize(
    ("changes", "request_", "reason"),
    [
        ({}, request_of(formats=("e5m2", "e5m2")), None),
        ({"formats": (E4M3,)}, request_of(formats=E5M2), "takes no e5m2 x e4m3"),
        ({}, request_of(model="hopper"), "computes the model ada, not hopper"),
        ({"k_max": 16}, request_of(), "takes K up to 16, got 32"),
        ({"k_max": 32}, request_of(), None),
        ({"alignment": 16}, request_of(), None),
        ({"alignment": 16}, request_of((8, 16, 40)), "rows of a that start at multiples of 16"),
        ({"alignment": 16}, misaligned(), "rows of a that start at multiples of 16"),
        ({}, misaligned(), None),
    ],
)
def test_a_refusal_is_decided_by_the_row(
    changes: dict[str, Any], request_: AccumulateRequest, reason: str | None
) -> None:
    found = with_row(**changes).refusal(request_)
    assert (found is None) == (reason is None)
    assert reason is None or (found is not None and reason in found)


def test_a_module_with_two_kernels_takes_the_one_that_fits(
    gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are tested; each request goes to the first that does not refuse it."""
    tested: list[KernelSpec] = []

    def passes(kernel: KernelSpec, *_: object, **__: object) -> tuple[()]:
        tested.append(kernel)
        return ()

    monkeypatch.setattr(cuda_backend, "_verdicts", passes)
    module = next(module for module in MODULES if module.name == "v4")
    kernel = next(kernel for kernel in KERNELS if kernel.module == "v4")
    both = CudaBackend(
        module,
        (
            dataclasses.replace(kernel, formats=(E4M3,), shared_bytes=16),
            dataclasses.replace(kernel, formats=(E5M2,)),
        ),
    )
    assert both.refusal(request_of(formats=("e5m2", "e5m2"))) == "takes no e5m2 x e5m2"
    assert both.status(CPU).available
    assert tested == list(both.kernels)
    gpu.forget_calls()
    for formats in (E4M3, E5M2):
        both.accumulators(request_of(formats=formats))
    assert [each[2]["shared"] for each in gpu.log("cuLaunchKernel")] == ["16", "0"]


# Gated kernels


def gated(**changes: Any) -> CudaBackend:
    return with_row(gated=True, **changes)


def test_a_gated_kernel_without_validation_is_left_alone(
    gpu: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = ("Fake RTX 4060", "Fake H100")
    write_fatbins(tmp_path / "bin", "v4", validated_on=known)
    reason = gated().withheld(CPU)
    assert reason is not None
    assert "gated: not validated on Fake RTX 4060 (validated on: none yet)" in reason
    assert gated(validated_on=("Fake RTX 4060",)).withheld(CPU) is None
    assert gated(validated_on=("Fake RTX 4060",)).status(CPU).validated_here
    # The row alone is no evidence for another image.
    assert gated(validated_on=("Fake RTX 2080",)).validated_on == ()
    elsewhere = gated(validated_on=("Fake H100",)).withheld(CPU)
    assert elsewhere is not None
    assert "validated on: Fake H100" in elsewhere
    gpu.ordinal = 1
    assert gated(validated_on=("Fake H100",)).withheld(CPU) is None
    monkeypatch.setenv("MMAEMU_ALLOW_GATED_KERNELS", "1")
    assert gated().withheld(CPU) is None
    assert gpu.log("cuModuleLoadData")  # By `status` alone.


def test_evidence_is_for_the_frozen_image_only(
    gpu: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where NVRTC compiled what runs, nobody has validated it."""
    write_fatbins(tmp_path / "bin", "v4", validated_on=("Fake RTX 4060",))
    monkeypatch.setenv("MMAEMU_TEST_FAULT", "cuda-fatbin-hash")
    found = gated(validated_on=("Fake RTX 4060",))
    assert found.withheld(CPU) is None  # Nothing is loaded yet.
    status = found.status(CPU)
    assert status.available
    assert not status.validated_here
    assert "NVRTC" in str(status.source)
    assert "gated: not validated" in str(found.withheld(CPU))
    loaded = registry._Loaded((found,))
    monkeypatch.setattr(registry, "_load", lambda _: loaded)
    with pytest.raises(BackendUnavailableError, match="gated: not validated"):
        registry.select(request_of(), "cuda")
    assert registry.select(request_of(), "cuda:v4")[0] is found
    (tmp_path / "bin" / "manifest.json").unlink()
    assert found.validated_on == ()
    assert gpu.log("nvrtcCompileProgram")


def test_an_ungated_kernel_is_never_withheld(gpu: FakeCuda) -> None:
    assert backend().withheld(CPU) is None
    assert gpu.names() == []


def test_what_a_driver_without_device_says_is_left_to_the_status(gpu: FakeCuda) -> None:
    gpu.fail("cuInit", 100)
    assert gated().withheld(CPU) is None
    assert "CUDA_ERROR_NO_DEVICE (100)" in gated().status(CPU).reason


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: str(kernel.name))
def test_a_kernel_is_gated_if_it_borrows_what_a_device_does(kernel: KernelSpec) -> None:
    assert kernel.gated == ("tensorop" in kernel.name)
    if "simt" in kernel.name:
        assert not kernel.gates
    assert SplitK(1, "none") == GemmPlan(kernel.tile[0]).split

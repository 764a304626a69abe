"""The ladder of the CUDA loader against a FAKE driver and NVRTC (tests/fakes): no GPU is involved.

Every rung and reason, the order of the driver's calls, what is kept, threads, forks and lost
contexts.
"""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cuda_driver import FakeCuda, made_up_fatbin, write_fatbins
from mmaemu.backends.cuda import compiled, fatbins, images, loader
from mmaemu.backends.cuda.fatbins import MANIFEST
from mmaemu.backends.cuda.faults import FAULTS, forced
from mmaemu.backends.cuda.specs import MODULES, ModuleSpec
from mmaemu.bindings.libcuda import CONTEXT_LOSSES, IMAGE_FAILURES
from mmaemu.bindings.library import NativeLibraryError

V4 = next(module for module in MODULES if module.name == "v4")
ADA, HOPPER, TURING, AMPERE = range(4)


class Parameter(ctypes.Structure):
    """A kernel's parameter that no kernel reads."""

    _fields_ = (("nothing", ctypes.c_int),)


@pytest.fixture
def folder(cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Made-up fatbins that are all as they should be."""
    assert cuda.names() == []
    made = write_fatbins(tmp_path / "bin", "v4")
    monkeypatch.setenv("MMAEMU_FATBIN_DIR", str(made))
    return made


def load(ordinal: int = ADA, module: ModuleSpec = V4, shared_bytes: int = 0) -> loader.Module:
    shared = dict.fromkeys(module.entries, shared_bytes)
    return loader.load(module, loader.place(ordinal), shared)


def launch(module: loader.Module, stream: int = 0) -> None:
    module.launch(
        V4.entries[0],
        grid=(2, 3),
        threads=256,
        shared_bytes=0,
        stream=stream,
        parameter=Parameter(0),
    )


# The first rung


def test_a_fatbin_is_loaded(folder: Path, cuda: FakeCuda) -> None:
    module = load()
    assert module.image.source == str(folder / "v4.fatbin")
    assert module.image.holds == "sm_80 sm_86 sm_89 sm_90 sm_100 sm_120 compute_80"
    assert module.passed_over == ()
    assert list(module.functions) == list(V4.entries)
    assert "nvrtcCreateProgram" not in cuda.names()


def rewrite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    change(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))


def drop(manifest: dict[str, Any]) -> None:
    del manifest["modules"]["v4.fatbin"]


def other_schema(manifest: dict[str, Any]) -> None:
    manifest["schema"] = "something/9"


def other_source(manifest: dict[str, Any]) -> None:
    manifest["modules"]["v4.fatbin"]["sources"]["mmaemu/backends/csrc/cuda/abi.h"] = "0" * 64


def more_sources(manifest: dict[str, Any]) -> None:
    manifest["modules"]["v4.fatbin"]["sources"]["mmaemu/backends/csrc/cuda/gone.h"] = "0" * 64


def other_defines(manifest: dict[str, Any]) -> None:
    manifest["modules"]["v4.fatbin"]["defines"] = ["MMAEMU_DOT_LENGTH=8"]


BAD_MANIFESTS = {
    "v4.fatbin is not listed in": drop,
    "no manifest: .* has schema 'something/9'": other_schema,
    r"stale: v4.fatbin was built from another .*abi\.h$": other_source,
    r"stale: v4.fatbin was built from another .*gone\.h$": more_sources,
    r"stale: v4.fatbin was built with \['MMAEMU_DOT_LENGTH=8'\], expected": other_defines,
    "no manifest: .* has schema None": lambda manifest: manifest.pop("schema"),
    "v4.fatbin is not listed": lambda manifest: manifest.update(modules=[]),
}


def reason(folder: Path) -> str:
    """Why the first rung was passed over; the second one is taken."""
    module = load()
    assert module.image.source == "floor_fma.cu compiled by NVRTC 12.8"
    assert module.image.holds == "sm_89"
    (text,) = module.passed_over
    assert text.startswith("fatbin: ")
    assert folder.exists()
    return text.removeprefix("fatbin: ")


@pytest.mark.parametrize("expected", BAD_MANIFESTS)
def test_a_manifest_that_does_not_fit(folder: Path, expected: str) -> None:
    rewrite(folder, BAD_MANIFESTS[expected])
    assert re.match(expected, reason(folder))


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff"])
def test_a_manifest_that_is_none(folder: Path, content: bytes) -> None:
    (folder / MANIFEST).write_bytes(content)
    assert reason(folder).startswith("no manifest: ")


def test_files_that_are_missing(folder: Path) -> None:
    (folder / "v4.fatbin").unlink()
    assert "v4.fatbin cannot be read: No such file or directory" in reason(folder)
    (folder / MANIFEST).unlink()
    loader.forget()
    assert re.match(r"no manifest: .*manifest\.json: No such file", reason(folder))


@pytest.mark.usefixtures("folder")
def test_a_missing_source_is_stale() -> None:
    module = dataclasses.replace(V4, source="gone.cu")
    with pytest.raises(loader.LoadError) as caught:
        load(module=module)
    assert re.match(
        r"fatbin: stale: a source of v4\.fatbin is missing: .*gone\.cu.*; "
        r"NVRTC: a source of v4 is missing: .*gone\.cu",
        str(caught.value),
    )


def test_one_changed_byte(folder: Path) -> None:
    data = bytearray((folder / "v4.fatbin").read_bytes())
    data[-1] ^= 1
    (folder / "v4.fatbin").write_bytes(data)
    assert re.search("v4.fatbin has sha256 [0-9a-f]{12}, its manifest says", reason(folder))


def replace(folder: Path, data: bytes) -> None:
    """Another fatbin whose hash is listed."""
    (folder / "v4.fatbin").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    rewrite(folder, lambda manifest: manifest["modules"]["v4.fatbin"].update(sha256=digest))


def test_no_image_for_the_device(folder: Path) -> None:
    """B44: both sides are named."""
    replace(folder, made_up_fatbin(["80", "90", "90a", "compute_90"], V4.entries))
    module = load()
    assert module.image.source == str(folder / "v4.fatbin")  # sm_80 runs on 8.9.
    replace(folder, made_up_fatbin(["90", "90a", "compute_90"], V4.entries))
    assert reason(folder) == (
        "no usable image: v4.fatbin holds sm_90 sm_90a compute_90, the device has compute "
        "capability 8.9"
    )


@pytest.mark.parametrize("cut", [4, 30, -8])
def test_a_fatbin_that_is_cut_off(folder: Path, cut: int) -> None:
    replace(folder, made_up_fatbin(["89"], V4.entries)[:cut])
    assert "the fatbin is cut off" in reason(folder)


@pytest.mark.parametrize("data", [b"\x7fELF" + bytes(60), bytes(64)])
def test_a_file_that_is_no_fatbin(folder: Path, data: bytes) -> None:
    replace(folder, data)
    assert "not a fatbin" in reason(folder)


@pytest.mark.parametrize(
    ("arch", "fits", "does_not"),
    [
        (images.Entry(80), [(8, 0), (8, 6), (8, 9)], [(7, 5), (9, 0)]),
        (images.Entry(89), [(8, 9)], [(8, 6), (9, 0), (12, 0)]),
        (images.Entry(120), [(12, 0), (12, 1)], [(10, 0), (9, 0)]),
        (images.Entry(90, accelerated=True), [(9, 0)], [(8, 9), (10, 0)]),
        (images.Entry(75, is_ptx=True), [(7, 5), (8, 9), (12, 0)], [(7, 0)]),
    ],
    ids=str,
)
def test_what_runs_where(
    arch: images.Entry, fits: list[tuple[int, int]], does_not: list[tuple[int, int]]
) -> None:
    assert all(map(arch.runs_on, fits))
    assert not any(map(arch.runs_on, does_not))


# What the driver says about an image


@pytest.mark.parametrize("status", sorted(IMAGE_FAILURES))
def test_a_refused_image_leads_to_the_next_rung(
    folder: Path, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    read = compiled.compiled

    def and_then_works(*arguments: Any) -> fatbins.Image:
        cuda.fail("", 0)
        return read(*arguments)

    monkeypatch.setattr(loader, "RUNGS", (loader.RUNGS[0], ("NVRTC", and_then_works)))
    cuda.fail("cuModuleLoadData", status)
    text = reason(folder)
    assert re.search(rf"cuModuleLoadData failed: CUDA_ERROR_\w+ \({status}\)", text)
    assert ("holds sm_80" in text and "compute capability 8.9" in text) == (status == 209)
    assert ("the driver (CUDA 12) is older than the PTX" in text) == (status == 222)


@pytest.mark.parametrize("status", [2, 46, 100, 201, 709, 999])
def test_another_failure_of_a_load_ends_the_ladder(
    folder: Path, cuda: FakeCuda, status: int
) -> None:
    cuda.fail("cuModuleLoadData", status)
    with pytest.raises(loader.LoadError, match=rf"\({status}\).*no other source was tried") as e:
        load()
    assert ("sees no device" in str(e.value)) == (status == 100)
    assert "nvrtcCreateProgram" not in cuda.names()
    assert cuda.library.fake_current() == -1
    cuda.fail("", 0)
    assert load().image.source == str(folder / "v4.fatbin")


def test_a_real_mismatch_is_the_drivers_209(folder: Path, cuda: FakeCuda) -> None:
    """The image claims to fit; the driver, who decides, says no."""
    cuda.state.device[0].capability = 75
    module = dataclasses.replace(V4, sass_archs=("89",), ptx_arch=None)
    where = loader.place(ADA)
    lying = where._replace(device=where.device._replace(capability=(8, 9)))
    with pytest.raises(loader.LoadError) as caught:
        loader.load(module, lying, {})
    text = str(caught.value)
    assert text.count("CUDA_ERROR_NO_BINARY_FOR_GPU (209)") == 2
    assert text.startswith(f"fatbin: {folder}")
    assert "; NVRTC: floor_fma.cu compiled by" in text


@pytest.mark.usefixtures("folder")
def test_ptx_newer_than_the_driver(cuda: FakeCuda) -> None:
    cuda.state.ptx_version = 80
    cuda.state.driver_version = 12000
    cuda.state.device[0].capability = 130
    with pytest.raises(loader.LoadError) as caught:
        load()
    text = str(caught.value)
    assert text.count("CUDA_ERROR_UNSUPPORTED_PTX_VERSION (222)") == 2
    assert text.count("the driver (CUDA 12) is older than the PTX") == 2


def test_a_kernel_that_the_image_lacks(folder: Path) -> None:
    replace(folder, made_up_fatbin(["89"], ["another_kernel"]))
    assert "cuModuleGetFunction failed: CUDA_ERROR_NOT_FOUND (500)" in reason(folder)


# The second rung


@pytest.fixture
def no_fatbins(cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing but NVRTC; returns the cubin cache."""
    assert cuda.names() == []
    monkeypatch.setenv("MMAEMU_FATBIN_DIR", str(tmp_path / "none"))
    return tmp_path / "cache" / compiled.CACHE


def compilations(cuda: FakeCuda) -> int:
    return len(cuda.log("nvrtcCompileProgram"))


def test_a_cubin_is_kept_by_content(no_fatbins: Path, cuda: FakeCuda) -> None:
    first = load()
    (entry,) = no_fatbins.iterdir()
    loader.forget()
    assert load().image == first.image
    assert compilations(cuda) == 1
    assert len(cuda.log("nvrtcDestroyProgram")) == 1
    loader.forget()
    load(HOPPER)  # Another architecture, another entry.
    load(module=dataclasses.replace(V4, defines=(*V4.defines, "X=1")))
    assert compilations(cuda) == 3
    assert len([*no_fatbins.iterdir()]) == 3
    assert entry.exists()


@pytest.mark.parametrize(
    "damage",
    [lambda _: b"", lambda data: data[:-1], lambda data: data[:40] + b"?" + data[41:]],
    ids=["empty", "cut off", "one byte"],
)
def test_a_damaged_entry_is_made_again(
    no_fatbins: Path, cuda: FakeCuda, damage: Callable[[bytes], bytes]
) -> None:
    first = load()
    (entry,) = no_fatbins.iterdir()
    good = entry.read_bytes()
    entry.write_bytes(damage(good))
    loader.forget()
    assert load().image == first.image
    assert compilations(cuda) == 2
    assert entry.read_bytes() == good


@pytest.mark.parametrize("place", ["/proc/nowhere", "/dev/null"])
def test_a_cache_that_cannot_be_written_is_fine(
    no_fatbins: Path, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("MMAEMU_CACHE_DIR", place)
    for _ in range(2):
        load()
        loader.forget()
    assert compilations(cuda) == 2
    assert not no_fatbins.exists()


def test_a_write_that_fails_leaves_nothing_behind(
    no_fatbins: Path, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    load()
    assert compilations(cuda) == 1
    assert list(no_fatbins.iterdir()) == []


NVRTC_FAILURES = (
    *(f"nvrtcGet{what}" for what in ("NumSupportedArchs", "SupportedArchs", "CUBINSize", "CUBIN")),
    *("nvrtcVersion", "nvrtcCreateProgram", "nvrtcCompileProgram"),
)


@pytest.mark.parametrize("function", NVRTC_FAILURES)
@pytest.mark.parametrize(("status", "name"), [(1, "OUT_OF_MEMORY"), (6, "COMPILATION"), (99, "")])
def test_a_failing_nvrtc(
    no_fatbins: Path, cuda: FakeCuda, function: str, status: int, name: str
) -> None:
    """The error names both rungs."""
    cuda.fail(function, status)
    with pytest.raises(loader.LoadError) as caught:
        load()
    text = str(caught.value)
    assert re.match(r"fatbin: no manifest: .*; NVRTC: ", text)
    described = f"NVRTC_ERROR_{name}" if name else "unlisted nvrtcResult"
    assert f"{function} failed: {described} ({status})" in text
    assert ("error: as the test wants" in text) == (function == "nvrtcCompileProgram")
    created = len(cuda.log("nvrtcCreateProgram")) - (function == "nvrtcCreateProgram")
    assert len(cuda.log("nvrtcDestroyProgram")) == created
    assert not no_fatbins.exists()


def test_without_nvrtc(no_fatbins: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MMAEMU_NVRTC_PATH", str(tmp_path / "libnvrtc.so.12"))
    with pytest.raises(loader.LoadError, match=r"; NVRTC: cannot load .*libnvrtc\.so\.12"):
        load()
    assert not no_fatbins.exists()


KNOWN = (75, 80, 86, 87, 89, 90, 100, 120)
WITH_LETTER = dataclasses.replace(V4, sass_archs=("90a",), ptx_arch=None)
NARROW = dataclasses.replace(V4, sass_archs=("89", "120"), ptx_arch=None)


@pytest.mark.parametrize(
    ("module", "capability", "target"),
    [
        (V4, (8, 0), "sm_80"),
        (V4, (8, 7), "sm_87"),
        (V4, (8, 8), "sm_87"),
        (V4, (12, 1), "sm_120"),
        (V4, (13, 0), "compute_120"),
        (WITH_LETTER, (9, 0), "sm_90a"),
        (NARROW, (8, 9), "sm_89"),
        (NARROW, (12, 1), "sm_120"),
    ],
)
def test_the_architecture_is_clamped(
    module: ModuleSpec, capability: tuple[int, int], target: str
) -> None:
    chosen = compiled.choose(module, capability, KNOWN)
    assert str(chosen) == target
    assert module.covers(capability)
    option = f"--gpu-architecture={target}"
    assert option in module.options(chosen.arch, ptx=chosen.is_ptx)


@pytest.mark.parametrize(
    ("module", "capability", "known"),
    [(V4, (7, 5), KNOWN), (V4, (8, 9), (90, 100)), (WITH_LETTER, (9, 0), (80,)), (V4, (8, 9), ())],
)
def test_an_architecture_that_nvrtc_does_not_know(
    module: ModuleSpec, capability: tuple[int, int], known: tuple[int, ...]
) -> None:
    with pytest.raises(fatbins.RungError, match="none of which runs on compute capability"):
        compiled.choose(module, capability, known)


def test_an_old_nvrtc_gives_ptx_for_a_new_device(no_fatbins: Path, cuda: FakeCuda) -> None:
    cuda.state.device[0].capability = 120
    module = load()
    assert module.image.holds == "compute_90"
    assert module.image.data.endswith(b"\0")
    launch(module)
    assert no_fatbins.exists()


# Contexts, threads, forks


@pytest.mark.usefixtures("folder")
def test_the_order_of_the_calls(cuda: FakeCuda) -> None:
    module = load(shared_bytes=100 << 10)
    assert [name for name in cuda.names() if not name.startswith("cuDeviceGet")] == [
        "cuInit",
        "cuDevicePrimaryCtxRetain",
        "cuDriverGetVersion",
        "cuCtxPushCurrent",
        "cuModuleLoadData",
        "cuModuleGetFunction",
        "cuFuncSetAttribute",
        "cuCtxPopCurrent",
    ]
    (set_attribute,) = cuda.log("cuFuncSetAttribute")
    assert set_attribute[2] == {"name": "mmaemu_v4", "attribute": "8", "value": "102400"}
    cuda.forget_calls()
    launch(module, stream=1 << 16)
    assert cuda.names() == ["cuCtxPushCurrent", "cuLaunchKernel", "cuCtxPopCurrent"]
    assert cuda.log("cuLaunchKernel")[0][2] == {
        "name": "mmaemu_v4",
        "device": "0",
        "grid": "2x3",
        "block": "256",
        "shared": "0",
        "stream": "65536",
    }


@pytest.mark.usefixtures("folder")
def test_up_to_48_kib_are_not_opted_in(cuda: FakeCuda) -> None:
    load(shared_bytes=48 << 10)
    assert cuda.log("cuFuncSetAttribute") == []


@pytest.mark.usefixtures("folder")
def test_another_device_than_the_current_one(cuda: FakeCuda) -> None:
    """C43: tensors on cuda:1 while cuda:0 is current; it is so again afterwards."""
    first = loader.place(ADA)
    with first.driver.current(first.context):
        module = load(HOPPER)
        launch(module, stream=2 << 16)
        assert cuda.library.fake_current() == ADA
        # The launch is on the module's device, whose stream another device does not know.
        with pytest.raises(NativeLibraryError, match="INVALID_HANDLE"):
            launch(module, stream=1 << 16)
        assert cuda.library.fake_current() == ADA
    assert cuda.library.fake_current() == -1
    assert {each[2]["device"] for each in cuda.log("cuModuleLoadData")} == {"1"}


@pytest.mark.usefixtures("folder")
def test_a_cold_thread(cuda: FakeCuda) -> None:
    """C43: a thread in which no context was ever current."""
    module = load()
    seen = []

    def cold() -> None:
        launch(module)
        seen.append(cuda.library.fake_current())

    thread = threading.Thread(target=cold)
    thread.start()
    thread.join()
    assert seen == [-1]


@pytest.mark.parametrize("function", ["cuLaunchKernel", "cuCtxPushCurrent_v2"])
@pytest.mark.parametrize("status", [1, 2, 700, 709])
@pytest.mark.usefixtures("folder")
def test_the_context_is_restored_after_an_error(cuda: FakeCuda, function: str, status: int) -> None:
    module = load()
    before = loader.generation()
    cuda.fail(function, status)
    with pytest.raises(NativeLibraryError, match=rf"{function} failed: .*\({status}\)"):
        launch(module)
    assert cuda.library.fake_current() == -1
    assert (loader.generation() > before) == (status in CONTEXT_LOSSES)


@pytest.mark.usefixtures("folder")
def test_a_failing_pop_is_an_error_unless_another_came_first(cuda: FakeCuda) -> None:
    module = load()
    cuda.fail("cuCtxPopCurrent_v2", 201)
    with pytest.raises(NativeLibraryError, match="cuCtxPopCurrent_v2 failed"):
        launch(module)
    with (
        pytest.raises(ZeroDivisionError),
        module.place.driver.current(module.place.context),
    ):
        raise ZeroDivisionError


@pytest.mark.usefixtures("folder")
def test_a_lost_context_is_loaded_again(cuda: FakeCuda) -> None:
    module = load()
    cuda.library.fake_lose_context(ADA)
    with pytest.raises(NativeLibraryError, match="CONTEXT_IS_DESTROYED"):
        launch(module)
    again = load()
    assert again.place.context != module.place.context
    launch(again)


@pytest.mark.usefixtures("folder")
def test_a_module_is_loaded_once_for_a_device(cuda: FakeCuda) -> None:
    assert load() is load()
    load(HOPPER)
    assert len(cuda.log("cuModuleLoadData")) == 2
    assert len(cuda.log("cuDevicePrimaryCtxRetain")) == 2
    assert len(cuda.log("cuInit")) == 1


@pytest.mark.usefixtures("folder")
def test_eight_threads_load_once(cuda: FakeCuda) -> None:
    """C44."""
    start = threading.Barrier(8)
    found = []

    def first_call() -> None:
        start.wait()
        found.append(load())

    threads = [threading.Thread(target=first_call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(module is found[0] for module in found)
    assert len(cuda.log("cuModuleLoadData")) == 1


def in_child(check: Callable[[], None]) -> int:
    """Exit status of a forked child that runs a check."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            check()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.usefixtures("folder")
def test_a_fork_after_cuda_was_used_is_refused() -> None:
    load()

    def refused() -> None:
        with pytest.raises(loader.LoadError, match="used before this process was forked"):
            load()

    assert in_child(refused) == 0
    load()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.usefixtures("folder")
def test_a_fork_before_cuda_is_used_is_fine_even_while_a_thread_loads() -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with loader.lock():
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        assert in_child(lambda: launch(load())) == 0
    finally:
        done.set()
        thread.join()


# Devices


@pytest.mark.parametrize(
    "function",
    [
        "cuInit",
        "cuDeviceGet",
        "cuDeviceGetName",
        "cuDeviceGetAttribute",
        "cuDeviceGetUuid",
        "cuDriverGetVersion",
        "cuDevicePrimaryCtxRetain",
    ],
)
@pytest.mark.parametrize(
    ("status", "name"), [(100, "CUDA_ERROR_NO_DEVICE"), (2, "CUDA_ERROR_OUT_OF_MEMORY")]
)
def test_a_driver_that_fails_before_anything_is_loaded(
    folder: Path, cuda: FakeCuda, function: str, status: int, name: str
) -> None:
    cuda.fail(function, status)
    with pytest.raises(loader.LoadError, match=rf"the CUDA driver: {function} failed: {name}"):
        load()
    cuda.fail("", 0)
    assert load().image.source == str(folder / "v4.fatbin")


@pytest.mark.usefixtures("folder")
def test_a_device_that_is_not_there() -> None:
    with pytest.raises(loader.LoadError, match="INVALID_DEVICE"):
        load(9)


@pytest.mark.usefixtures("folder")
def test_a_driver_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MMAEMU_LIBCUDA_PATH", str(tmp_path / "none.so"))
    with pytest.raises(loader.LoadError, match=r"the CUDA driver: cannot load .*none\.so"):
        load()


FORCED = {
    "cuda-driver": "the CUDA driver: cuInit failed: forced by a test",
    "cuda-fatbin-manifest": "fatbin: no manifest: .*forced by a test",
    "cuda-fatbin-unlisted": "fatbin: v4.fatbin is not listed",
    "cuda-fatbin-hash": "fatbin: .* has sha256 ",
    "cuda-fatbin-stale": "fatbin: stale: v4.fatbin was built from another floor_fma.cu",
    "cuda-fatbin-image": "fatbin: no usable image: v4.fatbin holds",
    "cuda-load-100": r"\(100\)",
    "cuda-load-209": r"\(209\); it holds sm_89, the device has compute capability 8.9",
    "cuda-load-222": r"\(222\); the driver \(CUDA 12\) is older",
    "cuda-nvrtc": "NVRTC: cannot load NVRTC: forced by a test",
    "cuda-compile": "NVRTC: nvrtcCompileProgram failed: forced by a test",
}


@pytest.mark.parametrize("fault", FORCED)
@pytest.mark.usefixtures("folder")
def test_a_forced_failure(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    second = "cuda-compile" if fault.startswith("cuda-fatbin") else "cuda-fatbin-hash"
    monkeypatch.setenv("MMAEMU_TEST_FAULT", f"{fault},{second}")
    with pytest.raises(loader.LoadError, match=FORCED[fault]):
        load()


def test_every_failure_can_be_forced_by_its_name() -> None:
    assert FAULTS.keys() - FORCED.keys() == {"cuda-self-test", "cuda-probes"}
    with pytest.raises(KeyError, match="cuda-nonsense"):
        forced("cuda-nonsense")

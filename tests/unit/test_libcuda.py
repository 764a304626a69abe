"""The bindings of driver and NVRTC: signatures and errors, on a FAKE library and a real NVRTC.

No GPU is involved: a real NVRTC compiles without one.
"""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

import pytest

from cuda_driver import FakeCuda, made_up_fatbin
from mmaemu.backends import sources
from mmaemu.backends.cuda import compiled, fatbins, images
from mmaemu.backends.cuda.specs import MODULES, SOURCES, ModuleSpec
from mmaemu.bindings import libcuda, libnvrtc
from mmaemu.bindings.library import NativeLibraryError, StatusLibrary


class Parameter(ctypes.Structure):
    """A parameter of a kernel."""

    _fields_ = (("value", ctypes.c_int),)


def test_a_device_is_described(cuda: FakeCuda) -> None:
    driver = libcuda.open_launch_driver()
    device = driver.device(1)
    assert device == libcuda.Device(1, "Fake H100", 24, (9, 0))
    assert driver.uuid(device) == "00" * 15 + "01"
    assert driver.version() == 12080
    assert driver.current_device().handle == 0
    with driver.current(driver.retain_primary_context(device)):
        assert driver.current_device().handle == 1
    assert cuda.library.fake_current() == -1
    assert libcuda.open_launch_driver() is driver


def test_a_module_from_bytes_to_launch(cuda: FakeCuda) -> None:
    driver = libcuda.open_launch_driver()
    context = driver.retain_primary_context(driver.device(0))
    with driver.current(context):
        function = driver.function(driver.load_module(made_up_fatbin(["89"], ["one"])), "one")
        driver.allow_shared_bytes(function, 227 << 10)
        driver.launch(
            function,
            grid=(7, 8),
            threads=32,
            shared_bytes=64 << 10,
            stream=1 << 16,
            parameter=Parameter(1),
        )
        with pytest.raises(NativeLibraryError, match="INVALID_VALUE") as caught:
            driver.allow_shared_bytes(function, 228 << 10)
        assert caught.value.status == 1
        with pytest.raises(NativeLibraryError, match="NO_BINARY_FOR_GPU"):
            driver.load_module(made_up_fatbin(["90"], ["one"]))
    (launch,) = cuda.log("cuLaunchKernel")
    assert launch[2]["grid"] == "7x8"
    assert (launch[2]["block"], launch[2]["shared"]) == ("32", "65536")


@pytest.mark.usefixtures("cuda")
def test_a_lookup_without_context_is_an_error() -> None:
    driver = libcuda.open_launch_driver()
    with pytest.raises(NativeLibraryError, match=r"CUDA_ERROR_INVALID_CONTEXT \(201\)"):
        driver.load_module(made_up_fatbin(["89"], ["one"]))


def test_every_status_that_decides_something_has_a_name() -> None:
    for status in (*libcuda.IMAGE_FAILURES, *libcuda.CONTEXT_LOSSES, libcuda.NO_DEVICE):
        assert libcuda.describe_status(status).startswith("CUDA_ERROR_")
    assert not libcuda.IMAGE_FAILURES & libcuda.CONTEXT_LOSSES
    assert libcuda.describe_status(12345) == "unlisted CUresult"


@pytest.mark.usefixtures("cuda")
def test_nvrtc_is_the_one_named(monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc = libnvrtc.open_nvrtc()
    assert nvrtc.version == (12, 8)
    assert nvrtc.architectures() == (75, 80, 86, 89, 90)
    assert libnvrtc.open_nvrtc() is nvrtc
    monkeypatch.delenv("MMAEMU_NVRTC_PATH")
    monkeypatch.setattr(libnvrtc, "_default_names", tuple)
    with pytest.raises(NativeLibraryError, match="torch came without NVRTC, and MMAEMU_NVRTC_PATH"):
        libnvrtc.open_nvrtc()


def test_where_nvrtc_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lib = tmp_path / "cuda_nvrtc" / "lib"
    lib.mkdir(parents=True)
    for name in ("libnvrtc.so.12", "libnvrtc-builtins.so.12.8", "libnvrtc.alt.so.12", "nvrtc.txt"):
        (lib / name).touch()
    spec = importlib.util.spec_from_loader("nvidia", None, is_package=True)
    assert spec is not None
    spec.submodule_search_locations = [str(tmp_path)]
    found = {"nvidia": spec}
    libnvrtc._default_names.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", found.get)
        names = libnvrtc._default_names()
    libnvrtc._default_names.cache_clear()
    assert names == (str(lib / "libnvrtc.so.12"), "libnvrtc.so.13", "libnvrtc.so.12")


def test_the_builtins_are_loaded_first(
    cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVRTC looks for them by name alone, which finds them only once they are loaded.

    Builtins that cannot be loaded are no error yet: compiling says what is missing.
    """
    builtins = tmp_path / "libnvrtc-builtins.so.12.8"
    builtins.write_bytes(b"damaged")
    library = tmp_path / "libnvrtc.so.12"
    library.write_bytes(cuda.path.read_bytes())
    loaded: list[str] = []
    real = ctypes.CDLL

    def spy(name: str, mode: int = ctypes.DEFAULT_MODE) -> ctypes.CDLL:
        loaded.append(name)
        return real(name, mode)

    monkeypatch.setattr(ctypes, "CDLL", spy)
    assert libnvrtc.Nvrtc((str(library),)).version == (12, 8)
    assert loaded == [str(builtins), str(library)]


@pytest.mark.usefixtures("cuda")
def test_a_library_that_is_no_nvrtc() -> None:
    with pytest.raises(NativeLibraryError, match="has no function nvrtcNoSuchThing"):
        StatusLibrary([str(libnvrtc.open_nvrtc()._library.name)], {"nvrtcNoSuchThing": ()}, str)


# The real NVRTC, where the toolchain's wheel or torch brought one.


@pytest.fixture(scope="module")
def real_nvrtc() -> libnvrtc.Nvrtc:
    libnvrtc._default_names.cache_clear()
    names = [name for name in libnvrtc._default_names() if Path(name).is_file()]
    if not names:
        pytest.skip("no NVRTC is installed")
    return libnvrtc.Nvrtc(tuple(names))


@pytest.mark.parametrize(
    "module",
    [module for module in MODULES if module.name in {"v1", "v4", "probes"}],
    ids=lambda module: str(module.name),
)
def test_a_module_compiles_without_any_include_path(
    real_nvrtc: libnvrtc.Nvrtc, module: ModuleSpec
) -> None:
    """B42: a source includes only the project's own headers, which come by name.

    tests/nvrtc compiles all modules for all architectures.
    """
    path = f"{SOURCES}/{module.source}"
    program = sources.program(sources.closure(fatbins.ROOT, path), path)
    arch = module.sass_archs[0]
    cubin = real_nvrtc.compile(*program, module.options(arch))
    assert cubin.startswith(b"\x7fELF")
    assert all(entry.encode() in cubin for entry in module.entries)


def test_ptx_ends_with_a_zero_byte(real_nvrtc: libnvrtc.Nvrtc) -> None:
    module = next(module for module in MODULES if module.name == "v1")
    assert module.ptx_arch is not None
    path = f"{SOURCES}/{module.source}"
    program = sources.program(sources.closure(fatbins.ROOT, path), path)
    ptx = real_nvrtc.compile(*program, module.options(module.ptx_arch, ptx=True), ptx=True)
    assert ptx.endswith(b"\0")
    assert b".target sm_75" in ptx


def test_a_compiler_message_is_passed_on(real_nvrtc: libnvrtc.Nvrtc) -> None:
    with pytest.raises(NativeLibraryError, match=r"NVRTC_ERROR_COMPILATION \(6\): (.|\n)*wrong"):
        real_nvrtc.compile("x.cu", b"wrong", {}, ())


# The frozen fatbins


def test_the_frozen_fatbins_are_loaded_by_every_device_they_are_meant_for(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real files; between two freezes they may be older than the sources."""
    monkeypatch.setattr(fatbins, "_check_sources", lambda *_: None)
    driver = libcuda.open_launch_driver()
    loaded = 0
    for module in MODULES:
        if not (fatbins.BIN / module.fatbin).exists():
            continue
        held = images.entries((fatbins.BIN / module.fatbin).read_bytes())
        assert {str(each) for each in held if not each.is_ptx} == {
            f"sm_{arch}" for arch in module.sass_archs
        }
        for capability in ((7, 5), (8, 0), (8, 9), (9, 0), (12, 0), (12, 1)):
            if not module.covers(capability):
                with pytest.raises(fatbins.RungError, match="no usable image"):
                    fatbins.fatbin(module, capability)
                continue
            image = fatbins.fatbin(module, capability)
            cuda.state.device[0].capability = 10 * capability[0] + capability[1]
            with driver.current(driver.retain_primary_context(driver.device(0))):
                handle = driver.load_module(image.data)
                assert all(driver.function(handle, entry) for entry in module.entries)
            loaded += 1
    assert loaded > 20


def test_a_real_cubin_is_loaded_by_its_device_only(
    cuda: FakeCuda, real_nvrtc: libnvrtc.Nvrtc
) -> None:
    module = next(module for module in MODULES if module.name == "probes")
    path = f"{SOURCES}/{module.source}"
    program = sources.program(sources.closure(fatbins.ROOT, path), path)
    target = compiled.choose(module, (8, 9), real_nvrtc.architectures())
    cubin = real_nvrtc.compile(*program, module.options(target.arch))
    driver = libcuda.open_launch_driver()
    for ordinal, fits in ((0, True), (1, False), (3, False)):
        with driver.current(driver.retain_primary_context(driver.device(ordinal))):
            if fits:
                handle = driver.load_module(cubin)
                assert all(driver.function(handle, entry) for entry in module.entries)
            else:
                with pytest.raises(NativeLibraryError, match="NO_BINARY_FOR_GPU"):
                    driver.load_module(cubin)
    assert cuda.log("cuModuleGetFunction")

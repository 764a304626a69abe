"""The FAKE CUDA driver and NVRTC of fake_cuda.c as fixtures, and made-up fatbins for it.

Tensors are on the CPU: the seam mmaemu/backends/cuda/device.py says which device, stream and
capture state a call has, and the registry hands CPU tensors to the CUDA family.
"""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import host_cuda
from mmaemu import _settings, calls, cautions
from mmaemu.backends import registry, sources
from mmaemu.backends.cuda import device, launch, loader, probes
from mmaemu.backends.cuda.fatbins import MANIFEST, ROOT, SCHEMA
from mmaemu.backends.cuda.specs import MODULES, SOURCES, ModuleSpec
from mmaemu.bindings import libcuda, libnvrtc

SOURCE = Path(__file__).with_name("fake_cuda.c")
DEVICES = (("Fake RTX 4060", 89), ("Fake H100", 90), ("Fake RTX 2080", 75), ("Fake A100", 80))


class DeviceState(ctypes.Structure):
    """`fake.device[i]` of fake_cuda.c."""

    _fields_ = (
        ("name", ctypes.c_char * 64),
        ("capability", ctypes.c_int32),
        ("sm_count", ctypes.c_int32),
        ("uuid", ctypes.c_uint8 * 16),
    )


class FakeState(ctypes.Structure):
    """`fake` of fake_cuda.c: what there is and how it answers."""

    _fields_ = (
        ("failing", ctypes.c_char * 64),
        ("status", ctypes.c_int32),
        ("driver_version", ctypes.c_int32),
        ("ptx_version", ctypes.c_int32),
        ("devices", ctypes.c_int32),
        ("device", DeviceState * 4),
    )


@dataclasses.dataclass
class FakeCuda:
    """The loaded fake, and what torch would say about the calling thread.

    Attributes:
        path: the shared library.
        library: loaded.
        state: what there is and how it answers.
        ordinal: the device of every tensor.
        stream: the current stream of that device.
        capturing: whether it is being captured.
        simulated: the tensor cores of host modules, until it is closed.
    """

    path: Path
    library: Any
    state: Any
    ordinal: int = 0
    stream: int = 0
    capturing: bool = False
    simulated: ExitStack = dataclasses.field(default_factory=ExitStack)

    def fail(self, function: str, status: int) -> None:
        """Let a function answer with a status; "" for none."""
        self.state.failing = function.encode()
        self.state.status = status

    def log(self, *functions: str) -> list[tuple[int, str, dict[str, str]]]:
        """The calls so far, or those of some functions: thread, function, arguments."""
        found = []
        for line in self.library.fake_log().decode().splitlines():
            thread, function, *arguments = line.split(" ")
            named = dict(each.split("=", 1) for each in arguments)
            if not functions or function in functions:
                found.append((int(thread), function, named))
        return found

    def names(self) -> list[str]:
        """The functions called so far, in order."""
        return [function for _, function, _ in self.log()]

    def forget_calls(self) -> None:
        """Empty the log."""
        self.library.fake_forget_calls()

    def run_on_host(self, *modules: str, tensor_core: str = "ampere") -> None:
        """Let launches of these modules' kernels run as they were compiled for the host.

        Args:
            modules: names of modules.
            tensor_core: the device in `host_cuda.TENSOR_CORES` whose matrix units they have.
        """
        for name in modules:
            module = host_cuda.load(name)
            units = host_cuda.TENSOR_CORES[tensor_core]
            self.simulated.enter_context(module.tensor_core(units))
            address = ctypes.cast(module._launch, ctypes.c_void_p)
            parameter = probes.Parameter if name == probes.MODULE else launch.Parameter
            size = ctypes.c_ulonglong(ctypes.sizeof(parameter))
            for entry in host_cuda.module_spec(name).entries:
                assert self.library.fake_host(entry.encode(), address, size) == 0


@pytest.fixture(scope="session")
def compiled_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shared library of the fake."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("no C compiler that makes a shared library of the fake")
    path = tmp_path_factory.mktemp("fake") / "libfake_cuda.so"
    command = [compiler, "-shared", "-fPIC", "-pthread", "-o", str(path), str(SOURCE)]
    subprocess.run(command, check=True)
    return path


@pytest.fixture
def cuda(
    compiled_driver: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[FakeCuda]:
    """Four fake devices, an empty cache, and nothing remembered from other tests."""
    for setting in _settings.SETTINGS:
        if setting.audience == "package" or setting.name == "TEST_FAULT":
            monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.setenv("MMAEMU_LIBCUDA_PATH", str(compiled_driver))
    monkeypatch.setenv("MMAEMU_NVRTC_PATH", str(compiled_driver))
    monkeypatch.setenv("MMAEMU_CACHE_DIR", str(tmp_path / "cache"))
    library = ctypes.CDLL(str(compiled_driver))
    library.fake_log.restype = ctypes.c_char_p
    fake = FakeCuda(compiled_driver, library, FakeState.in_dll(library, "fake"))
    ctypes.memset(ctypes.byref(fake.state), 0, ctypes.sizeof(fake.state))
    fake.state.driver_version, fake.state.ptx_version, fake.state.devices = 12080, 87, 4
    for number, (name, capability) in enumerate(DEVICES):
        each = fake.state.device[number]
        each.name, each.capability, each.sm_count = name.encode(), capability, 24
        each.uuid[15] = number
    library.fake_reset()
    monkeypatch.setattr(device, "ordinal", lambda _: fake.ordinal)
    monkeypatch.setattr(device, "stream", lambda _: fake.stream)
    monkeypatch.setattr(device, "is_capturing", lambda: fake.capturing)
    rows = tuple(
        dataclasses.replace(row, device="cpu") if row.name == "cuda" else row
        for row in registry.FAMILIES
    )
    monkeypatch.setattr(registry, "FAMILIES", rows)
    monkeypatch.setattr(registry, "_ANY", tuple((row, None) for row in rows))
    monkeypatch.setattr(cautions, "_issued", set())
    _forget()
    with fake.simulated:
        yield fake
    _forget()


_REMEMBERED = (
    registry._load,
    registry._is_built,
    libcuda._open,
    libcuda._open_launch,
    libnvrtc._open,
    libnvrtc._default_names,
    calls._decide_scaled_mm,
    calls._decide_accumulate,
)


def _forget() -> None:
    for each in _REMEMBERED:
        each.cache_clear()
    loader.forget()


def made_up_fatbin(images: Sequence[str], entries: Sequence[str]) -> bytes:
    """A fatbin that the fake driver loads: headers as they should be, and names of kernels.

    Args:
        images: architectures such as "89", "90a" or, for PTX, "compute_80".
        entries: names of the kernels.
    """
    body = b""
    for image in images:
        is_ptx = image.startswith("compute_")
        arch = int(image.removeprefix("compute_").rstrip("a"))
        names = "\n".join(entries)
        text = f".version 8.7\n.target sm_{arch}\n{names}".encode()
        payload = text if is_ptx else b"\x7fELF" + text
        payload += bytes(-len(payload) % 8)
        flags = 0x100000 if image.endswith("a") else 0
        body += struct.pack("<HHIQ", 1 if is_ptx else 2, 0x101, 64, len(payload))
        body += struct.pack("<IIHHIIIQQQ", 0, 0, 0, 0, arch, 0, 0, flags, 0, 0)
        body += payload
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def write_fatbins(
    folder: Path, *names: str, images: Sequence[str] = (), validated_on: Sequence[str] = ()
) -> Path:
    """Write made-up fatbins of modules with a manifest that fits them.

    Args:
        folder: where to.
        names: modules.
        images: architectures; those of each module's row if there are none.
        validated_on: devices that there is evidence for.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = {}
    for module in MODULES:
        if module.name not in names:
            continue
        data = made_up_fatbin(images or _architectures(module), module.entries)
        (folder / module.fatbin).write_bytes(data)
        found = sources.hashes(sources.closure(ROOT, f"{SOURCES}/{module.source}"))
        digest = hashlib.sha256(data).hexdigest()
        rows[module.fatbin] = {
            "sha256": digest,
            "sources": found,
            "defines": list(module.defines),
            "validated_on": list(validated_on),
        }
    manifest = json.dumps({"schema": SCHEMA, "modules": rows})
    (folder / MANIFEST).write_text(manifest, encoding="utf-8")
    return folder


def _architectures(module: ModuleSpec) -> tuple[str, ...]:
    ptx = () if module.ptx_arch is None else (f"compute_{module.ptx_arch}",)
    return (*module.sass_archs, *ptx)

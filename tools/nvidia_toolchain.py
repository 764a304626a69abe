"""NVIDIA's CUDA compiler without a GPU, a driver or a host compiler: NVRTC and nvFatbin.

Sources and headers are handed over in memory under their repository path, with a fixed list of
options and no line information: so the bytes depend on the sources and the compiler alone. The
libraries come from a CUDA toolkit whose nvcc is the pinned version, or from the pinned wheels.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from files import ROOT
from findings import UnusableError

sys.path.insert(0, str(ROOT))
from mmaemu.backends.sources import Program

VERSION: Final = "12.8.61"
COMPILER: Final = f"CUDA 12.8.0 compiler V{VERSION} through NVRTC"
NVFATBIN: Final = "12.8.55"
# It makes NVRTC report what each kernel spills, and does not change the code.
REPORT: Final = "--ptxas-options=-v"
FATBIN_OPTIONS: Final = ("-64", "-host=linux", "-compress=false")
GROUP: Final = "install the dependency group `cuda`"
_WHEELS: Final = {
    "libnvrtc.so.12": ("nvidia-cuda-nvrtc-cu12", "nvidia.cuda_nvrtc", VERSION),
    "libnvfatbin.so.12": ("nvidia-nvfatbin-cu12", "nvidia.nvfatbin", NVFATBIN),
}
_STATED: Final = re.compile(r"\bV(\d+\.\d+\.\d+)")
_USAGE: Final = re.compile(
    r"Function properties for (\S+)\s[^\d]*"
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
)
_WARNING: Final = re.compile(r"\bwarning\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Toolkit:
    """Where the compiler's libraries are.

    Attributes:
        nvrtc: the library that compiles.
        nvfatbin: the library that packs.
        origin: in words, where they come from.
        passed_over: toolkits that were found and are not the pinned version.
    """

    nvrtc: Path
    nvfatbin: Path
    origin: str
    passed_over: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Image:
    """What the compiler makes of a source for one architecture.

    Attributes:
        arch: compute capability, such as "90a".
        cubin: machine code.
        ptx: the text between source and machine code.
        spills: bytes that each function stores to and loads from local memory for want of
            registers.
        warnings: lines of the compiler's log.
    """

    arch: str
    cubin: bytes
    ptx: str
    spills: Mapping[str, int]
    warnings: tuple[str, ...]


def find_toolkit(nvcc: str | None = None, environ: Mapping[str, str] = os.environ) -> Toolkit:
    """The pinned compiler: `nvcc`, $NVCC, $CUDA_HOME/bin, PATH, then the pinned wheels.

    Args:
        nvcc: path of an nvcc whose toolkit is to be used.
        environ: environment variables.

    Raises:
        UnusableError: what was asked for is another version, or there is none anywhere.
    """
    named = nvcc or environ.get("NVCC")
    if named:
        return _beside(Path(named), "--nvcc" if nvcc else "$NVCC")
    passed = []
    for program, origin in _found(environ):
        try:
            return _beside(program, origin)
        except UnusableError as error:
            passed.append(str(error))
    nvrtc, nvfatbin = (_in_wheel(name, *wheel) for name, wheel in _WHEELS.items())
    wheels = " and ".join(f"{wheel[0]}=={wheel[2]}" for wheel in _WHEELS.values())
    return Toolkit(nvrtc, nvfatbin, f"the wheels {wheels}", tuple(passed))


def _found(environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    if home := environ.get("CUDA_HOME"):
        yield Path(home, "bin", "nvcc"), "$CUDA_HOME"
    if on_path := shutil.which("nvcc", path=environ.get("PATH", "")):
        yield Path(on_path), "PATH"


def _beside(nvcc: Path, origin: str) -> Toolkit:
    """The libraries of the toolkit that an nvcc belongs to.

    Raises:
        UnusableError: it cannot be run, is another version, or lacks a library.
    """
    try:
        done = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise UnusableError(f"{origin}: cannot run {nvcc}: {error}") from error
    stated = _STATED.search(done.stdout)
    if stated is None or stated[1] != VERSION:
        got = stated[0] if stated else f"exit status {done.returncode} and no version"
        raise UnusableError(f"{origin}: expected nvcc V{VERSION}, got {got} from {nvcc}")
    root = nvcc.resolve().parent.parent
    folders = [root / "lib64", root / "lib", *sorted(root.glob("targets/*/lib"))]
    nvrtc, nvfatbin = (
        next((each / name for each in folders if (each / name).exists()), None) for name in _WHEELS
    )
    if nvrtc is None or nvfatbin is None:
        wanted = " and ".join(_WHEELS)
        raise UnusableError(f"{origin}: expected {wanted} in {root}, the toolkit of {nvcc}")
    return Toolkit(nvrtc, nvfatbin, f"the toolkit of {nvcc} ({origin})")


def _in_wheel(library: str, distribution: str, package: str, version: str) -> Path:
    try:
        found = metadata.version(distribution)
        spec = importlib.util.find_spec(package)
    except (metadata.PackageNotFoundError, ModuleNotFoundError) as error:
        raise UnusableError(f"{distribution}=={version} is not installed; {GROUP}") from error
    if found != version:
        raise UnusableError(f"expected {distribution} {version}, got {found}; {GROUP}")
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder, "lib", library)
        if path.exists():
            return path
    raise UnusableError(f"{distribution} {found} holds no {library} for this platform; {GROUP}")


def _words(items: Sequence[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(items))(*items)


class Compiler:
    """The compiler of a toolkit.

    Raises:
        UnusableError: a library cannot be loaded, or is another version than the pinned one.
    """

    def __init__(self, toolkit: Toolkit) -> None:
        self.toolkit = toolkit
        try:
            # It looks for its second library beside the path that it was loaded from.
            self._nvrtc = ctypes.CDLL(str(toolkit.nvrtc.resolve()))
            self._nvfatbin = ctypes.CDLL(str(toolkit.nvfatbin.resolve()))
        except OSError as error:
            raise UnusableError(f"cannot load the compiler: {error}; {GROUP}") from error
        self._nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        self._nvfatbin.nvFatbinGetErrorString.restype = ctypes.c_char_p
        # The library's interface tells 12.8 only; the head of its PTX tells the whole version.
        stated = _STATED.search(self.compile(Program("version.cu", b"", {}), "75", ()).ptx)
        if stated is None or stated[1] != VERSION:
            got = stated[0] if stated else "no version"
            raise UnusableError(f"expected NVRTC V{VERSION}, got {got} from {toolkit.nvrtc}")

    def compile(self, program: Program, arch: str, options: Sequence[str]) -> Image:
        """Compile a program for one architecture.

        Args:
            program: the source and its headers.
            arch: compute capability.
            options: of the compiler, without the architecture.

        Raises:
            UnusableError: the source does not compile; the message holds the compiler's log.
        """
        handle = ctypes.c_void_p()
        names = [name.encode() for name in program.headers]
        self._check(
            "nvrtcCreateProgram",
            ctypes.byref(handle),
            program.text,
            program.name.encode(),
            len(names),
            _words(list(program.headers.values())),
            _words(names),
        )
        try:
            words = [option.encode() for option in (*options, f"-arch=sm_{arch}", REPORT)]
            failed = self._nvrtc.nvrtcCompileProgram(handle, len(words), _words(words))
            log = self._read("ProgramLog", handle).rstrip(b"\0").decode(errors="replace")
            if failed:
                raise UnusableError(f"{program.name} does not compile for sm_{arch}:\n{log}")
            cubin, ptx = self._read("CUBIN", handle), self._read("PTX", handle)
        finally:
            self._nvrtc.nvrtcDestroyProgram(ctypes.byref(handle))
        text = ptx.rstrip(b"\0").decode()
        spills = {found[1]: int(found[3]) + int(found[4]) for found in _USAGE.finditer(log)}
        warnings = tuple(line for line in log.splitlines() if _WARNING.search(line))
        return Image(arch, cubin, text, spills, warnings)

    def pack(
        self, name: str, cubins: Sequence[tuple[str, bytes]], ptx: Sequence[tuple[str, str]]
    ) -> bytes:
        """Pack machine code and PTX into a fatbin.

        Args:
            name: identifier of the entries.
            cubins: compute capability and machine code.
            ptx: compute capability and text.

        Raises:
            UnusableError: nvFatbin refuses something.
        """
        handle = ctypes.c_void_p()
        options = _words([option.encode() for option in FATBIN_OPTIONS])
        self._pack("Create", ctypes.byref(handle), options, ctypes.c_size_t(len(FATBIN_OPTIONS)))
        try:
            for arch, code in cubins:
                size = ctypes.c_size_t(len(code))
                self._pack("AddCubin", handle, code, size, arch.encode(), name.encode())
            for arch, text in ptx:
                data = text.encode() + b"\0"
                size = ctypes.c_size_t(len(data))
                self._pack("AddPTX", handle, data, size, arch.encode(), name.encode(), b"")
            size = ctypes.c_size_t()
            self._pack("Size", handle, ctypes.byref(size))
            made = ctypes.create_string_buffer(size.value)
            self._pack("Get", handle, made)
        finally:
            self._nvfatbin.nvFatbinDestroy(ctypes.byref(handle))
        return made.raw

    def _check(self, function: str, *arguments: object) -> None:
        code = getattr(self._nvrtc, function)(*arguments)
        if code:
            reason = self._nvrtc.nvrtcGetErrorString(code).decode()
            raise UnusableError(f"{function} failed: {reason}")

    def _pack(self, function: str, *arguments: object) -> None:
        code = getattr(self._nvfatbin, f"nvFatbin{function}")(*arguments)
        if code:
            reason = self._nvfatbin.nvFatbinGetErrorString(code).decode()
            raise UnusableError(f"nvFatbin{function} failed: {reason}")

    def _read(self, what: str, handle: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        self._check(f"nvrtcGet{what}Size", handle, ctypes.byref(size))
        held = ctypes.create_string_buffer(size.value)
        self._check(f"nvrtcGet{what}", handle, held)
        return held.raw

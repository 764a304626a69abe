"""NVRTC, the run-time compiler of CUDA: signatures, where it is found, error translation.

MMAEMU_NVRTC_PATH names the library; without it the one that came with torch is taken. NVRTC opens
its own builtins library by name only, so that one is loaded first, from the same folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from mmaemu import _settings
from mmaemu.bindings.library import NativeLibraryError, StatusLibrary

_TEXT: Final = ctypes.c_char_p
_TEXTS: Final = ctypes.POINTER(ctypes.c_char_p)
_INT_POINTER: Final = ctypes.POINTER(ctypes.c_int)
_SIZE_POINTER: Final = ctypes.POINTER(ctypes.c_size_t)
_PROGRAM: Final = ctypes.c_void_p
_PROTOTYPES: Final = {
    "nvrtcVersion": (_INT_POINTER, _INT_POINTER),
    "nvrtcGetNumSupportedArchs": (_INT_POINTER,),
    "nvrtcGetSupportedArchs": (_INT_POINTER,),
    "nvrtcCreateProgram": (
        ctypes.POINTER(_PROGRAM),
        _TEXT,
        _TEXT,
        ctypes.c_int,
        _TEXTS,
        _TEXTS,
    ),
    "nvrtcDestroyProgram": (ctypes.POINTER(_PROGRAM),),
    "nvrtcCompileProgram": (_PROGRAM, ctypes.c_int, _TEXTS),
    **{
        f"nvrtcGet{what}{suffix}": (_PROGRAM, kind)
        for what in ("CUBIN", "PTX", "ProgramLog")
        for suffix, kind in (("Size", _SIZE_POINTER), ("", _TEXT))
    },
}
STATUS_NAMES: Final = dict(
    enumerate(
        (
            "NVRTC_SUCCESS",
            "NVRTC_ERROR_OUT_OF_MEMORY",
            "NVRTC_ERROR_PROGRAM_CREATION_FAILURE",
            "NVRTC_ERROR_INVALID_INPUT",
            "NVRTC_ERROR_INVALID_PROGRAM",
            "NVRTC_ERROR_INVALID_OPTION",
            "NVRTC_ERROR_COMPILATION",
            "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE",
        )
    )
)
_FOLDERS: Final = ("nvidia/cuda_nvrtc", "nvidia/cu13", "nvidia/cu12", "torch")
_LIBRARY: Final = re.compile(r"libnvrtc\.so\.\d+|nvrtc64_\d+_0\.dll")
_BUILTINS: Final = "*nvrtc-builtins*"


class Nvrtc:
    """A loaded NVRTC.

    Args:
        names: file names or paths to try in this order.

    Raises:
        NativeLibraryError: none of the names loads an NVRTC.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        for name in names:
            _preload_builtins(Path(name))
        self._library = StatusLibrary(names, _PROTOTYPES, describe_status)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._library.call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)

    def architectures(self) -> tuple[int, ...]:
        """Compute capabilities that it compiles for, as 10 * major + minor, in order.

        Raises:
            NativeLibraryError: the library does not answer.
        """
        count = ctypes.c_int()
        self._library.call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        values = (ctypes.c_int * count.value)()
        self._library.call("nvrtcGetSupportedArchs", values)
        return tuple(sorted(values))

    def compile(
        self,
        name: str,
        source: bytes,
        headers: Mapping[str, bytes],
        options: Sequence[str],
        *,
        ptx: bool = False,
    ) -> bytes:
        """Compile a program.

        Args:
            name: the program's name, which may show in the result.
            source: CUDA C++.
            headers: text of every header by the name that #include gives.
            options: options of the compiler.
            ptx: whether to return PTX, which ends with a zero byte, instead of a cubin.

        Raises:
            NativeLibraryError: it does not compile; the message holds the compiler's.
        """
        program = ctypes.c_void_p()
        self._library.call(
            "nvrtcCreateProgram",
            ctypes.byref(program),
            source,
            name.encode(),
            len(headers),
            _texts(headers.values()),
            _texts(each.encode() for each in headers),
        )
        try:
            self._compile(program, options)
            return self._output(program, "PTX" if ptx else "CUBIN")
        finally:
            with contextlib.suppress(NativeLibraryError):
                self._library.call("nvrtcDestroyProgram", ctypes.byref(program))

    def _compile(self, program: ctypes.c_void_p, options: Sequence[str]) -> None:
        texts = _texts(option.encode() for option in options)
        try:
            self._library.call("nvrtcCompileProgram", program, len(options), texts)
        except NativeLibraryError as error:
            log = self._output(program, "ProgramLog").rstrip(b"\0").decode(errors="replace").strip()
            raise NativeLibraryError(f"{error}: {log or 'no message'}", error.status) from error

    def _output(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._library.call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._library.call(f"nvrtcGet{what}", program, buffer)
        return buffer.raw


def _texts(values: Iterable[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    texts = tuple(values)
    return (ctypes.c_char_p * len(texts))(*texts)


def describe_status(status: int) -> str:
    """Name of an nvrtcResult, as nvrtc.h spells it."""
    return STATUS_NAMES.get(status, "unlisted nvrtcResult")


def open_nvrtc() -> Nvrtc:
    """The NVRTC of MMAEMU_NVRTC_PATH, else the one that came with torch.

    Raises:
        NativeLibraryError: there is none.
    """
    chosen = _settings.path("NVRTC_PATH")
    names = (str(chosen),) if chosen else _default_names()
    if not names:
        raise NativeLibraryError("torch came without NVRTC, and MMAEMU_NVRTC_PATH is not set")
    return _open(names)


def _preload_builtins(library: Path) -> None:
    """Load the builtins beside an NVRTC; where that fails, compiling says so."""
    if not library.parent.is_dir() or library.parent == Path():
        return
    mode = getattr(ctypes, "RTLD_GLOBAL", 0)
    for builtins in sorted(library.parent.glob(_BUILTINS)):
        with contextlib.suppress(OSError):
            ctypes.CDLL(str(builtins), mode=mode)


@functools.cache
def _default_names() -> tuple[str, ...]:
    """The libraries in torch's own folders and its wheels', and then on the search path."""
    found = []
    for folder in _FOLDERS:
        package, _, rest = folder.partition("/")
        spec = importlib.util.find_spec(package)
        for place in spec.submodule_search_locations or () if spec else ():
            for sub in ("lib", "bin"):
                files = (Path(place) / rest / sub).glob("*nvrtc*")
                found += sorted(str(file) for file in files if _LIBRARY.fullmatch(file.name))
    if sys.platform != "win32":
        found += ["libnvrtc.so.13", "libnvrtc.so.12"]
    return tuple(found)


@functools.cache
def _open(names: tuple[str, ...]) -> Nvrtc:
    return Nvrtc(names)

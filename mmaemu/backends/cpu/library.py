"""The prebuilt library: which file fits this platform, its hash check, and its C interface."""

from __future__ import annotations

import ctypes
import hashlib
import json
import platform
import sys
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from mmaemu import _settings

BIN: Final = Path(__file__).with_name("bin")
MANIFEST: Final = "manifest.json"
ABI: Final = 1
NO_FLOOR: Final = -(1 << 31)
KERNELS: Final = ("scalar", "cvtt", "wide", "floor_fma", "floor_fma_double")
ISAS: Final = ("scalar", "sse2", "avx2", "avx512", "neon")
OK, BAD_SIZE, BAD_MODEL, BAD_ISA, BAD_SCRATCH, NONFINITE = range(6)

_FILES: Final = {
    ("linux", "x86_64"): "mmaemu-cpu-x86_64-linux.so",
    ("linux", "aarch64"): "mmaemu-cpu-aarch64-linux.so",
    ("darwin", "x86_64"): "mmaemu-cpu-x86_64-macos.dylib",
    ("darwin", "arm64"): "mmaemu-cpu-arm64-macos.dylib",
    ("win32", "x86_64"): "mmaemu-cpu-x86_64-windows.dll",
}
_ISAS_OF: Final = {
    "x86_64": ("scalar", "sse2", "avx2", "avx512"),
    **dict.fromkeys(("aarch64", "arm64"), ("scalar", "neon")),
}
_MAX_32_BIT: Final = 1 << 32


class Request(ctypes.Structure):
    """`struct mmaemu_request` of csrc/cpu/abi.h, which documents the fields.

    Attributes:
        tensors: what a thread must keep alive, since `a`, `b` and `out` are only addresses.
    """

    tensors: object = None
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("abi", "kernel", "isa", "format_a", "format_b")),
        *((name, ctypes.c_int32) for name in ("dot_length", "fraction_bits")),
        *((name, ctypes.c_int32) for name in ("result_fraction_bits", "min_exponent", "late")),
        *((name, ctypes.c_int32) for name in ("groups", "residues", "operand_floor")),
        *((name, ctypes.c_int32) for name in ("group_of", "partition", "tile_columns")),
        *((name, ctypes.c_int64) for name in ("slices", "tile", "promotion", "m", "n", "k")),
        *((name, ctypes.c_int64) for name in ("lda", "ldb", "ldc")),
        *((name, ctypes.c_void_p) for name in ("a", "b", "out")),
        ("next", ctypes.c_int64),
        ("result", ctypes.c_void_p),
        *((name, ctypes.c_uint32) for name in ("alpha", "scale_result")),
        *((name, ctypes.c_int32) for name in ("has_scale_result", "output")),
    )


class LibraryError(Exception):
    """The library cannot be used; the message is one sentence."""


class MissingLibraryError(LibraryError):
    """There is no library: none for this platform, or none in this installation."""


class Loaded(NamedTuple):
    """The library, or why there is none.

    Attributes:
        library: with argument types set; None if it cannot be used.
        source: the file; None if there is none for this platform.
        isas: names of the instruction sets that this CPU supports.
        reason: why it cannot be used.
        missing: whether there is none, rather than a broken one.
    """

    library: ctypes.CDLL | None
    source: str | None = None
    isas: frozenset[str] = frozenset()
    reason: str = ""
    missing: bool = False


@cache
def load() -> Loaded:
    """Load the library of this platform, once in a process. Never raises."""
    source = None
    try:
        file = BIN / file_name()
        source = str(file)
        check_file(file, fault="cpu-library" in _settings.faults())
        library = open_library(file)
    except LibraryError as error:
        missing = isinstance(error, MissingLibraryError)
        return Loaded(None, source, reason=str(error), missing=missing)
    mask = library.mmaemu_cpu_isas()
    return Loaded(library, source, frozenset(n for i, n in enumerate(ISAS) if mask >> i & 1))


def file_name() -> str:
    """Name of the library for this platform.

    Raises:
        LibraryError: there is none.
    """
    name = _FILES.get((sys.platform, _machine())) if sys.maxsize > _MAX_32_BIT else None
    if name is None:
        here = f"{platform.machine()} {sys.platform}"
        raise MissingLibraryError(f"no prebuilt CPU library for {here}")
    return name


def is_foreign(isa: str) -> bool:
    """Whether no CPU of this kind of machine has an instruction set."""
    return isa not in _ISAS_OF.get(_machine(), ISAS)


def _machine() -> str:
    machine = platform.machine().lower()
    return "x86_64" if machine == "amd64" else machine


def check_file(file: Path, *, fault: bool = False) -> None:
    """Compare a library with the manifest beside it; `fault` reads it as if it were damaged.

    Raises:
        LibraryError: either is missing, the library is not listed, or its bytes differ.
    """
    manifest = file.with_name(MANIFEST)
    if not file.exists():
        raise MissingLibraryError(f"{file.name} is not part of this installation; install a wheel")
    try:
        listed = json.loads(manifest.read_text(encoding="utf-8"))["modules"][file.name]
        wanted = listed["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{file.name} is not listed in {manifest}: {error!r}; reinstall mmaemu"
        raise LibraryError(reason) from error
    found = hashlib.sha256(file.read_bytes() + b"damage" * fault).hexdigest()
    if found != wanted:
        reason = f"{file.name} has sha256 {found[:12]}, its manifest says {str(wanted)[:12]}"
        raise LibraryError(f"{reason}; reinstall mmaemu")


def open_library(file: Path) -> ctypes.CDLL:
    """Load a library and declare its functions.

    Raises:
        LibraryError: the loader refuses it, or it is another version of the interface.
    """
    try:
        library = ctypes.CDLL(str(file))
        library.mmaemu_cpu_abi.restype = ctypes.c_uint32
        library.mmaemu_cpu_isas.restype = ctypes.c_uint32
        library.mmaemu_cpu_check.argtypes = (ctypes.POINTER(Request),)
        library.mmaemu_cpu_scratch_bytes.argtypes = (ctypes.POINTER(Request),)
        library.mmaemu_cpu_scratch_bytes.restype = ctypes.c_int64
        library.mmaemu_cpu_tiles.argtypes = (ctypes.POINTER(Request),)
        library.mmaemu_cpu_tiles.restype = ctypes.c_int64
        for run in (library.mmaemu_cpu_run, library.mmaemu_cpu_gemm):
            run.argtypes = (ctypes.POINTER(Request), ctypes.c_void_p, ctypes.c_int64)
        library.mmaemu_cpu_nonfinite.argtypes = (
            ctypes.c_void_p,
            *(ctypes.c_int64,) * 3,
            ctypes.c_int32,
        )
        library.mmaemu_cpu_finish.argtypes = (
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.c_uint32,
            ctypes.c_int32,
            ctypes.c_uint32,
            ctypes.c_int32,
            ctypes.c_void_p,
        )
    except (OSError, AttributeError) as error:
        raise LibraryError(f"{file.name} cannot be loaded: {error}") from error
    abi = library.mmaemu_cpu_abi()
    if abi != ABI:
        raise LibraryError(f"{file.name} has interface {abi}, expected {ABI}")
    return library

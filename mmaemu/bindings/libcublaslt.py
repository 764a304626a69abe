"""cuBLASLt's heuristic: which algorithm it would choose for one FP8 matrix product.

Only descriptors are made and the heuristic is asked; nothing is computed and no operand exists.
Nothing here has run on hardware in this project; the tests call it on a library of their own.
Enumeration values and structure sizes are those of cublasLt.h and library_types.h of CUDA 12.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mmaemu import _settings
from mmaemu.bindings.algoconfig import AlgoConfig
from mmaemu.bindings.library import NativeLibraryError, StatusLibrary

DATA_TYPES: Final = {
    "CUDA_R_32F": 0,
    "CUDA_R_16F": 2,
    "CUDA_R_16BF": 14,
    "CUDA_R_8F_E4M3": 28,
    "CUDA_R_8F_E5M2": 29,
}
"""cudaDataType values of the types an FP8 product can have."""

NOT_SUPPORTED: Final = 15
"""The cublasStatus_t of a product that cuBLASLt has no algorithm for."""

STATUS_NAMES: Final = {
    1: "CUBLAS_STATUS_NOT_INITIALIZED",
    3: "CUBLAS_STATUS_ALLOC_FAILED",
    7: "CUBLAS_STATUS_INVALID_VALUE",
    8: "CUBLAS_STATUS_ARCH_MISMATCH",
    11: "CUBLAS_STATUS_MAPPING_ERROR",
    13: "CUBLAS_STATUS_EXECUTION_FAILED",
    14: "CUBLAS_STATUS_INTERNAL_ERROR",
    NOT_SUPPORTED: "CUBLAS_STATUS_NOT_SUPPORTED",
    16: "CUBLAS_STATUS_LICENSE_ERROR",
}
"""cublasStatus_t values other than success."""

_COMPUTE_32F: Final = 68
_OP_N, _OP_T = 0, 1
# cublasLtMatmulDescAttributes_t
_DESC_TRANSA, _DESC_TRANSB = 3, 4
_DESC_A_SCALE_POINTER, _DESC_B_SCALE_POINTER = 17, 18
_DESC_FAST_ACCUM: Final = 25
# cublasLtMatmulPreferenceAttributes_t
_PREF_MAX_WORKSPACE_BYTES: Final = 1
_PREF_MIN_ALIGNMENTS: Final = (5, 6, 7, 8)
# cublasLtMatmulAlgoConfigAttributes_t with the type that cublasLt.h gives each.
_CONFIG_ID = (0, ctypes.c_int32)
_CONFIG_TILE_ID = (1, ctypes.c_uint32)
_CONFIG_SPLITK_NUM = (2, ctypes.c_int32)
_CONFIG_CUSTOM_OPTION = (5, ctypes.c_uint32)
# A scale pointer must be set, as torch sets it, for the descriptor to be the recorded one. It is
# never followed because nothing is launched; any aligned address that is not null serves.
_SCALE_ADDRESS: Final = 0x1000

_POINTER: Final = ctypes.c_void_p
_POINTER_OUT: Final = ctypes.POINTER(ctypes.c_void_p)


class _Algo(ctypes.Structure):
    _fields_ = (("data", ctypes.c_uint64 * 8),)


class _HeuristicResult(ctypes.Structure):
    _fields_ = (
        ("algo", _Algo),
        ("workspace_size", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves_count", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


_SET_ATTRIBUTE: Final = (_POINTER, ctypes.c_int, _POINTER, ctypes.c_size_t)
_PROTOTYPES: Final = {
    "cublasLtGetProperty": (ctypes.c_int, ctypes.POINTER(ctypes.c_int)),
    "cublasLtCreate": (_POINTER_OUT,),
    "cublasLtMatmulDescCreate": (_POINTER_OUT, ctypes.c_int, ctypes.c_int),
    "cublasLtMatmulDescDestroy": (_POINTER,),
    "cublasLtMatmulDescSetAttribute": _SET_ATTRIBUTE,
    "cublasLtMatrixLayoutCreate": (
        _POINTER_OUT,
        ctypes.c_int,
        ctypes.c_uint64,
        ctypes.c_uint64,
        ctypes.c_int64,
    ),
    "cublasLtMatrixLayoutDestroy": (_POINTER,),
    "cublasLtMatmulPreferenceCreate": (_POINTER_OUT,),
    "cublasLtMatmulPreferenceDestroy": (_POINTER,),
    "cublasLtMatmulPreferenceSetAttribute": _SET_ATTRIBUTE,
    "cublasLtMatmulAlgoGetHeuristic": (
        *(_POINTER,) * 7,
        ctypes.c_int,
        ctypes.POINTER(_HeuristicResult),
        ctypes.POINTER(ctypes.c_int),
    ),
    "cublasLtMatmulAlgoConfigGetAttribute": (
        ctypes.POINTER(_Algo),
        ctypes.c_int,
        _POINTER,
        ctypes.c_size_t,
        ctypes.POINTER(ctypes.c_size_t),
    ),
}


@dataclass(frozen=True, slots=True)
class MatmulQuery:
    """D[m, n] = transpose(A[k, m]) * B[k, n] in cuBLAS's column-major view, beta = 0.

    Attributes:
        m: columns of A, rows of C and D.
        n: columns of B, C and D.
        k: rows of A and B.
        leading_dimensions: of A, B, and of C and D together, in elements.
        types: type names (keys of `DATA_TYPES`) of A, B, C and D.
        fast_accum: the FAST_ACCUM attribute.
        workspace_bytes: the largest workspace allowed.
        alignment: bytes, the minimum alignment of every matrix; None leaves cuBLASLt's default.
    """

    m: int
    n: int
    k: int
    leading_dimensions: tuple[int, int, int]
    types: tuple[str, str, str, str]
    fast_accum: bool
    workspace_bytes: int
    alignment: int | None


class CublasLt:
    """A loaded cuBLASLt.

    Args:
        names: file names or paths to try in this order.

    Raises:
        NativeLibraryError: none of the names loads a cuBLASLt.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._library = StatusLibrary(names, _PROTOTYPES, describe_status)
        self._handles: dict[int, ctypes.c_void_p] = {}

    def version(self) -> tuple[int, int, int]:
        """Major, minor and patch number; the library does not tell its build number.

        Raises:
            NativeLibraryError: the library does not answer.
        """
        value = ctypes.c_int()
        numbers = []
        for which in range(3):
            self._library.call("cublasLtGetProperty", which, ctypes.byref(value))
            numbers.append(value.value)
        return (numbers[0], numbers[1], numbers[2])

    def heuristic(self, query: MatmulQuery, device: int) -> AlgoConfig:
        """The first algorithm that the heuristic returns.

        Args:
            query: the product, as the caller of cuBLASLt describes it.
            device: handle of the current device; every device gets a library handle of its own.

        Raises:
            NativeLibraryError: a call fails, or cuBLASLt has no algorithm for the product (its
                `status` is then `NOT_SUPPORTED`).
        """
        with contextlib.ExitStack() as stack:
            arguments = self._descriptors(query, stack)
            result, returned = _HeuristicResult(), ctypes.c_int()
            self._library.call(
                "cublasLtMatmulAlgoGetHeuristic",
                self._handle(device),
                *arguments,
                1,
                ctypes.byref(result),
                ctypes.byref(returned),
            )
            state = result.state if returned.value else NOT_SUPPORTED
            if state != 0:
                raise NativeLibraryError(
                    f"the heuristic returned no algorithm: {describe_status(state)} ({state})",
                    state,
                )
            return AlgoConfig(
                num_splits_k=self._config(result.algo, *_CONFIG_SPLITK_NUM),
                custom_option=self._config(result.algo, *_CONFIG_CUSTOM_OPTION),
                algo=self._config(result.algo, *_CONFIG_ID),
                tile=self._config(result.algo, *_CONFIG_TILE_ID),
            )

    def _handle(self, device: int) -> ctypes.c_void_p:
        if device not in self._handles:
            handle = ctypes.c_void_p()
            self._library.call("cublasLtCreate", ctypes.byref(handle))
            # Never destroyed: at interpreter exit the driver may already be gone.
            self._handles[device] = handle
        return self._handles[device]

    def _descriptors(
        self, query: MatmulQuery, stack: contextlib.ExitStack
    ) -> tuple[ctypes.c_void_p, ...]:
        """Operation, A, B, C, D and preference, destroyed when the stack closes."""
        operation = stack.enter_context(
            self._object("cublasLtMatmulDesc", _COMPUTE_32F, DATA_TYPES["CUDA_R_32F"])
        )
        for attribute, value in (
            (_DESC_TRANSA, ctypes.c_int32(_OP_T)),
            (_DESC_TRANSB, ctypes.c_int32(_OP_N)),
            (_DESC_A_SCALE_POINTER, ctypes.c_void_p(_SCALE_ADDRESS)),
            (_DESC_B_SCALE_POINTER, ctypes.c_void_p(_SCALE_ADDRESS)),
            (_DESC_FAST_ACCUM, ctypes.c_int8(query.fast_accum)),
        ):
            self._set("cublasLtMatmulDesc", operation, attribute, value)
        lda, ldb, ldc = query.leading_dimensions
        sizes = (
            (query.k, query.m, lda),
            (query.k, query.n, ldb),
            (query.m, query.n, ldc),
            (query.m, query.n, ldc),
        )
        layouts = [
            stack.enter_context(self._object("cublasLtMatrixLayout", DATA_TYPES[name], *size))
            for name, size in zip(query.types, sizes, strict=True)
        ]
        preference = stack.enter_context(self._object("cublasLtMatmulPreference"))
        workspace = ctypes.c_uint64(query.workspace_bytes)
        self._set("cublasLtMatmulPreference", preference, _PREF_MAX_WORKSPACE_BYTES, workspace)
        if query.alignment is not None:
            for attribute in _PREF_MIN_ALIGNMENTS:
                alignment = ctypes.c_uint32(query.alignment)
                self._set("cublasLtMatmulPreference", preference, attribute, alignment)
        return (operation, *layouts, preference)

    @contextlib.contextmanager
    def _object(self, kind: str, *arguments: int) -> Iterator[ctypes.c_void_p]:
        created = ctypes.c_void_p()
        self._library.call(f"{kind}Create", ctypes.byref(created), *arguments)
        try:
            yield created
        finally:
            self._library.call(f"{kind}Destroy", created)

    def _set(
        self,
        kind: str,
        target: ctypes.c_void_p,
        attribute: int,
        value: ctypes._SimpleCData[int] | ctypes.c_void_p,
    ) -> None:
        self._library.call(
            f"{kind}SetAttribute", target, attribute, ctypes.byref(value), ctypes.sizeof(value)
        )

    def _config(
        self, algo: _Algo, attribute: int, kind: type[ctypes.c_int32 | ctypes.c_uint32]
    ) -> int:
        value, written = kind(), ctypes.c_size_t()
        self._library.call(
            "cublasLtMatmulAlgoConfigGetAttribute",
            ctypes.byref(algo),
            attribute,
            ctypes.byref(value),
            ctypes.sizeof(value),
            ctypes.byref(written),
        )
        return int(value.value)


def describe_status(status: int) -> str:
    """Name of a cublasStatus_t, as cublas_api.h spells it."""
    return STATUS_NAMES.get(status, "unlisted cublasStatus_t")


def open_cublaslt(major: int) -> CublasLt:
    """The cuBLASLt of a major version: MMAEMU_CUBLASLT_PATH, else the one a torch process uses.

    Args:
        major: major version, which is part of the library's file name.

    Raises:
        NativeLibraryError: there is none.
    """
    chosen = _settings.path("CUBLASLT_PATH")
    library = _open((str(chosen),) if chosen else _default_names(major))
    if isinstance(library, str):
        raise NativeLibraryError(library)
    return library


@functools.cache
def _default_names(major: int) -> tuple[str, ...]:
    """Where the library is looked for: loaded or on the search path, then in torch's wheels."""
    if sys.platform == "win32":
        name, folders = f"cublasLt64_{major}.dll", ("torch/lib", "nvidia/cublas/bin")
    else:
        name, folders = f"libcublasLt.so.{major}", ("nvidia/cublas/lib", "torch/lib")
    names = [name]
    for folder in folders:
        package, _, rest = folder.partition("/")
        spec = importlib.util.find_spec(package)
        places = spec.submodule_search_locations if spec else None
        names += [str(Path(place) / rest / name) for place in places or ()]
    return tuple(names)


@functools.cache
def _open(names: tuple[str, ...]) -> CublasLt | str:
    try:
        return CublasLt(names)
    except NativeLibraryError as error:
        return str(error)

"""The CUDA driver library: which GPU would run a call, and how a kernel is loaded and launched.

Signatures and error translation only. The tests call it on a driver library of their own.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
from collections.abc import Iterator
from typing import Final, NamedTuple

from mmaemu import _settings
from mmaemu.bindings.library import NativeLibraryError, StatusLibrary

_INT_POINTER: Final = ctypes.POINTER(ctypes.c_int)
_HANDLE_POINTER: Final = ctypes.POINTER(ctypes.c_void_p)
_PROTOTYPES: Final = {
    "cuInit": (ctypes.c_uint,),
    "cuCtxGetDevice": (_INT_POINTER,),
    "cuDeviceGet": (_INT_POINTER, ctypes.c_int),
    "cuDeviceGetName": (ctypes.c_char_p, ctypes.c_int, ctypes.c_int),
    "cuDeviceGetAttribute": (_INT_POINTER, ctypes.c_int, ctypes.c_int),
}
_LAUNCH_PROTOTYPES: Final = {
    **_PROTOTYPES,
    "cuDriverGetVersion": (_INT_POINTER,),
    "cuDeviceGetUuid": (ctypes.c_char_p, ctypes.c_int),
    "cuDevicePrimaryCtxRetain": (_HANDLE_POINTER, ctypes.c_int),
    "cuCtxPushCurrent_v2": (ctypes.c_void_p,),
    "cuCtxPopCurrent_v2": (_HANDLE_POINTER,),
    "cuModuleLoadData": (_HANDLE_POINTER, ctypes.c_char_p),
    "cuModuleGetFunction": (_HANDLE_POINTER, ctypes.c_void_p, ctypes.c_char_p),
    "cuFuncSetAttribute": (ctypes.c_void_p, ctypes.c_int, ctypes.c_int),
    "cuLaunchKernel": (
        ctypes.c_void_p,
        *(ctypes.c_uint,) * 7,
        ctypes.c_void_p,
        _HANDLE_POINTER,
        _HANDLE_POINTER,
    ),
}
_STATUS_NAMES: Final = {
    1: "CUDA_ERROR_INVALID_VALUE",
    2: "CUDA_ERROR_OUT_OF_MEMORY",
    3: "CUDA_ERROR_NOT_INITIALIZED",
    4: "CUDA_ERROR_DEINITIALIZED",
    34: "CUDA_ERROR_STUB_LIBRARY",
    46: "CUDA_ERROR_DEVICE_UNAVAILABLE",
    100: "CUDA_ERROR_NO_DEVICE",
    101: "CUDA_ERROR_INVALID_DEVICE",
    200: "CUDA_ERROR_INVALID_IMAGE",
    201: "CUDA_ERROR_INVALID_CONTEXT",
    209: "CUDA_ERROR_NO_BINARY_FOR_GPU",
    214: "CUDA_ERROR_ECC_UNCORRECTABLE",
    218: "CUDA_ERROR_INVALID_PTX",
    221: "CUDA_ERROR_JIT_COMPILER_NOT_FOUND",
    222: "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
    223: "CUDA_ERROR_JIT_COMPILATION_DISABLED",
    400: "CUDA_ERROR_INVALID_HANDLE",
    500: "CUDA_ERROR_NOT_FOUND",
    700: "CUDA_ERROR_ILLEGAL_ADDRESS",
    701: "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
    702: "CUDA_ERROR_LAUNCH_TIMEOUT",
    708: "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE",
    709: "CUDA_ERROR_CONTEXT_IS_DESTROYED",
    715: "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    716: "CUDA_ERROR_MISALIGNED_ADDRESS",
    719: "CUDA_ERROR_LAUNCH_FAILED",
    801: "CUDA_ERROR_NOT_SUPPORTED",
    802: "CUDA_ERROR_SYSTEM_NOT_READY",
    803: "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    900: "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
    999: "CUDA_ERROR_UNKNOWN",
}
# CUdevice_attribute and CUfunction_attribute values of cuda.h.
_MULTIPROCESSOR_COUNT: Final = 16
_CAPABILITY_MAJOR: Final = 75
_CAPABILITY_MINOR: Final = 76
_MAX_DYNAMIC_SHARED_SIZE_BYTES: Final = 8
_NAME_BYTES: Final = 256
_UUID_BYTES: Final = 16

NO_DEVICE: Final = 100
NO_BINARY_FOR_GPU: Final = 209
UNSUPPORTED_PTX_VERSION: Final = 222
IMAGE_FAILURES: Final = frozenset({200, NO_BINARY_FOR_GPU, 218, 221, UNSUPPORTED_PTX_VERSION, 223})
"""Statuses of a load that are about the image, so that another image may do."""
CONTEXT_LOSSES: Final = frozenset({4, 201, 400, 700, 702, 709, 715, 716, 719})
"""Statuses after which a context, and every module in it, must not be used again."""


class Device(NamedTuple):
    """A GPU as the driver describes it."""

    handle: int
    name: str
    sm_count: int
    capability: tuple[int, int]


class Driver:
    """The initialised driver library.

    Args:
        names: file names or paths to try.

    Raises:
        NativeLibraryError: no driver library loads, or it cannot be initialised.
    """

    _prototypes = _PROTOTYPES

    def __init__(self, names: tuple[str, ...]) -> None:
        self._library = StatusLibrary(names, self._prototypes, describe_status)
        self._library.call("cuInit", 0)

    def current_device(self) -> Device:
        """The device of this thread's current context, else the first device.

        Raises:
            NativeLibraryError: there is no device, or the driver does not describe it.
        """
        handle = ctypes.c_int()
        try:
            self._library.call("cuCtxGetDevice", ctypes.byref(handle))
        except NativeLibraryError:
            # No context is current in this thread: CUDA libraries would then use device 0.
            return self.device(0)
        return self._described(handle)

    def device(self, ordinal: int) -> Device:
        """The device with a number, as CUDA_VISIBLE_DEVICES numbers them.

        Raises:
            NativeLibraryError: there is none, or the driver does not describe it.
        """
        handle = ctypes.c_int()
        self._library.call("cuDeviceGet", ctypes.byref(handle), ordinal)
        return self._described(handle)

    def _described(self, handle: ctypes.c_int) -> Device:
        name = ctypes.create_string_buffer(_NAME_BYTES)
        self._library.call("cuDeviceGetName", name, _NAME_BYTES, handle)
        major, minor, sm_count = (
            self._attribute(handle, attribute)
            for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR, _MULTIPROCESSOR_COUNT)
        )
        return Device(handle.value, name.value.decode(), sm_count, (major, minor))

    def _attribute(self, device: ctypes.c_int, attribute: int) -> int:
        value = ctypes.c_int()
        self._library.call("cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
        return value.value


class LaunchDriver(Driver):
    """A driver that also loads and launches. Every method may raise NativeLibraryError.

    Handles (contexts, modules, functions, streams) are plain integers.
    """

    _prototypes = _LAUNCH_PROTOTYPES

    def version(self) -> int:
        """The CUDA version that the driver supports, as 1000 * major + 10 * minor."""
        value = ctypes.c_int()
        self._library.call("cuDriverGetVersion", ctypes.byref(value))
        return value.value

    def uuid(self, device: Device) -> str:
        """The device's UUID in hexadecimal digits."""
        value = ctypes.create_string_buffer(_UUID_BYTES)
        self._library.call("cuDeviceGetUuid", value, device.handle)
        return value.raw.hex()

    def retain_primary_context(self, device: Device) -> int:
        """The context that the CUDA runtime, and so torch, uses on a device; made if need be."""
        return self._handle("cuDevicePrimaryCtxRetain", device.handle)

    @contextlib.contextmanager
    def current(self, context: int) -> Iterator[None]:
        """Make a context current in this thread; what was current before is so again after."""
        self._library.call("cuCtxPushCurrent_v2", context)
        try:
            yield
        except BaseException:
            # The context may be lost by now; the first error is the one to tell.
            with contextlib.suppress(NativeLibraryError):
                self._handle("cuCtxPopCurrent_v2")
            raise
        self._handle("cuCtxPopCurrent_v2")

    def load_module(self, image: bytes) -> int:
        """Load a fatbin, a cubin or PTX (ending with a zero byte) into the current context."""
        return self._handle("cuModuleLoadData", image)

    def function(self, module: int, entry: str) -> int:
        """The kernel with a name in a module."""
        return self._handle("cuModuleGetFunction", module, entry.encode())

    def allow_shared_bytes(self, function: int, size: int) -> None:
        """Let a kernel use more dynamic shared memory than the 48 KiB that are always allowed."""
        self._library.call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED_SIZE_BYTES, size)

    def launch(
        self,
        function: int,
        *,
        grid: tuple[int, int],
        threads: int,
        shared_bytes: int,
        stream: int,
        parameter: ctypes.Structure,
    ) -> None:
        """Launch a kernel with one parameter in the current context; waits for nothing."""
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(parameter))
        self._library.call(
            "cuLaunchKernel",
            function,
            *(*grid, 1, threads, 1, 1, shared_bytes),
            stream,
            parameters,
            None,
        )

    def _handle(self, function: str, *arguments: object) -> int:
        """Call a function whose first argument is the handle it makes."""
        made = ctypes.c_void_p()
        self._library.call(function, ctypes.byref(made), *arguments)
        return made.value or 0


def describe_status(status: int) -> str:
    """Name of a CUresult, as cuda.h spells it where it is listed here."""
    return _STATUS_NAMES.get(status, "unlisted CUresult")


def current_device() -> Device:
    """The GPU that a CUDA library would use in this thread now.

    Raises:
        NativeLibraryError: MMAEMU_DISABLE_CUDA is set, there is no usable driver, or no device.
    """
    if _settings.flag("DISABLE_CUDA"):
        raise NativeLibraryError("MMAEMU_DISABLE_CUDA is set")
    driver = _open(_names())
    if isinstance(driver, str):
        raise NativeLibraryError(driver)
    return driver.current_device()


def open_launch_driver() -> LaunchDriver:
    """The driver for kernels: MMAEMU_LIBCUDA_PATH, else the system's. Initialised once.

    Raises:
        NativeLibraryError: there is no usable driver.
    """
    return _open_launch(_names())


def _names() -> tuple[str, ...]:
    chosen = _settings.path("LIBCUDA_PATH")
    return (str(chosen),) if chosen else _default_names()


def _default_names() -> tuple[str, ...]:
    return ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1",)


@functools.cache
def _open(names: tuple[str, ...]) -> Driver | str:
    # A driver that is missing or fails to initialise stays so for the life of a process; keeping
    # the reason spares every later call the search.
    try:
        return Driver(names)
    except NativeLibraryError as error:
        return str(error)


@functools.cache
def _open_launch(names: tuple[str, ...]) -> LaunchDriver:
    return LaunchDriver(names)

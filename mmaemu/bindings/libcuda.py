"""The CUDA driver library: which GPU would run a call now. No kernel is launched, no context made.

Nothing here has run on hardware in this project; the tests call it on a library of their own.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Final, NamedTuple

from mmaemu import _settings
from mmaemu.bindings.library import NativeLibraryError, StatusLibrary

_INT_POINTER: Final = ctypes.POINTER(ctypes.c_int)
_PROTOTYPES: Final = {
    "cuInit": (ctypes.c_uint,),
    "cuCtxGetDevice": (_INT_POINTER,),
    "cuDeviceGet": (_INT_POINTER, ctypes.c_int),
    "cuDeviceGetName": (ctypes.c_char_p, ctypes.c_int, ctypes.c_int),
    "cuDeviceGetAttribute": (_INT_POINTER, ctypes.c_int, ctypes.c_int),
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
    201: "CUDA_ERROR_INVALID_CONTEXT",
    802: "CUDA_ERROR_SYSTEM_NOT_READY",
    803: "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    999: "CUDA_ERROR_UNKNOWN",
}
# CUdevice_attribute values of cuda.h.
_MULTIPROCESSOR_COUNT: Final = 16
_CAPABILITY_MAJOR: Final = 75
_CAPABILITY_MINOR: Final = 76
_NAME_BYTES: Final = 256


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

    def __init__(self, names: tuple[str, ...]) -> None:
        self._library = StatusLibrary(names, _PROTOTYPES, describe_status)
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
            self._library.call("cuDeviceGet", ctypes.byref(handle), 0)
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
    chosen = _settings.path("LIBCUDA_PATH")
    driver = _open((str(chosen),) if chosen else _default_names())
    if isinstance(driver, str):
        raise NativeLibraryError(driver)
    return driver.current_device()


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

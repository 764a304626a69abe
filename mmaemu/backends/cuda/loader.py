"""Loading and launching: device, context, the ladder fatbin -> NVRTC, and what a fork ends.

A module is loaded once per device and context, whatever number of threads ask first. Nothing here
waits for the device, so a launch may be captured into a CUDA graph. The context is the primary one,
which torch uses too; what was current in the calling thread is so again afterwards.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from mmaemu.backends.cuda.compiled import compiled
from mmaemu.backends.cuda.fatbins import Image, RungError, fatbin
from mmaemu.backends.cuda.faults import fail_if_forced
from mmaemu.bindings.libcuda import (
    CONTEXT_LOSSES,
    IMAGE_FAILURES,
    NO_BINARY_FOR_GPU,
    NO_DEVICE,
    UNSUPPORTED_PTX_VERSION,
    Device,
    LaunchDriver,
    describe_status,
    open_launch_driver,
)
from mmaemu.bindings.library import NativeLibraryError

if TYPE_CHECKING:
    import ctypes

    from mmaemu.backends.cuda.specs import ModuleSpec

SHARED_BYTES_ALWAYS_ALLOWED: Final = 48 << 10
RUNGS: Final = (("fatbin", fatbin), ("NVRTC", compiled))
"""Where a module may come from, best first."""


class LoadError(Exception):
    """A device or module cannot be used; the message is the reason."""


class Place(NamedTuple):
    """A device with its context.

    Attributes:
        driver: the driver library.
        device: the device as the driver describes it.
        context: handle of its primary context.
        identity: what tells it and its driver from others: name, UUID, driver version.
    """

    driver: LaunchDriver
    device: Device
    context: int
    identity: tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Module:
    """A loaded module.

    Attributes:
        place: where it is loaded.
        image: what was loaded.
        functions: handle of each kernel by name.
        passed_over: the rungs above that could not be used, with the reason.
    """

    place: Place
    image: Image
    functions: dict[str, int]
    passed_over: tuple[str, ...]

    def launch(
        self,
        entry: str,
        *,
        grid: tuple[int, int],
        threads: int,
        shared_bytes: int,
        stream: int,
        parameter: ctypes.Structure,
    ) -> None:
        """Launch a kernel on a stream of the device.

        Raises:
            NativeLibraryError: the driver refuses; a lost context is then forgotten.
        """
        place = self.place
        try:
            with place.driver.current(place.context):
                place.driver.launch(
                    self.functions[entry],
                    grid=grid,
                    threads=threads,
                    shared_bytes=shared_bytes,
                    stream=stream,
                    parameter=parameter,
                )
        except NativeLibraryError as error:
            if error.status in CONTEXT_LOSSES:
                forget()
            raise


@dataclass(slots=True)
class _State:
    """What this process knows about its devices."""

    process: int = field(default_factory=os.getpid)
    places: dict[tuple[object, int], Place] = field(default_factory=dict)
    modules: dict[tuple[object, ...], Module] = field(default_factory=dict)
    generation: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)


_state: Final = _State()


def lock() -> threading.RLock:
    """The lock held while something is loaded or tested, so that it happens once."""
    return _state.lock


def generation() -> int:
    """A number that changes whenever everything that was loaded is forgotten."""
    return _state.generation


def forget() -> None:
    """Forget every context and module, after one was lost. They are not released."""
    with _state.lock:
        _state.places.clear()
        _state.modules.clear()
        _state.generation += 1


def is_forked() -> bool:
    """Whether this process was forked from one that had used CUDA, which does not survive that."""
    return _state.process != os.getpid()


def place(ordinal: int) -> Place:
    """The device with a number, and its primary context.

    Raises:
        LoadError: there is no driver or no such device, or its context cannot be made; or CUDA
            was used before this process was forked.
    """
    if is_forked():
        raise LoadError(
            "CUDA was used before this process was forked, and does not survive a fork; start "
            'processes with torch.multiprocessing\'s "spawn" method'
        )
    with _state.lock:
        try:
            fail_if_forced("cuda-driver", NativeLibraryError("cuInit failed: forced by a test"))
            driver = open_launch_driver()
            key = (driver, ordinal)
            if key not in _state.places:
                device = driver.device(ordinal)
                context = driver.retain_primary_context(device)
                identity = (device.name, driver.uuid(device), driver.version())
                _state.places[key] = Place(driver, device, context, identity)
            return _state.places[key]
        except NativeLibraryError as error:
            raise LoadError(f"the CUDA driver: {error}") from error


def load(module: ModuleSpec, where: Place, shared_bytes: dict[str, int]) -> Module:
    """Load a module into a device's context, from the first rung that can be used.

    Args:
        module: the module.
        where: device and context.
        shared_bytes: dynamic shared memory of each kernel by name; kernels not in it use none.

    Raises:
        LoadError: no rung can be used; the message has the reason of each.
    """
    with _state.lock:
        reasons: list[str] = []
        for rung, read in RUNGS:
            try:
                image = read(module, where.device.capability)
                return _load(module, where, image, shared_bytes, tuple(reasons))
            except RungError as error:
                reasons.append(f"{rung}: {error}")
        raise LoadError("; ".join(reasons))


def _load(
    module: ModuleSpec,
    where: Place,
    image: Image,
    shared_bytes: dict[str, int],
    passed_over: tuple[str, ...],
) -> Module:
    key = (where.driver, where.device.handle, where.context, module.name, image.sha256)
    if key not in _state.modules:
        functions = {}
        try:
            with where.driver.current(where.context):
                handle = _load_data(where, image)
                for entry in module.entries:
                    functions[entry] = where.driver.function(handle, entry)
                    if shared_bytes.get(entry, 0) > SHARED_BYTES_ALWAYS_ALLOWED:
                        where.driver.allow_shared_bytes(functions[entry], shared_bytes[entry])
        except NativeLibraryError as error:
            raise _explained(error, where, image, passed_over) from error
        _state.modules[key] = Module(where, image, functions, passed_over)
    return _state.modules[key]


def _load_data(where: Place, image: Image) -> int:
    for status in (NO_DEVICE, NO_BINARY_FOR_GPU, UNSUPPORTED_PTX_VERSION):
        text = f"cuModuleLoadData failed: {describe_status(status)} ({status})"
        fail_if_forced(f"cuda-load-{status}", NativeLibraryError(text, status))
    return where.driver.load_module(image.data)


def _explained(
    error: NativeLibraryError, where: Place, image: Image, passed_over: tuple[str, ...]
) -> Exception:
    """The error of a load: about the image, so that the next rung may do, or about the device."""
    major, minor = where.device.capability
    text = f"{image.source}: {error}"
    if error.status == NO_BINARY_FOR_GPU:
        text += f"; it holds {image.holds}, the device has compute capability {major}.{minor}"
    elif error.status == UNSUPPORTED_PTX_VERSION:
        text += f"; the driver (CUDA {where.identity[2] // 1000}) is older than the PTX"
    elif error.status == NO_DEVICE:
        text += "; the driver sees no device any more"
    # A kernel that is missing is about the image too.
    if error.status in IMAGE_FAILURES or "cuModuleGetFunction" in str(error):
        return RungError(text)
    if error.status in CONTEXT_LOSSES:
        forget()
    return LoadError("; ".join((*passed_over, text, "no other source was tried")))


def _after_fork() -> None:
    """Let the child start anew where the parent never used CUDA, and with a lock of its own."""
    _state.lock = threading.RLock()  # A thread of the parent may have held the old one.
    if not _state.places:
        _state.process = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

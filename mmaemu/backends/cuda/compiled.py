"""The second rung: a module compiled by NVRTC for one device, kept in the cubin cache."""

from __future__ import annotations

from typing import Final, NamedTuple

from mmaemu.backends import sources
from mmaemu.backends.cuda import cache
from mmaemu.backends.cuda.fatbins import ROOT, Image, RungError
from mmaemu.backends.cuda.faults import fail_if_forced
from mmaemu.backends.cuda.specs import SOURCES, ModuleSpec
from mmaemu.bindings.libnvrtc import open_nvrtc
from mmaemu.bindings.library import NativeLibraryError

CACHE: Final = "cubin"


class Target(NamedTuple):
    """What to compile for: an architecture such as "89" or "90a", as PTX or as machine code."""

    arch: str
    is_ptx: bool

    def __str__(self) -> str:
        return f"{'compute' if self.is_ptx else 'sm'}_{self.arch}"


def compiled(module: ModuleSpec, capability: tuple[int, int]) -> Image:
    """Compile a module for a device, or take what was compiled before from the same text.

    Args:
        module: the module.
        capability: the device's compute capability.

    Raises:
        RungError: there is no NVRTC, it knows no architecture that the device can run, a source is
            missing, or it does not compile.
    """
    try:
        fail_if_forced("cuda-nvrtc", NativeLibraryError("cannot load NVRTC: forced by a test"))
        nvrtc = open_nvrtc()
        target = choose(module, capability, nvrtc.architectures())
        program = _program(module)
        options = module.options(target.arch, ptx=target.is_ptx)
        name = cache.key(program, options, nvrtc.version, target)
        image = cache.read(CACHE, name)
        if image is None:
            fail_if_forced(
                "cuda-compile", NativeLibraryError("nvrtcCompileProgram failed: forced by a test")
            )
            image = nvrtc.compile(*program, options, ptx=target.is_ptx)
            cache.write(CACHE, name, image)
    except NativeLibraryError as error:
        raise RungError(str(error)) from error
    version = ".".join(map(str, nvrtc.version))
    return Image(image, f"{module.source} compiled by NVRTC {version}", str(target))


def choose(module: ModuleSpec, capability: tuple[int, int], known: tuple[int, ...]) -> Target:
    """Clamp a device's architecture to those that a compiler knows and the module is meant for.

    Args:
        module: the module.
        capability: the device's compute capability.
        known: what the compiler knows, as 10 * major + minor.

    Raises:
        RungError: nothing that it knows runs on the device.
    """
    device = 10 * capability[0] + capability[1]
    plain = sorted(int(arch) for arch in module.sass_archs if arch.isdigit())
    if f"{device}a" in module.sass_archs and device in known:
        return Target(f"{device}a", is_ptx=False)
    usable = [arch for arch in known if plain and plain[0] <= arch <= device]
    own = [arch for arch in usable if arch // 10 == capability[0]]
    if own:
        return Target(str(own[-1]), is_ptx=False)
    if usable and module.ptx_arch is not None:
        return Target(str(usable[-1]), is_ptx=True)
    raise RungError(
        f"NVRTC compiles for {' '.join(map(str, known))} and {module.name} is meant for "
        f"{' '.join(module.sass_archs)}, none of which runs on compute capability "
        f"{capability[0]}.{capability[1]}"
    )


def _program(module: ModuleSpec) -> sources.Program:
    path = f"{SOURCES}/{module.source}"
    try:
        return sources.program(sources.closure(ROOT, path), path)
    except OSError as error:
        raise RungError(f"a source of {module.name} is missing: {error}") from error

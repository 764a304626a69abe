"""Compile the CUDA kernels for the CPU and launch them there: each thread is a fiber.

    python tools/host_cuda.py v4 tc3       build these modules, print where the libraries are
    python tools/host_cuda.py --sanitize   every module, with UBSan

The very .cu files are compiled by $CXX, g++, clang++ or the ziglang wheel, whichever comes first,
with tools/host_cuda/ in the place of CUDA. Matrix instructions follow the instruction model of a
simulated tensor core. Exit codes: findings.py.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Final

from files import ROOT, sha256_of, write_bytes
from findings import FAIL, PASS, UnusableError, guarded

sys.path.insert(0, str(ROOT))
from mmaemu.backends.cuda.specs import MODULES, SOURCES, ModuleSpec

CSRC: Final = "mmaemu/backends/csrc"
SHIM: Final = "tools/host_cuda"
BUILD: Final = "build/host_cuda"
NO_FLOOR: Final = -(2**31)
FLAGS: Final = (
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-math-errno",
    # Style is for NVRTC's eyes; these are mistakes.
    "-Werror=return-type",
    "-Werror=uninitialized",
    "-Wno-unknown-pragmas",
)
SANITIZE: Final = ("-fsanitize=undefined", "-fno-sanitize-recover=all", "-g")


@dataclass(frozen=True, slots=True)
class TensorCore:
    """One simulated matrix unit; the fields of `tensor_core_model` in tools/host_cuda, in order.

    Attributes:
        dot_length: products of one step.
        fraction_bits: bits kept below the largest exponent.
        result_fraction_bits: bits of the result's fraction.
        min_exponent: floor of the largest exponent, or `NO_FLOOR`.
        late: the accumulator is added after the conversion, to nearest.
        align_rounding: 0 toward zero, 1 to nearest even, 2 down: each term to the common grid.
        result_rounding: the same, of the sum to the result.
        operand_floor: operands are normalised down to this exponent, or `NO_FLOOR`.
        flush_operands: subnormal operands count as zero.
        flush_results: subnormal results are +0.
        normalise: products of 2 and more count with their own, higher exponent.
        zeros_count: zero products take part in the largest exponent.
        interleaved: steps take k mod 4 in {0, 1}, then {2, 3}, and c is added last.
    """

    dot_length: int
    fraction_bits: int
    result_fraction_bits: int = 23
    min_exponent: int = NO_FLOOR
    late: bool = False
    align_rounding: int = 0
    result_rounding: int = 0
    operand_floor: int = NO_FLOOR
    flush_operands: bool = False
    flush_results: bool = False
    normalise: bool = False
    zeros_count: bool = False
    interleaved: bool = False


UNITS: Final = ("fp16", "bf16", "fp8", "wgmma_fp8")
"""The kinds of matrix instructions; each has a tensor core of its own."""

_AMPERE: Final = TensorCore(8, 24, min_exponent=-132)
_HOPPER: Final = TensorCore(16, 25, min_exponent=-133)
_ADA_FP8: Final = TensorCore(16, 13, 13, min_exponent=-132)
_HOPPER_FP8: Final = TensorCore(32, 13, 13, min_exponent=-132)
_EMULATED_FP8: Final = replace(_HOPPER, operand_floor=-14, interleaved=True)
_BLACKWELL_FP8: Final = TensorCore(32, 25, min_exponent=-133)

TENSOR_CORES: Final[Mapping[str, Mapping[str, TensorCore]]] = {
    name: dict(zip(UNITS, units, strict=True))
    for name, units in {
        "ampere": (_AMPERE, _AMPERE, _ADA_FP8, _HOPPER_FP8),
        "ada": (_AMPERE, _AMPERE, _ADA_FP8, _HOPPER_FP8),
        "hopper": (_HOPPER, _HOPPER, _EMULATED_FP8, _HOPPER_FP8),
        "blackwell": (_HOPPER, _HOPPER, _EMULATED_FP8, _HOPPER_FP8),
        "sm_120": (_HOPPER, _HOPPER, _BLACKWELL_FP8, _HOPPER_FP8),
    }.items()
}
"""Devices by the units that the instruction models give them. Units that a device lacks (fp8 on
Ampere, wgmma but on Hopper) are those of the device that has them."""


@functools.cache
def compiler() -> tuple[str, ...]:
    """The C++ compiler's command.

    Raises:
        UnusableError: there is none.
    """
    named = os.environ.get("CXX")
    if named:
        return tuple(named.split())
    for command in ("g++", "clang++"):
        if shutil.which(command):
            return (command,)
    zig = (sys.executable, "-m", "ziglang", "c++")
    if subprocess.run([*zig, "--version"], capture_output=True, check=False).returncode == 0:
        return zig
    message = "no C++ compiler: set CXX, or install g++, clang++ or the ziglang wheel"
    raise UnusableError(message)


@functools.cache
def _compiler_version() -> str:
    run = subprocess.run([*compiler(), "--version"], capture_output=True, text=True, check=False)
    return run.stdout.splitlines()[0] if run.stdout else ""


@functools.cache
def _machine() -> str:
    """The CPU, as far as the compiler may use what it offers."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.machine()
    found = re.search(r"^(flags|Features)\s*:.*$", text, flags=re.MULTILINE)
    return f"{platform.machine()} {found[0] if found else ''}"


def _native() -> tuple[str, ...]:
    """Flags that let the compiler use this CPU; the ziglang wheel does without being told."""
    if "ziglang" in compiler():
        return ()
    return ("-mcpu=native",) if platform.machine() in {"aarch64", "arm64"} else ("-march=native",)


def _inputs() -> Iterator[tuple[str, bytes]]:
    """Every file that a module may include, with its content."""
    for folder in (f"{CSRC}/cuda", f"{CSRC}/numerics", SHIM):
        for path in sorted((ROOT / folder).iterdir()):
            if path.is_file():
                yield path.relative_to(ROOT).as_posix(), path.read_bytes()


def _initial_units(units: Mapping[str, TensorCore]) -> str:
    rows = (", ".join(str(int(value)) for value in astuple(units[name])) for name in UNITS)
    return ",\n    ".join(f"{{{row}}}" for row in rows).replace(str(NO_FLOOR), "MMAEMU_NO_FLOOR")


def _text(source: Path, entries: Sequence[str], units: Mapping[str, TensorCore]) -> str:
    """The file that is compiled: the kernels, the launcher, and the table of entries."""
    rows = ",\n    ".join(f"MMAEMU_ENTRY_ROW({entry})" for entry in entries)
    return (
        f'#include "{source.as_posix()}"\n'
        '#include "launch.h"\n'
        "namespace mmaemu_host {\n"
        f"tensor_core_model tensor_core[UNIT_COUNT] = {{\n    {_initial_units(units)}}};\n"
        f"const entry ENTRIES[] = {{\n    {rows}}};\n"
        f"const size_t ENTRY_COUNT = {len(entries)};\n"
        "}\n"
    )


def module_spec(name: str) -> ModuleSpec:
    """The module of this release name.

    Raises:
        UnusableError: there is none.
    """
    for module in MODULES:
        if module.name == name:
            return module
    known = ", ".join(module.name for module in MODULES)
    message = f"no module {name!r}; the modules are {known}"
    raise UnusableError(message)


def build(
    module_or_source: str | Path,
    defines: Sequence[str] = (),
    *,
    entries: Sequence[str] = (),
    sanitize: bool = False,
    portable: bool = False,
    tensor_core: str = "ampere",
) -> Path:
    """Build a module, or the kernels of one source file, unless that has been done.

    Args:
        module_or_source: a release name, or the path of a .cu file.
        defines: macros as NAME=VALUE, beside those of the module.
        entries: the kernels; a module brings its own.
        sanitize: with UBSan, which ends the process at the first report.
        portable: without this CPU's instructions for rounding toward zero.
        tensor_core: the device in `TENSOR_CORES` whose tensor cores are simulated.

    Returns:
        The shared library, below build/host_cuda.

    Raises:
        UnusableError: no compiler, no such module, or the source does not compile.
    """
    source = Path(module_or_source)
    if source.suffix != ".cu":
        spec = module_spec(str(module_or_source))
        source = ROOT / SOURCES / spec.source
        defines = (*spec.defines, *defines)
        entries = entries or spec.entries
    text = _text(source.resolve(), entries, TENSOR_CORES[tensor_core])
    flags = [*FLAGS, *_native(), *(SANITIZE if sanitize else ())]
    flags += [f"-D{define}" for define in (*defines, *(["MMAEMU_HOST_PORTABLE"] * portable))]
    parts = [text.replace(str(ROOT), ""), source.read_text(encoding="utf-8"), *flags]
    parts += [*compiler(), _compiler_version(), _machine()]
    key = sha256_of(repr((parts, list(_inputs()))).encode())[:24]
    library = ROOT / BUILD / key / f"{source.stem}.so"
    if not library.exists():
        _compile(text, flags, library)
    return library


def _compile(text: str, flags: Sequence[str], library: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        main = Path(folder) / "main.cpp"
        main.write_text(text, encoding="utf-8")
        made = Path(folder) / library.name
        command = [*compiler(), *flags, f"-I{ROOT / SHIM}", f"-I{ROOT / CSRC}"]
        command += [str(main), "-o", str(made), "-lpthread"]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            message = f"{library.stem} does not compile:\n{run.stderr[:4000]}"
            raise UnusableError(message)
        write_bytes(library, made.read_bytes())


class LaunchError(RuntimeError):
    """A launch was refused, or the kernel did what CUDA leaves open; says what."""


class HostModule:
    """A built library.

    Args:
        library: what `build` returned.
    """

    def __init__(self, library: Path) -> None:
        self.library = library
        loaded = ctypes.CDLL(str(library))
        self._launch = loaded.mmaemu_host_launch
        self._launch.argtypes = [ctypes.c_char_p, *[ctypes.c_uint] * 4, ctypes.c_void_p]
        self._launch.argtypes += [ctypes.c_ulonglong] * 2
        self._error = loaded.mmaemu_host_error
        self._error.restype = ctypes.c_char_p
        self._exchange_unit = loaded.mmaemu_host_tensor_core
        self._exchange_unit.argtypes = [ctypes.c_int, ctypes.c_void_p]

    def launch(
        self,
        entry: str,
        grid: tuple[int, int],
        block: int,
        parameter: ctypes.Structure,
        *,
        shared_bytes: int = 0,
        seed: int = 0,
    ) -> None:
        """Run a kernel to its end.

        Args:
            entry: the kernel's symbol.
            grid: blocks in x and y.
            block: threads of a block.
            parameter: the kernel's one parameter.
            shared_bytes: dynamic shared memory of a block.
            seed: of the order of fibers and blocks; 0 is the natural order.

        Raises:
            LaunchError: with the launcher's message.
        """
        status = self._launch(
            entry.encode(),
            *grid,
            block,
            shared_bytes,
            ctypes.addressof(parameter),
            ctypes.sizeof(parameter),
            seed,
        )
        if status:
            raise LaunchError(self._error().decode())

    @contextmanager
    def tensor_core(self, units: Mapping[str, TensorCore]) -> Iterator[None]:
        """Let launches have these units until the context is left, then those of before.

        Args:
            units: by the names in `UNITS`; those left out stay.
        """
        models = {
            UNITS.index(name): (ctypes.c_int * 13)(*(int(value) for value in astuple(unit)))
            for name, unit in units.items()
        }
        self._exchange(models)
        try:
            yield
        finally:
            self._exchange(models)

    def _exchange(self, models: Mapping[int, ctypes.Array[ctypes.c_int]]) -> None:
        for unit, model in models.items():
            self._exchange_unit(unit, ctypes.addressof(model))


@functools.cache
def load(module: str, *, sanitize: bool = False) -> HostModule:
    """The module of this release name, built and loaded once."""
    return HostModule(build(module, sanitize=sanitize))


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the named modules, or all."""
    parser = argparse.ArgumentParser(prog="host_cuda.py", description=(__doc__ or "").split(".")[0])
    parser.add_argument("modules", nargs="*", default=[module.name for module in MODULES])
    parser.add_argument("--sanitize", action="store_true", help="with UBSan")
    options = parser.parse_args(arguments)
    known = [module.name for module in MODULES]
    for name in options.modules:
        if name not in known:
            parser.error(f"no module {name!r}; the modules are {', '.join(known)}")
    failed = False
    for name in options.modules:
        try:
            print(f"{name}: {build(name, sanitize=options.sanitize)}")
        except UnusableError as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed = True
    return FAIL if failed else PASS


if __name__ == "__main__":
    sys.exit(guarded("host_cuda", main))

"""Build and run tests/conformance/native/driver.c: random requests against the scalar kernel.

    python tools/cpu_driver.py soak --minutes 60     this CPU, a new seed every time
    python tools/cpu_driver.py sanitize              AddressSanitizer and UBSan, gcc or clang
    python tools/cpu_driver.py aarch64               the NEON kernels under qemu-aarch64
    python tools/cpu_driver.py fuzz                  libFuzzer on requests and operands, clang

Exit codes: 0 no difference, 1 a difference or a sanitizer's report, 2 a tool is missing.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from build_cpu import SOURCES, TARGETS, Target, units
from files import ROOT
from findings import FAIL, PASS, UnusableError, guarded

DRIVER: Final = "tests/conformance/native/driver.c"
ZIG: Final = (sys.executable, "-m", "ziglang", "cc")
SANITIZERS: Final = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")
# gcc and clang know these CPUs by other names than zig, and objects link with a C library here.
_MCPU: Final = {
    "-mcpu=x86_64": ("-march=x86-64",),
    "-mcpu=x86_64_v3": ("-march=x86-64-v3",),
    "-mcpu=x86_64_v4+avx512vnni+avx512vbmi": ("-march=x86-64-v4", "-mavx512vnni", "-mavx512vbmi"),
    "-fno-sanitize=all": (),
    "-Werror": ("-Wno-psabi",),
    "-mno-outline-atomics": ("-mno-outline-atomics",),
}


@dataclass(frozen=True, slots=True)
class Compiler:
    """How one kind of driver is compiled.

    Attributes:
        command: the compiler.
        extra: flags of every compilation and of the link.
        gnu: whether flags are spelled as gcc and clang want them.
    """

    command: tuple[str, ...]
    extra: tuple[str, ...] = ()
    gnu: bool = False


def _target(architecture: str) -> Target:
    return next(each for each in TARGETS if each.architecture == architecture)


def _native() -> Target:
    machine = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    if machine not in {"x86_64", "aarch64"}:
        raise UnusableError(f"no CPU kernels for {platform.machine()}; run this on another machine")
    return _target(machine)


def _tool(*names: str) -> str:
    """The first of some programs that is on PATH.

    Raises:
        UnusableError: none is.
    """
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        raise UnusableError(f"needs {' or '.join(names)} on PATH; install one of them")
    return found


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if done.returncode:
        raise UnusableError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")


def _flags(flags: Sequence[str], *, gnu: bool) -> list[str]:
    if not gnu:
        return list(flags)
    return [new for old in flags for new in _MCPU.get(old, (old,))]


def build(target: Target, compiler: Compiler, folder: Path) -> Path:
    """Compile kernels and driver.

    Raises:
        UnusableError: the compiler failed.
    """
    objects = []
    for unit in units(target):
        if unit.label == "freestanding":  # There is a C library here.
            continue
        made = str(folder / f"{unit.label}.o")
        flags = _flags(unit.flags, gnu=compiler.gnu)
        _run([*compiler.command, *flags, *compiler.extra, "-c", unit.source, "-o", made])
        objects.append(made)
    program = folder / "driver"
    parts = ("-std=gnu11", "-O1", f"-I{SOURCES}", DRIVER, *objects, "-o", str(program))
    _run([*compiler.command, *compiler.extra, *parts])
    return program


def _drive(command: Sequence[str]) -> int:
    print("+", " ".join(command), flush=True)
    return PASS if subprocess.run(command, cwd=ROOT, check=False).returncode == 0 else FAIL


def soak(arguments: argparse.Namespace, folder: Path) -> int:
    """Random requests on this CPU; the seed is the time unless it is given."""
    seed = time.time_ns() if arguments.seed is None else arguments.seed
    program = build(_native(), Compiler(ZIG, ("-fno-sanitize=all",)), folder)
    return _drive([str(program), str(int(arguments.minutes * 60)), str(seed)])


def sanitize(arguments: argparse.Namespace, folder: Path) -> int:
    """Random requests under AddressSanitizer and UBSan."""
    compiler = Compiler((_tool("clang", "clang-19", "gcc"),), SANITIZERS, gnu=True)
    program = build(_native(), compiler, folder)
    return _drive([str(program), str(arguments.seconds), str(arguments.seed or 1)])


def aarch64(arguments: argparse.Namespace, folder: Path) -> int:
    """Random requests to the NEON kernels, on this CPU or in an emulator."""
    emulator = [] if platform.machine() in {"aarch64", "arm64"} else [_tool("qemu-aarch64")]
    command = (*ZIG, "-target", "aarch64-linux-musl")
    program = build(_target("aarch64"), Compiler(command, ("-static", "-fno-sanitize=all")), folder)
    return _drive([*emulator, str(program), str(arguments.seconds), str(arguments.seed or 1)])


def fuzz(arguments: argparse.Namespace, folder: Path) -> int:
    """LibFuzzer on the driver's input, with AddressSanitizer."""
    clang = _tool("clang", "clang-19")
    extra = ("-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all", "-DMMAEMU_FUZZ")
    program = build(_native(), Compiler((clang,), (*extra, "-g"), gnu=True), folder)
    limit = f"-max_total_time={arguments.seconds}"
    return _drive([str(program), limit, f"-artifact_prefix={folder}/", "-print_final_stats=1"])


MODES: Final[dict[str, Callable[[argparse.Namespace, Path], int]]] = {
    "soak": soak,
    "sanitize": sanitize,
    "aarch64": aarch64,
    "fuzz": fuzz,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="cpu_driver", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--minutes", type=float, default=1, help="how long to soak")
    parser.add_argument("--seconds", type=int, default=30, help="how long the others run")
    parser.add_argument("--seed", type=int, help="repeat a run that printed this seed")
    arguments = parser.parse_args(argv)

    def work() -> int:
        with tempfile.TemporaryDirectory(prefix="mmaemu-driver-") as name:
            return MODES[arguments.mode](arguments, Path(name))

    return guarded(parser.prog, work)


if __name__ == "__main__":
    raise SystemExit(main())

"""Run the CPU kernels where pytest alone cannot: for long, with sanitizers, on another processor.

    python tools/cpu_driver.py soak --minutes 60     this CPU, a new seed every time
    python tools/cpu_driver.py sanitize              AddressSanitizer and UBSan, gcc or clang
    python tools/cpu_driver.py aarch64               the aarch64 library under qemu-aarch64
    python tools/cpu_driver.py fuzz                  libFuzzer on requests and operands, clang

All of them build tests/conformance/native/driver.c: random requests, each compared with the scalar
kernel. aarch64 also runs the conformance table, tests/conformance/test_cpu_kernels.py, with the
library in an emulated process (native/agent.c), every output against the reference of this one.

Exit codes: 0 no difference, 1 a difference or a sanitizer's report, 2 a tool is missing.
"""

from __future__ import annotations

import argparse
import os
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

from build_cpu import BIN, SOURCES, TARGETS, Target, units
from files import ROOT
from findings import FAIL, PASS, UnusableError, guarded

DRIVER: Final = "tests/conformance/native/driver.c"
AGENT: Final = "tests/conformance/native/agent.c"
TABLE: Final = "tests/conformance/test_cpu_kernels.py"
CLANG: Final = "a clang of version 17 or later"
CLANGS: Final = ("clang", *(f"clang-{version}" for version in range(40, 16, -1)))
PROBE: Final = b"""
typedef float v __attribute__((vector_size(16)));
v f(v x) { return __builtin_elementwise_fma(x, x, x); }
"""
SYSROOT: Final = Path("/usr/aarch64-linux-gnu")
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


def _clang() -> str | None:
    """The first clang on PATH that knows what the kernels use; old ones do not."""
    for path in filter(None, map(shutil.which, CLANGS)):
        command = (path, "-x", "c", "-fsyntax-only", "-")
        if subprocess.run(command, input=PROBE, check=False, capture_output=True).returncode == 0:
            return path
    return None


def _needed(found: str | None, what: str) -> str:
    """A program, if it was found.

    Raises:
        UnusableError: it was not.
    """
    if found is None:
        raise UnusableError(f"needs {what} on PATH")
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
    compiler = Compiler(
        (_needed(_clang() or shutil.which("gcc"), f"{CLANG} or gcc"),), SANITIZERS, gnu=True
    )
    program = build(_native(), compiler, folder)
    return _drive([str(program), str(arguments.seconds), str(arguments.seed or 1)])


def aarch64(arguments: argparse.Namespace, folder: Path) -> int:
    """The conformance table and random requests, on this CPU or in an emulator."""
    target = _target("aarch64")
    emulator = _emulator(arguments.sysroot)
    library = arguments.library or ROOT / BIN / target.file
    agent = (*emulator, str(build_agent(target, folder)))
    table = conformance(agent, library, folder, arguments.tests)
    compiler = Compiler((*ZIG, "-target", target.triple), ("-fno-sanitize=all",))
    program = build(target, compiler, folder)
    found = _drive([*emulator, str(program), str(arguments.seconds), str(arguments.seed or 1)])
    return max(table, found)


def _emulator(sysroot: Path) -> list[str]:
    """The command that runs aarch64 programs of the sysroot's C library.

    Raises:
        UnusableError: the emulator or the C library is missing.
    """
    if platform.machine() in {"aarch64", "arm64"}:
        return []
    program = _needed(shutil.which("qemu-aarch64"), "qemu-aarch64 (Debian, Ubuntu: qemu-user)")
    if not (sysroot / "lib" / "ld-linux-aarch64.so.1").exists():
        raise UnusableError(
            f"no C library for aarch64 in {sysroot}; install libc6-arm64-cross (Debian, Ubuntu), "
            "or name a folder that has one with --sysroot"
        )
    return [program, "-L", str(sysroot)]


def build_agent(target: Target, folder: Path) -> Path:
    """Compile native/agent.c for the platform of a library.

    Raises:
        UnusableError: the compiler failed.
    """
    program = folder / "agent"
    flags = ("-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-lpthread", "-ldl")
    _run([*ZIG, "-target", target.triple, AGENT, *flags, "-o", str(program)])
    return program


def conformance(agent: Sequence[str], library: Path, folder: Path, tests: str = "") -> int:
    """Run the conformance table with a library in a process of its own.

    Args:
        agent: the command that runs native/agent.c, in an emulator if need be.
        library: the file.
        folder: for a socket.
        tests: which tests, as pytest's -k; all if empty.

    Returns:
        PASS, or FAIL if a test failed or nothing reached the library.

    Raises:
        UnusableError: the process does not start, or pytest could not run.
    """
    socket = folder / "socket"
    command = [*agent, str(library), str(socket)]
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", TABLE]
    pytest += ["-k", tests] if tests else []
    environment = {**os.environ, "MMAEMU_TEST_CPU_AGENT": str(socket)}
    print("+", " ".join(command), flush=True)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        first = process.stdout.readline() if process.stdout else ""
        if first != "ready\n":
            raise UnusableError(f"{' '.join(command)} did not start; its messages are above")
        code = subprocess.run(pytest, cwd=ROOT, env=environment, check=False).returncode
        calls = int(process.communicate()[0] or 0)
    print(f"{calls} calls of {library.name}", flush=True)
    if code not in {PASS, FAIL}:
        raise UnusableError(f"pytest ended with {code}; its messages are above")
    return code if calls else FAIL


def fuzz(arguments: argparse.Namespace, folder: Path) -> int:
    """LibFuzzer on the driver's input, with AddressSanitizer."""
    clang = _needed(_clang(), CLANG)
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
    parser.add_argument("--tests", default="", help="those of aarch64's table, as pytest's -k")
    parser.add_argument("--library", type=Path, help="another library than the one in bin/")
    parser.add_argument("--sysroot", type=Path, default=SYSROOT, help="of a C library for aarch64")
    arguments = parser.parse_args(argv)

    def work() -> int:
        with tempfile.TemporaryDirectory(prefix="mmaemu-driver-") as name:
            return MODES[arguments.mode](arguments, Path(name))

    return guarded(parser.prog, work)


if __name__ == "__main__":
    raise SystemExit(main())

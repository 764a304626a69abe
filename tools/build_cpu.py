"""Build and check the CPU libraries in mmaemu/backends/cpu/bin/.

    python tools/build_cpu.py                      build all into build/cpu, print what was built
    python tools/build_cpu.py --release            build, then replace files and manifest entries
    python tools/build_cpu.py --check              no compiler: are the libraries those of the tree?
    python tools/build_cpu.py --compare build/cpu  a finished build, byte for byte with bin/

`--modules` limits all of them. The compiler is the `ziglang` wheel of the pinned version, which
cross-compiles for every target; no library of a platform is linked. Exit codes: findings.py.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import frozen
from binaries import BinaryFacts, read_binary
from files import ROOT, sha256_of
from findings import PASS, Outcome, Rule, UnusableError, apply_rules, run
from frozen import LOGS, Frozen, Problems

sys.path.insert(0, str(ROOT))
from mmaemu.backends.sources import hashes

SCHEMA: Final = "mmaemu.cpu-manifest/1"
MANIFEST: Final = frozen.MANIFEST
BIN: Final = "mmaemu/backends/cpu/bin"
SOURCES: Final = "mmaemu/backends/csrc/cpu"
ZIG: Final = "0.17.1"
HIGHEST_GLIBC: Final = (2, 17)
EXPORTED: Final = (
    "abi",
    "check",
    "finish",
    "gemm",
    "isas",
    "nonfinite",
    "run",
    "scratch_bytes",
    "tiles",
)
EXPORTS: Final = frozenset(f"mmaemu_cpu_{name}" for name in EXPORTED)

# Explicit -O, since zig adds UBSan without one. No fused or reordered floating point: the kernels'
# proofs count every rounding.
COMMON: Final = (
    "-std=c11",
    "-O3",
    "-g0",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-strict-aliasing",
    "-fno-stack-protector",
    "-fno-sanitize=all",
    "-Wall",
    "-Wextra",
    "-Werror",
)
# Kernels that set the rounding mode must keep the compiler from folding arithmetic. It would also
# keep clang from vectorising cvtt, which is exact in every rounding mode.
ROUNDING: Final = ("-frounding-math",)
AVX512: Final = ("-mcpu=x86_64_v4+avx512vnni+avx512vbmi", "-mprefer-vector-width=512")
ISAS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "x86_64": {
        "SSE2": ("-mcpu=x86_64",),
        "AVX2": ("-mcpu=x86_64_v3",),
        "AVX512": AVX512,
    },
    "aarch64": {"NEON": ("-mno-outline-atomics",)},
}
BASELINE: Final = {"x86_64": ("-mcpu=x86_64",), "aarch64": ("-mno-outline-atomics",)}
KERNELS: Final = {
    "floor_fma": ROUNDING,
    "floor_fma_double": ROUNDING,
    "wide": ROUNDING,
    "cvtt": (),
}
ONCE: Final = {"entry": (), "scalar": (), "finish": (), "freestanding": ("-fno-builtin",)}


@dataclass(frozen=True, slots=True)
class Target:
    """One library.

    Attributes:
        module: its name without suffix; `--modules` takes it.
        suffix: of the file.
        triple: zig's name of the platform.
        architecture: key of ISAS.
        machine: what its header must say.
        link: flags of the link beside the common ones.
    """

    module: str
    suffix: str
    triple: str
    architecture: str
    machine: str
    link: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        """Name of the library's file."""
        return f"mmaemu-cpu-{self.module}{self.suffix}"


def _macos(module: str, triple: str, architecture: str, machine: str) -> Target:
    name = f"-Wl,-install_name,@rpath/mmaemu-cpu-{module}.dylib"
    return Target(module, ".dylib", triple, architecture, machine, (name,))


TARGETS: Final = (
    Target("x86_64-linux", ".so", "x86_64-linux-gnu.2.17", "x86_64", "x86_64"),
    Target("aarch64-linux", ".so", "aarch64-linux-gnu.2.17", "aarch64", "aarch64"),
    _macos("x86_64-macos", "x86_64-macos.11.0", "x86_64", "x86_64"),
    _macos("arm64-macos", "aarch64-macos.11.0", "aarch64", "arm64"),
    # Without the option the linker writes the time into the header.
    Target("x86_64-windows", ".dll", "x86_64-windows-gnu", "x86_64", "x86_64", ("-Wl,/Brepro",)),
)
LINK: Final = ("-shared", "-nostdlib", "-s")


@dataclass(frozen=True, slots=True)
class Unit:
    """One call of the compiler: a source, what it is compiled for, and the flags."""

    source: str
    label: str
    flags: tuple[str, ...]


def units(target: Target) -> tuple[Unit, ...]:
    """The compilations of a library, in the order in which they are linked."""
    baseline = BASELINE[target.architecture]
    found = [
        Unit(f"{SOURCES}/{name}.c", name, (*COMMON, *baseline, *extra))
        for name, extra in ONCE.items()
    ]
    for isa, flags in ISAS[target.architecture].items():
        found += (
            Unit(
                f"{SOURCES}/{name}.c",
                f"{name}-{isa.lower()}",
                (*COMMON, *flags, *extra, f"-DMMAEMU_ISA_IS_{isa}"),
            )
            for name, extra in KERNELS.items()
        )
    return tuple(found)


def recipe(target: Target) -> dict[str, Any]:
    """The flags of a library as the manifest states them."""
    return {
        "compile": {unit.label: list(unit.flags) for unit in units(target)},
        "link": [*LINK, *target.link],
    }


# --- sources -------------------------------------------------------------------------------------


def source_files(root: Path, target: Target) -> dict[str, bytes]:
    """Every source of a library, includes included, by path below the root.

    Raises:
        UnusableError: a source is missing.
    """
    return frozen.source_files(root, target.file, [unit.source for unit in units(target)])


# --- building ------------------------------------------------------------------------------------


def _zig(*arguments: str, root: Path) -> str:
    command = [sys.executable, "-m", "ziglang", *arguments]
    done = subprocess.run(command, cwd=root, check=False, capture_output=True, text=True)
    if done.returncode:
        raise UnusableError(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr.strip()}\n"
            "install the dependency group `kernels` for the compiler"
        )
    return done.stdout.strip()


def compiler(root: Path) -> str:
    """The compiler as the manifest names it.

    Raises:
        UnusableError: it is missing, or not the pinned version.
    """
    version = _zig("version", root=root)
    if version != ZIG:
        raise UnusableError(f"expected ziglang {ZIG}, got {version}; install ziglang=={ZIG}")
    first = _zig("cc", "--version", root=root).splitlines()[0]
    match = re.search(r"clang version [0-9.]+", first)
    return f"ziglang {ZIG} ({match[0] if match else first})"


def build(root: Path, target: Target) -> bytes:
    """Compile and link one library in a temporary folder.

    Raises:
        UnusableError: the compiler failed.
    """
    with tempfile.TemporaryDirectory(prefix="mmaemu-cpu-") as name:
        scratch = Path(name)
        objects = []
        for unit in units(target):
            made = str(scratch / f"{unit.label}.o")
            command = ("cc", "-target", target.triple, *unit.flags, "-c", unit.source, "-o", made)
            _zig(*command, root=root)
            objects.append(made)
        library = scratch / target.file
        link = (*LINK, *target.link)
        _zig("cc", "-target", target.triple, *link, "-o", str(library), *objects, root=root)
        return library.read_bytes()


def entry(root: Path, target: Target, data: bytes, built_by: str) -> dict[str, Any]:
    """The manifest's entry of a library."""
    facts = read_binary(data, target.file)
    return {
        "compiler": built_by,
        "exports": list(facts.exported),
        "flags": recipe(target),
        "glibc": facts.glibc,
        "machine": facts.machine,
        "needed": list(facts.needed),
        "sha256": sha256_of(data),
        "signature": facts.signature,
        "size": len(data),
        "sources": hashes(source_files(root, target)),
        "target": target.triple,
    }


def read_manifest(folder: Path) -> dict[str, Any]:
    """The entries of a manifest by file name; {} if there is none.

    Raises:
        UnusableError: the manifest is no JSON document of the schema.
    """
    return frozen.read_manifest(folder, SCHEMA)


def build_all(root: Path, targets: Sequence[Target]) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Build libraries; returns them and their manifest entries by file name.

    Raises:
        UnusableError: the compiler is missing, another one, or failed.
    """
    built_by = compiler(root)
    made = {target.file: build(root, target) for target in targets}
    entries = {target.file: entry(root, target, made[target.file], built_by) for target in targets}
    return made, entries


def build_into(root: Path, folder: Path, targets: tuple[Target, ...]) -> Outcome:
    """Build libraries into a folder, if all are sound, and say what became of each."""
    old = read_manifest(folder)
    made, entries = build_all(root, targets)
    outcome = check_build(root, targets, made, entries)
    if outcome.exit_code == PASS:
        frozen.write(folder, SCHEMA, made, entries)
    for name, new in entries.items():
        state = frozen.state_of(old.get(name, {}).get("sha256"), new["sha256"])
        print(f"{folder / name}: {state}, {new['size']} bytes, sha256 {new['sha256']}")
    return outcome


def commit_log(root: Path, targets: Sequence[Target]) -> None:
    """Keep the entry of each library in today's logs."""
    modules = read_manifest(root / BIN)
    for target in targets:
        folder = frozen.log_folder(root, f"{target.module}-library")
        frozen.write_entries(folder, SCHEMA, {target.file: modules[target.file]})
        print(f"log: {folder}")


# --- checking ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuFacts(Frozen):
    """The folder of the CPU libraries.

    Attributes:
        targets: the libraries asked about, by file name.
    """

    targets: Mapping[str, Target]


def _same_recipe(facts: CpuFacts) -> Problems:
    for name, _, listed in facts.present():
        target = facts.targets[name]
        wanted = {"flags": recipe(target), "target": target.triple}
        for key, value in wanted.items():
            if listed.get(key) != value:
                yield target.file, f"was built with other {key}; build it again"
        if not str(listed.get("compiler", "")).startswith(f"ziglang {ZIG} "):
            yield target.file, f"was not built by ziglang {ZIG}; build it again"


def _sound(facts: CpuFacts) -> Problems:
    for name, data, listed in facts.present():
        target = facts.targets[name]
        found = read_binary(data, target.file)
        for what in _structure(target, found):
            yield target.file, what
        said = {
            "exports": list(found.exported),
            "glibc": found.glibc,
            "machine": found.machine,
            "needed": list(found.needed),
            "signature": found.signature,
        }
        for key, value in said.items():
            if listed.get(key) != value:
                yield target.file, f"the manifest says {key} {listed.get(key)!r}, it is {value!r}"


def _structure(target: Target, found: BinaryFacts) -> Iterator[str]:
    if found.machine != target.machine:
        yield f"expected a library for {target.machine}, got {found.machine}"
    if missing := sorted(EXPORTS - set(found.exported)):
        yield f"does not export {', '.join(missing)}"
    allowed = {"/usr/lib/libSystem.B.dylib"} if found.kind == "Mach-O" else set()
    if extra := sorted(set(found.needed) - allowed):
        yield f"needs {', '.join(extra)}; it must need no library"
    if found.glibc and tuple(map(int, found.glibc.split("."))) > HIGHEST_GLIBC:
        yield f"needs glibc {found.glibc}; at most 2.17 is promised"
    if found.kind == "Mach-O" and found.machine == "arm64" and found.signature is None:
        yield "is not signed; arm64 macOS loads signed code only (an ad-hoc signature will do)"


RULES: Final[tuple[Rule[CpuFacts], ...]] = (
    Rule(
        "CPU101", "bin/ holds the libraries of the targets and their entries only.", frozen.listed
    ),
    Rule("CPU102", "Every library has the manifest's sha256 and size.", frozen.intact),
    Rule("CPU103", "Every library was built from the sources of the tree.", frozen.fresh),
    Rule(
        "CPU104", "Every library was built with the compiler and flags of the tree.", _same_recipe
    ),
    Rule("CPU105", "Every library exports, needs and is what it should.", _sound),
    Rule("CPU106", "Another build has the same bytes.", frozen.equal),
    Rule("CPU107", "Git ignores no file of the folder.", frozen.kept),
)


def load(root: Path, targets: tuple[Target, ...], other: Path | None) -> CpuFacts:
    """Read what the rules look at.

    Raises:
        UnusableError: a source or the manifest cannot be read, or `other` is no folder.
    """
    folder = root / BIN
    return CpuFacts(
        folder=BIN,
        rebuild="build_cpu --release --modules",
        wanted={target.file: target.module for target in targets},
        files=frozen.read_folder(folder),
        modules=read_manifest(folder),
        sources={target.file: source_files(root, target) for target in targets},
        other=frozen.read_other(other),
        ignored=frozen.ignored_by_git(root, BIN),
        every=targets == TARGETS,
        targets={target.file: target for target in targets},
    )


def check_build(
    root: Path, targets: tuple[Target, ...], made: Mapping[str, bytes], entries: Mapping[str, Any]
) -> Outcome:
    """Apply the rules on the libraries themselves to a fresh build."""
    facts = replace(load(root, targets, None), files=made, modules=entries)
    return apply_rules([rule for rule in RULES if rule.check not in frozen.ON_FOLDERS], facts)


# --- command line --------------------------------------------------------------------------------


def chosen(text: str | None) -> tuple[Target, ...]:
    """The targets that `--modules` names, all without it.

    Raises:
        UnusableError: a name is unknown, or there is none.
    """
    names = frozen.chosen(text, [target.module for target in TARGETS])
    return tuple(target for target in TARGETS if target.module in names)


def work(arguments: argparse.Namespace) -> Outcome:
    """Do what the command line asks for."""
    root = arguments.root
    targets = chosen(arguments.modules)
    if arguments.check or arguments.compare is not None:
        return apply_rules(RULES, load(root, targets, arguments.compare))
    folder = root / BIN if arguments.release else arguments.out
    if arguments.dry_run:
        for target in targets:
            print(f"would build {folder / target.file} for {target.triple}")
        return Outcome()
    outcome = build_into(root, folder, targets)
    if arguments.release and arguments.commit_log and outcome.exit_code == PASS:
        commit_log(root, targets)
    return outcome


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="build_cpu", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--release", action="store_true", help="replace libraries in bin/")
    mode.add_argument("--check", action="store_true", help="check bin/ without a compiler")
    mode.add_argument("--compare", type=Path, metavar="DIR", help="check bin/ and compare with DIR")
    parser.add_argument("--modules", metavar="A,B", help="only these libraries")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build" / "cpu", help="folder to build in"
    )
    parser.add_argument(
        "--commit-log",
        action="store_true",
        help=f"with --release: log each library below {LOGS}",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be built")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout")
    return run(parser, work, argv)


if __name__ == "__main__":
    raise SystemExit(main())

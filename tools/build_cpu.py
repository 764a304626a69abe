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
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from binaries import BinaryFacts, read_binary
from files import ROOT, sha256_of, write_bytes, write_json
from findings import Outcome, Rule, SkipRule, UnusableError, apply_rules, run

SCHEMA: Final = "mmaemu.cpu-manifest/1"
MANIFEST: Final = "manifest.json"
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
KERNELS: Final = {"floor_fma": ROUNDING, "wide": ROUNDING, "cvtt": ()}
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

_INCLUDE: Final = re.compile(rb'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def source_files(root: Path, target: Target) -> dict[str, bytes]:
    """Every source of a library, includes included, by path below the root.

    Raises:
        UnusableError: a source is missing.
    """
    found: dict[str, bytes] = {}
    pending = [unit.source for unit in units(target)]
    while pending:
        name = pending.pop()
        if name in found:
            continue
        try:
            found[name] = (root / name).read_bytes()
        except OSError as error:
            raise UnusableError(f"{name}: expected a source of {target.file}: {error}") from error
        folder = PurePosixPath(name).parent
        pending += (
            os.path.normpath(folder / include.decode()).replace(os.sep, "/")
            for include in _INCLUDE.findall(found[name])
        )
    return dict(sorted(found.items()))


def unix_lines(data: bytes) -> bytes:
    """A text with LF line ends, which is what the manifest hashes."""
    return data.replace(b"\r\n", b"\n")


def source_hashes(root: Path, target: Target) -> dict[str, str]:
    """The sha256 of every source of a library, with LF line ends."""
    return {name: sha256_of(unix_lines(data)) for name, data in source_files(root, target).items()}


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
        "sources": source_hashes(root, target),
        "target": target.triple,
    }


def read_manifest(folder: Path) -> dict[str, Any]:
    """The entries of a manifest by file name; {} if there is none.

    Raises:
        UnusableError: the manifest is no JSON document of the schema.
    """
    path = folder / MANIFEST
    if not path.exists():
        return {}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["schema"] != SCHEMA:
            raise UnusableError(f"{path}: expected schema {SCHEMA}, got {document['schema']!r}")
        return dict(document["modules"])
    except (ValueError, KeyError, TypeError) as error:
        raise UnusableError(f"{path}: expected a {SCHEMA} document, got {error!r}") from error


def write(folder: Path, made: Mapping[str, bytes], entries: Mapping[str, Any]) -> None:
    """Write libraries and their entries; other files and entries of the folder stay."""
    for name, data in made.items():
        write_bytes(folder / name, data)
    modules = {**read_manifest(folder), **entries}
    write_json(folder / MANIFEST, {"schema": SCHEMA, "modules": modules})
    for name, data in made.items():
        if (folder / name).read_bytes() != data:
            raise UnusableError(f"{folder / name}: differs from what was written; write it again")


def build_into(root: Path, folder: Path, targets: Sequence[Target], *, dry_run: bool) -> None:
    """Build libraries into a folder and say what became of each."""
    if dry_run:
        for target in targets:
            print(f"would build {folder / target.file} for {target.triple}")
        return
    built_by = compiler(root)
    old = read_manifest(folder)
    made = {target.file: build(root, target) for target in targets}
    entries = {target.file: entry(root, target, made[target.file], built_by) for target in targets}
    write(folder, made, entries)
    for name, new in entries.items():
        before = old.get(name, {}).get("sha256")
        state = "new" if before is None else "same bytes" if before == new["sha256"] else "changed"
        print(f"{folder / name}: {state}, {new['size']} bytes, sha256 {new['sha256']}")


# --- checking ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CpuFacts:
    """A folder of libraries, the tree it should belong to, and another build to compare with.

    Attributes:
        targets: the libraries asked about.
        folder: how messages call the folder.
        files: content of the folder's files but the manifest, by name.
        modules: the manifest's entries.
        sources: contents of the sources, by library and path.
        other: files of the build to compare with; None if there is none.
        every: whether all libraries were asked about.
    """

    targets: tuple[Target, ...]
    folder: str
    files: Mapping[str, bytes]
    modules: Mapping[str, Any]
    sources: Mapping[str, Mapping[str, bytes]]
    other: Mapping[str, bytes] | None = None
    every: bool = True

    def present(self) -> Iterator[tuple[Target, bytes, dict[str, Any]]]:
        """The libraries that are there and listed."""
        for target in self.targets:
            if target.file in self.files and target.file in self.modules:
                yield target, self.files[target.file], self.modules[target.file]


Problems = Iterator[tuple[str, str]]


def _listed(facts: CpuFacts) -> Problems:
    for target in facts.targets:
        for held, what in ((facts.files, "is missing"), (facts.modules, f"is not in {MANIFEST}")):
            if target.file not in held:
                yield target.file, f"{what}; run build_cpu --release --modules {target.module}"
    if facts.every:
        known = {target.file for target in facts.targets}
        for name in sorted({*facts.files, *facts.modules} - known):
            yield name, "is no library of this project; remove it"


def _intact(facts: CpuFacts) -> Problems:
    for target, data, listed in facts.present():
        if (sha256_of(data), len(data)) != (listed.get("sha256"), listed.get("size")):
            yield target.file, "is not the file of the manifest; restore it, or build it again"


def _fresh(facts: CpuFacts) -> Problems:
    for target, _, listed in facts.present():
        recorded = listed.get("sources", {})
        sources = facts.sources[target.file]
        for name in sorted({*recorded, *sources}):
            what = _source_state(recorded.get(name), sources.get(name))
            if what:
                yield f"{target.file}: {name}", what


def _source_state(recorded: str | None, data: bytes | None) -> str | None:
    """What is wrong with one source of a library, if anything."""
    if data is None:
        return "is no source of the library any more; build it again"
    if recorded is None:
        return "is a new source of the library; build it again"
    if recorded != sha256_of(unix_lines(data)):
        return "source changed since the library was built; build it again"
    if unix_lines(data) != data:
        return "has other line endings (the source is unchanged); check it out with LF"
    return None


def _same_recipe(facts: CpuFacts) -> Problems:
    for target, _, listed in facts.present():
        wanted = {"flags": recipe(target), "target": target.triple}
        for key, value in wanted.items():
            if listed.get(key) != value:
                yield target.file, f"was built with other {key}; build it again"
        if not str(listed.get("compiler", "")).startswith(f"ziglang {ZIG} "):
            yield target.file, f"was not built by ziglang {ZIG}; build it again"


def _sound(facts: CpuFacts) -> Problems:
    for target, data, listed in facts.present():
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


def _equal(facts: CpuFacts) -> Problems:
    if facts.other is None:
        raise SkipRule("no --compare given")
    for target in facts.targets:
        ours, theirs = facts.files.get(target.file), facts.other.get(target.file)
        if theirs is None:
            yield target.file, "is not in the other build; build it there"
        elif ours is not None and ours != theirs:
            yield target.file, _first_difference(ours, theirs)


def _first_difference(ours: bytes, theirs: bytes) -> str:
    at = next((i for i, (x, y) in enumerate(zip(ours, theirs, strict=False)) if x != y), None)
    if at is None:
        return f"{len(ours)} bytes here, {len(theirs)} in the other build"
    return f"differs from the other build from byte {at:#x} on; find out why before you replace it"


RULES: Final[tuple[Rule[CpuFacts], ...]] = (
    Rule("CPU101", "bin/ holds the libraries of the targets and their entries only.", _listed),
    Rule("CPU102", "Every library has the manifest's sha256 and size.", _intact),
    Rule("CPU103", "Every library was built from the sources of the tree.", _fresh),
    Rule(
        "CPU104", "Every library was built with the compiler and flags of the tree.", _same_recipe
    ),
    Rule("CPU105", "Every library exports, needs and is what it should.", _sound),
    Rule("CPU106", "Another build has the same bytes.", _equal),
)


def _read_folder(folder: Path) -> dict[str, bytes]:
    if not folder.is_dir():
        return {}
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != MANIFEST and not path.name.startswith(".")
    }


def load(root: Path, targets: tuple[Target, ...], other: Path | None) -> CpuFacts:
    """Read what the rules look at.

    Raises:
        UnusableError: a source or the manifest cannot be read, or `other` is no folder.
    """
    if other is not None and not other.is_dir():
        raise UnusableError(f"--compare: expected the folder of a build, got {other}")
    folder = root / BIN
    return CpuFacts(
        targets,
        BIN,
        _read_folder(folder),
        read_manifest(folder),
        {target.file: source_files(root, target) for target in targets},
        None if other is None else _read_folder(other),
        every=targets == TARGETS,
    )


# --- command line --------------------------------------------------------------------------------


def chosen(text: str | None) -> tuple[Target, ...]:
    """The targets that `--modules` names, all without it.

    Raises:
        UnusableError: a name is unknown, or there is none.
    """
    if text is None:
        return TARGETS
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = {target.module: target for target in TARGETS}
    if unknown := sorted(set(names) - set(known)):
        raise UnusableError(f"no module {', '.join(unknown)}; known: {', '.join(known)}")
    if not names:
        raise UnusableError(f"--modules names no module; known: {', '.join(known)}")
    return tuple(target for target in TARGETS if target.module in names)


def work(arguments: argparse.Namespace) -> Outcome:
    """Do what the command line asks for."""
    root = arguments.root
    targets = chosen(arguments.modules)
    if arguments.check or arguments.compare is not None:
        return apply_rules(RULES, load(root, targets, arguments.compare))
    folder = root / BIN if arguments.release else arguments.out
    build_into(root, folder, targets, dry_run=arguments.dry_run)
    return Outcome()


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
    parser.add_argument("--dry-run", action="store_true", help="say what would be built")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout")
    return run(parser, work, argv)


if __name__ == "__main__":
    raise SystemExit(main())

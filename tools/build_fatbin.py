"""Build and check the fatbins in mmaemu/backends/cuda/bin/.

    python tools/build_fatbin.py --release       build all into build/fatbin-release
    python tools/build_fatbin.py --replace v4    build, then replace that file and its entry
    python tools/build_fatbin.py --check         no compiler: are the fatbins those of the tree?
    python tools/build_fatbin.py --compare DIR   a finished build, byte for byte with bin/
    python tools/build_fatbin.py --validated "NVIDIA H200" --modules v4
                                                 note a device on which T3 accepted that fatbin

`--modules v1,v4` limits all but --replace. Beside the fatbins a build leaves manifest.json,
build_report.json and cuobjdump.txt. Exit codes: findings.py.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import forbidden_ptx
import frozen
import tier_results
from fatbin import Entry, blocks_per_multiprocessor, describe, read_fatbin
from files import ROOT, sha256_of, write_bytes, write_json
from findings import (
    PASS,
    InconclusiveError,
    Outcome,
    Rule,
    Skipped,
    UnusableError,
    apply_rules,
    run,
)
from frozen import LOGS, Frozen, Problems
from nvidia_toolchain import COMPILER, Compiler, Image, find_toolkit

sys.path.insert(0, str(ROOT))
from mmaemu.backends.sources import hashes, program

if TYPE_CHECKING:
    from mmaemu.backends.cuda.specs import ModuleSpec

SCHEMA: Final = "mmaemu.fatbin-manifest/1"
REPORT_SCHEMA: Final = "mmaemu.fatbin-report/1"
MANIFEST: Final = frozen.MANIFEST
REPORT: Final = "build_report.json"
DUMP: Final = "cuobjdump.txt"
# What freeze.py leaves beside a build of its own.
SETTLEMENT: Final = ("freeze.json", "settlement.txt")
BIN: Final = "mmaemu/backends/cuda/bin"
SPECS: Final = "mmaemu/backends/cuda/specs.py"
OUT: Final = ROOT / "build" / "fatbin-release"
MIN_BLOCKS: Final = 2
"""Blocks that share a multiprocessor, so that one computes while another waits."""


# --- what is to be built -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Specs:
    """The modules of a checkout, as its specs.py lists them.

    Attributes:
        modules: every module, by name.
        sources: folder of their sources.
        options: of every compilation.
    """

    modules: Mapping[str, ModuleSpec]
    sources: str
    options: tuple[str, ...]

    def source(self, spec: ModuleSpec) -> str:
        """Path of a module's source."""
        return f"{self.sources}/{spec.source}"

    def flags(self, spec: ModuleSpec) -> list[str]:
        """Options and macros of a module."""
        return [*self.options, *(f"-D{define}" for define in spec.defines)]


def load_specs(root: Path) -> Specs:
    """Read the list of modules of a checkout, without importing its package.

    Raises:
        UnusableError: the list is missing, does not run, or is empty.
    """
    path = root / SPECS
    name = f"specs_{sha256_of(str(path).encode())[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.exists():
        raise UnusableError(f"{path} is missing; it lists the CUDA modules")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
        modules = {each.name: each for each in module.MODULES}
        found = Specs(modules, module.SOURCES, tuple(module.OPTIONS))
    except Exception as error:
        raise UnusableError(f"{path} cannot be read: {error!r}") from error
    finally:
        del sys.modules[name]
    if not modules:
        raise UnusableError(f"{path} lists no module; there is nothing to build")
    return found


def sources_of(root: Path, specs: Specs, spec: ModuleSpec) -> dict[str, bytes]:
    """Every source of a module, includes included, by path.

    Raises:
        UnusableError: a source is missing.
    """
    return frozen.source_files(root, spec.fatbin, [specs.source(spec)])


# --- building ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Built:
    """One module as built.

    Attributes:
        spec: what it should be.
        data: the fatbin.
        images: what the compiler said and made, for every architecture.
        entry: for the manifest.
    """

    spec: ModuleSpec
    data: bytes
    images: tuple[Image, ...]
    entry: dict[str, Any]


Progress = Callable[[str], None]


@contextmanager
def progress(total: int) -> Iterator[Progress]:
    """A bar on a terminal, if rich is there; a call advances it by one."""
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("compiling", total=total)
        yield lambda what: bar.update(task, advance=1, description=what)


def build_all(root: Path, specs: Specs, names: Sequence[str], compiler: Compiler) -> list[Built]:
    """Build modules.

    Raises:
        UnusableError: a source is missing or does not compile.
    """
    chosen = [specs.modules[name] for name in names]
    count = sum(len(_architectures(spec)) for spec in chosen)
    with ThreadPoolExecutor(os.cpu_count()) as pool, progress(count) as advance:

        def images(spec: ModuleSpec, files: Mapping[str, bytes]) -> tuple[Image, ...]:
            source = program(files, specs.source(spec))

            def one(arch: str) -> Image:
                image = compiler.compile(source, arch, specs.flags(spec))
                advance(f"{spec.name} sm_{arch}")
                return image

            return tuple(pool.map(one, _architectures(spec)))

        built = []
        for spec in chosen:
            files = sources_of(root, specs, spec)
            built.append(_packed(specs, spec, files, images(spec, files), compiler))
        return built


def _architectures(spec: ModuleSpec) -> tuple[str, ...]:
    """What a module is compiled for; the PTX is that of its own architecture's compilation."""
    extra = () if spec.ptx_arch is None else (spec.ptx_arch,)
    return tuple(dict.fromkeys((*spec.sass_archs, *extra)))


def _packed(
    specs: Specs,
    spec: ModuleSpec,
    files: Mapping[str, bytes],
    images: tuple[Image, ...],
    compiler: Compiler,
) -> Built:
    cubins = [(image.arch, image.cubin) for image in images if image.arch in spec.sass_archs]
    ptx = [(image.arch, image.ptx) for image in images if image.arch == spec.ptx_arch]
    data = compiler.pack(spec.name, cubins, ptx)
    entry = {
        **facts_of(read_fatbin(data, spec.fatbin)),
        **recipe(specs, spec),
        "compiler": COMPILER,
        "module": spec.name,
        "sha256": sha256_of(data),
        "size": len(data),
        "sources": hashes(files),
        "spills": _by_entry(
            (name, image.arch, amount)
            for image in images
            if image.arch in spec.sass_archs
            for name, amount in image.spills.items()
        ),
        "validated_on": [],
    }
    return Built(spec, data, images, entry)


def recipe(specs: Specs, spec: ModuleSpec) -> dict[str, Any]:
    """How a module is compiled, as its entry states it."""
    return {"defines": list(spec.defines), "flags": list(specs.options)}


def facts_of(entries: Sequence[Entry]) -> dict[str, Any]:
    """What a fatbin says about itself, as the manifest's entry repeats it."""
    kernels = [(kernel, entry.arch) for entry in entries for kernel in entry.kernels]
    return {
        "entries": sorted({kernel.name for kernel, _ in kernels}),
        "ptx": [entry.arch for entry in entries if entry.kind == "PTX"],
        "registers": _by_entry((kernel.name, arch, kernel.registers) for kernel, arch in kernels),
        "sass": [entry.arch for entry in entries if entry.kind == "ELF"],
    }


def _by_entry(rows: Iterable[tuple[str, str, int]]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for name, arch, amount in rows:
        found.setdefault(name, {})[arch] = amount
    return found


def report_of(built: Sequence[Built], compiler: Compiler) -> dict[str, Any]:
    """The build report: what every module costs on every architecture."""
    return {
        "schema": REPORT_SCHEMA,
        "compiler": COMPILER,
        "from": compiler.toolkit.origin,
        "forbidden_ptx": dict(forbidden_ptx.FORBIDDEN),
        "modules": {each.spec.name: _module_report(each) for each in built},
    }


def _module_report(built: Built) -> dict[str, Any]:
    entries = read_fatbin(built.data, built.spec.fatbin)
    return {
        "allowed_ptx": dict(built.spec.allowed_ptx),
        "one_block": dict(built.spec.one_block),
        "ptx": built.entry["ptx"],
        "size": len(built.data),
        "architectures": {
            entry.arch: {
                kernel.name: {
                    "blocks_per_multiprocessor": blocks_per_multiprocessor(kernel, entry.arch),
                    "code_bytes": len(kernel.code),
                    "local_accesses": kernel.local,
                    "registers": kernel.registers,
                    "shared_bytes": kernel.shared,
                    "spill_bytes": built.entry["spills"].get(kernel.name, {}).get(entry.arch),
                    "stack_bytes": kernel.stack,
                    "threads": kernel.threads,
                }
                for kernel in entry.kernels
            }
            for entry in entries
            if entry.kind == "ELF"
        },
        "warnings": {image.arch: list(image.warnings) for image in built.images if image.warnings},
    }


def dump(built: Mapping[str, bytes]) -> str:
    """Resource usage of fatbins as text."""
    lines = ["Written by tools/fatbin.py in place of `cuobjdump -lelf -lptx -res-usage`."]
    for name, data in built.items():
        lines += ["", f"Fatbin {name}, sha256 {sha256_of(data)}"]
        lines += describe(read_fatbin(data, name))
    return "\n".join(lines) + "\n"


# --- checking ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FatbinFacts(Frozen):
    """The folder of the fatbins.

    Attributes:
        specs: the modules of the tree.
        images: what the compiler made of each module and architecture; only of a fresh build.
    """

    specs: Specs
    images: Mapping[str, tuple[Image, ...]]

    def spec(self, name: str) -> ModuleSpec:
        """The module of a file."""
        return self.specs.modules[self.wanted[name]]


def _same_recipe(facts: FatbinFacts) -> Problems:
    for name, _, entry in facts.present():
        wanted = {**recipe(facts.specs, facts.spec(name)), "compiler": COMPILER}
        for key, value in wanted.items():
            if entry.get(key) != value:
                yield name, f"was built with other {key}; build it again"


def _as_specified(facts: FatbinFacts) -> Problems:
    for name, data, _ in facts.present():
        spec = facts.spec(name)
        entries = read_fatbin(data, name)
        found = facts_of(entries)
        ptx = [] if spec.ptx_arch is None else [spec.ptx_arch]
        for key, wanted in (("sass", list(spec.sass_archs)), ("ptx", ptx)):
            if found[key] != wanted:
                yield name, f"has {key} for {found[key]}, the module's row says {wanted}"
        if not found["sass"]:
            yield name, "has no machine code"
        for entry in entries:
            yield from ((f"{name} sm_{entry.arch}", what) for what in _kernel_problems(spec, entry))


def _kernel_problems(spec: ModuleSpec, entry: Entry) -> Iterator[str]:
    if entry.compressed:
        yield "is compressed, so that nothing in it can be checked"
        return
    names = tuple(kernel.name for kernel in entry.kernels)
    if entry.kind == "PTX":
        names = tuple(sorted(forbidden_ptx.entries(entry.text)))
    if names != tuple(sorted(spec.entries)):
        yield f"has the kernels {names}, the module's row says {spec.entries}"
    for kernel in entry.kernels:
        if kernel.registers > spec.registers:
            yield f"{kernel.name} uses {kernel.registers} registers, at most {spec.registers}"
        if kernel.stack or kernel.local:
            yield (
                f"{kernel.name} has {kernel.stack} bytes of stack and {kernel.local} accesses to "
                "local memory, expected none"
            )


def _stated(facts: FatbinFacts) -> Problems:
    for name, data, entry in facts.present():
        said = {**facts_of(read_fatbin(data, name)), "module": facts.wanted[name]}
        for key, value in said.items():
            if entry.get(key) != value:
                yield name, f"the manifest says {key} {entry.get(key)!r}, it is {value!r}"


def _ptx(facts: FatbinFacts) -> Problems:
    for name, data, _ in facts.present():
        texts = {image.arch: image.ptx for image in facts.images.get(name, ())}
        for entry in read_fatbin(data, name):
            if entry.kind == "PTX" and not entry.compressed:
                texts[entry.arch] = entry.text
        allowed = facts.spec(name).allowed_ptx
        for arch, text in texts.items():
            for what in forbidden_ptx.problems(text, allowed):
                yield f"{name} PTX sm_{arch}", what
        if name in facts.images:
            for pattern in forbidden_ptx.unused(texts.values(), allowed):
                yield name, f"its row allows `{pattern}`, which it does not have; forbid it again"


def _no_spills(facts: FatbinFacts) -> Problems:
    for name, _, entry in facts.present():
        amounts = entry.get("spills", {})
        missing = set(facts.spec(name).entries) - set(amounts)
        for kernel in sorted(missing):
            yield name, f"nothing says how many bytes {kernel} spills; build it again"
        for kernel, by_arch in amounts.items():
            for arch, amount in by_arch.items():
                if amount:
                    yield f"{name} sm_{arch}", f"{kernel} spills {amount} bytes, expected 0"


def _two_blocks(facts: FatbinFacts) -> Problems:
    for name, data, _ in facts.present():
        excused = dict(facts.spec(name).one_block)
        alone = set()
        for entry in read_fatbin(data, name):
            for kernel in entry.kernels:
                if blocks_per_multiprocessor(kernel, entry.arch) >= MIN_BLOCKS:
                    continue
                alone.add(entry.arch)
                if entry.arch not in excused:
                    yield (
                        f"{name} sm_{entry.arch}",
                        f"{kernel.name} leaves no room for a second block on a multiprocessor; "
                        "use fewer registers or less shared memory, or say why in its row",
                    )
        for arch in sorted(excused.keys() - alone):
            yield f"{name} sm_{arch}", "its row excuses one block, but two fit; take that away"


# What makes the bytes of a build depend on the place or the time.
_UNREPEATABLE: Final = re.compile(
    r"\bnamespace\s*\{|__FILE__|__BASE_FILE__|__DATE__|__TIME__|__TIMESTAMP__"
)
_COMMENTS: Final = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def _repeatable(facts: FatbinFacts) -> Problems:
    texts = {path: text for files in facts.sources.values() for path, text in files.items()}
    for path, text in sorted(texts.items()):
        for found in _UNREPEATABLE.finditer(_COMMENTS.sub("", text.decode(errors="replace"))):
            what = " ".join(found[0].split())
            yield path, f"has `{what}`, with which two builds may differ; do without"


RULES: Final[tuple[Rule[FatbinFacts], ...]] = (
    Rule("CUDA101", "bin/ holds the modules' fatbins and their entries only.", frozen.listed),
    Rule("CUDA102", "Every fatbin has the manifest's sha256 and size.", frozen.intact),
    Rule("CUDA103", "Every fatbin was built from the sources of the tree.", frozen.fresh),
    Rule(
        "CUDA104", "Every fatbin was built with the compiler and flags of the tree.", _same_recipe
    ),
    Rule("CUDA105", "Architectures, kernels, registers and stack are as specified.", _as_specified),
    Rule("CUDA106", "The manifest states what the fatbin says about itself.", _stated),
    Rule("CUDA107", "No forbidden instruction is in the PTX.", _ptx),
    Rule("CUDA108", "No kernel spills.", _no_spills),
    Rule("CUDA109", "Another build has the same bytes.", frozen.equal),
    Rule("CUDA110", "Git ignores no file of the folder.", frozen.kept),
    Rule("CUDA111", "Two blocks fit on a multiprocessor, or a row says why not.", _two_blocks),
    Rule("CUDA112", "No source depends on where or when it is compiled.", _repeatable),
)


def facts_in(
    root: Path, specs: Specs, names: Sequence[str], other: Path | None = None
) -> FatbinFacts:
    """Read the frozen fatbins of a checkout.

    Raises:
        UnusableError: a source or the manifest cannot be read, or `other` is no folder.
    """
    chosen = [specs.modules[name] for name in names]
    folder = root / BIN
    return FatbinFacts(
        folder=BIN,
        rebuild="build_fatbin --replace",
        wanted={spec.fatbin: spec.name for spec in chosen},
        files=frozen.read_folder(folder),
        modules=frozen.read_manifest(folder, SCHEMA),
        sources={spec.fatbin: sources_of(root, specs, spec) for spec in chosen},
        other=frozen.read_other(other),
        ignored=frozen.ignored_by_git(root, BIN),
        every=len(names) == len(specs.modules),
        specs=specs,
        images={},
    )


def facts_of_build(root: Path, specs: Specs, built: Sequence[Built]) -> FatbinFacts:
    """A fresh build as the rules see it."""
    return FatbinFacts(
        folder="the build",
        rebuild="build_fatbin --release --modules",
        wanted={each.spec.fatbin: each.spec.name for each in built},
        files={each.spec.fatbin: each.data for each in built},
        modules={each.spec.fatbin: each.entry for each in built},
        sources={each.spec.fatbin: sources_of(root, specs, each.spec) for each in built},
        specs=specs,
        images={each.spec.fatbin: each.images for each in built},
    )


# --- command line --------------------------------------------------------------------------------


def write_build(folder: Path, built: Sequence[Built], compiler: Compiler) -> None:
    """Leave a build in a folder, in place of an earlier one: fatbins, manifest, report, dump."""
    names = (MANIFEST, REPORT, DUMP, *SETTLEMENT)
    for old in (*folder.glob("*.fatbin"), *(folder / name for name in names)):
        old.unlink(missing_ok=True)
    made = {each.spec.fatbin: each.data for each in built}
    frozen.write(folder, SCHEMA, made, {each.spec.fatbin: each.entry for each in built})
    write_json(folder / REPORT, report_of(built, compiler))
    write_bytes(folder / DUMP, dump(made).encode())


def replace(root: Path, built: Built) -> None:
    """Put a fatbin and its entry, without validation, into bin/; nothing else changes."""
    name = built.spec.fatbin
    frozen.write(root / BIN, SCHEMA, {name: built.data}, {name: built.entry})


def commit_log(root: Path, folder: Path, label: str) -> Path:
    """Copy manifest, report and dump of a build to today's logs; returns where to."""
    target = frozen.log_folder(root, label)
    for name in (MANIFEST, REPORT, DUMP):
        write_bytes(target / name, (folder / name).read_bytes())
    return target


def _check(arguments: argparse.Namespace, root: Path, specs: Specs) -> Outcome:
    names = frozen.chosen(arguments.modules, list(specs.modules))
    if not (root / BIN / MANIFEST).exists() and not arguments.require_manifest:
        return Outcome(skipped=(Skipped("CUDA101", f"{BIN} has no {MANIFEST}: nothing is frozen"),))
    return apply_rules(RULES, facts_in(root, specs, names, arguments.compare))


def open_compiler(nvcc: str | None, say: Progress) -> Compiler:
    """The pinned compiler, announced.

    Raises:
        UnusableError: it is not to be had.
    """
    toolkit = find_toolkit(nvcc)
    for note in toolkit.passed_over:
        say(f"not used: {note}")
    compiler = Compiler(toolkit)
    say(f"{COMPILER}, from {toolkit.origin}")
    return compiler


def _note_validation(arguments: argparse.Namespace, root: Path, specs: Specs) -> Outcome:
    """Add a device to the entries of fatbins that are as they should be.

    Raises:
        UnusableError: no module is named, since a device is noted for what ran there.
        InconclusiveError: no committed result that counts says that T3 passed there.
    """
    if arguments.modules is None:
        raise UnusableError("--validated: name the modules that T3 accepted there with --modules")
    facts = facts_in(root, specs, frozen.chosen(arguments.modules, list(specs.modules)))
    outcome = apply_rules(RULES, facts)
    if outcome.exit_code == PASS:
        _refuse_unseen(root, arguments.validated)
        noted = {
            name: {**entry, "validated_on": sorted({*entry["validated_on"], arguments.validated})}
            for name, _, entry in facts.present()
        }
        frozen.write(root / BIN, SCHEMA, {}, noted)
    return outcome


def _refuse_unseen(root: Path, device: str) -> None:
    for result in tier_results.load_facts(root, {}, tiers=("t3",)).results:
        passed = result.parts.get("device", {}).get("status") == tier_results.PASSED
        there = result.document.get("environment", {}).get("gpu") == device
        whole = not (result.stale or result.tampered or result.document.get("arguments"))
        if result.tier == "t3" and passed and there and whole:
            return
    raise InconclusiveError(
        f"no committed result says that T3 passed on {device} with this tree; run "
        "`nox -s t3 -- --require-device --commit-log` there and commit what it writes"
    )


def _build_and_replace(arguments: argparse.Namespace, root: Path, specs: Specs) -> Outcome:
    def say(line: str) -> None:
        print(line, file=sys.stderr if arguments.json else sys.stdout)

    names = frozen.chosen(arguments.replace or arguments.modules, list(specs.modules))
    target = root / BIN if arguments.replace else arguments.out
    if arguments.dry_run:
        for spec in map(specs.modules.__getitem__, names):
            sass, ptx = " ".join(spec.sass_archs), spec.ptx_arch or "none"
            say(f"would build {target / spec.fatbin}: SASS {sass}, PTX {ptx}")
        return Outcome()
    compiler = open_compiler(arguments.nvcc, say)
    old = frozen.read_manifest(root / BIN, SCHEMA)
    built = build_all(root, specs, names, compiler)
    write_build(arguments.out, built, compiler)
    outcome = apply_rules(RULES, facts_of_build(root, specs, built))
    for each in built:
        state = frozen.state_of(old.get(each.spec.fatbin, {}).get("sha256"), each.entry["sha256"])
        size, digest = len(each.data), each.entry["sha256"]
        say(f"{each.spec.fatbin}: {state}, {size} bytes, sha256 {digest}")
    if outcome.exit_code == PASS:
        _keep(arguments, root, built, say)
    return outcome


def _keep(arguments: argparse.Namespace, root: Path, built: Sequence[Built], say: Progress) -> None:
    """Put a build that passed into bin/ and the logs, as far as that was asked for."""
    for each in built:
        if arguments.replace:
            replace(root, each)
            say(f"{BIN}/{each.spec.fatbin}: file and entry replaced")
        if arguments.commit_log:
            say(f"log: {commit_log(root, arguments.out, f'{each.spec.name}-fatbin')}")


def work(arguments: argparse.Namespace) -> Outcome:
    """Do what the command line asks for."""
    root = arguments.root.resolve()
    specs = load_specs(root)
    if arguments.check or arguments.compare is not None:
        return _check(arguments, root, specs)
    if arguments.validated:
        return _note_validation(arguments, root, specs)
    return _build_and_replace(arguments, root, specs)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="build_fatbin", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--release", action="store_true", help="build the release's fatbins")
    mode.add_argument("--check", action="store_true", help="check bin/ without a compiler")
    mode.add_argument("--compare", type=Path, metavar="DIR", help="check bin/ and compare with DIR")
    mode.add_argument("--replace", metavar="A,B", help="build, and replace these files and entries")
    mode.add_argument("--validated", metavar="DEVICE", help="note a device in these entries")
    parser.add_argument("--modules", metavar="A,B", help="only these modules")
    parser.add_argument(
        "--out", type=Path, default=OUT, help="folder to build in; an earlier build there goes"
    )
    parser.add_argument(
        "--require-manifest", action="store_true", help="with --check: nothing frozen is a failure"
    )
    parser.add_argument("--nvcc", help="an nvcc of the pinned version, whose toolkit is to be used")
    parser.add_argument("--commit-log", action="store_true", help=f"log each module below {LOGS}")
    parser.add_argument("--dry-run", action="store_true", help="say what would be built")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout")
    return run(parser, work, argv)


if __name__ == "__main__":
    raise SystemExit(main())

"""Record single matrix instructions of this machine's GPU, in the format of MMAEMU_TRUTH_DIR.

    python tools/record/record_steps.py --out recordings/          what this GPU has
    python tools/record/record_steps.py --out dry/ --dry hopper    on simulated tensor cores

Operands ask what is open about the instructions: the floor of the exponent, zero products, which
products form a group, the sign of a sum that is cut to zero, fp16 results, and a million results
of wgmma with random accumulators. Needs an NVIDIA driver and torch with its NVRTC. Nothing of the
project's arithmetic takes part on a GPU. Exit codes: 0 recorded, 2 could not run, 3 a group of
instructions could not be recorded.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from files import ROOT, write_bytes
from findings import INCONCLUSIVE, PASS, UnusableError, guarded

sys.path.insert(0, str(ROOT))
from mmaemu.backends import sources
from mmaemu.bindings.libcuda import open_launch_driver
from mmaemu.bindings.libnvrtc import open_nvrtc
from mmaemu.bindings.library import NativeLibraryError

SOURCE: Final = "tools/record/steps.cu"
OPTIONS: Final = ("--std=c++17", "-default-device", "--fmad=false")
TILES_OF_A_MILLION: Final = 245
SEED: Final = 20261201

Codes = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, slots=True)
class Encoding:
    """How values of a format are written: sign, exponent, fraction.

    Attributes:
        exponent_bits, fraction_bits, bias: of the format.
        largest: the largest finite code.
    """

    exponent_bits: int
    fraction_bits: int
    bias: int
    largest: int

    @property
    def dtype(self) -> type[np.unsignedinteger[Any]]:
        """Type of a code."""
        return np.uint8 if self.exponent_bits + self.fraction_bits < 8 else np.uint16  # noqa: PLR2004 - bits of a byte

    def power(self, exponent: int, *, negative: bool = False) -> int:
        """The code of 2^exponent or -2^exponent."""
        field = exponent + self.bias
        code = field << self.fraction_bits if field > 0 else 1 << (self.fraction_bits + field - 1)
        return code | negative << (self.exponent_bits + self.fraction_bits)

    def random(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Codes:
        """Finite codes, each equally often."""
        sign = rng.integers(0, 2, shape) << (self.exponent_bits + self.fraction_bits)
        return (rng.integers(0, self.largest + 1, shape) | sign).astype(self.dtype)


ENCODINGS: Final = {
    "e4m3": Encoding(4, 3, 7, 0x7E),
    "e5m2": Encoding(5, 2, 15, 0x7B),
    "fp16": Encoding(5, 10, 15, 0x7BFF),
    "bf16": Encoding(8, 7, 127, 0x7F7F),
}


@dataclass(frozen=True, slots=True)
class Group:
    """Instructions that are compiled together.

    Attributes:
        defines: macros of steps.cu.
        capabilities: compute capabilities that have them.
    """

    defines: tuple[str, ...]
    capabilities: tuple[int, ...]


MMA: Final = Group(("MMAEMU_STEPS_MMA",), (80, 86))
MMA_FP8: Final = Group(("MMAEMU_STEPS_MMA", "MMAEMU_STEPS_FP8"), (89, 90, 100, 120))
MMA_K16: Final = Group(("MMAEMU_STEPS_MMA_K16",), (89, 90, 100, 120))
WGMMA: Final = Group(("MMAEMU_STEPS_WGMMA",), (90,))
WGMMA_MORE: Final = Group(("MMAEMU_STEPS_WGMMA_MORE",), (90,))


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
        entry: its kernel in steps.cu.
        groups: where the kernel is compiled.
        formats: of a and b.
        k: products.
        presets: name of the instruction model that claims it, by compute capability; the arbiter
            of the claim is the recording.
        half: c and d are fp16.
    """

    entry: str
    groups: tuple[Group, ...]
    formats: tuple[str, str]
    k: int
    presets: dict[int, str]
    half: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of d."""
        return (64, 64) if self.entry.startswith("wgmma") else (16, 8)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 128 if self.entry.startswith("wgmma") else 32

    @property
    def encodings(self) -> tuple[Encoding, Encoding]:
        """Of a and b."""
        return ENCODINGS[self.formats[0]], ENCODINGS[self.formats[1]]


def _claims(fmt: str) -> dict[int, str]:
    owners = {80: "ampere", 86: "ampere", 89: "ampere", 90: "hopper", 100: "blackwell"}
    return {cc: f"{owner}_{fmt}_fp32" for cc, owner in {**owners, 120: "sm_120"}.items()}


_FP8: Final = {89: "ada", 90: "b200_mma_sync", 100: "b200_mma_sync", 120: "sm_120_fp8_fp32"}
_PAIRS: Final = tuple((a, b) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2"))
INSTRUCTIONS: Final = {
    each.entry: each
    for each in (
        *(
            Instruction(f"mma_{fmt}_{fmt}", (MMA, MMA_FP8), (fmt, fmt), 16, _claims(fmt))
            for fmt in ("bf16", "fp16")
        ),
        *(
            Instruction(f"{kind}_{a}_{b}", (group,), (a, b), k, presets)
            for a, b in _PAIRS
            for kind, group, k, presets in (
                ("mma", MMA_FP8, 32, _FP8),
                ("mma_k16", MMA_K16, 16, _FP8),
                ("wgmma", WGMMA, 32, {90: "hopper"}),
            )
        ),
        *(
            Instruction(
                f"wgmma_{fmt}_{fmt}",
                (WGMMA_MORE,),
                (fmt, fmt),
                16,
                {90: f"hopper_wgmma_{fmt}_fp32"},
            )
            for fmt in ("bf16", "fp16")
        ),
        *(
            Instruction(
                f"wgmma_fp16_out_{fmt}_{fmt}",
                (WGMMA_MORE,),
                (fmt, fmt),
                32,
                {90: "hopper_fp8_fp16"},
                half=True,
            )
            for fmt in ("e4m3", "e5m2")
        ),
    )
}


# --- operands ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """Operands of some instructions: a [T, m, k], b [T, n, k] codes, c [T, m, n] bits."""

    a: Codes
    b: Codes
    c: Codes


def blank(instruction: Instruction, tiles: int) -> Case:
    """Operands of zeros with c = +0, to be filled in place."""
    rows, columns = instruction.shape
    left, right = instruction.encodings
    return Case(
        np.zeros((tiles, rows, instruction.k), left.dtype),
        np.zeros((tiles, columns, instruction.k), right.dtype),
        np.zeros((tiles, rows, columns), np.uint16 if instruction.half else np.uint32),
    )


def floor_of_exponent(instruction: Instruction, _: np.random.Generator) -> Case:
    """2^e - 2^(e - 20 - column) in bf16, e from -120 down by row: E has a floor near -133."""
    left, right = instruction.encodings
    case = blank(instruction, 1)
    for row in range(instruction.shape[0]):
        case.a[0, row, 0] = left.power(-60 - row % 20)
        case.a[0, row, 1] = left.power(-80 - row % 20, negative=True)
    for column in range(instruction.shape[1]):
        case.b[0, column, 0] = right.power(-60)
        case.b[0, column, 1] = right.power(-60 - column % 8)
    return case


def zero_products(instruction: Instruction, rng: np.random.Generator) -> Case:
    """Zeros times the largest number, with accumulators from subnormal to large, both signs."""
    left, right = instruction.encodings
    case = blank(instruction, 2)
    case.b[0], case.a[1] = right.largest, left.largest
    if instruction.half:
        case.c[...] = ENCODINGS["fp16"].random(rng, case.c.shape)
        return case
    bits = 1 << rng.integers(0, 30, case.c.shape)
    case.c[...] = (bits + rng.integers(0, bits)) | (rng.integers(0, 2, case.c.shape) << 31)
    return case


def groups_of_products(instruction: Instruction, _: np.random.Generator) -> Case:
    """1 and two products 2^-24 at k = q of the tile and k = p of the row: who adds up first?"""
    left, right = instruction.encodings
    rows = instruction.shape[0]
    case = blank(instruction, instruction.k * -(-instruction.k // rows))
    for tile, row in product(range(len(case.a)), range(rows)):
        q, p = tile % instruction.k, tile // instruction.k * rows + row
        for k in {q, p % instruction.k}:
            case.a[tile, row, k] = left.power(-12 if left.bias > 7 else -9)  # noqa: PLR2004 - e4m3
        case.a[tile, row, 0] = left.power(0)
    case.b[...] = right.power(-12 if right.bias > 7 else -9)  # noqa: PLR2004 - e4m3
    case.b[:, :, 0] = right.power(0)
    return case


def cut_to_zero(instruction: Instruction, rng: np.random.Generator) -> Case:
    """Negative accumulators below every grid, alone and beside products that cancel."""
    left, right = instruction.encodings
    case = blank(instruction, 2)
    case.c[...] = rng.integers(1, 0x400, case.c.shape) | (1 << (15 if instruction.half else 31))
    case.a[1, :, 0], case.a[1, :, 1] = left.power(0), left.power(0, negative=True)
    case.b[1, :, :2] = right.power(0)
    return case


def random_tiles(instruction: Instruction, rng: np.random.Generator, tiles: int = 16) -> Case:
    """Random finite codes; accumulators of every exponent that the products have."""
    left, right = instruction.encodings
    case = blank(instruction, tiles)
    case.a[...] = left.random(rng, case.a.shape)
    case.b[...] = right.random(rng, case.b.shape)
    if instruction.half:
        case.c[...] = ENCODINGS["fp16"].random(rng, case.c.shape)
        return case
    spread = left.bias + right.bias
    exponents = rng.integers(max(1, 127 - spread), min(254, 127 + spread), case.c.shape)
    sign = rng.integers(0, 2, case.c.shape) << 31
    case.c[...] = sign | (exponents << 23) | rng.integers(0, 1 << 23, case.c.shape)
    return case


def ones_and_adversaries(instruction: Instruction, rng: np.random.Generator) -> Case:
    """A million results: a sixth all ones, a third of few exponents, the rest of every code."""
    case = random_tiles(instruction, rng, TILES_OF_A_MILLION)
    left, right = instruction.encodings
    ones, near = TILES_OF_A_MILLION // 6, TILES_OF_A_MILLION // 2
    case.a[:ones], case.b[:ones] = left.power(0), right.power(0)
    # Neighbouring exponents, low bits set, signs at random: the truncations all matter.
    for codes, encoding in ((case.a, left), (case.b, right)):
        mask = (1 << (encoding.fraction_bits + 1)) - 1
        middle = encoding.bias << encoding.fraction_bits
        few = codes[ones:near]
        sign = few & (1 << (encoding.exponent_bits + encoding.fraction_bits))
        few[...] = sign | middle | (few & mask) | 1
    return case


@dataclass(frozen=True, slots=True)
class Recording:
    """One question to some instructions, kept in one folder.

    Attributes:
        name: label of the rows.
        folder: suffix of the platform's folder.
        entries: the instructions.
        make: their operands.
    """

    name: str
    folder: str
    entries: tuple[str, ...]
    make: Callable[[Instruction, np.random.Generator], Case]


_BF16: Final = ("mma_bf16_bf16", "wgmma_bf16_bf16")
_WIDE: Final = (*_BF16, "mma_fp16_fp16", "wgmma_fp16_fp16")
_ALL: Final = tuple(INSTRUCTIONS)
_OF_FP8: Final = tuple(name for name in _ALL if name not in _WIDE)
RECORDINGS: Final = (
    Recording("exponent-floor", "steps", _BF16, floor_of_exponent),
    Recording("zero-products", "steps", _ALL, zero_products),
    Recording("product-groups", "steps", _OF_FP8, groups_of_products),
    Recording("cut-to-zero", "steps", _ALL, cut_to_zero),
    Recording("random", "steps", _ALL, random_tiles),
    Recording("million-e4m3", "million-e4m3", ("wgmma_e4m3_e4m3",), ones_and_adversaries),
    Recording("million-e5m2", "million-e5m2", ("wgmma_e5m2_e5m2",), ones_and_adversaries),
)


# --- where instructions run ----------------------------------------------------------------------


class StepRequest(ctypes.Structure):
    """`struct mmaemu_step_request` of steps.cu."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in "abcd")


class Unit(Protocol):
    """What executes instructions."""

    name: str
    capability: int

    def run(self, instruction: Instruction, case: Case) -> Codes:
        """Return d of every tile.

        Raises:
            UnusableError: the instruction cannot be run here.
        """
        ...


class Gpu:
    """This machine's first GPU."""

    def __init__(self) -> None:
        """Find it.

        Raises:
            UnusableError: there is none, or no NVRTC.
        """
        try:
            self._driver = open_launch_driver()
            device = self._driver.device(0)
            self._context = self._driver.retain_primary_context(device)
            self._nvrtc = open_nvrtc()
        except NativeLibraryError as error:
            raise UnusableError(f"no GPU with NVRTC can be used here: {error}") from error
        self.name = device.name
        self.capability = 10 * device.capability[0] + device.capability[1]
        self._modules: dict[Group, int] = {}

    def run(self, instruction: Instruction, case: Case) -> Codes:
        """Run one block per tile on the GPU."""
        import torch

        groups = [each for each in instruction.groups if self.capability in each.capabilities]
        if not groups:
            raise UnusableError(f"sm_{self.capability} has no {instruction.entry}")
        signed = [each.view(f"i{each.dtype.itemsize}") for each in (case.a, case.b, case.c)]
        tensors = [torch.from_numpy(each).cuda() for each in signed]
        d = torch.full_like(tensors[2], -1)
        pointers = [each.data_ptr() for each in (*tensors, d)]
        try:
            with self._driver.current(self._context):
                function = self._driver.function(self._module(groups[0]), instruction.entry)
                self._driver.launch(
                    function,
                    grid=(len(case.a), 1),
                    threads=instruction.threads,
                    shared_bytes=0,
                    stream=torch.cuda.current_stream().cuda_stream,
                    parameter=StepRequest(*pointers),
                )
        except NativeLibraryError as error:
            raise UnusableError(f"{instruction.entry}: {error}") from error
        result: Codes = d.cpu().numpy().view(case.c.dtype)
        return result

    def _module(self, group: Group) -> int:
        if group not in self._modules:
            suffix = "a" if self.capability >= 90 else ""  # noqa: PLR2004 - wgmma needs sm_90a
            options = (
                *OPTIONS,
                f"--gpu-architecture=sm_{self.capability}{suffix}",
                *(f"-D{define}" for define in group.defines),
            )
            program = sources.program(sources.closure(ROOT, SOURCE), SOURCE)
            cubin = self._nvrtc.compile(*program, options)
            self._modules[group] = self._driver.load_module(cubin)
        return self._modules[group]


class Simulated:
    """The simulated tensor cores of tools/host_cuda: a rehearsal, evidence of nothing.

    Args:
        tensor_core: a name in host_cuda.TENSOR_CORES.
    """

    CAPABILITIES: Final = {"ampere": 80, "ada": 89, "hopper": 90, "blackwell": 100, "sm_120": 120}
    GROUPS: Final = (MMA, MMA_FP8, WGMMA)

    def __init__(self, tensor_core: str) -> None:
        """Choose the tensor cores."""
        self.name = f"simulated {tensor_core}"
        self.capability = self.CAPABILITIES[tensor_core]
        self._tensor_core = tensor_core

    def run(self, instruction: Instruction, case: Case) -> Codes:
        """Run the kernels on the host."""
        import host_cuda

        groups = [
            each
            for each in instruction.groups
            if self.capability in each.capabilities and each in self.GROUPS
        ]
        if not groups:
            raise UnusableError(f"{self.name} has no {instruction.entry}")
        entries = [name for name, each in INSTRUCTIONS.items() if groups[0] in each.groups]
        library = host_cuda.build(
            ROOT / SOURCE, groups[0].defines, entries=entries, tensor_core=self._tensor_core
        )
        d = np.full_like(case.c, np.iinfo(case.c.dtype).max)
        pointers = [each.ctypes.data for each in (case.a, case.b, case.c, d)]
        host_cuda.HostModule(library).launch(
            instruction.entry, (len(case.a), 1), instruction.threads, StepRequest(*pointers)
        )
        return d


# --- writing -------------------------------------------------------------------------------------


def record(unit: Unit, recordings: Sequence[Recording]) -> Iterator[tuple[Recording, Any]]:
    """Run the recordings.

    Yields:
        the recording with (instruction, case, d), or with the reason why one is not there.
    """
    for recording in recordings:
        for entry in recording.entries:
            instruction = INSTRUCTIONS[entry]
            rng = np.random.default_rng([SEED, len(entry), *entry.encode()])
            case = recording.make(instruction, rng)
            try:
                yield recording, (instruction, case, unit.run(instruction, case))
            except UnusableError as error:
                yield recording, f"{recording.name}/{entry}: not recorded: {error}"


def save(folder: Path, unit: Unit, rows: Sequence[tuple[Recording, Any]]) -> int:
    """Write the rows of one platform folder; returns the number of recorded results."""
    arrays: dict[str, Codes] = {}
    lines, count = [], 0
    for recording, (instruction, case, d) in rows:
        label = f"{recording.name}/{instruction.entry}"
        named = {"a": case.a, "b": case.b, "c": case.c, "d": d}
        keys = {name: f"{label}/{name}" for name in named}
        arrays |= {keys[name]: array for name, array in named.items()}
        fmt_a, fmt_b = instruction.formats
        line = {
            "id": label,
            "recording": recording.name,
            "layout": "tile",
            "fmt_a": fmt_a,
            "fmt_b": fmt_b,
            "gpu": unit.name,
            "instruction": instruction.entry,
            "preset": instruction.presets.get(unit.capability, f"unknown-sm_{unit.capability}"),
            **keys,
        }
        lines.append(json.dumps(line, sort_keys=True))
        count += d.size
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / "arrays.npz", allow_pickle=False, **arrays)
    write_bytes(folder / "mma.jsonl", ("\n".join(lines) + "\n").encode())
    return count


def run(arguments: argparse.Namespace) -> int:
    """Record everything and write it."""
    unit: Unit = Simulated(arguments.dry) if arguments.dry else Gpu()
    tiles = 2 if arguments.dry else None
    recordings = [each for each in RECORDINGS if arguments.only in each.name]
    if not recordings:
        names = ", ".join(each.name for each in RECORDINGS)
        raise UnusableError(f"--only {arguments.only!r} names no recording; there are {names}")
    found: dict[str, list[tuple[Recording, Any]]] = {}
    missing = []
    for recording, result in record(unit, [shorter(each, tiles) for each in recordings]):
        if isinstance(result, str):
            missing.append(result)
        else:
            found.setdefault(recording.folder, []).append((recording, result))
    for name, rows in found.items():
        count = save(arguments.out / name, unit, rows)
        print(f"record_steps: {unit.name}: {count} results in {arguments.out / name}")
    lacking = sorted({line.rpartition(" has no ")[2] for line in missing if " has no " in line})
    if lacking:
        print(f"record_steps: {unit.name} has no {', '.join(lacking)}")
    unexpected = [line for line in missing if " has no " not in line]
    for line in unexpected:
        print(f"record_steps: {line}")
    return INCONCLUSIVE if unexpected or not found else PASS


def shorter(recording: Recording, tiles: int | None) -> Recording:
    """The recording with at most so many tiles, for a rehearsal."""
    if tiles is None:
        return recording
    make = recording.make

    def some(instruction: Instruction, rng: np.random.Generator) -> Case:
        case = make(instruction, rng)
        picked = (np.ascontiguousarray(x[:tiles]) for x in (case.a, case.b, case.c))
        return Case(*picked)

    return replace(recording, make=some)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="record_steps",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for platform folders")
    parser.add_argument("--only", default="", help="only recordings whose name contains this")
    parser.add_argument(
        "--dry",
        choices=sorted(Simulated.CAPABILITIES),
        help="rehearse on simulated tensor cores, a few tiles of each",
    )
    arguments = parser.parse_args(argv)
    return guarded(parser.prog, lambda: run(arguments))


if __name__ == "__main__":
    raise SystemExit(main())

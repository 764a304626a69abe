"""The CUDA modules and kernels as data: the one list that everything about them iterates over.

build_fatbin, loader, selection, self-test, conformance tests, bench and documentation read these
rows. Nothing here needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mmaemu.backends.cuda.images import Entry

E4M3_E5M2: Final = tuple((a, b) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2"))
E4M3_ONLY: Final = (("e4m3", "e4m3"),)

SOURCES: Final = "mmaemu/backends/csrc/cuda"
OPTIONS: Final = ("--std=c++17", "-default-device", "--fmad=false")
"""Options of every compilation; a proof in a kernel may count on no contraction."""


@dataclass(frozen=True, slots=True)
class ModuleSpec:
    """One compiled module, that is one fatbin.

    Attributes:
        name: the release name.
        source: its file in `SOURCES`.
        defines: macros that make the instance, as NAME=VALUE.
        sass_archs: compute capabilities with machine code, such as "89" or "90a".
        ptx_arch: compute capability of the PTX for later devices; None = none.
        entries: every kernel in it, sorted.
        registers: most registers a thread may use.
        allowed_ptx: (pattern, reason) of instructions that IEEE-only modules must not have.
        one_block: (architecture, reason) where no two blocks share a multiprocessor.
    """

    name: str
    source: str
    defines: tuple[str, ...]
    sass_archs: tuple[str, ...]
    ptx_arch: str | None
    entries: tuple[str, ...]
    registers: int
    allowed_ptx: tuple[tuple[str, str], ...] = ()
    one_block: tuple[tuple[str, str], ...] = ()

    @property
    def fatbin(self) -> str:
        """Name of its file in bin/."""
        return f"{self.name}.fatbin"

    def covers(self, capability: tuple[int, int]) -> bool:
        """Whether the module is meant for devices of a compute capability."""
        images = [
            Entry(int(arch.rstrip("a")), accelerated=arch.endswith("a")) for arch in self.sass_archs
        ]
        if self.ptx_arch is not None:
            images.append(Entry(int(self.ptx_arch), is_ptx=True))
        return any(image.runs_on(capability) for image in images)

    def options(self, arch: str, *, ptx: bool = False) -> tuple[str, ...]:
        """Options with which NVRTC compiles the module for one architecture, such as "89"."""
        kind = "compute" if ptx else "sm"
        defines = (f"-D{define}" for define in self.defines)
        return (*OPTIONS, f"--gpu-architecture={kind}_{arch}", *defines)


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One GEMM kernel; the backend is called `cuda:<module>`.

    Attributes:
        name: what it is: operation, opcode class (simt = IEEE instructions only, tensorop = borrows
            device behaviour), instruction model, formats, tile.
        module: name of its module and its release name.
        entry: the kernel's symbol.
        model: name of the instruction model it computes.
        formats: pairs of operand formats.
        min_cc: lowest compute capability it runs on, as major * 10 + minor.
        priority: higher is tried first.
        tile: rows and columns of one block's outputs.
        threads: threads of a block.
        shared_bytes: dynamic shared memory of a block.
        alignment: bytes to which the operands' bases and leading dimensions must be aligned.
        k_max: largest K, or None.
        gated: chosen automatically only where validated, or with MMAEMU_ALLOW_GATED_KERNELS.
        gates: probes that must pass on the very device before it is used.
        validated_on: devices with committed evidence, by the name the driver gives; it counts with
            a fatbin whose manifest names the device too.
    """

    name: str
    module: str
    entry: str
    model: str
    formats: tuple[tuple[str, str], ...]
    min_cc: int
    priority: int
    tile: tuple[int, int]
    threads: int
    shared_bytes: int
    alignment: int = 1
    k_max: int | None = None
    gated: bool = False
    gates: tuple[str, ...] = ()
    validated_on: tuple[str, ...] = ()


EVERY_ARCH: Final = ("75", "80", "86", "89", "90", "100", "120")
SINCE_AMPERE: Final = EVERY_ARCH[1:]

_BORROWS: Final = (r"mma\.sync", "borrows the matrix unit, and its probes show what it borrows")
_EXPONENT: Final = "exponent-product"

MODULES: Final = (
    ModuleSpec(
        "v1",
        "decode_table.cu",
        ("MMAEMU_DOT_LENGTH=16", "MMAEMU_ENTRY=mmaemu_v1"),
        EVERY_ARCH,
        "75",
        ("mmaemu_v1",),
        128,
    ),
    ModuleSpec(
        "h1",
        "decode_table.cu",
        ("MMAEMU_DOT_LENGTH=32", "MMAEMU_ENTRY=mmaemu_h1"),
        EVERY_ARCH,
        "75",
        ("mmaemu_h1",),
        128,
        one_block=(("75", "its 64 KiB of shared memory hold the panels of one block"),),
    ),
    ModuleSpec(
        "v4",
        "floor_fma.cu",
        ("MMAEMU_DOT_LENGTH=16", "MMAEMU_ENTRY=mmaemu_v4"),
        SINCE_AMPERE,
        "80",
        ("mmaemu_v4",),
        128,
    ),
    ModuleSpec(
        "h4",
        "floor_fma.cu",
        ("MMAEMU_DOT_LENGTH=32", "MMAEMU_ENTRY=mmaemu_h4"),
        SINCE_AMPERE,
        "80",
        ("mmaemu_h4",),
        128,
    ),
    ModuleSpec(
        "v9",
        "exponent_mma.cu",
        ("MMAEMU_DOT_LENGTH=16", "MMAEMU_ENTRY=mmaemu_v9"),
        SINCE_AMPERE,
        None,
        ("mmaemu_v9",),
        128,
        (_BORROWS,),
    ),
    ModuleSpec(
        "tc3",
        "dummy_accumulator.cu",
        ("MMAEMU_DOT_LENGTH=16", "MMAEMU_ENTRY=mmaemu_tc3"),
        ("80", "86", "89"),
        None,
        ("mmaemu_tc3",),
        128,
        (_BORROWS,),
    ),
    ModuleSpec(
        "probes",
        "probes.cu",
        (),
        SINCE_AMPERE,
        None,
        ("mmaemu_probe_bf16", "mmaemu_probe_fp16_k8"),
        64,
        (_BORROWS,),
    ),
    ModuleSpec(
        "qmma",
        "mma_sync.cu",
        ("MMAEMU_DOT_LENGTH=32", "MMAEMU_ENTRY=mmaemu_qmma"),
        ("89", "120"),
        None,
        ("mmaemu_qmma",),
        128,
        ((r"mma\.sync", "it is the device's own product, which the self-test compares"),),
    ),
    ModuleSpec(
        "wgmma",
        "wgmma.cu",
        ("MMAEMU_ENTRY=mmaemu_wgmma",),
        ("90a",),
        None,
        ("mmaemu_wgmma",),
        256,
        ((r"wgmma\.", "it is the device's own product, which the self-test compares"),),
    ),
)

KERNELS: Final = (
    KernelSpec(
        name="gemm_simt_floor_fma_ada_fp8",
        module="v4",
        entry="mmaemu_v4",
        model="ada",
        formats=E4M3_E5M2,
        min_cc=80,
        priority=40,
        tile=(64, 64),
        threads=256,
        shared_bytes=0,
    ),
    KernelSpec(
        name="gemm_simt_floor_fma_hopper_fp8",
        module="h4",
        entry="mmaemu_h4",
        model="hopper",
        formats=E4M3_E5M2,
        min_cc=80,
        priority=40,
        tile=(64, 64),
        threads=256,
        shared_bytes=0,
    ),
    KernelSpec(
        name="gemm_simt_decode_table_ada_fp8",
        module="v1",
        entry="mmaemu_v1",
        model="ada",
        formats=E4M3_E5M2,
        min_cc=75,
        priority=10,
        tile=(64, 64),
        threads=256,
        shared_bytes=0,
    ),
    KernelSpec(
        name="gemm_simt_decode_table_hopper_fp8",
        module="h1",
        entry="mmaemu_h1",
        model="hopper",
        formats=E4M3_E5M2,
        min_cc=75,
        priority=10,
        tile=(64, 64),
        threads=256,
        shared_bytes=0,
    ),
    KernelSpec(
        name="gemm_tensorop_wgmma_hopper_fp8",
        module="wgmma",
        entry="mmaemu_wgmma",
        model="hopper",
        formats=E4M3_E5M2,
        min_cc=90,
        priority=70,
        tile=(64, 64),
        threads=128,
        shared_bytes=0,
        gated=True,
    ),
    KernelSpec(
        name="gemm_tensorop_mma_sync_ada_fp8",
        module="qmma",
        entry="mmaemu_qmma",
        model="ada",
        formats=E4M3_E5M2,
        min_cc=89,
        priority=70,
        tile=(64, 64),
        threads=256,
        shared_bytes=0,
        gated=True,
    ),
    KernelSpec(
        name="gemm_tensorop_dummy_accumulator_ada_e4m3",
        module="tc3",
        entry="mmaemu_tc3",
        model="ada",
        formats=E4M3_ONLY,
        min_cc=80,
        priority=60,
        tile=(64, 64),
        threads=256,
        shared_bytes=0,
        gated=True,
        gates=(_EXPONENT, "dummy-grid", "dummy-sum"),
    ),
    KernelSpec(
        name="gemm_tensorop_exponent_mma_ada_e4m3",
        module="v9",
        entry="mmaemu_v9",
        model="ada",
        formats=E4M3_ONLY,
        min_cc=80,
        priority=50,
        tile=(64, 64),
        threads=256,
        shared_bytes=0,
        gated=True,
        gates=(_EXPONENT,),
    ),
)


def by_priority() -> tuple[str, ...]:
    """The modules with kernels, in the order in which automatic selection tries them."""
    ordered = sorted(KERNELS, key=lambda kernel: -kernel.priority)
    return tuple(dict.fromkeys(kernel.module for kernel in ordered))

"""The named instruction models: one row of data each, and the ways to find one.

L, F and Emin follow one law: a block is 8, 16 or 32 bytes of an operand, F = 23, 24 or 25, and Emin
lies F - 18 below the smallest normal exponent of the output. The rows say where they leave it.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from mmaemu.cautions import Caution
from mmaemu.errors import ExperimentalPresetWarning
from mmaemu.formats import FORMATS
from mmaemu.instruction.model import (
    FP8_PAIRS,
    OUTPUT_FRACTION_BITS,
    InstructionModel,
    Kind,
    Maturity,
    Output,
    Overflow,
)

FASI = "Fasi, Higham, Mikaitis, Pranesh 2021, PeerJ CS 7:e330"
KHATTAK = "Khattak, Mikaitis 2026, arXiv 2512.07004"
XIE = "Xie et al. 2025, arXiv 2511.10909"
PTX = "NVIDIA PTX ISA 8.7, mma with integer operands"
TOOLBOX = "recording: MATLAB Tensor Core toolbox vectors"
RTX4060 = "recording: RTX 4060 instruction chains"
PUBLISHED = "statement of the published mmaemu 0.1.0 (H100 PCIe, cuBLASLt 12.8.3.14)"
_OLD = (FASI, KHATTAK)
_OLD_RECORDED = (*_OLD, TOOLBOX)
_RECORDED = (KHATTAK, TOOLBOX)
_PAPERS = (KHATTAK, XIE)

_FLOAT_PATHS: tuple[tuple[str, Output], ...] = (
    ("fp16", "fp32"),
    ("bf16", "fp32"),
    ("fp16", "fp16"),
    ("tf32", "fp32"),
)
_FP16_PATHS: tuple[tuple[str, Output], ...] = (("fp16", "fp32"), ("fp16", "fp16"))
_FP32_FP16: tuple[Output, ...] = ("fp32", "fp16")
_ELEMENT_BYTES = {"fp16": 2, "bf16": 2, "tf32": 4}
_NARROW = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")
_NARROW_PAIRS = tuple((a, b) for a in _NARROW for b in _NARROW)


def floor_exponent(output: str, fraction_bits: int) -> int:
    """Return Emin of a model with 23, 24 or 25 fraction bits (N3).

    Args:
        output: "fp32" or "fp16".
        fraction_bits: F.

    Returns:
        the output's minimum exponent less (F - 18).
    """
    return FORMATS[output].min_exponent - (fraction_bits - 18)


def _aligned(
    name: str,
    output: Output,
    dot_length: int,
    fraction_bits: int,
    **rest: Any,  # noqa: ANN401 - the remaining fields of InstructionModel, checked by it
) -> InstructionModel:
    """Return a row that follows the law of the module docstring; `rest` overrides it."""
    fields: dict[str, Any] = {
        "result_fraction_bits": OUTPUT_FRACTION_BITS[output],
        "min_exponent": floor_exponent(output, fraction_bits),
        "rounding": "nearest even" if output == "fp16" else "toward zero",
        **rest,
    }
    return InstructionModel(
        name=name,
        output=output,
        dot_length=dot_length,
        fraction_bits=fraction_bits,
        **fields,
    )


class _Generation(NamedTuple):
    """The fp16, bf16 and tf32 paths of one instruction family of NVIDIA tensor cores."""

    prefix: str
    architectures: tuple[str, ...]
    instruction: str
    block_bytes: int
    fraction_bits: int
    maturity: Maturity
    sources: tuple[str, ...]
    scope: str
    paths: tuple[tuple[str, Output], ...] = _FLOAT_PATHS


_SAME = "assumed equal to mma.sync of the same chip"
_AMPERE = "A100, A2, RTX 1000 Ada, L40S; the same for A30, A40 and RTX 40"
_GENERATIONS = (
    _Generation(
        "volta", ("volta",), "mma.sync", 8, 23, "recorded", _OLD_RECORDED, "V100", _FP16_PATHS
    ),
    _Generation("turing", ("turing",), "mma.sync", 16, 24, "model only", _OLD, "T4", _FP16_PATHS),
    _Generation(
        "ampere", ("ampere", "ada"), "mma.sync", 16, 24, "recorded", _OLD_RECORDED, _AMPERE
    ),
    _Generation("hopper", ("hopper",), "mma.sync", 32, 25, "recorded", _RECORDED, "H100 and H200"),
    _Generation("hopper_wgmma", ("hopper",), "wgmma", 32, 25, "model only", _PAPERS, _SAME),
    _Generation("blackwell", ("sm_100",), "mma.sync", 32, 25, "recorded", _RECORDED, "B200"),
    _Generation("tcgen05", ("sm_100",), "tcgen05", 32, 25, "model only", _PAPERS, _SAME),
    _Generation("sm_120", ("sm_120",), "mma.sync", 32, 25, "model only", _PAPERS, "RTX 50"),
)
_NVIDIA_FLOAT = tuple(
    _aligned(
        f"{row.prefix}_{fmt}_{output}",
        output,
        row.block_bytes // _ELEMENT_BYTES[fmt],
        row.fraction_bits,
        maturity=row.maturity,
        sources=row.sources,
        inputs=((fmt, fmt),),
        architectures=row.architectures,
        instruction=row.instruction,
        scope=row.scope,
    )
    for row in _GENERATIONS
    for fmt, output in row.paths
)


class _Fp8Path(NamedTuple):
    """An FP8 instruction that keeps 13 fraction bits."""

    name: str
    architecture: str
    instruction: str
    output: Output
    dot_length: int
    maturity: Maturity
    sources: tuple[str, ...]
    scope: str


_ADA = "mma.sync on RTX 4060, RTX 1000 Ada and L40S; what cuBLAS runs on an RTX 4060"
_HOPPER = (
    "wgmma, what cuBLAS runs on an H100. Recorded: one step with c = 0 on H100 and H200; stated: "
    "chains, promotion and split-K"
)
_ADA_SOURCES = (RTX4060, TOOLBOX, KHATTAK)
_HOPPER_SOURCES = (TOOLBOX, KHATTAK, PUBLISHED)
_FP8_PATHS = (
    _Fp8Path("ada", "ada", "mma.sync", "fp32", 16, "recorded", _ADA_SOURCES, _ADA),
    _Fp8Path("ada_fp8_fp16", "ada", "mma.sync", "fp16", 16, "recorded", _RECORDED, "RTX 1000 Ada"),
    _Fp8Path("hopper", "hopper", "wgmma", "fp32", 32, "stated", _HOPPER_SOURCES, _HOPPER),
    _Fp8Path("hopper_fp8_fp16", "hopper", "wgmma", "fp16", 32, "model only", _PAPERS, "wgmma"),
)
# Thirteen fraction bits: no floor is known. For fp32 output every floor up to -126 means the same,
# since neither c nor a product lies below, and -121 is refuted; -132 is the published spelling.
_THIRTEEN_BITS: dict[str, dict[str, Any]] = {
    "fp32": {"result_fraction_bits": 13, "min_exponent": -132, "promotion_interval": 128},
    "fp16": {"min_exponent": None},
}
_EMULATED_FP8: dict[str, Any] = {
    "maturity": "recorded",
    "sources": _RECORDED,
    "inputs": FP8_PAIRS,
    "accumulator": "late",
    "operand_format": "fp16",
    "groups": ((0, 1), (2, 3)),
    "architectures": ("hopper", "sm_100"),
    "instruction": "mma.sync",
    "scope": "mma.sync on H100, H200 and B200, K = 32; neither B200 cuBLAS nor sm_120",
}

_NVIDIA_FP8 = (
    *(
        _aligned(
            row.name,
            row.output,
            row.dot_length,
            13,
            maturity=row.maturity,
            sources=row.sources,
            inputs=FP8_PAIRS,
            architectures=(row.architecture,),
            instruction=row.instruction,
            scope=row.scope,
            **_THIRTEEN_BITS[row.output],
        )
        for row in _FP8_PATHS
    ),
    _aligned("b200_mma_sync", "fp32", 32, 25, **_EMULATED_FP8),
    _aligned("b200_mma_sync_fp16", "fp16", 32, 25, **_EMULATED_FP8),
    *(
        _aligned(
            f"{prefix}_{output}",
            output,
            32,
            25,
            maturity="model only",
            sources=_PAPERS,
            inputs=_NARROW_PAIRS,
            architectures=(architecture,),
            instruction=instruction,
            scope="fp8, fp6 and fp4 operands in any pair",
        )
        for prefix, architecture, instruction in (
            ("tcgen05_f8f6f4", "sm_100", "tcgen05"),
            ("sm_120_fp8", "sm_120", "mma.sync"),
        )
        for output in _FP32_FP16
    ),
)

_SIXTEENS = tuple(tuple(range(start, start + 16)) for start in range(0, 64, 16))
_BLOCK_SCALED = (
    _aligned(
        "tcgen05_mxf8f6f4",
        "fp32",
        32,
        25,
        maturity="model only",
        sources=_PAPERS,
        inputs=_NARROW_PAIRS,
        scale_format="ue8m0",
        scale_block=32,
        architectures=("sm_100",),
        instruction="tcgen05",
        scope="one ue8m0 scale per 32 elements of each operand",
    ),
    *(
        _aligned(
            name,
            "fp32",
            64,
            35,
            maturity="model only",
            sources=_PAPERS,
            min_exponent=None,
            inputs=(("e2m1", "e2m1"),),
            kind="group sums",
            groups=_SIXTEENS,
            scale_format=scale_format,
            scale_block=scale_block,
            architectures=("sm_100",),
            instruction="tcgen05",
            scope=f"k64; one {scale_format} scale per {scale_block} elements of each operand",
        )
        for name, scale_format, scale_block in (
            ("tcgen05_mxf4", "ue8m0", 32),
            ("tcgen05_nvfp4", "ue4m3", 16),
        )
    ),
)


def _fma(name: str, fmt: Output, sources: tuple[str, ...], scope: str) -> InstructionModel:
    return InstructionModel(
        name=name,
        dot_length=1,
        fraction_bits=0,
        result_fraction_bits=OUTPUT_FRACTION_BITS[fmt],
        maturity="model only",
        scope=scope,
        sources=sources,
        inputs=((fmt, fmt),),
        output=fmt,
        kind="fma",
        rounding="nearest even",
    )


_OVERFLOWS: tuple[tuple[str, Overflow], ...] = (
    ("int8_wrap", "wrap"),
    ("int8_satfinite", "clamp"),
)
_IEEE_AND_INTEGER = (
    _fma("fp64_fma", "fp64", (XIE,), "fp64 mma.sync of sm_80 and sm_90, c first, in k order"),
    *(
        InstructionModel(
            name=name,
            dot_length=32,
            fraction_bits=0,
            result_fraction_bits=0,
            maturity="model only",
            scope="exact sum; the range rule acts after every 32 products",
            sources=(PTX,),
            inputs=(("int8", "int8"),),
            output="int32",
            kind="integer",
            overflow=overflow,
        )
        for name, overflow in _OVERFLOWS
    ),
)


def _amd(name: str, dot_length: int, fmt: str, kind: Kind, **rest: Any) -> InstructionModel:  # noqa: ANN401 - as _aligned
    fields: dict[str, Any] = {"fraction_bits": 0, "inputs": ((fmt, fmt),), **rest}
    return InstructionModel(
        name=name,
        dot_length=dot_length,
        result_fraction_bits=23,
        maturity="model only",
        sources=(XIE,),
        kind=kind,
        rounding="nearest even",
        scope="MFMA with fp32 c and d",
        architectures=(name.partition("_")[0],),
        instruction="mfma",
        **fields,
    )


_FNUZ = ("e4m3fnuz", "e5m2fnuz")
_AMD = (
    _amd("cdna1_fp16", 4, "fp16", "exact sum"),
    _amd("cdna1_bf16", 2, "bf16", "exact sum"),
    _amd("cdna2_fp16", 4, "fp16", "product tree"),
    _amd("cdna2_bf16_1k", 4, "bf16", "product tree"),
    _amd("cdna2_bf16", 2, "bf16", "product tree"),
    _amd("cdna3_xf32", 4, "tf32", "two-stage", fraction_bits=24),
    _amd("cdna3_fp16", 8, "fp16", "two-stage", fraction_bits=24),
    _amd("cdna3_bf16", 8, "bf16", "two-stage", fraction_bits=24),
    _amd(
        "cdna3_fp8",
        16,
        "e4m3fnuz",
        "two-stage",
        fraction_bits=24,
        inputs=tuple((a, b) for a in _FNUZ for b in _FNUZ),
        groups=((0,), (1,)),
        accumulator_window=25,
    ),
    _fma("cdna_fp32_fma", "fp32", (XIE,), "fp32 MFMA of CDNA1, 2 and 3"),
    _fma("cdna_fp64_fma", "fp64", (XIE,), "fp64 MFMA of CDNA2 and 3"),
)

MODELS: dict[str, InstructionModel] = {
    model.name: model
    for model in (*_NVIDIA_FP8, *_NVIDIA_FLOAT, *_BLOCK_SCALED, *_IEEE_AND_INTEGER, *_AMD)
}
"""Every named model."""

ALIASES: dict[str, str] = {
    "ada_fp8_fp32": "ada",
    "hopper_fp8_fp32": "hopper",
    "hopper_mma_sync": "b200_mma_sync",
    "hopper_mma_sync_fp16": "b200_mma_sync_fp16",
    "blackwell": "b200_mma_sync",
    **{f"ada_{fmt}_{output}": f"ampere_{fmt}_{output}" for fmt, output in _FLOAT_PATHS},
}
"""Second names of models."""

WARNING_ALIASES: dict[str, str] = {
    "blackwell": "it means the FP8 mma.sync that Hopper and B200 emulate in hardware; it models "
    "neither B200 cuBLAS (see tcgen05_f8f6f4_fp32) nor sm_120 (see sm_120_fp8_fp32)",
}
"""Aliases that warn at every use, and why."""

REFUSED: dict[str, str] = dict.fromkeys(
    ("sm_120", "sm120", "rtx_blackwell", "rtx-blackwell", "rtx5070ti", "rtx_5070_ti"),
    "no recording of an sm_120 FP8 instruction exists, so no preset claims its bits; the unproved "
    "models are sm_120_fp8_fp32 and sm_120_fp8_fp16",
)
"""Names that are refused as presets, and why."""


def list_presets() -> list[str]:
    """Return the names of all models, sorted; aliases are not listed."""
    return sorted(MODELS)


def get_preset(name: str | InstructionModel, *, warn: bool = True) -> InstructionModel:
    """Return an instruction model.

    Args:
        name: a name, an alias, or an InstructionModel, which is returned as it is, silently.
        warn: False suppresses the warnings below.

    Returns:
        the model.

    Warns:
        ExperimentalPresetWarning: the model's maturity is "model only" (once per model and
            process), or the name is the alias "blackwell" (every time).

    Raises:
        TypeError: neither a str nor an InstructionModel.
        KeyError: no such model, or a refused name; the message says why.
    """
    if isinstance(name, InstructionModel):
        return name
    model = _named(name)
    if warn:
        for caution in cautions_of(name):
            caution.issue()
    return model


def cautions_of(preset: str | InstructionModel) -> tuple[Caution, ...]:
    """Return what a user of a preset should know; errors as `get_preset`."""
    model = get_preset(preset, warn=False)
    found = []
    if isinstance(preset, str) and preset in WARNING_ALIASES:
        message = f"preset {preset!r}: {WARNING_ALIASES[preset]}"
        found.append(Caution(ExperimentalPresetWarning, message, None))
    if model.maturity == "model only":
        message = (
            f"instruction model {model.name!r} has maturity 'model only': it follows "
            f"{' and '.join(model.sources) or 'no source'}, and no recording confirms its bits"
        )
        found.append(Caution(ExperimentalPresetWarning, message, model))
    return tuple(found)


def maturity_of(model: InstructionModel) -> Maturity:
    """Return the best evidence behind a model: that of its row, "custom" if it is none."""
    return model.maturity if MODELS.get(model.name) == model else "custom"


def _named(name: str) -> InstructionModel:
    if not isinstance(name, str):
        raise TypeError(f"preset must be a name or an InstructionModel, got {type(name).__name__}")
    if name in REFUSED:
        raise KeyError(f"preset {name!r} is refused: {REFUSED[name]}")
    model = MODELS.get(ALIASES.get(name, name))
    if model is None:
        raise KeyError(f"no preset {name!r}; known: {', '.join(list_presets())}")
    return model


GPU_ARCHITECTURES: tuple[tuple[str, str], ...] = (
    (r"gh200|h\d00|h20|hopper", "hopper"),
    (r"gb[23]00|b[123]00", "sm_100"),
    (r"rtx50[5-9]|rtxpro|sm120", "sm_120"),
    (r"rtx40|rtx\d000ada|rtx1000|l40|l4$|l20|ada", "ada"),
    (r"rtx30|rtxa\d|a\d+0|a10g?$|a16|a2$|ampere", "ampere"),
    (r"rtx20|gtx16|quadrortx|t4$|turing", "turing"),
    (r"v100|titanv|volta", "volta"),
    (r"mi3\d\d", "cdna3"),
    (r"mi2\d\d", "cdna2"),
    (r"mi100", "cdna1"),
)
"""Pattern at the start of a GPU's name -> architecture; the first that fits wins. Names are taken
in lower case, letters and digits only, without the maker's and the series' names."""

_MAKERS = re.compile("nvidia|geforce|tesla|amd|instinct|[^a-z0-9]")


def architecture_of(gpu: str) -> str:
    """Return the architecture of a GPU by its name, such as "H100", "RTX 4060" or "A30".

    Raises:
        KeyError: no pattern of `GPU_ARCHITECTURES` fits.
    """
    plain = _MAKERS.sub("", gpu.lower())
    for pattern, architecture in GPU_ARCHITECTURES:
        if re.match(pattern, plain):
            return architecture
    raise KeyError(f"GPU {gpu!r} is of no architecture known here; see GPU_ARCHITECTURES")


def model_for(*, gpu: str, fmt: str, out: str, instruction: str = "mma.sync") -> InstructionModel:
    """Return the model of one instruction of a GPU.

    Args:
        gpu: the GPU's name, see `architecture_of`.
        fmt: short name of both operands' format.
        out: "fp32" or "fp16".
        instruction: "mma.sync", "wgmma", "tcgen05" or "mfma".

    Returns:
        the only row without block scales whose columns fit.

    Raises:
        KeyError: unknown GPU, or no row fits.
    """
    architecture = architecture_of(gpu)
    for model in MODELS.values():
        if (
            architecture in model.architectures
            and instruction == model.instruction
            and (fmt, fmt) in model.inputs
            and out == model.output
            and model.scale_format is None
        ):
            return model
    raise KeyError(
        f"no instruction model for {instruction} {fmt} -> {out} on {gpu} ({architecture}); "
        "see list_presets()"
    )

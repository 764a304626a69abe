"""InstructionModel: the arithmetic of one tensor-core multiply-add, as data.

A model names an algorithm kind and its parameters (rules N2..N13 of docs/explanation/numerics.md).
No code asks which GPU a model belongs to: a new platform is a new row in `models.py`, or an
object that the user makes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal, get_args

from mmaemu.formats import FORMATS

Accumulator = Literal["aligned", "late"]
Maturity = Literal["recorded", "probed", "stated", "model only", "custom"]
Rounding = Literal["toward zero", "nearest even"]
Overflow = Literal["wrap", "clamp"]
Output = Literal["fp32", "fp16", "fp64", "int32"]
Kind = Literal["aligned", "group sums", "exact sum", "fma", "product tree", "two-stage", "integer"]
"""aligned: rules N2..N8, N10. group sums: N11. fma, integer: N12. exact sum, product tree,
two-stage: N13."""

FP8_PAIRS: tuple[tuple[str, str], ...] = tuple(
    (a, b) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")
)
INTEGER_FORMATS = ("int8",)
OUTPUT_FRACTION_BITS: dict[str, int] = {"fp32": 23, "fp16": 10, "fp64": 52, "int32": 0}

# A sum of at most this many bits fits int64, and its conversion to float64, which finds its leading
# bit, is exact.
_SUM_BITS = 52
# Formats without special values and negative exponents: their products are integers of one unit.
_WHOLE_FORMATS = {
    fmt.name for fmt in FORMATS.values() if fmt.specials == "finite" and fmt.min_exponent >= 0
}
_IEEE_KINDS: tuple[Kind, ...] = ("exact sum", "fma", "product tree")
# Attribute -> the kinds whose algorithm looks at it.
_PARAMETERS: dict[str, tuple[Kind, ...]] = {
    "min_exponent": ("aligned", "group sums"),
    "accumulator": ("aligned",),
    "groups": ("aligned", "group sums", "two-stage"),
    "scale_format": ("aligned", "group sums"),
    "accumulator_window": ("two-stage",),
    "overflow": ("integer",),
}


@dataclass(frozen=True)
class InstructionModel:
    """One instruction's arithmetic. `mmaemu.Preset` is this class.

    Attributes:
        name: what `get_preset` calls it; any text for an own model.
        dot_length: products that one step consumes (L; with `groups`, of all groups together).
        fraction_bits: bits kept below the block exponent (F); 0 where nothing is aligned.
        result_fraction_bits: fraction bits of a result (13 for the FP8 paths of Ada and Hopper).
        min_exponent: the block exponent never goes below it (Emin); None = no floor.
        accumulator: "aligned" = c is one more term of the sum; "late" = c is added to the
            converted sum with one rounding of its own.
        promotion_interval: products per chain in slow accumulation; None = not known.
        maturity: best evidence behind the row; "custom" for an own model.
        scope: what the evidence covers, in words.
        sources: where the row comes from.
        inputs: the pairs (format of a, format of b) it takes.
        output: format of c and of the result.
        kind: the algorithm.
        rounding: how the sum becomes a result.
        operand_format: format that the operands are converted to first, None = stay as they are.
        groups: residues of k (modulo the number of residues) that form one partial sum each; () =
            one sum over the whole step.
        scale_format: format of the block scales, None = the model takes none.
        scale_block: consecutive k that share a scale; 0 = no scales.
        accumulator_window: c counts as zero if its exponent lies further than this below the common
            one; None = c always counts.
        overflow: what an int32 result does beyond its range.
        architectures: the architectures the row describes, for `model_for`.
        instruction: the instruction family, for `model_for`.

    Raises:
        TypeError: an attribute is of a wrong type (a bool is no int).
        ValueError: an attribute is out of its range, or two do not fit together.
    """

    name: str
    dot_length: int
    fraction_bits: int
    result_fraction_bits: int
    min_exponent: int | None = None
    accumulator: Accumulator = "aligned"
    promotion_interval: int | None = None
    maturity: Maturity = "custom"
    scope: str = ""
    sources: tuple[str, ...] = ()
    inputs: tuple[tuple[str, str], ...] = FP8_PAIRS
    output: Output = "fp32"
    kind: Kind = "aligned"
    rounding: Rounding = "toward zero"
    operand_format: str | None = None
    groups: tuple[tuple[int, ...], ...] = ()
    scale_format: str | None = None
    scale_block: int = 0
    accumulator_window: int | None = None
    overflow: Overflow = "wrap"
    architectures: tuple[str, ...] = ()
    instruction: str = ""

    def __post_init__(self) -> None:
        for check in _CHECKS:
            check(self)

    @property
    def nfma(self) -> int:
        """Published name of `dot_length`."""
        return self.dot_length

    @property
    def frac(self) -> int:
        """Published name of `fraction_bits`."""
        return self.fraction_bits

    @property
    def frac_out(self) -> int:
        """Published name of `result_fraction_bits`."""
        return self.result_fraction_bits

    @property
    def min_exp(self) -> int | None:
        """Published name of `min_exponent`."""
        return self.min_exponent

    @property
    def late_c(self) -> bool:
        """Published name of: the accumulator is added late."""
        return self.accumulator == "late"

    @property
    def slow_chunk(self) -> int | None:
        """Published name of `promotion_interval`."""
        return self.promotion_interval


def _require_int(model: InstructionModel, attribute: str, low: int, high: int) -> None:
    value = getattr(model, attribute)
    if type(value) is not int:
        raise TypeError(
            f"InstructionModel.{attribute} must be an int, got {value!r} ({type(value).__name__})"
        )
    if not low <= value <= high:
        raise ValueError(f"InstructionModel.{attribute} must lie in {low}..{high}, got {value}")


def _check_name(model: InstructionModel) -> None:
    if not isinstance(model.name, str):
        raise TypeError(f"InstructionModel.name must be a str, got {model.name!r}")
    if not model.name:
        raise ValueError("InstructionModel.name must not be empty; it appears in every message")


def _check_integers(model: InstructionModel) -> None:
    _require_int(model, "dot_length", 1, 4096)
    _require_int(model, "fraction_bits", 0, 40)
    _require_int(model, "scale_block", 0, 4096)
    if model.min_exponent is not None:
        _require_int(model, "min_exponent", -4096, 4096)
    if model.promotion_interval is not None:
        _require_int(model, "promotion_interval", 1, 1 << 31)
    if model.accumulator_window is not None:
        _require_int(model, "accumulator_window", 0, 4096)


def _check_choices(model: InstructionModel) -> None:
    choices = {
        "accumulator": get_args(Accumulator),
        "maturity": get_args(Maturity),
        "output": get_args(Output),
        "kind": get_args(Kind),
        "rounding": get_args(Rounding),
        "overflow": get_args(Overflow),
        "operand_format": (None, *FORMATS),
        "scale_format": (None, "ue8m0", "ue4m3"),
    }
    for attribute, allowed in choices.items():
        value = getattr(model, attribute)
        if value not in allowed:
            raise ValueError(
                f"InstructionModel.{attribute} must be one of "
                f"{', '.join(map(repr, allowed))}; got {value!r}"
            )


def _check_result(model: InstructionModel) -> None:
    _require_int(model, "result_fraction_bits", 0, OUTPUT_FRACTION_BITS[model.output])


def _check_inputs(model: InstructionModel) -> None:
    known = (*INTEGER_FORMATS, *FORMATS)
    pairs = model.inputs
    if not isinstance(pairs, tuple) or not pairs:
        raise TypeError(f"InstructionModel.inputs must be a tuple of format pairs, got {pairs!r}")
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != len(("a", "b")):
            raise TypeError(
                f"InstructionModel.inputs holds pairs like {FP8_PAIRS[0]}, got {pair!r}"
            )
        for fmt in pair:
            if fmt not in known:
                raise ValueError(
                    f"InstructionModel.inputs: {fmt!r} is no format; known: {', '.join(known)}"
                )


def _check_sum_fits(model: InstructionModel) -> None:
    if model.kind not in {"aligned", "group sums"}:
        return
    # Significands of products and of scale products lie below 4. A group sum has the exponent 0.
    largest = 4.0
    if model.kind == "group sums":
        largest = max(FORMATS[a].max_finite * FORMATS[b].max_finite for a, b in model.inputs)
    if model.scale_format is not None:
        largest *= 4
    term_bits = math.ceil(math.log2(largest)) + 1
    bits = model.dot_length.bit_length() + model.fraction_bits + term_bits
    if bits > _SUM_BITS:
        raise ValueError(
            f"a sum of {model.dot_length} products on {model.fraction_bits} fraction bits needs "
            f"{bits} bits, more than the {_SUM_BITS} that are exact here; lower one of the two"
        )


def _check_groups(model: InstructionModel) -> None:
    residues = sorted(residue for group in model.groups for residue in group)
    if residues != list(range(len(residues))):
        raise ValueError(
            f"InstructionModel.groups must hold every residue 0..n-1 once, got {model.groups!r}"
        )
    if len(set(map(len, model.groups))) > 1:
        raise ValueError(f"InstructionModel.groups must be of equal size, got {model.groups!r}")
    if residues and model.dot_length % len(residues):
        raise ValueError(
            f"dot_length {model.dot_length} must be a multiple of the {len(residues)} residues "
            "in groups"
        )


def _check_formats_of_kind(model: InstructionModel) -> None:
    names = [fmt for pair in model.inputs for fmt in pair]
    integers = [name in INTEGER_FORMATS for name in names]
    if {model.kind == "integer", model.output == "int32", *integers} == {True, False}:
        raise ValueError(
            "kind 'integer', output 'int32' and integer inputs go together; got kind "
            f"{model.kind!r}, output {model.output!r}, inputs {model.inputs!r}"
        )
    if model.kind != "fma" and "fp64" in (model.output, *names):
        raise ValueError(f"fp64 goes with kind 'fma' only, got kind {model.kind!r}")
    if model.kind == "group sums" and not set(names) <= _WHOLE_FORMATS:
        raise ValueError(f"kind 'group sums' takes e2m1 and e2m3 only, got inputs {model.inputs!r}")


def _check_length_of_kind(model: InstructionModel) -> None:
    if model.kind == "fma" and model.dot_length != 1:
        raise ValueError(f"kind 'fma' takes dot_length 1, got {model.dot_length}")
    if model.kind == "product tree" and model.dot_length & (model.dot_length - 1):
        raise ValueError(
            f"kind 'product tree' takes a power of two as dot_length, got {model.dot_length}"
        )


def _check_parameters_of_kind(model: InstructionModel) -> None:
    """Refuse parameters that the algorithm would not look at."""
    defaults = {field.name: field.default for field in fields(InstructionModel)}
    for attribute, kinds in _PARAMETERS.items():
        value = getattr(model, attribute)
        if value != defaults[attribute] and model.kind not in kinds:
            raise ValueError(
                f"InstructionModel.{attribute} = {value!r} means nothing to kind {model.kind!r}; "
                f"it belongs to {', '.join(map(repr, kinds))}"
            )
    full = OUTPUT_FRACTION_BITS[model.output]
    if model.kind in _IEEE_KINDS and (model.rounding, model.result_fraction_bits) != (
        "nearest even",
        full,
    ):
        raise ValueError(
            f"kind {model.kind!r} rounds to nearest even with all {full} fraction bits, got "
            f"{model.rounding!r} and {model.result_fraction_bits}"
        )


def _check_scales(model: InstructionModel) -> None:
    if (model.scale_format is None) != (model.scale_block == 0):
        raise ValueError(
            "scale_format and scale_block go together: both given, or None and 0; got "
            f"{model.scale_format!r} and {model.scale_block}"
        )
    if model.scale_block and model.dot_length % model.scale_block:
        raise ValueError(
            f"dot_length {model.dot_length} must be a multiple of scale_block {model.scale_block}"
        )


_CHECKS = (
    _check_name,
    _check_integers,
    _check_choices,
    _check_result,
    _check_inputs,
    _check_formats_of_kind,
    _check_length_of_kind,
    _check_parameters_of_kind,
    _check_sum_fits,
    _check_groups,
    _check_scales,
)

"""`mmaemu models`: the instruction models, their parameters and their evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mmaemu.cli import output
from mmaemu.cli.command import Argument, Command, Example, Report, UsageError

if TYPE_CHECKING:
    from mmaemu.instruction.model import InstructionModel


@dataclass(frozen=True)
class Model:
    """One instruction model; sizes are numbers of products or of bits."""

    name: str
    inputs: list[list[str]]
    output: str
    dot_length: int
    fraction_bits: int | None
    result_fraction_bits: int | None
    min_exponent: int | None
    accumulator: str
    maturity: str
    scope: str
    sources: list[str]


@dataclass(frozen=True)
class ModelsReport(Report):
    """The instruction models, in the order of their table.

    Attributes:
        models: all of them, or the one asked for.
        detailed: show every field.
    """

    schema: ClassVar[str] = "mmaemu-models/1"

    models: list[Model]
    detailed: bool

    def render(self) -> str:
        """Return a table, or every field of the model asked for."""
        if self.detailed:
            return "\n\n".join(f"{model.name}\n{_details(model)}" for model in self.models)
        rows = [
            (
                model.name,
                _inputs(model),
                model.output,
                str(model.dot_length),
                "-" if model.fraction_bits is None else str(model.fraction_bits),
                model.maturity,
            )
            for model in self.models
        ]
        header = ("model", "inputs", "output", "products", "bits", "maturity")
        return (
            output.table(header, rows, right=(3, 4))
            + "\n\nproducts: added in one step. bits: fraction bits kept of each product."
            + "\nEvery field of one model: mmaemu models NAME"
        )


def _inputs(model: Model) -> str:
    names = dict.fromkeys(name for pair in model.inputs for name in pair)
    return " ".join(names)


def _details(model: Model) -> str:
    def shown(value: object) -> str:
        return "none" if value is None else str(value)

    return output.fields(
        [
            ("maturity", model.maturity),
            ("scope", model.scope),
            ("inputs", ", ".join(" x ".join(pair) for pair in model.inputs)),
            ("output", model.output),
            ("dot_length", f"{model.dot_length} products in one step"),
            ("fraction_bits", f"{shown(model.fraction_bits)} (kept of each product)"),
            ("result_fraction_bits", f"{shown(model.result_fraction_bits)} (kept of the sum)"),
            ("min_exponent", f"{shown(model.min_exponent)} (floor of the common exponent)"),
            ("accumulator", model.accumulator),
            ("sources", "; ".join(model.sources)),
        ]
    )


def _model(model: InstructionModel) -> Model:
    return Model(
        name=model.name,
        inputs=[list(pair) for pair in model.inputs],
        output=model.output,
        dot_length=model.dot_length,
        fraction_bits=model.fraction_bits,
        result_fraction_bits=model.result_fraction_bits,
        min_exponent=model.min_exponent,
        accumulator=model.accumulator,
        maturity=model.maturity,
        scope=model.scope,
        sources=list(model.sources),
    )


def collect(name: str | None = None) -> ModelsReport:
    """Collect the instruction models.

    Args:
        name: one model or alias; None means all.

    Raises:
        UsageError: no model has this name.
    """
    from mmaemu.instruction.models import MODELS, get_preset

    if name is None:
        return ModelsReport([_model(model) for model in MODELS.values()], detailed=False)
    try:
        model = get_preset(name, warn=False)
    except KeyError as error:
        raise UsageError(str(error.args[0])) from error
    return ModelsReport([_model(model)], detailed=True)


COMMAND = Command(
    name="models",
    summary="list the instruction models and how well each is established",
    description=(
        "Lists the instruction models: the arithmetic of one tensor-core multiply-add of each "
        "architecture and format, with its maturity: recorded (hardware outputs replay bit for "
        "bit), probed, stated (published statement), model only."
    ),
    arguments=(Argument(("name",), "Show every field of this model.", {"nargs": "?"}),),
    examples=(
        Example("models", "all models in a table"),
        Example("models ada", "every field of the model that the RTX 4060 runs"),
    ),
    collect=lambda arguments: collect(arguments.name),
)

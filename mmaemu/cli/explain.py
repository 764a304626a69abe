"""`mmaemu explain`: what `mmaemu.scaled_mm` would do for a call, without operands."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from mmaemu.cli import output
from mmaemu.cli.command import (
    MAX_SIZE,
    Argument,
    Command,
    Example,
    Exit,
    Report,
    UsageError,
    check_ready,
    known_backend,
    size,
)
from mmaemu.errors import BackendUnavailableError
from mmaemu.gemm.splitk import SCHEMES

if TYPE_CHECKING:
    import torch

    from mmaemu.api import CallPlan
    from mmaemu.profiles.resolve import SplitDecision

Split = str | int | tuple[int, str]
"""A split-K choice as `mmaemu.explain` takes it."""

INPUTS: Final = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
OUTPUTS: Final = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", **INPUTS}
"""Short and torch names of the formats."""


@dataclass(frozen=True)
class Call:
    """The call that is explained; dtypes are torch's names, `out_dtype` None is left out."""

    M: int
    N: int
    K: int
    a: str
    b: str
    out_dtype: str | None
    use_fast_accum: bool
    rowwise: bool
    scale_a: str
    scale_b: str
    scale_result: str | None
    profile: str | None
    splitk: str
    backend: str


@dataclass(frozen=True)
class ExplainReport(Report):
    """What the call would do, or why it raises.

    Attributes:
        call: the arguments.
        valid: the call returns a result.
        error: class of the exception it raises, else None.
        message: its message, else "".
        profile, preset, preset_maturity, split, backend, fallbacks, warnings: as `CallPlan`.
    """

    schema: ClassVar[str] = "mmaemu-explain/1"

    call: Call
    valid: bool
    error: str | None
    message: str
    profile: str | None
    preset: str | None
    preset_maturity: str | None
    split: SplitDecision | None
    backend: str | None
    fallbacks: list[str]
    warnings: list[str]

    @property
    def exit_code(self) -> Exit:
        """1: the call raises. 3: it raises because the backend is not available here."""
        if self.error == BackendUnavailableError.__name__:
            return Exit.NOT_AVAILABLE
        return Exit.OK if self.valid else Exit.FAILED

    def render(self) -> str:
        """Return the plan as `name  value` lines."""
        call = self.call
        title = (
            f"scaled_mm  M={call.M} N={call.N} K={call.K}  {call.a} x {call.b} -> "
            f"{call.out_dtype or 'the dtype of mat1'}  use_fast_accum={call.use_fast_accum}"
        )
        valid = "valid" if self.valid else f"raises {self.error}: {self.message}"
        return f"{title}\n" + output.fields(
            [
                ("call", valid),
                ("profile", self.profile or "none"),
                ("instruction model", f"{self.preset or 'none'} ({self.preset_maturity or '-'})"),
                ("split-K", _split(self.split)),
                ("backend", self.backend or "none"),
                ("fallbacks", ", ".join(self.fallbacks) or "none"),
                ("warnings", "; ".join(self.warnings) or "none"),
            ]
        )


def _split(split: SplitDecision | None) -> str:
    if split is None:
        return "not decided"
    verified = "replayed on hardware" if split.verified else "never replayed on hardware"
    how = "unsplit" if split.S == 1 else f"{split.S} slices, {split.scheme}"
    note = f"; {split.note}" if split.note else ""
    return f"{how} (from {split.source}, {verified}{note})"


def splitk(text: str) -> Split:
    """Parse a split-K choice: `auto`, `1` or `S,scheme`.

    Raises:
        argparse.ArgumentTypeError: anything else.
    """
    if text == "auto":
        return text
    if text == "1":
        return 1
    match = re.fullmatch(r"([0-9]{1,9}),([a-z]+)", text)
    schemes = [scheme for scheme in SCHEMES if scheme != "none"]
    if match is None or match[2] not in schemes or int(match[1]) < 2:  # noqa: PLR2004 - slices
        raise argparse.ArgumentTypeError(
            f"expected auto, 1, or S,SCHEME with S >= 2 and SCHEME one of {', '.join(schemes)} "
            f"(for example 4,contiguous); got {text!r}"
        )
    return int(match[1]), match[2]


def scale(text: str) -> str:
    """Check that a scale is a number, and return it as typed.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}") from None
    return text


def _check_sizes(call: Call) -> None:
    """Check that every matrix, an output of up to 4 bytes per element included, can be indexed."""
    sizes = {"M": call.M, "N": call.N, "K": call.K}
    for rows, columns, width in (("M", "K", 1), ("N", "K", 1), ("M", "N", 4)):
        # torch computes with the other size where one is zero.
        if max(sizes[rows], 1) * max(sizes[columns], 1) * width > MAX_SIZE:
            raise UsageError(
                f"{rows} x {columns} = {sizes[rows]} x {sizes[columns]} is a matrix of more than "
                f"{MAX_SIZE} bytes, the most that can be indexed; expected smaller sizes"
            )


def _operands(call: Call) -> dict[str, Any]:
    """Return the tensors of the call on torch's meta device, which has shapes but no memory."""
    import torch

    def empty(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")

    single: tuple[int, ...] = ()
    return {
        "input": empty((call.M, call.K), call.a),
        "mat2": empty((call.N, call.K), call.b).t(),
        "scale_a": empty((call.M, 1) if call.rowwise else single, "float32"),
        "scale_b": empty((1, call.N) if call.rowwise else single, "float32"),
        "scale_result": None if call.scale_result is None else empty(single, "float32"),
        "out_dtype": None if call.out_dtype is None else getattr(torch, call.out_dtype),
    }


def _report(call: Call, plan: CallPlan) -> ExplainReport:
    error, message = (None, "") if isinstance(plan.validation, str) else plan.validation
    return ExplainReport(
        call=call,
        valid=error is None,
        error=error,
        message=message,
        profile=plan.profile,
        preset=plan.preset,
        preset_maturity=plan.preset_maturity,
        split=plan.split,
        backend=plan.backend,
        fallbacks=[str(each) for each in plan.fallbacks],
        warnings=[str(each) for each in plan.warnings],
    )


def collect(call: Call, split: Split) -> ExplainReport:
    """Explain one call in time and memory that do not depend on M, N and K.

    Raises:
        NotAvailableError: torch cannot be imported.
        UsageError: the profile or the backend does not exist, or a matrix is too large.
    """
    check_ready("explain")
    known_backend(call.backend)
    _check_sizes(call)
    from mmaemu.api import explain

    operands = _operands(call)
    try:
        plan = explain(
            **operands,
            use_fast_accum=call.use_fast_accum,
            profile=call.profile,
            splitk=split,
            backend=call.backend,
        )
    except (KeyError, ValueError, TypeError) as error:
        raise UsageError(str(error.args[0]) if error.args else repr(error)) from error
    return _report(call, plan)


def _collect(arguments: argparse.Namespace) -> ExplainReport:
    split: Split = arguments.splitk
    out: str | None = arguments.out
    call = Call(
        M=arguments.M,
        N=arguments.N,
        K=arguments.K,
        a=INPUTS[arguments.a],
        b=INPUTS[arguments.b],
        out_dtype=None if out is None else OUTPUTS.get(out, out),
        use_fast_accum=arguments.fast,
        rowwise=arguments.rowwise,
        scale_a=arguments.scale_a,
        scale_b=arguments.scale_b,
        scale_result=arguments.scale_result,
        profile=arguments.profile,
        splitk=",".join(map(str, split)) if isinstance(split, tuple) else str(split),
        backend=arguments.backend,
    )
    return collect(call, split)


def _size(name: str) -> Argument:
    meaning = {"M": "rows of mat1", "N": "columns of mat2", "K": "the length of the dot products"}
    return Argument((name,), f"{meaning[name].capitalize()}.", {"type": size})


COMMAND = Command(
    name="explain",
    summary="show what scaled_mm would do for a call, without computing it",
    description=(
        "Shows what mmaemu.scaled_mm would do for an M x N x K call: whether the reference accepts "
        "it, the profile, the instruction model and its maturity, the split-K decision with its "
        "source, and the backend. No operand is allocated, whatever the sizes. "
        "Exit code 1: the call would raise. Exit code 3: it would, since the backend is not "
        "available here."
    ),
    arguments=(
        _size("M"),
        _size("N"),
        _size("K"),
        Argument(("--a",), "Format of mat1.", {"choices": tuple(INPUTS), "default": "e4m3"}),
        Argument(("--b",), "Format of mat2.", {"choices": tuple(INPUTS), "default": "e4m3"}),
        Argument(
            ("--out",),
            "Output dtype; without it the argument is left out, which means mat1's dtype.",
            {"choices": tuple(dict.fromkeys([*OUTPUTS, "float32", "bfloat16", "float16"]))},
        ),
        Argument(("--fast",), "use_fast_accum=True.", {"action": "store_true"}),
        Argument(("--rowwise",), "Row-wise scales instead of one each.", {"action": "store_true"}),
        Argument(
            ("--scale-a",),
            "Scale of mat1; a value changes the result, never the plan.",
            {"type": scale, "default": "1", "metavar": "X"},
        ),
        Argument(("--scale-b",), "Scale of mat2.", {"type": scale, "default": "1", "metavar": "X"}),
        Argument(
            ("--scale-result",),
            "Scale of an FP8 output; without it the argument is left out.",
            {"type": scale, "metavar": "X"},
        ),
        Argument(("--profile",), "Profile (default: MMAEMU_PROFILE, else hopper)."),
        Argument(
            ("--splitk",),
            "auto, 1, or S,serial / S,pairwise (RTX 4060) / S,contiguous (H100).",
            {"type": splitk, "default": "auto", "metavar": "SPLIT"},
        ),
        Argument(
            ("--backend",),
            "auto, reference, cpu, cpu:ISA, cuda or cuda:MODULE.",
            {"default": "auto"},
        ),
    ),
    examples=(
        Example("explain 2048 2048 4096 --out bf16 --fast", "a call on the default profile"),
        Example("explain 64 5760 1920 --profile ada", "the same on the RTX 4060"),
        Example("explain 64 128 256 --splitk 1", "a shape without recorded split, taken unsplit"),
        Example("explain 65537 65536 65536 --out bf16", "a huge call: takes no memory"),
    ),
    collect=_collect,
)

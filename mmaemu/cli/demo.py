"""`mmaemu demo`: one real GEMM as an H100 and as an RTX 4060 compute it, and proof by replay."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from mmaemu._version import __version__
from mmaemu.cli import output
from mmaemu.cli.command import (
    Argument,
    Command,
    Example,
    Exit,
    NotAvailableError,
    Report,
    UsageError,
    check_ready,
    known_backend,
)
from mmaemu.errors import DataIntegrityError

if TYPE_CHECKING:
    import argparse

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from mmaemu.cli.demo_picture import Scene
    from mmaemu.recordings import Bits, GemmRecord, Record

    Values = NDArray[np.float64]

PICTURE: Final = "mmaemu-demo.png"
RECORDED_CALL: Final = "evo2.evo2_1b_w2k/call00"
SOURCE: Final = (
    "one projection of Evo 2 (1B): activations of 32 tokens x 128 rows of the weights, "
    "recorded on an RTX 4060"
)
PLATFORMS: Final = {"H100": "hopper", "RTX 4060": "ada"}
"""Name in the report -> profile."""
FP32, EXACT = "IEEE fp32", "exact"


@dataclass(frozen=True)
class Operands:
    """The operands: a [M, K] and b [N, K], and how the recorded call ran."""

    source: str
    recording: str
    M: int
    N: int
    K: int
    format_a: str
    format_b: str
    use_fast_accum: bool
    splitk: int


@dataclass(frozen=True)
class Emulated:
    """One emulated platform."""

    name: str
    profile: str
    gpu: str
    model: str
    maturity: str


@dataclass(frozen=True)
class Difference:
    """How two ways to compute the same outputs differ.

    Attributes:
        of, to: names of the two.
        outputs: how many outputs each has.
        fp32: how many fp32 outputs have different bits.
        bf16: how many bf16 outputs (after the recorded scales) have different bits.
        median: median size of the fp32 difference relative to the exact output.
        largest: the largest of these.
        bias: mean of the signed fp32 difference relative to the mean size of the outputs.
    """

    of: str
    to: str
    outputs: int
    fp32: int
    bf16: int
    median: float
    largest: float
    bias: float


@dataclass(frozen=True)
class Replay:
    """Recorded hardware outputs, computed again.

    Attributes:
        recordings: which ones.
        platform: where they were recorded.
        rows: number of recorded calls and instruction chains.
        outputs: number of recorded values.
        bits: number of recorded bits.
        equal_bits: how many of them are equal; an output that differs in one bit counts for none.
        failed: the rows with a difference, and the first difference of each.
    """

    recordings: str
    platform: str
    rows: int
    outputs: int
    bits: int
    equal_bits: int
    failed: list[str]


@dataclass(frozen=True)
class DemoReport(Report):
    """What the demo shows.

    Attributes:
        operands: the operands.
        platforms: what is emulated.
        differences: between the platforms, IEEE fp32 and exact arithmetic.
        replays: of recorded hardware outputs.
        picture: path of the written picture, else None.
        picture_note: why no picture was written, else "".
        seconds: duration.
    """

    schema: ClassVar[str] = "mmaemu-demo/1"

    operands: Operands
    platforms: list[Emulated]
    differences: list[Difference]
    replays: list[Replay]
    picture: str | None
    picture_note: str
    seconds: float

    @property
    def exit_code(self) -> Exit:
        """Exit 1 unless every recorded row is equal and at least one bit was compared."""
        compared = any(replay.bits for replay in self.replays)
        failed = any(replay.failed or replay.equal_bits < replay.bits for replay in self.replays)
        return Exit.OK if compared and not failed else Exit.FAILED

    def render(self) -> str:
        """Return the report as text."""
        parts = [
            f"mmaemu {__version__} demo: one FP8 GEMM on two GPUs",
            _render_operands(self.operands, self.platforms),
            _render_differences(self.differences),
            _render_replays(self.replays),
            f"Picture: {self.picture or 'not written: ' + self.picture_note}",
            self._verdict(),
        ]
        return "\n\n".join(parts)

    def _verdict(self) -> str:
        bits = sum(replay.bits for replay in self.replays)
        equal = sum(replay.equal_bits for replay in self.replays)
        if self.exit_code is Exit.OK:
            return f"All {bits:,} recorded bits are equal ({self.seconds:.1f} s)."
        failed = [name for replay in self.replays for name in replay.failed]
        return "\n".join(
            [f"FAILED: {bits - equal:,} of {bits:,} recorded bits differ, in:"]
            + [f"  {name}" for name in failed]
        )


def _render_operands(operands: Operands, platforms: list[Emulated]) -> str:
    how = "fast" if operands.use_fast_accum else "slow"
    pairs = [
        ("operands", operands.source),
        (
            "GEMM",
            f"{operands.M} x {operands.N} outputs, K = {operands.K}, {operands.format_a} x "
            f"{operands.format_b}, {how} accumulation, splitk={operands.splitk}",
        ),
    ]
    pairs += [
        (each.name, f"profile {each.profile}, instruction model {each.model} ({each.maturity})")
        for each in platforms
    ]
    return output.fields(pairs)


def _render_differences(differences: list[Difference]) -> str:
    rows = [
        (
            f"{each.of} / {each.to}",
            f"{each.fp32:,}",
            f"{each.bf16:,}",
            f"{each.median:.1e}",
            f"{each.largest:.1e}",
            f"{each.bias:+.1e}",
        )
        for each in differences
    ]
    header = ("outputs that differ", "fp32", "bf16", "median", "largest", "bias")
    return (
        output.table(header, rows, right=(1, 2, 3, 4, 5))
        + f"\n\nof {differences[0].outputs:,} outputs; bf16 with the recorded scales. median and "
        "largest: size of the\nfp32 difference / exact output. bias: mean difference / mean size."
    )


def _render_replays(replays: list[Replay]) -> str:
    rows = [
        (
            each.recordings,
            each.platform,
            f"{each.rows:,}",
            f"{each.outputs:,}",
            f"{each.bits:,}",
            f"{each.equal_bits:,}",
        )
        for each in replays
    ]
    header = ("recorded on hardware", "GPU", "rows", "outputs", "bits", "equal bits")
    return output.table(header, rows, right=(2, 3, 4, 5))


@dataclass(frozen=True, eq=False)
class _RecordedCall:
    """The demo's GEMM: operand codes a [M, K] and b [N, K], its fp32 row and its bf16 row."""

    a: Bits
    b: Bits
    unscaled: GemmRecord
    scaled: GemmRecord


def _recorded_call(records: list[Record]) -> _RecordedCall:
    from mmaemu.recordings import GemmRecord

    rows = {
        record.out_dtype: record
        for record in records
        if isinstance(record, GemmRecord)
        and record.id.startswith(f"{RECORDED_CALL}/")
        and record.op == "scaled_mm"
    }
    unscaled, scaled = rows.get("float32"), rows.get("bfloat16")
    if unscaled is None or scaled is None or unscaled.a is None or unscaled.b is None:
        raise DataIntegrityError(
            f"the shipped recordings lack the fp32 or the bf16 row of {RECORDED_CALL}; "
            "install the package again"
        )
    return _RecordedCall(unscaled.a, unscaled.b, unscaled, scaled)


def _codes_tensor(codes: Bits, format_name: str) -> torch.Tensor:
    import torch

    from mmaemu.formats import FORMATS

    dtype = getattr(torch, str(FORMATS[format_name].torch_name))
    return torch.tensor(codes, dtype=torch.uint8, device="cpu").view(dtype)


def _sequential_fp32(a: Values, b: Values) -> Values:
    """Sum a [M, K] times b [N, K] in order of K, every addition rounded to fp32.

    A product of two FP8 values has at most 8 significant bits, so it is exact.
    """
    import numpy as np

    left, right = a.astype(np.float32), b.astype(np.float32)
    total = np.zeros((a.shape[0], b.shape[0]), np.float32)
    for k in range(a.shape[1]):
        total += left[:, k, None] * right[None, :, k]
    return total.astype(np.float64)


def _outputs(
    call: _RecordedCall, backend: str, advance: Callable[[str], None]
) -> dict[str, Values]:
    """Return the outputs [M, N] of every way to compute the recorded GEMM, without scales.

    All but the exact ones are fp32 values; float64 holds each of them and the exact sums.
    """
    import numpy as np

    from mmaemu.api import accumulate
    from mmaemu.formats import FORMATS

    format_a, format_b = call.unscaled.format_a, call.unscaled.format_b
    outputs: dict[str, Values] = {}
    for name, profile in PLATFORMS.items():
        advance(name)
        result = accumulate(
            _codes_tensor(call.a, format_a),
            _codes_tensor(call.b, format_b),
            use_fast_accum=call.unscaled.use_fast_accum,
            profile=profile,
            splitk=1,
            backend=backend,
        )
        outputs[name] = result.numpy().astype(np.float64)
    advance(FP32)
    a, b = FORMATS[format_a].decode(call.a), FORMATS[format_b].decode(call.b)
    outputs[FP32] = _sequential_fp32(a, b)
    # Products of E4M3 values are multiples of 2^-18 below 2^18, so that a sum of 2^16 of them has
    # at most 52 bits: float64 adds them without rounding, in any order.
    outputs[EXACT] = a @ b.T
    return outputs


def _bits(values: Values, scaled: GemmRecord) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the bits of the fp32 outputs, and of the bf16 outputs with the recorded scales."""
    import numpy as np
    import torch

    from mmaemu.model import epilogue
    from mmaemu.testing import bits

    def scale(pattern: int) -> torch.Tensor:
        return torch.from_numpy(np.array(pattern, np.uint32).view(np.float32))

    fp32 = torch.from_numpy(values.astype(np.float32))
    bf16 = epilogue.apply(
        fp32, scale(scaled.scale_a_bits), scale(scaled.scale_b_bits), out_dtype=torch.bfloat16
    )
    return bits(fp32).numpy(), bits(bf16).numpy()


def four_digits(value: float) -> float:
    """Round to four significant digits: beyond, the order in which numpy adds may show."""
    return float(f"{value:.3e}")


def _difference(of: str, to: str, outputs: dict[str, Values], scaled: GemmRecord) -> Difference:
    import numpy as np

    first, second, exact = outputs[of], outputs[to], outputs[EXACT]
    signed = first - second
    relative = np.abs(signed) / np.where(exact == 0, 1.0, np.abs(exact))
    fp32, bf16 = (
        int(np.count_nonzero(x != y))
        for x, y in zip(_bits(first, scaled), _bits(second, scaled), strict=True)
    )
    return Difference(
        of=of,
        to=to,
        outputs=first.size,
        fp32=fp32,
        bf16=bf16,
        median=four_digits(np.median(relative)),
        largest=four_digits(relative.max()),
        bias=four_digits(signed.mean() / np.abs(exact).mean()),
    )


def _recorded_bits(record: Record) -> int:
    """Number of bits of a recorded value; 0 where an error was recorded."""
    from mmaemu.recordings import MmaRecord

    recorded = record.d if isinstance(record, MmaRecord) else record.out
    return 0 if recorded is None else 8 * recorded.dtype.itemsize


def _replay(name: str, platform: str, rows: list[Record], backend: str) -> Replay:
    from mmaemu.replay import replay

    results = [(_recorded_bits(row), replay(row, backend=backend)) for row in rows]
    return Replay(
        recordings=name,
        platform=platform,
        rows=len(rows),
        outputs=sum(result.values for _, result in results),
        bits=sum(width * result.values for width, result in results),
        equal_bits=sum(width * (result.values - result.differing) for width, result in results),
        failed=[f"{result.id}: {result.detail}" for _, result in results if not result.equal],
    )


def _replays(records: list[Record], backend: str, advance: Callable[[str], None]) -> list[Replay]:
    """Compute every shipped record again, the demo's own call apart from the others."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        own = record.id.startswith(f"{RECORDED_CALL}/")
        name = "this GEMM" if own else "further recordings"
        groups.setdefault((name, record.platform), []).append(record)
    replays = []
    for (name, platform), rows in sorted(groups.items(), reverse=True):
        advance(name)
        replays.append(_replay(name, platform, rows, backend))
    return replays


def _operands(call: _RecordedCall) -> Operands:
    row = call.unscaled
    return Operands(
        source=SOURCE,
        recording=RECORDED_CALL,
        M=call.a.shape[0],
        N=call.b.shape[0],
        K=call.a.shape[1],
        format_a=row.format_a,
        format_b=row.format_b,
        use_fast_accum=row.use_fast_accum,
        splitk=row.split[0],
    )


def _platforms() -> list[Emulated]:
    from mmaemu.instruction.models import get_preset
    from mmaemu.profiles.profile import get_profile

    platforms = []
    for name, profile_name in PLATFORMS.items():
        profile = get_profile(profile_name)
        model = get_preset(profile.preset, warn=False)
        gpu = profile.gpu_name or name
        platforms.append(Emulated(name, profile.name, gpu, model.name, model.maturity))
    return platforms


def _draw(path: Path | None, scene: Scene, *, required: bool) -> tuple[str | None, str]:
    """Write the picture.

    Returns:
        Its path and "", or None and why there is none.

    Raises:
        NotAvailableError: the picture is required and matplotlib is missing.
        UsageError: the file cannot be written.
    """
    from mmaemu.cli.demo_picture import draw

    if path is None:
        return None, "--no-picture"
    try:
        data = draw(scene)
    except NotAvailableError as error:
        if required:
            raise
        return None, str(error)
    try:
        path.write_bytes(data)
    except OSError as error:
        raise UsageError(
            f"the picture cannot be written: {error}; choose another --output"
        ) from error
    return str(path), ""


def _scene(
    outputs: dict[str, Values],
    differences: list[Difference],
    replays: list[Replay],
    length: int,
) -> Scene:
    from mmaemu.cli.demo_picture import Scene

    first, second = PLATFORMS
    bits = sum(replay.bits for replay in replays)
    equal = sum(replay.equal_bits for replay in replays)
    rows, columns = outputs[EXACT].shape
    return Scene(
        exact=outputs[EXACT],
        first=outputs[first],
        second=outputs[second],
        fp32=outputs[FP32],
        names=(first, second),
        differing=[
            (
                f"{each.of} / {each.to}",
                100 * each.fp32 / each.outputs,
                100 * each.bf16 / each.outputs,
            )
            for each in differences
        ],
        title=f"One FP8 GEMM of Evo 2 on two GPUs: {rows * columns:,} outputs",
        footer=(
            f"E4M3 operands, dot products of length {length:,}, fast accumulation. "
            f"RTX 4060 recordings replayed: {equal:,} of {bits:,} bits equal."
        ),
    )


def collect(
    picture: Path | None, *, picture_required: bool = False, backend: str = "auto"
) -> DemoReport:
    """Run the demo.

    Args:
        picture: where to write the picture; None writes none.
        picture_required: fail if it cannot be drawn, instead of saying so in the report.
        backend: the backend that computes.

    Raises:
        NotAvailableError: torch is missing, or matplotlib although the picture is required.
        BackendUnavailableError: the backend cannot run here.
        DataIntegrityError: a shipped recording is damaged.
        UsageError: no such backend, or the picture cannot be written.
    """
    check_ready("demo")
    known_backend(backend)
    from mmaemu.recordings import load

    start = time.perf_counter()
    with output.progress("demo", 7) as advance:
        advance("recordings")
        records = load()
        call = _recorded_call(records)
        outputs = _outputs(call, backend, advance)
        pairs = [*combinations([*PLATFORMS, FP32, EXACT], 2)]
        differences = [_difference(of, to, outputs, call.scaled) for of, to in pairs]
        replays = _replays(records, backend, advance)
        advance("picture")
        scene = _scene(outputs, differences, replays, call.a.shape[1])
        path, note = _draw(picture, scene, required=picture_required)
    return DemoReport(
        operands=_operands(call),
        platforms=_platforms(),
        differences=differences,
        replays=replays,
        picture=path,
        picture_note=note,
        seconds=round(time.perf_counter() - start, 2),
    )


def _collect(arguments: argparse.Namespace) -> DemoReport:
    if arguments.no_picture:
        if arguments.output is not None:
            raise UsageError("--output and --no-picture exclude each other; drop one of them")
        return collect(None, backend=arguments.backend)
    picture = arguments.output or Path(PICTURE)
    return collect(
        picture, picture_required=arguments.output is not None, backend=arguments.backend
    )


COMMAND = Command(
    name="demo",
    summary="emulate a real GEMM on two GPUs, compare, and replay recorded GPU outputs",
    description=(
        "Computes one projection of the language model Evo 2 as an H100 and as an RTX 4060 do, "
        "counts the outputs that differ between the two, from IEEE fp32 and from exact arithmetic, "
        "replays GPU outputs that are shipped with the package, and draws a picture. "
        "Exit code 1: a recorded bit is not equal."
    ),
    arguments=(
        Argument(
            ("--output", "-o"),
            f"Where to write the picture (PNG; default {PICTURE}); needs the extra `demo`.",
            {"type": Path, "metavar": "PATH"},
        ),
        Argument(("--no-picture",), "Write no picture.", {"action": "store_true"}),
        Argument(("--backend",), "The backend that computes.", {"default": "auto"}),
    ),
    examples=(
        Example("demo", f"everything, and the picture {PICTURE}"),
        Example("demo --json --no-picture", "the numbers for a program"),
    ),
    collect=_collect,
)

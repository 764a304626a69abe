"""The self-test: every backend usable here against recordings, known answers and the readable step.

A gate is one kind of check of one backend. What is not available is reported as such and never
counts as passed. Verdicts are kept for the life of the process.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from mmaemu.api import scaled_mm
from mmaemu.backends.registry import backends_status, gate_verdicts, select
from mmaemu.errors import BackendUnavailableError
from mmaemu.formats import FORMATS
from mmaemu.gemm import epilogue, execute
from mmaemu.gemm.plan import GemmPlan
from mmaemu.gemm.request import AccumulateRequest
from mmaemu.gemm.splitk import UNSPLIT, SplitK
from mmaemu.instruction.chain import chain
from mmaemu.instruction.model import InstructionModel
from mmaemu.instruction.models import get_preset
from mmaemu.recordings import GemmRecord, MmaRecord, Record, load
from mmaemu.replay import replay
from mmaemu.testing import bits, operands

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mmaemu.backends.base import BackendStatus, GateVerdict

Codes = NDArray[np.uint8]
Advance = Callable[[str], None]

READABLE: Final = "model"
"""The readable step, which the other gates compare with, under this name among the backends."""
AVAILABILITY: Final = "availability"
"""Name of the one gate of a backend that is not available here."""


@dataclass(frozen=True, slots=True)
class GateResult:
    """The verdict of one gate on one backend.

    Attributes:
        name: the gate.
        passed: every compared output has the expected bits, and there was at least one.
        reason: what was compared, or why it failed.
        details: outputs compared, outputs that differ, cases that the backend refused, and the
            first difference.
        seconds: duration.
        cached: the verdict is from an earlier call in this process.
    """

    name: str
    passed: bool
    reason: str
    details: dict[str, Any]
    seconds: float
    cached: bool


@dataclass(slots=True)
class _Tally:
    """Counts comparisons."""

    outputs: int = 0
    differing: int = 0
    refused: int = 0
    first: str = ""
    refusals: set[str] = field(default_factory=set)

    def add(self, outputs: int, differing: int, where: str) -> None:
        self.outputs += outputs
        self.differing += differing
        if differing and not self.first:
            self.first = where

    def refuse(self, reason: str) -> None:
        self.refused += 1
        self.refusals.add(reason)

    def result(self, name: str, seconds: float) -> GateResult:
        if self.differing:
            reason = f"{self.differing} of {self.outputs} outputs differ; first: {self.first}"
        elif self.outputs:
            reason = f"{self.outputs} outputs equal"
        else:
            reason = f"nothing was compared: {'; '.join(sorted(self.refusals)) or 'no case'}"
        if self.refused and self.outputs:
            reason += f", {self.refused} cases refused"
        details = {
            "outputs": self.outputs,
            "differing": self.differing,
            "refused": self.refused,
            "first": self.first,
        }
        return GateResult(
            name, bool(self.outputs) and not self.differing, reason, details, seconds, cached=False
        )


# Known answers


@dataclass(frozen=True, slots=True)
class StepVector:
    """One instruction step whose result tells models apart.

    Attributes:
        models: names of the models that give `expected`.
        formats: format of both operands in each model.
        a, b: the values of the first products; the others are zero.
        c: the accumulator.
        expected: the result, exactly.
    """

    models: tuple[str, ...]
    formats: tuple[str, ...]
    a: tuple[float, ...]
    b: tuple[float, ...]
    c: float
    expected: float


@dataclass(frozen=True, slots=True)
class GemmVector:
    """A dot product from +0 whose result tells the FP8 models of cuBLAS apart from others.

    Attributes:
        name: what it shows.
        fmt: format of both operands.
        K: its length.
        products: (k, a, b) of the products that are not +0 times +0.
        fast, slow: the result with fast and with slow accumulation.
    """

    name: str
    fmt: str
    K: int
    products: tuple[tuple[int, float, float], ...]
    fast: float
    slow: float


_A, _B, _C = (-(2.0**13), -0.5, -0.25, -0.125), (2.0**10, 1.0, 1.0, 1.0), 2.0**23
_AMPERE = ("turing_fp16_fp32", "ampere_fp16_fp32", "ampere_bf16_fp32")
_HOPPER = (
    "hopper_fp16_fp32",
    "hopper_bf16_fp32",
    "blackwell_fp16_fp32",
    "blackwell_bf16_fp32",
    "sm_120_fp16_fp32",
    "sm_120_bf16_fp32",
)
_FP16_BF16 = ("fp16", "bf16")
_SMALL = 2.0**-14
_LATE = 2.0**-24

STEP_VECTORS: Final[tuple[StepVector, ...]] = (
    StepVector(("volta_fp16_fp32", "cdna2_fp16"), ("fp16",) * 2, _A, _B, _C, 0.0),
    StepVector(_AMPERE, ("fp16", *_FP16_BF16), _A, _B, _C, -0.5),
    StepVector(("ada", "hopper", "b200_mma_sync"), ("e5m2",) * 3, _A, _B, _C, 0.0),
    StepVector(_HOPPER, _FP16_BF16 * 3, _A, _B, _C, -0.75),
    StepVector(("tcgen05_f8f6f4_fp32", "sm_120_fp8_fp32"), ("e5m2",) * 2, _A, _B, _C, -0.75),
    StepVector(("cdna1_fp16", "cdna_fp32_fma"), ("fp16", "fp32"), _A, _B, _C, -0.875),
    StepVector(("cdna3_fp16",), ("fp16",), _A, _B, _C, -0.5),
    StepVector(("cdna3_fp8",), ("e5m2fnuz",), _A, _B, _C, -1.0),
    StepVector(("ada",), ("e5m2",), (_SMALL, _SMALL), (1.0, 1.0), 1.0, 1.0),
    StepVector(("ada",), ("e5m2",), (2 * _SMALL,) * 2, (1.0, 1.0), 1.0, 1 + 2.0**-12),
    # Products are not normalised: 1.5 * 1.5 = 2.25 has the exponent 0, 1 * 2.25 has 1.
    StepVector(
        ("volta_fp16_fp32",),
        ("fp16",),
        (1.5, 2.0**-12, 2.0**-12),
        (1.5, 2.0**-11, 2.0**-11),
        0.0,
        2.25 + 2.0**-22,
    ),
    StepVector(
        ("volta_fp16_fp32",),
        ("fp16",),
        (1.0, 2.0**-12, 2.0**-12),
        (2.25, 2.0**-11, 2.0**-11),
        0.0,
        2.25,
    ),
    # The floor of the common exponent cuts what lies far below the smallest normal number.
    StepVector(
        ("ampere_bf16_fp32",),
        ("bf16",),
        (2.0**-65, 2.0**-77),
        (2.0**-65, -(2.0**-77)),
        0.0,
        0x7FFFF * 2.0**-149,
    ),
    StepVector(
        ("hopper_bf16_fp32",),
        ("bf16",),
        (2.0**-67, 2.0**-80),
        (2.0**-67, -(2.0**-79)),
        0.0,
        0x8000 * 2.0**-149,
    ),
    StepVector(
        ("ampere_fp16_fp16",), ("fp16",), (2.0**-12, 2.0**-22), (2.0**-13, 2.0**-23), 0.0, 0.0
    ),
    # A zero product takes no part in the common exponent.
    StepVector(("ada",), ("e4m3",), (0.0,), (448.0,), 2.0**-139, 2.0**-139),
    StepVector(
        ("ampere_bf16_fp32", "hopper_bf16_fp32"),
        ("bf16",) * 2,
        (0.0,),
        (2.0**127,),
        (1 + 2.0**-23) * 2.0**-10,
        (1 + 2.0**-23) * 2.0**-10,
    ),
    # Emulated mma.sync adds k mod 4 in {0, 1} first.
    *(
        StepVector(
            ("b200_mma_sync",),
            ("e5m2",),
            tuple(1.0 if k == 0 else 2.0**-12 if k in {1, j} else 0.0 for k in range(32)),
            tuple(1.0 if k == 0 else 2.0**-12 if k in {1, j} else 0.0 for k in range(32)),
            0.0,
            1 + 2.0**-23 if j % 4 < 2 else 1.0,  # noqa: PLR2004 - residues 0 and 1
        )
        for j in range(4, 32)
    ),
    StepVector(
        ("ada", "hopper", "b200_mma_sync"), ("e4m3",) * 3, (-0.0, 0.0), (1.0, -1.0), -0.0, 0.0
    ),
)

GEMM_VECTORS: Final[tuple[GemmVector, ...]] = (
    GemmVector(
        "13 fraction bits",
        "e5m2",
        64,
        (
            (0, 2.0**12, 2.0**11),
            *((32 + k, a, b) for k, (a, b) in enumerate(zip(_A, _B, strict=True))),
        ),
        0.0,
        0.0,
    ),
    GemmVector(
        "truncated", "e5m2", 64, ((0, 1.0, 1.0), (32, _SMALL, 1.0), (33, _SMALL, 1.0)), 1.0, 1.0
    ),
    GemmVector(
        "kept",
        "e5m2",
        64,
        ((0, 1.0, 1.0), (32, 2 * _SMALL, 1.0), (33, 2 * _SMALL, 1.0)),
        1 + 2.0**-12,
        1 + 2.0**-12,
    ),
    GemmVector("zeros of any sign", "e4m3", 32, ((0, -0.0, 1.0), (17, 0.0, -1.0)), 0.0, 0.0),
    # 448^2 hides the ones of its own chain; slow accumulation starts a chain at k = 128.
    GemmVector(
        "no promotion before 128",
        "e4m3",
        128,
        ((0, 448.0, 448.0), *((k, 1.0, 1.0) for k in range(1, 128))),
        448.0**2,
        448.0**2,
    ),
    GemmVector(
        "promotion at 128",
        "e4m3",
        144,
        ((0, 448.0, 448.0), *((k, 1.0, 1.0) for k in range(1, 144))),
        448.0**2,
        448.0**2 + 16,
    ),
)

PLATFORM_SPLITS: Final = {
    "ada": (SplitK(3, "serial"), SplitK(3, "pairwise")),
    "hopper": (SplitK(2, "contiguous"),),
}
"""FP8 models that cuBLAS runs, and how their platforms split K."""
FORMAT_PAIRS: Final = (("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3"))
FAMILY_SIZE: Final = (5, 16, 304)
"""M, N, K of the operand families: K is ragged for steps of 32 and for tiles of 64 and 128."""

OUTPUT_FAMILIES: Final = ("spread", "nonfinite")
OUTPUT_DTYPES: Final = (
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)
SCALES: Final = (
    (1.0, 1.0, 1.0),
    (0.7, -1 / 3, 3.0),
    (2.0**-70, 1.1 * 2.0**-76, 2.0**120),
    (2.0**100, 2.0**100, 0.0),
)
"""scale_a, scale_b, scale_result: exact, rounded, subnormal results, an infinite product."""

# The readable step


def _values(codes: Codes, fmt: str) -> torch.Tensor:
    return torch.from_numpy(FORMATS[fmt].decode(codes))


def _chain(a: Codes, b: Codes, formats: tuple[str, str], model: InstructionModel) -> NDArray[Any]:
    """Results fp32 [M, N] of one chain from +0 for each pair of rows of a [M, K] and b [N, K]."""
    left, right = _values(a, formats[0])[:, None, :], _values(b, formats[1])[None, :, :]
    return chain(left, right, None, model, formats=formats).numpy()


def readable(
    a: Codes, b: Codes, formats: tuple[str, str], model: InstructionModel, plan: GemmPlan
) -> NDArray[np.float32]:
    """Accumulate chain by chain as the plan spells it out, without tiles or shortcuts.

    Args:
        a: codes [M, K].
        b: codes [N, K].
        formats: format names of a and b.
        model: arithmetic of one instruction.
        plan: the chains, slices and their order.

    Returns:
        float32 [M, N] with the non-finite rule applied.
    """
    finite_a, finite_b = (
        np.where(np.isfinite(FORMATS[fmt].decode(codes)), codes, np.uint8(0))
        for codes, fmt in ((a, formats[0]), (b, formats[1]))
    )
    zeros = np.zeros((a.shape[0], b.shape[0]), np.float32)
    slices = []
    for part in plan.slices():
        total = zeros
        for run in part.chains():
            k = np.concatenate([np.arange(start, stop) for start, stop in run.ranges()])
            total = total + _chain(finite_a[:, k], finite_b[:, k], formats, model)
        slices.append(total)
    terms = [sum((slices[index] for index in term), zeros) for term in plan.reduction()]
    result: NDArray[np.float32] = sum(terms, zeros).astype(np.float32)
    with np.errstate(invalid="ignore"):
        left, right = FORMATS[formats[0]].decode(a), FORMATS[formats[1]].decode(b)
        ieee = (left[:, None, :] * right[None, :, :]).sum(axis=-1)
    canonical = np.array(FORMATS["fp32"].canonical_nan, np.uint32).view(np.float32)
    result = np.where(np.isinf(ieee), ieee.astype(np.float32), result)
    return np.where(np.isnan(ieee), canonical, result)


def _differing(actual: NDArray[Any], expected: NDArray[Any]) -> int:
    return int(np.count_nonzero(actual.view(np.uint32) != expected.view(np.uint32)))


# Gates


@dataclass(frozen=True, slots=True)
class _Subject:
    """What a gate looks at: a backend by name, and the device of its operands."""

    backend: str
    device: torch.device


def _chains_of_recordings(_: _Subject, tally: _Tally) -> None:
    _replay_all((record for record in load() if isinstance(record, MmaRecord)), "auto", tally)


def _recordings(subject: _Subject, tally: _Tally) -> None:
    records = (record for record in load() if isinstance(record, GemmRecord))
    _replay_all(records, subject.backend, tally)


def _replay_all(records: Iterable[Record], backend: str, tally: _Tally) -> None:
    for record in records:
        result = replay(record, backend=backend)
        if result.got == BackendUnavailableError.__name__:
            tally.refuse(result.detail)
        else:
            tally.add(result.values, result.differing, f"{result.id} {result.detail}")


def _step_vectors(_: _Subject, tally: _Tally) -> None:
    for vector in STEP_VECTORS:
        for name, fmt in zip(vector.models, vector.formats, strict=True):
            model = get_preset(name, warn=False)
            rest = (0.0,) * (-len(vector.a) % model.dot_length)
            a, b = (
                torch.tensor((*side, *rest), dtype=torch.float64, device="cpu")
                for side in (vector.a, vector.b)
            )
            encoded = FORMATS["fp32"].encode(np.array([vector.c]))
            c = torch.from_numpy(encoded.view(np.float32))[0]
            if model.output == "fp16":
                c = c.to(torch.float16)
            actual = bits(chain(a, b, c, model, formats=(fmt, fmt))).item()
            output = FORMATS[model.output]
            expected = int(output.encode(np.array([vector.expected]))[0])
            differs = int(actual) % (1 << output.bits) != expected
            tally.add(1, int(differs), f"{name} {fmt}: expected {vector.expected!r}")


def _run(
    subject: _Subject,
    codes: tuple[Codes, Codes],
    formats: tuple[str, str],
    model: InstructionModel,
    plan: GemmPlan,
) -> NDArray[Any]:
    """Results fp32 [M, N] of the backend.

    Raises:
        BackendUnavailableError: the backend refuses the request.
    """
    a, b = (torch.tensor(side, dtype=torch.uint8, device=subject.device) for side in codes)
    request = AccumulateRequest(a, b, *formats, model, plan)
    backend, _ = select(request, subject.backend)
    return execute.accumulate(backend.accumulate, request).cpu().numpy()


def _gemm_vectors(subject: _Subject, tally: _Tally) -> None:
    for vector, name, fast in product(GEMM_VECTORS, PLATFORM_SPLITS, (True, False)):
        a, b = np.zeros(vector.K), np.zeros(vector.K)
        for k, left, right in vector.products:
            a[k], b[k] = left, right
        fmt = FORMATS[vector.fmt]
        codes = np.tile(fmt.encode(a), (3, 1)), np.tile(fmt.encode(b), (5, 1))
        model = get_preset(name, warn=False)
        plan = GemmPlan(vector.K, UNSPLIT, None if fast else model.promotion_interval)
        try:
            actual = _run(subject, codes, (vector.fmt,) * 2, model, plan)
        except BackendUnavailableError as error:
            tally.refuse(str(error))
            continue
        value = np.array([vector.fast if fast else vector.slow])
        expected = np.broadcast_to(FORMATS["fp32"].encode(value), actual.shape)
        where = f"{vector.name} ({name}, {'fast' if fast else 'slow'})"
        tally.add(actual.size, _differing(actual, expected), where)


def _family_cases(family: str) -> Iterator[tuple[str, tuple[str, str], GemmPlan]]:
    """Model, formats and plan of each case; formats take turns, each family starts elsewhere."""
    cases = [
        (name, split, fast)
        for name, splits in PLATFORM_SPLITS.items()
        for split, fast in product((UNSPLIT, *splits), (True, False))
    ]
    turn = [*operands.FAMILIES].index(family)
    for number, (name, split, fast) in enumerate(cases, start=turn):
        promotion = None if fast else get_preset(name, warn=False).promotion_interval
        formats = FORMAT_PAIRS[number % len(FORMAT_PAIRS)]
        yield name, formats, GemmPlan(FAMILY_SIZE[2], split, promotion)


@functools.cache
def _expected(
    family: str, name: str, formats: tuple[str, str], plan: GemmPlan
) -> NDArray[np.float32]:
    """The readable result of a case, computed once for all backends."""
    a, b = operands.operands(family, *FAMILY_SIZE, formats=formats)
    return readable(a, b, formats, get_preset(name, warn=False), plan)


def _family(subject: _Subject, tally: _Tally, family: str) -> None:
    for name, formats, plan in _family_cases(family):
        codes = operands.operands(family, *FAMILY_SIZE, formats=formats)
        model = get_preset(name, warn=False)
        try:
            actual = _run(subject, codes, formats, model, plan)
        except BackendUnavailableError as error:
            tally.refuse(str(error))
            continue
        expected = _expected(family, name, formats, plan)
        where = f"{name} {' x '.join(formats)} {plan}"
        tally.add(actual.size, _differing(actual, expected), where)


def _outputs(subject: _Subject, tally: _Tally) -> None:
    """Whole calls, since a backend may do the epilogue itself."""
    M, N, K = FAMILY_SIZE
    formats = ("e4m3", "e5m2")
    for name, family in product(PLATFORM_SPLITS, OUTPUT_FAMILIES):
        codes = operands.operands(family, M, N, K, formats=formats)
        mat1, weight = (
            torch.tensor(side, dtype=torch.uint8, device=subject.device).view(dtype)
            for side, dtype in zip(codes, (torch.float8_e4m3fn, torch.float8_e5m2), strict=True)
        )
        acc = torch.from_numpy(_expected(family, name, formats, GemmPlan(K)))
        for out_dtype, scales in product(OUTPUT_DTYPES, SCALES):
            scale_a, scale_b, result = (
                torch.tensor(scale, dtype=torch.float32, device="cpu") for scale in scales
            )
            expected = epilogue.apply(
                acc, scale_a, scale_b, out_dtype=out_dtype, scale_result=result
            )
            try:
                actual = scaled_mm(
                    mat1,
                    weight.t(),
                    scale_a.to(subject.device),
                    scale_b.to(subject.device),
                    scale_result=result.to(subject.device),
                    out_dtype=out_dtype,
                    use_fast_accum=True,
                    profile=name,
                    splitk=1,
                    backend=subject.backend,
                )
            except BackendUnavailableError as error:
                tally.refuse(str(error))
                continue
            differing = int((bits(actual.cpu()) != bits(expected)).sum())
            tally.add(actual.numel(), differing, f"{name} {family} {out_dtype} {scales}")


Gate = Callable[[_Subject, _Tally], None]


def _family_gate(name: str) -> Gate:
    return lambda subject, tally: _family(subject, tally, name)


READABLE_GATES: Final[dict[str, Gate]] = {
    "recordings": _chains_of_recordings,
    "vectors": _step_vectors,
}
BACKEND_GATES: Final[dict[str, Gate]] = {
    "recordings": _recordings,
    "vectors": _gemm_vectors,
    "outputs": _outputs,
    **{f"operands:{name}": _family_gate(name) for name in operands.FAMILIES},
}

_verdicts: dict[_Subject, list[GateResult]] = {}


def _judge(gate: str, function: Gate, subject: _Subject) -> GateResult:
    tally, start = _Tally(), time.perf_counter()
    with warnings.catch_warnings():
        # Warnings tell about evidence; the self-test is about bits.
        warnings.simplefilter("ignore")
        try:
            function(subject, tally)
        except Exception as error:  # noqa: BLE001 - whatever a backend does wrong is its verdict
            tally.add(1, 1, f"{type(error).__name__}: {error}")
    return tally.result(gate, time.perf_counter() - start)


def _unavailable(status: BackendStatus) -> GateResult:
    return GateResult(
        AVAILABILITY,
        passed=False,
        reason=f"not available: {status.reason}",
        details={"failed": status.failed},
        seconds=0.0,
        cached=False,
    )


def _verdict(subject: _Subject, *, force: bool, advance: Advance) -> list[GateResult]:
    gates = READABLE_GATES if subject.backend == READABLE else BACKEND_GATES
    if subject in _verdicts and not force:
        return [replace(result, cached=True) for result in _verdicts[subject]]
    # A kernel for one model refuses the cases of others; a gate with no case left says nothing.
    results = []
    for gate, function in gates.items():
        advance(f"{subject.backend} {gate}")
        results.append(_judge(gate, function, subject))
    own = gate_verdicts(subject.backend, subject.device, force=force)
    telling = [result for result in results if result.details["outputs"]]
    _verdicts[subject] = [*map(_own, own), *(telling or results)]
    return _verdicts[subject]


def _own(verdict: GateVerdict) -> GateResult:
    """The result of a gate that a backend has of its own."""
    return GateResult(
        verdict.name,
        verdict.passed,
        verdict.reason,
        details={},
        seconds=verdict.seconds,
        cached=verdict.cached,
    )


def _device(device: object) -> torch.device:
    if isinstance(device, bool) or not isinstance(device, (type(None), int, str, torch.device)):
        raise TypeError(f"device must be a torch.device, a str, an int or None; got {device!r}")
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise BackendUnavailableError(
            f"device {chosen} is not available: torch {torch.__version__} sees no CUDA device; "
            "pass device='cpu'"
        )
    if chosen.type not in {"cpu", "cuda"}:
        raise ValueError(f"device must be a CPU or CUDA device, got {chosen}")
    return chosen


def _chosen(kernels: object, known: Sequence[str]) -> list[str]:
    if kernels == "all":
        return list(known)
    names = kernels.split(",") if isinstance(kernels, str) else kernels
    if not isinstance(names, Iterable) or not all(isinstance(name, str) for name in names):
        raise TypeError(
            f"kernels must be 'all', names separated by commas, or names; got {kernels!r}"
        )
    wanted = [name.strip() for name in names]
    # The published API names a CUDA kernel by its module alone: "v4" for "cuda:v4".
    full = {name.partition(":")[2]: name for name in known if ":" in name}
    chosen = [name if name in known else full.get(name, "") for name in wanted]
    if not all(chosen) or not chosen:
        raise ValueError(f"kernels must be 'all' or some of {', '.join(known)}; got {kernels!r}")
    return chosen


def planned(device: object = None, *, kernels: object = "all") -> Iterator[str]:
    """The names of the gates that `run` will run or has run before, for a progress display."""
    chosen = _device(device)
    status = backends_status(chosen)
    for name in _chosen(kernels, [READABLE, *status]):
        if name == READABLE:
            yield from READABLE_GATES
        elif status[name].available:
            yield from BACKEND_GATES


def run(
    device: object = None,
    *,
    kernels: object = "all",
    force: bool = False,
    advance: Advance = lambda _gate: None,
) -> dict[str, list[GateResult]]:
    """As `selftest`, and calls `advance` with the name of each gate before it runs."""
    if type(force) is not bool:
        raise TypeError(f"force must be a bool, got {force!r}")
    chosen = _device(device)
    status = backends_status(chosen)
    names = _chosen(kernels, [READABLE, *status])
    load()
    results: dict[str, list[GateResult]] = {}
    for name in names:
        if name != READABLE and not status[name].available:
            results[name] = [_unavailable(status[name])]
        else:
            results[name] = _verdict(_Subject(name, chosen), force=force, advance=advance)
    return results


def selftest(
    device: object = None, *, kernels: object = "all", force: bool = False
) -> dict[str, list[GateResult]]:
    """Compare every backend usable here with recordings, known answers and the readable step.

    Args:
        device: where the operands lie: a torch.device, its name, a CUDA index, or None for the
            current CUDA device, else the CPU.
        kernels: "all", names of backends (several separated by commas), or a list of names;
            "model" is the readable step itself.
        force: run again what was already run in this process.

    Returns:
        The gates of each backend. A backend that is not available has one gate, "availability",
        which did not pass and says why; its details say whether it is broken ("failed") or not
        meant for this machine.

    Raises:
        TypeError: an argument of another type.
        ValueError: an unknown kernel or device.
        BackendUnavailableError: the device is not available.
        DataIntegrityError: a shipped recording is damaged.
    """
    return run(device, kernels=kernels, force=force)

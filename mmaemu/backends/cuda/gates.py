"""What a kernel must show on the very device before it computes a result there.

The self-test compares bit for bit with the reference; a gated kernel's probes show the properties
of tensor cores that it borrows. Verdicts that passed are kept on disk under everything that decides
them: device, driver, images, cases, versions. Whatever goes wrong is a verdict that did not pass.
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Final, NamedTuple

import numpy as np
import torch

from mmaemu import _settings
from mmaemu._version import __version__
from mmaemu.backends.base import AccumulateRequest, GateVerdict
from mmaemu.backends.cuda import cache, probes
from mmaemu.backends.cuda.faults import fail_if_forced, forced
from mmaemu.backends.cuda.launch import Scales
from mmaemu.backends.cuda.loader import Module
from mmaemu.backends.cuda.specs import KernelSpec
from mmaemu.backends.reference import ReferenceBackend
from mmaemu.formats import FORMATS
from mmaemu.gemm import epilogue, execute
from mmaemu.gemm.plan import GemmPlan
from mmaemu.gemm.splitk import UNSPLIT, SplitK
from mmaemu.instruction.models import get_preset
from mmaemu.testing import operands

SELF_TEST: Final = "self-test"
CACHE: Final = "verdicts"

SIZE: Final = (67, 80, 176)
"""M, N, K of a case: more than a tile, ragged for steps of 32, and past the promotion at 128."""
SPLITS: Final = (
    UNSPLIT,
    SplitK(2, "contiguous"),
    SplitK(2, "serial"),
    SplitK(3, "pairwise"),
)
COUNTS: Final = (1, 16, 31, 32, 33, 64, 128, 176)
"""Values of K of the exact counts: K ones times ones must give K."""
OUTPUTS: Final = (
    (torch.float32, (0.7, -1 / 3, 1.0)),
    (torch.bfloat16, (0.7, 3.0, 1.0)),
    (torch.float16, (2.0**-9, 1.0, 1.0)),
    (torch.float8_e4m3fn, (2.0**-5, 1.0, 3.0)),
    (torch.float8_e5m2, (2.0**-70, 1.1 * 2.0**-76, 2.0**120)),
)
"""Output types, each with scale_a, scale_b and scale_result."""
NAMED: Final = 4
"""Wrong cases that a message names."""


class Case(NamedTuple):
    """One GEMM of the self-test.

    Attributes:
        name: for messages.
        family: a family of `mmaemu.testing.operands`, or "ones".
        size: M, N, K.
        formats: of both operands.
        split: slices and partition.
        fast: one chain per slice; else promoted as the model says.
        output: output type with its scales; None for accumulators.
    """

    name: str
    family: str
    size: tuple[int, int, int]
    formats: tuple[str, str]
    split: SplitK = UNSPLIT
    fast: bool = False
    output: tuple[torch.dtype, tuple[float, float, float]] | None = None


Run = Callable[[AccumulateRequest, torch.Tensor, Scales], None]
"""Launches a kernel for a request: operands, [M, N] to write to, and scales of outputs."""


def cases(formats: tuple[tuple[str, str], ...]) -> Iterator[Case]:
    """The cases of kernels that take these pairs of formats; the pairs take turns."""
    number = 0

    def pair() -> tuple[str, str]:
        nonlocal number
        number += 1
        return formats[number % len(formats)]

    for family in operands.FAMILIES:
        yield Case(family, family, SIZE, pair(), fast=bool(number % 2))
    for split in SPLITS:
        for fast in (True, False):
            name = f"{split.S} slices, {split.scheme}, {'fast' if fast else 'slow'}"
            yield Case(name, "uniform", SIZE, pair(), split, fast)
    for count in COUNTS:
        yield Case(f"{count} ones", "ones", (5, 66, count), pair(), fast=bool(count % 2))
    for output in OUTPUTS:
        name = str(output[0]).removeprefix("torch.")
        yield Case(name, "nonfinite", (16, 32, 48), pair(), output=output)


@functools.cache
def _codes(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [M, K] and [N, K] of a case, on the CPU."""
    m, n, k = case.size
    if case.family == "ones":
        a, b = (
            np.full((lines, k), FORMATS[fmt].encode(np.array([1.0]))[0], np.uint8)
            for lines, fmt in zip((m, n), case.formats, strict=True)
        )
    else:
        a, b = operands.operands(case.family, m, n, k, formats=case.formats)
    return torch.tensor(a, dtype=torch.uint8, device="cpu"), torch.tensor(
        b, dtype=torch.uint8, device="cpu"
    )


def _request(case: Case, model_name: str, device: torch.device) -> AccumulateRequest:
    model = get_preset(model_name, warn=False)
    promotion = None if case.fast else model.promotion_interval
    a, b = (codes.to(device) for codes in _codes(case))
    return AccumulateRequest(
        a, b, *case.formats, model, GemmPlan(case.size[2], case.split, promotion)
    )


def _scale(value: float, device: torch.device) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float32, device=device)


def _bytes(result: torch.Tensor) -> bytes:
    return result.contiguous().cpu().view(torch.uint8).numpy().tobytes()


def reference(case: Case, model: str) -> bytes:
    """The bits of a case as the reference backend and the common epilogue give them."""
    device = torch.device("cpu")
    request = _request(case, model, device)
    acc = execute.accumulate(ReferenceBackend().accumulate, request)
    if case.output is None:
        return _bytes(acc)
    dtype, scales = case.output
    first, second, third = (_scale(value, device) for value in scales)
    return _bytes(epilogue.apply(acc, first, second, out_dtype=dtype, scale_result=third))


def _actual(case: Case, kernel: KernelSpec, run: Run, device: torch.device) -> bytes:
    request = _request(case, kernel.model, device)
    dtype, scales = case.output or (torch.float32, ())
    # What a kernel leaves out must not look right by chance: every byte is that of a NaN.
    shape = (request.M, request.N * dtype.itemsize)
    out = torch.full(shape, 0x7F, dtype=torch.uint8, device=device).view(dtype)
    tensors = [_scale(value, device) for value in scales]
    if tensors and dtype.itemsize > 1:
        tensors.pop()
    run(request, out, Scales(*tensors))
    return _bytes(out)


@functools.cache
def expected(model: str, formats: tuple[tuple[str, str], ...]) -> tuple[bytes, ...]:
    """The results of all cases, as the reference gives them."""
    return tuple(reference(case, model) for case in cases(formats))


def self_test(kernel: KernelSpec, run: Run, device: torch.device) -> GateVerdict:
    """Compare a kernel with the reference, bit for bit, on operands that stress every rule.

    Args:
        kernel: the kernel.
        run: launches it.
        device: where operands lie.
    """
    start = time.perf_counter()
    every = list(cases(kernel.formats))
    try:
        actual = [_actual(case, kernel, run, device) for case in every]
    except Exception as error:  # noqa: BLE001 - whatever happens, the kernel is not used
        reason = f"{type(error).__name__}: {error}"
        return GateVerdict(SELF_TEST, passed=False, reason=reason, seconds=_since(start))
    if forced("cuda-self-test"):
        actual[0] = bytes(len(actual[0]))
    wanted = expected(kernel.model, kernel.formats)
    wrong = [
        case.name
        for case, result, right in zip(every, actual, wanted, strict=True)
        if result != right
    ]
    reason = f"{len(every)} GEMMs equal to the reference, bit for bit"
    if wrong:
        reason = f"{kernel.entry} has wrong bits in {len(wrong)} of {len(every)} GEMMs: "
        reason += ", ".join(wrong[:NAMED]) + ", ..." * (len(wrong) > NAMED)
    return GateVerdict(SELF_TEST, not wrong, reason, _since(start))


def _since(start: float) -> float:
    return time.perf_counter() - start


def probe(name: str, module: Module, device: torch.device, stream: int) -> GateVerdict:
    """Look whether a device has a property that a gated kernel borrows.

    Args:
        name: a name in `probes.PROBES`.
        module: the loaded module of the probes.
        device: where operands lie.
        stream: where to launch.
    """
    start = time.perf_counter()
    try:
        fail_if_forced("cuda-probes", RuntimeError("forced by a test"))
        subject = probes.PROBES[name]
        words = [torch.from_numpy(each.view(np.int32)).to(device) for each in subject.operands()]
        results = torch.full_like(words[2], -1)
        module.launch(
            subject.entry,
            grid=(results.shape[0], 1),
            threads=probes.THREADS,
            shared_bytes=0,
            stream=stream,
            parameter=probes.Parameter(*(each.data_ptr() for each in (*words, results))),
        )
        verdict = subject.verdict(results.cpu().numpy().view(np.uint32))
    except Exception as error:  # noqa: BLE001 - whatever happens, the kernel is not used
        reason = f"{type(error).__name__}: {error}"
        return GateVerdict(name, passed=False, reason=reason, seconds=_since(start))
    return GateVerdict(name, verdict.passed, verdict.reason, _since(start))


def probes_digest(kernel: KernelSpec) -> str:
    """A hash of what the probes of a kernel ask."""
    total = hashlib.sha256()
    for name in kernel.gates:
        subject = probes.PROBES[name]
        total.update(f"{name} {subject.entry} {subject.assumption}".encode())
        for words in subject.operands():
            total.update(words.tobytes())
    return total.hexdigest()


class Subject(NamedTuple):
    """What a verdict depends on beside the code.

    Attributes:
        kernel: the kernel.
        device: name, UUID and driver version.
        image: sha256 of the kernel's image.
        probes: sha256 of the probes' image; "" for a kernel without any.
    """

    kernel: KernelSpec
    device: tuple[str, str, int]
    image: str
    probes: str


def _key(subject: Subject) -> str:
    kernel = subject.kernel
    wanted = hashlib.sha256(b"".join(expected(kernel.model, kernel.formats))).hexdigest()
    versions = (__version__, torch.__version__)
    return cache.key(asdict(kernel), *subject[1:], wanted, probes_digest(kernel), versions)


def remembered(subject: Subject) -> tuple[GateVerdict, ...] | None:
    """The verdicts of an earlier run with the same subject, all of which passed; else None."""
    data = cache.read(CACHE, _key(subject))
    try:
        stored = json.loads(data or b"null")
        verdicts = tuple(replace(GateVerdict(**each), cached=True) for each in stored)
    except (ValueError, TypeError):
        return None
    wanted = (*subject.kernel.gates, SELF_TEST)
    names = tuple(verdict.name for verdict in verdicts)
    return verdicts if names == wanted and all(each.passed for each in verdicts) else None


def remember(subject: Subject, verdicts: tuple[GateVerdict, ...]) -> None:
    """Keep verdicts if all passed; a failure may be passing, so it is looked at again."""
    if all(verdict.passed for verdict in verdicts) and not _settings.faults():
        content = json.dumps([asdict(verdict) for verdict in verdicts]).encode()
        cache.write(CACHE, _key(subject), content)

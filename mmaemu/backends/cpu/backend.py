"""The backends cpu:avx512, cpu:avx2, cpu:neon, cpu:sse2 and cpu:scalar.

A request becomes one C struct; worker threads of this call then take tiles of the output until
none is left or an exception, such as Ctrl-C, ends the call. Nothing outlives a call but a buffer
per thread, so calls may run concurrently and after a fork, and the number of threads cannot change
a bit.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from mmaemu.backends.base import BackendStatus
from mmaemu.backends.cpu.library import (
    BAD_MODEL,
    BAD_SCRATCH,
    ISAS,
    KERNELS,
    NO_FLOOR,
    NONFINITE,
    OK,
    Request,
    is_foreign,
    load,
)
from mmaemu.gemm import execute

if TYPE_CHECKING:
    from mmaemu.gemm.epilogue import Epilogue
    from mmaemu.gemm.request import AccumulateRequest
    from mmaemu.instruction.model import InstructionModel

FORMATS: Final = ("e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz", "e2m3", "e3m2", "e2m1")
"""8-bit codes in the order of csrc/numerics/formats.h."""

OPERANDS: Final = {"e4m3": 0, "e5m2": 1}

OUTPUTS: Final = {
    torch.float32: 0,
    torch.bfloat16: 1,
    torch.float16: 2,
    torch.float8_e4m3fn: 3,
    torch.float8_e5m2: 4,
}
"""Output types as csrc/numerics/epilogue.h numbers them."""

PARTITIONS: Final = {"none": 0, "serial": 1, "pairwise": 2, "contiguous": 3}
CONVERTED_FLOOR: Final = {None: NO_FLOOR, "fp16": -14, "bf16": -126, "tf32": -126}
"""Lowest exponent of an operand in the format that it is first converted to, which holds it."""

MEANING: Final = {
    "avx512": "AVX-512 with F, BW, DQ, VL, VNNI and VBMI",
    "avx2": "AVX2 with FMA",
    "neon": "AArch64 NEON",
    "sse2": "SSE2",
    "scalar": "plain C, one output at a time",
}
PREFERRED: Final = ("floor_fma", "floor_fma_double", "cvtt", "wide")
"""Kernels from fastest to slowest; the scalar one is a backend of its own."""

PRODUCTS_PER_THREAD: Final = 1 << 21
"""Starting a thread costs as much as some 100 microseconds of work: about this many products."""

PRODUCTS_WITHOUT_CTRL_C: Final = 1 << 29
"""Python runs no signal handler while a thread is in the library, so the calling thread computes
at most this much itself: some 25 ms on AVX-512 and 5 s in plain C."""

PAST_THE_LAST_TILE: Final = 1 << 62

WAKE_UP_SECONDS: Final = 0.1
"""On Windows, Ctrl-C is not seen before a wait for another thread ends."""

PRODUCTS_OF_ONE_CALL: Final = 1 << 20
"""Up to this size a GEMM is one call of the library, with accumulators in the thread's buffer."""

TILES_PER_THREAD: Final = 8
WIDEST_TILE: Final = 1024
NARROWEST_TILE: Final = 64

LONG_K_BITS: Final = 25
"""The only limit on K that makes a kernel refuse is 2^25 (csrc/cpu/entry.c)."""

_RESIDUES: Final = 8
_PLANS: Final = 512


_HEAD_BYTES: Final = Request.m.offset
_TAIL: Final = struct.Struct("6q 3P q P 2I 2i")
"""The fields of a `Request` from `m` on: packing them is faster than assigning each."""


class _Template(NamedTuple):
    """The C request up to the operands' sizes, and the model whose identity it was made for."""

    head: bytes
    refusal: str | None
    model: InstructionModel
    library: ctypes.CDLL | None


class _Local(threading.local):
    """A thread's buffer. It is kept: the kernels need at most 13 MiB, whatever the request."""

    buffer: tuple[int, int, object] = (0, 0, None)


class CpuBackend:
    """One instruction set of the prebuilt library."""

    def __init__(self, isa: str) -> None:
        """Name the instruction set; nothing is loaded yet."""
        self.isa = isa
        self.name = f"cpu:{isa}"
        self._templates: dict[tuple[object, ...], _Template] = {}

    def status(self, device: torch.device) -> BackendStatus:
        """Say whether the library fits this machine and the CPU has the instruction set."""
        return _status(self.name, self.isa, device.type)

    def refusal(self, request: AccumulateRequest) -> str | None:
        """Say why no kernel of this instruction set can run a request; see `Backend.refusal`."""
        return self._template(request).refusal

    def accumulate(self, request: AccumulateRequest, out: torch.Tensor) -> None:
        """Write the fp32 accumulators of a request; see `Backend.accumulate`.

        Memory beside operands and output: at most 13 MiB per thread.

        Raises:
            RuntimeError: the library does not do what it promised; never for a bad operand.
        """
        self.run(request, out, torch.get_num_threads())

    def execute(self, request: AccumulateRequest, epilogue: Epilogue) -> torch.Tensor:
        """Return the output of a GEMM, as `gemm.execute.execute` does with this backend.

        Where every code is finite, which is looked at first, the library also does the epilogue.

        Args:
            request: a request that was not refused; sizes may be zero.
            epilogue: scales and output type.

        Returns:
            epilogue.out_dtype [M, N].
        """
        template = self._template(request)
        library = template.library
        (rows, depth), columns = request.a.shape, request.b.shape[0]
        products = rows * columns * depth
        if library is None or template.refusal is not None or not products:
            return execute.execute(self.accumulate, request, epilogue)
        out = torch.empty(rows, columns, dtype=epilogue.out_dtype, device=request.a.device)
        if products <= PRODUCTS_OF_ONE_CALL:
            if not _gemm(library, template.head, request, epilogue, out):
                return execute.execute(self.accumulate, request, epilogue)
            return out
        if not _all_finite(library, request):
            return execute.execute(self.accumulate, request, epilogue)
        band = rows
        if out.dtype != torch.float32:
            band = max(1, execute.BAND // columns)
        for first in range(0, rows, band):
            part = replace(request, a=request.a[first : first + band])
            self._output(library, part, epilogue, out[first : first + band])
        return out

    def _output(
        self,
        library: ctypes.CDLL,
        request: AccumulateRequest,
        epilogue: Epilogue,
        out: torch.Tensor,
    ) -> None:
        acc = out
        if out.dtype != torch.float32:
            acc = torch.empty(out.shape, dtype=torch.float32, device=out.device)
        self.accumulate(request, acc)
        library.mmaemu_cpu_finish(
            acc.data_ptr(),
            out.numel(),
            epilogue.alpha,
            epilogue.scale_result is not None,
            epilogue.scale_result or 0,
            OUTPUTS[epilogue.out_dtype],
            out.data_ptr(),
        )

    def run(
        self, request: AccumulateRequest, out: torch.Tensor, threads: int, kernel: str | None = None
    ) -> str:
        """Compute with at most `threads` threads; `kernel` overrides the choice, for tests.

        Returns:
            the kernel that ran.

        Raises:
            RuntimeError: the library refuses the request.
        """
        template = self._template(request)
        if template.refusal is not None or template.library is None:
            raise RuntimeError(f"{self.name}: {template.refusal or load().reason}")
        call = _fill(template.head, request, out.data_ptr(), out.stride(0))
        if kernel is not None:
            call.kernel = KERNELS.index(kernel)
        products = call.m * call.n * call.k
        threads = min(threads, products // PRODUCTS_PER_THREAD)
        joins_in = products <= PRODUCTS_WITHOUT_CTRL_C * max(threads, 1)
        if threads > 1 or not joins_in:
            call.tensors = request, out
            _run_threads(template.library, call, threads, joins_in=joins_in)
        else:
            _work(template.library, call)
        return KERNELS[call.kernel]

    def _template(self, request: AccumulateRequest) -> _Template:
        # Identity first: hashing a model costs more than a small GEMM.
        model, plan = request.model, request.plan
        split = plan.split
        pair = request.format_a, request.format_b
        key = (id(model), pair, split.S, split.scheme, plan.promotion, plan.K >> LONG_K_BITS)
        found = self._templates.get(key)
        if found is None or found.model is not model:
            found = _make_template(self.isa, request)
            if len(self._templates) >= _PLANS:
                self._templates.clear()
            self._templates[key] = found
        return found


def backends() -> tuple[CpuBackend, ...]:
    """The backends of this family, fastest first, for the registry."""
    return tuple(CpuBackend(isa) for isa in MEANING)


@cache
def _status(name: str, isa: str, device_type: str) -> BackendStatus:
    loaded = load()
    reason = f"{MEANING[isa]}, own threads"
    available = loaded.library is not None and isa in loaded.isas
    foreign = is_foreign(isa)
    if foreign:
        reason = f"not meant for this machine: this CPU has no {MEANING[isa]}"
    elif loaded.library is None:
        reason = loaded.reason
    elif not available:
        reason = f"this CPU has no {MEANING[isa]}"
    elif device_type != "cpu":
        available, reason = False, f"takes tensors on cpu, these are on {device_type}"
    return BackendStatus(
        name,
        available=available,
        source=loaded.source,
        validated_here=True,
        gates=(),
        reason=reason,
        failed=loaded.library is None and not loaded.missing and not foreign,
        missing=loaded.missing and not foreign,
    )


_local = _Local()


def _scratch(size: int) -> tuple[int, int, object]:
    """Address, size and owner of a buffer of at least `size` bytes for this thread."""
    buffer = _local.buffer
    if size > buffer[1]:
        owner = bytearray(size)
        buffer = ctypes.addressof(ctypes.c_char.from_buffer(owner)), size, owner
        _local.buffer = buffer
    return buffer


def _fill(
    head: bytes,
    request: AccumulateRequest,
    out: int,
    ldc: int,
    outputs: tuple[int, int, int, bool, int] = (0, 0, 0, False, 0),
) -> Request:
    """The C request with its operands, address and row stride of the accumulators, and outputs.

    `outputs` are the fields from `result` on, which only mmaemu_cpu_gemm reads.
    """
    a, b = request.a, request.b
    m, k = a.shape
    sizes = (m, b.shape[0], k, a.stride()[0], b.stride()[0], ldc)
    tail = _TAIL.pack(*sizes, a.data_ptr(), b.data_ptr(), out, 0, *outputs)
    return Request.from_buffer_copy(head + tail)


def _all_finite(library: ctypes.CDLL, request: AccumulateRequest) -> bool:
    """Whether no code is Inf or NaN."""
    operands = ((request.a, request.format_a), (request.b, request.format_b))
    return all(
        fmt in OPERANDS
        and not library.mmaemu_cpu_nonfinite(
            codes.data_ptr(), *codes.shape, codes.stride(0), OPERANDS[fmt]
        )
        for codes, fmt in operands
    )


def _gemm(
    library: ctypes.CDLL,
    head: bytes,
    request: AccumulateRequest,
    epilogue: Epilogue,
    out: torch.Tensor,
) -> bool:
    """Compute a small GEMM in one call of the library; False if a code is not finite."""
    rows, columns = out.shape
    target, output, scale = out.data_ptr(), OUTPUTS[epilogue.out_dtype], epilogue.scale_result
    accumulators = 4 * rows * columns if output else 0
    address, size, owner = _scratch(accumulators)
    outputs = (target, epilogue.alpha, scale or 0, scale is not None, output)
    call = _fill(head, request, address if output else target, columns, outputs)
    pointer = ctypes.byref(call)
    status = library.mmaemu_cpu_gemm(pointer, address + accumulators, size - accumulators)
    if status == BAD_SCRATCH:
        size = accumulators + library.mmaemu_cpu_scratch_bytes(pointer)
        address, size, owner = _scratch(size)
        call.out = address if output else target
        status = library.mmaemu_cpu_gemm(pointer, address + accumulators, size - accumulators)
    del owner
    if status == OK:
        return True
    if status != NONFINITE:
        raise RuntimeError(f"the CPU library refused a request it had accepted: status {status}")
    return False


def _work(library: ctypes.CDLL, call: Request) -> None:
    """Compute tiles of a call until all are taken."""
    pointer = ctypes.byref(call)
    address, size, owner = _scratch(library.mmaemu_cpu_scratch_bytes(pointer))
    status = library.mmaemu_cpu_run(pointer, address, size)
    del owner
    if status != OK:
        raise RuntimeError(f"the CPU library refused a request it had accepted: status {status}")


def _run_threads(library: ctypes.CDLL, call: Request, threads: int, *, joins_in: bool) -> None:
    """Compute a call with several threads; where one cannot start, the others take its tiles.

    Args:
        library: the library.
        call: what to compute; it keeps its tensors alive.
        threads: how many threads compute.
        joins_in: whether this thread is one of them; else it waits, and Ctrl-C ends the call.
    """
    call.tile_columns = WIDEST_TILE
    pointer = ctypes.byref(call)
    while (
        call.tile_columns > NARROWEST_TILE
        and library.mmaemu_cpu_tiles(pointer) < TILES_PER_THREAD * threads
    ):
        call.tile_columns //= 2
    workers = [
        _Worker(library, call)
        for _ in range(min(threads, library.mmaemu_cpu_tiles(pointer)) - joins_in)
    ]
    try:
        _start(workers)
        if not joins_in:
            _wait(workers)
        # Without a thread of its own, a call is computed here whatever its size.
        if call.next < library.mmaemu_cpu_tiles(pointer):
            _work(library, call)
    finally:
        # If something has ended this call early, no thread must begin another tile.
        call.next = PAST_THE_LAST_TILE
        _wait_through(workers)


class _Worker(threading.Thread):
    """A thread that computes tiles of a call.

    It says itself when it has ended: an interrupted `join` takes a running thread for ended.
    """

    def __init__(self, library: ctypes.CDLL, call: Request) -> None:
        super().__init__(name="mmaemu-cpu", daemon=True)
        self.ended = threading.Event()
        self._job = library, call

    def run(self) -> None:
        """Compute tiles until all are taken."""
        try:
            _work(*self._job)
        finally:
            self.ended.set()


def _start(workers: list[_Worker]) -> None:
    """Start as many threads as there are to be had."""
    with suppress(RuntimeError):
        for worker in workers:
            worker.start()


def _wait(workers: list[_Worker]) -> None:
    """Wait until the threads that could be started have ended."""
    for worker in workers:
        if worker.ident is None:
            continue
        while not worker.ended.wait(WAKE_UP_SECONDS):
            pass
        worker.join()


def _wait_through(workers: list[_Worker]) -> None:
    """Wait as `_wait`, and go on waiting after a Ctrl-C, which is raised at the end."""
    try:
        _wait(workers)
    except BaseException:
        _wait_through(workers)
        raise


def _make_template(isa: str, request: AccumulateRequest) -> _Template:
    """Find the fastest kernel for formats, model and plan, or the reason why there is none."""
    model = request.model
    reason = _unknown(request)
    library = load().library
    if reason is None and library is not None:
        call = _describe(isa, request)
        for kernel in ("scalar",) if isa == "scalar" else PREFERRED:
            call.kernel = KERNELS.index(kernel)
            status = library.mmaemu_cpu_check(ctypes.byref(call))
            if status == OK:
                return _Template(bytes(call)[:_HEAD_BYTES], None, model, library)
        reason = f"the instruction set is not available (status {status})"
        if status == BAD_MODEL:
            reason = (
                f"no kernel for {model.name} with {model.dot_length} products, "
                f"{model.fraction_bits} fraction bits and this plan"
            )
    return _Template(b"", reason, model, library)


def _unknown(request: AccumulateRequest) -> str | None:
    """Say what about formats or model the C interface cannot express."""
    model, pair = request.model, (request.format_a, request.format_b)
    rules = (
        (set(pair) <= set(FORMATS), f"takes 8-bit formats, got {' x '.join(pair)}"),
        (pair in model.inputs, f"the model {model.name} does not take {' x '.join(pair)}"),
        (model.output == "fp32", f"gives fp32, the model {model.name} gives {model.output}"),
        (
            model.kind == "aligned" and model.rounding == "toward zero",
            f"has no kernel for the arithmetic of {model.name}",
        ),
        (model.scale_format is None, f"the model {model.name} needs block scales"),
        (
            model.operand_format in CONVERTED_FLOOR,
            f"does not convert operands to {model.operand_format}",
        ),
        (
            not model.groups or (model.late_c and _residue_count(model) <= _RESIDUES),
            f"does not form the groups of {model.name}",
        ),
    )
    return next((text for holds, text in rules if not holds), None)


def _residue_count(model: InstructionModel) -> int:
    return sum(map(len, model.groups)) or 1


def _describe(isa: str, request: AccumulateRequest) -> Request:
    """The request as the C interface wants it, with pointers that are only not null."""
    model, plan = request.model, request.plan
    group_of = sum(
        group << (4 * residue) for group, owned in enumerate(model.groups) for residue in owned
    )
    split = plan.split
    return Request(
        abi=1,
        isa=ISAS.index(isa),
        format_a=FORMATS.index(request.format_a),
        format_b=FORMATS.index(request.format_b),
        dot_length=model.dot_length,
        fraction_bits=model.fraction_bits,
        result_fraction_bits=model.result_fraction_bits,
        min_exponent=NO_FLOOR if model.min_exponent is None else model.min_exponent,
        late=model.late_c,
        groups=max(1, len(model.groups)),
        residues=_residue_count(model),
        operand_floor=CONVERTED_FLOOR[model.operand_format],
        group_of=group_of,
        partition=PARTITIONS[split.scheme],
        slices=split.S,
        tile=plan.tile_width if split.S > 1 else 0,
        promotion=plan.promotion or 0,
        m=request.M,
        n=request.N,
        k=request.K,
        a=1,
        b=1,
        out=1,
    )

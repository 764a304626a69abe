"""What a backend is asked and what it offers. Nothing here computes, so torch is not imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from mmaemu.gemm.request import AccumulateRequest

if TYPE_CHECKING:
    import torch

__all__ = ["AccumulateRequest", "Backend", "BackendStatus", "GateVerdict"]


@dataclass(frozen=True, slots=True)
class BackendStatus:
    """Whether one backend can be used here, and why not.

    Attributes:
        name: the value of `backend=` that names it.
        available: whether it can run on the device asked about.
        source: where its code comes from (a file, "torch"); None if there is none.
        validated_here: whether it needs no gate here: proved on this kind of device.
        gates: names of the checks that must pass on this device before it is chosen.
        reason: one sentence: what it is, or why it is not available.
        failed: not available because something went wrong, not by design; "auto" warns then.
        missing: not available because its code is not in this installation; nothing is broken, and
            "auto" warns too.
        validated_on: devices for which there is committed evidence, by the driver's name.
    """

    name: str
    available: bool
    source: str | None
    validated_here: bool
    gates: tuple[str, ...]
    reason: str
    failed: bool = False
    missing: bool = False
    validated_on: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """What one gate of a backend said about a device.

    Attributes:
        name: the gate.
        passed: whether the backend may be used as far as this gate goes.
        reason: what was compared, or why it did not pass.
        seconds: duration.
        cached: it is from an earlier run.
    """

    name: str
    passed: bool
    reason: str
    seconds: float
    cached: bool = False


class Backend(Protocol):
    """Something that computes accumulators. All backends give the same bits.

    A backend may also have, and is then asked for:
        execute(request, epilogue): the whole GEMM with its epilogue, as `gemm.execute.execute`.
        epilogue(scale_a, scale_b, ...): makes the epilogue that `execute` takes.
        accumulators(request): as `gemm.execute.accumulate`, non-finite rule included.
        captures: True if its calls may be captured into a CUDA graph.
        gates, validated_on: as in `BackendStatus`, for devices that it is not asked about.
        withheld(device): why automatic selection leaves it alone on a device, by design; None if
            it does not. Costs O(1), loads nothing.
        verdicts(device, force): what its gates said, for the self-test.
    """

    @property
    def name(self) -> str:
        """The value of `backend=` that names it."""
        ...

    def status(self, device: torch.device) -> BackendStatus:
        """Whether the backend can be used for operands on `device`. Cheap after the first call."""
        ...

    def refusal(self, request: AccumulateRequest) -> str | None:
        """Why the backend cannot run this request, in one sentence; None if it can.

        Only formats, model, plan, sizes and device count: it reads no operand. It costs O(1).
        """
        ...

    def accumulate(self, request: AccumulateRequest, out: torch.Tensor) -> None:
        """Write the fp32 accumulators of a request that was not refused.

        Non-finite codes count as zero: the non-finite rule is applied afterwards, once for all
        backends. Reads no other memory than the operands and writes none but `out`.

        Args:
            request: what to compute; M, N and K are at least 1.
            out: fp32 [M, N], contiguous, on the request's device; its old content is ignored.
        """
        ...

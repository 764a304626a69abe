"""What a backend is asked and what it offers. Nothing here computes, so torch is not imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from mmaemu.gemm.request import AccumulateRequest

if TYPE_CHECKING:
    import torch

__all__ = ["AccumulateRequest", "Backend", "BackendStatus"]


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
    """

    name: str
    available: bool
    source: str | None
    validated_here: bool
    gates: tuple[str, ...]
    reason: str
    failed: bool = False


class Backend(Protocol):
    """Something that computes accumulators. All backends give the same bits."""

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

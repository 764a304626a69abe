"""What a backend is asked and what it offers. Nothing here computes, so torch is not imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from mmaemu.gemm.plan import GemmPlan
    from mmaemu.instruction.model import InstructionModel


@dataclass(frozen=True, slots=True)
class AccumulateRequest:
    """One fp32 accumulation: operands as codes, how an instruction adds, and in which order.

    Attributes:
        a: uint8 codes [M, K] with stride(1) = 1; the leading dimension may be padded.
        b: uint8 codes [N, K], the transpose of mat2, with stride(1) = 1; same device as a.
        format_a: format of a's codes, "e4m3" or "e5m2".
        format_b: format of b's codes.
        model: arithmetic of one instruction.
        plan: chains, slices and their order; plan.K = K.
    """

    a: torch.Tensor
    b: torch.Tensor
    format_a: str
    format_b: str
    model: InstructionModel
    plan: GemmPlan

    @property
    def M(self) -> int:
        """Rows of the output."""
        return self.a.shape[0]

    @property
    def N(self) -> int:
        """Columns of the output."""
        return self.b.shape[0]

    @property
    def K(self) -> int:
        """Length of the dot products."""
        return self.a.shape[1]

    @property
    def device(self) -> torch.device:
        """Where the operands are, and where the result goes."""
        return self.a.device


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
        failed: not available because something went wrong, rather than by design; "auto" warns then.
    """

    name: str
    available: bool
    source: str | None
    validated_here: bool
    gates: tuple[str, ...]
    reason: str
    failed: bool = False


class Backend(Protocol):
    """Something that computes accumulators. All backends give the same bits.

    Attributes:
        name: the value of `backend=` that names it.
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

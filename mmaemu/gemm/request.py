"""AccumulateRequest: what every backend is asked to compute. Torch is not imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    def M(self) -> int:  # noqa: N802 - the name of the size
        """Rows of the output."""
        return self.a.shape[0]

    @property
    def N(self) -> int:  # noqa: N802 - the name of the size
        """Columns of the output."""
        return self.b.shape[0]

    @property
    def K(self) -> int:  # noqa: N802 - the name of the size
        """Length of the dot products."""
        return self.a.shape[1]

    @property
    def device(self) -> torch.device:
        """Where the operands are, and where the result goes."""
        return self.a.device

"""Beyond the recorded shapes: S = 1 where M*N exceeds every recorded split of a setting (rule N21).

A bound belongs to one setting and workspace. The inference holds strictly above it, and a setting
or workspace without recorded queries has none.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import NamedTuple

from mmaemu.gemm.problem import GemmProblem


class Setting(NamedTuple):
    """Everything of a recorded query but its size and workspace."""

    format_a: str
    format_b: str
    out: str
    use_fast_accum: bool

    @classmethod
    def of(cls, problem: GemmProblem) -> Setting:
        """The setting of a problem."""
        return cls(problem.format_a, problem.format_b, problem.out, problem.use_fast_accum)

    def __str__(self) -> str:
        mode = "fast" if self.use_fast_accum else "slow"
        return f"{self.formats} -> {self.out}, {mode} accumulation"

    @property
    def formats(self) -> str:
        """Both operand formats, as in "e4m3xe5m2"."""
        return f"{self.format_a}x{self.format_b}"


class HeldOutTest(NamedTuple):
    """How an envelope did on shapes it was not made from.

    Attributes:
        tested: held-out shapes above the bound.
        split: how many of them the hardware split all the same.
    """

    tested: int
    split: int


class Inference(NamedTuple):
    """S = 1, with its ground.

    Attributes:
        note: the bound that was exceeded.
        failed: the held-out test that this workspace's envelope failed; None if there is none.
    """

    note: str
    failed: HeldOutTest | None


class Envelope(NamedTuple):
    """The bounds of one recorded table.

    Attributes:
        grid_K: sizes of K, increasing, for which bounds are known; None = one bound for every K.
        bounds: by workspace in bytes and setting: the bound on M*N for every K of the grid.
        held_out: test results by workspace in bytes; a workspace may have none.
        margin: factor between the largest recorded split and its bound; None = the bounds were
            searched for with queries of their own.
    """

    grid_K: tuple[int, ...] | None  # noqa: N815 - K is the field's name of the size
    bounds: Mapping[tuple[int, Setting], tuple[int, ...]]
    held_out: Mapping[int, HeldOutTest]
    margin: int | None

    def infer(self, problem: GemmProblem, workspace_bytes: int) -> Inference | str:
        """Infer S = 1 for a problem, or say why not.

        Args:
            problem: the GEMM; its shape need not be recorded.
            workspace_bytes: the workspace cuBLASLt may use.

        Returns:
            The inference, else the reason why there is none.
        """
        setting = Setting.of(problem)
        bounds = self.bounds.get((workspace_bytes, setting))
        if bounds is None:
            return f"no bound for workspace {workspace_bytes} B, {setting}"
        grid = self.grid_K
        if grid is None:
            bound, where = bounds[0], "every K"
        elif grid[0] <= problem.K <= grid[-1]:
            column = bisect_left(grid, problem.K)
            bound, where = bounds[column], f"K <= {grid[column]}"
        else:
            return f"K = {problem.K} is outside {grid[0]}..{grid[-1]}, where bounds are known"
        area = problem.M * problem.N
        if area <= bound:
            return f"M*N = {area} is not above the bound {bound} for {where}"
        held_out = self.held_out.get(workspace_bytes)
        failed = held_out if held_out is not None and held_out.split else None
        return Inference(f"inferred: M*N = {area} is above the bound {bound} for {where}", failed)

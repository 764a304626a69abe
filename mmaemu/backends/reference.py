"""The reference backend: every FP8 -> fp32 model in plain torch operations, in small tiles.

Models that `float_tiles` covers run there; the others run the readable `instruction.chain`, which
the tests also hold against the tiles. Chain results are added as the plan says (rules N14..N17).
Memory beside operands and output: 16 MiB per torch thread.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Protocol

import torch

from mmaemu.backends.base import AccumulateRequest, BackendStatus
from mmaemu.backends.float_tiles import (
    FloatTile,
    Method,
    add_nearest,
    finite_values,
    panel_depth,
    tiled_method,
)
from mmaemu.instruction.chain import chain

if TYPE_CHECKING:
    from mmaemu.gemm.plan import Slice, TileRun

OPERAND_FORMATS = ("e4m3", "e5m2")

TILE_BYTES = 1 << 20
"""Size of a step's products per thread: about a level-2 cache, which measured fastest."""
TILE_ROWS = 64
READABLE_BYTES = 1 << 18
"""The same on the readable path, which holds some 30 tensors of that size at once."""


class Tile(Protocol):
    """The chains of one tile of outputs."""

    def chain(self, run: TileRun) -> torch.Tensor:
        """Return the results of one chain from +0 as fp32 numbers in float64 [m, n]."""
        ...


class ReadableTile:
    """A tile on the readable path: any kind of model."""

    def __init__(self, part: AccumulateRequest) -> None:
        """Prepare a tile; `part` holds the rows of a and b that it needs."""
        self._part = part
        self._tables = [
            torch.from_numpy(finite_values(fmt)).to(part.device)
            for fmt in (part.format_a, part.format_b)
        ]

    def chain(self, run: TileRun) -> torch.Tensor:
        """Return the results of one chain from +0; see `Tile.chain`."""
        part, model = self._part, self._part.model
        c = torch.zeros((part.M, part.N), dtype=torch.float32, device=part.device)
        for ranges in run.panels(panel_depth(part)):
            a, b = (
                table[
                    torch.cat([codes[:, start:stop] for start, stop in ranges], 1).to(torch.int64)
                ]
                for table, codes in zip(self._tables, (part.a, part.b), strict=True)
            )
            formats = (part.format_a, part.format_b)
            c = chain(a.unsqueeze(1), b.unsqueeze(0), c, model, formats=formats)
        return c.to(torch.float64)


class ReferenceBackend:
    """The backend that is always there. Its name is "reference"."""

    name = "reference"

    def status(self, device: torch.device) -> BackendStatus:
        """Say that it can be used: it runs wherever torch runs."""
        reason = f"torch {torch.__version__} on {device.type}, every FP8 -> fp32 model"
        return BackendStatus(
            self.name,
            available=True,
            source="torch",
            validated_here=True,
            gates=(),
            reason=reason,
        )

    def refusal(self, request: AccumulateRequest) -> str | None:
        """Say why it cannot run a request; see `Backend.refusal`."""
        model, pair = request.model, (request.format_a, request.format_b)
        if not set(pair) <= set(OPERAND_FORMATS):
            return f"operands must be {' or '.join(OPERAND_FORMATS)}, got {' x '.join(pair)}"
        if pair not in model.inputs:
            return f"the instruction model {model.name} does not take {' x '.join(pair)}"
        if model.output != "fp32":
            return f"a GEMM adds in fp32, but the model {model.name} gives {model.output}"
        if model.scale_format is not None:
            return f"the model {model.name} needs block scales, which this GEMM has not"
        return None

    def accumulate(self, request: AccumulateRequest, out: torch.Tensor) -> None:
        """Write the fp32 accumulators of a request; see `Backend.accumulate`."""
        accumulate(request, out)


def backends() -> tuple[ReferenceBackend]:
    """The backends of this family, for the registry."""
    return (ReferenceBackend(),)


def accumulate(request: AccumulateRequest, out: torch.Tensor, *, readable: bool = False) -> None:
    """Write the fp32 accumulators of a request, tile by tile.

    Args:
        request: what to compute; M, N and K at least 1.
        out: fp32 [M, N] on the request's device.
        readable: take the readable path whatever the model is.
    """
    if request.N < request.M:
        # Products commute, so the transposed problem has the same sums, and long rows are faster.
        request, out = _transposed(request), out.t()
    method = tiled_method(request.model, request.format_a, request.format_b)
    if readable:
        method = None
    rows, columns = _tile_shape(request, method)
    for top in range(0, request.M, rows):
        for left in range(0, request.N, columns):
            a, b = request.a[top : top + rows], request.b[left : left + columns]
            part = replace(request, a=a, b=b)
            total = _add_slices(
                ReadableTile(part) if method is None else FloatTile(part, method), part
            )
            # A GEMM's sum starts from +0 and adds to nearest, so no result is -0 (N5).
            total.masked_fill_(total == 0, 0.0)
            out[top : top + rows, left : left + columns].copy_(total)


def _transposed(request: AccumulateRequest) -> AccumulateRequest:
    return replace(
        request,
        a=request.b,
        b=request.a,
        format_a=request.format_b,
        format_b=request.format_a,
    )


def _tile_shape(request: AccumulateRequest, method: Method | None) -> tuple[int, int]:
    """Return rows and columns of a tile. Any shape gives the same bits."""
    if method is None:
        outputs = READABLE_BYTES // (8 * request.model.dot_length)
    else:
        size = TILE_BYTES * torch.get_num_threads() // method.numbers.dtype.itemsize
        outputs = size // (request.model.dot_length + 1)
    rows = min(request.M, TILE_ROWS, max(1, outputs))
    return rows, max(1, min(request.N, outputs // rows))


def _add_slices(tile: Tile, part: AccumulateRequest) -> torch.Tensor:
    """Return the slices' sums added in the plan's order (N14..N17), fp32 numbers in float64."""

    def term(indices: tuple[int, ...]) -> torch.Tensor:
        slices = (part.plan.slice(index) for index in indices)
        return reduce(add_nearest, (_add_chains(tile, one, part) for one in slices))

    return reduce(add_nearest, map(term, part.plan.reduction()))


def _add_chains(tile: Tile, one: Slice, part: AccumulateRequest) -> torch.Tensor:
    """Return the sum of a slice's chains, in order from +0."""
    # Adding the first chain to +0 changes nothing but the sign of a zero, which no one can see.
    results = map(tile.chain, one.chains())
    nothing = torch.zeros((part.M, part.N), dtype=torch.float64, device=part.device)
    return reduce(add_nearest, results, next(results, nothing))

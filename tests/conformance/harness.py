"""What the tables of kernel tests share: plans, shapes, operands and outputs among guards.

Operands lie at odd addresses in blocks full of NaN codes, and outputs between guard bytes, so that
nothing beside them may count or change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from mmaemu.backends import reference
from mmaemu.gemm.plan import GemmPlan
from mmaemu.gemm.request import AccumulateRequest
from mmaemu.gemm.splitk import UNSPLIT, SplitK
from mmaemu.instruction.model import InstructionModel
from mmaemu.testing.operands import operands

Codes = NDArray[np.unsignedinteger[Any]]
Plan = tuple[SplitK, int | None]
Pair = tuple[str, str]
Shape = tuple[int, int, int]

CPU: Final = torch.device("cpu")
PAIRS: Final = tuple(product(("e4m3", "e5m2"), ("e4m3", "e5m2")))
PLANS: Final[tuple[Plan, ...]] = (
    (UNSPLIT, None),
    (UNSPLIT, 128),
    (SplitK(3, "serial"), None),
    (SplitK(3, "serial"), 128),
    (SplitK(5, "pairwise"), None),
    (SplitK(4, "pairwise"), 128),
    (SplitK(4, "contiguous"), None),
    (SplitK(3, "contiguous"), 128),
)
SHAPES: Final = (
    (5, 33, 200),
    (17, 70, 131),
    (1, 64, 96),
    (33, 1, 260),
    (4, 129, 47),
    (12, 16, 128),
)
"""Sizes that cross the edges of panels, units and steps; one is taken per case, in turn."""
ROWS: Final = (1, 2, 3, 4, 5, 15, 16, 17, 31, 33, 63, 65, 127, 128, 129)
COLUMNS: Final = (1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 112, 127, 129)
DEPTHS: Final = (1, 2, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 127, 128, 129, 255, 257)
GUARD: Final = 64
GUARD_BYTE: Final = 0xA5


class Edge(NamedTuple):
    """One case at the edges of tiles and steps."""

    seed: int
    shape: Shape
    formats: Pair
    plan: Plan
    pad: int
    offset: int


def edges(seed: int, count: int) -> Iterator[Edge]:
    """Random sizes at the edges, with every plan and pair of formats, at every address."""
    rng = np.random.default_rng(seed)
    for index in range(count):
        m, n, k = (int(rng.choice(sizes)) for sizes in (ROWS, COLUMNS, DEPTHS))
        pad, offset = int(rng.integers(0, 3)), int(rng.integers(0, 16))
        formats, plan = PAIRS[index % len(PAIRS)], PLANS[index % len(PLANS)]
        yield Edge(index, (m, n, k), formats, plan, pad, offset)


def every_pair(formats: Pair, lead: int, family: str) -> tuple[Codes, Codes]:
    """Row i ends in code i, column j in code j, after `lead` codes of a family."""
    last = np.arange(256, dtype=np.uint8).reshape(256, 1)
    before = operands(family, 256, 256, lead, formats=formats, seed=lead)
    a, b = (np.concatenate((part, last), axis=1) for part in before)
    return a, b


def embedded(codes: Codes, *, pad: int, offset: int) -> torch.Tensor:
    """The codes as a view of a larger block of NaN codes, `offset` bytes in, rows padded."""
    rows, depth = codes.shape
    block = torch.full((rows * (depth + pad) + 64,), 0xFF, dtype=torch.uint8, device=CPU)
    start = -block.data_ptr() % 16 + offset
    view = block[start : start + rows * (depth + pad)].view(rows, depth + pad)[:, :depth]
    return view.copy_(torch.from_numpy(codes))


def make_request(
    codes: tuple[Codes, Codes],
    formats: Pair,
    model: InstructionModel,
    plan: Plan,
    *,
    pad: int = 5,
    offset: int = 3,
) -> AccumulateRequest:
    """A request on embedded operands; b is padded and placed differently from a."""
    a = embedded(codes[0], pad=pad, offset=offset)
    b = embedded(codes[1], pad=pad and pad + 1, offset=offset and offset + 4)
    return AccumulateRequest(a, b, *formats, model, GemmPlan(a.shape[1], *plan))


def among_guards(
    rows: int,
    columns: int,
    dtype: torch.dtype,
    compute: Callable[[torch.Tensor], None],
    *,
    pad: int = 0,
    what: str = "",
) -> torch.Tensor:
    """What `compute` writes into an output at an odd place, of rows padded by `pad` elements.

    Raises:
        AssertionError: it wrote beside it.
    """
    size = dtype.itemsize
    count = rows * (columns + pad)
    block = torch.full((count * size + 2 * GUARD,), GUARD_BYTE, dtype=torch.uint8, device=CPU)
    first = GUARD - size
    view = block[first : first + count * size].view(dtype).view(rows, columns + pad)[:, :columns]
    compute(view)
    out = view.clone(memory_format=torch.contiguous_format)
    view.view(torch.uint8)[:] = GUARD_BYTE
    assert bool((block == GUARD_BYTE).all()), f"{what} wrote beside its output"
    return out


def expected(request: AccumulateRequest) -> torch.Tensor:
    """The reference backend's accumulators; codes that are not finite count as zero."""
    out = torch.empty((request.M, request.N), dtype=torch.float32, device=CPU)
    reference.accumulate(request, out)
    return out

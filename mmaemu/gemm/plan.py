"""GemmPlan: which elements of K go through which chain, and how chain results are added.

A plan says it in four levels: the result reduces slices, a slice adds its chains' results in order
to +0, a chain is one run of the instruction model from +0, and a chain's elements are ranges of K.
Every object here is O(1) in M, N and K; ranges exist only while they are iterated over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mmaemu.gemm.problem import check_size
from mmaemu.gemm.splitk import UNSPLIT, SplitK

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Partition:
    """How one split-K scheme deals out K and adds the slices (rules N16 and N17).

    Attributes:
        tile_width: consecutive elements of K that always stay in one slice; None = all of K.
        strided: slice s owns the tiles t with t mod S = s (True), or a run of ceil(T/S) tiles.
        reduction: "serial" = ((p0 + p1) + p2) + ..., or "pairwise" = (((p_last + slot_0) + slot_1)
            + ...) where slot_i = p_i + p_(i + ceil(S/2)) as long as that is not the last slice.
    """

    tile_width: int | None
    strided: bool
    reduction: Literal["serial", "pairwise"]


PARTITIONS: dict[str, Partition] = {
    "none": Partition(None, strided=False, reduction="serial"),
    "serial": Partition(64, strided=True, reduction="serial"),
    "pairwise": Partition(64, strided=True, reduction="pairwise"),
    "contiguous": Partition(128, strided=False, reduction="serial"),
}


@dataclass(frozen=True, slots=True)
class TileRun:
    """The `count` tiles first, first + step, ... of a K that is cut into tiles of `width`.

    Attributes:
        K: length of the dot products; the last tile of K may be shorter than `width`.
        width: elements of K in a tile.
        first: index of the first tile.
        step: distance between tiles.
        count: number of tiles.
    """

    K: int
    width: int
    first: int
    step: int
    count: int

    @property
    def length(self) -> int:
        """Number of elements of K in the run."""
        if not self.count:
            return 0
        last = self.first + (self.count - 1) * self.step
        return (self.count - 1) * self.width + min(self.width, self.K - last * self.width)

    def ranges(self) -> Iterator[tuple[int, int]]:
        """The run as half-open ranges of K in order; adjacent tiles come as one range."""
        if self.step == 1 and self.count:
            start = self.first * self.width
            yield start, start + self.length
            return
        for tile in range(self.first, self.first + self.count * self.step, self.step):
            yield tile * self.width, min((tile + 1) * self.width, self.K)

    def panels(self, size: int) -> Iterator[list[tuple[int, int]]]:
        """The run in pieces of `size` elements of K (the last may have fewer), as lists of ranges.

        Args:
            size: number of elements in a piece, at least 1.

        Yields:
            The ranges of one piece, in order.
        """
        piece: list[tuple[int, int]] = []
        room = size
        for start, stop in self.ranges():
            done = start
            while done < stop:
                end = min(stop, done + room)
                piece.append((done, end))
                room -= end - done
                done = end
                if not room:
                    yield piece
                    piece, room = [], size
        if piece:
            yield piece

    def cut(self, tiles: int) -> Iterator[TileRun]:
        """The run in consecutive runs of `tiles` tiles (the last may be shorter)."""
        for done in range(0, self.count, tiles):
            first = self.first + done * self.step
            count = min(tiles, self.count - done)
            yield TileRun(self.K, self.width, first, self.step, count)


@dataclass(frozen=True, slots=True)
class Slice:
    """One slice of a plan: chains whose results are added in order to +0; no chain gives +0.

    Attributes:
        tiles: the slice's elements of K.
        tiles_per_chain: a new chain starts after this many of the slice's own tiles; None = never.
    """

    tiles: TileRun
    tiles_per_chain: int | None

    def chains(self) -> Iterator[TileRun]:
        """The slice's chains in order. Each starts from +0; a ragged end is padded with zeros."""
        if self.tiles.count:
            yield from self.tiles.cut(self.tiles_per_chain or self.tiles.count)


@dataclass(frozen=True, slots=True)
class GemmPlan:
    """How the K products of every output are added up.

    Attributes:
        K: length of the dot products, at least 0.
        split: slices and how they are added. Where more slices than given here are asked for, the
            others are empty and change no bit, so they are left out (see `_without_idle`).
        promotion: elements of a slice after which the chain restarts and its result is added in
            fp32 (slow accumulation); None = one chain per slice (fast accumulation).

    Raises:
        TypeError: K or promotion is no int, split no SplitK.
        ValueError: K is negative, promotion below 1, or promotion is no whole number of tiles.
    """

    K: int
    split: SplitK = UNSPLIT
    promotion: int | None = None

    def __post_init__(self) -> None:
        check_size("K", self.K)
        if not isinstance(self.split, SplitK):
            raise TypeError(f"split must be a SplitK, got {self.split!r}")
        object.__setattr__(self, "split", _without_idle(self.split, self.tile_count))
        if self.promotion is None:
            return
        check_size("promotion", self.promotion, least=1)
        if self.promotion % self.tile_width:
            raise ValueError(
                f"slow accumulation with split-K scheme {self.split.scheme!r} restarts chains "
                f"after whole tiles of {self.tile_width}; got a promotion interval of "
                f"{self.promotion}"
            )

    @property
    def partition(self) -> Partition:
        """How the scheme deals out K."""
        return PARTITIONS[self.split.scheme]

    @property
    def tile_width(self) -> int:
        """Elements of K in a tile; an unsplit plan has one tile per chain."""
        return self.partition.tile_width or self.promotion or max(self.K, 1)

    @property
    def tile_count(self) -> int:
        """Number of tiles of K, a ragged last one included."""
        return -(-self.K // self.tile_width)

    def slice(self, index: int) -> Slice:
        """One slice of the plan.

        Args:
            index: 0 <= index < split.S.

        Returns:
            The slice; it has no tiles if K has too few.

        Raises:
            IndexError: no such slice.
        """
        slices, tiles = self.split.S, self.tile_count
        if not 0 <= index < slices:
            raise IndexError(f"slice index must be in 0..{slices - 1}, got {index}")
        if self.partition.strided:
            first, step = index, slices
            count = max(0, -(-(tiles - index) // slices))
        else:
            share = -(-tiles // slices)
            first, step = index * share, 1
            count = max(0, min(share, tiles - first))
        per_chain = None if self.promotion is None else self.promotion // self.tile_width
        return Slice(TileRun(self.K, self.tile_width, first, step, count), per_chain)

    def slices(self) -> Iterator[Slice]:
        """All slices in index order (which is not the order of addition: see `reduction`)."""
        return (self.slice(index) for index in range(self.split.S))

    def reduction(self) -> Iterator[tuple[int, ...]]:
        """The order of addition: result = ((term_0 + term_1) + term_2) + ...

        Yields:
            One term: the indices of the one slice, or of the two slices added first.
        """
        count = self.split.S
        if self.partition.reduction == "serial":
            yield from ((index,) for index in range(count))
            return
        half = -(-count // 2)
        yield (count - 1,)
        for index in range(half):
            partner = index + half
            yield (index, partner) if partner < count - 1 else (index,)


def _without_idle(split: SplitK, tiles: int) -> SplitK:
    """Lower S as far as it leaves out only empty slices, so that no S costs more than K does.

    With S >= T slices for T tiles, slice s < T is tile s and every other slice is +0. No partial
    sum is -0, so adding +0 changes nothing, and a serial sum is p_0 + ... + p_(T-1) for every such
    S. A pairwise sum is that too once its last slice and every partner p_(i + ceil(S/2)) are
    empty, which holds for every S >= 2 T; below that, pairs are added first.
    """
    most = 2 * tiles if PARTITIONS[split.scheme].reduction == "pairwise" else tiles
    return SplitK(min(split.S, max(most, 2)), split.scheme)

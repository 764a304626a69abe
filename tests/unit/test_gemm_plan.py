"""The plan: chains, slices and their order (rules N14..N17)."""

from __future__ import annotations

import sys
from itertools import chain

import pytest

from mmaemu.gemm.plan import GemmPlan, TileRun
from mmaemu.gemm.splitk import SplitK


def chains(plan: GemmPlan) -> list[list[list[tuple[int, int]]]]:
    return [[list(run.ranges()) for run in one.chains()] for one in plan.slices()]


def test_fast_accumulation_is_one_chain_over_all_of_k() -> None:
    assert chains(GemmPlan(700)) == [[[(0, 700)]]]


def test_slow_accumulation_restarts_every_128_in_order_with_a_ragged_end() -> None:
    assert chains(GemmPlan(300, promotion=128)) == [[[(0, 128)], [(128, 256)], [(256, 300)]]]


def test_rtx4060_deals_tiles_of_64_to_the_slices_in_turn() -> None:
    plan = GemmPlan(64 * 6 + 8, SplitK(3, "serial"))
    assert chains(plan) == [
        [[(0, 64), (192, 256), (384, 392)]],
        [[(64, 128), (256, 320)]],
        [[(128, 192), (320, 384)]],
    ]


def test_rtx4060_slow_chains_restart_every_two_of_the_slices_own_tiles() -> None:
    plan = GemmPlan(64 * 10, SplitK(3, "pairwise"), 128)
    assert chains(plan)[0] == [[(0, 64), (192, 256)], [(384, 448), (576, 640)]]
    assert chains(plan)[1] == [[(64, 128), (256, 320)], [(448, 512)]]


def test_h100_gives_each_slice_a_run_of_tiles_of_128_and_may_leave_some_empty() -> None:
    plan = GemmPlan(128 * 4 + 1, SplitK(4, "contiguous"))
    assert chains(plan) == [[[(0, 256)]], [[(256, 512)]], [[(512, 513)]], []]
    slow = GemmPlan(128 * 4 + 1, SplitK(4, "contiguous"), 128)
    assert chains(slow)[0] == [[(0, 128)], [(128, 256)]]


@pytest.mark.parametrize(
    ("split", "order"),
    [
        (SplitK(1, "none"), [(0,)]),
        (SplitK(4, "serial"), [(0,), (1,), (2,), (3,)]),
        (SplitK(4, "contiguous"), [(0,), (1,), (2,), (3,)]),
        (SplitK(2, "pairwise"), [(1,), (0,)]),
        (SplitK(3, "pairwise"), [(2,), (0,), (1,)]),
        (SplitK(4, "pairwise"), [(3,), (0, 2), (1,)]),
        (SplitK(5, "pairwise"), [(4,), (0, 3), (1,), (2,)]),
        (SplitK(7, "pairwise"), [(6,), (0, 4), (1, 5), (2,), (3,)]),
    ],
)
def test_order_in_which_slices_are_added(split: SplitK, order: list[tuple[int, ...]]) -> None:
    assert list(GemmPlan(640, split).reduction()) == order


@pytest.mark.parametrize("K", [0, 1, 63, 64, 65, 127, 128, 129, 500, 1024])
@pytest.mark.parametrize("promotion", [None, 128])
@pytest.mark.parametrize(
    "split",
    [SplitK(1, "none"), SplitK(5, "serial"), SplitK(9, "pairwise"), SplitK(6, "contiguous")],
)
def test_every_element_of_k_is_in_exactly_one_chain(
    split: SplitK, K: int, promotion: int | None
) -> None:
    plan = GemmPlan(K, split, promotion)
    runs = [run for one in plan.slices() for run in one.chains()]
    spans = chain.from_iterable(run.ranges() for run in runs)
    assert sorted(k for start, stop in spans for k in range(start, stop)) == list(range(K))
    for run in runs:
        assert run.length == sum(stop - start for start, stop in run.ranges())
        assert promotion is None or run.length <= promotion
        for size in (1, 16, 100):
            panels = list(run.panels(size))
            sizes = [sum(stop - start for start, stop in panel) for panel in panels]
            assert all(each == size for each in sizes[:-1])
            assert sum(sizes) == run.length
            merged = [k for panel in panels for start, stop in panel for k in range(start, stop)]
            assert merged == [k for start, stop in run.ranges() for k in range(start, stop)]


def test_a_plan_of_any_size_is_made_and_asked_in_as_many_steps() -> None:
    def ask(S: int) -> None:
        plan = GemmPlan(S << 22, SplitK(S, "pairwise"), 128)
        assert next(plan.reduction()) == (S - 1,)
        first = next(plan.slice(S - 1).chains())
        assert next(first.ranges()) == (64 * (S - 1), 64 * S)
        assert next(next(plan.slices()).chains()).length == 128

    def steps(S: int) -> int:
        counted = []
        sys.setprofile(lambda _frame, event, _value: counted.append(event))
        try:
            ask(S)
        finally:
            sys.setprofile(None)
        return len(counted)

    assert steps(1 << 40) == steps(1 << 10)


def test_an_empty_run_has_no_range() -> None:
    assert list(TileRun(10, 4, 3, 1, 0).ranges()) == []
    assert TileRun(10, 4, 3, 1, 0).length == 0


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((16.0,), TypeError, "K must be an int, got 16.0"),
        ((True,), TypeError, "K must be an int, got True"),
        ((-1,), ValueError, "K must be at least 0, got -1"),
        ((16, (2, "serial")), TypeError, "split must be a SplitK"),
        ((16, SplitK(1, "none"), 0), ValueError, "promotion must be at least 1, got 0"),
        ((16, SplitK(1, "none"), 1.5), TypeError, "promotion must be an int"),
        ((16, SplitK(2, "serial"), 96), ValueError, "whole tiles of 64; got a promotion"),
        ((16, SplitK(2, "contiguous"), 64), ValueError, "whole tiles of 128"),
    ],
)
def test_bad_arguments_are_refused(
    arguments: tuple[object, ...], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        GemmPlan(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("index", [-1, 3])
def test_a_slice_that_does_not_exist_is_refused(index: int) -> None:
    with pytest.raises(IndexError, match=r"must be in 0\.\.2"):
        GemmPlan(640, SplitK(3, "serial")).slice(index)

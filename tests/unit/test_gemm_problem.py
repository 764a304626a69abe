"""The GEMM problem as a checked, hashable key."""

from __future__ import annotations

from typing import Any

import pytest

from mmaemu.gemm.problem import GemmProblem

GOOD: dict[str, Any] = {
    "M": 3,
    "N": 32,
    "K": 48,
    "format_a": "e4m3",
    "format_b": "e5m2",
    "out": "bfloat16",
    "use_fast_accum": True,
}


def test_equal_problems_are_one_key() -> None:
    assert {GemmProblem(**GOOD): "row"}[GemmProblem(**GOOD)] == "row"
    assert GemmProblem(**GOOD) != GemmProblem(**{**GOOD, "use_fast_accum": False})


def test_transposing_swaps_sizes_and_formats_and_undoes_itself() -> None:
    problem = GemmProblem(**GOOD)
    assert problem.transposed() == GemmProblem(32, 3, 48, "e5m2", "e4m3", "bfloat16", True)
    assert problem.transposed().transposed() == problem


@pytest.mark.parametrize("name", ["M", "N", "K"])
def test_a_zero_size_is_allowed_and_makes_it_empty(name: str) -> None:
    assert not GemmProblem(**GOOD).is_empty
    assert GemmProblem(**{**GOOD, name: 0}).is_empty


@pytest.mark.parametrize("name", ["M", "N", "K"])
@pytest.mark.parametrize("value", [16.9, 16.0, True, "16", None])
def test_a_size_that_is_no_int_is_refused(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=f"{name} must be an int, got"):
        GemmProblem(**{**GOOD, name: value})


@pytest.mark.parametrize("name", ["M", "N", "K"])
def test_a_negative_size_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 0, got -1"):
        GemmProblem(**{**GOOD, name: -1})


@pytest.mark.parametrize("name", ["format_a", "format_b", "out"])
def test_names_are_non_empty_strings(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} must be a str, got 8"):
        GemmProblem(**{**GOOD, name: 8})
    with pytest.raises(ValueError, match=f"{name} must name something"):
        GemmProblem(**{**GOOD, name: ""})


@pytest.mark.parametrize("value", [1, 0, None, "yes"])
def test_use_fast_accum_is_a_bool(value: object) -> None:
    with pytest.raises(TypeError, match="use_fast_accum must be a bool"):
        GemmProblem(**{**GOOD, "use_fast_accum": value})

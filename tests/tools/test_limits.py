from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

import limits
from findings import UnusableError


@dataclass(frozen=True)
class Case:
    """A limit: its variable, what reads it, and the default in bytes of a unit."""

    variable: str
    read: Callable[[], int]
    default: int
    unit: int


CASES = [
    Case("PYPI_FILE_LIMIT_MB", limits.file_limit, 100, 1 << 20),
    Case("PYPI_PROJECT_QUOTA_GB", limits.quota, 10, 1 << 30),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.variable)
def test_a_limit_is_what_was_granted_or_the_default(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(case.variable, raising=False)
    assert case.read() == case.default * case.unit
    # What the hosting service makes of a variable that nobody set.
    monkeypatch.setenv(case.variable, "")
    assert case.read() == case.default * case.unit
    monkeypatch.setenv(case.variable, "3")
    assert case.read() == 3 * case.unit


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.variable)
@pytest.mark.parametrize("bad", ["0", "-1", "1.5", "many", " ", "1e3"])
def test_a_limit_that_is_no_whole_number_is_an_error(
    bad: str, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(case.variable, bad)
    with pytest.raises(UnusableError, match=f"{case.variable} must be a positive integer"):
        case.read()

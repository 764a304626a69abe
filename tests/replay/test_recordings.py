"""Every recording in the repository, bit for bit through the public API."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from mmaemu.recordings import Record, load, read_folder
from mmaemu.replay import replay

FOLDERS = sorted(
    path.parent for path in (Path(__file__).parents[1] / "recordings").glob("*/provenance.json")
)


@cache
def by_recording(folder: Path) -> dict[tuple[str, str], list[Record]]:
    """The records of a platform by their type and recording."""
    found = defaultdict(list)
    for record in read_folder(folder):
        found[type(record).__name__, record.recording].append(record)
    return dict(found)


def runs() -> list[tuple[Path, tuple[str, str]]]:
    return [(folder, key) for folder in FOLDERS for key in by_recording(folder)]


def differences(records: list[Record]) -> list[str]:
    compared = [replay(record) for record in records]
    return [
        f"{result.id}: {result.differing} of {result.values} differ, expected {result.expected}, "
        f"got {result.got}: {result.detail}"
        for result in compared
        if not result.equal
    ]


@pytest.mark.parametrize(
    ("folder", "key"),
    runs(),
    ids=lambda value: value.name if isinstance(value, Path) else "-".join(value),
)
def test_every_recorded_bit_is_equal(folder: Path, key: tuple[str, str]) -> None:
    records = by_recording(folder)[key]
    assert records
    assert differences(records) == []


def test_every_shipped_record_is_equal() -> None:
    records = load()
    kinds = {type(record).__name__ for record in records}
    assert kinds == {"MmaRecord", "GemmRecord"}
    assert differences(records) == []

"""The exporter of recordings: deterministic, complete, and the inverse of the reader."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from export import export_recordings as exporter
from files import ROOT
from findings import UnusableError
from mmaemu.recordings import Record, read_folder, storage

WHOLE = ROOT / "tests" / "recordings" / "rtx4060"
SHIPPED = ROOT / "mmaemu" / "recordings" / "data" / "rtx4060"


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return read_folder(WHOLE)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def fields(record: Record) -> dict[str, object]:
    """A record as comparable values."""
    values = {name: getattr(record, name) for name in record.__slots__}
    return {
        name: (value.dtype.str, value.shape, value.tobytes())
        if isinstance(value, np.ndarray)
        else value
        for name, value in values.items()
    }


def without_compression(files: dict[str, bytes]) -> dict[str, object]:
    """What must be equal whichever zlib compressed."""
    provenance = json.loads(files["provenance.json"])
    provenance["files"].pop("arrays.npz")
    texts = {name: data for name, data in files.items() if name.endswith((".csv", "calls.json"))}
    return {**texts, "provenance": provenance}


def test_the_committed_folders_are_what_the_exporter_writes(records: list[Record]) -> None:
    whole = exporter.export("rtx4060", records)
    assert without_compression(whole) == without_compression(contents(WHOLE))
    shipped = exporter.export("rtx4060", exporter.shipped(records))
    assert without_compression(shipped) == without_compression(contents(SHIPPED))


def test_two_exports_are_byte_identical(records: list[Record]) -> None:
    some = exporter.shipped(records)
    assert exporter.export("rtx4060", some) == exporter.export("rtx4060", some)


def test_reading_gives_back_what_was_written(records: list[Record], tmp_path: Path) -> None:
    some = [*exporter.shipped(records), *records[-50:]]
    folder = tmp_path / "rtx4060"
    folder.mkdir()
    for name, data in exporter.export("rtx4060", some).items():
        (folder / name).write_bytes(data)
    assert [fields(record) for record in read_folder(folder)] == [fields(item) for item in some]


def test_what_is_shipped_covers_each_kind_and_is_small(records: list[Record]) -> None:
    shipped = exporter.shipped(records)
    assert sum(len(data) for data in contents(SHIPPED).values()) < 400_000
    labels = {record.id for record in shipped}
    assert {
        "evo2.evo2_1b_w2k/call00/acc",
        "evo2.evo2_1b_w2k/call00/y_native",
        "evo2.evo2_1b_w2k/call00/y_te",
    } <= labels


def test_an_unknown_platform_is_refused() -> None:
    with pytest.raises(UnusableError, match="add them to PLATFORMS"):
        exporter.export("b300", [])


def test_recorded_arrays_cannot_be_written_to(records: list[Record]) -> None:
    with pytest.raises(ValueError, match="read-only"):
        records[0].a[...] = 0  # type: ignore[index]


@pytest.mark.parametrize("dtype", storage.DTYPES)
def test_byte_planes_are_little_endian_and_lossless(dtype: str) -> None:
    elements = np.arange(1, 1000, dtype=dtype)
    planes = storage.split_planes(elements)
    assert planes.dtype == np.uint8
    assert planes.shape == (elements.itemsize, elements.size)
    assert planes[0, 0] == 1
    assert np.array_equal(storage.join_planes(planes), elements)
    swapped = elements.astype(elements.dtype.newbyteorder(">"))
    assert np.array_equal(storage.split_planes(swapped), planes)

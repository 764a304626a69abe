"""Every recording through the CUDA backend with the frozen fatbins, on a FAKE driver.

From scaled_mm over selection and loader to the launch all is the shipped path; the kernels that the
fake launches are the shipped sources compiled for the host. t1 takes some records of every
recording; the host part of t3 takes all of them, but for the twelve largest recordings, of which it
takes an even spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from cuda_driver import FakeCuda
from mmaemu.backends.cuda import fatbins
from mmaemu.recordings import MmaRecord, Record, load, read_folder
from mmaemu.replay import replay

FOLDERS = sorted(
    path.parent for path in (Path(__file__).parents[1] / "recordings").glob("*/provenance.json")
)
MODULES = ("v1", "h1", "v4", "h4")
TILE = 64
PRODUCTS = 3 << 20
"""Products for one recording in t1; at least one record is taken."""
RECORDS = 12
MORE_PRODUCTS = 1 << 28
"""Products for one recording in t3: some twenty seconds."""


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache for all tests, so that each kernel is tested once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def gpu(cuda: FakeCuda, verdicts: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """A fake GPU that loads the frozen fatbins of the package and nothing else.

    Between two freezes they may be older than the sources; that is a matter of other tests.
    """
    monkeypatch.setattr(fatbins, "_check_sources", lambda *_: None)
    monkeypatch.setenv("MMAEMU_CACHE_DIR", str(verdicts))
    monkeypatch.setenv("MMAEMU_NVRTC_PATH", "/nowhere/libnvrtc.so")
    cuda.run_on_host(*MODULES)
    return cuda


@cache
def gemms(folder: Path) -> dict[str, list[Record]]:
    """The records that a backend computes, by recording."""
    found: dict[str, list[Record]] = {}
    for record in read_folder(folder):
        if not isinstance(record, MmaRecord):
            found.setdefault(record.recording, []).append(record)
    return found


def products(record: Record) -> int:
    """Products that whole tiles of a record have."""
    if isinstance(record, MmaRecord) or record.a is None or record.b is None:
        return TILE**3
    rows, columns = (-(-len(side) // TILE) * TILE for side in (record.a, record.b))
    return rows * columns * int(record.a.shape[1])


def some(records: Sequence[Record]) -> list[Record]:
    """The records spread over a recording that together are not too large."""
    return spread(records[:: max(1, len(records) // RECORDS)], PRODUCTS)


def spread(records: Sequence[Record], limit: int) -> list[Record]:
    """All records if they have so few products, else as many as fit, from all over them."""
    count = sum(map(products, records)) // limit + 1
    taken: list[Record] = []
    left = limit
    for record in records[::count]:
        left -= products(record)
        if left >= 0 or not taken:
            taken.append(record)
    return taken


def check(records: Sequence[Record], backend: str) -> None:
    compared = [replay(record, backend=backend) for record in records]
    assert [result for result in compared if not result.equal] == []


def runs() -> list[tuple[Path, str]]:
    return [(folder, key) for folder in FOLDERS for key in gemms(folder)]


EVERY = pytest.mark.parametrize(
    ("folder", "key"), runs(), ids=lambda value: value.name if isinstance(value, Path) else value
)


@EVERY
def test_some_records_of_every_recording(gpu: FakeCuda, folder: Path, key: str) -> None:
    check(some(gemms(folder)[key]), "cuda")
    # Whatever was launched came from the package's own fatbins.
    assert len(gpu.log("cuModuleLoadData")) <= len(MODULES)


@pytest.mark.t3
@pytest.mark.parametrize("module", ["v4", "v1"])
@EVERY
def test_the_records_of_every_recording(gpu: FakeCuda, folder: Path, key: str, module: str) -> None:
    check(spread(gemms(folder)[key], MORE_PRODUCTS), f"cuda:{module}")
    assert len(gpu.log("cuModuleLoadData")) <= 1


def test_the_shipped_records_with_the_shipped_fatbins(gpu: FakeCuda) -> None:
    records = [record for record in load() if not isinstance(record, MmaRecord)]
    check(some(records), "cuda")
    assert gpu.log("cuLaunchKernel")
    assert {each[2]["name"] for each in gpu.log("cuLaunchKernel")} == {"mmaemu_v4"}
    assert (fatbins.BIN / fatbins.MANIFEST).is_file()

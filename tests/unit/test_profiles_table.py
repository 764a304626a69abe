from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export import export_tables
from mmaemu import _settings
from mmaemu.bindings.algoconfig import AlgoConfig
from mmaemu.errors import DataIntegrityError
from mmaemu.gemm.problem import GemmProblem
from mmaemu.gemm.splitk import UNSPLIT, SplitK
from mmaemu.profiles.table import DATA, DecisionTable, list_tables, open_table

H100 = "h100pcie/cublaslt-12.8.3.14"
RTX4060 = "rtx4060/cublaslt-12.8.3.14"
MIB = 1 << 20

Arrays = dict[str, Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of a real table, to be damaged."""
    return shutil.copytree(DATA / RTX4060, tmp_path / "table")


def sign(folder: Path) -> None:
    """Make provenance.json agree with the files, whatever they are now."""
    provenance = json.loads((folder / "provenance.json").read_bytes())
    for name, said in provenance["files"].items():
        said["sha256"] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / "provenance.json").write_text(json.dumps(provenance))


def change_arrays(folder: Path, change: Callable[[Arrays], object]) -> None:
    with np.load(folder / "decisions.npz") as archive:
        arrays = {name: archive[name].copy() for name in archive}
    change(arrays)
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)
    (folder / "decisions.npz").write_bytes(stream.getvalue())
    sign(folder)


def problem(
    M: int = 64, N: int = 64, K: int = 16384, out: str = "bfloat16", *, fast: bool = False
) -> GemmProblem:
    return GemmProblem(M, N, K, "e4m3", "e4m3", out, fast)


def read_everything(folder: Path) -> None:
    for _ in DecisionTable(folder):
        pass


def test_the_tables_of_the_package() -> None:
    assert list_tables() == [H100, RTX4060]
    assert [open_table(name).rows for name in list_tables()] == [1_767_416, 1_228_448]
    assert [open_table(name).split_rows for name in list_tables()] == [36_457, 125_980]
    assert [open_table(name).table_id for name in list_tables()] == list_tables()
    assert open_table(H100).schemes == ("contiguous",)
    assert set(open_table(RTX4060).schemes) == {"serial", "pairwise"}
    assert open_table(H100).platform["sm_count"] == 114
    assert open_table(RTX4060).workspaces == (0, MIB, 4 * MIB, 32 * MIB)


@pytest.mark.parametrize("name", [H100, RTX4060])
def test_the_counts_of_a_table_are_those_of_its_rows(name: str) -> None:
    table = open_table(name)
    sizes = [(len(shapes), int((configs[:, 0] > 1).sum())) for _, _, shapes, configs in table]
    assert tuple(map(sum, zip(*sizes, strict=True))) == (table.rows, table.split_rows)


@pytest.mark.parametrize("name", [H100, RTX4060])
def test_a_table_says_what_was_published(name: str) -> None:
    """Every row and every other fact, against the recordings that the table was made from."""
    published = _settings.path("TABLES_DIR")
    if published is None:
        pytest.skip("MMAEMU_TABLES_DIR does not name the published recordings")
    source = export_tables.read_source(published / f"{name.partition('/')[0]}.npz")
    expected = export_tables.merge([source.rows])
    found = export_tables.decode(open_table(name))
    assert found.settings == expected.settings
    assert np.array_equal(found.values, expected.values)
    assert export_tables.about_table(open_table(name)) == source.about
    provenance = json.loads((DATA / name / "provenance.json").read_bytes())
    assert provenance["sources"] == [source.provenance]


@pytest.mark.parametrize("name", [H100, RTX4060])
def test_lookup_agrees_with_decoding(name: str) -> None:
    """The scalar path, on a sample of every setting and workspace."""
    table = open_table(name)
    random = np.random.default_rng(0)
    for workspace, setting, shapes, configs in table:
        for index in random.integers(0, len(shapes), 20).tolist():
            M, N, K = shapes[index].tolist()
            found = table.find(GemmProblem(M, N, K, *setting), workspace)
            assert found == AlgoConfig(*configs[index].tolist())


def test_splits() -> None:
    assert open_table(RTX4060).split_of(AlgoConfig(0, 1, 0, 0)) == UNSPLIT
    assert open_table(RTX4060).split_of(AlgoConfig(1, 1, 0, 0)) == UNSPLIT
    assert open_table(RTX4060).split_of(AlgoConfig(4, 0, 0, 0)) == SplitK(4, "serial")
    assert open_table(RTX4060).split_of(AlgoConfig(4, 1, 0, 0)) == SplitK(4, "pairwise")
    assert open_table(RTX4060).split_of(AlgoConfig(4, 2, 0, 0)) == SplitK(4, "serial")
    assert open_table(RTX4060).split_of(AlgoConfig(4, 9, 0, 0)) == SplitK(4, "serial")
    assert open_table(H100).split_of(AlgoConfig(4, 5, 0, 0)) == SplitK(4, "contiguous")


@pytest.mark.parametrize(
    ("asked", "workspace", "reason"),
    [
        (problem(), 2 * MIB, "workspace of 2097152 B"),
        (problem(out="float8_e5m2"), MIB, "e4m3xe4m3 -> float8_e5m2, slow accumulation"),
        (problem(M=63, N=63), MIB, "shape was not recorded"),
        # A recorded shape of another setting.
        (GemmProblem(1, 16, 192, "e4m3", "e5m2", "float32", False), MIB, "shape was not recorded"),
        (problem(M=65537, N=65536, K=65536), MIB, "shape was not recorded"),
        (problem(M=1 << 80, N=1 << 80, K=1 << 80), MIB, "shape was not recorded"),
    ],
)
def test_what_is_not_recorded_is_not_found(asked: GemmProblem, workspace: int, reason: str) -> None:
    answer = open_table(RTX4060).find(asked, workspace)
    assert isinstance(answer, str)
    assert reason in answer


def test_unknown_table() -> None:
    with pytest.raises(LookupError, match=f"no split-K table 'nowhere'.*{H100}"):
        open_table("nowhere")


def test_a_table_of_ones_own_is_named_by_its_path(folder: Path) -> None:
    assert open_table(str(folder)).find(problem(), MIB) == AlgoConfig(12, 1, 35, 13)


@pytest.mark.parametrize("name", ["decisions.npz", "table.json"])
def test_a_changed_byte_is_refused(folder: Path, name: str) -> None:
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(DataIntegrityError, match=f"sha256 of {name} is"):
        DecisionTable(folder)


@pytest.mark.parametrize("name", ["decisions.npz", "table.json", "provenance.json"])
@pytest.mark.parametrize("kept", [0, 100])
def test_a_truncated_file_is_refused(folder: Path, name: str, kept: int) -> None:
    (folder / name).write_bytes((folder / name).read_bytes()[:kept])
    with pytest.raises(DataIntegrityError):
        DecisionTable(folder)


@pytest.mark.parametrize("name", ["decisions.npz", "table.json"])
@pytest.mark.parametrize("kept", [0, 100, -2000])
def test_a_truncated_file_is_refused_even_if_signed(folder: Path, name: str, kept: int) -> None:
    (folder / name).write_bytes((folder / name).read_bytes()[:kept])
    sign(folder)
    with pytest.raises(DataIntegrityError):
        read_everything(folder)


@pytest.mark.parametrize("name", ["decisions.npz", "table.json", "provenance.json"])
def test_a_missing_file_is_refused(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(DataIntegrityError, match=name):
        DecisionTable(folder)


@pytest.mark.parametrize("name", ["shapes", "configs", f"codes_{MIB}"])
def test_a_byte_swapped_array_is_refused(folder: Path, name: str) -> None:
    def swap(arrays: Arrays) -> None:
        arrays[name] = arrays[name].astype(arrays[name].dtype.newbyteorder(">"))

    change_arrays(folder, swap)
    with pytest.raises(DataIntegrityError, match=f"{name} must be <"):
        read_everything(folder)


@pytest.mark.parametrize("name", ["shapes", f"codes_{MIB}"])
def test_swapped_bytes_under_the_right_dtype_are_refused(folder: Path, name: str) -> None:
    change_arrays(folder, lambda arrays: arrays[name].byteswap(inplace=True))
    with pytest.raises(DataIntegrityError):
        read_everything(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: arrays.pop("configs"),
        lambda arrays: arrays.pop(f"codes_{MIB}"),
        lambda arrays: arrays.update(shapes=arrays["shapes"][::-1]),
        lambda arrays: arrays.update(shapes=np.repeat(arrays["shapes"][:1], 18497, axis=0)),
        lambda arrays: arrays.update(shapes=arrays["shapes"] * 0),
        lambda arrays: arrays.update(shapes=arrays["shapes"].astype("<i8")),
        lambda arrays: arrays.update(shapes=arrays["shapes"][:-1]),
        lambda arrays: arrays.update(configs=arrays["configs"][:, :3]),
        lambda arrays: arrays.update(configs=arrays["configs"][:5]),
        lambda arrays: arrays.update({f"codes_{MIB}": arrays[f"codes_{MIB}"][:, :5]}),
    ],
)
def test_arrays_that_are_not_in_the_form_are_refused(
    folder: Path, change: Callable[[Arrays], object]
) -> None:
    change_arrays(folder, change)
    with pytest.raises(DataIntegrityError, match="not a split-K table in the form"):
        read_everything(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "another/1"},
        {"settings": [["e4m3"]]},
        {"replayed": []},
        {"workspaces": 5},
        {"envelope": {}},
        {"replayed": [{"nonsense": [2]}] * 28},
    ],
)
def test_a_description_that_is_not_in_the_form_is_refused(
    folder: Path, change: dict[str, Any]
) -> None:
    document = json.loads((folder / "table.json").read_bytes())
    (folder / "table.json").write_text(json.dumps({**document, **change}))
    sign(folder)
    with pytest.raises(DataIntegrityError, match="not a split-K table in the form"):
        DecisionTable(folder)


def test_a_damaged_table_answers_no_call(folder: Path) -> None:
    change_arrays(folder, lambda arrays: arrays.pop(f"codes_{MIB}"))
    with pytest.raises(DataIntegrityError, match=f"codes_{MIB}"):
        DecisionTable(folder).find(problem(), MIB)


def test_threads_read_the_same(folder: Path) -> None:
    table = DecisionTable(folder)
    answers: list[object] = []
    threads = [
        threading.Thread(target=lambda: answers.append(table.find(problem(), MIB)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [AlgoConfig(12, 1, 35, 13)] * 8


@pytest.mark.parametrize("name", [H100, RTX4060])
def test_a_loaded_table_stays_below_24_megabytes(name: str) -> None:
    tracemalloc.start()
    try:
        table = DecisionTable(DATA / name)
        for workspace in table.workspaces:
            table.codes(workspace)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 24e6


@pytest.mark.parametrize("name", [H100, RTX4060])
def test_a_table_is_small_on_disk(name: str) -> None:
    assert sum(path.stat().st_size for path in (DATA / name).iterdir()) < 300_000


def test_finding_a_split_needs_no_torch_and_reads_its_table_once() -> None:
    program = """
import sys
from mmaemu import resolve_splitk

def find(shape, profile):
    del opened[:]
    resolve_splitk(*shape, a_dtype="e4m3", b_dtype="e4m3", out_dtype="bfloat16",
                   use_fast_accum=False, profile=profile)
    return any("decisions.npz" in name for name in opened), len(opened)

opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
print([find((64, 5760, 1920), "hopper")[0], find((64, 64, 16384), "ada")[0]])
find((65537, 65536, 65536), "hopper")
print([find((64, 5760, 1920), "hopper"), find((64, 64, 16384), "ada"),
       find((65537, 65536, 65536), "hopper"), find((128, 5760, 1920), "hopper")])
print("torch" in sys.modules)
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["[True, True]", str([(False, 0)] * 4), "False"]

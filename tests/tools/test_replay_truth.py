"""T2 on small folders: what is equal, what differs, what is not understood."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mmaemu
import replay_truth
from files import sha256_of_tree
from mmaemu.formats import FORMATS
from truth import Platform, Unreadable, read_platform

ONE = 0x3F800000
SEEDED = np.random.default_rng(8)
A = SEEDED.integers(0, 0x60, (16, 512), np.uint8)
B = SEEDED.integers(0, 0x60, (32, 512), np.uint8)


def emulated(profile: str, splitk: tuple[int, str] | int) -> np.ndarray[Any, Any]:
    accumulator = mmaemu.accumulate(
        torch.tensor(A, dtype=torch.uint8, device="cpu").view(torch.float8_e4m3fn),
        torch.tensor(B, dtype=torch.uint8, device="cpu").view(torch.float8_e4m3fn),
        use_fast_accum=True,
        profile=profile,
        splitk=splitk,
    )
    return accumulator.view(torch.int32).numpy().view(np.uint32)


def gemm_row(**changes: Any) -> dict[str, Any]:
    row = {
        "id": "made.gemm/0",
        "op": "scaled_mm",
        "a": "a",
        "b": "b",
        "out": "out",
        "fmt_a": "e4m3",
        "fmt_b": "e4m3",
        "out_dtype": "float32",
        "use_fast_accum": True,
        "scale_a_bits": ONE,
        "scale_b_bits": ONE,
        "split": [1, "none"],
    }
    return {key: value for key, value in {**row, **changes}.items() if value is not None}


def write(folder: Path, rows: list[dict[str, Any]], arrays: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gemm.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    save(folder, arrays)


def save(folder: Path, arrays: Mapping[str, Any]) -> None:
    np.savez(folder / "arrays.npz", **arrays)


@pytest.fixture
def truth(tmp_path: Path) -> Path:
    """A folder with one H100 row of a split GEMM and one RTX 4060 row."""
    folder = tmp_path / "truth"
    rows = [gemm_row(split=[2, "contiguous"], profile="hopper", gpu="H100 PCIe", workspace=1)]
    write(
        folder / "h100pcie",
        rows,
        {"a": A, "b": B, "out": emulated("hopper", (2, "contiguous"))},
    )
    write(folder / "rtx4060", [gemm_row()], {"a": A, "b": B, "out": emulated("ada", 1)})
    return folder


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where reports go; no committed report is in sight."""
    monkeypatch.setattr(replay_truth, "COMMITTED", tmp_path / "docs" / "validation_logs")
    return tmp_path / "report.json"


def run(truth: Path, report: Path, *more: str) -> tuple[int, dict[str, Any]]:
    code = replay_truth.main([str(truth), "--report", str(report), *more])
    document = json.loads(report.read_text()) if report.exists() else {}
    return code, document


def test_equal_bits_pass(truth: Path, report: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sha256_of_tree(truth)
    code, document = run(truth, report)
    assert code == 0
    assert document["totals"] == {
        "rows": 2,
        "equal": 2,
        "not_run": 0,
        "values": 1024,
        "differing": 0,
    }
    assert document["schema"] == "mmaemu.replay/1"
    assert document["files"] == before == sha256_of_tree(truth)
    assert document["unchanged"]
    assert document["ignored_fields"] == {
        "h100pcie": {"gemm.gpu": 1, "gemm.workspace": 1},
        "rtx4060": {},
    }
    assert list(document) == sorted(document)
    shown = capsys.readouterr().out
    assert "h100pcie" in shown
    assert "1024 values of 2 rows, 0 differ, 0 rows not run" in shown


def test_the_profile_comes_from_the_folder_where_the_row_names_none(truth: Path) -> None:
    (record,) = read_platform(truth / "rtx4060").rows
    assert not isinstance(record, Unreadable)
    assert getattr(record, "profile", None) == "ada"


def test_a_flipped_bit_fails(truth: Path, report: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = emulated("hopper", (2, "contiguous")).copy()
    out[3, 5] ^= 0x400
    write(truth / "h100pcie", [gemm_row(split=[2, "contiguous"])], {"a": A, "b": B, "out": out})
    code, document = run(truth, report)
    assert code == 1
    assert document["totals"]["differing"] == 1
    shown = capsys.readouterr().out
    assert "DIFFERS" in shown
    assert f"[3, 5]: recorded 0x{int(out[3, 5]):08X}" in shown


NOT_UNDERSTOOD: Mapping[str, dict[str, Any]] = {
    "no split": {"split": None},
    "an unknown scheme": {"split": [2, "diagonal"]},
    "an unknown operation": {"op": "grouped_mm"},
    "an unknown argument": {"call": {"swizzle": True}},
    "a missing array": {"out": "nowhere"},
    "neither value nor error": {"out": None},
    "an unknown format": {"fmt_a": "e6m1"},
    "an unknown profile": {"profile": "a100"},
    "an unknown output": {"out_dtype": "float12"},
    "no operands": {"a": None},
}


@pytest.mark.parametrize("changes", NOT_UNDERSTOOD.values(), ids=NOT_UNDERSTOOD.keys())
def test_a_row_that_is_not_understood_is_never_a_pass(
    truth: Path, report: Path, changes: dict[str, Any]
) -> None:
    rows = [gemm_row(), gemm_row(id="made.gemm/1", **changes)]
    write(truth / "rtx4060", rows, {"a": A, "b": B, "out": emulated("ada", 1)})
    code, document = run(truth, report)
    assert code == 3
    assert document["totals"] | {"values": 0} == {
        "rows": 3,
        "equal": 2,
        "not_run": 1,
        "values": 0,
        "differing": 0,
    }


def test_a_folder_of_an_unknown_platform_is_not_a_pass(truth: Path, report: Path) -> None:
    (truth / "h100pcie").rename(truth / "b300")
    assert run(truth, report)[0] == 0, "the row names its profile"
    write(truth / "b300", [gemm_row()], {"a": A, "b": B, "out": emulated("ada", 1)})
    assert run(truth, report)[0] == 3


def test_recorded_errors_are_compared_by_exact_class(truth: Path, report: Path) -> None:
    row = gemm_row(
        out=None, a=None, b=None, error="ReferenceRejectsError", zero_operands_MNK=[16, 16, 17]
    )
    write(truth / "rtx4060", [row], {"a": A})
    assert run(truth, report)[0] == 0
    write(truth / "rtx4060", [{**row, "error": "RuntimeError"}], {"a": A})
    assert run(truth, report)[0] == 1


def test_platforms_and_rows_can_be_chosen(truth: Path, report: Path) -> None:
    code, document = run(truth, report, "--platform", "h100pcie")
    assert (code, document["totals"]["rows"]) == (0, 1)
    assert run(truth, report, "--platform", "b300")[0] == 2
    assert run(truth, report, "--only", "nothing")[0] == 3


def test_missing_recordings_are_inconclusive_and_a_missing_folder_is_an_error(
    tmp_path: Path, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MMAEMU_TRUTH_DIR", raising=False)
    assert replay_truth.main(["--report", str(report)]) == 3
    assert run(tmp_path / "nowhere", report)[0] == 2
    (tmp_path / "empty").mkdir()
    assert run(tmp_path / "empty", report)[0] == 3


def test_a_broken_file_could_not_run(truth: Path, report: Path) -> None:
    (truth / "rtx4060" / "gemm.jsonl").write_text("{\n")
    assert run(truth, report)[0] == 2


def test_a_folder_that_changes_meanwhile_fails(
    truth: Path, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def touching(folder: Path) -> Platform:
        (truth / "note.txt").write_text("new")
        return read_platform(folder)

    monkeypatch.setattr(replay_truth, "read_platform", touching)
    code, document = run(truth, report)
    assert (code, document["unchanged"]) == (1, False)


def test_the_last_committed_report_is_compared(
    truth: Path, report: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(truth, report)
    committed = replay_truth.COMMITTED / "2026-11-30" / "t2" / "t2-report.json"
    committed.parent.mkdir(parents=True)
    committed.write_bytes(report.read_bytes())
    assert run(truth, report)[0] == 0
    earlier = json.loads(committed.read_text())
    earlier["recordings"][0]["equal"] += 1
    earlier["recordings"].append({**earlier["recordings"][1], "recording": "made.lost"})
    committed.write_text(json.dumps(earlier))
    assert run(truth, report)[0] == 1
    shown = capsys.readouterr().out
    assert "2 rows were equal, now 1" in shown
    assert "made.lost: replayed earlier, not now" in shown


def test_a_report_of_other_files_is_not_compared(truth: Path, report: Path) -> None:
    _, document = run(truth, report)
    earlier = json.loads(json.dumps(document))
    earlier["recordings"][0]["equal"] += 1
    assert replay_truth.compare(document, earlier)
    earlier["files"] = dict.fromkeys(earlier["files"], "0")
    assert replay_truth.compare(document, earlier) == []


def test_the_report_can_be_printed(
    truth: Path, report: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(truth, report, "--json")[0] == 0
    assert json.loads(capsys.readouterr().out) == json.loads(report.read_text())


def toolbox(folder: Path, **changes: Any) -> None:
    """One set whose three outputs follow from exact products: 2 * 0.5 + c."""
    folder.mkdir(parents=True)
    a, b = np.zeros((3, 32), np.float32), np.zeros((3, 32), np.float32)
    a[:, 0], b[:, 0] = 2, 0.5
    c = np.array([0.25, 0.5, 1], np.float32)
    entry = {
        "gpu": "H100",
        "fmt": "e4m3",
        "out": "fp32",
        "K": 32,
        "instruction": "wgmma",
        "c_used": False,
        "arrays": {"a": "a", "b": "b", "c": "c", "d": "d"},
    }
    (folder / "sets.json").write_text(json.dumps([{**entry, **changes}]))
    d = 1 + c * bool({**entry, **changes}["c_used"])
    arrays = {"a": a, "b": b, "c": c, "d": d.astype(np.float32)}
    save(folder, {key: value.view(np.uint32) for key, value in arrays.items()})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"gpu": "B200", "instruction": "mma.sync", "c_used": True},
        {"gpu": "Ada", "instruction": "mma.sync", "out": "fp16", "c_used": True},
        {"gpu": "V100", "instruction": "mma.sync", "fmt": "fp16", "c_used": True},
    ],
)
def test_a_toolbox_set_is_replayed(tmp_path: Path, report: Path, changes: dict[str, Any]) -> None:
    toolbox(tmp_path / "truth" / "toolbox", **changes)
    code, document = run(tmp_path / "truth", report)
    assert code == 0
    assert document["totals"]["values"] == 3


def test_a_toolbox_set_of_an_unknown_gpu_is_not_a_pass(tmp_path: Path, report: Path) -> None:
    toolbox(tmp_path / "truth" / "toolbox", gpu="Z9000")
    code, document = run(tmp_path / "truth", report)
    assert code == 3
    assert "Z9000" in document["recordings"][0]["examples"][0]


def test_a_value_outside_of_the_format_is_not_understood(tmp_path: Path) -> None:
    toolbox(tmp_path / "toolbox", fmt="e5m2")
    folder = tmp_path / "toolbox"
    with np.load(folder / "arrays.npz") as stored:
        arrays = dict(stored)
    arrays["a"] = np.full((3, 32), FORMATS["e4m3"].decode(np.array([0x39]))[0], np.float32).view(
        np.uint32
    )
    save(folder, arrays)
    (row,) = read_platform(folder).rows
    assert isinstance(row, Unreadable)
    assert "none of the format e5m2" in row.reason

"""How bench/run.py judges what it measured; it measures nothing here."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mmaemu_bench", ROOT / "bench" / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def judged(bench: ModuleType, to_mm: float | None) -> tuple[int, Any]:
    report = bench.Report({})
    if to_mm is not None:
        report.rows = [
            bench.Row("cpu:x", model, (1, 2, 3), 1.0, 5.0, value)
            for model, value in (("ada", to_mm), ("hopper", to_mm / 2))
        ]
    return bench.judge(report, CPU), report


@pytest.fixture
def marks(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"name": "a", "what": "to_mm", "backend": "cpu:x", "most": 2.0, "goal": 1.5},
        {"name": "b", "what": "to_mm", "backend": "cuda:x", "most": 0.1},
    ]
    limits = [{"backend": "cpu:x", "model": "ada", "products_per_cycle": 10.0}]
    monkeypatch.setattr(bench, "TABLE", {"marks": rows, "limits": limits})


@pytest.mark.usefixtures("marks")
@pytest.mark.parametrize(
    ("to_mm", "code", "passed", "goals"),
    [(1.4, 0, 1, 1), (1.9, 0, 1, 0), (2.0, 0, 1, 0), (2.1, 1, 0, 0), (None, 3, 0, 0)],
)
def test_a_threshold_fails_and_a_goal_is_reported(
    bench: ModuleType, to_mm: float | None, code: int, passed: int, goals: int
) -> None:
    result, report = judged(bench, to_mm)
    counts = bench.counts(report)
    assert (result, counts["passed"], counts["goals_reached"]) == (code, passed, goals)
    assert counts["tests"] == 1, "the mark of the other device takes no part"
    assert counts["tests"] == counts["passed"] + counts["failures"] + counts["skipped"]


@pytest.mark.usefixtures("marks")
def test_the_limit_is_the_clock_times_what_the_instructions_allow(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "clock_hertz", lambda _: 2e9)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert bench.limit_of("cpu:x", "ada", CPU) == 60.0
    assert bench.limit_of("cpu:x", "hopper", CPU) is None
    row = bench.Row("cpu:x", "ada", (64, 2, 3), 1.0, 15.0, 1.0, limit=60.0)
    report = bench.Report({}, rows=[row])
    assert bench.figures(report)["x"]["ada"]["m64"] == {"rate": 15.0, "to_mm": 1.0, "share": 25}
    monkeypatch.setattr(bench, "clock_hertz", lambda _: None)
    assert bench.limit_of("cpu:x", "ada", CPU) is None


def test_our_marks_are_complete(bench: ModuleType) -> None:
    for mark in bench.TABLE["marks"]:
        bounds = [key for key in ("most", "least") if key in mark]
        assert len(bounds) == 1
        # A goal is at least as hard to reach as the threshold.
        goal, bound = mark.get("goal", mark[bounds[0]]), mark[bounds[0]]
        assert goal <= bound if bounds == ["most"] else goal >= bound


@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what happens without a GPU")
def test_a_device_that_is_not_there_was_not_measured(bench: ModuleType, tmp_path: Path) -> None:
    assert bench.main(["--device", "cuda", "--out", str(tmp_path), "--name", "x"]) == 3
    assert json.loads((tmp_path / "x.json").read_text())["reason"] == "torch sees no CUDA device"

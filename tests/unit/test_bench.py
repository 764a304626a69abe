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


@pytest.mark.parametrize(
    ("seconds", "value", "verdict"),
    [
        ({"split": 0.002}, 2.0, "met"),
        ({"split": 0.0021}, 2.1, "missed"),
        ({}, None, "not measured"),
    ],
)
def test_a_call_is_judged_by_its_time(
    bench: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    seconds: dict[str, float],
    value: float | None,
    verdict: str,
) -> None:
    mark = {"name": "a", "what": "milliseconds", "call": "split", "most": 2.0}
    monkeypatch.setattr(bench, "TABLE", {"marks": [mark]})
    report = bench.Report({}, small=seconds)
    bench.judge(report, CPU)
    assert [(each["value"], each["verdict"]) for each in report.marks] == [
        (pytest.approx(value), verdict)
    ]


def test_what_comes_before_a_gemm_is_measured(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "STARTS", 2)
    report = bench.Report({})
    bench.measure_start(report)
    assert set(report.small) == {"import", "first_split", "split"}
    assert 0 < report.small["import"] < report.small["first_split"]
    assert report.small["split"] > 0


def test_our_marks_are_complete(bench: ModuleType) -> None:
    for mark in bench.TABLE["marks"]:
        assert mark["what"] not in bench.UNITS or "call" in mark
        bounds = [key for key in ("most", "least") if key in mark]
        assert len(bounds) == 1
        # A goal is at least as hard to reach as the threshold.
        goal, bound = mark.get("goal", mark[bounds[0]]), mark[bounds[0]]
        assert goal <= bound if bounds == ["most"] else goal >= bound


@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what happens without a GPU")
def test_a_device_that_is_not_there_was_not_measured(bench: ModuleType, tmp_path: Path) -> None:
    assert bench.main(["--device", "cuda", "--out", str(tmp_path), "--name", "x"]) == 3
    assert json.loads((tmp_path / "x.json").read_text())["reason"] == "torch sees no CUDA device"


def test_another_installation_is_measured_by_its_interpreter(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "SHAPES", ((16, 64, 128),))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    report = bench.Report({})
    bench.measure_peer(report, sys.executable)
    assert [(peer["shape"], peer["rate"] > 0) for peer in report.peers] == [((16, 64, 16), True)]
    monkeypatch.setattr(bench, "PEER", "raise SystemExit('no emulator here')")
    bench.measure_peer(report, sys.executable)
    assert len(report.peers) == 1
    assert "peer: not measured: ['no emulator here']" in capsys.readouterr().out


def test_the_chart_is_a_picture_of_the_numbers_alone(bench: ModuleType, tmp_path: Path) -> None:
    rows = [
        bench.Row("cpu:x", "hopper", shape, 1.0, rate, 1.0, limit=9.0)
        for shape, rate in zip(bench.SHAPES, (1.0, 2.0, 3.0), strict=True)
    ]
    pictures = []
    for name, few in (("a.png", rows), ("b.png", rows), ("c.png", [*rows[:2], rows[0]])):
        bench.draw(bench.Report({"threads": 1, "cpu": "a CPU"}, rows=few), tmp_path / name)
        pictures.append((tmp_path / name).read_bytes())
    assert pictures[0].startswith(b"\x89PNG")
    assert pictures[0] == pictures[1] != pictures[2]


def test_wide_models_have_marks_of_their_own_and_torch_mm_scales_for_comparison(
    bench: ModuleType,
) -> None:
    report = bench.Report({})
    report.rows = [
        bench.Row("cpu:x", model, (1, 2, 3), 1.0, 5.0, 1.0, to_reference=value)
        for model, value in (("ada", 5.0), (bench.WIDE_MODELS[0], 30.0), (bench.WIDE_MODELS[1], 20))
    ]
    report.scaling = {
        "torch.mm": {"speedup": 1.2, "cpu_time": 1.0},
        "cpu:x": {"speedup": 1.9, "cpu_time": 1.1},
    }
    mark = {"what": "to_reference", "backend": "cpu:x", "least": 1.0}
    assert bench._value(report, mark) == 5.0
    assert bench._value(report, {**mark, "models": "wide"}) == 20
    assert bench._value(report, {"what": "speedup"}) == 1.9
    assert bench.figures(report)["torch_mm"]["threads"] == {"speedup": 1.2, "cpu_time": 1.0}

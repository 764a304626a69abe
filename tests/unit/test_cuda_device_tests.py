"""The device part of T3 rehearsed on a FAKE driver: its own tests run, and fail for a wrong bit."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from cuda_driver import FakeCuda, write_fatbins
from mmaemu.backends.base import AccumulateRequest
from mmaemu.backends.cuda import gates, launch

FILE = Path(__file__).parents[1] / "cuda" / "test_gemm_kernels.py"


@pytest.fixture
def rehearsed(cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The device tests, whose GPU is the fake one with v4 on it; its self-test is a short one."""
    spec = importlib.util.spec_from_file_location("device_tests", FILE)
    assert spec is not None
    assert spec.loader is not None
    tests = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "device_tests", tests)
    spec.loader.exec_module(tests)
    monkeypatch.setattr(tests, "CUDA", torch.device("cpu"))
    monkeypatch.setenv("MMAEMU_FATBIN_DIR", str(write_fatbins(tmp_path / "bin", "v4", "tc3")))
    every = list(gates.cases((("e4m3", "e4m3"),)))
    monkeypatch.setattr(gates, "cases", lambda _: iter(every[-3:]))
    gates.expected.cache_clear()
    cuda.run_on_host("v4")
    yield tests
    gates.expected.cache_clear()


def test_each_test_runs(rehearsed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    row = rehearsed.row_of("cuda:v4", "fatbin")
    monkeypatch.setattr(rehearsed, "PLANS", rehearsed.PLANS[3:4])
    rehearsed.test_families_plans_and_formats(row, "spread")
    edges = list(rehearsed.edges(0, 4))
    monkeypatch.setattr(rehearsed, "edges", lambda *_: iter(edges))
    rehearsed.test_sizes_at_the_edges(row, 0)
    for out_dtype in launch.OUTPUTS:
        rehearsed.test_the_fused_epilogue(row, out_dtype)
    monkeypatch.setattr(launch, "MAX_ROW_TILES", 3)
    rehearsed.test_more_rows_than_one_grid_has(row)


def test_a_wrong_bit_fails(rehearsed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    row = rehearsed.row_of("cuda:v4", "fatbin")
    right = row.backend.accumulate

    def wrong(request: AccumulateRequest, out: torch.Tensor) -> None:
        right(request, out)
        out[-1, -1] = -out[-1, -1]

    monkeypatch.setattr(row.backend, "accumulate", wrong)
    with pytest.raises(AssertionError, match="cuda:v4"):
        rehearsed.test_sizes_at_the_edges(row, 0)
    monkeypatch.setattr(launch, "MAX_ROW_TILES", 3)
    with pytest.raises(AssertionError, match="cuda:v4"):
        rehearsed.test_more_rows_than_one_grid_has(row)


def test_a_missing_binary_is_a_failure_and_a_refused_gate_is_not(
    rehearsed: Any, cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # The probes' binary is missing, and so the gates of a gated kernel do not pass.
    with pytest.raises(pytest.skip.Exception, match="probes cannot be loaded"):
        rehearsed.row_of("cuda:tc3", "fatbin")
    cuda.ordinal = 2  # Of compute capability 7.5.
    with pytest.raises(pytest.skip.Exception, match="not meant for"):
        rehearsed.row_of("cuda:v4", "fatbin")
    monkeypatch.setenv("MMAEMU_FATBIN_DIR", str(tmp_path))
    cuda.ordinal = 0
    cuda.fail("nvrtcCompileProgram", 6)
    with pytest.raises(pytest.fail.Exception, match="no manifest"):
        rehearsed.row_of("cuda:v4", "fatbin")

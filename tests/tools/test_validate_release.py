"""T7: what the report says, what counts as a pass, and that every check can fail."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import installed_checks
import mmaemu
import validate_release
from findings import FAIL, INCONCLUSIVE, PASS, UNUSABLE, UnusableError
from installed_checks import Check
from mmaemu.recordings import MmaRecord

if TYPE_CHECKING:
    from mmaemu.recordings import Record

WHEEL = "mmaemu-0.1.0-py3-none-any.whl"


def wheel(folder: Path, *members: str) -> Path:
    path = folder / WHEEL
    with zipfile.ZipFile(path, "w") as archive:
        for name in members:
            archive.writestr(name, b"x")
    return path


def test_a_wheel_says_its_version_and_its_fatbins(tmp_path: Path) -> None:
    path = wheel(tmp_path, "mmaemu/__init__.py", "mmaemu/backends/cuda/bin/v1.fatbin")
    found = validate_release.read_wheel(path)
    assert (found.name, found.version, found.fatbins) == ("mmaemu", "0.1.0", ("v1.fatbin",))


@pytest.mark.parametrize("name", ["mmaemu-0.1.0.tar.gz", "mmaemu-0.1.0-cp311-none-any.whl", WHEEL])
def test_what_is_no_wheel_of_the_project_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"no archive")
    with pytest.raises(UnusableError, match=name):
        validate_release.read_wheel(tmp_path / name)


def test_a_missing_wheel_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert validate_release.main([str(tmp_path / WHEEL)]) == UNUSABLE
    assert "build one first" in capsys.readouterr().err


def test_the_environment_lends_the_wheel_nothing(tmp_path: Path) -> None:
    compiler, plain = tmp_path / "cuda", tmp_path / "plain"
    for folder in (compiler, plain):
        folder.mkdir()
    (compiler / "nvcc").touch()
    clean = validate_release.clean_environ(
        {
            "PATH": f"{compiler}{os.pathsep}{plain}",
            "CUDA_HOME": "x",
            "PYTHONPATH": "x",
            "MMAEMU_FATBIN_DIR": "x",
            "NVCC": "x",
            "HOME": "kept",
        }
    )
    assert clean == {"PATH": str(plain), "HOME": "kept"}


@pytest.mark.parametrize(
    ("members", "allow", "status"),
    [((), False, "fail"), ((), True, "not-run"), (("bin/v1.fatbin",), False, "pass")],
)
def test_missing_fatbins_are_no_pass(
    tmp_path: Path, members: tuple[str, ...], allow: bool, status: str
) -> None:
    found = validate_release.read_wheel(wheel(tmp_path, *members))
    assert validate_release.fatbin_check(found, allow_missing=allow)["status"] == status


@pytest.mark.parametrize(
    ("states", "code"),
    [
        (("pass", "pass"), PASS),
        (("pass", "not-run"), INCONCLUSIVE),
        (("not-run", "fail"), FAIL),
        ((), INCONCLUSIVE),
    ],
)
def test_only_passes_are_a_pass(states: tuple[str, ...], code: int) -> None:
    checks = {str(number): {"status": status} for number, status in enumerate(states)}
    assert validate_release.exit_code({"checks": checks}) == code


def test_what_is_absent_stands_beside_the_checks() -> None:
    document = {
        "checks": {
            "evo2": {"status": "pass", "reason": ""},
            "hopper_gemm": {"status": "absent", "reason": "none recorded"},
        }
    }
    part = validate_release.part_of("cpu", document, {})
    assert list(part["checks"]) == ["cpu: evo2"]
    assert part["absent"] == {"cpu: hopper_gemm": "none recorded"}


def test_a_committed_report_is_never_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validate_release, "LOGS", tmp_path)
    report = {"schema": "x", "version": "0.1.0", "device": "NVIDIA GeForce RTX 4060"}
    path = validate_release.default_path(report)
    assert path.name == "0.1.0_nvidia-geforce-rtx-4060.json"
    validate_release.save(report, path)
    with pytest.raises(UnusableError, match="never replaced"):
        validate_release.save({**report, "version": "0.1.0 again"}, path)
    assert json.loads(path.read_text(encoding="utf-8")) == report


# --- the checks themselves -----------------------------------------------------------------------


def test_a_differing_bit_fails_a_check() -> None:
    check = Check()
    one = torch.ones(3, dtype=torch.float32)
    other = torch.tensor([1.0, -0.0, 1.0], dtype=torch.float32)
    check.compare(one, one, "same")
    check.compare(other, torch.tensor([1.0, 0.0, 1.0], dtype=torch.float32), "signs of zero")
    assert check.settle().status == "fail"
    assert (check.outputs, check.differing) == (6, 1)
    assert "signs of zero" in check.reason


def test_nothing_compared_is_no_pass() -> None:
    assert Check().settle().status == "not-run"


@pytest.mark.filterwarnings("ignore::mmaemu.UnverifiedSplitWarning")
def test_a_kernel_that_differs_from_the_reference_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed_checks, "SHAPES", ((3, 16, 64),))
    original = mmaemu.accumulate

    def wrong(*arguments: Any, backend: str, **options: Any) -> torch.Tensor:
        result = original(*arguments, backend=backend, **options)
        if backend == "cpu:scalar" and options["use_fast_accum"]:
            result[0, 0] += 1
        return result

    monkeypatch.setattr(mmaemu, "accumulate", wrong)
    installed_checks.gemms.cache_clear()
    found = installed_checks.kernels("cpu")
    installed_checks.gemms.cache_clear()
    assert found["kernel cpu:scalar"].status == "fail"
    others = {check.status for name, check in found.items() if name != "kernel cpu:scalar"}
    assert others <= {"pass", "absent"}


def test_evo2_needs_all_of_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    from mmaemu import recordings

    rows = recordings.load()
    some = [row for row in rows if "call10" not in row.id]
    monkeypatch.setattr(recordings, "load", lambda: some)
    check = installed_checks.evo2(None, "cpu")
    assert check.status == "not-run"


def rows_of(*rows: Record) -> Any:
    return lambda _: list(rows)


def step(d: int) -> MmaRecord:
    """One wgmma vector: 1 * 1 and 31 zero products; d = 0x3F800000 is right."""
    a = np.zeros((1, 32), np.uint8)
    a[0, 0] = 0x38
    bits = np.array([d], np.uint32)
    label = "H100/wgmma/e4m3-fp32-k32"
    zero = np.zeros(1, np.uint32)
    return MmaRecord(label, label, "toolbox", "hopper", "vector", "e4m3", "e4m3", a, a, zero, bits)


@pytest.mark.parametrize(("d", "status"), [(0x3F800000, "pass"), (0x3F800001, "fail")])
def test_wgmma_vectors_go_through_a_gemm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, d: int, status: str
) -> None:
    monkeypatch.setattr(installed_checks, "_truth_rows", rows_of(step(d)))
    assert installed_checks.wgmma(tmp_path, "cpu").status == status


def test_absent_recordings_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed_checks, "_truth_rows", rows_of())
    assert installed_checks.wgmma(None, "cpu").status == "not-run"
    assert installed_checks.wgmma(tmp_path, "cpu").status == "not-run"
    assert installed_checks.hopper_gemm(tmp_path, "cpu").status == "absent"


def test_a_package_from_elsewhere_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--checks", str(tmp_path / "checks.json"), "--package", str(tmp_path)]
    assert installed_checks.main(options) == 1
    assert f"not from {tmp_path}" in capsys.readouterr().out

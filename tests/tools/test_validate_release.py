"""T7: what the report says, what counts as a pass, and that every check can fail."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import gpu_lock
import installed_checks
import mmaemu
import validate_release
from findings import FAIL, INCONCLUSIVE, PASS, UNUSABLE, UnusableError
from installed_checks import Check
from mmaemu import recordings
from mmaemu.recordings import GemmRecord, MmaRecord

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


# --- running and reporting -----------------------------------------------------------------------


@pytest.fixture
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> validate_release.Clean:
    monkeypatch.setattr(gpu_lock, "LOCK", tmp_path / "gpu.lock")
    monkeypatch.delenv("MMAEMU_GPU_LOCK", raising=False)
    return validate_release.Clean(tmp_path, {"PATH": os.environ["PATH"]})


def test_commands_on_a_gpu_hold_its_lock(
    clean: validate_release.Clean, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = "import fcntl, sys; fcntl.flock(open(sys.argv[1], 'ab'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    command = (sys.executable, "-c", tried, str(tmp_path / "gpu.lock"))
    assert clean.run_on("cpu", *command)[0] == 0
    assert clean.run_on("cuda", *command)[0] == 1, "the lock is held"
    assert clean.run(*command)[0] == 0, "and given back"
    wrapper = "import subprocess, sys; sys.exit(10 + subprocess.call(sys.argv[1:]))"
    monkeypatch.setenv("MMAEMU_GPU_LOCK", shlex.join((sys.executable, "-c", wrapper)))
    assert clean.run_on("cuda", *command)[0] == 10
    assert clean.run_on("cpu", *command)[0] == 0


def test_output_does_not_say_where_the_environment_was(clean: validate_release.Clean) -> None:
    assert clean.run(sys.executable, "-c", "import os; print(os.getcwd())") == (0, ".\n")


def test_what_takes_too_long_is_ended_with_its_children(
    clean: validate_release.Clean, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validate_release, "LIMIT_SECONDS", 0.7)
    alive = tmp_path / "alive"
    child = f"import time; time.sleep(2); open({str(alive)!r}, 'w')"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    assert clean.run(sys.executable, "-c", parent) == (124, "not finished after 0.7 s")
    time.sleep(2)
    assert not alive.exists()


@pytest.mark.parametrize(
    ("installed", "status"), [("0.1.0", "pass"), ("0.0.9", "fail"), (None, "fail")]
)
def test_another_version_than_the_files_name_fails(
    tmp_path: Path, installed: str | None, status: str
) -> None:
    found = validate_release.read_wheel(wheel(tmp_path))
    assert validate_release.version_check(found, installed)["status"] == status


def checked(**states: str) -> dict[str, Any]:
    checks = {name: {"status": state, "reason": f"why {name}"} for name, state in states.items()}
    return {
        "schema": validate_release.SCHEMA,
        "version": "0.1.0",
        "device": "cpu",
        "checks": checks,
        "absent": {},
        "wheel_sha256": "0" * 64,
    }


def test_a_finished_report_says_what_its_checks_amount_to() -> None:
    report = validate_release.finished(checked(info="pass", evo2="fail", device="not-run"), "")
    counts = report["counts"]
    assert [counts[key] for key in ("tests", "passed", "failures", "skipped")] == [3, 1, 1, 1]
    assert report["reason"] == "why evo2; why device"
    assert "acknowledged" not in report
    assert "acknowledged" not in validate_release.finished(checked(device="pass"), "no GPU")


ACCEPTED = validate_release.finished(checked(info="pass", device="not-run"), "no GPU")


@pytest.mark.parametrize(
    ("change", "reason", "message"),
    [
        ({}, "no GPU", ""),
        ({}, "", "check device is 'not-run'"),
        ({}, "another", "acknowledges 'no GPU', expected 'another'"),
        ({"version": "0.2.0"}, "no GPU", "the report is of 0.2.0"),
        ({"checks": {}}, "no GPU", "check (none) is 'missing'"),
        ({"checks": {"info": {"status": "fail"}}}, "no GPU", "check info is 'fail'"),
        ({"checks": {"fatbins": {"status": "not-run"}}}, "no GPU", "check fatbins is 'not-run'"),
        ({"checks": {"info": {}}}, "no GPU", "check info is None"),
    ],
)
def test_what_a_committed_report_has_to_say(
    change: dict[str, Any], reason: str, message: str
) -> None:
    report = {**ACCEPTED, **change}
    written = {**report, "seal": validate_release.seal(report)}
    found = list(validate_release.problems(written, "0.1.0", reason))
    assert [problem.startswith(message) for problem in found] == ([True] if message else [])


def test_an_edit_is_noticed_by_the_seal() -> None:
    for key in ("wheel_sha256", "counts", "seal", "acknowledged"):
        edited = {**ACCEPTED, key: "edited"}
        assert any("wrote it" in each for each in validate_release.problems(edited, "0.1.0", "x"))


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the command line on a wheel whose checks have given states; code and report."""
    monkeypatch.setattr(validate_release, "LOGS", tmp_path / "release_logs")
    monkeypatch.delenv("MMAEMU_TRUTH_DIR", raising=False)
    path = wheel(tmp_path, "mmaemu/backends/cuda/bin/v4.fatbin")

    def run(*options: str, **states: str) -> tuple[int, dict[str, Any]]:
        monkeypatch.setattr(validate_release, "validate", lambda *_, **__: checked(**states))
        out = tmp_path / "elsewhere.json"
        code = validate_release.main([str(path), "--out", str(out), *options])
        return code, json.loads(out.read_text(encoding="utf-8"))

    return run


def test_out_writes_elsewhere_and_replaces_what_is_there(command: Any, tmp_path: Path) -> None:
    assert command(info="fail")[0] == FAIL
    code, report = command("--copy", str(tmp_path / "t7-report.json"), info="pass")
    assert (code, report["checks"]["info"]["status"]) == (PASS, "pass")
    assert json.loads((tmp_path / "t7-report.json").read_text()) == report
    assert not (tmp_path / "release_logs").exists()


def test_an_acknowledged_device_stands_in_the_report_and_is_no_pass(command: Any) -> None:
    given = ("--device-not-run", "T3=another tier", "--device-not-run", "T7=no GPU here")
    code, report = command(*given, info="pass", device="not-run")
    assert code == INCONCLUSIVE
    assert report["acknowledged"] == "no GPU here"
    assert list(validate_release.problems(report, "0.1.0", "no GPU here")) == []
    assert "acknowledged" not in command(*given[:2], info="pass", device="not-run")[1]


@pytest.mark.parametrize(
    ("option", "status"), [((), "fail"), (("--allow-missing-fatbins",), "not-run")]
)
def test_a_wheel_without_fatbins_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: tuple[str, ...], status: str
) -> None:
    # All of a validation but the environment: what is asked of it answers as if all were well.
    class Well(validate_release.Clean):
        def run(self, *command: str) -> tuple[int, str]:
            if "--checks" in command:
                source = f"1 outputs equal; from {self.folder}/environment/kernels.so"
                checks = {"kernel cpu:scalar": {"status": "pass", "reason": source}}
                document = {"version": "0.1.0", "torch": "2", "device": "cpu", "checks": checks}
                Path(command[command.index("--checks") + 1]).write_text(json.dumps(document))
            return 0, "False"

    monkeypatch.setattr(validate_release, "install", lambda _, folder: Well(folder, {}))
    out = tmp_path / "report.json"
    code = validate_release.main([str(wheel(tmp_path)), "--out", str(out), *option])
    report = json.loads(out.read_text())
    assert code == {"fail": FAIL, "not-run": INCONCLUSIVE}[status]
    assert {name: each["status"] for name, each in report["checks"].items()} == {
        "fatbins": status,
        "cpu: selftest": "pass",
        "cpu: info": "pass",
        "cpu: version": "pass",
        "cpu: kernel cpu:scalar": "pass",
        "device": "not-run",
    }
    kernel = report["checks"]["cpu: kernel cpu:scalar"]
    assert kernel["reason"] == "1 outputs equal; from ./environment/kernels.so"
    # With a reason for the device, too, it validates no release.
    assert list(validate_release.problems(report, "0.1.0", "no GPU here"))


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


def rows_of(*rows: Record) -> Any:
    return lambda _: list(rows)


def test_evo2_needs_all_of_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = recordings.load()
    some = [row for row in rows if "call10" not in row.id]
    monkeypatch.setattr(recordings, "load", lambda: some)
    check = installed_checks.evo2(None, "cpu")
    assert check.status == "not-run"


def test_evo2_counts_under_its_own_profile_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = next(row for row in recordings.load() if row.id.startswith(installed_checks.EVO2))
    assert isinstance(row, GemmRecord)
    calls = [
        replace(row, id=row.id.replace("call00", call)) for call in installed_checks.EVO2_CALLS
    ]
    monkeypatch.setattr(installed_checks, "_truth_rows", rows_of(*calls))
    assert installed_checks.evo2(tmp_path, "cpu").status == "pass"
    elsewhere = [*calls[:2], replace(calls[2], profile="hopper")]
    monkeypatch.setattr(installed_checks, "_truth_rows", rows_of(*elsewhere))
    assert installed_checks.evo2(tmp_path, "cpu").status == "not-run"


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

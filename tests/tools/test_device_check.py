"""The device check: what is done stays done, what failed is said, what is packed is bounded."""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

import device_check
import replay_truth
from device_check import Step
from files import ROOT
from findings import FAIL, INCONCLUSIVE, PASS, UnusableError
from record import record_gemms, record_steps


def steps(*codes: int) -> tuple[Step, ...]:
    command = [
        ("-c", f"print('step {i}'); raise SystemExit({code})") for i, code in enumerate(codes)
    ]
    return tuple(Step(f"step{i}", words, words) for i, words in enumerate(command))


@pytest.mark.parametrize(
    ("codes", "expected"),
    [((0, 0), PASS), ((0, 3), INCONCLUSIVE), ((3, 1), FAIL), ((0, 2), FAIL)],
)
def test_the_worst_step_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codes: tuple[int, ...], expected: int
) -> None:
    monkeypatch.setattr(device_check, "STEPS", steps(*codes))
    assert device_check.main(["--out", str(tmp_path)]) == expected


def test_what_is_done_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = f"open({str(tmp_path / 'count')!r}, 'a').write('x')"
    monkeypatch.setattr(device_check, "STEPS", (Step("once", ("-c", count), ("-c", count)),))
    for arguments in ((), (), ("--again",)):
        device_check.main(["--out", str(tmp_path / "out"), *arguments])
    assert (tmp_path / "count").read_text(encoding="utf-8") == "xx"
    monkeypatch.setattr(device_check, "commit", lambda: "another")
    device_check.main(["--out", str(tmp_path / "out")])
    assert (tmp_path / "count").read_text(encoding="utf-8") == "xxx"


def test_a_step_that_takes_too_long_is_ended_and_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleep = ("-c", "import time; print('begun', flush=True); time.sleep(60)")
    monkeypatch.setattr(device_check, "STEPS", (Step("slow", sleep, sleep), *steps(0)))
    assert device_check.main(["--out", str(tmp_path), "--limit", "1.5"]) == FAIL
    assert "begun" in (tmp_path / "slow.log").read_text(encoding="utf-8")
    assert not device_check.is_done(tmp_path / "slow-result.json", device_check.commit())
    assert not (tmp_path / "step0-result.json").exists()


def test_the_gpu_is_locked_unless_it_is_a_rehearsal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = f"{sys.executable} -c 'import os, sys; print(1234, flush=True); os.execv(*L)'"
    lock = lock.replace("*L", "sys.argv[1], sys.argv[1:]")
    monkeypatch.setenv("MMAEMU_GPU_LOCK", lock)
    monkeypatch.setattr(device_check, "STEPS", steps(0))
    for arguments, expected in (((), "1234\nstep 0\n"), (("--dry",), "step 0\n")):
        assert device_check.main(["--out", str(tmp_path), "--again", *arguments]) == PASS
        assert (tmp_path / "step0.log").read_text(encoding="utf-8") == expected


def test_a_failed_check_fails_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_check, "STEPS", steps(0))
    checks = {"kernel a": {"status": "absent"}, "kernel b": {"status": "pass"}}
    path = tmp_path / "step0.json"
    path.write_text(json.dumps({"checks": checks}), encoding="utf-8")
    assert device_check.main(["--out", str(tmp_path)]) == PASS
    checks["kernel b"]["status"] = "fail"
    path.write_text(json.dumps({"checks": checks}), encoding="utf-8")
    assert device_check.main(["--out", str(tmp_path)]) == FAIL


def test_archives_hold_logs_and_recordings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_check, "STEPS", steps(0))
    folder = tmp_path / "recordings" / "steps"
    folder.mkdir(parents=True)
    (folder / "mma.jsonl").write_text("{}\n", encoding="utf-8")
    device_check.main(["--out", str(tmp_path)])
    with tarfile.open(tmp_path / "device-check-logs.tar.gz") as archive:
        assert {"logs/step0.log", "logs/step0-result.json"} <= set(archive.getnames())
    with tarfile.open(tmp_path / "device-check-steps.tar.gz") as archive:
        assert archive.getnames() == ["steps/mma.jsonl"]
    monkeypatch.setattr(device_check, "ARCHIVE_BYTES", 10)
    with pytest.raises(UnusableError, match="over 10"):
        device_check.pack(tmp_path)


def test_every_step_is_a_command_of_this_checkout() -> None:
    for step in device_check.STEPS:
        for command in (step.command, step.dry):
            if command and command[0] != "-m":
                assert (ROOT / command[0]).is_file(), command
    assert {"t3-fatbin", "t3-nvrtc", "t3p", "t6"} <= {step.name for step in device_check.STEPS}


# --- recordings, rehearsed on simulated tensor cores ---------------------------------------------


def test_recorded_steps_replay_bit_for_bit(tmp_path: Path) -> None:
    out = tmp_path / "recordings"
    code = record_steps.main(["--out", str(out), "--dry", "hopper", "--only", "groups"])
    assert code == PASS
    report = replay_truth.run(out, [], "", "auto")
    totals = report["totals"]
    assert totals["rows"] == 8
    assert totals["equal"] == totals["rows"]
    # Another tensor core gives other bits: the rows that it is asked with tell them apart.
    arrays = out / "steps" / "arrays.npz"
    with np.load(arrays) as stored:
        changed = {name: stored[name] for name in stored.files}
    name = "product-groups/wgmma_e5m2_e5m2/d"
    changed[name] = changed[name] ^ 1
    np.savez(arrays, allow_pickle=False, **changed)
    assert replay_truth.run(out, [], "", "auto")["totals"]["differing"] == changed[name].size


def test_a_million_results_are_asked_of_each_format() -> None:
    for recording in record_steps.RECORDINGS:
        if recording.name.startswith("million"):
            (entry,) = recording.entries
            rows, columns = record_steps.INSTRUCTIONS[entry].shape
            assert record_steps.TILES_OF_A_MILLION * rows * columns >= 10**6


def test_operands_are_finite_codes() -> None:
    from mmaemu.formats import FORMATS, INFINITE, NAN

    for recording in record_steps.RECORDINGS:
        for entry in recording.entries:
            instruction = record_steps.INSTRUCTIONS[entry]
            case = record_steps.shorter(recording, 2).make(instruction, np.random.default_rng(1))
            for codes, fmt in zip((case.a, case.b), instruction.formats, strict=True):
                classes = FORMATS[fmt].classify(codes)
                assert not np.isin(classes, (INFINITE, NAN)).any(), (recording.name, entry)


def test_an_unknown_recording_is_a_usage_error(tmp_path: Path) -> None:
    assert record_steps.main(["--out", str(tmp_path), "--dry", "ada", "--only", "nothing"]) == 2
    assert not list(tmp_path.iterdir())


def test_gemms_are_recorded_with_the_decision_that_the_log_tells(tmp_path: Path) -> None:
    assert record_gemms.main(["--out", str(tmp_path), "--dry"]) == PASS
    lines = (tmp_path / "gemms" / "gemm.jsonl").read_text(encoding="utf-8").splitlines()
    row = json.loads(lines[0])
    with np.load(tmp_path / "gemms" / "arrays.npz") as arrays:
        assert arrays[row["out"]].shape == (16, 16)
        assert arrays[row["a"]].shape == (16, row["MNK"][2])
    assert row["split"] is None
    found = record_gemms.decision("... algoId=66 tile=20 numSplitsK=1 algoId=70, numSplitsK=4 ...")
    assert found == {"algo": 70, "splits": 4}
    assert record_gemms.decision("nothing") == {"algo": None, "splits": None}


def test_an_unnamed_platform_gets_a_profile_name_of_its_own() -> None:
    name = record_gemms.profile_of("NVIDIA H200", "12.9.1")
    assert name == "nvidia-h200-cublaslt-12-9-1-experimental"

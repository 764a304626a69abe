"""The demo: its numbers, its picture, and that a wrong or damaged recording makes it fail."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mmaemu.recordings
from mmaemu import api
from mmaemu.cli import demo, demo_picture
from mmaemu.cli.main import main
from mmaemu.recordings import GemmRecord, Record, load

ROOT = Path(__file__).parents[2]
OK, FAILED, USAGE, NOT_AVAILABLE = 0, 1, 2, 3
PNG = b"\x89PNG\r\n\x1a\n"
LOGS = sorted((ROOT / "docs" / "validation_logs").glob("*/demo/demo.json"))


@pytest.fixture(scope="module")
def report() -> demo.DemoReport:
    return demo.collect(None)


@pytest.fixture
def own_rows(monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """Only the rows of the demo's own call are shipped: quick."""
    rows = [record for record in load() if record.id.startswith(demo.RECORDED_CALL)]
    monkeypatch.setattr(mmaemu.recordings, "load", lambda: rows)
    return rows


def size_of(png: bytes) -> tuple[int, int]:
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def test_every_recorded_bit_is_equal(report: demo.DemoReport) -> None:
    assert report.exit_code == OK
    own, further = report.replays
    assert (own.recordings, own.rows, own.outputs) == ("this GEMM", 3, 3 * 4096)
    assert own.bits == own.equal_bits == 4096 * (32 + 16 + 16)
    assert further.rows > 50
    assert further.bits == further.equal_bits > 0
    assert (own.failed, further.failed) == ([], [])


def test_differences_are_those_of_the_recorded_call(report: demo.DemoReport) -> None:
    """The RTX 4060's outputs are recorded, so its rows can be computed from them alone."""
    found = {(each.of, each.to): each for each in report.differences}
    assert len(found) == 6
    assert {each.outputs for each in report.differences} == {4096}
    call = demo._recorded_call(load())
    assert call.unscaled.out is not None
    recorded = call.unscaled.out.view(np.float32).astype(np.float64)
    exact = demo._outputs(call, "auto", lambda _: None)[demo.EXACT]
    relative = np.abs(recorded - exact) / np.abs(exact)
    ada = found["RTX 4060", "exact"]
    assert ada.fp32 == np.count_nonzero(recorded != exact.astype(np.float32))
    assert ada.median == demo.four_digits(np.median(relative))
    assert ada.largest == demo.four_digits(relative.max())
    assert 0 < found["H100", "RTX 4060"].fp32 < 4096
    assert found["IEEE fp32", "exact"].median < 1e-6 < ada.median


def test_sequential_fp32_rounds_after_every_addition() -> None:
    a = np.array([[1.0, 2.0**-24, 2.0**-24]])
    assert demo._sequential_fp32(a, np.ones((1, 3))) == 1.0
    assert demo._sequential_fp32(a[:, ::-1], np.ones((1, 3))) == 1.0 + 2.0**-23


def test_text_says_what_the_numbers_say(report: demo.DemoReport) -> None:
    text = report.render()
    first = report.differences[0]
    bits = sum(each.bits for each in report.replays)
    assert f"All {bits:,} recorded bits are equal" in text
    assert f"{first.fp32:,}" in text
    assert f"{first.bf16:,}" in text
    assert "profile hopper, instruction model hopper (stated)" in text
    assert "profile ada, instruction model ada (recorded)" in text
    assert "Picture: not written: --no-picture" in text
    assert max(map(len, text.splitlines())) <= 100
    assert text.isascii()


@pytest.mark.usefixtures("own_rows")
def test_command_writes_the_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == OK
    out, err = capsys.readouterr()
    assert err == ""
    assert "\x1b" not in out
    assert "Picture: mmaemu-demo.png" in out
    png = (tmp_path / "mmaemu-demo.png").read_bytes()
    assert png.startswith(PNG)
    assert size_of(png) == tuple(round(inches * demo_picture.DPI) for inches in demo_picture.SIZE)


def test_picture_is_the_same_every_time(report: demo.DemoReport) -> None:
    pytest.importorskip("matplotlib")
    outputs = demo._outputs(demo._recorded_call(load()), "auto", lambda _: None)
    scene = demo._scene(outputs, report.differences, report.replays, report.operands.K)
    assert demo_picture.draw(scene) == demo_picture.draw(scene)


def test_picture_ignores_the_user_s_style(report: demo.DemoReport) -> None:
    mpl = pytest.importorskip("matplotlib")
    outputs = demo._outputs(demo._recorded_call(load()), "auto", lambda _: None)
    scene = demo._scene(outputs, report.differences, report.replays, report.operands.K)
    plain = demo_picture.draw(scene)
    with mpl.rc_context({"font.size": 30.0, "axes.facecolor": "black", "image.cmap": "gray"}):
        assert demo_picture.draw(scene) == plain
        assert mpl.rcParams["font.size"] == 30.0


@pytest.mark.usefixtures("own_rows")
def test_command_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--no-picture", "--json", "--backend", "reference"]) == OK
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == "mmaemu-demo/1"
    assert report.keys() == {
        "differences",
        "exit_code",
        "operands",
        "picture",
        "picture_note",
        "platforms",
        "replays",
        "schema",
        "seconds",
    }
    assert report["operands"].keys() == {
        "K",
        "M",
        "N",
        "format_a",
        "format_b",
        "recording",
        "source",
        "splitk",
        "use_fast_accum",
    }
    assert {tuple(sorted(each)) for each in report["differences"]} == {
        ("bf16", "bias", "fp32", "largest", "median", "of", "outputs", "to")
    }
    assert {tuple(sorted(each)) for each in report["replays"]} == {
        ("bits", "equal_bits", "failed", "outputs", "platform", "recordings", "rows")
    }
    assert {tuple(sorted(each)) for each in report["platforms"]} == {
        ("gpu", "maturity", "model", "name", "profile")
    }


@pytest.mark.usefixtures("own_rows")
def test_without_matplotlib_the_picture_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["demo"]) == OK
    assert "pip install 'mmaemu[demo]'" in capsys.readouterr().out
    assert [*tmp_path.iterdir()] == []


@pytest.mark.usefixtures("own_rows")
def test_without_matplotlib_a_named_picture_is_not_available(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["demo", "--output", str(tmp_path / "x.png")]) == NOT_AVAILABLE
    assert "pip install 'mmaemu[demo]'" in capsys.readouterr().err


@pytest.mark.usefixtures("own_rows")
def test_a_picture_that_cannot_be_written_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    assert main(["demo", "--output", str(tmp_path / "missing" / "x.png")]) == USAGE
    assert "--output" in capsys.readouterr().err


# A wrong or damaged recording


def with_change(records: list[Record], label: str) -> list[Record]:
    """The records, in one of them one bit changed."""
    (victim,) = (record for record in records if record.id == label)
    assert isinstance(victim, GemmRecord)
    assert victim.out is not None
    out = victim.out.copy()
    out.flat[17] ^= 1
    return [replace(victim, out=out) if record is victim else record for record in records]


@pytest.mark.parametrize("row", ["acc", "y_native", "y_te"])
def test_one_wrong_bit_fails_the_demo(
    own_rows: list[Record],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    row: str,
) -> None:
    label = f"{demo.RECORDED_CALL}/{row}"
    records = with_change(own_rows, label)
    monkeypatch.setattr(mmaemu.recordings, "load", lambda: records)
    assert main(["demo", "--no-picture"]) == FAILED
    out = capsys.readouterr().out
    width = 32 if row == "acc" else 16
    assert f"FAILED: {width} of " in out
    assert f"{label}: [0, 17]: recorded" in out


def test_no_recording_at_all_is_no_success(report: demo.DemoReport) -> None:
    assert replace(report, replays=[]).exit_code == FAILED


def test_a_row_that_fails_without_bits_is_no_success(report: demo.DemoReport) -> None:
    """A recorded error has no bits, but another outcome is a failure all the same."""
    own, further = report.replays
    wrong = replace(further, failed=["some/row: no error was raised"])
    failed = replace(report, replays=[own, wrong])
    assert failed.exit_code == FAILED
    assert "some/row: no error was raised" in failed.render()


def test_a_backend_that_raises_fails_the_demo(
    report: demo.DemoReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(api, "scaled_mm", crash)
    rows = [record for record in load() if record.id.startswith(demo.RECORDED_CALL)]
    replays = demo._replays(rows, "auto", lambda _: None)
    assert replace(report, replays=replays).exit_code == FAILED


def test_missing_rows_of_the_call_are_a_damaged_installation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rest = [record for record in load() if not record.id.endswith("/y_native")]
    monkeypatch.setattr(mmaemu.recordings, "load", lambda: rest)
    assert main(["demo", "--no-picture"]) == FAILED
    assert "install the package again" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["demo", "selftest"])
def test_a_damaged_file_fails_demo_and_selftest(tmp_path: Path, command: str) -> None:
    package = tmp_path / "mmaemu"
    shutil.copytree(ROOT / "mmaemu", package, ignore=shutil.ignore_patterns("__pycache__"))
    arrays = package / "recordings" / "data" / "rtx4060" / "arrays.npz"
    content = bytearray(arrays.read_bytes())
    content[len(content) // 2] ^= 1
    arrays.write_bytes(content)
    finished = subprocess.run(
        [sys.executable, "-m", "mmaemu", command],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert finished.returncode == FAILED
    assert "arrays.npz" in finished.stderr
    assert "sha256" in finished.stderr
    assert finished.stdout == ""


# What is committed


def test_the_tutorial_quotes_the_committed_log() -> None:
    logged = (LOGS[-1].parent / "demo.txt").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "tutorial" / "first-steps.md").read_text(encoding="utf-8")
    (quoted,) = re.findall(r"```text\n(.*?)\n```", page, re.DOTALL)
    assert f"log:{LOGS[-1].parents[1].name}/demo" in page
    assert quoted in logged


def test_the_committed_log_is_what_the_demo_computes(report: demo.DemoReport) -> None:
    logged = json.loads(LOGS[-1].read_text(encoding="utf-8"))
    computed: dict[str, Any] = json.loads(json.dumps(report.to_json()))
    for key in ("operands", "platforms", "differences", "replays", "schema", "exit_code"):
        assert logged[key] == computed[key], key


def test_the_committed_picture_has_the_size_that_the_demo_draws() -> None:
    png = (ROOT / "docs" / "images" / "demo.png").read_bytes()
    assert png.startswith(PNG)
    assert size_of(png) == tuple(round(inches * demo_picture.DPI) for inches in demo_picture.SIZE)
    assert len(png) < 400_000

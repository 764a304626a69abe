"""The demo's log: what is written, and that a failed demo writes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import log_demo


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(log_demo, "ROOT", tmp_path)
    monkeypatch.setattr(log_demo, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(log_demo, "PICTURE", tmp_path / "images" / "demo.png")
    return tmp_path


def demo_that_ends(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def demo(*options: str) -> tuple[int, str]:
        if "--json" in options:
            return code, json.dumps({"schema": "mmaemu-demo/1", "seconds": 1.5})
        picture = Path(options[options.index("--output") + 1])
        picture.write_bytes(b"picture")
        return code, f"Picture: {picture}\n"

    monkeypatch.setattr(log_demo, "demo", demo)


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_report_text_run_and_picture_are_written(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo_that_ends(monkeypatch, 0)
    assert log_demo.main([]) == 0
    files = written(repository)
    assert files.keys() == {"demo.json", "demo.txt", "run.json", "demo.png"}
    assert files["demo.txt"] == b"Picture: demo.png\n"
    assert files["demo.png"] == b"picture"
    run = json.loads(files["run.json"])
    assert run["command"] == "python -m mmaemu demo"
    assert {"commit", "environment", "finished_at"} <= run.keys()


def test_dry_run_writes_nothing(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    demo_that_ends(monkeypatch, 0)
    assert log_demo.main(["--dry-run"]) == 0
    assert written(repository) == {}
    assert "images/demo.png: 7 bytes" in capsys.readouterr().out


@pytest.mark.parametrize("code", [1, 3])
def test_a_failed_demo_writes_nothing(
    repository: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    demo_that_ends(monkeypatch, code)
    assert log_demo.main([]) == 1
    assert written(repository) == {}


def test_demo_is_the_command_line_s() -> None:
    code, out = log_demo.demo("--help")
    assert code == 0
    assert out.startswith("usage: mmaemu demo")

from __future__ import annotations

from pathlib import Path

import pytest

import sizes

MIB = 1 << 20


def files(folder: Path, **of: int) -> list[Path]:
    folder.mkdir(exist_ok=True)
    found = []
    for name, size in of.items():
        path = folder / f"{name}-1.0-py3-none-any.whl"
        path.write_bytes(bytes(size))
        found.append(path)
    return found


def test_sizes_are_always_printed_and_equal_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYPI_FILE_LIMIT_MB", "1")
    files(tmp_path, small=3, equal=MIB)
    (tmp_path / "jax_pins.txt").write_text("jax==1\n")
    assert sizes.main([str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "small-1.0-py3-none-any.whl: 3 bytes (0.00 of 1 MiB, 0.0 %)" in printed
    assert "equal-1.0-py3-none-any.whl: 1,048,576 bytes (1.00 of 1 MiB, 100.0 %)" in printed
    assert "jax_pins" not in printed


def test_one_byte_more_refuses_a_release_and_is_named_for_a_nightly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYPI_FILE_LIMIT_MB", "1")
    files(tmp_path, a=3, larger=MIB + 1)
    assert sizes.main([str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "larger-1.0-py3-none-any.whl: NIGHT132 1,048,577 bytes" in printed
    assert "a-1.0-py3-none-any.whl: 3 bytes" in printed
    assert sizes.main([str(tmp_path), "--channel", "nightly"]) == 0
    assert "only the nightly index takes larger-1.0" in capsys.readouterr().out
    monkeypatch.setenv("PYPI_FILE_LIMIT_MB", "2")
    assert sizes.main([str(tmp_path)]) == 0


@pytest.mark.parametrize("limit", ["0", "-1", "1.5", "many", " "])
def test_a_limit_that_is_no_number_is_an_error(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYPI_FILE_LIMIT_MB", limit)
    (path,) = files(tmp_path, a=1)
    assert sizes.main([str(path)]) == 2


def test_nothing_to_measure_is_an_error(tmp_path: Path) -> None:
    assert sizes.main([str(tmp_path)]) == 2
    assert sizes.main([str(tmp_path / "missing.whl")]) == 2
    other = tmp_path / "notes.txt"
    other.write_text("x")
    assert sizes.main([str(other)]) == 2

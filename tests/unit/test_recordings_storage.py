"""The shipped recordings: whatever is damaged is one clear error, of the reader and on the CLI."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mmaemu import recordings
from mmaemu.cli.main import main
from mmaemu.errors import DataIntegrityError
from mmaemu.recordings import read_folder, storage

SHIPPED = Path(recordings.__file__).with_name("data") / "rtx4060"
FAILED = 1


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the shipped platform, which `recordings.load` reads instead."""
    folder = tmp_path / "data" / SHIPPED.name
    shutil.copytree(SHIPPED, folder)
    monkeypatch.setattr(recordings, "__file__", str(tmp_path / "__init__.py"))
    return folder


def no_arrays(folder: Path) -> None:
    (folder / "arrays.npz").unlink()


def no_provenance(folder: Path) -> None:
    (folder / "provenance.json").unlink()


def broken_provenance(folder: Path) -> None:
    (folder / "provenance.json").write_text("{")


def list_as_provenance(folder: Path) -> None:
    (folder / "provenance.json").write_text("[]")


def forgotten_entry(folder: Path) -> None:
    path = folder / "provenance.json"
    document = json.loads(path.read_bytes())
    del document["files"]["arrays.npz"]
    path.write_text(json.dumps(document))


def changed_byte(folder: Path) -> None:
    data = bytearray((folder / "arrays.npz").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "arrays.npz").write_bytes(data)


DAMAGES = (
    (no_arrays, r"arrays\.npz"),
    (no_provenance, r"provenance\.json"),
    (broken_provenance, "JSONDecodeError"),
    (list_as_provenance, "TypeError"),
    (forgotten_entry, r"does not list arrays\.npz"),
    (changed_byte, r"sha256 of arrays\.npz is"),
)


@pytest.mark.parametrize(("damage", "says"), DAMAGES)
def test_a_damaged_folder_is_one_error(
    package: Path, damage: Callable[[Path], None], says: str
) -> None:
    damage(package)
    with pytest.raises(DataIntegrityError, match=says) as caught:
        recordings.load()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", storage.FILES)
@pytest.mark.parametrize("kept", [0, 30, -9])
def test_a_truncated_file_is_refused_even_if_signed(package: Path, name: str, kept: int) -> None:
    data = (package / name).read_bytes()[:kept]
    (package / name).write_bytes(data)
    path = package / "provenance.json"
    document = json.loads(path.read_bytes())
    document["files"][name]["sha256"] = hashlib.sha256(data).hexdigest()
    path.write_text(json.dumps(document))
    with pytest.raises(DataIntegrityError):
        read_folder(package)


@pytest.mark.parametrize("line", ["demo --no-picture", "selftest --device cpu"])
@pytest.mark.parametrize("damage", [no_arrays, broken_provenance, forgotten_entry])
def test_commands_fail_in_one_line(
    package: Path,
    damage: Callable[[Path], None],
    line: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damage(package)
    assert main(line.split()) == FAILED
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"mmaemu {line.split(maxsplit=1)[0]}: DataIntegrityError: ")
    assert captured.err.count("\n") == 1

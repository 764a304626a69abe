"""check_data accepts the repository's data and sees each kind of corruption."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import check_data
from files import ROOT, sha256_of
from mmaemu.errors import DataIntegrityError
from mmaemu.recordings import read_folder

PLATFORM = "mmaemu/recordings/data/rtx4060"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with the shipped recordings and nothing else."""
    shutil.copytree(ROOT / PLATFORM, tmp_path / PLATFORM)
    shutil.copyfile(ROOT / "NOTICE", tmp_path / "NOTICE")
    return tmp_path


def codes(root: Path) -> set[str]:
    return {finding.code for finding in check_data.check(root).findings}


def reseal(folder: Path) -> None:
    """Make provenance.json agree with the files, as a careless export would."""
    path = folder / "provenance.json"
    provenance = json.loads(path.read_text())
    for name in provenance["files"]:
        data = (folder / name).read_bytes()
        provenance["files"][name] = {"sha256": sha256_of(data), "size": len(data)}
    path.write_text(json.dumps(provenance))


def edit_text(name: str, old: str, new: str, count: int = 1) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, count))

    return edit


def edit_provenance(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "provenance.json"
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))

    return edit


def flip_byte(name: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[len(data) // 2] ^= 1
        (folder / name).write_bytes(data)

    return edit


def rewrite_arrays(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        with np.load(folder / "arrays.npz") as stored:
            arrays = dict(stored)
        change(arrays)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)
        (folder / "arrays.npz").write_bytes(buffer.getvalue())

    return edit


def swap_bytes(arrays: dict[str, Any]) -> None:
    arrays["uint32"] = arrays["uint32"][::-1].copy()


def widen(arrays: dict[str, Any]) -> None:
    arrays["uint8"] = arrays["uint8"].astype(">u2")


def shorten(arrays: dict[str, Any]) -> None:
    arrays["uint8"] = arrays["uint8"][:, :-1]


def drop_last_line(name: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        lines = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(lines[:-1]))

    return edit


def repeat_last_line(folder: Path) -> None:
    text = (folder / "gemm.csv").read_text()
    (folder / "gemm.csv").write_text(text + text.splitlines()[-1] + "\n")


def edit_row(column: str, value: str) -> Callable[[Path], None]:
    """Change one cell of the last GEMM row."""

    def edit(folder: Path) -> None:
        lines = (folder / "gemm.csv").read_text().splitlines()
        cells = lines[-1].split(",")
        cells[lines[0].split(",").index(column)] = value
        (folder / "gemm.csv").write_text("\n".join([*lines[:-1], ",".join(cells)]) + "\n")

    return edit


def add_array(folder: Path) -> None:
    with (folder / "arrays.csv").open("a") as index:
        index.write("uint8,0x16\n")


def test_the_repository_is_clean() -> None:
    outcome = check_data.check(ROOT)
    assert [str(finding) for finding in outcome.findings] == []
    assert {folder.path for folder in check_data.load(ROOT).recordings} >= {
        PLATFORM,
        "tests/recordings/rtx4060",
    }


def test_the_copy_is_clean(root: Path) -> None:
    assert check_data.check(root).findings == ()


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (flip_byte("gemm.csv"), "DATA103"),
        (flip_byte("arrays.npz"), "DATA103"),
        (lambda folder: (folder / "provenance.json").unlink(), "DATA101"),
        (lambda folder: (folder / "provenance.json").write_text("[]"), "DATA101"),
        (edit_provenance(lambda document: document.pop("schema")), "DATA101"),
        (lambda folder: (folder / "more.csv").write_text("a\n"), "DATA102"),
        (lambda folder: (folder / "mma.csv").unlink(), "DATA102"),
        (edit_provenance(lambda document: document["files"].pop("mma.csv")), "DATA102"),
        (
            edit_provenance(lambda document: document["files"]["mma.csv"].update(size=1)),
            "DATA103",
        ),
        (
            edit_provenance(lambda document: document.update(arrays_content_sha256="0")),
            "DATA104",
        ),
        (edit_provenance(lambda document: document["platform"].update(name="rtx4070")), "DATA105"),
        (edit_provenance(lambda document: document["platform"].pop("origin")), "DATA105"),
        (edit_provenance(lambda document: document.pop("attribution")), "DATA106"),
        (
            edit_provenance(lambda document: document["attribution"].append("Nobody Known")),
            "DATA106",
        ),
        (edit_provenance(lambda document: document["rows"].update(gemm=1)), "DATA203"),
    ],
)
def test_damage_is_seen(root: Path, damage: Callable[[Path], None], expected: str) -> None:
    damage(root / PLATFORM)
    assert expected in codes(root)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (rewrite_arrays(swap_bytes), {"DATA104"}),
        (rewrite_arrays(widen), {"DATA104", "DATA202"}),
        (rewrite_arrays(shorten), {"DATA104", "DATA202"}),
        (edit_text("mma.csv", "layout", "layered"), {"DATA201"}),
        (edit_text("gemm.csv", ",1,none,", ",1,"), {"DATA201"}),
        (lambda folder: (folder / "calls.json").write_text("{}"), {"DATA201"}),
        (lambda folder: (folder / "mma.csv").write_bytes(b"\xff\xfe"), {"DATA201"}),
        (drop_last_line("mma.csv"), {"DATA203", "DATA206"}),
        (repeat_last_line, {"DATA203", "DATA204"}),
        (edit_row("out", "999999"), {"DATA205", "DATA206"}),
        (edit_row("out", "first"), {"DATA205", "DATA206"}),
        (edit_row("call", "7"), {"DATA205"}),
        (edit_row("out", ""), {"DATA206", "DATA207"}),
        (edit_row("error", "ReferenceRejectsError"), {"DATA207"}),
        (edit_row("out", "0"), {"DATA206", "DATA208"}),
        (add_array, {"DATA206"}),
    ],
)
def test_a_wrong_export_is_seen_though_its_hashes_agree(
    root: Path, damage: Callable[[Path], None], expected: set[str]
) -> None:
    damage(root / PLATFORM)
    reseal(root / PLATFORM)
    assert expected <= codes(root)
    assert "DATA103" not in codes(root)


def test_a_shipped_row_must_be_one_of_the_tests_recordings(root: Path) -> None:
    whole = root / "tests" / "recordings" / "rtx4060"
    shutil.copytree(root / PLATFORM, whole)
    assert codes(root) == set()
    edit_row("scale_a_bits", "3F800001")(root / PLATFORM)
    reseal(root / PLATFORM)
    assert codes(root) == {"DATA209"}


def test_data_has_a_size_limit(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_data, "SIZE_LIMIT", 100_000)
    assert codes(root) == {"DATA107"}


def test_a_table_needs_provenance_too(root: Path) -> None:
    folder = root / "mmaemu" / "profiles" / "data" / "gpu"
    folder.mkdir(parents=True)
    (folder / "table.npz").write_bytes(b"x")
    assert codes(root) == {"DATA101", "DATA102", "DATA106"}


def test_the_reader_refuses_what_the_check_refuses(root: Path) -> None:
    folder = root / PLATFORM
    flip_byte("gemm.csv")(folder)
    with pytest.raises(DataIntegrityError, match=r"sha256 of gemm\.csv is .* restore"):
        read_folder(folder)
    edit_provenance(lambda document: document.update(schema="mmaemu.recordings/9"))(folder)
    with pytest.raises(DataIntegrityError, match="expected schema"):
        read_folder(folder)


def test_all_findings_are_reported_together(root: Path) -> None:
    flip_byte("mma.csv")(root / PLATFORM)
    (root / "NOTICE").write_text("nobody\n")
    assert {"DATA103", "DATA106"} <= codes(root)


def test_the_command_line_exits_with_one(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_data.main(["--root", str(root)]) == 0
    flip_byte("mma.csv")(root / PLATFORM)
    assert check_data.main(["--root", str(root)]) == 1
    assert "DATA103" in capsys.readouterr().out


def test_a_truncated_archive_is_a_finding(root: Path) -> None:
    path = root / PLATFORM / "arrays.npz"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(zipfile.BadZipFile):
        zipfile.ZipFile(path)
    assert {"DATA103", "DATA104", "DATA202"} <= codes(root)


def test_a_folder_without_data_is_no_checkout(tmp_path: Path) -> None:
    assert check_data.main(["--root", str(tmp_path)]) == 2

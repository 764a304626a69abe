from __future__ import annotations

import os
from pathlib import Path

import pytest

from files import sha256_of_tree, to_json, write_bytes, write_json


def test_a_file_is_replaced_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "deep" / "file.json"
    write_json(path, {"schema": "x/1", "b": 1, "a": 2})
    before = path.read_bytes()
    assert before == b'{\n  "a": 2,\n  "b": 1,\n  "schema": "x/1"\n}\n'

    def full(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        write_bytes(path, b"other")
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == ["file.json"]


def test_written_files_are_readable_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        write_bytes(tmp_path / "file", b"x")
    finally:
        os.umask(old)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


def test_a_document_needs_a_schema() -> None:
    with pytest.raises(ValueError, match="schema"):
        to_json({"a": 1})


def test_a_tree_is_described_by_relative_path(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x").write_bytes(b"")
    (tmp_path / "a").write_bytes(b"a")
    assert list(sha256_of_tree(tmp_path)) == ["a", "b/x"]
    before = sha256_of_tree(tmp_path)
    (tmp_path / "b" / "x").write_bytes(b"!")
    assert sha256_of_tree(tmp_path) != before

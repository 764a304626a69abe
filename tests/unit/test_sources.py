"""Kernel sources: what includes lead to, and what does not change a hash."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from mmaemu.backends.sources import closure, hashes, plain, program

FILES = {
    "p/cuda/k.cu": b'#include "abi.h"\n#include <math.h>\n// "x.h"\nint k;\n',
    "p/cuda/abi.h": b'  #  include "../numerics/plan.h"\n',
    "p/numerics/plan.h": b'#include "types.h"\n#include "../cuda/abi.h"\n',
    "p/numerics/types.h": b"typedef int i32;\n",
}


def write(root: Path) -> None:
    for name, data in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


def test_a_source_with_all_that_it_includes(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "p/cuda/other.h").write_bytes(b"")
    assert closure(tmp_path, "p/cuda/k.cu") == dict(sorted(FILES.items()))


def test_a_missing_header_names_its_path(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "p/numerics/types.h").unlink()
    with pytest.raises(FileNotFoundError, match=r"types\.h"):
        closure(tmp_path, "p/cuda/k.cu")


def test_line_ends_and_a_byte_order_mark_change_no_hash() -> None:
    windows = {name: b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n") for name, data in FILES.items()}
    assert hashes(windows) == hashes(FILES)
    assert hashes(FILES)["p/numerics/types.h"] == hashlib.sha256(b"typedef int i32;\n").hexdigest()
    assert program(windows, "p/cuda/k.cu") == program(FILES, "p/cuda/k.cu")


def test_a_changed_source_changes_its_hash() -> None:
    changed = {**FILES, "p/cuda/k.cu": b"int k;"}
    assert hashes(changed) != hashes(FILES)
    assert plain(b"a\rb\n") == b"a\rb\n"


def test_a_program_names_its_headers_by_path() -> None:
    made = program(FILES, "p/cuda/k.cu")
    assert made.name == "p/cuda/k.cu"
    assert made.text == b'#include "p/cuda/abi.h"\n#include <math.h>\n// "x.h"\nint k;\n'
    assert made.headers == {
        "p/cuda/abi.h": b'  #  include "p/numerics/plan.h"\n',
        "p/numerics/plan.h": b'#include "p/numerics/types.h"\n#include "p/cuda/abi.h"\n',
        "p/numerics/types.h": b"typedef int i32;\n",
    }

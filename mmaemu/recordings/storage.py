"""The stored form of recordings: one folder per platform (docs/reference/recordings.md).

`arrays.npz` holds byte planes (little end first) per element width, `arrays.csv` their order and
shapes, `mma.csv`, `gemm.csv` and `call.csv` the rows, `calls.json` the distinct call
descriptions, `provenance.json` origin, licence and the sha256 of every other file.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from mmaemu._verified_files import VerifiedFolder
from mmaemu.errors import DataIntegrityError
from mmaemu.recordings.records import Bits, CallRecord, GemmRecord, MmaRecord, Record

SCHEMA: Final = "mmaemu.recordings/1"
FILES: Final = ("arrays.npz", "arrays.csv", "calls.json", "mma.csv", "gemm.csv", "call.csv")
DTYPES: Final = ("uint8", "uint16", "uint32")

ARRAY_HEADER: Final = "dtype,shape"
MMA_HEADER: Final = "id,recording,preset,layout,format_a,format_b,a,b,c,d"
GEMM_HEADER: Final = (
    "id,recording,profile,op,format_a,format_b,out_dtype,use_fast_accum,split,scheme,"
    "scale_a_bits,scale_b_bits,scale_result_bits,a,b,out,error,call"
)
CALL_HEADER: Final = (
    "id,recording,profile,out_dtype,out_dtype_passed,use_fast_accum,split,scheme,a,b,out,error,call"
)


class Arrays:
    """Recorded arrays by number.

    Args:
        flat: for each dtype name one flat array with all elements of that dtype.
        index: dtype name and shape of every array, in storage order.

    Raises:
        DataIntegrityError: the index and the flat arrays do not have the same size.
    """

    def __init__(self, flat: Mapping[str, Bits], index: list[tuple[str, tuple[int, ...]]]) -> None:
        used = dict.fromkeys(DTYPES, 0)
        self._views: list[Bits] = []
        for dtype, shape in index:
            start = used[dtype]
            used[dtype] = start + int(np.prod(shape, dtype=np.int64))
            if used[dtype] > flat[dtype].size:
                break
            self._views.append(flat[dtype][start : used[dtype]].reshape(shape))
        sizes = {dtype: flat[dtype].size for dtype in DTYPES}
        if used != sizes:
            raise DataIntegrityError(
                f"arrays.csv describes {used} elements, arrays.npz holds {sizes}; export them again"
            )

    def __len__(self) -> int:
        return len(self._views)

    def __getitem__(self, number: int) -> Bits:
        return self._views[number]


def join_planes(planes: Bits) -> Bits:
    """Elements from their byte planes.

    Args:
        planes: uint8 [width, n], plane 0 the least significant byte.

    Returns:
        Unsigned integers [n] of `width` bytes in the machine's byte order, read-only; exact.
    """
    width = planes.shape[0]
    little = np.ascontiguousarray(planes.T).view(f"<u{width}").reshape(-1)
    elements = little.astype(f"u{width}", copy=False)
    elements.setflags(write=False)
    return elements


def split_planes(elements: Bits) -> Bits:
    """The inverse of `join_planes`: uint8 [width, n] from unsigned integers [n]."""
    width = elements.dtype.itemsize
    little = np.ascontiguousarray(elements.reshape(-1)).astype(f"<u{width}", copy=False)
    return np.ascontiguousarray(little.view(np.uint8).reshape(-1, width).T)


def parse_shape(text: str) -> tuple[int, ...]:
    """A shape from its stored form: "16x8192"; "scalar" for no dimension."""
    return () if text == "scalar" else tuple(int(size) for size in text.split("x"))


def format_shape(shape: tuple[int, ...]) -> str:
    """The inverse of `parse_shape`."""
    return "x".join(str(size) for size in shape) if shape else "scalar"


def read_arrays(npz: bytes, index: bytes) -> Arrays:
    """Recorded arrays from the bytes of arrays.npz and arrays.csv.

    Raises:
        DataIntegrityError: the two do not fit each other.
    """
    with np.load(io.BytesIO(npz), allow_pickle=False) as stored:
        flat = {dtype: join_planes(stored[dtype]) for dtype in DTYPES}
    rows = read_csv(index, ARRAY_HEADER)
    return Arrays(flat, [(row["dtype"], parse_shape(row["shape"])) for row in rows])


def read_csv(data: bytes, header: str) -> list[dict[str, str]]:
    """Rows of a CSV file by column name.

    Args:
        data: the file, UTF-8.
        header: its first line, to the letter.

    Raises:
        DataIntegrityError: another header, or a row with another number of cells.
    """
    columns = header.split(",")
    lines = list(csv.reader(io.StringIO(data.decode("utf-8"), newline="")))
    found, rows = (lines[0], lines[1:]) if lines else ([], [])
    if found != columns:
        raise DataIntegrityError(f"expected the columns {header}, got {','.join(found)}")
    for number, row in enumerate(rows, start=2):
        if len(row) != len(columns):
            raise DataIntegrityError(
                f"line {number}: expected {len(columns)} cells, got {len(row)}"
            )
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _flag(text: str) -> bool:
    return {"0": False, "1": True}[text]


def _optional_bits(text: str) -> int | None:
    return int(text, 16) if text else None


class _Reader:
    """Turns stored rows of one platform into records."""

    def __init__(self, platform: str, arrays: Arrays, calls: list[dict[str, Any]]) -> None:
        self._platform = platform
        self._arrays = arrays
        self._calls = calls

    def _array(self, text: str) -> Bits:
        return self._arrays[int(text)]

    def _optional(self, text: str) -> Bits | None:
        return self._array(text) if text else None

    def mma(self, row: dict[str, str]) -> MmaRecord:
        return MmaRecord(
            id=row["id"],
            recording=row["recording"],
            platform=self._platform,
            preset=row["preset"],
            layout=row["layout"],
            format_a=row["format_a"],
            format_b=row["format_b"],
            a=self._array(row["a"]),
            b=self._array(row["b"]),
            c=self._array(row["c"]),
            d=self._array(row["d"]),
        )

    def gemm(self, row: dict[str, str]) -> GemmRecord:
        return GemmRecord(
            id=row["id"],
            recording=row["recording"],
            platform=self._platform,
            profile=row["profile"],
            op=row["op"],
            format_a=row["format_a"],
            format_b=row["format_b"],
            out_dtype=row["out_dtype"],
            use_fast_accum=_flag(row["use_fast_accum"]),
            split=(int(row["split"]), row["scheme"]),
            scale_a_bits=int(row["scale_a_bits"], 16),
            scale_b_bits=int(row["scale_b_bits"], 16),
            scale_result_bits=_optional_bits(row["scale_result_bits"]),
            a=self._optional(row["a"]),
            b=self._optional(row["b"]),
            out=self._optional(row["out"]),
            error=row["error"] or None,
            call=self._calls[int(row["call"])],
        )

    def call(self, row: dict[str, str]) -> CallRecord:
        return CallRecord(
            id=row["id"],
            recording=row["recording"],
            platform=self._platform,
            profile=row["profile"],
            out_dtype=row["out_dtype"],
            out_dtype_passed=_flag(row["out_dtype_passed"]),
            use_fast_accum=_flag(row["use_fast_accum"]),
            split=(int(row["split"]), row["scheme"]),
            a=self._array(row["a"]),
            b=self._array(row["b"]),
            out=self._optional(row["out"]),
            error=row["error"] or None,
            call=self._calls[int(row["call"])],
        )


def read_folder(folder: Path) -> list[Record]:
    """All records of one stored platform, in stored order: mma, gemm, call.

    Args:
        folder: a folder in the form that the module docstring describes; its name is the platform.

    Returns:
        Records whose arrays are read-only.

    Raises:
        DataIntegrityError: a file is missing, differs from provenance.json, or is not in the form.
    """
    stored = VerifiedFolder(folder, f"a folder of recordings in the form {SCHEMA!r}")
    files = {name: stored.read(name, schema=SCHEMA) for name in FILES}
    with stored.reading():
        arrays = read_arrays(files["arrays.npz"], files["arrays.csv"])
        reader = _Reader(folder.name, arrays, json.loads(files["calls.json"])["calls"])
        return [
            *map(reader.mma, read_csv(files["mma.csv"], MMA_HEADER)),
            *map(reader.gemm, read_csv(files["gemm.csv"], GEMM_HEADER)),
            *map(reader.call, read_csv(files["call.csv"], CALL_HEADER)),
        ]

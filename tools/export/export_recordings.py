"""Write recordings of a truth folder into the repository's own form, deterministically.

    python tools/export/export_recordings.py TRUTH_DIR [--platform rtx4060] [--dry-run]

writes tests/recordings/<platform>/ (all rows) and mmaemu/recordings/data/<platform>/ (the few
that the package ships), each with provenance.json. The form: docs/reference/recordings.md.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from check_data import npz_content_sha256
from files import ROOT, sha256_of, to_json, write_bytes
from findings import PASS, UnusableError, guarded

sys.path.insert(0, str(ROOT))
from mmaemu._verified_files import PROVENANCE
from mmaemu.recordings import Bits, CallRecord, GemmRecord, MmaRecord, Record, read_folder, storage
from truth import Unreadable, read_platform

# The real-model call that the package ships whole; the other calls of it stay in the tests.
SHIPPED_CALL: Final = "evo2.evo2_1b_w2k/call00/"
# Shipped rows besides it are small, so that the package stays small.
SHIPPED_ROW_BYTES: Final[Mapping[type[Record], int]] = {MmaRecord: 13_000, GemmRecord: 8_000}

# The facts of a platform that its rows do not repeat.
ATTRIBUTION: Final = ("Xun Ding", "Arc Institute")
PLATFORMS: Final[Mapping[str, Mapping[str, str]]] = {
    "rtx4060": {
        "gpu": "NVIDIA GeForce RTX 4060",
        "compute_capability": "8.9",
        "sm_count": "24",
        "cublaslt": "12.8.3.14",
        "torch": "2.7.1+cu128",
        "driver": "572.16",
        "origin": "published with the public mmaemu 0.1.0 distribution (Xun Ding)",
        "licence": "Apache-2.0; rows evo2.* hold Evo 2 (Arc Institute, Apache-2.0)",
    }
}


class ArrayTable:
    """Collects arrays, each distinct content once, in the order of first use."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, tuple[int, ...], bytes], int] = {}

    def add(self, array: Bits | None) -> str:
        """The number of an array as a CSV cell; empty for None."""
        if array is None:
            return ""
        key = (array.dtype.name, array.shape, array.astype(array.dtype.newbyteorder("<")).tobytes())
        return str(self._numbers.setdefault(key, len(self._numbers)))

    def index(self) -> list[tuple[str, str]]:
        """The rows of arrays.csv."""
        return [(dtype, storage.format_shape(shape)) for dtype, shape, _ in self._numbers]

    def npz(self) -> bytes:
        """arrays.npz: byte planes of all elements of a width; fixed times, order and level."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for dtype in storage.DTYPES:
                little = np.dtype(dtype).newbyteorder("<")
                data = b"".join(raw for name, _, raw in self._numbers if name == dtype)
                member = io.BytesIO()
                planes = storage.split_planes(np.frombuffer(data, little).astype(dtype))
                np.lib.format.write_array(member, planes, version=(1, 0), allow_pickle=False)
                entry = zipfile.ZipInfo(f"{dtype}.npy", date_time=(1980, 1, 1, 0, 0, 0))
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, member.getvalue(), compresslevel=9)
        return buffer.getvalue()


class CallTable:
    """Collects call descriptions, each distinct one once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def add(self, call: Mapping[str, Any]) -> str:
        """The number of a call description as a CSV cell."""
        text = json.dumps(call, sort_keys=True)
        return str(self._numbers.setdefault(text, len(self._numbers)))

    def file(self) -> bytes:
        """calls.json: one description a line, so that a change shows as one line."""
        lines = ",\n".join(self._numbers)
        return f'{{"schema": "{storage.SCHEMA}", "calls": [\n{lines}\n]}}\n'.encode()


def to_csv(header: str, rows: Iterable[Sequence[str]]) -> bytes:
    """A CSV file with Unix line ends."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header.split(","))
    writer.writerows(rows)
    return text.getvalue().encode()


def _bits(value: int | None) -> str:
    return "" if value is None else f"{value:08X}"


def _mma_row(record: MmaRecord, arrays: ArrayTable) -> list[str]:
    return [
        record.id,
        record.recording,
        record.preset,
        record.layout,
        record.format_a,
        record.format_b,
        *(arrays.add(array) for array in (record.a, record.b, record.c, record.d)),
    ]


def _gemm_row(record: GemmRecord, arrays: ArrayTable, calls: CallTable) -> list[str]:
    return [
        record.id,
        record.recording,
        record.profile,
        record.op,
        record.format_a,
        record.format_b,
        record.out_dtype,
        str(int(record.use_fast_accum)),
        str(record.split[0]),
        record.split[1],
        _bits(record.scale_a_bits),
        _bits(record.scale_b_bits),
        _bits(record.scale_result_bits),
        *(arrays.add(array) for array in (record.a, record.b, record.out)),
        record.error or "",
        calls.add(record.call),
    ]


def _call_row(record: CallRecord, arrays: ArrayTable, calls: CallTable) -> list[str]:
    return [
        record.id,
        record.recording,
        record.profile,
        record.out_dtype,
        str(int(record.out_dtype_passed)),
        str(int(record.use_fast_accum)),
        str(record.split[0]),
        record.split[1],
        *(arrays.add(array) for array in (record.a, record.b, record.out)),
        record.error or "",
        calls.add(record.call),
    ]


def export(platform: str, records: Sequence[Record]) -> dict[str, bytes]:
    """The files of one stored platform; pure.

    Args:
        platform: its name; `PLATFORMS` holds its facts.
        records: what to store, in order.

    Returns:
        File contents by name, provenance.json included. Equal records give equal bytes as long
        as zlib compresses alike; `content_sha256` in provenance.json does not depend on that.

    Raises:
        UnusableError: nothing is known about the platform.
    """
    if platform not in PLATFORMS:
        raise UnusableError(f"no facts about platform {platform!r}; add them to PLATFORMS")
    arrays, calls = ArrayTable(), CallTable()
    mma = [_mma_row(record, arrays) for record in records if isinstance(record, MmaRecord)]
    gemm = [
        _gemm_row(record, arrays, calls) for record in records if isinstance(record, GemmRecord)
    ]
    call = [
        _call_row(record, arrays, calls) for record in records if isinstance(record, CallRecord)
    ]
    contents = {
        "arrays.npz": arrays.npz(),
        "arrays.csv": to_csv(storage.ARRAY_HEADER, arrays.index()),
        "calls.json": calls.file(),
        "mma.csv": to_csv(storage.MMA_HEADER, mma),
        "gemm.csv": to_csv(storage.GEMM_HEADER, gemm),
        "call.csv": to_csv(storage.CALL_HEADER, call),
    }
    provenance = {
        "schema": storage.SCHEMA,
        "platform": {"name": platform, **PLATFORMS[platform]},
        "attribution": list(ATTRIBUTION),
        "rows": {"mma": len(mma), "gemm": len(gemm), "call": len(call)},
        "arrays_content_sha256": npz_content_sha256(contents["arrays.npz"]),
        "exporter": "tools/export/export_recordings.py",
        "files": {
            name: {"sha256": sha256_of(data), "size": len(data)} for name, data in contents.items()
        },
    }
    return {**contents, PROVENANCE: to_json(provenance).encode()}


def _row_bytes(record: Record) -> int:
    names = ("a", "b", "c", "d", "out")
    arrays = (getattr(record, name, None) for name in names)
    return sum(array.nbytes for array in arrays if array is not None)


def shipped(records: Sequence[Record]) -> list[Record]:
    """The few records for the package.

    All outputs of one projection of a real model, and the smallest row of each kind of
    instruction chain (layout, formats, K) and of GEMM (operation, formats, output, accumulation,
    split) unless that is large.
    """
    chosen: dict[tuple[object, ...], Record] = {}
    for record in sorted(records, key=_row_bytes):
        if isinstance(record, CallRecord) or (isinstance(record, GemmRecord) and record.error):
            continue
        if record.id.startswith(SHIPPED_CALL):
            chosen[(record.id,)] = record
        elif _row_bytes(record) <= SHIPPED_ROW_BYTES[type(record)]:
            chosen.setdefault(_kind_of(record), record)
    kept = {id(record) for record in chosen.values()}
    return [record for record in records if id(record) in kept]


def _kind_of(record: MmaRecord | GemmRecord) -> tuple[object, ...]:
    if isinstance(record, MmaRecord):
        return (record.layout, record.format_a, record.format_b, record.a.shape[-1])
    return (
        record.op,
        record.format_a,
        record.format_b,
        record.out_dtype,
        record.use_fast_accum,
        record.split,
    )


def _write(folder: Path, contents: Mapping[str, bytes], *, dry_run: bool) -> None:
    for name, data in contents.items():
        unchanged = (folder / name).exists() and (folder / name).read_bytes() == data
        print(f"{folder.relative_to(ROOT)}/{name}: {len(data):,} bytes{'' if unchanged else ' *'}")
        if not dry_run and not unchanged:
            write_bytes(folder / name, data)
    if not dry_run:
        read_folder(folder)  # Reads everything back and verifies every hash.


def run(arguments: argparse.Namespace) -> int:
    """Read the truth folder, plan both exports, write and read them back."""
    platform: str = arguments.platform
    rows = read_platform(arguments.truth / platform).rows
    if bad := [row for row in rows if isinstance(row, Unreadable)]:
        raise UnusableError(
            f"{len(bad)} rows are not understood, first {bad[0].id}: {bad[0].reason}"
        )
    records = [row for row in rows if not isinstance(row, Unreadable)]
    if not records:
        raise UnusableError(f"no rows in {arguments.truth / platform}")
    plans = (
        (ROOT / "tests" / "recordings" / platform, records),
        (ROOT / "mmaemu" / "recordings" / "data" / platform, shipped(records)),
    )
    for folder, chosen in plans:
        _write(folder, export(platform, chosen), dry_run=arguments.dry_run)
    return PASS


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(prog="export_recordings", description=__doc__)
    parser.add_argument("truth", type=Path, help="folder with one folder per platform")
    parser.add_argument("--platform", default="rtx4060", choices=sorted(PLATFORMS))
    parser.add_argument("--dry-run", action="store_true", help="say what would be written")
    arguments = parser.parse_args(argv)
    return guarded(parser.prog, lambda: run(arguments))


if __name__ == "__main__":
    raise SystemExit(main())

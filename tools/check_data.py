"""Check stored data: provenance, hashes, schema and structure of recordings and tables.

Every folder with data has a provenance.json that lists each of its files with size and sha256;
recordings are checked further, down to every reference from a row to an array.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from files import ROOT, sha256_of
from findings import Outcome, Rule, UnusableError, apply_rules, run

sys.path.insert(0, str(ROOT))
from mmaemu._verified_files import PROVENANCE
from mmaemu.errors import DataIntegrityError
from mmaemu.recordings import storage

DATA_SUFFIXES: Final = (".npz", ".csv")
ROOTS: Final = ("mmaemu", "tests/recordings")
SIZE_LIMIT: Final = 20_000_000
REQUIRED: Final = ("schema", "platform", "files")

Findings = Iterable[tuple[str, str]]
Row = Mapping[str, str]


@dataclass(frozen=True)
class Folder:
    """One folder with data.

    Attributes:
        path: path in the repository.
        files: contents by file name.
    """

    path: str
    files: Mapping[str, bytes]

    @cached_property
    def provenance(self) -> Mapping[str, Any] | None:
        """The parsed provenance.json; None where it is missing or no JSON object."""
        try:
            document = json.loads(self.files.get(PROVENANCE, b""))
        except ValueError:
            return None
        return document if isinstance(document, dict) else None

    @property
    def listed(self) -> Mapping[str, Any]:
        """The files that provenance.json lists."""
        files = (self.provenance or {}).get("files")
        return files if isinstance(files, dict) else {}

    @property
    def is_recording(self) -> bool:
        """Whether the folder holds recordings in the form that this check knows."""
        return (self.provenance or {}).get("schema") == storage.SCHEMA

    @cached_property
    def tables(self) -> Mapping[str, list[dict[str, str]]]:
        """The rows of every CSV file of a recording that can be read."""
        tables = {}
        for name, header in CSV_HEADERS.items():
            try:
                tables[name] = storage.read_csv(self.files.get(name, b""), header)
            except (DataIntegrityError, UnicodeDecodeError):
                continue
        return tables

    @cached_property
    def calls(self) -> list[Any] | None:
        """The call descriptions; None where they cannot be read."""
        try:
            calls = json.loads(self.files.get("calls.json", b""))["calls"]
        except (ValueError, KeyError, TypeError):
            return None
        return calls if isinstance(calls, list) else None

    @cached_property
    def arrays(self) -> storage.Arrays | None:
        """The arrays; None where they cannot be read."""
        try:
            return storage.read_arrays(
                self.files.get("arrays.npz", b""), self.files.get("arrays.csv", b"")
            )
        except (DataIntegrityError, OSError, KeyError, ValueError, zipfile.BadZipFile):
            return None

    def rows(self) -> Iterator[tuple[str, Row]]:
        """Every row of mma.csv, gemm.csv and call.csv with the name of its file."""
        for name in ROW_FILES:
            for row in self.tables.get(name, ()):
                yield name, row


CSV_HEADERS: Final = {
    "arrays.csv": storage.ARRAY_HEADER,
    "mma.csv": storage.MMA_HEADER,
    "gemm.csv": storage.GEMM_HEADER,
    "call.csv": storage.CALL_HEADER,
}
ROW_FILES: Final = ("mma.csv", "gemm.csv", "call.csv")


@dataclass(frozen=True)
class DataFacts:
    """All folders with data, and the texts that must attribute them."""

    folders: tuple[Folder, ...]
    notice: str

    @property
    def recordings(self) -> Iterator[Folder]:
        """The folders with recordings."""
        return (folder for folder in self.folders if folder.is_recording)


def load(root: Path) -> DataFacts:
    """Read every folder below the data roots that holds data files or a provenance.json.

    Raises:
        UnusableError: there is no data root.
    """
    if not any((root / name).is_dir() for name in ROOTS):
        raise UnusableError(f"{root} has none of {', '.join(ROOTS)}; give the root of a checkout")
    paths = (path for name in ROOTS for path in (root / name).rglob("*") if path.is_file())
    folders = {
        path.parent for path in paths if path.suffix in DATA_SUFFIXES or path.name == PROVENANCE
    }
    read = (
        Folder(
            folder.relative_to(root).as_posix(),
            {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()},
        )
        for folder in sorted(folders)
    )
    notice = root / "NOTICE"
    return DataFacts(tuple(read), notice.read_text(encoding="utf-8") if notice.exists() else "")


def _provenance_is_there(facts: DataFacts) -> Findings:
    for folder in facts.folders:
        if folder.provenance is None:
            yield (
                folder.path,
                f"{PROVENANCE} is missing or no JSON object; export the data again",
            )
            continue
        missing = [key for key in REQUIRED if not folder.provenance.get(key)]
        if missing:
            yield (
                f"{folder.path}/{PROVENANCE}",
                f"lacks {', '.join(missing)}; add what the exporter writes",
            )


def _files_are_listed(facts: DataFacts) -> Findings:
    for folder in facts.folders:
        present = folder.files.keys() - {PROVENANCE}
        for name in sorted(present - folder.listed.keys()):
            yield f"{folder.path}/{name}", f"is not listed in {PROVENANCE}; remove or export it"
        for name in sorted(folder.listed.keys() - present):
            yield f"{folder.path}/{name}", f"is listed in {PROVENANCE} but missing; restore it"


def _files_are_as_recorded(facts: DataFacts) -> Findings:
    for folder in facts.folders:
        for name, said in folder.listed.items():
            if name not in folder.files:
                continue
            data = folder.files[name]
            found = {"sha256": sha256_of(data), "size": len(data)}
            for key, value in found.items():
                if not isinstance(said, dict) or said.get(key) != value:
                    recorded = said.get(key) if isinstance(said, dict) else said
                    yield (
                        f"{folder.path}/{name}",
                        f"{key} is {value}, {PROVENANCE} says {recorded}; restore the file",
                    )


def _content_is_as_recorded(facts: DataFacts) -> Findings:
    for folder in facts.recordings:
        said = (folder.provenance or {}).get("arrays_content_sha256")
        try:
            found = npz_content_sha256(folder.files.get("arrays.npz", b""))
        except (zipfile.BadZipFile, OSError) as error:
            yield f"{folder.path}/arrays.npz", f"cannot be read ({error}); restore the file"
            continue
        if found != said:
            yield (
                f"{folder.path}/arrays.npz",
                f"the content has sha256 {found}, {PROVENANCE} says {said}; restore the file",
            )


def npz_content_sha256(npz: bytes) -> str:
    """The sha256 over the uncompressed members of an npz file, in order."""
    with zipfile.ZipFile(io.BytesIO(npz)) as archive:
        return sha256_of(b"".join(archive.read(name) for name in archive.namelist()))


def _platform_is_the_folder(facts: DataFacts) -> Findings:
    for folder in facts.recordings:
        platform = (folder.provenance or {}).get("platform")
        named = platform if isinstance(platform, dict) else {}
        if named.get("name") != Path(folder.path).name:
            yield (
                f"{folder.path}/{PROVENANCE}",
                f"platform.name is {named.get('name')!r}, the folder says otherwise; rename one",
            )
        for key in ("origin", "licence", "gpu", "cublaslt", "torch"):
            if not named.get(key):
                yield f"{folder.path}/{PROVENANCE}", f"platform.{key} is missing; state it"


def _tables_can_be_read(facts: DataFacts) -> Findings:
    for folder in facts.recordings:
        for name, header in CSV_HEADERS.items():
            if name not in folder.tables:
                yield (
                    f"{folder.path}/{name}",
                    f"is no UTF-8 CSV with the columns {header}; export it again",
                )
        if folder.calls is None:
            yield f"{folder.path}/calls.json", "has no list `calls`; export it again"


def _arrays_can_be_read(facts: DataFacts) -> Findings:
    for folder in facts.recordings:
        where = f"{folder.path}/arrays.npz"
        if folder.arrays is None:
            yield where, "does not fit arrays.csv or is no npz file; export both again"
            continue
        with np.load(io.BytesIO(folder.files["arrays.npz"]), allow_pickle=False) as stored:
            wrong = [name for name in stored.files if stored[name].dtype != np.uint8]
        if wrong:
            yield where, f"{', '.join(wrong)}: not stored as byte planes (uint8); export it again"


def _counts_are_as_recorded(facts: DataFacts) -> Findings:
    for folder in facts.recordings:
        found = {name.removesuffix(".csv"): len(folder.tables.get(name, ())) for name in ROW_FILES}
        said = (folder.provenance or {}).get("rows")
        if said != found:
            yield (
                f"{folder.path}/{PROVENANCE}",
                f"rows says {said}, the files hold {found}; export the data again",
            )


def _labels_are_unique(facts: DataFacts) -> Findings:
    for folder in facts.recordings:
        labels = Counter((name, row["id"]) for name, row in folder.rows())
        for (name, label), count in labels.items():
            if count > 1:
                yield f"{folder.path}/{name}", f"{label!r} stands {count} times; labels are unique"


def _references_resolve(facts: DataFacts) -> Findings:
    for folder in facts.recordings:
        sizes = {"call": len(folder.calls or ())}
        sizes |= dict.fromkeys("abcd", len(folder.arrays or ()))
        sizes["out"] = sizes["a"]
        for name, row in folder.rows():
            for column in sizes.keys() & row.keys():
                cell = row[column]
                optional = column in ("a", "b", "out")
                if (cell == "" and optional) or (cell.isdecimal() and int(cell) < sizes[column]):
                    continue
                yield (
                    f"{folder.path}/{name}",
                    f"{row['id']}: {column} is {cell!r}, expected a number below {sizes[column]}",
                )


def _arrays_are_used(facts: DataFacts) -> Findings:
    for folder in facts.recordings:
        used = {
            int(row[column])
            for _, row in folder.rows()
            for column in ("a", "b", "c", "d", "out")
            if row.get(column, "").isdecimal()
        }
        unused = len(set(range(len(folder.arrays or ()))) - used)
        if unused:
            yield f"{folder.path}/arrays.csv", f"{unused} arrays belong to no row; export it again"


def _one_expectation(facts: DataFacts) -> Findings:
    for folder in facts.recordings:
        for name, row in folder.rows():
            if name != "mma.csv" and bool(row["out"]) == bool(row["error"]):
                yield (
                    f"{folder.path}/{name}",
                    f"{row['id']}: expected exactly one of out and error; export it again",
                )


def _shapes_fit(facts: DataFacts) -> Findings:
    for folder in facts.recordings:
        if folder.arrays is None:
            continue
        for name, row in folder.rows():
            arrays = _row_arrays(folder.arrays, row)
            problem = _shape_problem(name, row, arrays)
            if problem:
                yield f"{folder.path}/{name}", f"{row['id']}: {problem}; export it again"


def _row_arrays(arrays: storage.Arrays, row: Row) -> dict[str, Any]:
    return {
        column: arrays[int(row[column])]
        for column in ("a", "b", "c", "d", "out")
        if row.get(column, "").isdecimal() and int(row[column]) < len(arrays)
    }


def _shape_problem(name: str, row: Row, arrays: Mapping[str, Any]) -> str | None:
    a, b = arrays.get("a"), arrays.get("b")
    if a is None or b is None:
        return None
    if a.shape[-1:] != b.shape[-1:]:
        return f"a {a.shape} and b {b.shape} differ in K"
    if name != "mma.csv":
        out = arrays.get("out")
        allowed = ((a.shape[0], b.shape[0]), (a.shape[0],))
        if out is not None and name == "gemm.csv" and out.shape not in allowed:
            return f"out {out.shape} fits neither a {a.shape} nor b {b.shape}"
        return None
    tile = row["layout"] == "tile"
    expected = (*a.shape[:-1], b.shape[1]) if tile else a.shape[:-1]
    wrong = [key for key in "cd" if key in arrays and arrays[key].shape != expected]
    return f"{' and '.join(wrong)}: expected the shape {expected}" if wrong else None


def _shipped_rows_are_recorded(facts: DataFacts) -> Findings:
    whole = {Path(f.path).name: f for f in facts.recordings if f.path.startswith("tests/")}
    for folder in facts.recordings:
        source = whole.get(Path(folder.path).name)
        if source is None or source is folder:
            continue
        known = {_content(source, name, row) for name, row in source.rows()}
        for name, row in folder.rows():
            if _content(folder, name, row) not in known:
                yield (
                    f"{folder.path}/{name}",
                    f"{row['id']}: {source.path} holds no such row; export both again",
                )


def _content(folder: Folder, name: str, row: Row) -> tuple[Any, ...]:
    arrays = _row_arrays(folder.arrays, row) if folder.arrays else {}
    calls = folder.calls or []
    call = row.get("call", "")
    described = calls[int(call)] if call.isdecimal() and int(call) < len(calls) else None
    plain = tuple(value for key, value in row.items() if key not in arrays and key != "call")
    bits = tuple((key, array.shape, array.tobytes()) for key, array in arrays.items())
    return name, plain, json.dumps(described, sort_keys=True), bits


def _origins_are_attributed(facts: DataFacts) -> Findings:
    notice = " ".join(facts.notice.split())
    for folder in facts.folders:
        rights = (folder.provenance or {}).get("attribution")
        for name in rights if isinstance(rights, list) else [None]:
            if not name:
                yield (
                    f"{folder.path}/{PROVENANCE}",
                    "names nobody in `attribution`; name the source",
                )
            elif name not in notice:
                yield "NOTICE", f"does not attribute {name!r}, the source of {folder.path}; add it"


def _size_is_bounded(facts: DataFacts) -> Findings:
    total = sum(len(data) for folder in facts.folders for data in folder.files.values())
    if total >= SIZE_LIMIT:
        yield "data", f"{total:,} bytes in all, expected less than {SIZE_LIMIT:,}; store less"


RULES: Final[tuple[Rule[DataFacts], ...]] = (
    Rule("DATA101", "Every data folder has a provenance.json.", _provenance_is_there),
    Rule("DATA102", "provenance.json lists exactly the files of its folder.", _files_are_listed),
    Rule("DATA103", "Every file has the recorded size and sha256.", _files_are_as_recorded),
    Rule("DATA104", "The arrays have the recorded content.", _content_is_as_recorded),
    Rule("DATA105", "A recording states its platform and origin.", _platform_is_the_folder),
    Rule("DATA106", "NOTICE attributes the source of all data.", _origins_are_attributed),
    Rule("DATA107", "All data together is smaller than 20 MB.", _size_is_bounded),
    Rule("DATA201", "The tables of a recording have the documented form.", _tables_can_be_read),
    Rule("DATA202", "arrays.npz and arrays.csv fit each other.", _arrays_can_be_read),
    Rule("DATA203", "Row counts are the recorded ones.", _counts_are_as_recorded),
    Rule("DATA204", "Labels of rows are unique.", _labels_are_unique),
    Rule("DATA205", "Every reference to an array or a call resolves.", _references_resolve),
    Rule("DATA206", "Every array belongs to a row.", _arrays_are_used),
    Rule("DATA207", "A row expects either values or an error.", _one_expectation),
    Rule("DATA208", "The shapes of a row's arrays fit each other.", _shapes_fit),
    Rule("DATA209", "Shipped rows are rows of the tests' recordings.", _shipped_rows_are_recorded),
)


def check(root: Path) -> Outcome:
    """All findings about the data below a checkout's root."""
    return apply_rules(RULES, load(root))


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; exit 0 no finding, 1 findings, 2 could not run."""
    parser = argparse.ArgumentParser(prog="check_data", description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help="checkout to look at")
    return run(parser, lambda arguments: check(arguments.root), argv)


if __name__ == "__main__":
    raise SystemExit(main())

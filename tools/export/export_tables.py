"""Turn recorded cuBLASLt decisions into the package's split-K tables, and check every row.

    python tools/export/export_tables.py SOURCE.npz [SOURCE.npz ...] [--data DIR] [--check]

A source is what tools/record/record_heuristics.py writes: columns in an npz, and a JSON file of the
same name beside it. Sources of one platform are merged. A platform that the data folder has already
is extended, unless a source says itself what was replayed: then it replaces the table.
--check writes nothing and says whether the data folder holds what would be written.
Exit codes: 0 written or equal, 1 not equal, 2 the sources cannot be used.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from files import ROOT, sha256_of, sha256_of_file, to_json, write_bytes
from findings import FAIL, PASS, UnusableError, guarded

sys.path.insert(0, str(ROOT))
from mmaemu._verified_files import PROVENANCE
from mmaemu.bindings.algoconfig import AlgoConfig
from mmaemu.errors import DataIntegrityError
from mmaemu.gemm.problem import GemmProblem
from mmaemu.gemm.splitk import Scheme, SplitK
from mmaemu.profiles import table as stored
from mmaemu.profiles.envelope import Envelope, HeldOutTest, Inference, Setting

if TYPE_CHECKING:
    from numpy.typing import NDArray

OUTPUTS: Final = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
CODE_BITS: Final = np.iinfo(stored.CODE_DTYPE).bits
# The published recordings do not name their author; they are known by their hash.
PUBLISHED: Final = {
    "attribution": "Xun Ding",
    "licence": "Apache-2.0",
    "origin": "published with the public mmaemu 0.1.0 distribution",
}
PUBLISHED_SHA256: Final = frozenset(
    {
        "58f26b4ef94261cc8062cd2f485ddd4856a3793bf895659d2d3f07fa2fe9edea",
        "614805712c9b8a437dc9940ef8895526e987b75b4d120f15d68dc88ca261a579",
    }
)


class SourceError(UnusableError):
    """A source cannot be used; the message says what is wrong with it."""


@dataclass(frozen=True)
class Rows:
    """Recorded decisions.

    Attributes:
        settings: the settings that occur.
        values: int64 [n, 9]: workspace in bytes, index of the setting, M, N, K, numSplitsK,
            customOption, algo, tile.
    """

    settings: tuple[Setting, ...]
    values: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class About:
    """What table.json says beside the rows; the fields are those of DecisionTable."""

    platform: dict[str, Any]
    scheme_by_option: Mapping[int, Scheme]
    scheme_of_unlisted: Scheme
    replayed: frozenset[tuple[Setting, SplitK]]
    ragged_K_verified: bool  # noqa: N815 - as the field of the stored form
    envelope: Envelope


@dataclass(frozen=True)
class Source:
    """One recording with where it comes from."""

    rows: Rows
    about: About
    provenance: dict[str, Any]
    complete: bool


def merge(parts: Sequence[Rows]) -> Rows:
    """One set of rows in order of workspace, setting and shape; equal rows once.

    Raises:
        SourceError: two rows have the same key and different decisions.
    """
    # In this order neighbouring settings mostly have the same decisions, which compresses well.
    settings = tuple(
        sorted(
            {setting for part in parts for setting in part.settings},
            key=lambda name: (name.use_fast_accum, OUTPUTS.index(name.out), name[:2]),
        )
    )
    renumbered = []
    for part in parts:
        values = part.values.copy()
        number = np.array([settings.index(setting) for setting in part.settings], dtype=np.int64)
        values[:, 1] = number[part.values[:, 1]]
        renumbered.append(values)
    values = np.concatenate(renumbered)
    values = values[np.lexsort(values[:, ::-1].T)]
    again = (values[1:] == values[:-1]).all(axis=1)
    values = values[np.r_[True, ~again]] if len(values) else values
    clash = (values[1:, :5] == values[:-1, :5]).all(axis=1)
    if clash.any():
        workspace, setting, *shape = values[1:][clash][0, :5].tolist()
        raise SourceError(
            f"{int(clash.sum())} keys have two decisions, the first M, N, K = {shape}, "
            f"{settings[setting]}, workspace {workspace} B; keep one recording of each key"
        )
    return Rows(settings, values)


def encode(rows: Rows) -> dict[str, NDArray[Any]]:
    """The arrays of decisions.npz.

    Args:
        rows: rows with unique keys.

    Raises:
        SourceError: a number does not fit the stored form.
    """
    shapes, row = _distinct(rows.values[:, 2:5], "sizes", 1, stored.SIZE_BITS)
    configs, code = _distinct(rows.values[:, 5:], "numbers of a decision", 0, CODE_BITS)
    if len(configs) >= 1 << CODE_BITS:
        raise SourceError(f"{len(configs)} distinct decisions; the stored form has room for 65535")
    arrays: dict[str, NDArray[Any]] = {
        "shapes": shapes.astype(stored.SHAPE_DTYPE),
        "configs": configs.astype(stored.CODE_DTYPE),
    }
    for workspace in np.unique(rows.values[:, 0]).tolist():
        here = rows.values[:, 0] == workspace
        codes = np.zeros((len(shapes), len(rows.settings)), dtype=stored.CODE_DTYPE)
        codes[row[here], rows.values[here, 1]] = code[here] + 1
        arrays[f"codes_{workspace}"] = codes
    return arrays


def _distinct(
    values: NDArray[np.int64], what: str, least: int, bits: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct rows in increasing order, and which of them each row is."""
    if values.size and not least <= values.min() <= values.max() < 1 << bits:
        raise SourceError(f"{what} must lie in {least}..{(1 << bits) - 1}")
    # Sorting one integer per row is much faster than sorting rows.
    places = np.array([bits * place for place in range(values.shape[1])][::-1], dtype=np.uint64)
    packed = (values.astype(np.uint64) << places).sum(axis=1, dtype=np.uint64)
    _, first, inverse = np.unique(packed, return_index=True, return_inverse=True)
    return values[first], inverse


def decode(table: stored.DecisionTable) -> Rows:
    """The rows of a stored table, in the order of `merge`."""
    parts = [np.zeros((0, 9), dtype=np.int64)]
    for workspace, setting, shapes, configs in table:
        key = np.array([[workspace, table.settings.index(setting)]], dtype=np.int64)
        parts.append(np.hstack([np.repeat(key, len(shapes), axis=0), shapes, configs]))
    return Rows(table.settings, np.concatenate(parts))


def read_source(path: Path) -> Source:
    """Read one recording.

    Raises:
        SourceError: a file or column is missing, or the JSON file does not belong to the npz.
    """
    beside = path.with_suffix(".json")
    try:
        document: dict[str, Any] = json.loads(beside.read_text(encoding="utf-8"))
        if document["npz_sha256"] != sha256_of_file(path):
            raise SourceError(f"{beside} belongs to another {path.name}: its npz_sha256 differs")
        with np.load(path, allow_pickle=False) as archive:
            rows = _source_rows(archive, document["codes"])
        return Source(
            rows=rows,
            about=_source_about(document, rows),
            provenance=_source_provenance(path, document),
            complete="replayed_split_combinations" in document,
        )
    except (OSError, KeyError, ValueError) as error:
        raise SourceError(f"{path} with {beside.name}: {error!r}") from error


def _source_rows(archive: Mapping[str, NDArray[Any]], codes: Mapping[str, Any]) -> Rows:
    setting_columns = np.column_stack([archive[name] for name in ("fa", "fb", "out", "fast")])
    distinct, index = np.unique(setting_columns, axis=0, return_inverse=True)
    settings = tuple(
        Setting(codes["fmt"][str(fa)], codes["fmt"][str(fb)], codes["out"][str(out)], bool(fast))
        for fa, fb, out, fast in distinct.tolist()
    )
    workspaces = np.array(codes["ws_bytes"], dtype=np.int64)[archive["ws"]]
    names = ("M", "N", "K", "splitK", "custom", "algo", "tile")
    rest = [archive[name].astype(np.int64) for name in names]
    return Rows(settings, np.column_stack([workspaces, index.reshape(-1), *rest]))


def _source_about(document: Mapping[str, Any], rows: Rows) -> About:
    codes = document["codes"]
    return About(
        platform=document["platform"],
        scheme_by_option={int(key): name for key, name in codes["custom_to_scheme"].items()},
        scheme_of_unlisted=codes["unlisted_custom_to_scheme"],
        replayed=frozenset(
            (_setting_of(formats, out, fast=fast), SplitK(splits, scheme))
            for fast, splits, scheme, out, formats in document.get(
                "replayed_split_combinations", ()
            )
        ),
        ragged_K_verified=document.get("ragged_K_verified", False),
        envelope=_source_envelope(document.get("envelope"), rows),
    )


def _setting_of(formats: str, out: str, *, fast: bool) -> Setting:
    format_a, _, format_b = formats.partition("x")
    return Setting(format_a, format_b, out, fast)


def _source_envelope(source: Mapping[str, Any] | None, rows: Rows) -> Envelope:
    if source is None:
        return Envelope(None, {}, {}, None)
    if source["kind"] == "max_split_MN":
        return Envelope(None, margin_bounds(source["margin"], rows), {}, source["margin"])
    if source["kind"] != "k_grid":
        raise ValueError(f"unknown kind of envelope {source['kind']!r}")
    bounds = {
        (entry["ws"], Setting(entry["fmt_a"], entry["fmt_b"], entry["out"], entry["fast"])): entry[
            "B"
        ]
        for entry in source["bounds"]
    }
    return Envelope(
        grid_K=tuple(source["K_grid"]),
        # A setting without rows is one that the platform rejects: nothing can be inferred for it.
        bounds={key: tuple(B) for key, B in bounds.items() if key[1] in rows.settings},
        held_out={
            int(workspace): HeldOutTest(test["tested"], test["split_above_bound"])
            for workspace, test in source["validation"].items()
        },
        margin=None,
    )


def _source_provenance(path: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    published = document["npz_sha256"] in PUBLISHED_SHA256
    rights = PUBLISHED if published else document["rights"]
    files = {name.name: sha256_of_file(name) for name in (path, path.with_suffix(".json"))}
    return {**{key: rights[key] for key in PUBLISHED}, "sha256": files}


def margin_bounds(margin: int, rows: Rows) -> dict[tuple[int, Setting], tuple[int, ...]]:
    """Bounds a factor above the largest M*N that was split; 0 where nothing was ever split."""
    areas = rows.values[:, 2] * rows.values[:, 3] * (rows.values[:, 5] > 1)
    keys, index = np.unique(rows.values[:, :2], axis=0, return_inverse=True)
    largest = np.zeros(len(keys), dtype=np.int64)
    np.maximum.at(largest, index.reshape(-1), areas)
    return {
        (workspace, rows.settings[setting]): (margin * area,)
        for (workspace, setting), area in zip(keys.tolist(), largest.tolist(), strict=True)
    }


def about_table(table: stored.DecisionTable) -> About:
    """What a stored table says beside its rows."""
    return About(
        platform=table.platform,
        scheme_by_option=table.scheme_by_option,
        scheme_of_unlisted=table.scheme_of_unlisted,
        replayed=table.replayed,
        ragged_K_verified=table.ragged_K_verified,
        envelope=table.envelope,
    )


def table_id(platform: Mapping[str, Any]) -> str:
    """Folder of a platform; an NVIDIA GeForce RTX 4060 has rtx4060/cublaslt-<version>."""
    words = [word for word in platform["gpu"].split() if word not in {"NVIDIA", "GeForce"}]
    gpu = re.sub(r"[^a-z0-9]", "", "".join(words).lower())
    return f"{gpu}/cublaslt-{platform['cublaslt']}"


def contradictions(rows: Rows, envelope: Envelope) -> list[str]:
    """Recorded splits for which the envelope would infer S = 1."""
    found = []
    for workspace, setting, M, N, K, *_ in rows.values[rows.values[:, 5] > 1].tolist():
        problem = GemmProblem(M, N, K, *rows.settings[setting])
        if isinstance(envelope.infer(problem, workspace), Inference):
            found.append(f"M={M} N={N} K={K}, {rows.settings[setting]}, workspace {workspace} B")
    return found


def describe(rows: Rows, about: About) -> dict[str, Any]:
    """The document of table.json.

    Raises:
        SourceError: a recorded split lies above its bound, or a replayed setting has no row.
    """
    envelope = about.envelope
    wrong = contradictions(rows, envelope)
    if wrong:
        raise SourceError(
            f"{len(wrong)} recorded splits lie above their bound, the first {wrong[0]}; "
            "the envelope needs new bounds"
        )
    unknown = {setting for setting, _ in about.replayed} - set(rows.settings)
    if unknown:
        raise SourceError(f"replayed, but without a recorded decision: {sorted(unknown)}")
    workspaces = np.unique(rows.values[:, 0]).tolist()
    return {
        "schema": stored.SCHEMA,
        "table_id": table_id(about.platform),
        "platform": about.platform,
        "rows": len(rows),
        "split_rows": int((rows.values[:, 5] > 1).sum()),
        "workspaces": workspaces,
        "settings": [list(setting) for setting in rows.settings],
        "scheme_by_custom_option": {str(key): name for key, name in about.scheme_by_option.items()},
        "scheme_of_unlisted_custom_options": about.scheme_of_unlisted,
        "replayed": [_replayed_with(setting, about.replayed) for setting in rows.settings],
        "ragged_K_verified": about.ragged_K_verified,
        "envelope": {
            "margin": envelope.margin,
            "grid_K": envelope.grid_K,
            "bounds": {
                str(workspace): [envelope.bounds.get((workspace, name)) for name in rows.settings]
                for workspace in workspaces
            },
            "held_out": {
                str(workspace): test._asdict() for workspace, test in envelope.held_out.items()
            },
        },
    }


def _replayed_with(
    setting: Setting, replayed: frozenset[tuple[Setting, SplitK]]
) -> dict[str, list[int]]:
    splits = sorted((split.scheme, split.S) for name, split in replayed if name == setting)
    return {scheme: [S for name, S in splits if name == scheme] for scheme, _ in splits}


def as_json(document: Mapping[str, Any]) -> bytes:
    """JSON with a line for every key of the first two levels: short, and readable in a diff."""

    def block(value: object, margin: str) -> str:
        if not isinstance(value, dict) or not value or len(margin) > 2:  # noqa: PLR2004 - two levels
            return json.dumps(value, separators=(",", ":"))
        lines = [
            f"{margin} {json.dumps(key)}: {block(item, margin + ' ')}"
            for key, item in value.items()
        ]
        return "{\n" + ",\n".join(lines) + f"\n{margin}}}"

    return (block(dict(document), "") + "\n").encode()


@dataclass(frozen=True)
class Built:
    """One table as it would be written."""

    rows: Rows
    files: dict[str, bytes]


def build(sources: Sequence[Source], data: Path) -> dict[str, Built]:
    """The tables that the sources describe, by id.

    Args:
        sources: recordings of any platforms.
        data: folder with the tables that there are already.

    Raises:
        SourceError: the sources contradict each other or the table that they extend.
    """
    tables = {}
    for name in sorted({table_id(source.about.platform) for source in sources}):
        mine = [source for source in sources if table_id(source.about.platform) == name]
        complete = [source for source in mine if source.complete]
        rows = [source.rows for source in mine]
        origins = [source.provenance for source in mine]
        about = (complete or mine)[0].about
        if not complete and (data / name).is_dir():
            table = stored.DecisionTable(data / name)
            about = about_table(table)
            rows.append(decode(table))
            before = json.loads((data / name / PROVENANCE).read_bytes())
            origins = before["sources"] + origins
        merged = merge(rows)
        tables[name] = Built(merged, table_files(merged, about, origins))
    return tables


def table_files(rows: Rows, about: About, origins: list[dict[str, Any]]) -> dict[str, bytes]:
    """The files of one table; pure.

    Args:
        rows: rows in the order of `merge`.
        about: what they are; bounds with a margin are computed from the rows.
        origins: attribution, licence, origin and sha256 of every source.

    Returns:
        File contents by name, provenance.json included. Equal input gives equal bytes as long as
        zlib compresses alike.

    Raises:
        SourceError: the rows do not fit the stored form or contradict the envelope.
    """
    envelope = about.envelope
    if envelope.margin is not None:
        envelope = envelope._replace(bounds=margin_bounds(envelope.margin, rows))
    stream = io.BytesIO()
    np.savez_compressed(stream, allow_pickle=False, **encode(rows))
    contents = {
        stored.DESCRIPTION: as_json(describe(rows, replace(about, envelope=envelope))),
        stored.DECISIONS: stream.getvalue(),
    }
    provenance = {
        "schema": stored.SCHEMA,
        "platform": {"name": table_id(about.platform), **about.platform},
        "attribution": sorted({origin["attribution"] for origin in origins}),
        "sources": origins,
        "exporter": "tools/export/export_tables.py",
        "files": {
            name: {"sha256": sha256_of(content), "size": len(content)}
            for name, content in contents.items()
        },
    }
    return {**contents, PROVENANCE: to_json(provenance).encode()}


def verify(folder: Path, expected: Rows) -> None:
    """Read a written table back and compare every row, decoded at once and looked up one by one.

    Raises:
        SourceError: a row differs.
    """
    table = stored.DecisionTable(folder)
    found = decode(table)
    if found.settings != expected.settings or not np.array_equal(found.values, expected.values):
        raise SourceError(f"{folder} does not hold the rows of its sources")
    for workspace, setting, M, N, K, *config in expected.values.tolist():
        problem = GemmProblem(M, N, K, *expected.settings[setting])
        answer = table.find(problem, workspace)
        if answer != AlgoConfig(*config):
            raise SourceError(
                f"{folder}: {problem} with {workspace} B gives {answer}, not {config}"
            )


def write(tables: Mapping[str, Built], data: Path) -> None:
    """Write tables that read back row for row as they were built.

    Raises:
        SourceError: a row does not read back; nothing was written then.
    """
    with tempfile.TemporaryDirectory() as scratch:
        for name, built in tables.items():
            for file_name, content in built.files.items():
                write_bytes(Path(scratch) / name / file_name, content)
            verify(Path(scratch) / name, built.rows)
            print(f"{name}: {len(built.rows)} rows read back equal")
    for name, built in tables.items():
        for file_name, content in built.files.items():
            write_bytes(data / name / file_name, content)
            print(f"{data / name / file_name}: {len(content)} bytes")


def differences(tables: Mapping[str, Built], data: Path) -> list[str]:
    """Tables of a folder that are not what would be written.

    Arrays are compared, not compressed bytes: those depend on the compression library.
    """
    found = []
    for name, built in tables.items():
        folder = data / name
        try:
            verify(folder, built.rows)
            if (folder / stored.DESCRIPTION).read_bytes() != built.files[stored.DESCRIPTION]:
                found.append(f"{folder / stored.DESCRIPTION} would be written differently")
        except (SourceError, DataIntegrityError) as error:
            found.append(str(error))
    return found


def run(arguments: argparse.Namespace) -> int:
    """Build the tables, then compare them with those that there are, or write them."""
    tables = build([read_source(path) for path in arguments.sources], arguments.data)
    if not arguments.check:
        write(tables, arguments.data)
        return PASS
    found = differences(tables, arguments.data)
    print("\n".join(found) or f"equal: {', '.join(tables)}")
    return FAIL if found else PASS


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(prog="export_tables", description=__doc__)
    parser.add_argument("sources", nargs="+", type=Path, metavar="SOURCE.npz")
    parser.add_argument("--data", type=Path, default=stored.DATA, help="folder of the tables")
    parser.add_argument("--check", action="store_true", help="compare only, write nothing")
    arguments = parser.parse_args(argv)
    return guarded(parser.prog, lambda: run(arguments))


if __name__ == "__main__":
    raise SystemExit(main())

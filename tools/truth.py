"""Reader of MMAEMU_TRUTH_DIR: one folder per platform with mma, gemm, call rows and arrays.npz.

A row becomes a record of mmaemu.recordings, or an `Unreadable` that says why not: a row that is
not understood in full is never guessed at. Fields that only label a row are counted and ignored.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from findings import UnusableError
from mmaemu.formats import FORMATS
from mmaemu.instruction.models import model_for
from mmaemu.recordings import Bits, CallRecord, GemmRecord, MmaRecord, Record

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The profile of a platform whose rows name none: the folder names of the recorded tables.
PROFILES: Final = {"rtx4060": "ada", "h100pcie": "hopper"}

# What a GEMM row says beyond the columns that every row has.
GEMM_EXTRAS: Final = frozenset({"bias_dtype", "out_select", "scaling", "zero_operands_MNK"})
GEMM_CALL: Final = frozenset({"bias", "out_dtype", "out_fill", "requires_grad", "use_fast_accum"})

_COMMON: Final = frozenset({"id", "recording", "profile", "preset", "a", "b", "out", "error"})
_KNOWN: Final[Mapping[str, frozenset[str]]] = {
    "mma": _COMMON | {"c", "d", "fmt_a", "fmt_b", "layout"},
    "gemm": _COMMON
    | GEMM_EXTRAS
    | {"call", "fmt_a", "fmt_b", "op", "out_dtype", "split", "use_fast_accum"}
    | {"scale_a_bits", "scale_b_bits", "scale_result_bits"},
    "call": _COMMON | {"call", "out_dtype", "out_dtype_passed", "split", "use_fast_accum"},
}


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A row that could not be turned into a record, and why."""

    kind: str
    id: str
    recording: str
    reason: str


@dataclass(frozen=True, slots=True)
class Platform:
    """Everything that one platform's folder holds.

    Attributes:
        name: name of the folder.
        rows: records and unreadable rows, in file order: mma, gemm, call.
        ignored: how many rows have each field that is not understood and was left aside.
    """

    name: str
    rows: tuple[Record | Unreadable, ...]
    ignored: Mapping[str, int]


class _NotUnderstoodError(Exception):
    """A row says something that this reader does not know."""


def platform_folders(truth: Path) -> list[Path]:
    """The folders below `truth` that hold rows of a platform or toolbox sets, by name.

    Raises:
        UnusableError: `truth` is no folder.
    """
    if not truth.is_dir():
        raise UnusableError(
            f"{truth} is no folder; set MMAEMU_TRUTH_DIR to a folder of recordings or pass one"
        )
    folders = sorted(path for path in truth.iterdir() if path.is_dir())
    names = [f"{kind}.jsonl" for kind in _KNOWN] + ["sets.json"]
    return [path for path in folders if any((path / name).exists() for name in names)]


def read_platform(folder: Path) -> Platform:
    """Read one platform's folder; files that do not exist count as empty.

    Raises:
        UnusableError: a file cannot be read.
    """
    if (folder / "sets.json").exists():
        return read_toolbox(folder)
    npz = folder / "arrays.npz"
    arrays: Mapping[str, Bits] = {}
    if npz.exists():
        with np.load(npz, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    rows: list[Record | Unreadable] = []
    ignored: Counter[str] = Counter()
    for kind, known in _KNOWN.items():
        for row in _lines(folder / f"{kind}.jsonl"):
            ignored.update(f"{kind}.{name}" for name in row.keys() - known)
            rows.append(_read_row(kind, row, arrays, folder.name))
    return Platform(folder.name, tuple(rows), dict(sorted(ignored.items())))


def read_toolbox(folder: Path) -> Platform:
    """Read validation vectors of the MATLAB Tensor Core toolbox.

    Every set of sets.json becomes one instruction-chain record; its preset is the instruction
    model of the GPU, formats and instruction that the set names.

    Raises:
        UnusableError: sets.json or arrays.npz cannot be read.
    """
    try:
        sets = json.loads((folder / "sets.json").read_text(encoding="utf-8"))
        with np.load(folder / "arrays.npz", allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (OSError, ValueError) as error:
        raise UnusableError(f"{folder}: {error}; restore sets.json and arrays.npz") from error
    rows: list[Record | Unreadable] = []
    for entry in sets:
        label = "{gpu}/{instruction}/{fmt}-{out}-k{K}".format_map(entry)
        try:
            rows.append(_toolbox_set(label, entry, arrays))
        except (KeyError, TypeError, ValueError, _NotUnderstoodError) as error:
            rows.append(Unreadable("toolbox", label, label, f"{type(error).__name__}: {error}"))
    return Platform(folder.name, tuple(rows), {})


def _toolbox_set(label: str, entry: Mapping[str, Any], arrays: Mapping[str, Bits]) -> MmaRecord:
    names, fmt = entry["arrays"], entry["fmt"]
    model = model_for(gpu=entry["gpu"], fmt=fmt, out=entry["out"], instruction=entry["instruction"])
    values = {name: _fp32_values(arrays[names[name]]) for name in "abcd"}
    # The low bits of a tf32 register are data that the hardware ignores, so they are kept.
    a, b = (
        arrays[names[name]] if fmt == "tf32" else _exact_codes(fmt, values[name]) for name in "ab"
    )
    # The accumulator of a half-precision output is rounded on the way in; the result is exact.
    c = FORMATS[entry["out"]].encode(values["c"] if entry["c_used"] else 0 * values["c"])
    d = _exact_codes(entry["out"], values["d"])
    return MmaRecord(label, label, "toolbox", model.name, "vector", fmt, fmt, a, b, c, d)


def _fp32_values(bits: Bits) -> NDArray[np.float64]:
    if bits.dtype.itemsize != np.dtype(np.float32).itemsize:
        raise _NotUnderstoodError(f"expected fp32 bits, got {bits.dtype}")
    return bits.view(np.float32).astype(np.float64)


def _exact_codes(fmt: str, values: NDArray[np.float64]) -> Bits:
    codes: Bits = FORMATS[fmt].encode(values)
    if not np.array_equal(FORMATS[fmt].decode(codes), values):
        raise _NotUnderstoodError(f"a value is none of the format {fmt}")
    return codes


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UnusableError(f"{path}:{number}: no JSON ({error}); restore the file") from error
        if not isinstance(row, dict):
            raise UnusableError(f"{path}:{number}: expected a JSON object; restore the file")
        yield row


def _read_row(
    kind: str, row: dict[str, Any], arrays: Mapping[str, Bits], platform: str
) -> Record | Unreadable:
    try:
        return _BUILDERS[kind](row, arrays, platform)
    except _NotUnderstoodError as error:
        reason = str(error)
    except (KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
    identity = str(row.get("id", "?"))
    return Unreadable(kind, identity, _recording(row, identity), reason)


def _recording(row: Mapping[str, Any], identity: str) -> str:
    return str(row.get("recording") or identity.split("/", maxsplit=1)[0])


def _array(row: Mapping[str, Any], name: str, arrays: Mapping[str, Bits]) -> Bits:
    key = row[name]
    if key not in arrays:
        raise _NotUnderstoodError(f"array {key!r} of field {name!r} is not in arrays.npz")
    array = arrays[key]
    if array.dtype.kind != "u":
        raise _NotUnderstoodError(f"array {key!r} is {array.dtype}; expected unsigned integers")
    return array


def _optional(row: Mapping[str, Any], name: str, arrays: Mapping[str, Bits]) -> Bits | None:
    return None if row.get(name) is None else _array(row, name, arrays)


def _profile(row: Mapping[str, Any], platform: str) -> str:
    profile = row.get("profile") or PROFILES.get(platform)
    if profile is None:
        raise _NotUnderstoodError(
            f"neither the row nor the folder name {platform!r} says which profile it belongs to"
        )
    return str(profile)


def _split(row: Mapping[str, Any]) -> tuple[int, str]:
    count, scheme = row["split"]
    return int(count), str(scheme)


def _expectation(
    row: Mapping[str, Any], arrays: Mapping[str, Bits]
) -> tuple[Bits | None, str | None]:
    out, error = _optional(row, "out", arrays), row.get("error")
    if (out is None) == (error is None):
        raise _NotUnderstoodError("expected exactly one of the fields `out` and `error`")
    return out, error


def _mma(row: dict[str, Any], arrays: Mapping[str, Bits], platform: str) -> MmaRecord:
    identity = str(row["id"])
    return MmaRecord(
        id=identity,
        recording=_recording(row, identity),
        platform=platform,
        preset=row.get("preset") or _profile(row, platform),
        layout="tile" if row["layout"] == "tile" else "vector",
        format_a=row["fmt_a"],
        format_b=row["fmt_b"],
        a=_array(row, "a", arrays),
        b=_array(row, "b", arrays),
        c=_array(row, "c", arrays),
        d=_array(row, "d", arrays),
    )


def _gemm(row: dict[str, Any], arrays: Mapping[str, Bits], platform: str) -> GemmRecord:
    identity = str(row["id"])
    passed = dict(row.get("call") or {})
    if unknown := passed.keys() - GEMM_CALL:
        raise _NotUnderstoodError(f"the call passed {', '.join(sorted(unknown))}: not known here")
    extras = {name: row[name] for name in GEMM_EXTRAS if row.get(name) is not None}
    a, b = _optional(row, "a", arrays), _optional(row, "b", arrays)
    if (a is None or b is None) and "zero_operands_MNK" not in extras:
        raise _NotUnderstoodError("the row has neither operands nor zero_operands_MNK")
    out, error = _expectation(row, arrays)
    result_bits = row.get("scale_result_bits")
    return GemmRecord(
        id=identity,
        recording=_recording(row, identity),
        platform=platform,
        profile=_profile(row, platform),
        op=row["op"],
        format_a=row["fmt_a"],
        format_b=row["fmt_b"],
        out_dtype=row["out_dtype"],
        use_fast_accum=bool(row["use_fast_accum"]),
        split=_split(row),
        scale_a_bits=int(row["scale_a_bits"]),
        scale_b_bits=int(row["scale_b_bits"]),
        scale_result_bits=None if result_bits is None else int(result_bits),
        a=a,
        b=b,
        out=out,
        error=error,
        call={**passed, **extras},
    )


def _call(row: dict[str, Any], arrays: Mapping[str, Bits], platform: str) -> CallRecord:
    identity = str(row["id"])
    out, error = _expectation(row, arrays)
    return CallRecord(
        id=identity,
        recording=_recording(row, identity),
        platform=platform,
        profile=_profile(row, platform),
        out_dtype=row["out_dtype"],
        out_dtype_passed=bool(row["out_dtype_passed"]),
        use_fast_accum=bool(row["use_fast_accum"]),
        split=_split(row),
        a=_array(row, "a", arrays),
        b=_array(row, "b", arrays),
        out=out,
        error=error,
        call=row["call"],
    )


_BUILDERS: Final[Mapping[str, Callable[[dict[str, Any], Mapping[str, Bits], str], Record]]] = {
    "mma": _mma,
    "gemm": _gemm,
    "call": _call,
}

"""Record how cuBLASLt splits K on the GPU of this machine, for mmaemu's split-K tables.

    python tools/record/record_heuristics.py --shapes SHAPES.csv --out my_gpu.npz --by "Your Name"

For every M,N,K of the CSV file (a line each), every combination of FP8 formats, output type and
accumulation mode, and every workspace, it asks cuBLASLt's heuristic with the descriptor that torch
2.7.1 builds for torch._scaled_mm. Nothing is computed. It writes the columns to the npz and what
they mean to a JSON file beside it; tools/export/export_tables.py makes a table of them.
Needs an NVIDIA driver and cuBLASLt, not torch. It has not run on hardware in this project.
Exit codes: 0 recorded, 2 could not run.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from files import ROOT, sha256_of_file, write_bytes
from findings import PASS, UnusableError, guarded

sys.path.insert(0, str(ROOT))
from mmaemu.bindings.algoconfig import AlgoConfig
from mmaemu.bindings.libcublaslt import NOT_SUPPORTED, CublasLt, open_cublaslt
from mmaemu.bindings.libcuda import Device, current_device
from mmaemu.bindings.library import NativeLibraryError
from mmaemu.gemm.problem import GemmProblem
from mmaemu.profiles.heuristics import scaled_mm_query

FORMATS: Final = ("e4m3", "e5m2")
OUTPUTS: Final = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
# What torch 2.7.1 allows, what Transformer Engine 2.3 allows on sm_89 and on sm_90, and none.
WORKSPACES: Final = (0, 1 << 20, 4 << 20, 32 << 20)
SCHEMES: Final = ("contiguous", "serial", "pairwise")
KEY: Final = ("M", "N", "K", "fa", "fb", "out", "fast", "ws")
DECISION: Final = ("splitK", "custom", "algo", "tile")
# cublasLt.h's values fit these; the sizes are those of an int.
DTYPES: Final = {
    **dict.fromkeys(("M", "N", "K"), "<i4"),
    **dict.fromkeys((*KEY[3:], "splitK", "custom"), "<u1"),
    **dict.fromkeys(("algo", "tile"), "<i2"),
}


@dataclass(frozen=True)
class Platform:
    """Where the queries run."""

    device: Device
    library: CublasLt
    version: str


def read_shapes(path: Path) -> list[tuple[int, int, int]]:
    """M, N, K of every line of a CSV file.

    Raises:
        UnusableError: the file cannot be read, or a line is not three positive whole numbers.
    """
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            lines = [line for line in csv.reader(stream) if line]
    except OSError as error:
        raise UnusableError(f"{path} cannot be read: {error}") from error
    shapes = []
    for number, line in enumerate(lines, start=1):
        cells = [cell.strip() for cell in line]
        if len(cells) != len("MNK") or not all(cell.isdecimal() and int(cell) for cell in cells):
            raise UnusableError(f"{path}, line {number}: expected M,N,K above zero, got {line}")
        M, N, K = map(int, cells)
        shapes.append((M, N, K))
    return sorted(set(shapes))


def open_platform(major: int, version: str | None) -> Platform:
    """The GPU of this machine with its cuBLASLt.

    Args:
        major: major version of the cuBLASLt to load.
        version: its version as its package says it, build number included; None = as the library
            says it, which has no build number.

    Raises:
        UnusableError: there is no GPU or no cuBLASLt here, or it is another version.
    """
    try:
        device = current_device()
        library = open_cublaslt(major)
        found = ".".join(map(str, library.version()))
    except NativeLibraryError as error:
        raise UnusableError(f"no GPU with cuBLASLt {major} can be asked here: {error}") from error
    if version is not None and not f"{version}.".startswith(f"{found}."):
        raise UnusableError(f"this cuBLASLt is {found}, not {version}")
    return Platform(device, library, version or found)


def settings() -> Iterator[tuple[int, int, int, int]]:
    """Indices of format a, format b, output and accumulation mode that torch lets through."""
    for fa, fb, out, fast in itertools.product(range(2), range(2), range(len(OUTPUTS)), range(2)):
        if (FORMATS[fa], FORMATS[fb]) != ("e5m2", "e5m2"):
            yield fa, fb, out, fast


def ask(platform: Platform, problem: GemmProblem, workspace_bytes: int) -> AlgoConfig | None:
    """The heuristic's decision, or None for a product that cuBLASLt does not support.

    Raises:
        UnusableError: the query fails in any other way.
    """
    query = scaled_mm_query(problem, workspace_bytes)
    try:
        return platform.library.heuristic(query, platform.device.handle)
    except NativeLibraryError as error:
        if error.status == NOT_SUPPORTED:
            return None
        raise UnusableError(f"{problem} with {workspace_bytes} B: {error}") from error


def record(
    platform: Platform, shapes: Sequence[tuple[int, int, int]], workspaces: Sequence[int]
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Ask for every shape, setting and workspace.

    Returns:
        int64 [n, 12]: the columns of `KEY` and `DECISION`, without unsupported products.
    """
    rows: list[tuple[int, ...]] = []
    for number, (M, N, K) in enumerate(shapes, start=1):
        for (fa, fb, out, fast), ws in itertools.product(settings(), range(len(workspaces))):
            problem = GemmProblem(M, N, K, FORMATS[fa], FORMATS[fb], OUTPUTS[out], bool(fast))
            config = ask(platform, problem, workspaces[ws])
            if config is not None:
                rows.append((M, N, K, fa, fb, out, fast, ws, *config))
        print(f"\r{number} of {len(shapes)} shapes", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return np.array(rows, dtype=np.int64).reshape(-1, len(KEY) + len(DECISION))


def columns(
    rows: np.ndarray[Any, np.dtype[np.int64]],
) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    """The columns of the npz.

    Raises:
        UnusableError: a number does not fit its column.
    """
    result = {}
    for name, values in zip((*KEY, *DECISION), rows.T, strict=True):
        result[name] = values.astype(DTYPES[name])
        if not np.array_equal(result[name], values):
            raise UnusableError(f"column {name} has values that do not fit {DTYPES[name]}")
    return result


def describe(
    platform: Platform, workspaces: Sequence[int], scheme: str, by: str, licence: str
) -> dict[str, Any]:
    """The JSON document beside the npz, without the hash of the npz."""
    device = platform.device
    return {
        "key": list(KEY),
        "codes": {
            "fmt": dict(enumerate(FORMATS)),
            "out": dict(enumerate(OUTPUTS)),
            "ws_bytes": list(workspaces),
            "custom_to_scheme": {},
            "unlisted_custom_to_scheme": scheme,
        },
        "platform": {
            "gpu": device.name,
            "capability": list(device.capability),
            "sm_count": device.sm_count,
            "cublaslt": platform.version,
            "torch": "2.7.1 (its descriptor)",
            "driver": None,
        },
        "rights": {
            "attribution": by,
            "licence": licence,
            "origin": "recorded with tools/record/record_heuristics.py",
        },
    }


def run(arguments: argparse.Namespace) -> int:
    """Record and write both files."""
    shapes = read_shapes(arguments.shapes)
    platform = open_platform(arguments.major, arguments.cublaslt_version)
    print(f"{platform.device.name}, {platform.device.sm_count} SMs, cuBLASLt {platform.version}")
    workspaces = sorted(set(arguments.workspace or WORKSPACES))
    found = record(platform, shapes, workspaces)
    out: Path = arguments.out
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out, allow_pickle=False, **columns(found))
    document = describe(platform, workspaces, arguments.scheme, arguments.by, arguments.licence)
    document["npz_sha256"] = sha256_of_file(out)
    text = json.dumps(document, indent=2, sort_keys=True) + "\n"
    write_bytes(out.with_suffix(".json"), text.encode())
    print(f"{out}: {len(found)} decisions, {int((found[:, len(KEY)] > 1).sum())} of them split")
    return PASS


def _npz(text: str) -> Path:
    if not text.endswith(".npz"):
        raise argparse.ArgumentTypeError(f"expected a name that ends in .npz, got {text}")
    return Path(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(prog="record_heuristics", description=__doc__)
    parser.add_argument("--shapes", type=Path, required=True, help="CSV file with M,N,K per line")
    parser.add_argument("--out", type=_npz, required=True, help="npz file to write")
    parser.add_argument("--by", required=True, help="who recorded it, for the attribution")
    parser.add_argument("--licence", default="Apache-2.0", help="licence of the recording")
    parser.add_argument("--workspace", type=int, action="append", help="bytes; repeat for more")
    parser.add_argument("--major", type=int, default=12, help="major version of cuBLASLt")
    parser.add_argument("--cublaslt-version", help="full version, such as 12.8.3.14")
    parser.add_argument(
        "--scheme",
        choices=SCHEMES,
        default="contiguous",
        help="how this GPU puts slices together; used only where no table of it exists yet",
    )
    arguments = parser.parse_args(argv)
    return guarded(parser.prog, lambda: run(arguments))


if __name__ == "__main__":
    raise SystemExit(main())

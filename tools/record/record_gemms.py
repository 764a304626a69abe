"""Record torch._scaled_mm on this machine's GPU, with the algorithm that cuBLASLt chose.

    python tools/record/record_gemms.py --out recordings/          on the GPU
    python tools/record/record_gemms.py --out dry/ --dry           a few calls of torch on the CPU

Random operands over a grid of shapes, formats, outputs and accumulation modes; K that ends within
a tile with all-ones operands, which counts what a split leaves out; and scale_result. Kept are a
few rows and columns of each product, in the format of MMAEMU_TRUTH_DIR, and cuBLASLt's log.
Nothing of the project's arithmetic takes part. Exit codes: 0 recorded, 2 could not run, 3 nothing
could be recorded.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from files import ROOT, write_bytes
from findings import INCONCLUSIVE, PASS, UnusableError, guarded

sys.path.insert(0, str(ROOT))
from mmaemu.bindings.libcublaslt import open_cublaslt
from mmaemu.bindings.library import NativeLibraryError

if TYPE_CHECKING:
    import torch

SEED: Final = 20261201
LOG: Final = "cublaslt.log"
KEPT: Final = 16
"""Rows and columns kept of a product, spread over it."""
GRID: Final = tuple(
    (m, n, k)
    for m, n in ((16, 16), (16, 4096), (64, 512), (128, 1024), (256, 256), (1024, 1024))
    for k in (128, 512, 1920, 4096, 8192)
)
TAILS: Final = tuple((16, 256, k) for k in (1040, 1936, 2064, 4112, 4176, 8208, 8336))
"""K that is no multiple of 64 or 128: a split's last tile is partly empty."""
OUTPUTS: Final = ("float32", "bfloat16", "float8_e4m3fn")
FORMATS: Final = (("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3"))
TORCH: Final = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
LARGEST: Final = {"e4m3": 0x7E, "e5m2": 0x7B}
ONE: Final = {"e4m3": 0x38, "e5m2": 0x3C}
ALGORITHM: Final = re.compile(r"algoId[=:\s]+(\d+)", re.IGNORECASE)
SPLIT: Final = re.compile(r"(?:numSplitsK|splitK(?:Num)?|splitsK)[=:\s]+(\d+)", re.IGNORECASE)

Codes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of torch._scaled_mm.

    Attributes:
        recording: label.
        shape: M, N, K.
        formats: of both operands.
        out_dtype: torch's name of the output type.
        fast: use_fast_accum.
        ones: all operands are 1, else random finite codes.
        scales: scale_a, scale_b, and scale_result or None.
    """

    recording: str
    shape: tuple[int, int, int]
    formats: tuple[str, str] = ("e4m3", "e4m3")
    out_dtype: str = "float32"
    fast: bool = True
    ones: bool = False
    scales: tuple[float, float, float | None] = (1.0, 1.0, None)

    @property
    def label(self) -> str:
        """Name of the row."""
        shape = "x".join(map(str, self.shape))
        mode = "fast" if self.fast else "slow"
        extra = "" if self.scales[2] is None else f"/sr{self.scales[2]}"
        formats = "-".join(self.formats)
        return f"{self.recording}/{shape}/{formats}/{self.out_dtype}/{mode}{extra}"


def calls() -> Iterator[Call]:
    """Every call, in the order in which they are made."""
    for number, shape in enumerate(GRID):
        formats = FORMATS[number % len(FORMATS)]
        for out_dtype in OUTPUTS:
            for fast in (True, False):
                scales = (2.0**-9, 1.5, None)
                yield Call("grid", shape, formats, out_dtype, fast, scales=scales)
    for shape in TAILS:
        for fast in (True, False):
            yield Call("split-tail", shape, fast=fast, ones=True)
            yield Call("split-tail-random", shape, fast=fast)
    for out_dtype in ("float8_e4m3fn", "float8_e5m2", "bfloat16", "float32"):
        for scale in (0.5, 3.0, 2.0**20):
            yield Call(
                "scale-result",
                (64, 64, 512),
                ("e4m3", "e5m2"),
                out_dtype,
                scales=(0.25, 1.0, scale),
            )


def _codes(rng: np.random.Generator, call: Call, side: int, lines: int) -> Codes:
    fmt = call.formats[side]
    shape = (lines, call.shape[2])
    if call.ones:
        return np.full(shape, ONE[fmt], np.uint8)
    sign = rng.integers(0, 2, shape) << 7
    return (rng.integers(0, LARGEST[fmt] + 1, shape) | sign).astype(np.uint8)


def _bits(tensor: torch.Tensor) -> NDArray[np.unsignedinteger[Any]]:
    import torch

    width = tensor.element_size()
    kind = {1: torch.int8, 2: torch.int16, 4: torch.int32}[width]
    return tensor.contiguous().view(kind).cpu().numpy().view(f"u{width}")


def _spread(count: int) -> NDArray[np.int64]:
    return np.unique(np.linspace(0, count - 1, min(count, KEPT)).astype(np.int64))


def profile_of(gpu: str, library: str) -> str:
    """The name of a profile for what no profile describes yet."""
    slug = re.sub(r"[^a-z0-9]+", "-", f"{gpu} cublaslt {library}".lower()).strip("-")
    return f"{slug}-experimental"


class Log:
    """What cuBLASLt wrote about each call.

    Args:
        path: its log file, which exists once it has written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def read(self) -> str:
        """What was written since the last time."""
        if not self._path.exists():
            return ""
        with self._path.open("rb") as stream:
            stream.seek(self._at)
            text = stream.read().decode(errors="replace")
            self._at = stream.tell()
        return text


def decision(text: str) -> dict[str, int | None]:
    """Algorithm and number of slices of the last call that a log tells of; None if it does not."""
    found = {}
    for name, pattern in (("algo", ALGORITHM), ("splits", SPLIT)):
        numbers = pattern.findall(text)
        found[name] = int(numbers[-1]) if numbers else None
    return found


def make(call: Call, device: str, profile: str, log: Log) -> tuple[dict[str, Any], dict[str, Any]]:
    """Make a call; its row and its arrays."""
    import torch

    m, n, _ = call.shape
    rng = np.random.default_rng([SEED, *call.label.encode()])
    a, b = _codes(rng, call, 0, m), _codes(rng, call, 1, n)
    left, right = (
        torch.from_numpy(codes).view(getattr(torch, TORCH[fmt])).to(device)
        for codes, fmt in zip((a, b), call.formats, strict=True)
    )
    scale_a, scale_b, scale_result = (
        torch.tensor(value or 0.0, dtype=torch.float32, device=device) for value in call.scales
    )
    log.read()
    row: dict[str, Any] = {
        "id": call.label,
        "recording": call.recording,
        "profile": profile,
        "op": "scaled_mm",
        "fmt_a": call.formats[0],
        "fmt_b": call.formats[1],
        "out_dtype": call.out_dtype,
        "use_fast_accum": call.fast,
        "call": {},
        "MNK": list(call.shape),
        **{
            f"{name}_bits": None if value is None else int(np.float32(value).view(np.uint32))
            for name, value in zip(("scale_a", "scale_b", "scale_result"), call.scales, strict=True)
        },
    }
    rows, columns = _spread(m), _spread(n)
    arrays: dict[str, Any] = {f"{call.label}/a": a[rows], f"{call.label}/b": b[columns]}
    try:
        out = torch._scaled_mm(  # noqa: SLF001 - the public name of what is recorded
            left,
            right.t(),
            scale_a,
            scale_b,
            scale_result=None if call.scales[2] is None else scale_result,
            out_dtype=getattr(torch, call.out_dtype),
            use_fast_accum=call.fast,
        )
        kept = _bits(out)[np.ix_(rows, columns)]
        arrays[f"{call.label}/out"] = kept
        row["out"] = f"{call.label}/out"
    except (RuntimeError, ValueError) as error:
        row["error"] = "ReferenceRejectsError"
        row["message"] = str(error).splitlines()[0]
    row |= {"a": f"{call.label}/a", "b": f"{call.label}/b"}
    text = log.read()
    chosen = decision(text)
    # One slice is one slice in every scheme; which scheme more of them follow is what is asked.
    row["split"] = [1, "none"] if chosen["splits"] in (0, 1) else None
    row["cublaslt"] = {**chosen, "log": text.strip().splitlines()[-4:]}
    return row, arrays


def _library_version() -> str:
    """Version of the cuBLASLt that torch came with; "unknown" without one."""
    import torch

    major = str(torch.version.cuda or "").partition(".")[0]
    try:
        return ".".join(map(str, open_cublaslt(int(major)).version()))
    except (NativeLibraryError, ValueError):
        return "unknown"


def run(arguments: argparse.Namespace) -> int:
    """Make every call and write the platform folder."""
    folder: Path = arguments.out / "gemms"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOG
    path.unlink(missing_ok=True)
    # Read by cuBLASLt when it is loaded, so before torch is.
    os.environ |= {"CUBLASLT_LOG_LEVEL": "5", "CUBLASLT_LOG_FILE": str(path)}
    import torch

    if not arguments.dry and not torch.cuda.is_available():
        raise UnusableError("torch sees no CUDA device; rehearse with --dry")
    device = "cpu" if arguments.dry else "cuda"
    gpu = "rehearsal on the CPU" if arguments.dry else torch.cuda.get_device_name()
    profile = arguments.profile or profile_of(gpu, _library_version())
    every = list(calls())
    if arguments.dry:
        every = [call for call in every if max(call.shape) <= 512][:12]  # noqa: PLR2004 - small ones
    lines: list[str] = []
    arrays: dict[str, Any] = {}
    log = Log(path)
    for call in every:
        row, held = make(call, device, profile, log)
        lines.append(json.dumps(row, sort_keys=True))
        arrays |= held
    np.savez_compressed(folder / "arrays.npz", allow_pickle=False, **arrays)
    write_bytes(folder / "gemm.jsonl", ("\n".join(lines) + "\n").encode())
    rejected = sum('"error"' in line for line in lines)
    print(f"record_gemms: {gpu}: {len(lines)} calls, {rejected} rejected, as profile {profile}")
    return PASS if rejected < len(lines) else INCONCLUSIVE


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="record_gemms",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the platform folder")
    parser.add_argument("--profile", help="name in the rows; made from GPU and library if left out")
    parser.add_argument("--dry", action="store_true", help="rehearse with torch on the CPU")
    arguments = parser.parse_args(argv)
    return guarded(parser.prog, lambda: run(arguments))


if __name__ == "__main__":
    raise SystemExit(main())

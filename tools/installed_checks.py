"""Checks of an installed mmaemu, run by the Python of a clean environment (tier T7).

    PYTHON tools/installed_checks.py --device cpu|cuda --checks FILE [--truth DIR]

validate_release.py starts it; nothing of the checkout's package is imported. Every check becomes
one entry {status, reason, outputs, differing} of FILE; what has no data is `absent`, never a pass.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    import torch

    from mmaemu.gemm.splitk import SplitK

SCHEMA: Final = "mmaemu.installed-checks/1"
EVO2: Final = "evo2.evo2_1b_w2k"
EVO2_CALLS: Final = ("call00", "call10", "call20")
PROFILES: Final = {"ada": "ada-ws0", "hopper": "hopper-ws0"}
SPLITS: Final = {
    "ada": ((1, "none"), (3, "serial"), (5, "pairwise")),
    "hopper": ((1, "none"), (3, "contiguous")),
}
SHAPES: Final = ((48, 80, 400), (1, 16, 33), (130, 64, 256))
FORMATS: Final = tuple((a, b) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2"))
GROUP: Final = 250
"""Toolbox vectors of one GEMM; its diagonal holds their results."""


@dataclass
class Check:
    """What came of one check.

    Attributes:
        status: pass, fail, not-run or absent.
        reason: why it is not a pass, or what was compared.
        outputs: values compared.
        differing: how many of them differ.
    """

    status: str = "not-run"
    reason: str = ""
    outputs: int = 0
    differing: int = 0
    refusals: set[str] = field(default_factory=set)

    def compare(self, got: torch.Tensor, expected: torch.Tensor, where: str) -> None:
        """Count the values of two tensors that differ in any bit."""
        from mmaemu.testing import bits

        unequal = int((bits(got.cpu()) != bits(expected.cpu())).sum())
        self.count(expected.numel(), unequal, where)

    def count(self, outputs: int, differing: int, where: str) -> None:
        """Add a comparison."""
        self.outputs += outputs
        self.differing += differing
        if differing and not self.reason:
            self.reason = f"first difference: {where}"

    def settle(self) -> Check:
        """Say whether it passed: something was compared and nothing differs."""
        if self.differing:
            self.status = "fail"
        elif self.outputs:
            self.status, self.reason = "pass", f"{self.outputs} outputs equal"
        elif self.refusals:
            self.status, self.reason = "not-run", "; ".join(sorted(self.refusals))
        return self

    def document(self) -> dict[str, Any]:
        """The entry of the JSON document."""
        entry = asdict(self)
        del entry["refusals"]
        return entry


# --- each kernel against the reference of its own preset -----------------------------------------


@dataclass(frozen=True)
class Gemm:
    """One GEMM of the kernel check, with the reference's accumulators."""

    where: str
    a: torch.Tensor
    b: torch.Tensor
    options: dict[str, Any]
    expected: torch.Tensor


@functools.cache
def gemms(preset: str) -> tuple[Gemm, ...]:
    """The GEMMs that every kernel of a preset computes: families x shapes x formats x plans."""
    return tuple(_gemms(preset))


def _gemms(preset: str) -> Iterator[Gemm]:
    from mmaemu import SplitK, accumulate
    from mmaemu.testing import operands

    plans = tuple(product((True, False), SPLITS[preset]))
    cases = tuple(product(operands.FAMILIES, SHAPES))
    for number, (family, shape) in enumerate(cases):
        formats = FORMATS[number % len(FORMATS)]
        a, b = operands.tensors(family, *shape, formats=formats, seed=number)
        for fast, (count, scheme) in plans:
            split: SplitK = SplitK(count, scheme)  # type: ignore[arg-type]
            options: dict[str, Any] = {
                "use_fast_accum": fast,
                "splitk": split,
                "profile": PROFILES[preset],
            }
            expected = accumulate(a, b, backend="reference", **options)
            where = f"{preset} {family} {shape} {formats} fast={fast} split={split}"
            yield Gemm(where, a, b, options, expected)


def kernels(device: str) -> dict[str, Check]:
    """Every backend that is available on a device against the reference, by its name."""
    from mmaemu.backends.registry import backends_status

    family = f"{torch_device(device).type}:"
    found: dict[str, Check] = {}
    for name, status in backends_status(device).items():
        if not name.startswith(family):
            continue
        check = found[f"kernel {name}"] = Check()
        if status.available:
            _compare_kernel(name, device, check)
            check.reason += f"; from {status.source}"
        else:
            # What is not meant for this device is said; what should work and does not is a failure.
            lacking = status.failed or status.missing
            check.status, check.reason = "fail" if lacking else "absent", status.reason
    return found


def _compare_kernel(name: str, device: str, check: Check) -> None:
    from mmaemu import BackendUnavailableError, accumulate

    for preset in PROFILES:
        for gemm in gemms(preset):
            a, b = gemm.a.to(device), gemm.b.to(device)
            try:
                got = accumulate(a, b, backend=name, **gemm.options)
            except BackendUnavailableError as error:
                check.refusals.add(str(error))
                continue
            check.compare(got, gemm.expected, gemm.where)
    check.settle()


def torch_device(name: str) -> torch.device:
    """The device of a name."""
    import torch

    return torch.device(name)


# --- recordings ----------------------------------------------------------------------------------


def evo2(truth: Path | None, device: str) -> Check:
    """The recorded projections of Evo 2 under the profile `ada`."""
    from mmaemu import recordings
    from mmaemu.recordings import GemmRecord
    from mmaemu.replay import replay

    rows = recordings.load() if truth is None else _truth_rows(truth)
    check, calls = Check(), set()
    for row in rows:
        mine = isinstance(row, GemmRecord) and row.profile == "ada"
        parts = row.id.split("/") if mine else []
        if len(parts) > 1 and parts[0] == EVO2 and parts[1] in EVO2_CALLS:
            result = replay(row, device=device)
            check.count(result.values, result.differing, f"{row.id}: {result.detail}")
            calls.add(parts[1])
    check.settle()
    if check.status == "pass" and calls != set(EVO2_CALLS):
        missing = ", ".join(sorted(set(EVO2_CALLS) - calls))
        check.status, check.reason = "not-run", f"no rows {EVO2}/{missing}; set MMAEMU_TRUTH_DIR"
    return check


def _truth_rows(truth: Path) -> list[Any]:
    from truth import Unreadable, platform_folders, read_platform

    rows = [row for folder in platform_folders(truth) for row in read_platform(folder).rows]
    return [row for row in rows if not isinstance(row, Unreadable)]


def wgmma(truth: Path | None, device: str) -> Check:
    """The toolbox's wgmma sets under the profile `hopper`: one step, c = 0, through a GEMM."""
    check = Check()
    if truth is None:
        check.reason = "needs MMAEMU_TRUTH_DIR: the toolbox's vectors are not part of the project"
        return check
    for row in _truth_rows(truth):
        if row.platform == "toolbox" and "/wgmma/" in row.id:
            for first in range(0, len(row.a), GROUP):
                _compare_step(row, slice(first, first + GROUP), device, check)
    check.settle()
    if not check.outputs:
        check.reason = f"{truth} has no wgmma sets"
    return check


def _compare_step(row: Any, part: slice, device: str, check: Check) -> None:  # noqa: ANN401
    import torch

    from mmaemu import accumulate
    from mmaemu.formats import FORMATS as KNOWN

    def operand(codes: np.ndarray[Any, Any], fmt: str) -> torch.Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(codes).view(np.uint8))
        return tensor.view(getattr(torch, str(KNOWN[fmt].torch_name))).to(device)

    a, b = operand(row.a[part], row.format_a), operand(row.b[part], row.format_b)
    got = accumulate(a, b, use_fast_accum=True, profile="hopper-ws0").diagonal().contiguous()
    expected = torch.from_numpy(np.ascontiguousarray(row.d[part]).view(np.int32))
    check.compare(got, expected.view(torch.float32), f"{row.id}[{part.start}:{part.stop}]")


def hopper_gemm(truth: Path | None, device: str) -> Check:
    """Recorded GEMMs of an H100, where there are any: their absence is said and is no pass."""
    from mmaemu.recordings import MmaRecord
    from mmaemu.replay import replay

    check = Check("absent", "no GEMM of an H100 is recorded at hand")
    for row in () if truth is None else _truth_rows(truth):
        if isinstance(row, MmaRecord) or not row.profile.startswith("hopper"):
            continue
        check.reason = ""
        result = replay(row, device=device)
        check.count(result.values, result.differing, f"{row.id}: {result.detail}")
    return check.settle()


def checks(truth: Path | None, device: str) -> dict[str, Check]:
    """Every check on a device, by name."""
    single: tuple[tuple[str, Callable[[Path | None, str], Check]], ...] = (
        ("evo2", evo2),
        ("wgmma", wgmma),
        ("hopper_gemm", hopper_gemm),
    )
    found = {name: run(truth, device) for name, run in single}
    return {**found, **kernels(device)}


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(prog="installed_checks", description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--truth", type=Path, help="folder of recordings")
    parser.add_argument("--checks", type=Path, required=True, help="JSON file to write")
    parser.add_argument(
        "--package",
        type=Path,
        default=Path(sys.prefix),
        help="folder that mmaemu must come from; the environment's if left out",
    )
    parser.add_argument("--kernels-only", action="store_true", help="leave the recordings out")
    arguments = parser.parse_args(argv)

    import torch

    import mmaemu

    where = Path(mmaemu.__file__).resolve()
    if not where.is_relative_to(arguments.package.resolve()):
        print(f"installed_checks: mmaemu comes from {where}, not from {arguments.package}")
        return 1
    started = time.monotonic()
    with warnings.catch_warnings():
        # An experimental preset or split warns; here only bits count.
        warnings.simplefilter("ignore")
        only, device = arguments.kernels_only, arguments.device
        found = kernels(device) if only else checks(arguments.truth, device)
    name = torch.cuda.get_device_name() if arguments.device != "cpu" else "cpu"
    document = {
        "schema": SCHEMA,
        "version": mmaemu.__version__,
        "torch": torch.__version__,
        "device": name,
        "seconds": round(time.monotonic() - started, 1),
        "checks": {key: check.document() for key, check in found.items()},
    }
    text = json.dumps(document, indent=2, sort_keys=True) + "\n"
    arguments.checks.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

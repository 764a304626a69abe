"""Compare live torch._scaled_mm with mmaemu where this GPU is a profile's own (tier t3p).

    python tools/record/compare_live.py          on the GPU
    python tools/record/compare_live.py --dry    say which profiles this machine is not

The plan comes from the profile alone, as a user gets it. Exit codes: 0 every bit equal, 1 some
differ, 3 profile device unavailable.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from files import ROOT
from findings import FAIL, INCONCLUSIVE, PASS, guarded

sys.path.insert(0, str(ROOT))

PROFILES: Final = ("hopper", "ada")
"""Profiles of torch's own calls with its own workspace."""
SIZES: Final = ((16, 16, 16), (1, 128, 512), (64, 64, 1024), (128, 256, 2048), (17, 96, 4096))
OUTPUTS: Final = ("float32", "bfloat16", "float16", "float8_e4m3fn")
FORMATS: Final = (("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3"))


def compare(profile: str) -> tuple[int, int]:
    """Outputs compared and outputs that differ, over families, sizes, formats and modes."""
    import torch

    from mmaemu import scaled_mm
    from mmaemu.testing import bits, operands

    total = differing = 0
    factor = torch.tensor(0.3, dtype=torch.float32, device="cuda")
    for number, (family, size) in enumerate(product(operands.FAMILIES, SIZES)):
        formats = FORMATS[number % len(FORMATS)]
        a, b = (t.cuda() for t in operands.tensors(family, *size, formats=formats, seed=number))
        for output, fast in product(OUTPUTS, (True, False)):
            dtype = getattr(torch, output)
            arguments = (a, b.t(), factor, factor)
            options = {"out_dtype": dtype, "use_fast_accum": fast}
            live = torch._scaled_mm(*arguments, **options)  # noqa: SLF001 - what is emulated
            ours = scaled_mm(*arguments, **options, profile=profile)
            total += live.numel()
            differing += int((bits(live) != bits(ours)).sum())
    return total, differing


def run(*, dry: bool) -> int:
    """Compare on the profile that this machine is."""
    from mmaemu import get_profile
    from mmaemu.profiles.heuristics import platform_mismatch

    found = {name: platform_mismatch(get_profile(name)) for name in PROFILES}
    own = [name for name, reason in found.items() if reason is None]
    if dry or not own:
        for name, reason in found.items():
            print(f"compare_live: profile device unavailable: {name}: {reason}")
        return INCONCLUSIVE
    total, differing = compare(own[0])
    print(f"compare_live: {own[0]}: {total} outputs, {differing} differ")
    return FAIL if differing else PASS


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(prog="compare_live", description=__doc__)
    parser.add_argument("--dry", action="store_true", help="compare nothing")
    arguments = parser.parse_args(argv)
    return guarded(parser.prog, lambda: run(dry=arguments.dry))


if __name__ == "__main__":
    raise SystemExit(main())

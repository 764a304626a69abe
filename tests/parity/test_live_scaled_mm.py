"""Live torch._scaled_mm on a profile's own GPU against mmaemu: bits of values, kinds of errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mmaemu
from mmaemu.profiles.heuristics import platform_mismatch
from mmaemu.testing import assert_bitwise_equal
from mmaemu.testing.operands import FAMILIES, tensors

# Only these are torch's own calls with its own workspace.
PROFILES = ("hopper", "ada")
MISMATCHES = {name: platform_mismatch(mmaemu.get_profile(name)) for name in PROFILES}
HERE = next((name for name, reason in MISMATCHES.items() if reason is None), "")

pytestmark = pytest.mark.skipif(not HERE, reason=f"profile device unavailable: {MISMATCHES}")

FORMATS = (("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e4m3"))
SIZES = ((16, 16, 16), (1, 128, 512), (64, 64, 1024), (128, 256, 2048), (17, 96, 4096))
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn)


def both(
    a: torch.Tensor, b: torch.Tensor, scale: float, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result of the GPU and of mmaemu for operands a [M, K] and b [N, K]."""
    left, right = a.cuda(), b.cuda().t()
    factor = torch.tensor(scale, device="cuda")
    live = torch._scaled_mm(left, right, factor, factor, **options)
    return live, mmaemu.scaled_mm(left, right, factor, factor, profile=HERE, **options)


@pytest.mark.parametrize("formats", FORMATS, ids="x".join)
@pytest.mark.parametrize("family", FAMILIES)
def test_values(family: str, formats: tuple[str, str]) -> None:
    for seed, sizes in enumerate(SIZES):
        a, b = tensors(family, *sizes, formats=formats, seed=seed)
        for out_dtype in DTYPES:
            for use_fast_accum in (True, False):
                options = {"out_dtype": out_dtype, "use_fast_accum": use_fast_accum}
                live, ours = both(a, b, 0.3, **options)
                assert_bitwise_equal(ours, live, msg=f"{family} {formats} {sizes} {options}")


@pytest.mark.parametrize(
    ("sizes", "formats", "options"),
    [
        ((16, 16, 24), FORMATS[0], {}),
        ((16, 24, 32), FORMATS[0], {}),
        ((16, 16, 32), ("e5m2", "e5m2"), {}),
        ((16, 16, 32), FORMATS[0], {"out_dtype": torch.float8_e5m2}),
        ((16, 16, 32), FORMATS[0], {"out_dtype": torch.int8}),
        ((16, 16, 32), FORMATS[0], {"bias": torch.zeros(16)}),
    ],
)
def test_rejections(
    sizes: tuple[int, int, int], formats: tuple[str, str], options: dict[str, Any]
) -> None:
    a, b = (t.cuda() for t in tensors("uniform", *sizes, formats=formats))
    one = torch.ones((), device="cuda")
    moved: dict[str, Any] = {
        name: v.cuda() if isinstance(v, torch.Tensor) else v for name, v in options.items()
    }
    with pytest.raises((RuntimeError, ValueError)):
        torch._scaled_mm(a, b.t(), one, one, **moved)
    with pytest.raises(mmaemu.ReferenceRejectsError):
        mmaemu.scaled_mm(a, b.t(), one, one, profile=HERE, **moved)

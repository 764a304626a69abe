"""The MATLAB Tensor Core toolbox recordings below MMAEMU_TRUTH_DIR, bit for bit."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from mmaemu import _settings
from mmaemu.instruction.models import model_for
from mmaemu.model import dot

if TYPE_CHECKING:
    from numpy.typing import NDArray


def toolbox() -> Path | None:
    truth = _settings.path("TRUTH_DIR")
    folder = None if truth is None else truth / "toolbox"
    return folder if folder and (folder / "sets.json").is_file() else None


FOLDER = toolbox()
SETS: list[dict[str, Any]] = (
    json.loads((FOLDER / "sets.json").read_text(encoding="utf-8")) if FOLDER else []
)
needs_toolbox = pytest.mark.skipif(
    FOLDER is None, reason="MMAEMU_TRUTH_DIR names no folder with toolbox/sets.json"
)


@cache
def arrays() -> dict[str, NDArray[np.uint32]]:
    assert FOLDER is not None
    with np.load(FOLDER / "arrays.npz", allow_pickle=False) as archive:
        return {key: archive[key].astype("<u4") for key in archive.files}


@needs_toolbox
def test_there_are_sets() -> None:
    assert SETS


@needs_toolbox
@pytest.mark.parametrize(
    "record", SETS, ids=lambda r: f"{r['gpu']}-{r['fmt']}-{r['out']}-{r['instruction']}"
)
def test_every_output_is_equal(record: dict[str, Any]) -> None:
    bits = {key: arrays()[name] for key, name in record["arrays"].items()}
    a, b, c, d = (torch.from_numpy(bits[key].view(np.float32)) for key in "abcd")
    model = model_for(
        gpu=record["gpu"],
        fmt=record["fmt"],
        out=record["out"],
        instruction=record["instruction"],
    )
    result = dot(
        a.to(torch.float64),
        b.to(torch.float64),
        c if record["c_used"] else None,
        preset=model,
        fmt=record["fmt"],
    )
    different = result.to(torch.float32).view(torch.int32) != d.view(torch.int32)
    assert int(different.sum()) == 0

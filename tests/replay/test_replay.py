"""What the replay does with records that do not fit or are not understood."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mmaemu.recordings import CallRecord, GemmRecord, MmaRecord, load
from mmaemu.replay import NotReplayableError, replay


@pytest.fixture(scope="module")
def gemm() -> GemmRecord:
    return next(
        record
        for record in load()
        if isinstance(record, GemmRecord) and record.op == "scaled_mm" and record.out is not None
    )


@pytest.fixture(scope="module")
def chain() -> MmaRecord:
    return next(record for record in load() if isinstance(record, MmaRecord))


def spelled(**changes: Any) -> CallRecord:
    """A call on 16 x 16 x 16 ones that returns 16 everywhere."""
    operand = {"dtype": "float8_e4m3fn", "layout": "std", "ld_pad": 0, "offset": 0}
    scale = {"dtype": "float32", "shape": [], "value": 1.0}
    call = {
        "M": 16,
        "N": 16,
        "K": 16,
        "mat1": operand,
        "mat2": operand,
        "scale_a": scale,
        "scale_b": scale,
        "scale_result": None,
        "bias": None,
        "out": None,
        "grad": None,
        "positional_bias": False,
    }
    ones = np.full((16, 16), 0x38, np.uint8)
    return CallRecord(
        id="made",
        recording="made",
        platform="rtx4060",
        profile="ada",
        out_dtype="float32",
        out_dtype_passed=True,
        use_fast_accum=True,
        split=(1, "none"),
        a=ones,
        b=ones,
        out=np.full((16, 16), 0x41800000, np.uint32),
        error=None,
        call={**call, **changes},
    )


OPERAND = {"dtype": "float8_e4m3fn", "layout": "std", "ld_pad": 16, "offset": 32}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"mat1": OPERAND},
        {"mat2": OPERAND},
        {"out": {"dtype": "float32", "shape": [16, 16], "contiguous": True}},
        {"out": {"dtype": "float32", "shape": [16, 16], "contiguous": False}},
        {"out": {"dtype": "float32", "shape": [0], "contiguous": True}},
    ],
)
def test_a_spelled_call_is_made_as_described(changes: dict[str, Any]) -> None:
    result = replay(spelled(**changes))
    assert (result.equal, result.values, result.detail) == (True, 256, "")


@pytest.mark.parametrize(
    "changes",
    [
        {"mat1": {**OPERAND, "layout": "col"}},
        {"mat2": {**OPERAND, "layout": "row"}},
        {"mat1": {**OPERAND, "offset": 1}},
        {"mat2": {**OPERAND, "ld_pad": 1}},
        {"scale_a": {"dtype": "float64", "shape": [], "value": 1.0}},
    ],
)
def test_a_rejected_call_counts_every_value(changes: dict[str, Any]) -> None:
    result = replay(spelled(**changes))
    assert (result.differing, result.got) == (256, "ReferenceRejectsError")


def test_the_exact_error_class_is_expected() -> None:
    bias = {"dtype": "bfloat16", "len": 16}
    record = replace(spelled(bias=bias), out_dtype="bfloat16", out=None)
    assert replay(replace(record, error="UnsupportedFeatureError")).equal
    other = replay(replace(record, error="ReferenceRejectsError"))
    assert (other.differing, other.got) == (1, "UnsupportedFeatureError")


def test_a_value_where_an_error_was_recorded_differs() -> None:
    result = replay(replace(spelled(), out=None, error="ReferenceRejectsError"))
    assert (result.equal, result.got) == (False, "values")


def test_another_shape_or_width_differs_everywhere(gemm: GemmRecord) -> None:
    assert gemm.out is not None
    result = replay(replace(gemm, out=gemm.out.reshape(-1)))
    assert result.differing == gemm.out.size
    assert "recorded" in result.detail


def test_a_flipped_bit_is_seen(gemm: GemmRecord, chain: MmaRecord) -> None:
    assert gemm.out is not None
    out, d = gemm.out.copy(), chain.d.copy()
    out.flat[-1] ^= 1
    d.flat[0] ^= 1
    assert replay(replace(gemm, out=out)).differing == 1
    assert replay(replace(chain, d=d)).detail.startswith("[0, 0")


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"op": "grouped_mm"}, NotReplayableError),
        ({"profile": "a100"}, KeyError),
        ({"split": (2, "diagonal")}, ValueError),
        ({"out_dtype": "float12"}, NotReplayableError),
        ({"format_a": "e6m1"}, NotReplayableError),
        ({"call": {"requires_grad": ["mat3"]}}, KeyError),
    ],
)
def test_what_is_not_understood_is_not_compared(
    gemm: GemmRecord, changes: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        replay(replace(gemm, **changes))


def test_an_unknown_preset_is_not_compared(chain: MmaRecord) -> None:
    with pytest.raises(KeyError):
        replay(replace(chain, preset="rtx9090"))

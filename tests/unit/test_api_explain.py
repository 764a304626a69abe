"""explain: what a call would do, or why it raises."""

from __future__ import annotations

import dataclasses
import sys
import tracemalloc
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mmaemu
from mmaemu import cautions
from mmaemu.errors import ExperimentalPresetWarning
from mmaemu.testing.operands import tensors

E4M3 = torch.float8_e4m3fn
BF16 = torch.bfloat16
ONE = torch.tensor(1.0)


def explain(M: int = 16, N: int = 32, K: int = 32, **options: Any) -> mmaemu.CallPlan:
    a, b = tensors("uniform", M, N, K)
    arguments = {"input": a, "mat2": b.t(), "scale_a": ONE, "scale_b": ONE, "profile": "ada"}
    return mmaemu.explain(**{**arguments, **options})


def test_a_call_that_works() -> None:
    plan = explain()
    assert plan.validation == "ok"
    assert (plan.profile, plan.preset, plan.preset_maturity) == ("ada", "ada", "recorded")
    assert plan.split is not None
    assert (plan.split.S, plan.split.scheme, plan.split.source) == (3, "pairwise", "table")
    assert plan.backend in mmaemu.backends_status("cpu")
    assert plan.warnings == []
    assert all(": " in reason for reason in plan.fallbacks)


def test_an_absurd_split_is_reported_as_given_and_costs_nothing() -> None:
    a, b = tensors("uniform", 16, 32, 304)
    splits = (("hopper", 2**32 + 1, "contiguous"), ("ada", 2**64 + 2, "serial"))
    for profile, *split in splits:
        call: dict[str, Any] = {"splitk": tuple(split), "profile": profile}
        plan = explain(K=304, **call)
        assert plan.split is not None
        assert [plan.split.S, plan.split.scheme] == split
        with pytest.warns(mmaemu.UnverifiedSplitWarning, match=str(split[0])):
            mmaemu.accumulate(a, b, use_fast_accum=True, **call)


def test_explain_and_scaled_mm_agree_on_the_split() -> None:
    a, b = tensors("uniform", 16, 32, 32)
    plan = explain(out_dtype=BF16)
    assert plan.split is not None
    split = (plan.split.S, plan.split.scheme)
    auto = mmaemu.scaled_mm(a, b.t(), ONE, ONE, out_dtype=BF16, profile="ada")
    explicit = mmaemu.scaled_mm(a, b.t(), ONE, ONE, out_dtype=BF16, profile="ada", splitk=split)
    mmaemu.testing.assert_bitwise_equal(auto, explicit)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"mat2": torch.zeros(32, 32).to(E4M3)}, "ReferenceRejectsError"),
        ({"bias": torch.zeros(32, dtype=BF16), "out_dtype": BF16}, "UnsupportedFeatureError"),
        ({"scale_a": ONE.clone().requires_grad_()}, "UnsupportedFeatureError"),
        ({"profile": "hopper-experimental"}, "SplitKUnknownError"),
        ({"profile": "b200-mma-sync-experimental"}, "UnsupportedFeatureError"),
        ({"backend": "cuda"}, "BackendUnavailableError"),
    ],
)
def test_a_call_that_raises(options: dict[str, Any], error: str) -> None:
    """The plan names the very exception, with its message, that the call raises."""
    plan = explain(**options)
    assert plan.validation[0] == error
    assert plan.backend == ""
    assert (plan.split is None) == (error != "BackendUnavailableError")
    a, b = tensors("uniform", 16, 32, 32)
    arguments = {"input": a, "mat2": b.t(), "scale_a": ONE, "scale_b": ONE, "profile": "ada"}
    with pytest.raises(getattr(mmaemu, error)) as caught:
        mmaemu.scaled_mm(**{**arguments, **options})
    assert plan.validation == (error, str(caught.value))


def test_calls_that_compute_nothing() -> None:
    plan = explain(K=0)
    assert (plan.validation, plan.backend) == ("ok", "none (a size is zero)")
    assert plan.split is not None
    assert plan.split.source == "zero-size"
    out = torch.zeros(16, 64, dtype=E4M3)[:, ::2]
    plan = explain(out=out)
    assert (plan.validation, plan.backend) == ("ok", "none (out= stays unchanged)")
    assert "neither row- nor column-major" in plan.warnings[0]


def test_cautions_are_reported_without_being_issued(recwarn: pytest.WarningsRecorder) -> None:
    plan = explain(profile="hopper-experimental", splitk=(2, "contiguous"))
    assert [text.split()[0] for text in plan.warnings] == ["profile", "split-K"]
    plan = explain(profile="b200-mma-sync-experimental", splitk=1, use_fast_accum=True)
    assert "is experimental" in plan.warnings[0]
    assert [str(warning.message) for warning in recwarn] == []


MODEL_ONLY = "tcgen05_f8f6f4_fp32"


@pytest.mark.parametrize(
    ("preset", "match", "calls"),
    [
        ("blackwell", "neither B200 cuBLAS", 2),
        (MODEL_ONLY, "maturity 'model only'", 1),
        (mmaemu.get_preset(MODEL_ONLY, warn=False), "maturity 'model only'", 1),
    ],
    ids=["alias", "name", "object"],
)
def test_what_explain_lists_is_what_a_call_warns_about(
    preset: str | mmaemu.Preset, match: str, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = tensors("uniform", 16, 32, 32)
    profile = dataclasses.replace(mmaemu.get_profile("ada"), name="mine", preset=preset)
    options: dict[str, Any] = {"profile": profile, "splitk": 1, "use_fast_accum": True}
    listed = explain(**options).warnings
    assert len(listed) == 1
    assert match in listed[0]
    computations: tuple[Callable[[], torch.Tensor], ...] = (
        lambda: mmaemu.scaled_mm(a, b.t(), ONE, ONE, **options),
        lambda: mmaemu.accumulate(a, b, **options),
    )
    for compute in computations:
        monkeypatch.setattr(cautions, "_issued", set())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(2):
                with pytest.raises(ExperimentalPresetWarning):
                    compute()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                compute()
        assert [str(warning.message) for warning in caught] == listed * calls
        assert {warning.filename for warning in caught} == {__file__}
    assert explain(K=0, **options).warnings == []


def test_a_changed_model_is_custom_and_its_split_unverified() -> None:
    model = dataclasses.replace(mmaemu.get_preset("ada"), name="mine", fraction_bits=20)
    profile = dataclasses.replace(mmaemu.get_profile("ada"), name="mine", preset=model)
    plan = explain(profile=profile)
    assert plan.preset_maturity == "custom"
    assert plan.split is not None
    assert (plan.split.S, plan.split.verified) == (3, False)
    assert "another instruction model than 'mine'" in plan.warnings[0]


def test_layouts_that_were_not_recorded_have_no_recorded_split() -> None:
    """A padded leading dimension or an unaligned offset is another cuBLASLt descriptor."""
    a, b = tensors("uniform", 64, 32, 32)
    padded = torch.zeros(16, 48, dtype=torch.uint8).view(E4M3)[:, :32]
    for mat1, known in ((a[:16], True), (a[8:24], True), (a[1:17], False), (padded, False)):
        plan = explain(input=mat1)
        assert (plan.validation == "ok") == known, plan.validation
    wide = torch.zeros(16, 48, dtype=BF16)
    assert explain(out=torch.zeros(16, 32, dtype=BF16)).validation == "ok"
    assert explain(out=wide[:, :32]).validation[0] == "SplitKUnknownError"
    assert explain(mat2=b.t()).validation == "ok"


def huge(scale: int) -> dict[str, Any]:
    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.empty((rows * scale, columns * scale), dtype=E4M3, device="meta")

    return {
        "input": matrix(65537, 65536),
        "mat2": matrix(65536, 65536).t(),
        "scale_a": torch.empty((), device="meta"),
        "scale_b": torch.empty((), device="meta"),
        "out_dtype": BF16,
        "profile": "ada",
    }


def test_huge_sizes_cost_nothing() -> None:
    """Memory and steps do not depend on M, N, K; the operands lie on the meta device."""
    mmaemu.explain(**huge(1))
    tracemalloc.start()
    plan = mmaemu.explain(**huge(1), use_fast_accum=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert plan.validation == "ok"
    assert plan.split is not None
    assert plan.split.source == "envelope"
    assert plan.backend == explain(splitk=1).backend
    assert peak < 1 << 20
    split = mmaemu.explain(**huge(1), splitk=(31, "serial")).split
    assert split is not None
    assert split.S == 31

    def steps(scale: int) -> int:
        arguments, counted = huge(scale), []
        mmaemu.explain(**arguments)
        sys.setprofile(lambda _frame, event, _value: counted.append(event))
        try:
            mmaemu.explain(**arguments)
        finally:
            sys.setprofile(None)
        return len(counted)

    assert steps(1) == steps(4)


def test_programming_errors_are_raised() -> None:
    with pytest.raises(TypeError, match="scale_a must be"):
        explain(scale_a=1.0)
    with pytest.raises(KeyError, match="no profile"):
        explain(profile="h200")
    with pytest.raises(ValueError, match="backend must be"):
        explain(backend="gpu")
    with pytest.raises(ValueError, match="splitk=2"):
        explain(splitk=2)

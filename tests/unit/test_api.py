"""scaled_mm and accumulate as a caller sees them. C numbers: known faults of such software."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import mmaemu
from mmaemu import calls, cautions
from mmaemu.backends import registry
from mmaemu.backends.base import BackendStatus
from mmaemu.errors import (
    BackendFallbackWarning,
    ExperimentalPresetWarning,
    ReferenceRejectsError,
    UnsupportedFeatureError,
    UnverifiedSplitWarning,
)
from mmaemu.gemm import execute
from mmaemu.gemm.epilogue import Epilogue
from mmaemu.gemm.request import AccumulateRequest
from mmaemu.testing import assert_bitwise_equal, bits
from mmaemu.testing.operands import tensors

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
# A torch before 2.7 does not have this type.
E8M0 = [torch.float8_e8m0fnu] if hasattr(torch, "float8_e8m0fnu") else []
ONE = torch.tensor(1.0)
ADA: dict[str, Any] = {"profile": "ada", "splitk": 1}


def operands(
    M: int = 16, N: int = 32, K: int = 64, formats: tuple[str, str] = ("e4m3", "e4m3")
) -> tuple[torch.Tensor, torch.Tensor]:
    """The operands of a call: a [M, K] row-major, mat2 [K, N] column-major."""
    a, b = tensors("gaussian", M, N, K, formats=formats)
    return a, b.t()


def run(a: torch.Tensor, b: torch.Tensor, **options: Any) -> torch.Tensor:
    return mmaemu.scaled_mm(a, b, ONE, ONE, **{**ADA, **options})


def rejected(match: str, a: torch.Tensor, b: torch.Tensor, **options: Any) -> None:
    with pytest.raises(ReferenceRejectsError, match=match):
        run(a, b, **options)


# Layouts


def test_row_major_mat2_is_rejected() -> None:
    """C01: torch's CPU kernel takes it, the reference platform does not."""
    a, b = operands()
    rejected("mat2 must be column-major", a, b.contiguous())
    rejected("mat1 must be row-major", a.t().contiguous().t(), b)


def test_expanded_operands_never_read_garbage() -> None:
    """C04: stride 0 is neither row- nor column-major: mat1 is copied, mat2 rejected."""
    a, b = operands()
    spread = a[:1].expand(16, 64)
    assert spread.stride() == (0, 1)
    assert_bitwise_equal(run(spread, b, out_dtype=FP32), run(spread.clone(), b, out_dtype=FP32))
    rejected("mat2 must be column-major", a, b.t()[:1].expand(32, 64).t())


def test_padded_and_shifted_operands_give_the_same_bits() -> None:
    a, b = operands()
    storage = torch.zeros(16 + 16 * 96, dtype=torch.uint8).view(E4M3)
    padded = storage.as_strided((16, 64), (96, 1), 16)
    bits(padded).copy_(bits(a))
    assert_bitwise_equal(run(padded, b, out_dtype=FP32), run(a, b, out_dtype=FP32))
    assert_bitwise_equal(
        mmaemu.accumulate(padded, b.t(), use_fast_accum=False, **ADA),
        mmaemu.accumulate(a, b.t().t().contiguous().t(), use_fast_accum=False, **ADA),
    )


def test_one_row_has_any_row_stride() -> None:
    a, b = operands(M=1)
    far = torch.zeros(4096, dtype=torch.uint8).view(E4M3).as_strided((1, 64), (2048, 1))
    bits(far).copy_(bits(a))
    assert_bitwise_equal(run(far, b), run(a, b))


# Sizes and types


@pytest.mark.parametrize("K", [8, 17, 24, 1368])
def test_k_must_be_a_multiple_of_16(K: int) -> None:
    """C05: the message has the number."""
    a, b = operands(K=K)
    rejected(f"K must be a multiple of 16, got K = {K}", a, b)


def test_n_must_be_a_multiple_of_16_and_m_is_free() -> None:
    """C06."""
    rejected("N must be a multiple of 16, got N = 24", *operands(N=24))
    assert run(*operands(M=3)).shape == (3, 32)


def test_e5m2_times_e5m2_is_rejected_by_name() -> None:
    """C08."""
    rejected("float8_e5m2 x float8_e5m2", *operands(formats=("e5m2", "e5m2")))


@pytest.mark.parametrize(
    "name", ["float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "int8", "bfloat16"]
)
def test_other_operand_types_are_rejected(name: str) -> None:
    """C09."""
    if not hasattr(torch, name):
        pytest.skip(f"torch {torch.__version__} has no {name}")
    dtype: torch.dtype = getattr(torch, name)
    _, b = operands()
    other = torch.ones(16, 64, dtype=torch.uint8).to(FP32).to(dtype)
    rejected(str(dtype).removeprefix("torch."), other, b, out_dtype=FP32)


def test_everything_must_be_on_one_device() -> None:
    """C10: a scale of one element is not moved to the operands' device."""
    a, b = operands()
    with pytest.raises(ReferenceRejectsError, match="scale_b on meta"):
        mmaemu.scaled_mm(a, b, ONE, ONE.to("meta"), **ADA)


@pytest.mark.parametrize("first", [(), (1,), (1, 1), (1, 1, 1)])
@pytest.mark.parametrize("second", [(), (1,), (1, 1)])
def test_any_shape_of_one_element_is_a_scale(
    first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    """C11."""
    a, b = operands()
    scales = torch.tensor(0.3), torch.tensor(1.7)
    expected = mmaemu.scaled_mm(a, b, *scales, out_dtype=FP16, **ADA)
    shaped = scales[0].reshape(first), scales[1].reshape(second)
    assert_bitwise_equal(mmaemu.scaled_mm(a, b, *shaped, out_dtype=FP16, **ADA), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int32])
def test_scales_are_never_cast(dtype: torch.dtype) -> None:
    """C13."""
    a, b = operands()
    with pytest.raises(ReferenceRejectsError, match="scale_a and scale_b must be float32"):
        mmaemu.scaled_mm(a, b, ONE.to(dtype), ONE, **ADA)
    rejected("scale_result must be one float32", a, b, scale_result=ONE.to(dtype))


@pytest.mark.skipif(
    not hasattr(torch, "float8_e8m0fnu"), reason="this torch has no dtype for block scales"
)
@pytest.mark.parametrize("dtype", E8M0)
def test_block_scales_are_refused(dtype: torch.dtype) -> None:
    """C28: an E8M0 scale is no float32 scale; its codes 0 and 255 are never reinterpreted."""
    a, b = operands()
    for code in (0, 134, 255):
        block = torch.full((16, 2), code, dtype=torch.uint8).view(dtype)
        with pytest.raises(ReferenceRejectsError, match=r"block scales .* are not supported"):
            mmaemu.scaled_mm(a, b, block, block, **ADA)


def test_the_default_output_type_is_that_of_mat1() -> None:
    """C16."""
    assert run(*operands(formats=("e5m2", "e4m3"))).dtype == E5M2
    assert run(*operands(formats=("e4m3", "e5m2"))).dtype == E4M3
    out = torch.zeros(16, 32, dtype=FP16)
    assert run(*operands(), out=out).dtype == FP16


@pytest.mark.parametrize("dtype", [torch.int8, torch.float64, torch.float8_e4m3fnuz])
def test_other_output_types_are_rejected(dtype: torch.dtype) -> None:
    """C19."""
    rejected("out_dtype must be one of", *operands(), out_dtype=dtype)


@pytest.mark.parametrize(
    ("bias", "out_dtype", "match"),
    [
        (torch.ones(32, dtype=BF16), FP32, "not supported with a float32 output"),
        (torch.ones(32, dtype=FP16), BF16, "the output's dtype"),
        (torch.ones(32, dtype=torch.float64), BF16, "must be bfloat16 or float16"),
        (torch.ones(33, dtype=BF16), BF16, "one element per column"),
        (torch.ones(1, 48, dtype=BF16), BF16, "one element per column"),
    ],
)
def test_bias_is_rejected_as_the_platform_does(
    bias: torch.Tensor, out_dtype: torch.dtype, match: str
) -> None:
    """C18."""
    rejected(match, *operands(), bias=bias, out_dtype=out_dtype)


@pytest.mark.parametrize("out_dtype", [BF16, E4M3])
def test_a_bias_that_the_platform_takes_is_unsupported(out_dtype: torch.dtype) -> None:
    """C18: its bits are not published, and an approximation would be worse than an error."""
    bias = torch.zeros(32, dtype=BF16)
    with pytest.raises(UnsupportedFeatureError, match="add it to the result"):
        run(*operands(), bias=bias, out_dtype=out_dtype)
    with pytest.raises(UnsupportedFeatureError):
        mmaemu.scaled_mm(*operands(), ONE, ONE, bias, None, out_dtype, **ADA)


def test_rowwise_scales_are_unsupported_after_every_rejection() -> None:
    a, b = operands()
    scales = torch.ones(16, 1), torch.ones(1, 32)
    with pytest.raises(UnsupportedFeatureError, match="row-wise"):
        mmaemu.scaled_mm(a, b, *scales, out_dtype=BF16, **ADA)
    with pytest.raises(ReferenceRejectsError, match="need a bfloat16 output"):
        mmaemu.scaled_mm(a, b, *scales, out_dtype=FP32, **ADA)
    with pytest.raises(ReferenceRejectsError, match="contiguous"):
        mmaemu.scaled_mm(a, b, scales[0], torch.ones(32, 2)[:, :1].t(), out_dtype=BF16, **ADA)
    with pytest.raises(ReferenceRejectsError, match="column-major"):
        mmaemu.scaled_mm(a, b.contiguous(), *scales, out_dtype=BF16, **ADA)


# Argument types


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("input", None),
        ("mat2", [[1.0]]),
        ("scale_a", 1.0),
        ("scale_a", None),
        ("scale_b", ONE.numpy()),
        ("bias", 0.0),
        ("scale_result", 2),
        ("out", "tensor"),
        ("out_dtype", "float32"),
        ("out_dtype", float),
        ("use_fast_accum", 1),
        ("use_fast_accum", None),
        ("backend", None),
        ("profile", 3),
        ("splitk", "none"),
        ("splitk", 1.0),
        ("splitk", True),
        ("splitk", [2, "serial"]),
        ("splitk", (2.0, "serial")),
    ],
)
@pytest.mark.parametrize("function", [mmaemu.scaled_mm, mmaemu.explain])
def test_wrong_argument_types_are_type_errors(
    function: Callable[..., object], name: str, value: object
) -> None:
    """C13 and C15: also where the call is one that the platform rejects."""
    a, b = operands()
    arguments = {"input": a, "mat2": b.contiguous(), "scale_a": ONE, "scale_b": ONE, **ADA}
    with pytest.raises(TypeError):
        function(**{**arguments, name: value})


def test_sparse_tensors_are_named() -> None:
    sparse = ONE.reshape(1, 1).to_sparse()
    for function in (mmaemu.scaled_mm, mmaemu.explain):
        with pytest.raises(TypeError, match=r"scale_b must be a dense tensor"):
            function(*operands(), ONE, sparse, **ADA)


def test_eight_positional_arguments() -> None:
    """C15: one tensor comes back, not a pair."""
    a, b = operands()
    result = mmaemu.scaled_mm(a, b, ONE, ONE, None, None, FP32, True, **ADA)
    assert isinstance(result, torch.Tensor)
    assert_bitwise_equal(result, run(a, b, out_dtype=FP32, use_fast_accum=True))


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"profile": "h100"}, KeyError, "no profile 'h100'"),
        ({"backend": "gpu"}, ValueError, "backend must be one of"),
        ({"splitk": 2}, ValueError, r"pass splitk=1 or \(2, 'serial'\)"),
        ({"splitk": 0}, ValueError, "splitk=0"),
        ({"splitk": (0, "serial")}, ValueError, "at least 1"),
        ({"splitk": (2, "contiguous")}, ValueError, "another platform"),
        ({"splitk": (2, "spiral")}, ValueError, "scheme must be one of"),
        ({"splitk": (1, "serial")}, ValueError, "S = 1 goes with"),
    ],
)
def test_impossible_options(options: dict[str, Any], error: type[Exception], match: str) -> None:
    for function in (mmaemu.scaled_mm, mmaemu.explain):
        with pytest.raises(error, match=match):
            function(*operands(), ONE, ONE, **{**ADA, **options})


def test_equal_options_of_other_types_share_no_memory() -> None:
    """1 == True == 1.0, but only one of them is a split."""
    assert run(*operands(), splitk=1).shape == (16, 32)
    for splitk in (True, 1.0):
        with pytest.raises(TypeError, match="splitk must be"):
            run(*operands(), splitk=splitk)
    with pytest.raises(TypeError, match="use_fast_accum must be a bool"):
        run(*operands(), use_fast_accum=0)


def test_forms_of_one_split_are_equal() -> None:
    a, b = operands(K=512)
    forms = (mmaemu.SplitK(3, "serial"), (3, "serial"))
    results = [run(a, b, out_dtype=FP32, splitk=form) for form in forms]
    assert_bitwise_equal(results[0], results[1])
    assert_bitwise_equal(run(a, b, splitk=1), run(a, b, splitk=(1, "none")))


# Zero sizes


@pytest.mark.parametrize(("M", "N", "K"), [(0, 32, 64), (16, 0, 64), (0, 0, 0), (0, 16, 0)])
def test_empty_results(M: int, N: int, K: int) -> None:
    result = run(*operands(M, N, K), out_dtype=BF16)
    assert (result.shape, result.dtype) == ((M, N), BF16)
    a, b = tensors("uniform", M, N, K)
    assert mmaemu.accumulate(a, b, use_fast_accum=True, **ADA).shape == (M, N)


@pytest.mark.parametrize("dtype", [FP32, BF16, FP16, E4M3, E5M2, torch.float8_e5m2fnuz, torch.int8])
def test_no_products_give_plus_zero_whatever_the_scales_and_types(dtype: torch.dtype) -> None:
    a, b = operands(K=0)
    for value in (float("nan"), float("inf"), -1.0):
        scale = torch.tensor(value)
        result = mmaemu.scaled_mm(a, b, scale, scale, out_dtype=dtype, **ADA)
        assert (bits(result) == 0).all()
    out = torch.ones(64, 32, dtype=FP32)[::2].t()[:16].to(dtype)
    result = mmaemu.scaled_mm(a, b, ONE, ONE, out=out[:, :32], **ADA)
    assert result.shape == (16, 32)
    assert (bits(result) == 0).all()
    acc = mmaemu.accumulate(a, b.t(), use_fast_accum=False, **ADA)
    assert_bitwise_equal(acc, torch.zeros(16, 32))


@pytest.mark.parametrize("dtype", [*E8M0, torch.qint8, torch.quint8, torch.qint32])
def test_zero_size_needs_an_output_that_has_a_zero(dtype: torch.dtype) -> None:
    for sizes in ((16, 32, 0), (0, 32, 16)):
        with pytest.raises(UnsupportedFeatureError, match=r"gives \+0, which torch\.\w+ cannot be"):
            run(*operands(*sizes), out_dtype=dtype)


def test_zero_size_needs_no_evidence_but_correct_options() -> None:
    a, b = operands(K=0)
    for profile in ("hopper-experimental", "b200-mma-sync-experimental"):
        assert run(a, b, profile=profile, splitk="auto").shape == (16, 32)
        assert run(a, b, profile=profile, splitk=(2, "contiguous")).shape == (16, 32)
    for empty in ((a, b), operands(M=0)):
        with pytest.raises(ValueError, match="'serial' belongs to another platform"):
            run(*empty, profile="hopper", splitk=(2, "serial"))
    assert run(a, b, bias=torch.ones(32, dtype=BF16), out_dtype=BF16).shape == (16, 32)
    for options in ({"backend": "gpu"}, {"splitk": 2}):
        with pytest.raises(ValueError, match=r"must be one of|splitk=2"):
            run(a, b, **options)
        with pytest.raises(ValueError, match=r"must be one of|splitk=2"):
            mmaemu.accumulate(a, b.t(), use_fast_accum=True, **{**ADA, **options})


# Profiles and models


def test_profiles_give_their_own_bits() -> None:
    a, b = tensors("spread", 64, 64, 256)
    results = [
        mmaemu.accumulate(a, b, use_fast_accum=True, profile=profile, splitk=1)
        for profile in ("ada", "hopper")
    ]
    assert not torch.equal(bits(results[0]), bits(results[1]))


def test_scaled_mm_is_accumulate_and_epilogue() -> None:
    a, b = operands(K=320)
    scales = torch.tensor(0.3), torch.tensor(1.7)
    for fast in (True, False):
        acc = mmaemu.accumulate(a, b.t(), use_fast_accum=fast, **ADA)
        for dtype in (FP32, BF16, FP16, E4M3):
            expected = mmaemu.model.epilogue.apply(acc, *scales, out_dtype=dtype)
            result = mmaemu.scaled_mm(a, b, *scales, None, None, dtype, fast, **ADA)
            assert_bitwise_equal(result, expected)


def test_own_profiles_and_models_are_accepted() -> None:
    a, b = operands()
    model = dataclasses.replace(mmaemu.get_preset("ada"), name="mine", fraction_bits=20)
    mine = dataclasses.replace(mmaemu.get_profile("ada"), name="mine", preset=model)
    plan = mmaemu.explain(a, b, ONE, ONE, profile=mine, splitk=1)
    assert (plan.validation, plan.profile, plan.preset) == ("ok", "mine", "mine")
    other = dataclasses.replace(mine, preset="hopper")
    spread = tensors("spread", 64, 64, 256)
    results = [
        mmaemu.accumulate(*spread, use_fast_accum=True, profile=profile, splitk=1)
        for profile in ("ada", mine, other, "hopper")
    ]
    assert not torch.equal(bits(results[0]), bits(results[1]))
    assert_bitwise_equal(results[2], results[3])
    assert_bitwise_equal(run(a, b, profile=mine, splitk=1), run(a, b, profile=mine, splitk=1))


def test_a_model_that_cannot_run_an_fp8_gemm_is_refused() -> None:
    wrong = dataclasses.replace(mmaemu.get_profile("ada"), name="w", preset="ampere_fp16_fp32")
    with pytest.raises(ValueError, match="needs an instruction model that takes these formats"):
        run(*operands(), profile=wrong)


def test_what_b200_mma_sync_does_not_know_is_unsupported() -> None:
    b200: dict[str, Any] = {"profile": "b200-mma-sync-experimental"}
    with pytest.raises(UnsupportedFeatureError, match="slow accumulation"):
        run(*operands(), **b200)
    with pytest.raises(UnsupportedFeatureError, match="split-K"):
        run(*operands(), use_fast_accum=True, splitk=(2, "serial"), **b200)
    model = dataclasses.replace(mmaemu.get_preset("b200_mma_sync"), name="own")
    own = dataclasses.replace(mmaemu.get_profile("ada"), name="own", preset=model)
    with pytest.raises(UnsupportedFeatureError, match="split-K of instruction model 'own'"):
        run(*operands(), use_fast_accum=True, splitk=(2, "serial"), profile=own)


def test_experimental_profiles_warn_once() -> None:
    cautions._issued.clear()
    options: dict[str, Any] = {"profile": "hopper-experimental", "splitk": 1}
    with pytest.warns(ExperimentalPresetWarning, match="no platform was recorded"):
        run(*operands(), **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(*operands(), **options)
        run(*operands(M=3), **options)


# accumulate


def test_accumulate_obeys_no_rejection_rule() -> None:
    a, b = tensors("uniform", 3, 5, 17, formats=("e5m2", "e5m2"))
    acc = mmaemu.accumulate(a, b, use_fast_accum=True, **ADA)
    assert (acc.shape, acc.dtype, acc.is_contiguous()) == ((3, 5), FP32, True)
    turned = a.t().contiguous().t(), b[:, ::1].t().contiguous().t()
    assert_bitwise_equal(mmaemu.accumulate(*turned, use_fast_accum=True, **ADA), acc)
    thin = tensors("uniform", 3, 5, 1)
    assert mmaemu.accumulate(thin[0].t().t(), thin[1], use_fast_accum=False, **ADA).shape == (3, 5)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"a": 1.0}, TypeError, r"a must be a torch\.Tensor"),
        ({"a": torch.zeros(3, 16, dtype=torch.uint8)}, TypeError, "raw codes"),
        ({"b": torch.zeros(3, 16)}, TypeError, "b must be float8_e4m3fn or float8_e5m2"),
        ({"b": torch.zeros(16, 5).to(E4M3)}, ValueError, "the same K, got shapes"),
        ({"a": torch.zeros(16).to(E4M3)}, ValueError, "must be matrices"),
        ({"a": torch.zeros(3, 16, device="meta").to(E4M3)}, ValueError, "one device"),
        ({"use_fast_accum": 1}, TypeError, "use_fast_accum must be a bool"),
        ({"out_dtype_for_split": "float32"}, TypeError, "out_dtype_for_split must be one of"),
        ({"out_dtype_for_split": torch.int8}, TypeError, "out_dtype_for_split must be one of"),
        ({"profile": "nvidia"}, KeyError, "no profile 'nvidia'"),
        ({"backend": "gpu"}, ValueError, "backend must be one of"),
        ({"splitk": 4}, ValueError, "splitk=4"),
    ],
)
def test_accumulate_checks_its_arguments(
    change: dict[str, Any], error: type[Exception], match: str
) -> None:
    a, b = tensors("uniform", 3, 5, 16)
    arguments = {"a": a, "b": b, "use_fast_accum": True, **ADA, **change}
    with pytest.raises(error, match=match):
        mmaemu.accumulate(**arguments)


def test_accumulate_looks_its_split_up_by_output_type() -> None:
    a, b = tensors("uniform", 16, 32, 64)
    options: dict[str, Any] = {"use_fast_accum": False, "profile": "ada"}
    for dtype in (FP32, BF16):
        split = mmaemu.resolve_splitk(
            16, 32, 64, a_dtype=E4M3, b_dtype=E4M3, out_dtype=dtype, **options
        )
        expected = mmaemu.accumulate(a, b, splitk=(split.S, split.scheme), **options)
        assert_bitwise_equal(
            mmaemu.accumulate(a, b, out_dtype_for_split=dtype, **options), expected
        )


# Gradients


@pytest.mark.parametrize("name", ["scale_a", "scale_b", "input", "mat2", "scale_result", "out"])
def test_gradients_raise_at_call_time(name: str) -> None:
    """C47: not a result whose backward fails."""
    a, b = operands()
    arguments: dict[str, Any] = {
        "input": a,
        "mat2": b,
        "scale_a": ONE.clone(),
        "scale_b": ONE.clone(),
        "scale_result": ONE.clone(),
        "out": torch.zeros(16, 32, dtype=E4M3),
        **ADA,
    }
    arguments[name] = arguments[name].detach().requires_grad_()
    with pytest.raises(UnsupportedFeatureError, match="requires grad"):
        mmaemu.scaled_mm(**arguments)
    with torch.no_grad():
        result = mmaemu.scaled_mm(**arguments)
    assert result.requires_grad == (name == "out")
    with pytest.raises(ReferenceRejectsError):
        mmaemu.scaled_mm(**{**arguments, "mat2": b.contiguous()})


def test_accumulate_has_no_gradient_either() -> None:
    a, b = tensors("uniform", 3, 5, 16)
    with pytest.raises(UnsupportedFeatureError, match="requires grad"):
        mmaemu.accumulate(a.requires_grad_(), b, use_fast_accum=True, **ADA)
    with torch.inference_mode():
        assert mmaemu.accumulate(a, b, use_fast_accum=True, **ADA).shape == (3, 5)


def test_forward_mode_gradients_raise_too() -> None:
    a, b = operands()
    make_dual: Callable[..., torch.Tensor] = torch.autograd.forward_ad.make_dual
    with torch.autograd.forward_ad.dual_level():
        dual = make_dual(torch.ones(()), torch.ones(()))
        with pytest.raises(UnsupportedFeatureError, match="requires grad"):
            mmaemu.scaled_mm(a, b, dual, ONE, **ADA)
        assert run(a, b).shape == (16, 32)


def test_zero_size_needs_no_gradient() -> None:
    a, b = operands(K=0)
    scale = ONE.clone().requires_grad_()
    result = mmaemu.scaled_mm(a, b, scale, ONE, out_dtype=FP32, **ADA)
    assert not result.requires_grad


# Memory of decisions


def test_settings_count_at_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = tensors("spread", 64, 64, 256)
    results: dict[str, torch.Tensor] = {}
    for profile in ("ada", "hopper", "ada"):
        monkeypatch.setenv("MMAEMU_PROFILE", profile)
        acc = mmaemu.accumulate(a, b, use_fast_accum=True, splitk=1)
        results.setdefault(profile, acc)
        assert_bitwise_equal(acc, results[profile])
    assert not torch.equal(bits(results["ada"]), bits(results["hopper"]))
    monkeypatch.setenv("MMAEMU_PROFILE", "gone")
    with pytest.raises(KeyError, match="from MMAEMU_PROFILE"):
        mmaemu.accumulate(a, b, use_fast_accum=True, splitk=1)


def test_strict_mode_counts_after_an_inferred_split(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = operands(M=1040, N=1040, K=16)
    options: dict[str, Any] = {"profile": "ada", "splitk": "auto", "out_dtype": FP32}
    assert mmaemu.explain(a, b, ONE, ONE, **options).split is not None
    run(a, b, **options)
    monkeypatch.setenv("MMAEMU_SPLITK_STRICT", "1")
    with pytest.raises(mmaemu.SplitKUnknownError, match="strict"):
        run(a, b, **options)
    monkeypatch.setenv("MMAEMU_SPLITK_STRICT", "0")
    run(a, b, **options)


def test_backend_setting_counts_at_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    run(*operands())
    monkeypatch.setenv("MMAEMU_BACKEND", "cuda")
    with pytest.raises(mmaemu.BackendUnavailableError, match="cuda"):
        run(*operands())


def test_explain_uses_up_no_warning() -> None:
    a, b = operands(K=512)
    options: dict[str, Any] = {**ADA, "splitk": (31, "serial")}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = mmaemu.explain(a, b, ONE, ONE, **options)
    assert any("never replayed" in text for text in plan.warnings)
    with pytest.warns(UnverifiedSplitWarning, match="never replayed"):
        run(a, b, **options)


def test_a_warning_made_an_error_raises_every_time() -> None:
    options: dict[str, Any] = {**ADA, "splitk": (30, "serial")}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(UnverifiedSplitWarning):
                run(*operands(K=512), **options)


def with_model(preset: str) -> mmaemu.Profile:
    return dataclasses.replace(mmaemu.get_profile("ada"), name="mine", preset=preset)


def test_warnings_point_to_the_callers_line(monkeypatch: pytest.MonkeyPatch) -> None:
    cautions._issued.clear()
    a, b = operands(K=512)
    cases: list[tuple[str, dict[str, Any]]] = [
        ("is experimental", {"profile": "hopper-experimental"}),
        ("model only", {"profile": with_model("tcgen05_f8f6f4_fp32"), "use_fast_accum": True}),
        ("neither B200", {"profile": with_model("blackwell"), "use_fast_accum": True}),
        ("never replayed", {"splitk": (29, "pairwise")}),
        ("is resized", {"out": torch.zeros(3)}),
        ("stays unchanged", {"out": torch.zeros(16, 64)[:, ::2]}),
    ]
    for match, options in cases:
        with pytest.warns(UserWarning, match=match) as caught:
            mmaemu.scaled_mm(a, b, ONE, ONE, backend="reference", **{**ADA, **options})
        assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(UserWarning, match="resized") as caught:
        mmaemu.scaled_mm(*operands(K=0), ONE, ONE, out=torch.zeros(3), **ADA)
    assert caught[0].filename == __file__
    calls._decide_scaled_mm.cache_clear()
    cpu = "mmaemu.backends.cpu"
    monkeypatch.setattr(
        registry,
        "_missing",
        lambda family, _: ("is damaged" if family.module == cpu else None, True),
    )
    monkeypatch.setattr(registry, "FAMILIES", registry.FAMILIES[1:])
    monkeypatch.setattr(registry, "_ANY", registry._ANY[1:])
    with pytest.warns(BackendFallbackWarning, match="is damaged") as caught:
        mmaemu.scaled_mm(a, b, ONE, ONE, **ADA)
    assert [warning.filename for warning in caught] == [__file__]
    calls._decide_scaled_mm.cache_clear()


def test_a_warning_from_within_an_operator_points_to_the_callers_line() -> None:
    cautions._issued.clear()
    with FlopCounterMode(display=False), pytest.warns(ExperimentalPresetWarning) as caught:
        run(*operands(), profile="hopper-experimental")
    assert [warning.filename for warning in caught] == [__file__]


def test_a_repeated_call_decides_nothing_anew() -> None:
    a, b = operands(M=48)
    run(a, b)
    before = calls._decide_scaled_mm.cache_info()
    for _ in range(3):
        run(a.clone(), b)
    after = calls._decide_scaled_mm.cache_info()
    assert (after.hits - before.hits, after.misses - before.misses) == (3, 0)


class Fused:
    """A backend that does the epilogue itself."""

    name = "fused"
    available = True
    result = torch.zeros(7, 32, dtype=BF16)

    def status(self, device: torch.device) -> BackendStatus:
        return BackendStatus(self.name, self.available, None, True, (), f"on {device}")

    def execute(self, request: AccumulateRequest, epilogue: Epilogue) -> torch.Tensor:
        assert (request.M, epilogue.out_dtype) == (7, BF16)
        return self.result


def test_a_backend_may_do_the_epilogue_itself_and_is_kept_while_available(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls._decide_scaled_mm.cache_clear()
    fused = Fused()
    answers = iter([(fused, ())])
    with monkeypatch.context() as patch:
        patch.setattr(calls, "select", lambda *_: next(answers))
        for _ in range(3):
            assert run(*operands(M=7), out_dtype=BF16) is fused.result
    fused.available = False
    assert run(*operands(M=7), out_dtype=BF16) is not fused.result


# CUDA graphs


def test_a_cuda_graph_captures_no_call_that_reads_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C46: never a stale scale in a replay."""
    fused: Any = Fused()
    for capturing in (False, True):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda c=capturing: c)
        fused.captures = True
        calls.refuse_capture(fused)
    fused.captures = False
    with pytest.raises(UnsupportedFeatureError, match=r"backend fused cannot .* CUDA-graph"):
        calls.refuse_capture(fused)


# Memory


def test_a_result_given_by_the_caller_is_filled_in_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = operands(M=33)
    expected = run(a, b, out_dtype=BF16)
    sizes = []
    whole = execute.execute

    def spy(*arguments: Any) -> torch.Tensor:
        sizes.append(arguments[1].M)
        return whole(*arguments)

    monkeypatch.setattr(execute, "execute", spy)
    monkeypatch.setattr(execute, "BAND", 10 * 32)
    out = torch.zeros(33, 32, dtype=BF16)
    assert_bitwise_equal(run(a, b, out=out, backend="reference"), expected)
    assert sizes == [10, 10, 10, 3]

"""The public `dot`: what it takes, what it refuses, and what must not matter."""

from __future__ import annotations

import ctypes
import platform
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mmaemu import cautions
from mmaemu import model as public
from mmaemu.errors import ExperimentalPresetWarning
from mmaemu.formats import FORMATS
from mmaemu.gemm import epilogue
from mmaemu.instruction.chain import chain
from mmaemu.instruction.models import MODELS
from mmaemu.model import dot

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def zeros(*shape: int, dtype: torch.dtype = E4M3) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float32).to(dtype)


def test_names() -> None:
    assert public.Preset is type(MODELS["ada"])
    assert public.epilogue is epilogue
    assert public.get_preset("ada") is MODELS["ada"]
    assert "ada" in public.list_presets()


def test_float8_tensors_and_their_values_give_the_same_bits() -> None:
    generator = torch.Generator().manual_seed(3)
    a = torch.randn(6, 50, generator=generator, dtype=torch.float32).to(E4M3)
    b = torch.randn(6, 50, generator=generator, dtype=torch.float32).to(E5M2)
    c = torch.randn(6, generator=generator, dtype=torch.float32)
    told = dot(a, b, c, preset="hopper")
    given = dot(a.double(), b.double(), c.double(), preset="hopper", fmt=("e4m3", "e5m2"))
    mixed = dot(a, b.double(), c, preset=MODELS["hopper"], fmt=("e4m3", "e5m2"))
    strided = dot(a.t().contiguous().t(), b, c, preset="hopper")
    assert told.dtype == torch.float32
    for other in (given, mixed, strided):
        assert torch.equal(other.view(torch.int32), told.view(torch.int32))


@pytest.mark.parametrize(
    ("name", "dtype", "result"),
    [
        ("ampere_fp16_fp16", torch.float16, torch.float16),
        ("ampere_bf16_fp32", torch.bfloat16, torch.float32),
        ("cdna_fp32_fma", torch.float32, torch.float32),
        ("int8_wrap", torch.int8, torch.int32),
        ("cdna3_fp8", torch.float8_e4m3fnuz, torch.float32),
    ],
)
def test_dtypes(name: str, dtype: torch.dtype, result: torch.dtype) -> None:
    a = torch.tensor([[1, 2, 3]], dtype=torch.float32).to(dtype)
    out = dot(a, a, preset=MODELS[name])
    assert out.dtype == result
    assert out.item() == 14


def test_subnormal_bf16_inputs_count() -> None:
    a = torch.tensor([[1]], dtype=torch.int16).view(torch.bfloat16)
    b = torch.tensor([[2.0**127]], dtype=torch.float32).to(torch.bfloat16)
    assert dot(a, b, preset="ampere_bf16_fp32").item() == 2.0**-6


def test_no_products() -> None:
    c = torch.tensor([1 + 2.0**-23, -0.0, float("nan")], dtype=torch.float32)
    out = dot(zeros(3, 0), zeros(3, 0), c)
    assert out.view(torch.int32).tolist() == [0x3F800001, -(2**31), 0x7FFFFFFF]
    assert dot(zeros(3, 0), zeros(3, 0)).tolist() == [0.0, 0.0, 0.0]
    assert dot(zeros(0, 8), zeros(0, 8)).shape == (0,)
    assert dot(zeros(8), zeros(8)).shape == ()


def test_operands_that_require_grad_are_read_only() -> None:
    a = torch.ones(2, 4, dtype=torch.float64, requires_grad=True)
    c = torch.ones(2, dtype=torch.float32, requires_grad=True)
    out = dot(a, a, c, fmt="e4m3")
    assert out.tolist() == [5.0, 5.0]
    assert not out.requires_grad


def test_dot_warns_for_names_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cautions, "_issued", set())
    a = torch.ones(1, 4, dtype=torch.float16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dot(a, a, preset=MODELS["turing_fp16_fp32"])
    with pytest.warns(ExperimentalPresetWarning, match="turing_fp16_fp32") as seen:
        dot(a, a, preset="turing_fp16_fp32")
    assert [warning.filename for warning in seen] == [__file__]


SCALED = MODELS["tcgen05_mxf8f6f4"]
NVFP4 = MODELS["tcgen05_nvfp4"]
ONES = torch.ones(3, 64, dtype=torch.float64)
BAD_CALLS: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: dot([1.0], zeros(1)), TypeError, "a must be a torch.Tensor, got list"),  # type: ignore[arg-type]
    (lambda: dot(zeros(1), None), TypeError, "b must be a torch.Tensor, got NoneType"),  # type: ignore[arg-type]
    (lambda: dot(zeros(3, 5), zeros(2, 5)), ValueError, r"no broadcasting.*\(3, 5\) and \(2, 5\)"),
    (lambda: dot(zeros(3, 5), zeros(5)), ValueError, "no broadcasting"),
    (lambda: dot(zeros(), zeros()), ValueError, "same shape"),
    (lambda: dot(zeros(3, 5), zeros(3, 5).to("meta")), ValueError, "on one device"),
    (lambda: dot(zeros(3, 5), zeros(3, 5), 1.0), TypeError, "c must be a torch.Tensor, got float"),  # type: ignore[arg-type]
    (
        lambda: dot(zeros(3, 5), zeros(3, 5), torch.zeros(2, dtype=torch.float32)),
        ValueError,
        r"c must have shape \(3,\) on cpu, got \(2,\)",
    ),
    (
        lambda: dot(zeros(3, 5), zeros(3, 5), torch.zeros(3, dtype=torch.float16)),
        TypeError,
        "takes c as torch.float32, got torch.float16",
    ),
    (
        lambda: dot(zeros(3, 5), zeros(3, 5), torch.zeros(3, dtype=torch.int32)),
        TypeError,
        "got torch.int32",
    ),
    (
        lambda: dot(zeros(3, 5), zeros(3, 5), torch.full((3,), 0.1, dtype=torch.float64)),
        ValueError,
        "c holds 3 values that are no fp32 values, such as 0.1",
    ),
    (lambda: dot(ONES, ONES), TypeError, "a is float64: pass fmt="),
    (lambda: dot(ONES / 3, ONES, fmt="e4m3"), ValueError, "no e4m3 values, such as 0.333"),
    (lambda: dot(ONES * 464, ONES, fmt="e4m3"), ValueError, "no e4m3 values, such as 464"),
    (lambda: dot(ONES * np.inf, ONES, fmt="e4m3"), ValueError, "no e4m3 values, such as inf"),
    (lambda: dot(ONES, ONES * 2.0**-10, fmt="e4m3"), ValueError, "b holds 192 values"),
    (lambda: dot(ONES, ONES, fmt="foo"), ValueError, "unknown format 'foo'"),
    (lambda: dot(ONES, ONES, fmt=4), TypeError, "fmt must be a format name or a pair"),  # type: ignore[arg-type]
    (lambda: dot(ONES, ONES, fmt=("e4m3",)), TypeError, "fmt must be"),  # type: ignore[arg-type]
    (lambda: dot(ONES, ONES, fmt="bf16"), ValueError, "takes e4m3 x e4m3.*got bf16 x bf16"),
    (lambda: dot(zeros(3, 5), zeros(3, 5), fmt="e5m2"), ValueError, "but fmt says 'e5m2'"),
    (lambda: dot(zeros(3, 5).float(), zeros(3, 5)), TypeError, "a: preset 'ada' takes e4m3, e5m2"),
    (lambda: dot(zeros(3, 5).int(), zeros(3, 5)), TypeError, "torch dtypes"),
    (lambda: dot(ONES * 300, ONES, preset=MODELS["int8_wrap"], fmt="int8"), ValueError, "no int8"),
    (lambda: dot(zeros(3, 5), zeros(3, 5), preset="nope"), KeyError, "no preset 'nope'"),
    (lambda: dot(zeros(3, 5), zeros(3, 5), preset=3), TypeError, "preset must be"),  # type: ignore[arg-type]
    (lambda: dot(zeros(3, 5), zeros(3, 5), preset="sm_120"), KeyError, "refused"),
    (
        lambda: dot(zeros(3, 64), zeros(3, 64), scale_b=ONES[:, :2]),
        ValueError,
        "'ada' takes no block scales; leave scale_b out",
    ),
    (lambda: dot(zeros(3, 64), zeros(3, 64), preset=SCALED), ValueError, "needs scale_a"),
    (
        lambda: dot(zeros(3, 64), zeros(3, 64), preset=SCALED, scale_a=ONES[:, :2], scale_b=ONES),
        ValueError,
        r"scale_b must have shape \(3, 2\)",
    ),
    (
        lambda: dot(
            zeros(3, 64),
            zeros(3, 64),
            preset=SCALED,
            scale_a=ONES[:, :2].float(),
            scale_b=ONES[:, :2],
        ),
        TypeError,
        "scale_a must be torch.float8_e8m0fnu or torch.float64, got torch.float32",
    ),
    (
        lambda: dot(
            ONES, ONES, preset=SCALED, fmt="e4m3", scale_a=ONES[:, :2] * 0, scale_b=ONES[:, :2]
        ),
        ValueError,
        "no ue8m0 values, such as 0.0",
    ),
    (
        lambda: dot(
            ONES, ONES, preset=NVFP4, fmt="e2m1", scale_a=-ONES[:, :4], scale_b=ONES[:, :4]
        ),
        ValueError,
        "no ue4m3 values, such as -1.0",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD_CALLS)
def test_bad_calls(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_chain_checks_what_dot_cannot_pass() -> None:
    ada = MODELS["ada"]
    with pytest.raises(ValueError, match="got the formats"):
        chain(ONES, ONES, None, ada, formats=("bf16", "bf16"))
    with pytest.raises(ValueError, match="no scales"):
        chain(ONES, ONES, None, ada, formats=("e4m3", "e4m3"), scale_a=ONES)
    with pytest.raises(ValueError, match=r"takes c as torch\.float32 of shape"):
        chain(ONES, ONES, ONES, ada, formats=("e4m3", "e4m3"))


def test_chain_broadcasts() -> None:
    a = torch.arange(24, dtype=torch.float64).view(3, 1, 8) % 8
    b = torch.arange(16, dtype=torch.float64).view(1, 2, 8) % 16 - 8
    out = chain(a, b, None, MODELS["ada"], formats=("e4m3", "e4m3"))
    full = dot(a.expand(3, 2, 8), b.expand(3, 2, 8), fmt="e4m3")
    assert torch.equal(out, full)


# One preset of every kind, of both accumulator placements and of both roundings.
SAMPLE = {
    "ada": ("e5m2", "e5m2"),
    "ada_fp8_fp16": ("e4m3", "e4m3"),
    "b200_mma_sync": ("e5m2", "e5m2"),
    "ampere_bf16_fp32": ("bf16", "bf16"),
    "tcgen05_nvfp4": ("e2m1", "e2m1"),
    "cdna1_bf16": ("bf16", "bf16"),
    "cdna2_bf16": ("bf16", "bf16"),
    "cdna3_bf16": ("bf16", "bf16"),
    "cdna_fp32_fma": ("fp32", "fp32"),
    "fp64_fma": ("fp64", "fp64"),
    "int8_wrap": ("int8", "int8"),
}


def operands(name: str) -> dict[str, Any]:
    """Return operands with many subnormals, as float64 values and as codes of c."""
    model, fmt = MODELS[name], SAMPLE[name][0]
    rng = np.random.default_rng(17)
    shape = (32, model.dot_length + 3)
    if fmt == "int8":
        a, b = (rng.integers(-128, 128, shape).astype(np.float64) for _ in range(2))
        c: torch.Tensor = torch.from_numpy(rng.integers(-(2**31), 2**31, 32).astype(np.int32))
    else:
        record = FORMATS[fmt]
        top = 1 << (record.bits - 1)
        tiny = rng.integers(0, 4 << record.fraction_bits, shape).astype(np.uint64) % top
        wide = rng.integers(0, top, shape, dtype=np.uint64)
        a = record.decode(np.where(rng.random(shape) < 0.5, tiny, wide))
        b = -record.decode(np.where(rng.random(shape) < 0.5, tiny, wide))
        out = FORMATS[model.output]
        c_codes = rng.integers(0, 3 << out.fraction_bits, 32).astype(out.code_dtype)
        c = torch.from_numpy(c_codes).view(getattr(torch, str(out.torch_name)))
    call: dict[str, Any] = {"a": torch.from_numpy(a), "b": torch.from_numpy(b), "c": c}
    if model.scale_block:
        blocks = -(-shape[1] // model.scale_block)
        scales = FORMATS["ue4m3"].decode(rng.integers(0, 127, (2, 32, blocks)).astype(np.uint8))
        call["scale_a"], call["scale_b"] = torch.from_numpy(scales)
    return {**call, "preset": model, "fmt": SAMPLE[name]}


def result_bits(name: str) -> bytes:
    return dot(**operands(name)).numpy().tobytes()


@contextmanager
def flush_to_zero() -> Iterator[None]:
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextmanager
def rounding_upward() -> Iterator[None]:
    """Set the C library's rounding mode of this thread (x86: FE_UPWARD = 0x800, Arm: 0x400000)."""
    library = ctypes.CDLL(None)
    upward = 0x800 if platform.machine().lower() in {"x86_64", "amd64"} else 0x400000
    before = library.fegetround()
    assert library.fesetround(upward) == 0
    try:
        yield
    finally:
        library.fesetround(before)


STATES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "flush to zero": flush_to_zero,
    "default dtype float64": lambda: default_dtype(torch.float64),
    "default dtype float16": lambda: default_dtype(torch.float16),
    "default device meta": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "inference mode": torch.inference_mode,
    "no grad": torch.no_grad,
    "one thread": one_thread,
    "deterministic": deterministic,
    "rounding upward": rounding_upward,
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", SAMPLE)
def test_ambient_state_changes_no_bit(name: str, state: str) -> None:
    if state == "rounding upward" and sys.platform == "win32":
        pytest.skip("the C library of Windows exports no fesetround under this name")
    arguments = operands(name)
    plain = dot(**arguments).numpy().tobytes()
    with STATES[state]():
        result = dot(**arguments)
    assert result.numpy().tobytes() == plain


def test_eight_threads_at_once() -> None:
    plain = {name: result_bits(name) for name in SAMPLE}
    seen: list[tuple[str, bytes]] = []
    workers = [
        threading.Thread(target=lambda n=name: seen.append((n, result_bits(n))))
        for name in list(SAMPLE)[:8]
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(seen) == len(workers)
    assert all(plain[name] == result for name, result in seen)


def test_a_model_with_other_parameters_gives_other_bits() -> None:
    a = torch.tensor([[1.0, 2.0**-7]], dtype=torch.float64)
    b = torch.tensor([[1.0, 2.0**-7]], dtype=torch.float64)
    finer = replace(MODELS["ada"], name="finer", fraction_bits=14, result_fraction_bits=23)
    assert dot(a, b, fmt="e5m2").item() == 1.0
    assert dot(a, b, preset=finer, fmt="e5m2").item() == 1 + 2.0**-14

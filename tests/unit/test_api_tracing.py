"""C45: compiled, exported, faked and transformed calls: the same bits or a clear error."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import mmaemu
from mmaemu.errors import ReferenceRejectsError, UnsupportedFeatureError
from mmaemu.testing import assert_bitwise_equal
from mmaemu.testing.operands import tensors

ROOT = Path(__file__).parents[2]
E4M3, BF16, FP32 = torch.float8_e4m3fn, torch.bfloat16, torch.float32
A, B = tensors("uniform", 16, 32, 64)
SCALES = torch.tensor(0.3), torch.tensor(1.7)
MINE = dataclasses.replace(mmaemu.get_profile("ada"), name="mine", preset="hopper")
ADA: dict[str, Any] = {"profile": "ada", "splitk": 1}

Call = Callable[..., torch.Tensor]


def multiply(**options: Any) -> Call:
    """A function of plain tensors that calls scaled_mm and then something else."""

    def call(
        a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
    ) -> torch.Tensor:
        keywords = {"out_dtype": FP32, **ADA, **options}
        return mmaemu.scaled_mm(a, b.t(), scale_a, scale_b, **keywords) * 2

    return call


def compiled(call: Call, backend: str, **options: Any) -> Call:
    torch._dynamo.reset()
    whole: Call = torch.compile(call, fullgraph=True, backend=backend, **options)
    return whole


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"splitk": mmaemu.SplitK(2, "serial"), "use_fast_accum": True},
        {"splitk": (2, "serial")},
        pytest.param(
            {"profile": MINE},
            marks=pytest.mark.skipif(
                not hasattr(torch, "float8_e8m0fnu"),
                reason="torch 2.6 cannot trace an object of one's own",
            ),
        ),
        {"profile": None},
    ],
    ids=["names", "SplitK", "tuple", "Profile", "default profile"],
)
def test_compiled_calls_are_one_graph_with_the_same_bits(
    options: dict[str, Any], backend: str
) -> None:
    call = multiply(**options)
    assert_bitwise_equal(compiled(call, backend)(A, B, *SCALES), call(A, B, *SCALES))


def test_a_profile_object_of_another_process_is_missed() -> None:
    arguments = (A, B.t(), *SCALES, None, None, BF16, False, "object:999", 1, "", "auto", False)
    with pytest.raises(KeyError, match="traced in another process"):
        torch.ops.mmaemu.scaled_mm(*arguments)


def test_compiled_calls_take_any_number_of_rows() -> None:
    call = multiply()
    dynamic = compiled(call, "aot_eager", dynamic=True)
    for rows in (16, 17, 1, 33):
        a, _ = tensors("uniform", rows, 32, 64)
        assert_bitwise_equal(dynamic(a, B, *SCALES), call(a, B, *SCALES))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_out_is_written(backend: str) -> None:
    def call(out: torch.Tensor) -> torch.Tensor:
        return mmaemu.scaled_mm(A, B.t(), *SCALES, out=out.t(), **ADA)

    out = torch.zeros(32, 16, dtype=BF16)
    compiled(call, backend)(out)
    expected = mmaemu.scaled_mm(A, B.t(), *SCALES, out_dtype=BF16, **ADA)
    assert_bitwise_equal(out.t(), expected)


class Seen(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch has no types here.
    """A mode that lets every operator run."""

    def __torch_dispatch__(
        self, func: Call, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


def test_autograd_sees_that_out_changed() -> None:
    out = torch.zeros(16, 32, dtype=BF16)
    for version in (1, 2):
        with Seen():  # type: ignore[no-untyped-call] # as above
            mmaemu.scaled_mm(A, B.t(), *SCALES, out=out, **ADA)
        assert out._version == version


def test_eager_calls_do_not_load_the_compiler() -> None:
    code = """
import sys, torch
before = {*sys.modules}
import mmaemu.api
codes = torch.zeros(16, 16, dtype=torch.uint8).view(torch.float8_e4m3fn)
scale = torch.ones(())
mmaemu.api.scaled_mm(codes, codes.t(), scale, scale, splitk=1)
mmaemu.api.accumulate(codes, codes, use_fast_accum=True, splitk=1)
print(*sorted({"torch._dynamo", "torch._inductor", "sympy"} & ({*sys.modules} - before)))
"""
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert finished.stdout.split() == []


def test_compiled_accumulate() -> None:
    def call(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return mmaemu.accumulate(a, b, use_fast_accum=False, **ADA) + 1

    assert_bitwise_equal(compiled(call, "aot_eager")(A, B), call(A, B))


def test_compiled_calls_are_rejected_with_the_same_words() -> None:
    def call(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return mmaemu.scaled_mm(a, b.t().contiguous(), *SCALES, **ADA)

    with pytest.raises(Exception, match="mat2 must be column-major"):
        compiled(call, "eager")(A, B)
    with pytest.raises(Exception, match="requires grad while grad mode is on"):
        compiled(multiply(), "eager")(A, B, SCALES[0].clone().requires_grad_(), SCALES[1])


class Layer(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return mmaemu.scaled_mm(a, b.t(), s, s, out_dtype=BF16, **ADA)


@pytest.mark.parametrize("strict", [True, False])
def test_exported_calls(strict: bool) -> None:
    rows = torch.export.Dim("rows")
    shapes = {"a": {0: rows}, "b": None, "s": None}
    arguments = (A, B, SCALES[0])
    program = torch.export.export(Layer(), arguments, strict=strict, dynamic_shapes=shapes)
    again = program.module()
    for a in (A, A[:5]):
        assert_bitwise_equal(again(a, B, SCALES[0]), Layer()(a, B, SCALES[0]))
    targets = [str(node.target) for node in program.graph.nodes]
    assert "mmaemu.scaled_mm.default" in targets


def test_fake_tensors_have_shape_and_type() -> None:
    with FakeTensorMode() as mode:
        a, b, scale = (mode.from_tensor(t) for t in (A, B, SCALES[0]))
        for profile in ("ada", MINE):
            result = mmaemu.scaled_mm(a, b.t(), scale, scale, profile=profile, splitk=1)
            assert (result.shape, result.dtype, result.device) == ((16, 32), E4M3, A.device)
        acc = mmaemu.accumulate(a, b, use_fast_accum=True, **ADA)
        assert (acc.shape, acc.dtype) == ((16, 32), FP32)
        out = torch.zeros(16, 32, dtype=BF16)
        assert mmaemu.scaled_mm(a, b.t(), scale, scale, out=out, **ADA) is out
        with pytest.raises(ReferenceRejectsError, match="mat2 must be column-major"):
            mmaemu.scaled_mm(a, b.t().contiguous(), scale, scale, **ADA)
        with pytest.raises(UnsupportedFeatureError, match="would be resized"):
            mmaemu.scaled_mm(a, b.t(), scale, scale, out=torch.zeros(3, dtype=BF16), **ADA)
        plan = mmaemu.explain(a, b.t(), scale, scale, **ADA)
        for splitk in (True, 1.0, (2.0, "serial"), "none", [2, "serial"]):
            with pytest.raises(TypeError, match=r"splitk|SplitK"):
                mmaemu.scaled_mm(a, b.t(), scale, scale, profile="ada", splitk=splitk)  # type: ignore[arg-type] # wrong on purpose
    assert plan == mmaemu.explain(A, B.t(), *SCALES, **ADA)


def test_meta_tensors_have_shape_and_type() -> None:
    a, b, scale = (t.to("meta") for t in (A, B, SCALES[0]))
    result = mmaemu.scaled_mm(a, b.t(), scale, scale, out_dtype=BF16)
    assert (result.shape, result.dtype, result.is_meta) == ((16, 32), BF16, True)
    with pytest.raises(ReferenceRejectsError, match="one device"):
        mmaemu.scaled_mm(a, b.t(), scale, SCALES[0])
    with pytest.raises(ReferenceRejectsError, match="address of mat1"):
        mmaemu.scaled_mm(a.view(-1)[4:].as_strided((15, 64), (64, 1)), b.t(), scale, scale)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_traced_graphs_hold_the_operator(mode: Literal["real", "fake", "symbolic"]) -> None:
    call = multiply()
    graph = make_fx(call, tracing_mode=mode)(A, B, *SCALES)
    targets = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert targets.count("mmaemu.scaled_mm.default") == 1
    assert_bitwise_equal(graph(A, B, *SCALES), call(A, B, *SCALES))


@pytest.mark.parametrize("which", [0, 2])
def test_vmap_is_refused_with_the_way_out(which: int) -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        arguments = [A, B, *SCALES]
        arguments[which] = x
        return multiply()(*arguments)

    batch = torch.stack([A.view(torch.uint8)] * 2).view(E4M3) if which == 0 else torch.ones(3)
    with pytest.raises(UnsupportedFeatureError, match="loop over the batch"):
        torch.vmap(call)(batch)
    with pytest.raises(UnsupportedFeatureError, match="loop over the batch"):
        torch.vmap(lambda x: mmaemu.accumulate(x, B, use_fast_accum=True, **ADA))(
            torch.stack([A.view(torch.uint8)] * 2).view(E4M3)
        )


def test_functional_gradients_are_refused() -> None:
    def call(scale: torch.Tensor) -> torch.Tensor:
        return multiply()(A, B, scale, SCALES[1]).sum()

    with pytest.raises(UnsupportedFeatureError, match="requires grad"):
        torch.func.grad(call)(SCALES[0])
    with pytest.raises(UnsupportedFeatureError, match="requires grad"):
        torch.func.jvp(call, (SCALES[0],), (SCALES[0],))


class Tagged(torch.Tensor):
    """A subclass as libraries define them."""


def test_subclasses_and_parameters_give_the_same_bits() -> None:
    expected = multiply()(A, B, *SCALES)
    for a in (A.as_subclass(Tagged), torch.nn.Parameter(A, requires_grad=False)):
        result = multiply()(a, B, *SCALES)
        assert_bitwise_equal(result.as_subclass(torch.Tensor), expected)


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        ("scaled_mm", (A, B.t(), *SCALES, None, None, BF16, False, "ada", 1, "", "auto", False)),
        ("accumulate", (A, B, True, "ada", 2, "serial", "auto", FP32)),
    ],
)
def test_operators_keep_torchs_rules(operator: str, arguments: tuple[Any, ...]) -> None:
    # torch's own test_schema cannot make random float8 tensors.
    checks = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    overload = getattr(torch.ops.mmaemu, operator).default
    torch.library.opcheck(overload, arguments, test_utils=checks)

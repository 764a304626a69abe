"""What must change no bit: negation, order inside a block, padding, the shape of the batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmaemu.instruction.model import InstructionModel
from mmaemu.instruction.models import MODELS
from mmaemu.model import dot


def distinct() -> list[str]:
    """Return one name for every arithmetic that occurs: many rows differ in evidence alone."""
    seen = {
        replace(
            model,
            name="any",
            maturity="custom",
            scope="",
            sources=(),
            architectures=(),
            instruction="",
        ): name
        for name, model in reversed(MODELS.items())
    }
    return list(seen.values())


DISTINCT = distinct()
# Rounding down (two-stage) is no symmetric rounding, and integers have no fp32 results.
SYMMETRIC = [n for n in DISTINCT if MODELS[n].kind not in {"two-stage", "integer"}]
# In these kinds the order of the products inside a step is part of the rule.
UNORDERED = [n for n in DISTINCT if MODELS[n].kind in {"aligned", "exact sum", "two-stage"}]
VIEWS = {torch.float16: torch.int16, torch.float32: torch.int32, torch.float64: torch.int64}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(VIEWS.get(tensor.dtype, tensor.dtype))


def operand(model: InstructionModel, rows: int, length: int, seed: int) -> torch.Tensor:
    """Draw float64 values that every format of a model holds, over a few exponents."""
    generator = torch.Generator().manual_seed(seed)
    shape = (rows, length)
    sizes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0], dtype=torch.float64)
    picked = sizes[torch.randint(0, 6, shape, generator=generator)]
    if model.kind != "group sums" and "e2m1" not in {f for pair in model.inputs for f in pair}:
        scale = torch.randint(-4, 4, shape, generator=generator).to(torch.float64)
        picked = picked * torch.exp2(scale)
    return picked * (1 - 2 * torch.randint(0, 2, shape, generator=generator)).to(torch.float64)


def start(model: InstructionModel, rows: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + 1)
    value = torch.randn(rows, generator=generator, dtype=torch.float32)
    return value.to(
        {"fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64}[model.output]
    )


def run(model: InstructionModel, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    scale = None
    if model.scale_block:
        blocks = -(-a.shape[-1] // model.scale_block)
        scale = torch.ones((*a.shape[:-1], blocks), dtype=torch.float64)
        scale[..., ::2] = 2.0
    return dot(a, b, c, preset=model, fmt=model.inputs[0], scale_a=scale, scale_b=scale)


def negated(tensor: torch.Tensor) -> torch.Tensor:
    return torch.where(tensor == 0, tensor, -tensor)


SEEDS = st.integers(0, 2**31)


@pytest.mark.parametrize("name", SYMMETRIC)
@settings(max_examples=5)
@given(seed=SEEDS, length=st.integers(1, 70))
def test_negation_changes_only_the_sign(name: str, seed: int, length: int) -> None:
    model = MODELS[name]
    a, b = operand(model, 8, length, seed), operand(model, 8, length, seed + 2)
    c = start(model, 8, seed)
    result = run(model, a, b, c)
    assert torch.equal(bits(run(model, -a, -b, c)), bits(result))
    opposite = run(model, -a, b, -c)
    assert torch.equal(bits(negated(opposite)), bits(result))
    assert torch.equal(bits(run(model, a, -b, -c)), bits(opposite))
    assert torch.equal(bits(run(model, b, a, c)), bits(result))


@pytest.mark.parametrize("name", UNORDERED)
@settings(max_examples=5)
@given(seed=SEEDS, steps=st.integers(1, 3))
def test_order_inside_a_block_changes_nothing(name: str, seed: int, steps: int) -> None:
    model = MODELS[name]
    length = steps * model.dot_length
    a, b = operand(model, 8, length, seed), operand(model, 8, length, seed + 2)
    c = start(model, 8, seed)
    generator = torch.Generator().manual_seed(seed)
    residues = sum(map(len, model.groups)) or 1
    order = torch.arange(length, dtype=torch.int64)
    for first in range(0, length, model.dot_length):
        for group in model.groups or ((0,),):
            block = torch.tensor(
                [k for k in range(first, first + model.dot_length) if k % residues in group],
                dtype=torch.int64,
            )
            order[block] = block[torch.randperm(len(block), generator=generator)]
    assert torch.equal(bits(run(model, a[:, order], b[:, order], c)), bits(run(model, a, b, c)))


@pytest.mark.parametrize("name", [n for n in DISTINCT if MODELS[n].kind not in {"integer", "fma"}])
@settings(max_examples=5)
@given(seed=SEEDS, length=st.integers(1, 70))
def test_zero_padding_of_the_tail_changes_nothing(name: str, seed: int, length: int) -> None:
    model = MODELS[name]
    a, b = operand(model, 8, length, seed), operand(model, 8, length, seed + 2)
    c = start(model, 8, seed)
    missing = (0, -length % model.dot_length)
    padded = [torch.nn.functional.pad(x, missing) for x in (a, b)]
    assert torch.equal(bits(run(model, padded[0], padded[1], c)), bits(run(model, a, b, c)))


@pytest.mark.parametrize("name", SYMMETRIC)
@settings(max_examples=3)
@given(seed=SEEDS)
def test_a_row_does_not_depend_on_its_batch(name: str, seed: int) -> None:
    model = MODELS[name]
    a, b = operand(model, 12, 33, seed), operand(model, 12, 33, seed + 2)
    c = start(model, 12, seed)
    whole = bits(run(model, a, b, c))
    rows = [bits(run(model, a[i], b[i], c[i])) for i in range(12)]
    assert torch.equal(torch.stack(rows), whole)
    shaped = run(model, a.view(3, 4, 33), b.view(3, 4, 33), c.view(3, 4))
    assert torch.equal(bits(shaped).flatten(), whole)

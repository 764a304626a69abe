"""The order of the rejection rules: of two violated rules the earlier one decides (N22)."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch

from mmaemu import validation
from mmaemu.errors import ReferenceRejectsError, UnsupportedFeatureError
from mmaemu.profiles.profile import get_profile
from mmaemu.validation import (
    ARGUMENT_RULES,
    OPERAND_RULES,
    UNSUPPORTED_RULES,
    CallFacts,
    TensorFacts,
    refusal,
)

ADA = get_profile("ada")
CPU, OTHER = torch.device("cpu"), torch.device("cuda:0")
E4M3, E5M2, FNUZ = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz
FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16

SCALE = TensorFacts((), (), FP32, CPU)
GOOD = CallFacts(
    mat1=TensorFacts((16, 64), (64, 1), E4M3, CPU),
    mat2=TensorFacts((64, 32), (1, 64), E4M3, CPU),
    scale_a=SCALE,
    scale_b=SCALE,
    bias=None,
    scale_result=None,
    out=None,
    out_dtype=BF16,
    use_fast_accum=False,
    grad=False,
)
RULES = (*ARGUMENT_RULES, *OPERAND_RULES, *UNSUPPORTED_RULES)


Changes = dict[str, Any]

ROWWISE: Changes = {
    "scale_a": {"shape": (16, 1), "stride": (1, 1)},
    "scale_b": {"shape": (1, 32), "stride": (32, 1)},
}

# For every rule the changes of the good call that violate it. A dict in place of a tensor changes
# some of its facts only (None = keep the size), so that changes can be combined. A bias starts from
# one that fits.
VIOLATIONS: dict[str, Changes] = {
    "_mat1_is_matrix": {"mat1": {"shape": (1024,), "stride": (1,)}},
    "_mat2_is_matrix": {"mat2": {"shape": (64, 32, 1), "stride": (1, 64, 1)}},
    "_inner_sizes": {"mat2": {"shape": (48, None)}},
    "_scale_dtypes": {"scale_a": {"dtype": torch.float64}},
    "_scale_shapes": {"scale_b": {"shape": (2,), "stride": (1,)}},
    "_scale_result": {"scale_result": TensorFacts((2,), (1,), FP32, CPU)},
    "_bias_length": {"bias": {"shape": (33,)}},
    "_inner_multiple": {"mat1": {"shape": (None, 72)}, "mat2": {"shape": (72, None)}},
    "_column_multiple": {"mat2": {"shape": (None, 40)}},
    "_out_dtype": {"out": TensorFacts((16, 32), (32, 1), torch.int8, CPU)},
    "_operands_float8": {"mat1": {"dtype": torch.int8}},
    "_not_both_e5m2": {"mat1": {"dtype": E5M2}, "mat2": {"dtype": E5M2}},
    "_bias_not_with_float32": {"bias": {}, "out_dtype": FP32},
    "_bias_dtype": {"bias": {"dtype": FP32}},
    "_bias_matches_out": {"bias": {"dtype": FP16}},
    "_one_device": {"scale_a": {"device": OTHER}},
    "_rowwise_output": {**ROWWISE, "out_dtype": FP16},
    "_mat1_layout": {"mat1": {"stride": (1, 16)}},
    "_mat2_layout": {"mat2": {"stride": (32, 1)}},
    "_operand_formats": {"mat2": {"dtype": FNUZ}},
    "_output_formats": {"out_dtype": torch.int32},
    "_pointers": {"mat2": {"address": 4}},
    "_leading_dimensions": {"mat1": {"stride": (72, 1)}},
    "_no_bias": {"bias": {}},
    "_no_rowwise": ROWWISE,
    "_no_grad": {"grad": True},
}

# Pairs whose changes exclude each other: both set the output's or an operand's type.
EXCLUSIVE = {
    ("_operands_float8", "_not_both_e5m2"),
    ("_not_both_e5m2", "_operand_formats"),
    ("_bias_not_with_float32", "_bias_matches_out"),
    ("_bias_not_with_float32", "_output_formats"),
    ("_bias_matches_out", "_rowwise_output"),
    ("_bias_matches_out", "_output_formats"),
}


def changed(call: CallFacts, *changes: Changes) -> CallFacts:
    merged = [item for change in changes for item in change.items()]
    # The bias comes last, because one that fits depends on N.
    for name, value in sorted(merged, key=lambda item: item[0] == "bias"):
        old = getattr(call, name)
        if name == "bias" and old is None:
            old = TensorFacts((call.mat2.shape[1],), (1,), BF16, CPU)
        new: Any = patched(old, value) if isinstance(value, dict) else value
        call = call._replace(**{name: new})
    return call


def patched(tensor: TensorFacts, fields: Changes) -> TensorFacts:
    if None in fields.get("shape", ()):
        old = zip(fields["shape"], tensor.shape, strict=True)
        fields = {**fields, "shape": tuple(was if size is None else size for size, was in old)}
    return tensor._replace(**fields)


def name_of(rule: validation.Rule) -> str:
    return getattr(rule, "__name__", "")


BY_NAME = {name_of(rule): rule for rule in RULES}


def test_every_rule_has_a_violation() -> None:
    assert list(VIOLATIONS) == [name_of(rule) for rule in RULES]


def test_the_good_call_passes() -> None:
    assert refusal(GOOD, ADA) is None
    assert refusal(GOOD._replace(out_dtype=FP32), ADA) is None


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_each_rule_alone(rule: validation.Rule) -> None:
    call = changed(GOOD, VIOLATIONS[name_of(rule)])
    message = rule(call)
    error = UnsupportedFeatureError if rule in UNSUPPORTED_RULES else ReferenceRejectsError
    assert message is not None
    assert refusal(call, ADA) == (error, message)


def both_violated(first: str, second: str) -> CallFacts | None:
    """A call that violates two rules, whatever else it violates; None if the changes exclude it."""
    changes = [VIOLATIONS[first], VIOLATIONS[second]]
    for order in (changes[::-1], changes):
        call = changed(GOOD, *order)
        matrices = len(call.mat1.shape) == len(call.mat2.shape) == 2
        # Most rules may only look at matrices; that an earlier rule decides then is the point.
        if BY_NAME[first](call) and (not matrices or BY_NAME[second](call)):
            return call
    return None


def test_of_two_violated_rules_the_earlier_one_decides() -> None:
    order = list(VIOLATIONS)
    exclusive = set()
    for first, second in itertools.combinations(order, 2):
        call = both_violated(first, second)
        if call is None:
            exclusive.add((first, second))
            continue
        refused = refusal(call, ADA)
        assert refused is not None
        deciding = next(name for name in order if BY_NAME[name](call) == refused.message)
        # The changes together may also violate a third rule, which must be an even earlier one.
        assert order.index(deciding) <= order.index(first), (first, second)
    assert exclusive == EXCLUSIVE


@pytest.mark.parametrize("sizes", [(0, 32, 64), (16, 0, 64), (16, 32, 0)])
@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_zero_sizes_return_after_the_argument_rules(
    rule: validation.Rule, sizes: tuple[int, int, int]
) -> None:
    """Only what torch checks before its early return rejects a call of zero size."""
    m, n, k = sizes
    empty = changed(
        GOOD,
        {"mat1": {"shape": (m, k)}, "mat2": {"shape": (k, n)}},
    )
    assert refusal(empty, ADA) is None
    needs_sizes = {
        "_mat1_is_matrix", "_mat2_is_matrix", "_inner_sizes", "_inner_multiple", "_column_multiple"
    }  # fmt: skip
    if name_of(rule) in needs_sizes:
        return
    call = changed(empty, VIOLATIONS[name_of(rule)])
    if rule not in ARGUMENT_RULES and "scale_b" in VIOLATIONS[name_of(rule)]:
        call = changed(call, {"scale_a": {"shape": (m, 1)}, "scale_b": {"shape": (1, n)}})
    assert (refusal(call, ADA) is not None) == (rule in ARGUMENT_RULES)


def test_the_profiles_own_rejections_come_before_what_is_unsupported() -> None:
    call = GOOD._replace(out_dtype=E5M2, grad=True)
    refused = refusal(call, ADA)
    assert refused is not None
    assert refused == (ReferenceRejectsError, ADA.rejects[0].message)
    lenient = dataclasses.replace(ADA, name="mine", rejects=())
    assert refusal(GOOD._replace(out_dtype=E5M2), lenient) is None
    badly_aligned = changed(call, {"mat1": {"address": 8}})
    refused = refusal(badly_aligned, ADA)
    assert refused is not None
    assert "multiple of 16 bytes" in refused.message
    empty = changed(call, {"mat1": {"shape": (0, 64)}})
    assert refusal(empty, ADA) is None


def facts(shape: tuple[int, ...], stride: tuple[int, ...]) -> TensorFacts:
    return TensorFacts(shape, stride, E4M3, CPU)


@pytest.mark.parametrize(
    ("shape", "stride", "contiguous", "row", "column"),
    [
        ((4, 8), (8, 1), True, True, False),
        ((4, 8), (9, 1), False, True, False),
        ((4, 8), (7, 1), False, False, False),
        ((4, 8), (1, 4), False, False, True),
        ((4, 8), (1, 5), False, False, True),
        ((4, 8), (16, 2), False, False, False),
        ((4, 8), (0, 1), False, False, False),
        ((1, 8), (99, 1), True, True, True),
        ((1, 8), (1, 1), True, True, True),
        ((1, 8), (1, 2), False, False, True),
        ((4, 1), (1, 99), True, True, True),
        ((1, 1), (5, 7), True, True, True),
        ((0, 8), (3, 2), True, True, True),
    ],
)
def test_layouts(
    shape: tuple[int, ...], stride: tuple[int, ...], contiguous: bool, row: bool, column: bool
) -> None:
    matrix = facts(shape, stride)
    assert validation.is_contiguous(matrix) == contiguous
    assert validation.is_row_major(matrix) == row
    assert validation.is_column_major(matrix) == column
    real = torch.empty(1000, dtype=torch.uint8).as_strided(shape, stride)
    assert real.is_contiguous() == contiguous


def test_a_copied_mat1_has_neither_address_nor_leading_dimension() -> None:
    scattered = changed(GOOD, {"mat1": {"stride": (130, 2), "address": 4}})
    assert validation.copied_mat1(scattered.mat1)
    assert refusal(scattered, ADA) is None


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_messages_say_what_to_do(rule: validation.Rule) -> None:
    message = rule(changed(GOOD, VIOLATIONS[name_of(rule)])) or ""
    words = ("got", "must", "need", "pass", "use", "call", "make", "detach")
    assert any(word in message for word in words)
    assert len(message) > 40

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmaemu.formats import FORMATS, INFINITE, NAN, SUBNORMAL, ZERO
from mmaemu.testing import assert_bitwise_equal, bits
from mmaemu.testing.operands import FAMILIES, OPERAND_FORMATS, codes, operands, tensors

NAN_ONE, NAN_TWO = 0x7FC00000, 0x7FC00001


def fp32(*patterns: int) -> torch.Tensor:
    return torch.tensor(patterns, dtype=torch.int64).to(torch.int32).view(torch.float32)


def report(actual: object, expected: object, **options: str) -> str:
    with pytest.raises(AssertionError) as caught:
        assert_bitwise_equal(actual, expected, **options)  # type: ignore[arg-type] # plain words
    return str(caught.value)


@pytest.mark.parametrize(
    ("dtype", "integer"),
    [
        (torch.float32, torch.int32),
        (torch.bfloat16, torch.int16),
        (torch.float16, torch.int16),
        (torch.float8_e4m3fn, torch.uint8),
        (torch.float8_e5m2, torch.uint8),
        (torch.float64, torch.int64),
        (torch.bool, torch.uint8),
    ],
)
def test_bits_is_a_view_of_integers(dtype: torch.dtype, integer: torch.dtype) -> None:
    source = torch.ones(3, 2).to(dtype)
    view = bits(source.t())
    assert view.dtype == integer
    assert view.shape == (2, 3)
    assert view.data_ptr() == source.data_ptr()


def test_bits_of_a_tensor_that_requires_grad() -> None:
    assert bits(torch.ones((), requires_grad=True)).item() == 0x3F800000


@pytest.mark.parametrize("bad", [1.0, np.ones(2), torch.ones(2, dtype=torch.complex64)])
def test_bits_refuses_what_has_no_pattern(bad: object) -> None:
    with pytest.raises(TypeError, match="bits expects"):
        bits(bad)  # type: ignore[arg-type] # That it is wrong is the point.


def test_equal_tensors_pass_whatever_their_layout() -> None:
    values = fp32(0, 1 << 31, NAN_ONE, 0x7F800000, 1).repeat(2, 1)
    assert_bitwise_equal(values, values.t().contiguous().t())
    assert_bitwise_equal(values.numpy(), values)
    assert_bitwise_equal(values.numpy().astype(">f4"), values.numpy())
    assert_bitwise_equal(torch.zeros(0, 3), torch.zeros(0, 3))
    assert_bitwise_equal(torch.tensor(1.5), torch.tensor(1.5))


def test_report_tells_kinds_of_differences_apart() -> None:
    actual = fp32(0x3F800000, 0, NAN_ONE, 0x3F800000)
    expected = fp32(0x40A00000, 1 << 31, NAN_TWO, 0x3F800000)
    text = report(actual, expected, msg="row 7")
    assert text.startswith("row 7: 3 of 4 elements differ: ")
    for part in (
        "1 in value (value)",
        "1 in the sign of zero (zero_sign)",
        "1 in NaN payload or sign (nan_payload)",
        "(0,): actual 1.0 [0x3f800000]  expected 5.0 [0x40a00000]  value",
        "(1,): actual 0.0 [0x00000000]  expected -0.0 [0x80000000]  zero_sign",
        "(2,): actual nan [0x7fc00000]  expected nan [0x7fc00001]  nan_payload",
    ):
        assert part in text


def test_mask_makes_all_nans_equal_but_no_number_a_nan() -> None:
    assert_bitwise_equal(fp32(NAN_ONE), fp32(NAN_TWO), nan="mask")
    assert "1 in value" in report(fp32(NAN_ONE), fp32(0), nan="mask")
    assert "1 of 2 elements differ" in report(fp32(NAN_ONE, 0), fp32(NAN_TWO, 1), nan="mask")


def test_report_shows_the_first_few_with_their_indices() -> None:
    text = report(torch.zeros(5, 4), torch.ones(5, 4))
    assert "20 of 20 elements differ" in text
    assert text.count("actual 0.0") == 8
    assert "(1, 3)" in text


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_one_bit_is_enough(dtype: torch.dtype) -> None:
    one = torch.ones(7).to(dtype)
    other = one.clone()
    bits(other)[3] += 1
    assert "1 of 7" in report(one, other)


def test_integers_are_compared_too() -> None:
    assert_bitwise_equal(torch.arange(3), torch.arange(3))
    assert "actual 1 [0x0000000000000001]  expected 7" in report(
        torch.tensor([1]), torch.tensor([7])
    )


def test_shape_and_dtype_must_agree() -> None:
    assert "shapes differ: actual (2,), expected (1, 2)" in report(torch.ones(2), torch.ones(1, 2))
    assert "dtypes differ" in report(torch.ones(2), torch.ones(2, dtype=torch.float64))


def test_bad_arguments_are_no_assertion_errors() -> None:
    with pytest.raises(ValueError, match="nan must be one of bits, mask; got 'skip'"):
        assert_bitwise_equal(torch.ones(1), torch.ones(1), nan="skip")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"expected must be a torch\.Tensor or numpy array"):
        assert_bitwise_equal(torch.ones(1), 1.0)
    with pytest.raises(ValueError, match="meta device"):
        assert_bitwise_equal(torch.ones(1, device="meta"), torch.ones(1))


@pytest.mark.parametrize("fmt", OPERAND_FORMATS)
@pytest.mark.parametrize("family", FAMILIES)
def test_families_fill_any_shape_of_any_format(family: str, fmt: str) -> None:
    for rows, k in ((5, 64), (3, 17), (1, 1), (2, 0), (0, 3)):
        for made in operands(family, rows, rows, k, formats=(fmt, fmt)):
            assert made.dtype == np.uint8
            assert made.shape == (rows, k)
            assert made.flags.c_contiguous
            classes = FORMATS[fmt].classify(made)
            assert not FAMILIES[family].finite or not np.isin(classes, (INFINITE, NAN)).any()


def test_families_are_seeded_and_the_sides_differ() -> None:
    first = codes("uniform", "e4m3", 4, 8, seed=3)
    assert np.array_equal(first, codes("uniform", "e4m3", 4, 8, seed=3))
    assert not np.array_equal(first, codes("uniform", "e4m3", 4, 8, seed=4))
    assert not np.array_equal(first, codes("uniform", "e4m3", 4, 8, side="b", seed=3))


def test_families_do_what_they_say() -> None:
    fmt = FORMATS["e4m3"]

    def values(family: str, side: int = 0) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return fmt.decode(operands(family, 64, 64, 64)[side])

    assert np.abs(values("amax-scaled")).max() == fmt.max_finite
    assert set(np.abs(values("saturated")).ravel()) == {416.0, 448.0}
    assert (np.count_nonzero(values("one-hot"), axis=1) == 1).all()
    small = np.isin(fmt.classify(codes("subnormal", "e4m3", 64, 64)), (ZERO, SUBNORMAL))
    assert 0.8 < small.mean() < 0.95
    products = values("cancelling") * values("cancelling", 1)
    assert (products[:, ::2] == -products[:, 1::2]).mean() > 0.75
    decaying = np.abs(values("decaying"))
    assert decaying[:, :8].max() > 2**10 * decaying[:, -8:].max()
    assert np.isnan(values("nonfinite")).any()


def test_tensors_are_the_codes() -> None:
    a, b = tensors("uniform", 3, 5, 16, formats=("e4m3", "e5m2"), seed=9)
    assert (a.dtype, b.dtype) == (torch.float8_e4m3fn, torch.float8_e5m2)
    left, right = operands("uniform", 3, 5, 16, formats=("e4m3", "e5m2"), seed=9)
    assert_bitwise_equal(bits(a), torch.from_numpy(left))
    assert_bitwise_equal(bits(b), torch.from_numpy(right))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match=r"family must be one of uniform, .*; got 'flat'"):
        codes("flat", "e4m3", 1, 1)
    with pytest.raises(ValueError, match=r"fmt must be one of e4m3, .*; got 'fp32'"):
        codes("uniform", "fp32", 1, 1)
    with pytest.raises(ValueError, match="side must be"):
        codes("uniform", "e4m3", 1, 1, side="c")  # type: ignore[arg-type] # wrong on purpose
    with pytest.raises(ValueError, match="torch must have both formats"):
        tensors("uniform", 1, 1, 1, formats=("e4m3", "e2m1"))

"""Bitwise comparison of tensors, with a report that tells kinds of differences apart."""

from __future__ import annotations

from typing import Final, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from mmaemu.formats import NAN, ZERO, FloatFormat, format_of

Codes = NDArray[np.unsignedinteger]
NanRule = Literal["bits", "mask"]
NAN_RULES: Final[tuple[str, ...]] = get_args(NanRule)

_INTEGER_OF_SIZE: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_KINDS: Final = {
    "value": "in value",
    "zero_sign": "in the sign of zero",
    "nan_payload": "in NaN payload or sign",
}
_SHOWN: Final = 8


def bits(t: torch.Tensor) -> torch.Tensor:
    """View a tensor's elements as integers of the same size.

    Args:
        t: tensor of any shape, layout and device; floating point, integer or bool.

    Returns:
        A view, no copy: int64, int32, int16 or uint8 for elements of 8, 4, 2 or 1 bytes. Exact.

    Raises:
        TypeError: `t` is no tensor, or its elements are complex or quantised.
    """
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"bits expects a torch.Tensor, got {type(t).__name__}")
    if t.is_complex() or t.is_quantized:
        raise TypeError(f"bits expects real elements, got {t.dtype}; compare the parts instead")
    return t.detach().view(_INTEGER_OF_SIZE[t.element_size()])


def assert_bitwise_equal(
    actual: object, expected: object, *, nan: NanRule = "bits", msg: str = ""
) -> None:
    """Assert that two tensors have the same dtype, shape and bits.

    Args:
        actual: tensor or numpy array of any shape; strides and device do not matter.
        expected: tensor or numpy array to compare with.
        nan: "bits": NaNs are equal if their bits are; "mask": every NaN equals every NaN.
        msg: put before the text of the error.

    Raises:
        AssertionError: they differ. The text counts the elements that differ in value, only in
            the sign of zero, or only in a NaN's payload or sign, and shows the first ones with
            both bit patterns.
        TypeError: an argument is neither tensor nor array, or of a dtype without a bit pattern.
        ValueError: `nan` is none of the two words, or a tensor holds no data (meta device).
    """
    if nan not in NAN_RULES:
        raise ValueError(f"nan must be one of {', '.join(NAN_RULES)}; got {nan!r}")
    left, right = _tensor("actual", actual), _tensor("expected", expected)
    problem = _outer_difference(left, right) or _inner_difference(left, right, nan)
    if problem:
        raise AssertionError(f"{msg}: {problem}" if msg else problem)


def _tensor(name: str, value: object) -> torch.Tensor:
    if isinstance(value, np.ndarray):
        native = np.array(value, dtype=value.dtype.newbyteorder("="), order="C")
        return torch.from_numpy(native)
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor or numpy array, got {type(value).__name__}")
    if value.is_meta:
        raise ValueError(f"{name} is on the meta device and holds no data; compare real tensors")
    return value


def _outer_difference(left: torch.Tensor, right: torch.Tensor) -> str:
    if left.dtype != right.dtype:
        return f"dtypes differ: actual {left.dtype}, expected {right.dtype}"
    if left.shape != right.shape:
        return f"shapes differ: actual {tuple(left.shape)}, expected {tuple(right.shape)}"
    return ""


def _inner_difference(left: torch.Tensor, right: torch.Tensor, nan: NanRule) -> str:
    left_codes, right_codes = _codes(left), _codes(right)
    (places,) = np.nonzero(left_codes != right_codes)
    fmt = format_of(left.dtype) if left.is_floating_point() else None
    kinds = _kinds(fmt, left_codes[places], right_codes[places])
    if nan == "mask":
        places, kinds = places[kinds != "nan_payload"], kinds[kinds != "nan_payload"]
    if not places.size:
        return ""
    counts = ", ".join(
        f"{int((kinds == kind).sum())} {words} ({kind})" for kind, words in _KINDS.items()
    )
    head = (
        f"{places.size} of {left.numel()} elements differ: {counts} "
        f"[{left.dtype}, shape {tuple(left.shape)}, nan={nan!r}]; the first {_SHOWN} at most:"
    )
    lines = [
        f"  {_index(place, left.shape)}: actual {_shown(fmt, left_codes[place])}  "
        f"expected {_shown(fmt, right_codes[place])}  {kind}"
        for place, kind in zip(places[:_SHOWN], kinds[:_SHOWN], strict=True)
    ]
    return "\n".join([head, *lines])


def _codes(tensor: torch.Tensor) -> Codes:
    array = bits(tensor).reshape(-1).cpu().numpy()
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))


def _index(place: np.intp, shape: torch.Size) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(place, tuple(shape)))


def _kinds(fmt: FloatFormat | None, left: Codes, right: Codes) -> NDArray[np.str_]:
    if fmt is None:
        return np.full(left.shape, "value")
    left_class, right_class = fmt.classify(left), fmt.classify(right)
    zeros = (left_class == ZERO) & (right_class == ZERO)
    nans = (left_class == NAN) & (right_class == NAN)
    return np.where(zeros, "zero_sign", np.where(nans, "nan_payload", "value"))


def _shown(fmt: FloatFormat | None, code: np.unsignedinteger) -> str:
    value = int(code) if fmt is None else float(fmt.decode(np.array([code]))[0])
    return f"{value!r} [0x{int(code):0{2 * code.itemsize}x}]"

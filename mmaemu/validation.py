"""What the reference platform rejects: rule N22 as ordered tuples of small rules.

The rules are pure functions of `CallFacts`, a hashable description of a call without any tensor
data, so that the verdict on a repeated call is found by one lookup. The order is that of
torch 2.7.1 and cuBLASLt: of several violated rules the first one decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import torch

from mmaemu.errors import MmaemuError, ReferenceRejectsError, UnsupportedFeatureError
from mmaemu.formats import format_of
from mmaemu.profiles.profile import Profile

ALIGNMENT: Final = 16
"""cuBLASLt's FP8 kernels load 16 bytes at a time: pointers and leading dimensions keep to it."""

RECORDED_ALIGNMENT: Final = 256
"""Alignment of a fresh CUDA tensor, the largest that torch states in a cuBLASLt descriptor."""

COMPUTED_OPERANDS: Final = (torch.float8_e4m3fn, torch.float8_e5m2)
_FLOAT8: Final = (*COMPUTED_OPERANDS, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
OUTPUTS: Final = (torch.float32, torch.bfloat16, torch.float16, *COMPUTED_OPERANDS)
# By name, since not every version of torch has all of them.
_WITHOUT_ZERO: Final = frozenset(
    ("float8_e8m0fnu", "qint8", "qint32", "quint8", "quint4x2", "quint2x4")
)
_MATRIX: Final = 2
_HALF: Final = (torch.bfloat16, torch.float16)


class TensorFacts(NamedTuple):
    """What the rules may know of one tensor.

    Attributes:
        shape: sizes.
        stride: strides, in elements.
        dtype: element type.
        device: where it lies.
        address: address of the first element in bytes, modulo `ALIGNMENT`; 0 for scales.
        offset: storage offset in bytes, modulo `RECORDED_ALIGNMENT`; 0 for scales.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    address: int = 0
    offset: int = 0


class CallFacts(NamedTuple):
    """What the rules may know of one scaled_mm call.

    Attributes:
        mat1: the first operand, [M, K].
        mat2: the second operand, [K, N].
        scale_a: scale of mat1.
        scale_b: scale of mat2.
        bias: bias or None.
        scale_result: scale of an FP8 output or None.
        out: the tensor to write to, or None.
        out_dtype: element type of the output, the default filled in.
        use_fast_accum: fast accumulation.
        grad: True if grad mode is on and a tensor of the call requires grad.
    """

    mat1: TensorFacts
    mat2: TensorFacts
    scale_a: TensorFacts
    scale_b: TensorFacts
    bias: TensorFacts | None
    scale_result: TensorFacts | None
    out: TensorFacts | None
    out_dtype: torch.dtype
    use_fast_accum: bool
    grad: bool

    @property
    def sizes(self) -> tuple[int, int, int]:
        """M, N, K of two matrices whose inner sizes agree."""
        return self.mat1.shape[0], self.mat2.shape[1], self.mat1.shape[1]

    @property
    def zero_size(self) -> bool:
        """True if a size is 0: the output is empty or all +0 and nothing is computed."""
        return 0 in self.sizes


class Refusal(NamedTuple):
    """Why a call is not computed: the exception's class and text."""

    error: type[MmaemuError]
    message: str


Rule = Callable[[CallFacts], str | None]


def is_contiguous(tensor: TensorFacts) -> bool:
    """True if the elements lie in row-major order without gaps, as torch defines it."""
    expected = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride), strict=True):
        if size != 1 and stride != expected:
            return 0 in tensor.shape
        expected *= size
    return True


def transposed(matrix: TensorFacts) -> TensorFacts:
    """Facts of the transpose of a matrix."""
    return matrix._replace(shape=matrix.shape[::-1], stride=matrix.stride[::-1])


def is_row_major(matrix: TensorFacts) -> bool:
    """True if each row lies in consecutive elements and rows do not overlap."""
    if is_contiguous(matrix):
        return True
    return matrix.stride[1] == 1 and matrix.stride[0] >= max(1, matrix.shape[1])


def is_column_major(matrix: TensorFacts) -> bool:
    """True if the transpose is row-major."""
    return is_row_major(transposed(matrix))


def copied_mat1(mat1: TensorFacts) -> bool:
    """True if mat1 is neither row- nor column-major, so that a contiguous copy is used."""
    return not is_row_major(mat1) and not is_column_major(mat1)


def _elements(tensor: TensorFacts) -> int:
    count = 1
    for size in tensor.shape:
        count *= size
    return count


def _tensors(call: CallFacts) -> list[tuple[str, TensorFacts]]:
    named = (
        ("mat1", call.mat1),
        ("mat2", call.mat2),
        ("scale_a", call.scale_a),
        ("scale_b", call.scale_b),
        ("bias", call.bias),
        ("scale_result", call.scale_result),
        ("out", call.out),
    )
    return [(name, facts) for name, facts in named if facts is not None]


def _tensorwise(call: CallFacts) -> bool:
    return _elements(call.scale_a) == 1 and _elements(call.scale_b) == 1


def _rowwise(call: CallFacts) -> bool:
    m, n, _ = call.sizes
    scales = ((call.scale_a, (m, 1)), (call.scale_b, (1, n)))
    return all(tuple(scale.shape) == shape and is_contiguous(scale) for scale, shape in scales)


def _mat1_is_matrix(call: CallFacts) -> str | None:
    if len(call.mat1.shape) == _MATRIX:
        return None
    return f"mat1 must be a matrix [M, K], got shape {tuple(call.mat1.shape)}; reshape it to 2-D"


def _mat2_is_matrix(call: CallFacts) -> str | None:
    if len(call.mat2.shape) == _MATRIX:
        return None
    return f"mat2 must be a matrix [K, N], got shape {tuple(call.mat2.shape)}; reshape it to 2-D"


def _inner_sizes(call: CallFacts) -> str | None:
    if call.mat1.shape[1] == call.mat2.shape[0]:
        return None
    (m, k), (k2, n) = call.mat1.shape, call.mat2.shape
    return (
        f"mat1 [M, K] and mat2 [K, N] must agree in K, got {m}x{k} and {k2}x{n}; "
        "mat2 is the transpose of the row-major weight: pass weight.t()"
    )


def _scale_dtypes(call: CallFacts) -> str | None:
    got = (call.scale_a.dtype, call.scale_b.dtype)
    if got == (torch.float32, torch.float32):
        return None
    return (
        f"scale_a and scale_b must be float32, got {got[0]} and {got[1]}; convert them with "
        ".float() (block scales such as float8_e8m0fnu are not supported)"
    )


def _scale_shapes(call: CallFacts) -> str | None:
    if _tensorwise(call) or _rowwise(call):
        return None
    m, n, _ = call.sizes
    return (
        "scale_a and scale_b must both have one element (tensor-wise), or be contiguous with "
        f"shapes [{m}, 1] and [1, {n}] (row-wise); got shapes {tuple(call.scale_a.shape)} and "
        f"{tuple(call.scale_b.shape)}"
    )


def _scale_result(call: CallFacts) -> str | None:
    scale = call.scale_result
    if scale is None or (_elements(scale) == 1 and scale.dtype == torch.float32):
        return None
    return (
        "scale_result must be one float32 element or None, got "
        f"shape {tuple(scale.shape)} of {scale.dtype}"
    )


def _bias_length(call: CallFacts) -> str | None:
    if call.bias is None or _elements(call.bias) == call.mat2.shape[1]:
        return None
    return (
        f"bias must have one element per column of mat2 ({call.mat2.shape[1]}), got shape "
        f"{tuple(call.bias.shape)}"
    )


def _inner_multiple(call: CallFacts) -> str | None:
    k = call.mat1.shape[1]
    if k % ALIGNMENT == 0:
        return None
    return f"K must be a multiple of {ALIGNMENT}, got K = {k}; pad both operands with zeros along K"


def _column_multiple(call: CallFacts) -> str | None:
    n = call.mat2.shape[1]
    if n % ALIGNMENT == 0:
        return None
    return f"N must be a multiple of {ALIGNMENT}, got N = {n}; pad mat2 with zero columns"


def _out_dtype(call: CallFacts) -> str | None:
    if call.out is None or call.out.dtype == call.out_dtype:
        return None
    return (
        f"out must have the dtype out_dtype = {call.out_dtype}, got {call.out.dtype}; pass "
        "matching ones or leave out_dtype out"
    )


def _operands_float8(call: CallFacts) -> str | None:
    if call.mat1.dtype in _FLOAT8 and call.mat2.dtype in _FLOAT8:
        return None
    return (
        f"mat1 and mat2 must be float8 tensors, got {call.mat1.dtype} and {call.mat2.dtype}; "
        "use torch.float8_e4m3fn or torch.float8_e5m2 (raw codes: .view(torch.float8_e4m3fn))"
    )


def _not_both_e5m2(call: CallFacts) -> str | None:
    if (call.mat1.dtype, call.mat2.dtype) != (torch.float8_e5m2, torch.float8_e5m2):
        return None
    return "float8_e5m2 x float8_e5m2 is not supported by cuBLASLt; make one operand float8_e4m3fn"


def _bias_not_with_float32(call: CallFacts) -> str | None:
    if call.bias is None or call.out_dtype != torch.float32:
        return None
    return "a bias is not supported with a float32 output; use bfloat16 or float16, or add it after"


def _bias_dtype(call: CallFacts) -> str | None:
    if call.bias is None or call.bias.dtype in _HALF:
        return None
    return f"bias must be bfloat16 or float16, got {call.bias.dtype}"


def _bias_matches_out(call: CallFacts) -> str | None:
    if call.bias is None or call.out_dtype not in _HALF or call.bias.dtype == call.out_dtype:
        return None
    return f"bias must have the output's dtype {call.out_dtype}, got {call.bias.dtype}"


def _one_device(call: CallFacts) -> str | None:
    devices = {facts.device for _, facts in _tensors(call)}
    if len(devices) == 1:
        return None
    where = ", ".join(f"{name} on {facts.device}" for name, facts in _tensors(call))
    return f"all tensors must be on one device, also scales of one element; got {where}"


def _rowwise_output(call: CallFacts) -> str | None:
    if _tensorwise(call) or call.out_dtype == torch.bfloat16:
        return None
    return f"row-wise scales need a bfloat16 output, got {call.out_dtype}"


def _mat1_layout(call: CallFacts) -> str | None:
    if is_row_major(call.mat1) or not is_column_major(call.mat1):
        return None
    return (
        f"mat1 must be row-major, got a column-major matrix (strides {tuple(call.mat1.stride)}); "
        "pass mat1.contiguous()"
    )


def _mat2_layout(call: CallFacts) -> str | None:
    if is_column_major(call.mat2):
        return None
    return (
        f"mat2 must be column-major, got strides {tuple(call.mat2.stride)} for shape "
        f"{tuple(call.mat2.shape)}; pass weight.t() of a contiguous [N, K] weight"
    )


def _operand_formats(call: CallFacts) -> str | None:
    if call.mat1.dtype in COMPUTED_OPERANDS and call.mat2.dtype in COMPUTED_OPERANDS:
        return None
    return (
        "cuBLASLt computes float8_e4m3fn and float8_e5m2 operands only, got "
        f"{call.mat1.dtype} and {call.mat2.dtype}"
    )


def _output_formats(call: CallFacts) -> str | None:
    if call.out_dtype in OUTPUTS:
        return None
    names = ", ".join(str(dtype) for dtype in OUTPUTS)
    return f"out_dtype must be one of {names}; got {call.out_dtype}"


def _pointers(call: CallFacts) -> str | None:
    for name, matrix in (("mat1", call.mat1), ("mat2", call.mat2)):
        copied = name == "mat1" and copied_mat1(matrix)
        if not copied and matrix.address % ALIGNMENT:
            return (
                f"the address of {name} must be a multiple of {ALIGNMENT} bytes, got "
                f"{matrix.address % ALIGNMENT} above one; pass {name}.clone()"
            )
    return None


def _leading_dimensions(call: CallFacts) -> str | None:
    mat1_stride = None if copied_mat1(call.mat1) else call.mat1.stride[0]
    for name, stride in (("mat1", mat1_stride), ("mat2", call.mat2.stride[1])):
        if stride is not None and stride % ALIGNMENT:
            return (
                f"the leading dimension of {name} must be a multiple of {ALIGNMENT}, got {stride}; "
                "copy it to unpadded storage"
            )
    return None


def _no_bias(call: CallFacts) -> str | None:
    if call.bias is None:
        return None
    return (
        "a bias runs on the reference platform, but its bits are not published; call without "
        "bias and add it to the result"
    )


def _no_rowwise(call: CallFacts) -> str | None:
    if _tensorwise(call):
        return None
    return (
        "row-wise scales run on the reference platform, but their bits are not published; use "
        "scales of one element, or call with scales of 1 and multiply the float32 result"
    )


def _no_grad(call: CallFacts) -> str | None:
    if not call.grad:
        return None
    return (
        "a tensor of this call requires grad while grad mode is on, and no derivative is "
        "published; detach the tensors or call under torch.no_grad()"
    )


def _zero_output(call: CallFacts) -> str | None:
    if dtype_name(call.out_dtype) not in _WITHOUT_ZERO:
        return None
    names = ", ".join(str(dtype) for dtype in OUTPUTS)
    return f"a GEMM of zero size gives +0, which {call.out_dtype} cannot be; use one of {names}"


ARGUMENT_RULES: Final[tuple[Rule, ...]] = (
    _mat1_is_matrix,
    _mat2_is_matrix,
    _inner_sizes,
    _scale_dtypes,
    _scale_shapes,
    _scale_result,
    _bias_length,
    _inner_multiple,
    _column_multiple,
    _out_dtype,
    _operands_float8,
    _not_both_e5m2,
    _bias_not_with_float32,
    _bias_dtype,
    _bias_matches_out,
    _one_device,
)
"""Checked by torch before it returns for a zero size."""

OPERAND_RULES: Final[tuple[Rule, ...]] = (
    _rowwise_output,
    _mat1_layout,
    _mat2_layout,
    _operand_formats,
    _output_formats,
    _pointers,
    _leading_dimensions,
)
"""Checked by torch and cuBLASLt on the way to a kernel; a profile's own rejections follow."""

UNSUPPORTED_RULES: Final[tuple[Rule, ...]] = (_no_bias, _no_rowwise, _no_grad)
"""What the platform computes with bits that nobody published."""


def _first(rules: tuple[Rule, ...], call: CallFacts, error: type[MmaemuError]) -> Refusal | None:
    for rule in rules:
        message = rule(call)
        if message is not None:
            return Refusal(error, message)
    return None


def _profile_rejects(call: CallFacts, profile: Profile) -> Refusal | None:
    formats = (format_of(call.mat1.dtype).name, format_of(call.mat2.dtype).name)
    rule = profile.rejection(*formats, dtype_name(call.out_dtype))
    return None if rule is None else Refusal(ReferenceRejectsError, rule.message)


def dtype_name(dtype: torch.dtype) -> str:
    """Name of a dtype without the prefix, for example "float8_e4m3fn"."""
    return str(dtype).removeprefix("torch.")


def refusal(call: CallFacts, profile: Profile) -> Refusal | None:
    """Say whether and why the reference platform, or mmaemu, refuses a call.

    Args:
        call: facts of the call; the types of the arguments were checked before.
        profile: the reference platform, whose own rejections follow the general ones.

    Returns:
        The error to raise, or None. A call of zero size passes once the argument rules pass and its
        output type has a +0.
    """
    found = _first(ARGUMENT_RULES, call, ReferenceRejectsError)
    if found is not None:
        return found
    if call.zero_size:
        return _first((_zero_output,), call, UnsupportedFeatureError)
    return (
        _first(OPERAND_RULES, call, ReferenceRejectsError)
        or _profile_rejects(call, profile)
        or _first(UNSUPPORTED_RULES, call, UnsupportedFeatureError)
    )

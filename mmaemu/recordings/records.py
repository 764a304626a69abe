"""What one recorded output of a GPU is: an instruction chain, a GEMM, or a spelled-out call.

Arrays are raw bits: uint8 FP8 codes, uint16 bf16 or fp16, uint32 fp32. Scales are fp32 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Bits: TypeAlias = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class MmaRecord:
    """One chain of tensor-core instructions.

    Attributes:
        id: label of the row, unique within its platform.
        recording: label of the recorded run it belongs to.
        platform: name of the folder, for example "rtx4060".
        preset: name of the instruction model that the GPU implements.
        layout: "tile": a [T, m, K], b [T, n, K], c and d [T, m, n], and d[t, i, j] chains
            a[t, i, :] with b[t, j, :] from c[t, i, j]; "vector": a, b [V, K] and c, d [V].
        format_a: format name of a.
        format_b: format name of b.
        a: operand codes.
        b: operand codes.
        c: start of the chain, bits.
        d: what the GPU returned, bits.
    """

    id: str
    recording: str
    platform: str
    preset: str
    layout: str
    format_a: str
    format_b: str
    a: Bits
    b: Bits
    c: Bits
    d: Bits


@dataclass(frozen=True, slots=True, eq=False)
class GemmRecord:
    """One output of a recorded GEMM; exactly one of `out` and `error` is set.

    Attributes:
        id: label of the row, unique within its platform.
        recording: label of the recorded run it belongs to.
        platform: name of the folder, for example "rtx4060".
        profile: name of the profile that describes the platform.
        op: "scaled_mm": the public call; "accumulate": the accumulator and the epilogue.
        format_a: format name of a.
        format_b: format name of b.
        out_dtype: torch's name of the output dtype.
        use_fast_accum: the effective value.
        split: (S, scheme) that the library used.
        scale_a_bits: fp32 bits.
        scale_b_bits: fp32 bits.
        scale_result_bits: fp32 bits; None means not passed.
        a: codes [M, K]; None where `call` names the size of all-zero operands.
        b: codes [N, K]; None as for a.
        out: bits [M, N], or [M] where only the diagonal was recorded; None where it raised.
        error: exact class name of the exception; None where it returned.
        call: what else the call passed: `bias`, `bias_dtype`, `out_fill`, `requires_grad`,
            `scaling`, `out_select`, `zero_operands_MNK`, and `out_dtype` or `use_fast_accum`
            false where the argument was left out.
    """

    id: str
    recording: str
    platform: str
    profile: str
    op: str
    format_a: str
    format_b: str
    out_dtype: str
    use_fast_accum: bool
    split: tuple[int, str]
    scale_a_bits: int
    scale_b_bits: int
    scale_result_bits: int | None
    a: Bits | None
    b: Bits | None
    out: Bits | None
    error: str | None
    call: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class CallRecord:
    """One public call with every argument spelled out; one of `out` and `error` is set.

    Attributes:
        id: label of the row, unique within its platform.
        recording: label of the recorded run it belongs to.
        platform: name of the folder, for example "rtx4060".
        profile: name of the profile that describes the platform.
        out_dtype: torch's name of the output dtype.
        out_dtype_passed: False means that the argument was left out.
        use_fast_accum: the value passed.
        split: (S, scheme) that the library used.
        a: logical operand mat1 [M, K], codes (uint16: bf16).
        b: logical operand mat2 transposed [N, K], codes (uint16: bf16).
        out: bits of the result, or of the logical content of `out=`; None where it raised.
        error: exact class name of the exception; None where it returned.
        call: M, N, K, mat1, mat2, scale_a, scale_b, scale_result, bias, out, grad and
            positional_bias, as docs/reference/recordings.md describes them.
    """

    id: str
    recording: str
    platform: str
    profile: str
    out_dtype: str
    out_dtype_passed: bool
    use_fast_accum: bool
    split: tuple[int, str]
    a: Bits
    b: Bits
    out: Bits | None
    error: str | None
    call: Mapping[str, Any]


Record: TypeAlias = MmaRecord | GemmRecord | CallRecord

"""The public calls: scaled_mm, accumulate and explain.

Signatures, argument checks and the choice between plain execution and the torch operators; the
work is done in `calls`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import torch

from mmaemu import calls, torch_op
from mmaemu.errors import MmaemuError, UnsupportedFeatureError
from mmaemu.instruction.models import get_preset, maturity_of
from mmaemu.profiles.profile import Profile, get_profile
from mmaemu.profiles.resolve import SplitDecision
from mmaemu.validation import COMPUTED_OPERANDS, OUTPUTS, dtype_name

_REQUIRED: Final = ("input", "mat2", "scale_a", "scale_b")
_OPTIONAL: Final = ("bias", "scale_result", "out")


@dataclass(frozen=True)
class CallPlan:
    """What a scaled_mm call would do, or why it would raise.

    Attributes:
        validation: "ok", or (name of the exception's class, its message).
        profile: name of the profile.
        preset: name of its instruction model.
        preset_maturity: best evidence behind the model; "custom" for one that is no named model.
        split: the split-K decision; None if the call is refused before one is taken, and for an
            out= that stays unchanged.
        backend: name of the backend that would compute; for a call that computes nothing "none"
            with the reason; "" for a call that raises.
        fallbacks: faster backends that would not be used, each with the reason.
        warnings: what is uncertain about the result, whether or not it was warned about before.
    """

    validation: str | tuple[str, str] = "ok"
    profile: str = ""
    preset: str = ""
    preset_maturity: str = ""
    split: SplitDecision | None = None
    backend: str = ""
    fallbacks: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def scaled_mm(  # noqa: PLR0917 - torch's signature
    input: torch.Tensor,  # noqa: A002 - torch's name of the argument
    mat2: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    scale_result: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
    *,
    out: torch.Tensor | None = None,
    profile: str | Profile | None = None,
    splitk: calls.Split = "auto",
    backend: str = "auto",
) -> torch.Tensor:
    """Return the bits that torch._scaled_mm of the reference platform returns.

    out = (input @ mat2) * (scale_a * scale_b), accumulated as the platform's tensor cores do it
    (truncated sums of each instruction, rules N1 to N18 of docs/explanation/numerics.md) and
    scaled and converted as cuBLASLt does it (each step rounded once, N19). Every bit is the
    platform's, on every device and with every backend. Memory: operands, result and a fixed bound.

    Args:
        input: float8_e4m3fn or float8_e5m2 [M, K], row-major; K a multiple of 16. A matrix that
            is neither row- nor column-major is copied.
        mat2: float8_e4m3fn or float8_e5m2 [K, N], column-major (the transpose of a row-major
            [N, K] weight); N a multiple of 16. Both e5m2 is not supported by the platform.
        scale_a: float32, one element: factor of input, not its reciprocal.
        scale_b: float32, one element: factor of mat2.
        bias: as torch; raises, since its bits are not published.
        scale_result: float32, one element: factor of a float8 output; no effect on others.
        out_dtype: float32, bfloat16, float16, float8_e4m3fn or float8_e5m2; None = out's dtype,
            without out input's.
        use_fast_accum: one chain over all of K (True), or a promotion to fp32 every 128 elements.
        out: [M, N] of out_dtype, row- or column-major, to write the result to. Another shape is
            resized with a warning; a layout that is neither is returned unchanged with a warning.
        profile: the reference platform: a name of `list_profiles()`, a Profile, or None for
            MMAEMU_PROFILE ("hopper" if it is not set).
        splitk: "auto" = as the platform splits K; 1; a SplitK or (S, scheme).
        backend: "auto", "reference", "cpu", "cpu:<isa>", "cuda" or "cuda:<module>".

    Returns:
        out_dtype [M, N], contiguous, on input's device; `out` if given. An empty tensor if M or N
        is 0, all +0 if K is 0. A NaN is the type's canonical one.

    Raises:
        TypeError: an argument is of a wrong type (a number where a tensor is expected, ...).
        ReferenceRejectsError: the reference platform rejects the call.
        UnsupportedFeatureError: the platform runs it, but its bits are not known: bias, row-wise
            scales, a tensor that requires grad under grad mode, a model without slow accumulation
            or split-K. Also inside torch.vmap, and inside a CUDA-graph capture unless a CUDA kernel
            computes that was used on the device before.
        SplitKUnknownError: nothing says how the platform splits K for this call.
        BackendUnavailableError: the named backend cannot run here or cannot run this call.
        KeyError: no such profile. ValueError: no such backend, or an impossible split.

    Warns:
        UnverifiedSplitWarning: the split was never replayed on hardware.
        ExperimentalPresetWarning: the instruction model or profile has no recording behind it.
        BackendFallbackWarning: a faster backend failed.
        UserWarning: `out` is resized or stays unchanged.
    """
    call = calls.ScaledMM(
        input,
        mat2,
        scale_a,
        scale_b,
        bias,
        scale_result,
        out_dtype,
        use_fast_accum,
        out,
        profile,
        splitk,
        backend,
    )
    tensors = (input, mat2, scale_a, scale_b, bias, scale_result, out)
    if torch.compiler.is_compiling():
        _check_types(call)
    elif _types_are_plain(call, tensors) and _is_eager(input):
        try:
            return calls.scaled_mm(call, grad=calls.requires_grad(tensors))
        except RuntimeError:
            _check_dense(call)
            raise
    return torch_op.scaled_mm(call)


def accumulate(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    use_fast_accum: bool,
    profile: str | Profile | None = None,
    splitk: calls.Split = "auto",
    backend: str = "auto",
    out_dtype_for_split: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Return the fp32 accumulators of a @ b.t(): a GEMM before scales and conversion.

    Truncated sums of each instruction, chained, promoted and split as the platform does it (rules
    N1 to N18 of docs/explanation/numerics.md). No rejection rule applies: sizes are free, and both
    operands may be e5m2.

    Args:
        a: float8_e4m3fn or float8_e5m2 [M, K], any layout.
        b: float8_e4m3fn or float8_e5m2 [N, K], any layout, on a's device.
        use_fast_accum: one chain over all of K (True), or a promotion to fp32 every 128 elements.
        profile: as `scaled_mm`.
        splitk: as `scaled_mm`.
        backend: as `scaled_mm`.
        out_dtype_for_split: output type of the GEMM whose split "auto" looks up.

    Returns:
        float32 [M, N], contiguous, on a's device; all +0 if K is 0.

    Raises:
        TypeError: an argument is of a wrong type.
        ValueError: a or b is not 2-D, their K or devices differ, no such backend, or an
            impossible split.
        KeyError: no such profile.
        UnsupportedFeatureError: an operand requires grad under grad mode; the model's slow
            accumulation or split-K is not known; a CUDA-graph capture or torch.vmap.
        SplitKUnknownError: nothing says how the platform splits K here.
        BackendUnavailableError: the named backend cannot run here or cannot run this.

    Warns:
        UnverifiedSplitWarning, ExperimentalPresetWarning, BackendFallbackWarning: as `scaled_mm`.
    """
    call = calls.Accumulate(a, b, use_fast_accum, profile, splitk, backend, out_dtype_for_split)
    _check_accumulate(call)
    if (
        not torch.compiler.is_compiling()
        and calls.is_plain(a)
        and calls.is_plain(b)
        and _is_eager(a)
    ):
        return calls.accumulate(call)
    return torch_op.accumulate(call)


def explain(  # noqa: PLR0917 - as scaled_mm
    input: torch.Tensor,  # noqa: A002 - torch's name of the argument
    mat2: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    scale_result: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
    *,
    out: torch.Tensor | None = None,
    profile: str | Profile | None = None,
    splitk: calls.Split = "auto",
    backend: str = "auto",
) -> CallPlan:
    """Say what `scaled_mm` with the same arguments would do, or why it would raise.

    Nothing is computed or warned about, no operand is read, and the cost does not depend on the
    sizes. Operands may lie on the meta device (`torch.empty(..., device="meta")`), which takes no
    memory; such a call is explained as if it lay on the CPU.

    Args:
        input: as `scaled_mm`.
        mat2: as `scaled_mm`.
        scale_a: as `scaled_mm`.
        scale_b: as `scaled_mm`.
        bias: as `scaled_mm`.
        scale_result: as `scaled_mm`.
        out_dtype: as `scaled_mm`.
        use_fast_accum: as `scaled_mm`.
        out: as `scaled_mm`; not written to.
        profile: as `scaled_mm`.
        splitk: as `scaled_mm`.
        backend: as `scaled_mm`.

    Returns:
        The plan; see `CallPlan`.

    Raises:
        TypeError: as `scaled_mm`: programming errors are not explained but raised.
        KeyError: no such profile. ValueError: no such backend, or an impossible split.
    """
    call = calls.ScaledMM(
        input,
        mat2,
        scale_a,
        scale_b,
        bias,
        scale_result,
        out_dtype,
        use_fast_accum,
        out,
        profile,
        splitk,
        backend,
    )
    plain = _types_are_plain(call, call.tensors)
    _check_dense(call)
    platform = get_profile(profile)
    model = get_preset(platform.preset, warn=False)
    names = (platform.name, model.name, maturity_of(model))
    try:
        grad = calls.requires_grad(call.tensors)
        prepared = calls.prepare(call, grad=grad, has_data=plain and not input.is_meta)
    except MmaemuError as error:
        return CallPlan(_raised(error), *names)
    if prepared.refusal is not None:
        return CallPlan((prepared.refusal.error.__name__, prepared.refusal.message), *names)
    accumulation = prepared.accumulation
    if accumulation is None:
        unchanged = calls.unchanged_out(call)
        return CallPlan("ok", *names, None, "none (out= stays unchanged)", [], [unchanged])
    split, cautions = accumulation.resolution.decision, [c.message for c in accumulation.cautions]
    if accumulation.problem.is_empty:
        calls.check_backend(backend)
        return CallPlan("ok", *names, split, "none (a size is zero)", [], cautions)
    device = torch.device("cpu") if input.is_meta else input.device
    try:
        chosen, fallbacks = calls.choose_backend(accumulation, backend, device)
    except MmaemuError as error:
        return CallPlan(_raised(error), *names, split, "", [], cautions)
    return CallPlan("ok", *names, split, chosen, fallbacks, cautions)


def _raised(error: MmaemuError) -> tuple[str, str]:
    return type(error).__name__, str(error)


def _is_eager(tensor: torch.Tensor) -> bool:
    """Whether a plain tensor holds data and nothing traces, transforms or intercepts a call."""
    return not (
        tensor.is_meta
        or torch._C._len_torch_dispatch_stack()  # noqa: SLF001 - torch has no public way to ask.
        or torch._C._are_functorch_transforms_active()  # noqa: SLF001 - as above
        or torch._C._get_tracing_state()  # noqa: SLF001 - as above
    )


def _types_are_plain(call: calls.ScaledMM, tensors: tuple[torch.Tensor | None, ...]) -> bool:
    """Check the arguments' types, and say whether all tensors are torch's own."""
    types = tuple(map(type, call))
    if types not in _PLAIN_CALLS:
        _check_types(call)
        if not all(t is None or calls.is_plain(t) for t in tensors):
            return False
        _PLAIN_CALLS.add(types)
    return True


_PLAIN_CALLS: Final[set[tuple[type, ...]]] = set()
"""Types of argument lists that were checked before; there are few, since tensors are plain."""


def _check_dense(call: calls.ScaledMM) -> None:
    """Raise TypeError for a sparse tensor, which torch's own errors do not name."""
    for name in (*_REQUIRED, *_OPTIONAL):
        value = getattr(call, name)
        if value is not None and value.layout != torch.strided:
            raise TypeError(
                f"{name} must be a dense tensor, got layout {value.layout}; pass {name}.to_dense()"
            )


def _check_types(call: calls.ScaledMM) -> None:
    """Raise TypeError for arguments that no call can have."""
    for name in _REQUIRED:
        _check_tensor(name, getattr(call, name))
    for name in _OPTIONAL:
        if getattr(call, name) is not None:
            _check_tensor(name, getattr(call, name))
    if call.out_dtype is not None and not isinstance(call.out_dtype, torch.dtype):
        raise TypeError(f"out_dtype must be a torch.dtype or None, got {_got(call.out_dtype)}")
    _check_options(call)


def _check_accumulate(call: calls.Accumulate) -> None:
    for name, matrix in (("a", call.a), ("b", call.b)):
        _check_tensor(name, matrix)
        if matrix.dtype not in COMPUTED_OPERANDS:
            raise TypeError(
                f"{name} must be float8_e4m3fn or float8_e5m2, got {matrix.dtype}; raw codes: "
                f"{name}.view(torch.float8_e4m3fn)"
            )
    if call.out_dtype_for_split not in OUTPUTS:
        names = ", ".join(dtype_name(dtype) for dtype in OUTPUTS)
        raise TypeError(
            f"out_dtype_for_split must be one of torch's {names}; "
            f"got {_got(call.out_dtype_for_split)}"
        )
    _check_options(call)
    if call.a.dim() != 2 or call.b.dim() != 2 or call.a.shape[1] != call.b.shape[1]:  # noqa: PLR2004 - matrices
        raise ValueError(
            "a and b must be matrices [M, K] and [N, K] with the same K, got shapes "
            f"{tuple(call.a.shape)} and {tuple(call.b.shape)}"
        )
    if call.a.device != call.b.device:
        raise ValueError(f"a and b must be on one device, got {call.a.device} and {call.b.device}")
    if calls.requires_grad((call.a, call.b)):
        raise UnsupportedFeatureError(
            "a or b requires grad while grad mode is on, and accumulate has no derivative; detach "
            "them or call under torch.no_grad()"
        )


def _check_options(call: calls.ScaledMM | calls.Accumulate) -> None:
    if type(call.use_fast_accum) is not bool:
        raise TypeError(f"use_fast_accum must be a bool, got {_got(call.use_fast_accum)}")
    if not isinstance(call.backend, str):
        raise TypeError(f"backend must be a str, got {_got(call.backend)}")
    if call.profile is not None and not isinstance(call.profile, (str, Profile)):
        raise TypeError(f"profile must be a name, a Profile or None, got {_got(call.profile)}")


def _check_tensor(name: str, value: object) -> None:
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {_got(value)}")


def _got(value: object) -> str:
    return f"{value!r} ({type(value).__name__})"

"""One call from its arguments to its result, shared by public functions and torch operators.

A call is described by hashable facts. All that follows from the facts (refusal, split, plan) is
decided once and remembered; what depends on data, settings or the backend is done at every call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import torch
from torch.autograd import forward_ad

from mmaemu import _settings
from mmaemu.backends.base import Backend
from mmaemu.backends.registry import names, select
from mmaemu.cautions import Caution, warn
from mmaemu.errors import ExperimentalPresetWarning, UnsupportedFeatureError
from mmaemu.formats import format_of
from mmaemu.gemm import epilogue as epilogues
from mmaemu.gemm import execute
from mmaemu.gemm.plan import GemmPlan
from mmaemu.gemm.problem import GemmProblem
from mmaemu.gemm.request import AccumulateRequest
from mmaemu.gemm.splitk import SplitK
from mmaemu.instruction.model import InstructionModel
from mmaemu.instruction.models import cautions_of, get_preset
from mmaemu.profiles.profile import Profile, get_profile
from mmaemu.profiles.resolve import Resolution, check_scheme, resolve
from mmaemu.validation import (
    ALIGNMENT,
    RECORDED_ALIGNMENT,
    CallFacts,
    Refusal,
    TensorFacts,
    copied_mat1,
    dtype_name,
    is_column_major,
    is_contiguous,
    is_row_major,
    refusal,
    transposed,
)

Split = str | int | SplitK | tuple[int, str]
"""What `splitk=` takes: "auto", 1, a SplitK or (S, scheme)."""

Facts = tuple[Any, ...]
"""The fields of a TensorFacts or CallFacts as a plain tuple, which is cheaper to make."""

REMEMBERED: Final = 4096
"""Calls whose decisions are kept; an entry is a few KiB."""


class ScaledMM(NamedTuple):
    """The arguments of one scaled_mm call, types checked; see `mmaemu.api.scaled_mm`."""

    input: torch.Tensor
    mat2: torch.Tensor
    scale_a: torch.Tensor
    scale_b: torch.Tensor
    bias: torch.Tensor | None
    scale_result: torch.Tensor | None
    out_dtype: torch.dtype | None
    use_fast_accum: bool
    out: torch.Tensor | None
    profile: str | Profile | None
    splitk: Split
    backend: str

    @property
    def tensors(self) -> tuple[torch.Tensor | None, ...]:
        """All tensors of the call, None for those that are not given."""
        return (*self[:6], self.out)


class Accumulate(NamedTuple):
    """The arguments of one accumulate call, types checked; see `mmaemu.api.accumulate`."""

    a: torch.Tensor
    b: torch.Tensor
    use_fast_accum: bool
    profile: str | Profile | None
    splitk: Split
    backend: str
    out_dtype_for_split: torch.dtype


@dataclass(frozen=True, slots=True)
class Accumulation:
    """How the accumulators of a call come about.

    Attributes:
        profile: the reference platform.
        model: its instruction model.
        problem: sizes and formats, as the caller sees them.
        plan: chains and slices.
        resolution: the split-K decision with its caution.
        cautions: what a user should know about the evidence behind the bits.
        chosen: backends that were selected before, by the name that was asked for.
    """

    profile: Profile
    model: InstructionModel
    problem: GemmProblem
    plan: GemmPlan
    resolution: Resolution
    cautions: tuple[Caution, ...] = ()
    chosen: dict[str, Backend] = field(default_factory=dict, compare=False, repr=False)

    def backend(self, request: AccumulateRequest, name: str) -> Backend:
        """Select the backend for a request of this call; a choice stays while it is available.

        Sizes, formats, device and settings are those of the first selection, so a backend that is
        still available would be accepted again.
        """
        backend = self.chosen.get(name)
        if backend is None or not backend.status(request.a.device).available:
            backend, _ = select(request, name)
            self.chosen[name] = backend
        return backend


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the facts of a scaled_mm call decide.

    Attributes:
        out_dtype: element type of the result.
        accumulation: how the result is computed; None for a refused call and for an out= that
            stays unchanged.
        copies_mat1: mat1 is copied to contiguous storage first.
        refusal: the error to raise, or None.
    """

    out_dtype: torch.dtype
    accumulation: Accumulation | None = None
    copies_mat1: bool = False
    refusal: Refusal | None = None


def _facts(tensor: torch.Tensor, *, has_data: bool = True) -> Facts:
    """Facts of a tensor; one without address counts as lying in aligned storage."""
    offset = tensor.storage_offset() * tensor.element_size()
    return (
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        tensor.device,
        (tensor.data_ptr() if has_data else offset) % ALIGNMENT,
        offset % RECORDED_ALIGNMENT,
    )


def _scale_facts(tensor: torch.Tensor) -> Facts:
    return (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)


def is_plain(tensor: object) -> bool:
    """Whether a tensor is torch's own, no subclass that stands for something else."""
    return type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter


def requires_grad(tensors: tuple[torch.Tensor | None, ...]) -> bool:
    """Whether a derivative is asked for: of backward or of forward mode."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    # Forward mode has no public way to ask for its state.
    return forward_ad._current_level >= 0 and any(map(_has_tangent, tensors))  # noqa: SLF001


def _has_tangent(tensor: torch.Tensor | None) -> bool:
    if tensor is None:
        return False
    dual = forward_ad.unpack_dual(tensor)  # type: ignore[no-untyped-call]
    return dual.tangent is not None


def _call_facts(call: ScaledMM, *, grad: bool, has_data: bool) -> Facts:
    mat1, mat2, scale_a, scale_b, bias, scale_result, out_dtype, fast, out, *_ = call
    if out_dtype is None:
        out_dtype = mat1.dtype if out is None else out.dtype
    return (
        _facts(mat1, has_data=has_data),
        _facts(mat2, has_data=has_data),
        _scale_facts(scale_a),
        _scale_facts(scale_b),
        bias if bias is None else _scale_facts(bias),
        scale_result if scale_result is None else _scale_facts(scale_result),
        out if out is None else _facts(out, has_data=has_data),
        out_dtype,
        fast,
        grad,
    )


def split_choice(splitk: Split) -> str | int | SplitK:
    """Return a form of `splitk` that no other form is equal to, as 1, 1.0 and True are.

    Raises:
        TypeError: it is none of the possible forms.
        ValueError: S and scheme do not go together.
    """
    if isinstance(splitk, tuple) and len(splitk) == len(SplitK.__slots__):
        return SplitK(*splitk)  # type: ignore[arg-type] # SplitK checks scheme and types itself.
    if isinstance(splitk, SplitK) or type(splitk) is int:
        return splitk
    if isinstance(splitk, str) and splitk == "auto":
        return "auto"
    raise TypeError(
        f"splitk must be 'auto', 1, a SplitK or a tuple (S, scheme); got {splitk!r} "
        f"({type(splitk).__name__})"
    )


def prepare(call: ScaledMM, *, grad: bool, has_data: bool = True) -> Prepared:
    """Decide what a scaled_mm call does.

    Args:
        call: the arguments.
        grad: whether a tensor requires grad under grad mode.
        has_data: False for tensors on the meta device and fake ones, which have no address.

    Raises:
        KeyError: no such profile or preset.
        TypeError: `profile` or `splitk` is of none of the possible forms.
        ValueError: `splitk` is impossible, or the profile's model cannot run this GEMM.
        SplitKUnknownError: nothing says how the platform splits K here.
        UnsupportedFeatureError: the model's slow accumulation or split-K is not known.
    """
    facts = _call_facts(call, grad=grad, has_data=has_data)
    return _decide_scaled_mm(facts, call.profile, split_choice(call.splitk), _settings.state())


@functools.lru_cache(maxsize=REMEMBERED)
def _decide_scaled_mm(
    facts: Facts,
    profile: str | Profile | None,
    splitk: Split,
    settings: tuple[object, ...],  # noqa: ARG001 - it tells the states of the environment apart.
) -> Prepared:
    call = _named(facts)
    platform = get_profile(profile)
    refused = refusal(call, platform)
    if refused is not None:
        return Prepared(call.out_dtype, refusal=refused)
    problem = _problem(call)
    out = call.out if call.out is not None and call.out.shape == call.sizes[:2] else None
    column_major = out is not None and not is_row_major(out)
    if out is not None and column_major and not is_column_major(out) and not problem.is_empty:
        return Prepared(call.out_dtype)
    accumulation = _accumulation(
        problem,
        platform,
        splitk,
        column_major=column_major,
        layout_std=_standard_layout(call, out),
    )
    return Prepared(call.out_dtype, accumulation, copies_mat1=copied_mat1(call.mat1))


def _named(facts: Facts) -> CallFacts:
    tensors = (None if part is None else TensorFacts(*part) for part in facts[:7])
    return CallFacts(*tensors, *facts[7:])  # type: ignore[arg-type] # mat1 to scale_b are there.


def refuse(call: ScaledMM, *, grad: bool) -> tuple[int, int, torch.dtype]:
    """Apply the rejection rules to a call without data, whose sizes may be symbolic.

    Args:
        call: the arguments.
        grad: whether a tensor requires grad under grad mode.

    Returns:
        M, N and the element type of the result.

    Raises:
        KeyError: no such profile.
        ReferenceRejectsError: the reference platform rejects the call.
        UnsupportedFeatureError: it runs the call, but its bits are not known.
    """
    facts = _named(_call_facts(call, grad=grad, has_data=False))
    refused = refusal(facts, get_profile(call.profile))
    if refused is not None:
        raise refused.error(refused.message)
    return (*facts.sizes[:2], facts.out_dtype)


def _problem(call: CallFacts) -> GemmProblem:
    """The GEMM of an accepted call; at zero size also types that no kernel takes are accepted."""
    m, n, k = call.sizes
    formats = format_of(call.mat1.dtype).name, format_of(call.mat2.dtype).name
    return GemmProblem(m, n, k, *formats, dtype_name(call.out_dtype), call.use_fast_accum)


def _standard_layout(call: CallFacts, out: TensorFacts | None) -> bool:
    """Whether cuBLASLt gets the very descriptor that the recorded queries had."""
    mat1_std = copied_mat1(call.mat1) or _standard(call.mat1)
    out_std = out is None or _standard(out) or _standard(transposed(out))
    return mat1_std and _standard(transposed(call.mat2)) and out_std


def _standard(matrix: TensorFacts) -> bool:
    return is_contiguous(matrix) and matrix.offset == 0


def _accumulation(
    problem: GemmProblem,
    profile: Profile,
    splitk: Split,
    *,
    column_major: bool = False,
    layout_std: bool,
) -> Accumulation:
    model = get_preset(profile.preset, warn=False)
    if problem.is_empty and isinstance(splitk, SplitK):
        check_scheme(splitk, profile)
        splitk = 1  # Nothing is split, so no evidence about splits is needed.
    if not problem.is_empty:
        _check_model(problem, model)
    key = problem.transposed() if column_major else problem
    resolution = resolve(key, profile, splitk, layout_std=layout_std)
    split = resolution.decision.split
    if split.S > 1 and model.promotion_interval is None:
        raise UnsupportedFeatureError(
            f"split-K of instruction model {model.name!r} is not known, so its bits cannot be "
            "given; pass splitk=1"
        )
    promotion = None if problem.use_fast_accum else model.promotion_interval
    plan = GemmPlan(problem.K, split, None if problem.is_empty else promotion)
    cautions = () if problem.is_empty else _cautions(profile, resolution)
    return Accumulation(profile, model, problem, plan, resolution, cautions)


def _check_model(problem: GemmProblem, model: InstructionModel) -> None:
    pair = (problem.format_a, problem.format_b)
    if pair not in model.inputs or model.output != "fp32" or model.scale_format is not None:
        raise ValueError(
            f"a GEMM {pair[0]} x {pair[1]} needs an instruction model that takes these formats "
            f"without block scales and accumulates in fp32; the profile's preset is {model.name!r} "
            "(see mmaemu.list_presets())"
        )
    if not problem.use_fast_accum and model.promotion_interval is None:
        raise UnsupportedFeatureError(
            f"slow accumulation (use_fast_accum=False) of instruction model {model.name!r} is not "
            "known, so its bits cannot be given; pass use_fast_accum=True"
        )


def _cautions(profile: Profile, resolution: Resolution) -> tuple[Caution, ...]:
    found = []
    if profile.maturity == "experimental":
        message = (
            f"profile {profile.name!r} is experimental: no platform was recorded for it "
            f"({profile.description})"
        )
        found.append(Caution(ExperimentalPresetWarning, message, profile.name))
    found += cautions_of(profile.preset)
    if resolution.caution is not None:
        found.append(resolution.caution)
    return tuple(found)


def scaled_mm(call: ScaledMM, *, grad: bool) -> torch.Tensor:
    """Compute a call whose arguments have the right types.

    Args:
        call: the arguments.
        grad: whether a tensor requires grad under grad mode.

    Returns:
        The result; `call.out` if there is one.

    Raises:
        MmaemuError: as `mmaemu.api.scaled_mm`.
    """
    prepared = prepare(call, grad=grad)
    if prepared.refusal is not None:
        raise prepared.refusal.error(prepared.refusal.message)
    accumulation = prepared.accumulation
    if accumulation is None:
        warn(unchanged_out(call), UserWarning)
        return _required(call.out)
    if accumulation.problem.is_empty:
        return _zeros(call, prepared, accumulation.problem)
    for caution in accumulation.cautions:
        caution.issue()
    codes = call.input.view(torch.uint8)
    request = _request(
        codes.contiguous() if prepared.copies_mat1 else codes,
        call.mat2.view(torch.uint8).mT,
        accumulation,
    )
    backend = accumulation.backend(request, call.backend)
    if call.input.is_cuda:
        refuse_capture(backend)
    prepare_epilogue = getattr(backend, "epilogue", epilogues.prepare)
    epilogue = prepare_epilogue(
        call.scale_a,
        call.scale_b,
        out_dtype=prepared.out_dtype,
        scale_result=call.scale_result,
    )
    if call.out is None:
        return _output(backend, request, epilogue)
    out = _resized(call.out, request.M, request.N)
    _fill(out, backend, request, epilogue)
    return out


def accumulate(call: Accumulate) -> torch.Tensor:
    """Compute the fp32 accumulators of a call whose arguments have the right types.

    Args:
        call: the arguments.

    Returns:
        float32 [M, N], contiguous.

    Raises:
        MmaemuError: as `mmaemu.api.accumulate`.
    """
    accumulation = prepare_accumulate(call)
    for caution in accumulation.cautions:
        caution.issue()
    request = _request(_codes(call.a), _codes(call.b), accumulation)
    if accumulation.problem.is_empty:
        check_backend(call.backend)
        shape = (request.M, request.N)
        return torch.zeros(shape, dtype=torch.float32, device=request.device)
    backend = accumulation.backend(request, call.backend)
    if call.a.is_cuda:
        refuse_capture(backend)
    whole = getattr(backend, "accumulators", None)
    if whole is None:
        return execute.accumulate(backend.accumulate, request)
    result: torch.Tensor = whole(request)
    return result


def prepare_accumulate(call: Accumulate) -> Accumulation:
    """Decide how the accumulators of a call come about; errors as `prepare`."""
    return _decide_accumulate(
        (_facts(call.a), _facts(call.b), call.use_fast_accum, call.out_dtype_for_split),
        call.profile,
        split_choice(call.splitk),
        _settings.state(),
    )


@functools.lru_cache(maxsize=REMEMBERED)
def _decide_accumulate(
    facts: Facts,
    profile: str | Profile | None,
    splitk: Split,
    settings: tuple[object, ...],  # noqa: ARG001 - as _decide_scaled_mm.
) -> Accumulation:
    a, b, use_fast_accum, out_dtype = TensorFacts(*facts[0]), TensorFacts(*facts[1]), *facts[2:]
    problem = GemmProblem(
        a.shape[0],
        b.shape[0],
        a.shape[1],
        format_of(a.dtype).name,
        format_of(b.dtype).name,
        dtype_name(out_dtype),
        use_fast_accum,
    )
    layout_std = _standard(a) and _standard(b)
    return _accumulation(problem, get_profile(profile), splitk, layout_std=layout_std)


def _codes(matrix: torch.Tensor) -> torch.Tensor:
    """The codes of a matrix with consecutive elements in each row, copied only if need be."""
    codes = matrix.detach().view(torch.uint8)
    if codes.stride(1) == 1 and codes.stride(0) >= codes.shape[1]:
        return codes
    return codes.clone(memory_format=torch.contiguous_format)


def _request(a: torch.Tensor, b: torch.Tensor, accumulation: Accumulation) -> AccumulateRequest:
    problem = accumulation.problem
    return AccumulateRequest(
        a, b, problem.format_a, problem.format_b, accumulation.model, accumulation.plan
    )


def choose_backend(
    accumulation: Accumulation, backend: str, device: torch.device
) -> tuple[str, list[str]]:
    """Name the backend that would compute, and say why others would not. Costs O(1).

    Args:
        accumulation: what would be computed.
        backend: value of `backend=`.
        device: where the operands would lie.

    Raises:
        ValueError: no backend has this name.
        BackendUnavailableError: it cannot be used here or for this.
    """
    problem = accumulation.problem
    # One element stands for all: backends choose by sizes and device, never by data.
    element = torch.empty((1, 1), dtype=torch.uint8, device=device)
    request = _request(
        element.expand(problem.M, problem.K), element.expand(problem.N, problem.K), accumulation
    )
    chosen, fallbacks = select(request, backend, warn=False)
    return chosen.name, list(fallbacks)


def check_backend(backend: str) -> None:
    """Check the name of a backend that a call of zero size does not use.

    Raises:
        ValueError: no backend has this name.
    """
    if backend not in names():
        raise ValueError(f"backend must be one of {', '.join(names())}; got {backend!r}")


def refuse_capture(backend: Backend) -> None:
    """Refuse to run a backend inside a CUDA-graph capture, unless it leaves all to the device.

    Raises:
        UnsupportedFeatureError: the current stream is capturing. Values are read on the host, so a
            replay of the graph would go on with those of the capture.
    """
    if not getattr(backend, "captures", False) and torch.cuda.is_current_stream_capturing():
        raise UnsupportedFeatureError(
            f"the backend {backend.name} cannot run inside a CUDA-graph capture: it reads scales "
            "and operands on the host, and a replay would use stale ones; call it outside of the "
            "graph"
        )


def unchanged_out(call: ScaledMM) -> str:
    """Say why `out` stays unchanged."""
    return (
        f"out= with strides {tuple(_required(call.out).stride())} is neither row- nor column-major "
        "and stays unchanged: the reference platform computes into a copy that nobody reads; pass "
        "a contiguous out="
    )


def _required(tensor: torch.Tensor | None) -> torch.Tensor:
    if tensor is None:
        raise ValueError("this call has no out=")
    return tensor


def _zeros(call: ScaledMM, prepared: Prepared, problem: GemmProblem) -> torch.Tensor:
    check_backend(call.backend)
    shape = (problem.M, problem.N)
    if call.out is None:
        out = torch.empty(shape, dtype=prepared.out_dtype, device=call.input.device)
    else:
        out = _resized(call.out, *shape)
    # Zero bytes are +0 in every format; not every version of torch fills float8 tensors.
    (out.view(torch.uint8) if out.element_size() == 1 else out).zero_()
    return out


def _resized(out: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    if tuple(out.shape) == (rows, columns):
        return out
    if out.numel():
        warn(
            f"out= has shape {tuple(out.shape)} and is resized to {(rows, columns)}, as torch "
            "does; pass an out= of that shape or an empty one",
            UserWarning,
        )
    return out.resize_((rows, columns))


def _output(
    backend: Backend,
    request: AccumulateRequest,
    epilogue: epilogues.Epilogue | epilogues.UnreadEpilogue,
) -> torch.Tensor:
    """The result of a GEMM: by a backend that does the epilogue itself, or by the common one."""
    whole: Callable[..., torch.Tensor] | None = getattr(backend, "execute", None)
    if whole is None:
        whole = functools.partial(execute.execute, backend.accumulate)
    return whole(request, epilogue)


def _fill(
    out: torch.Tensor,
    backend: Backend,
    request: AccumulateRequest,
    epilogue: epilogues.Epilogue | epilogues.UnreadEpilogue,
) -> None:
    """Write the result into `out` of any layout, a band of rows at a time to bound the memory."""
    band = max(1, execute.BAND // request.N)
    storage = out.untyped_storage().data_ptr()
    if storage in (request.a.untyped_storage().data_ptr(), request.b.untyped_storage().data_ptr()):
        band = request.M  # Operands must not change while they are still read.
    for first in range(0, request.M, band):
        part = replace(request, a=request.a[first : first + band])
        out[first : first + band].copy_(_output(backend, part, epilogue))

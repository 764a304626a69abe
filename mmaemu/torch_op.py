"""The calls as torch operators, for everything that is not plain eager execution.

torch.compile, torch.export, fake tensors, dispatch modes and functorch see one opaque operator with
a shape rule instead of the arithmetic inside, so they neither break the graph nor read data. The
operators take names and numbers only; other objects travel as a name under which they are kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final

import torch
from torch._compile import _disable_dynamo  # torch.compiler.disable imports the compiler.

from mmaemu import calls
from mmaemu.errors import UnsupportedFeatureError
from mmaemu.gemm.splitk import SplitK
from mmaemu.profiles.profile import Profile

_PREFIX: Final = "object:"
_OBJECTS: Final[dict[str, Profile]] = {}
_NAMES: Final[dict[Profile, str]] = {}
_NUMBERS: Final = itertools.count()

_CALL: Final = (
    "Tensor input, Tensor mat2, Tensor scale_a, Tensor scale_b, Tensor? bias, "
    "Tensor? scale_result, ScalarType? out_dtype, bool use_fast_accum, str profile, int slices, "
    "str scheme, str backend, bool grad"
)


def _kept(profile: Profile) -> str:
    """Keep a profile for the life of the process and return the name it travels under."""
    name = _NAMES.get(profile)
    if name is None:
        name = f"{_PREFIX}{next(_NUMBERS)}"
        _OBJECTS[name] = profile
        name = _NAMES.setdefault(profile, name)
    return name


# What torch.compiler.assume_constant_result does, which would import the whole compiler here.
_kept._dynamo_marked_constant = True  # type: ignore[attr-defined] # noqa: SLF001


def _profile_name(profile: str | Profile | None) -> str:
    if profile is None:
        return ""
    return profile if isinstance(profile, str) else _kept(profile)


def _profile(name: str) -> str | Profile | None:
    if name.startswith(_PREFIX) and name not in _OBJECTS:
        raise KeyError(
            "this graph was traced in another process with a Profile object, which stayed there; "
            "trace it again, or with a profile's name"
        )
    return _OBJECTS.get(name, name) or None


def _split_fields(splitk: calls.Split) -> tuple[int, str]:
    """Flatten a split; the scheme of a bare int is ""."""
    choice = calls.split_choice(splitk)
    if isinstance(choice, SplitK):
        return choice.S, choice.scheme
    return (0, choice) if isinstance(choice, str) else (choice, "")


def _split(slices: int, scheme: str) -> calls.Split:
    if scheme == "auto":
        return scheme
    return (slices, scheme) if scheme else slices


def _call(arguments: tuple[Any, ...], out: torch.Tensor | None) -> calls.ScaledMM:
    profile, slices, scheme, backend = arguments[8:12]
    choice = (_profile(profile), _split(slices, scheme), backend)
    return calls.ScaledMM._make((*arguments[:8], out, *choice))


def _scaled_mm(*arguments: Any) -> torch.Tensor:  # noqa: ANN401 - as the schema says
    return calls.scaled_mm(_call(arguments, None), grad=arguments[-1])


def _scaled_mm_shape(*arguments: Any) -> torch.Tensor:  # noqa: ANN401 - as the schema says
    call = _call(arguments, None)
    rows, columns, dtype = calls.refuse(call, grad=arguments[-1])
    return call.input.new_empty((rows, columns), dtype=dtype)


def _scaled_mm_out(*arguments: Any) -> None:  # noqa: ANN401 - as the schema says
    *rest, out = arguments
    calls.scaled_mm(_call(tuple(rest), out), grad=rest[-1])


def _scaled_mm_out_shape(*arguments: Any) -> None:  # noqa: ANN401 - as the schema says
    *rest, out = arguments
    rows, columns, _ = calls.refuse(_call(tuple(rest), out), grad=rest[-1])
    if tuple(out.shape) != (rows, columns):
        raise UnsupportedFeatureError(
            f"out= has shape {tuple(out.shape)} and would be resized to {(rows, columns)}, which a "
            "traced call cannot do; pass an out= of that shape"
        )


def _accumulate(*arguments: Any) -> torch.Tensor:  # noqa: ANN401 - as the schema says
    a, b, fast, profile, slices, scheme, backend, out_dtype = arguments
    split = _split(slices, scheme)
    return calls.accumulate(
        calls.Accumulate(a, b, fast, _profile(profile), split, backend, out_dtype)
    )


def _accumulate_shape(a: torch.Tensor, b: torch.Tensor, *_: Any) -> torch.Tensor:  # noqa: ANN401
    return a.new_empty((a.shape[0], b.shape[0]), dtype=torch.float32)


def _refuse_vmap(*_: Any) -> None:  # noqa: ANN401 - whatever the schema says
    raise UnsupportedFeatureError(
        "mmaemu computes one GEMM at a time and cannot run under torch.vmap; loop over the batch, "
        "or fold it into the rows of the first operand"
    )


def _count_write(keys: Any, *arguments: Any) -> None:  # noqa: ANN401 - as the schema says
    """Tell autograd that `out` changed, as torch's own operators do before they write."""
    *_, out = arguments
    torch.autograd.graph.increment_version(out)
    below = keys & torch._C._after_ADInplaceOrView_keyset  # noqa: SLF001 - has no public name.
    torch.ops.mmaemu.scaled_mm_out.default.redispatch(below, *arguments)


_LIBRARY: Final = torch.library.Library("mmaemu", "DEF")  # type: ignore[no-untyped-call]
_TAGS: Final = (
    torch.Tag.pt2_compliant_tag,
    # Strides decide what the reference accepts, so a compiler must keep them.
    getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order),
)


def _define(name: str, schema: str, kernel: Callable[..., Any], shape: Callable[..., Any]) -> None:
    """Define an operator; unlike torch.library.custom_op this does not import the compiler."""
    _LIBRARY.define(f"{name}{schema}", tags=_TAGS)  # type: ignore[no-untyped-call]
    # A compiler that runs the operator must not look into its kernel.
    _implement(name, _disable_dynamo(kernel), "CompositeExplicitAutograd")
    torch.library.register_fake(f"mmaemu::{name}", shape, lib=_LIBRARY)
    torch.library.register_vmap(f"mmaemu::{name}", _refuse_vmap, lib=_LIBRARY)


def _implement(name: str, kernel: Callable[..., Any], key: str, **options: bool) -> None:
    _LIBRARY.impl(name, kernel, key, **options)  # type: ignore[no-untyped-call]


_define("scaled_mm", f"({_CALL}) -> Tensor", _scaled_mm, _scaled_mm_shape)
_define(
    "scaled_mm_out",
    f"({_CALL}, Tensor(a!) out) -> ()",
    _scaled_mm_out,
    _scaled_mm_out_shape,
)
_implement("scaled_mm_out", _count_write, "ADInplaceOrView", with_keyset=True)
_define(
    "accumulate",
    "(Tensor a, Tensor b, bool use_fast_accum, str profile, int slices, str scheme, "
    "str backend, ScalarType out_dtype_for_split) -> Tensor",
    _accumulate,
    _accumulate_shape,
)


def scaled_mm(call: calls.ScaledMM) -> torch.Tensor:
    """Run a scaled_mm call through the operator; arguments as `mmaemu.api.scaled_mm`."""
    slices, scheme = _split_fields(call.splitk)
    # The compiler of torch 2.6 knows neither properties nor slices of named tuples.
    fields: list[Any] = [*call]
    grad = calls.requires_grad((*fields[:6], call.out))
    if grad and not torch.compiler.is_compiling():
        calls.refuse(call, grad=True)  # Before autograd looks for a derivative and finds none.
    arguments = (*fields[:8], _profile_name(call.profile), slices, scheme, call.backend, grad)
    if call.out is None:
        result: torch.Tensor = torch.ops.mmaemu.scaled_mm(*arguments)
        return result
    torch.ops.mmaemu.scaled_mm_out(*arguments, call.out)
    return call.out


def accumulate(call: calls.Accumulate) -> torch.Tensor:
    """Run an accumulate call through the operator; arguments as `mmaemu.api.accumulate`."""
    a, b, fast, profile, splitk, backend, out_dtype = call
    slices, scheme = _split_fields(splitk)
    result: torch.Tensor = torch.ops.mmaemu.accumulate(
        a, b, fast, _profile_name(profile), slices, scheme, backend, out_dtype
    )
    return result

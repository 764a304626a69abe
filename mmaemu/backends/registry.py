"""Which backend computes a request. A family of backends is one row: a prefix and a module.

A family's module is imported when it is first needed and offers `backends()`, best first. Every
backend gives the same bits, so the choice is about speed only; "auto" takes the first that is
available and does not refuse the request.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from mmaemu import _settings
from mmaemu.backends.base import AccumulateRequest, Backend, BackendStatus, GateVerdict
from mmaemu.backends.cuda.specs import by_priority
from mmaemu.cautions import Caution
from mmaemu.errors import BackendFallbackWarning, BackendUnavailableError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, eq=False)  # Hashed at every call: identity is enough.
class Family:
    """Backends with a common prefix, faster families first in `FAMILIES`.

    Attributes:
        name: the part of their names before the colon, or all of it.
        module: imported on demand; `backends()` in it returns a sequence of `Backend`.
        device: the type of the devices whose tensors they take; None = any.
        members: the names after the colon that a user may know, for installations without the
            module; () for a family of one backend without colon.
    """

    name: str
    module: str
    device: str | None
    members: tuple[str, ...] = ()


FAMILIES: tuple[Family, ...] = (
    Family("cuda", "mmaemu.backends.cuda", "cuda", by_priority()),
    Family("cpu", "mmaemu.backends.cpu", "cpu", ("avx512", "avx2", "neon", "sse2", "scalar")),
    Family("reference", "mmaemu.backends.reference", None),
)

_ANY = tuple((family, None) for family in FAMILIES)

NOT_BUILT = "not built into this installation"


class _Loaded(NamedTuple):
    """What became of a family's module."""

    backends: tuple[Backend, ...]
    missing: str | None = None
    failed: bool = False


def select(
    request: AccumulateRequest, backend: str = "auto", *, warn: bool = True
) -> tuple[Backend, tuple[str, ...]]:
    """Choose the backend for a request. Reads no operand.

    Args:
        request: what to compute.
        backend: "auto", a family ("reference", "cpu", "cuda") or one backend ("cpu:avx2").
            "auto" means MMAEMU_BACKEND where that is set.
        warn: whether to warn, once per device, family and reason, about a faster backend that
            failed (one that is only not meant for this machine or request is never warned about).

    Returns:
        the backend, and "name: reason" for every faster one that was passed over.

    Raises:
        TypeError: backend is no str.
        ValueError: no backend has this name.
        BackendUnavailableError: none of the backends named can run here or run this request.
    """
    passed_over: list[str] = []
    failures: list[tuple[Family, str, str]] = []
    for family, wanted in _wanted(backend):
        missing, failed = _missing(family, request.device)
        if missing is not None:
            passed_over.append(f"{wanted or family.name}: {missing}")
            if failed:
                failures.append((family, missing, passed_over[-1]))
            continue
        for candidate in _load(family).backends:
            if wanted not in (None, candidate.name):
                continue
            reason, failed = _objection(candidate, request, named=wanted is not None)
            if reason is None:
                for failure in failures if warn else ():
                    _warn_once(request.device, *failure)
                return candidate, tuple(passed_over)
            passed_over.append(f"{candidate.name}: {reason}")
            if failed:
                failures.append((family, reason, passed_over[-1]))
    raise BackendUnavailableError(
        f"expected a backend that can run this request, got backend={backend!r}: "
        f"{'; '.join(passed_over)}. Every backend gives the same bits; pass backend='auto'"
    )


def backends_status(device: torch.device | str | None = None) -> dict[str, BackendStatus]:
    """Report every backend, usable or not.

    Args:
        device: where the operands would be; None = a CUDA device if there is one, else the CPU.

    Returns:
        status by name, faster backends first.

    Raises:
        RuntimeError: torch knows no such device.
    """
    import torch

    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    where = torch.device(device)
    found: list[BackendStatus] = []
    for family in FAMILIES:
        missing, failed = _missing(family, where)
        if missing is None:
            found += (each.status(where) for each in _load(family).backends)
        else:
            found += (_absent(family, name, missing, failed=failed) for name in _members(family))
    return {status.name: status for status in found}


def gate_verdicts(
    name: str, device: torch.device, *, force: bool = False
) -> tuple[GateVerdict, ...]:
    """What a backend's own gates say about a device; () for a backend without gates.

    Args:
        name: name of a backend.
        device: where the operands would be.
        force: whether to run gates again that ran before.
    """
    for family in FAMILIES:
        for backend in _load(family).backends:
            ask = getattr(backend, "verdicts", None)
            if backend.name == name and ask is not None:
                return tuple(ask(device, force=force))
    return ()


def names() -> tuple[str, ...]:
    """Every value of `backend=`."""
    found = ["auto"]
    for family in FAMILIES:
        found += dict.fromkeys((family.name, *_members(family)))
    return tuple(found)


def _objection(
    candidate: Backend, request: AccumulateRequest, *, named: bool
) -> tuple[str | None, bool]:
    """Say why a backend is not the one, and whether that is a failure; cheap reasons first."""
    reason = candidate.refusal(request)
    if reason is None and not named:
        reason = withheld(candidate, request.device)
    if reason is not None:
        return reason, False
    status = candidate.status(request.device)
    if not status.available:
        return status.reason, status.failed or status.missing
    # What was loaded may be other than what there is evidence for.
    return (None if named else withheld(candidate, request.device)), False


def withheld(backend: Backend, device: torch.device) -> str | None:
    """Say why automatic selection leaves a backend alone on a device; None if it does not."""
    ask = getattr(backend, "withheld", None)
    return None if ask is None else ask(device)


def _wanted(backend: str) -> tuple[tuple[Family, str | None], ...]:
    """Return the families to look into and the one backend to look for in them (None = any)."""
    if not isinstance(backend, str):
        raise TypeError(f"backend must be a str, got {backend!r} ({type(backend).__name__})")
    name = _settings.backend() if backend == "auto" else backend
    if name == "auto":
        return _ANY
    for family in FAMILIES:
        if name == family.name:
            return ((family, None),)
        if name in _members(family):
            return ((family, name),)
    source = "MMAEMU_BACKEND" if backend == "auto" else "backend"
    raise ValueError(f"{source} must be one of {', '.join(names())}; got {name!r}")


def _members(family: Family) -> tuple[str, ...]:
    loaded = _load(family)
    if loaded.missing is None:
        return tuple(backend.name for backend in loaded.backends)
    return tuple(f"{family.name}:{member}" for member in family.members) or (family.name,)


def _absent(family: Family, name: str, reason: str, *, failed: bool) -> BackendStatus:
    """The status of a backend that was not asked, since its family cannot be used."""
    backend = next((each for each in _load(family).backends if each.name == name), None)
    return BackendStatus(
        name,
        available=False,
        source=None,
        validated_here=False,
        gates=getattr(backend, "gates", ()),
        reason=reason,
        failed=failed,
        validated_on=getattr(backend, "validated_on", ()),
    )


@cache
def _load(family: Family) -> _Loaded:
    """Import a family's module once; without it, or if it fails, the family still has its names."""
    if not _is_built(family):
        return _Loaded((), NOT_BUILT)
    try:
        return _Loaded(tuple(importlib.import_module(family.module).backends()))
    except Exception as error:  # noqa: BLE001 - a broken family must not take the others along
        return _Loaded((), f"failed to load: {type(error).__name__}: {error}", failed=True)


@cache
def _is_built(family: Family) -> bool:
    spec = importlib.util.find_spec(family.module)
    # A folder without code, as left behind by an uninstallation, has a spec but no origin.
    return spec is not None and spec.origin is not None


def _missing(family: Family, device: torch.device) -> tuple[str | None, bool]:
    """Say why no backend of a family can be used for a device, and whether that is a failure."""
    if _is_built(family) and family.device not in (None, device.type):
        return f"takes tensors on {family.device}, these are on {device.type}", False
    loaded = _load(family)
    return loaded.missing, loaded.failed


def _warn_once(device: torch.device, family: Family, reason: str, text: str) -> None:
    message = f"{text}; a slower backend with the same bits computes the result"
    Caution(BackendFallbackWarning, message, (str(device), family.name, reason)).issue()

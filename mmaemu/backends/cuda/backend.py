"""The backends cuda:<module>: one for each module that holds GEMM kernels.

The first call on a device loads the module and runs its gates; later calls launch and return. A
call reads no operand and no scale on the host and waits for nothing, so CUDA graphs may capture it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Final, NamedTuple

import torch

from mmaemu import _settings
from mmaemu.backends.base import AccumulateRequest, BackendStatus, GateVerdict
from mmaemu.backends.cuda import device, fatbins, gates, launch, loader, probes
from mmaemu.backends.cuda.gates import SELF_TEST, Subject
from mmaemu.backends.cuda.specs import KERNELS, MODULES, KernelSpec, ModuleSpec, by_priority
from mmaemu.bindings.library import NativeLibraryError
from mmaemu.errors import BackendUnavailableError, UnsupportedFeatureError
from mmaemu.gemm import epilogue as epilogues
from mmaemu.instruction.models import get_preset

NONE_YET: Final = "none yet"
_PROBES: Final = next(module for module in MODULES if module.name == probes.MODULE)


class Ready(NamedTuple):
    """What came of preparing a module for a device.

    Attributes:
        status: whether it can be used.
        module: the loaded module; None if it was not loaded.
        verdicts: what the gates said.
    """

    status: BackendStatus
    module: loader.Module | None = None
    verdicts: tuple[GateVerdict, ...] = ()


class CudaBackend:
    """The kernels of one module."""

    captures: Final = True
    """CUDA graphs may capture its calls."""

    epilogue = staticmethod(epilogues.unread)
    """Makes the epilogue that `execute` takes."""

    def __init__(self, module: ModuleSpec, kernels: tuple[KernelSpec, ...]) -> None:
        """Name module and kernels; nothing is loaded yet."""
        self.module = module
        self.kernels = kernels
        self.name = f"cuda:{module.name}"
        self.gated = any(kernel.gated for kernel in kernels)
        self.gates = tuple(dict.fromkeys((*(g for k in kernels for g in k.gates), SELF_TEST)))
        self._ready: dict[tuple[object, ...], Ready] = {}

    @property
    def validated_on(self) -> tuple[str, ...]:
        """Devices that both the rows and the manifest of the fatbins have evidence for."""
        rows = [set(kernel.validated_on) for kernel in self.kernels]
        if not all(rows):
            return ()
        return tuple(n for n in fatbins.validated_on(self.module) if all(n in r for r in rows))

    def status(self, device: torch.device) -> BackendStatus:
        """Load the module and run its gates, once for a device; see `Backend.status`.

        Raises:
            UnsupportedFeatureError: this would be the first call on the device, and a CUDA graph is
                being captured.
        """
        return self._prepared(device).status

    def withheld(self, device: torch.device) -> str | None:
        """Say why automatic selection leaves the backend alone; see `Backend.withheld`."""
        if not self.gated or _settings.flag("ALLOW_GATED_KERNELS"):
            return None
        try:
            name = _place(device).device.name
        except loader.LoadError:
            return None  # `status` says so.
        known = self.validated_on
        frozen = self._is_frozen(device)
        if name in known and frozen:
            return None
        loaded = "" if frozen else ", with the frozen fatbin, which is not what is loaded"
        return (
            f"gated: not validated on {name} (validated on: "
            f"{', '.join(known) or NONE_YET}{loaded}); name it, or set "
            "MMAEMU_ALLOW_GATED_KERNELS=1, to use it where its probes pass"
        )

    def _is_frozen(self, where: torch.device) -> bool:
        """Whether evidence may be about what is loaded, or would be if it is not loaded yet."""
        ready = self._ready.get(_key(where))
        return ready is None or ready.module is None or ready.module.image.frozen

    def refusal(self, request: AccumulateRequest) -> str | None:
        """Say why no kernel of the module can run a request; see `Backend.refusal`."""
        reasons = [_refusal(kernel, request) for kernel in self.kernels]
        return None if None in reasons else "; ".join(dict.fromkeys(map(str, reasons)))

    def accumulate(self, request: AccumulateRequest, out: torch.Tensor) -> None:
        """Write the fp32 accumulators of a request; see `Backend.accumulate`.

        Outputs that a code that is not finite reaches already have the value of rule N18.

        Raises:
            BackendUnavailableError: the driver refuses the launch.
        """
        self._launch(request, out, launch.Scales())

    def accumulators(self, request: AccumulateRequest) -> torch.Tensor:
        """Return what `gemm.execute.accumulate` does, without waiting for the device."""
        out = torch.empty((request.M, request.N), dtype=torch.float32, device=request.device)
        if not request.K:
            return out.zero_()
        if out.numel():
            self.accumulate(request, out)
        return out

    def execute(
        self, request: AccumulateRequest, epilogue: epilogues.UnreadEpilogue
    ) -> torch.Tensor:
        """Return the output of a GEMM, all of it computed by the kernel.

        Args:
            request: a request that was not refused; sizes may be zero.
            epilogue: scales on the request's device, and output type.

        Returns:
            epilogue.out_dtype [M, N].

        Raises:
            BackendUnavailableError: the driver refuses the launch.
        """
        shape = (request.M, request.N)
        out = torch.empty(shape, dtype=epilogue.out_dtype, device=request.device)
        if not (out.numel() and request.K):
            out.view(torch.uint8).zero_()
            return out
        scales = launch.Scales(epilogue.scale_a, epilogue.scale_b, epilogue.scale_result)
        self._launch(request, out, scales)
        return out

    def verdicts(self, device: torch.device, *, force: bool = False) -> tuple[GateVerdict, ...]:
        """What the gates say about a device: those that ran up to the first that did not pass.

        Args:
            device: a CUDA device.
            force: run them again.
        """
        return self._prepared(device, force=force).verdicts

    def _launch(self, request: AccumulateRequest, out: torch.Tensor, scales: launch.Scales) -> None:
        ready = self._prepared(request.device)
        kernel = next(kernel for kernel in self.kernels if _refusal(kernel, request) is None)
        if ready.module is None or not ready.status.available:
            raise BackendUnavailableError(f"{self.name}: {ready.status.reason}")
        try:
            launch.run(
                ready.module, kernel, request, out, scales, stream=device.stream(request.device)
            )
        except NativeLibraryError as error:
            raise BackendUnavailableError(f"{self.name}: {error}") from error

    def _prepared(self, where: torch.device, *, force: bool = False) -> Ready:
        key = _key(where)
        ready = self._ready.get(key)
        if ready is not None and not force:
            return ready
        if device.is_capturing():
            raise UnsupportedFeatureError(
                f"the first call on {where} with {self.name} loads and tests the kernel, which a "
                "CUDA-graph capture does not allow; make one such call before the capture"
            )
        with loader.lock():
            if force or key not in self._ready:
                ready = self._prepare(where, force=force)
                # A lost context has made another generation: the key is that of the next call.
                self._ready[key] = ready
            return self._ready[key]

    def _prepare(self, where: torch.device, *, force: bool) -> Ready:
        if _settings.flag("DISABLE_CUDA"):
            return self._unusable("MMAEMU_DISABLE_CUDA is set", failed=False)
        try:
            place = _place(where)
            capability = place.device.capability
            if not self.module.covers(capability):
                major, minor = capability
                return self._unusable(
                    f"not meant for compute capability {major}.{minor}: the module is for "
                    f"{' '.join(self.module.sass_archs)}",
                    failed=False,
                )
            shared = {kernel.entry: kernel.shared_bytes for kernel in self.kernels}
            module = loader.load(self.module, place, shared)
        except loader.LoadError as error:
            return self._unusable(str(error), failed=True)
        verdicts = self._judge(module, where, force=force)
        failed = [verdict for verdict in verdicts if not verdict.passed]
        if failed:
            reason = f"{failed[0].name} did not pass: {failed[0].reason}"
            return Ready(self._status(module, reason, failed=True), module, verdicts)
        notes = (*module.passed_over, *filter(None, [self.withheld(where)]))
        reason = f"{self._meaning()} on {place.device.name}, {module.image.source}"
        reason = "; ".join((reason, *notes))
        return Ready(self._status(module, reason), module, verdicts)

    def _judge(
        self, module: loader.Module, where: torch.device, *, force: bool
    ) -> tuple[GateVerdict, ...]:
        """The gates of all kernels, up to the first that does not pass."""
        found: dict[str, GateVerdict] = {}
        for kernel in self.kernels:
            for verdict in _verdicts(kernel, module, where, force=force):
                found[verdict.name] = verdict
                if not verdict.passed:
                    return tuple(found.values())
        return tuple(found.values())

    def _meaning(self) -> str:
        models = ", ".join(dict.fromkeys(kernel.model for kernel in self.kernels))
        return f"{models} kernels ({self.module.source})"

    def _unusable(self, reason: str, *, failed: bool) -> Ready:
        return Ready(self._status(None, reason, failed=failed))

    def _status(
        self, module: loader.Module | None, reason: str, *, failed: bool | None = None
    ) -> BackendStatus:
        name = None if module is None else module.place.device.name
        known = self.validated_on
        return BackendStatus(
            self.name,
            available=failed is None,
            source=None if module is None else module.image.source,
            validated_here=name in known and module is not None and module.image.frozen,
            gates=self.gates,
            reason=reason,
            failed=bool(failed),
            validated_on=known,
        )


def _key(where: torch.device) -> tuple[object, ...]:
    """What a preparation holds for."""
    return (device.ordinal(where), loader.generation(), loader.is_forked(), _settings.state())


def _place(where: torch.device) -> loader.Place:
    return loader.place(device.ordinal(where))


def _verdicts(
    kernel: KernelSpec, module: loader.Module, where: torch.device, *, force: bool
) -> tuple[GateVerdict, ...]:
    """What the gates of a kernel say: remembered, or found out now and kept.

    The probes come first: a self-test may pass by luck where a property is missing.
    """
    asked: loader.Module | None = None
    if kernel.gates:
        try:
            asked = loader.load(_PROBES, module.place, {})
        except loader.LoadError as error:
            reason = f"the probes cannot be loaded: {error}"
            return (GateVerdict(kernel.gates[0], passed=False, reason=reason, seconds=0.0),)
    image = "" if asked is None else asked.image.sha256
    subject = Subject(kernel, module.place.identity, module.image.sha256, image)
    # What a test forces must not be hidden by what was found before.
    found = None if force or _settings.faults() else gates.remembered(subject)
    if found is None:
        found = tuple(_found_out(kernel, module, asked, where))
        gates.remember(subject, found)
    return found


def _found_out(
    kernel: KernelSpec, module: loader.Module, asked: loader.Module | None, where: torch.device
) -> Iterator[GateVerdict]:
    """Run the gates up to the first that does not pass."""
    stream = device.stream(where)

    def run(request: AccumulateRequest, out: torch.Tensor, scales: launch.Scales) -> None:
        launch.run(module, kernel, request, out, scales, stream=stream)

    if asked is not None:
        for name in kernel.gates:
            verdict = gates.probe(name, asked, where, stream)
            yield verdict
            if not verdict.passed:
                return
    yield gates.self_test(kernel, run, where)


def _refusal(kernel: KernelSpec, request: AccumulateRequest) -> str | None:
    """Say why a kernel cannot run a request; only its row is asked."""
    pair = (request.format_a, request.format_b)
    rules: tuple[Callable[[], str | None], ...] = (
        lambda: None if pair in kernel.formats else f"takes no {' x '.join(pair)}",
        lambda: _other_model(kernel, request),
        lambda: _too_long(kernel, request),
        lambda: _misaligned(kernel, request),
    )
    return next((reason for rule in rules if (reason := rule()) is not None), None)


def _other_model(kernel: KernelSpec, request: AccumulateRequest) -> str | None:
    if request.model is _model(kernel.model) or request.model == _model(kernel.model):
        return None
    return f"computes the model {kernel.model}, not {request.model.name}"


@cache
def _model(name: str) -> object:
    return get_preset(name, warn=False)


def _too_long(kernel: KernelSpec, request: AccumulateRequest) -> str | None:
    if kernel.k_max is None or kernel.k_max >= request.K:
        return None
    return f"takes K up to {kernel.k_max}, got {request.K}"


def _misaligned(kernel: KernelSpec, request: AccumulateRequest) -> str | None:
    if kernel.alignment == 1:
        return None
    for name, codes in (("a", request.a), ("b", request.b)):
        # A stride of zero stands for a matrix that is not there, as `explain` asks about.
        distance = codes.stride(0) or codes.shape[1]
        if codes.data_ptr() % kernel.alignment or distance % kernel.alignment:
            return f"needs rows of {name} that start at multiples of {kernel.alignment} bytes"
    return None


def backends() -> tuple[CudaBackend, ...]:
    """The backends of this family, fastest first, for the registry."""
    modules = {module.name: module for module in MODULES}
    return tuple(
        CudaBackend(modules[name], tuple(kernel for kernel in KERNELS if kernel.module == name))
        for name in by_priority()
    )

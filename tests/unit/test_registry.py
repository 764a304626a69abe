"""Which backend is chosen, and what is said about the others."""

from __future__ import annotations

import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from mmaemu import cautions
from mmaemu.backends import registry
from mmaemu.backends.base import AccumulateRequest, Backend, BackendStatus
from mmaemu.errors import BackendFallbackWarning, BackendUnavailableError
from mmaemu.gemm.plan import GemmPlan
from mmaemu.instruction.models import get_preset

CPU = torch.device("cpu")


class Fake:
    """A backend that is as told."""

    def __init__(
        self,
        name: str,
        *,
        reason: str = "",
        failed: bool = False,
        refuses: str | None = None,
        withheld: str | None = None,
    ) -> None:
        self.name = name
        self._status = BackendStatus(name, not reason, "fake", True, (), reason, failed)
        self._refuses = refuses
        self._withheld = withheld
        self.asked = 0

    def status(self, device: torch.device) -> BackendStatus:
        assert isinstance(device, torch.device)
        self.asked += 1
        return self._status

    def withheld(self, device: torch.device) -> str | None:
        assert isinstance(device, torch.device)
        return self._withheld

    def refusal(self, request: AccumulateRequest) -> str | None:
        assert request.K == 16
        return self._refuses

    def accumulate(self, request: AccumulateRequest, out: torch.Tensor) -> None:
        raise AssertionError(f"nothing is computed here: {request}, {out}")


@pytest.fixture
def request_() -> AccumulateRequest:
    a, b = (torch.zeros((lines, 16), dtype=torch.uint8) for lines in (2, 3))
    return AccumulateRequest(a, b, "e4m3", "e4m3", get_preset("ada", warn=False), GemmPlan(16))


@pytest.fixture
def families(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Three families whose modules the test fills: a list of backends, an exception, or nothing."""
    modules: dict[str, Any] = {}
    rows = (
        registry.Family("cuda", "fake_family_cuda", "cuda", ("v9", "v1")),
        registry.Family("cpu", "fake_family_cpu", "cpu", ("avx2", "scalar")),
        registry.Family("reference", "mmaemu.backends.reference", None),
    )
    monkeypatch.setattr(registry, "FAMILIES", rows)
    monkeypatch.setattr(registry, "_ANY", tuple((row, None) for row in rows))
    monkeypatch.setattr(cautions, "_issued", set())
    monkeypatch.delenv("MMAEMU_BACKEND", raising=False)
    for cached in (registry._load, registry._is_built):
        cached.cache_clear()

    class Modules(dict[str, Any]):
        def __setitem__(self, family: str, found: list[Backend] | Exception) -> None:
            name = f"fake_family_{family}"
            module = types.ModuleType(name)
            module.__spec__ = types.SimpleNamespace(origin="here", parent="")  # type: ignore[assignment]

            def backends() -> list[Backend]:
                if isinstance(found, Exception):
                    raise found
                return found

            module.backends = backends  # type: ignore[attr-defined]
            monkeypatch.setitem(sys.modules, name, module)

    modules = Modules()
    yield modules
    for cached in (registry._load, registry._is_built):
        cached.cache_clear()


def test_without_other_families_everything_runs_on_the_reference(
    families: dict[str, Any], request_: AccumulateRequest
) -> None:
    assert families == {}
    for name in ("auto", "reference"):
        chosen, passed_over = registry.select(request_, name)
        assert chosen.name == "reference"
    assert passed_over == ()
    assert registry.select(request_)[1] == (
        "cuda: not built into this installation",
        "cpu: not built into this installation",
    )


@pytest.mark.parametrize("name", ["cpu", "cpu:avx2", "cuda", "cuda:v9"])
def test_a_known_backend_that_is_not_here_is_unavailable_and_says_why(
    families: dict[str, Any], request_: AccumulateRequest, name: str
) -> None:
    assert families == {}
    with pytest.raises(BackendUnavailableError, match="not built into this installation") as caught:
        registry.select(request_, name)
    assert f"backend={name!r}" in str(caught.value)


@pytest.mark.parametrize("name", ["", "gpu", "cpu:", "cpu:v9", "cuda:avx2", "reference:x", "AUTO"])
def test_an_unknown_name_is_refused_and_the_known_ones_are_listed(
    families: dict[str, Any], request_: AccumulateRequest, name: str
) -> None:
    assert families == {}
    with pytest.raises(ValueError, match="backend must be one of auto, cuda, cuda:v9") as caught:
        registry.select(request_, name)
    assert f"got {name!r}" in str(caught.value)


@pytest.mark.parametrize("name", [None, 1, torch.device("cpu")])
def test_a_name_is_a_str(request_: AccumulateRequest, name: Any) -> None:
    with pytest.raises(TypeError, match="backend must be a str, got"):
        registry.select(request_, name)


def test_the_first_backend_that_can_is_chosen(
    families: dict[str, Any], request_: AccumulateRequest
) -> None:
    families["cpu"] = [
        Fake("cpu:avx512", reason="this processor has no AVX-512"),
        Fake("cpu:avx2", refuses="K is too long"),
        Fake("cpu:sse2"),
        Fake("cpu:scalar"),
    ]
    chosen, passed_over = registry.select(request_)
    assert chosen.name == "cpu:sse2"
    assert passed_over == (
        "cuda: not built into this installation",
        "cpu:avx512: this processor has no AVX-512",
        "cpu:avx2: K is too long",
    )
    assert registry.select(request_, "cpu")[0].name == "cpu:sse2"
    assert registry.select(request_, "cpu:scalar")[0].name == "cpu:scalar"
    for name, reason in (("cpu:avx512", "no AVX-512"), ("cpu:avx2", "K is too long")):
        with pytest.raises(BackendUnavailableError, match=reason):
            registry.select(request_, name)


def test_a_family_takes_tensors_of_its_own_device_only(
    families: dict[str, Any], request_: AccumulateRequest
) -> None:
    families["cuda"] = [Fake("cuda:v9")]
    assert registry.select(request_)[1][0] == "cuda: takes tensors on cuda, these are on cpu"
    with pytest.raises(BackendUnavailableError, match="takes tensors on cuda, these are on cpu"):
        registry.select(request_, "cuda:v9")
    status = registry.backends_status("cpu")["cuda:v9"]
    assert (status.available, status.failed) == (False, False)
    assert registry.backends_status("cuda")["cuda:v9"].available


def test_a_withheld_backend_is_taken_only_by_name(
    families: dict[str, Any], request_: AccumulateRequest
) -> None:
    """By design, so without a warning, and without loading it: its status is not even asked."""
    gated = Fake("cpu:avx2", withheld="gated: not validated here")
    families["cpu"] = [gated, Fake("cpu:scalar")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("auto", "cpu"):
            chosen, passed_over = registry.select(request_, name)
            assert chosen.name == "cpu:scalar"
            assert passed_over[-1] == "cpu:avx2: gated: not validated here"
        assert gated.asked == 0
        assert registry.select(request_, "cpu:avx2")[0].name == "cpu:avx2"
    assert gated.asked == 1


def test_a_backend_that_refuses_is_not_asked_for_its_status(
    families: dict[str, Any], request_: AccumulateRequest
) -> None:
    other = Fake("cpu:avx2", refuses="computes another model")
    families["cpu"] = [other, Fake("cpu:scalar")]
    assert registry.select(request_)[0].name == "cpu:scalar"
    assert other.asked == 0


def test_the_real_families_are_built_and_known_by_name() -> None:
    for family in registry.FAMILIES:
        assert registry._is_built(family)
        loaded = registry._load(family)
        assert (loaded.missing, loaded.failed) == (None, False)
        names = [backend.name for backend in loaded.backends]
        assert registry._members(family) == tuple(names)
        assert names == ([f"{family.name}:{member}" for member in family.members] or [family.name])


def test_a_failure_warns_once_and_what_is_by_design_never(
    families: dict[str, Any], request_: AccumulateRequest
) -> None:
    families["cpu"] = [
        Fake("cpu:avx2", reason="its library has another hash", failed=True),
        Fake("cpu:scalar", reason="not asked for"),
    ]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert registry.select(request_, warn=False)[0].name == "reference"
        assert caught == []
        for _ in range(3):
            assert registry.select(request_)[0].name == "reference"
    assert [each.category for each in caught] == [BackendFallbackWarning]
    assert "cpu:avx2: its library has another hash" in str(caught[0].message)
    assert caught[0].filename == __file__


def test_where_warnings_are_errors_every_selection_raises(
    families: dict[str, Any], request_: AccumulateRequest
) -> None:
    families["cpu"] = [Fake("cpu:avx2", reason="its library has another hash", failed=True)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(BackendFallbackWarning):
                registry.select(request_)


def test_a_named_backend_that_failed_raises_and_does_not_warn(
    families: dict[str, Any], request_: AccumulateRequest
) -> None:
    """Nothing falls back, so no slower backend computes anything."""
    families["cpu"] = [Fake("cpu:avx2", reason="damaged", failed=True), Fake("cpu:scalar")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(BackendUnavailableError, match="cpu:avx2: damaged"):
            registry.select(request_, "cpu:avx2")


def test_one_cause_in_several_backends_of_a_family_warns_once(
    families: dict[str, Any], request_: AccumulateRequest
) -> None:
    names = ("cpu:avx2", "cpu:scalar")
    families["cpu"] = [Fake(name, reason="damaged", failed=True) for name in names]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            assert registry.select(request_)[0].name == "reference"
    assert [str(each.message).partition(";")[0] for each in caught] == ["cpu:avx2: damaged"]


def test_a_family_that_cannot_be_loaded_does_not_take_the_others_along(
    families: dict[str, Any], request_: AccumulateRequest
) -> None:
    families["cpu"] = OSError("no such symbol")
    with pytest.warns(BackendFallbackWarning, match="cpu: failed to load: OSError: no such symbol"):
        assert registry.select(request_)[0].name == "reference"
    status = registry.backends_status("cpu")
    assert status["cpu:avx2"].failed
    assert "no such symbol" in status["cpu:avx2"].reason
    with pytest.raises(BackendUnavailableError, match="no such symbol"):
        registry.select(request_, "cpu")


def test_the_environment_says_what_auto_means(
    families: dict[str, Any], request_: AccumulateRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    families["cpu"] = [Fake("cpu:avx2"), Fake("cpu:scalar")]
    monkeypatch.setenv("MMAEMU_BACKEND", "cpu:scalar")
    assert registry.select(request_)[0].name == "cpu:scalar"
    assert registry.select(request_, "reference")[0].name == "reference"
    monkeypatch.setenv("MMAEMU_BACKEND", "fast")
    with pytest.raises(ValueError, match="MMAEMU_BACKEND must be one of auto"):
        registry.select(request_)


def test_status_lists_every_backend_faster_ones_first(families: dict[str, Any]) -> None:
    families["cpu"] = [Fake("cpu:avx2"), Fake("cpu:scalar", reason="switched off")]
    status = registry.backends_status("cpu")
    assert list(status) == ["cuda:v9", "cuda:v1", "cpu:avx2", "cpu:scalar", "reference"]
    assert all(name == each.name for name, each in status.items())
    assert [each.available for each in status.values()] == [False, False, True, False, True]
    assert all(each.reason for each in status.values() if not each.available)
    assert status["reference"].source == "torch"
    assert status["reference"].validated_here
    assert list(registry.backends_status()) == list(status)


def test_every_name_that_is_listed_can_be_asked_for(request_: AccumulateRequest) -> None:
    for name in registry.names():
        try:
            chosen, _ = registry.select(request_, name, warn=False)
        except BackendUnavailableError as error:
            assert repr(name) in str(error)  # noqa: PT017 - both outcomes are right
        else:
            assert name == "auto" or chosen.name.startswith(name)


def test_real_families_only_use_names_that_the_registry_announces() -> None:
    for family in registry.FAMILIES:
        announced = {f"{family.name}:{member}" for member in family.members} or {family.name}
        assert set(registry._members(family)) <= announced

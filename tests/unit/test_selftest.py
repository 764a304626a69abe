"""The self-test: what it runs, that every way of being wrong shows, and its command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import mmaemu
from mmaemu import api, self_test
from mmaemu.backends import registry
from mmaemu.backends.base import BackendStatus
from mmaemu.cli.main import main
from mmaemu.errors import BackendUnavailableError, DataIntegrityError
from mmaemu.formats import FORMATS
from mmaemu.gemm import execute
from mmaemu.gemm.plan import GemmPlan
from mmaemu.gemm.splitk import UNSPLIT, SplitK
from mmaemu.instruction.models import get_preset
from mmaemu.recordings import GemmRecord, MmaRecord, Record, load
from mmaemu.testing import bits, operands

CPU = torch.device("cpu")
REFERENCE = self_test._Subject("reference", CPU)
OK, FAILED, NOT_AVAILABLE = 0, 1, 3


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """No verdict goes from one test to another."""
    self_test._verdicts.clear()
    yield
    self_test._verdicts.clear()


@pytest.fixture
def few_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the quick gates."""
    names = ("vectors", "operands:uniform")
    gates = {name: self_test.BACKEND_GATES[name] for name in names}
    monkeypatch.setattr(self_test, "BACKEND_GATES", gates)


def run_gate(gate: str) -> self_test.GateResult:
    gates = self_test.BACKEND_GATES
    return self_test._judge(gate, gates[gate], REFERENCE)


def test_everything_available_passes_and_the_rest_says_why() -> None:
    results = mmaemu.selftest("cpu")
    assert {"model", "reference"} <= results.keys()
    for name, gates in results.items():
        if [gate.name for gate in gates] == [self_test.AVAILABILITY]:
            assert not gates[0].passed
            assert gates[0].reason.startswith("not available: ")
            continue
        expected = self_test.READABLE_GATES if name == "model" else self_test.BACKEND_GATES
        assert [gate.name for gate in gates] == [*expected]
        assert [(gate.name, gate.reason) for gate in gates if not gate.passed] == []
        assert all(gate.details["outputs"] > 0 and gate.seconds >= 0 for gate in gates)
        assert not any(gate.cached for gate in gates)


@pytest.mark.usefixtures("few_gates")
def test_verdicts_are_kept_unless_forced() -> None:
    first = mmaemu.selftest("cpu", kernels="reference")["reference"]
    again = mmaemu.selftest("cpu", kernels="reference")["reference"]
    forced = mmaemu.selftest("cpu", kernels=["reference"], force=True)["reference"]
    assert [gate.cached for gate in first] == [False, False]
    assert again == [replace(gate, cached=True) for gate in first]
    assert [gate.cached for gate in forced] == [False, False]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"kernels": "nonsense"}, ValueError),
        ({"kernels": ""}, ValueError),
        ({"kernels": []}, ValueError),
        ({"kernels": 4}, TypeError),
        ({"kernels": [4]}, TypeError),
        ({"device": 1.0}, TypeError),
        ({"device": True}, TypeError),
        ({"device": "meta"}, ValueError),
        ({"force": 1}, TypeError),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        mmaemu.selftest(**arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what happens without a GPU")
@pytest.mark.parametrize("device", ["cuda", 0, torch.device("cuda:1")])
def test_a_missing_device_is_said(device: object) -> None:
    with pytest.raises(BackendUnavailableError, match="no CUDA device"):
        mmaemu.selftest(device)


def test_kernels_go_by_their_module_name_too() -> None:
    known = ["model", "reference", "cuda:v4"]
    assert self_test._chosen("v4, reference", known) == ["cuda:v4", "reference"]
    assert self_test._chosen("cuda:v4", known) == ["cuda:v4"]


# The oracle


@pytest.mark.parametrize(
    ("preset", "split", "fast"),
    [
        ("ada", UNSPLIT, True),
        ("ada", SplitK(3, "pairwise"), False),
        ("hopper", SplitK(2, "contiguous"), True),
        ("hopper", SplitK(7, "contiguous"), False),
    ],
)
def test_readable_adds_exactly_where_nothing_is_rounded(
    preset: str, split: SplitK, *, fast: bool
) -> None:
    model = get_preset(preset)
    plan = GemmPlan(304, split, None if fast else model.promotion_interval)
    values = np.random.default_rng(1).integers(-1, 2, (2, 4, 304)).astype(np.float64)
    a, b = FORMATS["e4m3"].encode(values[0]), FORMATS["e4m3"].encode(values[1])
    actual = self_test.readable(a, b, ("e4m3", "e4m3"), model, plan)
    assert actual.dtype == np.float32
    assert (actual == values[0] @ values[1].T).all()


def test_readable_applies_the_nonfinite_rule() -> None:
    model, fmt = get_preset("ada"), FORMATS["e5m2"]
    inf, nan = float("inf"), float("nan")
    a = fmt.encode(np.array([[inf, 1.0], [-inf, 1.0], [inf, inf], [nan, 1.0], [1.0, 1.0]]))
    b = fmt.encode(np.array([[1.0, 1.0], [0.0, 1.0], [1.0, -1.0]]))
    got = self_test.readable(a, b, ("e5m2", "e5m2"), model, GemmPlan(2)).view(np.uint32)
    plus, minus, canonical = 0x7F800000, 0xFF800000, 0x7FFFFFFF
    expected = np.array(
        [
            [plus, canonical, plus],
            [minus, canonical, minus],
            [plus, canonical, canonical],
            [canonical, canonical, canonical],
            [0x40000000, 0x3F800000, 0],
        ],
        np.uint32,
    )
    assert (got == expected).all()


# Every way of being wrong shows


def damaged(record: Record) -> Record:
    """The record with the lowest bit of one recorded value changed."""
    if isinstance(record, MmaRecord):
        d = record.d.copy()
        d.flat[0] ^= 1
        return replace(record, d=d)
    assert record.out is not None
    out = record.out.copy()
    out.flat[0] ^= 1
    return replace(record, out=out)


@pytest.mark.parametrize("kind", [MmaRecord, GemmRecord])
def test_a_wrong_recorded_bit_fails(monkeypatch: pytest.MonkeyPatch, kind: type[Record]) -> None:
    victim = next(record for record in load() if isinstance(record, kind))
    monkeypatch.setattr(self_test, "load", lambda: [damaged(victim)])
    gates = self_test.READABLE_GATES if kind is MmaRecord else self_test.BACKEND_GATES
    result = self_test._judge("recordings", gates["recordings"], REFERENCE)
    assert not result.passed
    assert result.details["differing"] == 1
    assert victim.id in result.reason


def test_a_damaged_file_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> list[Record]:
        raise DataIntegrityError("arrays.npz: sha256 differs")

    monkeypatch.setattr(self_test, "load", refuse)
    assert main(["selftest", "--device", "cpu"]) == FAILED
    assert "arrays.npz" in capsys.readouterr().err


@pytest.mark.parametrize("gate", ["vectors", "operands:gaussian", "operands:nonfinite"])
def test_a_wrong_backend_fails(monkeypatch: pytest.MonkeyPatch, gate: str) -> None:
    right = execute.accumulate

    def wrong(*arguments: Any) -> torch.Tensor:
        out = right(*arguments)
        out.view(torch.int32)[-1, -1] ^= 1
        return out

    monkeypatch.setattr(execute, "accumulate", wrong)
    result = run_gate(gate)
    assert not result.passed
    assert "outputs differ; first: " in result.reason


def test_a_wrong_output_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    right = api.scaled_mm

    def wrong(*arguments: Any, **options: Any) -> torch.Tensor:
        out = right(*arguments, **options)
        bits(out)[0, 0] ^= 1
        return out

    monkeypatch.setattr(self_test, "scaled_mm", wrong)
    result = run_gate("outputs")
    assert not result.passed
    cases = len(self_test.OUTPUT_DTYPES) * len(self_test.SCALES) * len(self_test.OUTPUT_FAMILIES)
    assert result.details["differing"] == cases * len(self_test.PLATFORM_SPLITS)


def test_a_backend_that_raises_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise ZeroDivisionError("inside the kernel")

    monkeypatch.setattr(execute, "accumulate", crash)
    result = run_gate("vectors")
    assert not result.passed
    assert "ZeroDivisionError: inside the kernel" in result.reason


@pytest.mark.parametrize("gate", ["recordings", "vectors", "outputs", "operands:uniform"])
def test_a_backend_that_refuses_everything_does_not_pass(
    monkeypatch: pytest.MonkeyPatch, gate: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BackendUnavailableError("another model")

    monkeypatch.setattr(self_test, "select", refuse)
    monkeypatch.setattr(self_test, "scaled_mm", refuse)
    monkeypatch.setattr(api, "accumulate", refuse)
    monkeypatch.setattr(api, "scaled_mm", refuse)
    result = run_gate(gate)
    assert not result.passed
    assert result.reason == "nothing was compared: another model"
    assert result.details["refused"] > 0


def test_refused_cases_are_counted_beside_passed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    right = registry.select

    def no_hopper(request: Any, backend: str) -> Any:
        if request.model.name == "hopper":
            raise BackendUnavailableError("ada only")
        return right(request, backend)

    monkeypatch.setattr(self_test, "select", no_hopper)
    result = run_gate("vectors")
    assert result.passed
    assert result.reason.endswith(f"{len(self_test.GEMM_VECTORS) * 2} cases refused")


@pytest.mark.parametrize("vector", self_test.STEP_VECTORS)
def test_step_vectors_tell_a_changed_model_apart(vector: self_test.StepVector) -> None:
    """No vector is met by every model: at least one named model gives another result."""
    tally = self_test._Tally()
    wrong = replace(vector, expected=vector.expected + 1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(self_test, "STEP_VECTORS", (wrong,))
        self_test._step_vectors(REFERENCE, tally)
    assert tally.differing == tally.outputs == len(vector.models)


def test_families_reach_every_plan() -> None:
    seen = set()

    def spy(_: Any, codes: Any, formats: Any, model: Any, plan: GemmPlan) -> Any:
        seen.add((model.name, plan.split.scheme, plan.promotion))
        a, b = codes
        return self_test.readable(a, b, formats, model, plan)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(self_test, "_run", spy)
        result = run_gate("operands:decaying")
    assert result.passed
    assert seen == {
        (name, scheme, promotion)
        for name, schemes in (
            ("ada", ("none", "serial", "pairwise")),
            ("hopper", ("none", "contiguous")),
        )
        for scheme in schemes
        for promotion in (None, 128)
    }
    assert set(operands.FAMILIES) == {
        name.partition(":")[2] for name in self_test.BACKEND_GATES if name.startswith("operands:")
    }


# The command


@pytest.mark.usefixtures("few_gates")
def test_command_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "--device", "cpu"]) == OK
    out, err = capsys.readouterr()
    assert err == ""
    assert "\x1b" not in out
    assert "reference: passed" in out
    assert "Self-test: every backend that is available passed." in out


@pytest.mark.usefixtures("few_gates")
def test_command_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "--kernels", "reference", "--device", "cpu", "--json"]) == OK
    report = json.loads(capsys.readouterr().out)
    assert report.keys() == {"backends", "device", "exit_code", "kernels", "schema"}
    assert report["schema"] == "mmaemu-selftest/1"
    (verdict,) = report["backends"]
    assert verdict.keys() == {"backend", "gates", "reason", "verdict"}
    assert verdict["verdict"] == "passed"
    for gate in verdict["gates"]:
        assert gate.keys() == {"cached", "details", "name", "passed", "reason", "seconds"}
        assert gate["details"].keys() == {"differing", "first", "outputs", "refused"}


@pytest.mark.usefixtures("few_gates")
def test_command_fails_with_a_wrong_backend(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(execute, "accumulate", lambda _, request: torch.ones(request.M, request.N))
    assert main(["selftest", "--kernels", "reference", "--device", "cpu"]) == FAILED
    out, _ = capsys.readouterr()
    assert "reference: failed" in out
    assert "Self-test: FAILED." in out


@pytest.mark.usefixtures("few_gates")
def test_command_never_passes_what_is_not_available(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = BackendStatus(
        "cuda:v4", available=False, source=None, validated_here=False, gates=(), reason="no driver"
    )
    here = registry.backends_status(CPU)["reference"]
    monkeypatch.setattr(
        self_test, "backends_status", lambda _: {"reference": here, "cuda:v4": missing}
    )
    assert main(["selftest", "--device", "cpu"]) == OK
    assert "cuda:v4  not available: no driver" in capsys.readouterr().out
    assert main(["selftest", "--device", "cpu", "--kernels", "v4"]) == NOT_AVAILABLE
    assert "what was asked for is not available here" in capsys.readouterr().out
    assert main(["selftest", "--device", "cpu", "--kernels", "v4,reference"]) == NOT_AVAILABLE


@pytest.mark.usefixtures("few_gates")
def test_command_fails_with_a_broken_backend(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = registry.backends_status(CPU)["reference"]
    broken = replace(here, name="cpu:avx2", available=False, reason="wrong hash", failed=True)
    monkeypatch.setattr(
        self_test, "backends_status", lambda _: {"cpu:avx2": broken, "reference": here}
    )
    assert main(["selftest", "--device", "cpu"]) == FAILED
    out, _ = capsys.readouterr()
    assert "cpu:avx2: failed\n  availability  FAILED: not available: wrong hash" in out
    assert "reference: passed" in out


@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what happens without a GPU")
def test_command_on_a_missing_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selftest", "--device", "cuda"]) == NOT_AVAILABLE
    assert "no CUDA device" in capsys.readouterr().err

"""The rows of the model table, how they are found, and what an own model may be."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest

from mmaemu import cautions
from mmaemu.errors import ExperimentalPresetWarning
from mmaemu.instruction.model import FP8_PAIRS, InstructionModel
from mmaemu.instruction.models import (
    ALIASES,
    MODELS,
    REFUSED,
    architecture_of,
    get_preset,
    list_presets,
    maturity_of,
    model_for,
)

# name: L, F, Emin, fraction bits of the result, rounding, maturity
RZ, RNE = "toward zero", "nearest even"
RECORDED, STATED, UNPROVED = "recorded", "stated", "model only"
Row = tuple[int, int, "int | None", int, str, str]


def float_rows(prefix: str, block: int, fraction: int, maturity: str) -> dict[str, Row]:
    fp32, fp16 = -126 - (fraction - 18), -14 - (fraction - 18)
    return {
        f"{prefix}_fp16_fp32": (block // 2, fraction, fp32, 23, RZ, maturity),
        f"{prefix}_bf16_fp32": (block // 2, fraction, fp32, 23, RZ, maturity),
        f"{prefix}_fp16_fp16": (block // 2, fraction, fp16, 10, RNE, maturity),
        f"{prefix}_tf32_fp32": (block // 4, fraction, fp32, 23, RZ, maturity),
    }


ROWS: dict[str, Row] = {
    "ada": (16, 13, -132, 13, RZ, RECORDED),
    "ada_fp8_fp16": (16, 13, None, 10, RNE, RECORDED),
    "hopper": (32, 13, -132, 13, RZ, STATED),
    "hopper_fp8_fp16": (32, 13, None, 10, RNE, UNPROVED),
    "b200_mma_sync": (32, 25, -133, 23, RZ, RECORDED),
    "b200_mma_sync_fp16": (32, 25, -21, 10, RNE, RECORDED),
    "tcgen05_f8f6f4_fp32": (32, 25, -133, 23, RZ, UNPROVED),
    "tcgen05_f8f6f4_fp16": (32, 25, -21, 10, RNE, UNPROVED),
    "sm_120_fp8_fp32": (32, 25, -133, 23, RZ, UNPROVED),
    "sm_120_fp8_fp16": (32, 25, -21, 10, RNE, UNPROVED),
    "volta_fp16_fp32": (4, 23, -131, 23, RZ, RECORDED),
    "volta_fp16_fp16": (4, 23, -19, 10, RNE, RECORDED),
    "turing_fp16_fp32": (8, 24, -132, 23, RZ, UNPROVED),
    "turing_fp16_fp16": (8, 24, -20, 10, RNE, UNPROVED),
    **float_rows("ampere", 16, 24, RECORDED),
    **float_rows("hopper", 32, 25, RECORDED),
    **float_rows("hopper_wgmma", 32, 25, UNPROVED),
    **float_rows("blackwell", 32, 25, RECORDED),
    **float_rows("tcgen05", 32, 25, UNPROVED),
    **float_rows("sm_120", 32, 25, UNPROVED),
    "tcgen05_mxf8f6f4": (32, 25, -133, 23, RZ, UNPROVED),
    "tcgen05_mxf4": (64, 35, None, 23, RZ, UNPROVED),
    "tcgen05_nvfp4": (64, 35, None, 23, RZ, UNPROVED),
    "fp64_fma": (1, 0, None, 52, RNE, UNPROVED),
    "int8_wrap": (32, 0, None, 0, RZ, UNPROVED),
    "int8_satfinite": (32, 0, None, 0, RZ, UNPROVED),
    "cdna1_fp16": (4, 0, None, 23, RNE, UNPROVED),
    "cdna1_bf16": (2, 0, None, 23, RNE, UNPROVED),
    "cdna2_fp16": (4, 0, None, 23, RNE, UNPROVED),
    "cdna2_bf16_1k": (4, 0, None, 23, RNE, UNPROVED),
    "cdna2_bf16": (2, 0, None, 23, RNE, UNPROVED),
    "cdna3_xf32": (4, 24, None, 23, RNE, UNPROVED),
    "cdna3_fp16": (8, 24, None, 23, RNE, UNPROVED),
    "cdna3_bf16": (8, 24, None, 23, RNE, UNPROVED),
    "cdna3_fp8": (16, 24, None, 23, RNE, UNPROVED),
    "cdna_fp32_fma": (1, 0, None, 23, RNE, UNPROVED),
    "cdna_fp64_fma": (1, 0, None, 52, RNE, UNPROVED),
}


def test_every_row_is_listed() -> None:
    assert set(ROWS) == set(MODELS)
    assert list_presets() == sorted(MODELS)


@pytest.mark.parametrize("name", ROWS)
def test_parameters(name: str) -> None:
    model = MODELS[name]
    assert ROWS[name] == (
        model.dot_length,
        model.fraction_bits,
        model.min_exponent,
        model.result_fraction_bits,
        model.rounding,
        model.maturity,
    )
    assert model.name == name
    assert model.sources
    assert model.scope


@pytest.mark.parametrize("name", ["ada", "hopper", "b200_mma_sync"])
def test_published_attribute_names(name: str) -> None:
    published = {
        "ada": (16, 13, 13, -132, False, 128),
        "hopper": (32, 13, 13, -132, False, 128),
        "b200_mma_sync": (32, 25, 23, -133, True, None),
    }
    p = get_preset(name, warn=False)
    got = (p.nfma, p.frac, p.frac_out, p.min_exp, p.late_c, p.slow_chunk)
    assert got == published[name]
    assert p.inputs == FP8_PAIRS


def test_an_own_model_comes_back_as_it_is() -> None:
    model = InstructionModel("mine", 16, 13, 13)
    assert model.maturity == "custom"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert get_preset(model) is model


def test_model_only_rows_warn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cautions, "_issued", set())
    with pytest.warns(ExperimentalPresetWarning, match="tcgen05_nvfp4") as seen:
        get_preset("tcgen05_nvfp4")
    assert [warning.filename for warning in seen] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        get_preset("tcgen05_nvfp4")
        get_preset("tcgen05_mxf4", warn=False)
    with pytest.warns(ExperimentalPresetWarning, match="tcgen05_mxf4"):
        get_preset("tcgen05_mxf4")


def test_where_warnings_are_errors_every_use_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cautions, "_issued", set())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(ExperimentalPresetWarning):
                get_preset("tcgen05_nvfp4")


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_changed_model_has_no_evidence(model: InstructionModel) -> None:
    assert maturity_of(replace(model)) == model.maturity
    assert maturity_of(replace(model, name="mine")) == "custom"
    assert maturity_of(replace(model, scope="changed")) == "custom"


@pytest.mark.parametrize("name", [n for n, m in MODELS.items() if m.maturity != "model only"])
def test_rows_with_evidence_do_not_warn(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert get_preset(name) is MODELS[name]


def test_blackwell_always_warns() -> None:
    for _ in range(2):
        with pytest.warns(ExperimentalPresetWarning, match="neither B200 cuBLAS"):
            assert get_preset("blackwell") is MODELS["b200_mma_sync"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        get_preset("blackwell", warn=False)


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_aliases(alias: str, name: str) -> None:
    assert alias not in MODELS
    assert get_preset(alias, warn=False) is MODELS[name]


@pytest.mark.parametrize(
    "name", ["sm_120", "sm120", "rtx_blackwell", "rtx-blackwell", "rtx5070ti", "rtx_5070_ti"]
)
def test_refused_names_say_why(name: str) -> None:
    assert name in REFUSED
    with pytest.raises(KeyError, match="refused: no recording"):
        get_preset(name)


def test_unknown_names() -> None:
    with pytest.raises(KeyError, match="no preset 'nope'; known: ada,"):
        get_preset("nope")
    with pytest.raises(TypeError, match="a name or an InstructionModel, got int"):
        get_preset(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gpu", "architecture"),
    [
        ("V100", "volta"),
        ("Tesla V100-SXM2-16GB", "volta"),
        ("T4", "turing"),
        ("Quadro RTX 5000", "turing"),
        ("NVIDIA RTX 5000 Ada Generation", "ada"),
        ("NVIDIA A100-SXM4-80GB", "ampere"),
        ("A2", "ampere"),
        ("A30", "ampere"),
        ("A40", "ampere"),
        ("A10G", "ampere"),
        ("NVIDIA RTX A6000", "ampere"),
        ("NVIDIA GeForce RTX 3090", "ampere"),
        ("Ada", "ada"),
        ("RTX 1000 Ada", "ada"),
        ("RTX1000", "ada"),
        ("NVIDIA RTX 6000 Ada Generation", "ada"),
        ("L40S", "ada"),
        ("L4", "ada"),
        ("NVIDIA GeForce RTX 4060", "ada"),
        ("rtx4060", "ada"),
        ("H100", "hopper"),
        ("h100pcie", "hopper"),
        ("NVIDIA H100 80GB HBM3", "hopper"),
        ("H200", "hopper"),
        ("GH200", "hopper"),
        ("B200", "sm_100"),
        ("NVIDIA GB200", "sm_100"),
        ("NVIDIA GeForce RTX 5070 Ti", "sm_120"),
        ("AMD Instinct MI100", "cdna1"),
        ("MI250X", "cdna2"),
        ("MI300X", "cdna3"),
    ],
)
def test_architecture_of(gpu: str, architecture: str) -> None:
    assert architecture_of(gpu) == architecture


def test_gpu_of_no_known_architecture() -> None:
    with pytest.raises(KeyError, match="'Voodoo 2' is of no architecture"):
        architecture_of("Voodoo 2")


@pytest.mark.parametrize(
    ("gpu", "fmt", "out", "instruction", "name"),
    [
        ("A30", "bf16", "fp32", "mma.sync", "ampere_bf16_fp32"),
        ("L40S", "tf32", "fp32", "mma.sync", "ampere_tf32_fp32"),
        ("RTX 4060", "e4m3", "fp32", "mma.sync", "ada"),
        ("RTX 4060", "e5m2", "fp16", "mma.sync", "ada_fp8_fp16"),
        ("H200", "e5m2", "fp32", "wgmma", "hopper"),
        ("H200", "e5m2", "fp32", "mma.sync", "b200_mma_sync"),
        ("B200", "e4m3", "fp16", "mma.sync", "b200_mma_sync_fp16"),
        ("B200", "e4m3", "fp32", "tcgen05", "tcgen05_f8f6f4_fp32"),
        ("H100", "fp16", "fp32", "wgmma", "hopper_wgmma_fp16_fp32"),
        ("MI300X", "bf16", "fp32", "mfma", "cdna3_bf16"),
    ],
)
def test_model_for(gpu: str, fmt: str, out: str, instruction: str, name: str) -> None:
    assert model_for(gpu=gpu, fmt=fmt, out=out, instruction=instruction).name == name


def test_model_for_without_a_row() -> None:
    with pytest.raises(KeyError, match=r"no instruction model for mma\.sync e4m3 -> fp32 on A100"):
        model_for(gpu="A100", fmt="e4m3", out="fp32")


def test_model_for_is_unique() -> None:
    columns = [
        (architecture, m.instruction, pair, m.output)
        for m in MODELS.values()
        if m.scale_format is None and m.name != "cdna2_bf16"
        for architecture in m.architectures
        for pair in m.inputs
    ]
    assert len(columns) == len(set(columns))


BAD_FIELDS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"name": 3}, TypeError, "name must be a str"),
    ({"name": ""}, ValueError, "must not be empty"),
    ({"dot_length": 16.0}, TypeError, "dot_length must be an int"),
    ({"dot_length": True}, TypeError, "dot_length must be an int"),
    ({"dot_length": 0}, ValueError, r"dot_length must lie in 1\.\.4096"),
    ({"fraction_bits": -1}, ValueError, "fraction_bits must lie"),
    ({"fraction_bits": 40, "dot_length": 4096}, ValueError, "lower one of the two"),
    ({"result_fraction_bits": 24}, ValueError, r"result_fraction_bits must lie in 0\.\.23"),
    ({"result_fraction_bits": 11, "output": "fp16"}, ValueError, r"0\.\.10"),
    ({"min_exponent": 1.0}, TypeError, "min_exponent must be an int"),
    ({"promotion_interval": 0}, ValueError, "promotion_interval must lie"),
    ({"accumulator_window": -1}, ValueError, "accumulator_window must lie"),
    ({"accumulator": False}, ValueError, "accumulator must be one of 'aligned', 'late'"),
    ({"maturity": "validated"}, ValueError, "maturity must be one of"),
    ({"output": "bf16"}, ValueError, "output must be one of"),
    ({"kind": "magic"}, ValueError, "kind must be one of"),
    ({"rounding": "up"}, ValueError, "rounding must be one of"),
    ({"overflow": "trap"}, ValueError, "overflow must be one of"),
    ({"operand_format": "fp17"}, ValueError, "operand_format must be one of"),
    ({"inputs": ()}, TypeError, "inputs must be a tuple"),
    ({"inputs": ("e4m3", "e4m3")}, TypeError, "inputs holds pairs"),
    ({"inputs": (("e4m3", "e9m9"),)}, ValueError, "'e9m9' is no format"),
    ({"inputs": (("int8", "int8"),)}, ValueError, "go together"),
    ({"output": "int32", "result_fraction_bits": 0}, ValueError, "go together"),
    ({"inputs": (("fp64", "fp64"),)}, ValueError, "fp64 goes with kind 'fma'"),
    ({"kind": "group sums"}, ValueError, "takes e2m1 and e2m3 only"),
    ({"kind": "fma"}, ValueError, "'fma' takes dot_length 1"),
    ({"kind": "product tree", "dot_length": 6}, ValueError, "power of two"),
    ({"kind": "two-stage", "accumulator": "late"}, ValueError, "means nothing to kind 'two-stage'"),
    ({"accumulator_window": 3}, ValueError, "it belongs to 'two-stage'"),
    ({"overflow": "clamp"}, ValueError, "it belongs to 'integer'"),
    ({"kind": "exact sum"}, ValueError, "nearest even with all 23 fraction bits"),
    ({"kind": "fma", "dot_length": 1, "result_fraction_bits": 23}, ValueError, "nearest even"),
    ({"groups": ((0, 2),)}, ValueError, "every residue"),
    ({"groups": ((0, 1), (2,))}, ValueError, "of equal size"),
    ({"groups": ((0,), (1,)), "dot_length": 15}, ValueError, "multiple of the 2 residues"),
    ({"scale_format": "ue8m0"}, ValueError, "go together"),
    (
        {
            "kind": "group sums",
            "inputs": (("e2m3", "e2m3"),),
            "dot_length": 64,
            "fraction_bits": 40,
        },
        ValueError,
        "lower one of the two",
    ),
    ({"scale_format": "fp32", "scale_block": 32}, ValueError, "scale_format must be one of"),
    ({"scale_format": "ue8m0", "scale_block": 32}, ValueError, "multiple of scale_block"),
]


@pytest.mark.parametrize(("fields", "error", "message"), BAD_FIELDS)
def test_bad_own_models(fields: dict[str, Any], error: type[Exception], message: str) -> None:
    base: dict[str, Any] = {
        "name": "mine",
        "dot_length": 16,
        "fraction_bits": 13,
        "result_fraction_bits": 13,
    }
    with pytest.raises(error, match=message):
        InstructionModel(**{**base, **fields})


def test_models_are_values() -> None:
    ada = MODELS["ada"]
    assert replace(ada) == ada
    assert hash(replace(ada)) == hash(ada)
    with pytest.raises(AttributeError):
        ada.dot_length = 32  # type: ignore[misc]

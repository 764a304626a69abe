from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import mmaemu

pytestmark = pytest.mark.t0

# The names of the published 0.1.0, in its order.
PUBLISHED = [
    "__version__",
    *("scaled_mm", "accumulate", "explain", "CallPlan"),
    *("resolve_splitk", "SplitK", "SplitDecision"),
    *("get_profile", "list_profiles", "Profile"),
    *("get_preset", "list_presets", "Preset"),
    *("backends_status", "selftest", "model", "testing", "errors"),
    *("MmaemuError", "ReferenceRejectsError", "UnsupportedFeatureError", "SplitKUnknownError"),
    *("BackendUnavailableError", "ExperimentalPresetWarning", "UnverifiedSplitWarning"),
    *("UnvalidatedEnvelopeWarning", "BackendFallbackWarning"),
]

_SCALED_MM = (
    "input mat2 scale_a scale_b bias=None scale_result=None out_dtype=None use_fast_accum=False "
    "* out=None profile=None splitk='auto' backend='auto'"
)
SIGNATURES = {
    "scaled_mm": _SCALED_MM,
    "explain": _SCALED_MM,
    "accumulate": (
        "a b * use_fast_accum profile=None splitk='auto' backend='auto' "
        "out_dtype_for_split=torch.float32"
    ),
    "resolve_splitk": (
        "M N K * a_dtype b_dtype out_dtype use_fast_accum profile=None splitk='auto' "
        "layout_std=True strict=None"
    ),
    "get_profile": "name_or_profile=None",
    "list_profiles": "",
    "get_preset": "name * warn=True",
    "list_presets": "",
    "backends_status": "device=None",
    "selftest": "device=None * kernels='all' force=False",
    "model.dot": "a b c=None * preset='ada' fmt=None scale_a=None scale_b=None",
    "model.epilogue.apply": "acc32 scale_a scale_b * out_dtype scale_result=None",
    "testing.bits": "t",
    "testing.assert_bitwise_equal": "actual expected * nan='bits' msg=''",
}
FIELDS = {
    "CallPlan": "validation profile preset preset_maturity split backend fallbacks warnings",
    "SplitDecision": "S scheme source verified table_id note",
    "SplitK": "S scheme",
    "Profile": (
        "name preset gpu_name capability sm_count cublaslt_version caller torch_version "
        "workspace_bytes align splitk_table rejects maturity splitk_maturity"
    ),
}
BASES = {
    "ReferenceRejectsError": RuntimeError,
    "UnsupportedFeatureError": NotImplementedError,
    "SplitKUnknownError": LookupError,
    "BackendUnavailableError": RuntimeError,
}


def find(path: str) -> object:
    value: object = mmaemu
    for name in path.split("."):
        value = getattr(value, name)
    return value


def written(function: object) -> str:
    """The parameters of a function, one word each: name or name=default, * before keywords."""
    assert callable(function)
    words, keywords = [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keywords:
            keywords = True
            words.append("*")
        has_default = parameter.default is not parameter.empty
        words.append(parameter.name + (f"={parameter.default!r}" if has_default else ""))
    return " ".join(words)


def test_public_names_are_the_published_ones() -> None:
    assert mmaemu.__all__ == PUBLISHED
    assert set(PUBLISHED) <= set(dir(mmaemu))
    assert [name for name in PUBLISHED if not hasattr(mmaemu, name)] == []


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(mmaemu.__file__).read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    aliases = [
        alias for node in blocks[0].body if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    assert sorted(alias.asname or "" for alias in aliases) == sorted(PUBLISHED)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'scaled_nn'"):
        _ = mmaemu.scaled_nn


@pytest.mark.parametrize("path", SIGNATURES)
def test_signatures_are_the_published_ones(path: str) -> None:
    assert written(find(path)) == SIGNATURES[path]


@pytest.mark.parametrize("name", FIELDS)
def test_attributes_are_the_published_ones(name: str) -> None:
    record = find(name)
    assert isinstance(record, type)
    assert dataclasses.is_dataclass(record)
    assert [field.name for field in dataclasses.fields(record)] == FIELDS[name].split()


def test_preset_has_the_published_attributes() -> None:
    ada = mmaemu.get_preset("ada")
    assert isinstance(ada, mmaemu.Preset)
    names = ("nfma", "frac", "frac_out", "late_c", "slow_chunk", "maturity")
    assert [getattr(ada, name) for name in names] == [16, 13, 13, False, 128, "recorded"]
    assert ada.min_exp == ada.min_exponent


@pytest.mark.parametrize("name", BASES)
def test_errors_can_be_caught_as_builtin_ones(name: str) -> None:
    error = find(name)
    assert isinstance(error, type)
    assert issubclass(error, (mmaemu.MmaemuError,))
    assert issubclass(error, BASES[name])
    assert issubclass(mmaemu.UnvalidatedEnvelopeWarning, mmaemu.UnverifiedSplitWarning)


def test_signature_follows_torch() -> None:
    """C15: the positional part of scaled_mm is the schema of the installed torch._scaled_mm."""
    schema = torch.ops.aten._scaled_mm.default._schema
    theirs = [
        (argument.name, argument.default_value if argument.has_default_value() else "required")
        for argument in schema.arguments
    ]
    parameters = inspect.signature(mmaemu.scaled_mm).parameters.values()
    ours = [
        (p.name, "required" if p.default is p.empty else p.default)
        for p in parameters
        if p.kind is p.POSITIONAL_OR_KEYWORD
    ]
    assert theirs[0] == ("self", "required")
    assert ours == [("input", "required"), *theirs[1:]]
    out_names = [a.name for a in torch.ops.aten._scaled_mm.out._schema.arguments]
    assert out_names == [*(name for name, _ in theirs), "out"]


def test_import_loads_little_and_has_no_side_effects() -> None:
    script = """
import json, sys
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
opened, before = [], set(sys.modules)
import mmaemu
names = sorted(set(sys.modules) - before)
mmaemu.list_profiles(), mmaemu.SplitK(2, "serial"), mmaemu.ReferenceRejectsError
late = [name for name in ("torch", "numpy") if name in sys.modules]
print(json.dumps({"names": names, "opened": opened, "late": late}))
"""
    command = [sys.executable, "-c", script]
    root = str(Path(mmaemu.__file__).parents[1])
    output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root)
    report = json.loads(output.stdout)
    assert [name for name in report["names"] if name.startswith("mmaemu")] == ["mmaemu"]
    assert not {"torch", "numpy", "typing"} & set(report["names"])
    assert report["late"] == []
    data = [path for path in report["opened"] if not path.endswith((".py", ".pyc"))]
    assert [path for path in data if "mmaemu" in path and not Path(path).is_dir()] == []

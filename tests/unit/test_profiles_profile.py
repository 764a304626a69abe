from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import pytest

from mmaemu.gemm.problem import GemmProblem
from mmaemu.instruction.models import MODELS, get_preset
from mmaemu.profiles.profile import Profile, RejectRule, get_profile, list_profiles
from mmaemu.profiles.resolve import resolve, resolve_splitk, split_schemes
from mmaemu.profiles.table import list_tables

MIB = 1 << 20

# As recorded: name, GPU, preset, caller, workspace, alignment.
H100 = ("NVIDIA H100 PCIe", (9, 0), 114, "hopper")
RTX4060 = ("NVIDIA GeForce RTX 4060", (8, 9), 24, "ada")
PLATFORMS: dict[str, tuple[Any, ...]] = {
    "hopper": (H100, "torch._scaled_mm", MIB, None, "validated"),
    "hopper-te": (H100, "transformer_engine", 32 * MIB, 256, "experimental"),
    "hopper-ws0": (H100, "torch._scaled_mm", 0, None, "validated"),
    "ada": (RTX4060, "torch._scaled_mm", MIB, None, "validated"),
    "ada-te": (RTX4060, "transformer_engine", 4 * MIB, 256, "experimental"),
    "ada-ws0": (RTX4060, "torch._scaled_mm", 0, None, "validated"),
}
EXPERIMENTAL = {
    "hopper-experimental": "hopper",
    "b200-mma-sync-experimental": "b200_mma_sync",
}


def test_the_list() -> None:
    assert list_profiles() == [*PLATFORMS, *EXPERIMENTAL]


@pytest.mark.parametrize("name", PLATFORMS)
def test_a_recorded_platform(name: str) -> None:
    (gpu, capability, sm_count, preset), caller, workspace, align, maturity = PLATFORMS[name]
    profile = get_profile(name)
    assert profile.name == name
    assert (profile.gpu_name, profile.capability, profile.sm_count) == (gpu, capability, sm_count)
    assert (profile.preset, profile.preset_name) == (preset, preset)
    assert (profile.caller, profile.workspace_bytes, profile.align) == (caller, workspace, align)
    assert (profile.cublaslt_version, profile.torch_version) == ("12.8.3.14", "2.7.1+cu128")
    assert profile.splitk_table in list_tables()
    assert (profile.maturity, profile.splitk_maturity) == ("validated", maturity)
    assert gpu in profile.description
    assert str(workspace) in profile.description


@pytest.mark.parametrize("name", EXPERIMENTAL)
def test_an_experimental_platform(name: str) -> None:
    profile = get_profile(name)
    assert profile.preset == EXPERIMENTAL[name]
    assert (profile.gpu_name, profile.splitk_table, profile.workspace_bytes) == (None, None, None)
    assert (profile.maturity, profile.splitk_maturity) == ("experimental", "none")
    assert profile.rejects[0][:3] == ("e4m3", "e4m3", "float8_e5m2")
    assert "no recorded platform" in profile.description
    assert not profile.matches_device()


@pytest.mark.parametrize("name", list_profiles())
def test_every_preset_exists(name: str) -> None:
    profile = get_profile(name)
    assert isinstance(profile.preset, str)
    assert get_preset(profile.preset, warn=False).name in MODELS


@pytest.mark.parametrize("name", PLATFORMS)
def test_e4m3_times_e4m3_to_e5m2_is_rejected(name: str) -> None:
    profile = get_profile(name)
    rule = profile.rejection("e4m3", "e4m3", "float8_e5m2")
    assert rule is not None
    assert "float8_e5m2" in rule.message
    for a, b, out in (
        ("e4m3", "e5m2", "float8_e5m2"),
        ("e5m2", "e4m3", "float8_e5m2"),
        ("e4m3", "e4m3", "float8_e4m3fn"),
        ("e4m3", "e4m3", "bfloat16"),
    ):
        assert profile.rejection(a, b, out) is None


def test_the_first_matching_rule_decides() -> None:
    rules = (
        RejectRule(None, "e5m2", None, "b"),
        RejectRule(None, None, "float16", "out"),
        RejectRule(None, None, None, "anything"),
    )
    profile = dataclasses.replace(get_profile("ada"), rejects=rules)
    found = [
        profile.rejection(*types)
        for types in (
            ("e4m3", "e5m2", "float16"),
            ("e4m3", "e4m3", "float16"),
            ("e4m3", "e4m3", "float32"),
        )
    ]
    assert found == list(rules)


def test_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MMAEMU_PROFILE", raising=False)
    assert get_profile().name == "hopper"
    monkeypatch.setenv("MMAEMU_PROFILE", "ada-te")
    assert get_profile().name == "ada-te"
    assert get_profile(None).name == "ada-te"
    assert get_profile("ada").name == "ada"


def test_a_profile_stands_for_itself() -> None:
    mine = dataclasses.replace(get_profile("ada"), name="mine")
    assert get_profile(mine) is mine


def test_an_unknown_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyError, match=r"no profile 'nope'; there are hopper, .*record_heuristics"):
        get_profile("nope")
    monkeypatch.setenv("MMAEMU_PROFILE", "nope")
    with pytest.raises(KeyError, match="from MMAEMU_PROFILE"):
        get_profile()


@pytest.mark.parametrize("junk", [1, ("ada",), b"ada", get_preset("ada")])
def test_neither_name_nor_profile(junk: Any) -> None:
    with pytest.raises(TypeError, match="profile must be a name, a Profile or None"):
        get_profile(junk)


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("name", "", ValueError),
        ("name", 3, TypeError),
        ("preset", 3, TypeError),
        ("gpu_name", 3, TypeError),
        ("capability", "9.0", TypeError),
        ("capability", (9,), TypeError),
        ("capability", (9.0, 0), TypeError),
        ("sm_count", 24.0, TypeError),
        ("sm_count", True, TypeError),
        ("sm_count", 0, ValueError),
        ("cublaslt_version", 12.8, TypeError),
        ("caller", "jax", ValueError),
        ("torch_version", 2, TypeError),
        ("workspace_bytes", -1, ValueError),
        ("workspace_bytes", 1e6, TypeError),
        ("align", 0, ValueError),
        ("splitk_table", 5, TypeError),
        ("rejects", [], TypeError),
        ("rejects", ("e5m2",), TypeError),
        ("maturity", "good", ValueError),
        ("splitk_maturity", None, ValueError),
    ],
)
def test_a_wrong_field(field: str, value: object, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"Profile.{field}"):
        dataclasses.replace(get_profile("ada"), **{field: value})  # type: ignore[arg-type]


def test_a_profile_of_ones_own_resolves() -> None:
    mine = dataclasses.replace(get_profile("ada"), name="mine", workspace_bytes=4 * MIB)
    types: dict[str, Any] = {
        "a_dtype": "e4m3",
        "b_dtype": "e4m3",
        "out_dtype": "bfloat16",
        "use_fast_accum": False,
    }
    assert resolve_splitk(64, 64, 16384, profile=mine, **types).S == 10
    assert resolve_splitk(64, 64, 16384, profile="ada", **types).S == 12


def test_schemes_follow_the_table_else_the_model() -> None:
    assert split_schemes(get_profile("hopper")) == ("contiguous",)
    assert set(split_schemes(get_profile("ada-ws0"))) == {"serial", "pairwise"}
    assert split_schemes(get_profile("hopper-experimental")) == ("contiguous",)
    assert split_schemes(get_profile("b200-mma-sync-experimental")) == ()
    model = dataclasses.replace(get_preset("ada"), name="mine")
    mine = dataclasses.replace(get_profile("hopper-experimental"), preset=model)
    assert mine.preset_name == "mine"
    assert split_schemes(mine) == ("serial", "pairwise", "contiguous")
    problem = GemmProblem(64, 64, 4096, "e4m3", "e4m3", "float32", use_fast_accum=True)
    assert resolve(problem, mine, (4, "pairwise")).decision.split.scheme == "pairwise"


def test_profiles_work_without_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from mmaemu.profiles import envelope, heuristics, profile, resolve, table\n"
        "decision = resolve.resolve_splitk(64, 64, 16384, a_dtype='e4m3', b_dtype='e4m3',\n"
        "    out_dtype='bfloat16', use_fast_accum=False, profile='ada')\n"
        "assert decision.S == 12, decision\n"
        "assert heuristics.platform_mismatch(profile.get_profile('ada'))\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_profile_is_a_hashable_value() -> None:
    again = dataclasses.replace(get_profile("ada"))
    assert again == get_profile("ada")
    assert hash(again) == hash(get_profile("ada"))
    assert isinstance(again, Profile)

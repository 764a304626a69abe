"""The resolution of splitk: every step, every error, and the order between them (rule N21)."""

from __future__ import annotations

import dataclasses
import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from mmaemu import cautions
from mmaemu.bindings.algoconfig import AlgoConfig
from mmaemu.errors import (
    SplitKUnknownError,
    UnsupportedFeatureError,
    UnvalidatedEnvelopeWarning,
    UnverifiedSplitWarning,
)
from mmaemu.formats import FORMATS
from mmaemu.gemm.problem import GemmProblem
from mmaemu.gemm.splitk import SplitK
from mmaemu.instruction.models import get_preset
from mmaemu.profiles import resolve as module
from mmaemu.profiles.profile import get_profile, list_profiles
from mmaemu.profiles.resolve import SplitDecision, resolve, resolve_splitk
from mmaemu.profiles.table import open_table

RECORDED = [name for name in list_profiles() if not name.endswith("experimental")]
H100 = "h100pcie/cublaslt-12.8.3.14"
RTX4060 = "rtx4060/cublaslt-12.8.3.14"


@pytest.fixture(autouse=True)
def no_gpu_and_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here may depend on a GPU, on settings, or on warnings that were issued before."""
    monkeypatch.setenv("MMAEMU_DISABLE_CUDA", "1")
    for name in ("MMAEMU_SPLITK_STRICT", "MMAEMU_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cautions, "_issued", set())


def ask(
    M: Any = 64,
    N: Any = 64,
    K: Any = 16384,
    *,
    a: object = "e4m3",
    b: object = "e4m3",
    out: object = "bfloat16",
    fast: Any = False,
    **options: Any,
) -> SplitDecision:
    return resolve_splitk(
        M, N, K, a_dtype=a, b_dtype=b, out_dtype=out, use_fast_accum=fast, **options
    )


# --- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize("junk", [True, False, 16.9, 16.0, "16", None, torch.tensor(16)])
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("splitk", ["auto", 1])
def test_a_size_that_is_no_int(junk: Any, place: int, splitk: object) -> None:
    sizes = [64, 64, 64]
    sizes[place] = junk
    with pytest.raises(TypeError, match=f"{'MNK'[place]} must be an int"):
        ask(*sizes, splitk=splitk)


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("splitk", ["auto", 1, (2, "contiguous")])
def test_a_negative_size(place: int, splitk: object) -> None:
    sizes = [64, 64, 64]
    sizes[place] = -1
    with pytest.raises(ValueError, match=f"{'MNK'[place]} must be at least 0, got -1"):
        ask(*sizes, splitk=splitk)


@pytest.mark.parametrize(
    "names",
    [
        ("e4m3", "e5m2", "bf16"),
        ("float8_e4m3fn", "float8_e5m2", "bfloat16"),
        ("torch.float8_e4m3fn", "torch.float8_e5m2", "torch.bfloat16"),
        (torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16),
    ],
)
def test_names_of_types(names: tuple[object, object, object]) -> None:
    a, b, out = names
    decision = ask(16, 64, 8192, a=a, b=b, out=out, profile="ada")
    assert (decision.S, decision.source) == (8, "table")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fnuz, "bf16", "nope", 3, None])
@pytest.mark.parametrize("argument", ["a_dtype", "b_dtype"])
def test_an_operand_type_that_is_not_fp8(argument: str, dtype: object) -> None:
    with pytest.raises(TypeError, match=f"{argument} must be one of e4m3, float8_e4m3fn"):
        ask(**{argument[0]: dtype})


@pytest.mark.parametrize("dtype", [torch.float64, torch.int8, "fp64", "int8", 3])
def test_an_output_type_that_does_not_exist(dtype: object) -> None:
    with pytest.raises(TypeError, match="out_dtype must be one of e4m3, float8_e4m3fn"):
        ask(out=dtype)


def test_the_output_type_is_that_of_a_unless_given() -> None:
    assert ask(out=None, profile="ada") == ask(out="float8_e4m3fn", profile="ada")


def test_names_are_those_of_the_formats() -> None:
    assert {
        short: FORMATS[short].torch_name for short in module._TORCH_NAMES
    } == module._TORCH_NAMES


@pytest.mark.parametrize("argument", ["layout_std", "strict", "use_fast_accum"])
def test_a_flag_that_is_no_bool(argument: str) -> None:
    name = "fast" if argument == "use_fast_accum" else argument
    with pytest.raises(TypeError, match=f"{argument} must be a bool, got 1"):
        ask(**{name: 1})


def test_an_unknown_profile() -> None:
    with pytest.raises(KeyError, match="no profile 'nope'"):
        ask(profile="nope")


def test_a_missing_table() -> None:
    profile = dataclasses.replace(get_profile("ada"), splitk_table="nowhere/nothing")
    with pytest.raises(LookupError, match="no split-K table 'nowhere/nothing'"):
        ask(profile=profile)


def test_the_default_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask().table_id == H100
    monkeypatch.setenv("MMAEMU_PROFILE", "ada")
    assert ask().table_id == RTX4060
    assert ask(profile="hopper").table_id == H100


# --- step 1: explicit -----------------------------------------------------------------------------


@pytest.mark.parametrize("profile", list_profiles())
@pytest.mark.parametrize("splitk", [1, (1, "none"), SplitK(1, "none")])
def test_explicitly_unsplit(profile: str, splitk: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decision = ask(splitk=splitk, profile=profile)
    assert decision == SplitDecision(1, "none", "explicit", True, None, "given by the caller")
    assert decision.split == SplitK(1, "none")


@pytest.mark.parametrize("splitk", [(4, "pairwise"), SplitK(4, "pairwise")])
def test_explicitly_split(splitk: object) -> None:
    decision = ask(splitk=splitk, profile="ada")
    assert (decision.S, decision.scheme, decision.source) == (4, "pairwise", "explicit")
    assert decision.verified
    assert decision.table_id is None
    assert decision.split == SplitK(4, "pairwise")


def test_explicit_comes_before_everything() -> None:
    assert ask(splitk=(2, "contiguous"), profile="hopper-ws0").source == "explicit"
    assert ask(0, splitk=(2, "contiguous")).source == "explicit"


@pytest.mark.parametrize(("profile", "forms"), [("hopper", "contiguous"), ("ada", "pairwise")])
@pytest.mark.parametrize("splitk", [2, 24, 0, -1])
def test_a_bare_int(profile: str, forms: str, splitk: int) -> None:
    with pytest.raises(ValueError, match=rf"splitk={splitk} does not say.*splitk=1 or.*{forms}"):
        ask(splitk=splitk, profile=profile)


@pytest.mark.parametrize(
    "junk",
    [True, False, None, 1.0, "none", "1", [2, "contiguous"], (2,), (2, "contiguous", 0), {2: "x"}],
)
def test_junk(junk: object) -> None:
    with pytest.raises(TypeError, match="splitk must be 'auto', 1, a SplitK or a tuple"):
        ask(splitk=junk)


@pytest.mark.parametrize("pair", [(True, "none"), (2.0, "contiguous"), ("2", "serial"), (2, None)])
def test_a_pair_of_wrong_types(pair: object) -> None:
    with pytest.raises(TypeError, match="SplitK"):
        ask(splitk=pair)


@pytest.mark.parametrize("pair", [(0, "none"), (1, "contiguous"), (2, "none"), (2, "tree")])
def test_an_impossible_pair(pair: object) -> None:
    with pytest.raises(ValueError, match="S"):
        ask(splitk=pair)


@pytest.mark.parametrize(
    ("profile", "scheme"),
    [
        *(("hopper", scheme) for scheme in ("serial", "pairwise")),
        *((name, "serial") for name in ("hopper-te", "hopper-ws0", "hopper-experimental")),
        *((name, "contiguous") for name in ("ada", "ada-te", "ada-ws0")),
    ],
)
def test_a_scheme_of_another_platform(profile: str, scheme: str) -> None:
    with pytest.raises(
        ValueError, match=f"'{scheme}' belongs to another platform than .*{profile}"
    ):
        ask(splitk=(2, scheme), profile=profile)


@pytest.mark.parametrize("scheme", ["serial", "pairwise", "contiguous"])
def test_a_platform_whose_split_is_unknown(scheme: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match="b200-mma-sync-experimental"):
        ask(splitk=(2, scheme), profile="b200-mma-sync-experimental")


# --- step 2: never split --------------------------------------------------------------------------


@pytest.mark.parametrize(("profile", "table"), [("hopper-ws0", H100), ("ada-ws0", RTX4060)])
@pytest.mark.parametrize("shape", [(64, 64, 16384), (3, 7, 11), (0, 1, 1), (1, 1, 1 << 40)])
def test_no_workspace(profile: str, table: str, shape: tuple[int, int, int]) -> None:
    decision = ask(*shape, profile=profile, layout_std=False, strict=True)
    assert (decision.S, decision.scheme, decision.source) == (1, "none", "workspace0")
    assert decision.table_id == table
    assert decision.verified


@pytest.mark.parametrize("name", [H100, RTX4060])
def test_no_recorded_query_without_a_workspace_was_split(name: str) -> None:
    splits = [configs[:, 0].max() for ws, _, _, configs in open_table(name) if ws == 0]
    assert len(splits) == 28
    assert max(splits) == 1


@pytest.mark.parametrize("profile", [name for name in list_profiles() if "ws0" not in name])
@pytest.mark.parametrize("place", range(3))
def test_a_zero_size(profile: str, place: int) -> None:
    sizes = [64, 64, 64]
    sizes[place] = 0
    decision = ask(*sizes, profile=profile, layout_std=False, strict=True)
    assert (decision.S, decision.scheme, decision.source) == (1, "none", "zero-size")
    assert decision.verified


# --- step 3: the table ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "S", "scheme", "config"),
    [
        ({"profile": "ada"}, 12, "pairwise", "numSplitsK 12, customOption 1, algo 35, tile 13"),
        ({"profile": "ada", "M": 16}, 16, "pairwise", "numSplitsK 16"),
        ({"M": 64, "N": 5760, "K": 1920}, 1, "none", "numSplitsK 1, customOption 0, algo 66"),
        ({"M": 64, "N": 5760, "K": 1920, "profile": "ada"}, 1, "none", "algo 35, tile 15"),
        # numSplitsK 1 is unsplit whatever customOption says.
        ({"M": 16, "N": 1920, "K": 1920}, 1, "none", "numSplitsK 1, customOption 1"),
    ],
)
def test_recorded(query: dict[str, Any], S: int, scheme: str, config: str) -> None:
    decision = ask(**query, strict=True)
    assert (decision.S, decision.scheme, decision.source) == (S, scheme, "table")
    assert decision.table_id == (RTX4060 if query.get("profile") == "ada" else H100)
    assert decision.verified
    assert config in decision.note


@pytest.mark.filterwarnings("ignore::mmaemu.errors.UnverifiedSplitWarning")
def test_every_part_of_the_key_counts() -> None:
    """The same shape, one part of the key changed at a time."""
    notes = [
        ask(16, 64, 8192, profile="ada").note,
        ask(16, 64, 8192, profile="ada-te").note,
        ask(16, 64, 8192, profile="ada", fast=True).note,
        ask(16, 64, 8192, profile="ada", out="float16").note,
        ask(16, 64, 4096, profile="ada").note,
        ask(16, 64, 8192, profile="hopper").note,
    ]
    assert len(set(notes)) == len(notes)


@pytest.mark.parametrize("name", RECORDED)
def test_what_is_recorded_comes_from_the_table(name: str) -> None:
    """A sample of every setting, through the whole resolution."""
    profile = get_profile(name)
    assert profile.splitk_table is not None
    table = open_table(profile.splitk_table)
    random = np.random.default_rng(1)
    source = "table" if profile.workspace_bytes else "workspace0"
    for workspace, setting, shapes, configs in table:
        if workspace == profile.workspace_bytes:
            for index in random.integers(0, len(shapes), 10).tolist():
                M, N, K = shapes[index].tolist()
                decision = resolve(GemmProblem(M, N, K, *setting), profile).decision
                assert decision.split == table.split_of(AlgoConfig(*configs[index].tolist()))
                assert decision.source == source


def test_a_transposed_problem_has_a_key_of_its_own() -> None:
    problem = GemmProblem(16, 64, 8192, "e4m3", "e5m2", "bfloat16", use_fast_accum=False)
    swapped = problem.transposed()
    assert resolve(problem, get_profile("ada")).decision.source == "table"
    with pytest.raises(SplitKUnknownError, match=r"M=64 N=16 K=8192 \(e5m2xe4m3"):
        resolve(swapped, get_profile("ada"))


def test_another_layout_is_not_the_recorded_one() -> None:
    with pytest.raises(SplitKUnknownError, match="not laid out as in the recorded queries"):
        ask(profile="ada", layout_std=False)
    decision = ask(64, 5760, 1920, layout_std=False)
    assert (decision.S, decision.source) == (1, "envelope")


def test_a_ragged_k_is_remarked_where_it_was_not_replayed() -> None:
    ragged = ask(1, 16, 16, out="float32", profile="ada")
    assert ragged.S == 3
    assert ragged.verified
    assert "ragged K" in ragged.note
    assert "ragged K" not in ask(profile="ada").note
    assert "ragged K" not in ask(K=4112, splitk=(2, "contiguous")).note
    assert "ragged K" in ask(K=4112, splitk=(2, "serial"), profile="ada").note


# --- step 5: the envelope -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("K", "bound"),
    [
        # A grid point, between two, the first and the last.
        (1024, 15360),
        (1025, 15360),
        (5744, 235342),
        (5745, 256642),
        (8193, 268004),
        (4194304, 268004),
    ],
)
def test_the_h100_bound_is_that_of_the_next_grid_point(K: int, bound: int) -> None:
    decision = ask(bound + 1, 1, K)
    assert (decision.S, decision.scheme, decision.source) == (1, "none", "envelope")
    assert decision.table_id == H100
    assert decision.verified
    assert f"M*N = {bound + 1} is above the bound {bound}" in decision.note
    with pytest.raises(SplitKUnknownError, match=rf"M\*N = {bound} is not above the bound {bound}"):
        ask(bound, 1, K)


@pytest.mark.parametrize("K", [1, 1023, 4194305])
def test_a_k_outside_the_h100_grid(K: int) -> None:
    with pytest.raises(SplitKUnknownError, match=rf"K = {K} is outside 1024\.\.4194304"):
        ask(1 << 20, 1 << 20, K)


@pytest.mark.parametrize(
    ("query", "largest"),
    [
        ({"out": "bfloat16"}, 131072),
        ({"out": "bfloat16", "fast": True}, 100352),
        ({"out": "float32"}, 106496),
        ({"out": "bfloat16", "b": "e5m2"}, 131072),
        ({"out": "bfloat16", "profile": "ada-te"}, 983040),
    ],
)
@pytest.mark.parametrize("K", [1, 16, 77777, 1 << 40])
def test_the_rtx_4060_bound_holds_at_any_k(query: dict[str, Any], largest: int, K: int) -> None:
    query = {"profile": "ada", **query}
    decision = ask(2 * largest + 1, 1, K, **query)
    assert (decision.S, decision.source, decision.table_id) == (1, "envelope", RTX4060)
    assert decision.verified
    with pytest.raises(SplitKUnknownError, match="is not above the bound"):
        ask(2 * largest, 1, K, **query)


def test_a_setting_that_never_split_infers_one_everywhere() -> None:
    """Recorded for a workspace of 0; seen through the envelope, not through step 2."""
    problem = GemmProblem(1, 1, 3, "e4m3", "e4m3", "bfloat16", use_fast_accum=False)
    envelope = open_table(RTX4060).envelope
    assert envelope.infer(problem, 0) == (
        "inferred: M*N = 1 is above the bound 0 for every K",
        None,
    )


@pytest.mark.parametrize("profile", ["ada", "ada-te", "hopper", "hopper-te"])
@pytest.mark.parametrize(
    ("a", "b", "out"), [("e4m3", "e4m3", "float8_e5m2"), ("e5m2", "e5m2", "bfloat16")]
)
def test_a_setting_without_rows_answers_nothing(profile: str, a: str, b: str, out: str) -> None:
    with pytest.raises(SplitKUnknownError, match=f"no bound for workspace .* {a}x{b} -> {out}"):
        ask(1 << 20, 1 << 20, 4096, a=a, b=b, out=out, profile=profile)


@pytest.mark.parametrize(("name", "workspace"), [("ada", 2 << 20), ("hopper", 4 << 20)])
def test_a_workspace_without_bounds_answers_nothing(name: str, workspace: int) -> None:
    profile = dataclasses.replace(get_profile(name), workspace_bytes=workspace)
    with pytest.raises(SplitKUnknownError, match=f"no bound for workspace {workspace} B"):
        ask(1 << 20, 1 << 20, 4096, profile=profile)


def test_the_envelope_of_32_mib_warns() -> None:
    with pytest.warns(UnvalidatedEnvelopeWarning, match="1 of 77518") as caught:
        decision = ask(8192, 8192, 4000, profile="hopper-te")
    assert (decision.S, decision.source, decision.verified) == (1, "envelope", False)
    assert len(caught) == 1
    assert issubclass(UnvalidatedEnvelopeWarning, UnverifiedSplitWarning)


@pytest.mark.parametrize("profile", ["hopper", "ada", "ada-te"])
def test_other_envelopes_do_not_warn(profile: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decision = ask(8192, 8192, 4000, profile=profile)
    assert (decision.source, decision.verified) == ("envelope", True)


def test_strict_refuses_to_infer(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SplitKUnknownError, match="strict mode"):
        ask(8192, 8192, 4000, strict=True)
    monkeypatch.setenv("MMAEMU_SPLITK_STRICT", "1")
    with pytest.raises(SplitKUnknownError, match="strict mode"):
        ask(8192, 8192, 4000)
    assert ask(8192, 8192, 4000, strict=False).source == "envelope"
    assert ask(64, 5760, 1920).source == "table"
    monkeypatch.setenv("MMAEMU_SPLITK_STRICT", "maybe")
    with pytest.raises(ValueError, match="MMAEMU_SPLITK_STRICT"):
        ask(64, 5760, 1920)


# --- step 6: unknown ------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["hopper-experimental", "b200-mma-sync-experimental"])
def test_auto_without_a_table(profile: str) -> None:
    with pytest.raises(SplitKUnknownError) as caught:
        ask(profile=profile)
    message = str(caught.value)
    assert message.count("the profile has no table") == 2
    assert "live query" in message
    assert "(1) pass splitk=1" in message


def test_unknown_names_every_reason_and_three_ways_out() -> None:
    with pytest.raises(SplitKUnknownError) as caught:
        ask(17, 64, 1040)
    message = str(caught.value)
    for part in (
        "'hopper' splits M=17 N=64 K=1040 (e4m3xe4m3 -> bfloat16, slow accumulation, "
        "workspace 1048576 B)",
        f"table {H100}: the shape was not recorded",
        "live query: MMAEMU_DISABLE_CUDA is set",
        "envelope: M*N = 1088 is not above the bound 15360 for K <= 1040",
        "(1) pass splitk=1 or splitk=(S, 'contiguous')",
        "(2) run on the profile's GPU",
        "NVIDIA H100 PCIe",
        "(3) record the shape there with tools/record/record_heuristics.py",
    ):
        assert part in message
    assert isinstance(caught.value, LookupError)
    with pytest.raises(SplitKUnknownError, match=re.escape("(S, 'serial') or splitk=(S, 'pairw")):
        ask(17, 64, 1040, profile="ada")


def test_a_profile_without_a_workspace() -> None:
    profile = dataclasses.replace(get_profile("ada"), workspace_bytes=None)
    with pytest.raises(SplitKUnknownError, match=r"table: the profile states no workspace.*envel"):
        ask(profile=profile)


def test_resolution_is_constant_in_the_sizes() -> None:
    assert ask(65537, 65536, 65536).source == "envelope"
    assert ask(1 << 70, 1 << 70, 1 << 70, profile="ada").source == "envelope"


# --- evidence and warnings ------------------------------------------------------------------------


@pytest.mark.parametrize("profile", RECORDED)
def test_verified_means_replayed(profile: str) -> None:
    """Every recorded setting with every S and scheme of the platform."""
    platform = get_profile(profile)
    assert platform.splitk_table is not None
    table = open_table(platform.splitk_table)
    for setting in table.settings:
        problem = GemmProblem(64, 64, 1 << 20, *setting)
        for scheme in table.schemes:
            for S in range(2, 34):
                decision = resolve(problem, platform, (S, scheme)).decision
                assert decision.verified == ((setting, SplitK(S, scheme)) in table.replayed)


@pytest.mark.filterwarnings("ignore::mmaemu.errors.UnverifiedSplitWarning")
def test_what_was_replayed() -> None:
    assert len(open_table(H100).replayed) == 444
    assert len(open_table(RTX4060).replayed) == 520
    assert ask(splitk=(24, "contiguous"), fast=True).verified
    assert not ask(splitk=(17, "contiguous"), fast=True).verified
    assert ask(splitk=(32, "serial"), fast=True, out="float32", profile="ada").verified
    assert not ask(splitk=(32, "serial"), fast=False, out="float32", profile="ada").verified
    assert not ask(splitk=(32, "serial"), fast=True, out="float16", profile="ada").verified
    assert not ask(splitk=(4, "contiguous"), profile="hopper-experimental").verified


def test_an_unverified_combination_warns_once() -> None:
    with pytest.warns(UnverifiedSplitWarning, match="never replayed on hardware") as caught:
        [ask(M, splitk=(17, "contiguous")) for M in (64, 65)]
    assert len(caught) == 1
    for other in (
        {"splitk": (19, "contiguous")},
        {"splitk": (17, "contiguous"), "fast": True},
        {"splitk": (17, "contiguous"), "out": "float16"},
        {"splitk": (17, "contiguous"), "b": "e5m2"},
    ):
        with pytest.warns(UnverifiedSplitWarning) as caught:
            ask(**other)
        assert len(caught) == 1


def test_a_warning_points_to_the_caller() -> None:
    with pytest.warns(UnverifiedSplitWarning) as caught:
        ask(splitk=(17, "contiguous"))
    assert caught[0].filename == __file__


def test_where_warnings_are_errors_every_call_raises() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(UnverifiedSplitWarning):
                ask(splitk=(17, "contiguous"))


def test_only_the_model_of_a_tables_platform_is_verified() -> None:
    """A split was replayed with the arithmetic of the GPU that the table is of."""
    ada, own = get_profile("ada"), get_preset("ada")
    changed = dataclasses.replace(own, name="mine", fraction_bits=20)
    for preset, verified in (
        ("ada_fp8_fp32", True),
        (dataclasses.replace(own), True),
        (changed, False),
        ("hopper", False),
    ):
        profile = dataclasses.replace(ada, name="mine", preset=preset)
        for size in (64, 1024):  # One is split, the other is not.
            problem = GemmProblem(size, size, size, "e4m3", "e4m3", "bfloat16", False)
            resolution = resolve(problem, profile)
            assert resolution.decision.source == "table"
            assert resolution.decision.verified == verified
            assert (resolution.caution is None) == verified
            assert verified or "another instruction model" in str(resolution.caution)
        assert resolve(problem, profile, (2, "pairwise")).decision.verified == verified
        assert resolve(problem, profile, 1).decision.verified
    elsewhere = dataclasses.replace(ada, name="mine", preset=changed, workspace_bytes=0)
    assert resolve(problem, elsewhere).caution is None


@pytest.mark.parametrize("profile", ["hopper-te", "ada-te"])
def test_split_calls_of_transformer_engine_warn(profile: str) -> None:
    shape = (64, 64, 16384)
    with pytest.warns(UnverifiedSplitWarning, match="experimental") as caught:
        decision = ask(*shape, profile=profile)
    assert (decision.source, decision.verified) == ("table", True)
    assert decision.S > 1
    assert len(caught) == 1


@pytest.mark.parametrize("profile", ["hopper-te", "ada-te"])
def test_unsplit_recorded_calls_of_transformer_engine_do_not_warn(profile: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ask(1024, 8192, 2048, profile=profile).S == 1


def test_resolving_does_not_warn_by_itself() -> None:
    """What explain needs: the caution is data until it is issued, and stays data afterwards."""
    problem = GemmProblem(64, 64, 16384, "e4m3", "e4m3", "bfloat16", use_fast_accum=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resolution = resolve(problem, get_profile("hopper"), (17, "contiguous"))
    assert resolution.caution is not None
    assert resolution.caution.category is UnverifiedSplitWarning
    with pytest.warns(UnverifiedSplitWarning):
        resolution.caution.issue()
    assert resolve(problem, get_profile("hopper"), (17, "contiguous")) == resolution

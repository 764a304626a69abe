"""Which split a call has: the resolution of splitk, first answer wins (rule N21).

`resolve` is a function of its arguments, the settings and, for a live query only, of the GPU of
this process. It gives a decision and a caution; `resolve_splitk` also issues the caution.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from mmaemu import _settings
from mmaemu.cautions import Caution
from mmaemu.errors import (
    SplitKUnknownError,
    UnsupportedFeatureError,
    UnvalidatedEnvelopeWarning,
    UnverifiedSplitWarning,
)
from mmaemu.gemm.problem import GemmProblem
from mmaemu.gemm.splitk import SCHEMES, UNSPLIT, Scheme, SplitK
from mmaemu.profiles.envelope import HeldOutTest, Setting
from mmaemu.profiles.profile import PROFILES, Profile, get_profile
from mmaemu.profiles.table import DecisionTable, open_table

Source = Literal["explicit", "workspace0", "zero-size", "table", "live-query", "envelope"]

_RECORDED_SOURCES: Final = ("table", "live-query", "envelope")
_ALL_SCHEMES: Final = tuple(scheme for scheme in SCHEMES if scheme != "none")
# How slices are put together is a property of a platform's kernels. A profile without a table
# knows it only from the instruction model of those kernels; a model of one's own can have any.
_SCHEMES_OF_MODEL: Final = {
    "hopper": ("contiguous",),
    "ada": ("serial", "pairwise"),
    "b200_mma_sync": (),
    "blackwell": (),
}


@dataclass(frozen=True, slots=True)
class SplitDecision:
    """How K of a call is split.

    Attributes:
        S: number of slices.
        scheme: how they are put together, see `SplitK`.
        source: which step of the resolution answered.
        verified: False if S > 1 and this (accumulation mode, S, scheme, output and operand types)
            was never replayed on hardware, if S = 1 was inferred from an envelope that failed its
            held-out test, or if the table was recorded with another instruction model.
        table_id: the table that the answer rests on; None if it rests on none.
        note: the evidence, for people.
    """

    S: int
    scheme: Scheme
    source: Source
    verified: bool
    table_id: str | None
    note: str

    @property
    def split(self) -> SplitK:
        """The decision as a `SplitK`."""
        return SplitK(self.S, self.scheme)


class Resolution(NamedTuple):
    """A decision with the caution it deserves."""

    decision: SplitDecision
    caution: Caution | None


class _Query(NamedTuple):
    problem: GemmProblem
    profile: Profile
    table: DecisionTable | None
    explicit: SplitK | None
    standard_layout: bool
    strict: bool


class _Answer(NamedTuple):
    split: SplitK
    source: Source
    note: str
    rests_on_table: bool = False
    failed: HeldOutTest | None = None


def _explicit(query: _Query) -> _Answer | None:
    if query.explicit is None:
        return None
    if query.explicit.S > 1 and not _schemes(query.profile, query.table):
        raise UnsupportedFeatureError(
            f"nothing is known about split-K on profile {query.profile.name!r}, so its bits cannot "
            "be given; pass splitk=1"
        )
    check_scheme(query.explicit, query.profile)
    return _Answer(query.explicit, "explicit", "given by the caller")


def _never_split(query: _Query) -> _Answer | None:
    if query.profile.workspace_bytes == 0:
        return _Answer(
            UNSPLIT,
            "workspace0",
            "cuBLASLt does not split K without a workspace",
            rests_on_table=query.table is not None,
        )
    if query.problem.is_empty:
        return _Answer(UNSPLIT, "zero-size", "a size is zero, so nothing is accumulated")
    return None


def _recorded(query: _Query) -> _Answer | str:
    table, workspace = query.table, query.profile.workspace_bytes
    if table is None or workspace is None:
        return f"table: {_nothing_recorded(table)}"
    if not query.standard_layout:
        return "table: the operands are not laid out as in the recorded queries"
    config = table.find(query.problem, workspace)
    if isinstance(config, str):
        return f"table {table.table_id}: {config}"
    note = (
        f"recorded: numSplitsK {config.num_splits_k}, customOption {config.custom_option}, "
        f"algo {config.algo}, tile {config.tile}"
    )
    return _Answer(table.split_of(config), "table", note, rests_on_table=True)


def _live(query: _Query) -> _Answer | str:
    if query.table is None:
        return "live query: no table says which scheme a customOption means"
    if not query.standard_layout:
        return "live query: the operands are not laid out as the query assumes"
    # Imported here because few calls come this far, and the first resolve is meant to be quick.
    from mmaemu.profiles.heuristics import live_decision

    config = live_decision(query.problem, query.profile)
    if isinstance(config, str):
        return f"live query: {config}"
    note = (
        f"cuBLASLt {query.profile.cublaslt_version} on this GPU: numSplitsK {config.num_splits_k}, "
        f"customOption {config.custom_option}, algo {config.algo}, tile {config.tile}"
    )
    return _Answer(query.table.split_of(config), "live-query", note)


def _inferred(query: _Query) -> _Answer | str:
    table, workspace = query.table, query.profile.workspace_bytes
    if table is None or workspace is None:
        return f"envelope: {_nothing_recorded(table)}"
    if query.strict:
        return "envelope: strict mode (MMAEMU_SPLITK_STRICT or strict=True) refuses to infer"
    inference = table.envelope.infer(query.problem, workspace)
    if isinstance(inference, str):
        return f"envelope: {inference}"
    return _Answer(
        UNSPLIT, "envelope", inference.note, rests_on_table=True, failed=inference.failed
    )


def _nothing_recorded(table: DecisionTable | None) -> str:
    return "the profile " + ("has no table" if table is None else "states no workspace")


RESOLVERS: Final[tuple[Callable[[_Query], _Answer | str | None], ...]] = (
    _explicit,
    _never_split,
    _recorded,
    _live,
    _inferred,
)
"""The steps in order. A step answers, says why it cannot (str), or does not apply (None)."""


def resolve(
    problem: GemmProblem,
    profile: Profile,
    splitk: object = "auto",
    *,
    layout_std: bool = True,
    strict: bool | None = None,
) -> Resolution:
    """Resolve the split of a problem; O(1) in its sizes.

    Args:
        problem: the GEMM; for a column-major output the transposed problem.
        profile: the reference platform.
        splitk: "auto", 1, a SplitK, or a tuple (S, scheme).
        layout_std: whether both operands are contiguous (a padded leading dimension or an offset
            may differ from the recorded descriptor).
        strict: refuse answers from the envelope; None = as MMAEMU_SPLITK_STRICT says.

    Raises:
        TypeError: splitk is none of the forms, or a flag is no bool.
        ValueError: splitk is a bare int above 1 or below 1, an impossible pair, or a scheme of
            another platform.
        UnsupportedFeatureError: an explicit split on a platform whose split-K is unknown.
        SplitKUnknownError: nothing says how the platform splits this call.
        LookupError: the profile names a table that does not exist.
        DataIntegrityError: a data file is damaged.
    """
    strict = _settings.flag("SPLITK_STRICT") if strict is None else strict
    for name, value in (("layout_std", layout_std), ("strict", strict)):
        if type(value) is not bool:
            raise TypeError(f"{name} must be a bool, got {value!r}")
    table = None if profile.splitk_table is None else open_table(profile.splitk_table)
    explicit = _parse(splitk, profile, table)
    query = _Query(problem, profile, table, explicit, layout_std, strict)
    reasons = []
    for step in RESOLVERS:
        answer = step(query)
        if isinstance(answer, _Answer):
            return _resolution(query, answer)
        if answer is not None:
            reasons.append(answer)
    raise SplitKUnknownError(_unknown(query, reasons))


def resolve_splitk(
    M: int,
    N: int,
    K: int,
    *,
    a_dtype: object,
    b_dtype: object,
    out_dtype: object,
    use_fast_accum: bool,
    profile: str | Profile | None = None,
    splitk: object = "auto",
    layout_std: bool = True,
    strict: bool | None = None,
) -> SplitDecision:
    """How the profile's platform splits K in torch._scaled_mm(a [M, K], b [K, N]).

    Args:
        M: rows of a and of the output.
        N: columns of b and of the output.
        K: length of the dot products.
        a_dtype: float8_e4m3fn or float8_e5m2: a torch dtype, its name, or "e4m3" / "e5m2".
        b_dtype: likewise.
        out_dtype: float32, bfloat16, float16, float8_e4m3fn or float8_e5m2: a torch dtype or a
            name; None means a_dtype.
        use_fast_accum: one chain over all of K (True) or a promotion every 128 (False).
        profile: a profile, its name, or None for the default.
        splitk: "auto", 1, a SplitK, or a tuple (S, scheme).
        layout_std: whether both operands are contiguous.
        strict: refuse answers from the envelope; None = as MMAEMU_SPLITK_STRICT says.

    For a column-major out= pass the transposed problem: N, M, K with the formats swapped.

    Returns:
        The decision. Decisions without hardware evidence warn, once per combination.

    Raises:
        TypeError: a size is no int (a bool counts as none), a type or flag is none of the above.
        ValueError: a size is negative, or splitk is a bare int above 1, impossible, or of another
            platform.
        KeyError: no profile has this name.
        UnsupportedFeatureError: an explicit split on a platform whose split-K is unknown.
        SplitKUnknownError: nothing says how the platform splits this call.
    """
    problem = GemmProblem(
        M,
        N,
        K,
        _format("a_dtype", a_dtype, _OPERANDS),
        _format("b_dtype", b_dtype, _OPERANDS),
        _format("out_dtype", a_dtype if out_dtype is None else out_dtype, _OUTPUTS),
        use_fast_accum,
    )
    resolution = resolve(
        problem, get_profile(profile), splitk, layout_std=layout_std, strict=strict
    )
    if resolution.caution is not None:
        resolution.caution.issue()
    return resolution.decision


def split_schemes(profile: Profile) -> tuple[str, ...]:
    """Schemes that an explicit split can have on a profile's platform; empty = split-K unknown."""
    table = None if profile.splitk_table is None else open_table(profile.splitk_table)
    return _schemes(profile, table)


def _schemes(profile: Profile, table: DecisionTable | None) -> tuple[str, ...]:
    if table is not None:
        return table.schemes
    return _SCHEMES_OF_MODEL.get(profile.preset_name, _ALL_SCHEMES)


def _parse(splitk: object, profile: Profile, table: DecisionTable | None) -> SplitK | None:
    if isinstance(splitk, SplitK):
        return splitk
    if isinstance(splitk, str) and splitk == "auto":
        return None
    if type(splitk) is int:
        if splitk == 1:
            return UNSPLIT
        schemes = _schemes(profile, table) or _ALL_SCHEMES
        forms = " or ".join(f"({max(splitk, 2)}, {scheme!r})" for scheme in schemes)
        raise ValueError(
            f"splitk={splitk} does not say how slices are put together; pass splitk=1 or {forms}"
        )
    if isinstance(splitk, tuple) and len(splitk) == len(SplitK.__slots__):
        return SplitK(*splitk)
    raise TypeError(
        f"splitk must be 'auto', 1, a SplitK or a tuple (S, scheme); got {splitk!r} "
        f"({type(splitk).__name__})"
    )


def check_scheme(split: SplitK, profile: Profile) -> None:
    """Check that a profile's platform can put slices together in this way, as far as is known.

    Raises:
        ValueError: the scheme belongs to another platform.
    """
    schemes = split_schemes(profile)
    if split.S > 1 and schemes and split.scheme not in schemes:
        raise ValueError(
            f"splitk scheme {split.scheme!r} belongs to another platform than profile "
            f"{profile.name!r}, which has {' and '.join(map(repr, schemes))}"
        )


def _resolution(query: _Query, answer: _Answer) -> Resolution:
    profile, table, split = query.profile, query.table, answer.split
    setting = Setting.of(query.problem)
    asks_table = split.S > 1 or answer.source in _RECORDED_SOURCES
    own_model = not asks_table or table is None or _is_own_model(profile, table)
    replayed = split.S == 1 or (table is not None and (setting, split) in table.replayed)
    decision = SplitDecision(
        S=split.S,
        scheme=split.scheme,
        source=answer.source,
        verified=replayed and own_model and answer.failed is None,
        table_id=table.table_id if table is not None and answer.rests_on_table else None,
        note=answer.note + _ragged_remark(query, split),
    )
    doubts = []
    if answer.failed is not None:
        doubts.append(
            f"the envelope of this workspace failed its held-out test ({answer.failed.split} of "
            f"{answer.failed.tested} shapes above the bound were split), so the GPU may split this "
            "call too"
        )
    if not own_model:
        doubts.append(
            f"its table was recorded with another instruction model than {profile.preset_name!r}"
        )
    if not replayed:
        doubts.append("this combination was never replayed on hardware")
    if split.S > 1 and profile.splitk_maturity == "experimental":
        doubts.append("split calls of this profile are experimental")
    if not doubts:
        return Resolution(decision, None)
    message = (
        f"split-K {split.S} {split.scheme} of profile {profile.name!r} ({setting}, source "
        f"{answer.source}): {'; '.join(doubts)}. Pass splitk explicitly if you know the split."
    )
    category = UnverifiedSplitWarning if answer.failed is None else UnvalidatedEnvelopeWarning
    return Resolution(decision, Caution(category, message, (profile.name, setting, split)))


def _is_own_model(profile: Profile, table: DecisionTable) -> bool:
    """Whether a profile's instruction model is that of the platform of a table."""
    # A table from elsewhere states no model: whoever recorded it had the profile's.
    recorded = (each.preset for each in PROFILES.values() if each.splitk_table == table.table_id)
    preset = next(recorded, profile.preset)
    if preset == profile.preset:
        return True
    # Imported here because few profiles have a model of their own.
    from mmaemu.instruction.models import get_preset

    return get_preset(preset, warn=False) == get_preset(profile.preset, warn=False)


def _ragged_remark(query: _Query, split: SplitK) -> str:
    if split.S == 1 or query.table is None or query.table.ragged_K_verified:
        return ""
    from mmaemu.gemm.plan import PARTITIONS

    ragged = query.problem.K % (PARTITIONS[split.scheme].tile_width or 1)
    return "; no split call with a ragged K was replayed on this platform" if ragged else ""


def _unknown(query: _Query, reasons: list[str]) -> str:
    problem, profile = query.problem, query.profile
    schemes = _schemes(profile, query.table)
    forms = " or ".join(["splitk=1", *(f"splitk=(S, {scheme!r})" for scheme in schemes)])
    where = f"the profile's GPU ({profile.description})" if profile.gpu_name else "a recorded GPU"
    return (
        f"nothing says how profile {profile.name!r} splits M={problem.M} N={problem.N} "
        f"K={problem.K} ({Setting.of(problem)}, workspace {profile.workspace_bytes} B): "
        f"{'; '.join(reasons)}. Ways out: (1) pass {forms} if you "
        f"know the split; (2) run on {where}, where cuBLASLt itself is asked; "
        "(3) record the shape there with tools/record/record_heuristics.py"
    )


# The names are those of formats.FORMATS, which a unit test holds equal to these; importing it
# would take as long as everything else that a first resolve needs.
_TORCH_NAMES: Final = {
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
}
_OPERANDS: Final = {
    name: short
    for short, torch_name in _TORCH_NAMES.items()
    if torch_name.startswith("float8")
    for name in (short, torch_name, f"torch.{torch_name}")
}
_OUTPUTS: Final = {
    name: torch_name
    for short, torch_name in _TORCH_NAMES.items()
    for name in (short, torch_name, f"torch.{torch_name}")
}


def _format(argument: str, dtype: object, known: dict[str, str]) -> str:
    # A torch dtype is recognised by its name, so that torch need not be imported.
    is_name = isinstance(dtype, str) or type(dtype).__module__ == "torch"
    found = known.get(str(dtype)) if is_name else None
    if found is None:
        expected = ", ".join(known)
        raise TypeError(
            f"{argument} must be one of {expected} (a torch dtype or a name); got {dtype!r}"
        )
    return found

"""Profile: a reference platform as data, and the profiles that come with the package (rule N21).

A profile names the GPU, the library, the caller with its workspace, the instruction model, the
table of recorded split-K decisions, and what the platform rejects. A user may make their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

from mmaemu import _settings
from mmaemu.gemm.problem import check_name, check_size

if TYPE_CHECKING:
    from mmaemu.instruction.model import InstructionModel

Caller = Literal["torch._scaled_mm", "transformer_engine"]
Maturity = Literal["validated", "experimental"]
SplitMaturity = Literal["validated", "experimental", "none"]


class RejectRule(NamedTuple):
    """A combination of types that the platform rejects although the general rules allow it.

    Attributes:
        fmt_a: format name of mat1, such as "e4m3"; None = any.
        fmt_b: format name of mat2; None = any.
        out_dtype: torch's name of the output type, such as "float8_e5m2"; None = any.
        message: why, for the error message.
    """

    fmt_a: str | None
    fmt_b: str | None
    out_dtype: str | None
    message: str

    def matches(self, fmt_a: str, fmt_b: str, out_dtype: str) -> bool:
        """Whether the rule rejects these types."""
        return (
            self.fmt_a in {None, fmt_a}
            and self.fmt_b in {None, fmt_b}
            and self.out_dtype in {None, out_dtype}
        )


@dataclass(frozen=True)
class Profile:
    """A reference platform.

    Attributes:
        name: name of the profile.
        preset: name of the instruction model, or an InstructionModel.
        gpu_name: name of the GPU as the driver gives it; None = no recorded platform.
        capability: compute capability.
        sm_count: number of SMs, which cuBLASLt's heuristic depends on.
        cublaslt_version: version of cuBLASLt, such as "12.8.3.14".
        caller: who calls cuBLASLt.
        torch_version: version of torch that called it.
        workspace_bytes: workspace that the caller allows; 0 = cuBLASLt never splits K.
        align: alignment in bytes that the caller states; None = it states none.
        splitk_table: id of a table of recorded split-K decisions, or the absolute path of a folder
            in the form of mmaemu/profiles/data; None = nothing is recorded.
        rejects: what the platform rejects beyond the general rules, in order.
        maturity: "validated" = outputs were replayed against recordings of this platform.
        splitk_maturity: "experimental" = split calls warn; "none" = nothing is recorded.

    Raises:
        TypeError: a field has another type.
        ValueError: a field has a value outside of what is listed, or a size is negative.
    """

    name: str
    preset: str | InstructionModel
    gpu_name: str | None
    capability: tuple[int, int] | None
    sm_count: int | None
    cublaslt_version: str | None
    caller: Caller
    torch_version: str | None
    workspace_bytes: int | None
    align: int | None
    splitk_table: str | None
    rejects: tuple[RejectRule, ...]
    maturity: Maturity
    splitk_maturity: SplitMaturity

    def __post_init__(self) -> None:
        check_name("Profile.name", self.name)
        _check_preset(self.preset)
        for field in ("gpu_name", "cublaslt_version", "torch_version", "splitk_table"):
            value = getattr(self, field)
            if value is not None:
                check_name(f"Profile.{field}", value)
        for field, least in (("sm_count", 1), ("workspace_bytes", 0), ("align", 1)):
            value = getattr(self, field)
            if value is not None:
                check_size(f"Profile.{field}", value, least=least)
        for field, allowed in (
            ("caller", get_args(Caller)),
            ("maturity", get_args(Maturity)),
            ("splitk_maturity", get_args(SplitMaturity)),
        ):
            value = getattr(self, field)
            if value not in allowed:
                expected = ", ".join(map(repr, allowed))
                raise ValueError(f"Profile.{field} must be one of {expected}; got {value!r}")
        if self.capability is not None and not _is_pair_of_ints(self.capability):
            raise TypeError(f"Profile.capability must be two ints, got {self.capability!r}")
        if not isinstance(self.rejects, tuple) or not all(
            isinstance(rule, RejectRule) for rule in self.rejects
        ):
            raise TypeError(f"Profile.rejects must be a tuple of RejectRule, got {self.rejects!r}")

    @property
    def description(self) -> str:
        """The platform in one sentence."""
        if self.gpu_name is None:
            return f"no recorded platform; instruction model {self.preset_name}"
        workspace = "an unknown" if self.workspace_bytes is None else f"a {self.workspace_bytes} B"
        return (
            f"{self.caller} on {self.gpu_name} ({self.sm_count} SMs, cuBLASLt "
            f"{self.cublaslt_version}, torch {self.torch_version}) with {workspace} workspace"
        )

    def rejection(self, fmt_a: str, fmt_b: str, out_dtype: str) -> RejectRule | None:
        """The first rule that rejects these types.

        Args:
            fmt_a: format name of mat1.
            fmt_b: format name of mat2.
            out_dtype: torch's name of the output type.

        Returns:
            The rule, or None if the platform takes the types.
        """
        return next((rule for rule in self.rejects if rule.matches(fmt_a, fmt_b, out_dtype)), None)

    def matches_device(self) -> bool:
        """Whether the GPU of this process is the profile's own platform; see `heuristics`."""
        from mmaemu.profiles.heuristics import platform_mismatch

        return platform_mismatch(self) is None

    @property
    def preset_name(self) -> str:
        """Name of the instruction model."""
        return self.preset if isinstance(self.preset, str) else self.preset.name


def _check_preset(preset: object) -> None:
    if isinstance(preset, str):
        return
    from mmaemu.instruction.model import InstructionModel

    if not isinstance(preset, InstructionModel):
        raise TypeError(
            f"Profile.preset must be the name of an instruction model or an InstructionModel, "
            f"got {preset!r}"
        )


def _is_pair_of_ints(value: object) -> bool:
    return isinstance(value, tuple) and [type(part) for part in value] == [int, int]


def _rejects_e5m2_output(gpu: str) -> tuple[RejectRule, ...]:
    message = (
        f"cuBLASLt 12.8.3 on {gpu} rejects e4m3 x e4m3 with a float8_e5m2 output; "
        "mixed e4m3 and e5m2 operands can have one"
    )
    return (RejectRule("e4m3", "e4m3", "float8_e5m2", message),)


_MIB: Final = 1 << 20

# torch 2.7.1 allows cuBLASLt 1 MiB and states no alignment.
_H100: Final = Profile(
    name="hopper",
    preset="hopper",
    gpu_name="NVIDIA H100 PCIe",
    capability=(9, 0),
    sm_count=114,
    cublaslt_version="12.8.3.14",
    caller="torch._scaled_mm",
    torch_version="2.7.1+cu128",
    workspace_bytes=_MIB,
    align=None,
    splitk_table="h100pcie/cublaslt-12.8.3.14",
    rejects=_rejects_e5m2_output("the H100 (sm_90)"),
    maturity="validated",
    splitk_maturity="validated",
)
_RTX4060: Final = replace(
    _H100,
    name="ada",
    preset="ada",
    gpu_name="NVIDIA GeForce RTX 4060",
    capability=(8, 9),
    sm_count=24,
    splitk_table="rtx4060/cublaslt-12.8.3.14",
    rejects=_rejects_e5m2_output("the RTX 4060 (sm_89)"),
)


def _transformer_engine(profile: Profile, workspace_bytes: int) -> Profile:
    """The platform as Transformer Engine 2.3 calls it; its calls were recorded, not replayed."""
    return replace(
        profile,
        name=f"{profile.name}-te",
        caller="transformer_engine",
        workspace_bytes=workspace_bytes,
        align=256,
        splitk_maturity="experimental",
    )


def _without_workspace(profile: Profile) -> Profile:
    """The platform with a workspace of 0, which is how a caller switches split-K off."""
    return replace(profile, name=f"{profile.name}-ws0", workspace_bytes=0)


def _experimental(name: str, preset: str, capability: tuple[int, int]) -> Profile:
    """An instruction model without a recorded platform."""
    return Profile(
        name=name,
        preset=preset,
        gpu_name=None,
        capability=capability,
        sm_count=None,
        cublaslt_version=None,
        caller="torch._scaled_mm",
        torch_version=None,
        workspace_bytes=None,
        align=None,
        splitk_table=None,
        rejects=_rejects_e5m2_output("both recorded GPUs"),
        maturity="experimental",
        splitk_maturity="none",
    )


PROFILES: Final = {
    profile.name: profile
    for profile in (
        _H100,
        _transformer_engine(_H100, 32 * _MIB),
        _without_workspace(_H100),
        _RTX4060,
        _transformer_engine(_RTX4060, 4 * _MIB),
        _without_workspace(_RTX4060),
        _experimental("hopper-experimental", "hopper", (9, 0)),
        _experimental("b200-mma-sync-experimental", "b200_mma_sync", (10, 0)),
    )
}
"""The profiles of the package by name."""


def get_profile(name_or_profile: str | Profile | None = None) -> Profile:
    """A profile by name.

    Args:
        name_or_profile: a name of `list_profiles`, a Profile (returned as it is), or None for the
            one that MMAEMU_PROFILE names, "hopper" if it is not set.

    Raises:
        TypeError: neither a name nor a Profile.
        KeyError: no profile has this name.
    """
    if isinstance(name_or_profile, Profile):
        return name_or_profile
    name = _settings.profile() if name_or_profile is None else name_or_profile
    if not isinstance(name, str):
        raise TypeError(f"profile must be a name, a Profile or None, got {name!r}")
    try:
        return PROFILES[name]
    except KeyError:
        source = " (from MMAEMU_PROFILE)" if name_or_profile is None else ""
        raise KeyError(
            f"no profile {name!r}{source}; there are {', '.join(PROFILES)}. For another GPU make a "
            "Profile; tools/record/record_heuristics.py records its split-K decisions"
        ) from None


def list_profiles() -> list[str]:
    """Names of the profiles of the package, the default first."""
    return list(PROFILES)

"""`mmaemu profiles`: the reference platforms whose GEMMs can be emulated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from mmaemu.cli import output
from mmaemu.cli.command import Argument, Command, Example, Report, UsageError

if TYPE_CHECKING:
    from mmaemu.profiles.profile import Profile


@dataclass(frozen=True)
class Platform:
    """One profile, as JSON values; the fields are those of `mmaemu.Profile`."""

    name: str
    preset: str
    gpu_name: str | None
    capability: list[int] | None
    sm_count: int | None
    cublaslt_version: str | None
    caller: str | None
    torch_version: str | None
    workspace_bytes: int | None
    align: int | None
    splitk_table: str | None
    rejects: list[str]
    maturity: str
    splitk_maturity: str


@dataclass(frozen=True)
class ProfilesReport(Report):
    """The profiles.

    Attributes:
        default: the profile used where a call names none.
        profiles: all of them, or the one asked for.
        detailed: show every field.
    """

    schema: ClassVar[str] = "mmaemu-profiles/1"

    default: str
    profiles: list[Platform]
    detailed: bool

    def render(self) -> str:
        """Return a table, or every field of the profile asked for."""
        if self.detailed:
            return "\n\n".join(f"{profile.name}\n{_details(profile)}" for profile in self.profiles)
        rows = [
            (
                f"{profile.name} *" if profile.name == self.default else profile.name,
                profile.gpu_name or "none",
                profile.preset,
                profile.caller or "none",
                workspace(profile.workspace_bytes),
                profile.maturity,
                profile.splitk_maturity,
            )
            for profile in self.profiles
        ]
        header = ("profile", "GPU", "model", "caller", "workspace", "maturity", "split-K")
        return (
            output.table(header, rows)
            + "\n\n* used where a call names no profile (environment variable MMAEMU_PROFILE)."
            + "\nEvery field of one profile: mmaemu profiles NAME"
        )


def workspace(size: int | None) -> str:
    """Return a workspace size for people, in MiB where it is a whole number of them."""
    if size is None:
        return "none"
    return f"{size >> 20} MiB" if size and size % (1 << 20) == 0 else f"{size} B"


def _details(profile: Platform) -> str:
    def shown(value: object) -> str:
        return "none" if value is None else str(value)

    capability = profile.capability
    return output.fields(
        [
            ("GPU", f"{profile.gpu_name or 'none'}, {shown(profile.sm_count)} SMs"),
            ("capability", "none" if capability is None else ".".join(map(str, capability))),
            ("instruction model", profile.preset),
            ("cuBLASLt", shown(profile.cublaslt_version)),
            ("caller", f"{shown(profile.caller)} (torch {shown(profile.torch_version)})"),
            ("workspace", workspace(profile.workspace_bytes)),
            ("alignment", f"{shown(profile.align)} B"),
            ("split-K table", shown(profile.splitk_table)),
            ("rejects", "; ".join(profile.rejects) or "nothing beyond the general rules"),
            ("maturity", profile.maturity),
            ("split-K maturity", profile.splitk_maturity),
        ]
    )


def platform(profile: Profile) -> Platform:
    """Return a profile as JSON values."""
    return Platform(
        name=profile.name,
        preset=profile.preset if isinstance(profile.preset, str) else profile.preset.name,
        gpu_name=profile.gpu_name,
        capability=None if profile.capability is None else list(profile.capability),
        sm_count=profile.sm_count,
        cublaslt_version=profile.cublaslt_version,
        caller=profile.caller,
        torch_version=profile.torch_version,
        workspace_bytes=profile.workspace_bytes,
        align=profile.align,
        splitk_table=profile.splitk_table,
        rejects=[rule.message for rule in profile.rejects],
        maturity=profile.maturity,
        splitk_maturity=profile.splitk_maturity,
    )


def collect(name: str | None = None) -> ProfilesReport:
    """Collect the profiles.

    Args:
        name: one profile; None means all.

    Raises:
        UsageError: no profile has this name, or MMAEMU_PROFILE names none.
    """
    from mmaemu.profiles.profile import get_profile, list_profiles

    try:
        default = get_profile().name
        names = list_profiles() if name is None else [get_profile(name).name]
    except KeyError as error:
        raise UsageError(str(error.args[0])) from error
    found = [platform(get_profile(each)) for each in names]
    return ProfilesReport(default, found, detailed=name is not None)


COMMAND = Command(
    name="profiles",
    summary="list the reference platforms that can be emulated",
    description=(
        "Lists the profiles. A profile is one reference platform: a GPU, the cuBLASLt version, "
        "the caller with its workspace, and the split-K decisions recorded there."
    ),
    arguments=(Argument(("name",), "Show every field of this profile.", {"nargs": "?"}),),
    examples=(
        Example("profiles", "all profiles in a table"),
        Example("profiles hopper", "every field of the default profile"),
    ),
    collect=lambda arguments: collect(arguments.name),
)

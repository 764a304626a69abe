"""`mmaemu info`: what is installed here, what it can do, and why something cannot be used.

Every section is collected on its own: what fails is reported, and the rest still shows. torch is
imported only to ask it, so a broken torch is one line of the report.
"""

from __future__ import annotations

import platform as python_platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import ClassVar, Final, TypeVar

from mmaemu import _settings
from mmaemu._version import __version__
from mmaemu.cli import output
from mmaemu.cli.command import Command, Example, Exit, Report
from mmaemu.errors import DataIntegrityError

T = TypeVar("T")

PACKAGES: Final = ("torch", "numpy", "matplotlib", "rich")


@dataclass(frozen=True)
class Package:
    """An installed package; `version` None means that it is missing, `error` that it is broken."""

    name: str
    version: str | None
    error: str | None


@dataclass(frozen=True)
class Gpu:
    """The GPU that a CUDA library would use, as the driver describes it."""

    name: str
    capability: list[int]
    sm_count: int


@dataclass(frozen=True)
class ProfileMatch:
    """Whether this machine is a profile's own platform, and why not."""

    name: str
    description: str
    matches: bool
    reason: str


@dataclass(frozen=True)
class ModelMaturity:
    """An instruction model and how well it is established."""

    name: str
    maturity: str


@dataclass(frozen=True)
class BackendState:
    """Whether a backend can be used here, and why not."""

    name: str
    available: bool
    source: str | None
    reason: str
    gates: list[str]
    validated_here: bool
    validated_on: list[str]

    def render(self) -> str:
        """Return one sentence, with the gates of a backend that has some."""
        text = f"{'available' if self.available else 'not available'}: {self.reason}"
        if self.gates:
            text += f" [gates: {', '.join(self.gates)}"
            text += f"; validated on: {', '.join(self.validated_on) or 'none yet'}]"
        return text


@dataclass(frozen=True)
class Table:
    """A table of recorded split-K decisions; its files equal their hashes."""

    name: str
    rows: int
    split_rows: int
    workspaces: list[int]


@dataclass(frozen=True)
class InfoReport(Report):
    """What is installed here.

    Attributes:
        mmaemu: version and folder.
        python: version and platform.
        packages: what mmaemu uses.
        gpu: the GPU, else None.
        gpu_note: why there is none, else "".
        settings: MMAEMU_* variables that are set.
        profiles, models, backends, tables: what mmaemu can do here.
        damaged: tables that cannot be used, with the reason.
        problems: sections that could not be collected, with the reason.
    """

    schema: ClassVar[str] = "mmaemu-info/1"

    mmaemu: dict[str, str]
    python: dict[str, str]
    packages: list[Package]
    gpu: Gpu | None
    gpu_note: str
    settings: dict[str, str]
    profiles: list[ProfileMatch]
    models: list[ModelMaturity]
    backends: list[BackendState]
    tables: list[Table]
    damaged: list[str]
    problems: list[str]

    @property
    def exit_code(self) -> Exit:
        """Exit 1 for a damaged table, which is a broken installation."""
        return Exit.FAILED if self.damaged else Exit.OK

    def render(self) -> str:
        """Return the sections as text."""
        return "\n\n".join(f"{title}\n{body}" for title, body in _sections(self) if body)


def _sections(report: InfoReport) -> tuple[tuple[str, str], ...]:
    gpu = report.gpu
    device = (
        f"none: {report.gpu_note}"
        if gpu is None
        else f"{gpu.name}, sm_{''.join(map(str, gpu.capability))}, {gpu.sm_count} SMs"
    )
    installed = [
        ("mmaemu", f"{report.mmaemu['version']}  ({report.mmaemu['folder']})"),
        ("python", f"{report.python['version']}  ({report.python['platform']})"),
        *((each.name, each.error or each.version or "not installed") for each in report.packages),
        ("GPU", device),
    ]
    maturities: dict[str, list[str]] = {}
    for model in report.models:
        maturities.setdefault(model.maturity, []).append(model.name)
    return (
        ("Installed", output.fields(installed)),
        ("Settings", _fields(sorted(report.settings.items()))),
        ("Profiles", _fields(_profile_lines(report.profiles))),
        (
            "Instruction models by maturity",
            _fields([(maturity, ", ".join(names)) for maturity, names in maturities.items()]),
        ),
        (
            "Backends",
            _fields([(each.name, each.render()) for each in report.backends]),
        ),
        (
            "Tables of recorded split-K decisions",
            _fields(
                [
                    (each.name, f"{each.rows:,} decisions, {each.split_rows:,} of them split")
                    for each in report.tables
                ]
            ),
        ),
        ("Damaged tables", "\n".join(f"  {table}" for table in report.damaged)),
        ("Problems", "\n".join(f"  {problem}" for problem in report.problems)),
    )


def _profile_lines(profiles: list[ProfileMatch]) -> list[tuple[str, str]]:
    """One line per reason, since most profiles fail to match for the same one."""
    own = ", ".join(each.name for each in profiles if each.matches)
    lines = [("matched here", own or "none; their results are emulated, with the same bits")]
    reasons: dict[str, list[str]] = {}
    for each in profiles:
        if not each.matches:
            reasons.setdefault(each.reason, []).append(each.name)
    lines += [("not matched", f"{', '.join(names)} ({why})") for why, names in reasons.items()]
    return lines if profiles else []


def _fields(pairs: list[tuple[str, str]]) -> str:
    return output.fields(pairs) if pairs else ""


def _package(name: str) -> Package:
    try:
        version: str | None = metadata.version(name)
    except metadata.PackageNotFoundError:
        version = None
    if name != "torch":
        return Package(name, version, None)
    try:
        import torch
    except Exception as error:  # noqa: BLE001 - a broken installation fails in any way it likes
        missing = version is None and isinstance(error, ModuleNotFoundError)
        text = None if missing else f"cannot be imported: {type(error).__name__}: {error}"
        return Package(name, version, text)
    return Package(name, str(getattr(torch, "__version__", version)), None)


def _gpu() -> tuple[Gpu | None, str]:
    from mmaemu.bindings.libcuda import current_device
    from mmaemu.bindings.library import NativeLibraryError

    try:
        device = current_device()
    except NativeLibraryError as error:
        return None, str(error)
    return Gpu(device.name, list(device.capability), device.sm_count), ""


def _profiles() -> list[ProfileMatch]:
    from mmaemu.profiles.heuristics import platform_mismatch
    from mmaemu.profiles.profile import get_profile, list_profiles

    matches = []
    for name in list_profiles():
        profile = get_profile(name)
        reason = platform_mismatch(profile)
        matches.append(ProfileMatch(name, profile.description, reason is None, reason or ""))
    return matches


def _models() -> list[ModelMaturity]:
    from mmaemu.instruction.models import MODELS

    return [ModelMaturity(model.name, model.maturity) for model in MODELS.values()]


def _backends() -> list[BackendState]:
    from mmaemu.backends.registry import backends_status

    return [
        BackendState(
            each.name,
            each.available,
            each.source,
            each.reason,
            list(each.gates),
            each.validated_here,
            list(each.validated_on),
        )
        for each in backends_status().values()
    ]


def _tables() -> tuple[list[Table], list[str]]:
    from mmaemu.profiles.profile import get_profile, list_profiles
    from mmaemu.profiles.table import open_table

    names = [get_profile(name).splitk_table for name in list_profiles()]
    tables, damaged = [], []
    for name in dict.fromkeys(names):
        if name is None:
            continue
        try:
            table = open_table(name)
        except (DataIntegrityError, LookupError) as error:
            damaged.append(f"{name}: {type(error).__name__}: {error}")
            continue
        workspaces = list(table.workspaces)
        tables.append(Table(table.table_id, table.rows, table.split_rows, workspaces))
    return tables, damaged


def collect() -> InfoReport:
    """Collect the report. Never raises: what fails is a line of `damaged` or `problems`."""
    problems: list[str] = []

    def attempt(section: str, function: Callable[[], T], otherwise: T) -> T:
        try:
            return function()
        except Exception as error:  # noqa: BLE001 - the report says what fails, whatever it is
            problems.append(f"{section}: {type(error).__name__}: {error}")
            return otherwise

    no_gpu: tuple[Gpu | None, str] = None, "see the problems below"
    gpu, gpu_note = attempt("GPU", _gpu, no_gpu)
    no_tables: tuple[list[Table], list[str]] = [], []
    tables, damaged = attempt("tables", _tables, no_tables)
    return InfoReport(
        mmaemu={"version": __version__, "folder": str(Path(__file__).parents[1])},
        python={
            "version": python_platform.python_version(),
            "platform": f"{python_platform.platform()}, {sys.byteorder} endian",
        },
        packages=[_package(name) for name in PACKAGES],
        gpu=gpu,
        gpu_note=gpu_note,
        settings=_settings.assigned(),
        profiles=attempt("profiles", _profiles, []),
        models=attempt("models", _models, []),
        backends=attempt("backends", _backends, []),
        tables=tables,
        damaged=damaged,
        problems=problems,
    )


COMMAND = Command(
    name="info",
    summary="show versions, device, profiles, models, backends and tables",
    description=(
        "Shows what is installed and what can be used here: versions, the GPU, which profiles "
        "this machine matches and why not, the instruction models with their maturity, every "
        "backend with the reason why it is not available, and the tables of recorded split-K "
        "decisions. Works with a broken torch. Exit code 1: a table is damaged."
    ),
    arguments=(),
    examples=(
        Example("info", "the whole report"),
        Example("info --json", "the same for a program or a bug report"),
    ),
    collect=lambda _arguments: collect(),
)

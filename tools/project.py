"""What the release tools know about a project: its pyproject.toml and its version file."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from packaging.version import InvalidVersion, Version

from files import read_toml
from findings import UnusableError

_TIER: Final = re.compile(r"t([0-7]|3p)", re.IGNORECASE)
_VERSION_LINE: Final = re.compile(
    r"""^__version__ = (["'])(?P<version>[^"'\n]+)\1$""", re.MULTILINE
)
TARGETS: Final = ("staging", "ci", "public")
REFERENCE: Final = "reference.version"
FRAGMENTS: Final = "changelog.d"
SUMS: Final = "SHA256SUMS"
# What every build runs under. The time is hatchling's own default, stated here so that the caller's
# SOURCE_DATE_EPOCH has no say.
EPOCH: Final = "1580601600"
UMASK: Final = 0o022
# Files that say something about a result and cannot change one.
RECORDS: Final = ("docs/", f"{FRAGMENTS}/")
RECORD_FILES: Final = frozenset(
    {"CHANGELOG.md", "CITATION.cff", REFERENCE, "lkg.version", "verified_commits.csv"}
)


@dataclass(frozen=True, slots=True)
class Release:
    """The public identity and the repositories, from [tool.mmaemu.release].

    Attributes:
        owner: account that owns the repositories.
        repository: name of the public repository.
        name: author and committer name of every snapshot.
        email: author and committer address of every snapshot.
        maintainer: account that reviews the publishing environment.
        branch: the one branch of the snapshot repositories.
        remotes: address of each target repository.
    """

    owner: str
    repository: str
    name: str
    email: str
    maintainer: str
    branch: str
    remotes: dict[str, str]


@dataclass(frozen=True, slots=True)
class Project:
    """One project's names and places.

    Attributes:
        root: folder of pyproject.toml.
        name: distribution name.
        package: import name, the folder that the wheel holds.
        version_file: path of the version file relative to the root.
        document: the parsed pyproject.toml.
    """

    root: Path
    name: str
    package: str
    version_file: str
    document: dict[str, Any]

    @property
    def version(self) -> str:
        """The version in the version file.

        Raises:
            UnusableError: the file is missing or holds no version.
        """
        path = self.root / self.version_file
        if not path.is_file():
            raise UnusableError(f"{path} is missing; it holds `__version__`")
        return version_in(path.read_text(encoding="utf-8"), self.version_file)

    @property
    def release(self) -> Release:
        """The [tool.mmaemu.release] table.

        Raises:
            UnusableError: a key is missing.
        """
        table = self.table("release")
        try:
            owner, repository = table["owner"], table["repository"]
            return Release(
                owner=owner,
                repository=repository,
                name=table["name"],
                email=table["email"],
                maintainer=table.get("maintainer", owner),
                branch=table.get("branch", "master"),
                remotes=dict(table.get("remotes", {})),
            )
        except KeyError as error:
            raise UnusableError(
                f"pyproject.toml [tool.mmaemu.release] has no {error}; add the key"
            ) from error

    def table(self, name: str) -> dict[str, Any]:
        """The table [tool.mmaemu.<name>], empty where it is missing."""
        found: dict[str, Any] = self.document.get("tool", {}).get("mmaemu", {}).get(name, {})
        return found


def load_project(root: Path) -> Project:
    """Read a project's pyproject.toml.

    Raises:
        UnusableError: no pyproject.toml, or one without a project name.
    """
    path = root / "pyproject.toml"
    if not path.is_file():
        raise UnusableError(f"{path} is missing; give the folder of a project with --root")
    document = read_toml(path)
    name = document.get("project", {}).get("name")
    if not isinstance(name, str):
        raise UnusableError(f"{path} has no [project] name; add it")
    package = name.replace("-", "_")
    version_file = (
        document.get("tool", {}).get("hatch", {}).get("version", {}).get("path")
        or f"{package}/_version.py"
    )
    return Project(root, name, package, version_file, document)


def version_in(text: str, where: str) -> str:
    """The value of `__version__` in the text of a version file.

    Raises:
        UnusableError: not exactly one plain assignment.
    """
    found = _VERSION_LINE.findall(text)
    if len(found) != 1:
        raise UnusableError(
            f'{where}: expected one line `__version__ = "X.Y.Z"`, found {len(found)}; write it so'
        )
    return str(found[0][1])


def replace_version(text: str, version: str) -> str:
    """The text of a version file with another version in it."""
    return _VERSION_LINE.sub(f'__version__ = "{version}"', text)


def parse_version(text: str) -> Version | None:
    """A version as PEP 440 understands it (a leading v included), or None where it is none."""
    try:
        return Version(text)
    except InvalidVersion:
        return None


def tag_of(version: str) -> str:
    """The one spelling of a release tag."""
    return f"v{version}"


def changelog_section(changelog: str, version: str) -> tuple[str, str] | None:
    """The date and the text of a version's section, or None where there is none.

    The heading is `## X.Y.Z (YYYY-MM-DD)`; the section ends at the next heading of that level.
    """
    heading = re.compile(rf"^## {re.escape(version)} \((\d{{4}}-\d\d-\d\d)\)$", re.MULTILINE)
    start = heading.search(changelog)
    if start is None:
        return None
    rest = changelog[start.end() :]
    following = re.search(r"^## ", rest, re.MULTILINE)
    return start[1], rest[: following.start()] if following else rest


def newest_section(changelog: str) -> str | None:
    """The version of the first dated section, which is the newest release."""
    found = re.search(r"^## (\S+) \(\d{4}-\d\d-\d\d\)$", changelog, re.MULTILINE)
    return found[1] if found else None


def is_fragment(path: Path) -> bool:
    """Whether a file below the fragments folder is a changelog fragment."""
    return path.suffix == ".md" and path.name != "README.md"


def fragments(root: Path) -> tuple[Path, ...]:
    """The changelog fragments of a tree, sorted."""
    return tuple(path for path in sorted((root / FRAGMENTS).glob("*")) if is_fragment(path))


def is_record(name: str) -> bool:
    """Whether a file of the repository only says something about results."""
    return name in RECORD_FILES or name.startswith(RECORDS)


def pairing_of(text: str) -> dict[str, str]:
    """The `name value` lines of reference.version."""
    rows = [line.split() for line in text.splitlines() if line.strip() and line[0] != "#"]
    return {row[0]: row[1] for row in rows if len(row) > 1}


def tier_and_reason(text: str) -> tuple[str, str]:
    """Parse TIER=REASON.

    Raises:
        argparse.ArgumentTypeError: no tier or no reason given.
    """
    tier, _, reason = text.partition("=")
    if not _TIER.fullmatch(tier) or not reason.strip():
        raise argparse.ArgumentTypeError(
            f"expected TIER=REASON with one of T0 to T7 or T3P, got {text!r}"
        )
    return tier, reason.strip()


def add_waivers(parser: argparse.ArgumentParser) -> None:
    """Add the option that names tiers whose device part was not run, with the reason."""
    parser.add_argument(
        "--device-not-run",
        metavar="TIER=REASON",
        type=tier_and_reason,
        action="append",
        default=[],
        help="accept that a tier's device part was not run, and state the reason",
    )


def add_execution(parser: argparse.ArgumentParser) -> None:
    """Add the options of a tool that writes to remotes: it prints its plan unless told to act."""
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--dry-run", action="store_true", help="print the plan only (the default)")
    choice.add_argument("--execute", action="store_true", help="do what the plan says")
    parser.add_argument(
        "--allow-remote", action="store_true", help="also where a remote is not on this machine"
    )

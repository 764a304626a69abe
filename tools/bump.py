"""After a release X.Y.Z, go on with the next patch version X.Y.(Z+1).

    python tools/bump.py [--released X.Y.Z] [--dry-run] [--root DIR]

Nightlies then sort above the release. The released version is that of the newest dated section of
CHANGELOG.md. The citation keeps the release, and a rerun changes nothing: a tree whose base version
is later than the release is bumped already.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from packaging.version import Version

from channels import base_of
from files import ROOT, write_bytes
from findings import UnusableError, run
from project import (
    REFERENCE,
    Project,
    load_project,
    newest_section,
    parse_version,
    replace_version,
)
from release_config import stated_version

_RELEASE: Final = re.compile(r"\d+\.\d+\.\d+")


def next_patch(released: str) -> str:
    """X.Y.(Z+1).

    Raises:
        UnusableError: it is no X.Y.Z.
    """
    if not _RELEASE.fullmatch(released):
        raise UnusableError(f"expected a released version X.Y.Z, got {released!r}")
    major, minor, patch = Version(released).release
    return f"{major}.{minor}.{patch + 1}"


def released_in(project: Project) -> str:
    """The newest release that the changelog has.

    Raises:
        UnusableError: it has none.
    """
    path = project.root / "CHANGELOG.md"
    found = newest_section(path.read_text(encoding="utf-8")) if path.is_file() else None
    if found is None:
        raise UnusableError(f"{path} has no dated section; give --released X.Y.Z")
    return found


def sources(project: Project) -> dict[str, str]:
    """Every file that states the base version, with its key."""
    rows = project.table("release").get("distributions", [])
    stated = {row["version_source"]["file"]: row["version_source"]["key"] for row in rows}
    return stated or {project.version_file: "__version__"}


def restated(text: str, file: str, key: str, version: str) -> str:
    """The text with another version; every other byte stays.

    Raises:
        UnusableError: the line is not found, or another one would change.
    """
    if not file.endswith(".toml"):
        return replace_version(text, version)
    table, _, name = key.rpartition(".")
    pattern = re.compile(
        rf"(^\[{re.escape(table)}\]$(?:\n(?!\[).*)*?\n{re.escape(name)}\s*=\s*)([\"'])[^\"'\n]*\2",
        re.MULTILINE,
    )
    changed = pattern.sub(lambda found: f"{found[1]}{found[2]}{version}{found[2]}", text, count=1)
    if stated_version(changed, file, key) != version:
        raise UnusableError(f"{file}: {key} is not on a line of its own; change it by hand")
    return changed


def plan(project: Project, released: str) -> dict[str, str]:
    """New text of every file that changes.

    Args:
        project: the project.
        released: the release that was made.

    Raises:
        UnusableError: the tree is older than the release.
    """
    target = next_patch(released)
    changed = {}
    for file, key in sources(project).items():
        text = (project.root / file).read_text(encoding="utf-8")
        found = stated_version(text, file, key)
        if Version(base_of(found)) > Version(released):
            continue
        if Version(found) < Version(released):
            raise UnusableError(
                f"{file} says {found}, which is older than the release {released}; nothing to bump"
            )
        changed[file] = restated(text, file, key, target)
    reference = project.root / REFERENCE
    if changed and reference.is_file():
        text = reference.read_text(encoding="utf-8")
        row = re.compile(rf"^{re.escape(project.name)} \S+$", re.MULTILINE)
        changed[REFERENCE] = row.sub(f"{project.name} {target}", text)
    return changed


def _action(arguments: argparse.Namespace) -> None:
    project = load_project(arguments.root.resolve())
    released = arguments.released or released_in(project)
    if parse_version(released) is None:
        raise UnusableError(f"expected a released version X.Y.Z, got {released!r}")
    changed = plan(project, released)
    for name in changed:
        print(f"bump: {'would write' if arguments.dry_run else 'writes'} {name}")
    for name, text in changed.items():
        if not arguments.dry_run:
            write_bytes(project.root / name, text.encode())
    if not changed:
        print(f"bump: the tree is past {released} already")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="bump", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--released", help="the release that was made")
    parser.add_argument("--root", type=Path, default=ROOT, help="the project")
    parser.add_argument("--dry-run", action="store_true", help="say what would change")
    return run(parser, _action, argv)


if __name__ == "__main__":
    raise SystemExit(main())

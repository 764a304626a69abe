"""Set the version everywhere and turn the changelog fragments into its dated section.

    python tools/version.py X.Y.Z --date YYYY-MM-DD [--device-not-run TIER=REASON]

Writes the version file, CITATION.cff, reference.version and CHANGELOG.md, then removes the
fragments. What was not run on a device goes into the changelog's limitations, and into
docs/validation.md between its marks. Everything is computed before the first byte is written, and a
rerun with the same arguments changes nothing.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from packaging.version import Version

from files import ROOT, write_bytes
from findings import UnusableError, guarded
from project import (
    REFERENCE,
    Project,
    add_waivers,
    changelog_section,
    fragments,
    load_project,
    parse_version,
    replace_version,
)

CHANGELOG: Final = "CHANGELOG.md"
CITATION: Final = "CITATION.cff"
START: Final = "<!-- releases -->\n"
SCOPE: Final = "Scope and maturity"
LIMITS: Final = "Limitations of this release"
VALIDATION: Final = "docs/validation.md"
RELEASE_PARTS: Final = 3
MARKS: Final = ("<!-- not run on a device -->\n", "<!-- end -->")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a version change does.

    Attributes:
        writes: new text of each file that changes.
        removes: fragments that are now in the changelog.
    """

    writes: dict[Path, str]
    removes: tuple[Path, ...]

    def apply(self) -> None:
        """Write every file through a rename, the changelog last, then remove the fragments."""
        for path, text in self.writes.items():
            write_bytes(path, text.encode())
        for path in self.removes:
            path.unlink()


def plan(project: Project, version: str, date: str, waivers: dict[str, str]) -> Plan:
    """Compute the change.

    Args:
        project: the project.
        version: the new version, normalised PEP 440 without local part.
        date: the release date, YYYY-MM-DD.
        waivers: tiers whose device part was not run, with the reason.

    Raises:
        UnusableError: a bad version or date, or nothing to release.
    """
    refuse_bad_version(project, version)
    refuse_bad_date(date)
    changelog = _changelog(project, version, date, waivers)
    texts: dict[str, Callable[[str], str]] = {
        project.version_file: lambda text: replace_version(text, version),
        CITATION: lambda text: _citation(text, version, date),
        REFERENCE: lambda text: re.sub(
            rf"^{project.name} \S+$", f"{project.name} {version}", text, flags=re.MULTILINE
        ),
        CHANGELOG: lambda _: changelog,
    }
    writes = {}
    for name, change in texts.items():
        path = project.root / name
        if not path.is_file():
            raise UnusableError(f"{path} is missing; nothing was changed")
        before = path.read_text(encoding="utf-8")
        after = change(before)
        if after != before:
            writes[path] = after
    page = project.root / VALIDATION
    if page.is_file() and (stated := _stated(page.read_text(encoding="utf-8"), waivers)):
        writes[page] = stated
    return Plan(writes, fragments(project.root))


def refuse_bad_version(project: Project, version: str) -> None:
    """Raises UnusableError unless a tree may get this version."""
    parsed = parse_version(version)
    usable = parsed is not None and not parsed.local and len(parsed.release) == RELEASE_PARTS
    if parsed is None or not usable or str(parsed) != version:
        raise UnusableError(
            f"expected a normalised version without local part such as 0.1.0 or 0.2.0.dev1, "
            f"got {version!r}{f' (write {parsed})' if usable else ''}"
        )
    if parsed < Version(project.version):
        raise UnusableError(
            f"{project.version_file} says {project.version}, which is later than {version}; "
            "versions only grow"
        )


def refuse_bad_date(date: str) -> None:
    """Raises UnusableError unless it is a date of the calendar as YYYY-MM-DD."""
    try:
        valid = dt.date.fromisoformat(date).isoformat() == date
    except ValueError:
        valid = False
    if not valid:
        raise UnusableError(f"expected a date of the calendar as YYYY-MM-DD, got {date!r}")


def _citation(text: str, version: str, date: str) -> str:
    """CITATION.cff with the version and the date as quoted strings (a bare 0.10 is a number)."""
    for key, value in (("version", version), ("date-released", date)):
        line = f'{key}: "{value}"'
        text, count = re.subn(rf"^{key}:.*$", line, text, flags=re.MULTILINE)
        if not count:
            text = f"{text.rstrip()}\n{line}\n"
    return text


def _stated(text: str, waivers: dict[str, str]) -> str:
    """The page on validation with what was not run between its marks; "" where nothing changes."""
    first, last = MARKS
    before, found, rest = text.partition(first)
    _, end, after = rest.partition(last)
    changed = f"{before}{first}{_limitations(waivers)}{last}{after}"
    return changed if found and end and changed != text else ""


def _limitations(waivers: dict[str, str]) -> str:
    return "".join(
        f"- {tier} was not run on a device: {reason}\n" for tier, reason in waivers.items()
    )


# --- the changelog -------------------------------------------------------------------------------


def _changelog(project: Project, version: str, date: str, waivers: dict[str, str]) -> str:
    path = project.root / CHANGELOG
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if START not in text:
        raise UnusableError(f"{path} must hold the line {START.strip()!r} above the first section")
    old = changelog_section(text, version)
    present = fragments(project.root)
    _refuse_unknown_types(project, present)
    if not present and old is None:
        raise UnusableError(
            f"nothing to release: no fragment in changelog.d/ and no section {version} in "
            f"{CHANGELOG}; add a fragment"
        )
    parts = _parts(old[1]) if old else {}
    if present:
        for title, body in _parts(_render(project, version, date)).items():
            parts[title] = _joined(parts.get(title, ""), body)
    parts |= _generated(project, waivers)
    section = f"## {version} ({date})\n\n" + "".join(
        f"### {title}\n\n{body.strip()}\n\n" for title, body in parts.items()
    )
    if old is None:
        return text.replace(START, f"{START}\n{section.rstrip()}\n", 1)
    return text.replace(f"## {version} ({old[0]}){old[1]}", f"{section.rstrip()}\n" + _gap(old[1]))


def _refuse_unknown_types(project: Project, present: tuple[Path, ...]) -> None:
    """Towncrier passes over a fragment of a type that it does not know; here it is an error."""
    table = project.document.get("tool", {}).get("towncrier", {}).get("type", [])
    types = [str(row.get("directory")) for row in table]
    for path in present:
        if not {*path.name.split(".")[1:-1]} & {*types}:
            raise UnusableError(
                f"{path.name}: expected NAME.TYPE.md with a type of {', '.join(types)}; rename it"
            )


def _gap(body: str) -> str:
    """The empty lines that stood below a section, so that a rerun gives the same bytes."""
    return "\n" * max(len(body) - len(body.rstrip("\n")) - 1, 0)


def _parts(section: str) -> dict[str, str]:
    """The subsections of a changelog section by title."""
    pieces = re.split(r"^### (.+)$", section, flags=re.MULTILINE)
    return dict(zip(pieces[1::2], (body.strip() for body in pieces[2::2]), strict=True))


def _joined(old: str, new: str) -> str:
    """The entries of both, an entry that is in both once."""
    entries = _entries(old)
    return "\n".join(entries + [entry for entry in _entries(new) if entry not in entries])


def _entries(body: str) -> list[str]:
    return [entry.rstrip() for entry in re.split(r"^(?=- )", body, flags=re.MULTILINE) if entry]


def _render(project: Project, version: str, date: str) -> str:
    """The section that towncrier makes of the fragments."""
    command = [
        *(sys.executable, "-m", "towncrier", "build", "--draft"),
        *("--dir", str(project.root), "--version", version, "--date", date),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    section = changelog_section(done.stdout, version)
    if done.returncode or section is None:
        raise UnusableError(
            f"towncrier exited with {done.returncode}: {done.stderr.strip()}; "
            "correct the fragment that it names"
        )
    return section[1]


def _generated(project: Project, waivers: dict[str, str]) -> dict[str, str]:
    """The subsections that state what the release is: scope, maturity, pairing, limitations."""
    listed = {name: _listing(project, name) for name in project.table("release").get("scope", [])}
    lines = [line for name, rows in listed.items() for line in _maturity_lines(name, rows)]
    pairing = (project.root / REFERENCE).read_text(encoding="utf-8").splitlines()
    rows = [row for row in pairing if row and row[0] != "#" and row.split()[0] != project.name]
    parts = {SCOPE: "\n".join([*lines, f"- Reference: {', '.join(rows)}."])}
    if waivers:
        parts[LIMITS] = _limitations(waivers)
    return parts


def _listing(project: Project, name: str) -> list[dict[str, Any]]:
    """What `python -m PACKAGE NAME --json` lists."""
    command = [sys.executable, "-m", project.package, name, "--json"]
    done = subprocess.run(command, cwd=project.root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnusableError(
            f"`{' '.join(command[1:])}` exited with {done.returncode}: {done.stderr.strip()}"
        )
    rows: list[dict[str, Any]] = json.loads(done.stdout)[name]
    return rows


def _maturity_lines(kind: str, rows: list[dict[str, Any]]) -> list[str]:
    """One line for every maturity, with the names that have it."""
    names: dict[str, list[str]] = {}
    for row in rows:
        names.setdefault(str(row["maturity"]), []).append(f"`{row['name']}`")
    return [f"- {kind}, {maturity}: {', '.join(found)}." for maturity, found in names.items()]


def _action(arguments: argparse.Namespace) -> int:
    project = load_project(arguments.root.resolve())
    change = plan(project, arguments.version, arguments.date, dict(arguments.device_not_run))
    verb = "would write" if arguments.dry_run else "wrote"
    if not arguments.dry_run:
        change.apply()
    for path in change.writes:
        print(f"{verb} {path.relative_to(project.root)}")
    for path in change.removes:
        gone = "would remove" if arguments.dry_run else "removed"
        print(f"{gone} {path.relative_to(project.root)}")
    if not change.writes and not change.removes:
        print(f"version: {arguments.version} of {arguments.date} is set already")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="version", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("version", help="the version to set")
    parser.add_argument("--date", required=True, help="the release date")
    parser.add_argument("--root", type=Path, default=ROOT, help="the project")
    parser.add_argument("--dry-run", action="store_true", help="say what would change")
    add_waivers(parser)
    arguments = parser.parse_args(argv)
    return guarded(parser.prog, lambda: _action(arguments))


if __name__ == "__main__":
    raise SystemExit(main())

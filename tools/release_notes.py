"""Write the notes that a hosted release carries: pairing, pins, checksums, changelog section.

    python tools/release_notes.py X.Y.Z FOLDER [--out FILE] [--dry-run] [--root DIR]

FOLDER holds the files of the release. Everything is read from them and from the tree; a release
that lacks a file, or whose changelog does not say what it is paired with, gets no notes.
"""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.utils import canonicalize_name

from files import ROOT, sha256_of_file, write_bytes
from findings import Outcome, Rule, UnusableError, apply_rules, run
from package_index import name_and_version
from pins import exact, metadata_of
from project import changelog_section, load_project, parse_version
from release_config import Configuration, load_configuration

Problems = Iterator[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Facts:
    """What the notes are made of.

    Attributes:
        version: of the release.
        section: date and text of the changelog's section, None where there is none.
        pairing: which version of what belongs to it.
        files: sha256 of every file of the release by name.
        expected: (distribution, kind) that a release consists of.
        pins: exact requirements by wheel.
    """

    version: str
    section: tuple[str, str] | None
    pairing: Mapping[str, str]
    files: Mapping[str, str]
    expected: tuple[tuple[str, str], ...]
    pins: Mapping[str, Mapping[str, str]]

    def has(self, name: str, kind: str) -> bool:
        """Whether a file of this distribution and kind and of the version is there."""
        pattern = "*.whl" if kind == "wheel" else "*.tar.gz"
        wanted = (canonicalize_name(name), parse_version(self.version))
        return any(
            fnmatch.fnmatch(file, pattern) and name_and_version(file) == wanted
            for file in self.files
        )


def _section(facts: Facts) -> Problems:
    if facts.section is None:
        yield "CHANGELOG.md", f"no heading `## {facts.version} (YYYY-MM-DD)`; run `invoke version`"


def _complete(facts: Facts) -> Problems:
    for name, kind in facts.expected:
        if not facts.has(name, kind):
            yield name, f"no {kind} of {facts.version} among the files; a release is complete"
    for file in facts.files:
        named = name_and_version(file)
        if named is None or named[1] != parse_version(facts.version):
            yield file, f"is no file of {facts.version}; take it away"


def _pairing_said(facts: Facts) -> Problems:
    section = facts.section[1] if facts.section else ""
    for name, version in facts.pairing.items():
        if facts.section and version not in section:
            yield "CHANGELOG.md", f"the section does not say that {name} {version} belongs to it"


RULES: Final[tuple[Rule[Facts], ...]] = (
    Rule("GOLD161", "The changelog has the version's section.", _section),
    Rule("GOLD162", "The files are those of a whole release, no others.", _complete),
    Rule("GOLD163", "The changelog's section states the pairing.", _pairing_said),
)


def notes(facts: Facts) -> str:
    """The text."""
    date, section = facts.section or ("", "")
    parts = [f"Released {date}.", section.strip()]
    if facts.pairing:
        rows = "\n".join(f"- {name} {version}" for name, version in facts.pairing.items())
        parts.append(f"## Compatible versions\n\n{rows}")
    for wheel, found in facts.pins.items():
        rows = "\n".join(f"{name}=={version}" for name, version in found.items())
        parts.append(f"## Pins of {wheel}\n\n```text\n{rows}\n```")
    sums = "\n".join(f"{digest}  {name}" for name, digest in sorted(facts.files.items()))
    parts.append(f"## SHA-256\n\n```text\n{sums}\n```")
    return "\n\n".join(parts) + "\n"


def load(configuration: Configuration, version: str, folder: Path) -> Facts:
    """Read the tree and the files of a release.

    Raises:
        UnusableError: there is no such folder.
    """
    if not folder.is_dir():
        raise UnusableError(f"{folder} is no folder; give the one that holds the release's files")
    root = configuration.root
    changelog = root / "CHANGELOG.md"
    text = changelog.read_text(encoding="utf-8") if changelog.is_file() else ""
    paths = sorted(p for pattern in ("*.whl", "*.tar.gz") for p in folder.glob(pattern))
    requirements = {
        path.name: exact(map(str, metadata_of(path).get_all("Requires-Dist") or ()))
        for path in paths
        if path.suffix == ".whl"
    }
    return Facts(
        version=version,
        section=changelog_section(text, version),
        pairing=_pairing(configuration),
        files={path.name: sha256_of_file(path) for path in paths},
        expected=tuple(
            (row.name, kind) for row in configuration.distributions for kind in row.kinds
        ),
        pins={name: found for name, found in requirements.items() if found},
    )


def _pairing(configuration: Configuration) -> dict[str, str]:
    if configuration.pairing is None:
        return {}
    file = configuration.root / configuration.pairing[0]
    return configuration.paired(file.read_text(encoding="utf-8"))


def _action(arguments: argparse.Namespace) -> Outcome | None:
    root = load_project(arguments.root.resolve()).root
    facts = load(load_configuration(root), arguments.version, arguments.folder)
    outcome = apply_rules(RULES, facts)
    if outcome.exit_code:
        return outcome
    text = notes(facts)
    if arguments.dry_run or arguments.out is None:
        print(text, end="")
    else:
        write_bytes(arguments.out, text.encode())
        print(f"release-notes: wrote {arguments.out}")
    return None


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="release-notes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("version", help="of the release")
    parser.add_argument("folder", type=Path, help="the files of the release")
    parser.add_argument("--out", type=Path, help="where to write; default: print")
    parser.add_argument("--root", type=Path, default=ROOT, help="the project")
    parser.add_argument("--dry-run", action="store_true", help="print, write nothing")
    return run(parser, _action, argv)


if __name__ == "__main__":
    raise SystemExit(main())

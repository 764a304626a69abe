"""List what lies in staging, and delete one version of it by its explicit name.

    python tools/leftovers.py
    python tools/leftovers.py --clean VERSION [--only DIST]... --execute [--allow-remote]

A run that failed leaves its files in staging. No later manifest lists them, so they are never
published; they stop a run of the same version. Exit 1 where something lies there and nothing is
deleted.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from files import ROOT
from findings import Outcome, Rule, UnusableError, apply_rules, run
from package_index import Index, IndexFile, confirm_execute, from_environment
from project import add_execution, parse_version
from publishing import pause
from release_config import load_configuration
from stage import distributions

LEFT: Final = "STAGE301"


@dataclass(frozen=True, slots=True)
class Leftover:
    """One file in staging.

    Attributes:
        project: canonical name.
        file: as staging lists it.
        public: what the package index says of it.
    """

    project: str
    file: IndexFile
    public: str


def _listed(leftovers: tuple[Leftover, ...]) -> Iterator[tuple[str, str]]:
    for each in leftovers:
        version = each.file.version or "?"
        yield (
            each.file.name,
            f"lies in staging ({each.public}); `invoke leftovers --clean {version}` deletes it "
            "if no run is under way",
        )


RULES: Final[tuple[Rule[tuple[Leftover, ...]], ...]] = (
    Rule(LEFT, "Nothing lies in staging.", _listed),
)


def find(staging: Index, public: Index, projects: Sequence[str]) -> tuple[Leftover, ...]:
    """Everything in staging, with what the package index says of each file.

    Raises:
        InconclusiveError: an index did not answer.
    """
    found = []
    for project in projects:
        there = {file.name: file for file in public.files(project)}
        found += [
            Leftover(project, file, _public(file, there.get(file.name)))
            for file in staging.files(project)
        ]
    return tuple(found)


def _public(staged: IndexFile, public: IndexFile | None) -> str:
    if public is None:
        return "not public"
    if staged.sha256 is None or staged.sha256 != public.sha256:
        return "public with other bytes"
    return "public"


def chosen(leftovers: Sequence[Leftover], version: str) -> tuple[Leftover, ...]:
    """The files of one version.

    Raises:
        UnusableError: that is no version, or staging has none of it.
    """
    wanted = parse_version(version)
    if wanted is None:
        raise UnusableError(f"--clean takes one version such as 1.2.3, got {version!r}")
    found = tuple(each for each in leftovers if each.file.version == wanted)
    if not found:
        raise UnusableError(f"staging holds no file of {version}; nothing was deleted")
    return found


def _action(arguments: argparse.Namespace) -> Outcome | None:
    rows = load_configuration(arguments.root.resolve()).distributions
    projects = [each.name for each in distributions(rows, arguments.only)]
    staging, public = from_environment("staging"), from_environment("public")
    leftovers = find(staging, public, projects)
    if arguments.clean is None:
        return apply_rules(RULES, leftovers)
    unwanted = chosen(leftovers, arguments.clean)
    for each in unwanted:
        print(f"leftovers: delete {each.file.name} ({each.public})", flush=True)
    if not arguments.execute:
        print("leftovers: nothing was deleted; add --execute to do this")
        return None
    confirm_execute((staging,), allow_remote=arguments.allow_remote)
    for number, each in enumerate(unwanted, 1):
        staging.remove(each.file)
        pause("after-delete", number)
    rest = find(staging, public, projects)
    wanted = parse_version(arguments.clean)
    left = tuple(each for each in rest if each.file.version == wanted)
    return apply_rules(RULES, left)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="leftovers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clean", metavar="VERSION", help="delete the files of this version")
    parser.add_argument("--only", action="append", default=[], help="a distribution; repeatable")
    add_execution(parser)
    parser.add_argument("--root", type=Path, default=ROOT, help="the project")
    return run(parser, _action, argv)


if __name__ == "__main__":
    raise SystemExit(main())

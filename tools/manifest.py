"""Write a new publishing manifest for files that are staged already.

    python tools/manifest.py FOLDER [--only DIST]... [--run ID] [--commit C] [--manifests FOLDER]
        [--dry-run]

`stage` does this at its end; here it is for a further attempt. The manifest is made from the staged
files' own metadata, and staging must hold exactly the files of FOLDER.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from files import ROOT
from findings import Outcome, run
from limits import file_limit
from project import load_project
from release_config import load_configuration
from stage import add_manifest_options, built, commit_of, distributions, write


def _action(arguments: argparse.Namespace) -> Outcome:
    project = load_project(arguments.root.resolve())
    rows = load_configuration(project.root).distributions
    chosen = distributions(rows, arguments.only)
    limit = file_limit()
    wanted = [entry for entry, _ in built(arguments.folder, chosen) if entry.size <= limit]
    return write(sorted(wanted), arguments, commit_of(arguments, project))


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="manifest", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the build put the files")
    parser.add_argument("--only", action="append", default=[], help="a distribution; repeatable")
    add_manifest_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="print it only")
    parser.add_argument("--root", type=Path, default=ROOT, help="the project")
    return run(parser, _action, argv)


if __name__ == "__main__":
    raise SystemExit(main())

"""Check that tracked C, C++ and CUDA sources are formatted as .clang-format says."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from facts import load_repo
from files import ROOT
from findings import Finding, Outcome, UnusableError, run

SUFFIXES: Final = (".c", ".cc", ".cpp", ".h", ".hpp", ".cu", ".cuh")
CODE: Final = "REPO301"


def program() -> str:
    """The clang-format of this interpreter's environment.

    Raises:
        UnusableError: it is not installed.
    """
    found = importlib.util.find_spec("clang_format")
    if found is None or found.origin is None:
        raise UnusableError("clang-format is missing; install the lint dependency group")
    suffix = sysconfig.get_config_var("EXE") or ""
    return str(Path(found.origin).parent / "data" / "bin" / f"clang-format{suffix}")


def check(root: Path) -> Outcome:
    """A finding for every source that clang-format would change.

    Raises:
        UnusableError: clang-format is not installed, or `root` is no checkout.
    """
    findings = []
    for path in sorted(load_repo(root).files):
        if not path.endswith(SUFFIXES):
            continue
        done = subprocess.run(
            [program(), "--dry-run", "--Werror", "--style=file", path],
            cwd=root,
            check=False,
            capture_output=True,
        )
        if done.returncode:
            findings.append(Finding(CODE, path, "is not formatted; run `clang-format -i` on it"))
    return Outcome(tuple(findings))


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; exit 0 no finding, 1 findings, 2 could not run."""
    parser = argparse.ArgumentParser(prog="check_c_format", description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help="checkout to look at")
    return run(parser, lambda arguments: check(arguments.root), argv)


if __name__ == "__main__":
    raise SystemExit(main())

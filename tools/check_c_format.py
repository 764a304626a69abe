"""Check that tracked C, C++ and CUDA sources are formatted as .clang-format says."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from facts import load_repo
from files import ROOT
from findings import Outcome, Rule, UnusableError, apply_rules, run

SUFFIXES: Final = (".c", ".cc", ".cpp", ".h", ".hpp", ".cu", ".cuh")


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


def load(root: Path) -> dict[str, bool]:
    """Whether each tracked source is formatted.

    Raises:
        UnusableError: clang-format is not installed, or `root` is no checkout.
    """
    command = [program(), "--dry-run", "--Werror", "--style=file"]
    sources = sorted(path for path in load_repo(root).files if path.endswith(SUFFIXES))
    return {
        path: not subprocess.run(
            [*command, path], cwd=root, check=False, capture_output=True
        ).returncode
        for path in sources
    }


def _formatted(sources: Mapping[str, bool]) -> Iterable[tuple[str, str]]:
    for path, formatted in sources.items():
        if not formatted:
            yield path, "is not formatted; run `clang-format -i` on it"


RULES: Final[tuple[Rule[Mapping[str, bool]], ...]] = (
    Rule("REPO301", "C, C++ and CUDA sources are formatted.", _formatted),
)


def check(root: Path) -> Outcome:
    """All findings about the sources of a checkout."""
    return apply_rules(RULES, load(root))


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; exit 0 no finding, 1 findings, 2 could not run."""
    parser = argparse.ArgumentParser(prog="check_c_format", description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help="checkout to look at")
    return run(parser, lambda arguments: check(arguments.root), argv)


if __name__ == "__main__":
    raise SystemExit(main())

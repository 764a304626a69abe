"""Print the sizes of built distributions and compare them with the package index's limit.

    python tools/sizes.py FILE_OR_FOLDER... [--channel release|nightly]

The limit is PYPI_FILE_LIMIT_MB (MiB, 100 if not set); a file of exactly that size passes. What is
larger fails a release; a nightly names it, since only the public index has the limit.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from channels import CHANNELS, RELEASE
from findings import Outcome, Rule, SkipRule, UnusableError, apply_rules, run
from limits import MIB, file_limit

Problems = Iterator[tuple[str, str]]
_KINDS: Final = (".whl", ".tar.gz")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Files and the limit.

    Attributes:
        files: size in bytes by name.
        limit: in bytes; equal passes.
        channel: "nightly" or "release".
    """

    files: dict[str, int]
    limit: int
    channel: str

    @property
    def larger(self) -> list[str]:
        """The files over the limit."""
        return [name for name, size in self.files.items() if size > self.limit]

    def lines(self) -> Iterator[str]:
        """One line a file, for people."""
        for name, size in self.files.items():
            over = "" if size <= self.limit else ", OVER THE LIMIT"
            yield (
                f"{name}: {size:,} bytes ({size / MIB:.2f} of {self.limit / MIB:g} MiB, "
                f"{100 * size / self.limit:.1f} %{over})"
            )


def _within(sizes: Sizes) -> Problems:
    if sizes.channel != RELEASE:
        named = ", ".join(sizes.larger)
        if named:
            raise SkipRule(f"only the nightly index takes {named}; the public index gets the rest")
        return
    for name in sizes.larger:
        yield (
            name,
            f"{sizes.files[name]:,} bytes, the limit is {sizes.limit:,}; nothing is published; "
            "make it smaller, or ask for a higher limit and record it in PYPI_FILE_LIMIT_MB",
        )


RULES: Final[tuple[Rule[Sizes], ...]] = (
    Rule("NIGHT132", "No file of a release is larger than PYPI_FILE_LIMIT_MB.", _within),
)


def distributions(paths: Iterable[Path]) -> list[Path]:
    """The wheels and sdists among files and in folders, sorted by name.

    Raises:
        UnusableError: a path is missing or no distribution, or there is none at all.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += [each for each in path.rglob("*") if each.name.endswith(_KINDS)]
        elif path.is_file() and path.name.endswith(_KINDS):
            found.append(path)
        else:
            raise UnusableError(f"{path} is no wheel, sdist or folder; build first")
    if not found:
        raise UnusableError("no wheel and no sdist there; build first")
    return sorted(found, key=lambda path: path.name)


def measure(paths: Iterable[Path], channel: str) -> Sizes:
    """Read what the rule looks at.

    Raises:
        UnusableError: PYPI_FILE_LIMIT_MB is no number.
    """
    return Sizes({path.name: path.stat().st_size for path in paths}, file_limit(), channel)


def _check(arguments: argparse.Namespace) -> Outcome:
    sizes = measure(distributions(arguments.paths), arguments.channel)
    for line in sizes.lines():
        print(f"sizes: {line}")
    return apply_rules(RULES, sizes)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="sizes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="+", type=Path, help="distributions, or folders of them")
    parser.add_argument("--channel", choices=CHANNELS, default=RELEASE, help="release if left out")
    parser.add_argument("--dry-run", action="store_true", help="the same: nothing is ever written")
    return run(parser, _check, argv)


if __name__ == "__main__":
    raise SystemExit(main())

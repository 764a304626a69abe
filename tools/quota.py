"""How full each project is on the package index, how long that lasts, and how to ask for more.

    python tools/quota.py [--days N] [--sizes FOLDER]

The rate is that of the nightlies of the last N days (30), as the stamps in their versions say.
PYPI_PROJECT_QUOTA_GB (GiB, default 10) and PYPI_FILE_LIMIT_MB (MiB, default 100) record what was
granted. Exit 1 where less than N days are left.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Final

from channels import stamp_of
from files import ROOT
from findings import Outcome, Rule, apply_rules, run
from limits import file_limit, quota
from package_index import Index, from_environment
from publishing import mebibytes
from release_config import load_configuration

DAYS: Final = 30


@dataclass(frozen=True, slots=True)
class Stored:
    """One file of a project on the package index.

    Attributes:
        name: file name.
        size: in bytes.
        built: the time in a nightly's version; None for a final.
    """

    name: str
    size: int
    built: datetime | None


@dataclass(frozen=True, slots=True)
class Usage:
    """One project on the package index.

    Attributes:
        project: canonical name.
        files: everything that it holds.
        limit: its quota in bytes.
        now: when this was read.
        days: how far back the rate looks, and how many days must be left.
    """

    project: str
    files: tuple[Stored, ...]
    limit: int
    now: datetime
    days: int

    @property
    def used(self) -> int:
        """Bytes in all."""
        return sum(file.size for file in self.files)

    @property
    def daily(self) -> float:
        """Bytes of nightlies a day, over the days that nightlies were built in."""
        start = self.now - timedelta(days=self.days)
        recent = [file for file in self.files if file.built is not None and file.built > start]
        if not recent:
            return 0.0
        first = min(file.built for file in recent if file.built is not None)
        span = max(1, math.ceil((self.now - first) / timedelta(days=1)))
        return sum(file.size for file in recent) / span

    @property
    def days_left(self) -> float:
        """Days until the quota is full, infinite where nothing is added."""
        rest = max(0, self.limit - self.used)
        return rest / self.daily if self.daily else math.inf if rest else 0.0

    def __str__(self) -> str:
        left = "no nightlies" if math.isinf(self.days_left) else f"{self.days_left:.0f} days left"
        return (
            f"{self.project}: {len(self.files)} files, {mebibytes(self.used)} of "
            f"{mebibytes(self.limit)}, {mebibytes(round(self.daily))} a day, {left}"
        )


def _lasts(usages: tuple[Usage, ...]) -> Iterator[tuple[str, str]]:
    for usage in usages:
        if usage.days_left < usage.days:
            yield (
                usage.project,
                f"{usage.days_left:.0f} days are left at this rate, expected at least "
                f"{usage.days}; ask for more as printed above, or delete old nightlies there",
            )


RULES: Final[tuple[Rule[tuple[Usage, ...]], ...]] = (
    Rule("STAGE401", "The quota lasts as long as the rate was measured.", _lasts),
)


def read(index: Index, project: str, limit: int, now: datetime, days: int) -> Usage:
    """Read what the package index holds of a project.

    Raises:
        InconclusiveError: it did not answer.
    """
    files = tuple(
        Stored(file.name, index.size(file), stamp_of(file.version) if file.version else None)
        for file in index.files(project)
    )
    return Usage(project, files, limit, now, days)


def request(usages: Sequence[Usage], largest: int, limit: int) -> str:
    """How to ask the package index for higher limits, with the numbers that it asks for.

    Args:
        usages: the projects.
        largest: size of the largest file built, 0 where none was given.
        limit: the present limit of a file in bytes.
    """
    lines = [
        "How to ask for a higher limit (one request for each project; allow weeks):",
        "  1. Measure: `invoke stage FOLDER --channel release --publish no` prints the sizes and",
        "     sends nothing. --only DIST limits a release to the wheels that fit; a build with one",
        "     ABI (--abis V) is the smallest. The project needs one release under the old limit.",
        "  2. File a limit request with the package index, one for each project, stating:",
    ]
    lines += [f"       {usage}" for usage in usages]
    if largest:
        lines.append(f"       largest file {mebibytes(largest)}, limit {mebibytes(limit)}")
    lines += [
        "  3. Once granted, record it: PYPI_FILE_LIMIT_MB (MiB, a file) or PYPI_PROJECT_QUOTA_GB",
        "     (GiB, a project) as repository variables. Every check reads them.",
    ]
    return "\n".join(lines)


def _action(arguments: argparse.Namespace) -> Outcome:
    rows = load_configuration(arguments.root.resolve()).distributions
    index, now = from_environment("public"), datetime.now(timezone.utc)
    usages = tuple(read(index, each.name, quota(), now, arguments.days) for each in rows)
    for usage in usages:
        print(f"quota: {usage}")
    built = arguments.sizes.iterdir() if arguments.sizes else ()
    print(request(usages, max((path.stat().st_size for path in built), default=0), file_limit()))
    return apply_rules(RULES, usages)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="quota", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--days", type=int, default=DAYS, help="what the rate is measured over")
    parser.add_argument("--sizes", type=Path, help="folder of files that were built")
    parser.add_argument("--root", type=Path, default=ROOT, help="the project")
    parser.add_argument("--dry-run", action="store_true", help="the same: nothing is ever written")
    return run(parser, _action, argv)


if __name__ == "__main__":
    raise SystemExit(main())

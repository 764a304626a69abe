"""Rebuild every frozen binary and settle it with the committed one.

    python tools/freeze.py --version X.Y.Z [--settle] [--replace A,B] [--remove FILE,...]
        [--modules A,B] [--nvcc PATH] [--commit-log] [--dry-run] [--device-not-run TIER=REASON]

The CUDA modules go to build/fatbin-release, the CPU libraries to build/cpu; both are compared byte
for byte with the committed bin/ folders, and the settlement is left beside the build. Exit 1 while
anything is unsettled, or a device tier was neither run nor named with the reason. --commit-log
keeps the settlement, with the build's manifest, report and dump, in
docs/validation_logs/<date>/rc-fatbin/; --dry-run changes neither bin/ nor logs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import build_cpu
import build_fatbin
import frozen
import settlement
import tier_results
from files import ROOT, sha256_of, write_bytes, write_json
from findings import Outcome, Rule, UnusableError, apply_rules, run
from git_commands import Git
from project import add_waivers, load_project
from settlement import Family, Row
from tier import TIERS

SCHEMA: Final = "mmaemu.freeze/1"
LOG, TABLE = build_fatbin.SETTLEMENT
FOLDER: Final = "rc-fatbin"
FATBINS: Final = Path("build", "fatbin-release")
LIBRARIES: Final = Path("build", "cpu")
# T7 validates the wheel, which is built after the freeze.
DEVICE_TIERS: Final = tuple(
    name for name, tier in TIERS.items() if "device" in tier.parts and name != "t7"
)
Problems = Iterator[tuple[str, str]]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Facts:
    """A freeze once everything asked for is done.

    Attributes:
        stated: the tree's version.
        wanted: the version to be frozen.
        rows: the settlement.
        tiers: the committed results of the device tiers.
    """

    stated: str
    wanted: str
    rows: tuple[Row, ...]
    tiers: tier_results.Facts


def _version(facts: Facts) -> Problems:
    if facts.stated != facts.wanted:
        yield "the tree", f"has version {facts.stated}, expected {facts.wanted}"


def _settled(facts: Facts) -> Problems:
    for row in facts.rows:
        if not row.settled:
            what = f"{row.state} ({row.detail})" if row.detail else row.state
            yield f"{row.family.facts.folder}/{row.name}", f"{what}; {row.remedy}"


def _devices(facts: Facts) -> Problems:
    for tier, part, result in facts.tiers.deciding():
        if part != "device":
            continue
        counts = result is not None and not result.stale
        status = result.parts[part].get("status") if result and counts else tier_results.NOT_RUN
        if status == tier_results.PASSED:
            continue
        if status != tier_results.NOT_RUN or tier not in facts.tiers.waivers:
            yield (
                tier,
                f"its device part is {status} for this commit; run it, or name it with "
                f"--device-not-run {tier}=REASON if it could not run",
            )


RULES: Final[tuple[Rule[Facts], ...]] = (
    Rule("FRZ101", "The tree has the version to be frozen.", _version),
    Rule("FRZ102", "Every frozen binary is settled with its rebuild.", _settled),
    Rule("FRZ103", "Every device tier passed for HEAD, or is named with a reason.", _devices),
)


# --- rebuilding ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chosen:
    """What --modules names, family by family."""

    fatbins: tuple[str, ...]
    libraries: tuple[str, ...]


def choose(root: Path, text: str | None) -> Chosen:
    """The modules that a list names, all for None.

    Raises:
        UnusableError: a name is unknown, or there is none.
    """
    fatbins = list(build_fatbin.load_specs(root).modules)
    libraries = [target.module for target in build_cpu.TARGETS]
    names = frozen.chosen(text, [*fatbins, *libraries])
    return Chosen(
        tuple(name for name in fatbins if name in names),
        tuple(name for name in libraries if name in names),
    )


def rebuild_fatbins(
    root: Path, names: Sequence[str], nvcc: str | None, say: Say
) -> tuple[Family, Outcome]:
    """Rebuild CUDA modules into build/fatbin-release, and check what came out.

    Raises:
        UnusableError: the compiler is missing or failed.
    """
    specs = build_fatbin.load_specs(root)
    compiler = build_fatbin.open_compiler(nvcc, say)
    built = build_fatbin.build_all(root, specs, names, compiler)
    build_fatbin.write_build(root / FATBINS, built, compiler)
    rules = [rule for rule in build_fatbin.RULES if rule.check not in frozen.ON_FOLDERS]
    outcome = apply_rules(rules, build_fatbin.facts_of_build(root, specs, built))
    return (
        Family(
            build_fatbin.SCHEMA,
            build_fatbin.facts_in(root, specs, names),
            {each.spec.fatbin: each.data for each in built},
            {each.spec.fatbin: each.entry for each in built},
            settlement.compare_fatbins,
        ),
        outcome,
    )


def rebuild_libraries(root: Path, names: Sequence[str]) -> tuple[Family, Outcome]:
    """Rebuild CPU libraries into build/cpu, and check what came out.

    Raises:
        UnusableError: the compiler is missing or failed.
    """
    targets = tuple(target for target in build_cpu.TARGETS if target.module in names)
    made, entries = build_cpu.build_all(root, targets)
    frozen.write(root / LIBRARIES, build_cpu.SCHEMA, made, entries)
    facts = build_cpu.load(root, targets, None)
    family = Family(build_cpu.SCHEMA, facts, made, entries, settlement.compare_libraries)
    return family, build_cpu.check_build(root, targets, made, entries)


def rebuild(root: Path, chosen: Chosen, nvcc: str | None, say: Say) -> tuple[list[Family], Outcome]:
    """Rebuild what was chosen.

    Raises:
        UnusableError: a compiler is missing or failed.
    """
    families, outcome = [], Outcome()
    if chosen.fatbins:
        family, found = rebuild_fatbins(root, chosen.fatbins, nvcc, say)
        families.append(family)
        outcome += found
    if chosen.libraries:
        family, found = rebuild_libraries(root, chosen.libraries)
        families.append(family)
        outcome += found
    return families, outcome


def reread(root: Path, family: Family) -> Family:
    """A family with its folder as it is now."""
    folder = root / family.facts.folder
    facts = replace(
        family.facts,
        files=frozen.read_folder(folder),
        modules=frozen.read_manifest(folder, family.schema),
    )
    return replace(family, facts=facts)


# --- settling ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the maintainer asked for: --settle, --replace and --remove."""

    settle: bool
    replace: tuple[str, ...]
    remove: tuple[str, ...]

    def action(self, row: Row) -> Callable[[Path, Row], None] | None:
        """What is to be done about a row."""
        if row.state == settlement.SOURCES and self.settle:
            return settlement.settle
        if row.state in settlement.REPLACEABLE and row.module in self.replace:
            return settlement.replace
        if row.state == settlement.EXTRA and row.module in self.remove:
            return settlement.remove
        return None


def wishes(arguments: argparse.Namespace, rows: Sequence[Row]) -> Wishes:
    """The wishes, each of which names something that it concerns.

    Raises:
        UnusableError: a name is unknown, or needs something else.
    """
    known = {row.module: row for row in reversed(rows)}

    def listed(option: str, text: str | None, states: frozenset[str]) -> tuple[str, ...]:
        found = () if text is None else frozen.chosen(text, list(reversed(known)))
        for row in map(known.__getitem__, found):
            if row.state not in states | {settlement.UNCHANGED}:
                raise UnusableError(f"{option} {row.module}: {row.state}; {row.remedy}")
        return found

    return Wishes(
        arguments.settle,
        listed("--replace", arguments.replace, settlement.REPLACEABLE),
        listed("--remove", arguments.remove, frozenset({settlement.EXTRA})),
    )


def table(rows: Sequence[Row]) -> str:
    """The settlement as aligned lines."""
    cells = [(row.module, row.state, row.detail) for row in rows]
    widths = [max(len(cell[index]) for cell in cells) for index in range(2)]
    lines = [
        f"{module:<{widths[0]}}  {state:<{widths[1]}}  {detail}".rstrip()
        for module, state, detail in cells
    ]
    return "\n".join(lines) + "\n"


def document(
    root: Path, wanted: str, rows: Sequence[Row], waivers: Mapping[str, str]
) -> dict[str, Any]:
    """The freeze as it is logged."""
    git = Git(root)
    return {
        "schema": SCHEMA,
        "version": wanted,
        "commit": git.line("rev-parse", "HEAD"),
        "dirty": bool(git.names("status", "--porcelain", "-z", "--untracked-files=no")),
        "compilers": sorted(
            {str(each["compiler"]) for row in rows for each in row.family.entries.values()}
        ),
        "settled": all(row.settled for row in rows),
        "device_not_run": dict(waivers),
        "binaries": [
            {
                "file": f"{row.family.facts.folder}/{row.name}",
                "module": row.module,
                "state": row.state,
                "detail": row.detail,
                "committed": _digest(row.family.facts.files.get(row.name)),
                "rebuilt": _digest(row.family.made.get(row.name)),
            }
            for row in rows
        ],
    }


def _digest(data: bytes | None) -> str | None:
    return None if data is None else sha256_of(data)


def leave(folder: Path, rows: Sequence[Row], content: Mapping[str, Any]) -> None:
    """Write the settlement into a folder, as JSON and as a table."""
    write_json(folder / LOG, dict(content))
    write_bytes(folder / TABLE, table(rows).encode())


def log(root: Path, rows: Sequence[Row], content: Mapping[str, Any], *, fatbins: bool) -> Path:
    """Write the settlement to today's logs; returns where to."""
    if fatbins:
        folder = build_fatbin.commit_log(root, root / FATBINS, FOLDER)
    else:
        folder = frozen.log_folder(root, FOLDER)
    leave(folder, rows, content)
    return folder


# --- command line --------------------------------------------------------------------------------


def work(arguments: argparse.Namespace) -> Outcome:
    """Rebuild, settle and report."""
    root = arguments.root.resolve()

    def say(line: str) -> None:
        print(line, file=sys.stderr if arguments.json else sys.stdout)

    waivers = dict(arguments.device_not_run)
    tiers = tier_results.load_facts(root, waivers, tiers=DEVICE_TIERS, version=arguments.version)
    chosen = choose(root, arguments.modules)
    families, outcome = rebuild(root, chosen, arguments.nvcc, say)
    rows = [row for family in families for row in settlement.rows(family)]
    say(table(rows))
    wanted = wishes(arguments, rows)
    if outcome.findings:
        return outcome
    actions = [(action, row) for row in rows if (action := wanted.action(row)) is not None]
    for action, row in actions:
        would = "would " if arguments.dry_run else ""
        say(f"{would}{action.__name__} {row.family.facts.folder}/{row.name}")
        if not arguments.dry_run:
            action(root, row)
    if actions and not arguments.dry_run:
        families = [reread(root, family) for family in families]
        rows = [row for family in families for row in settlement.rows(family)]
        say(f"\n{table(rows)}")
    content = document(root, arguments.version, rows, waivers)
    leave(root / (FATBINS if chosen.fatbins else LIBRARIES), rows, content)
    if arguments.commit_log and not arguments.dry_run:
        say(f"log: {log(root, rows, content, fatbins=bool(chosen.fatbins))}")
    version = load_project(root).version
    return outcome + apply_rules(RULES, Facts(version, arguments.version, tuple(rows), tiers))


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="freeze", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", required=True, help="the version to be frozen")
    parser.add_argument(
        "--settle", action="store_true", help="update entries whose binary has the same bytes"
    )
    parser.add_argument("--replace", metavar="A,B", help="take these modules from the rebuild")
    parser.add_argument("--remove", metavar="FILE", help="take away files that are of no module")
    parser.add_argument("--modules", metavar="A,B", help="only these modules and libraries")
    parser.add_argument("--nvcc", help="an nvcc of the pinned version, whose toolkit is to be used")
    parser.add_argument("--commit-log", action="store_true", help="keep the log in the tree")
    parser.add_argument("--dry-run", action="store_true", help="change neither bin/ nor logs")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout")
    add_waivers(parser)
    return run(parser, work, argv)


if __name__ == "__main__":
    raise SystemExit(main())

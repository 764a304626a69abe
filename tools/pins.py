"""List the exact requirements of built wheels and compare them with the project's own list.

    python tools/pins.py WHEEL... [--write] [--dry-run] [--root DIR]

Requirements that are no exact `==` are none of the list. --write puts the list beside each wheel,
one `name==version` a line, under the name that the project gives.
"""

from __future__ import annotations

import argparse
import email
import email.message
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from files import ROOT, write_bytes
from findings import Outcome, Rule, SkipRule, UnusableError, apply_rules, run
from package_index import name_and_version
from release_config import Configuration, Distribution, load_configuration

Problems = Iterator[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Pinned:
    """A wheel's exact requirements and the project's list.

    Attributes:
        wheel: file name.
        found: exact requirements of the wheel by canonical name.
        listed: the exact ones of the project's list, None where the distribution has none.
        loose: the others of that list, as written.
        key: where the list is.
    """

    wheel: str
    found: dict[str, str]
    listed: dict[str, str] | None
    loose: tuple[str, ...] = ()
    key: str = ""

    @property
    def text(self) -> str:
        """The file beside the wheel."""
        return "".join(f"{name}=={version}\n" for name, version in self.found.items())


def exact(requirements: Iterable[str]) -> dict[str, str]:
    """The exact requirements among some, by canonical name, in their order.

    Those of an extra, with a wildcard, or with a second condition are not exact.
    """
    found: dict[str, str] = {}
    for text in requirements:
        requirement = Requirement(text)
        specifiers = list(requirement.specifier)
        plain = [each for each in specifiers if each.operator == "==" and "*" not in each.version]
        conditional = requirement.marker is not None and "extra" in str(requirement.marker)
        if len(specifiers) == len(plain) == 1 and not conditional:
            found[canonicalize_name(requirement.name)] = plain[0].version
    return found


def metadata_of(wheel: Path) -> email.message.Message:
    """The core metadata of a wheel.

    Raises:
        UnusableError: it is no wheel.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            name = next(name for name in names if name.endswith(".dist-info/METADATA"))
            return email.message_from_bytes(archive.read(name))
    except (OSError, zipfile.BadZipFile, StopIteration) as error:
        raise UnusableError(f"{wheel} is no wheel with metadata: {error!r}") from error


def pinned(wheel: Path, row: Distribution, configuration: Configuration) -> Pinned:
    """Read what the rule looks at.

    Raises:
        UnusableError: no wheel, or the project's list is no list of requirements.
    """
    required = metadata_of(wheel).get_all("Requires-Dist", [])
    listed = configuration.value(row.pins.list) if row.pins else []
    if row.pins and not (isinstance(listed, list) and listed):
        raise UnusableError(f"pyproject.toml has no list {row.pins.list}, which pins.list names")
    try:
        found = exact(required)
        loose = tuple(text for text in listed if not exact([text]))
        pins = exact(listed)
    except InvalidRequirement as error:
        raise UnusableError(f"{wheel.name} or {row.pins}: {error}") from error
    if row.pins is None:
        return Pinned(wheel.name, found, None)
    return Pinned(wheel.name, found, pins, loose, row.pins.list)


def _lockstep(wheel: Pinned) -> Problems:
    if wheel.listed is None:
        raise SkipRule(f"{wheel.wheel} has no list of pins to equal")
    for text in wheel.loose:
        yield "pyproject.toml", f"{wheel.key} holds {text!r}; pin it with =="
    for name in sorted(wheel.listed.keys() | wheel.found.keys()):
        if wheel.listed.get(name) != wheel.found.get(name):
            yield (
                wheel.wheel,
                f"requires {name} {wheel.found.get(name, '(not at all)')}, {wheel.key} says "
                f"{wheel.listed.get(name, '(nothing)')}; change both together and build again",
            )


RULES: Final[tuple[Rule[Pinned], ...]] = (
    Rule("NIGHT131", "The wheel's exact requirements are the project's own list.", _lockstep),
)


def _check(arguments: argparse.Namespace) -> Outcome:
    configuration = load_configuration(arguments.root.resolve())
    outcome = Outcome()
    for wheel in arguments.wheels:
        named = name_and_version(wheel.name)
        if named is None:
            raise UnusableError(f"{wheel} is not named like a wheel")
        row = configuration.distribution(named[0])
        found = pinned(wheel, row, configuration)
        for line in found.text.splitlines():
            print(f"pins: {wheel.name}: {line}")
        outcome += apply_rules(RULES, found)
        if arguments.write and row.pins is not None:
            path = wheel.with_name(row.pins.file)
            print(f"pins: {'would write' if arguments.dry_run else 'wrote'} {path}")
            if not arguments.dry_run:
                write_bytes(path, found.text.encode())
    return outcome


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="pins", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheels", nargs="+", type=Path, help="wheels of the project")
    parser.add_argument("--write", action="store_true", help="write the list beside each wheel")
    parser.add_argument("--dry-run", action="store_true", help="say what would be written")
    parser.add_argument("--root", type=Path, default=ROOT, help="the project")
    return run(parser, _check, argv)


if __name__ == "__main__":
    raise SystemExit(main())

"""What [tool.mmaemu.release] says about channels: distributions, pairing, checks.

    python tools/release_config.py [--root DIR]

The table is checked against tools/release.schema.json; every error names its key.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Final

import jsonschema
from packaging.utils import canonicalize_name

from files import ROOT, parse_toml
from findings import UnusableError, run
from project import load_project, pairing_of, version_in

SCHEMA: Final = Path(__file__).with_name("release.schema.json")
TABLE: Final = "tool.mmaemu.release"
_STATED: Final = ("additionalProperties", "required")


@dataclass(frozen=True, slots=True)
class VersionSource:
    """Where the base version is stated, and how a suffix gets into a build.

    Attributes:
        file: path in the tree.
        key: `__version__`, or a dotted key of a TOML file.
        stamp: "file" or "environment".
    """

    file: str
    key: str
    stamp: str


@dataclass(frozen=True, slots=True)
class BuildTag:
    """A build tag from the version of a pin.

    Attributes:
        pin: whose version.
        known: every version that was ever built against.
    """

    pin: str
    known: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pins:
    """Exact requirements of a wheel.

    Attributes:
        list: dotted key of pyproject.toml.
        file: name of the file beside the wheel.
    """

    list: str
    file: str


@dataclass(frozen=True, slots=True)
class Abis:
    """Extension variants, one for each release of a framework.

    Attributes:
        list: the releases.
        variable: environment variable by which a build takes fewer.
        file: path of a variant in the wheel, with {abi}.
        exports: path in the tree of the list of exported symbols.
    """

    list: tuple[str, ...]
    variable: str
    file: str
    exports: str


@dataclass(frozen=True, slots=True)
class Distribution:
    """One row: something with a name of its own on the package index.

    Attributes:
        name: as on the package index.
        version_source: where the base version is stated.
        runtime: file of the wheel that states `__version__`.
        build: command that builds one kind, with {python}, {kind} and {out}.
        kinds: what a release has of "wheel" and "sdist".
        verify: command that must succeed for each {file}, empty for none.
        build_tag: the rule for it, None for wheels without.
        pins: None for a wheel without exact requirements.
        abis: None for a wheel without variants.
    """

    name: str
    version_source: VersionSource
    runtime: str
    build: tuple[str, ...]
    kinds: tuple[str, ...]
    verify: tuple[str, ...] = ()
    build_tag: BuildTag | None = None
    pins: Pins | None = None
    abis: Abis | None = None


@dataclass(frozen=True, slots=True)
class Configuration:
    """The channels' part of the table.

    Attributes:
        root: folder of pyproject.toml.
        document: the parsed pyproject.toml.
        distributions: the rows.
        checks: commands that must succeed in the exported tree.
        branch: the branch that versions are built from.
        pairing: file and, where it holds one bare version, the name of what is paired.
    """

    root: Path
    document: Mapping[str, Any]
    distributions: tuple[Distribution, ...]
    checks: tuple[tuple[str, ...], ...]
    branch: str
    pairing: tuple[str, str | None] | None

    def distribution(self, name: str) -> Distribution:
        """A row by name.

        Raises:
            UnusableError: there is none of this name.
        """
        for row in self.distributions:
            if canonicalize_name(row.name) == canonicalize_name(name):
                return row
        known = ", ".join(row.name for row in self.distributions)
        raise UnusableError(f"{name!r} is no distribution; [{TABLE}] has {known}")

    def value(self, key: str) -> Any:  # noqa: ANN401 - whatever the key holds
        """The value of a dotted key of pyproject.toml, None where it is missing."""
        return value_at(self.document, key)

    def paired(self, text: str) -> dict[str, str]:
        """Which version of what belongs to a version, by the text of the pairing file."""
        name = self.pairing[1] if self.pairing else None
        if name is not None:
            return {name: text.strip()}
        own = self.document["project"]["name"]
        return {key: value for key, value in pairing_of(text).items() if key != own}


def stated_version(text: str, file: str, key: str) -> str:
    """The base version that the text of a version source states.

    Args:
        text: of the file.
        file: its path; a TOML file is read by its key.
        key: dotted key of a TOML file.

    Raises:
        UnusableError: it states none.
    """
    if not file.endswith(".toml"):
        return version_in(text, file)
    value = value_at(parse_toml(text), key)
    if not isinstance(value, str):
        raise UnusableError(f"{file} has no text {key}; state the base version there")
    return value


def value_at(document: Mapping[str, Any], key: str) -> Any:  # noqa: ANN401 - as the document
    """The value of a dotted key, None where it is missing."""
    found: Any = document
    for name in key.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


@cache
def schema() -> dict[str, Any]:
    """The JSON Schema of the table."""
    document: dict[str, Any] = json.loads(SCHEMA.read_text(encoding="utf-8"))
    return document


def problems(table: Mapping[str, Any]) -> Iterator[str]:
    """Every way in which a table breaks the schema, each beginning with the key."""
    found = list(schema_problems(schema(), table))
    yield from found or _beyond_the_schema(table)


def schema_problems(document: Mapping[str, Any], table: Mapping[str, Any]) -> Iterator[str]:
    """Every way in which a table breaks a JSON Schema, each beginning with the key."""
    validator = jsonschema.Draft202012Validator(document)
    errors = sorted(validator.iter_errors(table), key=lambda error: list(map(str, error.path)))
    for error in errors:
        key = error.json_path.removeprefix("$").removeprefix(".")
        # These two say which key they mean in their message, whose place is the table above it.
        place = f"{key}: " if key else ""
        if error.validator not in _STATED:
            place = f"{key} is {error.instance!r}: "
        yield f"{place}{error.message}"


def _beyond_the_schema(table: Mapping[str, Any]) -> Iterator[str]:
    names = [canonicalize_name(row["name"]) for row in table["distributions"]]
    for number, row in enumerate(table["distributions"]):
        where = f"distributions[{number}]"
        if names.count(names[number]) > 1:
            yield f"{where}.name is {row['name']!r}: the name occurs twice"
        paths = {
            "version_source.file": row["version_source"]["file"],
            "runtime": row["runtime"],
            "pins.file": row.get("pins", {}).get("file", ""),
        }
        for key, path in paths.items():
            if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
                yield f"{where}.{key} is {path!r}: expected a path inside the tree"
        source = row["version_source"]
        if source["stamp"] == "file" and not re.fullmatch(r"__\w+__", source["key"]):
            yield (
                f"{where}.version_source.key is {source['key']!r}: only a Python file with "
                "`__version__` can be stamped; use stamp = 'environment'"
            )
        if "build_tag" in row and "pins" not in row:
            yield f"{where}.build_tag needs pins, from which its version comes"


def load_configuration(root: Path) -> Configuration:
    """Read and check the table.

    Raises:
        UnusableError: the table breaks the schema; the message names every key.
    """
    project = load_project(root)
    table = project.table("release")
    found = list(problems(table))
    if found:
        lines = "\n".join(f"  {line}" for line in found)
        raise UnusableError(f"pyproject.toml [{TABLE}] is not what its schema says:\n{lines}")
    pairing = table.get("pairing")
    return Configuration(
        root=root,
        document=project.document,
        distributions=tuple(_distribution(row) for row in table["distributions"]),
        checks=tuple(tuple(command) for command in table.get("checks", ())),
        branch=str(table.get("golden", {}).get("branch", "main")),
        pairing=(pairing["file"], pairing.get("name")) if pairing else None,
    )


def _distribution(row: Mapping[str, Any]) -> Distribution:
    tag, pins, abis = (row.get(key) for key in ("build_tag", "pins", "abis"))
    return Distribution(
        name=row["name"],
        version_source=VersionSource(**row["version_source"]),
        runtime=row["runtime"],
        build=tuple(row["build"]),
        kinds=tuple(row["kinds"]),
        verify=tuple(row.get("verify", ())),
        build_tag=BuildTag(tag["pin"], tuple(tag["known"])) if tag else None,
        pins=Pins(**pins) if pins else None,
        abis=Abis(tuple(abis["list"]), abis["variable"], abis["file"], abis["exports"])
        if abis
        else None,
    )


def documented() -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Each table's name with its rows of key, "optional" or "", and meaning."""
    definitions = schema()["$defs"]
    rows = definitions["distribution"]["properties"]
    tables = {
        TABLE: schema(),
        f"{TABLE}.pairing": definitions["pairing"],
        f"{TABLE}.golden": definitions["golden"],
        f"{TABLE}.golden.canaries": definitions["canary"],
        f"{TABLE}.distributions": definitions["distribution"],
    }
    for key, value in rows.items():
        if value.get("type") == "object":
            tables[f"{TABLE}.distributions.{key}"] = value
    for name, table in tables.items():
        optional = set(table["properties"]) - set(table["required"])
        yield (
            name,
            [
                (f"`{key}`", "optional" if key in optional else "", str(row["description"]))
                for key, row in table["properties"].items()
            ],
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="release_config",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="the project")

    def action(arguments: argparse.Namespace) -> None:
        for row in load_configuration(arguments.root.resolve()).distributions:
            print(f"release_config: {row.name}: {', '.join(row.kinds)}")

    return run(parser, action, argv)


if __name__ == "__main__":
    raise SystemExit(main())

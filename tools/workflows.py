"""Workflow files as parsed YAML: every scalar a string, duplicate keys refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from findings import UnusableError

FOLDER: Final = ".github/workflows"
Table = Mapping[str, Any]


class _Loader(yaml.BaseLoader):
    """BaseLoader keeps `on`, `true` and `3.10` as written; this one also wants every key once."""


def _mapping(loader: yaml.BaseLoader, node: yaml.MappingNode) -> dict[str, Any]:
    pairs = [
        (loader.construct_object(key, deep=True), loader.construct_object(value, deep=True))
        for key, value in node.value
    ]
    keys = [key for key, _ in pairs]
    repeated = sorted({str(key) for key in keys if keys.count(key) > 1})
    if repeated:
        raise UnusableError(
            f"line {node.start_mark.line + 1}: the key {repeated[0]} occurs twice; the last one "
            "would win silently, remove one"
        )
    return dict(pairs)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a job, with its place for messages."""

    where: str
    table: Table

    @property
    def uses(self) -> str:
        """The action, "" for a command."""
        return str(self.table.get("uses", ""))

    @property
    def action(self) -> str:
        """The action without its revision."""
        return self.uses.partition("@")[0]

    @property
    def commands(self) -> tuple[str, ...]:
        """The lines of `run`."""
        lines = str(self.table.get("run", "")).splitlines()
        return tuple(line.strip() for line in lines if line.strip())

    @property
    def inputs(self) -> Table:
        """The `with` table."""
        return table_of(self.table.get("with"))


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a workflow."""

    where: str
    name: str
    table: Table

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps in order."""
        rows = self.table.get("steps", [])
        return tuple(
            Step(f"{self.where} step {number}", table_of(row))
            for number, row in enumerate(rows, start=1)
        )

    @property
    def condition(self) -> str:
        """The `if` expression with single blanks."""
        return " ".join(str(self.table.get("if", "")).split())


@dataclass(frozen=True, slots=True)
class Workflow:
    """One workflow file.

    Attributes:
        name: file name, for example "ci.yml".
        text: the file as written (comments count: they name the pinned versions).
        table: the parsed document.
    """

    name: str
    text: str
    table: Table

    @property
    def triggers(self) -> Any:  # noqa: ANN401 - a word, a list or a table, as the file has it
        """The `on` entry."""
        return self.table.get("on")

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs in order."""
        return tuple(
            Job(f"{self.name} {name}", name, table_of(job))
            for name, job in table_of(self.table.get("jobs")).items()
        )

    def job(self, name: str) -> Job:
        """One job, an empty one where it is missing."""
        return next((job for job in self.jobs if job.name == name), Job(self.name, name, {}))

    @property
    def steps(self) -> Iterator[Step]:
        """The steps of every job."""
        return (step for job in self.jobs for step in job.steps)


def table_of(value: Any) -> Table:  # noqa: ANN401 - whatever the document holds
    """A value as a table, empty where it is none."""
    return value if isinstance(value, Mapping) else {}


def parse(name: str, text: str) -> Workflow:
    """Parse a workflow.

    Raises:
        UnusableError: no YAML table, or a key twice.
    """
    try:
        document = yaml.load(text, Loader=_Loader)  # noqa: S506 - BaseLoader builds strings only
    except yaml.YAMLError as error:
        raise UnusableError(f"{FOLDER}/{name} is no YAML: {error}") from error
    except UnusableError as error:
        raise UnusableError(f"{FOLDER}/{name} {error}") from error
    if not isinstance(document, Mapping):
        raise UnusableError(f"{FOLDER}/{name} holds no table; write a workflow or remove the file")
    return Workflow(name, text, document)


def load(root: Path) -> dict[str, Workflow]:
    """Every workflow of a repository by file name.

    Raises:
        UnusableError: there is none, or one cannot be parsed.
    """
    paths = sorted((root / FOLDER).glob("*.y*ml"))
    if not paths:
        raise UnusableError(f"{root / FOLDER} holds no workflow")
    return {path.name: parse(path.name, path.read_text(encoding="utf-8")) for path in paths}

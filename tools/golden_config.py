"""What [tool.mmaemu.release.golden] says: where records live, and which canaries gate a nightly."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import release_config
from findings import UnusableError
from golden_records import LKG, TABLE, Places
from project import FRAGMENTS, REFERENCE, Project

TABLE_NAME: Final = f"{release_config.TABLE}.golden"
_DEFAULT_TIMEOUT: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Canary:
    """One consumer whose own tests decide about a nightly.

    Attributes:
        name: column of the table of records.
        kind: "checkout" (its commands run here) or "workflow" (its own scheduled run is awaited).
        repository: address of a checkout, owner/name of a workflow.
        branch: what is checked out or run.
        install: arguments of pip that install the consumer's own pins, "checkout" only.
        lanes: commands by name, all of which must pass; "{python}" is the environment's Python.
        timeout_s: after which a lane or a run is inconclusive.
        workflow: file name of the consumer's workflow, "workflow" only.
        report: address of the run's own report, "{run}" is the run's number, "workflow" only.
        pins: files in which the consumer pins the distribution, for downstream bumps.
    """

    name: str
    kind: str
    repository: str
    branch: str = "main"
    install: tuple[str, ...] = ()
    lanes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    timeout_s: float = _DEFAULT_TIMEOUT
    workflow: str = ""
    report: str = ""
    pins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Golden:
    """The whole table.

    Attributes:
        remote: address of the development repository, or a remote's name in the clone.
        branch: the branch that nightlies are built from.
        records: the branch of the two record files.
        label: label of the pull request that brings a record.
        stale_days: age of the newest golden commit from which a warning is printed.
        distribution: the distribution that is verified.
        package: its import name.
        index: role of the index that nightlies are taken from.
        workflow: file name of the workflow that builds nightlies.
        allowed: patterns of the paths in which a release may differ from a golden commit.
        fork: owner of the forks that take downstream bumps, "" for the consumers themselves.
        canaries: the consumers.
    """

    remote: str
    branch: str
    records: str
    label: str
    stale_days: int
    distribution: str
    package: str
    index: str
    workflow: str
    allowed: tuple[str, ...]
    fork: str
    canaries: tuple[Canary, ...]

    def places(self, url: str) -> Places:
        """Where the records live, at an address."""
        return Places(url, self.branch, self.records, self.label, self.stale_days)

    def canary(self, name: str) -> Canary:
        """One canary by name.

        Raises:
            UnusableError: there is none of this name.
        """
        for row in self.canaries:
            if row.name == name:
                return row
        known = ", ".join(row.name for row in self.canaries)
        raise UnusableError(f"{name!r} is no canary; [{TABLE_NAME}] has {known or 'none'}")


def load_golden(project: Project) -> Golden:
    """Read the table.

    Raises:
        UnusableError: a key is missing or has a wrong value; the message names the key.
    """
    table = project.table("release").get("golden", {})
    found = list(_problems(table))
    if found:
        lines = "\n".join(f"  {line}" for line in found)
        raise UnusableError(f"pyproject.toml [{TABLE_NAME}] is not what its schema says:\n{lines}")
    branch = str(table.get("branch", "main"))
    distribution = str(table.get("distribution", project.name))
    pairing = project.table("release").get("pairing", {}).get("file", REFERENCE)
    own = (project.version_file, "CHANGELOG.md", "CITATION.cff", REFERENCE, str(pairing))
    patterns = (*map(re.escape, own), rf"{FRAGMENTS}/.*", re.escape(LKG), re.escape(TABLE))
    return Golden(
        remote=str(table.get("remote", "origin")),
        branch=branch,
        records=str(table.get("records", branch)),
        label=str(table.get("label", "golden record")),
        stale_days=int(table.get("stale_days", 14)),
        distribution=distribution,
        package=str(table.get("package", distribution.replace("-", "_"))),
        index=str(table.get("index", "nightly")),
        workflow=str(table.get("workflow", "nightly.yml")),
        allowed=(*patterns, *map(str, table.get("allowed", ()))),
        fork=str(table.get("fork", "")),
        canaries=tuple(map(_canary, table.get("canaries", []))),
    )


def _problems(table: Mapping[str, Any]) -> Iterator[str]:
    schema = {"$ref": "#/$defs/golden", "$defs": release_config.schema()["$defs"]}
    yield from release_config.schema_problems(schema, table)
    names = [row.get("name") for row in table.get("canaries", [])]
    for name in sorted({str(name) for name in names if names.count(name) > 1}):
        yield f"canaries: the name {name!r} occurs twice; rename one"


def _canary(row: Mapping[str, Any]) -> Canary:
    lanes = {name: tuple(command) for name, command in row.get("lanes", {}).items()}
    listed = {key: tuple(row.get(key, ())) for key in ("install", "pins")}
    return Canary(
        name=row["name"],
        kind=row.get("kind", "checkout"),
        repository=row["repository"],
        branch=row.get("branch", "main"),
        install=listed["install"],
        lanes=lanes,
        timeout_s=float(row.get("timeout_s", _DEFAULT_TIMEOUT)),
        workflow=row.get("workflow", ""),
        report=row.get("report", ""),
        pins=listed["pins"],
    )

"""Choose the nightly that is to become golden, find its commit, and prove that it is that commit.

The commit comes from the manifest that the nightly run left, else from the run that was under way
at the version's second; either is proven by building the same bytes again. What cannot be decided
is said to be so, never guessed.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

import nightly_manifest
from channels import stamp_of
from findings import InconclusiveError, Rule, SkipRule, UnusableError
from golden_records import State, parse_time
from hosting import Hosting, Run
from package_index import IndexFile
from project import parse_version

if TYPE_CHECKING:
    from packaging.version import Version

Problems = Iterator[tuple[str, str]]
ARTIFACT: Final = "nightly-manifest"
# A hosted job ends after six hours; a nightly's stamp lies within its run.
_LONGEST_RUN: Final = dt.timedelta(hours=6)

# From (commit, version) to the sha256 of every wheel that the nightly's own build makes of it.
Rebuild = Callable[[str, str], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Facts:
    """What the rules look at.

    Attributes:
        version: the nightly.
        file: its wheel on the index, None where the index does not list it.
        commit: what it was built from.
        state: the development repository.
        manifest: what the nightly run left, None where nothing was found.
        rebuilt: sha256 by file name of a second build, None where it was not built.
    """

    version: str
    file: IndexFile | None
    commit: str
    state: State
    manifest: Mapping[str, Any] | None
    rebuilt: Mapping[str, str] | None


# --- choosing ------------------------------------------------------------------------------------


def nightly(text: str) -> Version | None:
    """A nightly's version, None for any other text."""
    parsed = parse_version(text)
    plain = parsed is not None and parsed.pre is None and parsed.local is None
    return parsed if parsed is not None and plain and stamp_of(parsed) else None


def wheels(files: tuple[IndexFile, ...]) -> dict[Version, list[IndexFile]]:
    """The wheels of every nightly."""
    found: dict[Version, list[IndexFile]] = {}
    for file in files:
        version = file.version
        if file.name.endswith(".whl") and version is not None and nightly(str(version)):
            found.setdefault(version, []).append(file)
    return found


def choose(files: tuple[IndexFile, ...], wanted: str | None) -> tuple[str, IndexFile | None]:
    """The nightly asked for, else the newest that is not yanked; and its wheel.

    Raises:
        UnusableError: no nightly at all, or the version asked for is none.
    """
    nightlies = wheels(files)
    if wanted is not None:
        parsed = nightly(wanted)
        if parsed is None:
            raise UnusableError(f"expected X.Y.Z.devYYYYMMDDHHMMSS, got {wanted!r}")
        return str(parsed), fitting(nightlies.get(parsed, []))
    offered = {
        version: [file for file in rows if not file.yanked] for version, rows in nightlies.items()
    }
    newest = max((version for version, rows in offered.items() if rows), default=None)
    if newest is None:
        raise UnusableError("the index lists no nightly that is not yanked; run the nightly first")
    return str(newest), fitting(offered[newest])


def fitting(files: list[IndexFile]) -> IndexFile | None:
    """The wheel that an installer on this machine would take."""
    order = {tag: number for number, tag in enumerate(sys_tags())}

    def place(file: IndexFile) -> int:
        tags = parse_wheel_filename(file.name)[3]
        return min((order[tag] for tag in tags if tag in order), default=len(order))

    ranked = sorted(files, key=place)
    return ranked[0] if ranked and place(ranked[0]) < len(order) else None


# --- its commit ----------------------------------------------------------------------------------


def read_manifest(version: str, folder: Path) -> dict[str, Any] | None:
    """The manifest of a nightly in a folder of manifests, None where there is none.

    Raises:
        UnusableError: the file is no manifest.
    """
    for path in sorted(folder.rglob("*.json")) if folder.is_dir() else ():
        document = _json(path.read_bytes(), str(path))
        if document.get("schema") == nightly_manifest.SCHEMA and document.get("version") == version:
            return document
    return None


def fetch_manifest(hosting: Hosting, repository: str, version: str) -> dict[str, Any] | None:
    """The manifest that a nightly run left as an artifact, None where none is of this version."""
    for archive in hosting.artifacts(repository, ARTIFACT):
        with zipfile.ZipFile(io.BytesIO(archive)) as content:
            for name in content.namelist():
                document = _json(content.read(name), name)
                if document.get("version") == version:
                    return document
    return None


def _json(data: bytes, where: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except ValueError as error:
        raise UnusableError(f"{where} is no JSON: {error}") from error
    return document if isinstance(document, dict) else {}


def commit_of(version: str, manifest: Mapping[str, Any] | None, runs: tuple[Run, ...]) -> str:
    """The commit of a nightly.

    Raises:
        InconclusiveError: no manifest, and not exactly one run that may have built it.
    """
    if manifest is not None:
        return str(manifest.get("commit", ""))
    parsed = nightly(version)
    stamp = stamp_of(parsed) if parsed else None
    under_way = [
        run
        for run in runs
        if stamp is not None
        and run.started_at
        and parse_time(run.started_at) <= stamp < parse_time(run.started_at) + _LONGEST_RUN
    ]
    commits = {run.commit for run in under_way}
    if len(commits) != 1:
        raise InconclusiveError(
            f"cannot decide which commit {version} was built from: no manifest, and "
            f"{len(commits)} commits had a nightly run under way then; give --manifests FOLDER "
            "with its nightly-manifest"
        )
    return commits.pop()


# --- rules ---------------------------------------------------------------------------------------


def _offered(facts: Facts) -> Problems:
    if facts.file is None:
        yield facts.version, "the index lists no wheel of it that can be installed here"
    elif facts.file.yanked:
        yield facts.file.name, "is yanked; choose another nightly"


def _on_the_branch(facts: Facts) -> Problems:
    facts.state.require_history()
    if facts.commit not in facts.state.order:
        yield (
            facts.version,
            f"its commit {facts.commit[:12] or '(none)'} is no ancestor of "
            f"{facts.state.places.branch} at the remote",
        )


def _manifest_agrees(facts: Facts) -> Problems:
    if facts.manifest is None:
        raise SkipRule("no manifest was found; the commit comes from the run's start")
    if facts.file is None:
        raise SkipRule("the index lists no wheel")
    rows = {row.get("file"): row.get("sha256") for row in facts.manifest.get("files", [])}
    if rows.get(facts.file.name) != facts.file.sha256:
        yield (
            facts.file.name,
            f"the index has sha256 {facts.file.sha256}, the manifest says "
            f"{rows.get(facts.file.name)}",
        )


def _rebuilt(facts: Facts) -> Problems:
    if facts.rebuilt is None or facts.file is None:
        raise SkipRule("the wheel was not built again", required=facts.file is not None)
    found = facts.rebuilt.get(facts.file.name)
    if found != facts.file.sha256:
        yield (
            facts.file.name,
            f"built again from {facts.commit[:12]} it has sha256 {found}, the index has "
            f"{facts.file.sha256}: the nightly is not proven to be this commit",
        )


RULES: Final[tuple[Rule[Facts], ...]] = (
    Rule("GOLD111", "The candidate is on the index and not yanked.", _offered),
    Rule("GOLD112", "The candidate's commit is an ancestor of the branch.", _on_the_branch),
    Rule("GOLD113", "The manifest names the very file that the index has.", _manifest_agrees),
    Rule("GOLD114", "Built again from its commit, the wheel has the same bytes.", _rebuilt),
)

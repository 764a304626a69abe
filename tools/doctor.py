"""Check what has to be set up once before nightlies, releases and golden commits can run.

    python tools/doctor.py [--variables FILE] [--secrets FILE] [--gate FILE] [--offline]

The files are what the hosting service's and the gate's clients print: `gh variable list --json
name,value`, `gh secret list --json name`, and {"builders": [..], "triggers": [..]} with the
identities registered at the gate. What is not given is not decided (exit 3), never taken as done.
A token's scopes cannot be read back: the finding's text and the header of golden.yml state them.
"""

from __future__ import annotations

import argparse
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import package_index
from files import ROOT
from findings import InconclusiveError, Outcome, Rule, SkipRule, UnusableError, apply_rules, run
from package_index import Index
from project import load_project
from release_config import problems

Problems = Iterator[tuple[str, str]]
HEADER: Final = ".github/workflows/golden.yml"
BUILDER: Final = "GATE_BUILDER_IDENTITY"
TRIGGER: Final = "GATE_TRIGGER_IDENTITY"


@dataclass(frozen=True, slots=True)
class Secret:
    """A token that golden.yml uses.

    Attributes:
        name: of the secret.
        needed: whether golden commits cannot be made without it.
        scopes: what it may do, and nothing else.
        jobs: the jobs of golden.yml that get it.
    """

    name: str
    needed: bool
    scopes: str
    jobs: tuple[str, ...]

    @property
    def line(self) -> str:
        """How the header of golden.yml lists it."""
        kind = "needed" if self.needed else "optional"
        return f"# {self.name} ({kind}): {self.scopes}"


SECRETS: Final = (
    Secret(
        "HOSTING_READ_TOKEN",
        needed=True,
        scopes="actions:read on this repository",
        jobs=("gate",),
    ),
    Secret(
        "CANARY_DISPATCH_TOKEN",
        needed=False,
        scopes="actions:write on the canaries' repositories",
        jobs=("gate",),
    ),
    Secret(
        "GOLDEN_RECORD_TOKEN",
        needed=True,
        scopes="contents:write, pull_requests:write and issues:write on this repository",
        jobs=("gate", "record"),
    ),
    Secret(
        "DOWNSTREAM_BUMP_TOKEN",
        needed=False,
        scopes="contents:write and pull_requests:write on the consumers or their forks",
        jobs=("downstream",),
    ),
)
# Repository variables: name, whether it is needed, what it holds.
VARIABLES: Final = (
    ("MMAEMU_NIGHTLY_INDEX_URL", True, "simple address of the nightly index"),
    ("MMAEMU_NIGHTLY_UPLOAD_URL", True, "where the nightly index takes uploads"),
    ("MMAEMU_STAGING_INDEX_URL", True, "simple address of the staging index"),
    ("MMAEMU_STAGING_UPLOAD_URL", True, "where the staging index takes uploads"),
    (BUILDER, True, "identity that the gate knows as this project's builder"),
    (TRIGGER, True, "identity that the gate knows as this project's trigger"),
    ("PYPI_FILE_LIMIT_MB", False, "the file limit once the index granted another than 100"),
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found.

    Attributes:
        table: [tool.mmaemu.release].
        header: the comments at the start of golden.yml.
        variables: repository variables, None where no file was given.
        secrets: names of the secrets, None where no file was given.
        gate: identities registered at the gate by role, None where no file was given.
        writable: by role, why an index cannot be written to, None where it can; None as a whole
            where no index was asked.
    """

    table: Mapping[str, Any]
    header: str
    variables: Mapping[str, str] | None
    secrets: frozenset[str] | None
    gate: Mapping[str, Sequence[str]] | None
    writable: Mapping[str, str | None] | None


def _table(facts: Facts) -> Problems:
    for line in problems(facts.table):
        yield "pyproject.toml [tool.mmaemu.release]", line


def _indexes(facts: Facts) -> Problems:
    if facts.writable is None:
        raise SkipRule("no index was asked; leave out --offline", required=True)
    for role, reason in facts.writable.items():
        if reason is not None:
            yield f"{role} index", reason


def _variables(facts: Facts) -> Problems:
    if facts.variables is None:
        raise SkipRule("give --variables FILE, as `gh variable list` prints it", required=True)
    for name, needed, meaning in VARIABLES:
        if needed and not facts.variables.get(name):
            yield name, f"the repository variable is not set; it holds the {meaning}"
    limit = facts.variables.get("PYPI_FILE_LIMIT_MB", "100")
    if not limit.isdecimal() or int(limit) < 1:
        yield "PYPI_FILE_LIMIT_MB", f"is {limit!r}, expected a number of MiB that was granted"


def _identities(facts: Facts) -> Problems:
    if facts.variables is None or facts.gate is None:
        raise SkipRule("give --variables FILE and --gate FILE", required=True)
    for variable, role in ((BUILDER, "builders"), (TRIGGER, "triggers")):
        identity = facts.variables.get(variable)
        if identity and identity not in facts.gate.get(role, ()):
            yield variable, f"the gate has no {identity} among its {role}; register it there"


def _secrets(facts: Facts) -> Problems:
    if facts.secrets is None:
        raise SkipRule("give --secrets FILE, as `gh secret list` prints it", required=True)
    for secret in SECRETS:
        if secret.needed and secret.name not in facts.secrets:
            yield secret.name, f"the secret is missing; create a token with {secret.scopes}"


def _header(facts: Facts) -> Problems:
    listed = [line for line in facts.header.splitlines() if "_TOKEN (" in line]
    for secret in SECRETS:
        if secret.line not in listed:
            yield HEADER, f"the header does not list `{secret.line}`"
    for line in listed:
        if line not in {secret.line for secret in SECRETS}:
            yield HEADER, f"the header lists `{line}`, which no job uses"


RULES: Final[tuple[Rule[Facts], ...]] = (
    Rule("GOLD171", "The release table is what its schema says.", _table),
    Rule("GOLD172", "The indexes take uploads from these credentials.", _indexes),
    Rule("GOLD173", "Every repository variable is set.", _variables),
    Rule("GOLD174", "Builder and trigger are registered at the gate.", _identities),
    Rule("GOLD175", "Every needed secret exists.", _secrets),
    Rule("GOLD176", "The header of golden.yml lists the secrets with their scopes.", _header),
)


# --- facts ---------------------------------------------------------------------------------------


def header_of(text: str) -> str:
    """The comment lines at the start of a workflow."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line)
    return "\n".join(lines)


def why_not_writable(index: Index) -> str | None:
    """Why an index would not take an upload, None where its answer is not about permission.

    What is sent is no upload: whoever may upload is told so, all others are turned away.
    """
    if index.upload_url is None:
        return f"MMAEMU_{index.role.upper()}_UPLOAD_URL is not set"
    form = urllib.parse.urlencode({":action": "doctor", "protocol_version": "1"}).encode()
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    request = index.request(index.upload_url, kind, method="POST")
    request.data = form
    try:
        with urllib.request.urlopen(request, timeout=index.timeout):  # noqa: S310 - see request
            return None
    except urllib.error.HTTPError as error:
        if error.code in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            return f"answers {error.code}: these credentials may not upload"
        if error.code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return f"answers {error.code}: it is out of order"
        return None
    except OSError as error:
        return f"does not answer: {error}"


def _writable() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for role in ("nightly", "staging"):
        try:
            found[role] = why_not_writable(package_index.from_environment(role))
        except (UnusableError, InconclusiveError) as error:
            found[role] = str(error)
    return found


def _json(path: Path | None) -> Any:  # noqa: ANN401 - whatever the client printed
    if path is None:
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnusableError(f"cannot read {path}: {error}") from error


def load(arguments: argparse.Namespace) -> Facts:
    """Read the table, the workflow, the clients' files, and ask the indexes."""
    root = arguments.root.resolve()
    workflow = root / HEADER
    variables, secrets = _json(arguments.variables), _json(arguments.secrets)
    return Facts(
        table=load_project(root).table("release"),
        header=header_of(workflow.read_text(encoding="utf-8")) if workflow.is_file() else "",
        variables=None if variables is None else {row["name"]: row["value"] for row in variables},
        secrets=None if secrets is None else frozenset(row["name"] for row in secrets),
        gate=_json(arguments.gate),
        writable=None if arguments.offline else _writable(),
    )


def _check(arguments: argparse.Namespace) -> Outcome:
    if arguments.dry_run:
        names = ", ".join(sorted({*os.environ} & {name for name, _, _ in VARIABLES})) or "none"
        print(f"doctor: would ask the indexes; variables set here: {names}")
        arguments.offline = True
    return apply_rules(RULES, load(arguments))


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="doctor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--variables", type=Path, help="repository variables, as JSON")
    parser.add_argument("--secrets", type=Path, help="names of the secrets, as JSON")
    parser.add_argument("--gate", type=Path, help="identities registered at the gate, as JSON")
    parser.add_argument("--offline", action="store_true", help="ask no index")
    parser.add_argument("--dry-run", action="store_true", help="as --offline; say what is asked")
    parser.add_argument("--root", type=Path, default=ROOT, help="the project")
    return run(parser, _check, argv)


if __name__ == "__main__":
    raise SystemExit(main())

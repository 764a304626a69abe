"""Check the publishing environment, the tag ruleset and the trusted publisher before the tag push.

ENV.json is the environment `pypi` as the hosting service's API returns it, RULESETS.json one
ruleset or a list of them, PUBLISHER.json what the package index shows: project, owner,
repository, workflow, environment, created and checked (RFC 3339, UTC), state (pending or active)
and project_status (the HTTP status of the project's page).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final

from files import ROOT
from findings import Outcome, Rule, SkipRule, UnusableError, apply_rules, run
from project import Release, load_project

ENVIRONMENT: Final = "pypi"
WORKFLOW: Final = "release.yml"
TAGS: Final = "refs/tags/v*"
RESTRICTIONS: Final = ("creation", "update", "deletion", "non_fast_forward")
# A pending publisher that no upload has used is deleted after 30 days; day 30 itself still counts.
PENDING_FOR: Final = timedelta(days=30)
NOT_FOUND: Final = 404
PAGE: Final = "docs/releasing.md"
Problems = Iterator[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Facts:
    """The three documents and whom they must name.

    Attributes:
        environment: the environment's document.
        rulesets: every ruleset's document.
        publisher: the trusted publisher's document, None where it was not given.
        release: the project's [tool.mmaemu.release].
    """

    environment: dict[str, Any]
    rulesets: tuple[dict[str, Any], ...]
    publisher: dict[str, Any] | None
    release: Release

    @property
    def reviewers(self) -> dict[str, Any] | None:
        """The required_reviewers rule of the environment, if any."""
        rules = self.environment.get("protection_rules", [])
        return next((rule for rule in rules if rule.get("type") == "required_reviewers"), None)

    @property
    def ruleset(self) -> dict[str, Any] | None:
        """The ruleset that includes the release tags, else the first one about tags."""
        about = [rules for rules in self.rulesets if TAGS in _included(rules)]
        about += [rules for rules in self.rulesets if rules.get("target") == "tag"]
        return about[0] if about else None


def _included(ruleset: dict[str, Any]) -> list[str]:
    included: list[str] = ruleset.get("conditions", {}).get("ref_name", {}).get("include", [])
    return included


def _name(facts: Facts) -> Problems:
    if facts.environment.get("name") != ENVIRONMENT:
        yield (
            "environment",
            f"the document is of {facts.environment.get('name')!r}, expected {ENVIRONMENT!r}; "
            "fetch the right one",
        )


def _reviewed(facts: Facts) -> Problems:
    rule = facts.reviewers
    if rule is None:
        yield (
            "environment",
            "no required_reviewers rule, so the publish job would upload at once; "
            "add the maintainer as required reviewer",
        )
        return
    logins = [entry.get("reviewer", {}).get("login") for entry in rule.get("reviewers", [])]
    if facts.release.maintainer not in logins:
        yield (
            "environment",
            f"the reviewers are {logins}, expected {facts.release.maintainer!r} among them",
        )


def _self_review(facts: Facts) -> Problems:
    rule = facts.reviewers
    if rule is None:
        raise SkipRule("there is no required_reviewers rule")
    if rule.get("prevent_self_review") is not False:
        yield (
            "environment",
            f"prevent_self_review is {rule.get('prevent_self_review')!r}, expected false: the "
            "maintainer pushes the tag and approves",
        )


def _ruleset(facts: Facts) -> dict[str, Any]:
    if facts.ruleset is None:
        raise SkipRule("there is no ruleset about release tags")
    return facts.ruleset


def _exists(facts: Facts) -> Problems:
    if facts.ruleset is None:
        yield "rulesets", f"no tag ruleset; create one for {TAGS}"


def _target(facts: Facts) -> Problems:
    target = _ruleset(facts).get("target")
    if target != "tag":
        yield "rulesets", f"target is {target!r}, expected 'tag'"


def _active(facts: Facts) -> Problems:
    state = _ruleset(facts).get("enforcement")
    if state != "active":
        yield "rulesets", f"enforcement is {state!r}, expected 'active'; a new ruleset is disabled"


def _includes(facts: Facts) -> Problems:
    included = _included(_ruleset(facts))
    if TAGS not in included:
        yield "rulesets", f"includes {included}, expected {TAGS!r} among them"


def _excludes(facts: Facts) -> Problems:
    excluded = _ruleset(facts).get("conditions", {}).get("ref_name", {}).get("exclude", [])
    if excluded:
        yield "rulesets", f"excludes {excluded}, expected nothing; remove the exclusions"


def _restricts(facts: Facts) -> Problems:
    present = [rule.get("type") for rule in _ruleset(facts).get("rules", [])]
    for kind in RESTRICTIONS:
        if kind not in present:
            yield "rulesets", f"the rule {kind!r} is missing; restrict it"


def _bypass(facts: Facts) -> Problems:
    actors = _ruleset(facts).get("bypass_actors", [])
    if not any(
        actor.get("actor_type") == "RepositoryRole" and actor.get("bypass_mode") == "always"
        for actor in actors
    ):
        yield (
            "rulesets",
            "no RepositoryRole bypass with mode 'always', so the maintainer's own tag push is "
            "rejected; add the repository admin role",
        )


def _publisher(facts: Facts) -> dict[str, Any]:
    if facts.publisher is None:
        raise SkipRule("give --publisher PUBLISHER.json to check the trusted publisher")
    return facts.publisher


def _fields(facts: Facts) -> Problems:
    publisher = _publisher(facts)
    expected = {
        "project": facts.release.repository,
        "owner": facts.release.owner,
        "repository": facts.release.repository,
        "workflow": WORKFLOW,
        "environment": ENVIRONMENT,
    }
    for key, value in expected.items():
        if publisher.get(key) != value:
            yield "publisher", f"{key} is {publisher.get(key)!r}, expected {value!r}; add it again"


def _instant(publisher: dict[str, Any], key: str) -> datetime:
    try:
        instant = datetime.fromisoformat(str(publisher[key]).replace("Z", "+00:00"))
    except (KeyError, ValueError) as error:
        raise UnusableError(
            f"publisher: {key!r} must be an RFC 3339 time such as 2026-01-31T12:00:00Z"
        ) from error
    if instant.utcoffset() is None:
        raise UnusableError(f"publisher: {key!r} has no time zone; write it in UTC with a Z")
    return instant.astimezone(timezone.utc)


def _not_expired(facts: Facts) -> Problems:
    publisher = _publisher(facts)
    if publisher.get("state") != "pending":
        raise SkipRule("the publisher is not pending")
    age = _instant(publisher, "checked") - _instant(publisher, "created")
    if age > PENDING_FOR:
        yield (
            "publisher",
            f"the pending publisher is {age.days} days old and was deleted after "
            f"{PENDING_FOR.days}; add it again with the same fields",
        )


def _name_is_free(facts: Facts) -> Problems:
    publisher = _publisher(facts)
    if publisher.get("state") != "pending":
        raise SkipRule("the publisher is not pending")
    status = publisher.get("project_status")
    if status != NOT_FOUND:
        yield (
            "publisher",
            f"the project's page answers {status}, expected {NOT_FOUND}: the name is taken, and "
            "a pending publisher cannot create it",
        )


RULES: Final[tuple[Rule[Facts], ...]] = (
    Rule("SNAP501", "The environment document is of the publishing environment.", _name),
    Rule("SNAP502", "The environment requires a review by the maintainer.", _reviewed),
    Rule("SNAP503", "The maintainer may review what the maintainer pushed.", _self_review),
    Rule("SNAP511", "A ruleset about release tags exists.", _exists),
    Rule("SNAP512", "The ruleset is about tags.", _target),
    Rule("SNAP513", "The ruleset is active.", _active),
    Rule("SNAP514", "The ruleset includes every release tag.", _includes),
    Rule("SNAP515", "The ruleset excludes nothing.", _excludes),
    Rule("SNAP516", "Creation, update, deletion and force pushes are restricted.", _restricts),
    Rule("SNAP517", "The repository admin role always bypasses the ruleset.", _bypass),
    Rule("SNAP521", "The trusted publisher's five fields are ours.", _fields),
    Rule("SNAP522", "A pending publisher is at most 30 days old.", _not_expired),
    Rule("SNAP523", "The name of a pending publisher's project is free.", _name_is_free),
)


def _read(path: Path) -> list[dict[str, Any]]:
    """The JSON object or objects in a file."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnusableError(f"cannot read {path}: {error}") from error
    documents = document if isinstance(document, list) else [document]
    if not documents or not all(isinstance(each, dict) for each in documents):
        raise UnusableError(f"{path} must hold a JSON object; fetch it as {PAGE} says")
    return documents


def load(environment: Path, rulesets: Path, publisher: Path | None, release: Release) -> Facts:
    """Read the documents.

    Raises:
        UnusableError: a file that is missing, no JSON, or of another shape.
    """
    return Facts(
        environment=_read(environment)[0],
        rulesets=tuple(_read(rulesets)),
        publisher=_read(publisher)[0] if publisher else None,
        release=release,
    )


def _check(arguments: argparse.Namespace) -> Outcome:
    release = load_project(arguments.root).release
    facts = load(arguments.environment, arguments.rulesets, arguments.publisher, release)
    return apply_rules(RULES, facts)


def main(argv: list[str] | None = None) -> int:
    """Entry point; see the module docstring."""
    parser = argparse.ArgumentParser(prog="check_hosting", description=__doc__)
    parser.add_argument("environment", type=Path, metavar="ENV.json")
    parser.add_argument("rulesets", type=Path, metavar="RULESETS.json")
    parser.add_argument("--publisher", type=Path, metavar="PUBLISHER.json")
    parser.add_argument("--root", type=Path, default=ROOT, help="the project")
    return run(parser, _check, argv)


if __name__ == "__main__":
    sys.exit(main())

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import check_hosting
from findings import apply_rules
from project import load_project

Documents = dict[str, Any]
PUBLISHER = {
    "project": "pkgx",
    "owner": "pkgx-project",
    "repository": "pkgx",
    "workflow": "release.yml",
    "environment": "pypi",
    "state": "pending",
    "created": "2026-11-01T12:00:00Z",
    "checked": "2026-11-30T12:00:00Z",
    "project_status": 404,
}
GOOD: Documents = {
    "environment": {
        "name": "pypi",
        "protection_rules": [
            {"type": "wait_timer"},
            {
                "type": "required_reviewers",
                "prevent_self_review": False,
                "reviewers": [{"type": "User", "reviewer": {"login": "keeper"}}],
            },
        ],
    },
    "rulesets": [
        {"target": "branch", "conditions": {"ref_name": {"include": ["~DEFAULT_BRANCH"]}}},
        {
            "target": "tag",
            "enforcement": "active",
            "conditions": {"ref_name": {"include": ["refs/tags/v*"], "exclude": []}},
            "rules": [
                {"type": kind} for kind in ("creation", "update", "deletion", "non_fast_forward")
            ],
            "bypass_actors": [{"actor_type": "RepositoryRole", "bypass_mode": "always"}],
        },
    ],
    "publisher": PUBLISHER,
}


def codes(documents: Documents, folder: Path, root: Path) -> set[str]:
    paths = {}
    for name, document in documents.items():
        paths[name] = folder / f"{name}.json"
        paths[name].write_text(json.dumps(document), encoding="utf-8")
    facts = check_hosting.load(
        paths["environment"], paths["rulesets"], paths["publisher"], load_project(root).release
    )
    return {finding.code for finding in apply_rules(check_hosting.RULES, facts).findings}


def _set(*path: Any, value: Any) -> Callable[[Documents], None]:
    def change(documents: Documents) -> None:
        place: Any = documents
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


REVIEWERS = ("environment", "protection_rules", 1)
RULESET = ("rulesets", 1)
MUTANTS: dict[str, tuple[Callable[[Documents], None], str]] = {
    "another environment": (_set("environment", "name", value="staging"), "SNAP501"),
    "no reviewers rule": (_set("environment", "protection_rules", value=[]), "SNAP502"),
    "somebody else reviews": (
        _set(*REVIEWERS, "reviewers", value=[{"reviewer": {"login": "other"}}]),
        "SNAP502",
    ),
    "self review prevented": (_set(*REVIEWERS, "prevent_self_review", value=True), "SNAP503"),
    "self review unknown": (_set(*REVIEWERS, "prevent_self_review", value=None), "SNAP503"),
    "no tag ruleset": (lambda documents: documents["rulesets"].pop(), "SNAP511"),
    "ruleset about branches": (_set(*RULESET, "target", value="branch"), "SNAP512"),
    "ruleset disabled": (_set(*RULESET, "enforcement", value="disabled"), "SNAP513"),
    "ruleset evaluates": (_set(*RULESET, "enforcement", value="evaluate"), "SNAP513"),
    "other tags": (
        _set(*RULESET, "conditions", "ref_name", "include", value=["refs/tags/release-*"]),
        "SNAP514",
    ),
    "excludes": (
        _set(*RULESET, "conditions", "ref_name", "exclude", value=["refs/tags/v0*"]),
        "SNAP515",
    ),
    "creation free": (lambda documents: documents["rulesets"][1]["rules"].pop(0), "SNAP516"),
    "force pushes free": (lambda documents: documents["rulesets"][1]["rules"].pop(), "SNAP516"),
    "no bypass": (_set(*RULESET, "bypass_actors", value=[]), "SNAP517"),
    "bypass by pull request": (
        _set(*RULESET, "bypass_actors", 0, "bypass_mode", value="pull_request"),
        "SNAP517",
    ),
    "bypass of a team": (_set(*RULESET, "bypass_actors", 0, "actor_type", value="Team"), "SNAP517"),
    "publisher of another workflow": (_set("publisher", "workflow", value="ci.yml"), "SNAP521"),
    "publisher 31 days old": (
        _set("publisher", "created", value="2026-10-30T12:00:00Z"),
        "SNAP522",
    ),
    "project exists": (_set("publisher", "project_status", value=200), "SNAP523"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_each_mutant_is_caught_by_exactly_its_rule(name: str, project: Any, tmp_path: Path) -> None:
    change, code = MUTANTS[name]
    documents = copy.deepcopy(GOOD)
    change(documents)
    assert codes(documents, tmp_path, project.root) == {code}


def test_the_right_documents_pass(project: Any, tmp_path: Path) -> None:
    assert codes(GOOD, tmp_path, project.root) == set()


@pytest.mark.parametrize(
    ("created", "expected"),
    [
        ("2026-10-31T12:00:00Z", set()),  # exactly 30 days: day 30 still counts
        ("2026-10-31T11:59:59Z", {"SNAP522"}),
        ("2026-10-31T14:00:00+02:00", set()),  # the same instant, written in another zone
        ("2026-10-31T13:59:59+02:00", {"SNAP522"}),
    ],
)
def test_day_30_is_counted_in_utc(
    created: str, expected: set[str], project: Any, tmp_path: Path
) -> None:
    documents = copy.deepcopy(GOOD)
    documents["publisher"]["created"] = created
    assert codes(documents, tmp_path, project.root) == expected


def test_an_active_publisher_neither_expires_nor_needs_a_free_name(
    project: Any, tmp_path: Path
) -> None:
    documents = copy.deepcopy(GOOD)
    documents["publisher"] |= {
        "state": "active",
        "created": "2020-01-01T00:00:00Z",
        "project_status": 200,
    }
    assert codes(documents, tmp_path, project.root) == set()


def test_unusable_input_and_exit_codes(
    project: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = []
    for name in ("environment", "rulesets"):
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(GOOD[name]), encoding="utf-8")
    root = ["--root", str(project.root)]
    assert check_hosting.main([*map(str, paths), *root]) == 0
    assert "SNAP521 skipped" in capsys.readouterr().out
    paths[0].write_text("[]", encoding="utf-8")
    assert check_hosting.main([*map(str, paths), *root]) == 2
    assert check_hosting.main([str(tmp_path / "missing.json"), str(paths[1]), *root]) == 2
    naive = tmp_path / "publisher.json"
    naive.write_text(json.dumps(PUBLISHER | {"created": "2026-11-01T12:00:00"}), encoding="utf-8")
    paths[0].write_text(json.dumps(GOOD["environment"]), encoding="utf-8")
    assert check_hosting.main([*map(str, paths), *root, "--publisher", str(naive)]) == 2
    assert "no time zone" in capsys.readouterr().err

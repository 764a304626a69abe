from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import check_release
from files import ROOT
from findings import apply_rules

CITATION = """\
cff-version: 1.2.0
message: Cite it.
title: pkgx
authors:
  - name: The pkgx project
version: "0.1.0"
date-released: "2026-11-30"
license: Apache-2.0
"""
WORKFLOW = """\
jobs:
  lint:
    steps: []
  test:
    strategy:
      matrix:
        python: ["3.10", "3.11"]
        torch: ["2.6.0", "2.13.0"]
"""
JOBS = ("lint", *(f"test ({p}, {t})" for p in ("3.10", "3.11") for t in ("2.6.0", "2.13.0")))


@pytest.fixture
def ready(repository: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stand-in package in release state; the citation is taken as valid."""
    monkeypatch.setattr(check_release, "validate_citation", lambda *_: (0, "valid"))
    pyproject = (repository.root / "pyproject.toml").read_text(encoding="utf-8")
    with_tiers = pyproject.replace("owner =", 'tiers = ["t0", "t3"]\nowner =')
    repository.write("pyproject.toml", with_tiers)
    repository.write(".github/workflows/ci.yml", WORKFLOW)
    repository.write("CITATION.cff", CITATION)
    repository.write("docs/releasing.md", "# Releasing\n\n### H01 Push\n")
    repository.write("docs/reference/requirements.md", "| R1 | It is pushed. | `H01` |\n")
    repository.write("reference.version", "pkgx 0.1.0\ntorch 2.7.1\n")
    commit = repository.commit("code")
    repository.candidate("0.1.0")
    repository.tier_result("t0", commit, host="pass")
    repository.tier_result("t3", commit, host="pass", device="pass")
    repository.commit("records")
    jobs = [{"name": name, "conclusion": "success"} for name in JOBS]
    matrix = {"headSha": commit, "jobs": jobs}
    (tmp_path / "matrix.json").write_text(json.dumps(matrix), encoding="utf-8")
    return repository


def state(ready: Any) -> tuple[set[str], int]:
    matrix = ready.root.parent / "matrix.json"
    outcome = apply_rules(
        check_release.RULES, check_release.load_facts(ready.root, "0.1.0", matrix)
    )
    return {finding.code for finding in outcome.findings}, outcome.exit_code


def test_the_release_state_passes(ready: Any) -> None:
    assert state(ready) == (set(), 0)


def _edit(name: str, old: str, new: str) -> Callable[[Any], None]:
    def change(ready: Any) -> None:
        path = ready.root / name
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")
        ready.commit("change")

    return change


def _matrix(change_document: Callable[[Any], None]) -> Callable[[Any], None]:
    def change(ready: Any) -> None:
        path = ready.root.parent / "matrix.json"
        document = json.loads(path.read_text(encoding="utf-8"))
        change_document(document)
        path.write_text(json.dumps(document), encoding="utf-8")

    return change


def _fragment(ready: Any) -> None:
    ready.write("changelog.d/1.fixed.md", "x\n")


MUTANTS: dict[str, tuple[Callable[[Any], None], str]] = {
    "citation of another version": (_edit("CITATION.cff", "0.1.0", "0.1.1"), "REL101"),
    "citation with a bare version": (_edit("CITATION.cff", '"0.1.0"', "0.1.0"), "REL101"),
    "changelog of another version": (_edit("CHANGELOG.md", "## 0.1.0", "## 0.0.9"), "REL101"),
    "undated heading": (_edit("CHANGELOG.md", " (2026-11-30)", ""), "REL101"),
    "reference of another version": (_edit("reference.version", "0.1.0", "0.1.1"), "REL101"),
    "a fragment is left": (_fragment, "REL102"),
    "a point failed": (_matrix(lambda d: d["jobs"][1].update(conclusion="failure")), "REL205"),
    "a point was skipped": (_matrix(lambda d: d["jobs"][1].update(conclusion="skipped")), "REL205"),
    "a point is missing": (_matrix(lambda d: d["jobs"].pop()), "REL205"),
    "a run of something unknown": (_matrix(lambda d: d.update(headSha="0" * 40)), "REL205"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_each_mutant_is_caught_by_exactly_its_rule(name: str, ready: Any) -> None:
    change, code = MUTANTS[name]
    change(ready)
    assert state(ready)[0] == {code}


def test_a_run_on_the_snapshot_counts_by_its_tree(ready: Any) -> None:
    snapshot = ready.git("commit-tree", "HEAD^{tree}", "-m", "pkgx 0.1.0")
    _matrix(lambda document: document.update(headSha=snapshot))(ready)
    assert state(ready) == (set(), 0)
    ready.write("pkgx/more.py", "x = 1\n")
    ready.commit("code")
    assert state(ready)[0] == {"REL205"}


def test_a_matrix_result_that_is_not_given_is_inconclusive(
    ready: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_release.main(["--root", str(ready.root)]) == 3
    assert "REL205 not decided: give --matrix" in capsys.readouterr().out
    assert check_release.main(["--root", str(ready.root), "--matrix", "/nonexistent"]) == 2
    assert check_release.main(["--root", str(ready.root), "--version", "0.2.0"]) == 1


def test_pages_and_tier_results_are_part_of_the_release_state(
    ready: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--root", str(ready.root), "--matrix", str(tmp_path / "matrix.json")]
    assert check_release.main(arguments) == 0
    assert check_release.main([*arguments, "--device-not-run", "T3=no GPU"]) == 1
    assert "CHANGELOG.md: REL204" in capsys.readouterr().out
    ready.write("docs/page.md", "See log:2026-11-30/t9.\n")
    assert check_release.main(arguments) == 1
    assert "docs/page.md: DOC202" in capsys.readouterr().out


def test_an_invalid_citation_is_found(ready: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_release, "validate_citation", lambda *_: (1, "bad date"))
    assert state(ready)[0] == {"REL103"}


VALID = {
    "as it is": ("", ""),
    "date unquoted": ('"2026-11-30"', "2026-11-30"),
    "version as a number": ('"0.1.0"', "0.1"),
}
INVALID = {
    "date with slashes": ('"2026-11-30"', "2026/11/30"),
    "date and time": ('"2026-11-30"', '"2026-11-30T12:00:00Z"'),
    "no such day": ('"2026-11-30"', '"2026-02-31"'),
    "licence with a blank": ("Apache-2.0", "Apache 2.0"),
    "DOI as an address": ("cff-version", "doi: https://doi.org/10.5281/zenodo.1\ncff-version"),
    "unknown key": ("license:", "licence: x\nlicense:"),
    "ORCID without address": (
        "- name: The pkgx project",
        "- family-names: A\n    orcid: 0000-0001-2345-6789",
    ),
    "repository by ssh": ("title:", "repository-code: git@host.invalid:a/b.git\ntitle:"),
    "unknown format": ("cff-version: 1.2.0", "cff-version: 1.3.0"),
    "no authors": ("authors:\n  - name: The pkgx project\n", ""),
}


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("environments")


@pytest.mark.t5
@pytest.mark.parametrize("name", [*VALID, *INVALID])
def test_cffconvert_itself_judges_the_citation(
    name: str, environments: Path, tmp_path: Path
) -> None:
    # B46: values that only the real validator tells apart.
    old, new = {**VALID, **INVALID}[name]
    assert old in CITATION
    path = tmp_path / "CITATION.cff"
    path.write_text(CITATION.replace(old, new) if old else CITATION, encoding="utf-8")
    code, output = check_release.validate_citation(path, environments)
    assert (code == 0) == (name in VALID), output


@pytest.mark.t5
def test_our_citation_is_valid_and_a_missing_one_is_not(environments: Path, tmp_path: Path) -> None:
    ours = ROOT / "CITATION.cff"
    assert check_release.validate_citation(ours, environments)[0] == 0
    assert check_release.validate_citation(tmp_path / "CITATION.cff", environments)[0] == 1

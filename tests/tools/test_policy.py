"""The repository keeps its own rules, and each rule is shown to fail."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import check_repo
import generate_docs
from facts import RepoFacts, TrackedFile, load_repo
from files import ROOT, read_toml
from findings import UnusableError

RULES = {rule.code: rule for rule in check_repo.RULES}


@pytest.fixture(scope="module")
def repo() -> RepoFacts:
    return load_repo(ROOT)


def with_file(facts: RepoFacts, path: str, data: bytes | str, mode: str = "100644") -> RepoFacts:
    raw = data.encode() if isinstance(data, str) else data
    return replace(facts, files={**facts.files, path: TrackedFile(path, mode, raw)})


def edited(facts: RepoFacts, path: str, old: str, new: str) -> RepoFacts:
    text = facts.text(path)
    assert old in text
    return with_file(facts, path, text.replace(old, new), facts.files[path].mode)


def with_pyproject(facts: RepoFacts, change: Callable[[dict[str, Any]], object]) -> RepoFacts:
    document = read_toml(ROOT / "pyproject.toml")
    change(document)
    return replace(facts, pyproject=document)


def found(code: str, facts: RepoFacts) -> list[str]:
    return [f"{where}: {text}" for where, text in RULES[code].check(facts)]


def test_the_repository_keeps_its_rules() -> None:
    outcome = check_repo.check(ROOT)
    assert [str(finding) for finding in outcome.findings] == []
    assert outcome.skipped == ()


SLASH = "/"
HOST = "pypi" + ".org"
UNKNOWN = "MMAEMU" + "_NO_SUCH_THING"
BY_NAME = "pip install " + "mmaemu"

MUTANTS: Mapping[str, tuple[str, Callable[[RepoFacts], RepoFacts]]] = {
    "a home folder": (
        "REPO101",
        lambda facts: with_file(facts, "docs/a.md", f"see {SLASH}home/ann/mmaemu\n"),
    ),
    "a temporary folder": (
        "REPO101",
        lambda facts: with_file(facts, "tools/a.py", f'PATH = "{SLASH}tmp/out"\n'),
    ),
    "a Windows home": (
        "REPO101",
        lambda facts: with_file(facts, "docs/a.md", "C:" + "\\Users\\ann\n"),
    ),
    "an index host": (
        "REPO102",
        lambda facts: with_file(facts, "docs/a.md", f"https://{HOST}/simple\n"),
    ),
    "an index option": (
        "REPO102",
        lambda facts: with_file(facts, ".ci/x", "pip install --index-url" + " http://mirror/ x\n"),
    ),
    "a notebook": ("REPO103", lambda facts: with_file(facts, "docs/try.ipynb", "{}\n")),
    "a merge leftover": ("REPO103", lambda facts: with_file(facts, "README.md.orig", "x\n")),
    "bytecode": (
        "REPO103",
        lambda facts: with_file(facts, "mmaemu/__pycache__/a.cpython-311.pyc", b"\0"),
    ),
    "a large file": (
        "REPO104",
        lambda facts: with_file(facts, "docs/film.png", bytes(check_repo.FILE_LIMIT + 1)),
    ),
    "a large repository": (
        "REPO104",
        lambda facts: with_file(
            facts, "tests/recordings/x/arrays.npz", bytes(check_repo.TOTAL_LIMIT)
        ),
    ),
    "carriage returns": ("REPO105", lambda facts: with_file(facts, "docs/a.md", b"a\r\nb\r\n")),
    "a byte order mark": (
        "REPO105",
        lambda facts: with_file(facts, "docs/a.md", b"\xef\xbb\xbfa\n"),
    ),
    "no final newline": ("REPO105", lambda facts: with_file(facts, "docs/a.md", b"a")),
    "a stray executable": (
        "REPO106",
        lambda facts: with_file(facts, "docs/a.md", b"a\n", mode="100755"),
    ),
    "a script that cannot run": (
        "REPO106",
        lambda facts: with_file(facts, ".ci/more", b"#!/bin/sh\n"),
    ),
    "a link": ("REPO106", lambda facts: with_file(facts, "docs/b", b"a.md", mode="120000")),
    "another version cited": (
        "REPO201",
        lambda facts: edited(facts, "CITATION.cff", 'version: "', 'version: "9.'),
    ),
    "a version cited as a number": (
        "REPO201",
        lambda facts: with_file(
            facts,
            "CITATION.cff",
            re.sub(r'version: ".*"', "version: 0.1", facts.text("CITATION.cff")),
        ),
    ),
    "a date with slashes": (
        "REPO201",
        lambda facts: with_file(
            facts,
            "CITATION.cff",
            re.sub(r'released: ".*"', 'released: "2026/11/30"', facts.text("CITATION.cff")),
        ),
    ),
    "another licence cited": (
        "REPO201",
        lambda facts: edited(facts, "CITATION.cff", "license: Apache-2.0", "license: Apache 2.0"),
    ),
    "no authors": (
        "REPO201",
        lambda facts: edited(facts, "CITATION.cff", "authors:", "contact:"),
    ),
    "a citation that is no YAML": (
        "REPO201",
        lambda facts: with_file(facts, "CITATION.cff", "a: [\n"),
    ),
    "an unknown variable": (
        "REPO202",
        lambda facts: with_file(facts, "docs/a.md", f"Set {UNKNOWN}.\n"),
    ),
    "an undocumented variable": (
        "REPO202",
        lambda facts: edited(facts, "docs/reference/settings.md", "`MMAEMU_PROFILE`", "`X`"),
    ),
    "another reader of the environment": (
        "REPO203",
        lambda facts: with_file(facts, "mmaemu/more.py", "import os\nHOME = os.environ['HOME']\n"),
    ),
    "a classifier that is not tested": (
        "REPO204",
        lambda facts: with_pyproject(
            facts,
            lambda document: document["project"]["classifiers"].append(
                "Programming Language :: Python :: 3.14"
            ),
        ),
    ),
    "a floor that is not tested": (
        "REPO204",
        lambda facts: with_pyproject(
            facts,
            lambda document: document["tool"]["mmaemu"]["matrix"]["torch"].update(floor="2.5.0"),
        ),
    ),
    "an older Python allowed": (
        "REPO204",
        lambda facts: with_pyproject(
            facts, lambda document: document["project"].update({"requires-python": ">=3.9"})
        ),
    ),
    "constraints of another torch": (
        "REPO204",
        lambda facts: with_file(facts, "constraints.txt", "torch==2.6.0\n"),
    ),
    "a build backend that is not pinned": (
        "REPO205",
        lambda facts: with_pyproject(
            facts, lambda document: document["build-system"].update(requires=["hatchling>=1.27"])
        ),
    ),
    "two pins of the build backend": (
        "REPO205",
        lambda facts: with_pyproject(
            facts, lambda document: document["build-system"].update(requires=["hatchling==1.0"])
        ),
    ),
    "a long README": (
        "REPO206",
        lambda facts: with_file(facts, "README.md", facts.text("README.md") + "more\n" * 100),
    ),
    "a README without its test command": (
        "REPO206",
        lambda facts: edited(facts, "README.md", "<!-- test command -->", ""),
    ),
    "installation by name": (
        "REPO206",
        lambda facts: with_file(facts, "docs/a.md", f"Run `{BY_NAME}`.\n"),
    ),
    "an unknown kind of fragment": (
        "REPO207",
        lambda facts: with_file(facts, "changelog.d/2.bugfix.md", "x\n"),
    ),
    "a fragment without a name": (
        "REPO207",
        lambda facts: with_file(facts, "changelog.d/added.md", "x\n"),
    ),
    "numerics not first": (
        "REPO207",
        lambda facts: with_pyproject(
            facts, lambda document: document["tool"]["towncrier"]["type"].reverse()
        ),
    ),
    "an edited licence": (
        "REPO208",
        lambda facts: with_file(facts, "LICENSE", facts.text("LICENSE").replace("2004", "2005")),
    ),
    "a notice without the toolbox": (
        "REPO208",
        lambda facts: edited(facts, "NOTICE", "Mantas Mikaitis", "others"),
    ),
    "another pairing packaged": (
        "REPO209",
        lambda facts: edited(facts, "mmaemu/_reference.json", "12.8.3.14", "12.9.0.13"),
    ),
    "another version paired": (
        "REPO209",
        lambda facts: edited(facts, "reference.version", "mmaemu ", "mmaemu 9."),
    ),
}


@pytest.mark.parametrize(("code", "mutate"), MUTANTS.values(), ids=MUTANTS.keys())
def test_each_violation_is_found(
    repo: RepoFacts, code: str, mutate: Callable[[RepoFacts], RepoFacts]
) -> None:
    before = set(found(code, repo))
    assert set(found(code, mutate(repo))) > before


def test_every_rule_has_a_mutant() -> None:
    assert {code for code, _ in MUTANTS.values()} == RULES.keys()


def test_no_checkout_is_not_a_pass(tmp_path: Path) -> None:
    with pytest.raises(UnusableError, match="no git checkout"):
        load_repo(tmp_path)
    assert check_repo.main(["--root", str(tmp_path)]) == 2


def test_a_third_partys_text_is_kept_to_the_letter(repo: RepoFacts) -> None:
    assert found("REPO105", with_file(repo, "LICENSES/x.txt", b"no newline")) == []


def test_a_macro_is_no_variable(repo: RepoFacts) -> None:
    facts = with_file(repo, "mmaemu/a.h", f"#define {UNKNOWN} 1\n")
    assert found("REPO202", with_file(facts, "tools/a.py", f'FLAG = "-D{UNKNOWN}"\n')) == []


def test_ci_runs_the_readmes_test_command() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    extraction = next(
        line.removeprefix("test_command=$(").removesuffix(")")
        for line in script.splitlines()
        if line.startswith("test_command=")
    )
    done = subprocess.run(
        ["bash", "-c", extraction], cwd=ROOT, check=True, capture_output=True, text=True
    )
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert done.stdout.splitlines() == check_repo.commands(readme, "test command")
    assert '"$test_command"' in script


def test_generated_documentation_is_current() -> None:
    assert [target.path for target, _ in generate_docs.stale(ROOT)] == []


def test_stale_documentation_is_seen() -> None:
    target = generate_docs.TARGETS[0]
    text = (ROOT / target.path).read_text(encoding="utf-8")
    assert generate_docs.updated(target, text) == text
    changed = text.replace("| `ada` |", "| `adb` |")
    assert changed != text
    assert generate_docs.updated(target, changed) == text
    with pytest.raises(UnusableError, match="no part"):
        generate_docs.updated(target, "# mmaemu\n")

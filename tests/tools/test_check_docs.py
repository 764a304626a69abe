from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import check_docs
from files import ROOT
from findings import apply_rules

PAGES = {
    "docs/index.md": """\
# Index

See [releasing](releasing.md#by-hand-steps), [the code](../pkg/mod.py), [here](#index) and
[a site](https://host.invalid/). Not a link: `[x](nowhere.md)`.
All 1,250<!-- log:2026-11-30/t2#host.counts.passed --> outputs are equal
(log:2026-11-30/t2), 12.5 %<!-- log:0.1.0_cpu#share --> of them twice (log:0.1.0_cpu).

```text
[y](nowhere-either.md)
```
""",
    "docs/releasing.md": "# Releasing\n\n## By-hand `steps`\n\n### H01 One\n\n### H02 Two\n",
    "docs/reference/requirements.md": """\
# Requirements

| number | what | proof |
| --- | --- | --- |
| R1 | One thing. | `tests/unit/test_a.py::test_one`, `DIST101` |
| R2 | Another thing. | `H01`, `tests/unit/test_a.py::test_two` |
""",
    "docs/reference/checks.md": "| code | what |\n| --- | --- |\n| DIST101 | A rule. |\n",
    "docs/validation_logs/2026-11-30/t2/t2.json": '{"host": {"counts": {"passed": 1250}}}',
    "docs/release_logs/0.1.0_cpu.json": '{"share": 12.5}',
    "pkg/mod.py": "",
    "tests/unit/test_a.py": """\
import pytest

def test_one():
    pass

@pytest.mark.parametrize("x", [1, 2])
def test_two(x):
    pass
""",
}
JUNIT = """\
<testsuites><testsuite>
<testcase classname="tests.unit.test_a" name="test_one"/>
<testcase classname="tests.unit.test_a" name="test_two[1]"/>
<testcase classname="tests.unit.test_a" name="test_two[2]"/>
</testsuite></testsuites>
"""
REQUIREMENTS = "docs/reference/requirements.md"
TESTS = "tests/unit/test_a.py"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in PAGES.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (tmp_path / "junit.xml").write_text(JUNIT, encoding="utf-8")
    return tmp_path / "tree"


def codes(tree: Path) -> set[str]:
    facts = check_docs.load_facts(tree, [tree.parent / "junit.xml"])
    return {finding.code for finding in apply_rules(check_docs.RULES, facts).findings}


def _edit(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(tree: Path) -> None:
        path = tree / name
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new, 1), encoding="utf-8")

    return change


MUTANTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "link to nothing": (_edit("docs/index.md", "pkg/mod.py", "pkg/mode.py"), "DOC201"),
    "link out of the repository": (_edit("docs/index.md", "../pkg", "../../pkg"), "DOC201"),
    "anchor of nothing": (_edit("docs/index.md", "#by-hand-steps", "#by-hand"), "DOC201"),
    "anchor in the page": (_edit("docs/index.md", "(#index)", "(#indexes)"), "DOC201"),
    "picture of nothing": (
        _edit("docs/index.md", "See ", '<img alt="x" src="x.png"> See '),
        "DOC201",
    ),
    "log that was never committed": (
        _edit("docs/index.md", "(log:2026-11-30/t2)", "(log:2026-11-30/t3)"),
        "DOC202",
    ),
    "report that was never committed": (
        _edit("docs/index.md", "(log:0.1.0_cpu)", "(log:0.1.0_gpu)"),
        "DOC202",
    ),
    "number that differs": (_edit("docs/index.md", "1,250", "1,251"), "DOC203"),
    "percentage that differs": (_edit("docs/index.md", "12.5 %", "12.4 %"), "DOC203"),
    "number that the log lacks": (_edit("docs/index.md", "counts.passed", "counts.all"), "DOC203"),
    "gap in the numbers": (_edit(REQUIREMENTS, "| R2 |", "| R3 |"), "DOC301"),
    "sentence without proof": (
        _edit(REQUIREMENTS, "`H01`, `tests/unit/test_a.py::test_two`", ""),
        "DOC302",
    ),
    "proof that is none": (_edit(REQUIREMENTS, "`H01`", "`by hand`"), "DOC302"),
    "test that is missing": (_edit(REQUIREMENTS, "test_two", "test_three"), "DOC303"),
    "test that is marked": (_edit(TESTS, "@pytest", "@pytest.mark.skip\n@pytest"), "DOC304"),
    "test that may fail": (
        _edit(TESTS, "@pytest", "@pytest.mark.xfail(strict=True)\n@pytest"),
        "DOC304",
    ),
    "module that is marked": (
        _edit(TESTS, "import pytest\n", "import pytest\npytestmark = pytest.mark.skipif(True)\n"),
        "DOC304",
    ),
    "test that was skipped": (
        _edit("../junit.xml", 'name="test_two[1]"/>', 'name="test_two[1]"><skipped/></testcase>'),
        "DOC305",
    ),
    "test that failed": (
        _edit("../junit.xml", 'name="test_one"/>', 'name="test_one"><failure/></testcase>'),
        "DOC305",
    ),
    "test that did not run": (
        _edit("../junit.xml", '<testcase classname="tests.unit.test_a" name="test_one"/>', ""),
        "DOC305",
    ),
    "finding that is not documented": (_edit(REQUIREMENTS, "DIST101", "DIST999"), "DOC306"),
    "item that is missing": (_edit(REQUIREMENTS, "`H01`", "`H03`"), "DOC307"),
    "items out of order": (_edit("docs/releasing.md", "### H02", "### H04"), "DOC308"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_each_mutant_is_caught_by_exactly_its_rule(name: str, tree: Path) -> None:
    change, code = MUTANTS[name]
    assert codes(tree) == set()
    change(tree)
    assert codes(tree) == {code}


def test_every_rule_has_a_mutant() -> None:
    assert {code for _, code in MUTANTS.values()} == {rule.code for rule in check_docs.RULES}


def test_command_line(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_docs.main(["--root", str(tree)]) == 0
    assert "DOC305 skipped: give --junit" in capsys.readouterr().out
    assert check_docs.main(["--root", str(tree), "--junit", str(tree.parent / "junit.xml")]) == 0
    assert check_docs.main(["--root", str(tree), "--junit", str(tree / "missing.xml")]) == 2
    (tree / REQUIREMENTS).unlink()
    assert check_docs.main(["--root", str(tree)]) == 1
    assert "DOC301" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("By hand, in this order", "by-hand-in-this-order"),
        ("mmaemu demo", "mmaemu-demo"),
        ("The `splitk=` argument", "the-splitk-argument"),
        ("N12 fp64 and int8", "n12-fp64-and-int8"),
        ("[A link](x.md) in it", "a-link-in-it"),
    ],
)
def test_anchors_are_those_of_the_site(heading: str, anchor: str) -> None:
    assert check_docs.slug(heading) == anchor


# --- our own pages -------------------------------------------------------------------------------


def test_our_pages_pass() -> None:
    outcome = apply_rules(check_docs.RULES, check_docs.load_facts(ROOT))
    assert [str(finding) for finding in outcome.findings] == []


BLOCK = re.compile(r"^```(?:bash|sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SESSION = re.compile(r"t\d\w*|lint|docs|env|dist|fatbin")


def shown() -> list[str]:
    """Every command of ours that a page shows."""
    lines = []
    for text in check_docs.load_facts(ROOT).pages.values():
        for block in BLOCK.findall(text):
            lines += [line.strip() for line in block.splitlines()]
    return sorted({line for line in lines if line.startswith(("invoke ", "python tools/"))})


def test_pages_show_commands() -> None:
    assert len(shown()) >= 8


@pytest.mark.parametrize("line", shown())
def test_every_shown_command_has_the_options_that_it_is_shown_with(line: str) -> None:
    # B37: a task is spelled with dashes, and an option that is not there is found here.
    words = shlex.split(line, comments=True)
    asks = ["-m", "invoke", "--help", words[1]] if words[0] == "invoke" else [words[1], "--help"]
    told = told_of(*asks)
    for option in (word.partition("=")[0] for word in words[2:] if word.startswith("--")):
        assert re.search(rf"(?<![\w-]){option}(?![\w-])", told), f"{option} in `{line}`"


@cache
def told_of(*asks: str) -> str:
    """The help of a command, asked for once."""
    command = [sys.executable, *asks]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_sessions_that_pages_name_exist() -> None:
    command = [sys.executable, "-m", "nox", "--list"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    known = set(re.findall(r"^[*-] (\w+)", done.stdout, re.MULTILINE))
    for text in check_docs.load_facts(ROOT).pages.values():
        for line in re.findall(r"\bnox -s ((?:[\w]+ ?)+)", text):
            named = {name for name in line.split() if SESSION.fullmatch(name)}
            assert named <= known, line

"""Check the pages: links, log citations, numbers quoted from logs, the requirement mapping.

A citation is `log:<date>/<name>`, the result docs/validation_logs/<date>/<name>/<name>.json, or
`log:<report>`, a report under docs/release_logs. A quoted number is followed by
`<!-- log:ID#key.key -->` and must equal that value. A row of docs/reference/requirements.md,
`| R1 | what | proof |`, names tests (`tests/x.py::test_y`), finding codes or items of
docs/releasing.md (`H01`); --junit adds what pytest reported of the tests.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from files import ROOT
from findings import Outcome, Rule, SkipRule, UnusableError, apply_rules, run

Problems = Iterator[tuple[str, str]]
REQUIREMENTS: Final = "docs/reference/requirements.md"
RELEASING: Final = "docs/releasing.md"
CHECKS: Final = "docs/reference/checks.md"
PAGES: Final = ("*.md", "docs/**/*.md")
LOG_FOLDERS: Final = ("docs/validation_logs", "docs/release_logs")
_CODE: Final = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_BLOCK: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"\]\(<?([^)\s>]+)[^)]*\)|<img[^>]*\bsrc=\"([^\"]+)\"")
_HEADING: Final = re.compile(r"^#+ +(.*?)\s*(?:\{#([\w-]+)\})?$", re.MULTILINE)
_CITATION: Final = re.compile(r"\blog:([\w.+-]+(?:/[\w.+-]+)*)")
_QUOTED: Final = re.compile(r"([\d][\d,.]*)\s*%?\s*<!-- log:([\w./+-]+)#([\w.]+) -->")
_ROW: Final = re.compile(r"^\| R(\d+) \|(.*)\|([^|]*)\|$", re.MULTILINE)
_TEST: Final = re.compile(r"^tests/[\w/]+\.py::test_\w+$")
_FINDING: Final = re.compile(r"^[A-Z]+\d{3}$")
_BY_HAND: Final = re.compile(r"^H\d\d$")
_ITEM: Final = re.compile(r"^### (H\d\d) ", re.MULTILINE)
_DOCUMENTED: Final = re.compile(r"^\| ([A-Z]+\d{3}) \|", re.MULTILINE)
SKIPS: Final = frozenset({"skip", "skipif", "xfail"})


@dataclass(frozen=True, slots=True)
class Row:
    """One requirement and the proofs that its row names."""

    number: int
    text: str
    proofs: tuple[str, ...]

    @property
    def where(self) -> str:
        """Place for messages."""
        return f"{REQUIREMENTS} R{self.number}"


@dataclass(frozen=True, slots=True)
class Facts:
    """The pages and what they refer to.

    Attributes:
        pages: text of every page by path.
        paths: every file and folder of the repository, for links.
        logs: committed results and reports by id.
        rows: requirements in order.
        tests: every test function as `path::name`; the value says whether it is marked as skipped.
        skipped: tests that pytest reported as skipped, None where no report was given.
        passed: tests that pytest reported as passed.
        codes: finding codes that the page of checks documents.
        items: by-hand items of the releasing page.
    """

    pages: Mapping[str, str]
    paths: frozenset[str]
    logs: Mapping[str, Mapping[str, Any]]
    rows: tuple[Row, ...]
    tests: Mapping[str, bool]
    skipped: frozenset[str] | None
    passed: frozenset[str]
    codes: frozenset[str]
    items: tuple[str, ...]


# --- links and citations -------------------------------------------------------------------------


def slug(heading: str) -> str:
    """The anchor of a heading, as the site generator and the hosting service make it."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading)
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def _anchors(text: str) -> set[str]:
    found = set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))
    for heading, explicit in _HEADING.findall(_BLOCK.sub("", text)):
        found.add(explicit or slug(heading))
    return found


def _links(facts: Facts) -> Problems:
    for page, text in facts.pages.items():
        for found in _LINK.finditer(_CODE.sub("", text)):
            target = found[1] or found[2]
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            place = _place(page, path)
            if place not in facts.paths:
                yield page, f"the link {target} leads to {place}, which does not exist"
            elif anchor and place in facts.pages and anchor not in _anchors(facts.pages[place]):
                yield page, f"the link {target} names no heading of {place}"


def _place(page: str, path: str) -> str:
    """A link's target as a path in the repository."""
    if not path:
        return page
    parts: list[str] = list(PurePosixPath(page).parent.parts)
    for part in PurePosixPath(path).parts:
        if part == "..":
            parts = parts[:-1] if parts else ["(outside)"]
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def _citations(facts: Facts) -> Problems:
    for page, text in facts.pages.items():
        for identifier in sorted(set(_CITATION.findall(text))):
            name = identifier.rstrip(".")
            if name not in facts.logs:
                yield page, f"log:{name} is no committed result; run the tier with --commit-log"


def _numbers(facts: Facts) -> Problems:
    for page, text in facts.pages.items():
        for quoted, identifier, path in _QUOTED.findall(text):
            value = _value(facts.logs.get(identifier, {}), path)
            number = quoted.replace(",", "").rstrip(".")
            if value is None:
                yield page, f"log:{identifier} has no number {path}"
            elif float(number) != float(value):
                yield page, f"says {quoted}, log:{identifier} says {value} for {path}"


def _value(document: Mapping[str, Any], path: str) -> float | None:
    found: Any = document
    for key in path.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, (int, float)) and not isinstance(found, bool) else None


# --- requirements --------------------------------------------------------------------------------


def _numbered(facts: Facts) -> Problems:
    numbers = [row.number for row in facts.rows]
    if numbers != list(range(1, len(numbers) + 1)) or not numbers:
        yield REQUIREMENTS, "the rows must be numbered R1, R2, ... without a gap"


def _mapped(facts: Facts) -> Problems:
    for row in facts.rows:
        if not row.proofs:
            yield row.where, "no proof; name a test, a finding code or a by-hand item"
        for proof in row.proofs:
            if not any(form.match(proof) for form in (_TEST, _FINDING, _BY_HAND)):
                yield (
                    row.where,
                    f"{proof!r} is neither a test (tests/x.py::test_y), a finding code nor an "
                    f"item of {RELEASING}",
                )


def _named(facts: Facts, form: re.Pattern[str]) -> Iterator[tuple[Row, str]]:
    return ((row, proof) for row in facts.rows for proof in row.proofs if form.match(proof))


def _tests_exist(facts: Facts) -> Problems:
    for row, proof in _named(facts, _TEST):
        if proof not in facts.tests:
            yield row.where, f"there is no test {proof}"


def _tests_run(facts: Facts) -> Problems:
    for row, proof in _named(facts, _TEST):
        if facts.tests.get(proof):
            yield row.where, f"{proof} is marked as skipped or expected to fail"


def _tests_ran(facts: Facts) -> Problems:
    if facts.skipped is None:
        raise SkipRule("give --junit REPORT.xml of the tiers to check that the tests ran")
    for row, proof in _named(facts, _TEST):
        if proof in facts.skipped:
            yield row.where, f"{proof} was skipped; a requirement's test has to run"
        elif proof in facts.tests and proof not in facts.passed:
            yield row.where, f"{proof} is not among the tests that passed"


def _codes_exist(facts: Facts) -> Problems:
    for row, proof in _named(facts, _FINDING):
        if proof not in facts.codes:
            yield row.where, f"{CHECKS} has no finding {proof}"


def _items_exist(facts: Facts) -> Problems:
    for row, proof in _named(facts, _BY_HAND):
        if proof not in facts.items:
            yield row.where, f"{RELEASING} has no item {proof}"


def _items_in_order(facts: Facts) -> Problems:
    expected = [f"H{number:02}" for number in range(1, len(facts.items) + 1)]
    if list(facts.items) != expected:
        yield RELEASING, f"the items are {facts.items}, expected H01, H02, ... in this order"


RULES: Final[tuple[Rule[Facts], ...]] = (
    Rule("DOC201", "Every relative link leads to a file, every anchor to a heading.", _links),
    Rule("DOC202", "Every log citation names a committed result.", _citations),
    Rule("DOC203", "Every number quoted from a log equals the log.", _numbers),
    Rule("DOC301", "Requirements are numbered without a gap.", _numbered),
    Rule("DOC302", "Every requirement names its proof.", _mapped),
    Rule("DOC303", "Every test that a requirement names exists.", _tests_exist),
    Rule("DOC304", "No test of a requirement is marked as skipped.", _tests_run),
    Rule("DOC305", "Every test of a requirement ran and passed.", _tests_ran),
    Rule("DOC306", "Every finding code of a requirement is documented.", _codes_exist),
    Rule("DOC307", "Every by-hand item of a requirement is on the page.", _items_exist),
    Rule("DOC308", "By-hand items are numbered in order.", _items_in_order),
)


# --- facts ---------------------------------------------------------------------------------------


def parse_rows(text: str) -> tuple[Row, ...]:
    """The rows of the requirements page; proofs are its last cell's code spans."""
    return tuple(
        Row(int(number), what.strip(), tuple(re.findall(r"`([^`]+)`", proof)))
        for number, what, proof in _ROW.findall(text)
    )


def tests_in(source: str, path: str) -> dict[str, bool]:
    """Test functions of a module, and whether each is marked as skipped or expected to fail."""
    module = ast.parse(source)
    whole = any(
        isinstance(node, ast.Assign)
        and any(isinstance(name, ast.Name) and name.id == "pytestmark" for name in node.targets)
        and _skips(node.value)
        for node in module.body
    )
    functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)]
    return {
        f"{path}::{node.name}": whole or any(_skips(mark) for mark in node.decorator_list)
        for node in functions
        if node.name.startswith("test_")
    }


def _skips(expression: ast.expr) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr in SKIPS for node in ast.walk(expression)
    )


def read_reports(paths: Sequence[Path]) -> tuple[frozenset[str], frozenset[str]]:
    """Tests that pytest's JUnit files report as skipped (any case of them), and as passed (all).

    Raises:
        UnusableError: a file that is no JUnit report.
    """
    states: dict[str, set[str]] = {}
    for path in paths:
        try:
            cases = ET.parse(path).getroot().iter("testcase")  # noqa: S314 - pytest wrote it
        except (OSError, ET.ParseError) as error:
            raise UnusableError(f"cannot read {path}: {error}") from error
        for case in cases:
            module = str(case.get("classname")).replace(".", "/")
            name = str(case.get("name")).partition("[")[0]
            kinds = {child.tag for child in case} & {"skipped", "failure", "error"}
            states.setdefault(f"{module}.py::{name}", set()).update(kinds or {"passed"})
    return (
        frozenset(name for name, kinds in states.items() if "skipped" in kinds),
        frozenset(name for name, kinds in states.items() if kinds == {"passed"}),
    )


def _logs(root: Path) -> dict[str, dict[str, Any]]:
    """Committed results by citation id."""
    found: dict[str, dict[str, Any]] = {}
    validation, releases = (root / folder for folder in LOG_FOLDERS)
    for path in sorted(validation.glob("*/*/*.json")):
        name = f"{path.parent.parent.name}/{path.parent.name}"
        if path.stem == path.parent.name:
            found[name] = _json(path)
        else:
            found[f"{name}/{path.stem}"] = _json(path)
    return found | {path.stem: _json(path) for path in sorted(releases.glob("*.json"))}


def _json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UnusableError(f"{path} is no JSON: {error}") from error
    return document if isinstance(document, dict) else {}


def load_facts(root: Path, junit: Sequence[Path] = ()) -> Facts:
    """Read the pages and everything that they refer to.

    Args:
        root: the repository.
        junit: JUnit reports of the tiers.
    """
    found = {path for pattern in PAGES for path in root.glob(pattern)}
    pages = {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(found)
        if not path.relative_to(root).as_posix().startswith(LOG_FOLDERS)
    }
    tests: dict[str, bool] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        tests |= tests_in(path.read_text(encoding="utf-8"), path.relative_to(root).as_posix())
    skipped, passed = read_reports(junit)
    return Facts(
        pages=pages,
        paths=frozenset(_paths(root)),
        logs=_logs(root),
        rows=parse_rows(pages.get(REQUIREMENTS, "")),
        tests=tests,
        skipped=skipped if junit else None,
        passed=passed,
        codes=frozenset(_DOCUMENTED.findall(pages.get(CHECKS, ""))),
        items=tuple(_ITEM.findall(pages.get(RELEASING, ""))),
    )


def _paths(root: Path) -> Iterator[str]:
    """Files and folders that a page may link to."""
    hidden = {".git", ".nox", "build", "dist"}
    for top in root.iterdir():
        if top.name in hidden or top.name.startswith(".venv"):
            continue
        yield top.name
        if top.is_dir():
            yield from (path.relative_to(root).as_posix() for path in top.rglob("*"))


def _check(arguments: argparse.Namespace) -> Outcome:
    return apply_rules(RULES, load_facts(arguments.root.resolve(), arguments.junit))


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="check_docs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--junit", type=Path, nargs="+", default=[], help="JUnit reports, build/tiers/*.xml"
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    return run(parser, _check, argv)


if __name__ == "__main__":
    raise SystemExit(main())

"""The page of numbered rules: complete, and its references exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/explanation/numerics.md").read_text(encoding="utf-8")
RULES = re.findall(r"^### (N\d+) .*?(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
BODIES = dict(zip(RULES, re.split(r"^### N\d+ ", PAGE, flags=re.MULTILINE)[1:], strict=True))
REFERENCE = re.compile(r"`((?:mmaemu|tests|docs)/[\w/.-]+)(?:::(\w+))?`")
CITATION = re.compile(r"\((?:rules? )?N(\d+)\b")


def test_rules_are_numbered_without_gaps() -> None:
    assert list(BODIES) == [f"N{number}" for number in range(1, 24)]


@pytest.mark.parametrize("rule", BODIES)
def test_a_rule_names_source_code_and_tests(rule: str) -> None:
    for line in ("Source", "Code", "Tests"):
        assert re.search(rf"^- {line}: \S", BODIES[rule], re.MULTILINE), f"{rule} has no {line}"


@pytest.mark.parametrize(("path", "name"), sorted(set(REFERENCE.findall(PAGE))))
def test_references_exist(path: str, name: str) -> None:
    place = ROOT / path
    assert place.exists(), f"{path} does not exist"
    if name:
        text = place.read_text(encoding="utf-8")
        assert re.search(rf"^(?:def |class )?{name}\b", text, re.MULTILINE), f"{path} has no {name}"


def test_code_cites_rules_that_exist() -> None:
    sources = [
        source.read_text(encoding="utf-8")
        for folder in ("instruction", "gemm", "profiles")
        for source in (ROOT / "mmaemu" / folder).rglob("*.py")
    ]
    cited = {f"N{number}" for text in sources for number in CITATION.findall(text)}
    assert cited
    assert cited <= set(BODIES)

"""The pages of the command line's owner: their Python runs as shown, their commands end well."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import pytest

from mmaemu.cli.main import COMMANDS, build_parser, main

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("reference/cli.md", "how-to/emulate-a-gemm.md", "tutorial/first-steps.md")


def commands() -> list[tuple[str, str]]:
    """Page and arguments of every `mmaemu` line that a page shows."""
    pattern = re.compile(r"^\$ mmaemu (.*)$", re.MULTILINE)
    return [
        (page, shlex.join(shlex.split(line, comments=True)))
        for page in PAGES
        for line in pattern.findall((DOCS / page).read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize(("page", "line"), commands())
def test_commands_shown_are_commands(page: str, line: str) -> None:
    assert build_parser().parse_args(shlex.split(line)).command, page


def test_every_command_is_shown() -> None:
    shown = {line.split()[0] for _, line in commands()}
    assert shown == {command.name for command in COMMANDS}


@pytest.mark.parametrize(
    "line", [line for page, line in commands() if page.startswith("ref") and "explain" in line]
)
def test_explain_examples_run(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(line)) == 0, capsys.readouterr().out


@pytest.mark.filterwarnings("ignore::mmaemu.errors.MmaemuWarning")
@pytest.mark.parametrize("page", PAGES[1:])
def test_python_shown_gives_what_is_shown(page: str) -> None:
    result = doctest.testfile(str(DOCS / page), module_relative=False, encoding="utf-8")
    assert result.attempted > 5
    assert result.failed == 0

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable

import pytest

from findings import (
    Finding,
    InconclusiveError,
    Outcome,
    Rule,
    Skipped,
    SkipRule,
    UnusableError,
    apply_rules,
    run,
)


def odd(numbers: list[int]) -> Iterable[tuple[str, str]]:
    for number in numbers:
        if number % 2:
            yield f"item {number}", "is odd; make it even"


def undecided(numbers: list[int]) -> Iterable[tuple[str, str]]:
    raise SkipRule("no scale at hand", required=bool(numbers))


ODD = Rule("TEST101", "Numbers are even.", odd)
UNDECIDED = Rule("TEST102", "Numbers are heavy.", undecided)


def call(outcome: Outcome | Exception, *argv: str) -> int:
    def check(_: argparse.Namespace) -> Outcome:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return run(argparse.ArgumentParser(prog="check_it"), check, argv)


def test_every_finding_is_reported_and_one_rule_never_hides_another() -> None:
    outcome = apply_rules((UNDECIDED, ODD), [1, 2, 3])
    assert [str(finding) for finding in outcome.findings] == [
        "item 1: TEST101 is odd; make it even",
        "item 3: TEST101 is odd; make it even",
    ]
    assert outcome.skipped == (Skipped("TEST102", "no scale at hand", required=True),)


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Outcome(), 0),
        (apply_rules((UNDECIDED,), []), 0),
        (apply_rules((UNDECIDED,), [2]), 3),
        (apply_rules((ODD, UNDECIDED), [1]), 1),
        (UnusableError("no git"), 2),
        (InconclusiveError("no recordings"), 3),
    ],
)
def test_exit_codes(outcome: Outcome | Exception, code: int) -> None:
    assert call(outcome) == code
    assert call(outcome, "--json") == code


def test_an_error_is_said_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    call(UnusableError("no git; install it"))
    assert capsys.readouterr() == ("", "check_it: no git; install it\n")


def test_wrong_usage_exits_with_two() -> None:
    with pytest.raises(SystemExit) as stopped:
        call(Outcome(), "--frobnicate")
    assert stopped.value.code == 2


def test_the_report_is_sorted_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = Finding("TEST102", "b", "x; y"), Finding("TEST101", "c", "z; w")
    call(Outcome((first, second), (Skipped("TEST103", "no disk"),)))
    assert capsys.readouterr().out.splitlines() == [
        "c: TEST101 z; w",
        "b: TEST102 x; y",
        "check_it: TEST103 skipped: no disk",
        "check_it: 2 findings",
    ]


def test_json_has_a_schema_and_sorted_keys(capsys: pytest.CaptureFixture[str]) -> None:
    call(Outcome((Finding("TEST101", "a", "b"),)), "--json")
    text = capsys.readouterr().out
    document = json.loads(text)
    assert document["schema"] == "mmaemu.findings/1"
    assert document["exit_code"] == 1
    assert document["findings"] == [{"code": "TEST101", "where": "a", "message": "b"}]
    assert document["error"] == ""
    assert list(document) == sorted(document)


def test_json_is_all_that_standard_output_gets(capsys: pytest.CaptureFixture[str]) -> None:
    def check(_: argparse.Namespace) -> None:
        sys.stdout.write("the plan\n")

    assert run(argparse.ArgumentParser(prog="check_it"), check, ["--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["findings"] == []
    assert err == "the plan\n"


@pytest.mark.parametrize(
    ("error", "code"), [(UnusableError("no git"), 2), (InconclusiveError("no answer"), 3)]
)
def test_json_says_why_nothing_was_found_out(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(error, "--json") == code
    document = json.loads(capsys.readouterr().out)
    assert (document["exit_code"], document["error"]) == (code, str(error))


def test_what_judges_nothing_reports_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(argparse.ArgumentParser(prog="check_it"), lambda _: None, []) == 0
    assert capsys.readouterr() == ("", "")

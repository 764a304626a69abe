"""The one command-line shell of the checks: findings, rules, reports and exit codes.

A check loads facts (the only I/O), applies pure rules to them, and reports every finding.
Exit codes: 0 no finding, 1 findings, 2 could not run (usage included), 3 inconclusive.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

PASS: Final = 0
FAIL: Final = 1
UNUSABLE: Final = 2
INCONCLUSIVE: Final = 3

FactsT = TypeVar("FactsT")


class UnusableError(Exception):
    """The check could not run; the message says what is missing and what to do."""


class InconclusiveError(Exception):
    """The check ran, but evidence is missing; the message says which and how to rerun."""


class SkipRule(Exception):  # noqa: N818 - a rule says with it that it does not apply; no error
    """Raised by a rule that cannot be decided from the facts at hand.

    Args:
        reason: why, and what would make it run.
        required: True makes the whole check inconclusive.
    """

    def __init__(self, reason: str, *, required: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.required = required


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One thing that is wrong, printed `where: CODE what is wrong; what to do`."""

    code: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.code} {self.message}"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A rule that was not run, with the reason."""

    code: str
    reason: str
    required: bool = False

    def __str__(self) -> str:
        kind = "not decided" if self.required else "skipped"
        return f"{self.code} {kind}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Rule(Generic[FactsT]):
    """A named rule over facts.

    Attributes:
        code: stable finding code, for example "REPO101".
        says: what holds when the rule finds nothing, one sentence for the documentation.
        check: yields (where, message) for everything that breaks the rule.
    """

    code: str
    says: str
    check: Callable[[FactsT], Iterable[tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything a check found, and the rules it could not run."""

    findings: tuple[Finding, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(self.findings + other.findings, self.skipped + other.skipped)

    @property
    def exit_code(self) -> int:
        """0, 1 or 3 as the module docstring says."""
        if self.findings:
            return FAIL
        return INCONCLUSIVE if any(item.required for item in self.skipped) else PASS


def apply_rules(rules: Sequence[Rule[FactsT]], facts: FactsT) -> Outcome:
    """Apply every rule to the facts; one rule's findings never hide another's."""
    findings: list[Finding] = []
    skipped: list[Skipped] = []
    for rule in rules:
        try:
            findings += [Finding(rule.code, where, text) for where, text in rule.check(facts)]
        except SkipRule as skip:
            skipped.append(Skipped(rule.code, skip.reason, skip.required))
    return Outcome(tuple(findings), tuple(skipped))


def _as_json(check: str, outcome: Outcome, code: int, error: str) -> str:
    document = {
        "schema": "mmaemu.findings/1",
        "check": check,
        "error": error,
        "exit_code": code,
        "findings": [
            {"code": item.code, "where": item.where, "message": item.message}
            for item in outcome.findings
        ],
        "skipped": [
            {"code": item.code, "reason": item.reason, "required": item.required}
            for item in outcome.skipped
        ],
    }
    return json.dumps(document, indent=2, sort_keys=True)


def report(check: str, outcome: Outcome) -> int:
    """Print an outcome and return its exit code.

    Args:
        check: name of the check, for the closing line.
        outcome: what was found.
    """
    for finding in sorted(outcome.findings):
        print(finding)
    for skip in outcome.skipped:
        print(f"{check}: {skip}")
    count = len(outcome.findings)
    print(f"{check}: {count} finding{'' if count == 1 else 's'}")
    return outcome.exit_code


def run(
    parser: argparse.ArgumentParser,
    check: Callable[[argparse.Namespace], Outcome | None],
    argv: Sequence[str] | None = None,
) -> int:
    """Parse the arguments, run a check, report, and translate errors into exit codes.

    With `--json` one document is all that standard output gets; what the check prints goes to
    standard error.

    Args:
        parser: the check's own arguments; `--json` is added here.
        check: from the parsed arguments to an outcome, None where nothing was to be judged.
        argv: arguments without the program's name; sys.argv where None.

    Returns:
        The exit code. argparse itself exits with 2 on wrong usage.
    """
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args(argv)
    if arguments.json:
        return _document(parser.prog, lambda: check(arguments))

    def action() -> int:
        outcome = check(arguments)
        return PASS if outcome is None else report(parser.prog, outcome)

    return guarded(parser.prog, action)


def _document(program: str, check: Callable[[], Outcome | None]) -> int:
    """Run a check and print its outcome, or why there is none, as one JSON document."""
    outcome, error = Outcome(), ""
    with contextlib.redirect_stdout(sys.stderr):
        try:
            outcome = check() or outcome
            code = outcome.exit_code
        except UnusableError as found:
            code, error = UNUSABLE, str(found)
        except InconclusiveError as found:
            code, error = INCONCLUSIVE, str(found)
    print(_as_json(program, outcome, code, error))
    return code


def guarded(program: str, action: Callable[[], int]) -> int:
    """Run an action and turn UnusableError into 2 and InconclusiveError into 3, with the message.

    Args:
        program: name put before the message.
        action: returns an exit code.
    """
    try:
        return action()
    except UnusableError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return UNUSABLE
    except InconclusiveError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return INCONCLUSIVE

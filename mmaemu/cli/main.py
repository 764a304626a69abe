"""The entry point of the command line: parses, runs one command, prints its report."""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
import warnings
from collections.abc import Sequence
from typing import Final

from mmaemu._version import __version__
from mmaemu.cli import demo, explain, info, models, output, profiles, selftest
from mmaemu.cli.command import Argument, Command, Exit, NotAvailableError, Report, UsageError
from mmaemu.errors import BackendUnavailableError, MmaemuError

PROGRAM: Final = "mmaemu"
HELP_WIDTH: Final = 79
SUMMARY: Final = "Bit-exact emulation of FP8 tensor-core GEMMs."
EXIT_CODES: Final = (
    "Exit codes: 0 done, 1 a check failed or the call would raise, 2 usage error, "
    "3 not available on this machine or in this installation."
)
COMMANDS: Final[tuple[Command, ...]] = (
    demo.COMMAND,
    info.COMMAND,
    explain.COMMAND,
    selftest.COMMAND,
    profiles.COMMAND,
    models.COMMAND,
)
JSON: Final = Argument(
    ("--json",), "Print the report as JSON (sorted keys, `schema`).", {"action": "store_true"}
)


def _examples(command: Command) -> str:
    width = max(len(example.line) for example in command.examples)
    lines = [
        f"  {PROGRAM} {example.line.ljust(width)}  {example.shows}" for example in command.examples
    ]
    return "\n".join(["examples:", *lines])


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=SUMMARY, epilog=EXIT_CODES, allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        subparser = subparsers.add_parser(
            command.name,
            help=command.summary,
            description=textwrap.fill(command.description, HELP_WIDTH),
            epilog=_examples(command),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        for argument in (*command.arguments, JSON):
            subparser.add_argument(*argument.names, help=argument.meaning, **argument.settings)
        subparser.set_defaults(collect=command.collect)
    return parser


def _fail(arguments: argparse.Namespace, message: str, code: Exit) -> int:
    print(f"{PROGRAM} {arguments.command}: {message}", file=sys.stderr)
    if arguments.json:
        value = {
            "command": arguments.command,
            "error": message,
            "exit_code": int(code),
            "schema": "mmaemu-error/1",
        }
        print(output.to_json(value))
    return code


def _print(report: Report, *, as_json: bool) -> None:
    """Print a report; a reader that stops early (`| head`) is no error."""
    text = output.to_json(report.to_json()) if as_json else report.render()
    encoding = sys.stdout.encoding or "utf-8"
    try:
        # A folder's name may hold what the terminal's encoding lacks.
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the arguments after the program's name; None takes those of the process.

    Returns:
        0 done, 1 failed, 2 usage error, 3 not available here.
    """
    try:
        arguments = build_parser().parse_args(argv)
    except SystemExit as stop:
        return int(stop.code or 0)
    try:
        with warnings.catch_warnings(record=True) as caught:
            report: Report = arguments.collect(arguments)
    except UsageError as error:
        return _fail(arguments, str(error), Exit.USAGE)
    except (NotAvailableError, BackendUnavailableError) as error:
        return _fail(arguments, f"not available here: {error}", Exit.NOT_AVAILABLE)
    except MmaemuError as error:
        return _fail(arguments, f"{type(error).__name__}: {error}", Exit.FAILED)
    except KeyboardInterrupt:
        return _fail(arguments, "interrupted", Exit.FAILED)
    for note in dict.fromkeys(str(each.message) for each in caught):
        print(f"{PROGRAM} {arguments.command}: note: {note}", file=sys.stderr)
    _print(report, as_json=arguments.json)
    return report.exit_code

"""The entry point of the command line: parses, runs one command, prints its report."""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
import warnings
from collections.abc import Sequence
from typing import Final, NoReturn

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


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are reported like all others: with --json also as JSON."""

    def error(self, message: str) -> NoReturn:
        """Print the usage, and leave the rest to `main`."""
        self.print_usage(sys.stderr)
        raise _ParseError(self.prog, message)


class _ParseError(Exception):
    """Arguments that cannot be parsed: the program with its command, and what is wrong."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands; what it cannot parse is reported by `main`."""
    parser = _Parser(prog=PROGRAM, description=SUMMARY, epilog=EXIT_CODES, allow_abbrev=False)
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


def _failure(program: str, message: str, code: Exit, *, as_json: bool) -> tuple[int, str]:
    """Say what failed on standard error; return the exit code and the text of the output."""
    print(f"{program}: {message}", file=sys.stderr)
    value = {
        "command": program.removeprefix(PROGRAM).strip() or None,
        "error": message,
        "exit_code": int(code),
        "schema": "mmaemu-error/1",
    }
    return code, output.to_json(value) + "\n" if as_json else ""


def _print(program: str, text: str, code: int) -> int:
    """Write the output and return the exit code; a reader that stops early (`| head`) is no error.

    What cannot be written is discarded, since Python would try again and fail when it exits.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        if text:
            # A folder's name may hold what the terminal's encoding lacks.
            print(text.encode(encoding, "backslashreplace").decode(encoding), end="")
        if sys.stdout is not None:  # Python sets it so where the stream is closed.
            sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            print(f"{program}: the output cannot be written: {error}", file=sys.stderr)
            return Exit.FAILED
    return code


def _run(argv: Sequence[str]) -> tuple[str, int, str]:
    """Run one command; return its name with the program's, the exit code and the output."""
    try:
        arguments = build_parser().parse_args(argv)
    except SystemExit as stop:  # --help and --version, which are printed by now.
        return PROGRAM, int(stop.code or 0), ""
    except _ParseError as error:
        program, message = error.args
        return program, *_failure(program, message, Exit.USAGE, as_json="--json" in argv)
    program = f"{PROGRAM} {arguments.command}"
    return program, *_collect(program, arguments)


def _collect(program: str, arguments: argparse.Namespace) -> tuple[int, str]:
    def fail(message: str, code: Exit) -> tuple[int, str]:
        return _failure(program, message, code, as_json=arguments.json)

    try:
        with warnings.catch_warnings(record=True) as caught:
            report: Report = arguments.collect(arguments)
    except UsageError as error:
        return fail(str(error), Exit.USAGE)
    except (NotAvailableError, BackendUnavailableError) as error:
        return fail(f"not available here: {error}", Exit.NOT_AVAILABLE)
    except MmaemuError as error:
        return fail(f"{type(error).__name__}: {error}", Exit.FAILED)
    except KeyboardInterrupt:
        return fail("interrupted", Exit.FAILED)
    for note in dict.fromkeys(str(each.message) for each in caught):
        print(f"{program}: note: {note}", file=sys.stderr)
    text = output.to_json(report.to_json()) if arguments.json else report.render()
    return report.exit_code, f"{text}\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the arguments after the program's name; None takes those of the process.

    Returns:
        0 done, 1 failed, 2 usage error, 3 not available here.
    """
    program, code, text = _run(sys.argv[1:] if argv is None else argv)
    return _print(program, text, code)

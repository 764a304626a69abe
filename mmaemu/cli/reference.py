"""The reference page of the command line, made from the same data as its parser.

tools/generate_docs.py writes docs/reference/cli.md with it; a test compares.
"""

from __future__ import annotations

from mmaemu.cli.command import Argument, Command
from mmaemu.cli.main import COMMANDS, EXIT_CODES, JSON, PROGRAM, SUMMARY


def _shown(argument: Argument) -> str:
    """The argument as typed, with a placeholder where it takes a value."""
    settings = argument.settings
    if not argument.names[0].startswith("-"):
        return (
            f"`[{argument.names[0]}]`" if settings.get("nargs") == "?" else f"`{argument.names[0]}`"
        )
    if settings.get("action") == "store_true":
        value = ""
    elif "metavar" in settings:
        value = f" {settings['metavar']}"
    elif "choices" in settings:
        value = f" {{{','.join(settings['choices'])}}}"
    else:
        value = f" {argument.names[0].lstrip('-').replace('-', '_').upper()}"
    return ", ".join(f"`{name}{value}`" for name in argument.names)


def _usage(command: Command) -> str:
    positional = [
        f"[{argument.names[0]}]" if argument.settings.get("nargs") else argument.names[0]
        for argument in command.arguments
        if not argument.names[0].startswith("-")
    ]
    return " ".join([PROGRAM, command.name, "[options]", *positional])


def _section(command: Command) -> str:
    rows = [f"| {_shown(each)} | {each.meaning} |" for each in (*command.arguments, JSON)]
    width = max(len(example.line) for example in command.examples)
    examples = "\n".join(
        f"$ {PROGRAM} {example.line.ljust(width)}  # {example.shows}"
        for example in command.examples
    )
    parts = [
        f"## {PROGRAM} {command.name}",
        command.description,
        f"```text\n{_usage(command)}\n```",
        "\n".join(["| argument | meaning |", "|---|---|", *rows]),
        f"```console\n{examples}\n```",
    ]
    return "\n\n".join(parts)


def page() -> str:
    """Return the page as Markdown."""
    listed = [f"- [{each.name}](#{PROGRAM}-{each.name}): {each.summary}" for each in COMMANDS]
    head = (
        f"# Command line\n\n{SUMMARY} `python -m {PROGRAM}` is the same program as `{PROGRAM}`.\n\n"
        f"{EXIT_CODES}\n\n"
        "Every command takes `--json`: one JSON object on standard output with sorted keys, a "
        "`schema` such as `mmaemu-info/1` that changes whenever a key changes its meaning, and "
        "`exit_code`. Messages and progress go to standard error; progress is shown on a terminal "
        "only."
    )
    return "\n\n".join([head, "\n".join(listed), *map(_section, COMMANDS)]) + "\n"

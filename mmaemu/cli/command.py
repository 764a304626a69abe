"""What a command is: data, from which the parser, the help and the reference page are made."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any, ClassVar

from mmaemu import _settings

MAX_SIZE = 2**63 - 1
"""The largest M, N or K, and the most bytes of a matrix: torch's sizes are signed 64-bit."""


class Exit(IntEnum):
    """Exit codes of every command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_AVAILABLE = 3


class UsageError(Exception):
    """The arguments make no sense together; ends with exit code 2."""


class NotAvailableError(Exception):
    """Something this machine or installation lacks; ends with exit code 3."""


@dataclass(frozen=True)
class Report:
    """What a command found out. Subclasses are dataclasses of JSON values.

    Attributes:
        schema: name and version of the JSON form; it changes whenever a key changes its meaning.
    """

    schema: ClassVar[str]

    @property
    def exit_code(self) -> Exit:
        """The exit code of the command that made this report."""
        return Exit.OK

    def render(self) -> str:
        """Return the report as text for people."""
        raise TypeError(f"{type(self).__name__} must define render()")

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values, with its schema and exit code."""
        return {**asdict(self), "schema": self.schema, "exit_code": int(self.exit_code)}


@dataclass(frozen=True)
class Argument:
    """One argument of a command.

    Attributes:
        names: one name without dashes (a positional argument) or option strings.
        help: a sentence for the help and the reference page.
        settings: further keyword arguments of `argparse.ArgumentParser.add_argument`.
    """

    names: tuple[str, ...]
    help: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def meaning(self) -> str:
        """The help with the default, if there is one."""
        default = self.settings.get("default")
        return self.help if default is None else f"{self.help} Default: {default}."


@dataclass(frozen=True)
class Example:
    """One line to try: the arguments after `mmaemu`, and what it shows."""

    line: str
    shows: str


@dataclass(frozen=True)
class Command:
    """One command of the command line.

    Attributes:
        name: as typed.
        summary: one line.
        description: what it does, and what its exit codes mean here.
        arguments: in the order of the help.
        examples: lines to try.
        collect: makes the report from the parsed arguments.
    """

    name: str
    summary: str
    description: str
    arguments: tuple[Argument, ...]
    examples: tuple[Example, ...]
    collect: Callable[[argparse.Namespace], Report]


def size(text: str) -> int:
    """Parse M, N or K: decimal digits, nothing else.

    Raises:
        argparse.ArgumentTypeError: anything but an integer in 0..2^63-1.
    """
    if not re.fullmatch(r"[0-9]+", text):
        raise argparse.ArgumentTypeError(
            f"expected an integer >= 0 in decimal digits, got {text!r}"
        )
    if len(text) > len(str(MAX_SIZE)) or int(text) > MAX_SIZE:
        raise argparse.ArgumentTypeError(f"expected a size of at most {MAX_SIZE}, got {text}")
    return int(text)


def known_backend(name: str) -> str:
    """Return the name of a backend, available here or not; needs torch.

    Raises:
        UsageError: no backend has this name, or MMAEMU_BACKEND, which "auto" means, names none.
    """
    from mmaemu.backends.registry import names

    for source, value in (("--backend", name), ("MMAEMU_BACKEND", _settings.backend())):
        if value not in names():
            raise UsageError(f"{source} must be one of {', '.join(names())}; got {value!r}")
    return name


def check_ready(what: str) -> None:
    """Check what every command that computes needs: readable settings and torch.

    Args:
        what: the command that needs it.

    Raises:
        UsageError: an MMAEMU_* variable that is a switch holds another word.
        NotAvailableError: torch is missing or broken.
    """
    for setting in _settings.SETTINGS:
        if setting.kind == "flag":
            try:
                _settings.flag(setting.name)
            except ValueError as error:
                raise UsageError(str(error)) from error
    try:
        import torch  # noqa: F401 - its absence is told apart from an error of what follows
    except Exception as error:
        raise NotAvailableError(
            f"{what} needs torch >= 2.6, and importing it failed "
            f"({type(error).__name__}: {error}); install or repair torch"
        ) from error

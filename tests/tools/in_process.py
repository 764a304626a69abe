"""Runs a tool in this process, and the twine that it calls: the same code without new processes.

done = in_process.run(stage, ["dist", "--channel", "nightly"], environment)
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any
from unittest import mock

import twine.__main__

_PROCESS = subprocess.run


def run(
    tool: ModuleType,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    processes: bool = False,
    merged: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a tool's command line.

    Args:
        tool: the module.
        arguments: without the program's name.
        environment: all of it.
        processes: whether twine gets a process of its own, which can be ended when it hangs.
        merged: whether standard output holds both streams.
    """
    call = _PROCESS if processes else _run
    errors = None if merged else io.StringIO()
    with mock.patch.object(subprocess, "run", call):
        code, printed = _called(lambda: tool.main(list(arguments)), environment, errors)
    said = "" if errors is None else errors.getvalue()
    return subprocess.CompletedProcess(list(arguments), code, printed, said)


def run_twine(
    arguments: Sequence[str], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run twine's command line; its standard output holds both streams."""
    with mock.patch.object(sys, "argv", ["twine", *arguments]), _logging_as_before():
        code, printed = _called(twine.__main__.main, environment)
    return subprocess.CompletedProcess(list(arguments), code, printed, "")


def _run(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[Any]:
    if list(command[1:3]) != ["-m", "twine"]:
        return _PROCESS(command, **options)
    return run_twine(command[3:], options.get("env") or os.environ)


def _called(
    main: Callable[[], Any], environment: Mapping[str, str], errors: io.StringIO | None = None
) -> tuple[int, str]:
    """Exit status and output of a command line's entry point, which holds both streams if None."""
    printed = io.StringIO()
    with (
        mock.patch.dict(os.environ, dict(environment), clear=True),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed if errors is None else errors),
    ):
        try:
            code = int(main() or 0)
        except SystemExit as stop:
            code = int(stop.code or 0)
    return code, printed.getvalue()


@contextlib.contextmanager
def _logging_as_before() -> Iterator[None]:
    handlers, level = logging.root.handlers[:], logging.root.level
    try:
        yield
    finally:
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)

"""Maintainer's tasks for invoke; each is a list of commands, and what they do lives in tools/."""

from __future__ import annotations

import shlex
import sys

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task


def run(context: Context, *commands: str) -> None:
    """Run commands one after the other; the first that fails ends the task with its code."""
    for command in commands:
        done = context.run(f"{shlex.quote(sys.executable)} {command}", echo=True, warn=True)
        code = 1 if done is None else done.exited  # A failed result is falsy.
        if code:
            raise Exit(code=code)


@task
def docs(context: Context) -> None:
    """Write the documentation that is made from the code's tables."""
    run(context, "tools/generate_docs.py")


@task
def check(context: Context) -> None:
    """Check the repository's rules and its data."""
    run(context, "tools/check_repo.py", "tools/check_data.py")

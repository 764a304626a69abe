"""Text and JSON on standard output, progress on a terminal's standard error."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

WIDTH = 100


def to_json(value: dict[str, Any]) -> str:
    """Return `value` as JSON: sorted keys, ASCII, finite numbers only."""
    return json.dumps(value, indent=1, sort_keys=True, allow_nan=False)


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()
) -> str:
    """Return a plain table with two blanks between columns.

    Args:
        header: the column titles.
        rows: cells as text, as many in each row as titles.
        right: indices of the columns that are aligned to the right.
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(padded).rstrip()

    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, rows)])


def fields(pairs: Sequence[tuple[str, str]], *, indent: str = "  ") -> str:
    """Return `name  value` lines; values are aligned and long ones wrapped."""
    width = max(len(name) for name, _ in pairs)
    hanging = indent + " " * (width + 2)
    return "\n".join(
        textwrap.fill(
            value,
            WIDTH,
            initial_indent=f"{indent}{name.ljust(width)}  ",
            subsequent_indent=hanging,
            break_long_words=False,
            break_on_hyphens=False,
        ).rstrip()
        or f"{indent}{name}"
        for name, value in pairs
    )


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[str], None]]:
    """Yield `advance(step)`, which shows a progress bar if standard error is a terminal with rich.

    Elsewhere (a pipe, a log, rich missing) nothing is printed.

    Args:
        what: what is going on, in front of the bar.
        total: how often `advance` will be called.
    """
    if not sys.stderr.isatty():
        yield lambda _step: None
        return
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield lambda _step: None
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)

        def advance(step: str) -> None:
            bar.update(task, advance=1, description=f"{what}: {step}")

        yield advance

"""Warnings as data: what a user should know, said once, and pointing to the user's own line.

The functions that answer questions list cautions, the functions that compute issue the same ones.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Hashable
from typing import Final, NamedTuple

_INSIDE: Final = frozenset({"mmaemu", "torch"})
"""Packages whose frames lie between a user's line and a warning; torch calls our operators."""

_issued: set[tuple[type[Warning], Hashable]] = set()


class Caution(NamedTuple):
    """A warning that a call deserves.

    Attributes:
        category: class of the warning.
        message: its text.
        key: what it is about; it is issued once per category and key. None = at every call.
    """

    category: type[Warning]
    message: str
    key: Hashable

    def issue(self) -> None:
        """Warn, unless this was done before."""
        mark = (self.category, self.key)
        if self.key is not None and mark in _issued:
            return
        warn(self.message, self.category)
        # Only now: where warnings are errors, every call raises.
        _issued.add(mark)


def warn(message: str, category: type[Warning]) -> None:
    """Issue a warning that points to the innermost line outside of this package and torch."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and _is_inside(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def _is_inside(module: str) -> bool:
    return module.partition(".")[0] in _INSIDE

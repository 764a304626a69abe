"""The package index's limits: how large a file and a project may be.

What the index granted is recorded in variables, PYPI_FILE_LIMIT_MB and PYPI_PROJECT_QUOTA_GB; both
count in powers of two, and what is exactly as large as a limit passes. A variable that is not set
at the hosting service reaches a job as an empty text, which counts as not set.
"""

from __future__ import annotations

import os
from typing import Final

from findings import UnusableError

MIB: Final = 1 << 20
GIB: Final = 1 << 30
_FILE_MB: Final = 100
_PROJECT_GB: Final = 10


def file_limit() -> int:
    """Largest file in bytes, from PYPI_FILE_LIMIT_MB (in MiB).

    Raises:
        UnusableError: the variable is no positive number.
    """
    return _number("PYPI_FILE_LIMIT_MB", _FILE_MB, "MiB") * MIB


def quota() -> int:
    """Largest project in bytes, from PYPI_PROJECT_QUOTA_GB (in GiB).

    Raises:
        UnusableError: the variable is no positive number.
    """
    return _number("PYPI_PROJECT_QUOTA_GB", _PROJECT_GB, "GiB") * GIB


def _number(variable: str, default: int, unit: str) -> int:
    text = os.environ.get(variable) or str(default)
    if not text.isdecimal() or int(text) == 0:
        raise UnusableError(f"{variable} must be a positive integer ({unit}), got {text!r}")
    return int(text)

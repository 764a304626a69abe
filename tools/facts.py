"""Frozen records that the checks' rules look at, and the only code that reads them from disk."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from files import read_toml
from findings import UnusableError


@dataclass(frozen=True)
class TrackedFile:
    """One file of the index.

    Attributes:
        path: path in the repository, with forward slashes.
        mode: git's mode: "100644", "100755", "120000" (link) or "160000" (submodule).
        data: its bytes in the working tree.
    """

    path: str
    mode: str
    data: bytes

    @cached_property
    def text(self) -> str | None:
        """The content as text; None where it is no UTF-8 text."""
        if b"\0" in self.data:
            return None
        try:
            return self.data.decode("utf-8")
        except UnicodeDecodeError:
            return None


@dataclass(frozen=True)
class RepoFacts:
    """A checkout: its tracked files and its pyproject.

    Attributes:
        files: every tracked file that exists in the working tree, by path.
        pyproject: the parsed pyproject.toml.
    """

    files: Mapping[str, TrackedFile]
    pyproject: Mapping[str, Any]

    def text(self, path: str) -> str:
        """The text of a file; empty where it is missing or no text."""
        found = self.files.get(path)
        return (found.text or "") if found else ""


def load_repo(root: Path) -> RepoFacts:
    """Read the tracked files of a checkout.

    Raises:
        UnusableError: `root` is no git checkout, or git is missing.
    """
    command = ["git", "-C", str(root), "ls-files", "--stage", "-z"]
    try:
        listing = subprocess.run(command, check=True, capture_output=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise UnusableError(f"{root} is no git checkout ({error}); run in a clone") from error
    files = {}
    for entry in listing.decode().split("\0")[:-1]:
        head, path = entry.split("\t", 1)
        where = root / path
        if where.is_file():
            files[path] = TrackedFile(path, head.split(" ", 1)[0], where.read_bytes())
    return RepoFacts(files, read_toml(root / "pyproject.toml"))

"""Git as the release tools run it: the same objects and refs under any ambient configuration."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from findings import UnusableError

# Switched off for every command: hooks that fail or rewrite, signing, what a push sends besides
# its refspec, and a comment character that would eat a message.
_OPTIONS: Final = (
    "core.hooksPath=/dev/null",
    "core.commentChar=#",
    "core.fsmonitor=false",
    "push.followTags=false",
    "push.gpgSign=false",
    "push.pushOption=",
    "push.recurseSubmodules=no",
    "commit.gpgSign=false",
    "tag.gpgSign=false",
    "tag.forceSignAnnotated=false",
    "i18n.commitEncoding=UTF-8",
    "core.quotePath=false",
)
NEUTRAL: Final = (
    "--no-replace-objects",
    *(word for option in _OPTIONS for word in ("-c", option)),
)
# Variables that say how to reach a remote, not which objects or refs a command sees.
_TRANSPORT: Final = frozenset({"GIT_SSH", "GIT_SSH_COMMAND", "GIT_ASKPASS", "GIT_SSL_CAINFO"})
# Grafts change which commits a walk reaches, hence what a push would send.
NO_GRAFTS: Final = {"GIT_GRAFT_FILE": os.devnull}


class GitError(UnusableError):
    """A git command failed; the message holds the command and its standard error."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit object as stored, read without replace refs and grafts.

    Attributes:
        oid: object name.
        data: the raw bytes.
        headers: (key, value) in order; continuation lines stay in the value.
        message: everything behind the empty line.
    """

    oid: str
    data: bytes
    headers: tuple[tuple[str, str], ...]
    message: str

    def all(self, key: str) -> tuple[str, ...]:
        """Every value of a header."""
        return tuple(value for name, value in self.headers if name == key)

    @property
    def parents(self) -> tuple[str, ...]:
        """Object names of the parents."""
        return self.all("parent")


def parse_object(oid: str, data: bytes) -> Commit:
    """Split a raw commit or tag object into headers and message."""
    head, _, message = data.decode("utf-8", "surrogateescape").partition("\n\n")
    headers: list[tuple[str, str]] = []
    for line in head.split("\n"):
        if line.startswith(" ") and headers:
            key, value = headers.pop()
            headers.append((key, f"{value}\n{line[1:]}"))
        else:
            key, _, value = line.partition(" ")
            headers.append((key, value))
    return Commit(oid, data, tuple(headers), message)


class Git:
    """Git commands in one repository, with a scrubbed environment."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def run(self, *arguments: str, data: bytes = b"", env: dict[str, str] | None = None) -> bytes:
        """Run a command and return its standard output.

        Raises:
            GitError: exit status other than 0.
        """
        done = self._start(arguments, data, env)
        if done.returncode:
            error = done.stderr.decode(errors="replace").strip()
            raise GitError(
                f"`git {shlex.join(arguments)}` in {self.root} failed with {done.returncode}: "
                f"{error}"
            )
        return done.stdout

    def line(self, *arguments: str, env: dict[str, str] | None = None) -> str:
        """The standard output as text without the final newline."""
        return self.run(*arguments, env=env).decode().rstrip("\n")

    def lines(self, *arguments: str) -> tuple[str, ...]:
        """The lines of the standard output."""
        return tuple(self.run(*arguments).decode().splitlines())

    def names(self, *arguments: str) -> tuple[str, ...]:
        """The NUL-separated names of the standard output (for commands run with -z)."""
        return tuple(self.run(*arguments).decode().split("\0")[:-1])

    def find(self, *arguments: str) -> str | None:
        """As `line`, but None where the command fails."""
        done = self._start(arguments, b"", None)
        return None if done.returncode else done.stdout.decode().rstrip("\n")

    def commit(self, oid: str) -> Commit:
        """Read one commit as stored."""
        return parse_object(oid, self.run("cat-file", "commit", oid))

    def _start(
        self, arguments: tuple[str, ...], data: bytes, env: dict[str, str] | None
    ) -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run(
                ["git", *NEUTRAL, *arguments],
                cwd=self.root,
                input=data,
                capture_output=True,
                check=False,
                env=environment() | (env or {}),
            )
        except FileNotFoundError as error:
            raise UnusableError("git is not on PATH; install it") from error


def environment() -> dict[str, str]:
    """The caller's environment without what redirects git, with a fixed locale and no prompts."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") or name in _TRANSPORT or name.startswith("GIT_CONFIG_")
    }
    return kept | NO_GRAFTS | {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}


def command_line(*arguments: str, env: dict[str, str] | None = None) -> str:
    """A git command to print and to paste into a shell: the same bytes under any configuration."""
    settings = [f"{name}={value}" for name, value in (NO_GRAFTS | (env or {})).items()]
    return shlex.join(["env", *settings, "git", *NEUTRAL, *arguments])


def is_local(url: str) -> bool:
    """Whether a remote is a repository on this machine."""
    return url.startswith("file://") or ("://" not in url and Path(url).exists())

"""Three real indexes, a real mail server and a project of three wheels, for staging and the gate.

world = World.create(tmp_path)   # inside `with`; see the fixture `world`
code = world.run("stage", "--channel", "nightly", "--execute")
"""

from __future__ import annotations

import contextlib
import importlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import SMTP
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller

import in_process
from index_server import USER, IndexServer, Policy, isolated
from publishing import Entry, Manifest, entry_of, write_manifest
from two_wheels import stand_in

TOOLS = Path(__file__).resolve().parents[2] / "tools"
NAMES = ("sync-a", "sync-b", "sync-c")
NIGHTLY = "1.2.3.dev20261130080000"
RELEASE = "1.2.3"
TOKENS = {"public": "public-secret", "staging": "staging-secret", "nightly": "nightly-secret"}
_ROW = """
[[tool.mmaemu.release.distributions]]
name = "{name}"
version_source = {{ file = "pyproject.toml", key = "project.version", stamp = "environment" }}
runtime = "{module}.py"
build = ["true"]
kinds = ["wheel"]
"""
_PYPROJECT = """\
[project]
name = "sync"
version = "1.2.3"

[tool.mmaemu.release]
owner = "sync-project"
repository = "sync"
name = "sync release"
email = "release@sync.invalid"
notify = "everybody@sync.invalid"
"""


def reserved_port() -> socket.socket:
    """A socket that keeps a port of the loopback interface, on which nobody answers yet."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind(("127.0.0.1", 0))
    return found


@dataclass
class Mailbox:
    """What a mail server received; a handler of aiosmtpd."""

    mails: list[EmailMessage] = field(default_factory=list)

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802
        """Keep a mail."""
        mail = BytesParser(policy=SMTP).parsebytes(envelope.content)
        assert isinstance(mail, EmailMessage)
        self.mails.append(mail)
        return "250 OK"

    @property
    def subjects(self) -> list[str]:
        """The subjects in order."""
        return [str(mail["Subject"]) for mail in self.mails]

    @property
    def texts(self) -> list[str]:
        """The bodies in order."""
        return [str(mail.get_content()) for mail in self.mails]


@contextlib.contextmanager
def mail_server(port: int, mailbox: Mailbox) -> Iterator[None]:
    """A mail server on a port."""
    controller = Controller(mailbox, hostname="127.0.0.1", port=port)
    controller.start()
    try:
        yield
    finally:
        controller.stop()


def variables(role: str, url: str, upload_url: str, account: tuple[str, str]) -> dict[str, str]:
    """The environment variables that name an index and its account."""
    public = role == "public"
    prefix = "MMAEMU_" if public else f"MMAEMU_{role.upper()}_"
    secrets = "TWINE_" if public else prefix
    return {
        f"{prefix}INDEX_URL": url,
        f"{prefix}UPLOAD_URL": upload_url,
        f"{secrets}USERNAME": account[0],
        f"{secrets}PASSWORD": account[1],
    }


@dataclass
class World:
    """Everything around one publication.

    Attributes:
        folder: scratch.
        indexes: by role.
        mailbox: what was mailed.
        port: of the mail server.
    """

    folder: Path
    indexes: dict[str, IndexServer]
    mailbox: Mailbox
    port: int

    @property
    def dist(self) -> Path:
        """Where the built files are."""
        return self.folder / "dist"

    @property
    def manifests(self) -> list[Path]:
        """The manifests so far, in order."""
        return sorted((self.folder / "manifests").glob("*.json"))

    def build(self, version: str, names: Sequence[str] = NAMES) -> list[Path]:
        """Write the wheels of a version."""
        return [stand_in(self.dist, name, version) for name in names]

    def entries(self) -> tuple[Entry, ...]:
        """The built files."""
        return tuple(entry_of(path.name, path.read_bytes()) for path in sorted(self.dist.iterdir()))

    def staged_manifest(self, version: str) -> Path:
        """Build a version, put it into staging and write its manifest."""
        for path in self.build(version):
            self.indexes["staging"].put(path)
        return write_manifest(
            Manifest(self.entries(), "run-1", "c" * 40), self.folder / "manifests"
        )

    def environment(self) -> dict[str, str]:
        """The environment of the tools: these indexes and nobody's configuration."""
        found = {"MMAEMU_MAIL_SERVER": f"127.0.0.1:{self.port}", "MMAEMU_INDEX_TIMEOUT": "3"}
        for role, index in self.indexes.items():
            found |= variables(role, index.url, index.upload_url, (USER, TOKENS[role]))
        return isolated(self.folder / "home") | found

    def command(self, tool: str, *arguments: str) -> list[str]:
        """A tool's command line."""
        given = list(arguments)
        if tool in {"stage", "manifest"}:
            given = [str(self.dist), *given, "--manifests", str(self.folder / "manifests")]
            given += ["--commit", "c" * 40, "--run", "run-1"]
        if tool == "gate":
            given += ["--state", str(self.folder / "gate")]
        if tool in {"stage", "gate"}:
            given += ["--patience", "0.5"]
        if tool != "confirm":
            given += ["--root", str(self.folder)]
        return [sys.executable, str(TOOLS / f"{tool}.py"), *given]

    def run(self, tool: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a tool as a maintainer would."""
        hangs = any(fault.kind == "hang" for each in self.indexes.values() for fault in each.faults)
        return in_process.run(
            importlib.import_module(tool),
            self.command(tool, *arguments)[2:],
            self.environment() | env,
            processes=hangs,
        )

    def kill_at(self, point: str, number: int, tool: str, *arguments: str) -> None:
        """Start a tool, wait until it comes to a point, and kill it there with SIGKILL."""
        process = subprocess.Popen(
            self.command(tool, *arguments),
            env=self.environment() | {"MMAEMU_TEST_FAULT": f"pause-{point}:{number}"},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line == f"paused {point} {number}\n":
                break
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "".join(lines)

    def held(self, role: str) -> list[str]:
        """Names of the files that an index holds now."""
        return sorted(self.indexes[role].files())


@contextlib.contextmanager
def create(folder: Path) -> Iterator[World]:
    """A world with its servers running."""
    rows = [_ROW.format(name=name, module=name.replace("-", "_")) for name in NAMES]
    (folder / "pyproject.toml").write_text(_PYPROJECT + "".join(rows), encoding="utf-8")
    (folder / "home").mkdir()
    (folder / "dist").mkdir()
    with contextlib.ExitStack() as stack:
        kept = stack.enter_context(reserved_port())
        indexes = {
            role: stack.enter_context(
                IndexServer(
                    folder / "indexes" / role,
                    Policy(reuse_names=role != "public", token=TOKENS[role]),
                )
            )
            for role in TOKENS
        }
        yield World(folder, indexes, Mailbox(), kept.getsockname()[1])


def leaks(text: str) -> list[str]:
    """The secrets that a text holds."""
    return [token for token in TOKENS.values() if token in text]


def arguments_of_children(parent: int) -> Iterator[str]:
    """The command lines of a process and of everything below it, as everybody can read them."""
    for place in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (place / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            if place.name == str(parent) or int(fields[1]) == parent:
                yield (place / "cmdline").read_text(encoding="utf-8").replace("\0", " ")
                if place.name != str(parent):
                    yield from arguments_of_children(int(place.name))

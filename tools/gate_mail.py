"""The gate's mails: their texts, and an outbox that outlives a mail server that is down.

A mail is written to the outbox before it is sent and moved to `sent` afterwards. Its Message-ID
depends on what it says of the publication alone, so one that is sent again after a crash is the
same mail for every reader, and one that was sent is not sent by a later run.
"""

from __future__ import annotations

import os
import smtplib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Final

from files import sha256_of, write_bytes
from findings import UnusableError
from publishing import Manifest, pause

_TIMEOUT: Final = 20.0
KINDS: Final = ("accepted", "refused", "finished")


@dataclass(frozen=True, slots=True)
class Mail:
    """One mail.

    Attributes:
        kind: one of KINDS.
        subject: without the prefix.
        truth: what it states; the same truth is never mailed twice.
        log: what led to it.
    """

    kind: str
    subject: str
    truth: str
    log: str = ""


@dataclass(frozen=True, slots=True)
class Post:
    """Where mails wait and where they go.

    Attributes:
        folder: holds `outbox` and `sent`.
        server: HOST:PORT.
        sender: From.
        recipient: To.
        project: prefix of the subjects.
    """

    folder: Path
    server: str
    sender: str
    recipient: str
    project: str

    def write(self, mail: Mail, manifest: Manifest) -> None:
        """Put a mail into the outbox unless it was sent or waits already."""
        identity = sha256_of(f"{manifest.digest}\n{mail.kind}\n{mail.truth}".encode())[:32]
        name = f"{mail.kind}-{identity}.eml"
        if (self.folder / "sent" / name).exists() or (self.folder / "outbox" / name).exists():
            return
        message = EmailMessage(policy=policy.SMTP)
        message["From"], message["To"] = self.sender, self.recipient
        message["Subject"] = f"[{self.project}] {mail.subject}"
        message["Message-ID"] = f"<{identity}@{self.sender.partition('@')[2]}>"
        message.set_content("\n".join(filter(None, (mail.truth, mail.log))))
        write_bytes(self.folder / "outbox" / name, message.as_bytes())

    def deliver(self) -> str:
        """Send what waits, oldest first.

        Returns:
            Why something still waits, "" where nothing does.
        """
        waiting = sorted(
            (self.folder / "outbox").glob("*.eml"), key=lambda path: path.stat().st_mtime_ns
        )
        try:
            for number, path in enumerate(waiting, 1):
                self._send(path)
                pause("after-mail", number)
                sent = self.folder / "sent" / path.name
                sent.parent.mkdir(parents=True, exist_ok=True)
                path.replace(sent)
        except (OSError, smtplib.SMTPException) as error:
            return f"the mail server {self.server} did not take {path.name}: {error}"
        return ""

    def _send(self, path: Path) -> None:
        host, _, port = self.server.rpartition(":")
        message = message_from_bytes(path.read_bytes(), policy=policy.SMTP)
        with smtplib.SMTP(host, int(port), timeout=_TIMEOUT) as server:
            server.send_message(message)


def load_post(
    folder: Path, sender: str, recipient: str, project: str, environ: Mapping[str, str] = os.environ
) -> Post:
    """The post of a project.

    Args:
        folder: where mails wait.
        sender: the release identity's address.
        recipient: the notification address.
        project: name.
        environ: holds MMAEMU_MAIL_SERVER.

    Raises:
        UnusableError: no server, or not HOST:PORT.
    """
    server = environ.get("MMAEMU_MAIL_SERVER", "")
    host, _, port = server.rpartition(":")
    if not host or not port.isdecimal():
        raise UnusableError(f"MMAEMU_MAIL_SERVER must be HOST:PORT, got {server!r}; set it")
    return Post(folder, server, sender, recipient, project)


def accepted(manifest: Manifest) -> Mail:
    """The first mail: every check passed and nothing was sent yet."""
    lines = [f"run: {manifest.run}", f"commit: {manifest.commit}", "", "Accepted, to be published:"]
    lines += [f"  {entry}" for entry in manifest.entries]
    return Mail("accepted", f"accepted: {manifest.title}", "\n".join(lines) + "\n")


def refused(manifest: Manifest, problems: Sequence[str]) -> Mail:
    """The only mail of a publication that a check stopped before anything was sent."""
    lines = [f"run: {manifest.run}", f"commit: {manifest.commit}", ""]
    lines += ["Refused; this run has sent nothing to the package index:"]
    lines += [f"  {problem}" for problem in problems]
    return Mail("refused", f"refused: {manifest.title}", "\n".join(lines) + "\n")


def finished(
    manifest: Manifest, states: Mapping[str, str], staged: Sequence[str] | None, log: str
) -> Mail:
    """The second mail: the truth about every file, as read from the indexes at the end.

    Args:
        manifest: what was to be published.
        states: by file name, what the package index holds now.
        staged: files of the manifest that are still in staging, None for unknown.
        log: the gate's log of all attempts.
    """
    public = sum(state == "public" for state in states.values())
    total = len(manifest.entries)
    word = "published" if public == total else "not complete"
    lines = [f"run: {manifest.run}", f"commit: {manifest.commit}", ""]
    lines += [f"{public} of {total} files are public:"]
    lines += [f"  {states[entry.file]}: {entry}" for entry in manifest.entries]
    left = "unknown" if staged is None else ", ".join(staged) or "nothing"
    lines += ["", f"Still in staging: {left}", ""]
    return Mail("finished", f"{word}: {manifest.title}", "\n".join(lines), f"Log:\n{log}")

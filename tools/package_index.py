"""A package index as the release tools see it: its simple pages, uploads by twine, deletions.

Three indexes have a role each: `public` (what users install from), `staging` (what the gate
publishes from) and `nightly` (every nightly wheel, whatever its size). Addresses and credentials
come from the environment alone; a credential is never an argument and never printed.
"""

from __future__ import annotations

import base64
import html.parser
import ipaddress
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)

from findings import InconclusiveError, UnusableError

if TYPE_CHECKING:
    from packaging.version import Version

ROLES: Final = ("public", "staging", "nightly")
_STATUS: Final = re.compile(r"HTTPError: (\d{3}) ")
_ACCEPT: Final = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
_SCHEMES: Final = ("http", "https")
# Long enough for the largest file on a slow line; a hung index must not hang a release for ever.
_UPLOAD_TIMEOUT: Final = 1800.0
_TIMEOUT: Final = 30.0
# What says how to reach an index through the network at hand, not which index.
_TRANSPORT: Final = frozenset({"PIP_CERT", "PIP_PROXY", "PIP_CLIENT_CERT", "PIP_TRUSTED_HOST"})


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A file that an index lists.

    Attributes:
        name: file name.
        url: where its bytes are.
        sha256: as the page states it, None where it states none.
        size: in bytes as the page states it, None where it states none.
        yanked: whether installers avoid it.
    """

    name: str
    url: str
    sha256: str | None = None
    size: int | None = None
    yanked: bool = False

    @property
    def version(self) -> Version | None:
        """The version in the file's name, None where the name is no distribution's."""
        found = name_and_version(self.name)
        return found[1] if found else None


def name_and_version(file: str) -> tuple[str, Version] | None:
    """Project and version in the name of a wheel or an sdist, None for any other name."""
    try:
        if file.endswith(".whl"):
            name, version, _, _ = parse_wheel_filename(file)
        else:
            name, version = parse_sdist_filename(file)
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None
    return str(name), version


@dataclass(frozen=True, slots=True)
class Upload:
    """What came of one upload.

    Attributes:
        code: exit status of twine, None where it ran out of time.
        output: what it printed.
    """

    code: int | None
    output: str

    @property
    def refused(self) -> bool:
        """Whether the index answered and said no, in contrast to failing to answer."""
        status = _STATUS.search(self.output)
        return status is not None and status[1].startswith("4")

    @property
    def reason(self) -> str:
        """The last thing that twine printed, on one line."""
        if self.code is None:
            return "no answer in time"
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        return " ".join(lines[-2:]) if lines else f"twine exited with {self.code}"


@dataclass(frozen=True, slots=True)
class Index:
    """One package index.

    Attributes:
        role: one of ROLES.
        url: the simple page's address, with a final slash.
        upload_url: where uploads go, None where the index is only read.
        credentials: user and password, None for none.
        timeout: seconds to wait for an answer to a read.
        upload_timeout: seconds to wait for an upload.
    """

    role: str
    url: str
    upload_url: str | None = None
    credentials: tuple[str, str] | None = field(default=None, repr=False)
    timeout: float = _TIMEOUT
    upload_timeout: float = _UPLOAD_TIMEOUT

    def files(self, project: str) -> tuple[IndexFile, ...]:
        """The files of a project in the order of their names, none where there is no such project.

        Raises:
            InconclusiveError: the index did not answer.
            UnusableError: it answered with something else than a page.
        """
        url = urllib.parse.urljoin(self.url, f"{canonicalize_name(project)}/")
        answer = self._get(url, {"Accept": _ACCEPT, "Cache-Control": "no-cache"})
        if answer is None:
            return ()
        body, kind, base = answer
        try:
            found = _from_json(body, base) if "json" in kind else _from_html(body, base)
        except (ValueError, KeyError, TypeError) as error:
            raise UnusableError(f"{url} is no simple page: {error!r}") from error
        return tuple(sorted(found, key=lambda file: file.name))

    def read(self, file: IndexFile) -> bytes | None:
        """The bytes of a file, None where the index no longer has it."""
        answer = self._get(file.url, {})
        return None if answer is None else answer[0]

    def size(self, file: IndexFile) -> int:
        """Size of a file, from the page or by asking for its headers."""
        if file.size is not None:
            return file.size
        request = self.request(file.url, {}, method="HEAD")
        with self._open(request) as response:
            return int(response.headers.get("Content-Length") or 0)

    def upload(self, path: Path) -> Upload:
        """Upload one file with twine; never --skip-existing, which hides other bytes.

        Raises:
            UnusableError: the index has no upload address.
        """
        command = [
            *(sys.executable, "-m", "twine", "upload", "--non-interactive"),
            *("--disable-progress-bar", "--config-file", os.devnull),
            *("--repository-url", self._upload_address(), str(path)),
        ]
        # Without an account a user is still needed: twine asks nobody when run by a script.
        user, password = self.credentials or ("anonymous", "anonymous")
        secrets = {"TWINE_USERNAME": user, "TWINE_PASSWORD": password}
        kept = {key: text for key, text in os.environ.items() if not key.startswith("TWINE_")}
        try:
            done = subprocess.run(
                command,
                env=kept | secrets | {"NO_COLOR": "1", "COLUMNS": "500"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
                timeout=self.upload_timeout,
            )
        except subprocess.TimeoutExpired:
            return Upload(None, "")
        return Upload(done.returncode, self._without_secrets(done.stdout))

    def remove(self, file: IndexFile) -> None:
        """Delete one file by its address; a file that is gone is no error.

        Raises:
            InconclusiveError: the index did not answer.
            UnusableError: it refused.
        """
        try:
            with self._open(self.request(file.url, {}, method="DELETE")):
                return
        except UnusableError as error:
            if not _not_found(error):
                raise

    @property
    def is_local(self) -> bool:
        """Whether nothing outside this machine is written."""
        return is_local(self.upload_url or self.url)

    def _upload_address(self) -> str:
        if self.upload_url is None:
            raise UnusableError(
                f"{_variable(self.role, 'UPLOAD_URL')} is not set; set it to the address where the "
                f"{self.role} index takes uploads"
            )
        return self.upload_url

    def _without_secrets(self, text: str) -> str:
        password = self.credentials[1] if self.credentials else ""
        return text.replace(password, "***") if password else text

    def _get(self, url: str, headers: dict[str, str]) -> tuple[bytes, str, str] | None:
        """Body, content type and final address; None for 404."""
        try:
            with self._open(self.request(url, headers)) as response:
                body = response.read()
                return body, response.headers.get("Content-Type", ""), response.geturl()
        except UnusableError as error:
            if not _not_found(error):
                raise
            return None
        except (OSError, HTTPException) as error:
            raise InconclusiveError(_silent(self.role, url, error)) from error

    def request(
        self, url: str, headers: dict[str, str], method: str = "GET"
    ) -> urllib.request.Request:
        """A request with the credentials of this index, where it goes to this index's host.

        Raises:
            UnusableError: the address is none of the web.
        """
        if urllib.parse.urlsplit(url).scheme not in _SCHEMES:
            raise UnusableError(f"{url} is no http address")
        request = urllib.request.Request(url, None, headers, method=method)  # noqa: S310
        if self.credentials and _same_host(url, self.url, self.upload_url):
            token = base64.b64encode(":".join(self.credentials).encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {token}")
        return request

    def _open(self, request: urllib.request.Request) -> HTTPResponse:
        """Send a request.

        Raises:
            InconclusiveError: no answer, or one that says that the index itself failed.
            UnusableError: the index refused; its cause is the HTTPError.
        """
        try:
            response: HTTPResponse = urllib.request.urlopen(  # noqa: S310 - see request
                request, timeout=self.timeout
            )
        except urllib.error.HTTPError as error:
            text = _silent(self.role, request.full_url, error)
            if error.code >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise InconclusiveError(text) from error
            raise UnusableError(text) from error
        except (OSError, HTTPException) as error:
            raise InconclusiveError(_silent(self.role, request.full_url, error)) from error
        return response


def _not_found(error: UnusableError) -> bool:
    cause = error.__cause__
    return isinstance(cause, urllib.error.HTTPError) and cause.code == HTTPStatus.NOT_FOUND


def _silent(role: str, url: str, error: Exception) -> str:
    return f"the {role} index did not give {url}: {error}; rerun when it does"


def _same_host(url: str, *others: str | None) -> bool:
    place = urllib.parse.urlsplit(url).netloc
    return any(
        other is not None and urllib.parse.urlsplit(other).netloc == place for other in others
    )


class _Links(html.parser.HTMLParser):
    """The anchors of a simple page: attributes and text."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[dict[str, str | None], str]] = []
        self._open: dict[str, str | None] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Remember an anchor."""
        self._open = dict(attrs) if tag == "a" else self._open

    def handle_data(self, data: str) -> None:
        """An anchor's text ends it."""
        if self._open is not None and data.strip():
            self.found.append((self._open, data.strip()))
            self._open = None


def _from_html(body: bytes, base: str) -> list[IndexFile]:
    parser = _Links()
    parser.feed(body.decode())
    files = []
    for attributes, name in parser.found:
        url, _, fragment = urllib.parse.urljoin(base, attributes.get("href") or "").partition("#")
        digest = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else None
        files.append(IndexFile(name, url, digest, yanked="data-yanked" in attributes))
    return files


def _from_json(body: bytes, base: str) -> list[IndexFile]:
    rows: list[dict[str, Any]] = json.loads(body)["files"]
    return [
        IndexFile(
            name=row["filename"],
            url=urllib.parse.urljoin(base, row["url"]),
            sha256=row.get("hashes", {}).get("sha256"),
            size=row.get("size"),
            yanked=bool(row.get("yanked", False)),
        )
        for row in rows
    ]


def is_local(url: str) -> bool:
    """Whether an address is of this machine."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "file" or parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False


def _variable(role: str, what: str) -> str:
    return f"MMAEMU_{what}" if role == "public" else f"MMAEMU_{role.upper()}_{what}"


def from_environment(role: str, environ: Mapping[str, str] = os.environ) -> Index:
    """The index of a role, from the variables that docs/reference/settings.md lists.

    Args:
        role: one of ROLES.
        environ: the variables.

    Raises:
        UnusableError: no address, or one with a credential in it.
    """
    variable = _variable(role, "INDEX_URL")
    url = environ.get(variable, "").strip() or (_pip_index(environ) if role == "public" else "")
    if not url:
        raise UnusableError(f"{variable} is not set; set it to the {role} index's simple address")
    upload = environ.get(_variable(role, "UPLOAD_URL"), "").strip() or None
    for address in filter(None, (url, upload)):
        if urllib.parse.urlsplit(address).password:
            raise UnusableError(
                f"the address of the {role} index holds a password; set TWINE_PASSWORD instead"
            )
    return Index(
        role=role,
        url=f"{url.rstrip('/')}/",
        upload_url=upload,
        credentials=_account(role, environ),
        timeout=_seconds(environ, _TIMEOUT),
        upload_timeout=_seconds(environ, _UPLOAD_TIMEOUT),
    )


def _seconds(environ: Mapping[str, str], default: float) -> float:
    text = environ.get("MMAEMU_INDEX_TIMEOUT") or str(default)
    try:
        return float(text)
    except ValueError as error:
        raise UnusableError(f"MMAEMU_INDEX_TIMEOUT must be seconds, got {text!r}") from error


def _account(role: str, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """User and password: those of the role where it has its own, else twine's."""
    own = [] if role == "public" else [_variable(role, "")]
    found = [
        next(filter(None, (environ.get(f"{prefix}{what}") for prefix in (*own, "TWINE_"))), None)
        for what in ("USERNAME", "PASSWORD")
    ]
    return (found[0], found[1]) if found[0] and found[1] else None


def _pip_index(environ: Mapping[str, str]) -> str:
    """The index that pip's own settings name, "" where they name none."""
    if environ.get("PIP_INDEX_URL"):
        return environ["PIP_INDEX_URL"]
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    done = subprocess.run(command, env=dict(environ), capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def plain_pip(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """An environment in which pip sees no settings but how to reach the network."""
    kept = {
        name: text
        for name, text in environ.items()
        if (not name.startswith(("PIP_", "UV_", "TWINE_")) or name in _TRANSPORT)
        and name not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    }
    return kept | {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def confirm_execute(indexes: tuple[Index, ...], *, allow_remote: bool) -> None:
    """Refuse to write to an index outside this machine unless that was allowed.

    Raises:
        UnusableError: one is remote and that was not allowed.
    """
    for index in indexes:
        if not index.is_local and not allow_remote:
            raise UnusableError(
                f"the {index.role} index is not on this machine; add --allow-remote to write to it"
            )

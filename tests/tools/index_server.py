"""A real package index for tests: pypiserver on loopback behind the rules of a public index.

pypiserver stores, lists and serves the files. The layer in front of it refuses what a public index
refuses (file size, project size, other bytes under a known name, names of deleted files, old
releases), adds hashes, times and yanked flags to the simple API, and fails on demand.

    with IndexServer(folder, Policy(file_limit=100)) as index:
        subprocess.run([..., "twine", "upload", ...], env=isolated(home) | index.settings())
"""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
import os
import re
import socketserver
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, unquote
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.util import setup_testing_defaults

import pypiserver
from packaging.utils import canonicalize_name
from pypiserver.bottle_wrapper import Request as Form

from files import sha256_of

# pypiserver's web framework leaves a finder without find_spec, which importlib.util cannot ask.
sys.meta_path[:] = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment
    from typing_extensions import Self

USER = "__token__"
SIMPLE_JSON = "application/vnd.pypi.simple.v1+json"
_ANCHOR = re.compile(r'<a href="([^"#]+)(?:#[^"]*)?">([^<]+)</a>')
_AMBIENT = ("PIP_", "UV_", "TWINE_", "VIRTUAL_ENV", "PYTHONPATH", "XDG_")

Answer = tuple[int, str, bytes]


@dataclass
class Policy:
    """What the index accepts.

    Attributes:
        file_limit: largest file in bytes; equal passes.
        quota: largest sum of a project's files in bytes.
        release_age: no new file for a release whose first file is older than this.
        reuse_names: whether the name of a deleted file may be used again (a staging index).
        token: password that an upload or a deletion needs; none where None.
    """

    file_limit: int = 100 << 20
    quota: int = 10 << 30
    release_age: dt.timedelta | None = None
    reuse_names: bool = False
    token: str | None = None


@dataclass
class Fault:
    """One thing that goes wrong.

    Attributes:
        kind: "error" answers with `status` and does nothing; "error-after" does the work and then
            answers with `status`; "hang" keeps the client waiting until the fault is taken away;
            "lie" gives a wrong sha256 in the simple index; "stale" leaves the file out of it;
            "ghost" keeps a deleted file in it.
        where: regular expression searched in "METHOD /path" and, for an upload, the file name;
            for the last three kinds, in the file name.
        times: how often; None is every time.
        status: the answer of the error kinds.
    """

    kind: Literal["error", "error-after", "hang", "lie", "stale", "ghost"]
    where: str = ""
    times: int | None = None
    status: int = 500

    def hits(self, text: str) -> bool:
        """Whether it happens now; counts down."""
        if self.times == 0 or not re.search(self.where, text):
            return False
        if self.times is not None:
            self.times -= 1
        return True


@dataclass(frozen=True)
class Stored:
    """A file that the index holds or held."""

    project: str
    version: str
    sha256: str
    size: int
    time: dt.datetime


@dataclass
class Logged:
    """One request.

    Attributes:
        method: HTTP method.
        path: of the address.
        filename: of an upload.
        received: bytes of the body.
        status: of the answer; 0 until it is answered.
        stored: whether it put a file into the index.
    """

    method: str
    path: str
    filename: str = ""
    received: int = 0
    status: int = 0
    stored: bool = False


@dataclass(frozen=True)
class Upload:
    """An upload as sent."""

    project: str
    version: str
    filename: str
    data: bytes
    digest: str


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Nothing: the server keeps its own log."""


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no news; everything else is shown."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


@dataclass
class IndexServer:
    """An index on a free port of the loopback interface, started by `with`.

    Attributes:
        folder: where pypiserver keeps the files.
        policy: what is accepted; may be changed while it runs.
        faults: what goes wrong; may be changed while it runs.
        log: every request so far.
        held: every file that was ever stored, by name.
        yanked: reason by (project, version).
        now: the clock of upload times and release ages.
        on_stored: called with a file's name once it is stored, before the client is answered.
    """

    folder: Path
    policy: Policy = field(default_factory=Policy)
    faults: list[Fault] = field(default_factory=list)
    log: list[Logged] = field(default_factory=list)
    held: dict[str, Stored] = field(default_factory=dict)
    yanked: dict[tuple[str, str], str] = field(default_factory=dict)
    now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.timezone.utc)
    on_stored: Callable[[str], object] | None = None

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._store = pypiserver.app(
            roots=[self.folder],
            authenticate=[],
            password_file=".",  # noqa: S106 - pypiserver means "none" by it
            disable_fallback=True,
            backend_arg="simple-dir",
            hash_algo="sha256",
        )
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.set_app(self._answer)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    # --- for tests ------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The address of the simple index."""
        return f"{self._base}/simple/"

    @property
    def upload_url(self) -> str:
        """The address that twine uploads to."""
        return f"{self._base}/legacy/"

    @property
    def _base(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def settings(self, role: str = "public") -> dict[str, str]:
        """The environment variables by which the tools find this index in a role."""
        name = "MMAEMU" if role == "public" else f"MMAEMU_{role.upper()}"
        account = "TWINE" if role == "public" else name
        return {
            f"{name}_INDEX_URL": self.url,
            f"{name}_UPLOAD_URL": self.upload_url,
            f"{account}_USERNAME": USER,
            f"{account}_PASSWORD": self.policy.token or "unused",
        }

    def files(self) -> dict[str, bytes]:
        """The files that are there now, by name."""
        return {path.name: path.read_bytes() for path in sorted(self.folder.iterdir())}

    def uploads(self) -> list[str]:
        """The names of the files that uploads stored, in order."""
        return [each.filename for each in self.log if each.stored]

    def put(self, path: Path, version: str | None = None) -> None:
        """Store a file as if it had been uploaded."""
        project, found = path.name.split("-")[:2]
        upload = Upload(project, version or found, path.name, path.read_bytes(), "")
        (self.folder / path.name).write_bytes(upload.data)
        self._remember(upload)

    def remove(self, filename: str) -> None:
        """Delete a file; its name stays used."""
        (self.folder / filename).unlink()

    def yank(self, project: str, version: str, reason: str = "") -> None:
        """Yank a release, or with PEP 592 every file of it."""
        self.yanked[canonicalize_name(project), version] = reason

    # --- the layer ------------------------------------------------------------------------------

    def _answer(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        entry = Logged(environ["REQUEST_METHOD"], path)
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        entry.received = len(body)
        form = Form(environ) if entry.method == "POST" else None
        entry.filename = _filename(form)
        self.log.append(entry)
        place = f"{entry.method} {path} {entry.filename}"
        for fault in [each for each in self.faults if self._hits(each, "hang", place)]:
            while fault in self.faults and not self._stopping.wait(0.02):
                pass
        failing = [each for each in self.faults if self._hits(each, "error", place)]
        after = [each for each in self.faults if self._hits(each, "error-after", place)]
        answer = None if failing else self._route(entry, environ, form)
        if failing or after:
            answer = (failing + after)[0].status, "text/plain", b"the index is out of order"
        if answer is None:
            return _forward(self._store, environ, start, entry)
        return _send(start, entry, answer)

    @staticmethod
    def _hits(fault: Fault, kind: str, place: str) -> bool:
        return fault.kind == kind and fault.hits(place)

    def _route(self, entry: Logged, environ: WSGIEnvironment, form: Form | None) -> Answer | None:
        if entry.method in {"POST", "DELETE"}:
            if not self._allowed(environ):
                return 403, "text/plain", b"the token is not the index's"
            with self._lock:
                if form is None:
                    return self._delete(entry.path)
                return self._post(entry, form)
        project = re.fullmatch(r"/simple/([^/]+)/", entry.path)
        if project and entry.method == "GET":
            return self._simple(project[1], environ)
        return None

    def _allowed(self, environ: WSGIEnvironment) -> bool:
        token = self.policy.token
        sent = environ.get("HTTP_AUTHORIZATION", "").partition(" ")[2]
        return token is None or base64.b64decode(sent).decode() == f"{USER}:{token}"

    def _delete(self, path: str) -> Answer:
        """Delete one file by its address."""
        name = unquote(path).rsplit("/", 1)[-1]
        if not (self.folder / name).is_file():
            return 404, "text/plain", b"no such file"
        self.remove(name)
        return 200, "text/plain", b""

    def _post(self, entry: Logged, form: Form) -> Answer:
        if form.forms.get(":action") != "file_upload":
            return self._pass_on(form)
        part = form.files["content"]
        upload = Upload(
            form.forms["name"],
            form.forms["version"],
            part.raw_filename,
            part.file.read(),
            form.forms.get("sha256_digest", ""),
        )
        part.file.seek(0)
        present = self.folder / upload.filename
        if present.is_file() and present.read_bytes() == upload.data:
            return 200, "text/plain", b""
        for refuses in _REFUSALS:
            reason = refuses(self, upload)
            if reason:
                return 400, "text/plain", reason.encode()
        answer = self._pass_on(form)
        if answer[0] == HTTPStatus.OK:
            self._remember(upload)
            entry.stored = True
            if self.on_stored is not None:
                self.on_stored(upload.filename)
        return answer

    def _remember(self, upload: Upload) -> None:
        self.held[upload.filename] = Stored(
            canonicalize_name(upload.project),
            upload.version,
            sha256_of(upload.data),
            len(upload.data),
            self.now(),
        )

    def _pass_on(self, form: Form) -> Answer:
        """Let pypiserver handle a request that is sent to its own address."""
        form.environ["wsgi.input"].seek(0)
        plain = {key: value for key, value in form.environ.items() if "bottle" not in key}
        return self._ask(plain | {"PATH_INFO": "/"})

    def _ask(self, environ: dict[str, Any]) -> Answer:
        """What pypiserver answers."""
        setup_testing_defaults(environ)
        seen: list[tuple[str, list[tuple[str, str]]]] = []
        parts = self._store(environ, lambda status, headers, *_: seen.append((status, headers)))
        body = b"".join(parts)
        status, headers = seen[0]
        return int(status.split()[0]), dict(headers).get("Content-Type", "text/plain"), body

    def _simple(self, project: str, environ: WSGIEnvironment) -> Answer:
        asked: dict[str, Any] = {"REQUEST_METHOD": "GET", "PATH_INFO": f"/simple/{project}/"}
        status, kind, body = self._ask(asked)
        rows = [self._row(name) for _, name in _ANCHOR.findall(body.decode())]
        rows += [
            self._row(name)
            for name, stored in self.held.items()
            if stored.project == project
            and not (self.folder / name).is_file()
            and any(self._hits(fault, "ghost", name) for fault in self.faults)
        ]
        rows = [
            row
            for row in rows
            if not any(self._hits(fault, "stale", row["filename"]) for fault in self.faults)
        ]
        if status != HTTPStatus.OK and not rows:
            return status, kind, body
        if SIMPLE_JSON in environ.get("HTTP_ACCEPT", ""):
            return 200, SIMPLE_JSON, json.dumps(_as_json(project, rows)).encode()
        return 200, "text/html", _as_html(rows).encode()

    def _row(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        if name not in self.held:
            self.put(path)
        stored = self.held[name]
        lies = any(self._hits(fault, "lie", name) for fault in self.faults)
        row: dict[str, Any] = {
            "filename": name,
            "url": f"../../packages/{quote(name)}",
            "hashes": {"sha256": sha256_of(b"a lie") if lies else stored.sha256},
            "size": stored.size,
            "upload-time": stored.time.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        reason = self.yanked.get((stored.project, stored.version))
        if reason is not None:
            row["yanked"] = reason or True
        return row


def _other_hash(_: IndexServer, upload: Upload) -> str:
    if upload.digest in {"", sha256_of(upload.data)}:
        return ""
    return "The digest supplied does not match a digest calculated from the uploaded file."


def _other_bytes(index: IndexServer, upload: Upload) -> str:
    if not (index.folder / upload.filename).is_file():
        return ""
    return f"File already exists ({upload.filename!r}, with other contents)."


def _burned(index: IndexServer, upload: Upload) -> str:
    if index.policy.reuse_names or upload.filename not in index.held:
        return ""
    return f"This filename has already been used, use a different version: {upload.filename}"


def _too_large(index: IndexServer, upload: Upload) -> str:
    limit = index.policy.file_limit
    if len(upload.data) <= limit:
        return ""
    return f"File too large. Limit for project {upload.project!r} is {limit} bytes."


def _over_quota(index: IndexServer, upload: Upload) -> str:
    project = canonicalize_name(upload.project)
    used = sum(
        stored.size
        for name, stored in index.held.items()
        if stored.project == project and (index.folder / name).is_file()
    )
    if used + len(upload.data) <= index.policy.quota:
        return ""
    return f"Project size too large. Limit for {upload.project!r} is {index.policy.quota} bytes."


def _too_old(index: IndexServer, upload: Upload) -> str:
    key = canonicalize_name(upload.project), upload.version
    times = [each.time for each in index.held.values() if (each.project, each.version) == key]
    age = index.policy.release_age
    if age is None or not times or index.now() - min(times) <= age:
        return ""
    return f"Release {upload.version} is too old for new files."


_REFUSALS: tuple[Callable[[IndexServer, Upload], str], ...] = (
    _other_hash,
    _other_bytes,
    _burned,
    _too_large,
    _over_quota,
    _too_old,
)


def _filename(form: Form | None) -> str:
    part = form.files.get("content") if form is not None else None
    return str(part.raw_filename) if part else ""


def _forward(
    app: Any, environ: WSGIEnvironment, start: StartResponse, entry: Logged
) -> Iterable[bytes]:
    def begin(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
        entry.status = int(status.partition(" ")[0])
        return start(status, headers, *rest)

    answer: Iterable[bytes] = app(environ, begin)
    return answer


def _send(start: StartResponse, entry: Logged, answer: Answer) -> list[bytes]:
    status, kind, body = answer
    entry.status = status
    # twine shows the reason phrase; a public index puts its explanation there.
    reason = body.decode().splitlines()[0] if status == HTTPStatus.BAD_REQUEST and body else "-"
    headers = [("Content-Type", kind), ("Content-Length", str(len(body)))]
    start(f"{status} {reason}", headers)
    return [body]


def _as_json(project: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    versions = sorted({row["filename"].split("-")[1].removesuffix(".tar.gz") for row in rows})
    return {
        "meta": {"api-version": "1.1"},
        "name": project,
        "versions": versions,
        "files": rows,
    }


def _as_html(rows: list[dict[str, Any]]) -> str:
    lines = ["<!DOCTYPE html><html><body>"]
    for row in rows:
        yanked = row.get("yanked")
        reason = "" if yanked in {None, True} else str(yanked)
        flag = f' data-yanked="{reason}"' if yanked is not None else ""
        link = f"{row['url']}#sha256={row['hashes']['sha256']}"
        lines.append(f'<a href="{link}"{flag}>{row["filename"]}</a><br>')
    return "\n".join([*lines, "</body></html>"])


def isolated(home: Path) -> dict[str, str]:
    """The environment of pip, uv and twine in a test, without anybody's configuration.

    Args:
        home: a scratch folder; caches go there too.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_AMBIENT) and not name.lower().endswith("_proxy")
    }
    return kept | {
        "HOME": str(home),
        "NETRC": os.devnull,
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring",
        "UV_CACHE_DIR": str(home / "uv-cache"),
        "UV_NO_CONFIG": "1",
        "UV_PYTHON_DOWNLOADS": "never",
    }

"""A stand-in for the hosting service: no real one can be reached from a test.

It answers the few addresses that tools/hosting.py uses, on loopback, from plain lists, and keeps
what it was asked to make.
"""

from __future__ import annotations

import io
import json
import re
import threading
import zipfile
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from typing_extensions import Self


def workflow_run(number: int, title: str, **values: str) -> dict[str, Any]:
    """A run as the service lists it."""
    row = {"id": number, "display_title": title, "status": "completed", "conclusion": "success"}
    more = {"head_sha": "", "run_started_at": "", "html_url": f"https://hosting.invalid/{number}"}
    return {**row, **more, **values}


@dataclass
class HostingDouble:
    """The service, started by `with`.

    Attributes:
        runs: what it lists, newest first.
        artifacts: documents of the artifacts, newest first.
        reports: documents by path below /reports/.
        issues: made by POST.
        pulls: made by POST.
        labels: (number, labels) by POST.
        dispatched: inputs by POST.
        on_dispatch: run that appears once a run was dispatched.
        tokens: what was sent as authorization.
        status: answer to everything where it is not 200.
    """

    runs: list[dict[str, Any]] = field(default_factory=list)
    artifacts: list[Any] = field(default_factory=list)
    reports: dict[str, Any] = field(default_factory=dict)
    issues: list[dict[str, Any]] = field(default_factory=list)
    pulls: list[dict[str, Any]] = field(default_factory=list)
    labels: list[tuple[str, list[str]]] = field(default_factory=list)
    dispatched: list[dict[str, Any]] = field(default_factory=list)
    on_dispatch: dict[str, Any] | None = None
    tokens: set[str | None] = field(default_factory=set)
    status: int = 200

    def __enter__(self) -> Self:
        double = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Nothing."""

            def do_GET(self) -> None:
                self._answer(None)

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                self._answer(json.loads(self.rfile.read(length)))

            def _answer(self, document: Any) -> None:
                double.tokens.add(self.headers.get("Authorization"))
                found = double.answer(self.path, document)
                status = 404 if found is None else double.status
                body = found if isinstance(found, bytes) else json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        """Address for MMAEMU_HOSTING_API_URL."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, path: str, document: Any) -> Any:
        """What a request gets; None is 404."""
        parts = urlsplit(path)
        query = parse_qs(parts.query)
        for pattern, reply in (
            (r"/reports/(.+)", self._report),
            (r"/repos/[^/]+/[^/]+/actions/workflows/[^/]+/runs()", self._runs),
            (r"/repos/[^/]+/[^/]+/actions/runs/(\d+)", self._run),
            (r"/repos/[^/]+/[^/]+/actions/workflows/[^/]+/dispatches()", self._dispatch),
            (r"/repos/[^/]+/[^/]+/actions/artifacts()", self._artifacts),
            (r"/repos/[^/]+/[^/]+/actions/artifacts/([^/]+)/zip", self._zip),
            (r"/repos/[^/]+/[^/]+/issues/(\d+)/labels", self._label),
            (r"/repos/[^/]+/[^/]+/issues()", self._issue),
            (r"/repos/[^/]+/[^/]+/pulls()", self._pull),
        ):
            found = re.fullmatch(pattern, parts.path)
            if found:
                return reply(found[1], query, document)
        return None

    def _report(self, name: str, _: Any, __: Any) -> Any:
        return self.reports.get(name)

    def _runs(self, _: str, __: Any, ___: Any) -> Any:
        return {"workflow_runs": self.runs}

    def _run(self, number: str, _: Any, __: Any) -> Any:
        return next((row for row in self.runs if str(row["id"]) == number), None)

    def _dispatch(self, _: str, __: Any, document: Any) -> Any:
        self.dispatched.append(document)
        if self.on_dispatch:
            self.runs.insert(0, self.on_dispatch)
        return b""

    def _artifacts(self, _: str, __: Any, ___: Any) -> Any:
        return {"artifacts": [{"id": number} for number in range(len(self.artifacts))]}

    def _zip(self, number: str, _: Any, __: Any) -> Any:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr("manifest.json", json.dumps(self.artifacts[int(number)]))
        return stream.getvalue()

    def _label(self, number: str, _: Any, document: Any) -> Any:
        self.labels.append((number, document["labels"]))
        return []

    def _issue(self, _: str, __: Any, document: Any) -> Any:
        return self.issues if document is None else self._made(self.issues, document)

    def _pull(self, _: str, query: Any, document: Any) -> Any:
        if document is None:
            head = query["head"][0].partition(":")[2]
            return [row for row in self.pulls if row["head"].rpartition(":")[2] == head]
        return self._made(self.pulls, document)

    @staticmethod
    def _made(rows: list[dict[str, Any]], document: Any) -> dict[str, Any]:
        number = len(rows) + 1
        page = f"https://hosting.invalid/{number}"
        rows.append({**document, "number": number, "html_url": page})
        return rows[-1]

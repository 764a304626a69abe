"""The hosting service's HTTP interface, as far as golden commits need it: runs, issues, requests.

The address is MMAEMU_HOSTING_API_URL (default: the public service's). A token is taken from the
environment, sent in a header to that address only, and never printed.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, Final

from findings import InconclusiveError, UnusableError
from package_index import is_local

DEFAULT: Final = "https://api.github.com"
_TIMEOUT: Final = 30.0
PAGE: Final = 100


class NotFoundError(UnusableError):
    """The service has nothing at the address, or shows nothing without a token."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a workflow.

    Attributes:
        number: the run's id.
        title: what the run calls itself; a run for a candidate names it here.
        status: "completed", or where it stands.
        conclusion: of a completed run, for example "success".
        commit: what it ran on.
        started_at: UTC, RFC 3339.
        url: the run's page.
    """

    number: str
    title: str
    status: str
    conclusion: str
    commit: str
    started_at: str
    url: str


@dataclass(frozen=True, slots=True)
class Hosting:
    """The service, with or without a token.

    Attributes:
        url: address of the interface.
        token: None where only public things are read.
    """

    url: str = DEFAULT
    token: str | None = field(default=None, repr=False)

    @property
    def is_local(self) -> bool:
        """Whether it is a stand-in on this machine."""
        return is_local(self.url)

    def runs(self, repository: str, workflow: str, **query: str) -> tuple[Run, ...]:
        """The newest runs of a workflow."""
        words = urllib.parse.urlencode({"per_page": PAGE, **query})
        path = f"repos/{repository}/actions/workflows/{workflow}/runs?{words}"
        return tuple(_run(row) for row in self.call(path)["workflow_runs"])

    def run(self, repository: str, number: str) -> Run:
        """One run by its id."""
        return _run(self.call(f"repos/{repository}/actions/runs/{number}"))

    def dispatch(
        self, repository: str, workflow: str, branch: str, inputs: Mapping[str, str]
    ) -> None:
        """Start a run; the service does not say which: it is found by its title."""
        path = f"repos/{repository}/actions/workflows/{workflow}/dispatches"
        self.call(path, {"ref": branch, "inputs": dict(inputs)})

    def artifacts(self, repository: str, name: str) -> Iterator[bytes]:
        """The artifacts of a name that have not expired, newest first, each a zip archive."""
        words = urllib.parse.urlencode({"name": name, "per_page": PAGE})
        rows = self.call(f"repos/{repository}/actions/artifacts?{words}")["artifacts"]
        for row in rows:
            if not row.get("expired"):
                yield self.read(f"repos/{repository}/actions/artifacts/{row['id']}/zip")

    def open_issue(self, repository: str, title: str, body: str, label: str) -> str:
        """Open an issue unless one of this title and label exists; return its page."""
        words = urllib.parse.urlencode({"labels": label, "state": "all", "per_page": PAGE})
        for row in self.call(f"repos/{repository}/issues?{words}"):
            if row["title"] == title:
                return str(row["html_url"])
        made = self.call(
            f"repos/{repository}/issues", {"title": title, "body": body, "labels": [label]}
        )
        return str(made["html_url"])

    def open_pull_request(
        self, repository: str, *, head: str, base: str, title: str, body: str, label: str = ""
    ) -> str:
        """Open a pull request unless one from this branch is open; return its page."""
        owner = repository.partition("/")[0]
        whole = head if ":" in head else f"{owner}:{head}"
        words = urllib.parse.urlencode({"head": whole, "base": base, "state": "open"})
        found = self.call(f"repos/{repository}/pulls?{words}")
        made = (
            found[0]
            if found
            else self.call(
                f"repos/{repository}/pulls",
                {"title": title, "head": head, "base": base, "body": body},
            )
        )
        if label:
            path = f"repos/{repository}/issues/{made['number']}/labels"
            self.call(path, {"labels": [label]})
        return str(made["html_url"])

    def call(self, path: str, document: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401
        """A GET, or a POST of a document, that answers with JSON or with nothing."""
        body = self.read(path, None if document is None else json.dumps(document).encode())
        try:
            return json.loads(body) if body else {}
        except ValueError as error:
            raise UnusableError(f"{self.url}/{path} answered with no JSON: {error}") from error

    def read(self, path: str, data: bytes | None = None) -> bytes:
        """The bytes of an answer.

        Raises:
            InconclusiveError: no answer, or the service failed.
            UnusableError: the service refused.
        """
        url = f"{self.url.rstrip('/')}/{path}"
        if not url.startswith(("https://", "http://")):
            raise UnusableError(f"{url} is no http address")
        request = urllib.request.Request(url, data)  # noqa: S310 - the scheme was looked at
        request.add_header("Accept", "application/vnd.github+json")
        if self.token:
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:  # noqa: S310
                answer: bytes = response.read()
        except urllib.error.HTTPError as error:
            raise _refusal(url, error) from error
        except (OSError, HTTPException) as error:
            raise InconclusiveError(f"{url} did not answer: {error}; rerun when it does") from error
        return answer


def _refusal(url: str, error: urllib.error.HTTPError) -> Exception:
    text = f"{url} answered {error.code} {error.reason}"
    if error.code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return InconclusiveError(f"{text}; rerun when the service answers")
    if error.code == HTTPStatus.NOT_FOUND:
        return NotFoundError(f"{text}; check the name and what the token may see")
    return UnusableError(f"{text}; check the token and its scopes")


def _run(row: Mapping[str, Any]) -> Run:
    return Run(
        number=str(row["id"]),
        title=str(row.get("display_title") or row.get("name") or ""),
        status=str(row.get("status") or ""),
        conclusion=str(row.get("conclusion") or ""),
        commit=str(row.get("head_sha") or ""),
        started_at=str(row.get("run_started_at") or ""),
        url=str(row.get("html_url") or ""),
    )


def from_environment(variable: str, environ: Mapping[str, str] = os.environ) -> Hosting:
    """The service with the token in a variable, which may be unset."""
    url = environ.get("MMAEMU_HOSTING_API_URL", "").strip() or DEFAULT
    return Hosting(url, environ.get(variable, "").strip() or None)

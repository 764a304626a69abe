"""What stage, manifest, gate and confirm share: files, the publishing manifest, sending.

A manifest names exactly the files of one publication, read from the files themselves. Its object's
name holds a digest of its text, so that an edit shows, and every attempt makes a new object.
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from email import message_from_bytes
from pathlib import Path
from typing import Any, Final

import jsonschema
from packaging.utils import canonicalize_name
from packaging.version import Version

from files import sha256_of, to_json
from findings import InconclusiveError, SkipRule, UnusableError
from package_index import Index, IndexFile, name_and_version
from project import parse_version

SCHEMA: Final = "mmaemu.publishing-manifest/1"
_FAULT: Final = re.compile(r"pause-([a-z-]+):(\d+)")
_TEXT: Final = {"type": "string", "minLength": 1}


def _record(**properties: object) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _list_of(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item, "minItems": 1}


_FILE: Final = _record(
    file=_TEXT,
    size={"type": "integer", "minimum": 1},
    sha256={"type": "string", "pattern": "^[0-9a-f]{64}$"},
)
MANIFEST_SCHEMA: Final = _record(
    schema={"const": SCHEMA},
    publish_all={"const": False},
    publishing_groups=_list_of(
        _record(packages=_list_of(_record(name=_TEXT, version=_TEXT, files=_list_of(_FILE))))
    ),
    run=_TEXT,
    commit=_TEXT,
)


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """One distribution file, as its own metadata and bytes say.

    Attributes:
        project: canonical name.
        version: as written in the metadata.
        file: file name.
        size: in bytes.
        sha256: of the bytes.
    """

    project: str
    version: str
    file: str
    size: int
    sha256: str

    def __str__(self) -> str:
        return f"{self.file} ({self.size:,} bytes, sha256 {self.sha256[:12]})"


def entry_of(file: str, data: bytes) -> Entry:
    """Read a wheel or an sdist.

    Args:
        file: its name.
        data: its bytes.

    Raises:
        UnusableError: it is neither, or its name and its metadata differ.
    """
    try:
        metadata = message_from_bytes(_metadata(file, data))
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError, StopIteration) as error:
        raise UnusableError(f"{file} is no wheel or sdist with metadata: {error!r}") from error
    name, version = str(metadata["Name"]), str(metadata["Version"])
    found = name_and_version(file)
    if found is None or found != (canonicalize_name(name), parse_version(version)):
        raise UnusableError(f"{file}: its metadata say {name} {version}; rebuild or remove it")
    return Entry(found[0], version, file, len(data), sha256_of(data))


def _metadata(file: str, data: bytes) -> bytes:
    if file.endswith(".whl"):
        with zipfile.ZipFile(io.BytesIO(data)) as wheel:
            return wheel.read(
                next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
            )
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as sdist:
        member = next(item for item in sdist if item.name.count("/") == 1 and _is_info(item.name))
        stream = sdist.extractfile(member)
        return stream.read() if stream is not None else b""


def _is_info(name: str) -> bool:
    return name.endswith("/PKG-INFO")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What one attempt is to publish.

    Attributes:
        entries: the files, sorted.
        run: which run staged them.
        commit: what they were built from.
    """

    entries: tuple[Entry, ...]
    run: str
    commit: str

    @property
    def releases(self) -> tuple[tuple[str, str], ...]:
        """Each project with its version, sorted."""
        return tuple(sorted({(entry.project, entry.version) for entry in self.entries}))

    @property
    def title(self) -> str:
        """What is published, for headings and subjects."""
        return ", ".join(f"{name} {version}" for name, version in self.releases)

    @property
    def text(self) -> str:
        """The manifest as JSON."""
        packages = [
            {
                "name": name,
                "version": version,
                "files": [
                    {"file": entry.file, "size": entry.size, "sha256": entry.sha256}
                    for entry in self.entries
                    if (entry.project, entry.version) == (name, version)
                ],
            }
            for name, version in self.releases
        ]
        return to_json(
            {
                "schema": SCHEMA,
                "publish_all": False,
                "publishing_groups": [{"packages": packages}],
                "run": self.run,
                "commit": self.commit,
            }
        )

    @property
    def digest(self) -> str:
        """The part of the object's name that depends on its text."""
        return sha256_of(self.text.encode())[:16]


def parse_manifest(text: str, where: str) -> Manifest:
    """Read a publishing manifest.

    Args:
        text: JSON.
        where: file name, for messages.

    Raises:
        UnusableError: it is none; the message names the key.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise UnusableError(f"{where} is no JSON: {error}") from error
    validator = jsonschema.Draft202012Validator(MANIFEST_SCHEMA)
    for wrong in sorted(validator.iter_errors(document), key=lambda wrong: wrong.json_path):
        raise UnusableError(f"{where}: {wrong.json_path[2:] or 'document'}: {wrong.message}")
    entries = sorted(
        Entry(canonicalize_name(package["name"]), package["version"], **row)
        for group in document["publishing_groups"]
        for package in group["packages"]
        for row in package["files"]
    )
    names = [entry.file for entry in entries]
    for name in sorted({name for name in names if names.count(name) > 1}):
        raise UnusableError(f"{where}: files: {name} is listed more than once")
    return Manifest(tuple(entries), document["run"], document["commit"])


def load_manifest(path: Path) -> Manifest:
    """Read a publishing manifest from a file; see `parse_manifest`."""
    try:
        return parse_manifest(path.read_text(encoding="utf-8"), path.name)
    except (OSError, UnicodeDecodeError) as error:
        raise UnusableError(f"cannot read {path}: {error}") from error


def write_manifest(manifest: Manifest, folder: Path) -> Path:
    """Write a manifest as a new object; nothing that is there is ever replaced.

    Args:
        manifest: what is to be published.
        folder: where the gate looks for manifests.

    Returns:
        The new file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    version = manifest.releases[0][1]
    descriptor, name = tempfile.mkstemp(dir=folder, prefix=".manifest.")
    temporary = Path(name)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(manifest.text)
    temporary.chmod(0o644)
    try:
        for attempt in range(1, 10_000):
            path = folder / f"{version}-{attempt:04d}-{manifest.digest}.json"
            # A link, in contrast to a rename, fails where the name is taken.
            if not any(folder.glob(f"{version}-{attempt:04d}-*.json")) and _link(temporary, path):
                return path
    finally:
        temporary.unlink()
    raise UnusableError(f"{folder} is full of manifests of {version}; remove old ones")


def _link(temporary: Path, path: Path) -> bool:
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Held:
    """A file that an index holds, with its bytes.

    Attributes:
        file: as listed.
        data: as downloaded.
    """

    file: IndexFile
    data: bytes

    @property
    def sha256(self) -> str:
        """Of the bytes, whatever the page says."""
        return sha256_of(self.data)

    @property
    def lies(self) -> bool:
        """Whether the page states another hash than the bytes have."""
        return self.file.sha256 not in {None, self.sha256}


def held(index: Index, releases: Iterable[tuple[str, str]]) -> dict[str, Held]:
    """Everything that an index holds of some releases, downloaded.

    Args:
        index: where to look.
        releases: project and version.

    Raises:
        InconclusiveError: the index did not answer, or lists what it does not have.
    """
    found = {}
    for project, version in releases:
        for file in index.files(project):
            if file.version == Version(version):
                data = index.read(file)
                if data is None:
                    raise InconclusiveError(
                        f"the {index.role} index lists {file.name} and does not have it; rerun "
                        "when its pages are up to date"
                    )
                found[file.name] = Held(file, data)
    return found


@dataclass(frozen=True, slots=True)
class Sent:
    """The truth about one file after an attempt to send it.

    Attributes:
        entry: the file.
        state: "there" (with the very bytes), "refused" or "unknown".
        text: one line for the log.
    """

    entry: Entry
    state: str
    text: str


def send(index: Index, path: Path, entry: Entry, patience: float) -> Sent:
    """Upload one file, then believe only what the index gives back.

    Args:
        index: where to.
        path: the file.
        entry: what must be there afterwards.
        patience: seconds that its pages may lag behind.
    """
    upload = index.upload(path)
    try:
        found = _await(index, entry, patience if upload.code == 0 else 0.0)
    except (InconclusiveError, UnusableError) as error:
        return Sent(entry, "unknown", f"{entry.file}: {upload.reason}; {error}")
    if found is None:
        state = "refused" if upload.refused else "unknown"
        reason = upload.reason if upload.code != 0 else "accepted, and not on the index's page"
        return Sent(entry, state, f"{entry.file}: not on the {index.role} index: {reason}")
    problem = difference(found, entry)
    if problem:
        return Sent(entry, "refused", f"{entry.file} on the {index.role} index: {problem}")
    return Sent(entry, "there", f"{entry.file}: on the {index.role} index, bytes compared")


def taken(attempts: Sequence[Sent]) -> Iterator[tuple[str, str]]:
    """A rule: every file that was sent is there.

    Raises:
        SkipRule: an index did not say what became of a file.
    """
    for sent in attempts:
        if sent.state == "refused":
            yield sent.entry.file, sent.text
        if sent.state == "unknown":
            raise SkipRule(f"{sent.text}; run it again", required=True)


def _await(index: Index, entry: Entry, patience: float) -> Held | None:
    end = time.monotonic() + patience
    while True:
        found = held(index, [(entry.project, entry.version)]).get(entry.file)
        if found is not None or time.monotonic() >= end:
            return found
        time.sleep(min(1.0, patience / 10))


def difference(found: Held, entry: Entry) -> str:
    """How a file on an index differs from what it should be, "" where it does not."""
    if found.sha256 != entry.sha256:
        return f"other bytes (sha256 {found.sha256[:12]}, expected {entry.sha256[:12]})"
    if found.lies:
        return (
            f"its page states sha256 {str(found.file.sha256)[:12]}, the bytes have "
            f"{found.sha256[:12]}; installers will refuse it"
        )
    return ""


def differences(
    entries: Sequence[Entry], there: dict[str, Held], role: str
) -> Iterator[tuple[str, str]]:
    """Place and message for every file that an index holds with other bytes or a wrong hash."""
    for entry in entries:
        problem = difference(there[entry.file], entry) if entry.file in there else ""
        if problem:
            yield entry.file, f"the {role} index holds it with {problem}"


def read_sums(path: Path) -> dict[str, str]:
    """The sha256 of each file in a SHA256SUMS.

    Raises:
        UnusableError: it cannot be read.
    """
    try:
        rows = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise UnusableError(f"cannot read {path}: {error}") from error
    return {row[1].lstrip("*"): row[0] for row in rows if len(row) > 1}


def pause(point: str, number: int) -> None:
    """Stop here for good where MMAEMU_TEST_FAULT holds `pause-<point>:<number>`.

    Tests kill the process at that point, as a machine that fails would.
    """
    for name, at in _FAULT.findall(os.environ.get("MMAEMU_TEST_FAULT", "")):
        if (name, int(at)) == (point, number):
            print(f"paused {point} {number}", flush=True)
            time.sleep(3600)


def timestamp() -> str:
    """The time now, as every log writes it: RFC 3339, UTC, whole seconds."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def mebibytes(size: int) -> str:
    """A size for people."""
    return f"{size / (1 << 20):,.2f} MiB"

"""Says at the end of every Python process which build of a package it had imported.

Python imports this module at start because its folder is on PYTHONPATH. Each process appends one
line to the file CANARY_REPORT: version and wheel of the installed distribution, and the
sha256 of every file of the package that was really loaded, wherever it was loaded from.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import sys
from importlib import metadata


def _sha256(path: str) -> str:
    try:
        with open(path, "rb") as stream:  # noqa: PTH123 - as few imports as possible
            return hashlib.sha256(stream.read()).hexdigest()
    except OSError:
        return "unreadable"  # Loaded from an archive, for example.


def _loaded(package: str, folder: str) -> dict[str, str]:
    """The sha256 of every loaded file of the package, by its path beside the package's folder."""
    files = {}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if path and (name == package or name.startswith(f"{package}.")):
            files[os.path.relpath(path, folder).replace(os.sep, "/")] = _sha256(path)
    return files


def _installed(distribution: str) -> tuple[str | None, str | None]:
    """Version of the distribution, and sha256 of the wheel that pip says it came from."""
    try:
        found = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return None, None
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    return found.version, origin.get("archive_info", {}).get("hashes", {}).get("sha256")


def _report(package: str, distribution: str, target: str) -> None:
    module = sys.modules.get(package)
    path = getattr(module, "__file__", None)
    if path is None:
        return
    version, wheel = _installed(distribution)
    line = {
        "schema": "mmaemu.canary-report/1",
        "version": version,
        "wheel_sha256": wheel,
        "package": path,
        "files": _loaded(package, os.path.dirname(os.path.dirname(path))),  # noqa: PTH120
        "command": sys.argv[:1],
    }
    with open(target, "a", encoding="utf-8") as stream:  # noqa: PTH123
        stream.write(json.dumps(line, sort_keys=True) + "\n")


if "CANARY_REPORT" in os.environ:
    atexit.register(
        _report,
        os.environ["CANARY_PACKAGE"],
        os.environ["CANARY_DISTRIBUTION"],
        os.environ["CANARY_REPORT"],
    )

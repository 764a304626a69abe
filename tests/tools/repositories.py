"""Real git repositories for the tests of the release tools."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tier
import validate_release
from files import sha256_of, to_json

# A date, an identity and nothing else: what a test's git commands run under.
PLAIN = {
    "GIT_AUTHOR_NAME": "A Developer",
    "GIT_AUTHOR_EMAIL": "dev@private.invalid",
    "GIT_COMMITTER_NAME": "A Developer",
    "GIT_COMMITTER_EMAIL": "dev@private.invalid",
    "GIT_AUTHOR_DATE": "1790000000 +0200",
    "GIT_COMMITTER_DATE": "1790000000 +0200",
}


def run(*command: str, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Run a command that must succeed and return its standard output."""
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | (env or {}), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Repository:
    """A development clone on disk."""

    root: Path

    def git(self, *arguments: str, env: dict[str, str] | None = None) -> str:
        """Run git with a plain identity."""
        return run("git", *arguments, cwd=self.root, env=PLAIN | (env or {})).strip()

    def write(self, name: str, text: str) -> Path:
        """Write a file below the root."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def commit(self, message: str = "work") -> str:
        """Commit everything and return the commit."""
        self.git("add", "-A", "-f")
        self.git("commit", "--quiet", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    def tier_result(self, name: str, commit: str, **parts: str) -> None:
        """Write result and log of a tier whose parts have these statuses, not committed."""
        counts = dict.fromkeys(tier.COUNTS, 0) | {"tests": 3, "passed": 3}
        entry: dict[str, Any] = {"reason": "", "counts": counts, "skips": {}}
        document = {
            "schema": tier.SCHEMA,
            "tier": name,
            "commit": commit,
            "tree": self.git("rev-parse", f"{commit}^{{tree}}"),
            "dirty": False,
            "arguments": [],
            "finished_at": "2026-11-30T12:00:00+00:00",
            "reports": {},
            "parts": {part: {**entry, "status": status} for part, status in parts.items()},
        }
        self.seal_result(f"docs/validation_logs/2026-11-30/{name}/{name}.json", document)

    def seal_result(self, name: str, document: dict[str, Any]) -> None:
        """Write a result with a log that belongs to it."""
        log = f"1 passed\n{tier.SEAL}{tier.seal(document)}\n"
        self.write(name.replace(".json", ".log"), log)
        self.write(name, to_json({**document, "log_sha256": sha256_of(log.encode())}))

    def release_report(
        self, version: str, *, machine: str = "cpu", acknowledged: str = "", **states: str
    ) -> None:
        """Write a T7 report whose checks have these states."""
        checks = {name: {"status": state, "reason": ""} for name, state in states.items()}
        report = {"schema": validate_release.SCHEMA, "version": version, "checks": checks}
        finished = validate_release.finished(report, acknowledged)
        self.write(f"docs/release_logs/{version}_{machine}.json", to_json(finished))

    def candidate(self, version: str) -> str:
        """Make the tree the candidate of a version: version, changelog, T7 report, rc tag."""
        self.write("pkgx/_version.py", f'"""The version."""\n\n__version__ = "{version}"\n')
        self.write("CHANGELOG.md", f"# Changelog\n\n## {version} (2026-11-30)\n\n- A thing.\n")
        self.release_report(version, info="pass")
        commit = self.commit(f"candidate {version}")
        self.git("tag", "-f", "-a", f"rc/v{version}", "-m", f"candidate {version}")
        return commit

"""The maintainer's way from a tree to published snapshots, on a clone and bare repositories."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from files import ROOT
from project import load_project

VERSION = "9.0.0.dev1"
DATE = "2030-01-02"
REASON = "the rehearsal has no GPU"
WAIVER = f"T7={REASON}"


class Maintainer:
    """Runs commands in the clone, as somebody whose git knows no name of theirs."""

    def __init__(self, clone: Path, home: Path) -> None:
        self.clone = clone
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "A Developer",
            "GIT_AUTHOR_EMAIL": "dev@private.invalid",
            "GIT_COMMITTER_NAME": "A Developer",
            "GIT_COMMITTER_EMAIL": "dev@private.invalid",
        }

    def run(self, *command: str, stdin: str = "") -> str:
        done = subprocess.run(
            command,
            cwd=self.clone,
            env=self.env,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout

    def invoke(self, *arguments: str) -> str:
        return self.run(sys.executable, "-m", "invoke", *arguments)

    def git(self, *arguments: str) -> str:
        return self.run("git", *arguments).strip()


@pytest.fixture(scope="module")
def maintainer(tmp_path_factory: pytest.TempPathFactory) -> Maintainer:
    folder = tmp_path_factory.mktemp("rehearsal")
    (folder / "home").mkdir()
    someone = Maintainer(folder, folder / "home")
    someone.run("git", "clone", "--quiet", f"file://{ROOT}", "clone")
    someone.clone = folder / "clone"
    return someone


def test_from_the_tree_to_three_repositories(maintainer: Maintainer) -> None:
    clone = maintainer.clone
    (clone / "changelog.d" / "0.added.md").write_text("A rehearsal.\n", encoding="utf-8")
    maintainer.invoke("version", VERSION, "--date", DATE, "--device-not-run", WAIVER)
    changelog = (clone / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {VERSION} ({DATE})" in changelog
    assert "A rehearsal. (#0)" in changelog
    assert f"T7 was not run on a device: {REASON}" in changelog
    for name in ("`hopper`", "`ada`", "cublaslt 12.8.3.14"):
        assert name in changelog
    before = changelog
    maintainer.invoke("version", VERSION, "--date", DATE, "--device-not-run", WAIVER)
    assert (clone / "CHANGELOG.md").read_text(encoding="utf-8") == before
    maintainer.git("add", "-A")
    maintainer.git("commit", "--quiet", "-m", f"Version {VERSION}")

    sums = []
    for folder in ("one", "two"):
        out = clone.parent / folder
        maintainer.invoke("dist", "--version", VERSION, "--tag", f"v{VERSION}", "--out", str(out))
        sums.append((out / "SHA256SUMS").read_text(encoding="utf-8"))
    assert sums[0] == sums[1]
    assert f"mmaemu-{VERSION}-py3-none-any.whl" in sums[0]

    maintainer.git("tag", "-a", f"rc/v{VERSION}", "-m", f"mmaemu {VERSION} release candidate")
    tree = maintainer.git("rev-parse", f"rc/v{VERSION}^{{tree}}")
    release = load_project(ROOT).release
    for target in ("staging", "ci", "public"):
        bare = clone.parent / f"{target}.git"
        maintainer.run("git", "init", "--quiet", "--bare", str(bare))
        options = ("--to", target, "--remote", str(bare), "--device-not-run", WAIVER)
        dry = maintainer.invoke("snapshot", *options, "--dry-run")
        assert "dry run" in dry
        printed = maintainer.invoke("snapshot", *options)
        maintainer.run("bash", "-euo", "pipefail", stdin=printed)
        shown = maintainer.run("git", "-C", str(bare), "log", "--format=%T|%an|%ae|%s", "master")
        assert shown.strip() == f"{tree}|{release.name}|{release.email}|mmaemu {VERSION}"
        refs = maintainer.run("git", "-C", str(bare), "for-each-ref", "--format=%(refname)")
        assert refs.split() == ["refs/heads/master"]
        # The branch is there now: what is left to print is the checklist.
        again = maintainer.invoke("snapshot", *options)
        assert not re.search(r"^[^#]", again, re.MULTILINE)
        assert "H13 Push the tag" in again

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
# The one tier that is quick without a GPU: it is not run, and that is acknowledged.
TIERS = 'tiers = ["t3p"]'
WAIVERS = ("--device-not-run", f"T3P={REASON}", "--device-not-run", f"T7={REASON}")


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
    pyproject = clone / "pyproject.toml"
    found = re.compile(r"^tiers = .*$", re.MULTILINE)
    text, count = found.subn(TIERS, pyproject.read_text(encoding="utf-8"))
    assert count == 1
    pyproject.write_text(text, encoding="utf-8")
    maintainer.invoke("version", VERSION, "--date", DATE, *WAIVERS)
    changelog = (clone / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {VERSION} ({DATE})" in changelog
    assert "A rehearsal. (#0)" in changelog
    assert f"T7 was not run on a device: {REASON}" in changelog
    for name in ("`hopper`", "`ada`", "cublaslt 12.8.3.14"):
        assert name in changelog
    before = changelog
    maintainer.invoke("version", VERSION, "--date", DATE, *WAIVERS)
    assert (clone / "CHANGELOG.md").read_text(encoding="utf-8") == before
    maintainer.git("add", "-A")
    maintainer.git("commit", "--quiet", "-m", f"Version {VERSION}")

    # An acknowledged device part counts once its reason stands everywhere, committed.
    maintainer.run(sys.executable, "tools/tier.py", "t3p", "--commit-log", *WAIVERS)
    with (clone / "docs" / "validation.md").open("a", encoding="utf-8") as page:
        page.write(f"\nNot run on a device: {REASON}\n")
    maintainer.git("add", "-A")
    maintainer.git("commit", "--quiet", "-m", "Records")

    sums = []
    for folder in ("one", "two"):
        out = clone.parent / folder
        options = ("--version", VERSION, "--tag", f"v{VERSION}", "--out", str(out), *WAIVERS)
        maintainer.invoke("dist", *options)
        sums.append((out / "SHA256SUMS").read_text(encoding="utf-8"))
    assert sums[0] == sums[1]
    assert f"mmaemu-{VERSION}-py3-none-any.whl" in sums[0]

    maintainer.git("tag", "-a", f"rc/v{VERSION}", "-m", f"mmaemu {VERSION} release candidate")
    tree = maintainer.git("rev-parse", f"rc/v{VERSION}^{{tree}}")
    release = load_project(ROOT).release
    for target in ("staging", "ci", "public"):
        bare = clone.parent / f"{target}.git"
        maintainer.run("git", "init", "--quiet", "--bare", str(bare))
        target_options = ("--to", target, "--remote", str(bare), *WAIVERS)
        dry = maintainer.invoke("snapshot", *target_options, "--dry-run")
        assert "dry run" in dry
        printed = maintainer.invoke("snapshot", *target_options)
        maintainer.run("bash", "-euo", "pipefail", stdin=printed)
        shown = maintainer.run("git", "-C", str(bare), "log", "--format=%T|%an|%ae|%s", "master")
        assert shown.strip() == f"{tree}|{release.name}|{release.email}|mmaemu {VERSION}"
        refs = maintainer.run("git", "-C", str(bare), "for-each-ref", "--format=%(refname)")
        assert refs.split() == ["refs/heads/master"]
        # The branch is there now: what is left to print is the checklist.
        again = maintainer.invoke("snapshot", *target_options)
        assert not re.search(r"^[^#]", again, re.MULTILINE)
        assert "H13 Push the tag" in again

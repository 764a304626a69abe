"""Another project with two wheels uses the release tools as docs/how-to/adopt.md says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import golden_records
import two_wheels
from files import ROOT
from git_commands import Git
from index_server import USER, IndexServer, Policy, isolated
from repositories import Repository
from staging_world import TOKENS, Mailbox, mail_server, reserved_port, variables

TOOLS = (
    *("nightly", "sizes", "pins", "stage", "manifest", "gate", "confirm", "leftovers", "quota"),
    *("golden", "downstream_bump", "release_notes", "bump", "doctor", "release_config"),
)
GOLDEN = """
[tool.mmaemu.release.golden]
distribution = "fixture-sync-jax"
index = "public"

[[tool.mmaemu.release.golden.canaries]]
name = "server"
repository = "{repository}"
lanes = {{ tests = ["{{python}}", "-m", "unittest", "-q"] }}
pins = ["requirements.txt"]
"""
CONSUMER = """\
import unittest
import fixture_sync_jax


class Test(unittest.TestCase):
    def test_it(self):
        self.assertTrue(fixture_sync_jax.__version__)
"""


def without_mmaemu(folder: Path) -> dict[str, str]:
    """An environment in which our own package cannot be imported."""
    blocked = folder / "blocked" / "mmaemu"
    blocked.mkdir(parents=True)
    text = 'raise ImportError("the tools know nothing of this package")\n'
    (blocked / "__init__.py").write_text(text, encoding="utf-8")
    return {"PYTHONPATH": str(blocked.parent)}


def test_the_tools_know_nothing_of_our_package(tmp_path: Path) -> None:
    env = os.environ | without_mmaemu(tmp_path)
    tools = shutil.copytree(ROOT / "tools", tmp_path / "tools")

    def imported(*names: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", f"import {', '.join(names)}"]
        return subprocess.run(
            command, cwd=tools, env=env, capture_output=True, text=True, check=False
        )

    done = imported(*TOOLS)
    assert done.returncode == 0, done.stderr
    # What binaries are built from is ours alone.
    assert "the tools know nothing of this package" in imported("frozen").stderr


@dataclass
class Place:
    """A clone of the other project, its remote, a consumer, and three indexes."""

    clone: Repository
    origin: Path
    consumer: Path
    environment: dict[str, str]

    def invoke(self, *arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "invoke", *arguments],
            cwd=self.clone.root,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout
        assert not [token for token in TOKENS.values() if token in done.stdout]
        return done.stdout

    def publish(self) -> str:
        """Build a nightly and bring it to the package index; its manifest's path."""
        self.invoke("nightly", "--channel", "nightly", "--execute")
        folder = max((self.clone.root / "build" / "nightly").iterdir())
        self.invoke("stage", str(folder), "--channel", "nightly", "--execute")
        manifest = str(max((self.clone.root / "build" / "manifests").iterdir()))
        self.invoke("gate", manifest, "--execute")
        return manifest


@pytest.fixture
def mailbox() -> Mailbox:
    return Mailbox()


@pytest.fixture
def place(tmp_path: Path, mailbox: Mailbox) -> Iterator[Place]:
    consumer = Repository(tmp_path / "consumer")
    consumer.write("test_it.py", CONSUMER)
    consumer.write("requirements.txt", "fixture-sync-jax==0.4.0.dev20261101080000\n")
    consumer.git("init", "--quiet", "--initial-branch", "main")
    consumer.commit("consumer")
    # Step 1 of the page: the tools, the tasks, and the tables.
    origin = tmp_path / "origin.git"
    clone = two_wheels.materialise(tmp_path / "clone", origin=origin)
    shutil.copytree(ROOT / "tools", clone.root / "tools")
    shutil.copyfile(ROOT / "tasks.py", clone.root / "tasks.py")
    clone.write(".gitignore", "build/\n__pycache__/\n")
    table = (clone.root / "pyproject.toml").read_text(encoding="utf-8")
    clone.write("pyproject.toml", table + GOLDEN.format(repository=consumer.root))
    clone.commit("Use the release tools")
    clone.git("push", "--quiet")
    home = tmp_path / "home"
    home.mkdir()
    environment = isolated(home) | without_mmaemu(tmp_path)
    indexes = {
        role: IndexServer(tmp_path / role, Policy(reuse_names=role != "public", token=token))
        for role, token in TOKENS.items()
    }
    with indexes["public"], indexes["staging"], indexes["nightly"], reserved_port() as kept:
        for role, index in indexes.items():
            account = (USER, TOKENS[role])
            environment |= variables(role, index.url, index.upload_url, account)
        port = kept.getsockname()[1]
        environment["MMAEMU_MAIL_SERVER"] = f"127.0.0.1:{port}"
        with mail_server(port, mailbox):
            yield Place(clone, origin, consumer.root, environment)


@pytest.mark.channels
def test_from_a_commit_to_the_consumers_pin_and_the_next_version(
    place: Place, mailbox: Mailbox
) -> None:
    commit = place.clone.git("rev-parse", "HEAD")
    manifest = place.publish()
    assert [subject.split()[1] for subject in mailbox.subjects] == ["accepted:", "published:"]
    printed = place.invoke("confirm", manifest, "--wait", "0")
    version = Path(manifest).name.partition("-")[0]
    assert f"fixture-sync-torch: plain gives {version}, --pre gives {version}" in printed
    assert "0 findings" in place.invoke("leftovers")
    assert "2 files" not in place.invoke("quota")
    for step in ("candidate", "canaries", "record", "verify"):
        place.invoke("golden", step)
    remote = Git(place.origin)
    assert remote.find("show", "main:lkg.version") is None
    place.invoke("golden", "record", "--execute")
    place.invoke("golden", "verify")
    assert remote.line("show", "main:lkg.version") == commit
    (row,) = golden_records.parse_table(remote.line("show", "main:verified_commits.csv"))
    assert (row.commit, row.version) == (commit, version)
    assert remote.line("rev-parse", row.tag) == commit
    place.invoke("downstream-bump", "--execute")
    branch = f"bump/fixture-sync-jax-{version}"
    pinned = Git(place.consumer).line("show", f"{branch}:requirements.txt")
    assert pinned == f"fixture-sync-jax=={version}"
    place.invoke("golden", "cut")
    place.invoke("bump", "--released", "0.4.0")
    place.clone.git("commit", "--quiet", "-a", "-m", "next version")
    place.invoke("golden", "cut")
    assert "nightly 0.4.1.dev" in place.invoke("nightly", "--channel", "nightly", "--dry-run")


@pytest.mark.channels
def test_a_release_from_its_tag_to_its_notes(place: Place) -> None:
    place.clone.git("tag", "-a", "v0.4.0", "-m", "0.4.0")
    place.invoke("nightly", "--channel", "release")
    folder = place.clone.root / "build" / "nightly" / "0.4.0"
    assert len(list(folder.glob("*.whl"))) == 2
    place.invoke("pins", "--wheels", str(next(folder.glob("*jax*.whl"))))
    place.invoke("sizes", "--paths", str(folder))
    place.invoke("stage", str(folder), "--channel", "release", "--execute")
    (manifest,) = (place.clone.root / "build" / "manifests").iterdir()
    place.invoke("gate", str(manifest), "--execute")
    printed = place.invoke("confirm", str(manifest), "--wait", "0")
    assert "fixture-sync-jax: plain gives 0.4.0, --pre gives 0.4.0" in printed
    notes = place.invoke("release-notes", "0.4.0", "--folder", str(folder))
    assert "jax==0.11.2" in notes
    assert f"torch-device {two_wheels.PAIRED}" in notes
    place.invoke("bump", "--released", "0.4.0")
    place.clone.git("commit", "--quiet", "-a", "-m", "next version")
    # Nightlies go on above the release.
    manifest_of_next = place.publish()
    printed = place.invoke("confirm", manifest_of_next, "--wait", "0")
    version = Path(manifest_of_next).name.partition("-")[0]
    assert f"fixture-sync-jax: plain gives 0.4.0, --pre gives {version}" in printed

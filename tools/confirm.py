"""Confirm that a publication is what users get: files, hashes, and what installers choose.

    python tools/confirm.py MANIFEST [--sums SHA256SUMS] [--wait SECONDS]

Polls the package index until it lists every file of the publishing manifest, downloads and compares
them, installs each wheel in a clean environment with --require-hashes and nothing else, and asks
pip what the plain name and --pre give. Changes nothing. Exit 3 where the files are not all there in
time, or the index does not answer.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.version import Version

from findings import InconclusiveError, Outcome, Rule, SkipRule, apply_rules, run
from package_index import Index, from_environment, plain_pip
from publishing import Entry, Held, Manifest, differences, held, load_manifest, read_sums

Problems = Iterator[tuple[str, str]]
_INTERVAL: Final = 10.0
_SECONDS: Final = 300


@dataclass(frozen=True, slots=True)
class Facts:
    """What the package index gives.

    Attributes:
        manifest: what should be there.
        there: what is there of its releases.
        sums: sha256 by file name from SHA256SUMS, None where it was not given.
        installed: by wheel, the version found after a clean installation, or pip's complaint.
        versions: by project, every version that is not yanked.
        plain: by project, what pip chooses for the plain name; pre: with --pre.
    """

    manifest: Manifest
    there: dict[str, Held]
    sums: dict[str, str] | None
    installed: dict[str, str]
    versions: dict[str, tuple[Version, ...]]
    plain: dict[str, str]
    pre: dict[str, str]


def _hashes(facts: Facts) -> Problems:
    yield from differences(facts.manifest.entries, facts.there, "package")


def _sums(facts: Facts) -> Problems:
    if facts.sums is None:
        raise SkipRule("no --sums given")
    for entry in facts.manifest.entries:
        stated = facts.sums.get(entry.file, "nothing")
        if stated != entry.sha256:
            yield entry.file, f"SHA256SUMS says {stated[:12]}, the manifest {entry.sha256[:12]}"


def _installs(facts: Facts) -> Problems:
    for entry in wheels(facts.manifest):
        found = facts.installed[entry.file]
        if found != entry.version:
            yield entry.file, f"installed with --require-hashes: {found}; expected {entry.version}"


def _plain(facts: Facts) -> Problems:
    for project, version in facts.manifest.releases:
        finals = [each for each in facts.versions[project] if not each.is_prerelease]
        expected = str(max(finals)) if finals else str(max(facts.versions[project]))
        if facts.plain[project] != expected:
            yield project, f"the plain name gives {facts.plain[project]}, expected {expected}"
        if not Version(version).is_prerelease and facts.plain[project] != version:
            yield project, f"the plain name gives {facts.plain[project]}, published was {version}"


def _pre(facts: Facts) -> Problems:
    for project, version in facts.manifest.releases:
        expected = str(max(facts.versions[project]))
        if facts.pre[project] != expected:
            yield project, f"--pre gives {facts.pre[project]}, expected {expected}"
        if Version(version).is_devrelease and facts.pre[project] != version:
            yield (
                project,
                f"--pre gives {facts.pre[project]}, the nightly is {version}; bump the base "
                "version so that nightlies sort above it",
            )


RULES: Final[tuple[Rule[Facts], ...]] = (
    Rule(
        "GATE301", "The package index gives the manifest's bytes and states their hashes.", _hashes
    ),
    Rule("GATE302", "SHA256SUMS lists the manifest's files with their hashes.", _sums),
    Rule(
        "GATE303", "Every wheel installs with --require-hashes in a clean environment.", _installs
    ),
    Rule("GATE304", "The plain name gives the newest final version.", _plain),
    Rule("GATE305", "--pre gives the newest version, nightlies included.", _pre),
)


def wheels(manifest: Manifest) -> tuple[Entry, ...]:
    """The wheels of a manifest."""
    return tuple(entry for entry in manifest.entries if entry.file.endswith(".whl"))


def poll(index: Index, manifest: Manifest, wait: float) -> dict[str, Held]:
    """Wait until the index lists every file.

    Raises:
        InconclusiveError: it does not in time.
    """
    end = time.monotonic() + wait
    while True:
        try:
            there = held(index, manifest.releases)
            absent = [entry.file for entry in manifest.entries if entry.file not in there]
            problem = f"it does not list {', '.join(absent)}" if absent else ""
        except InconclusiveError as error:
            problem = str(error)
        if not problem:
            return there
        left = end - time.monotonic()
        if left <= 0:
            raise InconclusiveError(f"not confirmed in {wait:.0f} s: {problem}; run it again")
        print(f"confirm: waiting: {problem}", flush=True)
        time.sleep(min(_INTERVAL, left))


@dataclass(frozen=True, slots=True)
class Installer:
    """pip of a clean environment that knows one index.

    Attributes:
        python: the environment's interpreter.
        index: the index.
    """

    python: Path
    index: Index

    def install(self, entry: Entry, requirements: Path) -> str:
        """Install one wheel by its hash; its version as the environment sees it, or why not."""
        line = f"{entry.project}=={entry.version} --hash=sha256:{entry.sha256}\n"
        requirements.write_text(line, encoding="utf-8")
        arguments = ("--require-hashes", "--only-binary", ":all:", "-r", str(requirements))
        done = self._pip("install", "--no-deps", "--force-reinstall", *arguments)
        if done.returncode:
            return _complaint(done)
        asked = f"import importlib.metadata as m; print(m.version({entry.project!r}))"
        found = subprocess.run(
            [str(self.python), "-I", "-c", asked], capture_output=True, text=True, check=False
        )
        return found.stdout.strip() or found.stderr.strip()[-300:]

    def choice(self, project: str, *options: str) -> str:
        """The version that pip would install for a plain name, or why none."""
        given = ("--dry-run", "--quiet", "--ignore-installed", "--no-deps", "--report", "-")
        done = self._pip("install", *given, *options, project)
        if done.returncode:
            return _complaint(done)
        return str(json.loads(done.stdout)["install"][0]["metadata"]["version"])

    def _pip(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        options = ["--no-input", "--no-cache-dir", "--index-url", self.index.url]
        try:
            return subprocess.run(
                [str(self.python), "-m", "pip", arguments[0], *options, *arguments[1:]],
                env=plain_pip(),
                capture_output=True,
                text=True,
                check=False,
                timeout=_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise InconclusiveError(f"pip gave no answer in {_SECONDS} s; run it again") from error


def _complaint(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in done.stderr.splitlines() if "ERROR" in line] or [done.stderr[-300:]]
    return " ".join(line.strip() for line in lines)


def load(manifest: Manifest, index: Index, there: dict[str, Held], sums: Path | None) -> Facts:
    """Ask pip, in a clean environment outside the tree, what users get."""
    projects = [name for name, _ in manifest.releases]
    with tempfile.TemporaryDirectory(prefix="confirm-") as folder:
        place = Path(folder) / "venv"
        venv.create(place, with_pip=True)
        python = place / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        pip = Installer(python, index)
        return Facts(
            manifest=manifest,
            there=there,
            sums=read_sums(sums) if sums is not None else None,
            installed={
                entry.file: pip.install(entry, Path(folder) / "requirements.txt")
                for entry in wheels(manifest)
            },
            versions={project: _versions(index, project) for project in projects},
            plain={project: pip.choice(project) for project in projects},
            pre={project: pip.choice(project, "--pre") for project in projects},
        )


def _versions(index: Index, project: str) -> tuple[Version, ...]:
    found = {file.version for file in index.files(project) if not file.yanked}
    return tuple(sorted(version for version in found if version is not None))


def _action(arguments: argparse.Namespace) -> Outcome | None:
    manifest, index = load_manifest(arguments.manifest), from_environment("public")
    print(f"confirm: {manifest.title} with {len(manifest.entries)} files")
    if arguments.dry_run:
        print("confirm: would poll, compare, install and ask pip; nothing is changed either way")
        return None
    there = poll(index, manifest, arguments.wait)
    facts = load(manifest, index, there, arguments.sums)
    for project, version in facts.plain.items():
        print(f"confirm: {project}: plain gives {version}, --pre gives {facts.pre[project]}")
    return apply_rules(RULES, facts)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="confirm", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("manifest", type=Path, help="the publishing manifest")
    parser.add_argument("--sums", type=Path, help="SHA256SUMS of the build")
    parser.add_argument("--wait", type=float, default=900.0, help="seconds to poll")
    parser.add_argument("--dry-run", action="store_true", help="say what would be looked at")
    return run(parser, _action, argv)


if __name__ == "__main__":
    raise SystemExit(main())

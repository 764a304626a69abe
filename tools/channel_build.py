"""Build the distributions of one version from one commit, as nightly and golden commits need it.

The tree that is built is a clean export: the commit's own bytes and modes, whatever the working
tree, the attributes and the configuration of git say. The version's suffix goes into the export or
into the environment of the build, never into a tracked file.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from channels import EXTRAS
from files import write_bytes
from findings import UnusableError
from git_commands import Git
from project import EPOCH, UMASK, replace_version
from release_config import Configuration, Distribution, load_configuration, stated_version

_LINK: Final = "120000"
_MODES: Final = {"100644": 0o644, "100755": 0o755}
# What would let the caller's surroundings into a build.
_LEFT_OUT: Final = ("PYTHONPATH", "PYTHONHOME", "PYTHONHASHSEED", "HATCH_")
_SHOWN: Final = 1500


class BuildFailedError(UnusableError):
    """A command of the project failed; the message holds the end of its output."""


@dataclass(frozen=True, slots=True)
class Source:
    """An exported commit.

    Attributes:
        folder: where it is.
        commit: object name.
        tree: object name of its tree.
        configuration: of its pyproject.toml.
    """

    folder: Path
    commit: str
    tree: str
    configuration: Configuration

    def text(self, name: str) -> str:
        """A file that pyproject.toml names.

        Raises:
            UnusableError: the commit does not have it.
        """
        path = self.folder / name
        if not path.is_file():
            raise UnusableError(f"the commit has no {name}, which pyproject.toml names")
        return path.read_text(encoding="utf-8")

    def base(self, row: Distribution) -> str:
        """The version that the tree states for a distribution.

        Raises:
            UnusableError: the file or the key is missing.
        """
        file, key = row.version_source.file, row.version_source.key
        return stated_version(self.text(file), file, key)

    def pairing(self) -> dict[str, str]:
        """Which version of what belongs to this one.

        Raises:
            UnusableError: the pairing file is missing.
        """
        if self.configuration.pairing is None:
            return {}
        return self.configuration.paired(self.text(self.configuration.pairing[0]))


def export(git: Git, commit: str, folder: Path) -> Source:
    """Write the files of a commit into an empty folder.

    Args:
        git: a clone that has the commit.
        commit: any name of it.
        folder: is created.

    Raises:
        UnusableError: no such commit, a submodule in it, or a bad configuration.
    """
    oid = git.find("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    if oid is None:
        raise UnusableError(f"{commit!r} is no commit of {git.root}; fetch it first")
    rows = [
        (*head.split(), path)
        for entry in git.names("ls-tree", "-r", "-z", "--full-tree", oid)
        for head, _, path in [entry.partition("\t")]
    ]
    for mode, _, _, path in rows:
        if mode not in {*_MODES, _LINK}:
            raise UnusableError(f"{path} is a submodule, which an export cannot hold; remove it")
    wanted = "".join(f"{blob}\n" for _, _, blob, _ in rows)
    blobs = _blobs(git.run("cat-file", "--batch", data=wanted.encode()))
    folder.mkdir(parents=True)
    for (mode, _, _, path), data in zip(rows, blobs, strict=True):
        _write(folder / path, mode, data)
    tree = git.line("rev-parse", f"{oid}^{{tree}}")
    return Source(folder, oid, tree, load_configuration(folder))


def _blobs(answer: bytes) -> Iterator[bytes]:
    """The objects in the output of `git cat-file --batch`."""
    at = 0
    while at < len(answer):
        end = answer.index(b"\n", at)
        size = int(answer[at:end].split()[2])
        yield answer[end + 1 : end + 1 + size]
        at = end + size + 2


def _write(path: Path, mode: str, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if mode == _LINK:
        path.symlink_to(os.fsdecode(data))
        return
    path.write_bytes(data)
    path.chmod(_MODES[mode])


def stamp(source: Source, version: str) -> None:
    """Write the version into the export, where a distribution takes it from a file."""
    for row in source.configuration.distributions:
        if row.version_source.stamp == "file":
            path = source.folder / row.version_source.file
            text = replace_version(source.text(row.version_source.file), version)
            write_bytes(path, text.encode())


def run_in(source: Source, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
    """Run a command of the project in the export, under surroundings that say nothing.

    Raises:
        BuildFailedError: it exited with another status than 0.
    """
    kept = {key: text for key, text in os.environ.items() if not key.startswith(_LEFT_OUT)}
    try:
        done = subprocess.run(
            command,
            cwd=source.folder,
            env=kept | {"SOURCE_DATE_EPOCH": EPOCH, EXTRAS: ""} | dict(env or {}),
            umask=UMASK,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise BuildFailedError(f"cannot run {command[0]}: {error}") from error
    if done.returncode:
        words = " ".join(command)
        raise BuildFailedError(
            f"`{words}` exited with {done.returncode}: {done.stdout[-_SHOWN:].strip()}"
        )


def filled(command: Sequence[str], **values: str) -> list[str]:
    """A command of the table with {python} and the given places filled in."""
    places = {"python": sys.executable} | values
    words = []
    for word in command:
        for name, value in places.items():
            word = word.replace(f"{{{name}}}", value)  # noqa: PLW2901 - one place after the other
        words.append(word)
    return words


def check(source: Source) -> Iterator[tuple[str, str]]:
    """Run the tree's checks; the command and its output for each that fails."""
    for command in source.configuration.checks:
        words = filled(command)
        try:
            run_in(source, words)
        except BuildFailedError as error:
            yield " ".join(command[1:]), str(error)


def rejected(source: Source, row: Distribution, path: Path) -> str:
    """What the project's own command says against a file, "" for nothing."""
    if not row.verify:
        return ""
    try:
        run_in(source, filled(row.verify, file=str(path)))
    except BuildFailedError as error:
        return str(error)
    return ""


def build(
    source: Source,
    row: Distribution,
    kind: str,
    out: Path,
    *,
    suffix: str,
    abis: Sequence[str] = (),
) -> Path:
    """Build one file.

    Args:
        source: the export, stamped.
        row: the distribution.
        kind: "wheel" or "sdist".
        out: an empty or missing folder.
        suffix: of the version.
        abis: the extension variants to build, all where empty.

    Raises:
        BuildFailedError: the command failed, or did not make exactly one file.
    """
    variants = {row.abis.variable: " ".join(abis)} if row.abis is not None and abis else {}
    out.mkdir(parents=True, exist_ok=True)
    run_in(source, filled(row.build, kind=kind, out=str(out)), {EXTRAS: suffix} | variants)
    made = sorted(out.iterdir())
    if len(made) != 1:
        names = ", ".join(path.name for path in made) or "nothing"
        raise BuildFailedError(f"the build of {row.name} made {names}, expected one {kind}")
    return made[0]


def rebuild(root: Path, commit: str, version: str, out: Path) -> list[Path]:
    """Build the wheels of a nightly again; the same commit and version give the same bytes.

    Args:
        root: a clone that has the commit.
        commit: its object name.
        version: the nightly.
        out: an empty folder.

    Raises:
        UnusableError: the commit is missing or its build fails.
    """
    with tempfile.TemporaryDirectory(prefix="rebuild-") as folder:
        source = export(Git(root), commit, Path(folder) / "source")
        stamp(source, version)
        suffix = version[version.index(".dev") :] if ".dev" in version else ""
        return [
            build(source, row, "wheel", out / row.name, suffix=suffix)
            for row in source.configuration.distributions
        ]

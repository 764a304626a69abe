"""Measures which version pip and uv choose from an index with finals, nightlies, an rc, a yank.

    PYTHONPATH=tools:tests/tools python tests/tools/channel_behaviour.py

writes docs/reference/channel-behaviour.md; a test compares the page with a new measurement. Every
choice is one run of the real installer against a real index, with nobody's configuration.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from files import ROOT, write_bytes
from index_server import IndexServer, isolated
from two_wheels import stand_in

PAGE: Final = ROOT / "docs" / "reference" / "channel-behaviour.md"
PIPS: Final = ("23.3.2", "26.3")
OLD: Final = "dev20261128080000"
NEW: Final = "dev20261129080000"
MODES: Final = ("disallow", "if-necessary", "if-necessary-or-explicit", "explicit", "allow")
DEFAULT_MODE: Final = "if-necessary-or-explicit"
YANKED: Final = "0.1.2"
USUAL: Final = ("0.1.0", "0.1.1", YANKED, f"0.1.3.{OLD}", f"0.1.3.{NEW}")
NOTHING: Final = "refused"


@dataclass(frozen=True)
class Case:
    """A project on the index and what is asked for.

    Attributes:
        name: of the project.
        says: what it shows.
        versions: on the first index.
        asked: requirements, without the name.
        apart: versions on a second index, given as --extra-index-url; none where empty.
    """

    name: str
    says: str
    versions: tuple[str, ...]
    asked: tuple[str, ...]
    apart: tuple[str, ...] = ()


CASES: Final = (
    Case(
        "usual",
        "Finals 0.1.0, 0.1.1 and 0.1.2 (yanked), two nightlies of 0.1.3.",
        USUAL,
        ("", ">=0.1,<0.2", "<0.1.3", "~=0.1.0", f">=0.1.3.{OLD}", f"==0.1.3.{OLD}", "==0.1.2"),
    ),
    Case(
        "candidate",
        "The same with an rc of 0.1.3: it hides the nightlies of its base.",
        (*USUAL, "0.1.3rc1"),
        ("", ">=0.1,<0.2"),
    ),
    Case(
        "young",
        "Nightlies of 0.1.3 and no final yet.",
        (f"0.1.3.{OLD}", f"0.1.3.{NEW}"),
        ("", ">=0.1,<0.2"),
    ),
    Case(
        "apart",
        "Final 0.1.1 on the index, nightlies of 0.1.3 on another one given as --extra-index-url.",
        ("0.1.1",),
        ("", ">=0.1,<0.2"),
        (f"0.1.3.{OLD}", f"0.1.3.{NEW}"),
    ),
)


@dataclass(frozen=True)
class Indexes:
    """Addresses of the two indexes, and a scratch folder."""

    first: str
    second: str
    folder: Path

    def options(self, case: Case) -> list[str]:
        """The options that name the indexes of a case."""
        extra = ["--extra-index-url", self.second] if case.apart else []
        return ["--index-url", self.first, *extra]


Chooser = Callable[[Indexes, Case, str], str]


def pip(folder: Path, *options: str) -> Chooser:
    """What a pip, run from its unpacked wheel, would install."""

    def choose(indexes: Indexes, case: Case, asked: str) -> str:
        command = [
            sys.executable,
            str(folder / "pip"),
            "install",
            "--dry-run",
            "--quiet",
            "--no-deps",
        ]
        command += ["--ignore-installed", "--no-cache-dir", "--report", "-", *options]
        done = _run([*command, *indexes.options(case), case.name + asked], indexes.folder)
        if done.returncode:
            return NOTHING
        return str(json.loads(done.stdout)["install"][0]["metadata"]["version"])

    return choose


def uv(mode: str) -> Chooser:
    """What uv would install in one of its modes."""

    def choose(indexes: Indexes, case: Case, asked: str) -> str:
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-deps"]
        command += ["--no-header", "--no-annotate", "--no-cache", "--prerelease", mode, "-"]
        done = _run([*command, *indexes.options(case)], indexes.folder, case.name + asked)
        return done.stdout.strip().partition("==")[2] if done.returncode == 0 else NOTHING

    return choose


def _run(command: Sequence[str], folder: Path, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env=isolated(folder),
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def fetch_pips(folder: Path) -> list[Path]:
    """Download the pips by the pip at hand, with its own settings, and unpack them."""
    for version in PIPS:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*command, "--dest", str(folder), f"pip=={version}"], check=True)
        with zipfile.ZipFile(folder / f"pip-{version}-py3-none-any.whl") as wheel:
            wheel.extractall(folder / version)
    return [folder / version for version in PIPS]


def choosers(folder: Path) -> tuple[dict[str, Chooser], dict[str, Chooser]]:
    """The columns of the two tables."""
    pips = {}
    for version, place in zip(PIPS, fetch_pips(folder), strict=True):
        pips[f"pip {version}"] = pip(place)
        pips[f"pip {version} `--pre`"] = pip(place, "--pre")
    return pips, {f"`{mode}`": uv(mode) for mode in MODES}


def serve(stack: ExitStack, folder: Path) -> Indexes:
    """The two indexes with every case's wheels."""
    first = stack.enter_context(IndexServer(folder / "first"))
    second = stack.enter_context(IndexServer(folder / "second"))
    for case in CASES:
        for index, versions in ((first, case.versions), (second, case.apart)):
            for version in versions:
                index.put(stand_in(folder / "wheels", case.name, version), version)
        if YANKED in case.versions:
            first.yank(case.name, YANKED, "broken")
    return Indexes(first.url, second.url, folder)


def shown(version: str) -> str:
    """A version as the tables show it."""
    if version.endswith(NEW):
        return "newest nightly"
    if version.endswith(OLD):
        return "older nightly"
    return f"{version} (yanked)" if version == YANKED else version


def asked_as(case: Case, asked: str) -> str:
    """A requirement as the tables show it."""
    return f"`{case.name}{asked}`".replace(OLD, "devOLDER")


def measure(folder: Path) -> dict[tuple[str, str, str], str]:
    """What every column chooses, by column, project and requirement."""
    with ExitStack() as stack:
        indexes = serve(stack, folder)
        pips, uvs = choosers(folder)
        columns = pips | uvs
        pool = stack.enter_context(ThreadPoolExecutor(os.cpu_count()))
        waiting = {
            (column, case.name, asked): pool.submit(choose, indexes, case, asked)
            for column, choose in columns.items()
            for case in CASES
            for asked in case.asked
        }
        return {key: future.result() for key, future in waiting.items()}


def page(measured: dict[tuple[str, str, str], str]) -> str:
    """The page."""
    pips = list(dict.fromkeys(column for column, *_ in measured if "pip" in column))
    uvs = [f"`{mode}`" for mode in MODES]
    release = metadata.version("uv")
    parts = [
        "# Which version a user gets\n\n"
        "Measured, not derived: each cell is one run of the installer against an index that holds "
        "the versions named (`nox -s channels` compares this page with a new measurement; "
        "`PYTHONPATH=tools:tests/tools python tests/tools/channel_behaviour.py` writes it). "
        "`devOLDER` stands for the older nightly's stamp.\n\n"
        "What follows for users: the plain name gives the newest final; `--pre` gives the newest "
        "nightly unless an rc of the same base exists, which is why a nightly is refused then. "
        "uv takes a nightly from an extra index by the plain name, since it reads only the first "
        "index that has the project, and extra indexes come first.\n",
    ]
    for case in CASES:
        parts.append(f"\n## {case.name}\n\n{case.says}\n\n")
        parts += _table(measured, case, pips, pips)
        heads = [f"uv {release} {mode}" for mode in uvs]
        heads[MODES.index(DEFAULT_MODE)] += " (default)"
        parts += ["\n", *_table(measured, case, uvs, heads)]
    return "".join(parts)


def _table(
    measured: dict[tuple[str, str, str], str],
    case: Case,
    columns: Sequence[str],
    heads: Iterable[str],
) -> Iterator[str]:
    yield f"| asked for | {' | '.join(heads)} |\n"
    yield f"| --- |{' --- |' * len(columns)}\n"
    for asked in case.asked:
        cells = [shown(measured[column, case.name, asked]) for column in columns]
        yield f"| {asked_as(case, asked)} | {' | '.join(cells)} |\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        write_bytes(PAGE, page(measure(Path(scratch))).encode())

"""Small real projects for the tests of the release tools: repositories, remotes, distributions."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from repositories import Repository, run

if TYPE_CHECKING:
    from staging_world import World

PYPROJECT = """\
[build-system]
requires = ["hatchling=={hatchling}"]
build-backend = "hatchling.build"

[project]
name = "pkgx"
description = "A small package that stands in for the real one"
readme = "README.md"
requires-python = ">=3.10"
dependencies = ["packaging>=24.2"]
license = "Apache-2.0"
license-files = ["LICENSE", "NOTICE", "LICENSES/*.txt"]
dynamic = ["version"]

[project.optional-dependencies]
more = ["packaging>=26; python_version > '3.11'"]

[tool.hatch.version]
path = "pkgx/_version.py"

[tool.hatch.build.targets.wheel]
packages = ["pkgx"]

[tool.mmaemu.release]
owner = "pkgx-project"
repository = "pkgx"
maintainer = "keeper"
name = "pkgx release"
email = "release@pkgx.invalid"
"""


@pytest.fixture(autouse=True)
def plain_git(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the git configuration of the machine or of the user."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(home / ".gitconfig"))
    (home / ".gitconfig").write_text("[init]\n\tdefaultBranch = main\n", encoding="utf-8")


@pytest.fixture(scope="session")
def project_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the stand-in package, no repository."""
    root = tmp_path_factory.mktemp("template") / "pkgx"
    repository = Repository(root)
    real = Path(__file__).resolve().parents[2]
    repository.write(
        "pyproject.toml", PYPROJECT.replace("{hatchling}", metadata.version("hatchling"))
    )
    repository.write("README.md", "# pkgx\n\nSee [the site](https://pkgx.invalid/).\n")
    repository.write("pkgx/__init__.py", '"""A stand-in."""\n')
    repository.write("pkgx/_version.py", '"""The version."""\n\n__version__ = "0.1.0"\n')
    repository.write("pkgx/py.typed", "")
    shutil.copyfile(real / "LICENSE", root / "LICENSE")
    shutil.copytree(real / "LICENSES", root / "LICENSES")
    notice = next((root / "LICENSES").iterdir()).read_text(encoding="utf-8")
    repository.write("NOTICE", f"pkgx\n\n{notice}")
    return root


@pytest.fixture
def project(project_template: Path, tmp_path: Path) -> Repository:
    """A copy of the stand-in package, no repository."""
    return Repository(Path(shutil.copytree(project_template, tmp_path / "pkgx")))


@pytest.fixture
def repository(project: Repository) -> Repository:
    """The stand-in package as a development clone with one commit."""
    project.git("init", "--quiet")
    project.commit("first")
    return project


@pytest.fixture
def bare(tmp_path: Path) -> Callable[[str], Path]:
    """Makes empty bare repositories."""

    def make(name: str) -> Path:
        path = tmp_path / f"{name}.git"
        run("git", "init", "--quiet", "--bare", str(path), cwd=tmp_path)
        return path

    return make


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Three indexes, a mail server and a project of three wheels."""
    from staging_world import create, mail_server

    with create(tmp_path) as found, mail_server(found.port, found.mailbox):
        yield found

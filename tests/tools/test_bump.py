from __future__ import annotations

from pathlib import Path

import pytest

import bump
import two_wheels
from files import sha256_of_tree
from findings import UnusableError
from repositories import Repository

CITATION = 'version: "0.1.0"\n'


@pytest.fixture
def released(project: Repository) -> Repository:
    """The stand-in package right after its release 0.1.0."""
    project.write("CHANGELOG.md", "# Changelog\n\n## 0.1.0 (2026-11-30)\n\n- A thing.\n")
    project.write("CITATION.cff", CITATION)
    project.write("reference.version", "# Pairing\npkgx 0.1.0\ntorch 2.7.1\n")
    return project


def text(repository: Repository, name: str) -> str:
    return (repository.root / name).read_text(encoding="utf-8")


def test_the_next_patch_version_is_set_and_the_citation_keeps_the_release(
    released: Repository,
) -> None:
    assert bump.main(["--root", str(released.root)]) == 0
    assert text(released, "pkgx/_version.py").endswith('__version__ = "0.1.1"\n')
    assert text(released, "reference.version") == "# Pairing\npkgx 0.1.1\ntorch 2.7.1\n"
    assert text(released, "CITATION.cff") == CITATION


def test_a_rerun_and_a_dry_run_change_nothing(
    released: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sha256_of_tree(released.root)
    assert bump.main(["--root", str(released.root), "--dry-run"]) == 0
    assert sha256_of_tree(released.root) == before
    assert bump.main(["--root", str(released.root)]) == 0
    after = sha256_of_tree(released.root)
    assert bump.main(["--root", str(released.root)]) == 0
    assert sha256_of_tree(released.root) == after
    assert "the tree is past 0.1.0 already" in capsys.readouterr().out


@pytest.mark.parametrize("later", ["0.1.1.dev0", "0.2.0", "1.0.0.dev3"])
def test_a_tree_that_is_later_stays(later: str, released: Repository) -> None:
    released.write("pkgx/_version.py", f'__version__ = "{later}"\n')
    assert bump.main(["--root", str(released.root)]) == 0
    assert text(released, "pkgx/_version.py") == f'__version__ = "{later}"\n'


def test_the_digits_are_numbers() -> None:
    assert bump.next_patch("0.9.9") == "0.9.10"
    assert bump.next_patch("1.20.0") == "1.20.1"


@pytest.mark.parametrize("version", ["0.1", "0.1.0rc1", "v0.1.0", "0.1.0.dev1", "next"])
def test_only_a_release_is_bumped(version: str, released: Repository) -> None:
    before = sha256_of_tree(released.root)
    assert bump.main(["--root", str(released.root), "--released", version]) == 2
    assert sha256_of_tree(released.root) == before


def test_an_older_tree_and_a_missing_section_are_errors(
    released: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bump.main(["--root", str(released.root), "--released", "0.2.0"]) == 2
    released.write("CHANGELOG.md", "# Changelog\n")
    assert bump.main(["--root", str(released.root)]) == 2
    said = capsys.readouterr().err
    assert "older than the release 0.2.0" in said
    assert "give --released" in said


def test_a_version_in_pyproject_is_replaced_on_its_line(tmp_path: Path) -> None:
    root = two_wheels.materialise(tmp_path / "fixture").root
    before = (root / "pyproject.toml").read_text(encoding="utf-8")
    assert bump.main(["--root", str(root)]) == 0
    after = (root / "pyproject.toml").read_text(encoding="utf-8")
    assert after == before.replace('version = "0.4.0"', 'version = "0.4.1"')


@pytest.mark.parametrize(
    "source",
    [
        '[tool.x]\nversion = "9"\n[project]\nname = "a"\nversion = "0.1.0"\n',
        "[project]\nversion='0.1.0' # stated once\n",
    ],
)
def test_only_the_stated_key_changes(source: str) -> None:
    changed = bump.restated(source, "pyproject.toml", "project.version", "0.1.1")
    assert changed == source.replace("0.1.0", "0.1.1")


def test_a_key_that_is_not_on_a_line_is_an_error() -> None:
    with pytest.raises(UnusableError, match="change it by hand"):
        bump.restated(
            'project = { version = "0.1.0" }\n', "pyproject.toml", "project.version", "0.1.1"
        )

from __future__ import annotations

from pathlib import Path

import pytest

import release_notes
import two_wheels
from files import sha256_of_file
from repositories import Repository


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Repository, Path]:
    """The project of two wheels and its release."""
    folder = tmp_path_factory.mktemp("notes")
    repository = two_wheels.materialise(folder / "fixture")
    out = folder / "dist"
    two_wheels.build(repository.root, out)
    return repository, out


def run(repository: Repository, folder: Path, *arguments: str, version: str = "0.4.0") -> int:
    return release_notes.main([version, str(folder), "--root", str(repository.root), *arguments])


def codes(text: str) -> set[str]:
    return {word for word in text.split() if word.startswith("GOLD")}


def test_notes_hold_changelog_pairing_pins_and_checksums(
    built: tuple[Repository, Path], tmp_path: Path
) -> None:
    repository, folder = built
    out = tmp_path / "notes.md"
    assert run(repository, folder, "--out", str(out)) == 0
    text = out.read_text(encoding="utf-8")
    assert "Released 2026-11-30." in text
    assert f"- torch-device {two_wheels.PAIRED}\n" in text
    assert "jax==0.11.2\njaxlib==0.11.2\nlibtpu==0.0.41\n" in text
    wheels = sorted(folder.glob("*.whl"))
    assert len(wheels) == 2
    for wheel in wheels:
        assert f"{sha256_of_file(wheel)}  {wheel.name}\n" in text


def test_a_dry_run_prints_and_writes_nothing(
    built: tuple[Repository, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repository, folder = built
    out = tmp_path / "notes.md"
    assert run(repository, folder, "--out", str(out), "--dry-run") == 0
    assert "## SHA-256" in capsys.readouterr().out
    assert not out.exists()


def test_a_release_that_lacks_a_wheel_gets_no_notes(
    built: tuple[Repository, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repository, folder = built
    (jax,) = folder.glob("*jax*.whl")
    (tmp_path / jax.name).write_bytes(jax.read_bytes())
    assert run(repository, tmp_path) == 1
    said = capsys.readouterr().out
    assert codes(said) == {"GOLD162"}
    assert "fixture-sync-torch" in said


def test_a_file_of_another_version_is_found(
    built: tuple[Repository, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repository, folder = built
    for wheel in folder.glob("*.whl"):
        (tmp_path / wheel.name).write_bytes(wheel.read_bytes())
    two_wheels.stand_in(tmp_path, "fixture-sync-jax", "0.4.1")
    assert run(repository, tmp_path) == 1
    assert codes(capsys.readouterr().out) == {"GOLD162"}


def test_the_changelog_must_have_the_version_and_its_pairing(
    built: tuple[Repository, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = built[1]
    repository = two_wheels.materialise(tmp_path / "fixture")
    repository.write("CHANGELOG.md", "# Changelog\n\n## 0.4.0 (2026-11-30)\n\n- A thing.\n")
    assert run(repository, folder) == 1
    assert codes(capsys.readouterr().out) == {"GOLD163"}
    repository.write("CHANGELOG.md", "# Changelog\n")
    assert run(repository, folder) == 1
    assert codes(capsys.readouterr().out) == {"GOLD161"}


def test_a_missing_folder_is_no_empty_release(
    built: tuple[Repository, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(built[0], tmp_path / "nowhere") == 2
    assert "is no folder" in capsys.readouterr().err

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import pins
import two_wheels
from findings import apply_rules
from release_config import load_configuration

EXACT = ["jax==0.11.2", "jaxlib==0.11.2", "libtpu==0.0.41"]
WRITTEN = "".join(f"{text}\n" for text in EXACT)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(shutil.copytree(two_wheels.SOURCE, tmp_path / "project"))


def wheel(folder: Path, *requires: str) -> Path:
    return two_wheels.stand_in(folder, "fixture-sync-jax", "0.4.0", requires)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("jax==0.11.2", {"jax": "0.11.2"}),
        ("Jax_Lib == 0.11.2", {"jax-lib": "0.11.2"}),
        ("torch==2.7.1+cu128", {"torch": "2.7.1+cu128"}),
        ("numpy==1.26.4; python_version < '3.13'", {"numpy": "1.26.4"}),
        ("jax>=0.11.2", {}),
        ("jax~=0.11.2", {}),
        ("jax===0.11.2", {}),
        ("jax==0.11.*", {}),
        ("jax==0.11.2,!=0.11.3", {}),
        ("jax", {}),
        ("pytest==8.3.0; extra == 'test'", {}),
    ],
)
def test_only_an_exact_requirement_is_a_pin(text: str, found: dict[str, str]) -> None:
    assert pins.exact([text]) == found


def test_pins_of_a_built_wheel_are_listed_and_written_beside_it(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (built,) = two_wheels.build(root, tmp_path / "out", flavours=["jax"])
    beside = built.with_name("jax_pins.txt")
    assert pins.main([str(built), "--write", "--dry-run", "--root", str(root)]) == 0
    assert not beside.exists()
    assert f"would write {beside}" in capsys.readouterr().out
    assert pins.main([str(built), "--write", "--root", str(root)]) == 0
    assert beside.read_text() == WRITTEN
    printed = capsys.readouterr().out
    assert all(f"pins: {built.name}: {text}" in printed for text in EXACT)


@pytest.mark.parametrize(
    ("requires", "words"),
    [
        ([*EXACT[:2], "libtpu==0.0.42"], ["requires libtpu 0.0.42", "says 0.0.41"]),
        (EXACT[:2], ["requires libtpu (not at all)"]),
        ([*EXACT, "extra==1"], ["requires extra 1", "says (nothing)"]),
        ([*EXACT[:2], "libtpu>=0.0.41"], ["requires libtpu (not at all)"]),
    ],
)
def test_a_wheel_that_differs_from_the_projects_list(
    requires: list[str], words: list[str], root: Path, tmp_path: Path
) -> None:
    configuration = load_configuration(root)
    row = configuration.distribution("fixture_sync_jax")
    facts = pins.pinned(wheel(tmp_path, *requires), row, configuration)
    (finding,) = apply_rules(pins.RULES, facts).findings
    assert finding.code == "NIGHT131"
    assert all(word in finding.message for word in words)


def test_a_range_in_the_projects_list_is_found(root: Path, tmp_path: Path) -> None:
    path = root / "pyproject.toml"
    path.write_text(path.read_text().replace('"jaxlib==0.11.2"', '"jaxlib>=0.11"'))
    configuration = load_configuration(root)
    row = configuration.distribution("fixture-sync-jax")
    facts = pins.pinned(wheel(tmp_path, *EXACT), row, configuration)
    wheres = {finding.where for finding in apply_rules(pins.RULES, facts).findings}
    assert wheres == {"pyproject.toml", "fixture_sync_jax-0.4.0-py3-none-any.whl"}


def test_what_is_no_wheel_or_of_no_distribution_is_refused(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = two_wheels.stand_in(tmp_path, "other", "1.0")
    text = tmp_path / "fixture_sync_jax-0.4.0-py3-none-any.whl"
    text.write_text("no archive")
    for path, words in (
        (other, "'other' is no distribution"),
        (text, "is no wheel with metadata"),
        (tmp_path / "x.txt", "is not named like a wheel"),
    ):
        assert pins.main([str(path), "--root", str(root)]) == 2
        assert words in capsys.readouterr().err

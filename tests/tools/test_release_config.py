from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import release_config
import two_wheels
from findings import UnusableError
from release_config import load_configuration

ROOT = Path(__file__).resolve().parents[2]
TORCH = 'name = "fixture-sync-torch"'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(shutil.copytree(two_wheels.SOURCE, tmp_path / "project"))


def test_our_own_table_and_the_fixtures_are_what_the_schema_says() -> None:
    ours = load_configuration(ROOT)
    assert [(row.name, row.kinds) for row in ours.distributions] == [("mmaemu", ("wheel", "sdist"))]
    assert ours.pairing == ("reference.version", None)
    assert [Path(command[1]).name for command in ours.checks][:2] == [
        "check_dist.py",
        "build_cpu.py",
    ]
    fixture = load_configuration(two_wheels.SOURCE)
    jax, torch = fixture.distributions
    assert jax.build_tag is not None
    assert torch.abis is not None
    assert torch.abis.list == two_wheels.ABIS
    assert fixture.pairing == ("torch_device.version", "torch-device")
    assert fixture.distribution("Fixture.Sync_Torch") == torch


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('owner = "fixture-project"\n', "", "'owner' is a required property"),
        ('owner = "fixture-project"', "owner = 3", "owner is 3"),
        ('owner = "fixture-project"', 'owner = ""', "owner is ''"),
        ('owner = "fixture-project"', 'owner = "x"\nwoner = "y"', "'woner' was unexpected"),
        ('kinds = ["wheel"]', 'kinds = ["egg"]', "distributions[0].kinds[0] is 'egg'"),
        ('kinds = ["wheel"]', "kinds = []", "distributions[0].kinds is []"),
        ('stamp = "environment"', 'stamp = "air"', "version_source.stamp is 'air'"),
        ('stamp = "environment"', 'stamp = "file"', "distributions[0].version_source.key"),
        ('key = "project.version", ', "", "distributions[0].version_source: 'key' is a required"),
        (TORCH, 'name = "Fixture_Sync.Jax"', "distributions[0].name is 'fixture-sync-jax'"),
        (TORCH, f"{TORCH}\nbuild-tag = 1", "distributions[1]: Additional properties"),
        ('known = ["0.10.0", ', 'known = ["0.10.0rc1", ', "build_tag.known[0] is '0.10.0rc1'"),
        ("/_C_torch_{abi}.so", "/_C_torch.so", "distributions[1].abis.file"),
        ('file = "jax_pins.txt"', 'file = "../pins.txt"', "distributions[0].pins.file"),
        (
            'runtime = "fixture_sync_jax/',
            'runtime = "/fixture_sync_jax/',
            "distributions[0].runtime",
        ),
    ],
)
def test_an_error_names_its_key(old: str, new: str, key: str, root: Path) -> None:
    path = root / "pyproject.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(UnusableError, match=re.escape(key)):
        load_configuration(root)


def test_a_build_tag_needs_pins(root: Path) -> None:
    path = root / "pyproject.toml"
    path.write_text(re.sub(r"^pins = .*\n", "", path.read_text(), flags=re.MULTILINE))
    with pytest.raises(UnusableError, match=r"distributions\[0\]\.build_tag needs pins"):
        load_configuration(root)


def test_every_error_is_told_at_once(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = root / "pyproject.toml"
    path.write_text(path.read_text().replace('["wheel"]', "3"))
    assert release_config.main(["--root", str(root)]) == 2
    printed = capsys.readouterr().err
    assert "distributions[0].kinds is 3" in printed
    assert "distributions[1].kinds is 3" in printed
    assert release_config.main(["--root", str(two_wheels.SOURCE)]) == 0
    assert "fixture-sync-jax: wheel" in capsys.readouterr().out


def test_every_key_is_documented() -> None:
    for name, rows in release_config.documented():
        assert rows, name
        assert all(meaning.endswith(".") for _, _, meaning in rows)

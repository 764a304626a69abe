from __future__ import annotations

from pathlib import Path

import pytest

from mmaemu import _settings

FLAGS = [item.name for item in _settings.SETTINGS if item.kind == "flag"]
TEXTS = [item.name for item in _settings.SETTINGS if item.kind == "text"]


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("1", True),
        ("true", True),
        ("YES", True),
        (" On ", True),
        ("0", False),
        ("False", False),
        ("no", False),
        ("off", False),
        ("", False),
    ],
)
def test_booleans_parse_one_way(
    monkeypatch: pytest.MonkeyPatch, name: str, word: str, value: object
) -> None:
    monkeypatch.setenv(f"MMAEMU_{name}", word)
    assert _settings.flag(name) is value


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("word", ["2", "y", "enabled", "none", "-1"])
def test_another_word_is_an_error(monkeypatch: pytest.MonkeyPatch, name: str, word: str) -> None:
    monkeypatch.setenv(f"MMAEMU_{name}", word)
    with pytest.raises(ValueError, match=f"MMAEMU_{name} must be one of .*; got '{word}'"):
        _settings.flag(name)


@pytest.mark.parametrize("name", TEXTS)
def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv(f"MMAEMU_{name}", raising=False)
    default = _settings.text(name)
    monkeypatch.setenv(f"MMAEMU_{name}", "  ")
    assert _settings.text(name) == default
    monkeypatch.setenv(f"MMAEMU_{name}", " value ")
    assert _settings.text(name) == "value"


def test_values_are_read_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MMAEMU_PROFILE", raising=False)
    assert _settings.profile() == "hopper"
    monkeypatch.setenv("MMAEMU_PROFILE", "ada")
    assert _settings.profile() == "ada"


def test_a_name_is_read_as_its_kind() -> None:
    with pytest.raises(KeyError, match="MMAEMU_DISABLE_CUDA is a flag setting"):
        _settings.text("DISABLE_CUDA")
    with pytest.raises(KeyError):
        _settings.flag("NO_SUCH_SETTING")


def test_paths_expand_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MMAEMU_TRUTH_DIR", raising=False)
    assert _settings.path("TRUTH_DIR") is None
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MMAEMU_TRUTH_DIR", "~/truth")
    assert _settings.path("TRUTH_DIR") == tmp_path / "truth"


def test_the_cache_is_the_users_unless_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("MMAEMU_CACHE_DIR", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert _settings.cache_dir() == tmp_path / "mmaemu"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert _settings.cache_dir() == tmp_path / "home" / ".cache" / "mmaemu"
    monkeypatch.setenv("MMAEMU_CACHE_DIR", str(tmp_path / "own"))
    assert _settings.cache_dir() == tmp_path / "own"


def test_faults_are_a_list_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MMAEMU_TEST_FAULT", raising=False)
    assert _settings.faults() == frozenset()
    monkeypatch.setenv("MMAEMU_TEST_FAULT", " driver, ,hash ")
    assert _settings.faults() == {"driver", "hash"}


def test_every_setting_is_described_once() -> None:
    names = [item.name for item in _settings.SETTINGS]
    assert len(names) == len(set(names))
    assert all(item.meaning.endswith(".") for item in _settings.SETTINGS)

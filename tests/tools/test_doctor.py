from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import doctor
from files import ROOT
from findings import apply_rules
from index_server import Fault, IndexServer, Policy
from package_index import from_environment

VARIABLES = [
    *(
        {"name": name, "value": f"https://{name.lower()}.invalid/"}
        for name, _, _ in doctor.VARIABLES[:4]
    ),
    {"name": doctor.BUILDER, "value": "builder@fixture.invalid"},
    {"name": doctor.TRIGGER, "value": "trigger@fixture.invalid"},
]
SECRETS = [{"name": secret.name} for secret in doctor.SECRETS]
GATE = {"builders": ["builder@fixture.invalid"], "triggers": ["trigger@fixture.invalid"]}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """What the clients print where everything is set up."""
    found = {}
    for name, document in (("variables", VARIABLES), ("secrets", SECRETS), ("gate", GATE)):
        found[name] = tmp_path / f"{name}.json"
        found[name].write_text(json.dumps(document), encoding="utf-8")
    return found


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def run(files: dict[str, Path], *arguments: str) -> int:
    given = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    return doctor.main([*given, *arguments])


def codes(text: str) -> set[str]:
    return {
        line.split(": ")[1].split()[0]
        for line in text.splitlines()
        if ": GOLD" in line and "not decided" not in line
    }


@pytest.fixture
def indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two indexes that want a token."""
    with IndexServer(tmp_path / "index", Policy(token="s3cret")) as index:  # noqa: S106
        for role in ("nightly", "staging"):
            for name, value in index.settings(role).items():
                monkeypatch.setenv(name, value)
        yield index


def test_everything_set_up_passes(indexes: IndexServer, files: dict[str, Path]) -> None:
    assert run(files) == 0
    assert indexes.files() == {}


def test_nothing_given_is_not_decided(indexes: IndexServer) -> None:
    assert doctor.main([]) == 3
    assert doctor.main(["--offline"]) == 3
    assert doctor.main(["--dry-run"]) == 3
    assert [entry.method for entry in indexes.log] == ["POST", "POST"]


@pytest.mark.parametrize(
    ("name", "old", "new", "code"),
    [
        ("variables", "MMAEMU_STAGING_UPLOAD_URL", "OTHER", "GOLD173"),
        ("variables", doctor.BUILDER, "BUILDER", "GOLD173"),
        ("variables", "builder@fixture.invalid", "someone@else.invalid", "GOLD174"),
        ("gate", "trigger@fixture.invalid", "someone@else.invalid", "GOLD174"),
        ("gate", "builders", "builder", "GOLD174"),
        ("secrets", "GOLDEN_RECORD_TOKEN", "GOLDEN_TOKEN", "GOLD175"),
        ("secrets", "HOSTING_READ_TOKEN", "READ_TOKEN", "GOLD175"),
    ],
)
def test_each_missing_thing_is_found(  # noqa: PLR0917 - a case and two fixtures
    name: str,
    old: str,
    new: str,
    code: str,
    files: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    change(files[name], old, new)
    assert run(files, "--offline") == 1
    assert codes(capsys.readouterr().out) == {code}


def test_optional_secrets_may_be_missing(files: dict[str, Path]) -> None:
    for name in ("CANARY_DISPATCH_TOKEN", "DOWNSTREAM_BUMP_TOKEN"):
        change(files["secrets"], name, f"{name}_OF_LAST_YEAR")
    assert run(files, "--offline") == 3  # The indexes were not asked; nothing else is open.


@pytest.mark.parametrize("limit", ["0", "many", "-1", ""])
def test_a_limit_that_was_never_granted_is_found(
    limit: str, files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [*VARIABLES, {"name": "PYPI_FILE_LIMIT_MB", "value": limit}]
    files["variables"].write_text(json.dumps(rows), encoding="utf-8")
    assert run(files, "--offline") == 1
    assert codes(capsys.readouterr().out) == {"GOLD173"}


def test_wrong_credentials_and_silence_are_told_apart(
    indexes: IndexServer, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MMAEMU_NIGHTLY_PASSWORD", "guessed")
    assert "may not upload" in str(doctor.why_not_writable(from_environment("nightly")))
    assert doctor.why_not_writable(from_environment("staging")) is None
    indexes.faults.append(Fault("error", where="POST", status=503))
    assert "out of order" in str(doctor.why_not_writable(from_environment("staging")))
    monkeypatch.delenv("MMAEMU_STAGING_UPLOAD_URL")
    assert "is not set" in str(doctor.why_not_writable(from_environment("staging")))
    assert run(files) == 1


def test_an_index_that_is_gone_is_found(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for role in ("NIGHTLY", "STAGING"):
        for kind in ("INDEX", "UPLOAD"):
            monkeypatch.setenv(f"MMAEMU_{role}_{kind}_URL", "http://127.0.0.1:9/")
    assert run(files) == 1
    assert codes(capsys.readouterr().out) == {"GOLD172"}


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    assert doctor.main(["--offline", "--secrets", str(tmp_path / "none.json")]) == 2


FACTS = doctor.Facts({}, "", None, None, None, None)


def test_the_header_lists_the_secrets_that_the_jobs_use() -> None:
    text = (ROOT / doctor.HEADER).read_text(encoding="utf-8")
    header = doctor.header_of(text)

    def found(changed: str) -> int:
        facts = dataclasses.replace(FACTS, header=changed)
        rules = [rule for rule in doctor.RULES if rule.code == "GOLD176"]
        return len(apply_rules(rules, facts).findings)

    assert found(header) == 0
    assert found("") == len(doctor.SECRETS) == 4
    assert found(header.replace("actions:write", "contents:write")) == 2
    assert found(header + "\n# OTHER_TOKEN (needed): everything") == 1
    for secret in doctor.SECRETS:
        assert f"secrets.{secret.name}" in text

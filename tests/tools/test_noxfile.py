"""The sessions of noxfile.py, by running the real nox."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nox import registry as nox_registry

from files import ROOT, read_toml

MATRIX = read_toml(ROOT / "pyproject.toml")["tool"]["mmaemu"]["matrix"]
POINTS = {(python, torch) for python in MATRIX["python"] for torch in MATRIX["torch"].values()}


def nox(*arguments: str, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if key != "CI"}
    return subprocess.run(
        [sys.executable, "-m", "nox", *arguments],
        cwd=cwd,
        env={**environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def listed(*arguments: str) -> list[dict[str, Any]]:
    done = nox("--list", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    sessions: list[dict[str, Any]] = json.loads(done.stdout)
    return sessions


def points(sessions: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(entry["python"], entry["call_spec"]["torch"]) for entry in sessions}


@pytest.mark.parametrize("session", ["t0_matrix", "t1_matrix"])
def test_the_matrix_is_listed_as_json(session: str) -> None:
    assert points(listed("-s", session)) == POINTS


@pytest.mark.parametrize(
    ("arguments", "sessions"),
    [
        (("-p", "3.11", "-t", "torch-2.6.0"), ["t0_matrix", "t1_matrix"]),
        (("-p", "3.11", "-t", "t1-torch-2.6.0"), ["t1_matrix"]),
        # nox leaves -s aside where -t is given.
        (("-s", "t0_matrix", "t1_matrix", "-p", "3.11", "-t", "torch-2.6.0"), None),
    ],
)
def test_points_are_named_without_quotes(
    arguments: tuple[str, ...], sessions: list[str] | None
) -> None:
    chosen = listed(*arguments)
    assert [entry["name"] for entry in chosen] == (sessions or ["t0_matrix", "t1_matrix"])
    assert points(chosen) == {("3.11", "2.6.0")}


def test_a_tag_selects_the_matrix_though_it_is_no_default() -> None:
    assert points(listed("-t", "t0-torch-2.7.1")) == {
        (python, "2.7.1") for python in MATRIX["python"]
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ("-s", "t1_matrix", "-p", "3.99"),
        ("-s", "t1_matrix", "-t", "torch-1.0"),
        ("-t", "no-such-tag"),
        ("-s", "t9"),
    ],
)
def test_a_point_that_does_not_exist_is_an_error(arguments: tuple[str, ...]) -> None:
    assert nox(*arguments).returncode == 3


@pytest.mark.parametrize("tiers", ["t0 t1 t2", "t3 t3p t4 t6", "t7"])
def test_without_points_a_tier_runs_once(tiers: str) -> None:
    chosen = [entry["session"] for entry in listed("-s", *tiers.split())]
    assert chosen == ["env", *tiers.split()]


class Recorder:
    """A session that notes what it is asked to run."""

    def __init__(self, name: str, *posargs: str) -> None:
        self.name, self.posargs, self.ran = name, posargs, list[tuple[str, ...]]()

    def run(self, *command: str, external: bool) -> None:
        assert external
        self.ran.append(command)


@pytest.mark.parametrize(
    ("name", "posargs"),
    [
        ("t3", ()),
        ("t4", ("--seed", "7", "--count", "6")),
        ("t7", ("dist/mmaemu-0.1.0-py3-none-any.whl",)),
    ],
)
def test_a_tier_gets_what_follows_two_dashes(
    name: str, posargs: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    nox_registry.reset()
    session = Recorder(name, *posargs)
    runpy.run_path("noxfile.py", run_name="again")["tier"](session)
    ((python, *words),) = session.ran
    assert Path(python).parts[:2] == (".nox", "env")
    assert words == ["tools/tier.py", name, *posargs]


def test_the_default_is_tests_and_lint() -> None:
    chosen = [entry["session"] for entry in listed()]
    assert chosen == ["env", "t0", "t1", "lint"]


def test_the_torch_of_the_tiers_is_the_matrix_default_unless_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("MMAEMU_TORCH", raising=False)
    default = MATRIX["torch"][MATRIX["default"]]
    nox_registry.reset()
    assert runpy.run_path("noxfile.py", run_name="first")["TORCH"] == default
    monkeypatch.setenv("MMAEMU_TORCH", "2.7.1")
    nox_registry.reset()
    assert runpy.run_path("noxfile.py", run_name="second")["TORCH"] == "2.7.1"


def test_a_missing_interpreter_is_an_error(tmp_path: Path) -> None:
    shutil.copyfile(ROOT / "noxfile.py", tmp_path / "noxfile.py")
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    old = 'python = ["3.10", '
    assert old in project
    (tmp_path / "pyproject.toml").write_text(project.replace(old, 'python = ["3.99", ', 1))
    done = nox("-s", "t0_matrix", "-p", "3.99", "-t", "torch-2.6.0", cwd=tmp_path)
    assert done.returncode == 1
    assert "3.99" in done.stderr
    assert "not found" in done.stderr

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import run_ci
from files import ROOT
from findings import UnusableError
from workflows import load, parse, table_of

RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"
CI = f"""\
name: ci
on: push
env:
  INDEX: ${{{{ vars.SOME_INDEX }}}}
jobs:
  lint:
    runs-on: ubuntu-24.04
    steps:
      - uses: actions/checkout@abc
      - uses: actions/setup-python@abc
      - run: python tools/say.py lint
  test:
    strategy:
      matrix:
        python: ["3.1", "{RUNNING}"]
        torch: ["2.6.0", "2.7.1"]
    steps:
      - run: python tools/say.py test "$PYTHON" "$TORCH"
        env:
          PYTHON: ${{{{ matrix.python }}}}
          TORCH: ${{{{ matrix.torch }}}}
  broken:
    steps:
      - run: |
          python tools/fail.py
          python tools/say.py never
      - run: python tools/say.py never
  other:
    steps:
      - run: python tools/say.py other
      - uses: somebody/something@abc
"""
MATRIX = """
[tool.mmaemu.matrix]
python = ["3.10"]
torch = { floor = "2.6.0", latest = "2.7.1" }
default = "latest"
"""
SAY = """\
import os, sys
print("said", *sys.argv[1:], os.environ.get("INDEX"), sys.prefix, flush=True)
"""


@pytest.fixture
def ready(repository: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    repository.write(".github/workflows/ci.yml", CI)
    repository.write("tools/say.py", SAY)
    repository.write("tools/fail.py", "raise SystemExit(7)\n")
    repository.write("pyproject.toml", (repository.root / "pyproject.toml").read_text() + MATRIX)
    repository.commit("ci")
    monkeypatch.setenv("MMAEMU_CI_DIR", str(tmp_path / "ci"))
    monkeypatch.setattr("venv.create", lambda folder, **_: Path(folder).mkdir(parents=True))
    for name in ("MMAEMU_CI_TORCH", "SOME_INDEX"):
        monkeypatch.delenv(name, raising=False)
    return repository


def run(ready: Any, *jobs: str) -> int:
    return run_ci.main(["--root", str(ready.root), *jobs])


def said(capfd: pytest.CaptureFixture[str]) -> list[str]:
    lines = capfd.readouterr().out.splitlines()
    return [" ".join(line.split()[1:-2]) for line in lines if line.startswith("said")]


def test_the_jobs_asked_for_run_their_own_commands(
    ready: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(ready, "lint", "test") == 0
    assert said(capfd) == ["lint", f"test {RUNNING} 2.7.1"]


def test_torch_versions_come_from_the_variable(
    ready: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MMAEMU_CI_TORCH", "2.6.0 2.7.1")
    assert run(ready, "test") == 0
    assert said(capfd) == [f"test {RUNNING} 2.6.0", f"test {RUNNING} 2.7.1"]
    monkeypatch.setenv("MMAEMU_CI_TORCH", "9.9")
    assert run(ready, "test") == 2


def test_a_failing_step_ends_its_job_and_not_the_others(
    ready: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(ready, "broken", "lint") == 1
    out = capfd.readouterr().out
    assert "said lint" in out
    assert "never" not in out.replace("-- python tools/say.py never", "")
    assert "broken: fail\nlint: pass\n" in out


def test_an_action_without_counterpart_is_no_pass(
    ready: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(ready, "other") == 3
    out = capfd.readouterr().out
    assert "somebody/something@abc: not run" in out
    assert "other: not complete" in out


def test_an_unknown_job_is_an_error_never_an_empty_run(ready: Any) -> None:
    # B38
    assert run(ready, "lint", "lynt") == 2
    assert run(ready, "lint,test") == 2


def test_what_is_not_committed_takes_no_part(ready: Any, capfd: pytest.CaptureFixture[str]) -> None:
    ready.write("tools/say.py", "raise SystemExit(1)\n")
    assert run(ready, "lint") == 0
    assert "changes that are not committed take no part" in capfd.readouterr().out


def test_variables_of_the_repository_come_from_the_environment(
    ready: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SOME_INDEX", "here")
    assert run(ready, "lint") == 0
    assert "said lint here " in capfd.readouterr().out


@pytest.mark.parametrize(
    "expression", ["${{ github.ref }}", "${{ matrix.other }}", "${{ matrix.torch || 'x' }}"]
)
def test_other_expressions_are_refused(expression: str) -> None:
    with pytest.raises(UnusableError):
        run_ci.resolve(expression, {"torch": "2.7.1"})


def test_a_matrix_without_the_running_python_is_an_error() -> None:
    text = CI.replace(f'"{RUNNING}"', '"3.2"')
    with pytest.raises(UnusableError, match="the matrix has"):
        run_ci.points(parse("ci.yml", text), ["test"], ["2.7.1"])


def test_our_own_workflow_can_be_run_here() -> None:
    flow = load(ROOT)["ci.yml"]
    for point in run_ci.points(flow, [], ["2.13.0"]):
        for step in point.job.steps:
            assert not step.uses or step.action in run_ci.HANDLED
            for value in table_of(step.table.get("env")).values():
                assert "${{" not in run_ci.resolve(str(value), point.matrix)

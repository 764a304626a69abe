"""The exit code of a task is the exit code of what it ran."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from files import ROOT

FAILING = """
from invoke.tasks import task
from tasks import run

@task
def broken(context):
    run(context, '-c "raise SystemExit(3)"', '-c "print(1 + 1)"')

@task
def working(context):
    run(context, '-c "print(1 + 1)"')
"""


def invoke(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "invoke", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_failing_command_ends_the_task_with_its_code(tmp_path: Path) -> None:
    source = FAILING.replace("from tasks", "from maintainer")
    (tmp_path / "tasks.py").write_text(source, encoding="utf-8")
    (tmp_path / "maintainer.py").write_text((ROOT / "tasks.py").read_text(encoding="utf-8"))
    broken = invoke(tmp_path, "broken")
    assert broken.returncode == 3
    assert "2" not in broken.stdout.splitlines()
    working = invoke(tmp_path, "working")
    assert (working.returncode, working.stdout.splitlines()[-1]) == (0, "2")


def test_an_unknown_task_is_an_error() -> None:
    assert invoke(ROOT, "no-such-task").returncode == 1
    assert invoke(ROOT, "--list").returncode == 0

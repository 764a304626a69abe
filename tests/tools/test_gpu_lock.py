from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

import gpu_lock
from files import ROOT

TOOL = str(ROOT / "tools" / "gpu_lock.py")
# Says when it starts and ends; two that overlap would write "start start".
TURN = "import sys,time\nlog=open({path!r},'a',buffering=1)\n"
TURN += "print('start',file=log)\ntime.sleep(0.5)\nprint('end',file=log)\n"


@pytest.fixture(autouse=True)
def own_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(gpu_lock, "LOCK", tmp_path / "mmaemu-gpu.lock")
    monkeypatch.delenv("MMAEMU_GPU_LOCK", raising=False)


@pytest.mark.parametrize("code", [0, 1, 3, 42])
def test_the_exit_code_is_the_commands(code: int) -> None:
    assert gpu_lock.main([sys.executable, "-c", f"raise SystemExit({code})"]) == code


def test_two_processes_take_turns(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, TOOL, sys.executable, "-c", TURN.format(path=str(log))]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    assert [process.wait() for process in started] == [0, 0]
    for process in started:
        assert process.stdout is not None
        process.stdout.close()
    assert log.read_text().split() == ["start", "end"] * 2


def test_a_killed_holder_leaves_no_lock(tmp_path: Path) -> None:
    held = "import gpu_lock,os\nwith gpu_lock.locked():\n    os.kill(os.getpid(), 9)\n"
    done = subprocess.run([sys.executable, "-c", held], cwd=ROOT / "tools", check=False)
    assert done.returncode != 0
    assert gpu_lock.main([sys.executable, "-c", "pass"]) == 0
    assert (tmp_path / "mmaemu-gpu.lock").exists()


def test_the_limit_ends_the_command_and_its_children(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    alive = tmp_path / "alive"
    child = f"import time\ntime.sleep(2)\nopen({str(alive)!r},'w')"
    parent = f"import subprocess,sys\nsubprocess.run([sys.executable,'-c',{child!r}])"
    start = time.monotonic()
    assert gpu_lock.main(["--limit", "0.7", sys.executable, "-c", parent]) == 3
    assert time.monotonic() - start < 2
    assert "timed out after 0.7 s" in capfd.readouterr().out
    time.sleep(2)
    assert not alive.exists()


def test_a_lock_command_is_put_before_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = "import subprocess,sys; raise SystemExit(10 + subprocess.call(sys.argv[1:]))"
    monkeypatch.setenv("MMAEMU_GPU_LOCK", f'"{sys.executable}" -c "{wrapper}"')
    assert gpu_lock.main([sys.executable, "-c", "raise SystemExit(4)"]) == 14
    assert not (tmp_path / "mmaemu-gpu.lock").exists(), "one lock, not two"


def test_what_cannot_run_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_lock.main(["/no/such/program"]) == 2
    assert "cannot start /no/such/program" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        gpu_lock.main([])
    for limit in ("0", "-5", "nan"):
        with pytest.raises(SystemExit, match="2"):
            gpu_lock.main(["--limit", limit, "true"])

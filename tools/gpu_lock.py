"""Run one command while no other process of the project uses the GPU, and not for too long.

    python tools/gpu_lock.py [--limit 600] COMMAND [ARGUMENT ...]

The lock is the command of MMAEMU_GPU_LOCK (it gets the command as its arguments, as flock does), or
a file in the temporary folder that holds until the command ends, however it ends. The limit
counts from the start of the command; what waits for the lock of MMAEMU_GPU_LOCK is part of it.
Exit code: the command's, 2 where it cannot be started, 3 where the limit was reached.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from files import ROOT, try_lock
from findings import INCONCLUSIVE, UnusableError, guarded

sys.path.insert(0, str(ROOT))
from mmaemu import _settings

LIMIT: Final = 600
"""Seconds that one test file may use the GPU."""
LOCK: Final = Path(tempfile.gettempdir()) / "mmaemu-gpu.lock"
_POLL: Final = 0.2


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """Hold the lock file; the system lets go of it when the process ends, whatever ends it."""
    with LOCK.open("ab") as stream:
        waited = False
        while True:
            try:
                try_lock(stream)
                break
            except OSError:
                if not waited:
                    print(f"gpu_lock: waiting for {LOCK}", flush=True)
                waited = True
                time.sleep(_POLL)
        yield


@contextlib.contextmanager
def held() -> Iterator[tuple[str, ...]]:
    """Hold the lock; yields what a command has to be put behind, nothing where it holds already."""
    prefix = _settings.text("GPU_LOCK")
    if prefix:
        yield tuple(shlex.split(prefix))
    else:
        with locked():
            yield ()


def run(command: Sequence[str], limit: float) -> int:
    """Run a command in a process group of its own and end the group at the limit.

    Args:
        command: program and arguments.
        limit: seconds.

    Returns:
        The command's exit code, 3 where the limit was reached.

    Raises:
        UnusableError: the command cannot be started.
    """
    try:
        process = subprocess.Popen(command, start_new_session=True)
    except OSError as error:
        raise UnusableError(f"cannot start {command[0]}: {error}") from error
    try:
        return process.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        print(f"gpu_lock: timed out after {limit:g} s: {shlex.join(command)}", flush=True)
        return INCONCLUSIVE
    finally:
        end(process)


def end(process: subprocess.Popen[Any]) -> None:
    """Kill what is left of the command and of its children."""
    if sys.platform == "win32":
        process.kill()
    else:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_locked(command: Sequence[str], limit: float = LIMIT) -> int:
    """Take the GPU, run a command, give the GPU back; see the module docstring."""
    with held() as prefix:
        return run([*prefix, *command], limit)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="gpu_lock", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds, 600 if left out")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to run")
    arguments = parser.parse_args(argv)
    if not arguments.limit > 0:
        parser.error(f"expected --limit SECONDS above 0, got {arguments.limit:g}")
    if not arguments.command:
        parser.error("expected a command, got none")
    return guarded(parser.prog, lambda: run_locked(arguments.command, arguments.limit))


if __name__ == "__main__":
    raise SystemExit(main())

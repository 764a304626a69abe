"""A process that has a tool imported and forks a copy for each command line: many at once, quickly.

with Forks("golden") as forks:
    codes = forks.together([["verify"], ["verify"]])

Each copy is a process of its own that SIGKILL ends like any other.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from files import ROOT

if TYPE_CHECKING:
    from typing_extensions import Self


class Forks:
    """The process; started by `with`.

    Args:
        tool: name of the tool's module.
    """

    def __init__(self, tool: str) -> None:
        self._command = [sys.executable, __file__, tool]

    def __enter__(self) -> Self:
        paths = os.pathsep.join([str(ROOT / "tools"), str(Path(__file__).parent)])
        self._process = subprocess.Popen(
            self._command,
            env=os.environ | {"PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()

    def together(
        self, lines: Sequence[Sequence[str]], env: Mapping[str, str] | None = None
    ) -> list[int]:
        """Run command lines at the same time; their exit codes, negative for a signal."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        job = {"lines": [list(line) for line in lines], "env": dict(env or {})}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        codes: list[int] = json.loads(self._process.stdout.readline())
        return codes


def _fork(tool: Any, arguments: Sequence[str], env: Mapping[str, str]) -> int:
    """Start a copy; its process number."""
    number = os.fork()
    if number:
        return number
    code = 70
    try:
        os.environ.update(env)
        sys.stdin.close()
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        code = tool.main(arguments)
    finally:
        os._exit(code)


def main() -> None:
    """Serve: a job a line, its exit codes a line."""
    tool = importlib.import_module(sys.argv[1])
    for line in sys.stdin:
        job = json.loads(line)
        numbers = [_fork(tool, arguments, job["env"]) for arguments in job["lines"]]
        codes = [os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) for number in numbers]
        sys.stdout.write(json.dumps(codes) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

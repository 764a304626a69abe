"""Run the demo and keep what the documentation shows of it.

    python tools/log_demo.py [--dry-run]

Writes docs/images/demo.png, and demo.json (its report), demo.txt (its text) and run.json (commit,
environment, command) to docs/validation_logs/<date>/demo/. Exit 0 written, 1 the demo failed,
2 could not run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from files import ROOT, to_json, write_bytes
from findings import FAIL, PASS, guarded
from tier import LOGS, commit_facts, environment

SCHEMA: Final = "mmaemu.demo-run/1"
PICTURE: Final = ROOT / "docs" / "images" / "demo.png"


def demo(*options: str) -> tuple[int, str]:
    """Exit code and standard output of `mmaemu demo`."""
    done = subprocess.run(
        [sys.executable, "-m", "mmaemu", "demo", *options],
        cwd=ROOT,
        check=False,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    return done.returncode, done.stdout


def contents(picture: Path) -> dict[Path, bytes]:
    """What belongs into each file; empty if the demo failed.

    Args:
        picture: where the demo may write its picture.
    """
    now = datetime.now(timezone.utc)
    folder = LOGS / now.date().isoformat() / "demo"
    code, report = demo("--json", "--no-picture")
    text_code, text = demo("--output", str(picture))
    if (code, text_code) != (PASS, PASS):
        return {}
    run: dict[str, Any] = {
        "schema": SCHEMA,
        "command": "python -m mmaemu demo",
        "finished_at": now.isoformat(timespec="seconds"),
        "environment": environment(),
        **commit_facts(),
    }
    return {
        folder / "demo.json": to_json(json.loads(report)).encode(),
        folder / "demo.txt": text.replace(str(picture), PICTURE.name).encode(),
        folder / "run.json": to_json(run).encode(),
        PICTURE: picture.read_bytes(),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="log_demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry-run", action="store_true", help="write nothing, list the files")
    arguments = parser.parse_args(argv)

    def action() -> int:
        with tempfile.TemporaryDirectory() as folder:
            files = contents(Path(folder) / PICTURE.name)
        for path, data in files.items():
            if not arguments.dry_run:
                write_bytes(path, data)
            print(f"{path.relative_to(ROOT)}: {len(data)} bytes")
        return PASS if files else FAIL

    return guarded(parser.prog, action)


if __name__ == "__main__":
    raise SystemExit(main())

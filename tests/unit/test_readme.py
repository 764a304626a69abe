"""What the README shows runs as it stands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_example_runs_and_the_gpus_differ(tmp_path: Path) -> None:
    text = README.read_text(encoding="utf-8")
    example = text.split("<!-- example -->\n```python\n")[1].split("```\n<!-- end -->")[0]
    # Another folder, so that the installed package is used as a reader would.
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", example],
        cwd=tmp_path,
        env={"PYTHONPATH": str(README.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    counts, split = done.stdout.splitlines()
    differing, of, total, *_ = counts.split()
    assert (of, total) == ("of", str(64 * 256))
    assert 0 < int(differing) < int(total)
    assert split.startswith("SplitDecision(")

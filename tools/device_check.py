"""Everything that only a GPU can show, in one run of under six minutes, resumable.

    python tools/device_check.py                          needs a GPU, torch and this checkout
    python tools/device_check.py --dry --out build/dry    the same steps, rehearsed without a GPU

Every CUDA kernel against the reference from its fatbin and from NVRTC, with self-tests and gates;
live torch._scaled_mm where this GPU is a profile's own; recordings of what is open about the matrix
instructions and about cuBLASLt; speed. Needs no network, and holds the GPU lock (gpu_lock.py). A
step that is done is not run again unless its commit changed. Results are packed into archives of at
most 15 MB. A rehearsal uses the CPU and simulated tensor cores and is evidence of nothing. Exit
codes: 0 everything ran and passed, 1 something failed, 2 could not run, 3 something was not run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import gpu_lock
from files import ROOT, write_json
from findings import FAIL, INCONCLUSIVE, PASS, UnusableError, guarded

SCHEMA: Final = "mmaemu.device-check/1"
LIMIT_SECONDS: Final = 350
ARCHIVE_BYTES: Final = 15_000_000
ARCHIVES: Final = 6
TIMED_OUT: Final = 124
WORDS: Final = {PASS: "pass", FAIL: "fail", 2: "could not run", INCONCLUSIVE: "not complete"}


@dataclass(frozen=True, slots=True)
class Step:
    """One command.

    Attributes:
        name: of its log and result.
        command: arguments of Python; {out} is the folder of results.
        dry: the same for a rehearsal; () = cannot be rehearsed.
        faults: forced failures, so that another rung of the loader is taken.
    """

    name: str
    command: tuple[str, ...]
    dry: tuple[str, ...]
    faults: str = ""


def _kernels(name: str, device: str) -> tuple[str, ...]:
    tool = ("tools/installed_checks.py", "--kernels-only", "--package", str(ROOT))
    return (*tool, "--device", device, "--checks", f"{{out}}/{name}.json")


STEPS: Final = (
    Step("info", ("-m", "mmaemu", "info"), ("-m", "mmaemu", "info")),
    Step("t3-fatbin", _kernels("t3-fatbin", "cuda"), _kernels("t3-fatbin", "cpu")),
    Step(
        "t3-nvrtc",
        _kernels("t3-nvrtc", "cuda"),
        _kernels("t3-nvrtc", "cpu"),
        faults="cuda-fatbin-manifest",
    ),
    Step(
        "selftest",
        ("-m", "mmaemu", "selftest", "--force", "--device", "cuda"),
        ("-m", "mmaemu", "selftest", "--force", "--device", "cpu"),
    ),
    Step("t3p", ("tools/record/compare_live.py",), ("tools/record/compare_live.py", "--dry")),
    Step(
        "record-steps",
        ("tools/record/record_steps.py", "--out", "{out}/recordings"),
        ("tools/record/record_steps.py", "--out", "{out}/recordings", "--dry", "hopper"),
    ),
    Step(
        "record-gemms",
        ("tools/record/record_gemms.py", "--out", "{out}/recordings"),
        ("tools/record/record_gemms.py", "--out", "{out}/recordings", "--dry"),
    ),
    Step("t6", ("bench/run.py", "--device", "cuda", "--rounds", "5", "--out", "{out}"), ()),
)


def commit() -> str:
    """The checkout's commit; "unknown" where there is no git."""
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def is_done(path: Path, head: str) -> bool:
    """Whether a step has a result of this commit that is final."""
    if not path.exists():
        return False
    result = json.loads(path.read_text(encoding="utf-8"))
    return result["commit"] == head and result["code"] in (PASS, FAIL, INCONCLUSIVE)


def run_step(
    step: Step, out: Path, head: str, *, dry: bool, seconds: float, behind: Sequence[str] = ()
) -> dict[str, Any]:
    """Run one step, keep its output beside its result, and return the result.

    Args:
        step: what to run.
        out: folder of results.
        head: the commit.
        dry: whether to rehearse.
        seconds: what is left of the time.
        behind: a command that the step's is put behind.
    """
    command = step.dry if dry else step.command
    started = time.monotonic()
    if not command:
        code, text = INCONCLUSIVE, "cannot be rehearsed without a GPU\n"
    else:
        environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "MMAEMU_ALLOW_GATED_KERNELS": "1",
            "MMAEMU_TEST_FAULT": step.faults,
            "MMAEMU_CACHE_DIR": str(out / "cache"),
        }
        words = [*behind, sys.executable, *(word.format(out=out) for word in command)]
        try:
            done = subprocess.run(
                words,
                cwd=ROOT,
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
                timeout=max(1.0, seconds),
            )
            code, text = done.returncode, done.stdout
        except subprocess.TimeoutExpired as error:
            output = error.stdout or b""
            text = output.decode(errors="replace") if isinstance(output, bytes) else output
            code = TIMED_OUT
    (out / f"{step.name}.log").write_text(text.replace(str(ROOT), "."), encoding="utf-8")
    result = {
        "schema": SCHEMA,
        "step": step.name,
        "commit": head,
        "rehearsal": dry,
        "code": code,
        "seconds": round(time.monotonic() - started, 1),
    }
    write_json(out / f"{step.name}-result.json", result)
    return result


def failed_checks(path: Path) -> int:
    """Number of checks in a document of installed_checks.py that did not pass or be absent."""
    if not path.exists():
        return 0
    checks = json.loads(path.read_text(encoding="utf-8"))["checks"]
    return sum(entry["status"] not in ("pass", "absent") for entry in checks.values())


def pack(out: Path) -> list[Path]:
    """Pack logs and results into one archive, every folder of recordings into one of its own.

    Raises:
        UnusableError: an archive is larger than allowed, or there are too many.
    """
    groups: dict[str, list[Path]] = {
        "logs": sorted(path for path in out.iterdir() if path.suffix in (".log", ".json", ".png"))
    }
    recordings = out / "recordings"
    if recordings.is_dir():
        groups |= {folder.name: sorted(folder.iterdir()) for folder in sorted(recordings.iterdir())}
    made = []
    for name, members in groups.items():
        path = out / f"device-check-{name}.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            for member in members:
                archive.add(member, arcname=f"{name}/{member.name}", recursive=False)
        if path.stat().st_size > ARCHIVE_BYTES:
            raise UnusableError(f"{path} has {path.stat().st_size} bytes, over {ARCHIVE_BYTES}")
        made.append(path)
    if len(made) > ARCHIVES:
        raise UnusableError(f"{len(made)} archives, at most {ARCHIVES} are allowed")
    return made


def run(arguments: argparse.Namespace, behind: Sequence[str] = ()) -> int:
    """Run every step that is not done, its command behind another one, and pack the results."""
    out: Path = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    head, started = commit(), time.monotonic()
    codes: dict[str, int] = {}
    for step in STEPS:
        path = out / f"{step.name}-result.json"
        if arguments.again or not is_done(path, head):
            left = arguments.limit - (time.monotonic() - started)
            if left <= 0:
                codes[step.name] = INCONCLUSIVE
                print(f"device_check: {step.name}: no time left; run again to go on")
                continue
            run_step(step, out, head, dry=arguments.dry, seconds=left, behind=behind)
        result = json.loads(path.read_text(encoding="utf-8"))
        code = FAIL if failed_checks(out / f"{step.name}.json") else result["code"]
        codes[step.name] = code
        word = WORDS.get(code, f"exited with {code}")
        print(f"device_check: {step.name}: {word}, {result['seconds']} s", flush=True)
    for archive in pack(out):
        print(f"device_check: {archive.name}: {archive.stat().st_size} bytes")
    if any(code not in (PASS, INCONCLUSIVE) for code in codes.values()):
        return FAIL
    return INCONCLUSIVE if INCONCLUSIVE in codes.values() else PASS


def run_locked(arguments: argparse.Namespace) -> int:
    """Do it while no other process of the project uses the GPU."""
    with contextlib.nullcontext(()) if arguments.dry else gpu_lock.held() as behind:
        return run(arguments, behind)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="device_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "device_check")
    parser.add_argument("--dry", action="store_true", help="rehearse without a GPU")
    parser.add_argument("--again", action="store_true", help="run also what is done")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds in all")
    arguments = parser.parse_args(argv)
    return guarded(parser.prog, lambda: run_locked(arguments))


if __name__ == "__main__":
    raise SystemExit(main())

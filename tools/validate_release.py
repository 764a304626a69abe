"""Validate one built wheel in a clean environment (tier T7) and write its report.

    python tools/validate_release.py dist/mmaemu-X.Y.Z-py3-none-any.whl
    python tools/validate_release.py DOWNLOAD/mmaemu-X.Y.Z-py3-none-any.whl --out DIR/t7.json

In a fresh virtual environment outside the tree, without compiler and CUDA_HOME: info, the forced
self-test, every kernel against the reference, the recorded Evo 2 projections and the wgmma vectors
of MMAEMU_TRUTH_DIR; on a GPU under the GPU lock, each command for 600 s at most. The report,
docs/release_logs/<version>_<device>.json, is never replaced by another. Exit 0: every check passed;
1: one failed; 3: none failed, but some were not run, as the device's without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any, Final

import gpu_lock
from files import ROOT, sha256_of, sha256_of_file, to_json, write_json
from findings import FAIL, INCONCLUSIVE, PASS, UnusableError, guarded
from project import add_waivers

SCHEMA: Final = "mmaemu.release-validation/1"
LOGS: Final = ROOT / "docs" / "release_logs"
LIMIT_SECONDS: Final = 600
DEPENDENCIES: Final = ("numpy", "torch")
NAME: Final = re.compile(r"(?P<name>[^-]+)-(?P<version>[^-]+)-py3-none-any\.whl")
NO_GPU: Final = "torch sees no CUDA device"
DEVICE: Final = "device"
"""The check that stands for all of a device's where there is none."""


@dataclass(frozen=True)
class Wheel:
    """The wheel under validation.

    Attributes:
        path: the file.
        name: distribution and package name.
        version: its version.
        sha256: of the file.
        fatbins: names of the CUDA binaries in it.
    """

    path: Path
    name: str
    version: str
    sha256: str
    fatbins: tuple[str, ...]


@dataclass(frozen=True)
class Clean:
    """A fresh environment with the wheel installed."""

    folder: Path
    environ: dict[str, str]

    @property
    def python(self) -> str:
        """Its interpreter."""
        names = ("Scripts", "python.exe") if sys.platform == "win32" else ("bin", "python")
        return str(self.folder.joinpath("environment", *names))

    def run(self, *command: str) -> tuple[int, str]:
        """Run a command outside the tree; exit code and output, 124 where it took too long."""
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            return 124, f"not finished after {LIMIT_SECONDS} s"
        finally:
            gpu_lock.end(process)
        return process.returncode, self.neutral(output)

    def neutral(self, text: str) -> str:
        """A text without the folder's own path, since reports are read elsewhere."""
        return text.replace(str(self.folder), ".")

    def run_on(self, device: str, *command: str) -> tuple[int, str]:
        """As `run`; on a GPU while nothing else of the project uses it."""
        if device == "cpu":
            return self.run(*command)
        with gpu_lock.held() as prefix:
            return self.run(*prefix, *command)


def read_wheel(path: Path) -> Wheel:
    """What the wheel's name and members say.

    Raises:
        UnusableError: it is no wheel of this project's form.
    """
    match = NAME.fullmatch(path.name)
    if match is None or not path.is_file():
        raise UnusableError(f"{path}: expected a file NAME-X.Y.Z-py3-none-any.whl; build one first")
    try:
        with zipfile.ZipFile(path) as archive:
            names = [PurePosixPath(name) for name in archive.namelist()]
    except (OSError, zipfile.BadZipFile) as error:
        raise UnusableError(f"{path}: no readable wheel ({error}); build it again") from error
    fatbins = tuple(sorted(name.name for name in names if name.suffix == ".fatbin"))
    return Wheel(path.resolve(), match["name"], match["version"], sha256_of_file(path), fatbins)


def clean_environ(base: dict[str, str]) -> dict[str, str]:
    """The caller's variables without those that could lend the wheel something.

    Neither the project's own, nor Python's, nor CUDA's; and no folder with nvcc on PATH.
    """
    kept = {
        name: value
        for name, value in base.items()
        if not name.startswith(("MMAEMU_", "PYTHON", "CUDA_HOME", "CUDA_PATH", "NVCC"))
    }
    folders = [
        folder
        for folder in base.get("PATH", "").split(os.pathsep)
        if not any(Path(folder, name).exists() for name in ("nvcc", "nvcc.exe"))
    ]
    return {**kept, "PATH": os.pathsep.join(folders)}


def install(wheel: Wheel, folder: Path) -> Clean:
    """Create the environment: the torch and numpy that run here, then the wheel alone.

    Raises:
        UnusableError: an installation failed.
    """
    clean = Clean(folder, clean_environ(dict(os.environ)))
    venv.create(folder / "environment", with_pip=True)
    index = os.environ.get("MMAEMU_TORCH_INDEX_URL")
    pins = [f"{name}=={metadata.version(name).partition('+')[0]}" for name in DEPENDENCIES]
    pip = (clean.python, "-m", "pip", "--disable-pip-version-check")
    steps = (
        (*pip, "install", "--quiet", *pins, *(["--extra-index-url", index] if index else [])),
        (*pip, "install", "--quiet", "--no-deps", str(wheel.path)),
        (*pip, "check"),
    )
    for step in steps:
        code, output = clean.run(*step)
        if code:
            raise UnusableError(
                f"{shlex.join(step[1:])} ended with {code}:\n{output[-2000:]}\n"
                "the environment could not be made, so nothing was validated"
            )
    return clean


def command_check(clean: Clean, device: str, *arguments: str) -> dict[str, Any]:
    """A check that passes where `python -m mmaemu ...` exits with 0."""
    code, output = clean.run_on(device, clean.python, "-m", "mmaemu", *arguments)
    if code:
        return {"status": "fail", "reason": f"exited with {code}: {output[-500:].strip()}"}
    return {"status": "pass", "reason": f"mmaemu {' '.join(arguments)} exited with 0"}


def installed_checks(clean: Clean, device: str, truth: Path | None) -> dict[str, Any]:
    """The document of installed_checks.py on a device."""
    out = clean.folder / f"{device}.json"
    command = [clean.python, str(ROOT / "tools" / "installed_checks.py"), "--device", device]
    command += ["--checks", str(out), *(["--truth", str(truth)] if truth else [])]
    code, output = clean.run_on(device, *command)
    if code or not out.exists():
        reason = f"exited with {code}: {output[-1000:].strip()}"
        return {"checks": {"installed_checks": {"status": "fail", "reason": reason}}}
    document: dict[str, Any] = json.loads(clean.neutral(out.read_text(encoding="utf-8")))
    return document


def has_gpu(clean: Clean) -> bool:
    """Whether torch of the environment sees a CUDA device."""
    code, output = clean.run(clean.python, "-c", "import torch; print(torch.cuda.is_available())")
    return code == PASS and output.split()[-1:] == ["True"]


def fatbin_check(wheel: Wheel, *, allow_missing: bool) -> dict[str, Any]:
    """Whether the wheel holds CUDA binaries; a wheel without them passes no release."""
    if wheel.fatbins:
        return {"status": "pass", "reason": f"holds {', '.join(wheel.fatbins)}"}
    if allow_missing:
        return {"status": "not-run", "reason": "the wheel has no fatbins, which was allowed"}
    return {"status": "fail", "reason": "the wheel has no fatbins; build it from the frozen tree"}


def version_check(wheel: Wheel, installed: str | None) -> dict[str, Any]:
    """Whether what was installed is of the version in the file's name."""
    status = "pass" if installed == wheel.version else "fail"
    return {"status": status, "reason": f"{wheel.path.name} installs {installed}"}


def part_of(device: str, document: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    """The checks of one device, named after it; what is absent is listed beside them."""
    entries = {**extra, **document["checks"]}
    named = {f"{device}: {name}": entry for name, entry in entries.items()}
    return {
        "checks": {key: entry for key, entry in named.items() if entry["status"] != "absent"},
        "absent": {
            key: entry["reason"] for key, entry in named.items() if entry["status"] == "absent"
        },
    }


def validate(wheel: Wheel, truth: Path | None, *, allow_missing: bool) -> dict[str, Any]:
    """Install the wheel, run every check, and return the report.

    Raises:
        UnusableError: the environment could not be made.
    """
    with tempfile.TemporaryDirectory(prefix="validate-") as name:
        clean = install(wheel, Path(name))
        gpu = has_gpu(clean)
        parts, documents = [], {}
        for device in ("cpu", "cuda") if gpu else ("cpu",):
            print(f"validate_release: checks on {device}", flush=True)
            selftest = ("selftest", "--force", "--device", device)
            extra = {"selftest": command_check(clean, device, *selftest)}
            documents[device] = installed_checks(clean, device, truth)
            if device == "cpu":
                extra["info"] = command_check(clean, device, "info")
                extra["version"] = version_check(wheel, documents[device].get("version"))
            parts.append(part_of(device, documents[device], extra))
        checks = {"fatbins": fatbin_check(wheel, allow_missing=allow_missing)}
        absent: dict[str, str] = {}
        for part in parts:
            checks |= part["checks"]
            absent |= part["absent"]
        if not gpu:
            checks[DEVICE] = {"status": "not-run", "reason": NO_GPU}
        shown = documents["cuda" if gpu else "cpu"]
    return {
        "schema": SCHEMA,
        "version": wheel.version,
        "wheel": wheel.path.name,
        "wheel_sha256": wheel.sha256,
        "device": shown.get("device", "cuda" if gpu else "cpu"),
        "torch": shown.get("torch", ""),
        "python": sys.version.split()[0],
        "finished_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "checks": checks,
        "absent": absent,
    }


def finished(report: Mapping[str, Any], acknowledged: str) -> dict[str, Any]:
    """A report with what its checks amount to, and its seal.

    Args:
        report: the report so far.
        acknowledged: why the device's checks were not run, "" where nobody said.
    """
    states = [entry["status"] for entry in report["checks"].values()]
    open_checks = (entry for entry in report["checks"].values() if entry["status"] != "pass")
    body = {
        **report,
        "counts": {
            "tests": len(states),
            "passed": states.count("pass"),
            "failures": states.count("fail"),
            "errors": 0,
            "skipped": states.count("not-run"),
        },
        "reason": "; ".join(dict.fromkeys(str(entry["reason"]) for entry in open_checks)),
    }
    if acknowledged and report["checks"].get(DEVICE, {}).get("status") == "not-run":
        body["acknowledged"] = acknowledged
    return {**body, "seal": seal(body)}


def seal(report: Mapping[str, Any]) -> str:
    """The sha256 of a report without its seal."""
    kept = {key: value for key, value in report.items() if key != "seal"}
    return sha256_of(to_json({"schema": "", **kept}).encode())


def problems(report: Mapping[str, Any], version: str, reason: str) -> Iterator[str]:
    """Why a committed report does not validate a release.

    Args:
        report: the report.
        version: of the release.
        reason: why the device's checks were not run, "" where nothing is to be accepted.
    """
    if report.get("version") != version:
        yield f"the report is of {report.get('version')}, not of {version}"
    if report.get("seal") != seal(report):
        yield "the report is not as the validation wrote it; validate the wheel again"
    for check, entry in (report.get("checks") or {"(none)": {"status": "missing"}}).items():
        status = entry.get("status")
        if check == DEVICE and status == "not-run" and reason:
            if report.get("acknowledged") != reason:
                yield f"acknowledges {report.get('acknowledged')!r}, expected {reason!r}"
        elif status != "pass":
            yield f"check {check} is {status!r}, expected 'pass'"


def exit_code(report: Mapping[str, Any]) -> int:
    """1 where a check failed, 3 where one was not run, else 0."""
    states = {entry["status"] for entry in report["checks"].values()}
    if "fail" in states:
        return FAIL
    return PASS if states == {"pass"} else INCONCLUSIVE


def default_path(report: dict[str, Any]) -> Path:
    """docs/release_logs/<version>_<device>.json."""
    slug = re.sub(r"[^a-z0-9]+", "-", str(report["device"]).lower()).strip("-")
    return LOGS / f"{report['version']}_{slug}.json"


def save(report: dict[str, Any], path: Path) -> None:
    """Write a report; one that is already in docs/release_logs stays as it is.

    Raises:
        UnusableError: there is another report of this version and device.
    """
    if path.exists() and path.resolve().is_relative_to(LOGS.resolve()):
        raise UnusableError(f"{path} exists and is never replaced; give --out for a further report")
    write_json(path, report)


def show(report: dict[str, Any]) -> None:
    """Print the checks, one a line."""
    for name, entry in report["checks"].items():
        print(f"{entry['status']:8} {name}: {entry['reason']}")
    for name, reason in report["absent"].items():
        print(f"absent   {name}: {reason}")


def _action(arguments: argparse.Namespace) -> int:
    wheel = read_wheel(arguments.wheel)
    if arguments.out is None and list(LOGS.glob(f"{wheel.version}_*.json")):
        print(f"validate_release: {LOGS.name} has reports of {wheel.version}; they stay")
    given = arguments.truth or os.environ.get("MMAEMU_TRUTH_DIR")
    truth = Path(given).resolve() if given else None
    if truth is not None and not truth.is_dir():
        raise UnusableError(f"{truth} is no folder; correct --truth or MMAEMU_TRUTH_DIR")
    waivers = {tier.lower(): reason for tier, reason in arguments.device_not_run}
    checked = validate(wheel, truth, allow_missing=arguments.allow_missing_fatbins)
    report = finished(checked, waivers.get("t7", ""))
    path = arguments.out or default_path(report)
    save(report, path)
    if arguments.copy:
        write_json(arguments.copy, report)
    if arguments.json:
        print(to_json(report), end="")
        return exit_code(report)
    show(report)
    word = {PASS: "pass", FAIL: "fail", INCONCLUSIVE: "not complete"}[exit_code(report)]
    print(f"validate_release: {wheel.path.name} {wheel.sha256[:12]}: {word}; report in {path}")
    return exit_code(report)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="validate_release",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("wheel", type=Path, help="the wheel")
    parser.add_argument("--truth", type=Path, help="recordings; MMAEMU_TRUTH_DIR if left out")
    parser.add_argument("--out", type=Path, help="write the report here, outside the release logs")
    parser.add_argument("--copy", type=Path, help="write the report here as well")
    parser.add_argument(
        "--allow-missing-fatbins",
        action="store_true",
        help="go on without CUDA binaries; the report then says so and is no pass",
    )
    parser.add_argument("--json", action="store_true", help="print the report, no table")
    add_waivers(parser)
    arguments = parser.parse_args(argv)
    return guarded(parser.prog, lambda: _action(arguments))


if __name__ == "__main__":
    raise SystemExit(main())

"""The project in tests/fixtures/two_wheels as a real repository, and small stand-in wheels.

repository = two_wheels.materialise(tmp_path / "fixture")
wheels = two_wheels.build(repository.root, tmp_path / "out", ".dev20261130080000")
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from repositories import Repository

SOURCE = Path(__file__).resolve().parent.parent / "fixtures" / "two_wheels"
BASE = "0.4.0"
FLAVOURS = ("jax", "torch")
ABIS = ("2.11.0", "2.12.0")
PAIRED = "0.1.1.dev20261120080000"


def materialise(root: Path, *, origin: Path | None = None) -> Repository:
    """Copy the project into a new repository with one commit on main.

    Args:
        root: the folder to create.
        origin: where to create a bare repository that main is pushed to; none where None.
    """
    shutil.copytree(SOURCE, root, ignore=shutil.ignore_patterns("__pycache__"))
    repository = Repository(root)
    repository.git("init", "--quiet", "--initial-branch", "main")
    repository.commit("first")
    if origin is not None:
        repository.git("init", "--quiet", "--bare", "--initial-branch", "main", str(origin))
        repository.git("remote", "add", "origin", str(origin))
        repository.git("push", "--quiet", "--set-upstream", "origin", "main")
    return repository


def build(
    root: Path, out: Path, extras: str = "", flavours: Sequence[str] = FLAVOURS, **env: str
) -> list[Path]:
    """Build wheels of the project as a user would, and return them in the order of the flavours."""
    found = []
    for flavour in flavours:
        command = [sys.executable, "ci/build_wheel.py", flavour, "--outdir", str(out)]
        surroundings = os.environ | {"WHEEL_VERSION_EXTRAS": extras} | env
        subprocess.run(command, cwd=root, env=surroundings, check=True)
        found += sorted(out.glob(f"fixture_sync_{flavour}-{BASE}{extras}-*.whl"))
    return found


def stand_in(
    folder: Path,
    name: str,
    version: str,
    requires: Sequence[str] = (),
    files: Mapping[str, bytes] | None = None,
) -> Path:
    """Write a small wheel, for example of torch or jax, that pip and uv install.

    Args:
        folder: where to write it.
        name: distribution name.
        version: its version.
        requires: requirements.
        files: its modules by name; one module named like the distribution where None.
    """
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    required = "".join(f"Requires-Dist: {each}\n" for each in requires)
    module = {f"{name.replace('-', '_')}.py": f'__version__ = "{version}"\n'.encode()}
    contents = {
        **(module if files is None else files),
        f"{info}/METADATA": (
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{required}"
            "Description-Content-Type: text/plain\n\nA stand-in.\n".encode()
        ),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = "".join(f"{key},{_digest(data)},{len(data)}\n" for key, data in contents.items())
    contents[f"{info}/RECORD"] = f"{rows}{info}/RECORD,,\n".encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for key, data in contents.items():
            archive.writestr(zipfile.ZipInfo(key), data)
    return path


def _digest(data: bytes) -> str:
    text = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
    return f"sha256={text.rstrip('=')}"

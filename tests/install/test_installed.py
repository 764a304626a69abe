"""Wheel and sdist, built from this tree, installed in clean environments outside it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest

from files import ROOT

# Installed once: every environment below sees these and the one distribution under test.
DEPENDENCIES = ("numpy", "torch")
CONFORMANCE = """\
import torch
from mmaemu import explain, scaled_mm
from mmaemu.model import dot

codes = torch.arange(256, dtype=torch.uint8)
finite = codes[(codes & 0x7F) != 0x7F].view(torch.float8_e4m3fn)
a = finite[torch.arange(48 * 64) % 254].reshape(48, 64)
b = finite[torch.arange(32 * 64) * 7 % 254].reshape(32, 64)
one = torch.ones((), dtype=torch.float32)
for profile, preset in (("hopper-ws0", "hopper"), ("ada-ws0", "ada")):
    options = {"out_dtype": torch.float32, "use_fast_accum": True, "profile": profile}
    call = (a, b.t(), one, one)
    assert explain(*call, **options).validation == "ok"
    got = scaled_mm(*call, **options)
    rows = a[:, None].expand(48, 32, 64).contiguous()
    columns = b[None].expand(48, 32, 64).contiguous()
    want = dot(rows, columns, preset=preset)
    assert torch.equal(got.view(torch.int32), want.view(torch.int32)), profile
print("conformance passed")
"""


def python(folder: Path) -> str:
    return str(folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python"))


def run(*command: str, cwd: Path) -> str:
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MMAEMU_", "PYTHON", "CUDA_"))
    }
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    # A copy, so that an edit meanwhile does not make the tree another one than was built.
    out, copy = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("tree") / "mmaemu"
    listing = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in filter(lambda name: (ROOT / name).is_file(), listing.split("\0")):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name)
    tool = str(ROOT / "tools" / "dist.py")
    run(sys.executable, tool, "--dirty", "--root", str(copy), "--out", str(out), cwd=out)
    return {"wheel": next(out.glob("*.whl")), "sdist": next(out.glob("*.tar.gz"))}


@pytest.fixture(scope="session")
def dependencies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the declared dependencies in the versions that run here."""
    folder = tmp_path_factory.mktemp("dependencies")
    pins = [f"{name}=={metadata.version(name).partition('+')[0]}" for name in DEPENDENCIES]
    index = os.environ.get("MMAEMU_TORCH_INDEX_URL")
    run(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), *pins),
        *(["--extra-index-url", index] if index else []),
        cwd=folder,
    )
    return folder


@pytest.fixture(scope="session", params=["wheel", "sdist"])
def environment(
    request: pytest.FixtureRequest,
    distributions: dict[str, Path],
    dependencies: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A fresh environment, outside the tree, with one distribution and its dependencies."""
    folder = tmp_path_factory.mktemp(request.param) / "environment"
    venv.create(folder)
    site = run(
        python(folder), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder
    )
    (Path(site.strip()) / "dependencies.pth").write_text(f"{dependencies}\n", encoding="utf-8")
    target = str(distributions[request.param])
    # Every dependency has to be met by what is there: pip would otherwise fetch it unnoticed.
    pip = (sys.executable, "-m", "pip", "--python", python(folder))
    run(*pip, "install", "--quiet", "--no-deps", target, cwd=folder)
    run(*pip, "check", cwd=folder)
    return folder


def test_the_package_comes_from_the_installation(environment: Path) -> None:
    where = run(python(environment), "-c", "import mmaemu; print(mmaemu.__file__)", cwd=environment)
    assert str(ROOT) not in where
    assert where.startswith(str(environment))
    version = run(
        python(environment), "-c", "import mmaemu; print(mmaemu.__version__)", cwd=environment
    )
    assert f'"{version.strip()}"' in (ROOT / "mmaemu/_version.py").read_text(encoding="utf-8")


def test_info(environment: Path) -> None:
    document = json.loads(
        run(python(environment), "-m", "mmaemu", "info", "--json", cwd=environment)
    )
    assert document["exit_code"] == 0
    script = environment / ("Scripts/mmaemu.exe" if sys.platform == "win32" else "bin/mmaemu")
    assert run(str(script), "info", cwd=environment)


def test_self_test(environment: Path) -> None:
    run(python(environment), "-m", "mmaemu", "selftest", "--force", cwd=environment)


def test_conformance_subset(environment: Path) -> None:
    out = run(python(environment), "-c", CONFORMANCE, cwd=environment)
    assert out.splitlines()[-1] == "conformance passed"


@pytest.mark.parametrize("environment", ["wheel"], indirect=True)
def test_the_release_validation_passes_on_the_host(environment: Path) -> None:
    out = environment / "checks.json"
    tool = str(ROOT / "tools" / "installed_checks.py")
    truth = os.environ.get("MMAEMU_TRUTH_DIR")
    recordings = ("--truth", truth) if truth else ()
    run(python(environment), tool, "--checks", str(out), *recordings, cwd=environment)
    checks = json.loads(out.read_text(encoding="utf-8"))["checks"]
    for name in ("evo2", "wgmma"):
        # Both sets of recordings are larger than what a wheel carries.
        assert checks[name]["status"] == ("pass" if truth else "not-run"), name
    kernels = {key: entry["status"] for key, entry in checks.items() if key.startswith("kernel ")}
    assert kernels["kernel cpu:scalar"] == "pass"
    assert set(kernels.values()) <= {"pass", "absent"}


@pytest.mark.parametrize("environment", ["sdist"], indirect=True)
def test_the_release_validation_fails_without_libraries(environment: Path) -> None:
    """The sdist carries sources: what is built of it alone is no release."""
    out = environment / "checks.json"
    tool = str(ROOT / "tools" / "installed_checks.py")
    run(python(environment), tool, "--checks", str(out), "--kernels-only", cwd=environment)
    checks = json.loads(out.read_text(encoding="utf-8"))["checks"]
    assert checks["kernel cpu:scalar"]["status"] == "fail"
    assert "not part of this installation" in checks["kernel cpu:scalar"]["reason"]

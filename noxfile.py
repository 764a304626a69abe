"""Sessions: the test tiers, the Python x torch matrix, lint, docs. What they do lives in tools/.

`nox -s t0 t1` runs once with the running Python and the torch of MMAEMU_TORCH (default: the entry
of [tool.mmaemu.matrix]). `nox -s t0_matrix t1_matrix` runs all points; -p 3.11 chooses among them,
and -t torch-2.6.0 (both tiers) or -t t1-torch-2.6.0 (one) takes the place of -s. All sessions
but the matrix share the environment of `env`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2025.10.14"
nox.options.sessions = ["t0", "t1", "lint"]
nox.options.error_on_missing_interpreters = True
nox.options.download_python = "never"

PROJECT = nox.project.load_toml("pyproject.toml")
MATRIX = PROJECT["tool"]["mmaemu"]["matrix"]
TORCH = os.environ.get("MMAEMU_TORCH") or MATRIX["torch"][MATRIX["default"]]
INDEX = os.environ.get("MMAEMU_TORCH_INDEX_URL")
TESTING = nox.project.dependency_groups(PROJECT, "test", "build", "release", "kernels", "channels")
LINTING = nox.project.dependency_groups(PROJECT, "lint")
SHARED = Path(".nox", "env", "Scripts" if sys.platform == "win32" else "bin", "python")


def points(tier: str) -> list[nox.param]:
    """The torch versions of the matrix, each with a tag of its own and one of its tier."""
    return [
        nox.param(
            version, id=f"torch-{version}", tags=[f"torch-{version}", f"{tier}-torch-{version}"]
        )
        for version in MATRIX["torch"].values()
    ]


def install(session: nox.Session, torch: str) -> None:
    """Install one torch, then this checkout and what its sessions need."""
    session.install(f"torch=={torch}", *(["--index-url", INDEX] if INDEX else []))
    session.install("-e", ".", *TESTING)


@nox.session(reuse_venv=True, default=False)
def env(session: nox.Session) -> None:
    """Create or update the environment that the sessions below share."""
    install(session, TORCH)


def tier(session: nox.Session) -> None:
    """Run one tier; `-- --require-device` makes a device part that was not run an error."""
    session.run(str(SHARED), "tools/tier.py", session.name, *session.posargs, external=True)


# t0 imports, public surface, policy, tools; t1 unit, property, conformance, recordings; t2 every
# recording of MMAEMU_TRUTH_DIR; t3 CUDA kernels, their sources on the CPU included; t3p live
# torch._scaled_mm on a profile's own GPU; t4 mutants; t5 installed artefacts; t6 performance on an
# idle machine; t7 one built wheel (nox -s t7 -- dist/*.whl).
for name in ("t0", "t1", "t2", "t3", "t3p", "t4", "t5", "t6", "t7"):
    nox.session(name=name, venv_backend="none", requires=["env"], default=False)(tier)


@nox.session(venv_backend="none", requires=["env"], default=False)
def kernels(session: nox.Session) -> None:
    """Rebuild the CPU libraries and compare them byte for byte with the committed ones.

    `-- --modules x86_64-linux` limits it to one library.
    """
    for step in ((), ("--compare", "build/cpu"), ("--check",)):
        command = ("tools/build_cpu.py", *step, *session.posargs)
        session.run(str(SHARED), *command, external=True)


def driver(session: nox.Session) -> None:
    """Random requests to the CPU kernels, each compared with the scalar kernel."""
    session.run(str(SHARED), "tools/cpu_driver.py", session.name, *session.posargs, external=True)


# As built; under sanitizers; under qemu, with the conformance table; led by a fuzzer.
for mode in ("soak", "sanitize", "aarch64", "fuzz"):
    nox.session(name=mode, venv_backend="none", requires=["env"], default=False)(driver)


@nox.session(venv_backend="none", requires=["env"], default=False)
def channels(session: nox.Session) -> None:
    """What pip and uv choose from an index, publications as users see them, a second index."""
    report = "--junitxml=build/tiers/channels.xml"
    command = ("-m", "pytest", "-q", "-m", "channels", "-n", "auto", report, "tests/tools")
    session.run(str(SHARED), *command, *session.posargs, external=True)


@nox.session(reuse_venv=True, default=False)
def dist(session: nox.Session) -> None:
    """Wheel and sdist: built twice, compared, checked, with their checksums."""
    session.install(*nox.project.dependency_groups(PROJECT, "build"))
    session.run("python", "tools/dist.py", *session.posargs)


@nox.session(reuse_venv=True, default=False)
def invoke(session: nox.Session) -> None:
    """A task of tasks.py in an environment of the release tools: `-- golden verify`."""
    session.install(*nox.project.dependency_groups(PROJECT, "build", "release"))
    session.run("python", "-m", "invoke", *session.posargs)


@nox.session(reuse_venv=True, default=False)
def fatbin(session: nox.Session) -> None:
    """The frozen binaries in the tree: their manifests, their hashes, their sources."""
    session.install(*nox.project.dependency_groups(PROJECT, "build"))
    session.run("python", "tools/build_fatbin.py", "--check", "--require-manifest")
    session.run("python", "tools/build_cpu.py", "--check")
    session.run("python", "tools/check_dist.py", "--verify-manifest", *session.posargs)


@nox.session(reuse_venv=True, default=False)
def nvrtc(session: nox.Session) -> None:
    """Rebuild the CUDA modules, compare them byte for byte, and test how binaries are settled.

    `-- --modules v4` limits the rebuild.
    """
    session.install(*nox.project.dependency_groups(PROJECT, "nvrtc"))
    session.run("python", "tools/build_fatbin.py", "--release", *session.posargs)
    compare = ("--compare", "build/fatbin-release", *session.posargs)
    session.run("python", "tools/build_fatbin.py", *compare)
    report = "--junitxml=build/tiers/nvrtc.xml"
    session.run("python", "-m", "pytest", "-q", "-n", "auto", report, "tests/nvrtc")


@nox.session(venv_backend="none", requires=["env"])
def lint(session: nox.Session) -> None:
    """Style, types, layers, repository policy, stored data; needs Python 3.11."""
    session.run(str(SHARED), "-m", "pip", "install", "--quiet", *LINTING, external=True)
    session.run(str(SHARED), "-m", "ruff", "check", external=True)
    session.run(str(SHARED), "-m", "ruff", "format", "--check", external=True)
    session.run(str(SHARED), "-m", "mypy", external=True)
    session.run(str(SHARED.with_name("lint-imports")), external=True)
    session.run(str(SHARED), "tools/check_c_format.py", external=True)
    session.run(str(SHARED), "tools/check_repo.py", external=True)
    session.run(str(SHARED), "tools/check_data.py", external=True)
    session.run(str(SHARED), "tools/check_workflows.py", external=True)
    session.run(str(SHARED), "tools/check_docs.py", external=True)


@nox.session(reuse_venv=True, default=False)
def docs(session: nox.Session) -> None:
    """Build the site, every warning an error, and look at each page in headless Chromium."""
    session.install(*nox.project.dependency_groups(PROJECT, "docs"))
    session.run("mkdocs", "build", "--strict")
    session.run("pytest", "--noconftest", "-q", "tests/site", *session.posargs)


@nox.session(python=MATRIX["python"], default=False)
@nox.parametrize("torch", points("t0"))
def t0_matrix(session: nox.Session, torch: str) -> None:
    """t0 at every point of Python x torch."""
    install(session, torch)
    name = f"t0_matrix-{session.python}-torch-{torch}"
    session.run("python", "tools/tier.py", "t0", "--as", name, *session.posargs)


@nox.session(python=MATRIX["python"], default=False)
@nox.parametrize("torch", points("t1"))
def t1_matrix(session: nox.Session, torch: str) -> None:
    """t1 at every point of Python x torch."""
    install(session, torch)
    name = f"t1_matrix-{session.python}-torch-{torch}"
    session.run("python", "tools/tier.py", "t1", "--as", name, *session.posargs)

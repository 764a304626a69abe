from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import dist
from findings import UnusableError, apply_rules
from project import load_project

NAMES = ("SHA256SUMS", "pkgx-0.1.0-py3-none-any.whl", "pkgx-0.1.0.tar.gz")
TOOL = str(Path(dist.__file__))


def make(
    root: Path, out: Path, *arguments: str, cwd: Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, TOOL, "--root", str(root), "--out", str(out), *arguments],
        cwd=cwd or root,
        env=os.environ | env,
        capture_output=True,
        text=True,
        check=False,
    )


def codes(done: subprocess.CompletedProcess[str]) -> set[str]:
    assert done.returncode == 1, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("dist: ")]
    return {code for line in lines for code in re.findall(r": ((?:DIST|FAT|REL)\d+) ", line)}


@pytest.mark.t5
def test_the_same_bytes_under_any_surroundings(repository: Any, tmp_path: Path) -> None:
    plain, odd = tmp_path / "plain", tmp_path / "odd"
    done = make(repository.root, plain, "--version", "0.1.0", "--tag", "v0.1.0")
    assert done.returncode == 0, done.stdout + done.stderr
    before = os.umask(0o077)
    try:
        done = make(
            repository.root,
            odd,
            cwd=tmp_path,
            TZ="Asia/Kathmandu",
            LC_ALL="de_DE.UTF-8",
            SOURCE_DATE_EPOCH="1",
        )
    finally:
        os.umask(before)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name for path in plain.iterdir()) == list(NAMES)
    for name in NAMES:
        assert (plain / name).read_bytes() == (odd / name).read_bytes()
    for line in (plain / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((plain / name).read_bytes()).hexdigest() == digest
    # The tree is as it was: nothing was built into it.
    assert repository.git("status", "--porcelain", "--ignored") == ""


def test_the_tree_is_judged_before_anything_is_built(repository: Any, tmp_path: Path) -> None:
    # B18: neither the version nor the tag may be guessed from the other.
    out = tmp_path / "out"
    for tag in ("v0.1.1", "v0.1.0rc1", "0.1.0", "v0.1.0.dev1"):
        done = make(repository.root, out, "--tag", tag)
        assert codes(done) == {"DIST802"}
        assert f"says 0.1.0, the tag is {tag}, expected v0.1.0" in done.stdout
    assert codes(make(repository.root, out, "--version", "0.1.1")) == {"DIST801"}
    repository.write("scratch.txt", "x")
    assert codes(make(repository.root, out)) == {"DIST803"}
    (repository.root / "scratch.txt").unlink()
    # B15: the stray executable bit that would change the wheel's bytes.
    (repository.root / "pkgx/__init__.py").chmod(0o755)
    repository.commit()
    assert codes(make(repository.root, out)) == {"FAT104"}
    (repository.root / "pkgx/__init__.py").chmod(0o644)
    pyproject = repository.root / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace("hatchling==", "hatchling>="))
    repository.commit()
    assert codes(make(repository.root, out)) == {"DIST804"}
    assert not out.exists()


def _append(project: Any, text: str) -> None:
    path = project.root / "pyproject.toml"
    path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")


@pytest.mark.t5
def test_a_wheel_that_lacks_what_the_sdist_gives_is_found(project: Any, tmp_path: Path) -> None:
    # B03: an ignored file in the sdist only. hatchling ships .gitignore in the sdist, so that both
    # wheels lack it: the tree tells. Without .gitignore in the sdist the two wheels differ.
    project.write("pkgx/ui_x.py", "x = 1\n")
    project.write(".gitignore", "ui_x.py\n")
    _append(project, '\n[tool.hatch.build.targets.sdist]\nartifacts = ["ui_x.py"]\n')
    done = make(project.root, tmp_path / "out")
    assert codes(done) == {"DIST402"}
    built = dist.build_all(load_project(project.root), tmp_path / "scratch")
    assert built.from_sdist is not None
    with zipfile.ZipFile(built.from_sdist, "a") as archive:
        archive.writestr("pkgx/ui_x.py", "x = 1\n")
    found = apply_rules(dist.BUILDS, built).findings
    assert [(finding.code, finding.where) for finding in found] == [
        ("DIST812", f"{NAMES[1]} pkgx/ui_x.py")
    ]


@pytest.mark.t5
def test_an_sdist_without_what_the_build_needs_is_found(project: Any, tmp_path: Path) -> None:
    # B05
    project.write("needed.txt", "x\n")
    project.write(
        "hatch_build.py",
        "from hatchling.builders.hooks.plugin.interface import BuildHookInterface\n\n\n"
        "class Hook(BuildHookInterface):\n"
        "    def initialize(self, version, build_data):\n"
        "        open('needed.txt').close()\n",
    )
    _append(
        project,
        '\n[tool.hatch.build.targets.sdist]\nexclude = ["needed.txt"]\n'
        "\n[tool.hatch.build.targets.wheel.hooks.custom]\n",
    )
    done = make(project.root, tmp_path / "out")
    assert codes(done) == {"DIST812"}
    assert "no wheel can be built from it" in done.stdout
    assert not (tmp_path / "out").exists()


@pytest.mark.t5
def test_twine_is_always_strict(project: Any, tmp_path: Path) -> None:
    # B09: without a long description plain `twine check` warns and passes.
    path = project.root / "pyproject.toml"
    path.write_text(path.read_text(encoding="utf-8").replace('readme = "README.md"\n', ""))
    done = make(project.root, tmp_path / "out")
    assert codes(done) == {"DIST813"}
    built = dist.build_all(load_project(project.root), tmp_path)
    plain = [sys.executable, "-m", "twine", "check", *map(str, built.first)]
    assert subprocess.run(plain, capture_output=True, check=False).returncode == 0


@pytest.mark.t5
def test_a_wheel_that_was_not_validated_is_found(project: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    _append(project, '\n[tool.hatch.build.targets.sdist]\nexclude = ["/docs"]\n')
    assert make(project.root, out).returncode == 0
    report = {"wheel_sha256": hashlib.sha256((out / NAMES[1]).read_bytes()).hexdigest()}
    project.write("docs/release_logs/0.1.0_gpu.json", json.dumps(report))
    assert make(project.root, out).returncode == 0
    project.write("docs/release_logs/0.1.0_gpu.json", json.dumps({"wheel_sha256": "0" * 64}))
    assert codes(make(project.root, out)) == {"DIST814"}


def test_nothing_is_built_while_a_tier_lacks_its_result(repository: Any, tmp_path: Path) -> None:
    path = repository.root / "pyproject.toml"
    text = path.read_text(encoding="utf-8").replace("owner =", 'tiers = ["t3"]\nowner =')
    path.write_text(text, encoding="utf-8")
    repository.tier_result("t3", repository.commit("code"), host="pass", device="not-run")
    repository.commit("records")
    out = tmp_path / "out"
    assert codes(make(repository.root, out, "--tiers")) == {"REL202"}
    waiver = ("--device-not-run", "T3=no GPU here")
    assert codes(make(repository.root, out, "--tiers", *waiver)) == {"REL204"}
    assert not out.exists()


@pytest.mark.t5
def test_broken_rst_is_found(project: Any, tmp_path: Path) -> None:
    # B11
    project.write("README.rst", "pkgx\n====\n\nAn unclosed ``literal.\n")
    path = project.root / "pyproject.toml"
    path.write_text(path.read_text(encoding="utf-8").replace("README.md", "README.rst"))
    assert codes(make(project.root, tmp_path / "out")) == {"DIST813"}


@pytest.mark.t5
def test_two_builds_that_differ_are_found(project: Any, tmp_path: Path) -> None:
    project.write(
        "hatch_build.py",
        "import pathlib\n"
        "from hatchling.builders.hooks.plugin.interface import BuildHookInterface\n\n\n"
        "class Hook(BuildHookInterface):\n"
        "    def initialize(self, version, build_data):\n"
        "        made = pathlib.Path(self.root, 'build', 'where.py')\n"
        "        made.parent.mkdir(exist_ok=True, parents=True)\n"
        "        made.write_text(repr(self.root))\n"
        "        build_data['force_include'][str(made)] = 'pkgx/where.py'\n",
    )
    _append(project, "\n[tool.hatch.build.targets.wheel.hooks.custom]\n")
    assert codes(make(project.root, tmp_path / "out")) == {"DIST403", "DIST811"}


def test_an_old_tool_is_blamed_not_the_distribution(project: Any, tmp_path: Path) -> None:
    # B08: the very distribution is fine; packaging 24.1 does not know License-File.
    old = tmp_path / "old"
    info = old / "packaging-24.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: packaging\nVersion: 24.1\n")
    done = make(project.root, tmp_path / "out", PYTHONPATH=str(old))
    assert done.returncode == 2
    assert "packaging 24.1" in done.stderr
    assert "the tool is at fault, not the distribution" in done.stderr


def test_a_tool_that_is_not_the_pinned_one_is_refused(project: Any, tmp_path: Path) -> None:
    _append(project, '\n[dependency-groups]\nbuild = ["twine==1.0"]\n')
    done = make(project.root, tmp_path / "out")
    assert done.returncode == 2
    assert "pyproject.toml pins 1.0" in done.stderr


@pytest.mark.t5
def test_earlier_files_are_replaced_only_by_good_ones(project: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "pkgx-0.0.9-py3-none-any.whl").write_bytes(b"old")
    assert make(project.root, out, "--tag", "v9").returncode == 1
    assert [path.name for path in out.iterdir()] == ["pkgx-0.0.9-py3-none-any.whl"]
    assert make(project.root, out).returncode == 0
    assert sorted(path.name for path in out.iterdir()) == list(NAMES)


@pytest.mark.parametrize("name", dist.TOOLS)
def test_a_missing_tool_is_named(name: str, monkeypatch: pytest.MonkeyPatch, project: Any) -> None:
    def version(asked: str) -> str:
        if asked == name:
            raise metadata.PackageNotFoundError(asked)
        return "99.0"

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(UnusableError, match=f"{name} is not installed"):
        dist.tool_versions(load_project(project.root))

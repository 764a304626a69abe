"""The project of two wheels: what its wheels are, and that they work where they are installed."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import two_wheels
from binaries import read_binary
from index_server import IndexServer, isolated

STAMPED = ".dev20261201080000"
VERSION = two_wheels.BASE + STAMPED


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wheels")
    built = two_wheels.build(two_wheels.SOURCE, folder, STAMPED)
    return dict(zip(two_wheels.FLAVOURS, built, strict=True))


def members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def python(path: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code that sees a folder of installed packages and nothing else."""
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        f"import sys; sys.path.append(sys.argv[1]); {code}",
    ]
    return subprocess.run([*command, str(path)], capture_output=True, text=True, check=False)


def installed(folder: Path, *wheels: Path) -> Path:
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    return folder


def test_the_jax_wheel_has_its_build_tag_and_pins(wheels: dict[str, Path]) -> None:
    assert wheels["jax"].name == f"fixture_sync_jax-{VERSION}-0112-py3-none-any.whl"
    files = members(wheels["jax"])
    info = f"fixture_sync_jax-{VERSION}.dist-info"
    assert "Build: 0112" in files[f"{info}/WHEEL"].decode().splitlines()
    metadata = files[f"{info}/METADATA"].decode()
    for text in ("jax==0.11.2", "jaxlib==0.11.2", "libtpu==0.0.41"):
        assert f"Requires-Dist: {text}" in metadata
    assert files["fixture_sync_jax/_version.py"].decode() == f'__version__ = "{VERSION}"\n'


def test_the_torch_wheel_has_one_variant_for_each_abi(wheels: dict[str, Path]) -> None:
    files = members(wheels["torch"])
    listed = (two_wheels.SOURCE / "csrc" / "exported_symbols.txt").read_text().split()
    for abi in two_wheels.ABIS:
        name = f"fixture_sync_torch/_C_torch_{abi}.so"
        assert list(read_binary(files[name], name).exported) == listed
    assert sum(name.endswith(".so") for name in files) == len(two_wheels.ABIS)


@pytest.mark.parametrize("abi", two_wheels.ABIS)
@pytest.mark.parametrize("local", ["", "+cpu"])
def test_the_loader_picks_the_variant(
    abi: str, local: str, wheels: dict[str, Path], tmp_path: Path
) -> None:
    torch = two_wheels.stand_in(tmp_path, "torch", abi + local)
    folder = installed(tmp_path / "site", wheels["torch"], wheels["jax"], torch)
    code = (
        "import fixture_sync_torch as t, fixture_sync_jax as j; "
        "print(t.abi(), t.__version__, t.checksum(b'abc' * 99) == j.checksum(b'abc' * 99))"
    )
    done = python(folder, code)
    assert done.stdout.split() == [abi, VERSION, "True"], done.stderr


@pytest.mark.parametrize(
    ("version", "words"),
    [("2.13.0", "torch 2.13.0 is installed, expected one of"), (None, "torch is not installed")],
)
def test_the_loader_refuses(
    version: str | None, words: str, wheels: dict[str, Path], tmp_path: Path
) -> None:
    others = [two_wheels.stand_in(tmp_path, "torch", version)] if version else []
    done = python(
        installed(tmp_path / "site", wheels["torch"], *others), "import fixture_sync_torch"
    )
    assert done.returncode == 1
    assert f"ImportError: {words}" in done.stderr
    assert "2.11.0, 2.12.0" in done.stderr


def test_the_same_bytes_from_another_folder(wheels: dict[str, Path], tmp_path: Path) -> None:
    repository = two_wheels.materialise(tmp_path / "elsewhere")
    again = two_wheels.build(repository.root, tmp_path / "out", STAMPED, TZ="Asia/Kathmandu")
    for path, other in zip(wheels.values(), again, strict=True):
        assert path.name == other.name
        assert path.read_bytes() == other.read_bytes()
    assert repository.git("status", "--porcelain") == ""


def test_fewer_variants_and_no_suffix(tmp_path: Path) -> None:
    (wheel,) = two_wheels.build(
        two_wheels.SOURCE, tmp_path, "", ["torch"], FIXTURE_TORCH_ABIS="2.11.0"
    )
    assert wheel.name.startswith("fixture_sync_torch-0.4.0-py3-none-")
    assert [name for name in members(wheel) if name.endswith(".so")] == [
        "fixture_sync_torch/_C_torch_2.11.0.so"
    ]


def test_a_mistyped_suffix_builds_nothing(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        two_wheels.build(two_wheels.SOURCE, tmp_path / "out", ".dev1", ["jax"])
    assert not (tmp_path / "out").exists()


def test_installing_the_jax_wheel_brings_the_pinned_stack(
    wheels: dict[str, Path], tmp_path: Path
) -> None:
    with IndexServer(tmp_path / "index") as index:
        for name, version in (("jax", "0.11.2"), ("jaxlib", "0.11.2"), ("libtpu", "0.0.41")):
            for each in (version, "9.9"):
                index.put(two_wheels.stand_in(tmp_path, name, each))
        index.put(wheels["jax"], VERSION)
        command = [sys.executable, "-m", "pip", "install", "--pre", "--index-url", index.url]
        options = ["--target", str(tmp_path / "site"), "fixture-sync-jax"]
        subprocess.run([*command, *options], env=isolated(tmp_path), check=True)
    found = {path.name for path in (tmp_path / "site").glob("*.dist-info")}
    assert found == {
        f"fixture_sync_jax-{VERSION}.dist-info",
        "jax-0.11.2.dist-info",
        "jaxlib-0.11.2.dist-info",
        "libtpu-0.0.41.dist-info",
    }

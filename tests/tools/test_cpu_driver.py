"""cpu_driver: what it says without its tools, and that a wrong library fails its table."""

from __future__ import annotations

import argparse
import importlib.util
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cpu_driver
from build_cpu import BIN, SOURCES, Target
from cpu_driver import ZIG, conformance, main
from files import ROOT
from findings import FAIL, PASS, UNUSABLE, UnusableError

WRONG_LIBRARY = ROOT / "tests" / "tools" / "native" / "wrong_library.c"
WRONG = {
    "bit": "cvtt bytes",
    "guard": "something wrote beside",
    "operand": "something wrote to an operand",
    "mode": "test_cpu_kernels.py::test_rounding_and_flushing_of_the_caller",
}
"""The ways of native/wrong_library.c, and what the failure says."""
WRONG_PIECE = ("(1ll << (52 - request->", "(1ll << (51 - request->")
TESTS = "random_bytes or rounding or concurrent or (fused_epilogue and float16)"
needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None, reason="needs the dependency group `kernels`"
)


@pytest.fixture(scope="module")
def target() -> Target:
    """The library that this machine runs without an emulator."""
    if sys.platform != "linux":
        pytest.skip("the agent is a program for Linux")
    return cpu_driver._native()


@pytest.fixture(scope="module")
def agent(target: Target, tmp_path_factory: pytest.TempPathFactory) -> tuple[str]:
    return (str(cpu_driver.build_agent(target, tmp_path_factory.mktemp("agent"))),)


@needs_compiler
@pytest.mark.t5
def test_the_committed_library_passes_in_another_process(
    target: Target, agent: tuple[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert conformance(agent, ROOT / BIN / target.file, tmp_path, TESTS) == PASS
    output = capfd.readouterr().out
    assert f" calls of {target.file}" in output
    assert "\n0 calls" not in output


@pytest.fixture(scope="module")
def wrong(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("wrong") / "wrong.so"
    names = (f'-DRIGHT="{ROOT / BIN / target.file}"', f"-I{ROOT / SOURCES}")
    flags = ("-shared", "-fPIC", "-O1", "-fvisibility=hidden", "-ldl")
    command = (*ZIG, "-target", target.triple, *names, *flags, str(WRONG_LIBRARY), "-o", str(made))
    subprocess.run(command, check=True)
    return made


@needs_compiler
@pytest.mark.t5
def test_a_wrong_library_fails(
    wrong: Path,
    agent: tuple[str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert conformance(agent, wrong, tmp_path, "random_bytes") == PASS
    for way, message in WRONG.items():
        (tmp_path / "socket").unlink()
        monkeypatch.setenv("WRONG", way)
        assert conformance(agent, wrong, tmp_path, "random_bytes or rounding") == FAIL
        assert message in capfd.readouterr().out


@needs_compiler
@pytest.mark.t5
def test_a_library_that_does_not_load(agent: tuple[str], tmp_path: Path) -> None:
    with pytest.raises(UnusableError, match="did not start"):
        conformance(agent, tmp_path / "none.so", tmp_path)


@needs_compiler
@pytest.mark.t5
def test_a_table_without_tests_is_no_pass(
    target: Target, agent: tuple[str], tmp_path: Path
) -> None:
    with pytest.raises(UnusableError, match="pytest ended with 5"):
        conformance(agent, ROOT / BIN / target.file, tmp_path, "no_such_test")


@needs_compiler
@pytest.mark.t5
def test_tests_that_do_not_reach_the_library_are_no_pass(
    target: Target, agent: tuple[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_driver, "TABLE", "tests/tools/test_files.py")
    assert conformance(agent, ROOT / BIN / target.file, tmp_path) == FAIL


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("sanitize", "a clang of version 17 or later or gcc"),
        ("fuzz", "a clang of version 17 or later on"),
        ("aarch64", "qemu-aarch64 (Debian"),
    ],
)
def test_a_missing_program_is_named(
    mode: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([mode]) == UNUSABLE
    assert f"needs {message}" in capsys.readouterr().err


@pytest.mark.parametrize(("code", "found"), [(0, True), (1, False)])
def test_a_clang_that_does_not_know_a_builtin_is_passed_over(
    code: int, found: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, result in (("clang", 1), ("clang-19", code)):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {result}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cpu_driver._clang() == (str(tmp_path / "clang-19") if found else None)


def test_a_missing_c_library_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(shutil, "which", lambda name: name)
    assert main(["aarch64", "--sysroot", str(tmp_path)]) == UNUSABLE
    assert "install libc6-arm64-cross" in capsys.readouterr().err


def test_another_kind_of_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert main(["soak"]) == UNUSABLE


@needs_compiler
@pytest.mark.t5
def test_a_difference_that_the_driver_finds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The driver's own comparison, with a kernel that is wrong in its last bit."""
    root = tmp_path / "root"
    for path in (ROOT / SOURCES).parent.rglob("*.[ch]"):
        copy = root / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    driver = root / cpu_driver.DRIVER
    driver.parent.mkdir(parents=True)
    driver.write_bytes((ROOT / cpu_driver.DRIVER).read_bytes())
    monkeypatch.setattr(cpu_driver, "ROOT", root)
    source = root / SOURCES / "cvtt.c"
    text = source.read_text()
    assert text.count(WRONG_PIECE[0]) == 1
    source.write_text(text.replace(*WRONG_PIECE))
    arguments = argparse.Namespace(seed=1, minutes=0.05)
    assert cpu_driver.soak(arguments, tmp_path) == FAIL
    assert "MISMATCH kernel cvtt" in capfd.readouterr().out

"""The pinned compiler: where it is looked for, what it says, and that its bytes do not move."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import build_fatbin
import fatbin
import nvidia_toolchain
from files import ROOT
from findings import UnusableError
from frozen_checkout import Checkout
from mmaemu.backends.sources import Program
from nvidia_toolchain import Compiler, find_toolkit

Captured = pytest.CaptureFixture[str]
# A kernel that needs more registers than it may have.
SPILLING = Program(
    "spilling.cu",
    b"""
extern "C" __global__ void __launch_bounds__(1024, 2) spilling(float *p, int n) {
    __shared__ float shared[10];
    float v[100];
    for (int i = 0; i < 100; i++) v[i] = p[i * threadIdx.x];
    shared[threadIdx.x % 10] = v[0];
    __syncthreads();
    for (int j = 0; j < n; j++)
        for (int i = 0; i < 100; i++) v[i] = __fmaf_rz(v[i], v[(i + 7) % 100], shared[3]);
    for (int i = 0; i < 100; i++) p[i] = v[i];
}
extern "C" __global__ void plain(float *p) { p[0] = 1; }
""",
    {},
)
ARCHS = ("75", "80", "86", "89", "90", "90a", "100", "120")


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler(find_toolkit(environ={}))


@pytest.fixture
def fake_nvcc(tmp_path: Path) -> Callable[[str], Path]:
    """Make a toolkit whose nvcc states a version and whose libraries are those of the wheels."""

    def make(version: str) -> Path:
        root = tmp_path / f"cuda-{version}"
        (root / "bin").mkdir(parents=True)
        (root / "lib64").mkdir()
        nvcc = root / "bin" / "nvcc"
        nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release 12.8, V{version}'\n")
        nvcc.chmod(0o755)
        wheels = find_toolkit(environ={})
        for library in (wheels.nvrtc, wheels.nvfatbin):
            (root / "lib64" / library.name).symlink_to(library)
        return nvcc

    return make


def test_the_wheels_are_found_without_anything_set() -> None:
    toolkit = find_toolkit(environ={})
    assert toolkit.origin == (
        "the wheels nvidia-cuda-nvrtc-cu12==12.8.61 and nvidia-nvfatbin-cu12==12.8.55"
    )
    assert toolkit.passed_over == ()


def test_the_order_of_the_search(fake_nvcc: Callable[[str], Path]) -> None:
    # B41: a toolkit that is only under $CUDA_HOME is found, another version first on PATH is not.
    right, wrong = fake_nvcc("12.8.61"), fake_nvcc("12.4.99")
    home, path = str(right.parent.parent), str(wrong.parent)
    found = find_toolkit(environ={"CUDA_HOME": home, "PATH": path})
    assert found.origin == f"the toolkit of {right} ($CUDA_HOME)"
    found = find_toolkit(environ={"PATH": str(right.parent)})
    assert found.origin == f"the toolkit of {right} (PATH)"
    assert find_toolkit(environ={"NVCC": str(right), "PATH": path}).origin.endswith("($NVCC)")
    assert find_toolkit(str(right), {"NVCC": str(wrong)}).origin.endswith("(--nvcc)")
    assert Compiler(find_toolkit(str(right), {})).toolkit.nvrtc.parent.parent == Path(home)


def test_another_version_is_passed_over_or_refused(fake_nvcc: Callable[[str], Path]) -> None:
    wrong = fake_nvcc("12.8.93")
    told = f"PATH: expected nvcc V12.8.61, got V12.8.93 from {wrong}"
    found = find_toolkit(environ={"PATH": str(wrong.parent)})
    assert found.origin.startswith("the wheels")
    assert found.passed_over == (told,)
    for nvcc, environ in ((str(wrong), {}), (None, {"NVCC": str(wrong)})):
        with pytest.raises(UnusableError, match=r"expected nvcc V12\.8\.61, got V12\.8\.93"):
            find_toolkit(nvcc, environ)


def test_a_toolkit_without_the_libraries(fake_nvcc: Callable[[str], Path]) -> None:
    nvcc = fake_nvcc("12.8.61")
    shutil.rmtree(nvcc.parent.parent / "lib64")
    with pytest.raises(UnusableError, match=r"expected libnvrtc\.so\.12 and libnvfatbin\.so\.12"):
        find_toolkit(str(nvcc), {})


def test_no_nvcc_where_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableError, match="--nvcc: cannot run"):
        find_toolkit(str(tmp_path / "nvcc"), {})
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexit 3\n")
    silent.chmod(0o755)
    with pytest.raises(UnusableError, match="exit status 3 and no version"):
        find_toolkit(str(silent), {})


def test_another_wheel_than_the_pinned_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: "12.6.77")
    with pytest.raises(UnusableError, match=r"expected nvidia-cuda-nvrtc-cu12 12\.8\.61, got 12"):
        find_toolkit(environ={})


def test_a_library_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    # The library itself is asked: a toolkit may say one version and hold another.
    toolkit = find_toolkit(environ={})
    monkeypatch.setattr(nvidia_toolchain, "VERSION", "12.8.99")
    with pytest.raises(UnusableError, match=r"expected NVRTC V12\.8\.99, got V12\.8\.61"):
        Compiler(toolkit)


def test_what_does_not_compile_is_told_with_the_log(compiler: Compiler) -> None:
    # B42: a source that includes a system header does not compile, and says so.
    program = Program("k.cu", b"#include <cuda_fp16.h>\n", {})
    with pytest.raises(UnusableError, match=r"k\.cu does not compile for sm_89:\n(.|\n)*fp16"):
        compiler.compile(program, "89", ())
    with pytest.raises(UnusableError, match="invalid value for --gpu-architecture"):
        compiler.compile(Program("k.cu", b"", {}), "12", ())
    with pytest.raises(UnusableError, match="nvFatbinAddCubin failed"):
        compiler.pack("k", [("89", b"no cubin")], [])


def test_two_builds_under_other_circumstances_have_the_same_bytes(
    checkout: Checkout, tmp_path: Path
) -> None:
    # B45: another folder, working directory, time, locale, TMPDIR and process.
    command = [sys.executable, str(ROOT / "tools/build_fatbin.py"), "--release"]
    command += ["--root", str(checkout.root), "--out", str(tmp_path / "out")]
    (tmp_path / "scratch").mkdir()
    environ = {
        "TZ": "Pacific/Kiritimati",
        "LC_ALL": "tr_TR.UTF-8",
        "TMPDIR": str(tmp_path / "scratch"),
        "SOURCE_DATE_EPOCH": "1",
        "PATH": os.defpath,
    }
    subprocess.run(
        command,
        cwd=tmp_path,
        env=environ,
        check=True,
        capture_output=True,
    )
    for name in ("tiny.fatbin", "manifest.json"):
        built = (tmp_path / "out" / name).read_bytes()
        assert built == (checkout.root / build_fatbin.BIN / name).read_bytes()


@pytest.mark.parametrize("arch", ARCHS)
def test_the_reader_sees_what_the_compiler_reports(arch: str, compiler: Compiler) -> None:
    image = compiler.compile(SPILLING, arch, ())
    plain, spilling = fatbin.read_cubin(image.cubin, "the cubin")
    assert (plain.name, plain.local, plain.stack) == ("plain", 0, 0)
    assert spilling.local > 0
    assert spilling.stack > 0
    assert image.spills["plain"] == 0
    assert image.spills["spilling"] > 0


def _tool(name: str) -> Path:
    found = shutil.which(name) or _in_wheels(name)
    if found is None:
        pytest.skip(f"{name} is not installed (dependency group `cuda-tools`)")
    return Path(found)


def _in_wheels(name: str) -> str | None:
    toolkit = find_toolkit(environ={})
    folder = toolkit.nvrtc.parent.parent.parent
    for part in ("cu13/bin", "cuda_nvcc/bin"):
        if (folder / part / name).exists():
            return str(folder / part / name)
    return None


@pytest.mark.parametrize("arch", [arch for arch in ARCHS if arch not in {"100", "120"}])
def test_ptxas_makes_the_same_machine_code(arch: str, compiler: Compiler, tmp_path: Path) -> None:
    # From sm_100 on the two differ in a note on how they were called.
    ptxas = _in_wheels("ptxas")
    if ptxas is None:
        pytest.skip("ptxas is not installed (dependency group `cuda-tools`)")
    image = compiler.compile(SPILLING, arch, ())
    (tmp_path / "k.ptx").write_text(image.ptx)
    done = subprocess.run(
        [ptxas, "-v", f"-arch=sm_{arch}", tmp_path / "k.ptx", "-o", tmp_path / "k.cubin"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (tmp_path / "k.cubin").read_bytes() == image.cubin
    amounts = re.findall(r"(\d+) bytes spill (?:stores|loads)", done.stderr)
    assert sum(map(int, amounts)) == sum(image.spills.values()) > 0


def test_cuobjdump_and_nvdisasm_agree_with_the_reader(compiler: Compiler, tmp_path: Path) -> None:
    cuobjdump, nvdisasm = _tool("cuobjdump"), _tool("nvdisasm")
    images = [compiler.compile(SPILLING, arch, ()) for arch in ARCHS]
    file = tmp_path / "k.fatbin"
    file.write_bytes(
        compiler.pack("k", [(i.arch, i.cubin) for i in images], [("75", images[0].ptx)])
    )
    entries = fatbin.read_fatbin(file.read_bytes(), "k.fatbin")

    def ask(*options: str) -> list[str]:
        environ = {"PATH": f"{nvdisasm.parent}:{os.defpath}"}
        done = subprocess.run(
            [cuobjdump, *options, file], env=environ, capture_output=True, text=True, check=True
        )
        return done.stdout.splitlines()

    listed = [line.split()[-1] for line in ask("-lelf", "-lptx")]
    assert listed == [f"k.sm_{arch}.cubin" for arch in ARCHS] + ["k.sm_75.ptx"]
    assert [entry.arch for entry in entries] == [*ARCHS, "75"]

    usage = [line.split() for line in ask("-res-usage") if "REG:" in line]
    kernels = {
        (index // 2, index % 2): dict(word.split(":") for word in line if ":" in word)
        for index, line in enumerate(usage)
    }
    assert len(kernels) == 2 * len(ARCHS)
    for index, entry in enumerate(entries[: len(ARCHS)]):
        said = sorted(
            (
                int(kernels[index, n]["REG"]),
                int(kernels[index, n]["STACK"]),
                int(kernels[index, n]["SHARED"]),
            )
            for n in (0, 1)
        )
        assert said == sorted((k.registers, k.stack, k.shared) for k in entry.kernels)

    # Without nvdisasm on PATH cuobjdump prints nothing and succeeds: count the lines.
    sass = [line for line in ask("-sass") if "/*" in line]
    assert len(sass) > 100 * len(ARCHS)
    local = sum(bool({"LDL", "STL"} & {w.split(".")[0] for w in line.split()}) for line in sass)
    assert local == sum(kernel.local for entry in entries for kernel in entry.kernels)

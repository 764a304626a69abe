"""build_fatbin with the real compiler: what a build leaves, what it refuses, what it replaces."""

from __future__ import annotations

import json
import shutil
import sys

import pytest

import build_cpu
import build_fatbin
from files import ROOT, sha256_of
from frozen import LOGS
from frozen_checkout import CUDA_H, Checkout
from repositories import Repository

Captured = pytest.CaptureFixture[str]
SOURCE = "mmaemu/backends/csrc/cuda/tiny.cu"


def test_what_a_build_leaves(checkout: Checkout, capsys: Captured) -> None:
    out = checkout.root / "build" / "out"
    out.mkdir(exist_ok=True)
    (out / "old.fatbin").write_bytes(b"")
    (out / "notes.txt").write_text("mine")
    before = checkout.frozen()
    assert checkout.fatbin("--release") == 0
    assert checkout.frozen() == before
    names = {"tiny.fatbin", "manifest.json", "build_report.json", "cuobjdump.txt", "notes.txt"}
    assert {path.name for path in out.iterdir()} == names
    assert "tiny.fatbin: same bytes" in capsys.readouterr().out

    data = (out / "tiny.fatbin").read_bytes()
    entry = json.loads((out / "manifest.json").read_text(encoding="utf-8"))["modules"][
        "tiny.fatbin"
    ]
    assert entry == {
        "compiler": "CUDA 12.8.0 compiler V12.8.61 through NVRTC",
        "defines": ["MMAEMU_ENTRY=tiny"],
        "entries": ["tiny"],
        "flags": ["--std=c++17", "-default-device", "--fmad=false"],
        "module": "tiny",
        "ptx": ["75"],
        "registers": {"tiny": entry["registers"]["tiny"]},
        "sass": ["80", "90a"],
        "sha256": sha256_of(data),
        "size": len(data),
        "sources": {
            name: sha256_of((checkout.root / name).read_bytes()) for name in (SOURCE, CUDA_H)
        },
        "spills": {"tiny": {"80": 0, "90a": 0}},
        "validated_on": [],
    }
    report = json.loads((out / "build_report.json").read_text(encoding="utf-8"))
    kernel = report["modules"]["tiny"]["architectures"]["90a"]["tiny"]
    assert kernel["registers"] == entry["registers"]["tiny"]["90a"] > 0
    assert (kernel["spill_bytes"], kernel["stack_bytes"], kernel["local_accesses"]) == (0, 0, 0)
    dump = (out / "cuobjdump.txt").read_text(encoding="utf-8")
    assert dump.startswith("Written by tools/fatbin.py in place of `cuobjdump")
    assert [line.split()[1] for line in dump.splitlines() if line[:3] in {"ELF", "PTX"}] == [
        "sm_80",
        "sm_90a",
        "sm_75",
    ]


def test_nothing_frozen_is_a_failure_where_a_manifest_is_required(
    checkout: Checkout, capsys: Captured
) -> None:
    (checkout.root / build_fatbin.BIN / "manifest.json").unlink()
    assert checkout.fatbin("--check") == 0
    assert checkout.fatbin("--check", "--require-manifest") == 1
    assert "is not in manifest.json; run build_fatbin --replace tiny" in capsys.readouterr().out


def test_a_build_is_compared_byte_for_byte(checkout: Checkout, capsys: Captured) -> None:
    out = checkout.root / "build" / "out"
    assert checkout.fatbin("--release") == 0
    assert checkout.fatbin("--compare", str(out)) == 0
    (out / "tiny.fatbin").write_bytes((out / "tiny.fatbin").read_bytes()[:-1] + b"?")
    assert checkout.fatbin("--compare", str(out)) == 1
    assert "CUDA109 differs from the other build from byte" in capsys.readouterr().out


def test_a_replaced_module_is_logged_and_the_log_is_that_of_its_build(
    checkout: Checkout, capsys: Captured
) -> None:
    checkout.edit(CUDA_H, "STEP 1.0f", "STEP 1.5f")
    assert checkout.fatbin("--replace", "tiny", "--commit-log") == 0
    assert "file and entry replaced" in capsys.readouterr().out
    (log,) = checkout.root.glob(f"{LOGS}/*/tiny-fatbin")
    assert {path.name for path in log.iterdir()} == {
        "manifest.json",
        "build_report.json",
        "cuobjdump.txt",
    }
    frozen = checkout.root / build_fatbin.BIN / "manifest.json"
    assert (log / "manifest.json").read_bytes() == frozen.read_bytes()
    assert checkout.fatbin("--check", "--require-manifest") == 0


def test_a_library_is_logged_and_one_that_breaks_a_rule_is_not_taken(
    checkout: Checkout, capsys: Captured
) -> None:
    checkout.edit("mmaemu/backends/csrc/numerics/value.h", "VALUE 1", "VALUE 2")
    before = checkout.frozen()
    assert checkout.cpu("--release", "--commit-log") == 0
    (log,) = checkout.root.glob("docs/validation_logs/*/x86_64-linux-library/manifest.json")
    assert log.read_bytes() == checkout.frozen()[f"{build_cpu.BIN}/manifest.json"]
    log.unlink()
    checkout.edit(f"{build_cpu.SOURCES}/entry.c", "mmaemu_cpu_run", "mmaemu_cpu_walk")
    changed = checkout.frozen()
    assert changed != before
    assert checkout.cpu("--release", "--commit-log") == 1
    assert "CPU105 does not export mmaemu_cpu_run" in capsys.readouterr().out
    assert checkout.frozen() == changed
    assert not log.exists()


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        (
            "out[threadIdx.x] = ",
            "float v[80];\n for (int i = 0; i < 80; i++) v[i] = out[i];\n __syncthreads();\n"
            " for (int i = 0; i < 80; i++) out[i] = v[79 - i];\n out[threadIdx.x] = ",
            "CUDA105",
        ),
        ("out[threadIdx.x] = ", "out[1] = __expf(out[2]);\n out[threadIdx.x] = ", "CUDA107"),
        (
            "out[threadIdx.x] = ",
            "float v[8] = {};\n v[(int)out[8] & 7] = 1;\n out[threadIdx.x] = v[(int)out[9] & 7] + ",
            "CUDA107",
        ),
        (
            "MMAEMU_ENTRY(float",
            'extra(float *out) { out[0] = 1; }\nextern "C" __global__ void MMAEMU_ENTRY(float',
            "CUDA105",
        ),
    ],
)
def test_a_kernel_that_breaks_a_rule_is_not_taken(
    old: str, new: str, code: str, checkout: Checkout, capsys: Captured
) -> None:
    checkout.edit(SOURCE, old, new)
    before = checkout.frozen()
    assert checkout.fatbin("--replace", "tiny", "--commit-log") == 1
    assert code in capsys.readouterr().out
    assert checkout.frozen() == before
    assert not (checkout.root / LOGS).exists()


def t3_ran(checkout: Checkout, gpu: str, status: str) -> None:
    """Commit a result of T3 from a machine with this GPU."""
    repository = Repository(checkout.root)
    repository.tier_result("t3", checkout.git("rev-parse", "HEAD"), host="pass", device=status)
    place = checkout.root / "docs/validation_logs/2026-11-30/t3"
    document = json.loads((place / "t3.json").read_text(encoding="utf-8"))
    shutil.rmtree(place)
    del document["log_sha256"]
    document["environment"] = {"gpu": gpu}
    repository.seal_result(f"docs/validation_logs/2026-11-30/{gpu}/{gpu}.json", document)
    checkout.git("add", "docs")
    checkout.git("commit", "--quiet", "-m", "T3")


def test_a_device_is_noted_for_the_fatbin_that_ran_there(
    checkout: Checkout, capsys: Captured
) -> None:
    manifest = checkout.root / build_fatbin.BIN / "manifest.json"

    def noted() -> list[str]:
        entries = json.loads(manifest.read_text(encoding="utf-8"))["modules"]
        devices: list[str] = entries["tiny.fatbin"]["validated_on"]
        return devices

    t3_ran(checkout, "GPU A", "pass")
    t3_ran(checkout, "GPU B", "pass")
    t3_ran(checkout, "GPU C", "not-run")
    for device in ("GPU B", "GPU A", "GPU B"):
        assert checkout.fatbin("--validated", device, "--modules", "tiny") == 0
    assert noted() == ["GPU A", "GPU B"]
    assert checkout.freeze("--modules", "tiny") == 0
    assert checkout.fatbin("--validated", "GPU C") == 2
    assert "name the modules" in capsys.readouterr().err
    for device in ("GPU C", "GPU D"):
        assert checkout.fatbin("--validated", device, "--modules", "tiny") == 3
        assert f"T3 passed on {device}" in capsys.readouterr().err
    checkout.edit(CUDA_H, "STEP 1.0f", "STEP 1.5f")
    assert checkout.fatbin("--validated", "GPU A", "--modules", "tiny") == 1
    assert noted() == ["GPU A", "GPU B"]
    assert checkout.fatbin("--replace", "tiny") == 0
    assert noted() == []


def test_a_source_that_does_not_compile(checkout: Checkout, capsys: Captured) -> None:
    checkout.edit(SOURCE, "STEP", "NO_SUCH_NAME")
    assert checkout.fatbin("--replace", "tiny") == 2
    message = capsys.readouterr().err
    assert f"{SOURCE} does not compile for sm_" in message
    assert "NO_SUCH_NAME" in message


def test_checking_needs_no_compiler(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def no_compiler(*_: object) -> None:
        raise AssertionError("the compiler was asked for")

    monkeypatch.setattr(build_fatbin, "find_toolkit", no_compiler)
    assert checkout.fatbin("--check") == 0
    assert "torch" not in sys.modules
    capsys.readouterr()


def test_the_projects_own_modules_have_the_committed_bytes() -> None:
    specs = build_fatbin.load_specs(ROOT)
    compiler = build_fatbin.open_compiler(None, lambda _: None)
    for built in build_fatbin.build_all(ROOT, specs, ["probes"], compiler):
        committed = ROOT / build_fatbin.BIN / built.spec.fatbin
        assert built.data == committed.read_bytes()

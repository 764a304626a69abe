"""Every way in which a frozen binary can stand to its rebuild, by real builds of both kinds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import build_cpu
import build_fatbin
import freeze
import settlement
from files import ROOT
from frozen import LOGS
from frozen_checkout import LINUX, Binary, Checkout

Captured = pytest.CaptureFixture[str]


def states(checkout: Checkout) -> dict[str, str]:
    """The states in the freeze log that was written last."""
    (log,) = checkout.root.glob(f"{LOGS}/*/rc-fatbin/freeze.json")
    document = json.loads(log.read_text(encoding="utf-8"))
    return {each["module"]: each["state"] for each in document["binaries"]}


def settled_by(binary: Binary, option: str, capsys: Captured) -> None:
    """Whether an option settles a binary, and leaves every other file as it was."""
    before = binary.checkout.frozen()
    assert binary.freeze(*([option] if option == "--settle" else [option, binary.module])) == 0
    assert binary.freeze() == 0
    assert binary.check("--check", "--modules", binary.module) == 0
    capsys.readouterr()
    after = binary.checkout.frozen()
    mine = {f"{binary.folder}/{binary.name}", f"{binary.folder}/manifest.json"}
    assert {name for name in {*before, *after} if before.get(name) != after.get(name)} <= mine


def test_nothing_changed(checkout: Checkout, capsys: Captured) -> None:
    before = checkout.frozen()
    assert checkout.freeze("--commit-log") == 0
    assert states(checkout) == {"tiny": "unchanged", "x86_64-linux": "unchanged"}
    assert checkout.frozen() == before
    beside = checkout.root / "build" / "fatbin-release"
    for name in ("freeze.json", "settlement.txt"):
        (log,) = checkout.root.glob(f"{LOGS}/*/rc-fatbin/{name}")
        assert (beside / name).read_bytes() == log.read_bytes()
    assert "CUDA 12.8.0 compiler V12.8.61 through NVRTC" in capsys.readouterr().out


def test_a_comment_changed(binary: Binary, capsys: Captured) -> None:
    data = binary.path.read_bytes()
    binary.checkout.edit(binary.header, binary.value[0], f"{binary.value[0]} // as it was")
    assert binary.check("--check", "--modules", binary.module) == 1
    assert binary.codes["sources"] in capsys.readouterr().out
    assert binary.freeze("--replace", binary.module) == 2
    assert binary.freeze("--commit-log") == 1
    assert states(binary.checkout) == {binary.module: "sources changed"}
    assert f"same bytes, other {binary.header}; --settle" in capsys.readouterr().out.replace(
        ");", ";"
    )
    settled_by(binary, "--settle", capsys)
    assert binary.path.read_bytes() == data
    assert binary.entry["validated_on"] == ["a device"]


def test_a_kernel_changed(binary: Binary, capsys: Captured) -> None:
    data = binary.path.read_bytes()
    binary.checkout.edit(binary.header, *binary.value)
    assert binary.freeze("--settle", "--commit-log") == 1
    assert states(binary.checkout) == {binary.module: "different"}
    assert binary.path.read_bytes() == data
    settled_by(binary, "--replace", capsys)
    assert binary.path.read_bytes() != data
    assert binary.entry.get("validated_on", []) == []


@pytest.mark.parametrize(
    ("change", "state", "told"),
    [
        (("SCALE 3.0f", "SCALE 3.5f"), "PTX differs", "SASS equal: 80 90a, PTX differs: 75"),
        (
            ("SCALE 2.0f", "SCALE 2.5f"),
            "different",
            "SASS equal: 80, SASS differs: 90a, PTX equal: 75",
        ),
        (
            ("SCALE 4.0f", "SCALE 4.5f"),
            "different",
            "SASS differs: 80, SASS equal: 90a, PTX equal: 75",
        ),
    ],
)
def test_what_differs_is_told_by_architecture(
    change: tuple[str, str], state: str, told: str, checkout: Checkout, capsys: Captured
) -> None:
    checkout.edit("mmaemu/backends/csrc/numerics/tiny.h", *change)
    assert checkout.freeze("--modules", "tiny", "--commit-log") == 1
    assert states(checkout) == {"tiny": state}
    assert told in capsys.readouterr().out
    assert checkout.freeze("--modules", "tiny", "--replace", "tiny") == 0


def test_another_compiler_version_with_the_same_bytes(binary: Binary, capsys: Captured) -> None:
    binary.write_entry({**binary.entry, "compiler": "another compiler 1.0"})
    assert binary.check("--check", "--modules", binary.module) == 1
    assert binary.freeze("--commit-log") == 1
    assert states(binary.checkout) == {binary.module: "sources changed"}
    assert "same bytes, other compiler" in capsys.readouterr().out
    settled_by(binary, "--settle", capsys)


# Builds with a compiler that is not the pinned one: where its wheel was unpacked, its version, and
# what build_fatbin or build_cpu is called with.
WITH_ANOTHER_COMPILER = """
import sys
from dataclasses import replace
from pathlib import Path

import build_cpu, build_fatbin, nvidia_toolchain
from frozen_checkout import LINUX

folder, version, tool, *arguments = sys.argv[1:]
PINNED = nvidia_toolchain.find_toolkit()
nvidia_toolchain.VERSION = build_cpu.ZIG = version
build_fatbin.COMPILER = f"another compiler V{version}"
build_fatbin.find_toolkit = lambda _: replace(
    PINNED, nvrtc=Path(folder, "nvidia/cuda_nvrtc/lib/libnvrtc.so.12")
)
build_cpu.TARGETS, build_cpu.ISAS = (LINUX,), {LINUX.architecture: {}}
build_cpu.ONCE = {"entry": ()}
raise SystemExit({"cuda": build_fatbin, "cpu": build_cpu}[tool].main(arguments))
"""


def unpacked(requirement: str) -> Path:
    """A wheel, unpacked where no Python finds it by itself; kept for the next time."""
    folder = ROOT / "build" / "environments" / requirement
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=make_folder(folder.parent)) as scratch:
            options = ("--quiet", "--no-deps", "--target", f"{scratch}/made", requirement)
            subprocess.run([sys.executable, "-m", "pip", "install", *options], check=True)
            Path(scratch, "made").rename(folder)
    return folder


def make_folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def test_another_compiler_version_with_other_bytes(binary: Binary, capsys: Captured) -> None:
    fatbin = binary.name.endswith(".fatbin")
    version = "12.9.86" if fatbin else "0.16.0"
    wheel = unpacked(f"nvidia-cuda-nvrtc-cu12=={version}" if fatbin else f"ziglang=={version}")
    folder = binary.checkout.root / "build" / "another"
    where = ["--root", str(binary.checkout.root)]
    made = ["--release", "--out", str(folder)] if fatbin else ["--out", str(folder)]
    command = [sys.executable, "-c", WITH_ANOTHER_COMPILER, str(wheel), version]
    path = [str(ROOT / "tools"), str(ROOT / "tests" / "tools"), *([] if fatbin else [str(wheel)])]
    subprocess.run(
        [*command, "cuda" if fatbin else "cpu", *where, *made],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        check=True,
    )
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    data = (folder / binary.name).read_bytes()
    assert data != binary.path.read_bytes()
    binary.path.write_bytes(data)
    binary.write_entry({**manifest["modules"][binary.name], "validated_on": ["a device"]})

    assert binary.check("--check", "--modules", binary.module) == 1
    assert binary.codes["compiler"] in capsys.readouterr().out
    assert binary.freeze("--settle", "--commit-log") == 1
    assert states(binary.checkout)[binary.module] in {"different", "PTX differs"}
    settled_by(binary, "--replace", capsys)
    assert binary.entry.get("validated_on", []) == []
    assert version not in binary.entry["compiler"]


@pytest.mark.parametrize("at", [-1, 0x30])
def test_a_file_edited_by_one_byte(at: int, binary: Binary, capsys: Captured) -> None:
    data = bytearray(binary.path.read_bytes())
    data[at] ^= 1
    binary.path.write_bytes(data)
    assert binary.check("--check", "--modules", binary.module) in {1, 2}
    capsys.readouterr()
    assert binary.freeze("--settle", "--commit-log") == 1
    assert states(binary.checkout) == {binary.module: "file edited"}
    settled_by(binary, "--replace", capsys)


@pytest.mark.parametrize("key", ["sha256", "size", "signature"])
def test_a_manifest_that_was_edited(key: str, binary: Binary, capsys: Captured) -> None:
    binary.write_entry({**binary.entry, key: "edited"})
    assert binary.freeze("--settle", "--commit-log") == 1
    assert states(binary.checkout) == {binary.module: "entry edited"}
    assert f"same bytes, other {key}" in capsys.readouterr().out
    settled_by(binary, "--replace", capsys)


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "another/1", "modules": {}}'])
def test_a_manifest_that_is_none(text: str, binary: Binary, capsys: Captured) -> None:
    manifest = binary.path.with_name("manifest.json")
    manifest.write_text(text, encoding="utf-8")
    assert binary.freeze("--settle", "--replace", binary.module) == 2
    assert "expected" in capsys.readouterr().err
    assert manifest.read_text(encoding="utf-8") == text


def test_a_missing_file(binary: Binary, capsys: Captured) -> None:
    data = binary.path.read_bytes()
    binary.path.unlink()
    assert binary.check("--check", "--modules", binary.module) == 1
    assert binary.codes["file"] in capsys.readouterr().out
    assert binary.freeze("--settle", "--commit-log") == 1
    assert states(binary.checkout) == {binary.module: "file missing"}
    settled_by(binary, "--replace", capsys)
    assert binary.path.read_bytes() == data


def test_a_missing_entry(binary: Binary, capsys: Captured) -> None:
    binary.write_entry(None)
    assert binary.freeze("--settle", "--commit-log") == 1
    assert states(binary.checkout) == {binary.module: "entry missing"}
    settled_by(binary, "--replace", capsys)


def test_an_extra_file(binary: Binary, capsys: Captured) -> None:
    extra = binary.path.with_name(f"other{binary.path.suffix}")
    extra.write_bytes(b"?")
    assert binary.checkout.freeze("--settle", "--commit-log") == 1
    assert states(binary.checkout)[extra.name] == "of no module"
    assert binary.checkout.freeze("--replace", extra.name) == 2
    assert binary.checkout.freeze("--remove", extra.name, "--dry-run") == 1
    assert extra.exists()
    assert binary.checkout.freeze("--remove", extra.name) == 0
    assert not extra.exists()
    assert binary.checkout.freeze() == 0
    capsys.readouterr()


def test_a_file_that_git_ignores(binary: Binary, capsys: Captured) -> None:
    (binary.checkout.root / ".gitignore").write_text(f"build/\n*{binary.path.suffix}\n")
    assert binary.check("--check", "--modules", binary.module) == 1
    assert binary.codes["git"] in capsys.readouterr().out
    assert binary.freeze("--settle", "--replace", binary.module) == 1
    assert "ignored by git; change .gitignore" in capsys.readouterr().out


def test_a_manifest_that_git_ignores(checkout: Checkout, capsys: Captured) -> None:
    (checkout.root / ".gitignore").write_text("build/\nmanifest.json\n")
    assert checkout.freeze() == 1
    assert capsys.readouterr().out.count("manifest.json: FRZ102 ignored by git") == 2


def test_a_checkout_with_other_line_ends(binary: Binary, capsys: Captured) -> None:
    header = binary.checkout.root / binary.header
    binary.checkout.git("config", "core.autocrlf", "true")
    header.unlink()
    binary.checkout.git("checkout", "--", binary.header)
    assert b"\r\n" in header.read_bytes()
    assert binary.check("--check", "--modules", binary.module) == 1
    out = capsys.readouterr().out
    assert f"{binary.codes['sources']} has other line endings" in out
    assert "source changed" not in out
    assert binary.freeze("--settle", "--commit-log") == 1
    assert states(binary.checkout) == {binary.module: "line endings"}
    header.write_bytes(header.read_bytes().replace(b"\r\n", b"\n"))
    assert binary.freeze() == 0


SECOND_LIBRARY = replace(LINUX, module="second")
SECOND = """
from dataclasses import replace

MODULES = (*MODULES, replace(MODULES[0], name="second", defines=("MMAEMU_ENTRY=second",),
                             entries=("second",)))
"""


def add_module(checkout: Checkout) -> None:
    path = checkout.root / build_fatbin.SPECS
    path.write_text(path.read_text(encoding="utf-8") + SECOND, encoding="utf-8")


def test_a_new_module(checkout: Checkout, capsys: Captured) -> None:
    add_module(checkout)
    before = checkout.frozen()
    assert checkout.freeze("--settle", "--commit-log") == 1
    assert states(checkout) == {
        "tiny": "unchanged",
        "second": "new",
        "x86_64-linux": "unchanged",
    }
    assert checkout.frozen() == before
    assert checkout.freeze("--replace", "second") == 0
    assert checkout.fatbin("--check", "--require-manifest") == 0
    changed = {name for name, data in checkout.frozen().items() if before.get(name) != data}
    assert changed == {
        f"{build_fatbin.BIN}/second.fatbin",
        f"{build_fatbin.BIN}/manifest.json",
    }
    capsys.readouterr()


def test_a_new_library(
    checkout: Checkout, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_cpu, "TARGETS", (LINUX, SECOND_LIBRARY))
    before = checkout.frozen()
    assert checkout.freeze("--settle", "--commit-log") == 1
    assert states(checkout) == {
        "tiny": "unchanged",
        "x86_64-linux": "unchanged",
        "second": "new",
    }
    assert checkout.frozen() == before
    assert checkout.freeze("--replace", "second") == 0
    assert checkout.cpu("--check") == 0
    changed = {name for name, data in checkout.frozen().items() if before.get(name) != data}
    assert changed == {
        f"{build_cpu.BIN}/{SECOND_LIBRARY.file}",
        f"{build_cpu.BIN}/manifest.json",
    }
    capsys.readouterr()


def test_a_library_that_was_removed(
    checkout: Checkout, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(build_cpu, "TARGETS", (LINUX, SECOND_LIBRARY))
        assert checkout.freeze("--replace", "second") == 0
    assert checkout.cpu("--check") == 1
    assert checkout.freeze("--settle", "--commit-log") == 1
    assert states(checkout)[SECOND_LIBRARY.file] == "of no module"
    assert checkout.freeze("--remove", SECOND_LIBRARY.file) == 0
    assert checkout.cpu("--check") == 0
    capsys.readouterr()


def test_a_module_that_was_removed(checkout: Checkout, capsys: Captured) -> None:
    specs = (checkout.root / build_fatbin.SPECS).read_text(encoding="utf-8")
    add_module(checkout)
    assert checkout.freeze("--replace", "second") == 0
    (checkout.root / build_fatbin.SPECS).write_text(specs, encoding="utf-8")
    assert checkout.fatbin("--check") == 1
    assert checkout.freeze("--settle", "--commit-log") == 1
    assert states(checkout)["second.fatbin"] == "of no module"
    assert checkout.freeze("--remove", "second.fatbin") == 0
    assert checkout.fatbin("--check") == 0
    capsys.readouterr()


def test_only_what_is_named_is_replaced(checkout: Checkout, capsys: Captured) -> None:
    add_module(checkout)
    assert checkout.freeze("--replace", "second") == 0
    checkout.edit("mmaemu/backends/csrc/numerics/tiny.h", "STEP 1.0f", "STEP 1.5f")
    before = checkout.frozen()
    assert checkout.freeze("--replace", "second", "--commit-log") == 1
    assert states(checkout)["tiny"] == "different"
    assert states(checkout)["second"] == "unchanged"
    after = checkout.frozen()
    assert after[f"{build_fatbin.BIN}/tiny.fatbin"] == before[f"{build_fatbin.BIN}/tiny.fatbin"]
    manifests = [
        json.loads(each[f"{build_fatbin.BIN}/manifest.json"])["modules"] for each in (before, after)
    ]
    assert manifests[0]["tiny.fatbin"] == manifests[1]["tiny.fatbin"]
    assert manifests[0]["second.fatbin"] != manifests[1]["second.fatbin"]
    capsys.readouterr()


def test_dry_run_writes_neither_binaries_nor_logs(binary: Binary, capsys: Captured) -> None:
    binary.checkout.edit(binary.header, *binary.value)
    before = binary.checkout.frozen()
    assert binary.freeze("--replace", binary.module, "--commit-log", "--dry-run") == 1
    assert f"would replace {binary.folder}/{binary.name}" in capsys.readouterr().out
    assert binary.checkout.frozen() == before
    assert not (binary.checkout.root / "docs").exists()


def test_a_kernel_that_breaks_a_rule_is_never_taken(checkout: Checkout, capsys: Captured) -> None:
    checkout.edit(
        "mmaemu/backends/csrc/cuda/tiny.cu",
        "out[threadIdx.x] =",
        "out[0] = __expf(out[1]);\n out[2] =",
    )
    before = checkout.frozen()
    assert checkout.freeze("--modules", "tiny", "--replace", "tiny") == 1
    assert "CUDA107" in capsys.readouterr().out
    assert checkout.frozen() == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--modules", "v9"], "no module v9; known: tiny, x86_64-linux"),
        (["--modules", ","], "names none"),
        (["--replace", "v9"], "no module v9"),
        (["--remove", "tiny.fatbin"], "no module tiny.fatbin"),
    ],
)
def test_wrong_names(
    options: list[str], message: str, checkout: Checkout, capsys: Captured
) -> None:
    before = checkout.frozen()
    assert checkout.freeze(*options) == 2
    assert message in capsys.readouterr().err
    assert checkout.frozen() == before


def test_another_version_than_the_tree_has(checkout: Checkout, capsys: Captured) -> None:
    (checkout.root / "mmaemu/_version.py").write_text('__version__ = "0.2.0"\n')
    assert checkout.freeze("--modules", "tiny") == 1
    assert "FRZ101 has version 0.2.0, expected 0.1.0" in capsys.readouterr().out


def test_device_tiers_must_have_run_or_be_named(checkout: Checkout, capsys: Captured) -> None:
    assert checkout.freeze("--modules", "tiny", waive=False) == 1
    out = capsys.readouterr().out
    assert freeze.DEVICE_TIERS == ("t3", "t3p", "t4", "t6")
    for tier in freeze.DEVICE_TIERS:
        assert f"\n{tier}: FRZ103 its device part is not-run" in out


def test_the_log_says_what_was_not_run_and_by_which_compilers(checkout: Checkout) -> None:
    assert checkout.freeze("--commit-log") == 0
    (folder,) = checkout.root.glob(f"{LOGS}/*/rc-fatbin")
    document: dict[str, Any] = json.loads((folder / "freeze.json").read_text(encoding="utf-8"))
    assert document["settled"] is True
    assert document["device_not_run"]["t3"] == "no GPU here"
    assert document["commit"] == checkout.git("rev-parse", "HEAD")
    assert [each.split()[0] for each in document["compilers"]] == ["CUDA", "ziglang"]
    assert {each["committed"] for each in document["binaries"]} == {
        each["rebuilt"] for each in document["binaries"]
    }
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "freeze.json",
        "settlement.txt",
        "manifest.json",
        "build_report.json",
        "cuobjdump.txt",
    }


def test_every_state_has_a_remedy() -> None:
    named = {value for value in vars(settlement).values() if isinstance(value, str)}
    assert set(settlement.REMEDIES) <= named
    assert [state for state, remedy in settlement.REMEDIES.items() if not remedy] == ["unchanged"]
    assert set(settlement.REMEDIES) > settlement.REPLACEABLE

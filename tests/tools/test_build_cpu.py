"""build_cpu: its rules on made-up facts, the binary reader, and builds that agree."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import build_cpu
from binaries import BinaryFacts, read_binary
from build_cpu import RULES, TARGETS, CpuFacts, load, main
from files import ROOT
from findings import UnusableError, apply_rules

LINUX = TARGETS[0]
needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None, reason="needs the dependency group `kernels`"
)


@pytest.fixture(scope="module")
def facts() -> CpuFacts:
    return load(ROOT, TARGETS, None)


def codes(facts: CpuFacts) -> list[tuple[str, str]]:
    return [(each.code, each.message) for each in apply_rules(RULES, facts).findings]


def with_entry(facts: CpuFacts, **changes: object) -> CpuFacts:
    entry = {**facts.modules[LINUX.file], **changes}
    return replace(facts, modules={**facts.modules, LINUX.file: entry})


def test_the_committed_libraries_belong_to_the_tree(facts: CpuFacts) -> None:
    assert codes(facts) == []
    assert main(["--check"]) == 0


def test_a_missing_library(facts: CpuFacts) -> None:
    files = {name: data for name, data in facts.files.items() if name != LINUX.file}
    assert [code for code, _ in codes(replace(facts, files=files))] == ["CPU101"]


def test_a_file_that_is_no_library(facts: CpuFacts) -> None:
    found = codes(replace(facts, files={**facts.files, "other.so": b""}))
    assert found == [("CPU101", "is no library or fatbin of this project; remove file and entry")]


def test_a_library_that_git_ignores(facts: CpuFacts) -> None:
    found = codes(replace(facts, ignored=frozenset({LINUX.file})))
    assert [code for code, _ in found] == ["CPU107"]


def test_changed_bytes(facts: CpuFacts) -> None:
    data = facts.files[LINUX.file] + b"\0"
    found = codes(replace(facts, files={**facts.files, LINUX.file: data}))
    assert [code for code, _ in found] == ["CPU102"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data + b"int x;\n", "source changed"),
        (lambda data: data.replace(b"\n", b"\r\n"), "other line endings"),
    ],
)
def test_stale_sources(facts: CpuFacts, change: object, message: str) -> None:
    assert callable(change)
    sources = dict(facts.sources[LINUX.file])
    name = next(iter(sources))
    sources[name] = change(sources[name])
    found = codes(replace(facts, sources={**facts.sources, LINUX.file: sources}))
    assert [code for code, _ in found] == ["CPU103"]
    assert message in found[0][1]


def test_new_and_removed_sources(facts: CpuFacts) -> None:
    sources = dict(facts.sources[LINUX.file])
    sources["new.h"] = sources.pop(next(iter(sources)))
    found = codes(replace(facts, sources={**facts.sources, LINUX.file: sources}))
    assert [code for code, _ in found] == ["CPU103", "CPU103"]


@pytest.mark.parametrize(
    ("key", "value"), [("flags", {}), ("target", "x"), ("compiler", "ziglang 0.1.0 (clang)")]
)
def test_another_recipe(facts: CpuFacts, key: str, value: object) -> None:
    assert [code for code, _ in codes(with_entry(facts, **{key: value}))] == ["CPU104"]


@pytest.mark.parametrize(
    ("key", "value"),
    [("exports", []), ("glibc", "2.31"), ("machine", "arm"), ("needed", ["x"]), ("signature", "x")],
)
def test_a_manifest_that_misstates_a_library(facts: CpuFacts, key: str, value: object) -> None:
    assert [code for code, _ in codes(with_entry(facts, **{key: value}))] == ["CPU105"]


def test_another_build_with_other_bytes(facts: CpuFacts) -> None:
    other = {**facts.files, LINUX.file: facts.files[LINUX.file][:-1] + b"?"}
    assert [code for code, _ in codes(replace(facts, other=other))] == ["CPU106"]
    assert codes(replace(facts, other=dict(facts.files))) == []
    assert [code for code, _ in codes(replace(facts, other={}))] == ["CPU106"] * len(TARGETS)


def test_what_the_libraries_are() -> None:
    kinds = {}
    for target in TARGETS:
        found = read_binary((ROOT / build_cpu.BIN / target.file).read_bytes(), target.file)
        kinds[target.module] = (found.kind, found.machine, found.glibc, found.signature)
        assert set(found.exported) >= build_cpu.EXPORTS
    assert kinds == {
        "x86_64-linux": ("ELF", "x86_64", None, None),
        "aarch64-linux": ("ELF", "aarch64", None, None),
        "x86_64-macos": ("Mach-O", "x86_64", None, None),
        "arm64-macos": ("Mach-O", "arm64", None, "ad-hoc"),
        "x86_64-windows": ("PE", "x86_64", None, None),
    }


@pytest.mark.parametrize("place", [0x600, -0x2000])
def test_a_signed_library_that_was_changed(facts: CpuFacts, place: int) -> None:
    name = next(target.file for target in TARGETS if target.machine == "arm64")
    data = bytearray(facts.files[name])
    data[place] ^= 1
    with pytest.raises(UnusableError, match="not the one that was signed"):
        read_binary(bytes(data), name)


SOUND = BinaryFacts("ELF", "x86_64", tuple(sorted(build_cpu.EXPORTS)), (), ())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, None),
        ({"glibc": "2.17"}, None),
        ({"machine": "aarch64"}, "expected a library for x86_64"),
        ({"exported": ("mmaemu_cpu_run",)}, "does not export mmaemu_cpu_abi"),
        ({"needed": ("libc.so.6",)}, "needs libc.so.6"),
        ({"glibc": "2.18"}, "needs glibc 2.18"),
    ],
)
def test_the_structure_of_a_library(change: dict[str, Any], message: str | None) -> None:
    found = list(build_cpu._structure(LINUX, replace(SOUND, **change)))
    assert [text.partition(";")[0].startswith(str(message)) for text in found] == (
        [True] if message else []
    )


def test_an_unsigned_library_for_arm64_macos() -> None:
    target = next(target for target in TARGETS if target.machine == "arm64")
    system = ("/usr/lib/libSystem.B.dylib",)
    facts = replace(SOUND, kind="Mach-O", machine="arm64", needed=system, signature="ad-hoc")
    assert list(build_cpu._structure(target, facts)) == []
    found = list(build_cpu._structure(target, replace(facts, signature=None)))
    assert ["is not signed" in text for text in found] == [True]


@pytest.mark.parametrize("data", [b"", b"text", b"\x7fELF\x02\x01", b"MZ", b"\xcf\xfa\xed\xfe"])
def test_files_that_are_no_libraries(data: bytes) -> None:
    with pytest.raises(UnusableError, match=r"x\.so"):
        read_binary(data, "x.so")


@pytest.mark.parametrize("argv", [["--modules", "vax"], ["--modules", ","], ["--compare", "none"]])
def test_wrong_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert "build_cpu:" in capsys.readouterr().err


def test_a_damaged_manifest(tmp_path: Path) -> None:
    (tmp_path / build_cpu.MANIFEST).write_text(json.dumps({"schema": "other"}))
    with pytest.raises(UnusableError, match="expected"):
        build_cpu.read_manifest(tmp_path)


def test_dry_run_builds_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path / "out"), "--dry-run"]) == 0
    assert capsys.readouterr().out.count("would build") == len(TARGETS)
    assert not (tmp_path / "out").exists()


@needs_compiler
def test_a_build_in_another_folder_has_the_committed_bytes(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "checkout"
    for name, data in build_cpu.source_files(ROOT, LINUX).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    out = tmp_path / "out"
    arguments = ["--modules", LINUX.module]
    assert main([*arguments, "--root", str(root), "--out", str(out)]) == 0
    assert main([*arguments, "--compare", str(out)]) == 0

"""build_fatbin without a compiler: its rules on made-up facts, its usage, forbidden PTX."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import build_fatbin
import forbidden_ptx
from build_fatbin import RULES, FatbinFacts, facts_in, load_specs, main
from files import ROOT
from findings import UnusableError, apply_rules
from mmaemu.backends.sources import hashes
from nvidia_toolchain import Image

SPECS = load_specs(ROOT)
NAMES = tuple(SPECS.modules)
NAME = "v4.fatbin"
Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def facts() -> FatbinFacts:
    """The frozen fatbins as if they were built from the tree, whether they were or not."""
    found = facts_in(ROOT, SPECS, NAMES)
    modules = {
        name: {**entry, "sources": hashes(found.sources[name])}
        for name, entry in found.modules.items()
    }
    return replace(found, modules=modules)


def codes(facts: FatbinFacts) -> list[tuple[str, str]]:
    return [(each.code, each.message) for each in apply_rules(RULES, facts).findings]


def with_entry(facts: FatbinFacts, **changes: object) -> FatbinFacts:
    entry = {**facts.modules[NAME], **changes}
    return replace(facts, modules={**facts.modules, NAME: entry})


def with_row(facts: FatbinFacts, **changes: Any) -> FatbinFacts:
    modules = {**SPECS.modules, "v4": replace(SPECS.modules["v4"], **changes)}
    return replace(facts, specs=replace(SPECS, modules=modules))


def test_the_frozen_fatbins_belong_to_the_tree() -> None:
    assert main(["--check", "--require-manifest"]) == 0


def test_what_is_missing_or_too_much(facts: FatbinFacts) -> None:
    files = {name: data for name, data in facts.files.items() if name != NAME}
    assert [code for code, _ in codes(replace(facts, files=files))] == ["CUDA101"]
    entries = {name: entry for name, entry in facts.modules.items() if name != NAME}
    assert [code for code, _ in codes(replace(facts, modules=entries))] == ["CUDA101"]
    assert codes(replace(facts, files={**facts.files, "build_report.json": b""})) == [
        ("CUDA101", "is no library or fatbin of this project; remove file and entry")
    ]


def test_other_bytes(facts: FatbinFacts) -> None:
    # The last byte pads the PTX, which the reader takes no notice of.
    data = facts.files[NAME][:-1] + b"\n"
    found = codes(replace(facts, files={**facts.files, NAME: data}))
    assert [code for code, _ in found] == ["CUDA102"]


@pytest.mark.parametrize(
    ("header", "message"),
    [(b"int x;\n", "source changed"), (None, "other line endings")],
)
def test_stale_sources(header: bytes | None, message: str, facts: FatbinFacts) -> None:
    sources = dict(facts.sources[NAME])
    name = next(name for name in sources if name.endswith(".h"))
    sources[name] = sources[name].replace(b"\n", b"\r\n") if header is None else header
    found = codes(replace(facts, sources={**facts.sources, NAME: sources}))
    assert [code for code, _ in found] == ["CUDA103"]
    assert message in found[0][1]


@pytest.mark.parametrize("key", ["compiler", "defines", "flags"])
def test_another_recipe(key: str, facts: FatbinFacts) -> None:
    found = codes(with_entry(facts, **{key: "another"}))
    assert found == [("CUDA104", f"was built with other {key}; build it again")]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"sass_archs": ("80", "86")}, "has sass for"),
        ({"sass_archs": ()}, "the module's row says []"),
        ({"ptx_arch": None}, "has ptx for ['80'], the module's row says []"),
        ({"ptx_arch": "75"}, "has ptx for ['80'], the module's row says ['75']"),
        ({"registers": 64}, "registers, at most 64"),
        ({"entries": ("another",)}, "has the kernels ('mmaemu_v4',)"),
    ],
)
def test_other_than_specified(row: Mapping[str, Any], message: str, facts: FatbinFacts) -> None:
    found = codes(with_row(facts, **row))
    assert {code for code, _ in found} <= {"CUDA105", "CUDA108"}
    assert message in " ".join(text for _, text in found)


@pytest.mark.parametrize("key", ["entries", "module", "ptx", "registers", "sass"])
def test_a_manifest_that_misstates_a_fatbin(key: str, facts: FatbinFacts) -> None:
    assert [code for code, _ in codes(with_entry(facts, **{key: []}))] == ["CUDA106"]


def test_forbidden_ptx_of_any_architecture(facts: FatbinFacts) -> None:
    image = Image("90", b"", "{\n\tmul.ftz.f32 %f1, %f2, %f3;\n}", {}, ())
    found = codes(replace(facts, images={NAME: (image,)}))
    assert {code for code, _ in found} == {"CUDA107"}
    assert (
        codes(
            with_row(
                replace(facts, images={NAME: (image,)}), allowed_ptx=((r"^mul\.ftz", "a test"),)
            )
        )
        == []
    )


def test_what_a_row_allows_for_nothing(facts: FatbinFacts) -> None:
    row = with_row(facts, allowed_ptx=((r"^wgmma\b", "a test"),))
    image = Image("80", b"", "{}", {}, ())
    found = codes(replace(row, images={NAME: (image,)}))
    assert [code for code, _ in found] == ["CUDA107"]
    assert "which it does not have" in found[0][1]
    assert codes(row) == []


@pytest.mark.parametrize(
    ("spills", "message"),
    [
        ({"mmaemu_v4": {"80": 8}}, "mmaemu_v4 spills 8 bytes, expected 0"),
        ({}, "nothing says how many bytes mmaemu_v4 spills; build it again"),
    ],
)
def test_spills(spills: object, message: str, facts: FatbinFacts) -> None:
    assert codes(with_entry(facts, spills=spills)) == [("CUDA108", message)]


def test_another_build(facts: FatbinFacts) -> None:
    other = {**facts.files, NAME: facts.files[NAME][:-1] + b"?"}
    assert [code for code, _ in codes(replace(facts, other=other))] == ["CUDA109"]
    assert codes(replace(facts, other=dict(facts.files))) == []
    assert [code for code, _ in codes(replace(facts, other={}))] == ["CUDA109"] * len(NAMES)


def test_a_fatbin_that_git_ignores(facts: FatbinFacts) -> None:
    found = codes(replace(facts, ignored=frozenset({NAME})))
    assert [code for code, _ in found] == ["CUDA110"]


def test_a_block_that_is_alone_on_a_multiprocessor(facts: FatbinFacts) -> None:
    """h1 is on sm_75; nobody else is anywhere."""
    assert codes(facts) == []
    h1 = SPECS.modules["h1"]
    unexcused = {**SPECS.modules, "h1": replace(h1, one_block=())}
    found = codes(replace(facts, specs=replace(SPECS, modules=unexcused)))
    assert [code for code, _ in found] == ["CUDA111"]
    assert found[0][1].startswith("mmaemu_h1 leaves no room for a second block")
    found = codes(with_row(facts, one_block=(("80", "a test"),)))
    assert found == [("CUDA111", "its row excuses one block, but two fit; take that away")]


@pytest.mark.parametrize(
    "text", ["namespace\n{\nint x;\n}", "const char *s = __FILE__;", "__TIME__"]
)
def test_a_source_that_depends_on_the_build(text: str, facts: FatbinFacts) -> None:
    sources = {**facts.sources[NAME], "extra.h": text.encode()}
    entry = {**facts.modules[NAME], "sources": hashes(sources)}
    changed = replace(
        facts,
        sources={**facts.sources, NAME: sources},
        modules={**facts.modules, NAME: entry},
    )
    found = codes(changed)
    assert [code for code, _ in found] == ["CUDA112"]
    assert "two builds may differ" in found[0][1]
    harmless = {**sources, "extra.h": b"/* __FILE__ */ // __TIME__\nnamespace named { }"}
    entry = {**entry, "sources": hashes(harmless)}
    changed = replace(
        changed,
        sources={**changed.sources, NAME: harmless},
        modules={**changed.modules, NAME: entry},
    )
    assert codes(changed) == []


# --- usage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--release", "--modules", "v4,v5"], "no module v5; known: v1, h1"),
        (["--release", "--modules", "v4 v1"], "no module v4 v1"),
        (["--check", "--modules", ","], "names none"),
        (["--replace", "all"], "no module all"),
        (["--compare", "nowhere"], "--compare: expected the folder of a build"),
        (["--release", "--nvcc", "/no/nvcc"], "--nvcc: cannot run"),
    ],
)
def test_wrong_usage(argv: list[str], message: str, capsys: Captured) -> None:
    # B38: an unknown name is never an empty build.
    assert main(argv) == 2
    assert message in capsys.readouterr().err


def test_one_of_the_modes_is_needed() -> None:
    with pytest.raises(SystemExit) as error:
        main([])
    assert error.value.code == 2


def test_dry_run_says_every_architecture(tmp_path: Path, capsys: Captured) -> None:
    assert main(["--release", "--out", str(tmp_path / "out"), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert said.count("would build") == len(NAMES)
    assert "v4.fatbin: SASS 80 86 89 90 100 120, PTX 80" in said
    assert main(["--replace", "v4", "--dry-run", "--json"]) == 0
    captured = capsys.readouterr()
    assert f"{build_fatbin.BIN}/v4.fatbin" in captured.err
    assert json.loads(captured.out)["exit_code"] == 0
    assert not (tmp_path / "out").exists()


def write_specs(root: Path, text: str) -> None:
    (root / build_fatbin.SPECS).parent.mkdir(parents=True)
    (root / build_fatbin.SPECS).write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("MODULES = (", "cannot be read: SyntaxError"),
        ("SOURCES = ''", "cannot be read: AttributeError"),
        ("MODULES = ()\nSOURCES = ''\nOPTIONS = ()", "lists no module"),
    ],
)
def test_a_list_of_modules_that_cannot_be_used(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UnusableError, match="is missing; it lists the CUDA modules"):
        load_specs(tmp_path)
    write_specs(tmp_path, text)
    with pytest.raises(UnusableError, match=message):
        load_specs(tmp_path)


def test_nothing_frozen_yet(tmp_path: Path, capsys: Captured) -> None:
    write_specs(tmp_path, (ROOT / build_fatbin.SPECS).read_text(encoding="utf-8"))
    assert main(["--check", "--root", str(tmp_path)]) == 0
    assert "nothing is frozen" in capsys.readouterr().out
    assert main(["--check", "--require-manifest", "--root", str(tmp_path)]) == 2
    assert "expected a source of v1.fatbin" in capsys.readouterr().err


# --- forbidden PTX -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "instruction",
    [
        "add.ftz.f32 %f1, %f2, %f3",
        "ex2.approx.f32 %f1, %f2",
        "add.f32 %f1, %f2, %f3",
        "sub.sat.f32 %f1, %f2, %f3",
        "@%p1 mul.f32 %f1, %f2, %f3",
        "@!%p2 mul.bf16x2 %r1, %r2, %r3",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1, %f2}, {%r1}, {%r2}, {%f3}",
        "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {%f1}, %rd1, %rd2, p, 1, 1",
        "tcgen05.mma.cta_group::1.kind::f8f6f4 [%r1], %rd1, %rd2, %r2, p",
        "ld.local.u32 %r1, [%rd1]",
        "st.volatile.local.v2.f32 [%rd1], {%f1, %f2}",
        "call.uni (retval0), helper, (param0)",
        "cvt.f64.f32 %fd1, %f1",
        "rcp.rn.f32 %f1, %f2",
        "sqrt.rn.f32 %f1, %f2",
        "div.rn.f32 %f1, %f2, %f3",
        "tanh.approx.f32 %f1, %f2",
    ],
)
def test_an_instruction_that_is_forbidden(instruction: str) -> None:
    text = f"{{\n\tmov.u32 %r1, 1;\n\t{instruction};\n\t{instruction};\n}}"
    found = list(forbidden_ptx.problems(text, ()))
    assert found
    assert "(2 times): " in found[0]
    assert list(forbidden_ptx.problems(text, ((r"^\w+", "all of them"),))) == []


@pytest.mark.parametrize(
    "instruction",
    [
        "fma.rz.f32 %f1, %f2, %f3, %f4",
        "add.rz.f32 %f1, %f2, %f3",
        "mul.rn.f32 %f1, %f2, %f3",
        "mul.lo.s32 %r1, %r2, %r3",
        "add.s64 %rd1, %rd2, %rd3",
        "div.s64 %rd1, %rd2, %rd3",
        "div.u32 %r1, %r2, %r3",
        "ld.param.u64 %rd1, [k_param_0+64]",
        "ld.shared.u32 %r1, [local]",
        "shfl.sync.bfly.b32 %r1, %r2, 1, 31, -1",
        "// add.f32 in a comment",
        "bra.uni $L__callback",
    ],
)
def test_an_instruction_that_is_not(instruction: str) -> None:
    assert list(forbidden_ptx.problems(f"{{\n\t{instruction};\n}}", ())) == []


def test_the_kernels_of_a_ptx_text() -> None:
    text = (
        "// .entry no\n.visible .entry k(\n\t.param .u32 k_param_0\n)\n{\n}\n.entry other$1()\n{}"
    )
    assert forbidden_ptx.entries(text) == ("k", "other$1")

from __future__ import annotations

import subprocess
from pathlib import Path

import check_c_format
from files import ROOT


def test_the_repositorys_sources_are_formatted() -> None:
    assert [str(finding) for finding in check_c_format.check(ROOT).findings] == []


def test_an_unformatted_source_is_found(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / ".clang-format").write_text("BasedOnStyle: LLVM\n")
    (tmp_path / "good.c").write_text("int one(void) { return 1; }\n")
    (tmp_path / "bad.h").write_text("int   two (void);\n")
    (tmp_path / "untracked.c").write_text("int   three (void);\n")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    subprocess.run(["git", "-C", tmp_path, "add", "good.c", "bad.h"], check=True)
    outcome = check_c_format.check(tmp_path)
    assert [finding.where for finding in outcome.findings] == ["bad.h"]
    assert check_c_format.main(["--root", str(tmp_path)]) == 1

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import version

CHANGELOG = "# Changelog\n\n<!-- releases -->\n"
CITATION = "cff-version: 1.2.0\ntitle: pkgx\nversion: 0.0.0\ndate-released: 2020-01-01\n"
TOWNCRIER = """
[tool.towncrier]
package = "pkgx"
directory = "changelog.d"
filename = "CHANGELOG.md"
title_format = "## {version} ({project_date})"
underlines = ["", "", ""]
start_string = "<!-- releases -->\\n"

[[tool.towncrier.type]]
directory = "numerics"
name = "Numerics"
showcontent = true

[[tool.towncrier.type]]
directory = "fixed"
name = "Fixed"
showcontent = true
"""


def state(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture
def ready(project: Any) -> Any:
    """The stand-in package with everything that a version change touches."""
    project.write("pkgx/_version.py", '"""The version."""\n\n__version__ = "0.1.0.dev0"\n')
    project.write("CHANGELOG.md", CHANGELOG)
    project.write("CITATION.cff", CITATION)
    project.write("reference.version", "# Comment.\npkgx 0.1.0.dev0\ntorch 2.7.1+cu128\n")
    project.write("changelog.d/1.fixed.md", "A fault is mended.\n")
    project.write("changelog.d/2.numerics.md", "One output bit changed.\n")
    project.write("changelog.d/README.md", "How to write a fragment.\n")
    project.write("pyproject.toml", (project.root / "pyproject.toml").read_text() + TOWNCRIER)
    return project


def set_version(root: Path, *arguments: str) -> int:
    return version.main([*arguments, "--root", str(root)])


def test_the_version_is_set_everywhere_and_the_fragments_become_a_section(ready: Any) -> None:
    root = ready.root
    assert set_version(root, "0.1.0", "--date", "2026-12-01") == 0
    assert '__version__ = "0.1.0"\n' in (root / "pkgx/_version.py").read_text()
    assert (root / "CITATION.cff").read_text() == (
        'cff-version: 1.2.0\ntitle: pkgx\nversion: "0.1.0"\ndate-released: "2026-12-01"\n'
    )
    assert (root / "reference.version").read_text().splitlines()[1] == "pkgx 0.1.0"
    assert (root / "CHANGELOG.md").read_text() == (
        f"{CHANGELOG}\n## 0.1.0 (2026-12-01)\n\n"
        "### Numerics\n\n- One output bit changed. (#2)\n\n"
        "### Fixed\n\n- A fault is mended. (#1)\n\n"
        "### Scope and maturity\n\n- Reference: torch 2.7.1+cu128.\n"
    )
    assert [path.name for path in (root / "changelog.d").iterdir()] == ["README.md"]


def test_a_rerun_changes_nothing_and_later_fragments_join_the_section(ready: Any) -> None:
    root = ready.root
    for _ in range(2):
        assert set_version(root, "0.1.0", "--date", "2026-12-01") == 0
    before = state(root)
    assert set_version(root, "0.1.0", "--date", "2026-12-01") == 0
    assert state(root) == before
    ready.write("changelog.d/3.fixed.md", "Another fault is mended.\n")
    assert set_version(root, "0.1.0", "--date", "2026-12-02") == 0
    text = (root / "CHANGELOG.md").read_text()
    assert "## 0.1.0 (2026-12-02)\n" in text
    assert "2026-12-01" not in text
    assert "- A fault is mended. (#1)\n- Another fault is mended. (#3)\n" in text
    assert text.count("One output bit changed") == 1


def test_a_run_that_was_cut_before_the_fragments_went_is_completed(ready: Any) -> None:
    root = ready.root
    kept = shutil.copytree(root / "changelog.d", root.parent / "kept")
    assert set_version(root, "0.1.0", "--date", "2026-12-01") == 0
    before = state(root)
    shutil.copytree(kept, root / "changelog.d", dirs_exist_ok=True)
    assert set_version(root, "0.1.0", "--date", "2026-12-01") == 0
    assert state(root) == before


def test_the_next_version_gets_a_section_above_the_last(ready: Any) -> None:
    root = ready.root
    assert set_version(root, "0.1.0", "--date", "2026-12-01") == 0
    first = (root / "CHANGELOG.md").read_text().split("<!-- releases -->\n")[1]
    ready.write("changelog.d/4.fixed.md", "A later fault is mended.\n")
    assert set_version(root, "0.1.1", "--date", "2026-12-09") == 0
    text = (root / "CHANGELOG.md").read_text()
    assert text.endswith(first)
    assert text.index("## 0.1.1 (2026-12-09)") < text.index("## 0.1.0 (2026-12-01)")
    assert set_version(root, "0.1.1", "--date", "2026-12-09") == 0
    assert (root / "CHANGELOG.md").read_text() == text


def test_what_was_not_run_is_stated(ready: Any) -> None:
    arguments = ("0.1.0", "--date", "2026-12-01", "--device-not-run", "T3=no GPU here")
    assert set_version(ready.root, *arguments) == 0
    assert (
        (ready.root / "CHANGELOG.md")
        .read_text()
        .endswith("### Limitations of this release\n\n- T3 was not run on a device: no GPU here\n")
    )


def test_what_was_not_run_is_copied_to_the_page_on_validation(ready: Any) -> None:
    arguments = ("0.1.0", "--date", "2026-12-01", "--device-not-run", "T3=no GPU here")
    page = "# Validation\n\n<!-- not run on a device -->\n{}<!-- end -->\n\nMore.\n"
    ready.write("docs/validation.md", page.format("- T6 was not run on a device: an old reason\n"))
    path = ready.root / "docs/validation.md"
    for _ in range(2):
        assert set_version(ready.root, *arguments) == 0
        assert path.read_text() == page.format("- T3 was not run on a device: no GPU here\n")
    assert set_version(ready.root, *arguments[:3]) == 0
    assert path.read_text() == page.format("")
    for text in ("# Validation\n", page.partition("<!-- end")[0]):
        path.write_text(text)
        assert set_version(ready.root, *arguments) == 0
        assert path.read_text() == text


def test_dry_run_changes_nothing(ready: Any, capsys: pytest.CaptureFixture[str]) -> None:
    before = state(ready.root)
    assert set_version(ready.root, "0.1.0", "--date", "2026-12-01", "--dry-run") == 0
    assert state(ready.root) == before
    assert "would write CHANGELOG.md" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("0.1.0", "--date", "2026-13-01"), "YYYY-MM-DD"),
        (("0.1.0", "--date", "2026-02-31"), "YYYY-MM-DD"),
        (("0.1.0", "--date", "2026/12/01"), "YYYY-MM-DD"),
        (("0.1.0", "--date", "20261201"), "YYYY-MM-DD"),
        (("v0.1.0", "--date", "2026-12-01"), "write 0.1.0"),
        (("0.1.0-rc1", "--date", "2026-12-01"), "write 0.1.0rc1"),
        (("0.1.0+local", "--date", "2026-12-01"), "local part"),
        (("next", "--date", "2026-12-01"), "normalised version"),
        (("0.1", "--date", "2026-12-01"), "such as 0.1.0"),
        (("0.1.0.0", "--date", "2026-12-01"), "such as 0.1.0"),
        (("0.0.9", "--date", "2026-12-01"), "versions only grow"),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(
    arguments: tuple[str, ...],
    message: str,
    ready: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = state(ready.root)
    assert set_version(ready.root, *arguments) == 2
    assert message in capsys.readouterr().err
    assert state(ready.root) == before


def _no_fragment(ready: Any) -> None:
    for name in ("1.fixed.md", "2.numerics.md"):
        (ready.root / "changelog.d" / name).unlink()


def _no_marker(ready: Any) -> None:
    ready.write("CHANGELOG.md", "# Changelog\n")


def _unknown_type(ready: Any) -> None:
    ready.write("changelog.d/5.nonsense.md", "x\n")


def _no_citation(ready: Any) -> None:
    (ready.root / "CITATION.cff").unlink()


@pytest.mark.parametrize("change", [_no_fragment, _no_marker, _unknown_type, _no_citation])
def test_an_unready_tree_is_refused_and_left_alone(change: Any, ready: Any) -> None:
    change(ready)
    before = state(ready.root)
    assert set_version(ready.root, "0.1.0", "--date", "2026-12-01") == 2
    assert state(ready.root) == before


def test_the_scope_comes_from_the_package_itself(ready: Any) -> None:
    listing = '{"models": [{"name": "ada", "maturity": "recorded"}]}'
    ready.write("pkgx/__main__.py", f"print('''{listing}''')\n")
    pyproject = (ready.root / "pyproject.toml").read_text()
    ready.write("pyproject.toml", pyproject.replace("owner =", 'scope = ["models"]\nowner ='))
    assert set_version(ready.root, "0.1.0", "--date", "2026-12-01") == 0
    assert "- models, recorded: `ada`.\n" in (ready.root / "CHANGELOG.md").read_text()
    ready.write("pkgx/__main__.py", "raise SystemExit(1)\n")
    assert set_version(ready.root, "0.1.0", "--date", "2026-12-01") == 2


def test_it_runs_as_a_script_from_anywhere(ready: Any, tmp_path: Path) -> None:
    tool = Path(version.__file__)
    command = [sys.executable, str(tool), "0.1.0", "--date", "2026-12-01", "--root"]
    done = subprocess.run([*command, str(ready.root)], cwd=tmp_path, check=False)
    assert done.returncode == 0

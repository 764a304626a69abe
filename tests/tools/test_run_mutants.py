from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import run_mutants
from files import ROOT, read_toml
from findings import UnusableError

SOURCE = "def larger(x: int, y: int) -> int:\n    return x if x > y else y\n"
TESTS = """\
import pytest
from larger import larger


def test_it():
    assert larger(2, 1) == 2


def test_nothing():
    pytest.skip("not here")
"""
ROW = {
    "name": "the smaller one",
    "rule": "N1",
    "file": "larger.py",
    "old": "x > y",
    "new": "x < y",
    "killer": "tests/test_it.py::test_it",
}
CONTROL = {**ROW, "name": "control", "rule": "", "new": "x >= y", "survives": "Equal ones."}


def table(*rows: dict[str, str]) -> str:
    lines = (
        f"{key} = {json.dumps(value)}" for row in rows for key, value in ({"": ""} | row).items()
    )
    return "\n".join("[[mutant]]" if line.startswith(" =") else line for line in lines)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small repository with a mutation matrix of its own."""
    root = tmp_path / "tree"
    (root / "tests" / "mutants").mkdir(parents=True)
    (root / "larger.py").write_text(SOURCE)
    (root / "tests" / "test_it.py").write_text(TESTS)
    profile = "from hypothesis import settings\n\nsettings.register_profile('unshrunk')\n"
    (root / "tests" / "conftest.py").write_text(profile)
    (root / ".gitignore").write_text("ignored\n")
    (root / "ignored").write_text("x")
    subprocess.run(["git", "init", "--quiet", str(root)], check=True)
    return root


def ran(tree: Path, *rows: dict[str, str], options: tuple[str, ...] = ()) -> tuple[int, Any]:
    (tree / "tests" / "mutants" / "some.toml").write_text(table(*rows))
    report = tree / "report.json"
    report.unlink(missing_ok=True)
    arguments = ["--root", str(tree), "--report", str(report), "--jobs", "1", *options]
    code = run_mutants.main(arguments)
    return code, json.loads(report.read_text()) if report.exists() else None


def test_killed_mutants_and_surviving_controls_are_as_the_matrix_says(tree: Path) -> None:
    before = {path: path.read_bytes() for path in tree.rglob("*.py")}
    code, report = ran(tree, ROW, CONTROL)
    assert code == 0
    assert [row["state"] for row in report["mutants"]] == ["killed", "survived"]
    assert "assert 1 == 2" in report["mutants"][0]["detail"]
    assert report["counts"]["passed"] == report["counts"]["tests"] == 2
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(
    ("row", "state"),
    [
        ({**ROW, "new": "x >= y"}, "survived"),
        ({**CONTROL, "new": "x < y"}, "killed"),
    ],
)
def test_what_the_matrix_does_not_say_fails(tree: Path, row: dict[str, str], state: str) -> None:
    code, report = ran(tree, row)
    assert code == 1
    assert report["mutants"][0]["state"] == state
    assert report["counts"]["failures"] == 1


def test_a_mutant_that_breaks_the_import_was_not_killed_by_its_test(tree: Path) -> None:
    code, report = ran(tree, {**ROW, "new": "x > >"}, ROW | {"name": "another"})
    assert code == 2
    assert [row["state"] for row in report["mutants"]] == ["error", "killed"]
    assert report["counts"]["errors"] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"old": "x >= y"}, "holds the old text 0 times"),
        ({"old": "x"}, "times, expected once"),
        ({"new": "x > y"}, "are the same"),
        ({"file": "smaller.py"}, "holds the old text 0 times"),
        ({"killer": "tests/test_it.py::test_that"}, "there is no test"),
        ({"killer": "tests/test_that.py::test_it"}, "there is no test"),
        ({"rule": ""}, "names the rule"),
        ({"build": "gpu"}, "unknown build"),
        ({"on_device": "tests/cuda/test_it.py::test_it"}, "there is no test tests/cuda"),
        ({"on_device": "tests/test_it.py::test_it"}, "names a test of tests/cuda/"),
        ({"kiler": "x"}, "expected the keys"),
    ],
)
def test_a_row_that_does_not_fit_is_an_error(
    tree: Path, change: dict[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ran(tree, ROW | change) == (2, None)
    assert message in capsys.readouterr().err


def test_names_are_unique_and_there_are_rows(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ran(tree, ROW, ROW)[0] == 2
    assert "occurs 2 times" in capsys.readouterr().err
    assert ran(tree)[0] == 2
    assert ran(tree, ROW, options=("--only", "nothing like it"))[0] == 3


@pytest.mark.parametrize("broken", ["2) == 3", "skipped"])
def test_a_killer_that_does_not_pass_without_a_mutant_is_an_error(
    tree: Path, broken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    row = ROW
    if broken == "skipped":
        row = ROW | {"killer": "tests/test_it.py::test_nothing"}
    else:
        (tree / "tests" / "test_it.py").write_text(TESTS.replace("1) == 2", broken))
    assert ran(tree, row) == (2, None)
    assert "do not pass without a mutant" in capsys.readouterr().err


def test_a_seed_chooses_the_same_rows_again(tree: Path) -> None:
    rows = [ROW | {"name": str(number)} for number in range(20)]
    (tree / "tests" / "mutants" / "some.toml").write_text(table(*rows))
    matrix = run_mutants.load(tree)
    first = run_mutants.choose(matrix, "", "a", 5)
    assert len(set(first)) == 5
    assert first == run_mutants.choose(matrix, "", "a", 5) != run_mutants.choose(matrix, "", "b", 5)
    assert len(run_mutants.choose(matrix, "1", None, None)) == 20, "N1 is in every row"
    assert len(run_mutants.choose(matrix, "", None, 99)) == 20


def test_the_copy_is_what_git_would_track(tree: Path, tmp_path: Path) -> None:
    copy = run_mutants.copy_tree(tree, tmp_path / "copy")
    assert (copy / "tests" / "test_it.py").read_text() == TESTS
    assert not (copy / "ignored").exists()


DEVICE_TESTS = """\
import os
import pytest
from larger import larger

pytestmark = pytest.mark.skipif("NO_GPU" in os.environ, reason="no CUDA device")


def test_larger():
    assert larger(3, 5) == 5


def test_equal():
    assert larger(3, 3) == 3
"""


@pytest.fixture
def device_rows(tree: Path) -> tuple[dict[str, str], ...]:
    """Rows of which some name a killer on a device."""
    (tree / "tests" / "cuda").mkdir()
    (tree / "tests" / "cuda" / "test_gpu.py").write_text(DEVICE_TESTS)
    killed = ROW | {"on_device": "tests/cuda/test_gpu.py::test_larger"}
    survivor = ROW | {"name": "unnoticed", "on_device": "tests/cuda/test_gpu.py::test_equal"}
    return killed, survivor, ROW | {"name": "of the host alone"}


def test_rows_with_a_killer_on_a_device_run_there_with_it(
    tree: Path, device_rows: tuple[dict[str, str], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_mutants, "has_gpu", lambda _: True)
    code, report = ran(tree, *device_rows, options=("--device",))
    assert code == 1
    assert [(row["name"], row["state"]) for row in report["mutants"]] == [
        ("the smaller one", "killed"),
        ("unnoticed", "survived"),
    ]
    assert report["mutants"][0]["killer"] == "tests/cuda/test_gpu.py::test_larger"
    assert ran(tree, device_rows[0], options=("--device",))[0] == 0
    monkeypatch.setenv("NO_GPU", "1")
    assert ran(tree, device_rows[0], options=("--device",)) == (2, None), "a skip kills nothing"


def test_without_a_gpu_nothing_was_run(
    tree: Path,
    device_rows: tuple[dict[str, str], ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    code, report = ran(tree, *device_rows, options=("--device",))
    assert code == 3
    assert report == {
        "schema": "mmaemu.mutants/1",
        "counts": {},
        "reason": "torch sees no CUDA device",
    }
    assert "torch sees no CUDA device" in capsys.readouterr().err


def kind(row: run_mutants.Mutant) -> str:
    """What a row is about: a control, an equivalent, a kernel, a check, or a model or plan."""
    if row.name.startswith("control"):
        return "control"
    if row.survives:
        return "equivalent"
    if "/csrc/" in row.file:
        return "kernel"
    return "check" if row.file.startswith("tools/") else "model or plan"


def test_our_matrix_fits_the_tree() -> None:
    matrix = run_mutants.load(ROOT)
    kinds = Counter(map(kind, matrix))
    rules = {row.rule for row in matrix}
    assert kinds["model or plan"] >= 45
    assert kinds["kernel"] >= 10
    assert kinds["control"] >= 5
    assert kinds["check"] >= 40
    assert sum(bool(row.on_device) for row in matrix) >= 10
    assert {f"N{number}" for number in range(1, 24)} <= rules
    with pytest.raises(UnusableError, match="no mutant"):
        run_mutants.load(ROOT / "docs")


def test_every_row_of_a_distribution_names_a_finding_of_its_test() -> None:
    from test_check_dist import SDIST_MUTANTS, TREE_MUTANTS, WHEEL_MUTANTS

    tables: dict[str, Any] = {"wheel": WHEEL_MUTANTS, "sdist": SDIST_MUTANTS, "tree": TREE_MUTANTS}
    for row in read_toml(ROOT / "tests" / "mutants" / "distributions.toml")["mutant"]:
        kind, _, name = row["name"].partition(": ")
        assert row["rule"] in tables[kind][name][1]
        assert row["killer"].endswith(f"[{name}]")

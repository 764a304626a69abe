from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import tier
from files import ROOT

PASSING = "def test_it() -> None:\n    assert 1 + 1 == 2\n"
FAILING = "def test_it() -> None:\n    assert 1 + 1 == 3\n"


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results and logs go to a folder of the test."""
    monkeypatch.setattr(tier, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(tier, "LOGS", tmp_path / "logs")
    return tmp_path / "results"


def made(source: str, folder: Path) -> tier.Tier:
    """A tier that runs one small test file."""
    path = folder / "test_made.py"
    path.write_text(source)
    return tier.Tier("t0", ("-m", "pytest", "-p", "no:cacheprovider", "--rootdir", ".", str(path)))


CASES = {
    "passing": (PASSING, "pass", {"passed": 1, "failures": 0}),
    "failing": (FAILING, "fail", {"passed": 0, "failures": 1}),
    "no test": ("", "not-run", {"passed": 0}),
    "broken": ("import no_such_module\n", "fail", {"errors": 1}),
}


@pytest.mark.parametrize("case", CASES)
def test_results_say_what_ran(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    source, status, counts = CASES[case]
    monkeypatch.setitem(tier.TIERS, "t0", made(source, tmp_path))
    code = tier.main(["t0", "--as", "t0_here"])
    assert code == {"pass": 0, "fail": 1, "not-run": 3}[status]
    document = json.loads((results / "t0_here.json").read_text())
    assert document["schema"] == "mmaemu.tier/1"
    assert document["tier"] == "t0_here"
    assert len(document["commit"]) == len(document["tree"]) == 40
    assert document["environment"]["python"] == sys.version.split()[0]
    part = document["parts"]["host"]
    assert part["status"] == status
    assert counts.items() <= part["counts"].items()
    assert bool(part["reason"]) == (status != "pass")
    assert " in " in (results / "t0_here.log").read_text()


@pytest.mark.parametrize(
    ("code", "status"), [(0, "pass"), (1, "fail"), (2, "not-run"), (3, "not-run"), (137, "fail")]
)
def test_the_exit_code_of_a_tool_decides(results: Path, code: int, status: str) -> None:
    command = ("-c", f"raise SystemExit({code})")
    document = tier.run(tier.Tier("t2", command, pytest=False), "t2", [])
    assert document["parts"]["host"]["status"] == status
    assert results.exists()


def test_the_counts_of_a_replay_come_from_its_report(results: Path) -> None:
    totals = {"rows": 7, "equal": 4, "not_run": 1, "values": 90, "differing": 5}
    report = results / "t2-report.json"
    source = f"import json; open({str(report)!r}, 'w').write(json.dumps({{'totals': {totals}}}))"
    document = tier.run(tier.Tier("t2", ("-c", source), pytest=False), "t2", [])
    assert document["parts"]["host"]["counts"] == {
        "tests": 7,
        "passed": 4,
        "failures": 2,
        "errors": 0,
        "skipped": 1,
        "values": 90,
        "differing": 5,
    }
    document = tier.run(tier.Tier("t2", ("-c", "raise SystemExit(2)"), pytest=False), "t2", [])
    assert document["parts"]["host"]["counts"] == {}, "the old report does not count"


def test_logs_are_copied_for_a_commit(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tier.TIERS, "t0", made(PASSING, tmp_path))
    assert tier.main(["t0", "--commit-log"]) == 0
    date = json.loads((results / "t0.json").read_text())["finished_at"][:10]
    copied = tmp_path / "logs" / date / "t0"
    assert {path.name for path in copied.iterdir()} == {"t0.json", "t0.log"}
    assert "rootdir: ." in (copied / "t0.log").read_text()
    assert str(ROOT) in (results / "t0.log").read_text()


def test_the_summary_adds_up(
    results: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(tier.TIERS, "t0", made(PASSING, tmp_path))
    tier.main(["t0"])
    monkeypatch.setitem(tier.TIERS, "t0", made(FAILING, tmp_path))
    tier.main(["t0", "--as", "t0_other"])
    (results / "other.json").write_text('{"schema": "else"}')
    capsys.readouterr()
    assert tier.main(["--summary"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "t0: 1 passed, 0 failed, 0 skipped",
        "t0_other: 0 passed, 1 failed, 0 skipped",
        "total: 1 passed, 1 failed, 0 skipped",
    ]

"""The maintainer's way from a tree to published snapshots, on a clone and bare repositories."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import rehearse
from files import ROOT
from rehearse import Options, Rehearsal, StepError

VERSION = "9.0.0.dev1"
DATE = "2030-01-02"
REASON = "the rehearsal has no GPU"
WAIVED = dict.fromkeys(("T3", "T3P", "T4", "T6", "T7"), REASON)


def arguments(out: Path, *further: str) -> list[str]:
    waivers = [word for tier in WAIVED for word in ("--device-not-run", f"{tier}={REASON}")]
    return [VERSION, "--date", DATE, "--short", "--out", str(out), *waivers, *further]


def test_from_the_tree_to_three_repositories(tmp_path: Path) -> None:
    work, out = tmp_path / "work", tmp_path / "logs"
    assert rehearse.main(arguments(out, "--work", str(work))) == 0
    changelog = (work / "clone" / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {VERSION} ({DATE})" in changelog
    assert f"T7 was not run on a device: {REASON}" in changelog
    for name in ("`hopper`", "`ada`", "cublaslt 12.8.3.14"):
        assert name in changelog
    for target in rehearse.TARGETS:
        assert (work / f"{target}.git" / "refs" / "heads" / "master").exists()

    document = json.loads((out / "rehearsal.json").read_text(encoding="utf-8"))
    assert (document["status"], document["reason"]) == ("pass", "")
    assert all(step.get("exit", 0) == 0 for step in document["steps"])
    log = (out / "rehearsal.log").read_text(encoding="utf-8")
    for path in (ROOT, work, Path(sys.executable).parent):
        assert str(path) not in log
    for name in ("t3p/t3p.json", "rc-fatbin/freeze.json"):
        assert list(out.glob(f"docs/validation_logs/*/{name}")), name


@pytest.fixture
def day(tmp_path: Path) -> Rehearsal:
    return Rehearsal(ROOT, tmp_path / "work")


def test_a_step_that_fails_ends_the_rehearsal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def freeze(day: Rehearsal, _: Options) -> None:
        day.run(sys.executable, "-c", "print('unsettled'); raise SystemExit(1)")

    monkeypatch.setattr(rehearse, "rehearse", freeze)
    assert rehearse.main(arguments(tmp_path)) == 1
    document = json.loads((tmp_path / "rehearsal.json").read_text(encoding="utf-8"))
    assert document["status"] == "fail"
    assert "ended with 1:\nunsettled" in document["reason"]
    assert [step["exit"] for step in document["steps"]] == [1]
    assert "exit 1" in (tmp_path / "rehearsal.log").read_text(encoding="utf-8")


def test_two_builds_with_other_bytes_are_noticed(
    day: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def invoke(*arguments: str) -> str:
        out = Path(arguments[arguments.index("--out") + 1])
        out.mkdir()
        (out / "SHA256SUMS").write_text(out.name)
        return ""

    monkeypatch.setattr(day, "invoke", invoke)
    with pytest.raises(StepError, match="two builds differ"):
        rehearse.distributions(day, Options(VERSION, DATE, WAIVED, short=True))


def test_a_report_of_t7_that_does_not_validate_is_noticed(
    day: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def invoke(*arguments: str) -> str:
        out = Path(arguments[arguments.index("--out") + 1])
        out.mkdir()
        for name in ("SHA256SUMS", f"mmaemu-{VERSION}-py3-none-any.whl"):
            (out / name).touch()
        return ""

    logs = day.clone / "docs" / "release_logs"
    logs.mkdir(parents=True)
    report = {"version": VERSION, "checks": {"cpu: info": {"status": "fail"}}}
    (logs / f"{VERSION}_cpu.json").write_text(json.dumps(report))
    monkeypatch.setattr(day, "invoke", invoke)
    monkeypatch.setattr(day, "run", lambda *_, **__: "")
    with pytest.raises(StepError, match=r"_cpu\.json: .*check cpu: info is 'fail', expected"):
        rehearse.distributions(day, Options(VERSION, DATE, WAIVED))


def test_a_snapshot_with_another_tree_is_noticed(
    day: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was published is read from the repository, whatever the command said."""
    day.run("git", "init", "--quiet", str(day.clone))
    (day.clone / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    day.git("add", "--all")
    day.git("commit", "--quiet", "-m", "one")
    day.git("tag", "--annotate", "candidate", "-m", "one")
    day.git("commit", "--quiet", "--allow-empty", "--amend", "-m", f"mmaemu {VERSION}")
    script = f"git push --quiet {day.work / 'ci.git'} HEAD:refs/heads/master"
    monkeypatch.setattr(day, "invoke", lambda *words: "dry run" if "--dry-run" in words else script)
    options = Options(VERSION, DATE, WAIVED)
    with pytest.raises(StepError, match=r"ci holds .*A Developer.*, expected one commit"):
        rehearse.snapshot(day, options, "ci", "candidate")


def test_where_pip_looks_and_where_it_ran_is_not_logged(day: Rehearsal) -> None:
    lines = f"Looking in indexes: x\nWARNING: Location 'y' is ignored\n{day.clone}/done\n"
    day.run("cat", stdin=lines)
    (entry,) = day.log
    assert entry.startswith("$ cat\n./done\nexit 0 after ")


@pytest.mark.parametrize(
    ("version", "date", "message"),
    [
        ("0.1", DATE, "expected a normalised version without local part such as 0.1.0"),
        (VERSION, "2026-13-01", "expected a date of the calendar as YYYY-MM-DD"),
        (VERSION, DATE, "is not empty"),
    ],
)
def test_what_cannot_be_rehearsed_is_refused_at_once(
    version: str, date: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "something").touch()
    given = [version, "--date", date, "--short", "--work", str(tmp_path)]
    assert rehearse.main(given) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["something"]


def test_an_unknown_tier_is_no_tier(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        rehearse.main([VERSION, "--date", DATE, "--without", "t9=because"])
    assert "one of T0 to T7 or T3P, got 't9=because'" in capsys.readouterr().err

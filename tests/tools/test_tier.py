from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tier
from files import ROOT

PASSING = "def test_it() -> None:\n    assert 1 + 1 == 2\n"
FAILING = "def test_it() -> None:\n    assert 1 + 1 == 3\n"
SKIPPED = "import pytest\n\ndef test_other() -> None:\n    pytest.skip({reason!r})\n"
HELD = "import time\n\ndef test_it() -> None:\n    time.sleep(60)\n"


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results and logs go to a folder of the test."""
    monkeypatch.setattr(tier, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(tier, "LOGS", tmp_path / "logs")
    monkeypatch.delenv("MMAEMU_GPU_LOCK", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path / "results"


def command_of(source: str, folder: Path, name: str = "made") -> tier.Command:
    """A command that runs one small test file."""
    path = folder / f"test_{name}.py"
    path.write_text(source)
    arguments = ("-m", "pytest", "-p", "no:cacheprovider", "--noconftest", "--rootdir", ".")
    return tier.Command((*arguments, str(path)))


def made(source: str, folder: Path) -> tier.Tier:
    """A tier with a host part of one small test file."""
    return tier.Tier("t0", {"host": (command_of(source, folder),)})


def ran(monkeypatch: pytest.MonkeyPatch, *arguments: str, **parts: Any) -> tuple[int, Any]:
    """Run a tier made of these parts; exit code and result."""
    monkeypatch.setitem(tier.TIERS, "t3", tier.Tier("t3", parts))
    code = tier.main(["t3", *arguments])
    return code, json.loads((tier.RESULTS / "t3.json").read_text())


def tool(code: int, report: str = "", document: Any = None) -> tier.Command:
    """A command that writes a report and exits with a code."""
    source = f"import sys; print({code}); "
    if document is not None:
        path = tier.RESULTS / f"{report}.json"
        source += f"open({str(path)!r}, 'w').write({json.dumps(document)!r}); "
    return tier.Command(("-c", f"{source}sys.exit({code})"), report)


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
    assert document["schema"] == "mmaemu.tier/2"
    assert document["tier"] == "t0"
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
def test_the_exit_code_of_a_tool_decides(
    results: Path, monkeypatch: pytest.MonkeyPatch, code: int, status: str
) -> None:
    exit_code, document = ran(monkeypatch, host=(tool(code, "t3-report"),))
    assert document["parts"]["host"]["status"] == status
    assert exit_code == {"pass": 0, "fail": 1, "not-run": 3}[status]
    assert results.exists()


def test_the_counts_of_a_tool_come_from_the_report_of_this_run(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    totals = {"rows": 7, "equal": 4, "not_run": 1, "values": 90, "differing": 5}
    document = {"totals": totals}
    _, result = ran(monkeypatch, host=(tool(1, "t3-report", document),))
    assert result["parts"]["host"]["counts"] == {
        "tests": 7,
        "passed": 4,
        "failures": 2,
        "errors": 0,
        "skipped": 1,
        "values": 90,
        "differing": 5,
    }
    assert result["reports"].keys() == {"t3-report.json"}
    _, result = ran(monkeypatch, host=(tool(2, "t3-report"),))
    assert result["parts"]["host"]["counts"] == {}, "the old report does not count"
    assert result["reports"] == {}
    assert results.exists()


def test_parts_are_judged_apart(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {
        "host": (command_of(PASSING, tmp_path, "a"), command_of(PASSING, tmp_path, "b")),
        "device": (command_of(SKIPPED.format(reason="no CUDA device"), tmp_path, "c"),),
    }
    code, document = ran(monkeypatch, **parts)
    host, device = document["parts"]["host"], document["parts"]["device"]
    assert code == 0
    assert (host["status"], host["counts"]["passed"]) == ("pass", 2)
    assert (device["status"], device["reason"]) == ("not-run", "no CUDA device")
    assert device["skips"] == {"no CUDA device": 1}
    assert "acknowledged" not in device
    assert ran(monkeypatch, "--require-device", **parts)[0] == 3
    code, document = ran(monkeypatch, "--part", "device", **parts)
    assert code == 3, "the host part was not run"
    assert document["parts"]["host"]["reason"] == "not asked for"
    assert results.exists()


def test_an_acknowledgement_is_kept_where_it_applies(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = command_of(SKIPPED.format(reason="no CUDA device"), tmp_path)
    options = ("--device-not-run", "T3=not here", "--device-not-run", "T6=never")
    _, document = ran(monkeypatch, *options, device=(device,))
    assert document["parts"]["device"]["acknowledged"] == "not here"
    passing = command_of(PASSING, tmp_path, "passing")
    _, document = ran(monkeypatch, *options, device=(passing,))
    assert "acknowledged" not in document["parts"]["device"]
    assert results.exists()


def test_a_command_is_told_what_is_accepted_where_it_asks_for_it(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = {"counts": {}, "reason": "no GPU"}
    parts = (tool(3, "t3-report", document),)
    options = ("--device-not-run", "T3=not here")
    _, result = ran(monkeypatch, *options, device=(replace(parts[0], waivable=True),))
    assert result["parts"]["device"]["acknowledged"] == "not here"
    assert result["parts"]["device"]["reason"] == "no GPU"
    said = "import sys; print(sys.argv[1:])"
    for waivable in (True, False):
        command = tier.Command(("-c", said), "t3-report", waivable=waivable)
        ran(monkeypatch, *options, device=(command,))
        told = "--device-not-run=T3=not here" in (results / "t3.log").read_text()
        assert told == waivable
    assert tier.TIERS["t7"].parts["device"][0].waivable


def test_a_missing_manifest_is_no_reason_to_skip(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for reason, status in (("bin/ has no manifest.json", "fail"), ("needs sm_90", "pass")):
        source = PASSING + SKIPPED.format(reason=reason)
        code, document = ran(monkeypatch, device=(command_of(source, tmp_path),))
        assert document["parts"]["device"]["status"] == status
        assert code == (status == "fail")
    assert results.exists()


def test_device_files_run_one_by_one_behind_the_lock(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "locked"
    lock = "import subprocess,sys; open(sys.argv[1],'a').write(sys.argv[-2] + chr(10)); "
    lock += "sys.exit(subprocess.call(sys.argv[2:]))"
    monkeypatch.setenv("MMAEMU_GPU_LOCK", f'"{sys.executable}" -c "{lock}" {log}')
    monkeypatch.setattr(tier, "ROOT", tmp_path)
    (tmp_path / "tools").symlink_to(ROOT / "tools")
    for name in ("a", "b"):
        (tmp_path / f"test_{name}.py").write_text(PASSING)
    arguments = ("-m", "pytest", "-p", "no:cacheprovider", "--noconftest", "--rootdir", ".")
    monkeypatch.setattr(tier, "commit_facts", lambda: {"commit": "", "tree": "", "dirty": False})
    command = tier.Command(arguments, files="test_*.py", locked=True)
    _, document = ran(monkeypatch, device=(command,))
    assert document["parts"]["device"]["counts"]["passed"] == 2
    assert log.read_text().split() == ["test_a.py", "test_b.py"]
    assert {path.name for path in results.glob("*.xml")} == {"t3-device-0.xml", "t3-device-1.xml"}


def test_a_part_without_a_test_file_was_not_run(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tier.Command(("-m", "pytest"), files="tests/no_such_folder/test_*.py")
    code, document = ran(monkeypatch, device=(command,), host=(tool(0),))
    assert document["parts"]["device"]["status"] == "not-run"
    assert code == 1, "a tool without report and JUnit file shows nothing"
    assert results.exists()


def test_options_from_the_environment_choose_no_tests(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "--deselect test_made.py::test_it -k nothing")
    _, document = ran(monkeypatch, host=(command_of(PASSING, tmp_path),))
    assert document["parts"]["host"]["counts"]["passed"] == 1
    assert document["arguments"] == []
    _, document = ran(monkeypatch, "-k", "it", host=(command_of(PASSING, tmp_path),))
    assert document["arguments"] == ["-k", "it"]
    assert results.exists()


@pytest.mark.parametrize(
    ("script", "name"),
    [("echo 'GPU X'; echo 'GPU Y'", "GPU X"), ("exit 9", "none"), ("true", "none"), ("", "none")],
)
def test_a_result_names_the_gpu(
    script: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if script:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    assert tier.environment()["gpu"] == name


def test_the_log_names_its_result_and_the_result_its_log(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, document = ran(monkeypatch, host=(command_of(PASSING, tmp_path),))
    log = (results / "t3.log").read_bytes()
    assert document["log_sha256"] == hashlib.sha256(log).hexdigest()
    assert log.decode().splitlines()[-1] == f"result sha256 {tier.seal(document)}"
    document["parts"]["host"]["counts"]["passed"] += 1
    assert tier.seal(document) not in log.decode()


def test_a_tree_that_is_not_its_commit_is_dirty_records_apart(
    repository: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier, "ROOT", repository.root)
    assert tier.commit_facts()["dirty"] is False
    repository.write("docs/validation_logs/2026-12-01/t1/t1.json", "{}")
    repository.write("CHANGELOG.md", "# Changed\n")
    assert tier.commit_facts()["dirty"] is False
    untracked = repository.write("conftest.py", "collect_ignore = ['test_it.py']\n")
    assert tier.commit_facts()["dirty"] is True
    untracked.unlink()
    repository.write("pkgx/__init__.py", "x = 1\n")
    assert tier.commit_facts()["dirty"] is True


def test_a_tree_that_changes_during_the_run_is_dirty(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = iter([{"commit": "a", "tree": "t", "dirty": False}] * 3 + [{"commit": "b"}])
    monkeypatch.setattr(tier, "commit_facts", lambda: next(states))
    assert ran(monkeypatch, host=(command_of(PASSING, tmp_path),))[1]["dirty"] is False
    assert ran(monkeypatch, host=(command_of(PASSING, tmp_path),))[1]["dirty"] is True
    assert results.exists()


def test_logs_are_copied_for_a_commit(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = {"counts": {"tests": 1, "passed": 1}, "where": str(ROOT / "x")}
    parts = (command_of(PASSING, tmp_path), tool(0, "t3-report", report))
    code, document = ran(monkeypatch, "--commit-log", host=parts)
    assert code == 0
    copied = tmp_path / "logs" / document["finished_at"][:10] / "t3"
    assert {path.name for path in copied.iterdir()} == {"t3.json", "t3.log", "t3-report.json"}
    assert "rootdir: ." in (copied / "t3.log").read_text()
    assert str(ROOT) not in (copied / "t3-report.json").read_text()
    for name, digest in {**document["reports"], "t3.log": document["log_sha256"]}.items():
        assert hashlib.sha256((copied / name).read_bytes()).hexdigest() == digest
    assert (results / "t3.log").read_bytes() == (copied / "t3.log").read_bytes()


def test_what_is_not_finished_in_time_was_not_run(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier, "LOCK", ("tools/gpu_lock.py", "--limit", "0.5"))
    command = tier.Command(command_of(HELD, tmp_path).arguments, locked=True)
    _, document = ran(monkeypatch, device=(command,))
    assert document["parts"]["device"]["status"] == "not-run"
    assert "in time" in document["parts"]["device"]["reason"]
    assert "timed out after 0.5 s" in (results / "t3.log").read_text()


def test_every_tier_has_its_session_and_its_files() -> None:
    sessions = subprocess.run(
        [sys.executable, "-m", "nox", "--list-sessions"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name, each in tier.TIERS.items():
        assert f" {name} -> " in sessions
        for command in (command for part in each.parts.values() for command in part):
            named = [word for word in command.arguments if word.startswith(("tools/", "bench/"))]
            assert [word for word in named if not (ROOT / word).is_file()] == []


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

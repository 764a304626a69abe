"""Every way to make the committed results of the tiers say more than what ran."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tier_results
from files import sha256_of, to_json
from tier import SEAL, seal

LOGS = "docs/validation_logs/2026-11-30"
T0 = f"{LOGS}/t0/t0.json"
T3 = f"{LOGS}/t3/t3.json"
REASON = "no GPU here"


@pytest.fixture
def ready(repository: Any) -> Any:
    """The stand-in package with committed results of t0 and t3 that pass."""
    pyproject = (repository.root / "pyproject.toml").read_text(encoding="utf-8")
    keys = 'tiers = ["t0", "t3"]\naccepted_skips = ["not on this system"]\nowner ='
    repository.write("pyproject.toml", pyproject.replace("owner =", keys))
    commit = repository.commit("code")
    repository.candidate("0.1.0")
    repository.tier_result("t0", commit, host="pass")
    repository.tier_result("t3", commit, host="pass", device="pass")
    repository.commit("records")
    return repository


def codes(ready: Any, **waivers: str) -> set[str]:
    outcome = tier_results.check(ready.root, waivers)
    return {finding.code for finding in outcome.findings}


def document(ready: Any, name: str = T3) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((ready.root / name).read_text(encoding="utf-8"))
    return loaded


Change = Callable[[Any], None]


def edited(name: str, change: Callable[[dict[str, Any]], object]) -> Change:
    """Edit a result by hand: its log stays what it was."""

    def apply(ready: Any) -> None:
        changed = document(ready, name)
        change(changed)
        ready.write(name, to_json(changed))
        ready.commit("edited")

    return apply


def ran(name: str, change: Callable[[dict[str, Any]], object]) -> Change:
    """A run that wrote such a result itself, with its log."""

    def apply(ready: Any) -> None:
        changed = document(ready, name)
        del changed["log_sha256"]
        change(changed)
        ready.seal_result(name, changed)
        ready.commit("another run")

    return apply


def both(first: Change, second: Change) -> Change:
    """One change after the other."""

    def apply(ready: Any) -> None:
        first(ready)
        second(ready)

    return apply


def host(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda result: result["parts"]["host"].update(values)


def device(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda result: result["parts"]["device"].update(values)


def counts(**values: int) -> Callable[[dict[str, Any]], object]:
    return lambda result: result["parts"]["host"]["counts"].update(values)


def skipped(reason: str) -> Callable[[dict[str, Any]], object]:
    def change(result: dict[str, Any]) -> None:
        part = result["parts"]["host"]
        part["counts"].update(passed=2, skipped=1)
        part["skips"] = {reason: 1}

    return change


def gone(name: str) -> Change:
    def change(ready: Any) -> None:
        (ready.root / name).unlink()
        ready.commit("gone")

    return change


def _untracked(ready: Any) -> None:
    gone(T3)(ready)
    ready.git("checkout", "HEAD~1", "--", T3)
    ready.git("rm", "--quiet", "--cached", T3)


def _log_of_another_run(ready: Any) -> None:
    ready.write(T3.replace(".json", ".log"), (ready.root / f"{LOGS}/t0/t0.log").read_text())
    ready.commit("log")


def _log_of_another_tree(ready: Any) -> None:
    # The same result, run on another tree: its log and its hash are taken for this one.
    other = document(ready)
    mine = dict(other)
    del other["log_sha256"]
    other["tree"] = "0" * 40
    log = f"1 passed\n{SEAL}{seal(other)}\n"
    ready.write(T3.replace(".json", ".log"), log)
    ready.write(T3, to_json({**mine, "log_sha256": sha256_of(log.encode())}))
    ready.commit("log of another tree")


def _log_edited(ready: Any) -> None:
    log = ready.root / T3.replace(".json", ".log")
    log.write_text(log.read_text().replace("1 passed", "9 passed"))
    ready.commit("log")


def _report(text: str) -> Change:
    def change(ready: Any) -> None:
        digest = sha256_of(b"{}\n")
        ran(T3, lambda result: result.update(reports={"t3-report.json": digest}))(ready)
        if text:
            ready.write(f"{LOGS}/t3/t3-report.json", text)
        ready.commit("report")

    return change


def _another_commit(ready: Any) -> None:
    # A commit that is no ancestor: a branch whose code differs.
    ready.git("switch", "--quiet", "-c", "other", "HEAD~1")
    ready.write("pkgx/__init__.py", "x = 1\n")
    commit = ready.commit("other code")
    tree = ready.git("rev-parse", "HEAD^{tree}")
    ready.git("switch", "--quiet", "-")
    ran(T3, lambda result: result.update(commit=commit, tree=tree))(ready)


def _code_since(ready: Any) -> None:
    ready.write("pkgx/__init__.py", '"""Changed."""\n')
    ready.commit("code")


def _tests_since(ready: Any) -> None:
    ready.write("tests/test_it.py", "def test_it() -> None: ...\n")
    ready.commit("tests")


def _newer_failure(ready: Any) -> None:
    # The folder's name says another day; what counts is the time in the file.
    result = document(ready, T0)
    del result["log_sha256"]
    result["finished_at"] = "2026-11-30T13:00:00+00:00"
    result["parts"]["host"]["status"] = "fail"
    ready.seal_result("docs/validation_logs/2026-01-01/t0/t0.json", result)
    ready.commit("a later run")


NOT_RUN = device(status="not-run", reason="no CUDA device")
CHEATS: dict[str, tuple[Change, set[str]]] = {
    "status edited": (edited(T3, device(reason="x")), {"REL206"}),
    "failure edited into a pass": (
        both(ran(T3, device(status="fail")), edited(T3, device(status="pass"))),
        {"REL206"},
    ),
    "counts edited": (edited(T3, counts(tests=9, passed=9)), {"REL206"}),
    "commit edited to HEAD": (
        lambda ready: edited(T3, lambda r: r.update(commit=ready.git("rev-parse", "HEAD")))(ready),
        {"REL203", "REL206"},
    ),
    "commit and tree edited to HEAD after a change": (
        both(
            _code_since,
            lambda ready: edited(
                T3,
                lambda r: r.update(
                    commit=ready.git("rev-parse", "HEAD"),
                    tree=ready.git("rev-parse", "HEAD^{tree}"),
                ),
            )(ready),
        ),
        {"REL203", "REL206"},
    ),
    "device part removed": (edited(T3, lambda r: r["parts"].pop("device")), {"REL201", "REL206"}),
    "no parts": (ran(T3, lambda r: r.update(parts={})), {"REL201"}),
    "result missing": (gone(T3), {"REL201"}),
    "result of an earlier form": (
        edited(T3, lambda r: r.update(schema="mmaemu.tier/1")),
        {"REL201"},
    ),
    "result not committed": (_untracked, {"REL201"}),
    "log missing": (gone(f"{LOGS}/t3/t3.log"), {"REL206"}),
    "log of another run": (_log_of_another_run, {"REL206"}),
    "log of another tree": (_log_of_another_tree, {"REL206"}),
    "log edited": (_log_edited, {"REL206"}),
    "report missing": (_report(""), {"REL206"}),
    "report edited": (_report('{"passed": 1}'), {"REL206"}),
    "run on another commit": (_another_commit, {"REL203"}),
    "run on an unknown commit": (ran(T3, lambda r: r.update(commit="0" * 40)), {"REL203"}),
    "run on no commit": (ran(T3, lambda r: r.update(commit="")), {"REL203"}),
    "run on a dirty tree": (ran(T3, lambda r: r.update(dirty=True)), {"REL203"}),
    "dirty left out": (ran(T3, lambda r: r.pop("dirty")), {"REL203"}),
    "tree of another commit": (ran(T3, lambda r: r.update(tree="0" * 40)), {"REL203"}),
    "code changed since": (_code_since, {"REL203"}),
    "tests changed since": (_tests_since, {"REL203"}),
    "a later run failed": (_newer_failure, {"REL202"}),
    "host part failed": (ran(T3, host(status="fail")), {"REL202"}),
    "device part failed": (ran(T3, device(status="fail")), {"REL202"}),
    "device part not run": (ran(T3, NOT_RUN), {"REL202"}),
    "status unknown": (ran(T3, device(status="skipped")), {"REL202"}),
    "status missing": (ran(T3, lambda r: r["parts"]["device"].pop("status")), {"REL202"}),
    "counts zero": (ran(T3, counts(tests=0, passed=0)), {"REL207"}),
    "counts missing": (ran(T3, host(counts={})), {"REL207"}),
    "counts that do not add up": (ran(T3, counts(tests=9)), {"REL207"}),
    "failures counted": (ran(T3, counts(tests=4, failures=1)), {"REL207"}),
    "skipped tests": (ran(T3, skipped("no time")), {"REL207"}),
    "skipped without reasons": (ran(T3, counts(tests=4, skipped=1)), {"REL207"}),
    "some of the tests": (ran(T3, lambda r: r.update(arguments=["-k", "easy"])), {"REL207"}),
    "arguments left out": (ran(T3, lambda r: r.pop("arguments")), {"REL207"}),
}


@pytest.mark.parametrize("name", CHEATS)
def test_each_cheat_is_caught_by_exactly_its_rules(name: str, ready: Any) -> None:
    change, expected = CHEATS[name]
    change(ready)
    assert codes(ready) == expected


REPORT = "docs/release_logs/0.1.0_cpu.json"


@pytest.mark.parametrize("change", ["changed", "removed", "renamed", "replaced by a link"])
def test_a_report_of_a_release_stays_as_it_was_committed(change: str, ready: Any) -> None:
    path, text = ready.root / REPORT, (ready.root / REPORT).read_text(encoding="utf-8")
    ready.write("docs/release_logs/0.2.0_cpu.json", text)
    ready.commit("a further report")
    assert codes(ready) == set()
    if change == "changed":
        path.write_text(text.replace("pass", "fail"), encoding="utf-8")
    elif change == "replaced by a link":
        path.unlink()
        path.symlink_to("0.2.0_cpu.json")
    else:
        path.unlink()
        if change == "renamed":
            ready.write("docs/release_logs/0.1.0_other.json", text)
    ready.commit(change)
    assert codes(ready) == {"REL208"}
    if change == "replaced by a link":
        path.unlink()
    ready.write(REPORT, text)
    ready.commit("restored")
    assert codes(ready) == set()


def test_a_report_that_only_a_merge_changed_is_found(ready: Any) -> None:
    main = ready.git("branch", "--show-current")
    ready.git("switch", "--quiet", "-c", "side")
    ready.write("docs/page.md", "x\n")
    ready.commit("side")
    ready.git("switch", "--quiet", main)
    ready.write("docs/other.md", "x\n")
    ready.commit("main")
    ready.git("merge", "--quiet", "--no-commit", "--no-ff", "side")
    ready.write(REPORT, "{}")
    ready.commit("merge")
    assert codes(ready) == {"REL208"}


def test_results_that_pass_have_no_findings(ready: Any) -> None:
    assert codes(ready) == set()
    for name in ("docs/page.md", "lkg.version", "verified_commits.csv", "changelog.d/1.fixed.md"):
        ready.write(name, "x\n")
    ready.write("pkgx/_version.py", '"""The version."""\n\n__version__ = "0.1.0"\n')
    ready.commit("records")
    assert codes(ready) == set()
    ran(T3, skipped("not on this system"))(ready)
    assert codes(ready) == set()


def test_what_is_not_committed_takes_no_part(ready: Any) -> None:
    failing = document(ready)
    failing["parts"]["host"]["status"] = "fail"
    ready.write(T3, to_json(failing))
    assert codes(ready) == set()
    ready.commit("edited")
    assert codes(ready) == {"REL202", "REL206"}


def test_parts_may_come_from_two_machines(ready: Any) -> None:
    there = document(ready)
    del there["log_sha256"]
    ran(T3, NOT_RUN)(ready)
    assert codes(ready) == {"REL202"}
    there["parts"]["host"].update(status="not-run", reason="not asked for")
    ready.seal_result("docs/validation_logs/2026-11-29/t3/t3.json", there)
    ready.commit("from the GPU machine")
    assert codes(ready) == set()


def test_a_part_of_a_tier_hides_no_whole_run(ready: Any) -> None:
    some = document(ready)
    del some["log_sha256"]
    some.update(finished_at="2026-12-01T12:00:00+00:00", arguments=["-k", "easy"])
    ready.seal_result("docs/validation_logs/2026-12-01/t3_easy/t3_easy.json", some)
    ready.commit("some of it")
    assert codes(ready) == set()


def test_a_device_part_that_was_not_run_needs_its_reason_everywhere(ready: Any) -> None:
    ran(T3, NOT_RUN)(ready)
    assert codes(ready, T3=REASON) == {"REL204"}
    acknowledged = device(status="not-run", reason="no CUDA device", acknowledged=REASON)
    ran(T3, acknowledged)(ready)
    changelog = ready.root / "CHANGELOG.md"
    texts = {changelog: changelog.read_text(), ready.root / "docs/validation.md": "# Validation\n"}
    for path, text in texts.items():
        path.write_text(f"{text}\n- t3 was not run on a device: {REASON}\n")
    assert codes(ready, T3=REASON) == codes(ready, t3=REASON) == set()
    for path, text in texts.items():
        stated = path.read_text()
        path.write_text(text)
        assert codes(ready, T3=REASON) == {"REL204"}
        path.write_text(stated)
    assert codes(ready, T3="another reason") == {"REL204"}
    assert codes(ready, T0=REASON) == {"REL202"}
    ran(T3, device(status="fail"))(ready)
    assert codes(ready, T3=REASON) == {"REL202"}
    ran(T3, acknowledged)(ready)
    ran(T3, host(status="not-run"))(ready)
    assert codes(ready, T3=REASON) == {"REL202"}


def test_the_command_line(ready: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    root = ["--root", str(ready.root)]
    assert tier_results.main(root) == 0
    assert tier_results.main([*root, "--tier", "t1"]) == 1
    assert "docs/validation_logs/<date>/t1/t1.json: REL201" in capsys.readouterr().out
    assert tier_results.main([*root, "--tier", "t9"]) == 2
    assert "there is no tier t9" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        tier_results.main([*root, "--device-not-run", "T9=x"])
    assert tier_results.main(["--root", str(tmp_path / "nowhere")]) == 2
    ready.write(T3, "{")
    ready.commit("broken")
    assert tier_results.main(root) == 2
    ready.write(T3, '{"schema": "mmaemu.tier/2", "parts": []}')
    ready.commit("broken")
    assert tier_results.main(root) == 2

"""The tasks, run by the real invoke; the tools behind them are recorded, not run."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from invoke.collection import Collection
from invoke.executor import Executor
from invoke.parser import Parser

from files import ROOT

# Stands in for every tool: says how it was called and ends as it is told to.
RECORDER = """\
import json, os, sys
from pathlib import Path
with Path("calls.jsonl").open("a") as stream:
    stream.write(json.dumps([Path(sys.argv[0]).stem, *sys.argv[1:]]) + "\\n")
print("said by the tool")
print("complained by the tool", file=sys.stderr)
raise SystemExit(int(os.environ.get("TOOL_EXIT", "0")))
"""
TOOLS = (
    "build_cpu",
    "build_fatbin",
    "bump",
    "check_data",
    "check_dist",
    "check_docs",
    "check_release",
    "check_repo",
    "check_workflows",
    "confirm",
    "dist",
    "doctor",
    "downstream_bump",
    "freeze",
    "gate",
    "generate_docs",
    "golden",
    "leftovers",
    "manifest",
    "nightly",
    "pins",
    "quota",
    "release_notes",
    "run_ci",
    "sizes",
    "snapshot",
    "stage",
    "version",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "tasks.py", tmp_path)
    (tmp_path / "tools").mkdir()
    for name in TOOLS:
        (tmp_path / "tools" / f"{name}.py").write_text(RECORDER, encoding="utf-8")
    return tmp_path


@pytest.fixture(scope="module")
def tasks() -> Collection:
    spec = importlib.util.spec_from_file_location("our_tasks", ROOT / "tasks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Collection.from_module(module)


def invoke(
    folder: Path, *arguments: str, code: int = 0, text: bool = True
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "invoke", *arguments],
        cwd=folder,
        env={"TOOL_EXIT": str(code), "PATH": ""},
        capture_output=True,
        text=text,
        check=False,
    )


def calls(folder: Path) -> list[list[str]]:
    path = folder / "calls.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


CALLS = {
    "stage dist --channel release --only a --only b --abis 2.11.0 --publish no --run-id 7": [
        *("stage", "dist", "--channel", "release", "--only", "a", "--only", "b"),
        *("--abis", "2.11.0", "--publish", "no", "--run", "7"),
    ],
    "stage build/nightly/x --channel nightly --execute --allow-remote": [
        *("stage", "build/nightly/x", "--channel", "nightly", "--execute", "--allow-remote"),
    ],
    "manifest dist --dry-run": ["manifest", "dist", "--dry-run"],
    "gate m.json --execute": ["gate", "m.json", "--execute"],
    "confirm m.json --sums dist/SHA256SUMS --wait 60": [
        *("confirm", "m.json", "--sums", "dist/SHA256SUMS", "--wait", "60"),
    ],
    "leftovers --clean 1.2.3 --only a --execute": [
        *("leftovers", "--clean", "1.2.3", "--only", "a", "--execute"),
    ],
    "quota --days 60 --sizes dist": ["quota", "--days", "60", "--sizes", "dist"],
    "version 0.1.0 --date 2026-12-01": ["version", "0.1.0", "--date", "2026-12-01"],
    "version 0.1.0 --date 2026-12-01 --device-not-run T3=a --device-not-run T7=b --dry-run": [
        *("version", "0.1.0", "--date", "2026-12-01", "--device-not-run", "T3=a"),
        *("--device-not-run", "T7=b", "--dry-run"),
    ],
    "release-state --version 0.1.0 --matrix m.json": [
        *("check_release", "--version", "0.1.0", "--matrix", "m.json"),
    ],
    "freeze --version 0.1.0 --settle --replace v4,h4 --commit-log --device-not-run T3=a": [
        *("freeze", "--version", "0.1.0", "--settle", "--replace", "v4,h4", "--commit-log"),
        *("--device-not-run", "T3=a"),
    ],
    "dist --version 0.1.0": ["dist", "--version", "0.1.0", "--tiers"],
    "dist --version 0.1.0 --dirty": ["dist", "--version", "0.1.0", "--dirty"],
    "dist --version 0.1.0 --tag v0.1.0 --require-fatbins --device-not-run T3=a": [
        *("dist", "--version", "0.1.0", "--tag", "v0.1.0", "--require-fatbins", "--tiers"),
        *("--device-not-run", "T3=a"),
    ],
    "snapshot": ["snapshot", "--to", "public"],
    "snapshot --to ci --remote /somewhere/ci.git --device-not-run T7=c": [
        *("snapshot", "--to", "ci", "--remote", "/somewhere/ci.git", "--device-not-run", "T7=c"),
    ],
    "golden candidate --version 0.1.1.dev20261201080000 --ask-hosting": [
        *("golden", "candidate", "--version", "0.1.1.dev20261201080000", "--ask-hosting"),
    ],
    "golden resume --runs a=1,b=2": ["golden", "resume", "--run", "a=1", "--run", "b=2"],
    "golden record --execute --remote /somewhere/dev.git": [
        *("golden", "record", "--remote", "/somewhere/dev.git", "--execute"),
    ],
    "golden record --pull-request --allow-remote --dry-run": [
        *("golden", "record", "--pull-request", "--allow-remote", "--dry-run"),
    ],
    "golden verify": ["golden", "verify"],
    "downstream-bump --version 1 --execute": ["downstream_bump", "--version", "1", "--execute"],
    "bump --released 0.1.0 --dry-run": ["bump", "--released", "0.1.0", "--dry-run"],
    "release-notes 0.1.0 --out notes.md": [
        *("release_notes", "0.1.0", "dist", "--out", "notes.md"),
    ],
    "doctor --secrets s.json --offline": ["doctor", "--secrets", "s.json", "--offline"],
    "nightly --channel nightly": ["nightly", "--channel", "nightly"],
    "nightly --channel nightly --only a --only b --abis 2.11.0 --execute --allow-remote": [
        *("nightly", "--channel", "nightly", "--only", "a", "--only", "b", "--abis", "2.11.0"),
        *("--execute", "--allow-remote"),
    ],
    "nightly --channel release --tag v0.1.0 --local --dry-run": [
        *("nightly", "--channel", "release", "--tag", "v0.1.0", "--local", "--dry-run"),
    ],
    "sizes": ["sizes", "build/nightly"],
    "sizes --paths a.whl,b.whl --channel nightly": [
        *("sizes", "a.whl", "b.whl", "--channel", "nightly"),
    ],
    "pins --wheels a.whl,b.whl --write --dry-run": [
        *("pins", "a.whl", "b.whl", "--write", "--dry-run"),
    ],
    "ci": ["run_ci"],
    "ci --jobs lint": ["run_ci", "lint"],
    "ci --jobs lint,dist": ["run_ci", "lint", "dist"],
    "docs": ["generate_docs"],
}


@pytest.mark.parametrize("line", CALLS)
def test_a_task_is_the_tools_command_with_its_options(
    line: str, tasks: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[list[str]] = []

    def recorded(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        called.append([Path(command[1]).stem, *command[2:]])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", recorded)
    Executor(tasks).execute(*Parser(contexts=tasks.to_contexts()).parse_argv(line.split()))
    assert called == [CALLS[line]]


def test_invoke_itself_finds_the_tasks(folder: Path) -> None:
    line = "golden record --pull-request --allow-remote --dry-run"
    assert invoke(folder, *line.split()).returncode == 0
    assert calls(folder) == [CALLS[line]]


@pytest.mark.parametrize("code", [1, 2, 3])
def test_a_failing_tool_ends_the_task_with_its_exit_code(code: int, folder: Path) -> None:
    # B33: a result that is printed, or returned as False, ends invoke with 0.
    done = invoke(folder, "check", code=code)
    assert done.returncode == code
    assert calls(folder) == [["check_repo"]]
    assert f"tools/check_repo.py exited with {code}" in done.stderr


def test_stock_invoke_swallows_what_our_tasks_raise(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(
        "from invoke.tasks import task\n\n"
        "@task\ndef warns(context):\n    context.run('exit 3', warn=True)\n\n"
        "@task\ndef returns(context):\n    return False\n",
        encoding="utf-8",
    )
    for name in ("warns", "returns"):
        done = subprocess.run(
            [sys.executable, "-m", "invoke", name], cwd=tmp_path, capture_output=True, check=False
        )
        assert done.returncode == 0


def test_a_repeated_task_runs_once_and_others_do_not_depend_on_it(folder: Path) -> None:
    # B36
    assert invoke(folder, "fatbin", "fatbin").returncode == 0
    assert calls(folder) == [
        ["build_fatbin", "--check", "--require-manifest"],
        ["build_cpu", "--check"],
        ["check_dist", "--verify-manifest"],
    ]


@pytest.mark.parametrize(
    "line",
    [
        "release_state",  # B37: names have dashes
        "version 0.1.0 --date 2026-12-01 --dry_run",
        "version --date 2026-12-01",
        "dist",
        "no-such-task",
    ],
)
def test_wrong_usage_runs_nothing(line: str, folder: Path) -> None:
    assert invoke(folder, *line.split()).returncode == 1
    assert calls(folder) == []


def test_output_arrives_unmixed_and_with_plain_line_ends(folder: Path) -> None:
    # B39: under a pseudo-terminal both streams would be one, with carriage returns.
    done = subprocess.run(
        [sys.executable, "-m", "invoke", "docs"], cwd=folder, capture_output=True, check=False
    )
    assert done.stdout == b"said by the tool\n"
    assert done.stderr == b"complained by the tool\n"


def test_every_tool_that_a_task_names_exists() -> None:
    missing = [name for name in TOOLS if not (ROOT / "tools" / f"{name}.py").is_file()]
    assert missing == []
    assert invoke(ROOT, "--list").returncode == 0


CHANNELS = (
    "nightly",
    "sizes",
    "pins",
    "stage",
    "manifest",
    "gate",
    "confirm",
    "leftovers",
    "golden",
    "downstream-bump",
    "release-notes",
    "bump",
    "quota",
    "doctor",
)


@pytest.mark.parametrize("name", CHANNELS)
def test_a_task_of_the_channels_shows_an_example_and_has_a_dry_run(
    name: str, tasks: Collection
) -> None:
    found = re.search(r"^ *Example: invoke (.+)$", tasks[name].__doc__ or "", re.MULTILINE)
    assert found is not None
    parser = Parser(contexts=tasks.to_contexts())
    for words in ([], ["--json"], ["--dry-run", "--json"]):
        (context,) = parser.parse_argv([*shlex.split(found[1]), *words])
        assert context.name == name
        assert context.args["json"].value is bool(words)


@pytest.mark.parametrize("name", CHANNELS)
def test_a_tool_of_the_channels_knows_json_and_dry_run(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        importlib.import_module(name.replace("-", "_")).main(["--help"])
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    for option in ("--json", "--dry-run"):
        assert re.search(rf"^  {option} ", printed, re.MULTILINE)


def test_json_goes_to_the_tool(folder: Path) -> None:
    assert invoke(folder, "bump", "--json").returncode == 0
    assert invoke(folder, "nightly", "--channel", "nightly", "--json").returncode == 0
    assert calls(folder) == [["bump", "--json"], ["nightly", "--channel", "nightly", "--json"]]


def test_a_task_asked_for_help_starts_nothing(folder: Path) -> None:
    for name in ("nightly", "bump", "doctor"):
        assert f"[--core-opts] {name}" in invoke(folder, name, "--help").stdout
    assert calls(folder) == []

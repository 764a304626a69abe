"""Records of golden commits, on real bare repositories."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import golden
import golden_records
import in_process
from files import ROOT, sha256_of_tree
from findings import UnusableError
from forks import Forks
from git_commands import Git
from golden_records import LKG, TABLE, Row
from repositories import PLAIN

TOOL = ROOT / "tools" / "golden.py"
CANARIES = """
[tool.mmaemu.release.golden]
canaries = [{ name = "first", repository = "x", lanes = { tests = ["true"] } }]
"""
WHEEL = "ab" * 32


@dataclass
class Desk:
    """A development clone, its bare remote, and gate results to record."""

    dev: Any
    remote: Path
    folder: Path

    def gate(self, commit: str, day: int = 1, *, state: str = "passed", wheel: str = WHEEL) -> Path:
        """A folder with the result of a gate of this commit, verified on a day of December."""
        version = f"0.1.1.dev202612{day:02}080000"
        lane = {"state": state, "reason": "", "seconds": 1.0}
        candidate = {
            "distribution": "pkgx",
            "package": "pkgx",
            "version": version,
            "commit": commit,
            "wheel": f"pkgx-{version}-py3-none-any.whl",
            "sha256": wheel,
            "path": "unused",
        }
        document = {
            "schema": golden.GATE_SCHEMA,
            "candidate": candidate,
            "results": [{"name": "first", "run": f"first-{day}", "lanes": {"tests": lane}}],
            "verified_at": f"2026-12-{day:02}T12:00:00Z",
        }
        work = self.folder / f"work-{day}-{commit[:8]}-{wheel[:2]}"
        work.mkdir(exist_ok=True)
        (work / "gate.json").write_text(json.dumps(document), encoding="utf-8")
        return work

    def command(self, step: str, *arguments: str) -> list[str]:
        places = ("--root", str(self.dev.root), "--remote", str(self.remote))
        return [sys.executable, str(TOOL), step, *places, *arguments]

    def run(self, step: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return in_process.run(golden, self.command(step, *arguments)[2:], os.environ)

    def record(self, work: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run("record", "--work", str(work), "--execute", *arguments)

    def finish(self, work: Path) -> int:
        """As `record`, in this process."""
        return golden.main([*self.command("record", "--work", str(work), "--execute")[2:]])

    def show(self, name: str) -> str:
        return Git(self.remote).line("show", f"main:{name}")

    def rows(self) -> tuple[Row, ...]:
        return golden_records.parse_table(self.show(TABLE))

    def refs(self) -> dict[str, str]:
        return golden_records.remote_refs(Git(self.remote), str(self.remote))


@pytest.fixture
def desk(repository: Any, bare: Callable[[str], Path], tmp_path: Path) -> Desk:
    pyproject = repository.root / "pyproject.toml"
    repository.write("pyproject.toml", pyproject.read_text(encoding="utf-8") + CANARIES)
    remote = bare("development")
    repository.commit("canaries")
    repository.git("push", "--quiet", str(remote), "HEAD:refs/heads/main")
    return Desk(repository, remote, tmp_path)


def head(desk: Desk) -> str:
    return str(desk.dev.git("rev-parse", "HEAD"))


def grow(desk: Desk, count: int) -> list[str]:
    """More commits on the remote's branch, oldest first."""
    commits = [desk.dev.commit(f"work {number}") for number in range(count)]
    desk.dev.git("push", "--quiet", str(desk.remote), "HEAD:refs/heads/main")
    return commits


# --- the table -----------------------------------------------------------------------------------


def test_the_table_is_written_oldest_first_with_a_column_for_every_canary() -> None:
    old = Row("2026-11-02T12:00:00Z", "a" * 40, "0.1.0.dev1", WHEEL, (("first", "7"),))
    new = Row("2026-12-02T12:00:00Z", "b" * 40, "0.1.0.dev2", WHEEL, (("second", "https://r/1,2"),))
    text = golden_records.format_table((new, old))
    assert text.splitlines() == [
        "verified_at,commit,version,wheel_sha256,first,second",
        f"2026-11-02T12:00:00Z,{'a' * 40},0.1.0.dev1,{WHEEL},7,",
        f'2026-12-02T12:00:00Z,{"b" * 40},0.1.0.dev2,{WHEEL},,"https://r/1,2"',
    ]
    assert golden_records.parse_table(text) == (old, new)
    assert golden_records.with_row((old, new), old) == (old, new)


@pytest.mark.parametrize(
    "text",
    [
        "commit,version\n",
        "verified_at,commit,version,wheel_sha256,first,first\n",
        "verified_at,commit,version,wheel_sha256\n2026-12-01T00:00:00Z,abc\n",
        f"verified_at,commit,version,wheel_sha256\nyesterday,{'a' * 40},1,{WHEEL}\n",
        f"verified_at,commit,version,wheel_sha256\n2026-12-01T00:00:00Z,main,1,{WHEEL}\n",
        "<<<<<<< HEAD\n",
    ],
)
def test_a_table_that_somebody_merged_or_edited_is_an_error(text: str) -> None:
    with pytest.raises(UnusableError, match=r"verified_commits\.csv|expected a time"):
        golden_records.parse_table(text)


@pytest.mark.parametrize("protected", [True, False])
def test_records_are_never_merged_as_text(desk: Desk, protected: bool) -> None:
    if protected:
        shutil.copy(ROOT / ".gitattributes", desk.dev.root)
    rows = [f"row {number}\n" for number in range(20)]
    desk.dev.write(TABLE, "".join(rows))
    desk.dev.commit("records")
    for side, lines in (("first", ["new\n", *rows]), ("second", [*rows, "new\n"])):
        desk.dev.git("checkout", "--quiet", "-b", side, "main")
        desk.dev.write(TABLE, "".join(lines))
        desk.dev.commit(side)
    done = subprocess.run(
        ["git", "merge", "--quiet", "-m", "merge", "first"],
        cwd=desk.dev.root,
        env=os.environ | PLAIN,
        capture_output=True,
        check=False,
    )
    # Without the attribute git puts both rows in, in an order that nobody computed.
    assert done.returncode == (1 if protected else 0)


# --- recording -----------------------------------------------------------------------------------


def test_one_push_brings_table_newest_commit_and_tag(desk: Desk) -> None:
    commit = head(desk)
    done = desk.record(desk.gate(commit))
    assert done.returncode == 0, done.stdout + done.stderr
    assert desk.show(LKG) == commit
    row = Row(
        "2026-12-01T12:00:00Z", commit, "0.1.1.dev20261201080000", WHEEL, (("first", "first-1"),)
    )
    assert desk.rows() == (row,)
    assert desk.refs()["refs/tags/golden-20261201"] == commit
    log = Git(desk.remote).lines("log", "-1", "--format=%an|%ae|%aI|%s", "main")
    assert log == (
        "pkgx release|release@pkgx.invalid|2026-12-01T12:00:00+00:00|"
        "Record 0.1.1.dev20261201080000 as golden",
    )
    verified = desk.run("verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_recording_again_changes_nothing(desk: Desk) -> None:
    work = desk.gate(head(desk))
    assert desk.record(work).returncode == 0
    before = sha256_of_tree(desk.remote)
    again = desk.record(work)
    assert again.returncode == 0
    assert "is recorded and tagged golden-20261201" in again.stdout
    assert sha256_of_tree(desk.remote) == before


@pytest.mark.parametrize("arguments", [("--dry-run",), ("--execute", "--dry-run"), ()])
def test_without_execute_the_remote_stays_byte_for_byte(
    desk: Desk, arguments: tuple[str, ...]
) -> None:
    before = sha256_of_tree(desk.remote)
    done = desk.run("record", "--work", str(desk.gate(head(desk))), *arguments)
    assert done.returncode == 0, done.stderr
    assert "tag golden-20261201" in done.stdout
    assert sha256_of_tree(desk.remote) == before


def printed_pushes(text: str) -> Iterator[str]:
    return (line for line in text.splitlines() if line.startswith("env "))


def test_by_default_a_branch_for_a_pull_request_and_the_tag_after_it_landed(desk: Desk) -> None:
    commit = head(desk)
    work = desk.gate(commit)
    for _ in range(2):  # The branch may be made again before it lands.
        printed = desk.run("record", "--work", str(work)).stdout
        assert "label 'golden record'" in printed
        assert "refs/tags" not in printed.partition("# 1.")[2]
        for line in printed_pushes(printed):
            subprocess.run(["bash", "-c", line], cwd=desk.dev.root, check=True)
    branch = "golden/0.1.1.dev20261201080000"
    assert "refs/tags/golden-20261201" not in desk.refs()
    assert Git(desk.remote).line("show", f"{branch}:{LKG}") == commit
    # The request is merged; other work landed meanwhile.
    desk.dev.git("fetch", "--quiet", str(desk.remote), branch)
    desk.dev.git("merge", "--quiet", "-m", "merge", "FETCH_HEAD")
    grow(desk, 1)
    listed = desk.run("tags").stdout
    assert "1 of 1 records lacked a tag" in listed
    printed = desk.run("record", "--work", str(work)).stdout
    assert "the record has landed" in printed
    assert list(printed_pushes(printed)) == list(printed_pushes(listed))
    for line in printed_pushes(printed):
        subprocess.run(["bash", "-c", line], cwd=desk.dev.root, check=True)
    assert desk.refs()["refs/tags/golden-20261201"] == commit
    assert desk.run("verify").returncode == 0


def test_a_request_that_was_overtaken_is_continued_without_force(desk: Desk) -> None:
    Git(desk.remote).run("config", "receive.denyNonFastForwards", "true")
    first, second = grow(desk, 2)
    work = desk.gate(first, day=1)
    branch = "golden/0.1.1.dev20261201080000"

    def propose() -> str:
        printed = desk.run("record", "--work", str(work)).stdout
        for line in printed_pushes(printed):
            subprocess.run(["bash", "-c", line], cwd=desk.dev.root, check=True)
        return printed

    propose()
    before = desk.refs()[f"refs/heads/{branch}"]
    # Somebody adds to the request, and another record lands first.
    desk.dev.git("fetch", "--quiet", str(desk.remote), branch)
    desk.dev.git("checkout", "--quiet", "--detach", "FETCH_HEAD")
    touched = desk.dev.commit("a word from the reviewer")
    desk.dev.git("push", "--quiet", str(desk.remote), f"{touched}:refs/heads/{branch}")
    assert desk.record(desk.gate(second, day=2)).returncode == 0
    propose()
    remote = Git(desk.remote)
    after = desk.refs()[f"refs/heads/{branch}"]
    for older in (before, touched, desk.refs()["refs/heads/main"]):
        remote.run("merge-base", "--is-ancestor", older, after)
    rows = golden_records.parse_table(remote.run("show", f"{branch}:{TABLE}").decode())
    assert [row.commit for row in rows] == [first, second]
    assert remote.line("show", f"{branch}:{LKG}") == second
    assert "(it is there already)" in propose()
    assert desk.refs()[f"refs/heads/{branch}"] == after


def test_tags_are_brought_for_records_that_landed(desk: Desk) -> None:
    first, second = grow(desk, 2)
    for day, commit in ((1, first), (2, second)):
        assert desk.record(desk.gate(commit, day)).returncode == 0
    Git(desk.remote).run("update-ref", "-d", "refs/tags/golden-20261201")
    before = sha256_of_tree(desk.remote)
    assert desk.run("tags", "--dry-run").returncode == 0
    assert sha256_of_tree(desk.remote) == before
    assert desk.run("tags", "--execute").returncode == 0
    assert desk.refs()["refs/tags/golden-20261201"] == first
    assert "0 of 2 records lacked a tag" in desk.run("tags", "--execute").stdout
    assert desk.run("verify").returncode == 0


def test_the_newest_is_decided_by_ancestry_not_by_date(desk: Desk) -> None:
    older, newer = grow(desk, 2)
    assert desk.record(desk.gate(newer, day=2)).returncode == 0
    assert desk.record(desk.gate(older, day=5)).returncode == 0
    assert desk.show(LKG) == newer
    assert [row.commit for row in desk.rows()] == [newer, older]


def test_records_can_have_a_branch_of_their_own(desk: Desk) -> None:
    pyproject = desk.dev.root / "pyproject.toml"
    text = pyproject.read_text(encoding="utf-8")
    desk.dev.write("pyproject.toml", text.replace("golden]\n", 'golden]\nrecords = "golden"\n'))
    commit = head(desk)
    assert desk.record(desk.gate(commit)).returncode == 0
    remote = Git(desk.remote)
    assert remote.lines("ls-tree", "--name-only", "golden") == (LKG, TABLE)
    assert remote.line("rev-parse", "main") == commit
    assert desk.record(desk.gate(grow(desk, 1)[0], day=3)).returncode == 0
    assert remote.line("rev-list", "--count", "golden") == "2"
    assert desk.run("verify").returncode == 0


# --- refusals ------------------------------------------------------------------------------------


def refused(desk: Desk, work: Path, code: str) -> str:
    before = sha256_of_tree(desk.remote)
    done = desk.record(work)
    assert done.returncode == 1, done.stdout + done.stderr
    assert {word for word in done.stdout.split() if word.startswith("GOLD")} == {code}
    assert sha256_of_tree(desk.remote) == before
    return done.stdout


def test_a_tag_on_another_commit_is_never_moved(desk: Desk) -> None:
    first, second = grow(desk, 2)
    desk.dev.git("push", "--quiet", str(desk.remote), f"{first}:refs/tags/golden-20261201")
    refused(desk, desk.gate(second), "GOLD131")


def test_a_version_is_recorded_with_one_wheel(desk: Desk) -> None:
    assert desk.record(desk.gate(head(desk))).returncode == 0
    refused(desk, desk.gate(head(desk), wheel="cd" * 32), "GOLD132")


def test_a_commit_that_is_not_on_the_branch_is_refused(desk: Desk) -> None:
    refused(desk, desk.gate(desk.dev.commit("not pushed")), "GOLD133")


@pytest.mark.parametrize("hook", ["pre-receive", "update"])
def test_protected_tags_are_reported_and_nothing_is_half_there(desk: Desk, hook: str) -> None:
    refs = "while read old new ref" if hook == "pre-receive" else 'for ref in "$1"'
    path = desk.remote / "hooks" / hook
    path.write_text(
        f'#!/bin/sh\n{refs}; do case "$ref" in refs/tags/*) echo "tags are protected" >&2; '
        "exit 1;; esac; done\n",
        encoding="utf-8",
    )
    path.chmod(0o755)
    before = desk.refs()
    done = desk.record(desk.gate(head(desk)))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "GOLD134" in done.stdout
    assert "tags are protected" in done.stdout
    assert desk.refs() == before


@pytest.mark.parametrize(("state", "code"), [("failed", 1), ("inconclusive", 3), ("skipped", 3)])
def test_only_passed_is_recorded(desk: Desk, state: str, code: int) -> None:
    before = sha256_of_tree(desk.remote)
    done = desk.record(desk.gate(head(desk), state=state))
    assert done.returncode == code, done.stdout + done.stderr
    assert sha256_of_tree(desk.remote) == before


def test_a_gate_without_a_canary_of_the_project_is_refused(desk: Desk) -> None:
    text = (desk.dev.root / "pyproject.toml").read_text(encoding="utf-8")
    second = ', { name = "second", repository = "y", lanes = { tests = ["true"] } }]'
    desk.dev.write("pyproject.toml", text.rstrip().removesuffix("]") + second)
    refused(desk, desk.gate(head(desk)), "GOLD122")


def test_a_shallow_clone_cannot_decide(desk: Desk) -> None:
    commit = grow(desk, 3)[1]
    shallow = desk.folder / "shallow"
    source = f"file://{desk.remote}"
    subprocess.run(
        ["git", "clone", "--quiet", "--depth", "1", "--branch", "main", source, str(shallow)],
        check=True,
    )
    before = sha256_of_tree(desk.remote)
    for step in ("record", "verify"):
        done = subprocess.run(
            [
                *(sys.executable, str(TOOL), step, "--root", str(shallow)),
                *("--remote", str(desk.remote), "--work", str(desk.gate(commit)), "--execute"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 3, done.stdout + done.stderr
        assert "cannot decide in a shallow clone" in done.stderr
    assert sha256_of_tree(desk.remote) == before


def test_a_remote_of_another_machine_needs_a_word(desk: Desk) -> None:
    done = subprocess.run(
        [
            *(sys.executable, str(TOOL), "record", "--root", str(desk.dev.root)),
            *("--remote", "https://git.invalid/x/y.git", "--execute"),
            *("--work", str(desk.gate(head(desk)))),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "--allow-remote" in done.stderr


# --- interruptions -------------------------------------------------------------------------------

# Takes git's place: ends its caller with SIGKILL before or after the command of a given number.
KILLER = """\
#!/bin/sh
n=$(($(cat "$KILL_COUNT") + 1))
echo $n > "$KILL_COUNT"
[ "$KILL_AT" = "$n before" ] && { kill -9 $PPID; exit 9; }
"$REAL_GIT" "$@"
code=$?
[ "$KILL_AT" = "$n after" ] && { kill -9 $PPID; exit 9; }
exit $code
"""


def test_killed_between_any_two_git_operations_a_rerun_finishes(desk: Desk) -> None:
    commit = head(desk)
    work = desk.gate(commit)
    before = desk.refs()
    pristine = shutil.copytree(desk.remote, desk.folder / "pristine")
    bin_folder = desk.folder / "bin"
    bin_folder.mkdir()
    (bin_folder / "git").write_text(KILLER, encoding="utf-8")
    (bin_folder / "git").chmod(0o755)
    count = desk.folder / "count"
    real = str(shutil.which("git"))

    def attempt(point: str) -> int:
        count.write_text("0", encoding="utf-8")
        env = {
            "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
            "REAL_GIT": real,
            "KILL_COUNT": str(count),
            "KILL_AT": point,
        }
        line = desk.command("record", "--work", str(work), "--execute")[2:]
        (code,) = forks.together([line], env)
        return code

    with Forks("golden") as forks:
        assert attempt("never") == 0
        wanted, total = desk.refs(), int(count.read_text())
        assert total > 10
        # What is killed before the next command was killed after this one.
        for number in range(1, total + 1):
            shutil.rmtree(desk.remote)
            shutil.copytree(pristine, desk.remote)
            assert attempt(f"{number} before") == -9
            assert desk.refs() in (before, wanted)
            assert desk.finish(work) == 0
            assert desk.refs() == wanted
            assert len(desk.rows()) == 1
        assert attempt(f"{total} after") in (-9, 0)
        assert desk.refs() == wanted


def together(desk: Desk, works: list[Path]) -> list[int]:
    """Exit codes of records that run at the same time."""
    with Forks("golden") as forks:
        return forks.together(
            [desk.command("record", "--work", str(work), "--execute")[2:] for work in works]
        )


def test_twenty_records_at_once_lose_nothing_and_double_nothing(desk: Desk) -> None:
    commits = grow(desk, 20)
    works = [desk.gate(commit, day) for day, commit in enumerate(commits, start=1)]
    codes = together(desk, works)
    assert set(codes) <= {0, 3}
    assert 0 in codes
    # Whoever was overtaken too often says that a rerun is needed, and the rerun finishes.
    for work, code in zip(works, codes, strict=True):
        if code:
            assert desk.finish(work) == 0
    assert [row.commit for row in desk.rows()] == commits
    assert desk.show(LKG) == commits[-1]
    tags = {name: oid for name, oid in desk.refs().items() if name.startswith("refs/tags/")}
    assert tags == {f"refs/tags/golden-202612{day:02}": c for day, c in enumerate(commits, start=1)}
    assert desk.run("verify").returncode == 0


def test_twenty_records_of_the_same_candidate_are_one(desk: Desk) -> None:
    work = desk.gate(head(desk))
    assert set(together(desk, [work] * 20)) <= {0, 3}
    assert desk.record(work).returncode == 0
    assert len(desk.rows()) == 1
    assert Git(desk.remote).line("rev-list", "--count", f"{head(desk)}..main") == "1"


# --- verification --------------------------------------------------------------------------------


def damaged(desk: Desk, name: str, change: Callable[[str], str]) -> str:
    """Change a record by hand at the remote, and return what verify says."""
    desk.dev.git("fetch", "--quiet", str(desk.remote), "main")
    desk.dev.git("checkout", "--quiet", "--detach", "FETCH_HEAD")
    desk.dev.write(name, change((desk.dev.root / name).read_text(encoding="utf-8")))
    grow(desk, 1)
    done = desk.run("verify")
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def swapped(text: str) -> str:
    header, first, second = text.splitlines()
    return f"{header}\n{second}\n{first}\n"


@pytest.mark.parametrize(
    ("name", "change", "code"),
    [
        (TABLE, swapped, "GOLD101"),
        (TABLE, lambda text: text + text.splitlines()[-1] + "\n", "GOLD101"),
        (TABLE, lambda text: text.replace(text.splitlines()[1].split(",")[1], "0" * 40), "GOLD102"),
        (LKG, lambda _: "0" * 40 + "\n", "GOLD103"),
        (TABLE, lambda text: "\n".join(text.splitlines()[:2]) + "\n", "GOLD105"),
    ],
)
def test_verify_finds_each_edit_by_hand(
    desk: Desk, name: str, change: Callable[[str], str], code: str
) -> None:
    first, second = grow(desk, 2)
    assert desk.record(desk.gate(first, 1)).returncode == 0
    assert desk.record(desk.gate(second, 2)).returncode == 0
    assert code in damaged(desk, name, change)


def test_verify_finds_a_missing_and_a_moved_tag(desk: Desk) -> None:
    commit = head(desk)
    assert desk.record(desk.gate(commit)).returncode == 0
    remote = Git(desk.remote)
    remote.run("update-ref", "refs/tags/golden-20261201", "main")
    assert "GOLD104" in desk.run("verify").stdout
    remote.run("update-ref", "-d", "refs/tags/golden-20261201")
    assert "GOLD104" in desk.run("verify").stdout


def test_an_old_golden_commit_gives_a_warning(desk: Desk) -> None:
    assert "warning: there is no golden commit yet" in desk.run("verify").stdout
    assert desk.record(desk.gate(head(desk))).returncode == 0
    git = Git(desk.dev.root)
    state = golden_records.read_state(git, golden_records.Places(str(desk.remote)))
    for day, said in (("14", None), ("15", "14 days ago"), ("25", "24 days ago")):
        now = golden_records.parse_time(f"2026-12-{day}T12:00:00Z")
        warning = golden_records.staleness(state, now)
        assert (warning is None) if said is None else (said in str(warning))


# --- cutting a release ---------------------------------------------------------------------------


def test_a_release_is_cut_from_a_golden_commit(desk: Desk) -> None:
    assert "no golden commit yet" in desk.run("cut").stdout
    assert desk.record(desk.gate(head(desk))).returncode == 0
    desk.dev.write("CHANGELOG.md", "# Changelog\n")
    desk.dev.write("pkgx/_version.py", '__version__ = "0.2.0"\n')
    desk.dev.commit("release")
    done = desk.run("cut")
    assert done.returncode == 0, done.stdout + done.stderr
    desk.dev.write("pkgx/late.py", "x = 1\n")
    desk.dev.commit("one more thing")
    done = desk.run("cut")
    assert done.returncode == 1
    assert "pkgx/late.py: GOLD141" in done.stdout
    assert desk.run("cut", "--commit", "HEAD~1").returncode == 0


def test_of_pyproject_a_release_changes_the_version_only(desk: Desk) -> None:
    path = desk.dev.root / "pyproject.toml"
    text = path.read_text(encoding="utf-8").replace('dynamic = ["version"]', 'version = "0.1.0"')
    desk.dev.write("pyproject.toml", text)
    commit = desk.dev.commit("static version")
    desk.dev.git("push", "--quiet", str(desk.remote), "HEAD:refs/heads/main")
    assert desk.record(desk.gate(commit)).returncode == 0
    desk.dev.write("pyproject.toml", text.replace('"0.1.0"', '"0.2.0"'))
    desk.dev.commit("release")
    assert desk.run("cut").returncode == 0
    desk.dev.write("pyproject.toml", text.replace("packaging>=24.2", "packaging>=25"))
    desk.dev.commit("another dependency")
    assert "pyproject.toml: GOLD141" in desk.run("cut").stdout

"""Pins of real consumer repositories, moved to a golden nightly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import downstream_bump
import golden_records
from files import parse_toml, sha256_of_tree
from git_commands import Git
from golden_records import Row
from hosting_double import HostingDouble
from project import load_project
from repositories import Repository, run

OLD, NEW = "0.1.0.dev20261101080000", "0.1.0.dev20261201080000"
PYPROJECT = f"""\
# The consumer.
[project]
dependencies = [
    "pkgx[more] == {OLD} ; python_version >= '3.10'", # keep in step
    'other=={OLD}',
    "pkgx-extras=={OLD}",
]

[dependency-groups]
test = ["PkgX=={OLD}"]
"""
REQUIREMENTS = f"# pins\n--no-binary :none:\npkgx=={OLD}  # the nightly\nother==1\n"


@dataclass
class Desk:
    """A project with one golden commit, and two consumers."""

    dev: Repository
    remote: Path
    consumers: dict[str, Path]
    folder: Path

    def configure(self, fork: str = "", **pins: list[str]) -> None:
        text = (self.dev.root / "pyproject.toml").read_text(encoding="utf-8")
        table = f'\n[tool.mmaemu.release.golden]\nfork = "{fork}"\n'
        for name, files in pins.items():
            table += (
                "[[tool.mmaemu.release.golden.canaries]]\n"
                f'name = "{name}"\nrepository = "{self.consumers[name]}"\npins = {files}\n'
                'lanes = { tests = ["true"] }\n'
            )
        head = text.partition("\n[tool.mmaemu.release.golden]")[0]
        self.dev.write("pyproject.toml", head + table)

    def run(self, *arguments: str) -> int:
        places = ("--root", str(self.dev.root), "--remote", str(self.remote))
        return downstream_bump.main([*places, *arguments])

    def show(self, name: str, path: str, version: str = NEW) -> str:
        return Git(self.consumers[name]).run("show", f"bump/pkgx-{version}:{path}").decode()

    def branches(self, name: str) -> tuple[str, ...]:
        refs = ("for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads")
        return Git(self.consumers[name]).lines(*refs)


def consumer(folder: Path, name: str, files: dict[str, str]) -> Path:
    """A bare repository with these files on main."""
    work = Repository(folder / "work" / name)
    for path, text in files.items():
        work.write(path, text)
    work.git("init", "--quiet", "--initial-branch", "main")
    work.commit("consumer")
    target = folder / "consumers" / name
    target.parent.mkdir(exist_ok=True)
    run("git", "clone", "--quiet", "--bare", str(work.root), str(target), cwd=folder)
    return target


@pytest.fixture
def desk(repository: Any, bare: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.delenv(downstream_bump.TOKEN, raising=False)
    remote = bare("development")
    commit = repository.git("rev-parse", "HEAD")
    repository.git("push", "--quiet", str(remote), "HEAD:refs/heads/main")
    git = Git(repository.root)
    for number, version in enumerate((OLD, NEW), start=1):
        state = golden_records.read_state(git, golden_records.Places(str(remote)))
        row = Row(f"2026-12-0{number}T12:00:00Z", commit, version, "ab" * 32, (("first", "1"),))
        plan = golden_records.plan_record(state, row)
        golden_records.push(git, plan, load_project(repository.root).release)
    files = {"pyproject.toml": PYPROJECT, "requirements.txt": REQUIREMENTS}
    consumers = {
        "first": consumer(tmp_path, "first", files),
        "second": consumer(tmp_path, "second", {"pins.txt": f"pkgx=={OLD}\n"}),
    }
    made = Desk(repository, remote, consumers, tmp_path)
    made.configure(first=["pyproject.toml", "requirements.txt"], second=["pins.txt"])
    return made


@pytest.fixture
def hosting(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostingDouble]:
    with HostingDouble() as double:
        monkeypatch.setenv("MMAEMU_HOSTING_API_URL", double.url)
        monkeypatch.setenv(downstream_bump.TOKEN, "t0ken")
        yield double


def test_exact_pins_move_and_nothing_else(desk: Desk) -> None:
    assert desk.run("--execute") == 0
    text = desk.show("first", "pyproject.toml")
    assert text == PYPROJECT.replace(f"== {OLD} ;", f"== {NEW} ;").replace(
        f"PkgX=={OLD}", f"PkgX=={NEW}"
    )
    assert parse_toml(text)["project"]["dependencies"][1:] == [
        f"other=={OLD}",
        f"pkgx-extras=={OLD}",
    ]
    assert desk.show("first", "requirements.txt") == REQUIREMENTS.replace(
        f"pkgx=={OLD}", f"pkgx=={NEW}"
    )
    assert desk.show("second", "pins.txt") == f"pkgx=={NEW}\n"
    # The consumer's own branch is for its owners.
    assert Git(desk.consumers["second"]).line("show", "main:pins.txt") == f"pkgx=={OLD}"


def test_a_rerun_changes_nothing(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert desk.run("--execute") == 0
    before = [sha256_of_tree(path) for path in desk.consumers.values()]
    assert desk.run("--execute") == 0
    assert [sha256_of_tree(path) for path in desk.consumers.values()] == before
    assert "is there already" in capsys.readouterr().out


def test_a_branch_that_was_overtaken_is_continued_without_force(desk: Desk) -> None:
    target = Git(desk.consumers["second"])
    target.run("config", "receive.denyNonFastForwards", "true")
    assert desk.run("--execute", "second") == 0
    (branch,) = [ref for ref in target.lines("for-each-ref", "--format=%(refname)") if NEW in ref]
    before = target.line("rev-parse", branch)
    consumer_moves(desk, "second", "pins.txt", f"pkgx=={OLD}\nother==1\n")
    for _ in range(2):
        assert desk.run("--execute", "second") == 0
        assert target.line("show", f"{branch}:pins.txt") == f"pkgx=={NEW}\nother==1"
        parents = target.line("rev-list", "--parents", "-1", branch).split()[1:]
        assert parents == [target.line("rev-parse", "main"), before]


def consumer_moves(desk: Desk, name: str, path: str, text: str) -> None:
    """Commit a change of a file to a consumer's main branch."""
    clone = desk.folder / f"{name} at work"
    run("git", "clone", "--quiet", str(desk.consumers[name]), str(clone), cwd=desk.folder)
    work = Repository(clone)
    work.write(path, text)
    work.commit("the owners' own work")
    work.git("push", "--quiet", "origin", "HEAD:refs/heads/main")


@pytest.mark.parametrize("arguments", [(), ("--dry-run",), ("--dry-run", "--execute")])
def test_without_execute_consumers_stay_byte_for_byte(
    desk: Desk, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    before = [sha256_of_tree(path) for path in desk.consumers.values()]
    assert desk.run(*arguments) == 0
    assert [sha256_of_tree(path) for path in desk.consumers.values()] == before
    assert f"first requirements.txt: pkgx=={NEW}" in capsys.readouterr().out


def test_a_consumer_that_has_the_version_is_left_alone(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    assert desk.run("second", "--version", OLD, "--execute") == 0
    assert f"pins {OLD} already" in capsys.readouterr().out
    assert desk.branches("second") == ("main",)


@pytest.mark.parametrize(
    ("files", "pins", "code"),
    [
        ({"a.txt": f"pkgx=={OLD}\n"}, ["a.txt", "b.txt"], "GOLD152"),
        ({"a.txt": f"pkgx=={OLD}\n", "b.txt": "other==1\n"}, ["a.txt", "b.txt"], "GOLD152"),
        ({"a.txt": f"pkgx=={OLD}\n", "b.txt": "pkgx>=0.1\n"}, ["a.txt", "b.txt"], "GOLD153"),
        ({"a.txt": f"pkgx=={OLD}\n", "b.txt": "pkgx==0.1.*\n"}, ["a.txt", "b.txt"], "GOLD153"),
        ({"a.txt": f"pkgx=={OLD}\n", "b.txt": "pkgx\n"}, ["a.txt", "b.txt"], "GOLD153"),
        ({"a.txt": f"pkgx=={OLD}\n", "b.txt": "pkgx==0.1.0\n"}, ["a.txt", "b.txt"], "GOLD154"),
        ({"a.txt": f"pkgx=={OLD}\n"}, [], "GOLD152"),
    ],
)
def test_all_files_of_a_consumer_or_none(
    files: dict[str, str],
    pins: list[str],
    code: str,
    desk: Desk,
    capsys: pytest.CaptureFixture[str],
) -> None:
    desk.consumers["third"] = consumer(desk.folder, "third", files)
    desk.configure(third=pins, second=["pins.txt"])
    assert desk.run("third", "second", "--execute") == 1
    said = capsys.readouterr().out
    assert {word for word in said.split() if word.startswith("GOLD")} == {code}
    assert desk.branches("third") == ("main",)
    # One consumer's trouble is not another's.
    assert len(desk.branches("second")) == 2


def test_only_a_golden_version_goes_downstream(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    assert desk.run("--version", "0.1.0.dev20261202080000", "--execute") == 1
    assert "GOLD151" in capsys.readouterr().out
    assert desk.branches("first") == ("main",)


def test_a_fork_takes_the_branch(desk: Desk) -> None:
    fork = desk.folder / "bots" / "second"
    fork.parent.mkdir()
    run(
        "git",
        "clone",
        "--quiet",
        "--bare",
        str(desk.consumers["second"]),
        str(fork),
        cwd=fork.parent,
    )
    desk.configure(fork="bots", second=["pins.txt"])
    assert desk.run("--execute") == 0
    assert desk.branches("second") == ("main",)
    assert Git(fork).line("show", f"bump/pkgx-{NEW}:pins.txt") == f"pkgx=={NEW}"


def test_one_pull_request_for_each_consumer(desk: Desk, hosting: HostingDouble) -> None:
    for _ in range(2):
        assert desk.run("--execute") == 0
    assert [pull["title"] for pull in hosting.pulls] == [f"Pin pkgx=={NEW}"] * len(hosting.pulls)
    assert len(hosting.pulls) == 1  # The double has one repository; its branch has one request.


def test_another_machine_needs_a_word(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.consumers["far"] = Path("owner/far")
    desk.configure(far=["pins.txt"])
    assert desk.run("--execute") == 2
    assert "https://github.com/owner/far.git is not on this machine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "pin", "expected"),
    [
        ("a==1\n", "a==1", "a==2\n"),
        ("a==1.5\na==1\n", "a==1", "a==1.5\na==2\n"),
        ("ba==1\n", "a==1", "ba==1\n"),
        ('x = "a == 1 ; m"\n', "a == 1 ; m", 'x = "a == 2 ; m"\n'),
        ("a==1  # a==1\n", "a==1", "a==2  # a==2\n"),
        (
            "a[b]==1;python_version=='3.10'",
            "a[b]==1;python_version=='3.10'",
            "a[b]==2;python_version=='3.10'",
        ),
    ],
)
def test_only_the_version_of_the_pin_is_replaced(text: str, pin: str, expected: str) -> None:
    assert downstream_bump.replaced(text, pin, "2") == expected


def test_what_cannot_be_rewritten_is_an_error_not_a_half_change(desk: Desk) -> None:
    escaped = f'[project]\ndependencies = ["pkgx==\\u0030{OLD[1:]}"]\n'
    desk.consumers["odd"] = consumer(desk.folder, "odd", {"pyproject.toml": escaped})
    desk.configure(odd=["pyproject.toml"])
    assert desk.run("--execute") == 2
    assert desk.branches("odd") == ("main",)


def test_broken_toml_names_the_file(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.consumers["odd"] = consumer(desk.folder, "odd", {"x.toml": "a = [\n"})
    desk.configure(odd=["x.toml"])
    assert desk.run() == 2
    assert "x.toml is no TOML" in capsys.readouterr().err

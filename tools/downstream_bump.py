"""Move the pins of the consumers to a golden nightly, each consumer on a branch for its owners.

    python tools/downstream_bump.py [CANARY...] [--version V] [--execute [--allow-remote]]

A pin is an exact requirement (`name==version`) in a TOML file or a requirements file, read as a
requirement. Of a consumer all files move or none, and never down. The branch is printed as a push;
--execute pushes it, to the consumer or to the configured fork, and opens a pull request where
DOWNSTREAM_BUMP_TOKEN is set. A rerun makes the same commit.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import golden_records
import hosting
from files import ROOT, parse_toml
from findings import Outcome, Rule, UnusableError, apply_rules, run
from git_commands import Git, command_line, is_local
from golden_config import Canary, Golden, load_golden
from project import Project, load_project

Problems = Iterator[tuple[str, str]]
TOKEN: Final = "DOWNSTREAM_BUMP_TOKEN"  # noqa: S105 - the variable's name
_HOSTED: Final = re.compile(r"[\w.-]+/[\w.-]+")
_COMMENT: Final = re.compile(r"(^|\s+)#.*$")


@dataclass(frozen=True, slots=True)
class PinFile:
    """A file of a consumer.

    Attributes:
        path: in the consumer's repository.
        text: its content, None where it is missing.
        pins: every requirement on the distribution, as written.
    """

    path: str
    text: str | None
    pins: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """A consumer and what it is to pin."""

    name: str
    version: str
    golden: bool
    files: tuple[PinFile, ...]


def exact_version(requirement: str) -> Version | None:
    """The version of an exact pin, None for any other requirement."""
    specifiers = list(Requirement(requirement).specifier)
    if len(specifiers) != 1 or specifiers[0].operator != "==" or "*" in specifiers[0].version:
        return None
    return Version(specifiers[0].version)


def _requires(text: str, distribution: str) -> bool:
    try:
        name = Requirement(text).name
    except InvalidRequirement:
        return False
    return canonicalize_name(name) == canonicalize_name(distribution)


def pins_in(path: str, text: str, distribution: str) -> tuple[str, ...]:
    """Every requirement on the distribution in a file, as written.

    Raises:
        UnusableError: a TOML file that cannot be parsed.
    """
    if path.endswith(".toml"):
        try:
            found = list(_strings(parse_toml(text)))
        except ValueError as error:
            raise UnusableError(f"{path} is no TOML: {error}") from error
    else:
        found = [_COMMENT.sub("", line).strip() for line in text.splitlines()]
    return tuple(item for item in found if _requires(item, distribution))


def _strings(value: Any) -> Iterator[str]:  # noqa: ANN401 - any TOML value
    """Every string of a TOML document, tables of name and version aside."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def replaced(text: str, pin: str, version: str) -> str:
    """The text with the version in every occurrence of a pin replaced, nothing else."""
    head, operator, tail = pin.partition("==")
    new = head + operator + re.sub(r"^(\s*)[^\s;,#)]+", rf"\g<1>{version}", tail)
    return re.sub(rf"(?<![\w.-]){re.escape(pin)}(?![\w.*+-])", lambda _: new, text)


def _is_golden(facts: Facts) -> Problems:
    if not facts.golden:
        yield facts.version, "is not golden; consumers pin versions that their canaries passed"


def _all_files(facts: Facts) -> Problems:
    for file in facts.files:
        where = f"{facts.name} {file.path}"
        if file.text is None:
            yield where, "does not exist; correct `pins` of the canary, no file was changed"
        elif not file.pins:
            yield where, "does not pin the distribution; correct `pins`, no file was changed"
    if not facts.files:
        yield facts.name, "the canary has no `pins`; name the files"


def _exact(facts: Facts) -> Problems:
    for file in facts.files:
        for pin in file.pins:
            if exact_version(pin) is None:
                yield f"{facts.name} {file.path}", f"`{pin}` is no exact pin; write name==version"


def _never_down(facts: Facts) -> Problems:
    for file in facts.files:
        for pin in file.pins:
            found = exact_version(pin)
            if found is not None and found > Version(facts.version):
                yield (
                    f"{facts.name} {file.path}",
                    f"`{pin}` is later than {facts.version}; pins never go down",
                )


RULES: Final[tuple[Rule[Facts], ...]] = (
    Rule("GOLD151", "What consumers are moved to is golden.", _is_golden),
    Rule("GOLD152", "Every file of a consumer exists and has the pin.", _all_files),
    Rule("GOLD153", "Every pin is exact.", _exact),
    Rule("GOLD154", "No pin goes down.", _never_down),
)


# --- consumers -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Consumer:
    """A consumer's repository at the tip of its branch.

    Attributes:
        canary: the row.
        url: where it is read from; `target` where the branch goes.
        git: a repository with its objects.
        tip: its commit.
    """

    canary: Canary
    url: str
    target: str
    git: Git
    tip: str

    def files(self, distribution: str) -> tuple[PinFile, ...]:
        """The files that hold pins."""
        return tuple(self._file(path, distribution) for path in self.canary.pins)

    def _file(self, path: str, distribution: str) -> PinFile:
        if self.git.find("cat-file", "-e", f"{self.tip}:{path}") is None:
            return PinFile(path, None, ())
        text = self.git.run("show", f"{self.tip}:{path}").decode()
        return PinFile(path, text, pins_in(path, text, distribution))


def address(repository: str) -> str:
    """Address of a repository that may be given as owner/name."""
    if _HOSTED.fullmatch(repository) and not Path(repository).exists():
        return f"https://github.com/{repository}.git"
    return repository


def fork_of(url: str, owner: str) -> str:
    """The same repository of another owner."""
    head, _, name = url.rpartition("/")
    return f"{head[: head.rindex('/')]}/{owner}/{name}"


def fetch(canary: Canary, golden: Golden, folder: Path) -> Consumer:
    """Read the tip of a consumer into a scratch repository."""
    url = address(canary.repository)
    folder.mkdir()
    git = Git(folder)
    git.run("init", "--quiet", "--bare")
    git.run("fetch", "--quiet", "--no-tags", url, f"refs/heads/{canary.branch}")
    tip = git.line("rev-parse", "FETCH_HEAD^{commit}")
    return Consumer(canary, url, fork_of(url, golden.fork) if golden.fork else url, git, tip)


def changes(facts: Facts, distribution: str) -> dict[str, str]:
    """New text of every file that changes, read once more as requirements.

    Raises:
        UnusableError: a pin could not be rewritten.
    """
    found = {}
    for file in facts.files:
        text = file.text or ""
        for pin in dict.fromkeys(file.pins):
            text = replaced(text, pin, facts.version)
        for pin in pins_in(file.path, text, distribution):
            if exact_version(pin) != Version(facts.version):
                raise UnusableError(
                    f"{facts.name} {file.path}: `{pin}` could not be rewritten; change it by hand"
                )
        if text != file.text:
            found[file.path] = text
    return found


@dataclass(frozen=True, slots=True)
class Setting:
    """What is the same for every consumer."""

    arguments: argparse.Namespace
    project: Project
    golden: Golden
    version: str
    is_golden: bool


@dataclass(frozen=True, slots=True)
class Bump:
    """A consumer, the new text of its files that change, and what was found."""

    consumer: Consumer
    changed: Mapping[str, str]
    outcome: Outcome


def _plan(setting: Setting, canary: Canary, folder: Path) -> Bump:
    """Read a consumer and print what is to change; nothing is written."""
    distribution = setting.golden.distribution
    consumer = fetch(canary, setting.golden, folder)
    files = consumer.files(distribution)
    facts = Facts(canary.name, setting.version, setting.is_golden, files)
    outcome = apply_rules(RULES, facts)
    if outcome.findings:
        return Bump(consumer, {}, outcome)
    changed = changes(facts, distribution)
    for path in changed:
        print(f"downstream-bump: {canary.name} {path}: {distribution}=={setting.version}")
    if not changed:
        print(f"downstream-bump: {canary.name}: pins {setting.version} already")
    return Bump(consumer, changed, outcome)


def _publish(setting: Setting, consumer: Consumer, changed: Mapping[str, str]) -> None:
    distribution, git = setting.golden.distribution, consumer.git
    title = f"Pin {distribution}=={setting.version}"
    seconds = int(git.line("log", "-1", "--format=%ct", consumer.tip))
    branch, release = f"bump/{distribution}-{setting.version}", setting.project.release
    proposal = golden_records.propose(
        git, consumer.target, branch, consumer.tip, changed, title, release, seconds
    )
    if proposal.there:
        print(f"downstream-bump: {consumer.canary.name}: {branch} is there already")
    elif setting.arguments.execute:
        git.run("push", "--no-follow-tags", consumer.target, proposal.refspec)
        print(f"downstream-bump: {consumer.canary.name}: pushed {branch} to {consumer.target}")
    else:
        _print_steps(consumer, branch, title, changed)
        return
    _request(consumer, branch, title)


def _print_steps(consumer: Consumer, branch: str, title: str, changed: Mapping[str, str]) -> None:
    paths = ", ".join(changed)
    print(f"# {consumer.canary.name}: in a clone, on a new branch, change {paths} as above, then")
    print(command_line("commit", "-a", "-m", title))
    print(command_line("push", "--no-follow-tags", consumer.target, f"HEAD:refs/heads/{branch}"))


def _request(consumer: Consumer, branch: str, title: str) -> None:
    service = hosting.from_environment(TOKEN)
    if service.token is None or (is_local(consumer.target) and not service.is_local):
        return
    owner = consumer.target.rstrip("/").split("/")[-2]
    repository = "/".join(consumer.url.removesuffix(".git").split("/")[-2:])
    forked = consumer.target != consumer.url
    page = service.open_pull_request(
        repository,
        head=f"{owner}:{branch}" if forked else branch,
        base=consumer.canary.branch,
        title=title,
        body="The version is a golden nightly: every canary passed with it.",
    )
    print(f"downstream-bump: {page}")


def _target_version(arguments: argparse.Namespace, golden: Golden, git: Git) -> tuple[str, bool]:
    """The version to pin, and whether it is golden."""
    url = arguments.remote or git.find("remote", "get-url", golden.remote) or golden.remote
    rows = golden_records.read_state(git, golden.places(url)).rows
    if not rows:
        raise UnusableError("there is no golden commit yet; record one first")
    if arguments.version:
        return arguments.version, arguments.version in {row.version for row in rows}
    return max(rows, key=lambda row: Version(row.version)).version, True


def _action(arguments: argparse.Namespace) -> Outcome:
    project = load_project(arguments.root.resolve())
    golden = load_golden(project)
    version, is_golden = _target_version(arguments, golden, Git(project.root))
    named = [golden.canary(name) for name in arguments.canaries]
    chosen = named or [row for row in golden.canaries if row.pins]
    if not chosen:
        raise UnusableError("no canary has `pins`; name the files in pyproject.toml")
    setting = Setting(arguments, project, golden, version, is_golden)
    for canary in chosen:
        _require_local(arguments, canary, golden)
    with tempfile.TemporaryDirectory() as folder:
        bumps = [_plan(setting, row, Path(folder) / row.name) for row in chosen]
        for bump in bumps:
            if bump.changed and not arguments.dry_run:
                _publish(setting, bump.consumer, bump.changed)
    return sum((bump.outcome for bump in bumps), Outcome())


def _require_local(arguments: argparse.Namespace, canary: Canary, golden: Golden) -> None:
    url = address(canary.repository)
    target = fork_of(url, golden.fork) if golden.fork else url
    if arguments.execute and not is_local(target) and not arguments.allow_remote:
        raise UnusableError(f"{target} is not on this machine; add --allow-remote to push to it")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="downstream-bump",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("canaries", nargs="*", help="consumers; default: all that have `pins`")
    parser.add_argument("--version", help="a golden nightly; default: the newest")
    parser.add_argument("--root", type=Path, default=ROOT, help="the development clone")
    parser.add_argument("--remote", default="", help="address; default: from pyproject.toml")
    parser.add_argument("--execute", action="store_true", help="push the branches")
    parser.add_argument("--allow-remote", action="store_true", help="write to other machines")
    parser.add_argument("--dry-run", action="store_true", help="print the plan, change nothing")
    return run(parser, _action, argv)


if __name__ == "__main__":
    raise SystemExit(main())

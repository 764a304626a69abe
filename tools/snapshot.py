"""Prepare a snapshot commit of a release candidate and print the commands that publish it.

The snapshot has exactly the tree of the annotated tag rc/vX.Y.Z, the public identity, and the
previous snapshot as its only parent. Nothing is pushed and no ref is written here: the output is
a shell script of comments and commands to read and run by hand. The commit's date is the tag's,
so a rerun gives the same commit and continues where the remote stands.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import check_hosting
import tier_results
import validate_release
from files import ROOT
from findings import Outcome, Rule, SkipRule, UnusableError, apply_rules, guarded
from git_commands import Commit, Git, GitError, command_line, parse_object
from project import (
    FRAGMENTS,
    TARGETS,
    Project,
    Release,
    add_waivers,
    changelog_section,
    is_fragment,
    load_project,
    tag_of,
    version_in,
)

LOGS: Final = "docs/release_logs/"
CHECKLIST: Final = "docs/releasing.md"
Problems = Iterator[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Tag:
    """A local tag.

    Attributes:
        name: without refs/tags/.
        kind: "tag" for an annotated one, else the type of the object it names.
        commit: the peeled commit, or "" where it names none.
        date: seconds since 1970 of an annotated tag, else 0.
    """

    name: str
    kind: str
    commit: str
    date: int


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything a snapshot depends on, read once.

    Attributes:
        target: staging, ci or public.
        version: of the version file at HEAD; `wanted` is the one asked for, if any.
        url: address of the target; `effective_url` is what git's configuration makes of it.
        head: commit of HEAD; `status` the lines of `git status`.
        candidate: the tag rc/vX.Y.Z; `candidates_here` every rc tag on HEAD.
        tree: tree of the candidate; `changelog`, `fragments`, `reports` are files in it.
        release_tag: the local tag vX.Y.Z, if any.
        branches: local branches.
        remote: refs of the target, tags peeled; `annotated` those that are annotated tags.
        previous: chain of snapshots from the tip to the root, `given` the tip asked for.
        development: every commit that no snapshot repository may hold.
        waivers: tiers whose device part was not run, with the reason.
    """

    project: Project
    release: Release
    target: str
    version: str
    wanted: str | None
    url: str
    effective_url: str
    head: str
    status: tuple[str, ...]
    shallow: bool
    candidate: Tag | None
    candidates_here: tuple[str, ...]
    release_tag: Tag | None
    branches: tuple[str, ...]
    remote: dict[str, str]
    annotated: frozenset[str]
    tree: str = ""
    changelog: str = ""
    fragments: tuple[str, ...] = ()
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)
    given: str | None = None
    previous: tuple[Commit, ...] = ()
    development: frozenset[str] = frozenset()
    waivers: dict[str, str] = field(default_factory=dict)

    @property
    def tag(self) -> str:
        """Name of the release tag."""
        return tag_of(self.version)

    @property
    def tip(self) -> str:
        """Commit of the target's branch, "" where the target is empty."""
        return self.remote.get(f"refs/heads/{self.release.branch}", "")

    @property
    def message(self) -> str:
        """First and only line of the snapshot's message."""
        return f"{self.project.name} {self.version}"


def snapshot_bytes(facts: Facts, parent: str | None) -> bytes:
    """The commit object that the snapshot must be, byte for byte."""
    date = facts.candidate.date if facts.candidate else 0
    person = f"{facts.release.name} <{facts.release.email}> {date} +0000"
    lines = [f"tree {facts.tree}", *([f"parent {parent}"] if parent else [])]
    lines += [f"author {person}", f"committer {person}", "", facts.message, ""]
    return "\n".join(lines).encode()


def published(facts: Facts) -> Commit | None:
    """The target's tip where it already is this very snapshot."""
    if not facts.previous:
        return None
    tip = facts.previous[0]
    parent = tip.parents[0] if tip.parents else None
    return tip if tip.data == snapshot_bytes(facts, parent) else None


def planned(facts: Facts) -> str:
    """Object name of the snapshot: the target's tip where it is there, else the one to write."""
    done = published(facts)
    parent = facts.previous[0].oid if facts.previous else None
    return done.oid if done else object_name(snapshot_bytes(facts, parent))


# --- rules on the development repository ---------------------------------------------------------


def _clean(facts: Facts) -> Problems:
    for line in facts.status:
        yield line[3:], f"the tree differs from HEAD ({line[:2].strip()}); commit or remove it"


def _candidate(facts: Facts) -> Problems:
    name = f"rc/{facts.tag}"
    if facts.candidate is None:
        yield (
            name,
            f"there is no tag of this name for version {facts.version} of "
            f"{facts.project.version_file}; create it on the validated commit",
        )
    elif facts.candidate.kind != "tag":
        yield (
            name,
            f"expected an annotated tag, got a lightweight one (it names a "
            f"{facts.candidate.kind}); create it with -a",
        )


def _candidate_is_head(facts: Facts) -> Problems:
    if facts.candidate is None:
        raise SkipRule("there is no rc tag")
    if facts.candidate.commit != facts.head:
        yield (
            facts.candidate.name,
            f"the tag is on {facts.candidate.commit[:12] or 'no commit'}, HEAD is "
            f"{facts.head[:12]}; check out the tag or move it to the validated commit",
        )


def _version(facts: Facts) -> Problems:
    if facts.wanted and facts.wanted != facts.version:
        yield (
            facts.project.version_file,
            f"the file says {facts.version}, asked for {facts.wanted}; run `invoke version`",
        )
    for name in facts.candidates_here:
        if name != f"rc/{facts.tag}":
            yield (
                name,
                f"the tag is on HEAD, whose {facts.project.version_file} says {facts.version}; "
                "delete the tag or set the version",
            )


def _changelog(facts: Facts) -> Problems:
    if not facts.tree:
        raise SkipRule("there is no rc tag")
    if changelog_section(facts.changelog, facts.version) is None:
        yield (
            "CHANGELOG.md",
            f"no heading `## {facts.version} (YYYY-MM-DD)` in the candidate; run `invoke version`",
        )
    for name in facts.fragments:
        yield name, f"a fragment is left in the candidate of {facts.version}; run `invoke version`"


def _complete(facts: Facts) -> Problems:
    if facts.shallow:
        yield (
            str(facts.project.root.name),
            "a shallow clone cannot prove which commits are development; "
            "run `git fetch --unshallow`",
        )


def _no_branch_named_like_the_tag(facts: Facts) -> Problems:
    names = (facts.tag, f"rc/{facts.tag}")
    for branch in facts.branches:
        if branch in names:
            yield f"refs/heads/{branch}", "a branch is named like a release tag; rename it"
    for ref in facts.remote:
        if ref.removeprefix("refs/heads/") in names:
            yield f"{facts.url} {ref}", "a branch is named like a release tag; delete it there"


def _release_tag(facts: Facts) -> Problems:
    here = facts.release_tag
    ref = f"refs/tags/{facts.tag}"
    places = [(here.name, here.kind == "tag", here.commit)] if here else []
    if ref in facts.remote:
        places.append((f"{facts.url} {ref}", ref in facts.annotated, facts.remote[ref]))
    for where, annotated, commit in places:
        if not annotated:
            yield where, "the release tag is lightweight; it has to be annotated"
        if commit != planned(facts):
            yield (
                where,
                f"the tag is on {commit[:12] or 'no commit'}, not on the snapshot "
                f"{planned(facts)[:12]}; a release tag is never moved: delete it if it was never "
                "pushed, else take the next version",
            )


def _report(facts: Facts) -> Problems:
    if not facts.tree:
        raise SkipRule("there is no rc tag")
    reason = facts.waivers.get("T7")
    if reason:
        yield from _waiver_is_written_down(facts, reason)
    elif not facts.reports:
        yield (
            f"{LOGS}{facts.version}_<device>.json",
            "the candidate holds no T7 report; run the release validation and commit its report, "
            "or give --device-not-run T7=REASON",
        )
    for name, report in facts.reports.items():
        for problem in validate_release.problems(report, facts.version, reason or ""):
            yield name, problem


def _waiver_is_written_down(facts: Facts, reason: str) -> Problems:
    section = changelog_section(facts.changelog, facts.version)
    if section and reason not in section[1]:
        yield (
            "CHANGELOG.md",
            f"the reason {reason!r} for the missing T7 is not among the limitations of "
            f"{facts.version}; write it there",
        )


def _address(facts: Facts) -> Problems:
    if facts.effective_url != facts.url:
        yield (
            facts.url,
            f"git's configuration (url.*.insteadOf) would push to {facts.effective_url}; "
            "remove that setting",
        )


# --- rules on the target -------------------------------------------------------------------------


def _continues_the_tip(facts: Facts) -> Problems:
    if facts.given and facts.given != facts.tip:
        yield (
            facts.url,
            f"--previous is {facts.given[:12]}, the branch {facts.release.branch} is at "
            f"{facts.tip[:12] or 'nothing'}; leave --previous out, snapshots are never forced",
        )


def _chain_of_snapshots(facts: Facts) -> Problems:
    person = re.escape(f"{facts.release.name} <{facts.release.email}>") + r" \d+ \+0000"
    message = re.escape(facts.project.name) + r" \S+\n?"
    for commit in facts.previous:
        wrong = [
            name
            for name, holds in (
                ("more than one parent", len(commit.parents) <= 1),
                ("author", _is_one(commit.all("author"), person)),
                ("committer", _is_one(commit.all("committer"), person)),
                ("message", re.fullmatch(message, commit.message) is not None),
                ("headers", _plain_headers(commit)),
            )
            if not holds
        ]
        if wrong:
            yield (
                f"{facts.url} {commit.oid[:12]}",
                f"not a snapshot commit: wrong {', '.join(wrong)}; "
                "a repository that held other commits must never be made public: start a new one",
            )


def _is_one(values: tuple[str, ...], pattern: str) -> bool:
    return len(values) == 1 and re.fullmatch(pattern, values[0]) is not None


def _plain_headers(commit: Commit) -> bool:
    return {key for key, _ in commit.headers} <= {"tree", "parent", "author", "committer"}


def _no_development_commit(facts: Facts) -> Problems:
    for commit in facts.previous:
        if commit.oid in facts.development:
            yield (
                f"{facts.url} {commit.oid[:12]}",
                "a development commit is in the history of the target; "
                "it must never be made public: start a new repository",
            )


def _no_other_refs(facts: Facts) -> Problems:
    chain = {commit.oid for commit in facts.previous}
    branch = f"refs/heads/{facts.release.branch}"
    for ref, oid in facts.remote.items():
        if ref in ("HEAD", branch):
            continue
        if ref.startswith("refs/tags/v") and oid in chain:
            continue
        yield (
            f"{facts.url} {ref}",
            f"{oid[:12]} is not a snapshot of {branch}; the target may hold that branch and "
            "release tags on its snapshots only",
        )


def _no_release_tag_in_ci(facts: Facts) -> Problems:
    if facts.target != "ci":
        return
    for ref in facts.remote:
        if ref.startswith("refs/tags/v"):
            yield f"{facts.url} {ref}", "the ci repository never gets a release tag; delete it"


RULES: Final[tuple[Rule[Facts], ...]] = (
    Rule("SNAP101", "The working tree equals HEAD, untracked files included.", _clean),
    Rule("SNAP102", "The candidate is an annotated tag rc/vX.Y.Z.", _candidate),
    Rule("SNAP103", "The candidate tag, peeled, is HEAD.", _candidate_is_head),
    Rule("SNAP104", "Version file, rc tag and the version asked for agree.", _version),
    Rule("SNAP105", "The candidate's changelog has the dated section, no fragments.", _changelog),
    Rule("SNAP106", "The development clone is not shallow.", _complete),
    Rule(
        "SNAP107",
        "No local or remote branch is named like a tag.",
        _no_branch_named_like_the_tag,
    ),
    Rule("SNAP108", "An existing tag vX.Y.Z is annotated, on the snapshot.", _release_tag),
    Rule("SNAP109", "The candidate holds a passing T7 report or says why not.", _report),
    Rule("SNAP110", "No configuration rewrites the address that is pushed to.", _address),
    Rule("SNAP201", "The snapshot continues the tip of the target's branch.", _continues_the_tip),
    Rule("SNAP202", "Every commit of the target is a snapshot commit.", _chain_of_snapshots),
    Rule("SNAP203", "No development commit is in the target.", _no_development_commit),
    Rule("SNAP204", "The target has one branch and tags on its snapshots.", _no_other_refs),
    Rule("SNAP205", "The ci repository has no release tag.", _no_release_tag_in_ci),
)


# --- facts ---------------------------------------------------------------------------------------


def object_name(data: bytes) -> str:
    """The object name of a commit with these bytes."""
    return hashlib.sha1(b"commit %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _tag(git: Git, name: str) -> Tag | None:
    ref = f"refs/tags/{name}"
    if git.find("rev-parse", "--verify", "--quiet", ref) is None:
        return None
    kind = git.line("cat-file", "-t", ref)
    commit = git.find("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}") or ""
    date = 0
    if kind == "tag":
        tagger = parse_object(ref, git.run("cat-file", "tag", ref)).all("tagger")
        date = int(tagger[0].split()[-2]) if tagger else 0
    return Tag(name, kind, commit, date)


def _remote_refs(git: Git, url: str) -> tuple[dict[str, str], frozenset[str]]:
    """Refs of a remote, an annotated tag with the commit it names; and which tags are annotated."""
    pairs = [line.split("\t") for line in git.lines("ls-remote", url)]
    peeled = frozenset(ref.removesuffix("^{}") for _, ref in pairs if ref.endswith("^{}"))
    return {ref.removesuffix("^{}"): oid for oid, ref in pairs}, peeled


def _chain(git: Git, url: str, tip: str) -> tuple[Commit, ...]:
    """The first-parent chain from a tip, fetched where it is not here; no ref is written."""
    if not tip:
        return ()
    if git.find("cat-file", "-e", tip) is None:
        git.run("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", url, tip)
    chain = [git.commit(tip)]
    while chain[-1].parents:
        chain.append(git.commit(chain[-1].parents[0]))
    return tuple(chain)


def _development(git: Git) -> frozenset[str]:
    """Commits of every branch and candidate tag, and what notes and replace refs hold."""
    return frozenset(
        git.lines(
            "rev-list",
            "HEAD",
            "--branches",
            "--tags=rc/*",
            "--glob=refs/notes",
            "--glob=refs/replace",
        )
    )


def _reports(git: Git, commit: str, version: str) -> dict[str, dict[str, Any]]:
    names = git.names("ls-tree", "-z", "--name-only", commit, LOGS)
    wanted = [name for name in names if Path(name).match(f"{version}_*.json")]
    try:
        return {name: json.loads(git.run("show", f"{commit}:{name}")) for name in wanted}
    except ValueError as error:
        raise UnusableError(f"a report under {LOGS} is not JSON: {error}") from error


def load(
    root: Path,
    target: str,
    *,
    remote: str | None = None,
    previous: str | None = None,
    version: str | None = None,
    waivers: dict[str, str] | None = None,
) -> Facts:
    """Read the development repository and the target.

    Args:
        root: the development clone.
        target: staging, ci or public.
        remote: address of the target; the one in pyproject.toml where None.
        previous: the snapshot to continue; the tip of the target where None.
        version: the version that the maintainer expects, if any.
        waivers: tiers whose device part was not run, with the reason.

    Raises:
        UnusableError: no project, no repository, or a remote that cannot be read.
    """
    project, git = load_project(root), Git(root)
    release = project.release
    url = remote or release.remotes.get(target, "")
    if not url:
        raise UnusableError(
            f"no address for {target}; add it to [tool.mmaemu.release.remotes] or give --remote"
        )
    head = git.line("rev-parse", "--verify", "HEAD^{commit}")
    at_head = version_in(
        git.run("show", f"HEAD:{project.version_file}").decode(), project.version_file
    )
    refs, annotated = _remote_refs(git, url)
    candidate = _tag(git, f"rc/{tag_of(at_head)}")
    commit = candidate.commit if candidate else ""
    return Facts(
        project=project,
        release=release,
        target=target,
        version=at_head,
        wanted=version,
        url=url,
        effective_url=_effective_url(git, url),
        head=head,
        status=git.names("status", "--porcelain", "-z", "--untracked-files=all", "--no-renames"),
        shallow=git.line("rev-parse", "--is-shallow-repository") == "true",
        candidate=candidate,
        candidates_here=git.lines("tag", "--points-at", "HEAD", "--list", "rc/*"),
        release_tag=_tag(git, tag_of(at_head)),
        branches=git.lines("for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads"),
        remote=refs,
        annotated=annotated,
        tree=git.line("rev-parse", f"{commit}^{{tree}}") if commit else "",
        changelog=(git.find("show", f"{commit}:CHANGELOG.md") or "") if commit else "",
        fragments=_fragments(git, commit) if commit else (),
        reports=_reports(git, commit, at_head) if commit else {},
        given=previous and (git.find("rev-parse", f"{previous}^{{commit}}") or previous),
        previous=_chain(git, url, refs.get(f"refs/heads/{release.branch}", "")),
        development=_development(git),
        waivers=waivers or {},
    )


def _effective_url(git: Git, url: str) -> str:
    """What a push to the address would really go to."""
    rewritten = git.line("ls-remote", "--get-url", url)
    for line in (
        git.find("config", "--get-regexp", r"^url\..*\.pushinsteadof$") or ""
    ).splitlines():
        key, _, prefix = line.partition(" ")
        if prefix and url.startswith(prefix):
            return f"{key[len('url.') : -len('.pushinsteadof')]}{url[len(prefix) :]}"
    return rewritten


def _fragments(git: Git, commit: str) -> tuple[str, ...]:
    names = git.names("ls-tree", "-z", "-r", "--name-only", commit, f"{FRAGMENTS}/")
    return tuple(name for name in names if is_fragment(Path(name)))


# --- plan and output -----------------------------------------------------------------------------


def create(git: Git, facts: Facts) -> None:
    """Write the snapshot commit and verify every byte of it.

    Raises:
        UnusableError: git wrote another commit than the one planned.
    """
    parent = facts.previous[0].oid if facts.previous else None
    expected = snapshot_bytes(facts, parent)
    date = f"{facts.candidate.date if facts.candidate else 0} +0000"
    person = {"NAME": facts.release.name, "EMAIL": facts.release.email, "DATE": date}
    env = {
        f"GIT_{role}_{key}": value
        for role in ("AUTHOR", "COMMITTER")
        for key, value in person.items()
    }
    parents = ["-p", parent] if parent else []
    oid = git.line(
        "commit-tree", "--no-gpg-sign", facts.tree, *parents, "-m", facts.message, env=env
    )
    if git.commit(oid).data != expected:
        raise UnusableError(
            f"git wrote {oid}, which is not the planned commit {object_name(expected)}; "
            "compare `git cat-file commit` with the plan printed by --dry-run"
        )
    _verify(git, facts, oid)


def _verify(git: Git, facts: Facts, oid: str) -> None:
    """Same tree, and one commit more than before."""
    tree = git.line("rev-parse", f"{oid}^{{tree}}")
    count = int(git.line("rev-list", "--count", oid))
    if tree != facts.tree or count != len(facts.previous) + 1:
        raise GitError(
            f"snapshot {oid}: tree {tree} and {count} commits, expected tree {facts.tree} and "
            f"{len(facts.previous) + 1} commits; nothing may be pushed"
        )


def _push(url: str, *refspecs: str) -> str:
    return command_line("push", "--no-follow-tags", "--no-signed", url, *refspecs)


def script(facts: Facts, oid: str, hosting: Outcome | None) -> list[str]:
    """The lines to print: comments and commands, nothing else.

    Args:
        facts: of a snapshot without findings.
        oid: the snapshot commit.
        hosting: outcome of check_hosting, None where it was not run.
    """
    branch = f"refs/heads/{facts.release.branch}"
    lines = [
        f"# {facts.message}: snapshot {oid}",
        f"# tree {facts.tree} of {facts.candidate.name if facts.candidate else ''}; "
        f"snapshot number {len(facts.previous) + (published(facts) is None)}",
    ]
    if published(facts) is None:
        lines += [f"# 1. {facts.target}: the branch", _push(facts.url, f"{oid}:{branch}")]
    else:
        lines.append(f"# 1. {facts.target}: the branch is there already")
    return lines + (_tag_lines(facts, oid, hosting) if facts.target == "public" else [])


def _tag_lines(facts: Facts, oid: str, hosting: Outcome | None) -> list[str]:
    ref = f"refs/tags/{facts.tag}"
    if facts.remote.get(ref) == oid:
        return ["# 2. the tag is there already"]
    if hosting is None or hosting.exit_code:
        return [
            "# 2. the tag is not printed: the environment and the tag ruleset are not proven.",
            "#    Rerun with --environment ENV.json --rulesets RULESETS.json, as "
            "tools/check_hosting.py wants them.",
        ]
    date = facts.candidate.date if facts.candidate else 0
    person = {
        "GIT_COMMITTER_NAME": facts.release.name,
        "GIT_COMMITTER_EMAIL": facts.release.email,
        "GIT_COMMITTER_DATE": f"{date} +0000",
    }
    tag = command_line("tag", "--no-sign", "-a", facts.tag, oid, "-m", facts.message, env=person)
    return [
        "# 2. public: the annotated tag; its push starts the release workflow",
        *([] if facts.release_tag else [tag]),
        _push(facts.url, f"{ref}:{ref}"),
    ]


def checklist(root: Path) -> list[str]:
    """The titles of the by-hand steps of the releasing page, as comments."""
    page = root / CHECKLIST
    if not page.is_file():
        return [f"# {CHECKLIST} is missing: no checklist"]
    titles = re.findall(r"^### (H\d+ .*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [f"# Checklist ({CHECKLIST}):", *(f"#   {title}" for title in titles)]


def _hosting(arguments: argparse.Namespace, release: Release) -> Outcome | None:
    if not (arguments.environment and arguments.rulesets):
        return None
    facts = check_hosting.load(arguments.environment, arguments.rulesets, None, release)
    return apply_rules(check_hosting.RULES, facts)


def _action(arguments: argparse.Namespace) -> int:
    root, waivers = arguments.root.resolve(), dict(arguments.device_not_run)
    facts = load(
        root,
        arguments.to,
        remote=arguments.remote,
        previous=arguments.previous,
        version=arguments.version,
        waivers=waivers,
    )
    outcome = apply_rules(RULES, facts) + tier_results.check(root, waivers, version=facts.version)
    hosting = _hosting(arguments, facts.release)
    for finding in sorted((outcome + (hosting or Outcome())).findings):
        print(f"# {finding}")
    if outcome.exit_code:
        print(f"# snapshot: {len(outcome.findings)} findings; nothing is prepared")
        return outcome.exit_code
    oid = planned(facts)
    if arguments.dry_run:
        print("# dry run: the commit object is not written")
    elif published(facts) is None:
        create(Git(facts.project.root), facts)
    print("\n".join(script(facts, oid, hosting) + checklist(facts.project.root)))
    return hosting.exit_code if hosting else outcome.exit_code


def main(argv: list[str] | None = None) -> int:
    """Entry point; see the module docstring."""
    parser = argparse.ArgumentParser(prog="snapshot", description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help="the development clone")
    parser.add_argument("--to", choices=TARGETS, default="public", help="which repository")
    parser.add_argument("--remote", help="its address; default: from pyproject.toml")
    parser.add_argument("--previous", help="the previous snapshot; default: the remote's tip")
    parser.add_argument("--version", help="refuse unless the candidate has this version")
    parser.add_argument("--environment", type=Path, help="the publishing environment, as JSON")
    parser.add_argument("--rulesets", type=Path, help="the tag rulesets, as JSON")
    parser.add_argument("--dry-run", action="store_true", help="write no commit object")
    add_waivers(parser)
    arguments = parser.parse_args(argv)
    return guarded(parser.prog, lambda: _action(arguments))


if __name__ == "__main__":
    sys.exit(main())

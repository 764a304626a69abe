from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import in_process
import snapshot
from git_commands import Git

TOOL = Path(__file__).resolve().parents[2] / "tools" / "snapshot.py"
ENVIRONMENT = {
    "name": "pypi",
    "protection_rules": [
        {
            "type": "required_reviewers",
            "prevent_self_review": False,
            "reviewers": [{"type": "User", "reviewer": {"login": "keeper"}}],
        }
    ],
}
RULESET = {
    "target": "tag",
    "enforcement": "active",
    "conditions": {"ref_name": {"include": ["refs/tags/v*"], "exclude": []}},
    "rules": [{"type": t} for t in ("creation", "update", "deletion", "non_fast_forward")],
    "bypass_actors": [{"actor_type": "RepositoryRole", "bypass_mode": "always"}],
}


class Rehearsal:
    """A development clone, a remote, and the maintainer's two steps: snapshot, then its script."""

    def __init__(self, dev: Any, remote: Path, target: str = "public") -> None:
        self.dev = dev
        self.remote = remote
        self.target = target
        self.env: dict[str, str] = {}

    def snapshot(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        given = ["--root", str(self.dev.root), "--to", self.target, "--remote", str(self.remote)]
        given += arguments
        if not self.env:
            return in_process.run(snapshot, given, os.environ, merged=False)
        return subprocess.run(
            [sys.executable, str(TOOL), *given],
            cwd=self.dev.root.parent,
            env=os.environ | self.env,
            capture_output=True,
            text=True,
            check=False,
        )

    def publish(self, *arguments: str) -> str:
        """Run snapshot and then its output, verbatim; return the remote's tip."""
        done = self.snapshot(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        shell = subprocess.run(
            ["bash", "-euo", "pipefail"],
            input=done.stdout,
            cwd=self.dev.root,
            env=os.environ | self.env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert shell.returncode == 0, shell.stderr
        return self.tip()

    def tip(self) -> str:
        return Git(self.remote).line("rev-parse", "refs/heads/master")

    def codes(self, *arguments: str) -> set[str]:
        """The finding codes of a refused snapshot."""
        done = self.snapshot("--dry-run", *arguments)
        assert done.returncode == 1, done.stdout + done.stderr
        return set(re.findall(r"^# .+?: ((?:SNAP|REL)\d{3}) ", done.stdout, re.MULTILINE))

    def commits_in_remote(self) -> set[str]:
        """Every commit object that the remote stores, reachable or not."""
        listing = Git(self.remote).lines(
            "cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objecttype)"
        )
        return {line.split()[0] for line in listing if line.endswith(" commit")}


@pytest.fixture
def hosting(tmp_path: Path) -> list[str]:
    environment, rulesets = tmp_path / "env.json", tmp_path / "rulesets.json"
    environment.write_text(json.dumps(ENVIRONMENT), encoding="utf-8")
    rulesets.write_text(json.dumps([RULESET]), encoding="utf-8")
    return ["--environment", str(environment), "--rulesets", str(rulesets)]


@pytest.fixture
def rehearsal(repository: Any, bare: Callable[[str], Path]) -> Rehearsal:
    repository.candidate("0.1.0")
    return Rehearsal(repository, bare("public"))


def test_three_snapshots_form_a_chain_of_their_own(rehearsal: Rehearsal) -> None:
    dev, trees, tips = rehearsal.dev, [], []
    for version in ("0.1.0", "0.1.1", "0.2.0"):
        dev.write("notes.txt", f"private work on {version}\n")
        dev.commit("private work")
        dev.candidate(version)
        trees.append(dev.git("rev-parse", f"rc/v{version}^{{tree}}"))
        tips.append(rehearsal.publish())
    chain = Git(rehearsal.remote).lines(
        "log", "--format=%H %T %P|%an <%ae>|%cn <%ce>|%s|%ad %cd", "master"
    )
    person = "pkgx release <release@pkgx.invalid>"
    date = "Mon Sep 21 14:13:20 2026 +0000"
    parents = ["", *tips[:-1]]
    expected = [
        f"{tip} {tree} {parent}|{person}|{person}|pkgx {version}|{date} {date}"
        for tip, tree, parent, version in zip(
            tips, trees, parents, ("0.1.0", "0.1.1", "0.2.0"), strict=True
        )
    ]
    assert list(chain) == expected[::-1]
    assert rehearsal.commits_in_remote() == set(tips)


def test_public_gets_the_annotated_tag_only_after_the_hosting_check(
    rehearsal: Rehearsal, hosting: list[str]
) -> None:
    tip = rehearsal.publish()
    remote = Git(rehearsal.remote)
    assert remote.lines("for-each-ref", "--format=%(refname)") == ("refs/heads/master",)
    assert rehearsal.publish(*hosting) == tip
    assert remote.line("cat-file", "-t", "refs/tags/v0.1.0") == "tag"
    assert remote.line("rev-parse", "refs/tags/v0.1.0^{commit}") == tip
    assert rehearsal.commits_in_remote() == {tip}
    # Everything is there now: a further run prints no command at all.
    assert all(line.startswith("#") for line in rehearsal.snapshot(*hosting).stdout.splitlines())


def test_a_failed_hosting_check_withholds_the_tag(
    rehearsal: Rehearsal, hosting: list[str], tmp_path: Path
) -> None:
    disabled = tmp_path / "rulesets.json"
    disabled.write_text(json.dumps([RULESET | {"enforcement": "disabled"}]), encoding="utf-8")
    done = rehearsal.snapshot(*hosting)
    assert done.returncode == 1
    assert "SNAP513" in done.stdout
    assert "tag -a" not in done.stdout
    assert "refs/tags/v0.1.0:refs/tags/v0.1.0" not in done.stdout


@pytest.mark.parametrize("target", ["staging", "ci"])
def test_other_targets_have_their_own_chain_and_never_a_tag(
    rehearsal: Rehearsal, bare: Callable[[str], Path], hosting: list[str], target: str
) -> None:
    other = Rehearsal(rehearsal.dev, bare(target), target)
    first = other.publish(*hosting)
    rehearsal.publish()
    rehearsal.dev.candidate("0.1.1")
    second = other.publish(*hosting)
    refs = Git(other.remote).lines("for-each-ref", "--format=%(refname)")
    assert refs == ("refs/heads/master",)
    assert other.commits_in_remote() == {first, second}


def test_dry_run_changes_nothing_and_a_rerun_gives_the_same_commit(rehearsal: Rehearsal) -> None:
    def state() -> tuple[str, ...]:
        git = Git(rehearsal.dev.root)
        return git.lines("cat-file", "--batch-all-objects", "--batch-check") + git.lines(
            "for-each-ref"
        )

    before = state()
    dry = rehearsal.snapshot("--dry-run").stdout
    assert state() == before
    first, second = rehearsal.snapshot().stdout, rehearsal.snapshot().stdout
    assert first == second
    assert [line for line in dry.splitlines() if "dry run" not in line] == first.splitlines()


def test_a_snapshot_that_only_the_remote_has_is_fetched_without_writing_a_ref(
    rehearsal: Rehearsal, tmp_path: Path
) -> None:
    rehearsal.publish()
    clone = Path(shutil.copytree(rehearsal.dev.root, tmp_path / "elsewhere"))
    Git(clone).run("reflog", "expire", "--expire=now", "--all")
    Git(clone).run("gc", "--quiet", "--prune=now")
    fresh = Rehearsal(type(rehearsal.dev)(clone), rehearsal.remote)
    fresh.dev.candidate("0.1.1")
    refs = Git(clone).lines("for-each-ref")
    fresh.publish()
    assert Git(clone).lines("for-each-ref") == refs
    assert len(rehearsal.commits_in_remote()) == 2


# --- hostile surroundings: the very same commit, and nothing else in the remote ------------------


def _config(*settings: str) -> Callable[[Rehearsal], None]:
    def apply(rehearsal: Rehearsal) -> None:
        for setting in settings:
            key, _, value = setting.partition("=")
            rehearsal.dev.git("config", "--global", key, value)

    return apply


def _attributes(rehearsal: Rehearsal) -> None:
    attributes = rehearsal.dev.root / ".git" / "info" / "attributes"
    attributes.parent.mkdir(exist_ok=True)
    attributes.write_text("pkgx/** export-ignore\n*.md export-subst\n", encoding="utf-8")


def _failing_hooks(rehearsal: Rehearsal) -> None:
    for name in ("pre-push", "pre-commit", "commit-msg", "reference-transaction"):
        hook = rehearsal.dev.root / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
        hook.chmod(0o755)


def _replace_refs(rehearsal: Rehearsal) -> None:
    dev = rehearsal.dev
    head, first = dev.git("rev-parse", "HEAD"), dev.git("rev-list", "--max-parents=0", "HEAD")
    other = dev.git("commit-tree", f"{first}^{{tree}}", "-m", "another tree")
    dev.git("replace", head, other)


def _grafts(rehearsal: Rehearsal) -> None:
    # Hangs the development history below the snapshot-to-be, so that an ordinary push sends it.
    dev = rehearsal.dev
    planned = rehearsal.snapshot("--dry-run").stdout.split("snapshot ")[1].split()[0]
    grafts = dev.root / ".git" / "info" / "grafts"
    grafts.parent.mkdir(exist_ok=True)
    grafts.write_text(f"{planned} {dev.git('rev-parse', 'HEAD')}\n", encoding="utf-8")


def _notes(rehearsal: Rehearsal) -> None:
    rehearsal.dev.git("notes", "add", "-m", "private note")
    rehearsal.dev.git("config", "--global", "notes.displayRef", "refs/notes/*")


def _tags_to_follow(rehearsal: Rehearsal) -> None:
    rehearsal.dev.git("config", "--global", "push.followTags", "true")
    oid = rehearsal.snapshot().stdout.split("snapshot ")[1].split()[0]
    rehearsal.dev.git("tag", "-a", "private-mark", oid, "-m", "follows a push")


def _odd_environment(rehearsal: Rehearsal) -> None:
    rehearsal.env |= {
        "LC_ALL": "tr_TR.UTF-8",
        "LANGUAGE": "de",
        "TZ": "Asia/Kathmandu",
        "GIT_AUTHOR_NAME": "Somebody Private",
        "GIT_AUTHOR_DATE": "2001-01-01T00:00:00+0500",
        "GIT_COMMITTER_EMAIL": "somebody@private.invalid",
        "GIT_DIR": "/nonexistent",
        "GIT_INDEX_FILE": "/nonexistent",
    }
    os.umask(0o077)


HOSTILE = {
    "followTags": _tags_to_follow,
    "autocrlf": _config("core.autocrlf=true", "core.eol=crlf"),
    "export-ignore": _attributes,
    "replace refs": _replace_refs,
    "grafts": _grafts,
    "notes": _notes,
    "signing": _config(
        "commit.gpgSign=true",
        "tag.gpgSign=true",
        "push.gpgSign=true",
        "user.signingKey=nobody",
        "gpg.program=false",
    ),
    "failing hooks": _failing_hooks,
    "hooksPath": _config("core.hooksPath=/nonexistent/hooks"),
    "identity missing": _config("user.useConfigOnly=true"),
    "identity other": _config("user.name=Somebody Private", "user.email=somebody@private.invalid"),
    "encoding": _config("i18n.commitEncoding=ISO-8859-9", "core.quotePath=true"),
    "push settings": _config("push.default=matching", "remote.pushDefault=nowhere"),
    "push options": _config("push.pushOption=ci.skip", "push.recurseSubmodules=check"),
    "comment character": _config("core.commentChar=p", "tag.cleanup=scissors"),
    "display": _config("color.ui=always", "log.showSignature=true", "status.short=true"),
    "hidden untracked": _config("status.showUntrackedFiles=no"),
    "umask, locale, identity in the environment": _odd_environment,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_surroundings_change_nothing(
    rehearsal: Rehearsal, hosting: list[str], name: str
) -> None:
    planned = rehearsal.snapshot("--dry-run").stdout.split("snapshot ")[1].split()[0]
    umask = os.umask(0o022)
    try:
        HOSTILE[name](rehearsal)
        if "GIT_DIR" in rehearsal.env:
            done = rehearsal.snapshot(*hosting)
            rehearsal.env = {"LC_ALL": "tr_TR.UTF-8", "TZ": "Asia/Kathmandu"}
            assert done.stdout == rehearsal.snapshot(*hosting).stdout
        assert rehearsal.publish(*hosting) == planned
    finally:
        os.umask(umask)
    remote = Git(rehearsal.remote)
    refs = remote.lines("for-each-ref", "--format=%(refname)")
    assert refs == ("refs/heads/master", "refs/tags/v0.1.0")
    assert rehearsal.commits_in_remote() == {planned}
    tagger = remote.line("for-each-ref", "--format=%(taggername) %(taggeremail)", "refs/tags")
    assert tagger == "pkgx release <release@pkgx.invalid>"
    assert remote.find("cat-file", "-e", "refs/heads/master:pkgx/__init__.py") is not None


def test_the_graft_above_does_leak_through_an_ordinary_push(
    rehearsal: Rehearsal, bare: Callable[[str], Path]
) -> None:
    _grafts(rehearsal)
    oid = rehearsal.snapshot().stdout.split("snapshot ")[1].split()[0]
    leaky = Rehearsal(rehearsal.dev, bare("leaky"))
    rehearsal.dev.git("push", "--quiet", str(leaky.remote), f"{oid}:refs/heads/master")
    assert rehearsal.dev.git("rev-parse", "HEAD") in leaky.commits_in_remote()


# --- refusals: each state of the repositories, and exactly the rules that it breaks ---------------


def _untracked(rehearsal: Rehearsal) -> None:
    rehearsal.dev.write("left-over.txt", "x")


def _changed(rehearsal: Rehearsal) -> None:
    rehearsal.dev.write("README.md", "changed\n")


def _no_candidate(rehearsal: Rehearsal) -> None:
    rehearsal.dev.git("tag", "-d", "rc/v0.1.0")


def _lightweight(rehearsal: Rehearsal) -> None:
    rehearsal.dev.git("tag", "-f", "rc/v0.1.0")


def _candidate_elsewhere(rehearsal: Rehearsal) -> None:
    rehearsal.dev.commit("later work")


def _other_version_on_head(rehearsal: Rehearsal) -> None:
    rehearsal.dev.git("tag", "-a", "rc/v0.1.1", "-m", "x")


def _no_section(rehearsal: Rehearsal) -> None:
    rehearsal.dev.write("CHANGELOG.md", "# Changelog\n\n## 0.0.9 (2026-01-01)\n")
    rehearsal.dev.commit()
    rehearsal.dev.git("tag", "-f", "-a", "rc/v0.1.0", "-m", "x")


def _fragment_left(rehearsal: Rehearsal) -> None:
    rehearsal.dev.write("changelog.d/1.fixed.md", "A thing.\n")
    rehearsal.dev.commit()
    rehearsal.dev.git("tag", "-f", "-a", "rc/v0.1.0", "-m", "x")


def _branch_like_tag(rehearsal: Rehearsal) -> None:
    rehearsal.dev.git("branch", "v0.1.0")


def _branch_like_candidate(rehearsal: Rehearsal) -> None:
    rehearsal.dev.git("branch", "rc/v0.1.0")


def _tag_on_development(rehearsal: Rehearsal) -> None:
    rehearsal.dev.git("tag", "-a", "v0.1.0", "-m", "x")


def _lightweight_release_tag(rehearsal: Rehearsal) -> None:
    rehearsal.dev.git("tag", "v0.1.0", rehearsal.publish())


def _no_report(rehearsal: Rehearsal) -> None:
    (rehearsal.dev.root / "docs/release_logs/0.1.0_cpu.json").unlink()
    rehearsal.dev.commit()
    rehearsal.dev.git("tag", "-f", "-a", "rc/v0.1.0", "-m", "x")


def _failed_report(rehearsal: Rehearsal) -> None:
    rehearsal.dev.release_report("0.1.0", machine="gpu", info="skipped")
    rehearsal.dev.commit()
    rehearsal.dev.git("tag", "-f", "-a", "rc/v0.1.0", "-m", "x")


def _edited_report(rehearsal: Rehearsal) -> None:
    rehearsal.dev.release_report("0.1.0", info="fail")
    path = rehearsal.dev.root / "docs/release_logs/0.1.0_cpu.json"
    path.write_text(path.read_text().replace('"fail"', '"pass"'))
    rehearsal.dev.commit()
    rehearsal.dev.git("tag", "-f", "-a", "rc/v0.1.0", "-m", "x")


def _report_without_checks(rehearsal: Rehearsal) -> None:
    rehearsal.dev.release_report("0.1.0", machine="gpu")
    rehearsal.dev.commit()
    rehearsal.dev.git("tag", "-f", "-a", "rc/v0.1.0", "-m", "x")


def _address_rewritten(rehearsal: Rehearsal) -> None:
    key = f"url.{rehearsal.remote}-elsewhere.pushInsteadOf"
    rehearsal.dev.git("config", "--global", key, str(rehearsal.remote))


def _parent_is_development(rehearsal: Rehearsal) -> None:
    # The mistake of the well-known leak: the development commit as the snapshot's parent.
    dev = rehearsal.dev
    env = {
        f"GIT_{role}_{key}": value
        for role in ("AUTHOR", "COMMITTER")
        for key, value in (
            ("NAME", "pkgx release"),
            ("EMAIL", "release@pkgx.invalid"),
            ("DATE", "1790000000 +0000"),
        )
    }
    oid = dev.git("commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", "pkgx 0.1.0", env=env)
    assert dev.git("rev-list", "--count", oid) == "3"
    dev.git("push", "--quiet", str(rehearsal.remote), f"{oid}:refs/heads/master")


def _foreign_commit(rehearsal: Rehearsal) -> None:
    dev = rehearsal.dev
    oid = dev.git("commit-tree", "HEAD^{tree}", "-m", "edited on the site")
    dev.git("push", "--quiet", str(rehearsal.remote), f"{oid}:refs/heads/master")


def _note_in_remote(rehearsal: Rehearsal) -> None:
    rehearsal.publish()
    rehearsal.dev.git("notes", "add", "-m", "private")
    rehearsal.dev.git("push", "--quiet", str(rehearsal.remote), "refs/notes/commits")


def _branch_in_remote(rehearsal: Rehearsal) -> None:
    rehearsal.publish()
    rehearsal.dev.git("push", "--quiet", str(rehearsal.remote), "HEAD:refs/heads/wip")


def _branch_like_tag_in_remote(rehearsal: Rehearsal) -> None:
    tip = rehearsal.publish()
    rehearsal.dev.git("push", "--quiet", str(rehearsal.remote), f"{tip}:refs/heads/v0.1.0")


def _tag_elsewhere_in_remote(rehearsal: Rehearsal) -> None:
    rehearsal.publish()
    rehearsal.dev.git("push", "--quiet", str(rehearsal.remote), "HEAD:refs/tags/v0.1.0")


def _lightweight_in_remote(rehearsal: Rehearsal) -> None:
    tip = rehearsal.publish()
    rehearsal.dev.git("push", "--quiet", str(rehearsal.remote), f"{tip}:refs/tags/v0.1.0")


def _tag_on_older_snapshot(rehearsal: Rehearsal) -> None:
    old = rehearsal.publish()
    rehearsal.dev.candidate("0.1.1")
    rehearsal.dev.git("tag", "-a", "v0.1.1", old, "-m", "too early")
    rehearsal.dev.git("push", "--quiet", str(rehearsal.remote), "refs/tags/v0.1.1")
    rehearsal.dev.git("tag", "-d", "v0.1.1")


REFUSED: dict[str, tuple[Callable[[Rehearsal], None], set[str]]] = {
    "untracked file": (_untracked, {"SNAP101"}),
    "changed file": (_changed, {"SNAP101"}),
    "no rc tag": (_no_candidate, {"SNAP102"}),
    "lightweight rc tag": (_lightweight, {"SNAP102"}),
    "rc tag elsewhere": (_candidate_elsewhere, {"SNAP103"}),
    "rc tag of another version": (_other_version_on_head, {"SNAP104"}),
    "no changelog section": (_no_section, {"SNAP105"}),
    "fragment left": (_fragment_left, {"SNAP105"}),
    "branch named like the tag": (_branch_like_tag, {"SNAP107"}),
    "branch named like the rc tag": (_branch_like_candidate, {"SNAP107"}),
    "release tag on a development commit": (_tag_on_development, {"SNAP108"}),
    "lightweight release tag": (_lightweight_release_tag, {"SNAP108"}),
    "no T7 report": (_no_report, {"SNAP109"}),
    "T7 check skipped": (_failed_report, {"SNAP109"}),
    "T7 without checks": (_report_without_checks, {"SNAP109"}),
    "T7 edited into a pass": (_edited_report, {"SNAP109"}),
    "address rewritten": (_address_rewritten, {"SNAP110"}),
    "development commit as parent": (_parent_is_development, {"SNAP202", "SNAP203"}),
    "foreign commit": (_foreign_commit, {"SNAP202"}),
    "notes in the remote": (_note_in_remote, {"SNAP204"}),
    "another branch in the remote": (_branch_in_remote, {"SNAP204"}),
    "branch like the tag in the remote": (_branch_like_tag_in_remote, {"SNAP107", "SNAP204"}),
    "tag elsewhere in the remote": (_tag_elsewhere_in_remote, {"SNAP108", "SNAP204"}),
    "lightweight tag in the remote": (_lightweight_in_remote, {"SNAP108"}),
    "tag on an older snapshot": (_tag_on_older_snapshot, {"SNAP108"}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_exactly_the_broken_rules(rehearsal: Rehearsal, name: str) -> None:
    apply, codes = REFUSED[name]
    apply(rehearsal)
    assert rehearsal.codes() == codes


def test_a_release_tag_in_the_ci_repository_is_refused(
    rehearsal: Rehearsal, bare: Callable[[str], Path]
) -> None:
    ci = Rehearsal(rehearsal.dev, bare("ci"), "ci")
    tip = ci.publish()
    rehearsal.dev.git("tag", "-a", "v0.1.0", tip, "-m", "a mistake")
    rehearsal.dev.git("push", "--quiet", str(ci.remote), "refs/tags/v0.1.0")
    assert ci.codes() == {"SNAP205"}


def test_a_shallow_clone_is_refused(rehearsal: Rehearsal, tmp_path: Path) -> None:
    rehearsal.dev.git(
        *("clone", "--quiet", "--depth=1", "--branch=main", f"file://{rehearsal.dev.root}"),
        str(tmp_path / "shallow"),
    )
    shallow = type(rehearsal.dev)(tmp_path / "shallow")
    shallow.git("fetch", "--quiet", "--depth=1", "origin", "tag", "rc/v0.1.0")
    assert Rehearsal(shallow, rehearsal.remote).codes() == {"SNAP106"}


def test_previous_must_be_the_tip(rehearsal: Rehearsal) -> None:
    first = rehearsal.publish()
    rehearsal.dev.candidate("0.1.1")
    rehearsal.publish()
    rehearsal.dev.candidate("0.1.2")
    assert rehearsal.codes("--previous", first) == {"SNAP201"}


def test_the_version_asked_for_must_be_the_candidates(rehearsal: Rehearsal) -> None:
    assert rehearsal.codes("--version", "0.2.0") == {"SNAP104"}


def _say(rehearsal: Rehearsal, **texts: str) -> None:
    """Make the tree a candidate whose texts say this about a device."""
    dev = rehearsal.dev
    dev.write("CHANGELOG.md", f"# Changelog\n\n## 0.1.0 (2026-11-30)\n\n{texts['changelog']}\n")
    dev.write("docs/validation.md", f"# Validation\n\n{texts['validation']}\n")
    dev.commit()
    dev.git("tag", "-f", "-a", "rc/v0.1.0", "-m", "x")


def test_a_missing_device_run_needs_its_reason_in_both_texts(rehearsal: Rehearsal) -> None:
    _no_report(rehearsal)
    waiver, reason = ("--device-not-run", "T7=no GPU here"), "T7: no GPU here."
    assert rehearsal.codes(*waiver) == {"SNAP109", "REL204"}
    _say(rehearsal, changelog=reason, validation="")
    assert rehearsal.codes(*waiver) == {"REL204"}
    _say(rehearsal, changelog=reason, validation=reason)
    rehearsal.publish(*waiver)


@pytest.mark.parametrize(
    ("states", "acknowledged", "code"),
    [
        ({"device": "not-run"}, "no GPU here", 0),
        ({"device": "not-run"}, "", 1),
        ({"device": "not-run"}, "another reason", 1),
        ({"device": "fail"}, "no GPU here", 1),
        ({"device": "not-run", "fatbins": "not-run"}, "no GPU here", 1),
    ],
)
def test_a_reason_covers_the_device_alone_if_the_report_has_it(
    rehearsal: Rehearsal, states: dict[str, str], acknowledged: str, code: int
) -> None:
    rehearsal.dev.release_report("0.1.0", acknowledged=acknowledged, **states)
    _say(rehearsal, changelog="T7: no GPU here.", validation="T7: no GPU here.")
    assert rehearsal.codes() == {"SNAP109"}
    done = rehearsal.snapshot("--dry-run", "--device-not-run", "T7=no GPU here")
    assert done.returncode == code, done.stdout
    assert ("SNAP109" in done.stdout) == bool(code)


def test_tier_results_are_part_of_a_candidate(rehearsal: Rehearsal) -> None:
    dev = rehearsal.dev
    pyproject = (dev.root / "pyproject.toml").read_text(encoding="utf-8")
    dev.write("pyproject.toml", pyproject.replace("owner =", 'tiers = ["t3"]\nowner ='))
    commit = dev.commit("code")
    _say(rehearsal, changelog="", validation="")
    assert rehearsal.codes() == {"REL201"}
    dev.tier_result("t3", commit, host="pass", device="not-run")
    _say(rehearsal, changelog="", validation="")
    assert rehearsal.codes() == {"REL202"}
    dev.tier_result("t3", commit, host="pass", device="pass")
    _say(rehearsal, changelog="", validation="")
    rehearsal.publish()


def test_unreadable_remote_and_missing_address_are_usage_errors(
    rehearsal: Rehearsal, tmp_path: Path
) -> None:
    missing = Rehearsal(rehearsal.dev, tmp_path / "nowhere.git").snapshot()
    assert missing.returncode == 2
    assert "ls-remote" in missing.stderr
    assert snapshot.main(["--root", str(rehearsal.dev.root), "--to", "ci"]) == 2
    assert rehearsal.snapshot("--device-not-run", "T7").returncode == 2


def test_tag_objects_are_peeled(rehearsal: Rehearsal) -> None:
    # rc/v0.1.0 names a tag object: compared unpeeled it is not HEAD, and commit-tree refuses it.
    git = Git(rehearsal.dev.root)
    assert git.line("rev-parse", "rc/v0.1.0") != git.line("rev-parse", "HEAD")
    assert git.find("commit-tree", "HEAD", "-m", "x") is None
    facts = snapshot.load(rehearsal.dev.root, "public", remote=str(rehearsal.remote))
    assert facts.candidate is not None
    assert facts.candidate.commit == facts.head
    assert facts.tree == git.line("rev-parse", "HEAD^{tree}")

"""Golden commits: nightlies that every canary passed, and the records that say so.

    golden candidate [--version V]      choose a nightly and prove which commit it is
    golden canaries                     let every consumer test it
    golden resume --run CANARY=ID ...   wait for, or go on with, runs that had no end
    golden record [--execute | --pull-request]   write down what passed
    golden tags [--execute]             tag what was recorded by a pull request that landed
    golden verify                       check the records of the remote
    golden cut [--commit C]             check that a release differs from a golden commit only so

Every step prints its plan first and can be run again; `--dry-run` stops after the plan. Files lie
in build/golden/. Nothing is pushed without --execute (local remotes) or --allow-remote.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import canaries
import channel_build
import golden_candidate
import golden_records
import hosting
import package_index
from canaries import Candidate, Result
from files import ROOT, parse_toml, sha256_of, write_bytes, write_json
from findings import (
    PASS,
    InconclusiveError,
    Outcome,
    Rule,
    UnusableError,
    apply_rules,
    run,
)
from git_commands import Git, GitError, is_local
from golden_config import Golden, load_golden
from golden_records import Plan, PushRefusedError, Row, State
from project import Project, load_project

Problems = Iterator[tuple[str, str]]
CANDIDATE_SCHEMA: Final = "mmaemu.golden-candidate/1"
GATE_SCHEMA: Final = "mmaemu.golden-gate/1"
# Names of the variables that hold the tokens.
RECORD: Final = "GOLDEN_RECORD_TOKEN"
DISPATCH: Final = "CANARY_DISPATCH_TOKEN"
READ: Final = "HOSTING_READ_TOKEN"
FAILED_LABEL: Final = "golden gate failed"


@dataclass(frozen=True, slots=True)
class Gate:
    """What the canaries said of a candidate.

    Attributes:
        candidate: the nightly.
        results: of every canary.
        verified_at: when the last one had ended.
        expected: names of the canaries in pyproject.toml.
    """

    candidate: Candidate
    results: tuple[Result, ...]
    verified_at: str
    expected: tuple[str, ...]

    @property
    def row(self) -> Row:
        """The row that records it."""
        runs = tuple((result.name, result.run) for result in self.results)
        candidate = self.candidate
        return Row(
            self.verified_at, candidate.commit, candidate.version, candidate.sha256, tuple(runs)
        )


def _nothing_failed(gate: Gate) -> Problems:
    yield from canaries.failed(gate.results)


def _everything_ran(gate: Gate) -> Problems:
    names = {result.name for result in gate.results}
    for name in gate.expected:
        if name not in names:
            yield name, "the canary has no result; run `golden canaries`"
    for name in sorted(names - set(gate.expected)):
        yield name, "is no canary of pyproject.toml; run `golden canaries` again"
    if not gate.expected:
        yield "pyproject.toml", "there is no canary; nothing can become golden without one"


RULES: Final[tuple[Rule[Gate], ...]] = (
    Rule("GOLD121", "No lane of a canary failed or ran another wheel.", _nothing_failed),
    Rule("GOLD122", "Every canary of pyproject.toml has a result, no other.", _everything_ran),
)


# --- surroundings --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setting:
    """What every subcommand starts from."""

    arguments: argparse.Namespace
    project: Project
    golden: Golden
    git: Git

    @property
    def work(self) -> Path:
        """Folder of everything that is written here."""
        folder: Path = self.arguments.work or self.project.root / "build" / "golden"
        return folder.resolve()

    @property
    def url(self) -> str:
        """Address of the development repository.

        Raises:
            UnusableError: the clone has no such remote.
        """
        given = self.arguments.remote or self.golden.remote
        if "/" in given or ":" in given:
            return str(given)
        found = self.git.find("remote", "get-url", given)
        if found is None:
            raise UnusableError(
                f"the clone has no remote {given!r}; give --remote ADDRESS or set "
                "[tool.mmaemu.release.golden] remote"
            )
        return found

    @property
    def repository(self) -> str:
        """owner/name at the hosting service, from the address."""
        path = self.url.removesuffix(".git").replace(":", "/").split("/")
        return "/".join(path[-2:])

    def state(self) -> State:
        """The remote as it is now."""
        return golden_records.read_state(self.git, self.golden.places(self.url))

    def require_local(self) -> None:
        """Refuse to write to a remote of another machine unless that was allowed.

        Raises:
            UnusableError: it was not.
        """
        if not is_local(self.url) and not self.arguments.allow_remote:
            raise UnusableError(
                f"{self.url} is not on this machine; add --allow-remote to push to it"
            )


def _now() -> str:
    return dt.datetime.now(dt.timezone.utc).strftime(golden_records.TIME)


def _read(path: Path, schema: str, how: str) -> dict[str, Any]:
    if not path.is_file():
        raise UnusableError(f"{path} is missing; run `{how}` first")
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if document.get("schema") != schema:
        raise UnusableError(f"{path} is no {schema}; run `{how}` again")
    return document


# --- candidate -----------------------------------------------------------------------------------


def nightly_rebuild(root: Path) -> golden_candidate.Rebuild:
    """Builds a nightly again, exactly as `invoke nightly` does."""

    def rebuild(commit: str, version: str) -> Mapping[str, str]:
        with tempfile.TemporaryDirectory() as folder:
            built = channel_build.rebuild(root, commit, version, Path(folder))
            return {path.name: sha256_of(path.read_bytes()) for path in built}

    return rebuild


def candidate(setting: Setting) -> Outcome | None:
    """Choose, find the commit, prove it, and write it down."""
    golden, arguments = setting.golden, setting.arguments
    index = package_index.from_environment(golden.index)
    version, file = golden_candidate.choose(index.files(golden.distribution), arguments.version)
    print(f"golden: candidate {golden.distribution} {version}")
    commit, manifest = _commit(setting, version)
    print(f"golden: built from {commit}")
    if arguments.dry_run:
        print("golden: dry run: not downloaded, not built again, nothing written")
        return None
    state = setting.state()
    state.require_history()
    rebuilt = _rebuild(setting, state, commit, version)
    facts = golden_candidate.Facts(version, file, commit, state, manifest, rebuilt)
    outcome = apply_rules(golden_candidate.RULES, facts)
    if outcome.exit_code == PASS and file is not None:
        _keep_candidate(setting, index, facts)
    return outcome


def _commit(setting: Setting, version: str) -> tuple[str, Mapping[str, Any] | None]:
    arguments = setting.arguments
    folder = arguments.manifests or setting.project.root / "build" / "nightly"
    manifest = golden_candidate.read_manifest(version, folder)
    runs: tuple[hosting.Run, ...] = ()
    if manifest is None and arguments.ask_hosting:
        service = hosting.from_environment(READ)
        if service.token:
            manifest = golden_candidate.fetch_manifest(service, setting.repository, version)
        runs = service.runs(setting.repository, setting.golden.workflow)
    return golden_candidate.commit_of(version, manifest, runs), manifest


def _rebuild(setting: Setting, state: State, commit: str, version: str) -> Mapping[str, str] | None:
    """A second build; none of a commit that is not on the branch, whose code is not ours to run."""
    if commit not in state.order:
        return None
    return nightly_rebuild(setting.project.root)(commit, version)


def _keep_candidate(
    setting: Setting, index: package_index.Index, facts: golden_candidate.Facts
) -> None:
    golden = setting.golden
    file = facts.file
    if file is None or file.sha256 is None:
        raise UnusableError(f"the index states no sha256 for {facts.version}; it cannot be proven")
    folder = setting.work / facts.version
    chosen = Candidate(
        distribution=golden.distribution,
        package=golden.package,
        version=facts.version,
        commit=facts.commit,
        wheel=file.name,
        sha256=file.sha256,
        path=str(folder / file.name),
    )
    canaries.download(index, chosen)
    document = {"schema": CANDIDATE_SCHEMA, **asdict(chosen)}
    write_json(folder / "candidate.json", document)
    write_json(setting.work / "candidate.json", document)
    print(f"golden: wrote {setting.work / 'candidate.json'}")


def read_candidate(document: Mapping[str, Any]) -> Candidate:
    """A candidate from its document."""
    return Candidate(**{key: str(value) for key, value in document.items() if key != "schema"})


# --- canaries ------------------------------------------------------------------------------------


def run_canaries(setting: Setting) -> Outcome | None:
    """Let every canary test the candidate; with runs given, go on with those."""
    document = _read(setting.work / "candidate.json", CANDIDATE_SCHEMA, "golden candidate")
    chosen = read_candidate(document)
    resumed = dict(setting.arguments.run)
    for name in resumed:
        setting.golden.canary(name)
    for row in setting.golden.canaries:
        how = f"run {resumed[row.name]}" if row.name in resumed else "a new run"
        lanes = ", ".join(row.lanes) or row.workflow
        print(f"golden: {row.name}: {how} of {lanes} in {row.repository}")
    if setting.arguments.dry_run:
        print("golden: dry run: no canary is run")
        return None
    results = []
    for row in setting.golden.canaries:
        results.append(_adapter(setting, row.name, chosen).run(resumed.get(row.name)))
        print(f"golden: {row.name}: {results[-1].state} (run {results[-1].run or 'none'})")
    gate = Gate(chosen, tuple(results), _now(), tuple(row.name for row in setting.golden.canaries))
    _keep_gate(setting, gate)
    return judge(setting, gate)


def resume(setting: Setting) -> Outcome | None:
    """As `canaries`, but at least one run must be named."""
    if not setting.arguments.run:
        raise UnusableError("give --run CANARY=ID for the runs to go on with")
    return run_canaries(setting)


def _adapter(
    setting: Setting, name: str, chosen: Candidate
) -> canaries.Checkout | canaries.Workflow:
    canary = setting.golden.canary(name)
    if canary.kind == "workflow":
        return canaries.Workflow(canary, chosen, hosting.from_environment(DISPATCH))
    indexes = _indexes(setting.golden.index) if canary.install else {}
    return canaries.Checkout(canary, chosen, setting.work / "runs", indexes)


def _indexes(role: str) -> dict[str, str]:
    """Variables of pip for a consumer: the public index, and the one that has nightlies."""
    found = {"PIP_EXTRA_INDEX_URL": package_index.from_environment(role).url}
    with contextlib.suppress(UnusableError):
        found["PIP_INDEX_URL"] = package_index.from_environment("public").url
    return found


def _keep_gate(setting: Setting, gate: Gate) -> None:
    document = {
        "schema": GATE_SCHEMA,
        "candidate": asdict(gate.candidate),
        "results": [canaries.as_json(result) for result in gate.results],
        "verified_at": gate.verified_at,
    }
    write_json(setting.work / gate.candidate.version / "gate.json", document)
    write_json(setting.work / "gate.json", document)


def read_gate(setting: Setting) -> Gate:
    """The last gate's result."""
    document = _read(setting.work / "gate.json", GATE_SCHEMA, "golden canaries")
    return Gate(
        candidate=read_candidate(document["candidate"]),
        results=tuple(map(canaries.parse_result, document["results"])),
        verified_at=str(document["verified_at"]),
        expected=tuple(row.name for row in setting.golden.canaries),
    )


def judge(setting: Setting, gate: Gate) -> Outcome:
    """Judge a gate's result; one that failed is told once per candidate.

    Raises:
        InconclusiveError: a canary neither passed nor failed.
    """
    outcome = apply_rules(RULES, gate)
    if outcome.findings:
        _tell(setting, gate, outcome)
        return outcome
    open_runs = list(canaries.undecided(gate.results))
    if open_runs:
        again = " ".join(
            f"--run {result.name}={result.run}" for result in gate.results if result.run
        )
        lines = "".join(f"\n  {where}: {reason}" for where, reason in open_runs)
        raise InconclusiveError(
            f"{gate.candidate.version} is not decided:{lines}\n"
            f"rerun: python tools/golden.py resume {again}"
        )
    return outcome


def failure_text(gate: Gate, outcome: Outcome) -> str:
    """What a failed gate says: the candidate, every run, every reason."""
    runs = [
        f"- {result.name}: {result.state}, run {result.url or result.run or 'none'}"
        for result in gate.results
    ]
    reasons = [f"- {finding}" for finding in sorted(outcome.findings)]
    again = " ".join(f"--run {result.name}={result.run}" for result in gate.results if result.run)
    return "\n".join(
        [
            f"{gate.candidate.distribution} {gate.candidate.version} is not golden.",
            "",
            f"Commit {gate.candidate.commit}, wheel sha256 {gate.candidate.sha256}.",
            "The previous golden commit stands; nothing was recorded.",
            "",
            *runs,
            "",
            *reasons,
            "",
            f"To go on with runs that had no end: `python tools/golden.py resume {again}`",
            "",
        ]
    )


def _tell(setting: Setting, gate: Gate, outcome: Outcome) -> None:
    """Report a failed gate once per candidate: a file here, an issue where a token allows it."""
    path = setting.work / gate.candidate.version / "failed.md"
    known = path.is_file()
    text = failure_text(gate, outcome)
    if not known:
        write_bytes(path, text.encode())
    print(f"golden: {'reported already in' if known else 'reported in'} {path}")
    service = hosting.from_environment(RECORD)
    if service.token and (service.is_local or setting.arguments.allow_remote):
        title = f"{gate.candidate.version} failed its canaries"
        print(f"golden: {service.open_issue(setting.repository, title, text, FAILED_LABEL)}")


# --- records -------------------------------------------------------------------------------------


def record(setting: Setting) -> Outcome:
    """Write down a gate that passed; see the module docstring for the three ways."""
    gate = read_gate(setting)
    judged = judge(setting, gate)
    if judged.exit_code:
        return judged
    arguments = setting.arguments
    if (arguments.execute or arguments.pull_request) and not arguments.dry_run:
        setting.require_local()
    if arguments.execute and not arguments.dry_run:
        return _execute(setting, gate.row)
    plan, outcome = _planned(setting, gate.row)
    if outcome.exit_code:
        return outcome
    _show(plan)
    if arguments.dry_run:
        print("golden: dry run: nothing is written")
    elif arguments.pull_request and plan.files:
        _pull_request(setting, plan)
    else:
        proposal = None
        if plan.files:
            proposal = golden_records.propose_record(setting.git, plan, setting.project.release)
        print("\n".join(golden_records.commands(plan, proposal, setting.repository)))
    return outcome


def _planned(setting: Setting, row: Row) -> tuple[Plan, Outcome]:
    state = setting.state()
    state.require_history()
    outcome = apply_rules(golden_records.RECORD, golden_records.Facts(state, wanted=row))
    return golden_records.plan_record(state, row), outcome


def _show(plan: Plan) -> None:
    where = plan.state.places
    for name, text in plan.files.items():
        print(f"golden: {where.records} {name}: {text.splitlines()[-1]}")
    if plan.tag:
        print(f"golden: tag {plan.row.tag} on {plan.row.commit}")
    if plan.done:
        print(f"golden: {plan.row.version} is recorded and tagged {plan.row.tag}")


def _execute(setting: Setting, row: Row) -> Outcome:
    """One atomic push of what is missing, computed anew from the remote for each try."""
    reason = ""
    for attempt in range(1, golden_records.TRIES + 1):
        plan, outcome = _planned(setting, row)
        if outcome.exit_code:
            return outcome
        _show(plan)
        if plan.done:
            return outcome
        try:
            golden_records.push(setting.git, plan, setting.project.release, credentials())
        except PushRefusedError as error:
            refused = golden_records.Facts(plan.state, refused=str(error))
            return apply_rules(golden_records.PUSHED, refused)
        except GitError as error:
            reason = str(error)
            golden_records.pause(attempt)
        else:
            print(f"golden: pushed {plan.row.version} and {plan.row.tag} to {setting.url}")
            return outcome
    raise InconclusiveError(
        f"the remote moved under each of {golden_records.TRIES} pushes; rerun the same command "
        f"({reason})"
    )


def _pull_request(setting: Setting, plan: Plan) -> None:
    """Push the record's branch and open its labelled pull request.

    Raises:
        UnusableError: there is no branch yet that the request could be into.
    """
    places = plan.state.places
    if not plan.state.records_tip:
        raise UnusableError(
            f"{places.url} has no branch {places.records} yet, which a pull request needs; "
            "bring the first record with --execute"
        )
    proposal = golden_records.propose_record(setting.git, plan, setting.project.release)
    branch, spec = proposal.branch, proposal.refspec
    if not proposal.there:
        setting.git.run("push", "--no-follow-tags", places.url, spec, env=credentials())
    service = hosting.from_environment(RECORD)
    if service.token is None:
        print(f"golden: pushed {branch}; {RECORD} is unset: open the pull request by hand")
        return
    title, _, body = plan.message.partition("\n\n")
    page = service.open_pull_request(
        setting.repository,
        head=branch,
        base=places.records,
        title=title,
        body=body,
        label=places.label,
    )
    print(f"golden: {page}")


def credentials() -> dict[str, str]:
    """How git asks for the token that pushes records; the token itself stays in its variable."""
    if not os.environ.get(RECORD):
        return {}
    return {"GIT_ASKPASS": str(Path(__file__).resolve().with_name("git_token.py"))}


def tags(setting: Setting) -> Outcome:
    """Tag every recorded commit that lacks its tag."""
    arguments, state = setting.arguments, setting.state()
    missing = [row for row in state.rows if row.tag not in state.tags]
    for row in missing:
        print(f"golden: tag {row.tag} on {row.commit}")
    if arguments.execute and not arguments.dry_run:
        setting.require_local()
        for row in missing:
            outcome = _execute(setting, row)
            if outcome.exit_code:
                return outcome
    elif not arguments.dry_run:
        for row in missing:
            print(golden_records.commands(Plan(state, row, {}, tag=True), None, "")[-1])
    print(f"golden: {len(missing)} of {len(state.rows)} records lacked a tag")
    return Outcome()


def verify(setting: Setting) -> Outcome:
    """Check the records of the remote, and warn where the newest golden commit is old."""
    state = setting.state()
    warning = golden_records.staleness(state, golden_records.parse_time(_now()))
    if warning:
        print(f"golden: warning: {warning}")
    return apply_rules(golden_records.VERIFY, golden_records.Facts(state))


def cut(setting: Setting) -> Outcome:
    """Check that a commit to release differs from a golden commit in records only."""
    state, git = setting.state(), setting.git
    state.require_history()
    commit = git.line("rev-parse", "--verify", f"{setting.arguments.commit}^{{commit}}")
    history = set(git.lines("rev-list", commit))
    base = state.newest(tuple(row for row in state.rows if row.commit in history))
    changed: tuple[str, ...] = ()
    if base:
        names = git.names("diff", "--name-only", "--no-renames", "-z", base, commit)
        changed = tuple(name for name in names if not _only_the_version(git, name, base, commit))
        print(f"golden: {commit[:12]} is cut from {base[:12]}")
    facts = golden_records.Facts(
        state if base else _without_rows(state), changed=changed, allowed=setting.golden.allowed
    )
    return apply_rules(golden_records.CUT, facts)


def _only_the_version(git: Git, name: str, old: str, new: str) -> bool:
    """Whether a pyproject.toml differs in nothing but the version."""
    if name != "pyproject.toml":
        return False
    texts = [git.run("show", f"{commit}:{name}").decode() for commit in (old, new)]
    documents = [parse_toml(text) for text in texts]
    for document in documents:
        document.get("project", {}).pop("version", None)
    before, after = documents
    return before == after


def _without_rows(state: State) -> State:
    places = state.places
    return State(places, state.tip, state.records_tip, (), "", {}, state.order, state.shallow)


# --- command line --------------------------------------------------------------------------------

STEPS: Final[Mapping[str, Callable[[Setting], Outcome | None]]] = {
    "candidate": candidate,
    "canaries": run_canaries,
    "resume": resume,
    "record": record,
    "tags": tags,
    "verify": verify,
    "cut": cut,
}


def _named_run(text: str) -> tuple[str, str]:
    name, _, number = text.partition("=")
    if not name or not number:
        raise argparse.ArgumentTypeError(f"expected CANARY=ID, got {text!r}")
    return name, number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="golden", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=STEPS, help="what to do")
    parser.add_argument("--root", type=Path, default=ROOT, help="the development clone")
    parser.add_argument("--remote", default="", help="address; default: from pyproject.toml")
    parser.add_argument("--work", type=Path, help="folder for files; default: build/golden")
    parser.add_argument("--version", help="candidate: the nightly; default: the newest")
    parser.add_argument("--manifests", type=Path, help="candidate: folder of nightly manifests")
    parser.add_argument(
        "--ask-hosting",
        action="store_true",
        help="candidate: look for the manifest and for the nightly runs at the hosting service",
    )
    parser.add_argument(
        "--run",
        type=_named_run,
        action="append",
        default=[],
        metavar="CANARY=ID",
        help="canaries, resume: go on with this run",
    )
    parser.add_argument("--commit", default="HEAD", help="cut: what is to be released")
    parser.add_argument("--execute", action="store_true", help="record: one atomic push")
    parser.add_argument(
        "--pull-request", action="store_true", help="record: push a branch, open a pull request"
    )
    parser.add_argument("--allow-remote", action="store_true", help="write to other machines")
    parser.add_argument("--dry-run", action="store_true", help="print the plan, change nothing")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = _parser()

    def action(arguments: argparse.Namespace) -> Outcome | None:
        project = load_project(arguments.root.resolve())
        setting = Setting(arguments, project, load_golden(project), Git(project.root))
        return STEPS[arguments.step](setting)

    return run(parser, action, argv)


if __name__ == "__main__":
    raise SystemExit(main())

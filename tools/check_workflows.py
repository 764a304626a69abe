"""Check the workflows against the release policy: who may publish, what runs, what is pinned."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from doctor import SECRETS
from files import ROOT
from findings import Outcome, Rule, apply_rules, run
from project import load_project
from workflows import Job, Step, Workflow, load, table_of

Problems = Iterator[tuple[str, str]]
NEEDED: Final = ("ci.yml", "docs.yml", "golden.yml", "nightly.yml", "release.yml")
TRIGGERS: Final = {
    "ci.yml": {"push": "", "pull_request": ""},
    "docs.yml": {"push": "", "pull_request": "", "workflow_dispatch": ""},
    "release.yml": {"push": {"tags": ["v*"]}, "workflow_dispatch": ""},
    "nightly.yml": {"schedule": [{"cron": "0 8 * * *"}], "workflow_dispatch": ""},
}
GOLDEN_CRON: Final = [{"cron": "0 14 * * 1"}]
GOLDEN_INPUTS: Final = ("version", "runs", "dry_run", "bump_downstream")
# Who may write what; every other job has the workflow's read access and nothing else.
WRITES: Final = {
    ("release.yml", "publish"): {"id-token": "write"},
    ("docs.yml", "deploy"): {"pages": "write", "id-token": "write"},
}
READ_ONLY: Final = {"contents": "read"}
ENVIRONMENTS: Final = {
    ("release.yml", "publish"): "pypi",
    ("docs.yml", "deploy"): "github-pages",
    ("golden.yml", "gate"): "golden",
    ("golden.yml", "record"): "golden",
    ("golden.yml", "downstream"): "golden",
}
PINNED: Final = re.compile(r"^[\w.-]+/[\w./-]+@[0-9a-f]{40}$")
PINNED_LINE: Final = re.compile(r"uses:\s*\S+@[0-9a-f]{40}\s+#\s*v\d+\.\d+\.\d+\s*$")
# A step is a command of the repository, so that it runs the same way on any machine.
COMMAND: Final = re.compile(
    r"^(python -m pip install( [\w-]+==[\w.]+)+|nox -s|invoke|python tools/\w+\.py)(?= |$)"
)
SHELL: Final = re.compile(r"[|;&<>`\\]|\$\(")
SECRET: Final = re.compile(
    r"secrets\b|github\.token|GITHUB_TOKEN|\b(password|api[-_]token)\s*:", re.IGNORECASE
)
IMAGE: Final = re.compile(r"^(ubuntu|windows|macos)-\d+(\.\d+)?$")
PUBLISH_IF: Final = "github.event_name == 'push' && startsWith(github.ref, 'refs/tags/v')"
DEPLOY_IF: Final = (
    "github.event_name != 'pull_request' && github.ref == 'refs/heads/master' && "
    "github.repository == '{repository}' && !github.event.repository.private"
)
PUBLISH_ACTIONS: Final = ("actions/download-artifact", "pypa/gh-action-pypi-publish")
DEPLOY_ACTIONS: Final = ("actions/deploy-pages",)
RELEASE_COMMANDS: Final = ("nox -s fatbin", 'nox -s dist -- --require-fatbins --tag "$TAG"')
TAG: Final = "${{ github.ref_type == 'tag' && github.ref_name || '' }}"
ARTIFACTS: Final = {"dist": "dist/*.whl dist/*.tar.gz", "release-meta": "dist/SHA256SUMS"}
PUBLISH_INPUTS: Final = {"packages-dir": "dist", "print-hash": "true"}
CI_JOBS: Final = ("lint", "test", "dist")
# What each job of the channels runs, in order, besides pip.
CHANNEL_COMMANDS: Final = {
    ("nightly.yml", "build"): (
        "nox -s invoke -- nightly --channel nightly --execute --allow-remote",
        "nox -s invoke -- stage build/nightly/* --channel nightly --execute --allow-remote",
    ),
    ("golden.yml", "gate"): (
        'nox -s invoke -- golden candidate --ask-hosting --version "$VERSION"',
        'nox -s invoke -- golden canaries --runs "$RUNS" --allow-remote',
    ),
    ("golden.yml", "record"): (
        "nox -s invoke -- golden tags --execute --allow-remote",
        "nox -s invoke -- golden record --pull-request --allow-remote",
    ),
    ("golden.yml", "downstream"): ("nox -s invoke -- downstream-bump --execute --allow-remote",),
}
# What a job waits for, and when it runs at all.
CHANNEL_CONDITIONS: Final = {
    ("nightly.yml", "build"): ("", ""),
    ("golden.yml", "gate"): ("", ""),
    ("golden.yml", "record"): ("gate", "${{ !inputs.dry_run }}"),
    ("golden.yml", "downstream"): ("record", "${{ inputs.bump_downstream }}"),
}
MATRIX_COMMAND: Final = 'nox -s t0_matrix t1_matrix -p "$PYTHON" -t "torch-$TORCH"'
MATRIX_ENV: Final = {"PYTHON": "${{ matrix.python }}", "TORCH": "${{ matrix.torch }}"}


@dataclass(frozen=True, slots=True)
class Facts:
    """The workflows and what they must agree with.

    Attributes:
        workflows: parsed files by name.
        pythons: Python versions of [tool.mmaemu.matrix].
        torches: torch versions of [tool.mmaemu.matrix].
        repository: owner/name of the public repository.
        has_cuda: whether the tree holds CUDA sources, which CI must compile.
    """

    workflows: dict[str, Workflow]
    pythons: tuple[str, ...]
    torches: tuple[str, ...]
    repository: str
    has_cuda: bool

    def of(self, name: str) -> Workflow:
        """One workflow, an empty one where it is missing."""
        return self.workflows.get(name, Workflow(name, "", {}))

    @property
    def jobs(self) -> Iterator[tuple[Workflow, Job]]:
        """Every job of every workflow."""
        return ((flow, job) for flow in self.workflows.values() for job in flow.jobs)

    @property
    def steps(self) -> Iterator[Step]:
        """Every step of every workflow."""
        return (step for flow in self.workflows.values() for step in flow.steps)


# --- rules for every workflow --------------------------------------------------------------------


def _present(facts: Facts) -> Problems:
    for name in NEEDED:
        if name not in facts.workflows:
            yield name, "the workflow is missing"


def _pinned(facts: Facts) -> Problems:
    for step in facts.steps:
        if step.uses and not PINNED.match(step.uses):
            yield step.where, f"{step.uses} is not pinned to a commit (40 hexadecimal digits)"
    for name, flow in facts.workflows.items():
        for line in flow.text.splitlines():
            if re.search(r"uses:\s*\S+@[0-9a-f]{40}", line) and not PINNED_LINE.search(line):
                yield name, f"{line.strip()}: say which release it is, as `# vX.Y.Z`"


def _read_only(facts: Facts) -> Problems:
    for name, flow in facts.workflows.items():
        if flow.table.get("permissions") != READ_ONLY:
            yield name, f"permissions are {flow.table.get('permissions')}, expected {READ_ONLY}"


def _writes(facts: Facts) -> Problems:
    for flow, job in facts.jobs:
        allowed = WRITES.get((flow.name, job.name))
        found = job.table.get("permissions")
        if found != allowed:
            yield job.where, f"permissions are {found}, expected {allowed or 'none of its own'}"


def _environments(facts: Facts) -> Problems:
    for flow, job in facts.jobs:
        stated = job.table.get("environment")
        found = table_of(stated).get("name", stated)
        expected = ENVIRONMENTS.get((flow.name, job.name))
        if found != expected:
            yield (
                job.where,
                f"environment is {found}, expected {expected}: an unknown one is created without "
                "protection",
            )


def _no_kept_credentials(facts: Facts) -> Problems:
    for step in facts.steps:
        if step.action == "actions/checkout":
            kept = step.inputs.get("persist-credentials")
            if kept != "false":
                yield step.where, f"persist-credentials is {kept}, expected false"


def _no_secrets(facts: Facts) -> Problems:
    for name, flow in facts.workflows.items():
        allowed = set().union(*(_given(job) for job in flow.jobs if job.name in _takers(name)))
        for number, line in enumerate(flow.text.splitlines(), start=1):
            words = line.partition("#")[0]
            if SECRET.search(words) and words.strip() not in allowed:
                yield f"{name}:{number}", "a secret or token; only golden.yml takes its own four"


def _takers(name: str) -> set[str]:
    """The jobs of a workflow that take secrets."""
    return {job for secret in SECRETS for job in secret.jobs} if name == "golden.yml" else set()


def _given(job: Job) -> set[str]:
    """The lines by which a job may pass its secrets to a command."""
    names = [secret.name for secret in SECRETS if job.name in secret.jobs]
    return {f"{name}: ${{{{ secrets.{name} }}}}" for name in names}


def _secrets_of_jobs(facts: Facts) -> Problems:
    for job in facts.of("golden.yml").jobs:
        mine = {secret.name for secret in SECRETS if job.name in secret.jobs}
        found = {
            key
            for step in job.steps
            for key, value in table_of(step.table.get("env")).items()
            if "secrets." in str(value)
        }
        if found != mine:
            yield job.where, f"takes the secrets {sorted(found)}, expected {sorted(mine)}"
        if "secrets." in str(job.table.get("env")) + str(facts.of("golden.yml").table.get("env")):
            yield job.where, "a secret for every step; give it to the one that needs it"


def _no_injection(facts: Facts) -> Problems:
    for step in facts.steps:
        for command in step.commands:
            if "${{" in command:
                yield step.where, f"an expression inside `{command}`; pass it through env"


def _commands(facts: Facts) -> Problems:
    for step in facts.steps:
        for command in step.commands:
            if "${{" not in command and (not COMMAND.match(command) or SHELL.search(command)):
                yield (
                    step.where,
                    f"`{command}` is no plain pip install NAME==VERSION, nox, invoke or tools/ "
                    "command; put the work behind one",
                )
        if "shell" in step.table or "working-directory" in step.table:
            yield step.where, "another shell or folder; the same command must run anywhere"


def _time_limits(facts: Facts) -> Problems:
    for _, job in facts.jobs:
        if not str(job.table.get("timeout-minutes", "")).isdecimal():
            yield job.where, "no timeout-minutes; a job that hangs would run for hours"


def _failures_count(facts: Facts) -> Problems:
    for _, job in facts.jobs:
        for where, table in [(job.where, job.table), *((s.where, s.table) for s in job.steps)]:
            if "continue-on-error" in table:
                yield where, "continue-on-error turns a failure into a pass; remove it"
            if re.search(r"\b(always|failure|cancelled)\(\)", str(table.get("if", ""))):
                yield where, f"`if: {table.get('if')}` runs after a failure; remove it"


def _images(facts: Facts) -> Problems:
    for _, job in facts.jobs:
        image = str(job.table.get("runs-on"))
        if not IMAGE.match(image):
            yield job.where, f"runs-on is {image}, expected a numbered image such as ubuntu-24.04"


def _triggers(facts: Facts) -> Problems:
    for name, expected in TRIGGERS.items():
        if name in facts.workflows and facts.of(name).triggers != expected:
            yield name, f"runs on {facts.of(name).triggers}, expected {expected}"
    for name, flow in facts.workflows.items():
        for trigger in ("pull_request_target", "workflow_run", "issue_comment"):
            if name not in TRIGGERS and trigger in str(flow.triggers):
                yield name, f"runs on {trigger}, which gives strangers the repository's rights"


# --- ci.yml --------------------------------------------------------------------------------------


def _ci_jobs(facts: Facts) -> Problems:
    needed = (*CI_JOBS, *(["nvrtc"] if facts.has_cuda else []))
    for name in needed:
        if not facts.of("ci.yml").job(name).steps:
            yield "ci.yml", f"no job {name}"


def _ci_unconditional(facts: Facts) -> Problems:
    for job in facts.of("ci.yml").jobs:
        for where, table in [(job.where, job.table), *((s.where, s.table) for s in job.steps)]:
            if "if" in table:
                yield where, f"`if: {table['if']}`: a job that is skipped checks nothing"


def _ci_matrix(facts: Facts) -> Problems:
    strategy = table_of(facts.of("ci.yml").job("test").table.get("strategy"))
    expected = {"python": list(facts.pythons), "torch": list(facts.torches)}
    if strategy.get("matrix") != expected:
        yield (
            "ci.yml test",
            f"the matrix is {strategy.get('matrix')}, [tool.mmaemu.matrix] says {expected}",
        )
    if strategy.get("fail-fast") != "false":
        yield "ci.yml test", "fail-fast must be false: every point has to answer"


def _ci_point(facts: Facts) -> Problems:
    steps = facts.of("ci.yml").job("test").steps
    if not any(
        step.commands == (MATRIX_COMMAND,) and step.table.get("env") == MATRIX_ENV for step in steps
    ):
        yield "ci.yml test", f"no step `{MATRIX_COMMAND}` with env {MATRIX_ENV}"


# --- release.yml ---------------------------------------------------------------------------------


def _release_build(facts: Facts) -> Problems:
    job = facts.of("release.yml").job("build")
    commands = [command for step in job.steps for command in step.commands]
    ours = tuple(command for command in commands if not command.startswith("python -m pip"))
    if ours != RELEASE_COMMANDS:
        yield "release.yml build", f"runs {ours}, expected {RELEASE_COMMANDS}"
    tags = [table_of(step.table.get("env")).get("TAG") for step in job.steps if "$TAG" in str(step)]
    if tags != [TAG]:
        yield "release.yml build", f"TAG is {tags}, expected [{TAG!r}]"


def _release_artifacts(facts: Facts) -> Problems:
    uploads = {
        str(step.inputs.get("name")): step.inputs
        for step in facts.of("release.yml").job("build").steps
        if step.action == "actions/upload-artifact"
    }
    found = {name: " ".join(str(inputs.get("path")).split()) for name, inputs in uploads.items()}
    if found != ARTIFACTS:
        yield "release.yml build", f"uploads {found}, expected {ARTIFACTS}"
    for name, inputs in uploads.items():
        if inputs.get("if-no-files-found") != "error":
            yield f"release.yml build {name}", "an empty artifact must be an error"


def _publish_condition(facts: Facts) -> Problems:
    job = facts.of("release.yml").job("publish")
    if job.condition != PUBLISH_IF:
        yield job.where, f"`if: {job.condition}`, expected `{PUBLISH_IF}`"
    if job.table.get("needs") != "build":
        yield job.where, f"needs {job.table.get('needs')}, expected build"


def _publish_steps(facts: Facts) -> Problems:
    job = facts.of("release.yml").job("publish")
    actions = tuple(step.action for step in job.steps)
    if actions != PUBLISH_ACTIONS:
        yield (
            job.where,
            f"the steps are {actions}, expected {PUBLISH_ACTIONS}: the job that can publish runs "
            "nothing else",
        )
    for step in job.steps:
        if step.action == PUBLISH_ACTIONS[1] and step.inputs != PUBLISH_INPUTS:
            yield step.where, f"inputs are {dict(step.inputs)}, expected {PUBLISH_INPUTS}"
        if step.action == PUBLISH_ACTIONS[0] and step.inputs.get("name") != "dist":
            yield step.where, f"downloads {step.inputs.get('name')}, expected the artifact dist"


# --- docs.yml ------------------------------------------------------------------------------------


def _deploy_condition(facts: Facts) -> Problems:
    job = facts.of("docs.yml").job("deploy")
    expected = DEPLOY_IF.format(repository=facts.repository)
    if job.condition != expected:
        yield job.where, f"`if: {job.condition}`, expected `{expected}`"
    if job.table.get("needs") != "build":
        yield job.where, f"needs {job.table.get('needs')}, expected build"


def _docs_steps(facts: Facts) -> Problems:
    flow = facts.of("docs.yml")
    actions = tuple(step.action for step in flow.job("deploy").steps)
    if actions != DEPLOY_ACTIONS:
        yield "docs.yml deploy", f"the steps are {actions}, expected {DEPLOY_ACTIONS}"
    commands = [command for step in flow.job("build").steps for command in step.commands]
    if "nox -s docs" not in commands:
        yield "docs.yml build", "no step `nox -s docs`, which builds strictly"


# --- nightly.yml and golden.yml ------------------------------------------------------------------


def _channel_jobs(facts: Facts) -> Problems:
    for (name, job_name), expected in CHANNEL_COMMANDS.items():
        job = facts.of(name).job(job_name)
        commands = [command for step in job.steps for command in step.commands]
        ours = tuple(word for word in commands if not word.startswith("python -m pip"))
        if ours != expected:
            yield job.where, f"runs {ours}, expected {expected}"
        if any("if" in step.table for step in job.steps):
            yield job.where, "a step is conditional; what is skipped was not done"
    for flow in sorted({flow for flow, _ in CHANNEL_COMMANDS}):
        for job in facts.of(flow).jobs:
            if (flow, job.name) not in CHANNEL_COMMANDS:
                yield job.where, "is no job of the channels"


def _channel_order(facts: Facts) -> Problems:
    for (name, job_name), expected in CHANNEL_CONDITIONS.items():
        job = facts.of(name).job(job_name)
        found = (str(job.table.get("needs", "")), job.condition)
        if found != expected:
            yield job.where, f"waits for and runs if {found}, expected {expected}"


def _golden_triggers(facts: Facts) -> Problems:
    if "golden.yml" not in facts.workflows:
        return
    triggers = table_of(facts.of("golden.yml").triggers)
    inputs = table_of(table_of(triggers.get("workflow_dispatch")).get("inputs"))
    if set(triggers) != {"schedule", "workflow_dispatch"} or triggers["schedule"] != GOLDEN_CRON:
        yield "golden.yml", f"runs on {dict(triggers)}, expected Mondays and by hand"
    elif tuple(inputs) != GOLDEN_INPUTS:
        yield "golden.yml", f"has the inputs {tuple(inputs)}, expected {GOLDEN_INPUTS}"


def _one_at_a_time(facts: Facts) -> Problems:
    for name in ("nightly.yml", "golden.yml"):
        if name not in facts.workflows:
            continue
        expected = {"group": name.removesuffix(".yml"), "cancel-in-progress": "false"}
        if facts.of(name).table.get("concurrency") != expected:
            yield name, f"concurrency must be {expected}: runs wait for each other"


def _whole_history(facts: Facts) -> Problems:
    for name in ("nightly.yml", "golden.yml"):
        for step in facts.of(name).steps:
            if step.action == "actions/checkout" and step.inputs.get("fetch-depth") != "0":
                yield step.where, "a shallow checkout cannot decide about ancestors"


RULES: Final[tuple[Rule[Facts], ...]] = (
    Rule("WF101", "All five workflows exist.", _present),
    Rule("WF102", "Every action is pinned to a commit and says its release.", _pinned),
    Rule("WF103", "Every workflow has read access to the contents only.", _read_only),
    Rule("WF104", "Only publish has id-token, only deploy pages and id-token.", _writes),
    Rule("WF105", "Jobs that publish or hold secrets name their environment.", _environments),
    Rule("WF106", "No checkout keeps its credentials.", _no_kept_credentials),
    Rule("WF107", "No secret and no token is used but golden.yml's own.", _no_secrets),
    Rule("WF108", "No expression stands inside a command.", _no_injection),
    Rule("WF109", "Every step is one plain nox, invoke or tools/ command.", _commands),
    Rule("WF110", "Every job has a time limit.", _time_limits),
    Rule("WF111", "No failure is turned into a pass.", _failures_count),
    Rule("WF112", "Every job runs on a numbered image.", _images),
    Rule("WF113", "Each workflow runs on exactly its events.", _triggers),
    Rule("WF201", "CI has the jobs lint, test, dist (and nvrtc with CUDA sources).", _ci_jobs),
    Rule("WF202", "No CI job or step is conditional.", _ci_unconditional),
    Rule("WF203", "CI's matrix is [tool.mmaemu.matrix], every point of it.", _ci_matrix),
    Rule("WF204", "CI runs t0 and t1 at every point of the matrix.", _ci_point),
    Rule("WF301", "The release build checks binaries and tag, then builds.", _release_build),
    Rule("WF302", "The release build uploads dist and release-meta.", _release_artifacts),
    Rule("WF303", "Only the push of a v* tag publishes, after the build.", _publish_condition),
    Rule("WF304", "The publish job downloads and publishes, nothing else.", _publish_steps),
    Rule("WF401", "Only master of the public repository deploys the site.", _deploy_condition),
    Rule("WF402", "The site is built strictly and deployed as built.", _docs_steps),
    Rule("WF501", "The channels' jobs run exactly their commands.", _channel_jobs),
    Rule("WF502", "Recording waits for the gate, bumping for the record.", _channel_order),
    Rule("WF503", "golden.yml runs on Mondays and by hand with its inputs.", _golden_triggers),
    Rule("WF504", "Nightly and golden runs wait for each other.", _one_at_a_time),
    Rule("WF505", "Nightly and golden runs have the whole history.", _whole_history),
    Rule("WF506", "Each job of golden.yml takes its own secrets, by step.", _secrets_of_jobs),
)


def load_facts(root: Path) -> Facts:
    """Read the workflows and the tables that they must agree with."""
    project = load_project(root)
    matrix = project.table("matrix")
    release = project.release
    return Facts(
        workflows=load(root),
        pythons=tuple(matrix.get("python", ())),
        torches=tuple(matrix.get("torch", {}).values()),
        repository=f"{release.owner}/{release.repository}",
        has_cuda=any((root / project.package).rglob("*.cu")),
    )


def _check(arguments: argparse.Namespace) -> Outcome:
    return apply_rules(RULES, load_facts(arguments.root))


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(prog="check_workflows", description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    return run(parser, _check, argv)


if __name__ == "__main__":
    raise SystemExit(main())

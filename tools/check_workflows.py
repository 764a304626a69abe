"""Check the workflows against the release policy: who may publish, what runs, what is pinned."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from files import ROOT
from findings import Outcome, Rule, apply_rules, run
from project import load_project
from workflows import Job, Step, Workflow, load, table_of

Problems = Iterator[tuple[str, str]]
NEEDED: Final = ("ci.yml", "docs.yml", "release.yml")
TRIGGERS: Final = {
    "ci.yml": {"push": "", "pull_request": ""},
    "docs.yml": {"push": "", "pull_request": "", "workflow_dispatch": ""},
    "release.yml": {"push": {"tags": ["v*"]}, "workflow_dispatch": ""},
}
# Who may write what; every other job has the workflow's read access and nothing else.
WRITES: Final = {
    ("release.yml", "publish"): {"id-token": "write"},
    ("docs.yml", "deploy"): {"pages": "write", "id-token": "write"},
}
READ_ONLY: Final = {"contents": "read"}
ENVIRONMENTS: Final = {("release.yml", "publish"): "pypi", ("docs.yml", "deploy"): "github-pages"}
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
        for number, line in enumerate(flow.text.splitlines(), start=1):
            if SECRET.search(line.partition("#")[0]):
                yield f"{name}:{number}", "a secret or token; publishing needs none"


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


RULES: Final[tuple[Rule[Facts], ...]] = (
    Rule("WF101", "ci.yml, docs.yml and release.yml exist.", _present),
    Rule("WF102", "Every action is pinned to a commit and says its release.", _pinned),
    Rule("WF103", "Every workflow has read access to the contents only.", _read_only),
    Rule("WF104", "Only publish has id-token, only deploy pages and id-token.", _writes),
    Rule("WF105", "Only publish and deploy name an environment, each its own.", _environments),
    Rule("WF106", "No checkout keeps its credentials.", _no_kept_credentials),
    Rule("WF107", "No secret and no token is used.", _no_secrets),
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

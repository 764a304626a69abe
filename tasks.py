"""The maintainer's commands (`invoke --list`): each is a list of tools/ commands, run in order.

The first command that fails ends its task with its own exit code. No task counts on running twice:
invoke runs a task that is named twice with the same arguments once.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import task

ROOT = Path(__file__).resolve().parent


def run(tool: str, *arguments: str) -> None:
    """Run a tools/ command on this terminal, without a pseudo-terminal in between.

    Raises:
        Exit: the command failed; it has the command's exit code.
    """
    command = [sys.executable, f"tools/{tool}.py", *arguments]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code:
        raise Exit(f"{shlex.join(command[1:])} exited with {code}", code=code)


def options(**values: str | bool | list[str] | None) -> list[str]:
    """Command-line options from the arguments of a task; what was not given is left out."""
    words: list[str] = []
    for name, value in values.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif isinstance(value, list):
            words += [word for item in value for word in (option, item)]
        elif value:
            words += [option, str(value)]
    return words


@task
def docs(_: Context) -> None:
    """Write the documentation that is made from the code's tables."""
    run("generate_docs")


@task
def check(_: Context) -> None:
    """Check the repository's rules, its data, its workflows and its documentation."""
    for tool in ("check_repo", "check_data", "check_workflows", "check_docs"):
        run(tool)


@task(positional=["version"], iterable=["device_not_run"])
def version(
    _: Context,
    version: str,
    date: str,
    device_not_run: list[str] | None = None,
    dry_run: bool = False,
) -> None:
    """Set the version everywhere and date the changelog's section."""
    given = options(date=date, device_not_run=device_not_run, dry_run=dry_run)
    run("version", version, *given)


@task(iterable=["device_not_run"])
def release_state(
    _: Context, version: str = "", matrix: str = "", device_not_run: list[str] | None = None
) -> None:
    """Check that the tree is the release: versions, tier results, citation, documentation."""
    given = options(version=version, matrix=matrix, device_not_run=device_not_run)
    run("check_release", *given)


@task
def fatbin(_: Context) -> None:
    """Check the frozen binaries in the tree against their manifests and their sources."""
    run("build_fatbin", "--check", "--require-manifest")
    run("build_cpu", "--check")
    run("check_dist", "--verify-manifest")


@task(iterable=["device_not_run"])
def freeze(  # noqa: PLR0917 - invoke makes an option of every argument
    _: Context,
    version: str,
    settle: bool = False,
    replace: str = "",
    remove: str = "",
    modules: str = "",
    nvcc: str = "",
    commit_log: bool = False,
    dry_run: bool = False,
    device_not_run: list[str] | None = None,
) -> None:
    """Rebuild every frozen binary and settle it with the committed one."""
    given = options(
        version=version,
        settle=settle,
        replace=replace,
        remove=remove,
        modules=modules,
        nvcc=nvcc,
        commit_log=commit_log,
        dry_run=dry_run,
        device_not_run=device_not_run,
    )
    run("freeze", *given)


@task(iterable=["device_not_run"])
def dist(  # noqa: PLR0917 - invoke makes an option of every argument
    _: Context,
    version: str,
    tag: str = "",
    require_fatbins: bool = False,
    dirty: bool = False,
    out: str = "",
    device_not_run: list[str] | None = None,
) -> None:
    """Build the distributions of a tree whose tiers passed, twice; --dirty asks for no tiers."""
    given = options(
        version=version,
        tag=tag,
        require_fatbins=require_fatbins,
        dirty=dirty,
        tiers=not dirty,
        out=out,
        device_not_run=device_not_run,
    )
    run("dist", *given)


@task(iterable=["device_not_run"])
def snapshot(  # noqa: PLR0917 - invoke makes an option of every argument
    _: Context,
    to: str = "public",
    remote: str = "",
    environment: str = "",
    rulesets: str = "",
    device_not_run: list[str] | None = None,
    dry_run: bool = False,
) -> None:
    """Prepare the snapshot commit and print the commands that publish it."""
    given = options(
        to=to,
        remote=remote,
        environment=environment,
        rulesets=rulesets,
        device_not_run=device_not_run,
        dry_run=dry_run,
    )
    run("snapshot", *given)


@task(positional=[], iterable=["only", "abis"])
def nightly(  # noqa: PLR0917 - invoke makes an option of every argument
    _: Context,
    channel: str = "",
    commit: str = "",
    tag: str = "",
    only: list[str] | None = None,
    abis: list[str] | None = None,
    out: str = "",
    local: bool = False,
    dry_run: bool = False,
    execute: bool = False,
    allow_remote: bool = False,
    root: str = "",
    json: bool = False,
) -> None:
    """Build a nightly or a release from one commit; with --execute upload a nightly.

    Example: invoke nightly --channel nightly --dry-run
    """
    given = options(
        channel=channel,
        commit=commit,
        tag=tag,
        only=only,
        abis=abis,
        out=out,
        local=local,
        dry_run=dry_run,
        execute=execute,
        allow_remote=allow_remote,
        root=root,
        json=json,
    )
    run("nightly", *given)


@task
def sizes(
    _: Context,
    paths: str = "build/nightly",
    channel: str = "",
    dry_run: bool = False,
    json: bool = False,
) -> None:
    """Print the sizes of built distributions and compare them with the index's limit.

    Example: invoke sizes --paths build/nightly
    """
    run("sizes", *paths.split(","), *options(channel=channel, dry_run=dry_run, json=json))


@task
def pins(
    _: Context,
    wheels: str,
    write: bool = False,
    dry_run: bool = False,
    root: str = "",
    json: bool = False,
) -> None:
    """List the exact requirements of wheels and compare them with the project's own list.

    Example: invoke pins --wheels dist/example-1.0-py3-none-any.whl --write
    """
    run("pins", *wheels.split(","), *options(write=write, dry_run=dry_run, root=root, json=json))


@task(positional=["folder"], iterable=["only", "abis"])
def stage(  # noqa: PLR0917 - invoke makes an option of every argument
    _: Context,
    folder: str,
    channel: str,
    only: list[str] | None = None,
    abis: list[str] | None = None,
    publish: str = "",
    run_id: str = "",
    commit: str = "",
    manifests: str = "",
    dry_run: bool = False,
    execute: bool = False,
    allow_remote: bool = False,
    root: str = "",
    json: bool = False,
) -> None:
    """Stage built files and write the gate's manifest; without --execute only the plan.

    Example: invoke stage build/nightly/0.1.0.dev20261201080000 --channel nightly --dry-run
    """
    given = options(
        channel=channel,
        only=only,
        abis=abis,
        publish=publish,
        run=run_id,
        commit=commit,
        manifests=manifests,
        dry_run=dry_run,
        execute=execute,
        allow_remote=allow_remote,
        root=root,
        json=json,
    )
    run("stage", folder, *given)


@task(positional=["folder"], iterable=["only"])
def manifest(  # noqa: PLR0917 - invoke makes an option of every argument
    _: Context,
    folder: str,
    only: list[str] | None = None,
    run_id: str = "",
    commit: str = "",
    manifests: str = "",
    dry_run: bool = False,
    root: str = "",
    json: bool = False,
) -> None:
    """Write a further manifest for files that are staged already.

    Example: invoke manifest build/nightly/0.1.0.dev20261201080000 --dry-run
    """
    given = options(
        only=only,
        run=run_id,
        commit=commit,
        manifests=manifests,
        dry_run=dry_run,
        root=root,
        json=json,
    )
    run("manifest", folder, *given)


@task(positional=["manifest"])
def gate(  # noqa: PLR0917 - invoke makes an option of every argument
    _: Context,
    manifest: str,
    dry_run: bool = False,
    execute: bool = False,
    allow_remote: bool = False,
    root: str = "",
    json: bool = False,
) -> None:
    """Publish what a manifest names, file by file; without --execute only the plan.

    Example: invoke gate build/manifests/0.1.0-0001-0123456789abcdef.json --dry-run
    """
    given = options(
        dry_run=dry_run, execute=execute, allow_remote=allow_remote, root=root, json=json
    )
    run("gate", manifest, *given)


@task(positional=["manifest"])
def confirm(
    _: Context,
    manifest: str,
    sums: str = "",
    wait: str = "",
    dry_run: bool = False,
    json: bool = False,
) -> None:
    """Confirm that users get what was published: files, hashes, what installers choose.

    Example: invoke confirm build/manifests/0.1.0-0001-0123456789abcdef.json --wait 60
    """
    run("confirm", manifest, *options(sums=sums, wait=wait, dry_run=dry_run, json=json))


@task(iterable=["only"])
def leftovers(  # noqa: PLR0917 - invoke makes an option of every argument
    _: Context,
    clean: str = "",
    only: list[str] | None = None,
    dry_run: bool = False,
    execute: bool = False,
    allow_remote: bool = False,
    root: str = "",
    json: bool = False,
) -> None:
    """List what lies in staging; with --clean VERSION --execute delete that version.

    Example: invoke leftovers --clean 0.1.0.dev20261201080000 --dry-run
    """
    given = options(
        clean=clean,
        only=only,
        dry_run=dry_run,
        execute=execute,
        allow_remote=allow_remote,
        root=root,
        json=json,
    )
    run("leftovers", *given)


@task
def quota(
    _: Context,
    days: str = "",
    sizes: str = "",
    dry_run: bool = False,
    root: str = "",
    json: bool = False,
) -> None:
    """Say how full the projects are, how long that lasts, and how to ask for more.

    Example: invoke quota --days 60
    """
    run("quota", *options(days=days, sizes=sizes, dry_run=dry_run, root=root, json=json))


@task(positional=["step"])
def golden(  # noqa: PLR0917 - invoke makes an option of every argument
    _: Context,
    step: str,
    version: str = "",
    runs: str = "",
    manifests: str = "",
    commit: str = "",
    remote: str = "",
    ask_hosting: bool = False,
    execute: bool = False,
    pull_request: bool = False,
    allow_remote: bool = False,
    dry_run: bool = False,
    json: bool = False,
) -> None:
    """Golden commits: candidate, canaries, resume, record, tags, verify or cut.

    Example: invoke golden candidate --ask-hosting --dry-run
    """
    given = options(
        version=version,
        run=runs.replace(",", " ").split(),
        manifests=manifests,
        commit=commit,
        remote=remote,
        ask_hosting=ask_hosting,
        execute=execute,
        pull_request=pull_request,
        allow_remote=allow_remote,
        dry_run=dry_run,
        json=json,
    )
    run("golden", step, *given)


@task
def downstream_bump(  # noqa: PLR0917 - invoke makes an option of every argument
    _: Context,
    canaries: str = "",
    version: str = "",
    remote: str = "",
    execute: bool = False,
    allow_remote: bool = False,
    dry_run: bool = False,
    json: bool = False,
) -> None:
    """Move the consumers' pins to a golden nightly, each on a branch.

    Example: invoke downstream-bump --dry-run
    """
    given = options(
        version=version,
        remote=remote,
        execute=execute,
        allow_remote=allow_remote,
        dry_run=dry_run,
        json=json,
    )
    run("downstream_bump", *canaries.split(), *given)


@task
def bump(_: Context, released: str = "", dry_run: bool = False, json: bool = False) -> None:
    """After a release, set the next patch version; the citation keeps the release.

    Example: invoke bump --dry-run
    """
    run("bump", *options(released=released, dry_run=dry_run, json=json))


@task(positional=["version"])
def release_notes(
    _: Context,
    version: str,
    folder: str = "dist",
    out: str = "",
    dry_run: bool = False,
    json: bool = False,
) -> None:
    """Write a release's notes: changelog, pairing, pins, checksums.

    Example: invoke release-notes 0.1.0 --out build/notes.md
    """
    run("release_notes", version, folder, *options(out=out, dry_run=dry_run, json=json))


@task
def doctor(  # noqa: PLR0917 - invoke makes an option of every argument
    _: Context,
    variables: str = "",
    secrets: str = "",
    gate: str = "",
    offline: bool = False,
    dry_run: bool = False,
    json: bool = False,
) -> None:
    """Check the one-time set-up: indexes, identities, variables, secrets.

    Example: invoke doctor --variables variables.json --secrets secrets.json
    """
    given = options(
        variables=variables, secrets=secrets, gate=gate, offline=offline, dry_run=dry_run, json=json
    )
    run("doctor", *given)


@task
def ci(_: Context, jobs: str = "") -> None:
    """Run jobs of ci.yml on this machine: all of them, or those of --jobs (lint,dist)."""
    run("run_ci", *jobs.replace(",", " ").split())

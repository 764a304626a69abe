from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import check_workflows
from findings import UnusableError, apply_rules
from workflows import FOLDER, parse

ROOT = Path(check_workflows.__file__).resolve().parents[1]
FACTS = check_workflows.load_facts(ROOT)
CHECKOUT = "actions/checkout@de0fac2e4500dabe0009e67214ff5f5447ce83dd # v6.0.2"
PUBLISH = "pypa/gh-action-pypi-publish@cef221092ed1bacb1cc03d23a2d87d1d172e277b"
PUBLISH_IF = "if: github.event_name == 'push' && startsWith(github.ref, 'refs/tags/v')"

# (workflow, what is replaced, by what, the one rule that must find it)
MUTATIONS: dict[str, tuple[str, str, str, str]] = {
    "action by tag": ("ci.yml", CHECKOUT, "actions/checkout@v6", "WF102"),
    "action by short commit": ("ci.yml", CHECKOUT, "actions/checkout@de0fac2", "WF102"),
    "publisher by branch": (
        "release.yml",
        f"{PUBLISH} # v1.14.0",
        "pypa/gh-action-pypi-publish@release/v1",
        "WF102",
    ),
    "release not said": ("ci.yml", " # v6.0.2", "", "WF102"),
    "write access for all": ("ci.yml", "contents: read", "contents: write", "WF103"),
    "no permissions stated": ("ci.yml", "permissions:\n  contents: read\n", "", "WF103"),
    "everything may be written": (
        "ci.yml",
        "permissions:\n  contents: read\n",
        "permissions: write-all\n",
        "WF103",
    ),
    "id-token for the build job": (
        "release.yml",
        "  build:\n",
        "  build:\n    permissions:\n      id-token: write\n",
        "WF104",
    ),
    "id-token in ci": (
        "ci.yml",
        "  lint:\n",
        "  lint:\n    permissions:\n      id-token: write\n",
        "WF104",
    ),
    "more rights for publish": (
        "release.yml",
        "      id-token: write",
        "      contents: write\n      id-token: write",
        "WF104",
    ),
    "publish without its environment": (
        "release.yml",
        "    environment: pypi\n",
        "",
        "WF105",
    ),
    "publish in a misspelt environment": ("release.yml", "ment: pypi", "ment: pipy", "WF105"),
    "pages environment for ci": (
        "ci.yml",
        "  lint:\n",
        "  lint:\n    environment: pypi\n",
        "WF105",
    ),
    "credentials kept": (
        "release.yml",
        "persist-credentials: false",
        "persist-credentials: true",
        "WF106",
    ),
    "credentials kept by default": (
        "docs.yml",
        "        with:\n          persist-credentials: false\n",
        "",
        "WF106",
    ),
    "a secret": (
        "ci.yml",
        "env:\n  MMAEMU",
        "env:\n  KEY: ${{ secrets.KEY }}\n  MMAEMU",
        "WF107",
    ),
    "the job's token": (
        "ci.yml",
        "env:\n  MMAEMU",
        "env:\n  KEY: ${{ github.token }}\n  MMAEMU",
        "WF107",
    ),
    "expression in a command": (
        "ci.yml",
        "run: nox -s lint",
        "run: nox -s lint -- ${{ github.head_ref }}",
        "WF108",
    ),
    "a command of its own": ("ci.yml", "run: nox -s lint", "run: ruff check", "WF109"),
    "status swallowed": ("ci.yml", "run: nox -s lint", "run: nox -s lint || true", "WF109"),
    "status lost in a pipe": (
        "ci.yml",
        "run: nox -s lint",
        "run: nox -s lint | tee log",
        "WF109",
    ),
    "tool not pinned": ("docs.yml", "nox==2026.10.20", "nox", "WF109"),
    "script from the network": (
        "ci.yml",
        "run: nox -s lint",
        "run: curl -sSf https://example.invalid/x.sh",
        "WF109",
    ),
    "another shell": (
        "ci.yml",
        "- run: nox -s lint",
        "- run: nox -s lint\n        shell: sh",
        "WF109",
    ),
    "no time limit": ("docs.yml", "    timeout-minutes: 15\n", "", "WF110"),
    "failure accepted": (
        "ci.yml",
        "- run: nox -s lint",
        "- run: nox -s lint\n        continue-on-error: true",
        "WF111",
    ),
    "publish after a failed build": (
        "docs.yml",
        "      - run: nox -s docs\n",
        "      - run: nox -s docs\n        if: always()\n",
        "WF111",
    ),
    "moving image": ("ci.yml", "runs-on: ubuntu-24.04", "runs-on: ubuntu-latest", "WF112"),
    "own runner": ("release.yml", "runs-on: ubuntu-24.04", "runs-on: self-hosted", "WF112"),
    "strangers' pull requests with rights": (
        "ci.yml",
        "  pull_request:\n",
        "  pull_request_target:\n",
        "WF113",
    ),
    "ci on some branches only": (
        "ci.yml",
        "  push:\n",
        "  push:\n    branches: [master]\n",
        "WF113",
    ),
    "release on every tag": ("release.yml", '["v*"]', '["*"]', "WF113"),
    "release on a branch": ("release.yml", 'tags: ["v*"]', "branches: [master]", "WF113"),
    "release not to be rehearsed": ("release.yml", "  workflow_dispatch:\n", "", "WF113"),
    "docs not on pull requests": ("docs.yml", "  pull_request:\n", "", "WF113"),
    "no lint": ("ci.yml", "  lint:\n", "  lynt:\n", "WF201"),
    "ci job skipped": (
        "ci.yml",
        "  dist:\n",
        "  dist:\n    if: github.ref == 'refs/heads/master'\n",
        "WF202",
    ),
    "Python missing from the matrix": ("ci.yml", '"3.12", "3.13"]', '"3.13"]', "WF203"),
    "Python read as a number": ("ci.yml", '"3.10", ', "3.1, ", "WF203"),
    "torch missing from the matrix": ("ci.yml", '"2.7.1", ', "", "WF203"),
    "point left out": (
        "ci.yml",
        "      matrix:\n",
        "      matrix:\n        exclude: [{python: '3.13', torch: 2.6.0}]\n",
        "WF203",
    ),
    "first failure stops the others": ("ci.yml", "fail-fast: false", "fail-fast: true", "WF203"),
    "only t0 at the points": ("ci.yml", "t0_matrix t1_matrix", "t0_matrix", "WF204"),
    "one torch for all points": ("ci.yml", "TORCH: ${{ matrix.torch }}", "TORCH: 2.6.0", "WF204"),
    "binaries not checked": ("release.yml", "      - run: nox -s fatbin\n", "", "WF301"),
    "binaries not required": ("release.yml", "--require-fatbins ", "", "WF301"),
    "tag not compared": ("release.yml", ' --tag "$TAG"', "", "WF301"),
    "tag of a branch": ("release.yml", "github.ref_type == 'tag' && ", "", "WF301"),
    "checksums not uploaded": ("release.yml", "name: release-meta", "name: meta", "WF302"),
    "more than the wheel uploaded": ("release.yml", "dist/*.whl", "dist/*", "WF302"),
    "empty artifact accepted": (
        "release.yml",
        "if-no-files-found: error",
        "if-no-files-found: warn",
        "WF302",
    ),
    "publish from a dispatch": (
        "release.yml",
        PUBLISH_IF,
        "if: startsWith(github.ref, 'refs/tags/v')",
        "WF303",
    ),
    "publish from any push": (
        "release.yml",
        PUBLISH_IF,
        "if: github.event_name == 'push'",
        "WF303",
    ),
    "publish always": ("release.yml", f"    {PUBLISH_IF}\n", "", "WF303"),
    "publish without the build": ("release.yml", "    needs: build\n", "", "WF303"),
    "publish runs code of the tree": (
        "release.yml",
        f"      - uses: {PUBLISH}",
        f"      - run: nox -s dist\n      - uses: {PUBLISH}",
        "WF304",
    ),
    "publish what is there already": (
        "release.yml",
        "print-hash: true",
        "print-hash: true\n          skip-existing: true",
        "WF304",
    ),
    "publish elsewhere": (
        "release.yml",
        "print-hash: true",
        "print-hash: true\n          repository-url: https://index.invalid/",
        "WF304",
    ),
    "publish another artifact": (
        "release.yml",
        "          name: dist\n          path: dist\n",
        "          name: release-meta\n          path: dist\n",
        "WF304",
    ),
    "deploy from every branch": (
        "docs.yml",
        " && github.ref == 'refs/heads/master' &&",
        " &&",
        "WF401",
    ),
    "deploy while private": ("docs.yml", " && !github.event.repository.private", "", "WF401"),
    "deploy from a fork": (
        "docs.yml",
        "'mmaemu-project/mmaemu'",
        "'someone/mmaemu'",
        "WF401",
    ),
    "deploy without the build": ("docs.yml", "    needs: build\n", "", "WF401"),
    "site built by hand": ("docs.yml", "nox -s docs", "nox -s lint", "WF402"),
    "a nightly at another hour": ("nightly.yml", "0 8 * * *", "0 9 * * *", "WF113"),
    "a nightly for every push": ("nightly.yml", "  schedule:", "  push:\n  schedule:", "WF113"),
    "a nightly of no channel": ("nightly.yml", " --channel nightly", "", "WF501"),
    "a nightly that is only built": (
        "nightly.yml",
        "nightly --channel nightly --execute",
        "nightly --channel nightly",
        "WF501",
    ),
    "staging only sometimes": (
        "nightly.yml",
        "      - run: nox -s invoke -- stage",
        "      - if: github.event_name == 'schedule'\n        run: nox -s invoke -- stage",
        "WF501",
    ),
    "candidate not asked for": ("golden.yml", ' --version "$VERSION"', "", "WF501"),
    "canaries resumed without runs": ("golden.yml", ' --runs "$RUNS"', "", "WF501"),
    "record pushed to the branch": ("golden.yml", "--pull-request", "--execute", "WF501"),
    "no canaries": (
        "golden.yml",
        'nox -s invoke -- golden canaries --runs "$RUNS" --allow-remote',
        "nox -s lint",
        "WF501",
    ),
    "a further job": (
        "golden.yml",
        "  gate:\n",
        "  more:\n    runs-on: ubuntu-24.04\n    timeout-minutes: 5\n    steps:\n"
        "      - run: nox -s lint\n\n  gate:\n",
        "WF501",
    ),
    "record without the gate": ("golden.yml", "    needs: gate\n", "", "WF502"),
    "a dry run that records": ("golden.yml", "    if: ${{ !inputs.dry_run }}\n", "", "WF502"),
    "bumps that nobody asked for": (
        "golden.yml",
        "    if: ${{ inputs.bump_downstream }}\n",
        "",
        "WF502",
    ),
    "bumps without the record": ("golden.yml", "needs: record", "needs: gate", "WF502"),
    "golden on another day": ("golden.yml", "0 14 * * 1", "0 14 * * 2", "WF503"),
    "golden for pull requests": (
        "golden.yml",
        "  schedule:",
        "  pull_request:\n  schedule:",
        "WF503",
    ),
    "an input less": (
        "golden.yml",
        "      dry_run:\n        description: run the canaries, record nothing\n"
        "        type: boolean\n",
        "",
        "WF503",
    ),
    "two nightlies at once": ("nightly.yml", "  group: nightly\n", "  group: a\n", "WF504"),
    "a record that is cancelled": (
        "golden.yml",
        "cancel-in-progress: false",
        "cancel-in-progress: true",
        "WF504",
    ),
    "a shallow nightly": ("nightly.yml", 'fetch-depth: "0"', 'fetch-depth: "1"', "WF505"),
    "a shallow gate": ("golden.yml", '          fetch-depth: "0"\n', "", "WF505"),
    "a secret that no command gets": (
        "golden.yml",
        "          DOWNSTREAM_BUMP_TOKEN: ${{ secrets.DOWNSTREAM_BUMP_TOKEN }}\n",
        "          PLAIN: text\n",
        "WF506",
    ),
    "a secret for every step": (
        "golden.yml",
        "    environment: golden\n    steps:\n",
        "    environment: golden\n    env:\n"
        "      HOSTING_READ_TOKEN: ${{ secrets.HOSTING_READ_TOKEN }}\n    steps:\n",
        "WF506",
    ),
    "a secret under another name": (
        "golden.yml",
        "HOSTING_READ_TOKEN: ${{ secrets.HOSTING",
        "TOKEN: ${{ secrets.HOSTING",
        "WF107",
    ),
    "secrets outside the environment": ("golden.yml", "    environment: golden\n", "", "WF105"),
    "rights for the record": (
        "golden.yml",
        "    needs: gate\n",
        "    needs: gate\n    permissions:\n      contents: write\n",
        "WF104",
    ),
}
# Caught by a second rule as well: the job no longer takes the secret under its name.
BOTH = {"a secret under another name": {"WF107", "WF506"}}


def codes(facts: check_workflows.Facts) -> set[str]:
    return {finding.code for finding in apply_rules(check_workflows.RULES, facts).findings}


def mutated(name: str, old: str, new: str) -> check_workflows.Facts:
    text = FACTS.workflows[name].text
    assert old in text, old
    flow = parse(name, text.replace(old, new, 1))
    return dataclasses.replace(FACTS, workflows={**FACTS.workflows, name: flow})


def test_our_workflows_pass() -> None:
    assert apply_rules(check_workflows.RULES, FACTS).findings == ()


@pytest.mark.parametrize("case", MUTATIONS)
def test_each_mutation_is_caught_by_exactly_its_rule(case: str) -> None:
    name, old, new, code = MUTATIONS[case]
    assert codes(mutated(name, old, new)) == BOTH.get(case, {code})


def test_every_rule_has_a_mutation() -> None:
    caught = {code for *_, code in MUTATIONS.values()}
    assert {rule.code for rule in check_workflows.RULES} - caught == {"WF101"}


@pytest.mark.parametrize("name", check_workflows.NEEDED)
def test_a_missing_workflow_is_found(name: str) -> None:
    others = {key: flow for key, flow in FACTS.workflows.items() if key != name}
    assert "WF101" in codes(dataclasses.replace(FACTS, workflows=others))


def test_cuda_sources_need_their_compile_job() -> None:
    assert codes(dataclasses.replace(FACTS, has_cuda=True)) >= (
        set() if FACTS.has_cuda else {"WF201"}
    )


def test_a_further_workflow_follows_the_common_rules() -> None:
    text = FACTS.workflows["ci.yml"].text.replace("pull_request:", "pull_request_target:")
    more = {**FACTS.workflows, "extra.yml": parse("extra.yml", text)}
    assert codes(dataclasses.replace(FACTS, workflows=more)) == {"WF113"}


def test_the_matrix_follows_pyproject() -> None:
    assert codes(dataclasses.replace(FACTS, torches=("2.6.0", "2.9.0"))) == {"WF203"}
    assert codes(dataclasses.replace(FACTS, pythons=("3.10",))) == {"WF203"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("on: push\non: pull_request\n", "occurs twice"),
        ("jobs:\n  a:\n    steps: []\n    steps: []\n", "line 3: the key steps occurs twice"),
        ("on: [push\n", "is no YAML"),
        ("- a\n", "holds no table"),
        ("", "holds no table"),
    ],
)
def test_what_cannot_be_read_is_an_error(text: str, message: str) -> None:
    with pytest.raises(UnusableError, match=message):
        parse("ci.yml", text)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_workflows.main([]) == 0
    shutil.copytree(ROOT / FOLDER, tmp_path / FOLDER)
    assert check_workflows.main(["--root", str(tmp_path)]) == 2
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / FOLDER / "release.yml").unlink()
    assert check_workflows.main(["--root", str(tmp_path)]) == 1
    assert "release.yml: WF101" in capsys.readouterr().out
    shutil.rmtree(tmp_path / FOLDER)
    assert check_workflows.main(["--root", str(tmp_path)]) == 2


@pytest.mark.parametrize("command", [["actionlint"], ["zizmor", "--offline", "--quiet"]])
def test_public_linters_find_nothing(command: list[str]) -> None:
    tool = Path(sys.executable).with_name(command[0])
    files = sorted((ROOT / FOLDER).glob("*.yml"))
    done = subprocess.run(
        [str(tool), *command[1:], *map(str, files)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr

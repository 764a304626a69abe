"""Check the repository's own rules: paths, hosts, sizes, texts, metadata, settings.

Looks at tracked files only; needs git, and PyYAML for CITATION.cff.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from facts import RepoFacts, TrackedFile, load_repo
from files import ROOT
from findings import Outcome, Rule, SkipRule, apply_rules, run
from licences import licence_problems
from project import newest_section, pairing_of

sys.path.insert(0, str(ROOT))
from mmaemu._settings import PREFIX, SETTINGS

Findings = Iterable[tuple[str, str]]

MIB: Final = 1 << 20
FILE_LIMIT: Final = 1 * MIB
# Files that may be larger, and why.
LARGE: Final = {
    "tests/recordings/*/arrays.npz": "recorded bits of a whole platform, close to incompressible",
    "tests/recordings/*/call.csv": "one row for each of thousands of recorded calls",
    "mmaemu/backends/*/bin/*": "frozen kernel libraries, listed in a manifest",
}
TOTAL_LIMIT: Final = 40 * MIB
README_LINES: Final = 150

# Folders of one machine; a tracked file that names one works nowhere else.
MACHINE_PATH: Final = re.compile(
    r"(?<![\w./~$}<-])/(?:home|root|Users|work|tmp|opt|mnt|srv|farm|data)/[A-Za-z_]"
    r"|\b[A-Za-z]:\\Users\\"
)
INDEX_HOST: Final = re.compile(
    r"pypi\.org|pythonhosted\.org|download\.pytorch\.org|registry\.npmjs|deb\.debian\.org"
    r"|(?:--(?:extra-)?index-url|--find-links|-f)[ =]\S*://",
    re.IGNORECASE,
)
JUNK: Final = re.compile(
    r"(^|/)(__pycache__|\.ipynb_checkpoints|\.DS_Store|Thumbs\.db|[^/]+\.egg-info|\.venv[^/]*)(/|$)"
    r"|\.(ipynb|py[cod]|orig|rej|swp|swo|bak|whl)$|~$"
)
VARIABLE: Final = re.compile(rf"\b{PREFIX}([A-Z][A-Z0-9_]*[A-Z0-9])\b")
FRAGMENT: Final = re.compile(r"(README\.md|(\d+|\+[\w-]+)(\.\d+)?)")
C_SOURCES: Final = (".c", ".cc", ".cpp", ".h", ".hpp", ".cu", ".cuh")
# Third-party texts are kept to the letter.
VERBATIM: Final = ("LICENSES/",)


def _texts(facts: RepoFacts) -> Iterator[tuple[TrackedFile, str]]:
    for file in facts.files.values():
        if file.text is not None and not file.path.startswith(VERBATIM):
            yield file, file.text


def _matching_lines(facts: RepoFacts, pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    for file, text in _texts(facts):
        for number, line in enumerate(text.splitlines(), start=1):
            found = pattern.search(line)
            if found:
                yield f"{file.path}:{number}", found[0]


def _no_machine_paths(facts: RepoFacts) -> Findings:
    for where, found in _matching_lines(facts, MACHINE_PATH):
        yield where, f"names the path {found}... of one machine; use a relative path or a variable"


def _no_index_hosts(facts: RepoFacts) -> Findings:
    for where, found in _matching_lines(facts, INDEX_HOST):
        yield where, f"names a package index ({found}); leave it to pip's own configuration"


def _no_junk(facts: RepoFacts) -> Findings:
    for path in facts.files:
        if JUNK.search(path):
            yield path, "is build output or an editor's file; remove it from git"


def _sizes(facts: RepoFacts) -> Findings:
    for file in facts.files.values():
        allowed = any(PurePosixPath(file.path).match(pattern) for pattern in LARGE)
        if len(file.data) > FILE_LIMIT and not allowed:
            yield (
                file.path,
                f"has {len(file.data):,} bytes, expected at most {FILE_LIMIT:,}; shrink it or "
                "state in LARGE of tools/check_repo.py why it must be here",
            )
    total = sum(len(file.data) for file in facts.files.values())
    if total > TOTAL_LIMIT:
        yield "repository", f"{total:,} bytes tracked, expected at most {TOTAL_LIMIT:,}; store less"


def _line_ends(facts: RepoFacts) -> Findings:
    for file, text in _texts(facts):
        if "\r" in text:
            yield file.path, "has carriage returns; check it out with .gitattributes or convert it"
        if text.startswith("\N{BYTE ORDER MARK}"):
            yield file.path, "starts with a byte order mark; save it as plain UTF-8"
        if text and not text.endswith("\n"):
            yield file.path, "lacks the final newline; add it"


def _modes(facts: RepoFacts) -> Findings:
    for file in facts.files.values():
        script = file.data.startswith(b"#!")
        if file.mode not in ("100644", "100755"):
            yield file.path, f"has git mode {file.mode}; only plain files are tracked"
        elif (file.mode == "100755") != script:
            wanted = "chmod +x" if script else "chmod -x"
            yield file.path, f"mode {file.mode} {'lacks' if script else 'has'} +x; {wanted} it"


def _citation(facts: RepoFacts) -> Findings:
    where = "CITATION.cff"
    try:
        import yaml
    except ImportError as error:
        raise SkipRule("PyYAML is not installed", required=True) from error
    try:
        document = yaml.safe_load(facts.text(where))
    except yaml.YAMLError as error:
        yield where, f"is no YAML ({error}); mend it"
        return
    cff: dict[str, Any] = document if isinstance(document, dict) else {}
    expected = {
        "cff-version": "1.2.0",
        "license": "Apache-2.0",
    }
    for key, value in expected.items():
        if cff.get(key) != value:
            yield where, f"{key} is {cff.get(key)!r}, expected the string {value!r}"
    # After a release the citation keeps it, while the tree goes on to the next version.
    released = newest_section(facts.text("CHANGELOG.md"))
    versions = list(dict.fromkeys(filter(None, (_version(facts), released))))
    if cff.get("version") not in versions:
        yield (
            where,
            f"version is {cff.get('version')!r}, expected the string {' or '.join(versions)!r}",
        )
    for key in ("title", "message", "authors"):
        if not cff.get(key):
            yield where, f"{key} is missing; add it"
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", str(cff.get("date-released"))):
        yield where, f"date-released is {cff.get('date-released')!r}, expected YYYY-MM-DD"


def _version(facts: RepoFacts) -> str:
    found = re.search(r'__version__ = "([^"]+)"', facts.text("mmaemu/_version.py"))
    return found[1] if found else ""


def _settings_are_known(facts: RepoFacts) -> Findings:
    texts = list(_texts(facts))
    # In C the prefix keeps macros apart, which the tools that compile it name as well.
    macros = (VARIABLE.findall(text) for file, text in texts if file.path.endswith(C_SOURCES))
    known = {setting.name for setting in SETTINGS}.union(*macros)
    for file, text in texts:
        for number, line in enumerate(text.splitlines(), start=1):
            for name in VARIABLE.findall(line):
                if name not in known:
                    yield (
                        f"{file.path}:{number}",
                        f"{PREFIX}{name} is no setting; add it to mmaemu/_settings.py",
                    )
    page = facts.text("docs/reference/settings.md")
    for setting in SETTINGS:
        if f"`{setting.variable}`" not in page:
            yield (
                "docs/reference/settings.md",
                f"does not describe {setting.variable}; run tools/generate_docs.py",
            )


def _environment_is_read_in_one_place(facts: RepoFacts) -> Findings:
    pattern = re.compile(r"\bos\.(environ|getenv)\b")
    for file, text in _texts(facts):
        if not file.path.startswith("mmaemu/") or file.path == "mmaemu/_settings.py":
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            if pattern.search(line) and file.path.endswith(".py"):
                yield f"{file.path}:{number}", "reads the environment; ask mmaemu._settings"


def _matrix(facts: RepoFacts) -> Findings:
    project, tool = facts.pyproject["project"], facts.pyproject["tool"]["mmaemu"]
    matrix = tool["matrix"]
    pythons, torches = matrix["python"], matrix["torch"]
    classified = [
        line.rsplit(" ", 1)[1]
        for line in project["classifiers"]
        if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", line)
    ]
    expected = (
        ("classifiers", classified, pythons),
        ("requires-python", project["requires-python"], f">={pythons[0]}"),
        (
            "dependencies",
            [item for item in project["dependencies"] if item.startswith("torch")],
            [f"torch>={torches['floor']}"],
        ),
    )
    for key, found, wanted in expected:
        if found != wanted:
            yield "pyproject.toml", f"{key} says {found}, [tool.mmaemu.matrix] means {wanted}"
    pinned = f"torch=={torches.get(matrix['default'])}"
    if pinned not in facts.text("constraints.txt").splitlines():
        yield "constraints.txt", f"expected the line {pinned}, the default of [tool.mmaemu.matrix]"


def _build_backend_is_pinned(facts: RepoFacts) -> Findings:
    requires = facts.pyproject["build-system"]["requires"]
    group = facts.pyproject["dependency-groups"]["build"]
    for requirement in requires:
        if not re.fullmatch(r"[\w-]+==[\d.]+", requirement):
            yield "pyproject.toml", f"build-system.requires {requirement!r} is not pinned with =="
        elif requirement not in group:
            yield "pyproject.toml", f"the build dependency group lacks {requirement}; add that pin"


def _readme(facts: RepoFacts) -> Findings:
    text = facts.text("README.md")
    if len(text.splitlines()) > README_LINES:
        yield "README.md", f"has more than {README_LINES} lines; move text to docs/"
    for mark in ("demo command", "test command"):
        if len(commands(text, mark)) != 1:
            yield "README.md", f"expected one command between <!-- {mark} --> and <!-- end -->"
    for file, content in _texts(facts):
        found = re.search(r"pip install (-U |--upgrade )?mmaemu\b", content)
        if file.path.endswith(".md") and found:
            yield file.path, "installs mmaemu by name, which is another project's; use the checkout"


def commands(text: str, mark: str) -> list[str]:
    """The command lines of the marked code block of a Markdown text."""
    found = re.search(rf"<!-- {mark} -->\n```\w*\n(?P<lines>.*?)```\n<!-- end -->", text, re.DOTALL)
    return found["lines"].splitlines() if found else []


def _fragments(facts: RepoFacts) -> Findings:
    types = [item["directory"] for item in facts.pyproject["tool"]["towncrier"]["type"]]
    if types[:1] != ["numerics"]:
        yield "pyproject.toml", "the first towncrier type must be numerics"
    for path in facts.files:
        name = path.removeprefix("changelog.d/")
        if name in {path, "README.md"}:
            continue
        stem, _, kind = name.removesuffix(".md").partition(".")
        if not name.endswith(".md") or kind not in types or not FRAGMENT.fullmatch(stem):
            yield path, f"expected <issue or +word>.<type>.md with a type of {', '.join(types)}"


def _licence(facts: RepoFacts) -> Findings:
    yield from licence_problems({path: file.data for path, file in facts.files.items()})


def _pairing(facts: RepoFacts) -> Findings:
    stated = pairing_of(facts.text("reference.version"))
    if stated.pop("mmaemu", None) != _version(facts):
        yield "reference.version", f"expected the line `mmaemu {_version(facts)}`"
    try:
        packaged = json.loads(facts.text("mmaemu/_reference.json"))
    except ValueError:
        packaged = {}
    packaged.pop("schema", None)
    if packaged != stated:
        yield "mmaemu/_reference.json", f"says {packaged}, reference.version says {stated}"


RULES: Final[tuple[Rule[RepoFacts], ...]] = (
    Rule("REPO101", "No tracked file names a path of one machine.", _no_machine_paths),
    Rule("REPO102", "No tracked file names a package index.", _no_index_hosts),
    Rule("REPO103", "No build output, notebook or editor file is tracked.", _no_junk),
    Rule("REPO104", "Files are small, or a reason says why not.", _sizes),
    Rule("REPO105", "Texts are UTF-8 without mark, with Unix line ends.", _line_ends),
    Rule("REPO106", "Exactly the scripts are executable.", _modes),
    Rule("REPO201", "CITATION.cff is complete and has the version.", _citation),
    Rule("REPO202", "Every MMAEMU_ variable is a documented setting.", _settings_are_known),
    Rule("REPO203", "Only _settings.py reads the environment.", _environment_is_read_in_one_place),
    Rule("REPO204", "Metadata, constraints and the test matrix agree.", _matrix),
    Rule("REPO205", "What builds the package is pinned exactly.", _build_backend_is_pinned),
    Rule("REPO206", "The README is short and its commands are there.", _readme),
    Rule("REPO207", "Changelog fragments have a known type.", _fragments),
    Rule("REPO208", "LICENSE is verbatim and NOTICE quotes LICENSES/.", _licence),
    Rule("REPO209", "Pairing files and version agree.", _pairing),
)


def check(root: Path) -> Outcome:
    """All findings about a checkout.

    Raises:
        UnusableError: `root` is no git checkout.
    """
    return apply_rules(RULES, load_repo(root))


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; exit 0 no finding, 1 findings, 2 could not run, 3 a rule was not decided."""
    parser = argparse.ArgumentParser(prog="check_repo", description=__doc__)
    parser.add_argument("--root", type=Path, default=ROOT, help="checkout to look at")
    return run(parser, lambda arguments: check(arguments.root), argv)


if __name__ == "__main__":
    raise SystemExit(main())

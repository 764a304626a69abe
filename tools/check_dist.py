"""Check wheels and sdists member by member against the tree that they were built from.

    python tools/check_dist.py dist/* --require-fatbins --tag vX.Y.Z
    python tools/check_dist.py --verify-manifest

The second form checks the frozen binaries in the tree alone: the files, their hashes and the
hashes of the sources that they were built from.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Final

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)

from archives import (
    MANIFEST,
    Artefact,
    Bin,
    Options,
    Tree,
    bins,
    is_binary,
    load_artefact,
    load_tree,
    same,
)
from files import ROOT, sha256_of
from findings import Outcome, Rule, SkipRule, UnusableError, apply_rules, run
from frozen import source_state
from licences import licence_problems
from limits import MIB, file_limit
from project import REFERENCE, load_project, pairing_of, parse_version, tag_of

Problems = Iterator[tuple[str, str]]
LICENCES: Final = "licenses"
FIRST_WITH_LICENCE_FILES: Final = (2, 4)
LOGS: Final = ("docs/validation_logs/", "docs/release_logs/")
INFO_FILES: Final = frozenset({"METADATA", "WHEEL", "RECORD", "entry_points.txt"})
# What an sdist must carry wherever the tree has it: without them it cannot be built or tested.
SDIST_NEEDS: Final = (
    "CHANGELOG.md",
    "CITATION.cff",
    "LICENSE",
    "LICENSES",
    "NOTICE",
    "README.md",
    "noxfile.py",
    "pyproject.toml",
    "reference.version",
    "tasks.py",
    "tests",
    "tools",
)
STALE: Final = re.compile(
    r"(^|/)(__pycache__|\.git|\.nox|\.venv[^/]*|\.[a-z_]+_cache|[^/]+\.egg-info)/"
    r"|^(build|dist|site)/"
    r"|\.(pyc|pyo|orig|rej|swp|whl)$"
)
REGULAR_MODE: Final = 0o644
EXECUTABLE_MODE: Final = 0o755
PAIRING_FILE: Final = "_reference.json"
PAIRING_KEYS: Final = ("torch", "cublaslt", "compiler")


# --- names and versions --------------------------------------------------------------------------


def _parsed_name(artefact: Artefact) -> tuple[str, str]:
    """Name and version of the file name, as normalised by the packaging library."""
    if artefact.kind == "wheel":
        name, version, _, _ = parse_wheel_filename(artefact.name)
    else:
        name, version = parse_sdist_filename(artefact.name)
    return str(name), str(version)


def _stem(artefact: Artefact) -> list[str]:
    """Name and version as the file name spells them."""
    return artefact.name.removesuffix(".tar.gz").removesuffix(".whl").split("-")[:2]


def _file_name(artefact: Artefact) -> Problems:
    try:
        name, version = _parsed_name(artefact)
    except (InvalidWheelFilename, InvalidSdistFilename) as error:
        yield artefact.name, f"not a distribution's file name: {error}"
        return
    project = artefact.tree.project
    stated = str(artefact.metadata.get("Name"))
    if {name, canonicalize_name(stated)} != {canonicalize_name(project.name)}:
        yield artefact.name, f"named {name}, in its metadata {stated}; expected {project.name}"
    if not artefact.name.startswith(f"{project.package}-{version}"):
        yield (
            artefact.name,
            f"not the exact spelling, expected it to start with {project.package}-{version}",
        )


def _versions(artefact: Artefact) -> Problems:
    runtime = re.findall(
        r'^__version__ = "([^"]*)"$',
        artefact.text(artefact.tree.project.version_file),
        re.MULTILINE,
    )
    found = {
        "file name": _stem(artefact)[-1],
        "metadata": str(artefact.metadata.get("Version")),
        "tree": artefact.tree.version,
        "__version__": " and ".join(runtime) or "(none)",
    }
    if len(set(found.values())) > 1:
        listed = ", ".join(f"{key} {value}" for key, value in found.items())
        yield artefact.name, f"the versions differ: {listed}; build again from the right tree"


def _tag(artefact: Artefact) -> Problems:
    tag = artefact.options.tag
    if tag is None:
        raise SkipRule("no --tag given")
    version = str(artefact.metadata.get("Version"))
    if tag == tag_of(version):
        return
    same_version = parse_version(tag) == parse_version(version)
    reason = "the same version in another spelling" if same_version else "another version"
    yield artefact.name, f"the tag is {tag}, expected {tag_of(version)} ({reason})"


def _wheel_tags(artefact: Artefact) -> Problems:
    expected = {"Tag": ["py3-none-any"], "Root-Is-Purelib": ["true"], "Build": []}
    for key, values in expected.items():
        found = artefact.wheel.get_all(key, [])
        if found != values:
            yield artefact.name, f"WHEEL says {key} {found}, expected {values}"
    if not artefact.name.endswith("-py3-none-any.whl"):
        yield artefact.name, "expected a file name that ends in -py3-none-any.whl"


def _folder_name(artefact: Artefact) -> Problems:
    stem = "-".join(_stem(artefact))
    expected = f"{stem}.dist-info" if artefact.kind == "wheel" else stem
    found = artefact.info if artefact.kind == "wheel" else artefact.prefix
    if found != expected:
        yield artefact.name, f"the folder is {found or 'missing'}, expected {expected}"


# --- metadata ------------------------------------------------------------------------------------


def _metadata_version(artefact: Artefact) -> Problems:
    text = str(artefact.metadata.get("Metadata-Version"))
    # Compared as numbers: 2.10 is newer than 2.4.
    numbers = tuple(int(part) for part in text.split(".") if part.isdecimal())
    if numbers < FIRST_WITH_LICENCE_FILES:
        yield artefact.name, f"Metadata-Version is {text}, expected at least 2.4 (PEP 639)"


def _licence_expression(artefact: Artefact) -> Problems:
    expected = artefact.tree.project.document["project"].get("license")
    found = artefact.metadata.get_all("License-Expression", [])
    if found != [expected]:
        yield artefact.name, f"License-Expression is {found}, expected {[expected]}"


def _licence_files(artefact: Artefact) -> Problems:
    declared = artefact.metadata.get_all("License-File", [])
    folder = f"{artefact.info}/{LICENCES}/" if artefact.kind == "wheel" else ""
    tree = artefact.tree.files
    wanted = ["LICENSE", "NOTICE", *sorted(artefact.tree.below("LICENSES"))]
    for name in wanted:
        if name not in declared:
            yield artefact.name, f"no License-File {name} in the metadata"
        if artefact.files.get(f"{folder}{name}") != tree.get(name):
            yield f"{artefact.name} {folder}{name}", "missing, or not the tree's file"
    for name in set(declared) - set(wanted):
        yield artefact.name, f"License-File {name} is not one of {wanted}"


def _licence_texts(artefact: Artefact) -> Problems:
    return licence_problems(artefact.tree.files)


def _for_extra(text: str, extra: str) -> str:
    """A requirement of an extra as the metadata spells it."""
    requirement = Requirement(text)
    marker = f"({requirement.marker}) and " if requirement.marker else ""
    requirement.marker = Marker(f"{marker}extra == '{extra}'")
    return str(requirement)


def _requirements(artefact: Artefact) -> Problems:
    project = artefact.tree.project.document["project"]
    expected = {str(Requirement(text)) for text in project.get("dependencies", [])}
    for extra, texts in project.get("optional-dependencies", {}).items():
        expected |= {_for_extra(text, extra) for text in texts}
    found = {str(Requirement(text)) for text in artefact.metadata.get_all("Requires-Dist", [])}
    for text in sorted(expected ^ found):
        where = "pyproject.toml" if text in expected else "the metadata"
        yield artefact.name, f"the requirement `{text}` is in {where} only; build again"
    python = artefact.metadata.get("Requires-Python")
    if python != project.get("requires-python"):
        yield artefact.name, f"Requires-Python is {python}, not {project.get('requires-python')}"


_CODE: Final = re.compile(r"^(```|~~~).*?^\1|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LINKS: Final = re.compile(
    r"\]\(\s*<?([^)\s>]+)"  # [text](target), ![text](target)
    r"|^\s*\[[^\]]+\]:\s*<?([^\s>]+)"  # [label]: target
    r"|\b(?:href|src|srcset)\s*=\s*[\"']?([^\"'\s>]+)",  # <a href="target">, <img src=...>
    re.MULTILINE | re.IGNORECASE,
)
_ALIVE: Final = ("https://", "http://", "mailto:", "#")


def _readme_links(artefact: Artefact) -> Problems:
    description = artefact.metadata.get_payload()
    text = _CODE.sub("", str(description))
    for found in _LINKS.finditer(text):
        target = next(group for group in found.groups() if group)
        if not target.startswith(_ALIVE):
            yield (
                f"{artefact.name} README",
                f"the link {target} is dead on the package index; write the whole address",
            )
    if re.search(r"<script\b", text, re.IGNORECASE):
        yield f"{artefact.name} README", "a <script> element, which the package index removes"


# --- the archive ---------------------------------------------------------------------------------


def _record_complete(artefact: Artefact) -> Problems:
    rows = {row[0] for row in artefact.record if row}
    record = f"{artefact.info}/RECORD"
    for name in sorted(set(artefact.files) - rows - {f"{record}.jws", f"{record}.p7s"}):
        yield f"{artefact.name} {name}", "in the archive, not in RECORD; build again"
    for name in sorted(rows - set(artefact.files)):
        yield f"{artefact.name} {name}", "in RECORD, not in the archive; build again"


def _record_hashes(artefact: Artefact) -> Problems:
    for row in artefact.record:
        name = row[0] if row else ""
        data = artefact.files.get(name)
        if data is None:
            continue
        expected = [name, _record_hash(data), str(len(data))]
        if name == f"{artefact.info}/RECORD":
            expected = [name, "", ""]
        if row != expected:
            yield f"{artefact.name} {name}", f"RECORD says {row[1:]}, expected {expected[1:]}"


def _record_hash(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return f"sha256={digest}"


def _duplicates(artefact: Artefact) -> Problems:
    rows = [row[0] for row in artefact.record if row] if artefact.kind == "wheel" else []
    for kind, names in (
        ("members", [member.name for member in artefact.members]),
        ("RECORD rows", rows),
    ):
        # Two names that differ in case only are one file on many systems.
        for name, count in Counter(name.casefold() for name in names).items():
            if count > 1:
                yield f"{artefact.name} {name}", f"{count} {kind} of this name"


def _safe_names(artefact: Artefact) -> Problems:
    rows = [row[0] for row in artefact.record if row] if artefact.kind == "wheel" else []
    for name in sorted({member.name for member in artefact.members} | set(rows)):
        parts = name.rstrip("/").split("/")
        bad = (
            name.startswith("/")
            or bool({"", ".", ".."} & set(parts))
            or re.search(r"[\\:\x00-\x1f]", name)
        )
        if bad:
            yield f"{artefact.name} {name!r}", "absolute, climbing or unportable name"


def _modes(artefact: Artefact) -> Problems:
    for member in artefact.members:
        if not member.regular:
            continue
        name = member.name.removeprefix(f"{artefact.prefix}/")
        script = artefact.kind == "sdist" and artefact.files.get(name, b"").startswith(b"#!")
        allowed = (REGULAR_MODE, EXECUTABLE_MODE) if script else (REGULAR_MODE,)
        if member.mode & 0o7777 not in allowed:
            yield (
                f"{artefact.name} {member.name}",
                f"mode {member.mode & 0o7777:04o}, expected {' or '.join(map(oct, allowed))}; "
                "chmod the file in the tree and build again",
            )


def _regular(artefact: Artefact) -> Problems:
    for member in artefact.members:
        if not member.regular:
            yield (
                f"{artefact.name} {member.name}",
                "a folder, link or device; only plain files belong into a distribution",
            )


# --- contents ------------------------------------------------------------------------------------


def _wheel_top(artefact: Artefact) -> Problems:
    package = artefact.tree.project.package
    licences = f"{artefact.info}/{LICENCES}/"
    for name in artefact.files:
        top, _, rest = name.partition("/")
        if top == package and rest:
            continue
        if top == artefact.info and (rest in INFO_FILES or name.startswith(licences)):
            continue
        yield (
            f"{artefact.name} {name}",
            f"expected {package}/ and the known files of {artefact.info or 'dist-info'} only",
        )


def _wheel_complete(artefact: Artefact) -> Problems:
    package = artefact.tree.project.package
    expected = artefact.tree.below(package)
    for name, data in expected.items():
        if _left_out(name, package) and not artefact.options.require_binaries:
            continue
        yield from _compare(artefact, name, data)


def _compare(artefact: Artefact, name: str, data: bytes) -> Problems:
    if name not in artefact.files:
        yield (
            f"{artefact.name} {name}",
            "missing; the tree has it (is it in .gitignore without `artifacts`?)",
        )
    elif artefact.files[name] != data:
        yield f"{artefact.name} {name}", "not the tree's bytes; build again"


def _nothing_foreign(artefact: Artefact) -> Problems:
    package = artefact.tree.project.package
    known = artefact.tree.files
    for name, data in artefact.files.items():
        inside = name.startswith(f"{package}/") or artefact.kind == "sdist"
        if not inside or name == "PKG-INFO" or STALE.search(name):
            continue
        if name not in known:
            yield f"{artefact.name} {name}", "not in the tree; remove stale output and build again"
        elif known[name] != data and name.split("/")[0] not in (*SDIST_NEEDS, package):
            yield f"{artefact.name} {name}", "not the tree's bytes; build again"


def _no_stale_output(artefact: Artefact) -> Problems:
    for name in artefact.files:
        if STALE.search(name):
            yield f"{artefact.name} {name}", "build output or a cache; exclude it"


def _sdist_complete(artefact: Artefact) -> Problems:
    package = artefact.tree.project.package
    needs = (*SDIST_NEEDS, package)
    for name, data in artefact.tree.files.items():
        if name.split("/")[0] in needs and not _left_out(name, package):
            yield from _compare(artefact, name, data)


def _left_out(name: str, package: str) -> bool:
    """Whether a file of the tree belongs into no sdist: frozen binaries, their manifest, logs."""
    path = PurePosixPath(name)
    in_bin = path.parts[0] == package and path.parent.name == "bin"
    return in_bin or is_binary(name) or name.startswith(LOGS)


def _sdist_without_binaries(artefact: Artefact) -> Problems:
    for name in artefact.files:
        if _left_out(name, artefact.tree.project.package):
            yield f"{artefact.name} {name}", "a frozen binary or a log; exclude it from the sdist"


# --- frozen binaries -----------------------------------------------------------------------------


def _bins(artefact: Artefact) -> tuple[Bin, ...]:
    return bins(artefact.files, artefact.tree.project.package)


def _wheel_bins(artefact: Artefact) -> Problems:
    for folder in _bins(artefact):
        for where, text in _only_listed(folder):
            yield f"{artefact.name} {where}", text


def _only_listed(folder: Bin) -> Problems:
    if folder.problem:
        yield folder.folder, folder.problem
    for name in sorted(set(folder.files) - set(folder.listed)):
        yield f"{folder.folder}/{name}", f"not in {MANIFEST}; only listed binaries belong here"
    for name in sorted(set(folder.listed) - set(folder.files)):
        yield f"{folder.folder}/{name}", f"in {MANIFEST}, but missing"


def _wheel_bin_bytes(artefact: Artefact) -> Problems:
    for folder in _bins(artefact):
        for where, text in _right_bytes(folder):
            yield f"{artefact.name} {where}", text


def _right_bytes(folder: Bin) -> Problems:
    for name, data in folder.files.items():
        entry = folder.listed.get(name)
        if entry is not None and not same(entry, data):
            yield (
                f"{folder.folder}/{name}",
                f"sha256 {sha256_of(data)[:12]} of {len(data)} bytes, the manifest says "
                f"{str(entry.get('sha256'))[:12]} of {entry.get('size')}; freeze again",
            )


def _required_bins(artefact: Artefact) -> Problems:
    if not artefact.options.require_binaries:
        raise SkipRule("no --require-fatbins given")
    tree = bins(artefact.tree.files, artefact.tree.project.package)
    if not tree:
        raise SkipRule("the tree has no folder of frozen binaries")
    present = {folder.folder for folder in _bins(artefact) if folder.listed}
    for folder in tree:
        if folder.folder not in present:
            yield f"{artefact.name} {folder.folder}", "the tree's binaries are not in the wheel"


def _binaries_only_in_bin(artefact: Artefact) -> Problems:
    for name in artefact.files:
        if is_binary(name) and PurePosixPath(name).parent.name != "bin":
            yield f"{artefact.name} {name}", "a binary outside bin/, which no manifest vouches for"


# --- size and pairing ----------------------------------------------------------------------------


def _size(artefact: Artefact) -> Problems:
    limit = artefact.options.limit
    if artefact.size > limit:
        yield (
            artefact.name,
            f"{artefact.size} bytes, the package index takes {limit} ({limit / MIB:g} MiB); "
            "ask for a higher limit and record it in PYPI_FILE_LIMIT_MB",
        )


def _pairing(artefact: Artefact) -> Problems:
    tree, package = artefact.tree, artefact.tree.project.package
    if REFERENCE not in tree.files:
        raise SkipRule(f"the project has no {REFERENCE}")
    stated = pairing_of(tree.files[REFERENCE].decode())
    found = _json_object(artefact.text(f"{package}/{PAIRING_FILE}"))
    for key in PAIRING_KEYS:
        if found.get(key) != stated.get(key):
            yield (
                f"{artefact.name} {package}/{PAIRING_FILE}",
                f"{key} is {found.get(key)}, {REFERENCE} says {stated.get(key)}",
            )
    for name, data in artefact.files.items():
        if not name.startswith(f"{package}/profiles/data/") or not name.endswith(".json"):
            continue
        platform = _json_object(data.decode()).get("platform", {})
        for key in ("torch", "cublaslt"):
            if isinstance(platform, dict) and platform.get(key, stated.get(key)) != stated.get(key):
                yield (
                    f"{artefact.name} {name}",
                    f"recorded with {key} {platform[key]}, {REFERENCE} says {stated.get(key)}",
                )


def _json_object(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text or "{}")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


COMMON: Final[tuple[Rule[Artefact], ...]] = (
    Rule("DIST101", "The file name is the project's, in the exact spelling.", _file_name),
    Rule("DIST102", "File name, metadata, `__version__` and tree have one version.", _versions),
    Rule("DIST103", "The tag is `v` and the version, in the exact spelling.", _tag),
    Rule("DIST105", "The dist-info folder or top folder is named like the file.", _folder_name),
    Rule("DIST201", "Metadata-Version is at least 2.4, compared as numbers.", _metadata_version),
    Rule("DIST202", "License-Expression is the project's.", _licence_expression),
    Rule("DIST203", "LICENSE, NOTICE and LICENSES/ are declared and included.", _licence_files),
    Rule("DIST204", "LICENSE is verbatim, NOTICE quotes every text in LICENSES/.", _licence_texts),
    Rule("DIST205", "No link of the README is dead on the package index.", _readme_links),
    Rule("DIST206", "Requirements and Python versions are pyproject.toml's.", _requirements),
    Rule("DIST303", "No member and no RECORD row occurs twice.", _duplicates),
    Rule("DIST304", "No name is absolute, climbs or is unportable.", _safe_names),
    Rule("DIST305", "Every file has mode 644 (a script in an sdist 755).", _modes),
    Rule("DIST306", "Every member is a plain file: no folder rows, no links.", _regular),
    Rule("DIST403", "Every file is the tree's.", _nothing_foreign),
    Rule("DIST404", "No build output and no cache is included.", _no_stale_output),
    Rule("DIST601", "The file is within the size limit of the package index.", _size),
    Rule("DIST701", "Pairing file, reference.version and tables agree.", _pairing),
)
WHEEL: Final[tuple[Rule[Artefact], ...]] = (
    Rule("DIST104", "The wheel is py3-none-any, pure, without build tag.", _wheel_tags),
    Rule("DIST301", "RECORD lists exactly the members.", _record_complete),
    Rule("DIST302", "RECORD's hashes and sizes are those of the bytes.", _record_hashes),
    Rule("DIST401", "The wheel holds the package and its dist-info only.", _wheel_top),
    Rule(
        "DIST402", "Every package file of the tree is in the wheel, byte for byte.", _wheel_complete
    ),
    Rule("DIST501", "bin/ holds the manifest and its binaries only.", _wheel_bins),
    Rule("DIST502", "Every binary has the manifest's sha256 and size.", _wheel_bin_bytes),
    Rule("DIST503", "With --require-fatbins every binary folder is there.", _required_bins),
    Rule("DIST504", "No binary lies outside bin/.", _binaries_only_in_bin),
)
SDIST: Final[tuple[Rule[Artefact], ...]] = (
    Rule("DIST405", "The sdist can be built and tested: all sources and tests.", _sdist_complete),
    Rule("DIST406", "The sdist holds no frozen binary and no log.", _sdist_without_binaries),
)


# --- the tree's own binaries ---------------------------------------------------------------------


def _tree_listed(tree: Tree) -> Problems:
    for folder in bins(tree.files, tree.project.package):
        yield from _only_listed(folder)


def _tree_bytes(tree: Tree) -> Problems:
    for folder in bins(tree.files, tree.project.package):
        yield from _right_bytes(folder)


def _tree_sources(tree: Tree) -> Problems:
    for folder in bins(tree.files, tree.project.package):
        for module, entry in (folder.modules or {}).items():
            for name, expected in dict(entry.get("sources", {})).items():
                problem = source_state(str(expected), tree.files.get(name))
                if problem:
                    yield f"{folder.folder} {module}: {name}", problem


def _modes_of_tree(tree: Tree) -> Problems:
    for name, mode in tree.modes.items():
        if mode & 0o111 and not tree.files[name].startswith(b"#!"):
            yield (
                name,
                f"mode {mode:04o}, yet no script (#!); chmod 644, it changes the wheel's bytes",
            )


TREE: Final[tuple[Rule[Tree], ...]] = (
    Rule("FAT101", "bin/ in the tree holds the manifest and its binaries only.", _tree_listed),
    Rule("FAT102", "Every binary in the tree has the manifest's sha256 and size.", _tree_bytes),
    Rule("FAT103", "Every binary was built from the sources in the tree.", _tree_sources),
    Rule("FAT104", "Only scripts are executable.", _modes_of_tree),
)
RULES: Final = (*COMMON, *WHEEL, *SDIST, *TREE)


def check_files(paths: list[Path], tree: Tree, options: Options) -> Outcome:
    """Apply every rule that concerns each of the distributions."""
    outcome = Outcome()
    for path in paths:
        artefact = load_artefact(path, tree, options)
        rules = COMMON + (WHEEL if artefact.kind == "wheel" else SDIST)
        outcome += apply_rules(rules, artefact)
    return outcome


def _check(arguments: argparse.Namespace) -> Outcome:
    if not arguments.files and not arguments.verify_manifest:
        raise UnusableError("nothing to check: name distributions, or give --verify-manifest")
    files = [path for path in arguments.files if path.name != "SHA256SUMS"]
    if arguments.files and not files:
        raise UnusableError("no distribution among the files given")
    tree = load_tree(load_project(arguments.source.resolve()))
    outcome = apply_rules(TREE, tree) if arguments.verify_manifest else Outcome()
    options = Options(arguments.tag, arguments.require_fatbins, file_limit())
    return outcome + check_files(files, tree, options)


def main(argv: list[str] | None = None) -> int:
    """Entry point; see the module docstring."""
    parser = argparse.ArgumentParser(prog="check_dist", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="wheels and sdists")
    parser.add_argument("--source", type=Path, default=ROOT, help="the tree they were built from")
    parser.add_argument("--tag", help="the release tag that they must match")
    parser.add_argument(
        "--require-fatbins", action="store_true", help="the wheel must hold the frozen binaries"
    )
    parser.add_argument(
        "--verify-manifest", action="store_true", help="check the binaries in the tree"
    )
    return run(parser, _check, argv)


if __name__ == "__main__":
    sys.exit(main())

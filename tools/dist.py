"""Build sdist and wheel twice, compare them byte for byte, check them, and write SHA256SUMS.

    python tools/dist.py --version X.Y.Z [--tag vX.Y.Z] [--require-fatbins] [--out dist]

The first build runs in the tree under the caller's surroundings, the second in a copy elsewhere
with another umask, time zone, locale and working directory. A third wheel is built from the sdist
and must hold the same files, frozen binaries apart. Files appear in --out only when all is well.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Final

from packaging.requirements import Requirement
from packaging.version import Version

import check_dist
import tier_results
from archives import Options, Tree, is_binary, is_cache, load_tree
from files import ROOT, sha256_of_file, write_bytes
from findings import (
    PASS,
    Outcome,
    Rule,
    SkipRule,
    UnusableError,
    apply_rules,
    guarded,
    report,
)
from git_commands import Git
from limits import file_limit
from project import EPOCH, SUMS, UMASK, Project, add_waivers, load_project, tag_of

Problems = Iterator[tuple[str, str]]
# The first release that reads License-File; twine reports the distribution for an older one.
PACKAGING: Final = Version("24.2")
TOOLS: Final = ("build", "hatchling", "packaging", "twine")
OTHER_UMASK: Final = 0o077
OTHER_ENVIRONMENT: Final = {
    "LC_ALL": "C",
    "LANGUAGE": "tr",
    "TZ": "Pacific/Kiritimati",
    "PYTHONHASHSEED": "1",
}


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be built, and the tree as it is.

    Attributes:
        tree: the tree, read.
        version: the version asked for, None for the tree's.
        tag: the release tag, None where none is asked for.
        status: lines of `git status`, None where they do not matter or there is no repository.
    """

    tree: Tree
    version: str | None
    tag: str | None
    status: tuple[str, ...] | None


def _version(request: Request) -> Problems:
    if request.version is not None and request.version != request.tree.version:
        yield (
            request.tree.project.version_file,
            f"the file says {request.tree.version}, asked for {request.version}; "
            "run `invoke version` first",
        )


def _tag(request: Request) -> Problems:
    if request.tag is None:
        raise SkipRule("no --tag given")
    if request.tag != tag_of(request.tree.version):
        yield (
            request.tree.project.version_file,
            f"the file says {request.tree.version}, the tag is {request.tag}, expected "
            f"{tag_of(request.tree.version)}; nothing is built",
        )


def _clean(request: Request) -> Problems:
    if request.status is None:
        raise SkipRule("--dirty was given, or the tree is no git checkout")
    for line in request.status:
        yield line[3:], f"the tree differs from HEAD ({line[:2].strip()}); commit or remove it"


def _backend_pinned(request: Request) -> Problems:
    requires = request.tree.project.document.get("build-system", {}).get("requires", [])
    for text in requires or ["(nothing)"]:
        specifiers = list(Requirement(text).specifier) if requires else []
        if [each.operator for each in specifiers] != ["=="]:
            yield (
                "pyproject.toml",
                f"build-system requires {text!r}, expected an exact pin (NAME==VERSION)",
            )


PREFLIGHT: Final[tuple[Rule[Request], ...]] = (
    Rule("DIST801", "The version asked for is the tree's.", _version),
    Rule("DIST802", "The tag asked for is the tree's, before anything is built.", _tag),
    Rule("DIST803", "The tree equals HEAD, untracked files included.", _clean),
    Rule("DIST804", "The build backend is pinned exactly.", _backend_pinned),
)


@dataclass(frozen=True, slots=True)
class Built:
    """The results of the three builds.

    Attributes:
        first: files of the build in the tree.
        second: files of the build elsewhere.
        from_sdist: the wheel built from the sdist, None where that build failed.
        log: output of that build.
        twine: exit status and output of `twine check --strict`.
        reports: sha256 of the wheel that each committed T7 report of this version names.
    """

    first: tuple[Path, ...]
    second: tuple[Path, ...]
    from_sdist: Path | None
    log: str
    twine: tuple[int, str]
    reports: dict[str, str]


def _same_bytes(built: Built) -> Problems:
    hashes = [
        {path.name: sha256_of_file(path) for path in paths} for paths in (built.first, built.second)
    ]
    for name in sorted(hashes[0].keys() | hashes[1].keys()):
        pair = [found.get(name, "missing")[:12] for found in hashes]
        if pair[0] != pair[1]:
            yield (
                name,
                f"two builds differ ({pair[0]} and {pair[1]}); compare them member by member: "
                "something depends on path, mode, time or locale",
            )


def _same_from_sdist(built: Built) -> Problems:
    if built.from_sdist is None:
        yield "sdist", f"no wheel can be built from it: {built.log[-800:].strip()}"
        return
    wheel = next(path for path in built.first if path.suffix == ".whl")
    direct, through = _names(wheel), _names(built.from_sdist)
    for name in sorted(direct - through):
        yield f"{wheel.name} {name}", "in the wheel from the tree, not in the one from the sdist"
    for name in sorted(through - direct):
        yield f"{wheel.name} {name}", "in the wheel from the sdist, not in the one from the tree"


def _names(wheel: Path) -> set[str]:
    """Members of a wheel without the frozen binaries, which an sdist never has."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    return {
        name for name in names if not is_binary(name) and PurePosixPath(name).parent.name != "bin"
    }


def _twine(built: Built) -> Problems:
    code, output = built.twine
    if code:
        yield "twine check --strict", f"exited with {code}: {output.strip()}"


def _validated_wheel(built: Built) -> Problems:
    wheel = next(path for path in built.first if path.suffix == ".whl")
    for name, digest in built.reports.items():
        if digest != sha256_of_file(wheel):
            yield (
                name,
                f"the validated wheel has sha256 {digest[:12]}, this one "
                f"{sha256_of_file(wheel)[:12]}; validate the wheel of this tree",
            )


BUILDS: Final[tuple[Rule[Built], ...]] = (
    Rule("DIST811", "Two builds under different surroundings give the same bytes.", _same_bytes),
    Rule("DIST812", "The wheel from the sdist holds the same files.", _same_from_sdist),
    Rule("DIST813", "`twine check --strict` passes.", _twine),
    Rule("DIST814", "The wheel is the one that T7 validated.", _validated_wheel),
)
RULES: Final = (*PREFLIGHT, *BUILDS)


def tool_versions(project: Project) -> dict[str, str]:
    """The versions of the build tools that run here.

    Raises:
        UnusableError: one is missing, not the pinned one, or too old to read the metadata.
    """
    pins = _pins(project)
    found = {}
    for name in TOOLS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError as error:
            raise UnusableError(
                f"{name} is not installed beside {sys.executable}; "
                "install the dependency group `build`"
            ) from error
        if found[name] != pins.get(name, found[name]):
            raise UnusableError(
                f"{name} {found[name]} is installed, pyproject.toml pins {pins[name]}: the tool is "
                "at fault, not the distribution; install the dependency group `build`"
            )
    if Version(found["packaging"]) < PACKAGING:
        raise UnusableError(
            f"packaging {found['packaging']} cannot read Metadata-Version 2.4 (it needs "
            f"{PACKAGING}): the tool is at fault, not the distribution; upgrade packaging"
        )
    return found


def _pins(project: Project) -> dict[str, str]:
    """Exact pins of the dependency group `build`."""
    rows = project.document.get("dependency-groups", {}).get("build", [])
    requirements = [Requirement(row) for row in rows if isinstance(row, str)]
    return {
        requirement.name: next(iter(requirement.specifier)).version
        for requirement in requirements
        if str(requirement.specifier).startswith("==")
    }


def _build(source: Path, out: Path, *, umask: int, env: dict[str, str], cwd: Path) -> str:
    """Build sdist and wheel of a tree.

    Raises:
        UnusableError: the build failed; the message holds the end of its output.
    """
    done = _run_build(source, out, ("--sdist", "--wheel"), umask=umask, env=env, cwd=cwd)
    if done.returncode:
        raise UnusableError(f"the build failed: {(done.stdout + done.stderr)[-1500:].strip()}")
    return done.stdout


def _run_build(
    source: Path,
    out: Path,
    kinds: Sequence[str],
    *,
    umask: int = UMASK,
    env: dict[str, str] | None = None,
    cwd: Path,
) -> subprocess.CompletedProcess[str]:
    command = [
        *(sys.executable, "-m", "build", "--no-isolation", *kinds),
        *("--outdir", str(out), str(source)),
    ]
    return subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | {"SOURCE_DATE_EPOCH": EPOCH} | (env or {}),
        umask=umask,
        capture_output=True,
        text=True,
        check=False,
    )


def _copy(tree: Path, copy: Path) -> None:
    """Copy a tree as a checkout under a private umask would be."""

    def ignored(folder: str, names: list[str]) -> set[str]:
        top = Path(folder) == tree
        return {name for name in names if name == "__pycache__" or (top and is_cache(name))}

    shutil.copytree(tree, copy, ignore=ignored)
    for path in copy.rglob("*"):
        if path.is_file():
            path.chmod(path.stat().st_mode & ~OTHER_UMASK)


def _wheel_from_sdist(sdist: Path, scratch: Path) -> tuple[Path | None, str]:
    folder = scratch / "unpacked"
    shutil.unpack_archive(sdist, folder, filter="data")
    (source,) = folder.iterdir()
    out = scratch / "from-sdist"
    done = _run_build(source, out, ("--wheel",), cwd=scratch)
    return next(out.glob("*.whl"), None), done.stdout + done.stderr


def _twine_check(paths: Sequence[Path]) -> tuple[int, str]:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def build_all(project: Project, scratch: Path) -> Built:
    """Run the three builds and twine.

    Args:
        project: the tree to build.
        scratch: an empty folder outside the tree.
    """
    first, second = scratch / "first", scratch / "second"
    _build(project.root, first, umask=UMASK, env={}, cwd=project.root)
    copy = scratch / "a copy elsewhere" / project.root.name
    _copy(project.root, copy)
    _build(copy, second, umask=OTHER_UMASK, env=OTHER_ENVIRONMENT, cwd=scratch)
    files = tuple(sorted(first.iterdir()))
    sdist = next(path for path in files if path.name.endswith(".tar.gz"))
    wheel, log = _wheel_from_sdist(sdist, scratch)
    others = tuple(sorted(second.iterdir()))
    return Built(files, others, wheel, log, _twine_check(files), _reports(project))


def _reports(project: Project) -> dict[str, str]:
    """The wheel's sha256 in each committed T7 report of this version."""
    folder = project.root / "docs" / "release_logs"
    found = sorted(folder.glob(f"{project.version}_*.json"))
    return {
        path.relative_to(project.root).as_posix(): str(
            json.loads(path.read_text(encoding="utf-8")).get("wheel_sha256")
        )
        for path in found
    }


def publish(paths: Sequence[Path], out: Path) -> None:
    """Put the distributions and their checksums into a folder, replacing earlier ones."""
    out.mkdir(parents=True, exist_ok=True)
    for old in out.iterdir():
        if old.suffix == ".whl" or old.name.endswith(".tar.gz") or old.name == SUMS:
            old.unlink()
    for path in paths:
        write_bytes(out / path.name, path.read_bytes())
    lines = [f"{sha256_of_file(path)}  {path.name}\n" for path in paths]
    write_bytes(out / SUMS, "".join(lines).encode())


def _status(root: Path, *, dirty: bool) -> tuple[str, ...] | None:
    if dirty or not (root / ".git").exists():
        return None
    return Git(root).names("status", "--porcelain", "-z", "--untracked-files=all", "--no-renames")


def _action(arguments: argparse.Namespace) -> int:
    project = load_project(arguments.root.resolve())
    versions = tool_versions(project)
    print("dist: " + ", ".join(f"{name} {version}" for name, version in versions.items()))
    tree = load_tree(project)
    status = _status(project.root, dirty=arguments.dirty)
    tag = arguments.tag or None
    request = Request(tree, arguments.version, tag, status)
    outcome = apply_rules(PREFLIGHT, request) + apply_rules(check_dist.TREE, tree)
    if arguments.tiers:
        waivers = dict(arguments.device_not_run)
        outcome += tier_results.check(project.root, waivers, version=tree.version)
    if outcome.findings:
        return report("dist", outcome)
    with tempfile.TemporaryDirectory(prefix="dist-") as folder:
        built = build_all(project, Path(folder))
        options = Options(tag, arguments.require_fatbins, file_limit())
        outcome += apply_rules(BUILDS, built)
        outcome += check_dist.check_files(list(built.first), tree, options)
        outcome = Outcome(tuple(outcome.findings), tuple(dict.fromkeys(outcome.skipped)))
        if outcome.exit_code == PASS:
            publish(built.first, arguments.out)
            for path in built.first:
                print(f"dist: {path.name} {path.stat().st_size} bytes {sha256_of_file(path)}")
    return report("dist", outcome)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="dist", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", help="refuse unless the tree has this version")
    parser.add_argument("--tag", help="refuse unless this is the tree's tag; empty: no tag")
    parser.add_argument("--require-fatbins", action="store_true", help="see check_dist")
    parser.add_argument("--dirty", action="store_true", help="build although the tree is not HEAD")
    parser.add_argument("--tiers", action="store_true", help="refuse what tier_results refuses")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the files go")
    parser.add_argument("--root", type=Path, default=ROOT, help="the project")
    add_waivers(parser)
    arguments = parser.parse_args(argv)
    return guarded(parser.prog, lambda: _action(arguments))


if __name__ == "__main__":
    raise SystemExit(main())

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import check_dist
from archives import Options, load_tree
from frozen import source_state
from project import load_project

FATBIN = b"\x50\xed\x55\xba" + bytes(range(64))
KERNEL = "// A kernel.\nint answer() { return 42; }\n"
INFO = "pkgx-0.1.0.dist-info"
WHEEL_NAME = "pkgx-0.1.0-py3-none-any.whl"
SDIST_NAME = "pkgx-0.1.0.tar.gz"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def build(root: Path, out: Path, *kinds: str) -> list[Path]:
    """Build with the real frontend and backend."""
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", *kinds, "--outdir", str(out), str(root)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(path for path in out.iterdir() if path.suffix in (".whl", ".gz"))


def add_binaries(root: Path) -> None:
    """Give the stand-in package a frozen binary, its manifest, its source and a paired table."""
    folder = root / "pkgx" / "data" / "bin"
    folder.mkdir(parents=True)
    (folder / "a.fatbin").write_bytes(FATBIN)
    (root / "pkgx" / "data" / "k.cu").write_text(KERNEL, encoding="utf-8")
    entry = {
        "file": "a.fatbin",
        "sha256": sha256(FATBIN),
        "size": len(FATBIN),
        "sources": {"pkgx/data/k.cu": sha256(KERNEL.encode())},
    }
    (folder / "manifest.json").write_text(json.dumps({"modules": {"a": entry}}), encoding="utf-8")
    pairing = {"torch": "2.7.1+cu128", "cublaslt": "12.8.3.14", "compiler": "12.8.61"}
    (root / "pkgx" / "_reference.json").write_text(json.dumps(pairing), encoding="utf-8")
    lines = "".join(f"{key} {value}\n" for key, value in pairing.items())
    (root / "reference.version").write_text(f"pkgx 0.1.0\n{lines}", encoding="utf-8")
    table = root / "pkgx" / "profiles" / "data" / "gpu" / "table.json"
    table.parent.mkdir(parents=True)
    platform = {"torch": "2.7.1+cu128", "cublaslt": "12.8.3.14", "gpu": "A GPU"}
    table.write_text(json.dumps({"platform": platform}), encoding="utf-8")
    (root / "docs").mkdir()
    (root / "docs" / "page.md").write_text("A page.\n", encoding="utf-8")
    (root / "tests").mkdir()
    (root / "tests" / "test_it.py").write_text("def test_it() -> None: ...\n", encoding="utf-8")
    with (root / "pyproject.toml").open("a", encoding="utf-8") as stream:
        stream.write('\n[tool.hatch.build.targets.sdist]\nexclude = ["/pkgx/data/bin"]\n')


@pytest.fixture(scope="session")
def built(
    project_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, Path]:
    """The stand-in package's tree, wheel and sdist, built once."""
    root = Path(shutil.copytree(project_template, tmp_path_factory.mktemp("built") / "pkgx"))
    add_binaries(root)
    sdist, wheel = sorted(
        build(root, root.parent / "out", "--sdist", "--wheel"), key=lambda p: p.suffix
    )
    return root, wheel, sdist


@dataclass
class Archive:
    """A distribution taken apart, to be changed and put together again."""

    name: str
    members: list[tuple[str, bytes, int]] = field(default_factory=list)
    fresh_record: bool = True

    def find(self, name: str) -> int:
        return next(i for i, member in enumerate(self.members) if member[0] == name)

    def edit(self, name: str, change: Callable[[bytes], bytes]) -> None:
        index = self.find(name)
        stored, data, mode = self.members[index]
        self.members[index] = (stored, change(data), mode)

    def add(self, name: str, data: bytes = b"x", mode: int = 0o100644) -> None:
        self.members.append((name, data, mode))

    def drop(self, name: str) -> None:
        del self.members[self.find(name)]

    def rename(self, old: str, new: str) -> None:
        index = self.find(old)
        self.members[index] = (new, *self.members[index][1:])

    def mode(self, name: str, mode: int) -> None:
        index = self.find(name)
        self.members[index] = (*self.members[index][:2], mode)


def open_wheel(path: Path) -> Archive:
    with zipfile.ZipFile(path) as archive:
        members = [
            (info.filename, archive.read(info), info.external_attr >> 16)
            for info in archive.infolist()
        ]
    return Archive(path.name, members)


def open_sdist(path: Path) -> Archive:
    members = []
    with tarfile.open(path) as archive:
        for info in archive:
            stream = archive.extractfile(info)
            assert stream is not None
            members.append((info.name, stream.read(), info.mode | stat.S_IFREG))
    return Archive(path.name, members)


def record_of(members: list[tuple[str, bytes, int]], record: str) -> bytes:
    lines = []
    for name, data, _ in members:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        lines.append(f"{record},,\n" if name == record else f"{name},sha256={digest},{len(data)}\n")
    return "".join(lines).encode()


def write(archive: Archive, folder: Path) -> Path:
    path = folder / archive.name
    if path.suffix == ".whl":
        record = next((m[0] for m in archive.members if m[0].endswith("/RECORD")), None)
        if archive.fresh_record and record:
            archive.edit(record, lambda _: record_of(archive.members, record))
        with zipfile.ZipFile(path, "w") as out:
            for name, data, mode in archive.members:
                info = zipfile.ZipInfo(name)
                info.external_attr = mode << 16
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)  # Duplicates are meant.
                    out.writestr(info, data)
        return path
    with tarfile.open(path, "w:gz") as tar:
        for name, data, mode in archive.members:
            item = tarfile.TarInfo(name)
            item.size, item.mode = len(data), stat.S_IMODE(mode)
            if stat.S_ISLNK(mode):
                item.type, item.linkname, item.size = tarfile.SYMTYPE, data.decode(), 0
            tar.addfile(item, io.BytesIO(data[: item.size]))
    return path


def codes(path: Path, root: Path, tag: str | None = "v0.1.0") -> set[str]:
    tree = load_tree(load_project(root))
    outcome = check_dist.check_files([path], tree, Options(tag, True, 1 << 20))
    return {finding.code for finding in outcome.findings}


def text(old: str, new: str) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        assert old.encode() in data, old
        return data.replace(old.encode(), new.encode())

    return change


Change = Callable[[Archive], None]


def edited(name: str, old: str, new: str) -> Change:
    return lambda archive: archive.edit(name, text(old, new))


def _record_without_row(archive: Archive) -> None:
    archive.fresh_record = False
    archive.edit(
        f"{INFO}/RECORD",
        lambda data: b"".join(
            line for line in data.splitlines(keepends=True) if b"pkgx/py.typed" not in line
        ),
    )


def _record_row_too_many(archive: Archive) -> None:
    archive.fresh_record = False
    archive.edit(f"{INFO}/RECORD", lambda data: b"pkgx/ghost.py,sha256=AA,1\n" + data)


def _record_row_twice(archive: Archive) -> None:
    archive.fresh_record = False
    archive.edit(f"{INFO}/RECORD", lambda data: data.splitlines(keepends=True)[0] + data)


def _record_wrong(old: str, new: str) -> Change:
    def change(archive: Archive) -> None:
        archive.fresh_record = False
        archive.edit(f"{INFO}/RECORD", text(old, new))

    return change


def _member_twice(archive: Archive) -> None:
    archive.fresh_record = False
    name, data, mode = archive.members[0]
    archive.members.append((name, data, mode))


def _unrecorded(archive: Archive) -> None:
    archive.fresh_record = False
    archive.add(f"{INFO}/licenses/EXTRA", b"x")


def _wheel_named(name: str) -> Change:
    def change(archive: Archive) -> None:
        archive.name = name

    return change


def _folder_renamed(archive: Archive) -> None:
    for index, (name, data, mode) in enumerate(archive.members):
        archive.members[index] = (name.replace("pkgx-0.1.0", "pkgx-0.1"), data, mode)


WHEEL_MUTANTS: dict[str, tuple[Change, set[str]]] = {
    "name of another project": (
        _wheel_named("pkgy-0.1.0-py3-none-any.whl"),
        {"DIST101", "DIST105"},
    ),
    "no wheel name at all": (
        _wheel_named("pkgx.whl"),
        {"DIST101", "DIST102", "DIST104", "DIST105"},
    ),
    "spelling of the name": (
        _wheel_named("PkgX-0.1.0-py3-none-any.whl"),
        {"DIST101", "DIST105"},
    ),
    "version in the file name": (
        _wheel_named("pkgx-0.1.1-py3-none-any.whl"),
        {"DIST102", "DIST105"},
    ),
    "version in the metadata": (
        edited(f"{INFO}/METADATA", "\nVersion: 0.1.0\n", "\nVersion: 0.1.1\n"),
        {"DIST102", "DIST103"},
    ),
    "version at run time": (edited("pkgx/_version.py", "0.1.0", "0.1.1"), {"DIST102", "DIST402"}),
    "platform tag": (edited(f"{INFO}/WHEEL", "py3-none-any", "cp311-cp311-linux"), {"DIST104"}),
    "not pure": (
        edited(f"{INFO}/WHEEL", "Root-Is-Purelib: true", "Root-Is-Purelib: false"),
        {"DIST104"},
    ),
    "build tag inside": (edited(f"{INFO}/WHEEL", "Tag:", "Build: 1\nTag:"), {"DIST104"}),
    "folder name": (_folder_renamed, {"DIST105"}),
    "Metadata-Version 2.3": (
        lambda a: a.edit(f"{INFO}/METADATA", lambda d: b"Metadata-Version: 2.3\n" + _rest(d)),
        {"DIST201"},
    ),
    "Metadata-Version missing": (
        lambda a: a.edit(f"{INFO}/METADATA", _rest),
        {"DIST201"},
    ),
    "licence expression": (
        edited(f"{INFO}/METADATA", "Expression: Apache-2.0", "Expression: MIT"),
        {"DIST202"},
    ),
    "licence classifier instead": (
        edited(f"{INFO}/METADATA", "License-Expression: Apache-2.0", "License: Apache 2.0"),
        {"DIST202"},
    ),
    "licence file not declared": (
        edited(f"{INFO}/METADATA", "License-File: NOTICE\n", ""),
        {"DIST203"},
    ),
    "licence file not included": (lambda a: a.drop(f"{INFO}/licenses/NOTICE"), {"DIST203"}),
    "licence file changed": (
        edited(f"{INFO}/licenses/LICENSE", "Version 2.0", "Version 2.1"),
        {"DIST203"},
    ),
    "dead link": (
        edited(f"{INFO}/METADATA", "[the site](https://pkgx.invalid/)", "[x](docs/a.md)"),
        {"DIST205"},
    ),
    "name in the metadata": (
        edited(f"{INFO}/METADATA", "\nName: pkgx\n", "\nName: pkgy\n"),
        {"DIST101"},
    ),
    "requirement added": (
        edited(
            f"{INFO}/METADATA", "License-File: NOTICE", "Requires-Dist: x\nLicense-File: NOTICE"
        ),
        {"DIST206"},
    ),
    "requirement lost": (
        edited(f"{INFO}/METADATA", "Requires-Dist: packaging>=24.2\n", ""),
        {"DIST206"},
    ),
    "other Python versions": (
        edited(f"{INFO}/METADATA", "Requires-Python: >=3.10", "Requires-Python: >=3.9"),
        {"DIST206"},
    ),
    "member not in RECORD": (_unrecorded, {"DIST301"}),
    "row removed from RECORD": (_record_without_row, {"DIST301"}),
    "row too many in RECORD": (_record_row_too_many, {"DIST301"}),
    "hash in RECORD": (_record_wrong("__init__.py,sha256=", "__init__.py,sha256=A"), {"DIST302"}),
    "size in RECORD": (_record_wrong(",18\n", ",19\n"), {"DIST302"}),
    "RECORD lists itself": (_record_wrong("RECORD,,", "RECORD,sha256=A,1"), {"DIST302"}),
    "row twice": (_record_row_twice, {"DIST303"}),
    "member twice": (_member_twice, {"DIST303"}),
    "same name in another case": (
        lambda a: a.add(f"{INFO}/licenses/License", b"x"),
        {"DIST303"},
    ),
    "absolute name": (lambda a: a.add("/etc/passwd"), {"DIST304", "DIST401"}),
    "climbing name": (lambda a: a.add(f"{INFO}/licenses/../../x"), {"DIST304"}),
    "backslash": (lambda a: a.add(f"{INFO}/licenses/a\\b"), {"DIST304"}),
    "executable": (lambda a: a.mode("pkgx/__init__.py", 0o100755), {"DIST305"}),
    "private": (lambda a: a.mode("pkgx/__init__.py", 0o100600), {"DIST305"}),
    "setuid": (lambda a: a.mode("pkgx/__init__.py", 0o104644), {"DIST305"}),
    "symbolic link": (lambda a: a.mode("pkgx/__init__.py", stat.S_IFLNK | 0o644), {"DIST306"}),
    "folder row": (lambda a: a.add("pkgx/data/", b"", 0o040755), {"DIST301", "DIST306"}),
    "another top-level folder": (lambda a: a.add("tests/test_it.py"), {"DIST401"}),
    "top-level file": (lambda a: a.add("pkgx.py"), {"DIST401"}),
    "unknown file in dist-info": (lambda a: a.add(f"{INFO}/top_level.txt"), {"DIST401"}),
    "py.typed missing": (lambda a: a.drop("pkgx/py.typed"), {"DIST402"}),
    "table changed": (
        edited("pkgx/profiles/data/gpu/table.json", "A GPU", "B GPU"),
        {"DIST402"},
    ),
    "source changed": (edited("pkgx/data/k.cu", "42", "43"), {"DIST402"}),
    "file that the tree lacks": (lambda a: a.add("pkgx/extra.py"), {"DIST403"}),
    "bytecode": (lambda a: a.add("pkgx/__pycache__/x.cpython-311.pyc"), {"DIST404"}),
    "editor's copy": (lambda a: a.add("pkgx/__init__.py.orig"), {"DIST404"}),
    "unlisted file in bin": (lambda a: a.add("pkgx/data/bin/log.txt"), {"DIST403", "DIST501"}),
    "no manifest": (
        lambda a: a.drop("pkgx/data/bin/manifest.json"),
        {"DIST402", "DIST501", "DIST503"},
    ),
    "manifest that is none": (
        lambda a: a.edit("pkgx/data/bin/manifest.json", lambda _: b"[]"),
        {"DIST402", "DIST501", "DIST503"},
    ),
    "version computed at run time": (
        edited("pkgx/_version.py", '"0.1.0"', 'str("0.1.0")'),
        {"DIST102", "DIST402"},
    ),
    "no metadata at all": (
        lambda a: a.drop(f"{INFO}/METADATA"),
        {"DIST101", "DIST102", "DIST103", "DIST104", "DIST105", "DIST201", "DIST202", "DIST203"}
        | {"DIST206", "DIST301", "DIST401"},
    ),
    "binary missing": (lambda a: a.drop("pkgx/data/bin/a.fatbin"), {"DIST402", "DIST501"}),
    "binary changed": (
        lambda a: a.edit("pkgx/data/bin/a.fatbin", lambda d: d[:-1] + b"\0"),
        {"DIST402", "DIST502"},
    ),
    "manifest of other bytes": (
        edited("pkgx/data/bin/manifest.json", sha256(FATBIN), sha256(b"")),
        {"DIST402", "DIST502"},
    ),
    "binary outside bin": (lambda a: a.add("pkgx/b.so"), {"DIST403", "DIST504"}),
    "pairing of another torch": (
        edited("pkgx/_reference.json", "2.7.1+cu128", "2.8.0"),
        {"DIST402", "DIST701"},
    ),
    "too large": (
        lambda a: a.add(f"{INFO}/licenses/LICENSES/big", bytes(2 << 20)),
        {"DIST601"},
    ),
}


def _rest(metadata: bytes) -> bytes:
    return metadata.split(b"\n", 1)[1]


@pytest.mark.parametrize("name", WHEEL_MUTANTS)
def test_each_wheel_mutant_is_caught_by_exactly_its_rules(
    name: str, built: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    root, wheel, _ = built
    change, expected = WHEEL_MUTANTS[name]
    archive = open_wheel(wheel)
    change(archive)
    assert codes(write(archive, tmp_path), root) == expected


TOP = "pkgx-0.1.0"
SDIST_MUTANTS: dict[str, tuple[Change, set[str]]] = {
    "LICENSE missing": (lambda a: a.drop(f"{TOP}/LICENSE"), {"DIST203", "DIST405"}),
    "a test missing": (lambda a: a.drop(f"{TOP}/tests/test_it.py"), {"DIST405"}),
    "pyproject missing": (lambda a: a.drop(f"{TOP}/pyproject.toml"), {"DIST405"}),
    "kernel source missing": (lambda a: a.drop(f"{TOP}/pkgx/data/k.cu"), {"DIST405"}),
    "source changed": (edited(f"{TOP}/pkgx/data/k.cu", "42", "43"), {"DIST405"}),
    "a binary": (
        lambda a: a.add(f"{TOP}/pkgx/data/bin/a.fatbin", FATBIN),
        {"DIST406"},
    ),
    "a log": (lambda a: a.add(f"{TOP}/docs/validation_logs/x.json"), {"DIST403", "DIST406"}),
    "old build output": (lambda a: a.add(f"{TOP}/build/lib/pkgx/x.py"), {"DIST404"}),
    "a page changed": (edited(f"{TOP}/docs/page.md", "A page", "Another"), {"DIST403"}),
    "foreign file": (lambda a: a.add(f"{TOP}/notes.txt"), {"DIST403"}),
    "executable without #!": (lambda a: a.mode(f"{TOP}/pyproject.toml", 0o100755), {"DIST305"}),
    "symbolic link": (
        lambda a: a.add(f"{TOP}/docs", b"/etc", stat.S_IFLNK | 0o777),
        {"DIST306"},
    ),
    "climbing name": (lambda a: a.add(f"{TOP}/../x"), {"DIST304", "DIST403"}),
    "member twice": (lambda a: a.members.append(a.members[0]), {"DIST303"}),
    "name of the folder": (
        lambda a: a.members.__setitem__(
            slice(None), [(n.replace(TOP, "pkgx"), d, m) for n, d, m in a.members]
        ),
        {"DIST105"},
    ),
}


@pytest.mark.parametrize("name", SDIST_MUTANTS)
def test_each_sdist_mutant_is_caught_by_exactly_its_rules(
    name: str, built: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    root, _, sdist = built
    change, expected = SDIST_MUTANTS[name]
    archive = open_sdist(sdist)
    change(archive)
    assert codes(write(archive, tmp_path), root) == expected


def test_what_was_built_passes_and_survives_taking_apart(
    built: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    root, wheel, sdist = built
    for path, opened in ((wheel, open_wheel(wheel)), (sdist, open_sdist(sdist))):
        assert codes(path, root) == set()
        assert codes(write(opened, tmp_path), root) == set()


# --- the tree ------------------------------------------------------------------------------------


def _listed_but_missing(root: Path) -> None:
    (root / "pkgx/data/bin/a.fatbin").unlink()


def _unlisted(root: Path) -> None:
    (root / "pkgx/data/bin/build_report.json").write_text("{}", encoding="utf-8")


def _other_bytes(root: Path) -> None:
    (root / "pkgx/data/bin/a.fatbin").write_bytes(FATBIN[::-1])


def _source_changed(root: Path) -> None:
    (root / "pkgx/data/k.cu").write_text(KERNEL.replace("42", "43"), encoding="utf-8")


def _executable(root: Path) -> None:
    (root / "pkgx/__init__.py").chmod(0o755)


TREE_MUTANTS: dict[str, tuple[Callable[[Path], None], set[str]]] = {
    "listed binary missing": (_listed_but_missing, {"FAT101"}),
    "unlisted file": (_unlisted, {"FAT101"}),
    "other bytes": (_other_bytes, {"FAT102"}),
    "source changed": (_source_changed, {"FAT103"}),
    "stray executable bit": (_executable, {"FAT104"}),
}


@pytest.mark.parametrize("name", TREE_MUTANTS)
def test_verify_manifest_catches_each_mutant_of_the_tree(
    name: str, project: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    add_binaries(project.root)
    arguments = ["--verify-manifest", "--source", str(project.root), "--json"]
    assert check_dist.main(arguments) == 0
    capsys.readouterr()
    change, expected = TREE_MUTANTS[name]
    change(project.root)
    assert check_dist.main(arguments) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert {finding["code"] for finding in found} == expected


def test_line_endings_are_told_apart_from_a_changed_source(repository: Any) -> None:
    # B27: a checkout with autocrlf changes the bytes of the kernel source, not the source.
    add_binaries(repository.root)
    repository.commit()
    git, kernel = repository.git, repository.root / "pkgx/data/k.cu"
    git("config", "core.autocrlf", "true")
    kernel.unlink()
    git("checkout", "--", "pkgx/data/k.cu")
    assert b"\r\n" in kernel.read_bytes()
    recorded = sha256(KERNEL.encode())
    said = source_state(recorded, kernel.read_bytes())
    assert said is not None
    assert "line endings" in said
    said = source_state(recorded, b"\xef\xbb\xbf" + KERNEL.encode())
    assert said is not None
    assert "byte order mark" in said
    said = source_state(recorded, KERNEL.rstrip("\n").encode())
    assert said is not None
    assert "source changed" in said
    assert source_state(recorded, KERNEL.encode()) is None
    # With the attribute that this repository uses, the checkout keeps LF.
    repository.write(".gitattributes", "* text=auto eol=lf\n")
    kernel.unlink()
    git("checkout", "--", "pkgx/data/k.cu")
    assert kernel.read_bytes() == KERNEL.encode()


# --- reported faults with the real build tools ---------------------------------------------------


def test_ignored_binaries_do_not_reach_the_wheel_unnoticed(project: Any, tmp_path: Path) -> None:
    # B01
    add_binaries(project.root)
    project.write(".gitignore", "*.fatbin\n")
    (wheel,) = build(project.root, tmp_path / "out", "--wheel")
    assert codes(wheel, project.root) == {"DIST402", "DIST501"}
    tree = load_tree(load_project(project.root))
    outcome = check_dist.check_files([wheel], tree, Options(None, False, 1 << 20))
    assert [finding.where for finding in outcome.findings] == [
        f"{WHEEL_NAME} pkgx/data/bin/a.fatbin"
    ]
    with (project.root / "pyproject.toml").open("a", encoding="utf-8") as stream:
        stream.write('\n[tool.hatch.build]\nartifacts = ["*.fatbin"]\n')
    (wheel,) = build(project.root, tmp_path / "out2", "--wheel")
    assert codes(wheel, project.root) == set()


def test_an_ignore_file_above_the_project_empties_nothing(project: Any, tmp_path: Path) -> None:
    # B04
    (tmp_path / ".gitignore").write_text("pkgx\n", encoding="utf-8")
    add_binaries(project.root)
    (wheel,) = build(project.root, tmp_path / "out", "--wheel")
    assert codes(wheel, project.root) == set()


def test_modes_and_umask(project: Any, tmp_path: Path) -> None:
    # B15: read permissions and umask leave the bytes alone, an executable bit does not.
    source = project.root / "pkgx" / "__init__.py"
    hashes = {}
    for mode, umask in ((0o644, 0o022), (0o600, 0o077), (0o755, 0o022)):
        source.chmod(mode)
        before = os.umask(umask)
        try:
            built = build(project.root, tmp_path / f"{mode:o}", "--sdist", "--wheel")
        finally:
            os.umask(before)
        hashes[mode] = [sha256(path.read_bytes()) for path in built]
    assert hashes[0o644] == hashes[0o600]
    assert not set(hashes[0o644]) & set(hashes[0o755])
    assert all(codes(path, project.root) == {"DIST305"} for path in built)


def test_stock_tools_pass_a_member_that_record_lacks(
    built: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    # B13
    root, wheel, _ = built
    path = Path(shutil.copy(wheel, tmp_path))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("pkgx/extra.py", "x = 1\n")
    twine = [sys.executable, "-m", "twine", "check", "--strict", str(path)]
    assert subprocess.run(twine, capture_output=True, check=False).returncode == 0
    found = codes(path, root)
    assert {"DIST301", "DIST403"} <= found


@pytest.mark.parametrize(
    "readme",
    [
        "[x](docs/a.md)",
        "![x](a.png)",
        "[x][y]\n\n[y]: a.md",
        '<img src="a.png">',
        "<script>1</script>",
    ],
)
def test_dead_links_that_twine_does_not_see(readme: str, project: Any, tmp_path: Path) -> None:
    # B10
    project.write("README.md", f"# pkgx\n\n{readme}\n\nSee `[not](a/link)` and [this](#pkgx).\n")
    (wheel,) = build(project.root, tmp_path / "out", "--wheel")
    twine = [sys.executable, "-m", "twine", "check", "--strict", str(wheel)]
    assert subprocess.run(twine, capture_output=True, check=False).returncode == 0
    assert codes(wheel, project.root) == {"DIST205"}


# --- the tag, the limit, the command line --------------------------------------------------------


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        ("v0.1.1", "another version"),
        ("v0.1.0rc1", "another version"),
        ("v0.1.0.dev1", "another version"),
        ("0.1.0", "the same version in another spelling"),
        ("v0.1", "the same version in another spelling"),
        ("V0.1.0", "the same version in another spelling"),
        ("vv0.1.0", "another version"),
    ],
)
def test_only_the_exact_tag_passes(
    tag: str,
    message: str,
    built: tuple[Path, Path, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    # B18
    root, wheel, _ = built
    assert check_dist.main([str(wheel), "--source", str(root), "--tag", tag]) == 1
    out = capsys.readouterr().out
    assert f"DIST103 the tag is {tag}, expected v0.1.0 ({message}" in out
    assert check_dist.main([str(wheel), "--source", str(root), "--tag", "v0.1.0"]) == 0


def test_metadata_version_is_compared_as_numbers(
    built: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    root, wheel, _ = built
    archive = open_wheel(wheel)
    archive.edit(f"{INFO}/METADATA", lambda data: b"Metadata-Version: 2.10\n" + _rest(data))
    assert codes(write(archive, tmp_path), root) == set()


def test_the_limit_itself_passes_and_one_byte_more_does_not(
    built: tuple[Path, Path, Path],
) -> None:
    root, wheel, _ = built
    tree, size = load_tree(load_project(root)), wheel.stat().st_size
    assert not check_dist.check_files([wheel], tree, Options(None, True, size)).findings
    outcome = check_dist.check_files([wheel], tree, Options(None, True, size - 1))
    assert [finding.code for finding in outcome.findings] == ["DIST601"]


def test_texts_of_the_tree_itself(project: Any, tmp_path: Path) -> None:
    licence = project.root / "LICENSE"
    licence.write_text(licence.read_text(encoding="utf-8") + "\nand more\n", encoding="utf-8")
    (wheel,) = build(project.root, tmp_path / "one", "--wheel")
    assert codes(wheel, project.root) == {"DIST204"}


def test_notice_must_quote_the_licence_of_others(project: Any, tmp_path: Path) -> None:
    project.write("NOTICE", "pkgx\n\nUses vectors of a toolbox.\n")
    (wheel,) = build(project.root, tmp_path / "one", "--wheel")
    assert codes(wheel, project.root) == {"DIST204"}


def test_a_table_of_another_platform_is_found(project: Any, tmp_path: Path) -> None:
    add_binaries(project.root)
    table = project.root / "pkgx/profiles/data/gpu/table.json"
    table.write_text('{"platform": {"cublaslt": "12.9.0.13"}}', encoding="utf-8")
    (wheel,) = build(project.root, tmp_path / "one", "--wheel")
    assert codes(wheel, project.root) == {"DIST701"}


def test_unusable_input(project: Any, tmp_path: Path) -> None:
    source = ["--source", str(project.root)]
    assert check_dist.main(source) == 2
    assert check_dist.main([str(tmp_path / "SHA256SUMS"), *source]) == 2
    broken = tmp_path / "pkgx-0.1.0-py3-none-any.whl"
    broken.write_bytes(b"not a zip file")
    assert check_dist.main([str(broken), *source]) == 2
    assert check_dist.main([str(project.root / "README.md"), *source]) == 2


def test_what_tools_leave_behind_is_no_part_of_the_tree(repository: Any) -> None:
    for name in ("tools/.mypy_cache/x.json", ".venv-3/a.py", "pkgx/__pycache__/a.pyc", "dist/a"):
        repository.write(name, "x")
    repository.write("pkgx/build/__init__.py", "")
    files = load_tree(load_project(repository.root)).files
    assert not [name for name in files if "cache" in name or name.startswith((".venv", "dist"))]
    assert "pkgx/build/__init__.py" in files

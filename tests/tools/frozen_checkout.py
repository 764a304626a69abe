"""A small checkout with one CUDA module and one CPU library, and the tools applied to it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import build_cpu
import build_fatbin
import freeze

if TYPE_CHECKING:
    import pytest

LINUX = build_cpu.TARGETS[0]
MODULES = """
MODULES = (
    ModuleSpec(
        name="tiny",
        source="tiny.cu",
        defines=("MMAEMU_ENTRY=tiny",),
        sass_archs=("80", "90a"),
        ptx_arch="75",
        entries=("tiny",),
        registers=32,
    ),
)
"""
TINY_H = """\
#define STEP 1.0f
#if __CUDA_ARCH__ == 900
#define SCALE 2.0f
#elif __CUDA_ARCH__ == 750
#define SCALE 3.0f
#else
#define SCALE 4.0f
#endif
"""
TINY_CU = """\
#include "../numerics/tiny.h"
extern "C" __global__ void MMAEMU_ENTRY(float *out) {
    out[threadIdx.x] = __fmul_rz(__fadd_rz(out[threadIdx.x], STEP), SCALE);
}
"""
CUDA_H, CPU_H = (
    "mmaemu/backends/csrc/numerics/tiny.h",
    "mmaemu/backends/csrc/numerics/value.h",
)
FILES = {
    "pyproject.toml": '[project]\nname = "mmaemu"\n',
    "mmaemu/_version.py": '__version__ = "0.1.0"\n',
    ".gitignore": "build/\n__pycache__/\n",
    CUDA_H: TINY_H,
    CPU_H: "#define VALUE 1\n",
    "mmaemu/backends/csrc/cuda/tiny.cu": TINY_CU,
}


def c_source() -> str:
    """The one source of the CPU library, with everything that one has to export."""
    functions = (
        f'__attribute__((visibility("default"))) int {symbol}(void) {{ return VALUE; }}\n'
        for symbol in sorted(build_cpu.EXPORTS)
    )
    return '#include "../numerics/value.h"\n' + "".join(functions)


def make_small(patch: pytest.MonkeyPatch) -> None:
    """Let the project's only CPU library be one source for Linux on x86_64."""
    patch.setattr(build_cpu, "TARGETS", (LINUX,))
    patch.setattr(build_cpu, "ISAS", {LINUX.architecture: {}})
    patch.setattr(build_cpu, "ONCE", {"entry": ()})


@dataclass(frozen=True)
class Checkout:
    """The checkout, and the tools applied to it."""

    root: Path

    def git(self, *arguments: str) -> str:
        """Run git under an identity that says nothing."""
        who = {f"GIT_{role}_{what}": "x" for role in ("AUTHOR", "COMMITTER") for what in ("NAME",)}
        mail = {f"GIT_{role}_EMAIL": "x@x.invalid" for role in ("AUTHOR", "COMMITTER")}
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.root,
            env={**os.environ, **who, **mail},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace a text in a file."""
        path = self.root / name
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")

    def freeze(self, *options: str, waive: bool = True) -> int:
        """Freeze 0.1.0, every device tier acknowledged."""
        waivers = [f"--device-not-run={tier}=no GPU here" for tier in freeze.DEVICE_TIERS]
        root = ["--root", str(self.root), "--version", "0.1.0"]
        return freeze.main([*root, *(waivers if waive else ()), *options])

    def fatbin(self, *options: str) -> int:
        """Run build_fatbin, with its output below the checkout."""
        out = str(self.root / "build" / "out")
        return build_fatbin.main(["--root", str(self.root), "--out", out, *options])

    def cpu(self, *options: str) -> int:
        """Run build_cpu."""
        return build_cpu.main(["--root", str(self.root), *options])

    def frozen(self) -> dict[str, bytes]:
        """Every file of both bin/ folders, by path."""
        return {
            path.relative_to(self.root).as_posix(): path.read_bytes()
            for folder in (build_fatbin.BIN, build_cpu.BIN)
            for path in sorted((self.root / folder).iterdir())
        }


@dataclass(frozen=True)
class Binary:
    """One frozen binary of the checkout.

    Attributes:
        checkout: the checkout.
        module: name that options take.
        folder: its bin/.
        name: of the file.
        header: a header that it is built from.
        value: a text of the header, and one with which the binary has other bytes.
        check: runs its checks.
        codes: of findings: file, bytes, sources.
    """

    checkout: Checkout
    module: str
    folder: str
    name: str
    header: str
    value: tuple[str, str]
    check: Callable[..., int]
    codes: Mapping[str, str]

    @property
    def path(self) -> Path:
        """The file."""
        return self.checkout.root / self.folder / self.name

    @property
    def entries(self) -> dict[str, Any]:
        """The entries of its manifest."""
        manifest = self.path.with_name("manifest.json")
        entries: dict[str, Any] = json.loads(manifest.read_text(encoding="utf-8"))["modules"]
        return entries

    @property
    def entry(self) -> dict[str, Any]:
        """Its entry."""
        found: dict[str, Any] = self.entries[self.name]
        return found

    def write_entry(self, entry: dict[str, Any] | None) -> None:
        """Edit the manifest by hand."""
        manifest = self.path.with_name("manifest.json")
        document = json.loads(manifest.read_text(encoding="utf-8"))
        document["modules"].pop(self.name, None)
        if entry is not None:
            document["modules"][self.name] = entry
        manifest.write_text(json.dumps(document), encoding="utf-8")

    def freeze(self, *options: str) -> int:
        """Freeze this binary alone."""
        return self.checkout.freeze("--modules", self.module, *options)

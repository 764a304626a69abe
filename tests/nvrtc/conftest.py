"""A small checkout with one CUDA module and one CPU library, frozen by real builds."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import build_cpu
import build_fatbin
from files import ROOT
from frozen_checkout import (
    CPU_H,
    CUDA_H,
    FILES,
    LINUX,
    MODULES,
    Binary,
    Checkout,
    c_source,
    make_small,
)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkout as it was frozen and committed."""
    root = tmp_path_factory.mktemp("frozen") / "checkout"
    specs = (ROOT / build_fatbin.SPECS).read_text(encoding="utf-8") + MODULES
    library = {f"{build_cpu.SOURCES}/entry.c": c_source()}
    for name, text in {**FILES, **library, build_fatbin.SPECS: specs}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    checkout = Checkout(root)
    assert checkout.fatbin("--replace", "tiny") == 0
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        assert checkout.cpu("--release") == 0
    checkout.git("init", "-q")
    checkout.git("add", "-A")
    checkout.git("commit", "-q", "-m", "Freeze")
    return root


@pytest.fixture
def checkout(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Checkout]:
    """A copy of the checkout elsewhere."""
    make_small(monkeypatch)
    yield Checkout(shutil.copytree(template, tmp_path / "another" / "place"))
    shutil.rmtree(tmp_path / "another")


@pytest.fixture(params=["tiny", LINUX.module])
def binary(request: pytest.FixtureRequest, checkout: Checkout) -> Binary:
    """The CUDA module, then the CPU library, as one that a device has validated."""
    if request.param == "tiny":
        found = Binary(
            checkout,
            "tiny",
            build_fatbin.BIN,
            "tiny.fatbin",
            CUDA_H,
            ("STEP 1.0f", "STEP 1.5f"),
            checkout.fatbin,
            {
                "file": "CUDA101",
                "bytes": "CUDA102",
                "sources": "CUDA103",
                "compiler": "CUDA104",
                "git": "CUDA110",
            },
        )
    else:
        found = Binary(
            checkout,
            LINUX.module,
            build_cpu.BIN,
            LINUX.file,
            CPU_H,
            ("VALUE 1", "VALUE 2"),
            checkout.cpu,
            {
                "file": "CPU101",
                "bytes": "CPU102",
                "sources": "CPU103",
                "compiler": "CPU104",
                "git": "CPU107",
            },
        )
    found.write_entry({**found.entry, "validated_on": ["a device"]})
    return found

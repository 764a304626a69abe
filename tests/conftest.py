"""Tiers by folder, and one set of hypothesis settings for every test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from mmaemu._settings import SETTINGS

# A test belongs to the tier of its folder unless it carries a tier mark of its own.
TIER_OF_FOLDER = {
    "tools": "t0",
    "unit": "t1",
    "property": "t1",
    "conformance": "t1",
    "replay": "t1",
    "cuda": "t3",
    "parity": "t3p",
    "mutants": "t4",
    "install": "t5",
    "performance": "t6",
    "site": "docs",
    "nvrtc": "nvrtc",
}
# Collected only when named on the command line: they need what only their own session installs.
ON_DEMAND = frozenset({"site", "nvrtc"})
# Marked one by one: the slower tests of the channels, which fetch installers, have a session.
TIERS = frozenset(TIER_OF_FOLDER.values()) | {"channels"}

# Examples are the same on every run, and a slow machine is no failure.
settings.register_profile("mmaemu", deadline=None, derandomize=True, print_blob=True)
# For mutants (--hypothesis-profile=unshrunk): that a test fails is all that is asked.
settings.register_profile(
    "unshrunk", settings.get_profile("mmaemu"), phases=(Phase.explicit, Phase.generate)
)
settings.load_profile("mmaemu")


def pytest_configure() -> None:
    """Forget the settings of whoever runs the tests, so that results do not depend on them."""
    for setting in SETTINGS:
        if setting.audience == "package":
            os.environ.pop(setting.variable, None)
    if "PYTEST_XDIST_WORKER" in os.environ:
        # There are as many workers as cores: more threads would only wait for each other.
        os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave folders on demand alone unless an argument names them or a file in them."""
    parts = collection_path.relative_to(config.rootpath / "tests").parts
    if parts[:1] and parts[0] in ON_DEMAND:
        named = any(f"tests/{parts[0]}" in str(argument) for argument in config.args)
        return None if named else True
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark every test with the tier of its folder."""
    root = config.rootpath / "tests"
    for item in items:
        if any(mark.name in TIERS for mark in item.iter_markers()):
            continue
        folder = Path(item.path).relative_to(root).parts[0]
        if folder not in TIER_OF_FOLDER:
            raise pytest.UsageError(
                f"tests/{folder} belongs to no tier; add it to TIER_OF_FOLDER in tests/conftest.py"
            )
        item.add_marker(TIER_OF_FOLDER[folder])

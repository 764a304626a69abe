from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

import channel_behaviour as behaviour


@pytest.mark.channels
def test_the_page_is_what_the_installers_do(tmp_path: Path) -> None:
    measured = behaviour.measure(tmp_path)
    assert behaviour.PAGE.read_text(encoding="utf-8") == behaviour.page(measured)


def test_the_page_is_of_the_installers_that_are_tested_with() -> None:
    text = behaviour.PAGE.read_text(encoding="utf-8")
    assert f"uv {metadata.version('uv')} `allow`" in text
    assert all(f"| pip {version} " in text for version in behaviour.PIPS)


@pytest.mark.parametrize(
    ("asked", "cells"),
    [
        ("usual", "0.1.1 | newest nightly | 0.1.1 | newest nightly"),
        ("usual<0.1.3", "0.1.1 | 0.1.1 | 0.1.1 | 0.1.1"),
        ("candidate", "0.1.1 | 0.1.3rc1 | 0.1.1 | 0.1.3rc1"),
        ("apart", "refused | newest nightly | newest nightly | refused | newest nightly"),
    ],
)
def test_what_the_runbooks_rely_on_is_on_the_page(asked: str, cells: str) -> None:
    assert f"| `{asked}` | {cells} |\n" in behaviour.PAGE.read_text(encoding="utf-8")

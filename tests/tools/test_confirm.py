from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version

import confirm
from files import sha256_of
from findings import InconclusiveError, apply_rules
from index_server import Fault
from package_index import Index, IndexFile
from publishing import Entry, Held, Manifest, load_manifest, write_manifest
from staging_world import World
from two_wheels import stand_in

NIGHTLY = "1.2.4.dev20261201080000"


def published(world: World, version: str = "1.2.3") -> Path:
    """The final 1.2.3 and a nightly after it are public; the manifest of one of them."""
    paths = [stand_in(world.dist, "sync-a", each) for each in ("1.2.3", NIGHTLY)]
    for path, each in zip(paths, ("1.2.3", NIGHTLY), strict=True):
        world.indexes["public"].put(path, each)
    entries = tuple(entry for entry in world.entries() if entry.version == version)
    return write_manifest(Manifest(entries, "run-1", "c" * 40), world.folder / "manifests")


@pytest.mark.channels
def test_a_release_is_what_users_get(world: World) -> None:
    done = world.run("confirm", str(published(world)))
    assert done.returncode == 0, done.stdout
    assert f"confirm: sync-a: plain gives 1.2.3, --pre gives {NIGHTLY}" in done.stdout


@pytest.mark.channels
def test_a_nightly_is_what_users_of_pre_get(world: World) -> None:
    done = world.run("confirm", str(published(world, NIGHTLY)))
    assert done.returncode == 0, done.stdout


@pytest.mark.channels
def test_a_lying_hash_is_found_by_us_and_by_pip(world: World) -> None:
    manifest = published(world)
    world.indexes["public"].faults.append(Fault("lie", "1.2.3"))
    done = world.run("confirm", str(manifest))
    assert done.returncode == 1, done.stdout
    assert "GATE301" in done.stdout
    assert "GATE304 the plain name gives ERROR: THESE PACKAGES DO NOT MATCH" in done.stdout


def test_what_is_not_there_in_time_is_not_confirmed(world: World) -> None:
    manifest = published(world)
    world.indexes["public"].faults.append(Fault("stale", "1.2.3"))
    done = world.run("confirm", str(manifest), "--wait", "0")
    assert done.returncode == 3, done.stdout
    assert "it does not list sync_a-1.2.3-py3-none-any.whl" in done.stdout


def test_an_index_that_is_down_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = load_manifest(published(world))
    public = world.indexes["public"]
    public.faults.append(Fault("error", "simple", times=2, status=503))
    monkeypatch.setattr(confirm, "_INTERVAL", 0.01)
    index = Index("public", public.url)
    assert list(confirm.poll(index, manifest, 30)) == ["sync_a-1.2.3-py3-none-any.whl"]
    public.faults.append(Fault("error", "simple", status=503))
    with pytest.raises(InconclusiveError, match="not confirmed in 0 s: the public index did not"):
        confirm.poll(index, manifest, 0)


def test_a_dry_run_asks_nobody(world: World) -> None:
    done = world.run("confirm", str(published(world)), "--dry-run")
    assert done.returncode == 0
    assert world.indexes["public"].log == []


# --- rules on records ---------------------------------------------------------------------------

WHEEL = "sync_a-1.2.3-py3-none-any.whl"


def facts(version: str = "1.2.3", **changes: object) -> confirm.Facts:
    file = f"sync_a-{version}-py3-none-any.whl"
    entry = Entry("sync-a", version, file, 5, sha256_of(b"bytes"))
    found = confirm.Facts(
        manifest=Manifest((entry,), "run", "commit"),
        there={file: Held(IndexFile(file, "", entry.sha256), b"bytes")},
        sums={file: entry.sha256},
        installed={file: version},
        versions={"sync-a": (Version("1.2.3"), Version(NIGHTLY))},
        plain={"sync-a": "1.2.3"},
        pre={"sync-a": NIGHTLY},
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def codes(found: confirm.Facts) -> set[str]:
    return {finding.code for finding in apply_rules(confirm.RULES, found).findings}


@pytest.mark.parametrize("version", ["1.2.3", NIGHTLY])
def test_all_is_well(version: str) -> None:
    assert codes(facts(version)) == set()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"there": {WHEEL: Held(IndexFile(WHEEL, ""), b"other")}}, "GATE301"),
        ({"there": {WHEEL: Held(IndexFile(WHEEL, "", "0" * 64), b"bytes")}}, "GATE301"),
        ({"sums": {}}, "GATE302"),
        ({"sums": {WHEEL: "0" * 64}}, "GATE302"),
        ({"installed": {WHEEL: "1.2.2"}}, "GATE303"),
        ({"installed": {WHEEL: "ERROR: hashes"}}, "GATE303"),
        ({"plain": {"sync-a": "1.2.2"}}, "GATE304"),
        ({"plain": {"sync-a": NIGHTLY}}, "GATE304"),
        ({"pre": {"sync-a": "1.2.3"}}, "GATE305"),
    ],
)
def test_each_thing_that_is_wrong_is_found(changes: dict[str, object], code: str) -> None:
    assert codes(replace(facts(), **changes)) == {code}  # type: ignore[arg-type]


def test_a_release_below_a_newer_one_is_found() -> None:
    versions = (Version("1.2.3"), Version("1.3.0"))
    found = facts(versions={"sync-a": versions}, plain={"sync-a": "1.3.0"}, pre={"sync-a": "1.3.0"})
    assert codes(found) == {"GATE304"}


def test_a_nightly_below_the_newest_final_is_found() -> None:
    versions = (Version(NIGHTLY), Version("1.2.4"))
    found = facts(
        NIGHTLY, versions={"sync-a": versions}, plain={"sync-a": "1.2.4"}, pre={"sync-a": "1.2.4"}
    )
    assert codes(found) == {"GATE305"}


def test_without_sums_the_rule_says_so() -> None:
    (skipped,) = apply_rules(confirm.RULES, facts(sums=None)).skipped
    assert skipped.code == "GATE302"

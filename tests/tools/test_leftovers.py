from __future__ import annotations

import pytest

import leftovers
from findings import UnusableError
from package_index import IndexFile
from staging_world import NIGHTLY, RELEASE, World
from two_wheels import stand_in


def test_leftovers_are_listed_with_what_is_public(world: World) -> None:
    for path in world.build(RELEASE):
        world.indexes["staging"].put(path)
    world.indexes["public"].put(world.dist / "sync_a-1.2.3-py3-none-any.whl")
    world.indexes["public"].put(stand_in(world.folder, "sync-b", RELEASE, ("sync-a",)))
    done = world.run("leftovers")
    assert done.returncode == 1, done.stdout
    for name, state in (("a", "public"), ("b", "public with other bytes"), ("c", "not public")):
        assert (
            f"sync_{name}-1.2.3-py3-none-any.whl: STAGE301 lies in staging ({state})" in done.stdout
        )
    assert len(world.held("staging")) == 3


def test_only_the_named_version_goes(world: World) -> None:
    for version in (RELEASE, NIGHTLY):
        for path in world.build(version):
            world.indexes["staging"].put(path, version)
    plan = world.run("leftovers", "--clean", NIGHTLY)
    assert plan.returncode == 0, plan.stdout
    assert plan.stdout.count("leftovers: delete ") == 3
    assert len(world.held("staging")) == 6
    world.kill_at("after-delete", 1, "leftovers", "--clean", NIGHTLY, "--execute")
    assert len(world.held("staging")) == 5
    done = world.run("leftovers", "--clean", NIGHTLY, "--execute")
    assert done.returncode == 0, done.stdout
    assert world.held("staging") == [f"sync_{name}-1.2.3-py3-none-any.whl" for name in "abc"]


def test_an_empty_staging_index_is_clean(world: World) -> None:
    done = world.run("leftovers")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("version", ["*", "all", ">=1", ""])
def test_only_an_explicit_version_is_taken(version: str) -> None:
    file = IndexFile("sync_a-1.2.3-py3-none-any.whl", "")
    with pytest.raises(UnusableError, match="--clean takes one version"):
        leftovers.chosen([leftovers.Leftover("sync-a", file, "public")], version)


def test_a_version_that_is_not_there_is_refused() -> None:
    with pytest.raises(UnusableError, match=r"staging holds no file of 9\.9\.9"):
        leftovers.chosen([], "9.9.9")

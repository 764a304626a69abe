from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import stage
from findings import UnusableError, apply_rules
from index_server import Fault
from publishing import Entry, load_manifest
from release_config import Abis, Distribution, VersionSource
from staging_world import NAMES, NIGHTLY, RELEASE, World, leaks
from two_wheels import stand_in

OVER = {"sync_b.py": bytes(1 << 20)}


def execute(world: World, channel: str, *more: str, **env: str) -> subprocess.CompletedProcess[str]:
    return world.run("stage", "--channel", channel, "--execute", *more, **env)


def test_a_nightly_goes_to_the_nightly_index_first_and_then_to_staging(world: World) -> None:
    built = sorted(path.name for path in world.build(NIGHTLY))
    moments: list[tuple[str, str]] = []
    for role, index in world.indexes.items():
        index.on_stored = lambda name, role=role: moments.append((role, name))
    done = execute(world, "nightly")
    assert done.returncode == 0, done.stdout
    assert moments == [("nightly", name) for name in built] + [("staging", name) for name in built]
    (path,) = world.manifests
    assert load_manifest(path).entries == world.entries()
    document = json.loads(path.read_text(encoding="utf-8"))
    assert (document["run"], document["commit"]) == ("run-1", "c" * 40)
    assert world.held("public") == []


def test_a_release_goes_to_staging_alone(world: World) -> None:
    built = sorted(path.name for path in world.build(RELEASE))
    done = execute(world, "release")
    assert done.returncode == 0, done.stdout
    assert world.held("staging") == built
    assert world.held("nightly") == []


def test_a_second_run_sends_nothing_and_writes_a_new_manifest(world: World) -> None:
    world.build(NIGHTLY)
    execute(world, "nightly")
    done = execute(world, "nightly")
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(": done ") == 6
    assert len(world.indexes["staging"].uploads()) == 3
    first, second = world.manifests
    assert load_manifest(first) == load_manifest(second)


def test_a_run_that_is_killed_after_every_upload_is_finished_by_the_next(world: World) -> None:
    built = sorted(path.name for path in world.build(NIGHTLY))
    for _ in range(6):
        world.kill_at("after-upload", 1, "stage", "--channel", "nightly", "--execute")
    assert world.manifests == []
    done = execute(world, "nightly")
    assert done.returncode == 0, done.stdout
    for role in ("nightly", "staging"):
        assert world.indexes[role].uploads() == built
        assert world.held(role) == built
    assert len(world.manifests) == 1


def test_without_execute_nothing_is_sent(world: World) -> None:
    world.build(NIGHTLY)
    done = world.run("stage", "--channel", "nightly")
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("staging: upload ") == 3
    assert {each.method for index in world.indexes.values() for each in index.log} == {"GET"}
    assert world.manifests == []


def test_publish_no_asks_no_index_and_prints_sizes(world: World) -> None:
    world.build(RELEASE)
    done = execute(world, "release", "--publish", "no", MMAEMU_STAGING_INDEX_URL="")
    assert done.returncode == 0, done.stdout
    assert "sync_a-1.2.3-py3-none-any.whl 967 bytes" in done.stdout
    assert all(index.log == [] for index in world.indexes.values())


def test_the_middle_file_over_the_limit_stops_a_release(world: World) -> None:
    world.build(RELEASE)
    stand_in(world.dist, "sync-b", RELEASE, files=OVER)
    done = execute(world, "release", PYPI_FILE_LIMIT_MB="1")
    assert done.returncode == 1, done.stdout
    assert "sync_b-1.2.3-py3-none-any.whl: STAGE106 1.00 MiB" in done.stdout
    assert {each.method for index in world.indexes.values() for each in index.log} == {"GET"}


def test_a_nightly_leaves_out_and_names_what_is_over_the_limit(world: World) -> None:
    world.build(NIGHTLY)
    stand_in(world.dist, "sync-b", NIGHTLY, files=OVER)
    done = execute(world, "nightly", PYPI_FILE_LIMIT_MB="1")
    assert done.returncode == 0, done.stdout
    assert f"not published, over the limit: sync_b-{NIGHTLY}-py3-none-any.whl" in done.stdout
    assert len(world.held("nightly")) == 3
    assert len(world.held("staging")) == 2
    assert {entry.project for entry in load_manifest(world.manifests[0]).entries} == {
        "sync-a",
        "sync-c",
    }


@pytest.mark.parametrize("role", ["staging", "nightly", "public"])
def test_other_bytes_under_a_name_are_an_error(world: World, role: str) -> None:
    world.build(NIGHTLY)
    world.indexes[role].put(stand_in(world.folder, "sync-b", NIGHTLY, ("sync-a",)))
    done = execute(world, "nightly")
    assert done.returncode == 1, done.stdout
    assert f"STAGE109 the {role} index holds it with other bytes" in done.stdout
    assert all(index.uploads() == [] for index in world.indexes.values())


def test_a_stale_file_of_the_same_version_is_an_error(world: World) -> None:
    world.build(NIGHTLY)
    stale = stand_in(world.folder, "sync-a", NIGHTLY)
    world.indexes["staging"].put(
        stale.rename(stale.with_name(f"sync_a-{NIGHTLY}-7-py3-none-any.whl")), NIGHTLY
    )
    done = execute(world, "nightly")
    assert done.returncode == 1, done.stdout
    assert f"sync_a-{NIGHTLY}-7-py3-none-any.whl: STAGE110" in done.stdout
    assert world.indexes["staging"].uploads() == []


@pytest.mark.parametrize(
    ("fault", "code", "staged"),
    [
        (Fault("error", r"POST .*sync_b", status=400), 1, 1),
        (Fault("error", r"POST .*sync_b"), 3, 1),
        (Fault("hang", r"POST .*sync_b", times=1), 3, 1),
        (Fault("error", r"GET /simple"), 3, 0),
        (Fault("lie", r"sync_b"), 1, 2),
    ],
    ids=["400", "500", "timeout", "no pages", "lying hash"],
)
def test_a_staging_index_that_fails(world: World, fault: Fault, code: int, staged: int) -> None:
    world.build(RELEASE)
    world.indexes["staging"].faults.append(fault)
    done = execute(world, "release")
    assert done.returncode == code, done.stdout
    assert len(world.held("staging")) == staged
    assert world.manifests == []
    assert not leaks(done.stdout)
    world.indexes["staging"].faults.clear()
    done = execute(world, "release")
    assert done.returncode == 0, done.stdout
    assert len(world.indexes["staging"].uploads()) == 3


def test_only_limits_a_release(world: World) -> None:
    world.build(RELEASE, NAMES[:1])
    assert "STAGE104" in execute(world, "release").stdout
    done = execute(world, "release", "--only", "sync_a")
    assert done.returncode == 0, done.stdout
    assert len(world.held("staging")) == 1


def test_a_nightly_says_what_it_lacks(world: World) -> None:
    world.build(NIGHTLY, NAMES[:2])
    done = execute(world, "nightly")
    assert done.returncode == 0, done.stdout
    assert "missing in this nightly: wheel of sync-c" in done.stdout


def test_files_that_changed_since_the_build_are_refused(world: World) -> None:
    paths = world.build(RELEASE)
    lines = [f"{entry.sha256}  {entry.file}\n" for entry in world.entries()]
    (world.dist / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")
    assert execute(world, "release", "--publish", "no").returncode == 0
    stand_in(world.dist, "sync-a", RELEASE, ("sync-b",))
    done = execute(world, "release")
    assert f"{paths[0].name}: STAGE107" in done.stdout
    assert done.returncode == 1


def test_a_further_manifest_needs_the_files_in_staging(world: World) -> None:
    world.build(RELEASE)
    execute(world, "release")
    assert world.run("manifest").returncode == 0
    assert len(world.manifests) == 2
    shown = world.run("manifest", "--dry-run")
    assert '"publish_all": false' in shown.stdout
    assert len(world.manifests) == 2
    world.indexes["staging"].remove("sync_b-1.2.3-py3-none-any.whl")
    done = world.run("manifest")
    assert done.returncode == 1, done.stdout
    assert "STAGE202 staging does not hold sync_b" in done.stdout
    assert len(world.manifests) == 2


# --- rules on records ---------------------------------------------------------------------------


def row(name: str = "sync-a", kinds: Sequence[str] = ("wheel",)) -> Distribution:
    source = VersionSource("pyproject.toml", "project.version", "environment")
    return Distribution(name, source, "a.py", ("true",), tuple(kinds))


def entry(version: str = RELEASE, size: int = 100, kind: str = "wheel") -> Entry:
    ending = "-py3-none-any.whl" if kind == "wheel" else ".tar.gz"
    return Entry("sync-a", version, f"sync_a-{version}{ending}", size, "a" * 64)


def facts(*entries: Entry, channel: str = "release", **changes: object) -> stage.Facts:
    found = stage.Facts(
        channel=channel,
        entries=entries,
        members={each.file: frozenset({"sync_a.py"}) for each in entries},
        distributions=(row(),),
        limit=100,
        sums=None,
        twine=(0, ""),
        there={},
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def codes(found: stage.Facts) -> set[str]:
    return {finding.code for finding in apply_rules(stage.PREFLIGHT, found).findings}


def test_equal_to_the_limit_passes_and_one_byte_more_does_not() -> None:
    assert codes(facts(entry(size=100))) == set()
    assert codes(facts(entry(size=101))) == {"STAGE106"}
    assert codes(facts(entry(NIGHTLY, 101), channel="nightly")) == set()
    assert facts(entry(NIGHTLY, 101), channel="nightly").publishable == ()


@pytest.mark.parametrize(
    ("channel", "version"),
    [
        ("release", NIGHTLY),
        ("release", "1.2.3rc1"),
        ("release", "1.2.3.post1"),
        ("nightly", RELEASE),
        ("nightly", "1.2.3.dev1"),
        ("nightly", "1.2.3.dev20261399080000"),
    ],
)
def test_a_version_belongs_to_its_channel(channel: str, version: str) -> None:
    assert codes(facts(entry(version), channel=channel)) == {"STAGE102"}


def test_twine_has_its_say() -> None:
    assert codes(facts(entry(), twine=(1, "no description"))) == {"STAGE108"}


def test_versions_are_not_mixed() -> None:
    assert codes(facts(entry(), entry("1.2.4"))) == {"STAGE103"}


def test_a_release_has_every_kind() -> None:
    both = (row(kinds=("wheel", "sdist")),)
    assert codes(facts(entry(), distributions=both)) == {"STAGE104"}
    assert codes(facts(entry(), entry(kind="sdist"), distributions=both)) == set()


def test_a_nightly_has_no_sdist() -> None:
    assert codes(facts(entry(NIGHTLY, kind="sdist"), channel="nightly")) == {"STAGE102"}


def test_a_stranger_is_not_staged() -> None:
    other = Entry("other", RELEASE, "other-1.2.3-py3-none-any.whl", 1, "a" * 64)
    assert codes(facts(entry(), other)) == {"STAGE101"}


def test_a_narrowed_build_is_staged_only_as_such() -> None:
    abis = Abis(("2.11.0", "2.12.0"), "ABIS", "sync_a/_C_{abi}.so", "exports")
    rows = (replace(row(), abis=abis),)
    built = facts(entry(), members={entry().file: frozenset({"sync_a/_C_2.11.0.so"})})
    assert codes(replace(built, distributions=rows)) == {"STAGE105"}
    narrowed = stage.distributions(rows, abis=["2.11.0"])
    assert codes(replace(built, distributions=narrowed)) == set()


@pytest.mark.parametrize(
    ("only", "abis", "message"),
    [(["other"], [], "no distribution .* called other"), ([], ["3.0.0"], "no ABI .* called 3.0.0")],
)
def test_a_wrong_name_is_refused(only: list[str], abis: list[str], message: str) -> None:
    with pytest.raises(UnusableError, match=message):
        stage.distributions((row(),), only, abis)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnusableError, match="holds no wheel or sdist to stage"):
        stage.built(tmp_path, ())


def test_the_build_states_hashes_and_commit(world: World) -> None:
    (path,) = world.build(NIGHTLY, NAMES[:1])
    (found,) = world.entries()
    document = {
        "schema": "nightly-manifest/1",
        "version": NIGHTLY,
        "base": RELEASE,
        "commit": "d" * 40,
        "tree": "e" * 40,
        "started_at": "2026-11-30T08:00:00Z",
        "builder": "somebody",
        "files": [{"file": path.name, "size": found.size, "sha256": found.sha256}],
        "pairing": {},
        "missing": [],
        "published": [],
    }
    manifest = world.dist / f"nightly-manifest-{NIGHTLY}.json"
    manifest.write_text(json.dumps(document), encoding="utf-8")
    assert stage.recorded(world.dist) == {path.name: found.sha256}
    (world.dist / "nightly-manifest-2.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UnusableError, match="holds several builds"):
        stage.recorded(world.dist)

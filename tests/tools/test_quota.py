from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone

import pytest

import quota
from findings import apply_rules
from staging_world import NIGHTLY, RELEASE, World

NOW = datetime(2026, 11, 30, 8, tzinfo=timezone.utc)
MIB = 1 << 20


def nightlies(days: int, size: int) -> tuple[quota.Stored, ...]:
    """One nightly a day up to now."""
    return tuple(
        quota.Stored(f"n{day}.whl", size, NOW - timedelta(days=day)) for day in range(days)
    )


def usage(files: tuple[quota.Stored, ...], limit: int) -> quota.Usage:
    return quota.Usage("sync-a", files, limit, NOW, 30)


def test_the_rate_is_that_of_the_last_days() -> None:
    old = quota.Stored("old.whl", 1000 * MIB, NOW - timedelta(days=31))
    final = quota.Stored("final.whl", 500 * MIB, None)
    found = usage((*nightlies(30, 10 * MIB), old, final), 10 << 30)
    assert found.used == 1800 * MIB
    assert found.daily == pytest.approx(300 * MIB / 29)
    assert found.days_left == pytest.approx(((10 << 30) - 1800 * MIB) / (300 * MIB / 29))


def test_a_project_without_nightlies_lasts_for_ever() -> None:
    found = usage((quota.Stored("final.whl", MIB, None),), 10 << 30)
    assert math.isinf(found.days_left)
    assert "no nightlies" in str(found)


def test_a_full_project_has_no_days_left() -> None:
    assert usage((quota.Stored("final.whl", MIB, None),), MIB).days_left == 0
    assert usage(nightlies(3, MIB), 2 * MIB).days_left == 0


@pytest.mark.parametrize(("limit", "findings"), [(60, 1), (61, 0)])
def test_less_than_a_month_is_a_finding(limit: int, findings: int) -> None:
    found = usage(nightlies(2, MIB), 2 * MIB + limit * MIB)
    assert found.daily == 2 * MIB
    found = quota.Usage("sync-a", found.files, limit * MIB + found.used - 1, NOW, 30)
    assert len(apply_rules(quota.RULES, (found,)).findings) == findings


def test_the_report_is_of_the_index_and_says_how_to_ask(world: World) -> None:
    for version in (RELEASE, NIGHTLY):
        for path in world.build(version):
            world.indexes["public"].put(path, version)
    done = world.run("quota", "--sizes", str(world.dist), PYPI_FILE_LIMIT_MB="7")
    assert done.returncode == 0, done.stdout
    assert "quota: sync-b: 2 files, 0.00 MiB of 10,240.00 MiB" in done.stdout
    assert "largest file 0.00 MiB, limit 7.00 MiB" in done.stdout
    assert "--publish no" in done.stdout
    assert "PYPI_PROJECT_QUOTA_GB" in done.stdout

from __future__ import annotations

import datetime as dt
import itertools

import pytest
from packaging.version import Version

import channels
from channels import Known, Next
from findings import UnusableError, apply_rules

UTC = dt.timezone.utc
NOON = dt.datetime(2026, 12, 1, 12, 0, 0, 400_000, tzinfo=UTC)
STAMPED = ".dev20261201080000"


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        ".dev",
        "dev20261201080000",
        ".dev2026120108000",
        ".dev202612010800000",
        ".dev20261301080000",
        ".dev20260230080000",
        ".dev20261201240000",
        ".dev20261201080060",
        ".dev00000101000000",
        STAMPED.translate({ord("0") + digit: 0xFF10 + digit for digit in range(10)}),
        ".dev20261201080000\n",
        ".dev20261201080000+x",
        ".rc20261201080000",
        "0.4.0.dev20261201080000",
    ],
)
def test_an_empty_or_mistyped_suffix_is_an_error(text: str) -> None:
    with pytest.raises(UnusableError, match=r"expected \.devYYYYMMDDHHMMSS"):
        channels.given_suffix("nightly", text)


def test_the_suffix_belongs_to_the_channel() -> None:
    assert channels.given_suffix("nightly", STAMPED) == STAMPED
    assert channels.given_suffix("nightly", None) is None
    assert channels.given_suffix("release", None) == channels.given_suffix("release", "") == ""
    with pytest.raises(UnusableError, match="a release has no suffix"):
        channels.given_suffix("release", STAMPED)


@pytest.mark.parametrize(("text", "base"), [("0.4.0", "0.4.0"), ("1.20.3.dev0", "1.20.3")])
def test_the_base_version(text: str, base: str) -> None:
    assert channels.base_of(text) == base


@pytest.mark.parametrize("text", ["0.4", "0.4.0.1", "0.4.0rc1", "v0.4.0", "01.4.0", "0.4.0+x", ""])
def test_what_is_no_base_version(text: str) -> None:
    with pytest.raises(UnusableError, match=r"expected a base version X\.Y\.Z"):
        channels.base_of(text)


def test_a_stamp_is_a_second_of_utc_whatever_the_clock_on_the_wall_does() -> None:
    # The night on which Berlin's clocks show half past two twice, an hour apart.
    summer = dt.datetime(2026, 10, 25, 2, 30, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    winter = dt.datetime(2026, 10, 25, 2, 30, tzinfo=dt.timezone(dt.timedelta(hours=1)))
    assert channels.suffix_of(summer) == ".dev20261025003000"
    assert channels.suffix_of(winter) == ".dev20261025013000"
    assert channels.stamp_of(Version("0.4.0.dev20261025013000")) == winter
    assert channels.stamp_of(Version("0.4.0.dev7")) is None
    assert channels.stamp_of(Version("0.4.0")) is None


def test_a_stamp_is_later_than_every_known_nightly_of_the_base() -> None:
    names = [
        ("0.4.0.dev20261201115958", False),
        ("0.4.dev20261201115959", True),  # the same base in another spelling, yanked
        ("0.5.0.dev20271201000000", False),  # another base
        ("0.4.0.dev99999999999999", False),  # no second of any clock
        ("not a version", False),
    ]
    newest = channels.newest_stamp("0.4.0", channels.versions(names))
    assert newest == NOON.replace(second=59, minute=59, hour=11, microsecond=0)
    assert channels.newest_stamp("0.6.0", channels.versions(names)) is None


def test_a_run_in_the_same_second_waits_for_the_next_one() -> None:
    second = NOON.replace(microsecond=0)
    assert channels.waiting(NOON, None) == dt.timedelta(0)
    assert channels.waiting(NOON, second - dt.timedelta(seconds=1)) == dt.timedelta(0)
    wait = channels.waiting(NOON, second)
    assert wait == dt.timedelta(milliseconds=600)
    assert channels.suffix_of(NOON + wait) == ".dev20261201120001"


@pytest.mark.parametrize("behind", [dt.timedelta(seconds=3), dt.timedelta(hours=1)])
def test_a_clock_that_goes_back_is_refused(behind: dt.timedelta) -> None:
    with pytest.raises(UnusableError, match=r"the clock says 2026-12-01T12:00:00Z.*set the clock"):
        channels.waiting(NOON, NOON + behind)


JUDGED: list[tuple[str, str, dict[str, bool], set[str]]] = [
    ("nightly", STAMPED, {}, set()),
    ("nightly", STAMPED, {"0.3.9": False, "0.4.0.dev20261201075959": False}, set()),
    # The same version: a run that finishes what another began.
    ("nightly", STAMPED, {"0.4.0.dev20261201080000": False}, set()),
    ("nightly", STAMPED, {"0.4.0.dev20261201080001": False}, {"NIGHT104"}),
    ("nightly", STAMPED, {"0.4.0.dev20261201080001": True}, {"NIGHT104"}),
    ("nightly", STAMPED, {"0.4.0": False}, {"NIGHT102"}),
    ("nightly", STAMPED, {"0.4.0": True}, {"NIGHT102"}),
    ("nightly", STAMPED, {"0.4.0.post1": False}, {"NIGHT102"}),
    ("nightly", STAMPED, {"0.10.0": False}, {"NIGHT102"}),
    ("nightly", STAMPED, {"0.4.0a1": False}, {"NIGHT103"}),
    ("nightly", STAMPED, {"0.4.0b2.dev1": False}, {"NIGHT103"}),
    ("nightly", STAMPED, {"0.4rc1": False}, {"NIGHT103"}),
    ("nightly", STAMPED, {"0.4.0rc1": True}, set()),
    ("nightly", STAMPED, {"0.3.0rc1": False}, set()),
    ("nightly", STAMPED, {"0.5.0.dev20261101000000": False}, {"NIGHT104"}),
    ("nightly", STAMPED, {"0.5.0.dev20261101000000": True}, set()),
    ("release", "", {"0.3.9": False, "0.4.0rc1": False, "0.4.0.dev20261201080000": False}, set()),
    ("release", "", {"0.4.0": False}, set()),
    ("release", "", {"0.4.1": False}, {"NIGHT102"}),
]


@pytest.mark.parametrize(("channel", "suffix", "known", "codes"), JUDGED)
def test_which_version_may_come_next(
    channel: str, suffix: str, known: dict[str, bool], codes: set[str]
) -> None:
    rows = tuple(Known(Version(text), yanked) for text, yanked in known.items())
    outcome = apply_rules(channels.RULES, Next(channel, {"x": "0.4.0"}, suffix, rows))
    assert {finding.code for finding in outcome.findings} == codes


def test_what_passes_is_what_an_installer_takes() -> None:
    """The reason of the rules: with --pre the newest version by PEP 440 wins."""
    mine = Version("0.4.0" + STAMPED)
    for (channel, _, known, codes), (text, yanked) in (
        (row, item) for row in JUDGED for item in row[2].items()
    ):
        if channel == "nightly" and not yanked and Version(text) > mine:
            assert codes, f"{text} hides {mine}"
        if channel == "nightly" and not codes:
            assert all(hidden or Version(each) <= mine for each, hidden in known.items())


def test_distributions_state_one_base() -> None:
    version = Next("nightly", {"a": "0.4.0", "b": "0.4.1"}, STAMPED, ())
    found = apply_rules(channels.RULES, version).findings
    assert [(each.code, each.where) for each in found] == [("NIGHT101", "b")]
    # A placeholder between releases is a base for a nightly, and no release.
    assert not apply_rules(channels.RULES, Next("nightly", {"a": "0.4.0.dev0"}, "", ())).findings
    found = apply_rules(channels.RULES, Next("release", {"a": "0.4.0.dev0"}, "", ())).findings
    assert [each.code for each in found] == ["NIGHT101"]


def test_without_an_index_nothing_is_taken_for_granted() -> None:
    outcome = apply_rules(channels.RULES, Next("nightly", {"a": "0.4.0"}, STAMPED, None))
    assert [each.code for each in outcome.skipped] == ["NIGHT102", "NIGHT103", "NIGHT104"]


KNOWN = ("0.10.0", "0.11.1", "0.11.2")


def test_a_build_tag_is_the_version_without_dots() -> None:
    assert channels.build_tag("0.11.2", KNOWN) == "0112"
    assert channels.build_tag("0.10.0", KNOWN) == "0100"


def test_tags_of_all_known_versions_differ() -> None:
    tags = [channels.build_tag(version, KNOWN) for version in KNOWN]
    assert all(a != b for a, b in itertools.combinations(tags, 2))


@pytest.mark.parametrize(
    ("version", "known", "words"),
    [
        ("0.1.12", (*KNOWN, "0.1.12"), "0.1.12 and 0.11.2 have the same build tag 0112"),
        ("0.1.12", KNOWN, "have the same build tag"),
        ("0.11.3", KNOWN, "add it to build_tag.known"),
        ("0.11.2rc1", (*KNOWN, "0.11.2rc1"), "numbers and dots only"),
        ("0.11.2+cu1", KNOWN, "numbers and dots only"),
        ("", KNOWN, "numbers and dots only"),
    ],
)
def test_a_build_tag_is_refused(version: str, known: tuple[str, ...], words: str) -> None:
    with pytest.raises(UnusableError, match=words.replace(".", r"\.").replace("+", r"\+")):
        channels.build_tag(version, known)

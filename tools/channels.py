"""Versions of the two channels: nightly X.Y.Z.devYYYYMMDDHHMMSS and release X.Y.Z.

Pure: the clock, the index and the files are what the caller says they are. A stamp is a second of
UTC, so that time zones and their changes play no part, and later than every nightly of its base.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from packaging.version import Version

from findings import Rule, SkipRule, UnusableError
from project import parse_version

Problems = Iterator[tuple[str, str]]
NIGHTLY: Final = "nightly"
RELEASE: Final = "release"
CHANNELS: Final = (NIGHTLY, RELEASE)
EXTRAS: Final = "WHEEL_VERSION_EXTRAS"
_STAMP: Final = "%Y%m%d%H%M%S"
_SUFFIX: Final = re.compile(r"\.dev([0-9]{14})")
_BASE: Final = re.compile(r"((?:0|[1-9][0-9]*)(?:\.(?:0|[1-9][0-9]*)){2})(\.dev[0-9]+)?")
_RELEASED: Final = re.compile(r"[0-9]+(\.[0-9]+)*")
# Runs that follow each other within a second wait for the next one; a clock that is off does not.
PATIENCE: Final = dt.timedelta(seconds=2)
_SECOND: Final = dt.timedelta(seconds=1)


@dataclass(frozen=True, slots=True, order=True)
class Known:
    """A version that exists.

    Attributes:
        version: the version.
        yanked: whether installers avoid it.
    """

    version: Version
    yanked: bool = False


@dataclass(frozen=True, slots=True)
class Next:
    """A version that is to come next.

    Attributes:
        channel: "nightly" or "release".
        bases: the version that the tree states, by distribution.
        suffix: what is appended.
        known: every version that exists of any of the distributions, None where that was not asked.
    """

    channel: str
    bases: dict[str, str]
    suffix: str
    known: tuple[Known, ...] | None

    @property
    def base(self) -> str:
        """X.Y.Z of the first distribution; see `base_of`."""
        return base_of(next(iter(self.bases.values())))

    @property
    def version(self) -> str:
        """The version."""
        return self.base + self.suffix


def base_of(text: str) -> str:
    """X.Y.Z of what a tree states: X.Y.Z, or X.Y.Z.devN between releases.

    Raises:
        UnusableError: anything else.
    """
    found = _BASE.fullmatch(text)
    if found is None:
        raise UnusableError(f"expected a base version X.Y.Z or X.Y.Z.devN, the tree says {text!r}")
    return found[1]


def suffix_of(moment: dt.datetime) -> str:
    """The suffix of a nightly stamped at a moment.

    Args:
        moment: any aware time.
    """
    return f".dev{moment.astimezone(dt.timezone.utc).strftime(_STAMP)}"


def stamp_of(version: Version) -> dt.datetime | None:
    """The second that a nightly was stamped with, None for any other version."""
    return _moment(f".dev{version.dev}") if version.dev is not None else None


def _moment(suffix: str) -> dt.datetime | None:
    found = _SUFFIX.fullmatch(suffix)
    try:
        return dt.datetime.strptime(f"{found[1]}+0000", f"{_STAMP}%z") if found else None
    except ValueError:
        return None


def given_suffix(channel: str, text: str | None) -> str | None:
    """The suffix that the caller asks for, None where the clock is to decide.

    Args:
        channel: "nightly" or "release".
        text: value of WHEEL_VERSION_EXTRAS, None where it is not set.

    Raises:
        UnusableError: it is not that channel's suffix.
    """
    if channel == RELEASE:
        if text:
            raise UnusableError(
                f"a release has no suffix, {EXTRAS} is {text!r}; unset it, or build a nightly"
            )
        return ""
    if text is not None and _moment(text) is None:
        raise UnusableError(
            f"expected .devYYYYMMDDHHMMSS with a second of UTC, {EXTRAS} is {text!r}; correct it, "
            "or unset it and the clock decides"
        )
    return text


def newest_stamp(base: str, known: Iterable[Known]) -> dt.datetime | None:
    """The latest stamp among the nightlies of a base, yanked ones included."""
    stamps = [stamp_of(each.version) for each in known if _is_of(each.version, base)]
    return max((stamp for stamp in stamps if stamp is not None), default=None)


def _is_of(version: Version, base: str) -> bool:
    """Whether a version has a base, however it spells it (0.4rc1 is of 0.4.0)."""
    return Version(version.base_version) == Version(base)


def waiting(now: dt.datetime, newest: dt.datetime | None) -> dt.timedelta:
    """How long to wait until the clock shows a second that is later than a stamp.

    Args:
        now: any aware time.
        newest: the stamp, None for none.

    Raises:
        UnusableError: the clock is so far behind that it must be wrong.
    """
    if newest is None or now >= newest + _SECOND:
        return dt.timedelta(0)
    wait = newest + _SECOND - now
    if wait > PATIENCE:
        raise UnusableError(
            f"the clock says {now.astimezone(dt.timezone.utc):%Y-%m-%dT%H:%M:%SZ}, the newest "
            f"nightly is of {newest:%Y-%m-%dT%H:%M:%SZ}; set the clock, stamps only grow"
        )
    return wait


def build_tag(version: str, known: Sequence[str]) -> str:
    """The build tag for a version that a wheel was built against: its digits, dots removed.

    Args:
        version: such as 0.11.2, which gives 0112.
        known: every version that was ever built against.

    Raises:
        UnusableError: it is no plain release, not among the known ones, or has the digits of
            another one.
    """
    if not _RELEASED.fullmatch(version):
        raise UnusableError(f"no build tag for {version!r}: expected numbers and dots only")
    digits = version.replace(".", "")
    for other in known:
        if other != version and other.replace(".", "") == digits:
            raise UnusableError(
                f"{version} and {other} have the same build tag {digits}; build against another "
                "version"
            )
    if version not in known:
        raise UnusableError(f"{version} is not among the known versions; add it to build_tag.known")
    return digits


# --- rules ---------------------------------------------------------------------------------------


def _one_base(version: Next) -> Problems:
    for name, text in version.bases.items():
        stated = base_of(text)
        if stated != version.base:
            yield name, f"its base version is {stated}, expected {version.base}; state it once"
        if version.channel == RELEASE and text != stated:
            yield name, f"the tree says {text}; set {stated} with `invoke version` first"


def _known(version: Next) -> tuple[Known, ...]:
    if version.known is None:
        raise SkipRule("no index was asked (--local); nothing is uploaded")
    return version.known


def _above_finals(version: Next) -> Problems:
    finals = [each.version for each in _known(version) if not each.version.is_prerelease]
    newest = max(finals, default=None)
    if newest is None:
        return
    same = version.channel == RELEASE and newest == Version(version.version)
    if Version(version.base) <= newest and not same:
        yield version.version, f"{newest} is released; bump the base version above it"


def _no_candidate(version: Next) -> Problems:
    if version.channel == RELEASE:
        return
    for each in _known(version):
        hides = each.version.pre is not None and not each.yanked
        if hides and _is_of(each.version, version.base):
            yield (
                version.version,
                f"{each.version} exists and hides nightlies of {version.base}; bump the base "
                "version or yank it",
            )


def _newest(version: Next) -> Problems:
    if version.channel == RELEASE:
        return
    mine = Version(version.version)
    for each in _known(version):
        nightly = each.version.is_devrelease and each.version.pre is None
        counts = _is_of(each.version, version.base) or not each.yanked
        if nightly and each.version > mine and counts:
            yield version.version, f"{each.version} exists and is later; stamps and bases only grow"


RULES: Final[tuple[Rule[Next], ...]] = (
    Rule("NIGHT101", "All distributions state one base version X.Y.Z.", _one_base),
    Rule("NIGHT102", "The base version is above the newest final.", _above_finals),
    Rule("NIGHT103", "No alpha, beta or candidate of the base hides its nightlies.", _no_candidate),
    Rule("NIGHT104", "A nightly is later than every known nightly.", _newest),
)


def versions(names: Iterable[tuple[str, bool]]) -> Iterator[Known]:
    """The versions among texts that may be none, each with whether it is yanked."""
    for text, yanked in names:
        parsed = parse_version(text)
        if parsed is not None:
            yield Known(parsed, yanked)

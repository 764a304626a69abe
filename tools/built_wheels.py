"""Rules on freshly built distributions: names, versions, build tag, variants.

They look at the files alone, so that whatever built them has no say.
"""

from __future__ import annotations

import email
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import channels
from binaries import read_binary
from findings import Rule, UnusableError
from pins import Pinned
from project import version_in
from publishing import Entry, entry_of
from release_config import Distribution

Problems = Iterator[tuple[str, str]]
_WITH_BUILD_TAG: Final = 6


@dataclass(frozen=True, slots=True)
class Built:
    """One file as built.

    Attributes:
        path: the file.
        row: its distribution.
        kind: "wheel" or "sdist".
        version: what it should be.
        entry: as its own metadata and bytes say.
        members: bytes by name of a wheel, empty for an sdist.
        pinned: its exact requirements, None for an sdist.
        abis: the variants that it should have.
        exports: what each exports.
        rejected: what the project's own command says against the file, "" for nothing.
    """

    path: Path
    row: Distribution
    kind: str
    version: str
    entry: Entry
    members: dict[str, bytes]
    pinned: Pinned | None
    abis: tuple[str, ...] = ()
    exports: tuple[str, ...] = ()
    rejected: str = ""

    @property
    def name(self) -> str:
        """File name."""
        return self.path.name

    @property
    def stem(self) -> str:
        """How the file name must begin."""
        return f"{self.row.name.replace('-', '_')}-{self.version}"


def read_members(path: Path) -> dict[str, bytes]:
    """The bytes of a wheel's members by name.

    Raises:
        UnusableError: it is no wheel.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile) as error:
        raise UnusableError(f"{path.name} is no wheel: {error}") from error


def read_entry(path: Path) -> Entry:
    """What a distribution file says of itself; see `publishing.entry_of`."""
    return entry_of(path.name, path.read_bytes())


def _is_kind(built: Built) -> Problems:
    suffix = {"wheel": ".whl", "sdist": ".tar.gz"}[built.kind]
    if not built.name.endswith(suffix):
        yield built.name, f"expected a {built.kind} ({suffix})"


def _named(built: Built) -> Problems:
    following = "-" if built.kind == "wheel" else ".tar.gz"
    if not built.name.startswith(built.stem + following):
        yield built.name, f"expected a name that begins with {built.stem}{following}"
    if built.entry.version != built.version:
        yield built.name, f"its metadata say {built.entry.version}, expected {built.version}"


def _runtime(built: Built) -> Problems:
    if built.kind != "wheel":
        return
    text = built.members.get(built.row.runtime, b"").decode("utf-8", "replace")
    try:
        found = version_in(text, built.row.runtime)
    except UnusableError as error:
        yield f"{built.name} {built.row.runtime}", str(error)
        return
    if found != built.version:
        yield (
            f"{built.name} {built.row.runtime}",
            f"`__version__` is {found}, expected {built.version}; an installed copy would not know "
            "what it is",
        )


def _build_tag(built: Built) -> Problems:
    if built.kind != "wheel" or built.pinned is None:
        return
    parts = built.name.removesuffix(".whl").split("-")
    in_name = parts[2] if len(parts) == _WITH_BUILD_TAG else None
    wheel = next((data for name, data in built.members.items() if _is_wheel_file(name)), b"")
    stated = email.message_from_bytes(wheel).get_all("Build", [])
    wanted = None
    if built.row.build_tag is not None:
        pin = built.pinned.found.get(built.row.build_tag.pin)
        if pin is None:
            yield built.name, f"has no exact pin of {built.row.build_tag.pin}, which tags the build"
            return
        try:
            wanted = channels.build_tag(pin, built.row.build_tag.known)
        except UnusableError as error:
            yield built.name, str(error)
            return
    if (in_name, stated) != (wanted, [wanted] if wanted else []):
        yield (
            built.name,
            f"build tag {in_name} in the file name and {stated} in WHEEL, expected {wanted}",
        )


def _is_wheel_file(name: str) -> bool:
    return name.endswith(".dist-info/WHEEL")


def _variants(built: Built) -> Problems:
    abis = built.row.abis
    if built.kind != "wheel" or abis is None:
        return
    head, _, tail = abis.file.partition("{abi}")
    found = {
        name.removeprefix(head).removesuffix(tail)
        for name in built.members
        if name.startswith(head) and name.endswith(tail)
    }
    for abi in sorted(set(built.abis) ^ found):
        what = "is missing" if abi in built.abis else "is not in the list"
        yield f"{built.name} {abis.file.format(abi=abi)}", f"the variant for {abi} {what}"


def _exports(built: Built) -> Problems:
    abis = built.row.abis
    if built.kind != "wheel" or abis is None:
        return
    for name in (abis.file.format(abi=abi) for abi in built.abis):
        if name not in built.members:
            continue
        found = read_binary(built.members[name], name).exported
        if difference := sorted(set(found) ^ set(built.exports)):
            yield (
                f"{built.name} {name}",
                f"exported and listed symbols differ by {', '.join(difference)}; build with hidden "
                f"visibility or correct {abis.exports}",
            )


def _accepted(built: Built) -> Problems:
    if built.rejected:
        yield built.name, built.rejected


RULES: Final[tuple[Rule[Built], ...]] = (
    Rule("NIGHT121", "A file is of the kind that was asked for.", _is_kind),
    Rule("NIGHT122", "File name and metadata have the version, in the exact spelling.", _named),
    Rule("NIGHT123", "`__version__` in the wheel is the version.", _runtime),
    Rule(
        "NIGHT124", "The build tag is the pin's digits, in the file name and in WHEEL.", _build_tag
    ),
    Rule("NIGHT125", "The wheel has one extension variant for each listed ABI.", _variants),
    Rule("NIGHT126", "A variant exports the listed symbols and no others.", _exports),
    Rule("NIGHT127", "The project's own command accepts the file.", _accepted),
)

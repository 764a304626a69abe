"""What a shared library says about itself: exports, needed libraries, highest glibc symbol.

Reads ELF64, PE32+ and Mach-O 64 (little endian) without any tool of the platform, as far as the
libraries of this project use them.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from findings import UnusableError

_ELF_DYNAMIC: Final = 2
_ELF_LOAD: Final = 1
_NEEDED, _STRTAB, _SYMTAB = 1, 5, 6
_VERNEED, _VERNEEDNUM = 0x6FFFFFFE, 0x6FFFFFFF
_PE_EXPORTS, _PE_IMPORTS = 0, 1
_PE_SECTIONS_AT: Final = 24
_LC_SYMTAB, _LC_CODE_SIGNATURE = 2, 0x1D
_LC_LOAD_DYLIB: Final = 0xC
_N_STAB, _N_TYPE, _N_EXT, _N_PEXT, _N_UNDF = 0xE0, 0x0E, 0x01, 0x10, 0
_MACHINES: Final = {
    ("ELF", 62): "x86_64",
    ("ELF", 183): "aarch64",
    ("PE", 0x8664): "x86_64",
    ("Mach-O", 0x01000007): "x86_64",
    ("Mach-O", 0x0100000C): "arm64",
}
_ADHOC_FLAG: Final = 2
_SUPERBLOB, _CODE_DIRECTORY = 0xFADE0CC0, 0xFADE0C02
_SHA256: Final = (32, 2)
"""Size and kind of the hashes in a code directory."""


@dataclass(frozen=True, slots=True)
class BinaryFacts:
    """A shared library.

    Attributes:
        kind: "ELF", "PE" or "Mach-O".
        machine: the architecture it is for.
        exported: defined symbols that others can see, as a C programmer writes them, sorted.
        needed: libraries that must be there when it is loaded, sorted.
        undefined: symbols that it takes from them, sorted.
        glibc: highest version of a glibc symbol, such as "2.17"; None if it uses none.
        signature: "ad-hoc", "signed" or None; only Mach-O can have one. Its hashes are those of
            the pages of the file.
    """

    kind: str
    machine: str
    exported: tuple[str, ...]
    needed: tuple[str, ...]
    undefined: tuple[str, ...]
    glibc: str | None = None
    signature: str | None = None


def read_binary(data: bytes, where: str) -> BinaryFacts:
    """Parse a shared library.

    Args:
        data: the file.
        where: how messages call it.

    Raises:
        UnusableError: the file is no library of a known kind, or is cut off.
    """
    readers = (
        (b"\x7fELF\x02\x01", _read_elf),
        (b"MZ", _read_pe),
        (b"\xcf\xfa\xed\xfe", _read_macho),
    )
    for magic, reader in readers:
        if data.startswith(magic):
            try:
                return reader(data)
            except (struct.error, IndexError, KeyError, ValueError) as error:
                raise UnusableError(
                    f"{where}: damaged library ({error!r}); build it again"
                ) from error
    raise UnusableError(f"{where}: expected an ELF64, PE or Mach-O 64 library, got {data[:4]!r}")


def _text(data: bytes, offset: int) -> str:
    return data[offset : data.index(b"\0", offset)].decode()


def _sorted(names: Iterator[str] | list[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))


# --- ELF -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Elf:
    data: bytes
    loads: tuple[tuple[int, int, int], ...]  # address, offset, size
    dynamic: tuple[tuple[int, int], ...]

    def offset(self, address: int) -> int:
        for start, offset, size in self.loads:
            if start <= address < start + size:
                return address - start + offset
        raise ValueError(f"address {address:#x} is in no segment")

    def first(self, tag: int) -> int | None:
        return next((value for found, value in self.dynamic if found == tag), None)

    def table(self, tag: int) -> int:
        address = self.first(tag)
        if address is None:
            raise ValueError(f"no dynamic entry {tag}")
        return self.offset(address)


def _open_elf(data: bytes) -> _Elf:
    start, size, count = (
        struct.unpack_from("<Q", data, 0x20)[0],
        *struct.unpack_from("<HH", data, 0x36),
    )
    loads, dynamic = [], []
    for index in range(count):
        kind, _, offset, address, _, length = struct.unpack_from(
            "<IIQQQQ", data, start + index * size
        )
        if kind == _ELF_LOAD:
            loads.append((address, offset, length))
        if kind == _ELF_DYNAMIC:
            dynamic = [
                struct.unpack_from("<QQ", data, at) for at in range(offset, offset + length, 16)
            ]
    return _Elf(data, tuple(loads), tuple((tag, value) for tag, value in dynamic))


def _elf_symbols(elf: _Elf) -> Iterator[tuple[str, bool]]:
    """Names of the dynamic symbols, and whether the library defines them."""
    symbols, strings = elf.table(_SYMTAB), elf.table(_STRTAB)
    # Linkers put the string table right behind the symbol table or fill up to it with less than
    # a symbol; there is no count of symbols in the dynamic section.
    for at in range(symbols + 24, _elf_symbols_end(elf, symbols), 24):
        name, info, _, section = struct.unpack_from("<IBBH", elf.data, at)
        if info >> 4:  # not local
            yield _text(elf.data, strings + name), section != 0


def _elf_symbols_end(elf: _Elf, symbols: int) -> int:
    sections, size, count = (
        struct.unpack_from("<Q", elf.data, 0x28)[0],
        *struct.unpack_from("<HH", elf.data, 0x3A),
    )
    for index in range(count):
        *_, offset, length = struct.unpack_from("<IIQQQQ", elf.data, sections + index * size)
        if offset == symbols:
            return int(symbols + length)
    raise ValueError("no section holds the dynamic symbols")


def _elf_versions(elf: _Elf) -> Iterator[str]:
    """Names of the symbol versions that the library needs, such as GLIBC_2.17."""
    count = elf.first(_VERNEEDNUM)
    if not count:
        return
    at, strings = elf.table(_VERNEED), elf.table(_STRTAB)
    for _ in range(count):
        _, versions, _, first, after = struct.unpack_from("<HHIII", elf.data, at)
        entry = at + first
        for _ in range(versions):
            _, _, _, name, step = struct.unpack_from("<IHHII", elf.data, entry)
            yield _text(elf.data, strings + name)
            entry += step
        at += after


def _highest_glibc(versions: Iterator[str]) -> str | None:
    found = [match[1] for name in versions if (match := re.fullmatch(r"GLIBC_([0-9.]+)", name))]
    return max(found, key=lambda text: tuple(map(int, text.split("."))), default=None)


def _read_elf(data: bytes) -> BinaryFacts:
    elf = _open_elf(data)
    symbols = list(_elf_symbols(elf))
    strings = elf.table(_STRTAB)
    return BinaryFacts(
        "ELF",
        _MACHINES["ELF", struct.unpack_from("<H", data, 0x12)[0]],
        _sorted([name for name, defined in symbols if defined]),
        _sorted([_text(data, strings + value) for tag, value in elf.dynamic if tag == _NEEDED]),
        _sorted([name for name, defined in symbols if not defined]),
        _highest_glibc(_elf_versions(elf)),
    )


# --- PE ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Pe:
    data: bytes
    machine: int
    sections: tuple[tuple[int, int, int], ...]  # address, size, offset
    directories: int

    def offset(self, address: int) -> int:
        for start, size, offset in self.sections:
            if start <= address < start + size:
                return address - start + offset
        raise ValueError(f"address {address:#x} is in no section")

    def directory(self, index: int) -> int | None:
        address: int = struct.unpack_from("<I", self.data, self.directories + 8 * index)[0]
        return self.offset(address) if address else None

    def words(self, address: int, count: int) -> tuple[int, ...]:
        return struct.unpack_from(f"<{count}I", self.data, self.offset(address))


def _open_pe(data: bytes) -> _Pe:
    header: int = struct.unpack_from("<I", data, 0x3C)[0]
    machine, count = struct.unpack_from("<HH", data, header + 4)
    optional = header + _PE_SECTIONS_AT
    size: int = struct.unpack_from("<H", data, header + 20)[0]
    sections = []
    for index in range(count):
        at = optional + size + 40 * index
        length, address, stored, offset = struct.unpack_from("<IIII", data, at + 8)
        sections.append((address, max(length, stored), offset))
    return _Pe(data, machine, tuple(sections), optional + 112)


def _pe_exports(pe: _Pe) -> Iterator[str]:
    at = pe.directory(_PE_EXPORTS)
    if at is not None:
        count, names = struct.unpack_from("<I4xI", pe.data, at + 24)
        for name in pe.words(names, count):
            yield _text(pe.data, pe.offset(name))


def _pe_imports(pe: _Pe) -> Iterator[str]:
    at = pe.directory(_PE_IMPORTS)
    while at is not None:
        name: int = struct.unpack_from("<I", pe.data, at + 12)[0]
        if not name:
            return
        yield _text(pe.data, pe.offset(name))
        at += 20


def _read_pe(data: bytes) -> BinaryFacts:
    pe = _open_pe(data)
    return BinaryFacts(
        "PE", _MACHINES["PE", pe.machine], _sorted(_pe_exports(pe)), _sorted(_pe_imports(pe)), ()
    )


# --- Mach-O --------------------------------------------------------------------------------------


def _commands(data: bytes) -> Iterator[tuple[int, int]]:
    """Kind and offset of every load command."""
    at = 32
    for _ in range(struct.unpack_from("<I", data, 16)[0]):
        kind, size = struct.unpack_from("<II", data, at)
        yield kind & 0x7FFFFFFF, at
        at += size


def _macho_symbols(data: bytes, at: int) -> Iterator[tuple[str, bool]]:
    offset, count, strings = struct.unpack_from("<III", data, at + 8)
    for index in range(count):
        name, kind = struct.unpack_from("<IB", data, offset + 16 * index)
        if kind & _N_EXT and not kind & (_N_STAB | _N_PEXT):
            # Mach-O puts an underscore before the names of C.
            yield _text(data, strings + name).removeprefix("_"), kind & _N_TYPE != _N_UNDF


def _macho_signature(data: bytes, at: int) -> str | None:
    offset: int = struct.unpack_from("<I", data, at + 8)[0]
    magic, _, count = struct.unpack_from(">III", data, offset)
    if magic != _SUPERBLOB:
        return None
    for index in range(count):
        blob = offset + struct.unpack_from(">I", data, offset + 16 + 8 * index)[0]
        kind, _, _, flags = struct.unpack_from(">IIII", data, blob)
        if kind == _CODE_DIRECTORY:
            _check_pages(data, blob)
            return "ad-hoc" if flags & _ADHOC_FLAG else "signed"
    return None


def _check_pages(data: bytes, directory: int) -> None:
    """Compare the pages of a file with the hashes of its code directory, as the system does.

    Raises:
        ValueError: one differs, or the directory does not cover the file up to itself.
    """
    first, _, _, count, end = struct.unpack_from(">5I", data, directory + 16)
    size, kind, _, page_bits = struct.unpack_from(">4B", data, directory + 36)
    if (size, kind) != _SHA256:
        raise ValueError(f"the signature has hashes of kind {kind}, expected SHA-256")
    page = 1 << page_bits
    if end > directory or count != -(-end // page):
        raise ValueError(f"the signature has {count} hashes for {end} bytes")
    for index in range(count):
        at = directory + first + size * index
        found = hashlib.sha256(data[index * page : min(end, (index + 1) * page)]).digest()
        if found != data[at : at + size]:
            raise ValueError(f"page {index} is not the one that was signed")


def _read_macho(data: bytes) -> BinaryFacts:
    needed: list[str] = []
    symbols: list[tuple[str, bool]] = []
    signature = None
    for kind, at in _commands(data):
        if kind == _LC_LOAD_DYLIB:
            needed.append(_text(data, at + struct.unpack_from("<I", data, at + 8)[0]))
        elif kind == _LC_SYMTAB:
            symbols = list(_macho_symbols(data, at))
        elif kind == _LC_CODE_SIGNATURE:
            signature = _macho_signature(data, at)
    return BinaryFacts(
        "Mach-O",
        _MACHINES["Mach-O", struct.unpack_from("<I", data, 4)[0]],
        _sorted([name for name, defined in symbols if defined]),
        _sorted(needed),
        _sorted([name for name, defined in symbols if not defined]),
        signature=signature,
    )

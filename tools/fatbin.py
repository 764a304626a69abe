"""What a fatbin says about itself, read without any NVIDIA program.

A fatbin is a header and entries: PTX, or a cubin (an ELF64 file of machine code) for one compute
capability. Registers, stack and shared memory stand in the cubin's .nv.info and section sizes; what
a kernel spills shows as instructions that load from and store to local memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from findings import UnusableError

MAGIC: Final = 0xBA55ED50
PTX, ELF = 1, 2
_KINDS: Final = {PTX: "PTX", ELF: "ELF"}
_HEADER: Final = struct.Struct("<IHHQ")
# Kind, version, header size, padded size, compressed size, options, minor, major, arch, name's
# offset and length, flags, unused, size once decompressed.
_ENTRY: Final = struct.Struct("<HHIQIIHHIIIQQQ")
_ARCH_VARIANT, _COMPRESSED = 0x100000, 0x2000
_ELF_MAGIC: Final = b"\x7fELF\x02\x01"
_CUDA_MACHINE: Final = 190
# From this version of the ABI on the architecture stands in the second byte of the ELF's flags.
_SHIFTED_FLAGS: Final = 8
_NO_BITS: Final = 8
_SIZED_ATTRIBUTE: Final = 4
_REGISTERS, _FRAME, _MIN_STACK = 0x2F, 0x11, 0x12
_MAX_THREADS: Final = 0x05
_MOST_THREADS: Final = 1024
_INSTRUCTION: Final = 16
_OPCODE: Final = 0xFFF
_LOCAL: Final = {0x983: "LDL", 0x387: "STL"}


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of a cubin.

    Attributes:
        name: its symbol.
        registers: of a thread.
        stack: bytes of a thread.
        shared: bytes of static shared memory of a block; from 9.0 on 1024 more than the source's
            where it has any.
        local: loads from and stores to local memory in the code.
        threads: most threads of a block, as its launch bounds say.
        code: its machine code.
    """

    name: str
    registers: int
    stack: int
    shared: int
    local: int
    threads: int
    code: bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a fatbin.

    Attributes:
        kind: "ELF" or "PTX".
        arch: compute capability, such as "89" or "90a".
        name: the identifier that it was added under.
        data: the payload as stored.
        compressed: whether the payload is compressed, so that nothing in it can be read here.
        kernels: of a cubin, sorted by name.
    """

    kind: str
    arch: str
    name: str
    data: bytes
    compressed: bool
    kernels: tuple[Kernel, ...] = ()

    @property
    def text(self) -> str:
        """PTX as text, without the padding."""
        return self.data.rstrip(b"\0").decode()


def read_fatbin(data: bytes, where: str) -> tuple[Entry, ...]:
    """Parse a fatbin.

    Args:
        data: the file.
        where: how messages call it.

    Raises:
        UnusableError: the file is no fatbin, is cut off or damaged.
    """
    try:
        return tuple(_entries(data))
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise UnusableError(f"{where}: damaged fatbin ({error}); build it again") from error


def read_cubin(data: bytes, where: str) -> tuple[Kernel, ...]:
    """Parse a cubin.

    Raises:
        UnusableError: the file is no cubin, is cut off or damaged.
    """
    try:
        return tuple(_kernels(_Elf(data)))
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise UnusableError(f"{where}: damaged cubin ({error}); build it again") from error


def _part(data: bytes, start: int, size: int, what: str) -> bytes:
    if start + size > len(data):
        raise ValueError(f"{what} ends at byte {start + size} of {len(data)}")
    return data[start : start + size]


def _text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()


def _entries(data: bytes) -> Iterator[Entry]:
    magic, _, header, size = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise ValueError(f"expected the magic number {MAGIC:#x}, got {magic:#x}")
    if header + size != len(data):
        raise ValueError(f"the header says {header + size} bytes, there are {len(data)}")
    at = header
    while at < len(data):
        fields = _ENTRY.unpack_from(data, at)
        kind, _, header, padded = fields[:4]
        arch, name_at, name_size, flags = fields[8:12]
        if kind not in _KINDS or header < _ENTRY.size:
            raise ValueError(f"expected PTX or ELF in the entry at {at:#x}, got kind {kind}")
        name = _part(data, at + name_at, name_size, "the name of an entry").decode()
        payload = _part(data, at + header, padded, "an entry")
        known = f"{arch}a" if flags & _ARCH_VARIANT else str(arch)
        yield _entry(_KINDS[kind], known, name, payload, compressed=bool(flags & _COMPRESSED))
        at += header + padded


def _entry(kind: str, arch: str, name: str, payload: bytes, *, compressed: bool) -> Entry:
    if compressed:
        return Entry(kind, arch, name, payload, compressed)
    if kind == "PTX":
        payload.rstrip(b"\0").decode()
        return Entry(kind, arch, name, payload, compressed)
    elf = _Elf(payload)
    if str(elf.arch) != arch.rstrip("a"):
        raise ValueError(f"the entry for {arch} holds a cubin for {elf.arch}")
    return Entry(kind, arch, name, payload, compressed, tuple(_kernels(elf)))


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    size: int
    data: bytes


class _Elf:
    """The sections and symbols of a cubin."""

    def __init__(self, data: bytes) -> None:
        if not data.startswith(_ELF_MAGIC):
            raise ValueError(f"expected an ELF64 file, got {data[:4]!r}")
        machine: int = struct.unpack_from("<H", data, 0x12)[0]
        if machine != _CUDA_MACHINE:
            raise ValueError(f"expected a file for machine {_CUDA_MACHINE}, got {machine}")
        flags: int = struct.unpack_from("<I", data, 0x30)[0]
        self.arch = flags >> 8 & 0xFF if data[8] >= _SHIFTED_FLAGS else flags & 0xFF
        self.sections = tuple(_sections(data))

    def find(self, name: str) -> _Section | None:
        return next((each for each in self.sections if each.name == name), None)

    def need(self, name: str) -> bytes:
        found = self.find(name)
        if found is None:
            raise ValueError(f"the cubin has no section {name}")
        return found.data

    def symbol(self, index: int) -> str:
        name: int = struct.unpack_from("<I", self.need(".symtab"), 24 * index)[0]
        return _text(self.need(".strtab"), name)


def _sections(data: bytes) -> Iterator[_Section]:
    start: int = struct.unpack_from("<Q", data, 0x28)[0]
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    rows = [struct.unpack_from("<IIQQQQ", data, start + index * size) for index in range(count)]
    offset, length = rows[names][4:6]
    strings = _part(data, offset, length, "the names of the sections")
    for name, kind, _, _, offset, length in rows:
        held = b"" if kind == _NO_BITS else _part(data, offset, length, "a section")
        yield _Section(_text(strings, name), kind, length, held)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and value of the sized attributes of .nv.info."""
    at = 0
    while at < len(data):
        form, number, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == _SIZED_ATTRIBUTE:
            yield number, _part(data, at, size, "an attribute")
            at += size


def _kernels(elf: _Elf) -> Iterator[Kernel]:
    values: dict[tuple[int, str], int] = {}
    for number, value in _attributes(elf.need(".nv.info")):
        if number in {_REGISTERS, _FRAME, _MIN_STACK}:
            index, amount = struct.unpack("<II", value)
            values[number, elf.symbol(index)] = amount
    for section in sorted(elf.sections, key=lambda each: each.name):
        if section.name.startswith(".text."):
            name = section.name.removeprefix(".text.")
            shared = elf.find(f".nv.shared.{name}")
            if (_REGISTERS, name) not in values:
                raise ValueError(f".nv.info does not say how many registers {name} uses")
            yield Kernel(
                name,
                values[_REGISTERS, name],
                max(values.get((_FRAME, name), 0), values.get((_MIN_STACK, name), 0)),
                shared.size if shared else 0,
                _local_accesses(section.data),
                _most_threads(elf, name),
                section.data,
            )


def _most_threads(elf: _Elf, kernel: str) -> int:
    info = elf.find(f".nv.info.{kernel}")
    for number, value in _attributes(info.data if info else b""):
        if number == _MAX_THREADS:
            x, y, z = struct.unpack("<III", value)
            return int(x * y * z)
    return _MOST_THREADS


def _local_accesses(code: bytes) -> int:
    words = struct.unpack_from(f"<{len(code) // _INSTRUCTION * 2}Q", code)
    return sum(word & _OPCODE in _LOCAL for word in words[::2])


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """What the blocks on a multiprocessor share, beside 64 Ki registers in four equal parts.

    Attributes:
        threads: most threads.
        blocks: most blocks.
        shared: bytes of shared memory.
        reserved: bytes of it that each block takes beside what the cubin says.
    """

    threads: int
    blocks: int
    shared: int
    reserved: int = 0


MULTIPROCESSORS: Final = {
    "75": Multiprocessor(1024, 16, 64 << 10),
    "80": Multiprocessor(2048, 32, 164 << 10, 1024),
    "86": Multiprocessor(1536, 16, 100 << 10, 1024),
    "89": Multiprocessor(1536, 24, 100 << 10, 1024),
    "90": Multiprocessor(2048, 32, 228 << 10),
    "100": Multiprocessor(2048, 32, 228 << 10),
    "120": Multiprocessor(1536, 24, 100 << 10),
}
"""By compute capability, from the CUDA C++ Programming Guide, "Technical Specifications per Compute
Capability". From 9.0 on the cubin's shared memory includes what is reserved."""
_PARTS, _PART_REGISTERS = 4, 16 << 10
_WARP: Final = 32
_REGISTER_UNIT: Final = 8


def blocks_per_multiprocessor(kernel: Kernel, arch: str) -> int:
    """How many blocks of a kernel fit on a multiprocessor at once, without dynamic shared memory.

    Args:
        kernel: the kernel as compiled for `arch`.
        arch: compute capability, such as "90a".

    Raises:
        KeyError: the capability is not in `MULTIPROCESSORS`.
    """
    limits = MULTIPROCESSORS[arch.rstrip("a")]
    warps = -(-kernel.threads // _WARP)
    registers = -(-kernel.registers // _REGISTER_UNIT) * _REGISTER_UNIT * _WARP
    shared = kernel.shared + limits.reserved
    return min(
        limits.blocks,
        limits.threads // (warps * _WARP),
        _PART_REGISTERS // registers * _PARTS // warps,
        limits.shared // shared if shared else limits.blocks,
    )


def describe(entries: tuple[Entry, ...]) -> Iterator[str]:
    """A fatbin as lines of text, in the order of the file."""
    for entry in entries:
        packed = ", compressed" if entry.compressed else ""
        yield f"{entry.kind} sm_{entry.arch} {entry.name}: {len(entry.data)} bytes{packed}"
        for kernel in entry.kernels:
            yield (
                f"  {kernel.name}: REG:{kernel.registers} STACK:{kernel.stack} "
                f"SHARED:{kernel.shared} LOCAL:{kernel.local} CODE:{len(kernel.code)}"
            )

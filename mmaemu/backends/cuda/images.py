"""What a fatbin holds, and which of it a device can run. No driver is asked."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

_MAGIC: Final = 0xBA55ED50
_HEADER: Final = struct.Struct("<IHHQ")
_ENTRY: Final = struct.Struct("<HHIQ")
_ARCH_AT: Final = 28
_FLAGS_AT: Final = 40
_PTX, _ELF = 1, 2
_ACCELERATED: Final = 0x100000
"""The flag of an architecture with a letter, such as sm_90a, whose code runs on no other."""


class Entry(NamedTuple):
    """One image in a fatbin.

    Attributes:
        arch: its compute capability as 10 * major + minor.
        is_ptx: whether it is PTX, which the driver compiles for any later device.
        accelerated: whether it is for this very capability only, as sm_90a is.
    """

    arch: int
    is_ptx: bool = False
    accelerated: bool = False

    def __str__(self) -> str:
        prefix = "compute" if self.is_ptx else "sm"
        return f"{prefix}_{self.arch}{'a' if self.accelerated else ''}"

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether a device of a compute capability can run it."""
        device = 10 * capability[0] + capability[1]
        if self.accelerated:
            return self.arch == device
        if self.is_ptx:
            return self.arch <= device
        return self.arch // 10 == capability[0] and self.arch <= device


def entries(fatbin: bytes) -> tuple[Entry, ...]:
    """List the images of a fatbin in order.

    Raises:
        ValueError: it is no fatbin, or is cut off.
    """
    found = []
    try:
        magic, _, at, size = _HEADER.unpack_from(fatbin)
        if magic != _MAGIC:
            raise ValueError(f"not a fatbin: it starts with {fatbin[:4].hex()}")
        end = at + size
        while at < end:
            kind, _, header, payload = _ENTRY.unpack_from(fatbin, at)
            (arch,) = struct.unpack_from("<I", fatbin, at + _ARCH_AT)
            (flags,) = struct.unpack_from("<Q", fatbin, at + _FLAGS_AT)
            if kind in {_PTX, _ELF}:
                found.append(Entry(arch, kind == _PTX, accelerated=bool(flags & _ACCELERATED)))
            if not header:
                raise ValueError("not a fatbin: an entry has no header")
            at += header + payload
    except struct.error as error:
        raise ValueError(f"the fatbin is cut off: {error}") from error
    if len(fatbin) < end:
        raise ValueError(f"the fatbin is cut off: {len(fatbin)} of {end} bytes")
    return tuple(found)


def listed(found: Iterable[Entry]) -> str:
    """Name images for a message, such as "sm_80 sm_90a compute_80"."""
    return " ".join(map(str, found)) or "none"

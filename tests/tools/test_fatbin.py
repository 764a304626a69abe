"""The fatbin reader on the frozen fatbins, whole, cut off and damaged."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from build_fatbin import BIN
from fatbin import Kernel, blocks_per_multiprocessor, describe, read_cubin, read_fatbin
from files import ROOT
from findings import UnusableError

PROBES = (ROOT / BIN / "probes.fatbin").read_bytes()
FLAGS_AT, COMPRESSED, VARIANT = 16 + 40, 0x2000, 0x100000


def with_flag(flag: int) -> bytes:
    data = bytearray(PROBES)
    (flags,) = struct.unpack_from("<Q", data, FLAGS_AT)
    struct.pack_into("<Q", data, FLAGS_AT, flags | flag)
    return bytes(data)


@pytest.mark.parametrize("path", sorted((ROOT / BIN).glob("*.fatbin")), ids=lambda path: path.stem)
def test_every_frozen_fatbin_can_be_read(path: Path) -> None:

    entries = read_fatbin(path.read_bytes(), path.name)
    assert {entry.name for entry in entries} == {path.stem}
    for entry in entries:
        assert not entry.compressed
        if entry.kind == "ELF":
            assert read_cubin(entry.data, path.name) == entry.kernels
            assert all(kernel.registers > 0 and kernel.code for kernel in entry.kernels)
        else:
            assert f".target sm_{entry.arch}" in entry.text
            assert entry.kernels == ()
    assert len(list(describe(entries))) == sum(1 + len(entry.kernels) for entry in entries)


def test_a_compressed_entry_is_told_and_not_read() -> None:
    first = read_fatbin(with_flag(COMPRESSED), "k.fatbin")[0]
    assert (first.compressed, first.kernels) == (True, ())
    assert next(describe((first,))).endswith(", compressed")


def test_code_for_one_capability_only_has_a_letter() -> None:
    arch = read_fatbin(PROBES, "k.fatbin")[0].arch
    assert read_fatbin(with_flag(VARIANT), "k.fatbin")[0].arch == f"{arch}a"


@pytest.mark.parametrize("cut", [0, 3, 15, 16, 40, 80, 81, 200, len(PROBES) // 2, len(PROBES) - 1])
def test_a_fatbin_that_is_cut_off(cut: int) -> None:
    with pytest.raises(UnusableError, match=r"k\.fatbin: damaged fatbin"):
        read_fatbin(PROBES[:cut], "k.fatbin")
    # The header's size alone does not save it.
    if cut > 16:
        data = bytearray(PROBES[:cut])
        struct.pack_into("<Q", data, 8, cut - 16)
        with pytest.raises(UnusableError, match="damaged"):
            read_fatbin(bytes(data), "k.fatbin")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x7fELF" + bytes(60), "magic number"),
        (PROBES + b"\0", "the header says"),
        (PROBES[:16] + b"\x09" + PROBES[17:], "kind 9"),
        (PROBES.replace(b"\x7fELF\x02\x01", b"\x7fELF\x01\x01", 1), "expected an ELF64 file"),
        (PROBES.replace(b"\xbe\x00\x80", b"\x3e\x00\x80", 1), "machine 190, got 62"),
        (PROBES[:44] + b"\x4b" + PROBES[45:], "the entry for 75 holds a cubin for 80"),
    ],
)
def test_what_is_wrong_is_told(data: bytes, message: str) -> None:
    with pytest.raises(UnusableError, match=message):
        read_fatbin(data, "k.fatbin")


def test_no_damage_ends_in_another_error() -> None:
    generator = random.Random(20261201)
    refused = 0
    for _ in range(1000):
        data = bytearray(PROBES)
        for _ in range(generator.randint(1, 4)):
            # Headers and tables decide; most of the rest is code, where any byte may be right.
            data[generator.choice((generator.randrange(400), generator.randrange(len(data))))] = (
                generator.randrange(256)
            )
        try:
            read_fatbin(bytes(data), "k.fatbin")
        except UnusableError:
            refused += 1
    assert refused > 250


def test_a_file_that_is_no_cubin() -> None:
    with pytest.raises(UnusableError, match=r"k\.cubin: damaged cubin"):
        read_cubin(b"text", "k.cubin")


def test_the_threads_are_those_of_the_launch_bounds() -> None:
    found = {
        name: {
            kernel.threads
            for entry in read_fatbin((ROOT / BIN / f"{name}.fatbin").read_bytes(), name)
            for kernel in entry.kernels
        }
        for name in ("v4", "wgmma", "probes")
    }
    assert found == {"v4": {256}, "wgmma": {128}, "probes": {32}}


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "blocks"),
    [
        ("80", 256, 128, 21040, 2),  # 16 warps of 4096 registers
        ("80", 256, 129, 21040, 1),  # 12 warps of 4352
        ("90a", 128, 213, 18048, 2),
        ("80", 256, 64, 0, 4),
        ("75", 256, 64, 41520, 1),  # shared memory
        ("75", 256, 32, 0, 4),  # 1024 threads
        ("86", 32, 16, 0, 16),  # blocks
        ("89", 1024, 32, 0, 1),
        ("89", 256, 32, 50 << 10, 1),  # each takes 1 KiB more
        ("120", 256, 32, 50 << 10, 2),  # which is included
    ],
)
def test_blocks_of_a_multiprocessor(
    arch: str, threads: int, registers: int, shared: int, blocks: int
) -> None:
    kernel = Kernel("k", registers, 0, shared, 0, threads, b"")
    assert blocks_per_multiprocessor(kernel, arch) == blocks

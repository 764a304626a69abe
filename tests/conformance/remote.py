"""The CPU library of another architecture, in a process that an emulator runs.

`RemoteLibrary` has the functions that the CPU backends call. It copies what a call reads to the
other process (native/agent.c), lets the library compute there, and copies back what it wrote.
Operands lie there at addresses as far from a multiple of a page as here, between NaN codes, and
whatever is written between guard bytes, so that nothing beside them may count or change. A request
that may use several threads is computed there by THREADS threads at once, others by PAIR.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, cast
from unittest import mock

from mmaemu.backends.cpu import backend as cpu_backend
from mmaemu.backends.cpu import library as cpu_library
from mmaemu.backends.cpu.library import ISAS, Loaded, Request

WRITE, READ, CALL = 1, 2, 3
NAME: Final = 48
PAGE: Final = 4096
BESIDE: Final = 256
"""Bytes on each side of an operand or an output that are filled and looked at again."""
NAN_CODE: Final = b"\xff"
GUARD: Final = b"\xa5"
PAIR: Final = 2
THREADS: Final = 8
OUTPUT_BYTES: Final = (4, 2, 2, 1, 1)
"""Of an element, as csrc/numerics/epilogue.h numbers the output types."""


class Place(NamedTuple):
    """Memory of the other process that stands for memory here.

    Attributes:
        here: address in this process.
        there: address in the other one.
        size: in bytes.
        beside: what lies on both sides of it there.
    """

    here: int
    there: int
    size: int
    beside: bytes


@dataclass
class Connection:
    """One thread's connection, and what it has placed in its arena.

    Attributes:
        socket: to the agent.
        arena: first free address of the arena.
        end: its end.
        places: of the call that is being prepared, by address here.
    """

    socket: socket.socket
    arena: int
    end: int
    places: dict[int, Place] = field(default_factory=dict)

    def send(self, kind: int, first: int, second: int, data: bytes = b"") -> None:
        self.socket.sendall(struct.pack("<3Q", kind, first, second) + data)

    def receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self.socket.recv(min(1 << 20, size - len(data)))
            if not part:
                raise ConnectionError("the process with the CPU library has ended")
            data += part
        return bytes(data)

    def read(self, address: int, size: int) -> bytes:
        self.send(READ, address, size)
        return self.receive(size)

    def call(self, name: str, *calls: tuple[int, ...]) -> list[int]:
        """Call a function once for each tuple of arguments, at the same time."""
        mask = (1 << 64) - 1
        words = [argument & mask for arguments in calls for argument in arguments]
        data = name.encode().ljust(NAME, b"\0") + struct.pack(f"<{len(words)}Q", *words)
        self.send(CALL, len(calls), len(calls[0]), data)
        return list(struct.unpack(f"<{len(calls)}q", self.receive(8 * len(calls))))

    def room(self, size: int, like: int = 0) -> int:
        """A free piece of the arena, as far from a multiple of a page as `like`."""
        address = self.arena + BESIDE + (like - self.arena - BESIDE) % PAGE
        self.arena = address + size + BESIDE
        assert self.arena <= self.end, "the agent's arena is too small for this request"
        return address

    def place(self, here: int, size: int, beside: bytes) -> int:
        """Copy memory to the other process; memory that lies there already is not copied again."""
        found = self.places.get(here)
        if found is not None and found.size == size:
            return found.there
        there = self.room(size, like=here)
        around = beside * BESIDE
        data = around + ctypes.string_at(here, size) + around
        self.send(WRITE, there - BESIDE, len(data), data)
        self.places[here] = Place(here, there, size, beside)
        return there

    def fetch(self) -> None:
        """Copy back what may have been written; nothing else may have changed."""
        for place in self.places.values():
            data = self.read(place.there - BESIDE, place.size + 2 * BESIDE)
            around, inside = place.beside * BESIDE, data[BESIDE:-BESIDE]
            where = f"the {place.size} bytes at {place.there:#x} of the other process"
            assert data[:BESIDE] == data[-BESIDE:] == around, f"something wrote beside {where}"
            if place.beside == GUARD:
                ctypes.memmove(place.here, inside, place.size)
            else:
                same = inside == ctypes.string_at(place.here, place.size)
                assert same, f"something wrote to an operand, {where}"


class RemoteLibrary:
    """The functions of csrc/cpu/abi.h as `library.open_library` declares them."""

    def __init__(self, path: Path) -> None:
        """Every thread of every process connects to the agent's socket when it first calls.

        `machine` is the library's, as `platform.machine` says it.
        """
        self.path = path
        self.machine = ""
        self._local = threading.local()
        self._one_at_a_time = threading.Lock()

    def _connection(self) -> Connection:
        """This thread's connection, its arena empty."""
        found: tuple[int, Connection, int] | None = getattr(self._local, "found", None)
        if found is None or found[0] != os.getpid():
            connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connected.connect(str(self.path))
            connection = Connection(connected, 0, 0)
            start, size = struct.unpack("<2Q", connection.receive(16))
            connection.end = start + size
            found = self._local.found = os.getpid(), connection, start
        _, connection, connection.arena = found
        connection.places.clear()
        return connection

    def number(self, name: str, *arguments: int) -> int:
        """What a function that takes and gives numbers returns."""
        return self._connection().call(name, arguments)[0]

    def mmaemu_cpu_isas(self) -> int:
        return self.number("mmaemu_cpu_isas") & 0xFFFFFFFF

    def mmaemu_cpu_abi(self) -> int:
        return self.number("mmaemu_cpu_abi") & 0xFFFFFFFF

    def mmaemu_cpu_check(self, pointer: Any) -> int:
        return _status(self._about(pointer, "mmaemu_cpu_check"))

    def mmaemu_cpu_tiles(self, pointer: Any) -> int:
        return self._about(pointer, "mmaemu_cpu_tiles")

    def mmaemu_cpu_scratch_bytes(self, pointer: Any) -> int:
        return self._about(pointer, "mmaemu_cpu_scratch_bytes")

    def _about(self, pointer: Any, name: str) -> int:
        """Ask about a request whose operands need not be there."""
        connection = self._connection()
        return connection.call(name, (_put(connection, pointer._obj),))[0]

    def mmaemu_cpu_run(self, pointer: Any, _address: int, _size: int) -> int:
        """Compute all tiles that are left."""
        request = pointer._obj
        if not request.tile_columns:
            return self._run(request, PAIR)
        # Further threads of this call find no tile left.
        with self._one_at_a_time:
            return self._run(request, THREADS)

    def _run(self, request: Request, threads: int) -> int:
        connection = self._connection()
        there = _put(connection, _placed(connection, request))
        size = connection.call("mmaemu_cpu_scratch_bytes", (there,))[0]
        calls = [(there, connection.room(size), size) for _ in range(threads)]
        statuses = [_status(word) for word in connection.call("mmaemu_cpu_run", *calls)]
        connection.fetch()
        data = connection.read(there + Request.next.offset, Request.next.size)
        request.next = int.from_bytes(data, "little")
        return max(statuses)

    def mmaemu_cpu_gemm(self, pointer: Any, _address: int, size: int) -> int:
        connection, request = self._connection(), pointer._obj
        placed = _placed(connection, request)
        count = request.m * request.n * OUTPUT_BYTES[request.output]
        placed.result = connection.place(request.result, count, GUARD)
        scratch = connection.room(size)
        status = connection.call("mmaemu_cpu_gemm", (_put(connection, placed), scratch, size))[0]
        connection.fetch()
        return _status(status)

    def mmaemu_cpu_nonfinite(self, codes: int, rows: int, depth: int, stride: int, fmt: int) -> int:
        connection = self._connection()
        there = connection.place(codes, (rows - 1) * stride + depth, NAN_CODE)
        found = connection.call("mmaemu_cpu_nonfinite", (there, rows, depth, stride, fmt))[0]
        connection.fetch()
        return _status(found)

    def mmaemu_cpu_finish(self, accumulators: int, count: int, *rest: int) -> None:
        connection = self._connection()
        *scales, kind, out = rest
        source = connection.place(accumulators, 4 * count, GUARD)
        target = connection.place(out, OUTPUT_BYTES[kind] * count, GUARD)
        connection.call("mmaemu_cpu_finish", (source, count, *scales, kind, target))
        connection.fetch()


def _status(word: int) -> int:
    """The int32 in a result register, whose upper half is undefined."""
    return ctypes.c_int32(word & 0xFFFFFFFF).value


def _put(connection: Connection, request: Request) -> int:
    data = bytes(request)
    there = connection.room(len(data), like=64)
    connection.send(WRITE, there, len(data), data)
    return there


def _placed(connection: Connection, request: Request) -> Request:
    """A request whose operands and accumulators lie in the other process."""
    placed = Request.from_buffer_copy(request)
    rows = (("a", request.m, request.lda), ("b", request.n, request.ldb))
    for name, count, stride in rows:
        size = (count - 1) * stride + request.k
        setattr(placed, name, connection.place(getattr(request, name), size, NAN_CODE))
    size = 4 * ((request.m - 1) * request.ldc + request.n)
    placed.out = connection.place(request.out, size, GUARD)
    return placed


def use(path: Path) -> RemoteLibrary:
    """Let the CPU backends of this process use the library behind a socket, for good."""
    library = RemoteLibrary(path)
    mask = library.mmaemu_cpu_isas()
    isas = frozenset(name for index, name in enumerate(ISAS) if mask >> index & 1)
    library.machine = "aarch64" if "neon" in isas else "x86_64"
    loaded = Loaded(cast("ctypes.CDLL", library), str(path), isas)
    mock.patch.object(cpu_backend, "load", return_value=loaded).start()
    mock.patch.object(cpu_library, "_machine", return_value=library.machine).start()
    cpu_backend._status.cache_clear()
    return library

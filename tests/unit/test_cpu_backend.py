"""Loading, refusing and choosing the CPU library, without looking at what it computes."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from mmaemu.backends.cpu import backend as cpu_backend
from mmaemu.backends.cpu import backends
from mmaemu.backends.cpu import library as cpu_library
from mmaemu.backends.cpu.backend import MEANING, CpuBackend
from mmaemu.backends.cpu.library import (
    BIN,
    ISAS,
    KERNELS,
    MANIFEST,
    OK,
    LibraryError,
    Loaded,
    MissingLibraryError,
    Request,
    check_file,
    file_name,
    load,
    open_library,
)
from mmaemu.gemm.plan import GemmPlan
from mmaemu.gemm.request import AccumulateRequest
from mmaemu.gemm.splitk import SplitK
from mmaemu.instruction.model import InstructionModel
from mmaemu.instruction.models import MODELS, get_preset

CPU = torch.device("cpu")


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """This platform's library and the manifest, where they may be damaged."""
    for name in (file_name(), MANIFEST):
        shutil.copy(BIN / name, tmp_path / name)
    return tmp_path / file_name()


def request_of(
    model: InstructionModel, plan: GemmPlan | None = None, formats: tuple[str, str] = ("e4m3",) * 2
) -> AccumulateRequest:
    codes = torch.zeros((3, 64), dtype=torch.uint8, device=CPU)
    return AccumulateRequest(codes, codes, *formats, model, plan or GemmPlan(64))


def test_the_library_of_this_platform_is_listed_and_loads() -> None:
    check_file(BIN / file_name())
    loaded = load()
    assert loaded.library is not None
    assert loaded.isas >= {"scalar"}
    assert loaded.source == str(BIN / file_name())


def test_a_changed_library_is_not_loaded(copied: Path) -> None:
    copied.write_bytes(copied.read_bytes() + b"x")
    with pytest.raises(LibraryError, match=r"has sha256 .* its manifest says"):
        check_file(copied)


def test_an_unlisted_library_is_not_loaded(copied: Path) -> None:
    manifest = copied.with_name(MANIFEST)
    document = json.loads(manifest.read_text())
    del document["modules"][copied.name]
    manifest.write_text(json.dumps(document))
    with pytest.raises(LibraryError, match="is not listed"):
        check_file(copied)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"modules": 3}'])
def test_a_damaged_manifest(copied: Path, text: str) -> None:
    copied.with_name(MANIFEST).write_text(text)
    with pytest.raises(LibraryError, match="is not listed"):
        check_file(copied)


def test_an_installation_without_the_library(tmp_path: Path) -> None:
    with pytest.raises(MissingLibraryError, match="not part of this installation"):
        check_file(tmp_path / "mmaemu-cpu.so")


def test_another_file_than_a_library(tmp_path: Path) -> None:
    (tmp_path / "x.so").write_bytes(b"no library")
    with pytest.raises(LibraryError, match="cannot be loaded"):
        open_library(tmp_path / "x.so")


def test_a_platform_without_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(MissingLibraryError, match="no prebuilt CPU library for riscv64"):
        file_name()


@pytest.mark.parametrize(
    ("system", "machine", "suffix"),
    [
        ("linux", "x86_64", "x86_64-linux.so"),
        ("linux", "aarch64", "aarch64-linux.so"),
        ("darwin", "arm64", "arm64-macos.dylib"),
        ("darwin", "x86_64", "x86_64-macos.dylib"),
        ("win32", "AMD64", "x86_64-windows.dll"),
    ],
)
def test_the_file_of_each_platform_is_in_bin(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, suffix: str
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(sys, "platform", system)
    name = file_name()
    assert name.endswith(suffix)
    check_file(BIN / name)


def test_status_says_what_the_cpu_lacks() -> None:
    reasons = {each.isa: each.status(CPU) for each in backends()}
    assert list(reasons) == list(MEANING)
    foreign = reasons["neon" if platform.machine() == "x86_64" else "sse2"]
    assert not foreign.available
    assert not foreign.failed
    assert "this CPU has no" in foreign.reason


@pytest.mark.parametrize("missing", [False, True])
def test_a_damaged_or_missing_library_does_not_concern_a_foreign_instruction_set(
    monkeypatch: pytest.MonkeyPatch, missing: bool
) -> None:
    loaded = Loaded(None, "the file", reason="no use", missing=missing)
    monkeypatch.setattr(cpu_backend, "load", lambda: loaded)
    cpu_backend._status.cache_clear()
    try:
        for machine, foreign in (("AMD64", {"neon"}), ("arm64", {"avx512", "avx2", "sse2"})):
            monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
            cpu_backend._status.cache_clear()
            found = {each.isa: each.status(CPU) for each in backends()}
            states = {isa: (status.failed, status.missing) for isa, status in found.items()}
            wanted = dict.fromkeys(found, (not missing, missing))
            assert states == wanted | dict.fromkeys(foreign, (False, False))
            assert not any(status.available for status in found.values())
            texts = [found[isa].reason for isa in foreign]
            assert all(text.startswith("not meant for this machine") for text in texts)
    finally:
        cpu_backend._status.cache_clear()


def test_tensors_elsewhere() -> None:
    status = backends()[-1].status(torch.device("meta"))
    assert not status.available
    assert "takes tensors on cpu" in status.reason


def test_every_fp8_model_is_taken_or_refused_in_words() -> None:
    scalar = backends()[-1]
    for model in MODELS.values():
        reason = scalar.refusal(request_of(model))
        takes = (
            ("e4m3", "e4m3") in model.inputs
            and model.output == "fp32"
            and model.kind == "aligned"
            and model.scale_format is None
        )
        assert (reason is None) == takes, (model.name, reason)


@pytest.mark.parametrize(
    ("model", "plan", "reason"),
    [
        (get_preset("ada"), GemmPlan(64, promotion=24), "no kernel for ada"),
        (InstructionModel("long", 96, 13, 13), GemmPlan(64, SplitK(2, "serial")), "no kernel"),
        (InstructionModel("near", 16, 13, 13, rounding="nearest even"), None, "arithmetic of near"),
        (InstructionModel("wide", 16, 13, 13, inputs=(("bf16", "bf16"),)), None, "does not take"),
    ],
)
def test_refusals(model: InstructionModel, plan: GemmPlan | None, reason: str) -> None:
    for backend in backends():
        if backend.status(CPU).available:
            request = request_of(model, plan)
            assert reason in (backend.refusal(request) or "")
            out = torch.full((3, 3), 7.0, dtype=torch.float32, device=CPU)
            with pytest.raises(RuntimeError, match=reason):
                backend.accumulate(request, out)
            assert bool((out == 7.0).all())


def _valid() -> Request:
    codes = (ctypes.c_uint8 * 64)()
    out = (ctypes.c_float * 4)()
    return Request(
        abi=1,
        dot_length=16,
        fraction_bits=13,
        result_fraction_bits=13,
        min_exponent=-(1 << 31),
        groups=1,
        residues=1,
        operand_floor=-(1 << 31),
        slices=1,
        m=2,
        n=2,
        k=16,
        lda=16,
        ldb=16,
        ldc=2,
        a=ctypes.addressof(codes),
        b=ctypes.addressof(codes),
        out=ctypes.addressof(out),
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("abi", 2),
        ("m", -1),
        ("k", -1),
        ("out", None),
        ("a", None),
        ("kernel", 9),
        ("isa", -1),
        ("format_a", 99),
        ("dot_length", 0),
        ("dot_length", 5000),
        ("fraction_bits", 41),
        ("result_fraction_bits", 24),
        ("groups", 0),
        ("group_of", 1),
        ("residues", 9),
        ("slices", 0),
        ("slices", 2),
        ("partition", 7),
        ("promotion", 24),
        ("promotion", -16),
        ("tile_columns", 3),
    ],
)
def test_the_library_refuses_what_it_cannot_do(field: str, value: int | None) -> None:
    library = load().library
    assert library is not None
    call = _valid()
    assert library.mmaemu_cpu_check(ctypes.byref(call)) == OK
    setattr(call, field, value)
    assert library.mmaemu_cpu_check(ctypes.byref(call)) != OK
    assert library.mmaemu_cpu_run(ctypes.byref(call), None, 0) != OK


@pytest.mark.parametrize(
    ("groups", "residues", "group_of", "taken"),
    [(2, 4, 0x1100, True), (4, 4, 0x3210, True), (5, 4, 0x3210, False), (2, 4, 0x2100, False)],
)
def test_every_group_has_a_residue(groups: int, residues: int, group_of: int, taken: bool) -> None:
    library = load().library
    assert library is not None
    call = _valid()
    call.late, call.groups, call.residues, call.group_of = 1, groups, residues, group_of
    for kernel in ("scalar", "wide"):
        call.kernel = KERNELS.index(kernel)
        assert (library.mmaemu_cpu_check(ctypes.byref(call)) == OK) == taken


def test_too_little_scratch_memory_is_refused() -> None:
    library = load().library
    assert library is not None
    call = _valid()
    assert library.mmaemu_cpu_run(ctypes.byref(call), None, 0) != OK
    buffer = ctypes.create_string_buffer(64)
    assert library.mmaemu_cpu_run(ctypes.byref(call), buffer, 64) != OK


def test_names_agree_with_the_header() -> None:
    text = (Path(cpu_library.__file__).parents[1] / "csrc" / "cpu" / "abi.h").read_text()
    for index, name in enumerate(KERNELS):
        assert f"MMAEMU_KERNEL_{name.upper()} = {index}," in text
    for index, name in enumerate(ISAS):
        assert f"MMAEMU_ISA_{name.upper()} = {index}," in text


FALLBACK = """
import platform, sys, warnings
platform.machine = lambda: sys.argv[1] or machine
machine = platform.uname().machine
import torch
from mmaemu.backends.cpu import library
from mmaemu.backends.registry import backends_status, select
from mmaemu.backends.base import AccumulateRequest
from mmaemu.cli.main import main
from mmaemu.gemm.plan import GemmPlan
from mmaemu.instruction.models import get_preset
if sys.argv[2]:
    library.BIN = library.Path(sys.argv[2])
codes = torch.zeros((2, 16), dtype=torch.uint8)
request = AccumulateRequest(codes, codes, "e4m3", "e4m3", get_preset("ada"), GemmPlan(16))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    names = [select(request)[0].name for _ in range(2)]
print(names, [w.category.__name__ for w in caught], backends_status("cpu")["cpu:scalar"].reason)
raise SystemExit(main(["info"]))
"""


@pytest.mark.parametrize(
    ("machine", "folder", "fault", "reason"),
    [
        ("", "", "cpu-library", "its manifest says"),
        ("riscv64", "", "", "no prebuilt CPU library for riscv64"),
        ("", "nowhere", "", "is not part of this installation"),
    ],
)
def test_without_a_sound_library_the_reference_computes_and_says_so(
    machine: str, folder: str, fault: str, reason: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FALLBACK, machine, folder],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "MMAEMU_TEST_FAULT": fault},
        cwd=Path(__file__).resolve().parents[2],
    )
    first, _, info = done.stdout.partition("\n")
    assert "['reference', 'reference']" in first
    assert first.count("BackendFallbackWarning") == 1
    assert reason in first
    assert reason in info


def large_request(backend: CpuBackend, products: int) -> tuple[AccumulateRequest, torch.Tensor]:
    rows, depth = 64, 1 << 10
    codes = torch.zeros((rows, depth), dtype=torch.uint8, device=CPU)
    columns = codes[:1].expand(products // (rows * depth), depth).contiguous()
    one = AccumulateRequest(codes, columns, "e4m3", "e4m3", get_preset("ada"), GemmPlan(depth))
    assert backend.refusal(one) is None
    return one, torch.empty((one.M, one.N), dtype=torch.float32, device=CPU)


@pytest.mark.parametrize("joins_in", [True, False])
def test_ctrl_c_stops_every_thread_before_it_is_raised(
    joins_in: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, kept = [], []
    interrupts = [KeyboardInterrupt("first")] * joins_in + [KeyboardInterrupt("in a wait")] * 3
    wait = threading.Event.wait

    def work(library: object, call: Request) -> None:
        del library
        if threading.current_thread() is threading.main_thread():
            raise interrupts.pop()
        while call.next < call.m * call.n:
            time.sleep(0.01)
        time.sleep(0.05)
        kept.append(call.tensors)
        ended.append(threading.current_thread())

    def interrupted(event: threading.Event, timeout: float | None = None) -> bool:
        if interrupts and timeout == cpu_backend.WAKE_UP_SECONDS:
            raise interrupts.pop()
        return wait(event, timeout)

    monkeypatch.setattr(cpu_backend, "_work", work)
    monkeypatch.setattr(cpu_backend, "PRODUCTS_WITHOUT_CTRL_C", 1 << 40 if joins_in else 1)
    monkeypatch.setattr(threading.Event, "wait", interrupted)
    backend = backends()[-1]
    one, out = large_request(backend, 1 << 24)
    with pytest.raises(KeyboardInterrupt):
        backend.run(one, out, 4)
    assert interrupts == []
    assert len(ended) == 4 - joins_in
    assert not any(thread.is_alive() for thread in ended)
    assert kept == [(one, out)] * len(ended)


@pytest.mark.parametrize("started", [0, 1])
def test_threads_that_cannot_start_are_made_up_for(
    started: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start
    threads: list[threading.Thread] = []

    def limited(thread: threading.Thread) -> None:
        if len(threads) == started:
            raise RuntimeError("can't start new thread")
        threads.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    monkeypatch.setattr(cpu_backend, "PRODUCTS_WITHOUT_CTRL_C", 1)
    backend = next(each for each in backends() if each.status(CPU).available)
    one, out = large_request(backend, 1 << 24)
    out.fill_(1.0)
    backend.run(one, out, 3)
    assert not out.any()
    assert len(threads) == started


CTRL_C = """
import os, signal, threading
import torch
from mmaemu.backends.cpu import backend, backends
from mmaemu.gemm.plan import GemmPlan
from mmaemu.gemm.request import AccumulateRequest
from mmaemu.instruction.models import get_preset

running, work = [], backend._work

def watched(*job):
    running.append(job)
    work(*job)
    running.pop()

backend._work = watched
a, b = (torch.ones((rows, 1024), dtype=torch.uint8) for rows in (64, 1 << 16))
request = AccumulateRequest(a, b, "e4m3", "e4m3", get_preset("ada"), GemmPlan(1024))
scalar, out = backends()[-1], torch.full((64, 1 << 16), -1.0)
# Whoever started the tests in the background may have had it ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    scalar.run(request, out, 2)
except KeyboardInterrupt:
    left = int((out == -1).sum())
    print("interrupted", len(running), left > out.numel() // 2)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="a process cannot send itself Ctrl-C there")
def test_ctrl_c_does_not_wait_for_a_long_gemm() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CTRL_C],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert done.stdout.split("\n")[0] == "interrupted 0 True", done.stdout + done.stderr

"""The live heuristic query against a FAKE driver and cuBLASLt (tests/fakes/fake_gpu.c).

No GPU is involved: what is tested is the descriptor that is built, the order of the checks before
the query, and that every failure becomes a reason instead of an answer.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export import export_tables
from mmaemu.bindings import libcublaslt, libcuda
from mmaemu.bindings.algoconfig import AlgoConfig
from mmaemu.bindings.library import NativeLibraryError, StatusLibrary
from mmaemu.errors import SplitKUnknownError
from mmaemu.gemm.problem import GemmProblem
from mmaemu.profiles import heuristics
from mmaemu.profiles.profile import Profile, get_profile
from mmaemu.profiles.resolve import SplitDecision, resolve
from mmaemu.profiles.table import DATA, DecisionTable, open_table
from record import record_heuristics

SOURCE = Path(__file__).parent.parent / "fakes" / "fake_gpu.c"
H100 = get_profile("hopper")
# Neither recorded nor above a bound.
UNKNOWN = GemmProblem(48, 80, 1040, "e4m3", "e5m2", "bfloat16", use_fast_accum=True)
ENVELOPE = dataclasses.replace(UNKNOWN, M=1 << 12, N=1 << 12)


class FakeState(ctypes.Structure):
    """`fake` of fake_gpu.c: how it is to answer."""

    _fields_ = (
        ("failing", ctypes.c_char * 64),
        ("status", ctypes.c_int32),
        ("device_name", ctypes.c_char * 64),
        ("sm_count", ctypes.c_int32),
        ("has_context", ctypes.c_int32),
        ("version", ctypes.c_int32 * 3),
        ("returned", ctypes.c_int32),
        ("state", ctypes.c_int32),
        ("config", ctypes.c_int32 * 6),
    )


class SeenState(ctypes.Structure):
    """`seen` of fake_gpu.c: what it was asked."""

    _fields_ = (
        ("queries", ctypes.c_int32),
        ("alive", ctypes.c_int32),
        ("compute_type", ctypes.c_int64),
        ("scale_type", ctypes.c_int64),
        ("operation", ctypes.c_int64 * 32),
        ("preference", ctypes.c_int64 * 16),
        ("layout", (ctypes.c_int64 * 4) * 4),
        ("requested", ctypes.c_int64),
    )


@dataclasses.dataclass(frozen=True)
class FakeGpu:
    """The loaded fake."""

    path: Path
    fake: Any
    seen: Any

    def fail(self, function: str, status: int) -> None:
        self.fake.failing = function.encode()
        self.fake.status = status


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or sys.platform == "win32":
        pytest.skip("no C compiler that makes a shared library of the fake")
    path = tmp_path_factory.mktemp("fake") / "libfake_gpu.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(path), str(SOURCE)], check=True)
    return path


@pytest.fixture(autouse=True)
def nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("DISABLE_CUDA", "LIBCUDA_PATH", "CUBLASLT_PATH", "SPLITK_STRICT"):
        monkeypatch.delenv(f"MMAEMU_{name}", raising=False)
    caches = (libcuda._open, libcublaslt._open, libcublaslt._default_names)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.fixture
def gpu(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """A fake H100 PCIe with cuBLASLt 12.8.3 whose heuristic says 3 slices."""
    monkeypatch.setenv("MMAEMU_LIBCUDA_PATH", str(compiled))
    monkeypatch.setenv("MMAEMU_CUBLASLT_PATH", str(compiled))
    library = ctypes.CDLL(str(compiled))
    fake, seen = FakeState.in_dll(library, "fake"), SeenState.in_dll(library, "seen")
    for state in (fake, seen):
        ctypes.memset(ctypes.byref(state), 0, ctypes.sizeof(state))
    fake.device_name = b"NVIDIA H100 PCIe"
    fake.sm_count = 114
    fake.version = (12, 8, 3)
    fake.returned = 1
    # ID, TILE_ID, SPLITK_NUM, REDUCTION_SCHEME, CTA_SWIZZLING, CUSTOM_OPTION
    fake.config = (66, 12, 3, -1, -1, 5)
    return FakeGpu(compiled, fake, seen)


def live(problem: GemmProblem = UNKNOWN, profile: Profile = H100) -> SplitDecision:
    return resolve(problem, profile).decision


# --- the query ------------------------------------------------------------------------------------


def test_an_unrecorded_shape_is_asked_for(gpu: FakeGpu) -> None:
    assert live() == SplitDecision(
        S=3,
        scheme="contiguous",
        source="live-query",
        verified=True,
        table_id=None,
        note="cuBLASLt 12.8.3.14 on this GPU: numSplitsK 3, customOption 5, algo 66, tile 12",
    )
    assert (gpu.seen.queries, gpu.seen.requested, gpu.seen.alive) == (1, 1, 0)


def test_the_descriptor_is_the_one_of_torch(gpu: FakeGpu) -> None:
    live()
    seen = gpu.seen
    assert (seen.compute_type, seen.scale_type) == (68, 0)  # CUBLAS_COMPUTE_32F, CUDA_R_32F
    operation = {index: value for index, value in enumerate(seen.operation) if value != -1}
    # TRANSA = T, TRANSB = N, both scale pointers, FAST_ACCUM; no bias, no result scale.
    assert operation.keys() == {3, 4, 17, 18, 25}
    assert (operation[3], operation[4], operation[25]) == (1, 0, 1)
    assert operation[17] == operation[18] != 0
    # mat2 (e5m2) is A, mat1 (e4m3) is B, C and D are the bfloat16 output: type, rows, columns, ld.
    assert [list(layout) for layout in seen.layout] == [
        [29, 1040, 80, 1040],
        [28, 1040, 48, 1040],
        [14, 80, 48, 80],
        [14, 80, 48, 80],
    ]
    preference = {index: value for index, value in enumerate(seen.preference) if value != -1}
    assert preference == {1: 1 << 20}


@pytest.mark.parametrize(
    ("out", "c", "d"),
    [
        ("float32", 0, 0),
        ("bfloat16", 14, 14),
        ("float16", 2, 2),
        ("float8_e4m3fn", 2, 28),
        ("float8_e5m2", 2, 29),
    ],
)
def test_types_of_c_and_d(gpu: FakeGpu, out: str, c: int, d: int) -> None:
    live(dataclasses.replace(UNKNOWN, out=out))
    assert (gpu.seen.layout[2][0], gpu.seen.layout[3][0]) == (c, d)


def test_slow_accumulation(gpu: FakeGpu) -> None:
    live(dataclasses.replace(UNKNOWN, use_fast_accum=False))
    assert gpu.seen.operation[25] == 0


def test_workspace_and_alignment_of_transformer_engine(gpu: FakeGpu) -> None:
    profile = dataclasses.replace(get_profile("hopper-te"), splitk_maturity="validated")
    assert live(profile=profile).source == "live-query"
    preference = {index: value for index, value in enumerate(gpu.seen.preference) if value != -1}
    assert preference == {1: 32 << 20, **dict.fromkeys((5, 6, 7, 8), 256)}


def test_recorded_decisions_come_first(gpu: FakeGpu) -> None:
    recorded = GemmProblem(64, 5760, 1920, "e4m3", "e4m3", "bfloat16", use_fast_accum=False)
    assert live(recorded).source == "table"
    assert live(dataclasses.replace(UNKNOWN, M=0)).source == "zero-size"
    assert resolve(UNKNOWN, H100, 1).decision.source == "explicit"
    assert live(profile=get_profile("hopper-ws0")).source == "workspace0"
    assert gpu.seen.queries == 0


def test_the_query_comes_before_the_envelope(gpu: FakeGpu) -> None:
    gpu.fake.config[2] = 1
    assert live(ENVELOPE).source == "live-query"
    assert live(ENVELOPE).S == 1
    gpu.fail("cublasLtMatmulAlgoGetHeuristic", 14)
    assert live(ENVELOPE).source == "envelope"


def test_strict_does_not_forbid_the_query(gpu: FakeGpu) -> None:
    assert gpu.fake.returned
    assert resolve(UNKNOWN, H100, strict=True).decision.source == "live-query"


def test_another_layout_is_not_asked_for(gpu: FakeGpu) -> None:
    with pytest.raises(SplitKUnknownError, match="not laid out as the query assumes"):
        resolve(UNKNOWN, H100, layout_std=False)
    assert gpu.seen.queries == 0


def test_an_answer_counts_as_replayed_or_not_like_any_other(gpu: FakeGpu) -> None:
    gpu.fake.config[2] = 17
    resolution = resolve(UNKNOWN, H100)
    assert not resolution.decision.verified
    assert resolution.caution is not None
    assert "source live-query" in resolution.caution.message


def test_the_library_handle_is_made_once_per_device(gpu: FakeGpu) -> None:
    live()
    gpu.fail("cublasLtCreate", 14)
    assert live().source == "live-query"
    # A context on another device needs a handle of its own.
    gpu.fake.has_context = 1
    with pytest.raises(SplitKUnknownError, match=r"cublasLtCreate failed"):
        live()


# --- when it is not asked -------------------------------------------------------------------------


def rename(gpu: FakeGpu) -> None:
    gpu.fake.device_name = b"NVIDIA H100 80GB HBM3"


def fewer_sms(gpu: FakeGpu) -> None:
    gpu.fake.sm_count = 113


def other_major(gpu: FakeGpu) -> None:
    gpu.fake.version = (13, 8, 3)


def other_patch(gpu: FakeGpu) -> None:
    gpu.fake.version = (12, 8, 4)


def longer_patch(gpu: FakeGpu) -> None:
    gpu.fake.version = (12, 8, 31)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (rename, "this GPU is NVIDIA H100 80GB HBM3 with 114 SMs, not NVIDIA H100 PCIe with 114"),
        (fewer_sms, "this GPU is NVIDIA H100 PCIe with 113 SMs, not NVIDIA H100 PCIe with 114"),
        (other_major, "cuBLASLt is 13.8.3, not 12.8.3.14"),
        (other_patch, "cuBLASLt is 12.8.4, not 12.8.3.14"),
        (longer_patch, "cuBLASLt is 12.8.31, not 12.8.3.14"),
    ],
)
def test_another_platform_is_not_asked(
    gpu: FakeGpu, change: Callable[[FakeGpu], None], reason: str
) -> None:
    assert heuristics.platform_mismatch(H100) is None
    assert H100.matches_device()
    change(gpu)
    assert heuristics.platform_mismatch(H100) == reason
    assert not H100.matches_device()
    with pytest.raises(SplitKUnknownError, match=f"live query: {reason}"):
        live()
    assert gpu.seen.queries == 0


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ("gpu_name", "names no GPU, SM count and cuBLASLt version"),
        ("sm_count", "names no GPU, SM count and cuBLASLt version"),
        ("cublaslt_version", "names no GPU, SM count and cuBLASLt version"),
        ("workspace_bytes", "states no workspace"),
        ("splitk_table", "no table says which scheme"),
    ],
)
def test_a_profile_that_says_too_little_is_not_asked_for(
    gpu: FakeGpu, field: str, reason: str
) -> None:
    profile = dataclasses.replace(H100, **{field: None})  # type: ignore[arg-type]
    with pytest.raises(SplitKUnknownError, match=f"live query: .*{reason}"):
        live(profile=profile)
    assert gpu.seen.queries == 0


def test_a_size_beyond_64_bits_is_not_asked_for(gpu: FakeGpu) -> None:
    with pytest.raises(SplitKUnknownError, match="live query: cuBLASLt takes sizes up to"):
        live(dataclasses.replace(UNKNOWN, K=1 << 64))
    assert gpu.seen.queries == 0


def test_cuda_can_be_disabled(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMAEMU_DISABLE_CUDA", "1")
    with pytest.raises(SplitKUnknownError, match="MMAEMU_DISABLE_CUDA is set"):
        live()
    assert gpu.seen.queries == 0


# --- failures -------------------------------------------------------------------------------------

DRIVER = ("cuInit", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute")
CREATED = ("MatmulDesc", "MatrixLayout", "MatmulPreference")
LIBRARY = (
    "cublasLtGetProperty",
    "cublasLtCreate",
    *(f"cublasLt{kind}{action}" for kind in CREATED for action in ("Create", "Destroy")),
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmulAlgoConfigGetAttribute",
)


@pytest.mark.parametrize("function", DRIVER)
@pytest.mark.parametrize(
    ("status", "name"), [(100, "CUDA_ERROR_NO_DEVICE"), (12345, "unlisted CUresult")]
)
def test_a_failing_driver(gpu: FakeGpu, function: str, status: int, name: str) -> None:
    gpu.fail(function, status)
    with pytest.raises(SplitKUnknownError, match=rf"{function} failed: {name} \({status}\)"):
        live()


@pytest.mark.parametrize("function", LIBRARY)
@pytest.mark.parametrize("status", [*libcublaslt.STATUS_NAMES, 12345])
def test_a_failing_library(gpu: FakeGpu, function: str, status: int) -> None:
    """Every function with every status: a reason, no answer, and nothing left behind."""
    gpu.fail(function, status)
    name = libcublaslt.STATUS_NAMES.get(status, "unlisted cublasStatus_t")
    with pytest.raises(SplitKUnknownError, match=rf"{function} failed: {name} \({status}\)"):
        live()
    assert gpu.seen.alive == 0


@pytest.mark.parametrize("status", [15, 7])
def test_a_result_with_a_failure_state(gpu: FakeGpu, status: int) -> None:
    gpu.fake.state = status
    name = libcublaslt.STATUS_NAMES[status]
    with pytest.raises(SplitKUnknownError, match=rf"no algorithm: {name} \({status}\)"):
        live()


def test_no_result(gpu: FakeGpu) -> None:
    gpu.fake.returned = 0
    with pytest.raises(SplitKUnknownError, match="no algorithm: CUBLAS_STATUS_NOT_SUPPORTED"):
        live()


def test_a_failure_is_not_remembered_for_the_next_query(gpu: FakeGpu) -> None:
    gpu.fail("cublasLtMatmulAlgoGetHeuristic", 14)
    with pytest.raises(SplitKUnknownError):
        live()
    gpu.fail("", 0)
    assert live().source == "live-query"


def test_the_device_of_the_current_context(gpu: FakeGpu) -> None:
    assert libcuda.current_device() == libcuda.Device(0, "NVIDIA H100 PCIe", 114, (9, 0))
    gpu.fake.has_context = 1
    assert libcuda.current_device().handle == 1


@pytest.mark.parametrize("variable", ["MMAEMU_LIBCUDA_PATH", "MMAEMU_CUBLASLT_PATH"])
def test_a_missing_library(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, variable: str, tmp_path: Path
) -> None:
    monkeypatch.setenv(variable, str(tmp_path / "nothing.so"))
    for _ in range(2):
        with pytest.raises(SplitKUnknownError, match=r"cannot load .*nothing\.so"):
            live()
    assert gpu.seen.queries == 0


def test_without_a_gpu_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libcuda, "_default_names", lambda: ("libno_such_driver.so",))
    with pytest.raises(SplitKUnknownError, match="live query: cannot load libno_such_driver"):
        live()


def test_a_library_that_is_another_one(gpu: FakeGpu) -> None:
    prototypes = {"cublasLtNoSuchFunction": ()}
    with pytest.raises(NativeLibraryError, match="has no function cublasLtNoSuchFunction"):
        StatusLibrary([str(gpu.path)], prototypes, str)


def test_the_first_name_that_loads_is_used(gpu: FakeGpu) -> None:
    library = StatusLibrary(["libno_such_library.so", str(gpu.path)], {}, str)
    assert library.name == str(gpu.path)
    with pytest.raises(NativeLibraryError, match=r"cannot load .*first.*second"):
        StatusLibrary(["libfirst.so", "libsecond.so"], {}, str)


def test_where_the_library_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    names = libcublaslt._default_names(12)
    assert names[0] == "libcublasLt.so.12"
    assert all(name.endswith("libcublasLt.so.12") for name in names)
    libcublaslt._default_names.cache_clear()
    monkeypatch.setattr(sys, "platform", "win32")
    assert libcublaslt._default_names(12)[0] == "cublasLt64_12.dll"


# --- recording ------------------------------------------------------------------------------------


@pytest.fixture
def shapes(tmp_path: Path) -> Path:
    path = tmp_path / "shapes.csv"
    path.write_text("48,80,1040\n64, 64, 16384\n\n48,80,1040\n")
    return path


def record(shapes: Path, *arguments: str) -> tuple[int, Path]:
    out = shapes.parent / "recorded" / "h100pcie.npz"
    code = record_heuristics.main(
        ["--shapes", str(shapes), "--out", str(out), "--by", "A. Tester", *arguments]
    )
    return code, out


def test_a_recording(gpu: FakeGpu, shapes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = record(shapes, "--workspace", "1048576", "--workspace", "0")
    assert code == 0
    # 2 shapes, 3 pairs of formats, 5 outputs, 2 modes, 2 workspaces.
    assert gpu.seen.queries == 120
    assert "120 decisions, 120 of them split" in capsys.readouterr().out
    document = json.loads(out.with_suffix(".json").read_text())
    assert document["platform"]["gpu"] == "NVIDIA H100 PCIe"
    assert document["platform"]["cublaslt"] == "12.8.3"
    assert document["codes"]["ws_bytes"] == [0, 1 << 20]
    with np.load(out) as columns:
        sizes = {name: len(columns[name]) for name in columns}
        assert sizes == dict.fromkeys((*record_heuristics.KEY, *record_heuristics.DECISION), 120)
        assert {columns[name].dtype.str for name in ("M", "N", "K")} == {"<i4"}
        assert set(columns["splitK"].tolist()) == {3}
        assert set(columns["custom"].tolist()) == {5}


def test_what_is_not_supported_is_left_out(gpu: FakeGpu, shapes: Path) -> None:
    gpu.fake.returned = 0
    code, out = record(shapes)
    assert code == 0
    with np.load(out) as columns:
        assert columns["M"].size == 0


def test_any_other_failure_ends_the_recording(
    gpu: FakeGpu, shapes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu.fail("cublasLtMatmulAlgoGetHeuristic", 14)
    code, out = record(shapes)
    assert code == 2
    assert "CUBLAS_STATUS_INTERNAL_ERROR" in capsys.readouterr().err
    assert not out.exists()


def test_recording_needs_a_gpu(
    shapes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MMAEMU_DISABLE_CUDA", "1")
    assert record(shapes)[0] == 2
    assert "no GPU with cuBLASLt 12" in capsys.readouterr().err


def test_recording_checks_the_version(
    gpu: FakeGpu, shapes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert record(shapes, "--cublaslt-version", "12.9.0.1")[0] == 2
    assert "this cuBLASLt is 12.8.3, not 12.9.0.1" in capsys.readouterr().err
    assert gpu.seen.queries == 0


@pytest.mark.parametrize("line", ["1,2", "1,2,x", "0,1,1", "1,2,3,4", "-1,2,3", "1.5,2,3"])
def test_a_wrong_shape(shapes: Path, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    shapes.write_text(f"16,16,16\n{line}\n")
    assert record(shapes)[0] == 2
    assert "line 2: expected M,N,K above zero" in capsys.readouterr().err


def test_missing_shapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert record(tmp_path / "none.csv")[0] == 2
    assert "cannot be read" in capsys.readouterr().err


def test_a_recording_makes_a_table(gpu: FakeGpu, shapes: Path, tmp_path: Path) -> None:
    """Another GPU: record, export, resolve with a profile of one's own."""
    gpu.fake.device_name = b"NVIDIA H200"
    gpu.fake.sm_count = 132
    code, out = record(shapes, "--cublaslt-version", "12.8.3.14")
    assert code == 0
    assert export_tables.main([str(out), "--data", str(tmp_path / "data")]) == 0
    folder = tmp_path / "data" / "h200" / "cublaslt-12.8.3.14"
    assert DecisionTable(folder).rows == 240
    provenance = json.loads((folder / "provenance.json").read_bytes())
    assert provenance["attribution"] == ["A. Tester"]
    profile = dataclasses.replace(
        H100, name="h200", gpu_name="NVIDIA H200", sm_count=132, splitk_table=str(folder)
    )
    resolution = resolve(UNKNOWN, profile)
    assert (resolution.decision.S, resolution.decision.source) == (3, "table")
    assert not resolution.decision.verified
    assert resolution.caution is not None


def cut(table_id: str, data: Path, K: int) -> DecisionTable:
    """A copy of a real table with the rows of one K only, which is quick to extend."""
    table = open_table(table_id)
    rows = export_tables.decode(table)
    rows = dataclasses.replace(rows, values=rows.values[rows.values[:, 4] == K])
    origins = json.loads((DATA / table_id / "provenance.json").read_bytes())["sources"]
    about = export_tables.about_table(table)
    (data / table_id).mkdir(parents=True)
    for name, content in export_tables.table_files(rows, about, origins).items():
        (data / table_id / name).write_bytes(content)
    return DecisionTable(data / table_id)


def test_a_recording_extends_a_table(
    gpu: FakeGpu, shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One more shape for the RTX 4060: old rows stay, the bounds follow, a clash is refused."""
    ada = "rtx4060/cublaslt-12.8.3.14"
    data = tmp_path / "data"
    before = cut(ada, data, K=16384)
    gpu.fake.device_name = b"NVIDIA GeForce RTX 4060"
    gpu.fake.config = (35, 13, 2, -1, -1, 1)
    shapes.write_text("1000,1008,48\n")
    code, out = record(shapes, "--cublaslt-version", "12.8.3.14")
    assert code == 0
    assert export_tables.main([str(out), "--data", str(data)]) == 0
    table = DecisionTable(data / ada)
    assert table.rows == before.rows + 120
    assert table.replayed == before.replayed
    new = GemmProblem(1000, 1008, 48, "e4m3", "e4m3", "bfloat16", use_fast_accum=False)
    assert table.find(new, 1 << 20) == AlgoConfig(2, 1, 35, 13)
    assert isinstance(before.envelope.infer(new, 1 << 20), tuple)
    assert isinstance(table.envelope.infer(new, 1 << 20), str)
    old = dataclasses.replace(new, M=64, N=64, K=16384)
    assert table.find(old, 1 << 20) == before.find(old, 1 << 20)
    provenance = json.loads((data / ada / "provenance.json").read_bytes())
    assert provenance["attribution"] == ["A. Tester", "Xun Ding"]
    assert len(provenance["sources"]) == 2

    shapes.write_text("64,64,16384\n")
    code, out = record(shapes, "--cublaslt-version", "12.8.3.14")
    assert export_tables.main([str(out), "--data", str(data)]) == 2
    assert "have two decisions" in capsys.readouterr().err
    assert DecisionTable(data / ada).rows == table.rows


def test_a_split_above_a_searched_bound_is_refused(
    gpu: FakeGpu, shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert H100.splitk_table is not None
    assert gpu.fake.config[2] == 3
    cut(H100.splitk_table, tmp_path, K=4096)
    shapes.write_text("8192,8192,4112\n")
    code, out = record(shapes, "--cublaslt-version", "12.8.3.14", "--workspace", "1048576")
    assert code == 0
    assert export_tables.main([str(out), "--data", str(tmp_path)]) == 2
    assert "recorded splits lie above their bound, the first M=8192" in capsys.readouterr().err

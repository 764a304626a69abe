"""Measure every backend against torch.mm in fp32 and the torch reference, in one process.

    python bench/run.py                          table, bench.json and bench.png in build/bench
    python bench/run.py --threads 2              with two threads everywhere
    python bench/run.py --peer /path/to/python   also another installation's scaled_mm

A round times torch.mm and the backend one after the other; results are medians of the rounds'
ratios, so that a machine whose speed drifts changes both alike. [tool.mmaemu.performance] has the
marks: exit 1 if a threshold is missed, 3 if one could not be measured here. Beside a rate stands
the share of what the instructions of the kernel, or the FMA units of the GPU, allow. What comes
before a GEMM, importing and finding the split, is measured in time alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE: Final = Path(__file__).resolve().parent
TABLE: Final = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
    "mmaemu"
]["performance"]
sys.path.insert(0, str(HERE.parent))

import mmaemu  # noqa: E402 - the checkout's, whatever is installed
from mmaemu.backends.base import Backend  # noqa: E402
from mmaemu.backends.registry import FAMILIES, backends_status, select  # noqa: E402
from mmaemu.gemm.plan import GemmPlan  # noqa: E402
from mmaemu.gemm.request import AccumulateRequest  # noqa: E402
from mmaemu.instruction.models import get_preset  # noqa: E402

SCHEMA: Final = "mmaemu.bench/1"
SHAPES: Final = ((64, 1920, 5760), (256, 4096, 1024), (16, 4096, 4096))
SMALL: Final = (16, 128, 16)
MODELS: Final = ("ada", "hopper")
WIDE_MODELS: Final = ("b200_mma_sync", "sm_120_fp8_fp32", "tcgen05_f8f6f4_fp32")
"""Models with 25 fraction bits; measured on the first shape alone."""
REFERENCE_SHAPE: Final = (64, 1920, 384)
"""The reference is measured on a piece, since it is hundreds of times slower."""
RESOLVED: Final = (
    ("hopper", (64, 5760, 1920)),
    ("ada", (64, 64, 16384)),
    ("hopper", (65537, 65536, 65536)),
)
"""Profiles and M, N, K whose split is asked for: a recorded one, a split one, an envelope's."""
STARTS: Final = 12
UNITS: Final = {"microseconds": 1e6, "milliseconds": 1e3}
MET, MISSED, UNDECIDED = 0, 1, 3


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
        backend: value of `backend=`, or "torch.mm".
        model: instruction model, "" for torch.mm.
        shape: M, K, N.
        seconds: median time of a call.
        rate: 1e9 products a second.
        to_mm: time divided by torch.mm's in the same rounds.
        to_reference: how many times as fast as the reference of the same model.
        limit: the rate that the machine's instructions allow, None where it is not known.
    """

    backend: str
    model: str
    shape: tuple[int, int, int]
    seconds: float
    rate: float
    to_mm: float
    to_reference: float | None = None
    limit: float | None = None


@dataclass
class Report:
    """All of a run.

    Attributes:
        small: seconds of calls that are not compared with torch.mm, by name.
    """

    machine: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    small: dict[str, float] = field(default_factory=dict)
    peers: list[dict[str, Any]] = field(default_factory=list)
    scaling: dict[str, dict[str, float]] = field(default_factory=dict)
    marks: list[dict[str, Any]] = field(default_factory=list)


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def pairs(
    first: Callable[[], object], second: Callable[[], object], rounds: int
) -> tuple[float, float, float]:
    """Median times of two calls taken in turn, and the median of second / first."""
    first()
    second()
    times = [(timed(first), timed(second)) for _ in range(rounds)]
    return (
        statistics.median(x for x, _ in times),
        statistics.median(y for _, y in times),
        statistics.median(y / x for x, y in times),
    )


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in _lines(Path("/proc/cpuinfo"))
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "mmaemu": mmaemu.__version__,
        "load": os.getloadavg() if hasattr(os, "getloadavg") else None,
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def request_of(shape: tuple[int, int, int], model: str, device: torch.device) -> AccumulateRequest:
    """Normal codes of both signs, fast accumulation, unsplit."""
    m, k, n = shape
    generator = torch.Generator().manual_seed(1)
    a, b = (
        torch.randn((rows, k), generator=generator, dtype=torch.float32, device="cpu")
        .to(torch.float8_e4m3fn)
        .view(torch.uint8)
        .to(device)
        for rows in (m, n)
    )
    return AccumulateRequest(a, b, "e4m3", "e4m3", get_preset(model, warn=False), GemmPlan(k))


def clock_hertz(device: torch.device) -> float | None:
    """The clock of the device as the system states it; None where it states none."""
    if device.type == "cuda":
        kilohertz = getattr(torch.cuda.get_device_properties(device), "clock_rate", None)
        return None if kilohertz is None else kilohertz * 1e3
    stated = [line.split(":")[1] for line in _lines(Path("/proc/cpuinfo")) if "cpu MHz" in line]
    return max(map(float, stated)) * 1e6 if stated else None


def limit_of(backend: str, model: str, device: torch.device) -> float | None:
    """Products a second, in 1e9, that the machine's instructions allow; None where not known.

    On a GPU: one product an fp32 FMA lane and cycle.
    """
    clock = clock_hertz(device)
    if clock is None:
        return None
    if device.type == "cuda":
        facts = torch.cuda.get_device_properties(device)
        # Up to compute capability 8.0 a multiprocessor has 64 lanes, later 128.
        lanes = 64 if (facts.major, facts.minor) <= (8, 0) else 128
        return facts.multi_processor_count * lanes * clock / 1e9
    found = (row for row in TABLE["limits"] if (row["backend"], row["model"]) == (backend, model))
    row = next(found, None)
    if row is None:
        return None
    return float(row["products_per_cycle"]) * torch.get_num_threads() * clock / 1e9


def usable(device: torch.device) -> list[str]:
    """Backends that can be measured on a device, without the oracles among them."""
    slow = ("reference", "cpu:scalar")
    return [name for name, s in backends_status(device).items() if s.available and name not in slow]


def runner(backend: Backend, request: AccumulateRequest) -> Callable[[], object]:
    """A call of the backend alone."""
    out = torch.empty((request.M, request.N), dtype=torch.float32, device=request.device)
    return finished(lambda: backend.accumulate(request, out), request.device)


def finished(call: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """A call that ends when its work has ended."""
    if device.type != "cuda":
        return call

    def on_device() -> None:
        call()
        torch.cuda.synchronize(device)

    return on_device


def reference_rate(model: str, device: torch.device) -> float:
    """Products a second of the torch reference."""
    request = request_of(REFERENCE_SHAPE, model, device)
    call = runner(select(request, "reference")[0], request)
    call()
    seconds = statistics.median(timed(call) for _ in range(3))
    return request.M * request.N * request.K / seconds


def measure(report: Report, device: torch.device, rounds: int) -> None:
    """Fill in the rows of all backends."""
    wide = WIDE_MODELS if device.type == "cpu" else ()
    rates = {model: reference_rate(model, device) for model in (*MODELS, *wide)}
    for shape in SHAPES:
        models = (*MODELS, *wide) if shape == SHAPES[0] else MODELS
        m, k, n = shape
        left = torch.randn((m, k), dtype=torch.float32, device=device)
        right = torch.randn((n, k), dtype=torch.float32, device=device).t()
        products = m * k * n
        for model in models:
            request = request_of(shape, model, device)
            for name in usable(device):
                backend, _ = select(request, name)
                mm, seconds, ratio = pairs(
                    finished(lambda: torch.mm(left, right), device),  # noqa: B023 - called at once
                    runner(backend, request),
                    rounds,
                )
                rate = products / seconds
                limit = limit_of(name, model, device)
                row = Row(
                    name, model, shape, seconds, rate / 1e9, ratio, rate / rates[model], limit
                )
                report.rows.append(row)
                print_row(row)
            row = Row("torch.mm", model, shape, mm, products / mm / 1e9, 1.0)
            report.rows.append(row)
            print_row(row)
        if device.type == "cuda":
            measure_native(report, shape, (left, right))
        for model in models:
            row = Row("reference", model, shape, products / rates[model], rates[model] / 1e9, 0.0)
            report.rows.append(row)


def measure_native(
    report: Report, shape: tuple[int, int, int], operands: tuple[torch.Tensor, torch.Tensor]
) -> None:
    """The GPU's own matrix units on the same shape: bf16, and FP8 where there is any."""
    left, right = operands
    one = torch.ones((), dtype=torch.float32, device=left.device)
    half = [each.to(torch.bfloat16) for each in operands]
    a, b = (each.to(torch.float8_e4m3fn) for each in (left, right.t().contiguous()))
    calls = {
        "torch.mm bf16": lambda: torch.mm(*half),
        "_scaled_mm": lambda: torch._scaled_mm(  # noqa: SLF001 - the very function to compare with
            a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True
        ),
    }
    for name, call in calls.items():
        try:
            _, seconds, ratio = pairs(
                finished(lambda: torch.mm(left, right), left.device),
                finished(call, left.device),
                3,
            )
        except RuntimeError as error:
            print(f"{name}: not measured: {error}")
            continue
        m, k, n = shape
        row = Row(name, "native", shape, seconds, m * k * n / seconds / 1e9, ratio)
        report.rows.append(row)
        print_row(row)


def print_row(row: Row) -> None:
    """One line of the table."""
    shape = "x".join(map(str, row.shape))
    faster = "" if row.to_reference is None else f"{row.to_reference:8.1f} x reference"
    share = "" if row.limit is None else f", {row.rate / row.limit:.0%} of {row.limit:.1f} Gp/s"
    print(
        f"{row.backend:12} {row.model:19} {shape:14} {row.seconds * 1e3:9.3f} ms "
        f"{row.rate:7.2f} Gp/s {row.to_mm:6.2f} x torch.mm {faster}{share}",
        flush=True,
    )


def measure_small(report: Report) -> None:
    """Microseconds of small calls: the backend alone, and scaled_mm with all checks."""
    m, k, n = SMALL
    request = request_of(SMALL, "ada", torch.device("cpu"))
    for name in usable(torch.device("cpu")):
        report.small[name] = _median_call(runner(select(request, name)[0], request))
    a = request.a.view(torch.float8_e4m3fn)
    b = request.b.view(torch.float8_e4m3fn).t()
    one = torch.ones((), dtype=torch.float32, device="cpu")

    def call() -> object:
        return mmaemu.scaled_mm(a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)

    try:
        report.small["scaled_mm"] = _median_call(call)
    except mmaemu.MmaemuError:
        report.small["scaled_mm"] = _median_call(
            lambda: mmaemu.scaled_mm(
                a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=True, splitk=1
            )
        )
    for name, seconds in report.small.items():
        print(f"{name:12} {m}x{k}x{n}: {seconds * 1e6:.1f} us a call")


def _median_call(call: Callable[[], object]) -> float:
    call()
    return statistics.median(timed(call) for _ in range(3000))


FRESH: Final = """
import sys, time
import numpy
start = time.perf_counter()
import mmaemu
imported = time.perf_counter()
m, n, k = map(int, sys.argv[1:])
mmaemu.resolve_splitk(m, n, k, a_dtype="e4m3", b_dtype="e4m3", out_dtype="bfloat16",
                      use_fast_accum=False)
print(imported - start, time.perf_counter() - start)
"""


def measure_start(report: Report) -> None:
    """The import and the first split of a fresh interpreter, and a split that is asked for again.

    The interpreter has numpy and compiled modules, as an installation has them.
    """
    command = [sys.executable, "-c", FRESH, *map(str, RESOLVED[0][1])]
    with tempfile.TemporaryDirectory(prefix="mmaemu-bench-") as compiled:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled}
        environment["PYTHONPATH"] = str(HERE.parent)
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        times = [
            [float(text) for text in subprocess.check_output(command, env=environment).split()]
            for _ in range(STARTS)
        ][1:]  # The first compiles the modules.
    imported, split = map(statistics.median, zip(*times, strict=True))
    slowest = max(_median_call(_resolver(*each)) for each in RESOLVED)
    found = {"import": imported, "first_split": split, "split": slowest}
    report.small.update(found)
    for name, seconds in found.items():
        print(f"{name:12} {seconds * 1e6:.1f} us")


def _resolver(profile: str, sizes: tuple[int, int, int]) -> Callable[[], object]:
    return lambda: mmaemu.resolve_splitk(
        *sizes,
        a_dtype="e4m3",
        b_dtype="e4m3",
        out_dtype="bfloat16",
        use_fast_accum=False,
        profile=profile,
    )


def measure_scaling(report: Report, rounds: int) -> None:
    """Wall and CPU time of one and two threads: the fastest CPU backend, and torch.mm."""
    request = request_of(SHAPES[0], "hopper", torch.device("cpu"))
    names = usable(torch.device("cpu"))
    if not names or (os.cpu_count() or 1) < 2:  # noqa: PLR2004 - two threads
        return
    m, k, n = SHAPES[0]
    left, right = torch.randn((m, k)), torch.randn((k, n))
    calls = {
        names[0]: runner(select(request, names[0])[0], request),
        # What the machine itself gives with a second thread.
        "torch.mm": lambda: torch.mm(left, right),
    }
    before = torch.get_num_threads()
    for name, call in calls.items():
        times: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
        for _ in range(rounds):
            for threads, found in times.items():
                torch.set_num_threads(threads)
                spent = time.process_time()
                wall = timed(call)
                found.append((wall, time.process_time() - spent))
        wall_1, wall_2 = (statistics.median(w for w, _ in times[n]) for n in (1, 2))
        cpu_1, cpu_2 = (statistics.median(c for _, c in times[n]) for n in (1, 2))
        report.scaling[name] = {"speedup": wall_1 / wall_2, "cpu_time": cpu_2 / cpu_1}
        print(
            f"{name}: two threads {wall_1 / wall_2:.2f} x as fast, CPU time {cpu_2 / cpu_1:.2f} x"
        )
    torch.set_num_threads(before)


PEER: Final = """
import json, statistics, sys, time, warnings
warnings.simplefilter("ignore")
import torch, mmaemu
torch.set_num_threads(int(sys.argv[1]))
result = []
for m, k, n in json.loads(sys.argv[2]):
    a = torch.randn(m, k).to(torch.float8_e4m3fn); b = torch.randn(n, k).to(torch.float8_e4m3fn).t()
    one = torch.ones(())
    call = lambda: mmaemu.scaled_mm(a, b, one, one, out_dtype=torch.float32, use_fast_accum=True,
                                    splitk=1)
    call()
    times = []
    for _ in range(3):
        start = time.perf_counter(); call(); times.append(time.perf_counter() - start)
    result.append(statistics.median(times))
print(json.dumps({"version": mmaemu.__version__, "seconds": result}))
"""


def measure_peer(report: Report, interpreter: str) -> None:
    """Time scaled_mm of the installation that an interpreter sees."""
    shapes = [(m, k, n // 16 * 2) for m, k, n in SHAPES]
    command = [interpreter, "-c", PEER, str(torch.get_num_threads()), json.dumps(shapes)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=HERE)
    if done.returncode:
        print(f"peer: not measured: {done.stderr.strip().splitlines()[-1:]}")
        return
    answer = json.loads(done.stdout.splitlines()[-1])
    for (m, k, n), seconds in zip(shapes, answer["seconds"], strict=True):
        row = {"version": answer["version"], "shape": (m, k, n), "rate": m * k * n / seconds / 1e9}
        report.peers.append(row)
        print(f"peer {answer['version']}: {m}x{k}x{n} {row['rate']:.2f} Gp/s")


def judge(report: Report, device: torch.device) -> int:
    """Compare with the thresholds and the goals of this kind of device.

    Returns:
        0 no threshold is missed, 1 one is, 3 one was not measured.
    """
    for mark in TABLE["marks"]:
        if mark.get("backend", "").startswith("cuda") != (device.type == "cuda"):
            continue
        value = _value(report, mark)
        bound = mark.get("most", mark.get("least"))
        goal = mark.get("goal", bound)
        verdict = _verdict(value, mark, bound)
        reached = _verdict(value, mark, goal) == "met"
        shown = "-" if value is None else f"{value:.2f}"
        sign = "<=" if "most" in mark else ">="
        print(
            f"mark {mark['name']}: {shown} {sign} {bound}: {verdict}; "
            f"goal {goal}: {'reached' if reached else 'not reached'}"
        )
        report.marks.append({**mark, "value": value, "verdict": verdict, "goal_reached": reached})
    verdicts = {mark["verdict"] for mark in report.marks}
    if "missed" in verdicts:
        return MISSED
    return MET if verdicts == {"met"} else UNDECIDED


def _verdict(value: float | None, mark: dict[str, Any], bound: float) -> str:
    if value is None:
        return "not measured"
    return "met" if (value <= bound if "most" in mark else value >= bound) else "missed"


def counts(report: Report) -> dict[str, int]:
    """The counts of a tier result: a mark for a test, and the goals beside."""
    verdicts = [mark["verdict"] for mark in report.marks]
    return {
        "tests": len(verdicts),
        "passed": verdicts.count("met"),
        "failures": verdicts.count("missed"),
        "errors": 0,
        "skipped": verdicts.count("not measured"),
        "goals": sum("goal" in mark for mark in report.marks),
        "goals_reached": sum("goal" in mark and mark["goal_reached"] for mark in report.marks),
    }


def _value(report: Report, mark: dict[str, Any]) -> float | None:
    if mark["what"] in UNITS:
        seconds = report.small.get(mark["call"])
        return None if seconds is None else seconds * UNITS[mark["what"]]
    if mark["what"] in {"speedup", "cpu_time"}:
        found = (each for name, each in report.scaling.items() if name != "torch.mm")
        return next((each[mark["what"]] for each in found), None)
    # The worst of the models counts.
    models = WIDE_MODELS if mark.get("models") == "wide" else MODELS
    values = [
        getattr(row, mark["what"])
        for row in report.rows
        if row.backend == mark["backend"]
        and row.model in models
        and list(row.shape) == mark.get("shape", list(row.shape))
    ]
    return (max if "most" in mark else min)(values, default=None)


def figures(report: Report) -> dict[str, Any]:
    """The numbers that pages quote, rounded as they quote them, by backend, model and M."""
    found: dict[str, Any] = {}
    for row in report.rows:
        place = found.setdefault(_key(row.backend), {}).setdefault(row.model, {})
        numbers = {"rate": round(row.rate, 1), "to_mm": round(row.to_mm, 2)}
        if row.limit is not None:
            numbers["share"] = round(100 * row.rate / row.limit)
        place[f"m{row.shape[0]}"] = numbers
    for name, numbers in report.scaling.items():
        found.setdefault(_key(name), {})["threads"] = {k: round(x, 2) for k, x in numbers.items()}
    for name, seconds in report.small.items():
        found.setdefault(_key(name), {})["microseconds"] = round(seconds * 1e6, 1)
    return found


def _key(name: str) -> str:
    """A backend or a call as pages name it in a citation, which has no room for dots and colons."""
    return name.removeprefix("cpu:").replace(".", "_").replace(":", "_")


def draw(report: Report, path: Path) -> None:
    """A bar chart of the rates."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    names = list(dict.fromkeys(row.backend for row in report.rows if row.model == "hopper"))
    width = 0.8 / len(names)
    for place, name in enumerate(names):
        rows = [row for row in report.rows if row.backend == name and row.model == "hopper"]
        at = [index + place * width for index in range(len(rows))]
        bars = axes.bar(at, [row.rate for row in rows], width, label=name)
        for bar, row in zip(bars, rows, strict=True):
            if row.limit is not None:  # What the machine allows, as a line above the bar.
                left = bar.get_x()
                axes.hlines(row.limit, left, left + width, colors="black", linestyles="dotted")
    axes.set_xticks([index + 0.4 - width / 2 for index in range(len(SHAPES))])
    axes.set_xticklabels(["M, K, N = " + ", ".join(map(str, shape)) for shape in SHAPES])
    axes.set_ylabel("1e9 products a second")
    axes.set_title(f"hopper, {report.machine['threads']} thread(s), {report.machine['cpu']}")
    axes.legend()
    # Without the date and version that it would write, the file depends on the numbers alone.
    figure.savefig(path, dpi=110, metadata={"Software": None})


def write(path: Path, document: dict[str, Any]) -> None:
    """Write a report."""
    path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE.parent / "build" / "bench")
    parser.add_argument("--name", default="bench", help="of the files in the folder")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--peer", action="append", default=[], metavar="PYTHON")
    arguments = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    torch.set_num_threads(arguments.threads)
    device = torch.device(arguments.device)
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / f"{arguments.name}.json"
    if device.type == "cuda" and not torch.cuda.is_available():
        reason = "torch sees no CUDA device"
        print(f"bench: {reason}")
        write(path, {"schema": SCHEMA, "reason": reason, "counts": {}})
        return UNDECIDED
    report = Report(machine())
    print(json.dumps(report.machine))
    print("families:", ", ".join(family.name for family in FAMILIES))
    measure(report, device, arguments.rounds)
    if device.type == "cpu":
        measure_small(report)
        measure_start(report)
        measure_scaling(report, arguments.rounds)
    for interpreter in arguments.peer:
        measure_peer(report, interpreter)
    code = judge(report, device)
    document = {
        "schema": SCHEMA,
        **asdict(report),
        "counts": counts(report),
        "figures": figures(report),
    }
    write(path, document)
    try:
        draw(report, arguments.out / f"{arguments.name}.png")
    except ImportError:
        print("no chart: matplotlib is not installed")
    return code


if __name__ == "__main__":
    raise SystemExit(main())

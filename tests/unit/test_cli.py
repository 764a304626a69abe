"""The command line: exit codes, JSON, usage errors, and what works without torch."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from mmaemu import _settings
from mmaemu._version import __version__
from mmaemu.bindings import libcuda
from mmaemu.cli import command, info, models, output, reference
from mmaemu.cli.main import COMMANDS, main
from mmaemu.errors import DataIntegrityError, MmaemuWarning
from mmaemu.profiles import heuristics, table

ROOT = Path(__file__).parents[2]
OK, FAILED, USAGE, NOT_AVAILABLE = 0, 1, 2, 3

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `mmaemu` with these arguments in this process: exit code, standard output and error."""
    for setting in _settings.SETTINGS:
        monkeypatch.delenv(setting.variable, raising=False)

    def call(*argv: str) -> tuple[int, str, str]:
        code = main([*argv])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)


def keys(value: object) -> object:
    """The keys of nested JSON objects; a list stands for the keys of its first element."""
    if isinstance(value, dict):
        return {key: keys(each) for key, each in value.items()}
    if isinstance(value, list):
        return [keys(value[0])] if value and isinstance(value[0], (dict, list)) else []
    return None


def flat(*names: str) -> dict[str, None]:
    return dict.fromkeys(names)


PLATFORM_KEYS = flat(
    "name",
    "preset",
    "gpu_name",
    "sm_count",
    "cublaslt_version",
    "caller",
    "torch_version",
    "workspace_bytes",
    "align",
    "splitk_table",
    "maturity",
    "splitk_maturity",
)
# The JSON of every command, by schema. A key that goes or changes its meaning needs a new number in
# the schema's name.
SCHEMAS: dict[str, dict[str, object]] = {
    "mmaemu-info/1": {
        "mmaemu": flat("version", "folder"),
        "python": flat("version", "platform"),
        "packages": [flat("name", "version", "error")],
        **flat("gpu", "gpu_note", "schema", "exit_code"),
        "settings": {},
        "profiles": [flat("name", "description", "matches", "reason")],
        "models": [flat("name", "maturity")],
        "backends": [
            {
                **flat("name", "available", "source", "reason", "validated_here"),
                "gates": [],
                "validated_on": [],
            }
        ],
        "tables": [{**flat("name", "rows", "split_rows"), "workspaces": []}],
        "damaged": [],
        "problems": [],
    },
    "mmaemu-explain/1": {
        "call": flat(
            "M",
            "N",
            "K",
            "a",
            "b",
            "out_dtype",
            "use_fast_accum",
            "rowwise",
            "scale_a",
            "scale_b",
            "scale_result",
            "profile",
            "splitk",
            "backend",
        ),
        **flat("valid", "error", "message", "profile", "preset", "preset_maturity", "backend"),
        "split": flat("S", "scheme", "source", "verified", "table_id", "note"),
        **flat("schema", "exit_code"),
        "fallbacks": [],
        "warnings": [],
    },
    "mmaemu-profiles/1": {
        **flat("default", "detailed", "schema", "exit_code"),
        "profiles": [{**PLATFORM_KEYS, "capability": [], "rejects": []}],
    },
    "mmaemu-models/1": {
        **flat("detailed", "schema", "exit_code"),
        "models": [
            {
                **flat(
                    "name",
                    "output",
                    "dot_length",
                    "fraction_bits",
                    "result_fraction_bits",
                    "min_exponent",
                    "accumulator",
                    "maturity",
                    "scope",
                ),
                "inputs": [[]],
                "sources": [],
            }
        ],
    },
}


@pytest.mark.parametrize(
    "argv",
    [
        ("info",),
        ("explain", "32", "128", "1920", "--splitk", "1"),
        ("profiles",),
        ("profiles", "ada"),
        ("models",),
        ("models", "ada"),
    ],
    ids=" ".join,
)
def test_json_has_the_promised_keys_in_order(run: Run, argv: tuple[str, ...]) -> None:
    code, out, err = run(*argv, "--json")
    report = json.loads(out)
    assert (code, err) == (OK, "")
    assert keys(report) == SCHEMAS[report["schema"]]
    assert report["exit_code"] == code
    assert out.isascii()
    assert out == json.dumps(report, indent=1, sort_keys=True) + "\n"


@pytest.mark.parametrize("name", [each.name for each in COMMANDS])
def test_help_shows_every_argument_and_examples(run: Run, name: str) -> None:
    code, out, _ = run(name, "--help")
    chosen = next(each for each in COMMANDS if each.name == name)
    assert code == OK
    assert all(argument.names[0] in out for argument in chosen.arguments)
    assert f"examples:\n  mmaemu {name}" in out
    assert "--json" in out


def test_help_of_the_program_names_commands_and_exit_codes(run: Run) -> None:
    code, out, _ = run("--help")
    assert code == OK
    assert all(each.name in out for each in COMMANDS)
    assert "Exit codes: 0" in out


def test_version(run: Run) -> None:
    code, out, _ = run("--version")
    assert (code, out) == (OK, f"mmaemu {__version__}\n")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ((), "COMMAND"),
        (("nonsense",), "nonsense"),
        (("info", "--nonsense"), "--nonsense"),
        (("explain", "16", "16"), "K"),
        *((("explain", bad, "16", "16"), bad) for bad in ("16.9", "True", "1e3", "1_6", "٣", "")),
        (("explain", "-1", "16", "16"), "-1"),
        (("explain", "16", "16.9", "16"), "16.9"),
        (("explain", "16", "16", "0x10"), "0x10"),
        (("explain", str(2**63), "16", "16"), str(2**63 - 1)),
        (("explain", "9" * 5000, "16", "16"), str(2**63 - 1)),
        (("explain", str(2**62), "16", "16"), "M x K = 4611686018427387904 x 16"),
        (("explain", str(2**62), "0", "0"), "M x N"),
        (("explain", "16", str(2**60), "1"), "M x N"),
        (("explain", str(2**32), "16", str(2**32)), "M x K"),
        (("explain", "16", str(2**32), str(2**32)), "N x K"),
        (("explain", "16", "16", "16", "--a", "fp16"), "fp16"),
        (("explain", "16", "16", "16", "--scale-a", "big"), "big"),
        *(
            (("explain", "16", "16", "16", "--splitk", bad), "4,contiguous")
            for bad in ("2", "0", "1,serial", "2,none", "2,sideways", "two,serial", "2,serial,1")
        ),
        (("explain", "16", "16", "16", "--profile", "nonsense"), "nonsense"),
        (("explain", "16", "16", "16", "--backend", "nonsense"), "nonsense"),
        (("explain", "16", "16", "512", "--splitk", "2,serial", "--profile", "hopper"), "serial"),
        (("profiles", "nonsense"), "nonsense"),
        (("models", "nonsense"), "nonsense"),
        (("models", "sm120"), "refused"),
        (("selftest", "--kernels", "nonsense"), "nonsense"),
        (("selftest", "--kernels", ""), "kernels"),
        (("selftest", "--device", "nonsense"), "nonsense"),
        (("selftest", "--device", "meta"), "meta"),
        (("demo", "--output", "x.png", "--no-picture"), "--no-picture"),
        (("demo", "--backend", "nonsense"), "cpu:avx2"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else "",
)
def test_usage_errors_say_what_is_wrong(run: Run, argv: tuple[str, ...], says: str) -> None:
    code, out, err = run(*argv)
    assert code == USAGE
    assert says in err
    assert out == ""


@pytest.mark.parametrize(
    ("line", "command", "says"),
    [
        ("models nonsense --json", "models", "nonsense"),
        ("explain --json 16.9 16 16", "explain", "16.9"),
        ("explain 16 16 --json", "explain", "K"),
        ("info --json --nonsense", None, "--nonsense"),
        ("nonsense --json", None, "nonsense"),
        ("--json", None, "COMMAND"),
    ],
)
def test_usage_error_is_json_too(run: Run, line: str, command: str | None, says: str) -> None:
    code, out, err = run(*line.split())
    report = json.loads(out)
    assert (code, report["exit_code"]) == (USAGE, USAGE)
    assert (report["schema"], report["command"]) == ("mmaemu-error/1", command)
    assert says in report["error"]
    assert report["error"] in err


def test_unknown_default_profile_is_a_usage_error(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MMAEMU_PROFILE", "nonsense")
    code, _, err = run("profiles")
    assert code == USAGE
    assert "MMAEMU_PROFILE" in err


@pytest.mark.usefixtures("no_torch")
@pytest.mark.parametrize("argv", [("explain", "16", "16", "16"), ("demo",), ("selftest",)])
def test_commands_that_need_torch_are_not_available_without(
    run: Run, argv: tuple[str, ...]
) -> None:
    code, out, err = run(*argv)
    assert (code, out) == (NOT_AVAILABLE, "")
    assert "torch" in err


@pytest.mark.parametrize(
    ("variable", "commands"),
    [
        ("MMAEMU_SPLITK_STRICT", ("demo", "explain 16 16 16", "selftest")),
        ("MMAEMU_BACKEND", ("demo", "explain 16 16 16")),
    ],
)
def test_an_unreadable_setting_is_a_usage_error(
    run: Run, monkeypatch: pytest.MonkeyPatch, variable: str, commands: tuple[str, ...]
) -> None:
    monkeypatch.setenv(variable, "maybe")
    for line in commands:
        code, out, err = run(*line.split())
        assert (code, out) == (USAGE, "")
        assert f"{variable} must be one of" in err
    assert run("info")[0] == OK


@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what happens without a GPU")
def test_a_backend_that_cannot_run_here_is_not_available(run: Run) -> None:
    code, out, err = run("demo", "--no-picture", "--backend", "cuda")
    assert (code, out) == (NOT_AVAILABLE, "")
    assert "not available here" in err
    assert "cuda" in err
    code, out, err = run("explain", "16", "16", "16", "--splitk", "1", "--backend", "cuda")
    assert (code, err) == (NOT_AVAILABLE, "")
    assert "raises BackendUnavailableError" in out


def test_warnings_are_notes_of_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    right = models.collect

    def warn(name: str | None) -> models.ModelsReport:
        for _ in range(2):
            warnings.warn("a slower backend computes", MmaemuWarning, stacklevel=1)
        return right(name)

    monkeypatch.setattr(models, "collect", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        code, _, err = run("models")
    assert (code, err) == (OK, "mmaemu models: note: a slower backend computes\n")


def test_interruption_is_no_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_name: str | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(models, "collect", interrupt)
    code, out, err = run("models")
    assert (code, out, err) == (FAILED, "", "mmaemu models: interrupted\n")


@pytest.mark.usefixtures("no_torch")
@pytest.mark.parametrize("name", ["info", "models", "profiles"])
def test_commands_that_do_without_torch(run: Run, name: str) -> None:
    code, out, _ = run(name)
    assert code == OK
    assert "hopper" in out


def test_explain_shows_a_valid_call(run: Run) -> None:
    code, out, _ = run("explain", "32", "128", "1920", "--splitk", "1", "--profile", "ada")
    assert code == OK
    for words in ("valid", "ada", "recorded", "unsplit (from explicit", "backend"):
        assert words in out


def test_explain_of_a_rejected_call_fails_and_says_why(run: Run) -> None:
    code, out, _ = run("explain", "16", "16", "24", "--splitk", "1")
    assert code == FAILED
    assert "ReferenceRejectsError" in out
    assert "24" in out


def test_explain_of_an_unknown_split_fails_and_names_ways_out(run: Run) -> None:
    code, out, _ = run("explain", "16", "16", "16", "--profile", "hopper-experimental")
    assert code == FAILED
    assert "SplitKUnknownError" in out
    assert "splitk=1" in out


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), {"out_dtype": None, "use_fast_accum": False, "splitk": "auto", "scale_result": None}),
        (
            ("--a", "e5m2", "--out", "bf16", "--fast", "--splitk", "2,contiguous"),
            {"a": "float8_e5m2", "out_dtype": "bfloat16", "use_fast_accum": True},
        ),
        (("--out", "float32", "--rowwise"), {"out_dtype": "float32", "rowwise": True}),
        (("--scale-a", "nan", "--scale-result", "2"), {"scale_a": "nan", "scale_result": "2"}),
    ],
)
def test_explain_passes_the_call_on(
    run: Run, options: tuple[str, ...], expected: dict[str, object]
) -> None:
    code, out, _ = run("explain", "64", "128", "256", "--json", *options)
    report = json.loads(out)
    assert code in {OK, FAILED}
    assert expected.items() <= report["call"].items()


def test_explain_takes_no_memory_for_a_huge_call(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from mmaemu import api

    seen: list[object] = []
    explain = api.explain

    def spy(*args: Any, **kwargs: Any) -> object:
        seen.extend(value for value in (*args, *kwargs.values()) if torch.is_tensor(value))
        return explain(*args, **kwargs)

    monkeypatch.setattr(api, "explain", spy)
    code, out, _ = run("explain", "65537", "65536", "65536", "--out", "bf16", "--scale-result", "1")
    assert code == OK
    assert "65537" in out
    assert len(seen) == 5
    assert all(tensor.is_meta for tensor in seen if isinstance(tensor, torch.Tensor))


@pytest.mark.parametrize(
    "sizes", [(2**32, 16, 16), (16, 2**32, 16), (1, 16, 2**58), (2**61 - 1, 0, 0)]
)
def test_explain_takes_64_bit_sizes(run: Run, sizes: tuple[int, int, int]) -> None:
    code, out, err = run("explain", *map(str, sizes), "--splitk", "1", "--json")
    call = json.loads(out)["call"]
    assert (code, err) in {(OK, ""), (FAILED, "")}
    assert (call["M"], call["N"], call["K"]) == sizes


def test_models_shows_every_field_of_one(run: Run) -> None:
    _, out, _ = run("models", "ada")
    for words in ("dot_length", "16 products", "fraction_bits", "13", "recorded", "RTX 4060"):
        assert words in out


def test_profiles_marks_the_default(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMAEMU_PROFILE", "ada-te")
    _, out, _ = run("profiles")
    assert re.search(r"^ada-te \* .*4 MiB", out, re.MULTILINE)
    _, out, _ = run("profiles", "hopper")
    assert "114 SMs" in out
    assert "e4m3 x e4m3 with a float8_e5m2 output" in " ".join(out.split())


@pytest.mark.parametrize(("size", "text"), [(None, "none"), (0, "0 B"), (1 << 20, "1 MiB")])
def test_workspace_sizes(size: int | None, text: str) -> None:
    from mmaemu.cli.profiles import workspace

    assert workspace(size) == text


# info


def test_info_lists_what_is_here(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMAEMU_PROFILE", "ada")
    code, out, _ = run("info")
    assert code == OK
    for words in ("mmaemu ", "torch ", "not matched", "reference ", "model only", "MMAEMU_PROFILE"):
        assert words in out
    assert re.search(r"rtx4060/\S+ +1,228,448 decisions, 125,980 of them split", out)
    assert "Problems" not in out


def test_info_shows_a_matching_gpu(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    device = libcuda.Device(0, "NVIDIA GeForce RTX 4060", 24, (8, 9))
    monkeypatch.setattr(libcuda, "current_device", lambda: device)
    monkeypatch.setattr(
        heuristics,
        "platform_mismatch",
        lambda profile: None if profile.sm_count == device.sm_count else "another GPU",
    )
    _, out, _ = run("info")
    assert "NVIDIA GeForce RTX 4060, sm_89, 24 SMs" in out
    assert re.search(r"matched here +ada, ada-te, ada-ws0\n", out)
    assert "(another GPU)" in out


def test_info_reports_what_fails_and_shows_the_rest(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("no driver")

    monkeypatch.setattr(libcuda, "current_device", fail)
    code, out, _ = run("info")
    assert code == OK
    assert "GPU: RuntimeError: no driver" in out
    assert "reference " in out


def test_info_fails_for_a_damaged_table_and_shows_the_rest(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    intact = table.open_table

    def open_table(table_id: str) -> table.DecisionTable:
        if "rtx4060" in table_id:
            raise DataIntegrityError("decisions.npz differs")
        return intact(table_id)

    monkeypatch.setattr(table, "open_table", open_table)
    code, out, _ = run("info")
    assert code == FAILED
    assert re.search(r"Damaged tables\n  rtx4060/\S+: DataIntegrityError: decisions.npz dif", out)
    assert re.search(r"h100\S*/\S+ +[0-9,]+ decisions", out)
    report = json.loads(run("info", "--json")[1])
    assert (report["exit_code"], len(report["damaged"]), len(report["tables"])) == (FAILED, 1, 1)


def test_info_without_any_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    monkeypatch.setitem(sys.modules, "torch", None)
    report = info.collect()
    assert {each.version for each in report.packages} == {None}
    assert "not installed" in report.render()


def test_assigned_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in _settings.SETTINGS:
        monkeypatch.delenv(setting.variable, raising=False)
    monkeypatch.setenv("MMAEMU_PROFILE", " ada ")
    monkeypatch.setenv("MMAEMU_BACKEND", "")
    assert _settings.assigned() == {"MMAEMU_PROFILE": "ada"}


def test_info_works_with_a_broken_torch(tmp_path: Path) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(
        "raise OSError('libtorch_cpu.so: cannot open shared object file')\n"
    )
    finished = subprocess.run(
        [sys.executable, "-m", "mmaemu", "info", "--json"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        cwd=tmp_path,
    )
    assert (finished.returncode, finished.stderr) == (OK, "")
    report = json.loads(finished.stdout)
    torch = next(each for each in report["packages"] if each["name"] == "torch")
    assert "OSError: libtorch_cpu.so" in torch["error"]
    assert report["profiles"]
    assert report["tables"]
    assert report["models"]


# Output


def test_table_aligns_columns() -> None:
    text = output.table(("name", "n"), [("a", "1"), ("long", "234")], right=(1,))
    assert text == "name    n\n----  ---\na       1\nlong  234"


def test_fields_wrap_long_values() -> None:
    text = output.fields([("name", "word " * 40), ("empty", "")])
    assert max(map(len, text.splitlines())) <= output.WIDTH
    assert text.splitlines()[1].startswith("         word")
    assert text.splitlines()[-1] == "  empty"


def test_progress_is_silent_unless_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with output.progress("work", 2) as advance:
        advance("one")
        advance("two")
    assert capsys.readouterr() == ("", "")


def test_progress_shows_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with output.progress("work", 1) as advance:
        advance("one")
    out, err = capsys.readouterr()
    assert out == ""
    assert "work: one" in err


def test_progress_without_rich(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with output.progress("work", 1) as advance:
        advance("one")
    assert capsys.readouterr() == ("", "")


def test_a_reader_that_stops_early_is_no_error() -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "mmaemu", "models"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    assert child.stderr.read() == ""
    child.stderr.close()
    assert child.wait() == OK


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("line", ["models", "models nonsense --json", "explain --help"])
def test_output_that_cannot_be_written_is_one_line(line: str) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        finished = subprocess.run(
            [sys.executable, "-m", "mmaemu", *line.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
            text=True,
        )
    assert finished.returncode == FAILED
    assert "Traceback" not in finished.stderr
    assert re.fullmatch(
        r"mmaemu\S* ?\S*: the output cannot be written: .*", finished.stderr.splitlines()[-1]
    )


def test_text_that_the_terminal_cannot_show_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(buffer, encoding="ascii"))
    monkeypatch.setenv("MMAEMU_PROFILE", "ada\u03b1")
    assert main(["info"]) == OK
    assert re.search(rb"MMAEMU_PROFILE +ada\\u03b1\n", buffer.getvalue())


def test_base_report_has_no_text_of_its_own() -> None:
    with pytest.raises(TypeError, match="must define render"):
        command.Report().render()


# Documentation


def test_reference_page_is_up_to_date() -> None:
    page = ROOT / "docs" / "reference" / "cli.md"
    assert page.read_text(encoding="utf-8") == reference.page(), (
        "run: python tools/generate_docs.py"
    )

"""Write the documentation that is made from the code's own tables.

    python tools/generate_docs.py           # write
    python tools/generate_docs.py --check   # exit 1 where a file is not what would be written

A target is a whole file, or the part of a file between `<!-- NAME: ... -->` and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from files import ROOT, write_bytes
from findings import Finding, Outcome, UnusableError, run

sys.path.insert(0, str(ROOT))

CODE: Final = "DOC101"


@dataclass(frozen=True, slots=True)
class Target:
    """A file, or a marked part of it, and what makes its text.

    Attributes:
        path: path in the repository.
        render: returns the text.
        mark: name of the marked part; None for the whole file.
    """

    path: str
    render: Callable[[], str]
    mark: str | None = None


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def profiles() -> str:
    """The reference platforms, one row a profile."""
    from mmaemu.instruction.models import get_preset
    from mmaemu.profiles.profile import get_profile, list_profiles

    rows = []
    for name in list_profiles():
        profile = get_profile(name)
        model = get_preset(profile.preset, warn=False)
        rows.append(
            (
                f"`{name}`",
                profile.gpu_name or "none",
                profile.caller,
                _workspace(profile.workspace_bytes),
                f"`{model.name}` ({model.maturity})",
                profile.splitk_maturity,
            )
        )
    return table(
        ("profile", "GPU", "caller", "workspace", "instruction model", "split-K table"), rows
    )


def _workspace(size: int | None) -> str:
    if size is None:
        return "unknown"
    return f"{size // 2**20} MiB" if size else "none"


def settings() -> str:
    """docs/reference/settings.md."""
    from mmaemu._settings import SETTINGS

    audiences = {
        "package": "Read by the package",
        "tests": "Read by tests and test sessions",
        "release": "Read by the release tools",
    }
    parts = [
        "# Environment variables\n\n"
        "Values are read when they are needed; an empty variable counts as not set. Booleans are "
        "`1 true yes on` and `0 false no off`, in any case; another word is an error.\n"
    ]
    for audience, title in audiences.items():
        rows = [
            (
                f"`{item.variable}`",
                item.kind,
                f"`{item.default}`" if item.default else "",
                item.meaning,
            )
            for item in SETTINGS
            if item.audience == audience
        ]
        parts.append(f"## {title}\n\n{table(('variable', 'type', 'default', 'meaning'), rows)}")
    return "\n".join(parts)


def profiles_page() -> str:
    """docs/reference/profiles.md."""
    from mmaemu.profiles.profile import get_profile, list_profiles

    rows = []
    for name in list_profiles():
        profile = get_profile(name)
        rejected = "; ".join(
            f"{rule.fmt_a} x {rule.fmt_b} to {rule.out_dtype}" for rule in profile.rejects
        )
        rows.append(
            (
                f"`{name}`",
                "" if profile.sm_count is None else str(profile.sm_count),
                profile.cublaslt_version or "",
                profile.torch_version or "",
                f"`{profile.splitk_table}`" if profile.splitk_table else "none",
                rejected or "none",
            )
        )
    header = ("profile", "SMs", "cuBLASLt", "torch", "table of decisions", "also rejects")
    return (
        "# Profiles\n\n"
        "A profile is a reference platform: the instruction model that its GPU runs, the library "
        "and caller that decide how K is split, and the calls they reject. The default is "
        "`hopper`, or what `MMAEMU_PROFILE` names. An experimental profile belongs to no GPU and "
        'has no table, so `splitk="auto"` raises there. An own `mmaemu.Profile` is taken wherever '
        f"a name is.\n\n{profiles()}\n## Versions and tables\n\n{table(header, rows)}"
    )


def models_page() -> str:
    """docs/reference/models.md."""
    from mmaemu.instruction.models import get_preset, list_presets

    rows = []
    for name in list_presets():
        model = get_preset(name, warn=False)
        accumulator = "late" if model.late_c else "aligned"
        rows.append(
            (
                f"`{name}`",
                ", ".join(f"{a} x {b}" for a, b in _grouped(model.inputs)),
                model.output,
                model.kind,
                str(model.dot_length),
                str(model.fraction_bits or ""),
                str(model.result_fraction_bits),
                "none" if model.min_exponent is None else str(model.min_exponent),
                accumulator,
                model.maturity,
                "; ".join(model.sources),
            )
        )
    header = (
        "model",
        "inputs",
        "output",
        "kind",
        "L",
        "F",
        "result bits",
        "Emin",
        "c",
        "maturity",
        "sources",
    )
    return (
        "# Instruction models\n\n"
        "The arithmetic of one tensor-core instruction, as `mmaemu.get_preset` returns it. L is "
        "the number of products in a step, F the fraction bits kept below the block exponent, "
        "Emin the floor of that exponent; [the numerics](../explanation/numerics.md) says what "
        "each does. Maturity, best first: `recorded` (hardware outputs are reproduced), `probed`, "
        "`stated` (published statements), `model only` (warns when used).\n\n"
        f"{table(header, rows)}"
    )


def _grouped(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Format pairs for a table cell: all combinations of some formats become one pair."""
    firsts = list(dict.fromkeys(a for a, _ in pairs))
    seconds = list(dict.fromkeys(b for _, b in pairs))
    if len(firsts) * len(seconds) == len(pairs) > 1:
        return [("/".join(firsts), "/".join(seconds))]
    return list(pairs)


def kernels_page() -> str:
    """docs/reference/kernels.md."""
    from mmaemu.backends.cuda.specs import KERNELS, MODULES, by_priority

    modules = {module.name: module for module in MODULES}
    rows = []
    for name in by_priority():
        module = modules[name]
        for kernel in (kernel for kernel in KERNELS if kernel.module == name):
            formats = _grouped(kernel.formats)
            rows.append(
                (
                    f"`cuda:{name}`",
                    f"`{kernel.name}`",
                    f"`{kernel.model}`",
                    ", ".join(f"{a} x {b}" for a, b in formats),
                    " ".join(module.sass_archs),
                    module.ptx_arch or "none",
                    f"{kernel.tile[0]} x {kernel.tile[1]}",
                    ", ".join(kernel.gates) or "none",
                    ", ".join(kernel.validated_on)
                    or ("none yet" if kernel.gated else "not needed"),
                )
            )
    header = (
        *("backend", "kernel", "model", "operands", "machine code for", "PTX", "tile", "probes"),
        "validated on",
    )
    return (
        "# CUDA kernels\n\n"
        "In the order in which automatic selection tries them. A name says what a kernel is: "
        "`simt` uses IEEE instructions only and is exact on every device, `tensorop` needs matrix "
        "units that do what it counts on, and is gated. [Backends](../explanation/backends.md) "
        f"says how they are loaded and chosen.\n\n{table(header, rows)}"
    )


def command_line() -> str:
    """docs/reference/cli.md."""
    from mmaemu.cli import reference

    return reference.page()


def checks() -> str:
    """docs/reference/checks.md: every finding that a tool can report."""
    pages = [
        "# Checks\n\nA tool prints every finding as `where: CODE what is wrong; what to do`. "
        "Exit codes: 0 no finding, 1 findings, 2 usage or could not run, 3 not decided. "
        "A rule that could not be decided says so.\n"
    ]
    for path in sorted((ROOT / "tools").glob("*.py")):
        if not re.search(r"^RULES\b", path.read_text(encoding="utf-8"), re.MULTILINE):
            continue
        module = importlib.import_module(path.stem)
        about = str(module.__doc__).strip().splitlines()[0]
        rows = ((rule.code, rule.says.replace("|", "\\|")) for rule in module.RULES)
        pages.append(f"\n## tools/{path.name}\n\n{about}\n\n{table(('code', 'holds'), rows)}")
    return "".join(pages)


def release_configuration() -> str:
    """docs/reference/release-configuration.md."""
    import release_config

    parts = [
        "# Release configuration\n\nThe tables of pyproject.toml by which a project is built and "
        "published. `tools/release_config.py` checks them; every error names its key. Where the "
        "package indexes are comes from [environment variables](settings.md) instead.\n"
    ]
    for name, rows in release_config.documented():
        parts.append(f"\n## {name}\n\n{table(('key', '', 'what'), rows)}")
    return "".join(parts)


TARGETS: Final = (
    Target("README.md", profiles, mark="profiles"),
    Target("docs/reference/profiles.md", profiles_page),
    Target("docs/reference/models.md", models_page),
    Target("docs/reference/kernels.md", kernels_page),
    Target("docs/reference/settings.md", settings),
    Target("docs/reference/cli.md", command_line),
    Target("docs/reference/checks.md", checks),
    Target("docs/reference/release-configuration.md", release_configuration),
)


def updated(target: Target, current: str) -> str:
    """The text that the file should have.

    Raises:
        UnusableError: the file lacks the mark.
    """
    text = target.render()
    if target.mark is None:
        return text
    pattern = re.compile(
        rf"(<!-- {re.escape(target.mark)}\b[^>]*-->\n).*?(<!-- end -->)", re.DOTALL
    )
    if not pattern.search(current):
        raise UnusableError(f"{target.path} has no part <!-- {target.mark} ... --> <!-- end -->")
    return pattern.sub(lambda match: f"{match[1]}{text}{match[2]}", current, count=1)


def stale(root: Path) -> list[tuple[Target, str]]:
    """The targets whose file differs, each with the text it should have."""
    found = []
    for target in TARGETS:
        path = root / target.path
        current = path.read_text(encoding="utf-8") if path.exists() else ""
        wanted = updated(target, current)
        if wanted != current:
            found.append((target, wanted))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="generate_docs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="write nothing, report what differs")

    def action(arguments: argparse.Namespace) -> Outcome:
        differing = stale(ROOT)
        if not arguments.check:
            for target, text in differing:
                write_bytes(ROOT / target.path, text.encode())
                print(f"wrote {target.path}")
            differing = stale(ROOT)
        return Outcome(
            tuple(
                Finding(CODE, target.path, "is not what its tables say; run tools/generate_docs.py")
                for target, _ in differing
            )
        )

    return run(parser, action, argv)


if __name__ == "__main__":
    raise SystemExit(main())

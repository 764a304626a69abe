"""`mmaemu selftest`: every backend usable here against recordings and known answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from mmaemu.cli import output
from mmaemu.cli.command import (
    Argument,
    Command,
    Example,
    Exit,
    Report,
    UsageError,
    check_ready,
)
from mmaemu.errors import MmaemuError

if TYPE_CHECKING:
    import argparse

    from mmaemu.self_test import GateResult

NOT_AVAILABLE: Final = "not available"


@dataclass(frozen=True)
class Verdict:
    """A backend: passed, failed, or not available; then `gates` is empty and `reason` says why."""

    backend: str
    verdict: str
    reason: str
    gates: list[GateResult]


@dataclass(frozen=True)
class SelftestReport(Report):
    """The verdicts.

    Attributes:
        device: the device asked for; None = the default.
        kernels: what was asked for.
        backends: the verdict of each backend.
    """

    schema: ClassVar[str] = "mmaemu-selftest/1"

    device: str | None
    kernels: str
    backends: list[Verdict]

    @property
    def exit_code(self) -> Exit:
        """1: a gate failed. 3: a backend asked for by name is not available. Else 0."""
        verdicts = {each.verdict for each in self.backends}
        if "failed" in verdicts:
            return Exit.FAILED
        missing = NOT_AVAILABLE in verdicts and self.kernels != "all"
        return Exit.NOT_AVAILABLE if missing or "passed" not in verdicts else Exit.OK

    def render(self) -> str:
        """Return one block per backend that was tested, and a list of the others."""
        blocks = [
            f"{each.backend}: {each.verdict}\n" + output.fields([*map(_line, each.gates)])
            for each in self.backends
            if each.gates
        ]
        others = [
            (each.backend, each.reason) for each in self.backends if each.verdict == NOT_AVAILABLE
        ]
        if others:
            blocks.append("Not available here, so not tested:\n" + output.fields(others))
        words = {
            Exit.OK: "every backend that is available passed",
            Exit.FAILED: "FAILED",
            Exit.NOT_AVAILABLE: "what was asked for is not available here",
        }
        return "\n\n".join([*blocks, f"Self-test: {words[self.exit_code]}."])


def _line(gate: GateResult) -> tuple[str, str]:
    cached = ", earlier in this process" if gate.cached else f", {gate.seconds:.1f} s"
    return gate.name, f"{'ok' if gate.passed else 'FAILED'}: {gate.reason}{cached}"


def collect(
    device: str | None = None, kernels: str = "all", *, force: bool = False
) -> SelftestReport:
    """Run the self-test.

    Raises:
        NotAvailableError: torch is missing.
        BackendUnavailableError: the device is missing.
        UsageError: an unknown kernel or device.
        DataIntegrityError: a shipped recording is damaged.
    """
    check_ready("selftest")
    from mmaemu import self_test

    try:
        total = len([*self_test.planned(device, kernels=kernels)])
        with output.progress("selftest", total) as advance:
            results = self_test.run(device, kernels=kernels, force=force, advance=advance)
    except (ValueError, RuntimeError) as error:
        # torch.device() raises RuntimeError for a name that is no device.
        if isinstance(error, MmaemuError):
            raise
        raise UsageError(str(error).splitlines()[0]) from error
    verdicts = [_verdict(backend, gates) for backend, gates in results.items()]
    return SelftestReport(device, kernels, verdicts)


def _verdict(backend: str, gates: list[GateResult]) -> Verdict:
    from mmaemu.self_test import AVAILABILITY

    if all(gate.passed for gate in gates):
        return Verdict(backend, "passed", "", gates)
    first = gates[0]
    if first.name == AVAILABILITY and not first.details["failed"]:
        return Verdict(backend, NOT_AVAILABLE, first.reason, [])
    return Verdict(backend, "failed", "", gates)


def _collect(arguments: argparse.Namespace) -> SelftestReport:
    return collect(arguments.device, arguments.kernels, force=arguments.force)


COMMAND = Command(
    name="selftest",
    summary="test every backend usable here against recordings and known answers",
    description=(
        "Compares every backend that is available here bit for bit with the GPU outputs shipped in "
        "the package, with known answers that tell the instruction models apart, and with the "
        "readable step on operand families that stress every rule. A backend that is not available "
        "is listed with the reason and never counts as passed. Exit code 1: a gate failed. "
        "Exit code 3: what was asked for is not available."
    ),
    arguments=(
        Argument(
            ("--force",),
            "Run again what was already run in this process.",
            {"action": "store_true"},
        ),
        Argument(
            ("--kernels",),
            "Backends separated by commas, for example reference or cpu:avx2,cuda:v4; "
            "`model` is the readable step.",
            {"default": "all", "metavar": "NAMES"},
        ),
        Argument(("--device",), "cpu, cuda or cuda:N (default: cuda if torch sees one, else cpu)."),
    ),
    examples=(
        Example("selftest", "all backends"),
        Example("selftest --kernels reference --json", "one backend, for a program"),
    ),
    collect=_collect,
)

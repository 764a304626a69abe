"""Rehearse a whole release of HEAD in a clean clone, against bare repositories on this machine.

    python tools/rehearse.py 0.1.0 --date 2026-12-01 --device-not-run T3=REASON ...
        [--without TIER=REASON] [--short] [--work DIR] [--out DIR]

The maintainer's day with the commands of docs/releasing.md: tiers, version, freeze, distributions
twice, T7, the candidate's tag, and a snapshot to each repository by the script that
`invoke snapshot` prints. Only the clone is changed. --short runs T3P, which needs no time without a
GPU, as the only tier, freezes one library and leaves T7 out. --without leaves out a tier that this
machine cannot decide, or that was run before, in the clone's configuration too. --out keeps the log
and what the clone's commands logged. Needs the dependency groups test, build, release and kernels,
without --short cuda as well.
Exit 0 every step passed; 1 one did not, and nothing was run after it.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import validate_release
from files import ROOT, read_toml, write_bytes, write_json
from findings import FAIL, PASS, UnusableError, guarded
from git_commands import Git
from project import add_waivers, load_project, tier_and_reason
from version import refuse_bad_date, refuse_bad_version

SCHEMA: Final = "mmaemu.rehearsal/1"
TARGETS: Final = ("staging", "ci", "public")
# What the short rehearsal runs and freezes.
SHORT_TIERS: Final = ("t3p",)
SHORT_MODULES: Final = ("--modules", "x86_64-linux")
_TIERS: Final = re.compile(r"^tiers = \[.*?\]", re.MULTILINE)
_INDEXES: Final = re.compile(r"^(WARNING: Location|Looking in) .*\n", re.MULTILINE)
_LOGS: Final = ("docs/validation_logs", "docs/release_logs")


class StepError(Exception):
    """A step did not end as it must."""


@dataclass(frozen=True, slots=True)
class Options:
    """What is rehearsed.

    Attributes:
        version: the release.
        date: its date, YYYY-MM-DD.
        waivers: tiers whose device part was not run, with the reason.
        without: tiers taken out of the clone's configuration, with the reason.
        short: whether it is the short rehearsal.
    """

    version: str
    date: str
    waivers: Mapping[str, str]
    without: Mapping[str, str] = field(default_factory=dict)
    short: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """The waivers as options."""
        pairs = self.waivers.items()
        return tuple(word for pair in pairs for word in ("--device-not-run", "=".join(pair)))


class Rehearsal:
    """The commands of one rehearsal, in a clone of their own, with what each printed.

    Args:
        root: the checkout whose HEAD is cloned.
        work: an empty folder.
    """

    def __init__(self, root: Path, work: Path) -> None:
        self.root = root
        self.work = work
        self.clone = work / "clone"
        self.steps: list[dict[str, Any]] = []
        self.log: list[str] = []
        (work / "home").mkdir(parents=True)

    def run(self, *command: str, stdin: str = "", may_end_with: tuple[int, ...] = (PASS,)) -> str:
        """Run a command in the clone and return its output.

        Raises:
            StepError: another exit code.
        """
        shown = shlex.join(command).replace(sys.executable, "python")
        print(f"rehearse: {shown}", flush=True)
        start = time.monotonic()
        done = subprocess.run(
            command,
            cwd=self.clone if self.clone.exists() else self.work,
            env=self._environment(),
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        output = self._neutral(done.stdout)
        seconds = round(time.monotonic() - start, 1)
        shown = self._neutral(shown)
        self.steps.append({"command": shown, "exit": done.returncode, "seconds": seconds})
        self.log.append(f"$ {shown}\n{output}exit {done.returncode} after {seconds} s\n\n")
        if done.returncode not in may_end_with:
            raise StepError(f"{shown} ended with {done.returncode}:\n{output[-3000:]}")
        return done.stdout

    def _environment(self) -> dict[str, str]:
        """The caller's environment as somebody whose git knows no name of theirs."""
        kept = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
        who = {"NAME": "A Developer", "EMAIL": "developer@rehearsal.invalid"}
        identity = {
            f"GIT_{role}_{key}": text
            for role in ("AUTHOR", "COMMITTER")
            for key, text in who.items()
        }
        home = {"HOME": str(self.work / "home"), "GIT_CONFIG_NOSYSTEM": "1"}
        return kept | home | identity

    def _neutral(self, text: str) -> str:
        """A text without the paths of this machine, and without where pip looks for packages."""
        places = (
            (str(self.clone), "."),
            (str(self.work), ".."),
            (str(self.root), "CHECKOUT"),
            (str(Path(sys.executable).parent.parent), "ENVIRONMENT"),
        )
        for path, name in places:
            text = text.replace(path, name)
        return _INDEXES.sub("", text)

    def invoke(self, *arguments: str) -> str:
        """An invoke task."""
        return self.run(sys.executable, "-m", "invoke", *arguments)

    def git(self, *arguments: str) -> str:
        """A git command in the clone."""
        return self.run("git", *arguments).strip()

    def commit(self, message: str) -> None:
        """Commit everything, if there is anything."""
        self.git("add", "--all")
        if self.git("status", "--porcelain"):
            self.git("commit", "--quiet", "--message", message)

    def note(self, text: str) -> None:
        """Keep an observation."""
        print(f"rehearse: {text}", flush=True)
        self.steps.append({"observed": text})
        self.log.append(f"# {text}\n\n")


def must(condition: object, message: str) -> None:
    """Raises StepError unless a condition holds."""
    if not condition:
        raise StepError(message)


def rehearse(day: Rehearsal, options: Options) -> None:
    """All steps, in order.

    Raises:
        StepError: one did not pass.
    """
    day.run("git", "clone", "--quiet", f"file://{day.root}", str(day.clone))
    day.note(f"the clone is {day.git('rev-parse', 'HEAD')}")
    tiers(day, options)
    version(day, options)
    frozen = SHORT_MODULES if options.short else ()
    day.invoke("freeze", "--version", options.version, "--commit-log", *frozen, *options.words)
    day.invoke("fatbin")
    changed = day.git("status", "--porcelain", "--", "mmaemu")
    must(not changed, f"the freeze changed {changed}")
    day.note("the rebuilt binaries are the committed ones, byte for byte")
    day.commit("Records of the freeze")
    distributions(day, options)
    candidate = f"rc/v{options.version}"
    day.git("tag", "--annotate", candidate, "-m", f"mmaemu {options.version} release candidate")
    for target in TARGETS:
        snapshot(day, options, target, candidate)


def tiers(day: Rehearsal, options: Options) -> None:
    """Run the tiers of the release, and commit their results."""
    path = day.clone / "pyproject.toml"
    names = list(read_toml(path)["tool"]["mmaemu"]["release"]["tiers"])
    wanted = list(SHORT_TIERS) if options.short else [x for x in names if x not in options.without]
    if wanted != names:
        # In the clone alone: the release itself asks for all of them.
        text = _TIERS.sub(f"tiers = {json.dumps(wanted)}", path.read_text(encoding="utf-8"))
        write_bytes(path, text.encode())
        day.commit("Ask for the tiers of the rehearsal")
        reasons = "".join(f"; {tier}: {why}" for tier, why in options.without.items())
        day.note(f"the clone asks for {', '.join(wanted)} only{reasons}")
    for name in wanted:
        session = ("tools/tier.py", name) if options.short else ("-m", "nox", "-s", name, "--")
        day.run(sys.executable, *session, "--commit-log", *options.words)
    day.commit("Records of the tiers")


def version(day: Rehearsal, options: Options) -> None:
    """Set the version, twice: the second time changes nothing."""
    command = ("version", options.version, "--date", options.date, *options.words)
    day.invoke(*command)
    day.commit(f"Version {options.version}")
    day.invoke(*command)
    changed = day.git("status", "--porcelain")
    must(not changed, f"a second `invoke version` changed {changed}")


def distributions(day: Rehearsal, options: Options) -> None:
    """Build the distributions twice, and validate the wheel."""
    sums = []
    for name in ("first", "second"):
        out = day.work / name
        given = ("--version", options.version, "--tag", f"v{options.version}", "--out", str(out))
        day.invoke("dist", *given, "--require-fatbins", *options.words)
        sums.append((out / "SHA256SUMS").read_text(encoding="utf-8"))
    must(sums[0] == sums[1], f"two builds differ:\n{sums[0]}{sums[1]}")
    day.note(f"both builds have these bytes: {' '.join(sums[0].split())}")
    if options.short:
        return
    wheel = str(next((day.work / "first").glob("*.whl")))
    validation = (sys.executable, "-m", "nox", "-s", "t7", "--", wheel, *options.words)
    # nox makes one code of failed and not run; the report tells.
    day.run(*validation, may_end_with=(PASS, FAIL) if "T7" in options.waivers else (PASS,))
    reports = sorted((day.clone / "docs" / "release_logs").glob(f"{options.version}_*.json"))
    must(reports, "T7 wrote no report")
    for report in reports:
        document = json.loads(report.read_text(encoding="utf-8"))
        found = validate_release.problems(document, options.version, options.waivers.get("T7", ""))
        wrong = "; ".join(found)
        must(not wrong, f"{report.name}: {wrong}")
    day.commit("Report of T7")


def snapshot(day: Rehearsal, options: Options, target: str, candidate: str) -> None:
    """Publish to a bare repository by the script that is printed, and look at what came there."""
    bare = day.work / f"{target}.git"
    day.run("git", "init", "--quiet", "--bare", str(bare))
    command = ("snapshot", "--to", target, "--remote", str(bare), *options.words)
    must("dry run" in day.invoke(*command, "--dry-run"), "the dry run does not say what it is")
    must(not day.run("git", "-C", str(bare), "for-each-ref"), "the dry run published something")
    day.run("bash", "-euo", "pipefail", stdin=day.invoke(*command))
    release = load_project(day.clone).release
    shown = day.run("git", "-C", str(bare), "log", "--format=%T|%an|%ae|%s", release.branch)
    tree = day.git("rev-parse", f"{candidate}^{{tree}}")
    wanted = f"{tree}|{release.name}|{release.email}|mmaemu {options.version}"
    must(shown.strip() == wanted, f"{target} holds {shown.strip()}, expected one commit {wanted}")
    refs = day.run("git", "-C", str(bare), "for-each-ref", "--format=%(refname)").split()
    must(refs == [f"refs/heads/{release.branch}"], f"{target} has {refs}")
    # The branch is there now: what is left to print is the checklist.
    again = day.invoke(*command)
    must(not re.search(r"^[^#]", again, re.MULTILINE), f"{target} is not complete:\n{again}")
    must(re.search(r"^# +H13 ", again, re.MULTILINE), "the checklist lacks the tag's push")
    day.note(f"{target} holds the candidate's tree as one commit of {release.name}")


def keep(day: Rehearsal, options: Options, out: Path, problem: str) -> None:
    """Write rehearsal.json and rehearsal.log, and copy what the clone's commands logged."""
    git = Git(day.root)
    write_json(
        out / "rehearsal.json",
        {
            "schema": SCHEMA,
            "version": options.version,
            "commit": git.line("rev-parse", "HEAD"),
            "finished_at": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
            "python": platform.python_version(),
            "short": options.short,
            "without": dict(options.without),
            "device_not_run": dict(options.waivers),
            "status": "fail" if problem else "pass",
            "reason": problem,
            "steps": day.steps,
        },
    )
    write_bytes(out / "rehearsal.log", "".join(day.log).encode())
    if not day.clone.exists():
        return
    made = Git(day.clone).names(
        "diff", "-z", "--name-only", "--diff-filter=AM", "origin/HEAD", "HEAD"
    )
    for name in made:
        if name.startswith(_LOGS):
            write_bytes(out / name, (day.clone / name).read_bytes())


def work(arguments: argparse.Namespace, folder: Path) -> int:
    """Rehearse in a folder, and keep the log."""
    refuse_bad_version(load_project(arguments.root), arguments.version)
    refuse_bad_date(arguments.date)
    if folder.exists() and any(folder.iterdir()):
        raise UnusableError(f"{folder} is not empty; give another --work")
    options = Options(
        arguments.version,
        arguments.date,
        dict(arguments.device_not_run),
        {tier.lower(): why for tier, why in arguments.without},
        arguments.short,
    )
    day, problem = Rehearsal(arguments.root.resolve(), folder), ""
    try:
        rehearse(day, options)
    except StepError as error:
        problem = str(error)
    keep(day, options, arguments.out or folder / "logs", problem)
    print(f"rehearse: {problem or f'{options.version} passed, {len(day.steps)} steps'}")
    return FAIL if problem else PASS


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(
        prog="rehearse", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("version", help="the release, X.Y.Z")
    parser.add_argument("--date", required=True, help="its date, YYYY-MM-DD")
    parser.add_argument("--root", type=Path, default=ROOT, help="checkout whose HEAD is rehearsed")
    parser.add_argument("--short", action="store_true", help="what CI rehearses")
    parser.add_argument(
        "--without",
        metavar="TIER=REASON",
        type=tier_and_reason,
        action="append",
        default=[],
        help="leave this tier out: it is not run, and the clone asks for no result of it",
    )
    parser.add_argument("--work", type=Path, help="an empty folder to keep the clone in")
    parser.add_argument("--out", type=Path, help="where the logs go")
    add_waivers(parser)
    arguments = parser.parse_args(argv)
    if arguments.work is not None:
        return guarded(parser.prog, lambda: work(arguments, arguments.work.resolve()))
    with tempfile.TemporaryDirectory(prefix="rehearse-") as folder:
        arguments.out = arguments.out or Path("build", "rehearsal")
        return guarded(parser.prog, lambda: work(arguments, Path(folder)))


if __name__ == "__main__":
    raise SystemExit(main())

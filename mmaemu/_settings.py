"""Every MMAEMU_* environment variable as data, and the only reader of os.environ in the package.

Values are read when asked for, never at import, so a change between two calls counts. An empty
variable counts as not set. Booleans parse one way: 1 true yes on, 0 false no off, in any case.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

PREFIX: Final = "MMAEMU_"

Kind = Literal["text", "flag", "path"]
Audience = Literal["package", "tests", "release"]

_TRUE: Final = frozenset({"1", "true", "yes", "on"})
_FALSE: Final = frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class Setting:
    """One environment variable.

    Attributes:
        name: the name without its prefix; the variable is `MMAEMU_<name>`.
        kind: how the value is parsed.
        default: the value when the variable is not set; None means nothing.
        audience: who reads it: the package, its tests, or the release tools.
        meaning: one sentence for documentation.
    """

    name: str
    kind: Kind
    default: str | None
    audience: Audience
    meaning: str

    @property
    def variable(self) -> str:
        """The full name of the environment variable."""
        return PREFIX + self.name


SETTINGS: Final[tuple[Setting, ...]] = (
    Setting("PROFILE", "text", "hopper", "package", "Profile used where a call names none."),
    Setting("BACKEND", "text", "auto", "package", "Backend used where a call leaves it at auto."),
    Setting("DISABLE_CUDA", "flag", "0", "package", "Never touch CUDA, also where it is present."),
    Setting(
        "ALLOW_GATED_KERNELS",
        "flag",
        "0",
        "package",
        "Let automatic selection take gated kernels on devices where they were not validated.",
    ),
    Setting(
        "SPLITK_STRICT",
        "flag",
        "0",
        "package",
        "Refuse split-K decisions that are inferred from an envelope rather than recorded.",
    ),
    Setting("CACHE_DIR", "path", None, "package", "Folder of verdict and kernel caches."),
    Setting("FATBIN_DIR", "path", None, "package", "Folder with fatbins used instead of bin/."),
    Setting("LIBCUDA_PATH", "path", None, "package", "The CUDA driver library to load."),
    Setting("CUBLASLT_PATH", "path", None, "package", "The cuBLASLt library to load."),
    Setting("NVRTC_PATH", "path", None, "package", "The NVRTC library to load."),
    Setting(
        "GPU_LOCK",
        "text",
        None,
        "tests",
        "Command put before every GPU test so that one process at a time uses the GPU.",
    ),
    Setting("TRUTH_DIR", "path", None, "tests", "Folder of hardware recordings that t2 replays."),
    Setting("TABLES_DIR", "path", None, "tests", "Recorded split-K tables as they were published."),
    Setting("TEST_FATBIN_DIR", "path", None, "tests", "Fatbins the CUDA tests use."),
    Setting(
        "TEST_CPU_AGENT",
        "path",
        None,
        "tests",
        "Socket of the process that computes for the tests of the CPU kernels, if not this one.",
    ),
    Setting(
        "TEST_FAULT",
        "text",
        None,
        "tests",
        "Comma-separated names of failures to force; for tests of the error paths only.",
    ),
    Setting(
        "TORCH",
        "text",
        None,
        "tests",
        "torch version that nox installs; the default entry of [tool.mmaemu.matrix] if not set.",
    ),
    Setting(
        "TORCH_INDEX_URL",
        "text",
        None,
        "tests",
        "Package index from which nox installs torch; pip's own settings if not set.",
    ),
    Setting("CI_TORCH", "text", None, "release", "torch versions that `invoke ci` tests with."),
    Setting("CI_DIR", "path", None, "release", "Scratch folder of `invoke ci`."),
    Setting("INDEX_URL", "text", None, "release", "The package index the release tools read."),
    Setting("UPLOAD_URL", "text", None, "release", "The package index they upload to."),
    Setting("STAGING_INDEX_URL", "text", None, "release", "Simple address of the staging index."),
    Setting("STAGING_UPLOAD_URL", "text", None, "release", "Where it takes uploads."),
    Setting("NIGHTLY_INDEX_URL", "text", None, "release", "Simple address of the nightly index."),
    Setting("NIGHTLY_UPLOAD_URL", "text", None, "release", "Where it takes uploads."),
    Setting(
        "STAGING_USERNAME",
        "text",
        None,
        "release",
        "Account at the staging index; TWINE_USERNAME if not set.",
    ),
    Setting(
        "STAGING_PASSWORD",
        "text",
        None,
        "release",
        "Its password or token; TWINE_PASSWORD if not set.",
    ),
    Setting(
        "NIGHTLY_USERNAME",
        "text",
        None,
        "release",
        "Account at the nightly index; TWINE_USERNAME if not set.",
    ),
    Setting(
        "NIGHTLY_PASSWORD",
        "text",
        None,
        "release",
        "Its password or token; TWINE_PASSWORD if not set.",
    ),
    Setting(
        "INDEX_TIMEOUT",
        "text",
        None,
        "release",
        "Seconds to wait for an index; 30 for a page and 1800 for an upload if not set.",
    ),
    Setting(
        "HOSTING_API_URL",
        "text",
        None,
        "release",
        "The hosting service's interface that golden commits use; the public one if not set.",
    ),
    Setting("MAIL_SERVER", "text", None, "release", "HOST:PORT that takes the gate's two mails."),
)

_BY_NAME: Final = {setting.name: setting for setting in SETTINGS}


def _raw(name: str, kind: Kind) -> str | None:
    setting = _BY_NAME[name]
    if setting.kind != kind:
        raise KeyError(f"{setting.variable} is a {setting.kind} setting, read as {kind}")
    return os.environ.get(setting.variable, "").strip() or setting.default


def text(name: str) -> str | None:
    """Read a text setting.

    Args:
        name: name without the prefix, for example "PROFILE".

    Returns:
        The value without surrounding blanks, else the default.

    Raises:
        KeyError: no text setting has this name.
    """
    return _raw(name, "text")


def flag(name: str) -> bool:
    """Read a boolean setting.

    Args:
        name: name without the prefix, for example "DISABLE_CUDA".

    Returns:
        The value, else the default.

    Raises:
        KeyError: no boolean setting has this name.
        ValueError: the variable holds none of the words for true and false.
    """
    value = (_raw(name, "flag") or "0").lower()
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise ValueError(
        f"{PREFIX}{name} must be one of 1 true yes on 0 false no off; got {value!r}. "
        "Set it to one of these words or unset it."
    )


def path(name: str) -> Path | None:
    """Read a path setting; `~` is expanded.

    Args:
        name: name without the prefix, for example "TRUTH_DIR".

    Returns:
        The path, or None where neither a value nor a default exists.

    Raises:
        KeyError: no path setting has this name.
    """
    value = _raw(name, "path")
    return None if value is None else Path(value).expanduser()


def assigned() -> dict[str, str]:
    """The variables that are set, by full name, in the order of the table."""
    values = {each.variable: os.environ.get(each.variable, "").strip() for each in SETTINGS}
    return {name: value for name, value in values.items() if value}


def state() -> tuple[object, ...]:
    """Return the raw values of all settings that computing depends on, as a key for caches.

    Every setting has the same value in two equal states. Costs well below a microsecond, unlike
    reading the settings one by one.
    """
    raw = os.environ._data  # type: ignore[attr-defined]  # noqa: SLF001 - a plain dict: 20 x faster.
    return tuple(map(raw.get, _STATE_KEYS))


_STATE_KEYS: Final = tuple(
    os.environ.encodekey(setting.variable)
    for setting in SETTINGS
    if setting.audience == "package" or setting.name == "TEST_FAULT"
)


def profile() -> str:
    """Name of the profile used where a call names none."""
    return text("PROFILE") or "hopper"


def backend() -> str:
    """Name of the backend used where a call leaves it at "auto"."""
    return text("BACKEND") or "auto"


def cache_dir() -> Path:
    """Folder of the caches: MMAEMU_CACHE_DIR, else the user's cache folder of the platform."""
    chosen = path("CACHE_DIR")
    if chosen is not None:
        return chosen
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", "")
    else:
        base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "mmaemu"


def faults() -> frozenset[str]:
    """Names of the failures that MMAEMU_TEST_FAULT forces; empty outside tests."""
    value = text("TEST_FAULT") or ""
    return frozenset(part.strip() for part in value.split(",") if part.strip())

"""Exact emulation of FP8 tensor-core GEMMs: what torch._scaled_mm returns on an H100 or RTX 4060.

Importing the package reads no data and imports neither torch nor numpy; a name below is imported
when it is first used.
"""

from __future__ import annotations

import importlib

# What type checkers take for true; importing `typing` for it would be most of the import time.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from mmaemu import errors as errors
    from mmaemu import model as model
    from mmaemu import testing as testing
    from mmaemu._version import __version__ as __version__
    from mmaemu.api import CallPlan as CallPlan
    from mmaemu.api import accumulate as accumulate
    from mmaemu.api import explain as explain
    from mmaemu.api import scaled_mm as scaled_mm
    from mmaemu.backends.registry import backends_status as backends_status
    from mmaemu.errors import BackendFallbackWarning as BackendFallbackWarning
    from mmaemu.errors import BackendUnavailableError as BackendUnavailableError
    from mmaemu.errors import ExperimentalPresetWarning as ExperimentalPresetWarning
    from mmaemu.errors import MmaemuError as MmaemuError
    from mmaemu.errors import ReferenceRejectsError as ReferenceRejectsError
    from mmaemu.errors import SplitKUnknownError as SplitKUnknownError
    from mmaemu.errors import UnsupportedFeatureError as UnsupportedFeatureError
    from mmaemu.errors import UnvalidatedEnvelopeWarning as UnvalidatedEnvelopeWarning
    from mmaemu.errors import UnverifiedSplitWarning as UnverifiedSplitWarning
    from mmaemu.gemm.splitk import SplitK as SplitK
    from mmaemu.instruction.models import get_preset as get_preset
    from mmaemu.instruction.models import list_presets as list_presets
    from mmaemu.model import Preset as Preset
    from mmaemu.profiles.profile import Profile as Profile
    from mmaemu.profiles.profile import get_profile as get_profile
    from mmaemu.profiles.profile import list_profiles as list_profiles
    from mmaemu.profiles.resolve import SplitDecision as SplitDecision
    from mmaemu.profiles.resolve import resolve_splitk as resolve_splitk
    from mmaemu.self_test import selftest as selftest

# Public name -> (module, name in it); a None in place of a name means the module itself.
_PUBLIC: dict[str, tuple[str, str | None]] = {
    "__version__": ("mmaemu._version", "__version__"),
    "scaled_mm": ("mmaemu.api", "scaled_mm"),
    "accumulate": ("mmaemu.api", "accumulate"),
    "explain": ("mmaemu.api", "explain"),
    "CallPlan": ("mmaemu.api", "CallPlan"),
    "resolve_splitk": ("mmaemu.profiles.resolve", "resolve_splitk"),
    "SplitK": ("mmaemu.gemm.splitk", "SplitK"),
    "SplitDecision": ("mmaemu.profiles.resolve", "SplitDecision"),
    "get_profile": ("mmaemu.profiles.profile", "get_profile"),
    "list_profiles": ("mmaemu.profiles.profile", "list_profiles"),
    "Profile": ("mmaemu.profiles.profile", "Profile"),
    "get_preset": ("mmaemu.instruction.models", "get_preset"),
    "list_presets": ("mmaemu.instruction.models", "list_presets"),
    "Preset": ("mmaemu.instruction.model", "InstructionModel"),
    "backends_status": ("mmaemu.backends.registry", "backends_status"),
    "selftest": ("mmaemu.self_test", "selftest"),
    "model": ("mmaemu.model", None),
    "testing": ("mmaemu.testing", None),
    "errors": ("mmaemu.errors", None),
    "MmaemuError": ("mmaemu.errors", "MmaemuError"),
    "ReferenceRejectsError": ("mmaemu.errors", "ReferenceRejectsError"),
    "UnsupportedFeatureError": ("mmaemu.errors", "UnsupportedFeatureError"),
    "SplitKUnknownError": ("mmaemu.errors", "SplitKUnknownError"),
    "BackendUnavailableError": ("mmaemu.errors", "BackendUnavailableError"),
    "ExperimentalPresetWarning": ("mmaemu.errors", "ExperimentalPresetWarning"),
    "UnverifiedSplitWarning": ("mmaemu.errors", "UnverifiedSplitWarning"),
    "UnvalidatedEnvelopeWarning": ("mmaemu.errors", "UnvalidatedEnvelopeWarning"),
    "BackendFallbackWarning": ("mmaemu.errors", "BackendFallbackWarning"),
}

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> object:
    """Import a public name on its first use and keep it as an ordinary attribute (PEP 562)."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'mmaemu' has no attribute {name!r}")
    module_name, attribute = _PUBLIC[name]
    module = importlib.import_module(module_name)
    value = module if attribute is None else getattr(module, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})

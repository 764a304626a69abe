"""Every exception and warning class of mmaemu.

Messages say what was expected, what was got and the way out.
"""

from __future__ import annotations


class MmaemuError(Exception):
    """Base class of the errors that mmaemu raises on purpose."""


class ReferenceRejectsError(MmaemuError, RuntimeError):
    """The reference platform (torch 2.7.1 with cuBLASLt) rejects this call."""


class UnsupportedFeatureError(MmaemuError, NotImplementedError):
    """The reference platform runs this call, but no evidence says which bits it returns."""


class SplitKUnknownError(MmaemuError, LookupError):
    """No evidence says how the reference platform splits K for this call."""


class BackendUnavailableError(MmaemuError, RuntimeError):
    """The named backend cannot run here or cannot run this request; the message says why."""


class DataIntegrityError(MmaemuError, RuntimeError):
    """A data file of the package differs from what its provenance record says."""


class MmaemuWarning(UserWarning):
    """Base class of mmaemu's warnings."""


class ExperimentalPresetWarning(MmaemuWarning):
    """The instruction model has no recording behind it (maturity below `recorded`)."""


class UnverifiedSplitWarning(MmaemuWarning):
    """A split-K combination was never replayed on hardware."""


class UnvalidatedEnvelopeWarning(UnverifiedSplitWarning):
    """The split-K decision comes from an envelope that failed its held-out test."""


class BackendFallbackWarning(MmaemuWarning):
    """A faster backend failed, so a slower one with the same bits computed the result."""

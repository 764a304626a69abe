"""Failures that tests of the error paths force with MMAEMU_TEST_FAULT, by name."""

from __future__ import annotations

from typing import Final

from mmaemu import _settings

FAULTS: Final = {
    "cuda-driver": "the driver library cannot be initialised",
    "cuda-fatbin-manifest": "the folder of the fatbins has no manifest",
    "cuda-fatbin-unlisted": "the manifest does not list the fatbin",
    "cuda-fatbin-hash": "the fatbin's bytes are others than the manifest says",
    "cuda-fatbin-stale": "a source is another than the fatbin was built from",
    "cuda-fatbin-image": "the fatbin holds no image for the device",
    "cuda-load-100": "the driver answers a load with status 100, no device",
    "cuda-load-209": "the driver answers a load with status 209, no binary for the GPU",
    "cuda-load-222": "the driver answers a load with status 222, unsupported PTX version",
    "cuda-nvrtc": "there is no NVRTC",
    "cuda-compile": "NVRTC does not compile the source",
    "cuda-self-test": "the self-test finds a wrong bit",
    "cuda-probes": "a probe finds that the device behaves otherwise",
}


def forced(name: str) -> bool:
    """Whether a test forces a failure.

    Raises:
        KeyError: there is no such failure.
    """
    return bool(FAULTS[name]) and name in _settings.faults()


def fail_if_forced(name: str, error: Exception) -> None:
    """Raise an error if a test forces this failure; KeyError as `forced`."""
    if forced(name):
        raise error

"""CUDA kernels, loaded on demand; `specs` lists them and can be read without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmaemu.backends.cuda.backend import CudaBackend


def backends() -> tuple[CudaBackend, ...]:
    """The backends of this family, fastest first, for the registry."""
    from mmaemu.backends.cuda import backend

    return backend.backends()

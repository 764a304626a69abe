"""CPU kernels in a prebuilt library: one backend per instruction set, all with the same bits."""

from __future__ import annotations

from mmaemu.backends.cpu.backend import CpuBackend, backends

__all__ = ["CpuBackend", "backends"]

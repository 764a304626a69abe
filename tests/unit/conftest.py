"""Fixtures that these tests share."""

from __future__ import annotations

from cuda_driver import compiled_driver, cuda

__all__ = ["compiled_driver", "cuda"]

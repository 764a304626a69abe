"""Tools for tests, imported on demand: bitwise comparison and named operand generators."""

from __future__ import annotations

from mmaemu.testing.compare import assert_bitwise_equal, bits

__all__ = ["assert_bitwise_equal", "bits"]

"""InstructionModel: the arithmetic of one tensor-core multiply-add, as data (NUMERICS 2, 3 and 7)."""

from __future__ import annotations

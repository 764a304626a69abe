"""Reference platforms and how they split K; works without torch."""

from __future__ import annotations

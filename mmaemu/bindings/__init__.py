"""ctypes signatures and error translation of the native libraries that mmaemu can call."""

from __future__ import annotations

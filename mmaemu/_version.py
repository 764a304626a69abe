"""The version, and nothing else: hatchling, `invoke version` and the checks read this file."""

__version__ = "0.1.0.dev0"

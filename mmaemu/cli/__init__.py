"""The command line `mmaemu`: every command collects a report, a dataclass, and renders it."""

"""Recorded outputs of real GPUs: the few that the package ships, and the reader for all of them."""

from __future__ import annotations

from pathlib import Path

from mmaemu.recordings.records import Bits, CallRecord, GemmRecord, MmaRecord, Record
from mmaemu.recordings.storage import read_folder

__all__ = ["Bits", "CallRecord", "GemmRecord", "MmaRecord", "Record", "load", "read_folder"]


def load() -> list[Record]:
    """The records that the package ships for `mmaemu demo` and `mmaemu selftest`.

    Returns:
        Records of every shipped platform, instruction chains first, then GEMMs. The rows of
        recording "evo2.evo2_1b_w2k" hold activations and weights of a real model.

    Raises:
        DataIntegrityError: a shipped file differs from its provenance record.
    """
    folders = sorted(path for path in (Path(__file__).parent / "data").iterdir() if path.is_dir())
    return [record for folder in folders for record in read_folder(folder)]

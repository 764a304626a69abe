"""Folders of data whose files are verified against the sha256 that provenance.json states.

Whatever is wrong with such a folder is one DataIntegrityError, which says what and the way out.
"""

from __future__ import annotations

import csv
import hashlib
import json
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mmaemu.errors import DataIntegrityError

PROVENANCE: Final = "provenance.json"

# Everything that json, csv, zipfile, numpy and a lookup in what they return raise for bad data.
_DAMAGE: Final = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    EOFError,
    OSError,
    NotImplementedError,
    csv.Error,
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True, slots=True)
class VerifiedFolder:
    """A folder of data with its provenance record.

    Attributes:
        path: the folder.
        form: what the folder should be, for messages, for example "a split-K table".
    """

    path: Path
    form: str

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn whatever a damaged file can cause while it is read into DataIntegrityError.

        Raises:
            DataIntegrityError: the body raised what damaged data cause.
        """
        try:
            yield
        except _DAMAGE as error:
            raise DataIntegrityError(
                f"{self.path} is not {self.form}: {type(error).__name__}: {error}; "
                "install the package again, or restore or export the data again"
            ) from error

    def read(self, name: str, *, schema: str | None = None) -> bytes:
        """The content of a file, equal to its sha256.

        Args:
            name: the file's name.
            schema: the schema that provenance.json must state; None: it states none.

        Raises:
            DataIntegrityError: the file or provenance.json is missing, unreadable or differs.
        """
        with self.reading():
            provenance = json.loads((self.path / PROVENANCE).read_bytes())
            if schema is not None and provenance["schema"] != schema:
                raise ValueError(f"expected schema {schema!r}, got {provenance['schema']!r}")
            if name not in provenance["files"]:
                raise ValueError(f"{PROVENANCE} does not list {name}")
            expected = provenance["files"][name]["sha256"]
            data = (self.path / name).read_bytes()
            actual = hashlib.sha256(data).hexdigest()
            if actual != expected:
                raise ValueError(f"the sha256 of {name} is {actual}, {PROVENANCE} says {expected}")
        return data

"""Recorded split-K decisions of one platform: stored form, integrity checks, lookup.

The form is described in data/README.md. Opening a table verifies its hashes and reads the shapes;
the codes of a workspace are read when that workspace is first asked for.
"""

from __future__ import annotations

import functools
import io
import json
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mmaemu._verified_files import VerifiedFolder
from mmaemu.bindings.algoconfig import AlgoConfig
from mmaemu.gemm.problem import GemmProblem
from mmaemu.gemm.splitk import Scheme, SplitK
from mmaemu.profiles.envelope import Envelope, HeldOutTest, Setting

if TYPE_CHECKING:
    from numpy.typing import NDArray

SCHEMA: Final = "mmaemu.splitk-table/1"
DESCRIPTION: Final = "table.json"
DECISIONS: Final = "decisions.npz"
DATA: Final = Path(__file__).with_name("data")

SHAPE_DTYPE: Final = "<i4"
CODE_DTYPE: Final = "<u2"
# A shape is looked up as one integer, M above N above K; recorded sizes stay below this many bits.
SIZE_BITS: Final = 20
_SIZE_LIMIT: Final = 1 << SIZE_BITS


class DecisionTable:
    """The recorded decisions of one platform.

    Args:
        folder: a folder in the stored form.

    Attributes:
        table_id: name of the table, `<gpu>/<library>`.
        platform: gpu, capability, sm_count, cublaslt, torch and driver of the recording.
        rows: number of recorded decisions.
        split_rows: how many of them split K.
        workspaces: recorded workspace sizes in bytes.
        settings: recorded settings; a workspace may lack some.
        scheme_by_option: scheme of a split with this customOption.
        scheme_of_unlisted: scheme of a split with any other customOption.
        schemes: all schemes in which this platform puts slices together.
        replayed: (setting, split) combinations whose output was replayed bit for bit on hardware.
        ragged_K_verified: whether split calls with a ragged K were replayed.
        envelope: bounds beyond the recorded shapes.
        algo_configs: the distinct decisions; code i of the stored form is number i - 1.

    Raises:
        DataIntegrityError: a file is missing, differs from provenance.json, or is not in the form.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = VerifiedFolder(folder, f"a split-K table in the form {SCHEMA!r}")
        description, decisions = map(self._folder.read, (DESCRIPTION, DECISIONS))
        self._archive = decisions
        self._codes: dict[int, NDArray[np.uint16]] = {}
        with self._folder.reading():
            self._describe(json.loads(description))
            shapes = self._member("shapes", SHAPE_DTYPE, (None, 3))
            configs = self._member("configs", CODE_DTYPE, (None, 4))
            self.algo_configs = tuple(AlgoConfig(*row) for row in configs.tolist())
            self._keys = _packed(shapes)
            # bisect on a memoryview compares Python ints, so a huge size cannot wrap around.
            self._searchable = self._keys.data

    def find(self, problem: GemmProblem, workspace_bytes: int) -> AlgoConfig | str:
        """Look a problem up.

        Args:
            problem: the GEMM.
            workspace_bytes: the workspace cuBLASLt may use.

        Returns:
            The recorded decision, else the reason why there is none.

        Raises:
            DataIntegrityError: the stored codes are damaged.
        """
        if workspace_bytes not in self.workspaces:
            return f"no query with a workspace of {workspace_bytes} B was recorded"
        column = self._columns.get(Setting.of(problem))
        if column is None:
            return f"no query with {Setting.of(problem)} was recorded"
        row = self._row(problem.M, problem.N, problem.K)
        code = 0 if row is None else int(self.codes(workspace_bytes)[row, column])
        return self.algo_configs[code - 1] if code else "the shape was not recorded"

    def split_of(self, config: AlgoConfig) -> SplitK:
        """The split that a decision of this platform means."""
        if config.num_splits_k <= 1:
            return SplitK(1, "none")
        scheme = self.scheme_by_option.get(config.custom_option, self.scheme_of_unlisted)
        return SplitK(config.num_splits_k, scheme)

    def codes(self, workspace_bytes: int) -> NDArray[np.uint16]:
        """Decision codes of a workspace.

        Returns:
            uint16 [shapes, settings], read-only; 0 = not recorded.

        Raises:
            DataIntegrityError: the stored codes are damaged.
        """
        if workspace_bytes not in self._codes:
            with self._folder.reading():
                shape = (len(self._keys), len(self.settings))
                codes = self._member(f"codes_{workspace_bytes}", CODE_DTYPE, shape)
                if int(codes.max(initial=0)) > len(self.algo_configs):
                    raise ValueError(f"codes_{workspace_bytes} has a code without a decision")
            # Two threads may both read a member; they store equal arrays.
            self._codes[workspace_bytes] = codes
        return self._codes[workspace_bytes]

    def shapes(self) -> NDArray[np.int64]:
        """Recorded (M, N, K), int64 [shapes, 3], in increasing order."""
        mask = _SIZE_LIMIT - 1
        keys = self._keys
        return np.stack([keys >> (2 * SIZE_BITS), (keys >> SIZE_BITS) & mask, keys & mask], axis=1)

    def __iter__(self) -> Iterator[tuple[int, Setting, NDArray[np.int64], NDArray[np.int64]]]:
        """Every recorded decision, one workspace and setting at a time.

        Yields:
            Workspace in bytes, setting, int64 [n, 3] shapes, int64 [n, 4] fields of `AlgoConfig`.
        """
        shapes, configs = self.shapes(), np.array(self.algo_configs, dtype=np.int64)
        for workspace in self.workspaces:
            for column, setting in enumerate(self.settings):
                codes = self.codes(workspace)[:, column]
                known = codes != 0
                if known.any():
                    yield workspace, setting, shapes[known], configs[codes[known] - 1]

    def _describe(self, document: dict[str, Any]) -> None:
        if document["schema"] != SCHEMA:
            raise ValueError(f"expected schema {SCHEMA!r}, got {document['schema']!r}")
        self.table_id: str = document["table_id"]
        self.platform: dict[str, Any] = document["platform"]
        self.rows: int = document["rows"]
        self.split_rows: int = document["split_rows"]
        self.workspaces: tuple[int, ...] = tuple(document["workspaces"])
        self.settings = tuple(Setting(*setting) for setting in document["settings"])
        self._columns = {setting: column for column, setting in enumerate(self.settings)}
        schemes = document["scheme_by_custom_option"]
        self.scheme_by_option = {int(option): scheme for option, scheme in schemes.items()}
        self.scheme_of_unlisted: Scheme = document["scheme_of_unlisted_custom_options"]
        self.schemes = tuple(dict.fromkeys([*schemes.values(), self.scheme_of_unlisted]))
        self.replayed = frozenset(
            (setting, SplitK(S, scheme))
            for setting, sizes in zip(self.settings, document["replayed"], strict=True)
            for scheme, counts in sizes.items()
            for S in counts
        )
        self.ragged_K_verified: bool = document["ragged_K_verified"]
        self.envelope = _envelope(document["envelope"], self.settings)

    def _member(self, name: str, dtype: str, shape: tuple[int | None, int]) -> NDArray[Any]:
        """An array of decisions.npz that has exactly this dtype and shape (None = any length)."""
        with np.load(io.BytesIO(self._archive), allow_pickle=False) as archive:
            array: NDArray[Any] = archive[name]
        rows = len(array) if shape[0] is None else shape[0]
        if array.dtype.str != dtype or array.shape != (rows, shape[1]):
            raise ValueError(
                f"{name} must be {dtype} {[rows, shape[1]]}, got {array.dtype.str} {array.shape}"
            )
        array.setflags(write=False)
        return array

    def _row(self, M: int, N: int, K: int) -> int | None:
        if N >= _SIZE_LIMIT or K >= _SIZE_LIMIT:
            return None
        key = (M << (2 * SIZE_BITS)) | (N << SIZE_BITS) | K
        row = bisect_left(self._searchable, key)
        return row if row < len(self._searchable) and self._searchable[row] == key else None


@functools.cache
def open_table(table_id: str) -> DecisionTable:
    """The table of an id; opened once per process.

    Args:
        table_id: `<gpu>/<library>` for a table of the package, or the absolute path of a folder.

    Raises:
        LookupError: there is no such table.
        DataIntegrityError: the table is damaged.
    """
    folder = DATA / table_id
    if not folder.is_dir():
        known = ", ".join(list_tables()) or "none"
        raise LookupError(
            f"no split-K table {table_id!r}; the package has {known}; "
            "a table of your own is named by the absolute path of its folder"
        )
    return DecisionTable(folder)


def list_tables() -> list[str]:
    """Ids of the tables in the package."""
    return sorted(
        path.parent.relative_to(DATA).as_posix() for path in DATA.glob(f"*/*/{DECISIONS}")
    )


def _packed(shapes: NDArray[Any]) -> NDArray[np.int64]:
    """One integer per shape; the shapes must be recordable and strictly increasing."""
    wide = shapes.astype(np.int64)
    if wide.size and (int(wide.min()) < 1 or int(wide.max()) >= _SIZE_LIMIT):
        raise ValueError(f"shapes must lie in 1..{_SIZE_LIMIT - 1}")
    keys: NDArray[np.int64] = (
        (wide[:, 0] << (2 * SIZE_BITS)) | (wide[:, 1] << SIZE_BITS) | wide[:, 2]
    )
    if not bool((keys[1:] > keys[:-1]).all()):
        raise ValueError("shapes must be strictly increasing")
    return keys


def _envelope(document: dict[str, Any], settings: tuple[Setting, ...]) -> Envelope:
    grid = document["grid_K"]
    return Envelope(
        grid_K=None if grid is None else tuple(grid),
        bounds={
            (int(workspace), setting): tuple(bounds)
            for workspace, columns in document["bounds"].items()
            for setting, bounds in zip(settings, columns, strict=True)
            if bounds is not None
        },
        held_out={
            int(workspace): HeldOutTest(test["tested"], test["split"])
            for workspace, test in document["held_out"].items()
        },
        margin=document["margin"],
    )

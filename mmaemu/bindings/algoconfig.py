"""AlgoConfig: what cuBLASLt's heuristic chose, recorded or live."""

from __future__ import annotations

from typing import NamedTuple


class AlgoConfig(NamedTuple):
    """What cuBLASLt's heuristic chose; the names are those of cublasLtMatmulAlgoConfigAttributes_t.

    Attributes:
        num_splits_k: SPLITK_NUM, 0 or 1 = not split.
        custom_option: CUSTOM_OPTION.
        algo: ID.
        tile: TILE_ID, a cublasLtMatmulTile_t.
    """

    num_splits_k: int
    custom_option: int
    algo: int
    tile: int

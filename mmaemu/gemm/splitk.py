"""How K is split into slices and how the slices are put together again (rules N14 to N17)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Scheme = Literal["none", "serial", "pairwise", "contiguous"]
SCHEMES: tuple[str, ...] = get_args(Scheme)


@dataclass(frozen=True, slots=True)
class SplitK:
    """A split-K decision: S slices of K, combined by `scheme`.

    Attributes:
        S: number of slices, at least 1.
        scheme: "none" (S = 1), "serial" or "pairwise" (RTX 4060: strided tiles of 64), or
            "contiguous" (H100: runs of tiles of 128, added serially).

    Raises:
        TypeError: S is no int (a bool counts as none) or scheme no str.
        ValueError: S < 1, an unknown scheme, or a scheme that does not fit S.
    """

    S: int = 1
    scheme: Scheme = "none"

    def __post_init__(self) -> None:
        if type(self.S) is not int:
            raise TypeError(f"SplitK.S must be an int, got {self.S!r} ({type(self.S).__name__})")
        if not isinstance(self.scheme, str):
            raise TypeError(f"SplitK.scheme must be a str, got {self.scheme!r}")
        if self.S < 1:
            raise ValueError(f"SplitK.S must be at least 1, got {self.S}")
        if self.scheme not in SCHEMES:
            raise ValueError(
                f"SplitK.scheme must be one of {', '.join(SCHEMES)}; got {self.scheme!r}"
            )
        if (self.S == 1) != (self.scheme == "none"):
            raise ValueError(
                f"S = 1 goes with scheme 'none' and S > 1 with a reduction scheme; "
                f"got S = {self.S}, scheme {self.scheme!r}"
            )


UNSPLIT = SplitK()

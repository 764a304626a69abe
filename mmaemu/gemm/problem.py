"""GemmProblem: the size, formats and accumulation mode of one GEMM, as a hashable key."""

from __future__ import annotations

from dataclasses import dataclass


def check_size(name: str, value: object, *, least: int = 0) -> int:
    """Return value if it is an int of at least `least`.

    Args:
        name: what the value is called in the error message.
        value: the size to check.
        least: the smallest value allowed.

    Returns:
        The same int.

    Raises:
        TypeError: value is no int; a bool, a whole float or a tensor counts as none.
        ValueError: value is below `least`.
    """
    if type(value) is not int:
        raise TypeError(f"{name} must be an int, got {value!r} ({type(value).__name__})")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return value


def check_name(name: str, value: object) -> str:
    """Return value if it is a non-empty str.

    Args:
        name: what the value is called in the error message.
        value: the name to check.

    Returns:
        The same str.

    Raises:
        TypeError: value is no str.
        ValueError: value is empty.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got {value!r} ({type(value).__name__})")
    if not value:
        raise ValueError(f"{name} must name something, got an empty str")
    return value


@dataclass(frozen=True, slots=True)
class GemmProblem:
    """One GEMM out[M, N] = a[M, K] times b[N, K] transposed, without its data.

    Attributes:
        M: rows of a and of the output, at least 0.
        N: rows of b (columns of mat2) and columns of the output, at least 0.
        K: length of the dot products, at least 0.
        format_a: format name of a's elements, such as "e4m3".
        format_b: format name of b's elements.
        out: torch's name of the output type, such as "bfloat16".
        use_fast_accum: one chain over all of K (True) or a promotion every 128 (False).

    Raises:
        TypeError: a size is no int (bool and float count as none), a name no str, or
            use_fast_accum no bool.
        ValueError: a size is negative or a name is empty.
    """

    M: int
    N: int
    K: int
    format_a: str
    format_b: str
    out: str
    use_fast_accum: bool

    def __post_init__(self) -> None:
        check_size("M", self.M)
        check_size("N", self.N)
        check_size("K", self.K)
        check_name("format_a", self.format_a)
        check_name("format_b", self.format_b)
        check_name("out", self.out)
        if type(self.use_fast_accum) is not bool:
            raise TypeError(f"use_fast_accum must be a bool, got {self.use_fast_accum!r}")

    @property
    def is_empty(self) -> bool:
        """Whether a size is zero: then no product exists and nothing is split."""
        return not (self.M and self.N and self.K)

    def transposed(self) -> GemmProblem:
        """The problem whose output is the transpose of this one's, with the same values."""
        return GemmProblem(
            self.N, self.M, self.K, self.format_b, self.format_a, self.out, self.use_fast_accum
        )

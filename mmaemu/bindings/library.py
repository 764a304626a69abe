"""A native library whose functions return a status: loading, prototypes, status to exception."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mmaemu.errors import MmaemuError


class NativeLibraryError(MmaemuError, RuntimeError):
    """A native library is missing, lacks a function, or answered a call with an error status.

    Args:
        message: what happened.
        status: the library's own status code; None where no call was made.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class StatusLibrary:
    """A loaded library of which every declared function returns 0 for success.

    Args:
        names: file names or paths to try in this order; the first that loads is used.
        prototypes: argument types of every function that will be called, by function name.
        describe: turns a failure status into its name.

    Raises:
        NativeLibraryError: no name loads, or the library lacks a declared function.
    """

    def __init__(
        self,
        names: Sequence[str],
        prototypes: Mapping[str, Sequence[Any]],
        describe: Callable[[int], str],
    ) -> None:
        self.handle, self.name = _load(names)
        self._describe = describe
        self._functions = {}
        for function, argtypes in prototypes.items():
            try:
                entry = getattr(self.handle, function)
            except AttributeError as error:
                raise NativeLibraryError(
                    f"{self.name} has no function {function}; it is not the library expected here"
                ) from error
            entry.argtypes = list(argtypes)
            entry.restype = ctypes.c_int
            self._functions[function] = entry

    def call(self, function: str, *arguments: object) -> None:
        """Call a declared function.

        Raises:
            NativeLibraryError: the function returned a failure status.
        """
        status = self._functions[function](*arguments)
        if status != 0:
            text = f"{function} failed: {self._describe(status)} ({status})"
            raise NativeLibraryError(text, status)


def _load(names: Sequence[str]) -> tuple[ctypes.CDLL, str]:
    failures = []
    for name in names:
        try:
            return ctypes.CDLL(name), name
        except OSError as error:
            failures.append(str(error))
    raise NativeLibraryError("cannot load " + "; ".join(failures))

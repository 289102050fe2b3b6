"""The processor's mode for floats while the interpreter computes: subnormal numbers count, as on a GPU.

XLA's threads and `torch.set_flush_denormal` set the processor to read and write zeros instead, and this changes NumPy's
results.
"""

from __future__ import annotations

import ctypes
from types import TracebackType
from typing import Any

_BYTES = 64  # more than any fenv_t
_DEFAULT = ctypes.c_void_p(-1)  # FE_DFL_ENV of glibc and musl


def _functions() -> tuple[Any, Any] | None:
    for name in (None, "libm.so.6"):
        try:
            library = ctypes.CDLL(name)
            return library.fegetenv, library.fesetenv
        except (OSError, AttributeError):
            continue
    return None


_FOUND = _functions()


class SubnormalNumbers:
    """A context in which this thread's floats have subnormal numbers and round to nearest."""

    __slots__ = ("_kept",)

    def __enter__(self) -> None:
        self._kept = ctypes.create_string_buffer(_BYTES)
        if _FOUND is not None:
            get, put = _FOUND
            get(self._kept)
            put(_DEFAULT)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if _FOUND is not None:
            _FOUND[1](self._kept)

"""Repeated calls of custom kernels, for which checks, geometry and parameters are known.

The key of a call has everything except the arrays and the values of scalars. The second call with a key gets a `FastCalls`, the
fast path of traced kernels, if its arrays are on the GPU and are passed without a copy. All other calls take the slow path.

    key, results = seen.call(inputs, ...)
    if results is not MISS:
        return results
    ...            # check, load, launch
    seen.note(key, ...)
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from kernel_dsl.dtypes import DType

from ..devices.cuda_device import CudaLoaded
from ..devices.device import Loaded
from ..plan import recording
from ..plan.dispatch import MISS, FastCalls

__all__ = ["MISS", "SeenCalls"]

Key = tuple[Hashable, ...]

# The types of a key's items, which never change. A tensor, for example, can be an extent, and have another value at the
# next call.
_LASTING = (int, str, bytes, type(None), type, np.generic, np.dtype, DType)
_LISTS = (list, tuple)


def _exact(values: Any) -> Key:
    """A list or tuple as a key that distinguishes values which compare equal, such as 1, True and 1.0.

    TypeError for others.
    """
    if isinstance(values, _LISTS):
        if len(values) == 1:  # the common case (a vector's shape, one output's dtype), several times in each launch
            return type(values[0]), values[0]
        return (*map(type, values), *values)
    raise TypeError


def _exact_each(values: Any) -> tuple[Key, ...]:
    if isinstance(values, _LISTS):
        return tuple([_exact(part) for part in values])
    raise TypeError


class SeenCalls:
    """The calls that one kernel object, or `precompiled_cuda_kernel`, has seen."""

    CAPACITY = 256

    def __init__(self) -> None:
        self._known: dict[Key, FastCalls | None] = {}

    def call(
        self,
        inputs: Any,
        shapes: Any,
        dtypes: Any,
        grid: Any,
        threadgroup: Any,
        template: Any,
        init_value: Any,
        contiguous: Any,
        stream: Any,
        interpret: Any,
        *others: Hashable,
        scalars: Any = (),
    ) -> tuple[Key | None, Any]:
        """The key of a call (None if it can have no fast path), and its results (MISS if it takes the slow path).

        Calls that differ only in arrays and scalars have equal keys.
        """
        if recording.active or not (interpret is None or interpret is False):
            return None, MISS
        if not isinstance(inputs, _LISTS) or not isinstance(scalars, _LISTS):
            return None, MISS
        try:
            key = (
                len(inputs),
                _exact(grid),
                _exact(threadgroup),
                _exact_each(shapes),
                _exact(dtypes),
                None if init_value is None else _number(init_value),
                None
                if template is None
                else _exact_each(list(template.items()) if type(template) is dict else template),
                contiguous,
                others,
            )
            fast = self._known.get(key)
        except Exception:  # wrong arguments, for which the slow path raises an error, or a writable view of bytes
            return None, MISS
        if fast is None:
            return key, MISS
        given = (*inputs, *scalars) if scalars else inputs
        if stream is None:
            results = fast.latest(given, None, None)
            if results is not MISS:
                return key, results
        return key, fast(given, None, stream)

    def note(self, key: Key | None, loaded: Loaded | None, inputs: Sequence[Any], scalars: Sequence[Any] = ()) -> None:
        """Remember a successful call on the slow path.

        The second time, a fast path is made for it. `inputs` and `scalars` are the call's own.
        """
        if key is None:
            return
        if key not in self._known:
            if _lasts(key):
                if len(self._known) >= self.CAPACITY:
                    self._known.clear()
                self._known[key] = None
        elif isinstance(loaded, CudaLoaded) and loaded.launcher is not None:
            fast = self._known.get(key) or FastCalls()
            fast.learn((*inputs, *scalars), None, loaded)
            self._known[key] = fast


def _number(value: Any) -> str:
    """A fill as text, which distinguishes 0, False, 0.0 and -0.0. TypeError for a value whose text is incomplete."""
    if type(value) not in (int, bool, float) or value != value:
        raise TypeError
    return repr(value)


def _lasts(value: Any) -> bool:
    """Whether no item of a key can change later."""
    if type(value) is tuple:
        return all(map(_lasts, value))
    kind = type(value)
    return isinstance(value, _LASTING) or (kind.__module__, kind.__name__) == ("torch", "dtype")

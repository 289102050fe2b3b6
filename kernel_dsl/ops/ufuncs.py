"""NumPy's ufuncs applied to traced values: `np.exp(x)` is `kd.exp(x)`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..boundary import OPERATIONS
from ..errors import BadArgumentType, TracedConversion

_OTHER_NAMES = {"conjugate": "positive", "true_divide": "true_divide", "float_power": "float_power"}


def _ours(name: str) -> Any:
    return OPERATIONS.get(_OTHER_NAMES.get(name, name))


def apply_function(value: Any, function: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Implements `__array_function__`: `np.where(c, x, y)` is `kd.where(c, x, y)`.

    Raises `TracedConversion` for others.
    """
    if function in (np.shape, np.ndim, np.size):
        return {np.shape: value.shape, np.ndim: value.ndim, np.size: value.size}[function]
    name = function.__name__
    ours = _ours(name) if function.__module__ == "numpy" else None
    if ours is None:
        hint = f"`np.{name}` has no counterpart: use the functions of `kernel_dsl`"
        raise TracedConversion(type=value.type, to="array", hint=hint)
    return ours(*args, **kwargs)


def apply(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Implements `__array_ufunc__`. Raises `BadArgumentType` for ufuncs and options that kernels do not have."""
    name = ufunc.__name__
    function = _ours(name)
    reduction = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min"}.get(name)
    if method == "reduce" and reduction is not None and kwargs.keys() <= {"axis", "keepdims"}:
        return _ours(reduction)(inputs[0], kwargs.get("axis", 0), keepdims=kwargs.get("keepdims", False))
    if function is None or method != "__call__" or kwargs:
        hint = "use the functions of `kernel_dsl`; a kernel's ufuncs take no `out=`, `where=` or `dtype=`"
        what = f"`np.{name}`" + (f".{method}" if method != "__call__" else "")
        raise BadArgumentType(op=f"np.{name}", what=f"{what} can't be applied like this", hint=hint)
    return function(*inputs)

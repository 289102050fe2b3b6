"""NumPy's ufuncs applied to traced values: `np.exp(x)` is `kd.exp(x)`."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from ..errors import BadArgumentType

_OTHER_NAMES = {"conjugate": "positive", "true_divide": "true_divide", "float_power": "float_power"}


@cache
def _ours(name: str) -> Any:
    return getattr(import_module("kernel_dsl"), _OTHER_NAMES.get(name, name), None)


def apply(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `__array_ufunc__` does. Raises `BadArgumentType` for ufuncs and options that a kernel has not."""
    name = ufunc.__name__
    function = _ours(name)
    if method == "reduce" and name in ("add", "multiply", "maximum", "minimum") and not kwargs.get("out"):
        reduction = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min"}[name]
        kept = {k: v for k, v in kwargs.items() if k in ("axis", "keepdims")}
        return _ours(reduction)(inputs[0], kept.get("axis", 0), keepdims=kept.get("keepdims", False))
    if function is None or method != "__call__" or kwargs:
        hint = "use the functions of `kernel_dsl`; a kernel's ufuncs take no `out=`, `where=` or `dtype=`"
        what = f"`np.{name}`" + (f".{method}" if method != "__call__" else "")
        raise BadArgumentType(op=f"np.{name}", what=f"{what} can't be applied like this", hint=hint)
    return function(*inputs)

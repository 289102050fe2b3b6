"""Attaches operations to the handles that users have (values, Refs and accumulators), which define none themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..accumulator import AccRef
from ..boundary import attach
from ..errors import TracedConversion
from ..other_names import missing
from ..refs import Ref
from ..values import Array
from . import arith, cast, compare, logic, lookup, matrix, numeric, product, reduce, ref, scan, shape, ufuncs

_BINARY: Mapping[str, Callable[[Any, Any], Array]] = {
    "add": arith.add,
    "sub": arith.subtract,
    "mul": arith.multiply,
    "truediv": arith.true_divide,
    "floordiv": arith.floor_divide,
    "mod": arith.mod,
    "pow": numeric.power,
    "matmul": product.dot,
    "and": arith.bitwise_and,
    "or": arith.bitwise_or,
    "xor": arith.bitwise_xor,
    "lshift": arith.left_shift,
    "rshift": arith.right_shift,
}


def _reflected(function: Callable[[Any, Any], Array]) -> Callable[[Any, Any], Array]:
    return lambda x, y: function(y, x)


def _power(x: Array, y: Any, modulus: Any = None) -> Array:
    if modulus is not None:
        hint = "use `kd.power(x, y)`, and `kd.mod` for the third argument"
        raise TracedConversion(type=x.type, to="int", hint=hint)
    return numeric.power(x, y)


def _transpose(x: Array, *axes: Any) -> Array:
    order = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
    return shape.transpose(x, order or None)


def _ufunc(x: Array, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
    return ufuncs.apply(ufunc, method, inputs, keywords)


def _load(acc: AccRef, index: Any) -> Array:
    return matrix.wgmma_accumulator_load(acc.block(index))


def _store(acc: AccRef, index: Any, value: Any) -> None:
    matrix.write_accumulator(acc.block(index), value)


attach(Array, {
    **{f"__{name}__": function for name, function in _BINARY.items()},
    **{f"__r{name}__": _reflected(function) for name, function in _BINARY.items()},
    "__pow__": _power,
    "__neg__": arith.negative,
    "__invert__": arith.invert,
    "__abs__": arith.absolute,
    "__eq__": compare.equal,
    "__ne__": compare.not_equal,
    "__lt__": compare.less,
    "__le__": compare.less_equal,
    "__gt__": compare.greater,
    "__ge__": compare.greater_equal,
    "__getitem__": lookup.element,
    "__array_function__": ufuncs.apply_function,
    "__array_ufunc__": _ufunc,
    "astype": cast.astype,
    "transpose": _transpose,
    "reshape": shape.reshape,
    "squeeze": shape.squeeze,
    "swapaxes": shape.swapaxes,
    **{f.__name__: f for f in (reduce.sum, reduce.prod, reduce.mean, reduce.var, reduce.max, reduce.min, reduce.any,
                               reduce.all, reduce.argmax, reduce.argmin, scan.cumsum, scan.cumprod)},
    "round": numeric.round,
    "clip": logic.clip,
})  # fmt: skip
attach(Ref, {
    "__getitem__": ref.load,
    "__setitem__": ref.store,
    "bitcast": ref.bitcast_ref,
    "_buffer_as": ref.buffer_as,
})  # fmt: skip
attach(AccRef, {
    "__getitem__": _load,
    "__setitem__": _store,
    "scale_rows": matrix.scale_rows,
})  # fmt: skip
for _handle in (Array, Ref):
    type.__setattr__(_handle, "__getattr__", missing)

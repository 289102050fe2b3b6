"""The gradients of two products, from the gradient of their gate's result."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

import kernel_dsl as kd
from kernel_dsl.dtypes import DType, as_dtype
from kernel_dsl.kernel import identified

from ..activations import gate_function

INSTEAD = "multiply without it, and apply the gate with the framework's own operations"
WIDTH = 2048  # elements of a block
VECTOR = 8  # neighbouring elements of a lane
MOST = 2**40


@cache
def _elements(unit: int) -> Any:
    return kd.Dim("elements", max=MOST // unit * unit, multiple_of=unit)


@cache
def slopes_kernel(gate: Any, dtype: DType, unit: int) -> Any:
    """The kernel `(gate, value, gradient) -> (gradient by gate, by value)`, all (elements,), a multiple of `unit`, any
    floats.

    `gate`: its name, or a function of the two. `dtype`: the dtype of the results.
    """
    count = _elements(unit)
    function: Callable[[Any, Any], Any] = gate if callable(gate) else gate_function(str(gate))
    said = ("matmul", "gate", "gated(x, y)", INSTEAD)

    def body(gates: Any, values: Any, gradients: Any, by_gate: Any, by_value: Any) -> None:
        from ..attention_forward.slopes import with_derivative  # operations, imported for the first trace

        part = kd.ds(kd.program_id(0) * WIDTH, WIDTH)
        wide = kd.float64 if kd.float64 in (gates.dtype, gradients.dtype) else kd.float32
        x, y, slope = (ref[part].astype(wide) for ref in (gates, values, gradients))
        by_gate[part] = (slope * with_derivative(function, x, (y,), said)[1]).astype(dtype)
        turned = with_derivative(lambda y, x: function(x, y), y, (x,), said)[1]
        by_value[part] = (slope * turned).astype(dtype)

    out = kd.ShapeDtypeStruct((count,), dtype)
    made = kd.kernel(
        body,
        out_type=(out, out),
        grid=(kd.cdiv(count, WIDTH),),
        shapes=dict.fromkeys(range(3), (count,)),
        name="gate_gradients",
    )
    return made if callable(gate) else identified(made, gate, dtype, unit)


def gate_gradients(gate: Any, sums: tuple[Any, Any], gradient: Any, dtype: Any, interpret: Any) -> tuple[Any, Any]:
    """The gradients of two products, in `dtype`, from the gradient of gate(*sums). All are row-major arrays of one
    shape.
    """
    shape = tuple(gradient.shape)
    size = prod(shape)
    kernel = slopes_kernel(gate, as_dtype(dtype), VECTOR if size % VECTOR == 0 else 1)
    made = kernel(*(x.reshape(-1) for x in (*sums, gradient)), interpret=interpret)
    return made[0].reshape(shape), made[1].reshape(shape)

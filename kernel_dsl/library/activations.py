"""Activations and gates: functions of each element of the sums, by name or the user's."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import e, log2
from typing import Any

import kernel_dsl as kd
from kernel_dsl.diagnostics import shown
from kernel_dsl.errors import BadCallValue
from kernel_dsl.source import misfit
from kernel_dsl.trace import at_own_lines

Function = Callable[..., Any]
LOG2E = log2(e)


def _sigmoid(x: Any) -> Any:
    """As `kd.logistic`. Its name here would import all operations with this module, not for the first trace."""
    return kd.logistic(x)


_GATES: dict[str, Function] = {
    "swiglu": lambda x: x * kd.logistic(x),
    "geglu": lambda x: 0.5 * x * (1.0 + kd.erf(x * 0.5**0.5)),
    "reglu": lambda x: kd.maximum(x, 0.0),
    "glu": _sigmoid,
}
GATES = tuple(_GATES)


def _swish(x: Any) -> Any:
    """x * logistic(x) in float32 to 2^-17 of it, for results of 16 bits or less. It takes 6 instructions instead of 28."""
    return kd.div(x, 1.0 + kd.exp2(x * -LOG2E, approx=True), approx=True)


@cache
def gate_function(word: str, rough: bool = False) -> Function:
    """A gate by its name: a function of the gate's product and the gated product. `rough`: 16 bits of it are used."""
    function = _swish if rough and word == "swiglu" else _GATES[word]
    return lambda gate, value: function(gate) * value


def called_on(word: str, function: Function, x: Any, *more: Any) -> Any:
    """`function(x, *more)`, of each element by itself. Raises `BadCallValue` for another result, or other parameters."""
    if why := misfit(function, x, *more):
        what = f"{word} can't be called with {len(more) + 1} value{'s' * bool(more)}: {why}"
        raise BadCallValue(
            kernel="matmul", what=what, hint="it takes a part of the product, and then a part of each operand"
        )
    from kernel_dsl.ops.pointwise import mixing  # operations, imported for the first trace

    result = at_own_lines(function, x, *more)
    wrong = None
    if getattr(result, "shape", None) != x.shape:
        wrong = f"made {shown(result)} of {shown(x)}"
    wrong = wrong or mixing(lambda *given: at_own_lines(function, *given), x, *more)
    if wrong is not None:
        hint = "use a function of each element, because it gets one part of the product at a time"
        raise BadCallValue(kernel="matmul", what=f"{word} {wrong}", hint=hint)
    return result

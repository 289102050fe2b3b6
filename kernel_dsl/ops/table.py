"""Elementwise operations in one row each. A row makes the op's class and the function that users call.

The row names a function of `lowering/math`. `what` is the docstring of the users' function; its first sentence is the op's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

from ..ir import option
from ..values import Array
from .arith import elementwise
from .cast import as_number
from .elementwise import Binary, Unary, in_floats

_Op = TypeVar("_Op", bound=Unary | Binary)


class Approximable(Unary):
    """A function that the hardware approximates in float32.

    `approx`: whether to use that; None: as `approx_math` says.
    """

    approx: bool | None = option(None)


class FunctionOfX(Protocol):
    """A function of one value."""

    op: type[Unary]

    def __call__(self, x: Any) -> Array: ...


class ApproximableFunction(Protocol):
    """A function of one value that may be approximated."""

    op: type[Approximable]

    def __call__(self, x: Any, *, approx: bool | None = None) -> Array: ...


class FunctionOfXY(Protocol):
    """A function of two values."""

    op: type[Binary]

    def __call__(self, x: Any, y: Any) -> Array: ...


class FunctionOfYX(Protocol):
    """A function of two values, y first."""

    op: type[Binary]

    def __call__(self, y: Any, x: Any) -> Array: ...


def applied(cls: Any, args: tuple[Any, ...], op: str, **options: Any) -> Array:
    """Append an op on floats. Ints become float32, 64-bit ints float64."""
    dtype, args = in_floats(args, op)
    return elementwise(cls, args, op, dtype, options=options)


def unary(name: str, what: str, math: str = "", ptx: str = "") -> FunctionOfX:
    """A function of `lowering/math` with the op's name, or with the name `math`; `ptx`: see `_op`."""
    cls = _op(Unary, name, what, math, ptx)

    def function(x: Any) -> Array:
        return applied(cls, (x,), name)

    return _as_written(function, cls, name, what)


def approximable(name: str, what: str, ptx: str) -> ApproximableFunction:
    """A function of `lowering/math`, or the instruction `ptx` if it is approximated."""
    cls = _op(Approximable, name, what, "", ptx)

    def function(x: Any, *, approx: bool | None = None) -> Array:
        return applied(cls, (x,), name, approx=approx)

    first, _, more = what.partition("\n")
    said = f"{first} `approx`: whether to use `{ptx}` in float32; None: as `approx_math` says."
    return _as_written(function, cls, name, f"{said}\n{more}" if more else said)


def binary(name: str, what: str) -> FunctionOfXY:
    """A function of `lowering/math` of two operands."""
    cls = _op(Binary, name, what)

    def function(x: Any, y: Any) -> Array:
        return applied(cls, (x, y), name)

    return _as_written(function, cls, name, what)


def binary_yx(name: str, what: str) -> FunctionOfYX:
    """A function of `lowering/math` of two operands, which users call y and x."""
    cls = _op(Binary, name, what)

    def function(y: Any, x: Any) -> Array:
        return applied(cls, (y, x), name)

    return _as_written(function, cls, name, what)


def rounding(name: str, what: str, ptx: str) -> FunctionOfX:
    """A function of floats, the instruction `ptx`. It returns integers unchanged."""
    cls = _op(Unary, name, what, "", ptx)
    cls.__doc__ = f"{what} PTX `{ptx}`."

    def function(x: Any) -> Array:
        value = as_number(x, name)
        return elementwise(cls, (value,), name) if value.dtype.is_float else value

    return _as_written(function, cls, name, f"{what.removesuffix('.')}, in x's dtype.")


def _op(base: type[_Op], name: str, what: str, math: str = "", ptx: str = "") -> type[_Op]:
    """The op's class. Its docstring names its PTX: `ptx` if it is approximated."""
    first = what.partition("\n")[0]
    becomes = f"PTX `{ptx}` where approximate, else several instructions." if ptx else "Several PTX instructions."
    fields = {"__doc__": f"{first} {becomes}", "__module__": _row_of(), "math": math or name}
    made: Any = type(base)("".join(map(str.capitalize, name.split("_"))), (base,), fields, name=name)
    return made


def _as_written(function: Callable[..., Array], cls: type[Any], name: str, what: str) -> Any:
    """The function with the name, module and docstring of a `def` in its row's file, and its class as `op`."""
    made = cast("Any", function)
    made.op = cls
    function.__name__ = function.__qualname__ = name
    function.__module__, function.__doc__ = _row_of(), what
    return made


def _row_of() -> str:
    """The module whose row is being made: the caller of a maker of this file."""
    frame: Any = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame.f_globals["__name__"]

"""The errors of a function of the library for wrong arguments."""

from __future__ import annotations

import math
import sys
from numbers import Real
from typing import Any, cast

import numpy as np

from kernel_dsl.diagnostics import of_kind, shown
from kernel_dsl.dtypes import as_dtype
from kernel_dsl.errors import BadCallArgument, BadCallValue, LibraryDType, LibraryShape
from kernel_dsl.jax_primitive import inside_rule

LEAST, MOST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)  # of float32


def shape_of(x: Any) -> tuple[Any, ...]:
    """The shape of an array; () for all else, such as the class of an array, whose `shape` is no tuple."""
    shape = getattr(x, "shape", ())
    return tuple(shape) if isinstance(shape, tuple) else ()  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]


def kind_and_shape(x: Any) -> str:
    """What an argument is: "an ndarray of shape (7,)", "a list"."""
    shape = getattr(x, "shape", None)
    return of_kind(x) + (f" of shape {shown(shape)}" if isinstance(shape, tuple) else "")


def check_parts(kernel: str, parts: dict[str, tuple[Any, Any, tuple[Any, ...]]], made_by: str) -> None:
    """Raise `BadCallArgument`, `LibraryDType`, `LibraryShape` for arrays of a packed matrix without their form.

    `parts`: by name the array, its dtype and its shape; a shape with Dims or symbols is not compared. `made_by`: the
    function that makes such a matrix.
    """
    for name, (x, dtype, shape) in parts.items():
        hint = f"{dtype} {shape}, as `{made_by}` makes it"
        if not hasattr(x, "dtype") or not hasattr(x, "shape"):
            raise BadCallArgument(kernel=kernel, what=f"{name} is {of_kind(x)}", hint=hint)
        if as_dtype(x.dtype) != dtype:
            raise LibraryDType(kernel=kernel, what=f"{name} is {as_dtype(x.dtype)}", hint=hint)
        given = tuple(x.shape)
        if given != shape and all(isinstance(n, int) for n in (*given, *shape)):
            raise LibraryShape(kernel=kernel, what=f"{name} is {given}", hint=hint)


def is_number(x: Any) -> bool:
    """Whether this is a real number. A bool is none."""
    return not isinstance(x, bool) and isinstance(x, Real)


def check_plain_tensors(name: str, arrays: dict[str, Any]) -> None:
    """Raise `BadCallArgument` for a tensor that requires grad in a call that has no derivative, outside of rules."""
    torch: Any = sys.modules.get("torch")
    if torch is None or inside_rule.get() or not torch.is_grad_enabled():
        return
    for word, x in arrays.items():
        if getattr(x, "requires_grad", False):
            raise no_gradient(name, word)


def no_gradient(name: str, word: str, *, jax: bool = False) -> BadCallArgument:
    """The error for an array of a call that has no gradient, and whose gradient would silently be zero."""
    what = f"{word} {'is differentiated' if jax else 'requires grad'}, and has no gradient here"
    hint = f"pass jax.lax.stop_gradient({word})" if jax else f"pass {word}.detach(), or call it under torch.no_grad()"
    return BadCallArgument(kernel=name, what=what, hint=hint)


def on_host(x: Any) -> Any:
    """An array as a NumPy array, if the host can read it without a copy from a GPU; else None."""
    if isinstance(x, np.ndarray):
        return cast("Any", x)
    if getattr(getattr(x, "device", None), "type", "") == "cpu" and hasattr(x, "numpy"):
        return x.detach().numpy()
    return None


def floated(x: Any) -> Any:
    """A real number as a float. All else stays as it is, and so do ints beyond all floats: checks refuse these."""
    try:
        return float(x) if is_number(x) else x
    except OverflowError:
        return x


class Refusals:
    """Makes the errors of the function named `kernel`, at the caller's line."""

    kernel: str

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel

    def positive(self, name: str, x: Any) -> None:
        """Check a number above zero that float32 holds, or None: kernels compute with it in float32.

        A tensor is none: kernels are kept by options, and it may change.
        """
        if x is None:
            return
        if not is_number(x):
            raise self.argument(f"{name}={shown(x)}", "a positive number")
        try:
            number = float(x)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number) or number <= 0:
            raise self.value(f"{name}={shown(x)}", "a positive number")
        if not LEAST <= number <= MOST:
            hint = f"a positive number from {LEAST:.3g} to {MOST:.3g}, as kernels compute in float32"
            raise self.value(f"{name}={shown(x)}", hint)

    def argument(self, what: str, hint: str) -> BadCallArgument:
        """The error for an argument of a wrong kind."""
        return BadCallArgument(kernel=self.kernel, what=what, hint=hint)

    def bad_dtype(self, what: str, hint: str) -> LibraryDType:
        """The error for a dtype that the function does not take."""
        return LibraryDType(kernel=self.kernel, what=what, hint=hint)

    def value(self, what: str, hint: str) -> BadCallValue:
        """The error for a wrong value."""
        return BadCallValue(kernel=self.kernel, what=what, hint=hint)

    def bad_shape(self, what: str, hint: str) -> LibraryShape:
        """The error for a shape that does not fit the other arrays."""
        return LibraryShape(kernel=self.kernel, what=what, hint=hint)

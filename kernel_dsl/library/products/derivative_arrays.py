"""Arrays of JAX and PyTorch, as the gradients of products compute with them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernel_dsl.dtypes import as_dtype
from kernel_dsl.errors import BadCallArgument

from .gate_gradients import INSTEAD


def refuse(kernel: str, name: str) -> BadCallArgument:
    """The error for an option without a derivative."""
    return BadCallArgument(kernel=kernel, what=f"no derivative with {name}=", hint=INSTEAD)


def check_real(kernel: str, **arrays: Any) -> None:
    """Raise `BadCallArgument` for operands that have no gradients."""
    for name, x in arrays.items():
        found = as_dtype(x.dtype)
        if not is_smooth(found) or found.itemsize == 1:
            hint = "convert it to a float of 16 bits or more before the product"
            raise BadCallArgument(kernel=kernel, what=f"{name} is {found}, which has no gradient", hint=hint)


def is_smooth(dtype: Any) -> bool:
    """Whether arrays of a dtype have gradients; integers are constants."""
    found = as_dtype(dtype)
    return found.is_float or found.name == "complex64"


def conjugated(x: Any) -> Any:
    """The factor of a gradient for a product with x. PyTorch's gradients need the conjugate of x, JAX's need x."""
    torch = _module(x).__name__ == "torch" and as_dtype(x.dtype).name == "complex64"
    return x.conj().resolve_conj() if torch else x


def cast(x: Any, dtype: Any) -> Any:
    """An array in another dtype, given by another array or by name."""
    if not (hasattr(x, "to") and hasattr(x, "requires_grad")):
        return x.astype(dtype)
    return x.to(getattr(sys.modules["torch"], dtype) if isinstance(dtype, str) else dtype)


def summed(gradient: Any, x: Any) -> Any:
    """The gradient of a broadcast operand `x`, from one of the result's shape. Narrower gradients are summed in
    float32.
    """
    if tuple(gradient.shape) != tuple(x.shape) and as_dtype(gradient.dtype).itemsize < 4:
        gradient = cast(gradient, "float32")
    while len(gradient.shape) > len(x.shape):
        gradient = gradient.sum(0)
    for axis, (has, wants) in enumerate(zip(gradient.shape, x.shape, strict=True)):
        if has != wants:
            gradient = gradient.sum(axis, keepdims=True)
    return cast(gradient, x.dtype)


def _module(x: Any) -> Any:
    """The framework's module of an array."""
    if isinstance(x, np.ndarray):
        return np
    return sys.modules["torch"] if hasattr(x, "requires_grad") and hasattr(x, "to") else sys.modules["jax"].numpy


def ones_of(x: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """Ones on an array's device."""
    module: Any = _module(x)
    where = {"device": x.device} if module.__name__ == "torch" else {}
    return module.ones(shape, dtype=getattr(module, dtype, dtype), **where)


def zeros_like(x: Any) -> Any:
    """Zeros of an array's shape and dtype, on its device."""
    return _module(x).zeros_like(x)


def exponential(x: Any) -> Any:
    """exp(x) by the framework."""
    return _module(x).exp(x)


def stacked(arrays: Sequence[Any], axis: int = 0) -> Any:
    """Arrays as one, along a new axis."""
    return _module(arrays[0]).stack(arrays, axis)


def interleaved(x: Any, y: Any) -> Any:
    """One matrix with the columns of two matrices in turn."""
    return stacked([x, y], -1).reshape(*x.shape[:-1], 2 * x.shape[-1])

"""The part of a call's arguments that selects a compiled kernel, read as fast as possible."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from functools import reduce
from typing import Any, cast

import numpy as np

from ..arrays.array_view import interop_of, is_array

# An array's address is appended to the list; the return value is added to the signature.
Scan = Callable[[Any, list[int]], tuple[Any, ...]]
_scans: dict[type, Scan] = {}
_tensor: Any = None  # torch.Tensor, after the first tensor


class SlowPathError(Exception):
    """An argument that only the slow path can handle, perhaps with an error."""


def signature_of(args: Sequence[Any]) -> Hashable:
    """A hashable signature of `args`, fast to make. Arguments that need another compiled kernel have another one.

    It has an array's dtype, shape, strides, address modulo 16 and device; and a scalar's type or dtype, but not its
    value. None for arguments without a fast path: containers, arrays of other frameworks than torch, CuPy and NumPy,
    tensors that autograd watches.
    """
    try:
        return tuple(scan(args, []))
    except SlowPathError:
        return None


def likeness(arrays: Sequence[Any]) -> Callable[..., bool] | None:
    """A function that tests, by one call of the framework, whether as many arrays are certainly like these.

    None if the framework has no such call. The caller must check alignment.
    """
    found = {interop_of(array).name: interop_of(array) for array in arrays}
    if len(found) != 1:
        return None
    compare = getattr(next(iter(found.values())), "likeness", None)
    return None if compare is None else compare(arrays)


# The attributes of an array that pick a kernel, without its alignment, and the operators that compare them. `scan`
# reads the same.
_FIELDS = {
    "torch": {"get_device()": "!=", "dtype": "is not", "shape": "!=", "stride()": "!="},
    "cupy": {"data.device_id": "!=", "dtype": "!=", "shape": "!=", "strides": "!="},
}
_ADDRESSES = {"torch": "data_ptr()", "cupy": "data.ptr"}


def tests_of(
    framework: str, k: int, name: str, array: Any, can_be_negated: bool
) -> tuple[str, list[str], dict[str, Any]]:
    """The address of array number `k` of a fast call, its tests, and the objects that the tests name.

    `name` is its variable. Address and tests are Python text. One test is true if the array is unlike `array`.
    """
    names: dict[str, Any] = {f"kind{k}": type(array)}
    tests = [f"type({name}) is not kind{k}"]
    for number, (field, differs) in enumerate(_FIELDS[framework].items()):
        value = reduce(getattr, field.removesuffix("()").split("."), array)
        value = value() if field.endswith("()") else value
        names[f"field{k}_{number}"] = value
        tests.append(f"{name}.{field} {differs} {value if type(value) is int else f'field{k}_{number}'}")
    if framework == "torch":
        names["watches"] = sys.modules["torch"].is_grad_enabled
        tests.append(f"({name}.requires_grad and watches())")
    if can_be_negated:
        tests.append(f"{name}.is_neg()")
    return f"{name}.{_ADDRESSES[framework]}", tests, names


def scan(leaves: Sequence[Any], addresses: list[int]) -> list[Any]:
    """The signature of arrays and scalars, and the arrays' addresses. Raises SlowPathError."""
    key: list[Any] = []
    for a in leaves:
        cls: Any = type(a)  # pyright: ignore[reportUnknownVariableType]
        if cls is _tensor:  # the common case, inlined: a call of _of_torch would double its time
            if a.requires_grad:
                _refuse_watched()
            address = a.data_ptr()
            addresses.append(address)
            key += (a.dtype, a.shape, a.stride(), address & 15, a.get_device())
        else:
            look = _scans.get(cls) or _learn_type(a)
            key += look(a, addresses)
    return key


def _learn_type(value: Any) -> Scan:
    global _tensor
    cls = cast("type[Any]", type(value))
    look: Scan | None = None
    if isinstance(value, (bool, int, float, complex)):
        look = lambda a, addresses: (cls,)  # noqa: E731
    elif isinstance(value, np.generic):
        look = lambda a, addresses: (a.dtype,)  # noqa: E731
    elif is_array(value):
        name = interop_of(value).name
        look = {"torch": _of_torch, "cupy": _of_cupy, "numpy": _of_numpy}.get(name)
        if name == "torch":
            _tensor = sys.modules["torch"].Tensor
    if look is None:
        raise SlowPathError
    _scans[cls] = look
    return look


def _refuse_watched() -> None:
    if sys.modules["torch"].is_grad_enabled():
        raise SlowPathError


def _of_torch(t: Any, addresses: list[int]) -> tuple[Any, ...]:
    if t.requires_grad:
        _refuse_watched()
    try:
        address = t.data_ptr()
        addresses.append(address)
        return t.dtype, t.shape, t.stride(), address & 15, t.get_device()
    except RuntimeError as error:  # a tensor without memory
        raise SlowPathError from error


def _of_cupy(a: Any, addresses: list[int]) -> tuple[Any, ...]:
    memory = a.data
    address = memory.ptr
    addresses.append(address)
    return a.dtype, a.shape, a.strides, address & 15, memory.device_id


def _of_numpy(a: Any, addresses: list[int]) -> tuple[Any, ...]:
    address, readonly = a.__array_interface__["data"]
    addresses.append(address)
    return a.dtype, a.shape, a.strides, address & 15, readonly

"""Loads and stores of 4-bit elements: of the bytes that hold them, and their numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import PackedAccess, StoreShape
from ..indices import has_arrays
from ..layout import Layout, blocked
from ..layouts import resolve_rule
from ..packed import PackedRef
from ..values import Array
from .access import check_writable, stored_value
from .broadcast import broadcast_shapes, broadcast_value, convert
from .cast import as_value, astype
from .ref import enter, load, store
from .storage import bytes_of, doubled, halved, numbers_of

__all__: list[str] = []


def load_packed(ref: PackedRef, index: Any, layout: Any, mask: Any, fill: Any, bounds: str | None) -> Array:
    """`kd.load` of 4-bit elements. A mask is one for both elements of a byte, and `fill` one number. Raises `PackedAccess`."""
    part = _gathered(ref, index) if has_arrays(index) else ref.slice(index)
    options: dict[str, Any] = {"mask": _mask_of(part, mask), "fill": _fill_of(ref, fill), "bounds": bounds}
    found: Array
    if isinstance(part, PackedRef):
        wanted = None if layout is None else resolve_rule(layout, part.shape, "load")
        own = halved(wanted, part.axis) if isinstance(wanted, Layout) else None
        found = numbers_of(load(part.stored, layout=own, **options), ref.dtype, part.axis)
        return found if wanted is None else convert(found, wanted)
    found = load(ref.stored, part, **options)
    found = numbers_of(found, ref.dtype, found.ndim - 1)
    return found if layout is None else convert(found, resolve_rule(layout, found.shape, "load"))


def _gathered(ref: PackedRef, index: Any) -> tuple[Any, ...]:
    """An index with arrays, of bytes: the packed axis is the last and whole, so it stays the last."""
    items = ref.in_bytes(index)
    if ref.axis != ref.ndim - 1 or not isinstance(items[-1], slice):
        hint = "gather along other axes, with all of the last one"
        raise PackedAccess(what=f"a gather along the axis where elements of {ref!r} share bytes", hint=hint)
    return items


def _mask_of(part: Any, mask: Any) -> Any:
    """A mask of elements as a mask of bytes."""
    if mask is None or not isinstance(part, PackedRef):
        return mask
    value = as_value(mask, "load")
    place = value.ndim - (len(part.shape) - part.axis)
    if place >= 0 and value.shape[place] != 1:
        hint = "mask other axes, or select with `kd.where` after `astype`"
        raise PackedAccess(what=f"a mask of shape {value.shape} for elements that share bytes", hint=hint)
    return value


def _fill_of(ref: PackedRef, fill: Any) -> Any:
    if fill is None:
        return None
    return int(np.asarray(fill).astype(ref.dtype.numpy).view(np.uint8)) % 16 * 0x11


def store_packed(ref: PackedRef, index: Any, value: Any, mask: Any, bounds: str | None) -> None:
    """`kd.store` of 4-bit elements, two at a time. Raises `PackedAccess`, and the errors of `kd.store`."""
    if has_arrays(index):
        hint = "store slices, or scatter bytes through `ref.bitcast(kd.uint8)`"
        raise PackedAccess(what=f"a scatter to {ref!r}", hint=hint)
    target = ref.slice(index)
    check_writable(target.stored)
    x = (
        astype(as_value(value, "store"), ref.dtype)
        if isinstance(value, (int, float))
        else stored_value(ref.dtype, value)
    )
    shape, axis = target.shape, target.axis
    try:
        fits = x.ndim <= len(shape) and broadcast_shapes([x.shape, shape], "store") == shape
    except ValueError:
        fits = False
    if not fits:
        raise StoreShape(value=x.shape, ref=shape)
    vector, minor = target.stored.vector()
    plain = blocked(tuple(target.stored.shape), max(vector, 1), minor)
    if x.shape != shape:
        x = broadcast_value(x, shape, doubled(plain, axis))
    elif not isinstance(resolve_open(x), Layout):
        x = convert(x, doubled(plain, axis))
    store(target.stored, ..., bytes_of(x, axis, plain), mask=_mask_of(target, mask), bounds=bounds)


def resolve_open(x: Array) -> Any:
    """The layout of a value, or the variable of an open one."""
    from ..trace import find

    return find(x.type.layout)


enter(load_packed, store_packed)

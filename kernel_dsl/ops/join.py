"""Joins of values along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..conversion import cheaper, plan_in_warps
from ..errors import BadArgument
from ..ir import ArrayType, Op, Value, array_type, attr, operands
from ..layout import Layout
from ..promote import promote
from ..refs import View, ViewDim
from ..relabel import sliced
from ..trace import LayoutVar, find, resolve, traced
from ..values import Array
from .axes import one_axis
from .broadcast import convert, work_again
from .cast import as_value, item_type
from .shape import expand_dims, moved, wastes

__all__ = ["concatenate", "stack"]


class Concatenate(Op, name="concatenate"):
    """Values joined along an axis: registers, or through SMEM. PTX `mov`, or `st.shared` and `ld.shared`."""

    parts: tuple[Value, ...] = operands()
    axis: int = attr()
    layout: Any = attr()

    def infer(self) -> tuple[Any, ...]:
        types = [array_type(p) for p in self.parts]
        shape = list(types[0].shape)
        shape[self.axis] = sum(t.shape[self.axis] for t in types)
        return (ArrayType(tuple(shape), types[0].dtype, self.layout),)


def concatenate(arrays: Sequence[Any], axis: int = 0) -> Array:
    """Values joined along an axis; dtypes promote. Raises `BadArgument`.

    >>> run(lambda x, y: kd.concatenate([x, y]), [1, 2], [3])
    [1 2 3]
    """
    if not arrays:
        raise BadArgument(op="concatenate", what="no values", hint="give at least one")
    dtype, _ = promote([item_type(a, "concatenate") for a in arrays])
    parts = [as_value(a, "concatenate", dtype) for a in arrays]
    if parts[0].ndim == 0:
        raise BadArgument(op="concatenate", what="rank-0 values", hint="use `kd.stack`")
    dim = one_axis(axis, parts[0].ndim, parts[0].shape)
    first = parts[0].shape
    for p in parts[1:]:
        rest = [(s[:dim], s[dim + 1 :]) for s in (first, p.shape)]
        if p.ndim != len(first) or rest[0] != rest[1]:
            what = f"shapes {' and '.join(str(q.shape) for q in parts)} differ beside axis {dim}"
            raise BadArgument(op="concatenate", what=what, hint="pad or slice them to agree")
    parts = [p for p in parts if p.shape[dim]] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    shape = (*first[:dim], sum(p.shape[dim] for p in parts), *first[dim + 1 :])
    stay = joined(parts, shape, dim)
    if stay is None:
        return moved(Concatenate(tuple(parts), dim, LayoutVar(shape)), True)
    whole, views = stay
    return traced(Concatenate(tuple(convert(p, v) for p, v in zip(parts, views, strict=True)), dim, whole))


def joined(parts: list[Array], shape: tuple[int, ...], dim: int) -> tuple[Layout, list[Layout]] | None:
    """The layout of values joined along `dim` whose elements stay in their lanes, and the layout that each part needs.
    Open layouts adapt; of the closed ones at most one is converted through SMEM. None if there is no such layout.
    """
    closed = [p for p in parts if isinstance(find(p.type.layout), Layout) and work_again(p) is None]
    for base in dict.fromkeys(resolve(p.type.layout) for p in closed or parts[:1]):
        period = max((bit[1] * 2 for bit in base.bits if bit is not None and bit[0] == dim), default=1)
        if shape[dim] % period:
            continue
        regs = [(d, n, s) for d, n, s in base.regs if d != dim or s < period]
        whole = Layout(base.rank, (*regs, (dim, shape[dim] // period, period)), base.lanes, base.warps)
        start, views = [0] * len(shape), list[Layout]()
        for part in parts:
            found = sliced(whole, View(tuple(ViewDim(n, i) for i, n in enumerate(part.shape)), tuple(start)))
            if found is None:
                break
            views.append(found.layout)
            start[dim] += part.shape[dim]
        fixed = [(p, v) for p, v in zip(parts, views, strict=False) if any(p is c for c in closed)]
        if len(views) == len(parts) and sum(_crosses(p, v) for p, v in fixed) < 2 and not wastes(whole, shape):
            return whole, views
    return None


def _crosses(value: Array, new: Layout) -> bool:
    """Whether a value goes through SMEM to get this layout."""
    old = resolve(value.type.layout)
    plan = plan_in_warps(old, new, value.shape)
    return old != new and (plan is None or not cheaper(plan, old, new, value.dtype))


def stack(arrays: Sequence[Any], axis: int = 0) -> Array:
    """Values joined along a new axis.

    >>> run(lambda x: kd.stack([x, x + 1]), [1, 2])
    [[1 2]
     [2 3]]
    """
    if not arrays:
        raise BadArgument(op="stack", what="no values", hint="give at least one")
    values = [as_value(a, "stack") for a in arrays]
    if len({v.shape for v in values}) > 1:
        what = f"shapes {' and '.join(str(v.shape) for v in values)} differ"
        raise BadArgument(op="stack", what=what, hint="broadcast, pad or slice them to agree")
    return concatenate([expand_dims(v, axis) for v in values], axis)

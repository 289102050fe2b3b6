"""Layouts of reshapes and slices whose elements stay in their lanes: the same registers under other names."""

from __future__ import annotations

from collections.abc import Iterator

from .dataclass import dataclass
from .layout import LANE_BITS, Bit, Layout
from .view import View, strides_of

_Factor = tuple[int, int, int]  # (dimension, size, stride)


# --- reshapes ------------------------------------------------------------------------------------


def reshaped(layout: Layout, shape: tuple[int, ...], to: tuple[int, ...]) -> Layout | None:
    """The layout of a value in another shape, elements in row-major order; None if some would have to move.

    A dimension whose factors reach past its extent has padding between its elements, unless it is the outermost of the
    dimensions that are merged or split together.
    """
    if 0 in shape:
        return None
    regs: list[_Factor] = []
    bits: list[Bit] = [None] * len(layout.bits)
    for old, new in _groups(shape, to):
        weights = strides_of([shape[d] for d in old])
        if any(layout.padded[d] != shape[d] for d in old[1:]):
            return None
        weight = dict(zip(old, weights, strict=True))
        places = list(zip(new, [to[d] for d in new], strides_of([to[d] for d in new]), strict=True))
        for place, bit in enumerate(layout.bits):
            if bit is not None and bit[0] in weight:
                put = _put(2, bit[1] * weight[bit[0]], places)
                if put is None or len(put) != 1:
                    return None
                bits[place] = (put[0][0], put[0][2])
        for dim, size, stride in layout.regs:
            if dim in weight:
                put = _put(size, stride * weight[dim], places)
                if put is None:
                    return None
                regs += put
    if any(layout.padded[d] != 1 for d, n in enumerate(shape) if n == 1):
        return None
    return Layout(len(to), tuple(regs), tuple(bits[:LANE_BITS]), tuple(bits[LANE_BITS:]))


def _groups(shape: tuple[int, ...], to: tuple[int, ...]) -> Iterator[tuple[list[int], list[int]]]:
    """Smallest groups of dimensions of both shapes with the same elements, without dimensions of extent 1."""
    left = [d for d, n in enumerate(shape) if n != 1]
    right = [d for d, n in enumerate(to) if n != 1]
    while left:
        old, new = [left.pop(0)], [right.pop(0)]
        a, b = shape[old[0]], to[new[0]]
        while a != b:
            if a < b:
                old.append(left.pop(0))
                a *= shape[old[-1]]
            else:
                new.append(right.pop(0))
                b *= to[new[-1]]
        yield old, new


def _put(size: int, weight: int, places: list[tuple[int, int, int]]) -> list[_Factor] | None:
    """A factor of the linear index as factors of dimensions: `places` has (dimension, extent, weight), outermost first."""
    out: list[_Factor] = []
    while size > 1:
        number, (dim, extent, unit) = next((i, p) for i, p in enumerate(places) if p[2] <= weight)
        if weight % unit:
            return None
        room = size if number == 0 else extent * unit // weight
        if number and extent * unit % weight:
            return None
        part = min(size, room)
        if room % part or size % part:
            return None
        out.append((dim, part, weight // unit))
        size, weight = size // part, weight * part
    return out


# --- slices, steps, paddings ---------------------------------------------------------------------


@dataclass(frozen=True)
class LayoutSlice:
    """The layout of a view's elements. The lanes with `value` in the lane bits of `mask` hold them."""

    layout: Layout
    mask: int = 0
    value: int = 0


def sliced(layout: Layout, view: View) -> LayoutSlice | None:
    """The layout of a view with static starts; None if elements must cross warps, or need different shuffles.

    A fixed index along lanes takes one shuffle a register.
    """
    regs: list[_Factor] = []
    bits: list[Bit] = [None] * len(layout.bits)
    mask = value = 0
    walked = {d.axis: (i, d) for i, d in enumerate(view.dims) if d.axis >= 0}
    if any(limit.axis < 0 or limit.low for limit in view.masked):
        return None
    for axis in range(layout.rank):
        held = [(i, b[1]) for i, b in enumerate(layout.bits) if b is not None and b[0] == axis]
        start = view.start[axis]
        if axis not in walked:
            if any(i >= LANE_BITS for i, _ in held):
                return None
            mask |= sum(1 << i for i, _ in held)
            # digits are exact: the factors of a dimension are one mixed-radix number
            value |= sum(1 << i for i, stride in held if start // stride % 2)
            continue
        dim, walk = walked[axis]
        if not held:
            regs.append((dim, walk.size, 1))
            continue
        found = _stepped([(n, s) for d, n, s in layout.regs if d == axis], held, start, walk.step, walk.size)
        if found is None:
            return None
        regs += [(dim, n, s) for n, s in found]
        for place, stride in held:
            bits[place] = (dim, stride // walk.step)
    made = Layout(len(view.dims), tuple(regs), tuple(bits[:LANE_BITS]), tuple(bits[LANE_BITS:]))
    return LayoutSlice(made, mask, value)


def _stepped(
    regs: list[tuple[int, int]], held: list[tuple[int, int]], start: int, step: int, size: int
) -> list[tuple[int, int]] | None:
    """The register factors of every `step`-th index from `start` on, along a dimension that lanes or warps share."""
    if step < 1 or any(stride % step for _, stride in held):
        return None
    period = 2 * max(stride for _, stride in held)
    if start // step * step % period:
        return None
    out = [(-(-size * step // period), period // step)]
    for n, stride in regs:
        if stride >= period or (n * stride <= step and step % (n * stride) == 0):
            continue  # the outer factor or the start decides it completely
        if stride % step == 0:
            out.append((n, stride // step))
        elif step % stride == 0 and n % (step // stride) == 0:
            out.append((n * stride // step, 1))
        else:
            return None
    return out


def picked(old: Layout, new: Layout, view: View) -> list[int | None]:
    """For each register of a slice, the register of the value that holds it; None outside the value."""
    out: list[int | None] = []
    for coord in new.register_coords:
        share = list(view.start)
        for d, c in zip(view.dims, coord, strict=True):
            if d.axis >= 0:
                share[d.axis] += c * d.step
        for axis, start in enumerate(view.start):
            if all(d.axis != axis for d in view.dims):  # lanes decide a fixed index along them, not registers
                share[axis] = start - sum(
                    b[1] for b in old.bits if b is not None and b[0] == axis and start // b[1] % 2
                )
        out.append(old.register_of.get(tuple(share)))
    return out


def renamed(old: Layout, new: Layout, shape: tuple[int, ...], to: tuple[int, ...]) -> list[int | None] | None:
    """For each register of a reshaped value, its earlier register; None if lanes differ."""
    if reshaped(old, shape, to) != new:
        return None
    before, after = strides_of(shape), strides_of(to)
    where = {sum(c * s for c, s in zip(coord, before, strict=True)): i for i, coord in enumerate(old.register_coords)}
    return [where.get(sum(c * s for c, s in zip(coord, after, strict=True))) for coord in new.register_coords]

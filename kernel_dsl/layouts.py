"""Named layouts: rules that give a `Layout` for a shape, as `kd.Layout.WGMMA`.

PTX ISA 9.7.15.5.2 (wgmma register fragments) and 9.7.14.5 (mma.sync fragments). Lane l = 4 * group + place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .arguments import an_int, static_ints
from .boundary import public
from .diagnostics import shown
from .dtypes import DType
from .errors import BadArgument, BadArgumentType
from .errors_hopper import WgmmaShape
from .layout import LANE_BITS, MAKERS, SHOWN, WARP_BITS, Bit, Layout, LayoutRule, blocked

# lane bits of all fragments: two for the place within a row, three for the row
_ROWS: tuple[Bit, ...] = ((0, 1), (0, 2), (0, 4))
_SHAPE = "the extents of a value, a tuple of ints"


def _check(op: str, shape: tuple[int, int], unit: tuple[int, int]) -> None:
    if shape[0] % unit[0] or shape[1] % unit[1]:
        why = f"its tile is {unit[0]} x {unit[1]}"
        hint = "pad the value, or leave the layout open"
        raise WgmmaShape(op="layout_cast", what=f"shape {shape} can't have layout {op}", why=why, hint=hint)


def wgmma(shape: tuple[int, int], minor: int = 2) -> Layout:
    """Accumulators and 16-bit A fragments of wgmma: warp w owns rows 16 w to 16 w + 15 of each 64.

    `minor` neighbours a lane: 2 for accumulators, 4 for 8-bit A fragments, and 1 for tf32 A fragments.
    """
    _check("WGMMA", shape, (64, 4 * minor))
    rows, columns = shape
    regs = [(0, rows // 64, 64), (0, 2, 8), (1, columns // (4 * minor), 4 * minor), (1, minor, 1)]
    lanes = ((1, minor), (1, 2 * minor), *_ROWS)
    return Layout(2, tuple(regs), lanes, ((0, 16), (0, 32)))


def wgmma_transposed(shape: tuple[int, int], minor: int = 2) -> Layout:
    """The layout of the transpose of a WGMMA value."""
    return wgmma((shape[1], shape[0]), minor).transpose((1, 0))


def mma_warps(shape: tuple[int, int]) -> tuple[int, int]:
    """The numbers of warps along the rows and columns of a product that need the fewest registers for operands."""
    tiles = (max(-(-shape[0] // 16), 1), max(-(-shape[1] // 8), 1))
    splits = [(4, 1), (2, 2), (1, 4), (2, 1), (1, 2), (1, 1)]
    fits = [s for s in splits if s[0] <= tiles[0] and s[1] <= tiles[1]]
    return min(fits, key=lambda s: (-s[0] * s[1], -(-tiles[0] // s[0]) * 16 + -(-tiles[1] // s[1]) * 8))


def _warp_bits(warps: tuple[int, int], keep: tuple[bool, bool], dims: tuple[int, int]) -> tuple[Bit, ...]:
    """Two warp bits, rows first; a bit whose axis the operand does not have replicates."""
    bits: list[Bit] = []
    for axis, unit in ((0, 16), (1, 8)):
        step = 1
        while step < warps[axis]:
            bits.append((dims[axis], unit * step) if keep[axis] else None)
            step *= 2
    return tuple(bits + [None] * (2 - len(bits)))


def mma_acc(shape: tuple[int, int], minor: int = 2) -> Layout:
    """Accumulators of mma.sync m16n8 (PTX ISA 9.7.14.5.8), for any shape: tiles reach past its edge."""
    warps = mma_warps(shape)
    tiles = [-(-shape[a] // (unit * warps[a])) for a, unit in ((0, 16), (1, 8))]
    regs = [(0, tiles[0], 16 * warps[0]), (0, 2, 8), (1, tiles[1], 8 * warps[1]), (1, 2, 1)]
    return Layout(2, tuple(regs), ((1, 2), (1, 4), *_ROWS), _warp_bits(warps, (True, True), (0, 1)))


def mma_lhs(shape: tuple[int, int, int], item: int) -> Layout:
    """The A fragment, (M, K), of an (M, N, K) product of elements of `item` bytes: 32 bytes of K a tile."""
    warps = mma_warps(shape[:2])
    if item == 8:  # m8n8k4: one element a lane (PTX ISA 9.7.14.5.2)
        regs = [(0, -(-shape[0] // (16 * warps[0])), 16 * warps[0]), (0, 2, 8), (1, -(-shape[2] // 4), 4)]
        return Layout(2, tuple(regs), ((1, 1), (1, 2), *_ROWS), _warp_bits(warps, (True, False), (0, 1)))
    side = 4 // item
    tiles = (-(-shape[0] // (16 * warps[0])), -(-shape[2] // (8 * side)))
    regs = [(0, tiles[0], 16 * warps[0]), (0, 2, 8), (1, tiles[1], 8 * side), (1, 2, 4 * side), (1, side, 1)]
    lanes = ((1, side), (1, 2 * side), *_ROWS)
    return Layout(2, tuple(regs), lanes, _warp_bits(warps, (True, False), (0, 1)))


def mma_rhs(shape: tuple[int, int, int], item: int) -> Layout:
    """The B fragment, (K, N), of an (M, N, K) product."""
    warps = mma_warps(shape[:2])
    columns = ((1, 1), (1, 2), (1, 4))
    if item == 8:
        regs = [(0, -(-shape[2] // 4), 4), (1, -(-shape[1] // (8 * warps[1])), 8 * warps[1])]
        return Layout(2, tuple(regs), ((0, 1), (0, 2), *columns), _warp_bits(warps, (False, True), (0, 1)))
    side = 4 // item
    tiles = (-(-shape[2] // (8 * side)), -(-shape[1] // (8 * warps[1])))
    regs = [(0, tiles[0], 8 * side), (0, 2, 4 * side), (0, side, 1), (1, tiles[1], 8 * warps[1])]
    lanes = ((0, side), (0, 2 * side), *columns)
    return Layout(2, tuple(regs), lanes, _warp_bits(warps, (False, True), (0, 1)))


MAKERS.update(
    {
        "wgmma": ((64, 8), wgmma),
        "wgmma_transposed": ((8, 64), wgmma_transposed),
        "mma_acc": ((64, 8), mma_acc),
        "row-major": ((1, 1), blocked),
    }
)


def wg_strided(shape: tuple[int, ...], vec_size: int = 1) -> Layout:
    """The row-major layout: a lane holds `vec_size` neighbours; then come lanes, warps and more registers.

    Raises `BadArgumentType` and `BadArgument` for other shapes and sizes.

    >>> print(kd.Layout.WG_STRIDED((4, 64), 2))
    layout<2 | 1:2:1 | 1:2 1:4 1:8 1:16 1:32 | 0:1 0:2>
    """
    shape = static_ints(shape, "WG_STRIDED", "shape", _SHAPE)
    vec_size = an_int(vec_size, "WG_STRIDED", "vec_size", low=1)
    regs: list[tuple[int, int, int]] = [(len(shape) - 1, vec_size, 1)] if shape else []
    bits: list[Bit] = []
    for dim in reversed(range(len(shape))):
        reach = vec_size if dim == len(shape) - 1 else 1
        while reach < shape[dim] and len(bits) < LANE_BITS + WARP_BITS:
            bits.append((dim, reach))
            reach *= 2
        regs.append((dim, max(-(-shape[dim] // reach), 1), reach))
    bits += [None] * (LANE_BITS + WARP_BITS - len(bits))
    return Layout(len(shape), tuple(regs), tuple(bits[:LANE_BITS]), tuple(bits[LANE_BITS:]))


def wg_splat(shape: tuple[int, ...]) -> Layout:
    """The layout with all elements in every lane.

    Raises `BadArgumentType` for other shapes.

    >>> kd.Layout.WG_SPLAT((3,)).registers
    3
    """
    shape = static_ints(shape, "WG_SPLAT", "shape", _SHAPE)
    return Layout(len(shape), tuple((d, n, 1) for d, n in enumerate(shape)))


def resolve_rule(layout: Any, shape: tuple[int, ...], op: str) -> Layout:
    """A `Layout` for a value of this shape, from a layout, a rule, or `WG_SPLAT` and `WG_STRIDED` without a shape.

    Raises `BadArgumentType`, and `BadArgument` for one that does not cover the shape.
    """
    made: Any = layout
    if isinstance(layout, LayoutRule):
        made = layout.of(shape)
    elif layout is wg_splat or layout is wg_strided:
        made = layout(shape)
    if not isinstance(made, Layout):
        raise BadArgumentType(op=op, what=f"{shown(layout)} is no layout", hint="such as `kd.Layout.WGMMA`")
    if made.rank != len(shape) or any(p < n for p, n in zip(made.padded, shape, strict=True)):
        raise BadArgument(op=op, what=f"{made} does not cover {shape}", hint="use a larger layout")
    return made


public(LayoutRule)
WGMMA = LayoutRule("wgmma")
WGMMA_8BIT = LayoutRule("wgmma", 4)
WGMMA_TRANSPOSED = LayoutRule("wgmma_transposed")
WGMMA_TF32 = LayoutRule("wgmma", 1)
MMA_ACC = LayoutRule("mma_acc")
NAMED = {
    "WGMMA": WGMMA,
    "WGMMA_ROW": WGMMA.reduce(1),
    "WGMMA_COL": WGMMA.reduce(0),
    "WGMMA_8BIT": WGMMA_8BIT,
    "WGMMA_UPCAST_2X": WGMMA_8BIT,
    "WGMMA_TRANSPOSED": WGMMA_TRANSPOSED,
    "WGMMA_TF32": WGMMA_TF32,
    "MMA_ACC": MMA_ACC,
}


def rule_name(rule: LayoutRule) -> str:
    """Python that makes a rule: `Layout.WGMMA`, or `Layout.WGMMA_8BIT.reduce(1)`, or its constructor."""
    found = next((name for name, known in NAMED.items() if known == rule), None)
    if found is not None:
        return f"Layout.{found}"
    whole = next((n for n, known in NAMED.items() if known == replace(rule, reduced=()) and rule.reduced), None)
    if whole is None:
        return f"LayoutRule({rule.kind!r}, {rule.minor}, {rule.reduced}, {rule.bits})"
    return f"Layout.{whole}.reduce({rule.reduced[0] if len(rule.reduced) == 1 else rule.reduced})"


def name_of(layout: Layout, shape: tuple[int, ...]) -> str:
    """Python that makes a layout for this shape by a known name; empty if it has no name.

    >>> kd.Layout.WGMMA.of((64, 128))
    Layout.WGMMA.of((64, 128))
    """
    if not shape or layout.rank != len(shape):
        return ""
    for rule in (*NAMED.values(), *(r.reduce(a) for r in NAMED.values() if not r.reduced for a in (1, 0))):
        if len(shape) >= 2 - len(rule.reduced) and _made(rule.of, shape) == layout:
            return f"{rule_name(rule)}.of({shape})"
    ones = [d for d, n in enumerate(shape) if n == 1]
    rest = tuple(n for n in shape if n != 1)
    if ones and rest:
        inner = name_of(layout.reduce(ones, keepdims=False), rest)
        return f"{inner}.expand({tuple(ones)})" if inner and layout.reduce(ones) == layout else ""
    if layout == wg_splat(shape):
        return f"Layout.WG_SPLAT({shape})"
    vector = layout.vector_length(layout.rank - 1)
    while vector:
        if layout == wg_strided(shape, vector):
            return f"Layout.WG_STRIDED({shape}{f', {vector}' if vector > 1 else ''})"
        vector = vector // 2 if vector % 2 == 0 else int(vector > 1)
    return ""


def _made(make: Callable[[tuple[int, ...]], Layout], shape: tuple[int, ...]) -> Layout | None:
    """A rule's layout of a shape; None if it has none."""
    try:
        return make(shape)
    except WgmmaShape:
        return None


for _name, _rule in NAMED.items():
    setattr(Layout, _name, _rule)
Layout.WG_STRIDED = staticmethod(wg_strided)
Layout.WG_SPLAT = staticmethod(wg_splat)


def _picture(layout: Layout, shape: tuple[int, ...]) -> str:
    from .picture import to_svg

    return to_svg(layout, shape)


SHOWN.update(layout=name_of, rule=rule_name, picture=_picture)


def meta_step(dtype: DType) -> int:
    """Elements of K, of which half are stored, that one register of metadata describes in each lane."""
    return 64 if dtype.itemsize < 4 else 32


def meta_layout(shape: tuple[int, ...]) -> Layout:
    """The layout of metadata: lane l holds number l of each 128 neighbours."""
    steps, words = shape
    regs = ((0, steps, 1), (1, words // 128, 128))
    return Layout(2, regs, tuple((1, 1 << i) for i in range(5)), ((1, 32), (1, 64)))

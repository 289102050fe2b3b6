"""stmatrix: fragments of tensor-core instructions to SMEM, up to four 8 x 8 matrices an instruction.

A warp holds an 8 x 8 matrix of 16-bit elements as mma and wgmma leave it: lane l has the 32-bit word number l % 4 of
row l / 4. Lane l of matrix j's eight gives the address of its row l (PTX ISA 9.7.14.5.16). A row is any 16 bytes, so
words of four 8-bit or one 32-bit element go the same way. `.trans` stores columns of 16-bit elements as rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernel_dsl.ir import MemorySpace
from kernel_dsl.layout import LANE_BITS, Bit, Layout
from kernel_dsl.ops.ref import Store
from kernel_dsl.target import Feature

from ..context import Context
from ..value import V
from ..writer import address
from .access import pack
from .tiled import make_place

WORD, ROW = 4, 16  # bytes of a lane's part, and of a matrix' row
MATRICES = 2  # bits of the number of a matrix


@dataclass(frozen=True)
class StmatrixPlan:
    """The plan of a store: `minor` is the dimension contiguous in memory, `words` the one along which lanes hold pairs.
    `addresses` is a layout of rows over lanes: a lane's coordinate is the start of the row whose address it gives.
    `matrices`: the number that each bit of a matrix' number adds to a register's coordinate.
    """

    addresses: Layout
    minor: int
    words: int
    transposed: bool
    matrices: tuple[tuple[int, int], ...]


def plan_matrices(layout: Layout, item: int, minor: int, replicated: bool = False) -> StmatrixPlan | None:
    """The plan for a value of elements of `item` bytes; None if its layout is not that of fragments.

    `replicated`: several warps may hold the same elements, as after a load.
    """
    side = WORD // item
    found = [b for b in layout.lanes if b is not None]
    if not side or len(found) < LANE_BITS or (layout.replicated_mask and not replicated):
        return None
    words, rows = found[0][0], found[2][0]
    fragment: tuple[Bit, ...] = ((words, side), (words, 2 * side), (rows, 1), (rows, 2), (rows, 4))
    if layout.lanes != fragment or words == rows or minor not in (words, rows):
        return None
    transposed = minor == rows
    if transposed and item != 2:
        return None
    # the registers that remain after the words' own elements
    left = [[d, n, s] for d, n, s in layout.regs if not (d == words and s == 1 and n == side)]
    if any(d == words and s < side for d, _, s in left):
        return None
    matrices: list[tuple[int, int]] = []
    for factor in sorted(left, key=lambda f: (f[0] != words, f[2])):
        while factor[1] % 2 == 0 and len(matrices) < MATRICES:
            matrices.append((factor[0], factor[2]))
            factor[1:] = [factor[1] // 2, factor[2] * 2]
    across = words if transposed else rows
    lanes: list[Bit] = [(across, 1), (across, 2), (across, 4), *matrices]
    lanes += [None] * (LANE_BITS - len(lanes))
    regs = [(minor, ROW // item, 1), *((d, n, s) for d, n, s in left)]
    return StmatrixPlan(
        Layout(layout.rank, tuple(regs), tuple(lanes), layout.warps), minor, words, transposed, tuple(matrices)
    )


def store_matrices(ctx: Context, op: Store, layout: Layout) -> bool:
    """Store with stmatrix. Returns False if it can't."""
    type, access = op.ref.type, op.access
    item = type.dtype.itemsize
    plain = type.space is MemorySpace.SMEM and not ctx.buffers[op.ref].remote and op.mask is None
    if not plain or op.view.masked or ctx.warp_level or not ctx.target.supports(Feature.STMATRIX):
        return False
    if access.minor is None or access.vector * item < ROW or layout.padded != tuple(op.view.shape):
        return False
    plan = plan_matrices(layout, item, access.minor)
    if plan is None:
        return False
    place = make_place(ctx, type, ctx.buffers[op.ref], op.view, plan.addresses, op.offsets)
    names = ctx.regs(op.x)
    count = 1 << len(plan.matrices)
    opcode = f"stmatrix.sync.aligned.m8n8.x{count}{'.trans' if plan.transposed else ''}.shared.b16"
    operands = ", ".join(f"${i + 1}" for i in range(count))
    for coord in plan.addresses.register_coords:
        if coord[plan.minor] % (ROW // item):
            continue
        words: list[V] = []
        for number in range(count):
            share = list(coord)
            for bit, (dim, stride) in enumerate(plan.matrices):
                share[dim] += stride * (number >> bit & 1)
            run = [tuple(c + i if d == plan.words else c for d, c in enumerate(share)) for i in range(WORD // item)]
            words.append(pack(ctx, [names[layout.register_of[c]] for c in run], type.dtype, WORD))
        base, constant = place.address(coord)
        ctx.e.ptx(f"{opcode} {address(0, constant)}, {{{operands}}};", base, *words)
    return True

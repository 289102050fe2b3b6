"""ldmatrix: fragments of tensor-core instructions from SMEM, up to four 8 x 8 matrices an instruction.

The way back of stmatrix.py, with the same plan: lane l of matrix j's eight gives the address of its row l, and gets the
32-bit word number l % 4 of row l / 4 (PTX ISA 9.7.14.5.15). A row is any 16 bytes, so words of four 8-bit or one 32-bit
element come the same way. `.trans` reads rows of 16-bit elements as columns.
"""

from __future__ import annotations

from kernel_dsl.ir import MemorySpace
from kernel_dsl.layout import Layout
from kernel_dsl.ops.ref import Load
from kernel_dsl.target import Feature

from ..context import Context
from ..value import Regs, V
from ..writer import address
from .access import unpack
from .stmatrix import ROW, WORD, plan_matrices
from .tiled import make_place


def load_matrices(ctx: Context, op: Load, layout: Layout) -> Regs | None:
    """The registers, loaded by ldmatrix; None if it can't load them."""
    type, access = op.ref.type, op.access
    item = type.dtype.itemsize
    plain = type.space is MemorySpace.SMEM and not ctx.buffers[op.ref].remote and op.mask is None
    if not plain or op.view.masked or ctx.warp_level or not ctx.target.supports(Feature.MMA_SYNC):
        return None
    if access.minor is None or access.vector * item < ROW or layout.padded != tuple(op.view.shape):
        return None
    plan = plan_matrices(layout, item, access.minor, replicated=True)
    if plan is None:
        return None
    place = make_place(ctx, type, ctx.buffers[op.ref], op.view, plan.addresses, op.offsets)
    count = 1 << len(plan.matrices)
    results = ", ".join(f"${i}" for i in range(count))
    opcode = f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if plan.transposed else ''}.shared.b16"
    names: dict[int, V] = {}
    for coord in plan.addresses.register_coords:
        if coord[plan.minor] % (ROW // item):
            continue
        base, constant = place.address(coord)
        words = ctx.e.ptx(f"{opcode} {{{results}}}, {address(count, constant)};", base, results=["i32"] * count)
        for number, word in enumerate(words):
            share = list(coord)
            for bit, (dim, stride) in enumerate(plan.matrices):
                share[dim] += stride * (number >> bit & 1)
            for i, name in enumerate(unpack(ctx, word, type.dtype, WORD // item, WORD)):
                run = tuple(c + i if d == plan.words else c for d, c in enumerate(share))
                names[layout.register_of[run]] = name
    return [names[i] for i in range(layout.registers)]

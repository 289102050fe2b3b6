"""The copies of operands that kernels of a product need, and those that may pay."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import kernel_dsl as kd
from kernel_dsl.dataclass import changed
from kernel_dsl.dtypes import DType
from kernel_dsl.target import Feature, Target

from ..product_kernels.pack import SECTOR, Packing
from ..products.operands import LINE, Operand
from ..products.problem import Problem
from . import fast_costs as costs
from . import other_costs as others
from .families import FP8, Family

Packings = tuple[Packing | None, Packing | None]
SHALLOW = 256  # for up to these bytes of K, storing the result may take most of the time
DEEP = 512  # elements of K from which copies along K of 16 bits may pay


def packing(o: Operand, to: DType, along_k: bool, split: bool = False) -> Packing:
    """The packing of an operand, with neighbours along K or along its rows."""
    rows, columns = (o.rows, o.depth) if along_k else (o.depth, o.rows)
    turned = along_k != o.along_k
    across = bool(o.scaled) and not along_k
    return Packing(rows, columns, o.dtype, to, o.batch, turned, split, o.contiguous, o.scaled, o.scaled_batch, across)


def laid(p: Problem, found: Packings, a: Operand, b: Operand) -> Problem:
    """The problem with the layouts of the operands, as they are or packed."""
    along = [o.along_k if pack is None else pack.turned != o.along_k for o, pack in zip((a, b), found, strict=True)]
    return changed(p, a_transposed=not along[0], b_transposed=along[1])


def packed_clocks(found: Packings) -> float:
    """Clocks for packing operands, with one launch."""
    return sum(map(others.pack_clocks, found)) + (others.LAUNCH if any(found) else 0)


def is_broken(o: Operand) -> bool:
    """Whether TMA is slow for an operand, because half of its rows begin within a sector of 32 bytes."""
    return o.pitch < SECTOR


def is_turned(o: Operand) -> bool:
    """Whether registers transpose an operand of the fast kernel: wgmma reads 32 bits along K only."""
    return o.dtype.itemsize == 4 and not o.along_k


def whole_packings(
    found: Packings, a: Operand, b: Operand, along_k: bool = False
) -> Iterator[tuple[Packings, costs.Reads]]:
    """(packings, the factors of the time of loads): those of `fast_packings`, and with copies of operands that are broken; with
    `along_k` also with copies along K of those across K: registers would transpose 32 bits in each step, and sides along K can
    have tiles of any width.
    """
    sides = (a, b)
    for left, right in product(*(_ways(o, pack, along_k) for o, pack in zip(sides, found, strict=True))):
        reads = [reads_of(o) if x is None else 1.0 for x, o in zip((left, right), sides, strict=True)]
        yield (left, right), (reads[0], reads[1])


def _ways(o: Operand, pack: Packing | None, along_k: bool) -> list[Packing | None]:
    """An operand as `fast_packings` has it, and its copies that may pay."""
    large = o.depth >= DEEP and o.rows >= min(costs.BETWEEN) and (o.dtype if pack is None else pack.to).itemsize == 2
    across = along_k and not o.along_k and (large or is_turned(o))
    if pack is not None:
        return [pack, packing(o, pack.to, True)] if across and not pack.turned else [pack]
    copies = [packing(o, o.dtype, o.along_k)] if is_broken(o) and not (across and is_turned(o)) else []
    return [None, *copies, *([packing(o, o.dtype, True)] if across else [])]


def reads_of(o: Operand) -> float:
    """The factor of the time of an operand's loads by TMA."""
    if is_broken(o):
        return costs.BROKEN
    return costs.UNEVEN_PITCH if o.pitch < 2 * SECTOR else costs.HALF_LINES if o.pitch < LINE else 1.0


def fast_packings(a: Operand, b: Operand, how: Family, sparse: bool = False) -> Packings:
    """The packings for operands that TMA and wgmma can't take: 8 bits across K, 32 bits across K on both sides, odd
    strides, other dtypes.

    Beside a `sparse` a, b of 32 bits must lie along K, because a sparse side doesn't go through registers.
    """
    found: list[Packing | None] = []
    for o, to in ((a, how.a), (b, how.b)):
        along = True if to.itemsize != 2 else o.along_k
        needed = o.dtype != to or not o.tma or how.thrice or (to.itemsize == 1 and not o.along_k)
        found.append(packing(o, to, along, how.thrice) if needed else None)
    if sparse and found[1] is None and how.b.itemsize == 4 and not b.along_k:
        found[1] = packing(b, how.b, True)
    across = [pack is None and is_turned(o) for pack, o in zip(found, (a, b), strict=True)]
    if all(across):
        side = 0 if a.bytes <= b.bytes else 1
        found[side] = packing((a, b)[side], how.a, True)
    return found[0], found[1]


def tile_packings(a: Operand, b: Operand, how: Family, target: Target, fast: bool, K: int) -> Iterator[Packings]:
    """The packings for operands that mma.sync can't take; no packings if this kernel is not worth a trial.

    If the fast kernel is possible, this one is tried only if it needs no packing, or if the product mostly stores.
    """
    dtypes = [how.a, how.b]
    if dtypes[0] != dtypes[1] and dtypes[0] not in FP8 and kd.int8 in dtypes and any(d.is_float for d in dtypes):
        dtypes = [next(d for d in dtypes if d.is_float)] * 2
    if any(d in FP8 for d in dtypes) and (fast or how.promoted or not target.supports(Feature.MMA_FP8)):
        dtypes = [kd.float16] * 2  # exact: float16 holds every fp8 number
    found: list[Packing | None] = []
    for o, to in ((a, dtypes[0]), (b, dtypes[1])):
        even = o.tma or o.contiguous or to.itemsize >= 4
        needed = o.dtype != to or how.thrice or (to.itemsize == 1 and not o.along_k) or (not even and not fast)
        found.append(packing(o, to, o.along_k or to.itemsize == 1, how.thrice) if needed else None)
    if fast and any(found) and K * dtypes[0].itemsize > SHALLOW:
        return
    yield found[0], found[1]

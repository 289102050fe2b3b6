"""What collectives share: the checks of their arguments, and the parts of their kernels."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import kernel_dsl as kd
from kernel_dsl import dtypes as dt
from kernel_dsl.diagnostics import of_kind, shown
from kernel_dsl.dtypes import DType, as_dtype
from kernel_dsl.errors import BadArgument, BadArgumentType
from kernel_dsl.memory import is_array_leaf
from kernel_dsl.mesh import Mesh
from kernel_dsl.symmetric import OfRank, row_major

BLOCKS = 132  # of a device, or twice as many for long arrays: all must run at the same time
BYTES = 64  # that a lane has in flight from each peer
LONG = 32 << 20  # bytes of a device's part


# --- arguments ------------------------------------------------------------------------------------


def described(x: Any, mesh: Mesh, op: str, rank: int = 0, *, only_moved: bool = False) -> tuple[tuple[int, ...], DType]:
    """The shape and dtype of a device's array; `only_moved` allows dtypes without arithmetic.

    Raises `BadArgument`, `BadArgumentType`.
    """
    torch: Any = sys.modules.get("torch.distributed")
    if torch is not None and torch.is_available() and mesh is torch.GroupMember.NON_GROUP_MEMBER:
        what = "mesh is a process group without this process"
        raise BadArgumentType(op=op, what=what, hint="make the call on the ranks of the group alone")
    if not isinstance(mesh, Mesh):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadArgumentType(op=op, what=f"mesh={shown(mesh)}", hint='use `kd.Mesh(("x",), (2,))`')
    rows: list[Any] = list(x) if isinstance(x, (list, tuple)) else []  # pyright: ignore[reportUnknownArgumentType]
    others = [rank for rank, a in enumerate(rows) if not is_array_leaf(a)]
    hint = f"a list of {mesh.size} arrays, one a device, or `kd.symmetric.empty(shape, dtype, mesh)`"
    if len(rows) != (1 if isinstance(x, OfRank) else mesh.size):
        count = f" of {len(rows)}" if rows else ""
        raise BadArgumentType(op=op, what=f"x is {of_kind(x)}{count}, on {mesh}", hint=hint)
    if others:
        what = f"x is a list of {len(rows)}, and on rank {others[0]} {shown(rows[others[0]])}, which is no array"
        raise BadArgumentType(op=op, what=what, hint=hint)
    shape, dtype = tuple(rows[0].shape), as_dtype(rows[0].dtype)
    if len(shape) < rank:
        raise BadArgument(
            op=op, what="x has no axis", hint="give it one: the rows of all devices lie along the first axis"
        )
    if dtype.is_packed:
        hint = "pass elements of 8 bits or more, such as pairs of 4-bit elements as uint8"
        raise BadArgumentType(op=op, what=f"x is {dtype}", hint=hint)
    if not (only_moved or dtype.is_float or dtype.is_integer):
        hints = {"bool": "convert it to an integer", "complex64": "pass the parts as float32, such as x.view(float32)"}
        raise BadArgumentType(op=op, what=f"x is {dtype}", hint=hints.get(dtype.name, dtype.only_copied))
    return shape, dtype


def check_gapless(op: str, **lists: Any) -> None:
    """Raise `BadArgument` for arrays with gaps between their elements."""
    for name, x in lists.items():
        arrays = isinstance(x, (list, tuple)) and all(map(is_array_leaf, x))  # pyright: ignore[reportUnknownArgumentType]
        if arrays and not row_major(x):  # others are refused where the kernel is called
            hint = f"pass row-major arrays, such as {name}.contiguous() of torch"
            ranks = [rank for rank, array in enumerate(x) if not row_major([array])]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            where = "" if isinstance(x, OfRank) else f" on rank {ranks[0]}"
            raise BadArgument(op=op, what=f"{name} has gaps between its elements{where}", hint=hint)


# --- parts of the kernels -------------------------------------------------------------------------


class ChunkWalk:
    """The distribution of an array of `size` elements over a device's blocks: chunk after chunk, all blocks at the same time."""

    def __init__(self, size: int, dtype: DType) -> None:
        self.chunk: int = 128 * BYTES // dtype.itemsize
        self.chunks: int = -(-size // self.chunk)
        # two blocks a multiprocessor load long arrays up to 15 % faster from peers, and short ones no faster
        most = 2 * BLOCKS if size * dtype.itemsize >= LONG else BLOCKS
        self.blocks: int = max(min(self.chunks, most), 1)

    def over(self, work: Any) -> None:
        """Call `work(part)` for each of this block's chunks."""
        block = kd.axis_index("block")

        def step(i: Any, carry: Any) -> Any:
            work(kd.ds((i * self.blocks + block) * self.chunk, self.chunk))
            return carry

        kd.fori_loop(0, -(-self.chunks // self.blocks), step, None)


def wait_for_all(semaphore: Any, mesh: Mesh, timeout: float | None) -> None:
    """Wait until the block with this number has arrived here on all devices. Its earlier accesses are then done."""
    kd.semaphore_signal_multicast(semaphore, collective_axes=mesh.names)
    kd.semaphore_wait(semaphore, mesh.size, timeout=timeout)


def orders_itself(kernel: Any) -> Any:
    """Mark a kernel of one host, whose streams need no synchronisation.

    Either its semaphores keep each device from accessing another's arrays before that one's kernel has begun and after
    it has ended, or it accesses only its own device's arrays.
    """
    kernel.meets = False
    kernel.maps_peers = True
    return kernel


def ranks_of(mesh: Mesh, deterministic: bool) -> list[Any]:
    """The devices whose terms are added, in that order."""
    if deterministic:
        return list(range(mesh.size))
    me = kd.axis_index(mesh.names)
    return [(me + k) % mesh.size for k in range(mesh.size)]


def summed(refs: Sequence[Any], part: Any) -> Any:
    """The sum of a part of several Refs, in their order, in their dtype."""
    dtype = refs[0].dtype
    values = [ref[part] for ref in refs]  # all loads are in flight before the first wait
    wide = dt.float32 if dtype.is_float and dtype.itemsize < 4 else dtype
    total = values[0].astype(wide)
    for value in values[1:]:
        total = total + value.astype(wide)
    return total.astype(dtype)

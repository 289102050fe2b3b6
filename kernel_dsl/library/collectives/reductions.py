"""Collectives on a mesh of devices, by loads and stores of the peers' memory: `all_reduce`, `all_gather`, `reduce_scatter`.

A kernel has the same number of blocks on each device, and a block works with the blocks of the same number on the peers. It
begins when all of them have begun, and ends when none of them accesses its device's arrays any more. So launches need no
other order.
"""

from __future__ import annotations

from functools import cache, partial
from math import prod
from typing import Any

import kernel_dsl as kd
from kernel_dsl import dtypes as dt
from kernel_dsl.boundary import public
from kernel_dsl.dtypes import DType
from kernel_dsl.errors import BadArgument
from kernel_dsl.mesh import Mesh
from kernel_dsl.symmetric import made_like, overlap

from . import two_level
from .all_reduce_two_shot import two_shot_kernel
from .all_reduce_words import words_kernel
from .by_rank import Launched, by_rank
from .parts import ChunkWalk, check_gapless, described, orders_itself, ranks_of, summed, wait_for_all

# Bytes of an array up to which each device reads all of the peers' arrays: one meeting less, and n times the traffic.
ONE_SHOT = 512 << 10
WORDS = 512 << 10  # bytes that a device sends at most in words that carry the number of the call


@partial(public, name="all_reduce")
@by_rank
def all_reduce(
    x: Any,
    mesh: Mesh,
    *,
    out: Any = None,
    algorithm: str | None = None,
    deterministic: bool = True,
    timeout: float | None = None,
    interpret: Any = None,
) -> Any:
    """The sum of all devices' arrays, on every device; float16, bfloat16 and fp8 are added in float32 and rounded once.

    `x`: an array of one shape and dtype a device, row-major, of real numbers of 8 bits or more; `out`: preallocated,
    and may be `x`. With one process a GPU, `x` is this rank's array in symmetric memory, `mesh` may be the process
    group, and the result is this rank's.

    `algorithm`: None chooses by size.

    - "words": each device stores its array into memory of all others that the library keeps; up to 512 KiB. `x` may lie
      in any memory.
    - "one-shot": each device reads all arrays.
    - "two-shot": each device adds up its part of all arrays, and stores the sums on all devices.

    `deterministic`: terms are added in the order of ranks, so that all devices and calls give the same bits; otherwise
    each device may begin with its own, which spreads the reads. `timeout`: seconds that a device waits for its peers.

    Raises `BadArgument`, `BadArgumentType`, and the errors of a kernel on a mesh. Devices meet by loads and stores at
    system scope (PTX ISA 8, the memory consistency model).
    """
    op = "all_reduce"
    shape, dtype = described(x, mesh, op)
    check_gapless(op, x=x, out=out)
    if algorithm not in (None, "words", "one-shot", "two-shot"):
        raise BadArgument(op=op, what=f"algorithm={algorithm!r}", hint='"words", "one-shot", "two-shot" or None')
    if mesh.hosts:
        return _over_hosts(x, shape, dtype, mesh, out, timeout, interpret)
    size = prod(shape) * dtype.itemsize
    if algorithm == "words" or (algorithm is None and size * (mesh.size - 1) <= WORDS):
        if size > WORDS:
            what = f"{size} bytes in words"
            raise BadArgument(op=op, what=what, hint='the limit is 512 KiB; use algorithm="two-shot"')
        return Launched(words_kernel(shape, dtype, mesh, timeout), (x,), out)
    small = size <= ONE_SHOT
    in_place = _in_place(x, out)  # another device may still read the data that this one replaces
    one = algorithm == "one-shot" or (algorithm is None and small and not in_place)
    if one and in_place:
        hint = 'give another array as out=, or use algorithm="two-shot"'
        raise BadArgument(op=op, what="one-shot in place", hint=hint)
    if one:
        return Launched(_one_shot(shape, dtype, mesh, deterministic, timeout), (x,), out)
    return Launched(two_shot_kernel(shape, dtype, mesh, timeout), (x,), out)


@partial(public, name="all_gather")
@by_rank
def all_gather(x: Any, mesh: Mesh, *, out: Any = None, timeout: float | None = None, interpret: Any = None) -> Any:
    """All devices' arrays one after the other along the first axis, on every device: (m, ...) to (n * m, ...), in their dtype.

    `x`, `out`, `timeout` and errors are those of `all_reduce`; `x` needs an axis, and may also be bool or complex64.
    """
    shape, dtype = described(x, mesh, "all_gather", 1, only_moved=True)
    check_gapless("all_gather", x=x, out=out)
    if mesh.hosts:
        wide = (mesh.size * shape[0], *shape[1:])
        return two_level.gather(shape, wide, dtype, mesh, timeout)(x, out=out, interpret=interpret)
    return Launched(_gather(shape, dtype, mesh, timeout), (x,), out)


@partial(public, name="reduce_scatter")
@by_rank
def reduce_scatter(
    x: Any,
    mesh: Mesh,
    *,
    out: Any = None,
    deterministic: bool = True,
    timeout: float | None = None,
    interpret: Any = None,
) -> Any:
    """The sum of all devices' arrays; device i gets part i along the first axis: (n * m, ...) to (m, ...), in their dtype.

    `x`, `out`, `deterministic`, `timeout` and errors are those of `all_reduce`. Also raises `BadArgument` if the first
    axis is no multiple of the number of devices.
    """
    op = "reduce_scatter"
    shape, dtype = described(x, mesh, op, 1)
    check_gapless(op, x=x, out=out)
    if shape[0] % mesh.size:
        what = f"the first axis has {shape[0]} elements, for {mesh.size} devices"
        raise BadArgument(op=op, what=what, hint="pad it to a multiple of the devices")
    if mesh.hosts:
        part = (shape[0] // mesh.size, *shape[1:])
        return _scattered(x, prod(part), part, dtype, mesh, out, timeout, interpret)
    return Launched(_scatter(shape, dtype, mesh, deterministic, timeout), (x,), out)


def _over_hosts(
    x: Any, shape: tuple[int, ...], dtype: DType, mesh: Mesh, out: Any, timeout: float | None, interpret: Any
) -> Any:
    """`all_reduce` on several hosts: each device sums its part, and sends it to all. If the size is no multiple of the
    devices, the last part extends past the end.
    """
    n, size = mesh.size, prod(shape)
    part = (-(-size // n),)
    parts = made_like(x, part, dtype, mesh, "parts over hosts")
    parts = _scattered(x, part[0], part, dtype, mesh, parts, timeout, interpret)
    gather = two_level.gather(part, shape, dtype, mesh, timeout)
    if size % n == 0:
        return gather(parts, out=out, interpret=interpret)
    out = made_like(x, shape, dtype, mesh) if out is None else out
    whole = made_like(x, (n * part[0],), dtype, mesh, "sums over hosts")
    return gather(parts, out=(out, whole), interpret=interpret)[0]


def _scattered(
    x: Any, size: int, part: tuple[int, ...], dtype: DType, mesh: Mesh, out: Any, timeout: float | None, interpret: Any
) -> Any:
    hosts = prod(n for name, n in zip(mesh.names, mesh.sizes, strict=True) if name in mesh.hosts)
    wide = dt.float32 if dtype.is_float and dtype.itemsize < 4 else dtype
    room = [made_like(x, (hosts, size), wide, mesh, f"{name} of hosts") for name in ("stage", "box")]
    out = made_like(x, part, dtype, mesh) if out is None else out
    return two_level.scatter(size, part, dtype, mesh, timeout)(x, out=(out, *room), interpret=interpret)[0]


def _in_place(x: Any, out: Any) -> bool:
    return out is not None and overlap(x, out)


# --- kernels --------------------------------------------------------------------------------------


def _kernel(body: Any, name: str, out: tuple[int, ...], dtype: DType, mesh: Mesh, walk: ChunkWalk) -> Any:
    both = [kd.SemaphoreType.REGULAR, kd.SemaphoreType.REGULAR]
    made = kd.kernel(
        body,
        out_type=kd.ShapeDtypeStruct(out, dtype),
        scratch_types=both,
        grid=(walk.blocks,),
        grid_names=("block",),
        mesh=mesh,
        name=f"{name}_{mesh.size}",
    )
    return orders_itself(made)


@cache
def _one_shot(shape: tuple[int, ...], dtype: DType, mesh: Mesh, deterministic: bool, timeout: float | None) -> Any:
    walk = ChunkWalk(prod(shape), dtype)

    def one_shot(x: Any, out: Any, begin: Any, end: Any) -> None:
        wait_for_all(begin, mesh, timeout)
        terms = [kd.remote_ref(x, rank).reshape(-1) for rank in ranks_of(mesh, deterministic)]
        mine = out.reshape(-1)

        def work(part: Any) -> None:
            mine[part] = summed(terms, part)

        walk.over(work)
        wait_for_all(end, mesh, timeout)

    return _kernel(one_shot, "all_reduce_one_shot", shape, dtype, mesh, walk)


@cache
def _gather(shape: tuple[int, ...], dtype: DType, mesh: Mesh, timeout: float | None) -> Any:
    size = prod(shape)
    walk = ChunkWalk(size, dtype)

    def gather(x: Any, out: Any, begin: Any, end: Any) -> None:
        wait_for_all(begin, mesh, timeout)
        first = kd.axis_index(mesh.names) * size
        source = x.reshape(-1)
        targets = [kd.remote_ref(out, rank).reshape(-1).at[kd.ds(first, size)] for rank in ranks_of(mesh, False)]

        def work(part: Any) -> None:
            value = source[part]
            for target in targets:
                target[part] = value

        walk.over(work)
        wait_for_all(end, mesh, timeout)

    return _kernel(gather, "all_gather", (mesh.size * shape[0], *shape[1:]), dtype, mesh, walk)


@cache
def _scatter(shape: tuple[int, ...], dtype: DType, mesh: Mesh, deterministic: bool, timeout: float | None) -> Any:
    size = prod(shape) // mesh.size
    walk = ChunkWalk(size, dtype)

    def scatter(x: Any, out: Any, begin: Any, end: Any) -> None:
        wait_for_all(begin, mesh, timeout)
        first = kd.axis_index(mesh.names) * size
        terms = [kd.remote_ref(x, rank).reshape(-1).at[kd.ds(first, size)] for rank in ranks_of(mesh, deterministic)]
        mine = out.reshape(-1)

        def work(part: Any) -> None:
            mine[part] = summed(terms, part)

        walk.over(work)
        wait_for_all(end, mesh, timeout)

    return _kernel(scatter, "reduce_scatter", (shape[0] // mesh.size, *shape[1:]), dtype, mesh, walk)

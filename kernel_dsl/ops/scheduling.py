"""Loops over the grid whose blocks take the next piece of work when they are done with one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from typing import Any

from .. import dtypes as dt
from ..arguments import strings
from ..boundary import called
from ..errors import BadArgument, BodyReturned
from ..memory import SMEM, Barrier, ClusterBarrier
from ..trace import current
from .arith import add, bitwise_and, multiply, subtract
from .atomic import atomic_add
from .barrier import barrier_arrive, barrier_wait
from .branches import when
from .cluster import cluster_ref
from .compare import equal, less, maximum, minimum
from .control import while_loop
from .index import axis_index, axis_size, grid_extent, grid_points, members, num_programs, program_id
from .loops import NDLoopInfo, split
from .scope import allocate, scope
from .semaphore import SemaphoreSpec, zeroed_counters

__all__ = ["dynamic_scheduling_loop"]

OP = "dynamic_scheduling_loop"
MOST_POINTS = 2**30  # every block takes one ticket beyond its work, and int32 counts tickets


def dynamic_scheduling_loop(
    grid_names: str | Sequence[str],
    *,
    thread_axis: str | None = None,
    cluster_axes: str | Sequence[str] = (),
    init_carry: Any = None,
) -> Callable[[Callable[..., Any]], Any]:
    """`@kd.dynamic_scheduling_loop(("m", "n"))`: runs each point of these axes of the grid in the block that is free
    first.

    The kernel is launched with a grid of all the work. Blocks take tickets from a counter in GMEM, which each launch
    zeroes: blocks that start first take work until none is left; later blocks get none. The body takes an `NDLoopInfo`
    (and the carry, with `init_carry`) whose `index` has an int32 for each name, tickets in row-major order;
    `local_index` counts this block's iterations, `num_local_steps` is None. Each index along the other axes of the grid
    has its own tickets, so the kernel is compiled for the extents of those axes.

    In a kernel of several warpgroups, `thread_axis` names their axis; all of them run the loop, and all get each point. A
    warpgroup may be one point ahead of others. `cluster_axes` names all axes of a cluster, whose blocks share each point.
    The decorated name becomes the final carry (None without one). Raises `UnknownAxis`, `BadArgument` (in a branch or in
    another loop, axes that are left out, more than 2^30 points), `BodyReturned`, `CarryMismatch`.
    """
    names = strings(grid_names, OP, "grid_names")
    cluster = strings(cluster_axes, OP, "cluster_axes")
    extents = _extents(names, thread_axis, cluster)

    def decorate(body: Callable[..., Any]) -> Any:
        def run(step: Any, ticket: Any, carry: Any) -> Any:
            # both bounds always hold; they let the trace remove masks
            first, *others = split(maximum(ticket, 0), extents)
            first = minimum(first, subtract(extents[0], 1))
            info = NDLoopInfo((first, *others), step, None)
            if init_carry is not None:
                return called(body, (info, carry), OP, "body", "body(info, carry)")
            if called(body, (info,), OP, "body", "body(info)") is not None:
                hint = "pass `init_carry=` to carry values"
                raise BodyReturned(what=f"the body of `kd.{OP}`", got="a value", hint=hint)
            return None

        shared = current().threads * axis_size(cluster) > 1
        with scope(collective=True, smem=shared):
            tickets = _Shared(names, cluster) if shared else _Own(names)

            def turn(state: Any) -> Any:
                step, ticket, carry = state
                tickets.ask(step)
                carry = run(step, ticket, carry)
                return step + 1, tickets.answer(step + 1), carry

            first = tickets.first()
            return while_loop(lambda state: less(state[1], _product(extents)), turn, (0, first, init_carry))[2]

    return decorate


def _extents(names: tuple[str, ...], thread_axis: str | None, cluster: tuple[str, ...]) -> tuple[Any, ...]:
    """The number of points along each name, an int or a traced one. Raises `UnknownAxis`, `BadArgument`."""
    trace = current()
    extents = tuple(grid_extent(name) for name in names)
    for name in (*cluster, *(() if thread_axis is None else (thread_axis,))):
        axis_size(name)
    for kind, word, given, hint in (
        ("grid", "grid_names", names, "name axes of the grid, each once"),
        ("cluster", "cluster_axes", cluster, "name all axes of the cluster, whose blocks share their work"),
        ("thread", "thread_axis", () if thread_axis is None else (thread_axis,), "name the axis of the warpgroups"),
    ):
        own = [name for name, axis in trace.axes.items() if axis[0] == kind]
        missing = kind != "grid" and any(n not in given and trace.axes[n][2] > 1 for n in own)
        if missing or len(set(given)) != len(given) or any(n not in own for n in given):
            raise BadArgument(op=OP, what=f"{word}={given if kind != 'thread' else thread_axis!r}", hint=hint)
    if trace.threads > 1 and thread_axis is None:
        hint = "give the kernel a `thread_name`, and this loop that name"
        raise BadArgument(op=OP, what=f"{trace.threads} warpgroups without a named axis", hint=hint)
    if not names:
        raise BadArgument(op=OP, what="no names", hint="name axes of the grid")
    if trace.depth:
        hint = "move it outside: all warpgroups together count its tickets once per launch"
        raise BadArgument(op=OP, what="it is inside a branch or another loop", hint=hint)
    points = grid_points(names, MOST_POINTS)
    if points > MOST_POINTS:
        raise BadArgument(op=OP, what=f"{points} points", hint="use at most 2^30 points, with more work for each")
    return extents


def _product(extents: Sequence[Any]) -> Any:
    return reduce(multiply, extents)


def _place(step: Any) -> Any:
    """The place of a step's ticket."""
    return bitwise_and(step, 1)


class _Own:
    """Tickets of a block of one warpgroup."""

    def __init__(self, names: tuple[str, ...]) -> None:
        trace = current()
        outer, used = len(trace.batches), [trace.axes[name][1] for name in names]
        others = [axis - outer for axis in range(outer, len(trace.grid)) if axis not in used]
        sizes = (*current().batches, *(num_programs(axis) for axis in others))
        counters = zeroed_counters(SemaphoreSpec(sizes, True))
        self._counter = counters.at[(*members(), *(program_id(axis) for axis in others))]

    def take(self) -> Any:
        """The next ticket."""
        return atomic_add(self._counter, 1, scope="gpu")

    def first(self) -> Any:
        return self.take()

    def ask(self, step: Any) -> None:
        """Prepare the ticket of the next iteration."""

    def answer(self, step: Any) -> Any:
        """The ticket of the next iteration."""
        return self.take()


class _Shared(_Own):
    """Tickets of several warpgroups, and of the blocks of a cluster: the first warpgroup of the first block takes them.

    During a step, the leader writes the next step's ticket to the other of two places in SMEM. No warpgroup still reads
    that place: each read it before it arrived on the barrier of the step before.
    """

    def __init__(self, names: tuple[str, ...], cluster: tuple[str, ...]) -> None:
        super().__init__(names)
        trace = current()
        self._cluster = cluster
        self._leads: Any = None
        for kind, (name, axis) in ((a[0], (n, a)) for n, a in trace.axes.items()):
            if kind in ("cluster", "thread") and axis[2] > 1:
                here = equal(axis_index(name), 0)
                self._leads = here if self._leads is None else self._leads & here
        self._places = allocate(SMEM((2,), dt.int32), OP)
        together = ClusterBarrier((cluster,), (), trace.threads) if cluster else Barrier(trace.threads)
        self._here = allocate(together, OP)

    def first(self) -> Any:
        self.ask(-1)
        return self.answer(0)

    def ask(self, step: Any) -> None:
        @when(self._leads)
        def _() -> None:
            ticket = self.take()
            place = _place(add(step, 1))
            if not self._cluster:
                self._places[place] = ticket
                return
            sizes = [axis_size(name) for name in self._cluster]
            for block in range(prod(sizes)):
                index = dict(zip(self._cluster, split(block, sizes), strict=True))
                cluster_ref(self._places, index)[place] = ticket

        barrier_arrive(self._here)

    def answer(self, step: Any) -> Any:
        barrier_wait(self._here)
        return self._places[_place(step)]

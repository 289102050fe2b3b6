"""Asynchronous copies between GMEM and SMEM, the fences and waits that go with them, and prefetches."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from ..errors import BadArgument, BadArgumentType
from ..errors_hopper import BarrierBytes, ClusterUse, CopyMismatch, CopySpaces, TmaRule
from ..ir import Effect, MemorySpace, Op, Value, attr, attribute_type, operand, operands
from ..refs import Ref, View
from ..target import Feature
from ..trace import current, emit
from ..values import Array
from .barrier import as_barrier
from .ref import as_ref, check_own_block, check_writable

__all__ = [
    "OOBFillMode",
    "async_prefetch",
    "commit_smem",
    "commit_smem_to_gmem_group",
    "copy_gmem_to_smem",
    "copy_smem_to_gmem",
    "wait_gmem_to_smem",
    "wait_smem_to_gmem",
]

# PTX ISA 9.7.13.15.1: the tx-count of a phase is at most 2^20 - 1
MAX_TRANSFER = 2**20 - 1
REDUCTIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor", "smin", "smax", "umin", "umax")
HINTS = ("", "evict_first", "evict_normal", "evict_last")


@attribute_type
class OOBFillMode(Enum):
    """What a copy does with elements outside of the array.

    `ZEROS` and `NANS` fill them; `UNDEFINED` leaves them open; `PROMISE_IN_BOUNDS` says there are none.
    """

    ZEROS = "zeros"
    NANS = "nans"
    UNDEFINED = "undefined"
    PROMISE_IN_BOUNDS = "promise_in_bounds"


class CopyGmemToSmem(Op, name="copy_gmem_to_smem", effect=Effect.SYNC, requires=Feature.CP_ASYNC):
    """Copy a view of GMEM into SMEM; completes on the barrier, or (without one) in a cp.async group.

    PTX `cp.async.bulk.tensor`, `cp.async.bulk`; `cp.async` on targets without TMA. `multicast`: cluster axes whose
    blocks each load a part for all.
    """

    src: Value = operand()
    src_offsets: tuple[Value, ...] = operands()
    dst: Value = operand()
    dst_offsets: tuple[Value, ...] = operands()
    barrier: Value | None = operand()
    index: Value | None = operand()
    predicate: Value | None = operand()
    src_view: View = attr()
    dst_view: View = attr()
    oob: OOBFillMode = attr()
    multicast: tuple[int, ...] = attr()
    hint: str = attr("")

    def needs(self) -> Feature:
        if self.multicast:
            return Feature.TMA | Feature.CLUSTER
        return Feature.MBARRIER | Feature.CP_ASYNC if self.barrier is not None else Feature.CP_ASYNC


class CopySmemToGmem(Op, name="copy_smem_to_gmem", effect=Effect.SYNC, requires=Feature.TMA):
    """Copy or reduce a view of SMEM into GMEM. PTX `cp.async.bulk.tensor`, `cp.reduce.async.bulk.tensor`."""

    src: Value = operand()
    src_offsets: tuple[Value, ...] = operands()
    dst: Value = operand()
    dst_offsets: tuple[Value, ...] = operands()
    predicate: Value | None = operand()
    src_view: View = attr()
    dst_view: View = attr()
    reduction: str = attr("")
    commit: bool = attr(True)
    hint: str = attr("")


class Prefetch(Op, name="async_prefetch", effect=Effect.READ, requires=Feature.TMA):
    """Bring a view of GMEM into L2. PTX `cp.async.bulk.prefetch.tensor`."""

    src: Value = operand()
    src_offsets: tuple[Value, ...] = operands()
    predicate: Value | None = operand()
    src_view: View = attr()


class CommitSmem(Op, name="commit_smem", effect=Effect.SYNC, requires=Feature.TMA):
    """Every lane's proxy fence, then a warpgroup barrier. PTX `fence.proxy.async.shared::cta`."""


class CommitGroup(Op, name="commit_smem_to_gmem_group", effect=Effect.SYNC, requires=Feature.TMA):
    """Close the group of copies to GMEM issued so far. PTX `cp.async.bulk.commit_group`."""


class WaitSmemToGmem(Op, name="wait_smem_to_gmem", effect=Effect.SYNC, requires=Feature.TMA):
    """Wait until at most `pending` groups are in flight. PTX `cp.async.bulk.wait_group[.read]`."""

    pending: int = attr()
    read_only: bool = attr(False)


class WaitGmemToSmem(Op, name="wait_gmem_to_smem", effect=Effect.SYNC, requires=Feature.CP_ASYNC):
    """Wait until at most `pending` barrier-less copies are in flight. PTX `cp.async.wait_group`."""

    pending: int = attr()


def _predicate(predicate: Any, op: str) -> Array | None:
    if predicate is None:
        return None
    from .control import as_predicate

    return as_predicate(predicate, op)


def _pair(src: Any, dst: Any, spaces: tuple[MemorySpace, MemorySpace], op: str) -> tuple[Ref, Ref]:
    """Both Refs, checked against each other. Raises `CopySpaces`, `CopyMismatch`, `ClusterUse`."""
    a, b = as_ref(src, op), as_ref(dst, op)
    if (a.memory_space, b.memory_space) != spaces:
        got = f"{a.memory_space.name} to {b.memory_space.name}"
        hint = "swap the arguments, or use a load and a store"
        raise CopySpaces(op=op, src=spaces[0].name, dst=spaces[1].name, got=got, hint=hint)
    for ref in (a, b):
        check_own_block(ref, op)
    squeezed = [tuple(n for n in r.shape if n != 1) for r in (a, b)]
    if a.dtype != b.dtype or squeezed[0] != squeezed[1]:
        hint = "slice the larger one with `.at[...]`" if a.dtype == b.dtype else "convert through registers"
        raise CopyMismatch(op=op, src=repr(a), dst=repr(b), hint=hint)
    return a, b


def squeeze(view: View) -> View:
    """The view without dimensions of extent 1."""
    return View(tuple(d for d in view.dims if d.size != 1), view.start, view.dynamic, view.masked)


def _hint(hint: str | None, op: str) -> str:
    if (hint or "") not in HINTS:
        raise BadArgument(op=op, what=f"l2_hint={hint!r}", hint=f"one of {', '.join(map(repr, HINTS[1:]))}")
    return hint or ""


def cluster_positions(axes: Any, op: str) -> tuple[int, ...]:
    """The numbers of named cluster axes. Raises `ClusterUse`."""
    names: Sequence[Any] = (axes,) if isinstance(axes, str) else tuple(axes or ())
    known = {n: p for n, (kind, p, _) in current().axes.items() if kind == "cluster"}
    out: list[int] = []
    for name in names:
        if name not in known or known[name] in out:
            hint = (
                f"the cluster's axes are {', '.join(map(repr, known)) or 'none: give `cluster_names`'}; name each once"
            )
            raise ClusterUse(op=op, what=f"{name!r} is no cluster axis, or is named twice", hint=hint)
        out.append(known[name])
    return tuple(sorted(out))


def copy_gmem_to_smem(
    src: Any,
    dst: Any,
    barrier: Any = None,
    *,
    collective_axes: Any = None,
    oob_mode: OOBFillMode = OOBFillMode.ZEROS,
    predicate: Any = None,
    l2_hint: str | None = None,
) -> None:
    """Start copying a view of GMEM to one of SMEM; the copy arrives once on `barrier` with its bytes.

    Elements outside of the array become zeros (`oob_mode`). `collective_axes`: cluster axes whose blocks want the same
    data in the same place: each loads a part for all, and each block's barrier gets all bytes. With a false
    `predicate` nothing is copied and nothing arrives. `l2_hint`: "evict_first", "evict_last" or "evict_normal".
    Without a barrier the copy is a group of its own, for `wait_gmem_to_smem`. PTX ISA 9.7.9.25 and 9.7.9.27.

    Both views have one dtype, and one shape but for extents of 1. Raises `CopySpaces`, `CopyMismatch`, `TmaRule` for what TMA
    can't do, `BarrierBytes`, `ClusterUse`, `BadArgument`, `BadArgumentType`.
    """
    op = "copy_gmem_to_smem"
    a, b = _pair(src, dst, (MemorySpace.GMEM, MemorySpace.SMEM), op)
    if not isinstance(oob_mode, OOBFillMode):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadArgumentType(op=op, what=f"oob_mode={oob_mode!r}", hint="use `kd.OOBFillMode.ZEROS` or its kin")
    if oob_mode is OOBFillMode.NANS and (not a.dtype.is_float or a.dtype.itemsize == 1):
        hint = "TMA fills float16, bfloat16, float32 and float64 with NaN; use `ZEROS`"
        raise BadArgument(op=op, what=f"oob_mode=NANS for {a.dtype}", hint=hint)
    size = a.size * a.dtype.itemsize
    if size > MAX_TRANSFER:
        raise BarrierBytes(op=op, bytes=size, limit=MAX_TRANSFER)
    axes = cluster_positions(collective_axes, op)
    one = None if barrier is None else as_barrier(barrier, op)
    if one is None and axes:
        raise ClusterUse(op=op, what="a multicast without a barrier", hint="pass the barrier that it completes on")
    (src_view, src_offsets), (dst_view, dst_offsets) = a.view(), b.view()
    emit(
        CopyGmemToSmem(
            a.root,
            src_offsets,
            b.root,
            dst_offsets,
            None if one is None else one.root,
            None if one is None else one.linear(op),
            _predicate(predicate, op),
            squeeze(src_view),
            squeeze(dst_view),
            oob_mode,
            axes,
            _hint(l2_hint, op),
        )
    )


def copy_smem_to_gmem(
    src: Any,
    dst: Any,
    *,
    predicate: Any = None,
    commit_group: bool = True,
    reduction_op: str | None = None,
    l2_hint: str | None = None,
) -> None:
    """Start copying a view of SMEM to one of GMEM; elements beyond the array's end are dropped.

    A start below zero is refused here where it is known, and is a hazard in the interpreter: the GPU can't store there.
    Call `commit_smem` after writing the SMEM. `commit_group=False` leaves the copy in the open group.
    `reduction_op`: combine with what is there ("add", "min", "max", "and", "or", "xor", "inc", "dec"). `l2_hint`: as for
    `copy_gmem_to_smem`, and so are shapes and dtypes. Raises `CopySpaces`, `CopyMismatch`,
    `TmaRule`, `ClusterUse`, `BadArgument`.
    """
    op = "copy_smem_to_gmem"
    a, b = _pair(src, dst, (MemorySpace.SMEM, MemorySpace.GMEM), op)
    check_writable(b)
    reduction = reduction_op or ""
    if reduction and reduction not in REDUCTIONS:
        raise BadArgument(op=op, what=f"reduction_op={reduction_op!r}", hint=f"one of {', '.join(REDUCTIONS)}")
    reduction = reduction[1:] if reduction in ("smin", "smax", "umin", "umax") else reduction
    _check_reduction(reduction, b, op)
    _check_starts(b, op)
    (src_view, src_offsets), (dst_view, dst_offsets) = a.view(), b.view()
    emit(
        CopySmemToGmem(
            a.root,
            src_offsets,
            b.root,
            dst_offsets,
            _predicate(predicate, op),
            squeeze(src_view),
            squeeze(dst_view),
            reduction,
            bool(commit_group),
            _hint(l2_hint, op),
        )
    )


def _check_starts(ref: Ref, op: str) -> None:
    """Stores at negative coordinates: PTX ISA 5.5.3.2 drops what lies outside, the H200 stops (illegal instruction)."""
    view = ref.view()[0]
    for axis, start in enumerate(view.start):
        if start < 0 and axis not in view.dynamic:
            raise TmaRule(
                op=op,
                what=f"axis {axis} starts at {start}",
                why="a load may start before the array, a store that does stops the kernel with an illegal instruction",
                hint="start at zero or beyond, from a tile that holds only what is kept; elements past the end are dropped",
            )


def _check_reduction(reduction: str, ref: Ref, op: str) -> None:
    """PTX ISA 9.7.9.27.3: which reductions the dtypes of a tensor map have."""
    dtype = ref.dtype
    if not reduction:
        return
    names = {
        "add": ("int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32"),
        "min": ("int32", "uint32", "int64", "uint64", "float16", "bfloat16"),
        "max": ("int32", "uint32", "int64", "uint64", "float16", "bfloat16"),
        "inc": ("uint32",),
        "dec": ("uint32",),
    }.get(reduction, ("int32", "uint32", "int64", "uint64"))
    if dtype.name not in names:
        raise BadArgument(op=op, what=f"reduction {reduction!r} on {dtype}", hint=f"it exists for {', '.join(names)}")


def async_prefetch(ref: Any, *, collective_axes: Any = None, predicate: Any = None) -> None:
    """Bring a view of GMEM into L2. With `collective_axes` one block along them does it for all.

    With a false rank-0 bool `predicate` nothing is done. Raises `CopySpaces` for a Ref that is not in GMEM.
    """
    op = "async_prefetch"
    source = as_ref(ref, op)
    if source.memory_space is not MemorySpace.GMEM:
        raise CopySpaces(op=op, src="GMEM", dst="L2", got=source.memory_space.name, hint="prefetch a GMEM Ref")
    guard = _predicate(predicate, op)
    axes = cluster_positions(collective_axes, op)
    if axes:
        from ..trace import traced
        from .compare import equal
        from .index import AxisIndex

        sizes = {p: size for kind, p, size in current().axes.values() if kind == "cluster"}
        for position in axes:
            first = equal(traced(AxisIndex("cluster", position, sizes[position])), 0)
            guard = first if guard is None else guard & first
    view, offsets = source.view()
    emit(Prefetch(source.root, offsets, guard, squeeze(view)))


def commit_smem() -> None:
    """Make this warpgroup's writes to SMEM visible to asynchronous copies and wgmma.

    Each lane's proxy fence, then a barrier of the warpgroup. PTX ISA 9.7.13.4 (fence.proxy.async).
    """
    current()
    emit(CommitSmem())


def commit_smem_to_gmem_group() -> None:
    """Close the group of `copy_smem_to_gmem(..., commit_group=False)` that this warpgroup issued.

    `wait_smem_to_gmem` counts such groups.
    """
    current()
    emit(CommitGroup())


def _pending(n: Any, op: str) -> int:
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        raise BadArgument(op=op, what=f"n={n!r}", hint="a static int, 0 or more")
    return n


def wait_smem_to_gmem(n: int, wait_read_only: bool = False) -> None:
    """Wait until at most `n` groups of this warpgroup's copies to GMEM are in flight.

    `wait_read_only`: only until SMEM has been read and may be overwritten. Raises `BadArgument` unless `n` is a static
    int of 0 or more.
    """
    current()
    emit(WaitSmemToGmem(_pending(n, "wait_smem_to_gmem"), bool(wait_read_only)))


def wait_gmem_to_smem(n: int) -> None:
    """Wait until at most `n` of this warpgroup's copies without a barrier are in flight.

    Raises `BadArgument` unless `n` is a static int of 0 or more.
    """
    current()
    emit(WaitGmemToSmem(_pending(n, "wait_gmem_to_smem")))

"""Asynchronous copies between GMEM and SMEM, and prefetches. `copy_waits.py` has their fences and waits."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from ..attributes import attribute_type
from ..boundary import Choices
from ..diagnostics import CostNote, shown
from ..errors import BadArgument, BadArgumentType
from ..errors_hopper import BarrierBytes, ClusterUse, CopyMismatch, CopySpaces, TmaRule
from ..ir import Effect, MemorySpace, Op, RefType, Value, attr, operand, operands, option
from ..packed import stored_pair
from ..refs import Ref, View
from ..target import DEFAULT, Feature
from ..tma import MAX_TRANSFER, NAN_FILL, REDUCTIONS, UNIT, Start, Way, innermost_start
from ..trace import current, emit
from ..values import Array
from .access import check_writable, view_of
from .barrier import as_barrier
from .ref import as_ref, check_own_block, is_copied_only

__all__ = [
    "OOBFillMode",
    "async_prefetch",
    "copy_gmem_to_smem",
    "copy_smem_to_gmem",
]

_SPELT = {"smin": "min", "umin": "min", "smax": "max", "umax": "max"}  # the dtype decides between them
_MADE = "the lanes don't see the base and extents of a descriptor that the kernel made"
HINTS = ("", "evict_first", "evict_normal", "evict_last")


@attribute_type
class OOBFillMode(Enum, metaclass=Choices):
    """The values that a copy writes for elements outside the array.

    `ZEROS` and `NANS` fill them; `UNDEFINED` gives any value; `PROMISE_IN_BOUNDS` promises that there are none.
    """

    ZEROS = "zeros"
    NANS = "nans"
    UNDEFINED = "undefined"
    PROMISE_IN_BOUNDS = "promise_in_bounds"


class CopyGmemToSmem(Op, name="copy_gmem_to_smem", effect=Effect.SYNC, requires=Feature.CP_ASYNC):
    """Copy a view of GMEM into SMEM; completes on the barrier, or (without one) in a cp.async group.

    PTX `cp.async.bulk.tensor`, `cp.async.bulk`; `cp.async` on targets without TMA. `multicast`: cluster axes whose
    blocks each load a part for all. `meets`: each warp's lanes meet before the warp arrives on the barrier.
    """

    any_dim = True
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
    meets: bool = option(False)

    @property
    def maps(self) -> bool:
        return self.barrier is not None

    @property
    def start(self) -> Start | None:
        """The start along the innermost dimension of the tensor; None if the buffer's last axis is not copied."""
        axis = _innermost(self.src_view, self.dst_view, self.dst.type)
        return None if axis is None else innermost_start(self.src.type, self.src_view, self.src_offsets, axis)

    def needs(self) -> Feature:
        if self.multicast:
            return Feature.TMA | Feature.CLUSTER
        return Feature.MBARRIER | Feature.CP_ASYNC if self.barrier is not None else Feature.CP_ASYNC


class CopySmemToGmem(Op, name="copy_smem_to_gmem", effect=Effect.SYNC, requires=Feature.TMA):
    """Copy or reduce a view of SMEM into GMEM. PTX `cp.async.bulk.tensor`, `cp.reduce.async.bulk.tensor`."""

    any_dim = True
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

    @property
    def maps(self) -> bool:
        return True

    @property
    def start(self) -> Start | None:
        """The start along the innermost dimension of the tensor; None if the buffer's last axis is not copied."""
        axis = _innermost(self.dst_view, self.src_view, self.src.type)
        return (
            None if axis is None else innermost_start(self.dst.type, self.dst_view, self.dst_offsets, axis, store=True)
        )


class Prefetch(Op, name="async_prefetch", effect=Effect.READ, requires=Feature.TMA):
    """Bring a view of GMEM into L2. PTX `cp.async.bulk.prefetch.tensor`."""

    any_dim = True
    src: Value = operand()
    src_offsets: tuple[Value, ...] = operands()
    predicate: Value | None = operand()
    src_view: View = attr()

    @property
    def maps(self) -> bool:
        return True


def _predicate(predicate: Any, op: str) -> Array | None:
    if predicate is None:
        return None
    from .control import as_predicate

    return as_predicate(predicate, op)


def _pair(src: Any, dst: Any, spaces: tuple[MemorySpace, MemorySpace], op: str) -> tuple[Ref, Ref]:
    """Both Refs, checked against each other. Raises `CopySpaces`, `CopyMismatch`, `ClusterUse`."""
    a, b = stored_pair(as_ref(src, op, copied=True), as_ref(dst, op, copied=True))
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


def _innermost(gmem: View, smem: View, buffer: RefType) -> int | None:
    """The axis of the array that is copied along the buffer's last axis."""
    last = len(buffer.shape) - 1
    return next((g.axis for g, s in zip(gmem.dims, smem.dims, strict=True) if s.axis == last and g.axis >= 0), None)


def _note_way(op: CopyGmemToSmem | CopySmemToGmem, alone: str) -> None:
    """Note the cost of a start that TMA may not take.

    Raises `TmaRule` if the lanes can't copy instead; `alone` says why.
    """
    start = op.start
    if start is None or start.way is Way.TENSOR or not (current().target or DEFAULT).supports(Feature.TMA):
        return
    where = f"its start along axis {start.axis} of the array"
    known = start.aligned and start.least is None
    times = f"a multiple of {start.unit} elements ({UNIT} bytes)"
    fix = f"start at a multiple of {start.unit}"
    if known and start.most is not None:
        what = f"it may reach past the end along axis {start.axis}, which is not at {times}, and TMA writes whole {UNIT} bytes"
        done = "a test at run time picks TMA or a copy by the lanes" if start.divisor else "the lanes copy it"
        fix = f"end the array, or the view, at a multiple of {start.unit} elements"
    elif start.way is Way.LANES:
        what, done = f"{where} is never {times}", "the lanes copy it"
    elif not start.aligned:
        what = f"{where} is not known to be {times}"
        fix = f"state a multiple by `kd.multiple_of(start, {start.unit})`"
        done = f"a test at run time picks TMA or a copy by the lanes; {fix}"
    else:
        what = f"{where} may lie before the view, which begins at element {start.least}, not at {times}"
        done = "a test at run time picks TMA or a copy by the lanes"
    if alone:
        raise TmaRule(op=op.op_name, loc=op.loc, what=what, why=f"TMA can't copy that, and {alone}", hint=fix)
    current().notes.append(CostNote(f"`{op.op_name}`: {what}: {done}", op.loc))


def _hint(hint: str | None, op: str) -> str:
    if (hint or "") not in HINTS:
        raise BadArgument(op=op, what=f"l2_hint={shown(hint)}", hint=f"one of {', '.join(map(repr, HINTS[1:]))}")
    return hint or ""


def cluster_positions(axes: Any, op: str) -> tuple[int, ...]:
    """The numbers of named cluster axes. Raises `ClusterUse`."""
    names: Sequence[Any] = (axes,) if isinstance(axes, str) else () if axes is None else axes
    if not isinstance(names, (tuple, list)):
        hint = "the name of a cluster axis, or a tuple of names"
        raise BadArgumentType(op=op, what=f"collective_axes={shown(axes)}", hint=hint)
    known = {n: p for n, (kind, p, _) in current().axes.items() if kind == "cluster"}
    out: list[int] = []
    for name in names:
        if type(name) is not str or name not in known or known[name] in out:
            hint = (
                f"the cluster's axes are {', '.join(map(repr, known)) or 'none: give `cluster_names`'}; name each once"
            )
            raise ClusterUse(op=op, what=f"{shown(name)} is not a cluster axis, or is named twice", hint=hint)
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

    `src` may be a block of another view: elements outside of that view become zeros (`oob_mode`). `collective_axes`:
    cluster axes whose blocks need the same data in the same place. Each block then loads a part for all, and each
    block's barrier gets all bytes. With a false `predicate` nothing is copied and nothing arrives. `l2_hint`:
    "evict_first", "evict_last" or "evict_normal". Without a barrier the copy is one group, for `wait_gmem_to_smem`. If
    the block does not start at a multiple of 16 bytes along the innermost axis, the lanes copy it. PTX ISA 9.7.9.25 and
    9.7.9.27.

    Both views have the same dtype, and the same shape apart from extents of 1. Raises `CopySpaces`, `CopyMismatch`,
    `TmaRule` for copies that TMA can't do, `BarrierBytes`, `ClusterUse`, `BadArgument`, `BadArgumentType`.
    """
    op = "copy_gmem_to_smem"
    a, b = _pair(src, dst, (MemorySpace.GMEM, MemorySpace.SMEM), op)
    if not isinstance(oob_mode, OOBFillMode):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadArgumentType(op=op, what=f"oob_mode={shown(oob_mode)}", hint="use a member of `kd.OOBFillMode`")
    if oob_mode is OOBFillMode.NANS and a.dtype.name not in NAN_FILL:
        hint = "TMA fills float16, bfloat16, float32 and float64 with NaN; use `ZEROS`"
        raise BadArgument(op=op, what=f"oob_mode=NANS for {a.dtype}", hint=hint)
    size = a.size * a.dtype.itemsize
    if size > MAX_TRANSFER:
        raise BarrierBytes(op=op, bytes=size, limit=MAX_TRANSFER)
    axes = cluster_positions(collective_axes, op)
    one = None if barrier is None else as_barrier(barrier, op)
    if one is not None and one.type.leader:
        hint = "complete copies on a barrier of their block, and arrive on this one after the wait"
        raise ClusterUse(op=op, what="a copy on a leader_tracked barrier, whose counts are in another block", hint=hint)
    if one is None and is_copied_only(a):
        why = "the lanes make copies without a barrier, and its base and extents are in a descriptor"
        raise TmaRule(op=op, what=f"{a!r} without a barrier", why=why, hint="pass the barrier that it completes on")
    if one is None and axes:
        raise ClusterUse(op=op, what="a multicast without a barrier", hint="pass the barrier that it completes on")
    promise = current().promise_bounds or oob_mode is OOBFillMode.PROMISE_IN_BOUNDS
    (src_view, src_offsets), (dst_view, dst_offsets) = view_of(a, promise), view_of(b)
    made = emit(
        CopyGmemToSmem(
            a.root,
            src_offsets,
            b.root,
            dst_offsets,
            None if one is None else one.root,
            None if one is None else one.linear(op),
            _predicate(predicate, op),
            src_view.squeezed(),
            dst_view.squeezed(),
            oob_mode,
            axes,
            _hint(l2_hint, op),
            False,
        )
    )
    if one is not None and a.size:
        alone = "the lanes can't share it with the blocks of a cluster" if axes else ""
        _note_way(made, _MADE if is_copied_only(a) else alone)


def copy_smem_to_gmem(
    src: Any,
    dst: Any,
    *,
    predicate: Any = None,
    commit_group: bool = True,
    reduction_op: str | None = None,
    l2_hint: str | None = None,
) -> None:
    """Start copying a view of SMEM to one of GMEM.

    `dst` may be a block of another view: elements beyond the end of that view are dropped. A start before the view is
    an error while tracing if it is static, and a hazard in the interpreter: the GPU can't store there. Call
    `commit_smem` after writing the SMEM. `commit_group=False` leaves the copy in the open group. `reduction_op`: the
    elements are combined with those in GMEM ("add", "min", "max", "and", "or", "xor", "inc", "dec"). `l2_hint`, shapes
    and dtypes: as for `copy_gmem_to_smem`. Raises `CopySpaces`, `CopyMismatch`, `TmaRule`, `ClusterUse`, `BadArgument`.
    """
    op = "copy_smem_to_gmem"
    a, b = _pair(src, dst, (MemorySpace.SMEM, MemorySpace.GMEM), op)
    check_writable(b)
    reduction = reduction_op or ""
    if reduction and reduction not in (*REDUCTIONS, *_SPELT):
        hint = f"one of {', '.join((*REDUCTIONS, *_SPELT))}"
        raise BadArgument(op=op, what=f"reduction_op={shown(reduction_op)}", hint=hint)
    reduction = _SPELT.get(reduction, reduction)
    _check_reduction(reduction, b, op)
    (src_view, src_offsets), (dst_view, dst_offsets) = view_of(a), view_of(b, current().promise_bounds)
    _check_starts(dst_view, op)
    made = emit(
        CopySmemToGmem(
            a.root,
            src_offsets,
            b.root,
            dst_offsets,
            _predicate(predicate, op),
            src_view.squeezed(),
            dst_view.squeezed(),
            reduction,
            bool(commit_group),
            _hint(l2_hint, op),
        )
    )
    if b.size:
        _note_way(made, _MADE if is_copied_only(b) else "the lanes can't reduce as it does" if reduction else "")


def _check_starts(view: View, op: str) -> None:
    """Refuse stores at negative coordinates: PTX ISA 5.5.3.2 drops them, but an H200 stops (illegal instruction)."""
    lows = {limit.axis: limit.low or 0 for limit in view.masked if limit.axis >= 0}
    for axis, start in enumerate(view.start):
        first = lows.get(axis, 0)
        if start < first and axis not in view.dynamic:
            where = f", before the view does at {first}" if first else ""
            raise TmaRule(
                op=op,
                what=f"axis {axis} starts at {start}{where}",
                why="a load may start before the array; such a store stops the kernel with an illegal instruction",
                hint="start at zero or later, from a tile of only the stored elements; elements past the end are dropped",
            )


def _check_reduction(reduction: str, ref: Ref, op: str) -> None:
    """Raise `BadArgument` for a reduction that the dtype does not have."""
    dtype = ref.dtype
    if not reduction:
        return
    names = REDUCTIONS[reduction]
    if dtype.name not in names:
        raise BadArgument(
            op=op, what=f"reduction {shown(reduction)} on {dtype}", hint=f"it exists for {', '.join(names)}"
        )


def async_prefetch(ref: Any, *, collective_axes: Any = None, predicate: Any = None) -> None:
    """Bring a view of GMEM into L2.

    With `collective_axes`, one block along these cluster axes prefetches for all. With a false rank-0 bool `predicate`
    nothing is prefetched. Raises `CopySpaces` for a Ref that is not in GMEM.
    """
    op = "async_prefetch"
    source = as_ref(ref, op, copied=True)
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
    view, offsets = view_of(source)
    emit(Prefetch(source.root, offsets, guard, view.squeezed()))

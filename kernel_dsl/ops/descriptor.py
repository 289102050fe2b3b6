"""Refs whose base and extents are computed in the kernel: descriptors of TMA that the kernel makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import dtypes as dt
from ..boundary import checks_itself
from ..diagnostics import shown
from ..dtypes import uint8
from ..errors import BadArgument, BadArgumentType
from ..errors_hopper import TmaRule
from ..extents import is_declared, traced_extent
from ..indices import is_index
from ..ir import Effect, MemorySpace, Op, RefType, Value, attr, operand, operands
from ..memory import MemorySpec
from ..refs import Ref
from ..target import Feature
from ..tma import MAX_EXTENT
from ..trace import current, emit
from ..values import Array
from .access import widen
from .cast import as_value, astype
from .compare import maximum, minimum, where
from .ref import as_ref
from .semaphore import allocate_gmem

__all__ = ["make_tensor_descriptor"]

MAP_BYTES = 128  # PTX ISA 5.5.8: a tensor map
MAPS = 4  # of one descriptor, one for each kind of box that copies through it have
_NAME = "make_tensor_descriptor"


class MakeTensorDescriptor(Op, name=_NAME, effect=Effect.SYNC, requires=Feature.TENSORMAP):
    """The part of an array from `starts` on, of `sizes` elements along the array's axes, as tensor maps in `space`.

    A map of the launch is copied to SMEM, changed there, and copied to `space`, where `slots` descriptors are used in turn.
    PTX `tensormap.replace`, `tensormap.cp_fenceproxy`, `fence.proxy.tensormap::generic.acquire`.
    """

    together = True
    any_dim = True
    copies_only = True
    ref: Value = operand()
    space: Value = operand()
    starts: tuple[Value, ...] = operands()
    sizes: tuple[Value, ...] = operands()
    type: RefType = attr()
    slots: int = attr()

    def infer(self) -> tuple[Any, ...]:
        return (self.type,)


@checks_itself("start", "slots")
def make_tensor_descriptor(ref: Any, shape: Any, start: Any = None, *, slots: int = 2) -> Ref:
    """The part of `ref` from `start` on, of `shape` elements, as a Ref that asynchronous copies and prefetches take.

    `ref`: an argument of the kernel, or a view of one by ints and slices. `shape` and `start` have an entry for each of its
    dimensions: an int, a rank-0 integer value, or None for 'as far as `ref` goes' and for 0. What lies beyond `shape`, or beyond
    `ref`, does not exist: loads fill it and stores drop it, as at an array's end. A start outside of `ref` leaves nothing. So a
    group's rows end where the group does, and a ragged tile needs no mask.

    The result has the shape of `ref`, and its indices count from `start`. Only `kd.copy_gmem_to_smem` with a barrier,
    `kd.copy_smem_to_gmem`, `kd.async_prefetch`, pipelines and `.at` take it. Along the array's innermost axis `start`
    is known to be a multiple of 16 bytes (`kd.multiple_of`), and for stores so is the extent.

    In a loop, `slots` descriptors are used in turn, so that copies through the last `slots - 1` may still be in flight; wait for
    older ones. The kernel is compiled for its number of blocks.

    Raises `BadArgument` for a Ref that is no argument of the kernel, `TmaRule` for what TMA can't do, `BadArgumentType`; other
    accesses of the result raise `DescriptorUse`.
    """
    own = as_ref(ref, _NAME)
    _check(own)
    if isinstance(slots, bool) or not isinstance(slots, int) or not 1 <= slots <= 64:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadArgument(op=_NAME, what=f"slots={shown(slots)}", hint="a static int from 1 to 64")
    extents = [traced_extent(d.size) if is_declared(d.size) else int(d.size) for d in own.dims]
    starts = [0 if n is None else n for n in _entries(start, "start", own.ndim)]
    sizes = [
        n if given is None else given for n, given in zip(extents, _entries(shape, "shape", own.ndim), strict=True)
    ]
    root: RefType = own.type
    at: list[Any] = [_sum(*own.start(axis)) for axis in range(len(root.shape))]
    counts: list[Any] = [1] * len(root.shape)
    promise = current().promise_bounds
    for dim, first, size, extent in zip(own.dims, starts, sizes, extents, strict=True):
        if dim.axis < 0:
            continue
        whole = root.shape[dim.axis]
        left: Any = (traced_extent(whole) if is_declared(whole) else int(whole)) - at[dim.axis]
        count = size if promise else _within(first, size, _least(extent, left))
        counts[dim.axis] = count
        at[dim.axis] = at[dim.axis] + (first if promise else _start(first, count))
    space = allocate_gmem(
        MemorySpec(MemorySpace.GMEM, (current().threads * slots * MAPS * MAP_BYTES,), uint8, per_block=True),
        "descriptors",
    )
    current().aliased.add(own.root)
    made = emit(
        MakeTensorDescriptor(own.root, space.root, tuple(map(_operand, at)), tuple(map(_operand, counts)), root, slots)
    )
    return Ref(made.result, own.dims)


def _check(ref: Ref) -> None:
    if ref.memory_space is not MemorySpace.GMEM or ref.root.op is not None:
        what = f"{ref!r} is no argument of the kernel"
        hint = "pass an input, an output, or a view of one by ints and slices"
        raise BadArgument(op=_NAME, what=what, hint=hint)
    axes = [d.axis for d in ref.dims]
    if any(d.step != 1 for d in ref.dims) or len(set(axes)) != len(axes) or -1 in axes:
        why, hint = "TMA copies boxes of neighbours", "slice with stride 1, and reshape what is copied"
        raise TmaRule(op=_NAME, what=f"{ref!r} is a strided or reshaped view", why=why, hint=hint)


def _entries(given: Any, name: str, rank: int) -> Sequence[Any]:
    """An entry for each dimension: None, an int, or a rank-0 integer value."""
    if given is None:
        return [None] * rank
    entries = list(given) if isinstance(given, (tuple, list)) else [given]
    if len(entries) != rank:
        hint = f"one entry for each of the {rank} dimensions, None for all of it"
        raise BadArgument(op=_NAME, what=f"{len(entries)} entries in `{name}`", hint=hint)
    for entry in entries:
        if entry is not None and not is_index(entry):
            hint = "ints, rank-0 integer values, or None"
            raise BadArgumentType(op=_NAME, what=f"{name} has {shown(entry)}", hint=hint)
        if not isinstance(entry, Array) and entry is not None and not 0 <= int(entry) <= MAX_EXTENT:
            raise BadArgument(op=_NAME, what=f"{name} has {entry}", hint="ints from 0 to 2**32")
    return [_signed(entry) if isinstance(entry, Array) else None if entry is None else int(entry) for entry in entries]


def _signed(entry: Array) -> Any:
    """Without the wrapping of 32-bit and of unsigned arithmetic."""
    return widen(entry if entry.dtype in (dt.int32, dt.int64) else astype(entry, dt.int64))


def _sum(static: int, value: Value | None) -> Any:
    if value is None:
        return static
    return value + static if static else value  # type: ignore[operator]


def _least(a: Any, b: Any) -> Any:
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else minimum(a, b)


def _within(first: Any, size: Any, extent: Any) -> Any:
    """How many of `size` elements from `first` on lie in [0, extent): 0 where `first` does not."""
    if all(isinstance(n, int) for n in (first, size, extent)):
        return max(min(size, extent - first), 0)
    if isinstance(first, int) and first == 0:
        return maximum(_least(size, extent), 0)
    left = extent - first
    count = maximum(_least(size, left), 0)
    known = not isinstance(first, Array) or (first.facts is not None and first.facts.lo >= 0)
    return count if known else where(as_value(first, _NAME) < 0, 0, count)


def _start(first: Any, count: Any) -> Any:
    """Where a part begins: at 0 where it has no elements."""
    if isinstance(count, int):
        return first if count else 0
    return 0 if isinstance(first, int) and not first else where(count > 0, first, 0)


def _operand(number: Any) -> Value:
    return widen(as_value(number, _NAME))

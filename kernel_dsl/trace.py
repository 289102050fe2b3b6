"""Tracing: the body runs once with symbolic values, and every operation on them appends an op to the IR.

Owns the one context variable of the project, and the layouts that are still open while tracing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from math import prod
from typing import Any, TypeVar, cast

from .dataclass import dataclass
from .diagnostics import CostNote, Error, at_user_line
from .errors import (
    NestedTooDeep,
    NotTracing,
    ScratchEnded,
    ValueFromOtherRegion,
    ValueFromOtherTrace,
    ValueTooLarge,
)
from .facts import any_of
from .ir import ArrayType, Op, RefType, Region, Value, Yield, known_of, read_sizes
from .layout import Layout, blocked
from .source import Loc, here
from .values import Array

_O = TypeVar("_O", bound=Op)
LANES = 128  # of a warpgroup
MAX_ELEMENTS = 4096 * LANES  # of a value: eight times what all registers of a multiprocessor hold
MAX_NESTING = 64  # nested regions: each takes some ten frames of Python's stack, which has a thousand


class Scratch(Region):
    """The home of scratch that ends before the region it was allocated in."""


class LayoutVar:
    """A layout that is still open. The first use that needs a layout binds it; else it becomes that of coalesced
    access.

    `vector`: the number of elements that a lane can move in one access of the memory that the value came from; 0: no
    preference. `free`: the layout in which a reshape moves nothing, for every use except a store; and the text of the
    note if a store needs another. `before`: the layout that a loop's carry has before the loop; the carry keeps it unless a
    use needs another.
    """

    __slots__ = ("_bound", "_keepdims", "_reduced", "before", "free", "minor", "shape", "vector")

    def __init__(self, shape: tuple[int, ...], vector: int = 0, minor: int | None = None) -> None:
        self.shape: tuple[int, ...] = shape
        self.vector: int = vector
        self.minor: int | None = minor
        self._bound: LayoutVar | Layout | None = None
        self._reduced: tuple[int, ...] | None = None
        self._keepdims = True
        self.free: tuple[Layout, CostNote] | None = None
        self.before: Layout | None = None

    def root(self) -> LayoutVar | Layout | None:
        """The variable or layout this one was bound to, with reductions left to `peek`."""
        return self._bound

    def bind(self, to: LayoutVar | Layout, reduced: tuple[int, ...] | None = None, keepdims: bool = True) -> None:
        """Bind this layout to `to`, or to `to` reduced along dimensions (kept as extent 1, or not)."""
        assert self._bound is None
        self._bound = to
        self._reduced = reduced
        self._keepdims = keepdims

    def stretches_to(self, to: LayoutVar | Layout, dims: tuple[int, ...]) -> bool:
        """Whether this layout is bound to that of `to`, reduced along `dims`."""
        bound = self._bound
        return bound is not None and find(bound) is to and self._reduced == dims and self._keepdims

    def derived(self, base: Layout) -> Layout:
        """This layout, a reduction of `base`. The result is kept, because `base` is closed."""
        assert self._reduced is not None
        self._bound = base.reduce(self._reduced, self._keepdims)
        self._reduced = None
        return self._bound


def find(layout: LayoutVar | Layout) -> LayoutVar | Layout:
    """The representative: a Layout, or the open variable that stands for this one."""
    while isinstance(layout, LayoutVar):
        bound = layout._bound  # pyright: ignore[reportPrivateUsage]
        reduced = layout._reduced  # pyright: ignore[reportPrivateUsage]
        if bound is None:
            return layout
        if reduced is not None:
            base = find(bound)
            if isinstance(base, LayoutVar):
                return layout
            return layout.derived(base)
        layout = bound
    return layout


def is_open(layout: LayoutVar | Layout) -> bool:
    return isinstance(find(layout), LayoutVar)


def resolve(layout: LayoutVar | Layout) -> Layout:
    """The layout; an open one is bound to the default."""
    found = find(layout)
    if isinstance(found, Layout):
        return found
    bound = found.root()
    if bound is not None:  # open, but bound to the reduction of another one
        resolve(bound)
        return resolve(found)
    if found.free is not None:
        default = found.free[0]
    else:
        default = found.before or blocked(found.shape, max(found.vector, 1), found.minor)
    found.bind(default)
    return default


@dataclass
class Trace:
    """The state of one trace."""

    region: Region
    threads: int = 1
    thread_name: str | None = None
    grid: tuple[int, ...] = ()
    batches: tuple[int, ...] = ()  # the sizes of the grid's first axes, which the body does not see
    axes: dict[str, tuple[str, int, int]] = field(
        default_factory=lambda: cast("dict[str, tuple[str, int, int]]", {})
    )  # name: (kind, position, size)
    approx_math: bool = False
    contract: bool = False  # sums of products have one rounding
    promise_bounds: bool = False
    target: Any = None  # the Target, if the trace picks instructions
    notes: list[CostNote] = field(default_factory=lambda: cast("list[CostNote]", []))
    constants: dict[Any, Value] = field(default_factory=lambda: cast("dict[Any, Value]", {}))
    depth: int = 0
    # wgmma not yet waited for: the accumulator, the register operands, and the region it is in
    in_flight: list[tuple[Value, tuple[Value, ...], Region]] = field(
        default_factory=lambda: cast("list[tuple[Value, tuple[Value, ...], Region]]", [])
    )
    # buffers that also have Refs of another shape, dtype or block: their transforms can't change any more
    aliased: set[Value] = field(default_factory=lambda: cast("set[Value]", set()))
    scopes: int = 0  # scopes of scratch so far
    scope: tuple[int, ...] = ()  # the open scopes whose SMEM may be shared with others
    scratch: Scratch | None = None  # the innermost open one
    max_registers: int | None = None  # of the kernel's parameters
    in_warps: bool = False  # inside warp_map
    mesh: Any = None  # the Meshed of a kernel on several devices
    profile: Any = None  # the Marks of a kernel that is profiled
    at: Loc | None = None  # the line of every op, if the body is not the user's


_current: ContextVar[Trace | None] = ContextVar("kernel_dsl_trace", default=None)


def current() -> Trace:
    """The running trace; raises outside a kernel body."""
    trace = _current.get()
    if trace is None:
        raise at_user_line(NotTracing())
    return trace


def is_tracing() -> bool:
    """Whether a body is being traced."""
    return _current.get() is not None


def profiler() -> Any:
    """The marks of the running trace; None if it is not profiled, or nothing is traced."""
    trace = _current.get()
    return None if trace is None else trace.profile


@contextmanager
def tracing(trace: Trace) -> Generator[Trace]:
    """Make `trace` the running one."""
    token = _current.set(trace)
    trace.region.open = trace
    try:
        yield trace
    finally:
        trace.region.open = None
        _current.reset(token)


def new_value(type: Any, op: Op | None = None, name: str = "") -> Value:
    value = Array(type, op, name) if isinstance(type, ArrayType) else Value(type, op, name)
    trace = _current.get()
    if trace is not None:
        value.home = trace.region
    return value


def emit(op: _O, loc: Loc | None = None) -> _O:
    """Append an op to the current region, with its result types inferred."""
    trace = current()
    if trace.profile is not None and trace.profile.waits(op):
        return trace.profile.around(op, loc)
    op.loc = loc or trace.at or here()
    values = op.values()
    for value in values:
        home = value.home
        if home is not None and home.open is not trace:
            raise _escaped(value, op.loc)
        if value.type.__class__ is RefType and not op.any_size:  # tested for each operand: a call would take time
            read_sizes(value, op, trace.target)
    types = op.infer()
    op.results = tuple([new_value(t, op) for t in types])
    for t, value in zip(types, op.results, strict=True):
        if not isinstance(t, ArrayType):
            continue
        if t.shape and prod(t.shape) > MAX_ELEMENTS:
            raise _too_large(op, t)
        if t.dtype.is_integer:
            value.facts = known_of(op, t.dtype, values) if len(types) == 1 else any_of(t.dtype)
    trace.region.ops.append(op)
    return op


def _too_large(op: Op, t: ArrayType) -> Error:
    lane = -(-prod(t.shape) // LANES)
    return ValueTooLarge(loc=op.loc, op="", type=str(t), lane=lane, limit=MAX_ELEMENTS // LANES)


def _escaped(value: Value, loc: Loc) -> Error:
    """The error for a value whose region, or whose whole trace, has ended."""
    made = value.op.loc if value.op is not None else None
    if isinstance(value.home, Scratch):
        return ScratchEnded(loc=loc, other=made, other_label="made here")
    if value.home is not None and value.home.open is not None:  # a value of the kernel around the one that is traced
        what, hint = "in the body of another kernel", "pass its array to that kernel"
        return ValueFromOtherTrace(loc=loc, other=made, other_label="made here", what=what, hint=hint)
    if value.home is not None and value.home.inner:
        return ValueFromOtherRegion(loc=loc, other=made, other_label="made here")
    what, hint = "after the body ended", "return results through an output Ref"
    return ValueFromOtherTrace(loc=loc, other=made, other_label="made here", what=what, hint=hint)


def at_own_lines(function: Callable[..., Any], *args: Any) -> Any:
    """Call a user's function from a body of this project: its ops get its own lines."""
    trace = current()
    at, trace.at = trace.at, None
    try:
        return function(*args)
    finally:
        trace.at = at


def traced(op: Op) -> Any:
    """Append an op with one result, and return that."""
    return emit(op).results[0]


@contextmanager
def into(region: Region) -> Generator[Region]:
    """Append to another region for a while. Raises `NestedTooDeep`."""
    trace = current()
    if trace.depth >= MAX_NESTING:
        raise NestedTooDeep(limit=MAX_NESTING)
    outer, trace.region = trace.region, region
    constants, trace.constants = trace.constants, {}
    trace.depth += 1
    region.open, region.inner = trace, True
    try:
        yield region
    finally:
        region.open = None
        trace.region = outer
        trace.constants = constants
        trace.depth -= 1


def end_region(region: Region, values: tuple[Value, ...]) -> None:
    """Close a region: append its `yield`."""
    op = Yield(values)
    op.loc = current().at or here()
    region.ops.append(op)


def settle(region: Region) -> None:
    """Close all open layouts of a finished trace."""

    def fix(value: Value) -> None:
        type = value.type
        if isinstance(type, ArrayType) and not isinstance(type.layout, Layout):
            value.type = ArrayType(type.shape, type.dtype, resolve(type.layout))

    stack = [region]
    while stack:
        current_region = stack.pop()
        for value in current_region.args:
            fix(value)
        for op in current_region.ops:
            for value in op.results:
                fix(value)
            fields = vars(op)
            for key in op.attr_fields:
                if isinstance(fields[key], LayoutVar):
                    fields[key] = resolve(fields[key])
            stack.extend(op.region_list())

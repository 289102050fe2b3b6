"""The node types of the IR: types, values, ops, regions and the kernel that holds them. Nothing else.

An op is a class whose declared fields (operands, attributes, regions) are its definition; printing, parsing, hashing
and verification read them. A region is a list of ops with arguments; its last op is a `yield`.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterator
from enum import Enum, Flag, auto
from typing import TYPE_CHECKING, Any, ClassVar, cast, dataclass_transform

from . import dtypes as dt
from .attributes import attribute_type
from .compiled import Swizzle
from .dataclass import dataclass
from .dtypes import DType
from .facts import Range, any_of
from .layout import Layout
from .mapped import is_mapped
from .memory import MemorySpace
from .source import UNKNOWN, Loc
from .target import DEFAULT, Feature, Target

# --- types ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class ArrayType:
    """A value: `shape` and `dtype`, spread over a warpgroup by `layout`.

    While a kernel is being traced the layout may be a `LayoutVar` of trace.py, still open.
    """

    shape: tuple[int, ...]
    dtype: DType
    layout: Any  # Layout once traced

    def __str__(self) -> str:
        dims = ",".join(map(str, self.shape))
        return f"{self.dtype.name}[{dims}]"


@dataclasses.dataclass(frozen=True, slots=True)
class RefType:
    """A buffer. `contiguous`: row-major and gapless (GMEM strides are then not passed to the kernel).

    `alignment`: bytes that the address of element 0 is a multiple of. `written`: whether anything in the kernel may
    store to it or to memory it overlaps. `tiling` and `swizzle` permute SMEM (see memory.py).
    """

    space: MemorySpace
    shape: tuple[int, ...]
    dtype: DType
    contiguous: bool = True
    alignment: int = 16
    written: bool = True
    tiling: tuple[int, ...] = ()
    swizzle: Swizzle = Swizzle.NONE
    name: str = ""

    def __str__(self) -> str:
        dims = ",".join(map(str, self.shape))
        return f"ref<{self.space.value}, {self.dtype.name}[{dims}]>"


@dataclass(frozen=True)
class BarrierType:
    """An array of mbarriers in SMEM, each completing a phase after `arrivals` arrivals.

    `cluster`: groups of cluster axes; an arrival goes to the barrier of every block along any of the groups, or, where one
    is the `leader`, to that of the first block along the group.
    """

    arrivals: int
    shape: tuple[int, ...] = ()
    name: str = ""
    cluster: tuple[tuple[int, ...], ...] = ()
    leader: bool = False

    def __str__(self) -> str:
        return f"barrier<{self.arrivals}>[{','.join(map(str, self.shape))}]"


# --- values and ops ------------------------------------------------------------------------------


class Value:
    """One SSA value: the result of an op, or an argument of a region or of the kernel."""

    __slots__ = ("facts", "home", "name", "op", "type")

    def __init__(self, type: Any, op: Op | None = None, name: str = "") -> None:
        self.type: Any = type
        self.op: Op | None = op
        self.name: str = name
        self.facts: Range | None = None  # facts about an integer, or about every element of an integer array
        self.home: Region | None = None  # the region it was traced in


class Effect(Flag):
    """What an op does beside computing its results."""

    PURE = 0
    READ = auto()
    WRITE = auto()
    SYNC = auto()  # orders or waits


class _Field(Enum):
    OPERAND = 1
    OPERANDS = 2
    ATTR = 3
    REGION = 4
    REGIONS = 5


@dataclass(frozen=True)
class FieldMark:
    kind: _Field
    default: Any = ...
    option: bool = False


def operand() -> Any:
    """A field that holds one value."""
    return FieldMark(_Field.OPERAND)


def operands() -> Any:
    """A field that holds a tuple of values."""
    return FieldMark(_Field.OPERANDS, ())


def attr(default: Any = ...) -> Any:
    """A field that holds a compile-time constant."""
    return FieldMark(_Field.ATTR, default)


def option(default: Any) -> Any:
    """An `attr` that the text leaves out at its default."""
    return FieldMark(_Field.ATTR, default, True)


def region() -> Any:
    """A field that holds a region."""
    return FieldMark(_Field.REGION)


def regions() -> Any:
    """A field that holds a tuple of regions."""
    return FieldMark(_Field.REGIONS)


@dataclass_transform(kw_only_default=False, field_specifiers=(operand, operands, attr, option, region, regions))
class _Declared:
    """For type checkers, which read field declarations as constructor parameters; these two fields are no parameters."""

    results: tuple[Value, ...] = cast("tuple[Value, ...]", ())
    loc: Loc = UNKNOWN


class Op(_Declared):
    """Base of all ops. Class keywords: `name`, `effect`, `requires`.

    `together`: all four warps of a warpgroup run it as one. `remote`: its result is a Ref of another block's SMEM.
    `again`: computing it again in another layout costs less than moving its result. `any_size`: the launch may pass
    extents of its GMEM Refs; `any_dim`: the launch may pass those that are declared as Dims.
    `copies_only`: only asynchronous copies may access the Ref that is its result.
    """

    op_name: ClassVar[str] = ""
    effect: ClassVar[Effect] = Effect.PURE
    reads: ClassVar[bool] = False  # a copy of the effect: to ask a flag takes a microsecond
    writes: ClassVar[bool] = False
    requires: ClassVar[Feature] = Feature(0)
    together: ClassVar[bool] = False
    remote: ClassVar[bool] = False
    again: ClassVar[bool] = False
    copies_only: ClassVar[bool] = False
    any_size: ClassVar[bool] = False
    any_dim: ClassVar[bool] = False
    dim_name: ClassVar[str] = ""  # the name of the Dim whose extent it is
    registry: ClassVar[dict[str, type[Op]]] = {}
    fields: ClassVar[dict[str, FieldMark]] = {}
    value_fields: ClassVar[tuple[tuple[str, bool], ...]] = ()
    field_names: ClassVar[tuple[str, ...]] = ()
    attr_fields: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[frozenset[str]] = frozenset()
    region_fields: ClassVar[tuple[tuple[str, bool], ...]] = ()

    if TYPE_CHECKING:

        def __init_subclass__(
            cls,
            name: str = "",
            effect: Effect | None = None,
            requires: Feature | None = None,
            **keywords: Any,
        ) -> None: ...

    else:

        def __init_subclass__(cls, name="", effect=None, requires=None, **keywords):
            super().__init_subclass__(**keywords)
            own = {k: v for k, v in cls.__dict__.items() if isinstance(v, FieldMark)}
            cls.fields = {**cls.fields, **own}
            for key in own:
                delattr(cls, key)
            kinds = cls.fields.items()
            cls.value_fields = tuple(
                (k, f.kind is _Field.OPERANDS) for k, f in kinds if f.kind in (_Field.OPERAND, _Field.OPERANDS)
            )
            cls.field_names = tuple(cls.fields)
            cls.attr_fields = tuple(k for k, f in kinds if f.kind is _Field.ATTR)
            cls.options = frozenset(k for k, f in kinds if f.option)
            cls.region_fields = tuple(
                (k, f.kind is _Field.REGIONS) for k, f in kinds if f.kind in (_Field.REGION, _Field.REGIONS)
            )
            if effect is not None:
                cls.effect = effect
                cls.reads, cls.writes = bool(effect & Effect.READ), bool(effect & Effect.WRITE)
            if requires is not None:
                cls.requires = requires
            cls.op_name = name
            if name:
                before = Op.registry.setdefault(name, cls)
                if (before.__module__, before.__qualname__) != (cls.__module__, cls.__qualname__):
                    raise ValueError(f"two ops are named {name}")
                Op.registry[name] = cls  # anew, where an interrupt had ended the import of its module

        def __init__(self, *args, **kwargs):
            names = self.field_names
            given = len(args)
            self.__dict__.update(zip(names, args))  # noqa: B905 - fewer arguments than fields is usual
            if given < len(names) or kwargs:
                self._fill(names[given:], kwargs)

        def _fill(self, names, kwargs):
            for key in names:
                if key in kwargs:
                    setattr(self, key, kwargs.pop(key))
                else:
                    default = self.fields[key].default
                    if default is ...:
                        raise TypeError(f"{type(self).__name__} needs {key}")
                    setattr(self, key, default)
            if kwargs:
                raise TypeError(f"{type(self).__name__} has no field {sorted(kwargs)}")

    def infer(self) -> tuple[Any, ...]:
        """The types of the results. Raises an `Error` if the operands don't fit."""
        return ()

    def range(self) -> Range | None:
        """The range of an integer result (of every element), from the ranges of the operands."""
        return None

    def needs(self) -> Feature:
        """The features that this instance needs of the target."""
        return self.requires

    def spoken(self) -> str:
        """The name for messages: the one that users call it by."""
        return self.op_name

    def values(self) -> tuple[Value, ...]:
        """All operands, in the order of the fields."""
        out: list[Value] = []
        fields = self.__dict__
        for key, many in self.value_fields:
            value = fields[key]
            if many:
                out.extend(value)
            elif value is not None:
                out.append(value)
        return tuple(out)

    def region_list(self) -> tuple[Region, ...]:
        """All regions, in the order of the fields."""
        if not self.region_fields:
            return ()
        out: list[Region] = []
        for key, many in self.region_fields:
            value = getattr(self, key)
            out.extend(value if many else (value,))
        return tuple(out)

    @property
    def maps(self) -> bool:
        """Whether it accesses GMEM by a tensor map on every target that can: the launch passes extents to that."""
        return False

    @property
    def low_bits(self) -> bool:
        """Whether the result is low bits of an integer, which are right also where that overflowed."""
        return False

    @property
    def result(self) -> Value:
        """The only result."""
        (only,) = self.results
        return only


def known_of(op: Op, dtype: DType, operands: tuple[Value, ...]) -> Range | None:
    """The range of an op's integer result.

    Only int32 arithmetic is index arithmetic: other arithmetic wraps on overflow.
    """
    found = op.range()
    if found is None or not found.fits(64):  # beyond int64 it could not be computed again
        return any_of(dtype)
    if not found.fits(dtype.bits, dtype.is_signed):
        return found._replace(wide=True) if dtype == dt.int32 else any_of(dtype)
    for value in operands:
        if value.facts is not None and value.facts.wide:
            return found if op.low_bits else found._replace(wide=True)
    return found


class Yield(Op, name="yield"):
    """Ends a region; its operands are the region's results."""

    operands_: tuple[Value, ...] = operands()


@dataclass(eq=False)
class Region:
    """Ops in order, with arguments."""

    args: tuple[Value, ...] = ()
    ops: list[Op] = dataclasses.field(default_factory=lambda: cast("list[Op]", []))
    open: Any = None  # the trace in which its values can be used, until the region ends
    inner: bool = False  # a branch or a loop body

    @property
    def yields(self) -> tuple[Value, ...]:
        """The values that the region's last op yields."""
        last = self.ops[-1] if self.ops else None
        return last.operands_ if isinstance(last, Yield) else ()


@attribute_type
@dataclass(frozen=True)
class Axis:
    """A named axis of the grid or the cluster."""

    name: str
    size: Any  # an int, or the `GridSize` of each launch


@dataclass(eq=False)
class KernelIR:
    """A traced kernel. `params`: the body's arguments that come from the launch, inputs first, then outputs.

    `grid` counts clusters; `cluster` counts blocks. `threads` is the number of warpgroups a block.
    """

    name: str
    params: tuple[Value, ...]
    inputs: int  # how many of `params` are inputs
    body: Region
    grid: tuple[Axis, ...] = ()
    cluster: tuple[Axis, ...] = ()
    threads: int = 1
    thread_name: str | None = None
    approx_math: bool = False
    overlaps: tuple[tuple[int, int], ...] = ()  # arrays, by number, that are the same memory
    loc: Loc = UNKNOWN
    max_registers: int | None = None  # that a lane has at most

    def arrays(self) -> list[Value]:
        """The parameters that are Refs, in order: inputs, then outputs."""
        return [v for v in self.params if isinstance(v.type, RefType)]

    def stand_ins(self) -> dict[Value, Value]:
        """For arrays that overlap others, the one that stands for all: connected arrays count as one memory."""
        arrays = self.arrays()
        found: dict[Value, Value] = {}
        for a, b in self.overlaps:
            first, second = found.get(arrays[a], arrays[a]), found.get(arrays[b], arrays[b])
            if first is not second:
                found |= {array: first for array in arrays if found.get(array, array) is second}
        return found

    def walk(self) -> Iterator[Op]:
        """Every op, outer before inner, in order."""
        return walk_region(self.body)


def walk_region(region: Region) -> Iterator[Op]:
    """Every op of a region and of those inside, outer before inner, in order."""
    stack: list[Iterator[Op]] = [iter(region.ops)]
    while stack:
        op = next(stack[-1], None)
        if op is None:
            stack.pop()
            continue
        yield op
        if op.region_fields:
            for inner in reversed(op.region_list()):
                stack.append(iter(inner.ops))


def buffer_of(ref: Value) -> Value:
    """The buffer of a Ref's root: an allocation or a parameter.

    Ops that make one Ref of another have the other as `ref`.
    """
    while ref.op is not None and "ref" in ref.op.fields:
        ref = ref.op.ref  # type: ignore[attr-defined]
    return ref


def read_sizes(ref: Value, op: Op, target: Target | None) -> None:
    """Make the extents of a Ref's buffer part of the key, except those that the launch may pass to the op: the code needs
    their values.
    """
    type: RefType = ref.type
    maps = op.maps and (target or DEFAULT).supports(Feature.TMA)
    if maps and is_mapped(type.shape, type.contiguous, type.dtype.itemsize):
        return
    for size in type.shape:
        if not (op.any_dim and getattr(size, "declared", False)):
            operator.index(size)


def array_type(value: Value) -> ArrayType:
    """The type of a value that is an array."""
    assert isinstance(value.type, ArrayType), value.type
    return value.type


def layout_of(value: Value) -> Layout:
    """The layout of a value after tracing."""
    layout = array_type(value).layout
    assert isinstance(layout, Layout)
    return layout

"""Specifications of scratch and outputs, which users write before there is a kernel."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from enum import Enum
from math import prod
from typing import Any

import numpy as np

from .arguments import of_dims, static_int, strings
from .attributes import attribute_type
from .boundary import Choices, checks_itself, public
from .compiled import Swizzle
from .dataclass import dataclass
from .diagnostics import shown
from .dtypes import DType, as_dtype
from .errors import BadArgument, BadArgumentType, PackedAccess
from .transforms import fields_of
from .tree import flatten
from .variables import Symbol, binding_is_active


@public
@attribute_type
class MemorySpace(Enum, metaclass=Choices):
    """The memory of a Ref's elements. A call makes a specification of scratch: `kd.SMEM((64, 64), kd.float32)`.

    A specification has a static shape and a dtype. SMEM takes `transforms=`, a tiling and a swizzle. Scratch in GMEM is
    one buffer for all blocks of a launch, or with `per_block=True` one for each block. It is new in each launch and
    uninitialised, and blocks may read each other's stores if something orders them. Raises `BadArgumentType`,
    `BadArgument`, `BadTransform`, `PackedAccess`.
    """

    GMEM = "gmem"
    SMEM = "smem"
    REGS = "regs"

    @checks_itself("transforms")
    def __call__(
        self, shape: Any, dtype: Any, transforms: Sequence[Any] = (), *, per_block: bool = False
    ) -> MemorySpec:
        """A scratch specification: `kd.SMEM((64, 64), kd.float32)` (see `MemorySpec`)."""
        op = self.name
        extents, kind = as_shape(shape, op), as_dtype_of(dtype, op)
        if self is not MemorySpace.SMEM and not (isinstance(transforms, tuple) and not transforms):
            raise BadArgument(op=op, what=f"transforms={shown(transforms)}", hint="only SMEM has transforms")
        if kind.is_packed and (not extents or extents[-1] % 2):
            hint = "make the last extent even: two elements share a byte"
            raise PackedAccess(what=f"a buffer of {kind}{list(extents)}", hint=hint)
        if per_block and self is not MemorySpace.GMEM:
            raise BadArgument(op=op, what="per_block=True", hint="it is for GMEM; every block has its own SMEM")
        return MemorySpec(self, extents, kind, *fields_of(extents, kind, transforms), per_block)


GMEM = MemorySpace.GMEM
SMEM = MemorySpace.SMEM
REGS = MemorySpace.REGS


def as_shape(shape: Any, op: str) -> tuple[int, ...]:
    """A static shape: an int, or a tuple, list or one-dimensional array of ints >= 0.

    A graph's variable becomes its value if it has one, else it stays in the shape (see `settled`).

    Raises `BadArgumentType`, and `BadArgument` for extents below 0 and more elements than 64 bits count.
    """
    if isinstance(shape, np.ndarray) and shape.ndim == 1:
        shape = shape.tolist()
    items: Sequence[Any] = shape if isinstance(shape, (tuple, list)) else (shape,)
    out: list[Any] = []
    for n in items:
        if isinstance(n, Symbol) and not binding_is_active():
            out.append(n)
            continue
        number = static_int(n)
        if number is None:
            hint = "shapes are static: use Python ints"
            if op in ("GMEM", "SemaphoreType"):
                hint += "; or make it one more output in `out_type`, whose shape each call decides"
            hint = of_dims(n, hint)
            raise BadArgumentType(op=op, what=f"the shape {shown(shape)} is not made of ints", hint=hint)
        if number < 0:
            what = f"the shape {shown(shape)} has a negative extent"
            raise BadArgument(op=op, what=what, hint="extents are 0 or more")
        out.append(number)
    known = [n for n in out if not isinstance(n, Symbol)]
    if prod(known) >= 2**63 or any(n >= 2**63 for n in known):
        what = f"the shape {shown(shape)} has more elements than 64 bits count"
        raise BadArgument(op=op, what=what, hint="give a smaller shape")
    return tuple(out)


def settled(shape: tuple[Any, ...], op: str) -> tuple[int, ...]:
    """A shape with the values of its variables.

    Raises `VariableUse` for a variable without a value, outside of a graph.
    """
    if any(isinstance(n, Symbol) for n in shape):
        return as_shape([operator.index(n) for n in shape], op)
    return shape


def as_dtype_of(dtype: Any, op: str) -> DType:
    """The dtype that `dtype` names. Raises `BadArgumentType`."""
    try:
        return as_dtype(dtype)
    except TypeError:
        hint = "use a name such as `kd.float32`, or a NumPy dtype"
        raise BadArgumentType(op=op, what=f"{shown(dtype)} is not a dtype", hint=hint) from None


class ShapeDtypeStruct:
    """The shape and dtype of an array, without data; for an output, `init` fills it before the launch.

    Extents are ints, or a graph's variables and arithmetic on them.

    Raises `BadArgument` or `BadArgumentType` for an impossible shape or dtype.
    """

    __slots__ = ("dtype", "init", "shape")

    def __init__(self, shape: Any, dtype: Any, init: bool | int | float | None = None) -> None:
        self.shape: tuple[int, ...] = as_shape(shape, "ShapeDtypeStruct")
        self.dtype: DType = as_dtype_of(dtype, "ShapeDtypeStruct")
        self.init: bool | int | float | None = init

    @property
    def ndim(self) -> int:
        """The rank."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    def __repr__(self) -> str:
        init = "" if self.init is None else f", init={self.init!r}"
        return f"ShapeDtypeStruct({self.shape}, {self.dtype}{init})"

    def _key(self) -> tuple[Any, ...]:
        return tuple(repr(n) for n in self.shape), self.dtype, repr(self.init)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShapeDtypeStruct) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


def is_leaf(x: Any) -> bool:
    """Whether a leaf of a tree is an array, or describes one."""
    return getattr(x, "shape", None) is not None and hasattr(x, "dtype") and not isinstance(x, type)


def is_array_leaf(x: Any) -> bool:
    """Whether a leaf of a call's arguments is an array, or describes one, also if its shape is none: errors tell of that later.

    NumPy's scalars are numbers: they travel by value.
    """
    return hasattr(x, "shape") and hasattr(x, "dtype") and not isinstance(x, (type, np.generic))


@dataclass(frozen=True)
class MemorySpec:
    """A buffer to allocate in a memory space: made by calling the space, as in `kd.SMEM((64, 64), kd.float32)`."""

    space: MemorySpace
    shape: tuple[int, ...]
    dtype: DType
    tiling: tuple[int, ...] = ()
    swizzle: Swizzle = Swizzle.NONE
    per_block: bool = False  # GMEM only: each block has its own buffer

    @property
    def bytes(self) -> int:
        return -(-prod(self.shape) * self.dtype.bits // 8)


@dataclass(frozen=True)
class Barrier:
    """mbarriers in SMEM, each completing a phase after `num_arrivals` arrivals of warpgroups or copies.

    `num_barriers`: an int or a shape of barriers, or () for a single one that is used without an index.
    `orders_tensor_core`: for tcgen05, which no target here has; False, or `BadArgument`. PTX ISA 9.7.13.15 (mbarrier).
    """

    num_arrivals: int = 1
    num_barriers: int | tuple[int, ...] = ()
    orders_tensor_core: bool = False

    def __post_init__(self) -> None:
        # PTX ISA, mbarrier.init: the count is in [1, 2^20 - 1]
        if not isinstance(self.num_arrivals, int) or not 1 <= self.num_arrivals < 2**20:  # pyright: ignore[reportUnnecessaryIsInstance]
            what = f"num_arrivals is {self.num_arrivals!r}"
            raise BadArgument(op="Barrier", what=what, hint="it goes from 1 to 2**20 - 1")
        _check_order(self.orders_tensor_core, "Barrier")
        as_shape(self.num_barriers, "Barrier")

    @property
    def shape(self) -> tuple[int, ...]:
        """How many barriers there are along each axis; () for one."""
        return as_shape(self.num_barriers, "Barrier")


@dataclass(frozen=True)
class ClusterBarrier:
    """A `Barrier` in every block of a cluster, on which blocks arrive for each other.

    An arrival goes to the barriers of all blocks along `collective_axes`: names of cluster axes, or tuples of names for
    axes taken together; several entries make a cross. A phase takes `num_arrivals` from each of these blocks.
    `leader_tracked`: all blocks arrive on the barrier of the first block along `collective_axes`, and only that block
    waits. It takes one group of axes. `orders_tensor_core`: as of `Barrier`.
    """

    collective_axes: Any
    num_barriers: int | tuple[int, ...] = ()
    num_arrivals: int = 1
    orders_tensor_core: bool = False
    leader_tracked: bool = False

    def __post_init__(self) -> None:
        Barrier(self.num_arrivals, self.num_barriers)
        _check_order(self.orders_tensor_core, "ClusterBarrier")
        given: Any = self.collective_axes
        for group in given if isinstance(given, (tuple, list)) else (given,):
            strings(group, "ClusterBarrier", "collective_axes")

    @property
    def shape(self) -> tuple[int, ...]:
        """How many barriers there are along each axis; () for one."""
        return as_shape(self.num_barriers, "ClusterBarrier")

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The names of the axes, one tuple for each group."""
        given: Any = (self.collective_axes,) if isinstance(self.collective_axes, str) else self.collective_axes
        return tuple((g,) if isinstance(g, str) else tuple(g) for g in given)


def _check_order(given: bool, op: str) -> None:
    """Raise `BadArgument` for `orders_tensor_core`, which is for tcgen05."""
    if given:
        hint = "it is for tcgen05's asynchronous products: `kd.wgmma_wait` orders those of wgmma"
        raise BadArgument(op=op, what="orders_tensor_core=True", hint=hint)


class RefUnion:
    """Scratch that shares memory: all trees of SMEM specifications start at the same address.

    In the body it is a tuple of the trees' Refs: `one, other = union`. Only one may be in use at a time.
    """

    def __init__(self, *trees: Any) -> None:
        if not trees:
            raise BadArgument(op="RefUnion", what="no trees", hint="give the specifications that share memory")
        for leaf in flatten(trees, lambda x: isinstance(x, MemorySpec))[0]:
            if not isinstance(leaf, MemorySpec) or leaf.space is not SMEM:
                hint = "barriers and accumulators can't share memory"
                raise BadArgumentType(op="RefUnion", what=f"{shown(leaf)} is not an SMEM specification", hint=hint)
        self.trees = trees

    def __repr__(self) -> str:
        return f"RefUnion({', '.join(map(repr, self.trees))})"

"""The blocks of GMEM that a pipeline's steps work on: `kd.BlockSpec`, and extents that count elements or are dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from . import dtypes as dt
from .arguments import static_int, strings
from .boundary import called
from .diagnostics import shown
from .errors import BadArgument
from .indices import ds, is_index
from .ir import MemorySpace
from .ops.arith import multiply, subtract
from .ops.cast import constant
from .ops.copy import OOBFillMode
from .refs import Ref
from .values import Array

__all__ = ["BlockSpec", "Element", "Squeezed", "squeezed"]


@dataclass(frozen=True)
class Element:
    """An extent of a block whose index counts elements, not blocks: blocks may overlap, as those of a stencil do.
    `size`: elements of the block. `padding`: (before, after), elements to add at both ends of the axis; index 0 is the
    first added one, and `oob_fill_mode` gives their value. Raises `BadArgument`.
    """

    size: int
    padding: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        if self.size < 1:
            raise BadArgument(
                op="Element", what=f"size={shown(self.size)}", hint="a block has 1 element or more along an axis"
            )
        given: Any = self.padding
        found = [static_int(p) for p in given] if isinstance(given, (tuple, list)) else []
        if len(found) != 2 or any(p is None or p < 0 for p in found):
            raise BadArgument(
                op="Element", what=f"padding={shown(given)}", hint="two ints, 0 or more: before and after"
            )


class Squeezed:
    """An extent of one element whose axis the block lacks: `kd.squeezed`, or None."""

    def __repr__(self) -> str:
        return "squeezed"


squeezed: Squeezed = Squeezed()


class BlockSpec:
    """A block of a GMEM Ref for each step: `block_shape`, and `index_map(*step indices)` giving block indices.

    An entry of None or `kd.squeezed` in `block_shape` picks one element and drops the axis. Indices may be traced
    values. `kd.Element(size, padding)` is an extent whose index counts elements: blocks may start anywhere, overlap,
    and reach past the edges. `transforms`: of the block's buffers in SMEM. `delay_release`: the number of steps after
    its own in which the body may still use an input's block. `collective_axes`: cluster axes whose blocks load the same
    data together. `oob_fill_mode`: the value of elements beyond the array's edge. With `memory_space=kd.GMEM` nothing
    is copied: the body gets the GMEM Ref itself.
    """

    def __init__(
        self,
        block_shape: Sequence[int | Element | Squeezed | None] | None = None,
        index_map: Callable[..., Any] | None = None,
        *,
        memory_space: Any = None,
        transforms: Sequence[Any] = (),
        delay_release: int = 0,
        collective_axes: Any = (),
        oob_fill_mode: OOBFillMode = OOBFillMode.ZEROS,
    ) -> None:
        if delay_release < 0:
            raise BadArgument(op="BlockSpec", what=f"delay_release={delay_release!r}", hint="0 or more steps")
        given: Any = block_shape
        if isinstance(given, (tuple, list)):
            given = tuple([None if isinstance(n, Squeezed) else n for n in cast("Sequence[Any]", given)])
        _check_block(given, index_map)
        if not any(memory_space is space for space in (None, MemorySpace.SMEM, MemorySpace.GMEM)):
            raise BadArgument(op="BlockSpec", what=f"memory_space={shown(memory_space)}", hint="kd.SMEM or kd.GMEM")
        self.block_shape: tuple[int | Element | None, ...] | None = given
        self.index_map = index_map
        self.memory_space = memory_space
        self.transforms: tuple[Any, ...] = tuple(transforms)
        self.delay_release = delay_release
        self.collective_axes: Any = strings(collective_axes, "BlockSpec", "collective_axes")
        self.oob_fill_mode = oob_fill_mode

    def __repr__(self) -> str:
        default = BlockSpec()
        given = [f"{k}={v!r}" for k, v in vars(self).items() if k != "index_map" and v != getattr(default, k)]
        if self.index_map is not None:
            given.append(f"index_map={getattr(self.index_map, '__name__', self.index_map)}")
        return f"BlockSpec({', '.join(given)})"

    def shape_for(self, ref: Ref) -> tuple[int | None, ...]:
        """The extents of a block of `ref`, in elements, None for squeezed axes; those of `ref` without a `block_shape`."""
        if self.block_shape is None:
            return tuple(ref.shape)
        return tuple(n.size if isinstance(n, Element) else n for n in self.block_shape)

    @property
    def may_overlap(self) -> bool:
        """Whether blocks of neighbouring steps may share elements."""
        return any(isinstance(n, Element) for n in self.block_shape or ())

    def indices(self, steps: Sequence[Any], rank: int) -> tuple[Any, ...]:
        """Block indices at a step."""
        if self.index_map is None:
            return tuple(steps) if self.block_shape is not None else (0,) * rank
        out: Any = called(self.index_map, tuple(steps), "BlockSpec", "index_map", "index_map(*grid_indices)")
        return tuple(cast("Sequence[Any]", out)) if isinstance(out, (tuple, list)) else (out,)

    def block(self, ref: Ref, steps: Sequence[Any], op: str) -> Ref:
        """The block of `ref` at a step. Raises `BadArgument`."""
        shape = self.shape_for(ref)
        index = self.indices(steps, ref.ndim)
        if not len(shape) == len(index) == ref.ndim:
            what = f"a block of shape {shape} with {len(index)} indices, of a rank-{ref.ndim} Ref"
            raise BadArgument(op=op, what=what, hint="give one extent and one index an axis")
        given = self.block_shape or shape
        return ref.slice(tuple(_part(i, n) for i, n in zip(index, given, strict=True)))


def _part(index: Any, extent: int | Element | None) -> Any:
    """The part of an axis that a block takes."""
    if extent is None:
        # a static -1 would count from the end in the steps whose index is static, and lie outside in all others
        return constant(index, dt.int32) if isinstance(index, int) and index < 0 else index
    if not isinstance(extent, Element):
        return ds(multiply(index, extent), extent)
    before = extent.padding[0]
    return ds(subtract(index, before) if before else index, extent.size)


def is_extent(n: Any) -> bool:
    return is_index(n) and not isinstance(n, Array) and n >= 0


def _check_block(shape: Any, index_map: Any) -> None:
    """Raise `BadArgument` for an impossible shape, or an index map that can't be called."""
    if shape is not None:
        given = isinstance(shape, (tuple, list))
        extents: Sequence[Any] = cast("Sequence[Any]", shape) if given else ()
        if not given or any(not (n is None or isinstance(n, Element) or is_extent(n)) for n in extents):
            hint = "a tuple of extents, `kd.Element(size)`, or `kd.squeezed` (None) to drop an axis"
            raise BadArgument(op="BlockSpec", what=f"block_shape={shown(shape)}", hint=hint)
    if index_map is not None and not callable(index_map):
        raise BadArgument(op="BlockSpec", what=f"index_map={shown(index_map)}", hint="a function of the grid's indices")


def grid_of(grid: Any, op: str) -> tuple[Any, ...]:
    """The extents of a pipeline's grid. Raises `BadArgument` for objects that are no extents."""
    given = isinstance(grid, (tuple, list))
    extents: tuple[Any, ...] = tuple(cast("Sequence[Any]", grid)) if given else ()
    if not given or any(not is_extent(n) and not (isinstance(n, Array) and is_index(n)) for n in extents):
        hint = "a tuple of ints, 0 or more, or rank-0 integer values"
        raise BadArgument(op=op, what=f"grid={shown(grid)}", hint=hint)
    return tuple(n if isinstance(n, Array) else int(n) for n in extents)

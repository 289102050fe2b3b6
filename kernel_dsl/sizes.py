"""The sizes of a call that a kernel's code depends on: extents and grid, before and after the trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from .compiled import ANY, Condition
from .conditions import plain
from .dataclass import dataclass
from .definition import Definition, Input, axes, is_leaf, output_structs
from .dims import Again, facts_of
from .errors_dims import unknown
from .extent_symbols import ExtentSymbol, top_of
from .extents import GRID, WIDE, DimExtent, Extent, GridSize, Reads, Top, Unread, is_declared, now
from .ir import Axis, KernelIR, RefType
from .memory import ShapeDtypeStruct
from .packed import stored_struct
from .scalar_struct import ScalarStruct
from .shapes import Shape
from .source import is_ours
from .tree import flatten, unflatten
from .variables import Variable, binding_is_active, substituted, unbound, variables


@dataclass(frozen=True)
class Sizes:
    """The shapes of a call's arrays, inputs and then outputs, and its grid."""

    shapes: tuple[tuple[int, ...], ...]
    grid: tuple[int, ...]
    sampled: bool = False  # whether some are examples of values of Dims: in `lower` of specs with Dims

    def places(self) -> list[tuple[int, int]]:
        """All of them, as (array, axis)."""
        arrays = [(a, axis) for a, shape in enumerate(self.shapes) for axis in range(len(shape))]
        return arrays + [(GRID, axis) for axis in range(len(self.grid))]


def exact(sizes: Sizes) -> tuple[Condition, ...]:
    """The condition that a call has all of these sizes."""
    return tuple(Condition("size", place) for place in sizes.places())


@dataclass(frozen=True)
class Geometry:
    """The outputs, grid and cluster of a call, from its inputs."""

    outs: list[ShapeDtypeStruct | None]
    out_structure: Any
    grid: tuple[Axis, ...]
    cluster: tuple[Axis, ...]
    by_value: bool = False  # whether values of scalars decide a part of it
    sampled: bool = False  # see `Sizes`

    def sizes(self, inputs: Sequence[Input]) -> Sizes:
        """All sizes of the call; `inputs` have the other shapes."""
        shapes: list[tuple[int, ...]] = [cast("Any", i).shape for i in inputs if hasattr(i, "contiguous")]
        shapes += [o.shape for o in self.outs if o is not None]
        return Sizes(tuple(shapes), tuple(a.size for a in self.grid), self.sampled)

    def key(self) -> Any:
        """The parts, without sizes, that a kernel depends on."""
        outs = [None if o is None else (len(o.shape), o.dtype, repr(o.init)) for o in self.outs]
        return outs, repr(self.out_structure), len(self.grid), tuple(a.size for a in self.cluster)


def geometry(definition: Definition, structs: Any, told: Any = None) -> Geometry:
    """Outputs, grid and cluster for inputs like these.

    Raises the errors of `out_type`, `grid` and `cluster`. `told`: the inputs' structs with Dims, if there are any.
    """
    outs, structure = output_structs(definition, structs, told)
    outs = [stored_struct(o) for o in outs]
    dims = definition.shapes.values(structs) if definition.shapes else {}
    structs = structs if told is None else told
    grid = axes(definition.grid, definition.grid_names, "grid", structs, dims)
    return Geometry(outs, structure, grid, axes(definition.cluster, definition.cluster_names, "cluster", structs, dims))


class SizePlan:
    """The sizes that a trace takes as constants, `read`. In the trace, all others are `Extent`s and `GridSize`s."""

    def __init__(
        self, definition: Definition, inputs: Sequence[Input], structure: Any, made: Geometry, limits: Any
    ) -> None:
        self.geometry: Geometry = made
        self.definition: Definition = definition
        self.structure: Any = structure
        self.given: list[Input] = list(inputs)
        self.outs: list[ShapeDtypeStruct | None] = made.outs
        self.out_structure: Any = made.out_structure
        self.cluster: tuple[Axis, ...] = made.cluster
        self.sizes: Sizes = made.sizes(inputs)
        self.inputs: int = sum(hasattr(i, "contiguous") for i in inputs)
        self.read: set[tuple[int, int]] = set()
        self.links: dict[tuple[int, int], tuple[int, int]] = {}  # extents of outputs that equal extents of inputs
        self.tops: dict[int, Top] = {}  # upper bounds of axes of the grid
        self.fixed: set[tuple[int, int]] = set()  # sizes that are the same in each call
        self.parts: dict[tuple[int, int], set[tuple[int, int]]] = {}  # extents that a size is computed from
        self.dims: dict[tuple[int, int], Variable] = {}  # places of Dims, the first of each
        self._declare()
        self._start()
        # a library kernel is made for a problem with its sizes; a kernel of a batch for the sizes of its members
        exact = definition.every_size or definition.batches or is_ours(getattr(definition.body, "__code__", None))
        # two elements a byte: the extent in bytes is half of that in elements
        packed = any(getattr(x, "packed", None) for x in (*inputs, *self.outs))
        if exact or packed or (binding_is_active() and not definition.shapes):
            self.read_all()
        else:
            with unbound():
                self._look_through()
            if len(self.sizes.grid) > 3 or not plain(self.sizes.grid, limits):
                # axes share a register: the code contains their divisors
                self.read |= {place for place in self._places() if place[0] == GRID}

    # --- before the trace -------------------------------------------------------------------------

    def _places(self) -> list[tuple[int, int]]:
        return self.sizes.places()

    @property
    def open(self) -> bool:
        """Whether some sizes are not constants of the trace."""
        closed = self.read | self.fixed | self._declared() | self._computed()
        return any(place not in closed for place in self._places())

    def _declare(self) -> None:
        """Apply the declarations of `shapes=`."""
        shapes = self.definition.shapes
        if not shapes:
            return
        places = shapes.places(self._array_numbers())
        first: dict[str, tuple[int, int]] = {}
        for place in sorted(places):
            extent = places[place]
            if not isinstance(extent, Variable):
                self.fixed.add(place)
            elif extent.name in first:
                self.links[place] = first[extent.name]
            else:
                first[extent.name] = place
                self.dims[place] = extent

    def _array_numbers(self) -> list[int | None]:
        """For each of the body's parameters that is an array: its number among the arrays."""
        out: list[int | None] = []
        count = 0
        leaves = iter(self.given)
        parts = self.structure if isinstance(self.structure, (tuple, list)) else (self.structure,)
        for part in cast("Sequence[Any]", parts):
            arrays = [hasattr(next(leaves), "contiguous") for _ in flatten(part)[0]]
            out.append(count if arrays == [True] else None)
            count += sum(arrays)
        outs = unflatten(self.out_structure, self.outs)
        for part in outs if isinstance(self.out_structure, (tuple, list)) else (outs,):
            held = sum(o is not None for o in flatten(part, lambda x: hasattr(x, "shape"))[0])
            out.append(count if held == 1 else None)
            count += held
        return out

    def _declared(self) -> set[tuple[int, int]]:
        """Places whose extents are Dims that nothing has read."""
        own = {place for place in self.dims if place not in self.read}
        return own | {place for place, to in self.links.items() if to in own}

    def specialise(self, names: set[str]) -> dict[str, int]:
        """The values of the Dims of these names.

        The trace starts again first. Raises `DimRead` for a Dim without a value.
        """
        new = {place for place, dim in self.dims.items() if dim.name in names and place not in self.read}
        for place in new:
            if self.sizes.sampled:
                raise unknown(self.dims[place].name)
        if new:
            self.reads.values |= new
            raise Again
        return {
            dim.name: self.sizes.shapes[array][axis] for (array, axis), dim in self.dims.items() if dim.name in names
        }

    def read_all(self) -> None:
        """Make all sizes constants, except Dims and sizes that are computed from Dims alone."""
        if self.definition.shapes and not self.parts:
            with unbound():
                self._look_through()
        self.read = set(self._places()) - self._declared() - self._computed()
        self._start()

    def _computed(self) -> set[tuple[int, int]]:
        """Axes of the grid that are computed from Dims alone, or by a function."""
        own = {place for place in self.dims if place not in self.read}
        if own and callable(self.definition.grid):
            return {place for place in self._places() if place[0] == GRID}
        return {place for place, of in self.parts.items() if place[0] == GRID and of and of <= own}

    def read_again(self) -> None:
        """Trace again, with all sizes that were read as constants."""
        self.read |= self.reads.values
        self._start()

    def _start(self) -> None:
        self.reads: Reads = Reads()
        self.made: dict[tuple[int, int], Unread] = {}

    def _look_through(self) -> None:
        """Call `out_type` and `grid` with symbols in place of extents, to see how their results depend on these."""
        definition = self.definition
        leaves: list[Any] = []
        array = 0
        for leaf in self.given:
            struct = leaf.struct()
            if hasattr(leaf, "contiguous"):
                struct.shape = cast("Any", tuple)(self._symbol(array, axis) for axis in range(len(struct.shape)))
                array += 1
            leaves.append(struct)
        structs = unflatten(self.structure, leaves)
        if definition.shapes and not _is_function(definition.out_type):
            self._link(lambda *_: definition.out_type, structs)
        elif not _is_function(definition.out_type):
            self.fixed |= {p for p in self._places() if p[0] >= self.inputs}
        else:
            self._link(definition.out_type, structs)
        if definition.shapes and not callable(definition.grid):
            self._bound(lambda *_: definition.grid, structs)
        elif not callable(definition.grid):
            self.fixed |= {p for p in self._places() if p[0] == GRID}
        else:
            self._bound(definition.grid, structs)

    def _symbol(self, array: int, axis: int) -> Any:
        """The argument of a function of shapes for an extent: its Dim, its int, or a symbol."""
        place = self.links.get((array, axis), (array, axis))
        if place in self.dims:
            return self.dims[place]
        return self.sizes.shapes[array][axis] if place in self.fixed else ExtentSymbol(self._bare(place))

    def _bare(self, place: tuple[int, int]) -> Extent:
        dim = self.dims.get(place)
        return Extent(*place) if dim is None else DimExtent(*place, *facts_of(dim), dim.name)

    def _of_extents(self, size: Any) -> Any:
        """A size with extents in the place of Dims."""
        symbols = {dim.name: ExtentSymbol(self._bare(place)) for place, dim in self.dims.items()}
        return substituted(size, lambda v: symbols.get(v.name, v))

    def _link(self, out_type: Any, structs: Any) -> None:
        try:
            made = flatten(out_type(*structs), is_leaf)[0]
            shapes = [tuple(leaf.shape) for leaf in made if leaf is not None]
        except Exception:  # it needs values: then each call asks it
            return
        if [len(s) for s in shapes] != [len(s) for s in self.sizes.shapes[self.inputs :]]:
            return
        for number, shape in enumerate(shapes, self.inputs):
            for axis, given in enumerate(shape):
                if (number, axis) in self.fixed or (number, axis) in self.links or (number, axis) in self.dims:
                    continue  # declared
                size = self._of_extents(given)
                if isinstance(size, int) and not _is_function(self.definition.out_type):
                    self.fixed.add((number, axis))
                self.parts[number, axis] = _places_in(size)
                if isinstance(size, ExtentSymbol) and self._value(size.extent) == self.sizes.shapes[number][axis]:
                    self.links[number, axis] = size.extent.place

    def _bound(self, grid: Any, structs: Any) -> None:
        try:
            sizes = grid(*structs)
            found = tuple(sizes) if isinstance(sizes, (tuple, list)) else (sizes,)
            found = tuple(self._of_extents(size) for size in found)
            tops = [top_of(size) for size in found]
        except Exception:
            return
        if len(tops) != len(self.sizes.grid):
            return
        for axis, top in enumerate(tops):
            if isinstance(found[axis], ScalarStruct):  # the value of each call, which no extents decide
                continue
            self.parts[GRID, axis] = _places_in(found[axis])
            if top is not None and self.sizes.grid[axis] * top.den <= top.num * self._value(top.extent) + top.const:
                self.tops[axis] = top

    @property
    def constants(self) -> tuple[tuple[int, int, int], ...]:
        """The sizes that the code has as constants: (array, axis, size), or (GRID, axis, size)."""
        return tuple(sorted((*place, self._size(place)) for place in self.read | self.fixed))

    def _size(self, place: tuple[int, int]) -> int:
        array, axis = place
        return self.sizes.grid[axis] if array == GRID else self.sizes.shapes[array][axis]

    def _value(self, extent: Extent) -> int:
        return self.sizes.shapes[extent.array][extent.axis]

    # --- what the trace sees ----------------------------------------------------------------------

    def _extent(self, array: int, axis: int) -> Any:
        place = self.links.get((array, axis), (array, axis))
        value = self.sizes.shapes[array][axis]
        if place in self.read or (array, axis) in self.read or (array, axis) in self.fixed:
            return value
        if place not in self.made:
            self.made[place] = self._bare(place).traced(value, self.reads)
        return self.made[place]

    def shape(self, array: int) -> tuple[Any, ...]:
        """The shape of an array in the trace."""
        return tuple(self._extent(array, axis) for axis in range(len(self.sizes.shapes[array])))

    def axes(self) -> tuple[Axis, ...]:
        """The axes of the grid in the trace."""
        return tuple(Axis(a.name, self._axis(number)) for number, a in enumerate(self.geometry.grid))

    def _axis(self, number: int) -> Any:
        place, value = (GRID, number), self.sizes.grid[number]
        if place in self.read or place in self.fixed:
            return value
        top = self.tops.get(number)
        if top is not None:
            own = self._extent(*top.extent.place)
            top = replace(top, extent=own) if isinstance(own, Extent) else None
        if place not in self.made:
            self.made[place] = GridSize(number, top).traced(value, self.reads)
        return self.made[place]

    def structs(self) -> Any:
        """The inputs' structs for functions whose results are part of the code. Extents that they use count as read."""
        leaves: list[Any] = []
        array = 0
        for leaf in self.given:
            struct = leaf.struct()
            if hasattr(leaf, "contiguous"):
                if struct.dtype == leaf.dtype:  # packed elements have a known number
                    struct.shape = Shape.of(tuple(self._told(n) for n in self.shape(array)))
                array += 1
            leaves.append(struct)
        return unflatten(self.structure, leaves)

    def _told(self, size: Any) -> Any:
        return self.dims[size.place] if is_declared(size) else size

    # --- after the trace --------------------------------------------------------------------------

    def finish(self, ir: KernelIR) -> None:
        """Put in the values that were read. The other symbols lose their values."""
        for place in self.reads.mapped - self.reads.values:
            cast("Extent", self.made[place]).keep(self.reads)
        if self.made:
            for value in ir.params:
                if isinstance(value.type, RefType):
                    value.type = _settled(value.type)
            # Refs of the same buffer with another type: the ops that made them have read its extents
            for op in ir.walk():
                if "type" in op.fields and isinstance(op.type, RefType):  # type: ignore[attr-defined]
                    op.type = op.result.type = _settled(op.type)  # type: ignore[attr-defined]
            ir.grid = tuple(replace(a, size=now(a.size)) for a in ir.grid)
        self.read |= self.reads.values

    @property
    def free(self) -> bool:
        """Whether some sizes come from each call."""
        return any(size.known is None for size in self.made.values())

    def derive(self) -> None:
        """Count sizes that are computed from read sizes as read, too."""
        known = self.read | self.reads.values
        given = {place for place in self._places() if 0 <= place[0] < self.inputs}
        given |= {(GRID - 1, 0)} if self.geometry.by_value else set()
        for place in self.made.keys() - self.dims.keys():
            if (place[0] == GRID or place[0] >= self.inputs) and self.parts.get(place, given) <= known:
                self.reads.values.add(place)

    def close(self) -> None:
        """End the trace: later reads of values are errors."""
        for made in self.made.values():
            made.forget()

    def outside(self, array: int) -> tuple[int, ...]:
        """The shape of an array in the compiled kernel, with `ANY` for extents that come from each call."""
        shape = (now(size) for size in self.shape(array))
        return tuple(size if isinstance(size, int) else ANY for size in shape)

    def conditions(self) -> tuple[Condition, ...]:
        """The conditions that another call must meet to run this code."""
        if not self.free:
            return exact(self.sizes)
        out: list[Condition] = []
        for place in self._places():
            linked = self.links.get(place)
            if place in self.fixed or place in self._declared():
                continue
            if place in self.read:
                out.append(Condition("size", place))
            elif linked is not None:
                out.append(Condition("same", (*place, *linked)))
            else:
                if place in self.reads.divisors:
                    out.append(Condition("unit", (*place, self.reads.divisors[place])))
                if place in self.reads.leasts:
                    out.append(Condition("least", (*place, self.reads.leasts[place])))
                if place in self.reads.widths:
                    out.append(Condition("least", (*place, WIDE)))
        live = [a for a in range(len(self.sizes.grid)) if {(GRID, a)}.isdisjoint(self.read | self.fixed)]
        for axis in live:
            top = self.tops.get(axis)
            if top is not None:
                out.append(Condition("top", (axis, *top.extent.place, top.num, top.den, top.const)))
        out += [Condition("points", (most, *axes)) for axes, most in self.reads.points.items()]
        if live or (self.dims and not out):  # an empty tuple would mean all sizes of the call
            out.append(Condition("plain"))
        return tuple(out)


def _places_in(size: Any) -> set[tuple[int, int]]:
    """The extents that a size is computed from; other sources count as one extent that is never read."""
    found = variables(size).values()
    return {(v.extent.array, v.extent.axis) if isinstance(v, ExtentSymbol) else (GRID - 1, 0) for v in found}


def _is_function(out_type: Any) -> bool:
    return callable(out_type) and not is_leaf(out_type)


def _settled(type: RefType) -> RefType:
    if not any(isinstance(n, Extent) for n in cast("tuple[Any, ...]", type.shape)):
        return type
    return replace(type, shape=tuple(now(size) for size in type.shape))

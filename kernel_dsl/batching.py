"""`kd.vmap`: a kernel over a batch of its inputs, as one more axis of its grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from .boundary import checks_itself
from .definition import Definition, output_structs
from .diagnostics import shown
from .dims import settle_dims
from .errors import BadArgument, BadArgumentType, KernelValue
from .kernel import Kernel, remade
from .memory import ShapeDtypeStruct
from .tree import flatten, pictured, unflatten

__all__ = ["vmap"]


class MappedBatch:
    """How a kernel's inputs are taken apart and its outputs put together: `in_axes` as given to `vmap`."""

    def __init__(self, inner: Definition, in_axes: int | tuple[Any, ...]) -> None:
        self.inner = inner
        self.in_axes = in_axes

    def out_type(self, *structs: Any) -> Any:
        """The outputs of the inner kernel, each with a leading axis."""
        size, parts = self._parts(structs)
        leaves, structure = output_structs(self.inner, parts)
        whole = [None if s is None else ShapeDtypeStruct((size, *s.shape), s.dtype, s.init) for s in leaves]
        return unflatten(structure, whole)

    def grid(self, *structs: Any) -> tuple[Any, ...]:
        """The grid: the axis of the batch, then the inner kernel's axes."""
        size, parts = self._parts(structs)
        own: Any = self.inner.grid(*parts) if callable(self.inner.grid) else self.inner.grid
        if self.inner.shapes:
            own = settle_dims(own, self.inner.shapes.values(parts))
        return (size, *(own if isinstance(own, (tuple, list)) else (own,)))

    def of_parts(self, function: Any) -> Any:
        """A function of the inner kernel's structs as a function of the structs with batches."""
        from .ops.scope import is_spec

        return (
            (lambda *structs: function(*self._parts(structs)[1]))
            if callable(function) and not is_spec(function)
            else function
        )

    def inputs(self, args: Sequence[Any], index: Any) -> list[Any]:
        """The part of each input that belongs to a member of the batch."""
        return [_each(arg, axis, lambda ref, a: _member(ref, a, index)) for arg, axis in self._pairs(args)]

    def outputs(self, outs: Any, index: Any) -> Any:
        return _each(outs, 0, lambda ref, a: _member(ref, a, index))

    def _pairs(self, args: Sequence[Any]) -> list[tuple[Any, Any]]:
        """Each argument with its axis, or nest of axes. Raises `KernelValue`."""
        if not isinstance(self.in_axes, tuple):
            return [(arg, self.in_axes) for arg in args]
        if len(args) != len(self.in_axes):
            what = f"vmap: {len(self.in_axes)} in_axes for {len(args)} input{'s' * (len(args) != 1)}"
            raise KernelValue(what=what, hint="give one axis, or None, an input; or one int for all")
        return list(zip(args, self.in_axes, strict=True))

    def _parts(self, structs: Sequence[Any]) -> tuple[int, list[Any]]:
        """The batch's size, and the inner kernel's inputs as structs. Raises `KernelValue`."""
        sizes: dict[int, None] = {}

        def part(struct: Any, axis: int) -> Any:
            rank = len(struct.shape)
            if not -rank <= axis < rank:
                what = f"vmap: axis {axis} of an input of shape {struct.shape}"
                raise KernelValue(
                    what=what, hint="an input without such an axis is shared: give None for it in in_axes"
                )
            sizes[struct.shape[axis]] = None
            at = axis % rank
            return ShapeDtypeStruct((*struct.shape[:at], *struct.shape[at + 1 :]), struct.dtype)

        parts = [_each(struct, axis, part) for struct, axis in self._pairs(structs)]
        if len(sizes) != 1:
            found = " and ".join(map(str, sizes)) or "no input has a mapped axis"
            raise KernelValue(
                what=f"vmap: batches of {found}", hint="all mapped axes have one extent, and one input has one"
            )
        return next(iter(sizes)), parts


def _each(tree: Any, axes: Any, make: Any) -> Any:
    """`make(leaf, axis)` for each leaf with an axis; the others stay. `axes`: one for all leaves, or a nest as the tree is."""
    if axes is None:
        return tree
    if isinstance(axes, int):
        leaves, structure = flatten(tree)
        return unflatten(structure, [make(leaf, axes) for leaf in leaves])
    if isinstance(axes, Mapping) and isinstance(tree, Mapping):
        named, parts = cast("Mapping[Any, Any]", axes), cast("Mapping[Any, Any]", tree)
        if named.keys() == parts.keys():
            return {key: _each(part, named[key], make) for key, part in parts.items()}
    if isinstance(axes, (tuple, list)) and isinstance(tree, (tuple, list)):
        listed, items = cast("Sequence[Any]", axes), cast("Sequence[Any]", tree)
        if len(listed) == len(items):
            made = [_each(item, axis, make) for item, axis in zip(items, listed, strict=True)]
            return type(items)(*made) if hasattr(items, "_fields") else cast("Any", type(items))(made)
    what = f"vmap: in_axes has {shown(axes)} for an input that is {pictured(flatten(tree)[1])}"
    raise KernelValue(
        what=what, hint="give an int or None for the input, or a nest of them with the input's keys and lengths"
    )


def _member(ref: Any, axis: int, index: Any) -> Any:
    return ref.slice((*(slice(None) for _ in range(axis % ref.ndim)), index))


@checks_itself("kernel", "in_axes")
def vmap(kernel: Any, in_axes: Any = 0) -> Kernel:
    """A kernel that runs `kernel` for each member of a batch: the grid gets a leading axis of members.

    `in_axes`: an int, the axis of members in every input; or a tuple with an entry for each input. An entry is an int,
    or None for an input that all members share. For an input that is a nest of tuples, lists and dicts, an int or None
    is for all its arrays, and a nest of them gives each array its own. Outputs have a leading axis of members.
    `program_id`, `axis_index` and global semaphores in the body are those of one member. Raises `BadArgumentType`; the
    call raises `KernelValue` where batches or nests differ.
    """
    if not isinstance(kernel, Kernel):
        raise BadArgumentType(op="vmap", what=f"{shown(kernel)} is no kernel", hint="map what `@kd.kernel(...)` made")
    axes = tuple(in_axes) if isinstance(in_axes, (tuple, list)) else in_axes
    leaves, _ = flatten(axes)
    if isinstance(axes, Mapping) or any(isinstance(axis, bool) or not isinstance(axis, int) for axis in leaves):
        hint = "an int, or a tuple with an int or None an input, or a nest of them for an input that is one"
        raise BadArgumentType(op="vmap", what=f"in_axes={shown(in_axes)}", hint=hint)
    if not leaves:
        raise BadArgument(op="vmap", what=f"in_axes={shown(in_axes)}", hint="one input or more must have a mapped axis")
    return remade(kernel, lambda inner: _mapped(inner, MappedBatch(inner, axes)))


def _mapped(inner: Definition, batch: MappedBatch) -> Definition:
    return replace(
        inner,
        out_type=batch.out_type,
        grid=batch.grid,
        grid_names=("", *inner.grid_names) if inner.grid_names else (),
        cluster=batch.of_parts(inner.cluster),
        scratch_types=batch.of_parts(inner.scratch_types),
        batches=(batch, *inner.batches),
        identity="",
        shapes=None,  # a member's `shapes=` is checked when the batch is taken apart
    )

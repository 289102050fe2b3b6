"""Checks of the arguments of grouped products: errors at the caller's line, before anything is compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

import kernel_dsl as kd
from kernel_dsl.diagnostics import of_kind, shown
from kernel_dsl.dtypes import DType, as_dtype
from kernel_dsl.errors import BadCallArgument, BadCallValue, LibraryDType, LibraryShape

from ..activations import GATES
from ..product_kernels.scaled_product import DEPTH
from ..products.arguments import out_dtype_of
from ..products.matmul_config import MatmulConfig, check_counts, check_tiles
from ..products.matmul_options import MatmulOptions, form_of, halves
from ..products.problem import Axes, EpilogueStep
from ..refusals import kind_and_shape, on_host, shape_of
from .tiles import MOST

NAME, WGRAD = "grouped_matmul", "grouped_matmul_wgrad"
_ARRAY = "an array of NumPy, CuPy, PyTorch or JAX"


def refuse_shape(what: str, hint: str, kernel: str = NAME) -> LibraryShape:
    """The error for a shape that does not fit the other arrays."""
    return LibraryShape(kernel=kernel, what=what, hint=hint)


def refuse(what: str, hint: str, kernel: str = NAME) -> BadCallValue:
    """The error for a value that does not fit."""
    return BadCallValue(kernel=kernel, what=what, hint=hint)


def check_array(x: Any, name: str, rank: int, hint: str, dtype: DType | None = None, kernel: str = NAME) -> None:
    """Raise `BadCallArgument` for an object that is no array of real numbers with `rank` axes (of `dtype`, if one is given)."""
    shape = getattr(x, "shape", None)
    packed = hasattr(x, "described")  # a matrix of the library's own kinds
    if packed or not isinstance(shape, tuple) or not hasattr(x, "dtype") or len(cast("tuple[Any, ...]", shape)) != rank:
        raise BadCallArgument(kernel=kernel, what=f"{name} is {kind_and_shape(x)}", hint=hint)
    found = as_dtype(x.dtype)
    if dtype is not None and found != dtype:
        raise LibraryDType(kernel=kernel, what=f"{name} is {found}", hint=f"it is {dtype}")
    if found.name.startswith("complex"):
        raise BadCallArgument(kernel=kernel, what=f"{name} is {found}", hint="groups are of real numbers")


def _of_groups(name: str, x: Any) -> bool:
    """Whether an argument is a scale for each group, which both parts of a pair share."""
    return name == "b_scale" and len(shape_of(x)) == 1


class GroupedOptions(NamedTuple):
    """The arguments of a call beside a and b."""

    group_sizes: Any = None
    offsets: Any = None
    indices: Any = None
    scatter: Any = None
    weights: Any = None
    a_scale: Any = None
    b_scale: Any = None
    bias: Any = None
    activation: Any = None
    gated: Any = None
    out_dtype: Any = None
    config: MatmulConfig | None = None

    @property
    def given(self) -> Any:
        """The sizes or the offsets."""
        return self.offsets if self.group_sizes is None else self.group_sizes

    def rights(self, b: Any) -> list[Any]:
        """The right sides: b, or the gate and the gated matrix."""
        return [b] if self.gated is None else list(halves(b))

    def like(self, b: Any) -> tuple[Any, ...]:
        """The key of a call: calls with equal keys launch the same kernels for arrays of this kind."""
        return (
            self.activation, self.gated, self.out_dtype, self.config, getattr(self.weights, "shape", None),
            form_of(b), form_of(self.b_scale), form_of(self.bias), self.group_sizes is None, self.offsets is None,
            self.indices is None, self.scatter is None, self.a_scale is None,
        )  # fmt: skip

    def own(self, number: int) -> list[tuple[str, Any]]:
        """The steps of product number `number` alone, in order."""
        items = [("a_scale", self.a_scale), ("b_scale", self.b_scale), ("bias", self.bias)]
        items = [(n, x) for n, x in items if x is not None]
        if self.gated is None:
            return items
        return [(n, x if n == "a_scale" or _of_groups(n, x) else halves(x)[number]) for n, x in items]


def check_groups(o: Any, count: int | None, rows: int, kernel: str = NAME) -> int:
    """The number of groups.

    Raises `BadCallArgument`, `BadCallValue`; `count`: b's number of groups, if there is a b.
    """
    if (o.group_sizes is None) == (o.offsets is None):
        what = "neither group_sizes nor offsets" if o.offsets is None else "group_sizes beside offsets"
        raise refuse(
            what, "one of the two: the rows of each group, or where groups begin and the last one ends", kernel
        )
    name, more = ("offsets", 1) if o.group_sizes is None else ("group_sizes", 0)
    check_array(o.given, name, 1, f"an int32 array ({'G + 1' if more else 'G'},)", kd.int32, kernel)
    found = o.given.shape[0] - more
    if found < 0 or (count is not None and found != count):
        wanted = "G + 1" if count is None else count + more
        raise refuse_shape(f"{name} is {tuple(o.given.shape)}", f"its shape is ({wanted},)", kernel)
    if found > MOST:
        raise refuse(f"{found} groups", f"{MOST} at most", kernel)
    check_rows(o, rows, kernel)
    return found


def check_rows(o: Any, rows: int, kernel: str = NAME) -> None:
    """Raise `BadCallValue` for sizes and offsets that don't fit the rows, if the host can read them."""
    held = on_host(o.given)
    if held is None or not held.size:
        return
    if o.offsets is None:
        if held.min() < 0:
            raise refuse(f"group_sizes has {held.min()}", "a group has no rows, or some", kernel)
        total = int(held.sum(dtype=np.int64))
        if total > rows:
            raise refuse(f"group_sizes add up to {total}", f"there are {rows} rows", kernel)
        return
    falls = np.flatnonzero(np.diff(held.astype(np.int64)) < 0)
    if falls.size:
        at = int(falls[0])
        what = f"offsets decrease from {held[at]} to {held[at + 1]} at group {at}"
        raise refuse(what, "each group begins where the one before ends", kernel)
    if held[0] < 0 or held[-1] > rows:
        raise refuse(f"offsets go from {held[0]} to {held[-1]}", f"rows are numbered from 0 to {rows}", kernel)


def check_numbers(x: Any, name: str, limit: int) -> None:
    """Raise `BadCallValue` for impossible row numbers, if the host can read them."""
    held = on_host(x)
    if held is not None and held.size and (held.min() < 0 or held.max() >= limit):
        odd = held.min() if held.min() < 0 else held.max()
        raise refuse(f"{name} has {odd}", f"rows are numbered from 0 to {limit - 1}")


def check_options(o: GroupedOptions) -> None:
    """Raise `BadCallArgument`, `BadCallValue` for wrong options."""
    if o.activation is not None and not callable(o.activation):
        what = f"activation is {of_kind(o.activation)}"
        raise BadCallArgument(kernel=NAME, what=what, hint="a function of traced values, such as `kd.relu`")
    if o.gated is not None and not callable(o.gated) and (not isinstance(o.gated, str) or o.gated not in GATES):
        hint = f"a function of the two products, or one of {', '.join(map(repr, GATES))}"
        raise refuse(f"gated={shown(o.gated)}", hint)
    check_config(o.config, NAME)


def check_config(config: Any, kernel: str) -> None:
    """Raise `BadCallArgument`, `BadCallValue` for a configuration that the fast grouped kernels can't have."""
    if config is None:
        return
    if not isinstance(config, MatmulConfig):
        hint = "a `MatmulConfig`, or None to have one chosen"
        raise BadCallArgument(kernel=kernel, what=f"config is {of_kind(config)}", hint=hint)
    check_counts(config, kernel)
    check_tiles(config, kernel)
    if config.ping_pong or config.swapped:
        hint = "grouped products have no turns or exchanged sides: leave ping_pong and swapped out"
        raise refuse("config has turns or sides exchanged", hint, kernel)
    if config.blocks > 1 and kernel == WGRAD:
        hint = "gradients of groups have no clusters: leave cluster and cluster_n out"
        raise refuse("config has clusters", hint, kernel)
    if config.streamed or config.low_tiles:
        hint = "tiles of groups are whole, and of one height: leave streamed and low_tiles out"
        raise refuse("config has streamed or low tiles", hint, kernel)


def check_pairs(b: Any, o: GroupedOptions) -> None:
    """Raise `BadCallArgument` for a pair in place of a single argument, or the reverse."""
    width = 0 if isinstance(b, (tuple, list)) else (*shape_of(b), 0)[-2 if shape_of(b) else -1]
    for name, x in (("b", b), ("b_scale", o.b_scale), ("bias", o.bias)):
        pair = isinstance(x, (tuple, list))
        if o.gated is None:
            if pair:
                hint = "a pair is for `gated`"
                raise BadCallArgument(kernel=NAME, what=f"{name} is {of_kind(x)}", hint=hint)
            continue
        shape = () if pair else shape_of(x)
        parts = len(cast("tuple[Any, ...]", x)) if pair else 2
        if parts != 2:
            hint = "give a pair: the gate, and the gated values"
            raise BadCallArgument(kernel=NAME, what=f"{name} has {parts} parts", hint=hint)
        if shape and not _of_groups(name, x) and (shape[-1] % 2 if name == "b" else shape[-1] not in (1, width)):
            hint = "give alternating columns of gates and of gated values, or a pair of matrices"
            raise BadCallArgument(kernel=NAME, what=f"{name} has {shape[-1]} columns", hint=hint)


def check_sides(a: Any, rights: list[Any], o: GroupedOptions) -> int:
    """The rows of the product. Raises `BadCallArgument`, `BadCallValue`."""
    check_array(a, "a", 2, "a is (rows, K)")
    for b in rights:
        check_array(b, "b", 3, "b is (G, K, N), or with `gated` a pair of such arrays")
        if b.shape[1] != a.shape[1] or b.shape != rights[0].shape:
            what = f"a is {tuple(a.shape)} and b is {tuple(b.shape)}"
            raise refuse_shape(
                what, "the columns of a are the rows of each matrix of b, (G, K, N); transpose with `.swapaxes`"
            )
    rows = a.shape[0]
    for name, x in (("indices", o.indices), ("scatter", o.scatter)):
        if x is None:
            continue
        check_array(x, name, 1, "an int32 array, a number for each row of the product", kd.int32)
        if name == "indices":
            rows = x.shape[0]
        elif x.shape[0] != rows:
            raise refuse_shape(
                f"scatter is {tuple(x.shape)}", f"its shape is ({rows},), one number for each row of the product"
            )
    if o.weights is not None:
        rank = len(shape_of(o.weights))
        wanted = 2 if rank == 2 and o.scatter is not None else 1
        check_array(
            o.weights, "weights", wanted, "a float32 array (rows,), or (places, each) beside `scatter`", kd.float32
        )
        if wanted == 1 and o.weights.shape[0] != rows:
            raise refuse_shape(f"weights is {tuple(o.weights.shape)}", f"its shape is ({rows},)")
        if wanted == 2 and o.weights.shape[1] == 0:
            raise refuse(f"weights is {tuple(o.weights.shape)}", "each place has one weight or more")
    return rows


def check_out(out: Any, shape: tuple[int, ...], dtype: Any, kernel: str = NAME) -> None:
    """Raise `BadCallArgument`, `BadCallValue` for an `out` that can't hold the result."""
    if out is None:
        return
    check_array(out, "out", len(shape), f"an array {shape} of {dtype}", dtype, kernel)
    if tuple(out.shape) != shape:
        raise refuse_shape(f"out is {tuple(out.shape)}", f"its shape is {shape}", kernel)


def places_of(o: GroupedOptions, rows: int, out: Any) -> tuple[int, int]:
    """(rows of the result, numbers in `scatter` for each): the rows of `weights` or `out`, else of the product."""
    if o.scatter is None:
        return rows, 1
    weights = shape_of(o.weights)
    if len(weights) == 2:
        return weights[0], weights[1]
    shape = shape_of(out)
    return (shape[0] if len(shape) == 2 else rows), 1


@dataclass(frozen=True)
class Scaling:
    """A product's scales and bias: its steps, the numbers of scales by blocks of K among them, and their forms."""

    steps: tuple[EpilogueStep, ...]
    moved: tuple[int, ...]
    a_scaled: bool
    b_scaled: str


def scaling(items: list[tuple[str, Any]], a_rows: int, groups: int, N: int, K: int, bytes_: tuple[int, int]) -> Scaling:
    """The steps of one product. Raises `BadCallArgument`, `BadCallValue`."""
    steps, moved, forms = list[EpilogueStep](), list[int](), {"a_scale": "", "b_scale": ""}
    for place, (name, x) in enumerate(items):
        found = _axes(name, x, a_rows, groups, N, K)
        if isinstance(found, str):
            if max(bytes_) > 1:
                raise refuse(f"{name} by blocks of K", "they are for products of 8 bits by 8 bits")
            forms[name] = found
            moved.append(place)
        else:
            steps.append(EpilogueStep("add" if name == "bias" else "multiply", (found,)))
    return Scaling(tuple(steps), tuple(moved), bool(forms["a_scale"]), forms["b_scale"])


def _axes(name: str, x: Any, rows: int, groups: int, N: int, K: int) -> Axes | str | None:
    """The axes of an operand: "0" is the axis of groups; None for a number, a word for scales by blocks of K."""
    if name != "bias" and isinstance(x, (int, float, np.generic)) and not isinstance(x, (bool, np.bool_)):
        return None
    rank = len(shape_of(x))
    check_array(x, name, rank, _ARRAY, None if name == "bias" else kd.float32)
    shape, blocks = shape_of(x), -(-K // DEPTH)
    forms: list[tuple[tuple[int, ...], Axes | str]]  # the first of equal forms
    if name == "bias":
        forms = [((groups, N), ("0", "n"))]
    elif name == "a_scale":
        forms = [((rows,), ("m",)), ((rows, 1), ("m", "-")), ((rows, blocks), "rows")]
    else:
        forms = [
            ((groups,), ("0",)), ((groups, 1, 1), ("0", "-", "-")), ((groups, N), ("0", "n")),
            ((groups, 1, N), ("0", "-", "n")), ((groups, blocks, -(-N // DEPTH)), "blocks"), ((groups, blocks, N), "columns"),
        ]  # fmt: skip
    found = next((axes for form, axes in forms if form == shape), None)
    if found is None and name != "bias" and all(n == 1 for n in shape):
        found = ("-",) * len(shape)
    if found is None:
        said = [*dict.fromkeys(str(form) for form, _ in forms)]
        raise refuse_shape(f"{name} is {shape}", f"its shape is {'one of ' * (len(said) > 1)}{', '.join(said)}")
    return found


def out_dtype_of_groups(o: GroupedOptions, a: Any, b: Any) -> Any:
    """The dtype of the result of operands of two dtypes. Raises `BadCallArgument`."""
    if o.out_dtype is not None:
        found = as_dtype(o.out_dtype)
        if found.name.startswith("complex"):
            raise LibraryDType(kernel=NAME, what=f"out_dtype is {found}", hint="groups are of real numbers")
        return found
    real = o.weights is not None or o.a_scale is not None
    return out_dtype_of(MatmulOptions(a_scale=True if real else None, b_scale=o.b_scale, gated=o.gated), a, b)

"""Gradients of grouped products under JAX and PyTorch.

One kernel turns the gradient of the result into the gradient of the sums. It reads each row's gradient at the place
where the row was added, and multiplies it by the row's weight and by the slopes of gate and activation. For these
slopes the sums are computed again. Two grouped products follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import kernel_dsl as kd
from kernel_dsl.dtypes import DType, as_dtype
from kernel_dsl.kernel import identified

from ..activations import gate_function
from ..differentiable import FUNCTIONS, Derivative, check_plain, keyed
from ..products.derivative_arrays import cast, check_real, interleaved, ones_of
from ..products.derivatives import INSTEAD
from ..products.matmul_options import halves
from .arguments import NAME, out_dtype_of_groups, places_of
from .rows import combine_rows_kernel, gather_kernel, list_kernel, width_of
from .tiles import RowGroups

GRADIENTS = ("a", "b", "bias", "weights")


@dataclass(frozen=True)
class Slopes:
    """The steps after the sums (rows, columns) of groups of rows.

    `wide`: their dtype; `dtype`: the dtype of their gradients. `places`, `each`: the rows of the result, and the
    numbers in `scatter` for each of them, if rows were `scattered`; `weights`: "rows" with one weight a row, "scatter"
    with one a number in `scatter`, or "".
    """

    groups: RowGroups
    columns: int
    places: int
    each: int
    scattered: bool
    weights: str
    gate: Any
    activation: Any
    wide: DType
    dtype: DType

    @property
    def sums(self) -> int:
        """The number of products to compute again: 0 if no gradient depends on them."""
        return 2 if self.gate is not None else int(self.activation is not None or bool(self.weights))

    def end(self, *sums: Any) -> Any:
        """The results of gate and activation, before weights."""
        x = sums[0]
        if self.gate is not None:
            x = (self.gate if callable(self.gate) else gate_function(str(self.gate)))(*sums)
        return x if self.activation is None else self.activation(x)

    def by(self, number: int, sums: Sequence[Any]) -> tuple[Any, Any]:
        """(`end(*sums)`, its derivative by one of the sums)."""
        from ..attention_forward.slopes import with_derivative  # operations, imported for the first trace

        others = tuple(x for i, x in enumerate(sums) if i != number)

        def function(x: Any, *rest: Any) -> Any:
            return self.end(*rest[:number], x, *rest[number:])

        said = (NAME, "gate" if self.gate is not None else "activation", "a function of the products", INSTEAD)
        return with_derivative(function, sums[number], others, said)


@cache
def slopes_kernel(slopes: Slopes) -> Any:
    """The kernel `(sizes or offsets, gradient (places, columns), *sums[, scatter][, weights]) -> gradients of sums`.

    With `weights` the last result is float32 (rows, 1), the gradient of each row's weight. Rows of no group have zeros.
    """
    s, g = slopes, slopes.groups
    width, parts = width_of(s.columns), max(s.sums, 1)

    def rows_of(given: Any) -> tuple[Any, Any]:
        held = kd.clip(given[...], 0, g.rows)
        if g.by_offsets:
            return kd.clip(given[0], 0, g.rows), kd.max(held)
        wide = kd.int64 if g.rows * g.count >= 1 << 31 else kd.int32
        return kd.astype(0, kd.int32), kd.minimum(kd.sum(held.astype(wide)), g.rows).astype(kd.int32)

    def body(given: Any, gradient: Any, *refs: Any) -> None:
        sums, rest = refs[: s.sums], list(refs[s.sums :])
        row = kd.program_id(0)
        start, end = rows_of(given)
        number = rest.pop(0)[row] if s.scattered else row
        live = (row >= start) & (row < end) & (number >= 0) & (number < s.places * s.each)
        place = kd.where(live, kd.div(number, s.each), 0)
        factor = None
        if s.weights:
            factor = kd.load(rest.pop(0), number if s.weights == "scatter" else row, mask=live).astype(s.wide)
        outs = rest[:parts]

        def add(step: Any, total: Any) -> Any:
            part = kd.ds(step * width, width)
            there = live & (kd.iota(kd.int32, width) + step * width < s.columns)
            own = kd.load(gradient, (place, part), mask=there).astype(s.wide)
            values = [x[row, part].astype(s.wide) for x in sums]
            made = own
            for i, out in enumerate(outs):
                slope: Any = 1.0
                if values:
                    made, slope = s.by(i, values)
                found = own * slope if factor is None else own * factor * slope
                out[row, part] = kd.where(there, found, 0.0).astype(s.dtype)
            return total + kd.where(there, own * made, 0.0).astype(kd.float32) if s.weights else total

        nothing = kd.zeros((width if s.weights else 1,), kd.float32)
        total = kd.fori_loop(0, kd.cdiv(s.columns, width), add, nothing)
        if s.weights:
            rest[parts][row, 0] = kd.sum(total)

    out = kd.ShapeDtypeStruct((g.rows, s.columns), s.dtype)
    dots = [kd.ShapeDtypeStruct((g.rows, 1), kd.float32)] if s.weights else []
    made = kd.kernel(body, out_type=(*[out] * parts, *dots), grid=(g.rows,), name="grouped_slopes")
    return identified(made, slopes)


def _slots(a: Any, b: Any, given: dict[str, Any]) -> list[tuple[str, int | None, Any]]:
    """(name, which part of a pair, array) of all arrays of a call."""
    found: list[tuple[str, int | None, Any]] = []
    for name, x in {"a": a, "b": b, **given}.items():
        if isinstance(x, (tuple, list)):
            found += [(name, i, part) for i, part in enumerate(x)]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        elif hasattr(x, "dtype") and hasattr(x, "shape") and name not in ("out_dtype", "config"):
            found.append((name, None, x))
    return found


def _named(slots: Sequence[tuple[str, int | None, Any]], arrays: Sequence[Any]) -> dict[str, Any]:
    """Arrays, in the order of slots, as arguments."""
    found: dict[str, Any] = {}
    for (name, part, _), x in zip(slots, arrays, strict=True):
        found[name] = x if part is None else (*found.get(name, ()), x)
    return found


def grouped_matmul(host: str, a: Any, b: Any, options: Any, how: dict[str, Any]) -> Any:
    """A call of `grouped_matmul`; a, b, `bias` and `weights` have gradients, factors have none."""
    check_plain(NAME, how)
    slots = _slots(a, b, options._asdict())
    names = {name for name, _, _ in slots}
    static = {n: x for n, x in options._asdict().items() if n not in names}
    interpret = how["interpret"]

    def run(*arrays: Any) -> Any:
        return (FUNCTIONS[NAME](**_named(slots, arrays), **static, interpret=interpret),)

    def backward(gradient: Any, arrays: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        named = _named(slots, arrays)
        sides = named.pop("a"), named.pop("b")
        found = gradients(gradient, *sides, options._replace(**named), interpret)
        return [
            None if found.get(name) is None else found[name] if part is None else found[name][part]
            for name, part, _ in slots
        ]

    def shapes(*arrays: Any) -> list[tuple[tuple[int, ...], Any]]:
        named = _named(slots, arrays)
        a, b = named.pop("a"), named.pop("b")
        o = options._replace(**named)
        rows = a.shape[0] if o.indices is None else o.indices.shape[0]
        first = b[0] if isinstance(b, tuple) else b
        columns = first.shape[-1] // (2 if o.gated is not None and first is b else 1)
        return [
            ((places_of(o, rows, None)[0], columns), out_dtype_of_groups(o, as_dtype(a.dtype), as_dtype(first.dtype)))
        ]

    key = (tuple((n, p) for n, p, _ in slots), tuple(sorted(keyed(static).items())), interpret)
    can = tuple(n in GRADIENTS and as_dtype(x.dtype).is_float for n, _, x in slots)
    rule = Derivative(NAME, key, run, backward, shapes, can, names=[n for n, _, _ in slots])
    return rule(host, [x for _, _, x in slots])


def gradients(gradient: Any, a: Any, b: Any, o: Any, interpret: Any) -> dict[str, Any]:
    """The gradients of a, b, `bias` (pairs for pairs) and `weights`, by name."""
    rights = o.rights(b)
    check_real(NAME, a=a, b=rights[0])
    call = _Backward(a, rights, o, interpret)
    sums = call.sums()
    slopes, dots = call.slopes(gradient, sums)
    found: dict[str, Any] = {}
    if o.weights is not None:
        found["weights"] = call.of_weights(dots)
    if o.bias is not None:
        own = [call.of_bias(g, x) for g, x in zip(slopes, call.parts(o.bias), strict=True)]
        found["bias"] = own[0] if len(own) == 1 else own if isinstance(o.bias, (tuple, list)) else interleaved(*own)
    slopes = [cast(call.scaled(g, i), a.dtype) for i, g in enumerate(slopes)]
    found["a"] = call.of_a(slopes)
    made = [call.of_b(g) for g in slopes]
    found["b"] = made[0] if len(made) == 1 else made if isinstance(b, (tuple, list)) else interleaved(*made)
    return found


class _Backward:
    """One call's arrays, and the launches of its gradients."""

    def __init__(self, a: Any, rights: list[Any], o: Any, interpret: Any) -> None:
        self.a, self.rights, self.o = a, rights, o
        self.how = {"interpret": interpret}
        self.by = {"offsets": o.offsets} if o.group_sizes is None else {"group_sizes": o.group_sizes}
        self.rows = int(a.shape[0] if o.indices is None else o.indices.shape[0])
        count = o.given.shape[0] - (o.group_sizes is None)
        self.groups = RowGroups(int(count), self.rows, o.group_sizes is None)
        self.places, self.each = (int(n) for n in places_of(o, self.rows, None))
        self.wide = kd.float64 if as_dtype(a.dtype).itemsize == 8 else kd.float32
        self._left: Any = None

    def parts(self, x: Any) -> list[Any]:
        """The part of an argument for each product."""
        return [x] if len(self.rights) == 1 else list(halves(x))

    @property
    def left(self) -> Any:
        """The rows of the product's left side, gathered."""
        o, a = self.o, self.a
        if o.indices is None:
            return a
        if self._left is None:
            shape = (int(a.shape[0]), int(a.shape[1]))
            self._left = _one(gather_kernel(self.rows, (shape,), (as_dtype(a.dtype),))(o.indices, a, **self.how))
        return self._left

    def sums(self) -> list[Any]:
        """The products with their factors and biases, if gradients depend on them."""
        o = self.o
        if o.gated is None and o.activation is None and o.weights is None:
            return []
        made: list[Any] = []
        for i, b in enumerate(self.rights):
            own = dict(o.own(i))
            more = {n: own.get(n) for n in ("a_scale", "b_scale", "bias")}
            made.append(
                FUNCTIONS[NAME](self.a, b, **self.by, indices=o.indices, **more, out_dtype=self.wide, **self.how)
            )
        return made

    def slopes(self, gradient: Any, sums: list[Any]) -> tuple[list[Any], Any]:
        """The gradients of the sums of each product, and of the rows' weights."""
        o = self.o
        kind = "" if o.weights is None else "scatter" if len(o.weights.shape) == 2 else "rows"
        scaled = o.a_scale is not None or o.b_scale is not None
        columns = int(self.rights[0].shape[-1])
        if not sums and o.scatter is None and not scaled:
            return [cast(gradient, self.a.dtype)], None
        s = Slopes(
            self.groups, columns, self.places, self.each, o.scatter is not None, kind, o.gated, o.activation, self.wide,
            self.wide if scaled else as_dtype(self.a.dtype),
        )  # fmt: skip
        if not self.rows or not columns:
            empty = ones_of(self.a, (self.rows, columns), s.dtype.name)
            return [empty] * max(s.sums, 1), ones_of(self.a, (self.rows, 1), "float32") * 0
        more = [] if o.scatter is None else [o.scatter]
        more += [] if o.weights is None else [o.weights.reshape(-1)]
        made = slopes_kernel(s)(self.o.given, gradient, *sums, *more, **self.how)
        made = list(made) if isinstance(made, (tuple, list)) else [made]
        return (made[:-1], made[-1]) if kind else (made, None)

    def of_weights(self, dots: Any) -> Any:
        """The gradient of `weights`: one for each row, or for each number in `scatter`, added up in the
        order of rows.
        """
        o = self.o
        if len(o.weights.shape) == 1:
            return dots.reshape(-1)
        count = self.places * self.each
        if not count or not self.rows:
            return o.weights * 0
        heads, following = list_kernel(self.groups, count, 1)(o.given, o.scatter, **self.how)
        add = combine_rows_kernel(self.rows, 1, count, kd.float32, kd.float32, "")
        return _one(add(heads, following, dots, **self.how)).reshape(o.weights.shape)

    def of_bias(self, slope: Any, bias: Any) -> Any:
        """Sums of rows, group by group."""
        ones = ones_of(slope, (self.rows, 1), as_dtype(slope.dtype).name)
        made = FUNCTIONS["grouped_matmul_wgrad"](ones, slope, **self.by, out_dtype=as_dtype(bias.dtype), **self.how)
        return made.reshape(bias.shape)

    def scaled(self, slope: Any, number: int) -> Any:
        """A gradient of scaled sums as a gradient of the product."""
        own = dict(self.o.own(number))
        x = own.get("a_scale")
        if x is not None:
            if isinstance(x, (int, float)) or all(n == 1 for n in x.shape):
                slope = slope * _number(x)
            else:
                x = x.reshape(-1, 1)
                if self.o.indices is not None:
                    gather = gather_kernel(self.rows, ((int(x.shape[0]), 1),), (kd.float32,))
                    x = _one(gather(self.o.indices, x, **self.how))
                slope = slope * x
        x = own.get("b_scale")
        if x is None:
            return slope
        if isinstance(x, (int, float)) or all(n == 1 for n in x.shape):
            return slope * _number(x)
        ones = ones_of(x, (self.rows, 1), "float32")
        rows = FUNCTIONS[NAME](ones, x.reshape(self.groups.count, 1, -1), **self.by, **self.how)
        return slope * rows

    def of_a(self, slopes: list[Any]) -> Any:
        """The gradient of a, summed over repeated rows."""
        o = self.o
        more: dict[str, Any] = {"out_dtype": self.wide if len(slopes) > 1 else as_dtype(self.a.dtype)}
        if o.indices is not None:
            more |= {"scatter": o.indices, "weights": ones_of(self.a, (int(self.a.shape[0]), 1), "float32")}
            more["out_dtype"] = self.wide
        made = [
            FUNCTIONS[NAME](g, b.swapaxes(-1, -2), **self.by, **more, **self.how)
            for g, b in zip(slopes, self.rights, strict=True)
        ]
        return cast(made[0] if len(made) == 1 else made[0] + made[1], self.a.dtype)

    def of_b(self, slope: Any) -> Any:
        """The gradient of one right side."""
        wgrad = FUNCTIONS["grouped_matmul_wgrad"]
        return wgrad(self.left, slope, **self.by, out_dtype=as_dtype(self.rights[0].dtype), **self.how)


def _number(x: Any) -> Any:
    """A factor for all elements, as one number."""
    return x if isinstance(x, (int, float)) else x.reshape(())


def _one(made: Any) -> Any:
    return made[0] if isinstance(made, (tuple, list)) else made

"""Gradients of `matmul` with its epilogues under JAX and PyTorch.

A gated product with gradients keeps its two sums. The sums before an activation are not kept: the product is computed
again, with the gradient as an operand of its epilogue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from kernel_dsl.dtypes import as_dtype
from kernel_dsl.errors import BadCallValue

from ..differentiable import FUNCTIONS, Derivative, check_plain, keyed
from ..refusals import shape_of
from .arguments import out_dtype_of
from .derivative_arrays import cast, check_real, conjugated, interleaved, is_smooth, refuse, summed
from .gate_gradients import INSTEAD, gate_gradients
from .int4 import PackedInt4, widened_dtype
from .matmul_options import MatmulOptions, halves
from .sparse import SparseMatrix

ADDED = ("bias", "c", "residual")
FACTORS = ("scale", "a_scale", "b_scale", "out_scale")  # constants: they have no gradients
AGAIN = ("bias", "c", "scale", "a_scale", "b_scale", "dropout", "gated")  # what steps after them compute again
# options with a derivative
SMOOTH = ("out_dtype", "precision", "config", "activation", "dropout", "gated", "epilogue", "operands", *FACTORS)


@cache
def slope(activation: Callable[[Any], Any] | None) -> Callable[..., Any]:
    """An epilogue that turns a gradient of the result into a gradient of the sums."""
    if activation is None:
        return lambda x, gradient: gradient
    said = ("matmul", "activation", "activation(x)", INSTEAD)

    def end(x: Any, gradient: Any) -> Any:
        from ..attention_forward.slopes import with_derivative  # operations, imported for the first trace

        return gradient * with_derivative(activation, x, (), said)[1]

    return end


@cache
def epilogue_slope(
    epilogue: Callable[..., Any], activation: Callable[[Any], Any] | None, own: int
) -> Callable[..., Any]:
    """An epilogue that turns a gradient of the result into one of the sums (`own` 0) or of an operand of `epilogue`."""
    said = ("matmul", "epilogue", "epilogue(x, *operands)", INSTEAD)

    def end(x: Any, *rest: Any) -> Any:
        from ..attention_forward.slopes import with_derivative  # operations, imported for the first trace

        *operands, gradient = rest
        values = [x, *operands]

        def by(mine: Any, *others: Any) -> Any:
            made = epilogue(*others[:own], mine, *others[own:])
            return made if activation is None else activation(made)

        others = tuple(v for i, v in enumerate(values) if i != own)
        return gradient * with_derivative(by, values[own], others, said)[1]

    return end


def _held(x: Any) -> tuple[str, ...]:
    """The names of the arrays of a packed or sparse matrix, which is a constant here; empty for an array."""
    names = ("data", "scales", "zeros") if isinstance(x, PackedInt4) else ("values", "meta")
    return tuple(n for n in names if getattr(x, n) is not None) if isinstance(x, (PackedInt4, SparseMatrix)) else ()


def _arrays(x: Any) -> list[Any]:
    return [getattr(x, n) for n in _held(x)] or [x]


def matmul(host: str, a: Any, b: Any, options: Any, how: dict[str, Any]) -> Any:
    """A call of `matmul`; a, b, `bias`, `c`, `residual` and operands have gradients; factors, packed and sparse
    operands have none.
    """
    forward = FUNCTIONS["matmul"]
    check_plain("matmul", how)
    given = options._asdict()
    pair = isinstance(b, (tuple, list))
    sides = [a, *(b if pair else [b])]
    names = [n for n in (*ADDED, *FACTORS) if hasattr(given[n], "dtype")]
    pairs = {n: tuple(given[n]) for n in ("bias", "b_scale") if isinstance(given[n], (tuple, list))}
    paired = [(n, i) for n, xs in pairs.items() for i, x in enumerate(xs) if hasattr(x, "dtype")]
    fixed_parts = {n: tuple(None if (n, i) in paired else x for i, x in enumerate(xs)) for n, xs in pairs.items()}
    listed = list(options.listed)
    places = [i for i, x in enumerate(listed) if hasattr(x, "dtype")]
    moved = (*names, "operands", *pairs)
    static = {n: x for n, x in given.items() if n not in moved}
    numbers = tuple(None if i in places else x for i, x in enumerate(listed))
    interpret, count = how["interpret"], sum(len(_arrays(x)) for x in sides)
    first = count + len(paired)

    def parts(arrays: Sequence[Any]) -> tuple[Any, Any, dict[str, Any]]:
        rest = iter(arrays)
        made = [replace(x, **{n: next(rest) for n in _held(x)}) if _held(x) else next(rest) for x in sides]
        more = dict(zip(names, arrays[first:], strict=False))
        found = dict(zip(paired, arrays[count:first], strict=True))
        more |= {n: tuple(found.get((n, i), x) for i, x in enumerate(xs)) for n, xs in fixed_parts.items()}
        found = dict(zip(places, arrays[first + len(names) :], strict=True))
        more["operands"] = tuple(found.get(i, x) for i, x in enumerate(listed))
        return made[0], tuple(made[1:]) if pair else made[1], more

    def run(*arrays: Any) -> Any:
        a, b, more = parts(arrays)
        return (forward(a, b, **static, **more, interpret=interpret),)

    def run_with_sums(*arrays: Any) -> Any:
        a, b, more = parts(arrays)
        return FUNCTIONS["gated_with_sums"](a, b, MatmulOptions(**static, **more), interpret)

    def backward(gradient: Any, arrays: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        a, b, more = parts(arrays)
        made = _matmul_gradients(gradient, a, b, static | more, tuple(results[1:]), interpret)
        mine = [made["a"], *(made["b"] if pair else [made["b"]])]
        own = [g for x, g in zip(sides, mine, strict=True) for g in [g] * len(_arrays(x))]
        operands = [made["operands"][i] for i in places] if places else []
        both = [made["bias"][i] if n == "bias" else None for n, i in paired]
        return [*own, *both, *(made.get(n) for n in names), *operands]

    def shapes(*arrays: Any) -> list[tuple[tuple[int, ...], Any]]:
        a, b, _ = parts(arrays)
        b = b[0] if pair else b
        lead = _batches(a.shape[:-2], b.shape[:-2])
        columns = b.shape[-1] // (2 if given["gated"] is not None and not pair else 1)
        left = widened_dtype(a.dtype) if isinstance(b, PackedInt4) else as_dtype(a.dtype)
        made = [((*lead, a.shape[-2], columns), out_dtype_of(options, left, as_dtype(b.dtype)))]
        return made * (3 if keeps else 1)

    constant = tuple((type(x).__name__, x.shape, getattr(x, "group", 0), _held(x)) for x in sides if _held(x))
    fixed = tuple(sorted(keyed(static).items()))
    key = (constant, count, tuple(fixed_parts.items()), tuple(names), tuple(places), numbers, fixed, interpret)
    real = [hasattr(x, "dtype") and as_dtype(x.dtype).is_float for x in (listed[i] for i in places)]
    own = [not _held(x) and is_smooth(y.dtype) for x in sides for y in _arrays(x)]
    flat = [y for x in sides for y in _arrays(x)]
    mine = [pairs[n][i] for n, i in paired]
    given_arrays = [*flat, *mine, *(given[n] for n in names), *(listed[i] for i in places)]
    keeps = _keeps_sums(options, sides) and (
        host == "jax" or any(getattr(x, "requires_grad", False) for x in given_arrays)
    )
    can = (*own, *(n in ADDED for n in (*(n for n, _ in paired), *names)), *real)
    called = (*(n for n, x in zip("abb", sides, strict=False) for _ in _arrays(x)), *(n for n, _ in paired), *names)
    if keeps:
        rule = Derivative(
            "matmul", (*key, keeps), run_with_sums, backward, shapes, can, results=3, plain=run, names=called
        )
    else:
        rule = Derivative("matmul", key, run, backward, shapes, can, names=called)
    return rule(host, given_arrays)


def _batches(a: Sequence[Any], b: Sequence[Any]) -> list[Any]:
    """The broadcast batch axes of two arrays. Sizes may be symbols of PyTorch; int() would make constants of them."""
    more = len(a) - len(b)
    pairs = list(zip([*[1] * -more, *a], [*[1] * more, *b], strict=True))
    if any(x != 1 and y != 1 and x != y for x, y in pairs):
        what = f"a has batches of {tuple(a)}, and b of {tuple(b)}"
        raise BadCallValue(kernel="matmul", what=what, hint="give both the same batch, or extents of 1")
    return [y if x == 1 else x for x, y in pairs]


def _keeps_sums(options: Any, sides: Sequence[Any]) -> bool:
    """Whether a gated product keeps the two products that its gate joins. A dtype narrower than the operands' is not
    kept.
    """
    if options.gated is None or any(_held(x) for x in sides):
        return False
    left, right = (as_dtype(x.dtype) for x in sides[:2])
    found = out_dtype_of(options, left, right)
    return found.is_float and found.itemsize >= max(left.itemsize, 2)


def _matmul_gradients(
    gradient: Any, a: Any, b: Any, o: dict[str, Any], sums: tuple[Any, ...], interpret: Any
) -> dict[str, Any]:
    """The gradients, by name, of a, of b (a pair for a pair), of added arrays and of operands; None for constants.

    `sums`: the two products that a gate joined, if they were kept.
    """
    forward = FUNCTIONS["matmul"]
    odd = [n for n, x in o.items() if n not in (*SMOOTH, *ADDED) and x is not None and x is not False and x != ()]
    if odd:
        raise refuse("matmul", odd[0])
    check_real("matmul", a=a)
    found: dict[str, Any] = {}
    how = {"precision": o["precision"], "interpret": interpret}
    if o["out_scale"] is not None:
        gradient = gradient * o["out_scale"]
    if o["residual"] is not None:
        found["residual"] = summed(gradient, o["residual"])
    if o["gated"] is not None and _held(a):
        raise refuse("matmul", "gated= beside a sparse a")
    if o["epilogue"] is not None:
        found["operands"], gradient = _before_epilogue(gradient, a, b, o, how)
    elif o["activation"] is not None or o["dropout"] is not None:
        again = {n: o[n] for n in AGAIN}
        operand = as_dtype((b if _held(a) else a).dtype)
        alone = all(x is None for n, x in again.items() if n != "dropout")  # only the products use it
        wide = operand if alone or operand.itemsize >= 4 else "float32"
        gradient = forward(a, b, **again, epilogue=slope(o["activation"]), operands=(gradient,), out_dtype=wide, **how)
    if o["gated"] is not None:
        return found | _gated_gradients(gradient, a, b, o, sums, how)
    return found | _plain_gradients(gradient, a, b, o, how)


def _before_epilogue(
    gradient: Any, a: Any, b: Any, o: dict[str, Any], how: dict[str, Any]
) -> tuple[dict[int, Any], Any]:
    """(the gradients of an epilogue's operands by number, the gradient of what it gets). The product is computed once for
    the latter, and once for each array among the operands.
    """
    again = {n: o[n] for n in AGAIN}
    again["out_dtype"] = "float32" if as_dtype(a.dtype).itemsize < 4 else as_dtype(a.dtype)

    def by(own: int) -> Any:
        end = epilogue_slope(o["epilogue"], o["activation"], own)
        return FUNCTIONS["matmul"](a, b, **again, epilogue=end, operands=(*o["operands"], gradient), **how)

    found: dict[int, Any] = {}
    for i, x in enumerate(o["operands"]):
        if hasattr(x, "dtype"):
            found[i] = summed(by(i + 1), x) if as_dtype(x.dtype).is_float else None
    return found, by(0)


def _plain_gradients(gradient: Any, a: Any, b: Any, o: dict[str, Any], how: dict[str, Any]) -> dict[str, Any]:
    """The gradients from a gradient of the sums, with those of added arrays."""
    forward = FUNCTIONS["matmul"]
    found: dict[str, Any] = {}
    for name in ("bias", "c"):
        if o[name] is not None:
            found[name] = summed(gradient, o[name])
    g = cast(_times(gradient, {n: o[n] for n in ("scale", "a_scale", "b_scale")}), (b if _held(a) else a).dtype)
    found["a"] = found["b"] = None
    if not _held(a):
        right = b.unpacked(a.dtype, interpret=how["interpret"]) if _held(b) else b
        found["a"] = summed(forward(g, conjugated(right).swapaxes(-1, -2), out_dtype=as_dtype(a.dtype), **how), a)
    if not _held(b) and is_smooth(b.dtype):
        left = a.dense(interpret=how["interpret"]) if _held(a) else a
        found["b"] = summed(forward(conjugated(left).swapaxes(-1, -2), g, out_dtype=as_dtype(b.dtype), **how), b)
    return found


def _times(gradient: Any, factors: dict[str, Any]) -> Any:
    """A gradient of scaled sums as one of the product's."""
    made = gradient
    for name, x in factors.items():
        if x is not None:
            made = made * _factor(x, name, gradient.shape)
    return made


def _factor(x: Any, name: str, shape: Sequence[int]) -> Any:
    """A factor in a shape that broadcasts to the result. Raises `BadCallArgument` for scales by blocks of K."""
    own = shape_of(x)
    if len(own) > 1 and own[-2 if name == "b_scale" else -1] != 1:
        raise refuse("matmul", name)
    return x.reshape(-1, 1) if name == "a_scale" and len(own) == 1 and own[0] == shape[-2] else x


def _gated_gradients(
    gradient: Any, a: Any, b: Any, o: dict[str, Any], sums: tuple[Any, ...], how: dict[str, Any]
) -> dict[str, Any]:
    """The gradients from one of the gate's result, with those of biases."""
    forward = FUNCTIONS["matmul"]
    sides = halves(b)
    wide = "float32" if as_dtype(a.dtype).itemsize < 4 else as_dtype(a.dtype)
    factors = [{"scale": o["scale"], "a_scale": o["a_scale"], "b_scale": x} for x in halves(o["b_scale"])]
    scaled = any(x is not None for x in factors[0].values())
    dense = [x.unpacked(a.dtype, interpret=how["interpret"]) if _held(x) else x for x in sides]
    biases = (None, None) if o["bias"] is None else halves(o["bias"])
    if not sums:
        more = how | ({"out_dtype": wide} if scaled else {})
        sums = tuple(
            forward(a, x, bias=bias, **own, **more) for x, bias, own in zip(sides, biases, factors, strict=True)
        )
    narrow = gate_gradients(o["gated"], sums, gradient, wide if scaled else a.dtype, how["interpret"])
    found: dict[str, Any] = {}
    if o["bias"] is not None:
        own = [summed(g, bias) for g, bias in zip(narrow, biases, strict=True)]
        found["bias"] = own if isinstance(o["bias"], (tuple, list)) else interleaved(*own)
    if scaled:
        narrow = tuple(cast(_times(g, own), a.dtype) for g, own in zip(narrow, factors, strict=True))
    left = forward(narrow[0], dense[0].swapaxes(-1, -2), out_dtype=wide, **how)
    left = forward(narrow[1], dense[1].swapaxes(-1, -2), c=left, out_dtype=as_dtype(a.dtype), **how)

    def of_right(g: Any, x: Any) -> Any:
        if _held(x):
            return None
        return summed(forward(a.swapaxes(-1, -2), g, out_dtype=as_dtype(x.dtype), **how), x)

    rights = [of_right(g, x) for g, x in zip(narrow, sides, strict=True)]
    return found | {"a": summed(left, a), "b": rights if isinstance(b, (tuple, list)) else interleaved(*rights)}

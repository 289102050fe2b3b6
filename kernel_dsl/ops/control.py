"""The ops of control flow whose conditions are traced, and loops with carries of any pytree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import dtypes as dt
from ..accumulator import AccRef
from ..arguments import static_int
from ..boundary import called
from ..diagnostics import of_kind, shown
from ..errors import BadArgument, BadArgumentType, BodyReturned, CarryMismatch, LiteralOutOfRange, PredicateNotScalar
from ..facts import Range, any_of, certain
from ..indices import is_index
from ..ir import ArrayType, Op, Region, Value, attr, operand, operands, region, regions
from ..layout import SCALAR, Layout
from ..refs import Ref
from ..source import of_function
from ..trace import LayoutVar, emit, end_region, find, into, is_open, new_value, resolve
from ..tree import flatten, pictured, unflatten
from ..values import Array
from .broadcast import convert
from .cast import as_value, astype, constant, rounded
from .unrolling import WRITTEN_OUT, counter_of, end_of_groups, together, unrolling

__all__ = ["fori_loop", "loop", "while_loop"]


class If(Op, name="if"):
    """Runs one of two regions; both yield the results. PTX `bra`."""

    predicate: Value = operand()
    then: Region = region()
    otherwise: Region = region()

    def infer(self) -> tuple[Any, ...]:
        return tuple(v.type for v in self.then.yields)


class Switch(Op, name="switch"):
    """Runs region number `index`, clamped to the number of regions. PTX `bra`, `brx`."""

    index: Value = operand()
    branches: tuple[Region, ...] = regions()

    def infer(self) -> tuple[Any, ...]:
        return tuple(v.type for v in self.branches[0].yields)


class For(Op, name="for"):
    """for i in range(lo, hi, step): the body's arguments are i and the carries; it yields the carries. PTX `bra`.

    `unroll` 0: PTX `.pragma "nounroll"`.
    """

    lo: Value = operand()
    hi: Value = operand()
    inits: tuple[Value, ...] = operands()
    step: int = attr()
    unroll: int = attr(1)
    body: Region = region()

    def infer(self) -> tuple[Any, ...]:
        return tuple(v.type for v in self.body.args[1:])


class While(Op, name="while"):
    """while before(carries): carries = body(carries). PTX `bra`."""

    inits: tuple[Value, ...] = operands()
    before: Region = region()
    body: Region = region()

    def infer(self) -> tuple[Any, ...]:
        return tuple(v.type for v in self.body.args)


def as_predicate(x: Any, op: str) -> Array:
    """A rank-0 bool. Raises `PredicateNotScalar`."""
    value = as_value(x, op)
    if value.ndim or not value.dtype.is_bool:
        hint = "compare it, or reduce it first (`kd.any`, `kd.all`)"
        raise PredicateNotScalar(op=op, want="bool", got=repr(value), hint=hint)
    return value


def _is_leaf(x: Any) -> bool:
    return isinstance(x, (Array, Ref))


def leaves_of(tree: Any, op: str) -> tuple[list[Array], Any]:
    leaves, structure = flatten(tree, _is_leaf)
    for leaf in leaves:
        if isinstance(leaf, Ref):
            hint = "carry values; Refs are closed over"
            raise BadArgumentType(op=op, what=f"{shown(leaf)} can't be carried", hint=hint)
    return [as_value(leaf, op) for leaf in leaves], structure


def same_structure(op: str, a: Any, b: Any, what: str, where: Any) -> None:
    if repr(a) != repr(b):
        hint = "return the same nesting of tuples, lists and dicts"
        raise CarryMismatch(
            op=op, what=f"{what} changes its structure", a=pictured(a), b=pictured(b), hint=hint, other=where
        )


class _Held:
    """A carry with accumulators. Accumulators stay in their registers; the loop carries only the values beside them."""

    def __init__(self, leaves: list[Any], structure: Any) -> None:
        self._leaves = leaves
        self._structure = structure
        self.values: tuple[Any, ...] = tuple([x for x in leaves if not isinstance(x, AccRef)])

    def whole(self, values: Sequence[Any]) -> Any:
        """The carry with other values."""
        rest = iter(values)
        return unflatten(self._structure, [x if isinstance(x, AccRef) else next(rest) for x in self._leaves])

    def around(self, body: Callable[[Any, Any], Any], op: str) -> Callable[[Any, Any], Any]:
        """The body as a function of the values alone.

        Raises `CarryMismatch` if it does not return the same accumulators.
        """

        def run(index: Any, values: Any) -> Any:
            args = (index, self.whole(values))
            leaves, structure = flatten(called(body, args, op, "body_fun", "body_fun(i, val)"), _may_be_carried)
            where = of_function(body)
            same_structure(op, self._structure, structure, "the carry", where)
            for mine, theirs in zip(self._leaves, leaves, strict=True):
                if isinstance(mine, AccRef) and (not isinstance(theirs, AccRef) or theirs.place != mine.place):
                    what, hint = "a carry changes its accumulator", "return the accumulator that came in"
                    raise CarryMismatch(op=op, what=what, a=repr(mine), b=repr(theirs), hint=hint, other=where)
            return tuple(x for x, mine in zip(leaves, self._leaves, strict=True) if not isinstance(mine, AccRef))

        return run


def _may_be_carried(x: Any) -> bool:
    return isinstance(x, (Array, Ref, AccRef))


def hold(carry: Any) -> _Held | None:
    """The `_Held` of a carry with accumulators; None for others."""
    leaves, structure = flatten(carry, _may_be_carried)
    return _Held(leaves, structure) if any(isinstance(x, AccRef) for x in leaves) else None


def _bound(x: Any, op: str) -> Any:
    """A loop's bound: an int or a rank-0 integer value. Raises `PredicateNotScalar`, `LiteralOutOfRange`."""
    number = static_int(x)
    if number is None:
        if isinstance(x, Array) and is_index(x):
            return x
        got = repr(x) if isinstance(x, Array) else of_kind(x)
        hint = "loop bounds are ints or rank-0 integer values"
        raise PredicateNotScalar(op=op, want="integer", got=got, hint=hint)
    if not -(2**63) <= number < 2**63:
        raise LiteralOutOfRange(value=number, dtype=dt.int64, hint="a loop counts in 64 bits")
    return number


def _carry_args(inits: Sequence[Array]) -> list[Any]:
    args: list[Any] = []
    for value in inits:
        t: ArrayType = value.type
        layout: Any = SCALAR
        if t.shape:
            own = find(t.layout)
            vector = own.vector if isinstance(own, LayoutVar) else 0
            layout = LayoutVar(t.shape, vector)
            layout.before = own if isinstance(own, Layout) else None
        arg = new_value(ArrayType(t.shape, t.dtype, layout))
        arg.facts = any_of(t.dtype)
        args.append(arg)
    return args


def _weak_retry(inits: list[Array], outs: list[Array]) -> list[Array] | None:
    """Initial values in which Python numbers have the dtypes that the body returns for them."""
    again = [
        rounded(i, o.dtype) if i.weak and not o.weak and o.dtype != i.dtype and not o.shape else i
        for i, o in zip(inits, outs, strict=True)
    ]
    changed = any(a is not i for a, i in zip(again, inits, strict=True))
    return again if changed else None


def _close_carries(body: Region, args: Sequence[Any], outs: Sequence[Array], op: str, where: Any) -> None:
    """Check the carries' types, settle their layouts and end the body."""
    results: list[Array] = []
    with into(body):
        for arg, out in zip(args, outs, strict=True):
            if out.weak and out.dtype != arg.dtype:
                out = rounded(out, arg.dtype)
            if out.shape != arg.shape or out.dtype != arg.dtype:
                raise CarryMismatch(
                    op=op,
                    what="a carry changes its type",
                    a=str(arg.type),
                    b=str(out.type),
                    hint="give the initial value the body's shape and dtype, or convert in the body",
                    other=where,
                )
            if arg.shape:
                mine, theirs = find(arg.type.layout), find(out.type.layout)
                if isinstance(mine, LayoutVar) and mine is not theirs and mine.root() is None:
                    closed = resolve(theirs)
                    if is_open(mine):
                        mine.bind(closed)
                out = convert(out, resolve(arg.type.layout))
            results.append(out)
        end_region(body, tuple(results))


def _converted(inits: Sequence[Array], args: Sequence[Any]) -> tuple[Array, ...]:
    return tuple(convert(i, resolve(a.type.layout)) if i.shape else i for i, a in zip(inits, args, strict=True))


def _for(
    lo: Any, hi: Any, step: int, body: Callable[..., Any], inits: list[Array], structure: Any, op: str, unroll: int
) -> Any:
    """Emit a loop, or with `unroll` above 1 one of so many iterations together, and one of those that are left."""
    where = of_function(body)
    if unroll < 2:
        return _one_loop(lo, hi, step, body, inits, structure, op, where, unroll=unroll)
    end = end_of_groups(lo, hi, step, unroll)
    if isinstance(end, int) and not range(lo, end, step):
        return _one_loop(lo, hi, step, body, inits, structure, op, where, unroll=1)

    def check(carry: Any) -> None:
        same_structure(op, structure, leaves_of(carry, op)[1], "the carry", where)

    group = together(body, unroll, step, check, op)
    apart = hi, (unroll - 1) * abs(step)
    carry = _one_loop(lo, end, unroll * step, group, inits, structure, op, where, apart=apart)
    if isinstance(end, int) and not range(end, hi, step):
        return carry
    return _one_loop(end, hi, step, body, *leaves_of(carry, op), op, where)


def _one_loop(
    lo: Any,
    hi: Any,
    step: int,
    body: Callable[..., Any],
    inits: list[Array],
    structure: Any,
    op: str,
    where: Any,
    *,
    unroll: int = 1,
    apart: tuple[Any, int] | None = None,
) -> Any:
    """Emit one loop. `apart`: a bound that its index keeps away from, `hi` by default, and by how much more than one."""
    dtype = counter_of(lo, hi)
    low, high = (constant(x, dtype) if isinstance(x, int) else astype(x, dtype) for x in (lo, hi))
    far, more = (high, 0) if apart is None else (as_value(apart[0], op), apart[1])
    made = Region()
    with into(made):
        index = new_value(ArrayType((), dtype, SCALAR))
        index.facts = _loop_range(low, far, step, more)
        args = _carry_args(inits)
        made.args = (index, *args)
        result = called(body, (index, unflatten(structure, list(args))), op, "body_fun", "body_fun(i, val)")
        outs, out_structure = leaves_of(result, op)
    same_structure(op, structure, out_structure, "the carry", where)
    again = _weak_retry(inits, outs)
    if again is not None:
        return _one_loop(lo, hi, step, body, again, structure, op, where, unroll=unroll, apart=apart)
    _close_carries(made, args, outs, op, where)
    loop_op = emit(For(low, high, _converted(inits, args), step, unroll, made))
    return unflatten(structure, list(loop_op.results))


def _loop_range(low: Array, high: Array, step: int, apart: int) -> Range | None:
    """What is known of an index from `low` on that keeps more than `apart` away from `high`."""
    a, b = certain(low.facts, low.dtype), certain(high.facts, high.dtype)
    if a is None or b is None:
        return None
    from math import gcd

    if step > 0:
        top = None if b.top is None else b.top.plus(-1 - apart)
        return Range(a.lo, max(b.hi - 1 - apart, a.lo), gcd(a.divisor, step), False, top)
    return Range(min(b.lo + 1 + apart, a.hi), a.hi, gcd(a.divisor, step))


def fori_loop(lower: Any, upper: Any, body_fun: Callable[..., Any], init_val: Any, *, unroll: Any = None) -> Any:
    """`for i in range(lower, upper): val = body_fun(i, val)`; returns the last val. Bounds may be traced.

    `unroll=True` writes out every iteration (the bounds must be static). `unroll=n` writes n iterations into one, and
    those that are left into a second loop. `unroll=False` keeps the assembler from unrolling, as it does with few
    iterations, which may cost registers. `val` is a pytree of values that keep shapes and dtypes. Raises
    `CarryMismatch`, `BadArgument`.

    >>> run(lambda x: kd.fori_loop(0, 3, lambda i, total: total + x * i, kd.zeros_like(x)), [1, 2])
    [3 6]
    """
    lo, hi = _bound(lower, "fori_loop"), _bound(upper, "fori_loop")
    held = hold(init_val)
    if held is not None:
        return held.whole(fori_loop(lo, hi, held.around(body_fun, "fori_loop"), held.values, unroll=unroll))
    factor = unrolling(unroll, lo, hi, 1, "fori_loop")
    if factor == WRITTEN_OUT:
        value = init_val
        for i in range(lo, hi):
            value = called(body_fun, (i, value), "fori_loop", "body_fun", "body_fun(i, val)")
        return value
    inits, structure = leaves_of(init_val, "fori_loop")
    return _for(lo, hi, 1, body_fun, inits, structure, "fori_loop", factor)


def loop(
    lower: Any, upper: Any, *, step: int = 1, unroll: Any = None, init_carry: Any = None
) -> Callable[[Callable[..., Any]], Any]:
    """`@kd.loop(lower, upper)` above `def body(i): ...` runs it for each i; with `init_carry`, `body(i, carry)`.

    The decorated name becomes the final carry (None without one). `lower`, `upper` and `init_carry` as for `fori_loop`;
    `step` is a static int other than 0. Raises `CarryMismatch`, `BodyReturned`, `BadArgument`.
    """
    if step == 0:
        raise BadArgument(op="loop", what=f"step {shown(step)}", hint="a static int other than 0")
    lo, hi = _bound(lower, "loop"), _bound(upper, "loop")
    factor = unrolling(unroll, lo, hi, step, "loop")
    held = hold(init_carry)

    def decorate(body: Callable[..., Any]) -> Any:
        if held is not None:
            carried = loop(lo, hi, step=step, unroll=unroll, init_carry=held.values)
            return held.whole(carried(held.around(body, "loop")))

        def run(i: Any, carry: Any) -> Any:
            if init_carry is not None:
                return called(body, (i, carry), "loop", "body", "body(i, carry)")
            if called(body, (i,), "loop", "body", "body(i)") is not None:
                hint = "pass `init_carry=` to carry values"
                raise BodyReturned(what="the body of `kd.loop`", got="a value", hint=hint)
            return None

        if factor == WRITTEN_OUT:
            carry = init_carry
            for i in range(lo, hi, step):
                carry = run(i, carry)
            return carry
        inits, structure = leaves_of(init_carry, "loop")
        return _for(lo, hi, step, run, inits, structure, "loop", factor)

    return decorate


def while_loop(cond_fun: Callable[..., Any], body_fun: Callable[..., Any], init_val: Any) -> Any:
    """`while cond_fun(val): val = body_fun(val)`; returns the last val.

    `val` is a pytree of values that keep shapes and dtypes. Raises `PredicateNotScalar`, `CarryMismatch`.

    >>> run(lambda x: kd.while_loop(lambda v: v[0] < 100, lambda v: v * 2, x), [3, 1])
    [192  64]
    """
    op = "while_loop"
    held = hold(init_val)
    if held is not None:
        body_of = held.around(lambda _, carry: body_fun(carry), op)
        end = while_loop(lambda v: cond_fun(held.whole(v)), lambda v: body_of(None, v), held.values)
        return held.whole(end)
    inits, structure = leaves_of(init_val, op)
    body = Region()
    with into(body):
        args = _carry_args(inits)
        body.args = tuple(args)
        carry = unflatten(structure, list(args))
        outs, out_structure = leaves_of(called(body_fun, (carry,), op, "body_fun", "body_fun(val)"), op)
    same_structure(op, structure, out_structure, "the carry", of_function(body_fun))
    again = _weak_retry(inits, outs)
    if again is not None:
        return while_loop(cond_fun, body_fun, unflatten(structure, list(again)))
    _close_carries(body, args, outs, op, of_function(body_fun))
    before = Region()
    with into(before):
        seen = [new_value(ArrayType(a.shape, a.dtype, resolve(a.type.layout))) for a in args]
        for value, arg in zip(seen, args, strict=True):
            value.facts = arg.facts
        before.args = tuple(seen)
        carry = unflatten(structure, list(seen))
        test = as_predicate(called(cond_fun, (carry,), op, "cond_fun", "cond_fun(val)"), op)
        end_region(before, (test,))
    made = emit(While(_converted(inits, args), before, body))
    return unflatten(structure, list(made.results))

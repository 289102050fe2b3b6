"""Branches whose conditions are traced, with results of any pytree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..boundary import called
from ..errors import BadArgument, BodyReturned, CarryMismatch, PredicateNotScalar
from ..ir import Region
from ..source import of_function
from ..trace import emit, end_region, into, resolve
from ..tree import unflatten
from ..values import Array
from .broadcast import convert
from .cast import as_value, rounded
from .control import If, Switch, as_predicate, leaves_of, same_structure

__all__ = ["cond", "switch", "when"]


def when(condition: Any) -> Callable[[Callable[[], None]], None]:
    """`@kd.when(condition)` above a function without arguments: it runs if the rank-0 condition holds.

    A Python bool decides while tracing. Raises `PredicateNotScalar`, `BodyReturned`.
    """

    predicate = None if isinstance(condition, (bool, int)) else as_predicate(condition, "when")

    def decorate(body: Callable[[], None]) -> None:
        def run() -> None:
            if called(body, (), "when", "body", "body()") is not None:
                raise BodyReturned(what="the body of `kd.when`", got="a value", hint="use `kd.cond` for results")

        if predicate is None:
            if condition:
                run()
            return
        then, otherwise = Region(), Region()
        with into(then):
            run()
            end_region(then, ())
        with into(otherwise):
            end_region(otherwise, ())
        emit(If(predicate, then, otherwise))

    return decorate


def _branch(function: Callable[..., Any], args: tuple[Any, ...], op: str, name: str) -> tuple[Region, list[Array], Any]:
    made = Region()
    with into(made):
        values, structure = leaves_of(called(function, args, op, name, f"{name}(*operands)"), op)
    return made, values, structure


def _join_branches(
    made: list[tuple[Region, list[Array], Any]], functions: Sequence[Callable[..., Any]], op: str
) -> tuple[list[Region], Any]:
    """Give all branches the same result types, with layouts of the first, and close them."""
    _, _first, structure = made[0]
    for (_, _, other), function in zip(made[1:], functions[1:], strict=True):
        same_structure(op, structure, other, "a branch", of_function(function))
    columns = list(zip(*(values for _, values, _ in made), strict=True))
    regions_ = [r for r, _, _ in made]
    results: list[list[Array]] = [[] for _ in made]
    for column in columns:
        strong = next((v for v in column if not v.weak), column[0])
        layout: Any = None
        for row, value in enumerate(column):
            with into(regions_[row]):
                value = rounded(value, strong.dtype) if value.weak else value
                if value.shape != first_shape(column) or value.dtype != strong.dtype:
                    raise CarryMismatch(
                        op=op,
                        what="the branches give different types",
                        a=str(column[0].type),
                        b=str(value.type),
                        hint="convert with `.astype(...)` or broadcast in one branch",
                        other=of_function(functions[row]),
                    )
                layout = resolve(value.type.layout) if layout is None else layout
                results[row].append(convert(value, layout))
    for r, values in zip(regions_, results, strict=True):
        with into(r):
            end_region(r, tuple(values))
    return regions_, structure


def first_shape(column: Sequence[Array]) -> tuple[int, ...]:
    return column[0].shape


def cond(predicate: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any) -> Any:
    """`true_fun(*operands)` if the rank-0 predicate holds, else `false_fun(*operands)`. Both return the same types.

    The results may be pytrees. Raises `PredicateNotScalar`, `CarryMismatch`.

    >>> run(lambda x: kd.cond(x[0] > 0, lambda v: v, lambda v: -v, x), [-1, 2])
    [ 1 -2]
    """
    functions, names = (true_fun, false_fun), ("true_fun", "false_fun")
    if isinstance(predicate, (bool, int)):
        which = 0 if predicate else 1
        return called(functions[which], operands, "cond", names[which], f"{names[which]}(*operands)")
    value = as_predicate(predicate, "cond")
    made = [_branch(f, operands, "cond", name) for f, name in zip(functions, names, strict=True)]
    (then, otherwise), structure = _join_branches(made, functions, "cond")
    return unflatten(structure, list(emit(If(value, then, otherwise)).results))


def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    """`branches[index](*operands)`; the index, a rank-0 integer, is clamped to the number of branches.

    All branches return the same types. Raises `PredicateNotScalar`, `CarryMismatch`, `BadArgument` without branches.

    >>> run(lambda x: kd.switch(x[0], [lambda: 10, lambda: 20]), [1, 5])
    20
    """
    if not branches:
        raise BadArgument(op="switch", what="no branches", hint="give at least one function")
    names = [f"branches[{i}]" for i in range(len(branches))]
    if isinstance(index, int) and not isinstance(index, bool):
        which = min(max(index, 0), len(branches) - 1)
        return called(branches[which], operands, "switch", names[which], "branch(*operands)")
    value = as_value(index, "switch")
    if value.ndim or not value.dtype.is_integer:
        raise PredicateNotScalar(op="switch", want="integer", got=repr(value), hint="index with one integer")
    made = [_branch(f, operands, "switch", name) for f, name in zip(branches, names, strict=True)]
    closed, structure = _join_branches(made, branches, "switch")
    return unflatten(structure, list(emit(Switch(value, tuple(closed))).results))

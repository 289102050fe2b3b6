"""`kd.library.rope`: rotary position embedding, with its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import kernel_dsl as kd
from kernel_dsl.boundary import checks_itself, public
from kernel_dsl.definition import is_leaf
from kernel_dsl.diagnostics import of_kind, shown
from kernel_dsl.dtypes import as_dtype

from .differentiable import Derivative, check_plain, host_of
from .norms import any_rows, array, row_of, rows_of
from .refusals import Refusals

f32, Spec = kd.float32, kd.ShapeDtypeStruct
HELD = 2048  # pairs of numbers that a block holds at a time

Heads = tuple[int, ...]  # of each part, in order; the last of three is not rotated


def _move(source: Any, first: int, target: Any, start: int, heads: int, turn: tuple[Any, Any] | None, row: Any) -> None:
    """Copy some heads of a row to other places, rotated by the cosines and sines of `turn`."""
    half = source.shape[-1] // 2
    most = max(1, HELD // half)
    for done in range(0, heads, most):
        count = min(most, heads - done)
        here, there = kd.ds(first + done, count), kd.ds(start + done, count)
        a, b = (source[(*row, here, kd.ds(s, half))] for s in (0, half))
        if turn is not None:
            cos, sin = turn
            a, b = a.astype(f32), b.astype(f32)
            a, b = a * cos - b * sin, b * cos + a * sin
        for s, value in ((0, a), (half, b)):
            target[(*row, there, kd.ds(s, half))] = value.astype(target.dtype)


@cache
def rope_kernel(heads: Heads, flat: bool = True) -> Any:
    """`(x, positions, cos, sin) -> parts`: one part, or q, k and v. `flat`: x is (any rows, heads, dim)."""

    def shapes(x: Any, *_: Any) -> Any:
        made = [Spec((*x.shape[:-2], n, x.shape[-1]), x.dtype) for n in heads]
        return tuple(made) if len(heads) > 1 else made[0]

    def body(x: Any, positions: Any, cos: Any, sin: Any, *parts: Any) -> None:
        row = row_of(kd.program_id(0), x, 2)
        at = positions[row or ...]
        turn = cos[at], sin[at]
        for number, part in enumerate(parts):
            _move(x, sum(heads[:number]), part, 0, heads[number], None if number == 2 else turn, row)

    def three(x: Any, positions: Any, cos: Any, sin: Any, q: Any, k: Any, v: Any) -> None:
        body(x, positions, cos, sin, q, k, v)

    def one(x: Any, positions: Any, cos: Any, sin: Any, out: Any) -> None:
        body(x, positions, cos, sin, out)

    names = ("x", "positions", *(("q", "k", "v") if len(heads) > 1 else ("out",)))
    given = any_rows(2, 0, *[2] * len(heads), names=names) if flat else None
    grid: Any = lambda x, *_: (rows_of(x, 2),)  # noqa: E731
    return kd.kernel(three if len(heads) > 1 else one, out_type=shapes, grid=grid, name="rope", shapes=given)


def _run(heads: Heads, arrays: Sequence[Any], how: dict[str, Any]) -> Any:
    x, positions, *angles = arrays
    before = tuple(x.shape)[:-2]
    if len(before) == 1 or how["out"] is not None:  # whose other views may be copies
        return rope_kernel(heads, len(before) == 1)(*arrays, **how)
    made = rope_kernel(heads)(x.reshape(-1, *x.shape[-2:]), positions.reshape(-1), *angles, **how)
    parts = [part.reshape(*before, *part.shape[1:]) for part in (made if len(heads) > 1 else [made])]
    return tuple(parts) if len(heads) > 1 else parts[0]


@cache
def gradient_kernel(heads: Heads) -> Any:
    """`(gradients of the parts, positions, cos, sin) -> dx`: rotates back, and joins the parts; (any rows, heads, dim)."""

    def shape(first: Any, *_: Any) -> Any:
        return Spec((*first.shape[:-2], sum(heads), first.shape[-1]), first.dtype)

    def body(parts: Sequence[Any], positions: Any, cos: Any, sin: Any, dx: Any) -> None:
        row = row_of(kd.program_id(0), dx, 2)
        at = positions[row or ...]
        turn = cos[at], -sin[at]
        for number, part in enumerate(parts):
            _move(part, 0, dx, sum(heads[:number]), heads[number], None if number == 2 else turn, row)

    names = ("positions", "dx", *(("dq", "dk", "dv") if len(heads) > 1 else ("d",)))
    given = any_rows(0, 2, *[2] * len(heads), names=names)

    def one(d: Any, positions: Any, cos: Any, sin: Any, dx: Any) -> None:
        body((d,), positions, cos, sin, dx)

    def three(dq: Any, dk: Any, dv: Any, positions: Any, cos: Any, sin: Any, dx: Any) -> None:
        body((dq, dk, dv), positions, cos, sin, dx)

    grid: Any = lambda first, *_: (rows_of(first, 2),)  # noqa: E731
    written = one if len(heads) == 1 else three
    return kd.kernel(written, out_type=shape, grid=grid, name="rope_gradient", shapes=given)


def _parts(check: Refusals, heads: Any, count: int) -> Heads:
    """The heads of each part. Raises `BadCallValue`, `LibraryShape`."""
    if heads is None:
        return (count,)
    pair = tuple(heads) if isinstance(heads, (tuple, list)) else ()
    if len(pair) != 2 or not all(type(n) is int and n > 0 for n in pair):
        raise check.value(f"heads={shown(heads)}", "give a pair of ints of 1 or more: heads of q, and of k and of v")
    if pair[0] + 2 * pair[1] != count:
        hint = "x has the heads of q, then those of k, then those of v"
        raise check.bad_shape(f"heads={pair} for an x of {count} heads", hint)
    return pair[0], pair[1], pair[1]


@partial(public, name="rope")
@checks_itself("heads")
def rope(
    x: Any, positions: Any, cos: Any, sin: Any, *, heads: Any = None, out: Any = None, stream: Any = None,
    interpret: Any = None,
) -> Any:  # fmt: skip
    """Rotary position embedding: (a cos - b sin, b cos + a sin) for the halves a and b of each head of x.

    x (..., heads, dim) is float16, bfloat16 or float32; `positions`, int32 of x's leading axes, names a row of cos and
    sin, float32 (positions, dim / 2); a position past their end gives zeros. With `heads=(q, kv)`, x has q + 2 kv heads,
    and the result is (q, k, v), each in memory of its own, of which v is not rotated. x has a gradient under JAX and
    PyTorch. `out`, `stream`, `interpret`: as for kernels. Raises `BadCallArgument`, `BadCallValue`, `LibraryDType`,
    `LibraryShape`.
    """
    check = Refusals("rope")
    shape = array(check, "x", x)
    if len(shape) < 2 or shape[-1] % 2 or 0 in shape[-2:]:
        raise check.bad_shape(f"x is {shape}", "x is (..., heads, dim), with an even dim")
    for word, a, wanted in (("positions", positions, "int32"), ("cos", cos, "float32"), ("sin", sin, "float32")):
        if not is_leaf(a):
            raise check.argument(f"{word} is {of_kind(a)}", "pass an array")
        if as_dtype(a.dtype).name != wanted:
            raise check.bad_dtype(f"{word} is {as_dtype(a.dtype)}", f"convert it to {wanted}")
    if tuple(positions.shape) != shape[:-2]:
        raise check.bad_shape(
            f"positions is {tuple(positions.shape)} for x of {shape}", f"give one for each of {shape[:-2]}"
        )
    for word, a in (("cos", cos), ("sin", sin)):
        if len(a.shape) != 2 or a.shape[1] != shape[-1] // 2 or a.shape[0] != cos.shape[0]:
            what = f"{word} is {tuple(a.shape)}, cos is {tuple(cos.shape)}, and x is {shape}"
            raise check.bad_shape(what, "cos and sin are (positions, dim / 2)")
    parts = _parts(check, heads, shape[-2])
    arrays, how = [x, positions, cos, sin], {"out": out, "stream": stream, "interpret": interpret}
    host = host_of(*arrays)
    if not host:
        return _run(parts, arrays, how)
    check_plain("rope", how)

    def forward(*given: Any) -> tuple[Any, ...]:
        made = _run(parts, given, how)
        return made if len(parts) > 1 else (made,)

    def backward(gradient: Any, given: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        x, positions, *angles = given
        flat = [g.reshape(-1, *g.shape[-2:]) for g in (gradient if len(parts) > 1 else [gradient])]
        dx = gradient_kernel(parts)(*flat, positions.reshape(-1), *angles, interpret=interpret)
        return [dx.reshape(x.shape), None, None, None]

    def shapes(x: Any, *_: Any) -> list[tuple[tuple[int, ...], Any]]:
        return [((*x.shape[:-2], n, x.shape[-1]), as_dtype(x.dtype)) for n in parts]

    can, count = (True, False, False, False), len(parts)
    names = ("x", "positions", "cos", "sin")
    rule = Derivative(
        "rope", (parts, interpret), forward, backward, shapes, can, count, count, firsts=count, names=names
    )
    return rule(host, arrays)

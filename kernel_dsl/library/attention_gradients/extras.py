"""The gradients of attention's sinks and of its bias, each summed in a fixed order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import kernel_dsl as kd
from kernel_dsl.kernel import identified

from ..attention_forward.captured import reading
from ..attention_forward.opened import at_launch, declared, gradient_shapes
from ..attention_forward.problem import ScoredProblem, ScorePlace
from ..part_sums import loads_first
from .ends import centre

ROWS = 32  # rows of out and dout at a time
WHOLE = 128  # dims that registers hold at once
HELD = 32  # dims that they hold at a time if there are more


@cache
def sinks_kernel(problem: ScoredProblem, dtype: Any, takes_dlse: bool) -> Any:
    """The kernel `(sinks, dout, out, lse, *extras) -> dsinks`, in the dtype of `sinks`: a block a head. `sinks_extras`
    names the arrays between.
    """
    wide = kd.float64 if problem.dtype == kd.float64 else kd.float32
    names = sinks_extras(problem, takes_dlse)

    # two have all names, because results have the names of parameters in reports
    def dense(sinks: Any, dout: Any, out: Any, lse: Any, dsinks: Any) -> None:
        body(sinks, dout, out, lse, dsinks)

    def ragged(sinks: Any, dout: Any, out: Any, lse: Any, q_seqlens: Any, dsinks: Any) -> None:
        body(sinks, dout, out, lse, q_seqlens, dsinks)

    def body(sinks: Any, dout: Any, out: Any, lse: Any, *rest: Any) -> None:
        s, dsinks = dict(zip(names, rest, strict=False)), rest[-1]
        q_seqlens = s.get("q_seqlens")
        p = at_launch(problem, dout, dout, None) if problem.opened else problem
        steps = kd.cdiv(p.queries, ROWS)
        head = kd.program_id(0)
        sink = sinks[head].astype(wide)

        def step(index: Any, acc: Any) -> Any:
            batch, rows = kd.div(index, steps), kd.ds(kd.rem(index, steps) * ROWS, ROWS)
            here = p.rows(batch, head, rows)
            mean, logs = kd.sum(dout[here].astype(wide) * out[here].astype(wide), axis=1), p.lse_rows(batch, head, rows)
            total = kd.load(lse, logs, fill=math.inf).astype(wide)
            delta = centre(mean, total, s.get("dlse"), logs)
            # a row that sees no key has no gradient; a row outside all sequences has none either, and may hold anything
            none = delta == 0
            if q_seqlens is not None:
                row = kd.rem(index, steps) * ROWS + kd.arange(ROWS)
                none = none | (row < q_seqlens[0]) | (row >= q_seqlens[q_seqlens.shape[0] - 1])
            return acc - kd.where(none, 0.0, kd.exp(sink - total) * delta)

        acc = kd.fori_loop(0, (1 if p.ragged else p.batch) * steps, step, kd.zeros((ROWS,), wide))
        dsinks[head] = kd.sum(acc).astype(dtype)

    p = problem
    made = kd.kernel(
        body if takes_dlse else ragged if p.ragged else dense,
        out_type=kd.ShapeDtypeStruct((p.heads,), dtype),
        grid=(p.heads,),
        shapes=_sinks_shapes(p, names) if p.opened else None,
        compiler_params=loads_first(),
        name="attention_backward_sinks",
    )
    return made if p.score.has_functions else identified(made, problem, dtype, takes_dlse)


def sinks_extras(p: ScoredProblem, takes_dlse: bool) -> list[str]:
    """Names of the arrays after sinks, dout, out and lse that `sinks_kernel` takes."""
    return ["dlse"] * takes_dlse + ["q_seqlens"] * p.ragged


def _sinks_shapes(p: ScoredProblem, names: list[str]) -> dict[int, tuple[Any, ...]]:
    """`shapes=` of the kernel of sinks for any lengths."""
    found: dict[int, tuple[Any, ...]] = {1: p.out_shape, 2: p.out_shape, 3: p.lse_shape}
    return found | {n: shape for n, shape in declared(p, names, first=4).items() if n > 3}


@cache
def bias_kernel(problem: ScoredProblem, dtype: Any, takes_dlse: bool) -> Any:
    """The kernel `(dout, q, k, v, out, lse, *extras) -> dbias`, in the shape and dtype of `bias`; `bias_extras` names the
    arrays between.

    A block computes a tile of dbias. It goes over all heads, queries and keys that the bias is broadcast along, one
    after another.
    """
    p, names = problem, bias_extras(problem, takes_dlse)[1:]

    def body(dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, bias: Any, *rest: Any) -> None:
        s = dict(zip(names, rest, strict=False))
        with reading(s):
            here = at_launch(problem, q, k, None) if problem.opened else problem
            _BiasGradient(here, dout, q, k, v, out, lse, bias, s.get("dlse")).compute(rest[-1], dtype)

    made = kd.kernel(
        body,
        out_type=kd.ShapeDtypeStruct(p.score.bias or (), dtype),
        grid=(math.prod(_extents(p)[1]),),
        shapes=gradient_shapes(p, ["bias", *names]) if p.opened else None,
        compiler_params=kd.CompilerParams(max_registers=255),  # the assembler's own limit is lower, and spills
        name="attention_backward_bias",
    )
    return made if p.score.has_functions else identified(made, problem, dtype, takes_dlse)


def bias_extras(p: ScoredProblem, takes_dlse: bool) -> list[str]:
    """Names of the arrays after dout, q, k, v, out and lse that `bias_kernel` takes."""
    return ["bias"] + ["dlse"] * takes_dlse + p.score.captured


def _by_dot(p: ScoredProblem) -> bool:
    """Whether tensor cores compute the products."""
    return p.dtype in (kd.float16, kd.bfloat16)


def _tile(p: ScoredProblem) -> tuple[int, int]:
    """The queries and keys of a tile: fewer keys if lanes hold those of all steps, and these are long."""
    if not _by_dot(p):
        return 4, 16
    by_batch, by_head, *_ = _alone(p)
    same = (not by_batch or (not p.opened and p.batch == 1)) and (p.kv_heads == 1 or not by_head)
    return 64, 32 if same and any(64 < dim <= WHOLE for dim in (p.dim, p.v_dim)) else 64


def _alone(p: ScoredProblem) -> list[bool]:
    """Whether the bias is broadcast along the batch, heads, queries and keys."""
    shape = p.score.bias or ()
    full: tuple[Any, ...] = (1,) * (4 - len(shape)) + shape
    return [isinstance(extent, int) and extent == 1 for extent in full]


def _extents(p: ScoredProblem) -> tuple[list[Any], list[Any]]:
    """(the extents that a block walks, the extents of the grid)."""
    m, n = _tile(p)
    whole = (p.batch, p.heads, kd.cdiv(p.queries, m), kd.cdiv(p.keys, n))
    both = list(zip(_alone(p), whole, strict=True))
    return [w if one else 1 for one, w in both], [1 if one else w for one, w in both]


@dataclass(frozen=True)
class _BiasGradient:
    """A block's tile of the gradient of the bias, and the arrays that it reads."""

    p: ScoredProblem
    dout: Any
    q: Any
    k: Any
    v: Any
    out: Any
    lse: Any
    bias: Any
    dlse: Any  # None if lse has no gradient

    @property
    def wide(self) -> Any:
        """The dtype of sums."""
        return kd.float64 if self.p.dtype == kd.float64 else kd.float32

    def compute(self, dbias: Any, dtype: Any) -> None:
        """Sum and store the tile."""
        p, (m, n) = self.p, _tile(self.p)
        walked, own = _extents(p)
        mine: list[Any] = []
        number = kd.program_id(0)
        for extent in reversed(own):
            mine.insert(0, kd.rem(number, extent))
            number = kd.div(number, extent)

        def step(index: Any, acc: Any) -> Any:
            at: list[Any] = []
            for extent, fixed in reversed(list(zip(walked, mine, strict=True))):
                at.insert(0, kd.rem(index, extent) + fixed)
                index = kd.div(index, extent)
            batch, head, row, column = at
            begin, end = ScorePlace(batch, head, row, 0, 0, p.queries, p.keys, row).blocks(p, row * m, m, n)
            return kd.cond((column >= begin) & (column < end), lambda acc: acc + self._tile(*at), lambda acc: acc, acc)

        start = kd.zeros((m, n), self.wide)
        start = kd.layout_cast(start, kd.Layout.WGMMA) if _by_dot(p) else start
        acc = kd.fori_loop(0, math.prod(walked), step, start)
        where: list[Any] = [*mine[:2], kd.ds(mine[2] * m, m), kd.ds(mine[3] * n, n)]
        for axis in (0, 1):
            if _alone(p)[2 + axis]:
                acc, where[2 + axis] = kd.sum(acc, axis=axis, keepdims=True), slice(None)
        dbias[tuple(where[4 - len(p.score.bias or ()) :])] = acc.astype(dtype)

    def _tile(self, batch: Any, head: Any, row: Any, column: Any) -> Any:
        """The gradients of the scores of a tile of one head."""
        p, wide, (m, n) = self.p, self.wide, _tile(self.p)
        rows, columns = kd.ds(row * m, m), kd.ds(column * n, n)
        kv_head = kd.div(head, p.heads // p.kv_heads)
        ours, theirs = p.rows(batch, head, rows)[:-1], p.rows(batch, kv_head, columns)[:-1]
        query = row * m + kd.broadcasted_iota(kd.int32, (m, n), 0)
        key = column * n + kd.broadcasted_iota(kd.int32, (m, n), 1)
        here = batch, head, query, key
        logs = p.lse_rows(batch, head, rows)
        lse = kd.load(self.lse, logs, fill=-math.inf).astype(wide)
        total = lse[:, None]
        x = self._products(self.q, self.k, ours, theirs, p.dim).astype(wide)

        def bias() -> Any:
            return p.bias_tile(self.bias, (batch, head), rows, columns)

        x, after, _ = p.score.with_slopes(x, p.scale, bias, here)
        seen = p.score.seen(here, p.queries, p.keys) & (total > -math.inf) & (query < p.queries)
        weights = kd.where(seen, kd.exp(kd.where(seen, x - total, 0.0)), 0.0)
        delta = centre(self._means(ours), lse, self.dlse, logs)
        ds = weights * (self._products(self.dout, self.v, ours, theirs, p.v_dim).astype(wide) - delta[:, None])
        return ds if after is None else ds * after

    def _products(self, a: Any, b: Any, a_at: Any, b_at: Any, dim: int) -> Any:
        """(i, dim) and (j, dim) of two arrays give (i, j)."""

        def part(first: Any, count: int) -> Any:
            """The products of `count` dims from `first` on; dims beyond an array's own are zeros."""
            dims = kd.ds(first, count)
            return kd.dot(a[(*a_at, dims)], b.at[(*b_at, dims)].T[...])

        if not _by_dot(self.p):
            left, right = (x[(*at, slice(None))].astype(self.wide) for x, at in ((a, a_at), (b, b_at)))
            return kd.sum(left[:, None, :] * right[None], axis=2)
        if dim <= WHOLE:
            return part(0, kd.cdiv(dim, 16) * 16)
        # hide the numbers: otherwise the loop keeps keys that are the same in all steps in registers
        zero = kd.optimization_barrier(kd.full((), 0, kd.int32))

        @kd.loop(1, kd.cdiv(dim, HELD), init_carry=part(zero * HELD, HELD))
        def found(n: Any, total: Any) -> Any:
            return total + part(kd.optimization_barrier(n) * HELD, HELD)

        return found

    def _means(self, at: Any) -> Any:
        """The sum of out * dout of each row."""
        dim = self.p.v_dim

        def some(dims: Any) -> Any:
            dout, out = (x[(*at, dims)].astype(self.wide) for x in (self.dout, self.out))
            return kd.sum(dout * out, axis=1)

        if not _by_dot(self.p) or dim <= WHOLE:
            return some(slice(None))
        return kd.loop(1, kd.cdiv(dim, HELD), init_carry=some(kd.ds(0, HELD)))(
            lambda n, total: total + some(kd.ds(kd.optimization_barrier(n) * HELD, HELD))
        )

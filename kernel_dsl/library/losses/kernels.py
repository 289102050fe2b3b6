"""The small kernels beside the products of a linear layer's cross-entropy: sums of tiles, losses, and inputs of the
gradients.

If ranks share a vocabulary, each rank has the partials float32 (4, M), for each row: the greatest logit, the sum of
exp(logit - greatest), the target's logit or 0, and the sum of all logits, or 0 if no option needs it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import inf, nan
from typing import Any

import kernel_dsl as kd
from kernel_dsl.kernel import identified

from ..activations import LOG2E
from ..first_sizes import FirstSizes, dim_of, is_open
from ..product_kernels.epilogue import PLAIN, TOP, TOTAL, finite_or_zero

TARGET, SUM, KINDS = 2, 3, 4  # rows of partials beside TOP and TOTAL, and their number
ROWS, TILES = 8, 64  # rows and tiles that a block merges at a time; a tile's sums are 32 neighbouring bytes
WIDTH = 1024  # elements of a row, or rows, that a block has at a time


@dataclass(frozen=True)
class CrossEntropy:
    """x (M, H), weight (V, H), whose first row is number `start` of `vocab`; targets of dtype `targets`.

    `mean`: losses are divided by the number of rows that count; `rows`: each row's loss is a result.
    """

    M: int
    V: int
    H: int
    dtype: Any
    targets: Any
    ignore: int = -100
    smoothing: float = 0.0
    mean: bool = True
    rows: bool = False
    start: int = 0
    vocab: int | None = None
    bias: bool = False

    @property
    def opened(self) -> bool:
        """Whether each call gives M."""
        return is_open(self.M)

    def at_launch(self, of_rows: Any) -> CrossEntropy:
        """In a body: the problem with the rows of an array (M,)."""
        return replace(self, M=of_rows.shape[0]) if self.opened else self

    def tiles(self, count: int) -> Any:
        """The number of tiles of a product. For any number of rows it is a Dim, because products then have different
        tiles.
        """
        return dim_of("tiles") if self.opened else count

    def shapes(self, *shapes: tuple[Any, ...] | None) -> dict[int, Any] | None:
        """`shapes=` of a kernel whose parameters have these extents."""
        return {n: shape for n, shape in enumerate(shapes) if shape is not None} if self.opened else None


_first = FirstSizes()
MOST = 2**30  # the most rows


def opened(p: CrossEntropy) -> CrossEntropy:
    """The problem of any number of rows if it came with another number before; otherwise the problem itself."""
    if not 0 < p.M <= MOST or not _first.comes_again(replace(p, M=0), p.M):
        return p
    return replace(p, M=dim_of("M", MOST))


@cache
def merge_kernel(problem: CrossEntropy, tiles: Any, kinds: int) -> Any:
    """The kernel `(sums (kinds, tiles, M), x, weight, targets[, bias]) -> partials (4, M)`."""
    p = problem

    def sums_of(sums: Any, rows: Any) -> tuple[Any, Any, Any]:
        def add(turn: Any, carry: Any) -> Any:
            top, total, plain = carry
            part = kd.ds(turn * TILES, TILES)
            tops = kd.load(sums, (TOP, part, rows), fill=-inf)
            after = kd.maximum(top, kd.max(tops, axis=0))
            base = finite_or_zero(after)
            weights = kd.exp2((tops - base[None]) * LOG2E) * sums[TOTAL, part, rows]
            total = total * kd.exp2((top - base) * LOG2E) + kd.sum(weights, axis=0)
            return after, total, plain + kd.sum(sums[PLAIN, part, rows], axis=0) if kinds > PLAIN else plain

        nothing = kd.zeros((ROWS,), kd.float32)
        count = sums.shape[1] if problem.opened else tiles
        return kd.fori_loop(0, kd.cdiv(count, TILES), add, (kd.full((ROWS,), -inf, kd.float32), nothing, nothing))

    def body(sums: Any, x: Any, weight: Any, targets: Any, *refs: Any) -> None:
        p = problem.at_launch(targets)
        *bias, out = refs
        first = kd.program_id(0) * ROWS
        rows = kd.ds(first, ROWS)
        out[TOP, rows], out[TOTAL, rows], out[SUM, rows] = sums_of(sums, rows)

        @kd.loop(0, kd.minimum(ROWS, p.M - first))
        def _(number: Any) -> None:
            row = first + number
            target = targets[row]
            there = (target >= p.start) & (target < p.start + p.V)
            at = kd.where(there, target - p.start, 0).astype(kd.int32)

            def add(step: Any, total: Any) -> Any:
                part = kd.ds(step * WIDTH, WIDTH)
                return kd.fma(x[row, part].astype(kd.float32), weight[at, part].astype(kd.float32), total)

            products = kd.fori_loop(0, kd.cdiv(p.H, WIDTH), add, kd.zeros((WIDTH,), kd.float32))
            logit = kd.sum(products)
            if bias:
                logit = logit + bias[0][at].astype(kd.float32)
            out[TARGET, row] = kd.where(there, logit, 0.0)

    made = kd.kernel(
        body,
        out_type=kd.ShapeDtypeStruct((KINDS, p.M), kd.float32),
        grid=(kd.cdiv(p.M, ROWS),),
        shapes=p.shapes((kinds, tiles, p.M), (p.M, p.H), None, (p.M,), *[None] * p.bias, (KINDS, p.M)),
        name="cross_entropy_merge",
    )
    return identified(made, problem, tiles, kinds)


def _counts(targets: Any, rows: Any, p: CrossEntropy) -> tuple[Any, Any]:
    """Targets of some rows, and whether they count."""
    target = targets[rows]
    number = kd.iota(kd.int32, rows.size) + rows.start
    return target, (target != p.ignore) & (number < p.M)


@cache
def loss_kernel(problem: CrossEntropy, ranks: int) -> Any:
    """The kernel `(partials (ranks, 4, M), targets) -> (losses (M,), lse (M,))`; a target that is no class has the loss NaN."""
    p = problem

    def body(partials: Any, targets: Any, losses: Any, lse: Any) -> None:
        p = problem.at_launch(targets)
        rows = kd.ds(kd.program_id(0) * WIDTH, WIDTH)
        tops = [partials[rank, TOP, rows] for rank in range(ranks)]
        top = tops[0]
        for other in tops[1:]:
            top = kd.maximum(top, other)
        base = finite_or_zero(top)
        total, logit, plain = (kd.zeros((WIDTH,), kd.float32) for _ in range(3))
        for rank in range(ranks):
            total = total + partials[rank, TOTAL, rows] * kd.exp2((tops[rank] - base) * LOG2E)
            logit = logit + partials[rank, TARGET, rows]
            plain = plain + partials[rank, SUM, rows]
        log = base + kd.log2(total) * (1.0 / LOG2E)
        loss = log - logit
        if p.smoothing:
            assert p.vocab is not None
            loss = log - logit * (1.0 - p.smoothing) - plain * (p.smoothing / p.vocab)
        target, counts = _counts(targets, rows, p)
        known = target >= 0 if p.vocab is None else (target >= 0) & (target < p.vocab)
        losses[rows] = kd.where(counts, kd.where(known, loss, nan), 0.0)
        lse[rows] = log

    out = kd.ShapeDtypeStruct((p.M,), kd.float32)
    made = kd.kernel(
        body,
        out_type=(out, out),
        grid=(kd.cdiv(p.M, WIDTH),),
        shapes=p.shapes((ranks, KINDS, p.M), (p.M,), (p.M,), (p.M,)),
        name="cross_entropy_loss",
    )
    return identified(made, problem, ranks)


def count_of(targets: Any, p: CrossEntropy) -> Any:
    """The number of rows that count."""

    def add(turn: Any, total: Any) -> Any:
        _, counts = _counts(targets, kd.ds(turn * WIDTH, WIDTH), p)
        return total + counts.astype(kd.int32)

    return kd.sum(kd.fori_loop(0, kd.cdiv(p.M, WIDTH), add, kd.zeros((WIDTH,), kd.int32))).astype(kd.float32)


@cache
def reduce_kernel(problem: CrossEntropy) -> Any:
    """The kernel `(losses (M,), targets) -> loss ()`: the sum, or the mean over rows that count, in a fixed order by
    one block.
    """

    def body(losses: Any, targets: Any, out: Any) -> None:
        p = problem.at_launch(targets)

        def add(turn: Any, total: Any) -> Any:
            return total + losses[kd.ds(turn * WIDTH, WIDTH)]

        total = kd.sum(kd.fori_loop(0, kd.cdiv(p.M, WIDTH), add, kd.zeros((WIDTH,), kd.float32)))
        out[...] = total / count_of(targets, p) if p.mean else total

    p, out = problem, kd.ShapeDtypeStruct((), kd.float32)
    made = kd.kernel(body, out_type=out, shapes=p.shapes((p.M,), (p.M,)), name="cross_entropy_reduce")
    return identified(made, problem)


def _blocks(p: CrossEntropy, width: int) -> Any:
    """The number of blocks for all rows and for `width` classes."""
    if p.opened:
        return kd.cdiv(p.M, WIDTH) + kd.cdiv(width, WIDTH)
    return kd.cdiv(max(p.M, width), WIDTH)


@cache
def prepare_kernel(problem: CrossEntropy, width: int, wdtype: Any, bdtype: Any) -> Any:
    """The kernel `(dloss, targets, lse) -> (logs, gates, places, factor, columns, dweight[, ones, dbias])` of the
    backward.

    For each row (M, 1): -lse in powers of 2; 1, or with `rows` dloss, and 0 if the row does not count; the row of
    weight of its target, or -1. `factor` (): the factor of all gradients. `columns`: int32 (1, width), `ones`: (1, M).
    The gradients are uninitialised memory for products.
    """

    def body(dloss: Any, targets: Any, lse: Any, *refs: Any) -> None:
        p = problem.at_launch(targets)
        logs, gates, places, factor, columns, _, *more = refs
        block = kd.program_id(0)
        rows = kd.ds(block * WIDTH, WIDTH)
        target, counts = _counts(targets, rows, p)
        logs[rows, 0] = lse[rows] * -LOG2E
        gates[rows, 0] = kd.where(counts, dloss[rows].astype(kd.float32) if p.rows else 1.0, 0.0)
        there = counts & (target >= p.start) & (target < p.start + p.V)
        places[rows, 0] = kd.where(there, target - p.start, -1).astype(kd.int32)
        columns[0, rows] = kd.iota(kd.int32, WIDTH) + block * WIDTH
        if more:
            more[0][0, rows] = kd.ones((WIDTH,), p.dtype)

        @kd.when(block == 0)
        def _() -> None:
            scale = 1.0 if p.rows else (dloss[...] if hasattr(dloss, "shape") else dloss).astype(kd.float32)
            factor[...] = scale / kd.maximum(count_of(targets, p), 1.0) if p.mean else scale  # no row: gates are 0

    p, column = problem, (problem.M, 1)
    outs = [
        kd.ShapeDtypeStruct(column, kd.float32), kd.ShapeDtypeStruct(column, kd.float32), kd.ShapeDtypeStruct(column, kd.int32),
        kd.ShapeDtypeStruct((), kd.float32), kd.ShapeDtypeStruct((1, width), kd.int32), kd.ShapeDtypeStruct((p.V, p.H), wdtype),
    ]  # fmt: skip
    if p.bias:
        outs += [kd.ShapeDtypeStruct((1, p.M), p.dtype), kd.ShapeDtypeStruct((p.V,), bdtype)]
    losses = (p.M,) if p.rows else None
    shapes = p.shapes(losses, (p.M,), (p.M,), *[column] * 3, *[None] * 3, *[(1, p.M)] * p.bias)
    made = kd.kernel(body, out_type=tuple(outs), grid=(_blocks(p, width),), shapes=shapes, name="cross_entropy_prepare")
    return identified(made, problem, width, wdtype, bdtype)


@cache
def slope(smoothing: float, vocab: int | None) -> Any:
    """The gradient of a row's loss by its logits, as an epilogue of their product."""
    low = smoothing / vocab if smoothing and vocab else 0.0

    def gradient(x: Any, log: Any, gate: Any, place: Any, column: Any, start: Any) -> Any:
        weight = kd.exp2(kd.fma(x, LOG2E, log))
        wanted = kd.where(column + start == place, 1.0 - smoothing + low, low)
        return (weight - wanted) * gate

    return gradient


@cache
def partial_factor_kernel(problem: CrossEntropy) -> Any:
    """The kernel `gradient (4, M) -> ()`.

    It gives the greatest magnitude among the numbers that gradients of logits are computed from, or 1 if all are 0.
    """

    def body(gradient: Any, factor: Any) -> None:
        M = gradient.shape[1] if problem.opened else problem.M

        def add(turn: Any, top: Any) -> Any:
            rows = kd.ds(turn * WIDTH, WIDTH)
            for kind in (TOTAL, TARGET, SUM):
                top = kd.maximum(top, kd.abs(gradient[kind, rows]))
            return top

        top = kd.max(kd.fori_loop(0, kd.cdiv(M, WIDTH), add, kd.zeros((WIDTH,), kd.float32)))
        factor[...] = kd.where((top > 0) & (top < inf), top, 1.0)

    out, shapes = kd.ShapeDtypeStruct((), kd.float32), problem.shapes((KINDS, problem.M))
    made = kd.kernel(body, out_type=out, shapes=shapes, name="cross_entropy_factor_partials")
    return identified(made, problem)


@cache
def partial_prepare_kernel(problem: CrossEntropy, width: int, wdtype: Any, bdtype: Any) -> Any:
    """The kernel `(gradient (4, M), partials (4, M), targets, factor) -> (tops, totals, hits, plain, places, columns,
    dweight[, ones, dbias])`.

    For each row (M, 1): -greatest in powers of 2; the gradients of its total, of its target's logit and of its sum,
    divided by `factor`, which the products multiply by; the row of weight of its target, or -1. The other results are
    those of `prepare_kernel`.
    """

    def body(gradient: Any, partials: Any, targets: Any, factor: Any, *refs: Any) -> None:
        p = problem.at_launch(targets)
        tops, totals, hits, plain, places, columns, _, *more = refs
        block = kd.program_id(0)
        rows = kd.ds(block * WIDTH, WIDTH)
        target, _ = _counts(targets, rows, p)
        tops[rows, 0] = finite_or_zero(partials[TOP, rows]) * -LOG2E
        scale = 1.0 / factor[...]
        totals[rows, 0], hits[rows, 0] = gradient[TOTAL, rows] * scale, gradient[TARGET, rows] * scale
        plain[rows, 0] = gradient[SUM, rows] * scale if p.smoothing else kd.zeros((WIDTH,), kd.float32)
        there = (target >= p.start) & (target < p.start + p.V)
        places[rows, 0] = kd.where(there, target - p.start, -1).astype(kd.int32)
        columns[0, rows] = kd.iota(kd.int32, WIDTH) + block * WIDTH
        if more:
            more[0][0, rows] = kd.ones((WIDTH,), p.dtype)

    p = problem
    column = kd.ShapeDtypeStruct((p.M, 1), kd.float32)
    outs = [column] * 4 + [kd.ShapeDtypeStruct((p.M, 1), kd.int32), kd.ShapeDtypeStruct((1, width), kd.int32)]
    outs.append(kd.ShapeDtypeStruct((p.V, p.H), wdtype))
    if p.bias:
        outs += [kd.ShapeDtypeStruct((1, p.M), p.dtype), kd.ShapeDtypeStruct((p.V,), bdtype)]
    four = KINDS, p.M
    shapes = p.shapes(four, four, (p.M,), None, *[(p.M, 1)] * 5, None, None, *[(1, p.M)] * p.bias)
    made = kd.kernel(
        body, out_type=tuple(outs), grid=(_blocks(p, width),), shapes=shapes, name="cross_entropy_prepare_partials"
    )
    return identified(made, problem, width, wdtype, bdtype)


def partial_slope(x: Any, top: Any, total: Any, hit: Any, plain: Any, place: Any, column: Any, start: Any) -> Any:
    """The gradient of a row's partials by its logits, as an epilogue of their product."""
    return kd.exp2(kd.fma(x, LOG2E, top)) * total + kd.where(column + start == place, hit + plain, plain)


@cache
def combine_slope_kernel(problem: CrossEntropy, ranks: int) -> Any:
    """The kernel `(dloss, partials (ranks, 4, M), targets, lse (M,)) -> the gradient of partials`."""

    def body(dloss: Any, partials: Any, targets: Any, lse: Any, out: Any) -> None:
        p = problem.at_launch(targets)
        rows = kd.ds(kd.program_id(0) * WIDTH, WIDTH)
        _, counts = _counts(targets, rows, p)
        gate: Any = (dloss[rows] if p.rows else dloss[...]).astype(kd.float32)
        gate = kd.where(counts, gate / count_of(targets, p) if p.mean else gate, 0.0)
        for rank in range(ranks):
            share = kd.exp2((partials[rank, TOP, rows] - lse[rows]) * LOG2E) * gate
            out[rank, TOTAL, rows] = share
            out[rank, TOP, rows] = share * partials[rank, TOTAL, rows]
            out[rank, TARGET, rows] = gate * (p.smoothing - 1.0)
            out[rank, SUM, rows] = gate * (-p.smoothing / p.vocab if p.smoothing and p.vocab else 0.0)

    p, parts = problem, (ranks, KINDS, problem.M)
    made = kd.kernel(
        body,
        out_type=kd.ShapeDtypeStruct(parts, kd.float32),
        grid=(kd.cdiv(p.M, WIDTH),),
        shapes=p.shapes((p.M,) if p.rows else None, parts, (p.M,), (p.M,), parts),
        name="cross_entropy_combine_slope",
    )
    return identified(made, problem, ranks)


@cache
def stack_kernel(shapes: tuple[tuple[int, ...], ...], dtype: Any) -> Any:
    """The kernel `(*parts) -> out`: arrays joined along their first axis."""
    width = shapes[0][1] if len(shapes[0]) > 1 else 1

    def body(*refs: Any) -> None:
        *parts, out = refs
        row, first = kd.program_id(0), 0
        for part, shape in zip(parts, shapes, strict=True):

            @kd.when((row >= first) & (row < first + shape[0]))
            def _(part: Any = part, first: int = first) -> None:
                if len(out.shape) == 1:
                    out[row] = part[row - first]
                    return

                @kd.loop(0, kd.cdiv(width, WIDTH))
                def _(step: Any) -> None:
                    columns = kd.ds(step * WIDTH, WIDTH)
                    out[row, columns] = part[row - first, columns]

            first += shape[0]

    rows = sum(shape[0] for shape in shapes)
    made = kd.kernel(
        body,
        out_type=kd.ShapeDtypeStruct((rows, *shapes[0][1:]), dtype),
        grid=(rows,),
        name="cross_entropy_stack",
    )
    return identified(made, shapes, dtype)

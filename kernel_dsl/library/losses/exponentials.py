"""The product of a linear layer's cross-entropy that stores exponentials of logits, and the kernels that turn them into
gradients.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import inf, nan
from typing import Any

import kernel_dsl as kd
from kernel_dsl.kernel import identified
from kernel_dsl.stages import target_named
from kernel_dsl.target import TMA_WGMMA

from ..activations import LOG2E
from ..product_kernels.epilogue import TOP, TOTAL, finite_or_zero
from ..products.arguments import request
from ..products.matmul_options import MatmulOptions
from ..products.operands import turned
from ..products.plan import plan_of
from .kernels import ROWS, TILES, WIDTH, CrossEntropy

FAR = 40.0  # bfloat16, and sums in float32, hold the exponentials of logits up to this magnitude


def goes_by_exponentials(p: CrossEntropy) -> bool:
    """Whether the product stores exponentials: bfloat16 has the exponents of float32, and TMA stores rows of 16 bytes.

    Smoothing subtracts one number from all slopes of a row, which the products can't do.
    """
    fast = target_named(None).supports(TMA_WGMMA)
    return fast and p.dtype == kd.bfloat16 and not p.smoothing and p.V % 8 == 0


@cache
def shift_kernel(problem: CrossEntropy, count: Any, tiles: Any) -> Any:
    """The kernel `sums (2, tiles, M) -> (shifts (M,), again ())`: each row's greatest logit, and whether one is over
    `FAR` in magnitude.
    """

    def body(sums: Any, shifts: Any, again: Any) -> None:
        M = sums.shape[2] if problem.opened else count
        rows = kd.ds(kd.program_id(0) * ROWS, ROWS)

        def add(turn: Any, top: Any) -> Any:
            tops = kd.load(sums, (TOP, kd.ds(turn * TILES, TILES), rows), fill=-inf)
            return kd.maximum(top, kd.max(tops, axis=0))

        of_tiles = sums.shape[1] if problem.opened else tiles
        top = kd.fori_loop(0, kd.cdiv(of_tiles, TILES), add, kd.full((ROWS,), -inf, kd.float32))
        shifts[rows] = finite_or_zero(top)
        here = kd.iota(kd.int32, ROWS) + rows.start < M
        far = kd.max(kd.where(here & (kd.abs(top) > FAR), 1, 0).astype(kd.int32))

        @kd.when(far != 0)
        def _() -> None:
            kd.atomic_max(again, far)

    out = kd.ShapeDtypeStruct((count,), kd.float32), kd.ShapeDtypeStruct((), kd.int32, init=0)
    shapes = problem.shapes((2, tiles, count), (count,))
    made = kd.kernel(body, out_type=out, grid=(kd.cdiv(count, ROWS),), shapes=shapes, name="cross_entropy_shifts")
    return identified(made, count, tiles)


@cache
def slopes_kernel(problem: CrossEntropy, all_rows: Any, tiles: Any) -> Any:
    """The kernel `(sums, shifts, again, x, weight, targets[, bias]) -> (own, losses, lse, left, factors, of_rows)`.

    `all_rows`: the number of rows, `count` in the following.

    `own` (count,) is the exponential of each row's target minus the row's sum. It is the gradient of the target's logit
    times the sum, as the exponentials of other classes are the gradients of their logits times the sum. `factors`
    (count,): 1 / sum, 0 for rows that don't count; `of_rows` (1, count): the same in the dtype of x; `left`: x times
    `factors`. If `again` is not 0, `shifts` were subtracted from the exponents.
    """
    p = problem

    def body(sums: Any, shifts: Any, again: Any, x: Any, weight: Any, targets: Any, *refs: Any) -> None:
        *bias, slopes, losses, lse, left, factors, of_rows = refs
        count = targets.shape[0] if p.opened else all_rows
        first = kd.program_id(0) * ROWS
        rows = kd.ds(first, ROWS)

        def add_tiles(turn: Any, total: Any) -> Any:
            return total + kd.sum(kd.load(sums, (TOTAL, kd.ds(turn * TILES, TILES), rows), fill=0.0), axis=0)

        of_tiles = sums.shape[1] if p.opened else tiles
        total = kd.fori_loop(0, kd.cdiv(of_tiles, TILES), add_tiles, kd.zeros((ROWS,), kd.float32))
        shift = kd.where(again[...] != 0, shifts[rows], 0.0)
        inverse = kd.where(targets[rows] != p.ignore, 1.0 / total, 0.0)
        lse[rows] = shift + kd.log2(total) * (1.0 / LOG2E)
        factors[rows], of_rows[0, rows] = inverse, inverse.astype(p.dtype)

        @kd.loop(0, kd.minimum(ROWS, count - first))
        def _(number: Any) -> None:
            row = first + number
            target = targets[row]
            counts, known = target != p.ignore, (target >= 0) & (target < p.V)
            at = kd.where(known, target, 0).astype(kd.int32)
            own = factors[row]
            steps = kd.cdiv(p.H, WIDTH)

            def add(step: Any, sum_: Any) -> Any:
                part = kd.ds(step * WIDTH, WIDTH)
                value = x[row, part].astype(kd.float32)
                left[row, part] = (value * own).astype(p.dtype)
                return kd.fma(value, weight[at, part].astype(kd.float32), sum_)

            logit = kd.sum(kd.fori_loop(0, steps, add, kd.zeros((WIDTH,), kd.float32)))
            if bias:
                logit = logit + bias[0][at].astype(kd.float32)
            loss = lse[row] - logit
            losses[row] = kd.where(counts, kd.where(known, loss, nan), 0.0)
            base = kd.where(again[...] != 0, shifts[row], 0.0)
            slopes[row] = (kd.exp2((logit - base) * LOG2E) - 1.0 / own).astype(p.dtype)

    count = all_rows
    each = kd.ShapeDtypeStruct((count,), kd.float32)
    out = (
        kd.ShapeDtypeStruct((count,), p.dtype), each, each, kd.ShapeDtypeStruct((count, p.H), p.dtype), each,
        kd.ShapeDtypeStruct((1, count), p.dtype),
    )  # fmt: skip
    row, wide = (count,), (count, p.H)
    shapes = p.shapes(
        (2, tiles, count), row, None, wide, None, row, *[None] * p.bias, row, row, row, wide, row, (1, count)
    )
    made = kd.kernel(body, out_type=out, grid=(kd.cdiv(count, ROWS),), shapes=shapes, name="cross_entropy_slopes")
    return identified(made, problem, count, tiles)


@cache
def place_kernel(problem: CrossEntropy, all_rows: Any) -> Any:
    """The kernel `(own (all_rows,), targets) -> slopes (all_rows, V)`, which stores one element of each row that has a target."""
    p = problem

    def body(own: Any, targets: Any, slopes: Any) -> None:
        count = targets.shape[0] if p.opened else all_rows
        rows = kd.ds(kd.program_id(0) * WIDTH, WIDTH)
        target = targets[rows]
        there = (target != p.ignore) & (target >= 0) & (target < p.V)
        number = kd.iota(kd.int32, WIDTH) + rows.start
        place = kd.where(there & (number < count), target, p.V).astype(kd.int32)  # past the row: no store
        slopes[number, place] = own[rows]

    count = all_rows
    out = kd.ShapeDtypeStruct((count, p.V), p.dtype)
    shapes = p.shapes((count,), (count,), (count, p.V))
    made = kd.kernel(body, out_type=out, grid=(kd.cdiv(count, WIDTH),), shapes=shapes, name="cross_entropy_place")
    return identified(made, problem, count)


def product_of(x: Any, weight: Any, bias: Any, target: str | None = None) -> Any:
    """The plan of the product `x, [weight.T], [*bias, shifts, again] -> (exponentials (M, V), sums (2, tiles, M))`."""
    r = request(x, turned(weight), MatmulOptions(bias=bias, out_dtype=x.dtype), None)
    return plan_of(replace(r, problem=replace(r.problem, softmax=2, exponentials=True)), None, target)


def exponentials(
    p: CrossEntropy, x: Any, weight: Any, targets: Any, bias: Any, first: tuple[Any, Any], how: dict[str, Any]
) -> tuple[Any, ...]:
    """The results of `slopes_kernel` for some rows of x; `first`: zeros for these rows, and a one.

    The exponents are the logits themselves. If one of them is far from 0, the product is computed again, with each
    row's greatest logit subtracted. The host does not know whether this is needed, so it always launches the second
    product, which checks a flag.
    """
    plan, rights, extra = product_of(x, weight, bias), [turned(weight)], [] if bias is None else [bias]
    made, sums = plan.run(x, rights, [*extra, *first], None, None, how["interpret"])
    count, tiles = p.M if p.opened else int(x.shape[0]), p.tiles(int(sums.shape[1]))
    shifts, again = shift_kernel(p, count, tiles)(sums, **how)
    plan.run(x, rights, [*extra, shifts, again], (made, sums), None, how["interpret"])
    own, *rest = slopes_kernel(p, count, tiles)(sums, shifts, again, x, weight, targets, *extra, **how)
    place_kernel(p, count)(own, targets, out=made, **how)
    return made, *rest

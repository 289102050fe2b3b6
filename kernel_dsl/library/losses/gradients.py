"""The gradients of a linear layer's cross-entropy beside its loss, by three products instead of four.

Some rows' logits are in memory at a time, and the gradient of the weights grows from some rows to the next. There are
two forms:

- `by_exponentials`, of bfloat16: the product's epilogue stores exp(logit) and the sums of these. The factor of a row, 1
  / sum, becomes a factor of the rows of the two products that follow, so no kernel reads all logits again.
- Otherwise the logits are stored in float32. One kernel reads them twice, the second time from L2, and stores the loss
  of each row and the gradients of its logits.
"""

from __future__ import annotations

from functools import cache
from math import inf, nan
from typing import Any

import kernel_dsl as kd
from kernel_dsl.dtypes import as_dtype
from kernel_dsl.jax import is_traced
from kernel_dsl.kernel import identified

from ..activations import LOG2E
from ..differentiable import FUNCTIONS
from ..product_kernels.epilogue import finite_or_zero
from ..products.operands import turned
from .arguments import NAME, CrossEntropyCall, check_targets, problem_of
from .exponentials import exponentials, goes_by_exponentials
from .kernels import CrossEntropy, count_of, opened, reduce_kernel, stack_kernel

WORKSPACE = 1 << 31  # bytes of logits at a time; their gradients are half as many, in 16 bits
UNIT = 128  # the number of rows at a time is a multiple of this
DEEP = 2048  # with more columns of x, a product takes longer than moving its result to memory and back
WIDTH = 2048  # logits that a block has at a time


@cache
def rows_kernel(problem: CrossEntropy, rows: Any) -> Any:
    """The kernel `(logits (rows, V), targets (rows,)) -> (gradients of logits (rows, V), losses (rows,), lse (rows,))`."""
    p = problem
    low = p.smoothing / p.V if p.smoothing else 0.0

    def body(logits: Any, targets: Any, slopes: Any, losses: Any, lse: Any) -> None:
        row = kd.program_id(0)
        target = targets[row]
        steps = kd.cdiv(p.V, WIDTH)

        def add(step: Any, carry: Any) -> Any:
            top, total, plain = carry
            part = kd.ds(step * WIDTH, WIDTH)
            x = kd.load(logits, (row, part), fill=-inf)
            after = kd.maximum(top, x)
            base = finite_or_zero(after)
            total = total * kd.exp2((top - base) * LOG2E) + kd.exp2((x - base) * LOG2E)
            return after, total, plain + logits[row, part] if p.smoothing else plain

        nothing = kd.zeros((WIDTH,), kd.float32)
        tops, totals, plain = kd.fori_loop(0, steps, add, (kd.full((WIDTH,), -inf, kd.float32), nothing, nothing))
        base = finite_or_zero(kd.max(tops))
        log = base + kd.log2(kd.sum(totals * kd.exp2((tops - base) * LOG2E))) * (1.0 / LOG2E)
        counts, known = target != p.ignore, (target >= 0) & (target < p.V)
        place = kd.where(counts & known, target, -1).astype(kd.int32)
        logit = kd.where(known, logits[row, kd.maximum(place, 0)], nan)
        loss = log - logit
        if p.smoothing:
            loss = log - logit * (1.0 - p.smoothing) - kd.sum(plain) * low
        losses[row], lse[row] = kd.where(counts, loss, 0.0), log
        gate, shift = kd.where(counts, 1.0, 0.0), log * -LOG2E

        @kd.loop(0, steps)
        def _(step: Any) -> None:
            part = kd.ds(step * WIDTH, WIDTH)
            column = kd.iota(kd.int32, WIDTH) + step * WIDTH
            wanted = kd.where(column == place, 1.0 - p.smoothing + low, low)
            slope = (kd.exp2(kd.fma(logits[row, part], LOG2E, shift)) - wanted) * gate
            slopes[row, part] = slope.astype(p.dtype)

    each = kd.ShapeDtypeStruct((rows,), kd.float32)
    out = kd.ShapeDtypeStruct((rows, p.V), p.dtype), each, each
    shapes = p.shapes((rows, p.V), (rows,), (rows, p.V), (rows,), (rows,))
    made = kd.kernel(body, out_type=out, grid=(rows,), shapes=shapes, name="cross_entropy_rows")
    return identified(made, problem, rows)


@cache
def factor_kernel(problem: CrossEntropy) -> Any:
    """The kernel `targets -> (factor (), ones (1, M), zeros (M,), one ())`: `factor` is the factor of a loss'
    gradients. Ones are in the dtype of x, zeros float32, `one` int32.
    """

    def body(targets: Any, factor: Any, ones: Any, zeros: Any, one: Any) -> None:
        p = problem.at_launch(targets)
        part = kd.ds(kd.program_id(0) * WIDTH, WIDTH)
        ones[0, part] = kd.ones((WIDTH,), p.dtype)
        zeros[part] = kd.zeros((WIDTH,), kd.float32)

        @kd.when(kd.program_id(0) == 0)
        def _() -> None:
            # where no row counts all are times 0
            factor[...] = 1.0 / kd.maximum(count_of(targets, p), 1.0) if p.mean else kd.astype(1.0, kd.float32)
            one[...] = kd.astype(1, kd.int32)

    p = problem
    out = (
        kd.ShapeDtypeStruct((), kd.float32), kd.ShapeDtypeStruct((1, p.M), p.dtype), kd.ShapeDtypeStruct((p.M,), kd.float32),
        kd.ShapeDtypeStruct((), kd.int32),
    )  # fmt: skip
    shapes = p.shapes((p.M,), None, (1, p.M), (p.M,))
    made = kd.kernel(body, out_type=out, grid=(kd.cdiv(p.M, WIDTH),), shapes=shapes, name="cross_entropy_factor")
    return identified(made, problem)


def goes_at_once(x: Any, options: dict[str, Any]) -> bool:
    """Whether gradients are computed together with the loss. They are not if each row's loss has its own gradient."""
    return options["reduction"] != "none" and options["vocab_start"] is None and x.shape[1] >= DEEP and x.shape[0] > 0


def loss_and_gradients(
    x: Any, weight: Any, targets: Any, bias: Any, options: dict[str, Any], interpret: Any, rows: int | None = None
) -> tuple[Any, ...]:
    """(loss, lse, dx, dweight[, dbias]) of `linear_cross_entropy` with a reduction; `rows`: the number of rows at a time.

    Gradients are for a loss whose own gradient is 1, in the dtypes of their arrays, and the same bits each time.
    """
    call = CrossEntropyCall(NAME, **options)
    p = problem_of(x, weight, targets, bias, call)
    check_targets(p, targets, call)
    how, matmul = {"interpret": interpret}, FUNCTIONS["matmul"]
    count = min(max((rows or WORKSPACE // (4 * p.V)) // UNIT * UNIT, 1 if rows is None else rows), p.M)
    q = opened(p)
    factor, ones, *first_pass = factor_kernel(q)(targets, **how)
    fixed = is_traced([factor]) or hasattr(factor, "addressable_shards")  # such arrays can be written only once
    by_exponentials = not fixed and goes_by_exponentials(p)
    if by_exponentials:
        count = min(2 * count, p.M) if rows is None else count  # float32 logits take the space of two in 16 bits
    parts: list[tuple[Any, ...]] = []
    sums: dict[str, Any] = {}

    def grow(name: str, a: Any, b: Any, dtype: Any, last: bool) -> None:
        more: dict[str, Any] = {"scale": factor, "out_dtype": dtype if last else kd.float32, **how}
        if name in sums:
            more["c"] = sums[name]
            if not last and not fixed:
                more["out"] = sums[name]
        sums[name] = matmul(a, b, **more)

    for first in range(0, p.M, count):
        own = slice(first, min(first + count, p.M))
        last = own.stop == p.M
        scaled: dict[str, Any] = {}
        if by_exponentials:
            at_first = first_pass[0][own], first_pass[1]
            slopes, losses, lse, left, factors, of_rows = exponentials(
                q, x[own], weight, targets[own], bias, at_first, how
            )
            scaled["a_scale"] = factors
        else:
            logits = matmul(x[own], turned(weight), bias=bias, out_dtype=kd.float32, **how)
            slopes, losses, lse = rows_kernel(q, q.M if q.opened else own.stop - first)(logits, targets[own], **how)
            left, of_rows = x[own], ones[:, own]
            del logits
        parts.append((losses, lse, matmul(slopes, weight, **scaled, scale=factor, out_dtype=p.dtype, **how)))
        grow("weight", turned(slopes), left, as_dtype(weight.dtype), last)
        if bias is not None:
            grow("bias", of_rows, slopes, as_dtype(bias.dtype), last)
    losses, lse, dx = (_stacked(list(found), how) for found in zip(*parts, strict=True))
    loss = reduce_kernel(q)(losses, targets, **how)
    return loss, lse, dx, sums["weight"], *([] if bias is None else [sums["bias"].reshape(-1)])


def keeps_exponentials(p: CrossEntropy) -> bool:
    """Whether all exponentials are kept until the gradient of the loss is known. It is then a factor of the
    products.
    """
    return goes_by_exponentials(p) and 2 * p.M * p.V <= WORKSPACE


def loss_and_exponentials(p: CrossEntropy, x: Any, weight: Any, targets: Any, bias: Any, how: Any) -> tuple[Any, ...]:
    """(loss, lse, the argument `kept` of `gradients_of`)."""
    p = opened(p)
    factor, _, *at_first = factor_kernel(p)(targets, **how)
    slopes, losses, lse, left, factors, of_rows = exponentials(
        p, x, weight, targets, bias, (at_first[0], at_first[1]), how
    )
    return reduce_kernel(p)(losses, targets, **how), lse, slopes, left, factors, of_rows, factor


def gradients_of(
    gradient: Any, weight: Any, bias: Any, kept: tuple[Any, Any, Any, Any, Any], how: dict[str, Any]
) -> tuple[Any, ...]:
    """(dx, dweight[, dbias]) of a loss with this `gradient`; `kept`: the last result of `loss_and_exponentials`."""
    slopes, left, factors, of_rows, factor = kept
    matmul, more = FUNCTIONS["matmul"], {"scale": gradient * factor, **how}
    dx = matmul(slopes, weight, a_scale=factors, out_dtype=as_dtype(left.dtype), **more)
    dweight = matmul(turned(slopes), left, out_dtype=as_dtype(weight.dtype), **more)
    if bias is None:
        return dx, dweight
    return dx, dweight, matmul(of_rows, slopes, out_dtype=as_dtype(bias.dtype), **more).reshape(-1)


def _stacked(parts: list[Any], how: dict[str, Any]) -> Any:
    """Arrays joined along the first axis."""
    if len(parts) == 1:
        return parts[0]
    return stack_kernel(tuple(tuple(x.shape) for x in parts), as_dtype(parts[0].dtype))(*parts, **how)

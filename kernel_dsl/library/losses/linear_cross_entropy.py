"""`kd.library.linear_cross_entropy`, its gradients, and the combination of parts of a vocabulary, as plain functions.

The logits are never in memory: the product's tiles store two numbers a row. For the gradients the product is computed
again, some thousand classes at a time; its epilogue stores the gradients of these classes' logits, in the dtype of x.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import kernel_dsl as kd
from kernel_dsl.boundary import checks_itself, public
from kernel_dsl.dtypes import as_dtype
from kernel_dsl.jax import is_traced
from kernel_dsl.named import Named

from ..differentiable import host_of
from ..first_sizes import is_closed, is_later, takes_dims
from ..latest import without_unwritten
from ..products.arguments import request
from ..products.checks import check_options
from ..products.matmul import MANY, known_plan, matmul, signature
from ..products.matmul_config import MatmulConfig
from ..products.matmul_options import MatmulOptions
from ..products.operands import turned
from ..products.plan import plan_of
from ..refusals import check_plain_tensors
from .arguments import (
    BACKWARD,
    COMBINE,
    NAME,
    CrossEntropyCall,
    check_gradient,
    check_partials,
    check_targets,
    problem_of,
)
from .derivatives import cross_entropy_combine as combine_differentiable
from .derivatives import linear_cross_entropy as differentiable
from .kernels import (
    CrossEntropy,
    combine_slope_kernel,
    loss_kernel,
    merge_kernel,
    opened,
    partial_factor_kernel,
    partial_prepare_kernel,
    partial_slope,
    prepare_kernel,
    reduce_kernel,
    slope,
    stack_kernel,
)

WORKSPACE = 1 << 28  # bytes of gradients of logits at a time
UNIT = 1024  # the number of classes at a time is a multiple of this
OPTIONS = ("ignore_index", "label_smoothing", "reduction", "vocab_start")


@dataclass(frozen=True)
class CrossEntropyPlan:
    """A problem, the problem of the small kernels, which may take any number of rows, and the product's kernels."""

    problem: CrossEntropy
    kernels: CrossEntropy
    product: Any

    def partials(self, x: Any, weight: Any, targets: Any, bias: Any, how: dict[str, Any]) -> Any:
        """float32 (4, M) of x and these rows of weight."""
        extra = [] if bias is None else [bias]
        sums = self.product.run(x, [turned(weight)], extra, None, how["stream"], how["interpret"])
        kinds, tiles, _ = sums.shape
        return merge_kernel(self.kernels, self.kernels.tiles(tiles), kinds)(sums, x, weight, targets, *extra, **how)


def classes_at_once(p: CrossEntropy) -> int:
    """The number of classes whose gradients of logits fit the workspace. It is the same for all numbers of rows up to
    the next power of two.
    """
    rows = 1 << max(p.M - 1, 0).bit_length()
    return WORKSPACE // (rows * p.dtype.itemsize) // UNIT * UNIT


def _losses(p: CrossEntropy, partials: Any, targets: Any, lse: bool, how: dict[str, Any]) -> Any:
    """The results of a call, from partials (ranks, 4, M)."""
    losses, logs = loss_kernel(p, partials.shape[0])(partials, targets, **how)
    result = losses if p.rows else reduce_kernel(p)(losses, targets, **how)
    return (result, logs) if lse else result


@partial(public, name=NAME)
class LinearCrossEntropy(Named):
    """`linear_cross_entropy(x, weight, targets)`: the cross-entropy of the logits x @ weight.T + bias, which are never
    in memory.

    x (M, H) and weight (V, H) are float16, bfloat16 or float32, in any strides; targets (M,) int32 or int64, classes
    from 0 to V - 1; bias (V,) float. Rows whose target is `ignore_index` have a loss of 0; a target that is no class
    gives NaN, and an error if the host can read the targets. With s the `label_smoothing`, from 0 to 1, the loss of a
    row is lse - (1 - s) * logit of the target - s * mean of all logits. `reduction`: "mean" over the rows that count
    (NaN if none does, with gradients of 0), "sum", or "none".

    Returns float32 () or (M,). `return_lse=True` also gives the natural logarithm of each row's sum of exponentials,
    float32 (M,), which `linear_cross_entropy_backward` takes; it has a gradient, too. Sums are float32; the same inputs
    give the same bits.

    With `vocab_start`, weight is a part of the vocabulary: its first row is class number `vocab_start`, and targets are
    classes of the whole vocabulary. The result is then float32 (4, M), the partials: for each row the greatest logit of
    this part, the sum of exp(logit - greatest), the target's logit if it is in this part, else 0, and with
    `label_smoothing` the sum of the part's logits, else 0. All parts, stacked as (ranks, 4, M), go to
    `linear_cross_entropy_combine`. Gradients of partials are right only if the first two are used as greatest +
    log(sum).

    `config`: a `MatmulConfig`, for Hopper's fast kernel. `stream`, `interpret`: as for kernels. Raises
    `BadCallArgument` for wrong arrays, `BadCallValue` for shapes and numbers that don't fit. The loss is computed
    without logits as by Wijmans et al. (2024), with the product of `matmul`.
    """

    _called = "library.linear_cross_entropy"

    def __init__(self) -> None:
        self._plans: dict[Any, CrossEntropyPlan] = {}

    @checks_itself("ignore_index", "label_smoothing", "reduction", "vocab_start", "config")
    def __call__(
        self,
        x: Any,
        weight: Any,
        targets: Any,
        *,
        bias: Any = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        vocab_start: int | None = None,
        return_lse: bool = False,
        config: MatmulConfig | None = None,
        stream: Any = None,
        interpret: Any = None,
    ) -> Any:
        call = CrossEntropyCall(NAME, ignore_index, label_smoothing, reduction, vocab_start)
        if host := host_of(x, weight, bias):
            options = {n: x for n, x in vars(call).items() if n in OPTIONS}
            given = {"stream": stream, "interpret": interpret}
            return differentiable(host, x, weight, targets, bias, options, return_lse, config, given)
        plan = self._plan(x, weight, targets, bias, call, return_lse, config, None)
        how = {"stream": stream, "interpret": interpret}
        partials = plan.partials(x, weight, targets, bias, how)
        if vocab_start is not None:
            return partials
        return _losses(plan.kernels, partials.reshape(1, *partials.shape), targets, return_lse, how)

    @checks_itself("ignore_index", "label_smoothing", "reduction", "vocab_start", "config", "target")
    @takes_dims(NAME, lambda _: {"x": (-1,), "weight": (-1, -2), "bias": (0,)})
    def lower(
        self,
        x: Any,
        weight: Any,
        targets: Any,
        *,
        bias: Any = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
        vocab_start: int | None = None,
        config: MatmulConfig | None = None,
        target: str | None = None,
    ) -> Any:
        """The stages of the kernel that multiplies in a call with such arguments. The number of tokens may be a Dim."""
        call = CrossEntropyCall(NAME, ignore_index, label_smoothing, reduction, vocab_start)
        plan = self._plan(x, weight, targets, bias, call, False, config, target)
        return plan.product.lower(x, [turned(weight)], [] if bias is None else [bias], target)

    def _plan(
        self,
        x: Any,
        weight: Any,
        targets: Any,
        bias: Any,
        call: CrossEntropyCall,
        lse: bool,
        config: Any,
        target: str | None,
    ) -> CrossEntropyPlan:
        key = (tuple([signature(a, NAME) for a in (x, weight, targets, bias)]), call, lse, config, target, is_later())
        found = known_plan(self._plans, key, NAME, {**vars(call), "config": config, "target": target})
        if found is None:
            p = problem_of(x, weight, targets, bias, call)
            if lse and call.vocab_start is not None:
                raise call.value(
                    "return_lse beside vocab_start", "`linear_cross_entropy_combine` returns those of all parts"
                )
            found = _made(p, x, weight, bias, config, target)
            if len(self._plans) >= MANY:
                self._plans.clear()
            self._plans[key] = found
        check_targets(found.problem, targets, call)
        return found


def combine_backward(
    gradient: Any, partials: Any, targets: Any, lse: Any, call: CrossEntropyCall, interpret: Any
) -> Any:
    """The gradient of the partials in `linear_cross_entropy_combine`."""
    p = opened(check_partials(partials, targets, call))
    return combine_slope_kernel(p, int(partials.shape[0]))(gradient, partials, targets, lse, interpret=interpret)


def _made(p: CrossEntropy, x: Any, weight: Any, bias: Any, config: Any, target: str | None) -> CrossEntropyPlan:
    o = MatmulOptions(bias=bias, out_dtype=kd.float32, config=config)
    check_options(o)
    r = request(x, turned(weight), o, None)
    problem = replace(r.problem, softmax=3 if p.smoothing else 2, lanes=0)
    plan = plan_of(replace(r, problem=problem), config, target)
    return CrossEntropyPlan(p, p if is_closed(target) else opened(p), plan)


@partial(public, name=COMBINE)
@checks_itself("ignore_index", "label_smoothing", "reduction", "vocab")
def linear_cross_entropy_combine(
    partials: Any,
    targets: Any,
    *,
    vocab: int | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    return_lse: bool = False,
    stream: Any = None,
    interpret: Any = None,
) -> Any:
    """The loss of a vocabulary in parts.

    `partials` float32 (ranks, 4, M), the results of `linear_cross_entropy(vocab_start=)`. targets (M,) and options are
    those of the calls that made them; `vocab`: the number of classes in all parts, which `label_smoothing` needs.
    Returns float32 () or (M,), as `linear_cross_entropy` does, and with `return_lse=True` the logarithms, float32 (M,).
    Raises the errors of `linear_cross_entropy`. Parts are combined as in the online softmax (Milakov and Gimelshein,
    2018).
    """
    call = CrossEntropyCall(COMBINE, ignore_index, label_smoothing, reduction, None, vocab)
    if host := host_of(partials):
        return combine_differentiable(
            host, partials, targets, call, return_lse, {"stream": stream, "interpret": interpret}
        )
    p = check_partials(partials, targets, call)
    check_targets(p, targets, call)
    return _losses(opened(p), partials, targets, return_lse, {"stream": stream, "interpret": interpret})


@partial(public, name=BACKWARD)
@checks_itself("ignore_index", "label_smoothing", "reduction", "vocab_start", "vocab", "chunk")
def linear_cross_entropy_backward(
    dloss: Any,
    x: Any,
    weight: Any,
    targets: Any,
    lse: Any,
    *,
    bias: Any = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    vocab_start: int | None = None,
    vocab: int | None = None,
    chunk: int | None = None,
    stream: Any = None,
    interpret: Any = None,
) -> Any:
    """The gradients (dx, dweight), then dbias if there is a bias, in the dtypes of x, weight and bias.

    Arrays and options are those of the call of `linear_cross_entropy`; lse, float32 (M,), is its result with
    `return_lse=True`, and dloss the gradient of its loss: a number or an array of one, or (M,) if `reduction` is
    "none". `chunk`: the number of classes whose gradients of logits are in memory at once, in the dtype of x; by
    default as many as take 256 MiB. With `vocab_start`, weight is a part of a vocabulary of `vocab` classes (which
    `label_smoothing` needs), lse is that of all parts, and the sum of all parts' dx is the gradient of x. The same
    inputs give the same bits. Raises `BadCallArgument` for wrong arrays, `BadCallValue` for shapes and numbers that
    don't fit. `stream`, `interpret`: as for kernels. The products are those of `matmul`.
    """
    check_plain_tensors(BACKWARD, {"dloss": dloss, "x": x, "weight": weight, "lse": lse, "bias": bias})
    call = CrossEntropyCall(BACKWARD, ignore_index, label_smoothing, reduction, vocab_start, vocab)
    p = problem_of(x, weight, targets, bias, call)
    check_targets(p, targets, call)
    dloss = check_gradient(dloss, lse, p, call)
    width = call.chunk(chunk, p, classes_at_once(p))
    how = {"stream": stream, "interpret": interpret}
    wdtype, bdtype = (None if a is None else as_dtype(a.dtype) for a in (weight, bias))
    quiet = how | {"interpret": without_unwritten(interpret)}  # products write the gradients
    made = prepare_kernel(opened(p), width, wdtype, bdtype)(dloss, targets, lse, **quiet)
    logs, gates, places, factor, columns, dweight, *more = made
    gradients = _EntropyGradients(
        p, x, weight, bias, dweight, more[1] if more else None, how, slope(p.smoothing, p.vocab)
    )
    return gradients.of_all((logs, gates, places, columns), width, factor, more[0] if more else None)


def partials_backward(
    gradient: Any, x: Any, weight: Any, targets: Any, partials: Any, bias: Any, call: CrossEntropyCall, interpret: Any
) -> tuple[Any, ...]:
    """The gradients (dx, dweight[, dbias]) of partials of `linear_cross_entropy(vocab_start=)`, from `gradient` (4, M).

    Later steps use only greatest + log(sum), so the gradient of the sum is enough.
    """
    p = problem_of(x, weight, targets, bias, call)
    how = {"stream": None, "interpret": interpret}
    width = call.chunk(None, p, classes_at_once(p))
    wdtype, bdtype = (None if a is None else as_dtype(a.dtype) for a in (weight, bias))
    q = opened(p)
    factor = partial_factor_kernel(q)(gradient, **how)
    quiet = how | {"interpret": without_unwritten(interpret)}  # products write the gradients
    made = partial_prepare_kernel(q, width, wdtype, bdtype)(gradient, partials, targets, factor, **quiet)
    *rows, dweight = made[:7]
    more = made[7:]
    gradients = _EntropyGradients(p, x, weight, bias, dweight, more[1] if more else None, how, partial_slope)
    return gradients.of_all(tuple(rows), width, factor, more[0] if more else None)


class _EntropyGradients:
    """Gradients that are computed some classes at a time. JAX's arrays can't be written twice, so their parts are
    joined at the end.
    """

    def __init__(
        self, p: CrossEntropy, x: Any, weight: Any, bias: Any, dweight: Any, dbias: Any, how: Any, function: Any
    ) -> None:
        self.p, self.x, self.weight, self.bias, self.how = p, x, weight, bias, how
        self.dx: Any = None
        self.whole = [dweight] if dbias is None else [dweight, dbias]
        self.parts: list[list[Any]] = [[] for _ in self.whole]
        self.fixed = is_traced([dweight]) or hasattr(dweight, "addressable_shards")
        self.function = function

    def of_all(self, rows: tuple[Any, ...], width: int, factor: Any, ones: Any) -> tuple[Any, ...]:
        """(dx, dweight[, dbias]); `rows`: the values of each row for `function`, and last the numbers of `width` classes."""
        for first in range(0, self.p.V, width):
            self.add(first, min(width, self.p.V - first), rows, factor, ones)
        return self.done()

    def add(self, first: int, count: int, rows: Any, factor: Any, ones: Any) -> None:
        """Add the part of some classes, from number `first` on, to all gradients."""
        p, how = self.p, self.how
        own = slice(first, first + count)
        *of_rows, columns = rows
        weight = self.weight[own]
        slopes = matmul(
            self.x,
            turned(weight),
            bias=None if self.bias is None else self.bias[own],
            epilogue=self.function,
            operands=(*of_rows, columns[:, :count], first),
            **how,
        )
        last = first + count == p.V
        options: dict[str, Any] = {"scale": factor, "out_dtype": p.dtype if last else kd.float32, **how}
        if self.dx is not None:
            options["c"] = self.dx
            if not last and not self.fixed:
                options["out"] = self.dx
        self.dx = matmul(slopes, weight, **options)
        self._keep(0, own, turned(slopes), self.x, factor)
        if ones is not None:
            self._keep(1, own, ones, slopes, factor)

    def _keep(self, number: int, own: slice, a: Any, b: Any, factor: Any) -> None:
        whole = self.whole[number]
        options: dict[str, Any] = {"scale": factor, "out_dtype": as_dtype(whole.dtype), **self.how}
        if self.fixed:
            part = matmul(a, b, **options)
            self.parts[number].append(part.reshape(-1) if number else part)
        else:
            out = whole[own].reshape(1, -1) if number else whole[own]
            matmul(a, b, out=out, **options)

    def done(self) -> tuple[Any, ...]:
        """(dx, dweight[, dbias])."""
        if not self.fixed:
            return (self.dx, *self.whole)
        kernels = [stack_kernel(tuple(tuple(x.shape) for x in parts), as_dtype(parts[0].dtype)) for parts in self.parts]
        return (self.dx, *(kernel(*parts, **self.how) for kernel, parts in zip(kernels, self.parts, strict=True)))


linear_cross_entropy: LinearCrossEntropy = LinearCrossEntropy()

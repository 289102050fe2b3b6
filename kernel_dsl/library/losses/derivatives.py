"""Gradients of a linear layer's cross-entropy under JAX and PyTorch, for a whole vocabulary and for its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kernel_dsl.dtypes import as_dtype

from ..differentiable import FUNCTIONS, Derivative, check_plain, keyed
from ..product_kernels.epilogue import TOP, TOTAL
from ..products.derivative_arrays import cast, exponential, stacked, zeros_like
from .arguments import COMBINE, NAME, CrossEntropyCall, check_targets, problem_of
from .gradients import (
    goes_at_once,
    gradients_of,
    keeps_exponentials,
    loss_and_exponentials,
    loss_and_gradients,
)
from .kernels import KINDS


def linear_cross_entropy(
    host: str,
    x: Any,
    weight: Any,
    targets: Any,
    bias: Any,
    options: dict[str, Any],
    lse: bool,
    config: Any,
    how: dict[str, Any],
) -> Any:
    """A call of `linear_cross_entropy`; x, weight and bias have gradients."""
    forward, after = FUNCTIONS["linear_cross_entropy"], FUNCTIONS["linear_cross_entropy_backward"]
    check_plain("linear_cross_entropy", how)
    if options["vocab_start"] is not None:
        return _partials(host, [x, weight, targets, bias], options, config, how["interpret"])
    interpret, rows = how["interpret"], options["reduction"] == "none"
    wanted = host == "jax" or any(getattr(a, "requires_grad", False) for a in (x, weight, bias))
    at_once = bool(wanted and config is None and goes_at_once(x, options))
    call = CrossEntropyCall(NAME, **options)
    # sizes may be symbols; a bool made of them can be part of the op's key
    kept = bool(at_once and host == "torch" and keeps_exponentials(problem_of(x, weight, targets, bias, call)))

    def both(*arrays: Any) -> Any:
        x, weight, targets, *rest = arrays
        bias = rest[0] if rest else None
        if not kept:
            return loss_and_gradients(x, weight, targets, bias, options, interpret)
        p = problem_of(x, weight, targets, bias, call)
        check_targets(p, targets, call)
        return loss_and_exponentials(p, x, weight, targets, bias, {"interpret": interpret})

    def run(*arrays: Any) -> Any:
        bias = arrays[3] if len(arrays) > 3 else None
        return forward(*arrays[:3], bias=bias, **options, return_lse=True, config=config, interpret=interpret)

    def of_loss(gradient: Any, arrays: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        if kept:
            bias = arrays[3] if len(arrays) > 3 else None
            slopes, left, factors, of_rows, factor = results[2:]
            given = (slopes, left, factors, of_rows, factor)
            made = gradients_of(gradient, arrays[1], bias, given, {"interpret": interpret})
            return [*made[:2], None, *made[2:]]
        if at_once:
            made = [cast(gradient * found, found.dtype) for found in results[2:]]
            return [*made[:2], None, *made[2:]]
        bias = arrays[3] if len(arrays) > 3 else None
        x, weight, targets = arrays[:3]
        made = after(gradient, x, weight, targets, results[1], bias=bias, **options, interpret=interpret)
        return [*made[:2], None, *made[2:]]

    def backward(gradient: Any, arrays: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        own, of_lse = gradient if lse else (gradient, None)
        made = of_loss(own, arrays, results)
        if of_lse is None:
            return made
        more = _of_lse(of_lse, arrays, results[1], call, interpret)
        return [None if y is None else cast(x + y, x.dtype) for x, y in zip(made, more, strict=True)]

    def shapes(*arrays: Any) -> list[tuple[tuple[int, ...], Any]]:
        count = arrays[0].shape[0]
        made = [((count,) if rows else (), "float32"), ((count,), "float32")]
        if kept:
            own = as_dtype(arrays[0].dtype)
            wide = [((count, arrays[1].shape[0]), own), (tuple(arrays[0].shape), own)]
            return [*made, *wide, ((count,), "float32"), ((1, count), own), ((), "float32")]
        own = [(tuple(a.shape), as_dtype(a.dtype)) for a in (arrays[0], arrays[1], *arrays[3:])]
        return [*made, *own] if at_once else made

    arrays = [x, weight, targets, *([] if bias is None else [bias])]
    key = (tuple(sorted(keyed(options).items())), config, interpret, at_once, kept, lse)
    can, returned = (True, True, False, True)[: len(arrays)], 2 if lse else 1
    more: dict[str, Any] = {"firsts": returned, "optional": lse}
    name = "linear_cross_entropy"
    if at_once:
        count = 7 if kept else 1 + len(arrays)
        rule = Derivative(name, key, both, backward, shapes, can, count, returned, run, elementwise=not kept, **more)
    else:
        rule = Derivative(name, key, run, backward, shapes, can, 2, returned, **more)
    return rule(host, arrays)


def _of_lse(gradient: Any, arrays: Sequence[Any], lse: Any, call: CrossEntropyCall, interpret: Any) -> tuple[Any, ...]:
    """The gradients of x, weight, targets (None) and bias from one of lse (M,): lse is the greatest logit of partials
    with a sum of 1.
    """
    x, weight, targets, *bias = arrays
    zero = zeros_like(gradient)
    four = stacked([gradient if kind == TOTAL else zero for kind in range(KINDS)])
    after = FUNCTIONS["linear_cross_entropy_partials_backward"]
    own = replace(call, vocab_start=0)
    made = after(four, x, weight, targets, stacked([lse] * KINDS), bias[0] if bias else None, own, interpret)
    return (*made[:2], None, *made[2:])


def _partials(host: str, given: list[Any], options: dict[str, Any], config: Any, interpret: Any) -> Any:
    """The call with `vocab_start`: the partials of a part of a vocabulary."""
    forward, after = FUNCTIONS[NAME], FUNCTIONS["linear_cross_entropy_partials_backward"]
    call = CrossEntropyCall(NAME, **options)

    def run(*arrays: Any) -> Any:
        bias = arrays[3] if len(arrays) > 3 else None
        return (forward(*arrays[:3], bias=bias, **options, config=config, interpret=interpret),)

    def backward(gradient: Any, arrays: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        x, weight, targets, *bias = arrays
        made = after(gradient, x, weight, targets, results[0], bias[0] if bias else None, call, interpret)
        return [*made[:2], None, *made[2:]]

    arrays = [x for x in given if x is not None]
    key = (tuple(sorted(keyed(options).items())), config, interpret)
    can = (True, True, False, True)[: len(arrays)]
    rule = Derivative(
        f"{NAME}_partials", key, run, backward, lambda *arrays: [((4, arrays[0].shape[0]), "float32")], can
    )
    return rule(host, arrays)


def cross_entropy_combine(
    host: str, partials: Any, targets: Any, call: CrossEntropyCall, lse: bool, how: dict[str, Any]
) -> Any:
    """A call of `linear_cross_entropy_combine`; partials have a gradient."""
    forward, after = FUNCTIONS[COMBINE], FUNCTIONS["linear_cross_entropy_combine_backward"]
    check_plain(COMBINE, how)
    interpret = how["interpret"]
    options = {n: getattr(call, n) for n in ("vocab", "ignore_index", "label_smoothing", "reduction")}

    def run(*arrays: Any) -> Any:
        return forward(*arrays, **options, return_lse=True, interpret=interpret)

    def backward(gradient: Any, arrays: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        own, of_lse = gradient if lse else (gradient, None)
        logs = results[1]
        made = after(own, *arrays, logs, call, interpret)
        if of_lse is not None:
            tops, totals = arrays[0][:, TOP], arrays[0][:, TOTAL]
            slope = exponential(tops - logs) * of_lse
            zero = zeros_like(slope)
            parts = {TOP: slope * totals, TOTAL: slope}
            made = made + stacked([parts.get(kind, zero) for kind in range(KINDS)], 1)
        return [made, None]

    def shapes(*arrays: Any) -> list[tuple[tuple[int, ...], Any]]:
        rows = (arrays[0].shape[2],)
        return [(rows if options["reduction"] == "none" else (), "float32"), (rows, "float32")]

    key, count = (tuple(sorted(keyed(options).items())), interpret, lse), 2 if lse else 1
    rule = Derivative(COMBINE, key, run, backward, shapes, (True, False), 2, count, firsts=count, optional=lse)
    return rule(host, [partials, targets])

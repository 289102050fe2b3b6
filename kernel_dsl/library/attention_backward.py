"""`kd.library.attention_backward`: the gradients of `kd.library.attention` as a plain function."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import kernel_dsl as kd
from kernel_dsl.boundary import checks_itself, public
from kernel_dsl.diagnostics import shown
from kernel_dsl.dtypes import as_dtype
from kernel_dsl.errors import BadCallArgument, BadCallValue
from kernel_dsl.stages import target_named
from kernel_dsl.target import Feature

from .attention import describe, tma_refusal
from .attention_backward_ends import finish_kernel, stats_kernel, sum_kernel
from .attention_backward_general import gradient_kernels
from .attention_backward_kernel import KEYS, backward_kernel
from .attention_backward_walk import EIGHT, AttentionBackwardConfig, makespan, step_counts
from .attention_backward_wide import wide_kernel
from .attention_kernel import ROWS, AttentionProblem
from .matmul import MANY, check_counts, known_plan, signature

_log = logging.getLogger("kernel_dsl")
NAME = "attention_backward"


@dataclass(frozen=True)
class _General:
    """The kernels that take anything."""

    by_query: Any
    by_key: Any

    def __call__(self, arrays: tuple[Any, ...], how: dict[str, Any]) -> tuple[Any, Any, Any]:
        return (self.by_query(*arrays, **how), *self.by_key(*arrays, **how))


@dataclass(frozen=True)
class _Fast:
    """The kernels for Hopper."""

    rows: int  # of a tile of the sum
    stats: Any
    main: Any
    sum: Any  # None where there are no parts
    finish: Any

    def __call__(self, arrays: tuple[Any, ...], how: dict[str, Any]) -> tuple[Any, Any, Any]:
        dout, q, k, v, out, lse = arrays
        stats = self.stats(out, dout, lse, **how)
        dk, dv, dq_sum = self.main(q, k, v, dout, stats, **how)
        if self.sum is not None:
            dk, dv = self.sum(dk, dv, **how)
        return self.finish(dq_sum.reshape(-1, self.rows, EIGHT), **how), dk, dv


@partial(public, name=NAME)
class AttentionBackward:
    """`attention_backward(dout, q, k, v, out, lse)`: (dq, dk, dv), in the dtype of q, k and v.

    q (batch, heads, queries, dim), k and v (batch, kv_heads, keys, dim), and `causal` and `scale` are what `attention` had;
    out, of q's shape, and lse, float32 (batch, heads, queries), are what it returned with `return_lse=True`; dout is the
    gradient of out. `deterministic`: the same inputs give the same bits each time. `config`: an `AttentionBackwardConfig`;
    `stream`, `interpret`: as for kernels. Arrays that TMA or wgmma can't take go to slower kernels, with a log line. Raises
    `BadCallArgument` for what are no such arrays, `BadCallValue` for shapes that don't fit, no keys, or a `scale` that is
    not positive.
    """

    def __init__(self) -> None:
        self._plans: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return "<kd.library.attention_backward>"

    @checks_itself("scale", "config")
    def __call__(
        self,
        dout: Any,
        q: Any,
        k: Any,
        v: Any,
        out: Any,
        lse: Any,
        *,
        causal: bool = False,
        scale: float | None = None,
        deterministic: bool = False,
        config: AttentionBackwardConfig | None = None,
        stream: Any = None,
        interpret: Any = None,
    ) -> tuple[Any, Any, Any]:
        arrays = (dout, q, k, v, out, lse)
        return self._plan(arrays, causal, scale, deterministic, config, None)(
            arrays, {"stream": stream, "interpret": interpret}
        )

    @checks_itself("scale", "config", "target")
    def lower(
        self,
        dout: Any,
        q: Any,
        k: Any,
        v: Any,
        out: Any,
        lse: Any,
        *,
        causal: bool = False,
        scale: float | None = None,
        deterministic: bool = False,
        config: AttentionBackwardConfig | None = None,
        target: str | None = None,
    ) -> tuple[Any, ...]:
        """The stages of the kernels that a call with such arguments runs, in order."""
        arrays = (dout, q, k, v, out, lse)
        plan = self._plan(arrays, causal, scale, deterministic, config, target)
        if isinstance(plan, _General):
            return tuple(kernel.lower(*arrays, target=target) for kernel in (plan.by_query, plan.by_key))
        first = plan.stats.lower(out, dout, lse, target=target)
        (stats,) = first.traced.outputs
        main = plan.main.lower(q, k, v, dout, kd.ShapeDtypeStruct(stats.shape, stats.dtype), target=target)
        dk, _, sums = main.traced.outputs
        parts = kd.ShapeDtypeStruct(dk.shape, dk.dtype)
        middle = () if plan.sum is None else (plan.sum.lower(parts, parts, target=target),)
        dq_sum = kd.ShapeDtypeStruct((math.prod(sums.shape) // (plan.rows * EIGHT), plan.rows, EIGHT), kd.float32)
        return first, main, *middle, plan.finish.lower(dq_sum, target=target)

    def _plan(
        self,
        arrays: tuple[Any, ...],
        causal: bool,
        scale: float | None,
        deterministic: bool,
        config: AttentionBackwardConfig | None,
        target: str | None,
    ) -> Any:
        options = {"causal": causal, "scale": scale, "deterministic": deterministic, "config": config, "target": target}
        key = (*[signature(x, NAME) for x in arrays], *options.values())
        found = known_plan(self._plans, key, NAME, options)
        if found is None:
            if len(self._plans) >= MANY:
                self._plans.clear()
            found = self._plans[key] = self._kernels(arrays, causal, scale, deterministic, config, target)
        return found

    def _kernels(
        self,
        arrays: tuple[Any, ...],
        causal: bool,
        scale: float | None,
        deterministic: bool,
        config: AttentionBackwardConfig | None,
        target: str | None,
    ) -> Any:
        dout, q, k, v, out, lse = arrays
        problem = describe(q, k, v, causal, scale, False, NAME)
        check_results(problem, dout, out, lse)
        check_config(config, problem)
        machine = target_named(target)
        why = refusal(problem, {"q": q, "k": k, "v": v, "dout": dout}, machine)
        if why:
            _log.info("attention_backward: %s; using the general kernels", why)
            return _General(*gradient_kernels(problem))
        blocks = machine.limits.multiprocessors
        chosen = replace(config, in_turn=True) if config and deterministic else config
        chosen = chosen or default_config(problem, blocks, deterministic)
        wide = problem.dim > KEYS
        main = (wide_kernel if wide else backward_kernel)(problem, chosen, blocks)
        rows = chosen.block_q if wide else problem.dim
        parts = sum_kernel(problem, chosen.splits) if chosen.splits > 1 else None
        return _Fast(rows, stats_kernel(problem, chosen), main, parts, finish_kernel(problem, chosen, wide))


def default_config(p: AttentionProblem, multiprocessors: int, in_turn: bool = False) -> AttentionBackwardConfig:
    """As many queries a step as registers and SMEM allow, and as many splits as make blocks for all multiprocessors."""
    if p.dim <= 64:
        config = AttentionBackwardConfig(128)
    elif p.dim <= KEYS:
        config = AttentionBackwardConfig(64, stages=3, dout_stages=3)
    elif p.dim <= 192:
        config = AttentionBackwardConfig(64)
    else:
        config = AttentionBackwardConfig(64, dout_stages=1, dq_parts=2)
    config = replace(config, in_turn=in_turn)
    keys = KEYS if p.dim <= KEYS else ROWS
    heads = p.batch * p.kv_heads
    if heads * kd.cdiv(p.keys, keys) > 4 * multiprocessors:
        return config
    choices = [replace(config, splits=n) for n in (1, 2, 3, 4, 6, 8, 12, 16)]
    ends = [end_of(p, c, keys, multiprocessors) for c in choices]
    return next(c for c, end in zip(choices, ends, strict=True) if end <= 1.05 * min(ends))


def end_of(p: AttentionProblem, config: AttentionBackwardConfig, keys: int, multiprocessors: int) -> float:
    """When the last block ends, in steps, and what the sum of several parts costs: each takes as long as some steps."""
    lengths = [n for n in step_counts(p, config, keys) for _ in range(config.splits)]
    heads = p.batch * p.kv_heads
    return makespan(lengths, heads, heads, multiprocessors) + (2 * config.splits if config.splits > 1 else 0)


def check_results(p: AttentionProblem, dout: Any, out: Any, lse: Any) -> None:
    """Raise `BadCallArgument`, `BadCallValue` unless these are the forward's results and a gradient of them."""
    shape = (p.batch, p.heads, p.queries, p.dim)
    for name, x, wanted, dtype in (
        ("dout", dout, shape, p.dtype),
        ("out", out, shape, p.dtype),
        ("lse", lse, shape[:3], kd.float32),
    ):
        if not isinstance(getattr(x, "shape", None), tuple) or not hasattr(x, "dtype"):
            what = f"{name} is a {type(x).__name__}"
            raise BadCallArgument(kernel=NAME, what=what, hint="pass what `attention` returned with `return_lse=True`")
        if tuple(x.shape) != wanted:
            what = f"{name} is {shown(tuple(x.shape))}"
            raise BadCallValue(kernel=NAME, what=what, hint=f"its shape is {wanted}")
        if as_dtype(x.dtype) != dtype:
            raise BadCallArgument(kernel=NAME, what=f"{name} is {as_dtype(x.dtype)}", hint=f"it is {dtype}")


def check_config(config: Any, p: AttentionProblem) -> None:
    """Raise `BadCallArgument`, `BadCallValue` for what is no configuration, or one whose parts don't make up a step."""
    if config is None:
        return
    if not isinstance(config, AttentionBackwardConfig):
        what = f"config is a {type(config).__name__}"
        raise BadCallArgument(kernel=NAME, what=what, hint="an `AttentionBackwardConfig`, or None to have one chosen")
    check_counts(config, NAME)
    if p.dim > KEYS and (config.apart or config.turns):
        what = f"config.apart={config.apart}, config.turns={config.turns} for a head dimension of {p.dim}"
        raise BadCallValue(kernel=NAME, what=what, hint="beyond 128 consumers do different things, and take no turns")
    if p.dim > KEYS:
        unit, parts, good = 64, p.dim // 2, config.block_q == 64
    else:
        unit = 16 if p.dim == KEYS else 32
        parts, good = config.block_q * 16 // unit, config.block_q % unit == 0
    if not good:
        what = f"config.block_q={config.block_q}"
        hint = (
            "64, for a head dimension beyond 128"
            if unit == 64
            else f"a multiple of {unit}: wgmma takes 16 queries at once"
        )
        raise BadCallValue(kernel=NAME, what=what, hint=hint)
    if parts % (EIGHT * config.dq_parts):
        what = f"config.dq_parts={config.dq_parts} of {parts} columns"
        raise BadCallValue(kernel=NAME, what=what, hint="each part has 8 columns or a multiple of 8")
    if config.dq_slots > config.dq_parts:
        what = f"config.dq_slots={config.dq_slots} for config.dq_parts={config.dq_parts}"
        raise BadCallValue(kernel=NAME, what=what, hint="no more slots than parts")


def refusal(p: AttentionProblem, arrays: dict[str, Any], target: Any) -> str:
    """Why the fast kernels can't do it; empty where they can."""
    if not target.supports(Feature.WGMMA | Feature.TMA):
        return f"{target} has no wgmma"
    if p.dtype not in (kd.float16, kd.bfloat16):
        return f"{p.dtype} is not a 16-bit float"
    if p.dim not in (64, 128, 192, 256):
        return f"a head dimension of {p.dim} is none of 64, 128, 192, 256"
    if not p.batch or not p.queries or not p.keys:
        return "there is nothing to compute"
    return tma_refusal(arrays)


attention_backward = AttentionBackward()

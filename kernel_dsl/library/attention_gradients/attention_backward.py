"""`kd.library.attention_backward`: the gradients of `kd.library.attention` as a plain function."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import kernel_dsl as kd
from kernel_dsl.boundary import checks_itself, public
from kernel_dsl.dtypes import as_dtype
from kernel_dsl.named import Named
from kernel_dsl.stages import target_named

from ..attention_forward.attention import FAST
from ..attention_forward.options import CHECKED, AttentionOptions, check_lengths, fixed_axes, problem_of
from ..attention_forward.problem import ScoredProblem
from ..attention_forward.sizes import ROWS, AttentionProblem
from ..first_sizes import is_later, takes_dims
from ..latest import UNSEEN, Latest, Launch, launching, results_of, seen_launching
from ..products.matmul import MANY, known_plan, signature
from .checks import NAME, check_config, check_results, refusal
from .ends import finish_kernel, stats_kernel, sum_kernel
from .extras import bias_extras, bias_kernel, sinks_extras, sinks_kernel
from .kernel import backward_kernel, wide_kernel
from .opened import general_of, of_any_keys, plain_opened
from .order import (
    EIGHT,
    KEYS,
    MOST_SPLITS,
    AttentionBackwardConfig,
    WalkNumbers,
    all_at_once,
    first_stores,
    has_tail,
    makespan,
    narrow_config,
    one_block,
    padded,
    shared_by,
    staying_config,
    step_counts,
    summing,
    tail_of,
    together_of,
)
from .plans import GeneralGradients, ScoredGradients, number_structs
from .scored import scored_backward_config
from .scored_sizes import keeps_bias

_log = logging.getLogger("kernel_dsl")


@dataclass(frozen=True)
class _Fast:
    """The kernels for Hopper."""

    rows: int  # rows of a tile of the sum
    stats: Any
    main: Any
    sum: Any  # None without parts
    finish: Any  # None if the main kernel stores the queries' gradient
    sizes: WalkNumbers | None = None  # given if the kernel takes any sizes
    ordered: bool = False  # whether sums have second ones, which the walk's turns tell of

    def launched(
        self, arrays: Sequence[Any], options: AttentionOptions, how: dict[str, Any], launch: Launch
    ) -> tuple[Any, ...]:
        """(dq, dk, dv)."""
        dout, q, k, v, out, lse = arrays
        dlse = options.dlse  # in place of `options.rows`: each Python call counts in a repeated step
        stats = launch(self.stats, (out, dout, lse) if dlse is None else (out, dout, lse, dlse))
        numbers = self.sizes.numbers(stats) if self.sizes else []
        given = (q, k, v, dout, stats, *numbers)
        dk, dv, dq, *turns = launch(self.main, given, partial=self.ordered)  # few steps have second sums
        if self.sum is not None:
            dk, dv = launch(self.sum, (dk, dv))
        if self.finish is not None:
            sums = dq.reshape(-1, self.rows, EIGHT)
            turns = turns if self.ordered else []
            dq = launch(self.finish, (sums, *turns, q) if self.sizes else (sums, *turns))
        return dq, dk, dv

    def lower(self, arrays: tuple[Any, ...], options: AttentionOptions, target: str | None) -> tuple[Any, ...]:
        dout, q, k, v, out, lse = arrays
        rows = options.rows(out, dout, lse)
        first = self.stats.lower(*rows, target=target)
        (stats,) = results_of(self.stats, *rows)
        given = q, k, v, dout, stats, *number_structs(self.sizes, stats)
        main = self.main.lower(*given, target=target)
        parts, _, sums, *turns = results_of(self.main, *given)
        turns = turns if self.ordered else []
        middle = () if self.sum is None else (self.sum.lower(parts, parts, target=target),)
        if self.finish is None:
            return first, main, *middle
        dq_sum = kd.ShapeDtypeStruct((math.prod(sums.shape) // (self.rows * EIGHT), self.rows, EIGHT), kd.float32)
        return first, main, *middle, self.finish.lower(dq_sum, *turns, *([q] if self.sizes else []), target=target)


@dataclass(frozen=True)
class _Plan:
    """The kernels for the gradients of q, k and v, and of sinks and bias if they are given."""

    problem: ScoredProblem
    takes_dlse: bool  # whether lse has a gradient
    main: GeneralGradients | _Fast | ScoredGradients
    sinks: Any
    bias: Any

    def __call__(self, arrays: tuple[Any, ...], options: AttentionOptions, how: dict[str, Any]) -> tuple[Any, ...]:
        return self._launched(arrays, options, how, launching(**how))

    def seen(self, inputs: list[Any], out: Any, stream: Any) -> tuple[Any, ...]:
        """The result of a call on a GPU that resembles an earlier one, of (*arrays, options); else raises `Unseen`."""
        *arrays, options = inputs
        return self._launched(arrays, options, {"stream": stream, "interpret": None}, seen_launching(stream))

    def _launched(
        self, arrays: Sequence[Any], options: AttentionOptions, how: dict[str, Any], launch: Launch
    ) -> tuple[Any, ...]:
        if self.problem.ragged:
            check_lengths(options, self.problem, NAME)
        dout, _, _, _, out, lse = arrays
        grads = self.main.launched(arrays, options, how, launch)
        grads, dbias = grads[:3], grads[3:]
        if self.sinks is not None:
            extras = options.arrays(sinks_extras(self.problem, self.takes_dlse))
            grads += (launch(self.sinks, (options.sinks, dout, out, lse, *extras)),)
        grads += dbias
        if self.bias is not None:
            grads += (launch(self.bias, (*arrays, *options.arrays(bias_extras(self.problem, self.takes_dlse)))),)
        return grads

    def lower(self, arrays: tuple[Any, ...], options: AttentionOptions, target: str | None) -> tuple[Any, ...]:
        dout, _, _, _, out, lse = arrays
        made = self.main.lower(arrays, options, target)
        if self.sinks is not None:
            extras = options.arrays(sinks_extras(self.problem, self.takes_dlse))
            made += (self.sinks.lower(options.sinks, dout, out, lse, *extras, target=target),)
        if self.bias is not None:
            made += (
                self.bias.lower(*arrays, *options.arrays(bias_extras(self.problem, self.takes_dlse)), target=target),
            )
        return made


def _fixed(given: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """By array, the axes that are compiled in."""
    return {**fixed_axes(given, "dout", "q", "k", "v", "out"), "lse": (-2,), "dlse": (-2,)}


@partial(public, name=NAME)
class AttentionBackward(Named):
    """`attention_backward(dout, q, k, v, out, lse)`: the gradients of `attention`.

    Returns (dq, dk, dv), then dsinks and dbias if there are sinks and a bias. Each has the shape and dtype of its
    input. q, k, v and the options are those of the call of `attention`, with the same meaning; out and lse, float32,
    are its results with `return_lse=True`; dout, in the shape and dtype of out, is the gradient of out. Rows after the
    last sequence have zero gradients, whatever they hold.

    `dlse`: the gradient of lse, in its shape and dtype; by default zeros. Without sinks, queries that see no key
    don't use it.
    `score_mod_grad(score, b, h, i, j)`: the derivative of `score_mod` by its score; by default it is derived from the
    elementwise operations of `score_mod`. `deterministic`: the same inputs give the same bits each time. `config`: an
    `AttentionBackwardConfig`; `stream`, `interpret`: as for kernels. Tensor cores compute float16 and bfloat16, if dim
    and v_dim are multiples of 8 from 16 to 256 and rows are contiguous and begin at multiples of 16 bytes, but not
    ragged lengths with `deterministic` beyond a dimension of 192. All other calls use slower kernels, and log the
    reason.

    Raises `BadCallArgument` for wrong arrays or options, or a `score_mod` without a known derivative; `BadCallValue`
    for shapes that don't fit, values out of range, or options that exclude each other. Float8 inputs have no
    gradients. The method is that of FlashAttention-2 (Dao, 2023), by wgmma (PTX ISA 9.7.15), TMA and its reductions
    (9.7.9.27).
    """

    _called = "library.attention_backward"

    def __init__(self) -> None:
        self._plans: dict[Any, Any] = {}
        self._latest = Latest()

    @checks_itself(*CHECKED)
    def __call__(
        self,
        dout: Any,
        q: Any,
        k: Any,
        v: Any,
        out: Any,
        lse: Any,
        *,
        layout: str = "bhsd",
        causal: bool | str = False,
        window: int | None = None,
        softcap: float | None = None,
        scale: float | None = None,
        sinks: Any = None,
        bias: Any = None,
        score_mod: Callable[..., Any] | None = None,
        mask_mod: Callable[..., Any] | None = None,
        q_seqlens: Any = None,
        kv_seqlens: Any = None,
        page_table: Any = None,
        score_mod_grad: Callable[..., Any] | None = None,
        dlse: Any = None,
        deterministic: bool = False,
        config: AttentionBackwardConfig | None = None,
        stream: Any = None,
        interpret: Any = None,
    ) -> tuple[Any, ...]:
        arrays = (dout, q, k, v, out, lse)
        options = AttentionOptions(
            layout, causal, window, softcap, scale, sinks, bias, score_mod, mask_mod, q_seqlens, kv_seqlens, page_table,
            score_mod_grad=score_mod_grad, dlse=dlse,
        ).apart(q)  # fmt: skip
        key = (*options.kind(), deterministic, config, getattr(k, "shape", None), getattr(v, "shape", None))
        if interpret is None:
            made = self._latest.call(key, [*arrays, options], None, stream)
            if made is not UNSEEN:
                return made
        plan = self._plan(arrays, options, deterministic, config, None)
        made = plan(arrays, options, {"stream": stream, "interpret": interpret})
        if interpret is None:
            self._latest.keep(key, arrays, plan.seen)
        return made

    @checks_itself(*CHECKED, "target")
    @takes_dims(NAME, _fixed)
    def lower(
        self,
        dout: Any,
        q: Any,
        k: Any,
        v: Any,
        out: Any,
        lse: Any,
        *,
        layout: str = "bhsd",
        causal: bool | str = False,
        window: int | None = None,
        softcap: float | None = None,
        scale: float | None = None,
        sinks: Any = None,
        bias: Any = None,
        score_mod: Callable[..., Any] | None = None,
        mask_mod: Callable[..., Any] | None = None,
        q_seqlens: Any = None,
        kv_seqlens: Any = None,
        page_table: Any = None,
        score_mod_grad: Callable[..., Any] | None = None,
        dlse: Any = None,
        deterministic: bool = False,
        config: AttentionBackwardConfig | None = None,
        target: str | None = None,
    ) -> tuple[Any, ...]:
        """The stages of the kernels that a call with such arguments runs, in order. The batch and lengths may be Dims:
        then those of kernels for any sizes.
        """
        given = AttentionOptions(
            layout, causal, window, softcap, scale, sinks, bias, score_mod, mask_mod, q_seqlens, kv_seqlens, page_table,
            score_mod_grad=score_mod_grad, dlse=dlse,
        ).apart(q)  # fmt: skip
        arrays = (dout, q, k, v, out, lse)
        plan = self._plan(arrays, given, deterministic, config, target, closed=not is_later())
        return plan.lower(arrays, given, target)

    def _plan(
        self,
        arrays: tuple[Any, ...],
        options: AttentionOptions,
        deterministic: bool,
        config: AttentionBackwardConfig | None,
        target: str | None,
        closed: bool = False,
    ) -> _Plan:
        described = [signature(x, NAME) for x in arrays]
        key = (*described, *options.key(NAME), deterministic, config, target, closed, is_later())
        named = options.given() | {"deterministic": deterministic, "config": config, "target": target}
        found = known_plan(self._plans, key, NAME, named)
        if found is None:
            if len(self._plans) >= MANY:
                self._plans.clear()
            found = self._plans[key] = self._kernels(arrays, options, deterministic, config, target, closed)
        return found

    def _kernels(
        self,
        arrays: tuple[Any, ...],
        options: AttentionOptions,
        deterministic: bool,
        config: AttentionBackwardConfig | None,
        target: str | None,
        closed: bool,
    ) -> _Plan:
        """The plan of a call. `closed`: its kernels take these sizes alone."""
        dout, q, k, v, out, lse = arrays
        problem, takes_dlse = problem_of(q, k, v, options, False, NAME), options.dlse is not None
        check_results(problem, dout, out, lse, options.dlse)
        check_config(config, problem)
        machine = target_named(target)
        plain = problem.plain if problem.layout == "bhsd" else None
        blocks, kept = machine.limits.multiprocessors, None
        why = refusal(problem, {"q": q, "k": k, "v": v, "dout": dout}, machine, deterministic)
        if why:  # the general kernels load no bias by TMA
            problem = replace(problem, score=replace(problem.score, bias_tiles=None))
        general = None
        few = config is None or config.splits <= MOST_SPLITS
        if not closed and few and (plain is None or why or plain.dim not in FAST or options.sinks is not None):
            general = general_of(problem, bool(why), deterministic, blocks)
        if plain is not None and plain.dim in FAST and not why:
            main = self._fast(plain, deterministic, config, blocks, closed, takes_dlse)
        elif not why:
            from ..attention_forward.linear import is_linear  # operations, imported for the first trace

            linear = options.score_mod_grad is None and is_linear(problem, options.captured)
            chosen = config or scored_backward_config(problem, blocks, deterministic, linear, general is not None)
            chosen = replace(chosen, in_turn=chosen.in_turn or deterministic)
            if options.bias is not None and keeps_bias(problem):
                kept = as_dtype(options.bias.dtype)
            main = ScoredGradients.of(problem, chosen, blocks, options.captured, kept, general, takes_dlse)
        else:
            _log.info("attention_backward: %s; using the general kernels", why)
            main = GeneralGradients.of(problem, takes_dlse, general)
        whole, bias, sinks = general or problem, None, None
        if options.sinks is not None:
            sinks = sinks_kernel(whole, as_dtype(options.sinks.dtype), takes_dlse)
        if options.bias is not None and kept is None:
            bias = bias_kernel(whole, as_dtype(options.bias.dtype), takes_dlse)
        return _Plan(problem, takes_dlse, main, sinks, bias)

    def _fast(
        self,
        problem: AttentionProblem,
        deterministic: bool,
        config: AttentionBackwardConfig | None,
        blocks: int,
        closed: bool,
        takes_dlse: bool = False,
    ) -> _Fast:
        """The kernels for Hopper; the first one may take dlse. `closed`: they take these sizes alone."""
        chosen = replace(config, in_turn=True) if config and deterministic else config
        chosen = chosen or default_config(problem, blocks, deterministic)
        wide = problem.dim > KEYS
        keys = ROWS if wide else KEYS
        p, t, sizes = problem, chosen, None
        general = None if closed else plain_opened(p, chosen, blocks, keys)
        if general is not None:
            p, t, sizes = (
                general,
                replace(chosen, splits=min(chosen.splits, 2)),
                WalkNumbers(together_of(p, t, keys, blocks), t.splits),
            )
        elif not config and t.in_turn and p.causal and p.keys > p.queries > ROWS and p.dim <= ROWS:
            t = replace(t, block_q=96)  # blocks without a query beside longer steps would spill
        ours = p if general is None else replace(general, alone=all_at_once(problem, chosen, keys, blocks))
        main = (wide_kernel if wide else backward_kernel)(ours, t, blocks)
        rows = t.block_q if wide else p.dim
        parts = sum_kernel(p, chosen.splits) if chosen.splits > 1 else None
        # the small kernels don't depend on these
        ends = replace(t, tail=1, splits=t.splits if sizes is None else 1, stores_first=False)
        finish = None if one_block(p, keys) else finish_kernel(p, ends, wide)
        return _Fast(rows, stats_kernel(of_any_keys(p), ends, takes_dlse), main, parts, finish, sizes, t.in_turn)


def default_config(p: AttentionProblem, multiprocessors: int, in_turn: bool = False) -> AttentionBackwardConfig:
    """A configuration with steps that fit the queries, and splits for blocks on all multiprocessors."""
    staying = None if p.causal or in_turn else staying_config(p, (p.dim, p.dim), multiprocessors)
    if staying is not None:
        return staying
    if p.dim <= KEYS:
        config = narrow_config(p)
    elif p.dim <= 192:
        config = AttentionBackwardConfig(64)
    else:
        config = AttentionBackwardConfig(64, dout_stages=1, dq_parts=2 if in_turn else 4, dq_slots=1 if in_turn else 2)
    if p.dim > KEYS:
        config = replace(config, stores_first=first_stores(p, config, p.causal, True))
    config = replace(config, in_turn=in_turn)
    keys = KEYS if p.dim <= KEYS else ROWS
    heads = p.batch * p.kv_heads
    shared = 1 if in_turn else shared_by(p, p.dim, p.causal)
    units = heads * kd.cdiv(p.keys, keys)
    if units > 4 * multiprocessors:
        # causal blocks have all lengths, and the last ones are short
        shares = has_tail(padded(p.queries, config) // config.block_q * (p.heads // p.kv_heads))
        if shares and not (p.causal or in_turn):
            return replace(config, tail=tail_of(units, multiprocessors))
        return replace(config, splits=shared)
    choices = [replace(config, splits=n) for n in (1, 2, 3, 4, 6, 8, 12, 16)]
    ends = [end_of(p, c, keys, multiprocessors) for c in choices]
    best = next(c for c, end in zip(choices, ends, strict=True) if end <= 1.05 * min(ends))
    return replace(best, splits=max(best.splits, shared))


def end_of(p: AttentionProblem, config: AttentionBackwardConfig, keys: int, multiprocessors: int) -> float:
    """The end of the last block, in steps, plus the cost of summing several parts, in steps."""
    lengths = [n for n in step_counts(p, config, keys) for _ in range(config.splits)]
    heads = p.batch * p.kv_heads
    return makespan(lengths, heads, heads, multiprocessors) + summing(config.splits, p, p.dim)


attention_backward: AttentionBackward = AttentionBackward()

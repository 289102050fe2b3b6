"""`kd.library.attention`: softmax(q k^T * scale) v, with options for scores and masks, as a plain function."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from numbers import Integral
from typing import Any

import kernel_dsl as kd
from kernel_dsl.boundary import checks_itself, public
from kernel_dsl.diagnostics import of_kind, shown
from kernel_dsl.dtypes import FP8
from kernel_dsl.errors import BadCallArgument, BadCallValue
from kernel_dsl.loading import interpreted
from kernel_dsl.named import Named
from kernel_dsl.stages import target_named
from kernel_dsl.target import TMA_WGMMA
from kernel_dsl.tuning_file import when_tuned

from ..differentiable import host_of
from ..first_sizes import is_later, takes_dims
from ..latest import UNSEEN, Latest, compiled_for
from ..products.matmul import (
    MANY,
    array_address,
    check_apart,
    check_counts,
    element_strides,
    known_plan,
    out_refusal,
    signature,
)
from ..products.operands import outer_strides
from .derivatives import attention as differentiable
from .opened import seen_by
from .options import CHECKED, AttentionOptions, fixed_axes, problem_of
from .problem import ScoredProblem
from .scored import ScoredPlan
from .scored_config import bytes_of
from .sizes import REGISTERS, AttentionConfig
from .split import small_config, split_plan
from .tuned_attention import tuned_config

FAST = (64, 128, 192, 256)  # head dimensions that `attention_kernel` takes
_log = logging.getLogger("kernel_dsl")


@partial(public, name="attention")
class Attention(Named):
    """`attention(q, k, v)`: softmax(q k^T * scale) v for each head, with options for scores and masks.

    q is (batch, heads, queries, dim), k (batch, kv_heads, keys, dim) and v (batch, kv_heads, keys, v_dim), all of one
    float dtype. Returns (batch, heads, queries, v_dim) in that dtype, bfloat16 for float8. `layout="bshd"`: all arrays
    are (batch, length, heads, dim). If there are fewer key heads than query heads, query heads share them evenly.

    The score of query i and key j is `scale` (a positive number, by default dim ** -0.5) times q.k. These options
    change it, in this order:

    - `softcap`: c * tanh(score / c).
    - `bias`: a float array that broadcasts to (batch, heads, queries, keys), added; not with `q_seqlens`.
    - `score_mod(score, b, h, i, j)`: a traced function of a float32 array and int32 indices that broadcast to it.

    A query sees a key if all of these options allow it; a query that sees no key gives zeros. Blocks of keys that no
    query sees are skipped; blocks that all queries see have no mask:

    - `causal`: True or "top_left" for j <= i, "bottom_right" for j <= i + keys - queries.
    - `window`: a number of keys. After the alignment of `causal`, i - j < window, and unless causal also j - i <
      window.
    - `mask_mod(b, h, i, j)`: a traced function that gives a bool.

    `sinks`: float (heads,), an extra score in each row's sum, without a value. Functions get a part of the scores, and
    use operations of each element by itself. They may close over arrays, such as `documents[b, i]`. Each call reads
    these arrays again; they have no gradients.

    `q_seqlens`, `kv_seqlens`: int32 (batch + 1,), the cumulative lengths of sequences that follow one another. q is
    then (total, heads, dim), and k and v likewise; indices and `causal` count within a sequence. Rows after the last
    sequence see no key; rows before the first one are not written. `kv_seqlens` are by default `q_seqlens`.
    `page_table`: int32 (batch, max_pages). k and v are then a cache (pages, kv_heads, page, dim), or with
    `layout="bshd"` (pages, page, kv_heads, dim), with pages of 1 to 256 keys: key j of sequence b is in page
    `page_table[b, j // page]`. `kv_seqlens` are then int32 (batch,), the number of keys of each sequence, or
    cumulative; by default `q_seqlens`, or without those all max_pages * page keys. Keys beyond are not used. A page
    that is not in the cache counts as zeros, and is a hazard in the interpreter. Calls with pages have no gradients.
    `q_scale`, `k_scale`, `v_scale`: factors of float8 inputs, a number or float32 (batch, kv_heads).

    `return_lse=True` also gives the natural logarithm of each row's sum of exponentials, float32 (batch, heads,
    queries) or (heads, total); that of a query without keys is -inf, or its head's sink. Under autograd and JAX both
    results have gradients, which `attention_backward` computes. The same inputs always give the same results, and with
    `deterministic` the same gradients. Scores of 16-bit inputs beyond 1e9 in size may give NaN: exponents are rounded
    in float32. `config`: an `AttentionConfig`.

    `out`, `stream`, `interpret`: as for kernels; `out` may be `q`. Tensor cores compute float16, bfloat16 and
    float8_e4m3fn, if dim and v_dim are multiples of 8 from 16 to 256 and the rows of 16-bit inputs are contiguous and
    begin at multiples of 16 bytes. All other calls use a slower kernel, and log the reason.

    Raises `BadCallArgument` for wrong arrays or options, and `BadCallValue` for shapes that don't fit, lengths that
    decrease, values out of range, options that exclude each other, or an `out` that is `k` or `v`. The method is that
    of FlashAttention-2 and 3 (Dao, 2023; Shah et al., 2024), by wgmma (PTX ISA 9.7.15) and TMA (9.7.9.27).
    """

    _called = "library.attention"

    def __init__(self) -> None:
        self._plans: dict[Any, Any] = {}
        self._latest = Latest()
        when_tuned(self._forget)

    def _forget(self) -> None:
        """Forget all plans."""
        self._plans.clear()
        self._latest = Latest()

    @checks_itself(*CHECKED)
    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
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
        q_scale: Any = None,
        k_scale: Any = None,
        v_scale: Any = None,
        return_lse: bool = False,
        deterministic: bool = False,
        config: AttentionConfig | None = None,
        out: Any = None,
        stream: Any = None,
        interpret: Any = None,
    ) -> Any:
        host = host_of(q, k, v, sinks, bias, q_scale, k_scale, v_scale)
        result, key = first_of(out), (layout, causal, scale, type(scale), return_lse, config)
        arrays = sinks, bias, q_seqlens, kv_seqlens, page_table, q_scale, k_scale, v_scale
        plain = not any(x is not None for x in (*arrays, window, softcap, score_mod, mask_mod))
        if plain and not host and interpret is None:
            if result is not None:
                check_apart(result, {"k": k, "v": v}, "attention")
            made = self._latest.call(key, [q, k, v], out, stream)
            if made is not UNSEEN:
                return made
        options = AttentionOptions(
            layout, causal, window, softcap, scale, sinks, bias, score_mod, mask_mod, q_seqlens, kv_seqlens, page_table,
            q_scale, k_scale, v_scale,
        )  # fmt: skip
        options = options.apart(q)
        host = host or host_of(*options.captured)
        if not plain and not host and interpret is None:
            if result is not None:
                check_apart(result, {"k": k, "v": v}, "attention")
            key = (*options.kind(), return_lse, config, getattr(v, "shape", None))
            made = self._latest.call(key, [q, k, v, options], out, stream)
            if made is not UNSEEN:
                return made
        if host:
            how = {"out": out, "stream": stream, "interpret": interpret}
            return differentiable(host, q, k, v, options, return_lse, config, how, deterministic)
        promise = page_table is not None and interpreted(interpret)
        plan = self._plan(q, k, v, options, return_lse, config, None, result, promise)
        if result is not None:
            check_apart(result, {"k": k, "v": v}, "attention")
        if isinstance(plan, ScoredPlan):
            made = plan(q, k, v, options, out, {"stream": stream, "interpret": interpret})
            if plain:  # the options have no arrays
                self._latest.keep(key, (q, k), lambda inputs, out, stream: plan.seen([*inputs, options], out, stream))
            elif interpret is None:
                self._latest.keep(key, (q, k), plan.seen)
            return made
        if plain:
            self._latest.keep(key, (q, k), seen_by(plan))
        return plan(q, k, v, out=out, stream=stream, interpret=interpret)

    @checks_itself(*CHECKED, "target")
    @takes_dims("attention", lambda given: fixed_axes(given, *"qkv"))
    def lower(
        self,
        q: Any,
        k: Any,
        v: Any,
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
        q_scale: Any = None,
        k_scale: Any = None,
        v_scale: Any = None,
        return_lse: bool = False,
        deterministic: bool = False,
        config: AttentionConfig | None = None,
        target: str | None = None,
    ) -> Any:
        """The stages of the kernel that a call with such arguments runs; if it runs several, those of the one that
        computes attention. The batch and lengths may be Dims: then those of a kernel for any sizes.
        """
        given = AttentionOptions(
            layout, causal, window, softcap, scale, sinks, bias, score_mod, mask_mod, q_seqlens, kv_seqlens, page_table,
            q_scale, k_scale, v_scale,
        )  # fmt: skip
        given = given.apart(q)
        plan = self._plan(q, k, v, given, return_lse, config, target, closed=not is_later())
        if isinstance(plan, ScoredPlan):
            return plan.lower(q, k, v, given, target)
        return plan.lower(q, k, v, target=target)

    def specialisations(self) -> list[Any]:
        """The compiled kernels of this process for all calls of attention: see `Kernel.specialisations`."""
        return compiled_for(self._plans.values())

    def _plan(
        self,
        q: Any,
        k: Any,
        v: Any,
        options: AttentionOptions,
        lse: bool,
        config: AttentionConfig | None,
        target: str | None,
        out: Any = None,
        promise: bool = False,
        closed: bool = False,
    ) -> Any:
        arrays = (q, k, v) if out is None else (q, k, v, out)
        described = tuple([signature(x, "attention") for x in arrays])
        key = (*described, out is None, *options.key("attention"), lse, config, target, promise, closed, is_later())
        named = options.given() | {"return_lse": lse, "config": config, "target": target}
        found = known_plan(self._plans, key, "attention", named)
        if found is None:
            if len(self._plans) >= MANY:
                self._plans.clear()
            found = self._plans[key] = self._kernel(q, k, v, options, lse, config, target, out, promise, closed)
        return found

    def _kernel(
        self,
        q: Any,
        k: Any,
        v: Any,
        options: AttentionOptions,
        lse: bool,
        config: AttentionConfig | None,
        target: str | None,
        out: Any,
        promise: bool,
        closed: bool,
    ) -> Any:
        """The plan of a call. `closed`: its kernel takes these sizes alone."""
        problem = problem_of(q, k, v, options, lse)
        check_config(config)
        machine = target_named(target)
        plain, blocks = problem.plain, machine.limits.multiprocessors
        why = refusal(problem, (q, k, v), machine) or out_refusal(out)
        if why:
            _log.info("attention: %s; using the general kernel", why)
        elif config is not None:
            check_room(problem, config, machine.limits.smem_per_block)
        elif target is None:
            config = tuned_config(problem, blocks)
        if not why and plain is not None and plain.dim in FAST:
            config = config or small_config(plain, blocks, closed)
            return split_plan(plain, config, blocks, closed)
        narrow = (
            problem.dtype
            if problem.dtype in FP8 and not problem.page and not tma_refusal({"q": q, "k": k}, 16)
            else None
        )
        return ScoredPlan.of(problem, config, blocks, why, promise, options.captured, closed, narrow)


def check_config(config: Any) -> None:
    """Raise `BadCallArgument`, `BadCallValue` for a wrong configuration."""
    if config is None:
        return
    if not isinstance(config, AttentionConfig):
        what = f"config is {of_kind(config)}"
        raise BadCallArgument(kernel="attention", what=what, hint="an `AttentionConfig`, or None to have one chosen")
    check_counts(config, "attention")
    every: Any = config.polynomial
    if every is not None and (not isinstance(every, Integral) or every < 1):
        what = f"config.polynomial={shown(every)}"
        raise BadCallValue(kernel="attention", what=what, hint="a positive int, or None")
    if config.block_kv % 16:
        what = f"config.block_kv={config.block_kv}"
        raise BadCallValue(kernel="attention", what=what, hint="a multiple of 16: wgmma takes as many keys at once")
    if config.consumers not in REGISTERS:
        what, hint = f"config.consumers={config.consumers}", f"at most {max(REGISTERS)}: more have too few registers"
        raise BadCallValue(kernel="attention", what=what, hint=hint)


def check_room(p: ScoredProblem, config: AttentionConfig, limit: int) -> None:
    """Raise `BadCallValue` if a block's SMEM, of `limit` bytes, can't hold the queries, keys and values of a
    configuration.
    """
    if p.dtype in FP8 or p.page:  # kernels of these take other dtypes, and fewer keys a step
        return
    needed = bytes_of(replace(p, score=replace(p.score, bias_tiles=None)), config)
    if needed > limit:
        what = f"config.consumers={config.consumers}, config.block_kv={config.block_kv}, config.stages={config.stages}"
        hint = f"they take {needed} bytes of SMEM and a block has {limit}: make one of them smaller"
        raise BadCallValue(kernel="attention", what=what, hint=hint)


def first_of(out: Any) -> Any:
    """The result's array in an `out=` that may also hold the LSE's."""
    return out[0] if isinstance(out, (tuple, list)) and out else out  # pyright: ignore[reportUnknownVariableType]


def refusal(p: ScoredProblem, arrays: tuple[Any, ...], target: Any) -> str:
    """The reason why the kernels for Hopper can't compute a problem; empty if they can."""
    if not target.supports(TMA_WGMMA):
        return f"{target} has no wgmma"
    if p.dtype not in (kd.float16, kd.bfloat16, kd.float8_e4m3fn):
        return f"{p.dtype} is no 16-bit float and no float8_e4m3fn"
    for dim in (p.dim, p.v_dim):
        if dim % 8 or not 16 <= dim <= 256:
            return f"a head dimension of {dim} is no multiple of 8 from 16 to 256"
    if not p.batch or not p.queries or not p.keys or (p.page and not p.pages):
        return "there is nothing to compute"
    if p.dtype == kd.float8_e4m3fn:  # new arrays hold its widened elements
        return ""
    return tma_refusal(dict(zip("qkv", arrays, strict=True)))


def tma_refusal(arrays: Mapping[str, Any], unit: int = 8) -> str:
    """The reason why TMA can't load heads of one of the named arrays; empty if it can. `unit`: the elements in 16
    bytes.
    """
    for name, x in arrays.items():
        strides = element_strides(x)
        if strides is None and x.shape[-1] % unit:  # a description, of an array without gaps
            return f"{name} has rows of {x.shape[-1]} elements, and TMA needs rows that begin at multiples of 16 bytes"
        if strides is not None and (strides[-1] != 1 or any(s < 0 or s % unit for s in outer_strides(x))):
            return f"{name} has strides {strides}, and TMA needs contiguous rows that begin at multiples of 16 bytes"
        if array_address(x) % 16:
            return f"{name} is not aligned to 16 bytes"
    return ""


attention: Attention = Attention()

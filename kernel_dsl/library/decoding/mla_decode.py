"""`kd.library.mla_decode`: decoding with latent keys, as a plain function."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import kernel_dsl as kd
from kernel_dsl.boundary import checks_itself, public
from kernel_dsl.diagnostics import shown
from kernel_dsl.dtypes import as_dtype
from kernel_dsl.loading import interpreted
from kernel_dsl.named import Named
from kernel_dsl.stages import target_named
from kernel_dsl.target import TMA_WGMMA

from ..attention_forward.attention import first_of, tma_refusal
from ..first_sizes import is_later, takes_dims
from ..latest import UNSEEN, Latest
from ..products.matmul import MANY, check_apart, known_plan, out_refusal, signature
from .combine import decode_combine
from .decode_attention import PAGE, QUERIES, DecodeCheck, DecodePlan
from .general import mla_general
from .mla_kernel import MOST_KEYS, MlaConfig, mla_kernel, mla_splits
from .opened import opened, without_sizes
from .problem import DIM, V_DIM, MlaProblem, chunks

NAME = "mla_decode"
_log = logging.getLogger("kernel_dsl")


@partial(public, name=NAME)
class MlaDecode(Named):
    """`mla_decode(q, cache, lengths, page_table, scale=)`: q (batch, 1 to 8, heads, 576), a cache (pages, page, 576).

    Both are bfloat16. A row of the cache holds a key, all its 576 elements, and a value, the first 512 of them. Returns
    (batch, queries, heads, 512), bfloat16.
    `lengths`: int32 (batch,), the number of keys of each sequence, including the new ones; `page_table`: int32 (batch,
    max_pages), pages of 1 to 256 keys, as for `decode_attention`. The last query is at the position of the last key,
    and a query sees no later key. `scale`: the factor of q.k. A query that sees no key gives zeros.

    `return_lse=True` adds the natural logarithm of each sum of exponentials, float32 (batch, heads, queries), -inf for
    a query without keys. The same inputs always give the same bits. Lengths and pages are read on the GPU; lengths and
    pages outside the cache are treated as in `decode_attention`. `out`, `stream`, `interpret`: as for kernels. A slower
    kernel computes calls that the Hopper kernel does not support, with a log line. Raises `BadCallArgument` for wrong
    arrays, `BadCallValue` for shapes and numbers that don't fit, and an `out` that is the cache. The latent keys are
    those of DeepSeek-V2 (2024), by wgmma (PTX ISA 9.7.15) and TMA (9.7.9.27).
    """

    _called = "library.mla_decode"

    def __init__(self) -> None:
        self._plans: dict[Any, Any] = {}
        self._latest = Latest()

    @checks_itself("scale")
    def __call__(
        self,
        q: Any,
        cache: Any,
        lengths: Any,
        page_table: Any,
        *,
        scale: float,
        return_lse: bool = False,
        out: Any = None,
        stream: Any = None,
        interpret: Any = None,
    ) -> Any:
        inputs = [q, cache, lengths, page_table]
        result, key = first_of(out), (scale, type(scale), return_lse)
        if result is not None:
            check_apart(result, {"q": q, "cache": cache}, NAME)
        made = self._latest.call(key, inputs, out, stream) if interpret is None else UNSEEN
        if made is not UNSEEN:
            return made
        plan = self._plan(inputs, scale, return_lse, None, interpreted(interpret), result)
        made = plan(inputs, out, {"stream": stream, "interpret": interpret})
        self._latest.keep(key, inputs, plan.seen)
        return made

    @checks_itself("scale", "target")
    @takes_dims(NAME, lambda _: {"q": (-1, -2, -3), "cache": (-1, -2)})
    def lower(
        self,
        q: Any,
        cache: Any,
        lengths: Any,
        page_table: Any,
        *,
        scale: float,
        return_lse: bool = False,
        target: str | None = None,
    ) -> Any:
        """The stages of the kernel that loops over the keys in a call with such arguments. The batch, the pages and the
        width of their table may be Dims.
        """
        inputs = [q, cache, lengths, page_table]
        return _made(inputs, scale, return_lse, target, False, None, closed=not is_later()).kernel.lower(
            *inputs, target=target
        )

    def _plan(
        self, inputs: list[Any], scale: Any, lse: bool, target: str | None, promise: bool, out: Any = None
    ) -> DecodePlan:
        described = tuple([signature(x, NAME) for x in (*inputs, out)])
        key = (described, scale, type(scale), lse, target, promise)
        found = known_plan(self._plans, key, NAME, {"scale": scale, "target": target})
        if found is None:
            if len(self._plans) >= MANY:
                self._plans.clear()
            found = self._plans[key] = _made(inputs, scale, lse, target, promise, out)
        return found


def _made(
    inputs: list[Any], scale: Any, lse: bool, target: str | None, promise: bool, out: Any, closed: bool = False
) -> DecodePlan:
    """The plan of a call; `closed`: it takes the call's sizes alone."""
    q, cache, lengths, page_table = inputs
    p = _problem(q, cache, lengths, page_table, scale, lse)
    machine = target_named(target)
    steps = chunks(p.page, MOST_KEYS, 8)
    why = out_refusal(out) or tma_refusal({"q": q, "cache": cache})
    if not machine.supports(TMA_WGMMA):
        why = f"{machine} has no wgmma"
    elif 0 in (p.batch, p.heads, p.pages, p.table):
        why = "there is nothing to compute"
    elif steps is None:
        why = f"pages of {p.page} keys don't divide into loads of 8, 16, 24 or more keys"
    if why or steps is None:
        _log.info("mla_decode: %s; using the general kernel", why)
        return DecodePlan(mla_general(p, promise))
    chunk, block = steps
    blocks = machine.limits.multiprocessors
    splits = mla_splits(p, block, blocks)
    combine = None if splits == 1 else decode_combine(without_sizes(p), V_DIM)
    general = None if closed else opened(p, (min(splits, 2), blocks, promise))
    if general is None:
        return DecodePlan(mla_kernel(p, MlaConfig(block, chunk, splits), promise), combine)
    return DecodePlan(mla_kernel(general, MlaConfig(block, chunk, 1 if splits == 1 else 0), promise, blocks), combine)


def _problem(q: Any, cache: Any, lengths: Any, page_table: Any, scale: Any, lse: bool) -> MlaProblem:
    """The problem of a call. Raises `BadCallArgument`, `BadCallValue`."""
    check = DecodeCheck(NAME)
    check.positive("scale", scale)
    if scale is None:
        raise check.argument("scale=None", "a positive number")
    batch, queries, heads, dim = check.shape("q", q, 4, f"bfloat16 (batch, queries, heads, {DIM})")
    pages, page, k_dim = check.shape("cache", cache, 3, f"bfloat16 (pages, page, {DIM})")
    for name, x in (("q", q), ("cache", cache)):
        if as_dtype(x.dtype) != kd.bfloat16:
            raise check.bad_dtype(f"{name} is {as_dtype(x.dtype)}", "q and the cache are bfloat16")
    if (dim, k_dim) != (DIM, DIM):
        raise check.bad_shape(
            f"q is {tuple(q.shape)} and cache is {tuple(cache.shape)}", f"both have {DIM} elements a row"
        )
    if not 1 <= queries <= QUERIES:
        raise check.value(f"q has {queries} queries", f"1 to {QUERIES}")
    if not 1 <= page <= PAGE:
        raise check.value(f"pages of {page} keys", f"a page has 1 to {PAGE} keys")
    if check.integers("lengths", lengths, 1, "(batch,)") != (batch,):
        raise check.value(f"lengths is {shown(tuple(lengths.shape))}", f"int32 ({batch},), the keys of each sequence")
    rows, table = check.integers("page_table", page_table, 2, "(batch, max_pages)")
    if rows != batch:
        raise check.value(f"page_table is {(rows, table)}", f"int32 ({batch}, max_pages)")
    return MlaProblem(batch, queries, heads, page, pages, table, float(scale), bool(lse))


mla_decode: MlaDecode = MlaDecode()

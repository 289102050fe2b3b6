"""`kd.library.decode_attention`: attention of a few new queries over a cache of keys and values, as a plain function."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import Any

import kernel_dsl as kd
from kernel_dsl.boundary import checks_itself, public
from kernel_dsl.diagnostics import of_kind, shown
from kernel_dsl.dtypes import FP8, as_dtype
from kernel_dsl.loading import interpreted
from kernel_dsl.named import Named
from kernel_dsl.stages import target_named
from kernel_dsl.target import Feature

from ..attention_forward.attention import first_of
from ..attention_forward.options import WIDEST
from ..first_sizes import is_later, takes_dims
from ..latest import UNSEEN, Latest, seen_call, without_unwritten
from ..products.matmul import MANY, array_address, check_apart, element_strides, known_plan, signature
from ..products.operands import is_gapless, outer_strides
from ..refusals import Refusals, floated, is_number, kind_and_shape
from .combine import decode_combine
from .general import decode_general
from .kernel import decode_config, decode_kernel, decode_steps, gathers
from .opened import opened, without_sizes
from .problem import DecodeProblem

QUERIES, PAGE = 8, 256  # the most queries, and keys of a page
CHECKED = ("window", "softcap", "splits")
_log = logging.getLogger("kernel_dsl")


@dataclass(frozen=True)
class DecodePlan:
    """The kernels of a problem: one that loops over the keys, and one that combines their parts if there are several."""

    kernel: Any
    combine: Any = None
    heads_last: bool = False  # whether the kernel takes k and v with heads after keys

    def taken(self, inputs: list[Any]) -> list[Any]:
        """The arguments as the kernel takes them."""
        return [inputs[0], *(x.swapaxes(1, 2) for x in inputs[1:3]), *inputs[3:]] if self.heads_last else inputs

    def __call__(self, inputs: list[Any], out: Any, how: dict[str, Any]) -> Any:
        inputs = self.taken(inputs)
        if self.combine is None:
            return self.kernel(*inputs, out=out, **how)
        parts = self.kernel(*inputs, **how | {"interpret": without_unwritten(how["interpret"])})  # rows are padded
        return self.combine(parts, out=out, **how)

    def seen(self, inputs: list[Any], out: Any, stream: Any) -> Any:
        """The result of a call on a GPU with arrays like an earlier call's. `UNSEEN` for any other call, without a
        launch.
        """
        inputs = self.taken(inputs)
        if self.combine is None:
            return seen_call(self.kernel, inputs, out, stream)
        parts = seen_call(self.kernel, inputs, None, stream)
        return UNSEEN if parts is UNSEEN else self.combine(parts, out=out, stream=stream)


def _fixed(given: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The axes that are compiled in: heads, dimensions, queries, and keys of a page."""
    paged = given.get("page_table") is not None
    return {"q": (-1, -2, -3), **dict.fromkeys("kv", (-1, -2, -3) if paged else (-1, -3))}


@partial(public, name="decode_attention")
class DecodeAttention(Named):
    """`decode_attention(q, k, v, lengths)`: q (batch, heads, 1 to 8, dim); k and v (batch, kv_heads, keys, dim).

    `lengths`: int32 (batch,), the number of keys of each sequence, including the new ones; keys beyond are not read.
    With `page_table`, int32 (batch, max_pages), k and v are (pages, kv_heads, page, dim), pages of 1 to 256 keys: key j
    of sequence b is in page `page_table[b, j // page]`. dim is a multiple of 8 from 16 to 256, and query heads share
    key heads evenly. All are float16 or bfloat16; k and v may be float8_e4m3fn, with the factors `k_scale` and
    `v_scale`, numbers or float32 (batch, kv_heads).

    Returns (batch, heads, queries, dim) in the dtype of q. The score of a query and a key is dim ** -0.5 times q.k, and
    with `softcap` c * tanh(score / c). The last query is at the position of the last key: with `causal` query i sees
    key j if j <= i + length - queries. `window`: only if i + length - queries - j < window; without `causal` the
    distance in the other direction is limited, too. A query that sees no key gives zeros.

    `splits`: the number of blocks that share the keys of a sequence; by default as many as keep the GPU busy.
    `return_lse=True` also gives the natural logarithm of each sum of exponentials, float32 (batch, heads, queries),
    -inf for a query without keys. The same inputs always give the same bits. Lengths and pages are read on the GPU: a
    graph of the call takes new ones. A length below 0 counts as 0, one beyond the cache as all of its keys, and a page
    that is not in the cache as zeros; all three are hazards in the interpreter. `out`, `stream`, `interpret`: as for
    kernels. Unsupported calls go to a slower kernel, with a log line. Raises `BadCallArgument` for wrong arrays or
    options, `BadCallValue` for shapes and numbers that don't fit, and an `out` that is `k` or `v`. The keys of a
    sequence are shared as in Flash-Decoding (Dao et al., 2023), by wgmma (PTX ISA 9.7.15).
    """

    _called = "library.decode_attention"

    def __init__(self) -> None:
        self._plans: dict[Any, Any] = {}
        self._latest = Latest()

    @checks_itself(*CHECKED)
    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        lengths: Any,
        *,
        page_table: Any = None,
        k_scale: Any = None,
        v_scale: Any = None,
        causal: bool = True,
        softcap: float | None = None,
        window: int | None = None,
        splits: int | None = None,
        return_lse: bool = False,
        out: Any = None,
        stream: Any = None,
        interpret: Any = None,
    ) -> Any:
        inputs = [q, k, v, lengths]
        for x in (page_table, k_scale, v_scale):
            if x is not None:
                inputs.append(floated(x))
        key = (
            page_table is None, k_scale is None, v_scale is None, causal, softcap, type(softcap), window, type(window), splits,
            type(splits), return_lse,
        )  # fmt: skip
        if interpret is None and out is None:
            made = self._latest.call(key, inputs, None, stream)
            if made is not UNSEEN:
                return made
        result = first_of(out)
        if result is not None:
            check_apart(result, {"k": k, "v": v}, "decode_attention")
            made = self._latest.call(key, inputs, out, stream) if interpret is None else UNSEEN
            if made is not UNSEEN:
                return made
        arrays = {
            "q": q,
            "k": k,
            "v": v,
            "lengths": lengths,
            "page_table": page_table,
            "k_scale": k_scale,
            "v_scale": v_scale,
        }
        options = {"causal": causal, "softcap": softcap, "window": window, "splits": splits, "return_lse": return_lse}
        plan = self._plan(arrays, options, None, interpreted(interpret))
        made = plan(inputs, out, {"stream": stream, "interpret": interpret})
        self._latest.keep(key, inputs, plan.seen)
        return made

    @checks_itself(*CHECKED, "target")
    @takes_dims("decode_attention", _fixed)
    def lower(
        self,
        q: Any,
        k: Any,
        v: Any,
        lengths: Any,
        *,
        page_table: Any = None,
        k_scale: Any = None,
        v_scale: Any = None,
        causal: bool = True,
        softcap: float | None = None,
        window: int | None = None,
        splits: int | None = None,
        return_lse: bool = False,
        target: str | None = None,
    ) -> Any:
        """The stages of the kernel that loops over the keys in a call with such arguments. The batch and the keys of a
        cache may be Dims: then those of a kernel for any sizes.
        """
        arrays = {
            "q": q,
            "k": k,
            "v": v,
            "lengths": lengths,
            "page_table": page_table,
            "k_scale": k_scale,
            "v_scale": v_scale,
        }
        options = {"causal": causal, "softcap": softcap, "window": window, "splits": splits, "return_lse": return_lse}
        plan = _made(arrays, options, target, False, closed=not is_later())
        inputs = [floated(x) for x in arrays.values() if x is not None]
        return plan.kernel.lower(*plan.taken(inputs), target=target)

    def _plan(self, arrays: dict[str, Any], options: dict[str, Any], target: str | None, promise: bool) -> Any:
        described = tuple([None if x is None else signature(x, "decode_attention") for x in arrays.values()])
        key = (described, *options.values(), *map(type, options.values()), target, promise)  # True is no number
        found = known_plan(self._plans, key, "decode_attention", options | {"target": target})
        if found is None:
            if len(self._plans) >= MANY:
                self._plans.clear()
            found = self._plans[key] = _made(arrays, options, target, promise)
        return found


def _made(
    arrays: dict[str, Any], options: dict[str, Any], target: str | None, promise: bool, closed: bool = False
) -> DecodePlan:
    """The plan of a call; `closed`: it takes the call's sizes alone."""
    p = DecodeCheck("decode_attention").problem(arrays, options)
    machine = target_named(target)
    steps = decode_steps(p)
    splits = options["splits"]
    why = _refusal(p, arrays, machine, steps[0])
    if why:
        _log.info("decode_attention: %s; using the general kernel", why)
        return DecodePlan(decode_general(p, promise))
    p = replace(p, heads_last=_heads_last(arrays["k"], arrays["v"]))
    wanted, blocks = None if splits is None else int(splits), machine.limits.multiprocessors
    config = decode_config(p, steps, wanted, blocks)
    combine = None if config.splits == 1 else decode_combine(replace(without_sizes(p), heads_last=False), p.dim)
    several = replace(config, splits=min(config.splits, 2))
    general = None if closed else opened(p, (several, wanted, blocks, promise))
    if general is None:
        return DecodePlan(decode_kernel(p, config, promise), combine, p.heads_last)
    config = replace(config, splits=1 if config.splits == 1 else 0)
    return DecodePlan(decode_kernel(general, config, promise, blocks, wanted), combine, p.heads_last)


def _heads_last(k: Any, v: Any) -> bool:
    """Whether k and v lie as (batch, keys, kv_heads, dim) in memory, without gaps, so that kernels know their strides."""
    if is_gapless(k) and is_gapless(v):
        return False
    return all(hasattr(x, "swapaxes") and is_gapless(x.swapaxes(1, 2)) for x in (k, v))


def _refusal(p: DecodeProblem, arrays: dict[str, Any], target: Any, chunk: int) -> str:
    """The reason why the kernel for Hopper can't compute a problem; empty if it can. `chunk`: keys that are loaded at once."""
    if not target.supports(Feature.WGMMA):
        return f"{target} has no wgmma"
    if 0 in (p.batch, p.heads, p.keys):
        return "there is nothing to compute"
    item = p.cache_dtype.itemsize
    for name in "kv":
        strides = element_strides(arrays[name])
        odd = strides is not None and (strides[-1] != 1 or any(n * item % 4 for n in outer_strides(arrays[name])))
        if odd or array_address(arrays[name]) % 4:
            return f"{name} has strides {strides}, and words of it are loaded at once"
        by_vectors = p.cache_dtype in FP8 or gathers(p, chunk)
        if by_vectors and not (is_gapless(arrays[name]) or _heads_last(arrays["k"], arrays["v"])):
            return f"{name} has gaps, and float8 and pages of {p.page} keys are loaded by vectors of an array without"
    return ""


class DecodeCheck(Refusals):
    """The checks of a function; each raises at the caller's line."""

    def shape(self, name: str, x: Any, rank: int, axes: str) -> tuple[int, ...]:
        """The shape of an array of `rank` axes."""
        shape = getattr(x, "shape", None)
        if not isinstance(shape, tuple) or not hasattr(x, "dtype") or len(shape) != rank:
            raise self.argument(f"{name} is {kind_and_shape(x)}", f"{name} is {axes}")
        return tuple(shape)

    def integers(self, name: str, x: Any, rank: int, axes: str) -> tuple[int, ...]:
        """The shape of an int32 array."""
        shape = self.shape(name, x, rank, f"int32 {axes}")
        if as_dtype(x.dtype) != kd.int32:
            raise self.bad_dtype(f"{name} is {as_dtype(x.dtype)}", f"{name} is int32 {axes}")
        return shape

    def count(self, name: str, x: Any) -> None:
        """Check a positive int, or None."""
        if x is not None and (not isinstance(x, Integral) or x is True):
            raise self.argument(f"{name}={shown(x)}", "a positive int, or None")
        if x is not None and x < 1:
            raise self.value(f"{name}={shown(x)}", "a positive int, or None")

    def problem(self, arrays: dict[str, Any], o: dict[str, Any]) -> DecodeProblem:
        """The problem of a call. Raises `BadCallArgument`, `BadCallValue`."""
        q, k, v, table = arrays["q"], arrays["k"], arrays["v"], arrays["page_table"]
        for name in ("window", "splits"):
            self.count(name, o[name])
        self.positive("softcap", o["softcap"])
        batch, heads, queries, dim = self.shape("q", q, 4, "(batch, heads, queries, dim)")
        axes = "(batch, kv_heads, keys, dim)" if table is None else "(pages, kv_heads, page, dim)"
        shapes = [self.shape(name, arrays[name], 4, axes) for name in ("k", "v")]
        count, kv_heads, keys, k_dim = shapes[0]
        if shapes[0] != shapes[1] or k_dim != dim or (table is None and count != batch):
            what = f"q is {tuple(q.shape)}, k is {shapes[0]} and v is {shapes[1]}"
            raise self.bad_shape(what, f"k and v are {axes}" + ", with q's batch and dim" * (table is None))
        if not kv_heads or heads % kv_heads:
            what = f"{heads} query heads and {kv_heads} key heads"
            raise self.value(what, "make the query heads a multiple of the key heads")
        if not 1 <= queries <= QUERIES:
            raise self.value(f"q has {queries} queries", f"1 to {QUERIES}; `attention` takes more")
        if dim % 8 or not 16 <= dim <= 256:
            raise self.value(f"a head dimension of {dim}", "a multiple of 8 from 16 to 256")
        dtype, cache = self.dtypes(q, k, v)
        if self.integers("lengths", arrays["lengths"], 1, "(batch,)") != (batch,):
            raise self.value(
                f"lengths is {tuple(arrays['lengths'].shape)}", f"int32 ({batch},), the keys of each sequence"
            )
        paged = {} if table is None else self.pages(table, batch, count, keys)
        scales, by_head = self.scales(arrays, cache, batch, kv_heads)
        return DecodeProblem(
            batch, heads, kv_heads, queries, paged.pop("keys", keys), dim, dtype, cache, bool(o["causal"]),
            None if o["window"] is None else min(int(o["window"]), WIDEST), None if o["softcap"] is None else float(o["softcap"]),
            scales, bool(o["return_lse"]), by_head=by_head, heads_last=False, **paged,
        )  # fmt: skip

    def dtypes(self, q: Any, k: Any, v: Any) -> tuple[Any, Any]:
        """(the dtype of q, the dtype of the cache)."""
        dtype, cache, values = (as_dtype(x.dtype) for x in (q, k, v))
        if dtype not in (kd.float16, kd.bfloat16) or cache != values or cache not in (dtype, kd.float8_e4m3fn):
            what = f"q is {dtype}, k is {cache} and v is {values}"
            raise self.bad_dtype(what, "all are float16 or all bfloat16; k and v may be float8_e4m3fn")
        return dtype, cache

    def pages(self, table: Any, batch: int, pages: int, page: int) -> dict[str, int]:
        """The fields of a problem about pages."""
        rows, most = self.integers("page_table", table, 2, "(batch, max_pages)")
        if rows != batch:
            raise self.value(f"page_table is {(rows, most)}", f"int32 ({batch}, max_pages)")
        if not 1 <= page <= PAGE:
            raise self.value(f"pages of {page} keys", f"a page has 1 to {PAGE} keys")
        return {"keys": most * page, "page": page, "pages": pages, "table": most}

    def scales(self, arrays: dict[str, Any], cache: Any, batch: int, kv_heads: int) -> tuple[str, str]:
        """(the names among k and v with scales, those of them with one scale a head)."""
        found = by_head = ""
        for name in ("k", "v"):
            x = arrays[f"{name}_scale"]
            if x is None:
                continue
            found += name
            if cache != kd.float8_e4m3fn:
                raise self.value(f"{name}_scale with {cache}", "scales are for float8_e4m3fn; other caches have none")
            if is_number(x):
                continue
            hint = f"a number, or float32 ({batch}, {kv_heads})"
            shape = getattr(x, "shape", None)
            if not isinstance(shape, tuple) or not hasattr(x, "dtype") or as_dtype(x.dtype) != kd.float32:
                raise self.argument(f"{name}_scale is {of_kind(x)}", hint)
            if shape not in ((), (batch, kv_heads)):
                raise self.value(f"{name}_scale is {shown(shape)}", hint)
            by_head += name * bool(shape)
        return found, by_head


decode_attention: DecodeAttention = DecodeAttention()

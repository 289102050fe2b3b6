"""`kd.library.attention`: softmax(q k^T * scale) v as a plain function."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import kernel_dsl as kd
from kernel_dsl.boundary import checks_itself, public
from kernel_dsl.diagnostics import shown
from kernel_dsl.dtypes import as_dtype
from kernel_dsl.errors import BadCallArgument, BadCallValue
from kernel_dsl.stages import target_named
from kernel_dsl.target import Feature

from .attention_general import attention_general
from .attention_kernel import AttentionConfig, AttentionProblem, attention_kernel, default_config
from .matmul import MANY, array_address, check_apart, check_counts, element_strides, known_plan, out_refusal, signature

_log = logging.getLogger("kernel_dsl")


@partial(public, name="attention")
class Attention:
    """`attention(q, k, v)`: q (batch, heads, queries, dim), k and v (batch, kv_heads, keys, dim); returns q's shape.

    Query heads share key heads evenly where there are fewer of these. `causal`: query i sees keys 0 to i. `scale`: by
    default dim ** -0.5. `return_lse=True` also gives the logarithm of each row's sum of exponentials, float32
    (batch, heads, queries). `config`: an `AttentionConfig`. `out`, `stream`, `interpret`: as for kernels; `out` may be `q`.
    All three have one float dtype. Arrays that TMA or wgmma can't take go to a slower kernel, with a log line. Raises
    `BadCallArgument` for what are no such arrays, `BadCallValue` for shapes that don't fit, no keys, a `scale` that is not
    positive, or an `out` that is `k` or `v`.
    """

    def __init__(self) -> None:
        self._plans: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return "<kd.library.attention>"

    @checks_itself("scale", "config")
    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        causal: bool = False,
        scale: float | None = None,
        return_lse: bool = False,
        config: AttentionConfig | None = None,
        out: Any = None,
        stream: Any = None,
        interpret: Any = None,
    ) -> Any:
        result = first_of(out)
        kernel = self._plan(q, k, v, causal, scale, return_lse, config, None, result)
        if result is not None:
            check_apart(result, {"k": k, "v": v}, "attention")
        return kernel(q, k, v, out=out, stream=stream, interpret=interpret)

    @checks_itself("scale", "config", "target")
    def lower(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        causal: bool = False,
        scale: float | None = None,
        return_lse: bool = False,
        config: AttentionConfig | None = None,
        target: str | None = None,
    ) -> Any:
        """The stages of the kernel that a call with such arguments runs."""
        return self._plan(q, k, v, causal, scale, return_lse, config, target).lower(q, k, v, target=target)

    def _plan(
        self,
        q: Any,
        k: Any,
        v: Any,
        causal: bool,
        scale: float | None,
        lse: bool,
        config: AttentionConfig | None,
        target: str | None,
        out: Any = None,
    ) -> Any:
        options = {"causal": causal, "scale": scale, "return_lse": lse, "config": config, "target": target}
        arrays = (q, k, v) if out is None else (q, k, v, out)
        key = (*[signature(x, "attention") for x in arrays], out is None, *options.values())
        found = known_plan(self._plans, key, "attention", options)
        if found is None:
            if len(self._plans) >= MANY:
                self._plans.clear()
            found = self._plans[key] = self._kernel(q, k, v, causal, scale, lse, config, target, out)
        return found

    def _kernel(
        self,
        q: Any,
        k: Any,
        v: Any,
        causal: bool,
        scale: float | None,
        lse: bool,
        config: AttentionConfig | None,
        target: str | None,
        out: Any,
    ) -> Any:
        problem = describe(q, k, v, causal, scale, lse)
        if config is not None and not isinstance(config, AttentionConfig):  # pyright: ignore[reportUnnecessaryIsInstance]
            what = f"config is a {type(config).__name__}"
            raise BadCallArgument(
                kernel="attention", what=what, hint="an `AttentionConfig`, or None to have one chosen"
            )
        if config is not None:
            check_counts(config, "attention")
            if config.block_kv % 16:
                what = f"config.block_kv={config.block_kv}"
                raise BadCallValue(
                    kernel="attention", what=what, hint="a multiple of 16: wgmma takes as many keys at once"
                )
        machine = target_named(target)
        why = refusal(problem, (q, k, v), machine) or out_refusal(out)
        if why:
            _log.info("attention: %s; using the general kernel", why)
            return attention_general(problem)
        return attention_kernel(problem, config or default_config(problem), machine.limits.multiprocessors)


def first_of(out: Any) -> Any:
    """The result's array, of an `out=` that may hold the LSE's too."""
    return out[0] if isinstance(out, (tuple, list)) and out else out  # pyright: ignore[reportUnknownVariableType]


def describe(
    q: Any, k: Any, v: Any, causal: bool, scale: float | None, lse: bool, kernel: str = "attention"
) -> AttentionProblem:
    """The problem of a function named `kernel`. Raises `BadCallArgument`, `BadCallValue`."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        shape = getattr(x, "shape", None)
        if not isinstance(shape, tuple) or not hasattr(x, "dtype") or len(shape) != 4:
            what = f"{name} is a {type(x).__name__} of shape {shown(shape or ())}"
            raise BadCallArgument(kernel=kernel, what=what, hint="inputs are (batch, heads, length, dim)")
    batch, heads, queries, dim = tuple(q.shape)
    dtype = as_dtype(q.dtype)
    if tuple(k.shape) != tuple(v.shape) or k.shape[0] != batch or k.shape[3] != dim:
        what = f"q is {tuple(q.shape)}, k is {tuple(k.shape)} and v is {tuple(v.shape)}"
        raise BadCallValue(kernel=kernel, what=what, hint="k and v are (batch, kv_heads, keys, dim)")
    if not k.shape[1] or heads % k.shape[1]:
        what = f"{heads} query heads and {k.shape[1]} key heads"
        raise BadCallValue(kernel=kernel, what=what, hint="the query heads are a multiple of the key heads")
    if as_dtype(k.dtype) != dtype or as_dtype(v.dtype) != dtype or not dtype.is_float:
        what = f"q is {dtype}, k is {as_dtype(k.dtype)} and v is {as_dtype(v.dtype)}"
        raise BadCallArgument(kernel=kernel, what=what, hint="give all three one float dtype")
    if not k.shape[2] and queries:
        raise BadCallValue(kernel=kernel, what="there are no keys", hint="a softmax needs at least one key")
    if scale is not None and (isinstance(scale, bool) or not hasattr(scale, "__float__")):
        raise BadCallArgument(kernel=kernel, what=f"scale={shown(scale)}", hint="a positive number")
    try:
        factor = max(dim, 1) ** -0.5 if scale is None else float(scale)
    except (OverflowError, TypeError):
        factor = math.nan
    if not math.isfinite(factor) or factor <= 0:
        raise BadCallValue(kernel=kernel, what=f"scale={shown(scale)}", hint="a positive number")
    return AttentionProblem(batch, heads, k.shape[1], queries, k.shape[2], dim, dtype, bool(causal), factor, bool(lse))


def refusal(p: AttentionProblem, arrays: tuple[Any, ...], target: Any) -> str:
    """Why the fast kernel can't do it; empty where it can."""
    if not target.supports(Feature.WGMMA | Feature.TMA):
        return f"{target} has no wgmma"
    if p.dtype not in (kd.float16, kd.bfloat16):
        return f"{p.dtype} is not a 16-bit float"
    if p.dim not in (64, 128, 192, 256):
        return f"a head dimension of {p.dim} is none of 64, 128, 192, 256"
    if not p.batch or not p.queries:
        return "there is nothing to compute"
    return tma_refusal(dict(zip("qkv", arrays, strict=True)))


def tma_refusal(arrays: Mapping[str, Any]) -> str:
    """Why TMA can't load heads of one of the named arrays of 16-bit elements; empty where it can."""
    for name, x in arrays.items():
        strides = element_strides(x)
        if strides is not None and (strides[3] != 1 or any(s < 0 or s % 8 for s in strides[:3])):
            return f"{name} has strides {strides}, and TMA needs rows of neighbours at multiples of 16 bytes"
        if array_address(x) % 16:
            return f"{name} is not aligned to 16 bytes"
    return ""


attention = Attention()

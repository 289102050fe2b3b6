"""The options of `kd.library.attention` and its gradients: checked, and made into a problem."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from numbers import Integral
from typing import Any

import numpy as np

import kernel_dsl as kd
from kernel_dsl.diagnostics import of_kind, shown
from kernel_dsl.dtypes import FP8, as_dtype
from kernel_dsl.errors import BadCallValue

from ..products.matmul import signature
from ..products.operands import array_address, element_strides
from ..refusals import Refusals, floated, is_number, kind_and_shape
from .captured import NAME, alike, capture
from .problem import ScoredProblem
from .score import ALIGNMENTS, Score

ARRAYS = ("q_scale", "k_scale", "v_scale", "sinks", "bias", "q_seqlens", "kv_seqlens", "dlse")
SCALES = ARRAYS[:3]
PAGE = 256  # the most keys of a page
WIDEST = 2**30  # a window that hides no key; its sums with indices fit int32
# options that this file checks with its own errors
CHECKED = (
    "layout",
    "causal",
    "window",
    "softcap",
    "scale",
    "score_mod",
    "mask_mod",
    "score_mod_grad",
    "page_table",
    "config",
)


@dataclass(frozen=True)
class AttentionOptions:
    """The arguments of a call besides q, k and v."""

    layout: Any = "bhsd"
    causal: Any = False
    window: Any = None
    softcap: Any = None
    scale: Any = None
    sinks: Any = None
    bias: Any = None
    score_mod: Any = None
    mask_mod: Any = None
    q_seqlens: Any = None
    kv_seqlens: Any = None
    page_table: Any = None
    q_scale: Any = None
    k_scale: Any = None
    v_scale: Any = None
    score_mod_grad: Any = None
    dlse: Any = None
    captured: tuple[Any, ...] = ()

    def apart(self, like: Any) -> AttentionOptions:
        """These options with the captured arrays in `captured`, converted to the framework of `like`."""
        made: dict[str, Any] = {}
        found: list[Any] = []
        for name in ("score_mod", "mask_mod", "score_mod_grad"):
            if callable(getattr(self, name)):
                made[name], more = capture(getattr(self, name), len(found))
                found += more
        return replace(self, **made, captured=tuple(alike(x, like) for x in found)) if found else self

    def key(self, name: str) -> tuple[Any, ...]:
        """The key of a plan."""
        arrays = [
            self.sinks, self.bias, self.q_seqlens, self.kv_seqlens, self.page_table, self.q_scale, self.k_scale, self.v_scale,
            self.dlse,
        ]  # fmt: skip
        described = None if all(x is None for x in arrays) else tuple([signature(x, name) for x in arrays])
        return (
            self.layout, self.causal, self.window, self.softcap, self.scale, self.score_mod, self.mask_mod,
            self.score_mod_grad, type(self.window), type(self.softcap), type(self.scale), described,  # True is no number
        )  # fmt: skip

    def kind(self) -> tuple[Any, ...]:
        """What decides a call's launches besides q, k and v: the options, and the types and shapes of arrays."""
        arrays = (
            self.sinks, self.bias, self.q_seqlens, self.kv_seqlens, self.page_table, self.q_scale, self.k_scale, self.v_scale,
            self.dlse, *self.captured,
        )  # fmt: skip
        return (
            self.layout, self.causal, self.window, self.softcap, self.scale, self.score_mod, self.mask_mod,
            self.score_mod_grad, type(self.window), type(self.softcap), type(self.scale),
            *[None if x is None else (type(x), getattr(x, "shape", None)) for x in arrays],
        )  # fmt: skip

    def arrays(self, names: list[str]) -> list[Any]:
        """The arrays with these names, in the form that kernels take."""
        mine = [name for name in names if not name.startswith(NAME)]
        found = {name: getattr(self, name) for name in mine}
        if found.get("kv_seqlens", 0) is None:
            found["kv_seqlens"] = self.q_seqlens
        found |= {name: self.captured[int(name.removeprefix(NAME))] for name in names if name not in found}
        return [floated(found[name]) for name in names]

    def rows(self, *arrays: Any) -> tuple[Any, ...]:
        """These arrays of rows, and dlse if lse has a gradient."""
        return arrays if self.dlse is None else (*arrays, self.dlse)

    def given(self) -> dict[str, Any]:
        """The options that are part of a key as they are; arrays are part of it by their signatures."""
        return {
            f.name: getattr(self, f.name) for f in fields(self) if f.name not in (*ARRAYS, "page_table", "captured")
        }


def problem_of(q: Any, k: Any, v: Any, o: AttentionOptions, lse: bool, kernel: str = "attention") -> ScoredProblem:
    """The problem of a function named `kernel`. Raises `BadCallArgument`, `BadCallValue`."""
    _Check(kernel).options(o)
    return _Check(kernel).problem(q, k, v, o, lse)


class _Check(Refusals):
    """The checks of a function; each raises at the caller's line."""

    # --- options alone ----------------------------------------------------------------------------

    def options(self, o: AttentionOptions) -> None:
        if o.layout not in ("bhsd", "bshd"):
            raise self.value(f"layout={shown(o.layout)}", '"bhsd" or "bshd"')
        if not isinstance(o.causal, (bool, np.bool_, str)) and o.causal not in (0, 1):
            raise self.argument(f"causal is {of_kind(o.causal)}", 'a bool, "top_left" or "bottom_right"')
        if o.causal not in ALIGNMENTS:
            raise self.value(f"causal={shown(o.causal)}", 'a bool, "top_left" or "bottom_right"')
        if o.window is not None and (not isinstance(o.window, Integral) or o.window is True):
            raise self.argument(f"window={shown(o.window)}", "a positive int, or None")
        if o.window is not None and o.window < 1:
            raise self.value(f"window={shown(o.window)}", "a positive int, or None")
        for name in ("scale", "softcap"):
            self.positive(name, getattr(o, name))
        for name in ("score_mod", "mask_mod", "score_mod_grad"):
            function = getattr(o, name)
            if function is not None and not callable(function):
                raise self.argument(f"{name} is {of_kind(function)}", "a function of traced values, or None")
        if o.score_mod_grad is not None and o.score_mod is None:
            raise self.value("score_mod_grad without score_mod", "give the function, too")
        if o.page_table is not None and self.kernel != "attention":
            raise self.value("page_table", "keys in pages have no gradients: gather the pages first")

    # --- arrays -----------------------------------------------------------------------------------

    def array(self, name: str, x: Any, rank: int | None, hint: str) -> tuple[int, ...]:
        """The shape of an array. A NumPy scalar, whose value would be part of the kernel, is none."""
        shape = None if isinstance(x, np.generic) else getattr(x, "shape", None)
        if not isinstance(shape, tuple) or not hasattr(x, "dtype") or (rank is not None and len(shape) != rank):
            raise self.argument(f"{name} is {kind_and_shape(x)}", hint)
        return tuple(shape)

    def problem(self, q: Any, k: Any, v: Any, o: AttentionOptions, lse: bool) -> ScoredProblem:
        if o.page_table is not None:
            return self.paged(q, k, v, o, lse)
        ragged = o.q_seqlens is not None or o.kv_seqlens is not None
        axes = {"bhsd": "(batch, heads, length, dim)", "bshd": "(batch, length, heads, dim)"}[o.layout]
        axes = "(total length, heads, dim)" if ragged else axes
        shapes = [
            self.array(name, x, 3 if ragged else 4, f"inputs are {axes}")
            for name, x in zip("qkv", (q, k, v), strict=True)
        ]
        if ragged:
            batch = self.lengths(o, shapes[0][0], shapes[1][0])
            shaped = [(batch, heads, length, dim) for length, heads, dim in shapes]
        else:
            shaped = [(b, y, x, d) if o.layout == "bshd" else (b, x, y, d) for b, x, y, d in shapes]
        (batch, heads, queries, dim), (kb, kv_heads, keys, k_dim), (vb, v_heads, v_keys, v_dim) = shaped
        if (kb, k_dim) != (batch, dim) or (vb, v_heads, v_keys) != (kb, kv_heads, keys):
            what = f"q is {shapes[0]}, k is {shapes[1]} and v is {shapes[2]}"
            raise self.bad_shape(
                what, f"k and v are {axes.replace('heads', 'kv_heads')}, and dim is that of q but for v"
            )
        sizes = batch, heads, kv_heads, queries, keys, dim, v_dim
        return self.scored(q, k, v, o, lse, sizes, ragged)

    def scored(
        self, q: Any, k: Any, v: Any, o: AttentionOptions, lse: bool, sizes: tuple[int, ...], ragged: bool, **cache: Any
    ) -> ScoredProblem:
        """The problem of arrays whose shapes fit together; `sizes` are its first fields."""
        batch, heads, kv_heads, queries, keys, dim, _ = sizes
        if not kv_heads or heads % kv_heads:
            what = f"{heads} query heads and {kv_heads} key heads"
            raise self.value(what, "make the query heads a multiple of the key heads")
        dtype = as_dtype(q.dtype)
        if as_dtype(k.dtype) != dtype or as_dtype(v.dtype) != dtype or not dtype.is_float:
            what = f"q is {dtype}, k is {as_dtype(k.dtype)} and v is {as_dtype(v.dtype)}"
            raise self.bad_dtype(what, "give all three one float dtype")
        bias = self.extras(o, batch, heads, kv_heads, queries, keys, ragged, dtype)
        score = Score(
            ALIGNMENTS[o.causal],
            None if o.window is None else min(int(o.window), WIDEST),
            None if o.softcap is None else float(o.softcap),
            o.sinks is not None,
            bias,
            o.score_mod,
            o.mask_mod,
            o.score_mod_grad,
            None if bias is None else tiles_of_bias(o.bias, bias, queries, keys),
        )
        scale = max(dim, 1) ** -0.5 if o.scale is None else float(o.scale)
        scales = "".join(name[0] for name in SCALES if getattr(o, name) is not None)
        shapes = {name[0]: tuple(getattr(getattr(o, name), "shape", ())) for name in SCALES}
        by_batch = "".join(name for name in scales if shapes[name][:1] == (batch,))
        return ScoredProblem(
            *sizes, dtype=dtype, out_dtype=kd.bfloat16 if dtype in FP8 else dtype, scale=scale, score=score, layout=o.layout,
            ragged=ragged, lse=bool(lse), scales=scales, by_batch=by_batch, **cache,
        )  # fmt: skip

    def paged(self, q: Any, k: Any, v: Any, o: AttentionOptions, lse: bool) -> ScoredProblem:
        """The problem of keys and values in pages."""
        ragged, swapped = o.q_seqlens is not None, o.layout == "bshd"
        axes = "(batch, length, heads, dim)" if swapped else "(batch, heads, length, dim)"
        axes = "(total length, heads, dim)" if ragged else axes
        shape = self.array("q", q, 3 if ragged else 4, f"q is {axes}")
        if ragged:
            batch = self.integers("q_seqlens", o.q_seqlens, 1, "cumulative lengths of shape (batch + 1,)")[0] - 1
            if batch < 1:
                raise self.value(
                    f"q_seqlens is {(batch + 1,)}", "int32 cumulative lengths of shape (batch + 1,), batch at least 1"
                )
            queries, heads, dim = shape
        else:
            batch, heads, queries, dim = (shape[0], shape[2], shape[1], shape[3]) if swapped else shape
        axes = "(pages, page, kv_heads, dim)" if swapped else "(pages, kv_heads, page, dim)"
        shapes = [self.array(name, x, 4, f"{name} is {axes}") for name, x in (("k", k), ("v", v))]
        if shapes[0][:3] != shapes[1][:3] or shapes[0][3] != dim:
            what = f"q is {shape}, k is {shapes[0]} and v is {shapes[1]}"
            raise self.bad_shape(what, f"with a page_table k and v are {axes}, and dim is that of q but for v")
        pages, page, kv_heads = (shapes[0][i] for i in ((0, 1, 2) if swapped else (0, 2, 1)))
        rows, most = self.integers("page_table", o.page_table, 2, "of shape (batch, max_pages)")
        if rows != batch:
            raise self.bad_shape(f"page_table is {(rows, most)}", f"int32 of shape ({batch}, max_pages)")
        if not 1 <= page <= PAGE:
            raise self.value(f"pages of {page} keys", f"a page has 1 to {PAGE} keys")
        cache = "cumulative" if ragged else "whole"
        if o.kv_seqlens is not None:
            hint = f"({batch},), the keys of each sequence, or cumulative lengths of shape ({batch + 1},)"
            (count,) = self.integers("kv_seqlens", o.kv_seqlens, 1, hint)
            if count not in (batch, batch + 1):
                raise self.value(f"kv_seqlens is {(count,)}", f"int32 {hint}")
            cache = "plain" if count == batch else "cumulative"
        sizes = batch, heads, kv_heads, queries, most * page, dim, shapes[1][3]
        return self.scored(q, k, v, o, lse, sizes, ragged, cache=cache, page=page, pages=pages, table=most)

    def integers(self, name: str, x: Any, rank: int, hint: str) -> tuple[int, ...]:
        """The shape of an int32 array."""
        shape = self.array(name, x, rank, f"int32 {hint}")
        if as_dtype(x.dtype) != kd.int32:
            raise self.bad_dtype(f"{name} is {as_dtype(x.dtype)}", f"int32 {hint}")
        return shape

    def extras(
        self,
        o: AttentionOptions,
        batch: int,
        heads: int,
        kv_heads: int,
        queries: int,
        keys: int,
        ragged: bool,
        dtype: Any,
    ) -> tuple[int, ...] | None:
        """Check sinks, scales and bias; returns the shape of the last."""
        if o.sinks is not None:
            hint = f"a float array of shape ({heads},), a sink for each head"
            if self.array("sinks", o.sinks, 1, hint) != (heads,):
                raise self.bad_shape(f"sinks is {tuple(o.sinks.shape)}", hint)
            self.floats("sinks", o.sinks, hint)
        for name in SCALES:
            x = getattr(o, name)
            if x is None:
                continue
            if dtype not in FP8:
                raise self.value(f"{name} with {dtype}", "scales are for float8_e4m3fn; other inputs have none")
            if is_number(x):
                continue
            shape, hint = (
                self.array(name, x, None, "a number, or an array"),
                f"a number, or float32 ({batch}, {kv_heads})",
            )
            if shape not in ((), (batch, kv_heads)):
                raise self.bad_shape(f"{name} is {shape}", hint)
            if as_dtype(x.dtype) != kd.float32:
                raise self.bad_dtype(f"{name} is {as_dtype(x.dtype)}", hint)
        if o.bias is None:
            return None
        full = (batch, heads, queries, keys)
        hint = f"a float array that broadcasts to {full}"
        shape = self.array("bias", o.bias, None, hint)
        if ragged:
            raise self.value("bias with q_seqlens", "ragged lengths take no bias; add it in score_mod")
        if len(shape) > 4 or any(n not in (1, m) for n, m in zip(shape[::-1], full[::-1], strict=False)):
            raise self.bad_shape(f"bias is {shape}", hint)
        if as_dtype(o.bias.dtype) == kd.bool_:
            hint += "; an array that says which keys count: `mask_mod=lambda b, h, i, j: mask[i, j]`"
        self.floats("bias", o.bias, hint)
        return shape

    def floats(self, name: str, x: Any, hint: str) -> None:
        if not as_dtype(x.dtype).is_float or as_dtype(x.dtype) in FP8:
            raise self.bad_dtype(f"{name} is {as_dtype(x.dtype)}", hint)

    # --- ragged lengths ---------------------------------------------------------------------------

    def lengths(self, o: AttentionOptions, queries: int, keys: int) -> int:
        """The number of sequences."""
        if o.q_seqlens is None:
            raise self.value("kv_seqlens without q_seqlens", "give the lengths of the queries, too")
        hint = "int32 cumulative lengths of shape (batch + 1,)"
        both = {"q_seqlens": o.q_seqlens, "kv_seqlens": o.q_seqlens if o.kv_seqlens is None else o.kv_seqlens}
        shapes = {name: self.array(name, x, 1, hint) for name, x in both.items()}
        for name, x in both.items():
            if as_dtype(x.dtype) != kd.int32:
                raise self.bad_dtype(f"{name} is {as_dtype(x.dtype)}", hint)
        if shapes["q_seqlens"] != shapes["kv_seqlens"] or shapes["q_seqlens"][0] < 2:
            what = f"q_seqlens is {shapes['q_seqlens']} and kv_seqlens is {shapes['kv_seqlens']}"
            raise self.bad_shape(what, f"both are {hint}, batch at least 1")
        if o.kv_seqlens is None and queries != keys:
            raise self.value(f"q_seqlens alone for {queries} queries and {keys} keys", "give kv_seqlens, too")
        return shapes["q_seqlens"][0] - 1


def tiles_of_bias(bias: Any, shape: tuple[int, ...], queries: int, keys: int) -> Any:
    """The dtype of a bias whose tiles of queries and keys TMA can load; None if it can't.

    A bias of a single query, or key, counts as one that broadcasts, which gives None.
    """
    dtype, strides = as_dtype(bias.dtype), element_strides(bias)
    if shape[-2:] != (queries, keys) or 1 in shape[-2:] or dtype.itemsize not in (2, 4) or array_address(bias) % 16:
        return None
    rows = [keys] if strides is None else strides[:-1]
    odd = strides is not None and strides[-1] != 1
    return None if odd or any(n <= 0 or n * dtype.itemsize % 16 for n in rows) else dtype


def _on_host(x: Any) -> bool:
    """Whether an array of PyTorch or JAX is in the host's memory."""
    device = getattr(x, "device", "")
    return str(device) == "cpu" or getattr(device, "platform", "") == "cpu"


def fixed_axes(given: dict[str, Any], *names: str) -> dict[str, tuple[int, ...]]:
    """By array of a `lower`, the axes of heads and of their dimensions, which are compiled in. Arrays of ragged
    lengths have no axis of batches.
    """
    last = given.get("layout") == "bshd"
    ranks = {name: len(getattr(given.get(name), "shape", ())) for name in names}
    return {name: (-1, -2 if last or rank == 3 else -3) for name, rank in ranks.items()}


def check_lengths(o: AttentionOptions, p: ScoredProblem, kernel: str) -> None:
    """Raise `BadCallValue` for lengths in the host's memory that decrease or exceed the arrays.

    Lengths in a GPU's memory are not read here; kernels do not access memory outside the arrays.
    """
    for name, x, total in (("q_seqlens", o.q_seqlens, p.queries), ("kv_seqlens", o.kv_seqlens, p.keys)):
        if x is None or (not isinstance(x, np.ndarray) and not _on_host(x)):
            continue
        values = np.asarray(x)
        if p.cache and name == "kv_seqlens":
            each = values if p.cache == "plain" else np.diff(values.astype(np.int64))
            if (each < 0).any() or (each > p.keys).any():
                hint = f"a sequence has 0 to {p.keys} keys, as many as its pages hold"
                raise BadCallValue(kernel=kernel, what=f"{name}={values.tolist()[:8]}", hint=hint)
            continue
        if values[0] < 0 or values[-1] > total or (np.diff(values.astype(np.int64)) < 0).any():
            hint = f"cumulative lengths begin at 0 or later, never fall, and end at {total} or before"
            raise BadCallValue(kernel=kernel, what=f"{name}={values.tolist()[:8]}", hint=hint)

"""Scores and masks of attention: all kernels of attention share this description."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import kernel_dsl as kd
from kernel_dsl.boundary import called
from kernel_dsl.diagnostics import of_kind
from kernel_dsl.errors import BadCallArgument

from .captured import NAME, SCORE_MOD, Captured, function_of

HINTS = {
    "score_mod": "it gives a float for each score",
    "score_mod_grad": "it gives score_mod's derivative by each score",
    "mask_mod": "it gives a bool for each query and key",
}
ALIGNMENTS: dict[bool | str, str] = {
    False: "",
    True: "top_left",
    "top_left": "top_left",
    "bottom_right": "bottom_right",
}


@dataclass(frozen=True)
class Score:
    """scale * q.k, then `softcap`, a bias of shape `bias`, `score_mod`; then the masks. `sinks`: each head has one.

    `causal`: "", "top_left" (key j <= query i) or "bottom_right" (j <= i + keys - queries). `bias_tiles`: the dtype of
    a bias whose tiles of queries and keys TMA can load, else None.
    """

    causal: str = ""
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    bias: tuple[int, ...] | None = None
    score_mod: Callable[..., Any] | None = None
    mask_mod: Callable[..., Any] | None = None
    score_mod_grad: Callable[..., Any] | None = None
    bias_tiles: Any = None

    @property
    def plain(self) -> bool:
        """Whether `AttentionProblem.causal` describes it completely."""
        return self == Score(causal=self.causal) and self.causal != "bottom_right"

    @property
    def natural(self) -> bool:
        """Whether the results of `scores` are complete; otherwise they still need a factor."""
        return self.bias is not None or self.score_mod is not None

    @property
    def has_functions(self) -> bool:
        return self.score_mod is not None or self.mask_mod is not None

    @property
    def captured(self) -> list[str]:
        """Names of the operands that stand for captured arrays."""
        return [f"{NAME}{n}" for n in range(len(self.captured_ranks))]

    @property
    def captured_ranks(self) -> list[int]:
        """The ranks of captured arrays."""
        functions = self.score_mod, self.mask_mod, self.score_mod_grad
        return [rank for f in functions if isinstance(f, Captured) for rank in f.ranks]

    # --- values -----------------------------------------------------------------------------------

    def factor(self, scale: Any) -> Any:
        """The factor from the result of `scores` to a score."""
        if self.natural:
            return 1.0
        return scale if self.softcap is None else self.softcap

    def scores(self, x: Any, scale: Any, bias: Callable[[], Any], place: tuple[Any, Any, Any, Any]) -> Any:
        """Scores of products q.k `x`, at `place`, (batch, head, queries, keys), without `factor`.

        `bias()` loads the tile's bias.
        """
        if self.softcap is not None:
            x = kd.tanh(x * (scale * (1.0 / self.softcap)))
        if self.bias is not None:
            x = kd.fma(x, scale if self.softcap is None else self.softcap, bias().astype(x.dtype))
        elif self.natural:
            x = x * (scale if self.softcap is None else self.softcap)
        if self.score_mod is not None:
            x = self.modified(x, place)
        return x

    def modified(self, x: Any, place: tuple[Any, Any, Any, Any]) -> Any:
        """`score_mod` of scores. Raises `BadCallArgument` unless it gives one number for each score."""
        args = x.astype(kd.float32), *place
        return _called(self.score_mod, args, "attention", "score_mod", SCORE_MOD, x)

    def with_slopes(
        self, x: Any, scale: Any, bias: Callable[[], Any], place: tuple[Any, Any, Any, Any]
    ) -> tuple[Any, Any, Any]:
        """(complete scores, their derivatives by the bias, and by scale * q.k), for gradients.

        Derivatives are None if they are 1.
        """
        from .slopes import with_derivative  # operations, imported for the first trace

        after = slope = None
        x = x * scale
        if self.softcap is not None:
            x = kd.tanh(x * (1.0 / self.softcap))
            slope, x = 1.0 - x * x, x * self.softcap
        if self.bias is not None:
            x = x + bias().astype(x.dtype)
        if self.score_mod is not None:
            args = x.astype(kd.float32), *place
            form = SCORE_MOD.replace("_mod", "_mod_grad")
            if self.score_mod_grad is None:
                made, after = with_derivative(function_of(self.score_mod), args[0], place)
                after = of_shape(after, x.shape, x.dtype, "score_mod_grad")
                made = of_shape(made, x.shape, x.dtype, "score_mod")
                refuse_mixing(function_of(self.score_mod), args, "attention_backward", "score_mod", SCORE_MOD)
            else:
                made = _called(self.score_mod, args, "attention_backward", "score_mod", SCORE_MOD, x)
                after = _called(self.score_mod_grad, args, "attention_backward", "score_mod_grad", form, x)
            x = made
        return x, after, slope if after is None else after if slope is None else slope * after

    # --- masks ------------------------------------------------------------------------------------

    def shift(self, queries: Any, keys: Any) -> Any:
        """The number to add to a query's number before the comparison with a key's."""
        return keys - queries if self.causal == "bottom_right" else 0

    def seen(self, place: tuple[Any, Any, Any, Any], queries: Any, keys: Any, whole: bool = False) -> Any:
        """Whether queries see keys, as a bool array; None if all do. `whole`: no key is beyond `keys`."""
        i, j = place[2], place[3]
        at = i + self.shift(queries, keys) if self.causal == "bottom_right" else i
        parts: list[Any] = []
        if self.causal:
            # no query that exists is beyond the last key; otherwise one comparison with a number of the row covers both
            # bounds
            few = isinstance(queries, int) and isinstance(keys, int) and queries <= keys
            within = whole or few or self.causal == "bottom_right"
            if self.window is None:
                parts.append(j <= (at if within else kd.minimum(at, keys - 1)))
            elif within:
                parts.append(_below(at - j, self.window))
            else:
                last = kd.minimum(at, keys - 1)
                count = kd.maximum(last - at + self.window, 0)
                parts.append(_below(last - j, kd.bitcast_convert_type(count, kd.uint32)))
        else:
            if not whole:
                parts.append(j < keys)
            if self.window is not None:
                parts.append(_below(at - j + (self.window - 1), 2 * self.window - 1))
        if self.mask_mod is not None:
            parts.append(self.mask(place))
        return None if not parts else _all(parts)

    def mask(self, place: tuple[Any, Any, Any, Any]) -> Any:
        """`mask_mod` at a place. Raises `BadCallArgument` unless it gives one bool for each pair."""
        like = kd.ShapeDtypeStruct(np.broadcast_shapes(place[2].shape, place[3].shape), kd.bool_)
        return _called(self.mask_mod, place, "attention", "mask_mod", "mask_mod(b, h, i, j)", like)

    def first_key(self, query: Any, queries: Any, keys: Any) -> Any:
        """The first key that queries from `query` on see, ignoring `mask_mod`."""
        if self.window is None:
            return 0
        return kd.maximum(query + self.shift(queries, keys) - (self.window - 1), 0)

    def end_key(self, query: Any, queries: Any, keys: Any) -> Any:
        """One more than the last key that queries up to `query` see: at most `keys`; it may be negative."""
        if self.causal:
            return kd.minimum(query + self.shift(queries, keys) + 1, keys)
        return keys if self.window is None else kd.minimum(query + self.window, keys)

    def first_query(self, key: Any, queries: Any, keys: Any) -> Any:
        """The first query that sees keys from `key` on."""
        if self.causal:
            return kd.maximum(key - self.shift(queries, keys), 0)
        return 0 if self.window is None else kd.maximum(key - (self.window - 1), 0)

    def end_query(self, key: Any, queries: Any, keys: Any) -> Any:
        """One more than the last query that sees keys up to `key`."""
        if self.window is None:
            return queries
        return kd.maximum(kd.minimum(key - self.shift(queries, keys) + self.window, queries), 0)


def _called(function: Any, args: tuple[Any, ...], kernel: str, name: str, form: str, like: Any) -> Any:
    """The result of a user's function of scores, in the shape and dtype of `like`.

    Raises `BadCallArgument` for another result, and for a function that mixes scores.
    """
    function = function_of(function)
    made = of_shape(called(function, args, kernel, name, form), like.shape, like.dtype, name)
    refuse_mixing(function, args, kernel, name, form)
    return made


def refuse_mixing(function: Any, args: tuple[Any, ...], kernel: str, name: str, form: str) -> None:
    """Raise `BadCallArgument` for a function whose results depend on which scores a kernel computes together."""
    from kernel_dsl.ops.pointwise import mixing  # operations, imported for the first trace

    why = mixing(lambda *given: called(function, given, kernel, name, form), *args)
    if why is not None:
        hint = "it gets a part of the scores, whose size the kernel chooses: use operations of each score by itself"
        raise BadCallArgument(kernel=kernel, what=f"the {name} {why}", hint=hint)


def _below(x: Any, end: Any) -> Any:
    """Whether ints are from 0 to `end`, by one comparison."""
    return kd.bitcast_convert_type(x, kd.uint32) < end


def _all(parts: list[Any]) -> Any:
    seen = parts[0]
    for part in parts[1:]:
        seen = seen & part
    return seen


def _is_number(x: Any, masks: bool) -> bool:
    return isinstance(x, bool) if masks else isinstance(x, (int, float)) and not isinstance(x, bool)


def of_shape(made: Any, shape: tuple[int, ...], dtype: Any, name: str) -> Any:
    """The result of a user's function `name`, in this shape and dtype. Raises `BadCallArgument` for another result."""
    masks = dtype == kd.bool_
    if _is_number(made, masks):
        return kd.full(shape, made, dtype)
    own = tuple(getattr(made, "shape", ()))
    fits = hasattr(made, "dtype") and hasattr(made, "astype") and len(own) <= len(shape)
    if name != "score_mod_grad":  # a bool is a derivative of 0 or 1, but no score
        fits = fits and (made.dtype == kd.bool_) == masks
    if not fits or any(n not in (1, m) for n, m in zip(own[::-1], shape[::-1], strict=False)):
        raise BadCallArgument(kernel="attention", what=f"the {name} made {_described(made)}", hint=HINTS[name])
    return kd.broadcast_to(made.astype(dtype), shape)


def _described(made: Any) -> str:
    if hasattr(made, "shape") and hasattr(made, "dtype"):
        return f"{made.dtype} of shape {tuple(made.shape)}"
    return repr(made) if made is None or isinstance(made, (bool, int, float, str)) else of_kind(made)

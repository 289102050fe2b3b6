"""The gradients of attention under JAX and PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from kernel_dsl.dtypes import FP8, as_dtype
from kernel_dsl.errors import BadCallArgument

from ..differentiable import FUNCTIONS, Derivative, check_plain, keyed
from .captured import Captured


def attention(
    host: str,
    q: Any,
    k: Any,
    v: Any,
    options: Any,
    return_lse: bool,
    config: Any,
    how: dict[str, Any],
    deterministic: bool = False,
) -> Any:
    """A call of `attention`, with the gradients of `attention_backward`: q, k, v, out, lse and arrays of options are saved.

    Where the caller gets lse, the gradient is that of both results.
    """
    forward, attention_backward = FUNCTIONS["attention"], FUNCTIONS["attention_backward"]
    check_plain("attention", how)
    skipped = ("score_mod_grad", "dlse", "captured")
    given = {f.name: getattr(options, f.name) for f in fields(options) if f.name not in skipped}
    names = [n for n in _ARRAYS if hasattr(given[n], "dtype")]
    static = {n: x for n, x in given.items() if n not in names}
    interpret = how["interpret"]

    functions = {n: x for n, x in static.items() if isinstance(x, Captured)}
    first = 3 + len(names)  # the number of the first captured array

    def options_of(arrays: Sequence[Any]) -> dict[str, Any]:
        more = dict(zip(names, arrays[3:first], strict=True))
        return more | {n: x.of(arrays[first:]) for n, x in functions.items()}

    def run(*arrays: Any) -> Any:
        more = static | options_of(arrays)
        return forward(*arrays[:3], **more, return_lse=True, config=config, interpret=interpret)

    def backward(gradients: Any, arrays: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        more = options_of(arrays)
        if as_dtype(arrays[0].dtype) in FP8:
            raise BadCallArgument(kernel="attention", what="float8 inputs have no gradients", hint="pass 16-bit floats")
        kept = {n: x for n, x in (static | more).items() if n not in ("q_scale", "k_scale", "v_scale")}
        dout, dlse = gradients if return_lse else (gradients, None)
        kept |= {"dlse": dlse, "deterministic": deterministic, "interpret": interpret}
        made = list(attention_backward(dout, *arrays[:3], *results, **kept))
        extra = iter(made[3:])
        own = [next(extra) if n in ("sinks", "bias") else None for n in names]
        return [*made[:3], *own, *(None for _ in options.captured)]

    def shapes(*arrays: Any) -> list[tuple[tuple[int, ...], Any]]:
        lead, dim = tuple(arrays[0].shape[:-1]), arrays[2].shape[-1]
        dtype = as_dtype(arrays[0].dtype)
        rows = (
            (lead[1], lead[0]) if len(lead) == 2 else lead if given["layout"] == "bhsd" else (lead[0], lead[2], lead[1])
        )
        return [((*lead, dim), "bfloat16" if dtype in FP8 else dtype), (rows, "float32")]

    key = (
        tuple(names),
        tuple(sorted((n, x) for n, x in keyed(static).items())),
        config,
        interpret,
        deterministic,
        return_lse,
    )
    can = (True, True, True, *(n in ("sinks", "bias") for n in names), *(False for _ in options.captured))
    called = ("q", "k", "v", *names, *(f"captured[{i}]" for i in range(len(options.captured))))
    count = 2 if return_lse else 1
    rule = Derivative(
        "attention", key, run, backward, shapes, can, results=2, returned=count, firsts=count, names=called
    )
    return rule(host, [q, k, v, *(given[n] for n in names), *options.captured])


_ARRAYS = ("sinks", "bias", "q_seqlens", "kv_seqlens", "page_table", "q_scale", "k_scale", "v_scale")

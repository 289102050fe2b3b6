"""Calls of the library's functions by their arrays, and what a call is worth as a number that can be differentiated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import ml_dtypes
import numpy as np

import kernel_dsl as kd

RNG = np.random.default_rng(5)
START = RNG.bit_generator.state
KEPT = 0.05  # the greatest `far` of calls that keep small steps of their arrays
Arrays = dict[str, Any]


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32).astype(dtype)


def positive(*shape: int) -> np.ndarray:
    return RNG.uniform(0.5, 1.5, shape).astype(np.float32)


def integers(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def halves(*shape: int) -> np.ndarray:
    return normal(*shape, dtype=np.float16)


def plain(given: Arrays) -> Arrays:
    return given


@dataclass(frozen=True)
class Call:
    """A call of `function` with the arrays of `draw()` by the names of its parameters, and `options`.

    `join` makes arguments of the arrays, where a parameter takes several in one. `far`: the relative error that the
    dtypes cause. `constants`: arrays that have no gradient, so that a call which differentiates them is an error.
    """

    function: str
    draw: Callable[[], Arrays]
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    join: Callable[[Arrays], Arrays] = plain
    constants: tuple[str, ...] = ()
    far: float = 0.02

    def __str__(self) -> str:
        return f"{self.function} of {', '.join(n for n, x in self.arrays().items() if is_real(x))}"

    def arrays(self) -> Arrays:
        """The same arrays each time, whatever was drawn before."""
        RNG.bit_generator.state = START
        return self.draw()

    def run(self, arrays: Arrays) -> list[Any]:
        """The float results."""
        made = getattr(kd.library, self.function)(**self.join(dict(arrays)), **self.options)
        return [x for x in parts_of(made) if is_real(x)]


def parts_of(made: Any) -> Sequence[Any]:
    if isinstance(made, kd.library.PackedInt4):
        return [x for x in (made.data, made.scales, made.zeros) if x is not None]
    if isinstance(made, kd.library.SparseMatrix):
        return [made.values, made.meta]
    return cast("Sequence[Any]", made) if isinstance(made, (tuple, list)) else [made]


def is_real(x: Any) -> bool:
    """Whether an array has numbers that can change a little."""
    return "float" in str(x.dtype) and "float8" not in str(x.dtype)


def sparse(given: Arrays) -> Arrays:
    shape = (int(given["values"].shape[0]), 2 * int(given["values"].shape[1]))
    return {"a": kd.library.SparseMatrix(given.pop("values"), given.pop("meta"), shape), **given}


def as_compressed(given: Arrays) -> Arrays:
    made = sparse(given)
    return {"compressed": made.pop("a"), **made}


def packed(given: Arrays) -> Arrays:
    parts = [given.pop(n) for n in ("data", "scales", "zeros")]
    made = kd.library.PackedInt4(*parts, (64, int(parts[1].shape[1])), 64)
    return {**given, "b": made}


def pairs(*names: str) -> Callable[[Arrays], Arrays]:
    """Parameters that take a pair, of the arrays NAME and NAME_2."""

    def join(given: Arrays) -> Arrays:
        rest = {n: x for n, x in given.items() if n.removesuffix("_2") not in names}
        return rest | {n: (given[n], given[f"{n}_2"]) for n in names}

    return join


def listed(given: Arrays) -> Arrays:
    return {**given, "operands": (given["operands"],)}


def compressed(dtype: Any = np.float32) -> Arrays:
    made = kd.library.sparse_compress(normal(64, 64, dtype=dtype), prune=True, interpret=True)
    return {"values": np.asarray(made.values), "meta": np.asarray(made.meta)}


def four_bits() -> Arrays:
    made = kd.library.pack_int4(normal(64, 16), group=64, zeros=True, interpret=True)
    return {n: np.asarray(getattr(made, n)) for n in ("data", "scales", "zeros")}


def scored(given: Arrays) -> Arrays:
    slopes = given.pop("captured")
    return {**given, "score_mod": lambda score, b, h, i, j: score + slopes[h] * (j - i)}


def products() -> list[Call]:
    """Products of matrices."""
    sides = lambda: {"a": normal(8, 32), "b": normal(32, 16)}  # noqa: E731 - one name for all
    added = lambda: {"bias": normal(16), "c": normal(8, 16), "residual": normal(1, 16)}  # noqa: E731
    factors = {"scale": (1,), "a_scale": (8,), "b_scale": (16,), "out_scale": (1,)}
    made = [
        Call("matmul", lambda: sides() | added() | {"operands": normal(8, 1)}, {"epilogue": kd.multiply}, listed),
        Call("matmul", lambda: sides() | {n: positive(*s) for n, s in factors.items()}, constants=tuple(factors)),
        Call("matmul", lambda: sides() | {"b_2": normal(32, 16), "bias": normal(16), "bias_2": normal(16)},
             {"gated": "swiglu"}, pairs("b", "bias")),
        Call("matmul", lambda: sides() | {"b_2": normal(32, 16), "b_scale": positive(16), "b_scale_2": positive(16),
             "scale": positive(1), "a_scale": positive(8)}, {"gated": "glu"}, pairs("b", "b_scale"),
             ("scale", "a_scale", "b_scale", "b_scale_2")),
        Call("matmul", lambda: {"a": normal(8, 32) / 8, "b": normal(32, 16), "bias": normal(16), "operands": normal(8, 1)},
             {"gated": "geglu", "epilogue": kd.multiply, "activation": kd.tanh}, listed),
        Call("matmul", lambda: sides() | {"scale": positive(1)}, {"activation": kd.tanh}, constants=("scale",)),
        Call("matmul", lambda: {"a": halves(8, 64)} | four_bits(), {}, packed, ("scales", "zeros"), 0.1),
        Call("matmul", lambda: compressed() | {"b": normal(64, 16), "bias": normal(16)}, {"precision": "tf32"}, sparse,
             ("values",), 0.1),
        Call("sparse_matmul", lambda: compressed() | {"b": normal(64, 16), **added(), "a_scale": positive(1)} | {"c": normal(64, 16)},
             {"precision": "tf32"}, as_compressed, ("values", "a_scale"), 0.1),
        Call("sparse_matmul", lambda: compressed() | {"b": normal(64, 16), "scale": positive(1), "b_scale": positive(16),
             "out_scale": positive(1), "operands": normal(64, 1)}, {"precision": "tf32", "epilogue": kd.multiply},
             lambda x: listed(as_compressed(x)), ("values", "scale", "b_scale", "out_scale"), 0.1),
        Call("sparse_compress", lambda: {"a": normal(64, 64)}, {"prune": True}, constants=("a",)),
        Call("sparse_decompress", compressed, {}, as_compressed, ("values",)),
        Call("pack_int4", lambda: {"w": normal(64, 16), "zeros": np.full((1, 16), 7, np.float32)}, {"group": 64},
             constants=("w", "zeros")),
        Call("pack_mxfp4", lambda: {"w": normal(64, 16)}, constants=("w",)),
    ]  # fmt: skip
    return made + grouped()


def grouped() -> list[Call]:
    sides = lambda: {"a": normal(8, 32), "b": normal(2, 32, 16)}  # noqa: E731 - one name for all
    sizes = lambda: {"group_sizes": integers(5, 3)}  # noqa: E731
    rows = integers(3, 1, 0, 2, 7, 5, 4, 6)
    return [
        Call("grouped_matmul", lambda: sides() | sizes() | {"bias": normal(2, 16), "weights": positive(8)}),
        Call("grouped_matmul", lambda: sides() | {"offsets": integers(0, 5, 8), "indices": rows, "scatter": rows,
             "weights": positive(8, 1), "bias": normal(2, 16)}, {"activation": kd.tanh}),
        Call("grouped_matmul", lambda: sides() | sizes() | {"b_2": normal(2, 32, 16), "bias": normal(2, 16),
             "bias_2": normal(2, 16)}, {"gated": "geglu"}, pairs("b", "bias")),
        Call("grouped_matmul", lambda: sides() | sizes() | {"a_scale": positive(8), "b_scale": positive(2, 16)},
             constants=("a_scale", "b_scale")),
        Call("grouped_matmul_wgrad", lambda: {"a": normal(8, 32), "dout": normal(8, 16)} | sizes(), constants=("a", "dout")),
        Call("grouped_matmul_wgrad", lambda: {"a": normal(8, 32), "dout": normal(8, 16), "offsets": integers(0, 5, 8)},
             constants=("a", "dout")),
    ]  # fmt: skip


def layers() -> list[Call]:
    """Convolutions, norms, positions and losses."""
    rows = lambda: {"x": normal(8, 32), "weight": normal(24, 32), "targets": integers(1, 3, 5, 7, 9, 11, 13, -100)}  # noqa: E731
    whole = lambda: rows() | {"bias": normal(24)}  # noqa: E731
    partials = lambda: np.stack([[normal(8), positive(8), normal(8), normal(8)] for _ in range(2)])  # noqa: E731
    image = lambda: {"x": normal(1, 5, 5, 8), "w": normal(8, 3, 3, 8)}  # noqa: E731
    smooth = {"label_smoothing": 0.1}
    return [
        Call("conv2d", image, {"padding": 1}),
        Call("conv2d_dgrad", lambda: {"dout": normal(1, 3, 3, 8), "w": normal(8, 3, 3, 8)}, {"input_size": (1, 5, 5, 8)},
             constants=("dout", "w")),
        Call("conv2d_wgrad", lambda: {"x": normal(1, 5, 5, 8), "dout": normal(1, 3, 3, 8)}, {"kernel_size": (3, 3)},
             constants=("x", "dout")),
        Call("layer_norm", lambda: {"x": normal(4, 32), "weight": normal(32), "bias": normal(32)}),
        Call("rms_norm", lambda: {"x": normal(4, 32), "weight": normal(32)}),
        Call("rope", lambda: {"x": normal(4, 2, 16), "positions": integers(0, 1, 2, 3), "cos": normal(4, 8), "sin": normal(4, 8)},
             constants=("cos", "sin")),
        Call("linear_cross_entropy", whole, smooth),
        Call("linear_cross_entropy", whole, {"reduction": "none", "return_lse": True}),
        Call("linear_cross_entropy", whole, smooth | {"return_lse": True}),
        Call("linear_cross_entropy_combine", lambda: {"partials": partials(), "targets": rows()["targets"]},
             smooth | {"vocab": 24, "return_lse": True}),
        Call("linear_cross_entropy_backward", lambda: whole() | {"dloss": normal(1)[0], "lse": 3 + positive(8)},
             constants=("x", "weight", "bias", "dloss", "lse")),
    ]  # fmt: skip


def attentions() -> list[Call]:
    sides = lambda: {n: normal(1, 2, 64, 64) for n in "qkv"}  # noqa: E731 - one name for all
    results = lambda: {"dout": normal(1, 2, 64, 64), "out": normal(1, 2, 64, 64), "lse": 4 + positive(1, 2, 64)}  # noqa: E731
    eighths = lambda: {n: x.astype(ml_dtypes.float8_e4m3fn) for n, x in sides().items()}  # noqa: E731
    cache = lambda: {"k": halves(2, 2, 16, 64), "v": halves(2, 2, 16, 64)}  # noqa: E731
    table = {"page_table": np.array([[0, 1]], np.int32)}
    lengths = {"lengths": integers(20)}
    factors = lambda *names: {n: positive(1, 2) for n in names}  # noqa: E731
    narrow = ml_dtypes.bfloat16
    latent = lambda: {"q": normal(1, 1, 16, 576, dtype=narrow), "cache": normal(2, 16, 576, dtype=narrow)}  # noqa: E731
    every = ("dout", "q", "k", "v", "out", "lse")
    return [
        Call("attention", sides, {"causal": True, "return_lse": True}, far=0.02),
        Call("attention", lambda: sides() | {"sinks": normal(2), "bias": normal(64, 64)}, far=0.1),
        Call("attention", lambda: sides() | {"captured": normal(2)}, {}, scored, ("captured",), 0.1),
        Call("attention", lambda: eighths() | factors("q_scale", "k_scale", "v_scale"), constants=("q_scale", "k_scale", "v_scale")),
        Call("attention", lambda: {"q": halves(1, 2, 16, 64)} | cache() | table | {"kv_seqlens": integers(20)},
             constants=("q", "k", "v")),
        Call("attention", lambda: {n: halves(40, 2, 64) for n in "qkv"} | {"q_seqlens": integers(0, 16, 40)}, far=0.1),
        Call("attention_backward", lambda: sides() | results(), constants=every),
        Call("attention_backward", lambda: sides() | results() | {"sinks": normal(2), "bias": normal(64, 64)},
             constants=(*every, "sinks", "bias")),
        Call("decode_attention", lambda: {"q": halves(1, 4, 1, 64), **cache(), **lengths, **table}, constants=("q", "k", "v")),
        Call("decode_attention", lambda: {"q": halves(1, 4, 1, 64), **cache(), **lengths, **table} | {
             n: x.astype(ml_dtypes.float8_e4m3fn) for n, x in cache().items()} | factors("k_scale", "v_scale"),
             constants=("q", "k_scale", "v_scale")),
        Call("mla_decode", lambda: latent() | lengths | table, {"scale": 0.05}, constants=("q", "cache")),
    ]  # fmt: skip


CALLS = [*products(), *layers(), *attentions()]

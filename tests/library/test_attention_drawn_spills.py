"""No kernel of attention with drawn options and sizes spills, on Hopper or elsewhere."""

from __future__ import annotations

import random
from typing import Any

import pytest

import kernel_dsl as kd
from kernel_dsl.library import attention, attention_backward

bf16, f32, f8 = kd.bfloat16, kd.float32, kd.float8_e4m3fn
Struct = kd.ShapeDtypeStruct
DIMS = (16, 24, 40, 64, 72, 80, 96, 120, 128, 160, 192, 256)


class Drawn:
    """The arrays and options of a call."""

    def __init__(self, seed: int, kinds: tuple[str, ...], dtypes: tuple[Any, ...]) -> None:
        some = random.Random(seed)
        self.dtype = some.choice(dtypes)
        dims = [n for n in DIMS if n % 16 == 0] if self.dtype == f8 else DIMS
        self.dim = some.choice(dims)
        self.v_dim = self.dim if some.random() < 0.6 else some.choice([64, 128, 192, 256])
        self.heads = some.choice([4, 16, 32])
        self.kv_heads = some.choice([self.heads, self.heads // 4, 1])
        self.batch = some.choice([1, 2, 8])
        self.queries, self.keys = some.choice([64, 128, 333, 1024, 4096]), some.choice([64, 128, 500, 2048, 8192])
        self.ragged = (kind := some.choice(kinds)) == "ragged"
        self.options: dict[str, Any] = {"causal": some.choice([False, True, "bottom_right"])}
        if some.random() < 0.3:
            self.options["window"] = some.choice([64, 1000])
        if some.random() < 0.3:
            self.options["softcap"] = 30.0
        if some.random() < 0.2:
            self.options["sinks"] = Struct((self.heads,), f32)
        if kind == "ragged":
            self.options |= {name: Struct((self.batch + 1,), kd.int32) for name in ("q_seqlens", "kv_seqlens")}
        elif kind == "bias":
            shape = (
                some.choice([1, self.batch]),
                some.choice([1, self.heads]),
                some.choice([1, self.queries]),
                self.keys,
            )
            self.options["bias"] = Struct(shape, some.choice([bf16, f32]))
        elif kind == "pages":
            self.page = some.choice([1, 8, 16, 64, 128, 256])
            self.table = self.batch, -(-self.keys // self.page)
            self.options |= {"page_table": Struct(self.table, kd.int32), "kv_seqlens": Struct(self.table[:1], kd.int32)}
        self.some = some

    def rows(self, heads: int, length: int, dim: int) -> Any:
        """A description of queries, keys, values or results."""
        if self.ragged:
            return Struct((self.batch * length, heads, dim), self.dtype)
        if "page_table" in self.options and heads == self.kv_heads and length == self.keys:
            return Struct((self.table[0] * self.table[1], heads, self.page, dim), self.dtype)
        return Struct((self.batch, heads, length, dim), self.dtype)

    def inputs(self) -> tuple[Any, Any, Any]:
        """Descriptions of q, k and v."""
        keys = (self.rows(self.kv_heads, self.keys, dim) for dim in (self.dim, self.v_dim))
        return self.rows(self.heads, self.queries, self.dim), *keys


def check(stages: Any, drawn: Drawn) -> None:
    compiled = stages.compile()
    assert compiled.resources.spills == 0 and not compiled.remarks, f"{stages.name} of {vars(drawn)}"


def check_gradients(drawn: Drawn, target: str = "sm_90a", with_dlse: bool = False) -> None:
    q, k, v = drawn.inputs()
    out = drawn.rows(drawn.heads, drawn.queries, drawn.v_dim)
    lse = Struct((drawn.heads, out.shape[0]) if drawn.ragged else out.shape[:3], f32)
    options = drawn.options | ({"dlse": lse} if with_dlse else {})
    for stages in attention_backward.lower(out, q, k, v, out, lse, **options, target=target):
        check(stages, drawn)


@pytest.mark.parametrize("seed", range(120))
@pytest.mark.sampled(60)
def test_forward(seed: int) -> None:
    drawn = Drawn(seed, ("plain", "ragged", "bias", "pages"), (bf16, bf16, f8))
    if drawn.dtype == f8 and drawn.some.random() < 0.5:
        drawn.options["q_scale"] = Struct((drawn.batch, drawn.kv_heads), f32)
    lse = drawn.some.random() < 0.5
    check(attention.lower(*drawn.inputs(), **drawn.options, return_lse=lse, target="sm_90a"), drawn)


@pytest.mark.parametrize("seed", range(120))
@pytest.mark.sampled(60)
def test_gradients(seed: int) -> None:
    drawn = Drawn(seed, ("plain", "ragged", "bias"), (bf16,))
    drawn.options["deterministic"] = drawn.some.random() < 0.4
    check_gradients(drawn, with_dlse=drawn.some.random() < 0.2)


@pytest.mark.parametrize("seed", range(120))
@pytest.mark.sampled(60)
def test_gradients_of_biases(seed: int) -> None:
    """Those of a bias that is broadcast along some axes have a kernel of their own."""
    drawn = Drawn(seed, ("bias",), (bf16,))
    bias = drawn.options["bias"]
    extents = drawn.batch, drawn.heads, drawn.queries, drawn.keys
    kept = [drawn.some.random() < 0.6 for _ in range(3)]
    shape = tuple(n if keep else 1 for n, keep in zip(extents, [*kept, True], strict=True))
    drawn.options["bias"] = Struct(shape, bias.dtype)
    q, k, v = drawn.inputs()
    out, lse = drawn.rows(drawn.heads, drawn.queries, drawn.v_dim), Struct(extents[:3], f32)
    for stages in attention_backward.lower(out, q, k, v, out, lse, **drawn.options, target="sm_90a"):
        if stages.name == "attention_backward_bias":
            check(stages, drawn)


# (heads, key heads, queries, keys, dim, dim of values) and options, of kernels that had spilled
KNOWN: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "each step is of another head": ((4, 1, 64, 64, 128, 128), {"softcap": 30.0, "window": 1000}),
    "the same beside a mask": ((4, 1, 64, 64, 128, 128), {"softcap": 30.0, "causal": True}),
    "the same with both ends of a window": ((4, 1, 64, 128, 80, 128), {"window": 64, "causal": "bottom_right"}),
    "blocks of keys without a query": ((2, 2, 500, 1000, 64, 64), {"causal": True, "deterministic": True}),
    "queries that are narrower than their tiles": ((16, 4, 333, 500, 64, 128), {"ragged": True}),
    "lanes with wide rows": ((16, 4, 333, 500, 256, 192), {"ragged": True, "softcap": 9.0, "window": 1000}),
    "wide rows in order": ((16, 4, 333, 500, 192, 192), {"ragged": True, "softcap": 9.0, "window": 1000}),
    "both ends of a window in turn": (
        (16, 1, 4096, 64, 64, 64),
        {"causal": "bottom_right", "window": 1000, "deterministic": True, "batch": 2},
    ),
    "a bias beside the last keys, which blocks share": (
        (4, 4, 1024, 1100, 256, 64),
        {"bias": Struct((8, 4, 1024, 1100), bf16), "causal": False},
    ),
    "causal blocks of many heads share keys": ((64, 4, 1500, 1500, 192, 128), {"causal": True, "batch": 2}),
    "the same of 256 dims": ((64, 8, 1000, 1000, 256, 256), {"causal": True, "batch": 4}),
    "a bias, and each step is of another head": (
        (16, 1, 64, 8192, 72, 72),
        {"bias": Struct((1, 1, 64, 8192), f32), "batch": 1},
    ),
}


@pytest.mark.parametrize("case", KNOWN)
@pytest.mark.sampled(6)
def test_known_gradients(case: str) -> None:
    (heads, kv_heads, queries, keys, dim, v_dim), options = KNOWN[case]
    drawn = Drawn(0, ("plain",), (bf16,))
    drawn.heads, drawn.kv_heads, drawn.queries, drawn.keys = heads, kv_heads, queries, keys
    drawn.dim, drawn.v_dim, drawn.options, drawn.ragged = dim, v_dim, dict(options), "ragged" in options
    drawn.batch = drawn.options.pop("batch", 8)
    if drawn.options.pop("ragged", False):
        drawn.options |= {name: Struct((9,), kd.int32) for name in ("q_seqlens", "kv_seqlens")} | {
            "deterministic": True
        }
    check_gradients(drawn)


@pytest.mark.parametrize("bias", [(1, 16, 1, 128), (1, 1, 128, 128)], ids=str)
@pytest.mark.parametrize("dim", [16, 64, 128])
@pytest.mark.sampled(6)
def test_known_float8(dim: int, bias: tuple[int, ...]) -> None:
    """Two loops beside a mask and a bias."""
    drawn = Drawn(0, ("plain",), (f8,))
    drawn.heads = drawn.kv_heads = 16
    drawn.batch, drawn.queries, drawn.keys, drawn.dim, drawn.v_dim = 1, 128, 128, dim, dim
    drawn.options = {"causal": True, "window": 64, "bias": Struct(bias, f32), "q_scale": Struct((1, 16), f32)}
    check(attention.lower(*drawn.inputs(), **drawn.options, return_lse=True, target="sm_90a"), drawn)


@pytest.mark.parametrize("causal", [False, True, "bottom_right"])
@pytest.mark.parametrize("dim", [16, 64])
@pytest.mark.sampled(6)
def test_known_ragged_float8(dim: int, causal: bool | str) -> None:
    """Two loops beside the ends of a window and the places of sequences."""
    drawn = Drawn(0, ("ragged",), (f8,))
    drawn.heads, drawn.kv_heads, drawn.batch, drawn.queries, drawn.keys = 32, 1, 2, 1024, 2048
    drawn.dim, drawn.v_dim, drawn.options = dim, dim, {"causal": causal, "window": 64}
    drawn.options |= {name: Struct((3,), kd.int32) for name in ("q_seqlens", "kv_seqlens")}
    check(attention.lower(*drawn.inputs(), **drawn.options, target="sm_90a"), drawn)


@pytest.mark.parametrize("options", [{}, {"causal": "bottom_right", "softcap": 9.0}], ids=str)
@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
@pytest.mark.parametrize("dim", [64, 160, 256])
@pytest.mark.parametrize("target", ["sm_80", "sm_120a"])
@pytest.mark.sampled(12)
def test_gradients_elsewhere(target: str, dim: int, dtype: Any, options: dict[str, Any]) -> None:
    """By lanes, where there is no wgmma."""
    drawn = Drawn(0, ("plain",), (dtype,))
    drawn.heads, drawn.kv_heads, drawn.queries, drawn.keys, drawn.batch = 16, 4, 333, 500, 8
    drawn.dim, drawn.v_dim, drawn.options = dim, dim, options
    check_gradients(drawn, target)

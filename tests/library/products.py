"""Random calls of `kd.library.matmul`, each against float64: dtypes, layouts, alignments, batches, steps, results in place.

`python -m tests.fuzz.library --only matmul --count 9000 --seconds 3600` runs the long form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import erf
from typing import Any

import numpy as np

import kernel_dsl as kd
from benchmarks.bounds import fp8_error
from kernel_dsl.dtypes import FP8, as_dtype
from kernel_dsl.library.product_kernels.promoted_product import RUN
from kernel_dsl.library.product_routes.families import default_out
from tests.hopper.helpers import random, relative

from .packed_reference import mxfp4_numbers, rounded, zeros_for
from .sparse_reference import pruned

f16, bf16, f32, f64 = kd.float16, kd.bfloat16, kd.float32, kd.float64
e4m3, e5m2, s8, u8 = kd.float8_e4m3fn, kd.float8_e5m2, kd.int8, kd.uint8
PLACES = ("plain", "turned", "padded", "shifted", "strided", "backwards")
SHARED = ("repeated", "windows")  # of operands whose elements share memory
# the pairs that have ways of their own, and some that share one; all others are of tests/hopper/test_library.py
PAIRS = (
    (bf16, bf16), (f16, f16), (bf16, f16), (f32, f32), (f64, f64), (e4m3, e4m3), (e4m3, e5m2), (s8, s8), (u8, s8), (s8, bf16),
    (f16, s8), (bf16, u8), (e5m2, bf16), (s8, e4m3), (f32, bf16), (f32, s8), (f64, f32), (kd.int32, kd.int32),
    (kd.int16, kd.uint8), (kd.int64, kd.int32), (kd.bool_, s8), (kd.uint32, kd.uint32),
)  # fmt: skip
SIZES = (1, 2, 3, 5, 8, 13, 16, 17, 24, 33, 40, 64, 65, 72, 96, 100, 130)
FEW = 64  # results
PACKINGS = ("int4", "int4 found", "int4 given", "mxfp4", "sparse")
LARGE = (1, 2, 8, 16, 33, 64, 100, 128, 200, 256, 333, 512, 777, 1000, 1024, 1536, 2048, 4096, 8192)
HALVED = (bf16, f16, f32, e4m3, e5m2, s8, u8)  # of a sparse matrix
# what is done to sums, in the order in which it is done
STEPS = (
    "a_scale", "b_scale", "scale", "bias", "gated", "c", "epilogue", "activation", "dropout", "residual", "absmax", "out_scale",
)  # fmt: skip
A_FORMS, B_FORMS = ("number", "tensor", "rows", "column"), ("number", "tensor", "columns", "row")
DEPTH = 128  # of K, and of N, that share a scale


def relu(x: Any) -> Any:
    return kd.maximum(x, 0.0)


def weighed(x: Any, y: Any, z: Any) -> Any:
    return x * y + z


def exact_gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.vectorize(erf, otypes=[np.float64])(x * 0.5**0.5))


def _logistic(x: Any) -> Any:
    return 0.5 + 0.5 * np.tanh(x / 2)


GATES: tuple[tuple[Any, Callable[[Any, Any], Any]], ...] = (
    ("swiglu", lambda x, y: x * _logistic(x) * y),
    ("geglu", lambda x, y: exact_gelu(x) * y),
    ("reglu", lambda x, y: np.maximum(x, 0) * y),
    ("glu", lambda x, y: _logistic(x) * y),
    (kd.subtract, lambda x, y: x - y),
)


def gate_share(formula: Callable[[Any, Any], Any], x: Any, y: Any, lost: float) -> float:
    """The share of the greatest result by which a gate may be off, if each of its sums is off by the share `lost` of the
    greatest such sum; and by the rounding of its own factors: that of a gelu is 1 plus a number that may be nearly -1.
    """
    if not x.size:
        return 0.0
    exact, off = formula(x, y), [lost * float(np.abs(z).max()) for z in (x, y)]
    moved = max(float(np.abs(formula(x + step, y) - exact).max()) for step in (-off[0], off[0]))
    moved += float(np.abs(formula(x, y + off[1]) - exact).max())
    rounded = 2.0**-23 * float(np.abs(x * y).max())
    return (moved + rounded) / (float(np.abs(exact).max()) or 1.0)


def philox(count: int, seed: int) -> Any:
    """Words 0 to count - 1, as Philox-4x32-10 is published (Salmon et al. 2011), in uint64."""
    low = np.uint64(0xFFFFFFFF)
    index = np.arange(count, dtype=np.uint64)
    c = [index >> np.uint64(2) & low, index >> np.uint64(34), np.zeros_like(index), np.zeros_like(index)]
    keys = [np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32)]
    for _ in range(10):
        p, q = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [q >> np.uint64(32) ^ c[1] ^ keys[0], q & low, p >> np.uint64(32) ^ c[3] ^ keys[1], p & low]
        keys = [k + np.uint64(w) & low for k, w in zip(keys, (0x9E3779B9, 0xBB67AE85), strict=True)]
    return np.stack(c)[(index & np.uint64(3)).astype(int), np.arange(count)]


def place(x: Any, how: str) -> Any:
    """The same numbers, lying in memory as `how` says."""
    if how == "plain" or x.ndim < 2:
        return x
    if how == "turned":
        return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    *batch, rows, columns = x.shape
    room = np.zeros((*batch, rows, 2 * columns + 16), x.dtype)
    views = {
        "padded": room[..., :columns],
        "shifted": room[..., 1 : columns + 1],
        "strided": room[..., : 2 * columns : 2],
        "backwards": room[..., ::-1, :columns],
    }
    views[how][...] = x
    return views[how]


def lying(x: Any, how: str) -> tuple[Any, Any]:
    """(numbers, the same numbers lying in memory as `how` says): those of x, or fewer, which share memory."""
    if how not in SHARED:
        return x, place(x, how)
    rows, columns = x.shape[-2:]
    if how == "repeated" or 0 in x.shape:
        view = np.broadcast_to(x[..., :1, :], x.shape)
    else:  # each row begins one element after the row before
        line = np.ascontiguousarray(x).reshape(-1)[: rows + columns - 1]
        index = np.arange(rows)[:, None] + np.arange(columns)
        step = line.strides[0]
        view = np.ndarray((rows, columns), line.dtype, line, strides=(step, step))
        assert np.array_equal(view, line[index], equal_nan=True)
        view = np.broadcast_to(view, x.shape)
    return np.array(view), view


def scales(rng: Any, form: str, M: int, N: int, K: int, batch: tuple[int, ...] = ()) -> tuple[Any, Any]:
    """Scales of a or b in a form, and their factors, which broadcast to (M, K) or (K, N)."""
    blocks = -(-K // DEPTH)
    shapes = {
        "tensor": (), "rows": (M,), "column": (*batch, M, 1), "blocks of a": (*batch, M, blocks),
        "columns": (N,), "row": (1, N), "squares": (blocks, -(-N // DEPTH)), "blocks of b": (blocks, N),
    }  # fmt: skip
    if form == "":
        return None, 1.0
    if form == "number":
        return 0.75, 0.75
    x = (rng.random(shapes[form]) + 0.5).astype(np.float32)
    wide = x.astype(np.float64)
    if form == "rows":
        wide = wide[:, None]
    if form == "blocks of a":
        wide = np.repeat(wide, DEPTH, -1)[..., :K]
    if form in ("squares", "blocks of b"):
        wide = np.repeat(wide, DEPTH, 0)[:K]
    if form == "squares":
        wide = np.repeat(wide, DEPTH, 1)[:, :N]
    return x, wide


def by_steps(a: Any, b: Any) -> bool:
    """Whether a product with scales by blocks of K has sums of 128 of K; otherwise such operands are scaled when they are widened."""
    return all(dtype in FP8 for dtype in (a, b)) or all(dtype in (s8, u8) for dtype in (a, b))


def scaled_and_rounded(x: Any, factor: Any, other: Any) -> Any:
    """Numbers of 8 bits times factors in float32, in float64: rounded to the dtype that they have beside `other`."""
    wide = as_dtype(other) if as_dtype(other).itemsize > 1 else f16
    made = x.astype(np.float32) * np.asarray(factor, np.float32)
    return made.astype(wide.numpy).astype(np.float64)


@dataclass(frozen=True)
class Call:
    """One call: what is multiplied, how it lies, and what is done to the sums."""

    a_dtype: Any
    b_dtype: Any
    shape: tuple[int, int, int]
    places: tuple[str, str]
    batches: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    precision: str | None = None
    out: str | None = None  # how a result lies that is given
    steps: tuple[str, ...] = ()  # of STEPS, in their order
    forms: tuple[str, str] = ("column", "row")  # of a_scale and b_scale
    out_dtype: Any = None
    packed: str = ""  # of PACKINGS: b has 4 bits, or half of a is zero; its numbers are what they are rounded to

    def run(self, seed: int, **options: Any) -> None:
        """Make the call and compare with float64; sums of integers exactly."""
        made = _Made(self, np.random.default_rng(seed), options.get("interpret"))
        expected, options = made.expected, options | made.options
        out = None
        if self.out is not None:
            out = place(np.full(expected.shape, 77).astype(made.out_dtype.numpy), self.out)
            options["out"] = (out, np.zeros((), np.float32)) if made.peak is not None else out
        got = kd.library.matmul(made.a, made.b, precision=self.precision, **options)
        on_gpu = options.get("interpret") is False
        assert out is None or got is options["out"]
        if made.peak is not None:
            got, peak = got
            most = (self.bound(np.dtype(np.float32), on_gpu) + made.share) * 2 * made.peak
            assert abs(float(peak) - made.peak) <= most, f"{self} seed {seed}: {peak}, {made.peak}"
        assert got.shape == expected.shape, (got.shape, expected.shape)
        assert got.dtype == made.out_dtype.numpy
        error = relative(_exact(got), expected) if expected.size else 0.0
        assert error <= self.bound(np.dtype(got.dtype), on_gpu) + made.share, f"{self} seed {seed}: {error:.1e}"

    def bound(self, dtype: Any, on_gpu: bool = False) -> float:
        """The greatest relative error of a result in `dtype`, without what a gate makes of its sums' errors."""
        # Losses are a share of the sums' terms. An activation's tail multiplies them, and few results may all lie in it.
        tail = 10 if "activation" in self.steps and self.shape[0] * self.shape[1] < FEW else 1
        return self._bound(dtype) + tail * self.lost(on_gpu)

    def lost(self, on_gpu: bool) -> float:
        """The share of the greatest sum that sums lose. The interpreter adds up fp8 products without losing any of them."""
        narrow = on_gpu and self.a_dtype in FP8 and self.b_dtype in FP8
        return fp8_error(self.shape[2], RUN if self.precision == "highest" else None) if narrow else 0.0

    def _bound(self, dtype: Any) -> float:
        if not as_dtype(dtype).is_float:
            return 0.0
        bound = {2: 4e-3, 4: 1e-5 if "gated" in self.steps else 3e-6, 8: 1e-6 if self.steps else 1e-13}[dtype.itemsize]
        if self.precision == "tf32":
            bound = max(bound, 6e-3 if "gated" in self.steps else 2e-3)
        return bound


class _Made:
    """The arguments of a call, and what is expected of it: `expected`, and `peak` where the greatest magnitude is asked for."""

    def __init__(self, call: Call, rng: Any, interpret: Any = None) -> None:
        self.call, self.rng, self.interpret = call, rng, interpret
        self.options: dict[str, Any] = {}
        self.peak: float | None = None
        self.share = 0.0  # of the greatest result: what a gate may be off
        M, N, K = call.shape
        gated = "gated" in call.steps
        a = _numbers(rng, (*call.batches[0], M, K), call.a_dtype)
        rights = [_numbers(rng, (*call.batches[1], K, N), call.b_dtype) for _ in range(1 + gated)]
        a, self.a = lying(a, call.places[0])
        self.parted = gated and rng.random() < 0.5  # two matrices; else columns in turn
        if self.parted or not gated:
            pairs = [lying(b, call.places[1]) for b in rights]
            rights, sides = [x for x, _ in pairs], tuple(x for _, x in pairs)
            self.b = sides if gated else sides[0]
        else:
            whole, self.b = lying(np.stack(rights, -1).reshape(*call.batches[1], K, 2 * N), call.places[1])
            rights = [whole[..., side::2] for side in range(2)]
        if call.packed == "sparse":
            a = pruned(a, call.a_dtype)
            self.a = kd.library.sparse_compress(place(a, call.places[0]), interpret=interpret)
        elif call.packed:
            group = int(self.rng.choice((64, 128, 192)))  # of both sides of a gate
            packed = [self._packed(b, group) for b in rights]
            rights, self.b = [x for _, x in packed], tuple(x for x, _ in packed) if gated else packed[0][0]
        factors, kinds = self._scaled(M, N, K), (call.a_dtype, call.b_dtype)
        deep = K > DEPTH  # for one block of K, scales are those of rows, columns or all
        by_blocks = {"blocks of a": deep, "blocks of b": deep, "squares": deep or N > DEPTH}
        early = [
            name in call.steps and not by_steps(*kinds) and by_blocks.get(form, False)
            for name, form in zip(("a_scale", "b_scale"), call.forms, strict=True)
        ]

        def times(x: Any, factor: Any, side: int) -> Any:
            return scaled_and_rounded(x, factor, kinds[1 - side]) if early[side] else _exact(x) * factor

        left = times(a, factors[0], 0)
        products = [left @ times(b, f, 1) for b, f in zip(rights, factors[1:], strict=True)]
        self.expected = self._done(products)
        self.out_dtype = self._dtype()

    def _packed(self, b: Any, group: int) -> tuple[Any, Any]:
        """(weights of 4 bits, their numbers in float64 as they are rounded beside a)."""
        dtype, form = self.call.a_dtype, self.call.packed
        dtype = dtype if dtype.itemsize == 2 else bf16
        if form == "mxfp4":
            packed = kd.library.pack_mxfp4(b, interpret=self.interpret)
            return packed, mxfp4_numbers(packed).astype(dtype.numpy).astype(np.float64)
        zeros = zeros_for(form.partition(" ")[2], b.shape, group, self.rng)
        packed = kd.library.pack_int4(b, group, zeros, interpret=self.interpret)
        return packed, rounded(packed, dtype)

    def _dtype(self) -> Any:
        """The dtype of the result: a floating one, where steps make numbers that are not whole."""
        steps = self.call.steps
        default = default_out(*(as_dtype(x) for x in (self.call.a_dtype, self.call.b_dtype)))
        chosen = self.call.out_dtype or (None if default.is_float or not steps else f32)
        if chosen is not None:
            self.options["out_dtype"] = chosen
        scaled = "a_scale" in steps or "b_scale" in steps
        return chosen or (bf16 if scaled and default.is_float and default.itemsize == 2 else default)

    def _scaled(self, M: int, N: int, K: int) -> list[Any]:
        """Factors of a and of each right side."""
        steps, (form, b_form) = self.call.steps, self.call.forms
        found: list[Any] = [1.0]
        if "a_scale" in steps:
            self.options["a_scale"], found[0] = scales(self.rng, form, M, N, K)
        count = 1 + ("gated" in steps)
        if "b_scale" not in steps:
            return [*found, *[1.0] * count]
        made = [scales(self.rng, b_form, M, N, K) for _ in range(count)]
        made = made[:1] * count if b_form in ("number", "tensor") else made
        own = [x for x, _ in made]
        self.options["b_scale"] = own[0] if count == 1 or b_form in ("number", "tensor") else tuple(own)
        return [*found, *(wide for _, wide in made)]

    def _addend(self, shape: tuple[int, ...], dtypes: tuple[Any, ...] = (f32, f32, bf16)) -> tuple[Any, Any]:
        """An array that broadcasts to the result, lying anyhow."""
        own = tuple(1 if self.rng.random() < 0.25 else n for n in shape)[self.rng.integers(0, len(shape) - 1) :]
        x = random(self.rng, own, dtypes[self.rng.integers(len(dtypes))])
        return place(x, str(self.rng.choice(PLACES))), _exact(x)

    def _done(self, products: list[Any]) -> Any:
        """The products after the steps that follow their scales."""
        steps, options, rng = self.call.steps, self.options, self.rng
        if "scale" in steps:
            options["scale"] = float(random(rng, (), f32))
            products = [x * options["scale"] for x in products]
        if "bias" in steps:
            options["bias"] = tuple(random(rng, x.shape[-1:], f32) for x in products)
            products = [x + _exact(y) for x, y in zip(products, options["bias"], strict=True)]
            if len(products) == 1:
                (options["bias"],) = options["bias"]
        if "gated" in steps:
            options["gated"], formula = GATES[rng.integers(len(GATES))]
            self.share = gate_share(formula, *products, self.call.lost(self.interpret is False))
            products = [formula(*products)]
        (x,) = products
        for name in steps[steps.index("gated") + 1 :] if "gated" in steps else steps:
            x = self._step(name, x)
        return x

    def _kept(self, x: Any, kept: Any) -> Any:
        """What a step leaves of x. The greatest result may be dropped; then `share` is one of a smaller result."""
        most, left = (float(np.abs(y).max(initial=0)) for y in (x, kept))
        self.share *= most / left if left else 1
        return kept

    def _step(self, name: str, x: Any) -> Any:
        options, rng = self.options, self.rng
        if name in ("c", "residual"):
            options[name], wide = self._addend(x.shape)
            return x + wide
        if name == "epilogue":
            # a function of the caller's multiplies in the common dtype: of whole sums and bfloat16 that is bfloat16
            (y, y_wide), z = self._addend(x.shape, (f32,)), float(np.float32(rng.random()))
            options["epilogue"], options["operands"] = weighed, (y, z)
            return x * y_wide + z
        if name == "activation":
            options["activation"] = relu
            return self._kept(x, np.maximum(x, 0))
        if name == "dropout":
            rate = (0.25, 0.9)[int(rng.integers(2))]
            options["dropout"] = rate, rng.integers(1 << 40)
            words = philox(x.size, int(options["dropout"][1])) >> np.uint64(8)
            kept = words.astype(np.float64) * 2.0**-24 >= np.float32(rate)  # compared in float32
            return self._kept(x, np.where(kept.reshape(x.shape), x / (1 - rate), 0))
        if name == "absmax":
            options["absmax"], self.peak = True, float(np.abs(x).max(initial=0))
        if name == "out_scale":
            options["out_scale"] = float(random(rng, (), f32))
            return x * options["out_scale"]
        return x


def _exact(x: Any) -> Any:
    return x.astype(np.float64)


def _numbers(rng: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    if dtype.is_bool:
        return rng.integers(0, 2, shape).astype(bool)
    return random(rng, shape, dtype)


def any_call(rng: np.random.Generator, large: bool = False) -> Call:
    """A call of any kind; `large`: of sizes that occur in use."""
    pair = PAIRS[rng.integers(len(PAIRS))]
    if rng.random() < 0.5:
        pair = pair[::-1]
    packed = "" if rng.random() < 0.7 else str(rng.choice(PACKINGS))
    if packed == "sparse":
        pair = (HALVED[rng.integers(len(HALVED))], pair[1])
        pair = pair[:1] * 2 if rng.random() < 0.7 else pair
    elif packed:
        dtype = (bf16, f16, bf16, f16, s8, u8, e4m3, e5m2)[rng.integers(8)]
        pair = dtype, dtype if dtype.itemsize == 2 else bf16
    M, N, K = drawn_sizes(rng, 3, large)
    if rng.random() < 0.2 and not large:
        K *= 9
    if packed:
        M, N, K = max(M, 1), max(N, 1), max(K, 1)
        K = -(-K // 4) * 4 if packed == "sparse" else K
    where = PLACES if packed else (*PLACES, *SHARED)
    kinds = (str(rng.choice(where)), str(rng.choice(where)))
    batches: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    if rng.random() < 0.3:
        whole = tuple(int(n) for n in rng.integers(1, 4, rng.integers(1, 4)))
        cut = [
            tuple(1 if rng.random() < 0.3 else n for n in whole)[rng.integers(0, len(whole) + 1) :] for _ in range(2)
        ]
        batches, M, N, K = (cut[0], cut[1]), min(M, 40), min(N, 40), min(K, 40)
        if packed:
            batches = ((), cut[1]) if packed == "sparse" else (cut[0], ())
    precision = None
    if all(dtype in FP8 for dtype in pair) and rng.random() < 0.5:
        precision = "highest"
    if f32 in pair and f64 not in pair:
        precision = (None, "tf32", "tf32x3", "highest")[rng.integers(4)]
    out = None if rng.random() < 0.6 else str(rng.choice(PLACES))
    steps = tuple(name for name in STEPS if rng.random() < 0.3) if rng.random() < 0.6 else ()
    steps = tuple(name for name in steps if name != "c" or "gated" not in steps)
    narrow = by_steps(*pair)
    blocks = [narrow or (as_dtype(dtype).itemsize == 1 and any(as_dtype(x).is_float for x in pair)) for dtype in pair]
    forms = (
        str(rng.choice((*A_FORMS, *(("blocks of a",) * 4 if blocks[0] else ())))),
        str(rng.choice((*B_FORMS, *(("squares", "blocks of b") * 2 if blocks[1] else ())))),
    )
    out_dtype = (f32, bf16)[rng.integers(2)] if steps and rng.random() < 0.3 else None
    return Call(*pair, (M, N, K), kinds, batches, precision, out, steps, forms, out_dtype, packed)


def drawn_sizes(rng: np.random.Generator, count: int, large: bool) -> list[int]:
    """Some sizes, now and then 0; `large`: whose product leaves the float64 reference a second at most."""
    found = [int(rng.choice(LARGE if large else SIZES)) if rng.random() < 0.98 else 0 for _ in range(count)]
    while float(np.prod([float(n) for n in found])) > 2**30:
        found[int(np.argmax(found))] //= 3
    return found

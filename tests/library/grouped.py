"""Random calls of `kd.library.grouped_matmul` and its weight gradient, each against float64.

`python -m tests.fuzz.library --only grouped --count 9000 --seconds 3600` runs the long form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import kernel_dsl as kd
from benchmarks.bounds import float32_error, fp8_error
from kernel_dsl.dtypes import FP8, as_dtype
from kernel_dsl.library.product_routes.families import default_out
from tests.hopper.helpers import random, relative

from .products import GATES, PLACES, drawn_sizes, gate_share, place

f16, bf16, f32, f64 = kd.float16, kd.bfloat16, kd.float32, kd.float64
e4m3, e5m2, s8 = kd.float8_e4m3fn, kd.float8_e5m2, kd.int8
PAIRS = (
    (bf16, bf16), (bf16, bf16), (f16, f16), (bf16, f16), (f32, f32), (f64, f64), (e4m3, e4m3), (e4m3, e5m2), (s8, s8), (bf16, s8),
    (f32, bf16), (kd.int32, kd.int32),
)  # fmt: skip
SIZES = (1, 2, 3, 8, 13, 16, 17, 24, 40, 64, 65, 96, 130)
STEPS = ("indices", "a_scale", "b_scale", "bias", "gated", "activation", "weights", "scatter")
A_FORMS = ("number", "rows", "column", "blocks")
B_FORMS = ("number", "groups", "columns", "row", "squares", "blocks")
DEPTH = 128


def half(x: Any) -> Any:
    return x * 0.5 + 1.0


def bounds_of(rng: np.random.Generator, rows: int, groups: int) -> Any:
    """Where groups begin: some are empty, and some rows are of none."""
    ends = np.sort(rng.integers(0, rows + 1, groups))
    if rng.random() < 0.4:
        ends[-1:] = rows
    return np.concatenate([[0], ends]).astype(np.int32)


def grouped(a: Any, b: Any, bounds: Any) -> Any:
    """The products of groups in float64."""
    out = np.zeros((a.shape[0], b.shape[-1]))
    for group in range(len(bounds) - 1):
        rows = slice(bounds[group], bounds[group + 1])
        out[rows] = a[rows].astype(np.float64) @ b[group].astype(np.float64)
    return out


def spread(scale: Any, K: int, axis: int) -> Any:
    """Scales by blocks of K, one for each of K."""
    return np.repeat(scale, DEPTH, axis).take(range(K), axis)


@dataclass(frozen=True)
class Call:
    """One call: what is multiplied, how it lies, and what is done beside."""

    a_dtype: Any
    b_dtype: Any
    shape: tuple[int, int, int, int]  # rows, groups, N, K
    places: tuple[str, str] = ("plain", "plain")
    steps: tuple[str, ...] = ()
    forms: tuple[str, str] = ("column", "columns")
    offsets: bool = False
    out: str | None = None
    config: Any = None

    def run(self, seed: int, interpret: Any) -> None:
        """Make the call, and compare with float64."""
        rng = np.random.default_rng(seed)
        rows, groups, N, K = self.shape
        options: dict[str, Any] = {"config": self.config} if self.config else {}
        gated, tokens = "gated" in self.steps, rows
        if "indices" in self.steps:
            tokens = int(rng.choice(SIZES))
            options["indices"] = rng.integers(0, tokens, rows).astype(np.int32)
        a = random(rng, (tokens, K), self.a_dtype)
        rights = [random(rng, (groups, K, N), self.b_dtype) for _ in range(1 + gated)]
        bounds = bounds_of(rng, rows, groups)
        left, factors = a.astype(np.float64), [b.astype(np.float64) for b in rights]
        if "a_scale" in self.steps:
            options["a_scale"], factor = self._a_scale(rng, tokens, K)
            left = left * factor
        if "b_scale" in self.steps:
            made = [self._b_scale(rng, groups, N, K) for _ in rights]
            shared = gated and self.forms[1] in ("number", "groups")
            made = made[:1] * 2 if shared else made
            factors = [b * factor for b, (_, factor) in zip(factors, made, strict=True)]
            options["b_scale"] = made[0][0] if not gated or shared else tuple(x for x, _ in made)
        x = left[options["indices"]] if "indices" in self.steps else left
        products, lost, share = [grouped(x, b, bounds) for b in factors], self._lost(interpret is False), 0.0
        number = np.repeat(np.arange(groups), np.diff(bounds))
        used = slice(bounds[0], bounds[-1])
        if "bias" in self.steps:
            biases = [random(rng, (groups, N), f32) for _ in rights]
            for product, bias in zip(products, biases, strict=True):
                product[used] += bias[number]
            options["bias"] = tuple(biases) if gated else biases[0]
        if gated:
            options["gated"], formula = GATES[rng.integers(len(GATES))]
            share = gate_share(formula, *(p[used] for p in products), lost)
            products = [formula(*products)]
        (y,) = products
        if "activation" in self.steps:
            options["activation"], y = half, y * 0.5 + 1.0
        expected = np.zeros_like(y)
        expected[used] = y[used]
        expected, shape = self._ends(rng, expected, options, used, rows)
        default = default_out(*(as_dtype(d) for d in (self.a_dtype, self.b_dtype)))
        if self.steps:
            options["out_dtype"] = f64 if default == f64 else f32
        dtype = options.get("out_dtype", default)
        right: Any = tuple(place(b, self.places[1]) for b in rights) if gated else place(rights[0], self.places[1])
        sizes = {"offsets": bounds} if self.offsets else {"group_sizes": np.diff(bounds)}
        if self.out is not None or shape is not None:
            options["out"] = place(np.full(expected.shape, 77).astype(dtype.numpy), self.out or "plain")
        got = kd.library.grouped_matmul(place(a, self.places[0]), right, interpret=interpret, **sizes, **options)
        assert got.shape == expected.shape and got.dtype == dtype.numpy, (got.shape, got.dtype)
        error = relative(got.astype(np.float64), expected) if expected.size else 0.0
        bound = {1: 0.0, 2: 5e-3, 4: 2e-5, 8: 1e-6}[got.dtype.itemsize] + lost + share
        assert error <= bound, f"{self} seed {seed}: {error:.1e}"

    def _lost(self, on_gpu: bool) -> float:
        """The share of the greatest sum that sums lose on a GPU. The interpreter adds up without losing anything."""
        a, b, K = self.a_dtype, self.b_dtype, self.shape[3]
        if not on_gpu or not (a.is_float or b.is_float) or f64 in (a, b):
            return 0.0
        return fp8_error(K, None) if a in FP8 and b in FP8 else float32_error(K)

    def _ends(self, rng: Any, y: Any, options: dict[str, Any], used: slice, rows: int) -> tuple[Any, Any]:
        """Weights and rows that go elsewhere: the result, and its shape where that is to be given."""
        if "scatter" not in self.steps:
            if "weights" in self.steps:
                options["weights"] = rng.random(rows).astype(np.float32)
                y = y * options["weights"][:, None]
            return y, None
        places, each = int(rng.choice(SIZES)), 1
        weight = np.ones(rows)
        if "weights" in self.steps and rng.random() < 0.5:
            each = 3
            options["weights"] = rng.random((places, each)).astype(np.float32)
        numbers = rng.integers(0, places * each, rows).astype(np.int32)
        if each > 1:
            weight = options["weights"].reshape(-1)[numbers]
        elif "weights" in self.steps:
            weight = options["weights"] = rng.random(rows).astype(np.float32)
        options["scatter"] = numbers
        out = np.zeros((places, y.shape[1]))
        np.add.at(out, numbers[used] // each, (y * weight[:, None])[used])
        return out, out.shape

    def _a_scale(self, rng: Any, rows: int, K: int) -> tuple[Any, Any]:
        form = self.forms[0]
        if form == "number":
            return 0.75, 0.75
        shape = {"rows": (rows,), "column": (rows, 1), "blocks": (rows, -(-K // DEPTH))}[form]
        x = (rng.random(shape) + 0.5).astype(np.float32)
        wide = x.astype(np.float64)
        return x, spread(wide, K, 1) if form == "blocks" else wide.reshape(rows, 1)

    def _b_scale(self, rng: Any, groups: int, N: int, K: int) -> tuple[Any, Any]:
        form, deep = self.forms[1], -(-K // DEPTH)
        if form == "number":
            return 1.25, 1.25
        shapes = {
            "groups": (groups,), "columns": (groups, N), "row": (groups, 1, N), "squares": (groups, deep, -(-N // DEPTH)),
            "blocks": (groups, deep, N),
        }  # fmt: skip
        x = (rng.random(shapes[form]) + 0.5).astype(np.float32)
        wide = x.astype(np.float64)
        if form in ("squares", "blocks"):
            wide = spread(wide, K, 1)
            return x, spread(wide, N, 2) if form == "squares" else wide
        return x, wide.reshape(groups, 1, -1)


def any_call(rng: np.random.Generator, large: bool = False) -> Call:
    """A call of any kind; `large`: of sizes that occur in use."""
    pair = PAIRS[rng.integers(len(PAIRS))]
    rows, N, K = drawn_sizes(rng, 3, large)
    if rng.random() < 0.2 and not large:
        K *= 3
    groups = int(rng.choice((1, 2, 3, 5, 9)))
    steps = tuple(name for name in STEPS if rng.random() < 0.3) if rng.random() < 0.7 else ()
    narrow = all(dtype.itemsize == 1 for dtype in pair) and K > 0
    forms = (
        str(rng.choice(A_FORMS if narrow else A_FORMS[:3])),
        str(rng.choice(B_FORMS if narrow else B_FORMS[:4])),
    )
    where = str(rng.choice(PLACES)), str(rng.choice(PLACES))
    out = None if rng.random() < 0.6 else str(rng.choice(PLACES))
    return Call(*pair, (rows, groups, N, K), where, steps, forms, bool(rng.random() < 0.5), out)


def wgrad(
    seed: int, interpret: Any, pair: Any = None, places: Any = None, config: Any = None, large: bool = False
) -> None:
    """A random weight gradient; `large`: of sizes that occur in use."""
    rng = np.random.default_rng(seed)
    pair = pair or PAIRS[rng.integers(len(PAIRS))]
    places = places or [str(rng.choice(PLACES)) for _ in range(3)]
    rows, K, N = (max(n, 1) for n in drawn_sizes(rng, 3, large))
    groups = int(rng.choice((1, 2, 3, 5)))
    a, d = random(rng, (rows, K), pair[0]), random(rng, (rows, N), pair[1])
    bounds = bounds_of(rng, rows, groups)
    expected = np.zeros((groups, K, N))
    for group in range(groups):
        own = slice(bounds[group], bounds[group + 1])
        expected[group] = a[own].astype(np.float64).T @ d[own].astype(np.float64)
    for x, dtype in zip((a, d), pair, strict=True):
        if dtype.is_float:  # what rows of no group hold must not matter
            x[bounds[-1] :] = np.nan
    dtype = None if rng.random() < 0.5 else (bf16, f32)[rng.integers(2)]
    whole = not any(x.is_float for x in pair)
    wanted = dtype or (kd.int32 if whole else f64 if f64 in pair else f32)
    options: dict[str, Any] = {} if config is None else {"config": config}
    if rng.random() < 0.5:
        options["out"] = place(np.full(expected.shape, 77).astype(wanted.numpy), places[2])
    sizes = {"offsets": bounds} if rng.random() < 0.5 else {"group_sizes": np.diff(bounds)}
    got = kd.library.grouped_matmul_wgrad(
        place(a, places[0]), place(d, places[1]), out_dtype=dtype, interpret=interpret, **sizes, **options
    )
    assert got.shape == expected.shape and got.dtype == wanted.numpy
    error = relative(got.astype(np.float64), expected)
    assert error <= {2: 5e-3, 4: 1e-5, 8: 1e-12}[got.dtype.itemsize], f"{pair} seed {seed}: {error:.1e}"

"""What kd.library.matmul does to sums on their way out: factors, addends, functions, gates, dropout, magnitudes."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from benchmarks.bounds import fp8_error
from kernel_dsl.library.product_routes.routes import route
from kernel_dsl.library.products.arguments import request
from kernel_dsl.library.products.gate_gradients import gate_gradients
from kernel_dsl.library.products.matmul_options import MatmulOptions
from kernel_dsl.stages import target_named
from tests.hopper.helpers import random, relative

from .products import GATES, exact_gelu, philox, place, weighed

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]

bf16, f32, f64, s8, e4m3 = kd.bfloat16, kd.float32, kd.float64, kd.int8, kd.float8_e4m3fn
M, N, K = 72, 48, 64
Spec = kd.ShapeDtypeStruct


def gelu(x: Any) -> Any:
    return 0.5 * x * (1.0 + kd.erf(x * 0.5**0.5))


def at_least(x: Any) -> Any:
    return kd.maximum(x, -1.0)


def test_philox_is_philox() -> None:
    """The published vector of counter 0 and key 0 (Random123, kat_vectors)."""
    assert [hex(w) for w in philox(4, 0)] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]


def operands(rng: Any, dtype: Any, M: int = M, N: int = N, K: int = K, batch: Any = ()) -> tuple[Any, Any, Any]:
    a, b = random(rng, (*batch, M, K), dtype), random(rng, (K, N), dtype)
    return a, b, a.astype(np.float64) @ b.astype(np.float64)


@pytest.mark.parametrize("dtype", [bf16, e4m3, s8, f32, f64], ids=str)
@pytest.mark.sampled(15)
def test_all_at_once(dtype: Any, interpret: Any, rng: Any) -> None:
    """Each step once, in its order, in the kernel of each dtype."""
    a, b, exact = operands(rng, dtype)
    rows, columns = (rng.random(n).astype(np.float32) + 0.5 for n in (M, N))
    bias, c, residual = (random(rng, shape, f32) for shape in ((N,), (M, N), (M, 1)))
    y = random(rng, (M, 1), f32)
    got, peak = kd.library.matmul(
        a, b, a_scale=rows, b_scale=columns[None], scale=0.25, bias=bias, c=c, epilogue=weighed, operands=(y, 1.5),
        activation=at_least, residual=residual, absmax=True, out_scale=np.float32(3), out_dtype=f32, interpret=interpret,
    )  # fmt: skip
    expected = np.maximum((exact * rows[:, None] * columns * 0.25 + bias + c) * y + 1.5, -1) + residual
    bound = 1e-6 + (fp8_error(K) if dtype == e4m3 and interpret is False else 0.0)
    assert relative(got, 3 * expected) < bound
    assert peak.shape == () and peak.dtype == np.float32 and abs(peak - np.abs(expected).max()) < bound * peak


@pytest.mark.parametrize("shape", [(67, 33, 45), (3, 136, 264), (16, 16, 2048)], ids=str)
@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
@pytest.mark.sampled(12)
def test_each_alone(shape: Any, dtype: Any, rng: Any) -> None:
    """On every route: odd shapes, thin ones, and parts of K, whose steps come when they are added up."""
    a, b, exact = operands(rng, dtype, *shape)
    rows, columns, full = (random(rng, s, f32) for s in ((shape[0], 1), (shape[1],), shape[:2]))
    bound = 4e-3 if dtype == bf16 else 1e-6
    cases: list[tuple[dict[str, Any], Any]] = [
        ({"scale": -2.0}, -2 * exact),
        ({"scale": np.full((), 0.5, np.float32)}, 0.5 * exact),
        ({"a_scale": rows[:, 0]}, exact * rows),
        ({"a_scale": rows, "b_scale": columns}, exact * rows * columns),
        ({"a_scale": 2.0, "b_scale": columns[None]}, 2 * exact * columns),
        ({"c": rows}, exact + rows),
        ({"c": full, "activation": gelu}, exact_gelu(exact + full)),
        ({"epilogue": weighed, "operands": [columns, full]}, exact * columns + full),
        ({"residual": full, "activation": at_least}, np.maximum(exact, -1) + full),
        ({"out_scale": 0.125}, exact / 8),
    ]
    for options, expected in cases:
        assert relative(kd.library.matmul(a, b, interpret=True, **options), expected) < bound, options.keys()


@pytest.mark.parametrize("number", range(len(GATES)))
@pytest.mark.parametrize("dtype", [bf16, s8, f32], ids=str)
@pytest.mark.sampled(60)
def test_gates(number: int, dtype: Any, interpret: Any, rng: Any) -> None:
    """Two matrices, or one whose columns belong to the one and the other in turn, by rows and by columns."""
    gate, formula = GATES[number]
    a, one, exact = operands(rng, dtype)
    other = random(rng, (K, N), dtype)
    both = np.stack([one, other], -1).reshape(K, 2 * N)
    expected = formula(exact * 0.01, a.astype(np.float64) @ other.astype(np.float64) * 0.01)
    for b in [(one, other), both, np.ascontiguousarray(both.T).T][: 1 if number else 3]:
        got = kd.library.matmul(a, b, gated=gate, scale=0.01, out_dtype=f32, interpret=interpret)
        assert got.shape == (M, N) and relative(got, expected) < 1e-6


@pytest.mark.parametrize("shape", [(64, 128, 128), (5, 7, 9), (1, 64, 256)], ids=str)
@pytest.mark.parametrize("dtype", [bf16, f32, s8], ids=str)
@pytest.mark.sampled(6)
def test_pairs_stored_unlike(dtype: Any, shape: Any, rng: Any) -> None:
    """One matrix of a pair by rows and the other by columns, or one aligned and the other not: both are copied."""
    a, one, exact = operands(rng, dtype, *shape)
    other = random(rng, one.shape, dtype)
    expected = exact + 2 * (a.astype(np.float64) @ other.astype(np.float64))
    odd = np.frombuffer(b"\0" * dtype.itemsize + other.tobytes(), other.dtype, offset=dtype.itemsize).reshape(
        other.shape
    )
    for pair in [(one, np.asfortranarray(other)), (np.asfortranarray(one), other), (one, odd)]:
        got = kd.library.matmul(a, pair, gated=lambda x, y: x + 2.0 * y, out_dtype=f32, interpret=True)
        assert relative(got, expected) < 1e-6


@pytest.mark.parametrize("shape", [(72, 48, 64), (67, 33, 45), (2, 3, 24, 40), (3, 200, 1040), (8, 8, 0)], ids=str)
@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
@pytest.mark.sampled(4)
def test_sums_that_a_gate_joins(shape: Any, dtype: Any, rng: Any) -> None:
    """They are further results on every route: by TMA, by lanes, of a batch as rows, of parts of K, of no K."""
    *batch, M, N, K = shape
    a, one, exact = operands(rng, dtype, M, N, K, tuple(batch))
    other, biases = random(rng, (K, N), dtype), random(rng, (2, N), f32)
    o = MatmulOptions(gated="reglu", bias=tuple(biases), out_dtype=f32)
    gates, values = exact + biases[0], a.astype(np.float64) @ other.astype(np.float64) + biases[1]
    got = kd.library.matmul.with_sums(a, (one, other), o, True)
    for x, expected in zip(got, (np.maximum(gates, 0) * values, gates, values), strict=True):
        assert x.shape == (*batch, M, N) and relative(x, expected) < 1e-6


@pytest.mark.parametrize("dtype", [kd.float16, bf16], ids=str)
def test_swish_of_any_size(dtype: Any, interpret: Any) -> None:
    """Gates whose exponentials are small, great and none: within a rounding of the result's 16 bits; as IEEE says beyond them."""
    gates = np.concatenate([np.linspace(-86, 86, 250), [-200, -95, -0.0, 0.0, 95, 200]]).reshape(-1, 1)
    a = np.concatenate([gates, np.zeros((len(gates), 15))], 1).astype(bf16.numpy)
    a[:, 1] = 1.0
    gate, value = np.zeros((2, 16, 64), bf16.numpy)
    gate[0], value[1] = 1.0, 1.0
    got = np.asarray(kd.library.matmul(a, (gate, value), gated="swiglu", out_dtype=dtype, interpret=interpret))
    x = a[:, :1].astype(np.float64)
    expected = x / (1 + np.exp(-x)) * np.ones((1, 64))
    least = float(np.finfo(np.float16).smallest_normal) if dtype == kd.float16 else 2.0**-120
    bound = np.maximum(np.abs(expected), least) * (2.0**-11 if dtype == kd.float16 else 2.0**-8) * 1.02
    assert (np.abs(got.astype(np.float64) - expected) <= bound).all()
    a[0, 0], a[1, 0], a[2, 0] = inf, -inf, nan
    gate[1:], value[0] = 0.0, 0.0
    ends = np.asarray(kd.library.matmul(a, (gate, value + 1), gated="swiglu", out_dtype=f32, interpret=interpret))
    rough = np.asarray(kd.library.matmul(a, (gate, value + 1), gated="swiglu", out_dtype=dtype, interpret=interpret))
    np.testing.assert_array_equal(rough[:3].astype(np.float32), ends[:3].astype(np.float32))


def test_gradients_of_gates(rng: Any) -> None:
    """Of names and of a function; of elements that fill vectors and that don't, in the last of several blocks."""
    steps = {"swiglu": lambda x: x / (1 + np.exp(-x)), "geglu": exact_gelu, "glu": lambda x: 1 / (1 + np.exp(-x))}
    cases: list[tuple[Any, Any]] = [(name, lambda x, y, f=f: f(x) * y) for name, f in steps.items()]
    for (gate, exact), shape in zip(
        [*cases, (lambda x, y: x * y * y, None)], [(5, 411), (16, 264), (3, 7), (2, 4, 8)], strict=True
    ):
        exact = exact or gate
        x, y, slope = random(rng, (3, *shape), f32)
        wide, step = [v.astype(np.float64) for v in (x, y)], 1e-6
        by = [
            (
                exact(wide[0] + step * (i == 0), wide[1] + step * (i == 1))
                - exact(wide[0] - step * (i == 0), wide[1] - step * (i == 1))
            )
            / (2 * step)
            for i in range(2)
        ]
        for got, expected in zip(gate_gradients(gate, (x, y), slope, f32, True), by, strict=True):
            assert got.shape == shape and relative(got, expected * slope) < 1e-6


@pytest.mark.parametrize("shape", [(67, 33, 45), (3, 200, 520), (130, 80, 64)], ids=str)
@pytest.mark.sampled(4)
def test_gates_of_odd_shapes(shape: Any, rng: Any) -> None:
    """Each product with its own scales and bias, both with those of rows."""
    a, one, exact = operands(rng, bf16, *shape)
    other, biases = random(rng, (shape[2], shape[1]), bf16), random(rng, (2, shape[1]), f32)
    rows, scales = rng.random((shape[0], 1)).astype(np.float32), rng.random((2, shape[1])).astype(np.float32)
    gates, values = exact * rows * scales[0], a.astype(np.float64) @ other.astype(np.float64) * rows * scales[1]
    residual = random(rng, shape[:2], f32)
    options: dict[str, Any] = {"a_scale": rows, "bias": tuple(biases), "b_scale": tuple(scales), "residual": residual}
    got = kd.library.matmul(a, (one, other), gated="reglu", out_dtype=f32, interpret=True, **options)
    assert relative(got, np.maximum(gates + biases[0], 0) * (values + biases[1]) + residual) < 1e-6


@pytest.mark.parametrize("shape", [(M, N), (67, 33), (2, 3, 8, 48)], ids=str)
@pytest.mark.sampled(4)
def test_dropout(shape: Any, rng: Any) -> None:
    """The words of the result's elements, whatever the kernel and its tiles; rows of a batch go on where the last ended."""
    *batch, rows, columns = shape
    seed = 12345678901234
    a, b, exact = operands(rng, bf16, rows, columns, 32, tuple(batch))
    keep = (philox(exact.size, seed) >> np.uint64(8)).astype(np.float64) * 2.0**-24 >= 0.25
    got = kd.library.matmul(a, b, dropout=(0.25, seed), out_dtype=f32, interpret=True)
    assert 0.6 < keep.mean() < 0.9 and relative(got, np.where(keep.reshape(shape), exact / 0.75, 0)) < 1e-6
    same = kd.library.matmul(a, b, dropout=(0, 1), out_dtype=f32, interpret=True)
    assert np.array_equal(same, kd.library.matmul(a, b, out_dtype=f32, interpret=True))


@pytest.mark.parametrize(("dtype", "bound"), [(f64, 1e-14), (f32, 1e-6)], ids=str)
@pytest.mark.parametrize("rate", [0.9, np.float32(0.999), 1 - 2.0**-10], ids=str)
def test_what_dropout_keeps_grows_exactly(dtype: Any, bound: float, rate: Any, rng: Any) -> None:
    """1 - rate cancels, so it is no number of the kernel's float32; rates and seeds may be numbers of NumPy."""
    a, b, exact = operands(rng, dtype, 70, 66, 16)
    got = kd.library.matmul(a, b, dropout=(rate, np.int64(5)), interpret=True)
    kept = got != 0
    assert kept.any() and relative(got[kept], exact[kept] / (1 - float(rate))) < bound


def test_values_of_numbers_cause_no_compile(rng: Any) -> None:
    a, b, _ = operands(rng, bf16)
    matmul = type(kd.library.matmul)()
    for scale, rate in ((0.5, 0.1), (2.0, 0.5)):
        matmul(a, b, scale=scale, dropout=(rate, int(rate * 10)), interpret=True)
    (plan,) = matmul._plans.values()  # pyright: ignore[reportPrivateUsage]
    assert len(plan.kernel.specialisations()) == 1


@pytest.mark.parametrize("shape", [(M, N, K), (67, 33, 45), (16, 16, 4096)], ids=str)
@pytest.mark.sampled(4)
def test_magnitudes(shape: Any, rng: Any) -> None:
    """Of what is in the result alone, though tiles go on beyond it; NaN is told."""
    a, b, exact = operands(rng, bf16, *shape)
    got, peak = kd.library.matmul(
        a, b, epilogue=lambda x: x - 100.0, absmax=True, out_scale=2.0, out_dtype=e4m3, interpret=True
    )
    assert got.dtype == e4m3 and abs(peak - np.abs(exact - 100).max()) < 1e-3
    a[1, 2] = np.nan
    assert np.isnan(kd.library.matmul(a, b, absmax=True, interpret=True)[1])


def test_pairs_of_results_in_place(rng: Any) -> None:
    a, b, exact = operands(rng, bf16)
    for how in ("plain", "turned", "shifted"):
        out = place(np.zeros((M, N), bf16.numpy), how), np.zeros((), np.float32)
        assert kd.library.matmul(a, b, absmax=True, out=out, interpret=True) is out
        assert relative(out[0], exact) < 4e-3 and abs(out[1] - np.abs(exact).max()) < 1e-4


def test_numbers_are_as_precise_as_the_product(rng: Any) -> None:
    a, b, exact = operands(rng, f64)
    assert relative(kd.library.matmul(a, b, scale=0.1, out_scale=0.3, interpret=True), exact * 0.1 * 0.3) < 1e-15


A, B = np.ones((16, 32), np.float16), np.ones((32, 24), np.float16)
VECTOR = np.ones(24, np.float32)
REFUSED: list[tuple[Any, Any, dict[str, Any], str]] = [
    (A, B, {"a_scale": np.ones(24, np.float32)}, r"a_scale is \(24,\)"),
    (A, B, {"a_scale": np.ones(16, np.float16)}, "a_scale is float16"),
    (A, B, {"b_scale": np.ones((24, 1), np.float32)}, r"b_scale is \(24, 1\)"),
    (A, B, {"b_scale": (VECTOR, VECTOR)}, "b_scale is a tuple"),
    (A, B, {"scale": np.ones((16, 24, 2), np.float32)}, "scale is"),
    (A, B, {"scale": "2"}, "scale is a str"),
    (A, B, {"scale": True}, "scale is a bool"),
    (A, B, {"b_scale": np.True_}, "b_scale is a bool"),
    (A, B, {"out_scale": False}, "out_scale is a bool"),
    (A, B, {"c": 1.0}, "c is a float"),
    (A, B, {"residual": np.ones((24, 16), np.float16)}, r"residual is \(24, 16\)"),
    (A, B, {"epilogue": "gelu"}, "epilogue is a str"),
    (A, B, {"operands": (1.0,)}, "operands without an epilogue"),
    (A, B, {"epilogue": weighed, "operands": (1.0, np.ones(5))}, r"operands is \(5,\)"),
    (A, B, {"epilogue": lambda x: x.sum()}, "the epilogue made"),
    (A, B, {"gated": "silu"}, "gated='silu'"),
    (A, B, {"gated": lambda x, y: None}, "the gate made None"),
    (A, (B, B), {}, "b is a tuple"),
    (A, (B, B, B), {"gated": "glu"}, "b has 3 parts"),
    (A, (B, B[:, :8]), {"gated": "glu"}, "b is float16 of"),
    (A, B[:, :23], {"gated": "glu"}, "b has 23 columns"),
    (A, (B, B), {"gated": "glu", "bias": VECTOR}, r"bias is \(24,\)"),
    (A, B, {"gated": "glu", "b_scale": VECTOR[:12]}, r"b_scale is \(12,\)"),
    (A, (B, B), {"gated": "glu", "c": np.ones((16, 24), np.float16)}, "c beside gated"),
    (A, B, {"dropout": 0.5}, "dropout=0.5"),
    (A, B, {"dropout": (1.0, 5)}, "dropout="),
    (A, B, {"dropout": (0.5, -1)}, "dropout="),
    (A, B, {"dropout": ("x", 1)}, "dropout="),
    (A[None], np.ones((2, 5, 24), np.float16), {}, "a is"),
    (np.ones((3, 16, 32), np.float16), np.ones((2, 32, 24), np.float16), {}, r"a is \(3, 16, 32\)"),
    (A[0], B, {}, "a is an ndarray of shape"),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda c: c[-1])
def test_refused(case: Any) -> None:
    a, b, options, words = case
    with pytest.raises(kd.Error, match=words):
        kd.library.matmul(a, b, interpret=True, **options)


class Lying:
    """A struct that is stored by columns, which may be sliced."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape, self.dtype = shape, dtype
        self.strides = (dtype.itemsize, shape[0] * dtype.itemsize)[: len(shape)]


BUSY: dict[str, MatmulOptions] = {
    "bias and gelu": MatmulOptions(bias=Spec((4096,), f32), activation=gelu),
    "rows and columns": MatmulOptions(
        a_scale=Spec((4096,), f32), b_scale=Spec((4096,), f32), c=Spec((4096, 4096), bf16)
    ),
    "magnitudes": MatmulOptions(absmax=True, out_scale=2.0),
    "dropout": MatmulOptions(dropout=(0.1, 5), residual=Spec((4096, 4096), bf16)),
    "swiglu": MatmulOptions(gated="swiglu"),
    "geglu": MatmulOptions(gated="geglu", bias=(Spec((4096,), f32), Spec((4096,), f32))),
}
KEPT = "swiglu with its sums"


@pytest.mark.parametrize("name", [*BUSY, KEPT])
@pytest.mark.parametrize(
    ("dtype", "target"), [(bf16, "sm_90a"), (e4m3, "sm_90a"), (f32, "sm_90a"), (bf16, "sm_80")], ids=str
)
@pytest.mark.sampled(60, "machine code")
def test_nothing_spills(name: str, dtype: Any, target: str) -> None:
    o = BUSY["swiglu" if name == KEPT else name]
    b = Lying((4096, 4096), dtype)
    r = request(Spec((4096, 4096), dtype), (b, b) if o.gated else b, o, None)
    r = replace(r, problem=replace(r.problem, keeps=name == KEPT))
    found = route(r.problem, r.left, r.right, r.family, None, target_named(target))
    assert found.problem.gate is not None or not o.gated or found.apart
    sides = [Spec((4096, 4096), found.problem.dtype)] * (3 if found.problem.gate else 2)
    first, rest = o.items()
    extra = [x for items in (*first, rest) for _, x in items]
    kernels = [(found.multiply(132), (*sides, *(extra if found.whole is None else ())))]
    if found.whole is not None:
        kernels.append((found.combine(), (*[Spec((4096, 4096), f32)] * (2 if found.apart else 1), *extra)))
    for kernel, args in kernels:
        stages = kernel.lower(*args, target=target)
        assert stages.compile().resources.spills == 0 and not stages.notes


@pytest.mark.gpu
@pytest.mark.parametrize("name", BUSY)
@pytest.mark.parametrize("shape", [(1024, 768, 512), (333, 777, 999), (16, 4096, 4096)], ids=str)
def test_steps_on_a_gpu(name: str, shape: Any, rng: Any) -> None:
    """The GPU gives what the interpreter gave for the same call, up to the order of sums."""
    M, N, K = shape
    a, b = random(rng, (M, K), bf16), random(rng, (K, N), bf16)
    o = BUSY[name]
    options: dict[str, Any] = {k: v for k, v in o._asdict().items() if v not in (None, (), False)}
    for key, value in list(options.items()):
        if isinstance(value, Spec) or (isinstance(value, tuple) and isinstance(value[0], Spec)):
            size = {"bias": (N,), "a_scale": (M,), "b_scale": (N,)}.get(key, (M, N))
            made = [random(rng, size, f32) for _ in range(2)]
            options[key] = tuple(made) if isinstance(value, tuple) else made[0]
    sides: Any = (b, random(rng, (K, N), bf16)) if o.gated else b
    got = kd.library.matmul(a, sides, out_dtype=f32, interpret=False, **options)
    wide = [x.astype(np.float64) for x in (a, *(sides if o.gated else (sides,)))]
    expected = kd.library.matmul(
        wide[0], tuple(wide[1:]) if o.gated else wide[1], out_dtype=f64, interpret=False, **options
    )
    pairs = zip(got, expected, strict=True) if o.absmax else ((got, expected),)
    for one, other in pairs:
        assert relative(one, other) < 1e-5

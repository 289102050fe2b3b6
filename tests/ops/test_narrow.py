"""What picks, orders, negates or moves a narrow float keeps every bit of it; what computes is rounded once, as ml_dtypes does.

`tests/ops/test_patterns.py` has the elementwise rows of `tests/table.py`; here are the other functions of their families.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kernel_dsl as kd
from tests import compare, table
from tests.ops import patterns
from tests.ops.harness import INTERPRET, run

NARROW = (*table.FP8, "float16", "bfloat16")
WHERE = ["interpreter", pytest.param("gpu", marks=pytest.mark.gpu)]


@dataclass(frozen=True)
class Case:
    """A use of the function `name` on values x and y of shape (16, 16), and what NumPy says of such arrays.

    `how`: "bits" are equal; "value": not-a-numbers agree with each other, and zeros; "rounded": `theirs` takes and gives
    float64, which is rounded once after an error of at most `error` of its size, or of what it gives beside it.
    """

    name: str
    ours: Callable[[Any, Any], Any]
    theirs: Callable[[Any, Any], Any]
    how: str = "bits"
    error: float = 0


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}") if x.dtype.kind not in "iub" else x


def _sorted(x: np.ndarray) -> np.ndarray:
    """By value, -0.0 before 0.0; NaN last, those with a sign after those without."""
    flat = x.ravel()
    number, negative = wide(flat), np.signbit(flat)
    nan = np.isnan(number)
    pattern = bits(flat).astype(np.int64)
    return flat[np.lexsort((np.where(negative, -pattern, pattern), ~negative ^ nan, np.where(nan, 0, number), nan))]


def _picked(f: Callable[[np.ndarray], Any]) -> Callable[[Any, Any], Any]:
    """A NumPy function of numbers, in the operand's dtype, which holds the result."""
    return lambda a, b: np.asarray(f(wide(a))).astype(a.dtype)


def _numbers(f: Callable[[np.ndarray], Any]) -> Callable[[Any, Any], Any]:
    """The same of an operand without infinities and NaN."""

    def theirs(a: np.ndarray, b: np.ndarray) -> Any:
        largest = float(ml_dtypes.finfo(a.dtype).max)
        return np.asarray(f(np.clip(np.where(np.isnan(wide(a)), 0, wide(a)), -largest, largest))).astype(a.dtype)

    return theirs


CASES = (
    Case("positive", lambda x, y: +x, lambda a, b: a),
    Case("conj", lambda x, y: kd.conj(x), lambda a, b: a),
    Case("where", lambda x, y: kd.where(x > y, x, y), lambda a, b: np.where(wide(a) > wide(b), a, b)),
    Case("select", lambda x, y: kd.select(y < 0, x, y), lambda a, b: np.where(wide(b) < 0, a, b)),
    Case("bitcast_convert_type", lambda x, y: kd.bitcast_convert_type(x, f"int{x.dtype.bits}"),
         lambda a, b: a.view(f"i{a.dtype.itemsize}")),
    Case("astype", lambda x, y: x.astype(kd.float32), lambda a, b: a.astype(np.float32), "value"),
    Case("astype", lambda x, y: x.astype(kd.bool_), lambda a, b: wide(a) != 0),
    Case("astype", lambda x, y: x.astype(kd.float32).astype(x.dtype, saturate=False), lambda a, b: a, "value"),
    Case("clip", lambda x, y: kd.clip(x, -1, 2), _picked(lambda x: np.clip(x, -1, 2)), "value"),
    Case("clip", lambda x, y: kd.clip(x, -np.inf, np.inf), lambda a, b: a, "value"),
    Case("round", lambda x, y: kd.round(x), _picked(np.round), "value"),
    Case("modf", lambda x, y: kd.modf(x)[0], _picked(lambda x: np.modf(x)[0]), "value"),
    Case("modf", lambda x, y: kd.modf(x)[1], _picked(lambda x: np.modf(x)[1]), "value"),
    Case("frexp", lambda x, y: kd.frexp(x)[0], _picked(lambda x: np.frexp(x)[0]), "value"),
    Case("frexp", lambda x, y: kd.frexp(x)[1], lambda a, b: np.frexp(wide(a))[1]),
    # orders
    Case("sort", lambda x, y: kd.sort(x, axis=None), lambda a, b: _sorted(a)),
    Case("sort", lambda x, y: kd.sort(x), lambda a, b: np.stack([_sorted(row) for row in a])),
    Case("argsort", lambda x, y: kd.argsort(x, axis=None), lambda a, b: np.argsort(wide(a), None, kind="stable")),
    Case("max", lambda x, y: kd.max(x, axis=1), _picked(lambda x: np.max(x, axis=1)), "value"),
    Case("max", lambda x, y: kd.max(kd.where(kd.isnan(x), y.dtype(-1), x), axis=0),
         _picked(lambda x: np.max(np.where(np.isnan(x), -1, x), axis=0)), "value"),
    Case("min", lambda x, y: kd.min(x, axis=1), _picked(lambda x: np.min(x, axis=1)), "value"),
    Case("argmax", lambda x, y: kd.argmax(x, axis=1), lambda a, b: np.argmax(wide(a), axis=1)),
    Case("argmin", lambda x, y: kd.argmin(x), lambda a, b: np.argmin(wide(a))),
    Case("cummax", lambda x, y: kd.cummax(x, axis=1), _picked(lambda x: np.maximum.accumulate(x, axis=1)), "value"),
    Case("cummax", lambda x, y: kd.cummax(y, axis=0), lambda a, b: np.maximum.accumulate(wide(b)).astype(b.dtype), "value"),
    Case("cummin", lambda x, y: kd.cummin(x, axis=1, reverse=True),
         _picked(lambda x: np.minimum.accumulate(x[:, ::-1], axis=1)[:, ::-1]), "value"),
    Case("top_k", lambda x, y: kd.top_k(x, 5)[1],
         lambda a, b: np.lexsort((np.where(np.isnan(wide(a)), 0, -wide(a)), np.isnan(wide(a))), axis=-1)[:, :5]),
    # sizes that leave lanes over, which hold what must change nothing: the dtype may have no infinity
    Case("sort", lambda x, y: kd.sort(x[:5, :11], axis=0), lambda a, b: np.stack([_sorted(c) for c in a[:5, :11].T], 1)),
    Case("argsort", lambda x, y: kd.argsort(x[:5, :11]), lambda a, b: np.argsort(wide(a[:5, :11]), kind="stable")),
    Case("max", lambda x, y: kd.max(x[:13, :11], axis=0), _picked(lambda x: np.max(x[:13, :11], axis=0)), "value"),
    Case("max", lambda x, y: kd.max(kd.broadcast_to(kd.min(kd.nan_to_num(x)), (5, 7)), axis=1),
         _numbers(lambda x: np.full(5, np.min(x))), "value"),
    Case("min", lambda x, y: kd.min(kd.broadcast_to(kd.max(kd.nan_to_num(x)), (5, 7))),
         _numbers(np.max), "value"),
    Case("argmax", lambda x, y: kd.argmax(kd.broadcast_to(kd.min(kd.nan_to_num(x)), (5, 7)), axis=1),
         lambda a, b: np.zeros(5)),
    Case("cummax", lambda x, y: kd.cummax(x[:13, :11], axis=0),
         _picked(lambda x: np.maximum.accumulate(x[:13, :11], axis=0)), "value"),
    Case("any", lambda x, y: kd.any(x, axis=0), lambda a, b: np.any(wide(a) != 0, axis=0)),
    Case("all", lambda x, y: kd.all(x, axis=1), lambda a, b: np.all(wide(a) != 0, axis=1)),
    # moves
    Case("reshape", lambda x, y: x.reshape(8, 32), lambda a, b: a.reshape(8, 32)),
    Case("transpose", lambda x, y: x.T, lambda a, b: a.T),
    Case("swapaxes", lambda x, y: kd.swapaxes(x, 0, 1), lambda a, b: a.T),
    Case("expand_dims", lambda x, y: kd.expand_dims(x, 1), lambda a, b: a[:, None]),
    Case("squeeze", lambda x, y: kd.squeeze(x[:, None]), lambda a, b: a),
    Case("flip", lambda x, y: kd.flip(x), lambda a, b: np.flip(a)),
    Case("pad", lambda x, y: kd.pad(x, 1), lambda a, b: np.pad(a, 1)),
    Case("concatenate", lambda x, y: kd.concatenate([x, y], axis=1), lambda a, b: np.concatenate([a, b], 1)),
    Case("stack", lambda x, y: kd.stack([x, y]), lambda a, b: np.stack([a, b])),
    Case("split", lambda x, y: kd.split(x, 2)[1], lambda a, b: a[8:]),
    Case("broadcast_to", lambda x, y: kd.broadcast_to(x[3], (5, 16)), lambda a, b: np.broadcast_to(a[3], (5, 16))),
    Case("full_like", lambda x, y: kd.full_like(y, x[7, 14]), lambda a, b: np.full_like(b, a[7, 14])),
    # sums and powers
    Case("sum", lambda x, y: kd.sum(x, axis=1), lambda a, b: (a.sum(1), abs(a).sum(1)), "rounded", 2**-20),
    Case("prod", lambda x, y: kd.prod(x[:, :2], axis=1), lambda a, b: a[:, :2].prod(axis=1), "rounded"),
    Case("mean", lambda x, y: kd.mean(x[:, :4], axis=1), lambda a, b: (a[:, :4].mean(1), abs(a[:, :4]).mean(1)), "rounded", 2**-21),
    Case("var", lambda x, y: kd.var(x[:8, :4], axis=1), lambda a, b: (a[:8, :4].var(1), np.square(a[:8, :4]).mean(1)), "rounded", 2**-20),
    Case("cumsum", lambda x, y: kd.cumsum(x, axis=1), lambda a, b: (a.cumsum(1), abs(a).cumsum(1)), "rounded", 2**-20),
    Case("cumprod", lambda x, y: kd.cumprod(x[:, :2], axis=1), lambda a, b: a[:, :2].cumprod(axis=1), "rounded"),
    Case("integer_pow", lambda x, y: x**2, lambda a, b: a**2, "rounded"),
    Case("integer_pow", lambda x, y: x**-3, lambda a, b: 1 / wide((a**3).astype(np.float32)), "rounded", 2**-21),
    Case("ldexp", lambda x, y: kd.ldexp(x, 3), lambda a, b: np.ldexp(a, 3), "rounded"),
    Case("ldexp", lambda x, y: kd.ldexp(x, kd.arange(-8, 8)), lambda a, b: np.ldexp(a, np.arange(-8, 8)), "rounded"),
    Case("round", lambda x, y: kd.round(x, 1), lambda a, b: np.round(a, 1), "rounded", 2**-22),
    Case("divmod", lambda x, y: kd.divmod(x, y)[0], np.floor_divide, "rounded"),
    Case("divmod", lambda x, y: kd.divmod(x, y)[1], np.mod, "rounded", 2**-23),
    Case("float_power", lambda x, y: kd.float_power(x, 3.0), lambda a, b: a**3, "rounded", 2**-21),
    Case("sinc", lambda x, y: kd.sinc(kd.clip(x, -4, 4)), lambda a, b: (np.sinc(np.clip(a, -4, 4)), 1.0), "rounded", 2**-20),
)  # fmt: skip

FAMILIES = (
    "arith",
    "bits",
    "cast",
    "compare",
    "create",
    "logic",
    "math",
    "numeric",
    "reduce",
    "scan",
    "shape",
    "sorting",
)
# functions of these that are not about the values of narrow floats
OTHER = {"arange", "broadcasted_iota", "full", "iota", "ones", "ones_like", "zeros", "zeros_like"}
OTHER |= {"RoundingMethod", "fma_contraction"}


def operands(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Every bit pattern of fp8, or those of every 256th of 16 bits and their neighbours; and the same in another order."""
    own = kd.dtypes.as_dtype(dtype)
    patterns_ = patterns.everything(own)
    if own.itemsize == 2:
        patterns_ = np.roll(patterns_, -7)[:: len(patterns_) // 256]
    mixed = np.random.default_rng(3).permutation(patterns_)
    return patterns_.reshape(16, 16), mixed.reshape(16, 16)


def good(case: Case, got: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        if case.how != "rounded":
            want = np.asarray(case.theirs(a, b))
            assert got.shape == want.shape
            return bits(got) == bits(want) if case.how == "bits" else compare.same(got, want) | (got == 0) & (want == 0)
        exact = case.theirs(wide(a), wide(b))
        exact, size = exact if isinstance(exact, tuple) else (exact, abs(exact))
        off = np.where(np.isfinite(size), case.error * size, 0)
        low, high = (compare.rounded(exact + s * off, got.dtype) for s in (-1, 1))
        within = (wide(low) <= wide(got)) & (wide(got) <= wide(high))
        return within | compare.same(got, low) | compare.same(got, high) | (got == 0) & (exact == 0)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.sampled(4)
def test_cases(dtype: str, where: str) -> None:
    a, b = operands(dtype)
    results = run(lambda x, y: tuple(case.ours(x, y) for case in CASES), a, b, interpret=_device(where))
    for case, got in zip(CASES, results, strict=True):
        right = good(case, got, a, b)
        assert np.all(right), (case.name, np.argwhere(~right)[:4].tolist(), got[~right][:4])


def _device(where: str) -> Any:
    return INTERPRET if where == "interpreter" else False


def test_every_function_is_tested() -> None:
    """A public function of these families is a row of `tests/table.py`, or has a case here."""
    names = [name for f in FAMILIES for name in import_module(f"kernel_dsl.ops.{f}").__all__]
    given = [
        *[row.function for row in table.ROWS],
        *[getattr(kd, c.name) for c in CASES],
        *[getattr(kd, n) for n in OTHER],
    ]
    tested = {inspect.unwrap(function) for function in given}  # one function may have several names
    assert not [name for name in names if inspect.unwrap(getattr(kd, name)) not in tested]


# --- fp8, bit for bit ------------------------------------------------------------------------------


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", table.FP8)
def test_what_picks_keeps_the_bits_of_ml_dtypes(dtype: str, target: str, where: str) -> None:
    """All pairs, NaN and the signs of zeros included."""
    functions = [kd.maximum, kd.minimum, kd.fmax, kd.fmin, kd.copysign]
    x, y = patterns.operands(kd.dtypes.as_dtype(dtype), 2, np.random.default_rng(), full=True)
    params = kd.CompilerParams(target=target)
    results = patterns.evaluate(functions, [x, y], _device(where), compiler_params=params)
    for function, got in zip(functions, results, strict=True):
        want = getattr(np, function.__name__)(x, y)
        np.testing.assert_array_equal(bits(got), bits(want), err_msg=function.__name__)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("dtype", NARROW)
def test_signs_are_bits(dtype: str, where: str) -> None:
    """Those of NaN too."""
    x = patterns.everything(kd.dtypes.as_dtype(dtype))
    y = np.random.default_rng(0).permutation(x)
    results = patterns.evaluate([lambda a, b: -a, lambda a, b: abs(a), kd.copysign], [x, y], _device(where))
    sign = bits(x).dtype.type(1 << 8 * x.dtype.itemsize - 1)
    wanted = (bits(x) ^ sign, bits(x) & ~sign, bits(x) & ~sign | bits(y) & sign)
    for got, want in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(bits(got), want)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("dtype", table.FP8)
def test_moves_through_memory(dtype: str, where: str) -> None:
    """Gathers, scatters, masks, fills and SMEM keep all bits."""
    x = patterns.everything(kd.dtypes.as_dtype(dtype))
    order = np.random.default_rng(0).permutation(256).astype(np.int32)

    def body(r: Any, index: Any, gathered: Any, scattered: Any, masked: Any, filled: Any, turned: Any, s: Any) -> None:
        at, v = index[...], r[...]
        gathered[...] = r[at]
        scattered[at] = v
        masked[...] = kd.load(r, ..., mask=at < 128, fill=v)
        filled[...] = kd.load(r, kd.ds(100, 256), fill=v[0x7E])
        s[...] = v.reshape(16, 16)
        turned[...] = s.T[...]

    own = kd.dtypes.as_dtype(dtype)
    outs = (*(kd.ShapeDtypeStruct((256,), own),) * 4, kd.ShapeDtypeStruct((16, 16), own))
    kernel = kd.kernel(body, out_type=outs, scratch_types=(kd.SMEM((16, 16), own),), interpret=_device(where))
    scattered = x.copy()
    scattered[order] = x
    filled = np.concatenate([x[100:], np.full(100, x[0x7E])])
    wanted = (x[order], scattered, x, filled, x.reshape(16, 16).T)
    for got, want in zip(kernel(x, order), wanted, strict=True):
        np.testing.assert_array_equal(bits(np.asarray(got)), bits(want))


# --- numbers beside fp8 ----------------------------------------------------------------------------

BEYOND = (np.inf, -np.inf, 1000.0, -1e6, 465, 1 << 20)


@pytest.mark.parametrize("dtype", table.FP8)
def test_a_literal_as_a_value_is_what_ml_dtypes_makes_of_it(dtype: str) -> None:
    """An infinity is NaN in float8_e4m3fn where a value of that dtype is made of it."""
    own = kd.dtypes.as_dtype(dtype)
    x = np.array([1, -2], own.numpy)
    for number in (*BEYOND, np.nan, 0.3, 448, 57344):
        with np.errstate(all="ignore"):
            as_ml = np.asarray(float(number)).astype(own.numpy)

        def values(v: Any, number: Any = number) -> tuple[Any, ...]:
            return kd.full((2,), number, own), kd.where(v > 0, number, v), kd.pad(v, 1, constant_values=number)[:1]

        full, where, pad = run(values, x)
        np.testing.assert_array_equal(wide(full), wide(np.full(2, as_ml)))
        np.testing.assert_array_equal(wide(where), wide(np.array([as_ml, x[1]])))
        np.testing.assert_array_equal(wide(pad), wide(as_ml[None]))

        def body(r: Any, out: Any, filled: Any, number: Any = number) -> None:
            out[...] = number
            filled[...] = kd.load(r, kd.ds(1, 2), fill=number)

        outs = (kd.ShapeDtypeStruct((2,), own),) * 2
        stored, filled = kd.kernel(body, out_type=outs, interpret=INTERPRET)(x)
        np.testing.assert_array_equal(wide(np.asarray(stored)), wide(np.full(2, as_ml)))
        np.testing.assert_array_equal(wide(np.asarray(filled)), wide(np.array([x[1], as_ml])))


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("dtype", table.FP8)
@pytest.mark.sampled(2)
def test_a_number_beyond_the_range_is_an_infinity_to_compute_with(dtype: str, traced: bool) -> None:
    """Compared, picked from and added, whether it is written in the body or an argument of the call."""
    x = patterns.everything(kd.dtypes.as_dtype(dtype))
    functions = (kd.less, kd.less_equal, kd.equal, kd.not_equal, kd.greater, kd.minimum, kd.maximum, kd.fmin, kd.fmax,
                 kd.add, kd.subtract, kd.multiply, kd.true_divide)  # fmt: skip
    for number in BEYOND:
        with np.errstate(all="ignore"):
            near = np.asarray(float(number)).astype(x.dtype)
            beside = np.copysign(np.inf, number) if np.isnan(wide(near)) else wide(near)
            wanted = [getattr(np, f.__name__)(wide(x), beside) for f in functions]

        def body(*refs: Any, number: Any = number) -> None:
            v, other = refs[0][...], refs[1] if traced else number
            for function, out in zip(functions, refs[-len(functions) :], strict=True):
                out[...] = function(v, other)

        outs = tuple(kd.ShapeDtypeStruct(x.shape, kd.bool_ if w.dtype == bool else x.dtype) for w in wanted)
        kernel = kd.kernel(body, out_type=outs, interpret=INTERPRET)
        for function, got, want in zip(functions, kernel(x, *([number] if traced else [])), wanted, strict=True):
            right = compare.same(np.asarray(got), compare.rounded(want, got.dtype))
            assert right.all(), (number, function.__name__, x[~right][:4], got[~right][:4])


@pytest.mark.parametrize("dtype", table.FP8)
def test_arithmetic_overflows_and_astype_saturates(dtype: str) -> None:
    info = ml_dtypes.finfo(dtype)
    x = np.array([info.max, info.min, 1], dtype)
    doubled, cast, plain = run(
        lambda v: (
            v + v,
            (v.astype(kd.float32) * 2).astype(dtype),
            (v.astype(kd.float32) * 2).astype(dtype, saturate=False),
        ),
        x,
    )
    beyond = np.nan if dtype == "float8_e4m3fn" else np.inf
    for got in (doubled, plain):
        np.testing.assert_array_equal(wide(got), [beyond, -beyond, 2])
    np.testing.assert_array_equal(wide(cast), [info.max, info.min, 2])


def test_a_fused_multiply_add_rounds_once() -> None:
    """Where float32 between would land on a tie and take the wrong side of it."""
    for dtype, numbers in {
        "float16": (2.0**-11 * (1 + 2.0**-10), 1 + 2.0**-10, 1.0),
        "bfloat16": (2.0**-8 * (1 + 2.0**-7), 1 + 2.0**-6, 1.0),
        "float8_e5m2": (1.5 * 2.0**7, 0.75 * 2.0**8, 2.0**-16),
    }.items():
        operands_ = [np.array([n], dtype) for n in numbers]
        exact = table.exact(next(r for r in table.ROWS if r.name == "fma"), operands_)
        got = run(kd.fma, *operands_)
        np.testing.assert_array_equal(wide(got), wide(compare.rounded(exact, got.dtype)))


@pytest.mark.parametrize("dtype", NARROW)
def test_index_arrays_are_rounded_once(dtype: str) -> None:
    """As NumPy's integers would be converted."""
    counted, stepped, down = run(
        lambda: (kd.iota(dtype, 600), kd.arange(7, 1807, 3, dtype=dtype), kd.arange(300, -300, -1, dtype=dtype))
    )
    for got, want in ((counted, np.arange(600)), (stepped, np.arange(7, 1807, 3)), (down, np.arange(300, -300, -1))):
        assert compare.same(got, compare.rounded(want, got.dtype)).all()


def test_unsigned_index_arrays_count_down() -> None:
    got = run(lambda: kd.arange(250, 0, -50, dtype=kd.uint8))
    np.testing.assert_array_equal(got, np.array([250, 200, 150, 100, 50], np.uint8))
    assert got.dtype == np.uint8


@pytest.mark.parametrize("dtype", table.FP8)
def test_numbers_that_control_flow_converts(dtype: str) -> None:
    """A branch's literal, a carry's first value and what a body makes of it are converted as any literal."""
    x = np.array([1, -2, 3], dtype)

    def values(v: Any) -> tuple[Any, ...]:
        largest = kd.fori_loop(0, 3, lambda i, s: kd.fmin(s, v[i]), np.inf)
        branch = kd.cond(v[0] > 0, lambda: np.inf, lambda: v[1])
        kept = kd.fori_loop(0, 3, lambda i, s: np.inf, v[0])
        return largest, branch, kept

    largest, branch, kept = run(values, x)
    infinity = wide(np.asarray(np.inf).astype(dtype))
    assert wide(largest) == -2
    np.testing.assert_array_equal(wide(branch), infinity)
    np.testing.assert_array_equal(wide(kept), infinity)

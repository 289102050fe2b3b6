"""Calls: scalars, pytrees, out=, in-place work, aliases, fills, frameworks, signatures, kernel objects."""

from __future__ import annotations

import functools
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest

import kernel_dsl as kd
from tests.ops.harness import INTERPRET, random
from tests.work import calls

Spec = kd.ShapeDtypeStruct


@kd.kernel(out_type=lambda x, *_: Spec(x.shape, x.dtype), interpret=INTERPRET)
def double(x: Any, out: Any) -> None:
    out[...] = x[...] * 2


@kd.kernel(out_type=lambda x, s: Spec(x.shape, kd.float32), interpret=INTERPRET)
def scaled(x: Any, s: Any, out: Any) -> None:
    out[...] = (x[...] * s).astype(kd.float32)


@pytest.mark.parametrize(
    "s", [3, 2.5, True, np.float32(1.5), np.int8(-2), np.uint32(7), np.float64(0.5), np.float16(2), np.bool_(1)]
)
def test_scalars(s: Any) -> None:
    x = random((40,), "int32")
    np.testing.assert_allclose(scaled(x, s), (x * s).astype(np.float32), rtol=1e-6)


def test_python_scalars_are_weak_and_numpy_scalars_are_not() -> None:
    seen: list[Any] = []

    @kd.kernel(out_type=())
    def probe(x: Any, s: Any) -> None:
        seen.append((x[...] + s).dtype)

    x = random((4,), "bfloat16")
    for s in (1, 1.0, np.float32(1), np.float64(1), np.int64(1)):
        probe.lower(x, s)
    assert seen == [kd.bfloat16, kd.bfloat16, kd.float32, kd.float64, kd.bfloat16]


def test_the_value_of_a_scalar_causes_no_trace() -> None:
    traces: list[int] = []

    @kd.kernel(out_type=Spec((), kd.int32), interpret=INTERPRET)
    def kernel(n: Any, out: Any) -> None:
        traces.append(1)
        out[...] = n + 1

    assert [int(kernel(n)) for n in (1, 2, -5, 2**31 - 2)] == [2, 3, -4, 2**31 - 1]
    assert len(traces) == 1


class Pair(NamedTuple):
    a: Any
    b: Any


def test_pytrees_in_and_out() -> None:
    @kd.kernel(out_type=lambda t: {"sum": t["p"].a, "both": [t["p"].b, (t["n"],)]}, interpret=INTERPRET)
    def kernel(t: Any, out: Any) -> None:
        out["sum"][...] = t["p"].a[...] + t["p"].b[...]
        out["both"][0][...] = t["p"].b[...]
        out["both"][1][0][...] = t["n"][...]

    a, b, n = random((5,)), random((5,), seed=1), random((2, 2), "int32")
    got = kernel({"n": n, "p": Pair(a, b)})
    np.testing.assert_array_equal(got["sum"], a + b)
    np.testing.assert_array_equal(got["both"][0], b)
    np.testing.assert_array_equal(got["both"][1][0], n)
    assert isinstance(got["both"][1], tuple)


def test_structures_of_outputs() -> None:
    def make(out_type: Any) -> Any:
        def body(x: Any, *outs: Any) -> None:
            for out in outs:
                if out is not None:
                    out[...] = x[...]

        return kd.kernel(body, out_type=out_type, interpret=INTERPRET)(random((3,)))

    one = Spec((3,), kd.float32)
    assert make(one).shape == (3,)
    assert isinstance(make((one,)), tuple) and len(make((one,))) == 1
    assert isinstance(make([one, one]), list)
    assert make(()) == ()
    assert make(None) is None


def test_out_is_written_and_returned() -> None:
    x = random((30,))
    out = np.full(30, -1, np.float32)
    result = double(x, out=out)
    assert result is out
    np.testing.assert_array_equal(out, x * 2)


def test_out_may_be_strided() -> None:
    x = random((6, 5))
    base = np.zeros((12, 5), np.float32)
    double(x, out=base[::2])
    np.testing.assert_array_equal(base[::2], x * 2)
    assert not base[1::2].any()


def test_in_place() -> None:
    x = random((100,))
    want = x * 2
    double(x, out=x)
    np.testing.assert_array_equal(x, want)


def test_aliases_start_as_a_copy() -> None:
    @kd.kernel(out_type=lambda x: x, input_output_aliases={0: 0}, interpret=INTERPRET)
    def kernel(x: Any, out: Any) -> None:
        out[:3] = out[:3] + 10

    x = random((8,))
    kept = x.copy()
    got = kernel(x)
    np.testing.assert_array_equal(x, kept)
    np.testing.assert_array_equal(got, np.concatenate([x[:3] + np.float32(10), x[3:]]))
    kernel(x, out=x)
    np.testing.assert_array_equal(x, got)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("float32", 1.5), ("int32", -7), ("bool", True), ("bfloat16", float("nan")), ("int64", 2**40), ("uint8", 255)],
)
def test_fills(dtype: str, value: Any) -> None:
    spec = Spec((4, 5), dtype, init=value)

    @kd.kernel(out_type=spec, interpret=INTERPRET)
    def kernel(out: Any) -> None:
        out[0] = kd.zeros((5,), dtype)

    got = kernel()
    want = np.full((4, 5), value, spec.dtype.numpy)
    want[0] = 0
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))
    out = np.zeros_like(want)
    kernel(out=out)
    np.testing.assert_array_equal(out.astype(np.float64), want.astype(np.float64))


def test_rank_zero_arrays() -> None:
    assert double(np.float32(3) * np.ones((), np.float32)) == 6
    assert double(np.ones((), np.int32)).shape == ()


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 4)])
def test_size_zero(shape: tuple[int, ...]) -> None:
    assert double(np.zeros(shape, np.float32)).shape == shape


def test_torch_cpu_tensors() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(7, 9)
    got = double(x)
    assert isinstance(got, torch.Tensor) and got.dtype == torch.float32
    torch.testing.assert_close(got, x * 2)
    half = torch.randn(33).to(torch.bfloat16)
    torch.testing.assert_close(double(half), half * 2)
    out = torch.empty(9, 7)
    assert double(x.T, out=out) is out
    torch.testing.assert_close(out, x.T * 2)
    mixed = scaled(np.ones(3, np.float32), 2.0)
    assert isinstance(mixed, np.ndarray)


def test_jax_arrays() -> None:
    jnp = pytest.importorskip("jax.numpy")
    import jax

    x = jnp.arange(12, dtype=jnp.float32).reshape(3, 4)
    got = double(x)
    assert isinstance(got, jax.Array)
    np.testing.assert_array_equal(np.asarray(got), np.asarray(x) * 2)


def test_one_trace_a_signature() -> None:
    traces: list[Any] = []

    @kd.kernel(out_type=lambda x: Spec(x.shape, x.dtype), interpret=INTERPRET)
    def kernel(x: Any, out: Any) -> None:
        traces.append((x.shape, x.dtype))
        out[...] = x[...]

    for _ in range(3):
        kernel(random((16,)))
    kernel(random((16,), "int32"))
    kernel(random((17,)))
    kernel(random((32,))[::2])
    assert len(traces) == 4


def test_partial_binds_compile_time_constants() -> None:
    def body(factor: float, x: Any, out: Any) -> None:
        out[...] = x[...] * factor

    x = random((5,))
    for factor in (2.0, -0.5):
        made = kd.kernel(functools.partial(body, factor), out_type=Spec((5,), kd.float32), interpret=INTERPRET)
        np.testing.assert_array_equal(made(x), x * np.float32(factor))


def test_kernels_hash_pickle_and_run_from_threads() -> None:
    assert hash(double) == hash(double) and {double: 1}[double] == 1
    again = pickle.loads(pickle.dumps(double))
    assert again is double
    arrays = [random((20 + i % 3,), seed=i) for i in range(12)]
    with ThreadPoolExecutor(4) as pool:
        for x, y in zip(arrays, pool.map(double, arrays), strict=True):
            np.testing.assert_array_equal(y, x * 2)


def test_old_names() -> None:
    spec = Spec((4,), kd.float32)

    def body(x: Any, out: Any, s: Any) -> None:
        s[...] = x[...]
        out[...] = s[...]

    made = kd.kernel(body, spec, scratch_shapes=[kd.SMEM((4,), kd.float32)], kernel_name="old", interpret=INTERPRET)
    assert made.name == "old"
    x = random((4,))
    np.testing.assert_array_equal(made(x), x)


def test_scratch_by_name() -> None:
    @kd.kernel(
        out_type=Spec((4,), kd.float32), scratch_types={"buffer": kd.SMEM((4,), kd.float32)}, interpret=INTERPRET
    )
    def kernel(x: Any, out: Any, *, buffer: Any) -> None:
        buffer[...] = x[...]
        out[...] = buffer[...]

    x = random((4,))
    np.testing.assert_array_equal(kernel(x), x)


def test_stages() -> None:
    stages = double.lower(Spec((64,), kd.float32), target="sm_80")
    assert ".target sm_80" in stages.ptx and "define" in stages.llvm
    assert "double" in repr(stages) and "store(" in str(stages)
    for name in ("sm_89", "sm_90", "sm_90a", "sm_100a", "sm_120a"):
        assert f".target {name}" in double.lower(Spec((64,), kd.float32), target=name).ptx


def test_debug_prints_the_stages(capsys: pytest.CaptureFixture[str]) -> None:
    kernel = kd.kernel(
        lambda x, o: o.__setitem__(..., x[...]), out_type=Spec((4,), kd.float32), debug=True, interpret=INTERPRET
    )
    kernel(random((4,)))
    shown = capsys.readouterr().out
    assert "load(" in shown and ".version" in shown


def test_linear_tracing() -> None:
    """Twice the ops are twice the calls, body to PTX."""

    def chain(count: int) -> int:
        def body(x: Any, out: Any) -> None:
            v = x[...]
            for i in range(count):
                v = v * 1.5 + 0.25 if i % 2 else v - 0.5
            out[...] = v

        return calls(lambda: kd.kernel(body, out_type=Spec((256,), kd.float32)).lower(Spec((256,), kd.float32)).ptx)

    chain(2)  # imports are no part of it
    short, long = chain(200), chain(400)
    assert long <= 2.02 * short

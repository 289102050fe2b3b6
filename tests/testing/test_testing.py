"""The kit that users test their kernels with: what it lets pass, what it refuses and in which words."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernel_dsl as kd
from kernel_dsl import testing
from kernel_dsl.dtypes import BY_NAME
from kernel_dsl.testing import (
    arrays,
    assert_close,
    assert_overwritten,
    both_devices,  # noqa: F401 - a fixture
    dtypes,
    layouts,
    poisoned,
    shapes,
)
from tests.conftest import ROOT

FLOATS = [kd.float8_e4m3fn, kd.float8_e5m2, kd.float16, kd.bfloat16, kd.float32, kd.float64]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_step_passes_and_two_steps_do_not(dtype: Any) -> None:
    """Two units of roundoff are one step of the dtype just above 1."""
    step = 2.0 ** -ml_dtypes.finfo(dtype.numpy).nmant
    one = np.ones(5, dtype.numpy)
    assert_close((np.ones(5) + step).astype(dtype.numpy), one)
    with pytest.raises(
        AssertionError, match=r"1 of 5 elements differ; the worst is \[3\]: actual 1\.\d+, expected 1\.0"
    ):
        assert_close((np.ones(5) + np.array([0, 0, 0, 2 * step, 0])).astype(dtype.numpy), one)


def test_the_worst_is_named_by_its_own_bound() -> None:
    want = np.array([[1.0, 1000.0], [1e-3, 2.0]])
    got = (want + np.array([[0, 1.0], [1e-4, 0]])).astype(np.float32)
    with pytest.raises(AssertionError) as caught:
        assert_close(got, want)
    assert "2 of 4 elements differ; the worst is [1, 0]: actual 0.00109999" in str(caught.value)
    assert "bound 1.19e-10 (float32, factor 2, reduction_length 1, accumulator float32)" in str(caught.value)


@pytest.mark.parametrize("length", [7, 256, 4096])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32], ids=["float16", "bfloat16", "float32"])
def test_sums_one_after_another(dtype: Any, length: int) -> None:
    """Sums in float32 of random terms pass, and those with a term left out or added up in bfloat16 don't."""
    terms = np.random.default_rng(length).standard_normal((64, length)).astype(dtype)
    exact = terms.astype(np.float64).sum(1)
    total = np.cumsum(terms.astype(np.float32), axis=1)[:, -1]
    assert_close(total.astype(dtype), exact, reduction_length=length)
    assert_close(total.astype(dtype), exact, reduction_length=length, magnitude=np.abs(terms.astype(np.float64)).sum(1))
    with pytest.raises(AssertionError, match="elements differ"):
        assert_close((exact - terms[:, 0]).astype(dtype), exact, reduction_length=length)
    rough = np.cumsum(terms.astype(ml_dtypes.bfloat16), axis=1)[:, -1].astype(dtype)
    if length > 7:
        with pytest.raises(AssertionError, match="elements differ"):
            assert_close(rough, exact, reduction_length=length)
        assert_close(rough, exact, reduction_length=length, accumulator=kd.bfloat16)


def test_the_bound_grows_with_the_length() -> None:
    want = np.array([1.0, -1.0])
    got = want * (1 + 100 * 2.0**-24)
    assert_close(got.astype(np.float32), want, reduction_length=100)
    with pytest.raises(AssertionError):
        assert_close(got.astype(np.float32), want, reduction_length=10)
    with pytest.raises(AssertionError):  # by the square root where the magnitude is known
        assert_close(got.astype(np.float32), want, reduction_length=100, magnitude=1.0)


def test_what_is_not_finite() -> None:
    inf, nan = np.inf, np.nan
    assert_close(np.float32([inf, -inf, nan]), [inf, -inf, nan])
    assert_close(np.float16([inf, 65504]), [65519.0, 65519.0])  # what overflows is next to what does not
    for got, want in ((inf, -inf), (inf, 1.0), (1.0, inf), (nan, 1.0), (1.0, nan), (nan, inf)):
        with pytest.raises(AssertionError, match="1 of 2 elements differ"):
            assert_close(np.float32([0, got]), [0, want])


def test_numbers_that_are_equal_or_not() -> None:
    assert_close(np.int32([1, 2]), [1, 2])
    assert_close(np.uint64([2**64 - 1]), np.uint64([2**64 - 1]))
    with pytest.raises(AssertionError, match=r"the worst is \[0\]: actual 9007199254740993, expected 9007199254740992"):
        assert_close(np.int64([2**53 + 1]), np.int64([2**53]))
    with pytest.raises(AssertionError, match=r"the worst is \[1\]: actual True, expected False"):
        assert_close(np.array([True, True]), np.array([True, False]))
    assert_close(np.complex64([1 + 1j]), np.array([1 + 1j + 1e-8]))
    with pytest.raises(AssertionError):
        assert_close(np.complex64([1 + 1j]), np.array([1 + 1.001j]))
    assert_close(np.float32([1]), np.array([1 + 0j]))
    with pytest.raises(AssertionError, match=r"expected \(1\+5j\)"):  # an imaginary part that a kernel has dropped
        assert_close(np.float32([1]), np.array([1 + 5j]))


def test_a_dtype_that_is_stored_wider() -> None:
    got = np.float32([1 + 2.0**-8])
    assert_close(got, [1.0], dtype=kd.bfloat16)
    with pytest.raises(AssertionError):
        assert_close(got, [1.0])


@pytest.mark.parametrize(
    "wrong",
    [
        {"reduction_length": 0}, {"reduction_length": 1.5}, {"factor": -1}, {"factor": "2"}, {"dtype": "float7"},
        {"accumulator": object}, {"accumulator": kd.int32}, {"factor": float("inf")}, {"magnitude": -1.0}, {"magnitude": np.ones(3)}, {"magnitude": float("nan")},
    ],
    ids=str,
)  # fmt: skip
def test_arguments_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(kd.Error, match=next(iter(wrong))):
        assert_close(np.ones(2, np.float32), np.ones(2), **wrong)


def test_shapes_must_be_the_same() -> None:
    with pytest.raises(AssertionError, match=r"\(2, 1\) of actual, \(2,\) of expected"):
        assert_close(np.ones((2, 1), np.float32), np.ones(2))


@pytest.mark.parametrize("framework", ["torch", "jax.numpy"])
def test_arrays_of_frameworks(framework: str) -> None:
    lib = pytest.importorskip(framework)
    x = lib.ones((2, 3), dtype=lib.bfloat16)
    assert_close(x, np.ones((2, 3)) + 2.0**-8)
    with pytest.raises(AssertionError, match=r"6 of 6 .*bfloat16"):
        assert_close(x, np.ones((2, 3)) + 2.0**-6)
    assert_close(np.complex64([1j]), lib.asarray([1j], dtype=lib.complex128))


@pytest.mark.parametrize("dtype", BY_NAME.values(), ids=str)
def test_poison_is_found_until_it_is_overwritten(dtype: Any) -> None:
    x = poisoned((3, 5), dtype)
    assert x.shape == (3, 5) and x.dtype == dtype.numpy
    assert not dtype.is_float or np.isnan(x.astype(np.float64)).all()
    x[...] = np.ones((), dtype.numpy)
    assert_overwritten(x)
    x[2, 1:] = poisoned(4, dtype)
    with pytest.raises(AssertionError, match=r"4 of 15 elements were never written; the first is \[2, 1\]"):
        assert_overwritten(x)
    assert_overwritten(x[:2])
    assert_overwritten(poisoned((0, 4), dtype))
    if dtype.is_float and dtype is not kd.float8_e4m3fn:
        assert_overwritten(np.full(3, np.nan).astype(dtype.numpy))


def test_poison_of_what_is_no_shape() -> None:
    with pytest.raises(kd.Error, match="shape"):
        poisoned((3, -1), kd.int8)


@given(shapes(min_rank=1, max_rank=3, min_side=2, max_side=9, max_size=100))
def test_shapes_keep_their_bounds(shape: tuple[int, ...]) -> None:
    assert 1 <= len(shape) <= 3 and all(2 <= n <= 9 for n in shape) and np.prod(shape) <= 100


@given(shapes(min_rank=2, max_rank=3, min_side=0, max_size=0))
@settings(max_examples=5)
def test_shapes_without_elements(shape: tuple[int, ...]) -> None:
    assert len(shape) in (2, 3) and 0 in shape


def test_bounds_without_a_shape() -> None:
    for name in ("max_side", "max_size"):
        with pytest.raises(kd.Error, match=f"{name}='x'"):
            shapes(**{name: "x"})
    for wrong in (
        {"min_rank": 3, "max_rank": 2},
        {"min_side": 5, "max_side": 4},
        {"min_rank": 2, "min_side": 9, "max_size": 80},
    ):
        with pytest.raises(kd.Error, match="bounds that allow at least one shape"):
            shapes(**wrong)
    with pytest.raises(kd.Error, match="one of bool, int"):
        dtypes("text")


@given(st.data())
def test_dtypes_are_of_their_kinds(data: Any) -> None:
    assert data.draw(dtypes("int", "bool")).numpy.kind in "ib"
    assert data.draw(dtypes()) is not kd.complex64
    assert data.draw(dtypes("complex")) is kd.complex64


@given(st.data())
def test_layouts_cover_their_shape(data: Any) -> None:
    """Each element is in some register of some lane, and all lie within the shape."""
    shape = data.draw(shapes(max_rank=3, max_side=24, max_size=512))
    layout = data.draw(layouts(shape))
    layout.check()
    assert layout.padded == shape
    held = {
        tuple(a + b for a, b in zip(layout.thread_coords(thread), register, strict=True))
        for thread in range(128)
        for register in layout.register_coords
    }
    assert held == set(np.ndindex(*shape))


@settings(max_examples=6)
@given(st.data())
def test_kernels_take_the_layouts(data: Any) -> None:
    shape = data.draw(shapes(min_rank=1, max_rank=2, max_side=16))
    layout = data.draw(layouts(shape))

    @kd.kernel(out_type=kd.ShapeDtypeStruct(shape, kd.int32))
    def spread(x: Any, out: Any) -> None:
        out[...] = kd.layout_cast(x[...], layout) + 1

    x = data.draw(arrays(kd.int32, shape))
    assert_close(spread(x), x + np.int32(1))


@pytest.mark.parametrize("dtype", [kd.int4, kd.uint4, kd.float4_e2m1fn, kd.float8_e8m0fnu])
def test_arrays_of_what_is_only_stored(dtype: Any) -> None:
    """All their numbers come up, and no NaN."""
    drawn = _drawn(arrays(dtype, (1000,)))
    assert drawn.dtype == dtype.numpy
    values = drawn.astype(np.float64)
    assert np.isfinite(values).all() and len(set(values.tolist())) >= (200 if dtype.bits == 8 else 15)


def _drawn(strategy: Any) -> Any:
    found: list[Any] = []

    @settings(max_examples=1, database=None)
    @given(x=strategy)
    def keep(x: Any) -> None:
        found.append(x)

    keep()
    return found[0]


def test_bad_input_of_strategies_is_told_where_they_are_made() -> None:
    for make, words in (
        (lambda: arrays((4,), kd.float32), "dtype="),
        (lambda: arrays(kd.float32, (-1,)), "shape=-1"),
        (lambda: arrays(kd.float32, "ab"), "shape='a'"),
        (lambda: layouts(shapes()), "shape="),
        (lambda: assert_overwritten([1, 2]), "a NumPy array"),
    ):
        with pytest.raises(kd.Error) as error:
            make()
        assert words in str(error.value) and "test_testing.py" in str(error.value)


def test_layouts_are_shown_in_a_process_that_has_seen_none() -> None:
    code = (
        "from hypothesis import find; from kernel_dsl.testing import layouts; "
        "print(repr(find(layouts((3, 4)), lambda layout: True)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Layout" in shown.stdout and not shown.returncode, shown.stderr


@given(st.data())
def test_arrays_are_what_was_asked_for(data: Any) -> None:
    dtype, shape = data.draw(dtypes()), data.draw(shapes(min_side=0, max_size=64))
    x = data.draw(arrays(dtype, shape))
    assert x.dtype == dtype.numpy and x.shape == shape
    assert dtype.is_integer or dtype.is_bool or np.isfinite(x.astype(np.float64)).all()
    y = data.draw(arrays(dtypes("float"), shapes(max_size=8), finite=False))
    assert y.size <= 8


@kd.kernel(out_type=kd.ShapeDtypeStruct((32,), kd.float32))
def double(x: Any, out: Any) -> None:
    out[...] = x[...] * 2


def test_on_each_device(both_devices: str) -> None:  # noqa: F811 - a fixture
    assert both_devices in ("interpreter", "gpu")
    x = np.arange(32, dtype=np.float32)
    out = poisoned(32, kd.float32)
    double(x, out=out)
    assert_overwritten(out)
    assert_close(out, x * 2.0)


SUITE = """
from kernel_dsl.runtime.devices.devices import pick_device
from kernel_dsl.testing import both_devices

def test_where(both_devices):
    assert ("Interpreter" in type(pick_device(None)).__name__) == (both_devices == "interpreter")
"""


def test_a_suite_of_the_users(tmp_path: Path) -> None:
    """Without a GPU half of the tests are skipped with the reason; no marker is unknown."""
    (tmp_path / "test_mine.py").write_text(SUITE)
    command = [
        sys.executable,
        "-m",
        "pytest",
        *(() if entry_points(group="pytest11", name="kernel_dsl") else ("-p", "kernel_dsl.pytest_plugin")),  # once
        "-p",
        "no:cacheprovider",
        "-rs",
        "--strict-markers",
        ".",
    ]
    kept = {name: x for name, x in os.environ.items() if name == "PYTHONPYCACHEPREFIX"}
    env = {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "-1", "PATH": "/usr/bin", **kept}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert "1 passed, 1 skipped" in done.stdout and "no GPU: " in done.stdout, done.stdout + done.stderr


def test_pytest_and_hypothesis_come_late() -> None:
    code = "import sys, kernel_dsl.testing; print([m for m in ('pytest', 'hypothesis', 'kernel_dsl.runtime') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    with pytest.raises(AttributeError, match="no attribute 'fixture'"):
        _ = testing.fixture
    assert kd.testing is testing

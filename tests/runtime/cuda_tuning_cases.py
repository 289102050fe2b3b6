"""What measures tuned kernels, on a driver without a GPU: device memory is host memory, an event's time is a millisecond."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import pytest

if not os.environ.get("KERNEL_DSL_FAKE_CUDA"):
    pytest.skip("needs the driver of test_fake_cuda.py", allow_module_level=True)

import kernel_dsl as kd
from kernel_dsl import loading, tuned
from kernel_dsl.library.products.operands import TurnedStruct
from kernel_dsl.runtime.arrays.array_view import frameworks, view
from kernel_dsl.runtime.devices import memory
from kernel_dsl.runtime.devices.devices import cuda_device, interpreter_device
from kernel_dsl.runtime.measure import samples as measuring

from .fake import LAUNCHES, count, player

__all__ = ["player"]  # a fixture


@pytest.fixture
def bench() -> Any:
    made = measuring.bench_of(cuda_device())
    assert made is not None and measuring.bench_of(interpreter_device()) is None
    return made


def held(array: Any) -> Any:
    """The elements of an array in 'device' memory."""
    return memory.host_array(view(array))


def test_ints_are_the_call_s_and_floats_are_not(bench: Any) -> None:
    ints = np.arange(60, dtype=np.int32).reshape(6, 10)
    base = np.zeros(700, np.float32)
    odd = base[1:651].reshape(65, 10)[::-2, ::3]  # from the end, with gaps, at an address of its own
    for given in (ints, ints.T, ints[::2, ::3], ints[::-1], np.array(True), np.zeros((0, 3), np.int8)):
        (made,) = bench.inputs([given])
        np.testing.assert_array_equal(held(made), given)
        assert made.strides == given.strides or not given.size
        assert view(made).contiguous == view(given).contiguous
    (made,) = bench.inputs([odd])
    assert view(made).address % 16 == odd.ctypes.data % 16 and made.strides == odd.strides
    values = held(made)
    assert values.shape == odd.shape and len(np.unique(values)) == values.size and abs(values.mean()) < 0.5
    assert not base.any(), "the call's arrays are left alone"
    assert bench.inputs([3, 2.5, np.float32(1)]) == [3, 2.5, np.float32(1)]


@pytest.mark.parametrize(
    "dtype", [kd.bfloat16, kd.float8_e4m3fn, kd.float64, kd.complex64, kd.int8, kd.bool_, kd.int32]
)
def test_structs(bench: Any, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "PERIOD", 101)
    (made,) = bench.inputs([kd.ShapeDtypeStruct((50, 30), dtype)])
    values = held(made)
    assert made.dtype == dtype and values.shape == (50, 30)
    if dtype == kd.int32:
        assert not values.any()
    else:
        flat = values.reshape(-1)
        assert (
            len(np.unique(flat[:101])) > 1
            and flat[:101].tobytes() == flat[101:202].tobytes() == flat[1313:1414].tobytes()
        )
    (turned,) = bench.inputs([TurnedStruct(kd.ShapeDtypeStruct((50, 30), dtype))])
    assert turned.shape == (30, 50) and turned.strides == (dtype.itemsize, 30 * dtype.itemsize)
    assert turned.T.strides == (30 * dtype.itemsize, dtype.itemsize) and view(turned.T).contiguous
    assert turned.swapaxes(-1, -2).shape == (50, 30)
    assert made.reshape(-1, 10).shape == (150, 10)


def test_poison_and_samples_of_results(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    out = frameworks("generic").empty((40, 50), kd.bfloat16, ("cuda", 0), 0)
    bench.poison([out])
    assert np.isnan(held(out).astype(np.float32)).all()
    held(out)[...] = np.arange(2000).reshape(40, 50)
    np.testing.assert_array_equal(bench.host(out), held(out).reshape(-1))
    monkeypatch.setattr(measuring, "COMPARED", 1600)
    monkeypatch.setattr(measuring, "RUN", 100)
    got, whole = bench.host(out), held(out).reshape(-1)
    assert got.shape == (1600,) and (got[:100] == whole[:100]).all() and (got[-100:] == whole[-100:]).all()


def test_a_sample_clears_l2_and_times_one_run(bench: Any) -> None:
    runs: list[int] = []
    assert bench.sample(lambda: runs.append(1)) == pytest.approx(1e-3)
    assert len(runs) == 1, "it is timed where the GPU did not wait for the host"
    assert bench.clock() < bench.clock() + 1


def test_a_kernel_is_tuned(bench: Any, player: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """The whole way, but that the launches compute nothing: results are all poison, and so agree."""
    from dataclasses import dataclass

    own = tuned.TunedResults(tmp_path / "tuned.jsonl")
    monkeypatch.setattr(tuned, "tuned_results", lambda: own)

    @dataclass(frozen=True)
    class Rows:
        rows: int

    @kd.tune([Rows(8), Rows(16)], seconds=0.01)
    def double(config: Rows) -> kd.Kernel:
        @kd.kernel(
            out_type=lambda x, n: kd.ShapeDtypeStruct(x.shape, x.dtype),
            grid=lambda x, n: (kd.cdiv(x.shape[0], config.rows),),
        )
        def body(x: Any, n: Any, out: Any) -> None:
            here = kd.ds(kd.program_id(0) * config.rows, config.rows)
            out[here] = x[here] * n

        return body

    if not measuring.assembles_apart():
        pytest.skip("needs ptxas")
    x = np.zeros((32, 8), kd.bfloat16.numpy)
    before = count(LAUNCHES)
    made = double.tune(x, 3)
    assert (made.how, made.gpu) == ("measured", cuda_device().name) and not any(row.dropped for row in made.rows)
    assert all(math.isclose(row.seconds or 0, 1e-3, rel_tol=1e-3) for row in made.rows)
    each = made.rows[0].samples
    assert count(LAUNCHES) - before == 2 * (2 + 2 + each)
    assert len((tmp_path / "tuned.jsonl").read_text().splitlines()) == 3
    double(x, 3)
    assert double.tune(x, 3) is made


def test_what_was_compiled_ahead_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child keeps a kernel of the library by its text; a call knows it by its identity."""
    if not measuring.assembles_apart():
        pytest.skip("needs ptxas")
    stages = kd.kernel(lambda x, out: out.__setitem__(..., x[...] * 3), out_type=lambda x: x).lower(
        kd.ShapeDtypeStruct((8,), kd.float32)
    )
    made = loading.machine_code(stages)
    monkeypatch.setattr(type(stages), "assembled_for_any", lambda self: pytest.fail("assembled again"))
    loaded = loading.load_identified("tripled", lambda: stages, stages.target.name, stages.params, cuda_device())
    assert loaded.plan.name == made.kernel.name

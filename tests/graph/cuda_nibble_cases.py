"""Arrays of 4-bit elements in graphs and in `bind`, on a driver without a GPU: the programs of test_nibbles.py."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.packed import on_host
from kernel_dsl.runtime.devices.cuda_device import CudaDevice

from .cuda_played import LAUNCHES, PLAYED, DeviceArray
from .nibble_programs import ADD, DTYPES, SHAPE, numbers, same, sums
from .test_nibbles import (
    test_a_graph_in_a_graph,
    test_bind,
    test_out_and_copies,
    test_replays_give_what_calls_give,
)

__all__ = [
    "test_a_graph_in_a_graph",
    "test_bind",
    "test_out_and_copies",
    "test_replays_give_what_calls_give",
]


@pytest.fixture(autouse=True)
def text_instead_of_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """This driver reads the parameters of PTX alone."""
    load = CudaDevice.load
    monkeypatch.setattr(
        CudaDevice, "load", lambda device, made: load(device, replace(made, cubin=made.kernel.ptx.encode()))
    )


def _memory(pointer: bytes, nbytes: int) -> Any:
    raw: Any = (ctypes.c_char * nbytes).from_address(int.from_bytes(pointer, "little"))
    return np.frombuffer(raw, np.uint8)


def _elements(pointer: bytes, dtype: kd.DType) -> Any:
    data = _memory(pointer, SHAPE[0] * SHAPE[1] // 2)
    return np.stack([data & 15, data >> 4], -1).reshape(SHAPE).view(dtype.numpy)


class _Add:
    def __init__(self, dtype: kd.DType) -> None:
        self.dtype = dtype

    def play(self, _: Any, params: list[bytes]) -> None:
        x, y = (_elements(p, self.dtype) for p in params[:2])
        codes = sums(x, y).view(np.uint8).reshape(-1, 2) & 15
        _memory(params[2], len(codes))[...] = codes[:, 0] | codes[:, 1] << 4


class _Widened(_Add):
    def play(self, _: Any, params: list[bytes]) -> None:
        wide = _elements(params[0], self.dtype).astype(np.float32) * 2
        _memory(params[1], wide.nbytes).view(np.float32)[...] = wide.reshape(-1)


for _dtype in DTYPES:
    _players: tuple[Any, Any] = _Add(_dtype), _Widened(_dtype)
    PLAYED[f"nibble_add_{_dtype}"], PLAYED[f"nibble_widened_{_dtype}"] = ((p, None) for p in _players)


def test_the_gpu_runs_them() -> None:
    x, y, before = numbers(kd.int4, 0), numbers(kd.int4, 1), len(LAUNCHES)
    with kd.Graph() as g:
        ADD[kd.int4](x, y)
    same(g(), sums(x, y))
    assert len(LAUNCHES) == before + 1
    with pytest.raises(kd.Error, match="not on the device of the graph"):  # as of any array of the host
        g.set_params(0, [y, None, None])
    same(g(), sums(x, y))


def test_results_beside_arrays_of_a_gpu() -> None:
    """No framework of a GPU has such elements: the error says what to do instead."""

    def body(x: Any, out: Any) -> None:
        out[...] = x.bitcast(kd.int4)[...]

    kernel = kd.kernel(body, out_type=kd.ShapeDtypeStruct(SHAPE, kd.int4), name="nibble_bytes")
    nothing: Any = type("Nothing", (), {"play": lambda *_: None})()
    PLAYED["nibble_bytes"] = nothing, None
    x = type("Bytes", (DeviceArray,), {"dtype": np.dtype(np.uint8)})(np.zeros((SHAPE[0], SHAPE[1] // 2), np.uint8))
    with pytest.raises(kd.Error, match="a graph of JAX's arrays, or a GPU's"), kd.Graph():
        kernel(x)

    class Unreadable:  # as torch's tensors of a GPU are, and CuPy's arrays
        def __array__(self, *_: Any) -> Any:
            raise TypeError

    for result in (Unreadable(), object()):
        with pytest.raises(kd.Error, match="a call on arrays of a GPU"):
            on_host(result, "kernel")

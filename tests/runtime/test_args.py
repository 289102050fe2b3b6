"""Parameter packing and the checks before a launch."""

from __future__ import annotations

import dataclasses
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kernel_dsl import dtypes
from kernel_dsl.compiled import (
    CompiledKernel,
    PointerParam,
    ScalarParam,
    ShapeParam,
    StrideParam,
    TensorMapParam,
)
from kernel_dsl.dtypes import float32
from kernel_dsl.launch_plan import plan_of
from kernel_dsl.runtime.arrays.array_view import view
from kernel_dsl.runtime.devices.params import ParamLayout, scalar_bytes
from kernel_dsl.runtime.errors import ArgumentTypeError, ArgumentValueError
from kernel_dsl.runtime.plan.checks import check_arrays as check_plan

from .kernels import scale


def check_arrays(kernel: CompiledKernel, arrays: Any) -> None:
    check_plan(plan_of(kernel), arrays)


def test_layout_follows_the_ptx_alignment_rules() -> None:
    params = (
        ScalarParam(0, dtypes.bool_),
        ScalarParam(1, dtypes.float32),
        PointerParam(0),
        ScalarParam(2, dtypes.int16),
        TensorMapParam(0, float32, (8,)),
        ScalarParam(0, dtypes.int8),
        ShapeParam(0, 1),
        StrideParam(0, 0),
    )
    layout = ParamLayout(params)
    assert layout.offsets == [0, 4, 8, 16, 64, 192, 200, 208]
    assert layout.sizes == [1, 4, 8, 2, 128, 1, 8, 8]
    array = np.zeros((3, 5), np.float32)
    blob = bytes(range(128))
    values = layout.values([view(array[:, ::-1])], [True, 1.5, -2], lambda param, seen: blob)
    parts = layout.split(values)
    assert parts[0] == b"\x01" and parts[1] == struct.pack("<f", 1.5)
    assert int.from_bytes(parts[2], "little") == array.ctypes.data + 16
    assert parts[3] == struct.pack("<h", -2) and parts[4] == blob
    assert [int.from_bytes(p, "little", signed=True) for p in parts[6:]] == [5, 5]
    buffer = bytearray(layout.nbytes)
    layout.pack(buffer, 0, *values)
    assert buffer[192:193] == b"\x01" and buffer[64:192] == blob


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_scalars_of_every_dtype(dtype: Any) -> None:
    assert scalar_bytes(np.ones((), dtype.numpy)[()], dtype) == np.ones(1, dtype.numpy).tobytes()
    assert scalar_bytes(b"\x07" * dtype.itemsize, dtype) == b"\x07" * dtype.itemsize
    if not dtype.is_bool:
        assert scalar_bytes(2, dtype) == np.full(1, 2, dtype.numpy).tobytes()


def test_scalars_that_do_not_fit() -> None:
    assert scalar_bytes(2**31 - 1, dtypes.int32) == b"\xff\xff\xff\x7f"
    with pytest.raises(ArgumentValueError, match=r"np\.int64\(2147483648\)"):
        scalar_bytes(2**31, dtypes.int32)
    with pytest.raises(ArgumentValueError, match=r"np\.uint64"):
        scalar_bytes(2**63, dtypes.int64)
    with pytest.raises(ArgumentTypeError, match="not a scalar"):
        scalar_bytes("x", dtypes.float32)
    with pytest.raises(ArgumentValueError, match="4 bytes"):
        scalar_bytes(b"123", dtypes.float32)
    assert scalar_bytes(1e300, dtypes.float32) == np.float32(np.inf).tobytes()
    assert scalar_bytes(0.3, dtypes.bfloat16) == ml_dtypes.bfloat16(0.3).tobytes()


def _views(*arrays: Any) -> list[Any]:
    return [view(a) for a in arrays]


def test_shape_dtype_and_layout_are_checked() -> None:
    kernel = scale(alignment=16)
    x = np.zeros(32, np.float32)
    out = np.zeros(32, np.float32)
    base = np.zeros(256, np.float32)
    skew = (-base.ctypes.data // 4) % 4 + 1
    cases = [
        (_views(x.astype(np.float64), out), r"'x_ref'.*must hold float32.*float64.*kernels.py:12"),
        (_views(x[:31], out), r"shape \(32,\), and has \(31,\)"),
        (_views(base[::2][:32], out), "row-major"),
        (_views(x, base[skew : skew + 32]), "'o_ref'.*16-byte aligned"),
    ]
    for views, words in cases:
        with pytest.raises(ArgumentValueError, match=words):
            check_arrays(kernel, views)
    frozen = np.zeros(32, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ArgumentValueError, match="read-only"):
        check_arrays(kernel, _views(x, frozen))
    with pytest.raises(ArgumentTypeError, match="got 1 arrays"):
        check_arrays(kernel, _views(x))
    loose = scale(contiguous=False)
    with pytest.raises(ArgumentValueError, match="several of its elements share memory"):
        loose_out = np.lib.stride_tricks.as_strided(out, (32,), (0,))
        check_arrays(loose, _views(x, loose_out))
    check_arrays(loose, _views(np.broadcast_to(x[:1], (32,)), out))


def test_overlap_rules() -> None:
    base = np.zeros(64, np.float32)
    x, shifted = base[:32], base[8:40]
    plain = scale()
    for pair in ((x, shifted), (x, x)):
        with pytest.raises(ArgumentValueError, match="memory"):
            check_arrays(plain, _views(*pair))
    check_arrays(scale(overlaps=((0, 1),)), _views(x, x))
    check_arrays(scale(alias=0), _views(x, x))
    with pytest.raises(ArgumentValueError, match="the very same array"):
        check_arrays(scale(overlaps=((0, 1),)), _views(x, shifted))


def test_overlapping_inputs_are_fine_unless_written() -> None:
    one = scale()
    two = dataclasses.replace(one, arrays=(one.arrays[0], one.arrays[0], one.arrays[1]), inputs=2)
    base, out = np.zeros(64, np.float32), np.zeros(32, np.float32)
    check_arrays(two, _views(base[:32], base[8:40], out))
    written = dataclasses.replace(one.arrays[0], written=True)
    three = dataclasses.replace(two, arrays=(written, *two.arrays[1:]))
    with pytest.raises(ArgumentValueError, match="not compiled for"):
        check_arrays(three, _views(base[:32], base[8:40], out))
    check_arrays(dataclasses.replace(three, overlaps=((0, 1),)), _views(base[:32], base[8:40], out))


def test_what_is_told_is_transitive() -> None:
    one = scale()
    two = dataclasses.replace(
        one,
        arrays=tuple(dataclasses.replace(one.arrays[0], written=True) for _ in range(3)),
        inputs=2,
        overlaps=((0, 2), (1, 2)),
    )
    x = np.zeros(32, np.float32)
    check_arrays(two, _views(x, x, x))
    with pytest.raises(ArgumentValueError, match="not compiled for"):
        check_arrays(dataclasses.replace(two, overlaps=((0, 2),)), _views(x, x, x))


def test_outputs_may_not_share_memory() -> None:
    one = scale()
    two = dataclasses.replace(one, arrays=(*one.arrays, one.arrays[1]), outputs=(*one.outputs, *one.outputs))
    x, out = np.zeros(32, np.float32), np.zeros(64, np.float32)
    check_arrays(two, _views(x, out[:32], out[32:]))
    with pytest.raises(ArgumentValueError, match="each output needs its own"):
        check_arrays(two, _views(x, out[:32], out[:32]))

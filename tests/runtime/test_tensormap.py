"""The rules of TMA descriptors, checked before the driver sees them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernel_dsl import dtypes
from kernel_dsl.compiled import OobFill, Swizzle, TensorMapParam
from kernel_dsl.dtypes import float16, float32
from kernel_dsl.runtime.arrays.array_view import ArrayView, row_major
from kernel_dsl.runtime.devices.memory import alike
from kernel_dsl.runtime.devices.tensormap import plan, refusal
from kernel_dsl.runtime.errors import ArgumentValueError


def array(shape: tuple[int, ...], strides: Any = None, dtype: Any = float32, address: int = 4096) -> Any:
    return ArrayView(address, shape, strides or row_major(shape), dtype, ("cuda", 0), "torch")


def test_dimensions_are_innermost_first() -> None:
    made = plan(TensorMapParam(0, float32, (2, 8, 32)), array((4, 64, 128)))
    assert made is not None
    assert (made.extents, made.strides, made.box) == ((128, 64, 4), (512, 32768), (32, 8, 2))


def test_axes_and_splits() -> None:
    param = TensorMapParam(0, float16, (1, 1, 64, 64), Swizzle.B128, axes=(1, 0, 2), split=((2, 64),))
    made = plan(param, array((16, 32, 256), dtype=float16))
    assert made is not None
    assert made.extents == (64, 4, 16, 32)
    assert made.strides == (128, 32 * 256 * 2, 512)
    assert made.box == (64, 64, 1, 1)


def test_a_window_is_the_tensor() -> None:
    """A part of the array: it starts there, and has its extents; strides stay."""
    made = plan(TensorMapParam(0, float32, (4, 32), window=((0, 3, 20), (1, 8, 100))), array((64, 128)))
    assert made is not None
    assert made.address == 4096 + 4 * (3 * 128 + 8)
    assert (made.extents, made.strides) == ((92, 17), (512,))
    moved = plan(TensorMapParam(0, float32, (1, 32), axes=(1, 0), window=((1, 5, 9),)), array((64, 128), (1, 256)))
    assert moved is not None and moved.address == 4096 + 4 * 5 * 256 and moved.extents == (64, 4)


def test_unused_strides_are_replaced() -> None:
    made = plan(TensorMapParam(0, float32, (1, 1, 4)), array((1, 1, 6), (7, 3, 1)))
    assert made is not None and made.strides == (32, 32)


@pytest.mark.parametrize("seed", range(200))
def test_a_copy_lies_where_tma_can_address_it(seed: int) -> None:
    """What TMA can address as it lies, it can address in the copy that other memory gets."""
    rng = np.random.default_rng(seed)
    dtype = (float32, float16, dtypes.int8, dtypes.float64)[seed % 4]
    rank = int(rng.integers(1, 5))
    shape = tuple(int(n) for n in rng.choice([1, 2, 3, 5, 12, 17], rank))
    order = rng.permutation(rank)
    strides, reach = [0] * rank, 1
    for axis in order:
        strides[axis] = (
            reach if rng.random() < 0.3 or reach == 1 else -(-reach * dtype.itemsize // 16) * 16 // dtype.itemsize
        )
        strides[axis] *= int(rng.random() > 0.1)
        reach = max(reach, strides[axis] * shape[axis] + int(rng.integers(0, 40)))
    source = array(shape, tuple(strides), dtype)
    box = (*(1,) * (rank - 1), 16 // dtype.itemsize)
    axes = tuple(int(axis) for axis in order[::-1])
    layout = alike(source)
    copy = layout.at(0, source, ("cuda", 0), None)
    assert copy.span()[1] == layout.count * dtype.itemsize and not copy.overlaps_itself
    places = sum(
        np.arange(n).reshape(n, *[1] * (rank - 1 - i)) * s
        for i, (n, s) in enumerate(zip(shape, copy.strides, strict=True))
    )
    assert len(np.unique(places)) == source.size
    taken = refusal(TensorMapParam(0, dtype, box, axes=axes), source) is None
    assert not taken or refusal(TensorMapParam(0, dtype, box, axes=axes), copy) is None


def test_no_elements_no_descriptor() -> None:
    assert plan(TensorMapParam(0, float32, (1, 4)), array((0, 8))) is None


@pytest.mark.parametrize(
    ("param", "view", "words"),
    [
        (TensorMapParam(0, float32, (4,)), array((8,), address=4100), "16 bytes"),
        (TensorMapParam(0, float32, (1, 4)), array((4, 8), (8, 2)), "stride 1"),
        (TensorMapParam(0, float32, (1, 4)), array((4, 6)), "24 bytes.*Pad the row"),
        (TensorMapParam(0, float32, (1, 4)), array((4, 8), (-8, 1)), "non-negative"),
        (TensorMapParam(0, float32, (1, 3)), array((4, 8)), "12 bytes"),
        (TensorMapParam(0, float32, (512, 4)), array((1024, 8)), "outside 1 to 256"),
        (TensorMapParam(0, float32, (4,)), array((4, 8)), "1 extents for 2 dimensions"),
        (TensorMapParam(0, float32, (8, 64), Swizzle.B128), array((64, 64)), "span of 128"),
        (TensorMapParam(0, float32, (1,) * 5 + (4,)), array((2,) * 5 + (8,)), "6 dimensions"),
        (TensorMapParam(0, float32, ()), array(()), "0 dimensions"),
        (TensorMapParam(0, float32, (1, 1, 4), split=((1, 3),)), array((4, 8)), "does not split"),
        (
            TensorMapParam(0, float32, (1, 4), window=((0, 0, 5),)),
            array((4, 8)),
            "elements 0 to 5 of axis 0 of extent 4",
        ),
        (TensorMapParam(0, float32, (1, 4), window=((1, 2, 8),)), array((4, 8)), "0x1008 is not a multiple of 16"),
        (
            TensorMapParam(0, dtypes.int32, (4,), oob_fill=OobFill.NAN),
            array((8,), dtype=dtypes.int32),
            "NaN",
        ),
        (TensorMapParam(0, dtypes.uint8, (16,)), array((2**33,), dtype=dtypes.uint8), "2\\*\\*32"),
        (
            TensorMapParam(0, float32, (1, 4)),
            array((2, 8), (2**40, 1)),
            "below 2\\*\\*40",
        ),
    ],
)
def test_what_tma_cannot_address(param: Any, view: Any, words: str) -> None:
    with pytest.raises(ArgumentValueError, match=f"(?s)the matrix cannot be copied by TMA.*{words}"):
        plan(param, view, "the matrix")


def test_zero_strides_are_passed_on() -> None:
    made = plan(TensorMapParam(0, float32, (1, 4)), array((16, 8), (0, 1)))
    assert made is not None and made.strides == (0,)
    assert np.prod(made.extents) == 128

"""What a repeated call of the library costs the host beside its kernels' own calls: a count, so that no clock decides."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.definition import output_structs
from kernel_dsl.dtypes import as_dtype
from kernel_dsl.kernel import Kernel
from kernel_dsl.tree import unflatten

MOST = 250  # Python calls; a fast path takes some 30, and the 130 of a convolution take 35 us

bf16 = kd.bfloat16.numpy
square, wide = np.zeros((4096, 4096), bf16), np.zeros((4096, 4096), np.float32)
sizes = np.array([4000, 96], np.int32)
stacked = np.zeros((2, 4096, 4096), bf16)
heads, lse = np.zeros((1, 16, 4096, 128), bf16), np.zeros((1, 16, 4096), np.float32)
images, filters = np.zeros((64, 56, 56, 256), bf16), np.zeros((256, 3, 3, 256), bf16)
library = kd.library

CALLS: dict[str, Callable[[], Any]] = {
    "matmul": lambda: library.matmul(square, square),
    "matmul exact": lambda: library.matmul(wide, wide),
    "matmul bias": lambda: library.matmul(square, square, bias=wide[0]),
    "matmul odd": lambda: library.matmul(square[:333, :999], square[:999, :777]),
    "grouped_matmul": lambda: library.grouped_matmul(square, stacked, sizes),
    "grouped_matmul_wgrad": lambda: library.grouped_matmul_wgrad(square, square, sizes),
    "linear_cross_entropy": lambda: library.linear_cross_entropy(square, square, np.arange(4096)),
    "attention": lambda: library.attention(heads, heads, heads),
    "attention options": lambda: library.attention(heads, heads, heads, causal=True, window=256, softcap=30.0),
    "attention_backward": lambda: library.attention_backward(heads, heads, heads, heads, heads, lse),
    "decode_attention": lambda: library.decode_attention(heads[:, :, :1].copy(), heads, heads, sizes[:1]),
    "conv2d": lambda: library.conv2d(images, filters, padding=1),
    "conv2d_dgrad": lambda: library.conv2d_dgrad(images, filters, images.shape, padding=1),
    "conv2d_wgrad": lambda: library.conv2d_wgrad(images, images, 3, padding=1),
}


def empty_results(kernel: Kernel, *args: Any) -> Any:
    """What the kernel would return, with nothing in it."""
    structs = [kd.ShapeDtypeStruct(x.shape, as_dtype(x.dtype)) for x in args]
    outs, structure = output_structs(kernel._definition, tuple(structs))
    return unflatten(structure, [np.empty(o.shape, o.dtype.numpy) for o in outs])


@pytest.mark.parametrize("name", CALLS)
def test_repeated_calls(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[int, Any] = {}  # results by kernel, so that making them is not counted

    def call(kernel: Kernel, *args: Any, **how: Any) -> Any:
        if id(kernel) not in made:
            made[id(kernel)] = empty_results(kernel, *args)
        return made[id(kernel)]

    monkeypatch.setattr(Kernel, "__call__", call)
    for _ in range(2):
        CALLS[name]()
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        CALLS[name]()
    finally:
        sys.setprofile(None)
    assert made and count <= MOST, f"{count} Python calls in a repeated call"

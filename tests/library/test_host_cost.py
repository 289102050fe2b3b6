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
from kernel_dsl.library import latest
from kernel_dsl.library.convolutions.conv2d import LATEST
from kernel_dsl.tree import unflatten

MOST = 250  # Python calls of a slow path; 130 take 35 us

bf16 = kd.bfloat16.numpy
square, wide = np.zeros((4096, 4096), bf16), np.zeros((4096, 4096), np.float32)
sizes = np.array([4000, 96], np.int32)
stacked, whole = np.zeros((2, 4096, 4096), bf16), np.zeros((256, 256), np.int8)
few, numbers = np.zeros((16, 4096), bf16), np.arange(4096, dtype=np.int32)
packed = kd.library.PackedInt4(np.zeros((4096, 2048), np.int8), wide[:32], None, (4096, 4096), 128)
heads, lse = np.zeros((1, 16, 4096, 128), bf16), np.zeros((1, 16, 4096), np.float32)
images, filters = np.zeros((64, 56, 56, 256), bf16), np.zeros((256, 3, 3, 256), bf16)
library = kd.library

CALLS: dict[str, Callable[[], Any]] = {
    "matmul": lambda: library.matmul(square, square),
    "matmul exact": lambda: library.matmul(wide, wide),
    "matmul bias": lambda: library.matmul(square, square, bias=wide[0]),
    "matmul odd": lambda: library.matmul(square[:333, :999], square[:999, :777]),
    "matmul packed": lambda: library.matmul(whole, whole),
    "matmul deep": lambda: library.matmul(square[:256], square[:, :256]),
    "matmul batch": lambda: library.matmul(stacked, square, c=stacked, scale=2.0),
    "matmul gated": lambda: library.matmul(square, (square, square), gated="swiglu"),
    "matmul int4": lambda: library.matmul(few, packed),
    "grouped_matmul": lambda: library.grouped_matmul(square, stacked, sizes),
    "grouped_matmul rows": lambda: library.grouped_matmul(
        square, (stacked, stacked), sizes, indices=numbers, scatter=numbers, gated="swiglu"
    ),
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

# the most Python calls where the latest call was alike, one for each launch among them
REPEATED = {
    "matmul": 12, "matmul exact": 12, "matmul bias": 20, "matmul odd": 12, "matmul packed": 14, "matmul deep": 13, "matmul batch": 32,
    "matmul gated": 28, "matmul int4": 15, "grouped_matmul": 24, "grouped_matmul rows": 41, "grouped_matmul_wgrad": 7,
    "attention_backward": 18, "attention options": 32,
    "conv2d": 10, "conv2d_dgrad": 11, "conv2d_wgrad": 11,
}  # fmt: skip


def empty_results(kernel: Kernel, *args: Any) -> Any:
    """What the kernel would return, with nothing in it."""
    structs = [kd.ShapeDtypeStruct(x.shape, as_dtype(x.dtype)) for x in args if hasattr(x, "shape")]
    outs, structure = output_structs(kernel._definition, tuple(structs))
    return unflatten(structure, [np.empty(o.shape, o.dtype.numpy) for o in outs])


def counted(call: Callable[[], Any]) -> int:
    """The Python calls that a call makes."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count - 1  # that of `call`


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[int, Any]:
    """The results of kernels, by kernel, so that making them is not counted. No library call came before."""
    results: dict[int, Any] = {}
    for calls in (*LATEST.values(), *(getattr(function, "_latest", None) for function in vars(library).values())):
        if isinstance(calls, latest.Latest):
            calls.forget()

    def call(kernel: Kernel, *args: Any, **how: Any) -> Any:
        if id(kernel) not in results:
            results[id(kernel)] = empty_results(kernel, *args)
        return results[id(kernel)]

    monkeypatch.setattr(Kernel, "__call__", call)
    return results


@pytest.mark.parametrize("name", CALLS)
def test_calls_of_known_plans(name: str, made: dict[int, Any]) -> None:
    for _ in range(2):
        CALLS[name]()
    count = counted(CALLS[name])
    assert made and count <= MOST, f"{count} Python calls in a repeated call"


def answer_at_once(made: dict[int, Any], monkeypatch: pytest.MonkeyPatch) -> list[Kernel]:
    """Kernels that were called answer to `seen_call`; the list of them grows."""
    kernels: list[Kernel] = []

    def seen(kernel: Kernel, args: Any, out: Any, stream: Any) -> Any:
        kernels.append(kernel)
        return made[id(kernel)]

    for module in (latest, sys.modules["kernel_dsl.library.products.plan"]):
        monkeypatch.setattr(module, "seen_call", seen)
    return kernels


@pytest.mark.parametrize("name", REPEATED)
def test_calls_like_the_latest(name: str, made: dict[int, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels answer at once: the rest is what the host does beside."""
    CALLS[name]()
    kernels = answer_at_once(made, monkeypatch)
    count = counted(CALLS[name])
    assert kernels and count <= REPEATED[name], f"{count} Python calls for {len(kernels)} launches"


def test_calls_in_turn(made: dict[int, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A model's step calls functions with several options and shapes, one after the other."""
    for call in CALLS.values():
        call()
    kernels = answer_at_once(made, monkeypatch)
    for name, most in REPEATED.items():
        kernels.clear()
        count = counted(CALLS[name])
        assert kernels and count <= most + 4, f"{name}: {count} Python calls for {len(kernels)} launches"


def test_an_option_that_may_not_be_compared_is_not_kept() -> None:
    """A value that leaked from a kernel raises where it is compared: calls after a wrong one never meet it."""

    class Leaked:
        __hash__ = object.__hash__

        def __eq__(self, other: object) -> bool:
            raise kd.Error("compared outside of a kernel")

    calls, inputs = latest.Latest(), [np.zeros(3), np.zeros(3)]
    assert calls.call((Leaked(),), inputs, None, None) is latest.UNSEEN
    calls.keep((1,), inputs, lambda inputs, out, stream: 5)
    assert calls.call((1,), inputs, None, None) == 5
    assert calls.call((Leaked(),), inputs, None, None) is latest.UNSEEN
    assert calls.call((1,), inputs, None, None) == 5

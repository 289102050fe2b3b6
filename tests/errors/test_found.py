"""Wrong calls that random tries found: each is refused in words of ours that name what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from tests.errors.hostile.values import hostile

library, Spec = kd.library, kd.ShapeDtypeStruct
x = np.ones((8, 16), np.float32)
VALUES = {value.label: value for value in hostile()}


def doubled(a: Any, out: Any) -> None:
    out[...] = a[...] * 2


def counted(out: Any) -> None:
    out[...] = kd.broadcasted_iota(kd.int32, (8,), 0, layout=VALUES["3000 lists"].make())


def sparse() -> Any:
    return library.sparse_compress(np.zeros((64, 64), np.float16), interpret=True)


def loaded() -> Any:
    return kd.kernel(doubled, out_type=Spec((8,), kd.float32)).lower(Spec((8,), kd.float32)).compile()


def bound() -> Any:
    return kd.kernel(doubled, out_type=Spec((8,), kd.float32)).bind(np.ones(8, np.float32), interpret=True)


def cuda() -> Any:
    return kd.cuda_kernel("k", ["a"], ["out"], "out[0] = a[0];")


def metal() -> Any:
    return kd.metal_kernel("k", ["a"], ["out"], "out[0] = a[0];")


CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "out without an address": (
        lambda: library.grouped_matmul_wgrad(x, x, np.array([8], np.int32), out=VALUES["array raises"].make()),
        "out",
    ),
    "out with an odd interface": (
        lambda: library.matmul(x, x.T.copy(), out=VALUES["interface lies"].make()),
        "out",
    ),
    "array as precision": (lambda: library.sparse_matmul(sparse(), np.ones((64, 64), np.float16), precision=x), "precision"),
    "shape of no ints": (lambda: kd.kernel(doubled, out_type=Spec((8,), kd.float32)).lower(SimpleNamespace(shape=None, dtype="f4")), "shape None"),
    "threads of many digits": (lambda: kd.kernel(doubled, out_type=Spec((8,), kd.float32), num_threads=10**5000), "num_threads"),
    "factor of many digits": (lambda: kd.Dim("M", multiple_of=10**5000), "multiple"),
    "smoothing of many digits": (
        lambda: library.linear_cross_entropy(x, x, np.zeros(8, np.int32), label_smoothing=10**400),
        "label_smoothing",
    ),
    "eps of many digits": (lambda: library.rms_norm(x, x[0], eps=10**400), "eps"),
    "mesh that can't be printed": (lambda: library.all_to_all([x], x, VALUES["3000 lists"].make()), "mesh"),
    "layout that can't be printed": (lambda: kd.kernel(counted, out_type=Spec((8,), kd.int32)).lower(), "no layout"),
    "padding of text": (lambda: kd.Element(32, (1, "a")), "padding"),  # type: ignore[arg-type]
    "one padding": (lambda: kd.Element(32, 1), "padding"),  # type: ignore[arg-type]
    "spec as matrices": (lambda: library.grouped_matmul(x, kd.SMEM((8, 16), kd.float32), np.array([8]), gated="swiglu"), "b is"),
    "array as names": (lambda: loaded().export("f", mutates_args=x), "mutates_args"),
    "a dtype as output": (kd.kernel(counted, out_type=np.float32), "out_type is the type float32"),
    "a type as output": (kd.kernel(counted, out_type=int), "out_type is the type int"),
    "class of arrays, groups": (lambda: library.grouped_matmul(x, np.float32, np.array([8]), gated="swiglu"), "b is"),
    "class of arrays": (lambda: library.matmul(x, np.float32, gated="swiglu"), "b is"),
    "class of arrays as scale": (lambda: library.matmul(x, x.T, b_scale=np.float32), "b_scale"),
    "class of arrays as bias": (lambda: library.matmul(x, x.T, gated="swiglu", bias=np.float32), "bias"),
    "class of arrays as weights": (
        lambda: library.grouped_matmul(x, np.ones((1, 16, 8), np.float32), np.array([8]), scatter=np.zeros(8, np.int32), weights=np.float32),
        "weights",
    ),
    "a bound call as gate": (
        lambda: library.matmul(x, np.ones((16, 32), np.float32), gated=bound(), interpret=True),
        "the gate can't be called with 2 values",
    ),
    "an activation of two": (lambda: library.matmul(x, x.T, activation=kd.maximum, interpret=True), "the activation"),
    "a call that can't be printed": (lambda: kd.Graph.from_calls([VALUES["3000 lists"].make()]), "a call is"),
    "an option that can't be printed": (
        lambda: library.conv2d(np.ones((1, 8, 8, 8), np.float32), np.ones((8, 3, 3, 8), np.float32), dilation=VALUES["3000 lists"].make()),
        "dilation",
    ),
    "axes that can't be printed": (lambda: kd.Layout.WGMMA.of((64, 8)).reduce(VALUES["3000 lists"].make()), "axes="),
    "dims that can't be printed": (lambda: kd.Layout.WGMMA.of((64, 8)).expand([VALUES["3000 lists"].make()]), "dims="),
    "a billion dimensions": (lambda: kd.Layout.WGMMA.of((64, 8)).expand(range(10**9)), "dims="),
    "array as verbose, CUDA": (lambda: cuda()(inputs=[x], output_shapes=[(1,)], output_dtypes=[kd.float32], grid=1, threadgroup=1, verbose=x), "verbose"),
    "array as verbose, Metal": (lambda: metal()(inputs=[x], output_shapes=[(1,)], output_dtypes=[kd.float32], grid=1, threadgroup=1, verbose=x), "verbose"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_is_told(name: str) -> None:
    call, word = CALLS[name]
    with pytest.raises(kd.Error) as error:
        call()
    assert type(error.value).__name__ not in ("UnusableArgument", "UnusableValue"), str(error.value)
    assert word in str(error.value).splitlines()[0]


def test_layouts_of_nothing() -> None:
    """An empty product has a layout, as other empty values have."""
    assert kd.Layout.MMA_ACC.of((0, 4)).rank == 2

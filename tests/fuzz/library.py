"""Random calls of all products of the library, each against float64: dense, packed, sparse, grouped, cross-entropy, convolutions.

`python -m tests.fuzz.library --count 1000 --seconds 3600 --processes 2` runs in the interpreter, with hazards on and under each
schedule in turn; `--gpu --seconds 60 --processes 16` on a GPU at real sizes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import kernel_dsl as kd
from tests.fuzz import calls
from tests.library import grouped, products, test_conv, test_cross_entropy
from tests.library.conv_reference import Conv, any_conv
from tests.library.products import PLACES, place
from tests.library.test_complex import numbers, worst

CLASSES, HIDDEN = (1, 100, 1000, 4099, 20000), (8, 64, 200, 512)


class Product:
    """A call of `matmul` by any of its kernels."""

    def __init__(self, seed: int, large: bool = False) -> None:
        self.seed, self.call = seed, products.any_call(np.random.default_rng(seed), large)

    def __str__(self) -> str:
        return str(self.call)

    def run(self, interpret: Any) -> None:
        self.call.run(self.seed, interpret=interpret)


class Grouped:
    """A grouped product."""

    def __init__(self, seed: int, large: bool = False) -> None:
        self.seed, self.call = seed, grouped.any_call(np.random.default_rng(seed), large)

    def __str__(self) -> str:
        return str(self.call)

    def run(self, interpret: Any) -> None:
        self.call.run(self.seed, interpret)


class Seeded:
    """A call that its seed alone describes: `function(seed, interpret, large)`."""

    def __init__(self, function: Callable[[int, Any, bool], None], seed: int, large: bool) -> None:
        self.function, self.seed, self.large = function, seed, large

    def __str__(self) -> str:
        return f"{self.function.__name__} {self.seed}"

    def run(self, interpret: Any) -> None:
        self.function(self.seed, interpret, self.large)


def weight_gradient(seed: int, interpret: Any, large: bool) -> None:
    grouped.wgrad(seed, interpret, large=large)


def cross_entropy(seed: int, interpret: Any, large: bool) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(rng.choice(sizes)) for sizes in ((1, 64, 333, 1000), CLASSES, HIDDEN)) if large else None
    test_cross_entropy.run(seed, interpret, shape)


def entropy_beside_gradients(seed: int, interpret: Any, large: bool) -> None:
    """The loss and its gradients of one call, and those by partials."""
    one_call = seed // len(KINDS) % 2
    own = (
        test_cross_entropy.test_gradients_beside_the_loss if one_call else test_cross_entropy.test_gradients_by_partials
    )
    own(seed, interpret)


def convolution(seed: int, interpret: Any, large: bool) -> None:
    """A convolution and both of its gradients."""
    rng = np.random.default_rng(seed)
    conv = any_conv(rng)
    while large:
        groups = int(rng.choice((1, 1, 1, 2)))
        channels, filters = (groups * int(rng.choice((3, 8, 64, 96, 128, 256))) for _ in range(2))
        stride, padding, dilation = (int(rng.choice(n)) for n in ((1, 1, 2, 3), (0, 1, 1, 3), (1, 1, 2)))
        size = [int(rng.choice(n)) for n in ((1, 2, 4, 8), (7, 14, 28, 33), (7, 14, 28, 56))]
        taps = int(rng.choice((1, 3, 3, 5))), int(rng.choice((1, 3, 3, 7)))
        dtype = (kd.float16, kd.bfloat16, kd.bfloat16, kd.float32)[rng.integers(4)]
        conv = Conv((*size, channels), filters, taps, stride, padding, dilation, groups, dtype)
        if min(conv.result()) > 0 and np.prod(conv.result()) * np.prod(conv.w[1:]) < 2**29:
            break
    # errors of sums in float32 grow with the root of their length
    longer = max(1.0, float(np.prod(conv.w[1:]) / 256) ** 0.5)
    times = (test_conv.LONG_SUMS if large else longer) if conv.dtype == kd.float32 else 1
    test_conv.compare(conv, rng, interpret, times=times)


def complex_product(seed: int, interpret: Any, large: bool) -> None:
    """A product of complex64 in any strides, with what it takes besides."""
    rng = np.random.default_rng(seed)
    M, N, K = products.drawn_sizes(rng, 3, large)
    batches = [((), (1,), (2, 1))[rng.integers(3)], ((), (3,))[rng.integers(2)]] if max(M, N, K) < 100 else [(), ()]
    a, b = (
        place(numbers(rng, *batch, *shape), str(rng.choice(PLACES)))
        for batch, shape in zip(batches, ((M, K), (K, N)), strict=True)
    )
    expected = a.astype(np.complex128) @ b
    options: dict[str, Any] = {"precision": (None, "highest", "tf32x3", "tf32")[rng.integers(4)]}
    if rng.random() < 0.4:
        options["scale"] = 2.0
        expected = 2 * expected
    for name, shape in (("bias", (N,)), ("c", (M, N)), ("residual", (1, N))):
        if rng.random() < 0.3:
            options[name] = numbers(rng, *shape)
            expected = expected + options[name]
    if rng.random() < 0.4:
        options["out_scale"] = 0.5
        expected = expected * 0.5
    if rng.random() < 0.4:
        options["out"] = place(np.full(expected.shape, 7j, np.complex64), str(rng.choice(PLACES)))
    got = kd.library.matmul(a, b, interpret=interpret, **options)
    error = worst(np.ascontiguousarray(got), expected)
    assert error < (3e-3 if options["precision"] == "tf32" else 3e-6), f"{(M, N, K)} {options}: {error:.1e}"


def _seeded(function: Callable[[int, Any, bool], None]) -> Callable[[int, bool], Seeded]:
    return lambda seed, large: Seeded(function, seed, large)


# products come most often: they have the most options
KINDS: calls.Kinds = {
    "matmul": Product,
    "grouped": Grouped,
    "more products": Product,
    "weight gradient": _seeded(weight_gradient),
    "cross-entropy": _seeded(cross_entropy),
    "products again": Product,
    "convolution": _seeded(convolution),
    "entropy beside gradients": _seeded(entropy_beside_gradients),
    "complex": _seeded(complex_product),
}

if __name__ == "__main__":
    sys.exit(calls.main(KINDS, "tests.fuzz.library", __doc__))

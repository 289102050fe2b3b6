"""`x.shape[i]` beside values: a comparison takes the extent from the launch, and every other use reads it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.extents import Taken
from kernel_dsl.text import show
from kernel_dsl.text_parser import parse

Spec = kd.ShapeDtypeStruct
LARGE = 2**31 + 4096


def masked(compare: Any) -> Any:
    """A kernel that doubles elements where a comparison of their indices with the extent holds."""

    @kd.kernel(out_type=lambda x: x, grid=lambda x: (kd.cdiv(x.shape[0], 32),))
    def kernel(x: Any, out: Any) -> None:
        i = kd.program_id(0) * 32 + kd.arange(32)
        kd.store(out, (i,), kd.load(x, (i,), fill=0.0) * kd.where(compare(i, x.shape[0]), 2.0, 3.0))

    return kernel


COMPARISONS: dict[str, Any] = {
    "<": lambda i, n: i + 3 < n,
    "<=": lambda i, n: i * 2 <= n,
    ">": lambda i, n: n > i + 3,
    ">=": lambda i, n: n >= i * 2,
    "==": lambda i, n: i + 1 == n,
    "n ==": lambda i, n: n == i + 1,
    "n !=": lambda i, n: n != i + 1,
    "!=": lambda i, n: i + 1 != n,
    "difference": lambda i, n: n - i > 3,
    "rest": lambda i, n: i < n - (i - i + 2),
    "negative": lambda i, n: i - n < -3,
    "sum": lambda i, n: i + n >= 2 * i + 3,
    "less": lambda i, n: kd.less(i * 3, n) if isinstance(i, kd.Array) else i * 3 < n,
    "narrow": lambda i, n: i.astype(kd.uint8 if isinstance(i, kd.Array) else np.uint8) < n,
    "floats": lambda i, n: i.astype(kd.float32 if isinstance(i, kd.Array) else np.float32) * 0.5 < n,
}


@pytest.mark.parametrize("name", COMPARISONS)
def test_a_mask_by_an_extent_compiles_once(name: str) -> None:
    kernel = masked(COMPARISONS[name])
    for size in (5, 1, 0, 31, 32, 33, 100, 128):
        x = np.random.default_rng(size).integers(-9, 9, size).astype(np.float32)
        want = x * np.where(COMPARISONS[name](np.arange(size), size), 2, 3)
        np.testing.assert_array_equal(kernel(x, interpret=True), want)
    assert len(kernel.specialisations()) == 1
    ir = kernel.lower(x).ir
    assert show(parse(show(ir))) == show(ir)


def test_the_width_of_a_compared_extent_is_in_the_key() -> None:
    """32 bits for all extents that fit, and other code for those that do not."""

    @kd.kernel(out_type=Spec((4,), kd.bool_))
    def kernel(x: Any, out: Any) -> None:
        out[...] = kd.arange(4) < x.shape[0]

    element = np.zeros(1, np.uint8)
    for size, compiles in ((2, 1), (300, 1), (LARGE, 2), (3, 2), (LARGE + 1, 2)):
        found = kernel(np.broadcast_to(element, (size,)), interpret=True)
        np.testing.assert_array_equal(found, np.arange(4) < size)
        assert len(kernel.specialisations()) == compiles


def test_an_extent_that_is_read_after_a_comparison() -> None:
    """The code is for its value then, also where it was compared before."""

    @kd.kernel(out_type=lambda x: x, grid=lambda x: (kd.cdiv(x.shape[0], 32),))
    def kernel(x: Any, out: Any) -> None:
        i, n = kd.program_id(0) * 32 + kd.arange(32), x.shape[0]
        inside = i < n
        kd.store(out, (i,), kd.where(inside, float(n), 0.0), mask=inside)

    for size, compiles in ((3, 1), (40, 2), (3, 2)):
        np.testing.assert_array_equal(kernel(np.zeros(size, np.float32), interpret=True), np.full(size, size))
        assert len(kernel.specialisations()) == compiles


def test_an_extent_that_leaves_its_kernel_is_its_value() -> None:
    """Never the extent of another launch."""
    kept: list[Any] = []

    @kd.kernel(out_type=lambda x: x, grid=lambda x: (kd.cdiv(x.shape[0], 32),))
    def first(x: Any, out: Any) -> None:
        kept.append(x.shape[0])
        out[kd.ds(kd.program_id(0) * 32, 32)] = x[kd.ds(kd.program_id(0) * 32, 32)]

    @kd.kernel(out_type=Spec((8,), kd.bool_), grid=lambda y: (kd.cdiv(y.shape[0], 32),))
    def second(y: Any, out: Any) -> None:
        out[...] = kd.arange(8) < kept[-1]

    first(np.zeros(5, np.float32), interpret=True)
    assert kept[-1] == 5
    for size in (3, 7):
        np.testing.assert_array_equal(second(np.zeros(size, np.float32), interpret=True), np.arange(8) < 5)


# uses by Python and by functions of the language, of an extent of 8 elements and a Ref of 64
USES: dict[str, Any] = {
    "size": lambda n, b: b[kd.ds(0, n)],
    "start": lambda n, b: b[kd.ds(n, 4)],
    "index": lambda n, b: b[n],
    "slice": lambda n, b: b[n : 2 * n],
    "slice of a value": lambda n, b: b[...][:n],
    "part": lambda n, b: b.at[n : n + 4][...],
    "load": lambda n, b: kd.load(b, (n,)),
    "fill": lambda n, b: kd.load(b, kd.ds(60, 8), fill=n),
    "zeros": lambda n, b: kd.zeros(n, kd.float32) + 1,
    "full": lambda n, b: kd.full((n,), n),
    "arange": lambda n, b: kd.arange(0, n, 2),
    "reshape": lambda n, b: b[...].reshape(-1, n)[:, 0],
    "broadcast_to": lambda n, b: kd.broadcast_to(b[0:1], (n,)),
    "fori_loop": lambda n, b: kd.fori_loop(0, n, lambda i, c: c + i, 0),
    "loop": lambda n, b: kd.loop(0, 32, step=n, init_carry=0.0)(lambda i, c: c + b[i]),
    "unroll": lambda n, b: kd.fori_loop(0, 16, lambda i, c: c + i, 0, unroll=n),
    "while_loop": lambda n, b: kd.while_loop(lambda i: n > i, lambda i: i + 3, kd.int32(0)),
    "carry": lambda n, b: kd.while_loop(lambda c: c < 20, lambda c: c + n, n),
    "operand": lambda n, b: kd.cond(b[0] < 1, lambda c: c + 1, lambda c: c, n),
    "switch": lambda n, b: kd.switch(n, [lambda: 1, lambda: 2]),
    "where": lambda n, b: kd.where(n, b[0], b[1]),
    "minimum": lambda n, b: kd.minimum(b[0:16], n),
    "clip": lambda n, b: kd.clip(b[0:16], 0, n),
    "sum": lambda n, b: n + b[0:4],
    "quotient": lambda n, b: n / b[1:4],
    "rest": lambda n, b: kd.arange(20) % n,
    "power": lambda n, b: n ** b[0:4],
    "shift": lambda n, b: kd.arange(4) << n,
    "bits": lambda n, b: kd.arange(16) & n,
    "two numbers": lambda n, b: kd.less(n, 9),
    "equal": lambda n, b: n == kd.arange(16),
    "dtype": lambda n, b: kd.float32(n),
    "astype": lambda n, b: kd.astype(n, kd.float32),
    "sqrt": lambda n, b: kd.sqrt(n),
    "cdiv": lambda n, b: kd.cdiv(100, n),
    "top_k": lambda n, b: kd.top_k(b[...], n)[0],
    "pad": lambda n, b: kd.pad(b[0:4], ((n, 0),)),
    "random": lambda n, b: kd.random.bits(n, (n,), offset=n),
    "multiple_of": lambda n, b: b[kd.ds(kd.multiple_of(kd.program_id(0) * n, 8), 8)],
    "scratch": lambda n, b: kd.run_scoped(lambda s: s.shape[0] + b[0], kd.SMEM((n,), kd.float32)),
    "specialise": lambda n, b: kd.zeros((kd.specialise(n),), kd.float32),
    "range": lambda n, b: sum(b[i] for i in range(n)),
    "list": lambda n, b: kd.stack([b[0]] * n),
    "if": lambda n, b: b[1 if n else 0] + (not n) + (n > 3) + (n == 8) + (n != 8),
    "hash": lambda n, b: b[{8: 3}[n]] + len({n, 8}) + (n in (8,)),
    "text": lambda n, b: b[int(f"{n:d}")] + int(str(n)) + int("%d" % n),  # noqa: UP031
    "method": lambda n, b: b[n.bit_length()],
    "math": lambda n, b: b[0] + math.log2(n) + math.prod((n, 2)) + round(n) + abs(-n) + divmod(n, 3)[0] + ~n,
    "numpy": lambda n, b: b[0:8] + np.arange(n, dtype=np.float32) + np.float32(n),
    "order": lambda n, b: b[sorted([n, 3])[0]] + max(n, 3),
}


@pytest.mark.parametrize("name", USES)
@pytest.mark.sampled(25)
def test_other_uses_are_those_of_an_int(name: str) -> None:
    """They read this extent, and no others: another array may have any size."""
    found: list[Any] = []
    for taken in (True, False):

        @kd.kernel(out_type=Spec((64,), kd.float32, init=0), grid=lambda a, b, c: (kd.cdiv(b.shape[0], 64),))
        def kernel(a: Any, b: Any, c: Any, out: Any, taken: bool = taken) -> None:
            n = a.shape[0] if taken else 8
            assert not taken or isinstance(n, Taken) or found
            found.append(n)
            value = kd.astype(USES[name](n, b), kd.float32)
            out[kd.ds(0, value.size)] = value.reshape(-1) if value.ndim else value[None]

        rows = np.zeros(8, np.float32), np.arange(64, dtype=np.float32)
        found.extend(kernel(*rows, np.zeros(size, np.float32), interpret=True) for size in (3, 5))
        assert len(kernel.specialisations()) == 1
    results = [x for x in found if isinstance(x, np.ndarray)]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)

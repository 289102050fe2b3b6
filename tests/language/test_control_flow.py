"""Loops and branches: carries of any pytree, whose dtypes settle and whose layouts change; bounds of any kind."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import kernel_dsl as kd
from tests.ops.harness import INTERPRET, random, run

X = random((5, 40), "float32")
Q = random((8, 8), "float32")


def test_carries_are_nests() -> None:
    def code(a: Any) -> Any:
        start = {"s": kd.zeros((40,)), "n": 0, "m": (a[0], kd.full((), 1.5)), "l": [kd.zeros((2, 3), kd.int8)]}

        def step(i: Any, c: Any) -> Any:
            largest, scale = c["m"]
            total = c["s"] + kd.sum(a, 0) * i
            return {"s": total, "n": c["n"] + i, "m": (kd.maximum(largest, a[4]), scale * 2.0), "l": [c["l"][0] + 1]}

        end = kd.fori_loop(0, 5, step, start)
        return end["s"], end["n"], *end["m"], end["l"][0]

    total, count, largest, scale, ones = run(code, X)
    np.testing.assert_allclose(total, X.sum(0) * 10, rtol=1e-5, atol=1e-5)
    assert count == 10 and count.dtype == np.int32 and scale == 48
    np.testing.assert_array_equal(largest, np.maximum(X[0], X[4]))
    np.testing.assert_array_equal(ones, np.full((2, 3), 5, np.int8))


def test_weak_carries_take_the_dtype_of_the_body() -> None:
    def code(a: Any) -> Any:
        one = a[0, 0].astype(kd.bfloat16)
        pair = kd.while_loop(lambda c: c[0] < 10, lambda c: (c[0] + 3, c[1] * 2), (0, 1))
        return kd.fori_loop(0, 4, lambda i, c: c + one, 0), kd.fori_loop(0, 4, lambda i, c: c + 0.5, 0), *pair

    narrow, half, first, second = run(code, np.ones((1, 1), np.float32))
    assert narrow == 4 and narrow.dtype == ml_dtypes.bfloat16
    assert half == 2 and half.dtype == np.float32 and first == 12 and second == 16


def test_branches() -> None:
    def code(a: Any) -> Any:
        pair = kd.cond(kd.sum(a) > 1e9, lambda v: (v, 1), lambda v: (-v, 2), a)
        chosen = [
            kd.switch(kd.full((), k, kd.int32), [lambda v: v, lambda v: v * 2, lambda v: v.T.T + 1], a)
            for k in (-3, 0, 1, 2, 9)
        ]
        return *pair, *chosen

    results = run(code, X)
    for got, want in zip(results, (-X, np.int32(2), X, X, X * 2, X + 1, X + 1), strict=True):
        np.testing.assert_array_equal(got, want)


def test_bounds_and_steps() -> None:
    def code(a: Any) -> Any:
        i = a.astype(kd.int32)

        @kd.loop(10, 0, step=-3, init_carry=kd.zeros((3,)))
        def down(k: Any, c: Any) -> Any:
            return c + k

        @kd.loop(0, 3, unroll=True, init_carry=a[0])
        def unrolled(k: Any, c: Any) -> Any:
            return c + k

        return (
            down, unrolled, kd.fori_loop(i[0], i[1], lambda k, c: c + k, 0), kd.fori_loop(3, 3, lambda k, c: c + 1, a),
            kd.fori_loop(5, 3, lambda k, c: c + 1, a),
            kd.fori_loop(np.int64(2**33), np.int64(2**33 + 3), lambda k, c: c + k, np.int64(0)),
        )  # fmt: skip

    x = np.array([2, 7], np.float32)
    down, unrolled, dynamic, none, backwards, wide = run(code, x)
    np.testing.assert_array_equal(down, np.full(3, 22))
    assert unrolled == 5 and dynamic == 20 and wide == 3 * 2**33 + 3 and wide.dtype == np.int64
    np.testing.assert_array_equal(none, x)
    np.testing.assert_array_equal(backwards, x)


def test_layouts_that_change_from_one_iteration_to_the_next() -> None:
    turned, (a, b) = run(
        lambda a: kd.fori_loop(0, 3, lambda i, c: c.T + 1, a), Q
    ), run(lambda a: kd.fori_loop(0, 3, lambda i, c: (c[1], c[0] + c[1].T), (a, a.T)), Q)  # fmt: skip
    np.testing.assert_allclose(turned, Q.T + 3, rtol=1e-6)
    one, two = Q, Q.T
    for _ in range(3):
        one, two = two, one + two.T
    np.testing.assert_allclose(a, one, rtol=1e-5)
    np.testing.assert_allclose(b, two, rtol=1e-5)


def test_nested_loops_and_vector_conditions() -> None:
    def nested(a: Any) -> Any:
        def outer(i: Any, c: Any) -> Any:
            return kd.fori_loop(0, i, lambda j, d: d + a * j, c)

        return kd.fori_loop(0, 4, outer, kd.zeros_like(a))

    np.testing.assert_allclose(run(nested, X), X * 4, rtol=1e-5)
    doubled = run(
        lambda a: kd.while_loop(lambda c: kd.any(c < 100), lambda c: kd.where(c < 100, c * 2, c), kd.abs(a) + 1), X
    )
    want = np.abs(X) + 1
    while (want < 100).any():
        want = np.where(want < 100, want * 2, want)
    np.testing.assert_array_equal(doubled, want)


def test_scoped_memory_and_state() -> None:
    def state(x: Any, out: Any) -> None:
        def add(refs: Any) -> None:
            rows, total = refs

            @kd.loop(0, 4)
            def _(i: Any) -> None:
                total[...] = total[...] + rows[i]

        out[...] = kd.run_state(add)((x[...], kd.zeros((40,))))[1]

    spec = kd.ShapeDtypeStruct((40,), kd.float32)
    np.testing.assert_allclose(
        kd.kernel(state, out_type=spec, interpret=INTERPRET)(X), X[:4].sum(0), rtol=1e-5, atol=1e-5
    )

    def scoped(x: Any, out: Any) -> None:
        def use(s: Any, t: Any, *, k: Any) -> Any:
            s[...] = x[...]
            t[...] = s[...].T
            k[...] = t[::-1]
            return k[...].T, 3

        value, factor = kd.run_scoped(
            use, *[kd.SMEM(s, kd.float32) for s in ((5, 40), (40, 5))], k=kd.SMEM((40, 5), kd.float32)
        )
        out[...] = value * factor

    spec = kd.ShapeDtypeStruct((5, 40), kd.float32)
    np.testing.assert_array_equal(kd.kernel(scoped, out_type=spec, interpret=INTERPRET)(X), X[:, ::-1] * 3)


def test_scalars_of_every_kind() -> None:
    def body(i: Any, f: Any, b: Any, small: Any, half: Any, wide: Any, out: Any) -> None:
        out[0] = (i + f) * 1.0
        out[1] = b.astype(kd.float32) + small
        out[2] = half.astype(kd.float32)
        out[3] = wide.astype(kd.float32)

    spec = kd.ShapeDtypeStruct((4,), kd.float32)
    args = (3, 2.5, True, np.int8(-5), np.float16(1.5), np.uint64(2**63))
    np.testing.assert_array_equal(kd.kernel(body, out_type=spec, interpret=INTERPRET)(*args), [5.5, -4, 1.5, 2.0**63])

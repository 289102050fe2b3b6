"""`kd.while_loop` whose test reads memory: the loop ends after its test, so what follows comes after these reads."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from tests.ops.harness import INTERPRET

N = 512  # four elements a lane: a store overwrites only what its own lane has stored


@pytest.mark.parametrize("seed", range(8))
def test_stores_after_the_loop_wait_for_its_reads(seed: int) -> None:
    """Random steps before the loop, in its test, in its body and after it; a peek reads another lane's element."""
    rng = random.Random(seed)
    parts = [[rng.choice(("store", "peek")) for _ in range(rng.randint(0, 2))] for _ in range(4)]
    before, test, body, after = parts
    test.append("peek")
    body.insert(0, "store")
    after.insert(0, "store")

    def steps(names: list[str], x: Any, s: Any, i: Any) -> Any:
        seen = 0
        for n, name in enumerate(names):
            if name == "store":
                s[:] = x[:] * (n + 2) + i
            else:
                seen = seen + s[N - 1 - i]
        return seen

    def model(x: Any, s: Any) -> int:
        total = steps(before, x, s, 0)
        i = 0
        while True:
            steps(test, x, s, i)
            if i >= 3:
                return int(total + steps(after, x, s, i))
            total += steps(body, x, s, i)
            i += 1

    @kd.kernel(
        out_type=lambda x: (x, kd.ShapeDtypeStruct((), kd.int32)), scratch_types=[kd.SMEM((N,), kd.int32)],
        interpret=INTERPRET,
    )  # fmt: skip
    def kernel(x: Any, out: Any, seen: Any, s: Any) -> None:
        s[:] = x[:]
        total = kd.int32(0) + steps(before, x, s, 0)

        def goes_on(v: Any) -> Any:
            return (v[0] < 3) & (steps(test, x, s, v[0]) > -1)

        def step(v: Any) -> Any:
            return v[0] + 1, v[1] + steps(body, x, s, v[0])

        i, total = kd.while_loop(goes_on, step, (kd.int32(0), total))
        seen[...] = total + steps(after, x, s, i)
        out[:] = s[:]

    x = np.arange(N, dtype=np.int32)
    out, seen = kernel(x)
    s = x.copy()
    assert seen == model(x, s)
    np.testing.assert_array_equal(out, s)


def test_copies_after_the_loop_wait_for_its_loads() -> None:
    """The body's fence does not order the loads of the last test, which comes after it."""

    @kd.kernel(
        out_type=lambda x: x, input_output_aliases={0: 0}, scratch_types=[kd.SMEM((8, 128), kd.float32)],
        interpret=INTERPRET,
    )  # fmt: skip
    def kernel(x: Any, out: Any, tile: Any) -> None:
        tile[...] = kd.full((8, 128), 7.0, kd.float32)
        kd.commit_smem()

        def step(i: Any) -> Any:
            kd.commit_gmem()
            return i + 1

        kd.while_loop(lambda i: (i < 3) & (out[7 - i, i] < 1e6), step, kd.int32(0))
        kd.copy_smem_to_gmem(tile, out)
        kd.wait_smem_to_gmem(0)

    x = np.ones((8, 128), np.float32)
    text = str(kernel.lower(x).ptx)
    copy = text.index("cp.async.bulk.")
    assert text[:copy].count("fence.proxy.async.global") > text[: text.rindex("bra.uni")].count(
        "fence.proxy.async.global"
    )
    np.testing.assert_array_equal(kernel(x), np.full_like(x, 7))


def test_the_end_waits_for_copies_of_the_last_test() -> None:
    """The body waits for the copy that the test starts, but nothing in the body follows the last test."""

    @kd.kernel(out_type=lambda x: x, scratch_types=[kd.SMEM((8, 128), kd.float32)], interpret=INTERPRET)
    def kernel(x: Any, out: Any, tile: Any) -> None:
        tile[...] = x[...]
        kd.commit_smem()

        def goes_on(i: Any) -> Any:
            kd.copy_smem_to_gmem(tile, out)
            return i < 2

        def step(i: Any) -> Any:
            kd.wait_smem_to_gmem(0)
            return i + 1

        kd.while_loop(goes_on, step, kd.int32(0))

    x = np.ones((8, 128), np.float32)
    assert "wait_group.read" in str(kernel.lower(x).ptx)
    np.testing.assert_array_equal(kernel(x), x)

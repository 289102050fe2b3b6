"""How long tracing and lowering take, in processor time: the machine is shared, and the assembler is another program."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import kernel_dsl as kd
from tests.speed import slowness
from tests.work import calls

Spec = kd.ShapeDtypeStruct


def _best(make: Callable[[], Any], times: int = 4) -> float:
    """Seconds from a body to PTX."""
    best = 1e9
    for _ in range(times):
        start = time.process_time()
        _ = make().ptx
        best = min(best, time.process_time() - start)
    return best


def _chain(count: int) -> Any:
    def body(x: Any, out: Any) -> None:
        v = x[...]
        for i in range(count):
            v = v * 1.5 if i % 2 else v - 0.5
        out[...] = v

    return kd.kernel(body, out_type=Spec((256,), kd.float32)).lower(Spec((256,), kd.float32))


def test_a_chain_of_elementwise_ops_is_quick_and_linear() -> None:
    assert _best(lambda: _chain(800)) <= 0.3 * slowness()
    short, long = (calls(lambda size=size: _chain(size).ptx) for size in (800, 1600))
    assert long <= 2.02 * short


def _nested(depth: int) -> Any:
    def body(x: Any, out: Any) -> None:
        def go(k: int, v: Any) -> Any:
            if not k:
                return v + 1.0
            return kd.cond(x[k] > 0, lambda u: go(k - 1, u), lambda u: u * 2.0, v)

        out[...] = go(depth, x[...])

    return kd.kernel(body, out_type=Spec((256,), kd.float32)).lower(Spec((256,), kd.float32))


def test_conditionals_nested_twelve_deep() -> None:
    assert _best(lambda: _nested(12)) <= 0.05 * slowness()


def test_both_sides_nested() -> None:
    """Two branches at each of six levels are 64 leaves, and no more work than that."""

    def body(x: Any, out: Any) -> None:
        def go(k: int, v: Any) -> Any:
            if not k:
                return v + 1.0
            return kd.cond(x[k] > 0, lambda u: go(k - 1, u), lambda u: go(k - 1, u * 2.0), v)

        out[...] = go(6, x[...])

    kernel = kd.kernel(body, out_type=Spec((256,), kd.float32))
    assert _best(lambda: kernel.lower(Spec((256,), kd.float32)), 2) <= 0.5 * slowness()


def test_small_kernels() -> None:
    """From body to PTX; the assembler takes the rest of the 50 and 150 ms that a first call may take."""
    from tests.kernels import CASES

    assert _best(CASES["vector_add"].lower) <= 0.03 * slowness()
    assert _best(CASES["softmax"].lower) <= 0.08 * slowness()

"""How long tracing and lowering take, in processor time: the machine is shared, and the assembler is another program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import kernel_dsl as kd
from tests.speed import on_the_reference, seconds
from tests.work import calls

Spec = kd.ShapeDtypeStruct


def _takes(make: Callable[[], Any], bound: float) -> bool:
    """Whether it takes at most `bound` seconds from a body to PTX, on the machine on which the bounds were set."""
    return on_the_reference(lambda: make().ptx, bound) <= bound


def _chain(count: int) -> Any:
    def body(x: Any, out: Any) -> None:
        v = x[...]
        for i in range(count):
            v = v * 1.5 if i % 2 else v - 0.5
        out[...] = v

    return kd.kernel(body, out_type=Spec((256,), kd.float32)).lower(Spec((256,), kd.float32))


def test_a_chain_of_elementwise_ops_is_quick_and_linear() -> None:
    assert _takes(lambda: _chain(800), 0.3)
    short, long = (calls(lambda size=size: _chain(size).ptx) for size in (400, 800))
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
    assert _takes(lambda: _nested(12), 0.05)


def test_both_sides_nested() -> None:
    """Two branches at each of six levels are 64 leaves, and no more work than that."""

    def body(x: Any, out: Any) -> None:
        def go(k: int, v: Any) -> Any:
            if not k:
                return v + 1.0
            return kd.cond(x[k] > 0, lambda u: go(k - 1, u), lambda u: go(k - 1, u * 2.0), v)

        out[...] = go(6, x[...])

    kernel = kd.kernel(body, out_type=Spec((256,), kd.float32))
    assert _takes(lambda: kernel.lower(Spec((256,), kd.float32)), 0.5)


def test_small_kernels() -> None:
    """From body to PTX; the assembler takes the rest of the 50 and 150 ms that a first call may take."""
    from tests.kernels import CASES

    assert _takes(CASES["vector_add"].lower, 0.03)
    assert _takes(CASES["softmax"].lower, 0.08)


def _functions(count: int) -> Any:
    def body(x: Any, out: Any) -> None:
        v = x[...]
        for _ in range(count):
            v = kd.exp(v)
        out[...] = v

    return kd.kernel(body, out_type=Spec((128,), kd.float32)).lower(Spec((128,), kd.float32))


def test_a_chain_of_exponentials_is_linear() -> None:
    """LLVM's time can't be counted, and doubles where it would be fourfold."""
    short, long = float("inf"), float("inf")
    for _ in range(8):
        short, long = (min(least, seconds(lambda n=n: _functions(n).ptx)) for least, n in ((short, 200), (long, 400)))
        if long <= 3 * short:
            break
    assert long <= 3 * short


def _of_inputs(count: int) -> Any:
    def body(*refs: Any) -> None:
        *inputs, out = refs
        total: Any = 0.0
        for x in inputs:
            total = total + x[...]
        out[...] = total

    spec = Spec((128,), kd.float32)
    return kd.kernel(body, out_type=spec).lower(*[spec] * count)


def test_inputs_are_linear() -> None:
    short, long = (calls(lambda count=count: _of_inputs(count).ptx) for count in (200, 400))
    assert long <= 2.05 * short


def _loops(depth: int) -> Any:
    def body(x: Any, out: Any) -> None:
        def go(k: int, v: Any) -> Any:
            return kd.fori_loop(0, 2, lambda _, u: go(k - 1, u), v) if k else v + 1.0

        out[...] = go(depth, x[...])

    return kd.kernel(body, out_type=Spec((128,), kd.float32)).lower(Spec((128,), kd.float32))


@pytest.mark.parametrize("nested", [_nested, _loops])
def test_nesting_is_linear(nested: Callable[[int], Any]) -> None:
    short, long = (calls(lambda depth=depth: nested(depth).ptx) for depth in (30, 60))
    assert long <= 2.05 * short


BILLION = 10**9
TOO_MUCH: dict[str, Callable[[int], Any]] = {
    "full": lambda n: kd.full((n,), 1.0),
    "zeros": lambda n: kd.zeros((n, 2), kd.int8),
    "iota": lambda n: kd.iota(kd.int32, n),
    "arange": kd.arange,
    "broadcasted_iota": lambda n: kd.broadcasted_iota(kd.float32, (n, 1), 0),
    "broadcast_to": lambda n: kd.broadcast_to(kd.zeros((1,), kd.float32), (n,)),
    "pad": lambda n: kd.pad(kd.zeros((4,), kd.float32), n),
    "outer": lambda n: kd.zeros((n // 1000, 1), kd.int8) + kd.zeros((1, 1000), kd.int8),
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_what_no_lane_holds_is_refused_at_once(name: str) -> None:
    """With the work that a tenth of the size is refused with."""

    def refuse(size: int) -> None:
        with pytest.raises(kd.Error, match="elements a lane"):
            kd.kernel(lambda o: o.__setitem__(0, TOO_MUCH[name](size)), out_type=Spec((4,), kd.float32)).lower()

    refuse(BILLION)
    less, more = (calls(lambda size=size: refuse(size)) for size in (BILLION // 10, BILLION))
    assert more <= 1.1 * less <= 20_000


@pytest.mark.parametrize("make", [lambda: _nested(200), lambda: _loops(200), lambda: _of_inputs(5000)])
def test_what_is_too_deep_or_too_many_is_refused_at_once(make: Callable[[], Any]) -> None:
    def refuse() -> None:
        with pytest.raises(kd.Error, match=r"nested over 64 deep|bytes of parameters"):
            make()

    assert on_the_reference(refuse, 1.0) <= 1.0

"""Dataclasses of arrays as arguments, as scratch and as carries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.errors import BadCallArgument, BadTree, KernelArgument
from tests.ops.harness import random

Spec = kd.ShapeDtypeStruct


@dataclass(frozen=True)
class Scale:
    by: Any
    power: int = field(default=1, metadata={"static": True})

    def __post_init__(self) -> None:
        if not hasattr(self.by, "__array__"):
            raise TypeError("arrays only")

    def of(self, v: Any) -> Any:
        """A method, which the body calls."""
        for _ in range(self.power):
            v = v * self.by[...]
        return v


@dataclass
class Layer:
    weight: Any
    scales: list[Scale]
    bias: Any = None
    shift: float = 0.0


@kd.kernel(out_type=Spec((64,), kd.float32))
def layer(x: Any, p: Layer, out: Any) -> None:
    v = x[...] * p.weight[...] + p.shift
    for scale in p.scales:
        v = scale.of(v)
    out[...] = v if p.bias is None else v + p.bias[...]


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
def test_a_dataclass_is_a_nest_of_its_fields(power: int, bias: bool, interpret: Any) -> None:
    x, w, a, b = (random((64,), "float32", seed=i) for i in range(4))
    p = Layer(w, [Scale(a, power), Scale(b)], x if bias else None, 0.5)
    wanted = x * w + np.float32(0.5)
    for by in [a] * power + [b]:
        wanted = wanted * by
    got = layer(x, p, interpret=interpret)
    np.testing.assert_array_equal(np.asarray(got), wanted + x if bias else wanted)


def test_static_fields_and_classes_are_parts_of_the_key() -> None:
    x = np.full(64, 2.0, np.float32)
    got = [layer(x, Layer(x, [Scale(x, n)]), interpret=True)[0] for n in (1, 3, 1)]
    assert got == [8.0, 32.0, 8.0]

    def made(sign: int) -> Any:
        @dataclass
        class Signed:
            x: Any

            def value(self) -> Any:
                return self.x[...] * sign

        return Signed(x)

    @kd.kernel(out_type=Spec((64,), kd.float32), interpret=True)
    def kernel(s: Any, out: Any) -> None:
        out[...] = s.value()

    assert [kernel(made(sign))[0] for sign in (1, -1)] == [2.0, -2.0]


def test_scratch_and_carries_may_be_dataclasses() -> None:
    @dataclass
    class Pair:
        a: Any
        b: Any

    def body(x: Any, out: Any, s: Pair) -> None:
        s.a[...] = x[...]
        s.b[...] = s.a[...] + 1.0
        done = kd.fori_loop(0, 3, lambda _, p: Pair(p.a + p.b, p.b), Pair(s.a[...], s.b[...]))
        out[...] = done.a

    scratch = [Pair(kd.SMEM((64,), kd.float32), kd.SMEM((64,), kd.float32))]
    kernel = kd.kernel(body, out_type=Spec((64,), kd.float32), scratch_types=scratch, interpret=True)
    np.testing.assert_array_equal(kernel(np.ones(64, np.float32)), np.full(64, 7.0))


def test_outputs_and_nests_that_hold_themselves_are_refused() -> None:
    x = np.ones(64, np.float32)
    loop = Layer(x, [])
    loop.bias = loop
    with pytest.raises(BadTree, match="holds itself"):
        layer(x, loop, interpret=True)
    with pytest.raises(BadCallArgument, match="an input of type str"):
        layer(x, Layer("w", []), interpret=True)

    @kd.kernel(out_type=Layer(Spec((64,), kd.float32), []), interpret=True)
    def kernel(x: Any, out: Any) -> None:
        del x, out

    with pytest.raises(KernelArgument, match="out_type holds a dataclass"):
        kernel(x)

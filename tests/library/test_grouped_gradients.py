"""Gradients of grouped products with all options, as a derivative along a random direction: of ours and of float64 by differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.errors import BadCallArgument
from kernel_dsl.library.grouped.arguments import GroupedOptions
from kernel_dsl.library.grouped.derivatives import gradients

f32 = np.float32
STEP = 1e-5


def swish(x: Any) -> Any:
    return x * kd.logistic(x)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


ACTIVATIONS = {None: lambda x: x, swish: lambda x: x * sigmoid(x), kd.cos: np.cos}
GATES: dict[Any, Any] = {"swiglu": lambda x, y: x * sigmoid(x) * y, "glu": lambda x, y: sigmoid(x) * y}


class Case:
    """One call: which options it has is drawn from `seed`."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.G, self.N, self.K = 3, int(rng.choice([5, 24])), 8
        self.a_rows = int(rng.choice([12, 19]))
        self.o: dict[str, Any] = {}
        rows = self.a_rows
        if self.chance():
            rows = int(rng.choice([9, 24]))
            self.o["indices"] = rng.integers(0, self.a_rows, rows).astype(np.int32)
        self.rows, self.places, self.each = rows, rows, 1
        cuts = np.sort(rng.integers(0, rows + 1, self.G + 1))
        self.bounds = cuts
        if self.chance():
            self.o["offsets"] = cuts.astype(np.int32)
        else:
            self.bounds = np.concatenate([[0], cuts[1:]])
            self.o["group_sizes"] = np.diff(self.bounds).astype(np.int32)
        self.gated = self.chance()
        if self.gated:
            self.o["gated"] = str(rng.choice(list(GATES)))
        self.o["activation"] = list(ACTIVATIONS)[rng.integers(0, 3)]
        pair = self.gated and self.chance()
        shape = (self.G, self.K, self.N * (1 if pair or not self.gated else 2))
        self.x: dict[str, Any] = {"a": self.normal(self.a_rows, self.K), "b": self.maybe_pair(pair, *shape)}
        if self.chance():
            self.x["bias"] = self.maybe_pair(pair, self.G, shape[-1])
        if self.chance():
            self.o["a_scale"] = self.normal(*[(self.a_rows,), (self.a_rows, 1), (1,)][rng.integers(0, 3)])
        if self.chance():
            forms: list[Any] = [(self.G,), (self.G, shape[-1]), (self.G, 1, shape[-1]), (1, 1, 1)]
            form = forms[rng.integers(0, 4)]
            self.o["b_scale"] = self.normal(*form) if len(form) == 1 else self.maybe_pair(pair, *form)
        if self.chance():
            self.scatter()
        elif self.chance():
            self.x["weights"] = self.normal(rows)

    def scatter(self) -> None:
        rng = self.rng
        if self.chance():
            self.places, self.each = 7, 2
            self.x["weights"] = self.normal(7, 2)
        elif self.chance():
            self.x["weights"] = self.normal(self.rows)
        self.o["scatter"] = rng.integers(0, self.places * self.each, self.rows).astype(np.int32)

    def chance(self) -> bool:
        return bool(self.rng.integers(0, 2))

    def normal(self, *shape: int) -> Any:
        return self.rng.standard_normal(shape).astype(f32)

    def maybe_pair(self, pair: bool, *shape: int) -> Any:
        return (self.normal(*shape), self.normal(*shape)) if pair else self.normal(*shape)

    def value(self, x: dict[str, Any]) -> Any:
        """The result in float64."""
        o = self.o
        parts = [(x["b"], x.get("bias"), o.get("b_scale"))]
        if self.gated:
            parts = [
                tuple(y if y is None or (y.ndim == 1 and n == 2) else y[..., i::2] if y.shape[-1] > 1 else y for n, y in enumerate(all_))
                if not isinstance(x["b"], tuple)
                else tuple(y[i] if isinstance(y, tuple) else y for y in all_)
                for i in range(2)
                for all_ in parts
            ]  # fmt: skip
        a = x["a"] * (o["a_scale"].reshape(-1, 1).astype(np.float64) if "a_scale" in o else 1)
        a = a[o["indices"]] if "indices" in o else a
        out = np.zeros((self.places, self.N))
        for group in range(self.G):
            for row in range(self.bounds[group], self.bounds[group + 1]):
                sums = []
                for b, bias, scale in parts:
                    y = a[row] @ b[group]
                    if scale is not None:
                        y = y * (scale.reshape(-1) if scale.size == 1 else scale[group].reshape(-1)).astype(np.float64)
                    sums.append(y if bias is None else y + bias[group])
                y = ACTIVATIONS[o["activation"]](GATES[o["gated"]](*sums) if self.gated else sums[0])
                number = o["scatter"][row] if "scatter" in o else row
                if "weights" in x:
                    w = x["weights"]
                    y = y * (w.reshape(-1)[number] if w.ndim == 2 else w[row])
                out[number // self.each] += y
        return out


def moved(x: dict[str, Any], way: dict[str, Any], step: float) -> dict[str, Any]:
    def one(y: Any, v: Any) -> Any:
        return tuple(map(one, y, v)) if isinstance(y, tuple) else y.astype(np.float64) + step * v

    return {n: one(y, way[n]) for n, y in x.items()}


def dot(x: Any, y: Any) -> float:
    if isinstance(x, (tuple, list)):
        return sum(map(dot, x, y))
    assert x.shape == y.shape and x.dtype == f32, (x.shape, y.shape)
    return float((x.astype(np.float64) * y).sum())


@pytest.mark.parametrize("seed", range(96))
@pytest.mark.sampled(144)
def test_gradients(seed: int) -> None:
    case = Case(seed)
    rng = case.rng
    upstream = rng.standard_normal((case.places, case.N)).astype(f32)
    found = gradients(
        upstream,
        case.x["a"],
        case.x["b"],
        GroupedOptions(**case.o, **{n: x for n, x in case.x.items() if n not in "ab"}),
        None,
    )
    for name in case.x:
        way = {
            n: tuple(rng.standard_normal(y.shape) for y in x) if isinstance(x, tuple) else rng.standard_normal(x.shape)
            for n, x in case.x.items()
        }
        way = {
            n: v if n == name else tuple(y * 0 for y in v) if isinstance(v, tuple) else v * 0 for n, v in way.items()
        }
        up, down = (float((case.value(moved(case.x, way, s)) * upstream).sum()) for s in (STEP, -STEP))
        wanted, got = (up - down) / (2 * STEP), dot(found[name], way[name])
        size = 1e-4 * (1 + abs(wanted)) + 1e-5 * float(np.abs(upstream).sum())
        assert abs(got - wanted) < size, (name, got, wanted, case.o)


def test_factors_that_are_numbers(rng: Any) -> None:
    a, b = (rng.standard_normal(shape).astype(f32) for shape in ((4, 8), (2, 8, 4)))
    upstream = rng.standard_normal((4, 4)).astype(f32)
    found = gradients(upstream, a, b, GroupedOptions(np.int32([1, 3]), a_scale=2.0, b_scale=0.5), None)
    plain = gradients(upstream, a, b, GroupedOptions(np.int32([1, 3])), None)
    assert all(np.allclose(found[name], plain[name], rtol=1e-6, atol=1e-6) for name in "ab")


def test_operands_without_gradients() -> None:
    a, b, sizes = np.zeros((4, 8), np.int8), np.zeros((2, 8, 4), np.int8), np.int32([1, 3])
    with pytest.raises(BadCallArgument, match="int8, which has no gradient"):
        gradients(np.zeros((4, 4), f32), a, b, GroupedOptions(sizes), None)

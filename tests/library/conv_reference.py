"""Convolutions in float64, tap by tap, and random ones to compare with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import kernel_dsl as kd
from tests.hopper.helpers import random

from .products import place

Pair = tuple[int, int]
DTYPES = (kd.float16, kd.bfloat16, kd.float32)
PLACES = ("plain", "turned", "padded", "shifted", "strided", "backwards")


@dataclass(frozen=True)
class Conv:
    """Sizes of x (N, H, W, C) and of F filters, and how they meet."""

    x: tuple[int, int, int, int]
    filters: int
    taps: Pair
    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: int = 1
    dtype: Any = kd.float32

    @property
    def options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("stride", "padding", "dilation", "groups")}

    @property
    def w(self) -> tuple[int, ...]:
        return self.filters, *self.taps, self.x[3] // self.groups

    def result(self) -> tuple[int, ...]:
        """The shape of the result."""
        s, p, d = (_pair(getattr(self, name)) for name in ("stride", "padding", "dilation"))
        places = ((self.x[1 + i] + 2 * p[i] - d[i] * (self.taps[i] - 1) - 1) // s[i] + 1 for i in range(2))
        height, width = places
        return self.x[0], height, width, self.filters

    def forward(self, x: Any, w: Any) -> Any:
        out = np.zeros(self.result())
        for r, s, seen in self._taps(self._padded(x)):
            for own, mine in self._groups():
                out[..., mine] += np.tensordot(seen[..., own], w[mine, r, s], (3, 1))
        return out

    def dgrad(self, dout: Any, w: Any) -> Any:
        room = self._padded(np.zeros(self.x))
        for r, s, seen in self._taps(room):
            for own, mine in self._groups():
                seen[..., own] += np.tensordot(dout[..., mine], w[mine, r, s], 1)
        (top, left), (_, height, width, _) = _pair(self.padding), self.x
        return room[:, top : top + height, left : left + width]

    def wgrad(self, x: Any, dout: Any) -> Any:
        dw = np.zeros(self.w)
        for r, s, seen in self._taps(self._padded(x)):
            for own, mine in self._groups():
                dw[mine, r, s] = np.tensordot(dout[..., mine], seen[..., own], ((0, 1, 2), (0, 1, 2)))
        return dw

    def _padded(self, x: Any) -> Any:
        top, left = _pair(self.padding)
        return np.pad(np.asarray(x, np.float64), ((0, 0), (top, top), (left, left), (0, 0)))

    def _taps(self, room: Any) -> Any:
        """(row, column, view of what it sees) of each tap."""
        (a, b), (e, f), (_, height, width, _) = _pair(self.stride), _pair(self.dilation), self.result()
        for r in range(self.taps[0]):
            for s in range(self.taps[1]):
                yield r, s, room[:, r * e : r * e + (height - 1) * a + 1 : a, s * f : s * f + (width - 1) * b + 1 : b]

    def _groups(self) -> Any:
        depth, share = self.x[3] // self.groups, self.filters // self.groups
        for g in range(self.groups):
            yield slice(g * depth, (g + 1) * depth), slice(g * share, (g + 1) * share)


def _pair(x: Any) -> Pair:
    return x if isinstance(x, tuple) else (x, x)


def any_conv(rng: np.random.Generator) -> Conv:
    """A small one of any kind, whose filters fit."""
    while True:
        pair = lambda low, high: (  # noqa: E731
            int(rng.integers(low, high))
            if rng.random() < 0.5
            else (int(rng.integers(low, high)), int(rng.integers(low, high)))
        )
        groups = int(rng.choice((1, 1, 1, 2, 3)))
        channels, filters = (groups * int(rng.choice((1, 3, 8, 17, 32, 40, 70))) for _ in range(2))
        made = Conv(
            (int(rng.integers(1, 4)), int(rng.integers(1, 10)), int(rng.integers(1, 12)), channels),
            filters,
            (int(rng.integers(1, 5)), int(rng.integers(1, 5))),
            pair(1, 4), pair(0, 4), pair(1, 4), groups, DTYPES[rng.integers(3)],
        )  # fmt: skip
        if min(made.result()) > 0:
            return made


def arrays(conv: Conv, rng: np.random.Generator, anyhow: bool = True) -> tuple[Any, Any, Any]:
    """x, w and dout, lying anyhow."""
    made = [random(rng, shape, conv.dtype) for shape in (conv.x, conv.w, conv.result())]
    x, w, dout = (place(a, str(rng.choice(PLACES)) if anyhow else "plain") for a in made)
    return x, w, dout

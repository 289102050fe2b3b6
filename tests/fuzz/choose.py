"""Random choices and the values that a program under construction can use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

# (dtype, weight): the dtypes of most kernels come most often
DTYPES = (
    ("float32", 10), ("bfloat16", 6), ("int32", 6), ("float16", 3), ("bool", 2), ("float64", 2), ("int8", 1),
    ("uint8", 1), ("int16", 1), ("uint16", 1), ("uint32", 1), ("int64", 3), ("uint64", 2), ("float8_e4m3fn", 2),
    ("float8_e5m2", 2),
)  # fmt: skip
FP8 = ("float8_e4m3fn", "float8_e5m2")


class Choices:
    """Draws from a seed."""

    def __init__(self, seed: int) -> None:
        self.smem = 0  # how many warpgroups share a block's SMEM, where there are several
        self.rng = np.random.default_rng(seed)

    def below(self, n: int) -> int:
        """0 to n - 1."""
        return int(self.rng.integers(n))

    def between(self, low: int, high: int) -> int:
        """low to high, both included."""
        return low + self.below(high - low + 1)

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def one(self, items: Any) -> Any:
        return items[self.below(len(items))]

    def weighted(self, items: Any) -> Any:
        """One of (item, weight)."""
        at = self.below(sum(weight for _, weight in items))
        for item, weight in items:
            at -= weight
            if at < 0:
                return item
        raise AssertionError

    def dtype(self) -> str:
        return self.weighted(DTYPES)

    def shape(self, limit: int = 700) -> tuple[int, ...]:
        """Rank 0 to 5, extents that are no powers of two, 1 and now and then 0; at most `limit` elements."""
        shape: list[int] = []
        size = 1
        for _ in range(self.weighted(((0, 1), (1, 5), (2, 5), (3, 3), (4, 1), (5, 1)))):
            most = max(limit // max(size, 1), 1)
            extent = self.weighted(
                ((1, 2), (self.between(2, 9), 6), (self.between(10, 70), 4), (self.between(71, 300), 2))
            )
            shape.append(min(extent, most))
            size *= shape[-1]
        if shape and self.chance(0.02):
            shape[self.below(len(shape))] = 0
        return tuple(shape)


@dataclass(frozen=True)
class Value:
    """Something computed: the name it has in the body, its shape and its dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def is_float(self) -> bool:
        return "float" in self.dtype

    @property
    def is_number(self) -> bool:
        return self.dtype != "bool"


def broadcastable(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        np.broadcast_shapes(a, b)
    except ValueError:
        return False
    return True

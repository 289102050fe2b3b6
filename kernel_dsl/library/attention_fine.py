"""Weights of float8: their layout in registers, and their sums, which move from the tensor cores to float32 numbers.

The tensor cores keep 14 bits of a sum of float8 products: a product counts for nothing where the sum is 2 ** 13 times as
large. Sums over all keys would lose a quarter of themselves at 16384 keys. So the keys go in runs, and the sums of a run
are added to float32 sums in SMEM. The values have a row of ones, so that the sum of a row's weights is a column of the
product. It loses as many bits as the values' sums, and has the same rounding of the weights, so that both cancel where
values are alike.
"""

from __future__ import annotations

from typing import Any

import kernel_dsl as kd

from .attention_scored_tiles import ScoredTiles
from .attention_turned import KEYS

FINE_TOP, FINE_SLACK = 5.0, 3.7  # weights of float8: 2 ** 5 at a new maximum, up to 2 ** 8.7, where 448 is the largest


def in_lanes(x: Any) -> Any:
    """A value (rows, keys) in `Layout.WGMMA` with its keys in the order of the transposed values. It costs nothing."""
    rows, keys = x.shape
    return x.reshape(rows, keys // KEYS, 2, 4, 2).transpose(0, 1, 3, 2, 4).reshape(rows, keys)


def by_lane(x: Any) -> Any:
    """A value (64, dims) in `Layout.WGMMA` as (dims / 8, 128, 4): the parts of each of the 128 lanes. It costs nothing."""
    groups = x.shape[1] // 8
    return x.reshape(4, 2, 8, groups, 4, 2).transpose(3, 0, 2, 4, 1, 5).reshape(groups, 128, 4)


def lanes_parts(dims: int) -> Any:
    """The layout of `by_lane`."""
    return kd.Layout(3, ((0, dims // 8, 1), (2, 4, 1)), tuple((1, 1 << n) for n in range(5)), ((1, 32), (1, 64)))


def by_row(x: Any) -> Any:
    """The inverse of `by_lane`."""
    groups = x.shape[0]
    return x.reshape(groups, 4, 8, 4, 2, 2).transpose(1, 4, 2, 0, 3, 5).reshape(64, groups * 8)


class FineSums(ScoredTiles):
    """The sums of a consumer."""

    def values_at(self, slot: Any, s: dict[str, Any]) -> Any:
        """A stage's values, as the right side of a product."""
        return s["v_smem"].at[slot] if self.p.fine is None else s["v_smem"].at[slot].T

    def sums_of(self, me: Any, s: dict[str, Any]) -> Any:
        """A consumer's float32 sums, (64, dims)."""
        return by_row(kd.load(s["sums_smem"].at[me], layout=lanes_parts(self.v_dim)))

    def runs(
        self, begin: Any, end: Any, carry: Any, steps: Any, o_acc: Any, me: Any, unit: Any, s: dict[str, Any]
    ) -> Any:
        """All steps of a tile, in runs. The tensor cores lose more bits the longer a sum is, so the sums of a run are added
        to float32 sums in SMEM.
        """
        kept, form = s["sums_smem"].at[me], lanes_parts(self.v_dim)
        kept[...] = kd.layout_cast(kd.zeros((self.v_dim // 8, 128, 4), kd.float32), form)

        def run(number: Any, carry: Any) -> Any:
            slot, before, total = carry
            before, total = (kd.layout_cast(x, kd.Layout.WGMMA_ROW) for x in (before, total))
            first = begin + number * self.run
            till = kd.minimum(first + self.run, end)
            slot, top, total = steps(first, till, lambda: slot, before, total)
            factor = kd.exp2((before - top) * unit)
            kept[...] = by_lane(kd.fma(self.sums_of(me, s), factor[:, None], o_acc[:, : self.v_dim]))
            return slot, top, kd.fma(total, factor, kd.sum(o_acc[:, self.v_dim :], axis=1))

        return kd.loop(0, kd.div(kd.maximum(end - begin, 0) + (self.run - 1), self.run), init_carry=carry)(run)

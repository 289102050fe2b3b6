"""The problem of ring attention, and its kernel for any float dtype and shape. Lanes multiply and add, and read keys in
place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import kernel_dsl as kd
from kernel_dsl.mesh import ROOM, Mesh

from ..attention_forward.sizes import LOWEST
from ..collectives.parts import orders_itself, wait_for_all

ROWS_OF_TILE = 128  # the fast kernel needs a length that is a multiple of this
FEW, KEYS = 4, 16  # queries and keys of a step of this kernel


@dataclass(frozen=True)
class RingProblem:
    """q is (batch, heads, length, dim), k and v are (batch, kv_heads, length, dim), on each device."""

    mesh: Mesh
    batch: int
    heads: int
    length: int
    dim: int
    kv_heads: int
    dtype: Any
    causal: bool
    scale: float
    most: int
    timeout: float | None
    lse: bool = False  # whether the logarithms of the sums are a result

    @property
    def results(self) -> tuple[Any, ...]:
        """The results of a device: out, and lse if it is wanted."""
        rows = (self.batch, self.heads, self.length)
        out = kd.ShapeDtypeStruct((*rows, self.dim), self.dtype)
        return (out, kd.ShapeDtypeStruct(rows, kd.float32)) if self.lse else (out,)

    @property
    def fast(self) -> bool:
        """Whether the kernel for tensor cores takes the problem."""
        fits = self.length % ROWS_OF_TILE == 0 and self.dim in (64, 128) and self.dtype in (kd.float16, kd.bfloat16)
        return fits and self.mesh.size * self.pairs + 1 + self.most < ROOM

    @property
    def pairs(self) -> int:
        """The number of key heads of all sequences."""
        return self.batch * self.kv_heads


@cache
def ring_general(p: RingProblem) -> Any:
    """The kernel `(q, k, v) -> out`, or `-> (out, lse)`, for any float dtype and shape."""
    wide = kd.float64 if p.dtype == kd.float64 else kd.float32
    n = p.mesh.size

    @kd.kernel(
        out_type=p.results if p.lse else p.results[0],
        scratch_types={"begin": kd.SemaphoreType.REGULAR, "end": kd.SemaphoreType.REGULAR},
        grid=(p.batch * p.heads, kd.cdiv(p.length, FEW)),
        grid_names=("head", "tile"),
        mesh=p.mesh,
        name=f"ring_attention_general_{n}",
    )
    def attend(q: Any, k: Any, v: Any, out: Any, *lse: Any, begin: Any, end: Any) -> None:
        wait_for_all(begin, p.mesh, p.timeout)
        me, first = kd.axis_index(p.mesh.names), kd.axis_index("tile") * FEW
        batch, head = kd.div(kd.axis_index("head"), p.heads), kd.rem(kd.axis_index("head"), p.heads)
        group = kd.div(head, p.heads // p.kv_heads)
        x = q[batch, head, kd.ds(first, FEW)].astype(wide) * p.scale
        query = me * p.length + first + kd.broadcasted_iota(kd.int32, (FEW, KEYS), 0)

        def shard(i: Any, carry: Any) -> Any:
            device = kd.rem(me - i + n, n)
            there = [kd.remote_ref(ref, device).at[batch, group] for ref in (k, v)]

            def step(block: Any, carry: Any) -> Any:
                top, total, acc = carry
                keys = kd.ds(block * KEYS, KEYS)
                scores = kd.sum(x[:, None, :] * there[0][keys].astype(wide)[None], axis=2)
                key = block * KEYS + kd.broadcasted_iota(kd.int32, (FEW, KEYS), 1)
                seen = (key < p.length) & (device * p.length + key <= query) if p.causal else key < p.length
                scores = kd.where(seen, scores, -math.inf)
                new_top = kd.maximum(top, kd.max(scores, axis=1, keepdims=True))
                weights, fade = kd.exp(scores - new_top), kd.exp(top - new_top)
                acc = acc * fade + kd.sum(weights[:, :, None] * there[1][keys].astype(wide)[None], axis=1)
                return new_top, total * fade + kd.sum(weights, axis=1, keepdims=True), acc

            return kd.fori_loop(0, kd.cdiv(p.length, KEYS), step, carry)

        start = (kd.full((FEW, 1), LOWEST, wide), kd.zeros((FEW, 1), wide), kd.zeros((FEW, p.dim), wide))
        top, total, acc = kd.fori_loop(0, me + 1 if p.causal else n, shard, start)
        out[batch, head, kd.ds(first, FEW)] = (acc / total).astype(p.dtype)
        if p.lse:
            lse[0][batch, head, kd.ds(first, FEW)] = (top + kd.log(total)).reshape(FEW).astype(kd.float32)
        wait_for_all(end, p.mesh, p.timeout)

    return orders_itself(attend)

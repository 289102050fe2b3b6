"""`ring_attention_backward`: the gradients of `ring_attention`.

On Hopper attention's own kernels compute them, for the keys of one device after the other (`ring_gradients.py`).
Otherwise two kernels read the peers' arrays in place. A block of the first has a tile of this device's queries, and
visits the keys of all devices from its own device backwards, as the forward does. It also stores numbers of each query
for the second kernel. A block of the second has a tile of this device's keys, and visits the queries of all devices
from its own device onwards. So each sum has one writer and one order, and no device adds to another's memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import kernel_dsl as kd
from kernel_dsl.boundary import public
from kernel_dsl.diagnostics import of_kind
from kernel_dsl.dtypes import FP8
from kernel_dsl.errors import BadArgument, BadArgumentType
from kernel_dsl.mesh import Mesh
from kernel_dsl.symmetric import OfRank, gapless, made_like, overlap

from ..attention_gradients.ends import centre
from ..collectives.by_rank import by_rank
from ..collectives.parts import described, orders_itself, wait_for_all
from .general import FEW, KEYS, RingProblem
from .gradients import can_slice, ring_gradients
from .ring_attention import on_hopper, ring_problem

NAME = "ring_attention_backward"


@partial(public, name=NAME)
@partial(by_rank, more=("dlse",))
def ring_attention_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    mesh: Mesh,
    *,
    causal: bool = False,
    scale: float | None = None,
    dlse: Any = None,
    grads: Any = None,
    timeout: float | None = None,
    interpret: Any = None,
) -> tuple[Any, Any, Any]:
    """The gradients (dq, dk, dv) of `ring_attention`, each in the shape and dtype of its input on each device.

    q, k, v, `causal` and `scale` are what `ring_attention` had; out and lse, float32 (batch, heads, length), are what it returned
    with `return_lse=True`; dout is the gradient of out, and `dlse` that of lse, float32; by default zeros. `grads`: (dq, dk, dv),
    preallocated, in other memory; `timeout`: seconds that a device waits for its peers. Sums are float32 (float64 of float64), in
    one order: calls give the same bits.

    Where `ring_attention` is the fast kernel, these are `attention_backward`'s, once for each device of keys: each device holds
    the keys and values of all, and their gradients, which are rounded before they are added up. Else they are two slow kernels
    that read dout, q, k and v on the peers: with one process a GPU these lie in symmetric memory then.

    Raises `BadArgument`, `BadArgumentType`, and the errors of a kernel on a mesh. The method is that of Liu et al.
    (2023).
    """
    p, target = ring_problem(NAME, q, k, v, mesh, causal, scale, timeout, interpret)
    if p.dtype in FP8:
        raise BadArgumentType(op=NAME, what=f"q is {p.dtype}", hint="float8 inputs have no gradients")
    if grads is not None and (not isinstance(grads, (tuple, list)) or len(grads) != 3):
        raise BadArgumentType(op=NAME, what=f"grads is {of_kind(grads)}", hint="pass (dq, dk, dv)")
    rows = (p.batch, p.heads, p.length)
    mine, theirs = (*rows, p.dim), (p.batch, p.kv_heads, p.length, p.dim)
    _check("dout", dout, mesh, mine, p.dtype)
    _check("out", out, mesh, mine, p.dtype)
    _check("lse", lse, mesh, rows, kd.float32)
    if dlse is not None:
        _check("dlse", dlse, mesh, rows, kd.float32)
    for name, grad, shape in zip(("dq", "dk", "dv"), grads or (), (mine, theirs, theirs), strict=bool(grads)):
        _check(name, grad, mesh, shape, p.dtype)
        if any(overlap(x, grad) for x in (dout, q, k, v, out, lse, dlse) if x is not None):
            what = f"{name} of grads= shares memory with an input"
            raise BadArgument(op=NAME, what=what, hint="give other arrays: peers still read them")
    given = (dout, q, k, v, out, lse)
    if p.fast and on_hopper(target) and gapless(*given, *(grads or ())) and can_slice(*given):
        dq, dk, dv = ring_gradients(p, given, dlse, grads, interpret)
        return dq, dk, dv
    outs: Any = (None, None)
    if grads is not None or isinstance(q, OfRank):
        grads = grads or [made_like(q, shape, p.dtype, mesh) for shape in (mine, theirs, theirs)]
        stats = made_like(q, (2, *rows), _wide(p), mesh, "ring stats")
        outs = (grads[0], stats), (grads[1], grads[2])
    more = [] if dlse is None else [dlse]
    dq, stats = _by_query(p, bool(more))(*given, *more, out=outs[0], interpret=interpret)
    dk, dv = _by_key(p)(dout, q, k, v, stats, out=outs[1], interpret=interpret)
    return dq, dk, dv


def _check(name: str, x: Any, mesh: Mesh, shape: tuple[int, ...], dtype: Any) -> None:
    """Raise `BadArgument`, `BadArgumentType` unless each device's array has this shape and dtype."""
    found, kind = described(x, mesh, NAME)
    if kind != dtype:
        raise BadArgumentType(op=NAME, what=f"{name} is {kind}", hint=f"it is {dtype}")
    if found != shape:
        raise BadArgument(op=NAME, what=f"{name} is {list(found)} on a device", hint=f"it is {list(shape)}")


# --- kernels --------------------------------------------------------------------------------------


def _wide(p: RingProblem) -> Any:
    return kd.float64 if p.dtype == kd.float64 else kd.float32


def _rows(p: RingProblem) -> tuple[int, int]:
    """(rows of a tile, rows of a step): as many as fit in registers if tensor cores multiply."""
    if p.dtype not in (kd.float16, kd.bfloat16):
        return FEW, KEYS
    return (64, 32) if p.dim <= 64 else (64, 16) if p.dim <= 128 else (16, 32)


def _weights(p: RingProblem, scores: Any, lse: Any, query: Any, key: Any, apart: Any) -> Any:
    """The weight of each key for each query. Rows may extend past the end; `apart` rows lie between two
    devices' rows.
    """
    seen = (query < p.length) & (key < p.length)
    if p.causal:
        seen = seen & (key <= query + apart)
    return kd.exp(kd.where(seen, scores * p.scale - lse, -math.inf))


def _kernel(p: RingProblem, body: Callable[..., None], out: Any, tiles: int, name: str) -> Any:
    """The kernel of `body(me, pair, tile, *arrays)` for each head and each tile. All its blocks run at the
    same time.
    """
    blocks = min(tiles, p.most)

    def walk(*refs: Any, begin: Any, end: Any) -> None:
        wait_for_all(begin, p.mesh, p.timeout)
        me = kd.axis_index(p.mesh.names)

        @kd.loop(kd.axis_index("block"), tiles, step=blocks)
        def _(number: Any) -> None:
            body(me, number, *refs)

        wait_for_all(end, p.mesh, p.timeout)

    made = kd.kernel(
        walk,
        out_type=out,
        scratch_types={"begin": kd.SemaphoreType.REGULAR, "end": kd.SemaphoreType.REGULAR},
        grid=(blocks,),
        grid_names=("block",),
        mesh=p.mesh,
        name=f"{NAME}_{name}_{p.mesh.size}",
    )
    return orders_itself(made)


@cache
def _by_query(p: RingProblem, moved: bool) -> Any:
    """The kernel `(dout, q, k, v, out, lse) -> (dq, stats)`; stats has lse and the sum of out * dout of each query.

    With a `moved` lse it takes dlse, too, which it subtracts from that sum.
    """
    n, wide = p.mesh.size, _wide(p)
    mine, others = _rows(p)
    pairs = p.batch * p.heads

    def alone(me: Any, number: Any, dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, dq: Any, stats: Any) -> None:
        body(me, number, dout, q, k, v, out, lse, None, dq, stats)

    def body(
        me: Any, number: Any, dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, dlse: Any, dq: Any, stats: Any
    ) -> None:
        pair, first = kd.rem(number, pairs), (kd.cdiv(p.length, mine) - 1 - kd.div(number, pairs)) * mine
        batch, head = kd.div(pair, p.heads), kd.rem(pair, p.heads)
        rows = kd.ds(first, mine)
        own, grad = q[batch, head, rows], dout[batch, head, rows]
        mean = kd.sum(grad.astype(wide) * out[batch, head, rows].astype(wide), axis=1)
        total = lse[batch, head, rows].astype(wide)
        mean = centre(mean, total, dlse, (batch, head, rows))
        stats[0, batch, head, rows], stats[1, batch, head, rows] = total, mean
        query = first + kd.broadcasted_iota(kd.int32, (mine, others), 0)

        def shard(i: Any, acc: Any) -> Any:
            device = kd.rem(me - i + n, n)
            keys, values = (kd.remote_ref(x, device).at[batch, kd.div(head, p.heads // p.kv_heads)] for x in (k, v))

            def step(block: Any, acc: Any) -> Any:
                there = kd.ds(block * others, others)
                x, y = keys[there], values[there]
                key = block * others + kd.broadcasted_iota(kd.int32, (mine, others), 1)
                scores = kd.dot(own, x.T)
                weights = _weights(p, scores, total[:, None], query, key, (me - device) * p.length)
                slopes = weights * (kd.dot(grad, y.T) - mean[:, None])
                return kd.dot(slopes.astype(p.dtype), x, acc=acc)

            last = kd.cdiv(p.length, others)
            if p.causal:
                last = kd.where(i == 0, kd.minimum(kd.cdiv(first + mine, others), last), last)
            return kd.fori_loop(0, last, step, acc)

        acc = kd.fori_loop(0, me + 1 if p.causal else n, shard, kd.zeros((mine, p.dim), wide))
        dq[batch, head, rows] = (acc * p.scale).astype(p.dtype)

    like = (p.batch, p.heads, p.length)
    out = (kd.ShapeDtypeStruct((*like, p.dim), p.dtype), kd.ShapeDtypeStruct((2, *like), wide))
    return _kernel(p, body if moved else alone, out, pairs * kd.cdiv(p.length, mine), "q")


@cache
def _by_key(p: RingProblem) -> Any:
    """The kernel `(dout, q, k, v, stats) -> (dk, dv)`."""
    n, wide = p.mesh.size, _wide(p)
    mine, others = _rows(p)
    group = p.heads // p.kv_heads

    def body(me: Any, number: Any, dout: Any, q: Any, k: Any, v: Any, stats: Any, dk: Any, dv: Any) -> None:
        pair, first = kd.rem(number, p.pairs), kd.div(number, p.pairs) * mine
        batch, kv_head = kd.div(pair, p.kv_heads), kd.rem(pair, p.kv_heads)
        rows = kd.ds(first, mine)
        keys, values = k[batch, kv_head, rows], v[batch, kv_head, rows]
        key = first + kd.broadcasted_iota(kd.int32, (mine, others), 0)

        def shard(i: Any, carry: Any) -> Any:
            device = kd.div(i, group) + me
            device, head = kd.where(device < n, device, device - n), kv_head * group + kd.rem(i, group)
            queries, outs = (kd.remote_ref(x, device).at[batch, head] for x in (q, dout))
            known = kd.remote_ref(stats, device).at[:, batch, head]

            def step(block: Any, carry: Any) -> Any:
                there = kd.ds(block * others, others)
                x, y = queries[there], outs[there]
                query = block * others + kd.broadcasted_iota(kd.int32, (mine, others), 1)
                scores = kd.dot(keys, x.T)
                weights = _weights(p, scores, known[0, there][None], query, key, (device - me) * p.length)
                slopes = weights * (kd.dot(values, y.T) - known[1, there][None])
                dk_sum, dv_sum = carry
                return kd.dot(slopes.astype(p.dtype), x, acc=dk_sum), kd.dot(weights.astype(p.dtype), y, acc=dv_sum)

            start = kd.where(device == me, kd.div(first, others), 0) if p.causal else 0
            return kd.fori_loop(start, kd.cdiv(p.length, others), step, carry)

        zeros = kd.zeros((mine, p.dim), wide)
        dk_sum, dv_sum = kd.fori_loop(0, (n - me if p.causal else n) * group, shard, (zeros, zeros))
        dk[batch, kv_head, rows], dv[batch, kv_head, rows] = (dk_sum * p.scale).astype(p.dtype), dv_sum.astype(p.dtype)

    like = kd.ShapeDtypeStruct((p.batch, p.kv_heads, p.length, p.dim), p.dtype)
    return _kernel(p, body, (like, like), p.pairs * kd.cdiv(p.length, mine), "kv")

"""`ring_attention`: each device has a part of the sequence, and its queries see the keys of all.

On Hopper one kernel does all, `ring_attention_kernel.py`. A device begins with its own keys while it sends them to the
others, and continues with the keys of the devices before it as they arrive. So at any time each device uses the keys of
a different peer, as in a ring. Other inputs use a kernel that computes with lanes and reads keys in place:
`ring_attention_general.py`.
"""

from __future__ import annotations

from functools import partial
from operator import itemgetter
from typing import Any

from kernel_dsl.boundary import public
from kernel_dsl.errors import BadArgument, BadArgumentType
from kernel_dsl.mesh import Mesh
from kernel_dsl.symmetric import gapless, overlap, target_of
from kernel_dsl.target import TMA_WGMMA, Feature, Target

from ..collectives.by_rank import Fresh, Launched, by_rank, scratch
from ..collectives.parts import BLOCKS, described
from ..differentiable import host_of
from .derivatives import ring_derivative
from .general import RingProblem, ring_general
from .kernel import ring_kernel


@partial(public, name="ring_attention")
@by_rank
def ring_attention(
    q: Any,
    k: Any,
    v: Any,
    mesh: Mesh,
    *,
    causal: bool = False,
    scale: float | None = None,
    return_lse: bool = False,
    out: Any = None,
    timeout: float | None = None,
    interpret: Any = None,
) -> Any:
    """softmax(q k^T * scale) v over a sequence that devices share: part i, in the order of ranks, is on device i.

    q (batch, heads, length, dim), k and v (batch, kv_heads, length, dim) a device, row-major, of one float dtype; query heads
    share key heads evenly. The result is as q. `causal`: a query sees the keys up to its own place in the whole sequence.
    `scale`: by default dim ** -0.5. `return_lse`: the result is (out, lse), with the natural logarithm of each query's sum of
    exponentials, float32 (batch, heads, length). `out`: preallocated, in other memory, (out, lse) with `return_lse`; `timeout`:
    seconds that a device waits for its peers. Sums go in one order: calls give the same bits. Under JAX and autograd, gradients
    are those of `ring_attention_backward`.

    On Hopper, arrays of float16 and bfloat16 with a dim of 64 or 128 and a length that is a multiple of 128 take the fast
    kernel, which holds the keys and values of all devices. Other arrays take a slow one.

    Raises `BadArgument`, `BadArgumentType`, and the errors of a kernel on a mesh. The method is that of Liu et al.
    (2023), with the inner loop of `attention`.
    """
    op = "ring_attention"
    described(q, mesh, op)
    if host := host_of(*q, *k, *v):
        options = {"causal": causal, "scale": scale, "timeout": timeout, "interpret": interpret}
        return ring_derivative(host, q, k, v, mesh, out, bool(return_lse), options)
    p, target = ring_problem(op, q, k, v, mesh, causal, scale, timeout, interpret, bool(return_lse))
    if p.lse and out is not None and (not isinstance(out, (tuple, list)) or len(out) != 2):
        raise BadArgumentType(op=op, what="out= is one array a device", hint="pass (out, lse)")
    outs: Any = out if p.lse else (out,)
    if out is not None and any(overlap(x, y) for x in (q, k, v) for y in outs):
        raise BadArgument(
            op=op, what="out= shares memory with q, k or v", hint="give other arrays: peers still read them"
        )
    if p.fast and on_hopper(target) and gapless(q, k, v, *(outs or ())):
        there = [scratch(q, (mesh.size, *k[0].shape), p.dtype, mesh, f"ring {name}") for name in "kv"]
        if out is None:
            outs = [Fresh(x.shape, x.dtype, mesh) for x in p.results]
        take = itemgetter(0, 3) if p.lse else itemgetter(0)
        return Launched(ring_kernel(p), (q, k, v), (outs[0], *there, *outs[1:]), take)
    return Launched(ring_general(p), (q, k, v), outs if p.lse and out is not None else out)


def on_hopper(target: Target) -> bool:
    """Whether the fast kernels run on a target."""
    return target.supports(TMA_WGMMA | Feature.SETMAXNREG)


def ring_problem(
    op: str, q: Any, k: Any, v: Any, mesh: Mesh, causal: bool, scale: float | None, timeout: float | None, interpret: Any,
    lse: bool = False,
) -> tuple[RingProblem, Target]:  # fmt: skip
    """The problem of a call. Raises `BadArgument`, `BadArgumentType`."""
    (shape, dtype), (keys, kind), values = described(q, mesh, op), described(k, mesh, op), described(v, mesh, op)
    if dtype != kind or values[1] != dtype or not dtype.is_float:
        what = f"q is {dtype}, k {kind} and v {values[1]}"
        raise BadArgumentType(op=op, what=what, hint="pass floats of one dtype")
    fits = len(shape) == len(keys) == 4 and (shape[0], *shape[2:]) == (keys[0], *keys[2:]) and keys == values[0]
    if not fits or 0 in (*shape, *keys) or shape[1] % keys[1]:
        what = f"q is {list(shape)}, k {list(keys)} and v {list(values[0])} on a device"
        hint = "q is (batch, heads, length, dim), k and v (batch, kv_heads, length, dim), heads a multiple of kv_heads"
        raise BadArgument(op=op, what=what, hint=hint)
    target = target_of(q, interpret)
    most, factor = min(BLOCKS, target.limits.multiprocessors), shape[3] ** -0.5 if scale is None else scale
    p = RingProblem(mesh, shape[0], shape[1], shape[2], shape[3], keys[1], dtype, causal, factor, most, timeout, lse)
    return p, target

"""Gradients of ring attention on Hopper: those of attention to one device's keys after the other's, by attention's own
kernels.

Each device gets the keys and values of all devices. The gradient of its queries is the sum over the devices of keys.
Its contributions to the gradients of another device's keys and values go to that device, which adds up the
contributions of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import kernel_dsl as kd
from kernel_dsl.symmetric import OfRank, devices_of, made_like

from ..attention_gradients.attention_backward import attention_backward
from ..collectives.parts import summed
from ..collectives.reductions import all_gather, reduce_scatter
from .general import RingProblem

CHUNK, BLOCKS = 4096, 264


@cache
def adding_kernel(count: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """The kernel of one device `(x0, x1, ...) -> out`: the sum of `count` arrays in their order, in float32, rounded once."""
    size = 1
    for n in shape:
        size *= n
    chunks = max(-(-size // CHUNK), 1)

    def add(*refs: Any) -> None:
        *terms, out = [ref.reshape(-1) for ref in refs]

        @kd.loop(kd.axis_index("block"), chunks, step=min(chunks, BLOCKS))
        def _(chunk: Any) -> None:
            part = kd.ds(chunk * CHUNK, CHUNK)
            out[part] = summed(terms, part)

    return kd.kernel(
        add,
        out_type=kd.ShapeDtypeStruct(shape, dtype),
        grid=(min(chunks, BLOCKS),),
        grid_names=("block",),
        name="ring_attention_sum",
    )


def can_slice(*lists: Sequence[Any]) -> bool:
    """Whether parts of all arrays can be read and written by their framework."""
    return all(
        hasattr(type(x), "__setitem__") and not type(x).__module__.startswith("jax") for row in lists for x in row
    )


def ring_gradients(
    p: RingProblem, given: Sequence[Any], dlse: Any, grads: Sequence[Any] | None, interpret: Any
) -> list[Any]:
    """[dq, dk, dv] of (dout, q, k, v, out, lse), each a list of one a device, or this rank's; so is `dlse`, or None."""
    q, k, n = given[1], given[2], p.mesh.size
    how: dict[str, Any] = {"timeout": p.timeout, "interpret": interpret}
    wide = (n * p.batch, *k[0].shape[1:])
    # with one process a GPU, peers access these arrays; the next call uses them again
    everywhere = [
        made_like(x, wide, p.dtype, p.mesh, f"ring all {name}") for name, x in zip("kv", given[2:4], strict=True)
    ]
    keys, values = (all_gather(x, p.mesh, out=y, **how) for x, y in zip(given[2:4], everywhere, strict=True))
    parts = [made_like(q, wide, p.dtype, p.mesh, f"ring d{name}") for name in "kv"]
    dq = grads[0] if grads is not None else _beside(q, p)
    for place, rank in enumerate(devices_of(q, p.mesh)):
        own = [x[place] for x in given]
        terms: list[Any] = []
        for device in range(n):
            part = slice(device * p.batch, (device + 1) * p.batch)
            if p.causal and device > rank:
                for x in parts:
                    x[place][part] = 0
                continue
            found = attention_backward(
                own[0], own[1], keys[place][part], values[place][part], own[4], own[5],
                causal=p.causal and device == rank, scale=p.scale, dlse=None if dlse is None else dlse[place],
                deterministic=True, interpret=interpret,
            )  # fmt: skip
            terms.append(found[0])
            for x, grad in zip(parts, found[1:], strict=True):
                x[place][part] = grad
        adding_kernel(len(terms), tuple(q[0].shape), p.dtype)(*terms, out=dq[place], interpret=interpret)
    made = [reduce_scatter(x, p.mesh, out=None if grads is None else grads[i + 1], **how) for i, x in enumerate(parts)]
    return [dq, *made]


def _beside(q: Any, p: RingProblem) -> Any:
    made = made_like(list(q), tuple(q[0].shape), p.dtype, p.mesh if len(q) == p.mesh.size else None)
    return OfRank(made, p.mesh) if isinstance(q, OfRank) else made

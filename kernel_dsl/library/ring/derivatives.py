"""The derivative of `ring_attention` for JAX and PyTorch, for one array a device or this rank's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernel_dsl.dtypes import as_dtype
from kernel_dsl.mesh import Mesh
from kernel_dsl.symmetric import OfRank, Symmetric, made_like

from ..differentiable import FUNCTIONS, Derivative, check_plain, keyed

NAME = "ring_attention"


def ring_derivative(
    host: str, q: Any, k: Any, v: Any, mesh: Mesh, out: Any, return_lse: bool, options: dict[str, Any]
) -> Any:
    """A call of `ring_attention`, with the gradients of `ring_attention_backward`: q, k, v, out and lse are saved.

    Where the caller gets lse, the gradient is that of both results.
    """
    check_plain(NAME, {"out": out})
    alone, count = isinstance(q, OfRank), len(q)
    forward, ring_backward = FUNCTIONS[NAME], FUNCTIONS["ring_attention_backward"]

    def rows(arrays: Sequence[Any]) -> list[Any]:
        """Lists of one array a device each, or this rank's arrays."""
        return [arrays[i] if alone else list(arrays[i : i + count]) for i in range(0, len(arrays), count)]

    def flat(made: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(made) if alone else tuple(x for row in made for x in row)

    def run(*arrays: Any) -> tuple[Any, ...]:
        return flat(forward(*rows(arrays), mesh, return_lse=True, **options))

    def backward(gradients: Any, arrays: Sequence[Any], results: Sequence[Any]) -> tuple[Any, ...]:
        dout, *of_lse = rows([gradients] if returned == 1 else gradients)
        if alone:  # peers may read it
            there = made_like(
                OfRank(arrays[:1], mesh), tuple(arrays[0].shape), as_dtype(arrays[0].dtype), mesh, "ring dout"
            )
            there[0][...] = dout
            dout = there[0]
        dlse = of_lse[0] if of_lse else None
        return flat(ring_backward(dout, *rows(arrays), *rows(results), mesh, dlse=dlse, **options))

    def shapes(*arrays: Any) -> list[tuple[tuple[int, ...], Any]]:
        outs = [(tuple(x.shape), as_dtype(x.dtype)) for x in arrays[:count]]
        return [*outs, *((shape[:-1], "float32") for shape, _ in outs)]

    returned = 2 * count if return_lse else count
    key = (id(mesh), alone, returned, tuple(sorted(keyed(options).items())))
    rule = Derivative(
        NAME, key, run, backward, shapes, (True,) * (3 * count), 2 * count, returned, firsts=returned, devices=count
    )
    made = rule(host, [*q, *k, *v])
    found = rows([made] if returned == 1 else made)
    if alone:
        return tuple(OfRank([x], mesh) for x in found) if return_lse else OfRank(found, mesh)
    lists = tuple(Symmetric(row, mesh) for row in found)
    return lists if return_lse else lists[0]

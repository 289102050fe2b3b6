"""Gradients of a function of the library as PyTorch's autograd and JAX's `vjp` give them, from NumPy arrays and back."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np

import kernel_dsl as kd

INSTALLED = [name for name in ("torch", "jax") if find_spec(name)]
DIFFERENTIATED = ("sinks", "bias")


def gradients(
    host: str,
    arrays: tuple[Any, ...],
    given: tuple[Any, Any],
    options: dict[str, Any],
    deterministic: bool,
    interpret: Any,
) -> tuple[Any, Any, list[Any]]:
    """(output, logarithms, gradients of q, k and v, then of sinks and bias where they are given) of attention.

    `given`: the gradient of the output, and that of the logarithms, or None.
    """
    own = {n: x for n, x in options.items() if n in DIFFERENTIATED}
    rest = {n: x for n, x in options.items() if n not in DIFFERENTIATED} | {"deterministic": deterministic}
    run = _torch if host == "torch" else _jax
    return run([*arrays, *own.values()], [*own], given, rest, interpret)


def _torch(inputs: list[Any], names: list[str], wanted: Any, rest: dict[str, Any], interpret: Any) -> Any:
    import torch

    place = "cuda" if interpret is False and torch.cuda.is_available() else "cpu"

    def tensor(x: Any) -> Any:
        if not isinstance(x, np.ndarray):
            return x
        x = np.ascontiguousarray(x) if min(x.strides, default=0) < 0 else x
        if x.dtype == kd.bfloat16.numpy:
            return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).to(place)
        return torch.from_numpy(x).to(place)

    def array(x: Any) -> Any:
        x = x.detach().cpu()
        return x.view(torch.int16).numpy().view(kd.bfloat16.numpy) if x.dtype == torch.bfloat16 else x.numpy()

    leaves = [tensor(x).requires_grad_() for x in inputs]
    given = {n: tensor(x) for n, x in rest.items()} | dict(zip(names, leaves[3:], strict=True))
    out, lse = kd.library.attention(*leaves[:3], **given, return_lse=True, interpret=interpret)
    results = [(x, tensor(grad)) for x, grad in zip((out, lse), wanted, strict=True) if grad is not None]
    grads = torch.autograd.grad([x for x, _ in results], leaves, [grad for _, grad in results])
    return array(out), array(lse), [array(x) for x in grads]


def _jax(inputs: list[Any], names: list[str], wanted: Any, rest: dict[str, Any], interpret: Any) -> Any:
    import jax
    import jax.numpy as jnp

    given = {n: jnp.asarray(x) if isinstance(x, np.ndarray) else x for n, x in rest.items()}

    def function(*leaves: Any) -> Any:
        own = dict(zip(names, leaves[3:], strict=True))
        return kd.library.attention(*leaves[:3], **given, **own, return_lse=True, interpret=interpret)

    (out, lse), back = jax.vjp(function, *map(jnp.asarray, inputs))
    dout, dlse = wanted
    dlse = jnp.zeros_like(lse) if dlse is None else jnp.asarray(dlse)
    return np.asarray(out), np.asarray(lse), [np.asarray(x) for x in back((jnp.asarray(dout), dlse))]

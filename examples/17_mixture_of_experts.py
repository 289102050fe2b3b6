"""A mixture of experts: each token goes through the SwiGLU networks of the experts that its gate selects.

The rows of each expert follow those of the expert before. A grouped product gathers the tokens of each expert and
multiplies them by its gate and up weights, with SwiGLU between them. A second grouped product multiplies by the down
weights, multiplies each row by its weight, and adds up the rows of each token. The host does not know the number of
rows of an expert: the GPU reads the sizes, and one kernel serves all of them.

The backward pass consists of grouped products with transposed weights, weight gradients over the rows of each expert,
and two small elementwise kernels of this file.

Run it: `python examples/17_mixture_of_experts.py`. Without a GPU the kernels run in the PTX interpreter.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import kernel_dsl as kd

TOKENS, MODEL, HIDDEN, EXPERTS, TOP = 37, 64, 48, 5, 2
grouped, wgrad = kd.library.grouped_matmul, kd.library.grouped_matmul_wgrad
bf16 = kd.bfloat16


@cache
def swiglu_kernel(rows: int, hidden: int) -> Any:
    """`(gate, up) -> silu(gate) * up`, as in the forward pass."""

    @kd.kernel(out_type=kd.ShapeDtypeStruct((rows, hidden), bf16), grid=(rows,))
    def forward(gate: Any, up: Any, out: Any) -> None:
        row = kd.program_id(0)
        g, u = gate[row], up[row]
        out[row] = (g * kd.logistic(g) * u).astype(bf16)

    return forward


@cache
def swiglu_backward_kernel(rows: int, hidden: int) -> Any:
    """`(gate, up, dhidden, weights) -> (dgate, dup, dweights)`: dhidden lacks the factor of the row's weight."""
    like = kd.ShapeDtypeStruct((rows, hidden), bf16)

    @kd.kernel(out_type=(like, like, kd.ShapeDtypeStruct((rows,), kd.float32)), grid=(rows,))
    def backward(gate: Any, up: Any, dhidden: Any, weights: Any, dgate: Any, dup: Any, dweights: Any) -> None:
        row = kd.program_id(0)
        g, u, d, w = gate[row], up[row], dhidden[row], weights[row]
        s = kd.logistic(g)
        dweights[row] = kd.sum(g * s * u * d)  # the row's output times its gradient
        dgate[row] = (w * d * u * s * (1.0 + g * (1.0 - s))).astype(bf16)
        dup[row] = (w * d * g * s).astype(bf16)

    return backward


def route(scores: Any, top: int) -> tuple[Any, Any, Any, Any]:
    """(sizes, token of each row, weight of each row, expert of each row): softmax over the best `top` experts of each token."""
    best = np.argsort(-scores, axis=1, kind="stable")[:, :top]
    picked = np.take_along_axis(scores, best, 1)
    weights = np.exp(picked - picked.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    order = np.argsort(best.reshape(-1), kind="stable")  # sort rows by expert
    experts = best.reshape(-1)[order]
    sizes = np.bincount(experts, minlength=scores.shape[1]).astype(np.int32)
    return sizes, (order // top).astype(np.int32), weights.reshape(-1)[order].astype(np.float32), experts


def layer(x: Any, w_gate: Any, w_up: Any, w_down: Any, sizes: Any, tokens: Any, weights: Any) -> Any:
    """The layer's output (tokens, model), by three launches and a combination. Weights are (experts, K, N)."""
    hidden = grouped(x, (w_gate, w_up), sizes, indices=tokens, gated="swiglu")
    out = np.empty(x.shape, x.dtype)
    return grouped(hidden, w_down, sizes, weights=weights, scatter=tokens, out=out)


def gradients(
    dout: Any, x: Any, w_gate: Any, w_up: Any, w_down: Any, sizes: Any, tokens: Any, weights: Any
) -> tuple[Any, ...]:
    """The gradients of x, of the three weights, and of each row's weight. The function computes gate and up again."""
    rows, hidden = len(tokens), w_down.shape[1]
    f32 = kd.float32
    gate = grouped(x, w_gate, sizes, indices=tokens, out_dtype=f32)
    up = grouped(x, w_up, sizes, indices=tokens, out_dtype=f32)
    back = grouped(dout, w_down.swapaxes(1, 2), sizes, indices=tokens, out_dtype=f32)
    dgate, dup, dweights = swiglu_backward_kernel(rows, hidden)(gate, up, back, weights)
    activated = swiglu_kernel(rows, hidden)(gate, up)
    own = np.ascontiguousarray(dout[tokens].astype(np.float32) * weights[:, None]).astype(dout.dtype)
    dx = np.zeros((2, *x.shape), np.float32)
    for half, (d, w) in enumerate(((dgate, w_gate), (dup, w_up))):
        grouped(d, w.swapaxes(1, 2), sizes, scatter=tokens, out=dx[half], out_dtype=f32)
    x_rows = x[tokens]
    return dx.sum(0), wgrad(x_rows, dgate, sizes), wgrad(x_rows, dup, sizes), wgrad(activated, own, sizes), dweights


def reference(dout: Any, x: Any, ws: list[Any], tokens: Any, weights: Any, experts: Any) -> tuple[Any, ...]:
    """Output and gradients in float64, a row at a time."""
    dout, x, weights = (v.astype(np.float64) for v in (dout, x, weights))
    w_gate, w_up, w_down = (w.astype(np.float64) for w in ws)
    out, dx, dweights = np.zeros_like(x), np.zeros_like(x), np.zeros(len(tokens))
    d_gate, d_up, d_down = (np.zeros_like(w) for w in (w_gate, w_up, w_down))
    for row, (token, expert, weight) in enumerate(zip(tokens, experts, weights, strict=True)):
        g, u = x[token] @ w_gate[expert], x[token] @ w_up[expert]
        s = 1 / (1 + np.exp(-g))
        h = g * s * u
        out[token] += weight * (h @ w_down[expert])
        back = w_down[expert] @ dout[token]
        dweights[row] = h @ back
        dg, du = weight * back * u * s * (1 + g * (1 - s)), weight * back * g * s
        dx[token] += w_gate[expert] @ dg + w_up[expert] @ du
        d_gate[expert] += np.outer(x[token], dg)
        d_up[expert] += np.outer(x[token], du)
        d_down[expert] += weight * np.outer(h, dout[token])
    return out, dx, d_gate, d_up, d_down, dweights


def main() -> None:
    """Check output and gradients against float64."""
    rng = np.random.default_rng(0)

    def normal(*shape: int, scale: float = 1.0) -> Any:
        return (rng.standard_normal(shape) * scale).astype(bf16.numpy)

    x, dout = normal(TOKENS, MODEL), normal(TOKENS, MODEL)
    ws = [normal(EXPERTS, *shape, scale=0.15) for shape in ((MODEL, HIDDEN), (MODEL, HIDDEN), (HIDDEN, MODEL))]
    scores = rng.standard_normal((TOKENS, EXPERTS)).astype(np.float32)
    scores[:, 3] = -9.0  # an expert without tokens
    sizes, tokens, weights, experts = route(scores, TOP)
    assert sizes.sum() == TOKENS * TOP and sizes[3] == 0
    got = (layer(x, *ws, sizes, tokens, weights), *gradients(dout, x, *ws, sizes, tokens, weights))
    expected = reference(dout, x, ws, tokens, weights, experts)
    names = (
        "output",
        "of x",
        "of the gate weights",
        "of the up weights",
        "of the down weights",
        "of the rows' weights",
    )
    for name, ours, exact in zip(names, got, expected, strict=True):
        error = np.abs(ours.astype(np.float64) - exact).max() / np.abs(exact).max()
        print(f"{name}: worst error {error:.1e}")
        assert error < 1e-2, name


if __name__ == "__main__":
    main()

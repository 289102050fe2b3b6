"""Functions of the library on what JAX traces, with gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.errors import BadCallArgument
from kernel_dsl.library.losses import gradients as cross_entropy_gradients

jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy
RNG = np.random.default_rng(0)


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return jnp.asarray(RNG.standard_normal(shape), dtype)


def far(x: Any, y: Any) -> float:
    y = np.asarray(y, np.float64)
    return float(np.abs(np.asarray(x, np.float64) - y).max() / np.abs(y).max())


def attention_in_float32(q: Any, k: Any, v: Any, sinks: Any = None) -> tuple[Any, Any]:
    """The output and the logarithms of sums."""
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    k, v = (jnp.repeat(x, q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    lse = jax.nn.logsumexp(scores, -1)
    if sinks is not None:
        lse = jnp.logaddexp(lse, sinks[:, None])
    return jnp.exp(scores - lse[..., None]) @ v, lse


@pytest.mark.parametrize("sinks", [False, True])
def test_attention(sinks: bool) -> None:
    """Gradients of the output and of the logarithms."""
    q, k, v = normal(1, 2, 64, 64, dtype=jnp.bfloat16), *(normal(1, 1, 64, 64, dtype=jnp.bfloat16) for _ in range(2))
    more = (normal(2),) if sinks else ()
    w, z = normal(1, 2, 64, 64), normal(1, 2, 64)

    def ours(q: Any, k: Any, v: Any, *more: Any) -> Any:
        given = {"sinks": more[0]} if more else {}
        out, lse = kd.library.attention(q, k, v, causal=True, return_lse=True, **given)
        return (out.astype(jnp.float32) * w).sum() + (lse * z).sum()

    def wanted(*args: Any) -> Any:
        out, lse = attention_in_float32(*args)
        return (out * w).sum() + (lse * z).sum()

    places = tuple(range(3 + len(more)))
    made = jax.jit(jax.grad(ours, places))(q, k, v, *more)
    for x, y, given in zip(made, jax.grad(wanted, places)(q, k, v, *more), (q, k, v, *more), strict=True):
        assert (x.shape, x.dtype) == (given.shape, given.dtype)
        assert far(x, y) < 0.02


def test_what_attention_saves() -> None:
    q = normal(1, 1, 64, 64, dtype=jnp.bfloat16)
    _, residuals = jax.vjp(lambda q: kd.library.attention(q, q, q, causal=True), q)
    sizes = sorted(x.size for x in jax.tree.leaves(residuals) if hasattr(x, "size"))
    assert sizes[-1] <= q.size, "nothing as large as the scores"


@pytest.mark.slow
def test_gradient_of_attention_in_vmap() -> None:
    """One of its kernels would store to an array of 6 dimensions, which TMA does not take: it runs in a loop."""
    qs = normal(2, 1, 2, 64, 64, dtype=jnp.bfloat16)
    gradient = jax.grad(lambda q: kd.library.attention(q, q, q, causal=True).astype(jnp.float32).sum())
    np.testing.assert_array_equal(jax.jit(jax.vmap(gradient))(qs), jnp.stack([gradient(q) for q in qs]))


def test_matmul() -> None:
    a, b, c = normal(2, 32, 48), normal(48, 16), normal(16)
    w = normal(2, 32, 16)

    def ours(a: Any, b: Any, c: Any) -> Any:
        return (kd.library.matmul(a, b, bias=c, scale=0.5) * w).sum()

    made = jax.jit(jax.grad(ours, (0, 1, 2)))(a, b, c)
    with jax.default_matmul_precision("highest"):  # else JAX rounds to tf32 on a GPU
        wanted = jax.grad(lambda a, b, c: ((0.5 * (a @ b) + c) * w).sum(), (0, 1, 2))(a, b, c)
    for x, y in zip(made, wanted, strict=True):
        assert x.shape == y.shape
        assert far(x, y) < 1e-5


def test_matmul_of_two_dtypes_and_in_a_batch() -> None:
    a, b = normal(3, 16, 32, dtype=jnp.bfloat16), normal(3, 32, 16, dtype=jnp.bfloat16)
    made = jax.grad(lambda a, b: kd.library.matmul(a, b, out_dtype=kd.float32).sum(), (0, 1))(a, b)
    ones = np.ones((3, 16, 16))
    assert far(made[0], ones @ np.asarray(b, np.float64).swapaxes(1, 2)) < 0.01
    assert far(made[1], np.asarray(a, np.float64).swapaxes(1, 2) @ ones) < 0.01
    assert {x.dtype for x in made} == {jnp.dtype(jnp.bfloat16)}


def test_steps_without_a_derivative_say_so() -> None:
    a, b = normal(16, 16), normal(16, 16)
    jax.jit(lambda a: kd.library.matmul(a, b, epilogue=kd.exp))(a)
    for function in (lambda x: kd.nextafter(x, 1.0), lambda x: kd.exp(kd.nextafter(x, 1.0))):
        with pytest.raises(BadCallArgument, match="the epilogue uses `nextafter`, which has no derivative here"):
            jax.grad(lambda a, f=function: kd.library.matmul(a, b, epilogue=f).sum())(a)
    halved = kd.library.sparse_compress(jnp.zeros((16, 16)))
    with pytest.raises(BadCallArgument, match="no derivative with gated= beside a sparse a="):
        jax.grad(lambda b: kd.library.matmul(halved, b, gated="swiglu").sum())(b)
    with pytest.raises(BadCallArgument, match="`sparse_compress`: a is a value that JAX traces"):
        jax.jit(kd.library.sparse_compress)(a)
    with pytest.raises(BadCallArgument, match="out= in a call that is traced"):
        jax.jit(lambda a: kd.library.matmul(a, b, out=a))(a)
    for forward in (lambda: jax.jvp(kd.library.matmul, (a, b), (a, b)), lambda: jax.jacfwd(kd.library.matmul)(a, b)):
        with pytest.raises(BadCallArgument, match="no derivative in forward mode"):
            forward()


def swish(x: Any) -> Any:
    return x * kd.logistic(x)


def agree(ours: Any, wanted: Any, arrays: tuple[Any, ...], bound: float = 1e-4) -> None:
    """Gradients of two functions of arrays, ours compiled."""
    places = tuple(range(len(arrays)))
    with jax.default_matmul_precision("highest"):
        exact = jax.grad(wanted, places)(*arrays)
    for x, y, given in zip(jax.jit(jax.grad(ours, places))(*arrays), exact, arrays, strict=True):
        assert (x.shape, x.dtype) == (given.shape, given.dtype) and far(x, y) < bound


def test_steps_of_matmul() -> None:
    a, b, bias, residual = normal(33, 48), normal(48, 20), normal(20), normal(33, 1)

    def ours(a: Any, b: Any, bias: Any, residual: Any) -> Any:
        return jnp.sin(kd.library.matmul(a, b, bias=bias, residual=residual, activation=swish, scale=0.5)).sum()

    def wanted(a: Any, b: Any, bias: Any, residual: Any) -> Any:
        return jnp.sin(jax.nn.silu(0.5 * (a @ b) + bias) + residual).sum()

    agree(ours, wanted, (a, b, bias, residual))


def test_epilogue_of_matmul() -> None:
    a, b, row = normal(16, 16), normal(16, 16), normal(16)
    agree(
        lambda a, b, row: kd.library.matmul(a, b, epilogue=lambda x, r: kd.tanh(x) * r, operands=(row,)).sum(),
        lambda a, b, row: (jnp.tanh(a @ b) * row).sum(),
        (a, b, row),
    )


def test_gated_matmul() -> None:
    def ours(a: Any, b: Any, bias: Any) -> Any:
        return jnp.sin(kd.library.matmul(a, b, bias=bias, gated="swiglu")).sum()

    def wanted(a: Any, b: Any, bias: Any) -> Any:
        z = a @ b + bias
        return jnp.sin(jax.nn.silu(z[:, 0::2]) * z[:, 1::2]).sum()

    agree(ours, wanted, (normal(33, 48), normal(48, 40), normal(40)))


def test_gated_matmul_with_all_steps() -> None:
    def ours(a: Any, b: Any, bias: Any, x: Any) -> Any:
        made = kd.library.matmul(
            a, b, bias=bias, gated="swiglu", scale=0.5, a_scale=rows, b_scale=columns, epilogue=kd.multiply, operands=(x,),
            activation=kd.tanh, out_scale=2.0,
        )  # fmt: skip
        return jnp.sin(made).sum()

    def wanted(a: Any, b: Any, bias: Any, x: Any) -> Any:
        z = 0.5 * rows[:, None] * columns * (a @ b) + bias
        return jnp.sin(2 * jnp.tanh(jax.nn.silu(z[:, 0::2]) * z[:, 1::2] * x)).sum()

    rows, columns = jnp.linspace(0.1, 0.4, 33), jnp.linspace(0.2, 0.6, 40)
    agree(ours, wanted, (normal(33, 48), normal(48, 40), normal(40), normal(33, 1)), 2e-3)


def test_packed_and_sparse_matrices_as_arguments() -> None:
    """They are structures of arrays: other numbers of the same form are not traced again."""
    a, traced = normal(5, 64).astype(jnp.bfloat16), list[Any]()

    @jax.jit
    def product(a: Any, matrix: Any) -> Any:
        traced.append(matrix.shape)
        sparse = isinstance(matrix, kd.library.SparseMatrix)
        return kd.library.matmul(matrix, a.T) if sparse else kd.library.matmul(a, matrix)

    for number, pack in enumerate((
        kd.library.pack_int4, lambda w: kd.library.pack_int4(w, zeros=True), kd.library.pack_mxfp4,
        lambda w: kd.library.sparse_compress(w.T.astype(jnp.bfloat16), prune=True),
    )):  # fmt: skip
        for _ in range(2):
            matrix = jax.jit(pack)(normal(64, 8))
            direct = kd.library.matmul(*((matrix, a.T) if number == 3 else (a, matrix)))
            assert (np.asarray(product(a, matrix)) == np.asarray(direct)).all() and len(traced) == number + 1


def test_grouped_matmul() -> None:
    sizes = jnp.asarray([20, 0, 15], jnp.int32)

    def ours(a: Any, b: Any, bias: Any) -> Any:
        return jnp.sin(kd.library.grouped_matmul(a, b, sizes, bias=bias)).sum()

    def wanted(a: Any, b: Any, bias: Any) -> Any:
        return jnp.sin(a[:20] @ b[0] + bias[0]).sum() + jnp.sin(a[20:35] @ b[2] + bias[2]).sum()

    agree(ours, wanted, (normal(40, 32), normal(3, 32, 16), normal(3, 16)))


def test_mixture_of_experts() -> None:
    sizes, rows = jnp.asarray([7, 0, 9], jnp.int32), jnp.asarray(RNG.integers(0, 12, 16), jnp.int32)
    place = jnp.asarray(RNG.permutation(24)[:16], jnp.int32)

    def ours(x: Any, gate: Any, up: Any, weights: Any) -> Any:
        made = kd.library.grouped_matmul(
            x, (gate, up), sizes, indices=rows, scatter=place, weights=weights, gated="swiglu", activation=kd.sin
        )
        return jnp.sin(made).sum()

    def wanted(x: Any, gate: Any, up: Any, weights: Any) -> Any:
        expert = jnp.repeat(jnp.asarray([0, 2]), jnp.asarray([7, 9]), total_repeat_length=16)
        one, other = (jnp.einsum("rk,rkn->rn", x[rows], side[expert]) for side in (gate, up))
        y = jnp.sin(jax.nn.silu(one) * other) * weights.reshape(-1)[place][:, None]
        return jnp.sin(jnp.zeros((12, y.shape[1])).at[place // 2].add(y)).sum()

    agree(ours, wanted, (normal(12, 16), normal(3, 16, 8), normal(3, 16, 8), normal(12, 2)))


def test_conv2d() -> None:
    def wanted(x: Any, w: Any) -> Any:
        numbers = jax.lax.conv_dimension_numbers(x.shape, w.shape, ("NHWC", "OHWI", "NHWC"))
        out = jax.lax.conv_general_dilated(x, w, (2, 2), [(1, 1), (1, 1)], dimension_numbers=numbers)
        return jnp.sin(out).sum()

    agree(
        lambda x, w: jnp.sin(kd.library.conv2d(x, w, stride=2, padding=1)).sum(),
        wanted,
        (normal(2, 7, 6, 8), normal(8, 3, 3, 8)),
    )


@pytest.mark.parametrize("deep", [False, True], ids=["four products", "three products"])
def test_linear_cross_entropy(deep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy_gradients, "DEEP", 32 if deep else 64)
    targets = jnp.arange(20, dtype=jnp.int32).at[3].set(-100)

    def ours(x: Any, weight: Any, bias: Any) -> Any:
        loss, lse = kd.library.linear_cross_entropy(x, weight, targets, bias=bias, return_lse=True)
        return 3 * loss + jnp.square(lse).mean()

    def wanted(x: Any, weight: Any, bias: Any) -> Any:
        logits = jax.nn.log_softmax(x @ weight.T + bias)
        losses = -jnp.take_along_axis(logits, jnp.maximum(targets, 0)[:, None], 1)[:, 0]
        lse = jax.nn.logsumexp(x @ weight.T + bias, 1)
        return 3 * jnp.where(targets >= 0, losses, 0).sum() / 19 + jnp.square(lse).mean()

    agree(ours, wanted, (normal(20, 32), normal(70, 32), normal(70)))


def test_lengths_that_decrease() -> None:
    """Lengths in the host's memory are read, whichever framework holds them."""
    x, starts = jnp.ones((8, 2, 64), jnp.bfloat16), jnp.array([0, 5, 3], jnp.int32)
    with pytest.raises(kd.Error, match=r"q_seqlens=\[0, 5, 3\]"):
        kd.library.attention(x, x, x, q_seqlens=starts, interpret=True)

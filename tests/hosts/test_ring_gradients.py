"""Ring attention under autograd and JAX: lists of one array a device, and one process a rank, against plain attention."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.errors import BadCallArgument
from kernel_dsl.library.differentiable import Derivative
from tests.conftest import ROOT

PAIR = kd.Mesh(("x",), (2,))
CASES = [
    pytest.param((1, 2, 5, 12), 1, "float32", True, 2e-6),
    pytest.param((1, 1, 128, 64), 1, "bfloat16", False, 2e-2, marks=pytest.mark.slow),
]


def inputs(shape: tuple[int, ...], kv_heads: int) -> list[list[np.ndarray]]:
    """q, k, v and what the result is multiplied by, one a device."""
    rng = np.random.default_rng(3)
    small = (shape[0], kv_heads, *shape[2:])
    return [[rng.standard_normal(s).astype(np.float32) for _ in range(2)] for s in (shape, small, small, shape)]


@pytest.mark.parametrize(("shape", "kv_heads", "dtype", "causal", "bound"), CASES)
def test_autograd(shape: tuple[int, ...], kv_heads: int, dtype: str, causal: bool, bound: float) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    *arrays, factors = [[torch.tensor(x) for x in row] for row in inputs(shape, kv_heads)]
    q, k, v = ([x.to(getattr(torch, dtype)).requires_grad_() for x in row] for row in arrays)
    out, lse = kd.library.ring_attention(q, k, v, PAIR, causal=causal, return_lse=True)
    assert out[0].requires_grad and lse[0].requires_grad and out.mesh == PAIR
    rows = zip(out, lse, factors, strict=True)
    sum((o.float() * f).sum() + (logs * f[..., 0]).sum() for o, logs, f in rows).backward()
    whole = [torch.cat([x.detach().float() for x in row], 2).requires_grad_() for row in (q, k, v)]
    wide = [whole[0], *(x.repeat_interleave(shape[1] // kv_heads, 1) for x in whole[1:])]
    want = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=causal)
    scores = wide[0] @ wide[1].mT * shape[-1] ** -0.5
    scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1) > 0, -torch.inf) if causal else scores
    factor = torch.cat(factors, 2)
    ((want * factor).sum() + (scores.logsumexp(-1) * factor[..., 0]).sum()).backward()
    for row, x in zip((q, k, v), whole, strict=True):
        got = torch.cat([y.grad.float() for y in row], 2)
        assert (got - x.grad).abs().max() <= bound * x.grad.abs().max()
    with pytest.raises(BadCallArgument, match="out= in a call that is traced or differentiated"):
        kd.library.ring_attention(q, k, v, PAIR, out=q)


def test_ops_of_several_devices() -> None:
    """A result lies where its input does. An op of one device refuses tensors of two."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    alike = [((3,), kd.float32)] * 2
    rows = [torch.ones(3), torch.ones(3, device="meta")]

    def made(devices: int) -> Any:
        rule = Derivative(
            f"of_{devices}",
            None,
            lambda *x: x,
            lambda *x: [None] * 2,
            lambda *x: alike,
            (False,) * 2,
            2,
            2,
            devices=devices,
        )
        return rule("torch", rows)

    assert [x.device.type for x in made(2)] == ["cpu", "meta"]
    with pytest.raises(BadCallArgument, match="tensors on cpu and meta"):
        made(1)


@pytest.mark.parametrize(("shape", "kv_heads", "dtype", "causal", "bound"), CASES)
def test_jax(shape: tuple[int, ...], kv_heads: int, dtype: str, causal: bool, bound: float) -> None:
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    jnp = jax.numpy
    *arrays, factors = [[jnp.asarray(x) for x in row] for row in inputs(shape, kv_heads)]
    rows = [[x.astype(dtype) for x in row] for row in arrays]

    def ours(*rows: Any) -> Any:
        out = kd.library.ring_attention(*rows, PAIR, causal=causal, interpret=True)
        return sum((o.astype(jnp.float32) * f).sum() for o, f in zip(out, factors, strict=True))

    def plain(*rows: Any) -> Any:
        q, k, v = (jnp.concatenate([x.astype(jnp.float32) for x in row], 2) for row in rows)
        k, v = (jnp.repeat(x, shape[1] // kv_heads, 1) for x in (k, v))
        scores = q @ k.swapaxes(-1, -2) * shape[-1] ** -0.5
        if causal:
            scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
        return (jax.nn.softmax(scores, -1) @ v * jnp.concatenate(factors, 2)).sum()

    got, want = (jax.grad(f, (0, 1, 2))(*rows) for f in (ours, plain))
    for mine, row in zip(got, want, strict=True):
        for a, b in zip(mine, row, strict=True):
            assert a.dtype == dtype and jnp.abs(a - b).max() <= 2 * bound * jnp.abs(b).max()


RANK = """
import pickle, sys
import torch, torch.distributed as dist
import kernel_dsl as kd
from tests.hosts.test_ring_gradients import inputs
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
q, k, v, f = (torch.tensor(row[rank]) for row in inputs((1, 2, 5, 12), 1))
for x in (q, k, v):
    x.requires_grad_()
out, lse = kd.library.ring_attention(q, k, v, dist.group.WORLD, causal=True, return_lse=True)
((out * f).sum() + (lse * f[..., 0]).sum()).backward()
pickle.dump([x.grad.numpy() for x in (q, k, v)], open(sys.argv[3], "wb"))
dist.barrier()
"""


@pytest.mark.slow
def test_one_process_a_rank(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    said = [tmp_path / f"rank{rank}" for rank in range(2)]
    started = [
        subprocess.Popen([sys.executable, "-c", RANK, str(rank), str(tmp_path / "store"), str(said[rank])], cwd=ROOT)
        for rank in range(2)
    ]
    assert [process.wait(120) for process in started] == [0, 0]
    got = [pickle.loads(path.read_bytes()) for path in said]
    *arrays, factors = [[torch.tensor(x) for x in row] for row in inputs((1, 2, 5, 12), 1)]
    whole = [torch.cat(row, 2).requires_grad_() for row in arrays]
    wide = [whole[0], *(x.repeat_interleave(2, 1) for x in whole[1:])]
    out = torch.nn.functional.scaled_dot_product_attention(*wide, is_causal=True)
    scores = (wide[0] @ wide[1].mT * 12**-0.5).masked_fill(torch.ones(10, 10).triu(1) > 0, -torch.inf)
    factor = torch.cat(factors, 2)
    ((out * factor).sum() + (scores.logsumexp(-1) * factor[..., 0]).sum()).backward()
    for number, x in enumerate(whole):
        grad = torch.cat([torch.tensor(rank[number]) for rank in got], 2)
        assert (grad - x.grad).abs().max() <= 2e-6 * x.grad.abs().max()

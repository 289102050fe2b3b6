"""Norms and RoPE of the library with their gradients under PyTorch and JAX, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.errors import BadCallArgument

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
BOUND = {torch.float32: 1e-5, torch.bfloat16: 2**-7}
HEADS = (3, 1)


def far(x: Any, y: Any) -> float:
    return ((x.double() - y.double()).abs().max() / y.double().abs().max()).item()


def random(device: str, *shape: int, dtype: Any = torch.float32) -> Any:
    return torch.from_numpy(np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)).to(device, dtype)


def rms_norm(x: Any, weight: Any) -> Any:
    return torch.nn.functional.rms_norm(x, weight.shape, weight, 1e-5)


def layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, 1e-5)


def rope(x: Any, positions: Any, cos: Any, sin: Any) -> tuple[Any, ...]:
    """By products of complex numbers."""
    pair = torch.complex(*x.chunk(2, -1)) * torch.complex(cos.double(), sin.double())[positions.long()][..., None, :]
    whole, (q, kv) = torch.cat((pair.real, pair.imag), -1), HEADS
    return whole[..., :q, :], whole[..., q : q + kv, :], x[..., q + kv :, :]


def turns(device: str) -> tuple[Any, Any]:
    angle = torch.arange(40, device=device)[:, None] * torch.linspace(1, 0.1, 8, device=device)
    return angle.cos(), angle.sin()


def call(name: str) -> tuple[Any, Any]:
    ours, plain = {
        "rms_norm": (kd.library.rms_norm, rms_norm),
        "layer_norm": (kd.library.layer_norm, layer_norm),
        "rope": (lambda *a: kd.library.rope(*a, heads=HEADS), rope),
    }[name]
    return ours, plain


def inputs(name: str, device: str, dtype: Any = torch.float32) -> list[Any]:
    """More rows than a backward pass has blocks, so that each adds some up."""
    if name == "rope":
        positions = torch.arange(20, dtype=torch.int32, device=device).reshape(2, 10) * 2
        return [random(device, 2, 10, 5, 16, dtype=dtype), positions, *turns(device)]
    shapes = [(2, 150, 40), (40,), (40,)][: 2 if name == "rms_norm" else 3]
    return [random(device, *s, dtype=dtype) for s in shapes]


def total(made: Any) -> Any:
    parts = made if isinstance(made, tuple) else (made,)
    return sum((p.double().cos() * (n + 1)).sum() for n, p in enumerate(parts))


def gradients(function: Any, given: list[Any]) -> tuple[list[Any], list[Any]]:
    """The results and the gradients of a function's floats that may have one."""
    wanted = [g for g in given[: 1 if len(given) == 4 else 3] if g.is_floating_point()]
    for g in wanted:
        g.requires_grad_()
    made = function(*given)
    return list(made if isinstance(made, tuple) else (made,)), list(torch.autograd.grad(total(made), wanted))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "rope"])
def test_gradients_in_torch(name: str, dtype: Any, device: str) -> None:
    ours, plain = call(name)
    given = inputs(name, device, dtype)
    exact = [x.double() if x.is_floating_point() else x for x in given]
    made, wanted = gradients(ours, given), gradients(plain, exact)
    for results, theirs in zip(made, wanted, strict=True):
        for a, b in zip(results, theirs, strict=True):
            assert a.dtype is dtype and a.shape == b.shape and far(a, b) < BOUND[dtype]


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "rope"])
def test_in_graphs_of_torch(name: str) -> None:
    assert kd.torch
    ours, plain = call(name)
    given = inputs(name, "cpu")

    def function(*arrays: Any) -> Any:
        return ours(*arrays)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
    for part in (given, [g[:1].clone() if g.dim() > 2 or not g.is_floating_point() else g for g in given]):
        part = [x.detach() for x in part]
        exact = [x.double() if x.is_floating_point() else x for x in part]
        for results, theirs in zip(gradients(compiled, part), gradients(plain, exact), strict=True):
            assert all(far(a, b) < 1e-5 for a, b in zip(results, theirs, strict=True))


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm", "rope"])
def test_gradients_in_jax(name: str) -> None:
    jax: Any = pytest.importorskip("jax", reason="JAX is not installed")
    ours, plain = call(name)
    given = inputs(name, "cpu")
    count = 1 if name == "rope" else len(given)

    def loss(*arrays: Any) -> Any:
        made = ours(*arrays)
        parts = made if isinstance(made, tuple) else (made,)
        return sum((jax.numpy.cos(p) * (n + 1)).sum() for n, p in enumerate(parts))

    gradient = jax.grad(loss, tuple(range(count)))
    arrays = [x.numpy() for x in given]
    exact = gradients(plain, [x.double() if x.is_floating_point() else x for x in given])[1]
    rows = jax.jit(jax.vmap(gradient, (0,) + (None,) * (len(arrays) - 1)))(np.stack([arrays[0]] * 2), *arrays[1:])
    for found, row, wanted in zip(jax.jit(gradient)(*arrays), rows, exact, strict=True):
        assert far(torch.from_numpy(np.array(found)), wanted) < 1e-5
        assert far(torch.from_numpy(np.array(row[1])), wanted) < 1e-5


def test_a_weight_that_devices_share() -> None:
    """Its gradient is the sum over the devices of JAX's mesh."""
    jax: Any = pytest.importorskip("jax", reason="JAX is not installed")
    count = jax.device_count()
    mesh = jax.make_mesh((count,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, shared = jax.sharding.PartitionSpec("d"), jax.sharding.PartitionSpec()

    def loss(x: Any, weight: Any) -> Any:
        return jax.lax.psum(jax.numpy.sin(kd.library.rms_norm(x, weight)).sum(), "d")

    over_mesh = jax.shard_map(loss, mesh=mesh, in_specs=(rows, shared), out_specs=shared)
    x, w = random("cpu", 4 * count, 24), random("cpu", 24)
    exact = [y.double().requires_grad_() for y in (x, w)]
    wanted = torch.autograd.grad(rms_norm(*exact).sin().sum(), exact)
    for a, b in zip(jax.jit(jax.grad(over_mesh, (0, 1)))(x.numpy(), w.numpy()), wanted, strict=True):
        assert far(torch.from_numpy(np.array(a)), b) < 1e-5


def test_what_is_refused_in_a_gradient() -> None:
    x, w = random("cpu", 4, 8).requires_grad_(), random("cpu", 8)
    with pytest.raises(BadCallArgument, match="`rms_norm`: out= in a call that is traced or differentiated"):
        kd.library.rms_norm(x, w, out=x)
    (g,) = torch.autograd.grad(kd.library.rms_norm(x, w).sum(), x, create_graph=True)
    with pytest.raises(BadCallArgument, match="no second derivative"):
        g.sum().backward()

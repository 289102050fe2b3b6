"""Functions of the library under PyTorch's autograd and compiler, and in the place of its ops."""

from __future__ import annotations

from typing import Any

import pytest

import kernel_dsl as kd
from kernel_dsl.errors import BadCallArgument
from kernel_dsl.runtime.devices import driver

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
DEVICES = ["cpu"] + ["cuda"] * bool(driver.available() and torch.cuda.is_available())


def far(x: Any, y: Any) -> float:
    x, y = x.detach().double(), y.detach().double()
    return float((x - y).abs().max() / y.abs().max())


def made(device: str, *shapes: tuple[int, ...], dtype: Any = None) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(s, generator=generator).to(device, dtype or torch.float32) for s in shapes]
    return [x.requires_grad_() for x in drawn]


def attention_loss(q: Any, k: Any, v: Any) -> Any:
    return kd.library.attention(q + 0, k, v, causal=True).float().sin().sum()


def matmul_loss(a: Any, b: Any, c: Any) -> Any:
    return kd.library.matmul(a, b, bias=c).sin().sum()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("compiled", [False, True])
def test_attention(device: str, compiled: bool) -> None:
    assert kd.torch
    q, k, v = made(device, (1, 2, 64, 64), (1, 2, 64, 64), (1, 2, 64, 64), dtype=torch.bfloat16)
    function = torch.compile(attention_loss, fullgraph=True, backend="aot_eager") if compiled else attention_loss
    ours = torch.autograd.grad(function(q, k, v), (q, k, v))
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    out = torch.nn.functional.scaled_dot_product_attention(*exact, is_causal=True)
    for x, y in zip(ours, torch.autograd.grad(out.sin().sum(), exact), strict=True):
        assert x.dtype is torch.bfloat16
        assert far(x, y) < 0.02


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("compiled", [False, True])
def test_matmul(device: str, compiled: bool) -> None:
    assert kd.torch
    a, b, c = made(device, (2, 32, 48), (48, 16), (16,))
    function = torch.compile(matmul_loss, fullgraph=True, backend="aot_eager") if compiled else matmul_loss
    ours = torch.autograd.grad(function(a, b, c), (a, b, c))
    exact = [x.detach().double().requires_grad_() for x in (a, b, c)]
    wanted = torch.autograd.grad((exact[0] @ exact[1] + exact[2]).sin().sum(), exact)
    for x, y in zip(ours, wanted, strict=True):
        assert x.shape == y.shape
        assert far(x, y) < 1e-5


def test_lse_has_no_gradient_and_without_grad_nothing_is_kept() -> None:
    q, k, v = made("cpu", (1, 1, 64, 64), (1, 1, 64, 64), (1, 1, 64, 64), dtype=torch.bfloat16)
    out, lse = kd.library.attention(q, k, v, return_lse=True)
    assert out.requires_grad and not lse.requires_grad
    with torch.no_grad():
        assert not kd.library.attention(q, k, v).requires_grad


@pytest.mark.parametrize("device", DEVICES)
def test_override_forward_and_backward(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("matmul", "attention"):
        function = getattr(kd.library, name)
        monkeypatch.setattr(kd.library, name, lambda *a, _f=function, _n=name, **k: calls.append(_n) or _f(*a, **k))
    (x, q) = made(device, (4, 48), (1, 1, 64, 64))
    layer = torch.nn.Linear(48, 16).to(device)
    with kd.torch.override("aten::mm", "aten::addmm", "aten::scaled_dot_product_attention"):
        (gx,) = torch.autograd.grad(layer(x).sin().sum(), x)
        assert calls == ["matmul", "matmul"], "the layer, and its gradient"
        attended = torch.nn.functional.scaled_dot_product_attention(*[q.bfloat16()] * 3)
        torch.mm(torch.ones(2, 2, dtype=torch.int64), torch.ones(2, 2, dtype=torch.int64))
    assert calls == ["matmul", "matmul", "attention"]
    assert far(gx, torch.autograd.grad(layer(x).sin().sum(), x)[0]) < 1e-5
    assert far(attended, torch.nn.functional.scaled_dot_product_attention(q, q, q)) < 0.02
    calls.clear()
    torch.mm(x, x.T)
    assert not calls, "the context has ended"


def test_override_knows_its_names() -> None:
    with pytest.raises(BadCallArgument, match="no kernel stands for 'aten::add'"), kd.torch.override("aten::add"):
        pass


def test_steps_without_a_derivative_say_so() -> None:
    a, b = made("cpu", (16, 16), (16, 16))
    with pytest.raises(BadCallArgument, match="no derivative with activation="):
        kd.library.matmul(a, b, activation=kd.exp).sum().backward()

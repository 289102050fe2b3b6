"""What PyTorch's users do with the library without a word to it: compile a whole graph at once, and check gradients."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kernel_dsl as kd

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
ROOT = Path(__file__).parents[2]

# when a program first has the library's function, and when torch.compile is imported
ORDERS = {
    "before PyTorch": "import kernel_dsl as kd; kd.library.matmul; import torch",
    "after it": "import torch; import kernel_dsl as kd; kd.library.matmul",
    "after torch.compile": "import torch, torch._dynamo; import kernel_dsl as kd; kd.library.matmul",
    "in the graph": "import torch; import kernel_dsl as kd",
    "its own module": "import torch; from kernel_dsl.library.products.matmul import matmul; import kernel_dsl as kd",
    "beside kd.torch": "import kernel_dsl as kd; kd.torch; import torch",
}
WHOLE = """
@torch.compile(fullgraph=True, backend="eager")
def f(a, b):
    return kd.library.matmul(a, b).sin()

a, b = torch.ones(3, 5, requires_grad=True), torch.ones(5, 4)
f(a, b).sum().backward()
assert torch.allclose(a.grad, torch.full((3, 5), 4 * torch.cos(torch.tensor(5.0))))
assert torch.allclose(f(a.detach() * 2, b), torch.sin(torch.tensor(10.0)))
"""


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.sampled(2)
def test_a_whole_graph(order: str) -> None:
    code = ORDERS[order] + WHOLE
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_no_compiler_is_imported() -> None:
    """It takes longer than the library's first call."""
    code = "import sys, torch, kernel_dsl as kd; kd.library.attention; assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def numbers(*shapes: tuple[int, ...], dtype: Any = None) -> list[Any]:
    generator = torch.Generator().manual_seed(3)
    dtype = dtype or torch.float64
    return [torch.randn(s, generator=generator, dtype=dtype).requires_grad_() for s in shapes]


SIZES = [2, 1, 3]
CHECKED: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "attention": (
        lambda q, k, v: kd.library.attention(q, k, v, causal=True), [(1, 2, 4, 16), (1, 1, 5, 16), (1, 1, 5, 16)],
    ),
    "a product": (lambda a, b, c: kd.library.matmul(a, b, bias=c, activation=kd.tanh), [(3, 5), (5, 4), (4,)]),
    "products": (kd.library.matmul, [(2, 3, 5), (5, 4)]),
    "a gated product": (lambda a, b: kd.library.matmul(a, b, gated="swiglu"), [(3, 5), (5, 4)]),
    "groups": (
        lambda a, b: kd.library.grouped_matmul(a, b, torch.tensor(SIZES, dtype=torch.int32)), [(6, 5), (3, 5, 4)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKED)
def test_gradcheck(name: str) -> None:
    """PyTorch's own comparison with finite differences in float64, and of no gradient at all."""
    function, shapes = CHECKED[name]
    assert torch.autograd.gradcheck(function, numbers(*shapes), fast_mode=True)


ROWS = torch.tensor([1, 2, 0])
ALONE: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    **CHECKED,
    "logarithms": (
        lambda q, k, v: kd.library.attention(q, k, v, return_lse=True), [(1, 2, 4, 16), (1, 1, 5, 16), (1, 1, 5, 16)],
    ),
    "a convolution": (lambda x, w: kd.library.conv2d(x, w, padding=1), [(1, 4, 4, 3), (2, 3, 3, 3)]),
    "rows": (kd.library.rms_norm, [(3, 5), (5,)]),
    "rows and a shift": (kd.library.layer_norm, [(3, 5), (5,), (5,)]),
    "words": (lambda x, w: kd.library.linear_cross_entropy(x, w, ROWS), [(3, 5), (4, 5)]),
}  # fmt: skip


@pytest.mark.parametrize("name", ALONE)
def test_no_gradient(name: str) -> None:
    """Where autograd knows that nothing depends on the results, the inputs get none, or zeros."""
    function, shapes = ALONE[name]
    given = numbers(*shapes, dtype=torch.float32)
    results = function(*given)
    unknown = torch._C._functions.UndefinedGrad()
    nothing = [unknown(x) for x in (results if isinstance(results, tuple) else (results,))]
    ones = [torch.ones_like(x) for x in nothing]
    for gradient in torch.autograd.grad(nothing, given, ones, allow_unused=True):
        assert gradient is None or not gradient.any()

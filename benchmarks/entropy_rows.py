"""Rows of `benchmarks.products` for the cross-entropy of linear layers: its forward, and forward and gradients, beside
compiled torch. Rows "by autograd" have the three products of a loss with its gradients; the others compute logits twice.

The FLOP of a forward are those of one product, of gradients those of two more: the product that is computed again for them is not
counted, for torch keeps its logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

import kernel_dsl as kd
from kernel_dsl.library import MatmulConfig

from .grouped_rows import relative
from .product_rows import DEVICE, Row

SHAPES = ((8192, 4096, 131072), (4096, 4096, 128256), (8192, 768, 50257))  # rows, columns, classes
WIDE = MatmulConfig(128, 256, 64, 4, 2, cluster=2)
NARROW = MatmulConfig(128, 128, 64, 6, 2, ping_pong=True, cluster=2)
SAMPLES = 24  # rows that are checked


def _peer(x: Any, weight: Any, targets: Any) -> Callable[[Any, Any], Any]:
    functional = torch.nn.functional
    return torch.compile(lambda a, b: functional.cross_entropy((a @ b.T).float(), targets))


def work(
    rows: int, width: int, classes: int, gradients: bool, config: MatmulConfig | None, name: str, graph: bool = False
) -> Row:
    """One row; a forward alone with `config`; `graph`: gradients by autograd."""
    x = torch.randn(rows, width, device=DEVICE, dtype=torch.bfloat16)
    weight = torch.randn(classes, width, device=DEVICE, dtype=torch.bfloat16) * width**-0.5
    targets = torch.randint(0, classes, (rows,), device=DEVICE)
    peer = _peer(x, weight, targets)
    a, b = x.clone().requires_grad_(), weight.clone().requires_grad_()

    def forward() -> Any:
        return kd.library.linear_cross_entropy(x, weight, targets, return_lse=True, config=config)

    def both() -> Any:
        if graph:
            return torch.autograd.grad(kd.library.linear_cross_entropy(a, b, targets), (a, b))
        _, lse = forward()
        return kd.library.linear_cross_entropy_backward(1.0, x, weight, targets, lse)

    def theirs() -> Any:
        return torch.autograd.grad(peer(a, b), (a, b))

    def slopes(picked: Any) -> tuple[Any, Any]:
        logits = x[picked].double() @ weight.double().T
        part = logits.softmax(dim=1)
        part[torch.arange(len(picked), device=DEVICE), targets[picked]] -= 1
        return torch.logsumexp(logits, dim=1), part / rows

    def check() -> float:
        picked = torch.arange(0, rows, max(1, rows // SAMPLES), device=DEVICE)
        logs, part = slopes(picked)
        loss, lse = forward()
        pairs = [(lse[picked], logs)]
        whole = torch.cat([
            torch.nn.functional.cross_entropy(x[i : i + 1024].float() @ weight.float().T, targets[i : i + 1024], reduction="none")
            for i in range(0, rows, 1024)
        ])  # fmt: skip
        pairs.append((loss, whole.double().mean()))
        if gradients:
            dx, dweight = both()
            pairs.append((dx[picked], part @ weight.double()))
            some = targets[picked].unique()
            column = x.double() @ weight[some].double().T - lse.double()[:, None]
            column = (column.exp() - (targets[:, None] == some[None]).double()) / rows
            pairs.append((dweight[some], column.T @ x.double()))
        return relative(iter(pairs))

    flops = 2.0 * rows * width * classes
    words = f"entropy {rows}x{width}x{classes} {'forward, gradients' if gradients else 'forward'}{name}"
    moved = 2.0 * (rows + classes) * width * (3 if gradients else 1)
    if gradients:
        return Row(words, 3 * flops, both, theirs, check, 8e-3, moved)
    return Row(words, flops, forward, lambda: peer(x, weight), check, 2e-3, moved)


def works() -> Iterator[Callable[[], Row]]:
    """All rows."""
    for shape in SHAPES:
        yield lambda s=shape: work(*s, False, None, "")
        yield lambda s=shape: work(*s, True, None, "")
        yield lambda s=shape: work(*s, True, None, " by autograd", True)
    for config, name in ((WIDE, " 128x256"), (NARROW, " 128x128 in turns")):
        yield lambda c=config, n=name: work(*SHAPES[0], False, c, n)

"""One graph of `torch.compile(dynamic=True)` serves all sizes: functions of the library, each with one size that varies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import kernel_dsl as kd

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
library = kd.library

Form = tuple[Callable[..., Any], Callable[[int], list[Any]]]


def heads(*shape: int, extra: tuple[Any, ...] = ()) -> list[Any]:
    return [list(shape)] * 3 + list(extra)


# A call, and its arguments' shapes for a size: lists of float32 arrays, tuples of int32 arrays.
FORMS: dict[str, Form] = {
    "rows": (library.matmul, lambda n: [[n, 16], [16, 8]]),
    "columns": (library.matmul, lambda n: [[9, 16], [16, n]]),
    "depth": (library.matmul, lambda n: [[9, n], [n, 8]]),
    "batches": (library.matmul, lambda n: [[n, 9, 16], [n, 16, 8]]),
    "one b": (library.matmul, lambda n: [[n, 9, 16], [16, 8]]),
    "one a": (library.matmul, lambda n: [[9, 16], [n, 16, 8]]),
    "broadcast": (library.matmul, lambda n: [[3, 1, 9, 16], [n, 16, 8]]),
    "rows of batches": (library.matmul, lambda n: [[2, n, 9, 16], [16, 8]]),
    "turned": (lambda a, b: library.matmul(a, b.t()), lambda n: [[n, 16], [8, 16]]),
    "bias": (lambda a, b, c: library.matmul(a, b, bias=c), lambda n: [[n, 16], [16, 8], [8]]),
    "residual": (lambda a, b, c: library.matmul(a, b, residual=c), lambda n: [[n, 16], [16, 8], [n, 8]]),
    "gated": (lambda a, b: library.matmul(a, b, gated="silu"), lambda n: [[n, 16], [16, 8]]),
    "activation": (lambda a, b: library.matmul(a, b, activation="relu"), lambda n: [[n, 16], [16, 8]]),
    "images": (lambda x, w: library.conv2d(x, w, padding=1), lambda n: [[n, 9, 9, 16], [8, 3, 3, 16]]),
    "pixels": (lambda x, w: library.conv2d(x, w, padding=1, stride=2), lambda n: [[2, n, n, 16], [8, 3, 3, 16]]),
    "width": (lambda x, w: library.conv2d(x, w, dilation=2), lambda n: [[2, 15, n, 16], [8, 3, 3, 16]]),
    "groups": (lambda x, w: library.conv2d(x, w, groups=2), lambda n: [[n, 9, 9, 16], [8, 3, 3, 8]]),
    "channels": (library.conv2d, lambda n: [[2, 9, 9, n], [8, 3, 3, n]]),
    "attention": (lambda q, k, v: library.attention(q, k, v, causal=True), lambda n: heads(2, 3, n, 16)),
    "problems": (library.attention, lambda n: heads(n, 3, 9, 16)),
    "heads": (library.attention, lambda n: heads(2, n, 9, 16)),
    "keys": (library.attention, lambda n: [[2, 3, 9, 16], [2, 3, n, 16], [2, 3, n, 16]]),
    "shared keys": (
        library.attention, lambda n: [[2, 6, n, 16], [2, 3, n, 16], [2, 3, n, 16]],
    ),
    "bias of scores": (
        lambda q, k, v, b: library.attention(q, k, v, bias=b), lambda n: heads(2, 3, n, 16, extra=([2, 3, n, n],)),
    ),
    "window": (lambda q, k, v: library.attention(q, k, v, causal=True, window=8), lambda n: heads(2, 3, n, 16)),
    "lengths": (
        lambda q, k, v, lengths: library.attention(q, k, v, kv_seqlens=lengths),
        lambda n: heads(n, 3, 9, 16, extra=((n,),)),
    ),
    "groups of rows": (library.grouped_matmul, lambda n: [[n, 16], [3, 16, 8], (3,)]),
    "tokens": (library.linear_cross_entropy, lambda n: [[n, 16], [16, 32], (n,)]),
    "words": (library.linear_cross_entropy, lambda n: [[9, 16], [16, n], (9,)]),
}  # fmt: skip


def graphs_for(form: Form, sizes: list[int], device: str) -> int:
    """Call a compiled form and its gradient for each size; on a CPU, compare the results with the form itself."""
    call, shapes = form
    made: list[Any] = []
    inner = __import__("torch._dynamo.backends.debugging", fromlist=["aot_eager"]).aot_eager

    def backend(graph: Any, inputs: Any) -> Any:
        made.append(graph)
        return inner(graph, inputs)

    torch._dynamo.reset()
    compiled = torch.compile(lambda *args: call(*args) * 2, fullgraph=True, dynamic=True, backend=backend)
    for size in sizes:
        args = [
            torch.zeros(s, device=device, dtype=torch.int32)
            if isinstance(s, tuple)
            else torch.randn(s, device=device, requires_grad=True)
            for s in shapes(size)
        ]
        found = compiled(*args)
        smooth = [x for x in args if x.requires_grad]
        gradients = torch.autograd.grad(found.sum(), smooth)
        if device == "cpu":
            wanted = call(*args) * 2
            torch.testing.assert_close(found, wanted)
            torch.testing.assert_close(gradients, torch.autograd.grad(wanted.sum(), smooth))
        else:
            assert [g.shape for g in gradients] == [x.shape for x in smooth]
    return len(made)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", FORMS)
def test_one_graph_for_all_sizes(name: str) -> None:
    assert graphs_for(FORMS[name], [24, 12, 40], "meta") == 1


@pytest.mark.parametrize("name", ["broadcast", pytest.param("pixels", marks=pytest.mark.slow)])
def test_its_results(name: str) -> None:
    assert graphs_for(FORMS[name], [6, 4], "cpu") == 1


def test_batches_that_do_not_broadcast() -> None:
    """PyTorch's error, in which ours is a part."""
    call = torch.compile(library.matmul, fullgraph=True, backend="eager")
    with pytest.raises(Exception, match=r"BadCallValue.* a has batches of .*, and b of"):
        call(torch.zeros(3, 4, 8, requires_grad=True), torch.zeros(2, 8, 4))


def test_a_product_without_gradients() -> None:
    a, b = (torch.randint(-8, 8, shape, dtype=torch.int8) for shape in ((16, 32), (32, 8)))
    found = torch.compile(library.matmul, fullgraph=True, backend="aot_eager")(a, b)
    assert torch.equal(found, a.int() @ b.int())

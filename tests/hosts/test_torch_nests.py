"""Random nests of PyTorch's transformations around ops and the library: values and gradients are those of PyTorch's own."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import kernel_dsl as kd

from .seeds import seeds

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
func: Any = torch.func
Function = Callable[..., Any]


@kd.kernel(out_type=lambda x, y, factor: kd.ShapeDtypeStruct(x.shape, x.dtype))
def scaled(x: Any, y: Any, factor: float, o: Any) -> None:
    o[...] = x[...] * y[...] * factor


@kd.kernel(out_type=lambda x, y: (x, kd.ShapeDtypeStruct(x.shape[:-1], x.dtype)))
def sum_and_rows(x: Any, y: Any, o: Any, rows: Any) -> None:
    o[...] = x[...] + y[...]
    rows[...] = kd.sum(x[...], axis=len(x.shape) - 1)


def scaled_gradients(ctx: Any, g: Any) -> Any:
    x, y = ctx.saved_tensors[:2]
    factor = ctx.inputs_given[2]
    return SCALED(g, y, factor), SCALED(g, x, factor), None


SCALED = scaled.as_torch_op("test_nests::scaled", backward=scaled_gradients)
PAIR = sum_and_rows.as_torch_op("test_nests::sum_and_rows", backward=lambda ctx, g, rows: (g + rows.unsqueeze(-1), g))


def of_pair(x: Any, y: Any) -> Any:
    both, rows = PAIR(x, y)
    return both * rows.unsqueeze(-1)


PAIRS: dict[str, tuple[Function, Function]] = {
    "number": (lambda x, y: SCALED(x, y, 1.5), lambda x, y: x * y * 1.5),
    "two results": (of_pair, lambda x, y: (x + y) * x.sum(-1, keepdim=True)),
    "library": (lambda x, y: kd.library.matmul(x, y.mT), lambda x, y: x @ y.mT),
}
STEPS: dict[str, Callable[[Function], Function]] = {
    "vmap": func.vmap,
    "vmap of x": lambda f: func.vmap(f, in_dims=(0, None)),
    "vmap of y": lambda f: func.vmap(f, in_dims=(None, 0), out_dims=-1),
    "chunks": lambda f: func.vmap(f, chunk_size=1),
    "checkpoint": lambda f: lambda x, y: torch.utils.checkpoint.checkpoint(f, x, y, use_reentrant=False),
    "grad": lambda f: func.grad(lambda x, y: f(x, y).sin().sum()),
    "vjp": lambda f: lambda x, y: func.vjp(f, x, y)[1](f(x, y).cos())[1],
    "jacrev": lambda f: lambda x, y: func.jacrev(lambda x: f(x, y).sum(-1))(x).sum(-1),
    "detached": lambda f: lambda x, y: f(x, y.detach()),
}
MAPPED = {"vmap": (0, 1), "chunks": (0, 1), "vmap of x": (0,), "vmap of y": (1,)}
OUTER: dict[str, Callable[[Function, Any], Function]] = {
    "eager": lambda f, given: f,
    "compiled": lambda f, given: torch.compile(f, backend="aot_eager", fullgraph=True),
    "dynamic": lambda f, given: torch.compile(f, backend="aot_eager", dynamic=True),
    "make_fx": lambda f, given: made_fx(f, given, "real"),
    "symbolic": lambda f, given: made_fx(f, given, "symbolic"),
}


def made_fx(f: Function, given: Any, mode: str) -> Function:
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(f, tracing_mode=mode)(*(x.detach() for x in given))


def nest(rng: random.Random) -> tuple[str, list[str], str]:
    name, outer = rng.choice(sorted(PAIRS)), rng.choice(sorted(OUTER))
    without = {"library": {"grad", "vjp", "jacrev"}}.get(name, set[str]())  # it has no second derivatives
    without = without | {"eager": set[str](), "compiled": {"checkpoint", "chunks"}}.get(outer, {"checkpoint", "chunks"})
    steps = [rng.choice([s for s in STEPS if s not in without]) for _ in range(rng.randint(1, 3))]
    return name, steps, outer


def check(seed: int) -> None:
    rng = random.Random(seed)
    name, steps, outer = nest(rng)
    shapes = [[4, 4], [4, 4]]
    for number in (number for step in steps for number in MAPPED.get(step, ())):
        shapes[number].insert(0, 2)
    drawn = torch.Generator().manual_seed(seed)
    given = [torch.randn(*shape, generator=drawn).requires_grad_() for shape in shapes]

    def made(function: Function) -> tuple[Any, ...]:
        torch._dynamo.reset()
        for step in steps:
            function = STEPS[step](function)
        out = OUTER[outer](function, given)(*given)
        total = out.cos().sum() + 0 * sum(
            x.sum() for x in given
        )  # what is linear in them may not depend on them any more
        return out, *torch.autograd.grad(total, given)

    ours, plain = PAIRS[name]
    try:
        wanted = made(plain)
    except RuntimeError:  # a checkpoint inside a vmap runs again when the vmap has ended; older versions fail at more
        pytest.skip("PyTorch fails with its own ops")
    for got, expected in zip(made(ours), wanted, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3, msg=lambda m: f"{name} {steps} {outer}: {m}")


@pytest.mark.parametrize("seed", seeds(5, 9, 12, 13))
def test_nests(seed: int) -> None:
    check(seed)

"""Kernels and the library under what looks at PyTorch's operations: `torch.func`, checkpoints, tracers and modes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import kernel_dsl as kd
from kernel_dsl import runtime, vmapped
from kernel_dsl.errors import BadCallArgument, Error
from kernel_dsl.runtime.errors import ArgumentTypeError, ArgumentValueError, CudaError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
func: Any = torch.func


@kd.kernel(out_type=lambda x, y: kd.ShapeDtypeStruct(x.shape, x.dtype))
def times(x: Any, y: Any, o: Any) -> None:
    o[...] = x[...] * y[...]


@kd.kernel(out_type=lambda x: (x, kd.ShapeDtypeStruct((), x.dtype)))
def twice_and_sum(x: Any, o: Any, total: Any) -> None:
    value = x[...]
    o[...] = value * 2
    total[...] = kd.sum(value)


def product_gradients(ctx: Any, g: Any) -> Any:
    x, y = ctx.saved_tensors[:2]
    return OP(g, y), OP(g, x)


OP = times.as_torch_op("test_transforms::times", backward=product_gradients)
PAIR = twice_and_sum.as_torch_op("test_transforms::twice_and_sum", inputs=("x",))
DRAWN = torch.Generator().manual_seed(0)
A, B, C = (torch.randn(4, 8, generator=DRAWN) for _ in range(3))
W = torch.randn(8, 4, generator=DRAWN)


def matmul(x: Any) -> Any:
    return kd.library.matmul(x, W)


Function = Callable[[Any], Any]
FUNCTIONS: dict[str, tuple[Function, Function]] = {
    "op": (lambda x: OP(x, B) + OP(x, x), lambda x: x * B + x * x),
    "library": (matmul, lambda x: x @ W),
}
TRANSFORMS: dict[str, Callable[[Function], Any]] = {
    "grad": lambda f: func.grad(lambda x: f(x).sin().sum())(A),
    "vjp": lambda f: func.vjp(f, A)[1](f(A)),
    "jacrev": lambda f: func.jacrev(lambda x: f(x).sum(0))(A),
    "vmap": lambda f: func.vmap(f)(torch.stack([A, C])),
    "vmap of the last": lambda f: func.vmap(f, in_dims=2, out_dims=1)(torch.stack([A, C], -1)),
    "vmap of grad": lambda f: func.vmap(func.grad(lambda x: f(x).sin().sum()))(torch.stack([A, C])),
    "grad of vmap": lambda f: func.grad(lambda x: func.vmap(f)(x).sin().sum())(torch.stack([A, C])),
    "vmap of nothing": lambda f: func.vmap(f)(torch.stack([A, C])[:0]),
    "functionalize": lambda f: func.functionalize(f)(A),
    "grad of functionalize": lambda f: func.grad(func.functionalize(lambda x: f(x).sin().sum()))(A),
    "functionalize of vmap": lambda f: func.functionalize(func.vmap(f))(torch.stack([A, C])),
    "vmap of functionalize": lambda f: func.vmap(func.functionalize(f))(torch.stack([A, C])),
    "functionalize of writes": lambda f: func.functionalize(lambda x: f(x.clone().mul_(2)).add_(1))(A),
    "backward of functionalize": lambda f: differentiated(func.functionalize(lambda x: f(x).sin())),
    "compiled grad": lambda f: compiled(func.grad(lambda x: f(x).sin().sum()))(A),
    "compiled vmap": lambda f: compiled(func.vmap(f))(torch.stack([A, C])),
    "make_fx": lambda f: made_fx(f)(C),
    "jit.trace": lambda f: torch.jit.trace(f, A)(C),
    "mode": lambda f: counted(lambda: f(A)),
}


def differentiated(function: Function) -> Any:
    x = A.clone().requires_grad_()
    return torch.autograd.grad(function(x).sum(), x)[0]


def compiled(function: Function) -> Function:
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def made_fx(function: Function) -> Function:
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(function)(A)


def counted(run: Callable[[], Any]) -> Any:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        return run()


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_transforms(name: str, transform: str) -> None:
    ours, plain = (TRANSFORMS[transform](f) for f in FUNCTIONS[name])
    pairs = zip(ours, plain, strict=True) if isinstance(ours, tuple) else [(ours, plain)]
    for x, y in pairs:
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-3)


def test_an_error_of_a_launch_is_no_error_of_the_transform(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **options: Any) -> Any:
        raise CudaError("CUDA_ERROR_UNKNOWN", "what the driver says")

    monkeypatch.setattr(runtime, "call", fails)
    with pytest.raises(CudaError, match="what the driver says"):
        func.grad(lambda x: matmul(x).sin().sum())(A)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functionalize_of_a_gradient(name: str) -> None:
    for taken in (func.grad, lambda f: func.grad(lambda x: func.grad(f)(x).sum())):
        with pytest.raises(BadCallArgument, match=r"torch\.func\.functionalize of a gradient"):
            func.functionalize(taken(lambda x: FUNCTIONS[name][0](x).sin().sum()))(A)
    vmapped = func.functionalize(func.vmap(func.grad(lambda x: FUNCTIONS[name][0](x).sin().sum())))
    wanted = func.vmap(func.grad(lambda x: FUNCTIONS[name][1](x).sin().sum()))
    torch.testing.assert_close(vmapped(torch.stack([A, C])), wanted(torch.stack([A, C])))


def test_several_results_in_vmap() -> None:
    out, total = func.vmap(PAIR)(A)
    torch.testing.assert_close(out, A * 2)
    torch.testing.assert_close(total, A.sum(1))


def test_second_derivatives() -> None:
    """Of a rule that calls the op; the library has none."""
    found = func.grad(lambda x: func.grad(lambda z: OP(z, z).sin().sum())(x).sum())(A)
    plain = func.grad(lambda x: func.grad(lambda z: (z * z).sin().sum())(x).sum())(A)
    torch.testing.assert_close(found, plain)
    x = A.clone().requires_grad_()
    (first,) = torch.autograd.grad(matmul(x).sin().sum(), x, create_graph=True)
    with pytest.raises(BadCallArgument, match="`matmul`: it has no second derivative"):
        first.sum().backward()
    with pytest.raises(BadCallArgument, match="`matmul`: it has no second derivative"):
        func.grad(lambda x: func.grad(lambda z: matmul(z).sin().sum())(x).sum())(A)


@pytest.mark.parametrize("transform", [func.jvp, func.linearize])
def test_forward_mode(transform: Any) -> None:
    given = ((A,), (A,)) if transform is func.jvp else (A,)
    with pytest.raises(ArgumentValueError, match=r"op 'test_transforms::times' has no derivative in forward mode"):
        transform(lambda x: OP(x, B), *given)
    with pytest.raises(Error, match="no derivative in forward mode"):
        transform(matmul, *given)


def test_a_kernel_itself_takes_no_tensor_of_a_transform() -> None:
    with pytest.raises(ArgumentTypeError, match=r"a tensor of a transform of torch.func cannot be passed"):
        func.vmap(times)(A, B)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    def twice(x: Any) -> Any:
        return OP(matmul(x) @ W.T, B)

    x = A.clone().requires_grad_()
    checkpoint(twice, x, use_reentrant=reentrant).sin().sum().backward()
    plain = func.grad(lambda x: (x @ W @ W.T * B).sin().sum())(A)
    torch.testing.assert_close(x.grad, plain, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["make_fx", "jit.trace"])
def test_tracers_do_not_see_kernels(name: str) -> None:
    """Nor by calls that came before."""
    for _ in range(3):
        times(A, B)
    with pytest.raises(ArgumentValueError, match="records PyTorch's operations, and a kernel is none"):
        TRANSFORMS[name](lambda x: times(x, B))


def test_a_compiled_function_calls_a_kernel() -> None:
    """It breaks its graph there, and no frame of ours is compiled."""
    counter = pytest.importorskip("torch._dynamo.testing").CompileCounterWithBackend("eager")
    run = torch.compile(lambda x: times(x + 1, B) * 2, backend=counter)
    torch.testing.assert_close(run(A), (A + 1) * B * 2)
    assert counter.frame_count == 2
    with pytest.raises(Exception, match=r"a kernel is no op of PyTorch: kernel\.as_torch_op makes one"):
        torch.compile(lambda x: times(x + 1, B), backend="eager", fullgraph=True)(A)


def test_override_leaves_what_has_no_memory() -> None:
    with kd.torch.override("aten::mm"):
        assert torch.mm(A.to("meta"), W.to("meta")).shape == (4, 4)
        torch.testing.assert_close(func.grad(lambda x: torch.mm(x, W).sum())(A), W.sum(1).expand(4, 8))


def test_inductor_knows_our_ops() -> None:
    """Before it meets them: some versions write a message of gigabytes about an op that they do not know."""
    lowering = pytest.importorskip("torch._inductor.lowering")
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        x, w = mode.from_tensor(A), mode.from_tensor(W)
        kd.library.matmul(x, w)
        OP(x, x)
        PAIR(x)
    known = {re.sub(r"_\d+", "", str(op)) for op in lowering.lowerings}
    assert known >= {"kernel_dsl.matmul.default", "kernel_dsl.matmul_backward.default"}
    assert known >= {"test_transforms.times.default", "test_transforms.twice_and_sum.default"}


def test_subnormal_numbers_are_kept() -> None:
    x = torch.full((8,), 2.0**-130)
    wanted = times(x, torch.ones(8)).tolist()
    try:
        assert torch.set_flush_denormal(True)
        found = times(x, torch.ones(8))
    finally:
        torch.set_flush_denormal(False)
    assert found.tolist() == wanted == [2.0**-130] * 8


def drawn(*shape: int) -> Any:
    return torch.randn(*shape, generator=DRAWN).requires_grad_()


def entropy(x: Any, w: Any, t: Any) -> Any:
    return kd.library.linear_cross_entropy(x, w, t)


def attended(q: Any, k: Any) -> Any:
    return kd.library.attention(q, k, k)


def product(a: Any, b: Any) -> Any:
    return kd.library.matmul(a, b)


DYNAMIC: dict[str, tuple[Any, Callable[[int], list[Any]]]] = {
    "matmul": (product, lambda n: [drawn(n, 8), drawn(8, n)]),
    "attention": (attended, lambda n: [drawn(1, 1, n, 16), drawn(1, 1, n, 16)]),
    "cross-entropy": (
        entropy,
        lambda n: [drawn(n, 8), drawn(20, 8), torch.randint(0, 20, (n,), generator=DRAWN)],
    ),
    "op": (OP, lambda n: [drawn(n, 8), drawn(n, 8)]),
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_symbolic_sizes_of_two_programs(name: str) -> None:
    """One graph serves all sizes, with gradients; a second program finds the op of the first."""
    assert kd.torch
    counting = pytest.importorskip("torch._dynamo.testing").CompileCounterWithBackend
    function, make = DYNAMIC[name]
    for _ in range(2):
        torch._dynamo.reset()
        run = torch.compile(function, backend=counting("aot_eager"), fullgraph=True, dynamic=True)
        for n in (8, 12):
            given = make(n)
            found, plain = run(*given), function(*given)
            torch.testing.assert_close(found, plain, rtol=1e-3, atol=1e-3)
            ours, wanted = (torch.autograd.grad(x.sum(), given[:2]) for x in (found, plain))
            torch.testing.assert_close(ours, wanted, rtol=1e-3, atol=1e-3)


# --- ops that write in place --------------------------------------------------------------------------


@kd.kernel(out_type=lambda x, y: (x, x), input_output_aliases={0: 0})
def step_in_place(x: Any, y: Any, o: Any, before: Any) -> None:
    old = o[...]
    o[...] = old * 2 + y[...]
    before[...] = old


WRITES = step_in_place.as_torch_op("test_transforms::step_in_place", mutates_args=["x"], inputs=("x", "y"))


@kd.kernel(
    out_type=kd.ShapeDtypeStruct((2, 2, 2, 4, 16), kd.float32),
    scratch_types=(kd.SMEM((2, 2, 2, 4, 16), kd.float32), kd.Barrier()),
)
def corner(x: Any, o: Any, tile: Any, full: Any) -> None:
    kd.copy_gmem_to_smem(x.at[kd.ds(1, 2), kd.ds(1, 2), kd.ds(1, 2), kd.ds(1, 4), kd.ds(4, 16)], tile, full)
    kd.barrier_wait(full)
    o[...] = tile[...] * 2


def test_vmap_of_a_kernel_that_can_not_have_one_more_dimension(monkeypatch: pytest.MonkeyPatch) -> None:
    """TMA takes arrays of 5 dimensions at most, which only the lowering refuses. It is asked once."""
    op, asked = corner.as_torch_op("test_transforms::corner", inputs=("x",)), list[Any]()
    waits = vmapped.blocks_wait
    monkeypatch.setattr(vmapped, "blocks_wait", lambda ir: asked.append(ir) or waits(ir))
    xs = torch.randn(2, 3, 3, 3, 8, 32, generator=DRAWN)
    for _ in range(2):
        torch.testing.assert_close(func.vmap(op)(xs), xs[:, 1:, 1:, 1:, 1:5, 4:20] * 2)
    assert len(asked) == 1


@pytest.mark.parametrize("dims", [(0, 0), (0, None), (1, 0), (-1, 1)])
def test_vmap_of_an_op_that_writes(dims: Any) -> None:
    x, y = A.clone(), B if dims[1] is not None else B[0]
    x, y = (t if d is None or d == 0 else t.mT.contiguous() for t, d in zip((x, y), dims, strict=True))
    before, moved = x.clone(), x.movedim(dims[0], 0)
    wanted = moved * 2 + (y if dims[1] is None else y.movedim(dims[1], 0))
    found = func.vmap(lambda a, b: (WRITES(a, b), a)[0], in_dims=dims)(x, y)
    torch.testing.assert_close(x.movedim(dims[0], 0), wanted)
    torch.testing.assert_close(found, before.movedim(dims[0], 0))
    with pytest.raises(ArgumentValueError, match=r"op 'test_transforms::step_in_place' does not map 'x'"):
        func.vmap(lambda b: WRITES(B[0].clone(), b))(B)
    assert func.vmap(WRITES)(x.movedim(dims[0], 0)[:0], B[:0]).shape == (0, *before.movedim(dims[0], 0).shape[1:])


def test_what_is_written_has_no_gradient() -> None:
    """PyTorch would take the gradient of a tensor that an op wrote for that of the tensor before it."""
    x, writes = A.clone().requires_grad_(), r"`test_transforms::step_in_place`: it writes 'x', which requires grad"
    for run in (
        lambda: WRITES(x.clone(), B),
        lambda: WRITES(x, B),
        lambda: func.grad(lambda a: WRITES(a + 0, B).sum())(A),
    ):
        with pytest.raises(BadCallArgument, match=writes):
            run()
    torch.testing.assert_close(WRITES(A.clone(), x), A)  # what it reads may have one, that ends here
    with torch.no_grad():
        version = x._version
        WRITES(x, B)
    torch.testing.assert_close(x.detach(), A * 2 + B)
    assert x._version > version


# --- functions as arguments of the library, in one graph --------------------------------------------------


def weighted(weight: float) -> Any:
    return lambda score, b, h, q, k: score * weight - (q - k) * (q - k)


FUNCTION_CALLS: dict[str, tuple[Any, Callable[[Any, Any], Any]]] = {
    "score_mod": (weighted(0.5), lambda x, f: kd.library.attention(x, x, x, score_mod=f)),
    "mask_mod": (lambda b, h, q, k: (q + k) % 3 == 0, lambda x, f: kd.library.attention(x, x, x, mask_mod=f)),
    "epilogue": (lambda x: x * x + 1, lambda x, f: kd.library.matmul(x, x.mT, epilogue=f)),
}


@pytest.mark.parametrize("name", FUNCTION_CALLS)
def test_functions_in_one_graph(name: str) -> None:
    body, call = FUNCTION_CALLS[name]
    given = kd.torch.function(body)
    run = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=name != "epilogue")
    for n in (16, 24):
        x, y = (torch.linspace(-1, 1, n * 16).reshape(1, 1, n, 16).requires_grad_() for _ in range(2))
        found, wanted = run(x, given), call(y, body)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(*(torch.autograd.grad(o.sin().sum(), i)[0] for o, i in ((found, x), (wanted, y))))
        torch.testing.assert_close(call(y, given), wanted)


def test_another_function_compiles_again() -> None:
    run = torch.compile(lambda x, f: kd.library.attention(x, x, x, score_mod=f), fullgraph=True, backend="aot_eager")
    x = torch.linspace(-1, 1, 256).reshape(1, 1, 16, 16)
    for weight in (0.5, 4.0, -2.0):
        found = run(x, kd.torch.function(weighted(weight)))
        torch.testing.assert_close(found, kd.library.attention(x, x, x, score_mod=weighted(weight)))


def test_what_is_no_function_of_a_graph() -> None:
    with pytest.raises(BadCallArgument, match=r"`torch\.function`: 3"):
        kd.torch.function(3)
    with pytest.raises(BadCallArgument, match="a function that closes over arrays"):
        kd.torch.function(lambda score, b, h, q, k: score + A[q, k])

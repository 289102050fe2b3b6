"""Functions of the library under PyTorch's autograd and compiler, and in the place of its ops."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import kernel_dsl as kd
from kernel_dsl.errors import BadCallArgument, BadCallValue
from kernel_dsl.library.differentiable import FUNCTIONS
from kernel_dsl.library.losses import gradients as cross_entropy_gradients
from kernel_dsl.runtime.devices import driver
from kernel_dsl.runtime.errors import ArgumentTypeError, ArgumentValueError

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


def loss_of_lse(q: Any, k: Any, v: Any) -> Any:
    out, lse = kd.library.attention(q + 0, k, v, causal=True, return_lse=True)
    return out.float().sin().sum() + lse.square().sum()


def matmul_loss(a: Any, b: Any, c: Any) -> Any:
    return kd.library.matmul(a, b, bias=c).sin().sum()


def test_attention_in_turn(monkeypatch: Any) -> None:
    """`deterministic` reaches the gradients of autograd."""
    asked: list[bool] = []
    whole = FUNCTIONS["attention_backward"]

    def noted(*arrays: Any, deterministic: bool, **options: Any) -> Any:
        asked.append(deterministic)
        return whole(*arrays, deterministic=deterministic, **options)

    monkeypatch.setitem(FUNCTIONS, "attention_backward", noted)
    (q,) = made("cpu", (1, 1, 20, 64), dtype=torch.bfloat16)
    for wanted in (
        True,
        False,
    ):  # with a scale of its own: ops are kept, and those of other tests have the other function
        kd.library.attention(q, q, q, deterministic=wanted, scale=0.3).sum().backward()
    assert asked == [True, False]


@pytest.mark.parametrize("backward", [False, True])
def test_lengths_that_decrease(backward: bool) -> None:
    """Those of PyTorch on the CPU are read as NumPy's are."""
    x, lse = torch.ones(8, 2, 64, dtype=torch.bfloat16), torch.ones(2, 8)
    starts = torch.tensor([0, 5, 3], dtype=torch.int32)
    with pytest.raises(kd.Error, match=r"q_seqlens=\[0, 5, 3\]"):
        if backward:
            kd.library.attention_backward(x, x, x, x, x, lse, q_seqlens=starts, interpret=True)
        else:
            kd.library.attention(x, x, x, q_seqlens=starts, interpret=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("lse", [False, True])
def test_attention(device: str, compiled: bool, lse: bool) -> None:
    """Gradients of the output, and of the logarithms where the caller gets them."""
    assert kd.torch
    q, k, v = made(device, (1, 2, 64, 64), (1, 2, 64, 64), (1, 2, 64, 64), dtype=torch.bfloat16)
    function: Any = loss_of_lse if lse else attention_loss
    function = torch.compile(function, fullgraph=True, backend="aot_eager") if compiled else function
    ours = torch.autograd.grad(function(q, k, v), (q, k, v))
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    out = torch.nn.functional.scaled_dot_product_attention(*exact, is_causal=True)
    scores = (exact[0] @ exact[1].mT / 8).masked_fill(torch.ones(64, 64, device=device).triu(1) > 0, -torch.inf)
    loss = out.sin().sum() + lse * scores.logsumexp(-1).square().sum()
    for x, y in zip(ours, torch.autograd.grad(loss, exact), strict=True):
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


@pytest.mark.parametrize(
    ("function", "name"),
    [*itertools.product(("attention", "attention_backward"), ("scale", "softcap")), ("decode_attention", "softcap")],
)
def test_a_tensor_is_no_option(function: str, name: str) -> None:
    """Kernels are kept by options. A tensor was one by its identity, so it had its first value after a change, too."""
    x, lse = torch.ones(1, 1, 8, 64, dtype=torch.float16), torch.ones(1, 1, 8)
    given: dict[str, tuple[Any, ...]] = {
        "attention": (x, x, x),
        "attention_backward": (x, x, x, x, x, lse),
        "decode_attention": (x, x, x, torch.tensor([8], dtype=torch.int32)),
    }
    with pytest.raises(BadCallArgument, match=rf"{name}=tensor\(0.5000\)"):
        getattr(kd.library, function)(*given[function], **{name: torch.tensor(0.5)}, interpret=True)


def test_gradients_of_one_result_alone_and_without_grad_nothing_is_kept() -> None:
    q, k, v = made("cpu", (1, 1, 64, 64), (1, 1, 64, 64), (1, 1, 64, 64), dtype=torch.bfloat16)
    out, lse = kd.library.attention(q, k, v, return_lse=True)
    exact = q.detach().double().requires_grad_()
    (exact @ k.double().mT / 8).logsumexp(-1).sum().backward()
    assert far(torch.autograd.grad(lse.sum(), q, retain_graph=True)[0], exact.grad) < 0.02
    (alone,), (both,) = (torch.autograd.grad(x.sum(), q) for x in (kd.library.attention(q, k, v), out))
    assert torch.equal(alone, both)
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

    def larger(x: Any) -> Any:
        return kd.nextafter(x, 1.0)

    with pytest.raises(BadCallArgument, match="the epilogue uses `nextafter`, which has no derivative here"):
        kd.library.matmul(a, b, epilogue=larger).sum().backward()
    halved = kd.library.sparse_compress(torch.zeros(16, 16))
    with pytest.raises(BadCallArgument, match="no derivative with gated= beside a sparse a="):
        kd.library.matmul(halved, b, gated="swiglu").sum().backward()
    with pytest.raises(BadCallArgument, match="the activation uses `nextafter`, which has no derivative here"):
        kd.library.matmul(a, b, activation=larger).sum().backward()
    plain = a.detach()
    with pytest.raises(BadCallArgument, match="no derivative in forward mode"):
        torch.func.jvp(kd.library.matmul, (plain, plain), (plain, plain))
    with pytest.raises(ArgumentTypeError, match="a tensor of a transform of torch"):
        torch.vmap(kd.library.pack_int4)(torch.stack([plain, plain]))
    with pytest.raises(BadCallArgument, match="tensors on cpu and meta"):
        kd.library.matmul(a, b.to("meta"))


@pytest.mark.parametrize("device", DEVICES)
def test_tensors_with_tangents_are_refused(device: str) -> None:
    """By calls that came before without them, too."""
    from torch.autograd import forward_ad

    (a,) = made(device, (64, 64), dtype=torch.bfloat16)
    a = a.detach()
    for _ in range(3):
        kd.library.matmul(a, a)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(a, torch.ones_like(a))
        with pytest.raises(ArgumentValueError, match="a tensor with a tangent"):
            kd.library.matmul(dual, a)
    assert kd.library.matmul(a, a).shape == (64, 64)


STEPS: list[tuple[str, dict[str, Any]]] = [
    ("silu", {"activation": lambda x: x * kd.logistic(x)}),
    ("none", {"scale": 0.5, "out_scale": 3.0}),
    ("relu", {"activation": lambda x: kd.maximum(x, 0.0), "scale": 0.5}),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", STEPS, ids=lambda case: case[0])
def test_steps_of_matmul(device: str, case: Any) -> None:
    """Sums that were scaled, added to and put through a function; what is broadcast, too."""
    assert kd.torch
    name, options = case
    a, b, bias, residual = made(device, (33, 48), (48, 20), (20,), (33, 1))
    column = torch.rand(20).to(device) + 0.5
    out = kd.library.matmul(a, b, bias=bias, residual=residual, b_scale=column, out_dtype="float32", **options)
    ours = torch.autograd.grad(out.sin().sum(), (a, b, bias, residual))
    exact = [x.detach().double().requires_grad_() for x in (a, b, bias, residual)]
    z = (exact[0] @ exact[1]) * column.double() * options.get("scale", 1.0) + exact[2]
    y = {"silu": torch.nn.functional.silu, "none": lambda x: x, "relu": torch.relu}[name](z)
    y = (y + exact[3]) * options.get("out_scale", 1.0)
    assert far(out, y) < 1e-5
    for x, wanted in zip(ours, torch.autograd.grad(y.sin().sum(), exact), strict=True):
        assert x.shape == wanted.shape and far(x, wanted) < 2e-5


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["residual", "c"])
def test_gradients_that_pass_through(device: str, name: str) -> None:
    """What is added has the gradient of the result, in memory of its own."""
    assert kd.torch
    a, b, added = made(device, (16, 32), (32, 48), (16, 48))
    out = kd.library.matmul(a, b, **{name: added})
    weight = torch.rand(16, 48, device=device)
    ours = torch.autograd.grad(out, (a, b, added), weight)
    assert torch.equal(ours[2], weight) and ours[2].data_ptr() != weight.data_ptr()
    assert far(ours[0], weight.double() @ b.double().T) < 1e-5


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["linear_cross_entropy", "grouped_matmul", "conv2d"])
def test_all_that_is_differentiable_is_compiled_whole(device: str, name: str) -> None:
    assert kd.torch
    shapes: Any = {
        "linear_cross_entropy": ((12, 16), (40, 16)),
        "grouped_matmul": ((12, 16), (2, 16, 8)),
        "conv2d": ((1, 4, 4, 8), (8, 3, 3, 8)),
    }
    x, w = made(device, *shapes[name])
    more: Any = {
        "linear_cross_entropy": (torch.arange(12, device=device),),
        "grouped_matmul": (torch.tensor([5, 7], dtype=torch.int32, device=device),),
        "conv2d": (),
    }

    def loss(x: Any, w: Any) -> Any:
        return getattr(kd.library, name)(x * 2, w, *more[name]).sin().sum()

    ours, theirs = (
        torch.autograd.grad(f(x, w), (x, w)) for f in (torch.compile(loss, fullgraph=True, backend="aot_eager"), loss)
    )
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_epilogue_of_matmul(device: str) -> None:
    """A function of the sums, of a row, of a column, of a number and of an array of integers, and what comes before and after."""
    assert kd.torch
    a, b, bias, row, column = made(device, (33, 48), (48, 20), (20,), (20,), (33, 1))
    steps = torch.arange(20, device=device, dtype=torch.int32)

    def end(x: Any, row: Any, column: Any, number: Any, steps: Any) -> Any:
        return kd.logistic(x * 0.1) * row + column * column * x * number + steps.astype(kd.float32) * 0.01

    arrays = (a, b, bias, row, column)
    out = kd.library.matmul(
        a, b, bias=bias, scale=0.5, epilogue=end, operands=(row, column, 0.25, steps), activation=kd.tanh
    )
    ours = torch.autograd.grad(out.sin().sum(), arrays)
    exact = [x.detach().double().requires_grad_() for x in arrays]
    z = (exact[0] @ exact[1]) * 0.5 + exact[2]
    y = torch.sigmoid(z * 0.1) * exact[3] + exact[4] * exact[4] * z * 0.25 + steps.double() * 0.01
    y = y.tanh()
    assert far(out, y) < 1e-5
    for x, wanted in zip(ours, torch.autograd.grad(y.sin().sum(), exact), strict=True):
        assert x.shape == wanted.shape and far(x, wanted) < 2e-5
    only = torch.autograd.grad(kd.library.matmul(a.detach(), b.detach(), epilogue=end, operands=(
        row, column.detach(), 0.25, steps)).sum(), row)[0]  # fmt: skip
    assert far(only, torch.sigmoid((a @ b).detach().double() * 0.1).sum(0)) < 1e-5


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", ["int4", "zeros", "mxfp4", "sparse"])
def test_constants_of_matmul(device: str, form: str) -> None:
    """Packed and sparse matrices have no gradients; what they are multiplied with has, and what comes after."""
    assert kd.torch
    bf16 = torch.bfloat16
    a, w, bias = made(device, (33, 96), (96, 32), (32,), dtype=bf16)
    if form == "sparse":
        left = kd.library.sparse_compress(a.detach(), prune=True)
        dense, arrays = left.dense(), (w, bias)
        out = kd.library.matmul(left, w, bias=bias, activation=kd.tanh, out_dtype="float32")
    else:
        plain = w.detach()
        right: Any = (
            kd.library.pack_mxfp4(plain)
            if form == "mxfp4"
            else kd.library.pack_int4(plain, 64, form == "zeros" or None)
        )
        dense, arrays = right.unpacked("float32"), (a, bias)
        out = kd.library.matmul(a, right, bias=bias, activation=kd.tanh, out_dtype="float32")
    exact = [x.detach().double().requires_grad_() for x in arrays]
    y = (dense.double() @ exact[0] if form == "sparse" else exact[0] @ dense.double()) + exact[1]
    ours = torch.autograd.grad(out.sum(), arrays)
    for x, wanted in zip(ours, torch.autograd.grad(y.tanh().sum(), exact), strict=True):
        assert x.shape == wanted.shape and x.dtype is bf16 and far(x, wanted) < 2e-2


@pytest.mark.parametrize("device", DEVICES)
def test_pairs_of_4_bits(device: str) -> None:
    """A gate's gradient goes through two packed matrices. A product of bytes has one dtype, also where shapes alone are known."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    (a, *weights) = made(device, (16, 64), (64, 32), (64, 32), dtype=torch.bfloat16)
    pair = tuple(kd.library.pack_int4(w.detach()) for w in weights)
    (ours,) = torch.autograd.grad(kd.library.matmul(a, pair, gated="swiglu").sum(), [a])
    exact = a.detach().double().requires_grad_()
    gate, up = (exact @ x.unpacked("float32").double() for x in pair)
    (wanted,) = torch.autograd.grad((torch.nn.functional.silu(gate) * up).sum(), [exact])
    assert far(ours, wanted) < 2e-2
    narrow = torch.ones(16, 64, dtype=torch.int8, device=device)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert kd.library.matmul(mode.from_tensor(narrow), pair[0]).dtype is torch.bfloat16


@pytest.mark.parametrize("device", DEVICES)
def test_dropout_of_matmul(device: str) -> None:
    """The gradient goes where the result was kept."""
    assert kd.torch
    a, b = made(device, (16, 16), (16, 32))
    out = kd.library.matmul(a, b, dropout=(0.5, 7))
    (ours,) = torch.autograd.grad(out.sum(), a)
    kept = (out != 0).double()
    assert 0.2 < kept.mean() < 0.8 and far(ours, 2 * kept @ b.double().T) < 1e-5


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", ["pair", "columns in turn"])
def test_gated_matmul(device: str, form: str) -> None:
    assert kd.torch
    a, gate, up, first, second = made(device, (33, 48), (48, 24), (48, 24), (24,), (24,))
    given: Any = ((gate, up), (first, second))
    if form != "pair":
        given = tuple(torch.stack(x, -1).reshape(*x[0].shape[:-1], -1) for x in given)
    out = kd.library.matmul(a, given[0], bias=given[1], gated="swiglu")
    arrays = (a, gate, up, first, second)
    ours = torch.autograd.grad(out.sin().sum(), arrays)
    exact = [x.detach().double().requires_grad_() for x in arrays]
    y = torch.nn.functional.silu(exact[0] @ exact[1] + exact[3]) * (exact[0] @ exact[2] + exact[4])
    for x, wanted in zip(ours, torch.autograd.grad(y.sin().sum(), exact), strict=True):
        assert x.shape == wanted.shape and far(x, wanted) < 1e-4


@pytest.mark.parametrize("device", DEVICES)
def test_grouped_matmul(device: str) -> None:
    assert kd.torch
    a, b, bias = made(device, (40, 32), (3, 32, 16), (3, 16))
    sizes = torch.tensor([20, 0, 15], dtype=torch.int32, device=device)
    ours = torch.autograd.grad(kd.library.grouped_matmul(a, b, sizes, bias=bias).sin().sum(), (a, b, bias))
    exact = [x.detach().double().requires_grad_() for x in (a, b, bias)]
    parts = [exact[0][:20] @ exact[1][0] + exact[2][0], exact[0][20:35] @ exact[1][2] + exact[2][2]]
    for x, wanted in zip(ours, torch.autograd.grad(torch.cat(parts).sin().sum(), exact), strict=True):
        assert x.shape == wanted.shape and far(x, wanted) < 1e-5
    with pytest.raises(BadCallValue, match="uses `sort`"):
        kd.library.grouped_matmul(a, b, sizes, activation=kd.sort).sum().backward()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("compiled", [False, True])
def test_mixture_of_experts(device: str, compiled: bool) -> None:
    """Tokens gathered, two gated products of each expert, their weighted sums scattered: against the same by torch's ops."""
    assert kd.torch
    tokens, experts, each = 24, 3, 2
    x, gate, up, bias, down, weights = made(
        device, (tokens, 16), (experts, 16, 20), (experts, 16, 20), (experts, 20), (experts, 20, 16), (tokens, each)
    )
    chosen = torch.tensor([[i % experts, (i + 1) % experts] for i in range(tokens)], device=device)
    numbers = chosen.reshape(-1).argsort(stable=True).int()
    rows, sizes = numbers // each, torch.bincount(chosen.reshape(-1), minlength=experts).int()

    def layer(x: Any, gate: Any, up: Any, bias: Any, down: Any, weights: Any) -> Any:
        grouped = kd.library.grouped_matmul
        hidden = grouped(x, (gate, up), sizes, indices=rows, bias=(bias, bias * 2), gated="swiglu")
        return grouped(hidden, down, sizes, scatter=numbers, weights=weights).sin().sum()

    def plain(x: Any, gate: Any, up: Any, bias: Any, down: Any, weights: Any) -> Any:
        out = torch.zeros_like(x)
        for e in range(experts):
            token, place = (chosen == e).nonzero(as_tuple=True)
            hidden = torch.nn.functional.silu(x[token] @ gate[e] + bias[e]) * (x[token] @ up[e] + 2 * bias[e])
            out = out.index_add(0, token, (hidden @ down[e]) * weights[token, place][:, None])
        return out.sin().sum()

    given = x, gate, up, bias, down, weights
    function = torch.compile(layer, fullgraph=True, backend="aot_eager") if compiled else layer
    ours = torch.autograd.grad(function(*given), given)
    exact = [y.detach().double().requires_grad_() for y in given]
    for y, wanted in zip(ours, torch.autograd.grad(plain(*exact), exact), strict=True):
        assert y.shape == wanted.shape and far(y, wanted) < 1e-4


@pytest.mark.parametrize("device", DEVICES)
def test_operands_that_have_no_gradient(device: str) -> None:
    """Integers beside floats are constants, and bytes are refused with words."""
    assert kd.torch
    (x,) = made(device, (16, 32), dtype=torch.bfloat16)
    weight = torch.randint(-8, 8, (32, 16), device=device, dtype=torch.int8)
    (ours,) = torch.autograd.grad(kd.library.matmul(x, weight).float().sum(), x)
    assert far(ours, weight.double().sum(1).expand(16, 32)) < 0.01
    weight = weight.to(torch.bfloat16).requires_grad_()  # in the same place, after the constant
    (ours,) = torch.autograd.grad(kd.library.matmul(x, weight).float().sum(), weight)
    assert far(ours, x.detach().double().sum(0)[:, None].expand(32, 16)) < 0.01
    a, b = (y.detach().to(torch.float8_e4m3fn).requires_grad_() for y in made(device, (16, 32), (32, 16)))
    with pytest.raises(BadCallArgument, match="a is float8_e4m3fn, which has no gradient"):
        kd.library.matmul(a, b).float().sum().backward()
    with pytest.raises(BadCallArgument, match="a is float8_e4m3fn, which has no gradient"):
        sizes = torch.tensor([9, 7], dtype=torch.int32, device=device)
        kd.library.grouped_matmul(a, torch.stack([b, b]), sizes).float().sum().backward()


@pytest.mark.parametrize("device", DEVICES)
def test_conv2d(device: str) -> None:
    assert kd.torch
    x, w = made(device, (2, 7, 6, 8), (8, 3, 3, 8))
    ours = torch.autograd.grad(kd.library.conv2d(x, w, stride=2, padding=1).sin().sum(), (x, w))
    exact = [y.detach().double().requires_grad_() for y in (x, w)]
    out = torch.nn.functional.conv2d(*(y.permute(0, 3, 1, 2) for y in exact), stride=2, padding=1)
    for y, wanted in zip(ours, torch.autograd.grad(out.sin().sum(), exact), strict=True):
        assert y.shape == wanted.shape and far(y, wanted) < 1e-5


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("compiled", [False, True])
def test_cross_entropy_of_parts_of_a_vocabulary(device: str, compiled: bool) -> None:
    """What ranks of a vocabulary give, put together by the library and by torch itself."""
    assert kd.torch
    x, weight, bias = made(device, (20, 32), (70, 32), (70,))
    targets = torch.arange(20, device=device)
    targets[3] = -100

    def loss(x: Any, weight: Any, bias: Any) -> Any:
        parts = [
            kd.library.linear_cross_entropy(
                x, weight[p], targets, bias=bias[p], vocab_start=p.start, label_smoothing=0.1
            )
            for p in (slice(0, 32), slice(32, 70))
        ]
        own = torch.stack(parts)
        mean = kd.library.linear_cross_entropy_combine(own, targets, vocab=70, label_smoothing=0.1)
        return 3 * mean + torch.logsumexp(own[:, 0] + own[:, 1].log(), 0).square().mean()

    def plain(x: Any, weight: Any, bias: Any) -> Any:
        logits = x @ weight.T + bias
        mean = torch.nn.functional.cross_entropy(logits, targets, label_smoothing=0.1)
        return 3 * mean + torch.logsumexp(logits, 1).square().mean()

    given = x, weight, bias
    function = torch.compile(loss, fullgraph=True, backend="aot_eager") if compiled else loss
    ours = torch.autograd.grad(function(*given), given)
    exact = [y.detach().double().requires_grad_() for y in given]
    for y, z in zip(ours, torch.autograd.grad(plain(*exact), exact), strict=True):
        assert y.shape == z.shape and far(y, z) < 1e-4


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "some rows at a time"])
def test_linear_cross_entropy_by_exponentials(device: str, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16: exponentials are kept until the gradient is known, also under torch.compile, or not; twice the same bits."""
    assert kd.torch
    monkeypatch.setattr(cross_entropy_gradients, "DEEP", 32)
    if not kept:
        monkeypatch.setattr(cross_entropy_gradients, "UNIT", 32)
        monkeypatch.setattr(cross_entropy_gradients, "WORKSPACE", 4 * 72 * 32)
    x, weight, bias = made(device, (140, 32), (72, 32), (72,))
    x, weight = (y.detach().bfloat16().requires_grad_() for y in (x, weight))
    targets = torch.arange(140, device=device) % 72
    targets[3] = -100

    def loss(*arrays: Any) -> Any:
        return kd.library.linear_cross_entropy(*arrays[:2], targets, bias=arrays[2]) * 3

    arrays = (x, weight, bias)
    made_loss = loss(*arrays)
    ours = torch.autograd.grad(made_loss, arrays, retain_graph=True)
    again = torch.autograd.grad(made_loss, arrays)
    torch._dynamo.reset()  # it knows nothing of what was set above
    whole = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(*arrays), arrays)
    exact = [y.detach().double().requires_grad_() for y in arrays]
    wanted = 3 * torch.nn.functional.cross_entropy(exact[0] @ exact[1].T + exact[2], targets)
    assert far(made_loss, wanted) < 1e-5
    for y, z, same, other in zip(ours, torch.autograd.grad(wanted, exact), again, whole, strict=True):
        assert y.shape == z.shape and far(y, z) < 2.0**-7
        assert torch.equal(y, same) and torch.equal(y, other)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["logits", "exponentials"])
@pytest.mark.parametrize("parts", [(1, 0), (1, 1), (0, 1)], ids=["loss", "both", "lse"])
@pytest.mark.sampled(3)
def test_gradient_of_lse(device: str, dtype: Any, parts: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the gradients that are computed with the loss, also under torch.compile; one of the results may be unused."""
    assert kd.torch
    monkeypatch.setattr(cross_entropy_gradients, "DEEP", 32)
    x, weight, bias = made(device, (20, 32), (72, 32), (72,))
    arrays = (*(y.detach().to(dtype).requires_grad_() for y in (x, weight)), bias)
    targets = torch.arange(20, device=device)
    targets[3] = -100

    def joined(*results: Any) -> Any:
        return sum(3 * y.square().mean() for y, wanted in zip(results, parts, strict=True) if wanted)

    def loss(x: Any, weight: Any, bias: Any) -> Any:
        return joined(*kd.library.linear_cross_entropy(x, weight, targets, bias=bias, return_lse=True))

    def plain(x: Any, weight: Any, bias: Any) -> Any:
        logits = x @ weight.T + bias
        return joined(torch.nn.functional.cross_entropy(logits, targets), torch.logsumexp(logits, 1))

    ours = torch.autograd.grad(loss(*arrays), arrays)
    torch._dynamo.reset()  # it knows nothing of what was set above
    whole = torch.autograd.grad(torch.compile(loss, fullgraph=True, backend="aot_eager")(*arrays), arrays)
    exact = [y.detach().double().requires_grad_() for y in arrays]
    for y, z, same in zip(ours, torch.autograd.grad(plain(*exact), exact), whole, strict=True):
        assert y.shape == z.shape and far(y, z) < (1e-4 if dtype == torch.float32 else 2.0**-6)
        assert torch.equal(y, same)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("deep", [False, True], ids=["four products", "three products"])
def test_linear_cross_entropy(device: str, reduction: str, deep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of a product that is computed again, or beside the loss."""
    assert kd.torch
    monkeypatch.setattr(cross_entropy_gradients, "DEEP", 32 if deep else 64)
    x, weight, bias = made(device, (20, 32), (70, 32), (70,))
    targets = torch.arange(20, device=device)
    targets[3] = -100
    loss = kd.library.linear_cross_entropy(x, weight, targets, bias=bias, label_smoothing=0.1, reduction=reduction)
    ours = torch.autograd.grad((loss * 3).sum(), (x, weight, bias))
    exact = [y.detach().double().requires_grad_() for y in (x, weight, bias)]
    logits = exact[0] @ exact[1].T + exact[2]
    wanted = torch.nn.functional.cross_entropy(logits, targets, label_smoothing=0.1, reduction=reduction)
    assert far(loss, wanted) < 1e-5
    for y, z in zip(ours, torch.autograd.grad((wanted * 3).sum(), exact), strict=True):
        assert y.shape == z.shape and far(y, z) < 1e-4
    loss = kd.library.linear_cross_entropy(x, weight, targets, reduction=reduction).sum()
    (first,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(BadCallArgument, match="it has no second derivative"):
        first.sum().backward()

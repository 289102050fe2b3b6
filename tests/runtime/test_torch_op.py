"""Kernels as torch.library ops: eager, compiled whole, and differentiated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kernel_dsl as kd
from kernel_dsl.runtime.devices import driver
from kernel_dsl.runtime.errors import ArgumentTypeError

torch = pytest.importorskip("torch")
DEVICES = ["cpu"] + ["cuda"] * bool(driver.available() and torch.cuda.is_available())


def like(x: Any, y: Any) -> Any:
    return kd.ShapeDtypeStruct(x.shape, x.dtype)


@kd.kernel(out_type=like)
def product(x_ref, y_ref, o_ref):
    o_ref[...] = x_ref[...] * y_ref[...]


@kd.kernel(out_type=(kd.ShapeDtypeStruct((8,), kd.float32), kd.ShapeDtypeStruct((8,), kd.float32)))
def sum_and_scaled(x_ref, y_ref, factor: float, sum_ref, scaled_ref):
    sum_ref[...] = x_ref[...] + y_ref[...]
    scaled_ref[...] = x_ref[...] * factor


def backward(ctx: Any, grad: Any) -> Any:
    x, y, _ = ctx.saved_tensors
    return grad * y, grad * x


@pytest.mark.parametrize("device", DEVICES)
def test_eager_fake_and_compiled(device: str) -> None:
    op = product.as_torch_op("kd_tests::product")
    x, y = torch.randn(8, device=device), torch.randn(8, device=device)
    torch.testing.assert_close(op(x, y), x * y)
    assert str(op._opoverload._schema).endswith("(Tensor x, Tensor y) -> Tensor")
    torch.library.opcheck(op, (x, y))

    @torch.compile(fullgraph=True, backend="aot_eager")
    def twice(x: Any, y: Any) -> Any:
        return op(x + 1, y) * 2

    torch.testing.assert_close(twice(x, y), (x + 1) * y * 2)


@pytest.mark.parametrize("device", DEVICES)
def test_autograd(device: str) -> None:
    op = product.as_torch_op("kd_tests::product_grad", backward=backward)
    x = torch.randn(8, device=device, requires_grad=True)
    y = torch.randn(8, device=device, requires_grad=True)
    op(x, y).sum().backward()
    torch.testing.assert_close(x.grad, y.detach())
    torch.testing.assert_close(y.grad, x.detach())

    compiled = torch.compile(lambda a, b: op(a, b).sum(), fullgraph=True, backend="aot_eager")
    x.grad = None
    compiled(x, y).backward()
    torch.testing.assert_close(x.grad, y.detach())


def test_scalars_and_several_outputs() -> None:
    op = sum_and_scaled.as_torch_op("kd_tests::sum_and_scaled")
    x, y = torch.randn(8), torch.randn(8)
    total, scaled = op(x, y, 3.0)
    torch.testing.assert_close(total, x + y)
    torch.testing.assert_close(scaled, x * 3)
    total, scaled = op(x, y, factor=2.0)
    torch.testing.assert_close(scaled, x * 2)
    torch.library.opcheck(op, (x, y, 3.0))


def test_an_op_without_tensors_among_its_inputs_gives_tensors() -> None:
    @kd.kernel(out_type={"a": kd.ShapeDtypeStruct((8,), kd.bfloat16), "b": kd.ShapeDtypeStruct((2,), kd.int32)})
    def filled(value: float, out):
        out["a"][...] = kd.full((8,), value, kd.bfloat16)
        out["b"][...] = kd.full((2,), 7, kd.int32)

    op = filled.as_torch_op("kd_tests::filled", inputs=["value"])
    halves, sevens = op(1.5)
    assert halves.dtype is torch.bfloat16 and halves.tolist() == [1.5] * 8
    assert sevens.dtype is torch.int32 and sevens.tolist() == [7, 7]
    torch.library.opcheck(op, (2.5,))


def test_what_cannot_be_told() -> None:
    @kd.kernel(out_type=lambda *structs: structs[0])
    def anything(*refs):
        refs[-1][...] = refs[0][...]

    with pytest.raises(ArgumentTypeError, match="name the inputs"):
        anything.as_torch_op("kd_tests::anything")
    for name in ("product", "a::b::c", "kd_tests::1x", "kd_tests::a b", "", None, 3):
        with pytest.raises(ArgumentTypeError, match="two identifiers"):
            product.as_torch_op(name)
    for inputs in ("xy", 1.5, [3], ["1x"], ["x", "x"], ["class"], -1, 9):
        with pytest.raises(ArgumentTypeError, match="inputs") as caught:
            product.as_torch_op("kd_tests::inputs", inputs=inputs)
        assert caught.traceback[-1].path == Path(__file__)
    with pytest.raises(ArgumentTypeError, match="backward= of op"):
        product.as_torch_op("kd_tests::backward", backward="product")

    @kd.kernel(out_type=lambda x: {"a": x, "b": x}, interpret=True)
    def both(x, out):
        out["a"][...], out["b"][...] = x[...], x[...]

    with pytest.raises(ArgumentTypeError, match="gives 1 tensors by the body's signature, and out_type gave 2"):
        both.as_torch_op("kd_tests::both")(torch.ones(3))


@kd.kernel(out_type=lambda x, y: (x, kd.ShapeDtypeStruct((), kd.float32)), input_output_aliases={0: 0})
def add_in_place(x_ref, y_ref, o_ref, total_ref):
    o_ref[...] = x_ref[...] + y_ref[...]
    total_ref[...] = (x_ref[...] + y_ref[...]).sum()


@pytest.mark.parametrize("device", DEVICES)
def test_mutated_arguments(device: str) -> None:
    op = add_in_place.as_torch_op("kd_tests::add_in_place", mutates_args=["x"])
    assert str(op._opoverload._schema).endswith("(Tensor(x!) x, Tensor y) -> Tensor")
    x, y = torch.ones(8, device=device), torch.full((8,), 2.0, device=device)
    total = op(x, y)
    assert x.tolist() == [3.0] * 8

    @torch.compile(fullgraph=True, backend="aot_eager")
    def twice(x: Any, y: Any) -> Any:
        x = x + 0
        op(x, y)
        op(x, y)
        return x

    assert twice(x, y).tolist() == [7.0] * 8
    assert x.tolist() == [3.0] * 8
    assert total.shape == ()
    torch.library.opcheck(op, (x, y))


def test_mutated_arguments_that_do_not_go() -> None:
    for given, words in (
        (["y"], "names 'y', which is none"),
        (["z"], "names 'z'"),
        ("x", "is a list of inputs' names"),
    ):
        with pytest.raises(ArgumentTypeError, match=words):
            add_in_place.as_torch_op("kd_tests::bad_names", mutates_args=given)
    with pytest.raises(ArgumentTypeError, match="mutates its inputs"):
        add_in_place.as_torch_op("kd_tests::bad_backward", mutates_args=["x"], backward=backward)


@pytest.mark.parametrize("device", DEVICES)
def test_vmap(device: str) -> None:
    op = product.as_torch_op("kd_tests::product_vmap")
    slow = product.as_torch_op("kd_tests::product_vmap_backward", backward=backward)
    x, y = torch.randn(3, 8, device=device), torch.randn(8, device=device)
    for one in (op, slow):
        torch.testing.assert_close(torch.vmap(one, (0, None))(x, y), x * y)
        torch.testing.assert_close(torch.vmap(one, (1, None), 1)(x.T.contiguous(), y), (x * y).T)
    x.requires_grad_()
    torch.vmap(slow, (0, None))(x, y).sum().backward()
    torch.testing.assert_close(x.grad, y.expand(3, 8))


def test_export() -> None:
    op = product.as_torch_op("kd_tests::product_export")

    class Model(torch.nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return op(x, y) + 1

    x, y = torch.randn(8), torch.randn(8)
    program = torch.export.export(Model(), (x, y))
    assert any("product_export" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(x, y), x * y + 1)


@pytest.mark.gpu
@pytest.mark.skipif("cuda" not in DEVICES, reason="needs torch on a GPU")
def test_under_inductor_and_cuda_graphs() -> None:
    op = product.as_torch_op("kd_tests::product_inductor")
    for mode in (None, "reduce-overhead"):
        compiled = torch.compile(lambda a, b: op(a + 1, b) * 2, fullgraph=True, mode=mode)
        for _ in range(4):
            x, y = torch.randn(8, device="cuda"), torch.randn(8, device="cuda")
            torch.testing.assert_close(compiled(x, y), (x + 1) * y * 2)

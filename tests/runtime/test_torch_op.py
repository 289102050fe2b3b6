"""Kernels as torch.library ops: eager, compiled whole, and differentiated."""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kernel_dsl as kd
from kernel_dsl import torch_native, torch_ops
from kernel_dsl.errors import BadCallArgument, BadCallValue, NoHostCode
from kernel_dsl.runtime import torch_op
from kernel_dsl.runtime.devices import devices, driver
from kernel_dsl.runtime.errors import ArgumentTypeError, ArgumentValueError
from tests import aotinductor
from tests.conftest import ROOT

torch = pytest.importorskip("torch")
FakeTensorMode: Any = pytest.importorskip("torch._subclasses.fake_tensor").FakeTensorMode
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
    with pytest.raises(BadCallArgument, match=f"tensors on {device}.* and meta"):
        op(x, y.to("meta"))
    with FakeTensorMode() as mode, pytest.raises(BadCallArgument, match="tensors on cuda:0 and cpu"):
        op(torch.empty(8, device="cuda:0"), mode.from_tensor(torch.ones(8)))


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


def test_little_is_between_the_dispatcher_and_an_op() -> None:
    """Without gradients an op's function is what PyTorch calls; with anything else in the way, nothing of a custom op is lost."""
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils._python_dispatch import TorchDispatchMode

    inner: list[Any] = []

    def run(x: Any) -> Any:
        inner.append((type(x), torch.is_grad_enabled(), x.is_conj()))
        return x.detach().clone()

    op = torch_ops.define("kd_tests::little", "(Tensor x) -> Tensor", run, torch.empty_like)
    x = torch.randn(3)
    with torch.no_grad():
        op(x)
        names: list[str] = []
        sys.setprofile(lambda frame, event, _: names.append(frame.f_code.co_name) if event == "call" else None)
        try:
            op(x)
        finally:
            sys.setprofile(None)
    assert names == ["__call__", "__call__", "at_autograd", "run"]
    watched = x.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        op(watched).sum().backward()
    op.register_autograd(lambda ctx, gradient: 3 * gradient)
    op(watched).sum().backward()
    assert torch.equal(watched.grad, torch.full((3,), 3.0))

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(func._schema.name)
            return func(*args, **(kwargs or {}))

    names.clear()
    with torch.no_grad(), Names():
        op(x)
    assert "kd_tests::little" in names
    count = len(inner)
    with torch.no_grad():
        graph = make_fx(lambda x: op(x + 1), tracing_mode="fake")(x)
        assert any(node.target is torch.ops.kd_tests.little.default for node in graph.graph.nodes)
        assert torch.func.vmap(op)(torch.stack([x, -x])).shape == (2, 3)
        assert op(torch.ones(2, dtype=torch.complex64).conj()).is_conj() is False
    assert len(inner) > count and all(seen == (torch.Tensor, False, False) for seen in inner)


def test_torch_compile_looks_at_no_frame_of_an_op() -> None:
    """An op that runs between the graphs of a function with breaks."""
    op = product.as_torch_op("kd_tests::between")
    x = torch.ones(8)

    @torch.compile(backend="eager")
    def broken(x: Any) -> Any:
        torch._dynamo.graph_break()
        return eager(x) + 1

    @torch._dynamo.decorators.skip
    def eager(x: Any) -> Any:
        return op(x, x)

    torch._dynamo.utils.counters.clear()
    for _ in range(2):
        assert torch.equal(broken(x), 2 * torch.ones(8))
    breaks = [str(k) for k in torch._dynamo.utils.counters["graph_break"]]
    assert not [b for b in breaks if "kernel_dsl" in b], breaks


def test_forward_mode_is_refused() -> None:
    """PyTorch would drop the tangents without a word."""
    from torch.autograd import forward_ad

    op = product.as_torch_op("kd_tests::product_forward", backward=backward)
    x = torch.randn(8)
    with pytest.raises(ArgumentValueError, match="'kd_tests::product_forward' has no derivative in forward mode"):
        torch.func.jvp(lambda x: op(x, x), (x,), (x,))
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones(8))
        for call in (product, kd.library.matmul):
            with pytest.raises(ArgumentValueError, match="a tensor with a tangent cannot be passed to a kernel"):
                call(dual.reshape(1, 8) if call is not product else dual, x.reshape(8, 1) if call is not product else x)
        torch.testing.assert_close(product(x, x), x * x)
    torch.testing.assert_close(op(x, x), x * x)


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


def times(factor: Any, scale: float = 1.0) -> Any:
    @kd.kernel(out_type=lambda x: x, grid=(1,))
    def by_factor(x_ref, o_ref):
        o_ref[...] = x_ref[...] * (factor["by"] * scale)

    return by_factor


def test_an_op_keeps_its_kernel() -> None:
    """A second kernel of the same name would change the results of the first one's op."""
    name, x = "kd_tests::keeps", torch.ones(8)
    op = times({"by": 2}).as_torch_op(name)
    for other in (times({"by": 3}), times({"by": 2}, 2.0), times([2]), add_in_place):
        with pytest.raises(
            BadCallValue, match=r"'kd_tests::keeps' is already the op of `by_factor` at .*test_torch_op.py"
        ):
            other.as_torch_op(name)
        assert op(x).tolist() == [2.0] * 8
    assert times({"by": 2}).as_torch_op(name)(x).tolist() == [2.0] * 8  # the same kernel, made again
    cell = "@kd.kernel(out_type=lambda x: x)\ndef cell(x, o):\n    o[...] = x[...] * FACTOR\ncell = cell.as_torch_op('kd_tests::cell')"
    for factor in (2, 3):  # a cell of a notebook that is edited and runs again
        notebook: dict[str, Any] = {"kd": kd, "__name__": "__main__"}
        exec(cell.replace("FACTOR", str(factor)), notebook)
        assert notebook["cell"](x).tolist() == [factor] * 8
    product.as_torch_op("kd_tests::option")
    assert product.as_torch_op("kd_tests::option", backward=backward)(x, x).tolist() == [1.0] * 8
    for taken in ("aten::mm", "kernel_dsl::attention"):
        with pytest.raises(BadCallValue, match="is a name that PyTorch or a library has taken"):
            product.as_torch_op(taken)


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
        (["y"], "names 'y', which is not one of its inputs"),
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


@kd.kernel(out_type=lambda x: (kd.ShapeDtypeStruct((x.shape[0] * 2 + 1, kd.cdiv(x.shape[1], 4)), x.dtype), x))
def shaped(x_ref, wide_ref, same_ref):
    wide_ref[...] = kd.full_like(wide_ref, 1)
    same_ref[...] = x_ref[...] * 3


M = kd.Dim("M", 2, 64)


@kd.kernel(shapes={"x_ref": (M, 8)}, out_type=kd.ShapeDtypeStruct((M * 2, 8), kd.float32), grid=(M,))
def doubled_rows(x_ref, o_ref):
    i = kd.program_id(0)
    o_ref[2 * i] = x_ref[i]
    o_ref[2 * i + 1] = -x_ref[i]


@kd.kernel(out_type=lambda x: x if x.shape[0] > 4 else kd.ShapeDtypeStruct((4, *x.shape[1:]), x.dtype))
def asks(x_ref, o_ref):
    o_ref[...] = kd.full_like(o_ref, 2)


class Counted:
    """A compiler that runs the graph as it is, and counts the graphs."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, module: Any, examples: Any) -> Any:
        self.graphs += 1
        return module.forward


@pytest.mark.parametrize("kernel", [shaped, doubled_rows], ids=["functions", "dims"])
@pytest.mark.parametrize("marked", [False, True])
def test_one_graph_is_for_all_sizes(kernel: Any, marked: bool) -> None:
    op = kernel.as_torch_op(f"kd_tests::all_sizes_{kernel.name}", inputs=("x",))
    counted = Counted()

    def function(x: Any) -> Any:
        made = op(x + 1)
        return made if isinstance(made, torch.Tensor) else (made[0] + made[1].sum(), made[1])

    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend=counted, dynamic=None if marked else True)
    for rows in (5, 3, 17):
        x = torch.randn(rows, 8)
        if marked:
            torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(compiled(x), function(x))
    assert counted.graphs == 1


def test_the_range_of_a_dim_holds_in_graphs() -> None:
    op = doubled_rows.as_torch_op("kd_tests::range", inputs=("x",))
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: op(x) * 1, fullgraph=True, backend=Counted(), dynamic=True)
    compiled(torch.randn(5, 8))
    with pytest.raises(Exception, match="DimOutOfRange"):
        compiled(torch.randn(65, 8))


def test_an_out_type_that_asks_for_a_number_has_a_graph_a_size() -> None:
    op = asks.as_torch_op("kd_tests::asks")
    counted = Counted()
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: op(x) + 1, fullgraph=True, backend=counted, dynamic=True)
    for rows in (3, 7):
        assert compiled(torch.randn(rows, 8)).shape == (max(rows, 4), 8)
    assert counted.graphs == 2


def test_export_with_sizes_that_change() -> None:
    op = shaped.as_torch_op("kd_tests::shaped_export", inputs=("x",))

    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return op(x)[1] + 1

    program = torch.export.export(Model(), (torch.randn(5, 8),), dynamic_shapes=({0: torch.export.Dim("rows", min=2)},))
    for rows in (5, 9):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(program.module()(x), x * 3 + 1)


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
    assert torch_native._twins["kd_tests::product_inductor"]._found == 1, "calls that come again have host code"


@kd.kernel(out_type=lambda x, n: kd.ShapeDtypeStruct(x.shape, x.dtype, 0), grid=lambda x, n: (n,))
def first_rows(x_ref, n: int, o_ref):
    o_ref[kd.program_id(0)] = x_ref[kd.program_id(0)]


def test_host_code_of_an_op_is_made_from_its_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The part that needs no GPU: which calls have host code, and the machine code of such a call."""
    made: list[Any] = []
    monkeypatch.setattr(torch_op, "add_twin", lambda *parts: made.append(parts[4]))
    monkeypatch.setattr(devices, "cuda_device", lambda index: SimpleNamespace(target=SimpleNamespace(name="sm_90a")))
    given = [kd.ShapeDtypeStruct((8,), "float32")] * 2
    for kernel, arrays in ((product, given), (first_rows, [kd.ShapeDtypeStruct((4, 8), "float32"), 2])):
        kernel.as_torch_op(f"kd_tests::{kernel.__name__}_host")
        with pytest.raises(NoHostCode):  # no call has come on the fast path
            made[-1](arrays, 0)
        monkeypatch.setattr(kernel, "_fast", object())
        if kernel is product:
            ir, assembled = made[-1](arrays, 0)
            assert ir.name == "product" and assembled.cubin
    first_rows._fast = None
    torch.testing.assert_close(first_rows(torch.ones(4, 8), 2)[:2], torch.ones(2, 8))
    monkeypatch.setattr(first_rows, "_fast", object())
    with pytest.raises(NoHostCode):  # its grid is the value of a scalar
        made[-1](arrays, 0)


@pytest.mark.gpu
def test_sizes_that_depend_on_numbers_stay_with_python() -> None:
    op = first_rows.as_torch_op("kd_tests::first_rows")
    x = torch.randn(8, 64, device="cuda")
    compiled = torch.compile(lambda x, n: op(x, n) + 0, fullgraph=True)
    for n in (2, 2, 2, 2, 5, 8, 2):
        made = compiled(x, n)
        assert torch.equal(made[:n], x[:n]) and not made[n:].any(), n


@pytest.mark.slow
def test_what_inductor_calls() -> None:
    """The op's twin."""
    if not shutil.which("g++"):
        pytest.skip("needs a C++ compiler")
    from torch._inductor.utils import run_and_get_code

    op = product.as_torch_op("kd_tests::inductor", backward=backward)
    x, y = torch.randn(8), torch.randn(8)
    made, code = run_and_get_code(torch.compile(lambda x, y: op(x + 1, y) * 3, fullgraph=True), x, y)
    torch.testing.assert_close(made, (x + 1) * y * 3)
    assert "torch.ops.kd_tests.inductor__compiled.default" in code[0]
    given = x.clone().requires_grad_()
    loss, code = run_and_get_code(torch.compile(lambda x, y: op(x + 1, y).sum(), fullgraph=True), given, y)
    assert "torch.ops.kd_tests.inductor__compiled.default" in code[0]
    loss.backward()
    torch.testing.assert_close(given.grad, y)


PACKAGE = """
import sys, torch
from tests.runtime.test_torch_op import backward, product
op = product.as_torch_op("kd_tests::inductor", backward=backward)
class Model(torch.nn.Module):
    def forward(self, x, y):
        return op(x + 1, y)
x, y = torch.randn(8), torch.randn(8)
program = torch.export.export(Model(), (x, y))
package = torch._inductor.aoti_compile_and_package(program, package_path=sys.argv[1])
torch.testing.assert_close(torch._inductor.aoti_load_package(package)(x, y), (x + 1) * y)
"""


@pytest.mark.slow
def test_what_a_package_of_aotinductor_calls(tmp_path: Path) -> None:
    """The op itself."""
    if not shutil.which("g++"):
        pytest.skip("needs a C++ compiler")
    package = tmp_path / "model.pt2"
    aotinductor.run(PACKAGE, tmp_path, str(package), env={**os.environ, "PYTHONPATH": str(ROOT)})
    with zipfile.ZipFile(package) as members:
        texts = [members.read(name) for name in members.namelist()]
    assert any(b"inductor" in text for text in texts) and not any(b"inductor__compiled" in text for text in texts)

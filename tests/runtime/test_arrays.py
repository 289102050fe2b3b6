"""Views of every framework's arrays, overlap, and what is refused."""

from __future__ import annotations

import operator
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kernel_dsl.dtypes import ALL, as_dtype, bfloat16, float32, float64, int32
from kernel_dsl.errors import UnknownDType
from kernel_dsl.runtime.arrays import dlpack
from kernel_dsl.runtime.arrays.array_view import ArrayView, is_array, overlap, row_major, view
from kernel_dsl.runtime.devices import memory
from kernel_dsl.runtime.errors import ArgumentTypeError, ArgumentValueError

VERSIONED = np.lib.NumpyVersion(np.__version__) >= "2.1.0"  # whether it knows the capsules of DLPack 1.0


def test_importing_runtime_and_library_imports_no_framework_no_driver_and_no_compiler() -> None:
    """A function of the library imports the driver's bindings when it is named, where a driver is installed."""
    code = (
        "import sys; first = set(sys.modules); import kernel_dsl; from kernel_dsl import library, runtime; "
        "kernel_dsl.Graph(); names = ('torch', 'jax', 'cupy', 'llvmlite', 'kernel_dsl.lowering', 'kernel_dsl.ops'); "
        "new = lambda *more: [n for n in (*names, *more) if n in sys.modules and n not in first]; "
        "print([n for n in sys.modules if '.library.' in n], new('cuda')); "
        "library.matmul, library.attention, library.grouped_matmul; import kernel_dsl.library.products.sparse_matmul; print(new(), callable(library.sparse_matmul))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["[] []", "[] True"]


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_numpy_views(dtype: Any) -> None:
    base = np.zeros((4, 6), dtype.numpy)
    seen = view(base[::2, ::-1])
    assert seen.dtype == dtype
    assert (seen.shape, seen.strides) == ((2, 6), (12, -1))
    assert seen.address == base.ctypes.data + 5 * dtype.itemsize
    assert seen.span() == (base.ctypes.data, base.ctypes.data + 18 * dtype.itemsize)
    assert not seen.contiguous and view(base).contiguous
    back = memory.host_array(seen)
    assert back.dtype == dtype.numpy and np.shares_memory(back, base)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (1, 5, 1), (2, 3)])
def test_contiguity_and_size(shape: tuple[int, ...]) -> None:
    seen = view(np.zeros(shape, np.float32))
    assert seen.contiguous
    assert seen.nbytes == seen.size * 4 == np.zeros(shape, np.float32).nbytes
    assert row_major(shape) == (1,) * 0 if shape == () else len(row_major(shape)) == len(shape)


def test_read_only_numpy() -> None:
    array = np.zeros(4, np.float32)
    array.flags.writeable = False
    assert view(array).readonly
    assert not view(np.zeros(4, np.float32)).readonly


def test_what_numpy_arrays_are_refused() -> None:
    with pytest.raises(ArgumentTypeError, match="byte order"):
        view(np.zeros(3, ">f4"))
    with pytest.raises(ArgumentTypeError, match="kernels lack this dtype"):
        view(np.zeros(3, object))
    with pytest.raises(ArgumentTypeError, match="masked"):
        view(np.ma.zeros(3, np.float32))
    fields = np.zeros(3, [("a", np.float32), ("b", np.int8)])
    with pytest.raises(ArgumentValueError, match="whole number"):
        view(fields["a"])
    with pytest.raises(ArgumentTypeError, match="not an array"):
        view([1, 2, 3])


def test_dtypes_of_mlx() -> None:
    """Its arrays come by DLPack, and their `dtype` is an object of its own that only prints its name."""

    class Dtype:
        def __init__(self, name: str) -> None:
            self.name = name

        def __repr__(self) -> str:
            return f"mlx.core.{self.name}"

    Dtype.__module__ = "mlx.core"
    for dtype in (bfloat16, float32, float64, int32):
        assert as_dtype(Dtype(dtype.name)) is dtype
    assert as_dtype(Dtype("bool")).name == "bool"
    with pytest.raises(UnknownDType, match=r"mlx\.core\.float7"):
        as_dtype(Dtype("float7"))


def test_is_array() -> None:
    assert is_array(np.zeros(())) and is_array(np.zeros(3, ml_dtypes.bfloat16))
    for value in (1, 1.0, True, None, "x", np.float32(1), [1], ml_dtypes.bfloat16(1), object()):
        assert not is_array(value)


def _at(start: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> ArrayView:
    return ArrayView(4096 + 4 * start, shape, strides, float32, ("cpu", 0), "numpy")


@pytest.mark.parametrize("seed", range(40))
def test_overlap_agrees_with_numpy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    base = np.zeros(60, np.float32)

    def part() -> Any:
        start, step = int(rng.integers(0, 30)), int(rng.choice([-3, -2, 1, 2, 3, 4]))
        cut = base[start::step] if step > 0 else base[start + 20 :: step]
        return cut[: int(rng.integers(0, 8))]

    a, b = part(), part()
    assert overlap(view(a), view(b)) == np.shares_memory(a, b)


@pytest.mark.parametrize("rank", range(5))
def test_an_array_that_overlaps_itself(rank: int) -> None:
    found = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        shape, strides = (tuple(map(int, rng.integers(low, 7, rank))) for low in (0, -6))
        places = [sum(map(operator.mul, index, strides)) for index in np.ndindex(shape)]
        expected = len(set(places)) < len(places)
        assert _at(0, shape, strides).overlaps_itself == expected, (shape, strides)
        found += expected
    assert 10 < found < 190 or rank == 0


def test_overlap_corner_cases() -> None:
    assert not overlap(_at(0, (8,), (2,)), _at(1, (8,), (2,)))
    assert overlap(_at(0, (8,), (2,)), _at(1, (8,), (3,)))
    assert not overlap(_at(0, (0,), (1,)), _at(0, (8,), (1,)))
    there = _at(0, (8,), (1,))
    there.device = ("cuda", 0)
    assert not overlap(there, _at(0, (8,), (1,)))


def test_torch_views() -> None:
    torch = pytest.importorskip("torch")
    t = torch.arange(24.0).reshape(4, 6)
    seen = view(t.T[1:, ::2])
    assert (seen.shape, seen.strides, seen.address) == ((5, 2), (1, 12), t.data_ptr() + 4)
    assert (seen.framework, seen.device) == ("torch", ("cpu", 0))
    for name in (
        "bfloat16",
        "float8_e4m3fn",
        "float8_e5m2",
        "bool",
        "int64",
        "complex64",
        "uint16",
    ):
        assert view(torch.empty(3, dtype=getattr(torch, name))).dtype.name == name
    assert view(torch.nn.Parameter(t, requires_grad=False)).address == t.data_ptr()


def test_what_tensors_are_refused() -> None:
    torch = pytest.importorskip("torch")
    watched = torch.zeros(3, requires_grad=True)
    with pytest.raises(ArgumentValueError, match="requires grad"):
        view(watched)
    with torch.no_grad():
        view(watched)
    with pytest.raises(ArgumentTypeError, match="to_dense"):
        view(torch.eye(3).to_sparse())
    with pytest.raises(ArgumentValueError, match="resolve_conj"):
        view(torch.zeros(3, dtype=torch.complex64).conj())
    with pytest.raises(ArgumentValueError, match="resolve_neg"):
        view(torch.zeros(3, dtype=torch.complex64).conj().imag)
    with pytest.raises(ArgumentTypeError, match="meta"):
        view(torch.zeros(3, device="meta"))
    with pytest.raises(ArgumentTypeError, match="complex128"):
        view(torch.zeros(3, dtype=torch.complex128))


def test_jax_views() -> None:
    jax = pytest.importorskip("jax")
    x = jax.numpy.arange(6, dtype=jax.numpy.bfloat16).reshape(2, 3)
    seen = view(x)
    assert (seen.shape, seen.strides, seen.dtype, seen.readonly) == ((2, 3), (3, 1), bfloat16, True)
    np.testing.assert_array_equal(memory.host_array(seen), np.asarray(x))
    with pytest.raises(ArgumentTypeError, match="outside of JAX's transformations"):
        jax.jit(view)(x)
    x.delete()
    with pytest.raises(ArgumentValueError, match="deleted"):
        view(x)


class OnlyDlpack:
    """An array that speaks DLPack alone, of either age."""

    def __init__(self, array: Any, old: bool) -> None:
        self.array, self.old = array, old

    def __dlpack__(self, **options: Any) -> Any:
        if self.old and options:
            raise TypeError("unexpected keyword")
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("old", [False, True])
def test_dlpack_in(old: bool) -> None:
    array = np.arange(12, dtype=np.int32).reshape(3, 4)
    seen = view(OnlyDlpack(array[:, 1::2], old))
    assert (seen.shape, seen.strides, seen.dtype) == ((3, 2), (4, 2), int32)
    assert seen.address == array.ctypes.data + 4
    array.flags.writeable = False
    if not old and VERSIONED:
        assert view(OnlyDlpack(array, old)).readonly


def raising(error: Exception) -> Any:
    def export(self: Any, **_: Any) -> Any:
        raise error

    return export


@pytest.mark.parametrize(
    ("export", "says"),
    [
        (lambda self, **_: 3, "another array took over"),
        (raising(BufferError("read-only")), "BufferError: read-only"),
        (raising(RuntimeError("not now")), "RuntimeError: not now"),
    ],
)
def test_a_producer_that_gives_no_dlpack_tensor(export: Any, says: str) -> None:
    made = type("Tensor", (), {"__dlpack__": export, "__dlpack_device__": lambda self: (1, 0)})
    with pytest.raises(ArgumentTypeError, match=f"Tensor gives no DLPack tensor.*{says}"):
        view(made())
    alone = type("Alone", (), {"__dlpack__": export})
    with pytest.raises(ArgumentTypeError, match="__dlpack_device__"):
        view(alone())


def test_a_dlpack_tensor_is_taken_over_once() -> None:
    capsule = np.arange(3).__dlpack__()

    class Once:
        def __dlpack__(self, **_: Any) -> Any:
            return capsule

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    np.from_dlpack(Once())
    with pytest.raises(ArgumentTypeError, match="another array took over"):
        view(Once())


def test_an_interface_that_numpy_refuses() -> None:
    class Refused:
        shape, dtype = (8,), np.dtype("float32")
        __array_interface__ = 3

    with pytest.raises(ArgumentTypeError, match=r"can't make an array of a .*Refused: Invalid __array_interface__"):
        view(Refused())


@pytest.mark.parametrize("change", [{"shape": None}, {"data": None}, {"data": 3}, {"shape": 5}])
def test_a_cuda_array_interface_that_lacks_something(change: dict[str, Any]) -> None:
    class Array:
        __cuda_array_interface__ = {"shape": (3,), "typestr": "<f4", "data": (256, False), "version": 3} | change

    with pytest.raises(ArgumentTypeError, match=r"__cuda_array_interface__ of a .*Array lacks"):
        view(Array())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused() -> None:
    torch = pytest.importorskip("torch")
    for layout in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
        with pytest.raises(ArgumentTypeError, match="to_padded_tensor"):
            view(nested)


def test_tensors_that_hold_others_are_refused() -> None:
    """Their own address is 0."""
    torch = pytest.importorskip("torch")

    def held(cls: Any, inner: Any) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    def refuse(cls: Any, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no op is known")

    words = {"__new__": held, "__torch_dispatch__": classmethod(refuse), "__repr__": lambda x: "<held>"}
    more = {"__tensor_flatten__": lambda x: (["inner"], None)}
    for kind in (type("Held", (torch.Tensor,), words), type("Flat", (torch.Tensor,), words | more)):
        with pytest.raises(ArgumentTypeError, match=rf"a {kind.__name__} has no memory of its own.*to_local"):
            view(kind(torch.ones(3)))


def test_dlpack_in_from_torch_keeps_the_memory() -> None:
    torch = pytest.importorskip("torch")
    seen = view(OnlyDlpack(torch.full((1000,), 2, dtype=torch.bfloat16), False))
    assert seen.dtype == bfloat16
    assert (memory.host_array(seen) == 2).all()


@pytest.mark.parametrize("versioned", [False, True])
def test_dlpack_out(versioned: bool) -> None:
    if versioned and not VERSIONED:
        pytest.skip("this NumPy reads no versioned capsules")
    array = np.random.default_rng(0).standard_normal((3, 4))

    class Ours:
        def __dlpack__(self, **_: Any) -> Any:
            return dlpack.export(view(array[:, ::2]), versioned=versioned)

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    seen = np.from_dlpack(Ours())
    np.testing.assert_array_equal(seen, array[:, ::2])
    assert np.shares_memory(seen, array)
    before = len(dlpack._exported)
    del seen
    assert len(dlpack._exported) == before - 1
    capsule = dlpack.export(view(array), versioned=versioned)
    del capsule
    assert len(dlpack._exported) == before - 1, "a capsule that nobody took frees itself"
    with pytest.raises(ArgumentValueError, match="no type"):
        dlpack.export(ArrayView(0, (1,), (1,), _unknown(), ("cpu", 0), "numpy"), versioned=versioned)


def _unknown() -> Any:
    class Other:
        name = "float128"

    return Other()


def test_array_interface_of_strangers() -> None:
    class Stranger:
        def __init__(self) -> None:
            self.data = np.arange(5.0)
            self.__array_interface__ = self.data.__array_interface__

    array = Stranger()
    seen = view(array)
    assert (seen.dtype, seen.shape, seen.address) == (float64, (5,), array.data.ctypes.data)


def test_memory_that_outlives_the_names_of_its_module_says_nothing() -> None:
    """Python clears `types` after it at its end, as it was imported before."""
    code = (
        "import types; from kernel_dsl.runtime.devices import memory; made = memory.DeviceMemory.__new__(memory.DeviceMemory); "
        "made.address = 1; types.kept = memory, made; del made, memory"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stderr == ""

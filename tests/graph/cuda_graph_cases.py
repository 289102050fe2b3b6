"""Graphs on a driver without a GPU (see `fake_graph.c`): kernels are played here, by entry name.

Order within a replay is random but for the edges, so a missing edge gives a wrong result.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import os
from typing import Any

import numpy as np
import pytest

if not os.environ.get("KERNEL_DSL_FAKE_CUDA"):
    pytest.skip("needs the driver of test_fake_cuda_graph.py", allow_module_level=True)

from kernel_dsl.compiled import LaunchAttributes, PointerParam, TensorMapParam, Workspace
from kernel_dsl.dtypes import int32
from runtime import calls, memory, recording
from runtime.arrays import CPU, view
from runtime.device import cuda_device
from runtime.errors import ArgumentValueError, LaunchError
from runtime.graph import Graph, GraphError, Variable
from runtime.image import precompiled_cuda_kernel
from tests.graph.kernels import Kernel, like
from tests.graph.programs import Program, check
from tests.graph.test_interpreted import AXPB

LIB = ctypes.CDLL("libcuda.so.1")
LIB.fake_count.restype = LIB.fake_graph_count.restype = ctypes.c_long
GRAPHS, EXECS, UPDATES, INSTANTIATIONS = range(4)
BLOCKS = 0
CAPTURED = 0xC0DE
_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int,
    ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_uint), ctypes.c_uint, ctypes.c_void_p,
    ctypes.c_int, ctypes.c_int,
)  # fmt: skip
N = 64
rng = np.random.default_rng(0)


class DeviceArray:
    """An array of no framework in 'device' memory, which is host memory here."""

    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        self.data = data

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        contiguous = self.data.flags.c_contiguous
        return {
            "version": 3, "shape": self.data.shape, "typestr": self.data.dtype.str,
            "strides": None if contiguous else self.data.strides,
            "data": (self.data.ctypes.data, False), "stream": None,
        }  # fmt: skip


def on_device(n: int = N) -> DeviceArray:
    return DeviceArray(rng.integers(0, 1 << 30, n).astype(np.int32))


def host(array: Any) -> np.ndarray[Any, Any]:
    if isinstance(array, np.ndarray):
        return array
    return array.data if isinstance(array, DeviceArray) else array.numpy()


class CudaKernel(Kernel):
    """A kernel whose launches call its body on NumPy views of its arguments."""

    def __init__(self, body: Any, outputs: Any, attributes: Any = None, **more: Any) -> None:
        device = type("Bodies", (), {"bodies": {}})()
        super().__init__(device, body, outputs, **more)
        self.attributes = attributes or {}
        self.compiled: dict[Any, Any] = {}
        PLAYED[body.__name__] = self

    @recording.recordable
    def __call__(self, *args: Any, out: Any = None, stream: Any = None) -> Any:
        arrays = [a for a in args if not isinstance(a, (int, float))]
        scalars = [a for a in args if isinstance(a, (int, float))]
        kernel = self.kernel_for(arrays)
        given = None if out is None else list(out) if isinstance(out, (tuple, list)) else [out]
        loaded = self.compiled.setdefault(kernel, None) or cuda_device(0).load(kernel)
        self.compiled[kernel] = loaded
        result = calls.call(kernel, loaded, arrays, scalars, given, stream)
        return result[0] if len(result) == 1 else result

    def kernel_for(self, arrays: Any) -> Any:
        views = [memory.host_array(_as_host(a)) for a in arrays]
        kernel = self.compile(views)
        names = [f".param .u64 p{i}" for i in range(len(kernel.arrays))]
        names += [f".param .s32 s{i}" for i in range(self.scalars)]
        ptx = f".version 8.0\n.entry {kernel.entry}({', '.join(names)})\n{{}}"
        launch = dataclasses.replace(kernel.launch, **self.attributes)
        return dataclasses.replace(kernel, ptx=ptx, launch=launch, output_tree=0)

    def play(self, params: list[bytes]) -> None:
        kernel = next(reversed(self.compiled))
        numbers = [int.from_bytes(p, "little", signed=True) for p in params]
        arrays = []
        for address, assumed in zip(numbers, kernel.arrays, strict=False):
            count = int(np.prod(assumed.shape))
            raw = (ctypes.c_char * (count * assumed.dtype.itemsize)).from_address(address)
            flat = np.frombuffer(raw, assumed.dtype.numpy)
            arrays.append(flat.reshape(assumed.shape))
        self.body(*arrays, *numbers[len(arrays) :])


def _as_host(array: Any) -> Any:
    there = view(array)
    there.device = CPU
    return there


PLAYED: dict[str, CudaKernel] = {}
LAUNCHES: list[dict[str, Any]] = []


def _play(name, params, count, sizes, dims, smem, stream, cluster, pdl) -> int:
    blobs = [ctypes.string_at(params[i], sizes[i]) for i in range(count)]
    LAUNCHES.append(
        {"name": name.decode(), "params": blobs, "dims": tuple(dims[:6]), "smem": smem,
         "stream": stream or 0, "cluster": cluster}
    )  # fmt: skip
    if name.decode() == "axpb":
        x, y, n, b = blobs
        n = int.from_bytes(n, "little", signed=True)
        source, target = (
            np.frombuffer((ctypes.c_char * (4 * n)).from_address(int.from_bytes(p, "little")), np.float32)
            for p in (x, y)
        )
        target[...] = source * 2 + np.frombuffer(b, np.float32)[0]
    elif name.decode() == "axpc":  # x, a scalar that became an array, and y
        x, c, y = (int.from_bytes(p, "little") for p in blobs)
        source, target = (np.frombuffer((ctypes.c_char * 4 * N).from_address(p), np.float32) for p in (x, y))
        target[...] = source + np.frombuffer((ctypes.c_char * 4).from_address(c), np.float32)[0]
    else:
        PLAYED[name.decode()].play(blobs)
    return 0


_callback = _CALLBACK(_play)
LIB.fake_callback(_callback)


def graphs(which: int) -> int:
    return int(LIB.fake_graph_count(which))


def xor(a, b, out):
    np.bitwise_xor(a, b, out=out)


def double(x, out):
    out[...] = x * 2


def plus(x, out, k):
    out[...] = x + k


@pytest.fixture(autouse=True)
def kernels():
    LAUNCHES.clear()
    yield
    LIB.fake_fail(0)


XOR, DOUBLE = CudaKernel(xor, like), CudaKernel(double, like)
PLUS = CudaKernel(plus, like, scalars=1)


def test_a_graph_is_what_eager_calls_are_in_any_order() -> None:
    for seed in range(20):
        choose = np.random.default_rng(seed)
        arrays = [on_device(48) for _ in range(4)]

        def part(choose=choose) -> tuple[int, int]:
            return int(choose.integers(4)), int(choose.integers(4)) * 8

        steps = [(int(choose.integers(3)), [part() for _ in range(3)]) for _ in range(10)]

        def calls_(g, arrays=arrays, steps=steps) -> None:
            for kind, parts in steps:
                v = [DeviceArray(arrays[i].data[s : s + 24]) for i, s in parts]
                if any(np.shares_memory(v[i].data, v[2].data) for i in (0, 1)):
                    continue
                if kind == 0:
                    XOR(v[0], v[1], out=v[2])
                elif kind == 1:
                    DOUBLE(v[0], out=v[2])
                elif g is None:
                    v[2].data[...] = v[0].data
                else:
                    g.copy(v[2], v[0])

        start = [a.data.copy() for a in arrays]
        calls_(None)
        expected = [a.data.copy() for a in arrays]
        with Graph() as g:
            calls_(g)
        for _ in range(4):
            for a, s in zip(arrays, start, strict=True):
                a.data[...] = s
            g()
            for a, e in zip(arrays, expected, strict=True):
                np.testing.assert_array_equal(a.data, e)


def test_new_inputs_patch_the_nodes_that_read_them() -> None:
    a, b = on_device(), on_device()
    with Graph() as g:
        t = DOUBLE(a)
        y = XOR(t, b)
        z = DOUBLE(b)
    g()
    np.testing.assert_array_equal(host(y), (a.data * 2) ^ b.data)
    for changed, nodes in (((a, on_device()), 2), ((on_device(), on_device()), 3)):
        before = graphs(UPDATES)
        got = g(*changed)
        assert got[0] is y and got[1] is z
        np.testing.assert_array_equal(host(y), (changed[0].data * 2) ^ changed[1].data)
        np.testing.assert_array_equal(host(z), changed[1].data * 2)
        assert graphs(UPDATES) - before == nodes
    before = graphs(UPDATES)
    g(*changed)
    assert graphs(UPDATES) == before
    g()
    np.testing.assert_array_equal(host(y), (a.data * 2) ^ b.data)
    assert graphs(UPDATES) - before == 3
    out = on_device(), on_device()
    g(out=out)
    np.testing.assert_array_equal(out[0].data, host(y))
    np.testing.assert_array_equal(out[1].data, host(z))


def test_an_output_fed_back_is_copied_first() -> None:
    def reverse(x, out):
        for i in range(len(x)):
            out[i] = x[len(x) - 1 - i] + 1

    kernel = CudaKernel(reverse, like)
    x = on_device()
    with Graph() as g:
        kernel(x)
    expected = x.data
    got: Any = x
    for _ in range(4):
        expected = expected[::-1] + 1
        got = g(got)
        np.testing.assert_array_equal(host(got), expected)


def test_host_arrays_go_there_and_back() -> None:
    a, b = (rng.integers(0, 1 << 30, N).astype(np.int32) for _ in range(2))
    with Graph() as g:
        t = DOUBLE(a)
        y = XOR(t, b)
    for _ in range(2):
        assert g() is y
        np.testing.assert_array_equal(y, (a * 2) ^ b)
        p, q = b.copy(), a.copy()
        np.testing.assert_array_equal(g(p, q), (p * 2) ^ q)
    x = np.arange(N, dtype=np.int32)
    with Graph() as g:
        DOUBLE(x, out=x)
    g()
    g()
    np.testing.assert_array_equal(x, np.arange(N) * 4)


def test_fills_and_copies_of_all_widths() -> None:
    def accumulate(x, out):
        out += x

    cases = [
        (np.int32, 7),
        (np.int32, 0),
        (np.int8, 3),
        (np.float16, 1.5),
        (np.float64, 2.5),
        (np.int64, -3),
    ]
    for dtype, value in cases:
        kernel = CudaKernel(accumulate, like, fill=value)
        x = DeviceArray(rng.integers(0, 9, N).astype(dtype))
        with Graph() as g:
            kernel(x)
        other = DeviceArray(rng.integers(0, 9, N).astype(dtype))
        for given in ((), (other,), ()):
            got = g(*given)
            np.testing.assert_array_equal(host(got), (given or (x,))[0].data + dtype(value))
        mine = DeviceArray(np.zeros(N, dtype))
        g(out=mine)
        np.testing.assert_array_equal(mine.data, x.data + dtype(value))
    aliased = CudaKernel(accumulate, like, alias=0)
    x = on_device()
    with Graph() as g:
        aliased(x)
    for given in (x, on_device(), x):
        np.testing.assert_array_equal(host(g(given)), given.data * 2)


def test_strided_copies_are_made_anew() -> None:
    base, y = on_device(4 * N), on_device(N)
    with Graph() as g:
        g.copy(y, DeviceArray(base.data[::4]))
    g()
    np.testing.assert_array_equal(y.data, base.data[::4])
    other, made = on_device(4 * N), graphs(INSTANTIATIONS)
    g(DeviceArray(other.data[::4]))
    np.testing.assert_array_equal(y.data, other.data[::4])
    assert graphs(INSTANTIATIONS) == made + 1  # the driver updates flat copies only


def test_scalars_variables_and_grids() -> None:
    k, n = Variable("k", 0, 99), Variable("n", 1, 1000)

    def blocks(x, out):
        out[...] = x * 2

    grid = CudaKernel(blocks, like, grid=((n + 127) // 128, 1, 1))
    a = on_device()
    with Graph() as g:
        t = PLUS(a, k)
        y = grid(t)
        PLUS(a, 1)
    for value in (1, 5, 5):
        before = graphs(UPDATES)
        g(k=value, n=300)
        np.testing.assert_array_equal(host(y), (a.data + value) * 2)
        assert graphs(UPDATES) - before <= 2
    assert graphs(UPDATES) == before
    LAUNCHES.clear()
    g(k=5, n=129)
    assert [launch["dims"][0] for launch in LAUNCHES if launch["name"] == "blocks"] == [2]


def test_steps_by_name() -> None:
    a = on_device()
    with Graph() as g:
        y = PLUS(a, 3)
    node = g.nodes[0]
    node.set_params(scalars=[10])
    node.set_launch_dims(grid=(3, 1, 1), block=(64, 1, 1), dynamic_smem=100_000)
    g.launch(wait=True)
    np.testing.assert_array_equal(host(y), a.data + 10)
    assert LAUNCHES[-1]["dims"] == (3, 1, 1, 64, 1, 1) and LAUNCHES[-1]["smem"] == 100_000
    assert g.seconds == 1e-3  # what the driver without a GPU says
    other = on_device()
    node.set_params(arrays=[other])
    g.launch()
    np.testing.assert_array_equal(host(y), other.data + 10)
    with pytest.raises(ArgumentValueError, match="cannot be launched"):
        node.set_launch_dims(block=(2048, 1, 1))


def test_clusters_smem_and_early_launches_survive() -> None:
    def clustered(x, out):
        out[...] = x + 1

    def early(x, y, out):
        out[...] = x + y

    attributes = {"grid": (4, 1, 1), "cluster": (2, 1, 1), "dynamic_smem": 200_000}
    first = CudaKernel(clustered, like, attributes)
    second = CudaKernel(early, like, {"programmatic_dependent_launch": True})
    a = on_device()
    with Graph() as g:
        t = first(a)
        y = second(t, a)
        DOUBLE(y)
    g()
    launch = next(one for one in LAUNCHES if one["name"] == "clustered")
    assert (launch["cluster"], launch["smem"], launch["dims"][0]) == (2, 200_000, 4)
    handle = ctypes.c_void_p(int(g._exec._graph))
    assert [LIB.fake_edges(handle, early) for early in (0, 1)] == [1, 1]
    np.testing.assert_array_equal(host(g()), (a.data * 2 + 1) * 2)


def test_clusters_along_y_are_not_updated_in_place() -> None:
    def square(x, out):
        out[...] = x * x

    kernel = CudaKernel(square, like, {"grid": (2, 2, 1), "cluster": (1, 2, 1)})
    a, b = on_device(), on_device()
    with Graph() as g:
        y = kernel(DOUBLE(a))
    g()
    made, updates = graphs(INSTANTIATIONS), graphs(UPDATES)
    mine = on_device()
    g(b, out=mine)
    np.testing.assert_array_equal(mine.data, (b.data * 2) ** 2)
    assert graphs(INSTANTIATIONS) == made + 1 and graphs(UPDATES) == updates
    assert LAUNCHES[-1]["cluster"] == 2
    g()
    np.testing.assert_array_equal(host(y), (a.data * 2) ** 2)


def test_scalar_inputs_and_strided_ones_of_images() -> None:
    ptx = ".version 8.0\n.entry axpc(.param .u64 x, .param .u64 c, .param .u64 y)\n{}"

    def call(array: Any) -> Any:
        return precompiled_cuda_kernel(
            name="axpc", compiled_source=ptx.encode(), inputs=[array, 2.5], output_shapes=[(N,)],
            output_dtypes=[np.float32], scalars=[], grid=(N, 1, 1), threadgroup=(32, 1, 1),
            ensure_row_contiguous=True, interpret=False,
        )[0]  # fmt: skip

    base = rng.standard_normal(2 * N).astype(np.float32)
    x = DeviceArray(base[::2])
    blocks = int(LIB.fake_count(BLOCKS))
    with Graph() as g:
        y = call(x)
    assert [node.kind for node in g.nodes] == ["copy", "fill", "kernel"]
    for _ in range(2):
        np.testing.assert_array_equal(host(g()), base[::2] + np.float32(2.5))
        base[...] = rng.standard_normal(2 * N)
    on_host = rng.standard_normal(N).astype(np.float32)
    with Graph() as h:
        call(on_host)
    np.testing.assert_array_equal(h(), on_host + np.float32(2.5))
    del g, h, y
    assert int(LIB.fake_count(BLOCKS)) <= blocks


def test_images_and_their_scalars() -> None:
    x = DeviceArray(rng.standard_normal(N).astype(np.float32))

    def call(array: Any, n: Any) -> Any:
        return precompiled_cuda_kernel(
            name="axpb", compiled_source=AXPB.encode(), inputs=[array], output_shapes=[(N,)],
            output_dtypes=[np.float32], scalars=[n, 0.5], grid=(n, 1, 1), threadgroup=(32, 1, 1),
            init_value=0.0, interpret=False,
        )[0]  # fmt: skip

    n = Variable("n", 1, N)
    with Graph() as g:
        y = call(x, n)
    other = DeviceArray(rng.standard_normal(N).astype(np.float32))
    for count, array in ((N, x), (33, other), (1, x)):
        g(array, n=count)
        np.testing.assert_array_equal(host(y)[:count], array.data[:count] * 2 + np.float32(0.5))
        np.testing.assert_array_equal(host(y)[count:], 0)
        assert LAUNCHES[-1]["dims"][0] == -(-count // 32)


def test_a_captured_replay_is_a_child_with_todays_arrays() -> None:
    a, b = on_device(), on_device()
    with Graph() as g:
        y = XOR(a, b)
    p, q = on_device(), on_device()
    g(p, q, stream=CAPTURED)
    with Graph() as h:
        z = DOUBLE(y)
    h(stream=CAPTURED)
    assert len(LAUNCHES) == 0
    assert LIB.fake_end_capture() == 0
    np.testing.assert_array_equal(host(y), p.data ^ q.data)
    np.testing.assert_array_equal(host(z), host(y) * 2)
    with pytest.raises(GraphError, match="wait=True"):
        g(stream=CAPTURED, wait=True)
    with Graph() as on_host:
        DOUBLE(np.zeros(N, np.int32))
    with pytest.raises(GraphError, match="host memory"):
        on_host(stream=CAPTURED)


def test_a_failed_replay_says_what_failed() -> None:
    with Graph() as g:
        DOUBLE(on_device())
    g()
    LIB.fake_fail(700)
    with pytest.raises(LaunchError, match=r"graph of 1 nodes \(double\)") as caught:
        g(on_device())
    assert caught.value.status == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert not caught.value.context_survives
    LIB.fake_fail(0)


def test_nothing_leaks() -> None:
    gc.collect()
    before = [graphs(GRAPHS), graphs(EXECS), int(LIB.fake_count(BLOCKS))]
    for _ in range(20):
        with Graph() as g:
            y: Any = on_device()
            for _ in range(4):
                y = DOUBLE(y)
        g()
        g(on_device())
        del y, g  # no cycle keeps it: memory is back before Python collects any
    assert [graphs(GRAPHS), graphs(EXECS), int(LIB.fake_count(BLOCKS))] == before


def test_intermediates_lie_in_the_graphs_own_memory() -> None:
    x = on_device(1024)
    with Graph() as g:
        y: Any = x
        for _ in range(6):
            y = DOUBLE(y)
    blocks = int(LIB.fake_count(BLOCKS))
    g.instantiate()
    gc.collect()
    assert int(LIB.fake_count(BLOCKS)) == blocks - 5 + 1  # five intermediates became one block
    assert g.memory_bytes == 8192
    np.testing.assert_array_equal(host(g()), x.data * 64)


def test_an_empty_grid_is_no_node() -> None:
    def nothing(x, out):
        raise AssertionError

    kernel = CudaKernel(nothing, like, {"grid": (1, 1, 1), "empty": True})
    with Graph() as g:
        kernel(on_device())
    assert g.nodes == ()
    g()


def test_attributes_are_checked_before_the_driver() -> None:
    def tall(x, out):
        raise AssertionError

    kernel = CudaKernel(tall, like, {"grid": (1, 70000, 1)})
    with pytest.raises(ArgumentValueError, match="grid axis y"), Graph():
        kernel(on_device())
    assert LaunchAttributes((1, 1, 1), (1, 1, 1)).empty is False


class Hidden(CudaKernel):
    """A kernel with four int32 of zeroed memory of its own, which its body is given by address."""

    def kernel_for(self, arrays: Any) -> Any:
        kernel = super().kernel_for(arrays)
        params = (*kernel.params, PointerParam(len(kernel.arrays)))
        ptx = kernel.ptx.replace(")", ", .param .u64 hidden)", 1)
        return dataclasses.replace(kernel, params=params, ptx=ptx, workspaces=(Workspace(16, True),))


def test_hidden_memory_is_the_graphs_own_and_zeroed_each_time() -> None:
    seen: list[int] = []

    def counts(x, out, address):
        memory = np.frombuffer((ctypes.c_char * 16).from_address(address), np.int32)
        memory += 1
        seen.append(int(memory.sum()))
        out[...] = x + memory[0]

    kernel = Hidden(counts, like)
    a = on_device()
    with Graph() as g:
        y = kernel(kernel(a))
    assert [node.kind for node in g.nodes] == ["fill", "kernel", "fill", "kernel"]
    blocks = int(LIB.fake_count(BLOCKS))
    for _ in range(3):
        g()
        np.testing.assert_array_equal(host(y), a.data + 2)
    b = on_device()
    np.testing.assert_array_equal(host(g(b)), b.data + 2)
    assert seen == [4] * 8
    assert int(LIB.fake_count(BLOCKS)) <= blocks  # one block came, and the intermediate went


class ByTma(CudaKernel):
    """A kernel that reads its input through a TMA descriptor."""

    def kernel_for(self, arrays: Any) -> Any:
        kernel = super().kernel_for(arrays)
        params = (TensorMapParam(0, int32, (32,)), *kernel.params[1:])
        ptx = kernel.ptx.replace(".param .u64 p0", ".param .align 64 .b8 p0[128]")
        inputs = dataclasses.replace(kernel.arrays[0], alignment=16, contiguous=True)
        return dataclasses.replace(kernel, params=params, ptx=ptx, arrays=(inputs, *kernel.arrays[1:]))

    def play(self, params: list[bytes]) -> None:
        super().play([params[0][16:24], *params[1:]])  # where this driver keeps the address


def test_tma_descriptors_follow_their_arrays() -> None:
    def through(x, out):
        out[...] = x - 1

    kernel = ByTma(through, like)
    arrays = [DeviceArray(aligned()) for _ in range(3)]
    with Graph() as g:
        kernel(arrays[0])
    for array in (*arrays, arrays[1]):
        np.testing.assert_array_equal(host(g(array)), array.data - 1)
    with pytest.raises(ArgumentValueError, match="aligned"):
        g(DeviceArray(aligned(1)))


def aligned(shift: int = 0) -> np.ndarray[Any, Any]:
    """Int32 at an address that is a multiple of 64, and `shift` elements on."""
    room = np.zeros(N + 32, np.int32)
    start = -room.ctypes.data % 64 // 4 + shift
    room[start : start + N] = rng.integers(0, 1 << 30, N)
    return room[start : start + N]


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_with_intermediates(seed: int) -> None:
    """In any order that the edges allow, with the graph's own memory shared as planned."""

    def minus_(a, b, out):
        out[...] = a - 3 * b

    def fold_(a, b, out):
        out += a ^ (b << 1)

    def refold_(a, b, out):
        out += a ^ (b << 1)

    kernels = [
        XOR, CudaKernel(minus_, like), CudaKernel(fold_, like, fill=5), CudaKernel(refold_, like, alias=0),
    ]  # fmt: skip

    def part(array: Any, half: int) -> Any:
        if isinstance(array, DeviceArray):
            n = len(array.data) // 2
            return DeviceArray(array.data[half * n : (half + 1) * n])
        n = array.shape[0] // 2
        there = view(array)
        raw = (ctypes.c_char * (4 * n)).from_address(there.address + half * 4 * n)
        made = DeviceArray(np.frombuffer(raw, np.int32))
        made.owner = array
        return made

    check(Program(seed, kernels, DeviceArray, part), host, seed * 10)

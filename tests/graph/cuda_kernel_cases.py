"""What kernels bring into a graph, on a driver without a GPU: clusters, images, hidden memory, TMA descriptors."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

import numpy as np
import pytest

from kernel_dsl.compiled import PointerParam, TensorMapParam, Workspace
from kernel_dsl.dtypes import int32
from kernel_dsl.runtime.custom.image import precompiled_cuda_kernel
from kernel_dsl.runtime.errors import ArgumentValueError
from kernel_dsl.runtime.graph import Graph, Variable

from .cuda_played import (
    DOUBLE,
    INSTANTIATIONS,
    LAUNCHES,
    LIB,
    UPDATES,
    CudaKernel,
    DeviceArray,
    N,
    blocks,
    graphs,
    host,
    on_device,
    rng,
)
from .kernels import like
from .test_interpreted import AXPB


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
    launch = next(one for one in LAUNCHES if one["name"].startswith("clustered"))
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
    before = blocks()
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
    assert blocks() <= before


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
    before = blocks()
    for _ in range(3):
        g()
        np.testing.assert_array_equal(host(y), a.data + 2)
    b = on_device()
    np.testing.assert_array_equal(host(g(b)), b.data + 2)
    assert seen == [4] * 8
    assert blocks() <= before  # one block came, and the intermediate went


class ByTma(CudaKernel):
    """A kernel that reads its input through a TMA descriptor."""

    def kernel_for(self, arrays: Any) -> Any:
        kernel = super().kernel_for(arrays)
        params = (TensorMapParam(0, int32, (32,)), *kernel.params[1:])
        ptx = kernel.ptx.replace(".param .u64 p0", ".param .align 64 .b8 p0[128]")
        inputs = dataclasses.replace(kernel.arrays[0], alignment=16, contiguous=True)
        return dataclasses.replace(kernel, params=params, ptx=ptx, arrays=(inputs, *kernel.arrays[1:]))

    def play(self, assumptions: Any, params: list[bytes]) -> None:
        super().play(assumptions, [params[0][16:24], *params[1:]])  # where this driver keeps the address


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

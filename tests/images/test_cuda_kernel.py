"""`cuda_kernel`: bodies in CUDA C++, on both devices, against float64 NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from kernel_dsl.runtime.custom.source import cuda_kernel

from .conftest import one_block

pytestmark = pytest.mark.usefixtures("compiler")

INDEX = "auto elem = cg::this_grid().thread_rank();"


def test_strides(rng, interpret):
    a = np.tile(rng.standard_normal((3, 6)).astype(np.float32)[::2], [4, 1])
    a = np.repeat(a, 2, axis=1)[:, ::2]  # a view with gaps
    assert not a.flags.c_contiguous
    sources = {
        True: f"{INDEX} out[elem] = expf(inp[elem]) * WARP_SIZE;",
        False: f"""{INDEX}
        auto loc = elem_to_loc(elem, inp_shape.data(), inp_strides.data(), inp_ndim);
        out[elem] = expf(inp[loc]) * WARP_SIZE;""",
    }
    for contiguous, source in sources.items():
        k = cuda_kernel("strides", ["inp"], ["out"], source, ensure_row_contiguous=contiguous)
        (out,) = k(
            inputs=[a],
            output_shapes=[a.shape],
            output_dtypes=[a.dtype],
            grid=(a.size, 1, 1),
            threadgroup=(256, 1, 1),
            interpret=interpret,
        )
        np.testing.assert_allclose(out, 32 * np.exp(a.astype(np.float64)), rtol=2e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x[::-1],
        lambda x: x.T,
        lambda x: x[:, ::-2],
        lambda x: np.broadcast_to(x[0], (3, 7)),
        lambda x: x[0, 0],
    ],
    ids=["reversed", "transposed", "negative", "broadcast", "rank0"],
)
@pytest.mark.parametrize("contiguous", [True, False])
def test_every_layout(rng, interpret, make, contiguous):
    x = make(rng.integers(-1000, 1000, (5, 7), np.int32))
    k = cuda_kernel(
        "layout",
        ["x"],
        ["out", "rank"],
        """
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        out[i] = x[elem_to_loc(i, x_shape, x_strides, x_ndim)];
        if (i == 0) rank[0] = x_ndim;
        """,
        ensure_row_contiguous=contiguous,
        exact_grid=True,
    )
    out, rank = k(
        inputs=[x],
        output_shapes=[x.shape, (1,)],
        output_dtypes=[np.int32, np.int32],
        grid=(max(x.size, 1), 1, 1),
        threadgroup=(8, 1, 1),
        interpret=interpret,
    )
    np.testing.assert_array_equal(out, x)
    assert rank[0] == x.ndim


def test_geometry_of_several_arrays(rng, interpret):
    a = rng.standard_normal((3, 4, 2)).astype(np.float32)
    b = rng.standard_normal((2, 4, 3)).astype(np.float32).T
    k = cuda_kernel(
        "geometry",
        ["a", "b"],
        ["sum", "walked"],
        """
        int i = threadIdx.x;
        auto [at_a, at_b] = elem_to_loc(i, a_shape, a_strides, b_strides, a_ndim);
        auto [nd_a, nd_b] = elem_to_loc_nd<3>(i, a_shape, a_strides, b_strides);
        sum[i] = at_a == nd_a && at_b == nd_b ? a[at_a] + b[at_b] : -1e9f;
        if (i == 0) {
          LoopedElemToLoc<3> walk(b_ndim);
          for (int n = 0; n < 24; ++n) {
            walked[n] = b[walk.location()];
            walk.next(b_shape, b_strides);
          }
        }
        """,
        ensure_row_contiguous=False,
    )
    total, walked = k(
        inputs=[a, b],
        output_shapes=[a.shape, a.shape],
        output_dtypes=[np.float32] * 2,
        grid=(24, 1, 1),
        threadgroup=(24, 1, 1),
        interpret=interpret,
    )
    np.testing.assert_array_equal(total, a + b)
    np.testing.assert_array_equal(walked, b)


def test_block_size(interpret):
    k = cuda_kernel("attributes", [], ["out"], "out[0] = blockDim.x;")
    (out,) = k(
        inputs=[],
        output_shapes=[()],
        output_dtypes=[np.uint32],
        grid=(2, 1, 1),
        threadgroup=(2, 1, 1),
        interpret=interpret,
    )
    assert out == 2


@pytest.mark.parametrize("exact", [False, True])
def test_extra_threads(interpret, exact):
    k = cuda_kernel("count", [], ["n"], "atomicAdd(n, 1);", exact_grid=exact)
    (n,) = k(
        inputs=[],
        output_shapes=[()],
        output_dtypes=[np.int32],
        grid=(6, 3, 1),
        threadgroup=(4, 2, 1),
        init_value=0,
        interpret=interpret,
    )
    assert n == (18 if exact else 32)  # 2 * 2 blocks of 8


def test_exact_grid_at_the_call(interpret):
    k = cuda_kernel("count", [], ["n"], "atomicAdd(n, 1);")
    call = {
        "inputs": [],
        "output_shapes": [()],
        "output_dtypes": [np.int32],
        "grid": (6, 1, 1),
        "threadgroup": (4, 1, 1),
        "init_value": 0,
        "interpret": interpret,
    }
    assert k(**call, exact_grid=True)[0] == 6
    assert k(**call)[0] == 8


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=str)
def test_maximum_of_16_bit_floats(rng, interpret, dtype):
    """Ambiguous with CUDA's own functions, as these types convert to every other."""
    x, y = rng.standard_normal((2, 64)).astype(dtype)
    k = cuda_kernel(
        "most",
        ["x", "y"],
        ["out", "least", "ints"],
        "int i = threadIdx.x; out[i] = max(x[i], y[i]); least[i] = min(x[i], y[i]); ints[i] = max(i, 7) + min(2.5f, 1.0f);",
    )
    out, least, ints = k(
        inputs=[x, y],
        output_shapes=[(64,)] * 3,
        output_dtypes=[dtype, dtype, np.int32],
        grid=(64, 1, 1),
        threadgroup=(64, 1, 1),
        interpret=interpret,
    )
    np.testing.assert_array_equal(out, np.maximum(x, y))
    np.testing.assert_array_equal(least, np.minimum(x, y))
    np.testing.assert_array_equal(ints, np.maximum(np.arange(64), 7) + 1)


def test_init_value(interpret):
    k = cuda_kernel("fill", [], ["a", "b", "c"], "")
    dtypes = [np.float32, np.int8, np.float64]
    outs = k(
        inputs=[],
        output_shapes=[(3,), (2, 2), (0, 4)],
        output_dtypes=dtypes,
        grid=(1, 1, 1),
        threadgroup=(1, 1, 1),
        init_value=2,
        interpret=interpret,
    )
    for out, dtype, shape in zip(outs, dtypes, [(3,), (2, 2), (0, 4)], strict=True):
        assert out.dtype == dtype and out.shape == shape and (out == 2).all()


def test_empty_grid_still_fills(interpret):
    k = cuda_kernel("never", [], ["a"], "a[0] = 9;")
    (out,) = k(
        inputs=[],
        output_shapes=[(3,)],
        output_dtypes=[np.float32],
        grid=(0, 1, 1),
        threadgroup=(1, 1, 1),
        init_value=1,
        interpret=interpret,
    )
    assert out.tolist() == [1, 1, 1]


def test_dynamic_shared_memory(rng, interpret):
    """Over 48 KiB, which a GPU gives only if asked."""
    x = rng.integers(0, 2**31 - 1, 64, np.int32)
    k = cuda_kernel(
        "shared",
        ["x"],
        ["out"],
        """
        extern __shared__ int tile[];
        int i = threadIdx.x, last = 16 * 1024 - 1;
        tile[last - i] = x[i];
        __syncthreads();
        out[i] = tile[last - 63 + i];
        """,
        shared_memory=64 * 1024,
    )
    out = one_block(k, x, shape=x.shape, dtype=x.dtype, threads=64, interpret=interpret)
    np.testing.assert_array_equal(out, x[::-1])


@pytest.mark.parametrize("name", ["add", "prod", "max", "min"])
@pytest.mark.parametrize(
    "dtype",
    [
        np.int32,
        np.uint32,
        np.int64,
        np.uint8,
        np.int16,
        np.float16,
        ml_dtypes.bfloat16,
        np.float32,
        np.float64,
    ],
    ids=lambda d: np.dtype(d).name,
)
def test_atomics(interpret, name, dtype):
    """Small integers, so that every order of the updates gives the same. The last of an odd number of bytes too."""
    x = np.array([1, 2, 3, 1, 2, 1, 1, 1], dtype)
    k = cuda_kernel("atomics", ["x"], ["out"], f"atomic_{name}(out + AT, x[threadIdx.x]);")
    expected = {"add": 14, "prod": 24, "max": 3, "min": 1}[name]
    for at in (1, 2):
        (out,) = k(
            inputs=[x],
            template=[("AT", at)],
            output_shapes=[(3,)],
            output_dtypes=[dtype],
            grid=(8, 1, 1),
            threadgroup=(8, 1, 1),
            init_value=2,
            interpret=interpret,
        )
        assert [int(v) for v in out] == [2 if i != at else expected for i in range(3)]


def test_complex(rng, interpret):
    a = (rng.standard_normal(5) + 1j * rng.standard_normal(5)).astype(np.complex64)
    k = cuda_kernel(
        "complex",
        ["a", "s"],
        ["out", "total"],
        """
        int i = threadIdx.x;
        out[i] = a[i] * s[0] / (a[i] + 1.0f) - conj(a[i]);
        atomic_add(total, complex64_t(a[i].imag(), 1));
        """,
    )
    out, total = k(
        inputs=[a, 2 - 1j],
        output_shapes=[(5,), ()],
        output_dtypes=[np.complex64] * 2,
        grid=(5, 1, 1),
        threadgroup=(5, 1, 1),
        init_value=0,
        interpret=interpret,
    )
    a128 = a.astype(np.complex128)
    np.testing.assert_allclose(out, a128 * (2 - 1j) / (a128 + 1) - a128.conj(), rtol=1e-5)
    np.testing.assert_allclose(total, a128.imag.sum() + 5j, rtol=1e-5)


def test_scalars_and_their_dtypes(interpret):
    values = [True, 5, 2**40, 1.5, np.float16(2.5), np.uint8(7), np.float64(0.1)]
    names = list("abcdefg")
    source = "".join(f"out[{i}] = {n}[0]; size[{i}] = sizeof({n}[0]);" for i, n in enumerate(names))
    k = cuda_kernel("scalars", names, ["out", "size"], source)
    out, size = k(
        inputs=values,
        output_shapes=[(7,)] * 2,
        output_dtypes=[np.float64, np.int32],
        grid=(1, 1, 1),
        threadgroup=(1, 1, 1),
        interpret=interpret,
    )
    assert out.tolist() == [1, 5, 2**40, 1.5, 2.5, 7, 0.1]
    assert size.tolist() == [1, 4, 8, 4, 2, 1, 8]


def test_odd_arrays(interpret):
    """Without elements, read-only, in column order, at odd addresses."""
    empty = np.zeros((0, 3), np.float32)
    k = cuda_kernel("odd", ["e", "x"], ["out", "none"], "out[threadIdx.x] = x[threadIdx.x] + (e_shape[0] == 0);")
    fixed = np.arange(6, dtype=np.float32)
    fixed.flags.writeable = False
    shifted = np.zeros(25, np.uint8)[1:].view(np.float32).reshape(2, 3)
    shifted[...] = 5
    for x in (fixed, np.asfortranarray(fixed.reshape(2, 3)), shifted):
        out, none = k(
            inputs=[empty, x],
            output_shapes=[x.shape, (4, 0)],
            output_dtypes=[np.float32, np.int32],
            grid=(6, 1, 1),
            threadgroup=(6, 1, 1),
            interpret=interpret,
        )
        np.testing.assert_array_equal(out, x + 1)
        assert none.shape == (4, 0)


def test_fp8(interpret):
    x = np.array([1.5, -448, 0.25], ml_dtypes.float8_e4m3fn)
    k = cuda_kernel("fp8", ["x"], ["out"], "out[threadIdx.x] = O(float(x[threadIdx.x]) * 0.5f);")
    (out,) = k(
        inputs=[x],
        output_shapes=[(3,)],
        output_dtypes=[ml_dtypes.float8_e5m2],
        grid=(3, 1, 1),
        threadgroup=(3, 1, 1),
        template=[("O", ml_dtypes.float8_e5m2)],
        interpret=interpret,
    )
    assert out.astype(np.float32).tolist() == [0.75, -224, 0.125]


def test_torch_tensors(interpret):
    torch = pytest.importorskip("torch")
    x = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4).T
    k = cuda_kernel("torch", ["x", "s"], ["out"], f"{INDEX} out[elem] = float(x[elem]) * s[0];")
    (out,) = k(
        inputs=[x, 0.5],
        output_shapes=[x.shape],
        output_dtypes=[torch.float32],
        grid=(12, 1, 1),
        threadgroup=(12, 1, 1),
        interpret=interpret,
    )
    assert isinstance(out, torch.Tensor) and out.dtype == torch.float32
    assert torch.equal(out, x.float() * 0.5)


def test_verbose(interpret, capsys):
    k = cuda_kernel("loud", ["x"], ["out"], "out[0] = x[0] * N;")
    for _ in range(2):
        k(
            inputs=[np.float32(2)],
            output_shapes=[()],
            output_dtypes=[np.float32],
            grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
            template=[("N", -3)],
            verbose=True,
            interpret=interpret,
        )
    said = capsys.readouterr().out
    assert said.count("Generated source code for `loud`:\n```\n") == 2
    assert "constexpr int N = -3;" in said and "const float* x, float* out" in said

"""`cuda_kernel`: bodies in CUDA C++, on both devices, against float64 NumPy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from runtime.body import check_body
from runtime.errors import ArgumentTypeError, ArgumentValueError
from runtime.nvrtc import CompileError, compile_source
from runtime.source import cuda_kernel

pytestmark = pytest.mark.usefixtures("compiler")

INDEX = "auto elem = cg::this_grid().thread_rank();"


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def test_copy(rng, interpret):
    a = rng.standard_normal((2, 2)).astype(np.float32)
    k = cuda_kernel("copy", ["inp"], ["out1"], f"{INDEX} out1[elem] = inp[elem];")
    (out,) = k(
        inputs=[a],
        output_shapes=[a.shape],
        output_dtypes=[a.dtype],
        grid=(4, 1, 1),
        threadgroup=(2, 1, 1),
        interpret=interpret,
    )
    assert isinstance(out, np.ndarray) and out.dtype == a.dtype
    np.testing.assert_array_equal(out, a)


def test_arguments(rng, interpret):
    a = rng.standard_normal((3, 6)).astype(np.float32)
    c = rng.standard_normal((2, 2)).astype(ml_dtypes.bfloat16)
    k = cuda_kernel(
        "arguments",
        ["a", "b", "c", "d"],
        ["out1", "out2"],
        """
        auto elem = cg::this_grid().thread_rank();
        T tmp = a[0];
        if (e) {
          out1[elem] = a[1] + b[2] + c[3] + d[0] + f;
        } else {
          out1[elem] = 1;
        }
        out2[elem] = a[1] + b[2] + c[1] - d[0] + 0 * float(tmp);
        """,
    )
    call = {
        "inputs": [a, np.array([3, 4, 5], np.int32), c, 7.3],
        "output_shapes": [(3, 2), (3, 2)],
        "output_dtypes": [np.float32, np.int32],
        "grid": (6, 1, 1),
        "threadgroup": (2, 1, 1),
        "interpret": interpret,
    }
    first, second = k(template=[("e", True), ("f", 3), ("T", np.float16)], **call)
    a64, c64 = a.astype(np.float64).ravel(), c.astype(np.float64).ravel()
    np.testing.assert_allclose(first, np.full((3, 2), a64[1] + 5 + c64[3] + 7.3 + 3), rtol=1e-6)
    np.testing.assert_array_equal(second, np.full((3, 2), int(a64[1] + 5 + c64[1] - 7.3)))
    first, _ = k(template=[("e", False), ("f", 3), ("T", np.float16)], **call)
    np.testing.assert_array_equal(first, np.ones((3, 2)))


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
        rank[0] = x_ndim;
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


def test_helper_in_header(rng, interpret):
    a = rng.standard_normal((2, 2)).astype(np.float32)
    k = cuda_kernel(
        "helper",
        ["a"],
        ["out"],
        f"{INDEX} out[elem] = do_exp(a[elem]);",
        header="template <typename T> __device__ T do_exp(T x) { return cuda::std::exp(x); }",
    )
    (out,) = k(
        inputs=[a],
        output_shapes=[a.shape],
        output_dtypes=[a.dtype],
        grid=(4, 1, 1),
        threadgroup=(4, 1, 1),
        interpret=interpret,
    )
    np.testing.assert_allclose(out, np.exp(a.astype(np.float64)), rtol=2e-6)


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


def test_one_name_two_sources(interpret):
    call = {
        "inputs": [np.array([1.5, 2.5], np.float32)],
        "output_shapes": [(2,)],
        "output_dtypes": [np.float32],
        "grid": (2, 1, 1),
        "threadgroup": (2, 1, 1),
        "interpret": interpret,
    }
    double = cuda_kernel("same", ["x"], ["out"], "out[threadIdx.x] = x[threadIdx.x] * 2;")
    add = cuda_kernel("same", ["x"], ["out"], "out[threadIdx.x] = x[threadIdx.x] + 100;")
    results = [k(**call)[0].tolist() for k in (double, add, double)]
    assert results == [[3, 5], [101.5, 102.5], [3, 5]]


def test_one_kernel_two_dtypes(interpret):
    k = cuda_kernel("sum", ["x"], ["out"], "out[threadIdx.x] = x[threadIdx.x] + x[threadIdx.x];")
    total = 0.0
    for dtype, value in ((np.float16, 1.5), (np.float32, 2.5)):
        (out,) = k(
            inputs=[np.array([value], dtype)],
            output_shapes=[(1,)],
            output_dtypes=[dtype],
            grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
            interpret=interpret,
        )
        assert out.dtype == dtype
        total += float(out[0])
    assert total == 8.0


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
    (out,) = k(
        inputs=[x],
        output_shapes=[x.shape],
        output_dtypes=[x.dtype],
        grid=(64, 1, 1),
        threadgroup=(64, 1, 1),
        interpret=interpret,
    )
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


# --- errors -------------------------------------------------------------------------------------------


def test_compile_error_names_the_line(request):
    k = cuda_kernel(
        "broken",
        ["x"],
        ["out"],
        """
        int i = threadIdx.x;
        out[i] = x[i] + missing;  // HERE
        """,
    )
    with pytest.raises(CompileError) as caught:
        k(
            inputs=[np.zeros(1, np.float32)],
            output_shapes=[(1,)],
            output_dtypes=[np.float32],
            grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
            interpret=True,
        )
    lines = request.path.read_text().splitlines()
    here = next(n for n, line in enumerate(lines, 1) if "// HERE" in line and "missing" in line)
    assert f"{request.path}:{here}: error:" in str(caught.value)
    assert '"missing" is undefined' in str(caught.value)
    assert [d.line for d in caught.value.diagnostics] == [here]


def test_compile_error_without_a_place():
    source = "\n".join(["int i = 0;", "out[i] = nothing" + ";"])
    k = cuda_kernel("assembled", [], ["out"], source, header="\n".join(["int f()", "{ return wrong; }"]))
    with pytest.raises(CompileError) as caught:
        k(
            inputs=[],
            output_shapes=[(1,)],
            output_dtypes=[np.float32],
            grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
            interpret=True,
        )
    assert "source of kernel 'assembled', line 2: error" in str(caught.value)
    assert "header of kernel 'assembled', line 2: error" in str(caught.value)


@pytest.mark.parametrize(
    ("end", "says"),
    [
        ("out[i] = 1", "source of kernel 'unfinished', line 2: error"),
        ("out[i] =\n\n", "source of kernel 'unfinished', line 2: error"),
        ("{ out[i] = 1;", 'At end of source: error: expected a "}"'),
    ],
)
def test_what_the_end_lacks_is_reported(end, says):
    source = "\n".join(["int i = 0;", end])
    k = cuda_kernel("unfinished", [], ["out"], source)
    with pytest.raises(CompileError) as caught:
        k(
            inputs=[],
            output_shapes=[(1,)],
            output_dtypes=[np.float32],
            grid=(1,) * 3,
            threadgroup=(1,) * 3,
            interpret=True,
        )
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ('asm("bad.instr;");', "Not a name of any known instruction: 'bad'"),
        (
            "__shared__ int a[100000]; a[threadIdx.x] = out[0]; __syncthreads(); out[0] = a[int(out[1])];",
            "too much shared",
        ),
    ],
)
def test_the_assemblers_words_are_kept(source, says):
    """Machine code for a GPU is assembled by NVRTC, whose log then names no line of the source."""
    body = check_body("cuda_kernel", "k", [], ["out"], source, "")
    text = 'extern "C" __global__ void f(float* out) {' + source + "}"
    with pytest.raises(CompileError) as caught:
        compile_source(text, file="generated", target="sm_90a", kind="cubin")
    assert says in body.explain(caught.value)


GOOD = {
    "inputs": [np.zeros(3, np.float32)],
    "output_shapes": [(3,)],
    "output_dtypes": [np.float32],
    "grid": (3, 1, 1),
    "threadgroup": (3, 1, 1),
    "interpret": True,
}


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"inputs": []}, ArgumentValueError, "inputs= of kernel 'k' holds 0, and 1 are expected"),
        ({"inputs": np.zeros(3)}, ArgumentTypeError, "must be a list"),
        ({"inputs": ["text"]}, ArgumentTypeError, "input 'x'"),
        ({"inputs": [[1, 2]]}, ArgumentTypeError, "input 'x'"),
        ({"inputs": [np.zeros((1,) * 11)]}, ArgumentValueError, "11 dimensions"),
        ({"inputs": [2**70]}, ArgumentValueError, "64 bits"),
        ({"output_shapes": []}, ArgumentValueError, "output_shapes"),
        ({"output_shapes": [3]}, ArgumentTypeError, "tuple of integers"),
        ({"output_shapes": [(-1,)]}, ArgumentValueError, "negative"),
        ({"output_shapes": [(1.5,)]}, ArgumentTypeError, "integers"),
        ({"output_dtypes": [np.float32] * 2}, ArgumentValueError, "output_dtypes"),
        ({"output_dtypes": ["nothing"]}, ArgumentTypeError, "dtype"),
        ({"output_dtypes": [None]}, ArgumentTypeError, "dtype"),
        ({"grid": (3, 1)}, ArgumentTypeError, "three integers"),
        ({"grid": 3}, ArgumentTypeError, "three integers"),
        ({"grid": (3.0, 1, 1)}, ArgumentTypeError, "integers"),
        ({"grid": (-3, 1, 1)}, ArgumentValueError, "negative"),
        ({"grid": (1, 70000, 1)}, ArgumentValueError, "65535"),
        ({"threadgroup": (0, 1, 1)}, ArgumentValueError, "at least 1"),
        ({"threadgroup": (64, 64, 1), "grid": (64, 64, 1)}, ArgumentValueError, "1024"),
        ({"threadgroup": (1, 1, 65), "grid": (1, 1, 65)}, ArgumentValueError, "64"),
        ({"template": [("T", 1.5)]}, ArgumentValueError, "dtype, an int of 32 bits or a bool"),
        ({"template": [("T", np.float32(1.5))]}, ArgumentValueError, "dtype, an int of 32 bits or a bool"),
        ({"template": [("T", 2**31)]}, ArgumentValueError, "32 bits"),
        ({"template": [("T", "what")]}, ArgumentValueError, "dtype"),
        ({"template": [("T", None)]}, ArgumentValueError, "dtype"),
        ({"template": [("x", 1)]}, ArgumentValueError, "twice"),
        ({"template": [("1x", 1)]}, ArgumentValueError, "identifier"),
        ({"template": ["T"]}, ArgumentTypeError, "pairs"),
        ({"init_value": "zero"}, ArgumentTypeError, "init_value"),
        ({"init_value": 300, "output_dtypes": [np.uint8]}, ArgumentValueError, "fit"),
        ({"init_value": float("nan"), "output_dtypes": [np.int32]}, ArgumentValueError, "fit"),
    ],
)
def test_bad_calls(change, error, says):
    k = cuda_kernel("k", ["x"], ["out"], "out[0] = this does not even compile;")
    with pytest.raises(error, match=says):
        k(**(GOOD | change))


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (("k", ["x"], [], ""), ArgumentValueError, "at least one output"),
        (("k", ["x"], ["x"], ""), ArgumentValueError, "twice"),
        (("k", ["a b"], ["out"], ""), ArgumentValueError, "identifier"),
        (("k", ["float"], ["out"], ""), ArgumentValueError, "keyword"),
        (("k", "x", ["out"], ""), ArgumentTypeError, "list of names"),
        (("", ["x"], ["out"], ""), ArgumentTypeError, "name"),
        (("k", ["x"], ["out"], b""), ArgumentTypeError, "text"),
        (("k", ["x"], ["out"], "", "", True, -1), ArgumentValueError, "negative"),
        (("k", ["x"], ["out"], "", "", True, 1.5), ArgumentTypeError, "bytes"),
    ],
)
def test_bad_factories(arguments, error, says):
    with pytest.raises(error, match=says):
        cuda_kernel(*arguments)


def test_too_much_shared_memory(interpret):
    k = cuda_kernel("greedy", [], ["out"], "", shared_memory=2**20)
    with pytest.raises(ArgumentValueError, match="1048576"):
        k(
            inputs=[],
            output_shapes=[(1,)],
            output_dtypes=[np.float32],
            grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
            interpret=interpret,
        )


# --- what the interpreter says ------------------------------------------------------------------------


def hazard(k, **call) -> str:
    from runtime.interpreter import HazardError

    with pytest.raises(HazardError) as caught:
        k(**call, interpret=True)
    return str(caught.value)


def test_out_of_bounds_names_the_line(request):
    k = cuda_kernel(
        "past_the_end",
        ["x"],
        ["out"],
        """
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        float value = x[i];  // BEYOND
        out[i] = value;
        """,
    )
    said = hazard(
        k,
        inputs=[np.zeros(6, np.float32)],
        output_shapes=[(6,)],
        output_dtypes=[np.float32],
        grid=(6, 1, 1),
        threadgroup=(4, 1, 1),
    )
    lines = request.path.read_text().splitlines()
    here = next(n for n, line in enumerate(lines, 1) if line.endswith("// BEYOND"))
    assert f"{request.path}:{here}" in said
    assert "input 'x'" in said


def test_reading_an_output_that_holds_nothing():
    k = cuda_kernel("adds", [], ["total"], "atomicAdd(total, 1.0f);")
    call = {
        "inputs": [],
        "output_shapes": [()],
        "output_dtypes": [np.float32],
        "grid": (1, 1, 1),
        "threadgroup": (1, 1, 1),
    }
    said = hazard(k, **call)
    assert "uninitialised" in said and "output 'total'" in said
    assert k(**call, init_value=1, interpret=True)[0] == 2


def test_writing_an_input():
    k = cuda_kernel("writes", ["x"], ["out"], "const_cast<float*>(x)[0] = 1; out[0] = x[0];")
    x = np.zeros(1, np.float32)
    said = hazard(
        k,
        inputs=[x],
        output_shapes=[()],
        output_dtypes=[np.float32],
        grid=(1, 1, 1),
        threadgroup=(1, 1, 1),
    )
    assert "input 'x'" in said and x[0] == 0

"""Vectors and complex numbers of Metal bodies where C++ would have it otherwise: padding, aliases, overloads."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_dsl.runtime.custom.metal.metal import metal_kernel
from kernel_dsl.runtime.custom.source import cuda_kernel

from .conftest import one_block

pytestmark = pytest.mark.usefixtures("compiler")


def holds(checks: str, interpret: bool) -> None:
    """Every line of `checks` is true: declarations, then `##` and a condition."""
    lines = [line.strip() for line in checks.strip().splitlines()]
    parts = [line.rpartition("##") for line in lines]
    body = "\n".join(f"{{ {before} out[{n}] = ({condition}); }}" for n, (before, _, condition) in enumerate(parts))
    (out,) = metal_kernel("holds", [], ["out"], body)(
        inputs=[],
        output_shapes=[(len(lines),)],
        output_dtypes=[np.bool_],
        grid=(1, 1, 1),
        threadgroup=(1, 1, 1),
        init_value=False,
        interpret=interpret,
    )
    assert out.all(), [lines[n] for n in np.flatnonzero(~out)]


@pytest.mark.parametrize("kind", ["float3", "uint3", "half3"])
def test_vectors_of_three_in_threadgroup_memory(interpret, kind):
    """A vector of three takes the room of four; nobody writes the fourth, and a wide load may bring it along."""
    source = f"""
    uint i = thread_position_in_grid.x;
    threadgroup {kind} tile[64];
    tile[i] = {kind}(x[3 * i], x[3 * i + 1], x[3 * i + 2]);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    {kind} v = tile[63 - i];
    out[3 * i] = v.x; out[3 * i + 1] = v.y; out[3 * i + 2] = v.z;
    """
    x = np.arange(192, dtype=np.float32).reshape(64, 3)
    kernel = metal_kernel("tile", ["x"], ["out"], source)
    out = one_block(kernel, x, shape=x.shape, threads=64, interpret=interpret)
    np.testing.assert_array_equal(out, x[::-1])


def test_a_wide_load_of_memory_that_is_used_is_checked():
    """Only elements that nothing names are exempt: the fourth is used here, and nobody wrote it."""
    k = cuda_kernel(
        "unwritten",
        [],
        ["out"],
        """
        __shared__ float4 tile[32];
        tile[threadIdx.x].x = 1; tile[threadIdx.x].y = 2; tile[threadIdx.x].z = 3;
        __syncthreads();
        float4 v = tile[31 - threadIdx.x];
        out[threadIdx.x] = v.x + v.y + v.z + v.w;
        """,
    )
    with pytest.raises(RuntimeError, match="uninitialised"):
        one_block(k, shape=(32,), threads=32, interpret=True)


def test_swizzles_of_a_vector_take_that_vector(interpret):
    holds(
        """
        float4 v(1, 2, 3, 4); v.wzyx = v; ## all(v == float4(4, 3, 2, 1))
        float2 v(1, 2); v.yx = v; ## all(v == float2(2, 1))
        float3 v(1, 2, 3); v.zxy = v; ## all(v == float3(2, 3, 1))
        half4 v(1, 2, 3, 4); v.yxwz = v; ## all(v == half4(2, 1, 4, 3))
        float4 v(1, 2, 3, 4); v.wzyx += v; ## all(v == float4(5))
        """,
        interpret,
    )


def test_integer_functions_of_vectors(interpret):
    holds(
        """
        ## all(rotate(uint2(1, 2), uint2(31, 1)) == uint2(0x80000000u, 4)) && all(rotate(uint2(1, 2), 1u) == uint2(2, 4))
        ## all(addsat(uint2(~0u, 1), uint2(5, 6)) == uint2(~0u, 7)) && all(subsat(int2(1, INT_MIN), int2(5, 6)) == int2(-4, INT_MIN))
        ## all(mulhi(uint2(1u << 31), uint2(4, 2)) == uint2(2, 1)) && all(madhi(int2(1 << 30), int2(4), int2(1)) == int2(2))
        ## all(madsat(int2(1 << 30, 2), int2(4), int2(1)) == int2(INT_MAX, 9)) && all(madsat(ushort3(9), ushort3(9), ushort3(9)) == ushort3(90))
        ## all(popcount(uint2(7, 255)) == uint2(3, 8)) && all(clz(uchar2(1, 16)) == uchar2(7, 3)) && all(absdiff(uint2(3), uint2(5)) == 2)
        """,
        interpret,
    )


def test_complex_numbers(interpret):
    holds(
        """
        complex64_t z(1, 2); z += complex64_t(1, 1); z -= 1; ## z.real == 1 && z.imag == 3
        complex64_t z(1, 2); z *= 2.0f; z /= complex64_t(0, 1); ## z.real == 4 && z.imag == -2
        complex64_t z(1, 2); ## complex64_t(1, 1) < z && z > complex64_t(0, 9) && z >= z && z <= z && !(z < 1) && !(z > z)
        complex64_t z(NAN, 2); ## !(z < z) && !(z <= z) && !(z >= z)
        complex64_t z(3, 4); half h = 2; bfloat b = 2; uint n = 2; ## z * h == b * z && n * z + true == complex64_t(7, 8)
        complex64_t z(3, 4); ## static_cast<float>(z) == 3 && half(z) == 3 && int(z) == 3
        complex64_t z = half(2), w{1}, q = 2; ## z == q && w != z && w == 1.0f && sizeof(z) == 8
        """,
        interpret,
    )


def test_constants_of_16_bit_types(interpret):
    names = [
        "E",
        "LOG2E",
        "LOG10E",
        "LN2",
        "LN10",
        "PI",
        "PI_2",
        "PI_4",
        "1_PI",
        "2_PI",
        "2_SQRTPI",
        "SQRT2",
        "SQRT1_2",
    ]
    lines = [f"## M_{n}_H == half(M_{n}_F) && M_{n}_BF == bfloat(M_{n}_F) && sizeof(M_{n}_H) == 2" for n in names]
    lines += ["## isinf(HUGE_VALH) && isinf(HUGE_VALBF) && isfinite(MAXBFLOAT) && MAXBFLOAT > 3e38f"]
    lines += ["## abs(float(M_PI_H) - 3.14159265f) < 1e-3f"]
    holds("\n".join(lines), interpret)

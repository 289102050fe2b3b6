"""The headers behind `metal_kernel`: Metal's types and functions."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kernel_dsl.runtime.custom.metal.metal import metal_kernel

pytestmark = pytest.mark.usefixtures("compiler")


def run(source: str, inputs: dict[str, Any], dtype: Any, count: int, interpret: bool, **more: Any) -> np.ndarray:
    """One output of `count` elements, one thread each, all in one threadgroup unless told."""
    template = more.pop("template", None)
    threadgroup = more.pop("threadgroup", (min(count, 1024), 1, 1))
    init = more.pop("init_value", None)
    (out,) = metal_kernel("test", list(inputs), ["out"], "uint i = thread_position_in_grid.x;\n" + source, **more)(
        inputs=list(inputs.values()),
        output_shapes=[(count,)],
        output_dtypes=[dtype],
        grid=(count, 1, 1),
        threadgroup=threadgroup,
        template=template,
        init_value=init,
        interpret=interpret,
    )
    return out


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


UNARY = {
    "acos": (np.arccos, -1, 1),
    "acosh": (np.arccosh, 1, 9),
    "asin": (np.arcsin, -1, 1),
    "asinh": (np.arcsinh, -9, 9),
    "atan": (np.arctan, -9, 9),
    "atanh": (np.arctanh, -0.99, 0.99),
    "ceil": (np.ceil, -9, 9),
    "cos": (np.cos, -9, 9),
    "cosh": (np.cosh, -5, 5),
    "cospi": (lambda x: np.cos(np.pi * x), -3, 3),
    "exp": (np.exp, -20, 20),
    "exp2": (np.exp2, -20, 20),
    "exp10": (lambda x: 10**x, -9, 9),
    "fabs": (np.abs, -9, 9),
    "floor": (np.floor, -9, 9),
    "fract": (lambda x: x - np.floor(x), -9, 9),
    "log": (np.log, 0.01, 99),
    "log2": (np.log2, 0.01, 99),
    "log10": (np.log10, 0.01, 99),
    "rint": (np.rint, -9, 9),
    "round": (lambda x: np.trunc(x + np.copysign(0.5, x)), -9, 9),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 0.01, 99),
    "saturate": (lambda x: np.clip(x, 0, 1), -2, 2),
    "sign": (np.sign, -2, 2),
    "sin": (np.sin, -9, 9),
    "sinh": (np.sinh, -5, 5),
    "sinpi": (lambda x: np.sin(np.pi * x), -3, 3),
    "sqrt": (np.sqrt, 0, 99),
    "tan": (np.tan, -1.5, 1.5),
    "tanh": (np.tanh, -5, 5),
    "tanpi": (lambda x: np.tan(np.pi * x), -0.45, 0.45),
    "trunc": (np.trunc, -9, 9),
}
APPROXIMATE = ("cos", "exp", "exp2", "exp10", "log", "log2", "log10", "rsqrt", "sin", "sqrt", "tan")


def test_unary_functions(rng, interpret):
    """All in one kernel, each under `metal::`, `precise::` and where there is one `fast::`, scalars and vectors."""
    count = 64
    x = np.stack([rng.uniform(low, high, count) for _, low, high in UNARY.values()]).astype(np.float32)
    lines = []
    for row, name in enumerate(UNARY):
        at = f"{row * count} + i"
        lines.append(f"float a{row} = x[{at}]; float3 v{row} = metal::{name}(float3(0.5f, a{row}, 0.5f));")
        lines.append(f"out[{at}] = {'precise::' if row % 2 else ''}{name}(a{row});")
        lines.append(f"same[{at}] = v{row}.y == out[{at}];")
        fast = f"fast::{name}(a{row})" if name in APPROXIMATE else f"out[{at}]"
        lines.append(f"quick[{at}] = {fast};")
    k = metal_kernel(
        "unary",
        ["x"],
        ["out", "same", "quick"],
        "uint i = thread_position_in_grid.x;\n" + "\n".join(lines),
    )
    out, same, quick = k(
        inputs=[x],
        output_shapes=[x.shape] * 3,
        output_dtypes=[np.float32, np.bool_, np.float32],
        grid=(count, 1, 1),
        threadgroup=(count, 1, 1),
        interpret=interpret,
    )
    for row, (name, (exact, _, _)) in enumerate(UNARY.items()):
        expected = exact(x[row].astype(np.float64))
        np.testing.assert_allclose(out[row], expected, rtol=2e-6, atol=4e-7, err_msg=name)
        np.testing.assert_allclose(quick[row], expected, rtol=2e-5, atol=5e-6, err_msg=f"fast::{name}")
    assert same.all()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32], ids=["half", "bfloat", "float"])
def test_functions_keep_the_type(rng, interpret, dtype):
    a, b, c = (rng.uniform(0.5, 3, 32).astype(dtype) for _ in range(3))
    cases = {
        "exp(x)": np.exp,
        "pow(x, y)": lambda x, y, z: x**y,
        "fma(x, y, z)": lambda x, y, z: x * y + z,
        "max(x, y)": lambda x, y, z: np.maximum(x, y),
        "min(x, 1)": lambda x, y, z: np.minimum(x, 1),
        "clamp(x, T(1), y)": lambda x, y, z: np.minimum(np.maximum(x, 1), y),
        "atan2(x, y)": lambda x, y, z: np.arctan2(x, y),
        "fmod(x, y)": lambda x, y, z: np.fmod(x, y),
        "select(x, y, x > y)": lambda x, y, z: np.where(x > y, y, x),
        "x > y ? x : 0": lambda x, y, z: np.where(x > y, x, 0),
        "x > y ? 1.5f : y": lambda x, y, z: np.where(x > y, 1.5, y),
        "x * y": lambda x, y, z: x * y,
        "x / y": lambda x, y, z: x / y,
        "x - 2": lambda x, y, z: x - 2,
        "abs(-x)": lambda x, y, z: x,
    }
    source = "T x = a[i], y = b[i], z = c[i];\n" + "\n".join(
        f"out[{n} * 32 + i] = {text};" for n, text in enumerate(cases)
    )
    k = metal_kernel("typed", ["a", "b", "c"], ["out"], "uint i = thread_position_in_grid.x;\n" + source)
    (out,) = k(
        inputs=[a, b, c],
        output_shapes=[(len(cases), 32)],
        output_dtypes=[dtype],
        grid=(32, 1, 1),
        threadgroup=(32, 1, 1),
        template=[("T", dtype)],
        interpret=interpret,
    )
    wide = [v.astype(np.float64) for v in (a, b, c)]
    tolerance = {"float16": 6e-4, "bfloat16": 4.5e-3, "float32": 2e-6}[np.dtype(dtype).name]
    for n, (text, exact) in enumerate(cases.items()):
        expected = exact(wide[0]) if exact is np.exp else exact(*wide)
        np.testing.assert_allclose(
            out[n].astype(np.float64), expected, rtol=tolerance, atol=tolerance / 100, err_msg=text
        )


@pytest.mark.parametrize("op", ["+", "-", "*", "/"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["half", "bfloat"])
def test_16_bit_arithmetic_rounds_once(rng, interpret, op, dtype):
    bits = rng.integers(0, 2**16, (2, 1024)).astype(np.uint16)
    x, y = bits.view(dtype)
    out = run(f"out[i] = a[i] {op} b[i];", {"a": x, "b": y}, dtype, 1024, interpret)
    with np.errstate(all="ignore"):
        expected = eval(f"x.astype(np.float64) {op} y.astype(np.float64)").astype(dtype)
    np.testing.assert_array_equal(out.astype(np.float64), expected.astype(np.float64))


def test_half_constants_fold_as_the_hardware_rounds(interpret):
    """Constants at namespace scope are folded in software; the same numbers at run time are not."""
    values = [1.0, 65504, 65519.9, 65520, 1e-8, 5.96e-8, 6.1e-5, 1 / 3, -2.5, 2.98e-8, 2.99e-8, 0.1]
    listed = ", ".join(f"half({v!r}f)" for v in map(float, values))
    x = np.array(values, np.float32)
    k = metal_kernel(
        "fold",
        ["x"],
        ["folded", "converted"],
        "uint i = thread_position_in_grid.x; folded[i] = table[i]; converted[i] = half(x[i]);",
        header=f"constant half table[12] = {{{listed}}};",
    )
    folded, converted = k(
        inputs=[x],
        output_shapes=[(12,)] * 2,
        output_dtypes=[np.float16] * 2,
        grid=(12, 1, 1),
        threadgroup=(12, 1, 1),
        interpret=interpret,
    )
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(converted, x.astype(np.float16))
    np.testing.assert_array_equal(folded.view(np.uint16), converted.view(np.uint16))


def test_integer_functions(rng, interpret):
    info = np.iinfo(np.int32)
    x = rng.integers(info.min, info.max, 64, np.int32)
    y = rng.integers(info.min, info.max, 64, np.int32)
    x[:4], y[:4] = [0, -1, info.max, info.min], [1, 31, info.max, -1]
    wide, other = x.astype(np.int64), y.astype(np.int64)
    unsigned = x.view(np.uint32).astype(np.int64)
    cases = {
        "abs(x)": np.abs(wide),
        "absdiff(x, y)": np.abs(wide - other),
        "addsat(x, y)": np.clip(wide + other, info.min, info.max),
        "subsat(x, y)": np.clip(wide - other, info.min, info.max),
        "clz(x)": [32 - int(v).bit_length() for v in unsigned],
        "ctz(x)": [(int(v) & -int(v)).bit_length() - 1 if v else 32 for v in unsigned],
        "popcount(x)": [int(v).bit_count() for v in unsigned],
        "reverse_bits(x)": [int(f"{int(v):032b}"[::-1], 2) for v in unsigned],
        "rotate(x, y)": [
            (int(u) << (int(s) % 32) | int(u) >> (32 - int(s) % 32)) for u, s in zip(unsigned, other, strict=True)
        ],
        "mulhi(x, y)": wide * other >> 32,
        "hadd(x, y)": (wide + other) >> 1,
        "rhadd(x, y)": (wide + other + 1) >> 1,
        "max3(x, y, 7)": np.maximum(np.maximum(wide, other), 7),
        "median3(x, y, 7)": np.median([wide, other, np.full(64, 7)], axis=0),
        "extract_bits(uint(x), 5, 9)": unsigned >> 5 & 511,
        "extract_bits(x, 3, 4)": (wide >> 3 & 15) - ((wide >> 3 & 8) << 1),
        "insert_bits(x, y, 4, 8)": (wide & ~(255 << 4)) | ((other & 255) << 4),
        "madsat(x, y, 5)": [max(info.min, min(info.max, int(a) * int(b) + 5)) for a, b in zip(x, y, strict=True)],
        "mad24(x & 255, y & 255, 3)": (wide & 255) * (other & 255) + 3,
    }
    lines = "\n".join(f"out[{n} * 64 + i] = int({text});" for n, text in enumerate(cases))
    k = metal_kernel(
        "ints",
        ["a", "b"],
        ["out"],
        f"uint i = thread_position_in_grid.x; int x = a[i], y = b[i]; {lines}",
    )
    (out,) = k(
        inputs=[x, y],
        output_shapes=[(len(cases), 64)],
        output_dtypes=[np.int32],
        grid=(64, 1, 1),
        threadgroup=(64, 1, 1),
        interpret=interpret,
    )
    for n, (text, expected) in enumerate(cases.items()):
        whole = np.array([int(v) & 0xFFFFFFFF for v in expected], np.uint32)
        np.testing.assert_array_equal(out[n].view(np.uint32), whole, err_msg=text)


def test_vectors(interpret):
    """Constructors, swizzles to read and to assign, operators, packed vectors, geometry."""
    checks = """
    float4 a = float4(1, 2, 3, 4);
    float3 b(a.xy, 9);
    CHECK(all(a.wzyx == float4(4, 3, 2, 1)));
    CHECK(all(a.rgb == a.xyz) && a.b == a.z);
    CHECK(all(b == float3(1, 2, 9)));
    a.xy = a.yx; CHECK(all(a == float4(2, 1, 3, 4)));
    a.zw += b.xy; CHECK(all(a == float4(2, 1, 4, 6)));
    a.xyz *= 2; CHECK(all(a == float4(4, 2, 8, 6)));
    CHECK(all(float4(b, 1).xyww == float4(1, 2, 1, 1)));
    CHECK(all(-b + 1.0 == float3(0, -1, -8)));
    CHECK(all((b > 1.5) == bool3(false, true, true)) && any(b > 5) && !any(b > 50));
    CHECK(all(int3(b) % 2 == int3(1, 0, 1)) && all(uint2(3, 5) << 1 == uint2(6, 10)) && all(~int2(0) == int2(-1)));
    CHECK(sizeof(float3) == 16 && alignof(float3) == 16 && sizeof(packed_float3) == 12 && sizeof(half3) == 8);
    packed_float3 p = b; p += 1; CHECK(all(float3(p) == float3(2, 3, 10)));
    CHECK(dot(b, b.zyx) == 22 && length(float2(3, 4)) == 5 && distance(float2(1, 1), float2(4, 5)) == 5);
    CHECK(all(cross(float3(1, 0, 0), float3(0, 1, 0)) == float3(0, 0, 1)));
    CHECK(all(normalize(float2(0, 2)) == float2(0, 1)) && all(reflect(float2(1, -1), float2(0, 1)) == float2(1, 1)));
    CHECK(all(mix(float2(0, 2), float2(4, 4), 0.5) == float2(2, 3)) && mix(1.0, 3.0, 0.25) == 1.5);
    CHECK(all(clamp(b, 1.5, 3.0) == float3(1.5, 2, 3)) && all(max(b, 2) == float3(2, 2, 9)));
    CHECK(all(select(float2(1, 2), float2(3, 4), bool2(true, false)) == float2(3, 2)) && select(1, 2, true) == 2);
    CHECK(as_type<uint>(1.0f) == 0x3f800000u && as_type<half2>(as_type<uint>(half2(1, 2))).y == 2);
    CHECK(all(as_type<ushort2>(0x12345678) == ushort2(0x5678, 0x1234)));
    half3 h = half3(0.5h, 1.5h, 2); CHECK(all(h * 2 == half3(1, 3, 4)) && all(float3(h) == float3(0.5, 1.5, 2)));
    CHECK(all(fma(h, half3(2), half3(1)) == half3(2, 4, 5)));
    { const float3 c = {1, 2, 3}; float total = 0; for (int n = 0; n < 3; ++n) total += c[n]; CHECK(total == 6); }
    uint3 u(1, 2, 3); u++; --u.x; CHECK(all(u == uint3(1, 3, 4)));
    float2 q = a.x > 3 ? b.xy : float2(0); CHECK(all(q == b.xy));
    CHECK(isnan(NAN) && isinf(INFINITY) && !isfinite(INFINITY) && isnormal(1.0) && signbit(-0.0) && isunordered(NAN, 1.0));
    float whole, cosine; int exponent;
    CHECK(modf(-2.5, whole) == -0.5 && whole == -2 && frexp(12.0, exponent) == 0.75 && exponent == 4);
    CHECK(ldexp(0.75, 4) == 12 && ilogb(12.0) == 3 && sincos(0.0, cosine) == 0 && cosine == 1);
    CHECK(step(1.0, 2.0) == 1 && step(2.0, 1.0) == 0 && smoothstep(0.0, 2.0, 1.0) == 0.5 && copysign(1.0, -3.0) == -1);
    CHECK(fdim(3.0, 1.0) == 2 && fdim(1.0, 3.0) == 0 && nextafter(1.0, 2.0) > 1 && fmax(NAN, 2.0) == 2 && divide(1.0, 4.0) == 0.25);
    float2x3 m = float2x3(float3(1, 2, 3), float3(4, 5, 6));
    CHECK(all(m * float2(1, 10) == float3(41, 52, 63)) && all(float3(1, 0, 1) * m == float2(4, 10)) && m[1].y == 5);
    CHECK(transpose(m)[2].y == 6 && (m * 2.0)[1][2] == 12 && transpose(m) * m == float2x2(14, 32, 32, 77));
    CHECK(determinant(float3x3(2, 0, 1, 1, 3, 0, 0, 1, 4)) == 25 && determinant(float4x4(2.0)) == 16);
    CHECK(float2x2(1.0) + float2x2(1, 2, 3, 4) == float2x2(2, 2, 3, 5) && all(half2x2(2.0h) * half2(1, 3) == half2(2, 6)));
    CHECK(INT_MAX == 2147483647 && UINT_MAX + 1 == 0 && FLT_MAX > 3e38 && HALF_MAX == 65504 && INT_MIN < 0);
    CHECK(numeric_limits<half>::max() == 65504 && numeric_limits<int>::lowest() == -2147483648 && Limits<float>::min < -1e38);
    packed_float3 s(1, 2, 3); s.zx = s.xy; s.y += 5; CHECK(all(float3(s) == float3(2, 7, 1)) && s.r == 2 && all(s.yz == float2(7, 1)));
    CHECK(all(float3(packed_float3(4)) == float3(4)) && sizeof(packed_half3) == 6 && sizeof(packed_uchar4) == 4);
    array<float, 3> many = {1, 2, 3}; float over = 0; for (float e : many) over += e; CHECK(over == 6 && many.size() == 3);
    CHECK(is_integral<const uchar>::value && !is_integral_v<half> && is_floating_point<bfloat>() && is_arithmetic_v<bool>);
    CHECK(is_signed_v<char> && is_unsigned_v<ulong> && !is_unsigned_v<half> && is_vector_v<half2> && !is_vector_v<half>);
    CHECK(is_same_v<remove_cvref_t<const int&>, int> && is_same_v<make_unsigned_t<short>, ushort> && is_convertible_v<int, half>);
    CHECK(is_pointer_v<device float*> && is_same<conditional_t<true, half, int>, half>::value && !is_convertible_v<float2, int>);
    """
    count = checks.count("CHECK(")
    numbered = checks
    for n in range(count):
        numbered = numbered.replace("CHECK(", f"RECORD({n}, ", 1)
    k = metal_kernel("vectors", [], ["out"], numbered, header="#define RECORD(n, ...) out[n] = (__VA_ARGS__)")
    (out,) = k(
        inputs=[],
        output_shapes=[(count,)],
        output_dtypes=[np.bool_],
        grid=(1, 1, 1),
        threadgroup=(1, 1, 1),
        init_value=False,
        interpret=interpret,
    )
    lines = [line.strip() for line in checks.split("CHECK(")[1:]]
    assert out.all(), [lines[n] for n in np.flatnonzero(~out)]


@pytest.mark.parametrize("kind", ["float", "half"])
@pytest.mark.parametrize(("form", "count", "bits"), [("unorm4x8", 4, 8), ("snorm4x8", 4, 8), ("unorm2x16", 2, 16)])
def test_packing(rng, interpret, kind, form, count, bits):
    """Values beyond the range saturate, ties go to even, and what was packed unpacks to the nearest code."""
    dtype = {"float": np.float32, "half": np.float16}[kind]
    x = rng.uniform(-1.5, 1.5, (64, count)).astype(dtype)
    vector = ", ".join(f"x[{count} * i + {n}]" for n in range(count))
    packed = run(f"out[i] = pack_{kind}_to_{form}({kind}{count}({vector}));", {"x": x}, np.uint32, 64, interpret)
    low, scale = (-1, 2 ** (bits - 1) - 1) if form[0] == "s" else (0, 2**bits - 1)
    codes = np.rint(np.clip(x, low, 1).astype(np.float32) * np.float32(scale)).astype(np.int64)
    expected = sum((codes[:, n] & (2**bits - 1)) << (bits * n) for n in range(count))
    np.testing.assert_array_equal(packed, expected)
    text = f"out[i] = unpack_{form}_to_{kind}(p[i / {count}])[i % {count}];"
    back = run(text, {"p": packed}, dtype, 64 * count, interpret).reshape(64, count)
    np.testing.assert_array_equal(back, (codes.astype(np.float32) / np.float32(scale)).astype(dtype))

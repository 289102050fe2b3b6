"""Metal Shading Language as C++: what is rewritten, and that nothing else is."""

from __future__ import annotations

import pytest

from kernel_dsl.runtime.custom.metal.msl import reads, translate


@pytest.mark.parametrize(
    ("metal", "cuda"),
    [
        ("threadgroup float tile[32][4];", "__shared__ float tile[32][4];"),
        ("threadgroup atomic_uint n;", "__shared__ atomic_uint n;"),
        ("threadgroup vec<float, 4> a, b[3];", "__shared__ vec<float, 4> a, b[3];"),
        ("threadgroup unsigned int n;", "__shared__ unsigned int n;"),
        ("threadgroup float* p = tile;", " float* p = tile;"),
        ("threadgroup T (&x)[4]", " T (&x)[4]"),
        ("static_cast<threadgroup float*>(p)", "static_cast< float*>(p)"),
        (
            "void f(threadgroup T& x, constant int* s, thread float3 &v)",
            "void f( T& x, const int* s,  float3 &v)",
        ),
        ("void f(threadgroup T a[32], uint i)", "void f( T a[32], uint i)"),
        ("const device T* x = y;", "const  T* x = y;"),
        (
            "threadgroup_barrier(mem_flags::mem_threadgroup);",
            "threadgroup_barrier(mem_flags::mem_threadgroup);",
        ),
        ("my_device + thread_index + constants", "my_device + thread_index + constants"),
        ("// a constant in device memory", "// a constant in device memory"),
        ("/* thread\n 1.0 */ 'x' \"device 1.0\"", "/* thread\n 1.0 */ 'x' \"device 1.0\""),
        ("1.0 .5 1e-3 2. 1.5E+2", "1.0f .5f 1e-3f 2.f 1.5E+2f"),
        ("1.0f 3 0x1F 10u 0x1p3 1ul a.x1 v10", "1.0f 3 0x1F 10u 0x1p3 1ul a.x1 v10"),
        ("1.5h 2h 1.0bf", "half(1.5f) half(2.0f) bfloat(1.0f)"),
        ("1'000 + 1'0.2'5h + 'a'", "1'000 + half(10.25f) + 'a'"),
    ],
)
def test_rewritten(metal, cuda):
    assert translate(metal, ternaries=False) == cuda


def branch(a: str, b: str, side: str) -> str:
    return f"metal::branch<decltype({a}), decltype({b})>({side})"


def squeeze(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize(
    ("text", "a", "b", "around"),
    [
        ("y = c ? x : 0;", "x", "0", "y = c ? {} : {};"),
        ("f(c ? x : y, z)", "x", "y", "f(c ? {} : {}, z)"),
        ("y = c ? x[i] : g<int, 3>(q) + 1;", "x[i]", "g<int, 3>(q) + 1", "y = c ? {} : {};"),
        ("y = a < b ? x < y : u > v;", "x < y", "u > v", "y = a < b ? {} : {};"),
        ("w[c ? 1 : 0] = 3;", "1", "0", "w[c ? {} : {}] = 3;"),
        ("case 3: x = a ? b : c; break;", "b", "c", "case 3: x = a ? {} : {}; break;"),
    ],
)
def test_conditional_operator(text, a, b, around):
    expected = around.format(branch(a, b, a), branch(a, b, b))
    assert squeeze(translate(text, ternaries=True)) == squeeze(expected)
    assert translate(text, ternaries=False) == text


def test_nested_conditionals():
    inner = f"d ? {branch('x', 'y', 'x')} : {branch('x', 'y', 'y')}"
    outer = f"r = c ? {branch('v', inner, 'v')} : {branch('v', inner, inner)};"
    assert squeeze(translate("r = c ? v : d ? x : y;", ternaries=True)) == squeeze(outer)


@pytest.mark.parametrize(
    "text",
    [
        "r = c ? v : (d ? x : y[i]);",
        "r = c ? v : f(d ? x : y[i]);",
        "r = c ? (d ? x : y[i]) : v; s = t;",
        "f(c ? v : 1, d ? x : y[i], 2);",
        "r = c ? y[0] : d ? y[1] : e ? y[2] : y[3];",
    ],
)
def test_every_conditional_is_wrapped_whatever_stands_beside_it(text):
    """With and without reads of inputs: brackets stay balanced, and no `?` is left out."""
    for checked in ((), ("y",)):
        out = translate(text, ternaries=True, checked=checked)
        assert out.count("? metal::branch") >= text.count("?")
        assert out.count(": metal::branch") >= text.count("?")
        for opening, closing in ("()", "[]"):
            assert out.count(opening) == out.count(closing)


def test_conditionals_in_macros():
    text = "#define RELU(v) ((v) > 0 ? (v) : \\\n 0)\n#if A ? B : C\n#endif\nx = 1;"
    meets = f"#define RELU(v) ((v) > 0 ? {branch('(v)', '0', '(v)')} : {branch('(v)', '0', chr(92) + '0')})"
    out = translate(text, ternaries=True)
    assert squeeze(out) == squeeze(f"{meets}\n#if A ? B : C\n#endif\nx = 1;")
    assert out.count("\\\n") == 1 and out.count("\n") == text.count("\n")


def read(name: str, index: str) -> str:
    return f"metal::detail::reader({name}, kd_{name}_bounds)[{index}]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("y = x[i + 1];", f"y = {read('x', 'i + 1')};"),
        ("return x[0] * x [ 1 ];", f"return {read('x', '0')} * {read('x', ' 1 ')};"),
        ("x[g[i]]", read("x", read("g", "i"))),
        ("a && x[i] & x[j]", f"a && {read('x', 'i')} & {read('x', 'j')}"),
        ("f(x[t[3]], 2)", f"f({read('x', 't[3]')}, 2)"),
        ("p = &x[i]; f(&x[i], &x[j]); s.x[i]; q->x[i]; x + i; float x[3];", None),
        ("x.y[i]; xx[i]; // x[i]", None),
        ("#define AT(i) x[i]\n", None),
    ],
)
def test_reads_of_inputs(text, expected):
    assert squeeze(translate(text, ternaries=False, checked=["x", "g"])) == squeeze(expected or text)
    assert reads(text, "x") == (expected is not None)


def test_lines_stay_lines():
    text = "a = b ?\n  // why\n  c :\n  d;\n#define F(x) \\\n  (x)\nfor (auto q : v) {}\n"
    out = translate(text, ternaries=True)
    assert out.count("\n") == text.count("\n")
    assert out.endswith("#define F(x) \\\n  (x)\nfor (auto q : v) {}\n")

"""What `cuda_kernel` and `metal_kernel` have in common: bodies in either language, against float64 NumPy."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kernel_dsl.runtime.custom.metal.metal import metal_kernel
from kernel_dsl.runtime.custom.source import cuda_kernel

from .conftest import compile_error

pytestmark = pytest.mark.usefixtures("compiler")


@dataclass
class Language:
    """What differs between the two: the function, the lane's index, how a scalar is read, and a header."""

    make: Callable[..., Any]
    index: str
    scalar: str
    header: str


LANGUAGES = {
    "cuda": Language(
        cuda_kernel,
        "auto elem = cg::this_grid().thread_rank();",
        "[0]",
        "template <typename T> __device__ T do_exp(T x) { return cuda::std::exp(x); }",
    ),
    "metal": Language(
        metal_kernel,
        "uint elem = thread_position_in_grid.x;",
        "",
        """
        #include <metal_stdlib>
        using namespace metal;
        constant float one = 1.0;
        template <typename T>
        METAL_FUNC T do_exp(T x) {
            return metal::precise::exp(x) * one;
        }
        """,
    ),
}


@pytest.fixture(params=LANGUAGES.values(), ids=LANGUAGES.keys())
def language(request: pytest.FixtureRequest) -> Language:
    return request.param


def elementwise(language: Language, name: str, body: str, x: Any, interpret: bool, block: int = 4, **more: Any) -> Any:
    """`body` for each element `elem` of `x`, into `out` of the same shape and dtype."""
    (out,) = language.make(name, ["x"], ["out"], f"{language.index} {body}", **more)(
        inputs=[x],
        output_shapes=[x.shape],
        output_dtypes=[x.dtype],
        grid=(x.size, 1, 1),
        threadgroup=(block, 1, 1),
        interpret=interpret,
    )
    assert isinstance(out, np.ndarray) and out.dtype == x.dtype
    return out


def test_copy(rng, interpret, language):
    a = rng.standard_normal((2, 2)).astype(np.float32)
    out = elementwise(language, "copy", "out[elem] = x[elem];", a, interpret, block=2)
    np.testing.assert_array_equal(out, a)


def test_arguments(rng, interpret, language):
    a = rng.standard_normal((3, 6)).astype(np.float32)
    c = rng.standard_normal((2, 2)).astype(ml_dtypes.bfloat16)
    d = f"d{language.scalar}"
    k = language.make(
        "arguments",
        ["a", "b", "c", "d"],
        ["out1", "out2"],
        f"""
        {language.index}
        T tmp = a[0];
        if (e) {{
          out1[elem] = a[1] + b[2] + c[3] + {d} + f;
        }} else {{
          out1[elem] = 1;
        }}
        out2[elem] = a[1] + b[2] + c[1] - {d} + 0 * float(tmp);
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


def test_helper_in_header(rng, interpret, language):
    a = rng.standard_normal((2, 2)).astype(np.float32)
    body = "out[elem] = do_exp(x[elem]);"
    out = elementwise(language, "helper", body, a, interpret, header=language.header)
    np.testing.assert_allclose(out, np.exp(a.astype(np.float64)), rtol=2e-6)


def test_one_name_two_sources(interpret, language):
    x = np.array([1.5, 2.5], np.float32)
    for change, expected in (("* 2", [3, 5]), ("+ 100", [101.5, 102.5]), ("* 2", [3, 5])):
        out = elementwise(language, "same", f"out[elem] = x[elem] {change};", x, interpret)
        assert out.tolist() == expected


def test_one_kernel_two_dtypes(interpret, language):
    k = language.make("sum", ["x"], ["out"], "out[0] = x[0] + x[0];")
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


def test_interpret_is_checked(language):
    with pytest.raises(TypeError, match=r"interpret= is None, True, False or kd.InterpretParams\(...\), and not 'yes'"):
        elementwise(language, "where", "out[elem] = x[elem];", np.zeros(4, np.float32), "yes")


@pytest.mark.parametrize(
    ("make", "bad"),
    [(cuda_kernel, "cuda::std::get<5>(cuda::std::make_tuple(1, 2))"), (metal_kernel, "as_type<float>(half(1))")],
    ids=LANGUAGES.keys(),
)
def test_an_error_in_a_library_is_at_the_line_that_led_there(make, bad):
    source = f"out[0] = x[0];\nout[0] = {bad};"
    error = str(compile_error(make("led", ["x"], ["out"], source), np.ones(1, np.float32)))
    first = error.splitlines()[1:3]
    assert re.fullmatch(r"  source of kernel 'led', line 2: error: static assertion failed .* \(at .*:\d+\)", first[0])
    assert first[1] == f"      out[0] = {bad};"

"""`compile_options=` of custom kernels: Metal's math modes, and lists of NVRTC's options, on both devices."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.runtime.custom.metal.metal import metal_kernel
from kernel_dsl.runtime.custom.nvrtc import CompileError
from kernel_dsl.runtime.custom.source import cuda_kernel
from kernel_dsl.runtime.errors import ArgumentTypeError, ArgumentValueError

from .conftest import one_block

MODE = """
    uint elem = thread_position_in_grid.x;
    #if defined(__FAST_MATH__) && __FAST_MATH__
    out[elem] = 1.0f;
    #else
    out[elem] = 0.0f;
    #endif
    rest[elem] = metal::exp(inp[elem]) / 3.0f;
"""
CUDA_MODE = MODE.replace("uint elem = thread_position_in_grid.x;", "int elem = threadIdx.x;").replace(
    "metal::exp", "expf"
)
X = np.linspace(-5, 5, 4, dtype=np.float32)
compiled = pytest.mark.usefixtures("compiler")


def call(kernel: Any, interpret: Any) -> tuple[Any, Any]:
    out, rest = kernel(
        inputs=[X],
        output_shapes=[X.shape] * 2,
        output_dtypes=[X.dtype] * 2,
        grid=(4, 1, 1),
        threadgroup=(4, 1, 1),
        interpret=interpret,
    )
    np.testing.assert_allclose(rest, np.exp(X.astype(np.float64)) / 3, rtol=1e-5)
    return out, rest


def by_mode(factory: Any, mode: str | None) -> Any:
    options = None if mode is None else {"math_mode": mode}
    return factory(
        "math_mode", ["inp"], ["out", "rest"], MODE if factory is metal_kernel else CUDA_MODE, compile_options=options
    )


@compiled
@pytest.mark.parametrize("factory", [metal_kernel, cuda_kernel])
@pytest.mark.parametrize("seed", range(3))
def test_modes_live_under_one_name(factory: Any, seed: int, interpret: Any) -> None:
    """Made and called in any order, as MLX's own test does: each gets what it asked for."""
    choose = random.Random(seed)
    modes = ["safe", "fast", "relaxed", None] * 2
    choose.shuffle(modes)
    kernels = [(mode, by_mode(factory, mode)) for mode in modes]
    choose.shuffle(kernels)
    rests: dict[bool, Any] = {}
    for mode, kernel in kernels:
        out, rest = call(kernel, interpret)
        np.testing.assert_array_equal(out, np.full(4, mode == "fast", np.float32))
        np.testing.assert_array_equal(rests.setdefault(mode == "fast", rest), rest)


@compiled
def test_special_values_are_ieee_in_the_safe_mode(interpret: Any) -> None:
    x = np.array([-np.inf, np.inf, np.nan, 1e-40], np.float32)
    for mode in (None, "safe", "relaxed"):
        options = None if mode is None else {"math_mode": mode}
        source = "out[thread_position_in_grid.x] = metal::exp(x[thread_position_in_grid.x]) + 2.0f * x[thread_position_in_grid.x];"
        got = one_block(
            metal_kernel("special", ["x"], ["out"], source, compile_options=options),
            x,
            interpret=interpret,
            shape=(4,),
            threads=4,
        )
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(got, np.exp(x) + 2 * x)


@pytest.mark.parametrize("factory", [metal_kernel, cuda_kernel])
@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"math_mode": "precise"}, ArgumentValueError, "precise"),
        ({"math_mode": None}, ArgumentValueError, "math_mode=None"),
        ({"math_mode": ["fast"]}, ArgumentValueError, "math_mode="),
        ({"unknown": "value"}, ArgumentValueError, "'unknown' is unknown"),
        ({3: 4}, ArgumentValueError, "3 is unknown"),
        ("--use_fast_math", ArgumentTypeError, "must be a"),
        (3, ArgumentTypeError, "must be a"),
        ({"math_mode"}, ArgumentTypeError, "must be a"),
        (b"-w", ArgumentTypeError, "must be a"),
    ],
)
def test_options_that_make_no_sense(factory: Any, options: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        factory("k", ["x"], ["out"], "out[0] = x[0];", compile_options=options)
    assert isinstance(caught.value, kd.Error) and f"{factory.__name__} 'k'" in str(caught.value)


OURS = ["--gpu-architecture=sm_80", "-arch=compute_90", "-arch", "--gpu-architecture", "-dlto", "--dlink-time-opt", "--optix-ir", "-rdc=true",
        "--relocatable-device-code=true", "-dc", "--pch", "-pch", "--create-pch=x", "--use-pch=x", "--pch-dir=/tmp"]  # fmt: skip


@pytest.mark.parametrize("option", OURS)
def test_options_that_are_ours_to_say(option: str) -> None:
    with pytest.raises(ArgumentValueError, match="leave it out") as caught:
        cuda_kernel("k", ["x"], ["out"], "out[0] = x[0];", compile_options=["-w", option])
    assert option in str(caught.value)


@pytest.mark.parametrize("bad", [3, None, b"-w", ["-w"], 1.5, np.float32(1)])
def test_options_that_are_no_texts(bad: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="must hold texts"):
        cuda_kernel("k", ["x"], ["out"], "out[0] = x[0];", compile_options=["-w", bad])


@pytest.mark.parametrize("bad", ["", "a\0b", "-w\n", "-D\ud800=1"])
def test_options_that_no_compiler_could_have(bad: str) -> None:
    with pytest.raises(ArgumentValueError, match="not an option of NVRTC"):
        cuda_kernel("k", ["x"], ["out"], "out[0] = x[0];", compile_options=[bad])


@compiled
@pytest.mark.parametrize("bad", ["--nosuch", "x", "--std=c++99", "-include=nosuch.h", "--maxrregcount=many"])
def test_an_option_that_nvrtc_does_not_have_is_an_error_of_the_call(bad: str) -> None:
    kernel = cuda_kernel("k", ["x"], ["out"], "out[0] = x[0];", compile_options=[bad])
    for _ in range(2):
        with pytest.raises(CompileError, match="kernel 'k' does not compile"):
            one_block(kernel, np.ones(1, np.float32), interpret=True)


VALUES = """
    int i = threadIdx.x;
    #ifndef TILE
    #define TILE 1
    #endif
    #ifdef TWICE
    float scale = 2.0f;
    #else
    float scale = 1.0f;
    #endif
    out[i] = scale * (expf(x[i] * 0.25f) / 3.0f + float(TILE)) + sqrtf(fabsf(x[i]));
    #if __cplusplus >= 202002L
    if (i == 0) out[0] += 1000.0f;
    #endif
"""
# Each option, and what it makes of TILE, TWICE and the language.
OPTIONS: list[tuple[list[str], dict[str, Any]]] = [
    (["--use_fast_math"], {}), (["-use_fast_math"], {}), (["--fmad=false"], {}), (["--ftz=true"], {}), (["-prec-div=false"], {}),
    (["--prec-sqrt=false"], {}), (["--maxrregcount=32"], {}), (["-w"], {}), (["--disable-warnings"], {}), (["--restrict"], {}), (["-lineinfo"], {}),
    (["--generate-line-info"], {}), (["-G"], {}), (["-DTILE=3"], {"tile": 3}), (["-D", "TILE=5"], {"tile": 5}), (["--define-macro=TILE=7"], {"tile": 7}),
    (["-DTWICE"], {"twice": 2}), (["-DTWICE", "-UTWICE"], {"twice": 1}), (["--std=c++20"], {"new": 1000}), (["--std=c++17"], {"new": 0}),
    (["--extra-device-vectorization"], {}), (["-I/nowhere"], {}), (["--diag-suppress=177"], {}), (["--device-int128"], {}), (["--no-cache"], {}),
]  # fmt: skip


def random_options(seed: int) -> tuple[list[str], dict[str, Any]]:
    choose = random.Random(seed)
    flags: list[str] = []
    effect = {"tile": 1, "twice": 1, "new": 0}
    seen: set[str] = set()
    for words, change in choose.sample(OPTIONS, choose.randrange(5)):
        if not seen & change.keys():  # of two that say the same, which one holds is the compiler's affair
            flags, effect = flags + words, effect | change
            seen |= change.keys()
    return flags, effect


def check_options(seed: int, interpret: Any) -> None:
    flags, effect = random_options(seed)
    x = np.random.default_rng(seed).standard_normal(32).astype(np.float32)
    kernel = cuda_kernel("options", ["x"], ["out"], VALUES, compile_options=flags if seed % 2 else tuple(flags))
    try:
        got = one_block(kernel, x, interpret=interpret, shape=(32,), threads=32)
    except Exception as error:
        raise AssertionError(flags) from error
    wide = x.astype(np.float64)
    expected = effect["twice"] * (np.exp(wide / 4) / 3 + effect["tile"]) + np.sqrt(np.abs(wide))
    expected[0] += effect["new"]
    np.testing.assert_allclose(got, expected, rtol=1e-5, err_msg=str(flags))


@compiled
@pytest.mark.parametrize("seed", range(12))
def test_random_lists_of_options(seed: int, interpret: Any) -> None:
    check_options(seed, interpret)


@compiled
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12, 212))
def test_many_lists_of_options(seed: int, interpret: Any) -> None:
    check_options(seed, interpret)


@compiled
def test_options_may_change_what_headers_mean(interpret: Any) -> None:
    """Though those of a kernel without options are kept compiled, and this one's are the same."""
    source = "#ifdef KD_SEEN\nout[0] = KD_SEEN;\n#else\nout[0] = 0;\n#endif\n"
    for seen in (None, 3, None, 4, 3):
        options = [] if seen is None else [f"-DKD_SEEN={seen}"]
        kernel = cuda_kernel("headers", ["x"], ["out"], source, compile_options=options)
        assert one_block(kernel, np.ones(1, np.float32), interpret=interpret) == (seen or 0)
    plain = "out[0] = float(__half(1.5f) + __half(2.0f));"
    for options, works in (
        ([], True),
        (["-D__CUDA_NO_HALF_OPERATORS__", "-D__CUDA_NO_HALF_CONVERSIONS__"], False),
        ([], True),
    ):
        kernel = cuda_kernel("halves", ["x"], ["out"], plain, compile_options=options)
        if works:
            assert one_block(kernel, np.ones(1, np.float32), interpret=interpret) == 3.5
        else:
            with pytest.raises(CompileError):
                one_block(kernel, np.ones(1, np.float32), interpret=interpret)


@compiled
def test_threads_that_compile_with_other_options() -> None:
    wrong: list[Any] = []

    def work(number: int) -> None:
        mode = ("safe", "fast", None)[number % 3]
        try:
            out, _ = call(by_mode(metal_kernel if number % 2 else cuda_kernel, mode), True)
            if (out != (mode == "fast")).any():
                wrong.append((number, mode, out))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong

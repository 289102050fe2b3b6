"""What `cuda_kernel` says of sources, calls and factories that are wrong, and of hazards in the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_dsl.runtime.custom.body import check_body
from kernel_dsl.runtime.custom.nvrtc import CompileError, compile_source
from kernel_dsl.runtime.custom.source import cuda_kernel
from kernel_dsl.runtime.errors import ArgumentTypeError, ArgumentValueError

from .conftest import GOOD, compile_error, one_block

pytestmark = pytest.mark.usefixtures("compiler")


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
    error = compile_error(k, np.zeros(1, np.float32))
    lines = request.path.read_text().splitlines()
    here = next(n for n, line in enumerate(lines, 1) if "// HERE" in line and "missing" in line)
    assert f"{request.path}:{here}: error:" in str(error)
    assert '"missing" is undefined' in str(error)
    assert [d.line for d in error.diagnostics] == [here]


def test_compile_error_without_a_place():
    source = "\n".join(["int i = 0;", "out[i] = nothing" + ";"])
    k = cuda_kernel("assembled", [], ["out"], source, header="\n".join(["int f()", "{ return wrong; }"]))
    error = compile_error(k)
    assert "source of kernel 'assembled', line 2: error" in str(error)
    assert "header of kernel 'assembled', line 2: error" in str(error)


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
    error = compile_error(k)
    assert says in str(error)


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
    assert says in body.explain(caught.value, {})


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
        one_block(k, interpret=interpret)


# --- what the interpreter says ------------------------------------------------------------------------


def hazard(k, **call) -> str:
    from kernel_dsl.runtime.interpreter import HazardError

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
    assert "'x'" in said and "''" not in said


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
    assert "uninitialised" in said and "'total'" in said and "''" not in said
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
    assert "'x'" in said and "''" not in said and x[0] == 0


def test_the_heap_of_kernels():
    k = cuda_kernel("heap", [], ["out"], "float* p = new float[4]; p[0] = 1; out[0] = p[0]; delete[] p;")
    (out,) = one_block(k, interpret=True)
    assert (np.asarray(out).ravel()[:1] == 1).all()

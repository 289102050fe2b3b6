"""`metal_kernel`: both forms, the generated signature, every position attribute, atomics and errors."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_dsl.runtime.custom.metal.metal import metal_kernel
from kernel_dsl.runtime.errors import ArgumentTypeError, ArgumentValueError

from .conftest import GOOD, compile_error

pytestmark = pytest.mark.usefixtures("compiler")

INDEX = "uint elem = thread_position_in_grid.x;"


@pytest.mark.parametrize("where", ["factory", "call"])
def test_strides(rng, interpret, where):
    a = np.tile(rng.standard_normal((3, 6)).astype(np.float32)[::2], [4, 1]).T
    sources = {
        True: f"{INDEX} out[elem] = metal::precise::exp(inp[elem]) * threads_per_simdgroup;",
        False: f"""{INDEX}
        uint loc = elem_to_loc(elem, inp_shape, inp_strides, inp_ndim);
        out[elem] = metal::precise::exp(inp[loc]) * threads_per_simdgroup;""",
    }
    for contiguous, source in sources.items():
        made = {"ensure_row_contiguous": contiguous} if where == "factory" else {}
        called = {"ensure_row_contiguous": contiguous} if where == "call" else {}
        (out,) = metal_kernel("strides", ["inp"], ["out"], source, **made)(
            inputs=[a],
            output_shapes=[a.shape],
            output_dtypes=[a.dtype],
            grid=(a.size, 1, 1),
            threadgroup=(256, 1, 1),
            interpret=interpret,
            **called,
        )
        np.testing.assert_allclose(out, 32 * np.exp(a.astype(np.float64)), rtol=2e-6)


def test_negative_strides(rng, interpret):
    x = rng.integers(-9, 9, (4, 5, 3), np.int32)[::-1, :, ::-1].transpose(1, 0, 2)
    k = metal_kernel(
        "negative",
        ["x"],
        ["out", "out3", "unsigned_out"],
        """
        uint i = thread_position_in_grid.x;
        out[i] = x[elem_to_loc(i, x_shape, x_strides, x_ndim)];
        uint loc = elem_to_loc(i, x_shape, x_strides, x_ndim);
        unsigned_out[i] = x[loc];
        uint3 at(i % x_shape[2], i / x_shape[2] % x_shape[1], i / (x_shape[1] * x_shape[2]));
        out3[i] = x[elem_to_loc(at, x_shape, x_strides, x_ndim)];
        """,
    )
    for out in k(
        inputs=[x],
        output_shapes=[x.shape] * 3,
        output_dtypes=[x.dtype] * 3,
        grid=(60, 1, 1),
        threadgroup=(64, 1, 1),
        ensure_row_contiguous=False,
        interpret=interpret,
    ):
        np.testing.assert_array_equal(out, x)


def test_dict_form(rng, interpret):
    """The older interface: no names at the factory, dicts at the call, `ensure_row_contiguous` at the call too."""
    a = rng.standard_normal((4, 16)).astype(np.float16)
    k = metal_kernel(
        name="myexp",
        source="""
        uint elem = thread_position_in_grid.x;
        uint loc = elem_to_loc(elem, inp_shape, inp_strides, inp_ndim);
        T tmp = inp[loc];
        out[elem] = metal::exp(tmp);
        twice[elem] = tmp * 2;
        """,
    )
    outs = k(
        inputs={"inp": a[::2]},
        template={"T": np.float32},
        grid=(a[::2].size, 1, 1),
        threadgroup=(256, 1, 1),
        output_shapes={"twice": a[::2].shape, "out": a[::2].shape},
        output_dtypes={"out": np.float16, "twice": np.float32},
        ensure_row_contiguous=False,
        interpret=interpret,
    )
    assert set(outs) == {"out", "twice"}
    np.testing.assert_allclose(outs["out"], np.exp(a[::2].astype(np.float64)), rtol=1e-3)
    np.testing.assert_array_equal(outs["twice"], a[::2].astype(np.float32) * 2)
    positional = metal_kernel("fill", "out[0] = 4;")
    call = {
        "output_shapes": {"out": ()},
        "output_dtypes": {"out": np.int32},
        "grid": (1, 1, 1),
        "threadgroup": (1, 1, 1),
    }
    assert positional(inputs={}, interpret=interpret, **call)["out"] == 4


ATTRIBUTES = {
    "dispatch_quadgroups_per_threadgroup": 8,
    "dispatch_simdgroups_per_threadgroup": 1,
    "dispatch_threads_per_threadgroup": (8, 2, 2),
    "grid_origin": (0, 0, 0),
    "grid_size": (10, 4, 3),
    "quadgroup_index_in_threadgroup": "i // 4",
    "quadgroups_per_threadgroup": "(((sz - 1) * 2 + sy - 1) * 8 + sx - 1) // 4 + 1",
    "simdgroup_index_in_threadgroup": 0,
    "simdgroups_per_threadgroup": 1,
    "stage_in_grid_origin": (0, 0, 0),
    "stage_in_grid_size": (10, 4, 3),
    "thread_execution_width": 32,
    "thread_index_in_quadgroup": "i % 4",
    "thread_index_in_simdgroup": "i % 32",
    "thread_index_in_threadgroup": "(lz * sy + ly) * sx + lx",
    "thread_position_in_grid": "(x, y, z)",
    "thread_position_in_threadgroup": "(lx, ly, lz)",
    "threadgroup_position_in_grid": "(x // 8, y // 2, z // 2)",
    "threadgroups_per_grid": (2, 2, 2),
    "threads_per_grid": (10, 4, 3),
    "threads_per_simdgroup": 32,
    "threads_per_threadgroup": "(sx, sy, sz)",
}


def test_every_attribute(interpret):
    """A grid of (10, 4, 3) in threadgroups of (8, 2, 2): the last ones are cut along x and z."""
    names = list(ATTRIBUTES)
    index = "uint at = (thread_position_in_grid.z * 4 + thread_position_in_grid.y) * 10 + thread_position_in_grid.x;"
    lines = [index]
    for n, name in enumerate(names):
        value = ATTRIBUTES[name]
        wide = isinstance(value, tuple) or (isinstance(value, str) and "," in value)
        for axis in range(3):
            lines.append(f"out[(at * {len(names)} + {n}) * 3 + {axis}] = {name}{'.' + 'xyz'[axis] if wide else ''};")
    (out,) = metal_kernel("attributes", [], ["out"], "\n".join(lines))(
        inputs=[],
        output_shapes=[(3, 4, 10, len(names), 3)],
        output_dtypes=[np.uint32],
        grid=(10, 4, 3),
        threadgroup=(8, 2, 2),
        interpret=interpret,
    )
    for z, y, x in np.ndindex(3, 4, 10):
        lx, ly, lz = x % 8, y % 2, z % 2
        sx, sy, sz = min(8, 10 - x // 8 * 8), 2, min(2, 3 - z // 2 * 2)
        i = (lz * 2 + ly) * 8 + lx  # in the launched block, which is what lanes are numbered by
        scope = {
            "x": x,
            "y": y,
            "z": z,
            "lx": lx,
            "ly": ly,
            "lz": lz,
            "sx": sx,
            "sy": sy,
            "sz": sz,
            "i": i,
        }
        for n, name in enumerate(names):
            value = ATTRIBUTES[name]
            expected = eval(value, scope) if isinstance(value, str) else value
            assert (out[z, y, x, n] == np.broadcast_to(expected, 3)).all(), (
                name,
                (x, y, z),
                out[z, y, x, n],
            )


@pytest.mark.parametrize("grid", [(6, 1, 1), (5, 3, 1), (1, 1, 7)])
def test_exactly_the_grid_runs(interpret, grid):
    k = metal_kernel(
        "count",
        [],
        ["n"],
        "atomic_fetch_add_explicit(n, 1, memory_order_relaxed);",
        atomic_outputs=True,
    )
    (n,) = k(
        inputs=[],
        output_shapes=[()],
        output_dtypes=[np.int32],
        grid=grid,
        threadgroup=(4, 2, 3),
        init_value=0,
        interpret=interpret,
    )
    assert n == np.prod(grid)


def test_torch_and_template_branches(interpret):
    """Discarded `if constexpr` branches are not compiled: template arguments are template parameters."""
    torch = pytest.importorskip("torch")
    x = torch.arange(6, dtype=torch.float32)
    k = metal_kernel(
        "branches",
        ["x"],
        ["out"],
        f"""{INDEX}
        if constexpr (is_same_v<T, half>) {{
          out[elem] = x[elem] * N;
        }} else {{
          out[elem] = typename T::nothing(x[elem]);
        }}""",
    )
    (out,) = k(
        inputs=[x],
        output_shapes=[x.shape],
        output_dtypes=[torch.float16],
        template=[("T", torch.float16), ("N", 3)],
        grid=(6, 1, 1),
        threadgroup=(6, 1, 1),
        interpret=interpret,
    )
    assert torch.equal(out, (x * 3).half())


def test_reads_outside_an_input_are_zero(interpret):
    """Kernels that load first and ask afterwards run as they are; writes through an index stay exact."""
    x = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    k = metal_kernel(
        "outside",
        ["x", "s"],
        ["out", "taken"],
        """
        int i = int(thread_position_in_grid.x) - 4;
        T left = x[i - 1];
        T right = x[i + 100];
        out[i + 4] = left + right + s;
        const device float* p = &x[3];
        taken[i + 4] = p[0] + x[2];
        """,
    )
    for contiguous, array in ((True, x), (False, x[::-1]), (True, x.T)):
        out, taken = k(
            inputs=[array, 0.5],
            output_shapes=[(12,)] * 2,
            output_dtypes=[np.float32] * 2,
            grid=(12, 1, 1),
            threadgroup=(12, 1, 1),
            template=[("T", np.float32)],
            ensure_row_contiguous=contiguous,
            interpret=interpret,
        )
        if contiguous:
            flat = array.ravel()
            assert (taken == flat[3] + flat[2]).all()
            np.testing.assert_array_equal(out, np.concatenate([np.full(5, 0.5), flat[:7] + 0.5]))
        else:  # element i lies at offset i from the start of the last row, which is given first
            memory = np.concatenate([np.zeros(8), x.ravel(), np.zeros(8)])
            np.testing.assert_array_equal(out, memory[8 + 8 - 5 : 8 + 8 + 7] + 0.5)


def test_verbose(capsys, interpret):
    k = metal_kernel("loud", ["x", "s"], ["out"], f"{INDEX} out[elem] = x[elem] * s;")
    k(
        inputs=[np.ones(3, np.float32), 2.0],
        output_shapes=[(3,)],
        output_dtypes=[np.float32],
        grid=(3, 1, 1),
        threadgroup=(3, 1, 1),
        verbose=True,
        interpret=interpret,
    )
    said = capsys.readouterr().out
    assert said.startswith("Generated source code for `loud`:\n```\n")
    assert (
        "const float* x, const float& s, float* out, const Bounds& kd_x_bounds, uint3 thread_position_in_grid" in said
    )


def test_compile_error_names_the_line(request):
    k = metal_kernel(
        "broken",
        ["x"],
        ["out"],
        """
        device float* p = out;
        threadgroup float tile[32];
        p[0] = x[0] > 0 ? x[0] : missing;  // HERE
        """,
    )
    error = compile_error(k, np.zeros(1, np.float16))
    lines = request.path.read_text().splitlines()
    here = next(n for n, line in enumerate(lines, 1) if "// HERE" in line and "missing" in line)
    assert f"{request.path}:{here}: error:" in str(error)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("texture2d<float, access::read> t;", "no textures and samplers"),
        ("constexpr sampler s(coord::normalized);", "no textures and samplers"),
        ("simdgroup_float8x8 m;", "no SIMD-group matrices"),
        ("simdgroup_matrix<float, 8, 8> m; simdgroup_load(m, x, 8);", "no SIMD-group matrices"),
        ("raytracing::ray r;", "no ray tracing"),
        ("out[0] = dfdx(x[0]);", "no functions of graphics stages"),
        ("out[0] = text_ure2d;", ""),
    ],
)
def test_what_metal_has_and_we_have_not_is_said(line, words):
    k = metal_kernel("wide", ["x"], ["out"], f"out[1] = x[0];\n{line}\n")
    error = compile_error(k, np.zeros(64, np.float32), size=2)
    said = [text for text in str(error).splitlines() if "error: " in text]
    assert len(said) == 1, "what follows from it is left out"
    assert said[0].startswith("  source of kernel 'wide', line 2: error: ")
    assert ("metal_kernel has no" in said[0]) == bool(words) and words in said[0]


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"output_dtypes": [np.float64]}, ArgumentTypeError, "Metal has no type"),
        ({"inputs": [np.zeros(3)]}, ArgumentTypeError, "Metal has no type"),
        ({"inputs": {"x": np.zeros(3)}}, ArgumentTypeError, "dict by name"),
        (
            {
                "inputs": {"y": 1},
                "output_shapes": {"out": (3,)},
                "output_dtypes": {"out": np.float32},
            },
            ArgumentValueError,
            "names .'y'., and .'x'. are expected",
        ),
        ({"grid": (2**32, 1, 1), "threadgroup": (1024, 1, 1)}, ArgumentValueError, "32-bit"),
    ],
)
def test_bad_calls(change, error, says):
    k = metal_kernel("k", ["x"], ["out"], "out[0] = this does not even compile;")
    with pytest.raises(error, match=says):
        k(**(GOOD | change))


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"name": "k"}, ArgumentTypeError, "needs source="),
        ({"name": "k", "source": "", "input_names": ["x"]}, ArgumentTypeError, "both"),
        (
            {"name": "k", "source": "", "input_names": ["device"], "output_names": ["y"]},
            ArgumentValueError,
            "word of Metal",
        ),
        (
            {"name": "k", "source": "", "compile_options": {"math_mode": "odd"}},
            ArgumentValueError,
            "math_mode",
        ),
        ({"name": "k", "source": "", "compile_options": {"other": 1}}, ArgumentValueError, "other"),
        ({"name": "k", "source": "", "compile_options": 3}, ArgumentTypeError, "dict"),
    ],
)
def test_bad_factories(arguments, error, says):
    with pytest.raises(error, match=says):
        metal_kernel(**arguments)


def test_dict_form_needs_dicts():
    with pytest.raises(ArgumentTypeError, match="dicts by name"):
        metal_kernel("k", "out[0] = 1;")(**GOOD)


@pytest.mark.parametrize("name", ["place", "read", "branch", "vec", "sum", "exp", "input", "array", "metal", "grid"])
def test_arrays_may_have_names_of_ours(name):
    k = metal_kernel("named", [name], ["res"], f"uint i = thread_position_in_grid.x; res[i] = {name}[i] + {name}_ndim;")
    (out,) = k(
        inputs=[np.array([1, 2], np.float32)],
        output_shapes=[(2,)],
        output_dtypes=[np.float32],
        grid=(2, 1, 1),
        threadgroup=(2, 1, 1),
        interpret=True,
    )
    assert out.tolist() == [2, 3]


def test_an_array_of_a_type_that_metal_lacks_is_named():
    k = metal_kernel("wide", ["x", "y"], ["out"], "out[0] = x[0];")
    call = {"output_shapes": [(1,)], "grid": (1, 1, 1), "threadgroup": (1, 1, 1), "interpret": True}
    one = np.ones(1, np.float32)
    with pytest.raises(TypeError, match=r"input 'y' of kernel 'wide' is float64, .*; use float32"):
        k(inputs=[one, one.astype(np.float64)], output_dtypes=[np.float32], **call)
    with pytest.raises(TypeError, match="output 'out' of kernel 'wide' is float64"):
        k(inputs=[one, one], output_dtypes=[np.float64], **call)
    with pytest.raises(TypeError, match="template argument 'T' of kernel 'wide' is float8_e4m3fn"):
        k(inputs=[one, one], output_dtypes=[np.float32], template=[("T", "float8_e4m3fn")], **call)

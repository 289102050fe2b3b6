"""Kernels inside JAX's transformations: on the default device, which is a GPU where JAX has one."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl import hosting
from kernel_dsl.children import in_children
from kernel_dsl.errors import BadCallArgument, BadIndex, RefAsValue, ShapeMismatch, StoreShape
from kernel_dsl.runtime.errors import ArgumentTypeError, ArgumentValueError
from tests.errors import harness

jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy
Spec = kd.ShapeDtypeStruct
X = np.random.default_rng(0).standard_normal(128).astype(np.float32)


@kd.kernel(out_type=lambda x: x, grid=lambda x: (x.shape[0] // 32,))
def twice(x_ref: Any, o_ref: Any) -> None:
    part = kd.ds(kd.program_id(0) * 32, 32)
    o_ref[part] = x_ref[part] * 2


@kd.kernel(out_type=lambda d, s: (d["a"], Spec((3,), kd.int32, init=7)))
def scaled(d: Any, s: float, o: Any, n: Any) -> None:
    o[...] = d["a"][...] * s + d["b"][...]


@kd.kernel(out_type=lambda x: x, input_output_aliases={0: 0})
def increment(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] + 1


@kd.kernel(out_type=lambda x, y: x, scratch_types=(kd.SMEM((32,), kd.float32),), grid=(4,), grid_names=("part",))
def through_smem(x_ref: Any, y_ref: Any, o_ref: Any, smem: Any) -> None:
    part = kd.ds(kd.axis_index("part") * 32, 32)
    smem[...] = x_ref[part] + kd.num_programs(0)
    o_ref[part] = smem[...] * y_ref[part]


@kd.kernel(out_type=Spec((), kd.int32), grid=(2,), scratch_types=kd.SemaphoreType.REGULAR)
def meets(o_ref: Any, semaphore: Any) -> None:
    kd.semaphore_signal(semaphore, 1)
    kd.semaphore_wait(semaphore, 2, decrement=False)
    o_ref[...] = kd.semaphore_read(semaphore)


def test_calling_a_kernel_on_tracers_is_a_call() -> None:
    compiled = jax.jit(lambda x: twice(x + 1) - 1)
    np.testing.assert_array_equal(compiled(X), (X + 1) * 2 - 1)
    np.testing.assert_array_equal(kd.jax.call(twice)(X), X * 2)


def test_several_outputs_nests_and_static_scalars() -> None:
    out, filled = jax.jit(lambda x: scaled({"b": x + 1, "a": x}, 2.0))(X)
    np.testing.assert_array_equal(out, X * 2 + (X + 1))
    np.testing.assert_array_equal(filled, [7, 7, 7])
    again, _ = jax.jit(lambda x: scaled({"b": x, "a": x}, np.float32(3)))(X)
    np.testing.assert_array_equal(again, X * 3 + X)


def test_inputs_by_name() -> None:
    """`static_argnames` finds the body's parameters, and hands them on by name."""
    both = {"a": X, "b": X}
    for run in (scaled, jax.jit(scaled, static_argnames="s"), jax.jit(kd.jax.call(scaled), static_argnames="s")):
        np.testing.assert_array_equal(run(both, s=2.0)[0], X * 2 + X)
    np.testing.assert_array_equal(jax.jit(through_smem)(y_ref=X, x_ref=X), (X + 4) * X)
    assert scaled.lower(d=both, s=2.0).ptx == scaled.lower(both, 2.0).ptx
    np.testing.assert_array_equal(scaled.bind(both, s=2.0)()[0], X * 2 + X)


def test_abstract_evaluation_traces_nothing() -> None:
    traces: list[int] = []

    @kd.kernel(out_type=lambda x: Spec((x.shape[0] * 2,), kd.bfloat16))
    def counted(x_ref: Any, o_ref: Any) -> None:
        traces.append(1)
        o_ref[...] = 0.0

    shape = jax.eval_shape(counted, jax.ShapeDtypeStruct((8,), np.float32))
    assert (shape.shape, shape.dtype) == ((16,), jnp.bfloat16)
    assert not traces


def test_scan_and_cond() -> None:
    def step(carry: Any, x: Any) -> Any:
        return jax.lax.cond(x > 0, twice, lambda y: y, carry), x

    out, _ = jax.jit(lambda x: jax.lax.scan(step, x, jnp.array([1, 0, 1])))(X)
    np.testing.assert_array_equal(out, X * 4)


@pytest.mark.parametrize("how", [None, "grid", "loop"])
def test_vmap(how: Any) -> None:
    xs = jnp.stack([X, X + 1, X - 1])
    np.testing.assert_array_equal(jax.vmap(kd.jax.call(twice, vmap=how))(xs), xs * 2)
    f = kd.jax.call(through_smem, vmap=how)
    np.testing.assert_array_equal(jax.jit(jax.vmap(f, (0, None)))(xs, X), (xs + 4) * X)
    np.testing.assert_array_equal(jax.vmap(f, (None, 1), 1)(X, xs.T), ((X + 4) * xs).T)
    np.testing.assert_array_equal(jax.vmap(jax.vmap(f))(xs[None], xs[None]), ((xs + 4) * xs)[None])
    np.testing.assert_array_equal(jax.vmap(kd.jax.call(increment, vmap=how))(xs), xs + 1)


def _launches(function: Any, *args: Any) -> list[str]:
    return re.findall(r"kernel_dsl\[|while\[", str(jax.make_jaxpr(function)(*args)))


def test_vmap_takes_a_grid_axis_where_blocks_do_not_wait_for_each_other() -> None:
    xs = jnp.stack([X, X])
    assert _launches(jax.vmap(twice), xs) == ["kernel_dsl["]

    @kd.kernel(out_type=lambda x: x, grid=(2,), scratch_types=kd.SemaphoreType.REGULAR)
    def dependent(x: Any, o: Any, s: Any) -> None:
        kd.semaphore_signal(s, 1)
        kd.semaphore_wait(s, 2, decrement=False)
        o[...] = x[...]

    jaxpr = str(jax.make_jaxpr(jax.vmap(dependent))(xs))
    assert "scan[" in jaxpr


def test_gradients_by_defvjp() -> None:
    f = kd.jax.call(scaled).defvjp(
        lambda d, s: (scaled(d, s), s), lambda s, g: ({"a": twice(g[0]) * (s / 2), "b": g[0]}, None)
    )

    def loss(x: Any, y: Any) -> Any:
        return (f({"a": x, "b": y}, 3.0)[0] * jnp.arange(128)).sum()

    dx, dy = jax.jit(jax.grad(loss, (0, 1)))(X, X)
    np.testing.assert_allclose(dx, np.arange(128) * 3, rtol=1e-6)
    np.testing.assert_allclose(dy, np.arange(128), rtol=1e-6)
    rows = jax.vmap(jax.grad(lambda x: loss(x, X)))(jnp.stack([X, X]))
    np.testing.assert_allclose(rows[1], np.arange(128) * 3, rtol=1e-6)
    with pytest.raises(BadCallArgument, match="bwd gave 1 gradient for 2 arguments"):
        jax.grad(lambda x: kd.jax.call(scaled).defvjp(f._rules[0], lambda s, g: (g,))({"a": x, "b": x}, 1.0)[0].sum())(
            X
        )


@pytest.mark.parametrize("number", [2.5, np.float32(2.5), 3, True, float("nan")], ids=repr)
@pytest.mark.parametrize("run", [lambda f: f, jax.jit])
def test_numbers_among_the_residuals_stay_static(number: Any, run: Any) -> None:
    given: list[Any] = []

    def bwd(kept: Any, g: Any) -> Any:
        given.append(kept["s"])
        return {"a": f({"a": g, "b": jnp.zeros_like(g)}, kept["s"])[0], "b": g}, None

    f = kd.jax.call(scaled).defvjp(lambda d, s: (f(d, s), {"s": s}), lambda kept, g: bwd(kept, g[0]))
    gradient = run(jax.grad(lambda x: f({"a": x, "b": x}, s=number)[0].sum()))(X)
    np.testing.assert_array_equal(gradient, np.full_like(X, number + 1))
    assert {type(x) for x in given} == {type(number)}


def test_gradients_of_a_dataclass() -> None:
    @dataclasses.dataclass
    class Pair:
        left: Any
        right: Any

    @kd.kernel(out_type=lambda pair: pair.left)
    def product(pair: Any, o: Any) -> None:
        o[...] = pair.left[...] * pair.right[...]

    f = kd.jax.call(product)
    f.defvjp(lambda p: (f(p), (p.left, p.right)), lambda kept, g: (Pair(f(Pair(g, kept[1])), None),))
    np.testing.assert_array_equal(jax.grad(lambda x: f(Pair(x, x * 3)).sum())(X), X * 3)


@pytest.mark.parametrize("gradient", ["x", (), {"a": X}, {"a": X, "b": X, "c": X}, X])
def test_gradients_in_another_nest(gradient: Any) -> None:
    f = kd.jax.call(scaled).defvjp(lambda d, s: (f(d, s), None), lambda kept, g: (gradient, None))
    with pytest.raises(BadCallArgument, match=r"bwd gave .* for argument 0, which is \{'a': value, 'b': value\}"):
        jax.grad(lambda x: f({"a": x, "b": x}, 2.0)[0].sum())(X)


@pytest.mark.skipif(len(jax.devices("cpu")) < 4, reason="JAX has one CPU device")
def test_results_are_where_the_arguments_are() -> None:
    """As with JAX's own operations: arrays that are not committed follow those that are."""
    cpus = jax.devices("cpu")
    with jax.default_device(cpus[0]):
        free = jnp.asarray(X)
    there = jax.device_put(X, cpus[1])
    for args in ((there, there), (free, there), (there, free)):
        bound, graph = through_smem.bind(*args), kd.Graph()
        with graph:
            through_smem(*args)
        for found in (through_smem(*args), bound(), bound(), graph(), kd.jax.call(through_smem)(*args)):
            assert (found.devices(), found.committed) == ({cpus[1]}, True)
            np.testing.assert_array_equal(found, (X + 4) * X)
    with jax.default_device(cpus[2]):
        found = twice(jnp.asarray(X))
    assert (found.devices(), found.committed) == ({cpus[2]}, False)
    with pytest.raises(ArgumentValueError, match=r"'through_smem' are on cpu:1 and cpu:2; move them to one device"):
        through_smem(there, jax.device_put(X, cpus[2]))


def test_donation_and_aliases() -> None:
    given = jnp.asarray(X) + 0
    out = jax.jit(increment, donate_argnums=0)(given)
    np.testing.assert_array_equal(out, X + 1)
    assert given.is_deleted()
    out, kept = jax.jit(lambda x: (increment(x), x))(X)
    np.testing.assert_array_equal(out, X + 1)
    np.testing.assert_array_equal(kept, X)


def test_shard_map() -> None:
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")
    out = jax.jit(jax.shard_map(twice, mesh=mesh, in_specs=spec, out_specs=spec))(jnp.asarray(X))
    np.testing.assert_array_equal(out, X * 2)


def test_dtypes_keep_their_bits() -> None:
    @kd.kernel(out_type=lambda x: x)
    def same(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

    for dtype in (
        jnp.bfloat16,
        jnp.float16,
        jnp.float8_e4m3fn,
        jnp.float8_e5m2,
        jnp.int8,
        jnp.uint32,
        jnp.bool_,
        jnp.complex64,
    ):
        x = jnp.asarray(np.arange(16) % 2).astype(dtype)
        out = jax.jit(same)(x)
        assert out.dtype == x.dtype
        assert np.asarray(out).tobytes() == np.asarray(x).tobytes()


def test_subnormal_numbers_are_kept() -> None:
    """XLA's threads have the processor take them for zeros."""

    @kd.kernel(out_type=lambda x: x)
    def half(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 0.5

    for dtype in (np.float32, jnp.bfloat16):
        x = np.ldexp(np.arange(1.0, 33), -132).astype(dtype)
        wanted = np.ldexp(np.arange(1.0, 33), -133).astype(dtype)
        assert np.asarray(jax.jit(half)(x)).tobytes() == wanted.tobytes() == np.asarray(half(x)).tobytes()


# --- what does not go -----------------------------------------------------------------------------


def test_without_defvjp_there_is_no_derivative() -> None:
    with pytest.raises(BadCallArgument, match="it has no derivative"):
        jax.grad(lambda x: twice(x).sum())(X)


def test_a_traced_scalar() -> None:
    with pytest.raises(TypeError, match=r"'s' is a static number \(float\)") as error:
        jax.jit(lambda x, s: scaled({"a": x, "b": x}, s))(X, 2.0)
    assert "static_argnames='s'" in str(error.value)
    np.testing.assert_array_equal(
        jax.jit(lambda x, s: scaled({"a": x, "b": x}, s)[0], static_argnames="s")(X, s=2.0), X * 2 + X
    )


def test_a_number_that_jax_traces_is_an_array() -> None:
    """However the body, `out_type` or `grid` uses it: silence, or False from a comparison, would be a wrong result."""

    def taken(use: Any, **how: Any) -> Any:
        def body(x: Any, s: Any, o: Any) -> None:
            o[...] = use(x, s)

        return kd.kernel(body, **{"out_type": lambda x, s: Spec(x.shape, x.dtype)} | how)

    def notes(error: BaseException) -> list[str]:
        return [note.partition(",")[0] for note in getattr(error, "__notes__", []) if "static_argnames=" in note]

    uses = (
        taken(lambda x, s: x[...] * s),
        taken(lambda x, s: x[...] if s == 2 else -x[...]),
        taken(lambda x, s: x[...] if s in (1, 2) else -x[...]),
        taken(lambda x, s: x[...] if s else -x[...]),
        taken(lambda x, s: sum(x[i] for i in range(s))),
        taken(lambda x, s: x[s]),
        taken(lambda x, s: kd.fori_loop(0, s, lambda i, c: c, x[...])),
        taken(lambda x, s: x[...], grid=lambda x, s: (s,)),
        taken(lambda x, s: x[...], out_type=lambda x, s: Spec((x.shape[0] * s,), x.dtype)),
    )
    for use in uses:
        for number in (2, np.int32(2)):
            with pytest.raises((TypeError, BadIndex)) as error:
                jax.jit(use)(X, number)
            assert notes(error.value) == ["'s' is a number that JAX traces"]
    with pytest.raises(RefAsValue) as other:
        jax.jit(taken(lambda x, s: x * s[...]))(X, 2)
    assert notes(other.value) == ["'s' is a number that JAX traces"], "x is none"
    with pytest.raises(ShapeMismatch) as unrelated:
        jax.jit(taken(lambda x, s: x[...] + x[:5]))(X, 2)
    assert notes(unrelated.value) == []


def test_arrays_that_are_no_argument_are_told_at_the_users_line() -> None:
    """And not at JAX's own, which called the kernel."""
    for dtype, words in (
        (jnp.int4, "arrays of 4-bit elements in a call that JAX traces"),
        (jnp.float4_e2m1fn, r"(?s)arrays of 4-bit elements.*bitcast\(kd.float4_e2m1fn\)"),
        (jnp.float8_e4m3b11fnuz, "an array of dtype float8_e4m3b11fnuz can't be an argument"),
    ):
        x = jnp.zeros(8, dtype)
        with pytest.raises(BadCallArgument, match=words) as error:
            jax.jit(twice)(x)
        assert "test_jax.py" in str(error.value) and "jax.jit(twice)(x)" in str(error.value)


@pytest.mark.parametrize("dtype", [jnp.int4, jnp.uint4, jnp.float4_e2m1fn])
@pytest.mark.parametrize("run", [twice, twice.lower, twice.bind, twice.warm, partial(kd.check, twice)])
def test_arrays_of_nibbles_are_told_outside_of_jit_too(run: Callable[..., Any], dtype: Any) -> None:
    with pytest.raises(BadCallArgument, match=r"`twice`: arrays of 4-bit elements in a call on jax arrays"):
        run(jnp.zeros((2, 8), dtype))


def test_shapes_that_do_not_fit_say_so_while_jax_compiles() -> None:
    @kd.kernel(out_type=Spec((4,), kd.float32))
    def fixed(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

    with pytest.raises(StoreShape, match=r"\(128,\) does not broadcast"):
        jax.jit(fixed)(X)


@pytest.mark.parametrize("run", [lambda k: jax.jit(lambda x: k([x, x]))(X), lambda k: jax.jit(k)(X), kd.jax.call])
def test_kernels_on_a_mesh_are_refused(run: Any) -> None:
    on_two = kd.kernel(lambda x, o: None, out_type=lambda x: x, mesh=kd.Mesh(("x",), (2,)), name="on_two")
    with pytest.raises(BadCallArgument, match=r"`on_two`: a kernel on a mesh of 2 devices"):
        run(on_two)


@pytest.mark.parametrize("word", ["bind", "lower", "profile"])
def test_what_needs_memory_says_so(word: str) -> None:
    with pytest.raises(ArgumentTypeError, match=r"has no memory: do this outside of JAX's transformations"):
        jax.jit(getattr(twice, word))(X)


@pytest.mark.parametrize("word", ["out", "stream", "interpret"])
def test_what_jax_decides(word: str) -> None:
    with pytest.raises(BadCallArgument, match=f"{word}= in a call that JAX traces"):
        jax.jit(lambda x: twice(x, **{word: x}))(X)


@pytest.mark.parametrize("around", [jax.jit, jax.vmap, lambda f: jax.jit(jax.vmap(f))], ids=["jit", "vmap", "both"])
def test_options_of_the_interpreter_in_a_program_on_a_cpu(around: Any) -> None:
    """The interpreter runs with them: without a budget, it stops."""
    x = X if around is jax.jit else X.reshape(1, 128)

    def run(way: Any) -> Any:
        return np.asarray(around(lambda x: twice(x, interpret=way))(x))

    for way in (None, True, kd.InterpretParams(schedule="late")):
        np.testing.assert_array_equal(run(way), x * 2)
    with pytest.raises(Exception, match="step_budget"):
        run(kd.InterpretParams(step_budget=1))


def test_options_of_the_interpreter_and_gradients() -> None:
    """The kernels of a gradient get them, too."""
    q = jnp.asarray(X[:64].reshape(1, 1, 4, 16))
    run = jax.jit(jax.grad(lambda q, way: kd.library.attention(q, q, q, interpret=way).sum()), static_argnums=1)
    np.testing.assert_array_equal(run(q, None), run(q, kd.InterpretParams(schedule="late")))
    with pytest.raises(Exception, match="step_budget"):
        jax.block_until_ready(run(q, kd.InterpretParams(step_budget=1)))


def test_export_is_refused() -> None:
    from jax import export

    with pytest.raises(BadCallArgument, match=r"jax.export can't save it"):
        export.export(jax.jit(twice))(X)


def test_wrong_arguments_of_call() -> None:
    with pytest.raises(BadCallArgument, match=r"pass a `@kd\.kernel`"):
        kd.jax.call(len)
    with pytest.raises(BadCallArgument, match="vmap="):
        kd.jax.call(twice, vmap="often")


# --- the way of a GPU, without one ----------------------------------------------------------------


def test_what_a_gpu_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lowered for a GPU it is one call of a handler, with its aliases, its scalars and its workspaces."""
    pytest.importorskip("nvidia.cu13", reason="needs ptxas")
    monkeypatch.setattr("kernel_dsl.jax_primitive._gpu_target", lambda: "sm_90a")

    def text(function: Any, *args: Any) -> str:
        return jax.jit(function).trace(*args).lower(lowering_platforms=("cuda",)).as_text()

    plain = text(lambda x: scaled({"a": x, "b": x}, 2.0), X)
    assert re.search(r"custom_call @kernel_dsl\.scaled\.\d+\(", plain)
    assert "api_version" not in plain and "callback" not in plain  # the version for typed handlers is JAX's default
    assert "mhlo.backend_config = {scalars = dense<[0, 0, 0, 64, 0," in plain  # 2.0 as float32
    assert "output_operand_alias<output_tuple_indices = [], operand_index = 0" in text(increment, X)
    assert "-> (tensor<i32>, tensor<264xui8>)" in text(kd.jax.call(meets))


def test_a_handler_in_xla_itself() -> None:
    """XLA's own library asks for the metadata, calls, and gets the error: on a CPU there is no stream."""
    stages = twice.lower(Spec((128,), kd.float32))
    code = ctypes.create_string_buffer(stages.kernel.ptx.encode())
    address = hosting.ffi_handler(stages.kernel, ctypes.addressof(code), 0)
    jax.ffi.register_ffi_target("kernel_dsl_tests.twice", jax.ffi.pycapsule(ctypes.c_void_p(address)), platform="cpu")
    with jax.default_device(jax.devices("cpu")[0]), pytest.raises(Exception, match="GPU context is not available"):
        jax.ffi.ffi_call("kernel_dsl_tests.twice", jax.ShapeDtypeStruct((128,), np.float32))(X)


def test_errors_end_at_the_users_line_beside_jax(no_gpu: None) -> None:
    """Where JAX is imported, calls first look for its tracers: what is wrong with their arguments is told as without it."""
    for path in sorted(harness.CASES.glob("*.py")):
        if '"torch' not in path.read_text():
            error, _ = harness.run(path)
            assert isinstance(error, kd.Error) and harness.last_frame(error) == str(path), path.stem


@pytest.mark.filterwarnings("error")
def test_children_start_beside_jax_without_a_warning(no_gpu: None) -> None:
    jnp.ones(2).block_until_ready()  # its threads run
    assert in_children([os.getpid, os.getppid], 2)[1] == os.getpid()

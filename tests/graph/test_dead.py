"""Launches that nobody can tell were made are left out of a graph, and no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernel_dsl as kd
from kernel_dsl.runtime.custom import nvrtc
from kernel_dsl.runtime.custom.effects import may_have_effects
from kernel_dsl.runtime.errors import ArgumentTypeError, ArgumentValueError
from kernel_dsl.runtime.graph import Graph
from kernel_dsl.runtime.graph.liveness import _Spans

from .dead_programs import BODIES, SIZE, bounds, check
from .kernels import Kernel, N, device, ints, like


def fake_kernels():
    dev = device()
    return {kind: Kernel(dev, body, like, **more) for kind, (body, more) in BODIES.items()}


def run_seeds(seeds: range) -> None:
    kept = total = 0
    for seed in seeds:
        one, all_ = check(
            seed, fake_kernels(), lambda v: v, lambda a, half: a if half == 2 else a[slice(*bounds(half))], lambda a: a
        )
        kept, total = kept + one, total + all_
    assert total // 10 < kept < total * 9 // 10  # some go, and some stay


def test_random_programs_beside_numpy() -> None:
    run_seeds(range(70))


@pytest.mark.slow
def test_many_random_programs_beside_numpy() -> None:
    run_seeds(range(120, 6000))


_SPAN = st.tuples(st.integers(0, 40), st.integers(1, 8)).map(lambda s: (s[0], s[0] + s[1]))


@given(st.lists(_SPAN, max_size=12), _SPAN)
def test_spans_are_sets_of_bytes(added, asked) -> None:
    spans, model = _Spans(), set()
    for span in added:
        spans.add(span)
        model |= set(range(*span))
        assert spans._starts == sorted(spans._starts) and all(
            a < b for a, b in zip(spans._starts, spans._stops, strict=True)
        )
    assert spans.meets(asked) == bool(model & set(range(*asked)))
    assert spans.holds(asked) == (set(range(*asked)) <= model)


# --- what is observable ---------------------------------------------------------------------------


def test_a_launch_that_nothing_reads_is_left_out(double, xor, dev) -> None:
    a, b = ints(), ints()
    with Graph() as g:
        t = double(a)
        double(double(b))  # nobody reads these
        y = xor(t, a)
    assert len(g.nodes) == 4 and len(g.inputs) == 2  # its results are outputs like others
    g.outputs = y
    assert [n.name for n in g.nodes] == ["double", "xor"] and [n.dependencies for n in g.nodes] == [(), (0,)]
    assert len(g.inputs) == 1 and g.inputs[0] is a
    memory = g.memory_bytes
    np.testing.assert_array_equal(g(), (a * 2) ^ a)
    assert dev.launches == ["double", "xor"]
    np.testing.assert_array_equal(g(b), (b * 2) ^ b)
    with Graph() as alone:
        xor(double(a), a)
    assert alone.memory_bytes == memory


def test_one_that_works_in_place_on_the_users_memory_stays(double, xor) -> None:
    a, b, mine = ints(), ints(), np.zeros(N, np.int32)
    c = ints()
    before = c.copy()
    with Graph() as g:
        double(b, out=mine)
        double(c, out=c)
        y = double(a)
    g.outputs = y
    assert len(g.nodes) == 3
    g()
    np.testing.assert_array_equal(mine, b * 2)
    np.testing.assert_array_equal(c, before * 2)


def test_one_that_stands_for_an_input_stays(dev, double) -> None:
    def accumulate(x, out):
        out += x

    aliased = Kernel(dev, accumulate, like, alias=0)
    a, b = ints(), ints()
    with Graph() as g:
        aliased(b)
        y = double(a)
    g.outputs = y
    assert [n.kind for n in g.nodes] == ["copy", "kernel", "kernel"]


def test_fills_and_copies_go_with_what_they_are_for(dev, double) -> None:
    def half(x, out):
        out[::2] = x[::2]

    filled = Kernel(dev, half, like, fill=3)
    a, b = ints(), ints()
    with Graph() as g:
        t, u = filled(a), filled(b)
        g.copy(t, b)
        y = double(a)
        g.copy(u, y)
    g.outputs = y
    assert [n.name for n in g.nodes] == ["double"]
    g.outputs = u
    assert [n.kind for n in g.nodes] == ["fill", "kernel", "kernel", "copy"]
    np.testing.assert_array_equal(g(), a * 2)


def test_part_of_a_result_may_be_wanted(double) -> None:
    a, b = ints(), ints()
    with Graph() as g:
        t = double(a)
        double(b[: N // 2], out=t[: N // 2])
        double(b[N // 2 :], out=t[N // 2 :])
    g.outputs = t[: N // 2]
    assert len(g.nodes) == 2
    np.testing.assert_array_equal(g(), b[: N // 2] * 2)


def test_no_outputs_leave_what_is_observable(double) -> None:
    a, mine = ints(), np.zeros(N, np.int32)
    with Graph() as g:
        double(double(a))
        double(a, out=mine)
    g.outputs = ()
    assert len(g.nodes) == 1 and g() == ()
    np.testing.assert_array_equal(mine, a * 2)
    with Graph() as empty:
        double(a)
    empty.outputs = []
    assert empty.nodes == () and empty() == []


def test_outputs_chosen_in_the_block_leave_out_too(double) -> None:
    a = ints()
    with Graph() as g:
        y = double(a)
        g.outputs = {"y": y}
        double(y)
    assert len(g.nodes) == 1
    np.testing.assert_array_equal(g()["y"], a * 2)


def test_nodes_are_found_after_others_went(add) -> None:
    a = ints()
    with Graph() as g:
        add(a, 1)
        y = add(a, 2)
    first, second = g.nodes
    g.outputs = y
    g.set_params(second, scalars=[5])
    np.testing.assert_array_equal(g(), a + 5)
    with pytest.raises(ArgumentValueError, match="was left out of the graph"):
        g.set_params(first, scalars=[5])


def test_variables_of_what_was_left_out_may_be_left_out(add) -> None:
    k, m = kd.Variable("k", 0, 9), kd.Variable("m", 0, 9)
    a = ints()
    with Graph() as g:
        add(add(a, m), k)
        y = add(a, k)
    g.outputs = y
    assert len(g.nodes) == 1
    np.testing.assert_array_equal(g(k=3), a + 3)
    np.testing.assert_array_equal(g(k=4, m=1), a + 4)
    with pytest.raises(kd.Error, match="from 0 to 9"):
        g(k=4, m=10)
    with pytest.raises(ArgumentTypeError, match="give \\['k'\\] too"):
        g(m=1)
    with Graph() as outer:
        g(k=7)
    np.testing.assert_array_equal(outer(), a + 7)


def test_a_nested_graph_leaves_out_for_the_outer_one(double, add) -> None:
    a = ints()
    with Graph() as inner:
        double(a)
        y = add(a, 1)
    inner.outputs = y
    with Graph() as outer:
        t = inner()
        u = inner()
        double(u)
    assert len(outer.nodes) == 3
    outer.outputs = t
    assert len(outer.nodes) == 1
    np.testing.assert_array_equal(outer(), a + 1)


def test_effects_go_through_nesting(dev, double) -> None:
    runs = []

    def told(x, out):
        runs.append(1)
        out[...] = x

    kernel = Kernel(dev, told, like, effects=True)
    a = ints()
    with Graph() as inner:
        kernel(a)
    with Graph() as outer:
        inner()
        y = double(a)
    outer.outputs = y
    outer()
    assert runs == [1]


# --- real kernels ---------------------------------------------------------------------------------

X = np.arange(SIZE, dtype=np.float32)


def traced(body):
    return kd.kernel(body, out_type=lambda x: x, interpret=True, grid=(1,), grid_names=("i",))


def test_effects_of_traced_kernels(capfd: pytest.CaptureFixture[str]) -> None:
    def quiet(x, out):
        out[...] = x[...] * 2

    def prints(x, out):
        kd.debug_print("seen {}", kd.axis_index("i"))
        out[...] = x[...]

    def checks(x, out):
        kd.debug_check(kd.axis_index("i") == 0, "one block")
        out[...] = x[...]

    def by_hand(x, out):
        out[...] = kd.inline_ptx("add.f32 $0, $1, $1;", x[...], out_type=kd.float32)

    def by_hand_and_pure(x, out):
        out[...] = kd.inline_ptx("add.f32 $0, $1, $1;", x[...], out_type=kd.float32, pure=True)

    stays = {quiet: False, prints: True, checks: True, by_hand: True, by_hand_and_pure: False}
    for body, kept in stays.items():
        assert traced(body).lower(X).kernel.effects is kept, body
        with kd.Graph() as g:
            traced(body)(X)
            y = traced(quiet)(X)
        g.outputs = y
        assert len(g.nodes) == 1 + kept, body
        np.testing.assert_array_equal(g(), X * 2)
    assert "seen 0" in capfd.readouterr().out


def test_atomics_on_an_array_of_the_users_stay() -> None:
    def count(x, out):
        kd.atomic_add(out.at[0], 1.0)

    total = np.zeros(1, np.float32)
    kernel = kd.kernel(count, out_type=kd.ShapeDtypeStruct((1,), kd.float32), interpret=True, grid=(4,))
    with kd.Graph() as g:
        kernel(X, out=total)
        kernel(X)  # on memory of the graph's own
        y = traced(lambda x, out: out.__setitem__(..., x[...]))(X)
    g.outputs = y
    assert len(g.nodes) == 2
    g()
    g()
    assert total[0] == 8


def test_a_kernel_in_place_by_its_aliases_stays() -> None:
    def more(x, out):
        out[...] = out[...] + x[...]

    kernel = kd.kernel(more, out_type=lambda x: x, input_output_aliases={0: 0}, interpret=True)
    x = X.copy()
    with kd.Graph() as g:
        kernel(x, out=x)
        kernel(X)
        y = traced(lambda x, out: out.__setitem__(..., x[...] * 3))(X)
    g.outputs = y
    g()
    np.testing.assert_array_equal(x, X * 2)
    assert sum(n.kind == "kernel" for n in g.nodes) == 3


@pytest.mark.parametrize(
    ("header", "source", "effects"),
    [
        ("", "out[i] = x[i];", False),
        ("", "out[i] = x[i] * (a * b); // printf would be seen", False),
        ("", "/* asm */ auto v = *(const float4*)(x + i); out[i] = v.x;", False),
        ("", "out[i] = reinterpret_cast<const int*>(x)[i];", False),
        ("template <typename T> T f(T x) { return x; }", "out[i] = f(x[i]);", False),
        (
            "#include <cuda_fp16.h>\n#define K 3\n__device__ float f(float x) { if (x) { return 1; } return x; }\n",
            "",
            False,
        ),
        ("constexpr int K = 3; struct A { int a; int b[3]; }; using B = A; const float t[2] = {1, 2};", "", False),
        ("float f(float);", "", False),
        ("", 'printf("%d", i);', True),
        ("", "assert(i < 3);", True),
        ("", "if (i == 7) __trap();", True),
        ("", 'asm volatile("exit;");', True),
        ("", "((float*)x)[i] = 1;", True),
        ("", "((device float*)x)[i] = 1;", True),
        ("", "const_cast<float*>(x)[i] = 1;", True),
        ("", "reinterpret_cast<float*>(x)[i] = 1;", True),
        ("", "static int n; n++;", True),
        ("__device__ int counter;", "atomicAdd(&counter, 1);", True),
        ("int counter = 0;", "atomicAdd(&counter, 1);", True),
        ("int counter(0);", "atomicAdd(&counter, 1);", True),
        ("namespace a { int f(int x) { return x; } } int table[4] = {1, 2, 3, 4};", "table[0]++;", True),
    ],
)
def test_effects_of_bodies_by_their_text(header: str, source: str, effects: bool) -> None:
    assert may_have_effects(header, source) is effects


@pytest.mark.skipif(bool(nvrtc.unavailable()), reason=nvrtc.unavailable() or "NVRTC")
def test_custom_kernels() -> None:
    def call(source: str, header: str = "") -> None:
        kernel = kd.cuda_kernel("k", ["x"], ["out"], f"int i = threadIdx.x; {source}", header=header)
        kernel(
            inputs=[X],
            output_shapes=[X.shape],
            output_dtypes=[X.dtype],
            grid=(SIZE, 1, 1),
            threadgroup=(SIZE, 1, 1),
            interpret=True,
        )

    with kd.Graph() as g:
        call("out[i] = x[i];")
        call("out[i] = f(x[i]);", "float f(float x) { return x * x; }")
        call("out[i] = atomicAdd(&seen, 1.0f);", "__device__ float seen;")
        call("((float*)x)[0] = 1; out[i] = 0;")
        y = traced(lambda x, out: out.__setitem__(..., x[...] * 3))(X)
    g.outputs = y
    assert sum(n.kind == "kernel" for n in g.nodes) == 3


# The bodies of `dead_programs`, traced. Nothing of the effect can be seen, but that it stays.


def traced_kernels(interpret: bool | None) -> dict[str, Any]:
    def like_first(*structs):
        return structs[0]

    def plain(a, b, out):
        out[...] = a[...] * 3 + b[...]

    def fill(a, b, out):
        out[::2] = (a[...] ^ b[...])[::2]

    def alias(a, out):
        out[1::2] = out[1::2] + 7

    def effect(a, b, out):
        out[...] = kd.inline_ptx("sub.s32 $0, $1, $2;", a[...], b[...], out_type=kd.int32)

    def filled(a, b):
        return kd.ShapeDtypeStruct(a.shape, a.dtype, init=11)

    more = {"fill": {"out_type": filled}, "alias": {"input_output_aliases": {0: 0}}}
    bodies = {"plain": plain, "fill": fill, "alias": alias, "effect": effect}
    return {
        name: kd.kernel(body, **{"out_type": like_first, "interpret": interpret, "name": name, **more.get(name, {})})
        for name, body in bodies.items()
    }


def half_of(array, half):
    return array if half == 2 else array[slice(*bounds(half))]


def test_random_programs_of_traced_kernels() -> None:
    kernels = traced_kernels(True)
    for seed in range(8):
        check(seed, kernels, lambda v: v, half_of, lambda a: a, counted=False)


@pytest.mark.gpu
def test_random_programs_on_a_gpu() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch without CUDA")
    kernels = traced_kernels(None)
    for seed in range(60):
        check(seed, kernels, lambda v: torch.from_numpy(v).cuda(), half_of, lambda a: a.cpu().numpy(), counted=False)


@pytest.mark.gpu
def test_random_programs_on_a_gpu_with_arrays_of_the_host() -> None:
    kernels = traced_kernels(False)
    for seed in range(20):
        check(seed, kernels, lambda v: v, half_of, lambda a: a, counted=False)

"""Random nests of JAX's transformations around kernels: values and gradients are those of JAX's own operations."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.errors import BadCallArgument
from kernel_dsl.errors_hopper import TmaRule

from .seeds import seeds

jax = pytest.importorskip("jax", reason="JAX is not installed")
pytest.importorskip("jax.export")
jnp = jax.numpy
P = jax.sharding.PartitionSpec
SIDE = 4  # of the innermost matrices
PARTS = 2  # that a mapped axis adds
AXES = ((0, 0), (0, None), (None, 0))
WORDS = ("jit", "vmap", "vmap_last", "shard", "scan", "map", "cond", "switch", "remat", "remat_dots", "fori", "vjp")
ON_MESH = len(jax.devices()) >= 4


@kd.kernel(out_type=lambda x, y: kd.ShapeDtypeStruct(x.shape, x.dtype))
def times(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * y_ref[...]


product = kd.jax.call(times)
product.defvjp(lambda x, y: (product(x, y), (x, y)), lambda kept, g: (product(g, kept[1]), product(g, kept[0])))


@kd.kernel(out_type=lambda x, y, factor: kd.ShapeDtypeStruct(x.shape, x.dtype))
def scaled(x_ref: Any, y_ref: Any, factor: float, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * y_ref[...] * factor


scaled_product = kd.jax.call(scaled)
scaled_product.defvjp(
    lambda x, y, factor: (scaled_product(x, y, factor), (x, {"factor": factor, "other": y})),
    lambda kept, g: (
        scaled_product(g, kept[1]["other"], factor=kept[1]["factor"]),
        scaled_product(g, kept[0], kept[1]["factor"]),
        None,
    ),
)


@jax.custom_vjp
def by_jax(x: Any, y: Any) -> Any:
    return scaled(x, y, factor=3.0)


by_jax.defvjp(
    lambda x, y: (scaled_product(x, y, 3.0), (x, y, 3.0)),
    lambda kept, g: (scaled_product(g, kept[1], kept[2]), scaled_product(kept[0], g, factor=kept[2])),
)


@dataclasses.dataclass
class Sides:
    left: Any
    right: list[Any]


@kd.kernel(
    out_type=lambda sides: {"sum": sides.left, "rows": (kd.ShapeDtypeStruct(sides.left.shape[:1], sides.left.dtype),)}
)
def of_nest(sides: Any, outs: Any) -> None:
    left, right = sides.left[...], sides.right[0][...]
    outs["sum"][...] = left + right
    outs["rows"][0][...] = kd.sum(left * 2, axis=1)


nested = kd.jax.call(of_nest)


def nest_gradients(kept: Any, g: Any) -> Any:
    (rows,) = g["rows"]
    return (Sides(g["sum"] + 2 * rows[:, None], [g["sum"]]),)


nested.defvjp(lambda sides: (nested(sides), None), nest_gradients)


def of_sides(x: Any, y: Any) -> Any:
    made = nested(Sides(squares(x), [squares(y)]))
    return made["sum"] * made["rows"][0][:, None]


def squares(x: Any) -> Any:
    return x.reshape(-1, SIDE)


PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "kernel": (product, lambda x, y: x * y),
    "numbers": (lambda x, y: scaled_product(x, y, 1.5), lambda x, y: x * y * 1.5),
    "by JAX": (by_jax, lambda x, y: x * y * 3),
    "nests": (of_sides, lambda x, y: (squares(x) + squares(y)) * 2 * squares(x).sum(1, keepdims=True)),
    "matmul": (
        lambda x, y: kd.library.matmul(squares(x), squares(y).T),
        lambda x, y: jnp.matmul(squares(x), squares(y).T, precision="highest"),
    ),
}


class Step(NamedTuple):
    """One transformation, and which arguments it maps."""

    word: str
    axes: tuple[int | None, int | None]


def nest(rng: random.Random, pair: str) -> list[Step]:
    """Steps from the inside out, of which at most one maps over devices."""
    without = [("vjp", "matmul"), ("shard", "by JAX")]  # no second derivatives; rules that do not sum over devices
    words = [word for word in WORDS if (word, pair) not in without and (word != "shard" or ON_MESH)]
    drawn = [Step(rng.choice(words), rng.choice(AXES)) for _ in range(rng.randint(1, 4))]
    first = next((i for i, step in enumerate(drawn) if step.word == "shard"), -1)
    return [step for i, step in enumerate(drawn) if step.word != "shard" or i == first]


def mapped(f: Callable[..., Any], axes: tuple[Any, Any], loop: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Any, y: Any) -> Any:
        if axes == (0, 0):
            return loop(lambda pair: f(*pair), (x, y))
        return loop(lambda row: f(row, y), x) if axes[0] == 0 else loop(lambda row: f(x, row), y)

    return run


def around(f: Callable[..., Any], step: Step) -> Callable[..., Any]:
    lax = jax.lax
    dots = jax.checkpoint_policies.dots_saveable
    specs = tuple(P("a") if axis == 0 else P() for axis in step.axes)
    return {
        "jit": lambda: jax.jit(f),
        "vmap": lambda: jax.vmap(f, in_axes=step.axes),
        "vmap_last": lambda: jax.vmap(f, in_axes=step.axes, out_axes=-1),
        "shard": lambda: jax.shard_map(f, mesh=mesh(), in_specs=specs, out_specs=P("a")),
        "scan": lambda: mapped(f, step.axes, lambda g, rows: lax.scan(lambda c, row: (c, g(row)), 0, rows)[1]),
        "map": lambda: mapped(f, step.axes, lax.map),
        "cond": lambda: lambda x, y: lax.cond(x.sum() < 1e9, f, lambda a, b: jnp.zeros_like(f(a, b)), x, y),
        "switch": lambda: (
            lambda x, y: (
                lax.switch(jnp.int32(1), [lambda a, b: f(b, b), f, lambda a, b: f(a, a)], x, y)
                if x.shape == y.shape
                else f(x, y)
            )
        ),
        "remat": lambda: jax.checkpoint(f),
        "remat_dots": lambda: jax.checkpoint(jax.jit(f), policy=dots),
        "fori": lambda: lambda x, y: lax.fori_loop(0, 2, lambda i, c: c + f(x, y) * (i + 1), jnp.zeros_like(f(x, y))),
        "vjp": lambda: lambda x, y: jax.vjp(f, x, y)[1](jnp.cos(f(x, y)))[1] if y.ndim else f(x, y),
    }[step.word]()


def mesh() -> Any:
    return jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


def shapes(steps: list[Step]) -> list[list[int]]:
    found = [[SIDE, SIDE], [SIDE, SIDE]]
    for step in steps:
        for shape, axis in zip(found, step.axes, strict=True):
            if axis == 0 and step.word in ("vmap", "vmap_last", "scan", "map"):
                shape.insert(0, PARTS)
            if axis == 0 and step.word == "shard":
                shape[0] *= 2
    return found


def check(seed: int) -> None:
    rng = random.Random(seed)
    name = rng.choice(sorted(PAIRS))
    pair, steps, jitted = PAIRS[name], nest(rng, name), rng.random() < 0.5
    drawn = np.random.default_rng(seed)
    x, y = (jnp.asarray(drawn.standard_normal(s), jnp.float32) for s in shapes(steps))
    made: list[Any] = []
    for function in pair:
        for step in steps:
            function = around(function, step)

        def loss(a: Any, b: Any, function: Any = function) -> Any:
            out = function(a, b)
            return (out * jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape)).sum(), out

        run = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
        made.append(jax.tree.leaves((jax.jit(run) if jitted else run)(x, y)))
    for ours, plain in zip(*made, strict=True):
        assert ours.shape == plain.shape, steps
        np.testing.assert_allclose(ours, plain, rtol=1e-3, atol=1e-3, err_msg=str(steps))


@pytest.mark.parametrize("seed", seeds(8, 30, 50))
def test_nests(seed: int) -> None:
    """The first ones map over devices: a gradient of what devices share is the sum of theirs."""
    check(seed)


X = np.linspace(-1, 1, 16, dtype=np.float32)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (lambda: jax.jvp(product, (X, X), (X, X)), "`times`: it has no derivative in forward mode"),
        (lambda: jax.jacfwd(product)(X, X), "`times`: it has no derivative in forward mode"),
        (
            lambda: jax.hessian(lambda x: kd.library.matmul(squares(x), squares(x)).sum())(X),
            "`matmul`: it has no second",
        ),
        (
            lambda: jax.grad(lambda x: jax.grad(lambda z: kd.library.matmul(squares(z), squares(x)).sum())(x).sum())(X),
            "`matmul`: it has no second derivative",
        ),
        (lambda: jax.linearize(lambda x: times(x, x), X), "give the gradients: `f = kd.jax.call"),
        (
            lambda: jax.eval_shape(times, *[jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 4"), np.float32)] * 2),
            "symbols",
        ),
        (
            lambda: jax.jit(lambda s: kd.library.attention(*[np.ones((1, 1, 8, 16), np.float16)] * 3, scale=s))(0.5),
            "scale is a value that JAX traces",
        ),
        (lambda: jax.linear_transpose(lambda x: times(x, X), X)(X), "as if it were linear"),
    ],
)
def test_derivatives_that_there_are_not(run: Callable[[], Any], words: str) -> None:
    with pytest.raises(BadCallArgument) as error:
        run()
    assert words in str(error.value)


def test_second_derivatives_by_rules_that_call_the_function() -> None:
    found = jax.jacrev(jax.grad(lambda x: product(x, x).sum()))(X)
    np.testing.assert_allclose(found, 2 * np.eye(16))


def test_calls_while_jit_is_disabled() -> None:
    with jax.disable_jit():
        found = jax.jit(product)(jnp.asarray(X), jnp.asarray(X))
        slope = jax.jit(jax.grad(lambda x: product(x, x).sum()))(jnp.asarray(X))
        rows = jax.vmap(product)(jnp.ones((2, 4)), jnp.ones((2, 4)))
        kept, _ = jax.lax.scan(lambda c, x: (product(c, x), None), jnp.ones(4), jnp.full((3, 4), 2.0))
    np.testing.assert_allclose(found, X * X)
    np.testing.assert_allclose(slope, 2 * X)
    assert (np.asarray(rows) == 1).all()
    assert (np.asarray(kept) == 8).all()


@kd.kernel(
    out_type=kd.ShapeDtypeStruct((2, 2, 2, 4, 16), kd.float32),
    scratch_types=(kd.SMEM((2, 2, 2, 4, 16), kd.float32), kd.Barrier()),
    name="corner",
)
def corner(x: Any, o: Any, tile: Any, full: Any) -> None:
    kd.copy_gmem_to_smem(x.at[kd.ds(1, 2), kd.ds(1, 2), kd.ds(1, 2), kd.ds(1, 4), kd.ds(4, 16)], tile, full)
    kd.barrier_wait(full)
    o[...] = tile[...] * 2


def test_vmap_loops_where_a_grid_axis_can_not_be_lowered() -> None:
    """TMA takes arrays of 5 dimensions at most, which only the lowering refuses."""
    xs = np.random.default_rng(0).standard_normal((2, 3, 3, 3, 8, 32)).astype(np.float32)
    wanted = xs[:, 1:, 1:, 1:, 1:5, 4:20] * 2
    assert "scan[" in str(jax.make_jaxpr(jax.vmap(corner))(xs))
    np.testing.assert_array_equal(jax.jit(jax.vmap(corner))(xs), wanted)
    with pytest.raises(TmaRule, match="an array of rank 6"):
        jax.vmap(kd.jax.call(corner, vmap="grid"))(xs)

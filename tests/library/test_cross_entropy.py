"""kd.library.linear_cross_entropy: losses, gradients, parts of a vocabulary, what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library import MatmulConfig
from kernel_dsl.library.losses.arguments import CrossEntropyCall
from kernel_dsl.library.losses.exponentials import FAR, product_of
from kernel_dsl.library.losses.gradients import loss_and_gradients, rows_kernel
from kernel_dsl.library.losses.kernels import CrossEntropy, slope, stack_kernel
from kernel_dsl.library.losses.linear_cross_entropy import combine_backward, partials_backward
from kernel_dsl.library.product_kernels.epilogue import PLAIN, TOP, TOTAL
from kernel_dsl.library.product_kernels.lane_product import LaneConfig, lane_kernel
from kernel_dsl.library.product_kernels.tile_product import TileConfig, tile_kernel
from kernel_dsl.library.products.operands import turned
from kernel_dsl.library.products.problem import Problem
from tests.hopper.helpers import random, relative

from .cross_entropy_reference import expected
from .products import PLACES, place

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]

bf16, f16, f32 = kd.bfloat16, kd.float16, kd.float32
Spec = kd.ShapeDtypeStruct
SMALL = MatmulConfig(64, 64, 64, 3, 1)
# Of gradients: half a unit in the last place for the result's own rounding, and as much again for those of logits, which are
# rounded to the dtype of x; float32 has only what its exponentials lose, see `run`.
BOUNDS = {bf16: 2.0**-7, f16: 2.0**-10, f32: 2e-6}
cross_entropy, backward, combine = (
    kd.library.linear_cross_entropy,
    kd.library.linear_cross_entropy_backward,
    kd.library.linear_cross_entropy_combine,
)


def run(seed: int, interpret: Any, shape: Any = None, dtype: Any = None, config: Any = None) -> None:
    """A random call and its gradients, in one part or several of a vocabulary, against float64."""
    rng = np.random.default_rng(seed)
    M, V, H = shape or (
        int(rng.choice((1, 3, 16, 65, 130))),
        int(rng.choice((1, 2, 63, 130, 300))),
        int(rng.choice((1, 8, 40, 72))),
    )
    dtype = dtype or (bf16, bf16, f16, f32)[rng.integers(4)]
    x, weight = random(rng, (M, H), dtype), random(rng, (V, H), dtype)
    x, weight = (place(a * dtype.numpy.type(0.5), str(rng.choice(PLACES))) for a in (x, weight))
    targets = rng.integers(0, V, M).astype((np.int32, np.int64)[rng.integers(2)])
    ignore = int(rng.choice((-100, 0, V // 2)))
    targets[rng.random(M) < rng.choice((0.2, 0.2, 1.0))] = ignore  # of a whole batch, too
    smoothing, reduction = float(rng.choice((0.0, 0.1, 1.0))), ("mean", "sum", "none")[rng.integers(3)]
    bias = random(rng, (V,), (f32, dtype)[rng.integers(2)]) if rng.random() < 0.5 else None
    dloss = random(rng, (M,), f32) if reduction == "none" else 0.75
    exact = expected(x, weight, targets, bias, ignore, smoothing, reduction, dloss)
    options: dict[str, Any] = {
        "ignore_index": ignore,
        "label_smoothing": smoothing,
        "reduction": reduction,
        "interpret": interpret,
    }
    said = f"seed {seed}: {dtype} {(M, V, H)} {options}"
    if V > 1 and rng.random() < 0.4 and config is None:
        cut = int(rng.integers(1, V))
        parts = [slice(0, cut), slice(cut, V)]
        own = [None if bias is None else bias[part] for part in parts]
        made = [
            cross_entropy(x, weight[part], targets, bias=b, vocab_start=part.start, **options)
            for part, b in zip(parts, own, strict=True)
        ]
        assert all(part.shape == (4, M) for part in made)
        loss, lse = combine(np.stack(made), targets, vocab=V, return_lse=True, **options)
        pieces = [
            backward(dloss, x, weight[part], targets, lse, bias=b, vocab_start=part.start, vocab=V, **options)
            for part, b in zip(parts, own, strict=True)
        ]
        dx = sum(piece[0].astype(np.float64) for piece in pieces)
        grads = [dx, *(np.concatenate([piece[i] for piece in pieces]) for i in range(1, len(pieces[0])))]
    else:
        loss, lse = cross_entropy(x, weight, targets, bias=bias, return_lse=True, config=config, **options)
        chunk = None if rng.random() < 0.5 else int(rng.integers(1, V + 1))
        chunk = chunk and max(chunk, -(-V // 4))
        grads = list(backward(dloss, x, weight, targets, lse, bias=bias, chunk=chunk, **options))
        assert [g.dtype for g in grads] == [dtype.numpy, dtype.numpy, *(() if bias is None else (bias.dtype,))]
    assert loss.dtype == lse.dtype == np.float32
    bound = 2e-5 * max(np.abs(exact.rows).sum() if reduction == "sum" else 1, 8)
    np.testing.assert_allclose(loss, exact.loss, rtol=0, atol=bound, err_msg=said)
    assert relative(lse, exact.lse) < 1e-5, said
    wanted = [exact.dx, exact.dweight, *(() if bias is None else (exact.dbias,))]
    # an exponential is off by as much as its exponent, which is rounded several times where the logit is large
    lost = 4 * 2.0**-24 * float(np.abs(exact.lse).max() + np.sqrt(H) * 4)
    assert len(grads) == len(wanted)
    for name, got, want, size in zip(("dx", "dweight", "dbias"), grads, wanted, exact.sizes, strict=False):
        error = float(np.abs(got.astype(np.float64) - want).max()) / size
        assert error < BOUNDS[dtype] + lost, f"{said} {name}: {error:.1e}"


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.sampled(219)
def test_random_calls(seed: int, interpret: Any) -> None:
    run(seed, interpret)


def test_memory_of_later_products_is_no_hazard() -> None:
    """The kernels before the gradients' products make their memory, and the products write it."""
    run(0, kd.InterpretParams(report_unwritten=True), (3, 20, 16), bf16)


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.sampled(216)
def test_gradients_beside_the_loss(seed: int, interpret: Any) -> None:
    """Some rows at a time, by three products, against float64."""
    rng = np.random.default_rng(seed)
    M, V, H = (int(rng.choice(n)) for n in ((1, 5, 20), (1, 2, 66, 2100), (1, 16, 40)))
    dtype = (bf16, f16, f32)[rng.integers(3)]
    x, weight = random(rng, (M, H), dtype), random(rng, (V, H), dtype)
    targets = rng.integers(0, V, M).astype((np.int32, np.int64)[rng.integers(2)])
    targets[rng.random(M) < rng.choice((0.3, 1.0))] = -7
    bias = random(rng, (V,), f32) if rng.random() < 0.5 else None
    smoothing, reduction = float(rng.choice((0.0, 0.3))), ("mean", "sum")[rng.integers(2)]
    options = {"ignore_index": -7, "label_smoothing": smoothing, "reduction": reduction, "vocab_start": None}
    loss, lse, *grads = loss_and_gradients(
        x, weight, targets, bias, options, interpret, rows=int(rng.choice((M, 3, 16)))
    )
    exact = expected(x, weight, targets, bias, -7, smoothing, reduction)
    bound = 2e-5 * max(np.abs(exact.rows).sum() if reduction == "sum" else 1, 8)
    np.testing.assert_allclose(loss, exact.loss, rtol=0, atol=bound)
    # a single row's may be near 0, the difference of numbers that are not
    assert np.abs(lse - exact.lse).max() < 1e-5 * max(float(np.abs(exact.lse).max()), 0.1)
    lost = 4 * 2.0**-24 * float(np.abs(exact.lse).max() + np.sqrt(H) * 4)
    wanted = [exact.dx, exact.dweight, *(() if bias is None else (exact.dbias,))]
    for name, got, want, size in zip(("dx", "dweight", "dbias"), grads, wanted, exact.sizes, strict=False):
        assert got.shape == want.shape and got.dtype == (f32 if name == "dbias" else dtype).numpy
        error = float(np.abs(got.astype(np.float64) - want).max()) / size
        assert error < BOUNDS[dtype] + lost, f"seed {seed} {name}: {error:.1e}"
    assert len(grads) == len(wanted)


@pytest.mark.parametrize(
    ("shape", "size", "rows"),
    [((20, 264, 64), 0.3, 20), ((20, 72, 64), 8.0, 16), ((130, 520, 40), 0.3, 130), ((5, 8, 2056), 0.3, 5)],
    ids=str,
)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.sampled(48)
def test_gradients_by_exponentials(shape: Any, size: float, rows: int, biased: bool, interpret: Any, rng: Any) -> None:
    """Logits near 0 and so far from it that their exponentials overflow; some rows at a time; a last tile that is cut off."""
    M, V, H = shape
    x, weight = random(rng, (M, H), bf16), random(rng, (V, H), bf16) * bf16.numpy.type(size)
    targets, bias = rng.integers(0, V, M), random(rng, (V,), f32) if biased else None
    targets[1::4] = -100
    for reduction in ("mean", "sum"):
        options = {"ignore_index": -100, "label_smoothing": 0.0, "reduction": reduction, "vocab_start": None}
        loss, lse, *grads = loss_and_gradients(x, weight, targets, bias, options, interpret, rows=rows)
        exact = expected(x, weight, targets, bias, -100, 0.0, reduction)
        far = float(np.abs(x.astype(np.float64) @ weight.astype(np.float64).T).max())
        assert (far > 2 * FAR) == (size > 1) and abs(loss - exact.loss) < 1e-5 * max(np.abs(exact.rows).sum(), 8)
        assert relative(lse, exact.lse) < 1e-5
        wanted = [exact.dx, exact.dweight, *(() if bias is None else (exact.dbias,))]
        assert len(grads) == len(wanted)
        for name, got, want in zip(("dx", "dweight", "dbias"), grads, wanted, strict=False):
            assert relative(got, want) < BOUNDS[bf16], name
        assert all(g.dtype == (f32 if n == 2 else bf16).numpy for n, g in enumerate(grads))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.sampled(108)
def test_gradients_by_partials(seed: int, interpret: Any) -> None:
    """The chain of the combination and of parts of a vocabulary, against float64; what is added to partials' sums, too."""
    if interpret:
        interpret = dataclasses.replace(interpret, report_unwritten=True)
    rng = np.random.default_rng(seed)
    M, V, H, dtype = int(rng.choice((1, 20))), 90, 16, (bf16, f16, f32)[rng.integers(3)]
    x, weight = random(rng, (M, H), dtype), random(rng, (V, H), dtype)
    targets = rng.integers(0, V, M).astype(np.int32)
    targets[1:][rng.random(M - 1) < 0.3] = 4
    bias = random(rng, (V,), f32) if rng.random() < 0.5 else None
    smoothing, reduction = float(rng.choice((0.0, 0.3))), ("mean", "sum", "none")[rng.integers(3)]
    options: Any = {"ignore_index": 4, "label_smoothing": smoothing, "reduction": reduction}
    dloss = random(rng, (M,), f32) if reduction == "none" else np.float32(0.5) * np.ones((), np.float32)
    targets[0] = 7
    parts, how = [slice(0, 31), slice(31, V)], {"interpret": interpret}
    own = [
        (weight[p], None if bias is None else bias[p], CrossEntropyCall("", **options, vocab_start=p.start))
        for p in parts
    ]
    made = [cross_entropy(x, w, targets, bias=b, vocab_start=c.vocab_start, **options, **how) for w, b, c in own]
    stacked = np.stack(made)
    _, lse = combine(stacked, targets, vocab=V, return_lse=True, **options, **how)
    call = CrossEntropyCall("", **options, vocab_start=None, vocab=V)
    gradient = combine_backward(dloss, stacked, targets, lse, call, interpret)
    found = [
        partials_backward(g, x, w, targets, m, b, c, interpret)
        for g, m, (w, b, c) in zip(gradient, made, own, strict=True)
    ]
    exact = expected(x, weight, targets, bias, 4, smoothing, reduction, dloss)
    grads = [
        sum(f[0].astype(np.float64) for f in found),
        *(np.concatenate([f[i] for f in found]) for i in range(1, len(found[0]))),
    ]
    lost = 4 * 2.0**-24 * float(np.abs(exact.lse).max() + np.sqrt(H) * 4)
    for name, got, want, size in zip(
        ("dx", "dweight", "dbias"), grads, (exact.dx, exact.dweight, exact.dbias), exact.sizes, strict=False
    ):
        error = float(np.abs(got.astype(np.float64) - want).max()) / size
        assert error < BOUNDS[dtype] + lost, f"seed {seed} {dtype} {options} {name}: {error:.1e}"


@pytest.mark.parametrize("config", [SMALL, MatmulConfig(128, 64, 64, 2, 2, cluster=2), MatmulConfig(64, 64, 64, 3, 2, ping_pong=True),
                                    MatmulConfig(64, 64, 64, 3, 1, cluster_n=2)], ids=["one", "cluster", "turns", "along_n"])  # fmt: skip
@pytest.mark.sampled(78)
def test_configs(config: Any, interpret: Any) -> None:
    run(5, interpret, (150, 200, 72), bf16, config)


@pytest.mark.parametrize("kernel", ["tile", "lane"])
@pytest.mark.parametrize("N", [128, 130])
@pytest.mark.sampled(12)
def test_general_kernels(kernel: str, N: int, rng: Any) -> None:
    """What targets without wgmma take, one sum of rows beside another."""
    dtype = bf16 if kernel == "tile" else f32
    p = Problem(70, N, 40, dtype, dtype, f32, b_transposed=True, bias=True, softmax=3)
    a, b, bias = random(rng, (70, 40), dtype), random(rng, (N, 40), dtype), random(rng, (N,), f32)
    made = tile_kernel(p, TileConfig(64, 64, 32, 3)) if kernel == "tile" else lane_kernel(p, LaneConfig(64, 64))
    got = made(a, b, bias, interpret=True)
    logits = a.astype(np.float64) @ b.T.astype(np.float64) + bias
    for tile in range(got.shape[1]):
        own = logits[:, tile * 64 : (tile + 1) * 64]
        top = own.max(axis=1)
        assert relative(got[TOP, tile], top) < 1e-6
        assert relative(got[TOTAL, tile], np.exp(own - top[:, None]).sum(axis=1)) < 1e-5
        assert relative(got[PLAIN, tile], own.sum(axis=1)) < 1e-5


def test_the_ends() -> None:
    """No rows, nothing to multiply, no row that counts, and numbers that are none."""
    x, weight = np.ones((3, 8), np.float32), np.ones((5, 8), np.float32)
    ignored = np.full(3, -100)
    assert np.isnan(cross_entropy(x, weight, ignored, interpret=True))
    assert cross_entropy(x, weight, ignored, reduction="sum", interpret=True) == 0
    dx, dweight = backward(1.0, x, weight, ignored, np.zeros(3, np.float32), interpret=True)
    assert not dx.any() and not dweight.any()
    options = {"ignore_index": -100, "label_smoothing": 0.0, "reduction": "mean", "vocab_start": None}
    loss, _, dx, dweight = loss_and_gradients(x, weight, ignored, None, options, True)
    assert np.isnan(loss) and not dx.any() and not dweight.any()
    assert cross_entropy(x[:0], weight, ignored[:0], reduction="none", interpret=True).shape == (0,)
    assert cross_entropy(x[:0], weight, ignored[:0], reduction="sum", interpret=True) == 0
    targets = np.arange(3)
    loss, lse = cross_entropy(x[:, :0], weight[:, :0], targets, return_lse=True, interpret=True)
    assert abs(loss - np.log(5)) < 1e-6
    dx, dweight = backward(1.0, x[:, :0], weight[:, :0], targets, lse, interpret=True)
    assert dx.shape == (3, 0) and dweight.shape == (5, 0)
    dx, dweight = backward(1.0, x[:0], weight, targets[:0], lse[:0], reduction="sum", interpret=True)
    assert dx.shape == (0, 8) and not dweight.any()
    x[1, 2] = np.nan
    rows = cross_entropy(x, weight, targets, reduction="none", interpret=True)
    assert np.isnan(rows[1]) and abs(rows[[0, 2]] - np.log(5)).max() < 1e-6
    low = np.array([0, -np.inf, -np.inf, -np.inf, -np.inf], np.float32)  # one class alone can be
    rows = cross_entropy(x[:1], weight, targets[:1], bias=low, reduction="none", interpret=True)
    assert rows[0] == 0
    large = cross_entropy(x[:1] * 1e4, weight, targets[:1], interpret=True)
    assert abs(large - np.log(5)) < 1e-1


def test_targets_that_are_no_class_give_no_number(rng: Any) -> None:
    """What a GPU does, where nobody looks at targets before: the same kernels, in the interpreter."""
    from kernel_dsl.library.losses import linear_cross_entropy as module

    x, weight = random(rng, (4, 16), f32), random(rng, (6, 16), f32)
    targets = np.array([0, 6, -1, 1 << 40])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "check_targets", lambda *_: None)
        rows, lse = cross_entropy(x, weight, targets, reduction="none", return_lse=True, interpret=True)
        dx, _ = backward(np.ones(4, np.float32), x, weight, targets, lse, reduction="none", interpret=True)
    assert np.isfinite(rows[0]) and np.isnan(rows[1:]).all()
    assert np.isfinite(dx).all()


def test_parts_are_put_together(rng: Any) -> None:
    """As for arrays that are never written twice."""
    parts = [random(rng, (n, 40), bf16) for n in (3, 1, 5)]
    got = stack_kernel(tuple(x.shape for x in parts), bf16)(*parts, interpret=True)
    assert (got == np.concatenate(parts)).all()
    rows = [random(rng, (n,), f32) for n in (4, 2)]
    assert (stack_kernel(((4,), (2,)), f32)(*rows, interpret=True) == np.concatenate(rows)).all()


REAL = [(8192, 131072, 4096), (4096, 128257, 4096), (64, 131072, 4096)]


@pytest.mark.parametrize(
    ("target", "dtype", "shape"),
    [
        pytest.param(
            target, dtype, shape, marks=() if (target, dtype, shape) == ("sm_90a", bf16, REAL[0]) else pytest.mark.slow
        )
        for target in ("sm_90a", "sm_80", "sm_89", "sm_100a", "sm_120a")
        for dtype in (bf16, f32)
        for shape in REAL
    ],
    ids=str,
)
@pytest.mark.sampled(60, "machine code")
def test_no_spills(target: str, dtype: Any, shape: Any) -> None:
    M, V, H = shape
    x, weight, targets, bias = Spec((M, H), dtype), Spec((V, H), dtype), Spec((M,), kd.int64), Spec((V,), f32)
    for b in (None, bias):
        made = cross_entropy.lower(x, weight, targets, bias=b, label_smoothing=0.1, target=target).compile()
        assert made.resources.spills == 0
    column = Spec((M, 1), f32)
    operands = (column, column, Spec((M, 1), kd.int32), Spec((1, V), kd.int32), 0)
    product = kd.library.matmul.lower(x, Spec((H, V), dtype), epilogue=slope(0.1, V), operands=operands, target=target)
    assert product.compile().resources.spills == 0
    if target == "sm_90a" and dtype == bf16:
        arrays = (x, [turned(weight)], [bias, Spec((M,), f32), Spec((), kd.int32)])
        assert product_of(x, weight, bias, target).lower(*arrays, target).compile().resources.spills == 0
    rows = rows_kernel(CrossEntropy(M, V, H, dtype, kd.int64, smoothing=0.1, vocab=V), 4096)
    made = rows.lower(Spec((4096, V), f32), Spec((4096,), kd.int64), target=target).compile()
    assert made.resources.spills == 0


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [None, 384], ids=str)
@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
def test_real_sizes_beside_the_loss(dtype: Any, rows: int | None, rng: Any) -> None:
    M, V, H = 1000, 32003 if dtype == f32 else 32000, 2048  # by exponentials in bfloat16
    x, weight = random(rng, (M, H), dtype), random(rng, (V, H), dtype) * dtype.numpy.type(0.05)
    targets = rng.integers(0, V, M).astype(np.int32)
    options = {"ignore_index": -100, "label_smoothing": 0.0, "reduction": "mean", "vocab_start": None}
    loss, lse, *grads = loss_and_gradients(x, weight, targets, None, options, False, rows)
    exact = expected(x, weight, targets)
    assert abs(loss - exact.loss) < 2e-4 and relative(lse, exact.lse) < 1e-5
    for got, want, size in zip(grads, (exact.dx, exact.dweight), exact.sizes, strict=False):
        assert float(np.abs(got.astype(np.float64) - want).max()) / size < BOUNDS[dtype] + 1e-4
    again = loss_and_gradients(x, weight, targets, None, options, False, rows)[2:]
    assert all((one == other).all() for one, other in zip(grads, again, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1000, 4099, 512), (2048, 32000, 1024)], ids=str)
@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
def test_real_sizes(shape: Any, dtype: Any) -> None:
    for seed in (1, 2):
        run(seed, False, shape, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_many_random_calls(seed: int) -> None:
    for number in range(20):
        run(1000 * seed + number, kd.InterpretParams(seed=number, report_unwritten=True))


X, W, T = np.ones((4, 8), np.float16), np.ones((6, 8), np.float16), np.arange(4)
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"x": X[0]}, "x is an ndarray of shape"),
    ({"x": [1.0]}, "x is a list"),
    ({"x": X.astype(np.float64)}, "x is float64"),
    ({"weight": W.astype(np.float32)}, "x is float16 and weight is float32"),
    ({"weight": W[:, :4]}, r"x is \(4, 8\) and weight is \(6, 4\)"),
    ({"weight": W[:0]}, r"weight is \(0, 8\)"),
    ({"targets": T[:3]}, r"targets is \(3,\)"),
    ({"targets": T.astype(np.float32)}, "targets is float32"),
    ({"targets": T + 3}, "targets has 6"),
    ({"targets": T - 1}, "targets has -1"),
    ({"bias": X[0]}, r"bias is \(8,\)"),
    ({"bias": 1.0}, "bias is a float"),
    ({"ignore_index": 1.5}, "ignore_index=1.5"),
    ({"label_smoothing": 1.5}, "label_smoothing=1.5"),
    ({"label_smoothing": "a"}, "label_smoothing='a'"),
    ({"reduction": "max"}, "reduction='max'"),
    ({"vocab_start": -1}, "vocab_start=-1"),
    ({"vocab_start": True}, "vocab_start=True"),
    ({"vocab_start": 6, "return_lse": True}, "return_lse beside vocab_start"),
    ({"config": 3}, "config is an int"),
]


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case[1])
def test_what_is_refused(case: Any) -> None:
    changed, words = case
    arrays = {name: changed.get(name, x) for name, x in (("x", X), ("weight", W), ("targets", T))}
    options = {name: x for name, x in changed.items() if name not in arrays}
    with pytest.raises((kd.errors.BadCallArgument, kd.errors.BadCallValue), match=words):
        cross_entropy(*arrays.values(), interpret=True, **options)
    if "config" in options or "return_lse" in options:
        return
    with pytest.raises((kd.errors.BadCallArgument, kd.errors.BadCallValue), match=words):
        backward(1.0, *arrays.values(), np.zeros(4, np.float32), interpret=True, **options)


@pytest.mark.parametrize(
    "wrong",
    [
        (lambda lse: backward("a", X, W, T, lse), "dloss is a str"),
        (lambda lse: backward(lse, X, W, T, lse), r"dloss is \(4,\)"),
        (lambda lse: backward(1.0, X, W, T, lse, reduction="none"), "dloss is a float"),
        (lambda lse: backward(1.0, X, W, T, lse[:2]), r"lse is \(2,\)"),
        (lambda lse: backward(1.0, X, W, T, lse, vocab=9), "vocab=9 beside a weight of 6 classes"),
        (lambda lse: backward(1.0, X, W, T, lse, vocab_start=4, vocab=9), "classes 4 to 10 of vocab=9"),
        (lambda lse: backward(1.0, X, W, T, lse, vocab_start=4, label_smoothing=0.1), "label_smoothing beside vocab_start"),
        (lambda lse: backward(1.0, X, W, T, lse, chunk=0), "chunk=0"),
        (lambda lse: combine(lse, T), "partials is an ndarray of shape"),
        (lambda lse: combine(np.zeros((2, 3, 4), np.float32), T), r"partials is \(2, 3, 4\)"),
        (lambda lse: combine(np.zeros((2, 4, 4), np.float32), T[:3]), r"targets is \(3,\)"),
        (lambda lse: combine(np.zeros((2, 4, 4), np.float32), T, label_smoothing=0.1), "label_smoothing without vocab"),
        (lambda lse: combine(np.zeros((2, 4, 4), np.float32), T, vocab=2), "targets has 2"),
    ],
    ids=lambda case: case[1],
)  # fmt: skip
def test_what_is_refused_of_gradients_and_parts(wrong: Any) -> None:
    call, words = wrong
    with pytest.raises((kd.errors.BadCallArgument, kd.errors.BadCallValue), match=words):
        call(np.zeros(4, np.float32))

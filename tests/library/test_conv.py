"""kd.library.conv2d and its gradients against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library.convolutions.general import (
    conv_general,
    dgrad_kernel,
    wgrad_kernel,
    wgrad_parts,
    wgrad_sum_kernel,
)
from kernel_dsl.library.convolutions.kernel import (
    ConvConfig,
    backward,
    boxes,
    config_of,
    conv_kernel,
    reads_turned,
    turn_kernel,
    why_not,
)
from kernel_dsl.library.convolutions.problem import ConvProblem
from kernel_dsl.library.convolutions.wgrad_kernel import ConvWgradConfig, conv_wgrad_kernel, wgrad_config, wgrad_split
from kernel_dsl.stages import target_named
from tests.hopper.helpers import relative

from .conv_reference import Conv, any_conv, arrays

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]

bf16, f16, f32 = kd.bfloat16, kd.float16, kd.float32
Spec = kd.ShapeDtypeStruct
BOUNDS = {2: 4e-3, 4: 1e-6}
LONG_SUMS = 10  # by how much errors of up to 25,000 products in float32 may exceed the bound
WAYS = ("conv2d", "conv2d_dgrad", "conv2d_wgrad")
TYPICAL = Conv((2, 7, 9, 40), 24, (3, 3), padding=1)
SMALL = Conv((1, 3, 4, 8), 8, (2, 2), padding=1, dtype=kd.float16)
CONVS = {
    "typical": TYPICAL,
    "one tap": Conv((2, 5, 6, 33), 70, (1, 1)),
    "far apart": Conv((1, 9, 8, 16), 9, (2, 3), stride=(3, 2), padding=(0, 2), dilation=(2, 3)),
    "groups": Conv((2, 6, 5, 60), 30, (3, 2), stride=2, padding=(2, 1), groups=3),
    "own channels": Conv((1, 6, 6, 12), 24, (3, 3), padding=1, groups=12),
    "one of all": Conv((1, 1, 1, 1), 1, (1, 1)),
    "all of it": Conv((3, 3, 4, 8), 66, (3, 4)),
    "mostly padding": Conv((1, 1, 2, 8), 8, (3, 3), padding=(4, 3), stride=(1, 2)),
    "many pixels": Conv((2, 24, 24, 8), 8, (2, 2), stride=(2, 1)),  # enough for parts of a gradient
}


def ways(conv: Conv, x: Any, w: Any, dout: Any, **how: Any) -> dict[str, Any]:
    """What the functions give, each with what is expected."""
    library, o = kd.library, conv.options | how
    wide = [a.astype(np.float64) for a in (x, w, dout)]
    return {
        "conv2d": (library.conv2d(x, w, **o), conv.forward(wide[0], wide[1])),
        "conv2d_dgrad": (library.conv2d_dgrad(dout, w, conv.x, **o), conv.dgrad(wide[2], wide[1])),
        "conv2d_wgrad": (library.conv2d_wgrad(x, dout, conv.taps, **o), conv.wgrad(wide[0], wide[2])),
    }


def compare(conv: Conv, rng: Any, interpret: Any, anyhow: bool = True, times: float = 1) -> None:
    """`times`: by how much errors may exceed the bounds, as those of long sums do."""
    for name, (got, expected) in ways(conv, *arrays(conv, rng, anyhow), interpret=interpret).items():
        assert got.shape == expected.shape and got.dtype == conv.dtype.numpy, name
        assert relative(got.astype(np.float64), expected) <= times * BOUNDS[got.dtype.itemsize], f"{name}: {conv}"


@pytest.mark.parametrize("dtype", [f16, bf16, f32], ids=str)
@pytest.mark.parametrize("name", CONVS)
@pytest.mark.sampled(222)
def test_sizes(name: str, dtype: Any, interpret: Any, rng: Any) -> None:
    compare(replace(CONVS[name], dtype=dtype), rng, interpret)


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.sampled(336)
def test_random_convolutions(seed: int, interpret: Any) -> None:
    rng = np.random.default_rng(seed)
    compare(any_conv(rng), rng, interpret)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_many_random_convolutions(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    for number in range(20):
        compare(any_conv(rng), rng, kd.InterpretParams(seed=number, report_unwritten=True))


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
@pytest.mark.parametrize(
    "conv, config",
    [
        (Conv((3, 9, 11, 72), 40, (3, 3), padding=1), ConvConfig((2, 8, 8), 64, 3)),
        (Conv((9, 5, 6, 64), 200, (2, 3), padding=(0, 2), dilation=(2, 1)), ConvConfig((8, 4, 4), 192, 2)),
        (Conv((1, 20, 9, 8), 136, (3, 1), padding=(3, 0)), ConvConfig((1, 16, 8), 128, 4, consumers=1)),
        (Conv((1, 1, 150, 16), 24, (1, 4)), ConvConfig((1, 1, 128), 64, 2, epilogue_n=32)),
        (Conv((2, 9, 11, 24), 152, (3, 3), padding=1), ConvConfig((2, 8, 8), 144, 2, epilogue_n=16, cluster=2)),
        (Conv((3, 9, 11, 72), 40, (3, 3), padding=1), ConvConfig((2, 8, 8), 64, 3, cluster=2)),
        (Conv((5, 9, 11, 40), 72, (3, 3), padding=1), ConvConfig((4, 8, 8), 80, 2, epilogue_n=16, cluster=2)),
        (Conv((3, 9, 11, 96), 40, (3, 3), padding=1), ConvConfig((2, 8, 8), 64, 4, depth=32)),
        (Conv((5, 9, 11, 24), 104, (2, 3)), ConvConfig((4, 8, 8), 96, 3, epilogue_n=32, cluster=2, depth=32)),
    ],
    ids=[
        "images", "small boxes", "one consumer", "one row", "narrow parts", "cluster", "many pixels", "short stages",
        "short stages of a cluster",
    ],
)  # fmt: skip
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.sampled(66)
def test_boxes_of_pixels(conv: Conv, config: ConvConfig, turned: bool, dtype: Any, interpret: Any, rng: Any) -> None:
    """Hopper's kernel on two multiprocessors, each with several tiles: of pixels that no box divides."""
    conv = replace(conv, dtype=dtype)
    p = problem_of(conv)
    x, w, _ = arrays(conv, rng, anyhow=False)
    lying = np.ascontiguousarray(w[:, ::-1, ::-1].transpose(3, 1, 2, 0)) if turned else w
    got = conv_kernel(p, config, 2, turned)(x, lying, interpret=interpret)
    assert relative(got.astype(np.float64), conv.forward(x.astype(np.float64), w.astype(np.float64))) <= BOUNDS[2]


WGRADS = [
    (Conv((3, 9, 11, 72), 40, (3, 3), padding=1), ConvWgradConfig((1, 8, 8), 64, 128, 3, 1), 1),
    (Conv((9, 5, 6, 64), 200, (2, 3), padding=(0, 2), dilation=(2, 1)), ConvWgradConfig((4, 4, 4), 128, 64, 2), 3),
    (Conv((1, 20, 9, 8), 136, (3, 1), padding=(3, 0)), ConvWgradConfig((1, 16, 4), 128, 192, 4), 2),
    (Conv((1, 1, 150, 16), 24, (1, 4)), ConvWgradConfig((1, 1, 64), 256, 128, 2), 1),
    (Conv((2, 9, 11, 72), 200, (2, 2), padding=1), ConvWgradConfig((1, 8, 8), 128, 64, 3, cluster=2), 2),
    (Conv((2, 9, 11, 72), 40, (3, 3), padding=1), ConvWgradConfig((1, 8, 8), 128, 72, 3, together=3), 2),
    (Conv((2, 9, 11, 136), 24, (2, 3), padding=1), ConvWgradConfig((1, 8, 8), 64, 48, 2, 1, together=4), 1),
]


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
@pytest.mark.parametrize(
    "case", WGRADS, ids=["one consumer", "parts", "few channels", "one row", "cluster", "taps", "parts of channels"]
)
@pytest.mark.sampled(57)
def test_gradients_of_filters(case: Any, dtype: Any, interpret: Any, rng: Any) -> None:
    """Hopper's kernel: pixels that no box divides, panels that are not full, more boxes than parts have in common."""
    conv, config, parts = replace(case[0], dtype=dtype), *case[1:]
    x, _, dout = arrays(conv, rng, anyhow=False)
    got = conv_wgrad_kernel(problem_of(conv), config, parts)(x, dout, interpret=interpret)
    got = got.astype(np.float64).sum(0) if parts > 1 else got.astype(np.float64)
    assert relative(got, conv.wgrad(x.astype(np.float64), dout.astype(np.float64))) <= BOUNDS[2]


@pytest.mark.parametrize("shape", [(64, 256, 56), (64, 512, 28), (16, 512, 64), (8, 64, 112)], ids=str)
@pytest.mark.parametrize("cluster", [1, 2])
@pytest.mark.sampled(60, "machine code")
def test_gradients_of_filters_spill_nothing(shape: Any, cluster: int) -> None:
    images, channels, size = shape
    p = problem_of(Conv((images, size, size, channels), channels, (3, 3), padding=1, dtype=bf16))
    config = wgrad_config(p)
    parts = wgrad_split(p, config, 132)
    cluster = cluster if config.tiles(p)[0] % cluster == 0 else 1
    kernel = conv_wgrad_kernel(p, replace(config, cluster=cluster), parts)
    made = kernel.lower(Spec(p.x_shape, bf16), Spec(p.out_shape, bf16), target="sm_90a").compile()
    assert made.resources.spills == 0 and not [r for r in made.remarks if "C75" in r.text], made.remarks
    tiles, steps = config.tiles(p)[2], config.steps(p)
    waves = -(-tiles * parts // 132)
    assert tiles * parts / (132 * waves) > 0.75 and steps >= 8 * parts, "full waves, and parts that are worth it"


def problem_of(conv: Conv) -> ConvProblem:
    s, p, d = (v if isinstance(v, tuple) else (v, v) for v in (conv.stride, conv.padding, conv.dilation))
    return ConvProblem(*conv.x, conv.filters, conv.taps, s, p, d, conv.groups, conv.dtype)


@pytest.mark.parametrize("padding", [0, 1, 2, (4, 3)], ids=str)
@pytest.mark.sampled(21)
def test_gradients_by_turned_filters(padding: Any, interpret: Any, rng: Any) -> None:
    """More padding than a filter reaches is less than none for the gradient."""
    conv = Conv((2, 5, 6, 16), 8, (3, 2), padding=padding, dtype=f16)
    p = problem_of(conv)
    assert why_not(backward(p), target_named("sm_90a"), ()) == "" and backward(backward(p)) == p
    assert backward(p).out_shape == conv.x
    _, w, dout = arrays(conv, rng, anyhow=False)
    expected = conv.dgrad(dout.astype(np.float64), w.astype(np.float64))
    beside = np.concatenate([w[:1].ravel()[:1], w.ravel()])[1:].reshape(w.shape)  # TMA can't load it: it is copied
    assert reads_turned(config_of(backward(p)), w) and not reads_turned(config_of(backward(p)), beside)
    for filters in (w, beside):
        got = kd.library.conv2d_dgrad(dout, filters, conv.x, interpret=interpret, **conv.options)
        assert relative(got.astype(np.float64), expected) <= BOUNDS[2]


def test_what_hopper_takes(rng: Any) -> None:
    machine, good = target_named("sm_90a"), replace(TYPICAL, dtype=bf16)
    x, w, dout = arrays(good, rng, anyhow=False)
    assert why_not(problem_of(good), machine, (x, w, None)) == ""
    assert why_not(problem_of(good), target_named("sm_80"), (x, w, None)).endswith("no wgmma")
    assert "TMA" in why_not(problem_of(good), machine, (x[..., 1:], w, None))
    assert "TMA" in why_not(problem_of(good), machine, (x, w, dout.reshape(-1)[1:]))
    assert "TMA" in why_not(problem_of(good), machine, (x[:0], w, None))
    for change in ({"dtype": f32}, {"stride": 2}, {"groups": 2}, {"filters": 9}):
        assert why_not(problem_of(replace(good, **change)), machine, ()) != ""


def test_boxes() -> None:
    """None is wasted on sizes that have a factor of 4."""
    assert boxes(described(bf16)) == (2, 8, 8)
    assert boxes(replace(described(bf16), height=28, width=28)) == (8, 4, 4)
    assert boxes(replace(described(bf16), batch=1, height=1, width=500, padding=(1, 1))) == (1, 1, 128)
    widths = {8: 64, 64: 64, 72: 80, 100: 112, 128: 128, 192: 192, 200: 208, 256: 256, 264: 144, 320: 160, 512: 256}
    made = {n: config_of(replace(described(bf16), filters=n)) for n in widths}
    assert {n: t.tile_n for n, t in made.items()} == widths
    assert all(t.tile_m == (256 if n <= 144 else 128) for n, t in made.items())
    cut = replace(described(bf16), channels=264, filters=264)
    assert (config_of(cut).tile_m, config_of(cut).cluster) == (256, 2)
    assert config_of(replace(described(bf16), filters=64, batch=1)).tile_m == 128  # there would be few tiles


@pytest.mark.parametrize("images, channels, size", [(64, 256, 56), (64, 512, 28), (16, 512, 64), (64, 96, 56)])
@pytest.mark.parametrize("filters", [64, 128, 192, 512, 96, 232, 264])
@pytest.mark.sampled(60, "machine code")
def test_no_spills_of_hopper(images: int, channels: int, size: int, filters: int) -> None:
    p = ConvProblem(images, size, size, channels, filters, (3, 3), (1, 1), (1, 1), (1, 1), 1, bf16)
    x, w, config = Spec(p.x_shape, bf16), Spec(p.w_shape, bf16), config_of(p)
    lying = Spec((p.channels, *p.taps, p.filters), bf16)
    for turned in (False, True) if reads_turned(config, lying) else (False,):
        stages = conv_kernel(p, config, 132, turned).lower(x, lying if turned else w, target="sm_90a")
        made = stages.compile()
        assert made.resources.spills == 0 and not [r for r in made.remarks if "C75" in r.text]
        boxes = kd.cdiv(config.tile_n * 2, kd.find_swizzle(config.tile_n * 16)) if turned else 1
        assert stages.ptx.count("cp.async.bulk.tensor.4d.shared") == 1 + boxes  # a stage is one box of each
    assert turn_kernel(p).lower(w, target="sm_90a").compile().resources.spills == 0


def test_what_lies_outside_is_not_multiplied() -> None:
    """Infinite numbers of another group, and those that only padding meets, leave no trace."""
    conv = Conv((1, 3, 3, 6), 6, (2, 2), padding=1, groups=2, dtype=bf16)
    x, w, dout = arrays(conv, np.random.default_rng(3), anyhow=False)
    clean = ways(conv, x, w, dout, interpret=True)
    for a in (x, dout):
        a[..., 3:] = np.inf
    w[3:] = np.inf
    with np.errstate(invalid="ignore"):
        got = ways(conv, x, w, dout, interpret=True)
    for name, channels in (("conv2d", np.s_[..., :3]), ("conv2d_dgrad", np.s_[..., :3]), ("conv2d_wgrad", np.s_[:3])):
        assert np.array_equal(got[name][0][channels], clean[name][0][channels]), name


def test_given_results(rng: Any) -> None:
    x, w, dout = arrays(SMALL, rng)
    outs = [np.full(shape, np.nan, np.float16) for shape in (SMALL.result(), SMALL.x, SMALL.w)]
    o = SMALL.options | {"interpret": True}
    got = (
        kd.library.conv2d(x, w, out=outs[0], **o),
        kd.library.conv2d_dgrad(dout, w, SMALL.x, out=outs[1], **o),
        kd.library.conv2d_wgrad(x, dout, 2, out=outs[2], **o),
    )
    for mine, given, (plain, _) in zip(got, outs, ways(SMALL, x, w, dout, interpret=True).values(), strict=True):
        assert mine is given and np.array_equal(given, plain)


def test_results_lie_apart() -> None:
    x, w = np.ones((1, 4, 4, 8), np.float16), np.ones((8, 1, 1, 8), np.float16)
    for name, args in (("conv2d", (x, w)), ("conv2d_dgrad", (x, w, x.shape)), ("conv2d_wgrad", (w, x, 1))):
        with pytest.raises(kd.errors.BadCallValue, match="out"):
            getattr(kd.library, name)(*args, out=args[0], interpret=True)


def test_no_images() -> None:
    conv = Conv((0, 7, 7, 8), 5, (3, 3))
    for got, expected in ways(conv, *arrays(conv, np.random.default_rng(0), False), interpret=True).values():
        assert got.shape == expected.shape and not got.any()


def described(dtype: Any, groups: int = 1, stride: int = 1) -> ConvProblem:
    return ConvProblem(64, 56, 56, 256, 256, (3, 3), (stride, stride), (1, 1), (1, 1), groups, dtype)


@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
@pytest.mark.parametrize("groups", [1, 256])
@pytest.mark.parametrize("target", ["sm_90a", "sm_80", "sm_100a", "sm_120a"])
@pytest.mark.sampled(60, "machine code")
def test_no_spills(dtype: Any, groups: int, target: str) -> None:
    p = described(dtype, groups, 2)
    x, w, dout = (Spec(shape, dtype) for shape in (p.x_shape, p.w_shape, p.out_shape))
    partial = Spec((4, *p.w_shape), f32)
    for kernel, args in (
        (conv_general(p), (x, w)),
        (dgrad_kernel(p), (dout, w)),
        (wgrad_kernel(p, 4), (x, dout)),
        (wgrad_kernel(p, 1), (x, dout)),
        (wgrad_sum_kernel(p, 4), (partial,)),
    ):
        assert kernel.lower(*args, target=target).compile().resources.spills == 0, kernel.name


def test_parts_of_a_gradient() -> None:
    """There are parts where tiles are fewer than multiprocessors, and none where they are enough."""
    assert wgrad_parts(described(bf16), 132) == 1
    few = ConvProblem(64, 56, 56, 64, 64, (3, 3), (1, 1), (1, 1), (1, 1), 1, bf16)
    assert wgrad_parts(few, 132) == 14
    assert wgrad_parts(replace(few, batch=0), 132) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [bf16, f16, f32], ids=str)
@pytest.mark.parametrize(
    "conv",
    [
        Conv((1, 56, 56, 256), 256, (3, 3), padding=1),
        Conv((2, 28, 28, 512), 512, (3, 3), padding=1),
        Conv((1, 64, 64, 512), 512, (3, 3), padding=1),
        Conv((3, 57, 35, 100), 77, (5, 3), stride=(2, 1), padding=(2, 0), dilation=(1, 2)),
        Conv((4, 33, 33, 96), 96, (3, 3), padding=1, groups=96),
        Conv((4, 224, 224, 3), 64, (7, 7), stride=2, padding=3),
    ],
    ids=str,
)
def test_real_sizes(conv: Conv, dtype: Any, rng: Any) -> None:
    conv = replace(conv, dtype=dtype)
    for name, (got, expected) in ways(conv, *arrays(conv, rng, False), interpret=False).items():
        bound = BOUNDS[got.dtype.itemsize] * (LONG_SUMS if dtype == f32 else 1)
        assert relative(got.astype(np.float64), expected) <= bound, name


X, W, DOUT = np.ones((2, 6, 7, 8), np.float32), np.ones((4, 3, 3, 8), np.float32), np.ones((2, 4, 5, 4), np.float32)


@pytest.mark.parametrize(
    "case",
    [
        ((X[0], W), {}, "x is an ndarray of shape"),
        ((X, [1]), {}, "w is a list"),
        ((X.astype(np.float64), W), {}, "x is float64"),
        ((X.astype(np.int8), W), {}, "x is int8"),
        ((X, W.astype(np.float16)), {}, "x is float32 and w is float16"),
        ((X, W[..., :4]), {}, r"x is \(2, 6, 7, 8\) and w is \(4, 3, 3, 4\)"),
        ((X, W), {"groups": 2}, "in 2 groups"),
        ((X, W), {"groups": 3}, "groups=3 of 8 channels and 4 filters"),
        ((X, W), {"groups": 0}, "groups=0"),
        ((X, W), {"groups": 1.0}, "groups=1.0"),
        ((X, W), {"padding": -1}, "padding=-1"),
        ((X, W), {"padding": (1, -1)}, r"padding=\(1, -1\)"),
        ((X, W), {"padding": "same"}, "padding='same'"),
        ((X, W), {"padding": 2**31 - 1}, "fewer than 2"),
        ((X, W), {"stride": 0}, "stride=0"),
        ((X, W), {"stride": (1, 2, 3)}, r"stride=\(1, 2, 3\)"),
        ((X, W), {"stride": (1, None)}, r"stride=\(1, None\)"),
        ((X, W), {"dilation": 0}, "dilation=0"),
        ((X, W), {"dilation": True}, "dilation=True"),
        ((X, W), {"dilation": 3}, r"reach over \(7, 7\)"),
        ((X[:, :2], W), {}, r"reach over \(3, 3\) of images of \(2, 7\)"),
        ((X, W[:, :0]), {}, "w has filters and taps"),
        ((X[..., :0], W[..., :0]), {}, "they have channels"),
    ],
    ids=lambda case: case[2],
)
def test_what_is_refused(case: Any) -> None:
    args, options, words = case
    with pytest.raises((kd.errors.BadCallArgument, kd.errors.BadCallValue), match=words):
        kd.library.conv2d(*args, interpret=True, **options)


@pytest.mark.parametrize(
    "case",
    [
        ("conv2d_dgrad", (DOUT, W, (2, 6, 7)), {}, r"input_size=\(2, 6, 7\)"),
        ("conv2d_dgrad", (DOUT, W, 7), {}, "input_size=7"),
        ("conv2d_dgrad", (DOUT, W, (2, 6, -7, 8)), {}, "input_size="),
        ("conv2d_dgrad", (DOUT, W, (2, 6, 7.0, 8)), {}, "input_size="),
        ("conv2d_dgrad", (DOUT, W, (2, 6, 8, 8)), {}, r"dout is \(2, 4, 5, 4\)"),
        ("conv2d_dgrad", (DOUT, W, (2, 6, 7, 8)), {"stride": 2}, r"dout is \(2, 4, 5, 4\)"),
        ("conv2d_dgrad", (DOUT, W, (2, 6, 7, 9)), {}, "w is"),
        ("conv2d_dgrad", (DOUT.astype(np.float16), W, (2, 6, 7, 8)), {}, "dout is float16 and w is float32"),
        ("conv2d_wgrad", (X, DOUT, "3"), {}, "kernel_size='3'"),
        ("conv2d_wgrad", (X, DOUT, 0), {}, "kernel_size=0"),
        ("conv2d_wgrad", (X, DOUT, (3, 4)), {}, r"dout is \(2, 4, 5, 4\)"),
        ("conv2d_wgrad", (X, DOUT, 3), {"groups": 3}, "groups=3 of 8 channels"),
        ("conv2d_wgrad", (X, DOUT[..., 0], 3), {}, "dout is an ndarray of shape"),
        ("conv2d_wgrad", (X, DOUT[:1], 3), {}, r"dout is \(1, 4, 5, 4\)"),
    ],
    ids=lambda case: f"{case[0]} {case[3]}",
)
def test_what_gradients_refuse(case: Any) -> None:
    name, args, options, words = case
    with pytest.raises((kd.errors.BadCallArgument, kd.errors.BadCallValue), match=words):
        getattr(kd.library, name)(*args, interpret=True, **options)

"""kd.library.conv2d and its gradients against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.library.conv_general import conv_general, dgrad_kernel, wgrad_kernel, wgrad_parts, wgrad_sum_kernel
from kernel_dsl.library.conv_problem import ConvProblem

from .conv_reference import Conv, any_conv, arrays
from .helpers import relative

pytestmark = [pytest.mark.tma, pytest.mark.wgmma]

bf16, f16, f32 = kd.bfloat16, kd.float16, kd.float32
Spec = kd.ShapeDtypeStruct
BOUNDS = {2: 4e-3, 4: 1e-6}
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


def compare(conv: Conv, rng: Any, interpret: Any, anyhow: bool = True) -> None:
    for name, (got, expected) in ways(conv, *arrays(conv, rng, anyhow), interpret=interpret).items():
        assert got.shape == expected.shape and got.dtype == conv.dtype.numpy, name
        assert relative(got.astype(np.float64), expected) <= BOUNDS[got.dtype.itemsize], f"{name}: {conv}"


@pytest.mark.parametrize("dtype", [f16, bf16, f32], ids=str)
@pytest.mark.parametrize("name", CONVS)
@pytest.mark.sampled(4)
def test_sizes(name: str, dtype: Any, interpret: Any, rng: Any) -> None:
    compare(replace(CONVS[name], dtype=dtype), rng, interpret)


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.sampled(2)
def test_random_convolutions(seed: int, interpret: Any) -> None:
    rng = np.random.default_rng(seed)
    compare(any_conv(rng), rng, interpret)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_many_random_convolutions(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    for number in range(20):
        compare(any_conv(rng), rng, kd.InterpretParams(seed=number))


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


def test_no_images() -> None:
    conv = Conv((0, 7, 7, 8), 5, (3, 3))
    for got, expected in ways(conv, *arrays(conv, np.random.default_rng(0), False), interpret=True).values():
        assert got.shape == expected.shape and not got.any()


def described(dtype: Any, groups: int = 1, stride: int = 1) -> ConvProblem:
    return ConvProblem(64, 56, 56, 256, 256, (3, 3), (stride, stride), (1, 1), (1, 1), groups, dtype)


@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
@pytest.mark.parametrize("groups", [1, 256])
@pytest.mark.parametrize("target", ["sm_90a", "sm_80", "sm_100a", "sm_120a"])
@pytest.mark.sampled(3)
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
        Conv((4, 56, 56, 256), 256, (3, 3), padding=1),
        Conv((8, 28, 28, 512), 512, (3, 3), padding=1),
        Conv((2, 64, 64, 512), 512, (3, 3), padding=1),
        Conv((3, 57, 35, 100), 77, (5, 3), stride=(2, 1), padding=(2, 0), dilation=(1, 2)),
        Conv((4, 33, 33, 96), 96, (3, 3), padding=1, groups=96),
        Conv((4, 224, 224, 3), 64, (7, 7), stride=2, padding=3),
    ],
    ids=str,
)
def test_real_sizes(conv: Conv, dtype: Any, rng: Any) -> None:
    conv = replace(conv, dtype=dtype)
    for name, (got, expected) in ways(conv, *arrays(conv, rng, False), interpret=False).items():
        bound = BOUNDS[got.dtype.itemsize] * (10 if dtype == f32 else 1)  # sums of up to 25000 products in float32
        assert relative(got.astype(np.float64), expected) <= bound, name


X, W, DOUT = np.ones((2, 6, 7, 8), np.float32), np.ones((4, 3, 3, 8), np.float32), np.ones((2, 4, 5, 4), np.float32)


@pytest.mark.parametrize(
    "case",
    [
        ((X[0], W), {}, "x is a ndarray of shape"),
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
        ("conv2d_wgrad", (X, DOUT[..., 0], 3), {}, "dout is a ndarray of shape"),
        ("conv2d_wgrad", (X, DOUT[:1], 3), {}, r"dout is \(1, 4, 5, 4\)"),
    ],
    ids=lambda case: f"{case[0]} {case[3]}",
)
def test_what_gradients_refuse(case: Any) -> None:
    name, args, options, words = case
    with pytest.raises((kd.errors.BadCallArgument, kd.errors.BadCallValue), match=words):
        getattr(kd.library, name)(*args, interpret=True, **options)

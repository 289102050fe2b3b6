"""`kd.library.conv2d` and its gradients as plain functions."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from kernel_dsl.boundary import checks_itself, public
from kernel_dsl.stages import target_named

from .conv_general import conv_general, dgrad_kernel, wgrad_kernel, wgrad_parts, wgrad_sum_kernel
from .conv_kernel import backward, config_of, conv_kernel, turn_kernel, why_not
from .conv_problem import ConvCheck, ConvProblem
from .conv_wgrad_kernel import conv_wgrad_kernel, wgrad_config, wgrad_split
from .differentiable import host_of
from .matmul import check_apart
from .product_derivatives import conv2d as differentiable

SHAPES = {"x": "(batch, height, width, channels)", "w": "(filters, rows, columns, channels / groups)"}
DOUT = "(batch, out height, out width, filters)"
OWN = ("stride", "padding", "dilation", "groups")

_log = logging.getLogger("kernel_dsl")


def _kernel(name: str, p: ConvProblem, x: Any, w: Any, out: Any) -> Any:
    """The kernel `(x, w) -> out` for a problem and arrays: Hopper's where it can take them."""
    machine = target_named(None)
    why = why_not(p, machine, (x, w, out))
    if not why:
        return conv_kernel(p, config_of(p), machine.limits.multiprocessors)
    _log.info("%s: %s; using the general kernel", name, why)
    return conv_general(p)


@partial(public, name="conv2d")
@checks_itself(*OWN)
def conv2d(
    x: Any,
    w: Any,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    out: Any = None,
    stream: Any = None,
    interpret: Any = None,
) -> Any:
    """The convolution (without turning filters, as is usual) of images x (N, H, W, C) with w (F, R, S, C / groups), NHWC.

    The result is (N, H', W', F) in the dtype of both, float16, bfloat16 or float32; H' = (H + 2 padding - dilation (R - 1) - 1)
    // stride + 1, and W' likewise. Element (n, i, j, f) is the sum over taps (r, s) and channels c of its group of
    x[n, i stride + r dilation - padding, j stride + s dilation - padding, c] * w[f, r, s, c], where x is zero outside. `stride`,
    `padding`, `dilation`: an int, or a pair for height and width. Sums are float32, and float32 products exact. Arrays lie
    in any strides; strides, groups and the like go to a slower kernel, with a log line. `out`,
    `stream`, `interpret`: as for kernels. Raises `BadCallArgument` for wrong arrays,
    `BadCallValue` for sizes that don't fit.
    """
    check = ConvCheck("conv2d")
    shapes = check.array("x", x, SHAPES["x"]), check.array("w", w, SHAPES["w"])
    p = check.problem(*shapes, check.same(("x", x), ("w", w)), stride, padding, dilation, groups)
    if host := host_of(x, w):
        own = {"stride": p.stride, "padding": p.padding, "dilation": p.dilation, "groups": p.groups}
        how = {"out": out, "stream": stream, "interpret": interpret}
        return differentiable(host, x, w, own, p.out_shape, how)
    if out is not None:
        check_apart(out, {"x": x, "w": w}, "conv2d")
    return _kernel("conv2d", p, x, w, out)(x, w, out=out, stream=stream, interpret=interpret)


@partial(public, name="conv2d_dgrad")
@checks_itself("input_size", *OWN)
def conv2d_dgrad(
    dout: Any,
    w: Any,
    input_size: Any,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    out: Any = None,
    stream: Any = None,
    interpret: Any = None,
) -> Any:
    """The gradient of x in `conv2d(x, w)`, of shape `input_size` (N, H, W, C), where dout (N, H', W', F) is that of the result.

    Options and errors as there; dout and w have one dtype, which the gradient has, too.
    """
    check = ConvCheck("conv2d_dgrad")
    given, filters = check.array("dout", dout, DOUT), check.array("w", w, SHAPES["w"])
    size = check.sizes("input_size", input_size, f"the shape of x: {SHAPES['x']}")
    p = check.problem(size, filters, check.same(("dout", dout), ("w", w)), stride, padding, dilation, groups)
    check.gradient(p, given)
    how = {"stream": stream, "interpret": interpret}
    if out is not None:
        check_apart(out, {"dout": dout, "w": w}, "conv2d_dgrad")
    if dout.shape[0] and p.stride == (1, 1) and not why_not(backward(p), target_named(None), (dout, out)):
        return _kernel("conv2d_dgrad", backward(p), dout, None, out)(dout, turn_kernel(p)(w, **how), out=out, **how)
    return dgrad_kernel(p)(dout, w, out=out, **how)


@partial(public, name="conv2d_wgrad")
@checks_itself("kernel_size", *OWN)
def conv2d_wgrad(
    x: Any,
    dout: Any,
    kernel_size: Any,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    out: Any = None,
    stream: Any = None,
    interpret: Any = None,
) -> Any:
    """The gradient of w in `conv2d(x, w)`, (F, R, S, C / groups), where dout (N, H', W', F) is that of the result.

    `kernel_size`: R and S, or one int for both. Options and errors as there; x and dout have one dtype, which the gradient has,
    too. The same inputs always give the same bits.
    """
    check = ConvCheck("conv2d_wgrad")
    images, given = check.array("x", x, SHAPES["x"]), check.array("dout", dout, DOUT)
    taps, count = check.pair("kernel_size", kernel_size, 1), check.whole("groups", groups, 1)
    filters = given[3], *taps, images[3] // count
    p = check.problem(images, filters, check.same(("x", x), ("dout", dout)), stride, padding, dilation, groups)
    check.gradient(p, given)
    how = {"stream": stream, "interpret": interpret}
    if out is not None:
        check_apart(out, {"x": x, "dout": dout}, "conv2d_wgrad")
    kernel, parts = _wgrad(p, x, dout)
    if parts == 1:
        return kernel(x, dout, out=out, **how)
    return wgrad_sum_kernel(p, parts)(kernel(x, dout, **how), out=out, **how)


def _wgrad(p: ConvProblem, x: Any, dout: Any) -> tuple[Any, int]:
    """The kernel `(x, dout) -> dw`, or with parts their sums: Hopper's where it can take the arrays."""
    machine = target_named(None)
    why = why_not(p, machine, (x, dout)) if p.pixels else "there are no pixels"
    if not why:
        config = wgrad_config(p)
        parts = wgrad_split(p, config, machine.limits.multiprocessors)
        return conv_wgrad_kernel(p, config, parts), parts
    _log.info("conv2d_wgrad: %s; using the general kernel", why)
    parts = wgrad_parts(p, machine.limits.multiprocessors)
    return wgrad_kernel(p, parts), parts

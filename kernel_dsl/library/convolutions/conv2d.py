"""`kd.library.conv2d` and its gradients as plain functions."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import Any

from kernel_dsl.boundary import checks_itself, public
from kernel_dsl.stages import target_named

from ..differentiable import host_of
from ..latest import UNSEEN, Latest, Launch, launching, seen_launching
from ..products.matmul import check_apart
from .derivatives import conv2d as differentiable
from .general import conv_general, dgrad_kernel, wgrad_kernel, wgrad_parts, wgrad_sum_kernel
from .kernel import backward, box_of_any, config_of, conv_kernel, reads_turned, turn_kernel, why_not
from .problem import NO_IMAGES, ConvCheck, ConvProblem, opened
from .wgrad_kernel import MOST_PARTS, PANEL, conv_wgrad_kernel, wgrad_config, wgrad_split

SHAPES = {"x": "(batch, height, width, channels)", "w": "(filters, rows, columns, channels / groups)"}
DOUT = "(batch, out height, out width, filters)"
OWN = ("stride", "padding", "dilation", "groups")

LATEST = {name: Latest() for name in ("conv2d", "conv2d_dgrad", "conv2d_wgrad")}

_log = logging.getLogger("kernel_dsl")


def _repeated(
    name: str, options: tuple[Any, ...], inputs: dict[str, Any], out: Any, stream: Any, interpret: Any
) -> tuple[Any, Any]:
    """(the result of a call that resembles an earlier one, or `UNSEEN`; the key of such calls)."""
    if out is not None:
        check_apart(out, inputs, name)
    try:
        like = repr(options)
    except Exception:  # the slow path refuses the option
        return UNSEEN, None
    if interpret is not None:
        return UNSEEN, like
    return LATEST[name].call((like,), list(inputs.values()), out, stream), like


def _run(name: str, like: Any, plan: Any, inputs: list[Any], out: Any, stream: Any, interpret: Any) -> Any:
    """The result of `plan(launch, *inputs, out)`. The plan is kept for later calls like this one."""
    LATEST[name].keep((like,), inputs, lambda inputs, out, stream: plan(seen_launching(stream), *inputs, out))
    return plan(launching(stream, interpret), *inputs, out)


def _kernel(name: str, p: ConvProblem, x: Any, w: Any, out: Any, turned: bool = False) -> Any:
    """The kernel `(x, w) -> out` for a problem and arrays: Hopper's if it can take them. `turned`: as of `ConvTiling`."""
    machine = target_named(None)
    why = why_not(p, machine, (x, w, out))
    general = opened(p, name, bool(why))
    if not why:
        config = config_of(p)
        if general is not None:
            config = replace(config, box=box_of_any(p, general, config.tile_m))
        return conv_kernel(general or p, config, machine.limits.multiprocessors, turned)
    _log.info("%s: %s; using the general kernel", name, why)
    return conv_general(general or p)


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
    """The convolution (a correlation, as is usual in networks) of images x (N, H, W, C) with w (F, R, S, C / groups).

    The result is (N, H', W', F) in the dtype of both, float16, bfloat16 or float32; H' = (H + 2 padding - dilation
    (R-1) - 1) // stride + 1, and W' likewise. Element (n, i, j, f) is the sum over taps (r, s) and channels c of its
    group of x[n, i stride + r dilation - padding, j stride + s dilation - padding, c] * w[f, r, s, c], where x is zero
    outside. `stride`, `padding`, `dilation`: an int in pixels, or a pair for height and width. Sums are float32, and
    float32 products are exact. Arrays have any strides in memory. Strides other than 1, groups and float32 use a slower
    kernel, and log the reason. `out`, `stream`, `interpret`: as for kernels.

    Raises `BadCallArgument` for wrong arrays, `BadCallValue` for sizes that don't fit. The fast kernel is an implicit
    matrix product (Chetlur et al., 2014): TMA (PTX ISA 9.7.9.27) loads boxes of pixels, and wgmma (9.7.15) multiplies
    them.
    """
    host, own, like = host_of(x, w), (stride, padding, dilation, groups), ""
    if not host:
        made, like = _repeated("conv2d", own, {"x": x, "w": w}, out, stream, interpret)
        if made is not UNSEEN:
            return made
    check = ConvCheck("conv2d")
    shapes = check.array("x", x, SHAPES["x"]), check.array("w", w, SHAPES["w"])
    p = check.problem(*shapes, check.same(("x", x), ("w", w)), stride, padding, dilation, groups)
    if host:
        return differentiable(host, x, w, p, {"out": out, "stream": stream, "interpret": interpret})
    kernel = _kernel("conv2d", p, x, w, out)
    return _run("conv2d", like, lambda launch, x, w, out: launch(kernel, (x, w), out), [x, w], out, stream, interpret)


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
    """The gradient of x in `conv2d(x, w)`, of shape `input_size` (N, H, W, C); dout (N, H', W', F) is the result's gradient.

    dout, w (F, R, S, C / groups) and the gradient have one dtype. Options, errors and kernels are those of `conv2d`.
    """
    own = stride, padding, dilation, groups, input_size
    made, like = _repeated("conv2d_dgrad", own, {"dout": dout, "w": w}, out, stream, interpret)
    if made is not UNSEEN:
        return made
    check = ConvCheck("conv2d_dgrad")
    given, filters = check.array("dout", dout, DOUT), check.array("w", w, SHAPES["w"])
    size = check.sizes("input_size", input_size, f"the shape of x: {SHAPES['x']}")
    p = check.problem(size, filters, check.same(("dout", dout), ("w", w)), stride, padding, dilation, groups)
    check.gradient(p, given)
    if dout.shape[0] and p.stride == (1, 1) and not why_not(backward(p), target_named(None), (dout, out)):
        images, rests = backward(p), ()
        turned = reads_turned(config_of(images), w)
        kernel = _kernel("conv2d_dgrad", images, dout, None, out, turned)
        turn = None if turned else turn_kernel(replace(p, **NO_IMAGES))
    else:
        # the extents of views of w give the kernel for any images the sizes that dout does not show
        general = opened(p, "conv2d_dgrad") if max(p.rests) < p.filters else None
        rests = () if general is None else p.rests
        kernel, turn = dgrad_kernel(general or p), None

    def plan(launch: Launch, dout: Any, w: Any, out: Any) -> Any:
        views = [dout[0, 0, 0, : n + 1] for n in rests] if rests else ()
        return launch(kernel, (dout, w if turn is None else launch(turn, (w,)), *views), out)

    return _run("conv2d_dgrad", like, plan, [dout, w], out, stream, interpret)


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
    """The gradient of w in `conv2d(x, w)`, (F, R, S, C / groups); dout (N, H', W', F) is the result's gradient.

    `kernel_size`: R and S, or one int for both. x (N, H, W, C), dout and the gradient have one dtype. Options, errors
    and instructions are those of `conv2d`. The same inputs always give the same bits.
    """
    own = stride, padding, dilation, groups, kernel_size
    made, like = _repeated("conv2d_wgrad", own, {"x": x, "dout": dout}, out, stream, interpret)
    if made is not UNSEEN:
        return made
    check = ConvCheck("conv2d_wgrad")
    images, given = check.array("x", x, SHAPES["x"]), check.array("dout", dout, DOUT)
    taps, count = check.pair("kernel_size", kernel_size, 1), check.whole("groups", groups, 1)
    filters = given[3], *taps, images[3] // count
    p = check.problem(images, filters, check.same(("x", x), ("dout", dout)), stride, padding, dilation, groups)
    check.gradient(p, given)
    kernel, parts, general = _wgrad(p, x, dout)
    add = None if parts == 1 else wgrad_sum_kernel(general or p, 0 if general else parts)
    counted = general is not None and parts > 1

    def plan(launch: Launch, x: Any, dout: Any, out: Any) -> Any:
        given = (x, dout, x[0, 0, 0, :parts]) if counted else (x, dout)
        if add is None:
            return launch(kernel, given, out)
        sums = launch(kernel, given)
        return launch(add, (sums.reshape(parts, -1) if counted else sums,), out)

    return _run("conv2d_wgrad", like, plan, [x, dout], out, stream, interpret)


def _wgrad(p: ConvProblem, x: Any, dout: Any) -> tuple[Any, int, ConvProblem | None]:
    """(the kernel `(x, dout) -> dw`, or with parts `-> partial sums`; the number of parts; the problem of the kernel if
    it takes any images). The kernel is Hopper's if that can take the arrays.

    Otherwise it is the general kernel.
    """
    machine = target_named(None)
    why = why_not(p, machine, (x, dout)) if p.pixels else "there are no pixels"
    if not why:
        config = wgrad_config(p)
        general = opened(p, "conv2d_wgrad") if p.channels >= MOST_PARTS else None
        if general is not None:
            config = replace(config, box=box_of_any(p, general, PANEL))
        parts = wgrad_split(p, config, machine.limits.multiprocessors)
        return conv_wgrad_kernel(general or p, config, min(parts, 2) if general else parts), parts, general
    _log.info("conv2d_wgrad: %s; using the general kernel", why)
    parts = wgrad_parts(p, machine.limits.multiprocessors)
    general = opened(p, "conv2d_wgrad", "general") if 0 < parts <= p.channels else None
    if general and p.channels > 1:  # few pixels use the kernel for parts, too
        parts = wgrad_parts(p, machine.limits.multiprocessors, 2)
    return wgrad_kernel(general or p, min(parts, 2) if general else parts), parts, general

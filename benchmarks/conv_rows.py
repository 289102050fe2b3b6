"""Rows of `benchmarks.products` for convolutions, beside torch's of the same arrays in its channels_last format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

import kernel_dsl as kd
from kernel_dsl.library.convolutions.general import wgrad_sum_kernel
from kernel_dsl.library.convolutions.kernel import ConvConfig, boxes, conv_kernel
from kernel_dsl.library.convolutions.problem import ConvProblem
from kernel_dsl.library.convolutions.wgrad_kernel import conv_wgrad_kernel, wgrad_config, wgrad_split

from .grouped_rows import relative
from .product_rows import DEVICE, Row

SHAPES = ((64, 256, 56), (64, 512, 28), (16, 512, 64))  # images, channels and filters, height and width
OTHERS = ((64, 72, 56), (64, 96, 56), (64, 136, 56), (64, 200, 56), (64, 264, 56), (64, 320, 28), (64, 448, 28))
MULTIPROCESSORS = 132
WAYS = ("forward", "dgrad", "wgrad")


def work(images: int, channels: int, size: int, way: str) -> Row:
    """A convolution by 3 x 3 taps in bfloat16, or one of its gradients."""
    random = lambda *shape: torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16)  # noqa: E731
    x, w = random(images, size, size, channels), random(channels, 3, 3, channels)
    dout = random(images, size, size, channels)
    turned = [a.permute(0, 3, 1, 2) for a in (x, w, dout)]  # as torch has them: channels_last in memory
    library = kd.library
    if way == "forward":
        ours = lambda: library.conv2d(x, w, padding=1)  # noqa: E731
    elif way == "dgrad":
        ours = lambda: library.conv2d_dgrad(dout, w, tuple(x.shape), padding=1)  # noqa: E731
    else:
        ours = lambda: library.conv2d_wgrad(x, dout, 3, padding=1)  # noqa: E731

    def torchs(x: torch.Tensor, w: torch.Tensor, dout: torch.Tensor) -> torch.Tensor:
        if way == "forward":
            return torch.nn.functional.conv2d(x, w, padding=1)
        mask = [way == "dgrad", way == "wgrad", False]
        grads = torch.ops.aten.convolution_backward(dout, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask)
        return grads[WAYS.index(way) - 1]

    def check() -> float:
        """Beside torch in float64, on the first images; for the gradient of filters on the first channels."""
        some = torch.zeros_like(dout)
        some[:2] = dout[:2]
        own = library.conv2d_wgrad(x, some, 3, padding=1) if way == "wgrad" else ours()[:2]
        expected = torchs(*(a.double() for a in (turned[0][:2], turned[1], turned[2][:2])))
        return relative(iter([(own, expected.permute(0, 2, 3, 1))]))

    flops = 2.0 * images * size * size * channels * channels * 9
    moved = 2.0 * (2 * x.numel() + w.numel())
    name = f"conv {way} {images}x{channels}x{size}^2"
    return Row(name, flops, ours, lambda: torchs(*turned), check, 5e-3, moved)


def forward_candidate(images: int, channels: int, size: int, config: ConvConfig) -> Row:
    """The forward kernel in sizes that are not the chosen ones."""
    base = work(images, channels, size, "forward")
    p = ConvProblem(images, size, size, channels, channels, (3, 3), (1, 1), (1, 1), (1, 1), 1, kd.bfloat16)
    x = torch.randn(images, size, size, channels, device=DEVICE, dtype=torch.bfloat16)
    w = torch.randn(channels, 3, 3, channels, device=DEVICE, dtype=torch.bfloat16)
    kernel = conv_kernel(p, config, MULTIPROCESSORS)
    ours = lambda: kernel(x, w)  # noqa: E731
    return _candidate(base, ours, lambda: kd.library.conv2d(x, w, padding=1), config)


def wgrad_candidate(images: int, channels: int, size: int, change: dict[str, Any], parts: int | None) -> Row:
    """The kernel of gradients of filters in sizes and parts that are not the chosen ones."""
    base = work(images, channels, size, "wgrad")
    p = ConvProblem(images, size, size, channels, channels, (3, 3), (1, 1), (1, 1), (1, 1), 1, kd.bfloat16)
    x, dout = (torch.randn(images, size, size, channels, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    config = replace(wgrad_config(p), **change)
    count = wgrad_split(p, config, MULTIPROCESSORS) if parts is None else parts
    kernel = conv_wgrad_kernel(p, config, count)

    def ours() -> Any:
        made = kernel(x, dout)
        return made if count == 1 else wgrad_sum_kernel(p, count)(made)

    made = _candidate(base, ours, lambda: kd.library.conv2d_wgrad(x, dout, 3, padding=1), config)
    return replace(made, name=f"{made.name} {count} parts")


def _candidate(base: Row, ours: Callable[[], Any], chosen: Callable[[], Any], config: Any) -> Row:
    """Beside torch as `base` is; checked against the chosen kernel, which the other rows check."""

    def check() -> float:
        return relative(iter([(ours(), chosen().double())]))

    return replace(base, name=f"{base.name} {config}", ours=ours, check=check)


def candidates() -> Iterator[Callable[[], Row]]:
    """Sizes to measure beside the chosen ones: what is shared by multicast, tiles and stages."""
    for shape in SHAPES:
        box = boxes(
            ConvProblem(
                shape[0], shape[2], shape[2], shape[1], shape[1], (3, 3), (1, 1), (1, 1), (1, 1), 1, kd.bfloat16
            )
        )
        plain = ConvConfig(box)
        for config in (plain, replace(plain, cluster=2), ConvConfig(box, 128, 6), ConvConfig(box, 256, 3),
                       ConvConfig(box, 192, 4)):  # fmt: skip
            yield lambda s=shape, c=config: forward_candidate(*s, c)
        for change, parts in (({}, None), ({"cluster": 2}, None), ({"cluster": 2}, 11), ({"tile_m": 256, "tile_n": 128}, None),
                              ({"tile_m": 256, "tile_n": 128, "cluster": 2}, None), ({}, 2), ({}, 11)):  # fmt: skip
            if shape[1] // (change.get("tile_m") or 128) % (change.get("cluster") or 1) == 0:
                yield lambda s=shape, c=change, n=parts: wgrad_candidate(*s, c, n)


def works() -> Iterator[Callable[[], Row]]:
    """All rows."""
    for shapes in (SHAPES, OTHERS):
        for way in WAYS:
            for shape in shapes:
                yield lambda s=shape, w=way: work(*s, w)

"""Rows of `benchmarks.products` for convolutions, beside torch's of the same arrays in its channels_last format."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

import kernel_dsl as kd

from .grouped_rows import DEVICE, Work, relative

SHAPES = ((64, 256, 56), (64, 512, 28), (16, 512, 64))  # images, channels and filters, height and width
WAYS = ("forward", "dgrad", "wgrad")


def work(images: int, channels: int, size: int, way: str) -> Work:
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
    return Work(name, flops, ours, lambda: torchs(*turned), check, 5e-3, moved)


def works() -> Iterator[Callable[[], Work]]:
    """All rows."""
    for way in WAYS:
        for shape in SHAPES:
            yield lambda s=shape, w=way: work(*s, w)

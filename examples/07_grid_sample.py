"""Bilinear samples of a picture at given places, and their gradients.

The function is PyTorch's `grid_sample` with zero padding and `align_corners=False`: places are (x, y), and the
picture's edges are at -1 and 1. Each sample is a weighted mean of the four pixels around it; pixels outside the picture
are zero.

The forward kernel gathers by index arrays. An index outside the array gives zero, but an index past the end of a *row*
would be in the next row; so rows and columns are separate axes of the gather. In the backward kernel, the gradient of a
pixel is a sum over all samples that read it, in any order, so lanes add it by atomics. The gradient of a place belongs
to one lane.

Run it: `python -m examples.07_grid_sample`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import kernel_dsl as kd

SAMPLES = 256  # a block's


def corners(grid: Any, part: Any, height: int, width: int) -> list[tuple[Any, Any, Any, Any, float, float]]:
    """(row, column, weight along y, weight along x, sign along y, sign along x) of each of the four pixels."""
    x = (grid[part, 0] + 1) * (0.5 * width) - 0.5
    y = (grid[part, 1] + 1) * (0.5 * height) - 0.5
    left, top = kd.floor(x), kd.floor(y)
    across, down = x - left, y - top
    column, row = left.astype(kd.int32), top.astype(kd.int32)
    return [
        (row, column, 1 - down, 1 - across, -1.0, -1.0),
        (row, column + 1, 1 - down, across, -1.0, 1.0),
        (row + 1, column, down, 1 - across, 1.0, -1.0),
        (row + 1, column + 1, down, across, 1.0, 1.0),
    ]


@kd.kernel(
    out_type=lambda image, grid: kd.ShapeDtypeStruct((image.shape[0], grid.shape[0]), image.dtype),
    grid=lambda image, grid: (image.shape[0], kd.cdiv(grid.shape[0], SAMPLES)),
    grid_names=("channel", "block"),
)
def sample(image: Any, grid: Any, out: Any) -> None:
    """`image`: (channels, height, width) float32; `grid`: (samples, 2) float32; `out`: (channels, samples)."""
    channel = kd.axis_index("channel")
    part = kd.ds(kd.axis_index("block") * SAMPLES, SAMPLES)
    _, height, width = map(kd.specialise, image.shape)  # a compile for each size: strides and bounds are then constants
    total = kd.zeros((SAMPLES,), kd.float32)
    for row, column, down, across, _, _ in corners(grid, part, height, width):
        total = total + image[channel, row, column] * (down * across)
    out[channel, part] = total


@kd.kernel(
    out_type=lambda image, grid, g: (
        kd.ShapeDtypeStruct(image.shape, image.dtype, init=0),
        kd.ShapeDtypeStruct(grid.shape, grid.dtype),
    ),
    grid=lambda image, grid, g: (kd.cdiv(grid.shape[0], SAMPLES),),
    grid_names=("block",),
)
def sample_backward(image: Any, grid: Any, g: Any, image_grad: Any, grid_grad: Any) -> None:
    """`g`: the output's gradient, (channels, samples). A block processes all channels of its samples."""
    part = kd.ds(kd.axis_index("block") * SAMPLES, SAMPLES)
    channels, height, width = map(kd.specialise, image.shape)
    four = corners(grid, part, height, width)
    none = kd.zeros((SAMPLES,), kd.float32)

    @kd.loop(0, channels, init_carry=(none, none))
    def along(channel: Any, carry: Any) -> Any:
        along_x, along_y = carry
        own = g[channel, part]
        for row, column, down, across, sign_y, sign_x in four:
            kd.atomic_add(image_grad.at[channel, row, column], own * (down * across))
            pixel = image[channel, row, column] * own
            along_x = along_x + sign_x * down * pixel
            along_y = along_y + sign_y * across * pixel
        return along_x, along_y

    grid_grad[part, 0] = along[0] * (0.5 * width)
    grid_grad[part, 1] = along[1] * (0.5 * height)


def reference(image: Any, grid: Any, g: Any) -> tuple[Any, Any, Any]:
    """Samples and both gradients, in float64."""
    image, grid, g = (a.astype(np.float64) for a in (image, grid, g))
    _, height, width = image.shape
    x, y = (grid[:, 0] + 1) * 0.5 * width - 0.5, (grid[:, 1] + 1) * 0.5 * height - 0.5
    left, top = np.floor(x).astype(int), np.floor(y).astype(int)
    out, image_grad, grid_grad = np.zeros_like(g), np.zeros_like(image), np.zeros_like(grid)
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        row, column = top + i, left + j
        down, across = 1 - np.abs(y - row), 1 - np.abs(x - column)
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        row, column = np.clip(row, 0, height - 1), np.clip(column, 0, width - 1)
        pixel = image[:, row, column] * inside
        out += pixel * down * across
        np.add.at(image_grad, (slice(None), row, column), g * down * across * inside)
        grid_grad[:, 0] += (pixel * g * down).sum(0) * (2 * j - 1) * 0.5 * width
        grid_grad[:, 1] += (pixel * g * across).sum(0) * (2 * i - 1) * 0.5 * height
    return out, image_grad, grid_grad


def main() -> None:
    """Check samples, some of them outside of the picture, and the gradients against NumPy."""
    rng = np.random.default_rng(0)
    image = rng.standard_normal((3, 24, 37)).astype(np.float32)
    grid = rng.uniform(-1.2, 1.2, (700, 2)).astype(np.float32)
    g = rng.standard_normal((3, 700)).astype(np.float32)
    got = (sample(image, grid), *sample_backward(image, grid, g))
    for name, ours, expected in zip(("samples", "d image", "d grid"), got, reference(image, grid, g), strict=True):
        error = np.max(np.abs(ours - expected)) / np.max(np.abs(expected))
        print(f"{name} {ours.shape}: worst error {error:.1e} of the largest")
        assert error < 1e-4


if __name__ == "__main__":
    main()

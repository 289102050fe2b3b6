"""Bilinear sampling of images, forward and backward, as kernels in Metal Shading Language.

`grid` holds the place of each sample: (x, y) in [-1, 1] across the image. A sample is the weighted mean of the four
pixels around it; the weight of a pixel is the area of the rectangle between the sample and the pixel opposite. Pixels
outside the image count as zeros. The backward kernel adds to the image's gradient by atomics. For the grid's gradient
it first adds up the 32 channels of a SIMD-group, so the group does one atomic instead of 32.

Run it: `python examples/20_metal_grid_sample.py`. It needs NVRTC (`pip install 'kernel-dsl[nvrtc]'`, or a CUDA
toolkit). Without a GPU the kernels run in the PTX interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import kernel_dsl as kd

FORWARD = """
    uint elem = thread_position_in_grid.x;
    int H = x_shape[1];
    int W = x_shape[2];
    int C = x_shape[3];
    int gH = grid_shape[1];
    int gW = grid_shape[2];

    int w_stride = C;
    int h_stride = W * w_stride;
    int b_stride = H * h_stride;

    uint pixel = elem / C * 2;
    float ix = ((grid[pixel] + 1) * W - 1) / 2;
    float iy = ((grid[pixel + 1] + 1) * H - 1) / 2;

    int left = floor(ix);
    int top = floor(iy);
    int right = left + 1;
    int bottom = top + 1;

    T nw = (right - ix) * (bottom - iy);
    T ne = (ix - left) * (bottom - iy);
    T sw = (right - ix) * (iy - top);
    T se = (ix - left) * (iy - top);

    int base = elem / C / gH / gW * b_stride + elem % C;
    bool in_left = left >= 0 && left < W;
    bool in_right = right >= 0 && right < W;
    bool in_top = top >= 0 && top < H;
    bool in_bottom = bottom >= 0 && bottom < H;

    // As is usual in such kernels, loads come first, and whether they were in the image is asked afterwards.
    T v_nw = x[base + top * h_stride + left * w_stride];
    T v_ne = x[base + top * h_stride + right * w_stride];
    T v_sw = x[base + bottom * h_stride + left * w_stride];
    T v_se = x[base + bottom * h_stride + right * w_stride];
    v_nw = in_top && in_left ? v_nw : 0;
    v_ne = in_top && in_right ? v_ne : 0;
    v_sw = in_bottom && in_left ? v_sw : 0;
    v_se = in_bottom && in_right ? v_se : 0;

    out[elem] = nw * v_nw + ne * v_ne + sw * v_sw + se * v_se;
"""

BACKWARD = """
    uint elem = thread_position_in_grid.x;
    int H = x_shape[1];
    int W = x_shape[2];
    int C = x_shape[3];
    int padded = ceildiv(C, threads_per_simdgroup) * threads_per_simdgroup;
    int gH = grid_shape[1];
    int gW = grid_shape[2];

    int w_stride = C;
    int h_stride = W * w_stride;
    int b_stride = H * h_stride;

    uint pixel = elem / padded * 2;
    float ix = ((grid[pixel] + 1) * W - 1) / 2;
    float iy = ((grid[pixel + 1] + 1) * H - 1) / 2;
    int left = floor(ix);
    int top = floor(iy);
    int right = left + 1;
    int bottom = top + 1;

    T nw = (right - ix) * (bottom - iy);
    T ne = (ix - left) * (bottom - iy);
    T sw = (right - ix) * (iy - top);
    T se = (ix - left) * (iy - top);

    int channel = elem % padded;
    int base = elem / padded / gH / gW * b_stride + channel;
    T gix = T(0);
    T giy = T(0);
    if (channel < C) {
        T cot = cotangent[elem / padded * C + channel];
        if (top >= 0 && top < H) {
            if (left >= 0 && left < W) {
                int at = base + top * h_stride + left * w_stride;
                atomic_fetch_add_explicit(&x_grad[at], nw * cot, memory_order_relaxed);
                gix -= x[at] * (bottom - iy) * cot;
                giy -= x[at] * (right - ix) * cot;
            }
            if (right >= 0 && right < W) {
                int at = base + top * h_stride + right * w_stride;
                atomic_fetch_add_explicit(&x_grad[at], ne * cot, memory_order_relaxed);
                gix += x[at] * (bottom - iy) * cot;
                giy -= x[at] * (ix - left) * cot;
            }
        }
        if (bottom >= 0 && bottom < H) {
            if (left >= 0 && left < W) {
                int at = base + bottom * h_stride + left * w_stride;
                atomic_fetch_add_explicit(&x_grad[at], sw * cot, memory_order_relaxed);
                gix -= x[at] * (iy - top) * cot;
                giy += x[at] * (right - ix) * cot;
            }
            if (right >= 0 && right < W) {
                int at = base + bottom * h_stride + right * w_stride;
                atomic_fetch_add_explicit(&x_grad[at], se * cot, memory_order_relaxed);
                gix += x[at] * (iy - top) * cot;
                giy += x[at] * (ix - left) * cot;
            }
        }
    }

    T gix_mult = W / 2;
    T giy_mult = H / 2;
    gix = simd_sum(gix);
    giy = simd_sum(giy);
    if (thread_index_in_simdgroup == 0) {
        atomic_fetch_add_explicit(&grid_grad[pixel], gix * gix_mult, memory_order_relaxed);
        atomic_fetch_add_explicit(&grid_grad[pixel + 1], giy * giy_mult, memory_order_relaxed);
    }
"""

_forward = kd.metal_kernel("grid_sample", ["x", "grid"], ["out"], FORWARD)
_backward = kd.metal_kernel(
    "grid_sample_backward",
    ["x", "grid", "cotangent"],
    ["x_grad", "grid_grad"],
    BACKWARD,
    atomic_outputs=True,
)


def grid_sample(x: Any, grid: Any, interpret: Any = None) -> Any:
    """Samples of `x` (batch, height, width, channels) at `grid` (batch, rows, columns, 2).

    The result is (batch, rows, columns, channels), in the framework of `x`.
    """
    shape = (*grid.shape[:3], x.shape[3])
    (out,) = _forward(
        inputs=[x, grid],
        template=[("T", x.dtype)],
        output_shapes=[shape],
        output_dtypes=[x.dtype],
        grid=(int(np.prod(shape)), 1, 1),
        threadgroup=(256, 1, 1),
        interpret=interpret,
    )
    return out


def grid_sample_backward(x: Any, grid: Any, cotangent: Any, interpret: Any = None) -> tuple[Any, Any]:
    """The gradients of `x` and of `grid`, from that of the samples."""
    padded = -(-x.shape[3] // 32) * 32  # whole SIMD-groups, so that none holds channels of two pixels
    x_grad, grid_grad = _backward(
        inputs=[x, grid, cotangent],
        template=[("T", x.dtype)],
        output_shapes=[x.shape, grid.shape],
        output_dtypes=[x.dtype, x.dtype],
        grid=(int(np.prod(grid.shape)) // 2 * padded, 1, 1),
        threadgroup=(256, 1, 1),
        init_value=0,
        interpret=interpret,
    )
    return x_grad, grid_grad


# --- the same in NumPy, for comparison ------------------------------------------------------------------


def corners(x: Any, grid: Any) -> Iterator[Any]:
    """For each grid point: its four neighbours as (row, column, in the image, weight, d weight / d ix, d / d iy)."""
    _, height, width, _ = x.shape
    ix = ((grid[..., 0] + 1) * width - 1) / 2
    iy = ((grid[..., 1] + 1) * height - 1) / 2
    left, top = np.floor(ix), np.floor(iy)
    for row, wy, dy in ((top, top + 1 - iy, -1), (top + 1, iy - top, 1)):
        for column, wx, dx in ((left, left + 1 - ix, -1), (left + 1, ix - left, 1)):
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            at = (
                np.clip(row, 0, height - 1).astype(int),
                np.clip(column, 0, width - 1).astype(int),
            )
            yield at, inside, wx * wy, dx * wy, dy * wx


def sample(x: Any, grid: Any) -> Any:
    """What `grid_sample` gives."""
    out = np.zeros((*grid.shape[:3], x.shape[3]))
    batch = np.arange(x.shape[0])[:, None, None]
    for (row, column), inside, weight, _, _ in corners(x, grid):
        out += (weight * inside)[..., None] * x[batch, row, column]
    return out


def sample_gradients(x: Any, grid: Any, cotangent: Any) -> tuple[Any, Any]:
    """The gradients of sum(sample(x, grid) * cotangent), the grid's times half of the image's extents."""
    x_grad, grid_grad = np.zeros(x.shape), np.zeros(grid.shape)
    batch = np.broadcast_to(np.arange(x.shape[0])[:, None, None], grid.shape[:3])
    for (row, column), inside, weight, by_x, by_y in corners(x, grid):
        np.add.at(x_grad, (batch, row, column), (weight * inside)[..., None] * cotangent)
        value = (x[batch, row, column] * cotangent).sum(-1) * inside
        grid_grad[..., 0] += by_x * value * (x.shape[2] // 2)
        grid_grad[..., 1] += by_y * value * (x.shape[1] // 2)
    return x_grad, grid_grad


def main() -> None:
    """Run both kernels on random data, and print their distance from NumPy in float64."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 8, 6, 5)).astype(np.float32)
    grid = rng.uniform(-1.2, 1.2, (2, 4, 3, 2)).astype(np.float32)
    cotangent = rng.standard_normal((2, 4, 3, 5)).astype(np.float32)
    wide = [a.astype(np.float64) for a in (x, grid, cotangent)]
    print("forward: ", np.abs(grid_sample(x, grid) - sample(*wide[:2])).max())
    for name, got, want in zip(
        ("x", "grid"), grid_sample_backward(x, grid, cotangent), sample_gradients(*wide), strict=True
    ):
        print(f"gradient of {name}:", np.abs(got - want).max())


if __name__ == "__main__":
    main()

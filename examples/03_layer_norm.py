"""Layer norm and RMS norm along the last axis, forward and backward.

Layer norm gives each row the mean 0 and the variance 1, multiplies it by gamma and adds beta; gamma and beta have one
number for each column. RMS norm divides each row by the root of its mean square and multiplies it by gamma. Both return
the numbers that the backward pass needs: each row's mean (layer norm) and the reciprocal of its deviation.

Forward, a row stays in registers between one read and one write. Three kernels bring it there:

- `rows_kernel`: a block loads a few rows of any length. Several blocks on a multiprocessor overlap.
- `long_kernel`: the warpgroups of a block share a row, and exchange their sums.
- `stream_kernel`: a persistent block processes many rows. While it computes one, it copies the next ones to SMEM; gamma
  and beta stay in registers. The blocks of a cluster share a long row, and exchange their sums.

Backward, the gradients of gamma and beta are sums over all rows. Each persistent block adds up its rows in float32
registers; a second, small kernel adds the sums of the blocks. Without atomics, each run gives the same result.

Run it: `python -m examples.03_layer_norm`.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np

import kernel_dsl as kd

MULTIPROCESSORS = 132  # of an H200: the number of persistent blocks is a multiple; other GPUs are slower, and as right


def outputs(x: Any, centred: bool) -> tuple[Any, ...]:
    """The forward kernels' outputs: y, the rows' means (layer norm only), the rows' reciprocal deviations."""
    row = kd.ShapeDtypeStruct((x.shape[0],), kd.float32)
    return (x, row, row) if centred else (x, row)


def deviation(centred: bool, columns: int, value: Any) -> tuple[Any, Any]:
    """Each row's mean (0 without `centred`), and the sum of squares of its differences from this mean."""
    if not centred:
        return 0.0, kd.sum(value * value, axis=-1, keepdims=True)
    mean = kd.sum(value, axis=-1, keepdims=True) * (1 / columns)
    difference = value - mean
    return mean, kd.sum(difference * difference, axis=-1, keepdims=True)


def affine(centred: bool, value: Any, mean: Any, scale: Any, parameters: Any) -> Any:
    """(value - mean) * scale * gamma + beta."""
    if not centred:
        return value * scale * parameters[0]
    return kd.fma((value - mean) * scale, parameters[0], parameters[1])


@functools.cache
def rows_kernel(centred: bool, rows: int = 1, early: bool = True, eps: float = 1e-5) -> Any:
    """`rows` rows a block. With `early` the block loads gamma and beta before the sums, which takes registers."""

    @kd.kernel(
        out_type=lambda x, *parameters: outputs(x, centred),
        grid=lambda x, *parameters: (kd.cdiv(x.shape[0], rows),),
        grid_names=("block",),
        name=f"{'layer' if centred else 'rms'}_norm_{rows}_rows",
    )
    def norm(x: Any, *refs: Any) -> None:
        parameters, y, statistics = refs[: 1 + centred], refs[1 + centred], refs[2 + centred :]
        block = kd.ds(kd.axis_index("block") * rows, rows)
        columns = x.shape[1]
        value = x[block].astype(kd.float32)
        if early:  # the barrier keeps the loads here, and two 16-bit values in a register
            parameters = [kd.optimization_barrier(p[...]) for p in parameters]
        mean, squares = deviation(centred, columns, value)
        scale = kd.rsqrt(squares * (1 / columns) + eps)
        wide = [p[None, :].astype(kd.float32) for p in parameters]
        y[block] = affine(centred, value, mean, scale, wide).astype(x.dtype)
        for ref, number in zip(statistics, (mean, scale) if centred else (scale,), strict=True):
            ref[block] = kd.squeeze(number, 1)

    return norm


@functools.cache
def long_kernel(
    centred: bool, warpgroups: int = 4, max_registers: int | None = 64, pieces: int = 4, eps: float = 1e-5
) -> Any:
    """One row of any length a block of several warpgroups.

    A row of 16-bit elements keeps its dtype in registers, two elements to a register: the optimization barriers prevent
    the compiler from keeping it in float32, and a warpgroup computes `pieces` parts in turn. So two rows or more fit a
    multiprocessor, which loads one while it computes another.
    """

    @kd.kernel(
        out_type=lambda x, *parameters: outputs(x, centred),
        grid=lambda x, *parameters: (x.shape[0],),
        grid_names=("row",),
        num_threads=warpgroups,
        thread_name="wg",
        scratch_types={
            "sums": kd.SMEM((2, warpgroups), kd.float32),
            "ready": kd.Barrier(num_arrivals=warpgroups, num_barriers=2),
        },
        compiler_params=kd.CompilerParams(max_registers=max_registers),
        name=f"{'layer' if centred else 'rms'}_norm_{warpgroups}_warpgroups",
    )
    def norm(x: Any, *refs: Any, sums: Any, ready: Any) -> None:
        parameters, y, statistics = refs[: 1 + centred], refs[1 + centred], refs[2 + centred :]
        row, wg = kd.axis_index("row"), kd.axis_index("wg")
        columns = x.shape[1]
        width = kd.cdiv(columns, warpgroups * pieces * 8) * 8  # of a piece, in whole 16-byte vectors
        places = [wg * (width * pieces) + i * width for i in range(pieces)]

        def together(which: int, own: list[Any]) -> Any:
            """The sum over all pieces of all warpgroups."""
            sums[which, wg] = kd.sum(functools.reduce(operator.add, own))
            kd.barrier_arrive_and_wait(ready.at[which])
            return kd.sum(sums[which])

        def difference(place: Any, value: Any) -> Any:
            """The difference from the mean; 0 past the row's end."""
            own = value.astype(kd.float32) - mean
            return own if columns % width == 0 else kd.where(kd.arange(width) < columns - place, own, 0.0)

        values = [kd.load(x, (row, kd.ds(place, width)), fill=0) for place in places]
        mean: Any = 0.0
        if centred:
            mean = together(0, [value.astype(kd.float32) for value in values]) * (1 / columns)
            values = [kd.optimization_barrier(value) for value in values]
        squares = together(1, [kd.square(difference(*both)) for both in zip(places, values, strict=True)])
        scale = kd.rsqrt(squares * (1 / columns) + eps)
        for place, value in zip(places, values, strict=True):
            part = kd.ds(place, width)
            wide = [kd.load(p, part, fill=0).astype(kd.float32) for p in parameters]
            again = kd.optimization_barrier(value).astype(kd.float32)
            y[row, part] = affine(centred, again, mean, scale, wide).astype(x.dtype)
        for ref, number in zip(statistics, (mean, scale) if centred else (scale,), strict=True):

            @kd.when(wg == 0)
            def _(ref: Any = ref, number: Any = number) -> None:
                ref[row] = number

    return norm


@functools.cache
def stream_kernel(
    centred: bool,
    rows: int = 1,
    stages: int = 3,
    blocks: int = 4 * MULTIPROCESSORS,
    parts: int = 1,
    eps: float = 1e-5,
) -> Any:
    """`blocks` persistent blocks, or clusters of `parts` persistent blocks; each processes groups of `rows` rows.

    The number of rows is a multiple of `rows`, and the bytes of each part of a row are a multiple of 128.
    """

    def scratch(x: Any, *parameters: Any) -> dict[str, Any]:
        kept: dict[str, Any] = {
            "ahead": kd.SMEM((stages, rows, x.shape[1] // parts), x.dtype),
            "full": kd.Barrier(num_barriers=stages),
        }
        if parts > 1:
            kept["sums"] = kd.SMEM((2, 1 + centred, parts), kd.float32)
            kept["exchanged"] = kd.ClusterBarrier("part")
        return kept

    @kd.kernel(
        out_type=lambda x, *parameters: outputs(x, centred),
        scratch_types=scratch,
        grid=lambda x, *parameters: (min(blocks, x.shape[0] // rows),),
        grid_names=("block",),
        cluster=(parts,) if parts > 1 else (),
        cluster_names=("part",) if parts > 1 else (),
        name=f"{'layer' if centred else 'rms'}_norm_stream_{rows}x{stages}x{parts}",
    )
    def norm(x: Any, *refs: Any, ahead: Any, full: Any, sums: Any = None, exchanged: Any = None) -> None:
        parameters, y, statistics = refs[: 1 + centred], refs[1 + centred], refs[2 + centred :]
        columns = x.shape[1]
        width = columns // parts
        part = kd.axis_index("part") if parts > 1 else 0
        across = kd.ds(part * width, width)
        first, stride = kd.axis_index("block"), kd.axis_size("block")
        groups = x.shape[0] // rows
        count = (groups - first + stride - 1) // stride

        def at(step: Any) -> Any:
            """The rows of a step."""
            return kd.ds((first + step * stride) * rows, rows)

        def fetch(step: Any, stage: Any) -> None:
            kd.copy_gmem_to_smem(
                x.at[at(step), across],
                ahead.at[stage],
                full.at[stage],
                predicate=step < count,
                oob_mode=kd.OOBFillMode.PROMISE_IN_BOUNDS,
            )

        for stage in range(stages):
            fetch(stage, stage)
        wide = [p[None, across].astype(kd.float32) for p in parameters]

        def combine(turn: Any, mean: Any, squares: Any) -> tuple[Any, Any]:
            """Mean and sum of squares of the row, from those of its parts. All blocks receive all parts' numbers."""
            for peer in range(parts):
                there = kd.cluster_ref(sums, {"part": peer})
                there[turn, 0, part] = kd.squeeze(squares)
                if centred:
                    there[turn, 1, part] = kd.squeeze(mean)
            kd.barrier_arrive_and_wait(exchanged)
            total = kd.sum(sums[turn, 0])
            if not centred:
                return mean, total.reshape(1, 1)
            means = sums[turn, 1]
            middle = kd.sum(means) * (1 / parts)
            apart = means - middle
            return middle.reshape(1, 1), (total + kd.sum(apart * apart) * width).reshape(1, 1)

        @kd.loop(0, count)
        def _(step: Any) -> None:
            stage = step % stages
            kd.barrier_wait(full.at[stage])
            value = ahead[stage].astype(kd.float32)
            fetch(step + stages, stage)  # as soon as all lanes have read this stage
            mean, squares = deviation(centred, width, value)
            if parts > 1:
                mean, squares = combine(step % 2, mean, squares)
            scale = kd.rsqrt(squares * (1 / columns) + eps)
            y[at(step), across] = affine(centred, value, mean, scale, wide).astype(x.dtype)
            for ref, number in zip(statistics, (mean, scale) if centred else (scale,), strict=True):
                if parts > 1:
                    kd.store(ref, at(step), kd.squeeze(number, 1), mask=(part == 0)[None])
                else:
                    ref[at(step)] = kd.squeeze(number, 1)

    return norm


@functools.cache
def backward_kernel(centred: bool, warpgroups: int = 1, stages: int = 2, blocks: int = 2 * MULTIPROCESSORS) -> Any:
    """`blocks` persistent blocks, each with its own rows; `warpgroups` warpgroups share a row.

    Inputs: x, the gradient of y, gamma, and the forward kernel's means (layer norm only) and reciprocal deviations.
    Outputs: the gradient of x, and for each block its part of the gradients of gamma (and beta) in float32.
    """

    def out_type(x: Any, dy: Any, gamma: Any, *statistics: Any) -> tuple[Any, ...]:
        parts = kd.ShapeDtypeStruct((min(blocks, x.shape[0]), x.shape[1]), kd.float32)
        return (x, parts, parts) if centred else (x, parts)

    def scratch(x: Any, *others: Any) -> dict[str, Any]:
        kept: dict[str, Any] = {"sums": kd.SMEM((2, 2, warpgroups), kd.float32)}
        kept["exchanged"] = kd.Barrier(num_arrivals=warpgroups)
        if streams(x):
            kept["ahead"] = kd.SMEM((stages, 2, x.shape[1]), x.dtype)
            kept["full"] = kd.Barrier(num_arrivals=2, num_barriers=(stages, warpgroups))
        return kept

    def streams(x: Any) -> bool:
        """Whether copies can load rows: a warpgroup's part is a multiple of 128 bytes, and SMEM is large enough."""
        row = x.shape[1] * x.dtype.itemsize
        return row % (128 * warpgroups) == 0 and stages * 2 * row <= 200_000

    @kd.kernel(
        out_type=out_type,
        scratch_types=scratch,
        grid=lambda x, *others: (min(blocks, x.shape[0]),),
        grid_names=("block",),
        num_threads=warpgroups,
        thread_name="wg",
        name=f"{'layer' if centred else 'rms'}_norm_backward_{warpgroups}x{stages}",
    )
    def backward(
        x: Any, dy: Any, gamma: Any, *refs: Any, sums: Any, exchanged: Any, ahead: Any = None, full: Any = None
    ) -> None:
        statistics, dx, parts = refs[: 1 + centred], refs[1 + centred], refs[2 + centred :]
        rows, columns = map(kd.specialise, x.shape)
        width = kd.cdiv(columns, warpgroups)
        wg, block = kd.axis_index("wg"), kd.axis_index("block")
        across = kd.ds(wg * width, width)
        stride = kd.axis_size("block")
        count = (rows - block + stride - 1) // stride

        def fetch(step: Any, stage: Any) -> None:
            for which, source in enumerate((x, dy)):
                kd.copy_gmem_to_smem(
                    source.at[block + step * stride, across],
                    ahead.at[stage, which, across],
                    full.at[stage, wg],
                    predicate=step < count,
                    oob_mode=kd.OOBFillMode.PROMISE_IN_BOUNDS,
                )

        def numbers(step: Any) -> tuple[Any, ...]:
            """The statistics of a step's row; 0 past the last."""
            return tuple(s[block + step * stride] for s in statistics)

        if ahead is not None:
            for stage in range(stages):
                fetch(stage, stage)
        scale = kd.load(gamma, across, fill=0).astype(kd.float32)
        none = tuple(kd.zeros((width,), kd.float32) for _ in parts)

        def exchange(turn: Any, first: Any, second: Any) -> tuple[Any, Any]:
            """Sums over the warpgroups."""
            if warpgroups == 1:
                return first, second
            sums[turn, 0, wg] = first
            if second is not None:
                sums[turn, 1, wg] = second
            kd.barrier_arrive_and_wait(exchanged)
            return kd.sum(sums[turn, 0]), None if second is None else kd.sum(sums[turn, 1])

        @kd.loop(0, count, init_carry=(numbers(0), none))
        def totals(step: Any, carry: Any) -> Any:
            (*mean, reciprocal), so_far = carry
            following = numbers(step + 1)  # in flight while the block computes this row
            row = block + step * stride
            if ahead is not None:
                stage = step % stages
                kd.barrier_wait(full.at[stage, wg])
                value, g = (ahead[stage, which, across].astype(kd.float32) for which in range(2))
                fetch(step + stages, stage)
            else:
                value, g = (kd.load(ref, (row, across), fill=0).astype(kd.float32) for ref in (x, dy))
            normal = ((value - mean[0]) if centred else value) * reciprocal
            wanted = g * scale
            along, common = exchange(step % 2, kd.sum(wanted * normal), kd.sum(wanted) if centred else None)
            change = wanted - normal * (along * (1 / columns))
            if centred:
                change = change - common * (1 / columns)
            dx[row, across] = (change * reciprocal).astype(x.dtype)
            gradients = (g * normal, g)[: len(parts)]
            return following, tuple(a + b for a, b in zip(so_far, gradients, strict=True))

        for ref, mine in zip(parts, totals[1], strict=True):
            ref[block, across] = mine

    return backward


COLUMNS = 32


@functools.cache
def column_sums(dtype: Any) -> Any:
    """The sums down the columns of some arrays of one shape, as `dtype`."""

    @kd.kernel(
        out_type=lambda *parts: tuple(kd.ShapeDtypeStruct(p.shape[1:], dtype) for p in parts),
        grid=lambda *parts: (kd.cdiv(parts[0].shape[1], COLUMNS), len(parts)),
        grid_names=("block", "which"),
    )
    def sums(*refs: Any) -> None:
        across = kd.ds(kd.axis_index("block") * COLUMNS, COLUMNS)
        half = len(refs) // 2
        for i in range(half):

            @kd.when(kd.axis_index("which") == i)
            def _(i: int = i) -> None:
                refs[half + i][across] = kd.sum(refs[i][:, across], axis=0).astype(dtype)

    return sums


def forward_for(shape: tuple[int, int], centred: bool) -> Any:
    """The forward kernel that suits this shape."""
    columns = shape[1]
    if columns > 8192:
        warpgroups = min(8, max(2, kd.cdiv(columns, 16384)))
        return long_kernel(centred, warpgroups, 112 if warpgroups <= 4 else None)
    return rows_kernel(centred, max(1, 2048 // max(1, columns)), early=columns <= 4096)


def layer_norm(x: Any, gamma: Any, beta: Any) -> tuple[Any, Any, Any]:
    """Layer norm of a 2-D array along its last axis; the rows' means and reciprocal deviations."""
    return forward_for(x.shape, True)(x, gamma, beta)


def rms_norm(x: Any, gamma: Any) -> tuple[Any, Any]:
    """RMS norm of a 2-D array along its last axis; the rows' reciprocal deviations."""
    return forward_for(x.shape, False)(x, gamma)


def backward_for(shape: tuple[int, int], centred: bool) -> Any:
    """The backward kernel for this shape: sixteen elements a lane, or thirty-two for long rows of layer norm."""
    if centred and 4096 < shape[1] <= 8192:
        return backward_kernel(centred, 2, 3, MULTIPROCESSORS)
    warpgroups = min(8, kd.cdiv(shape[1], 2048))
    return backward_kernel(centred, warpgroups, 3, max(1, 4 // warpgroups) * MULTIPROCESSORS)


def norm_backward(x: Any, dy: Any, gamma: Any, *statistics: Any) -> tuple[Any, ...]:
    """The gradients of x, gamma (and beta). `statistics`: the forward kernel's outputs after y."""
    dx, *parts = backward_for(x.shape, len(statistics) == 2)(x, dy, gamma, *statistics)
    return dx, *column_sums(gamma.dtype)(*parts)


def reference(centred: bool, x: Any, dy: Any, gamma: Any, beta: Any) -> tuple[Any, ...]:
    """y and the gradients of x, gamma and beta, in float64."""
    x, dy, gamma, beta = (a.astype(np.float64) for a in (x, dy, gamma, beta))
    difference = x - x.mean(-1, keepdims=True) * centred
    reciprocal = 1 / np.sqrt((difference**2).mean(-1, keepdims=True) + 1e-5)
    normal, wanted = difference * reciprocal, dy * gamma
    along, common = (wanted * normal).mean(-1, keepdims=True), wanted.mean(-1, keepdims=True) * centred
    dx = (wanted - normal * along - common) * reciprocal
    return normal * gamma + beta * centred, dx, (dy * normal).sum(0), dy.sum(0)


def main() -> None:
    """Check both norms and all gradients against NumPy."""
    rng = np.random.default_rng(0)
    for centred, shape in [
        (True, (9, 100)),
        (True, (5, 2048)),
        (False, (7, 4096)),
        (True, (3, 9001)),
        (True, (2, 16384)),
    ]:
        for dtype, tolerance in [(np.dtype(np.float32), 1e-5), (kd.bfloat16.numpy, 2e-2)]:
            x, dy = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
            gamma, beta = (rng.standard_normal(shape[1]).astype(dtype) for _ in range(2))
            y, *statistics = layer_norm(x, gamma, beta) if centred else rms_norm(x, gamma)
            got = (y, *norm_backward(x, dy, gamma, *statistics))
            worst = 0.0
            for ours, expected in zip(got, reference(centred, x, dy, gamma, beta), strict=False):
                error = np.linalg.norm(ours.astype(np.float64) - expected) / np.linalg.norm(expected)
                worst = max(worst, float(error))
            print(f"{'layer' if centred else 'RMS'} norm {shape} {dtype.name}: worst relative error {worst:.1e}")
            assert worst < tolerance


if __name__ == "__main__":
    main()

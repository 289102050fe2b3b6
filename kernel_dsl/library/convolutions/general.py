"""Convolutions and their gradients for all targets, strides and groups: products with gathered rows.

A block computes a tile of the result as a matrix: pixels by filters, pixels by channels, or filters by channels of one
tap. Elements outside of an image or of another group are masked and count as zero.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import kernel_dsl as kd
from kernel_dsl.kernel import identified

from ..first_sizes import dim_of, is_open
from ..part_sums import sum_of_parts
from .problem import MOST, ConvProblem, results_of

PIXELS, STEP = 64, 32  # pixels of a tile; terms of the sum in a step
COLUMNS = 64  # the most columns of a tile
SUMMED, IN_FLIGHT = 512, 8  # elements whose parts a block adds up, and parts that it loads before it adds them
PARTS = dim_of("parts")  # the number of parts of a gradient of filters


def width_of(n: int) -> int:
    """The number of columns of a tile, a power of two, for a result of `n` columns."""
    return min(max(1 << (n - 1).bit_length(), 8), COLUMNS)


def _pixels(first: Any, count: int, height: int, width: int, images: int) -> tuple[Any, Any, Any, Any]:
    """(image, row, column, whether it exists) of `count` pixels from number `first` on."""
    area, total = height * width, images * (height * width)
    if is_open(images):
        # all numbers are below 2**31. The trace does not know this, and would compute indices again in 64 bits
        first, area, total = (kd.optimization_barrier(n) for n in (first, area, total))
        pixel, area = kd.clip(first, 0, MOST - count) + kd.arange(count), kd.maximum(area, 1)
        rest = kd.rem(pixel, area)
        return kd.div(pixel, area), kd.div(rest, width), kd.rem(rest, width), pixel < total
    pixel = first + kd.arange(count)
    image = kd.div(pixel, area)
    rest = pixel - image * area
    row = kd.div(rest, width)
    return image, row, rest - row * width, pixel < total


def _seen(p: ConvProblem, place: tuple[Any, Any], tap: tuple[Any, Any]) -> tuple[Any, Any, Any]:
    """(row, column, whether it is in the image) of the element of x that a tap reads for a result."""
    y = place[0] * p.stride[0] + (tap[0] * p.dilation[0] - p.padding[0])
    x = place[1] * p.stride[1] + (tap[1] * p.dilation[1] - p.padding[1])
    return y, x, (y >= 0) & (y < p.height) & (x >= 0) & (x < p.width)


def _seeing(
    p: ConvProblem, sizes: tuple[Any, ...], place: tuple[Any, Any], tap: tuple[Any, Any]
) -> tuple[Any, Any, Any]:
    """(row, column, whether it exists) of the result, of these sizes, for which a tap reads a place of x."""
    found: list[tuple[Any, Any]] = []
    for axis, size in enumerate(sizes):
        shifted = place[axis] + (p.padding[axis] - tap[axis] * p.dilation[axis])
        number = kd.div(shifted, p.stride[axis])
        there = (shifted >= 0) & (number < size)
        if p.stride[axis] > 1:
            there = there & (number * p.stride[axis] == shifted)
        found.append((number, there))
    return found[0][0], found[1][0], found[0][1] & found[1][1]


def _tap(p: ConvProblem, number: Any) -> tuple[Any, Any]:
    row = kd.div(number, p.taps[1])
    return row, number - row * p.taps[1]


def _grouped(number: Any, count: int, size: int) -> tuple[Any, Any]:
    """(group, first column in it) of tile `number`; a group has `count` tiles of `size`."""
    group = kd.div(number, count)
    return group, (number - group * count) * size


def _tiles(p: ConvProblem, pixels: Any) -> Any:
    """Blocks along pixels, at least one."""
    return kd.cdiv(pixels, PIXELS) if p.opened else max(kd.cdiv(pixels, PIXELS), 1)


@cache
def conv_general(problem: ConvProblem) -> Any:
    """The kernel `(x, w) -> out`."""
    p, columns = problem, width_of(problem.share)
    tiles, steps = kd.cdiv(p.share, columns), kd.cdiv(p.depth, STEP)

    def body(x: Any, w: Any, out: Any) -> None:
        p = problem.at_launch(x)
        if not p.opened and not p.pixels:
            return
        image, row, column, exists = _pixels(kd.program_id(0) * PIXELS, PIXELS, p.out_height, p.out_width, p.batch)
        group, first = _grouped(kd.program_id(1), tiles, columns)
        filters = kd.ds(group * p.share + first, columns)

        def add(number: Any, acc: Any) -> Any:
            tap_number = kd.div(number, steps)
            start, tap = (number - tap_number * steps) * STEP, _tap(p, tap_number)
            y, z, there = _seen(p, (row, column), tap)
            own = start + kd.arange(STEP) < p.depth
            index = image, y, z, kd.ds(group * p.depth + start, STEP)
            left = kd.load(x, index, mask=(there & exists)[:, None] & own[None])
            right = w[filters, tap[0], tap[1], kd.ds(start, STEP)]
            return kd.dot(left, right.T, acc=acc)

        zero = kd.zeros((PIXELS, columns), kd.float32)
        acc = kd.fori_loop(0, p.taps[0] * p.taps[1] * steps, add, zero)
        own = first + kd.arange(columns) < p.share
        kd.store(out, (image, row, column, filters), acc.astype(p.dtype), mask=exists[:, None] & own[None])

    made = kd.kernel(
        body,
        out_type=kd.ShapeDtypeStruct(p.out_shape, p.dtype),
        grid=(_tiles(p, p.pixels), p.groups * tiles),
        shapes=p.shapes("x", "", "out"),
        name="conv2d_general",
    )
    return identified(made, problem)


@cache
def dgrad_kernel(problem: ConvProblem) -> Any:
    """The kernel `(dout, w) -> dx`.

    For any images it takes two more inputs. Their extents are 1 + the rows, and 1 + the columns, at an image's end that
    the stride leaves out, because the size of dout does not show these.
    """
    p, columns = problem, width_of(problem.depth)
    tiles, steps = kd.cdiv(p.depth, columns), kd.cdiv(p.share, STEP)
    rests = [dim_of(name, stride) for name, stride in zip(("rest_height", "rest_width"), p.stride, strict=True)]
    sizes: list[Any] = [p.height, p.width]
    if p.opened:
        outs = results_of(p.batch)[1:3]
        sizes = [p.seen_by(n, axis) + rests[axis] - 1 for axis, n in enumerate(outs)]
    pixels = p.batch * sizes[0] * sizes[1]

    def any_images(dout: Any, w: Any, rest_height: Any, rest_width: Any, dx: Any) -> None:
        body(dout, w, dx)

    def body(dout: Any, w: Any, dx: Any) -> None:
        p = problem.at_launch(dx)
        if not problem.opened and not pixels:
            return
        image, row, column, exists = _pixels(kd.program_id(0) * PIXELS, PIXELS, p.height, p.width, p.batch)
        group, first = _grouped(kd.program_id(1), tiles, columns)
        results = (p.out_height, p.out_width) if not problem.opened else tuple(dout.shape[1:3])

        def add(number: Any, acc: Any) -> Any:
            tap_number = kd.div(number, steps)
            start, tap = (number - tap_number * steps) * STEP, _tap(p, tap_number)
            y, z, there = _seeing(p, results, (row, column), tap)
            own = start + kd.arange(STEP) < p.share
            filters = kd.ds(group * p.share + start, STEP)
            left = kd.load(dout, (image, y, z, filters), mask=(there & exists)[:, None] & own[None])
            right = kd.load(w, (filters, tap[0], tap[1], kd.ds(first, columns)), mask=own[:, None])
            return kd.dot(left, right, acc=acc)

        zero = kd.zeros((PIXELS, columns), kd.float32)
        acc = kd.fori_loop(0, p.taps[0] * p.taps[1] * steps, add, zero)
        own = first + kd.arange(columns) < p.depth
        place = image, row, column, kd.ds(group * p.depth + first, columns)
        kd.store(dx, place, acc.astype(p.dtype), mask=exists[:, None] & own[None])

    made = kd.kernel(
        any_images if p.opened else body,
        out_type=kd.ShapeDtypeStruct((p.batch, *sizes, p.channels), p.dtype),
        grid=(_tiles(p, pixels), p.groups * tiles),
        shapes={0: results_of(p.batch), 2: (rests[0],), 3: (rests[1],), 4: p.x_shape} if p.opened else None,
        name="conv2d_dgrad",
    )
    return identified(made, problem)


def wgrad_grid(p: ConvProblem) -> tuple[int, int, int]:
    """(tiles of a group's filters, of its channels, all blocks of one part) of the gradient of filters."""
    rows, columns = (kd.cdiv(n, width_of(n)) for n in (p.share, p.depth))
    return rows, columns, rows * columns * p.groups * p.taps[0] * p.taps[1]


def partial_sums(p: ConvProblem, parts: int) -> Any:
    """`out_type` of a gradient of filters; with parts, that of their sums."""
    if parts == 1:
        return kd.ShapeDtypeStruct(p.w_shape, p.dtype)
    return kd.ShapeDtypeStruct((PARTS if p.opened else parts, *p.w_shape), kd.float32)


def part_shapes(p: ConvProblem, parts: int) -> dict[int, tuple[Any, ...]] | None:
    """`shapes=` of a kernel of a gradient of filters. With parts, for any images, the extent of its third input is the
    number of parts.
    """
    found = p.shapes("x", "out")
    if found is not None and parts > 1:
        found |= {2: (PARTS,), 3: (PARTS, *p.w_shape)}
    return found


def with_parts(body: Any) -> Any:
    """The body of a kernel `(x, dout, like) -> dw`. The extent of `like` is the number of parts, as is the first extent
    of the result.
    """

    def any_parts(x: Any, dout: Any, like: Any, dw: Any, **buffers: Any) -> None:
        body(x, dout, dw, **buffers)

    return any_parts


@cache
def wgrad_parts(p: ConvProblem, multiprocessors: int, least: int = 1) -> int:
    """The number of parts of the sum over pixels: one for each multiprocessor; `least` for few pixels."""
    return max(min(multiprocessors // wgrad_grid(p)[2], max(kd.cdiv(p.pixels, 8 * STEP), least)), 1)


@cache
def wgrad_kernel(problem: ConvProblem, parts: int) -> Any:
    """The kernel `(x, dout) -> dw`, or with parts `-> partial sums` (parts, *dw), float32.

    For any images the kernel takes any number of parts, the extent of its last input.
    """
    p, counted = problem, problem.opened and parts > 1
    rows, columns = width_of(p.share), width_of(p.depth)
    row_tiles, column_tiles, _ = wgrad_grid(p)

    def body(x: Any, dout: Any, dw: Any) -> None:
        p = problem.at_launch(x)
        steps = kd.cdiv(kd.cdiv(p.pixels, dw.shape[0] if counted else parts), STEP)  # steps of a part
        rest, channel_tile = kd.program_id(0), kd.program_id(1)
        tap_number = kd.div(rest, row_tiles * p.groups)
        group, first = _grouped(rest - tap_number * (row_tiles * p.groups), row_tiles, rows)
        tap, start, part = _tap(p, tap_number), channel_tile * columns, kd.program_id(2)
        filters = kd.ds(group * p.share + first, rows)

        def add(step: Any, acc: Any) -> Any:
            pixel = (part * steps + step) * STEP
            image, row, column, exists = _pixels(pixel, STEP, p.out_height, p.out_width, p.batch)
            y, z, there = _seen(p, (row, column), tap)
            mask = (there & exists)[:, None]
            left = kd.load(dout, (image, row, column, filters), mask=mask)
            right = kd.load(x, (image, y, z, kd.ds(group * p.depth + start, columns)), mask=mask)
            return kd.dot(left.T, right, acc=acc)

        acc = kd.fori_loop(0, steps, add, kd.zeros((rows, columns), kd.float32))
        own = first + kd.broadcasted_iota(kd.int32, (rows, columns), 0) < p.share
        place = filters, *tap, kd.ds(start, columns)
        if parts > 1:
            kd.store(dw.at[part], place, acc, mask=own)
        else:
            kd.store(dw, place, acc.astype(p.dtype), mask=own)

    blocks = row_tiles * p.groups * p.taps[0] * p.taps[1], column_tiles
    made = kd.kernel(
        with_parts(body) if counted else body,
        out_type=partial_sums(p, parts),
        grid=(*blocks, PARTS if counted else parts),
        shapes=part_shapes(p, parts),
        name="conv2d_wgrad",
    )
    return identified(made, problem, parts)


@cache
def wgrad_sum_kernel(problem: ConvProblem, parts: int) -> Any:
    """The kernel `(partial sums) -> dw`. It adds them in order, so each call gives the same bits.

    For any images the partial sums are (parts, elements).
    """
    p = problem
    size = p.filters * p.taps[0] * p.taps[1] * p.depth

    def body(partial: Any, dw: Any) -> None:
        count = partial.shape[0] if p.opened else parts
        sums, out = partial if p.opened else partial.reshape(parts, size), dw.reshape(size)
        mine = kd.ds(kd.program_id(0) * SUMMED, SUMMED)
        out[mine] = sum_of_parts(lambda number: sums[number, mine], count, IN_FLIGHT).astype(p.dtype)

    made = kd.kernel(
        body,
        out_type=kd.ShapeDtypeStruct(p.w_shape, p.dtype),
        grid=(kd.cdiv(size, SUMMED),),
        shapes={0: (PARTS, size)} if p.opened else None,
        name="conv2d_wgrad_sum",
    )
    return identified(made, problem, parts)

"""Convolutions of stride 1 on Hopper: the persistent, warp-specialised product. TMA loads its rows from images.

A tile has the pixels of a box of images, rows and columns. For each tap, TMA loads the box at the tap's offset, with
zeros outside the image. In SMEM its pixels are the rows of wgmma's operand, one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import kernel_dsl as kd
from kernel_dsl.target import Feature, Target

from ..kernel import identified
from ..refs import strides_of
from .conv_problem import ConvProblem
from .fast_sizes import BARRIERS, SMEM
from .first_sizes import KeptConfigs
from .operands import array_address, element_strides, why_not_tma
from .pack import SECTOR, Packing
from .stage_product import following_slot, ragged_product, stage_product
from .stage_ring import swizzled

DEPTH = 64  # channels of a stage: a row of the widest swizzle
SLICE = 16  # channels of one wgmma
BAND = 8  # tiles of pixels in a band that shares L2
WIDTHS = (64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256)  # filters of a tile
MANY = 264  # tiles: clusters take 2 to 3 us more to start
HIGH, NARROW = 256, 144  # pixels of a tile of so many filters at most


@dataclass(frozen=True)
class ConvConfig:
    """`box`: images, rows and columns of a tile, 64 pixels for each of the `consumers` or 128; `tile_n`: filters of a
    tile.

    `cluster`: blocks with tiles of the same filters, which they load by multicast.
    """

    box: tuple[int, int, int]
    tile_n: int = 256
    stages: int = 4
    consumers: int = 2
    epilogue_n: int = 64
    cluster: int = 1

    @property
    def tile_m(self) -> int:
        return self.box[0] * self.box[1] * self.box[2]

    @property
    def cut(self) -> int:
        """The axis along which consumers share the box: the first with an extent over 1."""
        return next(axis for axis, n in enumerate(self.box) if n > 1)

    @property
    def share(self) -> tuple[int, int, int]:
        """The box of one consumer."""
        images, rows, columns = (n // self.consumers if axis == self.cut else n for axis, n in enumerate(self.box))
        return images, rows, columns


def boxed(stages: int, box: tuple[int, int, int], columns: int, dtype: Any) -> Any:
    """Stages of a box of pixels, in two shapes: as TMA's box, and as rows of pixels for wgmma."""
    swizzle = kd.find_swizzle(columns * dtype.bits)  # as wide as a row
    rows = kd.SwizzleTransform(swizzle)
    tiles = kd.TilingTransform((8, swizzle // dtype.itemsize)), rows
    pixels = box[0] * box[1] * box[2]
    return kd.RefUnion(
        kd.SMEM((stages, *box, columns), dtype, transforms=(rows,)),
        kd.SMEM((stages, pixels, columns), dtype, transforms=tiles),
    )


@cache
def boxes(p: ConvProblem, pixels: int = 128) -> tuple[int, int, int]:
    """The box of `pixels` pixels, with powers of two as extents, that covers the results with the least waste; of equal
    boxes the squarest.
    """
    found: list[tuple[int, int, tuple[int, int, int]]] = []
    columns = 1
    while columns <= pixels:
        rows = 1
        while columns * rows <= pixels:
            box = (pixels // (columns * rows), rows, columns)
            tiles = 1
            for size, part in zip((p.batch, p.out_height, p.out_width), box, strict=True):
                tiles *= kd.cdiv(size, part)
            found.append((tiles, abs(rows - columns), box))
            rows *= 2
        columns *= 2
    return min(found)[2]


@cache
def conv_kernel(problem: ConvProblem, config: ConvConfig, blocks: int) -> Any:
    """The kernel `(x, w) -> out` of a problem of one group and stride 1 in 16 bits, on `blocks` multiprocessors."""
    p, t = problem, config
    tiles_n = kd.cdiv(p.filters, t.tile_n)

    def tiles_of(sizes: Any) -> tuple[list[Any], Any, Any]:
        """(boxes along each axis, clusters of tiles of pixels, and all clusters) of results of these sizes."""
        counts = [kd.cdiv(size, part) for size, part in zip(sizes, t.box, strict=True)]
        tiles_m = kd.cdiv(counts[0] * counts[1] * counts[2], t.cluster)
        return counts, tiles_m, tiles_m * tiles_n

    axes = ("cluster",) if t.cluster > 1 else ()
    chunks = kd.cdiv(p.channels, DEPTH)
    steps = p.taps[0] * p.taps[1] * chunks
    tail = kd.cdiv(p.channels - (chunks - 1) * DEPTH, SLICE) * SLICE  # channels of the last chunk that are multiplied
    most = blocks // t.cluster
    count = most if p.opened else max(min(tiles_of(p.out_shape[:3])[2], most), 1)
    producer, rows = t.consumers, t.tile_m // t.consumers
    parts = t.tile_n // t.epilogue_n
    ring = min(2, parts)
    scratch = {
        "x_smem": boxed(t.stages, t.box, DEPTH, p.dtype),
        "w_smem": swizzled(t.tile_n, DEPTH, p.dtype, t.stages),
        "out_smem": boxed(t.consumers * ring, t.share, t.epilogue_n, p.dtype),
        "loaded": kd.Barrier(num_arrivals=2, num_barriers=t.stages),
        "consumed": kd.ClusterBarrier(collective_axes=axes, num_arrivals=t.consumers, num_barriers=t.stages)
        if axes
        else kd.Barrier(num_arrivals=t.consumers, num_barriers=t.stages),
    }

    def place_of(index: Any, counts: list[Any], tiles_m: Any) -> tuple[tuple[Any, Any, Any], Any]:
        """(first image, row and column, first filter) of a tile."""
        m, n = kd.planar_snake(index, (tiles_m, tiles_n), 0, min(BAND, tiles_m) if isinstance(tiles_m, int) else BAND)
        if axes:
            m = m * t.cluster + kd.axis_index("cluster")
        rest = kd.div(m, counts[2])
        image = kd.div(rest, counts[1])
        numbers = image, rest - image * counts[1], m - rest * counts[2]
        first = [number * part for number, part in zip(numbers, t.box, strict=True)]
        return (first[0], first[1], first[2]), n * t.tile_n

    def produce(tiles: Any, x: Any, w: Any, x_smem: Any, w_smem: Any, loaded: Any, consumed: Any) -> None:
        kd.set_max_registers(40, action="decrease")
        *places, total = tiles

        @kd.loop(kd.axis_index("block"), total, step=count, init_carry=(0, 0))
        def _(index: Any, carry: Any) -> Any:
            (image, row, column), n = place_of(index, *places)

            @kd.loop(0, steps, init_carry=carry)
            def end(step: Any, carry: Any) -> Any:
                slot, filled = carry

                @kd.when(filled >= t.stages)
                def _() -> None:
                    kd.barrier_wait(consumed.at[slot])

                tap = kd.div(step, chunks)
                r = kd.div(tap, p.taps[1])
                s, c = tap - r * p.taps[1], kd.ds((step - tap * chunks) * DEPTH, DEPTH)
                y, z = row + (r * p.dilation[0] - p.padding[0]), column + (s * p.dilation[1] - p.padding[1])
                box = kd.ds(image, t.box[0]), kd.ds(y, t.box[1]), kd.ds(z, t.box[2])
                kd.copy_gmem_to_smem(x.at[(*box, c)], x_smem.at[slot], loaded.at[slot])
                filters = w.at[kd.ds(n, t.tile_n), r, s, c]
                kd.copy_gmem_to_smem(filters, w_smem.at[slot], loaded.at[slot], collective_axes=axes or None)
                return following_slot(slot, t.stages), kd.minimum(filled + 1, t.stages)

            return end

    def consume(
        tiles: Any, me: Any, out: Any, x_smem: Any, out_smem: Any, w_smem: Any, loaded: Any, consumed: Any
    ) -> None:
        kd.set_max_registers(232 if t.consumers == 2 else 240, action="increase")
        own, (*places, total) = kd.ds(me * rows, rows), tiles

        def left_of(slot: Any) -> Any:
            return x_smem.at[slot, own]

        def right_of(slot: Any) -> Any:
            return w_smem.at[slot].T

        @kd.loop(kd.axis_index("block"), total, step=count, init_carry=0)
        def _(index: Any, slot: Any) -> Any:
            first, n = place_of(index, *places)

            def multiply(acc: Any) -> Any:
                sides = left_of, right_of, loaded.at.__getitem__, consumed
                if tail == DEPTH:
                    return stage_product(acc, slot, steps, t.stages, *sides)
                return ragged_product(acc, slot, p.taps[0] * p.taps[1], chunks, tail, t.stages, *sides)

            value, slot_after = kd.run_scoped(multiply, kd.ACC((rows, t.tile_n), kd.float32))
            mine = [f + me * n if axis == t.cut else f for axis, (f, n) in enumerate(zip(first, t.share, strict=True))]
            place = tuple(kd.ds(f, n) for f, n in zip(mine, t.share, strict=True))
            for number in range(parts):
                start = number * t.epilogue_n
                own_part = me * ring + number % ring
                # a tile starts with the first buffer, which the tile before may still use
                kd.wait_smem_to_gmem(0 if number == 0 and parts % ring else ring - 1, wait_read_only=True)
                out_smem[1].at[own_part][...] = value[:, start : start + t.epilogue_n].astype(p.dtype)
                kd.commit_smem()
                kd.copy_smem_to_gmem(out_smem[0].at[own_part], out.at[(*place, kd.ds(n + start, t.epilogue_n))])
            return slot_after

        kd.wait_smem_to_gmem(0, wait_read_only=True)  # the copies have read SMEM; the kernel's end waits for the writes

    def body(x: Any, w: Any, out: Any, *, x_smem: Any, out_smem: Any, **buffers: Any) -> None:
        tiles = tiles_of(out.shape[:3])
        me = kd.axis_index("wg")

        @kd.when(me == producer)
        def _() -> None:
            produce(tiles, x, w, x_smem[0], **buffers)

        @kd.when(me < producer)
        def _() -> None:
            consume(tiles, me, out, x_smem[1], out_smem, **buffers)

    kernel = kd.kernel(
        body,
        out_type=kd.ShapeDtypeStruct(p.out_shape, p.dtype),
        shapes=p.shapes("x", "", "out"),
        scratch_types=scratch,
        grid=(count,),
        grid_names=("block",),
        cluster=(t.cluster,) if axes else (),
        cluster_names=axes,
        num_threads=t.consumers + 1,
        thread_name="wg",
        name="conv2d",
    )
    return identified(kernel, problem, config, blocks)


@cache
def turn_kernel(problem: ConvProblem) -> Any:
    """The kernel `w -> w`, (C, R, S, F) with taps in reverse: filters by which `conv2d` gives the gradient of its images."""
    p, (taps_y, taps_x) = problem, problem.taps
    layout = Packing(p.channels, p.filters, p.dtype, p.dtype, turned=True).layout
    height, width = layout.padded

    def body(w: Any, out: Any) -> None:
        channels, filters = kd.ds(kd.program_id(0) * height, height), kd.ds(kd.program_id(1) * width, width)
        row = kd.div(kd.program_id(2), taps_x)
        column = kd.program_id(2) - row * taps_x
        turned = kd.load(w.at[filters, row, column, channels].T, layout=layout)
        out[channels, taps_y - 1 - row, taps_x - 1 - column, filters] = turned

    made = kd.kernel(
        body,
        out_type=kd.ShapeDtypeStruct((p.channels, *p.taps, p.filters), p.dtype),
        grid=(kd.cdiv(p.channels, height), kd.cdiv(p.filters, width), taps_y * taps_x),
        name="conv2d_turn",
    )
    return identified(made, problem)


@cache
def backward(p: ConvProblem) -> ConvProblem:
    """The convolution of dout by turned filters that gives the gradient of the images of `p`, whose stride is 1."""
    top, left = (d * (n - 1) - q for d, n, q in zip(p.dilation, p.taps, p.padding, strict=True))
    return replace(
        p, height=p.out_height, width=p.out_width, channels=p.filters, filters=p.channels, padding=(top, left)
    )


_kept = KeptConfigs()


def box_of_any(p: ConvProblem, general: ConvProblem, pixels: int = 128) -> tuple[int, int, int]:
    """The box for a problem. It prefers a box that kernels for any images already have, if that wastes little more than
    the best one.
    """
    return _kept.choose((general, pixels), boxes(p, pixels), lambda box: tiles_in(p, box))


def tiles_in(p: ConvProblem, box: tuple[int, int, int]) -> int:
    """The number of boxes that cover all results."""
    return math.prod(kd.cdiv(size, n) for size, n in zip((p.batch, p.out_height, p.out_width), box, strict=True))


@cache
def config_of(p: ConvProblem) -> ConvConfig:
    """A configuration for a problem. The time of a tile grows with its filters + 64, because any number of filters
    reads the pixels from SMEM. Tiles of few filters have twice as many pixels, which take fewer loads, if one has all filters
    or TMA takes longer: where channels begin within sectors of 32 bytes. Then two blocks load their filters together, too. Both
    ask for many tiles.
    """
    width = min(WIDTHS, key=lambda n: kd.cdiv(p.filters, n) * (n + 64))
    broken = bool(p.channels * p.dtype.itemsize % SECTOR)
    high = boxes(p, HIGH)
    fits = width <= NARROW and (broken or width >= p.filters) and tiles_in(p, high) * kd.cdiv(p.filters, width) >= MANY
    pixels, box = (HIGH, high) if fits else (128, boxes(p))
    together = broken and tiles_in(p, box) * kd.cdiv(p.filters, width) >= MANY
    part = math.gcd(width, 64)  # a row of a swizzle
    room = SMEM - BARRIERS - 2 * pixels * part * p.dtype.itemsize
    stages = min(room // ((pixels + width) * DEPTH * p.dtype.itemsize), 4 if width % 64 == 0 else 5)
    return ConvConfig(box, width, stages, epilogue_n=part, cluster=2 if together else 1)


def why_not(p: ConvProblem, machine: Target, arrays: Sequence[Any]) -> str:
    """The reason why this kernel can't take a problem and its arrays (images, filters and results); empty if it can."""
    if not machine.supports(Feature.WGMMA | Feature.TMA):
        return f"{machine} has no wgmma"
    if p.dtype.itemsize != 2:
        return f"wgmma does not multiply {p.dtype} exactly"
    if p.groups > 1 or p.stride != (1, 1):
        return "there are groups or strides"
    for x in arrays:
        if not hasattr(x, "dtype") or not isinstance(getattr(x, "shape", None), tuple):
            continue  # the launch refuses what is no array
        shape = tuple(x.shape)
        why = why_not_tma(shape, element_strides(x) or strides_of(shape), p.dtype.itemsize, array_address(x))
        if why:
            return f"an array can't be copied by TMA: {why}"
    if p.filters % 8:
        return f"a pixel of the result has {p.filters} elements"
    return ""

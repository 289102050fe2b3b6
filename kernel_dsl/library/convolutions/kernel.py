"""Convolutions of stride 1 on Hopper: the persistent, warp-specialised product. TMA loads its rows from images.

A tile has the pixels of a box of images, rows and columns. For each tap, TMA loads the box at the tap's offset, with
zeros outside the image. In SMEM its pixels are the rows of wgmma's operand, one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import kernel_dsl as kd
from kernel_dsl.dtypes import as_dtype
from kernel_dsl.kernel import identified
from kernel_dsl.refs import strides_of
from kernel_dsl.target import TMA_WGMMA, Target

from ..first_sizes import KeptConfigs
from ..product_kernels.pack import SECTOR, Packing
from ..product_routes.fast_sizes import BARRIERS, SMEM
from ..products.operands import array_address, element_strides, why_not_tma
from ..stage_product import ragged_product, stage_product
from ..stage_ring import StageRing, await_buffer, await_release, fill_stages, released, swizzled
from .problem import ConvProblem

DEPTH = 64  # channels of a stage: a row of the widest swizzle
SLICE = 16  # channels of one wgmma
BAND = 8  # tiles of pixels in a band that shares L2
WIDTHS = (64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256)  # filters of a tile
MANY = 264  # tiles: clusters take 2 to 3 us more to start
HIGH, NARROW = 256, 144  # pixels of a tile of so many filters at most


@dataclass(frozen=True)
class ConvConfig:
    """Sizes of the convolution's kernel.

    `box`: images, rows and columns of a tile, 64 pixels for each of the `consumers` or 128. `tile_n`: filters of a tile.
    `cluster`: blocks with tiles of the same filters, which they load by multicast. `depth`: channels of a stage.
    """

    box: tuple[int, int, int]
    tile_n: int = 256
    stages: int = 4
    consumers: int = 2
    epilogue_n: int = 64
    cluster: int = 1
    depth: int = DEPTH

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


@dataclass(frozen=True)
class ConvTiling:
    """The tiles of a convolution, for `count` clusters of blocks; `counts`, `tiles_m`: of its results, by `at_launch`.

    `turned`: filters lie as (channels, rows, columns, filters), taps in reverse: as those of a convolution whose gradient this
    is. `counts`: boxes along each axis; `tiles_m`: clusters of tiles of pixels.
    """

    p: ConvProblem
    t: ConvConfig
    count: int
    turned: bool = False
    counts: Sequence[Any] = ()
    tiles_m: Any = 0

    @property
    def tiles_n(self) -> int:
        """Tiles of filters."""
        return kd.cdiv(self.p.filters, self.t.tile_n)

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of a cluster."""
        return ("cluster",) if self.t.cluster > 1 else ()

    @property
    def chunks(self) -> int:
        """Stages of a tap."""
        return kd.cdiv(self.p.channels, self.t.depth)

    @property
    def steps(self) -> int:
        """Stages of a tile."""
        return self.p.taps[0] * self.p.taps[1] * self.chunks

    @property
    def rows(self) -> int:
        """Pixels of a consumer."""
        return self.t.tile_m // self.t.consumers

    @property
    def parts(self) -> int:
        """The parts in which a tile is stored."""
        return self.t.tile_n // self.t.epilogue_n

    @property
    def buffers(self) -> int:
        """Buffers of a consumer that stores."""
        return min(2, self.parts)

    def at_launch(self, sizes: Sequence[Any]) -> ConvTiling:
        """The tiles of results of these sizes."""
        counts = [kd.cdiv(size, part) for size, part in zip(sizes, self.t.box, strict=True)]
        return replace(self, counts=counts, tiles_m=kd.cdiv(counts[0] * counts[1] * counts[2], self.t.cluster))

    def scratch(self) -> dict[str, Any]:
        """SMEM and barriers of a block."""
        p, t = self.p, self.t
        return {
            "x_smem": boxed(t.stages, t.box, t.depth, p.dtype),
            "w_smem": swizzled(*((t.depth, t.tile_n) if self.turned else (t.tile_n, t.depth)), p.dtype, t.stages),
            "out_smem": boxed(t.consumers * self.buffers, t.share, t.epilogue_n, p.dtype),
            "loaded": kd.Barrier(num_arrivals=2, num_barriers=t.stages),
            "consumed": released(self.axes, t.consumers, t.stages),
        }

    def each_tile(self, total: Any, carry: Any) -> Any:
        """A decorator that calls `body(index, carry)` for the tiles of this block."""
        return kd.loop(kd.axis_index("block"), total, step=self.count, init_carry=carry)

    def place_of(self, index: Any) -> tuple[tuple[Any, Any, Any], Any]:
        """(first image, row and column, first filter) of a tile."""
        counts, tiles_m = self.counts, self.tiles_m
        band = min(BAND, tiles_m) if isinstance(tiles_m, int) else BAND
        m, n = kd.planar_snake(index, (tiles_m, self.tiles_n), 0, band)
        if self.axes:
            m = m * self.t.cluster + kd.axis_index("cluster")
        rest = kd.div(m, counts[2])
        image = kd.div(rest, counts[1])
        numbers = image, rest - image * counts[1], m - rest * counts[2]
        first = [number * part for number, part in zip(numbers, self.t.box, strict=True)]
        return (first[0], first[1], first[2]), n * self.t.tile_n


@cache
def conv_kernel(problem: ConvProblem, config: ConvConfig, blocks: int, turned: bool = False) -> Any:
    """The kernel `(x, w) -> out` of a problem of one group and stride 1 in 16 bits, on `blocks` multiprocessors. `turned`: as of
    `ConvTiling`.
    """
    p, t = problem, config
    most = blocks // t.cluster
    tiling = ConvTiling(p, t, most, turned)
    if not p.opened:
        here = tiling.at_launch(p.out_shape[:3])
        tiling = replace(tiling, count=max(min(here.tiles_m * here.tiles_n, most), 1))

    def body(x: Any, w: Any, out: Any, *, x_smem: Any, out_smem: Any, w_smem: Any, **barriers: Any) -> None:
        here = tiling.at_launch(out.shape[:3])
        total = here.tiles_m * here.tiles_n
        me = kd.axis_index("wg")

        @kd.when(me == t.consumers)
        def _() -> None:
            _produce(here, total, x, w, StageRing(x_smem[0], w_smem, **barriers))

        @kd.when(me < t.consumers)
        def _() -> None:
            _consume(here, total, me, out, StageRing(x_smem[1], w_smem, **barriers), out_smem)

    kernel = kd.kernel(
        body,
        out_type=kd.ShapeDtypeStruct(p.out_shape, p.dtype),
        shapes=p.shapes("x", "", "out"),
        scratch_types=tiling.scratch(),
        grid=(tiling.count,),
        grid_names=("block",),
        cluster=(t.cluster,) if tiling.axes else (),
        cluster_names=tiling.axes,
        num_threads=t.consumers + 1,
        thread_name="wg",
        name="conv2d",
    )
    return identified(kernel, problem, config, blocks, turned)


def _produce(tiling: ConvTiling, total: Any, x: Any, w: Any, ring: StageRing) -> None:
    """Load the stages of all tiles of this block."""
    p, t, chunks = tiling.p, tiling.t, tiling.chunks
    kd.set_max_registers(40, action="decrease")

    @tiling.each_tile(total, (0, 0))
    def _(index: Any, carry: Any) -> Any:
        (image, row, column), n = tiling.place_of(index)

        def fill(step: Any, slot: Any, filled: Any) -> None:
            await_release(ring.consumed, slot, filled >= t.stages)
            tap = kd.div(step, chunks)
            r = kd.div(tap, p.taps[1])
            s, c = tap - r * p.taps[1], kd.ds((step - tap * chunks) * t.depth, t.depth)
            y, z = row + (r * p.dilation[0] - p.padding[0]), column + (s * p.dilation[1] - p.padding[1])
            box = kd.ds(image, t.box[0]), kd.ds(y, t.box[1]), kd.ds(z, t.box[2])
            kd.copy_gmem_to_smem(x.at[(*box, c)], ring.a_smem.at[slot], ring.loaded.at[slot])
            own, full = kd.ds(n, t.tile_n), ring.loaded.at[slot]
            filters = w.at[c, p.taps[0] - 1 - r, p.taps[1] - 1 - s, own] if tiling.turned else w.at[own, r, s, c]
            kd.copy_gmem_to_smem(filters, ring.b_smem.at[slot], full, collective_axes=tiling.axes or None)

        return fill_stages(tiling.steps, t.stages, carry, fill)


def _consume(tiling: ConvTiling, total: Any, me: Any, out: Any, ring: StageRing, out_smem: Any) -> None:
    """Multiply and store the tiles of consumer `me`."""
    p, t, rows, chunks = tiling.p, tiling.t, tiling.rows, tiling.chunks
    kd.set_max_registers(232 if t.consumers == 2 else 240, action="increase")
    left_of = partial(ring.left, rows=kd.ds(me * rows, rows), transposed=False)
    right_of = partial(ring.right, transposed=not tiling.turned)
    tail = kd.cdiv(p.channels - (chunks - 1) * t.depth, SLICE) * SLICE  # channels of the last chunk that are multiplied

    @tiling.each_tile(total, 0)
    def _(index: Any, slot: Any) -> Any:
        first, n = tiling.place_of(index)

        def multiply(acc: Any) -> Any:
            sides = left_of, right_of, ring.is_loaded, ring.consumed
            if tail == t.depth:
                return stage_product(acc, slot, tiling.steps, t.stages, *sides)
            return ragged_product(acc, slot, p.taps[0] * p.taps[1], chunks, tail, t.stages, *sides)

        value, slot_after = kd.run_scoped(multiply, kd.ACC((rows, t.tile_n), kd.float32))
        mine = [f + me * n if axis == t.cut else f for axis, (f, n) in enumerate(zip(first, t.share, strict=True))]
        place = tuple(kd.ds(f, n) for f, n in zip(mine, t.share, strict=True))
        for number in range(tiling.parts):
            start = number * t.epilogue_n
            own_part = me * tiling.buffers + number % tiling.buffers
            await_buffer(number, tiling.parts, tiling.buffers)
            out_smem[1].at[own_part][...] = value[:, start : start + t.epilogue_n].astype(p.dtype)
            kd.commit_smem()
            kd.copy_smem_to_gmem(out_smem[0].at[own_part], out.at[(*place, kd.ds(n + start, t.epilogue_n))])
        return slot_after

    kd.wait_smem_to_gmem(0, wait_read_only=True)  # the copies have read SMEM; the kernel's end waits for the writes


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
    or TMA takes longer: where channels begin within sectors of 32 bytes. Then two blocks load their filters together, too. So
    they do where half of the last stage of a tap would be zeros, which stages of half the depth leave out. All ask for many
    tiles.
    """
    width = min(WIDTHS, key=lambda n: kd.cdiv(p.filters, n) * (n + 64))
    broken = bool(p.channels * p.dtype.itemsize % SECTOR)
    high = boxes(p, HIGH)
    fits = width <= NARROW and (broken or width >= p.filters) and tiles_in(p, high) * kd.cdiv(p.filters, width) >= MANY
    pixels, box = (HIGH, high) if fits else (128, boxes(p))
    many = tiles_in(p, box) * kd.cdiv(p.filters, width) >= MANY
    halved = many and not broken and 0 < p.channels % DEPTH <= DEPTH // 2
    depth, most = (DEPTH // 2, 10) if halved else (DEPTH, 4 if width % 64 == 0 else 5)
    part = math.gcd(width, 64)  # a row of a swizzle
    room = SMEM - BARRIERS - 2 * pixels * part * p.dtype.itemsize
    stages = min(room // ((pixels + width) * depth * p.dtype.itemsize), most)
    return ConvConfig(box, width, stages, epilogue_n=part, cluster=2 if many and (broken or halved) else 1, depth=depth)


def reads_turned(config: ConvConfig, w: Any) -> bool:
    """Whether the kernel of a gradient takes filters as they lie, where TMA can load them. Rows of a tile's channels then are
    whole rows of a swizzle; of other widths TMA would load short pieces: 200 channels took 657 us, 322 with a copy.
    """
    shape, item = tuple(w.shape), as_dtype(w.dtype).itemsize
    whole = config.tile_n % 64 == 0 or config.tile_n == 96  # three pieces of 64 bytes are as good
    return whole and not why_not_tma(shape, element_strides(w) or strides_of(shape), item, array_address(w))


def why_not(p: ConvProblem, machine: Target, arrays: Sequence[Any]) -> str:
    """The reason why this kernel can't take a problem and its arrays (images, filters and results); empty if it can."""
    if not machine.supports(TMA_WGMMA):
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

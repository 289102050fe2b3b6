"""Gradients of filters of stride 1 on Hopper: for each tap a product of filters and channels, over all pixels.

The sum runs over pixels: a stage has a box of pixels of the results' gradient, and the box of the images that the tap
reads for them. TMA loads both, with zeros outside the image. Neighbours in SMEM lie along filters and channels, in
panels of 64, and wgmma reads both sides transposed. A block computes one tile, over one part of the pixels: of one tap, or of
several taps or ranges of channels together, for which it loads the gradient's box once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import kernel_dsl as kd

from ..kernel import identified
from .conv_general import PARTS, part_shapes, partial_sums, with_parts
from .conv_kernel import boxes
from .conv_problem import ConvProblem
from .operands import LINE
from .stage_product import following_slot, stage_product

PANEL = 64  # filters or channels: a row of the widest swizzle
STAGES_BYTES = 208 * 1024  # bytes of SMEM for stages
# multiply-adds of a multiprocessor a clock; extra clocks of a tile, of a launch; bytes of memory a clock
MADS, TILE, LAUNCH, DRAM_BYTES = 2048, 3000, 6000, 2300
LOADED, LOADED_LINES = 46, 64  # bytes that TMA loads to a multiprocessor in a clock; if pixels are whole lines
COLUMNS, LEAST_STAGES = 384, 3  # sums of a row in a lane's registers, and stages that hide latencies
SURELY = 0.95  # the part of the time of a tile alone that several together may take: the rest is not modelled
MOST_PARTIAL, MOST_PARTS = 1 << 28, 64  # bytes of sums of parts, and their number


@dataclass(frozen=True)
class ConvWgradConfig:
    """`tile_m` filters, shared by `consumers`, and `tile_n` channels of a tile; `box`: images, rows and columns of a
    stage. `together`: tiles of a block that follow each other, first along channels and then along taps.

    `cluster`: blocks with tiles of neighbouring filters, which load the same parts of images by multicast; it divides
    the number of tiles.
    """

    box: tuple[int, int, int]
    tile_m: int = 128
    tile_n: int = 256
    stages: int = 4
    consumers: int = 2
    cluster: int = 1
    together: int = 1

    @property
    def panels(self) -> int:
        """Panels of channels of a tile."""
        return kd.cdiv(self.tile_n, PANEL)

    @property
    def pixels(self) -> int:
        return self.box[0] * self.box[1] * self.box[2]

    def tiles(self, p: ConvProblem) -> tuple[int, int, int]:
        """The numbers of tiles along filters and along channels, and of blocks for all taps."""
        m, n = kd.cdiv(p.filters, self.tile_m), kd.cdiv(p.channels, self.tile_n)
        return m, n, m * kd.cdiv(n * p.taps[0] * p.taps[1], self.together)

    def steps(self, p: ConvProblem) -> int:
        """The number of boxes of all pixels."""
        sizes = p.batch, p.out_height, p.out_width
        first, second, third = (kd.cdiv(size, part) for size, part in zip(sizes, self.box, strict=True))
        return first * second * third


def paneled(stages: int, box: tuple[int, int, int], columns: int, dtype: Any) -> Any:
    """Stages of a box of pixels, in two shapes: panel by panel for TMA, and as the rows of one matrix for wgmma."""
    rows = kd.SwizzleTransform(128)
    pixels = box[0] * box[1] * box[2]
    return kd.RefUnion(
        kd.SMEM((stages * (columns // PANEL), *box, PANEL), dtype, transforms=(rows,)),
        kd.SMEM((stages, pixels, columns), dtype, transforms=(kd.TilingTransform((8, PANEL)), rows)),
    )


@cache
def conv_wgrad_kernel(problem: ConvProblem, config: ConvWgradConfig, parts: int) -> Any:
    """The kernel `(x, dout) -> dw`, or with parts `-> partial sums` (parts, *dw), float32, for one group in 16 bits.

    For any images the kernel takes any number of parts, the extent of its last input.
    """
    p, t, counted = problem, config, problem.opened and parts > 1
    tiles_m, tiles_n, blocks = t.tiles(p)
    blocks //= t.cluster
    rows = t.tile_m // t.consumers
    axes = ("cluster",) if t.cluster > 1 else ()
    across = tiles_m // t.cluster  # clusters along filters
    panels_m, panels_n = t.tile_m // PANEL, t.panels
    places = range(t.together)
    scratch = {
        "dout_smem": paneled(t.stages, t.box, t.tile_m, p.dtype),
        "x_smem": paneled(t.stages, t.box, t.together * panels_n * PANEL, p.dtype),
        "loaded": kd.Barrier(num_arrivals=panels_m + t.together * panels_n, num_barriers=t.stages),
        "consumed": kd.ClusterBarrier(collective_axes=axes, num_arrivals=t.consumers, num_barriers=t.stages)
        if axes
        else kd.Barrier(num_arrivals=t.consumers, num_barriers=t.stages),
    }

    def place_of(index: Any) -> tuple[Any, Any, list[tuple[Any, Any, Any]]]:
        """(part, first filter, (tap's row and column, first channel) of each tile) of a block; the blocks of one part follow
        each other.
        """
        part = kd.div(index, blocks)
        number = index - part * blocks
        group = kd.div(number, across)
        m = number - group * across
        if axes:
            m = m * t.cluster + kd.axis_index("cluster")
        return part, m * t.tile_m, [tile_of(group * t.together + place) for place in places]

    def tile_of(number: Any) -> tuple[Any, Any, Any]:
        """(tap's row and column, first channel) of a tile; the row is outside where there are fewer tiles."""
        tap = kd.div(number, tiles_n)
        r = kd.div(tap, p.taps[1])
        return r, tap - r * p.taps[1], (number - tap * tiles_n) * t.tile_n

    def produce(
        place: Any, walk: Any, x: Any, dout: Any, x_smem: Any, dout_smem: Any, loaded: Any, consumed: Any
    ) -> None:
        kd.set_max_registers(40, action="decrease")
        (part, m, tiles), (counts, steps) = place, walk

        @kd.loop(0, steps, init_carry=0)
        def _(step: Any, slot: Any) -> Any:
            @kd.when(step >= t.stages)
            def _() -> None:
                kd.barrier_wait(consumed.at[slot])

            number = part * steps + step
            band = kd.div(number, counts[2])
            image = kd.div(band, counts[1])
            first = image * t.box[0], (band - image * counts[1]) * t.box[1], (number - band * counts[2]) * t.box[2]
            own = tuple(kd.ds(f, size) for f, size in zip(first, t.box, strict=True))
            for panel in range(panels_m):
                filters = kd.ds(m + panel * PANEL, PANEL)
                kd.copy_gmem_to_smem(dout.at[(*own, filters)], dout_smem.at[slot * panels_m + panel], loaded.at[slot])
            for number, (r, s, n) in enumerate(tiles):
                y, z = first[1] + (r * p.dilation[0] - p.padding[0]), first[2] + (s * p.dilation[1] - p.padding[1])
                seen = own[0], kd.ds(y, t.box[1]), kd.ds(z, t.box[2])
                for panel in range(panels_n):
                    channels = kd.ds(n + panel * PANEL, PANEL)
                    place = x_smem.at[(slot * t.together + number) * panels_n + panel]
                    kd.copy_gmem_to_smem(x.at[(*seen, channels)], place, loaded.at[slot], collective_axes=axes or None)
            return following_slot(slot, t.stages)

    def consume(
        me: Any, place: Any, steps: Any, dw: Any, x_smem: Any, dout_smem: Any, loaded: Any, consumed: Any
    ) -> None:
        kd.set_max_registers(232 if t.consumers == 2 else 240, action="increase")
        part, m, tiles = place

        def left_of(slot: Any) -> Any:
            return dout_smem.at[slot, :, kd.ds(me * rows, rows)].T

        def right_of(slot: Any) -> Any:
            if t.together == 1 and t.tile_n % PANEL == 0:
                return x_smem.at[slot]
            return tuple(
                x_smem.at[slot, :, place * panels_n * PANEL : place * panels_n * PANEL + t.tile_n] for place in places
            )

        def multiply(*sums: Any) -> Any:
            acc = sums if isinstance(right_of(0), tuple) else sums[0]
            return stage_product(acc, 0, steps, t.stages, left_of, right_of, loaded.at.__getitem__, consumed)[0]

        values = kd.run_scoped(multiply, *[kd.ACC((rows, t.tile_n), kd.float32)] * t.together)
        out = dw.at[part] if parts > 1 else dw
        filters = kd.ds(m + me * rows, rows)
        for value, (r, s, n) in zip(values if isinstance(values, tuple) else (values,), tiles, strict=True):
            for start in range(0, t.tile_n, PANEL):
                own = value[:, start : start + PANEL]
                channels = kd.ds(n + start, own.shape[1])
                out[filters, r, s, channels] = own if parts > 1 else own.astype(p.dtype)

    def body(x: Any, dout: Any, dw: Any, *, x_smem: Any, dout_smem: Any, **buffers: Any) -> None:
        counts = [kd.cdiv(n, part) for n, part in zip(dout.shape[:3], t.box, strict=True)]  # boxes of all pixels
        steps = kd.cdiv(counts[0] * counts[1] * counts[2], dw.shape[0] if counted else parts)
        me, place = kd.axis_index("wg"), place_of(kd.axis_index("block"))

        @kd.when(me == t.consumers)
        def _() -> None:
            produce(place, (counts, steps), x, dout, x_smem[0], dout_smem[0], **buffers)

        @kd.when(me < t.consumers)
        def _() -> None:
            consume(me, place, steps, dw, x_smem[1], dout_smem[1], **buffers)

    kernel = kd.kernel(
        with_parts(body) if counted else body,
        out_type=partial_sums(p, parts),
        shapes=part_shapes(p, parts),
        scratch_types=scratch,
        grid=(blocks * (PARTS if counted else parts),),
        grid_names=("block",),
        cluster=(t.cluster,) if axes else (),
        cluster_names=axes,
        num_threads=t.consumers + 1,
        thread_name="wg",
        name="conv2d_wgrad_tiles",
    )
    return identified(kernel, problem, config, parts)


def _panels(t: ConvWgradConfig) -> int:
    """Panels of a stage."""
    return t.tile_m // PANEL + t.together * t.panels


def _step_clocks(p: ConvProblem, t: ConvWgradConfig) -> float:
    """An estimate for a box of pixels: products overlap with loads."""
    item = p.dtype.itemsize
    rate = LOADED if p.channels * item % LINE or p.filters * item % LINE else LOADED_LINES
    columns = max(t.tile_n, PANEL)  # fewer take as long, because wgmma still reads its other side from SMEM
    return max(t.tile_m * columns * t.together * t.pixels / MADS, _panels(t) * PANEL * t.pixels * item / rate)


def _sized(p: ConvProblem, box: tuple[int, int, int], tile_n: int, together: int) -> ConvWgradConfig:
    """A configuration with as many stages as fit."""
    consumers = 1 if p.filters <= PANEL else 2
    made = ConvWgradConfig(box, PANEL * consumers, tile_n, 2, consumers, together=together)
    stage = PANEL * (made.tile_m + together * made.panels * PANEL) * p.dtype.itemsize
    return replace(made, stages=min(STAGES_BYTES // stage, 8))


@cache
def wgrad_config(p: ConvProblem) -> ConvWgradConfig:
    """A configuration for a problem: the tile of channels with the least waste; or tiles of equal parts of the channels, several
    together, if that surely takes less time.
    """
    box = boxes(p, PANEL)
    plain = _sized(p, box, min((64, 128, 192, 256), key=lambda n: kd.cdiv(p.channels, n) * (n + PANEL)), 1)

    def clocks(t: ConvWgradConfig) -> float:
        return t.tiles(p)[2] * _step_clocks(p, t)

    widths = {kd.cdiv(kd.cdiv(p.channels, n), 8) * 8 for n in range(1, 9)}
    found = [
        _sized(p, box, n, together)
        for n in sorted(widths, reverse=True)
        for together in (1, 2, 3, 4)
        if n * together <= COLUMNS
    ]
    fitting = [t for t in found if t.stages >= LEAST_STAGES and t.tile_n <= 256]
    best = min(fitting, key=lambda t: (clocks(t), t.tiles(p)[2] * _panels(t)), default=plain)
    return best if clocks(best) < SURELY * clocks(plain) else plain


@cache
def wgrad_split(p: ConvProblem, t: ConvWgradConfig, multiprocessors: int) -> int:
    """The number of parts of the sum over pixels, for full waves of tiles and few partial sums."""
    tiles, steps = t.tiles(p)[2], t.steps(p)
    size = p.filters * p.taps[0] * p.taps[1] * p.channels * 4

    def clocks(parts: int) -> float:
        waves = kd.cdiv(tiles * parts, multiprocessors)
        work = waves * (kd.cdiv(steps, parts) * t.tile_m * t.tile_n * t.together * t.pixels / MADS + TILE)
        return work if parts == 1 else work + LAUNCH + 2 * parts * size / DRAM_BYTES

    most = max(min(steps // 8, MOST_PARTS, MOST_PARTIAL // max(size, 1)), 1)
    return min(range(1, most + 1), key=clocks)

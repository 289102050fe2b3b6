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
from kernel_dsl.kernel import identified

from ..products.operands import LINE
from ..stage_product import following_slot, stage_product
from ..stage_ring import StageRing, await_release, released
from .general import PARTS, part_shapes, partial_sums, with_parts
from .kernel import boxes
from .problem import ConvProblem

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
    """Sizes of the kernel of filters' gradients.

    A tile has `tile_m` filters, shared by `consumers`, and `tile_n` channels. `box`: images, rows and columns of a stage.
    `together`: tiles of a block that follow each other, first along channels and then along taps.
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


@dataclass(frozen=True)
class WgradTiling:
    """The tiles of the gradients of filters: `blocks` clusters of blocks for each part of the pixels."""

    p: ConvProblem
    t: ConvWgradConfig
    blocks: int

    @property
    def rows(self) -> int:
        """Filters of a consumer."""
        return self.t.tile_m // self.t.consumers

    @property
    def panels_m(self) -> int:
        """Panels of filters of a stage."""
        return self.t.tile_m // PANEL

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes of a cluster."""
        return ("cluster",) if self.t.cluster > 1 else ()

    def scratch(self) -> dict[str, Any]:
        """SMEM and barriers of a block."""
        p, t = self.p, self.t
        arrivals = self.panels_m + t.together * t.panels
        return {
            "dout_smem": paneled(t.stages, t.box, t.tile_m, p.dtype),
            "x_smem": paneled(t.stages, t.box, t.together * t.panels * PANEL, p.dtype),
            "loaded": kd.Barrier(num_arrivals=arrivals, num_barriers=t.stages),
            "consumed": released(self.axes, t.consumers, t.stages),
        }

    def place_of(self, index: Any) -> tuple[Any, Any, list[tuple[Any, Any, Any]]]:
        """(part, first filter, (tap's row and column, first channel) of each tile) of a block; the blocks of one part follow
        each other.
        """
        t, across = self.t, self.t.tiles(self.p)[0] // self.t.cluster  # clusters along filters
        part = kd.div(index, self.blocks)
        number = index - part * self.blocks
        group = kd.div(number, across)
        m = number - group * across
        if self.axes:
            m = m * t.cluster + kd.axis_index("cluster")
        return part, m * t.tile_m, [self._tile_of(group * t.together + place) for place in range(t.together)]

    def _tile_of(self, number: Any) -> tuple[Any, Any, Any]:
        """(tap's row and column, first channel) of a tile; the row is outside where there are fewer tiles."""
        tiles_n, columns = self.t.tiles(self.p)[1], self.p.taps[1]
        tap = kd.div(number, tiles_n)
        r = kd.div(tap, columns)
        return r, tap - r * columns, (number - tap * tiles_n) * self.t.tile_n


@cache
def conv_wgrad_kernel(problem: ConvProblem, config: ConvWgradConfig, parts: int) -> Any:
    """The kernel `(x, dout) -> dw`, or with parts `-> partial sums` (parts, *dw), float32, for one group in 16 bits.

    For any images the kernel takes any number of parts, the extent of its last input.
    """
    p, t, counted = problem, config, problem.opened and parts > 1
    tiling = WgradTiling(p, t, t.tiles(p)[2] // t.cluster)

    def body(x: Any, dout: Any, dw: Any, *, x_smem: Any, dout_smem: Any, **barriers: Any) -> None:
        counts = [kd.cdiv(n, part) for n, part in zip(dout.shape[:3], t.box, strict=True)]  # boxes of all pixels
        steps = kd.cdiv(counts[0] * counts[1] * counts[2], dw.shape[0] if counted else parts)
        me, place = kd.axis_index("wg"), tiling.place_of(kd.axis_index("block"))

        @kd.when(me == t.consumers)
        def _() -> None:
            _produce(tiling, place, counts, steps, x, dout, StageRing(dout_smem[0], x_smem[0], **barriers))

        @kd.when(me < t.consumers)
        def _() -> None:
            _consume(tiling, me, place, steps, dw, parts > 1, StageRing(dout_smem[1], x_smem[1], **barriers))

    kernel = kd.kernel(
        with_parts(body) if counted else body,
        out_type=partial_sums(p, parts),
        shapes=part_shapes(p, parts),
        scratch_types=tiling.scratch(),
        grid=(tiling.blocks * (PARTS if counted else parts),),
        grid_names=("block",),
        cluster=(t.cluster,) if tiling.axes else (),
        cluster_names=tiling.axes,
        num_threads=t.consumers + 1,
        thread_name="wg",
        name="conv2d_wgrad_tiles",
    )
    return identified(kernel, problem, config, parts)


def _produce(
    tiling: WgradTiling, place: Any, counts: list[Any], steps: Any, x: Any, dout: Any, ring: StageRing
) -> None:
    """Load the boxes of this block's pixels: of the gradient, and what each tile reads of the images for them."""
    p, t, panels_m = tiling.p, tiling.t, tiling.panels_m
    kd.set_max_registers(40, action="decrease")
    part, m, tiles = place

    @kd.loop(0, steps, init_carry=0)
    def _(step: Any, slot: Any) -> Any:
        await_release(ring.consumed, slot, step >= t.stages)
        number = part * steps + step
        band = kd.div(number, counts[2])
        image = kd.div(band, counts[1])
        first = image * t.box[0], (band - image * counts[1]) * t.box[1], (number - band * counts[2]) * t.box[2]
        own = tuple(kd.ds(f, size) for f, size in zip(first, t.box, strict=True))
        for panel in range(panels_m):
            filters, place = kd.ds(m + panel * PANEL, PANEL), ring.a_smem.at[slot * panels_m + panel]
            kd.copy_gmem_to_smem(dout.at[(*own, filters)], place, ring.loaded.at[slot])
        for number, (r, s, n) in enumerate(tiles):
            y, z = first[1] + (r * p.dilation[0] - p.padding[0]), first[2] + (s * p.dilation[1] - p.padding[1])
            seen = own[0], kd.ds(y, t.box[1]), kd.ds(z, t.box[2])
            for panel in range(t.panels):
                channels, axes = kd.ds(n + panel * PANEL, PANEL), tiling.axes or None
                place = ring.b_smem.at[(slot * t.together + number) * t.panels + panel]
                kd.copy_gmem_to_smem(x.at[(*seen, channels)], place, ring.loaded.at[slot], collective_axes=axes)
        return following_slot(slot, t.stages)


def _consume(tiling: WgradTiling, me: Any, place: Any, steps: Any, dw: Any, in_parts: bool, ring: StageRing) -> None:
    """Multiply and store the tiles of consumer `me`; `in_parts`: the sums are one of several parts."""
    p, t, rows = tiling.p, tiling.t, tiling.rows
    kd.set_max_registers(232 if t.consumers == 2 else 240, action="increase")
    part, m, tiles = place

    def left_of(slot: Any) -> Any:
        return ring.left(slot, kd.ds(me * rows, rows), True)

    def right_of(slot: Any) -> Any:
        if t.together == 1 and t.tile_n % PANEL == 0:
            return ring.b_smem.at[slot]
        starts = (place * t.panels * PANEL for place in range(t.together))
        return tuple(ring.b_smem.at[slot, :, start : start + t.tile_n] for start in starts)

    def multiply(*sums: Any) -> Any:
        acc = sums if isinstance(right_of(0), tuple) else sums[0]
        return stage_product(acc, 0, steps, t.stages, left_of, right_of, ring.is_loaded, ring.consumed)[0]

    values = kd.run_scoped(multiply, *[kd.ACC((rows, t.tile_n), kd.float32)] * t.together)
    out = dw.at[part] if in_parts else dw
    filters = kd.ds(m + me * rows, rows)
    for value, (r, s, n) in zip(values if isinstance(values, tuple) else (values,), tiles, strict=True):
        for start in range(0, t.tile_n, PANEL):
            own = value[:, start : start + PANEL]
            channels = kd.ds(n + start, own.shape[1])
            out[filters, r, s, channels] = own if in_parts else own.astype(p.dtype)


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

"""Sizes of Hopper's fast product, and checks of such sizes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any

from kernel_dsl.diagnostics import shown
from kernel_dsl.errors import BadCallArgument, BadCallValue


@dataclass(frozen=True)
class MatmulConfig:
    """Sizes of the matmul kernel.

    `group`: (clusters of) tiles of M in a band that shares L2. `consumers` share `tile_m` evenly; with `ping_pong` each
    has a whole tile, and one stores while the other multiplies. `cluster`: blocks along M that share each tile of B by
    multicast; `cluster_n`: blocks along N that share A. `epilogue_n`: columns that a store moves at a time. `a_hint`,
    `b_hint`, `out_hint`: cache policies of L2, as `l2_hint` of copies. `swapped`: the transposed product is computed,
    and `tile_m`, `cluster` are along N, for a thin a. `streamed`: blocks share the tiles of the last two waves evenly,
    where tiles don't fill whole waves; not with `ping_pong`. `low_tiles`: the number of tiles at the end of M that lack
    the rows of one consumer, so that tiles may fill the last wave; it needs scales of both sides for each 128 of K.
    """

    tile_m: int = 128
    tile_n: int = 256
    tile_k: int = 64
    stages: int = 4
    consumers: int = 2
    group: int = 8
    cluster: int = 1
    epilogue_n: int = 64
    epilogue_stages: int = 2
    ping_pong: bool = False
    cluster_n: int = 1
    a_hint: str | None = None
    b_hint: str | None = None
    out_hint: str | None = None
    swapped: bool = False
    streamed: bool = False
    low_tiles: int = 0

    @property
    def blocks(self) -> int:
        """The number of blocks of a cluster."""
        return self.cluster * self.cluster_n

    @property
    def rows(self) -> int:
        """The number of rows of the result that one consumer computes at a time."""
        return self.tile_m if self.ping_pong else self.tile_m // self.consumers

    @property
    def low_rows(self) -> int:
        """The rows of a low tile."""
        return self.tile_m - self.rows

    def high_tiles(self, size: int) -> int:
        """The number of whole tiles along M, of all its `size` rows."""
        return max(-(-(size - self.low_tiles * self.low_rows) // self.tile_m), 0)


def check_counts(config: Any, kernel: str, least_stages: int = 2) -> None:
    """Raise `BadCallArgument`, `BadCallValue` for a size or count that is no positive integer, and for fewer stages."""
    for field in fields(config):
        value, what = getattr(config, field.name), f"config.{field.name}={shown(getattr(config, field.name))}"
        if field.type == "bool" and not isinstance(value, bool):
            raise BadCallArgument(kernel=kernel, what=what, hint="True or False")
        if field.type != "int":
            continue
        if not isinstance(value, Integral):
            raise BadCallArgument(kernel=kernel, what=what, hint="a positive int")
        if value < (0 if field.default == 0 else 1):
            raise BadCallValue(kernel=kernel, what=what, hint="0 or more" if field.default == 0 else "a positive int")
    if config.stages < least_stages:
        hint = "2 or more, because the kernel releases a stage one step after its product began"
        raise BadCallValue(kernel=kernel, what=f"config.stages={config.stages}", hint=hint)


def check_tiles(t: MatmulConfig, kernel: str) -> None:
    """Raise `BadCallValue` if the parts of a tile don't fill the tile."""
    sharers = 1 if t.ping_pong else t.consumers
    if t.tile_m % (64 * sharers):
        what = f"config.tile_m={t.tile_m} is shared by {sharers} consumers"
        raise BadCallValue(kernel=kernel, what=what, hint=f"a multiple of {64 * sharers}: wgmma has 64 rows")
    if t.tile_n % t.epilogue_n or t.epilogue_n % 8:
        what = f"config.epilogue_n={t.epilogue_n} of config.tile_n={t.tile_n}"
        raise BadCallValue(
            kernel=kernel,
            what=what,
            hint="a multiple of 8 that divides tile_n: the kernel stores a tile in parts of this width",
        )

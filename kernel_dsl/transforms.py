"""How a buffer's elements lie in SMEM: tiling, and the XOR swizzle of TMA and wgmma.

A tiled buffer of shape (..., M, N) with tile (t0, t1) is stored as panels of t1 columns: element (..., m, n) lies at
(n // t1) * M * t1 + m * t1 + n % t1 of its (M, N) block. Within a panel, rows are contiguous, so that one TMA box
fills a panel and a wgmma descriptor steps through it (PTX ISA 9.7.15.5, 'Shared Memory Matrix Layout').
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .compiled import Swizzle
from .dataclass import dataclass
from .diagnostics import shown
from .dtypes import DType
from .errors import BadArgument
from .errors_hopper import BadTransform

__all__ = ["SwizzleTransform", "TilingTransform", "Transform", "find_swizzle"]


class Transform:
    """Base class of the `transforms=` of `kd.SMEM`."""


@dataclass(frozen=True)
class TilingTransform(Transform):
    """Store the trailing dimensions in tiles. For TMA and wgmma the tile is (8, swizzle bytes / element bytes).

    A tile may have as many dimensions as the buffer. Only its last extent, the columns a panel, changes the storage.
    """

    tiling: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.tiling or any(t < 1 for t in self.tiling):
            raise BadArgument(op="TilingTransform", what=f"tiling {self.tiling!r}", hint="give positive ints")

    def __repr__(self) -> str:
        return f"TilingTransform({self.tiling})"


@dataclass(frozen=True)
class SwizzleTransform(Transform):
    """XOR the 16-byte chunks of each row of `swizzle` bytes (32, 64 or 128) with the row number."""

    swizzle: int

    def __post_init__(self) -> None:
        if self.swizzle not in (16, 32, 64, 128):
            raise BadArgument(op="SwizzleTransform", what=f"swizzle {self.swizzle!r}", hint="32, 64 or 128 bytes")

    def __repr__(self) -> str:
        return f"SwizzleTransform({self.swizzle})"


def find_swizzle(minor_dim_bits: int, what: str = "") -> int:
    """The largest swizzle (128, 64, 32, or 16 for none) in bytes whose span divides a row of that many bits."""
    for swizzle in (128, 64, 32, 16):
        if minor_dim_bits % (swizzle * 8) == 0:
            return swizzle
    why = "rows must be a multiple of 16 bytes for TMA"
    name = f"{what} has rows" if what else "rows"
    raise BadTransform(what=f"no swizzle fits {name} of {minor_dim_bits} bits", why=why, hint="pad the last dimension")


def fields_of(shape: tuple[int, ...], dtype: DType, transforms: Sequence[Any]) -> tuple[tuple[int, ...], Swizzle]:
    """(tiling, swizzle) of a buffer. Raises `BadTransform`, `BadArgument`."""
    if not isinstance(transforms, (tuple, list)):
        raise BadArgument(op="SMEM", what=f"transforms={shown(transforms)}", hint="give a list or tuple of transforms")
    tiling: tuple[int, ...] = ()
    swizzle = Swizzle.NONE
    for transform in transforms:
        if isinstance(transform, TilingTransform) and not tiling and swizzle is Swizzle.NONE:
            tiling = transform.tiling
        elif isinstance(transform, SwizzleTransform) and swizzle is Swizzle.NONE:
            swizzle = Swizzle(transform.swizzle if transform.swizzle != 16 else 0)
        else:
            hint = "give at most one TilingTransform and then at most one SwizzleTransform"
            raise BadArgument(op="SMEM", what=f"transforms {shown(transforms)}", hint=hint)
    check_fields(shape, dtype, tiling, swizzle)
    return tiling, swizzle


def check_fields(shape: tuple[int, ...], dtype: DType, tiling: tuple[int, ...], swizzle: Swizzle) -> None:
    """Raise `BadTransform` if a buffer can't have these transforms."""
    what = f"a {dtype}{list(shape)} buffer can't be stored in tiles of {tiling}"
    if len(tiling) > len(shape):
        raise BadTransform(what=what, why=f"it has {len(shape)} dimensions", hint="tile the trailing dimensions")
    for tile, extent in zip(reversed(tiling), reversed(shape), strict=False):
        if extent % tile:
            why = f"{extent} is no multiple of {tile}"
            raise BadTransform(what=what, why=why, hint="choose a tile that divides the shape")
    if swizzle is Swizzle.NONE:
        return
    row = (tiling[-1] if tiling else shape[-1] if shape else 1) * dtype.bits // 8
    if row != swizzle.value:
        what = f"a {dtype}{list(shape)} buffer with rows of {row} bytes can't have a {swizzle.value}-byte swizzle"
        span = swizzle.value * 8 // dtype.bits
        hint = f"use TilingTransform((8, {span})) with it, or rows of {span} elements"
        raise BadTransform(what=what, why="the rows of a swizzled tile are exactly as long as the swizzle", hint=hint)
    if tiling and len(shape) > 1 and shape[-1] > tiling[-1] and shape[-2] % 8:
        what = f"a {dtype}{list(shape)} buffer can't be swizzled in tiles of {tiling}"
        why = "the pattern repeats every 8 rows, and so must the tiles"
        raise BadTransform(what=what, why=why, hint="make the second last dimension a multiple of 8")

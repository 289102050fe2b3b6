"""The memory layout of a buffer: its strides, its panels and its swizzle (see transforms.py)."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from .compiled import Swizzle
from .dataclass import dataclass
from .ir import RefType
from .transforms import SwizzleTransform, TilingTransform, Transform

# PTX ISA 5.5.7: a pattern of span s repeats every 8 rows of s bytes; 1024 covers them all
SWIZZLED_ALIGNMENT = 1024
TMA_ALIGNMENT = 128


def transforms_of(type: RefType) -> tuple[Transform, ...]:
    """The transforms that a buffer is stored with."""
    tiling = (TilingTransform(type.tiling),) if type.tiling else ()
    return (*tiling, SwizzleTransform(type.swizzle.value)) if type.swizzle is not Swizzle.NONE else tiling


def transformed(type: RefType, tiling: tuple[int, ...], swizzle: Swizzle) -> RefType:
    """The type with transforms, at the alignment they need."""
    alignment = SWIZZLED_ALIGNMENT if swizzle is not Swizzle.NONE else max(type.alignment, TMA_ALIGNMENT)
    return replace(type, tiling=tiling, swizzle=swizzle, alignment=alignment)


@dataclass(frozen=True)
class Storage:
    """The positions of elements, counted in elements: axis strides, and the split of the last axis into panels.

    `panel`: columns a panel; `panel_stride`: from one panel to the next; `row`: elements a row of memory.
    """

    strides: tuple[int, ...]
    panel: int
    panel_stride: int

    @property
    def paneled(self) -> bool:
        """Whether the last axis has more than one panel."""
        return self.panel_stride > 0


def storage_of(type: RefType) -> Storage:
    """How a buffer is stored."""
    shape = type.shape
    rank = len(shape)
    strides = [1] * rank
    for i in reversed(range(rank - 1)):
        strides[i] = strides[i + 1] * shape[i + 1]
    if not type.tiling or rank < 2 or len(type.tiling) < 2 or type.tiling[-1] == shape[-1]:
        return Storage(tuple(strides), shape[-1] if rank else 1, 0)
    columns = type.tiling[-1]
    strides[-2] = columns
    return Storage(tuple(strides), columns, shape[-2] * columns)


def swizzle_mask(swizzle: Swizzle) -> int:
    """The address bits that are XORed with those three higher: 0x70 for a span of 128 bytes."""
    return {Swizzle.NONE: 0, Swizzle.B32: 0x10, Swizzle.B64: 0x30, Swizzle.B128: 0x70}[swizzle]


def swizzle_period(swizzle: Swizzle) -> int:
    """Bytes after which the pattern repeats."""
    return swizzle.value * 8


def bytes_of(type: RefType) -> int:
    """Bytes a buffer takes."""
    return prod(type.shape) * type.dtype.itemsize

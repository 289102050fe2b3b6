"""What Refs, barriers, descriptors and accumulators are lowered to, and the offsets of a block's SMEM."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from kernel_dsl.compiled import SmemRegion, TensorMapParam
from kernel_dsl.ir import Value

from .value import V


@dataclass
class SmemBuffer:
    """A lowered Ref: its address (i64 GMEM, i32 SMEM) and the strides of its axes in elements."""

    address: V
    strides: tuple[int | V, ...]
    remote: bool = False  # SMEM of another block, by its shared::cluster address


@dataclass(frozen=True)
class GmemScratch:
    """Scratch in GMEM: its workspace; with `per_block`, the number of parts, their distance in bytes, this block's."""

    place: int
    copies: int
    bytes: int
    number: V


@dataclass
class MadeDescriptor:
    """A descriptor that the kernel makes.

    `array`: the argument that it describes. `places`: the GMEM address (i64) of the map of each recipe. `shift`: a number that
    is added to coordinates along the outermost dimension; it puts all of them outside of a tensor without elements.
    """

    array: Value
    places: dict[TensorMapParam, V] = field(default_factory=lambda: cast("dict[TensorMapParam, V]", {}))
    shift: V | None = None


@dataclass
class NamedBarriers:
    """Lowered mbarriers: the SMEM address of the first, and the alloca of this warpgroup's phases, a bit for each, in
    words of this type.
    """

    address: V
    phases: str
    count: int
    word: str


@dataclass
class Accumulator:
    """A lowered accumulator: PTX registers `prefix`0 ... and the alloca that says whether they hold a value yet."""

    prefix: str
    words: int
    shape: tuple[int, int]
    live: str


@dataclass
class SmemPlan:
    """Offsets in the block's dynamic SMEM, in order of allocation."""

    regions: list[SmemRegion] = field(default_factory=lambda: cast("list[SmemRegion]", []))
    size: int = 0
    scratch: int = 0  # bytes of one of the two halves of a warpgroup's exchange space

    def add(self, region: SmemRegion) -> None:
        self.regions.append(region)
        self.size = max(self.size, region.offset + region.bytes)

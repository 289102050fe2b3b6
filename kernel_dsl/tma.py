"""The rules of the tensor memory accelerator as one table: of tensor maps, and of the instructions that use them.

Tracing and lowering read it for sizes and to choose how to copy; the runtime to make descriptors; the interpreter to check.
Sources: CUDA driver API, 'Tensor Map Object Managment' (cuTensorMapEncodeTiled); PTX ISA 5.5, 'Tensors', and 9.7.9.25 to
9.7.9.27, 'Asynchronous copy'. Rules without a source were found on one NVIDIA H200, and say so. The tests try every row of the
table on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from math import gcd
from typing import TYPE_CHECKING, Any

from .compiled import OobFill, Swizzle
from .dataclass import dataclass
from .dtypes import DType
from .extents import factor_of

if TYPE_CHECKING:
    from .ir import RefType, Value
    from .view import View

UNIT = 16  # bytes: addresses, strides, rows of boxes and their starts are multiples
SMEM_UNIT = 128  # bytes: the alignment of the SMEM side of a tensor copy
MAX_RANK = 5
MAX_BOX = 256  # elements along a dimension
MAX_EXTENT = 2**32
STRIDE_END = 2**40  # bytes
MAX_ELEMENT_STRIDE = 8
COORDINATE_END = 2**31  # coordinates are signed 32-bit integers
MARGIN = 2**21  # elements: more than any block has
MAX_TRANSFER = 2**20 - 1  # bytes that a phase of an mbarrier counts (PTX ISA 9.7.13.15.1, tx-count)
SWIZZLE_ROWS = 8  # rows of a span after which a swizzle's pattern repeats (PTX ISA 5.5.7)
NAN_FILL = ("float16", "bfloat16", "float32", "float64")
# PTX ISA 9.7.9.27.3; other reductions are for 32- and 64-bit integers
REDUCTIONS: dict[str, tuple[str, ...]] = {
    "add": ("int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32"),
    "min": ("int32", "uint32", "int64", "uint64", "float16", "bfloat16"),
    "max": ("int32", "uint32", "int64", "uint64", "float16", "bfloat16"),
    "inc": ("uint32",),
    "dec": ("uint32",),
    "and": ("int32", "uint32", "int64", "uint64"),
    "or": ("int32", "uint32", "int64", "uint64"),
    "xor": ("int32", "uint32", "int64", "uint64"),
}

# CUtensorMapDataType has no int8, int16, bool, fp8 or complex: TMA moves them as unsigned of the
# same size.
MAP_TYPES = {
    "bool": "UINT8",
    "int8": "UINT8",
    "uint8": "UINT8",
    "float8_e4m3fn": "UINT8",
    "float8_e5m2": "UINT8",
    "int16": "UINT16",
    "uint16": "UINT16",
    "int32": "INT32",
    "uint32": "UINT32",
    "int64": "INT64",
    "uint64": "UINT64",
    "complex64": "UINT64",
    "float16": "FLOAT16",
    "bfloat16": "BFLOAT16",
    "float32": "FLOAT32",
    "float64": "FLOAT64",
}


@dataclass(frozen=True)
class Tiled:
    """A tiled tensor map as the driver takes it: innermost dimension first; `strides` in bytes, one fewer than extents."""

    address: int
    dtype: DType
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: Swizzle = Swizzle.NONE
    oob_fill: OobFill = OobFill.ZEROS
    interleave: int = 0

    @property
    def row(self) -> int:
        """Bytes of the box along the innermost dimension."""
        return self.box[0] * self.dtype.itemsize


@dataclass(frozen=True)
class BoxCopy:
    """One instruction: `coordinates` innermost first, `smem` the address in SMEM, `store` for SMEM to GMEM."""

    itemsize: int
    coordinates: tuple[int, ...]
    smem: int = 0
    store: bool = False


@dataclass(frozen=True)
class MapRule:
    """A rule for tensor maps. `broken` describes how a map breaks it, or gives None."""

    name: str
    source: str
    broken: Callable[[Tiled], str | None]


@dataclass(frozen=True)
class CopyRule:
    """A rule for instructions. `broken` describes how one breaks it, or gives None; `fix` says how to mend it."""

    name: str
    source: str
    broken: Callable[[BoxCopy], str | None]
    fix: str = ""


def _strides(t: Tiled) -> str | None:
    for extent, stride in zip(t.extents[1:], t.strides, strict=True):
        if stride % UNIT or not 0 <= stride < STRIDE_END:
            fix = f"Pad the row to a multiple of {UNIT} bytes" if stride >= 0 else "Pass a contiguous copy"
            return (
                f"an axis of extent {extent} has a stride of {stride} bytes, and TMA needs a non-negative multiple of "
                f"{UNIT} below 2**40. {fix}"
            )
    return None


def _extents(t: Tiled) -> str | None:
    wrong = [(i, n) for i, n in enumerate(t.extents) if not 1 <= n <= MAX_EXTENT]
    return f"dimension {wrong[0][0]} has {wrong[0][1]} elements, and TMA takes 1 to 2**32" if wrong else None


_DRIVER = "cuTensorMapEncodeTiled"

MAP_RULES = (
    MapRule(
        "rank",
        f"{_DRIVER}: tensorRank",
        lambda t: (
            None
            if 1 <= len(t.extents) <= MAX_RANK
            else f"it would have {len(t.extents)} dimensions, and TMA takes 1 to {MAX_RANK}"
        ),
    ),
    MapRule(
        "interleave",
        f"{_DRIVER}: interleave",
        lambda t: "interleaved layouts are not supported" if t.interleave else None,
    ),
    MapRule(
        "address",
        f"{_DRIVER}: globalAddress",
        lambda t: f"its address {t.address:#x} is not a multiple of {UNIT} bytes" if t.address % UNIT else None,
    ),
    MapRule("extents", f"{_DRIVER}: globalDim", _extents),
    MapRule("strides", f"{_DRIVER}: globalStrides", _strides),
    MapRule(
        "box",
        f"{_DRIVER}: boxDim",
        lambda t: (
            f"the box {tuple(reversed(t.box))} has an extent outside 1 to {MAX_BOX}"
            if any(not 1 <= n <= MAX_BOX for n in t.box)
            else None
        ),
    ),
    MapRule(
        "row",
        f"{_DRIVER}: boxDim, without interleave",
        lambda t: (
            f"the box's innermost extent is {t.row} bytes, and TMA needs a multiple of {UNIT}" if t.row % UNIT else None
        ),
    ),
    MapRule(
        "element strides",
        f"{_DRIVER}: elementStrides",
        lambda t: (
            f"element strides {t.element_strides}, and TMA takes 1 to {MAX_ELEMENT_STRIDE}"
            if any(not 1 <= n <= MAX_ELEMENT_STRIDE for n in t.element_strides)
            else None
        ),
    ),
    MapRule(
        "swizzle",
        f"{_DRIVER}: swizzle",
        lambda t: (
            f"the box's innermost extent is {t.row} bytes, over the span of {t.swizzle.value} of a "
            f"{t.swizzle.value}-byte swizzle"
            if t.swizzle is not Swizzle.NONE and t.row > t.swizzle.value
            else None
        ),
    ),
    MapRule(
        "fill",
        f"{_DRIVER}: oobFill",
        lambda t: (
            f"filling with NaN needs a 16-, 32- or 64-bit float dtype, not {t.dtype}"
            if t.oob_fill is OobFill.NAN and t.dtype.name not in NAN_FILL
            else None
        ),
    ),
)

COPY_RULES = (
    CopyRule(
        "innermost start",
        "seen on one NVIDIA H200: an illegal instruction",
        lambda c: (
            f"the innermost coordinate {c.coordinates[0]} is at byte {c.coordinates[0] * c.itemsize}, no multiple of {UNIT}"
            if c.coordinates[0] * c.itemsize % UNIT
            else None
        ),
        f"start at a multiple of {UNIT} bytes",
    ),
    CopyRule(
        "negative store",
        "seen on one NVIDIA H200: loads fill what lies before the array, stores are an illegal instruction",
        lambda c: (
            f"a TMA store at coordinate {min(c.coordinates)}: the GPU stops at negative ones"
            if c.store and min(c.coordinates) < 0
            else None
        ),
    ),
    CopyRule(
        "coordinates",
        "PTX ISA 9.7.9.27, tensorCoords: .s32",
        lambda c: (
            f"coordinates {c.coordinates} are no signed 32-bit integers"
            if any(not -COORDINATE_END <= n < COORDINATE_END for n in c.coordinates)
            else None
        ),
    ),
    CopyRule(
        "shared memory",
        "PTX ISA 9.7.9.27: dstMem, srcMem",
        lambda c: f"shared address {c.smem} is not a multiple of {SMEM_UNIT}" if c.smem % SMEM_UNIT else None,
    ),
)


def map_rule_broken(t: Tiled) -> str | None:
    """The description of the first rule that a tensor map breaks; None for a correct one."""
    return next((words for words in (rule.broken(t) for rule in MAP_RULES) if words is not None), None)


def end_of_stores(extent: int, itemsize: int) -> int:
    """Elements of a row that stores and reductions write: on one NVIDIA H200, they end at whole units of 16 bytes.
    Loads fill exactly from the extent on.
    """
    unit = max(UNIT // itemsize, 1)
    return -(-extent // unit) * unit


def period(swizzle: Swizzle) -> int:
    """Bytes after which the pattern of a swizzle repeats: SMEM that is copied to or from starts at a multiple of it."""
    return swizzle.value * SWIZZLE_ROWS


# --- the way of a copy ----------------------------------------------------------------------------


class Way(Enum):
    """The method of a copy: tensor (or bulk) copies, copies by the lanes, or either, chosen by a test at run time."""

    TENSOR = "tensor"
    TEST = "test"
    LANES = "lanes"


@dataclass(frozen=True)
class Start:
    """The start of a block along the innermost dimension of its array: `static` plus a multiple of `divisor` elements.
    TMA needs a multiple of `unit`. `least`: TMA can't mask accesses before this element, so it may copy only a block
    that starts there or later. `most`: a TMA store can't end within 16 bytes, so it may copy only a block that starts
    there or earlier.
    """

    axis: int
    static: int
    divisor: int
    unit: int
    least: int | None = None
    most: int | None = None

    @property
    def way(self) -> Way:
        bounded = self.least is not None or self.most is not None
        if self.static % gcd(self.divisor, self.unit) or (bounded and not self.divisor):
            return Way.LANES
        return Way.TENSOR if self.aligned and not bounded else Way.TEST

    @property
    def aligned(self) -> bool:
        """Whether TMA may certainly start there."""
        return self.static % self.unit == 0 and self.divisor % self.unit == 0


def _end_before_launch(extent: Any, unit: int) -> int:
    """A stand-in for an extent from the launch: 0, where TMA stops exactly, if it is a multiple of `unit`, else 1."""
    return 0 if factor_of(extent) % unit == 0 else 1


def innermost_start(array: RefType, gmem: View, offsets: Sequence[Value], axis: int, store: bool = False) -> Start:
    """The start of a block of `array` along `axis`, the innermost dimension of its tensor map."""
    unit = max(UNIT // array.dtype.itemsize, 1)
    value = gmem.moving(offsets).get(axis)
    divisor = 0 if value is None else value.facts.divisor if value.facts is not None else 1
    lows = [m.low for m in gmem.masked if m.axis == axis and m.low]
    ends = [m.high for m in gmem.masked if m.axis == axis and m.high is not None] if store else []
    highs = [n if isinstance(n, int) else _end_before_launch(n, unit) for n in ends]
    least = lows[0] if lows and lows[0] % unit else None
    size = next((d.size for d in gmem.dims if d.axis == axis), 1)
    most = highs[0] - size if highs and end_of_stores(highs[0], array.dtype.itemsize) != highs[0] else None
    return Start(axis, gmem.start[axis], divisor, unit, least, most)

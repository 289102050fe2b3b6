"""`CompiledKernel`: everything that the runtime needs of a kernel. It is the only contract between lowering and runtime."""

from __future__ import annotations

import dataclasses
from dataclasses import field
from enum import Enum
from typing import Any, cast

import numpy as np

from .dataclass import dataclass
from .dtypes import DType


@dataclass(frozen=True)
class SourceLine:
    """A place in the user's file."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


# --- kernel parameters, in the order of the PTX entry ---------------------------------------------
# `array` counts the inputs that are arrays, then the outputs, then the workspaces; `scalar` counts the scalar inputs.


@dataclass(frozen=True)
class PointerParam:
    """A 64-bit GMEM address: where element [0, ..., 0] of the array lies."""

    array: int


@dataclass(frozen=True)
class ShapeParam:
    """An extent, as a 64-bit integer."""

    array: int
    axis: int


@dataclass(frozen=True)
class StrideParam:
    """A stride in elements, as a signed 64-bit integer."""

    array: int
    axis: int


@dataclass(frozen=True)
class ScalarParam:
    """A scalar input, by value, in `dtype` (bool as one byte)."""

    scalar: int
    dtype: DType


class Swizzle(Enum):
    """The XOR patterns of TMA and wgmma in SMEM, by span in bytes (PTX ISA 5.5.7, 'Swizzling Modes')."""

    NONE = 0
    B32 = 32
    B64 = 64
    B128 = 128


class OobFill(Enum):
    """What a TMA load writes for elements outside the tensor: CU_TENSOR_MAP_FLOAT_OOB_FILL_*."""

    ZEROS = "zeros"
    NAN = "nan"


@dataclass(frozen=True)
class TensorMapParam:
    """A 128-byte `CUtensorMap`, passed by value (`.param .align 64 .b8 [128]`), encoded from the array at launch.

    `axes`: the array's axes, outermost first, that make the tensor's dimensions; an axis in `split` (by axis: factor)
    becomes two dimensions, (extent / factor, factor). `box`: the box's extents, outermost first, one a dimension.
    `window`: (axis, low, high) if the tensor covers only this part of the array, so that copies end where a view ends.
    """

    array: int
    dtype: DType
    box: tuple[int, ...]
    swizzle: Swizzle = Swizzle.NONE
    oob_fill: OobFill = OobFill.ZEROS
    axes: tuple[int, ...] | None = None
    split: tuple[tuple[int, int], ...] = ()
    window: tuple[tuple[int, int, int], ...] = ()
    l2_promotion: int = 0  # bytes: 0, 64, 128 or 256
    ranks: int = 0  # on a mesh of this many devices: a map of each rank's array, one after the other


@dataclasses.dataclass(frozen=True)  # it inherits from a dataclass
class ScratchMapParam(TensorMapParam):
    """A `TensorMapParam` of a workspace, seen as an array of these (extent, stride in elements), outermost first."""

    sizes: tuple[tuple[int, int], ...] = ()


Param = PointerParam | ShapeParam | StrideParam | ScalarParam | TensorMapParam | ScratchMapParam


# --- what the kernel assumes of its arrays --------------------------------------------------------


@dataclass(frozen=True)
class ArrayAssumption:
    """What the compiled code relies on; the runtime checks it before each launch.

    `alignment`: bytes that the address is a multiple of. `contiguous`: row-major and gapless (strides are then not
    passed). `written`: the kernel may store to it.
    """

    shape: tuple[int, ...]
    dtype: DType
    contiguous: bool
    alignment: int
    written: bool
    name: str


@dataclass(frozen=True)
class OutputSpec:
    """An output to allocate: uninitialised unless `fill` is given; `alias` is the input (array index) it starts as.

    `packed`: of 4-bit elements, two of which are in each byte.
    """

    shape: tuple[int, ...]
    dtype: DType
    fill: bool | int | float | complex | np.generic | None = None
    alias: int | None = None
    packed: DType | None = None


@dataclass(frozen=True)
class Workspace:
    """Hidden GMEM that a launch needs: allocated by the runtime, zeroed before each launch if `zeroed`."""

    bytes: int
    zeroed: bool = False
    alignment: int = 256


@dataclass(frozen=True)
class Condition:
    """What a kernel's code was made for, of the sizes of a call: see `conditions.holds`."""

    kind: str
    numbers: tuple[int, ...] = ()


ANY = -1  # an extent that comes from each call: in shapes, and in the grid's axes


@dataclass(frozen=True)
class LaunchAttributes:
    """How to launch. `grid` counts blocks (CTAs), x first; all extents at least 1, unless the grid is empty."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] = (1, 1, 1)
    dynamic_smem: int = 0
    programmatic_dependent_launch: bool = False
    empty: bool = False  # a grid axis of extent zero: nothing is launched


# --- names for reports ----------------------------------------------------------------------------


@dataclass(frozen=True)
class SmemRegion:
    """A range of bytes of the block's dynamic SMEM, and how a byte address becomes an element's index.

    `tiling`: tile extents of the trailing dims, or () for row-major. Scratch that the compiler added is `internal`.
    """

    name: str
    offset: int
    bytes: int
    shape: tuple[int, ...]
    dtype: DType | None
    tiling: tuple[int, ...] = ()
    swizzle: Swizzle = Swizzle.NONE
    kind: str = "ref"  # "ref", "barrier", "internal"
    line: SourceLine | None = None


@dataclass(frozen=True)
class AccumulatorNames:
    """The PTX registers that hold a wgmma accumulator: `prefix`0 ... `prefix`count-1."""

    name: str
    prefix: str
    count: int
    shape: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True)
class ReportNames:
    """Names for hazard reports."""

    arrays: tuple[str, ...] = ()
    smem: tuple[SmemRegion, ...] = ()
    accumulators: tuple[AccumulatorNames, ...] = ()
    grid_axes: tuple[tuple[str, int], ...] = ()
    thread_axis: tuple[str, int] | None = None
    # (byte spans of the dynamic SMEM, PTX lines whose loads and stores stay within one of them)
    smem_uses: tuple[tuple[tuple[tuple[int, int], ...], tuple[int, ...]], ...] = ()


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel as PTX with everything needed to launch it and to report on it. Immutable and serialisable.

    `output_tree` is the structure of the result with leaf numbers in place of leaves (see `tree.py`); `lines` maps
    a PTX line number (1-based, as in the text), in ascending order, to the user's line. Nobody changes this dict. With a
    tuple of a thousand pairs, loading a kernel would take a tenth longer.
    """

    name: str
    entry: str
    ptx: str
    target: str
    params: tuple[Param, ...]
    arrays: tuple[ArrayAssumption, ...]
    inputs: int  # how many of `arrays` are inputs; the rest are outputs
    outputs: tuple[OutputSpec, ...]
    output_tree: Any
    launch: LaunchAttributes
    workspaces: tuple[Workspace, ...] = ()
    names: ReportNames = field(default_factory=ReportNames)
    lines: dict[int, SourceLine] = field(default_factory=lambda: cast("dict[int, SourceLine]", {}))
    source: SourceLine | None = None
    max_registers: int | None = None
    # pairs of arrays (by index) that may overlap in memory; the code is compiled for these overlaps
    overlaps: tuple[tuple[int, int], ...] = ()
    effects: bool = False  # it does more than write its arrays: it prints, checks, or runs the author's PTX
    # the sizes for which the code is right, if some shapes are `ANY`
    conditions: tuple[Condition, ...] = ()

    def __hash__(self) -> int:
        return hash((self.name, self.target, self.ptx))


@dataclass(frozen=True)
class Resources:
    """What the assembler says of a kernel. Bytes a lane, unless the name says otherwise."""

    registers: int
    spills: int
    local_bytes: int
    shared_bytes: int
    barriers: int
    blocks_per_multiprocessor: int


@dataclass(frozen=True)
class Remark:
    """A message of the assembler that is no error: `kind` is 'info' or 'warning'. The caller warns at `line`."""

    text: str
    kind: str
    line: SourceLine | None = None

    def __str__(self) -> str:
        return f"{self.line}: {self.text}" if self.line else self.text


@dataclass(frozen=True)
class Assembled:
    """A `CompiledKernel` with its machine code. What caches and ahead-of-time files hold."""

    kernel: CompiledKernel
    cubin: bytes
    resources: Resources
    remarks: tuple[Remark, ...] = ()

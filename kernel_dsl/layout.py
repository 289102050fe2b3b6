"""How a value's elements are spread over the registers, lanes and warps of a warpgroup.

A layout splits each dimension of a (padded) shape into factors and gives every factor to the registers of a lane, to
a bit of the lane number (5 bits) or to a bit of the warp number (2 bits). An element's index along a dimension is the
sum of `digit * stride` over the dimension's factors, a mixed-radix number. Lane and warp bits that no dimension takes
replicate. The register index runs row-major over the register factors, which are kept sorted, so that two layouts are
the same exactly when they compare equal.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from math import prod
from typing import Any, ClassVar

from .dataclass import dataclass
from .diagnostics import shown
from .errors import BadArgument, BadArgumentType
from .errors_hopper import WgmmaShape
from .lazy import lazy

LANE_BITS = 5
MAX_CELLS = 65536  # of a picture
MAX_NEW = 64  # dimensions that `expand` adds
MAX_SHOWN = 8192  # of a picture that is shown without a request
WARP_BITS = 2

Bit = tuple[int, int] | None  # (dim, stride), or None where the bit replicates


def _canonical_regs(regs: Iterable[tuple[int, int, int]]) -> tuple[tuple[int, int, int], ...]:
    """Drop factors of one, sort by dimension and then major to minor, and merge neighbours that are one number."""
    out: list[tuple[int, int, int]] = []
    for dim, size, stride in sorted((f for f in regs if f[1] > 1), key=lambda f: (f[0], -f[2])):
        if out and out[-1][0] == dim and out[-1][2] == size * stride:
            dim, major, _ = out.pop()
            size *= major
        out.append((dim, size, stride))
    return tuple(out)


@dataclass(frozen=True)
class Layout:
    """Which lane and register of a warpgroup holds which element of a value.

    `rank`: the number of dimensions. `regs`: (dim, size, stride) of each factor that is a register index. `lanes`, `warps`:
    (dim, stride) of each bit of the lane's and the warp's number, the lowest bit first; None for a bit with copies.
    """

    rank: int
    regs: tuple[tuple[int, int, int], ...]
    lanes: tuple[Bit, ...] = (None,) * LANE_BITS
    warps: tuple[Bit, ...] = (None,) * WARP_BITS

    # set in layouts.py
    WG_STRIDED: ClassVar[Callable[..., Layout]]
    WG_SPLAT: ClassVar[Callable[[tuple[int, ...]], Layout]]
    WGMMA: ClassVar[LayoutRule]
    WGMMA_ROW: ClassVar[LayoutRule]
    WGMMA_COL: ClassVar[LayoutRule]
    WGMMA_8BIT: ClassVar[LayoutRule]
    WGMMA_UPCAST_2X: ClassVar[LayoutRule]
    WGMMA_TRANSPOSED: ClassVar[LayoutRule]
    WGMMA_TF32: ClassVar[LayoutRule]
    MMA_ACC: ClassVar[LayoutRule]

    def __post_init__(self) -> None:
        object.__setattr__(self, "regs", _canonical_regs(self.regs))

    @lazy
    def _hash(self) -> int:
        return hash((self.rank, self.regs, self.lanes, self.warps))

    def __hash__(self) -> int:
        return self._hash

    @lazy
    def padded(self) -> tuple[int, ...]:
        """The shape that the factors cover: at least the value's own."""
        sizes = [1] * self.rank
        for dim, size, _ in self.regs:
            sizes[dim] *= size
        for bit in self.bits:
            if bit is not None:
                sizes[bit[0]] *= 2
        return tuple(sizes)

    @property
    def bits(self) -> tuple[Bit, ...]:
        """Lane bits, then warp bits: the bits of the CUDA thread number within a warpgroup, lowest first."""
        return self.lanes + self.warps

    @lazy
    def registers(self) -> int:
        """How many elements each lane holds."""
        return prod(size for _, size, _ in self.regs)

    @lazy
    def register_coords(self) -> tuple[tuple[int, ...], ...]:
        """For each register, the part of the index along every dimension that it adds."""
        coords: list[tuple[int, ...]] = []
        for digits in itertools.product(*(range(size) for _, size, _ in self.regs)):
            coord = [0] * self.rank
            for (dim, _, stride), digit in zip(self.regs, digits, strict=True):
                coord[dim] += digit * stride
            coords.append(tuple(coord))
        return tuple(coords)

    @lazy
    def register_of(self) -> dict[tuple[int, ...], int]:
        """The register for each part of the index."""
        return {coord: index for index, coord in enumerate(self.register_coords)}

    @lazy
    def replicated_mask(self) -> int:
        """Bits of the thread number within the warpgroup that replicate."""
        return sum(1 << i for i, bit in enumerate(self.bits) if bit is None)

    def thread_coords(self, thread: int) -> tuple[int, ...]:
        """The part of the index that thread 0 to 127 of the warpgroup adds."""
        coord = [0] * self.rank
        for i, bit in enumerate(self.bits):
            if bit is not None and thread >> i & 1:
                coord[bit[0]] += bit[1]
        return tuple(coord)

    def vector_length(self, dim: int) -> int:
        """How many elements contiguous along `dim` a lane holds in neighbouring registers."""
        for d, size, stride in self.regs:
            if d == dim and stride == 1:
                return size
        return 1

    def check(self) -> None:
        """Raise ValueError unless every dimension's factors form one mixed-radix number."""
        factors: list[list[tuple[int, int]]] = [[] for _ in range(self.rank)]
        for dim, size, stride in self.regs:
            factors[dim].append((stride, size))
        for bit in self.bits:
            if bit is not None:
                factors[bit[0]].append((bit[1], 2))
        for dim, parts in enumerate(factors):
            reach = 1
            for stride, size in sorted(parts):
                if stride != reach:
                    raise ValueError(f"dimension {dim}: a factor has stride {stride} where {reach} is expected")
                reach *= size

    # --- layouts made from this one ---------------------------------------------------------------

    def _map_dims(self, new_dim: dict[int, int], rank: int) -> Layout:
        def bits(old: tuple[Bit, ...]) -> tuple[Bit, ...]:
            return tuple((new_dim[b[0]], b[1]) if b is not None and b[0] in new_dim else None for b in old)

        regs = tuple((new_dim[d], n, s) for d, n, s in self.regs if d in new_dim)
        return Layout(rank, regs, bits(self.lanes), bits(self.warps))

    def reduce(self, axes: int | Iterable[int], keepdims: bool = True) -> Layout:
        """The layout of a reduction's result: the factors of `axes` (negative ones count from the end) are replicated.

        Broadcasting back along them is free. Raises `BadArgument` for an axis that the layout does not have.
        """
        gone = _axes(axes, self.rank)
        kept = [d for d in range(self.rank) if d not in gone]
        if keepdims:
            return self._map_dims({d: d for d in kept}, self.rank)
        return self._map_dims({d: i for i, d in enumerate(kept)}, len(kept))

    def transpose(self, permutation: tuple[int, ...]) -> Layout:
        """Dimension i of the result is dimension permutation[i] of this one."""
        return self._map_dims({old: new for new, old in enumerate(permutation)}, self.rank)

    def expand(self, dims: Iterable[int]) -> Layout:
        """The layout with new dimensions of extent 1 at `dims` (positions in the result). Raises `BadArgument`."""
        several = isinstance(dims, (list, tuple, set, frozenset, range)) and len(dims) <= MAX_NEW
        given: list[Any] = list(dims) if several else [dims]
        if not all(isinstance(d, int) for d in given):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise BadArgument(op="expand", what=f"dims={shown(given)}", hint="give positions, ints")
        new = set(given)
        rank = self.rank + len(new)
        places = [d for d in range(rank) if d not in new]
        return self._map_dims(dict(enumerate(places)), rank)

    def to_svg(self, shape: tuple[int, ...]) -> str:
        """A picture of a value of this shape, as SVG text: one cell for each element, which shows who holds it."""
        if len(shape) != self.rank:
            what = f"a layout of rank {self.rank} can't spread a value of shape {shape}"
            raise BadArgument(op="to_svg", what=what, hint="give one extent a dimension of the layout")
        if prod(shape) > MAX_CELLS or any(n < 1 for n in shape):
            what = f"a picture of shape {shape}"
            raise BadArgument(op="to_svg", what=what, hint=f"it has from 1 to {MAX_CELLS} cells: picture a part")
        return SHOWN["picture"](self, tuple(shape))

    def _repr_svg_(self) -> str | None:
        """The picture of all elements that the layout covers, for notebooks; None if it is too large to read."""
        return self.to_svg(self.padded) if prod(self.padded) <= MAX_SHOWN else None

    def __repr__(self) -> str:
        """Python that makes it: a named layout of the shape that it covers, or all its factors."""
        given = f"{self.rank}, {self.regs}, {self.lanes}, {self.warps}"
        return SHOWN["layout"](self, self.padded) or f"Layout({given})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """For IPython and hypothesis, which would print the fields."""
        printer.text(repr(self))

    def __str__(self) -> str:
        def text(bits: tuple[Bit, ...]) -> str:
            return " ".join("*" if b is None else f"{b[0]}:{b[1]}" for b in bits)

        regs = " ".join(f"{d}:{n}:{s}" for d, n, s in self.regs)
        return f"layout<{self.rank} | {regs} | {text(self.lanes)} | {text(self.warps)}>"


SCALAR = Layout(0, ())


def _axes(axes: int | Iterable[int], rank: int) -> set[int]:
    """Axes of a layout of `rank` dimensions, counted from the front. Raises `BadArgument`, `BadArgumentType`."""
    given: tuple[Any, ...] = (axes,) if isinstance(axes, int) else tuple(axes)
    if not all(isinstance(a, int) for a in given):
        raise BadArgumentType(op="reduce", what=f"axes={shown(axes)}", hint="give an int or ints")
    out = [a for a in given if not -rank <= a < rank]
    if out:
        hint = f"give axes from {-rank} to {rank - 1}" if rank else "a layout of rank 0 has none"
        raise BadArgument(op="reduce", what=f"axis {out[0]} of a layout of rank {rank}", hint=hint)
    return {a % rank for a in given}


# by kind: the least shape, and the function from a shape and a number of neighbours a lane to a layout; set in
# layouts.py
MAKERS: dict[str, tuple[tuple[int, int], Callable[[tuple[int, int], int], Layout]]] = {}
# functions that write layouts and rules by their names; set in layouts.py
SHOWN: dict[str, Callable[..., str]] = {}


@dataclass(frozen=True)
class LayoutRule:
    """A layout for each shape that it can have.

    `kind`: "wgmma", "wgmma_transposed", "row-major" and the fragments of mma.sync. `minor`: the number of neighbours that
    a lane holds. `reduced`: axes of the full shape that a reduction has removed. `bits`: the width of an element.
    """

    kind: str
    minor: int = 2
    reduced: tuple[int, ...] = ()
    bits: int = 16

    def reduce(self, axes: int | tuple[int, ...]) -> LayoutRule:
        """The rule for the result of a reduction along `axes`, of the last two dimensions (0 and 1, or -2 and -1).
        Raises `BadArgument` for other axes.
        """
        return LayoutRule(self.kind, self.minor, tuple(sorted(_axes(axes, 2) | set(self.reduced))), self.bits)

    def of(self, shape: tuple[int, ...]) -> Layout:
        """The layout of a value of this shape; dimensions before the rule's own lie in registers. Raises `WgmmaShape`."""
        kept = [a for a in range(2) if a not in self.reduced]
        outer = len(shape) - len(kept)
        if outer < 0:
            what = f"a rank-{len(shape)} value can't have layout {self}"
            raise WgmmaShape(op="layout_cast", what=what, why=f"it spreads rank {len(kept)}", hint="reshape the value")
        least, make = MAKERS[self.kind]
        full = list(least)
        for a, extent in zip(kept, shape[outer:], strict=True):
            full[a] = extent
        made = make((full[0], full[1]), self.minor)
        made = made.reduce(self.reduced, keepdims=False) if self.reduced else made
        if not outer:
            return made
        spread = made.expand(range(outer))
        return Layout(
            len(shape), (*((d, n, 1) for d, n in enumerate(shape[:outer])), *spread.regs), spread.lanes, spread.warps
        )

    def to_svg(self, shape: tuple[int, ...]) -> str:
        """The picture of `of(shape)`."""
        return self.of(shape).to_svg(shape)

    def _repr_svg_(self) -> str | None:
        """The picture of the least value that can have it, for notebooks; None for a reduction that none can have."""
        (rows, columns), _ = MAKERS[self.kind]
        for wider in (1, 2, 4):
            extents = (rows, columns * wider)
            try:
                return self.to_svg(tuple(extents[a] for a in range(2) if a not in self.reduced))
            except WgmmaShape:
                continue
        return None

    def __repr__(self) -> str:
        return SHOWN["rule"](self)

    def __str__(self) -> str:
        return self.kind + (f".reduce({self.reduced})" if self.reduced else "")


def parse_layout(text: str) -> Layout:
    """The inverse of `str(layout)`."""
    rank, regs, lanes, warps = (part.split() for part in text[len("layout<") : -1].split("|"))

    def bits(words: list[str]) -> tuple[Bit, ...]:
        out: list[Bit] = []
        for word in words:
            if word == "*":
                out.append(None)
            else:
                dim, stride = word.split(":")
                out.append((int(dim), int(stride)))
        return tuple(out)

    factors: list[tuple[int, int, int]] = []
    for word in regs:
        dim, size, stride = word.split(":")
        factors.append((int(dim), int(size), int(stride)))
    return Layout(int(rank[0]), tuple(factors), bits(lanes), bits(warps))


def pow2_ceil(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()


def blocked(shape: tuple[int, ...], vector: int = 1, minor: int | None = None) -> Layout:
    """The layout of coalesced access: `vector` neighbours along the minor dimension a lane, lanes along it next.

    Warps go to the other dimensions if these are long enough. A reduction along the minor one then needs no exchange
    between warps. `minor` is the dimension with unit stride in memory, by default the last.
    """
    rank = len(shape)
    if rank == 0:
        return SCALAR
    if minor is None:
        minor = rank - 1
    order = [minor] + [d for d in reversed(range(rank)) if d != minor]
    regs: list[tuple[int, int, int]] = []
    reach = [1] * rank
    if vector > 1:
        regs.append((minor, vector, 1))
        reach[minor] = vector
    lanes: list[Bit] = []

    def room(dim: int) -> bool:
        return reach[dim] < shape[dim]

    def take(dim: int) -> Bit:
        bit = (dim, reach[dim])
        reach[dim] *= 2
        return bit

    for dim in order:
        while len(lanes) < LANE_BITS and room(dim):
            lanes.append(take(dim))
    lanes += [None] * (LANE_BITS - len(lanes))
    warps: list[Bit] = []
    for dim in [*order[1:], minor]:
        while len(warps) < WARP_BITS and room(dim):
            warps.append(take(dim))
    warps += [None] * (WARP_BITS - len(warps))
    for dim in range(rank):
        if room(dim):
            regs.append((dim, -(-shape[dim] // reach[dim]), reach[dim]))
    return Layout(rank, tuple(regs), tuple(lanes), tuple(warps))

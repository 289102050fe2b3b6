"""A product as data: shapes, dtypes, layouts, and the steps of the epilogue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import kernel_dsl as kd
from kernel_dsl.dataclass import changed
from kernel_dsl.lazy import lazy

from ..grouped.tiles import RowGroups
from .int4_numbers import HALF

Axes = tuple[str, ...]  # for each dimension: "m", "n", "-" for an extent of 1, or a batch axis
_OTHER = {"m": "n", "n": "m"}


def is_full(axes: Axes | None) -> bool:
    """Whether an operand has an element for each row and column."""
    return axes is not None and axes[-2:] == ("m", "n")


@dataclass(frozen=True)
class EpilogueStep:
    """One operation on sums: `kind` is a function of epilogue.py.

    `operands`: the axes of each of its arrays, which are the kernel's arguments after a and b, in order; None for a
    number. `function`: the caller's function, for kinds that take one. `word`: another argument of some kinds: a gate's
    name, or "by columns" if dropout counts elements by columns.
    """

    kind: str
    operands: tuple[Axes | None, ...] = ()
    function: Callable[..., Any] | None = None
    word: str = ""

    @property
    def swapped(self) -> EpilogueStep:
        """The same step for the transposed result."""
        turned = tuple(axes and tuple(_OTHER.get(a, a) for a in axes) for axes in self.operands)
        return changed(self, operands=turned, word="by columns" if self.kind == "dropout" else self.word)

    @property
    def turned(self) -> EpilogueStep:
        """The step for the transposed result, if operands of its full shape are transposed, too."""
        both = zip(self.operands, self.swapped.operands, strict=True)
        return changed(self.swapped, operands=tuple(own if is_full(own) else other for own, other in both))


BIAS, ADDEND = EpilogueStep("add", (("n",),)), EpilogueStep("add", (("m", "n"),))


@dataclass(frozen=True)
class Problem:
    """A product: a is (M, K), or (K, M) with `a_transposed`; b is (K, N), or (N, K) with `b_transposed`.

    `bias` (N,) and `accumulate` (M, N) are added first; `steps` follow. `batch`: extents of the result's leading axes;
    `a_batch`, `b_batch`: the leading extents of a and b, as many as `batch` has; 1 if all products share the operand.
    `parts` of K have separate sums: the result is then (parts, *batch, M, N). `thrice`: a and b hold [high, low] along
    K, each `depth` long, and the sums are those of low * high + high * low + high * high. `promoted`: the tensor cores'
    sums are regularly added to sums in float32 registers. `groups`: rows of a belong to groups, and each group has its
    own b. The sizes or offsets of the groups are a kernel's argument after b. `lanes`: elements that a lane stores at a
    time where TMA can't store the result, else 0. `a_scaled`: a comes with a scale (M, blocks of 128 of K) for each row
    and block; `b_scaled`: b with one for each block and column ("columns") or 128 columns ("blocks"), (blocks of K, N
    or blocks of N). These are kernels' arguments after b. `a_scale_batch`, `b_scale_batch`: the extents of these
    scales' leading axes; None if those of a pair for b differ. `gate`: two products share a. b is given twice, first
    the gate's, then the gated one. Each product has its own steps, `gated`; then `gate` joins the two, and `steps`
    follow. `keeps`: the two products are also results, after the joined one, for gradients. `softmax`: the result is
    float32 (softmax, tiles, M). For each row and each tile along N it has the first `softmax` of: the greatest element,
    the sum of exp(element - greatest), the sum of the elements. `exponentials`: exp(element - its row's shift), in
    `out_dtype`, is a result before these, and the sums are sums of these exponentials. The kernel's last arguments are
    then the shifts, float32 (M,), and an int32 () flag, 0 if there is nothing to do. `int4`: the int8 side holds two
    numbers of 4 bits a byte, in the order of `PackedInt4`, and this many of K share a scale. The scales, and with
    `int4_zeros` the zeros, are a kernel's arguments after b. If 32 of K share a scale, the numbers are mxfp4 and the
    scales are bytes. `sparse`: a holds the stored half of a `SparseMatrix`; its metadata is a kernel's argument after
    b.
    """

    M: int
    N: int
    K: int
    dtype: Any
    b_dtype: Any
    out_dtype: Any
    a_transposed: bool = False
    b_transposed: bool = False
    bias: bool = False
    accumulate: bool = False
    batch: tuple[int, ...] = ()
    a_batch: tuple[int, ...] = ()
    b_batch: tuple[int, ...] = ()
    steps: tuple[EpilogueStep, ...] = ()
    parts: int = 1
    thrice: bool = False
    lanes: int = 0
    a_scaled: bool = False
    b_scaled: str = ""
    gate: EpilogueStep | None = None
    gated: tuple[tuple[EpilogueStep, ...], tuple[EpilogueStep, ...]] = ((), ())
    promoted: bool = False
    groups: RowGroups | None = None
    softmax: int = 0
    int4: int = 0
    int4_zeros: bool = False
    sparse: bool = False
    keeps: bool = False
    exponentials: bool = False
    a_scale_batch: tuple[int, ...] = ()
    b_scale_batch: tuple[int, ...] | None = ()

    @property
    def mxfp4(self) -> bool:
        """Whether the 4-bit numbers are floats."""
        return self.int4 == HALF

    @lazy
    def swapped(self) -> Problem:
        """The same products as out.T = b.T a.T, on the same arrays. `bias` and `accumulate` stay unchanged."""
        p = self
        sides = {"dtype": p.b_dtype, "b_dtype": p.dtype, "a_batch": p.b_batch, "b_batch": p.a_batch}
        return changed(p, M=p.N, N=p.M, a_transposed=not p.b_transposed, b_transposed=not p.a_transposed, **sides)

    @property
    def all_steps(self) -> tuple[EpilogueStep, ...]:
        """The steps, including those for `bias` and `accumulate`."""
        return (*((BIAS,) if self.bias else ()), *((ADDEND,) if self.accumulate else ()), *self.steps)

    @property
    def plain(self) -> bool:
        """Whether sums are stored without steps."""
        return not self.all_steps and self.gate is None and not self.softmax

    @lazy
    def scaled(self) -> bool:
        """Whether sums are promoted every 128 of K."""
        return self.a_scaled or bool(self.b_scaled)

    @property
    def busy(self) -> bool:
        """Whether the steps are so long that a lane should process few sums at a time."""
        return len((*self.all_steps, *self.gated[0], *self.gated[1])) > 3

    @property
    def named(self) -> bool:
        """Whether the problem's repr describes it completely, because no step has a caller's function."""
        steps = (*self.steps, *self.gated[0], *self.gated[1], *((self.gate,) if self.gate else ()))
        return all(step.function is None for step in steps)

    @property
    def peaks(self) -> bool:
        """Whether the greatest magnitude of the result is a second result."""
        return any(step.kind == "absmax" for step in self.steps)

    def scales_of(self, refs: Any) -> tuple[tuple[Any, Any], Any]:
        """((the scales of a and b, None without scales), the rest) of arguments that begin with them."""
        rest = list(refs)
        pair = tuple(rest.pop(0) if has else None for has in (self.a_scaled, bool(self.b_scaled)))
        return (pair[0], pair[1]), rest

    def packs_of(self, refs: Any) -> tuple[tuple[Any, ...], Any]:
        """(scales and zeros of 4-bit numbers, or metadata; the rest) of arguments that begin with them."""
        count = (2 if self.int4_zeros else 1) if self.int4 else int(self.sparse)
        return tuple(refs[:count]), refs[count:]

    def results(self, *leading: int, tiles: int = 0) -> Any:
        """The shapes and dtypes of a kernel's results, with `tiles` tiles along N."""
        out = kd.ShapeDtypeStruct((*leading, *self.batch, self.M, self.N), self.out_dtype)
        if self.softmax:
            sums = kd.ShapeDtypeStruct((self.softmax, tiles, self.M), kd.float32)
            return (out, sums) if self.exponentials else sums
        if self.keeps:
            return out, out, out
        return (out, kd.ShapeDtypeStruct((), kd.float32, init=0.0)) if self.peaks else out

    def kept_of(self, refs: Any) -> tuple[tuple[Any, ...], Any]:
        """(the results after the first: two products before their gate, or sums; the rest) of arguments that end with
        them.
        """
        count = len(refs) - (2 if self.keeps else int(self.exponentials))
        return tuple(refs[count:]), refs[:count]

    @property
    def depth(self) -> int:
        """The number of elements of K from the high to the low part of an operand with `thrice`."""
        return -(-self.K // 32) * 32

    @lazy
    def accumulator(self) -> Any:
        """The dtype of the sums of products."""
        both = (self.dtype, self.b_dtype)
        if not any(dtype.is_float for dtype in both):
            return kd.int64 if max(dtype.itemsize for dtype in both) == 8 else kd.int32
        return kd.float64 if kd.float64 in both else kd.float32

    @lazy
    def wide(self) -> Any:
        """The dtype of sums after promotion."""
        return kd.float32 if self.scaled else self.accumulator

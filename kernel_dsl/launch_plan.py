"""`LaunchPlan`: all steps of a launch, as data.

A device runs it, `bind` keeps it, the fast path compiles it, and a graph collects it.
Arrays are numbered: inputs, then outputs, then scratch, which each launch allocates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .compiled import (
    ArrayAssumption,
    CompiledKernel,
    LaunchAttributes,
    OutputSpec,
    Param,
    ScalarParam,
    SourceLine,
    TensorMapParam,
)
from .dtypes import DType, uint8
from .lazy import lazy


@dataclass(frozen=True)
class ConstantParam:
    """A parameter that is the same in each launch, as bytes: the geometry that a custom kernel receives."""

    data: bytes


@dataclass(frozen=True)
class OffsetParam:
    """The address `offset` bytes after the beginning of an array."""

    array: int
    offset: int


AnyParam = Param | ConstantParam | OffsetParam


@dataclass(frozen=True)
class ScratchSpec:
    """Row-major memory of one launch.

    `written`: the kernel stores to it; else it reads the data that a step puts there.
    """

    shape: tuple[int, ...]
    dtype: DType
    alignment: int
    written: bool
    name: str  # for reports


# --- steps, in the order in which a launch takes them ----------------------------------------------


@dataclass(frozen=True)
class FillStep:
    """Every element of `array` becomes `value`: a number, or a scalar argument of the call."""

    array: int
    value: Any


@dataclass(frozen=True)
class ZeroStep:
    """Every byte of `array`, a workspace, becomes 0."""

    array: int


@dataclass(frozen=True)
class CopyStep:
    """Copy `source` to `target`, element by element. Nothing is copied if both are the same memory."""

    target: int
    source: int


@dataclass(frozen=True)
class LaunchStep:
    """The kernel: an entry of compiled code or of an image. `params`: its parameters in order."""

    entry: str
    params: tuple[AnyParam, ...]
    attributes: LaunchAttributes


MemoryStep = FillStep | ZeroStep | CopyStep
Step = MemoryStep | LaunchStep


@dataclass(frozen=True)
class LaunchPlan:
    """One launch of a kernel: steps that prepare memory, then the kernel, unless its grid is empty.

    `traced`: it is a kernel of the language, whose arrays are checked against `arrays`; else it is a custom kernel, and
    the plan is made for the arrays of one call. `guarded`: the kernel can't store to arrays that are not `written`.
    `shared`: pairs of arrays (i, j), i < j, that the code takes as one memory. Of all other pairs, two arrays must not
    overlap if one is written. `effects`: the kernel may do more than write its arrays, or an output stands for an
    input.
    """

    name: str
    arrays: tuple[ArrayAssumption, ...]
    inputs: int
    outputs: tuple[OutputSpec, ...]
    scratch: tuple[ScratchSpec, ...]
    steps: tuple[Step, ...]
    traced: bool = True
    guarded: bool = True
    shared: tuple[tuple[int, int], ...] = ()
    effects: bool = False
    source: SourceLine | None = None

    @lazy
    def launch(self) -> LaunchStep | None:
        """The kernel; None if the grid is empty."""
        last = self.steps[-1] if self.steps else None
        return last if isinstance(last, LaunchStep) else None

    @lazy
    def first(self) -> tuple[MemoryStep, ...]:
        """The steps on the call's own arrays."""
        return tuple(s for s in self.steps if not isinstance(s, LaunchStep) and target_of(s) < len(self.arrays))

    @lazy
    def then(self) -> tuple[MemoryStep, ...]:
        """The steps on scratch. They are done only if the kernel runs."""
        return tuple(s for s in self.steps if not isinstance(s, LaunchStep) and target_of(s) >= len(self.arrays))

    @lazy
    def unset(self) -> tuple[int, ...]:
        """The outputs that no step fills: if the call allocates them, they are uninitialised before the kernel runs."""
        made = set(map(target_of, self.first))
        return tuple(i for i in range(self.inputs, len(self.arrays)) if i not in made)

    @lazy
    def written(self) -> tuple[bool, ...]:
        """For each array, also scratch: whether the kernel may store to it."""
        return (*(a.written for a in self.arrays), *(s.written for s in self.scratch))

    @lazy
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The pairs of arrays of which one is written: only those in `shared` may overlap."""
        written = self.written
        return tuple((i, j) for j in range(len(self.arrays)) for i in range(j) if written[i] or written[j])


def target_of(step: MemoryStep) -> int:
    """The array that a step writes."""
    return step.target if isinstance(step, CopyStep) else step.array


def plan_of(kernel: CompiledKernel) -> LaunchPlan:
    """The plan of a traced kernel's launch."""
    outputs = list(enumerate(kernel.outputs, kernel.inputs))
    steps: list[Step] = []
    for i, spec in outputs:
        if spec.alias is not None:
            steps.append(CopyStep(i, spec.alias))
        elif spec.fill is not None:
            steps.append(FillStep(i, spec.fill))
    spaces = () if kernel.launch.empty else kernel.workspaces
    scratch = tuple(
        ScratchSpec((space.bytes,), uint8, space.alignment, True, f"workspace {i}") for i, space in enumerate(spaces)
    )
    steps += [ZeroStep(i) for i, space in enumerate(spaces, len(kernel.arrays)) if space.zeroed]
    if not kernel.launch.empty:
        steps.append(LaunchStep(kernel.entry, kernel.params, kernel.launch))
    aliases = [(spec.alias, i) for i, spec in outputs if spec.alias is not None]
    return LaunchPlan(
        name=kernel.name,
        arrays=kernel.arrays,
        inputs=kernel.inputs,
        outputs=kernel.outputs,
        scratch=scratch,
        steps=tuple(steps),
        shared=_closure(len(kernel.arrays), [*kernel.overlaps, *aliases]),
        effects=kernel.effects or bool(aliases),
        source=kernel.source,
    )


def _closure(count: int, pairs: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """All pairs (i, j), i < j, that are one memory directly, or by way of others."""
    if not pairs:
        return ()
    group = list(range(count))
    for i, j in pairs:
        old, new = group[j], group[i]
        group = [new if g == old else g for g in group]
    return tuple((i, j) for j in range(count) for i in range(j) if group[i] == group[j])


def slot(param: AnyParam) -> tuple[int, int]:
    """A parameter's size and alignment in bytes. The alignment is the size, but 16 for a custom kernel's constants."""
    if isinstance(param, ConstantParam):
        return len(param.data), 16
    if isinstance(param, TensorMapParam):
        return 128 * max(param.ranks, 1), 64
    size = param.dtype.itemsize if isinstance(param, ScalarParam) else 8
    return size, size

"""Random asynchronous copies of blocks of views: any start, rank and dtype, into rings and out of them, against NumPy.

Starts change from one step to the next, so that a stage is filled by TMA and by the lanes in turns; it is read by lanes,
or by copies back to GMEM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import kernel_dsl as kd
from tests.fuzz.choose import Choices
from tests.fuzz.views import Model, run_text
from tests.fuzz.written import Traced, Written

DTYPES = ["float32", "bfloat16", "uint8", "int32", "float16", "int8", "float64", "int16"]
STEPS = 4


@dataclass
class Axis:
    """One axis of the array, of the view of it, and of the blocks: first, extent, size, and the starts of all steps."""

    extent: int
    low: int
    high: int
    size: int
    first: int
    by: int  # from one step to the next

    @property
    def view(self) -> str:
        return ":" if (self.low, self.high) == (0, self.extent) else f"{self.low}:{self.high}"


class Program(Written):
    """A kernel that copies blocks in a loop."""

    def __init__(self, seed: int) -> None:
        super().__init__(f"halos_{seed}")
        self.c = c = Choices(seed)
        self.dtype = c.one(DTYPES)
        self.item = kd.dtypes.as_dtype(self.dtype).itemsize
        self.steps = c.between(1, STEPS)
        self.threads = c.one([1, 1, 2])
        self.stages = c.between(1, 2)
        self.target = "sm_90a" if c.chance(0.9) else "sm_80"
        self.barrier = self.target != "sm_80" or c.chance(0.5)
        self.statics = c.chance(0.3)  # all starts known while tracing
        rank = c.weighted(((1, 3), (2, 6), (3, 3), (4, 1), (5, 1)))
        unit = max(16 // self.item, 1)
        self.axes = [self._axis(unit if axis == rank - 1 else 0) for axis in range(rank)]
        while int(np.prod([a.size for a in self.axes])) * self.item > 8192:
            largest = max(self.axes[:-1] or self.axes, key=lambda a: a.size)
            largest.size = max(largest.size // 2, unit if largest is self.axes[-1] else 1)
            if largest is self.axes[-1]:
                largest.size = -(-largest.size // unit) * unit

    def _axis(self, unit: int) -> Axis:
        c = self.c
        if not unit:  # an outer axis
            extent = c.between(1, 12)
            size, by = c.between(1, 6), c.one([0, 1, 2, -1])
        else:
            extent = c.between(1, 16) * unit if c.chance(0.9) else c.between(1, 100)
            size, by = c.between(1, 8) * unit, c.one([0, 0, 1, unit, 3, -1, -unit])
        low, high = (0, extent) if c.chance(0.5) else sorted((c.below(extent + 1), c.below(extent + 1)))
        if c.chance(0.3):
            low, high = 0, max(high, 1)
        if high <= low:
            low, high = 0, extent
        inner = high - low
        first = c.one([0, 0, 1, -1, inner - size, inner - 1, -size + 1, c.between(-3, inner + 2), unit or 1, 3])
        return Axis(extent, low, high, size, first, by)

    def start(self, axis: Axis, step: str) -> str:
        """The text of a block's start at a step."""
        if self.statics:
            return f"({axis.first} + {step} * {axis.by})"
        kind = self.c.below(3)
        if axis.by == 0 and kind == 0:
            return str(axis.first)
        name = self.scalar(axis.first)
        text = name if axis.by == 0 else f"{name} + {step} * {axis.by}"
        known = self._known(axis)
        return f"kd.multiple_of({text}, {known})" if kind == 1 and known > 1 else text

    def _known(self, axis: Axis) -> int:
        """A power of two that all starts of an axis are multiples of."""
        factor = 64
        while any((axis.first + s * axis.by) % factor for s in range(self.steps)):
            factor //= 2
        return factor

    def block(self, name: str, step: str) -> str:
        view = f".at[{', '.join(a.view for a in self.axes)}]"
        view = "" if all(a.view == ":" for a in self.axes) else view
        return f"{name}{view}.at[{', '.join(f'kd.ds({self.start(a, step)}, {a.size})' for a in self.axes)}]"

    def loop(self, body: list[str]) -> list[str]:
        """The lines of all steps: a loop of the kernel, or one of Python's."""
        head = [f"for step in range({self.steps}):"] if self.statics else [f"@kd.loop(0, {self.steps})", "def _(i):"]
        return [*head, *(f"    {line}" for line in body)]

    def array(self, shape: tuple[int, ...]) -> np.ndarray:
        return self.c.rng.integers(1, 100, shape).astype(kd.dtypes.as_dtype(self.dtype).numpy)

    def values(self, text: str, names: dict[str, Any], step: int) -> Any:
        return run_text(text, self.scalars, {**names, "i": Traced(step), "step": step})

    def transforms(self, size: int) -> str:
        """A swizzle for the buffer, where its rows have the span."""
        row = size * self.item
        if row not in (32, 64, 128) or len(self.axes) < 2 or self.target == "sm_80" or self.c.chance(0.5):
            return ""
        return f", transforms=(kd.SwizzleTransform({row}),)"


def generate(seed: int) -> Program:
    """The program of a seed: loads in most, else stores."""
    p = Program(seed)
    if p.target == "sm_90a" and p.c.chance(0.3):
        _stores(p)
    else:
        _loads(p)
    return p


def _scratch(p: Program, shape: tuple[int, ...]) -> None:
    swizzle = p.transforms(shape[-1])
    unit = 1024 if swizzle else 128  # bytes: where a stage may start
    row = int(np.prod(shape[1:])) * p.item
    pad = next(n for n in range(shape[0], shape[0] + unit) if p.stages == 1 or n * row % unit == 0)
    p.scratch["ring"] = f"kd.SMEM({(p.stages, pad, *shape[1:])}, kd.{p.dtype}{swizzle})"


def _stage(p: Program, shape: tuple[int, ...], step: str) -> str:
    slot = f"{step} % {p.stages}" if p.stages > 1 else "0"
    return f"ring.at[{slot}, {', '.join(f':{n}' for n in shape)}]"


def _loads(p: Program) -> None:
    c, shape = p.c, tuple(a.size for a in p.axes)
    p.inputs["x"] = p.array(tuple(a.extent for a in p.axes))
    names = {"x": Model.of(p.inputs["x"])}
    _scratch(p, shape)
    step = "step" if p.statics else "i"
    text = p.block("x", step)
    floats = kd.dtypes.as_dtype(p.dtype).is_float and p.item > 1
    mode = c.weighted((("ZEROS", 6), ("NANS", 2 if floats else 0)))
    wanted = np.stack([p.values(text, names, s).loaded(np.nan if mode == "NANS" else 0) for s in range(p.steps)])
    p.outputs["out"] = wanted, 0
    split = p.threads == 2 and p.barrier
    stage = _stage(p, shape, step)
    more = "" if mode == "ZEROS" else f", oob_mode=kd.OOBFillMode.{mode}"
    if p.barrier:
        p.scratch["full"] = f"kd.Barrier(1, {p.stages})"
        copy = f"kd.copy_gmem_to_smem({text}, {stage}, full.at[{step} % {p.stages}]{more})"
        wait = [f"kd.barrier_wait(full.at[{step} % {p.stages}])"]
    else:
        copy = f"kd.copy_gmem_to_smem({text}, {stage}{more})"
        wait = ["kd.wait_gmem_to_smem(0)"]
    back = p.target == "sm_90a" and p.barrier and c.chance(0.4) and all(n * p.item % 16 == 0 for n in shape[-1:])
    if back:
        use = [f"kd.copy_smem_to_gmem({stage}, out.at[{step}])", "kd.wait_smem_to_gmem(0)"]
    else:
        use = [f"out[{step}] = {stage}[...]"]
    if split:
        p.scratch["empty"] = f"kd.Barrier(1, {p.stages})"
        p.options = 'num_threads=2, thread_name="wg"'
        free = f"kd.barrier_wait(empty.at[{step} % {p.stages}])"
        again = f"{step} >= {p.stages}"
        freed = f"if {again}: {free}" if p.statics else f"kd.when({again})(lambda: {free})"
        p.branch("kd.axis_index('wg') == 1", p.loop([freed, copy]))
        p.branch("kd.axis_index('wg') == 0", p.loop([*wait, *use, f"kd.barrier_arrive(empty.at[{step} % {p.stages}])"]))
    else:
        p.lines += p.loop([copy, *wait, *use])
    if c.chance(0.2) and p.target == "sm_90a":
        p.lines.insert(0, f"kd.async_prefetch({p.block('x', '0')})")


def _stores(p: Program) -> None:
    """Blocks stored to a view, at starts that don't lie before it."""
    c, shape = p.c, tuple(a.size for a in p.axes)
    for a in p.axes:
        least = min(a.first, a.first + (p.steps - 1) * a.by)
        a.first -= min(least, 0)
    whole = np.zeros(tuple(a.extent for a in p.axes), kd.dtypes.as_dtype(p.dtype).numpy)
    model = Model.of(whole)
    p.inputs["x"] = p.array((p.steps, *shape))
    p.stages, p.threads = 1, 1
    _scratch(p, shape)
    step = "step" if p.statics else "i"
    text, stage = p.block("out", step), _stage(p, shape, step)
    add = p.dtype in ("int32", "float32") and c.chance(0.2)
    for s in range(p.steps):
        view = p.values(text, {"out": model}, s)
        (view.add if add else view.store)(p.inputs["x"][s])
    p.outputs["out"] = whole, 0
    more = ', reduction_op="add"' if add else ""
    fill = [f"{stage}[...] = x[{step}]", "kd.commit_smem()"]
    copy = [f"kd.copy_smem_to_gmem({stage}, {text}{more})", "kd.wait_smem_to_gmem(0)"]
    p.lines += p.loop([*fill, *copy])

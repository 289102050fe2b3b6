"""Random pipelines of several blocks: halos, dropped axes, starts from arrays, views, swizzles and traced grids, against NumPy.

Each step copies every block that it gets to a place of its own, and adds up one element of each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

import kernel_dsl as kd
from tests.fuzz.choose import Choices

DTYPES = ("int32", "float32", "int16", "bfloat16", "uint8", "float64", "int4")


@dataclass
class Axis:
    """An axis of a block: `kind` "block", "element" or "squeezed"; its index is `scale` * a step or table entry + `shift`."""

    kind: str
    size: int
    source: int  # the axis of the grid; -1: none; -2: the table, by the first axis of the grid
    scale: int = 1
    shift: int = 0
    padding: tuple[int, int] = (0, 0)

    def index(self, steps: Any, table: Any) -> Any:
        if self.source == -1:
            return self.shift
        step = table[steps[0]] if self.source == -2 else steps[self.source]
        return step * self.scale + self.shift

    def extent(self) -> Any:
        if self.kind == "squeezed":
            return None if self.shift % 2 else kd.squeezed
        return kd.Element(self.size, self.padding) if self.kind == "element" else self.size

    def taken(self, x: np.ndarray, axis: int, steps: Any, table: Any) -> np.ndarray:
        """The block's part of an array along this axis: zeros beyond it."""
        first = self.index(steps, table)
        start = first - self.padding[0] if self.kind == "element" else first * self.size
        places = start + np.arange(self.size)
        length = x.shape[axis]
        beyond = np.zeros((*x.shape[:axis], 1, *x.shape[axis + 1 :]), x.dtype)  # also where the array has no element
        inside = (places >= 0) & (places < length)
        return np.take(np.concatenate([x, beyond], axis), np.where(inside, places, length), axis)


@dataclass(eq=False)
class Input:
    array: np.ndarray
    axes: list[Axis]
    low: int  # of the view along the first axis
    high: int
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def block(self) -> tuple[int, ...]:
        return tuple(a.size for a in self.axes if a.kind != "squeezed")

    def spec(self, table: Any) -> Any:
        return kd.BlockSpec(
            tuple(a.extent() for a in self.axes),
            lambda *steps: tuple(a.index(steps, table) for a in self.axes),
            **self.options,
        )

    def wanted(self, steps: Any, table: Any) -> np.ndarray:
        x = self.array[self.low : self.high]
        for number, axis in enumerate(self.axes):
            x = axis.taken(x, number, steps, table)
        return x.reshape(self.block)


class Program:
    """Inputs, a grid, and how the pipeline is called."""

    def __init__(self, seed: int) -> None:
        c = Choices(seed)
        self.seed = seed
        self.grid = tuple(c.between(1, 3) for _ in range(c.between(1, 2)))
        self.specialised = c.chance(0.45)
        self.depth = c.between(1, 3)
        self.traced = c.chance(0.4)
        self.table = c.rng.integers(0, 4, self.grid[0]).astype(np.int32)
        self.repeats = c.one([1, 1, 2])
        self.instances = c.one([1, 1, 2])
        self.inputs = [self._input(c) for _ in range(c.between(1, 3))]
        self.carry = c.chance(0.5)

    def _input(self, c: Choices) -> Input:
        dtype = c.one(DTYPES)
        unit = 32 if dtype == "int4" else 16 // kd.dtypes.as_dtype(dtype).numpy.itemsize
        axes, shape = [], []
        for number in range(rank := c.between(1, 4 - len(self.grid))):
            last = number == rank - 1
            source = c.weighted(((-1, 1), (-2, 2), *((i, 3) for i in range(len(self.grid)))))
            kind = c.one(["block", "block", "element", "squeezed"]) if not last else c.one(["block", "element"])
            size = 1 if kind == "squeezed" else (unit * c.between(1, 3) if last else c.between(1, 9))
            axis = Axis(kind, size, source)
            if kind == "element":
                # 4-bit elements start at even ones
                axis.scale = c.between(1, size) * (2 if dtype == "int4" and last else 1)
                axis.shift = 0 if last and c.chance(0.5) else c.between(0, 3) * (2 if dtype == "int4" and last else 1)
                axis.padding = (0, 0) if last else (c.between(0, 2), c.between(0, 2))
            elif source == -1:
                axis.shift = c.between(0, 1)
            elif source >= 0 and c.chance(0.3):
                axis.scale, axis.shift = -1, self.grid[source] - 1
            elif source >= 0 and c.chance(0.2):
                axis.shift = -1  # before the array: zeros
            axes.append(axis)
            most = max(axis.index(s, self.table) for s in np.ndindex(self.grid))
            if kind == "squeezed":
                shape.append(most + 1 + c.below(2))
            else:
                reach = most + size if kind == "element" else (most + 1) * size
                # now and then the last block is partial, or beyond the end
                extent = max(reach - c.one([0, 0, c.between(0, size)]), 1)
                shape.append(-(-extent // unit) * unit if last else extent)
        low = 0 if axes[0].kind == "squeezed" or rank == 1 else c.one([0, 0, 2])
        whole = (self.instances, shape[0] + low + c.below(3) * (rank > 1), *shape[1:])
        array = c.rng.integers(-8 if dtype != "uint8" else 0, 8, whole).astype(kd.dtypes.as_dtype(dtype).numpy)
        options: dict[str, Any] = {}
        if self.depth > 1 and c.chance(0.2):
            options["delay_release"] = 1
        made = Input(array, axes, low, low + shape[0], options)
        if c.chance(0.12):
            options["memory_space"] = kd.GMEM
        return made

    def kernel(self) -> Any:
        outs: list[Any] = [kd.ShapeDtypeStruct((self.instances, *self.grid, *i.block), _plain(i)) for i in self.copied]
        outs.append(kd.ShapeDtypeStruct((self.instances,), kd.int32))
        more: dict[str, Any] = {"num_threads": 2, "thread_name": "wg"} if self.specialised else {}
        return kd.kernel(
            self._body,
            out_type=tuple(outs),
            grid=(self.instances,),
            grid_names=("me",),
            name=f"specs_{self.seed}",
            **more,
        )

    @property
    def copied(self) -> list[Input]:
        return [i for i in self.inputs if i.options.get("memory_space") is not kd.GMEM]

    def _body(self, *refs: Any) -> None:
        count = len(self.inputs)
        sources, table, n = refs[:count], refs[count], refs[count + 1]
        *targets, total = refs[count + 2 :]
        me = kd.axis_index("me")
        views = [r.at[me].at[i.low : i.high] for r, i in zip(sources, self.inputs, strict=True)]
        outs = [r.at[me] for r in targets]
        grid = (self.grid[0] if not self.traced else n, *self.grid[1:])
        out_specs = [
            kd.BlockSpec((*(None for _ in self.grid), *i.block), lambda *s, n=i.block: (*s, *(0 for _ in n)))
            for i in self.copied
        ]

        def step(steps: Any, *blocks: Any) -> Any:
            rest = list(blocks[count:])
            summed: Any = kd.astype(steps[0], kd.int32) * 3
            for given, block in zip(self.inputs, blocks, strict=False):
                if given.options.get("memory_space") is kd.GMEM:
                    summed = summed + kd.astype(block[...], kd.int32).sum()
                else:
                    value = block[...]
                    rest.pop(0)[...] = kd.astype(value, _plain(given)) if _packed(given) else value
                    summed = summed + kd.astype(value, kd.int32).sum()
            if self.carry:
                return blocks[-1] + summed
            return None

        common: dict[str, Any] = {
            "grid": grid,
            "in_specs": [i.spec(table) for i in self.inputs],
            "out_specs": out_specs,
        }
        common["max_concurrent_steps"] = self.depth
        if self.specialised:
            self._specialised(step, common, views, outs, total, me)
            return
        init = {"init_carry": kd.astype(0, kd.int32)} if self.carry else {}

        def once() -> Any:
            return kd.emit_pipeline(step, **common, **init)(*views, *outs)

        if self.repeats == 1:
            result = once()
        else:
            result = kd.fori_loop(0, self.repeats, lambda i, old: once() if self.carry else (once(), old)[1], 0)
        total[me] = result if self.carry else kd.astype(0, kd.int32)

    def _specialised(self, step: Any, common: Any, views: Any, outs: Any, total: Any, me: Any) -> None:
        context: dict[str, Any] = {}
        if self.carry:

            def compute(pipeline: Any) -> None:
                total[me] = pipeline(kd.astype(0, kd.int32))

            context["compute_context"] = compute
        else:

            @kd.when(kd.axis_index("wg") == 0)
            def _() -> None:
                total[me] = kd.astype(0, kd.int32)

        made = kd.emit_pipeline_warp_specialized(
            step, memory_registers=40, wg_axis="wg", num_compute_wgs=1, **common, **context
        )
        if self.repeats == 1:
            made(*views, *outs)
        else:

            @kd.loop(0, self.repeats)
            def _(_: Any) -> None:
                made(*views, *outs)

    def arguments(self) -> list[Any]:
        return [*(i.array for i in self.inputs), self.table, np.int32(self.grid[0])]

    def run(self, interpret: Any = True) -> list[np.ndarray]:
        return [np.asarray(o) for o in self.kernel()(*self.arguments(), interpret=interpret)]

    def check(self, outputs: list[np.ndarray]) -> None:
        for me in range(self.instances):
            total = 0
            copied = iter(outputs)
            for number, given in enumerate(self.inputs):
                mine = Input(given.array[me], given.axes, given.low, given.high)
                out = next(copied)[me] if any(given is i for i in self.copied) else None
                for steps in np.ndindex(self.grid):
                    want = mine.wanted(steps, self.table)
                    if out is None:
                        total += int(mine.array[mine.low : mine.high].astype(np.int64).sum())
                    else:
                        total += int(want.astype(np.int64).sum())
                        wide = [np.asarray(x).astype(np.float64) for x in (out[steps], want)]
                        np.testing.assert_array_equal(*wide, err_msg=f"specs_{self.seed} input {number} at {steps}")
            total += 3 * sum(s[0] for s in np.ndindex(self.grid))
            assert outputs[-1][me] == (total if self.carry else 0), f"specs_{self.seed} total"

    def source(self) -> str:
        """What was chosen, in words."""
        lines = [f"{k} = {v}" for k, v in vars(self).items() if k != "inputs"]
        lines += [f"{i.array.dtype} {i.array.shape} {i.low}:{i.high} {i.options} {i.axes}" for i in self.inputs]
        return "\n".join(lines)


def _packed(given: Input) -> bool:
    return given.array.dtype.name == "int4"


def _plain(given: Input) -> Any:
    return kd.int32 if _packed(given) else kd.dtypes.as_dtype(given.array.dtype.name)


def generate(seed: int) -> Program:
    """The program of a seed."""
    return Program(seed)

"""Random loops whose points go to the block that is free first, with scratch that shares memory, against NumPy.

Each point of the loop writes and reads the members of a `kd.RefUnion` in turn, and stores their sum and its own place.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import kernel_dsl as kd
from tests.fuzz.choose import Choices

DTYPES = ("int32", "float32", "int8", "bfloat16", "uint16", "float64", "int64", "int4")


class Program:
    """A grid, the axes that the loop walks, and the members of a union: each a list of (shape, dtype)."""

    def __init__(self, seed: int) -> None:
        c = Choices(seed)
        self.seed = seed
        self.sizes = {name: c.between(1, 4) for name in "ijk"[: c.between(1, 3)]}
        names = [str(n) for n in c.rng.permutation([*self.sizes])]
        self.loop = names[: c.between(1, len(names))]
        self.warpgroups = c.one([1, 1, 2])
        self.cluster = c.one([1, 1, 1, 2])
        self.carry = c.one(["none", "count", "tree"])
        self.members = [[self._member(c) for _ in range(c.weighted(((1, 3), (2, 1))))] for _ in range(c.between(2, 3))]
        self.uses = [int(n) for n in c.rng.integers(0, len(self.members), c.between(2, 4))]
        self.turned = c.chance(0.4)  # a read of the other lanes' elements
        self.inner = c.one([0, 0, 2, 3])  # turns of a loop around the uses
        self.open = c.chance(0.5)  # the grid is not known while tracing
        self.x = c.rng.integers(-3, 4, (*self.sizes.values(), 64)).astype(np.int32)

    def _member(self, c: Choices) -> tuple[tuple[int, ...], str]:
        dtype = c.one(DTYPES)
        return c.one([(64,), (64,), (4, 64), (3, 64), (64, 2)] if dtype != "int4" else [(64,), (4, 64)]), dtype

    def kernel(self) -> Any:
        more: dict[str, Any] = {"num_threads": 2, "thread_name": "wg"} if self.warpgroups > 1 else {}
        if self.cluster > 1:
            more |= {"cluster": (2,), "cluster_names": ("pair",)}
        shape = tuple(self.sizes.values())
        pairs = self.cluster
        trees = [
            tuple(kd.SMEM(shape, getattr(kd, dtype)) for shape, dtype in m) if len(m) > 1 else kd.SMEM(m[0][0], getattr(kd, m[0][1]))
            for m in self.members
        ]  # fmt: skip

        def outputs(shape: tuple[int, ...]) -> tuple[Any, ...]:
            return (
                kd.ShapeDtypeStruct((pairs, *shape, 64), kd.int32),
                kd.ShapeDtypeStruct((self.warpgroups, pairs, *shape), kd.int32),
                kd.ShapeDtypeStruct((pairs, math.prod(shape), 2), kd.int32),
            )

        return kd.kernel(
            self._body,
            out_type=(lambda x: outputs(x.shape[:-1])) if self.open else outputs(shape),
            grid=(lambda x: x.shape[:-1]) if self.open else shape,
            grid_names=tuple(self.sizes),
            scratch_types=[kd.RefUnion(*trees)],
            name=f"tickets_{self.seed}",
            **more,
        )

    def _body(self, x: Any, out: Any, places: Any, turns: Any, union: Any) -> None:
        wg = kd.axis_index("wg") if self.warpgroups > 1 else 0
        pair = kd.axis_index("pair") if self.cluster > 1 else 0
        members = [m if isinstance(m, tuple) else (m,) for m in union]
        more: dict[str, Any] = {"thread_axis": "wg"} if self.warpgroups > 1 else {}
        if self.cluster > 1:
            more["cluster_axes"] = "pair"
        start = kd.astype(0, kd.int32)
        init = {"none": None, "count": start, "tree": (start, {"last": start - 1})}[self.carry]
        more |= {"init_carry": init} if init is not None else {}

        def used(here: Any, turn: Any) -> Any:
            """The sum of what the members hold, one after the other."""
            total = kd.zeros((64,), kd.int32)
            for number, which in enumerate(self.uses):
                for ref, (shape, dtype) in zip(members[which], self.members[which], strict=True):
                    value = x[here] + number + turn
                    whole = value[:, None] if shape == (64, 2) else value
                    ref[...] = kd.broadcast_to(whole, shape).astype(getattr(kd, dtype))
                for ref, (shape, _) in zip(members[which], self.members[which], strict=True):
                    got = ref[...].astype(kd.int32)
                    got = got if len(shape) == 1 else got.sum(1 if shape == (64, 2) else 0)
                    total = total + (kd.flip(got, 0) if self.turned else got)
            return total

        def step(info: Any, *carry: Any) -> Any:
            point = dict(zip(self.loop, info.index, strict=True))
            here = tuple(point[n] if n in point else kd.axis_index(n) for n in self.sizes)
            places[(wg, pair, *here)] = info.local_index * 0 + sum(p * 10**i for i, p in enumerate(info.index))

            @kd.when(wg == 0)
            def _() -> None:
                zero = kd.zeros((64,), kd.int32)
                out[(pair, *here)] = (
                    kd.fori_loop(0, self.inner, lambda i, t: t + used(here, i), zero) if self.inner else used(here, 0)
                )

            if self.carry == "none":
                return None
            if self.carry == "count":
                return carry[0] + 1
            count, kept = carry[0]
            return count + 1, {"last": kd.where(info.local_index > kept["last"], info.local_index, -99)}

        done = kd.dynamic_scheduling_loop(tuple(self.loop), **more)(step)
        if self.carry == "none":
            done = (start, start)
        elif self.carry == "count":
            done = (done, start)
        else:
            done = (done[0], done[1]["last"])

        @kd.when(wg == 0)
        def _() -> None:
            block = kd.axis_index(tuple(self.sizes))
            turns[pair, block, 0], turns[pair, block, 1] = done

    def arguments(self) -> list[Any]:
        return [self.x]

    def run(self, interpret: Any = True) -> list[np.ndarray]:
        return [np.asarray(o) for o in self.kernel()(*self.arguments(), interpret=interpret)]

    def check(self, outputs: list[np.ndarray]) -> None:
        out, places, turns = outputs
        wanted = np.zeros(self.x.shape, np.int64)
        for turn in range(self.inner or 1):
            for number, which in enumerate(self.uses):
                value = self.x.astype(np.int64) + number + turn
                for shape, dtype in self.members[which]:
                    held = value.astype(kd.dtypes.as_dtype(dtype).numpy).astype(np.int64)
                    got = held * (math.prod(shape) // 64)
                    wanted += got[..., ::-1] if self.turned else got
        np.testing.assert_array_equal(out, np.broadcast_to(wanted, out.shape))
        axes = [*self.sizes]
        for place in np.ndindex(*self.sizes.values()):
            number = sum(place[axes.index(name)] * 10**i for i, name in enumerate(self.loop))
            assert (places[(slice(None), slice(None), *place)] == number).all(), place
        if self.carry != "none":
            assert (turns[:, :, 0].sum(1) == math.prod(self.sizes.values())).all(), "each point once"
        if self.carry == "tree":
            np.testing.assert_array_equal(turns[:, :, 1], turns[:, :, 0] - 1)

    def source(self) -> str:
        """What was chosen, in words."""
        return "\n".join(f"{k} = {v}" for k, v in vars(self).items() if k != "x")


def generate(seed: int) -> Program:
    """The program of a seed."""
    return Program(seed)

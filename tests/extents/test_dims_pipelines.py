"""Random kernels that walk along Dims by loops and pipelines: one compile for all sizes, and the bits of kernels of one size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd

from .test_compiles import pick

R, C = kd.Dim("R", max=512), kd.Dim("C", max=1 << 40, multiple_of=4)
SIZES = ((5, 36), (16, 64), (33, 8), (1, 100))


class Made:
    """A kernel of x (R, C) and y (2, C): x * (y[0] - y[1]) + R, or its sums along rows or columns, from either end."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.kind = pick(rng, "loop", "pipeline", "pipeline", "specialised", "specialised")
        self.what = pick(rng, "map", "rows", "columns")
        self.cluster = pick(rng, 1, 2) if self.what != "columns" else 1
        self.tile = pick(rng, 8, 16), pick(rng, 16, 32)
        self.stages, self.backward = pick(rng, 1, 2, 3), bool(rng.integers(2))
        wide = self.tile[1] == 32  # half of y's block is a whole line of SMEM
        self.shares = self.cluster > 1 and self.kind == "specialised" and wide and bool(rng.integers(2))

    def __repr__(self) -> str:
        return f"{vars(self)}"

    def kernel(self, dims: bool) -> Any:
        (height, width), along_rows = self.tile, self.what == "columns"
        warpgroups = 2 if self.kind == "specialised" else 1

        def body(x: Any, y: Any, out: Any) -> None:
            mine = kd.axis_index("block") * self.cluster
            mine = mine + kd.axis_index("pair") if self.cluster > 1 else mine
            count = kd.cdiv(x.shape[0], height) if along_rows else kd.cdiv(x.shape[1], width)

            def place(step: Any) -> tuple[Any, Any]:
                step = count - 1 - step if self.backward else step
                return (step, mine) if along_rows else (mine, step)

            def slices(step: Any) -> tuple[Any, Any]:
                row, column = place(step)
                return kd.ds(row * height, height), kd.ds(column * width, width)

            def once(step: Any, xs: Any, ys: Any, total: Any) -> Any:
                values = xs * (ys[0] - ys[1])[None, :]
                if self.what == "map":
                    out[slices(step)] = values + x.shape[0]
                    return total
                return total * 0.5 + values.sum(0 if along_rows else 1)

            def store(total: Any) -> None:
                if self.what == "rows":
                    out[kd.ds(mine * height, height)] = total
                elif along_rows:
                    out[kd.ds(mine * width, width)] = total

            start = kd.zeros((width if along_rows else height,), kd.float32)
            shared = {"collective_axes": "pair"} if self.shares else {}
            specs = [
                kd.BlockSpec((height, width), place),
                kd.BlockSpec((2, width), lambda step: (0, place(step)[1]), **shared),
            ]
            if self.kind == "loop":

                def step(i: Any, total: Any) -> Any:
                    return once(i, x[slices(i)], [y[row, slices(i)[1]] for row in range(2)], total)

                store(kd.fori_loop(0, count, step, start))
            elif self.kind == "pipeline":

                def block(index: Any, xs: Any, ys: Any, total: Any) -> Any:
                    return once(index[0], xs[...], ys, total)

                run = kd.emit_pipeline(
                    block, grid=(count,), in_specs=specs, max_concurrent_steps=self.stages, init_carry=start
                )
                store(run(x, y))
            else:

                def step_of(index: Any, xs: Any, ys: Any, total: Any) -> Any:
                    return once(index[0], xs[...], ys, total)

                kd.emit_pipeline_warp_specialized(
                    step_of, grid=(count,), memory_registers=40, in_specs=specs, max_concurrent_steps=self.stages,
                    wg_axis="wg", num_compute_wgs=1, compute_context=lambda pipeline: store(pipeline(start)),
                )(x, y)  # fmt: skip

        def results(x: Any, y: Any) -> Any:
            shape = {"map": x.shape, "rows": x.shape[:1], "columns": x.shape[1:]}[self.what]
            return kd.ShapeDtypeStruct(shape, kd.float32)

        def blocks(x: Any, y: Any) -> tuple[Any]:
            tiles = kd.cdiv(x.shape[1], width) if along_rows else kd.cdiv(x.shape[0], height)
            return (kd.cdiv(tiles, self.cluster),)

        return kd.kernel(
            body, out_type=results, grid=blocks, grid_names=("block",), shapes={"x": (R, C), "y": (2, C)} if dims else None,
            cluster=(self.cluster,) if self.cluster > 1 else (), cluster_names=("pair",) if self.cluster > 1 else (),
            num_threads=warpgroups if warpgroups > 1 else None, thread_name="wg" if warpgroups > 1 else None,
        )  # fmt: skip

    def check(self, rng: np.random.Generator) -> None:
        one = self.kernel(True)
        for number, (rows, columns) in enumerate(SIZES):
            x = rng.integers(-4, 5, (rows, columns)).astype(np.float32)
            y = rng.integers(-4, 5, (2, columns)).astype(np.float32)
            found = one(x, y, interpret=True)
            np.testing.assert_allclose(
                found, self.reference(x * (y[0] - y[1]).astype(np.float64)), rtol=1e-5, atol=1e-4
            )
            if number == 0:
                np.testing.assert_array_equal(found, self.kernel(False)(x, y, interpret=True))
        assert len(one.specialisations()) == 1

    def reference(self, product: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if self.what == "map":
            return product + len(product)
        axis = 0 if self.what == "columns" else 1
        part = self.tile[axis]
        found = np.zeros(product.shape[1 - axis])
        starts = list(range(0, product.shape[axis], part))
        for start in reversed(starts) if self.backward else starts:
            found = found * 0.5 + product.take(range(start, min(start + part, product.shape[axis])), axis).sum(axis)
        return found


@pytest.mark.parametrize("seed", range(4))
def test_walks_along_dims(seed: int) -> None:
    rng = np.random.default_rng(seed)
    Made(rng).check(rng)


@pytest.mark.slow
def test_many_walks_along_dims() -> None:
    for seed in range(4, 100):
        rng = np.random.default_rng(seed)
        made = Made(rng)
        try:
            made.check(rng)
        except Exception as error:
            error.add_note(f"seed {seed}: {made}")
            raise

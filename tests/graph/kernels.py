"""Kernels as NumPy functions, called through the runtime's own path: what a graph records."""

from __future__ import annotations

import numpy as np

from kernel_dsl import dtypes
from kernel_dsl.compiled import (
    ArrayAssumption,
    CompiledKernel,
    LaunchAttributes,
    OutputSpec,
    PointerParam,
    ScalarParam,
    SourceLine,
)
from kernel_dsl.runtime.plan import calls, recording
from tests.assemble.fake import FakeDevice

N = 4096
_rng = np.random.default_rng(0)


def ints(n=N):
    """`n` random int32 of the whole range."""
    return _rng.integers(-(2**31), 2**31, n, dtype=np.int64).astype(np.int32)


class Kernel:
    """`body(*inputs, *outputs, *scalars)` on a FakeDevice; called as a traced kernel would be.

    `grid` may hold Variables: each grid is a kernel of its own, as when it is compiled in.
    """

    def __init__(
        self, device, body, outputs, *, scalars=0, fill=None, alias=None, grid=None,
        writes_input=(), effects=False,
    ):  # fmt: skip
        self.device, self.body, self.outputs, self.scalars = device, body, outputs, scalars
        self.fill, self.alias, self.grid = fill, alias, grid
        self.writes_input = writes_input
        self.effects = effects
        device.bodies[body.__name__] = self.run
        self.grids: list[tuple[int, ...]] = []

    def run(self, *args):
        self.body(*args)

    def __call__(self, *args, out=None, stream=None):
        return recording.made(self._call, args, out, stream)

    def _call(self, args, out, stream):
        arrays = [a for a in args if isinstance(a, np.ndarray)]
        scalars = [a for a in args if not isinstance(a, np.ndarray)]
        kernel = self.compile(arrays)
        given = None if out is None else list(out) if isinstance(out, (tuple, list)) else [out]
        loaded = self.device.load(kernel)
        result = calls.call(loaded, arrays, scalars, given, stream)
        return result[0] if len(result) == 1 else result

    def compile(self, arrays):
        shapes = self.outputs(arrays) if callable(self.outputs) else self.outputs
        specs = [
            OutputSpec(tuple(map(int, shape)), dtypes.as_dtype(dtype), self.fill, self.alias) for shape, dtype in shapes
        ]
        kinds = [
            ArrayAssumption(
                a.shape,
                dtypes.as_dtype(a.dtype),
                False,
                a.itemsize,
                i in self.writes_input,
                f"x{i}",
            )
            for i, a in enumerate(arrays)
        ]
        kinds += [ArrayAssumption(s.shape, s.dtype, True, s.dtype.itemsize, True, f"y{i}") for i, s in enumerate(specs)]
        grid = tuple(int(g) for g in self.grid or (1, 1, 1))
        self.grids.append(grid)
        params = [PointerParam(i) for i in range(len(kinds))]
        params += [ScalarParam(i, dtypes.int32) for i in range(self.scalars)]
        return CompiledKernel(
            name=self.body.__name__,
            entry=self.body.__name__,
            ptx="",
            target="sm_90a",
            params=tuple(params),
            arrays=tuple(kinds),
            inputs=len(arrays),
            outputs=tuple(specs),
            output_tree=list(range(len(specs))),
            launch=LaunchAttributes(grid, (128, 1, 1)),
            source=SourceLine("model.py", 3, self.body.__name__),
            overlaps=tuple((i, len(arrays)) for i in range(len(arrays))),
            effects=self.effects,
        )


def like(arrays):
    """One output like the first input."""
    return [(arrays[0].shape, arrays[0].dtype)]


def device() -> FakeDevice:
    return FakeDevice({})

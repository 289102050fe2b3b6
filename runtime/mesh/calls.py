"""A call of a kernel on a mesh in one process: arrays of every rank checked, outputs made, and all ranks launched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kernel_dsl.compiled import OutputSpec
from kernel_dsl.dtypes import DType
from kernel_dsl.errors_mesh import MeshMismatch, NoMulticast, RanksDiffer
from kernel_dsl.launch_plan import LaunchPlan
from kernel_dsl.mesh import Mesh, Reach

from ..arrays.array_view import CPU, ArrayView, beside, common_framework, overlap, view
from ..devices import memory
from ..devices.streams import stream_handle
from ..errors import ArgumentTypeError, ArgumentValueError, RunError
from ..plan.checks import check_arrays
from . import interpreter, places

Described = tuple[tuple[int, ...], DType, bool, int]


class MeshCall:
    """One call.

    `rows`: for each array argument, one array for each rank. `kept`: the state that the kernel keeps between calls.
    `meets`: whether streams order the launches (`mesh_kernel.MeshKernel.meets`). `described`: for each argument, the
    properties that the code relies on, on all ranks: (shape, dtype, contiguous, alignment).
    """

    def __init__(
        self,
        name: str,
        mesh: Mesh,
        rows: Sequence[Sequence[Any]],
        scalars: Sequence[Any],
        stream: Any,
        interpret: Any,
        kept: dict[Any, Any],
        meets: bool = True,
    ) -> None:
        self.name = name
        self.meets = meets
        self.mesh = mesh
        self.scalars: list[Any] = list(scalars)
        self.kept = kept
        for number, row in enumerate(rows):
            self._check_row(f"argument {number}", row)
        self.inputs: list[list[ArrayView]] = [[view(a) for a in row] for row in rows]
        self._interop = common_framework([v for row in self.inputs for v in row], name)
        self.devices: list[Any] = places.devices_of(name, self.inputs, mesh.size, interpret)
        self.described: list[Described] = [_alike(name, f"argument {n}", row) for n, row in enumerate(self.inputs)]
        self.described_outputs: list[Described] = []
        self._outs: list[list[ArrayView]] | None = None
        self._given: list[Sequence[Any]] = []
        self._streams = self._stream_handles(stream)

    maps_all = True  # GPUs of one process map each other's memory, or `Unreachable` is raised

    def check_mapped(self, needed: bool) -> None:
        """Raise `Unreachable` if the kernel needs the memory of all peers, and the interpreter's devices do not map it."""
        if needed:
            interpreter.check_mapped(self.name, self.devices[0], self.mesh.size)

    @property
    def target(self) -> str:
        return self.devices[0].target.name

    def _check_row(self, word: str, row: Sequence[Any]) -> None:
        if len(row) != self.mesh.size:
            hint = f"pass a list of {self.mesh.size} arrays, one a device, or `kd.symmetric.empty(shape, dtype, mesh)`"
            raise MeshMismatch(kernel=self.name, mesh=self.mesh, what=f"{word} is one array", hint=hint)

    def _stream_handles(self, stream: Any) -> list[int]:
        size, on_gpu = self.mesh.size, self.devices[0].kind == "cuda"
        if stream is not None:
            given = stream if isinstance(stream, (list, tuple)) else [stream]
            if len(given) != size:
                raise ArgumentTypeError(f"stream= takes a list of {size} streams, one a device, and got {len(given)}")
            return [stream_handle(s) for s in given]
        return [self._interop.current_stream(d.index) if on_gpu else 0 for d in self.devices]

    def take_outputs(self, rows: Sequence[Sequence[Any]] | None) -> None:
        """The arrays of `out=`. Raises `MeshMismatch`."""
        if rows is None:
            return
        for number, row in enumerate(rows):
            self._check_row(f"output {number}", row)
        self._given = list(rows)
        self._outs = [[view(a) for a in row] for row in rows]
        self.described_outputs = [_alike(self.name, f"output {n}", row) for n, row in enumerate(self._outs)]
        for row in self._outs:
            if any(v.device != w.device for v, w in zip(row, self.inputs[0] if self.inputs else row, strict=True)):
                raise ArgumentValueError(
                    f"kernel {self.name!r}: out= is not on the devices of the inputs; allocate it there"
                )

    @property
    def overlaps(self) -> tuple[tuple[int, int], ...]:
        """(input, output) pairs, by array number, that are the same memory: on each rank, or on none."""
        return overlaps_of(self.name, self.inputs, self._outs or ())

    @property
    def outs(self) -> list[list[ArrayView]]:
        """Return the outputs, given or allocated."""
        return self._outs or []

    def run(self, loaded: Sequence[Any], specs: Sequence[OutputSpec], reach: Reach) -> list[list[Any]]:
        """Launch on all devices. Returns the outputs, one row of arrays for each. Raises `NoMulticast`."""
        if reach.multicast and self.devices[0].kind == "cuda":
            what = "GPUs of one process reach each other by peer access alone"
            hint = "run one process a GPU, with arrays of an allocator that asks for multicast"
            raise NoMulticast(kernel=self.name, what=what, hint=hint)
        plan: LaunchPlan = loaded[0].plan
        results = self._allocate(specs)
        outs = self._outs or []
        problem = problem_of(self.name, plan, [*self.inputs, *outs])
        if problem is not None:
            raise problem
        sides = [
            interpreter.DeviceSide([row[r] for row in self.inputs], [row[r] for row in outs], self.scalars)
            for r in range(self.mesh.size)
        ]
        if self.devices[0].kind == "cuda":
            from . import cuda

            cuda.launch(loaded, sides, specs, self._streams, self.kept, self.meets)
        else:
            fresh = [n for n, s in enumerate(specs) if not self._given and s.fill is None and s.alias is None]
            interpreter.launch(loaded[0], sides, specs, fresh, reach, self.kept)
        if self._given:
            return [list(row) for row in self._given]
        homes = [beside(self._interop, [row[r] for row in self.inputs], self.name) for r in range(self.mesh.size)]
        return [
            [home.finish(a, v, s) for home, a, v, s in zip(homes, row, views, self._streams, strict=True)]
            for row, views in zip(results, outs, strict=True)
        ]

    def _allocate(self, specs: Sequence[OutputSpec]) -> list[list[Any]]:
        if self._outs is not None:
            return []
        results: list[list[Any]] = []
        self._outs = []
        for spec in specs:
            row = [self._array(spec, rank) for rank in range(self.mesh.size)]
            results.append(row)
            views = [view(a, s) for a, s in zip(row, self._streams, strict=True)]
            self._outs.append([replace(v, readonly=False) for v in views])
        return results

    def _array(self, spec: OutputSpec, rank: int) -> Any:
        device = self.devices[rank]
        here = self.inputs[0][rank].device if self.inputs else CPU if device.kind != "cuda" else ("cuda", device.index)
        return self._interop.empty(spec.shape, spec.dtype, here, self._streams[rank])


def overlaps_of(
    kernel: str, inputs: Sequence[Sequence[ArrayView]], outs: Sequence[Sequence[ArrayView]]
) -> tuple[tuple[int, int], ...]:
    """(input, output) pairs, by array number, that are the same memory: on each rank, or on none. Raises `RanksDiffer`."""
    count, found = len(inputs), list[tuple[int, int]]()
    for i, a in enumerate(inputs):
        for j, b in enumerate(outs):
            same = [x.size > 0 and x.same_memory(y) for x, y in zip(a, b, strict=True)]
            if any(same) and not all(same):
                what = f"it is output {j} too on rank {same.index(True)}, and not on rank {same.index(False)}"
                hint = "work in place on all ranks, or on none"
                raise RanksDiffer(argument=f"argument {i}", kernel=kernel, what=what, hint=hint)
            if all(same):
                found.append((i, count + j))
    return tuple(found)


def shares(
    inputs: Sequence[Sequence[ArrayView]], outs: Sequence[Sequence[ArrayView]], overlaps: Sequence[tuple[int, int]]
) -> bool:
    """Whether an output shares memory, on its rank, with another array; but for `overlaps`, which are in place."""
    rows = [*inputs, *outs]
    return any(
        overlap(a, b)
        for j in range(len(inputs), len(rows))
        for i in range(j)
        if (i, j) not in overlaps
        for a, b in zip(rows[i], rows[j], strict=True)
    )


def problem_of(kernel: str, plan: LaunchPlan, rows: Sequence[Sequence[ArrayView]]) -> RunError | None:
    """Return the error if a rank's arrays are not what the code assumes, or if two ranks have the same memory."""
    hidden = [
        memory.host_view(_table(plan), plan.arrays[0].dtype),
        memory.host_view(_zeros(plan), plan.arrays[-1].dtype),
    ]
    size = len(rows[0]) if rows else 0
    try:
        for rank in range(size):
            check_arrays(plan, [hidden[0], *(row[rank] for row in rows), hidden[1]])
    except RunError as error:
        return error
    for n, row in enumerate(rows):
        for rank, one in enumerate(row):
            for other in range(rank):
                if overlap(one, row[other]):
                    return ArgumentValueError(
                        f"argument {n} of kernel {kernel!r}: the arrays of ranks {other} and {rank} share memory; "
                        "give each rank an array of its own, such as a copy"
                    )
    return None


def _table(plan: LaunchPlan) -> Any:
    import numpy as np

    return np.zeros(plan.arrays[0].shape, np.int64)


def _zeros(plan: LaunchPlan) -> Any:
    import numpy as np

    return np.zeros(plan.arrays[-1].shape, np.int32)


def _alike(kernel: str, argument: str, row: Sequence[ArrayView]) -> Described:
    """Return the description that all ranks' arrays share. Raises `RanksDiffer`."""
    first = row[0]
    for rank, other in enumerate(row):
        if not (first.contiguous and other.contiguous) and other.strides != first.strides:
            what = f"rank 0 has strides {first.strides}, rank {rank} {other.strides} (in elements)"
            raise RanksDiffer(
                argument=argument, kernel=kernel, what=what, hint="lay them out alike, such as row by row"
            )
    alignment = 16
    while any(v.address % alignment for v in row) and alignment > 1:
        alignment //= 2
    return tuple(first.shape), first.dtype, first.contiguous, alignment

"""A call of a kernel on a mesh with one process a GPU: this rank's arrays, and the peers' by what their allocator says.

On GPUs the ranks agree once on what their calls are like; each launches its own part. In host memory each rank is given the
arrays of all, runs all ranks in the interpreter, and keeps what is its own: every rank finds the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernel_dsl.compiled import OutputSpec
from kernel_dsl.interpret_params import InterpretParams
from kernel_dsl.mesh import Mesh, Reach

from ..arrays.array_view import CPU, ArrayView, Interop, beside, common_framework, view
from ..devices import memory
from ..devices.devices import pick_device
from ..devices.streams import stream_handle
from ..errors import ArgumentValueError
from . import interpreter
from .calls import Described, overlaps_of, problem_of
from .ranks import Ranks, compare, is_symmetric, made_symmetric, ranks_of


class RankCall:
    """One rank's call. `MeshCall` is the same for all ranks in one process. Each of `rows` has one array."""

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
        self.name: str = name
        self.mesh: Mesh = mesh
        self.meets: bool = meets
        self.kept: dict[Any, Any] = kept
        self.scalars: list[Any] = list(scalars)
        self.ranks: Ranks = ranks_of(mesh, name)
        self.arrays: list[Any] = [row[0] for row in rows]
        self.inputs: list[ArrayView] = [view(a) for a in self.arrays]
        self.interop: Interop = beside(common_framework(self.inputs, name), self.inputs, name)
        places = {v.device[0] for v in self.inputs if v.size}
        if len(places) > 1:
            raise ArgumentValueError(
                f"kernel {name!r}: some arrays are on a GPU, and some in host memory; move them to one"
            )
        played = isinstance(interpret, InterpretParams) or (places == {CPU[0]} and interpret is None)
        self.device: Any = pick_device(interpret if not played or interpret is not None else True, self.inputs)
        self.devices: list[Any] = [self.device]
        self.on_gpu: bool = self.device.kind == "cuda"
        if self.on_gpu and places == {CPU[0]}:
            raise ArgumentValueError(
                f"kernel {name!r}: its arrays are in host memory; move them to the GPU of this process"
            )
        self.described: list[Described] = [self._describe(v) for v in self.inputs]
        self.described_outputs: list[Described] = []
        self.stream: int = stream_handle(stream) if stream is not None else self._current()
        self._outs: list[ArrayView] | None = None
        self._given: list[Any] = []
        self.launches: Any = None  # the launches of calls like this one, on a GPU
        self.needs_mapped: bool = False  # whether the kernel needs the memory of all peers

    def _current(self) -> int:
        return self.interop.current_stream(self.device.index) if self.on_gpu else 0

    def _describe(self, v: ArrayView) -> Described:
        """Describe what the code relies on; for host memory, the code runs on copies."""
        if not self.on_gpu:
            return v.shape, v.dtype, True, 16
        alignment = 16
        while v.address % alignment:
            alignment //= 2
        return v.shape, v.dtype, v.contiguous, alignment

    @property
    def target(self) -> str:
        return self.device.target.name

    def take_outputs(self, rows: Sequence[Sequence[Any]] | None) -> None:
        """Take the arrays of `out=`."""
        if rows is None:
            return
        self._given = [row[0] for row in rows]
        self._outs = [view(a) for a in self._given]
        self.described_outputs = [self._describe(v) for v in self._outs]
        if any(v.device != w.device for v in self._outs for w in self.inputs[:1]):
            raise ArgumentValueError(
                f"kernel {self.name!r}: out= is not on the device of the inputs; allocate it there"
            )

    def check_mapped(self, needed: bool) -> None:
        """Note whether the kernel needs the memory of all peers. Raises `Unreachable` in the interpreter, else a launch does."""
        self.needs_mapped = needed
        if needed:
            interpreter.check_mapped(self.name, self.device, self.mesh.size)

    @property
    def maps_all(self) -> bool:
        """Whether every rank's memory is mapped on this GPU. All ranks must ask at the same time."""
        return self.ranks.maps_all(self.arrays)

    @property
    def overlaps(self) -> tuple[tuple[int, int], ...]:
        return overlaps_of(self.name, [[v] for v in self.inputs], [[v] for v in self._outs or ()])

    @property
    def outs(self) -> list[list[ArrayView]]:
        return [[v] for v in self._outs or ()]

    def words(self, reach: Reach) -> list[tuple[str, str]]:
        """Return the words that must be equal on all ranks."""
        said = [("the name", repr(self.name)), ("out=", "arrays" if self._given else "none")]
        described = [*self.described, *self.described_outputs]
        for number, (shape, dtype, contiguous, _) in enumerate(described):
            name = f"argument {number}" if number < len(self.inputs) else f"output {number - len(self.inputs)}"
            said.append((name, f"{dtype}{list(shape)}{'' if contiguous else ' with strides'}"))
            if self.on_gpu and number in reach.remote:
                array = [*self.arrays, *self._given][number]
                where = "symmetric memory" if is_symmetric(array) else "memory that is not symmetric"
                said.append((name, where))
        return [*said, ("what out= overlaps", str(list(self.overlaps)))]

    def run(self, loaded: Sequence[Any], specs: Sequence[OutputSpec], reach: Reach) -> list[list[Any]]:
        """Run this rank's part. Returns the outputs, one row of one array for each."""
        if self.on_gpu:
            from .rank_cuda import launches_of

            self.launches = launches_of(self, loaded[0], specs, reach)
            results = self._allocate(specs, reach)
            problem = problem_of(self.name, loaded[0].plan, [[v] for v in (*self.inputs, *(self._outs or ()))])
            if problem is not None:
                raise problem
            self.launches.run([*self.arrays, *results], [*self.inputs, *(self._outs or ())], self.scalars)
        else:
            results = self._allocate(specs, reach)
            self._interpret(loaded[0], specs, reach)
        finish, outs = self.interop.finish, self._outs or []
        if self._given:
            return [[array] for array in self._given]
        return [[finish(a, v, self.stream)] for a, v in zip(results, outs, strict=True)]

    def _allocate(self, specs: Sequence[OutputSpec], reach: Reach) -> list[Any]:
        """Allocate the outputs that were not given, in symmetric memory if peers access them."""
        if self._outs is not None:
            return self._given
        here = self.inputs[0].device if self.inputs else CPU if not self.on_gpu else ("cuda", self.device.index)
        made: list[Any] = []
        for number, spec in enumerate(specs):
            if self.on_gpu and self.arrays and len(self.inputs) + number in reach.remote:
                made.append(made_symmetric(self.arrays[0], spec.shape, spec.dtype, self.mesh, ""))
            else:
                made.append(self.interop.empty(spec.shape, spec.dtype, here, self.stream))
        self._outs = [view(a, self.stream) for a in made]
        return made

    # --- in host memory ---------------------------------------------------------------------------------

    def _interpret(self, loaded: Any, specs: Sequence[OutputSpec], reach: Reach) -> None:
        """Run all ranks in this process, with their arrays, and keep this rank's results."""
        outs = self._outs or []
        same = {o: i for i, o in ((i, o - len(self.inputs)) for i, o in self.overlaps)}
        held = [_copied(v) for v in self.inputs]
        written = [None if o in same or not self._given else _copied(v) for o, v in enumerate(outs)]
        every = self.ranks.exchange(self.name, (self.words(reach), held, written, self.scalars))
        compare(self.name, [one[0] for one in every])
        sides: list[interpreter.DeviceSide] = []
        mine: list[tuple[ArrayView, ArrayView]] = []
        for rank, (_, inputs, given, scalars) in enumerate(every):
            ins = [_twin(data, v) for data, v in zip(inputs, self.inputs, strict=True)]
            made = [
                ins[same[o]] if o in same else _twin(b"" if data is None else data, v)
                for o, (data, v) in enumerate(zip(given, outs, strict=True))
            ]
            sides.append(interpreter.DeviceSide(ins, made, scalars))
            if rank == self.ranks.rank:
                mine = list(zip([*self.inputs, *outs], [*ins, *made], strict=True))
        fresh = [n for n, s in enumerate(specs) if not self._given and s.fill is None and s.alias is None]
        interpreter.launch(loaded, sides, specs, fresh, reach, self.kept)
        written_too = loaded.plan.written[1:]
        for number, (target, twin) in enumerate(mine):
            if number >= len(self.inputs) or (number < len(written_too) and written_too[number]):
                memory.copy(target, twin)


def _copied(v: ArrayView) -> bytes:
    """Return the elements, row by row."""
    host = memory.host_memory(v, memory.gapless(v))
    memory.copy(host, v)
    return memory.host_array(host).tobytes()


def _twin(data: bytes, like: ArrayView) -> ArrayView:
    """Return an array of this process with these elements."""
    size = max(like.nbytes, 1)
    words = np.zeros(-(-size // 16) * 2, np.uint64)  # 16 bytes at a time
    flat = words.view(np.uint8)
    flat[: len(data)] = np.frombuffer(data, np.uint8)
    return memory.gapless(like).at(int(words.ctypes.data), like, CPU, words)

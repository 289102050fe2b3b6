"""Kernels on a mesh of devices: calls with one array a device."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from . import dtypes as dt
from . import forking
from .body_trace import trace_kernel
from .boundary import public, unguarded
from .call_inputs import scalar_input
from .compiled import OutputSpec
from .definition import ArrayInput, Definition, Input, ScalarInput, output_structs
from .diagnostics import counted, shown
from .dtypes import as_dtype
from .errors import BadCallArgument, BadCallValue
from .errors_mesh import MeshArgument, MeshMismatch, RanksDiffer
from .kernel import Kernel, kinds
from .kernel_arguments import by_position, check_interpret
from .loading import load
from .memory import ShapeDtypeStruct
from .mesh import ROOM, Mesh, Reach, has_ranks, table_rows
from .mesh_body import HIDDEN, after, with_mesh
from .sizes import Geometry
from .source import here
from .stages import Stages, print_stages, target_named
from .symmetric import OfRank, Symmetric, is_one_array
from .tree import flatten, unflatten


@public
class MeshKernel(Kernel):
    """A kernel on a mesh: `k(*inputs, out=None, stream=None, interpret=None)`, each array as a list of one a device.

    With one process a GPU, arrays are this rank's tensors in torch's symmetric memory, and so are the results.
    """

    def __init__(self, definition: Definition, interpret: Any, debug: bool, mesh: Any) -> None:
        super().__init__(definition, interpret, debug)
        if not isinstance(mesh, Mesh):
            raise MeshArgument(what=f"mesh={shown(mesh)}", hint='use `kd.Mesh(("x",), (2,))`')
        self._mesh: Mesh = mesh
        self._lock = forking.lock()
        self._stages: dict[Any, Stages] = {}
        self._loaded: dict[Any, Any] = {}
        self._reaches: weakref.WeakKeyDictionary[Stages, Reach] = weakref.WeakKeyDictionary()
        self._kept: dict[Any, Any] = {}  # for the runtime: semaphores and launches by their devices
        # Whether the streams of a launch synchronise before it and after it. If each block of a kernel waits at its
        # beginning and before its end for the same block on all peers, by semaphores, the kernel sets this to False.
        self.meets: bool = True
        self.maps_peers: bool = False  # whether the kernel accesses the memory of all peers, which must be mapped then
        self.room: int = ROOM  # words of 4 bytes: semaphores, and behind them what `Meshed.kept` gives

    @property
    def mesh(self) -> Mesh:
        return self._mesh

    @unguarded
    def __call__(self, *args: Any, out: Any = None, stream: Any = None, interpret: Any = None, **named: Any) -> Any:
        """Run the kernel on all devices. `out`: preallocated outputs; `stream`: one stream a device; see `kd.kernel`."""
        if named:
            args = by_position(self._definition, args, named)
        fast = self._fast
        if fast is not None and interpret is None and not fast.recording.active:
            result = fast(args, out, stream)
            if result is not fast.miss:
                return result
        if "jax" in sys.modules and (on_tracers := kinds().tracing(args)) is not None:
            return on_tracers(self, args, out, stream, interpret)  # raises the error
        return self._call(args, out, stream, interpret)

    def bind(self, *args: Any, out: Any = None, stream: Any = None, interpret: Any = None, **named: Any) -> Any:
        """Not for kernels on a mesh: raises `BadCallArgument`."""
        raise self._refused("bind")

    def as_torch_op(self, name: str, **options: Any) -> Any:
        """Not for kernels on a mesh: raises `BadCallArgument`."""
        raise self._refused("as_torch_op")

    def _refused(self, what: str, hint: str = "call the kernel") -> BadCallArgument:
        return BadCallArgument(kernel=self.name, what=f"{what} of a kernel on {self._mesh}", hint=hint)

    @unguarded
    def _check_call(self, args: tuple[Any, ...], out: Any) -> list[Any]:
        raise self._refused("kd.check")

    # --- tracing ------------------------------------------------------------------------------------

    def _trace(
        self, inputs: Any, structure: Any, overlaps: Any, given: Any, target: str, made: Geometry | None = None,
        mapped: bool = False,
    ) -> Stages:  # fmt: skip
        """Trace with the author's `inputs`, in the nest `structure`, and the hidden ones.

        `mapped`: all devices map each other's memory, so that nothing goes by NVSHMEM.
        """
        mesh = replace(self._mesh, hosts=()) if mapped else self._mesh
        definition, arrays = with_mesh(self._definition, mesh, inputs, structure, self.room)
        hidden = (
            ScalarInput(dt.int32, weak=False),
            ArrayInput((table_rows(arrays, self._mesh.size), self._mesh.size), dt.int64),
        )
        moved = tuple((i + 1, j + 1) for i, j in overlaps)  # the table comes before the author's arrays
        if given is not None:
            given = (*given, ArrayInput((self.room,), dt.int32))
        whole = (*hidden, *inputs)
        traced = trace_kernel(definition, whole, after(structure, HIDDEN), moved, given, target_named(target))
        stages = Stages(traced, target_named(target), definition.params, moved)
        body: Any = definition.body
        self._reaches[stages] = body.reach
        if self._debug:
            print_stages(stages)
        return stages

    # --- calling ------------------------------------------------------------------------------------

    def _slow_call(self, args: tuple[Any, ...], out: Any, stream: Any, interpret: Any) -> Any:
        from kernel_dsl.runtime.mesh.calls import MeshCall
        from kernel_dsl.runtime.mesh.rank_calls import RankCall
        from kernel_dsl.runtime.plan import recording

        if recording.current() is not None:
            hint = "capture the calls into a CUDA graph, as by `torch.cuda.graph`, or make them outside of the block"
            raise self._refused("a kd.Graph", hint)
        interpret = self._interpret if interpret is None else interpret
        check_interpret(interpret, self.name)
        if self._definition.params.profile_space:
            return kinds().profile(self, args, None, out, stream, interpret).result
        self._check_rows(args, "argument")
        leaves, structure = flatten(args, lambda x: x is not args and is_row(x))
        rows = [self._row(x, f"argument {n}") for n, x in enumerate(leaves) if _is_arrays(x)]
        scalars = [x for x in leaves if not _is_arrays(x)]
        alone = self._alone(leaves, out)
        make = RankCall if alone else MeshCall
        call = make(self.name, self._mesh, rows, scalars, stream, interpret, self._kept, self.meets)
        call.check_mapped(self.maps_peers)
        # the trace is of the first rank's arrays; those of other ranks are alike
        described = iter(call.described)
        inputs: tuple[Input, ...] = tuple(
            ArrayInput(*next(described)) if _is_arrays(x) else scalar_input(x, self.name) for x in leaves
        )
        structs = unflatten(structure, [i.struct() for i in inputs])
        expected, nest = output_structs(self._definition, structs)
        outs = self._outputs(out, expected, alone)
        call.take_outputs(None if outs is None else [self._row(x, f"output {n}") for n, x in enumerate(outs)])
        given = None if outs is None else tuple(ArrayInput(*d) for d in call.described_outputs)
        target = target_named(self._definition.params.target or call.target)
        mapped = bool(self._mesh.hosts) and call.devices[0].kind == "cuda" and call.maps_all
        key = (inputs, repr(structure), given, call.overlaps, target.name, mapped)
        with self._lock:
            if key not in self._stages:
                self._stages[key] = self._trace(inputs, structure, call.overlaps, given, target.name, mapped=mapped)
            stages = self._stages[key]
            loaded = [self._on(device, key, stages) for device in call.devices]
        specs = self._fills(inputs, expected)
        wrapped = alone and any(isinstance(x, OfRank) for x in (*args, out))
        finish = functools.partial(_finished, nest, self._mesh, alone and not wrapped, wrapped)
        results = finish(call.run(loaded, specs, self._reaches[stages]))
        if interpret is None and loaded[0].device.kind == "cuda":
            if isinstance(call, RankCall):
                self._learn_rank(args, out, call, self._reaches[stages], finish)
            else:
                self._learn_mesh(args, out, call, loaded, specs, finish)
        return results

    def _alone(self, leaves: Sequence[Any], out: Any) -> bool:
        """Whether a call has only this rank's arrays: there are several processes."""
        if not has_ranks(self._mesh):
            return False
        given = [x for x in leaves if _is_arrays(x)] or [out]
        single = [not is_row(x) or isinstance(x, OfRank) for x in given if x is not None]
        return (bool(single) and all(single)) or (not single and self._mesh.group is not None)

    def _learn_rank(self, args: Any, out: Any, call: Any, reach: Reach, finish: Any) -> None:
        from kernel_dsl.runtime.mesh.rank_fast import RankCalls

        if not isinstance(self._fast, RankCalls):
            self._fast = RankCalls()
        self._fast.learn(args, out, call, call.launches, reach.remote, finish)

    def _learn_mesh(self, args: Any, out: Any, call: Any, loaded: Any, specs: Any, finish: Any) -> None:
        from kernel_dsl.runtime.mesh.fast import MeshCalls

        if not isinstance(self._fast, MeshCalls):
            self._fast = MeshCalls()
        self._fast.learn(args, out, call, loaded, specs, finish)

    def _on(self, device: Any, key: Any, stages: Stages) -> Any:
        """The kernel on a device; on a GPU it is loaded once."""
        if device.kind != "cuda":
            return load(stages, device)
        where = (key, device.index)
        if where not in self._loaded:
            self._loaded[where] = load(stages, device)
        return self._loaded[where]

    def _outputs(self, out: Any, expected: Sequence[ShapeDtypeStruct | None], alone: bool) -> list[Any] | None:
        """The leaves of `out=`; a list of arrays is several where the call is this rank's `alone`.

        Raises `BadCallArgument`, `BadCallValue`.
        """
        if out is None:
            return None
        several = isinstance(out, (list, tuple)) and not any(map(is_one_array, out))  # pyright: ignore[reportUnknownArgumentType]
        self._check_rows(out if several else [out], "output")
        given, _ = flatten(out, lambda x: hasattr(x, "shape") or (not alone and is_row(x)))
        other = next((n for n, x in enumerate(given) if not _is_arrays(x)), None)
        if other is not None:
            what = f"output {other} of out= is {shown(given[other])}, which is no array"
            hint = "give a list of one array a device for each output"
            raise BadCallArgument(kernel=self.name, what=what, hint=hint, loc=here())
        if len(given) != len(expected):
            what = f"out= holds {counted(len(given), 'array')} for {counted(len(expected), 'output')}"
            hint = "give a list of one array a device for each output"
            raise BadCallArgument(kernel=self.name, what=what, hint=hint, loc=here())
        for number, (row, struct) in enumerate(zip(given, expected, strict=True)):
            for rank, array in enumerate(self._row(row, f"output {number}")):
                if struct is not None and (tuple(array.shape), as_dtype(array.dtype)) != (struct.shape, struct.dtype):
                    what = f"output {number} of out= is {as_dtype(array.dtype)}{list(array.shape)} on rank {rank}"
                    hint = f"it is {struct.dtype}{list(struct.shape)} on each rank"
                    raise BadCallValue(kernel=self.name, what=what, hint=hint)
        return given

    def _fills(self, inputs: Sequence[Input], outs: Sequence[ShapeDtypeStruct | None]) -> list[OutputSpec]:
        """The arrays and values that fill outputs before the launch."""
        aliases = {o: sum(isinstance(i, ArrayInput) for i in inputs[:n]) for n, o in self._definition.aliases}
        return [
            OutputSpec(s.shape, s.dtype, s.init, aliases.get(n)) for n, s in enumerate(s for s in outs if s is not None)
        ]

    def _check_rows(self, values: Sequence[Any], word: str) -> None:
        """Raise `MeshMismatch` for a list of arrays that has something else among them."""
        for number, row in enumerate(() if has_ranks(self._mesh) else values):
            if not isinstance(row, (list, tuple)) or len(row) != self._mesh.size or not any(map(is_one_array, row)):  # pyright: ignore[reportUnknownArgumentType]
                continue
            for rank, x in enumerate(row):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
                if not is_one_array(x):
                    what = f"{word} {number} has {shown(x)} on rank {rank}, which is no array"
                    hint = f"pass a list of {self._mesh.size} arrays, one a device"
                    raise MeshMismatch(kernel=self.name, mesh=self._mesh, what=what, hint=hint)

    def _row(self, arrays: Any, argument: str) -> list[Any]:
        """One array for each device, or only this rank's. Raises `MeshMismatch`, `RanksDiffer`."""
        if not is_row(arrays):
            return [arrays]
        row = list(arrays)
        if isinstance(arrays, OfRank):
            return row
        if len(row) != self._mesh.size:
            what = f"{argument} is a list of {len(row)} array{'s' * (len(row) != 1)}"
            hint = f"pass {self._mesh.size} arrays, one a device, or `kd.symmetric.empty(shape, dtype, mesh)`"
            raise MeshMismatch(kernel=self.name, mesh=self._mesh, what=what, hint=hint)
        mine = getattr(arrays, "mesh", None) or self._mesh
        if mine != self._mesh:
            what = f"{argument} was made for {mine}"
            raise MeshMismatch(kernel=self.name, mesh=self._mesh, what=what, hint="give both the same mesh")
        first = (tuple(row[0].shape), as_dtype(row[0].dtype))
        for rank, array in enumerate(row):
            other = (tuple(array.shape), as_dtype(array.dtype))
            if other != first:
                what = f"rank 0 has {_words(first)}, rank {rank} {_words(other)}"
                hint = "pass arrays of one shape and one dtype; pad shorter ones, and pass the lengths"
                raise RanksDiffer(argument=argument, kernel=self.name, what=what, hint=hint)
        return row

    def _lower_input(self, x: Any) -> Input:
        return super()._lower_input(x[0] if is_row(x) else x)

    def lower(self, *args: Any, target: str | None = None, **named: Any) -> Stages:
        """Trace for arguments like these, those of one device or lists of one array a device; nothing runs."""
        args = by_position(self._definition, args, named)
        leaves, structure = flatten(args, lambda x: x is not args and is_row(x))
        inputs = tuple(self._lower_input(x) for x in leaves)
        name = target if target is not None else self._definition.params.target or target_named(None).name
        return self._trace(inputs, structure, (), None, name)


def _finished(nest: Any, mesh: Mesh, alone: bool, of_rank: bool, rows: list[Any]) -> Any:
    """The result of a call: its rows of arrays in the nest of its outputs."""
    cls = OfRank if of_rank else Symmetric
    return unflatten(nest, [row[0] if alone else cls(row, mesh) for row in rows])


def _words(kind: tuple[tuple[int, ...], Any]) -> str:
    return f"{kind[1]}{list(kind[0])}"


def is_row(x: Any) -> bool:
    """Whether an argument is a list of one array a device."""
    return isinstance(x, (list, tuple)) and bool(x) and all(map(is_one_array, x))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _is_arrays(x: Any) -> bool:
    return is_row(x) or is_one_array(x)

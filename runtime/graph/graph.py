"""`Graph`: recorded calls are replayed, with other inputs, scalars and launch dims."""

from __future__ import annotations

import operator
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from kernel_dsl.boundary import public, unguarded
from kernel_dsl.tree import flatten, unflatten
from kernel_dsl.variables import Symbol

from ..arrays.array_view import ArrayView, frameworks, view
from ..devices.device import Dims
from ..devices.failures import describe_array
from ..devices.streams import stream_handle
from ..errors import ArgumentTypeError, ArgumentValueError
from ..plan import recording
from .build import GraphProgram
from .cuda import CudaExec
from .fast import Launch, never
from .host import HostExec
from .nodes import MemorySlot, Node, check_memory, listed, set_dims, set_scalars
from .placing import Places, check_like
from .record import GraphRecorder
from .recorded import RecordedGraph
from .steps import repeat_call

Exec = CudaExec | HostExec
P = ParamSpec("P")
R = TypeVar("R")


@public
class Graph(RecordedGraph):
    """Calls of kernels, recorded once and launched together.

        with kd.Graph() as g:
            y = double(x)
            z = add(y, x)
        z = g()             # replays with the recorded arrays
        z = g(other_x)      # with another input; the result lies in the same memory

    Recording runs no kernel. `inputs` are the arrays that calls read and none wrote, in order of first use; `outputs`
    the results that no later call reads, or the value of `g.outputs`, which is set in the block or before the first
    replay. Launches that these outputs do not need are left out, unless they write to the user's memory or do more than
    write arrays. A replay writes its outputs to the arrays that recording returned (or to `out=`): copy results that
    must outlive the next one. Arrays between calls lie in the graph's own memory; do not read them. Python code between
    the calls ran when it was recorded, and does not run again.

    Calls wait for each other only where they touch the same bytes; others run in parallel, whatever streams they were
    recorded on.
    """

    def __init__(self) -> None:
        super().__init__()
        self._exec: Exec | None = None
        # Functions that launch in the current stream, and return whether they did. Where a launch, or a replay without
        # inputs, takes more steps, they never do.
        self._launches: Launch = never
        self._replays: Launch = never
        self._result: Any = None  # the return value of such a replay
        self._whole = True  # the executable agrees with nodes and slots
        self._places: Any = None  # a `Places` after the executable has been made
        self._renews = False  # new inputs need nothing but other addresses in the executable
        self.seconds: float | None = None

    def _is_executable(self) -> bool:
        return self._exec is not None

    # --- steps by name ----------------------------------------------------------------------------

    def instantiate(self) -> None:
        """Make the graph executable: plan its memory, and free the arrays of intermediates."""
        with self._lock:
            if self._exec is not None:
                self._mend()
                return
            program = self._built()
            self._places = Places(program)
            self._nibbles.settle(program)
            self._exec = self._executable(program)
            if self._recorder is not None:
                self._recorder.release()
            for node in program.nodes:
                for operand in node.operands:
                    if operand.slot.kind == "scratch":
                        operand.view.owner = None

    def _executable(self, program: GraphProgram) -> Exec:
        device = program.device
        if device is not None and device.kind == "cuda":
            return CudaExec(program, device, frameworks(self._home()[0]).current_stream)
        return HostExec(program)

    def _mend(self) -> None:
        """Make the executable again if a change of it was interrupted."""
        broken = self._exec
        if isinstance(broken, CudaExec) and not self._whole:
            self._exec = self._executable(self._built())
            broken.close()
        self._whole = True

    def set_params(
        self,
        node: Node | int,
        arrays: Sequence[Any] | None = None,
        scalars: Sequence[Any] | None = None,
    ) -> None:
        """Give one node other arrays (inputs, then outputs; None keeps one) or scalars, for good.

        The edges stay as they are. Raises ArgumentValueError for an array that is not like the recorded one.
        """
        with self._lock:
            self.instantiate()
            target = self._node(node)
            given = {i: array for i, array in enumerate(listed("arrays", arrays)) if array is not None}
            packed = {i: made for i, x in given.items() if (made := self._nibbles.set_in(target, i, x)) is not None}
            given.update((i, made.data) for i, made in packed.items())
            slots = {i: self._slot_for(target, i, array) for i, array in given.items()}
            check_memory(target, slots)
            with self._changing():
                self._nibbles.adopt(packed.values())
                if scalars is not None:
                    set_scalars(target, listed("scalars", scalars))
                for position, slot in slots.items():
                    operand = target.operands[position]
                    operand.slot, operand.view, operand.shift = slot, cast("ArrayView", slot.home), 0
                self._refresh([target])

    def set_launch_dims(
        self,
        node: Node | int,
        grid: Dims | None = None,
        block: Dims | None = None,
        dynamic_smem: int | None = None,
    ) -> None:
        """Give one kernel node another grid (in blocks), block (in lanes) or dynamic SMEM (bytes), for good."""
        with self._lock:
            self.instantiate()
            target = self._node(node)
            device = self._built().device
            assert device is not None  # a node with dims has a device
            with self._changing():
                set_dims(target, device.target, grid=grid, block=block, dynamic_smem=dynamic_smem)
                self._refresh([target])

    @unguarded
    def launch(self, stream: Any = None, wait: bool = False) -> None:
        """Launch with the present settings. With `wait`, wait until it is done, and set `seconds`."""
        if stream is None and wait is False:
            try:
                if self._launches():
                    return
            except ValueError:  # another thread is launching it
                pass
        self._launch(stream, wait)

    @public
    def _launch(self, stream: Any, wait: bool) -> None:
        with self._lock:
            self.instantiate()
            self._run(None if stream is None else stream_handle(stream), wait)

    def release(self) -> None:
        """Free the graph's own memory now. The graph can't be replayed after that."""
        with self._lock:
            self._launches, self._replays, self._renews = never, never, False
            if self._exec is not None:
                self._exec.close()
            self._exec, self._program, self._recorder = None, None, None

    def _node(self, node: Node | int) -> Node:
        nodes = self._built().nodes
        if isinstance(node, Node):
            if node.graph is not self:
                raise ArgumentValueError(f"{node!r} belongs to another graph")
            found = next((other for other in nodes if other is node or other.work is node.work), None)
            if found is None:  # g.outputs was set after the caller read the node
                raise ArgumentValueError(
                    f"{node!r} was left out of the graph, because nothing reads what it writes; name its result in g.outputs"
                )
            return found
        try:
            index = operator.index(node)
        except TypeError:
            raise ArgumentTypeError(f"a node is one of g.nodes or its number, and not {node!r}") from None
        if not -len(nodes) <= index < len(nodes):
            raise ArgumentValueError(f"there is no node {node}: the graph has {len(nodes)}")
        return nodes[index]

    def _slot_for(self, node: Node, position: int, array: Any) -> MemorySlot:
        """A new slot for an array that replaces an operand. Raises an error if the array does not fit."""
        if position >= len(node.operands):
            raise ArgumentValueError(f"{node!r} works on {len(node.operands)} arrays, and got more")
        operand = node.operands[position]
        there = view(array)
        check_like(there, operand.view, f"operand {position} of {node!r}", operand.written)
        reach = "cuda" if isinstance(self._exec, CudaExec) else "cpu"
        if there.device[0] != reach:
            raise ArgumentValueError(f"{describe_array(there)} is not on the device of the graph")
        low, high = there.span()
        slot = MemorySlot("fixed", low, high - low, there, array, base=low, current=there)
        slot.users.add(node.index)
        return slot

    def _refresh(self, nodes: Sequence[Node]) -> None:
        if isinstance(self._exec, CudaExec):  # the interpreter reads nodes while it runs them
            self._exec.refresh(nodes)

    # --- replay -----------------------------------------------------------------------------------

    @staticmethod
    def _by_fast_path(replay: Callable[P, R]) -> Callable[P, R]:
        """A replay without arguments, or with inputs only, by the fast path if there is one.

        Python calls a function without parameters faster.
        """

        @wraps(replay)
        def call(self: Graph, /, *inputs: Any, **options: Any) -> Any:
            if not options and not recording.active:
                if inputs:
                    return self._renew(inputs)
                try:
                    if self._replays():
                        return self._result
                except ValueError:  # another thread is launching it
                    pass
            return replay(self, *inputs, **options)  # pyright: ignore[reportCallIssue]

        return cast("Callable[P, R]", call)

    @unguarded
    @_by_fast_path
    def __call__(
        self,
        /,
        *inputs: Any,
        out: Any = None,
        wait: bool = False,
        stream: Any = None,
        **variables: Any,
    ) -> Any:
        """Replay with other inputs (all of them, or none), and return the outputs.

        Args:
            out: arrays to write in place of the recorded outputs, in their structure.
            wait: wait for the GPU, and set `seconds`.
            stream: a stream; by default the framework's current one.
            variables: an int for every `Variable` of the graph.

        Raises ArgumentTypeError, ArgumentValueError for arguments unlike the recorded ones.
        """
        return self._replay(inputs, out, wait, stream, variables)

    @public
    def _renew(self, inputs: Any) -> Any:
        """A replay with other inputs: like `_replay`, without asking again what the replays before found."""
        with self._lock:
            executable: Any = self._exec
            places: Places = self._places
            if self._renews and self._whole:
                stream = executable.turns.stream()
                self._launches, self._replays, self._whole = never, never, False
                moved = places.place_alike(inputs, stream)
                if moved is not None:
                    executable.renew(moved, stream)
                    self._whole = True
                    self._launches = executable.turns.launch
                    return places.results(self._chosen, None, stream)
                self._whole = True  # nothing has changed
        return self._replay(inputs, None, False, None, {})

    @public
    def _replay(self, inputs: Sequence[Any], out: Any, wait: bool, stream: Any, variables: dict[str, Any]) -> Any:
        recorder = recording.current()
        if recorder is not None:
            return self._nest(cast("GraphRecorder", recorder), inputs, out, variables)
        with self._lock:
            self.instantiate()
            program = self._built()
            handle = None if stream is None else stream_handle(stream)
            self._apply_variables(program, variables)
            places = self._place(inputs, out, self._stream(handle))
            self._run(handle, wait)
            return out if out is not None else self._shown(places.results(self._chosen, None, self._stream(handle)))

    def _shown(self, results: Any) -> Any:
        """Results, with the elements of those that are bytes of 4-bit elements."""
        if not self._nibbles:
            return results
        leaves, structure = flatten(results)
        return unflatten(structure, [self._nibbles.elements(x) for x in leaves])

    def _run(self, handle: int | None, wait: bool) -> None:
        assert self._exec is not None
        self._launches = self._replays = never
        self._nibbles.pack()
        seconds = self._exec.run(self._stream(handle), wait)
        self._nibbles.unpack()
        self._plan_fast_paths()
        if wait:
            self.seconds = seconds

    def _stream(self, handle: int | None) -> int:
        if handle is not None:
            return handle
        framework, index = self._home()
        return 0 if index is None else frameworks(framework).current_stream(index)

    def _home(self) -> tuple[str, int | None]:
        """The framework whose current stream replays use, and the GPU."""
        program = self._built()
        for slot in program.slots:
            if slot.home is not None and slot.home.device[0] == "cuda":
                return slot.home.framework, slot.home.device[1]
        return "numpy", None

    def _plan_fast_paths(self) -> None:
        """Make the fast paths, if possible: a launch that is one driver call, and a replay that is such a launch."""
        program, executable, places = self._built(), self._exec, cast("Places", self._places)
        self._renews = False
        if not isinstance(executable, CudaExec) or not executable.plain or self._home()[1] is None:
            return
        if program.repeats or places.frozen:
            return
        self._renews = places.compares and not self._nibbles and not program.variables
        self._launches = executable.turns.launch
        if not places.moved:
            self._result = places.results(self._chosen, None, 0)
            self._replays = self._launches

    def _place(self, inputs: Sequence[Any], out: Any, stream: int) -> Places:
        places: Places = self._places
        changes, inputs, out = self._nibbles.replaced(self._built(), inputs, out)
        with self._changing():
            try:
                changed = places.place(inputs, out, stream)
            except (ArgumentTypeError, ArgumentValueError):
                self._whole = True  # nothing has changed yet
                raise
            self._nibbles.take(changes)
            if changed and isinstance(self._exec, CudaExec):
                self._exec.moved(changed)
        return places

    @contextmanager
    def _changing(self) -> Generator[None]:
        """A context manager for changes of nodes.

        After an error or an interrupt inside it, `_mend` repairs the executable.
        """
        self._launches = self._replays = never
        self._whole = False
        yield
        self._whole = True

    def _apply_variables(self, program: GraphProgram, values: Mapping[str, Any]) -> None:
        program.check_names(values)
        env = {name: program.variables[name].check(value) for name, value in values.items()}
        for repeat in program.repeats:  # in the order of the calls: a call may read an earlier call's results
            now = repeat.now(env)
            if now != repeat.last:
                with self._changing():
                    repeat_call(repeat, now)
                    self._refresh(repeat.nodes)

    # --- graphs in graphs -------------------------------------------------------------------------

    def _nest(self, recorder: GraphRecorder, inputs: Sequence[Any], out: Any, values: Mapping[str, Any]) -> Any:
        """Add this graph's nodes to the graph that is being recorded."""
        program = self._built()
        program.check_names(values)
        for name, value in values.items():
            if not isinstance(value, Symbol):
                program.variables[name].check(value)
        places = Places(program)
        changes, inputs, given = self._nibbles.replaced(program, inputs, out)
        views = places.look_all([recorder.known(array) for array in inputs], 0)
        views = views or [cast("ArrayView", slot.home) for slot in program.inputs]
        outs = places.outs(given, 0) if given is not None else {}
        outer = self._nibbles.within(program, recorder.nibbles, changes)
        views = [outer.pop(slot, there) for slot, there in zip(program.inputs, views, strict=True)]
        arrays = recorder.nest(program, views, {**outs, **outer}, values)
        if out is not None:
            return out
        made = [
            self._nibbles.made_within(recorder.nibbles, arrays.get(o.slot, o.array) if o.whole else o.array, o.array)
            for o in program.outputs
        ]
        if self._chosen is not None:
            return unflatten(flatten(self._chosen)[1], made)
        return made[0] if len(made) == 1 else tuple(made)

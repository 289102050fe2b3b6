"""What a graph holds once it is recorded: its calls as nodes, its inputs and its outputs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import Any, Self, cast

from kernel_dsl import forking
from kernel_dsl.boundary import public
from kernel_dsl.diagnostics import shown
from kernel_dsl.packed import stored
from kernel_dsl.tree import flatten

from ..arrays.array_view import view
from ..errors import ArgumentTypeError
from ..plan import recording
from .build import GraphProgram, build
from .nibbles import NibbleArrays
from .nodes import GraphError, Node
from .picture import dot, svg
from .record import GraphRecorder


@partial(public, name="Graph")
class RecordedGraph:
    """The recording of a graph, and the program that is built of it when it is first needed."""

    def __init__(self) -> None:
        self._recorder: GraphRecorder | None = None
        self._nibbles = NibbleArrays()
        self._context: AbstractContextManager[None] | None = None
        self._chosen: Any = None
        self._program: GraphProgram | None = None
        self._lock = forking.lock()

    def _is_executable(self) -> bool:
        """Whether the memory of intermediates was planned, for the outputs as they are."""
        return False

    # --- recording --------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._recorder is not None:
            raise GraphError("this graph was recorded before; make another kd.Graph()")
        if recording.current() is not None:
            raise GraphError("another graph is being recorded. To nest one, record it first, and call it here")
        self._recorder = GraphRecorder(self._nibbles)
        self._context = recording.recording(self._recorder)
        self._context.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._context is not None:
            self._context.__exit__(kind, error, trace)
        self._context = None
        if error is not None and self._recorder is not None:
            self._recorder = self._chosen = None  # an incomplete recording is dropped
        elif self._chosen is not None:  # set in the block: they can be checked now
            self._chosen, self.outputs = None, self._chosen

    @classmethod
    def from_calls(cls, calls: Sequence[Any]) -> Self:
        """A graph of calls, made in order: callables without arguments, (function, args), (function, args,
        kwargs) or (function, *args).
        """
        try:
            listed = list(calls)
        except TypeError:
            raise ArgumentTypeError(f"from_calls takes a list of calls, and got {calls!r}") from None
        graph = cls()
        with graph:
            for item in listed:
                if callable(item):
                    item()
                    continue
                function, args, kwargs = _parts(item)
                function(*args, **kwargs)
        return graph

    def copy(self, target: Any, source: Any) -> None:
        """Record a copy of one array into another of the same shape and dtype."""
        if self._recorder is None or self._context is None:
            raise GraphError("g.copy is for the block `with kd.Graph() as g:`")
        self._recorder.copy(target, source)

    # --- parts of the graph -----------------------------------------------------------------------

    @property
    @public
    def nodes(self) -> tuple[Node, ...]:
        """The steps, in the order of recording."""
        return tuple(self._built().nodes)

    @property
    @public
    def inputs(self) -> tuple[Any, ...]:
        """The recorded input arrays, in the order in which a replay takes others."""
        return tuple(self._nibbles.elements(slot.array) for slot in self._built().inputs)

    @property
    @public
    def outputs(self) -> Any:
        """The results of a replay: a tuple of arrays, or the structure that was set."""
        if self._chosen is not None:
            return self._chosen
        return tuple(self._nibbles.elements(output.array) for output in self._built().outputs)

    @outputs.setter
    @public
    def outputs(self, arrays: Any) -> None:
        if self._is_executable():
            raise GraphError(
                "g.outputs is set before the first replay: that replay releases memory that is not an output"
            )
        if self._context is not None:  # later calls may make some of them
            self._chosen = arrays
            return
        before = self._chosen
        self._chosen, self._program = arrays, None
        try:
            self._built()
        except BaseException:
            self._chosen = before
            raise

    @property
    @public
    def memory_bytes(self) -> int:
        """Bytes of the graph's own memory. Intermediates share memory if they can."""
        return self._built().memory_bytes

    def to_dot(self) -> str:
        """Nodes and edges in Graphviz' language."""
        return dot(self._built())

    def to_svg(self) -> str:
        """A picture of nodes and edges, which notebooks show."""
        return svg(self._built())

    _repr_svg_ = to_svg

    def __reduce__(self) -> Any:
        raise GraphError("a graph can't be copied or pickled: record it again where it runs")

    def __repr__(self) -> str:
        if self._recorder is None or self._context is not None:
            return "<Graph, not recorded>"
        return f"<Graph of {len(self.nodes)} nodes>"

    def _built(self) -> GraphProgram:
        with self._lock:
            if self._program is None:
                recorder = self._recorder
                if self._context is not None:
                    raise GraphError(
                        "this graph is still being recorded: leave the block `with kd.Graph() as g:` first"
                    )
                if recorder is None:
                    raise GraphError("nothing was recorded, or the graph was released: use `with kd.Graph() as g:`")
                for repeat in recorder.made.repeats:
                    repeat.nodes.clear()
                if self._chosen is None:
                    self._program = build(weakref.ref(self), recorder.made, None)
                else:
                    leaves = stored(flatten(self._chosen)[0], self._nibbles)[0]
                    views = [view(recorder.known(leaf)) for leaf in leaves]
                    self._program = build(weakref.ref(self), recorder.made, views, leaves)
            return self._program


def _parts(item: Any) -> tuple[Callable[..., Any], Sequence[Any], dict[str, Any]]:
    """The parts of a call given as (function, args), (function, args, kwargs) or (function, *args)."""
    parts = list(cast("Sequence[Any]", item)) if isinstance(item, (tuple, list)) else []
    if not parts or not callable(parts[0]):
        raise ArgumentTypeError(
            f"a call is a callable, (function, args) or (function, args, kwargs), and not {shown(item)}"
        )
    listed = len(parts) > 1 and isinstance(parts[1], (tuple, list))
    if listed and (len(parts) == 2 or (len(parts) == 3 and isinstance(parts[2], dict))):
        return parts[0], cast("Sequence[Any]", parts[1]), dict(*parts[2:])
    return parts[0], parts[1:], {}

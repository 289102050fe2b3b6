"""A graph on a GPU: a CUDA graph, of which replays update the changed nodes."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..arrays.array_view import ArrayView
from ..devices import driver, memory
from ..devices.cuda_device import CudaLoaded
from ..devices.launch import check_attributes
from .build import GraphProgram
from .copies import copy_params, fill_params
from .driver_calls import GraphContext, add_to_capture, destroy_events, is_capturing, release
from .moves import Move, Update
from .nodes import CopyWork, FillWork, GraphError, LaunchWork, MemorySlot, Node
from .packing import PackedKernel, kernel_params, pack
from .turns import Turns


@dataclass(eq=False)
class _DriverNode:
    """One node of the CUDA graph. `params`: the driver's struct, which `set_exec` applies."""

    params: Any
    handle: Any = None
    flat: bool = True  # the driver can update only copies and fills of one dimension


class CudaExec:
    """An executable CUDA graph of a program, in one GPU's primary context."""

    def __init__(self, program: GraphProgram, device: Any, current: Callable[[int], int]) -> None:
        self._program = program
        self._device = device
        self._cu: Any = driver.api()
        self._place = ("cuda", device.index)
        self._staged = [s for s in program.slots if s.block is not None and s.home is not None]
        self._written = {o.slot for n in program.nodes for o in n.operands if o.written}
        self._graph: Any = None
        self._exec: Any = None
        # Objects of the driver. Each is removed from here before it is destroyed, so that none is destroyed twice.
        self._execs: list[Any] = []
        self._graphs: list[Any] = []
        self._memory: list[int] = []
        self._finalizer = weakref.finalize(self, release, device, self._execs, self._graphs, self._memory)
        self._finalizer.atexit = False
        self._events: tuple[Any, Any] | None = None
        self._old: set[int] = set()  # nodes whose template is out of date
        # Nodes that are not updated in place: some drivers confuse clusters along y and z.
        self._rigid: set[int] = set()
        self._steps: list[list[_DriverNode]] = []
        self._kernels: dict[int, PackedKernel] = {}
        self._uses: dict[MemorySlot, list[tuple[int, ctypes.c_uint64, int]]] = {}
        self._other_uses: dict[MemorySlot, set[int]] = {}
        self._touched: dict[int, list[MemorySlot]] = {}
        self._updates: dict[int, Update] = {}  # functions that update kernels in this executable
        self._latest: Sequence[MemorySlot] = ()  # the slots of the latest move
        self._move: Move | None = None  # that move, if it came twice
        self._names = [node.name for node in program.nodes]
        self.turns: Turns = Turns(device.context, current, device.index)
        with self._guard("instantiating"):
            self._allocate()
            self._build()
            self._instantiate()

    def _guard(self, doing: str) -> GraphContext:
        return GraphContext(self._device, doing, self._names)

    # --- making -----------------------------------------------------------------------------------

    def _allocate(self) -> None:
        start = 0
        if self._program.memory_bytes:
            # Not from the stream-ordered pool: any stream may use it at once, also while a stream is captured.
            with driver.relaxed_capture():
                start = int(driver.check(self._cu.cuMemAlloc(self._program.memory_bytes)))
            self._memory.append(start)
        for slot in self._program.slots:
            if slot.block is not None:
                slot.base = start + slot.block.offset + slot.shift
                slot.current = slot.home

    def _build(self) -> None:
        """Build the template: every node, with its edges."""
        cu = self._cu
        while self._graphs:
            cu.cuGraphDestroy(self._graphs.pop())
        self._graph = driver.check(cu.cuGraphCreate(0))
        self._graphs.append(self._graph)
        self._steps, self._kernels, self._uses, self._other_uses = [], {}, {}, {}
        self._touched.clear()
        self._old.clear()
        self._rigid.clear()
        for node in self._program.nodes:
            steps = self._make(node)
            for step in steps:
                self._add(node, step)
            self._steps.append(steps)

    def _make(self, node: Node) -> list[_DriverNode]:
        arrays = self._arrays(node)
        work = node.work
        self._touched[node.index] = [operand.slot for operand in node.operands]
        if isinstance(work, CopyWork):
            made = copy_params(self._cu, arrays[0], arrays[1])
        elif isinstance(work, FillWork):
            made = fill_params(self._cu, arrays[0], work.value)
        else:
            kernel = self._kernels[node.index] = self._pack(node, arrays)
            for position, operand, further in kernel.pointers:
                slot, offset = node.operands[operand].slot, node.operands[operand].offset + further
                address = ctypes.c_uint64.from_buffer(kernel.buffer.buffer, position)
                self._uses.setdefault(slot, []).append((node.index, address, offset))
            for operand in kernel.maps:
                self._other_uses.setdefault(node.operands[operand].slot, set()).add(node.index)
            return [_DriverNode(kernel_params(self._cu, kernel))]
        for operand in node.operands:
            self._other_uses.setdefault(operand.slot, set()).add(node.index)
        return [_DriverNode(params, flat=flat) for params, flat in made]

    def _arrays(self, node: Node) -> list[ArrayView]:
        return [operand.slot.at(operand.view, self._place) for operand in node.operands]

    def _pack(self, node: Node, arrays: Sequence[ArrayView]) -> PackedKernel:
        work = node.work
        if not isinstance(work, LaunchWork) or not isinstance(work.loaded, CudaLoaded):
            raise GraphError(f"{node!r} was recorded in the interpreter")
        check_attributes(work.attributes, self._device.target, work.name)
        return pack(work, work.loaded, arrays)

    def _add(self, node: Node, step: _DriverNode) -> None:
        cu, graph = self._cu, self._graph
        before = [s.handle for d in node.dependencies for s in self._steps[d]]
        context = self._device.context
        kernel = self._kernels.get(node.index)
        if isinstance(node.work, CopyWork):
            added = cu.cuGraphAddMemcpyNode(graph, before, len(before), step.params, context)
        elif isinstance(node.work, FillWork):
            added = cu.cuGraphAddMemsetNode(graph, before, len(before), step.params, context)
        elif kernel is not None and kernel.early:
            added = cu.cuGraphAddKernelNode(graph, [], 0, step.params)
        else:
            added = cu.cuGraphAddKernelNode(graph, before, len(before), step.params)
        step.handle = driver.check(added)
        if kernel is not None:
            self._set_attributes(node, step, kernel)

    def _set_attributes(self, node: Node, step: _DriverNode, kernel: PackedKernel) -> None:
        cu, attributes = self._cu, kernel.attributes
        if attributes.cluster[1:] != (1, 1):
            self._rigid.add(node.index)
        if attributes.cluster != (1, 1, 1):
            value = cu.CUkernelNodeAttrValue()
            value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = attributes.cluster
            key = cu.CUkernelNodeAttrID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            driver.check(cu.cuGraphKernelNodeSetAttribute(step.handle, key, value))
        if kernel.early:
            self._add_early_edges(node, step)

    def _add_early_edges(self, node: Node, step: _DriverNode) -> None:
        """Add edges on which a programmatic dependent launch starts before earlier kernels end."""
        cu = self._cu
        sources: list[Any] = []
        data: list[Any] = []
        for dependency in node.dependencies:
            for other in self._steps[dependency]:
                edge = cu.CUgraphEdgeData()
                if dependency in self._kernels:
                    edge.from_port = cu.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC
                    edge.type = cu.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC
                sources.append(other.handle)
                data.append(edge)
        if sources:
            targets = [step.handle] * len(sources)
            driver.check(cu.cuGraphAddDependencies(self._graph, sources, targets, data, len(sources)))

    def _instantiate(self) -> None:
        cu = self._cu
        self._update_template()
        made = driver.check(cu.cuGraphInstantiate(self._graph, 0))
        self.turns.forget()
        self._updates.clear()
        while self._execs:
            driver.check(cu.cuGraphExecDestroy(self._execs.pop()))
        self._exec = made
        self._execs.append(made)

    def _update_template(self) -> None:
        """Update the template's nodes to those of the executable, because the template may be cloned."""
        cu = self._cu
        self._forget_move()
        for index in self._old:
            work = self._program.nodes[index].work
            setter = (
                cu.cuGraphMemcpyNodeSetParams
                if isinstance(work, CopyWork)
                else cu.cuGraphMemsetNodeSetParams
                if isinstance(work, FillWork)
                else cu.cuGraphKernelNodeSetParams
            )
            for step in self._steps[index]:
                driver.check(setter(step.handle, step.params))
        self._old.clear()

    # --- changing ---------------------------------------------------------------------------------

    def moved(self, slots: Sequence[MemorySlot]) -> None:
        """Patch the addresses of moved slots in the nodes that use them."""
        with self._guard("updating"), self.turns.lock:
            self.turns.hold()
            self._move_to(slots)

    def _move_to(self, slots: Sequence[MemorySlot]) -> None:
        """`moved`, with `turns.hold`."""
        if slots == self._latest:
            self._move = self._move or self._plan_move(slots)
            self._move.run()
        elif self._patch(slots):
            self._latest, self._move = slots, None

    def _patch(self, slots: Sequence[MemorySlot]) -> bool:
        """Patch addresses; True if nothing but addresses in kernels changed. Needs `turns.hold`."""
        dirty: set[int] = set()
        others: set[int] = set()
        uses, other_uses = self._uses, self._other_uses
        for slot in slots:
            base = slot.base
            for index, address, offset in uses.get(slot, ()):
                address.value = base + offset
                dirty.add(index)
            if other_uses and slot in other_uses:
                others |= other_uses[slot]
        self._set_kernels(dirty - others)
        for index in sorted(others):
            self._remake(index)
        return not others and not dirty & self._rigid

    def _plan_move(self, slots: Sequence[MemorySlot]) -> Move:
        """The move of slots whose last move changed nothing but addresses in kernels."""
        uses = [(slot, use) for slot in slots for use in self._uses.get(slot, ())]
        kernels = dict.fromkeys(index for _, (index, _, _) in uses)
        updates = [self._updates.get(index) or self._update(index) for index in kernels]
        return Move([(address, slot, offset) for slot, (_, address, offset) in uses], updates)

    def _forget_move(self) -> None:
        """Nodes, the executable or the template change: the next move looks at all of them again."""
        self._latest, self._move = (), None

    def refresh(self, nodes: Iterable[Node]) -> None:
        """Make the parameters of nodes with changed work or operands again."""
        with self._guard("updating"), self.turns.lock:
            self.turns.hold()
            for node in nodes:
                self._remake(node.index)

    def _set_kernels(self, indices: set[int]) -> None:
        self._old.update(indices)
        if indices & self._rigid:
            self._instantiate()  # updates every node
            return
        updates, success = self._updates, driver.success()
        for index in indices:
            result = (updates.get(index) or self._update(index))()
            if result[0] is not success:
                driver.check(result)

    def _update(self, index: int) -> Update:
        """The function that updates a kernel's node in the executable."""
        step = self._steps[index][0]
        made = partial(self._cu.cuGraphExecKernelNodeSetParams, self._exec, step.handle, step.params)
        self._updates[index] = made
        return made

    def _remake(self, index: int) -> None:
        """Make a node's parameters again, and update the executable, or make that again, too."""
        node, old = self._program.nodes[index], self._steps[index]
        before = self._kernels.get(index)
        self._forget_move()
        self._forget(index)
        made = self._make(node)
        after = self._kernels.get(index)
        if len(made) != len(old) or (before and before.fixed_part) != (after and after.fixed_part):
            self._build()
            self._instantiate()
            return
        for step, new in zip(old, made, strict=True):
            step.params, step.flat = new.params, step.flat and new.flat
        self._updates.pop(index, None)
        self._old.add(index)
        if not self._set_exec(node, old):
            self._instantiate()

    def _forget(self, index: int) -> None:
        self._kernels.pop(index, None)
        for slot in self._touched.pop(index):
            if slot in self._uses:
                self._uses[slot] = [use for use in self._uses[slot] if use[0] != index]

    def _set_exec(self, node: Node, steps: Sequence[_DriverNode]) -> bool:
        cu = self._cu
        if isinstance(node.work, (CopyWork, FillWork)):
            copying = isinstance(node.work, CopyWork)
            setter: Callable[..., Any] = (
                cu.cuGraphExecMemcpyNodeSetParams if copying else cu.cuGraphExecMemsetNodeSetParams
            )
            context = self._device.context
            return all(
                step.flat and int(setter(self._exec, step.handle, step.params, context)[0]) == 0 for step in steps
            )
        self._set_kernels({node.index})
        return True

    # --- running ----------------------------------------------------------------------------------

    @property
    def plain(self) -> bool:
        """Whether a replay is only the launch: no array is copied to the GPU or back."""
        return not self._staged

    def launch_args(self, stream: int) -> tuple[Any, Any]:
        """The arguments of `cuGraphLaunch`."""
        return self.turns.arguments(self._exec, stream)

    def renew(self, slots: Sequence[MemorySlot], stream: int) -> None:
        """`moved`, then `run`, of a `plain` program."""
        with self._guard("replaying"), self.turns.lock:
            self.turns.hold()
            if slots:
                self._move_to(slots)
            if stream and is_capturing(stream):
                self._add_to_capture(stream, False)
            else:
                self._launch(stream, False)
            self.turns.allow()

    def run(self, stream: int, timed: bool) -> float | None:
        """Launch in `stream`. With `timed`, wait and return the GPU's seconds."""
        with self._guard("replaying"), self.turns.lock:
            self.turns.hold()
            if stream and is_capturing(stream):
                self._add_to_capture(stream, timed)
                self.turns.allow()
                return None
            for slot in self._staged:
                if slot.kind != "result" or slot.given:
                    self._exchange(slot, stream, back=False)
            seconds = self._launch(stream, timed)
            back = [slot for slot in self._staged if slot in self._written]
            for slot in back:
                self._exchange(slot, stream, back=True)
            if self._staged:
                driver.check(self._cu.cuStreamSynchronize(stream))
            self.turns.allow()
            return seconds

    def _launch(self, stream: int, timed: bool) -> float | None:
        cu = self._cu
        executable, handle = self.launch_args(stream)
        if not timed:
            driver.check(cu.cuGraphLaunch(executable, handle))
            return None
        if self._events is None:
            first, last = (driver.check(cu.cuEventCreate(0)) for _ in range(2))
            self._events = (first, last)
            weakref.finalize(self, destroy_events, first, last).atexit = False
        first, last = self._events
        driver.check(cu.cuEventRecord(first, handle))
        driver.check(cu.cuGraphLaunch(executable, handle))
        driver.check(cu.cuEventRecord(last, handle))
        driver.check(cu.cuEventSynchronize(last))
        return float(driver.check(cu.cuEventElapsedTime(first, last))) / 1e3

    def _exchange(self, slot: MemorySlot, stream: int, *, back: bool) -> None:
        assert slot.home is not None and slot.current is not None  # staged slots have both
        there, here = slot.at(slot.home, self._place), slot.current
        memory.copy(*((here, there) if back else (there, here)), stream)

    def _add_to_capture(self, stream: int, timed: bool) -> None:
        """Add this graph as a child node to the graph into which the stream is captured."""
        if timed:
            raise GraphError(
                "wait=True cannot be used while the stream is being captured; wait for the captured graph instead"
            )
        if self._staged:
            raise GraphError(
                "a graph whose arrays lie in host memory cannot be captured; record it with arrays on the GPU"
            )
        self._update_template()
        add_to_capture(stream, self._graph)

    def close(self) -> None:
        """Free the executable and its memory after the GPU has finished."""
        with self.turns.lock:
            self.turns.hold()
            self._finalizer()

"""Launches all ranks on the GPUs of this host: peer access by the driver, and streams that begin and end together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from kernel_dsl.compiled import OutputSpec, ScalarParam, TensorMapParam
from kernel_dsl.dtypes import int32, int64
from kernel_dsl.errors_mesh import Unreachable
from kernel_dsl.forking import lock

from ..arrays.array_view import CPU, ArrayView
from ..devices import driver, memory, reports
from ..devices.cuda_device import CudaDevice, CudaLoaded
from ..devices.launch import ParamBuffer, settle
from ..devices.params import ParamLayout, scalar_bytes
from .interpreter import DeviceSide, fill
from .peers import PeerAddresses, in_one_process

_STREAMS = 64  # the most sets of streams for which a kernel keeps semaphores
_ISSUES = 256  # the most issues that a kernel keeps for its streams
_lock = lock()
_order = lock()  # two launches that wait for their peers must have one order on all GPUs
_reached: set[tuple[int, int]] = set()  # (GPU, peer) whose memory is mapped


def enable(devices: Sequence[CudaDevice]) -> None:
    """Map each GPU's memory for every other one.

    Raises `Unreachable` if two GPUs cannot access each other. The mapping includes later allocations, and memory from
    the driver's pools.
    """
    with _lock:
        for rank, device in enumerate(devices):
            for other, peer in enumerate(devices):
                if rank != other and (device.index, peer.index) not in _reached:
                    _enable(device, peer, rank, other)
                    _reached.add((device.index, peer.index))


def _enable(device: CudaDevice, peer: CudaDevice, rank: int, other: int) -> None:
    cu = driver.api()
    if not int(driver.check(cu.cuDeviceCanAccessPeer(device.device, peer.device))):
        why = f"GPU {device.index} has no peer access to GPU {peer.index}"
        hint = "run on GPUs that NVLink or one PCIe switch connects, as `nvidia-smi topo -p2p r` shows them"
        raise Unreachable(rank=rank, peer=other, why=why, hint=hint)
    with driver.current(device.context):
        status = cu.cuCtxEnablePeerAccess(peer.context, 0)[0]
    if int(status) not in (0, int(cu.CUresult.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)):
        error = driver.error_of(status)
        hint = "see whether another process holds the GPU, and `nvidia-smi topo -p2p r`"
        raise Unreachable(rank=rank, peer=other, why=f"{error.name}: {error.meaning}", hint=hint) from error
    access = cu.CUmemAccessDesc()
    access.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    access.location.id = device.index
    access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    pool = driver.check(cu.cuDeviceGetDefaultMemPool(peer.device))
    driver.check(cu.cuMemPoolSetAccess(pool, [access], 1))


class MeshKept:
    """The state that a kernel keeps on its GPUs for a set of streams.

    It has the semaphores, two events for each GPU, and earlier issues. `meets`: whether streams order the launches of
    the GPUs. A kernel whose blocks wait for their peers at their begin and before their end does not need this order.
    """

    def __init__(
        self, loaded: Sequence[CudaLoaded], streams: Sequence[int], meets: bool, semaphores: Sequence[ArrayView] = ()
    ) -> None:
        """`semaphores`: zeroed already, where they are not to be allocated here."""
        self.streams: list[int] = list(streams)
        self.semaphores: list[ArrayView] = list(semaphores)
        self.issues: dict[Any, Issue] = {}
        self._devices: list[CudaDevice] = [one.device for one in loaded]
        self._meets = meets and len(streams) > 1
        self._events: list[tuple[Any, Any]] = []  # a stream has reached the launch, and has passed it
        cu = driver.api()
        shape = loaded[0].plan.arrays[-1].shape
        for one, stream in zip(loaded, streams, strict=True):
            with driver.current(one.device.context):
                if not semaphores:
                    block = one.device.allocate(4 * shape[0], stream)
                    self.semaphores.append(block.view(shape, int32, one.device.index))
                    memory.fill(self.semaphores[-1], 0, stream)
                    driver.check(cu.cuStreamSynchronize(stream))  # a peer may signal before this stream comes to it
                flags = int(cu.CUevent_flags.CU_EVENT_DISABLE_TIMING)
                self._events.append((driver.check(cu.cuEventCreate(flags)), driver.check(cu.cuEventCreate(flags))))
                if hasattr(cu, "cuFuncLoad"):  # loading at the launch could wait for a kernel that waits for this one
                    driver.check(cu.cuFuncLoad(one.function))

    def around(self, launches: Sequence[tuple[Any, tuple[Any, ...]] | None]) -> list[tuple[Any, tuple[Any, ...]]]:
        """Return the driver's calls for launches, one for each rank.

        They make contexts current, and record events if streams meet. The first stream waits for all others, and these
        wait for the first: two waits for each GPU.
        """
        cu = driver.api()
        calls: list[tuple[Any, tuple[Any, ...]]] = []
        handles = [cu.CUstream(s) for s in self.streams]
        others = range(1, len(handles))
        now = [0]

        def on(rank: int, call: Any, *arguments: Any) -> None:
            if now[0] != rank:
                now[0] = rank
                calls.append((cu.cuCtxSetCurrent, (self._devices[rank].context,)))
            calls.append((call, arguments))

        def meet(which: int, between: Callable[[int], None]) -> None:
            """Make all streams meet; then issue `between` to each."""
            for rank in others:
                on(rank, cu.cuEventRecord, self._events[rank][which], handles[rank])
            for rank in others:
                on(0, cu.cuStreamWaitEvent, handles[0], self._events[rank][which], 0)
            on(0, cu.cuEventRecord, self._events[0][which], handles[0])
            between(0)
            for rank in others:
                on(rank, cu.cuStreamWaitEvent, handles[rank], self._events[0][which], 0)
                between(rank)

        def launch(rank: int) -> None:
            made = launches[rank]
            if made is not None:
                on(rank, made[0], *made[1])

        if self._meets:
            meet(0, launch)
            meet(1, lambda rank: None)
        else:
            for rank in range(len(handles)):
                launch(rank)
        return calls


def _table(device: CudaDevice, peers: PeerAddresses, stream: int) -> memory.DeviceMemory:
    """Write the table of all arrays' addresses on all GPUs to this GPU."""
    data = peers.table().tobytes()
    with driver.current(device.context):
        if is_capturing(stream):  # what is captured may run at any time, and should not write the table each time
            return memory.LastingMemory(data)
        block = device.allocate(len(data), stream)
        memory.put(block.address, data, stream)
    return block


def is_capturing(stream: int) -> bool:
    """Whether a graph is being captured from a stream of the current context."""
    cu = driver.api()
    return bool(stream) and int(driver.check(cu.cuStreamIsCapturing(stream))) != 0


def _encode(one: CudaLoaded, peers: PeerAddresses, param: TensorMapParam, view: ArrayView) -> bytes:
    """Encode a descriptor, or one for each rank's array."""
    if not param.ranks:
        return one.encode(param, view)
    return b"".join(one.encode(param, peer) for peer in peers.of(param.array - 1, view))  # array 0 is the table


class Issue:
    """The kernel's launch on each GPU, for fixed arrays and streams: the driver's calls with all arguments.

    Each rank has one buffer with packed parameters; only the author's scalars change between runs.
    """

    def __init__(
        self,
        loaded: Sequence[CudaLoaded],
        arrays: Sequence[Sequence[ArrayView]],
        kept: MeshKept,
        scalars: Sequence[Any],
        alone: tuple[int, PeerAddresses] | None = None,
    ) -> None:
        """`arrays[r]`: rank r's inputs and outputs. `alone`: the rank of this process, and where the peers' arrays lie."""
        cu = driver.api()
        self._context: Any = loaded[0].device.context
        self._layout: ParamLayout = loaded[0].layout
        self._failure = loaded[0].failure
        self._success: Any = driver.success()
        self._push, self._pop = cu.cuCtxPushCurrent, cu.cuCtxPopCurrent
        self._places = [n for n, p in enumerate(self._layout.params) if isinstance(p, ScalarParam) and p.scalar]
        rows = [[*own, counts] for own, counts in zip(arrays, kept.semaphores, strict=True)]
        if alone is None:
            peers = in_one_process(rows).and_then([reports.address_of(r, self._context) for r in range(len(rows))])
        else:
            peers = alone[1]
        self._tables = [_table(one.device, peers, stream) for one, stream in zip(loaded, kept.streams, strict=True)]
        self._values: list[list[Any]] = []
        self._params: list[ParamBuffer] = []
        self._steps: list[tuple[CudaLoaded, Any, list[ArrayView], int]] = []  # on scratch, before each launch
        launches: list[tuple[Any, tuple[Any, ...]]] = []
        for rank, (one, own, stream) in enumerate(zip(loaded, rows, kept.streams, strict=True)):
            plan, params = one.plan, ParamBuffer(one.layout.offsets, one.layout.nbytes)
            table = self._tables[rank].view(plan.arrays[0].shape, int64, one.device.index)
            encode = functools.partial(_encode, one, peers)
            with driver.current(one.device.context):
                everything = [table, *own, *one.scratch(stream)]
            values = one.layout.values(everything, [np.int32(alone[0] if alone else rank), *scalars], encode)
            self._values.append(values)
            self._params.append(params)
            for step in plan.then:
                self._steps.append((one, step, everything, stream))
            assert one.launcher is not None
            launches.append(one.launcher.call_for(stream, params.address))
        self._pack(scalars)
        self._calls: list[tuple[Any, tuple[Any, ...]]] = kept.around(launches)
        self._alone = len(self._calls) == 1 and not self._steps

    def _pack(self, scalars: Sequence[Any]) -> None:
        layout = self._layout
        for values, params in zip(self._values, self._params, strict=True):
            for place in self._places:
                param = layout.params[place]
                assert isinstance(param, ScalarParam)
                values[place] = scalar_bytes(scalars[param.scalar - 1], param.dtype)
            layout.pack(params.buffer, params.shift, *values)

    def run(self, scalars: Sequence[Any]) -> None:
        """Issue the launch. A process issues its mesh launches in order, so their order is the same on all GPUs."""
        success = self._success
        with _order:
            if self._places:
                self._pack(scalars)
            if self._alone:  # one rank's, whose context the thread has as a rule
                ((call, arguments),) = self._calls
                outcome = call(*arguments)
                if outcome[0] is not success:
                    self._settle(call, arguments, outcome)
                return
            for one, step, arrays, stream in self._steps:
                with driver.current(one.device.context):
                    one.take(step, arrays, scalars, stream)
            outcome = self._push(self._context)
            try:
                for call, arguments in self._calls:
                    outcome = call(*arguments)
                    if outcome[0] is not success:
                        driver.check(outcome)
            except driver.CudaError as error:
                raise self._failure(error, ()) from error
            finally:
                self._pop()

    def _settle(self, call: Any, arguments: tuple[Any, ...], outcome: tuple[Any, ...]) -> None:
        try:
            settle(self._context, call, arguments, outcome)
        except driver.CudaError as error:
            raise self._failure(error, ()) from error


def launch(
    loaded: Sequence[CudaLoaded],
    sides: Sequence[DeviceSide],
    specs: Sequence[OutputSpec],
    streams: Sequence[int],
    kept: dict[Any, Any],
    meets: bool,
) -> None:
    """Issue the kernel to a stream of each GPU; `sides` and `streams` are in the order of ranks.

    The launch begins on each GPU after all streams have reached it, and later work on these streams sees all its
    stores.
    """
    devices = [one.device for one in loaded]
    mine = kept_for(loaded, streams, kept, meets)
    with ExitStack() as stack:
        sides = [_brought(stack, d, side, s, specs) for d, side, s in zip(devices, sides, streams, strict=True)]
        if loaded[0].plan.launch is not None:
            issue_for(loaded, sides, mine).run(sides[0].scalars)


def kept_for(loaded: Sequence[CudaLoaded], streams: Sequence[int], kept: dict[Any, Any], meets: bool) -> MeshKept:
    """Return the state that a kernel keeps for these GPUs and streams. Raises `Unreachable`."""
    key = (tuple(streams), tuple(one.function for one in loaded))
    found = kept.get(key)
    if found is None:
        enable([one.device for one in loaded])
        if len(kept) >= _STREAMS:
            kept.clear()
        found = kept[key] = MeshKept(loaded, streams, meets)
    return found


def issue_for(loaded: Sequence[CudaLoaded], sides: Sequence[DeviceSide], kept: MeshKept) -> Issue:
    """Return the launch for these arrays, made once."""
    arrays = [[*side.inputs, *side.outputs] for side in sides]
    key = tuple((view.address, view.strides) for own in arrays for view in own)
    found = kept.issues.get(key)
    if found is None:
        if len(kept.issues) >= _ISSUES:
            kept.issues.clear()
        found = kept.issues[key] = Issue(loaded, arrays, kept, sides[0].scalars)
    return found


def _brought(
    stack: ExitStack, device: CudaDevice, side: DeviceSide, stream: int, specs: Sequence[OutputSpec]
) -> DeviceSide:
    """Return a rank's arrays on its GPU, with the outputs filled.

    Arrays in host memory are copied to the GPU, and copied back at the end.
    """
    with driver.current(device.context):
        made = DeviceSide(
            [_there(device, v, stream, True) for v in side.inputs],
            [_there(device, v, stream, False) for v in side.outputs],
            side.scalars,
        )
        for out, view in enumerate(side.outputs):
            for i, source in enumerate(side.inputs):
                if view.size and view.same_memory(source):  # in place
                    made.outputs[out] = made.inputs[i]
        fill(made, specs, stream)
    for here, there in zip(side.outputs, made.outputs, strict=True):
        if here.device == CPU:
            stack.callback(_back, device, here, there, stream)
    return made


def _there(device: CudaDevice, source: ArrayView, stream: int, filled: bool) -> ArrayView:
    if source.device != CPU:
        return source
    block = device.allocate(source.nbytes, stream)
    twin = memory.gapless(source).at(block.address, source, ("cuda", device.index), block)
    if filled:
        if not source.contiguous:
            laid = memory.host_memory(source, memory.gapless(source))
            memory.copy(laid, source)
            source = laid
        memory.copy(twin, source, stream)
        driver.check(driver.api().cuStreamSynchronize(stream))
    return twin


def _back(device: CudaDevice, here: ArrayView, there: ArrayView, stream: int) -> None:
    with driver.current(device.context):
        laid = memory.host_memory(here, memory.gapless(here))
        memory.copy(laid, there, stream)
        driver.check(driver.api().cuStreamSynchronize(stream))
        memory.copy(here, laid)

"""All ranks of a launch on the GPUs of this host: peer access by the driver, and streams that begin and end together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from kernel_dsl.compiled import OutputSpec
from kernel_dsl.dtypes import int32, int64
from kernel_dsl.errors_mesh import Unreachable
from kernel_dsl.forking import lock

from ..arrays.array_view import CPU, ArrayView
from ..devices import driver, memory
from ..devices.cuda_device import CudaDevice, CudaLoaded
from .interpreter import DeviceSide, fill

_TABLES = 64  # that a kernel keeps
_lock = lock()
_reached: set[tuple[int, int]] = set()  # (GPU, peer) whose memory is mapped


def enable(devices: Sequence[CudaDevice]) -> None:
    """Map each GPU's memory for every other. Raises `Unreachable` where two have no way to each other.

    What is allocated later is mapped too; so is what the driver's pools give.
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


class _Kept:
    """What a kernel keeps on its GPUs: the semaphores, the tables of addresses, and an event a GPU."""

    def __init__(self, loaded: Sequence[CudaLoaded], streams: Sequence[int]) -> None:
        self.devices: list[CudaDevice] = [one.device for one in loaded]
        self.streams = list(streams)
        self.tables: dict[Any, list[memory.DeviceMemory]] = {}
        self.semaphores: list[ArrayView] = []
        self.events: list[Any] = []
        cu = driver.api()
        shape = loaded[0].plan.arrays[-1].shape
        for one, stream in zip(loaded, streams, strict=True):
            with driver.current(one.device.context):
                block = one.device.allocate(4 * shape[0], stream)
                self.semaphores.append(block.view(shape, int32, one.device.index))
                memory.fill(self.semaphores[-1], 0, stream)
                flags = cu.CUevent_flags.CU_EVENT_DISABLE_TIMING
                self.events.append(driver.check(cu.cuEventCreate(int(flags))))
                if hasattr(cu, "cuFuncLoad"):  # loading at the launch could wait for a kernel that waits for this one
                    driver.check(cu.cuFuncLoad(one.function))

    def table(self, addresses: tuple[tuple[int, ...], ...]) -> list[memory.DeviceMemory]:
        """The addresses of every array on every GPU, on each GPU."""
        found = self.tables.get(addresses)
        if found is None:
            if len(self.tables) >= _TABLES:
                self.tables.clear()
            data = np.array(addresses, np.int64).tobytes()
            found = []
            for device, stream in zip(self.devices, self.streams, strict=True):
                with driver.current(device.context):
                    block = device.allocate(len(data), stream)
                    memory.put(block.address, data, stream)
                    found.append(block)
            self.tables[addresses] = found
        return found

    def meet(self, streams: Sequence[int]) -> None:
        """What comes next on each stream waits for what is on all of them now."""
        cu = driver.api()
        for device, stream, event in zip(self.devices, streams, self.events, strict=True):
            with driver.current(device.context):
                driver.check(cu.cuEventRecord(event, stream))
        for rank, (device, stream) in enumerate(zip(self.devices, streams, strict=True)):
            with driver.current(device.context):
                for other, event in enumerate(self.events):
                    if other != rank:
                        driver.check(cu.cuStreamWaitEvent(stream, event, 0))


def launch(
    loaded: Sequence[CudaLoaded],
    sides: Sequence[DeviceSide],
    specs: Sequence[OutputSpec],
    streams: Sequence[int],
    kept: dict[Any, Any],
) -> None:
    """Issue the kernel to a stream of each GPU; `sides` and `streams` go by rank.

    The launch begins on each GPU once all streams have come to it, and what follows on any of the streams sees all of it.
    """
    devices = [one.device for one in loaded]
    plan = loaded[0].plan
    enable(devices)
    key = (tuple(d.index for d in devices), tuple(streams), tuple(one.function for one in loaded))
    mine = kept.get(key)
    if mine is None:
        mine = kept[key] = _Kept(loaded, streams)
    with ExitStack() as stack:
        sides = [_brought(stack, d, side, s, specs) for d, side, s in zip(devices, sides, streams, strict=True)]
        if plan.launch is None:
            mine.meet(streams)
            return
        rows = [[*side.inputs, *side.outputs, counts] for side, counts in zip(sides, mine.semaphores, strict=True)]
        tables = mine.table(tuple(zip(*[[v.address for v in row] for row in rows], strict=True)))
        mine.meet(streams)
        for rank, (one, side, stream) in enumerate(zip(loaded, sides, streams, strict=True)):
            peers = tables[rank].view(plan.arrays[0].shape, int64, one.device.index)
            one.launch([peers, *rows[rank]], [np.int32(rank), *side.scalars], stream)
        mine.meet(streams)


def _brought(
    stack: ExitStack, device: CudaDevice, side: DeviceSide, stream: int, specs: Sequence[OutputSpec]
) -> DeviceSide:
    """A rank's arrays on its GPU, with the outputs filled; copies of what lies in host memory go back at the end."""
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

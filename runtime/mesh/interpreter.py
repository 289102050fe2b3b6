"""Launches all ranks in the interpreter: one run with a virtual GPU for each rank."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernel_dsl.compiled import OutputSpec, TensorMapParam
from kernel_dsl.dtypes import uint8
from kernel_dsl.errors_mesh import ONE_HOST, NoMulticast, Unreachable
from kernel_dsl.launch_plan import FillStep, LaunchPlan, target_of
from kernel_dsl.mesh import ROOM, Reach

from ..arrays.array_view import CPU, ArrayView
from ..devices import memory, reports
from ..devices.interpreter_device import InterpreterLoaded, Launch, Space, encode
from ..interpreter import HazardError, HazardKind
from .peers import PeerAddresses, in_one_process

_FIX = "  fix: find the signal that did not come, or make the timeout longer"


@dataclass
class DeviceSide:
    """The arguments of one rank's launch: the author's inputs, outputs and scalars."""

    inputs: list[ArrayView]
    outputs: list[ArrayView]
    scalars: list[Any]


def fill(side: DeviceSide, specs: Sequence[OutputSpec], stream: int = 0) -> None:
    """Fill a rank's outputs with their values before the launch. On a GPU, its context must be current."""
    for target, spec in zip(side.outputs, specs, strict=True):
        if spec.alias is not None:
            if not target.same_memory(side.inputs[spec.alias]):
                memory.copy(target, side.inputs[spec.alias], stream)
        elif spec.fill is not None:
            memory.take(FillStep(0, spec.fill), [target], side.scalars, stream)


def launch(
    loaded: InterpreterLoaded,
    sides: Sequence[DeviceSide],
    specs: Sequence[OutputSpec],
    fresh: Sequence[int],
    reach: Reach,
    kept: dict[Any, Any],
) -> None:
    """Run the kernel on all ranks to its end. Raises what the interpreter finds.

    `fresh`: outputs that hold nothing. `kept`: what the kernel keeps between launches; a launch that fails leaves zeros.
    """
    groups = groups_of(loaded.device.params.mapped, len(sides))
    if reach.multicast and len(groups) > 1:
        what = f"the devices {groups[0]} and {groups[1]} do not map each other"
        raise NoMulticast(kernel=loaded.plan.name, what=what, hint="leave `mapped` of kd.InterpretParams out")
    plan, step = loaded.plan, loaded.plan.launch
    back: list[tuple[ArrayView, ArrayView]] = []
    sides = [_on_host(side, back) for side in sides]
    for side in sides:
        fill(side, specs)
    if step is None:
        return
    space = Space()
    space.memory.near = groups
    arrays = [_placed(space, plan, side, rank, fresh) for rank, side in enumerate(sides)]
    key = ("interpreter", len(sides), plan.arrays[-1].shape)
    before = kept.pop(key, None)  # and of two launches at the same time the second begins anew
    semaphores = [np.zeros(plan.arrays[-1].shape, np.int32) for _ in sides] if before is None else before
    name = plan.arrays[-1].name
    hidden = [
        space.place(memory.host_view(array, plan.arrays[-1].dtype), f"{name} on device {rank}", True, True)
        for rank, array in enumerate(semaphores)
    ]
    for rank, counts in enumerate(hidden):
        buffer = space.memory.find(counts.address)
        if buffer is not None and counts.size:
            buffer.called = functools.partial(_called, reach, rank)
    peers_of = in_one_process([[*own, counts] for own, counts in zip(arrays, hidden, strict=True)])
    said = [np.zeros(reports.NBYTES, np.uint8) for _ in sides]
    where = [
        space.place(memory.host_view(data, uint8), f"texts of device {r}", True, True) for r, data in enumerate(said)
    ]
    joined = [space.memory.join(row) for row in peers_of.addresses]
    peers_of = peers_of.and_then([view.address for view in where], joined)
    params: list[list[bytes]] = []
    for rank, (side, own, counts) in enumerate(zip(sides, arrays, hidden, strict=True)):
        table = _seen(peers_of, rank, groups).table()
        rows = memory.host_view(table, plan.arrays[0].dtype)
        peers = space.place(rows, f"peers on device {rank}", False, True)
        hosted = [rows, *side.inputs, *side.outputs, memory.host_view(semaphores[rank], plan.arrays[-1].dtype)]
        scratch = _scratch(space, plan, hosted, side.scalars, rank)
        everything = [peers, *own, counts, *scratch]
        maps = functools.partial(_encode, plan, peers_of)
        values = loaded.layout.values(everything, [np.int32(rank), *side.scalars], maps)
        params.append(loaded.layout.split(values))
    kernel = loaded.kernel
    assert kernel is not None
    run = Launch(kernel.ptx, step.entry, params[0], step.attributes, space, loaded.target, kernel, others=params[1:])
    try:
        loaded.device.run(run)
    except HazardError as error:
        if error.kind == HazardKind.TRAP:
            space.copy_back()
            raise _worded(error, said) from None
        raise
    space.copy_back()
    for target, twin in back:
        memory.copy(target, twin)
    _check_left(loaded, [counts[:ROOM] for counts in semaphores], reach)
    if plan.arrays[-1].shape[0] > ROOM:
        kept[key] = semaphores


def check_mapped(kernel: str, device: Any, size: int) -> None:
    """Raise `Unreachable` for a device of the interpreter, unless all devices map each other's memory."""
    params = getattr(device, "params", None)
    groups = [] if params is None else groups_of(params.mapped, size)
    if len(groups) > 1:
        rank, peer = groups[0][0], groups[1][0]
        raise Unreachable(rank=rank, peer=peer, why=f"kernel {kernel!r} needs it mapped", hint=ONE_HOST)


def groups_of(mapped: tuple[tuple[int, ...], ...] | None, size: int) -> list[tuple[int, ...]]:
    """Return the devices in groups, one for each host, that map each other's memory."""
    named = [tuple(d for d in group if d < size) for group in mapped or (tuple(range(size)),)]
    known = {device for group in named for device in group}
    return [group for group in named if group] + [(device,) for device in range(size) if device not in known]


def _seen(peers: PeerAddresses, rank: int, groups: Sequence[tuple[int, ...]]) -> PeerAddresses:
    """Return the addresses that a rank sees: 0 for arrays of devices that it does not map."""
    near = next(group for group in groups if rank in group)
    rows = [tuple(a if r in near else 0 for r, a in enumerate(row)) for row in peers.addresses]
    return replace(peers, addresses=tuple(rows), multicast=peers.multicast if len(groups) == 1 else ())


def _encode(plan: LaunchPlan, peers: PeerAddresses, param: TensorMapParam, view: ArrayView) -> bytes:
    """Encode a descriptor, or one for each rank's array; the array is `view` on this rank."""
    views = peers.of(param.array - 1, view) if param.ranks else [view]  # array 0 is the table of addresses
    return b"".join(encode(plan, param, one) for one in views)


def _on_host(side: DeviceSide, back: list[tuple[ArrayView, ArrayView]]) -> DeviceSide:
    """Return the rank's arrays in host memory, copied if needed."""

    def brought(source: ArrayView) -> ArrayView:
        if source.device == CPU:
            return source
        twin = memory.host_memory(source, memory.gapless(source))
        memory.copy(twin, source)
        back.append((source, twin))
        return twin

    return DeviceSide([brought(v) for v in side.inputs], [brought(v) for v in side.outputs], side.scalars)


def _scratch(space: Space, plan: LaunchPlan, arrays: list[ArrayView], scalars: list[Any], rank: int) -> list[ArrayView]:
    """Put a rank's scratch into the interpreter's memory, after the steps that prepare it. `arrays`: the rank's others."""
    made = [memory.host_view(np.zeros(spec.shape, spec.dtype.numpy), spec.dtype) for spec in plan.scratch]
    for step in plan.then:
        memory.take(step, [*arrays, *made], scalars, 0)
    filled = {target_of(step) - len(arrays) for step in plan.then}
    return [
        space.place(view, f"{spec.name} on device {rank}", True, number in filled)
        for number, (view, spec) in enumerate(zip(made, plan.scratch, strict=True))
    ]


def _placed(space: Space, plan: LaunchPlan, side: DeviceSide, rank: int, fresh: Sequence[int]) -> list[ArrayView]:
    """Put a rank's arrays into the interpreter's memory."""
    own = [*side.inputs, *side.outputs]
    written = [v for v, yes in zip(own, plan.written[1:], strict=False) if yes]
    placed: list[ArrayView] = []
    for n, (view, assumed) in enumerate(zip(own, plan.arrays[1:], strict=False)):
        writable = any(w.same_memory(view) for w in written)
        name = f"{assumed.name or f'array {n}'} on device {rank}"
        placed.append(space.place(replace(view), name, writable, n - len(side.inputs) not in fresh))
    return placed


def _worded(error: HazardError, said: Sequence[Any]) -> HazardError:
    """Return a trap's error with the ranks' texts before it; otherwise the same error."""
    found = [text for rank, data in enumerate(said) for text in reports.texts(data, rank)]
    if not found:
        return error
    _, *rest = str(error.fields["message"]).split("\n")
    rest = [_FIX if line.startswith("  fix:") else line for line in rest]
    kind = HazardKind.ASSERTION
    return HazardError(
        kind, "\n".join([f"{kind.value}: {found[0]}", *(f"  {t}" for t in found[1:]), *rest]), error.line
    )


def _called(reach: Reach, rank: int, offset: int) -> str:
    """Return what reports call the semaphore at an offset in bytes, or the other data that a kernel keeps."""
    number = offset // 4
    return f"{reach.semaphore_called(number) if number < ROOM else 'kept data'} on device {rank}"


def _check_left(loaded: InterpreterLoaded, semaphores: Sequence[Any], reach: Reach) -> None:
    """Raise an error if a semaphore is not zero, because the next launch would begin with it."""
    for rank, counts in enumerate(semaphores):
        left = np.flatnonzero(counts)
        kind = HazardKind.SEMAPHORE_LEFT
        if len(left) and str(kind) not in loaded.device.params.ignore:
            kernel = loaded.kernel
            raise HazardError(
                kind,
                f"{kind}: the kernel ends with {_called(reach, rank, 4 * int(left[0]))} at {int(counts[left[0]])}\n"
                "  fix: wait for each signal; the next launch finds what this one leaves\n"
                f"  in kernel '{loaded.plan.name}'",
                kernel.source if kernel else None,
            )

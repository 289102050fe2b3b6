"""This rank's launches on its GPU, with one process a GPU.

Semaphores lie in torch's symmetric memory, a part of it for each kernel and stream; the ranks agree on the part when they first
make a call of a new kind. After that no rank asks another: a launch reads the peers' addresses from torch's handles.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from kernel_dsl.compiled import OutputSpec
from kernel_dsl.dtypes import int32
from kernel_dsl.errors_mesh import ONE_HOST, NoMulticast, Unreachable
from kernel_dsl.launch_plan import LaunchPlan
from kernel_dsl.mesh import ROOM, Reach

from ..arrays.array_view import ArrayView, row_major
from ..devices import driver, reports
from ..devices.cuda_device import CudaLoaded
from ..errors import ArgumentValueError
from .cuda import Issue, MeshKept, is_capturing
from .interpreter import DeviceSide, fill
from .nvshmem_arrays import address_of
from .peers import PeerAddresses
from .ranks import Ranks, held, not_symmetric, peers_of, place_of

SLOTS = 32  # sets of semaphores that one allocation has
FEW = 2  # the same, with memory that a kernel keeps: one for the stream of a capture
_ISSUES = 64


@dataclass
class _RankIssue:
    """A launch, the arrays that it is for, and what keeps other memory from being taken for theirs."""

    issue: Issue
    views: Sequence[ArrayView]
    held: list[Any]


class _Latest:
    """The latest launch, for the same tensors at the same addresses: these need not say whose memory theirs is."""

    def __init__(self, addresses: Sequence[int], tensors: list[tuple[int, Any]], made: _RankIssue) -> None:
        self.addresses, self._tensors, self.made = addresses, tensors, made

    def are(self, arrays: Sequence[Any]) -> bool:
        for n, ref in self._tensors:  # noqa: SIM110 (`all` takes three times as long)
            if ref() is not arrays[n]:
                return False
        return True


class RankLaunches:
    """The launches of one kind of call: of one kernel, on one stream."""

    def __init__(
        self,
        call: Any,
        loaded: CudaLoaded,
        specs: Sequence[OutputSpec],
        reach: Reach,
        slot: int,
        handle: Any,
        arena: Any,
    ) -> None:
        self.name: str = call.name
        self.ranks: Ranks = call.ranks
        self.reach: Reach = reach
        self.specs: list[OutputSpec] = list(specs)
        self.stream: Any = call.stream
        self._loaded, self._meets = loaded, call.meets and bool(reach.remote)
        self._one_host = bool(call.needs_mapped)
        self._filled = any(s.fill is not None or s.alias is not None for s in specs)
        self._alone = not self._meets and not self._filled  # nothing but the launch
        self._inputs = len(call.inputs)
        shape = loaded.plan.arrays[-1].shape
        self._handle, self._arena = handle, arena
        # whether the code asks if a peer's address is 0
        self._far = bool(call.mesh.hosts) and not call.needs_mapped and not call.maps_all
        address = address_of(arena) + 4 * shape[0] * slot
        counts = ArrayView(address, shape, row_major(shape), int32, ("cuda", loaded.device.index), "torch")
        self._kept = MeshKept([loaded], [call.stream], False, [counts])
        self._counts = peers_of(handle, address)
        sizes = [v.size for v in call.inputs] + [prod(s.shape) for s in specs]
        self._reached = [n for n, size in enumerate(sizes) if n in reach.remote and size]
        self._issues: dict[Any, _RankIssue] = {}
        self._latest: _Latest | None = None

    @property
    def plan(self) -> LaunchPlan:
        return self._loaded.plan

    def run(self, arrays: Sequence[Any], views: Sequence[ArrayView], scalars: Sequence[Any]) -> None:
        """Launch for these inputs and outputs. Raises `NotSymmetric`, `NoMulticast`."""
        self.again([v.address for v in views], arrays, scalars, lambda addresses: views)

    def again(
        self,
        addresses: Sequence[int],
        arrays: Sequence[Any],
        scalars: Sequence[Any],
        views: Callable[[Sequence[int]], Sequence[ArrayView] | None],
    ) -> bool:
        """`run`, with views that are only made where no earlier call was for these arrays; False where there are none.

        An earlier call was for memory that lies at the same addresses, and is still the same memory: torch may give the
        addresses of an array that is gone to another one, which the peers have elsewhere.
        """
        latest = self._latest
        if latest is not None and latest.addresses == addresses and latest.are(arrays):
            if self._alone:
                latest.made.issue.run(scalars)
            else:
                self._launch(latest.made, scalars)
            return True
        places = [place_of(arrays[n]) for n in self._reached]
        handles: list[Any] = []
        if None in places:  # of a framework that does not tell: where the peers have it
            handles = self._handles(arrays)
            places = [tuple(handle.buffer_ptrs) for handle in handles]
        key = (*addresses, *places)
        found = self._issues.get(key)
        if found is None:
            made = views(addresses)
            if made is None:
                return False
            if len(self._issues) >= _ISSUES:
                self._issues.clear()
            by_number = dict(zip(self._reached, handles or self._handles(arrays), strict=True))
            keep = [held(arrays[n]) for n in self._reached]
            found = self._issues[key] = _RankIssue(self._made(made, by_number, scalars), made, keep)
        self._launch(found, scalars)
        if not handles:
            self._latest = _Latest(addresses, [(n, weakref.ref(arrays[n])) for n in self._reached], found)
        return True

    def _launch(self, found: _RankIssue, scalars: Sequence[Any]) -> None:
        if self._alone:
            found.issue.run(scalars)
        else:
            self._among_others(found, scalars)

    def _among_others(self, found: _RankIssue, scalars: Sequence[Any]) -> None:
        """Launch after outputs are filled, or between two meetings of the ranks' streams."""
        with self.ranks.on_stream(self.stream):
            if self._meets:
                self._handle.barrier(channel=0)  # every rank's stream has reached the launch
            if self._filled:
                views = found.views
                side = DeviceSide(list(views[: self._inputs]), list(views[self._inputs :]), list(scalars))
                with driver.current(self._loaded.device.context):
                    fill(side, self.specs, self.stream)
                if self._meets:
                    self._handle.barrier(channel=0)
            found.issue.run(scalars)
            if self._meets:
                self._handle.barrier(channel=0)  # and has passed it

    def _handles(self, arrays: Sequence[Any]) -> list[Any]:
        return [self._handle_of(n, arrays[n]) for n in self._reached]

    def _handle_of(self, number: int, array: Any) -> Any:
        """Return torch's handle of an array that peers access."""
        what = self._word(number)
        handle = self.ranks.handle(array, self.name, what)
        if handle.world_size != self.ranks.size or handle.rank != self.ranks.rank:
            raise not_symmetric(self.name, f"{what}, whose rendezvous was with another group,")
        for peer, base in enumerate(handle.buffer_ptrs):
            if not base and not self._far:
                why = f"the memory of {what} is not mapped here"
                hosts = "use GPUs that map each other, or name the mesh's axes over hosts: `kd.Mesh(..., hosts=)`"
                hint = ONE_HOST if self._one_host else hosts
                raise Unreachable(rank=self.ranks.rank, peer=peer, why=why, hint=hint)
        return handle

    def _word(self, number: int) -> str:
        return f"argument {number}" if number < self._inputs else f"output {number - self._inputs}"

    def _made(self, views: Sequence[ArrayView], handles: dict[int, Any], scalars: Sequence[Any]) -> Issue:
        rank, size = self.ranks.rank, self.ranks.size
        every: list[tuple[tuple[int, ...], int]] = []
        for number, own in enumerate(views):
            alone = tuple(own.address if r == rank else 0 for r in range(size))
            found = peers_of(handles[number], own.address) if number in handles else (alone, 0)
            if number in handles and self.reach.multicast and not found[1]:
                hint = "NVLink multicast must be on, and torch's allocator must see it"
                raise NoMulticast(kernel=self.name, what=f"{self._word(number)} has no multicast address", hint=hint)
            every.append(found)
        every.append(self._counts)
        written = reports.address_of(rank, self._loaded.device.context)
        texts = [written if r == rank else 0 for r in range(size)]
        peers = PeerAddresses(tuple(a for a, _ in every)).and_then(texts, [joined for _, joined in every])
        return Issue([self._loaded], [list(views)], self._kept, scalars, (rank, peers))


def launches_of(call: Any, loaded: CudaLoaded, specs: Sequence[OutputSpec], reach: Reach) -> RankLaunches:
    """Return the launches of calls like this one.

    At the first such call all ranks meet, which raises `RanksDiffer` or `RanksApart`.
    """
    words = call.words(reach)
    key = (id(call.ranks), loaded.function, call.stream, call.meets, tuple(words))
    found = call.kept.get(key)
    if found is None:
        ranks = call.ranks
        room = loaded.plan.arrays[-1].shape[0]
        number = ranks.slots.get(room, 0)
        said = ("the number of kernels before it", f"{number}, of {room} words")
        ranks.agree(call.name, [*words, said])
        slots = SLOTS if room == ROOM else FEW
        if number // slots >= len(ranks.arenas.get(room, ())):
            with driver.current(loaded.device.context):
                captured = is_capturing(call.stream)
            if captured:  # all ranks would allocate
                raise ArgumentValueError(
                    f"kernel {call.name!r}: its first call on the stream of a capture; call it on that stream before, such as "
                    "in `torch.cuda.graph(graph, stream=stream)`"
                )
        arena, handle = _arena(ranks, number // slots, room, slots, call.arrays)
        ranks.slots[room] = number + 1
        found = call.kept[key] = RankLaunches(call, loaded, specs, reach, number % slots, handle, arena)
    return found


def _arena(ranks: Ranks, number: int, room: int, slots: int, arrays: Sequence[Any]) -> tuple[Any, Any]:
    """Zeroed semaphores for as many kernels as `slots`, and their handle."""
    known = ranks.arenas.setdefault(room, [])
    while len(known) <= number:
        made = ranks.zeros(slots * room, arrays)
        ranks.agree("semaphores", [("their number", str(len(known)))])  # all are zero, before a peer signals
        known.append((made, ranks.handle(made, "semaphores", "their memory")))
    return known[number]

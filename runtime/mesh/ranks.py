"""The ranks of a group, one process each: what they agree on, and where torch mapped their memory for each other.

Bootstrap, exchange and mapping are torch's: its process groups and their stores, and its symmetric memory.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from importlib import import_module
from typing import Any

from kernel_dsl import forking
from kernel_dsl.dtypes import DType
from kernel_dsl.errors_mesh import MeshArgument, MeshMismatch, NotSymmetric, RanksApart, RanksDiffer
from kernel_dsl.mesh import Mesh

from ..arrays.array_view import CPU, frameworks, interop_of, view
from . import nvshmem_arrays

WAIT = 120.0  # seconds that a rank waits for the others to make the same call
GRACE = 0.02, 0.25  # seconds after a failed exchange: after these, ranks that are late are named: one, or several

Words = Sequence[tuple[str, str]]  # (name, text) pairs that must be equal on all ranks

_lock = forking.lock()
_known: dict[int, Ranks] = {}  # by the group's id; each keeps its group
_kept: dict[Any, Any] = {}  # symmetric scratch, by its name, shape, dtype and group


class Ranks:
    """A group of processes, for this process."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.rank: int = group.rank()
        self.size: int = group.size()
        self.name: str = getattr(group, "group_name", "")
        self.calls: int = 0  # that the ranks agreed on
        self.exchanges: int = 0
        self.slots: dict[int, int] = {}  # sets of semaphores that are taken, by their size
        self.arenas: dict[int, list[Any]] = {}
        self._maps: dict[
            bool, bool
        ] = {}  # whether all ranks map each other's memory; of NVSHMEM's arrays, and of others
        self._own: Any = getattr(group, "exchange", None)

    def exchange(self, kernel: str, value: Any) -> list[Any]:
        """Return the values of all ranks. Raises `RanksApart` if a rank does not come."""
        absent: Sequence[int] = ()
        try:
            if self._own is not None:
                return self._own(value)
            self.exchanges += 1
            store, names = self._store(), self._names(f"exchange {self.exchanges}")
            store.set(names[self.rank], b"")
            found: list[Any] = [None] * self.size
            try:
                _torch_distributed().all_gather_object(found, value, group=self.group)
            except Exception:
                absent = self._absent(store, names)
                raise
            if self.exchanges > 2:  # all ranks have gone on from it
                store.delete_key(self._names(f"exchange {self.exchanges - 2}")[self.rank])
            return found
        except Exception as error:
            who = f", and rank {', '.join(map(str, absent))} has not come to it" if absent else ""
            raise self._apart(kernel, f"the exchange with the other ranks failed{who}: {error}") from None

    def _store(self) -> Any:
        return _torch_distributed().distributed_c10d._get_process_group_store(self.group)

    def _names(self, what: str) -> list[str]:
        return [f"kernel_dsl/{self.name}/{what}/{rank}" for rank in range(self.size)]

    def _absent(self, store: Any, names: Sequence[str]) -> list[int]:
        """Return the ranks that do not come to an exchange, as far as the store can still say."""
        late: list[int] = []
        for seconds in GRACE:
            with suppress(Exception):
                store.wait(names, timedelta(seconds=seconds))
            late = self._late(store, names)
            if len(late) < 2:
                break
        return late

    def agree(self, kernel: str, words: Words) -> None:
        """Wait until all ranks have come with the same words. Raises `RanksDiffer`, `RanksApart`."""
        self.calls += 1
        if self._own is not None:
            compare(kernel, self.exchange(kernel, list(words)))
            return
        store, names = self._store(), self._names(str(self.calls))
        try:
            store.set(names[self.rank], pickle.dumps(list(words)))
            store.wait(names, timedelta(seconds=WAIT))
            found = [pickle.loads(store.get(name)) for name in names]
        except Exception as error:
            late = self._late(store, names)
            what = f"rank {', '.join(map(str, late))} has not made it within {WAIT:g} s" if late else str(error)
            raise self._apart(kernel, what) from None
        compare(kernel, found)

    def _late(self, store: Any, names: Sequence[str]) -> list[int]:
        try:
            return [rank for rank, name in enumerate(names) if not store.check([name])]
        except Exception:
            return []

    def _apart(self, kernel: str, what: str) -> RanksApart:
        hint = "make the same calls in the same order on all ranks, and see what the other ranks say"
        return RanksApart(kernel=kernel, rank=self.rank, size=self.size, what=what, hint=hint)

    def handle(self, tensor: Any, op: str, what: str) -> Any:
        """What torch, or NVSHMEM, knows of a symmetric tensor on all ranks. The first time all ranks must ask.

        Raises `NotSymmetric`.
        """
        if nvshmem_arrays.is_nvshmem(tensor):
            return nvshmem_arrays.NvshmemHandle(tensor, self.rank, self.size, op)
        try:
            found = _symmetric_memory().rendezvous(tensor, self.name)
        except Exception as error:
            raise not_symmetric(op, f"{what}: {error}") from None
        if found is None:
            raise not_symmetric(op, what)
        return found

    def empty(self, shape: tuple[int, ...], dtype: Any, device: Any) -> Any:
        """Allocate a tensor in torch's symmetric memory; all ranks must do so at the same time."""
        made = _symmetric_memory().empty(*shape, dtype=dtype, device=device)
        self.handle(made, "symmetric memory", "a tensor of torch.distributed._symmetric_memory.empty")
        return made

    def zeros(self, count: int, arrays: Sequence[Any]) -> Any:
        """Int32 zeros in symmetric memory on the GPU of `arrays`, or the current one; they are there when this returns."""
        if any(map(nvshmem_arrays.is_nvshmem, arrays)):
            return nvshmem_arrays.zeros(count, [x for x in arrays if nvshmem_arrays.is_nvshmem(x)])
        torch: Any = sys.modules["torch"]

        device: Any = arrays[0].device if arrays else torch.device("cuda", torch.cuda.current_device())
        made = self.empty((count,), torch.int32, device)
        made.zero_()
        torch.cuda.current_stream(device).synchronize()
        return made

    def maps_all(self, arrays: Sequence[Any]) -> bool:
        """Whether memory like that of `arrays` is mapped between all ranks. The first time all ranks must ask."""
        kind = any(map(nvshmem_arrays.is_nvshmem, arrays))
        if kind not in self._maps:
            made = self.zeros(4, arrays)
            self._maps[kind] = all(self.handle(made, "symmetric memory", "memory to try").buffer_ptrs)
        return self._maps[kind]

    def on_stream(self, stream: int) -> AbstractContextManager[Any]:
        """Make the stream with this handle torch's current stream."""
        torch: Any = sys.modules["torch"]

        if int(torch.cuda.current_stream().cuda_stream) == stream:
            return nullcontext()
        return torch.cuda.stream(torch.cuda.ExternalStream(stream))


def is_symmetric(tensor: Any) -> bool:
    """Whether torch's symmetric memory, or NVSHMEM's, has a tensor, as far as it can say."""
    if nvshmem_arrays.is_nvshmem(tensor):
        return True
    module = _symmetric_memory()
    ask = getattr(module, "is_symm_mem_tensor", None)
    return hasattr(tensor, "data_ptr") and (ask is None or bool(ask(tensor)))


def place_of(tensor: Any) -> int | None:
    """What is a tensor's memory and no other's as long as something `held` it; None where its framework does not tell."""
    try:
        return tensor.untyped_storage()._cdata
    except AttributeError:
        return None


def held(tensor: Any) -> Any:
    """What lets `place_of` tell a tensor's memory from later memory at the same address; the memory itself may go."""
    if place_of(tensor) is None:
        return None
    return import_module("torch.multiprocessing.reductions").StorageWeakRef(tensor.untyped_storage())


def not_symmetric(op: str, what: str) -> NotSymmetric:
    hint = "make it by torch.distributed._symmetric_memory.empty on all ranks, and call rendezvous(tensor, group)"
    return NotSymmetric(op=op, what=what, hint=hint)


def peers_of(handle: Any, address: int) -> tuple[tuple[int, ...], int]:
    """Return (the addresses on all ranks of the memory at `address` here, its multicast address or 0)."""
    bases = handle.buffer_ptrs
    offset = address - bases[handle.rank]
    joined = int(getattr(handle, "multicast_ptr", 0) or 0)
    return tuple(base + offset if base else 0 for base in bases), joined + offset if joined else 0


def ranks_of(mesh: Mesh, kernel: str) -> Ranks:
    """Return the ranks of a mesh: those of its group, or of torch's world. Raises `MeshMismatch`."""
    group = mesh.group
    if group is None:
        group = _torch_distributed().group.WORLD
    if not hasattr(group, "exchange") and "torch.distributed" not in sys.modules:
        hint = "a process group of torch, or an object with rank(), size() and exchange(value)"
        raise MeshArgument(what=f"the group {group!r} has no exchange(value)", hint=hint)
    with _lock:
        found = _known.get(id(group))
        if found is None:
            found = _known[id(group)] = Ranks(group)
    if not 0 <= found.rank < found.size:
        what = f"the process group says that this is rank {found.rank} of {found.size}"
        raise MeshMismatch(kernel=kernel, mesh=mesh, what=what, hint="use a group that this process belongs to")
    if found.size != mesh.size:
        what = f"the process group has {found.size} ranks"
        raise MeshMismatch(
            kernel=kernel, mesh=mesh, what=what, hint="make the mesh for as many: `kd.Mesh(..., group=)`"
        )
    return found


def compare(kernel: str, found: Sequence[Words]) -> None:
    """Raise `RanksDiffer` for the first word that differs between ranks."""
    for rank, words in enumerate(found):
        for (name, mine), (_, other) in zip(found[0], words, strict=False):
            if mine != other:
                hint = "all ranks make the same call, with arrays of one shape, dtype and layout"
                what = f"rank 0 has {mine}, rank {rank} {other}"
                raise RanksDiffer(argument=name, kernel=kernel, what=what, hint=hint)
        if len(words) != len(found[0]):
            what = f"rank 0 passes {len(found[0])} arguments, rank {rank} {len(words)}"
            raise RanksDiffer(argument="the call", kernel=kernel, what=what, hint="make the same call on all ranks")


def made_symmetric(beside: Any, shape: tuple[int, ...], dtype: DType, mesh: Mesh, kept: str) -> Any:
    """Return an array beside one of this rank's: in symmetric memory on a GPU.

    `kept`: the name of an array that is kept.
    """
    interop, place = interop_of(beside), view(beside).device
    if place[0] != "cuda":
        return interop.empty(shape, dtype, place, 0)
    ranks = ranks_of(mesh, "symmetric memory")
    key = (kept, shape, dtype, id(ranks), place)
    if kept and key in _kept:
        return _kept[key]
    from ..arrays.interop.torch import torch_dtype

    made = ranks.empty(shape, torch_dtype(dtype), beside.device)
    if kept:
        _kept[key] = made
    return made


def empty_of_rank(shape: tuple[int, ...], dtype: DType, mesh: Mesh, interpret: Any) -> Any:
    """Return this rank's tensor: symmetric on its current GPU, or on the CPU.

    For a group that is not torch's, return a NumPy array.
    """
    ranks = ranks_of(mesh, "symmetric.empty")
    if not ranks.name:
        return frameworks("numpy").empty(shape, dtype, CPU, 0)
    torch: Any = sys.modules["torch"]
    interop = frameworks("torch")
    if interpret not in (None, False) or not torch.cuda.is_available():
        return interop.empty(shape, dtype, CPU, 0)
    from ..arrays.interop.torch import torch_dtype

    return ranks.empty(shape, torch_dtype(dtype), torch.device("cuda", torch.cuda.current_device()))


def _torch_distributed() -> Any:
    return sys.modules["torch.distributed"]


def _symmetric_memory() -> Any:
    return import_module("torch.distributed._symmetric_memory")


forking.in_child(_known.clear)

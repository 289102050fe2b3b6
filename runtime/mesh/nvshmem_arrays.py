"""Arrays of nvshmem4py as symmetric arrays: `nvshmem.core.tensor` and `nvshmem.core.array` made them on all ranks.

The package is asked by what it documents, and only where the program imported it. Bootstrap, allocation and mapping are its own.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from kernel_dsl.errors_mesh import NotSymmetric

from ..arrays.array_view import interop_of, view


def core() -> Any:
    """The package, where the program uses it; else None."""
    return sys.modules.get("nvshmem.core")


def _getter(array: Any) -> Any:
    """What gives a peer's part of such an array."""
    module = core()
    return None if module is None else module.get_peer_tensor if hasattr(array, "data_ptr") else module.get_peer_array


def address_of(array: Any) -> int:
    """Where an array of torch or CuPy begins."""
    return array.data_ptr() if hasattr(array, "data_ptr") else array.data.ptr


def is_nvshmem(array: Any) -> bool:
    """Whether nvshmem4py made an array."""
    get = _getter(array)
    if get is None:
        return False
    try:
        return get(array, core().my_pe()) is not None
    except Exception:  # it knows no such array
        return False


class NvshmemHandle:
    """Where an array lies on all ranks, as torch's handles say it: 0 where a peer's part is not mapped."""

    multicast_ptr = 0

    def __init__(self, array: Any, rank: int, size: int, op: str) -> None:
        module, get = core(), _getter(array)
        pe, count = module.my_pe(), module.n_pes()
        if (pe, count) != (rank, size):
            hint = "make the mesh for all processes of NVSHMEM, with the same numbers"
            what = f"an array of NVSHMEM, where this is process {pe} of {count} and rank {rank} of {size},"
            raise NotSymmetric(op=op, what=what, hint=hint)
        self.rank: int = rank
        self.world_size: int = size
        self._stream = _Stream(array)
        self.buffer_ptrs: list[int] = [
            address_of(array) if peer == rank else _mapped(get, array, peer) for peer in range(size)
        ]

    def barrier(self, channel: int = 0) -> None:
        """All ranks' streams come to this."""
        module = core()
        module.barrier(module.Teams.TEAM_WORLD, stream=self._stream)


def _mapped(get: Any, array: Any, peer: int) -> int:
    try:
        found = get(array, peer)
    except Exception:  # its memory has no address here
        return 0
    return 0 if found is None else address_of(found)


class _Stream:
    """The current stream of an array's framework on its GPU, in the form that the package takes."""

    def __init__(self, array: Any) -> None:
        self._interop = interop_of(array)
        self._index = view(array).device[1]

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._interop.current_stream(self._index)


def zeros(count: int, arrays: Sequence[Any]) -> Any:
    """Int32 zeros beside arrays of nvshmem4py, on all ranks; they are there when this returns."""
    module = core()
    if hasattr(arrays[0], "data_ptr"):
        torch: Any = sys.modules["torch"]
        made = module.tensor((count,), torch.int32)
        made.zero_()
        torch.cuda.current_stream(made.device).synchronize()
        return made
    made = module.array((count,), "int32")
    made.fill(0)
    sys.modules["cupy"].cuda.get_current_stream().synchronize()
    return made

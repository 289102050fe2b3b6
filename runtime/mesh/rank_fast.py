"""The fast path of calls with one process a GPU: arguments like those of an earlier call of this rank.

Everything else, and everything that could be an error, is MISS. No rank asks another one here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernel_dsl.mesh import Reach
from kernel_dsl.symmetric import OfRank

from ..arrays.array_view import ArrayView
from ..devices.streams import stream_handle
from ..plan import recording
from ..plan.dispatch import forgets_in_child
from ..plan.unroll import MISS
from .rank_calls import RankCall
from .rank_cuda import RankLaunches

_KINDS = 16  # of calls that a kernel keeps
_SCALARS = (bool, int, float)


class RankCalls:
    """The fast calls of one kernel."""

    miss = MISS
    recording = recording

    def __init__(self) -> None:
        self.likes: dict[Any, _LikeOfRank] = {}
        forgets_in_child(self)

    def forget(self) -> None:
        """Send the next calls the full way."""
        self.likes.clear()

    def __call__(self, args: Sequence[Any], out: Any, stream: Any) -> Any:
        """The call's result, or MISS: nothing was done then."""
        found = _facts(args, out)
        if found is None:
            return MISS
        like = self.likes.get(found.key)
        return MISS if like is None else like(found, out, stream)

    def learn(self, args: Sequence[Any], out: Any, call: RankCall, launches: RankLaunches, reach: Reach) -> None:
        """Remember a call that was made. Does nothing where there is no fast path."""
        found = _facts(args, out)
        if found is None or call.overlaps or not all(v.contiguous for v in (*call.inputs, *(v for (v,) in call.outs))):
            return
        made = any(len(call.inputs) + n in reach.remote for n in range(len(launches.specs)))
        if out is None and made:
            return  # all ranks make symmetric memory together, which takes far longer than a call
        if len(self.likes) >= _KINDS:
            self.likes.clear()
        self.likes[found.key] = _LikeOfRank(call, launches)


@dataclass
class _Facts:
    """A call's arrays, their addresses, its scalars, and what the calls like it have in common."""

    arrays: list[Any]
    addresses: list[int]
    scalars: list[Any]
    key: tuple[Any, ...]
    wrapped: bool


def _facts(args: Sequence[Any], out: Any) -> _Facts | None:
    outs: Sequence[Any] = () if out is None else out if type(out) in (tuple, list) else (out,)
    found = _Facts([], [], [], (), False)
    key: list[Any] = [len(args), out is None, type(out) in (tuple, list)]
    for number, x in enumerate((*args, *outs)):
        if type(x) is OfRank:
            found.wrapped, x = True, x[0]
        if number < len(args) and isinstance(x, _SCALARS):
            found.scalars.append(x)
            key.append(type(x))
            continue
        try:
            if hasattr(x, "data_ptr"):  # torch's
                if x.requires_grad:
                    return None
                address, strides, place = x.data_ptr(), x.stride(), x.device
            else:  # CuPy's
                address, strides, place = x.data.ptr, x.strides, x.device.id
        except AttributeError:
            return None
        found.arrays.append(x)
        found.addresses.append(address)
        key += (x.shape, strides, x.dtype, place, address % 16)
    found.key = (*key, found.wrapped)
    return found


class _LikeOfRank:
    """One kind of call. It holds no array."""

    def __init__(self, call: RankCall, launches: RankLaunches) -> None:
        self._launches = launches
        self._interop = call.interop
        self._inputs = len(call.inputs)
        self._single = len(launches.specs) == 1
        self._shapes = [
            (v.shape, v.strides, v.dtype, v.device, v.framework) for v in (*call.inputs, *(v for (v,) in call.outs))
        ]
        self._sizes = [v.nbytes for v in (*call.inputs, *(v for (v,) in call.outs))]
        self._makers = (
            [(spec.shape, spec.dtype, call.inputs[0].device) for spec in launches.specs] if call.inputs else []
        )
        self._pairs = [(o, i) for o in range(self._inputs, len(self._sizes)) for i in range(o)]
        self._index: int = call.device.index
        self._mesh = call.mesh

    def __call__(self, found: _Facts, out: Any, stream: Any) -> Any:
        launches = self._launches
        now = self._interop.current_stream(self._index) if stream is None else stream_handle(stream)
        if now != launches.stream or (out is None and (stream is not None or not self._makers)):
            return MISS
        arrays, addresses = found.arrays, found.addresses
        if out is None:
            made = [self._interop.empty(*maker, now) for maker in self._makers]
            arrays = [*arrays, *made]
            addresses = [*addresses, *(a.data_ptr() if hasattr(a, "data_ptr") else a.data.ptr for a in made)]
        else:
            for o, i in self._pairs:
                if addresses[o] < addresses[i] + self._sizes[i] and addresses[i] < addresses[o] + self._sizes[o]:
                    return MISS

        def views() -> list[ArrayView]:
            return [ArrayView(a, *shape) for a, shape in zip(addresses, self._shapes, strict=True)]

        launches.again(addresses, arrays, found.scalars, views)
        if out is not None:
            return out
        results = [OfRank([a], self._mesh) if found.wrapped else a for a in arrays[self._inputs :]]
        return results[0] if self._single else tuple(results)

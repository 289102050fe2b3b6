"""The fast path of calls with one process a GPU: arguments like those of an earlier call of this rank.

Everything else, and everything that could be an error, is MISS. No rank asks another one here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kernel_dsl.symmetric import OfRank

from ..arrays.array_view import ArrayView
from ..devices.streams import stream_handle
from ..plan.fast_plan import FRAMEWORKS
from ..plan.signature import SlowPathError, likeness, scan
from ..plan.unroll import MISS
from .calls import overlaps_of, problem_of, shares
from .rank_calls import RankCall
from .rank_cuda import RankLaunches
from .recent import RecentCalls

_SCALARS = (bool, int, float)

Structure = Callable[[list[Any]], Any]


class RankCalls(RecentCalls["_LikeOfRank"]):
    """The fast calls of one kernel."""

    def learn(
        self, args: Sequence[Any], out: Any, call: RankCall, launches: RankLaunches, remote: set[int], finish: Structure
    ) -> None:
        """Remember a call that was made. `remote`: arrays that peers reach. Does nothing where there is no fast path."""
        made = any(len(call.inputs) + n in remote for n in range(len(launches.specs)))
        if out is None and (made or not call.inputs):
            return  # all ranks make symmetric memory together, which takes far longer than a call
        rows = [n for n, x in enumerate(args) if hasattr(x, "dtype")]
        given = [*(args[n] for n in rows), *(() if out is None else out if type(out) in (list, tuple) else (out,))]
        wrapped = {type(x) is OfRank for x in given}
        arrays = [x[0] if type(x) is OfRank else x for x in given]
        views = [*call.inputs, *(v for row in (call.outs if out is not None else ()) for v in row)]
        known = all(v.framework in FRAMEWORKS and v.device == ("cuda", call.device.index) for v in views)
        plain = all(type(x) in _SCALARS for n, x in enumerate(args) if n not in rows)
        if len(wrapped) != 1 or len(views) != len(arrays) or not known or not plain:
            return
        try:
            signature = scan(arrays, [])
        except (SlowPathError, RuntimeError):
            return
        self.remember(_LikeOfRank(args, out, rows, wrapped.pop(), arrays, signature, call, launches, finish))


class _LikeOfRank:
    """One kind of call. It holds no array."""

    def __init__(
        self,
        args: Sequence[Any],
        out: Any,
        rows: list[int],
        wrapped: bool,
        arrays: Sequence[Any],
        signature: list[Any],
        call: RankCall,
        launches: RankLaunches,
        finish: Structure,
    ) -> None:
        self._launches, self._finish, self._wrapped = launches, finish, wrapped
        self._count, self._rows = len(args), rows
        self._scalars = [(n, type(x)) for n, x in enumerate(args) if n not in rows]
        self._given, self._single = out is not None, type(out) not in (list, tuple)
        self._outs = len(launches.specs)
        self._plain = self._given and self._single and not wrapped and finish([[out]]) is out
        self._signature, self._alike = signature, likeness(arrays)
        self._name, self._plan, self._overlaps = call.name, launches.plan, call.overlaps
        outs = [v for (v,) in call.outs]
        self._shapes = [(v.shape, v.strides, v.dtype, v.device, v.framework) for v in (*call.inputs, *outs)]
        self._interop = call.interop
        self._index: int = call.device.index
        self._makers = [] if self._given else [(s.shape, s.dtype, call.inputs[0].device) for s in launches.specs]
        self._allocators = [call.interop.allocator(*maker) for maker in self._makers]

    def __call__(self, args: Sequence[Any], out: Any, stream: Any) -> Any:
        if len(args) != self._count or (out is not None) is not self._given:
            return MISS
        given: list[Any] = [args[n] for n in self._rows]
        if self._given:
            if self._single:
                given.append(out)
            elif type(out) not in (list, tuple) or len(out) != self._outs:
                return MISS
            else:
                given += out
        if self._wrapped:
            if any(type(x) is not OfRank for x in given):
                return MISS
            given = [x[0] for x in given]
        scalars: list[Any] = []
        for n, kind in self._scalars:
            if type(args[n]) is not kind:
                return MISS
            scalars.append(args[n])
        try:
            if self._alike is not None and self._alike(*given):
                addresses: list[int] = [a.data_ptr() for a in given]
            else:
                addresses = []
                if scan(given, addresses) != self._signature:
                    return MISS
        except (SlowPathError, RuntimeError):
            return MISS
        now = self._interop.current_stream(self._index) if stream is None else stream_handle(stream)
        if now != self._launches.stream or (stream is not None and not self._given):
            return MISS
        if self._plain:
            return out if self._launches.again(addresses, given, scalars, self._views) else MISS
        return self._launch(given, addresses, scalars)

    @property
    def repeats(self) -> bool:
        """Whether `again` can take calls: of tensors alone, whose result is the one array given as `out=`."""
        return self._plain and self._alike is not None and not self._scalars and len(self._rows) == self._count

    def again(self, given: list[Any]) -> bool:
        """Launch for inputs and the output; False where they are others, or on another stream: nothing was done then."""
        launches, alike = self._launches, self._alike
        if alike is None or not alike(*given) or self._interop.current_stream(self._index) != launches.stream:
            return False
        return launches.again([a.data_ptr() for a in given], given, (), self._views)

    def _launch(self, arrays: list[Any], addresses: list[int], scalars: list[Any]) -> Any:
        for allocate in self._allocators:
            made = allocate()
            arrays.append(made)
            addresses.append(made.data_ptr() if hasattr(made, "data_ptr") else made.data.ptr)
        if not self._launches.again(addresses, arrays, scalars, self._views):
            return MISS
        return self._finish([[a] for a in arrays[-self._outs :]])

    def _views(self, addresses: Sequence[int]) -> list[ArrayView] | None:
        """The arrays at addresses that are new, checked as in the full call; None where that has an error for them."""
        views = [ArrayView(a, *shape) for a, shape in zip(addresses, self._shapes, strict=True)]
        rows = [[v] for v in views]
        inputs, outs = rows[: len(self._rows)], rows[len(self._rows) :]
        if overlaps_of(self._name, inputs, outs) != self._overlaps or shares(inputs, outs, self._overlaps):
            return None
        return views if problem_of(self._name, self._plan, rows) is None else None

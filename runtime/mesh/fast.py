"""The fast path of calls on a mesh: arguments like those of an earlier call, on GPUs.

A call checks its arrays in one step if their framework allows it, reads their addresses and the current streams, and
finds the earlier launches by these. All other calls, and all possible errors, are MISS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kernel_dsl.compiled import OutputSpec
from kernel_dsl.symmetric import Symmetric

from ..arrays.array_view import ArrayView, frameworks
from ..devices.cuda_device import CudaLoaded
from ..devices.streams import stream_handle
from ..errors import RunError
from ..plan.fast_plan import FRAMEWORKS
from ..plan.signature import SlowPathError, likeness, scan
from ..plan.unroll import MISS
from . import cuda
from .calls import MeshCall, overlaps_of, problem_of, shares
from .interpreter import DeviceSide, fill
from .recent import RecentCalls

_ISSUES = 256
_LISTS = (list, tuple, Symmetric)

Structure = Callable[[list[Any]], Any]


class MeshCalls(RecentCalls["_Like"]):
    """The fast calls of one kernel on a mesh."""

    def learn(
        self,
        args: Sequence[Any],
        out: Any,
        call: MeshCall,
        loaded: Sequence[Any],
        specs: Sequence[OutputSpec],
        structure: Structure,
    ) -> None:
        """Remember a call. Does nothing if there is no fast path."""
        if not isinstance(loaded[0], CudaLoaded) or loaded[0].plan.launch is None:
            return
        made = _learned(args, out, call, loaded, specs, structure)
        if made is not None:
            self.remember(made)


def _is_row(x: Any) -> bool:
    return type(x) in _LISTS and bool(x) and not any(type(a) in _LISTS or not hasattr(a, "dtype") for a in x)


def _learned(
    args: Sequence[Any],
    out: Any,
    call: MeshCall,
    loaded: Sequence[Any],
    specs: Sequence[OutputSpec],
    structure: Structure,
) -> _Like | None:
    """Return the fast path of calls like this one; None for nested arrays, for host memory, or for another framework."""
    outs: list[Any] = (
        [] if out is None else [out] if _is_row(out) else list(out) if type(out) in (list, tuple) else [None]
    )
    rows = [n for n, x in enumerate(args) if _is_row(x)]
    scalars = [(n, type(x)) for n, x in enumerate(args) if n not in rows]
    if not all(map(_is_row, outs)) or any(kind in _LISTS or kind is dict for _, kind in scalars):
        return None
    arrays = [a for x in (*(args[n] for n in rows), *outs) for a in x]
    views = [v for row in (*call.inputs, *(call.outs if out is not None else ())) for v in row]
    if not views or len(views) != len(arrays) or any(v.framework not in FRAMEWORKS for v in views):
        return None
    if any(v.device != ("cuda", d.index) for row in call.inputs for v, d in zip(row, call.devices, strict=True)):
        return None
    try:
        signature = scan(arrays, [])
    except (SlowPathError, RuntimeError):
        return None
    return _Like(rows, scalars, out, len(outs), arrays, signature, call, loaded, specs, structure)


class _Like:
    """One signature. It holds no array."""

    def __init__(
        self,
        rows: list[int],
        scalars: list[tuple[int, type]],
        out: Any,
        outs: int,
        arrays: Sequence[Any],
        signature: list[Any],
        call: MeshCall,
        loaded: Sequence[CudaLoaded],
        specs: Sequence[OutputSpec],
        structure: Structure,
    ) -> None:
        self._count = len(rows) + len(scalars)
        self._rows, self._scalars, self._outs = rows, scalars, outs
        self._given = out is not None
        self._single = _is_row(out)
        self._signature = signature
        self._alike = likeness(arrays)
        self._torch = call.inputs[0][0].framework == "torch" if call.inputs else False
        self._mesh, self._size, self._name = call.mesh, call.mesh.size, call.name
        self._loaded, self._specs, self._structure = list(loaded), list(specs), structure
        self._kept, self._meets = call.kept, call.meets
        self._overlaps = call.overlaps
        self._filled = any(s.fill is not None or s.alias is not None for s in specs)
        self._interop = frameworks(call.inputs[0][0].framework if call.inputs else call.outs[0][0].framework)
        self._current = self._interop.current_stream
        self._devices: list[int] = [one.device.index for one in loaded]
        shapes = [
            (v.shape, v.strides, v.dtype, v.device, v.framework) for row in (*call.inputs, *call.outs) for v in row
        ]
        self._shapes: list[Any] = shapes
        self._makers = [
            [(spec.shape, spec.dtype, ("cuda", device)) for device in self._devices]
            for spec in specs
            if not self._given
        ]
        self._allocators = [[self._interop.allocator(*made) for made in row] for row in self._makers]
        self._issues: dict[Any, tuple[cuda.Issue, list[DeviceSide]]] = {}

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
        arrays: list[Any] = []
        for row in given:
            kind: Any = type(row)
            if kind is Symmetric:
                if row.mesh is not self._mesh and row.mesh is not None and row.mesh != self._mesh:
                    return MISS
            elif kind is not list and kind is not tuple:
                return MISS
            if len(row) != self._size:
                return MISS
            arrays += row
        for n, kind in self._scalars:
            if type(args[n]) is not kind:
                return MISS
        addresses = self._addresses(arrays)
        if addresses is None:
            return MISS
        if stream is None:
            current = self._current
            streams = [current(device) for device in self._devices]
        elif type(stream) in (list, tuple) and len(stream) == self._size:
            streams = [stream_handle(s) for s in stream]
        else:
            return MISS
        return self._issue(args, given, addresses, streams, stream is None)

    def _addresses(self, arrays: list[Any]) -> list[int] | None:
        """Return the arrays' addresses, if the arrays are like the learned ones."""
        try:
            if self._alike is not None and self._alike(*arrays):
                return [a.data_ptr() for a in arrays]
            addresses: list[int] = []
            return addresses if scan(arrays, addresses) == self._signature else None
        except (SlowPathError, RuntimeError):
            return None

    def _issue(self, args: Sequence[Any], given: list[Any], addresses: list[int], streams: list[int], own: bool) -> Any:
        results = given[len(self._rows) :]
        if not self._given:
            for makers, allocators in zip(self._makers, self._allocators, strict=True):
                if own:
                    row = [allocate() for allocate in allocators]
                else:
                    row = [self._interop.empty(*made, s) for made, s in zip(makers, streams, strict=True)]
                addresses += [a.data_ptr() for a in row] if self._torch else [a.data.ptr for a in row]
                results.append(row)
        key = (*addresses, *streams)
        found = self._issues.get(key)
        scalars = [args[n] for n, _ in self._scalars]
        if found is None:
            found = self._prepare(addresses, streams, scalars)
            if found is None:
                return MISS
            if len(self._issues) >= _ISSUES:
                self._issues.clear()
            self._issues[key] = found
        issue, sides = found
        if self._filled:
            for one, side, stream in zip(self._loaded, sides, streams, strict=True):
                with cuda.driver.current(one.device.context):
                    side.scalars = scalars
                    fill(side, self._specs, stream)
        issue.run(scalars)
        return self._structure(results)

    def _prepare(
        self, addresses: list[int], streams: list[int], scalars: list[Any]
    ) -> tuple[cuda.Issue, list[DeviceSide]] | None:
        """Return the launches for arrays at other addresses, checked as on the slow path; None if a check fails."""
        size, count = self._size, len(self._rows)
        views = [ArrayView(a, *shape) for a, shape in zip(addresses, self._shapes, strict=True)]
        rows = [views[i : i + size] for i in range(0, len(views), size)]
        inputs, outs = rows[:count], rows[count:]
        try:
            if overlaps_of(self._name, inputs, outs) != self._overlaps or shares(inputs, outs, self._overlaps):
                return None
            if problem_of(self._name, self._loaded[0].plan, rows) is not None:
                return None
            kept = cuda.kept_for(self._loaded, streams, self._kept, self._meets)
            sides = [DeviceSide([v[r] for v in inputs], [v[r] for v in outs], scalars) for r in range(size)]
            return cuda.issue_for(self._loaded, sides, kept), sides
        except (RunError, ValueError, TypeError):
            return None

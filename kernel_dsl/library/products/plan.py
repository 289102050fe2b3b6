"""The launches of a product: its kernels, what they get, and their order."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from kernel_dsl.stages import target_named

from ..first_sizes import is_closed
from ..latest import UNSEEN, Launch, launching, seen_call, seen_launching
from ..product_routes.packings import Packings
from ..product_routes.routes import Route, route
from ..product_routes.tuned_matmul import tuned_route
from .arguments import Request
from .int4 import PackedInt4
from .matmul_config import MatmulConfig
from .operands import (
    check_apart,
    turned,
)
from .sparse import SparseMatrix

_log = logging.getLogger("kernel_dsl")


@dataclass(frozen=True)
class MatmulPlan:
    """The kernels of a product, and the form of their arrays.

    `turns`: whether the last two axes of a and of b are exchanged. `flipped`: the transposed product is computed.
    `packings`: the packings of the kernels' left and right sides, for `pack`. `combine`, if any, makes the result from
    the sums of `kernel`; `apart`: each right side of a gated product has its own launch. `folded`: the result's shape,
    if a's batch axes became rows. `peaks`: the result is a pair. `own`: for each right side, the operands of steps that
    `kernel` takes before all others. `simple`: there is one right side, and kernels take the matrices directly, except
    for `turns` and `pack`. `extra`: whether steps have operands. `packed`: b is a `PackedInt4` or `PackedMxfp4`. `turned`: the
    operands of steps whose last axes are exchanged. `scaling`: operands are multiplied by `own` when they are packed.
    """

    kernel: Any
    turns: tuple[bool, bool]
    flipped: bool = False
    pack: Any = None
    packings: Packings = (None, None)
    combine: Any = None
    apart: bool = False
    folded: tuple[int, ...] = ()
    peaks: bool = False
    own: tuple[tuple[int, ...], ...] = ((),)
    simple: bool = False
    extra: bool = True
    packed: bool = False
    turned: tuple[int, ...] = ()
    scaling: bool = False

    def scales(self, extra: list[Any]) -> tuple[list[list[Any]], list[Any]]:
        """(for each right side the operands that `kernel` takes, all other operands of steps)."""
        moved = {i for places in self.own for i in places}
        return [[extra[i] for i in places] for places in self.own], [x for i, x in enumerate(extra) if i not in moved]

    def sides(self, a: Any, rights: list[Any]) -> list[Any]:
        """(the left side, the right sides), with axes in the order of memory."""
        packed = isinstance(rights[0], PackedInt4)
        if self.folded:
            a = a.reshape(-1, a.shape[-1])
            rights = rights if packed else [b[(0,) * (len(b.shape) - 2)] for b in rights]
        left = a.values if isinstance(a, SparseMatrix) else turned(a) if self.turns[0] else a
        rights = [b.data for b in rights] if packed else [turned(b) for b in rights] if self.turns[1] else rights
        return [*rights, left] if self.flipped else [left, *rights]

    def run(self, a: Any, rights: list[Any], extra: list[Any], out: Any, stream: Any, interpret: Any) -> Any:
        """Launch the kernels."""
        return self._launch(a, rights, extra, out, launching(stream, interpret))

    def seen(self, inputs: list[Any], out: Any, stream: Any) -> Any:
        """The result for a, b and options like an earlier call's on a GPU; `UNSEEN` or `Unseen` for others."""
        a, b, o = inputs
        if self.folded and a.shape[:-1] != self.folded[:-1]:
            return UNSEEN
        rights = [b] if o.gated is None else o.rights(b)
        if out is not None:
            for right in rights:
                check_apart(out[0] if o.absmax else out, {"a": a, "b": right}, "matmul")
        extra = o.extra() if self.extra else []
        if not self.simple:
            return self._launch(a, rights, extra, out, seen_launching(stream))
        extra = self._lying(extra) if self.turned else extra
        left = turned(a) if self.turns[0] else a
        right, *mine = b.arrays if self.packed else (turned(b) if self.turns[1] else b,)
        sides: Any = (right, left) if self.flipped else (left, right)
        if self.pack is not None:
            sides = self._copied(sides, stream)
            if sides is UNSEEN:
                return UNSEEN
        into = turned(out) if self.flipped and out is not None else out
        if self.combine is None:
            made = seen_call(self.kernel, (*sides, *mine, *extra), into, stream)
        else:
            sums = seen_call(self.kernel, (*sides, *mine), None, stream)
            made = UNSEEN if sums is UNSEEN else seen_call(self.combine, (sums, *extra), into, stream)
        return made if out is None or made is UNSEEN else out

    def _copied(self, sides: tuple[Any, Any], stream: Any) -> Any:
        """Both sides, packed if necessary; `UNSEEN` if the packing has no fast path."""
        first, second = self.packings
        made = seen_call(self.pack, sides if first and second else sides[:1] if first else sides[1:], None, stream)
        if made is UNSEEN or (first and second):
            return made
        return (made, sides[1]) if first else (sides[0], made)

    def _launch(self, a: Any, rights: list[Any], extra: list[Any], out: Any, launch: Launch) -> Any:
        sides = self.sides(a, rights)
        if self.folded:
            extra = [x.reshape(-1, x.shape[-1]) if len(getattr(x, "shape", ())) > 2 else x for x in extra]
        extra = self._lying(extra) if self.turned else extra
        into = self._into(out)
        own, extra = self.scales(extra)
        if self.pack is not None:
            sides = self._packed(sides, own, launch)
        own = self._with_packs(own, a, rights)
        if self.combine is None:
            result = launch(self.kernel, (*sides, *own[0], *extra), into)
        elif self.apart:
            sums = [launch(self.kernel, (sides[0], b, *scales)) for b, scales in zip(sides[1:], own, strict=True)]
            result = launch(self.combine, (*sums, *extra), into)
        else:
            result = launch(self.combine, (launch(self.kernel, (*sides, *own[0])), *extra), into)
        if out is not None:
            return out
        if not self.folded:
            return result
        if isinstance(result, tuple):  # the greatest magnitude has no axes; other results have all axes
            return tuple(x.reshape(self.folded) if x.shape else x for x in result)
        return result.reshape(self.folded)

    def _lying(self, extra: list[Any]) -> list[Any]:
        """The operands of steps in the form that kernels take."""
        return [turned(x) if i in self.turned else x for i, x in enumerate(extra)]

    def _with_packs(self, own: list[list[Any]], a: Any, rights: list[Any]) -> list[list[Any]]:
        """The kernel's operands for each right side, with scales and zeros of 4-bit numbers, or a's metadata."""
        own = [[] for _ in own] if self.scaling else own
        if isinstance(a, SparseMatrix):
            return [[a.meta, *mine] for mine in own]
        if isinstance(rights[0], PackedInt4):
            return [[*b.arrays[1:], *mine] for b, mine in zip(rights, own, strict=True)]
        return own

    def _packed(self, sides: list[Any], own: list[list[Any]], launch: Launch) -> list[Any]:
        """The operands. One launch packs those that need it. `own`: for each right side the scales by blocks of K."""
        packings = [self.packings[0], *[self.packings[1]] * (len(sides) - 1)]
        wanted = [x for x, packing in zip(sides, packings, strict=True) if packing is not None]
        left, right = (p is not None and bool(p.scaled) for p in self.packings)
        scales = [*([own[0][0]] if left else []), *([mine[-1] for mine in own] if right else [])]
        made = launch(self.pack, [*wanted, *scales])
        rest = iter(made if len(wanted) > 1 else (made,))
        return [x if p is None else next(rest) for x, p in zip(sides, packings, strict=True)]

    def _into(self, out: Any) -> Any:
        """The `out=` of the last kernel."""
        if out is None or not (self.folded or self.flipped):
            return out
        result = out[0] if self.peaks else out
        result = result.reshape(-1, result.shape[-1]) if self.folded else turned(result)
        return (result, out[1]) if self.peaks else result

    def lower(self, a: Any, rights: list[Any], extra: list[Any], target: str | None) -> Any:
        """The stages of the kernel that multiplies."""
        sides = self.sides(a, rights[:1] if self.apart else rights)
        packings = [self.packings[0], *[self.packings[1]] * (len(sides) - 1)]
        sides = [x if p is None else p.of(x).out for x, p in zip(sides, packings, strict=True)]
        own, extra = self.scales(self._lying(extra))
        own = self._with_packs(own, a, rights)
        return self.kernel.lower(*sides, *own[0], *(() if self.combine is not None else extra), target=target)


def plan_of(r: Request, config: MatmulConfig | None, target: str | None) -> MatmulPlan:
    """The kernels of a request."""
    machine = target_named(target)
    found = tuned_route(r, machine) if config is None and target is None else None
    if found is not None:
        return plan_by(r, found, machine.limits.multiprocessors)
    found = route(r.problem, r.left, r.right, r.family, config, machine)
    return plan_by(r, found, machine.limits.multiprocessors, config is not None or is_closed(target))


def plan_by(r: Request, found: Route, blocks: int, chosen: bool = True) -> MatmulPlan:
    """The kernels of a request by one route, on `blocks` multiprocessors; `chosen`: keep the route's configuration."""
    found = found if chosen else found.serving(blocks, r.flipped)
    laid_out = [p for p in found.packings if p is not None]
    if laid_out or found.kernel != "fast":
        words = [f"{p.dtype} rows copied as {p.to}" for p in laid_out]
        _log.info("matmul: the %s kernel; %s", found.kernel, ", ".join(words) or "operands as they are")
    p, pack = r.problem, found.pack()
    return MatmulPlan(
        found.multiply(blocks), r.turns, r.flipped, pack, found.packings, found.combine(), found.apart, r.folded,
        p.peaks, r.own,
        simple=not (r.left.scaled or r.right.scaled or r.folded or p.gate or p.sparse or p.peaks or any(r.own)),
        extra=any(s.operands for s in (*p.all_steps, *sum(p.gated, ()))) or any(r.own),
        packed=bool(p.int4), turned=r.turned, scaling=bool(r.left.scaled or r.right.scaled),
    )  # fmt: skip

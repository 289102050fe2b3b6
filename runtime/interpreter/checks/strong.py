"""Strong accesses: which pairs of them are morally strong, and so no race (PTX ISA 8.7 and 8.7.2).

Two strong accesses of one place do not race if the scope of each holds the other, both go through the same proxy, and they
overlap completely. Accesses of less than 4 bytes count as their word: CUDA's headers make them of compare-and-swaps.
Copies that reduce are relaxed atomics, element by element (PTX ISA 9.7.9.27.3). In what order they come is open, even of one
lane; where their operations differ, the result depends on it, and they count as a race.

A place has one last writer in shadow memory. Who comes after an atomic comes after all that it has observed (PTX ISA 8.9.2,
'Observation order', and 8.9.5, 'Causality order'). A strong store observes nothing, so the write that it follows is kept
beside it, if the two are unordered: an ordinary access must come after both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..isa.rows import known_form
from ..ptx.module import Instruction

if TYPE_CHECKING:
    from ..machine.launch import Run
    from .shadow import Shadow, ShadowAccess

Array = npt.NDArray[Any]
_ATOMIC = np.int64(1 << 31)
_CLOCK = np.int64((1 << 31) - 1)
_OPERATIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
SCOPE = "give both a scope that holds both: .gpu, or .cluster within a cluster"
SYSTEM = 'give both the scope of the system, .sys: memory_scope="sys" or scope="sys"'
_SIZE = "access the word by one size everywhere: accesses of several sizes are unordered even where all are atomic"
_ORDER = "wait for the one (cp.async.bulk.wait_group 0) before the other: reductions by copies are unordered among themselves"
_PROXY = "let all go through one proxy, by atomics or by copies that reduce, or order them with a proxy fence between"


def size_of(ins: Instruction) -> int:
    """Bytes of an element of a strong access to memory that others see, at least 4; 0 of other instructions."""
    strong = ins.opcode[0] in ("atom", "red") or not {"relaxed", "acquire", "release", "volatile"}.isdisjoint(
        ins.opcode
    )
    if ins.opcode[0] not in ("ld", "st", "atom", "red") or not strong:
        return 0
    form = known_form(ins)
    return max(form.size, 4) if form is not None else 0


def operation_of(ins: Instruction) -> str:
    """The operation of a reduction by a copy; "" of other instructions."""
    if ins.opcode[:2] != ("cp", "reduce"):
        return ""
    return next((w for w in ins.opcode[3:] if w in _OPERATIONS), "")


class StrongPairs:
    """The part of a shadow that knows of strong accesses. `before`: the last writer but one of granules, where a strong store
    came unordered after a strong write; `mixed`: whether the program has strong accesses of several sizes."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.mixed: bool = run.program.mixed
        self.before: Array | None = None
        self.before_sites: Array = np.zeros(0, np.int32)
        # How far the strong accesses of each granule reached, where some of the program's reach less than the GPU.
        self.reach: dict[str, Array] = {}
        self._sizes: list[int] = []

    def refine(self, times: int) -> None:
        if self.before is not None:
            self.before, self.before_sites = np.repeat(self.before, times), np.repeat(self.before_sites, times)
        self.reach = {name: np.repeat(reach, times) for name, reach in self.reach.items()}

    def reached(self, shadow: Shadow, name: str) -> Array:
        if name not in self.reach:
            self.reach[name] = np.zeros(len(shadow.w), np.int8)
        return self.reach[name]

    # --- pairs of strong accesses --------------------------------------------------------------------

    def check(
        self, shadow: Shadow, a: ShadowAccess, g: Array, rows: Array, held: Array, sites: Array, name: str, writes: bool
    ) -> None:
        """Report earlier strong accesses (`name`: w of writes, r of reads) that are not morally strong with `a`."""
        strong = held & _ATOMIC != 0
        if not strong.any():
            return
        for bad, fix in self._not_morally_strong(shadow, a, g, rows, held, sites, name):
            bad = strong & bad
            if not bad.any():
                continue
            at = np.nonzero(bad)
            row = np.broadcast_to(rows, held.shape)[at]
            bad[at] = ~shadow.ordered(a, row, shadow.agent_of(held[at]), held[at] & _CLOCK)
            if bad.any():
                shadow.report(a, g, rows, bad, held, sites, writes, name == "r", fix)
                return

    def _not_morally_strong(
        self, shadow: Shadow, a: ShadowAccess, g: Array, rows: Array, held: Array, sites: Array, name: str
    ) -> Iterator[tuple[Array, str]]:
        """What breaks one of the three conditions, with what mends it."""
        if self.run.program.narrow:
            reach = np.maximum(self.reached(shadow, name)[g], a.reach)
            if reach.any():
                far = shadow.far(a, held, rows, reach)
                system = self.run.program.several and bool((reach[far] == 1).any())
                yield far, SYSTEM if system else SCOPE
        if self.mixed and (mine := size_of(a.ins)):
            theirs = self._size_table()[sites[g]]
            yield (theirs != mine) & (theirs != 0), _SIZE
        if self.run.program.other_proxies:
            queue = shadow.is_queue(shadow.agent_of(held))
            yield queue != a.queue, _PROXY
            if a.queue:
                yield queue & (self._operation_table()[sites[g]] != operation_of(a.ins)), _ORDER

    def _operation_table(self) -> Array:
        return np.array([operation_of(ins) for ins in self.run.sites])

    def _size_table(self) -> Array:
        sites = self.run.sites
        self._sizes += [size_of(ins) for ins in sites[len(self._sizes) :]]
        return np.array(self._sizes)

    # --- what a strong store follows -----------------------------------------------------------------

    def displaces(self, shadow: Shadow, a: ShadowAccess, g: Array, rows: Array, held: Array, sites: Array) -> None:
        """A strong write is about to take the place of `held`: a store keeps strong writes that it is not ordered after."""
        if a.ins.opcode[0] != "st":
            return
        kept = (held & _ATOMIC != 0) & (shadow.agent_of(held) != shadow.name_agent(a)[rows])
        if not kept.any():
            return
        at = np.nonzero(kept)
        row = np.broadcast_to(rows, held.shape)[at]
        kept[at] = ~shadow.ordered(a, row, shadow.agent_of(held[at]), held[at] & _CLOCK)
        if not kept.any():
            return
        self.displaced(shadow, g[kept], held[kept], sites[g[kept]])

    def displaced(self, shadow: Shadow, g: Array, epochs: Array, sites: Any) -> None:
        """Keep `epochs` of granules `g` beside their last writers."""
        if self.before is None:
            n = len(shadow.w)
            self.before, self.before_sites = np.zeros(n, np.int64), np.zeros(n, shadow.site_type)
        self.before[g] = epochs
        self.before_sites[g] = sites

    def check_before(self, shadow: Shadow, a: ShadowAccess, g: Array, rows: Array, writes: bool) -> None:
        """An ordinary access comes after the write before the last, too."""
        if self.before is None or a.strong:
            return
        held = self.before[g]
        bad = shadow.unordered(a, held, rows)
        if bad is not None:
            shadow.report(a, g, rows, bad, held, self.before_sites, writes)
        if writes:
            self.before[g] = 0

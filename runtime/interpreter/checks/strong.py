"""Strong accesses: which pairs of them are morally strong, and so no race (PTX ISA 8.7 and 8.7.2).

Two strong accesses of one place do not race if the scope of each holds the other, both go through the same proxy, and they
overlap completely. An access of less than 4 bytes counts as one of its word, because CUDA's headers make it of a
compare-and-swap of the word. Copies that reduce are relaxed atomics, element by element (PTX ISA 9.7.9.27.3). Their order is
undefined, even for copies of one lane. If their operations differ, the result depends on the order, so they count as a race.

Shadow memory keeps one last writer of each place. An access that is ordered after an atomic is ordered after all that the
atomic has observed (PTX ISA 8.9.2, 'Observation order', and 8.9.5, 'Causality order'). A strong store observes nothing. So if
it is not ordered after the write that it replaces, that write is kept, too: an ordinary access must be ordered after both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..isa.rows import known_form
from ..ptx.module import Instruction
from .columns import Accesses

if TYPE_CHECKING:
    from ..machine.launch import Run
    from .shadow import Shadow
    from .shadow_access import ShadowAccess

Array = npt.NDArray[Any]
Held = tuple[Array, Array, Array]  # epochs, sites and reach of earlier accesses
ATOMIC = np.int64(1 << 31)  # the flag in the epoch of a strong access
_OPERATIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
SCOPE = "give both a scope that holds both: .gpu, or .cluster within a cluster"
SYSTEM = 'give both the scope of the system, .sys: memory_scope="sys" or scope="sys"'
_SIZE = "access the word by one size everywhere: accesses of several sizes are unordered even where all are atomic"
_ORDER = "wait for the one (cp.async.bulk.wait_group 0) before the other: reductions by copies are unordered among themselves"
_PROXY = "let all go through one proxy, by atomics or by copies that reduce, or order them with a proxy fence between"


def size_of(ins: Instruction) -> int:
    """Return the bytes of an element, at least 4, if this is a strong access to memory that others see; else 0."""
    strong = ins.opcode[0] in ("atom", "red") or not {"relaxed", "acquire", "release", "volatile"}.isdisjoint(
        ins.opcode
    )
    if ins.opcode[0] not in ("ld", "st", "atom", "red") or not strong:
        return 0
    form = known_form(ins)
    return max(form.size, 4) if form is not None else 0


def operation_of(ins: Instruction) -> str:
    """Return the operation of a copy that reduces; "" for other instructions."""
    if ins.opcode[:2] != ("cp", "reduce"):
        return ""
    return next((w for w in ins.opcode[3:] if w in _OPERATIONS), "")


class _OfSites:
    """The results of a function for all sites. It is called once for each site."""

    def __init__(self, function: Callable[[Instruction], Any]) -> None:
        self.function = function
        self.known: list[Any] = []
        self.table: Array = np.array(self.known)

    def of(self, sites: list[Instruction]) -> Array:
        if len(self.known) < len(sites):
            self.known += [self.function(ins) for ins in sites[len(self.known) :]]
            self.table = np.array(self.known)
        return self.table


class StrongPairs:
    """The checks of strong accesses to a shadow's memory.

    `before`: the last writer but one of each granule that a strong store wrote without being ordered after a strong write;
    `narrow_before`: whether some of them are here because their scope is narrower than the last writer's.
    `mixed`: whether the program has strong accesses of several sizes.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.mixed: bool = run.program.mixed
        self.before: Accesses | None = None
        self.narrow_before: bool = False
        self._sizes = _OfSites(size_of)
        self._operations = _OfSites(operation_of)

    def refine(self, times: int) -> None:
        if self.before is not None:
            self.before.refine(times)

    # --- pairs of strong accesses --------------------------------------------------------------------

    def check(
        self, shadow: Shadow, a: ShadowAccess, g: Array, rows: Array, held: Held, writes: bool, reads: bool
    ) -> None:  # fmt: skip
        """Report earlier strong accesses that are neither ordered before `a` nor morally strong with it.

        `writes`: whether `a` writes. `reads`: whether the earlier accesses are reads.
        """
        self._check_held(shadow, a, g, rows, held, writes, reads)
        if self.narrow_before and self.before is not None and not reads:
            self._check_held(shadow, a, g, rows, self.before.held(self.before.get(g)), writes, reads)

    def _check_held(
        self, shadow: Shadow, a: ShadowAccess, g: Array, rows: Array, held: Held, writes: bool, reads: bool
    ) -> None:  # fmt: skip
        epochs, sites, _ = held
        strong = epochs & ATOMIC != 0
        if not strong.any():
            return
        for bad, fix in self._not_morally_strong(shadow, a, rows, held):
            found = shadow.unordered_of(strong & bad, a, epochs, rows)
            if found is not None:
                shadow.report(a, g, rows, found, epochs, sites, writes, reads, fix)
                return

    def _not_morally_strong(
        self, shadow: Shadow, a: ShadowAccess, rows: Array, held: Held
    ) -> Iterator[tuple[Array, str]]:
        """Yield, for each condition, which earlier accesses break it, and the text that says how to mend this."""
        epochs, sites, reached = held
        if self.run.program.narrow:
            reach = np.maximum(reached, a.reach)
            if reach.any():
                far = shadow.far(a, epochs, rows, reach)
                # reach 1 is a GPU where there are several: which pairs are on two of them?
                apart = shadow.far(a, epochs, rows, np.minimum(reach, 1))[far] if self.run.program.several else far[:0]
                yield far, SYSTEM if apart.any() else SCOPE
        if self.mixed and (mine := size_of(a.ins)):
            theirs = self._sizes.of(self.run.sites)[sites]
            yield (theirs != mine) & (theirs != 0), _SIZE
        if self.run.program.other_proxies:
            queue = shadow.is_queue(shadow.agent_of(epochs))
            yield queue != a.queue, _PROXY
            if a.queue:
                yield queue & (self._operations.of(self.run.sites)[sites] != operation_of(a.ins)), _ORDER

    # --- what a strong read has observed ---------------------------------------------------------------

    def unobserved(
        self, shadow: Shadow, a: ShadowAccess, g: Array, rows: Array, bad: Array, epochs: Array
    ) -> Array | None:  # fmt: skip
        """Return which elements of `bad` remain, of unordered earlier writes `epochs`; None if none.

        A strong write that a strong read has observed precedes in causality order what follows the read (PTX ISA 8.9.5), even
        if both are relaxed: a warp that has seen a counter's last value may set the counter to zero by an ordinary store.
        """
        some = bad & (epochs & ATOMIC != 0)
        if a.strong or a.proxy or a.queue or not some.any():
            return bad
        at = np.nonzero(some)
        g, rows = (np.broadcast_to(x, bad.shape)[at] for x in (g, rows))
        mine, seen = shadow.name_agent(a)[rows], np.zeros(len(rows), np.bool_)
        for reader in shadow.last_readers(g):
            agent = shadow.agent_of(reader)
            after = (agent == mine) | shadow.ordered(a, rows, agent, reader & (ATOMIC - 1))
            seen |= (reader & ATOMIC != 0) & ~shadow.is_queue(agent) & after
        left = bad.copy()
        left[at] = ~seen
        return left if left.any() else None

    # --- what a strong store follows -----------------------------------------------------------------

    def displaces(self, shadow: Shadow, a: ShadowAccess, g: Array, rows: Array, held: Held) -> None:
        """Keep the strong writes that a strong store is about to replace, if it is not ordered after them.

        On several GPUs, also keep those of a narrower scope than the access: another GPU's access may be unordered with them.
        """
        epochs, sites, reached = held
        strong = epochs & ATOMIC != 0
        if self.run.program.several and self.run.program.narrow:
            narrow = strong & (reached > a.reach)
            if narrow.any():
                self.narrow_before = True
                self.displaced(shadow, g[narrow], epochs[narrow], sites[narrow], reached[narrow])
        if a.ins.opcode[0] != "st":
            return
        kept = shadow.unordered_of(strong & (shadow.agent_of(epochs) != shadow.name_agent(a)[rows]), a, epochs, rows)
        if kept is not None:
            self.displaced(shadow, g[kept], epochs[kept], sites[kept])

    def displaced(self, shadow: Shadow, g: Array, epochs: Array, sites: Array, reached: Any = 0) -> None:
        """Keep `epochs` as the last writers but one of granules `g`."""
        if self.before is None:
            self.before = Accesses(shadow.count, shadow.site_type, shadow.check_room)
        self.before.put(g, self.before.add(epochs, sites, reached))

    def check_before(self, shadow: Shadow, a: ShadowAccess, g: Array, rows: Array, writes: bool) -> None:
        """Check that an ordinary access is ordered after the last write but one, too."""
        if self.before is None or a.strong:
            return
        epochs, sites, _ = self.before.held(self.before.get(g))
        bad = shadow.unordered(a, epochs, rows)
        if bad is not None:
            shadow.report(a, g, rows, bad, epochs, sites, writes)
        if writes:
            self.before.clear(g)

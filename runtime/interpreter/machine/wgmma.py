"""wgmma: products in flight, their reads, and when other instructions may use their accumulators (PTX ISA 9.7.15)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..checks.foreign import widened
from ..checks.kinds import HazardKind
from ..checks.shadow_access import ShadowAccess
from ..isa.semantics.descriptor import RESERVED, reserved_fields
from ..isa.semantics.fragments import a_matrix, sparse_indices
from ..isa.semantics.wgmma import WgmmaSemantics
from ..ptx.module import Instruction
from .engine import Pending
from .group import Group
from .memory import SHARED_RESERVED
from .wgmma_operands import Accumulators, TileOperand, TileShape, read

if TYPE_CHECKING:
    from .batch import Batch

Array = npt.NDArray[Any]
_RESERVED = np.uint64(RESERVED)
_NARROW = np.uint64(3)  # a swizzle of 32 bytes
# PTX ISA 9.7.15.5.1
_ENCODE = "make each field as (x & 0x3FFFF) >> 4: in a cluster, addresses have the block's rank in bits 24 and up"


@dataclass(frozen=True, slots=True)
class WgmmaProduct:
    """One compiled wgmma.mma_async instruction: register slots, and functions that read its other operands."""

    form: WgmmaSemantics
    acc: tuple[int, ...]
    a_slots: tuple[int, ...]  # () if A is in shared memory
    a: Any
    b: Any
    scale_d: Any
    scales: tuple[int, int]
    a_transposed: bool
    b_transposed: bool
    ins: Instruction
    acc_mask: int  # bit i: register i
    a_mask: int  # the same for A and metadata
    meta: int = -1  # slot of a sparse A's metadata
    selector: int = 0


@dataclass(slots=True)
class InFlight:
    """An issued product of some warpgroups: `rows` (4 * groups,), warpgroup by warpgroup."""

    product: WgmmaProduct
    frame: Any
    rows: Array
    keys: Array  # (groups,) warpgroup numbers
    a: TileOperand | None
    b: TileOperand
    scale: Array
    when: tuple[Array, Array]  # each warpgroup's (queue, clock)
    pending: Pending | None = None
    group: Array = field(default_factory=lambda: np.zeros(0, np.int64))  # commit group, -1: none yet
    alive: Array = field(default_factory=lambda: np.zeros(0, np.bool_))
    fences: Array = field(default_factory=lambda: np.zeros(0, np.int64))  # each warpgroup's wgmma.fences before it


class WgmmaUnit:
    """The products in flight of a batch's warpgroups."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.flight: list[InFlight] = []
        self.waiting: list[InFlight] = []  # issued, not yet performed, in order
        self.accumulators: Accumulators = Accumulators()
        per_block = -(-batch.per_block // 4)
        self.per_block = per_block
        self.committed: Array = np.zeros(batch.blocks * per_block, np.int64)
        self.dirty: list[int] = [0] * batch.warps
        # Whether a wait orders a warp only after its own part of a product (`InterpretParams.strict_wgmma`).
        self.strict: bool = batch.run.config.strict_wgmma
        self.skips: bool = batch.run.config.skip_floating_point_ops
        self.fenced: Array = np.zeros(batch.warps, np.bool_)
        self.fences: Array = np.zeros(batch.warps, np.int64)  # that each warp has executed
        self.armed: Array = np.zeros(batch.warps, np.bool_)  # warps that have executed wgmma.fence, and no wgmma since

    def keys(self, rows: Array) -> Array:
        """Return the warpgroup number of each warp."""
        return self.batch.row_cta[rows] * self.per_block + self.batch.row_warp[rows] // 4

    # --- issue and effect ----------------------------------------------------------------------

    def issue(self, c: Group, p: WgmmaProduct) -> None:
        batch = self.batch
        order = np.lexsort((batch.row_warp[c.rows], batch.row_cta[c.rows]))
        rows = c.rows[order]
        lead = order[::4]
        keys = self.keys(rows[::4])
        if batch.run.detect:
            self._check_fence(rows, p)
            self._check_shape(c, rows, keys, p)
            self.armed[rows] = False
        cta = batch.row_cta[rows[::4]]
        a = self._tile(c, p, p.a, lead, 64, p.a_transposed, cta) if p.a is not None else None
        b = self._tile(c, p, p.b, lead, p.form.n, p.b_transposed, cta, 2 if p.form.sparse else 1)
        if p.form.sparse:
            self.accumulators.settle(c.frame, p.a_mask)
            self._check_metadata(c, p, rows, lead)
        scale = np.broadcast_to(p.scale_d(c), (c.n, 32))[lead, 0]
        when = self._note(c, p, rows, (a, b))
        record = InFlight(p, c.frame, rows, keys, a, b, scale, when)
        record.group = np.full(len(keys), -1)
        record.alive = np.ones(len(keys), np.bool_)
        record.fences = self.fences[rows[::4]]
        self.flight.append(record)
        self.waiting.append(record)
        record.pending = batch.engine.issue(
            lambda: self.perform_until(record), "wgmma", at=(p.ins, [divmod(k, self.per_block) for k in keys.tolist()])
        )

    def _tile(
        self,
        c: Group,
        p: WgmmaProduct,
        read: Any,
        lead: Array,
        count: int,
        transposed: bool,
        cta: Array,
        times: int = 1,
    ) -> TileOperand:
        """Return the tile of each warpgroup that the descriptors in a register name."""
        words = np.broadcast_to(read(c), (c.n, 32))[lead, 0]
        size = p.form.element_bytes
        spilled = words & _RESERVED
        if spilled.any():
            first = int(spilled.argmax())
            what = f"a wgmma descriptor has reserved bits set: {reserved_fields(int(words[first]))}"
            self._hazard(c, p, what, int(lead[first]))
        if times > 1 and not transposed and (words >> np.uint64(62) == _NARROW).any():
            what = "a wgmma descriptor has a swizzle of 32 bytes, and 64 bytes of k lie beside each other"
            self._hazard(c, p, what, int(lead[0]), "swizzle by 64 or 128 bytes, or not at all")
        shape = TileShape(count, size, transposed, 32 * times)
        tile = TileOperand(words, shape, cta, self.batch.shared.stride)
        low, high = tile.bounds()
        outside = (low < SHARED_RESERVED) | (high > self.batch.shared.limit)
        if outside.any():
            first = int(outside.argmax())
            limit = self.batch.shared.limit
            what = (
                f"a wgmma descriptor reaches shared addresses {int(low[first])} to {int(high[first])}, outside of the "
                f"block's {limit - SHARED_RESERVED} bytes at {SHARED_RESERVED}"
            )
            self._hazard(c, p, what, int(lead[first]))
        return tile

    def _check_metadata(self, c: Group, p: WgmmaProduct, rows: Array, lead: Array) -> None:
        """Report metadata that does not name different elements in ascending order: the product is then undefined."""
        words = c.frame.base(p.meta)[rows]
        bad = (sparse_indices(words, p.form.element_bytes, p.selector) < 0).any(axis=(1, 2))
        if bad.any():
            what = "the metadata of a sparse wgmma does not name which elements are stored, in ascending order"
            fix = "make each four bits by PTX ISA 9.7.15.6.1, or by sparse_compress"
            self._hazard(c, p, what, int(lead[int(bad.argmax())]), fix)

    def _hazard(self, c: Group, p: WgmmaProduct, what: str, row: int, fix: str = _ENCODE) -> None:
        reporter, cta = self.batch.run.reporter, self.batch.coordinates[int(c.cta[row])]
        who = reporter.who(cta, int(self.batch.row_warp[c.rows[row]]))
        reporter.hazard(HazardKind.DESCRIPTOR, what, p.ins, (who,), fix)

    def _note(
        self, c: Group, p: WgmmaProduct, rows: Array, operands: tuple[TileOperand | None, ...]
    ) -> tuple[Array, Array]:
        """Record the operands in shadow memory. Returns each warpgroup's (queue, clock)."""
        batch, clocks = self.batch, self.batch.clocks
        groups = len(rows) // 4
        if clocks is None:
            return np.zeros(groups, np.int64), np.zeros(groups, np.int64)
        known = clocks.known[batch.row_team[rows], batch.row_agent[rows]]
        # Each warp issues a part of the product: a write must be ordered before all warps that read it.
        whole = known.reshape(groups, 4, *known.shape[1:]).min(axis=1)
        when = [self._note_part(c, p, rows[part::4], whole, operands) for part in range(4 if self.strict else 1)]
        return np.concatenate([w[0] for w in when]), np.concatenate([w[1] for w in when])

    def _note_part(
        self, c: Group, p: WgmmaProduct, rows: Array, known: Array, operands: tuple[TileOperand | None, ...]
    ) -> tuple[Array, Array]:
        """Record that warps `rows`, one of each warpgroup, read operands. Returns each one's (queue, clock)."""
        batch, clocks = self.batch, self.batch.clocks
        team = batch.row_team[rows]
        queues, clock = clocks.begin(rows, "wgmma")
        if known.shape[2] < clocks.columns:
            known = widened(known, clocks.columns)
        shadow = batch.shared.shadow
        for operand in operands:
            if operand is None:
                continue
            shadow.fit(16)
            g = operand.granules(shadow.granule)
            access = ShadowAccess(c.part(c.pc, rows, None), known, team, queues, clock, p.ins, False, True)
            shadow.on_read(access, g, np.arange(len(rows))[:, None])
        return queues, clock

    def perform_until(self, record: InFlight) -> None:
        """Make products take effect in order, up to `record`."""
        while self.waiting:
            r = self.waiting.pop(0)
            if r.pending is not None:
                r.pending.finish()
            self.accumulators.keep(r, self._multiply(r))
            if r is record:
                break

    def _multiply(self, r: InFlight) -> Array:
        p, form = r.product, r.product.form
        acc = self.accumulators.take(r)
        if self.skips and form.d_type != "s32":
            kind = np.float16 if form.d_type == "f16" else np.float32
            return np.full((len(r.keys), 64, form.n), np.inf, kind)
        memory = self.batch.shared.data
        b = form.operand(r.b.gather(memory, form.element), "b").swapaxes(1, 2)
        if r.a is not None:
            a = form.operand(r.a.gather(memory, form.element), "a")
        else:
            regs = np.stack([r.frame.base(s)[r.rows] for s in p.a_slots])
            a = form.operand(a_matrix(regs, form.element), "a")
        if form.sparse:
            places = sparse_indices(r.frame.base(p.meta)[r.rows], form.element_bytes, p.selector)
            whole = np.zeros((*a.shape[:2], form.k), a.dtype)
            np.put_along_axis(whole, np.maximum(places, 0), a, 2)
            a = whole
        if not r.scale.any():
            return form.multiply(a, b, None, *p.scales)
        if acc is None:
            acc = read(r)
        if not r.scale.all():
            acc = np.where(r.scale[:, None, None], acc, acc.dtype.type(0))
        return form.multiply(a, b, acc, *p.scales)

    # --- groups --------------------------------------------------------------------------------

    def _here(self, c: Group) -> Array:
        """Return which of the batch's warpgroups are in `c`: (warpgroups,)."""
        here = np.zeros(len(self.committed), np.bool_)
        here[self.keys(c.rows)] = True
        return here

    def commit(self, c: Group) -> None:
        here = self._here(c)
        for r in self.flight:
            mine = here[r.keys] & (r.group < 0)
            r.group[mine] = self.committed[r.keys[mine]]
        self.committed += here

    def wait(self, c: Group, keep: int) -> None:
        here = self._here(c)
        kept: list[InFlight] = []
        force: list[Pending] = []
        clocks = self.batch.clocks
        for r in self.flight:
            due = here[r.keys] & r.alive & (r.group >= 0) & (r.group < self.committed[r.keys] - keep)
            if due.any():
                if r.pending is not None:
                    force.append(r.pending)
                r.alive &= ~due
                if clocks is not None:
                    self._learn(r, due)
            if r.alive.any():
                kept.append(r)
        self.flight = kept
        if force:
            self.batch.engine.force(force)

    def _learn(self, r: InFlight, due: Array) -> None:
        batch, clocks = self.batch, self.batch.clocks
        rows = r.rows.reshape(-1, 4)[due]
        if self.strict:  # from (parts, groups) to one part for each warp
            queues, clock = (numbers.reshape(4, -1)[:, due].T.reshape(-1) for numbers in r.when)
        else:
            queues, clock = (np.repeat(numbers[due], 4) for numbers in r.when)
        flat = rows.reshape(-1)
        team, agent = batch.row_team[flat], batch.row_agent[flat]
        for proxy in (0, 1):
            held = clocks.known[team, agent, proxy, queues]
            clocks.known[team, agent, proxy, queues] = np.maximum(held, clock)

    # --- registers -----------------------------------------------------------------------------

    def _check_fence(self, rows: Array, p: WgmmaProduct) -> None:
        used = p.acc_mask | p.a_mask
        for row in rows.tolist():
            if self.fenced[row] and not self.dirty[row] & used:
                continue
            batch = self.batch
            who = batch.run.reporter.who(batch.coordinates[int(batch.row_cta[row])], int(batch.row_warp[row]))
            what = "wgmma uses registers that were written with no wgmma.fence after that"
            if not self.fenced[row]:
                what = "the first wgmma of a warp has no wgmma.fence before it"
            fix = "put wgmma.fence.sync.aligned before it"
            batch.run.reporter.hazard(HazardKind.MISSING_WGMMA_FENCE, what, p.ins, (who,), fix)
            self.fenced[row], self.dirty[row] = True, 0

    def _check_shape(self, c: Group, rows: Array, keys: Array, p: WgmmaProduct) -> None:
        """Report a product whose accumulators an earlier one in flight uses in another way, with no fence between.

        Products of one shape follow one another in their accumulators. For others, the order needs wgmma.fence, and for
        fragments of A the end of the product that computes them (PTX ISA 9.7.15.7.1).
        """
        fences = dict(zip(keys.tolist(), self.fences[rows[::4]].tolist(), strict=True))
        for r in self.flight:
            before = r.product
            early = p.a_mask & before.acc_mask
            moved = p.acc_mask & before.acc_mask and (p.acc, p.form.n) != (before.acc, before.form.n)
            if r.frame is not c.frame or not (early or moved or p.acc_mask & before.a_mask):
                continue
            for at, key in enumerate(r.keys.tolist()):
                if not r.alive[at] or key not in fences:
                    continue
                if early:
                    self._report_touch(c, before, [p.ins])
                elif fences[key] == r.fences[at]:
                    self._report_shape(int(rows[4 * keys.tolist().index(key)]), p, before)
                else:
                    continue
                return

    def _report_shape(self, row: int, p: WgmmaProduct, before: WgmmaProduct) -> None:
        batch, reporter = self.batch, self.batch.run.reporter
        who = reporter.who(batch.coordinates[int(batch.row_cta[row])], int(batch.row_warp[row]))
        what = "wgmma uses registers of a product of another shape in flight, with no wgmma.fence between"
        details = (who, f"the other wgmma is at {reporter.place(before.ins)}")
        fix = "put wgmma.fence.sync.aligned between the two"
        other = reporter.side("", before.ins)
        reporter.hazard(HazardKind.MISSING_WGMMA_FENCE, what, p.ins, details, fix, other)

    def fence(self, c: Group) -> None:
        self.fenced[c.rows] = True
        self.fences[c.rows] += 1
        self.armed[c.rows] = True
        for row in c.rows.tolist():
            self.dirty[row] = 0

    def wrote(self, c: Group, computed: int, moved: int) -> None:
        """Record that the warps of `c` wrote registers that wgmma uses.

        Plain moves between a fence and its wgmma do not count: they are a compiler's copies of tied operands, and the
        assembler orders them.
        """
        for row in c.rows.tolist():
            self.dirty[row] |= computed if self.armed[row] else computed | moved

    def check_touched(self, c: Group, reads: int, writes: int, code: list[Instruction]) -> None:
        """Report accesses to registers of products in flight: a read or write of an accumulator, or a write of A."""
        for r in self.flight:
            p = r.product
            if r.frame is not c.frame or not ((reads | writes) & p.acc_mask or writes & p.a_mask):
                continue
            if (self._here(c)[r.keys] & r.alive).any():
                self._report_touch(c, p, code)

    def _report_touch(self, c: Group, p: WgmmaProduct, code: list[Instruction]) -> None:
        from ..isa.liveness import used

        for ins in code:
            reads, writes = used(ins)
            if (reads | writes) & p.acc_mask or writes & p.a_mask:
                _, _, who = self.batch.run.reporter.group(c, c.active)
                hit = (reads | writes) & p.acc_mask or writes & p.a_mask
                name = c.frame.code.fn.registers[hit.bit_length() - 1].name
                what = f"register {name} is touched while a wgmma that uses it is in flight"
                reporter = self.batch.run.reporter
                details = (who, f"the wgmma is at {reporter.place(p.ins)}")
                fix = "wait for it (wgmma.wait_group) first"
                reporter.hazard(HazardKind.WGMMA_REGISTERS, what, ins, details, fix, reporter.side("", p.ins))
                return

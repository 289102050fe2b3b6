"""tcgen05's products: their reads and writes, and when products and copies take effect (PTX ISA 9.7.16.6 and 9.7.16.10)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..checks import tensor_shadow
from ..checks.kinds import HazardKind
from ..checks.tensor_shadow import granules
from ..isa.semantics.descriptor import decode_tensor_descriptor, wrong_tensor_descriptor
from ..isa.semantics.tensor_core import COLUMNS, LANES, BadDescriptor, Product, product_of, scale_values
from ..ptx.module import Instruction
from .engine import Pending
from .group import Group, as_slice
from .memory import SHARED_RESERVED
from .wgmma_operands import TileOperand, TileShape

if TYPE_CHECKING:
    from .batch import Batch
    from .tensor_memory import TensorMemory

Array = npt.NDArray[Any]
Read = Callable[[Group], Array]
_ENCODE = "make the descriptor by PTX ISA 9.7.16.4"
_ALL = np.arange(tensor_shadow.HALVES)
_MASKED = np.uint64(0x7E0001)  # the bits, from 39 on, that ask for a mask and shift columns
_WORDS = 8  # words of tensor memory that a row of A takes: 32 bytes


@dataclass(frozen=True, slots=True)
class TensorProduct:
    """One compiled tcgen05.mma: functions that read its operands."""

    ins: Instruction
    kind: str
    pair: bool
    vector: str
    d: Read
    a: Read
    a_in_tensor_memory: bool
    b: Read
    word: Read
    enable: Read
    scales: tuple[Read, Read] | None
    off: tuple[Read, ...]  # the lanes without output, 32 in each word
    scale_d: int
    stationary: bool = False
    zeros: Read | None = None  # the mask of columns that count as zero
    metadata: Read | None = None  # the metadata of a sparse A


@dataclass(slots=True)
class Issued:
    """An operation in flight, of some warps of the batch."""

    rows: frozenset[int]
    perform: Callable[[], None]
    pending: Pending | None = None


@dataclass(slots=True)
class Site:
    """The place where one product runs: for each of n threads its warp, its blocks (n, 1 or 2), and the issuing thread's
    operands.
    """

    c: Group
    p: TensorProduct
    form: Product
    rows: Array
    row: Array  # the row of each thread's warp in `c`
    lane: Array
    blocks: Array

    def take(self, read: Read) -> Array:
        return np.broadcast_to(read(self.c), (self.c.n, 32))[self.row, self.lane]


class TensorUnit:
    """Products and copies of a batch, in the order of their issue."""

    def __init__(self, memory: TensorMemory) -> None:
        self.memory = memory
        self.batch: Batch = memory.batch
        self.waiting: list[Issued] = []

    # --- in flight -----------------------------------------------------------------------------

    def issue(self, rows: Array, perform: Callable[[], None], what: str, ins: Instruction) -> None:
        """Put an operation in flight. Operations take effect in the order of their issue."""
        record = Issued(frozenset(rows.tolist()), perform)
        self.waiting.append(record)
        blocks = dict.fromkeys(self.batch.row_cta[rows].tolist())
        at = ins, [(block, None) for block in blocks]
        record.pending = self.batch.engine.issue(lambda: self._until(record), what, at=at)

    def _until(self, record: Issued) -> None:
        while self.waiting:
            r = self.waiting.pop(0)
            if r.pending is not None:
                r.pending.finish()
            r.perform()
            if r is record:
                break

    def settle(self, rows: Array) -> None:
        """Make the operations that these warps have issued take effect."""
        mine = frozenset(rows.tolist())
        last = next((r for r in reversed(self.waiting) if r.rows & mine), None)
        if last is not None:
            self._until(last)

    def blocks(self, rows: Array, pair: bool, what: str, ins: Instruction) -> Array | None:
        """Return the blocks (n, 1 or 2) that operations of warps access. None, after a report, if pairs are not launched."""
        cta = self.batch.row_cta[rows]
        if not pair:
            return cta[:, None]
        if self.batch.cluster < 2:
            self.memory.hazard(int(rows[0]), f"{what} of two blocks in a cluster of one", ins, "launch pairs")
            return None
        return (cta & ~1)[:, None] + np.arange(2)

    # --- products ------------------------------------------------------------------------------

    def multiply(self, c: Group, p: TensorProduct) -> None:
        """Issue the product of each active lane: every thread that executes the instruction issues one."""
        row, lane = np.nonzero(c.active)
        turn = np.arange(len(row)) - np.searchsorted(row, row)  # lanes of a warp issue one after the other
        words = np.broadcast_to(p.word(c), (c.n, 32))[row, lane]
        for n in range(int(turn.max()) + 1 if len(turn) else 0):
            for word in np.unique(words[turn == n]).tolist():
                some = (turn == n) & (words == word)
                self._multiply(c, p, int(word), row[some], lane[some])

    def _multiply(self, c: Group, p: TensorProduct, word: int, row: Array, lane: Array) -> None:
        rows = c.rows[row]
        try:
            form = product_of(word, p.kind, p.pair, p.vector, p.stationary, p.metadata is not None)
        except BadDescriptor as error:
            self.memory.hazard(int(rows[0]), str(error), p.ins, _ENCODE, HazardKind.DESCRIPTOR)
            return
        if p.a_in_tensor_memory and form.narrow:
            what = f"A of {form.a_type} in tensor memory is not interpreted"
            self.memory.hazard(
                int(rows[0]), what, p.ins, "keep A in shared memory to check the kernel", HazardKind.DESCRIPTOR
            )
            return
        blocks = self.blocks(rows, p.pair, "a product", p.ins)
        if blocks is None:
            return
        if p.pair and self.batch.peers is not None:
            self.batch.peers.check_started(c, row, self.batch.row_cta[rows] ^ 1, p.ins)
        site = Site(c, p, form, rows, row, lane, blocks)
        if p.zeros is not None and (site.take(p.zeros) >> np.uint64(39) & _MASKED).any():
            what = "a mask of columns that count as zero, or are shifted, is not interpreted"
            self.memory.hazard(int(rows[0]), what, p.ins, "give no mask to check the kernel", HazardKind.DESCRIPTOR)
            return
        self.issue(rows, self._prepared(site), "tcgen05.mma", p.ins)

    def _prepared(self, s: Site) -> Callable[[], None]:
        """Read the registers, and check and record the product's accesses. Return the function that makes it take effect."""
        p, form = s.p, s.form
        d, enable = s.take(p.d).astype(np.int64), s.take(p.enable).astype(np.bool_)
        half = self._lanes(s, d, "D")
        a_at = s.take(p.a).astype(np.int64) if p.a_in_tensor_memory else None
        a = None if a_at is not None else [self._tile(s, p.a, "a", i) for i in range(s.blocks.shape[1])]
        b = [self._tile(s, p.b, "b", i) for i in range(s.blocks.shape[1])]
        scales = None if p.scales is None else [s.take(r).astype(np.int64) & 0xFFFF for r in p.scales]
        metadata = self._metadata(s)
        off = self._off(s)
        if a_at is not None:
            self._lanes(s, a_at, "A")
        self._note(s, d & 0xFFFF, half, enable, a_at, [*(a or []), *b], scales, metadata)

        def perform() -> None:
            left = self._from_tensor(s, a_at & 0xFFFF, half) if a_at is not None else None
            memory = self.batch.shared.data
            right = np.concatenate([form.values(t.gather(memory, form.code("b")), "b") for t in b], axis=1)
            for i in range(s.blocks.shape[1]):
                mine = left[i] if left is not None else (a or [])[i].gather(memory, form.code("a"))
                x = form.values(mine, "a")
                if metadata is not None:
                    x = self._spread(s, x, i, metadata)
                if scales is None:
                    product = self._plain(form, x, right)
                else:
                    product = self._scaled(s, x, right, i, scales)
                self._accumulate(s, product, i, d & 0xFFFF, half, enable, off)

        return perform

    def _metadata(self, s: Site) -> Array | None:
        """Return the first column of a sparse A's metadata; None for a dense A."""
        if s.p.metadata is None:
            return None
        start = s.take(s.p.metadata).astype(np.int64)
        if (start >> 16).any() or (start & 1).any():
            what = f"metadata of a sparse A begins at tensor memory address {int(start.max()):#x}"
            fix = "begin at lane 0 of an even column: the sparsity selector names the column of two"
            self.memory.hazard(int(s.rows[0]), what, s.p.ins, fix, HazardKind.DESCRIPTOR)
        return (start & 0xFFFE) + s.form.selector

    def _spread(self, s: Site, stored: Array, block: int, metadata: Array) -> Array:
        """Return A (n, rows, k) from its stored elements, (n, rows, k / 2)."""
        form = s.form
        columns = np.minimum(metadata[:, None] + np.arange(form.metadata_columns), COLUMNS - 1)
        words = self.memory.data[s.blocks[:, block, None, None], np.arange(LANES)[None, :, None], columns[:, None, :]]
        places = form.places(words)
        bad = (places < 0).any(axis=(1, 2))
        if bad.any() and self.batch.run.detect:
            what = "the metadata of a sparse product does not name which elements are stored"
            row = int(s.rows[int(bad.argmax())])
            self.memory.hazard(row, what, s.p.ins, "make each four bits by PTX ISA 9.7.16.10.8", HazardKind.DESCRIPTOR)
        out = np.zeros((*stored.shape[:2], form.k), stored.dtype)
        np.put_along_axis(out, np.maximum(places, 0), stored, 2)
        return out

    @staticmethod
    def _plain(form: Product, a: Array, b: Array) -> Array:
        """Return A B, (n, rows, columns). If D's columns are split, each part takes A from its lanes of tensor memory."""
        if a.shape[1] == form.rows:
            return np.matmul(a, b.swapaxes(1, 2))
        parts = zip(np.split(a, form.splits, axis=1), np.split(b, form.splits, axis=1), strict=True)
        return np.concatenate([np.matmul(x, y.swapaxes(1, 2)) for x, y in parts], axis=2)

    def _lanes(self, s: Site, address: Array, what: str) -> int:
        """Return which half of each 32 lanes an address names for 64 rows, 0 or 1."""
        lane = int(address[0]) >> 16
        allowed = (0, 16) if s.form.half else (0,)
        if (address >> 16 != lane).any() or lane not in allowed:
            fix = f"begin at lane {' or '.join(map(str, allowed))}"
            self.memory.hazard(
                int(s.rows[0]), f"{what} of a product with M = {s.form.m} begins at lane {lane}", s.p.ins, fix
            )
            return 0
        return lane // 16

    def _tile(self, s: Site, read: Read, which: str, block: int) -> TileOperand:
        """Return the tile of each thread's block, or the pair's block number `block`, that a descriptor names."""
        form, words = s.form, s.take(read)
        if which == "a":
            rows, turned = form.rows, form.a_transposed
        else:
            rows, turned = form.n // s.blocks.shape[1], form.b_transposed
        depth = 64 if form.sparse and which == "b" else 32
        spans = {decode_tensor_descriptor(word).swizzle for word in np.unique(words).tolist()}
        if depth == 64 and not turned and 32 in spans:  # a row of which lies in two atoms
            what = "B of a sparse product with a swizzle of 32 bytes is not interpreted"
            self.memory.hazard(int(s.rows[0]), what, s.p.ins, "", HazardKind.DESCRIPTOR)
        shape = TileShape(rows, form.size(which), turned, depth, True)
        return self.tile(s.rows, words, shape, s.blocks[:, block], which.upper(), s.p.ins)

    def tile(
        self, rows: Array, words: Array, shape: TileShape, blocks: Array, what: str, ins: Instruction
    ) -> TileOperand:
        """Check descriptors, their fields and bounds, and return the tiles of shared memory that they name."""
        for word in np.unique(words).tolist():
            why = wrong_tensor_descriptor(word)
            if why:
                text = f"the descriptor of {what} is wrong: {why}"
                self.memory.hazard(int(rows[0]), text, ins, _ENCODE, HazardKind.DESCRIPTOR)
        shared = self.batch.shared
        tile = TileOperand(words, shape, blocks, shared.stride)
        low, high = tile.bounds()
        outside = (low < SHARED_RESERVED) | (high > shared.limit)
        if outside.any():
            n = int(outside.argmax())
            text = (
                f"the descriptor of {what} reaches shared addresses {int(low[n])} to {int(high[n])}, outside of the "
                f"block's {shared.limit - SHARED_RESERVED} bytes at {SHARED_RESERVED}"
            )
            self.memory.hazard(int(rows[n]), text, ins, _ENCODE, HazardKind.DESCRIPTOR)
        return tile

    def _off(self, s: Site) -> Array | None:
        """Return the lanes (n, blocks, 128) that get no output; None if all get it."""
        if not s.p.off:
            return None
        words = np.stack([s.take(r) for r in s.p.off], axis=1).reshape(len(s.rows), -1, 4)
        bits = words[..., None] >> np.arange(32, dtype=np.uint32) & np.uint32(1)
        return bits.reshape(len(s.rows), -1, 128).astype(np.bool_)

    # --- what a product accesses ---------------------------------------------------------------

    def _note(
        self, s: Site, d: Array, half: int, enable: Array, a: Array | None, tiles: list[TileOperand], scales: list[Array] | None,
        metadata: Array | None,
    ) -> None:  # fmt: skip
        form, memory = s.form, self.memory
        parts = 2 * np.arange(4) + half if form.half else _ALL
        reads = [] if a is None else [(a & 0xFFFF, _WORDS, parts)]
        for at, count in zip(scales or (), (-(-form.rows // 32), -(-form.n // 32)), strict=False):
            reads.append((at, count, _ALL))
        if metadata is not None:
            reads.append((metadata, form.metadata_columns, _ALL))
        spans = [(d[:, None] + np.arange(form.columns), parts, True)]
        spans += [(at[:, None] + np.arange(count), those, False) for at, count, those in reads]
        for i in range(s.blocks.shape[1]):
            for columns, _, _ in spans:
                memory.check(s.rows, s.blocks[:, i], columns, s.p.ins)
        if memory.shadow is None:
            return
        queues, when = tensor_shadow.issue(self.batch, s.rows, "tcgen05")
        shared = self.batch.shared.shadow
        n = np.arange(len(s.rows))[:, None]
        outside = tensor_shadow.access(s.c, s.rows, queues, when, s.p.ins, True, True)
        shared.fit(16)
        for number, tile in enumerate(tiles):
            g = tile.granules(shared.granule)
            used = form.used("a" if a is None and number < s.blocks.shape[1] else "b")
            shared.on_read(outside, g if used == 16 else g[:, g[0] * shared.granule % 16 < used], n)
        inside = tensor_shadow.access(s.c, s.rows, queues, when, s.p.ins, True, False)
        for i in range(s.blocks.shape[1]):
            for columns, those, writes in spans[1:] + spans[:1]:
                g = granules(s.blocks[:, i], those, np.minimum(columns, COLUMNS - 1))
                if not writes:
                    memory.noted(inside, g, False)
                    continue
                if enable.any():
                    memory.shadow.on_read(inside, g[enable], n[enable])
                memory.noted(inside, g, True)

    # --- what a product computes ---------------------------------------------------------------

    def _from_tensor(self, s: Site, start: Array, half: int) -> list[Array]:
        """Return the codes of A (n, lanes, 32 bytes' worth) of each block, from tensor memory."""
        lanes = s.form.lanes + 16 * half
        columns = np.minimum(start[:, None] + np.arange(_WORDS), COLUMNS - 1)
        blocks = s.blocks.T[..., None, None]
        words = [self.memory.data[b, lanes[None, :, None], columns[:, None, :]] for b in blocks]
        return [np.ascontiguousarray(w).view(s.form.code("a")) for w in words]

    def _scaled(self, s: Site, a: Array, b: Array, block: int, scales: list[Array]) -> Array:
        """Return A B with scale factors. Each 32 lanes of tensor memory take the factors of their own copy."""
        form, n = s.form, len(s.rows)
        table, length = scale_values(form.scale_type), form.k // form.scales
        out = np.zeros((n, a.shape[1], form.n))
        for part in range(4):
            block_of_rows = part % (4 // form.splits)
            first, count = part * form.splits // 4 * form.columns, form.columns
            rows = slice(32 * block_of_rows, 32 * block_of_rows + 32)
            mine = slice(32 * part, 32 * part + 32) if a.shape[1] == len(form.lanes) else rows
            of_a = self._factors(s, block, part, scales[0] + block_of_rows, 32, form.ids[0], table)
            of_b = self._factors(s, block, part, scales[1], count, form.ids[1], table)
            x = a[:, mine] * np.repeat(of_a, length, axis=2)
            y = b[:, first : first + count] * np.repeat(of_b, length, axis=2)
            out[:, rows, first : first + count] = np.matmul(x, y.swapaxes(1, 2))
        return out

    def _factors(self, s: Site, block: int, part: int, start: Array, count: int, first: int, table: Array) -> Array:
        """Return scale factors (n, count, scales) from one partition: factor r is in lane r % 32 of column r / 32."""
        r = np.arange(count)
        columns = np.minimum(start[:, None] + r // 32, COLUMNS - 1)
        words = self.memory.data[s.blocks[:, block, None], (32 * part + r % 32)[None, :], columns]
        codes = np.ascontiguousarray(words)[..., None].view(np.uint8)
        return table[codes[..., first : first + s.form.scales]]

    def _accumulate(
        self, s: Site, product: Array, block: int, d: Array, half: int, enable: Array, off: Array | None
    ) -> None:  # fmt: skip
        """Add a product (n, rows, columns) of each thread to D in one of its blocks, and keep lanes without output."""
        form = s.form
        lanes = form.lanes + 16 * half
        if form.splits > 1:
            product = np.concatenate(np.split(product, form.splits, axis=2), axis=1)
        if self.batch.run.config.skip_floating_point_ops and form.d_type != "s32":
            product = np.full(product.shape, np.inf, np.float32)
        held = self._window(s.blocks[:, block], lanes, d, form.columns)
        words = held if isinstance(held, np.ndarray) else self.memory.data[held]
        total = product
        if enable.any():
            old = form.accumulator(words)
            if s.p.scale_d:
                old = old * np.float32(2.0**-s.p.scale_d)
            if not enable.all():
                old = np.where(enable[:, None, None], old, old.dtype.type(0))
            total = form.sum(product, old)
        else:
            total = form.sum(product, None)
        new = form.words(np.ascontiguousarray(total))
        if off is not None:
            new = np.where(off[:, block % off.shape[1], lanes][..., None], words, new)
        if isinstance(held, np.ndarray):
            held[...] = new
        else:
            self.memory.data[held] = new

    def _window(self, blocks: Array, lanes: Array, start: Array, count: int) -> Any:
        """Return D's words: a view of tensor memory if blocks and lanes are evenly spaced, else their indices."""
        first = int(start[0])
        even = (start == first).all() and first + count <= COLUMNS and (np.diff(blocks) > 0).all()
        where = as_slice(blocks) if even else None
        if type(where) is slice and len(lanes) == 128:
            return self.memory.data[where, :, first : first + count]
        columns = np.minimum(start[:, None] + np.arange(count), COLUMNS - 1)
        return blocks[:, None, None], lanes[None, :, None], columns[:, None, :]

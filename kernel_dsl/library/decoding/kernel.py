"""Decoding on Hopper: all queries of a group of heads are rows of one tile, which loops over a part of the keys of
their sequence.

A block has a producer and a consumer warpgroup. The producer loads keys and values as vectors into registers, a step
ahead, and stores them to SMEM in the queries' dtype. So pages, float8 and masks of the length need no extra steps. The
consumer multiplies by wgmma. docs/attention.md has more.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import kernel_dsl as kd
from kernel_dsl.dtypes import FP8
from kernel_dsl.kernel import identified
from kernel_dsl.layout import pow2_ceil

from ..attention_forward.scored_config import lanes_of, swizzled
from ..attention_forward.sizes import LOG2E, LOWEST, ROWS
from ..attention_forward.step import softmax_step
from ..stage_product import following_slot
from ..stage_ring import await_release
from .opened import at_launch, declared, of_call
from .problem import SUMS, DecodeProblem, chunks, parts_type

STEP = 8192  # elements of the keys of a step: 64 registers of a lane for keys and values
MOST_KEYS = 96
STAGES = 2
EXPONENT = 0x7F800000  # the bits of a float32's exponent
# PTX for the first and the last two float8_e4m3fn of a word as two float16; the language converts one at a time
TWO = [f"{{ .reg .b16 %h, %l; mov.b32 {{%l, %h}}, $1; cvt.rn.f16x2.e4m3x2 $0, %{half}; }}" for half in ("l", "h")]
BESIDES = 3  # the time of a block besides its steps, in steps
ABOUT = 1.02  # times the earliest end: no estimate is closer
NARROW = 128  # the largest head dimension with which two blocks share a multiprocessor


@dataclass(frozen=True)
class DecodeConfig:
    """Sizes of the decoding kernel.

    A step has `block` keys, loaded `chunk` at a time, in `stages`; `splits` blocks share the keys of a sequence.
    With `splits` 0, each call gives their number, 2 or more.
    """

    block: int
    chunk: int
    stages: int
    splits: int


def decode_steps(p: DecodeProblem) -> tuple[int, int]:
    """(keys that are loaded together, keys of a step). If pages are too small, each key is loaded by its own page."""
    width = pow2_ceil(p.dim)  # a power of two, so that lanes can share a row
    most = min(STEP // width, MOST_KEYS) if p.dim <= NARROW else 64
    if not p.page:
        return most, most
    each = (most if p.dim == width else most // 2) // 16 * 16
    float8 = p.cache_dtype in FP8
    # the float8 of other parts, converted, take more registers than the producer has
    chunk, block = chunks(p.page & -p.page if float8 else p.page, most) or (each, each)
    # each part has registers of its own, which eight keys fill only partly
    parts = 8 if not float8 else 4 if chunk == 8 or p.dim != width else 6
    unit = math.lcm(chunk, 16)  # the keys of the smallest step
    return chunk, min(block, parts * chunk // unit * unit)


def gathers(p: DecodeProblem, chunk: int) -> bool:
    """Whether each key has its own page number."""
    return bool(p.page) and p.page % chunk != 0


def split_count(blocks: int, slots: int, steps: int) -> int:
    """The number of splits by which the last of `blocks` times it ends earliest, each with its share of the `steps`, two
    or more. Of those that end about then, the fewest, which leave the fewest parts to combine.
    """
    most = max(1, min(steps // 2, kd.cdiv(4 * slots, max(blocks, 1))))
    # of ints, for each call with other lengths: without the checks of the public `cdiv`
    ends = [-(-blocks * n // slots) * (-(-steps // n) + BESIDES) for n in range(1, most + 1)]
    return next(n for n, end in enumerate(ends, 1) if end <= ABOUT * min(ends))


def decode_config(p: DecodeProblem, steps: tuple[int, int], splits: int | None, multiprocessors: int) -> DecodeConfig:
    """The configuration; `steps`: (keys that are loaded together, keys of a step)."""
    chunk, block = steps
    most = max(kd.cdiv(p.keys, block), 1)
    slots = multiprocessors * (2 if p.dim <= NARROW else 1)
    count = split_count(p.units * kd.cdiv(p.rows, ROWS), slots, most) if splits is None else splits
    return DecodeConfig(block, chunk, STAGES, min(count, most))


class _Decode:
    """The common parts of the roles."""

    def __init__(self, p: DecodeProblem, t: DecodeConfig, promise: bool) -> None:
        self.p, self.t, self.promise = p, t, promise
        self.dim = lanes_of(p.dim)
        # float16 holds float8_e4m3fn, and one instruction converts two elements
        self.dtype = kd.float16 if p.cache_dtype in FP8 else p.dtype
        self.tiles = kd.cdiv(p.rows, ROWS)
        self.gathers = gathers(p, t.chunk)
        self.by_words = p.cache_dtype in FP8  # lanes hold words of float8 elements
        # steps that are loaded ahead: float8 takes half of the registers and needs the same bytes in flight, but many
        # small pages take registers, too
        few = p.dim % 64 == 0 and t.block // t.chunk <= (4 if p.dim == NARROW else 2 if p.dim < NARROW else 1)
        self.depth = 2 if p.cache_dtype in FP8 and few else 1

    # --- places -----------------------------------------------------------------------------------

    def place(self, s: dict[str, Any]) -> None:
        """Put into `s` this block's batch, key head, first row, part of the keys and length."""
        p, t = self.p, self.t
        block = kd.axis_index("block")
        splits = s.get("splits", t.splits)
        split, rest = kd.rem(block, splits), kd.div(block, splits)
        tile, unit = kd.rem(rest, self.tiles), kd.div(rest, self.tiles)
        batch = kd.div(unit, p.kv_heads)
        length = p.length(s["lengths"], batch, self.promise)
        first = kd.div(p.first_key(length), t.block)
        steps = kd.cdiv(length, t.block) - first
        share = kd.cdiv(steps, splits)
        begin = first + split * share
        count = kd.maximum(kd.minimum(share, first + steps - begin), 0)
        s.update(unit=unit, split=split, batch=batch, kv_head=kd.rem(unit, p.kv_heads), row=tile * ROWS)
        s.update(length=length, begin=begin, count=count)

    # --- the producer -----------------------------------------------------------------------------

    def ids(self, step: Any, s: dict[str, Any]) -> tuple[Any, ...]:
        """The page numbers of a step's chunks; without pages the number of the sequence."""
        p, t = self.p, self.t
        if not p.page:
            return ()
        start = (s["begin"] + step) * t.block
        if self.gathers:
            key = start + self.rows()
            there = (step < s["count"]) & (key < s["length"])
            return (kd.load(s["page_table"].at[s["batch"]], (kd.div(key, p.page),), mask=there),)
        numbers = [start + i for i in range(0, t.block, t.chunk)]
        return tuple(
            kd.load(s["page_table"], (s["batch"], kd.div(n, p.page)), mask=(step < s["count"]) & (n < s["length"]))
            for n in numbers
        )

    def spread(self, shape: Any, item: int) -> Any:
        """The layout of rows of a cache: each lane holds 16 neighbouring bytes if possible."""
        return kd.Layout.WG_STRIDED(shape, math.gcd(shape[-1] * item, 16) // item)

    def rows(self) -> Any:
        """The numbers of the rows of a chunk, in the layout of one element for each."""
        p = self.p
        item = 4 if self.by_words else p.cache_dtype.itemsize
        spread = self.spread((self.t.chunk, p.dim * p.cache_dtype.itemsize // item), item)
        return kd.layout_cast(kd.arange(self.t.chunk), spread.reduce((1,), keepdims=False))

    def chunk(self, source: Any, step: Any, number: int, page: Any, s: dict[str, Any]) -> Any:
        """Some keys or values, zeros beyond the length."""
        p, t = self.p, self.t
        start = (s["begin"] + step) * t.block + number * t.chunk
        left = kd.where(step < s["count"], s["length"] - start, 0)
        if self.by_words:
            source = source.bitcast(kd.uint32)
        layout = self.spread((t.chunk, source.shape[-1]), source.dtype.itemsize)
        bounds, row = "promise" if self.promise else None, self.rows()
        how: dict[str, Any] = {"layout": layout, "mask": (row < left)[:, None]}
        if not p.page:
            rows = kd.ds(start, t.chunk)
            return kd.load(p.head_of(source, s["batch"], s["kv_head"]), (rows, slice(None)), **how)
        if self.gathers:
            index = page, kd.rem(start + row, p.page), slice(None)
            return kd.load(p.head_of(source, slice(None), s["kv_head"]), index, **how, bounds=bounds)
        rows = kd.ds(kd.multiple_of(kd.rem(start, p.page), t.chunk), t.chunk)
        # a missing page is zeros on a GPU; in the interpreter the promise makes it a hazard
        return kd.load(p.head_of(source, page, s["kv_head"]), (rows, slice(None)), **how, bounds=bounds)

    def keep(self, x: Any, target: Any) -> None:
        """Store the result of `chunk` to SMEM, in the dtype of the products."""
        if not self.by_words:
            target[...] = x
            return
        x = kd.layout_cast(x, self.spread(x.shape, 4))  # a loop's carry may have any layout
        words = [kd.inline_ptx(text, x, out_type=kd.uint32, pure=True) for text in TWO]
        halves = [(word >> shift).astype(kd.uint16) for word in words for shift in (0, 16)]
        made = [kd.bitcast_convert_type(half, self.dtype) for half in halves]
        target.reshape(*x.shape, len(made))[...] = kd.stack(made, axis=2)

    def fetch(self, source: Any, step: Any, pages: tuple[Any, ...], s: dict[str, Any]) -> tuple[Any, ...]:
        count = self.t.block // self.t.chunk
        return tuple(self.chunk(source, step, n, pages[n] if pages else None, s) for n in range(count))

    def produce(self, k: Any, v: Any, s: dict[str, Any]) -> None:
        p, t = self.p, self.t
        self.set_registers(1)
        if self.dim != p.dim:
            for name in "kv":
                pad = s[f"{name}_smem"].at[:, :, kd.ds(p.dim, self.dim - p.dim)]
                pad[...] = kd.zeros(pad.shape, self.dtype)
        start: list[Any] = [0]
        for step in range(self.depth):
            pages = self.ids(step, s)
            start.append((self.ids(step + self.depth, s), self.fetch(k, step, pages, s), self.fetch(v, step, pages, s)))

        def put(name: str, step: Any, slot: Any, part: Any) -> None:
            """Store data that an earlier step loaded."""
            await_release(s[f"{name}_consumed"], slot, step >= t.stages)
            target = s[f"{name}_smem"].at[slot]
            for number, x in enumerate(part):
                self.keep(x, target.at[kd.ds(number * t.chunk, t.chunk), kd.ds(0, p.dim)])
            kd.commit_smem()
            kd.barrier_arrive(s[f"{name}_loaded"].at[slot])

        @kd.loop(0, kd.cdiv(s["count"], self.depth), init_carry=tuple(start))
        def _(turn: Any, carry: Any) -> Any:
            slot, *steps = carry
            made: list[Any] = []
            for number, (pages, *parts) in enumerate(steps):
                step = turn * self.depth + number
                following, loaded = self.ids(step + 2 * self.depth, s), []
                for name, source, part in (("k", k, parts[0]), ("v", v, parts[1])):
                    store = partial(put, name, step, slot, part)
                    if number:
                        kd.when(step < s["count"])(store)
                    else:
                        store()
                    loaded.append(self.fetch(source, step + self.depth, pages, s))
                made.append((following, *loaded))
                slot = following_slot(slot, t.stages)
            return (slot, *made)

    def set_registers(self, role: int) -> None:
        """Set the registers of the consumer (0) or the producer (1)."""
        mine, others = self.registers[role], self.registers[1 - role]
        kd.set_max_registers(mine, action="increase" if (mine, 1 - role) > (others, role) else "decrease")

    # --- the consumer -----------------------------------------------------------------------------

    @property
    def registers(self) -> tuple[int, int]:
        """Registers a lane: (of the consumer, of the producer)."""
        if self.p.dim > NARROW:
            return 240, 240
        return (144, 112) if self.gathers else (152, 104)

    def consume(self, q: Any, results: tuple[Any, ...], s: dict[str, Any]) -> None:
        p, t = self.p, self.t
        self.set_registers(0)
        batch, kv_head, length = s["batch"], s["kv_head"], s["length"]
        q_tile = s["q_smem"]
        queries, factor = self.narrowed(p.taken(q, batch, kv_head, s["row"], ROWS, self.dim))
        q_tile[...] = queries
        kd.commit_smem()
        k_scale = p.scale(s, "k", batch, kv_head)
        _, unit = p.scored(kd.float32(0.0), k_scale)
        query = kd.rem(s["row"] + kd.broadcasted_iota(kd.int32, (ROWS, t.block), 0), p.queries)
        column = kd.broadcasted_iota(kd.int32, (ROWS, t.block), 1)
        whole_to = length - (p.queries - 1) if p.causal else length
        whole_from = 0 if p.window is None else length - p.window

        def hidden(x: Any, first: Any) -> Any:
            """Scores, masked for keys that a query doesn't see."""
            whole = (first >= whole_from) & (first + t.block <= whole_to)
            if p.window is not None and not p.causal:
                whole = whole & (first + t.block <= length - p.queries + p.window)

            def masked(x: Any) -> Any:
                return kd.where(p.seen(query, first + column, length), x, -math.inf)

            return kd.cond(whole, lambda x: x, masked, x)

        def step(number: Any, carry: Any, accs: tuple[Any, Any]) -> Any:
            slot, top, total = carry
            s_acc, o_acc = accs
            before = kd.where(slot == 0, t.stages - 1, slot - 1)
            kd.barrier_wait(s["k_loaded"].at[slot])
            kd.wgmma(s_acc, q_tile, s["k_smem"].at[slot].T, accumulate=False)
            kd.wgmma_wait(0)
            kd.barrier_arrive(s["k_consumed"].at[slot])
            kd.barrier_arrive(s["v_consumed"].at[before], number > 0)
            x = s_acc[...]
            x, _ = p.scored(x if factor is None else x * factor[:, None], k_scale)
            x = hidden(x, (s["begin"] + number) * t.block)
            weights, fade, top, total = softmax_step(x, top, total, unit)
            o_acc.scale_rows(fade)
            kd.barrier_wait(s["v_loaded"].at[slot])
            kd.wgmma(o_acc, weights.astype(self.dtype), s["v_smem"].at[slot])
            return following_slot(slot, t.stages), top, total

        def run(s_acc: Any, o_acc: Any) -> Any:
            top = kd.layout_cast(kd.full((ROWS,), LOWEST, kd.float32), kd.Layout.WGMMA_ROW)
            total = kd.layout_cast(kd.zeros((ROWS, 8), kd.float32), kd.Layout.WGMMA)
            _, top, total = kd.loop(0, s["count"], init_carry=(0, top, total))(partial(step, accs=(s_acc, o_acc)))
            return o_acc[...], top * unit, kd.sum(total, axis=1)

        types = kd.ACC((ROWS, t.block), kd.float32), kd.ACC((ROWS, self.dim), kd.float32)
        value, top, sums = kd.run_scoped(run, *types)
        self.finish(value, top, sums, results, s)

    def narrowed(self, q: Any) -> tuple[Any, Any]:
        """(queries in the dtype of products, the factor of each row's scores, None for 1).

        For bfloat16 the factor is a power of 2 that depends on the row's largest element, because float16 has enough
        bits but a smaller range.
        """
        if q.dtype == self.dtype:
            return q, None
        q = q.astype(kd.float32)
        bits = kd.bitcast_convert_type(kd.max(abs(q), axis=1), kd.int32) & EXPONENT
        bits = kd.minimum(bits, 253 << 23)
        inverse = kd.bitcast_convert_type((254 << 23) - bits, kd.float32)
        factor = kd.layout_cast(kd.bitcast_convert_type(bits, kd.float32), kd.Layout.WGMMA_ROW)
        return (q * inverse[:, None]).astype(self.dtype), factor

    def finish(self, value: Any, top: Any, total: Any, results: tuple[Any, ...], s: dict[str, Any]) -> None:
        """Store rows of results or of parts. Their weights are relative to 2 ** `top` and sum up to `total`."""
        p = self.p
        factor = kd.where(total == 0, 0.0, 1.0 / total)
        factor = factor * p.scale(s, "v", s["batch"], s["kv_head"])
        value = value * factor[:, None]
        logs = kd.where(total == 0, -math.inf, top + kd.log2(total))
        if self.t.splits == 1:
            here = s["batch"], s["kv_head"], s["row"]
            p.put(results[0], *here, value[:, : p.dim].astype(p.dtype))
            if p.lse:
                p.put(results[1], *here, logs * (1.0 / LOG2E))
            return
        parts, rows = results[0].at[s["unit"], s["split"]], kd.ds(s["row"], ROWS)
        kd.when(s["count"] > 0)(lambda: kd.store(parts.at[:, : p.dim], (rows, kd.ds(0, self.dim)), value))
        kd.store(parts.at[:, p.dim], (rows,), logs)


@cache
def decode_kernel(
    problem: DecodeProblem, config: DecodeConfig, promise: bool, multiprocessors: int = 0, wanted: int | None = None
) -> Any:
    """The kernel `(q, k, v, lengths, *extras) -> results`, of one split, else `-> parts` for `decode_combine`.

    `promise`: all page numbers are in the cache, which the interpreter checks. If calls give the number of splits, it
    is that of `decode_config` for `multiprocessors` and the number that the user `wanted`.
    """
    p, t, names = problem, config, problem.extras
    whole = _Decode(p, t, promise)

    def parts(*structs: Any) -> tuple[int, int]:
        """(key heads of all sequences, splits)."""
        table = structs[4] if p.page else None
        own = of_call(p, structs[0], structs[1], table)
        return own.units, t.splits or decode_config(own, (t.chunk, t.block), wanted, multiprocessors).splits

    def grid(*structs: Any) -> tuple[Any]:
        units, splits = parts(*structs)
        return (units * whole.tiles * splits,)

    def out_type(*structs: Any) -> Any:
        return parts_type(*parts(*structs), p.rows, p.dim)

    def body(q: Any, k: Any, v: Any, lengths: Any, *rest: Any, **scratch: Any) -> None:
        s = scratch | dict(zip(names, rest, strict=False)) | {"lengths": lengths}
        kernel = copy(whole)
        kernel.p = at_launch(p, k, s.get("page_table"))
        if not t.splits:
            s["splits"] = rest[len(names)].shape[1]
        kernel.place(s)
        me = kd.axis_index("wg")
        kd.when(me == 1)(lambda: kernel.produce(k, v, dict(s)))
        kd.when(me == 0)(lambda: kernel.consume(q, rest[len(names) :], dict(s)))

    shapes = declared(p)
    if shapes is not None and t.splits == 0:
        shapes[4 + len(names)] = (kd.Dim("units"), kd.Dim("splits", max=2**20), p.rows, p.dim + SUMS)
    scratch: dict[str, Any] = {"q_smem": swizzled(whole.dtype, ROWS, whole.dim)}
    for name in "kv":
        scratch[f"{name}_smem"] = swizzled(whole.dtype, t.stages, t.block, whole.dim)
        scratch[f"{name}_loaded"] = kd.Barrier(num_barriers=t.stages)
        scratch[f"{name}_consumed"] = kd.Barrier(num_barriers=t.stages)
    made = kd.kernel(
        body,
        out_type=p.out_type if t.splits == 1 else out_type,
        scratch_types=scratch,
        grid=grid if t.splits == 0 else (p.units * whole.tiles * t.splits,),
        shapes=shapes,
        grid_names=("block",),
        num_threads=2,
        thread_name="wg",
        compiler_params=kd.CompilerParams(approx_math=True, max_registers=128 if p.dim <= NARROW else 240),
        name="decode_attention",
    )
    return identified(made, problem, config, promise, multiprocessors, wanted)

"""Stores by lanes of tiles whose rows begin anywhere in GMEM, such as those of a matrix with an odd number of columns.

If a warp stores neighbouring words of a row from the row's own first word on, all its stores begin within a line, and cut
two sectors each. Here each warp starts at the line in which its part of the row begins, and leaves out the words before. So
only the first and the last store of a part cut sectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import kernel_dsl as kd

from ..products.matmul_config import MatmulConfig
from ..products.problem import Problem

WARP, WARPS = 32, 4  # lanes, and warps of a warpgroup
LEAST = 256  # bytes of a part of a row: shorter ones have too many ends
WIDEST = 128  # columns of a part that goes through registers: of more bytes they spill
HELD = 18  # words that a lane holds at a time
PANEL = 8  # rows of a product's sums that a lane's neighbouring registers are apart
WORDS = {1: kd.uint8, 2: kd.uint16, 4: kd.uint32, 8: kd.uint64}


def pitch(columns: int, dtype: Any) -> int:
    """The elements of a row of a part in SMEM: rows are spread over the banks as sums are stored."""
    return columns + (32 if dtype.itemsize >= 4 else 16) // dtype.itemsize


def halves(x: Any) -> list[Any]:
    """Both halves of a product's sums (rows, columns), each of every other eight rows, which are registers of their own."""
    rows, columns = x.shape
    panels = x.reshape(rows // (2 * PANEL), 2, PANEL, columns)
    return [panels[:, half].reshape(rows // 2, columns) for half in range(2)]


def stores_lines(p: Problem, t: MatmulConfig) -> bool:
    """Whether Hopper's fast product stores its tiles so. If consumers take turns, or operands of steps are loaded, parts are
    shorter.
    """
    alone = bool(p.lanes) and p.plain and not (t.ping_pong or t.swapped)
    return alone and t.epilogue_n * p.out_dtype.itemsize >= LEAST


def short_part(columns: int, rows: int, p: Problem) -> int:
    """The columns of a part of `rows` rows that goes from SMEM to GMEM through registers: they divide `columns`, which are a
    multiple of 8, and are such a multiple.
    """
    most, part = min(LEAST // p.out_dtype.itemsize, WIDEST) * 64 // rows, columns
    while part > most:
        part //= 2
    return part if part % 8 == 0 else max(n for n in range(8, columns + 1, 8) if columns % n == 0 and n <= max(most, 8))


def word_bytes(p: Problem) -> int:
    """The bytes of the widest words that all rows of the result begin with, up to 8."""
    return min(p.lanes * p.out_dtype.itemsize, 8)


def in_words(ref: Any, out: Any, p: Problem) -> Any:
    """A whole Ref of results, in these words; in elements if `out`, where results are stored, has gaps."""
    bytes_ = word_bytes(p)
    return ref if bytes_ == p.out_dtype.itemsize or not out.type.contiguous else ref.bitcast(WORDS[bytes_])


def store_lines(
    part: Any, width: int, out: Any, index: Sequence[Any], m: Any, n: Any, p: Problem, half: int | None = None
) -> None:
    """Store a part of the result from SMEM: `part` (rows, pitch), `in_words`, of which `width` elements of a row count.

    `out`: (*leading axes, M, N); `index`: of the leading axes; `m`, `n`: the part's first row and column; `half`: which of
    `halves` it is. What lies beyond the result is left out.
    """
    leading, out = out.shape[:-2], in_words(out, out, p)
    each = out.dtype.itemsize // p.out_dtype.itemsize  # elements of a word
    M, N = p.M, p.N if each == 1 else p.N // each
    n = n if each == 1 else kd.div(n, each)
    columns = width // each
    before: Any = 0
    for place, extent in zip(index, leading, strict=True):
        before = before * extent + place
    target = out.at[tuple(index)] if index else out
    end = kd.clip(N - n, 0, columns)
    # beside many blocks of one warpgroup, where `half` is None, pairs take longer
    if out.dtype.itemsize == 2 and half is not None and out.type.contiguous:
        _store_pairs(part, columns, target, m, n, M, N, end, half)
        return
    row, chunk, lane, turn = _lanes(part.shape[0], -(-(columns + WARP - 1) // WARP))

    @kd.loop(0, part.shape[0] // turn)
    def _(number: Any) -> None:
        own = row + number * turn
        down = _row(own, half)
        shift = ((before * M + m + down) * N + n) & (WARP - 1)
        at = _apart(lane - shift)
        along = at + WARP * chunk
        inside = _below(along, kd.where(down < M - m, end, 0))
        x = kd.load(part, (own, along), mask=inside)
        place = (down.astype(kd.int64) + m, (at + n).astype(kd.int64) + WARP * chunk.astype(kd.int64))
        kd.store(target, place, x, mask=inside, bounds="promise")


def store_parts(
    parts: Iterable[Any], shape: tuple[int, int], out: Any, index: Sequence[Any], m: Any, n: Any, p: Problem
) -> None:
    """Store a tile of `shape` through SMEM of its own. `parts`: its columns, some at a time; the rest is as of `store_lines`."""

    def through(tile: Any) -> None:
        first = 0
        for part in parts:
            tile[:, first : first + part.shape[1]] = part.astype(p.out_dtype)
            first += part.shape[1]
        store_lines(in_words(tile, out, p), shape[1], out, index, m, n, p)

    kd.run_scoped(through, kd.SMEM((shape[0], pitch(shape[1], p.out_dtype)), p.out_dtype))


def _store_pairs(
    part: Any, columns: int, target: Any, m: Any, n: Any, M: Any, N: Any, end: Any, half: int | None
) -> None:
    """`store_lines` of elements of 2 bytes: lanes store two at a time, at addresses that are multiples of 4."""
    bits = part.bitcast(kd.uint16)
    base = kd.inline_ptx("mov.b64 $0, $1;", target, out_type=kd.int64) + 2 * n
    pitch: Any = kd.astype(2 * N, kd.int64)
    rows = part.shape[0]
    row, chunk, lane, turn = _lanes(rows, -(-(columns + 2 * WARP - 1) // (2 * WARP)))

    @kd.loop(0, rows // turn)
    def _(number: Any) -> None:
        own = row + number * turn
        down = _row(own, half)
        first = base + (down + m).astype(kd.int64) * pitch
        shift = kd.div(first.astype(kd.int32) & (4 * WARP - 1), 2)
        at = _apart(2 * lane - shift)
        along = at + 2 * WARP * chunk
        inside = _below(along, kd.where(down < M - m, kd.maximum(end - 1, 0), 0))  # both elements
        low, high = (kd.load(bits, (own, along + i), mask=inside).astype(kd.uint32) for i in range(2))
        address = first + 2 * at.astype(kd.int64) + 4 * WARP * chunk.astype(kd.int64)
        kd.inline_ptx("@$2 st.global.b32 [$0], $1;", address, low | (high << 16), inside)

    own, side = (kd.broadcasted_iota(kd.int32, (rows, 2), axis) for axis in (0, 1))
    down = _row(own, half)
    odd = (kd.div((base + (down + m).astype(kd.int64) * pitch).astype(kd.int32), 2) + kd.where(side == 0, 0, end)) & 1
    along = kd.where(side == 0, 0, end - 1)
    inside = (odd == 1) & (down < M - m) & (end > 0)
    x = kd.load(part, (own, along), mask=inside)
    kd.store(target, ((down + m).astype(kd.int64), (along + n).astype(kd.int64)), x, mask=inside, bounds="promise")


def _lanes(rows: int, count: int) -> tuple[Any, ...]:
    """(row, number of the store in the row, lane) of what a warpgroup stores in one turn, each (rows of a turn, count, 32); and
    the rows of a turn.
    """
    turn = WARPS * max(HELD // count, 1)
    while rows % turn:
        turn -= WARPS
    lanes = tuple((2, 1 << i) for i in range(WARP.bit_length() - 1))
    layout = kd.Layout(3, ((1, count, 1), (0, turn // WARPS, WARPS)), lanes, ((0, 1), (0, 2)))
    shape = (turn, count, WARP)
    return *(kd.layout_cast(kd.broadcasted_iota(kd.int32, shape, axis), layout) for axis in range(3)), turn


def _row(own: Any, half: int | None) -> Any:
    """The row of the part of which row `own` is in SMEM."""
    return own if half is None else own + (own & -PANEL) + half * PANEL


def _apart(x: Any) -> Any:
    """x, of which the optimiser does not know how it was computed. It would subtract a row's shift from each address of a store
    otherwise, instead of adding constants to one address.
    """
    return kd.inline_ptx("mov.b32 $0, $1;", x, out_type=kd.int32, pure=True)


def _below(x: Any, limit: Any) -> Any:
    """Whether 0 <= x < limit; in one comparison, because limits are not negative."""
    return kd.bitcast_convert_type(x, kd.uint32) < limit.astype(kd.uint32)

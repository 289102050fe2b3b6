"""The model's own kernels: RMS norm and RoPE with their gradients, and the small steps of serving."""

from __future__ import annotations

from functools import cache
from typing import Any

import kernel_dsl as kd

f32, bf16, i32 = kd.float32, kd.bfloat16, kd.int32
Spec = kd.ShapeDtypeStruct
NORM_BLOCKS = 264  # that stay, each with its rows: two for each multiprocessor
CLASSES = 1024  # of the logits at a time
EPS = 1e-5


# --- RMS norm -------------------------------------------------------------------------------------


@kd.kernel(out_type=lambda x, gamma: (x, Spec((x.shape[0],), f32)), grid=lambda x, gamma: (x.shape[0],))
def rms_norm(x: Any, gamma: Any, y: Any, reciprocal: Any) -> None:
    """y = x * reciprocal * gamma for x (rows, columns), with the reciprocal root of each row's mean square."""
    row = kd.program_id(0)
    value = x[row].astype(f32)
    scale = kd.rsqrt(kd.sum(value * value) * (1 / x.shape[1]) + EPS)
    y[row] = (value * scale * gamma[...].astype(f32)).astype(x.dtype)
    reciprocal[row] = scale


@kd.kernel(
    out_type=lambda x, gamma, reciprocal, dy: (x, Spec((min(NORM_BLOCKS, x.shape[0]), x.shape[1]), f32)),
    grid=lambda x, gamma, reciprocal, dy: (min(NORM_BLOCKS, x.shape[0]),),
)
def rms_norm_gradients(x: Any, gamma: Any, reciprocal: Any, dy: Any, dx: Any, parts: Any) -> None:
    """dx, and for each block the sum of its rows' terms of the gradient of gamma."""
    rows, columns = x.shape
    block, blocks = kd.program_id(0), parts.shape[0]
    scale = gamma[...].astype(f32)

    @kd.loop(0, (rows - block + blocks - 1) // blocks, init_carry=kd.zeros((columns,), f32))
    def total(step: Any, so_far: Any) -> Any:
        row = block + step * blocks
        r, g = reciprocal[row], dy[row].astype(f32)
        normal = x[row].astype(f32) * r
        wanted = g * scale
        along = kd.sum(wanted * normal) * (1 / columns)
        dx[row] = ((wanted - normal * along) * r).astype(x.dtype)
        return so_far + g * normal

    parts[block] = total


@cache
def column_sums(dtype: Any) -> Any:
    """The kernel `(rows, columns) -> (columns,)` of the sums down each column, in order, as `dtype`."""

    @kd.kernel(out_type=lambda x: Spec(x.shape[1:], dtype), grid=lambda x: (kd.cdiv(x.shape[1], 32),))
    def sums(x: Any, out: Any) -> None:
        across = kd.ds(kd.program_id(0) * 32, 32)
        out[across] = kd.sum(x[:, across], axis=0).astype(dtype)

    return sums


# --- RoPE -----------------------------------------------------------------------------------------


def _turned(ref: Any, row: Any, first: int, heads: int, cos: Any, sin: Any) -> tuple[Any, Any]:
    """Both halves of some heads of a row, rotated by the angles of its position."""
    half = ref.shape[2] // 2
    a, b = (ref[row, kd.ds(first, heads), kd.ds(start, half)].astype(f32) for start in (0, half))
    return a * cos - b * sin, b * cos + a * sin


def _put(ref: Any, row: Any, first: int, halves: Any) -> None:
    heads, half = halves[0].shape
    for start, value in zip((0, half), halves, strict=True):
        ref[row, kd.ds(first, heads), kd.ds(start, half)] = value.astype(ref.dtype)


@cache
def rope(heads: int, kv_heads: int) -> Any:
    """`(qkv, positions, cos, sin) -> (q, k, v)`: splits qkv (rows, heads + 2 kv_heads, dim), and rotates q and k.

    positions: int32 (rows,); cos and sin: float32 (positions, dim / 2), one row a position.
    """

    def shapes(qkv: Any, *others: Any) -> tuple[Any, ...]:
        rows, _, dim = qkv.shape
        return tuple(Spec((rows, n, dim), qkv.dtype) for n in (heads, kv_heads, kv_heads))

    @kd.kernel(out_type=shapes, grid=lambda qkv, *others: (qkv.shape[0],), name="rope")
    def kernel(qkv: Any, positions: Any, cos: Any, sin: Any, q: Any, k: Any, v: Any) -> None:
        row = kd.program_id(0)
        c, s = cos[positions[row]], sin[positions[row]]
        _put(q, row, 0, _turned(qkv, row, 0, heads, c, s))
        _put(k, row, 0, _turned(qkv, row, heads, kv_heads, c, s))
        v[row] = qkv[row, kd.ds(heads + kv_heads, kv_heads)]

    return kernel


@cache
def rope_gradient(heads: int, kv_heads: int) -> Any:
    """`(dq, dk, dv, positions, cos, sin) -> dqkv`: rotates the gradients back, and joins them."""

    def shape(dq: Any, *others: Any) -> Any:
        return Spec((dq.shape[0], heads + 2 * kv_heads, dq.shape[2]), dq.dtype)

    @kd.kernel(out_type=shape, grid=lambda dq, *others: (dq.shape[0],), name="rope_gradient")
    def kernel(dq: Any, dk: Any, dv: Any, positions: Any, cos: Any, sin: Any, dqkv: Any) -> None:
        row = kd.program_id(0)
        c, s = cos[positions[row]], -sin[positions[row]]
        _put(dqkv, row, 0, _turned(dq, row, 0, heads, c, s))
        _put(dqkv, row, heads, _turned(dk, row, 0, kv_heads, c, s))
        dqkv[row, kd.ds(heads + kv_heads, kv_heads)] = dv[row]

    return kernel


# --- serving --------------------------------------------------------------------------------------


@kd.kernel(
    out_type=lambda table, tokens: Spec((tokens.shape[0], table.shape[1]), table.dtype),
    grid=lambda table, tokens: tokens.shape,
)
def embed(table: Any, tokens: Any, out: Any) -> None:
    """The rows of `table` that int32 `tokens` name."""
    row = kd.program_id(0)
    out[row] = table[tokens[row]]


@kd.kernel(
    out_type=lambda k, v, pages, places, k_cache, v_cache: (k_cache, v_cache),
    input_output_aliases={4: 0, 5: 1},
    grid=lambda k, v, pages, places, k_cache, v_cache: (k.shape[0],),
)
def append(k: Any, v: Any, pages: Any, places: Any, k_cache: Any, v_cache: Any, k_out: Any, v_out: Any) -> None:
    """Put row i of k and v (rows, kv_heads, dim) at place `places[i]` of page `pages[i]` of the caches, in place."""
    row = kd.program_id(0)
    page, place = pages[row], places[row]
    k_out[page, :, place] = k[row]
    v_out[page, :, place] = v[row]


@kd.kernel(
    out_type=lambda lengths, table, page: (Spec(lengths.shape, i32),) * 3,
    grid=lambda lengths, table, page: lengths.shape,
)
def next_places(lengths: Any, table: Any, page: Any, pages: Any, places: Any, longer: Any) -> None:
    """The place of each request's next key (its page and its place there), and the lengths with this key."""
    row = kd.program_id(0)
    at, size = lengths[row], page[...]
    pages[row] = table[row, at // size]
    places[row] = at % size
    longer[row] = at + 1


@kd.kernel(
    out_type=lambda logits: Spec((logits.shape[0],), i32),
    grid=lambda logits: (logits.shape[0],),
)
def greatest(logits: Any, token: Any) -> None:
    """The first class with the greatest logit of each row: greedy sampling."""
    row, classes = kd.program_id(0), logits.shape[1]
    width = min(CLASSES, classes)

    @kd.loop(0, kd.cdiv(classes, width), init_carry=(kd.full((), -float("inf"), f32), kd.full((), 0, i32)))
    def found(step: Any, best: Any) -> Any:
        value = kd.load(logits, (row, kd.ds(step * width, width)), fill=-float("inf")).astype(f32)
        top, where = kd.max(value), kd.argmax(value) + step * width
        better = top > best[0]
        return kd.where(better, top, best[0]), kd.where(better, where, best[1])

    token[row] = found[1]


@kd.kernel(
    out_type=lambda token, lengths, tokens_now, lengths_now, history, starts: (tokens_now, lengths_now, history),
    input_output_aliases={2: 0, 3: 1, 4: 2},
    grid=lambda token, *others: token.shape,
)
def advance(
    token: Any, lengths: Any, tokens_now: Any, lengths_now: Any, history: Any, starts: Any,
    tokens_out: Any, lengths_out: Any, history_out: Any,
) -> None:  # fmt: skip
    """Store the sampled tokens in place for the next step, and in `history[i]`, from `starts[i]` keys on."""
    row = kd.program_id(0)
    tokens_out[row] = token[row]
    lengths_out[row] = lengths[row]
    history_out[row, lengths[row] - starts[row]] = token[row]

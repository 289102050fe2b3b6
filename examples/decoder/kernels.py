"""The model's own kernels: the small steps of serving."""

from __future__ import annotations

from typing import Any

import kernel_dsl as kd

f32, i32 = kd.float32, kd.int32
Spec = kd.ShapeDtypeStruct
CLASSES = 1024  # of the logits at a time


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

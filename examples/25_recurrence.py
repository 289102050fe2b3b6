"""Scans by a user's function: a linear recurrence along rows, and sums that restart at the heads of segments.

`kd.associative_scan(fn, tree)` combines each element with all earlier ones by `fn(earlier, later)`. The function must
be associative, and need not commute. Both scans are of pairs: s[t] = a[t] * s[t - 1] + b[t] composes functions s -> a *
s + b, so the pair is (a, b); a segmented sum has the pair of a flag, "there was a head", and the sum since that head.
The loop takes rows longer than `PIECE` in pieces, and carries the last state. A warpgroup processes four rows, one a
warp, so it needs no barrier.

Run it: `python -m examples.25_recurrence`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import kernel_dsl as kd

ROWS, PIECE = 4, 512


def _scanned(combine: Any, first: Any, second: Any, last: Any) -> tuple[Any, Any]:
    """The scan of a piece that starts with the state `last`: each element's result, and the state after the piece."""
    index = kd.broadcasted_iota(kd.int32, first.shape, 1)
    pairs = kd.associative_scan(combine, (first, second), axis=1)
    _, state = combine((kd.zeros_like(first), last + kd.zeros_like(second)), pairs)
    return state, kd.sum(kd.where(index == PIECE - 1, state, 0.0), axis=1, keepdims=True)


def compose(earlier: Any, later: Any) -> Any:
    """The function s -> a * s + b of `earlier`, followed by that of `later`."""
    return earlier[0] * later[0], earlier[1] * later[0] + later[1]


def since_head(earlier: Any, later: Any) -> Any:
    """Sums that restart where `later` has a head; heads are 1 and 0."""
    return kd.maximum(earlier[0], later[0]), later[1] + kd.where(later[0] != 0, 0.0, earlier[1])


def _kernel(name: str, combine: Any, neutral: float) -> Any:
    @kd.kernel(out_type=lambda a, b: b, grid=lambda a, b: (kd.cdiv(a.shape[0], ROWS),), grid_names=("rows",), name=name)
    def scan(a: Any, b: Any, out: Any) -> None:
        rows = kd.ds(kd.axis_index("rows") * ROWS, ROWS)

        @kd.loop(0, kd.cdiv(a.shape[1], PIECE), init_carry=kd.zeros((ROWS, 1), kd.float32))
        def _(step: Any, last: Any) -> Any:
            part = (rows, kd.ds(step * PIECE, PIECE))
            first = kd.load(a, part, fill=neutral).astype(kd.float32)
            state, last = _scanned(combine, first, kd.load(b, part).astype(kd.float32), last)
            out[part] = state.astype(b.dtype)
            return last

    return scan


recurrence = _kernel("recurrence", compose, 1.0)  # (a, b), 2-D floats: s[t] = a[t] * s[t - 1] + b[t] along rows
segmented_sums = _kernel("segmented_sums", since_head, 0.0)  # (heads, x): running sums that restart at each head


def main() -> None:
    """Check both against loops in float64."""
    rng = np.random.default_rng(0)
    for shape in ((5, 700), (2, 700)):
        a, b = rng.uniform(0.5, 1, shape).astype(np.float32), rng.standard_normal(shape).astype(np.float32)
        heads = (rng.random(shape) < 0.05).astype(np.float32)
        states, sums = np.zeros(shape), np.zeros(shape)
        state = total = np.zeros(shape[0])
        for t in range(shape[1]):
            state = a[:, t].astype(np.float64) * state + b[:, t]
            total = np.where(heads[:, t] != 0, 0, total) + b[:, t].astype(np.float64)
            states[:, t], sums[:, t] = state, total
        worst = max(np.max(np.abs(recurrence(a, b) - states)), np.max(np.abs(segmented_sums(heads, b) - sums)))
        print(f"recurrence and segmented sums of {shape}: worst error {worst:.1e}")
        assert worst < 2e-5


if __name__ == "__main__":
    main()

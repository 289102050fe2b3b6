"""A view ends where it ends: dynamic indices on views of every kind, each access beside one of a NumPy slice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernel_dsl as kd
from tests.ops.harness import INTERPRET

Spec = kd.ShapeDtypeStruct
f32, i32 = kd.float32, kd.int32
X = np.arange(1, 129, dtype=np.float32)


def run(body: Any, *args: Any, out: Any, **options: Any) -> Any:
    return kd.kernel(body, out_type=out, interpret=INTERPRET, **options)(*args)


def beyond(x: np.ndarray, start: int, size: int, fill: float = 0) -> np.ndarray:
    """`size` elements from `start`, which may lie before or beyond the array."""
    places = start + np.arange(size)
    inside = (places >= 0) & (places < len(x))
    return np.where(inside, x[np.clip(places, 0, len(x) - 1)], fill).astype(x.dtype)


# (the view of a Ref or of an array of 128 elements, its 1-D form)
VIEWS: list[Any] = [
    ("at[0:100]", lambda x: x[0:100]),
    ("at[5:]", lambda x: x[5:]),
    ("at[10:90:2]", lambda x: x[10:90:2]),
    ("at[100:20:-3]", lambda x: x[100:20:-3]),
    ("at[::-1].at[4:60]", lambda x: x[::-1][4:60]),
    ("reshape(16, 8).at[3]", lambda x: x.reshape(16, 8)[3]),
    ("reshape(16, 8).at[:, 3]", lambda x: x.reshape(16, 8)[:, 3]),
    ("reshape(16, 8).T.at[2].at[1:9]", lambda x: x.reshape(16, 8).T[2][1:9]),
    ("reshape(4, 4, 8).at[1, :, 2]", lambda x: x.reshape(4, 4, 8)[1, :, 2]),
    ("at[None, 3:40].at[0]", lambda x: x[3:40]),
    ("bitcast(kd.int32).at[7:30].bitcast(kd.float32)", lambda x: x[7:30]),
]
STARTS = [-3, 0, 1, 6, 30, 96, 200]


@pytest.mark.parametrize(("text", "part"), VIEWS, ids=lambda v: v if isinstance(v, str) else "")
def test_loads(text: str, part: Any) -> None:
    """Slices, an index, gathers; the fill that was asked for."""
    want = part(X)

    def body(x: Any, starts: Any, slices: Any, ones: Any, gathered: Any) -> None:
        view = eval(f"x.{text}", {"x": x, "kd": kd})
        for n in range(len(STARTS)):
            slices[n] = kd.load(view, kd.ds(starts[n], 20), fill=-1)
            ones[n] = view[starts[n]]
        gathered[...] = view[starts[...]]

    count = len(STARTS)
    outs = (Spec((count, 20), f32), Spec((count,), f32), Spec((count,), f32))
    slices, ones, gathered = run(body, X, np.array(STARTS, np.int32), out=outs)
    np.testing.assert_array_equal(slices, [beyond(want, s, 20, -1) for s in STARTS])
    np.testing.assert_array_equal(ones, [beyond(want, s, 1)[0] for s in STARTS])
    np.testing.assert_array_equal(gathered, ones)


@pytest.mark.parametrize("way", ["store", "scatter", "atomic", "elements"])
@pytest.mark.parametrize(("text", "part"), VIEWS[:-1], ids=lambda v: v if isinstance(v, str) else "")
@pytest.mark.sampled(2)
def test_stores(text: str, part: Any, way: str) -> None:
    """What lies beyond the view stays as it was."""
    starts = np.array([-3, 6, 95], np.int32)
    want = np.zeros(128, np.float32)
    for s in starts:
        places = s + np.arange(8)
        target = part(want)
        target[places[(places >= 0) & (places < len(target))]] += 1

    def body(starts: Any, out: Any) -> None:
        view = eval(f"out.{text}", {"out": out, "kd": kd})
        for n in range(len(starts)):
            index = kd.ds(starts[n], 8)
            if way == "store":
                view[index] = view[index] + 1
            elif way == "scatter":
                view[starts[n] + kd.arange(8)] = view[index] + 1
            elif way == "atomic":
                kd.atomic_add(view.at[index], 1)
            else:
                kd.atomic_add(view.at[starts[n] + kd.arange(8)], 1)

    np.testing.assert_array_equal(run(body, starts, out=Spec((128,), f32, init=0)), want)


def test_views_of_moving_views() -> None:
    """A view that starts at a traced value ends there and at its array's end, whichever comes first."""

    def body(x: Any, i: Any, j: Any, out: Any) -> None:
        out[...] = x.at[kd.ds(i, 32)][kd.ds(j, 8)]

    for i, j in [(0, 0), (10, 28), (10, -4), (110, 10), (-8, 4), (120, 31)]:
        want = beyond(beyond(X, i, 32), j, 8)
        np.testing.assert_array_equal(run(body, X, i, j, out=Spec((8,), f32)), want, err_msg=f"{i} {j}")


def test_masks_of_wide_accesses() -> None:
    """Four elements an access where the view's end does not cut through them, and one by one where it does."""
    for end in (96, 97, 98):
        seen: list[str] = []

        def body(x: Any, b: Any, out: Any, end: int = end) -> None:
            out[...] = x.at[:end][kd.ds(kd.multiple_of(b, 4), 16)]

        made = kd.kernel(body, out_type=Spec((16,), f32), interpret=INTERPRET)
        seen.append(made.lower(X, 0).ptx)
        for b in (0, 84, 88, 92, 96):
            np.testing.assert_array_equal(made(X, b), beyond(X[:end], b, 16))
        assert "v4" in seen[0]


def test_semaphores_end_with_their_view() -> None:
    """A signal beyond a view is dropped: the counters behind it stay as they were."""

    @kd.kernel(out_type=Spec((4,), i32), interpret=INTERPRET, scratch_types=[kd.SemaphoreType.REGULAR((4,))])
    def kernel(j: Any, out: Any, sems: Any) -> None:
        kd.semaphore_signal(sems.at[:2].at[j], 5)
        kd.semaphore_signal(sems.at[2:].at[j - 2], 7)
        for n in range(4):
            out[n] = kd.semaphore_read(sems.at[n])

    assert [kernel(j).tolist() for j in range(4)] == [[5, 0, 0, 0], [0, 5, 0, 0], [0, 0, 7, 0], [0, 0, 0, 7]]


def test_bitcasts_keep_their_start() -> None:
    """A view as large as its array, but not at its start, is not the array."""

    def body(x: Any, out: Any) -> None:
        out[...] = x.at[kd.ds(4, 128)].bitcast(i32)[...]

    got = run(body, X, out=Spec((128,), i32))
    np.testing.assert_array_equal(got, beyond(X.view(np.int32), 4, 128))
    with pytest.raises(kd.Error, match="whole, contiguous"):
        run(
            lambda x, out: out.__setitem__(..., x.at[kd.ds(4, 128)].bitcast(kd.uint8)[:128]),
            X,
            out=Spec((128,), kd.uint8),
        )


def test_nothing_is_masked_that_is_proved() -> None:
    """The trace knows that the blocks of a view stay inside of it."""

    def body(x: Any, out: Any) -> None:
        out[kd.ds(kd.program_id(0) * 16, 16)] = x.at[8:72][kd.ds(kd.program_id(0) * 16, 16)]

    made = kd.kernel(body, out_type=Spec((64,), f32), grid=(4,))
    loads = [op for op in made.lower(X).ir.walk() if op.op_name in ("load", "store")]
    assert all(op.view.masked == () for op in loads)


@pytest.mark.parametrize("promise", [False, True])
def test_a_promise_takes_the_masks_away(promise: bool) -> None:
    def body(x: Any, j: Any, out: Any) -> None:
        bounds = "promise" if promise else None
        row = x.reshape(16, 8).at[1:9].at[kd.ds(j, 2)]
        out[...] = kd.load(row, kd.ds(j, 2), bounds=bounds)
        kd.load(x.at[3:50], j + kd.arange(4), bounds=bounds)

    ir = kd.kernel(body, out_type=Spec((2, 8), f32)).lower(X, 0).ir
    ops = [op for op in ir.walk() if op.op_name in ("load", "gather")]
    assert len(ops) == 2
    for op in ops:
        assert bool(op.view.masked) != promise or op.op_name == "gather"
        assert len(op.offsets) == len(op.view.dynamic) + sum(m.dynamic for m in op.view.masked)
    assert ops[1].checked is not promise

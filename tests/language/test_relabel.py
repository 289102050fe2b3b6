"""Rearrangements: registers under other names where the layout allows, and else a note that says what they cost."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernel_dsl as kd
from kernel_dsl import Layout
from kernel_dsl.refs import View, ViewDim
from kernel_dsl.relabel import picked, renamed, reshaped, sliced
from tests.language.test_convert import random_layout
from tests.ops.harness import INTERPRET, random

Spec = kd.ShapeDtypeStruct
WIDE = Layout.WG_STRIDED((64, 64), 4)


def run(function: Callable[[Any], Any], x: Any, layout: Any) -> Any:
    """The stages of a kernel that loads `x` in a layout and stores `function` of it, having compared it with NumPy."""
    wanted = function(x)

    def body(x: Any, out: Any) -> None:
        out[...] = function(kd.load(x, layout=layout))

    kernel = kd.kernel(body, out_type=Spec(wanted.shape, x.dtype), interpret=INTERPRET)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        np.testing.assert_array_equal(kernel(x), wanted, err_msg=str(layout))
        return kernel.lower(x)


def honest(stages: Any) -> bool:
    """Whether SMEM is used, which the notes must say exactly."""
    told = any("through SMEM" in note.text for note in stages.notes)
    assert told == ("st.shared" in stages.ptx), [n.text for n in stages.notes]
    return told


FREE: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "reshape and back": (WIDE, lambda v: v.reshape(4096).reshape(64, 64)),
    "groups of rows": (WIDE, lambda v: v.reshape(4, 16, 64)),
    "pairs": (Layout.WGMMA, lambda v: v.reshape(64, 32, 2)[:, :, 0]),
    "even columns": (Layout.WGMMA, lambda v: v[:, 0::2]),
    "odd columns": (Layout.WGMMA, lambda v: v[:, 1::2]),
    "every fourth": (WIDE, lambda v: v[:, 3::4]),
}


@pytest.mark.parametrize("name", FREE)
def test_nothing_moves(name: str) -> None:
    layout, function = FREE[name]
    stages = run(function, random((64, 64), "float32"), layout)
    assert not honest(stages) and "shfl" not in stages.ptx and not stages.notes


COLUMNS = Layout(2, ((0, 64, 1),), ((1, 1), (1, 2), (1, 4), (1, 8), (1, 16)), ((1, 32), None))


def both(name: str, *args: Any, **keywords: Any) -> Callable[[Any], Any]:
    """A function of NumPy and of the language, by name."""
    return lambda v: getattr(np if isinstance(v, np.ndarray) else kd, name)(v, *args, **keywords)


def joined(name: str, **keywords: Any) -> Callable[[Any], Any]:
    return lambda v: getattr(np if isinstance(v, np.ndarray) else kd, name)([v, v + 1], **keywords)


@pytest.mark.parametrize(
    "function",
    [
        lambda v: v[5:23],
        lambda v: v[7],
        lambda v: v[50:3:-3],
        both("flip", axis=0),
        both("pad", ((3, 2), (0, 0))),
        joined("concatenate", axis=0),
        joined("stack", axis=-1),
        lambda v: joined("stack", axis=-1)(v).reshape(64, 128),
        both("expand_dims", (0, 2)),
        lambda v: v.reshape(4, 16, 64)[1],
    ],
)
def test_registers_move_freely(function: Any) -> None:
    stages = run(function, random((64, 64), "float32"), COLUMNS)
    assert not honest(stages) and not stages.notes


def test_a_fixed_index_along_lanes_is_a_shuffle() -> None:
    rows = Layout(2, ((1, 32, 1),), ((0, 1), (0, 2), (0, 4), (0, 8), (0, 16)))
    x = random((32, 32), "float32")
    stages = run(lambda v: v[13], x, rows)
    assert not honest(stages) and "shuffles a lane" in stages.notes[0].text


ALL: dict[str, Callable[[Any], Any]] = {
    "reshape": lambda v: v.reshape(8, 5, 6),
    "reshape flat": lambda v: v.reshape(240),
    "expand_dims": both("expand_dims", 1),
    "squeeze": lambda v: both("squeeze")(v[:, :1]),
    "transpose": lambda v: v.T,
    "swapaxes": both("swapaxes", 0, 1),
    "flip": both("flip"),
    "flip rows": both("flip", axis=0),
    "pad": both("pad", ((1, 2), (0, 5))),
    "pad after": both("pad", ((0, 3), (0, 8))),
    "concatenate": joined("concatenate", axis=0),
    "concatenate columns": joined("concatenate", axis=1),
    "stack": joined("stack", axis=1),
    "stack last": lambda v: joined("stack", axis=-1)(v).reshape(10, 48),
    "split": lambda v: both("split", 2, axis=1)(v)[1],
    "step": lambda v: v[1::3, ::2],
    "backwards": lambda v: v[::-1, 20:2:-2],
    "row": lambda v: v[3],
    "column": lambda v: v[:, 5],
    "part": lambda v: v[2:9, 4:20],
    "new axis": lambda v: v[:, None, 3:7],
}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.sampled(3)
def test_no_trip_through_smem_is_silent(name: str) -> None:
    """In layouts of all kinds: the result is NumPy's, and the notes say when elements went through SMEM."""
    rng = np.random.default_rng(sum(name.encode()))
    x = random((10, 24), "float32", seed=3)
    for layout in (None, Layout.WG_STRIDED((10, 24), 2), random_layout((10, 24), rng), random_layout((10, 24), rng)):
        honest(run(ALL[name], x, layout))


# --- the algebra against enumeration -----------------------------------------------------------------


def holders(layout: Layout, shape: tuple[int, ...]) -> dict[tuple[int, int], tuple[int, ...]]:
    """(thread, register): the element there, where it is inside the shape."""
    out: dict[tuple[int, int], tuple[int, ...]] = {}
    for thread in range(128):
        base = layout.thread_coords(thread)
        for register, share in enumerate(layout.register_coords):
            place = tuple(a + b for a, b in zip(base, share, strict=True))
            if all(p < n for p, n in zip(place, shape, strict=True)):
                out[thread, register] = place
    return out


SHAPES = [
    ((16,), (4, 4)),
    ((4, 24), (96,)),
    ((3, 16), (12, 4)),
    ((8, 6), (2, 24)),
    ((2, 3, 8), (6, 1, 8)),
    ((5, 8), (1, 5, 2, 4)),
]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from(SHAPES), st.booleans(), st.integers(0, 2**32 - 1))
def test_reshapes_name_the_same_elements(shapes: Any, back: bool, seed: int) -> None:
    shape, to = shapes[::-1] if back else shapes
    old = random_layout(shape, np.random.default_rng(seed))
    new = reshaped(old, shape, to)
    if new is None:
        return
    new.check()
    places = renamed(old, new, shape, to)
    assert places is not None
    before = holders(old, shape)
    found = holders(new, to)
    for (thread, register), place in found.items():
        source = places[register]
        assert source is not None
        assert np.ravel_multi_index(place, to) == np.ravel_multi_index(before[thread, source], shape)
    assert len(set(found.values())) == np.prod(to)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.sampled_from([(16,), (6, 8), (32, 5)]), st.integers(0, 2**32 - 1), st.data())
def test_slices_name_the_same_elements(shape: tuple[int, ...], seed: int, data: Any) -> None:
    old = random_layout(shape, np.random.default_rng(seed))
    dims: list[ViewDim] = []
    start: list[int] = []
    for axis, extent in enumerate(shape):
        start.append(data.draw(st.integers(0, extent - 1)))
        if data.draw(st.integers(0, 3)):
            step = data.draw(st.sampled_from([1, 1, 2, 3, 4, -1]))
            most = (extent - 1 - start[-1]) // step + 1 if step > 0 else start[-1] + 1
            dims.append(ViewDim(data.draw(st.integers(1, most)), axis, step))
    view = View(tuple(dims), tuple(start))
    found = sliced(old, view)
    if found is None:
        return
    found.layout.check()
    places, before = picked(old, found.layout, view), holders(old, shape)
    for (thread, register), place in holders(found.layout, view.shape).items():
        source = places[register]
        assert source is not None
        wanted = list(start)
        for d, index in zip(dims, place, strict=True):
            wanted[d.axis] += index * d.step
        assert before[thread & ~found.mask | found.value, source] == tuple(wanted)

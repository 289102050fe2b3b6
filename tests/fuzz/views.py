"""Random chains of views with dynamic indices at their edges, and every way to access them, against NumPy.

A view's text is run twice: by the language, and on `Model`s, which know for each element of a view where it lies in the
array, or that it lies nowhere. A view ends where it was said to end: what an index finds beyond is filled, or dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import kernel_dsl as kd
from tests.fuzz.choose import Choices
from tests.fuzz.written import Traced, Written

NOWHERE = -1


@dataclass(frozen=True)
class Model:
    """A view: for each element its place in the array, `NOWHERE` beyond an end. `words`: the array's elements."""

    words: np.ndarray
    places: np.ndarray

    @staticmethod
    def of(array: np.ndarray) -> Model:
        return Model(array.reshape(-1), np.arange(array.size).reshape(array.shape))

    @property
    def at(self) -> Model:
        return self

    @property
    def T(self) -> Model:  # noqa: N802
        return self.transpose()

    def transpose(self, *axes: int) -> Model:
        return Model(self.words, self.places.transpose(axes or None))

    def reshape(self, *shape: int) -> Model:
        return Model(self.words, self.places.reshape(shape))

    def bitcast(self, dtype: Any) -> Model:
        whole = self.words.reshape(self.places.shape).view(dtype.numpy)
        return Model(whole.reshape(-1), np.arange(whole.size).reshape(whole.shape))

    def __getitem__(self, index: Any) -> Model:
        items = list(index) if isinstance(index, tuple) else [index]
        if ... not in [i for i in items if not isinstance(i, np.ndarray)]:
            items.append(...)
        rank = sum(1 for i in items if i is not None and i is not ...)
        at = items.index(...)
        items[at : at + 1] = [slice(None)] * (self.places.ndim - rank)
        places, dropped = self.places, list[int]()
        for axis, item in enumerate(items):
            if item is None:
                places = np.expand_dims(places, axis)
            elif isinstance(item, slice):
                places = places[(slice(None),) * axis + (item,)]
            else:
                places = _picked(places, axis, item)
                if not isinstance(item, _Ds):
                    dropped.append(axis)
        return Model(self.words, np.squeeze(places, tuple(dropped)))

    def take(self, *index: Any) -> Model:
        """The elements at index arrays, all of them broadcast together, one an axis."""
        arrays = np.broadcast_arrays(*index)
        inside = np.ones(arrays[0].shape, bool)
        for i, n in zip(arrays, self.places.shape, strict=True):
            inside &= (i >= 0) & (i < n)
        clipped = tuple(np.clip(i, 0, max(n - 1, 0)) for i, n in zip(arrays, self.places.shape, strict=True))
        return Model(self.words, np.where(inside, self.places[clipped], NOWHERE))

    def loaded(self, fill: Any = 0) -> np.ndarray:
        found = self.words[np.clip(self.places, 0, None)]
        return np.where(self.places == NOWHERE, np.asarray(fill, found.dtype), found).astype(found.dtype)

    def store(self, value: np.ndarray, keep: Any = True) -> None:
        good = (self.places != NOWHERE) & keep
        self.words[self.places[good]] = np.broadcast_to(value, self.places.shape)[good]

    def add(self, value: np.ndarray) -> None:
        good = self.places != NOWHERE
        np.add.at(self.words, self.places[good], np.broadcast_to(value, self.places.shape)[good])


@dataclass(frozen=True)
class _Ds:
    start: int
    size: int
    stride: int = 1


def _picked(places: np.ndarray, axis: int, item: Any) -> np.ndarray:
    """Along an axis the elements of a `ds`, or the one of an index: a static one counts from the end, others never wrap."""
    n = places.shape[axis]
    numbers = (
        np.array([int(item)]) if not isinstance(item, _Ds) else int(item.start) + item.stride * np.arange(item.size)
    )
    if type(item) is int and item < 0:
        numbers = numbers + n
    inside = (numbers >= 0) & (numbers < n)
    if not n:
        return np.full((*places.shape[:axis], len(numbers), *places.shape[axis + 1 :]), NOWHERE)
    found = np.take(places, np.clip(numbers, 0, n - 1), axis)
    return np.where(inside.reshape((-1,) + (1,) * (places.ndim - axis - 1)), found, NOWHERE)


class _Words:
    """What stands for `kd` where a text is run on models."""

    ds = _Ds
    int8, uint8, int16, int32, float64 = kd.int8, kd.uint8, kd.int16, kd.int32, kd.float64

    @staticmethod
    def multiple_of(x: int, factor: int) -> int:
        assert int(x) % factor == 0
        return x


SHAPES = [(40,), (128,), (12, 10), (16, 8), (4, 6, 16), (3, 5, 8), (2, 4, 32), (2, 3, 4, 8), (6, 1, 20)]
DTYPES = ["float32", "int32", "bfloat16", "int8", "uint8", "float64", "int16"]


def traced(p: Written, c: Choices, value: int) -> str:
    """A traced number of that value: a scalar input, or made of one, or of the block's index."""
    kind = c.below(5)
    if kind == 0 and value >= p.block:
        step = c.one([1, 2, 4, 8])
        rest = value - p.block * step
        return f"(b * {step} + {rest})" if rest else f"(b * {step})"
    if kind == 1:
        factor = c.one([k for k in (2, 4, 8, 16, 3) if value % k == 0] or [1])
        return f"kd.multiple_of({p.scalar(value)}, {factor})"
    return f"({p.scalar(value - 1)} + 1)" if kind == 2 else p.scalar(value)


def _near_an_edge(c: Choices, extent: int, size: int) -> int:
    return c.one(
        [0, extent - size, extent, -size, extent - size + 1, -1, c.between(-size - 1, extent + 1), extent // 2]
    )


def _item(c: Choices, p: Program, extent: int) -> str:
    """The index of one dimension, as text."""
    kind = c.weighted((("slice", 4), ("int", 2), ("ds", 5), ("all", 4)))
    if kind == "all":
        return ":"
    if kind == "slice" or (kind == "ds" and not extent):
        ends = [c.one(["", str(c.between(-extent - 1, extent + 1))]) for _ in range(2)]
        return f"{ends[0]}:{ends[1]}{c.one(['', '', ':2', ':-1', ':-2', ':3'])}"
    if kind == "int":
        if c.chance(0.3):
            return str(c.between(-extent, extent - 1)) if extent else ":"
        return traced(p, c, _near_an_edge(c, extent, 1))
    size, stride = c.between(1, extent + 2), c.one([1, 1, 1, 2, -1, 3])
    start = _near_an_edge(c, extent, size)
    text = str(start) if c.chance(0.2) else traced(p, c, start)
    return f"kd.ds({text}, {size}{f', {stride}' if stride != 1 else ''})"


def draw_view(c: Choices, p: Program, name: str, whole: Model) -> tuple[str, Model]:
    """The text of a view of an array, and its model."""
    names = {name: whole}
    text, view = name, whole
    if c.chance(0.15):
        dtype = {1: "int8", 2: "int16", 4: "int32", 8: "float64"}[view.words.itemsize]
        dtype = c.one([dtype, "uint8"]) if dtype != "float64" else "float64"
        text += f".bitcast(kd.{dtype})"
        view = p.model(text, names)
    for _ in range(c.between(1, 4)):
        kind = c.weighted((("at", 6), ("reshape", 3), ("transpose", 2), ("new", 1)))
        size = view.places.shape
        if kind == "at":
            more = text + f".at[{', '.join(_item(c, p, n) for n in size) or '...'}]"
        elif kind == "new":
            more = text + f".at[{c.one(['None, ...', '..., None'])}]"
        elif kind == "transpose":
            more = text + f".transpose({', '.join(map(str, c.rng.permutation(len(size)).tolist()))})" if size else text
        else:
            more = text + f".reshape({', '.join(map(str, _another(c, size)))})"
        made = p.model(more, names)
        if made.places.ndim > 5:
            continue
        text, view = more, made
    return text, view


def _another(c: Choices, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Another shape of so many elements."""
    out = list(shape)
    for _ in range(c.between(1, 2)):
        if len(out) > 1 and c.chance(0.5):
            at = c.below(len(out) - 1)
            out[at : at + 2] = [out[at] * out[at + 1]]
        elif out:
            at = c.below(len(out))
            parts = [d for d in range(1, out[at] + 1) if out[at] % d == 0] or [1]
            d = c.one(parts)
            out[at : at + 1] = [out[at] // d, d] if out[at] else [0, 1]
    return tuple(out)


def run_text(text: str, scalars: list[int], names: dict[str, Any]) -> Any:
    """What a text is on models; `names` are those of the models and of other traced numbers."""
    return eval(text, {**{f"s{i}": Traced(v) for i, v in enumerate(scalars)}, **names, "kd": _Words})


class Program(Written):
    """A kernel of several accesses, each with an output of its own; one block of several makes them."""

    def __init__(self, seed: int, block: int) -> None:
        super().__init__(f"views_{seed}")
        self.block = block
        self.options = f"grid=({block + 1},)"
        self.accesses: list[str] = []

    def model(self, text: str, names: dict[str, Any]) -> Any:
        return run_text(text, self.scalars, {**names, "b": Traced(self.block)})

    def source(self) -> str:
        self.lines = ["b = kd.program_id(0)"]
        self.branch(f"b == {self.block}", self.accesses)
        return super().source()


def _array(c: Choices, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return c.rng.integers(1, 100, shape).astype(kd.dtypes.as_dtype(dtype).numpy)


def _load(c: Choices, p: Program, text: str, view: Model, n: int) -> None:
    """A load of all of a view, plain or with mask and fill, or by index arrays."""
    kind = c.below(3)
    out = f"o{n}"
    if kind == 2 and 0 < view.places.ndim <= 3 and view.places.size and c.chance(0.7):
        arrays = []
        for axis, extent in enumerate(view.places.shape):
            name = f"i{n}_{axis}"
            p.inputs[name] = c.rng.integers(-2, extent + 2, (c.between(1, 40),) if axis == 0 else (1,)).astype(np.int32)
            arrays.append(name)
        wanted = view.take(*(p.inputs[a] for a in arrays)).loaded()
        p.accesses.append(f"{out}[...] = {text}[{', '.join(f'{a}[...]' for a in arrays)}]")
    elif kind == 1:
        wanted = view.loaded(7)
        p.accesses.append(f"{out}[...] = kd.load({text}, fill=7)")
    else:
        wanted = view.loaded()
        p.accesses.append(f"{out}[...] = {text}[...]")
    p.outputs[out] = wanted, 0


def _store(c: Choices, p: Program, n: int) -> None:
    """A store, a scatter or atomics through a view of an output."""
    dtype = c.one(DTYPES)
    atomic = c.chance(0.35)
    dtype = c.one(["int32", "float32"]) if atomic else dtype
    shape = c.one(SHAPES)
    whole = np.zeros(shape, kd.dtypes.as_dtype(dtype).numpy)
    name = f"o{n}"
    text, view = draw_view(c, p, name, Model.of(whole))
    if view.places.size > 2000:
        return
    if atomic and view.words.dtype == whole.dtype:
        p.accesses.append(f"kd.atomic_add({text}, 3)")
        view.add(np.asarray(3, whole.dtype))
    elif 0 < view.places.ndim <= 2 and view.places.size and c.chance(0.4):
        # each place once: which of several values stays is open
        index = [c.rng.permutation(np.arange(-2, e + 2))[: c.between(1, 20)] for e in view.places.shape]
        if len(index) == 2:
            index[1] = index[1][:1]
        target = view.take(*index)
        good = target.places[target.places != NOWHERE]
        if len(set(good.tolist())) != good.size:
            return
        for axis, array in enumerate(index):
            p.inputs[f"i{n}_{axis}"] = array.astype(np.int32)
        p.accesses.append(f"{text}[{', '.join(f'i{n}_{a}[...]' for a in range(len(index)))}] = 5")
        target.store(np.asarray(5, view.words.dtype))
    else:
        good = view.places[view.places != NOWHERE]
        if len(set(good.tolist())) != good.size:
            return
        p.inputs[f"v{n}"] = _array(c, view.places.shape, view.words.dtype.name)
        p.accesses.append(f"{text}[...] = v{n}[...]")
        view.store(p.inputs[f"v{n}"])
    p.outputs[name] = whole, 0


def generate(seed: int) -> Program:
    """The program of a seed."""
    c = Choices(seed)
    p = Program(seed, c.between(0, 3))
    for n in range(c.between(2, 4)):
        kept = _state(p)
        if c.chance(0.5):
            name = f"x{n}"
            p.inputs[name] = _array(c, c.one(SHAPES), c.one(DTYPES))
            text, view = draw_view(c, p, name, Model.of(p.inputs[name]))
            if view.places.size <= 2000:
                _load(c, p, text, view, n)
        else:
            _store(c, p, n)
        if f"o{n}" not in p.outputs or not _is_a_ref(p):
            p.inputs, p.scalars, p.outputs, p.accesses = kept
    return p if p.outputs else generate(seed + 1_000_003)


def _state(p: Program) -> tuple[Any, ...]:
    return dict(p.inputs), list(p.scalars), dict(p.outputs), list(p.accesses)


def _is_a_ref(p: Program) -> bool:
    """Whether the language makes these views: a reshaped Ref walks its buffer in even steps."""
    try:
        p.kernel().lower(*p.arguments())
    except kd.Error as error:
        if error.code != "bad-reshape":
            raise
        return False
    return True

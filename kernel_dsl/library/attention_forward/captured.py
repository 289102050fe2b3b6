"""Functions of scores and masks that close over arrays. The arrays become operands of kernels, so new arrays need no
compile.

The search covers cells, defaults and globals of the function and of functions that it calls, and the attributes of
objects that it names. `Captured` keeps the arrays apart from the function, and makes the function again with other
values in their place.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

import kernel_dsl as kd
from kernel_dsl.torch_functions import GraphFunction

FOREIGN = frozenset({"numpy", "torch", "jax", "jaxlib", "cupy", "kernel_dsl", "ml_dtypes", *sys.stdlib_module_names})
PLAIN = (bool, int, float, complex, str, bytes, np.generic, type, ModuleType, type(None))
NAME = "captured"  # the start of operands' names; numbers follow
SCORE_MOD = "score_mod(score, b, h, i, j)"  # how it is called

_refs: ContextVar[Sequence[Any]] = ContextVar("kernel_dsl_captured")
Build = Callable[[Sequence[Any]], Any]  # makes an object again, with other arrays


@dataclass(frozen=True)
class Captured:
    """A function without its arrays. They are operands, from number `first` on, of these `ranks`. `key`: all other
    parts of the function.
    """

    key: Any
    first: int
    ranks: tuple[int, ...]
    build: Build = field(compare=False, repr=False)

    def __call__(self, *args: Any) -> Any:
        return self.function()(*args)

    def function(self) -> Any:
        """The function on the operands of the kernel that is traced."""
        return self.of([Reader(ref) for ref in _refs.get()])

    def of(self, arrays: Sequence[Any]) -> Any:
        """The function with other arrays; `arrays` are those of all functions of a call."""
        return self.build(arrays[self.first : self.first + len(self.ranks)])


def function_of(function: Any) -> Any:
    """A user's function in the form that kernels call."""
    return function.function() if isinstance(function, Captured) else function


@contextmanager
def reading(s: dict[str, Any]) -> Generator[None]:
    """A context manager: functions inside read a kernel's operands, given by name."""
    token = _refs.set([s[name] for name in names_of(s)])
    try:
        yield
    finally:
        _refs.reset(token)


def names_of(s: dict[str, Any]) -> list[str]:
    """Names of captured operands, in order."""
    return [f"{NAME}{n}" for n in range(sum(name.startswith(NAME) for name in s))]


class Reader:
    """A closed-over array in a kernel: `array[i, j]` loads an element, or 0 beyond the array.

    With fewer indices it gives a part.
    """

    def __init__(self, ref: Any) -> None:
        self._ref = ref
        self.dtype: kd.DType = ref.dtype
        self.ndim: int = len(ref.shape)

    @property
    def shape(self) -> tuple[Any, ...]:
        """The extents as ints. A kernel that reads them depends on them."""
        return tuple(kd.specialise(n) for n in self._ref.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        index = index if isinstance(index, tuple) else (index,)
        if len(index) < self.ndim and not any(getattr(x, "shape", ()) or x is Ellipsis or x is None for x in index):
            return Reader(self._ref.at[index])
        if all(isinstance(x, int) for x in index):
            return self._ref[index]
        return kd.load(self._ref, index, fill=0)


def is_array(x: Any) -> bool:
    """Whether it is a framework's array or the description of one; NumPy's rank-0 numbers stay constants."""
    shape = getattr(x, "shape", None)
    if not isinstance(shape, tuple) or not hasattr(x, "dtype") or isinstance(x, (kd.Array, Reader, np.generic)):
        return False
    return bool(shape) or not isinstance(x, np.ndarray)


def capture(function: Any, first: int) -> tuple[Any, list[Any]]:
    """(the function without its arrays, the arrays); the same function if it has none."""
    walk = _Parts()
    key, build = walk.of(function, frozenset())
    if build is None:
        return function, []
    return Captured(key, first, tuple(len(x.shape) for x in walk.arrays), build), walk.arrays


def alike(x: Any, like: Any) -> Any:
    """A captured array, converted to the framework of `like`."""
    module = type(like).__module__.split(".")[0]
    if not isinstance(x, np.ndarray) or module not in sys.modules:
        return x
    host: Any = sys.modules[module]
    if module == "torch":
        return host.as_tensor(x, device=like.device)
    if module == "cupy":
        return host.asarray(x)
    return sys.modules["jax.numpy"].asarray(x) if module in ("jax", "jaxlib") else x


class _Same:
    """A key that equals only the key of the same object, and keeps the object alive."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.x is self.x

    def __hash__(self) -> int:
        return id(self.x)


class _With:
    """An object with some attributes replaced."""

    def __init__(self, x: Any, attributes: dict[str, Any]) -> None:
        self.__dict__.update(attributes)
        self._with = x

    def __getattr__(self, name: str) -> Any:
        return getattr(self._with, name)


@cache
def _loaded(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """(globals, attributes) that a function and its inner functions name."""
    found: tuple[set[str], set[str]] = set(), set()
    for step in dis.get_instructions(code):
        if step.opname == "LOAD_GLOBAL":
            found[0].add(step.argval)
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            found[1].add(step.argval)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            for have, more in zip(found, _loaded(inner), strict=True):
                have |= more
    return frozenset(found[0]), frozenset(found[1])


class _Parts:
    """Visits the parts of a function in a fixed order; `arrays` collects the arrays."""

    def __init__(self) -> None:
        self.arrays: list[Any] = []
        self.open: list[Any] = []  # functions being visited, so that a recursive one is visited once

    def of(self, x: Any, names: frozenset[str]) -> tuple[Any, Build | None]:
        """(a key of `x`, the function that makes `x` again or None if it has no arrays); `names`: the attributes that
        are read.
        """
        if is_array(x):
            number = len(self.arrays)
            self.arrays.append(x)
            return "array", lambda arrays: arrays[number]
        if isinstance(x, PLAIN):
            return (type(x), x), None
        if isinstance(x, FunctionType):
            return self.function(x)
        if isinstance(x, GraphFunction):
            return self.of(x.function, names)
        if isinstance(x, (tuple, list)):
            return self.several(type(x), list(x), lambda parts: _sequence(type(x), parts), names)
        if isinstance(x, dict):
            values = list(x.values())
            return self.several((dict, *x), values, lambda parts: dict(zip(x, parts, strict=True)), names)
        if isinstance(x, partial):
            parts = [x.func, x.args, x.keywords]
            return self.several(partial, parts, lambda p: partial(p[0], *p[1], **p[2]), names)
        if isinstance(x, MethodType):
            read = _loaded(x.__func__.__code__)[1] if isinstance(x.__func__, FunctionType) else names
            return self.several(MethodType, [x.__func__, x.__self__], lambda p: MethodType(p[0], p[1]), read)
        return self.instance(x, names)

    def several(
        self, kind: Any, parts: list[Any], made: Callable[[list[Any]], Any], names: frozenset[str]
    ) -> tuple[Any, Build | None]:
        """An object of several parts."""
        found = [self.of(part, names) for part in parts]
        key = kind, tuple(key for key, _ in found)
        if all(build is None for _, build in found):
            return key, None
        both = list(zip(parts, found, strict=True))
        return key, lambda arrays: made([part if build is None else build(arrays) for part, (_, build) in both])

    def function(self, x: FunctionType) -> tuple[Any, Build | None]:
        if x in self.open or (x.__module__ or "").split(".")[0] in FOREIGN:
            return _Same(x), None
        self.open.append(x)
        variables, names = _loaded(x.__code__)
        used = sorted(name for name in variables if name in x.__globals__)
        cells = [cell for cell in x.__closure__ or () if not _empty(cell)]
        parts = [
            x.__defaults__, x.__kwdefaults__, *(cell.cell_contents for cell in cells), *(x.__globals__[n] for n in used)
        ]  # fmt: skip

        def made(parts: list[Any]) -> Any:
            fresh = iter(parts[2 : 2 + len(cells)])
            closure = tuple(cell if _empty(cell) else CellType(next(fresh)) for cell in x.__closure__ or ())
            given = x.__globals__ | dict(zip(used, parts[2 + len(cells) :], strict=True))
            again = FunctionType(x.__code__, given, x.__name__, parts[0], closure)
            again.__kwdefaults__ = parts[1]
            return again

        key, build = self.several((FunctionType, x.__code__), parts, made, names)
        self.open.pop()
        return key, build

    def instance(self, x: Any, names: frozenset[str]) -> tuple[Any, Build | None]:
        """As `of`, for any other object. Of a callable object it visits the attributes that its call reads."""
        called = next((vars(kind)["__call__"] for kind in type(x).__mro__ if "__call__" in vars(kind)), None)
        read = names | _loaded(called.__code__)[1] if isinstance(called, FunctionType) else names
        own = {**getattr(x, "_buffers", {}), **getattr(x, "__dict__", {})}
        found = {name: own[name] for name in sorted(read) if name in own and is_array(own[name])}
        if not found:
            return _Same(x), None
        parts = list(found.values())

        def made(parts: list[Any]) -> Any:
            again = _With(x, dict(zip(found, parts, strict=True)))
            return MethodType(called, again) if isinstance(called, FunctionType) else again

        _, build = self.several("instance", parts, made, names)
        return (_Same(x), tuple(found)), build


def _empty(cell: CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return True
    return False


def _sequence(kind: Any, parts: list[Any]) -> Any:
    return kind(*parts) if hasattr(kind, "_fields") else kind(parts)

"""Calls of the library's functions on a mesh. With one process a GPU they take this rank's arrays alone.

A function that needs one kernel returns a `Launched`, a description of its launch. It is kept by the call's options and
shapes, so a later call of this kind launches at once: only the kernel's own fast path examines the arrays.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from kernel_dsl.boundary import checks_itself, public, unguarded
from kernel_dsl.diagnostics import shown
from kernel_dsl.dtypes import DType
from kernel_dsl.errors import BadArgument, BadArgumentType
from kernel_dsl.mesh import Mesh, has_ranks, is_group
from kernel_dsl.source import misfit
from kernel_dsl.symmetric import OfRank, Symmetric, is_one_array, made_like

from ..latest import UNSEEN

_T = TypeVar("_T", bound=Callable[..., Any])

TIMEOUT = 600.0  # seconds, the default: if a rank dies, the others end with an error
_KINDS = 64  # kinds of calls that a function remembers
_ROWS = (list, tuple, Symmetric, OfRank)


class Fresh(NamedTuple):
    """An output that each call makes, on the device of the first input. With one process a GPU, peers can't
    reach it.
    """

    shape: tuple[int, ...]
    dtype: DType
    mesh: Mesh


def _same(result: Any) -> Any:
    return result


class Launched:
    """A call as one launch: `take(kernel(*inputs, out=outs))`.

    `inputs` and `outs` are arrays of the caller, or arrays that later calls use again; an item of `outs` may be
    `Fresh`. `outs`: a tuple if the kernel has several outputs, None if the kernel makes them.
    """

    def __init__(self, kernel: Any, inputs: tuple[Any, ...], outs: Any, take: Callable[[Any], Any] = _same) -> None:
        made = type(outs) is tuple and all(type(x) is Fresh for x in outs)  # the kernel makes them itself
        self.kernel: Any = kernel
        self.inputs: tuple[Any, ...] = inputs
        self.outs: Any = None if made else outs
        self.take: Callable[[Any], Any] = take

    def run(self, interpret: Any, plain: bool) -> Any:
        """Launch, and return the result. `plain`: arrays and results are this rank's alone."""
        inputs, outs = self.inputs, self.outs
        if type(outs) is tuple:
            outs = tuple(_made(x, inputs[0]) for x in outs)
        if plain:
            inputs, outs = tuple(map(_unwrapped, inputs)), _unwrapped(outs)
        return self.take(self.kernel(*inputs, out=outs, interpret=interpret))


class _SeenLaunch:
    """An earlier launch, to repeat for other arrays of the same kind."""

    def __init__(self, launched: Launched, given: Sequence[Any], plain: bool, key: Sequence[Any]) -> None:
        places = {id(x): n for n, x in enumerate(given)}

        def place(x: Any) -> Any:
            x = _unwrapped(x) if plain and type(x) is not Fresh else x
            return places.get(id(x), x)

        outs = launched.outs
        self._kernel, self._take = launched.kernel, launched.take
        self._inputs = [place(x) for x in launched.inputs]
        self._several = type(outs) is tuple
        self._outs: list[Any] = [] if outs is None else [place(x) for x in (outs if self._several else (outs,))]
        self._key = key  # the key keeps the mesh alive, so that no other object gets its id

    def __call__(self, given: Sequence[Any]) -> Any:
        fast = self._kernel._fast
        if fast is None or fast.recording.active:
            return UNSEEN
        inputs = [given[x] if type(x) is int else x for x in self._inputs]
        outs: Any = [given[x] if type(x) is int else _made(x, inputs[0]) for x in self._outs]
        try:
            result = fast(inputs, outs if self._several else outs[0] if outs else None, None)
        except (AttributeError, TypeError, ValueError):
            return UNSEEN  # an array that cannot be launched: the slow path raises the error
        return UNSEEN if result is fast.miss else self._take(result)

    @property
    def repeated(self) -> Any:
        """(fast path, its newest kind of call) if a call is only this launch, with the call's arrays in order;
        otherwise None.
        """
        fast = self._kernel._fast
        known = getattr(fast, "recent", None)
        inputs = [*self._inputs, *self._outs]
        if not known or self._take is not _same or inputs != list(range(len(inputs))) or not self._outs:
            return None
        return (fast, known[0]) if getattr(known[0], "repeats", False) else None


class _Newest(NamedTuple):
    """The newest call of one rank. The launch compares the arrays itself, so only mesh and options are
    compared here.
    """

    mesh: Any
    keywords: dict[str, Any]  # without the output
    fast: Any
    like: Any


class _OneLaunch(NamedTuple):
    """A call that made exactly one launch."""

    launched: Launched
    plain: bool
    result: Any


def _made(x: Any, beside: Any) -> Any:
    """An output. A fresh one is made: one for each device, or this rank's."""
    if type(x) is not Fresh:
        return x
    if type(beside) in _ROWS and type(beside) is not OfRank:
        return made_like(beside, x.shape, x.dtype, x.mesh)
    alone = beside[0] if type(beside) is OfRank else beside
    made = made_like([alone], x.shape, x.dtype, None)[0]
    return OfRank([made], x.mesh) if type(beside) is OfRank else made


def scratch(x: Any, shape: tuple[int, ...], dtype: DType, mesh: Mesh, name: str) -> Any:
    """An output of a `Launched` that the caller does not get, and that peers can reach."""
    return made_like(x, shape, dtype, mesh, name) if isinstance(x, OfRank) else Fresh(shape, dtype, mesh)


def by_rank(function: _T, more: tuple[str, ...] = ()) -> _T:
    """A function that also takes one array in place of a list of arrays, one for each device.

    With one array, the call is this rank's and returns one array. `mesh` may be the group of the ranks. The arrays are
    the parameters before `mesh`, `out` or `grads`, and those named in `more`.
    """
    names = list(inspect.signature(function).parameters)
    first = names.index("mesh")
    outs = ({"out", "grads"} & set(names[first:])).pop()
    slow = _slow_path(function, names, first, (outs, *more))
    seen: dict[Any, _SeenLaunch] = {}
    newest: list[_Newest | None] = [None]

    def repeated(args: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
        """Launch a call that is like the newest one, and return whether it was."""
        one = newest[0]
        if one is None or len(args) != first + 1 or args[first] is not one.mesh or outs not in keywords:
            return False
        known, fast = one.keywords, one.fast
        if (
            len(keywords) != len(known) + 1
            or fast.recording.active
            or not fast.recent
            or fast.recent[0] is not one.like
        ):
            return False
        for name, value in known.items():
            other = keywords.get(name, newest)  # no option equals `newest`
            if type(other) is not type(value) or other != value:
                return False
        return one.like.again([*args[:first], keywords[outs]])

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            if repeated(args, keywords):
                return keywords[outs]
        except Exception:  # an argument is no array, or no option
            newest[0] = None
        key = given = None
        if len(args) == first + 1 and keywords.get("interpret") is None:
            try:
                key, given = _remembered(args, keywords, first, outs)
                found = seen.get(key)
            except Exception:  # an argument is no array or no option: the slow path raises the error
                found = key = given = None
            if found is not None and given is not None:
                made = found(given)
                if made is not UNSEEN:
                    if made is keywords.get(outs, newest) and (again := found.repeated) is not None:
                        options = {name: value for name, value in keywords.items() if name != outs}
                        newest[0] = _Newest(args[first], options, *again)
                    return made
        made = slow(*args, **keywords)
        if not isinstance(made, _OneLaunch):
            return made
        if key is not None and given is not None and OfRank not in key and made.launched.kernel._fast is not None:
            if len(seen) >= _KINDS:
                seen.clear()
            seen[key] = _SeenLaunch(made.launched, given, made.plain, (args[first], key))
        return made.result

    return unguarded(call)  # type: ignore[return-value]


def _remembered(args: tuple[Any, ...], keywords: dict[str, Any], first: int, outs: str) -> tuple[Any, list[Any]]:
    """(a key, the arrays) of a call: the first arguments and `outs`. Calls with equal keys launch the same kernel."""
    given = list(args[:first])
    key: list[Any] = [id(args[first])]
    for x in given:
        kind: Any = type(x)
        one = x[0] if kind in _ROWS else x
        key += (kind, one.shape, one.dtype)
    for name, value in keywords.items():
        if name == outs:
            several = type(value) is tuple and (key[1] not in _ROWS or type(value[0]) in _ROWS)
            key += (name, len(value) if several else value is None)
            given += value if several else (value,)
        else:
            key += (name, type(value), value)
    if len({id(x) for x in given}) < len(given):  # an array comes twice
        key.append(tuple(next(n for n, y in enumerate(given) if y is x) for x in given))
    return tuple(key), given


def _slow_path(function: Callable[..., Any], names: list[str], first: int, more: tuple[str, ...]) -> Callable[..., Any]:
    """The function that gives the result of a call, or its one launch and the result. Its first arguments are arrays,
    and so are the arguments named in `more`.
    """
    arrays = (*names[:first], *more)

    @partial(public, name=function.__name__)
    @checks_itself("mesh")
    @functools.wraps(function)
    def slow(*args: Any, **keywords: Any) -> Any:
        """The slow path: the result of a call, or its one launch and the result. Raises `BadArgument`, `BadArgumentType`."""
        op = function.__name__
        if why := misfit(function, *args, **keywords):
            raise BadArgumentType(op=op, what=why, hint=f"call it as `{op}({', '.join(names)})`")
        timeout = keywords.get("timeout")
        if isinstance(timeout, (int, float)) and not 0 < timeout < 1e9:
            raise BadArgument(op=op, what=f"timeout={shown(timeout)}", hint="seconds, more than 0 and less than 1e9")
        given = dict(zip(names, args, strict=False))
        mesh = given.get("mesh", keywords.get("mesh"))
        alone = not isinstance(mesh, Mesh) and is_group(mesh)
        plain = alone or (isinstance(mesh, Mesh) and has_ranks(mesh) and any(is_one_array(x) for x in args[:first]))
        if not plain:
            made = function(*args, **keywords)
        else:
            whole = given | keywords
            for name in names[:first]:
                if isinstance(x := whole.get(name), (list, tuple)) and not isinstance(x, OfRank):
                    what = f"{name} is a list of {len(x)} for a process group"  # pyright: ignore[reportUnknownArgumentType]
                    raise BadArgumentType(op=op, what=what, hint="with one process a GPU, pass this rank's array alone")
            if alone:
                whole["mesh"] = mesh = _mesh_of(mesh)
            for name in arrays:
                if name in whole:
                    whole[name] = _wrapped(whole[name], mesh)
            if "timeout" in names and whole.get("timeout") is None:
                whole["timeout"] = TIMEOUT
            made = function(**whole)
        if not isinstance(made, Launched):
            return _unwrapped(made) if plain else made
        return _OneLaunch(made, plain, made.run(keywords.get("interpret"), plain))

    return slow


@functools.lru_cache(maxsize=64)
def _mesh_of(group: Any) -> Mesh:
    return Mesh(("rank",), (group.size(),), group)


def _wrapped(x: Any, mesh: Any) -> Any:
    if isinstance(x, (tuple, list)) and not isinstance(x, OfRank):
        return type(x)(_wrapped(one, mesh) for one in x)  # pyright: ignore[reportUnknownVariableType]
    return OfRank([x], mesh) if is_one_array(x) else x


def _unwrapped(x: Any) -> Any:
    if isinstance(x, OfRank):
        return x[0]
    return tuple(map(_unwrapped, x)) if isinstance(x, tuple) else x  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]

"""One try: a call with given arguments, and what became of it."""

from __future__ import annotations

import enum
import functools
import inspect
import operator
import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import kernel_dsl as kd
from kernel_dsl.source import is_of_project, is_ours

from .values import Value, hostile
from .world import HINTS, World

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SECONDS = 5  # of processor time
LOOKS = 12  # a call that waits and computes nothing ends after so many times that long

# What Python's own syntax and functions do with an object: they reach the special methods.
PROTOCOLS: dict[str, Callable[..., Any]] = {
    **{f"operator.{n}": getattr(operator, n) for n in (
        ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor", "lshift", "rshift", "eq", "ne", "lt", "le", "gt", "ge", "getitem", "contains", "iadd"]
    )},
    **{f"operator.r{n}": (lambda f: lambda obj, other: f(other, obj))(getattr(operator, n)) for n in (
        ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor", "lshift", "rshift", "lt"]
    )},
    "divmod": divmod,
    "round": round,
    "format": format,
    "isinstance": lambda obj, other: isinstance(obj, other) if isinstance(other, type) else None,
}  # fmt: skip


class Late(BaseException):
    """A try that takes too long."""


@dataclass(frozen=True)
class Subject:
    """Something that can be called: how to get it in a world, and its parameters."""

    label: str
    get: Callable[[World], Callable[..., Any]]
    parameters: tuple[inspect.Parameter, ...]
    inside: tuple[str, ...]  # the worlds it is tried in

    @property
    def required(self) -> list[inspect.Parameter]:
        return [p for p in self.parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


@dataclass(frozen=True)
class Outcome:
    """`kind`: accepted, error, own, python; and what is bad: raw, hung, unforeseen, elsewhere, unprintable."""

    kind: str
    words: str
    result: Any = None


# --- what there is to call -----------------------------------------------------------------------


def _parameters(function: Any) -> tuple[inspect.Parameter, ...] | None:
    try:
        found = tuple(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    return found


def _is_our_class(cls: type[Any]) -> bool:
    return cls.__module__.partition(".")[0] == "kernel_dsl"


def functions(module: Any, prefix: str) -> Iterator[Subject]:
    """The functions and classes of a module's `__all__`."""
    for name in sorted(module.__all__):
        value = getattr(module, name)
        if not callable(value) or (isinstance(value, type) and issubclass(value, BaseException)):
            continue
        parameters = _parameters(value)
        if isinstance(value, type) and issubclass(value, enum.Enum):
            parameters = (parameters or ())[:1]  # the others make a new class
        if parameters is not None:
            yield Subject(f"{prefix}.{name}", lambda _, value=value: value, parameters, ("", "one", "several"))


_SPECIAL = (
    "__call__",
    "__getitem__",
    "__setitem__",
    "__contains__",
    "__delitem__",
    "__enter__",
    "__setattr__",
)


def methods(world: World) -> Iterator[Subject]:
    """The methods of what there is in a world, a class each, and Python's protocols on it. A Ref along a Dim counts as a class."""
    seen: set[tuple[type[Any], bool]] = set()
    for label, value in world.objects.items():
        cls, along_dim = type(value), label == "dim_ref"
        if not _is_our_class(cls) or (cls, along_dim) in seen:
            continue
        seen.add((cls, along_dim))
        for name in sorted({n for base in cls.__mro__ if _is_our_class(base) for n in vars(base)}):
            if (name.startswith("_") and name not in _SPECIAL) or name == "__setattr__":
                continue
            method = getattr(cls, name)
            if isinstance(inspect.getattr_static(cls, name), property) or not callable(method):
                continue
            parameters = _parameters(method)
            if parameters is None:
                continue
            static = isinstance(inspect.getattr_static(cls, name), (staticmethod, classmethod))
            get = functools.partial(_method, label, name)
            yield Subject(f"{label}.{name}", get, parameters if static else parameters[1:], (world.inside,))
        for name, function in PROTOCOLS.items() if hasattr(cls, "__add__") else ():
            bound = functools.partial(_protocol, label, function)
            other = inspect.Parameter("other", inspect.Parameter.POSITIONAL_ONLY)
            yield Subject(f"{name}({label}, ", bound, (other,), (world.inside,))


def _method(label: str, name: str, world: World) -> Callable[..., Any]:
    return getattr(world.get(label), name)


def _protocol(label: str, function: Callable[..., Any], world: World) -> Callable[..., Any]:
    return functools.partial(function, world.get(label))


# --- right arguments -----------------------------------------------------------------------------

Labels = dict[str, str]  # parameter: what the world calls its argument


def right(subject: Subject, world: World, limit: int, seed: int) -> Labels | None:
    """Arguments for what a call must have that are accepted, found by trying; None after `limit` tries without any."""
    required = subject.required
    if not required:
        return {}
    pools: list[list[str]] = []
    for parameter in required:
        hint = HINTS.get(parameter.name, "")
        hinted = [
            h
            for h in (hint.split("|") if "lambda" in hint or " " not in hint else hint.split(" "))
            if h in world.objects
        ]
        if not hinted and hint in world.objects:
            hinted = [hint]
        pools.append(hinted + [label for label in world.objects if label not in hinted])
    order = random.Random(seed)
    for number in range(limit):
        if number == 0:
            labels = {p.name: pool[0] for p, pool in zip(required, pools, strict=True)}
        else:
            reach = 3 if number < limit // 2 else 1000
            labels = {p.name: order.choice(pool[:reach]) for p, pool in zip(required, pools, strict=True)}
        if attempt(subject, world, {k: world.get(v) for k, v in labels.items()}).kind == "accepted":
            return labels
    return None


# --- one try -------------------------------------------------------------------------------------


def attempt(subject: Subject, world: World, arguments: dict[str, Any]) -> Outcome:
    """Call with these arguments, by parameter name, and say what became of it."""
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    open_ = True
    for p in subject.parameters:
        if p.name not in arguments:
            open_ = open_ and p.kind is p.POSITIONAL_ONLY
            continue
        value = arguments[p.name]
        if p.kind is p.VAR_POSITIONAL:
            positional.append(value)
        elif p.kind is p.VAR_KEYWORD:
            keywords["more"] = value
        elif p.kind is p.KEYWORD_ONLY or (not open_ and p.kind is not p.POSITIONAL_ONLY):
            keywords[p.name] = value
        else:
            positional.append(value)
    try:
        with _limited():
            function = subject.get(world)
            return Outcome("accepted", "", _call(function, positional, keywords))
    except Late:
        return Outcome("hung", f"after {SECONDS} s")
    except kd.Error as error:
        return _of_error(error)
    except Exception as error:
        return _of_other(error)


def _call(function: Callable[..., Any], positional: list[Any], keywords: dict[str, Any]) -> Any:
    return function(*positional, **keywords)


@contextmanager
def _limited() -> Iterator[None]:
    begun, looks = time.process_time(), 0

    def late(number: int, frame: FrameType | None) -> None:
        nonlocal looks
        looks += 1
        if time.process_time() - begun >= SECONDS or looks >= LOOKS:
            raise Late
        signal.setitimer(signal.ITIMER_REAL, SECONDS)  # a busy machine did other things

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _of_error(error: kd.Error) -> Outcome:
    try:
        text = str(error)
    except Exception as inner:
        return Outcome("unprintable", f"str() of a {type(error).__name__} raises {type(inner).__name__}")
    first = text.splitlines()[0][:160]
    code = _last(error).f_code
    if is_ours(code):
        return Outcome("elsewhere", f"{first} (ends in {code.co_filename}:{code.co_firstlineno})")
    if error.loc.line and not error.loc.file.startswith(HERE):
        return Outcome("elsewhere", f"{first} (at {error.loc})")
    if type(error).__name__ in ("UnusableArgument", "UnusableValue"):
        return Outcome("unforeseen", f"{first} | {text.partition('note: ')[2].splitlines()[0][:160]}")
    return Outcome("error", f"{type(error).__name__}: {first}")


def _of_other(error: Exception) -> Outcome:
    frames = traceback.extract_tb(error.__traceback__)
    words = f"{type(error).__name__}: {_text(error)}"
    if not any(is_of_project(f.f_code.co_filename) for f in _frames(error)):
        return Outcome("python", words)  # no call of ours: Python's own refusal, at the caller's line
    at = frames[-1]
    if at.filename.startswith(HERE) and at.name != "fail":
        return Outcome("own", words)  # of a function that was passed, and that ours called
    return Outcome("raw", f"{words} at {os.path.basename(at.filename)}:{at.lineno}")


def _text(error: Exception) -> str:
    try:
        return str(error)[:120]
    except Exception:
        return "<its str() raises>"


def _frames(error: BaseException) -> Iterator[FrameType]:
    tb = error.__traceback__
    while tb is not None:
        yield tb.tb_frame
        tb = tb.tb_next


def _last(error: BaseException) -> FrameType:
    *_, last = _frames(error)
    return last


def hostile_values(world: World) -> list[Value]:
    """The hostile values, and all that there is in the world: a right thing in a wrong place is hostile too."""
    own = [Value(label, lambda label=label: world.get(label)) for label in world.objects]
    return [*hostile(), *own]

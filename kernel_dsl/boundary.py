"""Where users' calls come in and errors go out.

What is `public` converts its arguments by their annotations, and raises errors of ours alone: each ends at the user's line,
names the function and its argument, and can be printed. Everything in `kernel_dsl.__all__` is made public there, functions
and the methods of classes; classes that users only get instances of say so themselves.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from types import CodeType, FunctionType, TracebackType
from typing import Any, TypeVar, cast

from .arguments import Plan, a_function
from .diagnostics import Error, at_user_line, shown
from .errors import BadArgumentType, UnusableArgument, UnusableValue
from .source import is_ours, misfit

_T = TypeVar("_T")

# Special methods that are no calls of the user's, or that must not raise errors of ours; `==` where it is not plain says so
_INNER = frozenset(
    f"__{name}__"
    for name in (
        "class_getitem", "init_subclass", "new", "set_name", "repr", "str", "hash", "reduce", "reduce_ex", "getstate",
        "setstate", "getattr", "eq", "ne", "dir", "sizeof", "subclasshook", "annotations", "del", "exit", "weakref", "dict",
    )
)  # fmt: skip


def public(target: _T, name: str = "") -> _T:
    """The function as users call it, or the class with such methods (in place). Anything else as it is.

    Properties are left alone: those that compute something say `@public` themselves.
    """
    if isinstance(target, type):
        if not issubclass(target, BaseException):
            _make_methods_public(target)
        return cast("_T", target)
    if not isinstance(target, FunctionType) or getattr(target, "__guards__", False):
        return target
    return cast("_T", _guarded(target, name or target.__name__))


def checks_itself(*names: str) -> Callable[[_T], _T]:
    """These parameters are left to the function, which has words of its own for them."""

    def mark(function: _T) -> _T:
        function.__checks_itself__ = names  # type: ignore[attr-defined]
        return function

    return mark


def unguarded(function: _T) -> _T:
    """Leave a method of a public class as it is: its fast path pays for no wrapper, and what follows is public itself."""
    function.__guards__ = True  # type: ignore[attr-defined]
    return function


def _make_methods_public(cls: type[Any]) -> None:
    for key, value in list(vars(cls).items()):
        dunder = key.startswith("__") and key.endswith("__")
        if key in _INNER or (key.startswith("_") and not dunder):
            continue
        name = cls.__name__ if key in ("__init__", "__post_init__", "__call__") else key
        if isinstance(value, (classmethod, staticmethod)):
            made: Any = type(value)(public(value.__func__, name))
        else:
            made = public(value, name)
        if made is not value:
            type.__setattr__(cls, key, made)


def _guarded(function: FunctionType, name: str) -> Callable[..., Any]:
    plan: Plan | None = None

    @functools.wraps(function)
    def run(*args: Any, **keywords: Any) -> Any:
        nonlocal plan
        try:
            if plan is None:
                plan = Plan(function, name)
            if plan.empty:
                result = function(*args, **keywords)
            else:
                given, keywords = plan.converted(args, keywords)
                result = function(*given, **keywords)
        except Exception as error:
            mine = told(error, name, function, args, keywords)
            if mine is error:  # with its cause and context, where it is the user's own
                raise
            raise mine from None
        if type(result) is FunctionType and is_ours(result.__code__):  # a decorator, such as that of `kd.loop`
            return public(result, name)
        return result

    run.__guards__ = True  # type: ignore[attr-defined]
    return run


def told(
    error: Exception, name: str, function: Callable[..., Any], args: Iterable[Any], keywords: Mapping[str, Any]
) -> Exception:
    """What a public function raises for `error`: errors of ours as they end at the user's line, the user's own as they are."""
    if isinstance(error, Error):
        error.__suppress_context__ = True
        return at_user_line(error)
    if isinstance(error, Warning) or _is_users(error.__traceback__, args, keywords):
        return error
    return at_user_line(_unforeseen(error, name, function, args, keywords))


# --- whose error it is ---------------------------------------------------------------------------

# frames of code that we call and that is not the user's
_LIBRARIES = tuple(
    os.path.dirname(os.path.abspath(cast("str", module.__file__))) + os.sep
    for module in (os, sys.modules["numpy"], sys.modules["ml_dtypes"])
)


def _is_library(code: CodeType) -> bool:
    name = code.co_filename
    packages = ("llvmlite", "cuda", "torch", "jax", "jaxlib", "cupy")
    if name.startswith(_LIBRARIES):
        return "site-packages" not in name or name.startswith(_LIBRARIES[1:])
    return any(f"site-packages{os.sep}{package}{os.sep}" in name for package in packages)


def _is_users(traceback: TracebackType | None, args: Iterable[Any], keywords: Mapping[str, Any]) -> bool:
    """Whether a function of the user's raised it that ours had called, such as the body of a loop.

    What an argument raises as it is looked at, in a property or a `__len__`, is no such function.
    """
    called: CodeType | None = None  # the first frame after the last one of ours
    tb = traceback
    while tb is not None:
        code = tb.tb_frame.f_code
        if is_ours(code):
            called = None
        elif called is None:
            called = code
        tb = tb.tb_next
    if called is None or _is_library(called):
        return False
    return not any(called in _looked_at(type(x)) for x in _flat((*args, *keywords.values())))


def _flat(values: Iterable[Any], depth: int = 3) -> Iterable[Any]:
    for value in values:
        yield value
        if depth and type(value) in (tuple, list, dict):
            items = cast("dict[Any, Any]", value).items() if type(value) is dict else cast("list[Any]", value)
            yield from _flat(list(items)[:64], depth - 1)


def _looked_at(cls: type[Any]) -> set[CodeType]:
    """The code of a class's properties and special methods, but for `__call__`."""
    found: set[CodeType] = set()
    for base in type.mro(cls):
        for key, value in vars(base).items():
            function = value.fget if isinstance(value, property) else value
            special = isinstance(value, property) or (key.startswith("__") and key != "__call__")
            if special and isinstance(function, FunctionType):
                found.add(function.__code__)
    return found


def _unforeseen(
    error: Exception, name: str, function: Callable[..., Any], args: Iterable[Any], keywords: Mapping[str, Any]
) -> Error:
    """The error for what went wrong inside ours with these arguments, in words that name them."""
    traceback = error.__traceback__
    given = tuple(args)
    if (
        isinstance(error, TypeError) and traceback is not None and traceback.tb_next is None
    ):  # they do not fit the signature
        why = misfit(function, *given, **keywords) or str(error)
        return BadArgumentType(op=name, what=why, hint=f"call it as `{name}{_signature(function)}`")
    while traceback is not None and traceback.tb_next is not None and is_ours(traceback.tb_next.tb_frame.f_code):
        traceback = traceback.tb_next
    place = ""
    if traceback is not None:
        place = f" in {os.path.basename(traceback.tb_frame.f_code.co_filename)}:{traceback.tb_lineno}"
    cls = UnusableArgument if isinstance(error, (TypeError, AttributeError)) else UnusableValue
    return cls(op=name, given=_listed(function, given, keywords), why=f"{type(error).__name__}{place}: {shown(error)}")


def _signature(function: Callable[..., Any]) -> str:
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    words = [f"{'*' * (p.kind - 1) if p.kind in (2, 4) else ''}{p.name}" for p in parameters]
    words = [w.replace("***", "**") for w in words]
    return f"({', '.join(words)})"


def _listed(function: Callable[..., Any], args: tuple[Any, ...], keywords: Mapping[str, Any]) -> str:
    names = [p.name for p in inspect.signature(function).parameters.values() if p.kind in (0, 1)]
    parts = [(names[i] if i < len(names) else f"argument {i}", value) for i, value in enumerate(args)]
    words = [f"{name}={_short(value)}" for name, value in (*parts, *keywords.items()) if name != "self"]
    return ", ".join(words) or "no arguments"


def _short(value: Any) -> str:
    text = shown(value)
    return text if len(text) <= 80 else f"{text[:60]} ... {text[-16:]}"


# --- functions of the user's ---------------------------------------------------------------------


def called(function: Any, args: tuple[Any, ...], op: str, name: str, form: str) -> Any:
    """What a function that the user gave as parameter `name` of `op` returns; `form` shows how it is called, "body(i, val)".

    Raises `BadArgumentType` for what can't be called so, and for functions whose call runs nothing: generators, coroutines.
    """
    hint = f"it is called as `{form}`"
    body = a_function(function, op, name, hint)
    if not isinstance(body, type):
        inner = getattr(body, "__code__", None)
        # CO_GENERATOR, CO_COROUTINE, CO_ASYNC_GENERATOR
        if isinstance(inner, CodeType) and inner.co_flags & 0x2A0:
            what = f"{name} is a generator or an async function, whose call runs nothing"
            raise BadArgumentType(op=op, what=what, hint="use a plain function: no `yield`, no `async`")
    why = misfit(body, *args)
    if why:
        raise BadArgumentType(op=op, what=f"{name} can't be called with {_count(len(args))}: {why}", hint=hint)
    try:
        return body(*args)
    except Exception as error:
        traceback = error.__traceback__
        if isinstance(error, Error) or (traceback is not None and traceback.tb_next is not None):
            raise
        what = f"{name}={shown(body)} raises {type(error).__name__}: {shown(error)}"  # no function of Python's
        raise BadArgumentType(op=op, what=what, hint=hint) from None


def _count(number: int) -> str:
    return "1 argument" if number == 1 else f"{number} arguments"

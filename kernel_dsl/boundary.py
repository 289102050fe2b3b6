"""The boundary of the public functions: it converts users' arguments, and ends errors at the user's line.

A `public` function converts its arguments by their annotations and raises only this package's errors. Each error ends at the
user's line, names the function and its argument, and can be printed. `__init__.py` and `ops/__init__.py` make the functions and
classes of `__all__` public. Other classes, of which users only get instances, have the decorator themselves.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import EnumMeta
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any, TypeVar, cast

from .arguments import ArgumentPlan, a_function
from .dataclass import when_made
from .diagnostics import Error, at_user_line, counted, of_kind, shown
from .errors import BadArgument, BadArgumentType, NestedTooDeep, UnusableArgument, UnusableValue, ValueTooLarge
from .source import is_of_project, is_ours, misfit, runs_later
from .unseen import tell_torch, unseen

_T = TypeVar("_T")

OPERATIONS: dict[str, Any] = {}  # the functions of the language, as users call them; entered by ops/__init__.py

# Special methods that users do not call, or that must not raise errors of this project. A class whose `==` needs checks
# says so.
_INNER = frozenset(
    f"__{name}__"
    for name in (
        "class_getitem", "init_subclass", "new", "set_name", "repr", "str", "hash", "reduce", "reduce_ex", "getstate",
        "setstate", "getattr", "setattr", "delattr", "eq", "ne", "dir", "sizeof", "subclasshook", "annotations", "del", "exit",
        "weakref", "dict",
    )
)  # fmt: skip


def public(target: _T, name: str = "", home: str = "") -> _T:
    """The function that users call, or the class with such methods (changed in place).

    Anything else is returned unchanged. `home`: the module where users find the function, if it is not the one that
    defines it; pickles find it there.

    Properties stay: those that compute something have the decorator `@public` themselves.
    """
    if isinstance(target, type):
        if not issubclass(target, BaseException):
            _make_methods_public(target, name or target.__name__)
        return cast("_T", target)
    if not isinstance(target, FunctionType) or getattr(target, "__guards__", False):
        return target
    made: Any = _guarded(target, name or target.__name__.strip("_"))
    if home:
        made.__module__, made.__qualname__ = home, name.rpartition(".")[2]
    return made


class Choices(EnumMeta):
    """The metaclass of public enumerations: a value without a member raises `BadArgument`."""

    def __call__(cls, value: Any, *args: Any, **keywords: Any) -> Any:
        if args or keywords:  # a new enumeration
            return super().__call__(value, *args, **keywords)
        try:
            return super().__call__(value)
        except Exception:
            hint = f"one of {', '.join(f'`{cls.__name__}.{name}`' for name in cls.__members__)}"
            raise at_user_line(BadArgument(op=cls.__name__, what=shown(value), hint=hint)) from None


def checks_itself(*names: str) -> Callable[[_T], _T]:
    """The function checks these parameters itself, with its own error texts."""

    def mark(function: _T) -> _T:
        function.__checks_itself__ = names  # type: ignore[attr-defined]
        return function

    return mark


def unguarded(function: _T) -> _T:
    """Give a method of a public class no wrapper: its fast path saves the time, and its slow path is public itself."""
    function.__guards__ = True  # type: ignore[attr-defined]
    return function


def opaque(function: _T) -> _T:
    """As `unguarded`, and `unseen` by torch.compile."""
    return unguarded(unseen(cast("Any", function), "a kernel is no op of PyTorch: kernel.as_torch_op makes one"))


def _make_methods_public(cls: type[Any], called: str) -> None:
    when_made(cls, lambda: _make_methods_public(cls, called))
    for key, value in list(vars(cls).items()):
        dunder = key.startswith("__") and key.endswith("__")
        if key in _INNER or (key.startswith("_") and not dunder):
            continue
        name = called if key in ("__init__", "__post_init__", "__call__") else key.strip("_")
        if isinstance(value, (classmethod, staticmethod)):
            made: Any = type(value)(public(value.__func__, name))
        else:
            made = public(value, name)
        if made is not value:
            type.__setattr__(cls, key, made)


class _Method:
    """A function with the signature of a method: the first parameter, the handle, is called `self`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__wrapped__ = function
        self.__checks_itself__: tuple[str, ...] = getattr(function, "__checks_itself__", ())

    @property
    def __signature__(self) -> inspect.Signature:
        signature = inspect.signature(self.__wrapped__)
        handle, *others = signature.parameters.values()
        return signature.replace(parameters=[handle.replace(name="self"), *others])

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self.__wrapped__(*args, **keywords)


def attach(cls: type[Any], functions: Mapping[str, Callable[..., Any]]) -> None:
    """Give a class public methods: functions whose first argument is the handle."""
    for key, function in functions.items():
        if key.startswith("_") and not key.startswith("__"):
            made = function
        else:
            made = _guarded(cast("FunctionType", function), key.strip("_"), _Method(function))
        type.__setattr__(cls, key, made)


_LIBRARY = f"{__package__}.library."


def _is_of_library(function: Any) -> bool:
    """Whether it is a function of `kd.library`, or the call of an object there."""
    place = getattr(function, "__qualname__", ".")
    return (function.__module__ or "").startswith(_LIBRARY) and ("." not in place or place.endswith(".__call__"))


def _guarded(function: FunctionType, name: str, method: _Method | None = None) -> Callable[..., Any]:
    plan: ArgumentPlan | None = None
    seen: Any = function if method is None else method

    def run(*args: Any, **keywords: Any) -> Any:
        nonlocal plan
        try:
            if plan is None:
                tell_torch()
                plan = ArgumentPlan(seen, name)
            if plan.empty:
                result = function(*args, **keywords)
            else:
                given, keywords = plan.converted(args, keywords)
                result = function(*given, **keywords)
        except Exception as error:
            mine = told(error, name, seen, args, keywords)
            if mine is error:  # the user's own error keeps its cause and context
                raise
            raise mine from None
        if type(result) is FunctionType and is_ours(result.__code__):  # a decorator, as of `kd.loop`
            return public(result, name)
        return result

    # as functools.wraps does, in a twentieth of the time: an import makes hundreds of wrappers
    made: Any = run
    made.__name__, made.__qualname__, made.__module__ = function.__name__, function.__qualname__, function.__module__
    made.__doc__, made.__wrapped__, made.__annotations__ = function.__doc__, function, function.__annotations__
    made.__guards__ = True
    if (function.__module__ or "").startswith(_LIBRARY):
        unseen(made, f"{name} is no op of PyTorch")
    return run


def told(
    error: Exception, name: str, function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]
) -> Exception:
    """The error that a public function raises for `error`: one that ends at the user's line, or the user's own."""
    if isinstance(error, Error):
        error.__suppress_context__ = True
        if isinstance(error, ValueTooLarge) and not error.fields["op"]:  # raised without the user's function
            error.fields["op"] = name
        of_library = _is_of_library(function)
        _rename(error, name, sys._getframe(1).f_back, of_library)  # pyright: ignore[reportPrivateUsage]
        return at_user_line(error)
    if isinstance(error, Warning) or type(error).__module__.partition(".")[0] == "torch":
        return error  # by its own classes PyTorch says that memory is out, and that a checkpoint has all it needs
    code, ours = _raised_by(error.__traceback__)
    given = _given(function, args, keywords)
    if code is not None:
        for word, value in given:
            if any(code in _looked_at(type(x)) for x in _flat((value,))):
                what = f"{word}, {of_kind(value)}, raises {type(error).__name__} in its {code.co_name}: {shown(error)}"
                return at_user_line(
                    BadArgumentType(
                        op=name, what=what, hint="give a value whose properties and special methods raise nothing"
                    )
                )
        if not (isinstance(error, RecursionError) and ours > _MANY):
            return error
    if isinstance(error, RecursionError) and ours > _MANY:
        return at_user_line(NestedTooDeep(limit=_MANY))
    if isinstance(error, RecursionError) and _is_deep():
        return error
    return at_user_line(_unforeseen(error, name, function, args, keywords, given))


def _rename(error: Error, name: str, caller: FrameType | None, of_library: bool) -> None:
    """Name the function that the user called, such as `clip`, in place of one that it calls, such as `maximum`.

    A function of the library is named in place of its kernel.
    """
    if error.named or caller is None or is_ours(caller.f_code):
        return
    error.named = True  # functions further out, which called the body, must not rename it again
    # else the error is about an op of a body
    at_call = (error.loc.file, error.loc.line) == (caller.f_code.co_filename, caller.f_lineno)
    if at_call and error.fields.get("op") in OPERATIONS and name in OPERATIONS:
        error.fields["op"] = name
    if at_call and of_library and "kernel" in error.fields:
        error.fields["kernel"] = name


# --- whose error it is ---------------------------------------------------------------------------

WIDEST = 64  # bits of a number
_MANY = 10  # with more calls of public functions on the stack, a RecursionError means that these are nested too deep
# libraries that this project calls
_LIBRARIES = ("numpy", "ml_dtypes", "llvmlite", "cuda", "torch", "jax", "jaxlib", "cupy")
_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep


def _is_deep() -> bool:
    """Whether the user's calls fill half of the stack, so that no argument need be at fault."""
    try:
        sys._getframe(sys.getrecursionlimit() // 2)  # pyright: ignore[reportPrivateUsage]
    except ValueError:
        return False
    return True


def _is_library(code: CodeType) -> bool:
    name = code.co_filename
    if name.startswith("<frozen ") or (name.startswith(_STANDARD) and "site-packages" not in name):
        return True
    return any(f"site-packages{os.sep}{package}{os.sep}" in name for package in _LIBRARIES)


def _is_generated(code: CodeType) -> bool:
    """Whether `dataclasses` wrote a method, such as the `__hash__` of a class of ours that has a user's value."""
    return code.co_filename == "<string>" and code.co_name.startswith("__")


def _raised_by(traceback: TracebackType | None) -> tuple[CodeType | None, int]:
    """The user's code that raised an error (None if ours did), and the number of public calls on the stack.

    The user's code is the body of a loop, or a property or special method of an argument, such as `__len__`.
    """
    called: CodeType | None = None  # the user's first frame after the last one of this project
    count = 0
    tb = traceback
    while tb is not None:
        code = tb.tb_frame.f_code
        if is_of_project(code.co_filename):
            called = None
            count += code.co_name == "run"
        elif called is None and not _is_library(code) and not _is_generated(code):
            called = code
        tb = tb.tb_next
    return called, count


def _flat(values: Iterable[Any], depth: int = 3) -> Iterable[Any]:
    for value in values:
        yield value
        if depth and type(value) in (tuple, list, dict):
            items = cast("dict[Any, Any]", value).items() if type(value) is dict else cast("list[Any]", value)
            yield from _flat(list(items)[:64], depth - 1)


def _looked_at(cls: type[Any]) -> set[CodeType]:
    """The code of a class's properties and special methods, except `__call__`."""
    found: set[CodeType] = set()
    for base in type.mro(cls):
        for key, value in vars(base).items():
            function = value.fget if isinstance(value, property) else value
            special = isinstance(value, property) or (key.startswith("__") and key != "__call__")
            if special and isinstance(function, FunctionType):
                found.add(function.__code__)
    return found


def _given(function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The arguments with the names of their parameters."""
    names: list[str] = []
    rest = "argument"
    for p in inspect.signature(function).parameters.values():
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            names.append(p.name)
        elif p.kind is p.VAR_POSITIONAL:
            rest = p.name
    found = [(names[i] if i < len(names) else f"{rest}[{i - len(names)}]", value) for i, value in enumerate(args)]
    return [*found[names[:1] == ["self"] :], *keywords.items()]


def _unforeseen(
    error: Exception,
    name: str,
    function: Callable[..., Any],
    args: Sequence[Any],
    keywords: Mapping[str, Any],
    given: list[tuple[str, Any]],
) -> Error:
    """The error for an exception inside this project that these arguments caused. It names the arguments."""
    traceback = error.__traceback__
    # the arguments do not fit the signature
    why = misfit(function, *args, **keywords) if isinstance(error, TypeError) else ""
    if why or (isinstance(error, TypeError) and traceback is not None and traceback.tb_next is None):
        why = why or str(error)
        return BadArgumentType(op=name, what=why, hint=f"call it as `{name}{_signature(function)}`")
    if isinstance(error, OverflowError) or (isinstance(error, ValueError) and "string conversion" in str(error)):
        for word, value in given:  # no float holds them, and Python refuses to print those of 4300 digits
            if any(type(x) is int and x.bit_length() > WIDEST for x in _flat((value,))):
                return BadArgument(op=name, what=f"{word}={_short(value)}", hint=f"a number of at most {WIDEST} bits")
    while traceback is not None and traceback.tb_next is not None and is_ours(traceback.tb_next.tb_frame.f_code):
        traceback = traceback.tb_next
    place = ""
    if traceback is not None:
        place = f" in {os.path.basename(traceback.tb_frame.f_code.co_filename)}:{traceback.tb_lineno}"
    cls = UnusableArgument if isinstance(error, (TypeError, AttributeError)) else UnusableValue
    words = ", ".join(f"{word}={_short(value)}" for word, value in given) or "no arguments"
    return cls(op=name, given=words, why=f"{type(error).__name__}{place}: {shown(error)}")


def _signature(function: Callable[..., Any]) -> str:
    """The parameters of a function, as in `(x, axis, *, keepdims)`."""
    words: list[str] = []
    for p in inspect.signature(function).parameters.values():
        if p.kind is p.KEYWORD_ONLY and not any(w.startswith("*") for w in words):
            words.append("*")
        words.append({p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "") + p.name)
    return f"({', '.join(w for w in words if w != 'self')})"


def _short(value: Any) -> str:
    text = shown(value)
    return text if len(text) <= 80 else f"{text[:60]} ... {text[-16:]}"


# --- functions of the user's ---------------------------------------------------------------------


PLAIN = "use a plain function: no `yield`, no `async`"


def called(
    function: Any, args: tuple[Any, ...], op: str, name: str, form: str, keywords: Mapping[str, Any] | None = None
) -> Any:
    """Call a function that the user gave as parameter `name` of `op`; `form` shows the call, such as "body(i, val)".

    Raises `BadArgumentType` for objects that can't be called so, and for generators and coroutines, whose call runs
    nothing.
    """
    hint = f"it is called as `{form}`"
    body = a_function(function, op, name, hint)
    if runs_later(body):
        what = f"{name} is a generator or an async function, whose call runs nothing"
        raise BadArgumentType(op=op, what=what, hint=PLAIN)
    more = keywords or {}
    why = misfit(body, *args, **more)
    if why:
        what = f"{name} can't be called with {counted(len(args) + len(more), 'argument')}: {why}"
        raise BadArgumentType(op=op, what=what, hint=hint)
    try:
        return body(*args, **more)
    except Exception as error:
        traceback = error.__traceback__
        if isinstance(error, Error) or (traceback is not None and traceback.tb_next is not None):
            raise
        what = f"{name}={shown(body)} raises {type(error).__name__}: {shown(error)}"  # a builtin raised it
        raise BadArgumentType(op=op, what=what, hint=hint) from None

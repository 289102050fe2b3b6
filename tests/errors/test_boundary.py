"""What a public function makes of its arguments, and of errors that are not ours."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import pytest

import kernel_dsl as kd
from kernel_dsl.argument_kinds import kind_of
from kernel_dsl.arguments import annotation_of, parameters_of
from kernel_dsl.boundary import called, public
from kernel_dsl.errors import BadArgument, BadArgumentType, NestedTooDeep, UnusableArgument, UnusableValue
from tests.errors.harness import last_frame


def _of_ours(source: str) -> Any:
    """The function `f` of a source that counts as ours."""
    names: dict[str, Any] = {"kd": kd, "Any": Any}
    exec(compile(source, kd.__file__, "exec"), names)
    return public(names["f"])


@pytest.mark.parametrize(
    ("source", "cls", "builtin", "words"),
    [
        ("def f(x, y=2): return x + y", UnusableArgument, TypeError, "`f` can't work with x='a'"),
        ("def f(x): return x.nothing", UnusableArgument, TypeError, "AttributeError"),
        ("def f(x): return [][len(x)]", UnusableValue, ValueError, "x='a'"),
        ("def f(x): return 1 // 0", UnusableValue, ValueError, "ZeroDivisionError"),
        ("def f(x): raise MemoryError", UnusableValue, ValueError, "MemoryError"),
        ("def f(x, y): return x", BadArgumentType, TypeError, "missing a required argument: 'y'"),
    ],
)
def test_an_error_inside_ours_names_function_and_arguments(source: str, cls: Any, builtin: Any, words: str) -> None:
    with pytest.raises(cls) as caught:
        _of_ours(source)("a")
    assert words in str(caught.value) and isinstance(caught.value, builtin) and isinstance(caught.value, kd.Error)
    assert caught.value.__cause__ is None and last_frame(caught.value) == __file__


def test_errors_of_the_users_functions_stay_what_they_are() -> None:
    class MineError(Exception):
        """The user's own."""

    cause = KeyError("cause")

    def body(*args: Any) -> None:
        raise MineError("mine") from cause

    def kernel(x: Any, o: Any) -> None:
        for call in (
            lambda: kd.fori_loop(0, 3, body, x[...]),
            lambda: kd.cond(x[0] > 0, body, body),
            lambda: kd.when(x[0] > 0)(body),
            lambda: kd.run_scoped(body),
        ):
            with pytest.raises(MineError) as caught:
                call()
            assert caught.value.__cause__ is cause
        o[...] = x[...]

    kd.kernel(kernel, out_type=np.ones(4, np.float32)).lower(np.ones(4, np.float32))
    with pytest.raises(MineError):
        kd.kernel(body).lower(1)


def test_endless_recursion_of_the_users_is_pythons_error() -> None:
    def forever(x: Any) -> Any:
        return forever(x)

    def through_loops(x: Any) -> Any:
        return kd.fori_loop(0, 1, lambda i, v: through_loops(v), x)

    def kernel(x: Any, o: Any) -> None:
        with pytest.raises(RecursionError) as caught:
            forever(x)
        assert not isinstance(caught.value, kd.Error)
        with pytest.raises(NestedTooDeep):
            through_loops(x[...])
        o[...] = x[...]

    kd.kernel(kernel, out_type=np.ones(4, np.float32)).lower(np.ones(4, np.float32))


def test_a_call_from_deep_in_the_stack_runs_or_is_pythons_error() -> None:
    x = np.ones((3, 4), np.float32)

    def from_depth(n: int, call: Any) -> Any:
        return from_depth(n - 1, call) if n else call()

    def call() -> Any:
        def kernel(x: Any, o: Any) -> None:
            o[...] = kd.exp(x[...] + 1)

        return kd.kernel(kernel, out_type=x, interpret=True)(x)

    limit, told = sys.getrecursionlimit(), 0
    used = len(inspect.stack(0))
    for left in range(4, 160, 4):
        try:
            result = from_depth(limit - used - left, call)
        except RecursionError as error:
            assert type(error) is RecursionError, left
            told += 1
        else:
            np.testing.assert_allclose(result, np.exp(x + 1), rtol=1e-6)
    assert 5 < told < 34
    np.testing.assert_allclose(call(), np.exp(x + 1), rtol=1e-6)


class Loud(int):
    def __repr__(self) -> str:
        raise RuntimeError("loud")


CONVERSIONS: list[
    tuple[Any, Any, Any]
] = [  # annotation, given, what the function gets (an error class where it is refused)
    (bool, True, True),
    (bool, np.bool_(False), False),
    (bool, 1, True),
    (bool, 2, BadArgumentType),
    (bool, "no", BadArgumentType),
    (bool, np.ones(2), BadArgumentType),
    (int, 3, 3),
    (int, np.int8(3), 3),
    (int, np.array(3), 3),
    (int, Loud(3), 3),
    (int, True, BadArgumentType),
    (int, 3.0, BadArgumentType),
    (int, float("nan"), BadArgumentType),
    (int, 2**63, BadArgument),
    (int, 10**400, BadArgument),
    (int, None, BadArgumentType),
    (int | None, None, None),
    (float, 1, 1.0),
    (float, np.float32(1.5), 1.5),
    (float, "1", BadArgumentType),
    (float, 1j, BadArgumentType),
    (str, "a", "a"),
    (str, np.str_("a"), "a"),
    (str, b"a", BadArgumentType),
    (bool | int | float | None, 1, 1),
    (bool | int | float | None, True, True),
    (Sequence[int], [1, np.int64(2)], (1, 2)),
    (Sequence[int], (1, "a"), BadArgumentType),
    (Sequence[str], "ab", BadArgumentType),
    (str | Sequence[str], "ab", "ab"),
    (tuple[int, ...], [1], (1,)),
    (Literal["a", "b"], "a", "a"),
    (Literal["a", "b"], "c", BadArgumentType),
    (Callable[..., Any], len, len),
    (Callable[..., Any], 3, BadArgumentType),
    (kd.CompilerParams, {}, BadArgumentType),
    (kd.OOBFillMode, "zeros", BadArgumentType),
    (kd.OOBFillMode, kd.OOBFillMode.NANS, kd.OOBFillMode.NANS),
]


@pytest.mark.parametrize(("annotation", "given", "wanted"), CONVERSIONS, ids=range(len(CONVERSIONS)))
def test_arguments_are_converted_by_their_annotations(annotation: Any, given: Any, wanted: Any) -> None:
    def plain(value: Any, *rest: Any, key: Any = None, **more: Any) -> Any:
        return value, rest, key, more

    plain.__annotations__ = dict.fromkeys(("value", "rest", "key", "more"), annotation)
    function = public(plain, "function")
    if isinstance(wanted, type) and issubclass(wanted, kd.Error):
        for args, keywords, name in (
            ((given,), {}, "value"),
            ((), {"value": given}, "value"),
            ((), {"more": given}, "more"),
        ):
            with pytest.raises(wanted, match=f"`function`: {name}="):
                function(*args, **keywords)
        return
    got = function(given, given, key=given, more=given)
    assert got == (wanted, (wanted,), wanted, {"more": wanted})
    assert all(type(x) is type(wanted) for x in (got[0], got[1][0], got[2]))


def _public_functions() -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name in kd.__all__:
        value = getattr(kd, name)
        if inspect.isfunction(value):
            found.append((name, value))
        elif inspect.isclass(value) and not issubclass(value, BaseException):
            found += [
                (f"{name}.{n}", f) for n, f in vars(value).items() if inspect.isfunction(f) and not n.startswith("_")
            ]
    return found


def test_everything_public_is_guarded() -> None:
    """By `kernel_dsl/__init__`, so that a new function is too."""
    open_ = [name for name, function in _public_functions() if not getattr(function, "__guards__", False)]
    assert open_ == []


def test_every_annotation_is_one_that_is_checked() -> None:
    """`Any` is left to the function; what else is written is enforced, and names that can't be evaluated would not be."""
    unknown: list[str] = []
    for name, function in _public_functions():
        for parameter in inspect.signature(function).parameters.values():
            said = parameter.annotation
            if said is parameter.empty or "Any" in str(said) or parameter.name == "self":
                continue
            if kind_of(annotation_of(function, parameter)) is None:
                unknown.append(f"{name}({parameter.name}: {said})")
    assert unknown == []


def test_parameters_are_those_of_signatures() -> None:
    """Read from the code of a function, which takes a tenth of the time."""

    def every(a: int, /, b: str = "x", *rest: Any, c: bool, d: int | None = None, **others: int) -> None: ...
    def none() -> None: ...
    def named(*, last: int = 3) -> None: ...
    def plain(a, b=(), /): ...

    functions = [every, none, named, plain, *(inspect.unwrap(f) for _, f in _public_functions())]
    for function in functions:
        want = inspect.signature(function).parameters.values()
        assert [(p.name, p.kind, p.default, p.annotation) for p in parameters_of(function)] == [
            (p.name, p.kind, p.default, p.annotation) for p in want
        ]


def test_a_function_of_the_users_is_called_with_what_it_takes() -> None:
    assert called(lambda a, b=2: a + b, (1,), "op", "body", "body(i)") == 3
    assert called(int, ("3",), "op", "body", "body(i)") == 3
    for wrong in (3, None, lambda: 1, lambda a, b: 1, lambda *, k: k):
        with pytest.raises(BadArgumentType, match=r"`op`: body") as caught:
            called(wrong, (1,), "op", "body", "body(i)")
        assert "body(i)" in str(caught.value)
    with pytest.raises(BadArgumentType, match="raises TypeError"):
        called(int, ([],), "op", "body", "body(i)")

"""`kernel_dsl.dataclass` makes the classes that the standard library's `dataclass` makes, at their first use."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from kernel_dsl.dataclass import dataclass as late
from kernel_dsl.dataclass import evaluated
from kernel_dsl.options import CompilerParams
from kernel_dsl.view import View


def _none() -> type[Any]:
    class Point:
        pass

    return Point


def _one() -> type[Any]:
    class Point:
        """A docstring."""

        x: int

    return Point


def _several() -> type[Any]:
    class Point:
        x: Any
        y: int = 3
        z: list[int] = dataclasses.field(default_factory=lambda: [1])
        kind: ClassVar[str] = "plain"

        def norm(self) -> Any:
            return self.x + self.y

    return Point


def _hidden() -> type[Any]:
    class Point:
        x: Any
        y: Any = dataclasses.field(default=None, repr=False)
        z: Any = dataclasses.field(default=None, compare=False)

    return Point


def _checked() -> type[Any]:
    class Point:  # noqa: PLW1641 - dataclass gives it a hash where it is frozen
        x: Any
        y: int = 3

        def __post_init__(self) -> None:
            object.__setattr__(self, "y", self.y + 1)

        def __eq__(self, other: object) -> bool:
            return isinstance(other, type(self)) and self.x == other.x

        def __repr__(self) -> str:
            return f"<{self.x}>"

    return Point


BODIES = {
    "none": (_none, ()),
    "one": (_one, (1,)),
    "several": (_several, (1, 2)),
    "hidden": (_hidden, (1, 2, [])),
    "checked": (_checked, (1,)),
}
OPTIONS = [{}, {"frozen": True}, {"eq": False}, {"frozen": True, "eq": False}]


def _told(action: Callable[[], Any]) -> Any:
    """What an action returns or raises, in words without addresses."""
    try:
        return action()
    except Exception as error:
        return type(error).__name__, str(error)


def _facts(cls: type[Any], args: tuple[Any, ...], first: str) -> dict[str, Any]:
    """What can be seen of a class; `first` is looked at before the rest."""
    bare = object.__new__(cls)  # as pickle makes them
    bare.__dict__.update({"x": 1, "y": 2, "z": [3]})
    facts: dict[str, Callable[[], Any]] = {
        "made": lambda: vars(cls(*args)),
        "by name": lambda: vars(cls(**dict(zip("xyz", args, strict=False)))),
        "too few": lambda: cls() is not None,
        "too many": lambda: cls(1, 2, 3, 4, 5),
        "twice": lambda: vars(cls(1, x=1)),
        "unknown": lambda: vars(cls(*args, w=1)),
        "signature": lambda: str(inspect.signature(cls)),
        "fields": lambda: [(f.name, f.type, f.default) for f in dataclasses.fields(cls)],
        "params": lambda: str(cls.__dataclass_params__),
        "repr": lambda: repr(bare).split(" object at")[0],
        "equal": lambda: (bare == copy.copy(bare), bare == cls(*args), cls(*args) == cls(*args), bare == 1),
        "hash": lambda: len({*map(hash, [cls(*args), cls(*args)])}),  # both live: a freed one's address may come again
        "hashed": lambda: cls.__hash__ is None,
        "names": lambda: cls.__match_args__,
        "replaced": lambda: vars(dataclasses.replace(bare, x=7)),
        "assigned": lambda: setattr(cls(*args), "x", 1),
        "new": lambda: setattr(cls(*args), "new", 1),
        "deleted": lambda: delattr(cls(1, 2), "x"),
        "docstring": lambda: bool(cls.__doc__),
        "heirs": lambda: setattr(type("Heir", (cls,), {})(*args), "own", 1),
    }
    return {first: _told(facts[first]), **{name: _told(fact) for name, fact in facts.items()}}


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o) or "plain")
@pytest.mark.parametrize("body", BODIES)
def test_the_same_class(body: str, options: dict[str, bool]) -> None:
    """Whatever is used first."""
    make, args = BODIES[body]
    expected = _facts(dataclasses.dataclass(**options)(make()), args, "made")
    for first in expected:
        got = _facts(late(**options)(make()), args, first)
        assert got == expected, first


def test_many_threads_use_it_first() -> None:
    for _ in range(20):
        cls = late(frozen=True)(_several())
        start = threading.Barrier(8)
        found: list[Any] = []

        def use(cls: type[Any] = cls, start: threading.Barrier = start, found: list[Any] = found) -> None:
            start.wait()
            found.append(_told(lambda: repr(cls(1))))

        threads = [threading.Thread(target=use) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert found == [repr(cls(1))] * 8


@pytest.mark.parametrize("cls", [View, CompilerParams])
def test_the_packages_classes_are_these(cls: type[Any]) -> None:
    assert dataclasses.is_dataclass(cls)
    assert pickle.loads(pickle.dumps(cls)) is cls


def test_annotations_say_what_eval_says() -> None:
    names = {"Any": Any, "View": View, "np": np}
    for said in (
        "int",
        "None",
        "View",
        "int | None",
        "View | str | None",
        "Any | None",
        "list[int | None]",
        "np.generic | bool",
    ):
        assert evaluated(said, names) == eval(said, dict(names)), said
    for wrong in ("nothing", "int | nothing", "View.none"):
        assert _told(lambda said=wrong: evaluated(said, names)) == _told(lambda said=wrong: eval(said, dict(names)))

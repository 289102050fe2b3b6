"""`dataclass` of the standard library, except that a class gets its methods at its first use.

The standard library compiles six methods from text when a class is defined, which took half of the time of `import kernel_dsl`.
Here a class has placeholders until the first use of one of them. Then only `__init__` is compiled from text. What
`dataclasses.fields` reads is made apart, at its own first use: a launch needs it of hardly any class.
"""

from __future__ import annotations

import builtins
import dataclasses
import functools
import sys
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from . import forking

_T = TypeVar("_T")
_BUILTINS = vars(builtins)
_lock = forking.lock()
_when_made: dict[type[Any], Callable[[], None]] = {}


class _Factory:
    """The default of a parameter whose value a factory makes, as signatures show it."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


class _Late:
    """Stands in a class for an attribute that `make` makes."""

    def __init__(self, cls: type[Any], name: str, make: Callable[[], None]) -> None:
        self.cls, self.name, self.make = cls, name, make

    def __get__(self, instance: Any, owner: type[Any]) -> Any:
        with _lock:  # another thread may be making them
            if vars(self.cls)[self.name] is self:
                self.make()
        made = vars(self.cls)[self.name]
        return made.__get__(instance, owner) if callable(made) else made


class _LateInit(_Late):
    """Stands for `__init__`, which is compiled from text for the fifth instance: a launch makes one or two of most classes."""

    def __init__(self, cls: type[Any], make: Callable[[], None]) -> None:
        super().__init__(cls, "__init__", make)
        self.left = 4
        self.fields: list[_FieldFacts] | None = None

    def __get__(self, instance: Any, owner: type[Any]) -> Any:
        if instance is None or self.left <= 0 or self.cls in _when_made:
            return super().__get__(instance, owner)
        self.left -= 1
        return functools.partial(self._fill, instance)

    def _fill(self, instance: Any, /, *args: Any, **keywords: Any) -> None:
        if self.fields is None:
            self.fields = _fields_of(self.cls)
        names = [f.name for f in self.fields]
        values = dict(zip(names, args, strict=False)) | keywords
        for f in self.fields[len(args) :]:
            if f.name not in values and f.default_factory is not dataclasses.MISSING:
                values[f.name] = f.default_factory()
            elif f.name not in values and f.default is not dataclasses.MISSING:
                values[f.name] = f.default
        if len(args) > len(names) or not keywords.keys() <= {*names[len(args) :]} or len(values) != len(names):
            self.left = 0  # the compiled one says what is wrong
            self.__get__(instance, self.cls)(*args, **keywords)
            return
        instance.__dict__.update(values)
        if hasattr(self.cls, "__post_init__"):
            instance.__post_init__()


def _late_dataclass(cls: Any = None, /, *, frozen: bool = False, eq: bool = True) -> Any:
    """As `dataclasses.dataclass`, for classes that inherit from no dataclass.

    Fields may have `default`, `default_factory`, `repr` and `compare`.
    """
    if cls is None:
        return lambda cls: _late_dataclass(cls, frozen=frozen, eq=eq)
    own = vars(cls)
    names = ["__init__", "__repr__", "__match_args__", *["__eq__"] * eq, *["__hash__"] * (eq and frozen)]
    names = [name for name in names if own.get(name) is None]  # a class with `__eq__` has `__hash__ = None`

    own_init = names[0] != "__init__"
    others = names if own_init else names[1:]

    def make() -> None:
        _make(cls, others, frozen)

    def make_init() -> None:
        _make(cls, ["__init__"], frozen)

    def describe() -> None:
        make()  # before the standard library puts a default in the place of each `field(...)`
        if not own_init:
            make_init()
        _describe(cls, frozen, eq)

    if eq and not frozen and "__hash__" not in own:
        cls.__hash__ = None
    if frozen:
        cls.__setattr__, cls.__delattr__ = _refusals(cls)
    for name in others:
        setattr(cls, name, _Late(cls, name, make))
    if not own_init:
        cls.__init__ = _LateInit(cls, make_init)
    for name in ("__dataclass_fields__", "__dataclass_params__"):
        setattr(cls, name, _Late(cls, name, describe))
    return cls


def changed(value: _T, **fields: Any) -> _T:
    """As `dataclasses.replace`, at a quarter of the time, for classes without a base and without `__post_init__`."""
    made = object.__new__(type(value))
    made.__dict__.update({name: value.__dict__[name] for name in type(value).__annotations__} | fields)
    return made


def evaluated(annotation: str, names: dict[str, Any]) -> Any:
    """What an annotation says, by the names of its module. Raises as `eval`, which takes ten times as long for a name or two."""
    found: Any = None
    for number, part in enumerate(annotation.split(" | ")):
        if part != "None" and part not in names and part not in _BUILTINS:
            return eval(annotation, names)
        one = None if part == "None" else names[part] if part in names else _BUILTINS[part]
        found = found | one if number else one
    return found


@cache
def declared_type(module: str, annotation: Any) -> Any:
    """The type that a field of a class of that module is annotated with. `typing.get_type_hints` takes ten times as long."""
    return evaluated(annotation, vars(sys.modules[module])) if isinstance(annotation, str) else annotation


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _late_dataclass


def when_made(cls: type[Any], function: Callable[[], None]) -> None:
    """Call `function` once the placeholders of `cls` become methods. Nothing happens if `cls` has no placeholders."""
    if any(isinstance(vars(cls).get(name), _Late) for name in ("__init__", "__repr__", "__match_args__")):
        _when_made[cls] = function


def make_methods(*classes: type[Any]) -> None:
    """Make the methods of these classes now, for a program that is still importing."""
    for cls in classes:
        for name in ("__init__", "__match_args__"):
            late = vars(cls).get(name)
            if isinstance(late, _Late):
                late.make()


def _describe(cls: Any, frozen: bool, eq: bool) -> None:
    if not cls.__doc__:
        cls.__doc__ = f"{cls.__name__}."  # else the standard library asks for a signature, to write one
    dataclasses.dataclass(init=False, repr=False, eq=False)(cls)  # replaces the fields and the parameters
    params = cls.__dataclass_params__
    params.init, params.repr, params.eq, params.frozen = True, True, eq, frozen


class _FieldFacts(NamedTuple):
    """What methods are made of, of a `dataclasses.Field`."""

    name: str
    type: Any
    default: Any = dataclasses.MISSING
    default_factory: Any = dataclasses.MISSING
    repr: bool = True
    compare: bool = True


def _fields_of(cls: Any) -> list[_FieldFacts]:
    """The fields of a class whose methods are not made."""
    own, found = vars(cls), list[_FieldFacts]()
    for name, annotation in own.get("__annotations__", {}).items():
        value = own.get(name, dataclasses.MISSING)
        if isinstance(annotation, str) and annotation.startswith("ClassVar"):
            continue
        if isinstance(value, dataclasses.Field):
            f: dataclasses.Field[Any] = value
            found.append(_FieldFacts(name, annotation, f.default, f.default_factory, f.repr, f.compare))
        else:
            found.append(_FieldFacts(name, annotation, value))
    return found


def _make(cls: Any, names: list[str], frozen: bool) -> None:
    if not isinstance(vars(cls)[names[0]], _Late):
        return
    fields = _fields_of(cls)
    values = _values(tuple([f.name for f in fields if f.compare]))
    made: dict[str, Any] = {
        "__match_args__": tuple([f.name for f in fields]),
        "__init__": _init(cls, fields, frozen) if "__init__" in names else None,
        "__repr__": _repr(tuple([f.name for f in fields if f.repr])),
        "__eq__": lambda self, other: values(self) == values(other) if type(self) is type(other) else NotImplemented,
        "__hash__": lambda self: hash(values(self)),
    }
    for name in names:
        if callable(made[name]):
            made[name].__name__, made[name].__qualname__ = name, f"{cls.__qualname__}.{name}"
        setattr(cls, name, made[name])
    _when_made.pop(cls, lambda: None)()


def _init(cls: Any, fields: list[_FieldFacts], frozen: bool) -> Any:
    known: dict[str, Any] = {"_set": object.__setattr__, "_factory": _FACTORY}
    parameters = ["self"]
    lines: list[str] = []
    entries: list[str] = []
    for f in fields:
        parameter = value = f.name
        if f.default is not dataclasses.MISSING:
            known[f"_{f.name}"] = f.default
            parameter = f"{f.name}=_{f.name}"
        elif f.default_factory is not dataclasses.MISSING:
            known[f"_{f.name}"] = f.default_factory
            parameter, value = f"{f.name}=_factory", f"_{f.name}() if {f.name} is _factory else {f.name}"
        parameters.append(parameter)
        lines.append(f"_set(self, {f.name!r}, {value})" if frozen else f"self.{f.name} = {value}")
        entries.append(f"{f.name}={value}")
    if cls in _when_made:  # a public class: the first launch of a process waits for this, and one call compiles faster
        lines = [f"self.__dict__.update({', '.join(entries)})"]
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    exec(f"def __init__({', '.join(parameters)}): {'; '.join(lines) or 'pass'}", known)
    made = known["__init__"]
    made.__module__ = cls.__module__
    made.__annotations__ = {**{f.name: f.type for f in fields}, "return": None}
    return made


def _values(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """A function from an instance to the values of its fields."""
    return attrgetter(*names) if len(names) > 1 else lambda x: tuple(getattr(x, name) for name in names)


def _refusals(cls: Any) -> tuple[Any, Any]:
    """`__setattr__` and `__delattr__` of a frozen class. A class that inherits from it may have attributes of its own."""

    def set_attribute(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in cls.__dataclass_fields__:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def delete_attribute(self: Any, name: str) -> None:
        if type(self) is cls or name in cls.__dataclass_fields__:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return set_attribute, delete_attribute


def _repr(names: tuple[str, ...]) -> Any:
    @recursive_repr()
    def represent(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return represent

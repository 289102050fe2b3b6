"""Operators that a handle lacks: each raises an error with the alternative."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Number
from typing import Any, ClassVar, NoReturn, TypeVar

from .boundary import public
from .errors import RefAsValue

_T = TypeVar("_T")

BINARY = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@", "and": "&",
    "or": "|", "xor": "^", "lshift": "<<", "rshift": ">>", "divmod": "divmod",
}  # fmt: skip
SIGNS = BINARY | {
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "neg": "-", "abs": "abs", "invert": "~", "float": "float", "int": "int",
    "complex": "complex", "round": "round", "contains": "in", "array": "np.asarray",
}  # fmt: skip


def without(*names: str, refuse: Callable[[Any, str], NoReturn]) -> Callable[[type[_T]], type[_T]]:
    """A class decorator: the operators of these names, and the reflected ones, only `refuse(self, sign)`.

    They are set here and not written in the class, so that type checkers report their use.
    """

    def made(sign: str) -> Callable[..., NoReturn]:
        def operator(self: object, *others: object) -> NoReturn:
            refuse(self, sign)

        return operator

    def decorate(cls: type[_T]) -> type[_T]:
        for name in names:
            operator = made(SIGNS[name])
            setattr(cls, f"__{name}__", operator)
            if name in BINARY:
                setattr(cls, f"__r{name}__", operator)
        return cls

    return decorate


def _refuse(ref: object, sign: str) -> NoReturn:
    raise RefAsValue(op=sign, ref=repr(ref))


def _no_number(ref: object, other: object, sign: str) -> bool:
    """False where `other` can't equal the elements of a Ref. Raises `RefAsValue` where it can."""
    if not isinstance(other, NoArithmetic) and (isinstance(other, Number) or hasattr(other, "__array__")):
        _refuse(ref, sign)
    return False


@public
@without(*SIGNS, refuse=_refuse)
class NoArithmetic:
    """Arithmetic and NumPy's functions raise `RefAsValue`, and so do == and != with a number or an array.

    Among themselves, and beside None and strings, == and != stay Python's identity.
    """

    __slots__ = ()
    __hash__: ClassVar[Callable[[object], int]] = object.__hash__

    @public
    def __eq__(self, other: object) -> bool:
        return self is other or _no_number(self, other, "==")

    @public
    def __ne__(self, other: object) -> bool:
        return self is not other and not _no_number(self, other, "!=")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: object, **options: object) -> NoReturn:
        raise RefAsValue(op=f"np.{ufunc.__name__}", ref=repr(self))

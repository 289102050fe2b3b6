"""Operators that a handle lacks: each raises an error with the alternative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

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


@public
@without(*SIGNS, refuse=_refuse)
class NoArithmetic:
    """Arithmetic and NumPy's functions raise `RefAsValue`; comparison with == and != stays Python's identity."""

    __slots__ = ()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: object, **options: object) -> NoReturn:
        raise RefAsValue(op=f"np.{ufunc.__name__}", ref=repr(self))

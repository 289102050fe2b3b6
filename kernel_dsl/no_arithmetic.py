"""Operators that a Ref, or an accumulator, does not have, each with the error that says to load it first."""

from __future__ import annotations

from typing import Any, NoReturn

from .boundary import public
from .errors import RefAsValue


def _refuse(symbol: str) -> Any:
    def operator(self: object, *others: object) -> NoReturn:
        raise RefAsValue(op=symbol, ref=repr(self))

    return operator


@public
class NoArithmetic:
    """Arithmetic and NumPy's functions raise `RefAsValue`; comparison with == and != stays Python's identity."""

    __slots__ = ()
    __add__ = __radd__ = _refuse("+")
    __sub__ = __rsub__ = _refuse("-")
    __mul__ = __rmul__ = _refuse("*")
    __truediv__ = __rtruediv__ = _refuse("/")
    __floordiv__ = __rfloordiv__ = _refuse("//")
    __mod__ = __rmod__ = _refuse("%")
    __pow__ = __rpow__ = _refuse("**")
    __matmul__ = __rmatmul__ = _refuse("@")
    __and__ = __rand__ = _refuse("&")
    __or__ = __ror__ = _refuse("|")
    __xor__ = __rxor__ = _refuse("^")
    __lshift__ = __rlshift__ = _refuse("<<")
    __rshift__ = __rrshift__ = _refuse(">>")
    __lt__ = _refuse("<")
    __le__ = _refuse("<=")
    __gt__ = _refuse(">")
    __ge__ = _refuse(">=")
    __neg__ = _refuse("-")
    __abs__ = _refuse("abs")
    __invert__ = _refuse("~")
    __float__ = _refuse("float")
    __int__ = _refuse("int")
    __complex__ = _refuse("complex")
    __round__ = _refuse("round")
    __divmod__ = __rdivmod__ = _refuse("divmod")
    __contains__ = _refuse("in")
    __array__ = _refuse("np.asarray")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: object, **options: object) -> NoReturn:
        raise RefAsValue(op=f"np.{ufunc.__name__}", ref=repr(self))

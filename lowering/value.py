"""Values of LLVM with operators that write instructions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, SupportsIndex

_ZERO, _ONE = (0, "0"), (1, "1")
_WIDTH = {"i8": 8, "i16": 16, "i32": 32, "i64": 64}
FLOATS = ("half", "bfloat", "float", "double")


class Instructions(Protocol):
    """What values need of the `Writer` that made them."""

    def value(self, x: str | float, type: str) -> V: ...
    def name_of(self, x: Any, type: str) -> str: ...
    def pre(self, text: str, type: str) -> V: ...
    def call(self, type: str, function: str, *args: V, effect: str = "") -> V: ...


class V(str):
    """An LLVM value: the name of an SSA value or a constant, with its type.

    An operator writes one instruction and gives its result, in the type of the left operand; adding 0 and multiplying
    by 1 write none, and integer constants are computed here. Integers are unsigned for `>> // %`. As a `str` it is the
    name: `==` compares names, and text takes it as it is.
    """

    __slots__ = ("name", "put", "type")
    name: str  # the name as a plain str, which formats faster
    type: str
    put: Callable[[str, str], V]  # the method that writes an instruction with a result: `Writer.v` or `Writer.pre`

    @property
    def once(self) -> V:
        """The same value; its next operator writes into the prelude, where equal instructions are written once."""
        made = _Once(self.name)
        made.name, made.type, made.put = self.name, self.type, self.writer.pre
        return made

    @property
    def writer(self) -> Instructions:
        return self.put.__self__  # pyright: ignore[reportFunctionMemberAccess]

    @property
    def constant(self) -> int | None:
        """The number of an integer constant; None for a value that the kernel computes."""
        return None if self[0] == "%" else int(self)

    def _plain(self) -> V:
        return self

    # --- arithmetic -------------------------------------------------------------------------------

    def written(self, opcode: str, other: Any) -> V:
        """An operation in the type of this value, always written."""
        t = self.type
        right = other.name if other.__class__ is V else _name_of(self, other, t)
        return self.put(f"{opcode} {t} {self.name}, {right}", t)

    def _folded(self, function: Callable[[int, int], int], other: Any) -> V | None:
        """The result if both are integer constants, else None."""
        if self[0] == "%" or self.type not in _WIDTH or (isinstance(other, str) and other[0] == "%"):
            return None
        half = 1 << _WIDTH[self.type] - 1
        wrapped = (function(int(self), int(other)) + half) % (2 * half) - half
        return self.writer.value(wrapped, self.type)

    def _unsigned(self, opcode: str, function: Callable[[int, int], int], other: str | int) -> V:
        """An unsigned operation. LLVM treats negative constants as large ones."""
        known = None if self[0] == "-" or str(other)[0] in "-0" else self._folded(function, other)
        return known or self.written(opcode, other)

    def __add__(self, other: str | float) -> V:
        if self.type in FLOATS:
            return self.written("fadd", other)
        if other in _ZERO:
            return self._plain()
        if self[0] == "%":
            return self.written("add", other)
        if self == "0" and isinstance(other, V):
            return other._plain()
        return self._folded(int.__add__, other) or self.written("add", other)

    def __sub__(self, other: str | float) -> V:
        if self.type in FLOATS:
            return self.written("fsub", other)
        if other in _ZERO:
            return self._plain()
        return self._folded(int.__sub__, other) or self.written("sub", other)

    def __rsub__(self, other: float) -> V:
        return self.writer.value(other, self.type).written("fsub" if self.type in FLOATS else "sub", self)

    def __mul__(self, other: str | SupportsIndex | float) -> V:
        if self.type in FLOATS:
            return self.written("fmul", other)
        if other in _ONE:
            return self._plain()
        return self._folded(int.__mul__, other) or self.written("mul", other)

    def __rmul__(self, other: float) -> V:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.writer.value(other, self.type).written("fmul" if self.type in FLOATS else "mul", self)

    def __truediv__(self, other: str | float) -> V:
        return self.written("fdiv", other)

    def __rtruediv__(self, other: float) -> V:
        return self.writer.value(other, self.type) / self

    def __floordiv__(self, other: str | int) -> V:
        if other in _ONE:
            return self._plain()
        return self._unsigned("udiv", int.__floordiv__, other)

    def __mod__(self, other: Any) -> V:
        return self._unsigned("urem", int.__mod__, other)

    def __neg__(self) -> V:
        t = self.type
        return self.put(f"fneg {t} {self.name}" if t in FLOATS else f"sub {t} 0, {self.name}", t)

    def __invert__(self) -> V:
        """Not, of an i1."""
        return self.put(f"xor i1 {self.name}, true", "i1")

    def __and__(self, other: str | int) -> V:
        return self.written("and", other)

    def __or__(self, other: str | int) -> V:
        return self.written("or", other)

    def __xor__(self, other: str | int) -> V:
        if other in _ZERO:
            return self._plain()
        return self._folded(int.__xor__, other) or self.written("xor", other)

    def __lshift__(self, other: str | int) -> V:
        return self.written("shl", other)

    def __rshift__(self, other: str | int) -> V:
        return self.written("lshr", other)

    def ashr(self, other: str | int) -> V:
        """`>>` with sign extension."""
        return self.written("ashr", other)

    def plus(self, other: str | int) -> V:
        """`+` that writes its instruction also for constants."""
        return self.written("add", other)

    def times(self, other: str | int) -> V:
        """`*` that writes its instruction also for constants."""
        return self.written("mul", other)

    def clamp(self, low: int, high: int) -> V:
        """A signed integer held within [low, high]."""
        t, call = self.type, self.writer.call
        above = call(t, f"llvm.smax.{t}", self, self.writer.value(low, t))
        return call(t, f"llvm.smin.{t}", above, self.writer.value(high, t))

    # --- comparison -------------------------------------------------------------------------------

    def _compare(self, of_floats: str, of_ints: str, other: Any) -> V:
        t = self.type
        opcode = f"fcmp {of_floats}" if t in FLOATS else f"icmp {of_ints}"
        right = other.name if other.__class__ is V else _name_of(self, other, t)
        return self.put(f"{opcode} {t} {self.name}, {right}", "i1")

    def lt(self, other: str | float) -> V:
        """False if either is a NaN, as for `gt`, `ge`, `le` and `equal`; ints compare signed."""
        return self._compare("olt", "slt", other)

    def le(self, other: str | float) -> V:
        return self._compare("ole", "sle", other)

    def gt(self, other: str | float) -> V:
        return self._compare("ogt", "sgt", other)

    def ge(self, other: str | float) -> V:
        return self._compare("oge", "sge", other)

    def equal(self, other: str | float) -> V:
        return self._compare("oeq", "eq", other)

    def differs(self, other: str | float) -> V:
        """True if either is a NaN."""
        return self._compare("une", "ne", other)

    def unlike(self, other: str | float) -> V:
        """For floats: false if either is a NaN."""
        return self._compare("one", "ne", other)

    def below(self, other: str | int) -> V:
        """Unsigned `<`."""
        return self._compare("olt", "ult", other)

    def at_most(self, other: str | int) -> V:
        """Unsigned `<=`."""
        return self._compare("ole", "ule", other)

    def above(self, other: str | int) -> V:
        """Unsigned `>`."""
        return self._compare("ogt", "ugt", other)

    def at_least(self, other: str | int) -> V:
        """Unsigned `>=`."""
        return self._compare("oge", "uge", other)

    def is_nan(self) -> V:
        return self._compare("uno", "eq", self)

    def where(self, then: str | float, otherwise: str | float, type: str | None = None) -> V:
        """`then` if this i1 is true, else `otherwise`, in `type` or in the type of the one that is a `V`."""
        if type is None:
            model = then if isinstance(then, V) else otherwise
            if not isinstance(model, V):
                raise TypeError("where() of two Python numbers has no type; name it")
            type = model.type
        a, b = _name_of(self, then, type), _name_of(self, otherwise, type)
        return self.put(f"select i1 {self.name}, {type} {a}, {type} {b}", type)

    # --- conversion -------------------------------------------------------------------------------

    def to(self, opcode: str, type: str) -> V:
        """`zext`, `sext`, `trunc`, `bitcast`, `fpext`, ...; nothing if it has the type already."""
        if type == self.type:
            return self._plain()
        return self.put(f"{opcode} {self.type} {self.name} to {type}", type)

    def zext(self, type: str) -> V:
        return self.to("zext", type)

    def sext(self, type: str) -> V:
        return self.to("sext", type)

    def trunc(self, type: str) -> V:
        return self.to("trunc", type)

    def bitcast(self, type: str) -> V:
        if type == self.type:
            return self._plain()
        return self.put(f"bitcast {self.type} {self.name} to {type}", type)

    def resized(self, type: str, signed: bool) -> V:
        """An integer as another type, truncated or sign-extended."""
        if self.type == type:
            return self
        if int(self.type[1:]) > int(type[1:]):
            return self.trunc(type)
        return self.sext(type) if signed else self.zext(type)

    def part(self, index: int) -> V:
        """An element of a vector."""
        t = self.type
        return self.put(f"extractelement {t} {self.name}, i32 {index}", t[t.index("x") + 2 : -1])


def _name_of(of: V, x: Any, type: str) -> str:
    """As `Writer.name_of`, without a writer for values that need none."""
    if x.__class__ is V:
        return x.name
    return str(x) if x.__class__ is int and type not in FLOATS else of.writer.name_of(x, type)


class _Once(V):
    """A value whose operators write into the prelude. Their results are ordinary values."""

    __slots__ = ()

    def _plain(self) -> V:
        return self.writer.value(self.name, self.type)


Regs = list[V]

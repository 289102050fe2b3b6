"""A writer of LLVM IR text for straight-line scalar functions, with operators on the values it
hands out.

Each operator writes one instruction, so what is written in Python is what the GPU executes: there
is no fast-math flag, and a fused multiply-add is always an explicit `llvm.fma` (`fma.rn` in PTX).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

FLOATS = ("float", "double")
_INTRINSIC_SUFFIX = {"float": "f32", "double": "f64", "i32": "i32", "i64": "i64"}

Number = int | float
T = TypeVar("T")


def float_literal(value: float, type_: str) -> str:
    """`value` as LLVM spells it: the 64 bits of a double in hexadecimal, for both types.

    Raises ValueError if a float32 constant does not fit exactly: a silently rounded coefficient is
    a wrong one.
    """
    if type_ == "float" and value == value and struct.unpack("f", struct.pack("f", value))[0] != value:
        raise ValueError(f"{value!r} is not a float32")
    return f"0x{struct.unpack('Q', struct.pack('d', value))[0]:016X}"


@dataclass(frozen=True, eq=False)
class Value:
    """An SSA value or a constant of LLVM type `type`: "float", "double", "i32", "i64" or "i1"."""

    writer: Writer
    name: str
    type: str

    def _operation(self, opcode: str, other: Value | Number) -> Value:
        right = self.writer.value(other, self.type)
        return self.writer.emit(f"{opcode} {self.type} {self.name}, {right.name}", self.type)

    def _arithmetic(self, opcode: str, other: Value | Number) -> Value:
        return self._operation(f"f{opcode}" if self.type in FLOATS else opcode, other)

    def __add__(self, other: Value | Number) -> Value:
        return self._arithmetic("add", other)

    def __sub__(self, other: Value | Number) -> Value:
        return self._arithmetic("sub", other)

    def __rsub__(self, other: Number) -> Value:
        return self.writer.value(other, self.type) - self

    def __mul__(self, other: Value | Number) -> Value:
        return self._arithmetic("mul", other)

    def __rmul__(self, other: Number) -> Value:
        return self.writer.value(other, self.type) * self

    def __truediv__(self, other: Value | Number) -> Value:
        return self._operation("fdiv", other)

    def __rtruediv__(self, other: Number) -> Value:
        return self.writer.value(other, self.type) / self

    def __neg__(self) -> Value:
        if self.type in FLOATS:
            return self.writer.emit(f"fneg {self.type} {self.name}", self.type)
        return 0 - self

    def __and__(self, other: Value | int) -> Value:
        return self._operation("and", other)

    def __or__(self, other: Value | int) -> Value:
        return self._operation("or", other)

    def __xor__(self, other: Value | int) -> Value:
        return self._operation("xor", other)

    def __lshift__(self, other: Value | int) -> Value:
        return self._operation("shl", other)

    def __rshift__(self, other: Value | int) -> Value:
        """Arithmetic: the sign is kept."""
        return self._operation("ashr", other)

    def lshr(self, other: Value | int) -> Value:
        return self._operation("lshr", other)

    def _compare(self, float_predicate: str, int_predicate: str, other: Value | Number) -> Value:
        right = self.writer.value(other, self.type)
        opcode = f"fcmp {float_predicate}" if self.type in FLOATS else f"icmp {int_predicate}"
        return self.writer.emit(f"{opcode} {self.type} {self.name}, {right.name}", "i1")

    def lt(self, other: Value | Number) -> Value:
        """False where either is a NaN, as `gt`, `ge`, `le` and `equal`; ints compare signed."""
        return self._compare("olt", "slt", other)

    def le(self, other: Value | Number) -> Value:
        return self._compare("ole", "sle", other)

    def gt(self, other: Value | Number) -> Value:
        return self._compare("ogt", "sgt", other)

    def ge(self, other: Value | Number) -> Value:
        return self._compare("oge", "sge", other)

    def equal(self, other: Value | Number) -> Value:
        return self._compare("oeq", "eq", other)

    def differs(self, other: Value | Number) -> Value:
        """True where either is a NaN."""
        return self._compare("une", "ne", other)

    def below(self, other: Value | int) -> Value:
        """Unsigned `<`."""
        return self._compare("olt", "ult", other)

    def at_least(self, other: Value | int) -> Value:
        """Unsigned `>=`."""
        return self._compare("oge", "uge", other)

    def is_nan(self) -> Value:
        return self._compare("uno", "eq", self)

    def where(self, then: Value | Number, otherwise: Value | Number) -> Value:
        """`then` where this i1 is true. One of the two must be a Value."""
        model = then if isinstance(then, Value) else otherwise
        if not isinstance(model, Value):
            raise TypeError("where() of two Python numbers has no type; wrap one with Writer.value")
        a, b = self.writer.value(then, model.type), self.writer.value(otherwise, model.type)
        return self.writer.emit(f"select i1 {self.name}, {model.type} {a.name}, {model.type} {b.name}", model.type)


class Writer:
    """Collects the body of one function over `dtype` ("float" or "double") and the helpers it
    calls.
    """

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.is32: bool = dtype == "float"
        self.int = "i32" if self.is32 else "i64"
        self.suffix = "f32" if self.is32 else "f64"
        self.lines: list[str] = []
        self.needs: list[str] = []
        self._count = 0
        self._block = "entry"

    def value(self, x: Value | Number, type_: str | None = None) -> Value:
        """`x` as a value of `type_` (default: the function's own dtype)."""
        if isinstance(x, Value):
            return x
        type_ = type_ or self.dtype
        if type_ in FLOATS:
            return Value(self, float_literal(float(x), type_), type_)
        return Value(self, str(int(x)), type_)

    def pick(self, pair: tuple[T, T]) -> T:
        """The one of (float32's, float64's) that is for this function's dtype."""
        return pair[0] if self.is32 else pair[1]

    def emit(self, instruction: str, type_: str) -> Value:
        self._count += 1
        name = f"%v{self._count}"
        self.lines.append(f"  {name} = {instruction}")
        return Value(self, name, type_)

    def intrinsic(self, name: str, *args: Value | Number, type_: str | None = None) -> Value:
        """`llvm.<name>` on operands of one type, which is the result's too."""
        type_ = type_ or next((a.type for a in args if isinstance(a, Value)), self.dtype)
        operands = ", ".join(f"{type_} {self.value(a, type_).name}" for a in args)
        return self.emit(f"call {type_} @llvm.{name}.{_INTRINSIC_SUFFIX[type_]}({operands})", type_)

    def fma(self, a: Value | Number, b: Value | Number, c: Value | Number) -> Value:
        return self.intrinsic("fma", a, b, c)

    def sqrt(self, x: Value) -> Value:
        return self.intrinsic("sqrt", x)

    def abs(self, x: Value) -> Value:
        return self.intrinsic("fabs", x)

    def copysign(self, magnitude: Value | Number, sign: Value) -> Value:
        return self.intrinsic("copysign", magnitude, sign, type_=sign.type)

    def clamp(self, x: Value, low: float, high: float) -> Value:
        """`x` held within [low, high]; a NaN stays one (`max.NaN`, `min.NaN`)."""
        return self.intrinsic("minimum", self.intrinsic("maximum", x, low), high)

    def bits(self, x: Value) -> Value:
        """The bit pattern of a float, as an int of its size."""
        type_ = "i32" if x.type == "float" else "i64"
        return self.emit(f"bitcast {x.type} {x.name} to {type_}", type_)

    def from_bits(self, x: Value) -> Value:
        """The float with this bit pattern."""
        type_ = "float" if x.type == "i32" else "double"
        return self.emit(f"bitcast {x.type} {x.name} to {type_}", type_)

    def convert(self, opcode: str, x: Value, type_: str) -> Value:
        """`zext`, `sext`, `trunc`, `sitofp`, `fptosi`, `fpext`, ..."""
        return self.emit(f"{opcode} {x.type} {x.name} to {type_}", type_)

    def polynomial(self, x: Value, coefficients: Sequence[float]) -> Value:
        """Horner's rule with fused steps; `coefficients` are from the constant term up."""
        result = self.value(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = self.fma(result, x, coefficient)
        return result

    def call(self, key: str, *args: Value | Number, type_: str | None = None) -> Value:
        """A call of another registered function, by key without the dtype suffix, such as "exp"."""
        self.needs.append(f"{key}.{self.suffix}")
        type_ = type_ or self.dtype
        values = [self.value(a) for a in args]
        operands = ", ".join(f"{v.type} {v.name}" for v in values)
        return self.emit(f"call {type_} @kd_{key}_{self.suffix}({operands})", type_)

    def rarely(self, condition: Value, otherwise: Value, then: Callable[[], Value]) -> Value:
        """`then()` where `condition`, which is a branch, else `otherwise`: for slow paths."""
        number = self._count = self._count + 1
        before = self._block
        self.lines.append(f"  br i1 {condition.name}, label %slow{number}, label %done{number}")
        self._start_block(f"slow{number}")
        result = then()
        after = self._block
        self.lines.append(f"  br label %done{number}")
        self._start_block(f"done{number}")
        return self.emit(
            f"phi {otherwise.type} [ {otherwise.name}, %{before} ], [ {result.name}, %{after} ]",
            otherwise.type,
        )

    def repeat(self, initial: list[Value], step: Callable[[list[Value]], tuple[Value, list[Value]]]) -> list[Value]:
        """A loop: `step` maps the carried values to (whether to go on, the next values), at least
        once.
        """
        self._count += 1
        label = f"loop{self._count}"
        before = self._block
        self.lines.append(f"  br label %{label}")
        self._start_block(label)
        where = len(self.lines)
        carried = [Value(self, f"%{label}_{i}", v.type) for i, v in enumerate(initial)]
        again, after = step(carried)
        self.lines[where:where] = [
            f"  {c.name} = phi {c.type} [ {i.name}, %{before} ], [ {a.name}, %{self._block} ]"
            for c, i, a in zip(carried, initial, after, strict=True)
        ]
        self.lines.append(f"  br i1 {again.name}, label %{label}, label %{label}_done")
        self._start_block(f"{label}_done")
        return after

    def _start_block(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self._block = name

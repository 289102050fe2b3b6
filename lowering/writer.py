"""The writer of LLVM text: values with operators, instructions, blocks, inline PTX, and the prelude that dominates all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, SupportsIndex

from kernel_dsl.dtypes import DType
from kernel_dsl.source import Loc

from .debug_lines import DebugLines
from .llvm_types import float_bits, literal, llvm_type

_ZERO, _ONE = (0, "0"), (1, "1")
_WIDTH = {"i8": 8, "i16": 16, "i32": 32, "i64": 64}
FLOATS = ("half", "bfloat", "float", "double")
# Constraint letters of inline PTX by type (LLVM: NVPTX inline assembly constraints)
LETTERS = {"i1": "b", "i16": "h", "half": "h", "bfloat": "h", "i32": "r", "float": "f", "i64": "l", "double": "d"}


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
    def writer(self) -> Writer:
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


class Writer:
    """Appends instructions to the current block. `prelude` goes into the entry block, before everything else."""

    def __init__(self, debug: DebugLines, block: str = "start") -> None:
        self.debug = debug
        self.prelude: list[str] = []
        self.setup: list[str] = []  # after the prelude, before the body
        self.lines: list[str] = []
        self.block: str = block
        self._names = 0
        self._dbg = ""
        self._cache: dict[str, V] = {}
        self.put: Callable[[str, str], V] = self.v

    def at(self, loc: Loc) -> None:
        """Instructions from here on belong to this line."""
        self._dbg = f", !dbg !{self.debug.line(loc)}" if loc.line else ""

    # --- values -----------------------------------------------------------------------------------

    def value(self, x: str | float, type: str) -> V:
        """A number or a name as a value of an LLVM type."""
        return x if isinstance(x, V) else self._value(self.name_of(x, type), type)

    def _value(self, name: str, type: str) -> V:
        made = V(name)
        made.name, made.type, made.put = name, type, self.put
        return made

    def name_of(self, x: Any, type: str) -> str:
        """The text of a value, or of a Python number of an LLVM type."""
        if isinstance(x, V):
            return x.name
        if isinstance(x, str):
            return x
        return self.float_literal(float(x), type) if type in FLOATS else str(int(x))

    def float_literal(self, value: float, type: str) -> str:
        """A float in LLVM's spelling."""
        return float_bits(value)

    def literal(self, value: Any, dtype: DType) -> V:
        """A constant of a dtype."""
        return self._value(literal(value, dtype), llvm_type(dtype))

    def i32(self, number: int) -> V:
        return self._value(str(number), "i32")

    def i64(self, number: int) -> V:
        return self._value(str(number), "i64")

    def vector(self, names: Sequence[V]) -> V:
        """Elements of one type as a vector."""
        t, whole = names[0].type, f"<{len(names)} x {names[0].type}>"
        made = self.v(f"insertelement {whole} undef, {t} {names[0].name}, i32 0", whole)
        for i, name in enumerate(names[1:], 1):
            made = self.v(f"insertelement {whole} {made.name}, {t} {name.name}, i32 {i}", whole)
        return made

    # --- instructions -----------------------------------------------------------------------------

    def name(self) -> str:
        self._names += 1
        return f"%v{self._names}"

    def label(self) -> str:
        self._names += 1
        return f"b{self._names}"

    def v(self, text: str, type: str) -> V:
        """Append an instruction with a result of a type."""
        self._names += 1
        name = f"%v{self._names}"
        self.lines.append(f"  {name} = {text}{self._dbg}")
        made = V(name)
        made.name, made.type, made.put = name, type, self.put
        return made

    def do(self, text: str) -> None:
        """Append an instruction without a result."""
        self.lines.append(f"  {text}{self._dbg}")

    def pre(self, text: str, type: str) -> V:
        """A value computed once in the entry block; the same text gives the same value."""
        found = self._cache.get(text)
        if found is None:
            found = self._cache[text] = self._value(self.name(), type)
            self.prelude.append(f"  {found} = {text}")
        return found

    def pre_do(self, text: str) -> None:
        self.prelude.append(f"  {text}")

    def variable(self, type: str, start: str = "") -> str:
        """An alloca in the entry block for a value of a type, with the initial value `start`."""
        place = self.name()
        self.pre_do(f"{place} = alloca {type}")
        if start:
            self.pre_do(f"store {type} {start}, ptr {place}")
        return place

    def load(self, type: str, place: str) -> V:
        return self.v(f"load {type}, ptr {place}", type)

    def store(self, value: V, place: str) -> None:
        self.do(f"store {value.type} {value.name}, ptr {place}")

    def call(self, type: str, function: str, *args: V, effect: str = "") -> V:
        """A call of `@function` with a result of a type. `effect`: attributes of the call."""
        passed = ", ".join([f"{a.type} {a.name}" for a in args])
        return self.v(f"call {type} @{function}({passed}){effect}", type)

    def both(self, a: V | None, b: V | None) -> V | None:
        """The conjunction of two predicates, None being true."""
        if a is None or b is None:
            return b if a is None else a
        return a if a == b else self.v(f"and i1 {a.name}, {b.name}", "i1")

    def all(self, a: V | None, b: V | None = None) -> V:
        """The conjunction of two predicates as an operand, None being true."""
        return self.both(a, b) or self._value("true", "i1")

    # --- blocks -----------------------------------------------------------------------------------

    def begin(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    def jump(self, label: str) -> None:
        self.do(f"br label %{label}")

    def branch(self, predicate: str, yes: str, no: str) -> None:
        self.do(f"br i1 {predicate}, label %{yes}, label %{no}")

    def phi(self, type: str, incoming: Sequence[tuple[V, str]]) -> V:
        pairs = ", ".join([f"[ {value.name}, %{block} ]" for value, block in incoming])
        return self.v(f"phi {type} {pairs}", type)

    def only_where(self, predicate: V, body: Callable[[], Any]) -> None:
        """Run `body` behind a branch if the predicate holds."""
        yes, end = self.label(), self.label()
        self.branch(predicate, yes, end)
        self.begin(yes)
        body()
        self.jump(end)
        self.begin(end)

    # --- inline PTX -------------------------------------------------------------------------------

    def ptx(
        self,
        text: str,
        *args: V,
        results: Sequence[str] = (),
        when: V | None = None,
        first: str = "",
        early: bool = False,
        memory: bool = True,
        pure: bool = False,
    ) -> Regs:
        """Inline PTX on operands $0 ...: results, then arguments. Returns the results, of the types that are named.

        `when`: a predicate, after the arguments, under which it runs; `first`: PTX that always runs before it. `early`:
        a result may be written before all arguments are read, for example by `first`. `memory`: it orders the memory
        accesses around it. `pure`: it has no effect beside its results.
        """
        if when is not None:
            text = f"{first} @${len(results) + len(args)} {text}".lstrip()
            args = (*args, when)
        output = "=&" if first or early else "="
        constraints = _constraints(tuple(results), tuple([a.type for a in args]), output, memory and not pure)
        return self.inline(text, constraints, args, results, pure=pure)

    def inline(
        self, text: str, constraints: str, args: Sequence[V] = (), results: Sequence[str] = (), *, pure: bool = False
    ) -> Regs:
        """Inline PTX with explicit constraints."""
        passed = ", ".join([f"{a.type} {a.name}" for a in args])
        if "\n" in text or "\t" in text:
            text = text.replace("\n", "\\0A").replace("\t", " ")
        ret = results[0] if len(results) == 1 else "{" + ", ".join(results) + "}" if results else "void"
        effect, attributes = ("", " #1") if pure else (" sideeffect", " #0")
        call = f'call {ret} asm{effect} "{text}", "{constraints}"({passed}){attributes}'
        if not results:
            self.do(call)
            return []
        whole = self.v(call, ret)
        if len(results) == 1:
            return [whole]
        return [self.v(f"extractvalue {ret} {whole.name}, {i}", t) for i, t in enumerate(results)]


@cache
def _constraints(results: tuple[str, ...], args: tuple[str, ...], output: str, memory: bool) -> str:
    """The constraints of inline PTX on operands of these types."""
    letters = [output + LETTERS[t] for t in results] + [LETTERS[t] for t in args]
    return ",".join([*letters, "~{memory}"] if memory else letters)


class Loop:
    """A loop whose header has a phi for each carried value. `close` gives the values of the back edge."""

    def __init__(self, writer: Writer, starts: Sequence[V], header: str = "") -> None:
        self.writer = writer
        before = writer.block
        self.header: str = header or writer.label()
        writer.jump(self.header)
        writer.begin(self.header)
        self._first = len(writer.lines)
        self.carried: list[V] = [writer.phi(v.type, [(v, before)]) for v in starts]

    def brings(self, following: Sequence[V]) -> None:
        """Set the values that the current block brings back to the header."""
        w = self.writer
        for place, name in enumerate(following, self._first):
            text, comma, debug = w.lines[place].partition(", !dbg")
            w.lines[place] = f"{text}, [ {name}, %{w.block} ]{comma}{debug}"

    def close(self, following: Sequence[V], rolled: bool = False) -> None:
        """Jump back with the values of the next iteration. `rolled`: the assembler does not unroll the loop."""
        self.brings(following)
        note = f", !llvm.loop !{self.writer.debug.rolled_loop()}" if rolled else ""
        self.writer.do(f"br label %{self.header}{note}")


def address(operand: int, constant: int) -> str:
    """A PTX address: operand number `operand`, plus a constant."""
    return f"[${operand}+{constant}]" if constant else f"[${operand}]"

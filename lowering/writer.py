"""The writer of LLVM text: instructions, blocks, inline PTX, and the prelude that dominates all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from kernel_dsl.dtypes import DType
from kernel_dsl.source import Loc

from .debug_lines import DebugLines
from .llvm_types import float_bits, literal, llvm_type
from .value import FLOATS, Regs, V

# Constraint letters of inline PTX by type (LLVM: NVPTX inline assembly constraints)
LETTERS = {"i1": "b", "i16": "h", "half": "h", "bfloat": "h", "i32": "r", "float": "f", "i64": "l", "double": "d"}


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

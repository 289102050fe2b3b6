"""The parsed form of a PTX module, which `parse.py` makes and all other modules read."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from kernel_dsl.diagnostics import Error
from kernel_dsl.lazy import lazy
from kernel_dsl.source import UNKNOWN

_LONG_WORD = re.compile(r"\S{200,}")  # a name or literal that would fill the screen


class PtxError(Error, ValueError):
    """PTX that an assembler would refuse. `line` and `column` count from 1."""

    code = "ptx"
    title = "PTX {where}{message}"

    def __init__(self, message: str, line: int = 0, column: int = 0) -> None:
        where = f"line {line}, column {column}: " if line else ""
        message = _LONG_WORD.sub(lambda found: f"{found[0][:60]}...", message)
        super().__init__(loc=UNKNOWN, message=message, where=where)
        self.line = line
        self.column = column

    def __reduce__(self) -> tuple[Any, ...]:
        return PtxError, (self.fields["message"], self.line, self.column)


@dataclass(frozen=True, slots=True)
class Reg:
    """A virtual register: its number in the function, and its declared type without the dot."""

    index: int
    type: str
    name: str


@dataclass(frozen=True, slots=True)
class Imm:
    """A literal. `kind`: "int", or "f32" or "f64", where `value` is the bit pattern."""

    value: int
    kind: str = "int"


@dataclass(frozen=True, slots=True)
class Special:
    """A special register such as `%tid.x`."""

    name: str


@dataclass(frozen=True, slots=True)
class Sym:
    """The address of a variable, parameter, label or function, plus a byte offset."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Mem:
    """`[base + offset]`, or `[base, {coords}]` for a tensor map."""

    base: Operand
    offset: int = 0
    coords: tuple[Operand, ...] | None = None


@dataclass(frozen=True, slots=True)
class Vec:
    """`{a, b, ...}`; an element that is None is the sink `_`."""

    items: tuple[Operand | None, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """`a|b`, the two results of setp, shfl, elect and match; None is the sink `_`."""

    first: Operand | None
    second: Operand | None


@dataclass(frozen=True, slots=True)
class Negated:
    """`!p`."""

    reg: Reg


@dataclass(frozen=True, slots=True)
class Sink:
    """`_`: the result is dropped."""


@dataclass(frozen=True, slots=True)
class BraceGroup:
    """`(a, b)`: the argument list of a call."""

    items: tuple[Operand, ...]


Operand = Reg | Imm | Special | Sym | Mem | Vec | Pair | Negated | Sink | BraceGroup


@dataclass(slots=True)
class Instruction:
    """One instruction. `opcode` is the mnemonic split at its dots; `guard` is (register, negated).

    `registers` keeps what `isa/liveness.py` found: those that it reads, and those that it writes.
    """

    opcode: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: tuple[Reg, bool] | None
    line: int
    column: int
    registers: tuple[int, int] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        return ".".join(self.opcode)


@dataclass(frozen=True, slots=True)
class Label:
    """A place to branch to."""

    name: str


@dataclass(slots=True)
class Var:
    """A variable. `relocations`: (offset, symbol, addend), addresses to be put into its initial bytes."""

    name: str
    space: str
    size: int
    align: int
    elem: str
    init: bytes | None = None
    relocations: tuple[tuple[int, str, int], ...] = ()
    extern: bool = False
    line: int = 0
    column: int = 0


Signature = tuple[list[Var], list[Var]]  # results and parameters


@dataclass(slots=True)
class Function:
    """An entry or a device function."""

    name: str
    entry: bool
    params: list[Var]
    rets: list[Var]
    body: list[Instruction | Label]
    registers: list[Reg]
    variables: dict[str, Var]
    directives: dict[str, tuple[int, ...]]
    branch_targets: dict[str, tuple[str, ...]]
    prototypes: dict[str, list[Signature]]  # by label: of each function that a call may reach, or the prototype alone
    line: int
    defined: bool = True
    locations: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    column: int = 0


@dataclass
class Module:
    """A parsed PTX text."""

    version: tuple[int, int]
    target: str
    functions: dict[str, Function]
    variables: dict[str, Var]
    files: dict[int, str]
    target_at: tuple[int, int] = (0, 0)  # line and column of the .target directive
    # The programs that `run` compiled, by entry; they live as long as the module.
    programs: dict[str, Any] = field(default_factory=dict[str, Any], repr=False, compare=False)

    @lazy
    def called(self) -> tuple[Function, ...]:
        """The functions that are no entries: what an entry may call."""
        return tuple(f for f in self.functions.values() if not f.entry)

    @lazy
    def function_ids(self) -> dict[str, int]:
        """The numbers that stand for addresses of functions."""
        return {name: i + 1 for i, name in enumerate(self.functions)}

    @property
    def entries(self) -> tuple[str, ...]:
        return tuple(f.name for f in self.functions.values() if f.entry)


# The types of registers and of variables; instructions have more (PTX ISA 5.2.1 and 5.2.3).
REGISTER_TYPES = frozenset((
    "pred", "b8", "u8", "s8", "b16", "u16", "s16", "f16", "f16x2", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64", "b128",
))  # fmt: skip
OPAQUE_TYPES = frozenset(("texref", "samplerref", "surfref"))
TYPE_BYTES = {
    "pred": 1, "b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2,
    "f16x2": 4, "bf16x2": 4, "b32": 4, "u32": 4, "s32": 4, "f32": 4, "tf32": 4,
    "b64": 8, "u64": 8, "s64": 8, "f64": 8, "b128": 16, "f32x2": 8, "e4m3": 1, "e5m2": 1,
    "e4m3x2": 2, "e5m2x2": 2, "e2m3x2": 2, "e3m2x2": 2, "e2m1x2": 1,
    "u16x2": 4, "s16x2": 4, "u8x4": 4, "s8x4": 4, "ue8m0x2": 2,
    "texref": 8, "samplerref": 8, "surfref": 8,
}  # fmt: skip

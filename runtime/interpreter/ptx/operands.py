"""The operands of instructions, with their names resolved scope by scope (PTX ISA, section 6)."""

from __future__ import annotations

import re

from .cursor import Cursor
from .lexer import Token
from .module import BraceGroup, Function, Instruction, Mem, Negated, Operand, Pair, Reg, Sink, Special, Sym, Vec
from .scope import NUMBERED, Scope, in_range

_VECTORS = "tid|ntid|ctaid|nctaid|clusterid|nclusterid|cluster_ctaid|cluster_nctaid"
SPECIAL = re.compile(
    rf"%({_VECTORS})(\.[xyzwrgba])?$"
    r"|%(laneid|warpid|nwarpid|smid|nsmid|gridid|cluster_ctarank|cluster_nctarank|clock|clock_hi"
    r"|clock64|globaltimer|globaltimer_lo|globaltimer_hi|lanemask_(eq|lt|le|gt|ge)|pm[0-7](_64)?"
    r"|envreg([0-9]|[12][0-9]|3[01])"
    r"|dynamic_smem_size|total_smem_size|is_explicit_cluster|aggr_smem_size|current_graph_exec"
    r"|reserved_smem_offset_(begin|end|cap|[01]))$"
)
_ELEMENTS = {name: at for names in ("xyzw", "rgba") for at, name in enumerate(names)}


class OperandParser:
    """Reads operands. Registers get numbers when an instruction first names them."""

    def __init__(self, cursor: Cursor, fn: Function) -> None:
        self.c = cursor
        self.fn = fn
        self.scope: Scope = Scope(None, "")
        self.calls = False  # whether parentheses hold the arguments of a call; in other instructions, an expression

    def new_register(self, name: str, type_: str, lanes: int = 1) -> Reg | Vec:
        """Return a new register, or those of a vector of `lanes` elements."""
        found = [
            Reg(len(self.fn.registers) + at, type_, name if lanes == 1 else f"{name}.{'xyzw'[at]}")
            for at in range(lanes)
        ]
        self.fn.registers += found
        return found[0] if lanes == 1 else Vec(tuple(found))

    def find_register(self, name: str) -> Reg | Vec | None:
        """Return the register or vector of registers of a name. One of a range may be written with zeros before its number."""
        at: Scope | None = self.scope
        found = at.registers.get(name)
        if found is not None:
            return found
        numbered = NUMBERED.match(name)
        while at is not None:
            if name in at.registers:
                return at.registers[name]
            if numbered:
                prefix, digits = numbered.groups()
                limit = at.ranges.get(prefix)
                if limit and in_range(digits, limit[0]):
                    plain = f"{prefix}{int(digits)}"
                    if plain not in at.registers:
                        at.registers[plain] = self.new_register(plain, *limit[1:])
                    at.registers[name] = at.registers[plain]
                    return at.registers[name]
            at = at.parent
        return self._element(name)

    def _element(self, name: str) -> Reg | None:
        """Return the register of an element of a vector, such as `v.x`."""
        vector, dot, element = name.rpartition(".")
        found = self.find_register(vector) if dot and "." not in vector else None
        at = _ELEMENTS.get(element, 4)
        if not isinstance(found, Vec) or at >= len(found.items):
            return None
        register = found.items[at]
        assert isinstance(register, Reg)
        return register

    def predicate(self, token: Token) -> Reg:
        """Return the predicate register of a name. A special register that is one is moved to a register first."""
        found = self.find_register(token.text)
        if found is None and token.text == "%is_explicit_cluster":
            found = self.new_register(token.text, "pred")
            assert isinstance(found, Reg)
            self.fn.body.append(
                Instruction(("mov", "pred"), (found, Special(token.text)), None, token.line, token.column)
            )
        if not isinstance(found, Reg) or found.type != "pred":
            raise self.c.error(f"'{token.text}' is not a predicate register", token)
        return found

    def operand(self) -> Operand:
        c = self.c
        if c.tokens[c.at].kind == "word":  # most are registers
            return self._one_or_pair()
        if c.text == "!" and c.tokens[c.at + 1].kind == "word":
            c.next()
            token = c.word("a predicate")
            reg = self.find_register(token.text)
            if not isinstance(reg, Reg):
                raise c.error(f"'{token.text}' is no register", token)
            return Negated(reg)
        if c.accept("["):
            return self._memory()
        if self.calls and c.accept("("):
            items: list[Operand] = []
            while not c.accept(")"):
                if items:
                    c.expect(",")
                items.append(self.operand())
            return BraceGroup(tuple(items))
        if c.accept("{"):
            elements: list[Operand | None] = []
            while not c.accept("}"):
                if elements:
                    c.expect(",")
                item = self.operand()
                elements.append(None if isinstance(item, Sink) else item)
            return Vec(tuple(elements))
        return self._one_or_pair()

    def _one_or_pair(self) -> Operand:
        c = self.c
        first = self._simple()
        if c.accept("|"):
            second = self._simple()
            return Pair(
                None if isinstance(first, Sink) else first,
                None if isinstance(second, Sink) else second,
            )
        return first

    def _memory(self) -> Operand:
        c = self.c
        token = c.token
        base = self._simple()
        offset = 0
        if isinstance(base, Vec) or (isinstance(base, Reg) and "." in token.text):
            raise c.error(f"'{token.text}' is no address: a register that is no part of a vector is wanted", token)
        if isinstance(base, Sym):
            base, offset = Sym(base.name), base.offset
        elif c.accept("+"):
            offset = c.integer()
        coords: tuple[Operand, ...] | None = None
        if c.accept(","):
            if c.text != "{":
                raise c.error(f"coordinates stand in braces, found '{c.text}'")
            vec = self.operand()
            assert isinstance(vec, Vec)
            coords = tuple(v for v in vec.items if v is not None)
        c.expect("]")
        return Mem(base, offset, coords)

    def _simple(self) -> Operand:
        c = self.c
        token = c.token
        if token.kind == "word":
            c.next()
            return self._name(token)
        if token.kind in ("int", "bits", "dec") or token.text in ("-", "~", "(", "!", "+"):
            return c.constant()
        raise c.error(f"expected an operand, found '{token.text}'")

    def _name(self, token: Token) -> Operand:
        text = token.text
        if text == "_":
            return Sink()
        if SPECIAL.match(text):
            return _special(text)
        reg = self.find_register(text)
        if reg is not None:
            return reg
        if text == "WARP_SZ":
            self.c.at -= 1
            return self.c.constant()
        if text.startswith("%"):
            raise self.c.error(f"register '{text}' is not declared", token)
        name = self._find_variable(text)
        offset = 0
        if self.c.accept("+"):
            offset = self.c.integer()
        return Sym(name, offset)

    def _find_variable(self, name: str) -> str:
        at: Scope | None = self.scope
        while at is not None:
            if name in at.variables:
                return at.variables[name]
            at = at.parent
        return name


def _special(text: str) -> Operand:
    """Return a special register. One that is a vector has a fourth element, which is 0."""
    name, dot, element = text.partition(".")
    if dot:
        return Special(f"{name}.{'xyzw'[_ELEMENTS[element]]}")
    if re.fullmatch(f"%({_VECTORS})", name):
        return Vec(tuple(Special(f"{name}.{axis}") for axis in "xyzw"))
    return Special(name)

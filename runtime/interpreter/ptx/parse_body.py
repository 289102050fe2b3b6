"""The body of a PTX function: declarations, labels and instructions, with names resolved scope by scope."""

from __future__ import annotations

import re

from .cursor import Cursor
from .declarations import parse_directives, parse_parameters, parse_variable
from .initial_values import check_addresses
from .lexer import Token
from .module import (
    TYPE_BYTES,
    BraceGroup,
    Function,
    Imm,
    Instruction,
    Label,
    Mem,
    Module,
    Negated,
    Operand,
    Pair,
    PtxError,
    Reg,
    Sink,
    Special,
    Sym,
    Var,
    Vec,
)
from .scope import NUMBERED, Scope, in_range

SPECIAL = re.compile(
    r"%(tid|ntid|ctaid|nctaid|clusterid|nclusterid|cluster_ctaid|cluster_nctaid)\.[xyz]$"
    r"|%(laneid|warpid|nwarpid|smid|nsmid|gridid|cluster_ctarank|cluster_nctarank|clock|clock_hi"
    r"|clock64|globaltimer|globaltimer_lo|globaltimer_hi|lanemask_(eq|lt|le|gt|ge)|pm\d|envreg\d+"
    r"|dynamic_smem_size|total_smem_size|is_explicit_cluster|aggr_smem_size|current_graph_exec"
    r"|reserved_smem_offset_(begin|end|cap|[01]))$"
)


def _words(text: str) -> tuple[str, ...]:
    """Return the words of an opcode. Assemblers take `.sync` twice, and it means the same."""
    words = text.split(".")
    if words.count("sync") > 1:
        first = words.index("sync") + 1
        words = words[:first] + [w for w in words[first:] if w != "sync"]
    return tuple(words)


class BodyParser:
    """Reads one function body into `fn`. Registers get numbers, nested names get unique ones."""

    def __init__(self, cursor: Cursor, module: Module, fn: Function) -> None:
        self.c = cursor
        self.module = module
        self.fn = fn
        self.scope: Scope = Scope(None, "")
        self.scopes: int = 0
        self.calls = False  # whether parentheses hold the arguments of a call; in other instructions, an expression
        self.pending: list[tuple[Instruction, Scope, Token]] = []
        self.tables: list[tuple[tuple[str, ...], Scope, Token]] = []
        for var in (*fn.params, *fn.rets):
            self.scope.declare(var.name, "variable", var.line, var.column)
            if var.space == "reg":
                self.scope.registers[var.name] = self._new_register(var.name, var.elem)
            self.scope.variables[var.name] = var.name

    def run(self) -> None:
        c = self.c
        c.expect("{")
        depth = 1
        while depth:
            token = c.token
            if token.kind == "end":
                raise c.error(f"'{self.fn.name}' is not closed: expected '}}'")
            if c.accept("{"):
                depth += 1
                self.scopes += 1
                self.scope = Scope(self.scope, f"@{self.scopes}")
            elif c.accept("}"):
                depth -= 1
                if depth:
                    assert self.scope.parent is not None
                    self.scope = self.scope.parent
            elif token.kind == "word" and token.text.startswith("."):
                self._directive(token)
            else:
                self._statement(token)
        self._resolve_labels()

    # --- declarations --------------------------------------------------------------------------

    def _directive(self, token: Token) -> None:
        c = self.c
        match token.text:
            case ".reg":
                c.next()
                self._registers()
            case ".local" | ".shared" | ".param" | ".global" | ".const":
                for var in parse_variable(c, False):
                    self._declare(var)
            case ".loc":
                self._location()
            case ".pragma":
                while not c.accept(";"):
                    if c.token.kind == "end":
                        raise c.error("expected ';'")
                    c.next()
            case ".callprototype" | ".branchtargets" | ".calltargets":
                raise c.error(f"{token.text} needs a label")
            case _:
                raise c.error(f"unknown directive '{token.text}'")

    def _declare(self, var: Var) -> None:
        unique = var.name + self.scope.tag
        self.scope.declare(var.name, "variable", var.line, var.column)
        if var.relocations:
            check_addresses(var, self.module.variables | self.fn.variables, self.module.functions)
        self.scope.variables[var.name] = unique
        var.name = unique
        self.fn.variables[unique] = var

    def _registers(self) -> None:
        c = self.c
        kind = c.word("a register type")
        if kind.text in (".v2", ".v4"):
            raise c.error("vector registers are not supported", kind)
        if kind.text[1:] not in TYPE_BYTES:
            raise c.error(f"unknown register type '{kind.text}'", kind)
        while True:
            name = c.name("a register name")
            if c.accept("<"):
                count = c.number("a number of registers")
                self.scope.declare_range(name.text, count, kind.text[1:], name.line, name.column)
                c.expect(">")
            else:
                self.scope.declare(name.text, "register", name.line, name.column)
                self.scope.registers[name.text] = self._new_register(name.text, kind.text[1:])
            if not c.accept(","):
                break
        c.expect(";")

    def _new_register(self, name: str, type_: str) -> Reg:
        reg = Reg(len(self.fn.registers), type_, name)
        self.fn.registers.append(reg)
        return reg

    def _location(self) -> None:
        c = self.c
        line = c.next().line
        file, at, _ = c.integer(), c.integer(), c.integer()
        self.fn.locations[line] = (file, at)
        while c.accept(","):
            c.next()
            while c.token.line == line and c.text != ",":
                c.next()

    # --- labels and instructions ---------------------------------------------------------------

    def _statement(self, token: Token) -> None:
        c = self.c
        if token.kind == "word" and c.tokens[c.at + 1].text == ":":
            self._label(token)
            return
        guard = None
        if c.accept("@"):
            negated = c.accept("!")
            name = c.word("a predicate")
            reg = self._find_register(name.text)
            if reg is None or reg.type != "pred":
                raise c.error(f"'{name.text}' is not a predicate register", name)
            guard = (reg, negated)
            token = c.token
        if token.kind != "word" or not token.text[0].isalpha():
            raise c.error(f"expected an instruction, found '{token.text}'")
        c.next()
        self.calls = token.text.startswith("call")
        operands: list[Operand] = []
        if c.text != ";":
            operands.append(self._operand())
            while c.accept(","):
                operands.append(self._operand())
        c.expect(";")
        opcode = _words(token.text)
        ins = Instruction(opcode, tuple(operands), guard, token.line, token.column)
        self.fn.body.append(ins)
        if opcode[0] in ("bra", "brx", "call"):
            self.pending.append((ins, self.scope, token))

    def _label(self, token: Token) -> None:
        c = self.c
        c.name("a label")
        c.expect(":")
        self.scope.declare(token.text, "label", token.line, token.column)
        if c.text == ".branchtargets":
            c.next()
            names = [c.word("a label").text]
            while c.accept(","):
                names.append(c.word("a label").text)
            c.expect(";")
            self.fn.branch_targets[token.text] = tuple(names)
            self.tables.append((tuple(names), self.scope, token))
            return
        if c.peek().text == ".callprototype":
            c.next()
            rets = parse_parameters(c, True) if c.peek().text == "(" else []
            c.word("'_'")
            params = parse_parameters(c, True) if c.peek().text == "(" else []
            parse_directives(c, {})
            c.expect(";")
            self.fn.prototypes[token.text] = (rets, params)
            return
        if c.accept(".calltargets"):
            self._call_targets(token)
            return
        unique = token.text + self.scope.tag
        self.scope.labels[token.text] = unique
        self.fn.body.append(Label(unique))

    def _call_targets(self, label: Token) -> None:
        """Parse a list of functions that an indirect call may call, with the parameters of the first (11.5.2)."""
        c = self.c
        found: list[Function] = []
        while True:
            name = c.name("a function")
            fn = self.module.functions.get(name.text)
            if fn is None or fn.entry:
                raise c.error(f"'{name.text}' is not a function", name)
            found.append(fn)
            if not c.accept(","):
                break
        c.expect(";")
        self.fn.prototypes[label.text] = (found[0].rets, found[0].params)

    def _resolve_labels(self) -> None:
        for names, scope, token in self.tables:
            for name in names:
                self._find_label(Sym(name), scope, token)
        for ins, scope, token in self.pending:
            if ins.opcode[0] == "bra":
                if len(ins.operands) != 1:
                    raise PtxError("bra takes one label", token.line, token.column)
                ins.operands = (Sym(self._find_label(ins.operands[0], scope, token)),)
            elif ins.opcode[0] == "brx":
                table = ins.operands[1] if len(ins.operands) == 2 else None
                if not isinstance(table, Sym) or table.name not in self.fn.branch_targets:
                    raise PtxError("brx.idx needs a .branchtargets label", token.line, token.column)
                for name in self.fn.branch_targets[table.name]:
                    self._find_label(Sym(name), scope, token)

    def _find_label(self, operand: Operand, scope: Scope, token: Token) -> str:
        at: Scope | None = scope
        name = operand.name if isinstance(operand, Sym) else "?"
        while at is not None:
            if name in at.labels:
                return at.labels[name]
            at = at.parent
        raise PtxError(f"label '{name}' is not defined", token.line, token.column)

    def _find_register(self, name: str) -> Reg | None:
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
                    reg = self._new_register(name, limit[1])
                    at.registers[name] = reg
                    return reg
            at = at.parent
        return None

    # --- operands ------------------------------------------------------------------------------

    def _operand(self) -> Operand:
        c = self.c
        if c.tokens[c.at].kind == "word":  # most are registers
            return self._one_or_pair()
        if c.text == "!" and c.tokens[c.at + 1].kind == "word":
            c.next()
            token = c.word("a predicate")
            reg = self._find_register(token.text)
            if reg is None:
                raise c.error(f"'{token.text}' is not declared", token)
            return Negated(reg)
        if c.accept("["):
            return self._memory()
        if self.calls and c.accept("("):
            items: list[Operand] = []
            while not c.accept(")"):
                if items:
                    c.expect(",")
                items.append(self._operand())
            return BraceGroup(tuple(items))
        if c.accept("{"):
            elements: list[Operand | None] = []
            while not c.accept("}"):
                if elements:
                    c.expect(",")
                item = self._operand()
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
        base = self._simple()
        offset = 0
        if isinstance(base, Sym):
            base, offset = Sym(base.name), base.offset
        elif c.accept("+"):
            offset = c.integer()
        coords: tuple[Operand, ...] | None = None
        if c.accept(","):
            vec = self._operand()
            if isinstance(vec, Vec):
                coords = tuple(v for v in vec.items if v is not None)
            else:
                coords = (vec,)
        c.expect("]")
        return Mem(base, offset, coords)

    def _simple(self) -> Operand:
        c = self.c
        token = c.token
        if token.kind == "word":
            c.next()
            return self._name(token)
        if token.kind == "bits":
            c.next()
            return Imm(int(token.text[2:], 16), "f32" if token.text[1] in "fF" else "f64")
        negative = token.text == "-" and c.tokens[c.at + 1].kind == "dec"
        if negative:
            c.next()
            token = c.token
        if token.kind == "dec":
            c.next()
            return Imm(-float(token.text) if negative else float(token.text), "dec")
        if token.kind == "int" or token.text in ("-", "~", "(", "!", "+"):
            return Imm(c.integer())
        raise c.error(f"expected an operand, found '{token.text}'")

    def _name(self, token: Token) -> Operand:
        text = token.text
        if text == "_":
            return Sink()
        if SPECIAL.match(text):
            return Special(text)
        reg = self._find_register(text)
        if reg is not None:
            return reg
        if text == "WARP_SZ":
            return Imm(32)
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

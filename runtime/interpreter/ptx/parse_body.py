"""The body of a PTX function: declarations, labels and instructions, with names resolved scope by scope."""

from __future__ import annotations

from .cursor import Cursor
from .declarations import alignment, check_vector, parse_directives, parse_parameters, parse_variable, pragma
from .initial_values import check_addresses
from .lexer import Token
from .module import REGISTER_TYPES, Function, Instruction, Label, Module, Operand, PtxError, Reg, Sym, Var
from .operands import OperandParser
from .scope import Scope


def _words(text: str) -> tuple[str, ...]:
    """Return the words of an opcode. Assemblers take `.sync` twice, and it means the same."""
    words = text.split(".")
    if words.count("sync") > 1:
        first = words.index("sync") + 1
        words = words[:first] + [w for w in words[first:] if w != "sync"]
    return tuple(words)


class BodyParser(OperandParser):
    """Reads one function body into `fn`. Registers get numbers, nested names get unique ones."""

    def __init__(self, cursor: Cursor, module: Module, fn: Function) -> None:
        super().__init__(cursor, fn)
        self.module = module
        self.scopes: int = 0
        self.pending: list[tuple[Instruction, Scope, Token]] = []
        self.tables: list[tuple[tuple[str, ...], Scope, Token]] = []
        for var in (*fn.params, *fn.rets):
            self.scope.declare(var.name, "variable", var.line, var.column)
            if var.space == "reg":
                self.scope.registers[var.name] = self.new_register(var.name, var.elem)
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
                pragma(c, "entry" if self.fn.entry else "function", self.module.version)
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
        type_, lanes = self._register_type()
        while True:
            name = c.name("a register name")
            if c.accept("<"):
                count = c.number("a number of registers")
                self.scope.declare_range(name.text, (count, type_, lanes), name.line, name.column)
                c.expect(">")
            else:
                self.scope.declare(name.text, "register", name.line, name.column)
                self.scope.registers[name.text] = self.new_register(name.text, type_, lanes)
            if not c.accept(","):
                break
        c.expect(";")

    def _register_type(self) -> tuple[str, int]:
        """Parse `.align 8 .v2 .b32`: the type of registers, and how many of them a vector has. An alignment means nothing."""
        c, lanes = self.c, 1
        while c.text == ".align":
            alignment(c)
        token = c.token
        if c.text in (".v2", ".v4"):
            lanes = int(c.next().text[2:])
        kind = c.word("a register type")
        if kind.text[1:] not in REGISTER_TYPES:
            raise c.error(f"unknown register type '{kind.text}'", kind)
        if lanes > 1:
            check_vector(c, kind.text[1:], lanes, token)
        return kind.text[1:], lanes

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
            guard = (self.predicate(name), negated)
            token = c.token
        if token.kind != "word" or not token.text[0].isalpha():
            raise c.error(f"expected an instruction, found '{token.text}'")
        c.next()
        self.calls = token.text.startswith("call")
        operands: list[Operand] = []
        if c.text != ";":
            operands.append(self.operand())
            while c.accept(","):
                operands.append(self.operand())
        c.expect(";")
        opcode = _words(token.text)
        ins = Instruction(opcode, tuple(operands), guard, token.line, token.column)
        self.fn.body.append(ins)
        self._check_table(ins, token)
        if opcode[0] in ("bra", "brx", "call"):
            self.pending.append((ins, self.scope, token))

    def _check_table(self, ins: Instruction, token: Token) -> None:
        """Check that the table of a brx.idx or of an indirect call comes before it."""
        last = ins.operands[-1] if ins.operands else None
        label = last.name if isinstance(last, Sym) else ""
        if ins.opcode[0] == "brx" and (len(ins.operands) != 2 or label not in self.fn.branch_targets):
            raise PtxError("brx.idx needs a .branchtargets label before it", token.line, token.column)
        indirect = ins.opcode[0] == "call" and any(isinstance(o, Reg) for o in ins.operands)
        if indirect and label and label not in self.fn.prototypes:
            what = f"call needs the label of a prototype or of call targets before it, found '{label}'"
            raise PtxError(what, token.line, token.column)

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
            parse_directives(c, {}, version=self.module.version)
            c.expect(";")
            self.fn.prototypes[token.text] = [(rets, params)]
            return
        if c.accept(".calltargets"):
            self._call_targets(token)
            return
        unique = token.text + self.scope.tag
        self.scope.labels[token.text] = unique
        self.fn.body.append(Label(unique))

    def _call_targets(self, label: Token) -> None:
        """Parse a list of functions that an indirect call may call (11.5.2)."""
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
        self.fn.prototypes[label.text] = [(fn.rets, fn.params) for fn in found]

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
                table = ins.operands[1]
                assert isinstance(table, Sym)
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

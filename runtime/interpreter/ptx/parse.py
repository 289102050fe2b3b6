"""PTX text to a `Module` (PTX ISA, sections 4, 5 and 11). Refuses malformed text with line and column."""

from __future__ import annotations

import re

from .declarations import Cursor, parse_directives, parse_parameters, parse_variable
from .lexer import Token, tokenize
from .module import Function, Module
from .parse_body import BodyParser

_LINKAGE = {".visible", ".extern", ".weak", ".common"}
_SPACES = {".global", ".const", ".shared", ".local", ".param"}


def parse(text: str) -> Module:
    """Parse `text`; raises PtxError with line and column where an assembler would refuse it."""
    parser = _ModuleParser(Cursor(tokenize(text)))
    try:
        return parser.run()
    except RecursionError:
        raise parser.c.error("this is nested too deeply") from None


# The last minor version of each major one (PTX ISA 13, 'Release Notes'); 9 is not the last.
_LAST = {1: 5, 2: 3, 3: 2, 4: 3, 5: 1, 6: 5, 7: 8, 8: 8}
# The first version that has a target (PTX ISA 11.1.2, .target); those before sm_75 are not told apart.
_SINCE = {
    75: (6, 3), 80: (7, 0), 86: (7, 1), 87: (7, 4), 89: (7, 8), 90: (7, 8), 100: (8, 6), 101: (8, 6), 103: (8, 8),
    110: (9, 0), 120: (8, 7), 121: (8, 8),
}  # fmt: skip


def _is_version(version: tuple[int, int]) -> bool:
    return version[0] == 9 or version[1] <= _LAST.get(version[0], -1)


def _first_version(target: str) -> tuple[int, int]:
    number = int(re.sub(r"\D", "", target))
    suffix = {"a": (8, 0), "f": (8, 8)}.get(target[-1], (1, 0))
    return max(_SINCE.get(number, (1, 0)), suffix)


class _ModuleParser:
    def __init__(self, cursor: Cursor) -> None:
        self.c = cursor
        self.module = Module((0, 0), "", {}, {}, {})

    def run(self) -> Module:
        c, m = self.c, self.module
        while c.token.kind != "end":
            self._statement()
        if not m.target:
            raise c.error("the module has no .target directive")
        return m

    def _statement(self) -> None:
        c, m = self.c, self.module
        token = c.token
        if m.version == (0, 0) and token.text != ".version":
            raise c.error(f"a module starts with .version, not '{token.text}'")
        match token.text:
            case ".version":
                c.next()
                major, dot, minor = c.next().text.partition(".")
                if not (dot and major.isdigit() and minor.isdigit()):
                    raise c.error("expected a version such as 8.6", token)
                m.version = (int(major), int(minor))
                if not _is_version(m.version):
                    raise c.error(f"there is no PTX {major}.{minor}", token)
            case ".target":
                m.target_at = (token.line, token.column)
                c.next()
                m.target = c.word("a target").text
                if not re.fullmatch(r"sm_\d+[af]?", m.target):
                    raise c.error(f"'{m.target}' is no target", token)
                first = _first_version(m.target)
                if m.version < first:
                    raise c.error(f"'{m.target}' needs .version {first[0]}.{first[1]} or later", token)
                while c.accept(","):
                    c.word("a target option")
            case ".address_size":
                c.next()
                if c.integer() != 64:
                    raise c.error("only .address_size 64 is supported", token)
            case ".file":
                self._file()
            case ".section":
                self._section()
            case ".pragma":
                while not c.accept(";"):
                    self._not_end("';'")
            case ".alias":
                c.next()
                new, _, old = c.word("a name").text, c.expect(","), c.word("a name").text
                c.expect(";")
                if old not in m.functions:
                    raise c.error(f"unknown function '{old}'", token)
                m.functions[new] = m.functions[old]
            case _:
                self._declaration()

    def _not_end(self, what: str) -> Token:
        if self.c.token.kind == "end":
            raise self.c.error(f"expected {what}, found the end of the file")
        return self.c.next()

    def _file(self) -> None:
        c = self.c
        c.next()
        number = c.integer()
        self.module.files[number] = c.next().text.strip('"')
        while c.accept(","):
            c.integer()

    def _section(self) -> None:
        c = self.c
        c.next()
        c.word("a section name")
        c.expect("{")
        while not c.accept("}"):
            self._not_end("'}'")

    def _declaration(self) -> None:
        c = self.c
        extern = False
        while c.text in _LINKAGE:
            extern = c.next().text == ".extern" or extern
        token = c.token
        if token.text in (".entry", ".func"):
            self._function(token.text == ".entry")
        elif token.text in _SPACES:
            for var in parse_variable(c, extern):
                self.module.variables[var.name] = var
        else:
            raise c.error(f"unexpected '{token.text}'")

    def _function(self, entry: bool) -> None:
        c, m = self.c, self.module
        start = c.next()
        directives: dict[str, tuple[int, ...]] = {}
        parse_directives(c, directives)
        rets = parse_parameters(c) if not entry and c.text == "(" else []
        name = c.word("a function name")
        params = parse_parameters(c) if c.text == "(" else []
        parse_directives(c, directives)
        previous = m.functions.get(name.text)
        if previous is not None and previous.defined and c.text == "{":
            raise c.error(f"'{name.text}' is defined twice", name)
        fn = Function(name.text, entry, params, rets, [], [], {}, directives, {}, {}, start.line)
        fn.column = start.column
        if c.accept(";"):
            fn.defined = False
            m.functions.setdefault(name.text, fn)
            return
        m.functions[name.text] = fn
        BodyParser(c, m, fn).run()

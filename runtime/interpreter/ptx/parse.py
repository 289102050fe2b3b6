"""PTX text to a `Module` (PTX ISA, sections 4, 5 and 11). Refuses malformed text with line and column."""

from __future__ import annotations

import re

from .cursor import Cursor
from .declarations import parse_attributes, parse_directives, parse_parameters, parse_variable, pragma
from .initial_values import check_addresses
from .lexer import Token, tokenize
from .module import Function, Module, PtxError, Var
from .parse_body import BodyParser

_LINKAGE = {".visible", ".extern", ".weak", ".common"}
_SPACES = {".global", ".const", ".shared"}
_TARGET = re.compile(r"sm_\d+[af]?")
_CONSTANTS = 1 << 16  # bytes of the .const of a module (PTX ISA 5.1.3)
_OPTIONS = {"texmode_unified", "texmode_independent", "debug"}


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
        self.constants = 0  # bytes of .const so far
        self.linkage: dict[str, str] = {}  # of functions, at their first declaration
        self.declared: dict[str, Token] = {}  # functions without .extern, whose definition has to follow

    def run(self) -> Module:
        c, m = self.c, self.module
        while c.token.kind != "end":
            self._statement()
        if not m.target:
            raise c.error("the module has no .target directive")
        for name, token in self.declared.items():
            if not m.functions[name].defined:
                raise c.error(f"function '{name}' is not defined; what another module defines is .extern", token)
        return m

    def _statement(self) -> None:
        c, m = self.c, self.module
        token = c.token
        heading = m.target_at if m.version != (0, 0) else None  # until the module has both
        if m.version == (0, 0) and token.text != ".version":
            raise c.error(f"a module starts with .version, not '{token.text}'")
        if heading == (0, 0) and token.text != ".target":
            raise c.error(f"the module has no .target directive: .target follows .version, not '{token.text}'")
        match token.text:
            case ".version" if heading is None:
                self._version(token)
            case ".target" if heading == (0, 0):
                self._target(token)
            case ".file":
                self._file()
            case ".section":
                self._section()
            case ".pragma":
                pragma(c, "module")
            case ".alias":
                self._alias()
            case _:
                self._declaration()

    def _version(self, token: Token) -> None:
        c, m = self.c, self.module
        c.next()
        major, dot, minor = c.next().text.partition(".")
        if not (dot and major.isdigit() and minor.isdigit()):
            raise c.error("expected a version such as 8.6", token)
        m.version = (int(major), int(minor))
        if not _is_version(m.version):
            raise c.error(f"there is no PTX {major}.{minor}", token)

    def _target(self, token: Token) -> None:
        """Parse .target, and .address_size behind it (11.1)."""
        c, m = self.c, self.module
        m.target_at = (token.line, token.column)
        c.next()
        m.target = c.word("a target").text
        if not _TARGET.fullmatch(m.target):
            raise c.error(f"'{m.target}' is no target", token)
        first = _first_version(m.target)
        if m.version < first:
            raise c.error(f"'{m.target}' needs .version {first[0]}.{first[1]} or later", token)
        options: set[str] = set()
        while c.accept(","):
            option = c.word("a target option")
            if option.text not in _OPTIONS and not _TARGET.fullmatch(option.text):
                raise c.error(f"'{option.text}' is no option of a target from sm_75 on", option)
            options.add(option.text)
            if len(options & {"texmode_unified", "texmode_independent"}) == 2:
                raise c.error(f"'{option.text}' conflicts with the option before", option)
        if c.text == ".target":  # a further one adds options
            target = m.target
            self._target(c.token)
            m.target = target
            return
        token = c.token
        if c.accept(".address_size") and c.integer() != 64:
            raise c.error("only .address_size 64 is supported", token)

    def _alias(self) -> None:
        """Parse `.alias a, f;`: another name of a function with a body, for one that is declared without."""
        c, functions = self.c, self.module.functions
        c.next()
        new = c.name("a name")
        c.expect(",")
        old = c.name("a name")
        c.expect(";")
        for name, defined in ((new, False), (old, True)):
            fn = functions.get(name.text)
            if fn is None or fn.entry or fn.defined is not defined:
                what = "has no body in this module" if defined else "is not declared before, without a body"
                raise c.error(f"the function '{name.text}' of an alias {what}", name)
        if not _same_parameters(functions[new.text], functions[old.text]):
            raise c.error(f"'{new.text}' and '{old.text}' have other parameters", new)
        functions[new.text] = functions[old.text]

    def _not_end(self, what: str) -> Token:
        if self.c.token.kind == "end":
            raise self.c.error(f"expected {what}, found the end of the file")
        return self.c.next()

    def _file(self) -> None:
        c = self.c
        c.next()
        token = c.token
        number = c.number("the number of a file")
        if number in self.module.files:
            raise c.error(f"file {number} is declared twice", token)
        if c.token.kind != "string":
            raise c.error(f"expected a file's name, found '{c.text}'")
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
        linkage = c.next().text if c.text in _LINKAGE else ""
        token = c.token
        if token.text in (".entry", ".func") and linkage != ".common":
            self._function(token.text == ".entry", linkage)
        elif token.text in _SPACES:
            if linkage == ".common" and token.text != ".global":
                raise c.error(f".common is of .global variables, not of {token.text}")
            for var in parse_variable(c, linkage == ".extern"):
                self._variable(var, linkage)
        else:
            raise c.error(f"unexpected '{token.text}'")

    def _variable(self, var: Var, linkage: str) -> None:
        m = self.module
        if var.space == "const" and not var.extern:
            at = -(-self.constants // var.align) * var.align
            self.constants = at + var.size
            if self.constants > _CONSTANTS:
                raise PtxError(
                    f"'{var.name}' ends at byte {self.constants} of .const, which has {_CONSTANTS}",
                    var.line,
                    var.column,
                )
        check_addresses(var, m.variables, m.functions)
        known = m.variables.get(var.name)
        if var.name in m.functions or (known is not None and not (known.extern or var.extern)):
            raise PtxError(f"'{var.name}' is declared twice", var.line, var.column)
        if known is not None and not _same_kind(known, var):
            raise PtxError(
                f"'{var.name}' is declared in line {known.line} as another kind of variable", var.line, var.column
            )
        if known is not None and known.extern and not linkage:
            what = f"'{var.name}' is .extern in line {known.line}, and no other module sees it: .visible is missing"
            raise PtxError(what, var.line, var.column)
        if known is None or known.extern:
            m.variables[var.name] = var

    def _function(self, entry: bool, linkage: str) -> None:
        c, m = self.c, self.module
        extern = linkage == ".extern"
        start = c.next()
        directives: dict[str, tuple[int, ...]] = {}
        if not entry and c.accept(".attribute"):
            parse_attributes(c, False)
        rets = parse_parameters(c) if not entry and c.text == "(" else []
        name = c.name("a function name")
        params = parse_parameters(c, entry=entry) if c.text == "(" else []
        if len(rets) > 1 and any(var.space == "param" for var in rets):
            raise c.error(f"'{name.text}' has several results, which must be registers", name)
        behind = c.token
        parse_directives(c, directives, entry, m.version)
        if entry and c.token is not behind and c.text == ";":
            raise c.error(f"the entry '{name.text}' has directives, and no body")
        if rets and "noreturn" in directives:
            raise c.error(f"'{name.text}' has a result, so it is not .noreturn", name)
        fn = Function(name.text, entry, params, rets, [], [], {}, directives, {}, {}, start.line)
        fn.column = start.column
        if c.accept(";"):
            fn.defined = False
        self._check_function(fn, name)
        if entry:
            self._check_parameters(fn, name)
        if self.linkage.setdefault(fn.name, linkage) == "" and linkage == ".visible":
            raise c.error(f"'{fn.name}' is declared before without .visible", name)
        if fn.defined and extern:
            raise c.error(f"'{fn.name}' is .extern, and has a body", name)
        if not fn.defined:
            m.functions.setdefault(name.text, fn)
            if not extern:
                self.declared.setdefault(name.text, name)
            return
        m.functions[name.text] = fn
        BodyParser(c, m, fn).run()

    def _check_function(self, fn: Function, name: Token) -> None:
        """Compare a function with what the module has of its name."""
        c, previous = self.c, self.module.functions.get(fn.name)
        if fn.name in self.module.variables:
            raise c.error(f"'{fn.name}' is a variable, too", name)
        if previous is None:
            return
        if previous.defined:
            raise c.error(f"'{fn.name}' is defined twice", name)
        if fn.defined and fn.name not in self.declared:
            raise c.error(f"'{fn.name}' is .extern in line {previous.line}, and defined here", name)
        if not _same_parameters(previous, fn) or previous.entry != fn.entry:
            raise c.error(f"'{fn.name}' is declared in line {previous.line} with other parameters", name)
        if not fn.entry and previous.directives != fn.directives:
            raise c.error(f"'{fn.name}' is declared in line {previous.line} with other directives", name)

    def _check_parameters(self, fn: Function, name: Token) -> None:
        """Check the parameters of an entry (PTX ISA 11.3.1 and its limits)."""
        end = 0
        for var in fn.params:
            if var.space != "param":
                raise self.c.error(f"parameter '{var.name}' of an entry must be in .param", name)
            end = -(-end // var.align) * var.align + var.size
        if "blocksareclusters" in fn.directives and self.module.version < (9, 0):
            raise self.c.error(".blocksareclusters needs .version 9.0 or later", name)
        if "blocksareclusters" in fn.directives and not {"reqntid", "reqnctapercluster"} <= fn.directives.keys():
            raise self.c.error(".blocksareclusters needs .reqntid and .reqnctapercluster", name)
        most = 32764 if self.module.version >= (8, 1) else 4352
        if end > most:
            raise self.c.error(f"entry '{fn.name}' has {end} bytes of parameters, and may have {most}", name)


def _same_parameters(one: Function, two: Function) -> bool:
    """Return whether two functions have the same parameters and results."""
    kinds = [[[(v.space, v.elem, v.size) for v in of] for of in (fn.params, fn.rets)] for fn in (one, two)]
    return kinds[0] == kinds[1]


def _same_kind(one: Var, two: Var) -> bool:
    """Return whether two declarations can be of one variable, of which one is external at least."""
    alike = (one.space, one.elem, one.size) == (two.space, two.elem, two.size)
    return alike or (one.extern and two.extern and one.space == two.space)

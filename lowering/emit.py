"""Writing one LLVM function as text: fresh names, blocks, debug lines, and the prelude that dominates everything."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from kernel_dsl import dtypes as dt
from kernel_dsl.dtypes import DType, Kind
from kernel_dsl.source import Loc

Regs = list[str]

_LLVM = {
    "bool": "i1",
    "float16": "half",
    "bfloat16": "bfloat",
    "float32": "float",
    "float64": "double",
    "float8_e4m3fn": "i8",
    "float8_e5m2": "i8",
    "complex64": "i64",
}
_SUFFIX = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}


def llvm_type(dtype: DType) -> str:
    """The LLVM type that holds one element in a register."""
    return _LLVM.get(dtype.name) or f"i{dtype.bits}"


def suffix(dtype: DType) -> str:
    """How an overloaded intrinsic names the type: f32, i16, bf16."""
    t = llvm_type(dtype)
    return _SUFFIX.get(t, t)


def kind_letter(dtype: DType) -> str:
    """The key of an op's `llvm` table: "f", "i", "u" or "b"."""
    kind = dtype.kind
    if kind is Kind.FLOAT:
        return "f"
    if kind is Kind.BOOL:
        return "b"
    return "i" if kind is Kind.INT else "u"


def literal(value: Any, dtype: DType) -> str:
    """A constant as LLVM text, exactly."""
    if dtype.is_bool:
        return "true" if value else "false"
    if not dtype.is_float:
        number = int(value)
        if number >= 1 << dtype.bits - 1:  # printed as signed
            number -= 1 << dtype.bits
        return str(number)
    if dtype in dt.FP8:
        import numpy as np

        return str(int(np.asarray(value, dtype.numpy).view(np.int8)))
    if dtype == dt.float64:
        return f"0x{struct.unpack('<Q', struct.pack('<d', float(value)))[0]:016X}"
    import numpy as np

    rounded = np.asarray(value, np.float64).astype(dtype.numpy)
    if dtype == dt.float32:  # spelt as the double of the same value
        wide = struct.pack("<d", float(rounded))
        return f"0x{struct.unpack('<Q', wide)[0]:016X}"
    bits = int(rounded.view(np.uint16))
    return f"0x{'H' if dtype == dt.float16 else 'R'}{bits:04X}"


@dataclass
class DebugLines:
    """The module's debug metadata: `.loc` directives and nothing more (emissionKind DebugDirectivesOnly)."""

    nodes: list[str] = field(default_factory=lambda: cast("list[str]", []))
    _files: dict[str, int] = field(default_factory=lambda: cast("dict[str, int]", {}))
    _scopes: dict[tuple[str, str], int] = field(default_factory=lambda: cast("dict[tuple[str, str], int]", {}))
    _lines: dict[tuple[str, str, int], int] = field(default_factory=lambda: cast("dict[tuple[str, str, int], int]", {}))
    subprogram: int = -1

    def _add(self, text: str) -> int:
        self.nodes.append(text)
        return len(self.nodes) - 1

    def _file(self, path: str) -> int:
        if path not in self._files:
            escaped = path.replace("\\", "\\5C").replace('"', "\\22")
            self._files[path] = self._add(f'!DIFile(filename: "{escaped}", directory: "")')
        return self._files[path]

    def start(self, entry: str, loc: Loc) -> None:
        """The compile unit and the kernel's subprogram."""
        unit_file = self._file(loc.file)
        unit = self._add(
            f"distinct !DICompileUnit(language: DW_LANG_Python, file: !{unit_file}, producer: "
            '"kernel_dsl", isOptimized: true, runtimeVersion: 0, emissionKind: DebugDirectivesOnly)'
        )
        none = self._add("!{}")
        signature = self._add(f"!DISubroutineType(types: !{none})")
        self.subprogram = self._add(
            f'distinct !DISubprogram(name: "{entry}", linkageName: "{entry}", scope: !{unit_file}, '
            f"file: !{unit_file}, line: {loc.line}, type: !{signature}, scopeLine: {loc.line}, "
            f"spFlags: DISPFlagDefinition | DISPFlagOptimized, unit: !{unit})"
        )
        self.unit = unit
        self._scopes[(loc.file, "")] = self.subprogram
        self.home: str = loc.file

    def line(self, loc: Loc) -> int:
        """The metadata node of a location."""
        key = (loc.file, "", loc.line)
        found = self._lines.get(key)
        if found is None:
            scope = self._scopes.get((loc.file, ""))
            if scope is None:
                scope = self._add(
                    f"!DILexicalBlockFile(scope: !{self.subprogram}, file: !{self._file(loc.file)}, discriminator: 0)"
                )
                self._scopes[(loc.file, "")] = scope
            found = self._add(f"!DILocation(line: {loc.line}, column: 1, scope: !{scope})")
            self._lines[key] = found
        return found

    def text(self) -> str:
        """All metadata of the module."""
        version = self._add('!{i32 2, !"Debug Info Version", i32 3}')
        lines = [f"!{i} = {node}" for i, node in enumerate(self.nodes)]
        return "\n".join([f"!llvm.dbg.cu = !{{!{self.unit}}}", f"!llvm.module.flags = !{{!{version}}}", *lines, ""])


class Emitter:
    """Appends instructions to the current block. `prelude` goes into the entry block, before everything else."""

    def __init__(self, debug: DebugLines) -> None:
        self.debug = debug
        self.prelude: list[str] = []
        self.setup: list[str] = []  # after the prelude, before the body
        self.lines: list[str] = []
        self.block: str = "start"
        self._names = 0
        self._dbg = ""
        self._cache: dict[Any, str] = {}

    def at(self, loc: Loc) -> None:
        """Instructions from here on belong to this line."""
        self._dbg = f", !dbg !{self.debug.line(loc)}" if loc.line else ""

    def name(self) -> str:
        self._names += 1
        return f"%v{self._names}"

    def label(self) -> str:
        self._names += 1
        return f"b{self._names}"

    def v(self, text: str) -> str:
        """Append an instruction with a result; returns its name."""
        self._names += 1
        name = f"%v{self._names}"
        self.lines.append(f"  {name} = {text}{self._dbg}")
        return name

    def do(self, text: str) -> None:
        """Append an instruction without a result."""
        self.lines.append(f"  {text}{self._dbg}")

    def pre(self, text: str) -> str:
        """A value computed once in the entry block; the same text gives the same value."""
        found = self._cache.get(text)
        if found is None:
            self._names += 1
            found = self._cache[text] = f"%v{self._names}"
            self.prelude.append(f"  {found} = {text}")
        return found

    def pre_do(self, text: str) -> None:
        self.prelude.append(f"  {text}")

    # --- blocks -----------------------------------------------------------------------------------

    def begin(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    def jump(self, label: str) -> None:
        self.do(f"br label %{label}")

    def branch(self, predicate: str, yes: str, no: str) -> None:
        self.do(f"br i1 {predicate}, label %{yes}, label %{no}")

    def phi(self, type: str, incoming: Sequence[tuple[str, str]]) -> str:
        pairs = ", ".join(f"[ {value}, %{block} ]" for value, block in incoming)
        return self.v(f"phi {type} {pairs}")

    # --- small helpers ----------------------------------------------------------------------------

    def asm(
        self,
        template: str,
        constraints: str,
        args: Sequence[tuple[str, str]] = (),
        results: Sequence[str] = (),
        *,
        sideeffect: bool = True,
    ) -> Regs:
        """Inline PTX. `args`: (type, value); `results`: types. Returns the results' names."""
        effect = " sideeffect" if sideeffect else ""
        passed = ", ".join([f"{t} {value}" for t, value in args])
        escaped = template.replace("\n", "\\0A").replace("\t", " ")
        if not results:
            ret = "void"
        elif len(results) == 1:
            ret = results[0]
        else:
            ret = "{" + ", ".join(results) + "}"
        attributes = " #0" if sideeffect else " #1"
        call = f'call {ret} asm{effect} "{escaped}", "{constraints}"({passed}){attributes}'
        if not results:
            self.do(call)
            return []
        whole = self.v(call)
        if len(results) == 1:
            return [whole]
        return [self.v(f"extractvalue {ret} {whole}, {i}") for i in range(len(results))]

    def both(self, a: str | None, b: str | None) -> str | None:
        """The conjunction of two predicates, None being true."""
        if a is None or b is None:
            return b if a is None else a
        return a if a == b else self.v(f"and i1 {a}, {b}")

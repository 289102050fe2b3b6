"""The module's debug metadata: which line of the user's each instruction belongs to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from kernel_dsl.source import Loc


@dataclass
class DebugLines:
    """The module's debug metadata: `.loc` directives and nothing more (emissionKind DebugDirectivesOnly)."""

    nodes: list[str] = field(default_factory=lambda: cast("list[str]", []))
    _files: dict[str, int] = field(default_factory=lambda: cast("dict[str, int]", {}))
    _scopes: dict[str, int] = field(default_factory=lambda: cast("dict[str, int]", {}))
    _lines: dict[tuple[str, int], int] = field(default_factory=lambda: cast("dict[tuple[str, int], int]", {}))
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
        self._scopes[loc.file] = self.subprogram
        self.home: str = loc.file

    def line(self, loc: Loc) -> int:
        """The metadata node of a location."""
        key = loc.file, loc.line
        found = self._lines.get(key)
        if found is None:
            scope = self._scopes.get(loc.file)
            if scope is None:
                scope = self._add(
                    f"!DILexicalBlockFile(scope: !{self.subprogram}, file: !{self._file(loc.file)}, discriminator: 0)"
                )
                self._scopes[loc.file] = scope
            found = self._add(f"!DILocation(line: {loc.line}, column: 1, scope: !{scope})")
            self._lines[key] = found
        return found

    def rolled_loop(self) -> int:
        """The metadata node of a loop with `.pragma "nounroll"`; each loop has its own."""
        never = self._add('!{!"llvm.loop.unroll.disable"}')
        return self._add(f"distinct !{{!{never + 1}, !{never}}}")

    def text(self) -> str:
        """All metadata of the module."""
        version = self._add('!{i32 2, !"Debug Info Version", i32 3}')
        lines = [f"!{i} = {node}" for i, node in enumerate(self.nodes)]
        return "\n".join([f"!llvm.dbg.cu = !{{!{self.unit}}}", f"!llvm.module.flags = !{{!{version}}}", *lines, ""])

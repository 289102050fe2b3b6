"""The errors of assembling."""

from __future__ import annotations

from kernel_dsl.compiled import SourceLine
from kernel_dsl.source import Loc

from ..errors import RunError


class ToolMissing(RunError, RuntimeError):
    """A program of the CUDA toolkit is needed and none was found."""

    code = "tool-missing"


class ToolFailed(RunError, RuntimeError):
    """A program of the CUDA toolkit did not start, did not end, was ended by a signal, or is another program."""

    code = "tool-failed"


class AssemblerError(RunError, RuntimeError):
    """The assembler refused the PTX of a kernel.

    `line` is the user's line that the refused PTX came from, if it is known; `log` is the assembler's whole output.
    """

    code = "assembler-refused"

    def __init__(self, message: str = "", *, line: SourceLine | None = None, log: str = "") -> None:
        super().__init__(message)
        self.line = line
        self.log = log
        if line is not None:
            self.loc: Loc = Loc(line.file, line.line, function=line.function)

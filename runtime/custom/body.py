"""The bodies of `cuda_kernel` and `metal_kernel`: texts, names, and compile errors at the user's lines."""

from __future__ import annotations

import inspect
import keyword
import linecache
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from kernel_dsl.compiled import SourceLine
from kernel_dsl.diagnostics import of_kind

from ..devices.cuda_device import CudaDevice
from ..devices.device import Device
from ..errors import ArgumentTypeError, ArgumentValueError
from . import nvrtc

GRID = "kd_grid"  # the parameter that holds the grid in threads
_CLOSING_LINES = 4  # our lines after the source: an error at the source's end appears there

# fmt: off
_CPP_KEYWORDS = frozenset((
    "alignas", "alignof", "and", "asm", "auto", "bitand", "bitor", "bool", "break", "case", "catch",
    "char", "class", "compl", "const", "constexpr", "continue", "decltype", "default", "delete",
    "do", "double", "else", "enum", "explicit", "export", "extern", "false", "float", "for",
    "friend", "goto", "if", "inline", "int", "long", "mutable", "namespace", "new", "noexcept",
    "not", "nullptr", "operator", "or", "private", "protected", "public", "register", "return",
    "short", "signed", "sizeof", "static", "struct", "switch", "template", "this", "throw", "true",
    "try", "typedef", "typeid", "typename", "union", "unsigned", "using", "virtual", "void",
    "volatile", "wchar_t", "while", "xor",
))
# fmt: on


@dataclass(frozen=True)
class CustomBody:
    """A kernel's text and names, checked. In the dict form, each call gives the names, and they are None here."""

    name: str
    input_names: tuple[str, ...] | None
    output_names: tuple[str, ...] | None
    source: str
    header: str
    places: Mapping[str, SourceLine]  # by file name in `#line`: the place of its first line in the user's file

    def shown(self, kind: str) -> str:
        """The `repr` of a kernel that the function `kind` made of the body."""
        inputs, outputs = (", ".join(names or ()) for names in (self.input_names, self.output_names))
        return f"<{kind} {self.name!r}: {inputs} -> {outputs}>"

    @property
    def source_file(self) -> str:
        return f"{identifier(self.name)}.source"

    @property
    def header_file(self) -> str:
        return f"{identifier(self.name)}.header"

    def begin(self, file: str) -> str:
        """The `#line` before the source or the header, with the user's own line if it is known."""
        place = self.places.get(file)
        name, line = (place.file, place.line) if place else (file, 1)
        return f'#line {line} "{name}"'.replace("\\", "\\\\")

    def compile(
        self,
        text: str,
        device: Device,
        headers: Mapping[str, str],
        options: Sequence[str],
        absent: Mapping[str, str],
    ) -> bytes:
        """A cubin for a GPU's own architecture, PTX for the interpreter.

        The PTX has the line of each instruction, for the interpreter's reports. `absent`: see `Images`.
        """
        if isinstance(device, CudaDevice):
            target, kind, more = gpu_architecture(device), "cubin", ()
        else:
            target, kind, more = device.target.name, "ptx", ("--generate-line-info",)
        try:
            return nvrtc.compile_source(
                text,
                file="generated",
                target=target,
                kind=kind,
                headers=headers,
                options=[*options, *more],
            )
        except nvrtc.CompileError as error:
            if not error.log:
                raise
            raise nvrtc.CompileError(self.explain(error, absent), error.log) from None

    def explain(self, error: nvrtc.CompileError, absent: Mapping[str, str]) -> str:
        """The message, with the user's own lines and their text."""
        lines = [f"kernel {self.name!r} does not compile:"]
        settled: set[tuple[str, int]] = set()  # lines whose other errors follow from the reported one
        for found in error.diagnostics:
            if found.severity == "warning" or (found.file, found.line) in settled:
                continue
            place, text = self._place(found.file, found.line)
            message = found.message
            if not text:  # an error in a header: the user's line is the one that led there
                for file, line in found.through:
                    user, text = self._place(file, line)
                    if text:
                        place, message = user, f"{message} (at {place})"
                        break
            unknown = text if message.startswith('name followed by "::"') else message  # the message without the name
            reason = next(
                (w for names, w in absent.items() if re.search(rf'"(?:{names})"|\b(?:{names})::', unknown)), ""
            )
            if reason:
                settled.add((found.file, found.line))
                message = f"{reason} ({message})"
            lines.append(f"  {place}: {found.severity}: {message}")
            if text:
                lines.append(f"      {text}")
        if len(lines) == 1:  # a message of the assembler names no line of the source
            lines += [f"  {line}" for line in error.log.splitlines() if line.strip()]
        lines.append("  verbose=True prints the generated source; the error's .log is the compiler's own text.")
        return "\n".join(lines)

    def _place(self, file: str, line: int) -> tuple[str, str]:
        """The place in the user's file of a line that the compiler named, and the line's text."""
        for slack in (0, _CLOSING_LINES):
            for kind, name, text in (
                ("source", self.source_file, self.source),
                ("header", self.header_file, self.header),
            ):
                lines = text.rstrip().split("\n")
                known = self.places.get(name)
                first = known.line if known else 1
                if file == (known.file if known else name) and first <= line < first + len(lines) + slack:
                    at = min(line - first, len(lines) - 1)
                    number = first + at
                    where = f"{file}:{number}" if known else f"{kind} of kernel {self.name!r}, line {number}"
                    return where, lines[at].strip()
        return f"{file}:{line}", ""


def gpu_architecture(device: CudaDevice) -> str:
    """`sm_90a`: the GPU's own, with its architecture-specific features from compute capability 9.0 on."""
    major, minor = device.capability
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def check_body(
    factory: str,
    name: Any,
    input_names: Sequence[str] | None,
    output_names: Sequence[str] | None,
    source: Any,
    header: Any,
) -> CustomBody:
    """The texts and names of a factory call, checked."""
    if not isinstance(name, str) or not re.search(r"\w", name):
        raise ArgumentTypeError(f"{factory}: name={name!r} must be a name")
    for what, text in (("source", source), ("header", header)):
        if not isinstance(text, str):
            raise ArgumentTypeError(f"{factory} {name!r}: {what}= must be text, and is {of_kind(text)}")
    inputs = None if input_names is None else _names(factory, name, "input_names", input_names)
    outputs = None if output_names is None else _names(factory, name, "output_names", output_names)
    if outputs == ():
        raise ArgumentValueError(f"{factory} {name!r} must have at least one output")
    _distinct(factory, name, (*(inputs or ()), *(outputs or ())))
    body = CustomBody(name, inputs, outputs, source, header, {})
    file_of_caller, line_of_caller = _caller()
    places = {
        file: place
        for file, text in ((body.source_file, source), (body.header_file, header))
        if (place := locate(text, file_of_caller, line_of_caller)) is not None
    }
    return CustomBody(name, inputs, outputs, source, header, places)


def _caller() -> tuple[str, int]:
    """File and line of the innermost frame outside this project."""
    frame = inspect.currentframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] != "kernel_dsl":
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return "", 0


def _names(factory: str, name: str, what: str, names: Any) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise ArgumentTypeError(f"{factory} {name!r}: {what}= must be a list of names, and is {names!r}")
    for each in cast(Sequence[Any], names):
        check_name(each, f"{factory} {name!r}: {what}=")
    return tuple(cast(Sequence[str], names))


def check_name(name: Any, where: str) -> None:
    """Raise unless `name` can be a parameter's name in C++."""
    if not isinstance(name, str):
        raise ArgumentTypeError(f"{where} holds {name!r}, which is not a name")
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or name in _CPP_KEYWORDS:
        reason = "a C++ keyword" if name in _CPP_KEYWORDS or keyword.iskeyword(name) else "not a C++ identifier"
        raise ArgumentValueError(f"{where} holds {name!r}, which is {reason}")


def _distinct(factory: str, name: str, names: Sequence[str]) -> None:
    for each in names:
        if names.count(each) > 1:
            raise ArgumentValueError(f"{factory} {name!r}: the name {each!r} is given twice")


def identifier(text: str) -> str:
    """`text` as a C identifier."""
    clean = re.sub(r"\W", "_", text, flags=re.ASCII)
    return f"_{clean}" if clean[:1].isdigit() else clean


def mentions(text: str, name: str) -> bool:
    """Whether `text` contains `name` as a separate word."""
    return re.search(rf"(?<![\w]){re.escape(name)}(?!\w)", text, re.ASCII) is not None


def locate(text: str, file: str, near: int) -> SourceLine | None:
    """The line at which `file` contains `text`, indented or not: the match nearest to line `near`, or None."""
    wanted = [line.strip() for line in text.split("\n")]
    meaningful = [i for i, line in enumerate(wanted) if line]
    if not meaningful:
        return None
    written = [line.strip() for line in linecache.getlines(file)]
    first, last = meaningful[0], meaningful[-1]
    found: list[int] = []
    if first == last and len(wanted[first]) >= 8:  # long enough to be unique, at any position
        found = [n - first for n, line in enumerate(written, 1) if wanted[first] in line]
    for start in range(len(written)):
        at = start - first
        if at < 0 or at + last >= len(written) or not written[start].endswith(wanted[first]):
            continue
        middle = all(written[at + i] == wanted[i] for i in range(first + 1, last))
        if middle and (last == first or written[at + last].startswith(wanted[last])):
            found.append(at + 1)
    if not found:
        return None
    return SourceLine(str(Path(file)), min(found, key=lambda line: abs(line - near)))

"""Common parts of `cuda_kernel` and `metal_kernel`: names, templates, array geometry as parameters, and
compile errors at the user's lines.
"""

from __future__ import annotations

import inspect
import keyword
import linecache
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from kernel_dsl.compiled import SourceLine
from kernel_dsl.diagnostics import of_kind
from kernel_dsl.dtypes import DType, as_dtype

from ..arrays.array_view import ArrayView
from ..devices.cuda_device import CudaDevice
from ..devices.device import Device, LoadedImage
from ..devices.images import device_key, load_image
from ..errors import ArgumentTypeError, ArgumentValueError
from . import nvrtc
from .calls import (
    CustomCall,
    Input,
    Threads,
    as_input,
    check_shared_memory,
    choose_device,
    count_threads,
    output_specs,
)
from .effects import may_have_effects

MAX_NDIM = 10
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


# --- bodies ---------------------------------------------------------------------------------------


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


# --- calls ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TemplateValue:
    """A compile-time argument: a dtype, an int (32 bits) or a bool."""

    name: str
    value: DType | int | bool

    @property
    def label(self) -> str:
        """The text in the entry's name."""
        if isinstance(self.value, bool):
            return "t" if self.value else "f"
        return str(self.value).replace("-", "m")


@dataclass(frozen=True)
class BodySpecialisation:
    """The values beside the body that the generated text depends on."""

    input_names: tuple[str, ...]
    inputs: tuple[Input, ...]
    output_names: tuple[str, ...]
    output_dtypes: tuple[DType, ...]
    template: tuple[TemplateValue, ...]

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for calls that need the same text."""
        inputs = tuple((i.dtype.name, not i.shape) for i in self.inputs)
        outputs = tuple(d.name for d in self.output_dtypes)
        template = tuple((v.name, type(v.value), str(v.value)) for v in self.template)
        return self.input_names, inputs, self.output_names, outputs, template

    @property
    def dtypes(self) -> list[DType]:
        """Every dtype that the kernel handles."""
        named = [v.value for v in self.template if isinstance(v.value, DType)]
        return [*(i.dtype for i in self.inputs), *self.output_dtypes, *named]


@dataclass(frozen=True)
class CallArguments:
    """The arguments of one call, unchanged."""

    inputs: Any
    output_shapes: Any
    output_dtypes: Any
    grid: Any
    threadgroup: Any
    template: Any
    init_value: Any
    contiguous: bool
    stream: Any
    interpret: Any


def prepare(body: CustomBody, call: CallArguments, shared_memory: int) -> tuple[BodySpecialisation, CustomCall, Device]:
    """Check a call's arguments. Raises before anything is compiled or launched."""
    name, inputs, outputs = body.name, body.input_names or (), body.output_names or ()
    _count(name, "inputs", call.inputs, len(inputs))
    _count(name, "output_shapes", call.output_shapes, len(outputs))
    _count(name, "output_dtypes", call.output_dtypes, len(outputs))
    values = tuple(as_input(v, f"input {n!r}", name, n) for n, v in zip(inputs, call.inputs, strict=True))
    for each, value in zip(inputs, values, strict=True):
        if len(value.shape) > MAX_NDIM:
            raise ArgumentValueError(
                f"input {each!r} of kernel {name!r} has {len(value.shape)} dimensions, and at "
                f"most {MAX_NDIM} are "
                "passed to a kernel; reshape it"
            )
    specs = output_specs(call.output_shapes, call.output_dtypes, call.init_value, name)
    template = template_values(call.template, name, (*inputs, *outputs))
    threads = count_threads(call.grid, call.threadgroup, name)
    special = BodySpecialisation(inputs, values, outputs, tuple(s.dtype for s in specs), template)
    ready = CustomCall(
        name,
        values,
        specs,
        threads,
        check_shared_memory(shared_memory, name),
        call.contiguous,
        call.stream,
        outputs,
        read_only=True,
        effects=may_have_effects(body.header, body.source),
    )
    return special, ready, choose_device(call.interpret, values)


def _count(name: str, what: str, value: Any, expected: int) -> None:
    if not isinstance(value, (list, tuple)):
        raise ArgumentTypeError(f"{what}= of kernel {name!r} must be a list, and is {of_kind(value)}")
    got = len(cast(Sequence[Any], value))
    if got != expected:
        raise ArgumentValueError(f"{what}= of kernel {name!r} holds {got}, and {expected} are expected")


def template_values(template: Any, name: str, taken: Sequence[str]) -> tuple[TemplateValue, ...]:
    """The (name, value) pairs of `template`, checked."""
    if template is None:
        return ()
    pairs: Any = list(cast(Mapping[Any, Any], template).items()) if isinstance(template, Mapping) else template
    if isinstance(pairs, str) or not isinstance(pairs, Sequence):
        raise ArgumentTypeError(f"template= of kernel {name!r} must be a list of (name, value) pairs")
    values: list[TemplateValue] = []
    used = list(taken)
    for pair in cast(Sequence[Any], pairs):
        if not isinstance(pair, (tuple, list)) or len(cast(Sequence[Any], pair)) != 2:
            raise ArgumentTypeError(f"template= of kernel {name!r} holds {pair!r}, and must hold (name, value) pairs")
        key, value = cast(tuple[Any, Any], pair)
        check_name(key, f"template= of kernel {name!r}")
        if key in used:
            raise ArgumentValueError(f"template= of kernel {name!r}: the name {key!r} is given twice")
        used.append(key)
        values.append(TemplateValue(key, _template_value(key, value, name)))
    return tuple(values)


def _template_value(key: str, value: Any, name: str) -> DType | int | bool:
    refused = ArgumentValueError(
        f"template argument {key!r} of kernel {name!r} is {value!r}, and must be a dtype, an int of 32 bits or a bool"
    )
    if isinstance(value, (bool, np.bool_)):
        return bool(cast(Any, value))
    if isinstance(value, (int, np.integer)):
        number = int(cast(Any, value))
        if not -(2**31) <= number < 2**31:
            raise refused
        return number
    if value is None or isinstance(value, (float, complex, np.generic)):
        raise refused
    try:
        return as_dtype(value)
    except TypeError:
        raise refused from None


def axis_parameters(body: CustomBody, inputs: Sequence[ArrayView]) -> list[ArrayView | bytes]:
    """Each input, followed by its shape, strides and number of dimensions if the source mentions them."""
    params: list[ArrayView | bytes] = []
    for name, seen in zip(body.input_names or (), inputs, strict=True):
        params.append(seen)
        if mentions(body.source, f"{name}_shape"):
            params.append(_per_axis(seen.shape, np.int32, name, body.name))
        if mentions(body.source, f"{name}_strides"):
            params.append(_per_axis(seen.strides, np.int64, name, body.name))
        if mentions(body.source, f"{name}_ndim"):
            params.append(np.int32(len(seen.shape)).tobytes())
    return params


def bounds_bytes(seen: ArrayView) -> bytes:
    """The least and the greatest offset of an element from the first, in elements; (0, -1) without elements."""
    if not seen.size:
        return np.array((0, -1), np.int64).tobytes()
    reach = [(n - 1) * s for n, s in zip(seen.shape, seen.strides, strict=True)]
    return np.array((sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach)), np.int64).tobytes()


def _per_axis(values: Sequence[int], dtype: Any, name: str, kernel: str) -> bytes:
    array = np.zeros(MAX_NDIM, dtype)
    try:
        array[: len(values)] = values
    except OverflowError:
        raise ArgumentValueError(
            f"input {name!r} of kernel {kernel!r} has an extent over 2**31 - 1, which {name}_shape cannot hold"
        ) from None
    return array.tobytes()


def grid_bytes(threads: Threads) -> bytes:
    """The grid, in threads, as three 64-bit integers."""
    return np.array(threads.grid, np.uint64).tobytes()


class Images:
    """The compiled forms of one kernel object, by device and by the values that the text depends on.

    `absent`: patterns of names that the language has and we lack, with an error text for each.
    """

    def __init__(
        self, headers: Mapping[str, str], options: Sequence[str], absent: Mapping[str, str] | None = None
    ) -> None:
        self._headers = headers
        self._options = tuple(options)
        self._absent = absent or {}
        self._images: dict[object, LoadedImage] = {}

    def get(
        self,
        body: CustomBody,
        special: BodySpecialisation,
        device: Device,
        variant: object,
        write: Callable[[], tuple[str, str]],
        verbose: bool,
    ) -> LoadedImage:
        """The image for a call; `write` gives the entry's name and the text, which is printed if `verbose`."""
        key = (special.key, variant, device_key(device))
        found = self._images.get(key)
        if found is None or verbose:
            entry, text = write()
            if verbose:
                print(f"Generated source code for `{body.name}`:\n```\n{text}\n```")
            if found is None:
                image = body.compile(text, device, self._headers, self._options, self._absent)
                found = self._images[key] = load_image(device, image, entry)
        return found

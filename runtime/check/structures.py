"""Structures by value whose fields are arrays: nested tuples, dictionaries, dataclasses, ctypes structures, NumPy records.

Fields of tuples and the like lie as C would lay them out; ctypes structures and NumPy records have offsets of their own.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernel_dsl.diagnostics import shown

from ..arrays.array_view import ArrayView, is_array, view
from ..errors import ArgumentTypeError, ArgumentValueError
from .tensor_maps import TensorMapArgument

POINTER = 8
_DEEPEST = 16
_HOW = "give arrays, None, NumPy scalars, bytes, Python ints (4 bytes), floats (4 bytes) and bools (1 byte), or nests of them"


@dataclass(frozen=True)
class StructureField:
    """A part of a structure. `offset` is None where C's rules place it; `value` may be a `Structure` again."""

    name: str
    value: Any
    offset: int | None = None


@dataclass(frozen=True)
class Structure:
    """A structure as its user gave it. `size` is None where its fields decide."""

    fields: tuple[StructureField, ...]
    size: int | None = None

    def mapped(self, f: Callable[[Any], Any]) -> Structure:
        """The same structure with `f` of each value that is no structure."""
        return Structure(
            tuple(
                dataclasses.replace(x, value=x.value.mapped(f) if isinstance(x.value, Structure) else f(x.value))
                for x in self.fields
            ),
            self.size,
        )

    def arrays(self) -> list[Any]:
        """The arrays in it, in the order of its fields."""
        found: list[Any] = []
        for x in self.fields:
            if isinstance(x.value, Structure):
                found += x.value.arrays()
            elif isinstance(x.value, TensorMapArgument):
                found.append(x.value.array)
            elif is_array(x.value):
                found.append(x.value)
        return found


@dataclass(frozen=True)
class StructureArgument:
    """A structure as bytes, with zeros in the place of addresses and tensor maps, and what goes there."""

    data: bytes
    parts: tuple[tuple[int, str, ArrayView | TensorMapArgument], ...]  # offset, name, what


def as_structure(value: Any) -> Structure | None:
    """`value` as a structure; None for arrays, numbers, bytes and whatever else is none. Raises ArgumentTypeError."""
    return _structure(value, 0)


def _structure(value: Any, depth: int) -> Structure | None:
    if depth > _DEEPEST:
        raise ArgumentTypeError(f"a structure is nested over {_DEEPEST} deep")
    if isinstance(value, ctypes.Structure):
        return _of_ctypes(value, depth)
    if isinstance(value, np.ndarray) and value.dtype.hasobject and value.ndim == 0:
        value = value[()]
    if isinstance(value, np.void) and value.dtype.hasobject:
        return _of_record(value, depth)
    if isinstance(value, Mapping):
        names, values = [str(k) for k in value], list(value.values())
    elif isinstance(value, (tuple, list)):
        names = [f".{n}" for n in getattr(value, "_fields", ())] or [f"[{i}]" for i in range(len(value))]
        values = list(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, (type, TensorMapArgument)):
        names = [f.name for f in dataclasses.fields(value)]
        values = [getattr(value, n) for n in names]
    else:
        return None
    names = [n if n[:1] in (".", "[") else f".{n}" for n in names]
    return Structure(tuple(StructureField(n, _nested(v, depth)) for n, v in zip(names, values, strict=True)))


def _nested(value: Any, depth: int) -> Any:
    found = _structure(value, depth + 1)
    return value if found is None else found


def _of_record(value: np.void, depth: int) -> Structure:
    """A NumPy record. Fields of dtype `object` are pointers."""
    fields: list[StructureField] = []
    for name, (_, offset, *_) in (value.dtype.fields or {}).items():
        own: Any = value[name]
        if isinstance(own, np.void) and own.dtype.hasobject:
            own = _of_record(own, depth + 1)
        elif isinstance(own, (np.ndarray, np.generic)) and value.dtype[name].kind != "O":
            own = Structure(_elements(np.asarray(own))) if own.dtype.hasobject else own.tobytes()
        fields.append(StructureField(f".{name}", own, offset))
    return Structure(tuple(fields), value.dtype.itemsize)


def _elements(own: np.ndarray[Any, Any]) -> tuple[StructureField, ...]:
    """The elements of a field that is an array of pointers or records."""
    step = own.dtype.itemsize
    each = [own[i] for i in np.ndindex(own.shape)]
    values = [_of_record(x, 0) if isinstance(x, np.void) else x for x in each]
    return tuple(StructureField(f"[{i}]", v, i * step) for i, v in enumerate(values))


def _of_ctypes(value: ctypes.Structure, depth: int) -> Structure:
    """A ctypes structure. Fields of `py_object` hold arrays."""
    raw = bytes(value)
    fields: list[StructureField] = []
    for base in reversed(type(value).__mro__):
        for name, kind, *bits in vars(base).get("_fields_", ()):
            place = getattr(type(value), name)
            offset, size = place.offset, ctypes.sizeof(kind)
            if kind is ctypes.py_object:
                try:
                    own: Any = getattr(value, name)
                except ValueError:  # a null pointer
                    own = None
            elif issubclass(kind, ctypes.Structure):
                own = _of_ctypes(getattr(value, name), depth + 1)
            elif issubclass(kind, ctypes.Array) and _holds_objects(kind):
                own = _of_array(getattr(value, name), depth + 1)
            else:
                own = raw[offset : offset + size]
                if not bits and _is_pointer(kind) and any(own):
                    what = f"the field {name!r} of {type(value).__name__} holds an address of this process"
                    raise ArgumentTypeError(f"{what}: declare it as ctypes.py_object, and give the array")
            fields.append(StructureField(f".{name}", own, offset))
    return Structure(tuple(fields), len(raw))


def _holds_objects(kind: Any) -> bool:
    element = kind._type_
    return element is ctypes.py_object or issubclass(element, (ctypes.Structure, ctypes.Array))


def _of_array(value: Any, depth: int) -> Structure:
    """An array of structures or of `py_object`."""
    kind, fields = value._type_, list[StructureField]()
    for i, own in enumerate(value):
        if issubclass(kind, ctypes.Structure):
            own = _of_ctypes(own, depth + 1)
        elif issubclass(kind, ctypes.Array):
            own = _of_array(own, depth + 1) if _holds_objects(kind) else bytes(own)
        fields.append(StructureField(f"[{i}]", own, i * ctypes.sizeof(kind)))
    return Structure(tuple(fields), ctypes.sizeof(value))


def _is_pointer(kind: Any) -> bool:
    return kind in (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_wchar_p) or hasattr(kind, "contents")


def placed(structure: Structure, size: int, name: str) -> StructureArgument:
    """The structure as an argument of `size` bytes.

    Raises ArgumentTypeError for a field that is nothing to pass, ArgumentValueError for another size.
    """
    made = _FieldPlaces()
    total, _ = _extent(structure, name)
    made.add(structure, 0, name)
    if total != size:
        listed = ", ".join(f"{n.removeprefix(name).lstrip('.')} at {at}" for at, n in made.places[:12])
        more = ", ..." if len(made.places) > 12 else ""
        raise ArgumentValueError(f"is a structure of {total} bytes ({listed}{more}), and {size} are wanted; {_HOW}")
    return StructureArgument(bytes(made.data).ljust(size, b"\0"), tuple(made.parts))


class _FieldPlaces:
    """Fields at their places."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.parts: list[tuple[int, str, ArrayView | TensorMapArgument]] = []
        self.places: list[tuple[int, str]] = []

    def add(self, structure: Structure, start: int, name: str) -> None:
        """Place the fields of a structure that begins at `start`."""
        at, starts = start, list[int]()
        for field in structure.fields:
            size, align = _extent(field.value, name + field.name)
            starts.append(-(-at // align) * align if field.offset is None else start + field.offset)
            at = starts[-1] + size
        ends = [*starts[1:], start + _extent(structure, name)[0]][: len(starts)]
        for field, at, end in zip(structure.fields, starts, ends, strict=True):
            own = name + field.name
            if isinstance(field.value, Structure):
                self.add(field.value, at, own)
            else:
                self.places.append((at, own))
                self._put(_widened(field.value, own) if at % 8 == 0 and end - at >= 8 else field.value, at, own)

    def _put(self, value: Any, at: int, name: str) -> None:
        data = _leaf_bytes(value)
        if data is None:
            self.parts.append((at, name, value if isinstance(value, TensorMapArgument) else view(value)))
            return
        self.data += bytes(max(at + len(data) - len(self.data), 0))
        self.data[at : at + len(data)] = data


def _widened(value: Any, name: str) -> Any:
    """A Python number with four bytes of padding behind it, which may belong to a number of 8 bytes.

    An int has the same value either way once its sign fills the padding; a float has not.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return np.int64(value)
    if isinstance(value, float) and not isinstance(value, np.generic):
        what = f"has {value!r} at {name!r}, which may be a float or a double"
        raise ArgumentTypeError(f"{what}: give np.float32({value!r}) or np.float64({value!r})")
    return value


def _extent(value: Any, name: str) -> tuple[int, int]:
    """The size and alignment of a field. Raises ArgumentTypeError."""
    if isinstance(value, Structure):
        at, most = 0, 1
        for field in value.fields:
            size, align = _extent(field.value, name + field.name)
            most = max(most, align)
            at = (-(-at // align) * align if field.offset is None else field.offset) + size
        return (-(-at // most) * most if value.size is None else value.size), most
    if isinstance(value, TensorMapArgument):
        return 128, 64
    if isinstance(value, (bytes, bytearray)):
        return len(value), 1
    if isinstance(value, int) and not -(1 << 31) <= value < 1 << 32:
        raise ArgumentTypeError(f"has {shown(value)} at {name!r}, which does not fit 4 bytes: give np.int64({value})")
    data = _leaf_bytes(value)
    if data is not None:
        return len(data), value.dtype.alignment if isinstance(value, np.generic) else len(data)
    if not is_array(value):
        raise ArgumentTypeError(f"has {shown(value)} at {name!r}: {_HOW}")
    return POINTER, POINTER


def _leaf_bytes(value: Any) -> bytes | None:
    """The bytes of a field that is no array; None for others."""
    if value is None:
        return bytes(POINTER)
    if isinstance(value, np.generic):  # before float, which float64 is too
        return value.tobytes()
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, bool):
        return bytes([value])
    if isinstance(value, int):
        return (value % (1 << 32)).to_bytes(4, "little")
    if isinstance(value, float):
        with np.errstate(over="ignore"):
            return np.float32(value).tobytes()
    return None


def leaves(args: Sequence[Any]) -> list[Any]:
    """The arrays among arguments, with those in structures."""
    return Structure(tuple(StructureField("", a) for a in args)).arrays()

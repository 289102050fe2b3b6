"""Compiled kernels as bytes and back: what the disk cache and ahead-of-time files hold.

A file is one header of JSON, the PTX and the cubin, behind a SHA-256 of all three. No pickle:
reading a file makes nothing but the dataclasses of `compiled.py`, tuples, lists, dicts and scalars, each of the type that its
field is declared with. Whether they make a kernel that can be launched is `well_formed.problem`'s to say.

    magic "KDSL" + schema, 8 bytes | SHA-256 of the rest | 3 lengths, u64 little-endian | header |
    PTX | cubin
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import struct
from collections.abc import Callable, Iterable
from enum import Enum, EnumType
from functools import cache
from itertools import chain
from types import NoneType, UnionType
from typing import Any, cast

import numpy as np

from . import compiled
from .compiled import Assembled, CompiledKernel, SourceLine
from .dataclass import declared_type
from .diagnostics import Error
from .dtypes import BY_NAME, DType, as_dtype

SCHEMA = 1
_MAGIC = b"KDSL" + SCHEMA.to_bytes(4, "little")
_LENGTHS = struct.Struct("<3Q")
_DIGEST = 32
_START = len(_MAGIC) + _DIGEST
UNSEALED = "0" * 64  # the placeholder of a seal, the first of the texts that `pack` gets
_SEAL = _START + _LENGTHS.size + len('{"meta":{"seal":"')


class UnsavableError(Error, TypeError):
    """A result structure that a file can't express."""

    code = "unsavable"
    title = "{value} of type {kind} cannot be saved with a compiled kernel"
    note = "files hold tuples, lists, dicts, scalars, dtypes and the classes of a compiled kernel"
    help = "use one of those in the kernel's `out_type`"


class ArtifactError(Error, ValueError):
    """A file that should hold a compiled kernel does not: cut short, altered, or of another version."""

    code = "artifact"

    def __init__(self, message: str = "") -> None:
        super().__init__(message=message)

    def __reduce__(self) -> tuple[Any, ...]:
        return ArtifactError, (self.fields["message"],)


_OURS: dict[str, Any] = {
    name: value for name, value in vars(compiled).items() if getattr(value, "__module__", "") == compiled.__name__
}
# `dataclasses.is_dataclass` would have each class make its methods
_CLASSES: dict[str, Any] = {n: v for n, v in _OURS.items() if "__dataclass_fields__" in vars(v)}
_PLAIN = frozenset({NoneType, bool, int, float, str})
_ENUMS: dict[str, Any] = {n: v for n, v in _OURS.items() if isinstance(v, type) and issubclass(v, Enum)}
_NAMED: dict[str, type] = {
    kind.__name__: kind for kind in (bool, int, float, str, bytes, DType, *_CLASSES.values(), *_ENUMS.values())
} | {"None": NoneType}


class _Encoder:
    """Python values to JSON.

    A JSON list is a tuple; a type that JSON lacks is an object with one key that begins with `$`.
    """

    def __init__(self) -> None:
        self.places: dict[SourceLine, int] = {}

    def place(self, line: SourceLine) -> int:
        return self.places.setdefault(line, len(self.places))

    def encode(self, value: Any) -> Any:
        kind = cast("type[Any]", type(value))
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {"$float": str(value)}
        if kind is tuple:
            return [self.encode(item) for item in value]
        if kind is list:
            return {"$list": [self.encode(item) for item in value]}
        if kind is dict:
            return {"$dict": [[self.encode(k), self.encode(v)] for k, v in value.items()]}
        if kind is SourceLine:
            return {"$at": self.place(value)}
        return self.encode_object(value)

    def encode_object(self, value: Any) -> Any:
        kind = cast("type[Any]", type(value))
        if kind is CompiledKernel:
            return self.encode_kernel(value)
        if _CLASSES.get(kind.__name__) is kind:
            return {"$": kind.__name__, **self.fields(value)}
        if isinstance(value, DType):
            return {"$dtype": value.name}
        if isinstance(value, Enum) and _ENUMS.get(kind.__name__) is kind:
            return {"$enum": [kind.__name__, value.name]}
        if isinstance(value, bytes):
            return {"$bytes": value.hex()}
        if isinstance(value, complex):
            return {"$complex": [self.encode(value.real), self.encode(value.imag)]}
        if isinstance(value, np.generic):
            array = np.asarray(cast("Any", value))
            return {"$numpy": [as_dtype(array.dtype).name, array.tobytes().hex()]}
        raise UnsavableError(value=repr(value), kind=kind.__qualname__)

    def fields(self, value: Any) -> dict[str, Any]:
        return {f.name: self.encode(getattr(value, f.name)) for f in dataclasses.fields(value)}

    def encode_kernel(self, kernel: CompiledKernel) -> Any:
        # The line map has an entry for most lines of PTX: three flat lists read back in a
        # millisecond.
        bare = dataclasses.replace(kernel, ptx="", lines={})
        return {
            "$": "CompiledKernel",
            **self.fields(bare),
            "lines": {
                "ptx": [*kernel.lines],
                "at": [self.place(line) for line in kernel.lines.values()],
            },
        }


# Whether all values of a column, which are a field's of several objects, have exactly the declared type: a bool is no int.
# A column is looked at as a whole, since a map of lines has a thousand of them.
Check = Callable[[Iterable[Any]], bool]


def _plain_types(hint: Any) -> frozenset[type] | None:
    """The types of a hint that lists classes; None for any other hint."""
    options = hint.__args__ if type(hint) is UnionType else (NoneType if hint is None else hint,)
    kinds = frozenset(options)
    return kinds if {type, EnumType}.issuperset(map(type, kinds)) and np.generic not in kinds else None


@cache
def _check_of(hint: Any) -> Check:
    kinds = _plain_types(hint)
    if kinds is not None:
        return lambda column: kinds.issuperset(map(type, column))
    if hint is Any:
        return lambda column: True
    if type(hint) is UnionType:
        options = [_check_of(option) for option in hint.__args__]
        return lambda column: all(any(fits((value,)) for fits in options) for value in column)
    if hint is not np.generic:
        if hint.__origin__ is dict:
            keys, values = map(_check_of, hint.__args__)
            return lambda column: (
                {dict}.issuperset(map(type, column)) and all(keys(d) and values(d.values()) for d in column)
            )
        assert hint.__origin__ is tuple
        parts = hint.__args__
        if parts[-1] is Ellipsis:
            each = _check_of(parts[0])
            return lambda column: {tuple}.issuperset(map(type, column)) and each(tuple(chain.from_iterable(column)))
        checks = [_check_of(part) for part in parts]
        return lambda column: (
            {tuple}.issuperset(map(type, column))
            and {len(checks)}.issuperset(map(len, column))
            and all(fits(values) for fits, values in zip(checks, zip(*column, strict=True), strict=False))
        )
    return lambda column: all(isinstance(value, np.generic) for value in column)


@cache
def _types_of(annotation: Any) -> frozenset[type] | Check:
    """The types of a field's values, or a check of them."""
    names: list[str] = annotation.split(" | ")
    if _NAMED.keys() >= {*names}:  # most fields; it takes a tenth of an evaluation
        return frozenset(map(_NAMED.__getitem__, names))
    hint = declared_type(compiled.__name__, annotation)
    return _plain_types(hint) or _check_of(hint)


@cache
def _fields_of(kind: type) -> tuple[dict[str, frozenset[type]], dict[str, Check]]:
    """The types of fields, and the checks of other fields."""
    hints = [hint for cls in reversed(kind.__mro__) for hint in vars(cls).get("__annotations__", {}).items()]
    found = {name: _types_of(hint) for name, hint in hints}
    plain = {name: types for name, types in found.items() if isinstance(types, frozenset)}
    return plain, {name: check for name, check in found.items() if not isinstance(check, frozenset)}


def know_fields() -> None:
    """Look up the types of all fields now, for a program that is still importing."""
    for kind in _CLASSES.values():
        _fields_of(kind)


def _made(kind: Any, fields: dict[str, Any]) -> Any:
    """An object of `compiled.py` whose fields have their types. Raises TypeError if they do not."""
    plain, checks = _fields_of(kind)
    if len(fields) == len(plain) + len(checks) and (fields.keys() - plain.keys()) == checks.keys():
        value = object.__new__(kind)  # `__init__` would store the same
        value.__dict__.update(fields)
    else:
        value = kind(**fields)
    for name, types in plain.items():
        if type(getattr(value, name)) not in types:
            raise TypeError(f"{name} of {kind.__name__} is {getattr(value, name)!r:.80}")
    for name, fits in checks.items():
        if not fits((getattr(value, name),)):
            raise TypeError(f"{name} of {kind.__name__} is {getattr(value, name)!r:.80}")
    return value


_PLACE = tuple(SourceLine.__annotations__)


class _Decoder:
    def __init__(self, places: list[list[Any]], ptx: str, cubin: bytes) -> None:
        self.places = [_made(SourceLine, dict(zip(_PLACE, place, strict=True))) for place in places]
        self.ptx = ptx
        self.cubin = cubin

    def decode(self, value: Any) -> Any:
        if isinstance(value, list):
            return tuple([item if type(item) in _PLAIN else self.decode(item) for item in cast("list[Any]", value)])
        if not isinstance(value, dict):
            return value
        fields = cast("dict[str, Any]", value)
        return self.decode_class(fields) if "$" in fields else self.decode_tagged(fields)

    def decode_class(self, value: dict[str, Any]) -> Any:
        made = {k: v if type(v) in _PLAIN else self.decode(v) for k, v in value.items() if k not in ("$", "lines")}
        if value["$"] == "CompiledKernel":
            numbers, at = value["lines"]["ptx"], value["lines"]["at"]
            if not {*map(type, numbers), *map(type, at)} <= {int}:
                raise TypeError("the map of lines holds other things than numbers")
            made["lines"] = dict(zip(numbers, map(self.places.__getitem__, at), strict=True))
            made["ptx"] = self.ptx
        if value["$"] == "Assembled":
            made["cubin"] = self.cubin
        return _made(_CLASSES[value["$"]], made)

    def decode_tagged(self, value: dict[str, Any]) -> Any:
        if not value:
            raise KeyError("an object without a key")
        tag, inside = next(iter(value.items()))
        match tag:
            case "$at":
                return self.places[int(inside)]
            case "$dtype":
                return BY_NAME[inside]
            case "$enum":
                return _ENUMS[inside[0]][inside[1]]
            case "$float":
                return float(inside)
            case "$list":
                return list(map(self.decode, inside))
            case "$dict":
                return {self.decode(k): self.decode(v) for k, v in inside}
            case "$complex":
                return complex(self.decode(inside[0]), self.decode(inside[1]))
            case "$bytes":
                return bytes.fromhex(inside)
            case "$numpy":
                dtype: Any = BY_NAME[inside[0]].numpy
                return np.frombuffer(bytes.fromhex(inside[1]), dtype)[0]
            case _:
                raise KeyError(tag)


def pack(value: Assembled | CompiledKernel, meta: dict[str, str] | None = None) -> bytes:
    """The bytes of a file that holds `value`, and the caller's own texts in `meta`.

    Raises UnsavableError for a result structure that JSON and the classes of `compiled.py` can't express.
    """
    encoder = _Encoder()
    if isinstance(value, Assembled):
        kernel, cubin = value.kernel, value.cubin
        body = encoder.encode(dataclasses.replace(value, cubin=b""))
    else:
        kernel, cubin = value, b""
        body = encoder.encode(value)
    places = [dataclasses.astuple(place) for place in encoder.places]
    header = {"meta": meta or {}, "places": places, "body": body}
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    ptx = kernel.ptx.encode()
    rest = b"".join((_LENGTHS.pack(len(text), len(ptx), len(cubin)), text, ptx, cubin))
    return _MAGIC + hashlib.sha256(rest).digest() + rest


def unpack(data: bytes) -> tuple[Assembled | CompiledKernel, dict[str, str]]:
    """The arguments of `pack`. Raises ArtifactError for bytes that `pack` of this schema did not write."""
    if data[:4] != _MAGIC[:4]:
        raise ArtifactError("not a compiled kernel: the file does not begin with 'KDSL'")
    if data[:8] != _MAGIC:
        schema = int.from_bytes(data[4:8], "little")
        raise ArtifactError(f"written with file format {schema}; this version reads {SCHEMA}. Save it again.")
    at = _START + _LENGTHS.size
    if hashlib.sha256(memoryview(data)[_START:]).digest() != data[len(_MAGIC) : _START] or len(data) < at:
        raise ArtifactError("damaged: the contents do not match their checksum")
    sizes = _LENGTHS.unpack_from(data, _START)
    if at + sum(sizes) != len(data):
        raise ArtifactError("damaged: the lengths do not add up")
    text, ptx, cubin = (data[at + sum(sizes[:i]) : at + sum(sizes[: i + 1])] for i in range(len(sizes)))
    try:
        header = json.loads(text)
        value = _Decoder(header["places"], ptx.decode(), cubin).decode(header["body"])
        meta = header["meta"]
        if type(value) not in (Assembled, CompiledKernel) or type(meta) is not dict:
            raise TypeError("it holds no kernel")
        if not all(type(text) is str for text in cast("dict[str, Any]", meta).values()):
            raise TypeError("its texts are none")
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ArtifactError(f"of another version of kernel_dsl ({error!r:.200}). Save it again.") from error
    return value, cast("dict[str, str]", meta)


def seal(data: bytes, secret: bytes) -> bytes:
    """Bytes of `pack` with the seal in place of `UNSEALED`, the first of their texts, named `seal`."""
    rest = b"".join((data[_START:_SEAL], seal_of(data, secret).encode(), data[_SEAL + len(UNSEALED) :]))
    return _MAGIC + hashlib.sha256(rest).digest() + rest


def seal_of(data: bytes, secret: bytes) -> str:
    """The seal that belongs to such bytes. It takes the secret (at most 64 bytes) to compute it."""
    total = hashlib.blake2b(key=secret, digest_size=len(UNSEALED) // 2)
    for part in (data[_START:_SEAL], UNSEALED.encode(), data[_SEAL + len(UNSEALED) :]):
        total.update(part)
    return total.hexdigest()

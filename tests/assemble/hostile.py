"""Files that hold a compiled kernel, altered behind a checksum that is right."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import struct
from typing import Any

_START, _LENGTHS = 40, struct.Struct("<3Q")

# What may stand where a file has something else.
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 2**200, 1.5, 1e308, float("nan"), float("inf"), "", "x", "\0", "\ud800",
    "../../etc/passwd", "/etc/passwd", "a" * 3000, [], [[]], [0] * 1000, {}, {"a": 1},
    {"$": "CompiledKernel"}, {"$": "Assembled"}, {"$": "os.system"}, {"$": ["x"]}, {"$": "SourceLine", "file": "f", "line": 1},
    {"$": "PointerParam", "array": 99}, {"$": "PointerParam", "array": -1}, {"$": "Resources"}, {"$": None}, {"$at": 10**9},
    {"$at": -1}, {"$at": "x"}, {"$dtype": "float33"}, {"$dtype": ["float32"]}, {"$dtype": "float32"}, {"$enum": ["Enum", "x"]},
    {"$enum": ["Swizzle", "__class__"]}, {"$enum": ["Swizzle", "B128"]}, {"$enum": []}, {"$float": "x"}, {"$float": "nan"},
    {"$float": []}, {"$list": 3}, {"$list": [1]}, {"$dict": 3}, {"$dict": [[[], 1]]}, {"$dict": [[{"$list": []}, 1]]}, {"$dict": [[1]]},
    {"$bytes": "zz"}, {"$bytes": "00"}, {"$complex": [1]}, {"$complex": [1, 2]}, {"$numpy": ["float32", "00"]},
    {"$numpy": ["float32", "0000803f"]}, {"$numpy": ["float33", ""]}, {"$numpy": ["object", "0" * 16]}, {"$unknown": 1},
]  # fmt: skip


def parts(data: bytes) -> tuple[dict[str, Any], bytes, bytes]:
    """The header, the PTX and the machine code of a file."""
    sizes = _LENGTHS.unpack_from(data, _START)
    at, found = _START + _LENGTHS.size, []
    for size in sizes:
        found.append(data[at : at + size])
        at += size
    return json.loads(found[0]), found[1], found[2]


def file(header: Any, ptx: bytes, cubin: bytes) -> bytes:
    """A file of these parts, with the checksum that belongs to them."""
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return checked(_LENGTHS.pack(len(text), len(ptx), len(cubin)) + text + ptx + cubin)


def checked(rest: bytes, magic: bytes = b"KDSL\1\0\0\0") -> bytes:
    return magic + hashlib.sha256(rest).digest() + rest


def _places(node: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Every (container, key) of a tree of JSON."""
    for key in node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
        found.append((node, key))
        _places(node[key], found)
    return found


def altered(data: bytes, choose: random.Random) -> tuple[str, bytes]:
    """What was done to a file, and the file."""
    header, ptx, cubin = parts(data)
    kind = choose.choice(
        [*["value"] * 12, "swap", "drop", "add", "deep", "text", "ptx", "cubin", "lengths", "short", "magic"]
    )
    rest = data[_START:]
    if kind in ("value", "swap", "drop", "add"):
        # The map of lines is most of a file, and all alike.
        places = [p for p in _places(header, []) if not (isinstance(p[0], list) and len(p[0]) > 40)]
        container, key = choose.choice(places)
        if kind == "value":
            container[key] = copy.deepcopy(choose.choice(ODD))
        elif kind == "swap":
            other, place = choose.choice(places)
            container[key], other[place] = copy.deepcopy(other[place]), copy.deepcopy(container[key])
        elif kind == "drop":
            del container[key]
        elif isinstance(container, dict):
            container[choose.choice(["$", "ptx", "__class__", "$at", "extra"])] = copy.deepcopy(choose.choice(ODD))
        else:
            container.insert(key, copy.deepcopy(choose.choice(ODD)))
        return kind, file(header, ptx, cubin)
    if kind == "deep":
        nest = choose.choice([b"[", b'{"$list":', b'{"a":'])
        depth = choose.choice([50, 500, 5000, 200_000])
        closing = b"]" if nest == b"[" else b"}"
        text = json.dumps(header, separators=(",", ":")).encode()
        tree = nest * depth + b"0" + closing * depth
        return kind, file(text.replace(b'"output_tree":0', b'"output_tree":' + tree), ptx, cubin)
    if kind == "text":
        return kind, file(
            choose.choice([b"", b"\xff", b"[]", b"3", b'{"meta":{},"places":[],"body":1}', b"{", b"9" * 9999]),
            ptx,
            cubin,
        )
    if kind == "ptx":
        odd = [
            b"",
            ptx[: len(ptx) // 2],
            b"\xff" + ptx,
            ptx.replace(b".entry", b".func"),
            ptx.replace(b".param", b".const", 1),
        ]
        return kind, file(header, choose.choice(odd), cubin)
    if kind == "cubin":
        return kind, file(header, ptx, choose.choice([b"", cubin[: len(cubin) // 2], ptx, b"\x7fELF", b"\0" * 10_000]))
    if kind == "lengths":
        sizes = [choose.choice([0, 1, 2**32, 2**63, 2**64 - 1, len(rest)]) for _ in range(3)]
        return kind, checked(_LENGTHS.pack(*sizes) + rest[_LENGTHS.size :])
    if kind == "short":
        return kind, checked(rest[: choose.randrange(60)])
    return kind, checked(rest, choose.choice([b"KDSL\2\0\0\0", b"KDSL\1\0\0", b"PK\3\4\0\0\0\0"]))

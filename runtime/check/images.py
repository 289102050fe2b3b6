"""Reads the PTX of a check's image: a text, bytes, a file, or a binary that contains PTX."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_dsl.diagnostics import shown

from ..build.fatbin import ptx_in_binary
from ..errors import ArgumentTypeError, ArgumentValueError, LoadError
from ..interpreter import runs_on


@dataclass(frozen=True)
class Image:
    """PTX, and the file name for its lines in reports, or `<ptx>`."""

    ptx: str
    file: str


def _names_file(given: Any) -> bool:
    """Whether a string is a path: one line without `.version`, which each module has."""
    return isinstance(given, str) and bool(given) and "\n" not in given and ".version" not in given


def as_image(given: Any, entry: Any = None, target: Any = None) -> Image:
    """The PTX of a text, bytes or a path. `entry` and `target` choose among the texts of a binary.

    Raises ArgumentTypeError, ArgumentValueError, LoadError, DeviceError.
    """
    file = "<ptx>"
    if isinstance(given, os.PathLike) or _names_file(given):
        path = Path(given)
        file = str(path)
        try:
            given = path.read_bytes()
        except OSError as error:
            raise ArgumentValueError(f"{shown(file)} can't be read: {error.strerror}") from None
    if isinstance(given, str):
        return Image(given, file)
    if not isinstance(given, (bytes, bytearray, memoryview)):
        raise ArgumentTypeError(f"{shown(given)} is no image: give PTX, a cubin or fat binary with PTX, or a kernel")
    data = bytes(given)
    known = isinstance(target, str) and re.fullmatch(r"sm_\d+[af]?", target)

    def runs(wanted: str) -> bool:
        return not wanted or runs_on(wanted, target)

    found = ptx_in_binary(data, file, entry if isinstance(entry, str) else None, runs if known else None)
    text = (data if found is None else found).rstrip(b"\0")
    if b".version" not in text and not text.isascii():
        raise LoadError(f"the image {file} is neither PTX text nor a cubin or fat binary")
    return Image(text.decode("utf-8", "replace"), file)

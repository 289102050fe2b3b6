"""The PTX inside a fat binary, for the interpreter.

The container is undocumented; its fields are those that `fatbinary` of CUDA 12 and 13 writes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

from ..errors import DeviceError, LoadError
from .elf import ptx_in_debug_section

_MAGIC = b"\x50\xed\x55\xba"
_ELF = b"\x7fELF"
_PTX = 1
_LZ4, _ZSTD = 0x2000, 0x8000
_HEADER = struct.Struct("<4x2xHQ")  # the header's bytes, those of the rest
# kind, header's bytes, payload's bytes, compressed bytes, architecture, flags, bytes when unpacked
_ENTRY = struct.Struct("<H2xIQI8xI8xQ8xQ")


def is_fatbin(image: bytes) -> bool:
    """Whether an image is a fat binary."""
    return image[:4] == _MAGIC


def problem(image: bytes) -> str:
    """The reason why a fat binary is incomplete, in a few words; None for a complete one and for other images."""
    if not is_fatbin(image):
        return ""
    try:
        at, size = _HEADER.unpack_from(image)
    except struct.error:
        return f"it has {len(image)} bytes"
    return "" if at + size <= len(image) else f"it has {at + size} bytes, of which {len(image)} are there"


def ptx_in_binary(image: bytes, name: str, entry: str | None = None, runs: Runs | None = None) -> bytes | None:
    """The PTX in a fat binary, or in the fat binaries and debug sections of an ELF file; None for other images.

    Of several texts it is the one with the entry `entry` (with any entry for None), for the newest architecture of those
    whose targets, such as "sm_90a", `runs` is true of. Raises DeviceError if it holds machine code alone, LoadError if
    it is damaged.
    """
    if is_fatbin(image):
        return ptx_in_fatbin(image, name, entry, runs)
    if not image.startswith(_ELF):
        return None
    found = ptx_in_debug_section(image)
    if found is not None:
        return found
    texts: list[_Text] = []
    why: Exception | None = None
    at = image.find(_MAGIC)
    while at >= 0:
        try:
            texts += _texts(image[at:], name)
        except LoadError as error:
            why = why or error
        at = image.find(_MAGIC, at + 1)
    if not texts:
        raise why or DeviceError(
            f"the binary {name!r} holds machine code alone, which only a GPU runs. The interpreter takes PTX: make it with "
            "nvcc --ptx, or a fat binary with nvcc -gencode arch=compute_90,code=compute_90"
        )
    return _chosen(texts, entry, runs)


def ptx_in_fatbin(image: bytes, name: str, entry: str | None = None, runs: Runs | None = None) -> bytes:
    """The PTX of a fat binary; of several, the one that `ptx_in_binary` describes.

    Raises DeviceError if it holds machine code alone, LoadError if it is damaged.
    """
    texts = _texts(image, name)
    if not texts:
        raise DeviceError(
            f"the fat binary of {name!r} holds machine code alone, which only a GPU runs. The "
            "interpreter takes PTX: put it in with nvcc -gencode arch=compute_90,code=compute_90"
        )
    return _chosen(texts, entry, runs)


_Text = tuple[int, bytes]  # architecture and PTX
Runs = Callable[[str], bool]  # whether a device runs PTX for a target


def _texts(image: bytes, name: str) -> list[_Text]:
    try:
        return [(arch, unpack().rstrip(b"\0")) for arch, unpack in _ptx_entries(image)]
    except (struct.error, IndexError, ValueError):
        raise LoadError(f"the fat binary of {name!r} is damaged") from None


def _chosen(texts: list[_Text], entry: str | None, runs: Runs | None) -> bytes:
    wanted = rb"\.entry\s+" + (b"" if entry is None else re.escape(entry.encode()) + rb"(?![\w$])")

    def rank(text: _Text) -> tuple[bool, bool, int, bool]:
        arch, ptx = text
        found = re.search(rb"\.target\s+(sm_\d+[af]?)", ptx)
        target = "" if found is None else found[1].decode()
        fits = runs is None or runs(target)
        return re.search(wanted, ptx) is not None, fits, arch if fits else -arch, target[-1:] in ("a", "f")

    return max(texts, key=rank)[1]


def _ptx_entries(image: bytes) -> Iterator[tuple[int, Callable[[], bytes]]]:
    """For each PTX in a fat binary, its architecture and a function that unpacks it."""
    at, size = _HEADER.unpack_from(image)
    end = at + size
    while at < end:
        kind, header, stored, packed, arch, flags, unpacked = _ENTRY.unpack_from(image, at)
        if header < _ENTRY.size:
            raise ValueError("an entry without a header")
        body = image[at + header : at + header + stored]
        if kind == _PTX:
            yield arch, lambda b=body[: packed or stored], f=flags, n=unpacked: _unpack(b, f, n)
        at += header + stored


def _unpack(body: bytes, flags: int, size: int) -> bytes:
    if flags & _ZSTD:
        return _zstd(body)
    if flags & _LZ4:
        return lz4_block(body, size)
    return body


def _zstd(body: bytes) -> bytes:
    """Unpack zstd. Raises ValueError for damaged data, DeviceError where nothing can unpack it."""
    library: Any
    for name in ("compression.zstd", "backports.zstd"):  # of Python 3.14, and the same for older ones
        with suppress(ImportError):
            library = import_module(name)
            break
    else:
        raise DeviceError(
            "the PTX in this fat binary is compressed with zstd, which Python unpacks from 3.14 on. "
            'pip install "kernel-dsl[zstd]", or build it with nvcc --no-compress'
        )
    unpacker = library.ZstdDecompressor()
    try:
        text: bytes = unpacker.decompress(body)  # one frame; zeros may fill the entry up
    except library.ZstdError as error:
        raise ValueError(str(error)) from None
    if not unpacker.eof:
        raise ValueError("the frame ends early")
    return text


def lz4_block(body: bytes, size: int) -> bytes:
    """Unpack an LZ4 block of `size` bytes (LZ4 Block Format Description)."""
    out = bytearray()
    at = 0
    while len(out) < size:
        token = body[at]
        at += 1
        count, at = _lz4_count(body, at, token >> 4)
        out += body[at : at + count]
        at += count
        if len(out) >= size:
            break
        back = body[at] | body[at + 1] << 8
        count, at = _lz4_count(body, at + 2, token & 15)
        if not 0 < back <= len(out):
            raise ValueError("a match before the beginning")
        for _ in range(count + 4):  # a match may overlap its own output
            out.append(out[-back])
    return bytes(out[:size])


def _lz4_count(body: bytes, at: int, count: int) -> tuple[int, int]:
    """A length: four bits, then further bytes while they are 255."""
    if count == 15:
        while True:
            more = body[at]
            at += 1
            count += more
            if more != 255:
                break
    return count, at

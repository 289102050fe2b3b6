"""A check that machine code is complete. The driver gets an address without a size, and would read beyond a cut cubin."""

from __future__ import annotations

import struct

MAGIC = b"\x7fELF"
_CLASS_64, _LITTLE_ENDIAN, _CUDA = 2, 1, 190
_NO_BITS = 8  # a section without bytes in the file
# ELF-64 object file format, 'ELF header' and 'Section header': after 16 bytes of identification, the type, the machine, ...
_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<4xI8x8xQQ")
_NAMED_SECTION = struct.Struct("<I4x8x8xQQ")
_DEBUG_PTX = b".nv_debug_ptx_txt"
_SEGMENT = struct.Struct("<8xQ16xQ")


def problem(image: bytes) -> str:
    """The reason why an image is no complete cubin, in a few words; None if it is one."""
    if len(image) < _HEADER.size or not image.startswith(MAGIC):
        return f"its {len(image)} bytes begin with {bytes(image[:16])!r}"
    if image[4] != _CLASS_64 or image[5] != _LITTLE_ENDIAN:
        return "it is of another kind of machine"
    _, machine, _, _, segments, sections, *_ = fields = _HEADER.unpack_from(image)
    if machine != _CUDA:
        return f"it is for machine {machine}, which is no GPU"
    segment_size, segment_count, section_size, section_count = fields[8:12]
    ranges = _ranges(image, segments, segment_size, segment_count, _SEGMENT, None)
    ranges += _ranges(image, sections, section_size, section_count, _SECTION, _NO_BITS)
    end = max((start + size for start, size in ranges), default=0)
    if end > len(image):
        return f"it has {end} bytes, of which {len(image)} are there"
    return "" if section_count else "it has no sections"


def ptx_in_debug_section(image: bytes) -> bytes | None:
    """The PTX that a cubin made for debugging holds, a line after each zero byte; None where there is none."""
    if problem(image):
        return None
    fields = _HEADER.unpack_from(image)
    start, step, count, names = fields[5], *fields[10:13]
    rows = [_NAMED_SECTION.unpack_from(image, start + n * step) for n in range(count)]
    if not names < count:
        return None
    strings = image[rows[names][1] :]
    for name, offset, size in rows:
        if strings[name:].partition(b"\0")[0] == _DEBUG_PTX:
            return image[offset : offset + size].replace(b"\0", b"\n")
    return None


def _ranges(
    image: bytes, start: int, step: int, count: int, form: struct.Struct, without: int | None
) -> list[tuple[int, int]]:
    """The offset and size of a table of headers, and of each part that a header describes."""
    if count and step < form.size:
        return [(len(image), 1)]
    found = [(start, step * count)]
    for number in range(count if start + step * count <= len(image) else 0):
        row = form.unpack_from(image, start + number * step)
        if without is None or row[0] != without:
            found.append(row[-2:])
    return found

"""The functions that the CUDA runtime supplies to device code: vprintf, __assertfail, malloc and free; and NVSHMEM's."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..checks.kinds import HazardKind
from ..ptx.module import Instruction
from . import nvshmem
from .group import Group
from .heap import free, malloc
from .memory import LOCAL_WINDOW, RANK_SHIFT, SHARED_WINDOW, WINDOW_BITS, WINDOW_MASK

Array = npt.NDArray[Any]
_FORMAT = re.compile(r"%([-+ #0]*)(\*|\d+)?(?:\.(\*|\d+))?(hh|h|ll|l|z|j|t|L)?([diouxXeEfFgGaAcsp%])")


def _lane_bytes(c: Group, row: int, lane: int, address: int, size: int) -> bytes:
    """Return `size` bytes at a lane's generic address, or fewer at the end of memory."""
    window = address >> WINDOW_BITS
    at = address & WINDOW_MASK
    warp = int(c.rows[row])
    if window == LOCAL_WINDOW >> WINDOW_BITS:
        return c.batch.local.data[warp, lane, at : at + size].tobytes()
    if window == SHARED_WINDOW >> WINDOW_BITS:
        block = c.batch.row_cta[warp] - c.batch.row_rank[warp] + (at >> RANK_SHIFT)
        at &= (1 << RANK_SHIFT) - 1
        return c.batch.shared.block_view()[block, at : at + size].tobytes()
    buffer = c.batch.run.memory.find(address)
    if buffer is None:
        return b""
    start = address - buffer.address
    return buffer.bytes[start : start + size].tobytes()


def _string(c: Group, row: int, lane: int, address: int) -> str:
    data = _lane_bytes(c, row, lane, address, 4096)
    return data.partition(b"\0")[0].decode("utf-8", "replace")


def _values(c: Group, param: Array, dtype: str) -> Array:
    return np.ascontiguousarray(param[c.select]).view(dtype)[..., 0]


def _vprintf(c: Group, ins: Instruction, params: list[Array]) -> None:
    formats, buffers = _values(c, params[0], "u8"), _values(c, params[1], "u8")
    for row, lane in np.argwhere(c.active):
        text = _string(c, row, lane, int(formats[row, lane]))
        c.batch.run.output.append(_format(c, int(row), int(lane), text, int(buffers[row, lane])))


def _format(c: Group, row: int, lane: int, text: str, at: int) -> str:
    """Format text as C's printf, with arguments packed at `at`: 4 bytes for int, 8 for long, double and pointers."""

    def take(code: str, size: int) -> Any:
        nonlocal at
        at = -(-at // size) * size
        data = _lane_bytes(c, row, lane, at, size).ljust(size, b"\0")
        at += size
        return struct.unpack("<" + code, data)[0]

    def one(m: re.Match[str]) -> str:
        flags, width, precision, length, kind = m.groups()
        if kind == "%":
            return "%"
        if width == "*":
            width = str(take("i", 4))
        if precision == "*":
            precision = str(take("i", 4))
        spec = "%" + flags + (width or "") + (f".{precision}" if precision is not None else "")
        wide = length in ("l", "ll", "z", "j", "t")
        if kind in "di":
            return (spec + "d") % take("q" if wide else "i", 8 if wide else 4)
        if kind in "ouxX":
            return (spec + ("d" if kind == "u" else kind)) % take("Q" if wide else "I", 8 if wide else 4)
        if kind == "c":
            return (spec + "c") % chr(take("i", 4) & 255)
        if kind == "s":
            return (spec + "s") % _string(c, row, lane, take("Q", 8))
        if kind == "p":
            return (spec + "s") % f"{take('Q', 8):#x}"
        return (spec + ("f" if kind in "aA" else kind)) % take("d", 8)

    return _FORMAT.sub(one, text)


def _assertfail(c: Group, ins: Instruction, params: list[Array]) -> None:
    row, lane, who = c.batch.run.reporter.group(c, c.active)
    message = _string(c, row, lane, int(_values(c, params[0], "u8")[row, lane]))
    file = _string(c, row, lane, int(_values(c, params[1], "u8")[row, lane]))
    line = int(_values(c, params[2], "u4")[row, lane])
    what = f"assertion `{message}` failed at {file}:{line}"
    c.batch.run.reporter.hazard(HazardKind.ASSERTION, what, ins, (who,))


# Bytes of each argument.
SIZES: dict[str, tuple[int, ...]] = {
    "vprintf": (8, 8), "__assertfail": (8, 8, 4, 8, 8), "malloc": (8,), "free": (8,), **nvshmem.SIZES,
}  # fmt: skip
# The values that a function returns, (rows, 32), or None.
SYSTEM: dict[str, Callable[[Group, Instruction, list[Array]], Array | None]] = {
    "vprintf": _vprintf,
    "__assertfail": _assertfail,
    "malloc": lambda c, ins, params: malloc(c, ins, _values(c, params[0], "u8")),
    "free": lambda c, ins, params: free(c, ins, _values(c, params[0], "u8")),
    **nvshmem.FUNCTIONS,
}

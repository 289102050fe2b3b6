"""A caller of tvm-ffi's packed functions, and a library in the place of tvm-ffi's own: its stream, and the error that was raised."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

_SOURCE = """
#include <string.h>
static char kind[64], text[512];
void *TVMFFIEnvGetStream(int type, int device) { return (void *)(long)(type == 2 ? 4096 + device : 0); }
void TVMFFIErrorSetRaisedFromCStr(const char *k, const char *m) { strncpy(kind, k, 63); strncpy(text, m, 511); }
const char *raised_kind(void) { return kind; }
const char *raised(void) { return text; }
"""
STREAM = 4096  # of GPU 0
INT, BOOL, FLOAT, DL_TENSOR, TENSOR = 1, 2, 3, 7, 70


class Any_(ctypes.Structure):  # noqa: N801
    """`TVMFFIAny` of `tvm/ffi/c_api.h`."""

    _fields_ = [("type_index", ctypes.c_int32), ("padding", ctypes.c_uint32), ("value", ctypes.c_uint64)]


def built(folder: Path) -> Any:
    """The library in tvm-ffi's place, loaded so that all find it."""
    (folder / "tvm.c").write_text(_SOURCE)
    path = folder / "libtvm_ffi.so"
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler
    command = [compiler, "-shared", "-fPIC", f"-Wl,-soname,{path.name}", "-o", str(path), str(folder / "tvm.c")]
    subprocess.run(command, check=True)
    library = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    library.raised.restype = library.raised_kind.restype = ctypes.c_char_p
    return library


def held(tensor: Any) -> Any:
    """The memory of a tensor object: a header of 24 bytes, then the DLTensor."""
    made = ctypes.create_string_buffer(bytes(24) + bytes(tensor))
    made.tensor = tensor  # which owns its shape and strides  # pyright: ignore
    return made


def call(address: int, given: list[tuple[int, Any]]) -> int:
    """Call a packed function with (type index, value)s: an int, a float, or memory."""
    args = (Any_ * max(len(given), 1))()
    for place, (kind, value) in zip(args, given, strict=False):
        place.type_index = kind
        if isinstance(value, float):
            value = int.from_bytes(ctypes.c_double(value), "little")
        place.value = value % 2**64 if isinstance(value, int) else ctypes.addressof(value)
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p)(
        address
    )
    return function(None, ctypes.addressof(args), len(given), ctypes.addressof(Any_()))

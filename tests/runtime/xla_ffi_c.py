"""XLA's side of a foreign function call, by ctypes: `xla/ffi/api/c_api.h`, version 0."""

from __future__ import annotations

import ctypes
from typing import Any

P, N, W = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64


class Buffer(ctypes.Structure):
    _fields_ = [("size", W), ("ext", P), ("dtype", N), ("data", P), ("rank", W), ("dims", P)]


class Listed(ctypes.Structure):
    _fields_ = [("size", W), ("ext", P), ("count", W), ("types", P), ("items", P)]


class Attrs(ctypes.Structure):
    _fields_ = [("size", W), ("ext", P), ("count", W), ("types", P), ("names", P), ("items", P)]


class Array(ctypes.Structure):
    _fields_ = [("dtype", N), ("count", W), ("data", P)]


class StreamArgs(ctypes.Structure):
    _fields_ = [("size", W), ("ext", P), ("ctx", P), ("stream", P)]


class ErrorArgs(ctypes.Structure):
    _fields_ = [("size", W), ("ext", P), ("message", ctypes.c_char_p), ("code", N)]


GET_STREAM = ctypes.CFUNCTYPE(P, ctypes.POINTER(StreamArgs))
CREATE_ERROR = ctypes.CFUNCTYPE(P, ctypes.POINTER(ErrorArgs))


class Api(ctypes.Structure):
    _fields_ = [
        ("size", W), ("ext", P), ("version_size", W), ("version_ext", P), ("major", N), ("minor", N), ("internal", P),
        ("create_error", CREATE_ERROR), ("get_message", P), ("destroy", P), ("register", P), ("get_stream", GET_STREAM),
    ]  # fmt: skip


class Frame(ctypes.Structure):
    _fields_ = [
        ("size", W), ("ext", P), ("api", ctypes.POINTER(Api)), ("ctx", P), ("stage", N),
        ("args", Listed), ("rets", Listed), ("attrs", Attrs), ("future", P),
    ]  # fmt: skip


STREAM = 0


def call_handler(address: int, operands: list[Any], results: list[Any], scalars: bytes) -> str | None:
    """Call a handler as XLA does; its error's text."""
    errors: list[str] = []

    @CREATE_ERROR
    def create(args: Any) -> int:
        errors.append(args.contents.message.decode())
        return 1

    @GET_STREAM
    def stream(args: Any) -> int:
        args.contents.stream = STREAM
        return 0

    api = Api(major=0, minor=3, create_error=create, get_stream=stream)
    keep: list[Any] = []

    def listed(arrays: list[Any]) -> Listed:
        dims = [(W * max(a.ndim, 1))(*a.shape) for a in arrays]
        buffers = [
            Buffer(48, None, 0, a.ctypes.data, a.ndim, ctypes.addressof(d)) for a, d in zip(arrays, dims, strict=True)
        ]
        table = (P * max(len(buffers), 1))(*map(ctypes.addressof, buffers))
        keep.extend((dims, buffers, table))
        return Listed(40, None, len(arrays), None, ctypes.addressof(table))

    data = ctypes.create_string_buffer(scalars + bytes(16))
    array = Array(6, len(scalars), ctypes.addressof(data))
    attrs = (P * 1)(ctypes.addressof(array))
    frame = Frame(
        ctypes.sizeof(Frame), None, ctypes.pointer(api), None, 3, listed(operands), listed(results),
        Attrs(48, None, 1, None, None, ctypes.addressof(attrs)), None,
    )  # fmt: skip
    failed = ctypes.CFUNCTYPE(P, ctypes.POINTER(Frame))(address)(ctypes.pointer(frame))
    assert bool(failed) == bool(errors)
    return errors[0] if errors else None

"""Streams of every framework as handles."""

from __future__ import annotations

from typing import Any

from kernel_dsl.diagnostics import of_kind

from ..errors import ArgumentTypeError


def stream_handle(stream: Any) -> int:
    """The `CUstream` handle of an int, a torch or CuPy stream, or an object with `__cuda_stream__`.

    Raises ArgumentTypeError for anything else, and for a negative int.
    """
    if isinstance(stream, bool):
        raise ArgumentTypeError("stream= takes a stream or its handle, not a bool")
    if isinstance(stream, int):
        if stream < 0:
            raise ArgumentTypeError(f"stream= takes a stream or its handle, and {stream} is none")
        return stream
    for name in ("cuda_stream", "ptr"):  # torch.cuda.Stream, cupy.cuda.Stream
        handle = getattr(stream, name, None)
        if isinstance(handle, int):
            return handle
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        # A method by the protocol (version, handle); early implementations made it a property.
        pair: Any = protocol() if callable(protocol) else protocol
        return int(pair[1])
    if type(stream).__name__ == "CUstream" or hasattr(stream, "handle"):
        return int(getattr(stream, "handle", stream))
    raise ArgumentTypeError(
        "stream= takes a CUDA stream (torch.cuda.Stream, cupy.cuda.Stream, or anything with "
        "__cuda_stream__) or its "
        f"handle, not {of_kind(stream)}"
    )

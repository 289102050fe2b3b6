"""NumPy arrays that a kernel body closes over: constants in the kernel's image."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dtypes import as_dtype
from ..errors import BadArgument
from ..ir import ArrayType, Op, attr
from ..trace import LayoutVar, traced
from ..values import Array

# PTX ISA 5.1.3: a bank of constant memory has 64 KB
LIMIT_BYTES = 65536


class Dense(Op, name="dense"):
    """An array constant in the kernel's image. PTX `.global .const` data, read with `ld.global.nc`."""

    data: Any = attr()
    layout: Any = attr()

    def infer(self) -> tuple[Any, ...]:
        return (ArrayType(self.data.shape, as_dtype(self.data.dtype), self.layout),)


def dense(data: np.ndarray[Any, Any]) -> Array:
    """`data` as a value. Raises `BadArgument` over 64 KB: pass larger arrays as inputs."""
    if data.nbytes > LIMIT_BYTES:
        what = f"a NumPy array of {data.nbytes} bytes was closed over"
        hint = f"constants have at most {LIMIT_BYTES} bytes; pass it as an input"
        raise BadArgument(op="constant", what=what, hint=hint)
    return traced(Dense(np.ascontiguousarray(data), LayoutVar(data.shape)))

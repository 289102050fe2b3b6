"""Extents of variables on a driver without a GPU, in any order that the edges allow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .cuda_played import CudaKernel, DeviceArray, host
from .symbolic_programs import check, compute, shape_of


def kernel(kind: str, extents: Any, x: Any, scalar: Any, out: Any) -> Any:
    def body(x: Any, out: Any, *scalars: int) -> None:
        compute(kind, x, scalars[0] if scalars else None, out)

    def outputs(arrays: Any) -> Any:
        return [(shape_of(kind, extents, arrays[0].shape), np.int32)]

    # an entry of its own for each shape
    body.__name__ = f"{kind}_{'_'.join(str(n).translate(NAMES) for n in extents)}"
    made = CudaKernel(body, outputs, scalars=int(scalar is not None))
    return made(x, *([] if scalar is None else [scalar]), out=out)


NAMES = {ord(c): "_" for c in "(), '*+/-"}


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.sampled(2)
def test_random_programs_beside_numpy(seed: int) -> None:
    check(seed, kernel, DeviceArray, host, nested=bool(seed % 2))

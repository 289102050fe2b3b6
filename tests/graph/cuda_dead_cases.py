"""Launches that are left out, on a driver without a GPU: in any order that the edges allow."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from kernel_dsl.runtime.arrays.array_view import view

from .cuda_played import CudaKernel, DeviceArray, host
from .dead_programs import BODIES, bounds, check
from .kernels import like

KERNELS = {kind: CudaKernel(body, like, **more) for kind, (body, more) in BODIES.items()}


def part(array: Any, half: int) -> Any:
    """A view of a half of an array, which it keeps alive."""
    if half == 2:
        return array
    low, high = bounds(half)
    if isinstance(array, DeviceArray):
        return DeviceArray(array.data[low:high])
    raw = (ctypes.c_char * (4 * (high - low))).from_address(view(array).address + 4 * low)
    made = DeviceArray(np.frombuffer(raw, np.int32))
    made.owner = array
    return made


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.sampled(2)
def test_random_programs_beside_numpy(seed: int) -> None:
    check(seed, KERNELS, DeviceArray, part, host)

"""Kernels that most tests of this folder record, on a device of NumPy functions."""

from __future__ import annotations

import numpy as np
import pytest

from .kernels import Kernel, device, like


@pytest.fixture
def dev():
    return device()


@pytest.fixture
def xor(dev):
    def xor(a, b, out):
        np.bitwise_xor(a, b, out=out)

    return Kernel(dev, xor, like)


@pytest.fixture
def xor3(dev):
    def xor3(a, b, c, out):
        out[...] = a ^ b ^ c

    return Kernel(dev, xor3, like)


@pytest.fixture
def double(dev):
    def double(x, out):
        out[...] = x * 2

    return Kernel(dev, double, like)


@pytest.fixture
def add(dev):
    def add(x, out, k):
        out[...] = x + k

    return Kernel(dev, add, like, scalars=1)

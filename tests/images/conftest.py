"""Every kernel of this folder runs in the interpreter, and on a GPU where there is one."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from runtime import driver, nvrtc
from runtime.nvrtc import CompileError

FAKE = bool(os.environ.get("KERNEL_DSL_FAKE_CUDA"))


@pytest.fixture(params=["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)])
def interpret(request: pytest.FixtureRequest) -> bool:
    """`interpret=` for a call."""
    if request.param == "interpreter":
        return True
    state = driver.available()
    if not state:
        pytest.skip(f"no GPU: {state.reason}")
    if FAKE:
        from .fake_gpu import install

        install()
    return False


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture(scope="session")
def compiler() -> None:
    """For tests that compile CUDA C++."""
    reason = nvrtc.unavailable()
    if reason:
        pytest.skip(reason)


@pytest.fixture
def gpu() -> None:
    """For tests of what only a GPU does."""
    state = driver.available()
    if not state:
        pytest.skip(f"no GPU: {state.reason}")
    if FAKE:
        pytest.skip("the driver is made up")


def compile_error(kernel: Any, *inputs: np.ndarray, size: int = 1) -> CompileError:
    """What a call of an untraced kernel is refused with, whose one output has `size` floats."""
    with pytest.raises(CompileError) as caught:
        kernel(
            inputs=list(inputs),
            output_shapes=[(size,)],
            output_dtypes=[np.float32],
            grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
            interpret=True,
        )
    return caught.value

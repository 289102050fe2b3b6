"""Every kernel of this folder runs in the interpreter, and on a GPU where there is one."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from kernel_dsl.runtime.custom import nvrtc
from kernel_dsl.runtime.custom.nvrtc import CompileError
from kernel_dsl.runtime.devices import driver

FAKE = bool(os.environ.get("KERNEL_DSL_FAKE_CUDA"))
# Arguments of a call with one input and one output, in the interpreter.
GOOD = {
    "inputs": [np.zeros(3, np.float32)],
    "output_shapes": [(3,)],
    "output_dtypes": [np.float32],
    "grid": (3, 1, 1),
    "threadgroup": (3, 1, 1),
    "interpret": True,
}


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


def one_block(
    kernel: Any, *inputs: np.ndarray, interpret: bool, shape: Any = (1,), dtype: Any = np.float32, threads: int = 1
) -> Any:
    """The one output of a custom kernel that runs in one block of `threads`."""
    (out,) = kernel(
        inputs=list(inputs),
        output_shapes=[shape],
        output_dtypes=[dtype],
        grid=(threads, 1, 1),
        threadgroup=(threads, 1, 1),
        interpret=interpret,
    )
    return out


def compile_error(kernel: Any, *inputs: np.ndarray, size: int = 1) -> CompileError:
    """What a call of a custom kernel is refused with, whose one output has `size` floats."""
    with pytest.raises(CompileError) as caught:
        one_block(kernel, *inputs, shape=(size,), interpret=True)
    return caught.value

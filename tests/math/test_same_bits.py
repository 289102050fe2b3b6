"""The same bits everywhere: PTX in the interpreter and on a GPU, LLVM text on the host."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_dsl.lowering.math import FUNCTIONS
from kernel_dsl.runtime.interpreter import GlobalMemory, parse, run
from tests.gpu.launcher import Gpu, why_no_gpu

from .device import compile_ptx
from .host import NUMPY, host_function
from .references import pairs, samples

KEYS = [key for key in FUNCTIONS if not FUNCTIONS.is_helper(key)]
BLOCK = 128


def arguments(key: str, count: int) -> list[np.ndarray]:
    """A multiple of BLOCK arguments, drawn from specials and samples alike."""
    name, dtype = key.split(".")
    types = FUNCTIONS[key].parameters
    if len(types) == 2:
        pool = list(pairs(name, dtype, 20_000))
    else:
        pool = [samples(dtype, 20_000)]
    rng = np.random.default_rng(0)
    chosen = rng.choice(pool[0].size, count // BLOCK * BLOCK, replace=False)
    taken = [array[chosen] for array in pool]
    if types[-1] == "i32":
        taken[-1] = rng.integers(-300, 300, taken[0].size).astype(np.int32)
    return taken


def interpret(ptx: str, inputs: list[np.ndarray], output: np.ndarray) -> np.ndarray:
    memory = GlobalMemory()
    addresses = [memory.allocate(array) for array in [*inputs, output]]
    params = [np.uint64(address).tobytes() for address in addresses]
    grid = (output.size // BLOCK, 1, 1)
    run(parse(ptx), "kernel", params, grid=grid, block=(BLOCK, 1, 1), memory=memory)
    return output


def assert_same_bits(key: str, inputs: list[np.ndarray], result: np.ndarray) -> None:
    expected = host_function(key)(*inputs)
    integer = np.uint32 if result.dtype == np.float32 else np.uint64
    equal = result.view(integer) == expected.view(integer)
    wrong = ~(equal | (np.isnan(result) & np.isnan(expected)))
    assert not wrong.any(), (
        [array[wrong][:4] for array in inputs],
        result[wrong][:4],
        expected[wrong][:4],
    )


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.sampled(2)
def test_interpreter(key: str) -> None:
    inputs = arguments(key, 512)
    output = np.zeros(inputs[0].shape, NUMPY[FUNCTIONS[key].dtype])
    assert_same_bits(key, inputs, interpret(compile_ptx(key).ptx, inputs, output))


@pytest.mark.gpu
@pytest.mark.skipif(why_no_gpu() is not None, reason=str(why_no_gpu()))
def test_gpu() -> None:
    with Gpu() as gpu:
        for key in KEYS:
            inputs = arguments(key, 16_384)
            output = np.zeros(inputs[0].shape, NUMPY[FUNCTIONS[key].dtype])
            module = gpu.load(compile_ptx(key).ptx.encode())
            result = gpu.run(module, "kernel", inputs, output, output.size // BLOCK, BLOCK)
            gpu.unload(module)
            assert_same_bits(key, inputs, result)

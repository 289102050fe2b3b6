"""A short run of the random kernels; `python -m tests.fuzz` is the long one."""

from __future__ import annotations

import pytest

from tests.fuzz.__main__ import attempt
from tests.fuzz.generate import generate


@pytest.mark.parametrize("block", range(8))
def test_interpreter(block: int) -> None:
    for seed in range(block * 10, block * 10 + 10):
        assert attempt(generate(seed), gpu=False) is None, f"python -m tests.fuzz --count 1 --seed {seed}"


@pytest.mark.gpu
def test_gpu() -> None:
    for seed in range(200):
        assert attempt(generate(seed), gpu=True) is None, f"python -m tests.fuzz --count 1 --seed {seed} --device gpu"


def test_a_seed_is_a_program() -> None:
    assert generate(11).source() == generate(11).source()


def test_it_can_fail() -> None:
    """A wrong result is found: the check is not vacuous."""
    program = generate(3)
    outputs = program.run()
    for out in outputs:
        if out.size and out.dtype.kind != "b":
            out += out.dtype.type(1)
    with pytest.raises(AssertionError):
        program.check(outputs)
